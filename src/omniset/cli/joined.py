"""What `omniset.cli.workers` has made of many files, seen as one: no name in two of them, and small tables joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from omniset.cli.workers import remove
from omniset.tables.files import TableFile, TableWriter


def require_each_once(made: Mapping[str, Path], column: str, table: str = "") -> None:
    """See that no name is in two parts. Those that have it are removed: each was computed without the other's rows.

    Args:
        made: What was made of each part.
        column: With the names.
        table: Of a folder, which table in it.
    """
    digests = [_digests(path / table, column) for path in made.values()]
    part_of = np.repeat(np.arange(len(digests)), [len(some) for some in digests])
    every = np.concatenate(digests)
    order = np.argsort(every, kind="stable")
    again = np.flatnonzero(every[order][1:] == every[order][:-1])
    if not len(again):
        return
    first, second = ([*made][part_of[order[again[0] + i]]] for i in (0, 1))
    names = [set(_names(made[part] / table, column)) for part in (first, second)]
    for part in (first, second):
        remove(made[part])
    raise ValueError(
        f"{column} {min(names[0] & names[1])!r} is in the part {first} and in the part {second}: all rows of a "
        f"{column} must be in one part"
    )


def stack(made: Mapping[str, Path], table: str, out: Path) -> pd.DataFrame:
    """The rows of the same table in the folders of all parts, one below the other, also written to `out`."""
    frames = [_frame(path / table) for path in made.values()]
    with TableWriter(out) as writer:
        for frame in frames:
            writer.write(frame)
    return pd.concat(frames, ignore_index=True)


def beside(made: Mapping[str, Path], table: str, out: Path) -> pd.DataFrame:
    """Columns of the same table of all parts beside each other, named as the parts, rows by their names in the first
    column; 0 where a part has no such row.
    """
    frames = [_frame(path / table).set_axis(["", name], axis=1) for name, path in made.items()]
    key = _frame(next(iter(made.values())) / table).columns[0]
    joined = pd.concat([frame.set_index("") for frame in frames], axis=1).fillna(0.0).sort_index()
    joined = joined.rename_axis(key).reset_index()
    with TableWriter(out) as writer:
        writer.write(joined)
    return joined


def _frame(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, sep="," if ".csv" in path.suffixes else "\t", keep_default_na=False, na_values=[""])


def _names(path: Path, column: str) -> Iterator[str]:
    for chunk in TableFile(path).chunks([column]):
        yield from chunk.text(column).unique().to_pylist()


def _digests(path: Path, column: str) -> np.ndarray:
    """Of 64 bits, of the names in a column: so those of millions of sets fit into memory."""
    names = np.array([*dict.fromkeys(_names(path, column))], dtype=object)
    return pd.util.hash_array(names, categorize=False)
