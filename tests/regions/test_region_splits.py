"""Folds: every region once, neighbourhoods by brute force, and no region of a test pair in training."""

import numpy as np
import pytest

from omniset.regions.data import Regions
from omniset.regions.splits import inner_folds, random_folds, spatial_folds, split


def places(regions=47, seed=0):
    return np.random.default_rng(seed).normal(scale=40.0, size=(regions, 3))


def regions_of(number=47, directed=False):
    rng = np.random.default_rng(1)
    connectivity = rng.normal(size=(number, number))
    if not directed:
        connectivity += connectivity.T
    np.fill_diagonal(connectivity, np.nan)
    return Regions(
        [f"region {i}" for i in range(number)],
        ["A", "B"],
        np.zeros((number, 2), np.float32),
        coordinates=places(number),
        connectivity=connectivity,
        directed=directed,
    )


def is_neighbourhood(coordinates, fold, left):
    """Is there a region in the fold whose nearest of those left are the fold?"""
    for centre in fold:
        nearest = sorted(left, key=lambda i: sum((coordinates[i] - coordinates[centre]) ** 2))
        if set(nearest[: len(fold)]) == set(fold):
            return True
    return False


@pytest.mark.parametrize("kind", ["random", "spatial"])
@pytest.mark.parametrize(("number", "folds"), [(47, 5), (6, 2), (13, 4), (30, 5)])
def test_each_region_is_in_one_fold_of_even_size(kind, number, folds):
    found = split(kind, regions_of(number), folds, seed=3)
    assert len(found) == folds
    assert sorted(i for fold in found for i in fold) == list(range(number))
    sizes = {len(fold) for fold in found}
    assert sizes <= {number // folds, -(-number // folds)}
    assert all((np.diff(fold) > 0).all() for fold in found)


@pytest.mark.parametrize("kind", ["random", "spatial"])
def test_the_seed_decides(kind):
    regions = regions_of()
    first, again, other = (split(kind, regions, 5, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_split_is_by_kind():
    regions = regions_of()
    for found, expected in (
        (split("random", regions, 5, 3), random_folds(47, 5, 3)),
        (split("spatial", regions, 5, 3), spatial_folds(regions.coordinates, 5, 3)),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_random_folds_are_random():
    """Over many seeds two regions share a fold as often as chance has it: 4 of 16 others."""
    together = np.mean([any({0, 1} <= set(fold) for fold in random_folds(17, 4, seed)) for seed in range(400)])
    sizes = np.array([5, 4, 4, 4])
    chance = (sizes * (sizes - 1)).sum() / (17 * 16)
    assert together == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / 400))


@pytest.mark.parametrize("seed", range(5))
def test_spatial_folds_are_neighbourhoods_of_those_left(seed):
    coordinates = places()
    folds = spatial_folds(coordinates, 5, seed)
    left = set(range(47))
    for fold in folds:
        assert is_neighbourhood(coordinates, fold.tolist(), left)
        left -= set(fold.tolist())
    assert not is_neighbourhood(coordinates, random_folds(47, 5, seed)[0].tolist(), set(range(47)))


def test_any_region_may_be_the_first_centre():
    coordinates = np.stack([np.arange(7.0) ** 2, np.zeros(7), np.zeros(7)], 1)  # on a line, ever further apart
    first = {tuple(spatial_folds(coordinates, 2, seed)[0].tolist()) for seed in range(60)}
    assert first == {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)}


def test_regions_at_one_place():
    folds = spatial_folds(np.zeros((13, 3)), 4, 0)
    assert sorted(i for fold in folds for i in fold) == list(range(13))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["random", "spatial"])
def test_both_regions_of_a_test_pair_are_unseen(kind, directed):
    regions = regions_of(directed=directed)
    for fold in split(kind, regions, 5, 0):
        rest = np.setdiff1d(np.arange(47), fold)
        test, training = regions.take(fold), regions.take(rest)
        tested = {test.names[i] for i in test.pairs().ravel()}
        seen = {training.names[i] for i in training.pairs().ravel()}
        assert tested == {regions.names[i] for i in fold}
        assert seen == {regions.names[i] for i in rest}
        assert not tested & seen
        crossing = len(fold) * len(rest) * (2 if directed else 1)
        assert len(test.pairs()) + len(training.pairs()) + crossing == len(regions.pairs())


@pytest.mark.parametrize("kind", ["random", "spatial"])
def test_inner_folds_are_of_the_training_rows_only(kind):
    regions = regions_of()
    fold = split(kind, regions, 5, 0)[2]
    rest = np.setdiff1d(np.arange(47), fold)
    found = inner_folds(regions, rest, kind, 3, 7)
    assert sorted(i for part in found for i in part) == rest.tolist()
    assert all((np.diff(part) > 0).all() for part in found)
    if kind == "spatial":
        left = set(rest.tolist())
        for part in found:
            assert is_neighbourhood(regions.coordinates, part.tolist(), left)
            left -= set(part.tolist())

    moved = regions.coordinates.copy()
    moved[fold] = np.nan
    for other in (
        inner_folds(regions.with_(coordinates=moved), rest, kind, 3, 7),
        inner_folds(regions, np.random.default_rng(0).permutation(rest), kind, 3, 7),
        inner_folds(regions, rest.tolist(), kind, 3, 7),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(found, other, strict=True))


@pytest.mark.parametrize("folds", [1, 0, -2])
def test_fewer_than_two_folds(folds):
    with pytest.raises(ValueError, match=f"folds must be at least 2, got {folds}"):
        random_folds(47, folds, 0)
    with pytest.raises(ValueError, match=f"folds must be at least 2, got {folds}"):
        spatial_folds(places(), folds, 0)


def test_fewer_than_three_regions_in_a_fold():
    assert [len(fold) for fold in random_folds(9, 3, 0)] == [3, 3, 3]
    for made in (lambda: random_folds(11, 4, 0), lambda: spatial_folds(places(11), 4, 0)):
        with pytest.raises(ValueError, match="folds must be at most 3 for 11 regions, 3 in each, got 4"):
            made()
    with pytest.raises(ValueError, match="folds must be at most 0 for 0 regions"):
        random_folds(0, 2, 0)


def test_regions_without_coordinates():
    regions = regions_of()
    with pytest.raises(ValueError, match="coordinates are not known of these regions: spatial folds need them"):
        split("spatial", regions.with_(coordinates=None), 5, 0)
    assert len(split("random", regions.with_(coordinates=None), 5, 0)) == 5
    coordinates = places()
    coordinates[[11, 31], [0, 2]] = np.nan
    with pytest.raises(ValueError, match="every region, 2 of 47 have none, such as 'region 11'"):
        split("spatial", regions.with_(coordinates=coordinates), 5, 0)
    with pytest.raises(ValueError, match="2 of 47 have none, such as region 11"):
        spatial_folds(coordinates, 5, 0)
    coordinates[11, 0] = np.inf
    with pytest.raises(ValueError, match="2 of 47 have none, such as region 11"):
        spatial_folds(coordinates, 5, 0)


def test_bad_kind_and_rows():
    regions = regions_of()
    with pytest.raises(ValueError, match="kind must be one of 'random', 'spatial', got 'blocks'"):
        split("blocks", regions, 5, 0)
    for wrong in (47, -1):
        with pytest.raises(ValueError, match=f"rows must be from 0 to 46, got {wrong}"):
            inner_folds(regions, [*range(20), wrong], "random", 3, 0)
    with pytest.raises(ValueError, match="rows must hold each region once, 13 is there more than once"):
        inner_folds(regions, [*range(20), 13], "random", 3, 0)
