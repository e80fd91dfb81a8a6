"""Names of genes: each way of finding one, in its order, and what the report says of it."""

import gzip

import numpy as np
import pytest

from omniset.tables.genes import canonical, match, read_aliases


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ENSG00000141510.17", "ENSG00000141510"),
        ("ENSMUSG00000059552.3", "ENSMUSG00000059552"),
        (" ENSG00000141510 ", "ENSG00000141510"),
        ("ENSG00000182378.15_PAR_Y", "ENSG00000182378_PAR_Y"),
        ("ENSG00000182378_PAR_Y", "ENSG00000182378_PAR_Y"),
        ("RP11-34P13.7", "RP11-34P13.7"),
        ("AC000001.1", "AC000001.1"),
        ("ENSA.1", "ENSA.1"),  # a symbol
        ("ENSG00000141510.", "ENSG00000141510."),
        ("\tTP53 ", "TP53"),
        ("", ""),
    ],
)
def test_canonical(name, expected):
    assert canonical(name) == expected
    assert canonical(canonical(name)) == expected


def test_each_way_and_their_order():
    vocabulary = ["TP53", "ENSG00000000017", "Actb", "ACTB", "GAPDH", "ENSG00000000019.3", "NCL", "SPP1", "tp53i"]
    names = [
        "TP53",  # exact
        "ENSG00000000017.5",  # without version
        "ACTB",  # exact, although another differs by case only
        "actb",  # by case it could be two
        "gapdh",  # case
        "OPN",  # alias
        "ENSG00000000019.11",  # versions on both sides
        "C23",  # an alias whose gene is not in the vocabulary
        "FOO1",
    ]
    found = match(names, vocabulary, {"OPN": "SPP1", "C23": "NUCLEOLIN", "GAPDH": "NCL", "TP53": "NCL"})
    assert found.positions.tolist() == [0, 1, 3, -1, 4, 7, 5, -1, -1]
    assert (found.exact, found.canonical, found.aliases, found.case, found.matched) == (2, 2, 1, 1, 6)
    assert found.unmatched == ["actb", "C23", "FOO1"]
    assert found.missing == ["Actb", "NCL", "tp53i"]
    assert found.duplicates == []


def test_an_alias_comes_before_case_and_after_the_canonical_form():
    vocabulary = ["ABC", "DEF", "ENSG00000000023"]
    aliases = {"abc": "DEF", "ENSG00000000023.4": "DEF", "ENSG00000000029": "ENSG00000000023.9"}
    names = ["abc", "ENSG00000000023.4", "ENSG00000000029.1"]
    assert match(names, vocabulary, aliases).positions.tolist() == [1, 2, 2]


def test_ambiguous_forms_are_not_guessed():
    assert match(["ENSG00000000023.3"], ["ENSG00000000023.1", "ENSG00000000023.2"]).positions.tolist() == [-1]
    assert match(["aBc"], ["abc", "ABC"]).positions.tolist() == [-1]
    assert match(["aBc", "AbC"], ["ABC"]).positions.tolist() == [0, 0]


def test_names_that_meet_are_duplicates_in_the_order_of_the_vocabulary():
    found = match(["B", "a", "A", "B ", "C", "b"], ["A", "B", "C", "D"])
    assert found.positions.tolist() == [1, 0, 0, 1, 2, 1]
    assert found.duplicates == ["A", "B"]
    assert found.missing == ["D"]


def test_empty_lists():
    none = match([], ["A"])
    assert none.positions.shape == (0,)
    assert none.positions.dtype == np.int64
    assert none.missing == ["A"]
    assert match(["A"], []).unmatched == ["A"]


def test_a_vocabulary_with_an_entry_twice_is_refused():
    with pytest.raises(ValueError, match="vocabulary must have each gene once, it has 'B' 2 times"):
        match(["A"], ["A", "B", "B"])


@pytest.mark.parametrize("titles", ["", "alias\tname\n", "symbol\tprev_symbol\n"])
def test_aliases_with_and_without_titles(tmp_path, titles):
    path = tmp_path / "aliases.tsv.gz"
    pairs = "TP53\tP53\nSPP1\tOPN\n" if "prev" in titles else "P53\tTP53\nOPN\tSPP1\n"
    path.write_bytes(gzip.compress((titles + pairs).encode()))
    aliases = read_aliases(path)
    assert {alias: aliases[alias] for alias in ("P53", "OPN")} == {"P53": "TP53", "OPN": "SPP1"}
    assert match(["OPN", "P53"], ["TP53", "SPP1"], aliases).positions.tolist() == [1, 0]


def test_an_alias_of_several_genes_is_left_out_loudly(tmp_path):
    path = tmp_path / "aliases.csv"
    path.write_text("alias,name\nA1,X\nA1,X\nA2,X\nA2,Y\nA3,Z\nA2,X\n")
    with pytest.warns(UserWarning, match="1 aliases are of several genes and left out, such as 'A2'"):
        aliases = read_aliases(path)
    assert {"A1": "X", "A3": "Z"}.items() <= aliases.items()
    assert "A2" not in aliases


def test_aliases_must_be_two_columns(tmp_path):
    path = tmp_path / "aliases.tsv"
    path.write_text("alias\tname\tsource\nA\tB\tC\n")
    with pytest.raises(ValueError, match="aliases.tsv: must have two columns, alias and name, it has 3"):
        read_aliases(path)
    path.write_text("alias\tname\nA\t\n")
    with pytest.raises(ValueError, match="line 2: column 'name' is empty"):
        read_aliases(path)
