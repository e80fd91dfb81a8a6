"""Files of where regions are, and what their names tell of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.core.features import MISSING
from omniset.regions.formats.atlases import atlas_centroids, atlas_named
from omniset.regions.formats.structures import CORTEX, SUBCORTEX, structure_of_text
from omniset.regions.formats.tables import (
    TABLES,
    TITLES,
    check_names,
    counts_only,
    ids_of,
    is_text,
    kind_of,
    name_of,
    path_of,
    read_parquet,
    sheet_of,
    text_of,
)
from omniset.tables.files import listed, short
from omniset.tables.sheets import number_of

PLACES = (
    *(tuple(form.format(axis) for axis in "xyz") for form in ("mni_{}", "{}_mni", "{}")),
    ("r", "a", "s"),  # right, anterior, superior
)
HEMISPHERES = {"l": "L", "lh": "L", "left": "L", "r": "R", "rh": "R", "right": "R"} | dict.fromkeys(
    (*MISSING, "b", "both", "bilateral", "m", "midline"), ""
)
BRAIN = 3, 300  # mm, of a mouse and of a man: the largest coordinate lies between
SCHAEFER = re.compile(r"\d+Networks_[LR]H_([A-Za-z]+)(_\w+)?")


def read_coordinates(source: Any, *, regions: Sequence[str] | None = None) -> pd.DataFrame:
    """Read where regions are.

    Columns are found by their titles, in upper or lower case:

    | what | titles |
    |---|---|
    | places, in mm | mni_x, mni_y, mni_z; x_mni, y_mni, z_mni; x, y, z; r, a, s |
    | name | region, label, name, roi, id; else the index, or the first column |
    | hemisphere | hemisphere, hemi: L, LH, left; R, RH, right; B, M or nothing for none |
    | network | network, network_label, yeo7; else the names of Schaefer's atlas (7Networks_LH_Vis_1: Vis); else \
structure; else `cortex` (cortex or subcortex) |
    | structure | structure, as far as it tells cortex from what is below it; else `cortex`, true or false |

    A region whose hemisphere no column tells has the one that its name does (LH, RH, L_, _R, left, ...), else that of
    the sign of x.

    Args:
        source: A .csv, .tsv, .txt (also .gz, .bz2, .xz) or .parquet file, a DataFrame, or the name of an atlas, such as
            "schaefer_100": see `omniset.regions.formats.atlases`.
        regions: Names that regions have elsewhere: of several columns that may be the names, the one with most of them
            is taken.

    Returns:
        Index: names; columns: x, y, z, hemisphere ("L", "R" or ""), network where it is known; where they are given
        structure ("cortex", "subcortex", or "" where it is unknown) and `cortex`. Its `attrs["notes"]` says what was
        decided.

    Raises:
        OSError: The file is not there or may not be read, or the atlas cannot be fetched.
        ImportError: An atlas, without nilearn.
        ValueError: Naming the source and the region: a place that is no finite number; a name that is missing or there
            twice; an unknown hemisphere; no such columns.
    """
    name = name_of(source, "coordinates")
    titles, rows = _coordinates_table(source, name)
    at: dict[str, int] = {}
    for number, title in enumerate(titles):
        at.setdefault(re.sub("[ .-]", "_", title.lower()), number)
    places = next((triple for triple in PLACES if all(title in at for title in triple)), None)
    if places is None:
        raise ValueError(f"{name}: must have columns x, y, z (or mni_x, ...; x_mni, ...), it has {listed(titles)}")
    if not rows:
        raise ValueError(f"{name} has no rows below its header")
    columns = [[row[number] for row in rows] for number in range(len(titles))]
    names = _coordinate_names(columns, titles, at, [at[title] for title in places], name, set(ids_of(regions or ())))
    values = np.empty((len(names), 3))
    for axis, title in enumerate(places):
        for number, text in enumerate(columns[at[title]]):
            value = number_of(text)
            if value is None or not np.isfinite(value):
                entry = short(text) if text else "empty"
                raise ValueError(
                    f"{name}: region {names[number]!r}: {titles[at[title]]} is {entry}, it must be a finite number"
                )
            values[number, axis] = value
    notes: list[str] = []
    frame = pd.DataFrame(values, index=pd.Index(names, name="region"), columns=["x", "y", "z"])
    given = next((columns[at[title]] for title in ("hemisphere", "hemi") if title in at), None)
    frame["hemisphere"] = _hemispheres(given, names, values[:, 0], name, notes)
    notes += _doubts(frame, name)
    cortex = [_flag(text) for text in columns[at["cortex"]]] if "cortex" in at else None
    network = _networks(columns, at, names, cortex)
    if network is not None:
        frame["network"] = network
    flags = _of_flags(cortex, len(names))
    structures = [structure_of_text(text) for text in columns[at["structure"]]] if "structure" in at else flags
    structures = [structure or flag for structure, flag in zip(structures, flags, strict=True)]
    if any(structures):
        frame["structure"] = structures
    if cortex is not None:
        frame["cortex"] = pd.array(cortex, dtype="boolean") if None in cortex else cortex
    frame.attrs["notes"] = notes
    return frame


def _doubts(frame: pd.DataFrame, name: str) -> list[str]:
    """What makes one doubt that these are millimetres, from left to right, of these regions."""
    doubts = []
    farthest = float(frame[["x", "y", "z"]].abs().to_numpy().max())
    if not BRAIN[0] <= farthest <= BRAIN[1]:
        doubts.append(
            f"{name}: the largest coordinate is {farthest:.4g}, that of a brain in mm is between {BRAIN[0]} and "
            f"{BRAIN[1]}: is the unit another one?"
        )
    sides = frame["hemisphere"].map({"L": -1.0, "R": 1.0}).fillna(0) * frame["x"]
    wrong, number = frame.index[sides < 0], int((sides != 0).sum())
    if number and len(wrong) > number / 10:
        x = frame["x"].loc[wrong[0]]
        doubts.append(
            f"{name}: {len(wrong)} of {number} regions of a hemisphere lie in the other one, such as {wrong[0]!r} "
            f"(x = {x:.4g}): are the rows in another order, or is x from right to left?"
        )
    return doubts


def _coordinates_table(source: Any, name: str) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of text; an index is the first column."""
    if isinstance(source, str | Path) and (atlas := atlas_named(source)):
        source = atlas_centroids(atlas)
    elif isinstance(source, str | Path):
        path = path_of(source)
        if is_text(path):
            sheet = sheet_of(path)
            return sheet.titles, [fields for _, fields in sheet.whole()]
        if path.suffix.lower() != ".parquet":
            raise ValueError(f"{name}: the name must end in {TABLES}")
        source = read_parquet(path)
    if not isinstance(source, pd.DataFrame):
        raise ValueError(f"coordinates must be a file or a DataFrame, got {kind_of(source)}")
    columns = [[text_of(value) for value in source.iloc[:, i]] for i in range(source.shape[1])]
    titles = [text_of(title) for title in source.columns]
    if not counts_only(source.index):
        titles.insert(0, text_of(source.index.name))
        columns.insert(0, [text_of(value) for value in source.index])
    return titles, [list(row) for row in zip(*columns, strict=True)]


def _coordinate_names(
    columns: list[list[str]], titles: list[str], at: dict[str, int], places: list[int], name: str, known: set[str]
) -> list[str]:
    candidates = [at[title] for title in TITLES if title in at]
    counted = columns[0] == [str(i) for i in range(len(columns[0]))]
    if not titles[0] and not counted:  # an index without a title
        candidates.insert(0, 0)
    if not candidates and 0 not in places:
        candidates = [0]
    if not candidates:
        raise ValueError(f"{name}: must have a column of names of the regions, called {', '.join(TITLES)}")
    spelled = [ids_of(columns[number]) for number in candidates]
    whole = [names for names in spelled if len(set(names)) == len(names) and "" not in names]
    names = max(whole or spelled[:1], key=lambda names: sum(one in known for one in names))
    check_names(names, name)
    return names


def _hemispheres(
    given: list[str] | None, names: list[str], x: Float[np.ndarray, " regions"], name: str, notes: list[str]
) -> list[str]:
    if given is not None:
        for region, text in zip(names, given, strict=True):
            if text.lower() not in HEMISPHERES:
                raise ValueError(f"{name}: region {region!r}: hemisphere is {short(text)}, it must be L, R or empty")
        return [HEMISPHERES[text.lower()] for text in given]
    sides = [hemisphere_of_name(region) for region in names]
    signs = ["L" if value < 0 else "R" if value > 0 else "" for value in x.tolist()]
    if silent := [region for region, one in zip(names, sides, strict=True) if not one]:
        notes.append(
            f"{name}: the hemisphere of {len(silent):,} of {len(names):,} regions, such as {silent[0]!r}, is that of "
            "the sign of x"
        )
    return [one or sign for one, sign in zip(sides, signs, strict=True)]


def hemisphere_of_name(name: str) -> str:
    """The hemisphere that a region's name tells: "L", "R", or "" if it tells none.

    Example:
        >>> [hemisphere_of_name(n) for n in ("7Networks_LH_Vis_1", "ctx-rh-cuneus", "V1_L", "Left Thalamus", "Laccumb")]
        ['L', 'R', 'L', 'L', '']
    """
    parts = re.split(r"[^A-Za-z0-9]+", name)
    for number, part in enumerate(parts):
        # A letter alone says it at either end only: in between it may be a part of something else.
        if part.lower() in ("lh", "rh", "left", "right") or (part in ("L", "R") and number in (0, len(parts) - 1)):
            return HEMISPHERES[part.lower()] if len(parts) > 1 else ""
    return ""


def network_of_name(name: str) -> str:
    """The network that a name of Schaefer's atlas tells, else "".

    Example:
        >>> [network_of_name(name) for name in ("7Networks_LH_Vis_1", "17Networks_RH_DefaultA_PFCm_2", "L_insula")]
        ['Vis', 'DefaultA', '']
    """
    match = SCHAEFER.fullmatch(name)
    return match[1] if match else ""


def _networks(
    columns: list[list[str]], at: dict[str, int], names: list[str], cortex: list[bool | None] | None
) -> list[str] | None:
    networks = [""] * len(names)
    sources = [columns[at[title]] for title in ("network", "network_label", "yeo7") if title in at][:1]
    sources.append([network_of_name(region) for region in names])
    sources += [columns[at["structure"]]] if "structure" in at else []
    sources.append(_of_flags(cortex, len(names)))
    for source in sources:
        networks = [
            one or ("" if text.lower() in MISSING else text) for one, text in zip(networks, source, strict=True)
        ]
    return networks if any(networks) else None


def _of_flags(cortex: list[bool | None] | None, number: int) -> list[str]:
    return ["" if flag is None else CORTEX if flag else SUBCORTEX for flag in cortex or [None] * number]


def _flag(text: str) -> bool | None:
    return {"true": True, "1": True, "1.0": True, "yes": True, "cortex": True}.get(
        text.lower(), False if text.lower() in ("false", "0", "0.0", "no", "subcortex") else None
    )
