"""Our classifier beside its baselines, on sequences that none has seen, in samples of communities.

Of the references, whole taxa are held out (nothing may be named as one of them), and of the others a fifth of the
distinct sequences. Samples to learn from are replicates of some communities; tested are other replicates of the same
("known communities"), and samples of communities that none has seen ("new communities"), drawn from the held-out
sequences alone. In samples "with unknown taxa" a tenth of the reads is of taxa that were held out.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from sklearn.metrics import f1_score, roc_auc_score

from omniset.files import plain, writable_folder, write_json
from omniset.microbiomes.baselines import Method, NaiveBayes, Nearest
from omniset.microbiomes.calls import most_probable
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.communities import NOISE, Members, de_novo, draw, replicate
from omniset.microbiomes.references import References
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import embed
from omniset.sets import SetBatch

MINE = "omniset"
NETWORKS: dict[str, dict[str, Any]] = {
    MINE: {},  # as the user has it
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
KNOWN, NEW, UNKNOWN = "known communities", "new communities", "with unknown taxa"
UNKNOWN_READS = 8192
UNKNOWN_SHARE = 0.1
COMMUNITIES, REPLICATES = 10, 100
TESTED = 2  # test replicates of each community, and as many new communities altogether
BINS = 10


class NetworkMethod(Method):
    """Ours, or a variant of it, as a method among others."""

    def __init__(self, classifier: TaxonClassifier, told: bool, folder: Path | None, resume: bool) -> None:
        self.classifier, self.told, self.folder, self.resume = classifier, told, folder, resume

    def fit(
        self,
        references: References,
        chosen: Int[np.ndarray, " chosen"],
        profiles: Float[np.ndarray, "profiles taxa"] | None,
    ) -> None:
        texts = [references.texts[i] for i in np.unique(references.sequence[chosen])]
        place = {text: i for i, text in enumerate(texts)}
        sequence = np.array([place[references.texts[i]] for i in references.sequence[chosen]])
        own = References(texts, sequence, references.taxon[chosen], references.taxa)
        self.classifier.fit_references(own, profiles if self.told else None, folder=self.folder, resume=self.resume)

    def read(self, texts: Sequence[str]) -> None:
        network = self.classifier.network_
        self.vectors = np.empty((len(texts), self.classifier.width), dtype=np.float32)
        read = self.classifier._reader(network)
        embed(network.alone, read, texts, self.vectors)

    @torch.no_grad()
    def logits(
        self, rows: Int[np.ndarray, " distinct"], reads: Float[np.ndarray, " distinct"]
    ) -> Float[np.ndarray, "distinct taxa"]:
        batch = SetBatch(torch.from_numpy(self.vectors[rows])[None], torch.from_numpy(reads).float()[None])
        network = self.classifier.network_
        return network(batch)[0].numpy()

    @torch.no_grad()
    def confidence(
        self, rows: Int[np.ndarray, " distinct"], logits: Float[np.ndarray, "distinct taxa"]
    ) -> Float[np.ndarray, " distinct"]:
        clade = torch.from_numpy(self.classifier.taxa_.clade)
        odds = most_probable(torch.from_numpy(logits), clade)[1].numpy()
        similar = self.classifier.network_.alone.cosines(torch.from_numpy(self.vectors[rows])).amax(1).numpy()
        return self.classifier.confidence_.of(odds, similar)[:, -1]


@dataclass
class Split:
    """What is learned from, and what is tested.

    Attributes:
        references: Of the taxa that are known.
        train, test: Their pairs.
        unknown: Distinct sequences of taxa that were held out.
        taxa: Those that are known.
    """

    references: References
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]
    unknown: list[str]
    taxa: Taxa


def split(
    references: References, taxa: Taxa, *, least: int, test_fraction: float, unknown_fraction: float, seed: int
) -> Split:
    """Hold out taxa, and distinct sequences of the others, at random.

    Args:
        least: Taxa of fewer distinct sequences are left out of everything.

    Raises:
        ValueError: Too little is left.
    """
    rng = np.random.default_rng([seed, 11])
    sizes = np.bincount(references.taxon, minlength=references.taxa)
    enough = np.flatnonzero(sizes >= least)
    order = rng.permutation(enough)
    held = np.sort(order[: round(unknown_fraction * len(order))])
    known = np.sort(order[len(held) :])
    if len(known) < 2 or not len(held):
        raise ValueError(
            f"{len(enough)} taxa have at least least={least} distinct sequences: too few to hold out "
            f"unknown_fraction={unknown_fraction:g} of them"
        )
    number = np.full(references.taxa, -1)
    number[known] = np.arange(len(known))
    mine = number[references.taxon] >= 0
    used = np.unique(references.sequence[mine])
    place = np.full(len(references.texts), -1)
    place[used] = np.arange(len(used))
    own = References(
        [references.texts[i] for i in used],
        place[references.sequence[mine]],
        number[references.taxon[mine]],
        len(known),
    )
    tested = np.zeros(len(used), dtype=bool)
    tested[rng.permutation(len(used))[: round(test_fraction * len(used))]] = True
    # A sequence that a known taxon has too is not unknown.
    others = np.setdiff1d(np.unique(references.sequence[np.isin(references.taxon, held)]), used)
    pairs = tested[own.sequence]
    return Split(
        own,
        np.flatnonzero(~pairs),
        np.flatnonzero(pairs),
        [references.texts[i] for i in others],
        Taxa.of([taxa.lineages[i] for i in known]),
    )


@dataclass
class TestSample:
    """Attributes: rows: Numbers of the test sequences. reads: Of each. taxon: Of each; -1: unknown."""

    kind: str
    size: int
    rows: Int[np.ndarray, " distinct"]
    reads: Float[np.ndarray, " distinct"]
    taxon: Int[np.ndarray, " distinct"]


@dataclass
class Communities:
    """Attributes: train: Replicates to learn from. tests: Samples."""

    train: Float[np.ndarray, "profiles taxa"]
    tests: list[TestSample]


def communities(parts: Split, texts: Sequence[str], sizes: Sequence[int], seed: int) -> Communities:
    """Replicates of ten communities to learn from; test samples of every kind and size.

    Args:
        texts: Test sequences, then unknown ones, by which rows are numbered.
    """
    rng = np.random.default_rng([seed, 12])
    taxa = parts.references.taxa
    bases = [(de_novo(taxa, rng), rng.uniform(*NOISE)) for _ in range(COMMUNITIES)]
    train = np.stack([replicate(base, noise, rng) for base, noise in bases for _ in range(REPLICATES)])
    known = [replicate(base, noise, rng) for base, noise in bases for _ in range(TESTED)]
    new = [de_novo(taxa, rng) for _ in range(COMMUNITIES * TESTED)]
    members = Members.of(parts.test, parts.references.taxon[parts.test], taxa)
    row_of = {text: i for i, text in enumerate(texts)}
    tests = []
    for kind, profiles in ((KNOWN, known), (NEW, new)):
        for size in sizes:
            for profile in profiles:
                rows, reads, taxon = _drawn(parts, profile, size, members, row_of, rng)
                tests.append(TestSample(kind, size, rows, reads, taxon))
    for profile in known:
        foreign = round(UNKNOWN_SHARE * UNKNOWN_READS)
        rows, reads, taxon = _drawn(parts, profile, UNKNOWN_READS - foreign, members, row_of, rng)
        others, times = np.unique(rng.integers(len(parts.unknown), size=foreign), return_counts=True)
        rows = np.concatenate([rows, len(texts) - len(parts.unknown) + others])
        reads, taxon = np.concatenate([reads, times]), np.concatenate([taxon, np.full(len(others), -1)])
        tests.append(TestSample(UNKNOWN, UNKNOWN_READS, rows, reads.astype(np.float64), taxon))
    return Communities(train, tests)


def _drawn(
    parts: Split,
    profile: np.ndarray,
    size: int,
    members: Members,
    row_of: dict[str, int],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    drawn, times = draw(profile, size, members, rng)
    rows = np.array([row_of[parts.references.texts[i]] for i in parts.references.sequence[drawn]])
    return rows, times.astype(np.float64), parts.references.taxon[drawn]


def score(method: Method, tests: Sequence[TestSample], taxa: Taxa) -> list[dict[str, Any]]:
    """A row per kind and size: what `_scores` finds over all samples of it."""
    found = []
    for kind, size in dict.fromkeys((t.kind, t.size) for t in tests):
        parts = []
        for test in (t for t in tests if (t.kind, t.size) == (kind, size)):
            logits = method.logits(test.rows, test.reads)
            parts.append((logits.argmax(1), method.confidence(test.rows, logits), test.taxon, test.reads, test.rows))
        called, sure, taxon, reads, rows = (np.concatenate(values) for values in zip(*parts, strict=True))
        found.append({"kind": kind, "reads": size} | _scores(called, sure, taxon, reads, rows, taxa))
    return found


def _scores(
    called: np.ndarray, sure: np.ndarray, taxon: np.ndarray, reads: np.ndarray, rows: np.ndarray, taxa: Taxa
) -> dict[str, float]:
    """Accuracies and macro-F1 of known reads, at the last two ranks; by sequences, accuracy with each sequence once per
    sample; expected calibration error by reads; where there are unknown ones, the area under the ROC curve of the
    confidence that tells known from unknown reads.
    """
    known = taxon >= 0
    found: dict[str, float] = {}
    if not known.all():
        found["rejection_auroc"] = float(roc_auc_score(known, sure, sample_weight=reads))
    for place in (len(taxa.ranks) - 1, len(taxa.ranks) - 2):
        clade = taxa.clade[place]
        right = clade[called[known]] == clade[taxon[known]]
        rank = taxa.ranks[place]
        found[f"{rank}_accuracy"] = float(np.average(right, weights=reads[known]))
        found[f"{rank}_accuracy_by_sequence"] = float(right.mean())
        truth, said = clade[taxon[known]], clade[called[known]]
        found[f"{rank}_macro_f1"] = float(
            f1_score(
                truth, said, labels=np.unique(truth), average="macro", sample_weight=reads[known], zero_division=0.0
            )
        )
    right = np.where(known, called == taxon, False)
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    total = np.bincount(bins, reads, minlength=BINS)
    gaps = np.abs(np.bincount(bins, reads * right, minlength=BINS) - np.bincount(bins, reads * sure, minlength=BINS))
    found["calibration_error"] = float(gaps[total > 0].sum() / reads.sum())
    return found


@dataclass
class Evaluation:
    """What was found.

    Attributes:
        rows: A row per seed, method, kind of samples and number of reads, with the scores; `seconds` of the fit.
        sizes: Of the split of the first seed.
        rank: Which taxa are told apart.
    """

    rows: pd.DataFrame
    rank: str
    sizes: dict[str, int] = field(default_factory=dict)

    def table(self, kind: str, reads: int) -> pd.DataFrame:
        """Means over seeds by method, best accuracy first."""
        some = self.rows[(self.rows["kind"] == kind) & (self.rows["reads"] == reads)]
        means = some.drop(columns=["kind", "reads", "seed"]).groupby("method", sort=False).mean()
        return means.sort_values(f"{self.rank}_accuracy", ascending=False)

    def by_size(self, kind: str) -> pd.DataFrame:
        """Mean accuracy over seeds: methods x reads."""
        some = self.rows[self.rows["kind"] == kind]
        return some.pivot_table(index="method", columns="reads", values=f"{self.rank}_accuracy", sort=False)

    def gates(self) -> list[dict[str, Any]]:
        """What a useful method must hold: `gate`, `value`, `low`, `high` (its 95 % interval over seeds), `bound`,
        `holds` (the value reaches the bound).
        """
        here = set(self.rows["method"])
        if MINE not in here:
            return []
        column = f"{self.rank}_accuracy"
        known = self.rows[self.rows["kind"] == KNOWN]
        least, most = int(known["reads"].min()), int(known["reads"].max())

        def of(method: str, reads: int) -> pd.Series:
            some = known[(known["method"] == method) & (known["reads"] == reads)]
            return some.set_index("seed")[column]

        found = []
        for other in ("naive-bayes", "no-context"):
            if other in here:
                gap = of(MINE, least) - of(other, least)
                found.append(_gate(f"accuracy of ours minus {other}, {least:,} reads", gap, 0.0))
        if most > least:
            gap = of(MINE, most) - of(MINE, least)
            found.append(_gate(f"accuracy of ours, {most:,} reads minus {least:,}", gap, -0.01))
        return found


def _gate(name: str, values: pd.Series, bound: float) -> dict[str, Any]:
    mean, n = float(values.mean()), len(values)
    half = float(stats.t.ppf(0.975, n - 1) * values.std() / np.sqrt(n)) if n > 1 else np.nan
    holds = mean > bound if bound == 0 else mean >= bound
    return {"gate": name, "value": mean, "low": mean - half, "high": mean + half, "bound": bound, "holds": holds}


def asked(gate: dict[str, Any]) -> str:
    """What a gate's value is to be."""
    return f"at least {gate['bound']:g}" if gate["bound"] else "above 0"


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
        folder: Keep what is done here, a JSON file per seed and method.
        resume: Take what is done from there; otherwise it is done anew.

    Raises:
        ValueError: An unknown method, a number out of bounds, or too few references.
    """
    if unknown := [m for m in methods if m not in METHODS] or ([""] if not methods else []):
        raise ValueError(f"methods must be among {', '.join(METHODS)}, got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes must be numbers of reads >= 1, got {list(sizes)}")
    for name, value in (("test_fraction", test_fraction), ("unknown_fraction", unknown_fraction)):
        if not 0 < value <= 0.5:
            raise ValueError(f"{name} must be above 0 and at most 0.5, got {value}")
    root = None if folder is None else writable_folder(Path(folder) / "seeds")
    options: dict[str, Any] = {"least": least, "test_fraction": test_fraction, "unknown_fraction": unknown_fraction}
    told = {"sizes": [*sizes], **options, "data": _checksum(references)}
    told["arguments"] = {k: v for k, v in classifier._plain().items() if k not in ("device", "progress", "seed")}
    rows: list[dict[str, Any]] = []
    counted: dict[str, int] = {}
    for seed in range(classifier.seed, classifier.seed + seeds):
        parts = split(references, classifier.taxa_, seed=seed, **options)
        counted = counted or {
            "taxa": len(parts.taxa),
            "training sequences": len(np.unique(parts.references.sequence[parts.train])),
            "test sequences": len(np.unique(parts.references.sequence[parts.test])),
            "unknown sequences": len(parts.unknown),
        }
        tested = np.unique(parts.references.sequence[parts.test])
        texts = [parts.references.texts[i] for i in tested] + parts.unknown
        drawn = communities(parts, texts, sizes, seed)
        for name in methods:
            file = None if root is None else root / f"{name}.{seed}.json"
            if done := _done(file, told) if resume else None:
                rows += done
                continue
            work = None if root is None else root / f"{name}.{seed}"
            start = time.monotonic()
            method = _method(name, classifier, parts.taxa, seed, work, resume)
            method.fit(parts.references, parts.train, drawn.train)
            seconds = time.monotonic() - start
            method.read(texts)
            found = [
                {"seed": seed, "method": name, "seconds": seconds} | row
                for row in score(method, drawn.tests, parts.taxa)
            ]
            if file is not None:
                write_json(file, plain({"told": told, "rows": found}))
            if work is not None and work.exists():
                shutil.rmtree(work)
            rows += found
            first = found[0]
            accuracy = first[f"{parts.taxa.ranks[-1]}_accuracy"]
            say(
                f"seed {seed}, {name}: accuracy {accuracy:.4f} ({first['kind']}, {first['reads']:,} reads), "
                f"{seconds:,.0f} s"
            )
    return Evaluation(pd.DataFrame(rows), classifier.rank, counted)


def _method(name: str, classifier: TaxonClassifier, taxa: Taxa, seed: int, folder: Path | None, resume: bool) -> Method:
    if name in BASELINES:
        return BASELINES[name]()
    own = TaxonClassifier(**classifier.get_params()).set_params(seed=seed, **NETWORKS[name])
    own.taxa_, own.notes_ = taxa, []
    return NetworkMethod(own, name != "general", folder, resume)


def _done(file: Path | None, told: dict[str, Any]) -> list[dict[str, Any]] | None:
    if file is None or not file.exists():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept["told"] != plain(told):
        raise ValueError(f"{file} is of another evaluation: take another --out, or do not resume")
    return kept["rows"]


def _checksum(references: References) -> int:
    import zlib

    data = zlib.crc32("".join(references.texts).encode("ascii"))
    return zlib.crc32(references.taxon.tobytes(), zlib.crc32(references.sequence.tobytes(), data))
