"""Our classifier beside its baselines, on sequences that none has seen, in samples of communities.

Of the references, whole taxa are held out (nothing may be named as one of them), and of the others a fifth of the
distinct sequences. Samples to learn from are replicates of some communities; tested are other replicates of the same
("known communities"), and samples of communities that none has seen ("new communities"), drawn from the held-out
sequences alone. Taxa with one sequence are references as all others, and only cannot be tested. In samples "with
unknown taxa" a tenth of the reads is of taxa that were held out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from sklearn.metrics import f1_score, roc_auc_score

from omniset.microbiomes.baselines import Confidences, Method, NaiveBayes, Nearest, Profiles, Reads, Rows
from omniset.microbiomes.calibration import learn_trust
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.model import candidates_of
from omniset.microbiomes.references import NOISE, Members, References, de_novo, draw, held_out, replicate
from omniset.microbiomes.taxonomy import Taxa
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import Draws, Values
from omniset.trials.kept import Done, Kept

INFORMED, ALONE, WITHOUT_NETWORK = "with-profiles", "no-context", "no-network"
VARIANTS = (OURS, INFORMED, ALONE, WITHOUT_NETWORK)
BASELINES: dict[str, Callable[[], Method]] = {
    "naive-bayes": NaiveBayes,
    "naive-bayes-sample": lambda: NaiveBayes("sample"),
    "naive-bayes-community": lambda: NaiveBayes("community"),
    "nearest": Nearest,
}
METHODS = (*VARIANTS, *BASELINES)
NAMES = {
    OURS: "ours",
    ALONE: "ours, each sequence by itself",
    WITHOUT_NETWORK: "ours without the network",
    "naive-bayes": "each sequence by itself",
    "naive-bayes-community": "with the taxa of the communities",
    "naive-bayes-sample": "with the taxa of the sample",
    "nearest": "the most similar reference",
}
Call = Callable[[Rows, Reads], tuple[Int[np.ndarray, " distinct"], Confidences]]
TOLD = (INFORMED, "naive-bayes-community")  # of the communities that samples are of
SIZES = (1024, 8192, 131_072)
BINS = 10
BIN_COLUMNS = [f"confidence_bin{i}" for i in range(BINS)]
UNTOLD = f"{OURS}, without profiles"
PROFILED, MISLED = "with profiles", "with profiles of others"  # of the samples' own communities, or not
KNOWN, NEW, UNKNOWN = "known communities", "new communities", "with unknown taxa"
MOST_TESTED, MOST_UNKNOWN = 20_000, 5_000  # distinct sequences
TEST_SHARE, UNKNOWN_TAXA = 0.2, 0.05  # of distinct sequences, and of taxa as a whole, that are held out
UNKNOWN_READS = 8192
UNKNOWN_SHARE = 0.1
COMMUNITIES, REPLICATES = 10, 100
TESTED = 2  # test replicates of each community, and as many new communities altogether


# ---------------------------------------------------------------------- what is held out, and samples


@dataclass
class Split:
    """What is learned from, and what is tested."""

    references: References  # of the taxa that are known
    # Their pairs.
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]
    unknown: list[str]  # distinct sequences of taxa that were held out
    taxa: Taxa  # those that are known

    @cached_property
    def tested(self) -> Int[np.ndarray, " tested"]:
        """Numbers of the distinct sequences to be tested, sorted."""
        return np.unique(self.references.sequence[self.test])

    @property
    def texts(self) -> list[str]:
        """The tested sequences, then the unknown ones."""
        return [self.references.texts[i] for i in self.tested] + self.unknown

    def sizes(self) -> dict[str, int]:
        """How much there is of what."""
        return {
            "taxa": len(self.taxa),
            "training sequences": len(np.unique(self.references.sequence[self.train])),
            "test sequences": len(self.tested),
            "unknown sequences": len(self.unknown),
        }


def split(references: References, taxa: Taxa, seed: int) -> Split:
    """Hold out taxa, one at least, and distinct sequences of the others, at random.

    Raises:
        ValueError: Too little is left.
    """
    rng = np.random.default_rng([seed, 11])
    order = rng.permutation(np.unique(references.taxon))
    unknown, known = np.split(order, [max(round(UNKNOWN_TAXA * len(order)), 1)])
    known = np.sort(known)
    if len(known) < 2:
        raise ValueError(f"references must be of at least 3 taxa, one of which is held out, there are {len(order)}")
    pairs = np.isin(references.taxon, known)
    used, sequence = np.unique(references.sequence[pairs], return_inverse=True)
    texts = [references.texts[i] for i in used]
    remaining = References(texts, sequence, np.searchsorted(known, references.taxon[pairs]), len(known))
    tested = held_out(remaining, min(TEST_SHARE, MOST_TESTED / len(used)), rng)  # none of a taxon that has but one
    if not tested.any():
        raise ValueError("no taxon has two distinct sequences, one of which could be tested")
    tested_pairs = tested[sequence]
    # A sequence that a known taxon has too is not unknown.
    others = np.setdiff1d(np.unique(references.sequence[np.isin(references.taxon, unknown)]), used)
    others = rng.permutation(others)[:MOST_UNKNOWN]
    return Split(
        remaining,
        np.flatnonzero(~tested_pairs),
        np.flatnonzero(tested_pairs),
        [references.texts[i] for i in others],
        Taxa.of([taxa.lineages[i] for i in known], taxa.ranks),
    )


@dataclass
class TestSample:
    """A sample whose truth is known."""

    __test__ = False  # no class of tests

    kind: str  # `KNOWN`, `NEW` or `UNKNOWN`
    size: int  # reads
    # Numbers of which it is; equal ones of a split are of one profile.
    community: int
    replicate: int
    rows: Int[np.ndarray, " distinct"]  # numbers of the sequences among `Split.texts`
    reads: Float[np.ndarray, " distinct"]  # of each sequence
    taxon: Int[np.ndarray, " distinct"]  # of each sequence; -1: unknown

    @property
    def condition(self) -> str:
        return condition(self.kind, self.size)


def condition(kind: str, size: int) -> str:
    return f"{kind}, {size:,} reads"


def communities(
    parts: Split, sizes: Sequence[int], seed: int
) -> tuple[Float[np.ndarray, "profiles taxa"], list[TestSample]]:
    """Replicates of ten communities to learn from; test samples of every kind and size."""
    rng = np.random.default_rng([seed, 12])
    taxa = len(parts.taxa)
    bases = [(de_novo(taxa, rng), rng.uniform(*NOISE)) for _ in range(COMMUNITIES)]
    train = np.stack([replicate(base, noise, rng) for base, noise in bases for _ in range(REPLICATES)])
    known = [replicate(base, noise, rng) for base, noise in bases for _ in range(TESTED)]
    new = [de_novo(taxa, rng) for _ in range(COMMUNITIES * TESTED)]
    members = parts.references.members(parts.test)
    tests = []
    for kind, profiles, first, each in ((KNOWN, known, 0, TESTED), (NEW, new, COMMUNITIES, 1)):
        for size in sizes:
            for i, profile in enumerate(profiles):
                place = (first + i // each, i % each)
                tests.append(TestSample(kind, size, *place, *_drawn(parts, profile, size, members, rng)))
    foreign = round(UNKNOWN_SHARE * UNKNOWN_READS)
    for i, profile in enumerate(known):
        rows, reads, taxon = _drawn(parts, profile, UNKNOWN_READS - foreign, members, rng)
        others, times = np.unique(rng.integers(len(parts.unknown), size=foreign), return_counts=True)
        rows = np.concatenate([rows, len(parts.tested) + others])
        reads, taxon = np.concatenate([reads, times]), np.concatenate([taxon, np.full(len(others), -1)])
        tests.append(TestSample(UNKNOWN, UNKNOWN_READS, i // TESTED, i % TESTED, rows, reads, taxon))
    return train, tests


def _drawn(
    parts: Split, profile: np.ndarray, size: int, members: Members, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pairs, times = draw(profile, size, members, rng)
    rows = np.searchsorted(parts.tested, parts.references.sequence[pairs])
    return rows, times.astype(np.float64), parts.references.taxon[pairs]


# ---------------------------------------------------------------------- ours


@dataclass
class Ours:
    """Our network, fitted once for all variants of ours.

    Args:
        like: With the options.
        parts: What is known, and the sequences that are to be named.
        profiles: Of the communities that samples will be of.
    """

    like: TaxonClassifier
    parts: Split
    profiles: Profiles
    seed: int
    folder: Path | None
    resume: bool

    def __post_init__(self) -> None:
        self.classifier = TaxonClassifier(**self.like.get_params()).set_params(seed=self.seed)
        references, train = self.parts.references, self.parts.train
        used, sequence = np.unique(references.sequence[train], return_inverse=True)
        texts = [references.texts[i] for i in used]
        known = References(texts, sequence, references.taxon[train], references.taxa)
        self.classifier.fit_references(known, self.parts.taxa, folder=self.folder, resume=self.resume)

    def variant(self, name: str) -> Call:
        """How it calls the sequences of a split."""
        model, trust, taxa = self.classifier, self.classifier.trust_, self.parts.taxa
        if name != OURS:
            profiles = self.profiles if name == INFORMED else None
            more = {"context": name != ALONE, "without_network": name == WITHOUT_NETWORK}
            trust = learn_trust(model.network_, model.taxa_, model.material_, profiles, **more)
        candidates = candidates_of(model.network_, self.parts.texts)

        def call(rows: Rows, reads: Reads) -> tuple[Int[np.ndarray, " distinct"], Confidences]:
            called, confidence = trust.call(candidates.of(rows), reads, taxa)
            return called, confidence[:, -1]

        return call


# ---------------------------------------------------------------------- what is counted in a sample


@dataclass
class Answers:
    """What a method says of a sample."""

    called: Int[np.ndarray, " distinct"]  # the most probable taxon of each sequence
    confidence: Float[np.ndarray, " distinct"]  # in it
    truth: Int[np.ndarray, " distinct"]  # the taxon; -1: unknown
    reads: Float[np.ndarray, " distinct"]  # of each sequence

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
        """What is no formula of sums: macro-F1 of known reads at the last two ranks; where there are unknown reads, the
        area under the ROC curve of the confidence that tells known from unknown ones.
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
            `rejection_auroc`, and `seconds` of the processors: of ours for the fit, of the others until all is named.
        ranks: At which calls are scored, that of the taxa first.
        sizes: Of the split of the first seed.
    """

    rows: pd.DataFrame
    pooled: pd.DataFrame
    ranks: Sequence[str]
    sizes: dict[str, int] = field(default_factory=dict)

    @cached_property
    def comparison(self) -> Comparison:
        """By communities. The gates: in the smallest samples of new and of known communities, as fit makes it, ours is
        better than the best baseline; in large samples not worse by more than .01 than in small ones of the same
        communities; with profiles of the communities by .02 better than naive Bayes that has them too; and with
        profiles of other communities not worse by more than .005 than without.
        """
        accuracy = f"{self.ranks[0]}_accuracy"
        smallest, largest = ({k: condition(k, reads[i]) for k, reads in self.sizes_of.items()} for i in (0, -1))
        small, large = smallest.get(KNOWN, ""), largest.get(KNOWN, "")
        told = f"{small}, {PROFILED}"
        in_small = f"{OURS}, {small.removeprefix(f'{KNOWN}, ')}"
        rows = self.rows
        aims = [Aim(smallest[kind], accuracy) for kind in (NEW, KNOWN) if kind in smallest]
        with_profiles = rows[rows["method"].isin(TOLD) & (rows["condition"] == small)]
        new = smallest.get(NEW, "")  # the profiles are of the known ones
        misled = rows[rows["method"].isin((OURS, INFORMED)) & (rows["condition"] == new)]
        rows = rows[~rows["method"].isin(TOLD)]
        ours = rows[(rows["method"] == OURS) & (rows["condition"] == small)]
        if small != large and len(ours):
            rows = pd.concat([rows, ours.assign(method=in_small, condition=large)], ignore_index=True)
            aims.append(Aim(large, accuracy, in_small, bound=-0.01))
        if len(with_profiles):
            names = with_profiles["method"].replace(INFORMED, OURS)
            rows = pd.concat([rows, with_profiles.assign(condition=told, method=names)], ignore_index=True)
            aims.append(Aim(told, accuracy, bound=0.02))
        if misled["method"].nunique() == 2:
            names = misled["method"].replace({OURS: UNTOLD, INFORMED: OURS})
            wrongly = f"{new}, {MISLED}"
            rows = pd.concat([rows, misled.assign(condition=wrongly, method=names)], ignore_index=True)
            aims.append(Aim(wrongly, accuracy, UNTOLD, bound=-0.005))
        others = [method for method in self.rows["method"].unique() if method not in METHODS]
        baselines = [*BASELINES, *others]
        about: dict[str, Any] = {"baselines": baselines, "aims": aims, "names": NAMES}
        return Comparison(rows, scores_of(self.ranks), "community", "community", ["replicate"], **about)

    @property
    def sizes_of(self) -> dict[str, list[int]]:
        """The numbers of reads of the samples of each kind."""
        by_kind = self.rows.groupby("kind", sort=False)["reads"]
        return {str(kind): sorted({*reads.tolist()}) for kind, reads in by_kind}

    @property
    def smallest(self) -> list[str]:
        """Of each kind, the condition with the least reads."""
        return [condition(kind, reads[0]) for kind, reads in self.sizes_of.items()]

    def numbers(self) -> dict[str, Any]:
        """For metrics.json."""
        pooled = self.pooled.to_dict("records")
        return {**self.comparison.numbers(), "pooled": pooled, "ranks": [*self.ranks], "sizes": self.sizes}


# ---------------------------------------------------------------------- the run


def evaluate(
    classifier: TaxonClassifier,
    references: References,
    *,
    methods: Sequence[str] | None = None,
    baselines: Mapping[str, Callable[[], Method]] = BASELINES,
    seeds: int = 3,
    sizes: Sequence[int] = SIZES,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Fit and score every method on every seed's split.

    Args:
        classifier: With the arguments of ours and its variants; its `taxa_` are those of the references.
        methods: Among the variants of ours and the baselines; None: all.
        baselines: What makes each of them, by name.
        folder: Keep what is done here, in files per seed and method.
        resume: Take what is done from there; otherwise it is done anew.

    Raises:
        ValueError: An unknown method, a number out of bounds, or too few references.
    """
    known = (*VARIANTS, *baselines)
    methods = known if methods is None else methods
    if unknown := [m for m in methods if m not in known] or ([""] if not methods else []):
        raise ValueError(f"methods must be among {', '.join(known)}, got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not sizes or min(sizes) < 1 or len({*sizes}) < len(sizes):
        raise ValueError(f"sizes must be different numbers of reads >= 1, got {list(sizes)}")
    store = Kept(folder, resume, say)
    arguments = classifier.fingerprint() | {"threshold": classifier.threshold}
    del arguments["seed"]
    settings = {"sizes": [*sizes], "data": references.checksum(), "arguments": arguments}
    tables, pooled = [], []
    counted: dict[str, int] = {}
    for seed in range(classifier.seed, classifier.seed + seeds):
        parts = split(references, classifier.taxa_, seed)
        counted = counted or parts.sizes()
        profiles, tests = communities(parts, sizes, seed)
        ours = [name for name in VARIANTS if name in methods]
        units = ({"ours": ours} if ours else {}) | {name: [name] for name in methods if name not in VARIANTS}
        for unit, names in units.items():
            fitted = (classifier, parts, profiles, seed, store.scratch(f"{unit}.{seed}"), resume)
            made = partial(Ours, *fitted) if unit == "ours" else baselines[unit]
            work = partial(_tested, names, parts, profiles, tests, made)
            done = store.do(f"{unit}.{seed}", settings | {"methods": names}, work, line=f"seed {seed}, {unit}")
            tables.append(pd.DataFrame(done.rows).assign(seed=seed))
            pooled += [{"seed": seed, **scores} for scores in done.facts["pooled"]]
    rows = pd.concat(tables, ignore_index=True)
    rows["community"] = rows["seed"].astype(str) + "." + rows["community"].astype(str).str.zfill(2)
    return Evaluation(rows, pd.DataFrame(pooled), [*last_ranks(classifier.taxa_)], counted)


def _tested(
    names: Sequence[str],
    parts: Split,
    profiles: Profiles,
    tests: Sequence[TestSample],
    make: Callable[[], Ours | Method],
) -> Done:
    start = _seconds()
    made = make()
    if not isinstance(made, Ours):
        made.fit(parts.references, parts.train, profiles, parts.taxa)
        made.read(parts.texts)
    seconds = _seconds() - start
    rows, pooled = [], []
    for method_name in names:
        call = made.variant(method_name) if isinstance(made, Ours) else made.call
        for name, samples in groupby(tests, key=lambda sample: sample.condition):
            several = []
            for sample in samples:
                answers = Answers(*call(sample.rows, sample.reads), sample.taxon, sample.reads)
                several.append(answers)
                about = {"condition": name, "method": method_name, "kind": sample.kind, "reads": sample.size}
                place = {"community": sample.community, "replicate": sample.replicate}
                rows.append({**about, **place, **answers.sums(parts.taxa)})
            scores = Answers.pooled(several).pooled_scores(parts.taxa)
            pooled.append({"method": method_name, "condition": name, "seconds": seconds, **scores})
    return Done({"pooled": pooled}, pd.DataFrame(rows))


def _seconds() -> float:
    """Of the processors, those of programs that were run included."""
    return sum(os.times()[:4])
