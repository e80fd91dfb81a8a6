"""Columns become the features that a hand calculation gives, the same from a file as from memory, and later again."""

import json
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from omniset import SetClassifier, Sets
from omniset.cli import main
from omniset.core.encoding import CATEGORIES, Column, Encoding, EncodingError
from omniset.estimators.commands import sets_for
from omniset.tables import SetTable, collect
from small import QUIET, TINY, in_a_folder  # noqa: F401

SMALL = {"method": "ust", "dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False}
TABLE = pd.DataFrame(
    {
        "set": list("aaabbcc"),
        "x": [1.0, np.nan, 3.0, 4.0, np.nan, 6.0, 7.0],
        "stain": ["PAS", "HE", "HE", None, "PAS", "none", "HE"],
        "y": [2, 3, 5, 7, 11, 13, 17],
    }
)
FEATURES = ["x", "x is missing", "stain=HE", "stain=PAS", "stain=none", "stain is missing", "y"]
ROWS = [  # the mean of x is 21 / 5
    [1, 0, 0, 1, 0, 0, 2],
    [4.2, 1, 1, 0, 0, 0, 3],
    [3, 0, 1, 0, 0, 0, 5],
    [4, 0, 0, 0, 0, 1, 7],
    [4.2, 1, 0, 1, 0, 0, 11],
    [6, 0, 0, 0, 1, 0, 13],
    [7, 0, 1, 0, 0, 0, 17],
]


def write(frame, name):
    frame.to_parquet(name, index=False) if name.endswith("parquet") else frame.to_csv(name, index=False)
    return name


def whole(sets):
    return torch.cat([stored.read()[0] for stored in sets])


def read(table):
    return collect(table, table.features, encoding=table.encoding)[0]


def test_a_table_in_memory():
    sets = Sets.of(TABLE, torch.float64, missing="indicator")
    assert sets.features == FEATURES
    torch.testing.assert_close(whole(sets), torch.tensor(ROWS, dtype=torch.float64), rtol=1e-15, atol=0)
    other = TABLE.iloc[::-1].assign(x=np.nan, stain="none", y=[Decimal(1)] * 7)[["y", "stain", "set", "x"]]
    again = Sets.of(other, torch.float64, encoding=Encoding.of_state(json.loads(json.dumps(sets.encoding.state))))
    assert whole(again).unique(dim=0).tolist() == [[4.2, 1, 0, 0, 1, 0, 1]]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_file_is_as_its_table_in_memory(kind, rows, monkeypatch):
    monkeypatch.setattr("omniset.tables.files.CELLS", 1)  # chunks of 256 rows
    frame = pd.concat([TABLE] * rows, ignore_index=True)
    frame["set"] = [f"s{i // 11}" for i in range(len(frame))]
    table = SetTable(write(frame, f"t.{kind}"), missing="indicator", most=5)
    expected = Sets.of(frame, torch.float32, missing="indicator")
    sets = read(table)
    assert table.features == sets.features == FEATURES
    assert sets.names == expected.names
    torch.testing.assert_close(whole(sets), whole(expected), rtol=1e-6, atol=0)
    means = [column.pop("mean") for part in (sets, expected) for column in part.encoding.state["columns"]]
    np.testing.assert_allclose(means, [4.2, 0, 58 / 7] * 2, rtol=1e-12)


def test_words_for_nothing():
    """In numbers all of them; among categories "none" is one."""
    words = ["1", "NA", "n/a", " NaN ", "null", "None", "<NA>", "#N/A", "", "3"]
    pd.DataFrame({"set": 1, "x": words, "c": ["b", *words[1:-1], "a"]}).to_csv("t.csv", index=False)
    sets = read(SetTable("t.csv", missing="indicator"))
    assert sets.features == ["x", "x is missing", "c=None", "c=a", "c=b", "c is missing"]
    elements = whole(sets)
    there = torch.tensor([False, *[True] * 8, False])
    assert torch.equal(elements[:, 0], torch.where(there, 2.0, torch.tensor([1.0] * 9 + [3])))
    assert torch.equal(elements[:, 1], there.float())
    assert elements[:, 2:].argmax(1).tolist() == [2, 3, 3, 3, 3, 0, 3, 3, 3, 1]
    assert elements[:, 2:].sum(1).tolist() == [1] * 10


def test_what_was_not_there_at_fit_is_none_of_it():
    encoding = Sets.of(TABLE.dropna(), torch.float64, missing="indicator").encoding
    assert encoding.features == ["x", "stain=HE", "stain=PAS", "stain=none", "y"]
    other = pd.DataFrame({"set": 1, "x": [np.nan, 2], "stain": ["CD3", None], "y": [1, 2]})
    with pytest.warns(UserWarning, match="at fit") as caught:
        sets = Sets.of(other, torch.float64, encoding=encoding)
    assert whole(sets).tolist() == [[17 / 4, 0, 0, 0, 1], [2, 0, 0, 0, 2]]
    assert [str(one.message).split(" (")[0] for one in caught] == [
        "column 'x', row 0: is missing, which none was at fit: the mean takes its place",
        "column 'stain', row 0: 'CD3' is a category that was not there at fit: it counts as none",
        "column 'stain', row 1: is missing, which none was at fit: it is of no category",
    ]


def test_a_kind_that_the_first_rows_do_not_tell(monkeypatch):
    monkeypatch.setattr("omniset.tables.files.CELLS", 1)
    frame = pd.DataFrame({"set": 1, "x": [""] * 600 + ["a", "b", "a"]})
    sets = read(SetTable(write(frame, "t.csv"), missing="indicator"))
    assert (sets.features, whole(sets).sum(0).tolist()) == (["x=a", "x=b", "x is missing"], [2, 1, 600])


ids = [f"id{i}" for i in range(CATEGORIES + 1)]
WRONG = {
    "a number among text": (["a", "b", "2"], "line 4: column 'x' is '2', which is a number, and 'a' is none"),
    "text among numbers": (["1", "2", "b"], "line 4: column 'x' is 'b', it must be a number, or left out"),
    "too many categories": (ids, f"line {len(ids) + 1}: column 'x' is text of more than 100 different values, here "),
    "a missing category": (["a", "b", ""], "line 4: column 'x' is missing, it must be a category"),
    "a missing number": (["1", "NA", "3"], "line 3: column 'x' is 'NA', it must be a number"),
    "nothing": (["", "", ""], "line 2: column 'x' is empty, it must be a number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_columns_that_are_none(case, capsys):
    values, said = WRONG[case]
    write(pd.DataFrame({"set": "s", "x": values, "z": 1.5}), "t.csv")
    with pytest.raises(ValueError, match=re.escape(f"t.csv: {said}")) as caught:
        read(SetTable("t.csv"))
    assert ("--missing indicator" in str(caught.value)) == ("nothing" in case or "missing" in case)
    if case == "too many categories":
        assert str(caught.value).endswith("is it a name? --ignore x leaves it out")
        assert read(SetTable("t.csv", ignore=["x"])).sizes.tolist() == [len(ids)]
        write(pd.DataFrame({"set": "s", "x": ids[:-1], "z": 1.5}), "t.csv")
        assert len(read(SetTable("t.csv")).features) == CATEGORIES + 1


OTHER = {  # in which numbers and dates are written
    "a number with a comma (--decimal , reads decimal commas)": ["1,5", "-2,25", "", "1.234,5"],
    "a number whose comma is of thousands, or of decimals, as --decimal , reads it": ["1,000", "12,345"],
    "a number with separators of thousands": ["1 000", "2'500", "1,000,000"],
    "a number in percent": ["1.2%", "3 %", "-"],
    "a number with another minus than -": ["\u22121.5", "\u22122"],
    "a date": ["2024-01-31", "2024-02-01 10:30:00", "31.01.2024", "1/31/24"],
    "a time": ["10:30:00", "9:05:59.5"],
    "a number with a unit": [f"{i}.5 mg/kg" for i in range(10)],
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("what", OTHER)
def test_numbers_in_another_writing_are_no_categories(what, kind):
    values = OTHER[what]
    write(pd.DataFrame({"set": "s", "x": values, "z": 1.5}), f"t.{kind}")
    for missing in ("error", "indicator") if all(values) else ("indicator",):
        with pytest.raises(ValueError, match=re.escape(f", {what}: write plain numbers, or words; --ignore x leaves")):
            read(SetTable(f"t.{kind}", missing=missing))


@pytest.mark.parametrize("values", [["5 mg", "10 mg"], ["<1%", "1-49%", ">50%"], ["A1", "B2", "10%"], ["+", "-", "+"]])
def test_categories_with_numbers_in_them(values):
    write(pd.DataFrame({"set": "s", "x": values}), "t.csv")
    assert read(SetTable("t.csv")).features == [f"x={value}" for value in sorted({*values})]


def test_truth_values_are_the_same_in_every_form():
    frame = pd.DataFrame({"set": list("aabb"), "x": [True, False, True, True], "gone": [True, None, False, True]})
    text = frame.replace({True: "TRUE", False: "FALSE"})
    polars = text.astype(pd.ArrowDtype(pa.large_string()))
    for number, table in enumerate((frame, text, polars, frame.astype({"x": object}))):
        expected = Sets.of(table, missing="indicator")
        assert whole(expected).tolist() == [[1, 1, 0], [0, pytest.approx(2 / 3), 1], [1, 0, 0], [1, 1, 0]]
        for kind in ("csv", "parquet"):
            sets = read(SetTable(write(table, f"{number}.{kind}"), missing="indicator"))
            assert sets.features == expected.features == ["x", "gone", "gone is missing"]
            torch.testing.assert_close(whole(sets), whole(expected))


def test_columns_that_are_none_with_missing_values():
    write(pd.DataFrame({"set": "s", "x": ["", "NA"], "y": [1, 2]}), "t.csv")
    with pytest.raises(ValueError, match=r"t.csv: column 'x' has no value in any row: --ignore x leaves it out"):
        list(SetTable("t.csv", missing="indicator"))
    write(pd.DataFrame({"set": "s", "x": ["a", "b"], "x=a": [1, 2]}), "t.csv")
    with pytest.raises(ValueError, match=r"t.csv: two features would be called 'x=a': rename a column"):
        list(SetTable("t.csv"))
    with pytest.raises(EncodingError, match="two features would be called 'x'"):
        Encoding([Column("x"), Column("x")])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_commands_remember(kind, capsys):
    frame = TABLE.rename(columns={"set": "patient"})
    write(frame.assign(id=[f"n{i}" for i in range(7)]), f"t.{kind}")
    write(pd.DataFrame({"patient": list("abc"), "label": list("pqp")}), "labels.csv")
    how = ["--set_column=patient", "--ignore=id", "--missing=indicator", "--target=labels.csv"]
    assert main(["fit", f"t.{kind}", "--out=run", *how, *TINY, *QUIET]) == 0
    assert "features: " + ", ".join(map(repr, FEATURES)) in capsys.readouterr().out
    write(frame[["stain", "y", "patient", "x"]].assign(stain="unknown"), "new.csv")
    assert main(["predict", "new.csv", "--model=run", "--out=p.csv", *QUIET]) == 0
    notes = capsys.readouterr().err
    assert "new.csv: line 2: column 'stain' 'unknown' is a category that was not there at fit" in notes
    model = SetClassifier.load("run")
    assert (model.features_, model.expected_columns, model.ignored_) == (FEATURES, ["x", "stain", "y"], ["id"])
    assert model.reading_["set_column"] == "patient"
    expected = model.predict_table(TABLE)
    write(frame, f"t.{kind}")
    for command in (
        ["predict", f"t.{kind}", "--model=run", "--out=p.csv"],
        ["explain", f"t.{kind}", "--model=run", "--out=e.csv", "--steps=1"],
        ["evaluate", f"t.{kind}", "--model=run", "--out=e", "--target=labels.csv"],
    ):
        assert main([*command, *QUIET]) == 0
    np.testing.assert_allclose(pd.read_csv("p.csv")["p_p"], expected["p_p"], rtol=1e-5)
    write(TABLE, "plain.csv")
    assert main(["predict", "plain.csv", "--model=run", "--out=q.csv", "--set_column=set", *QUIET]) == 0
    assert pd.read_csv("q.csv").equals(pd.read_csv("p.csv"))


@pytest.mark.filterwarnings("ignore:label:UserWarning")  # so few
def test_python_is_as_the_command():
    model = SetClassifier(**SMALL, missing="indicator", device="cpu")
    model.fit(TABLE, pd.Series(list("pqp"), index=list("abc"), name="label"))
    assert model.features_ == FEATURES
    with pytest.raises(ValueError, match="lacks features that the model was fitted on: \\['stain'\\]"):
        model.predict(TABLE.drop(columns="stain"))
    with pytest.raises(ValueError, match="column 'stain' is both a feature and a target"):
        model.fit(TABLE, pd.Series(["p", "q", "p"], index=list("abc"), name="stain"))
    with pytest.raises(ValueError, match="column 'stain', row 3: is missing, it must be a category; missing values"):
        SetClassifier(**SMALL).fit(TABLE, list("pqp"))


@pytest.mark.parametrize("columns", [10, 300])
def test_matching_columns_takes_a_look_at_each(tmp_path, monkeypatch, columns):
    """Tables of genes or stains have ten thousands of them: no column is compared with all others."""
    names = [f"f{i}" for i in range(columns)]
    write(pd.DataFrame(np.ones((2, columns)), columns=names).assign(set="a"), f"{tmp_path}/t.csv")
    model = SetClassifier()
    model.encoding_, model.features_ = Encoding.of_numbers(names), names
    model.targets_, model.ignored_, model.reading_ = ["label"], [], {}
    read, real = [], Encoding.names.fget
    monkeypatch.setattr(Encoding, "names", property(lambda encoding: read.append(1) or real(encoding)))
    table = sets_for(model, tmp_path / "t.csv", tmp_path, {})
    assert len(read) < 10

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            read.append(1)
            return str.__eq__(self, other)

    table.file.columns = [Name(name) for name in names]
    table.file.require([Name(name) for name in names])
    assert len(read) <= 10 + 3 * columns
