"""Whatever is wrong with a file, the command says so in one line, with exit code 2, and leaves nothing behind."""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from omniset import SetClassifier
from omniset.cli import main
from omniset.core.sets import Sets
from omniset.tables import LabelFile, SetTable, collect
from small import QUIET, TINY

SETS = "set,x,y\na,1,2\na,3,4\nb,5,6\nb,7,8\n"
LABELS = "set,label\na,p\nb,q\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "sets.csv").write_text(SETS)
    (folder / "labels.csv").write_text(LABELS)
    paths = [str(folder / "sets.csv"), f"--target={folder / 'labels.csv'}", f"--out={folder / 'run'}"]
    assert main(["fit", *paths, *TINY, *QUIET]) == 0
    return folder / "run"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.csv").write_text(SETS)
    (tmp_path / "labels.csv").write_text(LABELS)
    return tmp_path


def listing(folder):
    return {str(p): p.is_file() and os.access(p, os.R_OK) and p.read_bytes() for p in folder.rglob("*")}


def fails(capsys, folder, command, *said):
    """The command ends with 2, says all that in one line, and leaves the folder as it was."""
    before = listing(folder)
    capsys.readouterr()
    assert main(command.split(" ") + QUIET) == 2
    message = capsys.readouterr().err
    assert re.fullmatch(r"omniset: error: [^\n]+\n", message), message
    for words in said:
        assert words in message, message
    assert listing(folder) == before


def bad_value(value, message, column="x"):
    return pytest.param(column, value, message, id=f"{column}={value}")


VALUES = [
    bad_value("red", "is 'red', it must be a number"),
    bad_value("1,5", "is '1,5', a number with a comma (--decimal , reads decimal commas), it must be a number"),
    bad_value("0x1f", "is '0x1f', it must be a number"),
    bad_value("", "is empty, it must be a number"),
    bad_value(np.nan, "is nan, it must be a finite number"),
    bad_value(-np.inf, "is -inf, it must be a finite number"),
    bad_value(1e39, "is 1e+39, too large for 32-bit numbers (at most 3.4e38)"),
    bad_value(-1, "is -1, it must be a finite number >= 0", "multiplicity"),
    bad_value(np.nan, "is nan, it must be a finite number >= 0", "multiplicity"),
    bad_value(1e39, "is 1e+39, too large for 32-bit numbers (at most 3.4e38)", "multiplicity"),
    bad_value(1e-50, "is 1e-50, too small for 32-bit numbers (at least 1.4e-45, or 0 for what", "multiplicity"),
    bad_value("", "is empty", "set"),
    bad_value(" ", "is empty", "element"),
    bad_value("e0", "names 'e0' a second time in set 'a': use multiplicity", "element"),
]


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "parquet"])
@pytest.mark.parametrize(("column", "value", "message"), VALUES)
def test_values(column, value, message, kind, here, capsys):
    frame = pd.DataFrame({"set": list("aab"), "element": ["e0", "e1", "e2"], "x": 1.5, "multiplicity": 2})
    frame[column] = frame[column].astype(object).where([True, False, True], value)
    if kind == "parquet":
        if isinstance(value, str):
            frame[column] = frame[column].astype(str)
        frame.infer_objects().to_parquet("t.parquet", index=False)
        message = message.replace("is nan", "is missing")
    else:
        separator = "," if kind == "csv" else "\t"
        frame.astype(object).map(str).to_csv(f"t.{kind}", index=False, sep=separator)
    where = "row 2" if kind == "parquet" else "line 3"
    said = f"t.{kind}: {where}: column {column!r} {message}"
    fails(capsys, here, f"fit t.{kind} --target labels.csv --out run", said)


SHAPES = {
    "no set column": ("sets,x\na,1\n", "has no column 'set', it has 'sets', 'x'"),
    "no features": ("set,multiplicity\na,1\n", "has no feature columns, only 'set', 'multiplicity'"),
    "rows of a set apart": (SETS + "a,1,2\n", "line 6: set 'a' again, after other sets (it began at line 2)"),
    "empty": ("", "is empty: its first line must hold the names of the columns"),
    "blank first line": ("\n" + SETS, "is empty: its first line must hold the names"),
    "header only": ("set,x\n", "has no rows below its header"),
    "header and blank lines": ("set,x\n\n,\n", "has no rows below its header"),
    "too many fields": (SETS + "\nb,1,2,3\n", "line 7: has 4 fields, the header has 3"),
    "too few fields": (SETS + "\nb,1\n", "line 7: column 'y' is empty, it must be a number"),
    "open quote": (SETS + 'b,"1,2\nb,3,4\n', 'line 6: has a quote (") that is never closed'),
    "Latin-1": (SETS.encode() + b"\xfc,1,2\n", "line 6: is not UTF-8 text"),
    "UTF-16 without mark": (SETS.encode("utf-16-le"), "line 1: is not UTF-8 text (it has bytes of 0)"),
    "NUL": (SETS + "b\0,1,2\n", "line 6: is not UTF-8 text (it has bytes of 0)"),
    "same name twice": ("set,x, x\na,1,2\n", "column 'x' is there twice"),
    "no name": (",set,,x\n0,a,1,1\n", "column 3 has no name (a row index? write the table without it"),
    "values past a blank line": (SETS + "\n\nb,1,-\n", "line 8: column 'y' is '-', it must be a number"),
}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case, packed, here, capsys):
    content, message = SHAPES[case]
    content = content.encode() if isinstance(content, str) else content
    (here / f"t.csv{packed}").write_bytes(gzip.compress(content) if packed else content)
    fails(capsys, here, f"fit t.csv{packed} --target labels.csv --out run", f"t.csv{packed}", message)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ("sett,label\na,p\nb,q\n", "", "has no column 'set', it has 'sett', 'label'"),
        ("set\na\nb\n", "", "has no column beside 'set' with what is to be predicted"),
        (LABELS, " --target_columns age", "has no column 'age', it has 'set', 'label'"),
        (LABELS, " --target_columns label,label", "column 'label' is asked for twice"),
        (LABELS, " --group patient", "has no column 'patient'"),
        ("set,label\nb,q\n", "", "has no label for set 'a' of sets.csv"),
        (LABELS + "c,p\nd,p\n", "", "line 4: set 'c' is not in sets.csv (2 such)"),
        (LABELS + "\nb,p\n", "", "line 5: set 'b' has a label already (line 3): labels have one row per set"),
        (LABELS + "B,q\n", "", "line 4: set 'B' is not in sets.csv; did you mean 'b'?"),
        ("set,age,label\na,1.5,p\nb,2.5,q\n", "", "'age' is a number and 'label' a class, and a model learns one kind"),
        ("set,label\na,\nb,q\n", "", "line 2: column 'label' is empty: each set needs a label"),
        ("set,label\na,p\nb\n", "", "line 3: column 'label' is empty: each set needs a label"),
        ("set,label,g\na,p,\nb,q,1\n", " --group g", "line 2: column 'g' is empty"),
        ("set,label\na,p\nb,p\n", "", "nothing to learn"),
        ("set,age\na,1.5\nb,1.5\n", "", "nothing to learn"),
        (LABELS, " --task regression", "line 2: column 'label' is 'p', it must be a finite number of at most"),
        ("set,age\na,1.5\nb,inf\n", " --task regression", "line 3: column 'age' is 'inf'"),
        ("set,age\na,1.5\nb,1e39\n", "", "line 3: column 'age' is '1e39'"),
        ("set,age\na,1.5\nb,NA\n", "", "labels.csv: line 3: column 'age' is 'NA', it must be a number, as the others"),
        ("set,element,label\na,1,p\n", "", "sets.csv: has no column 'element'"),
        ("set,label\n", "", "has no rows below its header"),
        ("", "", "is empty: its first line must hold"),
        ("set,label\na,p\nb,q,r\n", "", "line 3: has 3 fields, the header has 2"),
        (LABELS, " --features x,q", "sets.csv: has no column 'q', it has 'set', 'x', 'y'"),
        (LABELS, " --features x,Y", "sets.csv: has no column 'Y', it has 'set', 'x', 'y'; did you mean 'y'?"),
        (LABELS, ' --features "x,Y"', "sets.csv: has no column 'x,Y', it has"),
        (LABELS, " --features x,x", "sets.csv: column 'x' is asked for twice"),
        (LABELS, " --level element", "labels.csv has labels of sets"),
    ],
    ids=str,
)
def test_labels(labels, options, message, here, capsys):
    (here / "labels.csv").write_text(labels)
    fails(capsys, here, f"fit sets.csv --target labels.csv --out run{options}", message)


def test_labels_of_sets_are_not_learned_as_those_of_elements(here, capsys):
    (here / "t.csv").write_text("set,x,label\na,1,p\na,2,p\nb,3,q\n")
    fails(capsys, here, "fit t.csv --target_columns label --out run", "t.csv: targets of a set are all the same: say")


def test_sets_that_are_alike_or_empty(here, model, capsys):
    """Vectors that tell nothing apart are not written."""
    rows = "".join(f"s{i},{'7,7' if i < 4 else f'{i},2'},{int(i > 0)}\n" for i in range(7))
    for sets, said in ((rows, ""), (rows.replace("5,2", "7,7"), "4 of 6 sets come out the same, such as 's1', 's2'")):
        (here / "t.csv").write_text("set,x,y,multiplicity\n" + sets)
        if said:
            fails(capsys, here, f"embed t.csv --model {model} --out v.csv", f"t.csv: {said}")
        else:
            assert main(["embed", "t.csv", f"--model={model}", "--out=v.csv", *QUIET]) == 0
            (here / "v.csv").unlink()
            assert "1 of 7 sets are empty: 's0'" in capsys.readouterr().err
    (here / "t.csv").write_text("set,x,y,multiplicity\n" + rows.replace(",1\n", ",0\n", 4))
    (here / "labels.csv").write_text("set,label\n" + "".join(f"s{i},{'pq'[i % 2]}\n" for i in range(7)))
    for command in (f"embed t.csv --model {model} --out v.csv", "fit t.csv --target labels.csv --out run"):
        fails(capsys, here, command, "t.csv: 5 of 7 sets are empty: 's0', 's1', 's2': look at what has emptied them")


NAMES = {
    "set": ("Set", "SETS", "set_id", "Set ID", "set-name"),
    "multiplicity": ("Multiplicity", "multiplicities", "count", "Counts", "n", "N", "weight", "Weights", "abundance"),
    "element": ("Element", "elements", "element_id"),
}


@pytest.mark.parametrize(("meant", "name"), [(meant, name) for meant, names in NAMES.items() for name in names])
def test_names_like_those_with_a_meaning_are_no_features(meant, name, here, capsys):
    (here / "t.csv").write_text(SETS.replace("y", name))
    fit = "fit t.csv --target labels.csv --out run"
    quoted = shlex.quote(name)
    said = f"t.csv: column {name!r} would be a feature, but its name is nearly {meant!r}: rename it if it is that; "
    fails(capsys, here, fit, said + f"--ignore {quoted} leaves it out, --features takes what it names")
    frame = pd.read_csv("t.csv")
    with pytest.raises(ValueError, match=f"column {name!r} would be a feature, but its name is nearly {meant!r}"):
        SetClassifier().fit(frame, ["p", "q"])
    assert Sets.of(frame, torch.float32, ["x", name]).features == ["x", name]


def with_index(here, index, rows=12, name="row"):
    frame = pd.DataFrame({"set": [f"s{i // 3}" for i in range(rows)]})
    frame.insert(0, name, list(index))
    frame["x"] = np.random.default_rng(0).normal(size=rows).round(3)
    frame.to_csv(here / "t.csv", index=False)
    labels = pd.DataFrame({"set": frame["set"].unique()})
    labels.assign(label=[f"k{i % 2}" for i in range(len(labels))]).to_csv(here / "labels.csv", index=False)
    return frame


@pytest.mark.parametrize(
    ("name", "index", "said"),
    [
        ("Unnamed: 0", [5, 3, 8] * 4, "is a row index without a name: write the table with index=False"),
        ("Unnamed: 0.1", range(12), "is a row index without a name: write the table with index=False"),
        ("index", [4, 0, 7, 1, 9, 3, 11, 2, 6, 10, 8, 5], "is an index: write the table without it"),
        ("level_0", [0, 0, 0, 1, 1, 1] * 2, "is an index"),
        ("row", range(12), "only counts the rows: write the table without it"),
        ("row", range(1, 13), "only counts the rows: write the table without it"),
        ("row", np.arange(12.0), "only counts the rows: write the table without it"),
        ("row", [0, 1, 2] * 4, "only counts the rows of each set: write the table without it"),
        ("row", [1, 2, 3] * 4, "only counts the rows of each set: write the table without it"),
    ],
)
def test_row_numbers_are_no_features(name, index, said, here, capsys):
    frame = with_index(here, index, name=name)
    message = f"column {name!r} would be a feature, but {said}"
    fails(capsys, here, "fit t.csv --target labels.csv --out run", f"t.csv: {message}", f"--ignore {shlex.quote(name)}")
    with pytest.raises(ValueError, match=re.escape(message)):
        SetClassifier().fit(frame, ["p", "q"] * 2)


@pytest.mark.parametrize(
    ("name", "index", "rows"),
    [
        ("row", range(9), 9),  # so few may count by chance
        ("row", [*range(11), 12], 12),
        ("row", range(2, 14), 12),
        ("row", [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 1], 12),
        ("row", [0.0] * 12, 12),
        ("index", [0.5, *range(11)], 12),
        ("index", [-1, *range(11)], 12),
        ("setting", [3, 1] * 6, 12),
        ("multiple", [3, 1] * 6, 12),
    ],
)
def test_other_numbers_are_features(name, index, rows, here):
    with_index(here, index, rows, name)
    table = SetTable(here / "t.csv")
    collection, _ = collect(table, table.features)
    assert collection.features == [name, "x"]


def test_places_in_pairs_are_features(here):
    """0 and 1 in each set of two say which of a pair an element is."""
    frame = pd.DataFrame({"set": np.repeat(np.arange(20), 2), "side": [0, 1] * 20})
    frame.to_csv("t.csv", index=False)
    assert collect(SetTable("t.csv"), ["side"])[0].features == ["side"]
    assert Sets.of(frame, torch.float32).features == ["side"]


def test_rows_are_counted_over_chunks(here, monkeypatch):
    monkeypatch.setattr("omniset.tables.files.CELLS", 1)  # chunks of 256 rows
    sizes = [3, 709, 5, 311]
    frame = pd.DataFrame({"set": np.repeat(list("abcd"), sizes), "row": np.arange(1028)})
    frame["place"] = frame.groupby("set").cumcount() + 1
    frame["late"] = np.arange(1028) + (np.arange(1028) == 1027)
    for columns, said in (("row", "counts the rows:"), ("place", "counts the rows of each set:"), ("late", None)):
        frame[["set", columns]].to_csv("t.csv", index=False)
        if said is None:
            assert len(collect(SetTable("t.csv"), ["late"])[0]) == 4
        else:
            with pytest.raises(ValueError, match=f"column '{columns}' would be a feature, but only {said}"):
                list(SetTable("t.csv"))
    assert len(list(SetTable("t.csv", ["late"]))) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ignore q", "has no column 'q', it has 'Unnamed: 0', 'set', 'x'"),
        ("--ignore Unamed:0", "has no column 'Unamed:0', it has 'Unnamed: 0', 'set', 'x'; did you mean 'Unnamed: 0'?"),
        ("--ignore x --features x", "column 'x' cannot be ignored (--ignore): it is named by --features too"),
        ("--ignore x,x", "column 'x' is asked for twice"),
        ("--ignore set", "column 'set' cannot be ignored (--ignore): it says what the rows are"),
        ("--features xx", "has no column 'xx', it has 'Unnamed: 0', 'set', 'x'; did you mean 'x'?"),
    ],
)
def test_ignored_columns(options, message, here, capsys):
    with_index(here, range(12), name="Unnamed: 0")
    fails(capsys, here, f"fit t.csv --target labels.csv --out run {options}", f"t.csv: {message}")


def test_target_columns_that_are_none(here, capsys):
    for columns, message in (
        ("Unnamed: 0,set,label\n0,a,p\n1,b,q\n", "'Unnamed: 0' would be a target, but is a row index without a name"),
        ("set,Element,label\na,1,p\nb,1,q\n", "column 'Element' would be a target, but its name is nearly 'element'"),
        ("set,index,label\na,1,p\nb,0,q\n", "column 'index' would be a target, but is an index"),
        ("set,i\n" + "".join(f"s{i},{i}\n" for i in range(10)), "column 'i' would be a target, but only counts the"),
    ):
        (here / "labels.csv").write_text(columns)
        fails(capsys, here, "fit sets.csv --target labels.csv --out run", f"{message}", "with --target_columns")
        assert LabelFile("labels.csv", columns.split("\n")[0].split(",")[-1:]).columns
    (here / "labels.csv").write_text("set,weight\na,1\nb,2\n")
    assert LabelFile("labels.csv").columns == ["weight"]


def test_element_names_twice_in_a_large_set(here, capsys, monkeypatch):
    monkeypatch.setattr("omniset.tables.files.CELLS", 1)  # chunks of 256 rows
    rows = [f"a,e{i},1" for i in range(600)] + ["", "a,e7,1", "b,f,1"]
    (here / "t.csv").write_text("\n".join(["set,element,x", *rows]))
    said = "t.csv: line 603: column 'element' names 'e7' a second time in set 'a'"
    fails(capsys, here, "fit t.csv --target labels.csv --out run --max_elements 10", said)


def test_parquet_that_is_none_or_nested(here, capsys):
    fit = "fit t.parquet --target labels.csv --out run"
    frame = pd.DataFrame({"set": list("aabb"), "x": [1.5, 2, 3, 4], "y": [[1], [2], [], [3, 4]]})
    frame.to_parquet("t.parquet")
    fails(capsys, here, fit, "column 'y' must be text or numbers, it is list<")
    fails(capsys, here, fit.replace("t.parquet", "labels.csv --features x"), "has no column 'x'")
    frame.drop(columns="y").rename(columns={"set": "x", "x": "set"}).to_parquet("t.parquet")
    fails(capsys, here, fit, "column 'set' must be text or whole numbers, it is double")
    frame.drop(columns="y").to_parquet("t.parquet")
    whole = (here / "t.parquet").read_bytes()
    for length in (0, 3, 11, len(whole) // 2, len(whole) - 7, len(whole) - 1):
        (here / "t.parquet").write_bytes(whole[:length])
        fails(capsys, here, fit, "t.parquet: is cut off, damaged or no Parquet file")
    for at in (20, 40):
        (here / "t.parquet").write_bytes(whole[:at] + b"\xff" * 20 + whole[at + 20 :])
        fails(capsys, here, fit, "t.parquet: is cut off")
    shutil.copy("sets.csv", "t.parquet")
    fails(capsys, here, fit, "t.parquet: is cut off, damaged or no Parquet file")
    latin = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xfc"]).buffers())
    pq.write_table(pa.table({"set": latin, "x": [1.5, 2.5]}), "t.parquet")
    fails(capsys, here, fit, "t.parquet: is cut off, damaged", "Invalid UTF8 sequence at string index 1")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_files_that_are_none_or_cut_off(kind, here, capsys):
    fit = f"fit t.csv.{kind} --target labels.csv --out run"
    pd.read_csv("sets.csv").to_csv(f"t.csv.{kind}", index=False)
    whole = (here / f"t.csv.{kind}").read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], SETS.encode()):
        (here / f"t.csv.{kind}").write_bytes(content)
        fails(capsys, here, fit, f"t.csv.{kind}: is cut off or ")


def test_paths(here, model, capsys):
    (here / "folder.csv").mkdir()
    (here / "old.csv").write_text("old")
    ends = "the name must end in .parquet, .csv or .tsv"
    fit, predict = "fit {} --target labels.csv --out run", f"predict {{}} --model {model} --out {{}}"
    for path, message in (
        ("t.xlsx", ends),
        ("t.csv.zip", ends),
        ("t.parquet.gz", ends),
        ("folder.csv", "folder.csv is a directory, it must be a file"),
        ("none.csv", "none.csv: No such file or directory"),
        ("none", "none: No such file or directory"),
        ("none/t.parquet", "none/t.parquet: No such file or directory"),
    ):
        fails(capsys, here, fit.format(path), message)
        fails(capsys, here, predict.format(path, "out.csv"), message)
    for path, message in (
        ("out.txt", ends),
        ("folder.csv", "out must be a file, folder.csv is a directory"),
        ("none/out.csv", "none is no directory: make it before writing out.csv"),
    ):
        fails(capsys, here, predict.format("sets.csv", path), message)
        fails(capsys, here, predict.replace("predict", "explain").format("sets.csv", path), message)
    fails(capsys, here, "fit sets.csv --target labels.csv --out old.csv", "old.csv is a file")
    fails(capsys, here, f"evaluate sets.csv --target labels.csv --model {model} --out old.csv", "old.csv is a file")
    (here / "t.csv").write_text(SETS + "c,1,nan\n")
    fails(capsys, here, predict.format("t.csv", "old.csv") + " --max_elements 2", "line 6: column 'y' is nan")
    assert main(predict.format("sets.csv", "old.csv").split() + QUIET) == 0
    assert pd.read_csv("old.csv")["set"].tolist() == ["a", "b"]


def test_features_at_predict(here, model, capsys):
    predict = f"predict t.csv --model {model} --out out.csv"
    for text, message in (
        ("set,x\na,1\n", "t.csv: has no column 'y', it has 'set', 'x'"),
        ("set,x,z,y\na,1,2,3\n", "t.csv: has a column 'z' that the model was not fitted with"),
    ):
        (here / "t.csv").write_text(text)
        fails(capsys, here, predict, message)
    pd.read_csv("sets.csv")[["y", "set", "x"]].to_csv("t.csv", index=False)
    for path in ("t.csv", "sets.csv"):
        assert main(["predict", path, f"--model={model}", f"--out=of_{path}", *QUIET]) == 0
        other = "t.csv: features are in another order than at fit; they were matched by name\n"
        assert capsys.readouterr().err == (f"warning: {other}" if path == "t.csv" else "")
    assert (here / "of_t.csv").read_bytes() == (here / "of_sets.csv").read_bytes()


def test_models_that_are_none_or_damaged(here, model, capsys):
    predict = "predict sets.csv --model broken --out out.csv"
    fails(capsys, here, predict, "broken is no folder of a model: nothing of that name is there. Shipped are: digits")
    for name, content, message in (
        ("config.json", b"{", "config.json is not valid JSON"),
        ("config.json", b"\xff", "config.json is not valid JSON"),
        ("config.json", b"[]", "config.json is not of format 'omniset-model'"),
        ("config.json", None, "broken is no folder of a model, such as fit writes: it has no config.json"),
        ("model.safetensors", b"", "model.safetensors is damaged or not an Omniset model"),
        ("model.safetensors", (model / "model.safetensors").read_bytes()[:-7], "is damaged or not an Omniset model"),
        ("model.safetensors", None, "broken is no artefact: it has no model.safetensors"),
    ):
        shutil.copytree(model, "broken")
        (here / "broken" / name).unlink()
        if content is not None:
            (here / "broken" / name).write_bytes(content)
        fails(capsys, here, predict, message)
        shutil.rmtree("broken")


def test_labels_that_a_model_does_not_know(here, model, capsys):
    evaluate = f"evaluate sets.csv --target t.csv --model {model} --out evaluation"
    for text, message in (
        ("set,label\na,p\nb,z\n", "t.csv: line 3: column 'label' is 'z', it must be one of those that the model"),
        ("set,label\na,p\n", "t.csv: has no label for set 'b' of sets.csv"),
        ("set,age\na,1\nb,2\n", "t.csv: has no column 'label', it has 'set', 'age'"),
        ("set,element,label\na,1,p\n", "t.csv has labels of elements, the model predicts sets"),
    ):
        (here / "t.csv").write_text(text)
        fails(capsys, here, evaluate, message)
    fails(capsys, here, f"evaluate sets.csv --model {model} --out evaluation", "sets.csv: has no column 'label'")
    explain = f"explain sets.csv --model {model} --out out.csv"
    fails(capsys, here, f"{explain} --only a,c", "sets.csv has no set 'c'")
    fails(capsys, here, f"{explain} --label z", "z")


FULL = """
import resource, signal, sys
sys.dont_write_bytecode = True  # it would be cut short, and read by others
import omniset.core.disk
from omniset.cli import main
omniset.core.disk.MEMORY = 4096
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for command in sys.argv[1:]:
    print(main(command.split()), file=sys.stderr)
"""


def test_full_disk(here, model):
    x, y = np.random.default_rng(0).normal(4, 1, size=(2, 998))  # as the model learned
    pd.DataFrame({"set": np.repeat(np.arange(499), 2), "x": x, "y": y}).to_csv("t.csv", index=False)
    pd.DataFrame({"set": range(499), "label": np.arange(499) % 2}).to_csv("labels.csv", index=False)
    kinds = ["csv", "csv.xz", "parquet"]
    commands = [f"predict t.csv --model {model} --out out.{kind}" for kind in kinds]
    commands.append("fit t.csv --target labels.csv --out run")
    before = listing(here)
    words = [sys.executable, "-c", FULL, *(" ".join([c, *QUIET]) for c in commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    errors = [line for line in done.stderr.splitlines() if line != "2"]
    assert len(errors) == 4, done.stderr
    for kind, error in zip(kinds, errors, strict=False):
        assert error == f"omniset: error: out.{kind}: out cannot be written: File too large; nothing is kept"
    assert re.match("omniset: error: .* the copy of the sets on disk is full: File too large after", errors[3])
    assert listing(here) == before
