"""Sets as tensors: elements and how often each of them occurs.

A batch of sets is two tensors, `elements` (sets, elements, dim) and `multiplicity` (sets, elements). A multiplicity of
0 means "not there": padding, masks, duplicates and weights are all the same vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from omniset.core.disk import DiskRows
from omniset.core.encoding import Encoding, FrameRows, Missing
from omniset.core.features import RESERVED, RowNumbers, doubt

if TYPE_CHECKING:
    import pandas as pd

Array = Tensor | np.ndarray
# Sets of a list differ in their sizes: an axis named _ may be another one in each.
Ragged = tuple[list[Shaped[Tensor, "_ dim"]], list[Shaped[Tensor, " _"]]]


class SetBatch:
    """A batch of B sets (or multisets), padded to a common length N.

    Args:
        elements: (B, N, D) features, any real dtype.
        multiplicity: (B, N) how often each element occurs, or its weight: bool, integer or fractional, finite and
            >= 0. 0 marks an absent entry. Default: every element once.
        validate: Check the values. Entries that are absent are then set to 0, so that nothing written in padding,
            not even NaN, can reach a result.

    Raises:
        ValueError: A wrong shape; a negative, NaN or infinite multiplicity; a NaN or infinite feature of a present
            element. The first offending position is named.

    >>> batch = SetBatch.from_ragged([[[1.0], [2.0]], [[3.0]]], multiplicities=[[1, 2], [5]])
    >>> batch
    SetBatch(sets=2, elements=2, dim=1)
    >>> batch.multiplicity
    tensor([[1, 2],
            [5, 0]])
    """

    elements: Shaped[Tensor, "sets elements dim"]
    multiplicity: Shaped[Tensor, "sets elements"]

    def __init__(self, elements: Array, multiplicity: Array | None = None, *, validate: bool = True) -> None:
        elements = torch.as_tensor(elements)
        if elements.dim() != 3:
            raise ValueError(f"elements must be (sets, elements, dim), got shape {tuple(elements.shape)}")
        if multiplicity is None:
            multiplicity = torch.ones(elements.shape[:2], dtype=_real(elements.dtype), device=elements.device)
        multiplicity = torch.as_tensor(multiplicity, device=elements.device)
        if multiplicity.shape != elements.shape[:2]:
            raise ValueError(
                f"multiplicity must have shape {tuple(elements.shape[:2])} as elements {tuple(elements.shape)} do, "
                f"got {tuple(multiplicity.shape)}"
            )
        if validate:
            check_multiplicity(multiplicity)
            present = multiplicity > 0
            if not bool(present.all()):
                elements = torch.where(present[..., None], elements, elements.new_zeros(()))
            _check_finite(elements)
        self.elements = elements
        self.multiplicity = multiplicity

    @classmethod
    def from_ragged(
        cls, sets: Sequence[Any], multiplicities: Sequence[Any] | None = None, *, dim: int | None = None
    ) -> SetBatch:
        """Pad B sets of N_i x D features (arrays, tensors or nested lists) into one batch.

        Args:
            sets: B arrays of shape (N_i, D); N_i = 0 is allowed.
            multiplicities: B arrays of length N_i.
            dim: D, needed only when it cannot be seen because every set is an empty list.
        """
        elements, counts = _ragged(sets, multiplicities, dim)
        return cls(
            torch.nn.utils.rnn.pad_sequence(elements, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(counts, batch_first=True),
        )

    def to_ragged(self) -> Ragged:
        """The present elements of each set and their multiplicities: two lists of B tensors, (N_i, D) and (N_i,)."""
        present = self.multiplicity > 0
        pairs = [(e[p], m[p]) for e, m, p in zip(self.elements, self.multiplicity, present, strict=True)]
        return [e for e, _ in pairs], [m for _, m in pairs]

    def shards(self, size: int) -> list[SetBatch]:
        """Cut the sets, in order, into shards of at most `size` entries. Views, no copies; at least one shard."""
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"shard size must be an integer >= 1, got {size!r}")
        starts = range(0, max(self.elements.shape[1], 1), size)
        return [
            SetBatch(self.elements[:, s : s + size], self.multiplicity[:, s : s + size], validate=False) for s in starts
        ]

    def to(self, *args: Any, **kwargs: Any) -> SetBatch:
        """Move to a device; a dtype converts the elements only (multiplicities keep theirs)."""
        elements = self.elements.to(*args, **kwargs)
        return SetBatch(elements, self.multiplicity.to(elements.device), validate=False)

    def __getitem__(self, index: Any) -> SetBatch:
        """Some of the sets, as a batch: a slice, a mask or a list of positions."""
        return SetBatch(self.elements[index], self.multiplicity[index], validate=False)

    def __len__(self) -> int:
        return self.elements.shape[0]

    def __repr__(self) -> str:
        sets, elements, dim = self.elements.shape
        return f"SetBatch(sets={sets}, elements={elements}, dim={dim})"


@dataclass
class SetCollection:
    """Many sets of very different sizes, end to end and without padding: what data sets are kept as.

    Attributes:
        elements: (total, D), all sets' elements one after the other.
        multiplicity: (total,).
        offsets: (sets + 1,), set i is rows offsets[i] to offsets[i + 1].
        names: One identifier per set.
        features: Column names of D, where they are known.
        order: (total,) the row of the table that each element came from, where they came from a table in memory.
        identifiers: (total,) the table's column `element`, if it has one.
        encoding: How the columns of a table became the features, where they came from one.

    Elements and multiplicities are tensors, or wait on disk.
    """

    elements: Shaped[Tensor, "total dim"] | DiskRows
    multiplicity: Shaped[Tensor, " total"] | DiskRows
    offsets: Shaped[np.ndarray, " bounds"]
    names: list[Any]
    features: list[str] | None = None
    order: Shaped[np.ndarray, " total"] | None = None
    identifiers: Any = None
    encoding: Encoding | None = None

    @classmethod
    def of(
        cls,
        sets: SetBatch | SetCollection | pd.DataFrame | Sequence[Any],
        dtype: torch.dtype,
        features: Sequence[str] | None = None,
        encoding: Encoding | None = None,
        missing: Missing = "error",
    ) -> SetCollection:
        """Read any of the forms in which a user holds sets.

        Args:
            sets: A SetBatch; a list of N_i x D arrays; or a long table with a column `set`, optional columns
                `multiplicity` and `element` (an identifier, not used), and columns of numbers or text that are the
                features (`omniset.core.encoding.Encoding`). The sets of a table come in the order in which they first
                appear.
            dtype: Of the elements.
            features: Columns of a table that are features. Default: all others; none of them may look like a row index
                or a misspelt name of the three.
            encoding: That of another table, whose features are wanted. Default: learned of this one.
            missing: Whether a missing value in a table is an "error" or marked by an "indicator", where the encoding is
                learned.
        """
        if isinstance(sets, SetCollection):
            return sets
        if isinstance(sets, SetBatch):
            return cls._join(*sets.to_ragged(), dtype=dtype)
        if hasattr(sets, "columns"):
            return cls._from_table(sets, dtype, features, encoding, missing)
        return cls._join(*_ragged(sets, None, None), dtype=dtype)

    @classmethod
    def _join(cls, elements: list[Tensor], counts: list[Tensor], dtype: torch.dtype) -> SetCollection:
        for number, (e, m) in enumerate(zip(elements, counts, strict=True)):
            check_multiplicity(m, f"set {number}: multiplicity")
            _check_finite(e, f"set {number}: elements")
        offsets = np.cumsum([0, *(len(e) for e in elements)])
        names = list(range(len(elements)))
        return cls(torch.cat(elements).to(dtype), torch.cat([m.to(dtype) for m in counts]), offsets, names)

    @classmethod
    def _from_table(
        cls, table: Any, dtype: torch.dtype, chosen: Sequence[str] | None, encoding: Encoding | None, missing: Missing
    ) -> SetCollection:
        columns = {str(c): c for c in table.columns}
        if len(columns) < table.shape[1]:
            again = table.columns.astype(str).duplicated()
            raise ValueError(f"column {str(table.columns[again][0])!r} is there twice")
        if "set" not in table.columns:
            raise ValueError(f"the table needs a column 'set', it has {[str(c) for c in table.columns]}")
        if not len(table):
            raise ValueError("the table has no rows")
        if table["set"].isna().any():
            raise ValueError(f"column 'set' is missing in row {int(table['set'].isna().to_numpy().argmax())}")
        chosen = chosen if encoding is None else encoding.names
        wanted = [c for c in columns if c not in RESERVED] if chosen is None else list(chosen)
        if not wanted:
            raise ValueError("the table has no feature columns beside 'set', 'multiplicity' and 'element'")
        for column in wanted:
            if column not in columns:
                raise ValueError(f"the table has no column {column!r}, it has {[*columns]}")
            _refuse(column, doubt(column) if chosen is None else None)
        counted = ["multiplicity"] if "multiplicity" in table.columns else []
        rows = FrameRows(table, {name: columns[name] for name in (*wanted, *counted)})
        encoding = encoding or Encoding.fit(wanted, lambda _: [rows], missing)
        values = encoding.apply(rows, np.float64 if dtype == torch.float64 else np.float32)
        multiplicity = rows.numbers("multiplicity", 0.0) if counted else np.ones(len(table))
        codes, names = table["set"].factorize()
        order = np.argsort(codes, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(codes))])
        if chosen is None:
            places = np.empty(len(table), dtype=np.int64)
            places[order] = np.arange(len(table)) - np.repeat(offsets[:-1], np.diff(offsets))
            numbered = RowNumbers(encoding.features)
            numbered.see(values, places)
            _refuse(*(numbered.doubt() or ("", None)))
        elements = torch.as_tensor(values[order]).to(dtype)
        counts = torch.as_tensor(multiplicity[order]).to(dtype)
        identifiers = table["element"].to_numpy()[order] if "element" in table.columns else None
        return cls(elements, counts, offsets, list(names), encoding.features, order, identifiers, encoding)

    @property
    def dim(self) -> int:
        return self.elements.shape[1]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Shaped[np.ndarray, " sets"]:
        return np.diff(self.offsets)

    def __getitem__(self, i: int) -> StoredSet:
        if not 0 <= i < len(self):
            raise IndexError(f"set {i} of {len(self)}")
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        return StoredSet(self.elements, self.multiplicity, start, stop, self.names[i], self.identifiers)


@dataclass
class StoredSet:
    """Rows start to stop of a collection: one set, read when it is asked for.

    Attributes:
        columns: Further columns of the table that it is from, where they were asked for.
    """

    elements: Shaped[Tensor, "total dim"] | DiskRows
    multiplicity: Shaped[Tensor, " total"] | DiskRows
    start: int
    stop: int
    name: Any = None
    identifiers: Any = None
    columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.stop - self.start

    def names_of_elements(self, start: int = 0, size: int | None = None) -> Shaped[np.ndarray, " elements"]:
        """Their identifiers, or, without any, their numbers in the set, from 1."""
        stop = len(self) if size is None else min(start + size, len(self))
        if self.identifiers is None:
            return np.arange(start + 1, stop + 1)
        return np.asarray(self.identifiers[self.start + start : self.start + stop])

    def read(
        self, start: int = 0, size: int | None = None
    ) -> tuple[Shaped[Tensor, "elements dim"], Shaped[Tensor, " elements"]]:
        """Elements and multiplicity, from element `start`, at most `size` of them."""
        first = self.start + start
        rows = slice(first, self.stop if size is None else min(first + size, self.stop))
        return self.elements[rows], self.multiplicity[rows]


def batched(sets: Iterable[StoredSet], batch_size: int, max_elements: int) -> Iterator[list[StoredSet]]:
    """Sets in order, as many at a time as fit: at most `batch_size`, and at most `max_elements` entries when padded to
    one length. A larger set comes alone.
    """
    held: list[StoredSet] = []
    longest = 0
    for found in sets:
        longest = max(longest, len(found))
        if held and (len(held) == batch_size or longest * (len(held) + 1) > max_elements):
            yield held
            held, longest = [], len(found)
        held.append(found)
    if held:
        yield held


def collate(sets: Iterable[tuple[Tensor, Tensor]]) -> SetBatch:
    """Pad (elements, multiplicity) pairs that have been checked already into one batch."""
    elements, counts = zip(*sets, strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    return SetBatch(pad(list(elements), batch_first=True), pad(list(counts), batch_first=True), validate=False)


def check_multiplicity(multiplicity: Shaped[Tensor, ...], name: str = "multiplicity") -> None:
    """Raise ValueError at the first multiplicity that is negative, NaN or infinite, and name its position."""
    if multiplicity.dtype == torch.bool:
        return
    bad = ~(multiplicity.isfinite() & (multiplicity >= 0))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(at)} is {multiplicity[at].item()}: multiplicities must be finite and >= 0")


def check_sizes(**sizes: int) -> None:
    """Raise ValueError for the first of these arguments that is not an integer >= 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {size!r}")


def _check_finite(elements: Tensor, name: str = "elements") -> None:
    bad = ~elements.isfinite()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(at)} is {elements[at].item()}: features must be finite")


def _refuse(column: Any, why: str | None) -> None:
    if why is not None:
        remedy = "drop it, or name the features: SetCollection.of(table, torch.float32, features=[...])"
        raise ValueError(f"column {column!r} would be a feature, but {why}; {remedy}")


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _tensor(values: Any) -> Tensor:
    # pandas hands out arrays that must not be written to, and PyTorch warns of those.
    return torch.as_tensor(values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values)


def _ragged(sets: Sequence[Any], multiplicities: Sequence[Any] | None, dim: int | None) -> Ragged:
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
    dtype = filled[0]
    for other in filled[1:]:
        dtype = torch.promote_types(dtype, other)
    elements = [e.to(dtype) for e in elements]
    if multiplicities is None:
        return elements, [torch.ones(len(e), dtype=_real(dtype), device=e.device) for e in elements]
    if len(multiplicities) != len(elements):
        raise ValueError(f"multiplicities has {len(multiplicities)} entries for {len(elements)} sets")
    counts = [_tensor(m).to(e.device) for m, e in zip(multiplicities, elements, strict=True)]
    for number, (m, e) in enumerate(zip(counts, elements, strict=True)):
        if m.shape != e.shape[:1]:
            raise ValueError(f"multiplicities[{number}] must have length {len(e)}, got shape {tuple(m.shape)}")
    kinds = [m.dtype for m in counts if len(m)] or [_real(dtype)]
    for kind in kinds[1:]:
        kinds[0] = torch.promote_types(kinds[0], kind)
    return elements, [m.to(kinds[0]) for m in counts]
