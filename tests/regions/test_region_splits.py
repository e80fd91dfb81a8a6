"""Folds: every region once, neighbourhoods by brute force, and no region of a test pair in training."""

import numpy as np
import pytest
from region_methods import brain_of

from omniset.regions.splits import (
    KINDS,
    held_back,
    held_back_twice,
    near_known,
    random_folds,
    spatial_folds,
    split,
)


def regions_of(number=47, directed=False):
    return brain_of(number, 2, directed=directed, unknown=())


def lacking():
    regions = regions_of()
    regions.coordinates[[11, 31], [0, 2]] = np.nan, np.inf
    return regions


def is_neighbourhood(coordinates, fold, left):
    """Is there a region in the fold whose nearest of those left are the fold?"""
    for centre in fold:
        nearest = sorted(left, key=lambda i: sum((coordinates[i] - coordinates[centre]) ** 2))
        if set(nearest[: len(fold)]) == set(fold):
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "folds"), [(47, 5), (6, 2), (13, 4), (30, 5)])
def test_each_region_is_in_one_fold_of_even_size(kind, number, folds):
    found, again, other = (split(kind, regions_of(number), folds, seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, found, again))
    assert number < 47 or not all(map(np.array_equal, found, other))
    assert len(found) == folds
    assert sorted(i for fold in found for i in fold) == list(range(number))
    sizes = {len(fold) for fold in found}
    assert sizes <= {number // folds, -(-number // folds)}
    assert all((np.diff(fold) > 0).all() for fold in found)


def test_random_folds_are_random():
    """Over many seeds two regions share a fold as often as chance has it: 4 of 16 others."""
    together = np.mean([any({0, 1} <= set(fold) for fold in random_folds(17, 4, seed)) for seed in range(400)])
    sizes = np.array([5, 4, 4, 4])
    chance = (sizes * (sizes - 1)).sum() / (17 * 16)
    assert together == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / 400))


@pytest.mark.parametrize("seed", range(5))
def test_spatial_folds_are_neighbourhoods_of_those_left(seed):
    coordinates = regions_of().coordinates
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
@pytest.mark.parametrize("kind", KINDS)
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


def test_folds_that_are_held_back():
    """Bilateral where all places are known; few regions have fewer folds, or none."""
    regions = regions_of()
    for given, kind in ((regions, "bilateral"), (lacking(), "random")):
        for fold, (learn, left) in zip(split(kind, given, 4, 7), held_back(given, 4, 7), strict=True):
            assert left.names == [regions.names[i] for i in fold]
            assert learn.names == [name for name in regions.names if name not in left.names]
    assert [len(held_back(regions_of(number), 4, 0)) for number in (5, 6, 11, 12)] == [0, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "regions", "folds", "message"),
    [
        *((kind, regions_of(), 1, "folds must be at least 2, got 1") for kind in KINDS),
        *((kind, regions_of(11), 4, "folds must be at most 3 for 11 regions, 3 in each, got 4") for kind in KINDS),
        ("blocks", regions_of(), 5, "kind must be one of 'bilateral', 'spatial', 'random', got 'blocks'"),
        ("spatial", regions_of().with_(coordinates=None), 5, "coordinates are not known of these regions: spatial"),
        ("spatial", lacking(), 5, "every region, 2 of 47 have none, such as 'region "),
    ],
)
def test_what_cannot_be_divided(kind, regions, folds, message):
    with pytest.raises(ValueError, match=message):
        split(kind, regions, folds, 0)


def test_bilateral_folds_take_both_twins():
    """Of a brain whose hemispheres mirror each other: a fold parts at most two regions from their mirror images."""
    half = np.abs(regions_of(22).coordinates) + np.array([1.0, 0.0, 0.0])
    regions = regions_of(44).with_(coordinates=np.concatenate([half, half * [-1, 1, 1]]))

    def parted(kind, seed):
        return sum((i + 22) % 44 not in fold for fold in split(kind, regions, 4, seed) for i in fold)

    assert max(parted("bilateral", seed) for seed in range(5)) <= 2 * 4
    assert np.mean([parted("spatial", seed) for seed in range(5)]) > 0.1 * 44


def test_held_back_with_mirror_images_and_then_without():
    half = np.abs(regions_of(22).coordinates) + np.array([1.0, 0.0, 0.0])
    regions = regions_of(44).with_(coordinates=np.concatenate([half, half * [-1, 1, 1]]))
    found = held_back_twice(regions, 3, 0)
    for manner, others in ((found[:3], lambda near: near.mean() < 0.6), (found[3:], lambda near: near.mean() > 0.9)):
        assert sorted(name for _, left in manner for name in left.names) == sorted(regions.names)
        for learn, left in manner:
            assert sorted(learn.names + left.names) == sorted(regions.names)
            assert others(near_known(learn.coordinates, left.coordinates))
    right = held_back_twice(regions.take(np.arange(22)), 3, 0)
    assert len(right) == len(held_back_twice(regions.with_(coordinates=None), 3, 0)) == 6
    assert sorted(name for _, left in right for name in left.names) == sorted(regions.names[:22])
    assert held_back_twice(regions.take([0, 1, 22, 23]), 3, 0) == []


def test_close_to_a_known_region_or_to_its_mirror_image():
    """Known regions are 10 mm from the next on their side, or 30: in the middle 10."""
    known = np.array([[10.0, 0, 0], [20, 0, 0], [-20, 40, 0], [-50, 40, 0], [30, 0, 0]])
    places = np.array([[27.0, 0, 0], [-27, 0, 0], [10, 7.6, 0], [10, 7.4, 0], [20, 40, 7.4], [-35, 40, 0]])
    assert near_known(known, places).tolist() == [True, True, False, True, True, False]
