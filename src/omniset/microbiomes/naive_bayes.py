"""Naive Bayes: how likely a taxon's references make the words of a read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.tables.dna import Spectra, spectra

WORDS = 7
ALPHA = 0.001
TABLE = 1 << 28  # entries of the table of logarithms that is in memory at a time: 1 GB
COUNTED = 1 << 22  # words counted at a time
BLOCK = 256  # taxa whose logarithms lie together: 16 MB, which a processor's last cache holds


class WordLikelihood(nn.Module):
    """Multinomial naive Bayes on words of 7 bases, the logarithm of the likelihood per root of their number n:

        score(read, t) = sum over words w of the read of log((c_tw + a) / (sum_w c_tw + a 4^7)) / sqrt(n),  a = .001

    c_tw is how often the references of taxon t have the word. Words of a read depend on each other; that is why the
    score is not divided by 1, which would be independence, nor by n, one word's worth. As Wang et al., "Naive Bayesian
    classifier for rapid assignment of rRNA sequences into the new bacterial taxonomy", 2007, and Bokulich et al.,
    "Optimizing taxonomic classification of marker-gene amplicon sequences with QIIME 2's q2-feature-classifier plugin",
    2018; unlike the latter, references count as they are and not scaled to length 1.

    Only the counts are kept; logarithms are computed for as many taxa at a time as `TABLE` has room for.

    Args:
        taxa: How many.
        entries: Pairs of a taxon and a word that it has.

    Attributes:
        starts: (taxa + 1,) where the entries of each taxon start.
        words: (entries,) the word of each.
        counts: (entries,) c_tw.
    """

    starts: Tensor
    words: Tensor
    counts: Tensor

    def __init__(self, taxa: int, entries: int) -> None:
        super().__init__()
        self.register_buffer("starts", torch.zeros(taxa + 1, dtype=torch.int64))
        self.register_buffer("words", torch.zeros(entries, dtype=torch.int16))
        self.register_buffer("counts", torch.zeros(entries, dtype=torch.int32))

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        sequence: Int[np.ndarray, " pairs"],
        taxon: Int[np.ndarray, " pairs"],
        taxa: int,
    ) -> WordLikelihood:
        """Counted in references.

        Args:
            texts: Sequences.
            sequence, taxon: Which are of which.
        """
        order = np.argsort(taxon, kind="stable")
        ends = np.searchsorted(taxon[order], np.arange(taxa + 1))
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        before = np.concatenate([[0], lengths[sequence[order]].cumsum()])[ends]  # letters of all taxa before
        sizes, words, counts = np.zeros(taxa, dtype=np.int64), [], []
        first = 0
        while first < taxa:
            last = max(int(np.searchsorted(before, before[first] + COUNTED, side="right")) - 1, first + 1)
            some = order[ends[first] : ends[last]]
            found = spectra([texts[i] for i in sequence[some]], WORDS)
            of_word = np.repeat(taxon[some] - first, found.sizes.numpy())
            keys, times = np.unique(of_word * 4**WORDS + found.words.numpy(), return_counts=True)
            sizes[first:last] = np.bincount(keys >> 2 * WORDS, minlength=last - first)
            words.append((keys & (4**WORDS - 1)).astype(np.int16))
            counts.append(times.astype(np.int32))
            first = last
        made = cls(taxa, int(sizes.sum()))
        made.starts[1:] = torch.from_numpy(sizes.cumsum())
        made.words.copy_(torch.from_numpy(np.concatenate(words)))
        made.counts.copy_(torch.from_numpy(np.concatenate(counts)))
        return made

    def tables(self, room: int = TABLE) -> Iterator[WordTable]:
        """The logarithms, of so many taxa at a time as there is room for."""
        taxa = len(self.starts) - 1
        together = max(room // 4**WORDS, 1)
        for first in range(0, taxa, together):
            yield WordTable(self, first, min(first + together, taxa))


class WordTable:
    """The logarithms of some taxa.

    Attributes:
        first, last: Which taxa.
        more: (words, taxa) of log(1 + c / a), `BLOCK` taxa after another.
        least: (taxa,) the logarithm of the share of a word that the taxon does not have.
    """

    def __init__(self, likelihood: WordLikelihood, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.more: list[Float[Tensor, "words some"]] = []
        least = []
        for start in range(first, last, BLOCK):
            starts = likelihood.starts[start : min(start + BLOCK, last) + 1]
            span = slice(int(starts[0]), int(starts[-1]))
            counts = likelihood.counts[span].double()
            taxon = torch.repeat_interleave(torch.arange(len(starts) - 1, device=starts.device), starts.diff())
            total = counts.new_zeros(len(starts) - 1).index_add_(0, taxon, counts)
            more = torch.zeros(4**WORDS, len(total), device=starts.device)
            more[likelihood.words[span].long(), taxon] = (counts / ALPHA).log1p().float()
            self.more.append(more)
            least.append((math.log(ALPHA) - (total + ALPHA * 4**WORDS).log()).masked_fill(total == 0, -1e3).float())
        self.least = torch.cat(least)

    def scores(self, words: Spectra) -> Float[Tensor, "sequences taxa"]:
        """Of sequences, by their words of 7 bases."""
        number = words.sizes.clamp(min=1)[:, None].to(self.least.dtype)
        more = [F.embedding_bag(words.words, block, words.starts, mode="sum") for block in self.more]
        return (torch.cat(more, 1) + number * self.least) / number.sqrt()
