"""Calls: the taxon of each sequence in each sample, as deep as it is confident; votes over samples, abundances."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from omniset.microbiomes.calibration import Trust
from omniset.microbiomes.model import Candidates
from omniset.microbiomes.samples import Samples
from omniset.microbiomes.taxonomy import UNASSIGNED, Taxa, Taxonomy, bare, joined, lineages_of, names_at
from omniset.report.blocks import many
from omniset.runs.progress import Progress
from omniset.tables.doubts import FEWEST, refuse_equal_rows

LEAST_KNOWN = 0.5  # share of the reads that are like any reference: below, a warning is due


@dataclass
class Calls:
    """A taxon for every sequence of every sample.

    Attributes:
        taxa: Those that the model knows.
        samples, features: Names.
        sample, feature: (calls,) of which each is.
        count: (calls,) reads.
        taxon: (calls,) the most probable one; -1: the sequence could not be read.
        confidence: (calls, ranks) in its clade at each rank.
    """

    taxa: Taxa
    samples: list[str]
    features: list[str]
    sample: Int[np.ndarray, " calls"]
    feature: Int[np.ndarray, " calls"]
    count: Float[np.ndarray, " calls"]
    taxon: Int[np.ndarray, " calls"]
    confidence: Float[np.ndarray, "calls ranks"]

    @classmethod
    def of(
        cls,
        trust: Trust,
        taxa: Taxa,
        candidates: Candidates,
        usable: Bool[np.ndarray, " features"],
        samples: Samples,
        progress: bool = False,
    ) -> Calls:
        """A taxon for every sequence of every sample.

        Args:
            candidates: Of the samples' features.
            usable: Which of these could be read.
        """
        counts = samples.counts.sorted_indices()
        taxon = np.full(counts.nnz, -1)
        sure = np.zeros((counts.nnz, len(taxa.ranks)), dtype=np.float32)
        empty = np.flatnonzero(np.diff(counts.indptr) == 0)
        if len(empty):
            text = f"{many(len(empty), 'sample')} without reads, such as {samples.names[empty[0]]!r}"
            warnings.warn(text, stacklevel=4)
        with Progress("classifying", counts.nnz, progress, unit="sequences") as bar:
            for row in range(len(samples.names)):
                span = np.arange(counts.indptr[row], counts.indptr[row + 1])
                span = span[usable[counts.indices[span]]]
                if len(span):
                    these = candidates.of(counts.indices[span])
                    taxon[span], sure[span] = trust.call(these, counts.data[span], taxa)
                    bar.at(int(span[-1]) + 1)
            bar.at(counts.nnz)
        sample = np.repeat(np.arange(len(samples.names)), np.diff(counts.indptr))
        feature, number = counts.indices.astype(np.int64), counts.data.astype(np.float64)
        return cls(taxa, samples.names, samples.features, sample, feature, number, taxon, sure)

    def part(self, some: slice | Int[np.ndarray, " some"]) -> Calls:
        """Some of the calls."""
        arrays = (self.sample[some], self.feature[some], self.count[some], self.taxon[some], self.confidence[some])
        return Calls(self.taxa, self.samples, self.features, *arrays)

    def depth(self, threshold: float) -> Int[np.ndarray, " calls"]:
        """Ranks down to the deepest that is confident; 0 where the sequence could not be read."""
        return depth(self.taxa, self.taxon, self.confidence, threshold)

    def per_sample(self, threshold: float) -> pd.DataFrame:
        """A row per call: sample, Feature ID, count, Taxon to the deepest rank that is confident, Confidence in it."""
        head = {"sample": np.array(self.samples, dtype=object)[self.sample]}
        head |= {"Feature ID": np.array(self.features, dtype=object)[self.feature], "count": self.count}
        return pd.DataFrame(head | _named(self.taxa, self.taxon, self.confidence, threshold))

    def per_feature(self, threshold: float) -> pd.DataFrame:
        """A row per feature, as QIIME 2 has taxonomies: Feature ID, Taxon, Confidence.

        The taxon that most of a feature's reads have; its confidence at a rank is that of the samples which agree at
        this rank, by their share of the reads. Features without reads, or which could not be read, are unassigned.
        """
        named = _named(self.taxa, *self._votes, threshold)
        return pd.DataFrame({"Feature ID": np.array(self.features, dtype=object)} | named)

    @cached_property
    def _votes(self) -> tuple[Int[np.ndarray, " features"], Float[np.ndarray, "features ranks"]]:
        """The taxon of each feature over all samples, -1 for none, and confidences."""
        number, ranks = len(self.features), self.confidence.shape[1]
        known = (self.taxon >= 0) & (self.count > 0)
        feature, taxon, count = self.feature[known], self.taxon[known], self.count[known]
        key, place = np.unique(feature * len(self.taxa) + taxon, return_inverse=True)
        votes = np.bincount(place, count, minlength=len(key))
        order = np.lexsort((votes, key // len(self.taxa)))
        winner = np.full(number, -1)
        winner[key[order] // len(self.taxa)] = key[order] % len(self.taxa)  # of several the last, which has most votes
        total = np.bincount(feature, count, minlength=number)
        confidence = np.zeros((number, ranks))
        for rank, clade in enumerate(self.taxa.clade):
            agree = clade[taxon] == clade[winner[feature]]
            summed = np.bincount(feature, count * agree * self.confidence[known, rank], minlength=number)
            confidence[:, rank] = np.divide(summed, total, out=np.zeros(number), where=total > 0)
        return winner, np.minimum.accumulate(confidence, axis=1)

    def differing(self, threshold: float) -> Bool[np.ndarray, " calls"]:
        """Which calls have another name than their feature has over all samples, at a rank that both name."""
        winner, confidence = (values[self.feature] for values in self._votes)
        shared = np.minimum(depth(self.taxa, winner, confidence, threshold), self.depth(threshold))
        clade = self.taxa.clade[np.maximum(shared, 1) - 1]
        rows = np.arange(len(shared))
        return (shared > 0) & (clade[rows, self.taxon] != clade[rows, winner])

    def settled(self, threshold: float) -> Calls:
        """With the feature's call over all samples in place of each that has no other name: what is named deeper in one
        sample than in another is the same taxon.
        """
        winner, confidence = (values[self.feature] for values in self._votes)
        stays = self.differing(threshold) | (winner < 0)
        taxon = np.where(stays, self.taxon, winner)
        return replace(self, taxon=taxon, confidence=np.where(stays[:, None], self.confidence, confidence))

    def abundance(self, threshold: float, rank: str | int | np.integer | None = None) -> pd.DataFrame:
        """Reads of each sample (rows) by taxon (columns), most abundant first.

        Args:
            rank: That taxa are cut at, by its name, or how many names are left; None: as deep as is confident.

        Raises:
            ValueError: A rank that the taxa do not have.
        """
        deep = self.depth(threshold)
        if rank is not None:
            ranks = list(self.taxa.ranks)
            names = ranks.index(str(rank)) + 1 if rank in ranks else rank
            if not isinstance(names, Integral) or not 1 <= names <= len(ranks):
                raise ValueError(f"rank must be one of {', '.join(ranks)}, or a number to {len(ranks)}, got {rank!r}")
            deep = np.minimum(deep, names)
        texts, code = _texts(self.taxa, self.taxon, deep)
        table = np.zeros((len(self.samples), len(texts)))
        np.add.at(table, (self.sample, code), self.count)
        order = np.argsort(-table.sum(0), kind="stable")
        return pd.DataFrame(table[:, order], index=pd.Index(self.samples, name="sample"), columns=texts[order])


def depth(
    taxa: Taxa, taxon: Int[np.ndarray, " calls"], confidence: Float[np.ndarray, "calls ranks"], threshold: float
) -> Int[np.ndarray, " calls"]:
    deepest = np.array([len(lineage) for lineage in taxa.lineages])
    return np.where(taxon >= 0, np.minimum((confidence >= threshold).sum(1), deepest[taxon]), 0)


def _named(taxa: Taxa, taxon: np.ndarray, confidence: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
    """Texts of taxa and confidences. Of what is unassigned, the confidence is that it is not of the first rank's clade,
    and 0 where nothing could be read.
    """
    deep = depth(taxa, taxon, confidence, threshold)
    texts, code = _texts(taxa, taxon, deep)
    rows = np.arange(len(taxon))
    sure = np.where(deep > 0, confidence[rows, np.maximum(deep, 1) - 1], 1 - confidence[:, 0])
    return {"Taxon": texts[code], "Confidence": np.where(taxon >= 0, sure, 0.0)}


def _texts(taxa: Taxa, taxon: np.ndarray, deep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct texts of taxa cut to depths, and which of them each is."""
    ranks = len(taxa.clade)
    key = np.where(deep > 0, 1 + (deep - 1) * len(taxa) + taxon, 0)
    distinct, place = np.unique(key, return_inverse=True)
    names = [
        joined(taxa.lineages[(k - 1) % len(taxa)][: min((k - 1) // len(taxa) + 1, ranks)]) if k else UNASSIGNED
        for k in distinct.tolist()
    ]
    texts, again = np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)
    return texts.astype(object), again[place]


def agreement(calls: Calls, by_feature: pd.DataFrame, others: Taxonomy) -> pd.DataFrame:
    """How often our calls over all samples and those of others have the same name at a rank.

    Returns:
        A row per rank: `rank`, `by_reads`, `by_sequences`, and `compared_reads`, the share of all reads that this is
        of. Compared is what both name, and by a name that the references have at this rank: elsewhere taxonomies
        differ.
    """
    reads = np.bincount(calls.feature, calls.count, minlength=len(calls.features))
    total = max(float(reads.sum()), 1e-300)
    ours = lineages_of(dict(zip(by_feature["Feature ID"], by_feature["Taxon"], strict=True)), calls.taxa.ranks)
    place = {feature: i for i, feature in enumerate(calls.features)}
    rows = []
    for rank, name in enumerate(calls.taxa.ranks):
        known = {bare(lineage[rank]) for lineage in calls.taxa.lineages if len(lineage) > rank}
        called = dict(names_at(ours, rank))
        given = dict(names_at(others, others.ranks.index(name))) if name in others.ranks else {}
        both = [feature for feature in calls.features if feature in called and given.get(feature) in known]
        same = np.array([called[feature] == given[feature] for feature in both], dtype=bool)
        weight = reads[[place[feature] for feature in both]]
        by_reads = float(weight[same].sum() / weight.sum()) if weight.sum() else np.nan
        by_sequences = float(same.mean()) if len(same) else np.nan
        rows.append((name, by_reads, by_sequences, float(weight.sum() / total)))
    return pd.DataFrame(rows, columns=["rank", "by_reads", "by_sequences", "compared_reads"])


def share_of(value: float | None) -> str:
    """In percent; all only where it is all.

    >>> share_of(0.9999), share_of(1.0), share_of(float("nan"))
    ('99.9%', '100.0%', '-')
    """
    return "-" if value is None or np.isnan(value) else f"{min(value, 0.999) if value < 1 else value:.1%}"


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


def require_named(calls: Calls, threshold: float) -> None:
    """See that there is something named, in most samples and not the same in each; warn where it is so.

    Raises:
        ValueError: In none of at least 5 samples.
    """
    reads, named = (
        np.bincount(calls.sample, calls.count * some, minlength=len(calls.samples))
        for some in (calls.taxon > -2, calls.depth(threshold) > 0)
    )
    nothing, some = np.flatnonzero((reads > 0) & (named == 0)), np.flatnonzero(named)
    if 2 * len(nothing) > (reads > 0).sum():
        said = (
            f"in {len(nothing):,} of {many(int((reads > 0).sum()), 'sample')} nothing is assigned, such as "
            f"{calls.samples[nothing[0]]!r}: are these reads of the region that the model has learned, from its start "
            "on? --threshold says how sure a name must be"
        )
        if not len(some) and len(nothing) >= FEWEST:
            raise ValueError(said)
        warnings.warn(said, stacklevel=3)
    table = calls.abundance(threshold).to_numpy()[some]
    try:
        refuse_equal_rows(table, [calls.samples[at] for at in some], file="abundance.tsv", what="samples")
    except ValueError as error:  # so may cultures be, or samples of few reads
        warnings.warn(str(error), stacklevel=3)
