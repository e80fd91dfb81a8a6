"""What is measured of completed genomes whose truth is known, under which noise, and the gates of our model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from omniset.genomes.calibration import BINS, LEVELS, Level, Noisy, tenths
from omniset.genomes.completion import size_of
from omniset.genomes.noise import LOSSES
from omniset.trials.comparison import Aim, Score
from omniset.trials.intervals import Draws, Values

# (missed, foreign) at which the public original was judged, independent noise of families.
ORIGINAL = ((0.0, 0.0), (0.10, 0.0), (0.25, 0.01), (0.50, 0.01), (0.75, 0.01))
LOSSY = ((95.0, 0.0), (70.0, 0.0), (50.0, 0.0))
LESS_KNOWN = ((100.0, 0.0), (95.0, 0.0), (70.0, 0.0), (50.0, 0.0), (70.0, 5.0))
PREVALENCE = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)  # bounds of the bins
DECISIVE = ("95/0", "70/0", "50/0", "70/5")  # conditions at which ours has to beat the best baseline
CHANGES = ("added", "removed")
CALIBRATED, COVERED = 0.05, 0.9  # largest calibration error of missing families; least share of sizes in their interval


@dataclass(frozen=True)
class Condition:
    """A level of noise, and what methods read of it.

    Attributes:
        level: Completeness and contamination in percent; or (missed, foreign) rates of independent noise.
        kind: "known", "estimated" (within 5 points), "unknown"; "original" for independent noise, which methods read;
            one of `noise.LOSSES` for genes that are lost otherwise than by copies, at a known quality. With "whole" at
            the end, or for "known": of those test genomes alone that are whole themselves, see `metadata.WHOLE`.
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
    def stated(self) -> str:
        """What methods read: "known", "estimated" or "unknown"."""
        return self.kind if self.kind in ("estimated", "unknown") else "known"

    @property
    def lost(self) -> str:
        """How genes are lost."""
        return self.kind if self.kind in LOSSES else LOSSES[0]

    @property
    def of_data(self) -> tuple[float, float] | str:
        return f"iid:{self.level[0]}:{self.level[1]}" if self.kind == "original" else self.level


CONDITIONS = (
    *(Condition(level, "known") for level in LEVELS),
    *(Condition(level, kind) for kind in ("estimated", "unknown") for level in LESS_KNOWN),
    *(Condition(level, "original") for level in ORIGINAL),
    *(Condition(level, lost) for lost in LOSSES[1:] for level in LOSSY),
)
# Of each condition of a known quality, but of whole genomes alone.
WHOLE_OF = {
    c: Condition(c.level, "whole" if c.kind == "known" else f"{c.kind} whole")
    for c in CONDITIONS
    if c.kind in ("known", *LOSSES) and c.level[0] < 100
}


def of_whole(rows: pd.DataFrame, whole: Collection[str]) -> pd.DataFrame:
    """The rows of the conditions of whole genomes, see `WHOLE_OF`.

    Args:
        rows: With the columns condition and genome.
        whole: Names of the whole genomes.
    """
    names = {one.name: whole.name for one, whole in WHOLE_OF.items()}
    chosen = rows[rows["genome"].isin(list(whole)) & rows["condition"].isin(list(names))]
    return chosen.assign(condition=chosen["condition"].map(names))


def calibration_error(rows: pd.DataFrame, draws: Draws) -> Values:
    """Expected calibration error of all pairs of genome and family:

        Σ_b |Σ p - Σ y| / Σ_b n,   b the tenths of probability, n the pairs in each, y 1 where the family is there.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", 2015.
    """
    columns = [f"{k}{b}" for k in SUMS for b in range(BINS)]
    number, predicted, present = np.split(draws.sums(rows[columns].to_numpy(np.float64)), 3, axis=1)
    return np.abs(predicted - present).sum(1) / np.maximum(number.sum(1), 1)


def calibration_error_of_missing(rows: pd.DataFrame, draws: Draws) -> Values:
    """The same of families that were not observed and have a probability of at least .1: all others are trivial. NaN
    where there is none.
    """
    columns = [f"{k}{b}" for k in SUMS_OF_MISSING for b in range(1, BINS)]
    number, predicted, present = np.split(draws.sums(rows[columns].to_numpy(np.float64)), 3, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(predicted - present).sum(1) / number.sum(1)


def ratio_of(over: str, under: str, rows: pd.DataFrame, draws: Draws) -> Values:
    """Sum of a column over that of another; NaN where the columns are not there, or the latter is 0."""
    if over not in rows or under not in rows:
        return np.full(len(draws), np.nan)
    above, below = draws.sums(np.column_stack([rows[name].to_numpy(np.float64) for name in (over, under)])).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return above / below


def error_of_missing(rows: pd.DataFrame, draws: Draws) -> Values:
    """|expected / true - 1| of the number of families that are there and were not observed, over all genomes."""
    return np.abs(ratio_of("missing_expected", "missing", rows, draws) - 1)


SUMS = ("n", "said", "was")  # columns of a row for each tenth of probability: pairs, sum of p, families that are there
SUMS_OF_MISSING = ("unseen_n", "unseen_said", "unseen_was")  # the same of families that were not observed
SCORES = (
    Score("auprc_missing", "AUPRC of missing families", share=True),
    Score("recall_missing", "recall of missing families", share=True),
    Score("f1", "F1", share=True),
    Score(
        "ece_missing",
        "calibration error of missing families",
        larger=False,
        share=True,
        formula=calibration_error_of_missing,
    ),
    Score("ece", "calibration error", larger=False, share=True, formula=calibration_error),
    Score("auprc_foreign", "AUPRC of foreign families", share=True),
    Score("auroc_missing", "AUROC of missing families", share=True),
    Score("auroc_foreign", "AUROC of foreign families", share=True),
    Score("brier", "Brier score", larger=False, share=True),
    Score("log_loss", "log loss", larger=False),
    Score("size_error", "size error", larger=False),
    Score("missing_error", "error of the number of missing families", larger=False, formula=error_of_missing),
    Score("worse", "share of genomes made worse", larger=False, share=True),
    *(
        Score(
            f"precision_{change}",
            f"precision of {change} families",
            share=True,
            formula=partial(ratio_of, f"{change}_right", f"{change}_made"),
        )
        for change in CHANGES
    ),
    Score(
        "recall_added",
        "recall of added families",
        share=True,
        formula=partial(ratio_of, "added_right", "missing"),
    ),
    Score("covered", "sizes within their interval", share=True),
)
# Means over genomes of test clades, but calibration errors, precisions, recall of added ones and error of missing ones.
DEFINITIONS = {
    "recall_missing": "share of the families that are there and were not observed that is called present",
    "f1": "F1 of the families called present (probability >= 0.5)",
    "auprc_missing": "average precision among families that were not observed: which are there",
    "auroc_missing": "area under the ROC curve among them",
    "auprc_foreign": "average precision among families that were observed: which are not there",
    "auroc_foreign": "area under the ROC curve among them",
    "brier": "Brier score",
    "log_loss": "binary cross-entropy",
    "size_error": "|expected - true number of families| / true number",
    "missing_error": "|expected - true number of missing families| / true number, over all genomes",
    "worse": "share of genomes whose F1 is lower than that of doing nothing",
    "ece": "expected calibration error over tenths of probability, of all pairs of genome and family",
    "ece_missing": "the same of families that were not observed and have a probability of at least 0.1",
    "precision_added": "of the families added at the precision asked for, the share that is there",
    "precision_removed": "of the families removed, the share that is not there",
    "recall_added": "of the missing families, the share that is added at the precision asked for",
    "covered": "share of genomes whose true number of families lies within its 95 % interval",
}


def aims(whole: bool) -> tuple[Aim, ...]:
    """What is asked of a useful model: it ranks missing families better than the best baseline, spoils no genome that
    is nearly complete, gives probabilities that are right, and intervals that hold however genes are lost.

    Args:
        whole: It is known which test genomes are whole: these judge probabilities and sizes, which are of organisms.
    """
    names = {one: WHOLE_OF[one].name if whole else one.name for one in WHOLE_OF}
    return (
        *(Aim(name, "auprc_missing") for name in DECISIVE),
        *(Aim(name, "f1", "as-is", bound=-0.003) for name in ("100/0", "95/0")),
        *(Aim(names[c], "ece_missing", None, bound=CALIBRATED, most=True) for c in names if c.kind == "known"),
        *(Aim(names[c], "covered", None, bound=COVERED) for c in names if c.level in LOSSY),
    )


def of_genomes(
    noisy: Noisy, prevalence: Float[np.ndarray, " families"], level: Level | None, precision: float
) -> pd.DataFrame:
    """Everything that is measured, a row per genome.

    Args:
        prevalence: By whose bins F1 is counted.
        level: Whose thresholds make changes; None: none are made.
        precision: Of these.
    """
    bin_of = np.clip(np.searchsorted(PREVALENCE, prevalence, side="right") - 1, 0, len(PREVALENCE) - 2)
    rows = []
    for truth, observed, odds in zip(noisy.truth, noisy.observed, noisy.log_odds.astype(np.float64), strict=True):
        p = 1 / (1 + np.exp(-odds))
        call = p >= 0.5
        both, calls, there = truth & call, call.sum(), truth.sum()
        missing = truth & ~observed
        row = {
            "missing": float(missing.sum()),
            "missing_expected": float(p[~observed].sum()),
            "recall_missing": float(call[missing].mean()) if missing.any() else np.nan,
            "f1": 2 * both.sum() / max(calls + there, 1),
            **_ranked("missing", odds[~observed], truth[~observed]),
            **_ranked("foreign", -odds[observed], ~truth[observed]),
            "brier": float(np.square(p - truth).mean()),
            "log_loss": float(np.logaddexp(0, np.where(truth, -odds, odds)).mean()),
            "size_error": float(abs(p.sum() - there) / max(there, 1)),
        }
        which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        sums = {key: np.bincount(which, weights, BINS) for key, weights in zip(SUMS, (None, p, truth), strict=True)}
        of_unseen = (None, p[~observed], truth[~observed])
        for key, weights in zip(SUMS_OF_MISSING, of_unseen, strict=True):
            sums[key] = np.bincount(which[~observed], weights, BINS)
        for key, mask in (("tp", both), ("called", call), ("true", truth)):
            sums[key] = np.bincount(bin_of[mask], minlength=len(PREVALENCE) - 1)
        row |= {f"{key}{b}": float(value) for key, values in sums.items() for b, value in enumerate(values)}
        row["covered"] = np.nan
        if level is not None:
            changes = level.changes(p, observed, precision)
            for change, made, right in zip(CHANGES, changes, (truth, ~truth), strict=True):
                row |= {f"{change}_made": float(made.sum()), f"{change}_right": float((made & right).sum())}
            _, low, high = size_of(odds, level)
            row["covered"] = float(low <= there <= high)
        rows.append(row)
    return pd.DataFrame(rows)


def bins(rows: pd.DataFrame) -> list[tuple[int, float, float]]:
    """The reliability of a method: number of pairs, mean probability and share present, by tenths of probability."""
    return tenths(*(rows[[f"{k}{b}" for b in range(BINS)]].sum().to_numpy() for k in SUMS))


def by_prevalence(rows: pd.DataFrame) -> dict[str, float]:
    """F1 of a method over all pairs of genome and family, by bins of prevalence."""
    tp, called, true = (
        rows[[f"{k}{b}" for b in range(len(PREVALENCE) - 1)]].sum().to_numpy() for k in ("tp", "called", "true")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        values = 2 * tp / (called + true)
    return {f"{a:g}-{b:g}": float(value) for (a, b), value in zip(pairwise(PREVALENCE), values, strict=True)}


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
