"""Each set as one row of numbers: what is known of it without looking at elements together.

For a set of elements x_i with multiplicities m_i, M = sum_i m_i, and for each feature on its own:

    mean = sum_i m_i x_i / M         sd = sqrt(sum_i m_i (x_i - mean)^2 / M)         min, max of what is present
    quantile p = the least x with sum of the m_i of all x_i <= x at least p M        (the inverse distribution function)

and log(1 + M), log(1 + distinct elements), and whether the set is empty. All of it is that of the multiset: the order
of the elements does not count, and an element of multiplicity 3 is as three copies of it (to the rounding of float32).

Sets are read in shards, twice. Quantiles and the number of distinct elements are exact as long as distinct elements
times features are at most 2^26; of a larger set they are those of a `Sketch`: of its distinct elements with the lowest
hashes, each with all its copies. So they too depend on nothing but the multiset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, UInt64

from omniset.core.sets import Sets, collate
from omniset.core.stored import StoredSet

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
OF_SIZE = ("log of total multiplicity", "log of distinct elements", "no elements")
STATISTICS = ("mean", "sd", "min", "max", *(f"quantile {p:g}" for p in QUANTILES))

TOGETHER = 1 << 20  # numbers of several sets that are pooled at once
SHARD = 1 << 22  # numbers of one set that are read at once
EXACT = 1 << 26  # numbers in the distinct elements of a set up to which its quantiles are exact
TURNED = 1 << 17  # numbers whose features are laid side by side at once
ABSENT = np.uint64(2**64 - 1)

Shards = Callable[[], Iterator[tuple[Float[np.ndarray, "sets elements dim"], Float64[np.ndarray, "sets elements"]]]]


def names_of(features: Sequence[str]) -> list[str]:
    """The columns of `pooled`, from the names of the features."""
    return [*OF_SIZE, *(f"{statistic} of {feature}" for statistic in STATISTICS for feature in features)]


def columns_of_statistic(statistic: str, dim: int) -> slice:
    """Where a table has a statistic of all features."""
    start = len(OF_SIZE) + STATISTICS.index(statistic) * dim
    return slice(start, start + dim)


def spread_of(
    table: Float32[np.ndarray, "sets columns"], dim: int
) -> tuple[Float64[np.ndarray, " dim"], Float64[np.ndarray, " dim"]]:
    """Mean and standard deviation of each feature over all elements, from the pooled features of the sets:

        mean = sum_i M_i mean_i / sum_i M_i,      sd^2 = sum_i M_i (sd_i^2 + (mean_i - mean)^2) / sum_i M_i

    M_i the total multiplicity of set i. The deviation of a feature that never changes is 1.
    """
    total = np.expm1(table[:, 0].astype(np.float64))
    means, deviations = (
        np.nan_to_num(table[:, columns_of_statistic(name, dim)].astype(np.float64)) for name in ("mean", "sd")
    )
    if not total.sum():
        return np.zeros(dim), np.ones(dim)
    share = total / total.sum()
    mean = share @ means
    deviation = np.sqrt(share @ (deviations**2 + (means - mean) ** 2))
    varies = deviation > 1e-5 * np.maximum(np.abs(mean), 1e-30)
    return mean, np.where(varies, deviation, 1.0)


def pooled(sets: Sets | Sequence[StoredSet]) -> Float32[np.ndarray, "sets columns"]:
    """A row for each set, columns as in `names_of`. What an empty set does not have (mean, sd, ...) is NaN."""
    stored = [sets[i] for i in range(len(sets))]
    dim = stored[0].elements.shape[1] if stored else 0
    table = np.full((len(stored), len(OF_SIZE) + len(STATISTICS) * dim), np.nan, dtype=np.float32)
    largest = np.finfo(np.float32).max
    by_size = sorted(range(len(stored)), key=lambda i: len(stored[i]))  # so that little is padded
    for group in _groups(by_size, [len(s) for s in stored], max(dim, 1)):
        rows = _rows(*_shards([stored[i] for i in group], dim), len(group), dim)
        table[group] = np.clip(rows, -largest, largest)
    return table


def _groups(by_size: list[int], sizes: list[int], dim: int) -> Iterator[list[int]]:
    group: list[int] = []
    for i in by_size:
        if group and (len(group) + 1) * sizes[i] * dim > TOGETHER:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _shards(sets: list[StoredSet], dim: int) -> tuple[Shards, bool]:
    """Several sets in one piece, or one in shards; and whether they are in shards."""
    size = max(SHARD // max(dim, 1), 1)
    if len(sets) > 1 or len(sets[0]) <= size:
        batch = collate(stored.read() for stored in sets)
        whole = batch.elements.numpy(), batch.multiplicity.double().numpy()
        return lambda: iter([whole]), False

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(sets[0]), size):
            elements, multiplicity = sets[0].read(start, size)
            yield elements.numpy()[None], multiplicity.double().numpy()[None]

    return read, True


def _rows(shards: Shards, in_shards: bool, sets: int, dim: int) -> Float64[np.ndarray, "sets columns"]:
    """The columns of one or more sets that are read together, in two passes."""
    total, sums, squares = np.zeros(sets), np.zeros((sets, dim)), np.zeros((sets, dim))
    low, high = np.full((sets, dim), np.inf), np.full((sets, dim), -np.inf)
    sketch = Sketch(max(EXACT // max(dim, 1), 1), dim)
    for x, m in shards():
        there = (m > 0)[..., None]
        total += m.sum(1)
        sums += _weighted(m, x)
        low = np.minimum(low, np.where(there, x, np.inf).min(1, initial=np.inf))
        high = np.maximum(high, np.where(there, x, -np.inf).max(1, initial=-np.inf))
        if in_shards:
            sketch.add(x[0], m[0])
    known = total > 0
    weight = np.where(known, total, 1)[:, None]
    # Rounding would take the mean of a constant away from it, and give it a deviation.
    mean = np.where(known[:, None], np.clip(sums / weight, low, high), 0)
    for x, m in shards():
        squares += _weighted(m, np.square(x - mean[:, None]))
    if in_shards:
        x, m = (part[None] for part in sketch.elements())
        distinct = np.array([sketch.distinct()])
    else:
        distinct = _count_distinct(np.where(m > 0, hashes_of(x), ABSENT))
    statistics = [mean, np.sqrt(squares / weight), low, high, *_quantiles(x, m)]
    of_features = np.where(known[:, None], np.concatenate(statistics, 1), np.nan)
    return np.concatenate([np.stack([np.log1p(total), np.log1p(distinct), ~known], 1), of_features], 1)


def _weighted(m: np.ndarray, x: np.ndarray) -> Float64[np.ndarray, "sets dim"]:
    return np.einsum("bn,bnd->bd", m, x, dtype=np.float64)


def _quantiles(
    x: Float[np.ndarray, "sets elements dim"], m: Float64[np.ndarray, "sets elements"]
) -> list[Float[np.ndarray, "sets dim"]]:
    """Of each feature, a few columns at a time; NaN where nothing is present."""
    sets, elements, dim = x.shape
    quantiles = np.full((len(QUANTILES), sets, dim), np.nan)
    if not elements:
        return list(quantiles)
    total = m.sum(1)
    # Fractional multiplicities add up to p M only to rounding.
    bounds = [p * total - 1e-9 * total for p in QUANTILES]
    equal = bool(((m == 0) | (m == m.max(1, keepdims=True))).all())
    if equal:  # as most often: ranks, without sorting multiplicities along
        each = np.maximum(m.max(1), np.finfo(np.float64).tiny)
        ranks = [np.clip(np.ceil(bound / each).astype(np.int64) - 1, 0, None) for bound in bounds]
    width = max(SHARD // (sets * elements), 1)
    for start in range(0, dim, width):
        block = np.where((m > 0)[..., None], x[..., start : start + width], np.inf).swapaxes(1, 2)
        if equal:
            block.sort(2)
        else:
            order = block.argsort(2)
            block = np.take_along_axis(block, order, 2)
            below = np.take_along_axis(m[:, None], order, 2).cumsum(2)
        for number, bound in enumerate(bounds):
            at = ranks[number][:, None, None] if equal else (below < bound[:, None, None]).sum(2, keepdims=True)
            at = np.broadcast_to(np.minimum(at, elements - 1), (*block.shape[:2], 1))
            quantiles[number, :, start : start + width] = np.take_along_axis(block, at, 2)[..., 0]
    return list(quantiles)


# ---------------------------------------------------------------------- distinct elements


class Sketch:
    """The distinct elements of a set with the lowest hashes, and the sum of the multiplicities of each.

    It is a sample of the distinct elements that depends on nothing but the multiset, whatever the order and the shards
    in which they are read (Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007). Elements are known by
    64 bits of each.

    Args:
        most: How many are kept at most.
    """

    def __init__(self, most: int, dim: int) -> None:
        self.most, self._cut = most, False
        self._hashes: list[np.ndarray] = [np.empty(0, dtype=np.uint64)]
        self._elements: list[np.ndarray] = [np.empty((0, dim), dtype=np.float32)]
        self._counts: list[np.ndarray] = [np.empty(0)]

    def add(self, x: Float[np.ndarray, "elements dim"], m: Float64[np.ndarray, " elements"]) -> None:
        x, m = x[m > 0], m[m > 0]
        self._hashes.append(hashes_of(x[None])[0])
        self._elements.append(x.astype(np.float32))
        self._counts.append(m)
        if sum(map(len, self._counts)) > 2 * self.most:
            self._merge()

    def _merge(self) -> None:
        hashes, first, number = np.unique(np.concatenate(self._hashes), return_index=True, return_inverse=True)
        counts = np.bincount(number, np.concatenate(self._counts), len(first)).astype(np.float64)
        self._cut |= len(first) > self.most
        self._hashes, self._counts = [hashes[: self.most]], [counts[: self.most]]
        self._elements = [np.concatenate(self._elements)[first[: self.most]]]

    def elements(self) -> tuple[Float32[np.ndarray, "elements dim"], Float64[np.ndarray, " elements"]]:
        """In the order of their hashes."""
        self._merge()
        return self._elements[0], self._counts[0]

    def distinct(self) -> float:
        """How many distinct elements there are: where more than are kept, by how low the hashes are."""
        self._merge()
        number = len(self._counts[0])
        return (number - 1) / (float(self._hashes[0][-1]) / 2.0**64) if self._cut else float(number)


def sampled(
    stored: StoredSet, most: int
) -> tuple[Float32[np.ndarray, "elements dim"], Float64[np.ndarray, " elements"]]:
    """At most so many distinct elements of a set, and the sum of the multiplicities of each."""
    dim = int(stored.elements.shape[1])
    sketch, size = Sketch(most, dim), max(SHARD // max(dim, 1), 1)
    for start in range(0, len(stored), size):
        elements, multiplicity = stored.read(start, size)
        sketch.add(elements.numpy(), multiplicity.double().numpy())
    return sketch.elements()


def hashes_of(x: Float[np.ndarray, "sets elements dim"]) -> UInt64[np.ndarray, "sets elements"]:
    """64 bits of each element: equal for equal ones, else as if drawn (shifts and products, feature by feature)."""
    state = np.full(x.shape[:2], x.shape[2], dtype=np.uint64)
    high = np.empty_like(state)
    step = max(TURNED // max(state.size, 1), 1)
    for start in range(0, x.shape[2], step):
        # PyTorch turns them around in blocks; a stride would read a whole line of the cache for each number.
        columns = torch.from_numpy(x[..., start : start + step]).movedim(2, 0).double().contiguous()
        for bits in columns.add_(0.0).numpy().view(np.uint64):  # -0 is 0
            state ^= bits
            for shift, factor in ((32, 0xD6E8FEB86659FD93), (29, 0x9FB21C651E98DF25)):
                state ^= np.right_shift(state, np.uint64(shift), out=high)
                state *= np.uint64(factor)
    return state ^ (state >> np.uint64(32))


def _count_distinct(hashes: UInt64[np.ndarray, "sets elements"]) -> Int[np.ndarray, " sets"]:
    ordered = np.sort(hashes, 1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (first & (ordered != ABSENT)).sum(1)
