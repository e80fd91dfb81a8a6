"""The files of brain regions, joined by the regions' names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.spatial.distance import cdist

from omniset.regions.atlas_coordinates import (
    CORTEX,
    hemisphere_of_name,
    network_of_name,
    read_coordinates,
    structure_of_name,
)
from omniset.regions.connectivity import Connectivity, Triangle, check_target, read_connectivity, unknown_regions
from omniset.regions.data import LABELS, Regions
from omniset.regions.expression import read_expression
from omniset.regions.files import name_of, no_region, spelling
from omniset.regions.scores import pearson
from omniset.tables.doubts import counted_from, judge_join, refuse_equal_rows
from omniset.tables.files import TableFile, listed

LEAST = 10  # regions, and genes, that anything can be learned from
PAIR = 2  # regions that anything can be predicted of
NEAR = 0.1  # r with nearness: real matrices have 0.13 to 0.63 in the right order, at most 0.10 in a wrong one
CHANCE = 6  # over the number of regions: difference of two such r that chance alone hardly makes
DECAY = 20.0  # mm: nearness is exp(-distance / DECAY)
MANY = 30  # regions, from which on connectivity that does not go with nearness is said
MIRRORED = 1 / 3  # of the regions have the values of another one, from which on it is said
NETWORKS = re.compile(r"X?\d+networks[^a-z]", re.I)  # Schaefer's names, which some files have without


@dataclass
class _Named:
    """The regions of one file."""

    file: str
    names: list[str]


def read_regions(
    expression: Any,
    connectivity: Any = None,
    coordinates: Any = None,
    *,
    fisher_z: bool = False,
    zero_negative: bool = False,
    directed: bool = False,
    matrix: str | None = None,
    triangle: Triangle | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Regions:
    """Read what is known of brain regions and join it by the regions' names, in the order of the expression.

    A region that is not in all of the files is left out. Names that are written differently (in case, punctuation, the
    side, a prefix) are the same where only one can be meant. A matrix without names must have as many regions as the
    expression, or else as the coordinates, and is taken in that order; in the other one where both may be and r with
    nearness, exp(-distance / 20 mm), clearly says so. Then regions without any expression, regions without any known
    pair and genes that no region has are left out. `Regions.notes` says all of that.

    Without coordinates, hemisphere and network are those that names tell, as in "7Networks_LH_Vis_1".

    Args:
        expression: See `omniset.regions.expression.read_expression`.
        connectivity: See `omniset.regions.connectivity.read_connectivity`, also for `fisher_z`, `zero_negative`,
            `directed`, `matrix` and `triangle`. None: to be predicted.
        coordinates: See `omniset.regions.atlas_coordinates.read_coordinates`.
        aliases: Other names of genes, alias to name.

    Raises:
        OSError: A file is not there or may not be read.
        ImportError: A package that reads a format is not installed.
        ValueError: As the readers of the files raise it; a join that loses two thirds of the regions of the smaller
            file; most regions with one expression; fewer than 10 regions that join (2 without connectivity), or
            fewer than 10 genes.
    """
    options: dict[str, Any] = {"fisher_z": fisher_z, "zero_negative": zero_negative, "directed": directed}
    options |= {"matrix": matrix, "triangle": triangle}
    least = PAIR if connectivity is None else LEAST
    regions = _joined(expression, connectivity, coordinates, aliases, options, least)
    source, target = name_of(expression, "expression"), name_of(connectivity, "connectivity")
    flat = (regions.expression == regions.expression[:, :1]).all(1)
    empty = np.isnan(regions.expression).all(1) | flat
    regions = _without(regions, empty, source, "region(s) have no expression (no tissue sample, or one value only)")
    if regions.connectivity is not None:
        unknown = unknown_regions(regions.connectivity)
        regions = _without(regions, unknown, target, "region(s) have no known pair")
    if len(regions) < least:
        raise ValueError(
            f"{source} has {len(regions)} regions of which all is known, at least {least} are needed: "
            f"{'; '.join(regions.notes[-2:]) or 'there are no more'}"
        )
    if regions.connectivity is not None:
        check_target(regions.connectivity, target)
    refuse_equal_rows(regions.expression, regions.names, file=source, what="regions")
    rows = [row.tobytes() for row in regions.expression.round(6)]
    times = Counter(rows)
    twins = [name for name, row in zip(regions.names, rows, strict=True) if times[row] > 1]
    if len(twins) >= MIRRORED * len(regions):
        regions.notes.append(
            f"{source}: {len(twins)} of {len(regions)} regions have the values of another one, such as "
            f"{listed(twins, 2)}, as where samples were mirrored (abagen's lr_mirror): genes do not tell their sides, "
            "and only bilateral folds keep one of two from being learned from where the other is tested"
        )
    return _with_values(regions, source)


def _joined(
    expression: Any,
    connectivity: Any,
    coordinates: Any,
    aliases: Mapping[str, str] | None,
    options: dict[str, Any],
    least: int,
) -> Regions:
    """The regions that all files have.

    What the other files call regions tells which side of the expression has them, and the expression's names tell which
    columns and numbers of the others are names: so these are read twice. Hemisphere, network and structure are those
    that a file of places, or else names, tell.
    """
    others: list[str] = []
    if coordinates is not None:
        others.extend(read_coordinates(coordinates).index)
    if connectivity is not None:  # whichever triangle it is, it has these names
        others.extend(read_connectivity(connectivity, **{**options, "triangle": "upper"}).names or [])
    target = name_of(connectivity, "connectivity")
    expressed = read_expression(expression, aliases, regions=others)
    table, notes = expressed.frame, list(expressed.notes)
    named = [_Named(name_of(expression, "expression"), table.index.tolist())]
    places: pd.DataFrame | None = None
    matrix: Connectivity | None = None
    if coordinates is not None:
        places = read_coordinates(coordinates, regions=named[0].names)
        notes += places.attrs["notes"]
        named.append(_Named(name_of(coordinates, "coordinates"), places.index.tolist()))
        _respell(named[1], named[0], notes)
        places.index = pd.Index(named[1].names)
    if connectivity is not None:
        matrix = read_connectivity(connectivity, regions=named[0].names, **options)
        notes += matrix.notes
        named.append(_Named(target, matrix.names or _ordered(matrix, target, named, notes, places)))
        _respell(named[-1], named[0], notes)
    table.index = pd.Index(named[0].names)
    rows = _join(named, least, notes)
    table = table.iloc[rows[0]]
    names = table.index.tolist()
    if places is None:
        of_names = {"hemisphere": hemisphere_of_name, "network": network_of_name}
        told = pd.DataFrame({label: [of(name) for name in names] for label, of in of_names.items()})
    else:
        told = places = places.iloc[rows[1]]
    joined = None if matrix is None else matrix.matrix[np.ix_(rows[-1], rows[-1])]
    if joined is not None and len(names) >= MANY and (r := nearness(joined, places, names)) < NEAR:
        what = "distances, lengths or 1 - r" if r < -NEAR else "regions in another order, or of other coordinates"
        notes.append(
            f"{target}: r with nearness, exp(-distance / 20 mm), is {r:.2f}, usually 0.1 to 0.6: are these {what}?"
        )
    labels: dict[str, Any] = {name: told[name].tolist() for name in LABELS if name in told and any(told[name])}
    return Regions(
        names=names,
        genes=table.columns.tolist(),
        expression=table.to_numpy(np.float32),
        coordinates=None if places is None else places[["x", "y", "z"]].to_numpy(np.float64),
        connectivity=joined,
        directed=options["directed"],
        notes=notes,
        **labels,
    )


def _without(regions: Regions, out: Bool[np.ndarray, " regions"], source: str, why: str) -> Regions:
    """Without some regions, which is noted."""
    if not out.any():
        return regions
    names = [regions.names[i] for i in np.flatnonzero(out)]
    regions.notes.append(f"{source}: {len(names)} {why} and are left out: {listed(names, 5)}")
    return regions.take(np.flatnonzero(~out))


def nearness(matrix: Float[np.ndarray, "regions regions"], places: pd.DataFrame | None, names: list[str]) -> float:
    """Pearson's r of connectivity with exp(-distance / 20 mm), where both are known; NaN without places."""
    if places is None:
        return np.nan
    at = places.reindex(names)[["x", "y", "z"]].to_numpy(np.float64)
    near = np.exp(-cdist(at, at) / DECAY) + matrix * 0
    np.fill_diagonal(near, np.nan)
    known = np.isfinite(near)
    return pearson(matrix[known], near[known])


def _orders(size: int, files: list[_Named], places: pd.DataFrame | None) -> list[tuple[_Named, list[str]]]:
    """Files with as many regions, and these, each order once; labels of no region, or the subcortex, left out if so."""
    told: Any = {} if places is None or "structure" not in places else places["structure"]
    orders: list[tuple[_Named, list[str]]] = []
    for file in files:
        regions = [name for name in file.names if not no_region(name)]
        cortex = [name for name in regions if (told.get(name) or structure_of_name(name)) == CORTEX]
        kept = next((names for names in (file.names, regions, cortex) if len(names) == size), None)
        if kept is not None and all(kept != names for _, names in orders):
            orders.append((file, kept))
    return sorted(orders, key=lambda order: len(order[0].names) != size)


def _ordered(
    matrix: Connectivity, file: str, files: list[_Named], notes: list[str], places: pd.DataFrame | None
) -> list[str]:
    """Names of a matrix that has none, from the file that has as many regions; of two the one that goes with places."""
    size = len(matrix.matrix)
    orders = _orders(size, files, places)
    if not orders:
        have = " and ".join(f"{other.file} has {len(other.names)}" for other in files)
        raise ValueError(f"{file} has {size} regions without names, it must have as many as another file; {have}")
    found = [nearness(matrix.matrix, places, names) for _, names in orders]
    several = len(orders) > 1
    second, best = np.sort(found)[-2:] if several else (np.nan, np.nan)  # NaN last
    # r of a wrong order is 0 but for chance, which is the larger the fewer regions there are.
    clear = best >= NEAR and best - second >= max(NEAR, CHANCE / size)
    other, names = orders[int(np.argmax(found)) if clear else 0]
    why = f" (r with nearness {found[0]:.2f}, in that of {orders[1][0].file} {found[1]:.2f})" if several else ""
    fewer = (
        f", without {listed([one for one in other.names if one not in names], 3)}" if len(other.names) > size else ""
    )
    notes.append(f"{file} has no names: its {size} regions are taken in the order of {other.file}{fewer}{why}")
    return names


def _respell(file: _Named, other: _Named, notes: list[str]) -> None:
    """Let a file's names be written as the other's, where only one of these can be meant.

    Where one has, behind a label of no region, all of the other's but the last, in its order, its names are one off.
    """
    for one, right in ((file, other), (other, file)):
        regions = [spelling(name) for name in right.names]
        if one.names and no_region(one.names[0]) and [*map(spelling, one.names[1:])] == regions[:-1]:
            notes.append(f"{one.file}: {one.names[0]!r} is no region, names are one off and taken from {right.file}")
            one.names = list(right.names)
    ours, theirs = set(file.names), set(other.names)
    lost, free = [name for name in file.names if name not in theirs], [name for name in other.names if name not in ours]
    both = all(any(map(NETWORKS.match, names)) for names in (lost, free))  # of 7 and of 17 networks: other regions
    keys = {name: spelling(name if both else NETWORKS.sub("", name, count=1)) for name in (*lost, *free)}
    here, there = Counter(keys[name] for name in lost), Counter(keys[name] for name in free)
    written = {keys[name]: name for name in free if there[keys[name]] == 1}
    new = {name: written[keys[name]] for name in lost if here[keys[name]] == 1 and keys[name] in written}
    if new:
        first = next(iter(new))
        notes.append(
            f"{file.file}: {len(new)} of {len(file.names)} regions are written otherwise in {other.file}, such as "
            f"{first!r} for {new[first]!r}, and are joined"
        )
        file.names = [new.get(name, name) for name in file.names]


def _join(files: list[_Named], least: int, notes: list[str]) -> list[np.ndarray]:
    """For each file, where the regions are that all files have, in the order of the first one."""
    for one, other in combinations(files, 2):
        for counted, named in ((one, other), (other, one)):
            begin = counted_from(sorted(counted.names, key=lambda name: (len(name), name)))
            if begin is not None and _shifted(counted.names, named.names, 1 - 2 * begin):
                raise ValueError(
                    f"{counted.file} and {named.file}: names of regions count from {begin} in the first and from "
                    f"{1 - begin} in the second: give both files the same names"
                )
    for pair in ((files[0], file) for file in files[1:]):
        one, other = sorted(pair, key=lambda file: len(file.names))  # the larger one may be of a whole atlas
        lost, free = (sorted(set(a.names) - set(b.names)) for a, b in ((one, other), (other, one)))
        notes += filter(None, [judge_join(lost, len(one.names), free, file=one.file, other=other.file, what="regions")])
    common = set(files[0].names).intersection(*(file.names for file in files[1:]))
    if len(common) < least:
        have = "; ".join(f"{file.file} has {len(file.names)} such as {listed(file.names[:3], 3)}" for file in files)
        raise ValueError(f"{len(common)} regions have the same name in all files, at least {least} are needed: {have}")
    order = [name for name in files[0].names if name in common]
    for file in files:
        if apart := [name for name in file.names if name not in common]:
            notes.append(
                f"{file.file}: {len(apart)} of {len(file.names)} region(s) are not in every file and left out: "
                f"{listed(apart, 5)}"
            )
    places = [{name: i for i, name in enumerate(file.names)} for file in files]
    return [np.array([at[name] for name in order], dtype=np.int64) for at in places]


def _shifted(counted: list[str], names: list[str], by: int) -> bool:
    """Numbers that are among those that count only if all of these are one more, or one less."""
    if not all(map(str.isdigit, names)) or set(names) <= set(counted):
        return False
    return set(names) <= {str(int(number) + by) for number in counted}


def _with_values(regions: Regions, file: str) -> Regions:
    """With the genes that some region has a value of."""
    nowhere = np.isnan(regions.expression).all(0)
    if nowhere.any():
        without = [regions.genes[i] for i in np.flatnonzero(nowhere)]
        regions.notes.append(
            f"{file}: {len(without):,} gene(s) have no value in any region and are left out: {listed(without, 5)}"
        )
    columns = np.flatnonzero(~nowhere)
    if len(columns) < LEAST:
        raise ValueError(f"{file} has {len(columns)} genes with values, at least {LEAST} are needed")
    return regions.with_(genes=[regions.genes[i] for i in columns], expression=regions.expression[:, columns])


# ---------------------------------------------------------------------- pairs


def read_pairs(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The first two columns of a table of pairs."""
    file = TableFile(path)
    if len(file.columns) < 2:
        raise file.error(None, "must have two columns, the names of both regions of each pair")
    columns = list(file.columns[:2])
    if set(columns) <= set(names):
        raise file.error(None, f"must have a header, its first line is a pair: {columns[0]!r}, {columns[1]!r}")
    frames = [pd.DataFrame({name: chunk.text(name).to_pylist() for name in columns}) for chunk in file.chunks()]
    pairs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    lacking = np.argwhere(~pairs.isin(names).to_numpy())
    if len(lacking):
        row, column = lacking[0]
        raise ValueError(
            f"{path}: pair {row + 1}: region {pairs.iloc[row, column]!r} is not there, regions are such as {names[0]!r}"
        )
    return pairs
