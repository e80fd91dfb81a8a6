"""Sets: elements and how often each of them occurs.

A batch of sets (SetBatch) is two tensors, `elements` (sets, elements, dim) and `multiplicity` (sets, elements). A
multiplicity of 0 means "not there": padding, masks, duplicates and weights are all the same vector. A whole data set
(Sets) is not padded, and each set is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from omniset.core import forms
from omniset.core.checks import check_features, check_finite, check_multiplicity, check_places, check_sizes
from omniset.core.private import plain_only
from omniset.core.stored import Rows, Storage, StoredSet

if TYPE_CHECKING:
    import pandas as pd

    from omniset.core.encoding import Encoding, Missing

Array = Tensor | np.ndarray


@dataclass(frozen=True)
class Presence:
    """What multiplicities say, found out once for as long as nobody changes them."""

    lengths: Int[np.ndarray, " sets"]  # of each set the entries up to the last one that is present
    once: bool  # whether all entries of the padded sets are present, once each
    # Of the multiplicities when this was found out; None where PyTorch does not count changes.
    mark: tuple[int, int] | None

    @classmethod
    def of(cls, multiplicity: Shaped[Tensor, "sets elements"]) -> Presence:
        m = multiplicity.detach()
        places = torch.arange(1, m.shape[1] + 1, device=m.device)
        lengths = ((m > 0) * places).amax(1) if len(places) else m.new_zeros(len(m), dtype=torch.long)
        *each, once = torch.cat([lengths, (m == 1).all()[None].long()]).tolist()  # one wait for an accelerator
        return cls(np.array(each, dtype=np.int64), bool(once), _mark(multiplicity))


def _mark(multiplicity: Tensor) -> tuple[int, int] | None:
    return None if multiplicity.is_inference() else (id(multiplicity), multiplicity._version)


class SetBatch:
    """A batch of B sets (or multisets), padded to a common length N.

    Args:
        elements: (B, N, D) features, any real dtype.
        multiplicity: (B, N) how often each element occurs, or its weight: bool, integer or fractional, finite and
            >= 0. 0 marks an absent entry. Default: every element once.
        validate: Check the values. Entries that are absent are then set to 0, so that nothing written in padding,
            not even NaN, can reach a result.

    Raises:
        ValueError: A wrong shape; a negative, NaN or infinite multiplicity, or one that is 0 or infinite in the
            elements' dtype; a NaN or infinite feature of a present element. The first offending position is named.

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
            multiplicity = torch.ones(elements.shape[:2], dtype=forms.real(elements.dtype), device=elements.device)
        multiplicity = torch.as_tensor(multiplicity, device=elements.device)
        if multiplicity.shape != elements.shape[:2]:
            raise ValueError(
                f"multiplicity must have shape {tuple(elements.shape[:2])} as elements {tuple(elements.shape)} do, "
                f"got {tuple(multiplicity.shape)}"
            )
        if validate:
            present = multiplicity > 0
            looked_at = not plain_only()  # compilers, exporters and transforms let nobody look at values
            if looked_at:
                # What encoders compute in is float32, or the elements' own dtype where that is wider.
                check_multiplicity(multiplicity, dtype=torch.promote_types(forms.real(elements.dtype), torch.float32))
            if not looked_at or not bool(present.all()):
                elements = torch.where(present[..., None], elements, elements.new_zeros(()))
            if looked_at:
                check_finite(elements)
        self.elements = elements
        self.multiplicity = multiplicity
        self._presence: Presence | None = None

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
        elements, counts = forms.ragged(sets, multiplicities, dim)
        return cls(
            torch.nn.utils.rnn.pad_sequence(elements, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(counts, batch_first=True),
        )

    def to_ragged(self) -> forms.Ragged:
        """The present elements of each set and their multiplicities: two lists of B tensors, (N_i, D) and (N_i,)."""
        present = self.multiplicity > 0
        pairs = [(e[p], m[p]) for e, m, p in zip(self.elements, self.multiplicity, present, strict=True)]
        return [e for e, _ in pairs], [m for _, m in pairs]

    def shards(self, shard_size: int) -> list[SetBatch]:
        """Cut the sets, in order, into shards of at most so many entries. Views, no copies; at least one shard.

        Raises:
            ValueError: A shard_size below 1.
        """
        check_sizes(shard_size=shard_size)
        parts = [slice(s, s + shard_size) for s in range(0, max(self.elements.shape[1], 1), shard_size)]
        return [SetBatch(self.elements[:, part], self.multiplicity[:, part], validate=False) for part in parts]

    def to(self, *args: Any, **kwargs: Any) -> SetBatch:
        """Move to a device; a dtype converts the elements only (multiplicities keep theirs)."""
        elements = self.elements.to(*args, **kwargs)
        moved = SetBatch(elements, self.multiplicity.to(elements.device), validate=False)
        if self.elements.device.type == "cpu" and elements.device.type != "cpu":
            # Looked at there, an accelerator would have to be waited for.
            moved._presence = replace(self.presence, mark=_mark(moved.multiplicity))
        return moved

    @property
    def presence(self) -> Presence:
        """What is there, as far as it decides how the sets are computed."""
        mark = _mark(self.multiplicity)
        if self._presence is None or mark is None or mark != self._presence.mark:
            self._presence = Presence.of(self.multiplicity)
        return self._presence

    def __getitem__(self, index: Any) -> SetBatch:
        """Some of the sets, as a batch: a slice, a mask or a list of positions."""
        return SetBatch(self.elements[index], self.multiplicity[index], validate=False)

    def __len__(self) -> int:
        return self.elements.shape[0]

    def __repr__(self) -> str:
        sets, elements, dim = self.elements.shape
        return f"SetBatch(sets={sets}, elements={elements}, dim={dim})"


class Sets:
    """Many sets of very different sizes, without padding: what data sets are kept as, and what estimators read.

    A set is a reference: a storage, and the rows of it where the set begins and ends. `sets[3]` is one of the sets;
    `sets[1:5]`, `sets[mask]` and `sets[[4, 1, 1]]` are Sets of the same storages, and no row is read or copied for
    them. So whatever splits, shuffles or draws samples by scikit-learn's rules does it with Sets.

    Args:
        storages: What is in memory, on disk, or anywhere else (`Rows`), all of one D and one dtype.
        places: (sets, 3) of each set the number of its storage, its first row, and the row after its last. Default:
            each storage is one set.
        names: One per set. Default: their numbers, from 0.
        features: Names of the D features, where they are known.
        order: (total,) the row of a table that each element came from, where they came from one in memory. Labels and
            predictions of elements are then in the order of that table. Sets that were chosen from others have none.
        encoding: How the columns of a table became the features, where they came from one.

    Raises:
        ValueError: No storages, or of several D; a place outside its storage; names, features or order of a wrong
            length, or a feature twice.

    >>> sets = Sets.from_ragged([[[1.0], [2.0]], [[3.0]], [[4.0], [5.0]]], names=["a", "b", "c"])
    >>> sets
    Sets(sets=3, elements=5, dim=1)
    >>> sets[[2, 0]].names, sets[-1].read()[0].tolist()
    (['c', 'a'], [[4.0], [5.0]])
    """

    features: list[str] | None
    order: Int[np.ndarray, " total"] | None
    encoding: Encoding | None

    def __init__(
        self,
        storages: Sequence[Storage],
        places: Shaped[np.ndarray, "sets 3"] | None = None,
        names: Iterable[Any] | None = None,
        features: Sequence[str] | None = None,
        order: Int[np.ndarray, " total"] | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        if not len(storages):
            raise ValueError("storages is empty: at least one is needed")
        dims = [storage.elements.shape[1] for storage in storages]
        other = next((number for number, dim in enumerate(dims) if dim != dims[0]), None)
        if other is not None:
            raise ValueError(f"storage {other} must have {dims[0]} features as storage 0 has, got {dims[other]}")
        lengths = np.array([len(storage) for storage in storages])
        if places is None:
            places = np.stack([np.arange(len(storages)), np.zeros_like(lengths), lengths], 1)
        check_places(places, lengths)
        if features is not None:
            check_features(features, dims[0])
        self._storages, self._places = storages, places.astype(np.int64)
        self._names = _as_names(names, len(places))
        self.features, self.order = None if features is None else [*features], order
        self.encoding = encoding
        if order is not None and len(order) != self.offsets[-1]:
            raise ValueError(f"order must be of all {self.offsets[-1]} elements, got {len(order)}")

    # ------------------------------------------------------------------ from what users have

    @classmethod
    def of(
        cls,
        sets: SetBatch | Sets | pd.DataFrame | Sequence[Any],
        dtype: torch.dtype = torch.float32,
        features: Sequence[str] | None = None,
        encoding: Encoding | None = None,
        missing: Missing = "error",
    ) -> Sets:
        """Read any of the forms in which a user holds sets.

        Args:
            sets: Sets, which stay as they are; a SetBatch; a list of StoredSet or of N_i x D arrays; or a long table
                (see `from_pandas`).
            dtype: Of the elements.
            features, encoding, missing: See `from_pandas`.

        Raises:
            ValueError: Sets that cannot be used, or none.
        """
        if isinstance(sets, Sets):
            if not len(sets):
                raise ValueError("sets is empty: at least one set is needed")
            return sets
        if isinstance(sets, SetBatch):
            return cls._join(*sets.to_ragged(), dtype=dtype)
        if hasattr(sets, "columns"):
            table: Any = sets
            return cls.from_pandas(table, features=features, encoding=encoding, missing=missing, dtype=dtype)
        if len(sets) and all(isinstance(stored, StoredSet) for stored in sets):
            return cls.from_stored(sets, features)
        if isinstance(sets, Mapping) or hasattr(sets, "groups") or any(hasattr(one, "columns") for one in sets):
            remedy = "pd.concat({name: table, ...}, names=['set']).reset_index('set')"
            raise ValueError(f"sets must be one table with a column 'set', not a table for each: {remedy} makes it")
        return cls.from_ragged(sets, dtype=dtype)

    @classmethod
    def from_ragged(
        cls,
        sets: Sequence[Any],
        multiplicities: Sequence[Any] | None = None,
        names: Iterable[Any] | None = None,
        features: Sequence[str] | None = None,
        *,
        dim: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Sets:
        """Sets of N_i x D features: arrays, tensors or nested lists, which are copied.

        Args:
            sets, multiplicities, dim: As for `SetBatch.from_ragged`.
            names: One per set. Default: their numbers, from 0.
            features: Names of the D features.
            dtype: Of elements and multiplicities.

        Raises:
            ValueError: What a SetBatch refuses, naming the set; names or features of a wrong length.
        """
        return cls._join(*forms.ragged(sets, multiplicities, dim), names, features, dtype)

    @classmethod
    def from_pandas(
        cls,
        table: pd.DataFrame,
        set_column: str = "set",
        *,
        features: Sequence[str] | None = None,
        encoding: Encoding | None = None,
        missing: Missing = "error",
        dtype: torch.dtype = torch.float32,
    ) -> Sets:
        """Sets of a long table, a row per element, in the order in which they first appear.

        Args:
            table: Of pandas or Polars, with a column that names the set of each row, optional columns `multiplicity`
                and `element` (a name of the element, for predictions of elements), and columns of numbers or text that
                are the features (`omniset.core.encoding.Encoding`).
            set_column: The column that names the set.
            features: Columns that are features. Default: all others; none of them may look like a row index or a
                misspelt name of the three.
            encoding: That of another table, whose features are wanted. Default: learned of this one.
            missing: Whether a missing value is an "error" or marked by an "indicator", where the encoding is learned.
            dtype: Of elements and multiplicities.

        Raises:
            ValueError: A column that is missing, there twice, or hardly meant as a feature; no rows; a missing set; a
                feature that is no finite number, and what `Encoding` refuses; a multiplicity that is not finite and
                >= 0.
        """
        return cls.from_rows(**vars(forms.read_table(table, set_column, features, encoding, missing, dtype)))

    @classmethod
    def from_rows(
        cls,
        elements: Rows,
        multiplicity: Rows | None,
        offsets: Int[np.ndarray, " bounds"],
        names: Iterable[Any] | None = None,
        features: Sequence[str] | None = None,
        order: Int[np.ndarray, " total"] | None = None,
        identifiers: Any = None,
        encoding: Encoding | None = None,
    ) -> Sets:
        """Sets that wait end to end in one storage: set i is rows offsets[i] to offsets[i + 1].

        Raises:
            ValueError: As the class and its storages.
        """
        places = np.stack([np.zeros(len(offsets) - 1, dtype=np.int64), offsets[:-1], offsets[1:]], 1)
        return cls([Storage(elements, multiplicity, identifiers)], places, names, features, order, encoding)

    @classmethod
    def from_stored(
        cls, stored: Iterable[StoredSet], features: Sequence[str] | None = None, encoding: Encoding | None = None
    ) -> Sets:
        """Sets one by one, from wherever each of them is. Their `columns` are not kept.

        Raises:
            ValueError: No set; sets with different numbers of features.
        """
        storages: dict[tuple[int, int, int], int] = {}
        parts: list[Storage] = []
        places, names = [], []
        for one in stored:
            key = (id(one.elements), id(one.multiplicity), id(one.identifiers))
            if key not in storages:
                storages[key] = len(parts)
                parts.append(Storage(one.elements, one.multiplicity, one.identifiers))
            places.append((storages[key], one.start, one.stop))
            names.append(one.name)
        if not parts:
            raise ValueError("sets is empty: at least one set is needed")
        return cls(parts, np.array(places), names, features, encoding=encoding)

    @classmethod
    def _join(
        cls,
        elements: list[Tensor],
        counts: list[Tensor],
        names: Iterable[Any] | None = None,
        features: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Sets:
        for number, (e, m) in enumerate(zip(elements, counts, strict=True)):
            check_multiplicity(m, f"set {number}: multiplicity", dtype)
            check_finite(e, f"set {number}: elements", dtype)
        offsets = np.cumsum([0, *(len(e) for e in elements)])
        total = torch.cat(elements).to(dtype)
        return cls.from_rows(total, torch.cat([m.to(dtype) for m in counts]), offsets, names, features)

    # ------------------------------------------------------------------ what they are

    @cached_property
    def names(self) -> list[Any]:
        """One per set."""
        return list(self._names.tolist())

    @property
    def dim(self) -> int:
        return int(self._storages[0].elements.shape[1])

    @property
    def sizes(self) -> Int[np.ndarray, " sets"]:
        """Elements of each set."""
        return np.asarray(self._places[:, 2] - self._places[:, 1])

    @cached_property
    def offsets(self) -> Int[np.ndarray, " bounds"]:
        """(sets + 1,): with all elements set after set, those of set i are offsets[i] to offsets[i + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def shape(self) -> tuple[int]:
        """(sets,): by this scikit-learn knows that lists, arrays and masks choose from it."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[StoredSet]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> StoredSet: ...

    @overload
    def __getitem__(self, index: slice | Sequence[Any] | np.ndarray) -> Sets: ...

    def __getitem__(self, index: Any) -> StoredSet | Sets:
        """One set, or, by a slice, a mask or a list of numbers, several as Sets. Negative numbers count from the end.

        Raises:
            IndexError: A set that is not there.
            ValueError: A mask of another length; neither numbers nor a mask.
        """
        if isinstance(index, tuple) and len(index) == 2 and index[1] is Ellipsis:
            index = index[0]  # how scikit-learn asks
        chosen = _positions(index, len(self))
        if isinstance(chosen, np.ndarray):
            return self._subset(chosen)
        number, start, stop = self._places[chosen].tolist()
        name, storage = self._names[chosen], self._storages[number]
        name = name.item() if isinstance(name, np.generic) else name
        return StoredSet(storage.elements, storage.multiplicity, start, stop, name, storage.identifiers)

    def _subset(self, chosen: Int[np.ndarray, " chosen"]) -> Sets:
        subset = Sets.__new__(Sets)  # of what has been checked
        subset._storages, subset._places, subset._names = self._storages, self._places[chosen], self._names[chosen]
        subset.features, subset.order, subset.encoding = self.features, None, self.encoding
        return subset

    def blocks(self, rows: int) -> Iterator[tuple[Shaped[Tensor, "elements dim"], Shaped[Tensor, " elements"]]]:
        """All elements and multiplicities, set after set, in blocks of so many rows; the last one may be shorter."""
        pieces: list[tuple[Tensor, Tensor]] = []
        missing = rows
        for number, start, stop in self._stretches():
            storage = self._storages[number]
            while start < stop:
                part = slice(start, min(stop, start + missing))
                pieces.append((storage.elements[part], storage.multiplicity[part]))
                missing -= part.stop - start
                start = part.stop
                if not missing:
                    yield _joined(pieces)
                    pieces, missing = [], rows
        if pieces:
            yield _joined(pieces)

    def _stretches(self) -> list[list[int]]:
        """Places, where those of sets that follow each other in a storage are one."""
        places = self._places[self.sizes > 0]
        goes_on = (places[1:, 0] == places[:-1, 0]) & (places[1:, 1] == places[:-1, 2])
        first = np.flatnonzero(np.concatenate([[True], ~goes_on])) if len(places) else np.zeros(0, dtype=np.int64)
        last = np.concatenate([first[1:] - 1, [len(places) - 1]]) if len(places) else first
        return np.column_stack([places[first, :2], places[last, 2]]).tolist()

    def to_batch(self) -> SetBatch:
        """All of them, padded to one length, in memory. One set alone is not copied."""
        if not len(self):
            return SetBatch(torch.zeros(0, 0, self.dim))
        return collate(stored.read() for stored in self)

    def __repr__(self) -> str:
        return f"Sets(sets={len(self)}, elements={self.offsets[-1]}, dim={self.dim})"


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
    """Pad (elements, multiplicity) pairs that have been checked already into one batch.

    One set alone is not copied: a batch is not to be written to.
    """
    elements, counts = zip(*sets, strict=True)
    if len(elements) == 1:
        return SetBatch(elements[0][None], counts[0][None], validate=False)
    pad = torch.nn.utils.rnn.pad_sequence
    return SetBatch(pad(list(elements), batch_first=True), pad(list(counts), batch_first=True), validate=False)


def cut(x: Shaped[Tensor, "sets entries *more"], size: int) -> Shaped[Tensor, "sets segments size *more"]:
    """Segments of `size` entries, one at least; zeros fill the last."""
    number = max(-(-x.shape[1] // size), 1)
    missing = number * size - x.shape[1]
    padded = torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], 1) if missing else x
    return padded.unflatten(1, (number, size))


def _as_names(names: Iterable[Any] | None, number: int) -> Shaped[np.ndarray, " sets"]:
    """As an array, of objects unless they are numbers or text to NumPy too."""
    if names is None:
        return np.arange(number)
    array = np.asarray(names) if hasattr(names, "dtype") else None
    if array is None or array.dtype.kind not in "biufU":
        listed = list(names)
        array = np.fromiter(listed, dtype=object, count=len(listed))
    if array.shape != (number,):
        raise ValueError(f"names must be one per set, ({number},), got shape {array.shape}")
    return array


def _positions(index: Any, number: int) -> int | Int[np.ndarray, " chosen"]:
    """One position, or several, from 0, that an index asks for."""
    if isinstance(index, slice):
        return np.arange(number)[index]
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not -number <= index < number:
            raise IndexError(f"set {index} of {number}")
        return int(index) % number
    positions = np.zeros(()) if isinstance(index, tuple) else np.asarray(index)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "biu"):
        raise ValueError(f"sets are chosen by an integer, a slice, a list of integers or a mask, got {index!r}")
    if positions.dtype.kind == "b":
        if len(positions) != number:
            raise ValueError(f"a mask of sets must be as long as they are, {number}, got {len(positions)}")
        return np.flatnonzero(positions)
    positions = positions.astype(np.int64)
    outside = (positions < -number) | (positions >= number)
    if outside.any():
        raise IndexError(f"set {positions[outside][0]} of {number}")
    return np.where(positions < 0, positions + number, positions)


def _joined(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([e for e, _ in pieces]), torch.cat([m for _, m in pieces])
