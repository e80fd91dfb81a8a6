"""Sets from wherever they are: the reader of a path is chosen by what the path is."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omniset.core.bounded import require_file
from omniset.core.encoding import Encoding, Missing
from omniset.core.features import RESERVED
from omniset.tables.fcs import ENDING, open_fcs
from omniset.tables.files import READ, TableFile, kind_of, listed
from omniset.tables.folders import SETS, open_folder
from omniset.tables.sets import SetTable
from omniset.tables.stored import StoredSets

OPTIONS: dict[str, Any] = {
    "set_column": "set",
    "use_rep": None,
}  # how a model remembers to read files, and what is meant without
TAKES = {  # options that each kind of path has
    "table": ("set_column", "features", "ignore", "missing"),
    "cells": ("set_column", "features", "ignore", "use_rep"),
    "fcs": ("set_column", "features", "ignore", "cofactor", "compensate"),
    "counts": ("set_column", "features", "ignore"),
    "folder": ("set_column", "dataset"),  # the first is that of the file of labels
}


def open_sets(
    path: str | Path,
    features: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    *,
    ignore: Sequence[str] = (),
    encoding: Encoding | None = None,
    known: Sequence[str] | None = None,
    missing: Missing = "error",
    most: int = 1 << 15,
    folder: str | Path | None = None,
    set_column: str = "set",
    use_rep: str | None = None,
    cofactor: float | None = None,
    compensate: bool | None = None,
    dataset: str | None = None,
    vectors: str | Path | None = None,
) -> SetTable | StoredSets:
    """Sets, read as they are asked for.

    | path | sets |
    |---|---|
    | .parquet, .csv, .tsv, .txt, all but the first also compressed | `SetTable` |
    | .h5ad, a zarr store, or a folder of 10x | `omniset.tables.cells.open_cells` |
    | .fcs, or a folder of them | `omniset.tables.fcs.open_fcs` |
    | .biom, or with `vectors` a table of counts | `omniset.tables.abundances.open_abundances` |
    | .h5, .hdf5, .npy, .npz, .pt, or a folder of them | `omniset.tables.folders.open_folder` |

    Args:
        features: Columns, or features, that are taken. Default: all that look like one.
        keep: Columns to hand out as they are: targets and groups.
        ignore: Columns, or features, that are left out.
        encoding: Of a model: its features are wanted, and no others.
        known: Columns that a model, whose `encoding` it is, may meet in a table besides its own. Default: any.
        missing: As for `Encoding`, of tables.
        most, folder: As for `SetTable`.
        set_column: The column that says which set a row, or a cell, is of. Other files have none.
        use_rep: As for `open_cells`.
        cofactor, compensate: As for `open_fcs`.
        dataset: As for `open_folder`.
        vectors: A table with a vector of each feature, or their sequences: `path` is a table of counts. See
            `open_abundances`.

    Raises:
        ImportError: A package that reads the format is not installed.
        OSError, ValueError: As the readers; naming the option: one that such files do not have.
    """
    path = Path(path)
    if not path.is_dir():
        require_file(path)
    kind, fitted = "counts" if vectors is not None else _kind_of(path), encoding is not None
    names = features if encoding is None else encoding.features
    given = {
        **{"set_column": set_column != "set", "features": features is not None, "ignore": bool(ignore)},
        **{"missing": missing != "error", "use_rep": use_rep is not None},
        **{"cofactor": cofactor is not None, "compensate": compensate is not None, "dataset": dataset is not None},
    }
    for name, said in given.items():
        if said and not fitted and name not in TAKES[kind]:
            raise ValueError(f"{path}: --{name} is for files of another kind")
    if kind == "cells":
        from omniset.tables.cells import open_cells  # here, and below: who reads a table waits for no SciPy

        return open_cells(path, set_column, use_rep, names, keep, ignore, folder, fitted)
    if kind != "table" and keep:
        raise ValueError(f"{path}: has no column {keep[0]!r}: give a file of labels, --target")
    if kind == "counts":
        if vectors is None:
            raise ValueError(
                f"{path}: has counts of features, of which --vectors must be given: a table with numbers, or FASTA"
            )
        from omniset.tables.abundances import open_abundances

        return open_abundances(path, Path(vectors), names, ignore if encoding is None else ())
    if kind == "fcs":
        return open_fcs(path, names, ignore, cofactor, compensate, fitted)
    if kind == "folder":
        opened = open_folder(path, None if encoding is None else len(encoding.features), dataset)
        if encoding is not None and encoding.features != opened.features:
            wanted = listed(encoding.features)
            raise ValueError(f"{path}: its features have no names, those of the model are {wanted}")
        return opened
    if not path.suffix and not path.exists():  # a folder, meant to be one of features
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        kind_of(path, READ)
    except ValueError as error:
        others = ".txt, .h5ad, .fcs, .h5, .npy, .npz and .pt files, and folders of the last five"
        raise ValueError(f"{error}; sets are also read from {others}") from None
    table = TableFile(path)
    if encoding is not None and known is not None:
        table.require([set_column, *encoding.names])
        used = {set_column, *RESERVED[1:], *encoding.names, *known, *keep}
        extra = [c for c in table.columns if c not in used]
        if extra:
            what = "that the model was not fitted with: it knows the features"
            raise table.error(None, f"has a column {extra[0]!r} {what} {encoding.names}")
    return SetTable(path, features, keep, most, folder, ignore, set_column, encoding, missing)


def _kind_of(path: Path) -> str:
    ending = path.suffix.lower()
    if ending in (".h5ad", ".zarr") or any(any(path.glob(files)) for files in ("*.mtx*", "*/*.mtx*")):  # of 10x
        return "cells"
    if ending == ".biom":
        return "counts"
    if not path.is_dir() or ending in (".parquet", *READ):
        return "fcs" if ending == ENDING else "folder" if ending in SETS else "table"
    visible = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    events = [name for name in visible if name.lower().endswith(ENDING)]
    others = [name for name in visible if name.lower().endswith(SETS)]
    if events and others:
        raise ValueError(f"{path}: has files of sets of several kinds, such as {events[0]} and {others[0]}")
    return "fcs" if events else "folder"
