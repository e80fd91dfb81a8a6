"""The table of conditions: the harder opponent is chosen by its value, and the verdict by the interval's ends."""

import pytest
from benchmarks.conditions import ABOVE, BELOW, TIE, Source, _rows


def found(score, **gaps):
    """A file of one condition, with ours minus each other method as value, low and high."""
    about = {"condition": "new", "score": score, "method": "omniset"}
    differences = [
        about | {"other": n.replace("_", "-"), "value": v, "low": low, "high": high}
        for n, (v, low, high) in gaps.items()
    ]
    return {"scores": [about | {"value": 0.5, "units": 7}], "differences": differences, "unit": "community"}


@pytest.mark.parametrize(
    ("score", "gaps", "part", "verdict"),
    [
        ("auroc", {"a": (0.03, 0.01, 0.05), "b": (0.02, -0.01, 0.04), "z": (-1, -2, -0.5)}, "b", TIE),
        ("auroc", {"a": (-0.03, -0.05, -0.01), "b": (0.02, 0.01, 0.04)}, "a", BELOW),
        ("auroc", {"a": (0.03, 0.01, 0.05)}, "a", ABOVE),
        ("auroc", {"a": (0.0, 0.0, 0.0)}, "a", TIE),
        ("log loss", {"a": (0.03, 0.01, 0.05), "b": (0.02, 0.01, 0.04)}, "a", BELOW),  # a larger loss is worse
        ("log loss", {"a": (-0.03, -0.05, -0.01), "b": (-0.2, -0.4, -0.1)}, "a", ABOVE),
    ],
)
def test_a_row_has_the_best_part_and_what_its_interval_says(score, gaps, part, verdict):
    source = Source("", {score: score}, parts=("a", "b"), simple=("b",), dealings=lambda found: "3 splits")
    (row,) = _rows("sets", source, found(score, **gaps))
    assert row.part["other"] == part
    assert row.verdict(row.part) == verdict
    assert row.units == "7 communities, 3 splits"
    assert (row.simple or {"other": "b"})["other"] == "b"
