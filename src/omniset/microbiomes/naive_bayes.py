"""Naive Bayes: how likely a taxon's references make the k-mers of a read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.tables.dna import Kmers, kmers_of

K = 7
ALPHA = 0.001
Scores = Float[Tensor, "sequences taxa"]

TABLE = 1 << 28  # entries of the table of logarithms that is in memory at a time: 1 GB
COUNTED = 1 << 22  # k-mers counted at a time
BLOCK = 256  # taxa whose logarithms lie together: 16 MB, which a processor's last cache holds


class KmerLikelihood(nn.Module):
    """Multinomial naive Bayes on 7-mers, the logarithm of the likelihood per root of their number n:

        score(read, t) = sum over 7-mers w of the read of log((c_tw + a) / (sum_w c_tw + a 4^7)) / sqrt(n),  a = .001

    c_tw is how often the references of taxon t have it. Those of a read depend on each other; that is why the score
    is not divided by 1, which would be independence, nor by n, one k-mer's worth. As Wang et al., "Naive Bayesian
    classifier for rapid assignment of rRNA sequences into the new bacterial taxonomy", 2007, and Bokulich et al.,
    "Optimizing taxonomic classification of marker-gene amplicon sequences with QIIME 2's q2-feature-classifier plugin",
    2018; unlike the latter, references count as they are and not scaled to length 1.

    Only the counts are kept; logarithms are computed for as many taxa at a time as `TABLE` has room for.
    """

    starts: Tensor  # (taxa + 1,) where the entries of each taxon start
    kmers: Tensor  # (entries,) the k-mer of each, which its taxon has
    counts: Tensor  # (entries,) c_tw

    def __init__(self, taxa: int, entries: int) -> None:
        super().__init__()
        self.register_buffer("starts", torch.zeros(taxa + 1, dtype=torch.int64))
        self.register_buffer("kmers", torch.zeros(entries, dtype=torch.int16))
        self.register_buffer("counts", torch.zeros(entries, dtype=torch.int32))

    @classmethod
    def of(
        cls, texts: Sequence[str], sequence: Int[np.ndarray, " pairs"], taxon: Int[np.ndarray, " pairs"], taxa: int
    ) -> KmerLikelihood:
        """Counted in references."""
        order = np.argsort(taxon, kind="stable")
        ends = np.searchsorted(taxon[order], np.arange(taxa + 1))
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        before = np.concatenate([[0], lengths[sequence[order]].cumsum()])[ends]  # letters of all taxa before
        sizes, kmers, counts = np.zeros(taxa, dtype=np.int64), [], []
        first = 0
        while first < taxa:
            last = max(int(np.searchsorted(before, before[first] + COUNTED, side="right")) - 1, first + 1)
            some = order[ends[first] : ends[last]]
            found = kmers_of([texts[i] for i in sequence[some]], K)
            of_kmer = np.repeat(taxon[some] - first, found.sizes.numpy())
            keys, times = np.unique(of_kmer * 4**K + found.numbers.numpy(), return_counts=True)
            sizes[first:last] = np.bincount(keys >> 2 * K, minlength=last - first)
            kmers.append((keys & (4**K - 1)).astype(np.int16))
            counts.append(times.astype(np.int32))
            first = last
        made = cls(taxa, int(sizes.sum()))
        made.starts[1:] = torch.from_numpy(sizes.cumsum())
        made.kmers.copy_(torch.from_numpy(np.concatenate(kmers)))
        made.counts.copy_(torch.from_numpy(np.concatenate(counts)))
        return made

    def tables(self, room: int = TABLE) -> Iterator[KmerTable]:
        """The logarithms, of so many taxa at a time as there is room for."""
        taxa = len(self.starts) - 1
        together = max(room // 4**K, 1)
        for first in range(0, taxa, together):
            yield KmerTable(self, first, min(first + together, taxa))


class KmerTable:
    """The logarithms of some taxa."""

    def __init__(self, likelihood: KmerLikelihood, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.more: list[Float[Tensor, "kmers some"]] = []  # log(1 + c / a), `BLOCK` taxa after another
        least = []
        for start in range(first, last, BLOCK):
            starts = likelihood.starts[start : min(start + BLOCK, last) + 1]
            span = slice(int(starts[0]), int(starts[-1]))
            counts = likelihood.counts[span].double()
            taxon = torch.repeat_interleave(torch.arange(len(starts) - 1, device=starts.device), starts.diff())
            total = counts.new_zeros(len(starts) - 1).index_add_(0, taxon, counts)
            more = torch.zeros(4**K, len(total), device=starts.device)
            more[likelihood.kmers[span].long(), taxon] = (counts / ALPHA).log1p().float()
            self.more.append(more)
            least.append((math.log(ALPHA) - (total + ALPHA * 4**K).log()).masked_fill(total == 0, -1e3).float())
        self.least = torch.cat(least)  # (taxa,) the logarithm of the share of a k-mer that the taxon does not have

    def scores(self, kmers: Kmers) -> Scores:
        """Of sequences, by their 7-mers."""
        number = kmers.sizes.clamp(min=1)[:, None].to(self.least.dtype)
        more = [F.embedding_bag(kmers.numbers, block, kmers.starts, mode="sum") for block in self.more]
        return (torch.cat(more, 1) + number * self.least) / number.sqrt()
