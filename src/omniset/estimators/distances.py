"""Each set by its distances to the sets that were learned from: what is known of it beside them.

The distance from a set X to a reference set R is the mean over the elements of X of the distance to the nearest
element of R,

    d(X, R) = sum_i m_i min_k |x_i - r_k| / sum_i m_i,

features standardised and clipped at 5 standard deviations either way. d(X, R) and d(R, X) differ: one element of X that
is like none of R matters little to the first, and nothing to the second. A row has both for each reference set, as in
Cheplygina, Tax and Loog, "Multiple instance learning with bag dissimilarities" (2015). All of it is that of the
multiset: the order of the elements does not count, and multiplicities are copies.

It is computed in bounded memory. There are at most 512 reference sets, drawn at random, with 4,096 elements together,
fewer of more than 2,048 features. Of a reference set with more than its part of these, elements are drawn by priority
sampling, without bias for sums (Duffield, Lund and Thorup, "Priority sampling for estimation of arbitrary subset sums",
2007): with u_k uniform, drawn in the order of the hashes, those with the largest m_k / u_k, each of multiplicity
max(m_k, the largest m_k / u_k of those left). Of a set that is described at most 1,024 distinct elements are looked at,
and fewer where there are many sets or features: those with the lowest hashes (`omniset.estimators.pooling.Sketch`),
each with all its copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators.pooling import sampled

SETS = 512  # of reference
ELEMENTS = 4_096  # of all of them
STORED = 1 << 23  # numbers in all of them
SEEN = (16, 1_024)  # elements of a set that is described: at least so many, at most so many
NUMBERS = 1 << 26  # in the elements of all sets that are described
ROWS = 1 << 20  # elements of all sets that are described
LARGEST = 5.0  # standard deviations from the mean at which a feature stops to say more
TOGETHER = 1 << 18  # distances that are held at once, where sets are small: about what a cache holds

Sample = tuple[Float32[np.ndarray, "_ dim"], Float64[np.ndarray, " _"]]  # elements of a set, and their multiplicities


def seen_of(sets: int, dim: int) -> int:
    """Elements of each of so many sets that are looked at, at most."""
    return int(np.clip(min(NUMBERS // max(sets * dim, 1), ROWS // max(sets, 1)), *SEEN))


def samples_of(sets: Sets | Sequence[StoredSet], seen: int) -> list[Sample]:
    """Of each set what is looked at."""
    return [sampled(sets[i], seen) for i in range(len(sets))]


@dataclass
class References:
    """The sets that others are compared with.

    Attributes:
        shift, scale: Of the features.
        elements: Of all reference sets, one set after the other, standardised.
        shares: How much each element counts in its set; those of a set have sum 1.
        starts: Where each set starts.
        seen: Elements of a set that is described, at most.
    """

    shift: Float64[np.ndarray, " dim"]
    scale: Float64[np.ndarray, " dim"]
    elements: Float32[np.ndarray, "elements dim"]
    shares: Float64[np.ndarray, " elements"]
    starts: Int[np.ndarray, " references"]
    seen: int

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        spread: tuple[Float64[np.ndarray, " dim"], Float64[np.ndarray, " dim"]],
        seen: int,
        seed: int = 0,
    ) -> References:
        """From what is looked at of the sets.

        Args:
            spread: Mean and standard deviation of each feature.
            seen: Elements of a set that is described, at most.
        """
        there = np.array([i for i, (_, m) in enumerate(samples) if len(m)], dtype=np.int64)
        elements = min(ELEMENTS, max(STORED // max(len(spread[0]), 1), 1))
        if len(there) > (most := min(SETS, elements)):
            there = np.sort(np.random.default_rng(seed).permutation(there)[:most])
        part = elements // max(len(there), 1)
        chosen = [_drawn(*samples[int(i)], part) for i in there]
        empty = (np.empty((0, len(spread[0])), dtype=np.float32), np.empty(0))
        x, shares = (np.concatenate(parts) for parts in zip(*(chosen or [empty]), strict=True))
        sizes = np.array([len(m) for _, m in chosen], dtype=np.int64)
        one = cls(*spread, x, shares, np.cumsum(sizes) - sizes, seen)
        one.elements = one._standardised(x).astype(np.float32)
        return one

    def __len__(self) -> int:
        return len(self.starts)

    def distances(self, samples: Sequence[Sample]) -> Float32[np.ndarray, "sets columns"]:
        """d(X, R) for each reference set, then d(R, X): a row per set, NaN for an empty one. No references: NaN."""
        table = np.full((len(samples), max(2 * len(self), 1)), np.nan, dtype=np.float32)
        if not len(self):
            return table
        r = self.elements.astype(np.float64)
        right = np.concatenate([-2 * r, np.square(r).sum(1)[:, None], np.ones((len(r), 1))], 1).T
        for group in self._groups([len(m) for _, m in samples]):
            x = self._standardised(np.concatenate([samples[i][0] for i in group]))
            counts = [samples[i][1] for i in group]
            m = np.concatenate([each / each.sum() for each in counts])
            starts = np.cumsum([0, *map(len, counts[:-1])])
            left = np.concatenate([x, np.ones((len(x), 1)), np.square(x).sum(1)[:, None]], 1)
            squares = left @ right  # |x|^2 - 2 x r + |r|^2
            there = _root(np.minimum.reduceat(squares, self.starts, axis=1)) * m[:, None]
            back = _root(np.minimum.reduceat(squares, starts, axis=0)) * self.shares
            table[group, : len(self)] = np.add.reduceat(there, starts, axis=0)
            table[group, len(self) :] = np.add.reduceat(back, self.starts, axis=1)
        return table

    def state(self) -> dict[str, np.ndarray]:
        """All that `distances` needs."""
        return {**vars(self), "seen": np.array(self.seen)}

    @classmethod
    def restored(cls, state: Mapping[str, np.ndarray]) -> References:
        arrays: dict[str, Any] = {**state, "seen": int(state["seen"])}
        return cls(**arrays)

    def _groups(self, sizes: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        elements = 0
        for i, size in enumerate(sizes):
            if group and (elements + size) * len(self.elements) > TOGETHER:
                yield group
                group, elements = [], 0
            if size:
                group.append(i)
                elements += size
        if group:
            yield group

    def _standardised(self, x: Float[np.ndarray, "elements dim"]) -> Float64[np.ndarray, "elements dim"]:
        return np.clip((x - self.shift) / self.scale, -LARGEST, LARGEST)


def _root(squares: Float64[np.ndarray, "_ _"]) -> Float64[np.ndarray, "_ _"]:
    return np.sqrt(np.maximum(squares, 0))


def _drawn(x: Float32[np.ndarray, "elements dim"], m: Float64[np.ndarray, " elements"], most: int) -> Sample:
    """Elements of one set by priority sampling, and their shares. The order of the sample is that of their hashes."""
    if len(m) > most:
        u = np.random.default_rng(len(m)).random(len(m))
        priority = m / np.maximum(u, np.finfo(np.float64).tiny)
        order = np.argsort(-priority, kind="stable")
        chosen = np.sort(order[:most])
        x, m = x[chosen], np.maximum(m[chosen], priority[order[most]])
    return x, m / m.sum()
