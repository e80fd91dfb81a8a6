"""The forms in which users hold sets: lists of arrays, and long tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from omniset.core.features import RESERVED, RowNumbers, doubt

if TYPE_CHECKING:
    import pandas as pd

    from omniset.core.encoding import Encoding, Missing

# Sets of a list differ in their sizes: an axis named _ may be another one in each.
Ragged = tuple[list[Shaped[Tensor, "_ dim"]], list[Shaped[Tensor, " _"]]]


@dataclass
class LongRows:
    """Rows of all sets, one set after the other; fields are the arguments of `omniset.Sets.from_rows`."""

    elements: Any
    multiplicity: Shaped[Tensor, " total"] | None
    offsets: Int[np.ndarray, " bounds"]
    names: Any
    features: list[str]
    order: Int[np.ndarray, " total"]
    identifiers: Any
    encoding: Encoding | None = None


def ragged(sets: Sequence[Any], multiplicities: Sequence[Any] | None, dim: int | None) -> Ragged:
    """Sets of N_i x D features, and their multiplicities, as tensors of one dtype each. See `SetBatch.from_ragged`."""
    if not len(sets):
        raise ValueError("sets is empty: at least one set is needed")
    elements = [_tensor(s) for s in sets]
    flat = [number for number, e in enumerate(elements) if e.dim() != 2 and e.numel()]
    if flat:
        raise ValueError(f"set {flat[0]} must be (N, D), got shape {tuple(elements[flat[0]].shape)}")
    dims = [dim] if dim is not None else [e.shape[1] for e in elements if e.dim() == 2]
    if not dims:
        raise ValueError("no set is an (N, D) array, so D is unknown: pass dim=")
    for number, e in enumerate(elements):
        if e.numel() == 0 and e.dim() < 2:  # an empty list has no second axis
            elements[number] = torch.empty(0, dims[0])
        elif e.dim() != 2 or e.shape[1] != dims[0]:
            raise ValueError(f"set {number} must be (N, {dims[0]}), got shape {tuple(e.shape)}")
    # Empty sets bring no dtype of their own.
    filled = [e.dtype for e in elements if len(e)] or [torch.get_default_dtype()]
    dtype = reduce(torch.promote_types, filled)
    elements = [e.to(dtype) for e in elements]
    if multiplicities is None:
        return elements, [torch.ones(len(e), dtype=real(dtype), device=e.device) for e in elements]
    if len(multiplicities) != len(elements):
        raise ValueError(f"multiplicities has {len(multiplicities)} entries for {len(elements)} sets")
    counts = [_tensor(m).to(e.device) for m, e in zip(multiplicities, elements, strict=True)]
    for number, (m, e) in enumerate(zip(counts, elements, strict=True)):
        if m.shape != e.shape[:1]:
            raise ValueError(f"multiplicities[{number}] must have length {len(e)}, got shape {tuple(m.shape)}")
    kind = reduce(torch.promote_types, [m.dtype for m in counts if len(m)] or [real(dtype)])
    return elements, [m.to(kind) for m in counts]


def read_table(
    table: pd.DataFrame,
    set_column: str,
    chosen: Sequence[str] | None,
    encoding: Encoding | None,
    missing: Missing,
    dtype: torch.dtype,
) -> LongRows:
    """See `omniset.Sets.from_pandas`."""
    from omniset.core.encoding import Encoding, FrameRows, multiplicities

    if not (hasattr(table, "shape") and hasattr(table, "columns")):
        raise ValueError(f"table must be a DataFrame of pandas or Polars, got {type(table).__name__}")
    frame: Any = table
    table = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    columns = {str(c): c for c in table.columns}
    if len(columns) < table.shape[1]:
        again = table.columns.astype(str).duplicated()
        raise ValueError(f"column {str(table.columns[again][0])!r} is there twice")
    if str(set_column) not in columns:
        hint = ": Sets.from_pandas(table, set_column=...) names another" if set_column == "set" else ""
        raise ValueError(f"the table needs a column {set_column!r}, it has {[*columns]}{hint}")
    if not len(table):
        raise ValueError("the table has no rows")
    chosen = chosen if encoding is None else encoding.names
    wanted = _feature_columns(columns, str(set_column), chosen)
    counted = ["multiplicity"] if "multiplicity" in columns else []
    rows = FrameRows(table, {name: columns[name] for name in (*wanted, *counted)})
    if encoding is None:
        encoding = Encoding.fit(wanted, lambda _: [rows], missing)
    numpy: dict[torch.dtype, type[np.floating]] = {torch.float64: np.float64, torch.float16: np.float16}
    narrow = numpy.get(dtype, np.float32)
    values = encoding.apply(rows, narrow)
    counts = multiplicities(rows, narrow) if counted else None
    codes, names = table[columns[str(set_column)]].factorize()
    if codes.min() < 0:
        raise ValueError(f"column {set_column!r} is missing in row {int(codes.argmin())}")
    order, offsets = np.argsort(codes, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes))])
    if chosen is None:
        places = np.empty(len(table), dtype=np.int64)
        places[order] = np.arange(len(table)) - np.repeat(offsets[:-1], np.diff(offsets))
        numbered = RowNumbers(encoding.features)
        numbered.see(values, places)
        _refuse(*(numbered.doubt() or ("", None)))
    return LongRows(
        torch.as_tensor(values[order]).to(dtype),
        None if counts is None else torch.as_tensor(counts[order]).to(dtype),
        offsets,
        names,
        encoding.features,
        order,
        table[columns["element"]].to_numpy()[order] if "element" in columns else None,
        encoding,
    )


def _feature_columns(columns: dict[str, Any], set_column: str, chosen: Sequence[str] | None) -> list[str]:
    meaning = (set_column, *RESERVED[1:])
    wanted = [c for c in columns if c not in meaning] if chosen is None else [str(c) for c in chosen]
    if not wanted:
        raise ValueError(f"the table has no feature columns beside {set_column!r}, 'multiplicity' and 'element'")
    for name in wanted:
        if name not in columns:
            raise ValueError(f"the table has no column {name!r}, it has {[*columns]}")
        if name in meaning:
            raise ValueError(f"features must not name {name!r}, which says what the rows are")
        if wanted.count(name) > 1:
            raise ValueError(f"features must not name one twice: {name!r}")
        _refuse(name, doubt(name) if chosen is None else None)
    return wanted


def _tensor(values: Any) -> Tensor:
    # pandas hands out arrays that must not be written to, and PyTorch warns of those.
    return torch.as_tensor(values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values)


def real(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _refuse(column: Any, why: str | None) -> None:
    if why is not None:
        remedy = "drop it, or name the features: Sets.from_pandas(table, features=[...])"
        raise ValueError(f"column {column!r} would be a feature, but {why}; {remedy}")
