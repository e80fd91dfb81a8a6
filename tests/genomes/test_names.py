"""Names that are probably not meant as they stand are told."""

import pytest

from omniset.genomes.headers import odd_names


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["A", "B_1", "Sept-7 lake", "1E10", "Totalis"], []),
        (["bin.1", "Bin.1"], ["1 genomes such as 'bin.1' differ from another one ('Bin.1') in case or spaces only"]),
        (["a b", "a  b"], ["1 genomes such as 'a b' differ from another one ('a  b') in case or spaces only"]),
        (["A", "Grand Total"], ["genomes such as 'Grand Total' seem to be sums"]),
        (["A", "2-Mar", "#REF!", "1.2E+10"], ["3 genomes such as '#REF!' seem to be what a spreadsheet made of names"]),
    ],
)
def test_odd_names(names, told):
    found = list(odd_names("genomes", names))
    assert len(found) == len(told)
    assert all(words in sentence for words, sentence in zip(told, found, strict=True))
