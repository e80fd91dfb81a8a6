"""Spectra of k-mers: which words of k bases a sequence has, as numbers that an embedding table is read by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from omniset.microbiomes.sequences import CODE, joined


@dataclass
class Spectra:
    """The words of some sequences, one after the other.

    Attributes:
        words: Numbers below 4^k: the bases as digits, A C G T = 0 1 2 3, the first one the highest.
        starts: (sequences,) where those of each start.
    """

    words: Int[Tensor, " words"]
    starts: Int[Tensor, " sequences"]

    @property
    def sizes(self) -> Int[Tensor, " sequences"]:
        """How many words each sequence has."""
        return torch.diff(self.starts, append=self.starts.new_tensor([len(self.words)]))

    def to(self, device: torch.device) -> Spectra:
        return Spectra(self.words.to(device), self.starts.to(device))

    def without(self, left: Tensor) -> Spectra:
        """Only the words where a mask (words,) holds."""
        before = torch.cat([left.new_zeros(1, dtype=torch.int64), left.cumsum(0)])
        return Spectra(self.words[left], before[self.starts])


def spectra(texts: Sequence[str], k: int) -> Spectra:
    """All words of k bases, of the strand as it is. Words with an ambiguous base are left out.

    >>> found = spectra(["ACGT", "AANAC", "A"], 2)
    >>> found.words.tolist(), found.sizes.tolist()
    ([1, 6, 11, 0, 1], [3, 2, 0])
    """
    letters, ends = joined(texts)
    codes = CODE[letters]
    number = max(len(codes) - k + 1, 0)
    words = np.zeros(number, dtype=np.int64)
    usable = np.ones(number, dtype=bool)
    for i in range(k):
        digit = codes[i : number + i]
        words = 4 * words + digit
        usable &= digit < 4
    sizes = np.diff(ends)
    # A word that starts in the last k - 1 letters of a sequence would reach into the next.
    for i in range(1, k):
        last = ends[1:] - i
        usable[last[(last >= ends[:-1]) & (last < number)]] = False
    before = np.concatenate([[0], usable.cumsum()])
    starts = before[np.minimum(ends[:-1], number)] if len(sizes) else np.zeros(0, dtype=np.int64)
    return Spectra(torch.from_numpy(words[usable]), torch.from_numpy(starts))


def strand_table(texts: Sequence[str], turned: Sequence[str], k: int) -> Float[Tensor, " words"]:
    """How much each word speaks for the strand of `texts`: log of its share there over that in the other strand.

    Words are counted once more than they occur, so that every weight is finite.
    """
    shares = []
    for strand in (texts, turned):
        counts = torch.ones(4**k, dtype=torch.float64)
        for start in range(0, len(strand), 1024):
            counts += torch.bincount(spectra(strand[start : start + 1024], k).words, minlength=4**k)
        shares.append((counts / counts.sum()).log())
    return (shares[0] - shares[1]).float()
