"""Calls of sequences in their samples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float

from omniset.microbiomes.calls import Calls, Confidence, most_probable, share_of
from omniset.microbiomes.model import STRAND, TaxonNetwork
from omniset.microbiomes.samples import Samples
from omniset.microbiomes.sequences import SHORTEST, reverse_complement
from omniset.microbiomes.shares import Candidates, Prior
from omniset.microbiomes.taxonomy import Taxa
from omniset.report.blocks import many
from omniset.runs.progress import Progress
from omniset.tables.dna import spectra

SHORTER, LONGER = 0.9, 1.2  # of the shortest and longest length learned from: beyond, a warning is due
LEAST_KNOWN = 0.5  # share of the reads that are like any reference: below, a warning is due
TOGETHER = 4096  # sequences at a time


def readable(
    network: TaxonNetwork, texts: Sequence[str], turning: bool
) -> tuple[list[str], Bool[np.ndarray, " sequences"]]:
    """Sequences on the strand of the references; and which could be read, with a warning of the others.

    Args:
        turning: Words tell sequences of the other strand, which are turned, with a warning.
    """
    usable = np.zeros(len(texts), dtype=bool)
    plain, turned = [*texts], 0
    strand = network.strand.cpu()
    for start in range(0, len(texts), TOGETHER):
        words = spectra(plain[start : start + TOGETHER], STRAND)
        usable[start : start + TOGETHER] = (words.sizes > SHORTEST - STRAND).numpy()
        if turning:
            votes = strand[words.words].double()
            ends = torch.cat([votes.new_zeros(1), votes.cumsum(0)])
            score = ends[words.starts + words.sizes] - ends[words.starts]
            for i in (start + (score < 0).nonzero()[:, 0]).tolist():
                plain[i], turned = reverse_complement(plain[i]), turned + 1
    if turned:
        warnings.warn(f"{turned:,} of {len(texts):,} sequences are of the other strand, and were turned", stacklevel=4)
    if not usable.all():
        warnings.warn(
            f"{int((~usable).sum()):,} of {len(texts):,} sequences have fewer than {SHORTEST} bases without "
            "ambiguity, and are left unassigned",
            stacklevel=4,
        )
    return plain, usable


def called(
    taxa: Taxa,
    candidates: Candidates,
    usable: Bool[np.ndarray, " features"],
    samples: Samples,
    weights: Float[np.ndarray, " two"],
    prior: Prior,
    confidence: Confidence,
    progress: bool,
) -> Calls:
    """A taxon for every sequence of every sample.

    Args:
        candidates, usable: Of the samples' features.
        weights: Of naive Bayes and the network.
    """
    counts = samples.counts.sorted_indices()
    taxon = np.full(counts.nnz, -1)
    sure = np.zeros((counts.nnz, len(taxa.ranks)), dtype=np.float32)
    empty = np.flatnonzero(np.diff(counts.indptr) == 0)
    if len(empty):
        warnings.warn(f"{many(len(empty), 'sample')} without reads, such as {samples.names[empty[0]]!r}", stacklevel=4)
    with Progress("classifying", counts.nnz, progress, unit="sequences") as bar:
        for row in range(len(samples.names)):
            span = np.arange(counts.indptr[row], counts.indptr[row + 1])
            span = span[usable[counts.indices[span]]]
            if not len(span):
                continue
            these = candidates.of(counts.indices[span])
            logits = these.logits(weights)
            logits += prior.log_shares(these.taxon, logits, counts.data[span], len(taxa))[these.taxon]
            best, odds = most_probable(these.taxon, logits, taxa.clade)
            taxon[span], sure[span] = best, confidence.of(odds, these.likeness)
            bar.at(int(span[-1]) + 1)
        bar.at(counts.nnz)
    sample = np.repeat(np.arange(len(samples.names)), np.diff(counts.indptr))
    feature, number = counts.indices.astype(np.int64), counts.data.astype(np.float64)
    return Calls(taxa, samples.names, samples.features, sample, feature, number, taxon, sure)


def warn_of_lengths(texts: Sequence[str], least: int, most: int) -> None:
    """Where half of the sequences are much shorter or longer than those that were learned."""
    median = float(np.median([len(text) for text in texts])) if len(texts) else float(least)
    if not SHORTER * least <= median <= LONGER * most:
        warnings.warn(
            f"half of the sequences have at {'most' if median < least else 'least'} {median:.0f} bases, the "
            f"model has learned from {least} to {most}: "
            + ("confidences may be wrong" if median < least else "cut them to the region that it has learned"),
            stacklevel=4,
        )


def warn_of_strangers(calls: Calls, region: str | None) -> None:
    """Where most reads are nothing to the model: they may be of another part of the gene."""
    likely = (calls.taxon >= 0) & (calls.confidence[:, 0] >= 0.5)
    share = float(calls.count[likely].sum() / max(calls.count.sum(), 1e-300))
    if share < LEAST_KNOWN:
        learned = "whole references" if region is None else f"the region {region}, without its primers"
        warnings.warn(
            f"only {share_of(share)} of the reads are likely to be of the {calls.taxa.ranks[0]} that they are "
            f"nearest to: the model has learned {learned}; are these reads of it, from its start on?",
            stacklevel=3,
        )
