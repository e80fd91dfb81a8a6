"""Maps on the surface: which triangle has whose value, which are seen, and from where."""

import sys
import types

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import ConvexHull

from omniset.regions import report, surfaces
from omniset.regions.data import Regions
from omniset.regions.surfaces import means, near, plot, surface_map
from omniset.report.frame import Run

RNG = np.random.default_rng(0)
CENTRE, RADIUS = 40.0, 35.0  # mm, of the balls that stand for the hemispheres
NUMBER = 20


def ball(side):
    """Vertices and triangles of a ball; corners are in an order that has the normals outwards."""
    points = np.random.default_rng(3).normal(size=(200, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    triangles = ConvexHull(points).simplices
    a, b, c = (points[triangles[:, k]] for k in range(3))
    inwards = (np.cross(b - a, c - a) * a).sum(1) < 0
    triangles[inwards] = triangles[inwards][:, ::-1]
    return points * RADIUS + [side * CENTRE, 0, 0], triangles


def regions(**changes):
    """Half of them on either ball; the last of each side is no cortex."""
    directions = np.random.default_rng(4).normal(size=(NUMBER, 3))  # the same, whichever tests came before
    places = directions / np.linalg.norm(directions, axis=1, keepdims=True) * RADIUS
    places[:, 0] += np.repeat([-CENTRE, CENTRE], NUMBER // 2)
    structure = (["cortex"] * (NUMBER // 2 - 1) + ["subcortex"]) * 2
    made = {"coordinates": places, "hemisphere": ["L"] * 10 + ["R"] * 10, "structure": structure}
    return Regions([f"r{i}" for i in range(NUMBER)], [], np.empty((NUMBER, 0), np.float32), **{**made, **changes})


@pytest.fixture
def nilearn(monkeypatch):
    """Two balls in the place of fsaverage5."""

    def parts(scale):
        meshes = {}
        for name, side in (("left", -1), ("right", 1)):
            points, triangles = ball(side)
            meshes[name] = types.SimpleNamespace(coordinates=points * scale, faces=triangles)
        return types.SimpleNamespace(parts=meshes)

    stub = types.ModuleType("nilearn")
    load = {"fsaverage5": {"pial": parts(1.0), "inflated": parts(2.0)}}
    stub.datasets = types.SimpleNamespace(load_fsaverage=load.__getitem__)
    monkeypatch.setitem(sys.modules, "nilearn", stub)
    surfaces.fsaverage.cache_clear()
    yield
    surfaces.fsaverage.cache_clear()


def drawn(axes):
    """Outlines and colours of the triangles of a panel."""
    (collection,) = axes.collections
    outlines = np.array([path.vertices[:3] for path in collection.get_paths()])
    return outlines, collection.get_facecolor()[:, :3]


def test_the_nearest_within_reach():
    points, places, values = RNG.normal(size=(50, 3)), RNG.normal(size=(7, 3)), RNG.normal(size=7)
    found = near(points, places, values, 0.8)
    for point, value in zip(points, found, strict=True):
        apart = np.sqrt(((places - point) ** 2).sum(1))
        expected = values[apart.argmin()] if apart.min() <= 0.8 else np.nan
        assert value == expected or (np.isnan(value) and np.isnan(expected))
    assert 0 < np.isnan(found).sum() < 50


def test_means_of_what_is_known():
    matrix = RNG.normal(size=(5, 5))
    matrix[1] = matrix[2, 3] = np.nan
    expected = [np.nan if i == 1 else np.mean([x for x in row if not np.isnan(x)]) for i, row in enumerate(matrix)]
    assert np.allclose(means(matrix), expected, equal_nan=True)


def test_each_side_from_outside_and_from_inside(nilearn):
    """Seen are the triangles that face the camera; seen from the left the front is on the left."""
    made = regions()
    front = made.coordinates[:, 1]
    panels = surface_map(front, made, "front").axes[:4]
    assert [axes.get_title() for axes in panels] == ["left, outside", "left, inside", "right, inside", "right, outside"]
    for axes, side, camera in zip(panels, (-1, -1, 1, 1), (-1, 1, -1, 1), strict=True):
        points, triangles = ball(side)
        corners = points[triangles]
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        seen = corners[normals[:, 0] * camera > 0]
        outlines, colours = drawn(axes)
        expected = 2 * seen[:, :, 1:] * [camera, 1]
        assert np.allclose(*(np.sort(one.mean(1), 0) for one in (outlines, expected)))
        ahead = outlines[..., 0].mean(1) * camera  # to the front
        red = colours[:, 0] - colours[:, 2]  # RdBu_r: high is red
        assert red[ahead > RADIUS].mean() > red[ahead < -RADIUS].mean() + 0.3


def test_subcortex_and_unknown_places_lend_no_value(nilearn):
    made = regions()
    made.coordinates[3] = np.nan
    rows = surfaces.cortex_of(made)
    assert rows["L"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert rows["R"].tolist() == list(range(10, 19))
    left = made.take(np.arange(10))
    assert len(surface_map(np.arange(10.0), left, "a value").axes) == 2 + 1
    alone = surfaces.cortex_of(made.with_(hemisphere=None))
    assert {side: found.tolist() for side, found in alone.items()} == {s: found.tolist() for s, found in rows.items()}


def test_what_has_no_map(nilearn, monkeypatch):
    made, values = regions(), np.arange(NUMBER, dtype=float)
    (block,) = plot(values, made, "a value", "What it is.")
    assert block.caption.startswith("What it is. Each place of the cortex has the value of the nearest centroid")
    assert block.alt.endswith("The highest is r19.")
    assert plot(values, made.with_(coordinates=None), "a value", "") == []
    assert plot(values, made.with_(structure=["subcortex"] * NUMBER), "a value", "") == []
    assert plot(np.full(NUMBER, np.nan), made, "a value", "") == []
    surfaces.fsaverage.cache_clear()
    monkeypatch.setitem(sys.modules, "nilearn", None)
    assert plot(values, made, "a value", "") == []


def test_an_explanation_shows_what_is_read(nilearn, monkeypatch):
    shown = []
    monkeypatch.setattr(surfaces, "plot", lambda values, *rest: shown.append((values, rest[-1])) or [])
    looked = pd.DataFrame({"region": ["r0", "r0", "r1"], "known": ["r5", "r2", "r5"], "weight": [0.5, 0.2, 0.9]})
    run = Run("regions", "explanation", "A title", "omniset", {"seed": 0}, (), [])
    report.of_explanation(run, looked, None, "r0", "r1", regions())
    (one, of_one), (other, of_other) = shown
    assert np.flatnonzero(np.isfinite(one)).tolist() == [2, 5]
    assert one[[2, 5]].tolist() == [0.2, 0.5]
    assert other[5] == 0.9
    assert "r0" in of_one
    assert "r1" in of_other
