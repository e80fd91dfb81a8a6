"""Spins: permutations that are the best of all, rotations that are uniform and mirrored."""

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from omniset.regions.data import Regions
from omniset.regions.null_models import spins

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


def test_without_hemispheres_all_regions_are_one_part():
    coordinates, _ = layout()
    found = spins_of(coordinates, None, 7, seed=0)
    assert np.array_equal(found, spins_of(coordinates, [""] * 29, 7, seed=0))
    assert (np.sort(found, axis=1) == np.arange(29)).all()


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
    coordinates, _ = layout(3, 1, 0)
    found = spins_of(coordinates, ["L", "L", "R", ""], 31, seed=0)
    assert {tuple(spin) for spin in found.tolist()} == {(0, 1, 2, 3), (1, 0, 2, 3)}
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
    with pytest.raises(ValueError, match="must leave two regions together, each of 0 is alone"):
        spins_of(np.zeros((0, 3)), [], 3, 0)
    coordinates[7, 1] = np.nan
    with pytest.raises(ValueError, match="coordinates must be known of every region, 1 of 29 have none.*region 7"):
        spins_of(coordinates, hemisphere, 3, 0)
