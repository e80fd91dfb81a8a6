"""What files may contradict: names that count, joins that lose, rows that are equal."""

import numpy as np
import pytest

from omniset.tables.doubts import affix, judge_join, refuse_equal_rows

REGIONS = [f"LH_Vis_{number}" for number in range(1, 8)]


@pytest.mark.parametrize(
    ("lost", "others", "prefix", "ending"),
    [
        ([f"7Networks_{name}" for name in REGIONS], REGIONS, "7Networks_", ""),
        (["GRCh38_TP53", "GRCh38_CD4"], ["CD4", "TP53", "ACTB"], "GRCh38_", ""),
        (["L_V1_ROI", "L_V2_ROI"], ["V1", "V2"], "L_", "_ROI"),
        (["A01.FCS", "B07.FCS"], ["A01", "B07"], "", ".FCS"),
        (["ctx-lh-cuneus", "ctx-lh-insula"], ["cuneus", "insula"], "ctx-lh-", ""),
        (["chrX", "chr1"], ["1", "X"], "chr", ""),
        (["chrX", "chrY"], ["X", "Y"], None, None),  # between letters no name is cut
        (["chr1", "chr2"], ["1", "2"], "chr", ""),
        (["11", "12"], ["1", "2"], None, None),
        (["a_1", "b_1"], ["1"], None, None),
        (["x_a", "x_b"], ["a"], None, None),
    ],
)
def test_a_common_beginning_or_ending(lost, others, prefix, ending):
    found = affix(lost, others)
    assert found == (None if prefix is None else (prefix, ending))
    if found:
        assert {found.without(name) for name in lost} <= set(others)


def judged(lost, total, others=()):
    return judge_join(lost, total, others, file="a.csv", other="b.csv", what="regions")


def test_a_join_that_loses_much():
    assert [judged(lost, 10) for lost in ([], ["x"], ["x", "y", "z"])] == ["", "", ""]
    assert "a.csv: 3 of 9 regions are not in b.csv" in judged(["x", "y", "z"], 9)
    with pytest.raises(ValueError, match="6 of 9 regions are not in b.csv.*such as 'q'"):
        judged(list("uvwxyz"), 9, ["q"])


@pytest.mark.parametrize("turned", [False, True])
def test_a_loss_that_a_prefix_explains(turned):
    mine, other = [f"7Networks_{name}" for name in REGIONS], [*REGIONS, "Thalamus"]
    lost, others = (other[:-1], mine) if turned else (mine, other)
    with pytest.raises(ValueError, match=r"all begin with '7Networks_'.*give both files the same names"):
        judged(lost, 114, others)


def test_equal_rows():
    rng = np.random.default_rng(0)
    rows, names = rng.normal(size=(9, 3)), [f"c{number}" for number in range(9)]
    refuse_equal_rows(rows, names, file="x.h5ad", what="cells")
    rows[:4] = rows[0]
    refuse_equal_rows(rows, names, file="x.h5ad", what="cells")
    refuse_equal_rows(rows[:4], names, file="x.h5ad", what="cells")
    rows[4] = rows[0]
    with pytest.raises(ValueError, match="x.h5ad: 5 of 9 cells come out the same, such as 'c0'"):
        refuse_equal_rows(rows, names, file="x.h5ad", what="cells")
