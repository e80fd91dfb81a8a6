"""Sets that get the values of a feature from other sets, and keep all else.

Set i gets them from another set j, its donor. For each element n of set i a row k of set j is drawn, by multiplicity,

    x'_inf = x_jkf,        P(k) = m_jk / M_j,        M_j = sum_k m_jk

so that the joint distribution over the elements of all other features, their multiplicities, and the size of the set
stay, and what is cut is the tie of feature f to them and to the label. The rows of one set are not drawn one by one:
its elements, in random order, divide the interval from 0 to M_j, turned by a random amount, among themselves as their
multiplicities are. So the values are as close to those of the donor as the sizes allow; of two sets of as many single
elements they are the very same. Empty sets neither give nor get.

Whatever is drawn depends on the seed and on the rank of the set among the names of all sets, not on its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators.pooling import pooled

READ = 1 << 22  # numbers of one set that are read at once


class Replaced:
    """The elements of a set with another column (omniset.core.stored.Rows)."""

    def __init__(self, stored: StoredSet, feature: int, column: Shaped[Tensor, " elements"]) -> None:
        self.stored, self.feature, self.column = stored, feature, column
        self.shape = (len(stored), int(stored.elements.shape[1]))

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice) -> Shaped[Tensor, "rows dim"]:
        start, stop, _ = rows.indices(len(self))
        elements = self.stored.read(start, stop - start)[0].clone()
        elements[:, self.feature] = self.column[start:stop]
        return elements


@dataclass
class Exchange:
    """Who gets the values of whom.

    Attributes:
        donors: (sets,) of each set the position of its donor; its own: it keeps its values.
        ranks: (sets,) of each set, among all.
        seed: Numbers, of which the last ones say which exchange it is.
    """

    sets: Sets
    donors: Int[np.ndarray, " sets"]
    ranks: Int[np.ndarray, " sets"]
    seed: Sequence[int]

    def columns(self, i: int, features: Sequence[int]) -> Float32[Tensor, "elements features"]:
        """The values that set i gets."""
        receiver, donor = self.sets[i], self.sets[int(self.donors[i])]
        values = columns_of(donor, features)
        if self.donors[i] == i:
            return values
        rng = np.random.default_rng([*self.seed, int(self.ranks[i]) + 1])
        return values[torch.from_numpy(drawn_rows(counts_of(receiver), counts_of(donor), rng))]

    def pooled(
        self, groups: Sequence[Int[np.ndarray, " _"]], features: Sequence[int]
    ) -> Float32[np.ndarray, "rows columns"]:
        """Pooled values that the sets of these groups get, one group after the other: columns as of sets with these
        features alone.
        """
        parts = []
        for group in groups:
            columns = [self.columns(int(i), features) for i in group]
            parts.append(
                pooled(
                    [
                        StoredSet(x, torch.from_numpy(counts_of(self.sets[int(i)])).to(x.dtype), 0, len(x))
                        for i, x in zip(group, columns, strict=True)
                    ]
                )
            )
        return np.concatenate(parts)

    def replaced(
        self, group: Int[np.ndarray, " group"], features: Sequence[int]
    ) -> Iterator[tuple[int, list[StoredSet] | None]]:
        """For each feature its place, and the sets with other values of it; None where these are the same."""
        receivers = [self.sets[int(i)] for i in group]
        given = [self.columns(int(i), features) for i in group]
        before = [columns_of(stored, features) for stored in receivers]
        counts = [torch.from_numpy(counts_of(stored)).float() for stored in receivers]
        for place, feature in enumerate(features):
            if all(torch.equal(x[:, place], z[:, place]) for x, z in zip(before, given, strict=True)):
                yield place, None
                continue
            yield (
                place,
                [
                    StoredSet(Replaced(stored, feature, z[:, place]), m, 0, len(stored), stored.name)
                    for stored, z, m in zip(receivers, given, counts, strict=True)
                ],
            )


def ranks_of(names: Sequence[object]) -> Int[np.ndarray, " sets"]:
    """Of sets among their names as text; their places where a name is there twice."""
    distinct, ranks = np.unique(np.array([str(name) for name in names], dtype=object), return_inverse=True)
    return ranks if len(distinct) == len(names) else np.arange(len(names))


def donors_of(
    sets: int,
    there: Int[np.ndarray, " there"],
    units: Int[np.ndarray, " sets"],
    ranks: Int[np.ndarray, " sets"],
    repeats: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "repeats sets"]:
    """Each time the donor of each of the sets `there`; all others keep their values.

    The units of these sets stand in a circle, in random order. The donors of the r-th time are the sets of the unit r
    places further, in random order, again from the first where they are fewer.

    Args:
        units: Of each set a number: sets of one depend on each other.
        repeats: Fewer than there are units, so that all donors of a set are of different units, and none of its own.
    """
    donors = np.tile(np.arange(sets), (repeats, 1))
    there = there[np.argsort(ranks[there], kind="stable")]
    _, unit = np.unique(units[there], return_inverse=True)
    drawn = rng.permutation(len(there))
    members = np.split(there[drawn[np.argsort(unit[drawn], kind="stable")]], np.cumsum(np.bincount(unit))[:-1])
    circle = rng.permutation(len(members))
    for repeat in range(repeats):
        for one, further in zip(circle, np.roll(circle, -repeat - 1), strict=True):
            donors[repeat, members[one]] = np.resize(members[further], len(members[one]))
    return donors


def drawn_rows(
    counts: Float64[np.ndarray, " elements"], theirs: Float64[np.ndarray, " rows"], rng: np.random.Generator
) -> Int[np.ndarray, " elements"]:
    """For each element a row of the donor, see above.

    Args:
        counts, theirs: Multiplicities, not all 0.
    """
    mine, order = rng.permutation(len(counts)), rng.permutation(len(theirs))
    place = np.empty(len(counts))
    place[mine] = (counts[mine].cumsum() - counts[mine]) / counts.sum()
    bounds = theirs[order].cumsum()
    at = np.searchsorted(bounds, (place + rng.random()) % 1 * bounds[-1], side="right")
    return order[np.minimum(at, np.flatnonzero(theirs[order])[-1])]


def columns_of(stored: StoredSet, features: Sequence[int]) -> Float32[Tensor, "elements features"]:
    """Some features of a set, which is read in pieces."""
    size = max(READ // max(int(stored.elements.shape[1]), 1), 1)
    parts = [stored.read(start, size)[0][:, [*features]] for start in range(0, max(len(stored), 1), size)]
    return torch.cat(parts).float()


def counts_of(stored: StoredSet) -> Float64[np.ndarray, " elements"]:
    """The multiplicities of a set."""
    return stored.multiplicity[stored.start : stored.stop].double().numpy()
