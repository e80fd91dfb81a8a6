"""Spins that are the best of all permutations, surrogates that are as smooth, and the test by them."""

import itertools

import numpy as np
import pytest
from region_methods import brain_of, squared
from scipy.stats import chisquare

from omniset.regions.data import Regions, mirrored
from omniset.regions.methods import geometry_of
from omniset.regions.null_models import NullResult, Statistic, null_test, spins, surrogates, variogram, variogram_of
from omniset.regions.splits import random_folds

MIRROR = np.array([-1.0, 1.0, 1.0])


def spins_of(coordinates, hemisphere, number, seed, structure=None):
    names = [f"area {i}" for i in range(len(coordinates))]
    nothing = np.zeros((len(names), 0), np.float32)
    return spins(Regions(names, [], nothing, coordinates, hemisphere, structure=structure), number, seed)


def layout(left=13, right=11, neither=5, seed=0):
    """Two hemispheres, and regions of none, in mixed order."""
    rng = np.random.default_rng(seed)
    hemisphere = np.array(["L"] * left + ["R"] * right + [""] * neither)
    offset = np.select([hemisphere == "L", hemisphere == "R"], [-35.0, 35.0], 0.0)
    coordinates = rng.normal(scale=20.0, size=(len(hemisphere), 3)) + offset[:, None] * [1.0, 0.0, 0.0]
    order = rng.permutation(len(hemisphere))
    return coordinates[order], hemisphere[order].tolist()


def rotation(quaternion):
    """The matrix of a rotation of vectors v to q v q*, written out; q is (x, y, z, w)."""
    x, y, z, w = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def test_a_spin_is_the_best_assignment_of_all():
    coordinates, hemisphere = layout(5, 6, 4)
    found = spins_of(coordinates, hemisphere, 7, seed=3)
    quaternions = np.random.default_rng(3).normal(size=(7, 4))
    for k, side in itertools.product(range(7), ("L", "R", "")):
        rows = [i for i, of_region in enumerate(hemisphere) if of_region == side]
        centred = coordinates[rows] - coordinates[rows].mean(0)
        sphere = centred / np.sqrt((centred**2).sum(1))[:, None]
        turn = rotation(quaternions[k])
        if side == "R":
            turn = np.diag(MIRROR) @ turn @ np.diag(MIRROR)
        turned = np.array([turn @ point for point in sphere])
        best = min(
            itertools.permutations(range(len(rows))),
            key=lambda s: sum(np.linalg.norm(sphere[i] - turned[s[i]]) for i in range(len(rows))),
        )
        assert found[k, rows].tolist() == [rows[i] for i in best]


def test_the_seed_decides_and_fewer_spins_are_the_first():
    coordinates, hemisphere = layout()
    found = spins_of(coordinates, hemisphere, 7, seed=5)
    assert np.array_equal(spins_of(coordinates, hemisphere, 7, seed=5), found)
    assert np.array_equal(spins_of(coordinates, hemisphere, 3, seed=5), found[:3])
    assert not np.array_equal(spins_of(coordinates, hemisphere, 7, seed=6), found)
    assert spins_of(coordinates, hemisphere, 0, seed=5).shape == (0, 29)


def test_regions_in_another_order_spin_alike():
    coordinates, hemisphere = layout()
    order = np.random.default_rng(7).permutation(29)
    found = spins_of(coordinates, hemisphere, 7, seed=0)
    other = spins_of(coordinates[order], [hemisphere[i] for i in order], 7, seed=0)
    assert np.array_equal(order[other], found[:, order])


def test_mirrored_hemispheres_spin_mirrored():
    left = np.random.default_rng(0).normal(scale=20.0, size=(13, 3)) - [35.0, 0.0, 0.0]
    order = np.random.default_rng(1).permutation(13)
    coordinates = np.concatenate([left, (left * MIRROR)[order]])
    found = spins_of(coordinates, ["L"] * 13 + ["R"] * 13, 11, seed=0)
    assert np.array_equal(order[found[:, 13:] - 13], found[:, :13][:, order])
    unmirrored = spins_of(coordinates, ["L"] * 13 + [""] * 13, 11, seed=0)
    assert np.array_equal(unmirrored[:, :13], found[:, :13])
    assert not np.array_equal(unmirrored[:, 13:], found[:, 13:])


def test_place_and_size_of_a_hemisphere_do_not_matter():
    coordinates, hemisphere = layout()
    expected = spins_of(coordinates, hemisphere, 7, seed=0)
    moved = coordinates.copy()
    right = np.array(hemisphere) == "R"
    moved[right] = 3 * moved[right] + [100.0, -10.0, 7.0]
    assert np.array_equal(spins_of(moved, hemisphere, 7, seed=0), expected)


def test_rotations_are_uniform():
    """The corners of an octahedron come to lie on every corner equally often."""
    corners = np.concatenate([np.eye(3), -np.eye(3)])
    found = spins_of(corners, None, 1200, seed=0)
    for place in range(6):
        assert chisquare(np.bincount(found[:, place], minlength=6)).pvalue > 1e-3


def test_groups_stay_apart():
    coordinates, hemisphere = layout(13, 11, 0)
    groups = ["subcortex" if i % 5 == 0 else "cortex" for i in range(24)]
    found = spins_of(coordinates, hemisphere, 11, 0, groups)
    part = np.array([f"{side} {label}" for side, label in zip(hemisphere, groups, strict=True)])
    assert (part[found] == part).all()
    cortex = np.array(groups) == "cortex"
    alone = spins_of(coordinates[cortex], [hemisphere[i] for i in np.flatnonzero(cortex)], 11, 0)
    assert np.array_equal(np.flatnonzero(cortex)[alone], found[:, cortex])
    assert (found[:, ~cortex] != np.flatnonzero(~cortex)).any()


def test_small_parts():
    """And one of all regions, where hemispheres are not known."""
    coordinates, _ = layout(3, 1, 0)
    found = spins_of(coordinates, ["L", "L", "R", ""], 31, seed=0)
    assert {tuple(spin) for spin in found.tolist()} == {(0, 1, 2, 3), (1, 0, 2, 3)}
    assert np.array_equal(spins_of(coordinates, None, 7, 0), spins_of(coordinates, [""] * 4, 7, 0))
    line = np.array([[-1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # one of them at the mean
    assert (np.sort(spins_of(line, None, 31, seed=0), axis=1) == np.arange(3)).all()


def test_bad_spins():
    coordinates, hemisphere = layout()
    with pytest.raises(ValueError, match="hemisphere must have 29 entries, got 28"):
        spins_of(coordinates, hemisphere[1:], 3, 0)
    with pytest.raises(ValueError, match="hemisphere must be 'L', 'R' or '', got 'left' at 3"):
        spins_of(coordinates, [*hemisphere[:3], "left", *hemisphere[4:]], 3, 0)
    with pytest.raises(ValueError, match="must leave two regions together, each of 29 is alone"):
        spins_of(coordinates, hemisphere, 3, 0, [str(i) for i in range(29)])
    coordinates[7, 1] = np.nan
    with pytest.raises(ValueError, match="coordinates must be known of every region, 1 of 29 have none.*region 7"):
        spins_of(coordinates, hemisphere, 3, 0)


# ---------------------------------------------------------------------- as smooth


def smooth_maps(number=61, maps=3, seed=0):
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    near = np.exp(-squared(places, places) / (2 * 30.0**2))
    return places, np.linalg.cholesky(near + 1e-6 * np.eye(number)) @ rng.normal(size=(number, maps))


def test_the_variogram_is_that_of_loops():
    places, maps = smooth_maps(13, 2)
    apart, edges = np.sqrt(squared(places, places)), ((0, 40), (40, 80))
    bins = [((apart > low) & (apart <= high)).astype(float) for low, high in edges]
    for number, (low, high) in enumerate(edges):
        pairs = [(i, j) for i in range(13) for j in range(13) if low < apart[i, j] <= high]
        expected = [np.mean([(x[i] - x[j]) ** 2 / 2 for i, j in pairs]) for x in maps.T]
        assert np.allclose(variogram_of(maps, bins)[number], expected)


def test_variogram_surrogates_are_as_smooth():
    places, maps = smooth_maps()
    apart = np.sqrt(squared(places, places))
    near = [((apart > 0) & (apart <= 30)).astype(float)]
    wanted = variogram_of(maps, near)[0] / maps.var(0)
    made = np.mean([variogram_of(new, near)[0] / new.var(0) for new in variogram(maps, places, 40, 0)], 0)
    shuffled = np.random.default_rng(0).permutation(maps)
    rough = variogram_of(shuffled, near)[0] / shuffled.var(0)
    assert (abs(made - wanted) < 0.5 * abs(rough - wanted)).all()


def test_kinds():
    regions = brain_of()
    maps = regions.expression.astype(float)
    for kind in ("spin", "variogram"):
        one, again = (list(surrogates(kind, maps, regions, 2, 3)) for _ in range(2))
        assert len(one) == 2
        assert np.array_equal(one, again)
    spun = next(iter(surrogates("spin", maps, regions, 1, 3)))
    assert np.array_equal(np.sort(spun, 0), np.sort(maps, 0))
    # Variogram surrogates know hemispheres as mirror images.
    turned = regions.with_(coordinates=regions.coordinates * [-1, 1, 1])
    one, other = (next(iter(surrogates("variogram", maps, made, 1, 3))) for made in (regions, turned))
    assert np.allclose(one, other)
    with pytest.raises(ValueError, match="kind must be one of 'spin', 'variogram', got 'none'"):
        list(surrogates("none", maps, regions, 1, 0))


def test_the_statistic_against_loops(monkeypatch):
    monkeypatch.setattr("omniset.regions.null_models.RATES", (0.3,))
    monkeypatch.setattr("omniset.regions.null_models.PENALTIES", (0.2,))
    regions = brain_of(unknown=())
    folds = random_folds(23, 3, 0)
    maps = regions.expression.astype(float)
    d = squared(maps, maps)
    like = np.exp(-0.3 * d / d.mean())
    c = mirrored(regions.coordinates)
    sides = (regions.coordinates[:, :1] > 0) != (regions.coordinates[:, 0] > 0)
    near = np.exp(-squared(c, c) / (2 * 25.0**2) - 0.5 * sides)
    for what, kernel in (("genes", 1 + like), ("genes and places", 1 + (like + near) / 2)):
        found = []
        for rows in folds:
            learn = np.setdiff1d(np.arange(23), rows)
            trunk = geometry_of(regions.take(learn))
            everything = np.array([(i, j) for i in range(23) for j in range(23) if i != j])
            rest = np.zeros((23, 23))
            rest[tuple(everything.T)] = regions.connectivity[tuple(everything.T)] - trunk.predict(regions, everything)
            inverse = np.linalg.inv(kernel[np.ix_(learn, learn)] + 0.2 * np.eye(len(learn)))
            s = kernel[np.ix_(rows, learn)] @ inverse
            predicted = s @ rest[np.ix_(learn, learn)] @ s.T
            i, j = np.triu_indices(len(rows), 1)
            pairs = np.stack([rows[i], rows[j]], 1)
            predicted = predicted[i, j] + trunk.predict(regions, pairs)
            found.append(np.corrcoef(regions.connectivity[tuple(pairs.T)], predicted)[0, 1])
        assert Statistic(regions, folds)(maps)[what] == pytest.approx(np.mean(found), rel=1e-9)


def test_genes_that_matter_beat_their_nulls_and_others_do_not():
    regions = brain_of(47, unknown=())
    folds = random_folds(47, 4, 0)
    rng = np.random.default_rng(0)
    nulls = [regions.expression[rng.permutation(47)].astype(float)[:, :3] for _ in range(199)]
    statistic = Statistic(regions, folds)
    observed = statistic(regions.expression[:, :3].astype(float))["genes"]
    assert NullResult("genes", "spin", observed, np.array([statistic(n)["genes"] for n in nulls])).p == 1 / 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omniset.regions.null_models.maps_of", lambda regions: nulls[0])
        (genes, _) = null_test(regions, folds, "spin", nulls[1:])
    assert genes.p > 0.01
    about = genes.as_dict()
    assert about["gain"] == pytest.approx(genes.observed - genes.nulls.mean())
    assert about["gain_low"] < about["gain"] < about["gain_high"]
