"""Maps of regions on the surface of the brain: fsaverage5, which nilearn holds, so that nothing is downloaded."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from scipy.spatial import cKDTree

from omniset.regions.data import LEFT, RIGHT, Regions
from omniset.regions.figures import UNKNOWN, limits
from omniset.regions.formats.structures import CORTEX
from omniset.regions.structures import groups_of
from omniset.report import figures
from omniset.report.blocks import Block, Plot

REACH = 30.0  # mm, from a triangle to the centroid whose value it takes
DARKEST = 0.55  # of the light, where the surface turns away
FEWEST = 3  # regions of cortex that are worth a map


class Surface(NamedTuple):
    """Half a brain of triangles.

    Attributes:
        pial: Vertices in mm, near those of MNI space: where values are looked up.
        inflated: The same vertices where they are drawn, so that nothing is hidden in a fold.
        triangles: Of three vertices each.
    """

    pial: Float[np.ndarray, "vertices 3"]
    inflated: Float[np.ndarray, "vertices 3"]
    triangles: Int[np.ndarray, "triangles 3"]


@lru_cache(maxsize=1)
def fsaverage() -> dict[str, Surface]:
    """By hemisphere. Raises: ImportError, without nilearn."""
    from nilearn import datasets

    meshes = datasets.load_fsaverage("fsaverage5")
    surfaces = {}
    for side, name in ((LEFT, "left"), (RIGHT, "right")):
        pial, inflated = meshes["pial"].parts[name], meshes["inflated"].parts[name]
        places, drawn = (np.asarray(mesh.coordinates, np.float64) for mesh in (pial, inflated))
        surfaces[side] = Surface(places, drawn, np.asarray(pial.faces, np.int64))
    return surfaces


def near(
    points: Float[np.ndarray, "points 3"],
    places: Float[np.ndarray, "regions 3"],
    values: Float[np.ndarray, " regions"],
    reach: float = REACH,
) -> Float[np.ndarray, " points"]:
    """The value of the region whose place is nearest to a point, NaN where none is within reach."""
    distance, nearest = cKDTree(places).query(points)
    return np.where(distance <= reach, values[nearest], np.nan)


def cortex_of(regions: Regions) -> dict[str, Int[np.ndarray, " rows"]]:
    """Positions of the regions of cortex by hemisphere, as far as their places are known."""
    if regions.coordinates is None:
        return {}
    x = regions.coordinates[:, 0]
    sides = np.array(regions.hemisphere or [LEFT if one < 0 else RIGHT for one in x])
    here = np.isfinite(regions.coordinates).all(1) & (np.array(groups_of(regions)) == CORTEX)
    rows = {side: np.flatnonzero(here & (sides == side)) for side in (LEFT, RIGHT)}
    return {side: of_side for side, of_side in rows.items() if len(of_side) >= FEWEST}


def means(matrix: Float[np.ndarray, "regions others"]) -> Float[np.ndarray, " regions"]:
    """Of each row what is known of it, NaN where nothing is."""
    known = np.isfinite(matrix)
    return np.where(known.any(1), np.where(known, matrix, 0).sum(1) / np.maximum(known.sum(1), 1), np.nan)


def plot(values: Float[np.ndarray, " regions"], regions: Regions, name: str, caption: str) -> list[Block]:
    """The map of a value of each region, NaN: none; nothing where there is no nilearn, or too little cortex.

    Args:
        name: Of the values, beside the colours.
        caption: A sentence that says what they are.
    """
    if not cortex_of(regions) or not np.isfinite(values).any():
        return []
    try:
        figure = surface_map(values, regions, name)
    except ImportError:
        return []
    known = np.flatnonzero(np.isfinite(values))
    most = regions.names[known[values[known].argmax()]]
    where = f"Each place of the cortex has the value of the nearest centroid within {REACH:.0f} mm, else it is grey."
    alt = f"Cortex from outside and from inside. {caption} The highest is {most}."
    return [Plot(figure, alt, f"{caption} {where}", half=False)]


@figures.styled
def surface_map(values: Float[np.ndarray, " regions"], regions: Regions, name: str) -> Figure:
    """Each hemisphere that has cortex, from outside and from inside.

    Raises:
        ImportError: nilearn is not installed.
    """
    surfaces, rows = fsaverage(), cortex_of(regions)
    assert regions.coordinates is not None
    shown = values[np.concatenate([*rows.values()])]
    ends = limits(shown[np.isfinite(shown)])
    colours, norm = colormaps["RdBu_r" if ends[0] < 0 < ends[1] else "viridis"], Normalize(*ends)
    figure = Figure(figsize=(7.2, 1.9 if len(rows) > 1 else 2.9), dpi=figures.DPI, layout="constrained")
    panels = figure.subplots(1, 2 * len(rows), squeeze=False)[0]
    views = [(side, out) for side in rows for out in ((True, False) if side == LEFT else (False, True))]
    for axes, (side, outside) in zip(panels, views, strict=True):
        surface = surfaces[side]
        at = near(surface.pial[surface.triangles].mean(1), regions.coordinates[rows[side]], values[rows[side]])
        _draw(axes, surface, at, norm, colours, camera=-1 if (side == LEFT) == outside else 1)
        axes.set_title(f"{'left' if side == LEFT else 'right'}, {'outside' if outside else 'inside'}")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=panels.tolist(), label=name, shrink=0.8, aspect=20)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
    return figure


def _draw(
    axes: Axes,
    surface: Surface,
    values: Float[np.ndarray, " triangles"],
    norm: Normalize,
    colours: Colormap,
    camera: int,
) -> None:
    """The triangles that face a camera far to the left (-1) or the right (1), the nearest last."""
    corners = surface.inflated[surface.triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    facing = camera * normals[:, 0] / np.maximum(np.linalg.norm(normals, axis=1), 1e-12)
    seen = np.flatnonzero(facing > 0)
    seen = seen[np.argsort(camera * corners[seen, :, 0].mean(1))]
    rgb = colours.with_extremes(bad=UNKNOWN)(np.ma.masked_invalid(norm(values[seen])))[:, :3]
    rgb *= (DARKEST + (1 - DARKEST) * facing[seen])[:, None]
    outline = corners[seen][:, :, 1:] * [camera, 1]  # seen from the left, the front is on the left
    axes.add_collection(PolyCollection(outline, facecolors=rgb, edgecolors=rgb, linewidths=0.2, rasterized=True))
    axes.set(xlim=(outline[..., 0].min(), outline[..., 0].max()), ylim=(outline[..., 1].min(), outline[..., 1].max()))
    axes.set_aspect("equal")
    axes.set_axis_off()
