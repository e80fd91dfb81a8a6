"""Tables whose form their first lines tell."""

import csv
import io
import random
import re

import numpy as np
import pandas as pd
import pytest

from omniset.tables.sheets import look, number_of, numbers_of, separator_of, split, split_loosely
from omniset.tables.spreadsheets import DECIMAL


def written(tmp_path, text, name="t.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows_of(sheet):
    return [fields for _, fields in sheet.whole()]


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_what_csv_writes_is_read_back(tmp_path, separator):
    rng = random.Random(7)
    cells = ["a", "b c", "1,5", 'said "so"', "x;y", "", "-3e5", "é", "#1"]
    for number in range(50):
        width, height = rng.randint(2, 7), rng.randint(1, 11)
        header = [f"column {i}" for i in range(width)]
        table = [["first", *rng.choices(cells, k=width - 1)] for _ in range(height)]
        buffer = io.StringIO()
        csv.writer(buffer, delimiter=separator, lineterminator="\n").writerows([header, *table])
        sheet = look(written(tmp_path, buffer.getvalue(), f"{number}.txt"))
        assert (sheet.separator, sheet.columns) == (separator, header)
        assert rows_of(sheet) == table
        assert [row for row, _ in sheet.records([0])] == list(range(height))


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("# made by x\n#id\ta\nr\t1\n", ["id", "a"], [["r", "1"]]),  # the header among the comments
        ("# made by x\nid\ta\nr\t1\n", ["id", "a"], [["r", "1"]]),
        ("#id;a,b\nr;1\n", ["id", "a,b"], [["r", "1"]]),
        ("sep=;\nid;a\nr;1\n".encode("utf-16"), ["id", "a"], [["r", "1"]]),
        ("\n\nid,a\n\nr,1\n,\n", ["id", "a"], [["r", "1"]]),  # lines without any value
        ("a,b\nr,1,2\ns,3,4\n", ["a", "b"], [["r", "1", "2"], ["s", "3", "4"]]),  # as R writes names of rows
        ("id,a\nr,1\ns,2", ["id", "a"], [["r", "1"], ["s", "2"]]),
        ('id,a\n"r, one",1\n', ["id", "a"], [["r, one", "1"]]),
    ],
)
def test_the_header_is_found(tmp_path, text, columns, rows):
    sheet = look(written(tmp_path, text))
    assert (sheet.columns, rows_of(sheet)) == (columns, rows)
    assert len(sheet.titles) == len(rows[0])


def test_decimal_commas(tmp_path):
    token = DECIMAL.set(",")
    try:
        sheet = look(written(tmp_path, "id;a\nr;1.234,5\ns,1;0.25\nt;1.234\n"))
        assert sheet.rows == [["r", "1234.5"], ["s,1", "0.25"], ["t", "1.234"]]
        with pytest.raises(ValueError, match="line 4: has '1.234', of which --decimal , leaves open"):
            rows_of(sheet)
    finally:
        DECIMAL.reset(token)


def test_spaces_separate_where_nothing_else_does(tmp_path):
    sheet = look(written(tmp_path, "#1 2\n3    4\n"), comments=False, spaces=True)
    assert (sheet.separator, sheet.columns, rows_of(sheet)) == (None, ["#1", "2"], [["3", "4"]])
    assert look(written(tmp_path, "1 2,3\n"), comments=False, spaces=True).columns == ["1 2", "3"]


def test_a_row_again_is_a_row_where_there_is_no_header(tmp_path):
    sheet = look(written(tmp_path, "0,1\n0,1\n"), comments=False, spaces=True)
    assert [sheet.columns, *rows_of(sheet)] == [["0", "1"], ["0", "1"]]
    with pytest.raises(ValueError, match="line 3: is the header again"):
        rows_of(look(written(tmp_path, "id,a\nr,1\nid,a\n")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("id,a\nr\n", "line 2: has 1 fields, the header has 2: is the file cut off?"),
        ("id,a\nr,1,2\ns,1\n", "line 2: has 3 fields, the header has 2"),
        ("\n \n", "is empty"),
        ("# nothing\n", "is empty"),
        ('id,a\n"r,1\n', 'line 2: has a quote (") that is never closed'),
        ('id,a\n"r"x,1\n', 'line 2: has a quote (") that is never closed, or is out of place'),
        ("id,a\nr,1\n".encode("utf-16-le"), "line 1: is not UTF-8 text"),
        (b"id,a\nr\0,1\n", "line 2: is not UTF-8 text"),
        (b"id,a\n\xfc,1\n", "line 2: is not UTF-8 text"),
        ("#id,a,b\nr,1\n", "line 1: begins with # and has 3 fields, line 2 has 2"),
        ('{"a": 1}', "is JSON"),
        ("PK\x03\x04", "is a zip archive"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, text, message):
    """For all that reads with `look`; what else may be wrong with a table is in the tests of its reader."""
    with pytest.raises(ValueError, match=re.escape(message)):
        rows_of(look(written(tmp_path, text)))


def test_columns_go_by_their_names_whatever_their_case(tmp_path):
    sheet = look(written(tmp_path, "Genome-ID,KO,ko\nA,x,y\n"))
    assert sheet.need(["genome_id"], "genomes") == 0
    with pytest.raises(ValueError, match="has two columns 'KO': leave one of them out"):
        sheet.need(["ko"], "families")
    with pytest.raises(ValueError, match="has no column with counts, it has 'Genome-ID', 'KO', 'ko'"):
        sheet.need(["count"], "counts")


def test_parquet_has_the_same_rows(tmp_path):
    frame = pd.DataFrame({"genome": ["a", "b"], "ko": ["x", None], "count": [1, 2]})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    binary, text = look(tmp_path / "t.parquet"), look(tmp_path / "t.csv")
    assert binary.columns == text.columns
    assert list(binary.records([2, 1])) == [(row, fields) for row, fields in text.records([2, 1])]


def test_numbers_are_those_of_files_alone():
    texts = ["1", " 2.5e-3 ", "+.5", "5.", "NaN", "", "n/a", "-inf", "Infinity"]
    expected = [1, 0.0025, 0.5, 5, np.nan, np.nan, np.nan, -np.inf, np.inf]
    np.testing.assert_array_equal(numbers_of(texts)[0], expected)
    np.testing.assert_array_equal([number_of(text) for text in texts], expected)
    for text in ("1_000", "\u0661", "0x10", "1,5", "one", "1 2"):  # Python reads the first two
        assert number_of(text) is None
        assert numbers_of(["3", text])[1] == 1


def test_separators_and_quotes():
    assert [separator_of(line) for line in ("a", "a;b", "a,b;c", "a,b;c;d", "a\tb,c,d", '"x;y;z",b')] == [
        *(None, ";", ",", ";", "\t", ",")
    ]
    assert split('a "b c"  d', None) == ["a", "b c", "d"]
    assert split_loosely('5"-end\tx', "\t") == ['5"-end', "x"]
    assert split_loosely('"a"\t"b"', "\t") == ["a", "b"]
