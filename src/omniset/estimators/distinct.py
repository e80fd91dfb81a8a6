"""Equal elements of a set, found by 64 bits of each: counted, put together, and drawn for a sample.

The elements whose hashes are the lowest are a sample of the distinct ones that depends on nothing but the multiset,
whatever the order and the shards in which they are read (after Cohen and Kaplan, "Summarizing data using bottom-k
sketches", 2007).
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, UInt64

from omniset.core.stored import StoredSet

TURNED = 1 << 17  # numbers whose features are laid side by side at once
READ = 1 << 22  # numbers of one set that are read at once
ABSENT = np.uint64(2**64 - 1)


def kept_hashes(x: np.ndarray, m: np.ndarray, share: int) -> UInt64[np.ndarray, "sets elements"]:
    """Hashes of the elements, ABSENT for those that are absent or above the lowest 1 / 2^share."""
    hashed = hashes_of(x)
    return np.where((m > 0) & (hashed <= bound(share)), hashed, ABSENT)


def bound(share: int) -> np.uint64:
    return np.uint64((2**64 - 2) >> share)


def thinned(
    hashes: UInt64[np.ndarray, "one elements"], share: int, most: int
) -> tuple[UInt64[np.ndarray, "one fewer"], int]:
    """Each hash of one set once, and the lowest of them if these are more than `most`."""
    once = np.unique(hashes)
    while len(once) > most:
        share += 1
        once = once[once <= bound(share)]
    return once[None], share


def merged(x: np.ndarray, m: np.ndarray, share: int) -> tuple[np.ndarray, np.ndarray]:
    """The elements of one set with the lowest hashes, each once, with the sum of its multiplicities."""
    hashes = kept_hashes(x, m, share)[0]
    there = hashes != ABSENT
    _, first, number = np.unique(hashes[there], return_index=True, return_inverse=True)
    return x[:, there][:, first], np.bincount(number, m[0, there], len(first))[None]


def sampled(
    stored: StoredSet, most: int
) -> tuple[Float32[np.ndarray, "elements dim"], Float64[np.ndarray, " elements"]]:
    """Distinct elements of a set, in the order of their hashes, and the sum of the multiplicities of each.

    Args:
        most: How many at most: those with the lowest hashes.
    """
    dim = int(stored.elements.shape[1])
    size = max(READ // max(dim, 1), 1)
    hashes: np.ndarray = np.empty(0, dtype=np.uint64)
    elements: np.ndarray = np.empty((0, dim), dtype=np.float32)
    counts: np.ndarray = np.empty(0)
    for start in range(0, len(stored), size):
        read, multiplicity = stored.read(start, size)
        x, m = read.numpy(), multiplicity.double().numpy()
        x, m = x[m > 0], m[m > 0]
        hashes = np.concatenate([hashes, hashes_of(x[None])[0]])
        elements, counts = np.concatenate([elements, x.astype(np.float32)]), np.concatenate([counts, m])
        hashes, first, number = np.unique(hashes, return_index=True, return_inverse=True)
        counts = np.bincount(number, counts, len(first))[:most].astype(np.float64)  # of nothing it counts in integers
        hashes, elements = hashes[:most], elements[first[:most]]
    return elements, counts


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


def count_distinct(hashes: UInt64[np.ndarray, "sets elements"]) -> Int[np.ndarray, " sets"]:
    """How many different ones each row has, ABSENT not counted."""
    ordered = np.sort(hashes, 1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (first & (ordered != ABSENT)).sum(1)
