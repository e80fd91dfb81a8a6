"""Our classifier beside its baselines, on sequences that none has seen, in samples of communities.

Of the references, whole taxa are held out (nothing may be named as one of them), and of the others a fifth of the
distinct sequences. Samples to learn from are replicates of some communities; tested are other replicates of the same
("known communities"), and samples of communities that none has seen ("new communities"), drawn from the held-out
sequences alone. In samples "with unknown taxa" a tenth of the reads is of taxa that were held out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.metrics import f1_score, roc_auc_score

from omniset.core.sets import SetBatch
from omniset.microbiomes.baselines import Confidences, Logits, Method, NaiveBayes, Nearest, Pairs, Profiles, Reads, Rows
from omniset.microbiomes.calls import most_probable
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.references import References
from omniset.microbiomes.splits import KNOWN, Split, TestSample, communities, condition, split
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import embed
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import Draws, Values
from omniset.trials.kept import Done, Kept

NETWORKS: dict[str, dict[str, Any]] = {
    OURS: {},  # as the user has it
    "general": {},
    "sab": {"encoder": "set-transformer-sab"},
    "no-context": {"encoder": "none"},
}
BASELINES: dict[str, Callable[[], Method]] = {
    "naive-bayes": NaiveBayes,
    "naive-bayes-community": lambda: NaiveBayes("community"),
    "naive-bayes-sample": lambda: NaiveBayes("sample"),
    "nearest": Nearest,
}
METHODS = (*NETWORKS, *BASELINES)
SIZES = tuple(1024 << i for i in range(8))
BINS = 10
BIN_COLUMNS = [f"confidence_bin{i}" for i in range(BINS)]


class NetworkMethod(Method):
    """Ours, or a variant of it, as a method among others.

    Args:
        name: One of `NETWORKS`; all but "general" learn from the communities that samples will be of.
        like: With the other options.
        taxa: Those that are known.
        folder: For checkpoints.
    """

    def __init__(
        self, name: str, like: TaxonClassifier, taxa: Taxa, seed: int, folder: Path | None, resume: bool
    ) -> None:
        self.classifier = TaxonClassifier(**like.get_params()).set_params(seed=seed, **NETWORKS[name])
        self.classifier.taxa_, self.classifier.notes_ = taxa, []
        self.informed, self.folder, self.resume = name != "general", folder, resume

    def fit(self, references: References, chosen: Pairs, profiles: Profiles | None) -> None:
        used, sequence = np.unique(references.sequence[chosen], return_inverse=True)
        texts = [references.texts[i] for i in used]
        known = References(texts, sequence, references.taxon[chosen], references.taxa)
        profiles = profiles if self.informed else None
        self.classifier.fit_references(known, profiles, folder=self.folder, resume=self.resume)

    def read(self, texts: Sequence[str]) -> None:
        self.vectors = np.empty((len(texts), self.classifier.width), dtype=np.float32)
        embed(self.classifier.network_.alone, self.classifier.reader, texts, self.vectors)

    @torch.no_grad()
    def logits(self, rows: Rows, reads: Reads) -> Logits:
        batch = SetBatch(torch.from_numpy(self.vectors[rows])[None], torch.from_numpy(reads).float()[None])
        return self.classifier.network_(batch)[0].numpy()

    @torch.no_grad()
    def confidence(self, rows: Rows, logits: Logits) -> Confidences:
        clade = torch.from_numpy(self.classifier.taxa_.clade)
        odds = most_probable(torch.from_numpy(logits), clade)[1].numpy()
        similar = self.classifier.network_.alone.cosines(torch.from_numpy(self.vectors[rows])).amax(1).numpy()
        return self.classifier.confidence_.of(odds, similar)[:, -1]


# ---------------------------------------------------------------------- what is counted in a sample


@dataclass
class Answers:
    """What a method says of a sample.

    Attributes:
        called: The most probable taxon of each sequence.
        confidence: In it.
        truth: The taxon; -1: unknown.
        reads: Of each sequence.
    """

    called: Int[np.ndarray, " distinct"]
    confidence: Float[np.ndarray, " distinct"]
    truth: Int[np.ndarray, " distinct"]
    reads: Float[np.ndarray, " distinct"]

    @classmethod
    def of(cls, method: Method, sample: TestSample) -> Answers:
        logits = method.logits(sample.rows, sample.reads)
        return cls(logits.argmax(1), method.confidence(sample.rows, logits), sample.taxon, sample.reads)

    @classmethod
    def pooled(cls, several: Sequence[Answers]) -> Answers:
        parts = ((one.called, one.confidence, one.truth, one.reads) for one in several)
        return cls(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def sums(self, taxa: Taxa) -> dict[str, float]:
        """What scores are formulas of: right and known reads and sequences at the last two ranks; and of each tenth of
        the confidences, the sum over its reads of confidence less being right, where unknown reads are never right.
        """
        known = self.truth >= 0
        sums = {"known_reads": float(self.reads[known].sum()), "known_sequences": float(known.sum())}
        for rank, clade in last_ranks(taxa).items():
            right = known & (clade[self.called] == clade[self.truth])
            sums[f"{rank}_right_reads"] = float(self.reads[right].sum())
            sums[f"{rank}_right_sequences"] = float(right.sum())
        bins = np.minimum((self.confidence * BINS).astype(np.int64), BINS - 1)
        excess = self.confidence.astype(np.float64) - (self.called == self.truth)
        by_bin = np.bincount(bins, self.reads * excess, minlength=BINS)
        return sums | dict(zip(BIN_COLUMNS, by_bin.tolist(), strict=True))

    def pooled_scores(self, taxa: Taxa) -> dict[str, float]:
        """What is no formula of sums: macro-F1 of known reads at the last two ranks; where there are unknown ones, the
        area under the ROC curve of the confidence that tells known from unknown reads.
        """
        known = self.truth >= 0
        scores: dict[str, float] = {}
        for rank, clade in last_ranks(taxa).items():
            truth, called = clade[self.truth[known]], clade[self.called[known]]
            options: dict[str, Any] = {"labels": np.unique(truth), "average": "macro", "zero_division": 0.0}
            scores[f"{rank}_macro_f1"] = float(f1_score(truth, called, sample_weight=self.reads[known], **options))
        if not known.all():
            scores["rejection_auroc"] = float(roc_auc_score(known, self.confidence, sample_weight=self.reads))
        return scores


def last_ranks(taxa: Taxa) -> Mapping[str, Int[np.ndarray, " taxa"]]:
    """The clades of the taxa at their rank and at the one above it."""
    return dict(zip(reversed(taxa.ranks[-2:]), reversed(taxa.clade[-2:]), strict=True))


# ---------------------------------------------------------------------- scores of all samples


def _of_seeds(rows: pd.DataFrame, draws: Draws, columns: Sequence[str]) -> Float[np.ndarray, "columns draws seeds"]:
    """The weighted sums over the samples of each seed."""
    seed = rows["seed"].to_numpy()
    values = rows[[*columns]].to_numpy(np.float64)[:, :, None] * (seed[:, None, None] == np.unique(seed))
    sums = draws.sums(values.reshape(len(rows), -1)).reshape(len(draws), len(columns), -1)
    return sums.transpose(1, 0, 2)


def _mean_share(part: Float[np.ndarray, "draws seeds"], whole: Float[np.ndarray, "draws seeds"]) -> Values:
    """Mean over the seeds that a draw has samples of."""
    with np.errstate(invalid="ignore"):
        return np.nanmean(part / whole, axis=1)


def share(part: str, whole: str, rows: pd.DataFrame, draws: Draws) -> Values:
    """Mean over seeds of the sum of one column over all samples, by that of another."""
    return _mean_share(*_of_seeds(rows, draws, (part, whole)))


def calibration_error(rows: pd.DataFrame, draws: Draws) -> Values:
    """Mean over seeds of the expected calibration error of all reads,

        sum_b |sum over the reads of bin b of (confidence - right)| / reads,

    bins of equal width (Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", 2015).
    """
    *excess, reads = _of_seeds(rows, draws, (*BIN_COLUMNS, "reads"))
    return _mean_share(np.abs(excess).sum(0), reads)


def scores_of(ranks: Sequence[str]) -> list[Score]:
    """The scores of samples, the one that decides first."""
    scores = []
    for rank in ranks:
        by_reads = partial(share, f"{rank}_right_reads", "known_reads")
        by_sequence = partial(share, f"{rank}_right_sequences", "known_sequences")
        scores.append(Score(f"{rank}_accuracy", f"{rank} accuracy", share=True, formula=by_reads))
        text = f"{rank} accuracy by sequence"
        scores.append(Score(f"{rank}_accuracy_by_sequence", text, share=True, formula=by_sequence))
    error = Score("calibration_error", "calibration error", larger=False, share=True, formula=calibration_error)
    return [*scores, error]


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        rows: A row per method and test sample: `condition`, `method`, `seed`, `community`, `replicate`, `kind`,
            `reads`, and the sums of `Answers.sums`.
        pooled: A row per seed, method and condition, with what is no formula of sums over samples: macro-F1,
            `rejection_auroc`, and `seconds` of the fit.
        ranks: At which calls are scored, that of the taxa first.
        sizes: Of the split of the first seed.
    """

    rows: pd.DataFrame
    pooled: pd.DataFrame
    ranks: Sequence[str]
    sizes: dict[str, int] = field(default_factory=dict)

    @cached_property
    def comparison(self) -> Comparison:
        """By communities. The gates: in small samples of known communities ours is better than the best baseline, and
        than without context; and in large ones not worse by more than .01 than in small ones of the same communities.
        """
        accuracy = f"{self.ranks[0]}_accuracy"
        small, large = (condition(KNOWN, size) for size in (self.reads(KNOWN)[0], self.reads(KNOWN)[-1]))
        in_small = f"{OURS}, {small.removeprefix(f'{KNOWN}, ')}"
        rows, aims = self.rows, [Aim(small, accuracy), Aim(small, accuracy, "no-context")]
        ours = rows[(rows["method"] == OURS) & (rows["condition"] == small)]
        if small != large and len(ours):
            rows = pd.concat([rows, ours.assign(method=in_small, condition=large)], ignore_index=True)
            aims.append(Aim(large, accuracy, in_small, bound=-0.01))
        return Comparison(
            rows, scores_of(self.ranks), "community", "community", ["replicate"], baselines=[*BASELINES], aims=aims
        )

    def reads(self, kind: str) -> list[int]:
        """The numbers of reads of the samples of a kind."""
        return sorted(self.rows.loc[self.rows["kind"] == kind, "reads"].unique().tolist())

    @property
    def smallest(self) -> list[str]:
        """Of each kind, the condition with the least reads."""
        return [condition(kind, self.reads(kind)[0]) for kind in self.rows["kind"].unique()]

    def pooled_means(self, condition: str) -> pd.DataFrame:
        """Means over seeds by method of what `pooled` has."""
        table = self.pooled[self.pooled["condition"] == condition].drop(columns=["condition", "seed"])
        return table.groupby("method", sort=False).mean().dropna(axis=1, how="all")

    def numbers(self) -> dict[str, Any]:
        """For metrics.json."""
        pooled = self.pooled.to_dict("records")
        return {**self.comparison.numbers(), "pooled": pooled, "ranks": [*self.ranks], "sizes": self.sizes}


# ---------------------------------------------------------------------- the run


def evaluate(
    classifier: TaxonClassifier,
    references: References,
    *,
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    sizes: Sequence[int] = SIZES,
    least: int = 5,
    test_fraction: float = 0.2,
    unknown_fraction: float = 0.05,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Fit and score every method on every seed's split.

    Args:
        classifier: With the arguments of ours and its variants; its `taxa_` are those of the references.
        folder: Keep what is done here, in files per seed and method.
        resume: Take what is done from there; otherwise it is done anew.

    Raises:
        ValueError: An unknown method, a number out of bounds, or too few references.
    """
    if unknown := [m for m in methods if m not in METHODS] or ([""] if not methods else []):
        raise ValueError(f"methods must be among {', '.join(METHODS)}, got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not sizes or min(sizes) < 1 or len({*sizes}) < len(sizes):
        raise ValueError(f"sizes must be different numbers of reads >= 1, got {list(sizes)}")
    for name, value in (("test_fraction", test_fraction), ("unknown_fraction", unknown_fraction)):
        if not 0 < value <= 0.5:
            raise ValueError(f"{name} must be above 0 and at most 0.5, got {value}")
    store = Kept(folder, resume, say)
    options: dict[str, Any] = {"least": least, "test_fraction": test_fraction, "unknown_fraction": unknown_fraction}
    arguments = classifier.fingerprint() | {"threshold": classifier.threshold}
    del arguments["seed"]
    settings = {"sizes": [*sizes], **options, "data": references.checksum(), "arguments": arguments}
    tables, pooled = [], []
    counted: dict[str, int] = {}
    for seed in range(classifier.seed, classifier.seed + seeds):
        parts = split(references, classifier.taxa_, seed=seed, **options)
        counted = counted or parts.sizes()
        profiles, tests = communities(parts, sizes, seed)
        for name in methods:
            unit = f"{name}.{seed}"
            network = (name, classifier, parts.taxa, seed, store.scratch(unit), resume)
            method = BASELINES[name]() if name in BASELINES else NetworkMethod(*network)
            work = partial(_tested, method, parts, profiles, tests)
            done = store.do(unit, settings, work, line=f"seed {seed}, {name}")
            tables.append(pd.DataFrame(done.rows).assign(method=name, seed=seed))
            pooled += [
                {"method": name, "seed": seed, "seconds": done.facts["seconds"], **scores}
                for scores in done.facts["pooled"]
            ]
    rows = pd.concat(tables, ignore_index=True)
    rows["community"] = rows["seed"].astype(str) + "." + rows["community"].astype(str).str.zfill(2)
    return Evaluation(rows, pd.DataFrame(pooled), [*last_ranks(classifier.taxa_)], counted)


def _tested(method: Method, parts: Split, profiles: np.ndarray, tests: Sequence[TestSample]) -> Done:
    start = time.monotonic()
    method.fit(parts.references, parts.train, profiles)
    seconds = time.monotonic() - start
    method.read(parts.texts)
    rows, pooled = [], []
    for name, samples in groupby(tests, key=lambda sample: sample.condition):
        several = []
        for sample in samples:
            answers = Answers.of(method, sample)
            several.append(answers)
            about = {"condition": name, "kind": sample.kind, "reads": sample.size}
            place = {"community": sample.community, "replicate": sample.replicate}
            rows.append({**about, **place, **answers.sums(parts.taxa)})
        pooled.append({"condition": name, **Answers.pooled(several).pooled_scores(parts.taxa)})
    return Done({"seconds": seconds, "pooled": pooled}, pd.DataFrame(rows))
