"""Sequences to their candidates: the taxa that each may be of, scored by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from omniset.microbiomes.model import CANDIDATES, TaxonNetwork
from omniset.microbiomes.naive_bayes import TABLE, K
from omniset.runs.files import reserve
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.dna import kmers_of

TOGETHER = 512  # sequences at a time
ARRAYS = (("taxon", "i4"), ("naive_bayes", "f4"), ("network", "f4"))
MOST = 16.0  # log-odds


@dataclass
class Candidates:
    """The taxa that each sequence may be of, by itself.

    Attributes:
        taxon: (sequences, candidates) numbers.
        naive_bayes: Their scores by it.
        network: Their logits by the network.
        sizes: (sequences,) k-mers of each sequence.
    """

    taxon: Int[np.ndarray, "sequences candidates"]
    naive_bayes: Float[np.ndarray, "sequences candidates"]
    network: Float[np.ndarray, "sequences candidates"]
    sizes: Float[np.ndarray, " sequences"]

    def __len__(self) -> int:
        return len(self.taxon)

    def of(self, some: Int[np.ndarray, " some"]) -> Candidates:
        """Of some sequences."""
        return Candidates(self.taxon[some], self.naive_bayes[some], self.network[some], self.sizes[some])

    def logits(self, weights: Float[np.ndarray, " two"]) -> Float[np.ndarray, "sequences candidates"]:
        """Of each sequence by itself: the weighted sum."""
        return weights[0] * self.naive_bayes.astype(np.float64) + weights[1] * self.network

    def without(self, taxon: Int[np.ndarray, " sequences"]) -> Candidates:
        """As if a taxon of each sequence were not known."""
        own = self.taxon == taxon[:, None]
        naive_bayes, network = (np.where(own, -1e3, values) for values in (self.naive_bayes, self.network))
        return Candidates(self.taxon, naive_bayes, network, self.sizes)

    @property
    def likeness(self) -> Float[np.ndarray, "sequences two"]:
        """How like its nearest taxon each sequence is: mean logarithm of a k-mer's share, and largest logit."""
        return np.stack([self.naive_bayes.max(1) / np.sqrt(np.maximum(self.sizes, 1)), self.network.max(1)], 1)


def candidates_of(
    network: TaxonNetwork,
    texts: Sequence[str],
    progress: bool = False,
    folder: Path | None = None,
    room: int = TABLE,
) -> Candidates:
    """Of sequences, the taxa with the largest logits.

    Args:
        folder: Keep them there in files, mapped into memory; None: in memory.
        room: Entries of the table of k-mers that is in memory at a time: bounds the memory, and changes nothing.

    Raises:
        ValueError: A score that is not finite.
    """
    number, taxa = len(texts), len(network.alone.prototypes)
    shape = (number, min(CANDIDATES, taxa))
    taxon, naive_bayes, logits = (_room(name, kind, shape, folder) for name, kind in ARRAYS)
    made = Candidates(taxon, naive_bayes, logits, np.zeros(number))
    device = network.strand.device
    with Progress("scoring sequences", number * taxa, progress, unit="scores") as bar:
        for table in network.likelihood.tables(room):
            directions = network.directions(table)
            for start in range(0, number, TOGETHER):
                some = list(texts[start : start + TOGETHER])
                kmers = kmers_of(some, K).to(device)
                inputs = [one.to(device) for one in network.alone.projection.read(some)]
                scores = network.candidates(inputs, kmers, table, directions)
                require_finite_outputs(
                    scores[1] + scores[2], [f"number {start + i + 1}" for i in range(len(some))], "sequence"
                )
                rows = slice(start, start + len(some))
                made.sizes[rows] = kmers.sizes.cpu().numpy()
                _keep_best(
                    made,
                    rows,
                    [values.cpu().numpy() for values in scores],
                    network.weights.numpy(force=True),
                    table.first,
                )
                bar.at(table.first * number + (table.last - table.first) * (start + len(some)))
            del table  # before there is room for the next
    return made


def _room(name: str, kind: str, shape: tuple[int, int], folder: Path | None) -> np.ndarray:
    if folder is None or not shape[0]:
        return np.zeros(shape, dtype=kind)
    room = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
    reserve(folder / f"{name}.npy", room.offset + room.nbytes)
    return room


def _keep_best(made: Candidates, rows: slice, new: list[np.ndarray], weights: np.ndarray, before: int) -> None:
    """Take up new candidates where they are better.

    Args:
        new: Numbers, scores of naive Bayes, logits.
        before: Taxa that were scored before: only so many of the old candidates are some.
    """
    arrays = (made.taxon, made.naive_bayes, made.network)
    width = made.taxon.shape[1]
    old = [array[rows, : min(before, width)] for array in arrays]
    both = [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]
    if both[0].shape[1] > width:
        best = np.argpartition(-(weights[0] * both[1] + weights[1] * both[2]), width - 1, axis=1)[:, :width]
        both = [np.take_along_axis(values, best, axis=1) for values in both]
    for array, values in zip(arrays, both, strict=True):
        array[rows, : values.shape[1]] = values


def most_probable(
    taxon: Int[np.ndarray, "sequences candidates"],
    logits: Float[np.ndarray, "sequences candidates"],
    clade: Int[np.ndarray, "ranks taxa"],
) -> tuple[Int[np.ndarray, " sequences"], Float[np.ndarray, "sequences ranks"]]:
    """The candidate with the largest probability, and the log-odds of its clade at each rank.

    A clade's probability is the sum over its candidates. So is that of all others, for what one clade leaves to 1 is
    lost in rounding where it is sure. Log-odds are within +-16.

    Args:
        taxon: Numbers of the candidates.
    """
    shares = softmax(logits, axis=1)
    best = np.take_along_axis(taxon, shares.argmax(1)[:, None], axis=1)
    odds = []
    for of_rank in clade:
        same = of_rank[taxon] == of_rank[best]
        inside, outside = (np.where(some, shares, 0.0).sum(1) for some in (same, ~same))
        with np.errstate(divide="ignore"):
            odds.append(np.clip(np.log(inside) - np.log(outside), -MOST, MOST))
    return best[:, 0], np.stack(odds, 1)
