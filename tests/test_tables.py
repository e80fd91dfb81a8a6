"""Tables in files give the sets that they hold, whatever the format, the order of lines or the size of chunks."""

import csv
import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch

from omniset import SetClassifier
from omniset.core.disk import DiskRows
from omniset.core.sets import Sets
from omniset.estimators.commands import Labels, warn_of_features
from omniset.microbiomes.samples import Samples, write_samples
from omniset.tables import LabelFile, SetTable, TableFile, TableWriter, collect
from omniset.tables.labels import ROW, as_numbers, choose_task, column_labels, doubts_of_classes, require_choice
from omniset.tables.reading import open_sets
from omniset.tables.spreadsheets import DECIMAL, SAFE

TEXT = [f".{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", ".gz", ".bz2", ".xz")]
KINDS = [".parquet", *TEXT]
SIZES = [3, 709, 5, 311, 2, 13]  # over borders of chunks of 256 rows, with or without a header


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("omniset.tables.files.CELLS", 1)  # 256 rows, the least


def long_table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sets = np.repeat(["e", "a, b", "d\te", 'say "f"', "ü", "c"], SIZES)
    return pd.DataFrame(
        {
            "set": sets,
            "x": rng.normal(size=len(sets)) * 10.0 ** rng.integers(-30, 30, len(sets)),
            "element": [f"n{i}" for i in range(len(sets))],
            "y z": rng.normal(size=len(sets)),
            "multiplicity": rng.integers(0, 5, len(sets)),
            "w": rng.integers(-99, 99, len(sets)),
        }
    )


def write(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


def text_file(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def lists(table):
    return [(s.name, s.read()[0].tolist(), s.read()[1].tolist()) for s in table]


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("most", [17, 1 << 15])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_holds_the_same_sets(kind, most, tmp_path):
    frame = long_table()
    path = write(frame, tmp_path / f"t{kind}")
    expected = Sets.of(frame, torch.float32)
    table = SetTable(path, most=most, folder=tmp_path)
    assert table.features == expected.features == ["x", "y z", "w"]
    found = list(table)
    assert [s.name for s in found] == expected.names
    assert [isinstance(s.elements, DiskRows) for s in found] == [most < size and size > 300 for size in SIZES]
    for one, other in zip(found, (expected[i] for i in range(len(SIZES))), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.read(), other.read(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(one.read(2, 7), other.read(2, 7), strict=True))
        assert one.names_of_elements().tolist() == other.names_of_elements().tolist()
    collection, kept = collect(found, table.features, tmp_path, ["element"])
    assert collection.names == expected.names
    assert collection.offsets.tolist() == expected.offsets.tolist()
    for one, other in zip(next(collection.blocks(10**9)), next(expected.blocks(10**9)), strict=True):
        assert torch.equal(one, other)
    assert kept["element"].to_pylist() == frame["element"].tolist()
    assert table.file.position == table.file.size or kind == ".parquet"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_text_as_people_and_programs_write_it(tmp_path):
    text = (
        '\ufeffset, x ,"y"\r\n'  # a byte-order mark, spaces, quotes
        '"a, b", 1 ,-2e-3\n'
        "\n"
        '"a, b",+.5,1E2\r'
        "7,12,3.\n"
        ",,\n"
        "   \n"
        ' 7 ,"4",-0'
    )
    table = SetTable(text_file(tmp_path, text))
    assert table.features == ["x", "y"]
    single = float(np.float32(-2e-3))
    assert lists(table) == [("a, b", [[1, single], [0.5, 100]], [1, 1]), ("7", [[12, 3], [4, 0]], [1, 1])]
    assert [table.file.nth(i) for i in range(4)] == [0, 2, 3, 6]
    assert lists(SetTable(text_file(tmp_path, text + "\n\n\r\n"))) == lists(table)


FORMS = {  # of the sets a (1, 1.5), (2, -2) and b (3, 1000.25)
    "R's write.table.txt": '"set" "x" "y"\n"1" "a" 1 1.5\n"2" "a" 2 -2\n"3" "b" 3 1000.25\n',
    "R's write.table with tabs.tsv": '"set"\t"x"\t"y"\n"1"\t"a"\t1\t1.5\n"2"\t"a"\t2\t-2\n"3"\t"b"\t3\t1000.25\n',
    "R's write.csv.csv": '"","set","x","y"\n"r1","a",1,1.5\n"r2","a",2,-2\n"r3","b",3,1000.25\n',
    "semicolons.csv": "set;x;y\na;1;1.5\na;2;-2\nb;3;1000.25\n",
    "bars.txt": "set|x|y\na|1|1.5\na|2|-2\nb|3|1000.25\n",
    "commas.tsv": "set,x,y\na,1,1.5\na,2,-2\nb,3,1000.25\n",
    "said.csv": "sep=;\r\nset;x;y\r\na;1;1.5\r\na;2;-2\r\nb;3;1000.25\r\n",
    "Unicode text.txt": "set\tx\ty\r\na\t1\t1.5\r\na\t2\t-2\r\nb\t3\t1000.25\r\n".encode("utf-16"),
    "decimal commas.csv": "set;x;y\na;1;1,5\na;2;-2\nb;3;1.000,25\n",
    "decimal commas.tsv": 'set\tx\ty\na\t1\t"1,5"\na\t2\t-2,0\nb\t3\t1000,25\n',
}


@pytest.mark.filterwarnings("ignore:.*its first column has no name")
@pytest.mark.parametrize("name", FORMS)
def test_forms_in_which_others_write_tables(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FORMS[name] if isinstance(FORMS[name], bytes) else FORMS[name].encode())
    token = DECIMAL.set("," if "decimal" in name else ".")
    try:
        assert lists(SetTable(path)) == [("a", [[1, 1.5], [2, -2]], [1, 1]), ("b", [[3, 1000.25]], [1])]
        path.write_text(path.read_bytes().decode("utf-16" if "Unicode" in name else "utf-8").replace("b", "b\0"))
        with pytest.raises(ValueError, match=f"line {4 + (name == 'said.csv')}: is not UTF-8"):
            lists(SetTable(path))
        DECIMAL.set(",")
        with pytest.raises(ValueError, match="line 3: column 'x' is '1.234', of which --decimal , leaves open"):
            lists(SetTable(text_file(tmp_path, "set;x\na;1,5\nb;1.234\n")))
    finally:
        DECIMAL.reset(token)


@pytest.mark.parametrize(
    "text",
    [
        "## BD Rhapsody, v1\n# made by hand\nset,x\na,1\nb,2\n",
        "#Set\tSize\n#STRING\tNUMBER\n#1\t1\nset\tx\na\t1\nb\t2\n",  # cBioPortal
        "# made by hand\nset\tx\n#q2:types\tnumeric\na\t1\nb\t2\n",
        "#q2:types\tnumeric\nset\tx\na\t1\nb\t2\n",
        "set,x,,\na,1,,\nb,2,,\n",
    ],
)
def test_lines_and_columns_that_are_none_of_the_table(text, tmp_path):
    assert lists(SetTable(text_file(tmp_path, text))) == [("a", [[1]], [1]), ("b", [[2]], [1])]
    sign = "\t" if "\t" in text else ","
    with pytest.raises(ValueError, match=f"line {text.count(chr(10)) + 1}: column 'x' is 'word'"):
        lists(SetTable(text_file(tmp_path, f"{text}c{sign}word\n")))


def test_a_header_that_begins_with_a_sign_and_rows_of_no_known_set(tmp_path):
    path = text_file(tmp_path, "# made by hand\n#set\tx\n#q2:types\tnumeric\nNA\t1\n", "t.tsv")
    with pytest.warns(UserWarning, match="line 4: column '#set' is 'NA': rows of which nobody knows the set"):
        assert lists(SetTable(path, set_column="#set")) == [("NA", [[1]], [1])]
    assert TableFile(text_file(tmp_path, "#set\tx\tz\na\t1\n", "u.tsv")).columns == ["#set", "x", "z"]
    for name, content, said in (
        ("t.csv", b"", "is empty: its first line must hold the names"),
        ("t.csv", b"#set,x\n", "has no column 'set', it has '#set', 'x'"),
        ("t.csv", gzip.compress(b"set,x\n"), "is compressed: let its name end in .gz"),
        ("t.csv", b"PAR1\x15\0", "is a Parquet file: let its name end in"),
        ("t.csv", b"set,x,,\na,1,,7\n", "column 4 has no name, and values"),
        ("t.xlsx", b"PK\x03\x04", r"must end in .*: save the sheet as CSV \(UTF-8\)"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=said):
            lists(SetTable(tmp_path / name))


def test_values_and_indices_of_parquet(tmp_path):
    frame = pd.DataFrame(
        {
            "set": pd.Categorical(["b", "b", "a"], categories=["z", "a", "b"]),
            "x": np.array([1, 2, 3], dtype=np.int8),
            "x.1": pd.array([1, 2, 3], dtype="Int64"),
            "yes": [True, False, True],
            "d": [Decimal("1.5"), Decimal("2.5"), Decimal("-3.5")],
            "text": pd.Categorical(["1e1", " 2", "3"]),
            "single": np.array([0.1, 0.2, 0.3], dtype=np.float32),
        },
        index=[5, 7, 11],
    )
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    assert "__index_level_0__" in pq.read_schema(path).names
    table = SetTable(path, ["x.1", "single", "x", "yes", "d", "text"])
    one, two, three = (float(np.float32(v)) for v in (0.1, 0.2, 0.3))
    assert lists(table) == [
        ("b", [[1, one, 1, 1, 1.5, 10], [2, two, 2, 0, 2.5, 2]], [1, 1]),
        ("a", [[3, three, 3, 1, -3.5, 3]], [1]),
    ]
    assert SetTable(path).features == ["x", "x.1", "yes", "d", "text", "single"]
    assert TableFile(path).rows == 3


@pytest.mark.parametrize("numbers", [True, False])
def test_categories_and_numbers_as_names_over_chunks(numbers, tmp_path):
    names = np.repeat([70, 30, 50], [307, 2, 401])
    elements = np.arange(710) if numbers else pd.Categorical([f"e{i}" for i in range(710)])
    frame = pd.DataFrame({"set": names * 1.0 if numbers else pd.Categorical(names), "x": 1.5, "element": elements})
    found = list(SetTable(write(frame, tmp_path / "t.parquet"), most=5))
    assert [(s.name, len(s)) for s in found] == [("70", 307), ("30", 2), ("50", 401)]
    assert found[2].names_of_elements(399).tolist() == (["708", "709"] if numbers else ["e708", "e709"])


def test_features_and_kept_columns(tmp_path):
    path = text_file(tmp_path, "kind,x,set,y\np,1,a,2\nq,3,a,4\n")
    table = SetTable(path, keep=["kind"])
    assert table.features == ["x", "y"]
    assert next(iter(table)).columns["kind"].to_pylist() == ["p", "q"]
    assert lists(SetTable(path, ["y", "x"])) == [("a", [[2, 1], [4, 3]], [1, 1])]
    for features, keep in ((["x", "x"], []), (["x", "kind"], ["kind"]), (["set"], [])):
        with pytest.raises(ValueError, match="is asked for twice"):
            SetTable(path, features, keep)


def test_frames_whose_columns_are_numbers(tmp_path):
    """As pandas names them by itself; a model finds them again."""
    rng = np.random.default_rng(0)
    frame = pd.concat(
        [pd.DataFrame({"set": np.repeat(np.arange(10), 3)}), pd.DataFrame(rng.normal(size=(30, 2)))], axis=1
    )
    collection = Sets.of(frame, torch.float32)
    assert collection.features == ["0", "1"]
    expected, other = (Sets.of(f, torch.float32, ["1", "0"]).to_batch() for f in (frame.rename(columns=str), frame))
    assert torch.equal(other.elements, expected.elements)
    options = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "validation_fraction": 0.0, "progress": False}
    model = SetClassifier("ust", **options, device="cpu").fit(frame, [0, 1] * 5)
    assert model.features_ == ["0", "1"]
    assert (model.predict(frame) == model.predict(frame[[1, "set", 0]])).all()
    for twice in (frame[["set", 0, 0]], frame.assign(**{"0": 1.0})):
        with pytest.raises(ValueError, match="column '0' is there twice"):
            Sets.of(twice, torch.float32)
    with pytest.raises(ValueError, match="the table has no column 'x', it has"):
        Sets.of(frame, torch.float32, ["x"])


# ---------------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind, tmp_path):
    frame = pd.DataFrame(
        {
            "set": ["a, b", 'c"d', "e\tf\ng", "ü\rh"],
            "label": [None, None, "p", "q"],  # the first piece has none
            "n": [3, 5, 7, 11],
            "p": [0.1, 1e-300, np.nan, -1 / 3],
        }
    )
    path = tmp_path / f"t{kind}"
    with TableWriter(path) as out:
        for rows in (slice(0, 1), slice(1, 2), slice(2, 4)):
            out.write(frame[rows])
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    (chunk,) = TableFile(path).chunks()
    empty = None if kind == ".parquet" else ""
    assert chunk.columns["set"].to_pylist() == frame["set"].tolist()
    assert chunk.columns["label"].to_pylist() == [empty, empty, "p", "q"]
    assert chunk.numbers("n").tolist() == [3, 5, 7, 11]
    assert [v if v in (None, "") else float(v) for v in chunk.columns["p"].to_pylist()] == [0.1, 1e-300, empty, -1 / 3]


FORMULAS = ["=1+1", "+a", "-2x", "@x", "\tx", "\rx", "-", "=cmd|' /C calc'!A0"]
PLAIN = ["a=1", "-1.5", "+3e8", "-inf", "", "'=1", " =1", "ü"]


def written_frame(path):
    texts = [*FORMULAS, *PLAIN]
    frame = pd.DataFrame({"=n": texts, "-1": pd.Categorical(texts), "p": -0.5})
    frame.insert(1, "=n", [None, *texts[1:]], allow_duplicates=True)
    before = frame.copy()
    with TableWriter(path) as out:
        out.write(frame[:3])
        out.write(frame[3:])
    pd.testing.assert_frame_equal(frame, before)
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t" if ".tsv" in path.name else ",")
    return header, rows


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("kind", [".csv", ".tsv.gz"])
def test_formulas_get_an_apostrophe_where_that_is_asked_for(kind, safe, tmp_path):
    """Names are written as they are else, and Parquet keeps them. Tables of counts, which are no TableWriter's, too."""
    samples = Samples(["=1+1", "b"], ["@x", "-3"], sp.csr_array([[2.0, 0.0], [5.0, 7.0]]))
    token = SAFE.set(safe)
    try:
        header, rows = written_frame(tmp_path / f"t{kind}")
        write_samples(tmp_path / "table.tsv", samples)
        with TableWriter(tmp_path / "t.parquet") as out:
            out.write(pd.DataFrame({"=n": FORMULAS}))
    finally:
        SAFE.reset(token)
    mark = "'" if safe else ""
    assert header == [f"{mark}=n", f"{mark}=n", "-1", "p"]
    expected = [*(f"{mark}{text}" for text in FORMULAS), *PLAIN]
    assert [row[0] for row in rows] == [row[2] for row in rows] == expected
    assert [row[1] for row in rows] == ["", *expected[1:]]
    assert {row[3] for row in rows} == {"-0.5"}
    assert (tmp_path / "table.tsv").read_text() == f"#OTU ID\t{mark}=1+1\tb\n{mark}@x\t2\t5\n-3\t0\t7\n"
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {"=n": FORMULAS}


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".tsv.xz"])
@pytest.mark.parametrize("before", [None, b"old"])
def test_nothing_is_written_by_a_block_that_fails(kind, before, tmp_path):
    path = tmp_path / f"t{kind}"
    if before:
        path.write_bytes(before)

    def interrupted():
        with TableWriter(path) as out:
            out.write(pd.DataFrame({"x": [1.5]}))
            raise KeyboardInterrupt

    def without_rows():
        with TableWriter(path):
            pass

    for block, error in ((interrupted, KeyboardInterrupt), (without_rows, ValueError)):
        with pytest.raises(error):
            block()
        assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == ([(path.name, before)] if before else [])


# ---------------------------------------------------------------------- labels

SETS = "set,element,x,kind,team\nb,1,0,u,s\n\nb,2,0,v,s\na,1,0,,t\nc,1,0,u,t\n"


def sets_of(tmp_path, columns=()):
    table = SetTable(text_file(tmp_path, SETS, "sets.csv"), ["x"], columns)
    return table.file, *collect(table, ["x"], tmp_path, ["element", *columns])


def test_labels_are_matched_by_name(tmp_path):
    source, sets, _ = sets_of(tmp_path)
    path = text_file(tmp_path, "patient,label,set,age\nq, p2 ,c,3\n\nq,p 1,a ,5\nr,p2,b,2.5\n", "labels.csv")
    labels = LabelFile(path, group="patient")
    assert (labels.level, labels.columns) == ("set", ["label", "age"])
    aligned = labels.align(sets, source, None)
    assert aligned["label"].tolist() == ["p2", "p 1", "p2"]
    assert aligned["age"].tolist() == ["2.5", "5", "3"]
    assert labels.groups(sets).tolist() == ["r", "q", "q"]
    assert LabelFile(path, ["age"]).align(sets, source, None)[["age"]].to_numpy().tolist() == [["2.5"], ["5"], ["3"]]
    assert LabelFile(path, ["age"]).groups(sets) is None


@pytest.mark.parametrize(
    "names",
    [["b.fcs", "a.svs", "c.ome.tiff"], ["B", "A", "C "], ["slide_b", "slide_a", "slide_c"], ["b.h5", "A", "c"]],
)
@pytest.mark.parametrize("turned", [False, True])
def test_names_that_are_written_in_another_way(names, turned, tmp_path):
    mine, theirs = (["b", "a", "c"], names) if turned else (names, ["b", "a", "c"])
    source = SetTable(text_file(tmp_path, "set,x\n" + "".join(f"{name},1\n" for name in theirs), "sets.csv"))
    sets, _ = collect(source, ["x"], tmp_path)
    labels = LabelFile(text_file(tmp_path, "set,label\n" + "".join(f"{n},p{i}\n" for i, n in enumerate(mine)), "l.csv"))
    with pytest.warns(UserWarning, match="names of sets are written in another way: '.*' is taken for"):
        assert labels.align(sets, source.file, None)["label"].tolist() == ["p0", "p1", "p2"]


def test_names_of_which_two_would_be_one(tmp_path):
    source = SetTable(text_file(tmp_path, "set,x\nA,1\na,1\nB,1\n", "sets.csv"))
    sets, _ = collect(source, ["x"], tmp_path)
    labels = LabelFile(text_file(tmp_path, "set,label\nA.fcs,p\na.svs,q\nb.svs,p\nz,p\n", "l.csv"))
    for how, said in (
        ("error", "line 2: set 'A.fcs' is not in"),
        ("ignore", "no label for set 'A' of .* such as 'A.fcs'"),
    ):
        with pytest.raises(ValueError, match=said):
            labels.align(sets, source.file, None, how)
    path = text_file(tmp_path, ",label\nA,p\na,q\nB,p\nz,p\ny,p\n", "l.csv")
    with pytest.warns(UserWarning, match="l.csv: its first column, without a name, is taken for the names of sets"):
        labels = LabelFile(path)
    with pytest.warns(UserWarning, match="2 of 5 labels are of others than .* has, such as of 'z', 'y': they are left"):
        assert labels.align(sets, source.file, None, "ignore")["label"].tolist() == ["p", "q", "p"]


def test_labels_in_parquet(tmp_path):
    path = tmp_path / "labels.parquet"
    frame = pd.DataFrame(
        {
            "set": [30, 50, 70],
            "whole": [1.0, -2.0, 3e15],
            "parts": [0.5, 2.0, np.nan],
            "n": [7, 5, 3],
            "c": pd.Categorical(["u", None, "v"]),
            "yes": [True, False, True],
        }
    )
    frame.to_parquet(path)
    found = LabelFile(path).frame
    assert found["set"].tolist() == ["30", "50", "70"]
    assert found["whole"].tolist() == ["1", "-2", "3000000000000000"]
    assert found["parts"].tolist()[:2] == ["0.5", "2"]
    assert found["n"].tolist() == ["7", "5", "3"]
    assert found["c"].tolist()[::2] == ["u", "v"]
    assert found["yes"].tolist() == ["True", "False", "True"]
    assert found.isna().sum().to_dict() == {"set": 0, "whole": 0, "parts": 1, "n": 0, "c": 1, "yes": 0, ROW: 0}


def test_labels_of_elements_may_be_missing(tmp_path):
    source, sets, kept = sets_of(tmp_path)
    path = text_file(tmp_path, "element,set,label,n\n2,b,p,3\n1,c,,5\n1,a,q,\n", "labels.csv")
    labels = LabelFile(path)
    assert labels.level == "element"
    aligned = labels.align(sets, source, kept["element"])
    assert aligned["label"].where(aligned["label"].notna(), None).tolist() == [None, "p", "q", None]
    assert as_numbers(labels, aligned[["n"]], source)["n"].fillna(-1).tolist() == [-1, 3, -1, 5]


def test_labels_in_columns_of_the_table(tmp_path):
    source, sets, kept = sets_of(tmp_path, ["kind", "team"])
    of_elements, groups = column_labels(source, sets, kept, ["kind"], "team", "element")
    assert of_elements["kind"].where(of_elements["kind"].notna(), None).tolist() == ["u", "v", None, "u"]
    assert groups.tolist() == ["s", "t", "t"]
    of_sets, none = column_labels(source, sets, kept, ["team"], None, "set")
    assert (of_sets["team"].tolist(), none) == (["s", "t", "t"], None)
    with pytest.raises(ValueError, match=r"line 4: column 'kind' is 'v' where set 'b' had 'u'"):
        column_labels(source, sets, {"kind": pa.chunked_array([["u", "v", "u", "u"]])}, ["kind"], None, "set")
    with pytest.raises(ValueError, match=r"line 5: column 'kind' is empty: each set needs one"):
        column_labels(source, sets, {"kind": pa.chunked_array([["u", "u", "", "u"]])}, ["kind"], None, "set")


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        ([["1", "2", "1"]], "classification"),
        ([[str(i) for i in range(20)]], "classification"),
        ([[str(i) for i in range(21)]], "regression"),
        ([[f"1_{i}" for i in range(23)]], "classification"),  # Python's float would take them
        ([["1", "2.5", None]], "regression"),
        ([["1e-1", "+2", ".5"]], "regression"),
        ([["1", "nan", "inf"]], "classification"),
        ([["1.5", "2", "none of these"]], "classification"),
        ([["1.5", "2"], ["u", "v"]], "0 is a number and 1 a class, and a model learns one kind"),
        ([["1", "2"], ["u", "v"]], "classification"),
        ([["1", "2"], ["1.5", "2"]], "regression"),
        ([[None, None]], "classification"),
        ([["<1%", "1-49%", ">50%"]], "classification"),
        ([[f"{i} mg" for i in range(9)]], "classification"),
        ([[*map(str, range(21)), "pending"]], "is 'pending', it must be a number, as the others are"),
        ([["1,5", "2,5"]], "is '1,5', it must be a plain number to be learned as one, it is a number with a comma"),
        ([[f"{i}%" for i in range(10)]], "it is a number in percent; --task classification takes classes"),
    ],
)
def test_choice_of_the_task(columns, task, tmp_path):
    values = pd.concat([pd.Series(c, dtype=object) for c in columns], axis=1)
    file = TableFile(text_file(tmp_path, "set,x\na,1\n"))
    if " " in task:
        with pytest.raises(ValueError, match=task):
            choose_task(None, values, file, "auto")
    else:
        assert choose_task(None, values, file, "auto") == task
    assert choose_task(None, values, file, "regression") == "regression"
    with pytest.raises(ValueError, match="task must be 'auto', 'classification', .* or 'survival', got 'guess'"):
        choose_task(None, values, file, "guess")


@pytest.mark.parametrize("word", ["NA", "nan", "None", "#N/A", "inf"])
def test_words_among_numbers(word, tmp_path):
    """One missing label of a measurement would make a class of each of its numbers."""
    for numbers in (["1.5", "2"], [str(i) for i in range(21)]):
        lines = "".join(f"s{i},{label}\n" for i, label in enumerate([*numbers, word]))
        labels = LabelFile(text_file(tmp_path, "set,age\n" + lines), ["age"])
        said = f"line {len(numbers) + 2}: column 'age' is '{word}', it must be a number, as the others are: leave out"
        for file in (labels, None):  # None: the labels are a column of the table
            with pytest.raises(ValueError, match=said):
                choose_task(file, labels.frame[["age"]], labels.file, "auto")
        assert choose_task(labels, labels.frame[["age"]], labels.file, "classification") == "classification"


def test_classes_that_are_hardly_meant():
    values = pd.DataFrame({"k": ["1", "1.0", "01", "2"], "l": ["Yes", "yes", "no", "NA"], "m": ["a", "b", "c", None]})
    assert doubts_of_classes(values) == [
        "k: '1' and '1.0' and '01' are different classes; is it meant?",
        "l: 'NA' is a class; where it means that the label is missing, leave it out",
        "l: 'Yes' and 'yes' are different classes; is it meant?",
    ]


def test_numbers_and_choices(tmp_path):
    source, sets, kept = sets_of(tmp_path, ["kind", "team"])
    assert as_numbers(None, pd.DataFrame({"n": ["1e1", None, "2"]}), source)["n"].fillna(0).tolist() == [10, 0, 2]
    labels = LabelFile(text_file(tmp_path, "set,n,m\na,1,1e39\nb,x,1\n\nc,x,1\n"))
    aligned = labels.align(sets, source, None)
    for columns, message in ((["n"], "line 3: column 'n' is 'x', .* finite"), (["m"], "line 2: column 'm' is '1e39'")):
        with pytest.raises(ValueError, match=message):
            as_numbers(labels, aligned[columns], source)
    of_elements, _ = column_labels(source, sets, kept, ["kind"], None, "element")
    with pytest.raises(ValueError, match="sets.csv: line 2: column 'kind' is 'u'"):
        as_numbers(None, of_elements, source)
    of_sets, _ = column_labels(source, sets, kept, ["team"], None, "set")
    with pytest.raises(ValueError, match="line 5: column 'team' is 't'"):
        as_numbers(None, of_sets[1:], source)
    require_choice(labels, aligned, source)
    for values, message in ((["u", None], "'k' is 'u' wherever it is known"), ([None, None], "'k' is empty")):
        with pytest.raises(ValueError, match=f"sets.csv: column {message}: nothing to learn"):
            require_choice(None, pd.DataFrame({"k": values}), source)


NUMBERS = np.arange(24)
LEAKS = {  # a feature of 24 sets of two elements, the label, and what is said
    "a class": (NUMBERS % 2 * 5, NUMBERS % 2, "feature 'f' alone tells 'label' of all 24 sets"),
    "a line": (NUMBERS * 1.5 + 2, NUMBERS * 0.5, "feature 'f' alone tells 'label' of all 24 sets"),
    "one of them not": (NUMBERS % 2 * (NUMBERS > 1), NUMBERS % 2, None),
    "of each set its own": (NUMBERS * 1.5, NUMBERS % 2, None),
}


@pytest.mark.parametrize("case", LEAKS)
def test_a_feature_that_is_the_label(case, tmp_path, recwarn):
    feature, label, said = LEAKS[case]
    rows = np.repeat(NUMBERS, 2)
    table = pd.DataFrame({"set": [f"s{i}" for i in rows], "f": feature[rows], "cell_id": rows * 7 % 31 + 0.5})
    table.to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame({"set": [f"s{i}" for i in NUMBERS], "label": label}).to_csv(tmp_path / "l.csv", index=False)
    sets, labels = open_sets(tmp_path / "t.csv"), Labels(LabelFile(tmp_path / "l.csv"), None, None, "error")
    warn_of_features(sets, *labels.read(sets, "set", tmp_path, False)[:2], "set")
    warned = [str(warning.message) for warning in recwarn]
    assert any("feature 'cell_id' looks like an identifier" in text for text in warned)
    assert any(said in text for text in warned) if said else len(warned) == 1
