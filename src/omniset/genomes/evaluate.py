"""Our model beside every baseline, on clades that none of them has seen."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from omniset.files import provenance, replacing, writable_folder
from omniset.genomes.calibration import BINS, LEVELS, Level, Noisy, apply_all, nearest_level
from omniset.genomes.completer import GenomeCompleter, Table, as_table
from omniset.genomes.metadata import lineages
from omniset.genomes.suite import BASELINES, UNTRAINED
from omniset.genomes.training import Clades, Genomes, split

MINE = "evidence"
ALL = (MINE, "seed", *BASELINES)
# (missed, foreign) at which the public original was judged, independent noise of families.
ORIGINAL = ((0.0, 0.0), (0.10, 0.0), (0.25, 0.01), (0.50, 0.01), (0.75, 0.01))
LESS_KNOWN = ((100.0, 0.0), (95.0, 0.0), (70.0, 0.0), (50.0, 0.0), (70.0, 5.0))
PREVALENCE = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)  # bounds of the bins
# Means over genomes of test clades.
METRICS = {
    "f1": "F1 of the families called present (probability >= 0.5)",
    "auprc_missing": "average precision among families that were not observed: which are there",
    "auroc_missing": "area under the ROC curve among them",
    "auprc_foreign": "average precision among families that were observed: which are not there",
    "auroc_foreign": "area under the ROC curve among them",
    "brier": "Brier score",
    "log_loss": "binary cross-entropy",
    "size_error": "|expected - true number of families| / true number",
    "worse": "share of genomes whose F1 is lower than that of doing nothing",
}


@dataclass(frozen=True)
class Condition:
    """A level of noise, and what methods are told of it.

    Attributes:
        level: Completeness and contamination in percent; or (missed, foreign) rates of independent noise.
        kind: "known", "estimated" (within 5 points), "unknown"; "original" for independent noise, which is told.
    """

    level: tuple[float, float]
    kind: str

    @property
    def name(self) -> str:
        a, b = self.level
        if self.kind == "original":
            return f"missed {a:g}, foreign {b:g}"
        return f"{a:g}/{b:g}" + ("" if self.kind == "known" else f" {self.kind}")

    @property
    def of_data(self) -> tuple[float, float] | str:
        return f"iid:{self.level[0]}:{self.level[1]}" if self.kind == "original" else self.level


CONDITIONS = (
    *(Condition(level, "known") for level in LEVELS),
    *(Condition(level, kind) for kind in ("estimated", "unknown") for level in LESS_KNOWN),
    *(Condition(level, "original") for level in ORIGINAL),
)


@dataclass
class Evaluation:
    """What was found.

    Attributes:
        rows: A row per seed, test genome, condition and method: `seed`, `genome`, `clade`, `condition`, `method`, the
            METRICS, and what ECE, precision and bins of prevalence are made of.
        splits: A row per seed: genomes and clades in training, validation and test; families.
        precision: The precision that calls against the observation were asked to have.
    """

    rows: pd.DataFrame
    splits: pd.DataFrame
    precision: float
    resamples: int = 1000

    @cached_property
    def methods(self) -> list[str]:
        return [m for m in ALL if m in set(self.rows["method"])]

    @cached_property
    def conditions(self) -> list[str]:
        return [c.name for c in CONDITIONS if c.name in set(self.rows["condition"])]

    def table(self, metric: str, condition: str) -> pd.DataFrame:
        """Index method; `value`, `low`, `high`: mean over genomes and seeds, 95 % interval over clades."""
        if condition not in self._means:
            by_method = self._by_method(condition)
            self._means[condition] = {m: _means(rows, list(METRICS), self.resamples) for m, rows in by_method}
        return _frame({method: found[metric] for method, found in self._means[condition].items()})

    def ece(self, condition: str) -> pd.DataFrame:
        """Expected calibration error over tenths of probability, as `table`."""
        found = {}
        for method, rows in self._by_method(condition):
            sums, weights = _by_clade(
                rows, [f"{k}{b}" for k in ("n", "said", "was") for b in range(BINS)], self.resamples
            )
            n, said, was = np.split(weights @ sums, 3, axis=1)
            found[method] = _interval(np.abs(said - was).sum(1) / np.maximum(n.sum(1), 1))
        return _frame(found)

    def achieved_precision(self, change: str, condition: str) -> pd.DataFrame:
        """Of changes ("added" or "removed") made at the asked precision, the share that was right, as `table`; NaN
        where there was none. `changes` are made per genome.
        """
        found = {}
        for method, rows in self._by_method(condition):
            if f"{change}_made" not in rows or rows[f"{change}_made"].isna().all():
                continue
            sums, weights = _by_clade(rows, [f"{change}_right", f"{change}_made"], self.resamples)
            right, made = (weights @ sums).T
            with np.errstate(invalid="ignore", divide="ignore"):
                found[method] = (*_interval(right / made), float(rows[f"{change}_made"].mean()))
        return _frame(found, ("changes",))

    def difference(self, metric: str, condition: str, other: str, mine: str = MINE) -> tuple[float, float, float]:
        """Mean of mine minus other, paired by seed and genome, with a 95 % interval over clades."""
        of = {m: rows.set_index(["seed", "genome"]) for m, rows in self._by_method(condition) if m in (mine, other)}
        paired = of[mine][["clade"]].assign(value=of[mine][metric] - of[other][metric])
        return _means(paired, ["value"], self.resamples)["value"]

    def bins(self, condition: str) -> dict[str, list[tuple[int, float, float]]]:
        """By method, the reliability: number of pairs, mean probability and share present, by tenths."""
        found = {}
        for method, rows in self._by_method(condition):
            n, said, was = (rows[[f"{k}{b}" for b in range(BINS)]].sum().to_numpy() for k in ("n", "said", "was"))
            several = n.clip(1)
            found[method] = [
                (int(a), float(b), float(c)) for a, b, c in zip(n, said / several, was / several, strict=True)
            ]
        return found

    def by_prevalence(self, condition: str) -> pd.DataFrame:
        """Index method, columns bins of prevalence: F1 over all pairs of genome and family in the bin."""
        found = {}
        for method, rows in self._by_method(condition):
            tp, called, true = (
                rows[[f"{k}{b}" for b in range(len(PREVALENCE) - 1)]].sum().to_numpy() for k in ("tp", "called", "true")
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                found[method] = 2 * tp / (called + true)
        names = [f"{a:g}-{b:g}" for a, b in pairwise(PREVALENCE)]
        return pd.DataFrame(found, index=names).T

    def gates(self) -> list[dict[str, Any]]:
        """What a useful method must hold, with what was found: `gate`, `value`, `low`, `high`, `bound`, `holds`."""
        found: list[dict[str, Any]] = []
        conditions = set(self.conditions)

        def add(gate: str, value: tuple[float, float, float], bound: str, holds: bool) -> None:
            found.append(
                {
                    "gate": gate,
                    "value": value[0],
                    "low": value[1],
                    "high": value[2],
                    "bound": bound,
                    "holds": bool(holds),
                }
            )

        for name in ("100/0", "95/0"):
            if name in conditions and "as-is" in self.methods:
                lost = self.difference("f1", name, "as-is")
                add(f"F1 at {name}, ours minus as-is", lost, ">= -0.003", lost[0] >= -0.003)
        for name in ("70/0", "50/0"):
            if name in conditions and "knn" in self.methods:
                won = self.difference("auprc_missing", name, "knn")
                add(f"AUPRC of missing families at {name}, ours minus knn", won, "interval > 0", won[1] > 0)
        for name in [c.name for c in CONDITIONS if c.kind == "known" and c.name in conditions]:
            value, low, high = (float(v) for v in self.ece(name).loc[MINE].to_numpy())
            add(f"ECE at {name}", (value, low, high), "<= 0.02", value <= 0.02)
        return found

    def numbers(self) -> dict[str, Any]:
        """All of it as plain numbers."""
        tables = {
            c: {
                **{m: _plain(self.table(m, c)) for m in METRICS},
                "ece": _plain(self.ece(c)),
                **{f"precision_{k}": _plain(self.achieved_precision(k, c)) for k in ("added", "removed")},
            }
            for c in self.conditions
        }
        differences = {
            c: {
                other: {m: self.difference(m, c, other) for m in ("f1", "auprc_missing", "auprc_foreign", "log_loss")}
                for other in self.methods
                if other != MINE
            }
            for c in self.conditions
        }
        return {
            "gates": self.gates(),
            "splits": self.splits.to_dict("records"),
            "precision": self.precision,
            "tables": tables,
            "differences": differences,
        }

    def _by_method(self, condition: str) -> list[tuple[str, pd.DataFrame]]:
        return [(m, self._parts[condition, m]) for m in self.methods if (condition, m) in self._parts]

    @cached_property
    def _parts(self) -> dict[Any, pd.DataFrame]:
        return dict(list(self.rows.groupby(["condition", "method"], sort=False)))

    @cached_property
    def _means(self) -> dict[str, dict[str, dict[str, tuple[float, float, float]]]]:
        return {}


def evaluate(
    table: Table,
    taxonomy: pd.DataFrame | None = None,
    *,
    methods: Sequence[str] = ALL,
    seeds: int = 3,
    test_fraction: float = 0.2,
    precision: float = 0.95,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    **arguments: Any,
) -> Evaluation:
    """Split by clade, train on the first part, choose and calibrate on the second, test once on the third.

    Args:
        table, taxonomy: As in `GenomeCompleter.fit`.
        methods: Beside "evidence" and the untrained ones, which are always there.
        seeds: Number of splits, each with weights and noise of its own.
        test_fraction: Share of the genomes kept for the test, by whole clades.
        precision: At which calls against the observation are judged.
        folder: Keep the rows of each seed here, for `resume`.
        say: Told what is being done.
        arguments: Of GenomeCompleter.

    Raises:
        ValueError: An unknown method, a number out of its bounds, too few clades.
    """
    unknown = [m for m in methods if m not in ALL]
    if unknown:
        raise ValueError(f"methods must be out of {', '.join(ALL)}; got {unknown[0]!r}")
    fixed = [name for name in ("architecture", "method") if name in arguments]
    if fixed:
        raise ValueError(f"{fixed[0]} is not for evaluate: it compares {MINE!r} with the methods that are asked for")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not 0 < test_fraction < 0.9:
        raise ValueError(f"test_fraction must be above 0 and below 0.9, got {test_fraction}")
    if not 0.5 <= precision < 1:
        raise ValueError(f"precision must be at least 0.5 and below 1, got {precision}")
    first = arguments.pop("seed", 0)
    GenomeCompleter(seed=first, **arguments).check_arguments()
    found = as_table(table)
    rank = GenomeCompleter(**arguments).clade
    clades = Clades.of_similarity(found.counts) if taxonomy is None else Clades.of_taxonomy(taxonomy, found.names, rank)
    counts = np.concatenate([found.counts.indptr, found.counts.indices, found.counts.data]).astype(np.int64)
    data = zlib.crc32(clades.codes.tobytes(), zlib.crc32(counts.tobytes()))
    rows, splits = [], []
    for seed in range(first, first + seeds):
        completer = GenomeCompleter(**arguments, seed=seed)
        asked = {"methods": sorted(methods), "test_fraction": test_fraction, "precision": precision}
        kept = _Kept(folder, seed, {**completer.get_params(), **asked, "data": data})
        if not (resume and kept.exists()):
            say(f"seed {seed}: training")
            kept.write(*_one_seed(completer, found, taxonomy, clades, methods, test_fraction, precision, say))
        one, about = kept.read()
        rows.append(one)
        splits.append(about)
    return Evaluation(pd.concat(rows, ignore_index=True), pd.DataFrame(splits), precision)


def _one_seed(
    completer: GenomeCompleter,
    table: Any,
    taxonomy: pd.DataFrame | None,
    clades: Clades,
    methods: Sequence[str],
    test_fraction: float,
    precision: float,
    say: Callable[[str], None],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    rng = np.random.default_rng(completer.seed)
    train, test, validation = split(clades.groups, (test_fraction, completer.validation_fraction), rng)
    if not len(test):
        raise ValueError(
            f"test_fraction={test_fraction} of {len(table)} genomes is less than any clade has: take a lower rank"
        )
    also = [m for m in methods if m not in (*UNTRAINED, MINE)]
    completer.fit_split(table, taxonomy, clades, train, validation, also=also)
    suite = completer.network_
    chosen = {name: suite[name] for name in ALL if name in suite.methods}
    # The noise of the test draws its donors from the training genomes.
    genomes = Genomes(completer._columns(table), clades, train, validation)
    prevalence = suite.noise.prevalence.numpy()
    names: Any = clades.groups
    if taxonomy is not None:  # a genome without a clade is one of its own
        given = lineages(taxonomy, table.names)[completer.clade]
        names = [clade or name for clade, name in zip(given, table.names, strict=True)]
    labels = pd.Series(np.asarray(names)[test]).astype(str).to_numpy()
    frames = []
    for number, condition in enumerate(CONDITIONS):
        say(f"seed {completer.seed}: testing at {condition.name} ({number + 1} of {len(CONDITIONS)})")
        # A condition of its own noise; methods see the same.
        noise_seed = 7919 * (completer.seed + 1) + number
        found = apply_all(chosen, genomes, test, condition.of_data, _told_as(condition), noise_seed)
        level = None
        if condition.kind != "original":
            level = nearest_level(completer.levels_, *condition.level)
        for method, noisy in found.items():
            frame = pd.DataFrame(_of_genomes(noisy, prevalence, level if method == MINE else None, precision))
            frame.insert(0, "method", method)
            frame.insert(0, "condition", condition.name)
            frame.insert(0, "clade", labels)
            frame.insert(0, "genome", [table.names[i] for i in test])
            frame.insert(0, "seed", completer.seed)
            frames.append(frame)
        as_is = frames[-len(found) + list(found).index("as-is")]["f1"].to_numpy()
        for frame in frames[-len(found) :]:
            frame["worse"] = (frame["f1"].to_numpy() < as_is - 1e-12).astype(float)
    about = {
        "seed": completer.seed,
        **{f"{n} genomes": len(p) for n, p in (("training", train), ("validation", validation), ("test", test))},
        **{
            f"{n} clades": len(np.unique(clades.groups[p]))
            for n, p in (("training", train), ("validation", validation), ("test", test))
        },
        "families": len(completer.families_),
        "epochs": {name: len(history) for name, history in completer.histories_.items()},
        "seconds": completer.seconds_,
        **{"provenance": provenance(completer.seed)},
    }
    return pd.concat(frames, ignore_index=True), about


def _told_as(condition: Condition) -> str:
    return "known" if condition.kind == "original" else condition.kind


def _of_genomes(
    noisy: Noisy, prevalence: Float[np.ndarray, " families"], level: Level | None, precision: float
) -> list[dict[str, float]]:
    """Everything that is measured, genome by genome."""
    bin_of = np.clip(np.searchsorted(PREVALENCE, prevalence, side="right") - 1, 0, len(PREVALENCE) - 2)
    limits = None if level is None else (level.threshold("added", precision), level.threshold("removed", precision))
    found = []
    for truth, observed, odds in zip(noisy.truth, noisy.observed, noisy.log_odds.astype(np.float64), strict=True):
        p = 1 / (1 + np.exp(-odds))
        call = p >= 0.5
        both, said_so, there = truth & call, call.sum(), truth.sum()
        one = {
            "f1": 2 * both.sum() / max(said_so + there, 1),
            **_ranked("missing", odds[~observed], truth[~observed]),
            **_ranked("foreign", -odds[observed], ~truth[observed]),
            "brier": float(np.square(p - truth).mean()),
            "log_loss": float(np.logaddexp(0, np.where(truth, -odds, odds)).mean()),
            "size_error": float(abs(p.sum() - there) / max(there, 1)),
        }
        which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        for key, weights in (("n", None), ("said", p), ("was", truth)):
            sums = np.bincount(which, weights, minlength=BINS)
            one |= {f"{key}{b}": float(v) for b, v in enumerate(sums)}
        for key, mask in (("tp", both), ("called", call), ("true", truth)):
            sums = np.bincount(bin_of[mask], minlength=len(PREVALENCE) - 1)
            one |= {f"{key}{b}": float(v) for b, v in enumerate(sums)}
        if limits is not None:
            add, remove = (2.0 if t == 1 else t for t in limits)  # more than what rounds to 1
            added, removed = ~observed & (p >= add), observed & (1 - p >= remove)
            one |= {
                "added_made": float(added.sum()),
                "added_right": float((added & truth).sum()),
                "removed_made": float(removed.sum()),
                "removed_right": float((removed & ~truth).sum()),
            }
        found.append(one)
    return found


def _ranked(what: str, scores: Float[np.ndarray, " pairs"], positive: Bool[np.ndarray, " pairs"]) -> dict[str, float]:
    """Average precision and area under the ROC curve; NaN where all, or none, are positive.

    scikit-learn's functions, called for every genome, would take longer than the models.
    """
    if not positive.any() or positive.all():
        return {f"auprc_{what}": np.nan, f"auroc_{what}": np.nan}
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # equal scores are one step
    true = np.cumsum(positive[order])[ends]
    false = ends + 1 - true
    recall, fallout = np.append(0, true / true[-1]), np.append(0, false / false[-1])
    return {
        f"auprc_{what}": float((np.diff(recall) * true / (ends + 1)).sum()),
        f"auroc_{what}": float((np.diff(fallout) * (recall[1:] + recall[:-1]) / 2).sum()),
    }


def _by_clade(
    rows: pd.DataFrame, columns: list[str], resamples: int
) -> tuple[Float[np.ndarray, "clades columns"], Float[np.ndarray, "resamples clades"]]:
    """Sums per clade, and how often each clade is drawn: once in the first row, at random in the others."""
    sums = rows.groupby("clade", sort=True)[columns].sum().to_numpy(np.float64)
    return sums, _draws(len(sums), resamples)


def _means(rows: pd.DataFrame, columns: list[str], resamples: int) -> dict[str, tuple[float, float, float]]:
    """Of each column its mean over rows, those without a value left out, and its 95 % interval over clades."""
    values = rows[columns].astype(float)
    there = values.notna().astype(float).add_prefix("there ")
    sums, weights = _by_clade(
        pd.concat([rows[["clade"]], values.fillna(0.0), there], axis=1), [*columns, *there.columns], resamples
    )
    total, number = np.split(weights @ sums, 2, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = total / number
    return {column: _interval(means[:, i]) for i, column in enumerate(columns)}


@cache
def _draws(clades: int, resamples: int) -> Float[np.ndarray, "resamples clades"]:
    drawn = np.random.default_rng(0).multinomial(clades, np.full(clades, 1 / clades), size=resamples)
    return np.concatenate([np.ones((1, clades)), drawn])


def _interval(values: Float[np.ndarray, " resamples"]) -> tuple[float, float, float]:
    """The value (first), and the 2.5 % and 97.5 % quantiles of the resamples."""
    drawn = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return float(values[0]), float(low), float(high)


def _frame(found: Mapping[str, tuple[float, ...]], more: tuple[str, ...] = ()) -> pd.DataFrame:
    return pd.DataFrame.from_dict(dict(found), orient="index", columns=["value", "low", "high", *more])


def _plain(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    return {str(m): {str(k): float(v) for k, v in row.items()} for m, row in frame.to_dict("index").items()}


class _Kept:
    """The rows of a seed, on disk where there is a folder."""

    def __init__(self, folder: str | Path | None, seed: int, arguments: dict[str, Any]) -> None:
        self.arguments = json.loads(json.dumps({k: v for k, v in arguments.items() if k not in ("device", "progress")}))
        self.path = None if folder is None else writable_folder(Path(folder) / "seeds") / f"seed_{seed}.parquet"
        self.found: tuple[pd.DataFrame, dict[str, Any]] | None = None

    def exists(self) -> bool:
        """Raises ValueError where what is kept is of another evaluation."""
        if self.path is None or not self.path.is_file():
            return False
        about = json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))
        differs = [k for k in self.arguments if about["arguments"].get(k) != self.arguments[k]]
        if differs:
            k = differs[0]
            raise ValueError(
                f"{self.path} is of another evaluation ({k} was {about['arguments'].get(k)!r}, is "
                f"{self.arguments[k]!r}): start anew, not resuming"
            )
        return True

    def write(self, rows: pd.DataFrame, about: dict[str, Any]) -> None:
        self.found = rows, about
        if self.path is not None:
            with replacing(self.path.with_suffix(".json")) as temporary:
                temporary.write_text(
                    json.dumps({"arguments": self.arguments, "about": about}, indent=1), encoding="utf-8"
                )
            with replacing(self.path) as temporary:
                rows.to_parquet(temporary)

    def read(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        if self.found is None:
            assert self.path is not None
            about = json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))["about"]
            self.found = pd.read_parquet(self.path), about
        return self.found
