"""The forms in which users hold sets: lists of arrays, long tables, AnnData."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from omniset.core.features import RESERVED, RowNumbers, doubt

if TYPE_CHECKING:
    import pandas as pd

    from omniset.core.encoding import Encoding, Missing

# Sets of a list differ in their sizes: an axis named _ may be another one in each.
Ragged = tuple[list[Shaped[Tensor, "_ dim"]], list[Shaped[Tensor, " _"]]]

STEP = 1 << 16  # rows of a matrix that are checked at a time


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


class MatrixRows:
    """Rows of a matrix in an order of their own, dense once they are read.

    Args:
        matrix: (rows, dim) numbers: an array, a SciPy sparse matrix, or what AnnData shows of a file.
        order: Of the rows.
        dtype: Of the tensors that are read.
    """

    def __init__(self, matrix: Any, order: Int[np.ndarray, " total"], dtype: torch.dtype) -> None:
        self._matrix, self._order, self.dtype = matrix, order, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._order), int(self._matrix.shape[1]))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, rows: slice) -> Float[Tensor, "rows dim"]:
        wanted = self._order[rows]
        if not len(wanted):
            return torch.zeros(0, self.shape[1], dtype=self.dtype)
        # Files are read from top to bottom only.
        ascending, places = np.unique(wanted, return_inverse=True)
        together = ascending[-1] - ascending[0] + 1 == len(ascending)
        block = self._matrix[int(ascending[0]) : int(ascending[-1]) + 1] if together else self._matrix[ascending]
        return _dense(block)[places].to(self.dtype)


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
        raise ValueError(f"the table needs a column {set_column!r}, it has {[*columns]}")
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
    order, offsets = _by_set(codes)
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


def frames_of(sets: Any) -> dict[Any, pd.DataFrame] | None:
    """DataFrames of pandas or Polars, a set each, by name: of a list their numbers, or of a dict, or of a group-by,
    whose columns they are then without. None: `sets` is none of these.
    """
    named = (
        [*sets.items()] if isinstance(sets, Mapping) else [*enumerate(sets)] if isinstance(sets, list | tuple) else []
    )
    if grouped := type(sets).__name__.endswith("GroupBy"):
        named = [*sets]
    if not named or not all(hasattr(frame, "columns") and hasattr(frame, "shape") for _, frame in named):
        return None
    frames = {}
    for name, one in named:
        keys = name if isinstance(name, tuple) else (name,)
        frame: pd.DataFrame = one.to_pandas() if hasattr(one, "to_pandas") else one
        by = [c for c in frame.columns if grouped and any((frame[c] == key).all() for key in keys)]
        frames[keys[0] if len(keys) == 1 else "/".join(map(str, keys))] = frame.drop(columns=by)
    shared = set.intersection(*(set(frame.columns) for frame in frames.values()))
    return {name: frame[[c for c in frame.columns if not grouped or c in shared]] for name, frame in frames.items()}


def read_frames(frames: dict[Any, pd.DataFrame], **how: Any) -> LongRows:
    """As `read_table`, which takes the arguments too, of a frame a set; some may be empty.

    Raises:
        ValueError: As it; one has other columns than the first.
    """
    import pandas as pd

    first = next(iter(frames.values()))
    for name, frame in frames.items():
        if {*frame.columns} != {*first.columns}:
            other = sorted(map(str, {*frame.columns} ^ {*first.columns}))[0]
            raise ValueError(f"set {name!r} differs from the first in column {other!r}: all need the same columns")
    table = pd.concat([f[first.columns].assign(set=n) for n, f in enumerate(frames.values())], ignore_index=True)
    rows = read_table(table, "set", **how)
    rows.offsets = np.cumsum([0, *map(len, frames.values())])
    rows.names = [*frames]
    return rows


def read_anndata(adata: Any, set_column: str, use_rep: str | None, layer: str | None, dtype: torch.dtype) -> LongRows:
    """See `omniset.Sets.from_anndata`."""
    if not all(hasattr(adata, name) for name in ("obs", "obsm", "obs_names", "var_names", "layers")):
        raise ValueError(f"adata must be an AnnData, got {type(adata).__name__}")
    if set_column not in adata.obs:
        raise ValueError(f"adata.obs has no column {set_column!r}, it has {[*adata.obs.columns]}")
    if not adata.n_obs:
        raise ValueError("adata has no cells")
    codes, names = adata.obs[set_column].factorize()
    if codes.min() < 0:
        raise ValueError(f"adata.obs[{set_column!r}] is missing for cell {adata.obs_names[int(codes.argmin())]!r}")
    where, matrix, features = _representation(adata, use_rep, layer)
    if matrix.dtype.kind not in "biuf":
        raise ValueError(f"{where} must be numbers, it is {matrix.dtype}")
    if getattr(matrix, "format", "csr") != "csr":  # rows of other forms cannot be read one by one
        matrix = (matrix.to_memory() if hasattr(matrix, "to_memory") else matrix).tocsr()
    for start in range(0, len(adata.obs), STEP):
        _check_block(matrix[start : start + STEP], where, dtype, features, adata.obs_names[start : start + STEP])
    order, offsets = _by_set(codes)
    identifiers = adata.obs_names.to_numpy()[order]
    return LongRows(MatrixRows(matrix, order, dtype), None, offsets, names, features, order, identifiers)


def _representation(adata: Any, use_rep: str | None, layer: str | None) -> tuple[str, Any, list[str]]:
    """What a matrix of cells is called, the matrix, and the names of its columns."""
    if use_rep not in (None, "X"):
        if use_rep not in adata.obsm:
            raise ValueError(f"use_rep must be None, 'X' or one of {[*adata.obsm.keys()]}, got {use_rep!r}")
        if layer is not None:
            raise ValueError(f"layer={layer!r} is one of X, and use_rep={use_rep!r} asks for another representation")
        matrix = adata.obsm[use_rep]
        if hasattr(matrix, "columns"):
            return f"adata.obsm[{use_rep!r}]", matrix.to_numpy(), [str(c) for c in matrix.columns]
        return f"adata.obsm[{use_rep!r}]", matrix, [f"{use_rep}_{i}" for i in range(1, matrix.shape[1] + 1)]
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"layer must be None or one of {[*adata.layers.keys()]}, got {layer!r}")
    where, matrix = ("adata.X", adata.X) if layer is None else (f"adata.layers[{layer!r}]", adata.layers[layer])
    if matrix is None:
        raise ValueError("adata.X is not there: name a layer, or a representation by use_rep")
    return where, matrix, [str(name) for name in adata.var_names]


def _by_set(codes: Int[np.ndarray, " rows"]) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " bounds"]]:
    """Rows in the order of their sets, and where each set begins and ends among them."""
    return np.argsort(codes, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes))])


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


def _check_block(block: Any, where: str, dtype: torch.dtype, features: list[str], names: Any) -> None:
    # What a sparse matrix does not store is 0.
    values = _dense(block.data if hasattr(block, "toarray") else block)
    if bool(values.to(dtype).isfinite().all()):
        return
    values = _dense(block)
    row, column = (~values.to(dtype).isfinite()).nonzero()[0].tolist()
    value = values[row, column]
    place = f"cell {names[row]!r}, {features[column]!r}"
    as_dtype = f" as {dtype}" if bool(value.isfinite()) else ""
    raise ValueError(f"{where}: {place} is {value.item()}, must be finite{as_dtype}")


def _dense(block: Any) -> Shaped[Tensor, "..."]:
    values = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
    return torch.from_numpy(np.array(values, dtype=np.result_type(values.dtype, np.float32)))  # a copy


def _tensor(values: Any) -> Tensor:
    # pandas hands out arrays that must not be written to, and PyTorch warns of those.
    return torch.as_tensor(values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values)


def real(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _refuse(column: Any, why: str | None) -> None:
    if why is not None:
        remedy = "drop it, or name the features: Sets.from_pandas(table, features=[...])"
        raise ValueError(f"column {column!r} would be a feature, but {why}; {remedy}")
