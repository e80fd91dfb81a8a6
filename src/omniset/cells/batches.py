"""Which batch and which type each cell is of, and which columns may well hold batches that nobody has named."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from omniset.cells.data import Cells
from omniset.cells.neighbours import unlabelled

NONE, FILE = "none", "file"  # no batches; each source is one
UNKNOWN = "unknown"  # no type
NUMBERS = 20  # so many different ones are labels of types, perhaps
ALL = "all"  # the only batch, where there are none
# Names of columns that often hold batches, in small letters and without what is between the words.
BATCHES = re.compile(
    "(batch|sample|donor|patient|subject|individual|library|run|plate|dataset|experiment)(es|s|id|name)?|ind|origident|"
    "lane|replicate|study|channel|pool|chip|chemistry|technology|tech|protocol|platform|assay|method"
)


def batch_codes(
    cells: Cells, batch_key: str | None, label_key: str | None = None
) -> tuple[Int[np.ndarray, " cells"], list[str]]:
    """Number of each cell's batch, and the batches' names.

    Args:
        batch_key: A column of obs, or else "file" or "none" (see `CellEmbedder.fit`). None: as "file", but a column of
            obs that is called `batch` is asked about, and others that may well hold batches are named in a warning.
        label_key: A column that holds none.

    Raises:
        ValueError: No such column, a cell without a batch, or a column `batch` and no word about it.
    """
    if batch_key is None:
        likely = batch_columns(cells, label_key)
        batch_names = [name for name in likely if name.strip().casefold() == "batch"]
        likely = {name: likely[name] for name in dict.fromkeys([*batch_names, *likely])}
        columns = ", ".join(f"{name!r} ({number:,} values)" for name, number in likely.items())
        if batch_names:
            raise ValueError(
                f"which batches are there? No batch_key is given, and obs has {columns}: say "
                f"batch_key={batch_names[0]!r} (--batch_key {batch_names[0]}) if that column has them, or "
                f"batch_key={NONE!r} (--batch_key {NONE}) if all cells are one batch"
                + (f", or batch_key={FILE!r} if each file is a batch" if len(cells.sources) > 1 else "")
            )
        if likely:
            warnings.warn(
                f"no batch_key is given, and obs has {columns}: batches in there are not mixed; name the column that "
                f"has them, or say batch_key={NONE!r} if there is nothing to mix",
                stacklevel=3,
            )
    if batch_key not in cells.obs:
        if batch_key == NONE:
            return np.zeros(len(cells), dtype=np.int64), [ALL]
        if batch_key in (None, FILE):
            return cells.source_of.astype(np.int64), [source.name for source in cells.sources]
        columns = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"batch_key must be a column of obs, there is no {batch_key!r}; there are: {columns}")
    values = cells.obs[batch_key]
    lacking = unlabelled(values)
    if lacking.any():
        raise ValueError(f"batch_key: cell {cells.names[lacking.argmax()]!r} has no {batch_key}")
    codes, names = pd.factorize(values.astype(str), sort=True)
    return codes.astype(np.int64), names.astype(str).tolist()


def batch_columns(cells: Cells, label_key: str | None = None) -> dict[str, int]:
    """Columns of obs that by their names and values may well hold batches, and how many: from 2 to half the cells.

    One whose values differ between sources only says no more than these.
    """
    columns = {}
    for name in cells.obs.columns:
        plain = re.sub(r"[\W_]+", "", str(name)).casefold()
        if name == label_key or not BATCHES.fullmatch(plain):
            continue
        values = cells.obs[name]
        number = int(values.nunique())
        within = values.groupby(cells.source_of, sort=False).nunique().max()
        if 2 <= number <= len(cells) / 2 and within > 1:
            columns[str(name)] = number
    return columns


def labels_of(cells: Cells, label: str) -> Shaped[np.ndarray, " cells"]:
    """The types as text, None where missing.

    Raises:
        ValueError: No such column.
    """
    if label not in cells.obs:
        columns = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"label must be a column of obs, there is no {label!r}; there are: {columns}")
    values = cells.obs[label]
    labels = np.array(values.astype(str), dtype=object)
    labels[unlabelled(values)] = None
    _warn_of_odd(values, label)
    if (labels == UNKNOWN).any():
        warnings.warn(f"cells whose {label} is {UNKNOWN!r} are taken for unlabelled", stacklevel=3)
        labels[labels == UNKNOWN] = None
    return labels


def _warn_of_odd(values: pd.Series, label: str) -> None:
    """Labels that are hardly types: measured numbers, and spellings of one name."""
    known = values[~unlabelled(values)]
    if pd.api.types.is_float_dtype(known.dtype) and known.nunique() > NUMBERS:
        warnings.warn(
            f"{label} has {known.nunique():,} different numbers, such as {known.iloc[0]:g}: each is taken for a type",
            stacklevel=4,
        )
    names = pd.Series(pd.unique(known.astype(str)))
    spelled = names.groupby(names.str.split().str.join(" ").str.casefold()).agg(list)
    for alike in [some for some in spelled if len(some) > 1]:
        warnings.warn(
            f"{label} has {' and '.join(map(repr, alike))}, which differ by spaces or by case: they are taken for "
            f"{len(alike)} types",
            stacklevel=4,
        )
