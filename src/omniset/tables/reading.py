"""Sets from wherever they are: the reader of a path is chosen by what the path is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omniset.core.encoding import Encoding, Missing
from omniset.core.features import RESERVED
from omniset.tables.cells import open_cells
from omniset.tables.files import TableFile, listed
from omniset.tables.folders import SETS, open_folder
from omniset.tables.sets import SetTable
from omniset.tables.stored import StoredSets

OPTIONS: dict[str, Any] = {
    "set_column": "set",
    "use_rep": None,
}  # how files are read, which a model remembers, and what is meant without


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
) -> SetTable | StoredSets:
    """Sets, read as they are asked for.

    | path | sets |
    |---|---|
    | .parquet, .csv, .tsv, the last two also compressed | `SetTable` |
    | .h5ad, or a zarr store | `omniset.tables.cells.open_cells` |
    | .h5, .hdf5, .npy, .pt, or a folder of them | `omniset.tables.folders.open_folder` |

    Args:
        features: Columns, or features, that are taken. Default: all that look like one.
        keep: Columns to hand out as they are: targets and groups.
        ignore: Columns, or features, that are left out.
        encoding: Of a model: its features are wanted, and no others.
        known: Columns that a model, whose `encoding` it is, may meet in a table besides its own. Default: any.
        missing: As for `Encoding`, of tables.
        most, folder: As for `SetTable`.
        set_column: The column that says which set a row, or a cell, is of.
        use_rep: As for `open_cells`.

    Raises:
        ImportError: A package that reads the format is not installed.
        OSError, ValueError: As the readers; naming the option: one that such files do not have.
    """
    path = Path(path)
    if path.suffix.lower() in (".h5ad", ".zarr"):
        _refuse(path, missing=missing != "error" and encoding is None)
        names = features if encoding is None else encoding.features
        return open_cells(path, set_column, use_rep, names, keep, ignore, folder, encoding is not None)
    if path.is_dir() or path.suffix.lower() in SETS:
        if encoding is None:
            _refuse(
                path,
                set_column=set_column != "set",
                features=features,
                ignore=ignore,
                missing=missing != "error",
                use_rep=use_rep,
            )
        _require(path, [], keep)
        names = None if encoding is None else encoding.features
        opened = open_folder(path, None if names is None else len(names))
        if names is not None and names != opened.features:
            raise ValueError(f"{path}: its features have no names, those of the model are {listed(names)}")
        return opened
    table = TableFile(path)
    if encoding is not None and known is not None:
        table.require([set_column, *encoding.names])
        extra = [c for c in table.columns if c not in (set_column, *RESERVED[1:], *encoding.names, *known, *keep)]
        if extra:
            what = "that the model was not fitted with: it knows the features"
            raise table.error(None, f"has a column {extra[0]!r} {what} {encoding.names}")
    return SetTable(path, features, keep, most, folder, ignore, set_column, encoding, missing)


def _refuse(path: Path, **given: Any) -> None:
    """Raise the ValueError of the first option that is given, and that such files do not have."""
    for name, value in given.items():
        if value:
            raise ValueError(f"{path}: --{name} is for files of another kind")


def _require(path: Path, columns: Sequence[str], keep: Sequence[str]) -> None:
    for name in keep:
        if name not in columns:
            there = f", it has {listed(list(columns))}" if columns else ": give a file of labels, --target"
            raise ValueError(f"{path}: has no column {name!r}{there}")
