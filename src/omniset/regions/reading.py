"""The files of brain regions, joined by the regions' names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from omniset.regions.atlas_coordinates import (
    check_parts,
    hemisphere_of_name,
    network_of_name,
    read_coordinates,
    within,
)
from omniset.regions.connectivity import Connectivity, check_target, read_connectivity, unknown_regions
from omniset.regions.data import LABELS, Regions
from omniset.regions.expression import read_expression
from omniset.regions.files import WHOLE, name_of
from omniset.tables.files import TableFile, listed

LEAST = 10  # regions, and genes, that anything can be learned from
PAIR = 2  # regions that anything can be predicted of


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
    aliases: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
) -> Regions:
    """Read what is known of brain regions and join it by the regions' names, in the order of the expression.

    A region that is not in all of the files is left out. A matrix without names must have as many regions as the
    expression, or else as the coordinates, and is taken in that order. Only if no name is the same in all files, whole
    numbers that are written differently ("1.0", "01") are taken for the same. Then regions without any expression,
    regions without any known pair and genes that no region has are left out. `Regions.notes` says all of that.

    Without coordinates, hemisphere and network are those that names tell, as in "7Networks_LH_Vis_1".

    Args:
        expression: See `omniset.regions.expression.read_expression`.
        connectivity: See `omniset.regions.connectivity.read_connectivity`, also for `fisher_z`, `zero_negative` and
            `directed`. None: to be predicted.
        coordinates: See `omniset.regions.atlas_coordinates.read_coordinates`.
        aliases: Other names of genes, alias to name.
        only: Take the regions of one part of the brain, as `omniset.regions.atlas_coordinates.within` says. None: all.

    Raises:
        OSError: A file is not there or may not be read.
        ImportError: A package that reads a format is not installed.
        ValueError: As the readers of the files raise it; fewer than 10 regions that join (2 without connectivity), also
            of the part that is asked for, a hemisphere that is not known, or fewer than 10 genes.
    """
    check_parts(only or ())
    options: dict[str, Any] = {"fisher_z": fisher_z, "zero_negative": zero_negative, "directed": directed}
    least = PAIR if connectivity is None else LEAST
    regions = _joined(expression, connectivity, coordinates, aliases, options, least)
    if only:
        regions = _part(regions, only, least)
    source, target = name_of(expression, "expression"), name_of(connectivity, "connectivity")
    empty = np.isnan(regions.expression).all(1)
    regions = _without(regions, empty, source, "region(s) have no expression (no tissue sample)")
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
    if connectivity is not None:
        others.extend(read_connectivity(connectivity, **options).names or [])
    expressed = read_expression(expression, aliases, regions=others)
    table, notes = expressed.frame, list(expressed.notes)
    named = [_Named(name_of(expression, "expression"), table.index.tolist())]
    places: pd.DataFrame | None = None
    matrix: Connectivity | None = None
    if coordinates is not None:
        places = read_coordinates(coordinates, regions=named[0].names)
        named.append(_Named(name_of(coordinates, "coordinates"), places.index.tolist()))
        notes += places.attrs["notes"]
    if connectivity is not None:
        matrix = read_connectivity(connectivity, regions=named[0].names, **options)
        notes += matrix.notes
        target = name_of(connectivity, "connectivity")
        named.append(_Named(target, matrix.names or _ordered(matrix, target, named, notes)))
    rows = _join(named, least, notes)
    table = table.iloc[rows[0]]
    names = table.index.tolist()
    if places is None:
        of_names = {"hemisphere": hemisphere_of_name, "network": network_of_name}
        told = pd.DataFrame({label: [of(name) for name in names] for label, of in of_names.items()})
    else:
        told = places = places.iloc[rows[1]]
    labels: dict[str, Any] = {name: told[name].tolist() for name in LABELS if name in told and any(told[name])}
    return Regions(
        names=names,
        genes=table.columns.tolist(),
        expression=table.to_numpy(np.float32),
        coordinates=None if places is None else places[["x", "y", "z"]].to_numpy(np.float64),
        connectivity=None if matrix is None else matrix.matrix[np.ix_(rows[-1], rows[-1])],
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


def _ordered(matrix: Connectivity, file: str, files: list[_Named], notes: list[str]) -> list[str]:
    """Names of a matrix that has none, from the file that has as many regions."""
    size = len(matrix.matrix)
    for other in files:
        if len(other.names) == size:
            notes.append(f"{file} has no names: its {size} regions are taken in the order of {other.file}")
            return other.names
    have = " and ".join(f"{other.file} has {len(other.names)}" for other in files)
    raise ValueError(f"{file} has {size} regions without names, it must have as many as another file; {have}")


def _join(files: list[_Named], least: int, notes: list[str]) -> list[np.ndarray]:
    """For each file, where the regions are that all files have, in the order of the first one."""
    for one, other in combinations(files, 2):
        for counted, named in ((one, other), (other, one)):
            begin = _begin(counted.names)
            if begin >= 0 and _shifted(counted.names, named.names, 1 - 2 * begin):
                raise ValueError(
                    f"{counted.file} and {named.file}: names of regions count from {begin} in the first and from "
                    f"{1 - begin} in the second: give both files the same names"
                )
    spelled = [file.names for file in files]
    common = set(spelled[0]).intersection(*spelled[1:])
    if not common:
        plain = [[_plain(name) for name in names] for names in spelled]
        if all(len(set(names)) == len(names) for names in plain):
            common = set(plain[0]).intersection(*plain[1:])
            if common:
                spelled = plain
                notes.append(
                    f"no region has the same name in all files; {len(common)} have as whole numbers, such as "
                    f"{files[0].names[plain[0].index(min(common, key=plain[0].index))]!r}, and are joined so"
                )
    if len(common) < least:
        have = "; ".join(f"{file.file} has {len(file.names)} such as {listed(file.names[:3], 3)}" for file in files)
        raise ValueError(f"{len(common)} regions have the same name in all files, at least {least} are needed: {have}")
    order = [name for name in spelled[0] if name in common]
    for file, names in zip(files, spelled, strict=True):
        apart = [name_there for name_there, name in zip(file.names, names, strict=True) if name not in common]
        if apart:
            notes.append(
                f"{file.file}: {len(apart)} of {len(names)} region(s) are not in every file and left out: "
                f"{listed(apart, 5)}"
            )
    places = [{name: i for i, name in enumerate(names)} for names in spelled]
    return [np.array([at[name] for name in order], dtype=np.int64) for at in places]


def _part(regions: Regions, only: Sequence[str], least: int) -> Regions:
    out = np.ones(len(regions), dtype=bool)
    out[within(regions, only)] = False
    part, inside = ",".join(only), int((~out).sum())
    if inside < least:
        raise ValueError(f"only={part}: {inside} of {len(regions)} regions are of it, at least {least} are needed")
    return _without(regions, out, f"only {part}", f"of {len(regions)} region(s) are not of it")


def _begin(names: list[str]) -> int:
    """From what on names only count; -1: they do not."""
    return next((begin for begin in (0, 1) if set(names) == {str(i + begin) for i in range(len(names))}), -1)


def _shifted(counted: list[str], names: list[str], by: int) -> bool:
    """Numbers that are among those that count only if all of these are one more, or one less."""
    if not all(map(str.isdigit, names)) or set(names) <= set(counted):
        return False
    return set(names) <= {str(int(number) + by) for number in counted}


def _plain(name: str) -> str:
    """A whole number without the fraction of a float and zeros before it; other names as they are."""
    number = WHOLE.fullmatch(re.sub(r"\.$", "", name))
    return str(int(number[1])) if number else name


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
