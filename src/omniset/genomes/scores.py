"""What is measured of completed genomes whose truth is known, under which noise, and the gates of our model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from omniset.genomes.calibration import BINS, LEVELS, Level, Noisy, tenths
from omniset.trials.comparison import Aim, Score
from omniset.trials.intervals import Draws, Values

# (missed, foreign) at which the public original was judged, independent noise of families.
ORIGINAL = ((0.0, 0.0), (0.10, 0.0), (0.25, 0.01), (0.50, 0.01), (0.75, 0.01))
LESS_KNOWN = ((100.0, 0.0), (95.0, 0.0), (70.0, 0.0), (50.0, 0.0), (70.0, 5.0))
PREVALENCE = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)  # bounds of the bins
DECISIVE = ("95/0", "70/0", "50/0", "70/5")  # conditions at which ours has to beat the best baseline
CHANGES = ("added", "removed")


@dataclass(frozen=True)
class Condition:
    """A level of noise, and what methods read of it.

    Attributes:
        level: Completeness and contamination in percent; or (missed, foreign) rates of independent noise.
        kind: "known", "estimated" (within 5 points), "unknown"; "original" for independent noise, which methods read.
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


def calibration_error(rows: pd.DataFrame, draws: Draws) -> Values:
    """Expected calibration error of all pairs of genome and family:

        Σ_b |Σ p - Σ y| / Σ_b n,   b the tenths of probability, n the pairs in each, y 1 where the family is there.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", 2015.
    """
    columns = [f"{k}{b}" for k in SUMS for b in range(BINS)]
    number, predicted, present = np.split(draws.sums(rows[columns].to_numpy(np.float64)), 3, axis=1)
    return np.abs(predicted - present).sum(1) / np.maximum(number.sum(1), 1)


def precision_of(change: str, rows: pd.DataFrame, draws: Draws) -> Values:
    """Of the families added, or removed, at the chosen precision, the share that was right; NaN where
    there was none.
    """
    columns = [f"{change}_right", f"{change}_made"]
    if not set(columns) <= set(rows.columns):
        return np.full(len(draws), np.nan)
    right, made = draws.sums(rows[columns].to_numpy(np.float64)).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return right / made


SUMS = ("n", "said", "was")  # columns of a row for each tenth of probability: pairs, sum of p, families that are there
SCORES = (
    Score("auprc_missing", "AUPRC of missing families", share=True),
    Score("f1", "F1", share=True),
    Score("ece", "calibration error", larger=False, share=True, formula=calibration_error),
    Score("auprc_foreign", "AUPRC of foreign families", share=True),
    Score("auroc_missing", "AUROC of missing families", share=True),
    Score("auroc_foreign", "AUROC of foreign families", share=True),
    Score("brier", "Brier score", larger=False, share=True),
    Score("log_loss", "log loss", larger=False),
    Score("size_error", "size error", larger=False),
    Score("worse", "share of genomes made worse", larger=False, share=True),
    *(
        Score(
            f"precision_{change}", f"precision of {change} families", share=True, formula=partial(precision_of, change)
        )
        for change in CHANGES
    ),
)
# All but the last three are means over genomes of test clades.
DEFINITIONS = {
    "f1": "F1 of the families called present (probability >= 0.5)",
    "auprc_missing": "average precision among families that were not observed: which are there",
    "auroc_missing": "area under the ROC curve among them",
    "auprc_foreign": "average precision among families that were observed: which are not there",
    "auroc_foreign": "area under the ROC curve among them",
    "brier": "Brier score",
    "log_loss": "binary cross-entropy",
    "size_error": "|expected - true number of families| / true number",
    "worse": "share of genomes whose F1 is lower than that of doing nothing",
    "ece": "expected calibration error over tenths of probability, of all pairs of genome and family",
    "precision_added": "of the families added at the precision asked for, the share that is there",
    "precision_removed": "of the families removed, the share that is not there",
}
# A useful model ranks missing families better than the best baseline, spoils no genome that is nearly complete, and
# gives probabilities that are right.
AIMS = (
    *(Aim(name, "auprc_missing") for name in DECISIVE),
    *(Aim(name, "f1", "as-is", bound=-0.003) for name in ("100/0", "95/0")),
    *(Aim(c.name, "ece", None, bound=0.02, most=True) for c in CONDITIONS if c.kind == "known"),
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
        row = {
            "f1": 2 * both.sum() / max(calls + there, 1),
            **_ranked("missing", odds[~observed], truth[~observed]),
            **_ranked("foreign", -odds[observed], ~truth[observed]),
            "brier": float(np.square(p - truth).mean()),
            "log_loss": float(np.logaddexp(0, np.where(truth, -odds, odds)).mean()),
            "size_error": float(abs(p.sum() - there) / max(there, 1)),
        }
        which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        sums = {key: np.bincount(which, weights, BINS) for key, weights in zip(SUMS, (None, p, truth), strict=True)}
        for key, mask in (("tp", both), ("called", call), ("true", truth)):
            sums[key] = np.bincount(bin_of[mask], minlength=len(PREVALENCE) - 1)
        row |= {f"{key}{b}": float(value) for key, values in sums.items() for b, value in enumerate(values)}
        if level is not None:
            changes = level.changes(p, observed, precision)
            for change, made, right in zip(CHANGES, changes, (truth, ~truth), strict=True):
                row |= {f"{change}_made": float(made.sum()), f"{change}_right": float((made & right).sum())}
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
