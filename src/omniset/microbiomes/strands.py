"""Which strand of a marker gene a sequence is, by its words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.tables.dna import spectra


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
