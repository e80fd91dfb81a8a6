"""Calls of sequences in their samples: vectors that wait on disk, samples that are read in shards."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from omniset.core.sets import SetBatch
from omniset.core.sources import FunctionSource
from omniset.microbiomes.calls import Calls, Confidence, most_probable, share_of
from omniset.microbiomes.model import STRAND, TaxonNetwork
from omniset.microbiomes.samples import Samples
from omniset.microbiomes.sequences import SHORTEST, reverse_complement
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import TOGETHER, Read, embed
from omniset.report.blocks import many
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.dna import spectra

SHORTER, LONGER = 0.9, 1.2  # of the shortest and longest length learned from: beyond, a warning is due
LEAST_KNOWN = 0.5  # share of the reads that are like any reference: below, a warning is due


@contextmanager
def embedded(
    network: TaxonNetwork, read: Read, texts: Sequence[str], turning: bool, progress: bool
) -> Iterator[tuple[Float[np.ndarray, "features width"], Bool[np.ndarray, " features"]]]:
    """Vectors of sequences, mapped from disk while in use; and which could be read, with a warning of the others.

    Args:
        turning: Words tell sequences of the other strand, which are turned, with a warning.
    """
    device, width = network.strand.device, network.alone.prototypes[0].numel()
    usable = np.zeros(len(texts), dtype=bool)
    turned = 0
    with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
        shape = (max(len(texts), 1), width)
        vectors = np.lib.format.open_memmap(Path(scratch) / "vectors.npy", "w+", np.float32, shape)[: len(texts)]
        with Progress("embedding", len(texts), progress, unit="sequences") as bar:
            for start in range(0, len(texts), TOGETHER):
                some = list(texts[start : start + TOGETHER])
                words = spectra(some, STRAND)
                usable[start : start + len(some)] = (words.sizes > SHORTEST - STRAND).numpy()
                if turning:
                    votes = network.strand[words.words.to(device)].cpu().double()
                    ends = torch.cat([votes.new_zeros(1), votes.cumsum(0)])
                    score = ends[words.starts + words.sizes] - ends[words.starts]
                    for i in (score < 0).nonzero()[:, 0].tolist():
                        some[i], turned = reverse_complement(some[i]), turned + 1
                embed(network.alone, read, some, vectors[start : start + len(some)])
                bar.at(start + len(some))
        if turned:
            warnings.warn(
                f"{turned:,} of {len(texts):,} sequences are of the other strand, and were turned", stacklevel=5
            )
        if not usable.all():
            warnings.warn(
                f"{int((~usable).sum()):,} of {len(texts):,} sequences have fewer than {SHORTEST} bases without "
                "ambiguity, and are left unassigned",
                stacklevel=5,
            )
        yield vectors, usable


@torch.no_grad()
def called(
    network: TaxonNetwork,
    taxa: Taxa,
    confidence: Confidence,
    vectors: Float[np.ndarray, "features width"],
    usable: Bool[np.ndarray, " features"],
    samples: Samples,
    shard_size: int,
    progress: bool,
    streaming: Mapping[str, Any],
) -> Calls:
    """A taxon for every sequence of every sample.

    Args:
        vectors, usable: As `embedded` gives them, of the samples' features.
        shard_size: Sequences of a sample that are computed on at a time.
        streaming: Options of the encoder for samples of any size.
    """
    device = network.strand.device
    clade = torch.from_numpy(taxa.clade).to(device)
    counts = samples.counts.sorted_indices()

    def shard_of(some: Int[np.ndarray, " members"]) -> SetBatch:
        elements = torch.from_numpy(vectors[counts.indices[some]])[None].to(device)
        return SetBatch(elements, torch.from_numpy(counts.data[some]).float()[None].to(device), validate=False)

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
            parts = [span[start : start + shard_size] for start in range(0, len(span), shard_size)]
            source = FunctionSource(partial(map, shard_of, parts))
            prior = network.prior(source, **streaming)
            for some, shard in zip(parts, source, strict=True):
                logits = network.in_context(shard, prior)[0]
                require_finite_outputs(logits, [samples.features[i] for i in counts.indices[some]], "feature")
                best, odds = most_probable(logits, clade)
                similar = network.alone.cosines(shard.elements[0]).amax(1)
                taxon[some] = best.cpu().numpy()
                sure[some] = confidence.of(odds.cpu().numpy(), similar.cpu().numpy())
                bar.at(int(some[-1]) + 1)
        bar.at(counts.nnz)
    sample = np.repeat(np.arange(len(samples.names)), np.diff(counts.indptr))
    arrays = (sample, counts.indices.astype(np.int64), counts.data.astype(np.float64), taxon, sure)
    return Calls(taxa, samples.names, samples.features, *arrays)


def warn_of_lengths(texts: Sequence[str], least: int, most: int) -> None:
    """Where half of the sequences are much shorter or longer than those that were learned."""
    median = float(np.median([len(text) for text in texts])) if len(texts) else float(least)
    if not SHORTER * least <= median <= LONGER * most:
        warnings.warn(
            f"half of the sequences have at {'most' if median < least else 'least'} {median:.0f} bases, the "
            f"model has learned from {least} to {most}: "
            + ("confidences may be wrong" if median < least else "cut them to the region that it has learned"),
            stacklevel=5,
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
