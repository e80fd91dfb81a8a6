"""What validation clades, degraded in known ways, say at each completeness and contamination: how right probabilities
are, from which on a change is right often enough, how far the sizes of genomes are off, and when one is far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import mul
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Int8
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, logit

from omniset.genomes.baselines import Method
from omniset.genomes.metadata import is_whole
from omniset.genomes.references import References
from omniset.genomes.training import QUALITIES, Genomes, Noisy, apply_all, degraded
from omniset.trials.comparison import OURS, Aim, Comparison, Score

Probabilities = Float[np.ndarray, "genomes families"]
Flags = Bool[np.ndarray, "genomes families"]
PerFamily = Float[np.ndarray, " families"]  # probabilities of one genome
Present = Bool[np.ndarray, " families"]  # in one genome
Groups = Int[np.ndarray, " genomes"]
# Completeness and contamination, in percent, at which methods are calibrated and compared.
LEVELS = [(float(c), float(q)) for c in (100, 95, 90, 70, 50) for q in (0, 5, 10)]
GRID = np.concatenate([np.linspace(0.5, 0.98, 25), np.linspace(0.982, 0.998, 9), [0.999, 0.9995, 0.9999]])
BINS = 10
FEWEST = 20  # changes, at least, of which a precision is estimated
SURE = 0.9  # confidence of the lower bound of a precision
SIXTEEN = 16.0
MOST = 400  # genomes that modules are calibrated by, each at a quality
# How genes are lost where all families are detected alike, and where rare ones are not.
ALIKE, UNLIKE = ("copies",), ("accessory", "islands")
OFFS, CENTRAL = ("off", "off_estimated"), 0.975
NOVEL = 0.95  # quantile of novelty in validation above which a genome is far from what was learned
# Beside the simple method, of what quality; of which score.
LIKELIEST, DAMAGED = "the 15 likeliest references", (70.0, 5.0)
MISSING = Score("auprc_missing", "AUPRC of missing families", share=True)


@dataclass(frozen=True)
class Rule:
    """When a family is called present.

    Raises:
        ValueError: A number out of its bounds, or both numbers.
    """

    threshold: float = 0.5  # its least probability
    # Instead: what was observed is changed only where this share of such changes was right on validation clades.
    precision: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")
        if self.precision is not None:
            check_precision(self.precision)
            if self.threshold != 0.5:
                raise ValueError(f"give threshold or precision, not both: got {self.threshold} and {self.precision}")

    def call(self, probability: PerFamily, observed: Present, level: Level) -> tuple[Present, list[str]]:
        """(families,) whether each is called present; and warnings."""
        if self.precision is None:
            return probability >= self.threshold, []
        added, removed = level.changes(probability, observed, self.precision)
        notes = []
        if level.threshold("added", self.precision) == 1:  # that no removal reaches it is the rule
            notes.append(f"no addition reaches a precision of {self.precision:g} at this quality")
        return (observed & ~removed) | added, notes


def check_precision(precision: float) -> None:
    """Raise the ValueError of a precision that is out of bounds."""
    if not 0.5 <= precision < 1:
        raise ValueError(f"precision must be at least 0.5 and below 1, got {precision}")


@dataclass
class Level:
    """What validation says at one level of noise."""

    # In percent.
    completeness: float
    contamination: float
    # (GRID,) lower bound, of 90 % confidence, of the precision of the changes with at least this probability of being
    # right, as genomes tell that are complete enough themselves, see `_judged`.
    added: list[float | None]
    removed: list[float | None]
    # The interval of a genome's size, of 95 %, is expected +- off u, u of `uncertain`; of genomes whose quality is
    # given.
    off: float
    off_estimated: float  # the same of genomes whose quality is estimated from marker families
    novelty: float  # above it a genome is farther from the references than 95 % of the validation genomes
    ece: float  # expected calibration error
    # Number of (genome, family) pairs, mean probability and share present, by tenths of probability.
    bins: list[tuple[int, float, float]]

    def size(self, log_odds: PerFamily, observed: Present, given: bool = True) -> tuple[float, float, float]:
        """Expected number of families, and its interval of 95 %. given: The genome's quality is."""
        p = 1 / (1 + np.exp(-log_odds))
        expected, unit = float(p.sum()), float(uncertain(p[None], observed[None])[0])
        off = unit * (self.off if given else self.off_estimated)
        low, high = np.floor(expected - off), np.ceil(expected + off)  # sizes are whole
        return expected, max(float(low), 0.0), min(float(high), float(len(p)))

    def threshold(self, which: str, precision: float) -> float:
        """The lowest probability from which on changes ("added" or "removed") have the precision; 1 if none."""
        reached = (p for p, right in zip(GRID, getattr(self, which), strict=True) if right and right >= precision)
        return float(next(reached, 1.0))

    def changes(self, probability: PerFamily, observed: Present, precision: float) -> tuple[Present, Present]:
        """(families,) what is added to the observation, and what is removed, at the precision."""
        # Where none reaches it, not even what rounds to 1 is changed.
        add, remove = (2.0 if t == 1 else t for t in (self.threshold(c, precision) for c in ("added", "removed")))
        return ~observed & (probability >= add), observed & (1 - probability >= remove)


def calibrate(
    method: Method,
    genomes: Genomes,
    seed: int,
    device: torch.device | str = "cpu",
    references: References | None = None,
) -> tuple[list[Level], list[Level]]:
    """Degrade the validation genomes at every level, and see: what is said as it stands, and what is said of genomes
    whose rare families are known to be lost more often. Novelty is told by the references, those of the method by
    default.
    """
    levels: list[Level] = []
    accessory: list[Level] = []
    groups, rows = genomes.clades.groups[genomes.validation], genomes.validation
    for number, level in enumerate(LEVELS):
        judged = _judged(genomes, level[0])
        for found, losses in ((levels, ALIKE), (accessory, UNLIKE)):
            ways: dict[tuple[str, str], Noisy] = {}
            for kind, lost in [*product(("estimated", "unknown"), losses[:1]), *product(("known",), losses)]:
                batches = degraded(genomes, rows, level, kind, seed * 1000 + number, lost)
                way = apply_all({"it": method}, genomes, batches, device, shift=True, references=references)["it"]
                ways[kind, lost] = way.shifted if found is accessory else way
            found.append(_level(level, ways, groups, judged))
    blank = {level[0] for level in LEVELS if not _judged(genomes, level[0]).any()}
    return _widened(levels, blank), _widened(accessory, blank)


def _widened(levels: list[Level], blank: set[float]) -> list[Level]:
    """Where genomes are too incomplete to tell how far sizes are off, these are as far off as at the next lower
    completeness at which they tell, or farther.

    Args:
        blank: Completeness at which none tells.
    """
    found: dict[tuple[float, float], Level] = {}
    told: dict[float, Level] = {}  # by contamination, the last that tells
    for level in sorted(levels, key=lambda level: level.completeness):
        lower = told.get(level.contamination)
        if level.completeness not in blank:
            told[level.contamination] = level
        elif lower is not None:
            level = replace(level, **{name: max(getattr(level, name), getattr(lower, name)) for name in OFFS})
        found[level.completeness, level.contamination] = level
    return [found[level.completeness, level.contamination] for level in levels]


def _judged(genomes: Genomes, completeness: float) -> Bool[np.ndarray, " validation"]:
    """(validation,) the genomes by which an addition is judged right or wrong at a completeness in percent: those of
    which at least half of what an assembly lacks is known, those that lack half as much or less; at 100 %, whole ones.
    None, where they are of a single clade.
    """
    validation = genomes.validation
    if genomes.itself is None:
        return np.ones(len(validation), dtype=bool)
    itself = genomes.itself[validation]
    judged = is_whole(itself) if completeness == 100 else itself >= (100 + completeness) / 200 - 1e-9
    several = len(np.unique(genomes.clades.groups[validation][judged])) > 1
    return judged if several else np.zeros(len(validation), dtype=bool)


def _level(
    level: tuple[float, float], ways: dict[tuple[str, str], Noisy], groups: Groups, judged: Bool[np.ndarray, " genomes"]
) -> Level:
    """Out of genomes by how their quality is stated and their genes were lost; thresholds are those of the first, whose
    quality is estimated within some points. What is added is right as often as `truth` has it, over how often it would
    (Horvitz and Thompson, 1952).
    """
    one = next(iter(ways.values()))
    p, truth, observed = one.probability, one.truth, one.observed
    right = truth if one.hidden is None or level[0] == 100 else truth / (1 - one.hidden).clip(1e-6)
    given, estimated = ([ways[way] for way in ways if way[0] == kind] for kind in ("known", "unknown"))
    added: list[float | None] = [None] * len(GRID)
    if judged.any():
        added = precision_bounds(p[judged], right[judged], ~observed[judged], groups[judged])
    return Level(
        *level,
        added,
        precision_bounds(1 - p, ~truth, observed, groups),
        deviation(given, groups, judged),
        deviation(estimated, groups, judged),
        float(np.quantile(one.novelty, NOVEL)),
        *reliability(one.shown, truth),
    )


def precision_bounds(
    probability: Probabilities, right: Flags | Probabilities, possible: Flags, groups: Groups
) -> list[float | None]:
    """(GRID,) lower bound of the share of right changes among the possible ones with at least each probability; None
    where there are few. right: Whether each is, or how many right ones it stands for.

    Clades count alike, and are what varies: of the share R / M, R = sum_k r_k and M = sum_k m_k of clades k, the bound
    is R / M - t sqrt(n / (n - 1) sum_k (r_k - m_k R / M)^2) / M, t the quantile of Student's t (Cochran, "Sampling
    techniques", 1977, chapter 6). Of a single clade, its genomes are what varies.
    """
    units, which, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(units) < 2:
        which, sizes = np.arange(len(groups)), np.ones(len(groups), dtype=np.int64)
    of_genome, family = np.nonzero(possible & (probability >= GRID[0]))
    cell = which[of_genome] * len(GRID) + np.searchsorted(GRID, probability[of_genome, family], side="right") - 1
    shape = len(sizes), len(GRID)
    made, correct = (
        np.bincount(cell, weights, len(sizes) * len(GRID)).reshape(shape)[:, ::-1].cumsum(1)[:, ::-1]
        for weights in (None, right[of_genome, family].astype(np.float64))
    )
    number, made, correct = made.sum(0), made / sizes[:, None], correct / sizes[:, None]
    total = made.sum(0).clip(1e-12)
    share = correct.sum(0) / total
    units_left = max(len(sizes) - 1, 1)
    error = np.sqrt(len(sizes) / units_left * np.square(correct - made * share).sum(0)) / total
    bound = share - stats.t.ppf(SURE, units_left) * error
    return [float(b) if n >= FEWEST else None for b, n in zip(bound, number, strict=True)]


# ---------------------------------------------------------------------- how well missing families are ranked


def ranked(what: str, scores: Float[np.ndarray, " pairs"], positive: Bool[np.ndarray, " pairs"]) -> dict[str, float]:
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


def beside(ours: Method, simple: Method, genomes: Genomes, seed: int, device: torch.device | str) -> Comparison:
    """How well both rank the families that validation genomes of `DAMAGED` lack, their quality estimated."""
    rows, methods = genomes.validation, {OURS: ours, LIKELIEST: simple}
    noise = degraded(genomes, rows, DAMAGED, "estimated", seed * 1000 + 800)
    about = {"condition": "{:g}/{:g}".format(*DAMAGED), "clade": genomes.clades.groups[rows], "genome": rows}
    frames = []
    for name, one in apply_all(methods, genomes, noise, device).items():
        each = zip(one.log_odds, one.truth, one.observed, strict=True)
        scores = [ranked("missing", odds[~seen], truth[~seen])[MISSING.name] for odds, truth, seen in each]
        frames.append(pd.DataFrame({**about, "method": name, MISSING.name: scores}))
    aims = [Aim(about["condition"], MISSING.name, LIKELIEST)]
    return Comparison(pd.concat(frames), [MISSING], "clade", "clade", ["genome"], [LIKELIEST], aims)


# ---------------------------------------------------------------------- what modules are calibrated by


def asked(
    method: Method, genomes: Genomes, seed: int, device: torch.device | str = "cpu"
) -> tuple[Int8[np.ndarray, "asked families"], Flags]:
    """What is said of whole validation genomes, each degraded to some quality, at most `MOST` in all: log-odds in
    sixteenths, from -127 to 127; and what they have.
    """
    rows = genomes.validation
    rows = rows if genomes.itself is None else rows[is_whole(genomes.itself[rows])]
    step = max(-(-len(rows) * len(QUALITIES) // MOST), 1)
    said, true = [np.zeros((0, genomes.counts.shape[1]))], [np.zeros((0, genomes.counts.shape[1]), dtype=bool)]
    for number, level in enumerate(QUALITIES if len(rows) >= step else ()):
        noise = degraded(genomes, rows[number % step :: step], level, "estimated", seed * 1000 + 700 + number)
        one = apply_all({"it": method}, genomes, noise, device)["it"]
        said, true = [*said, one.log_odds], [*true, one.truth]
    return (SIXTEEN * np.concatenate(said)).round().clip(-127, 127).astype(np.int8), np.concatenate(true)


@dataclass(frozen=True)
class Logistic:
    """p -> 1 / (1 + exp(-(a log-odds of p + b))), a the slope and b the shift; 0 and 1 stay."""

    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, p: Float[np.ndarray, "*cases"]) -> Float[np.ndarray, "*cases"]:
        with np.errstate(divide="ignore"):
            return expit(self.slope * logit(p) + self.shift)

    @classmethod
    def fitted(cls, p: Float[np.ndarray, " cases"], truth: Float[np.ndarray, " cases"]) -> Logistic:
        """A and b = argmin of  L + 9/2 (log a)^2 + 9/2 b^2,  L the sum of the cross-entropy (Platt, "Probabilistic
        outputs for support vector machines", 1999): of few cases they stay near 1 and 0. Those of 0 and 1 tell nothing.
        """
        some = (p > 0) & (p < 1)
        x, y = logit(p[some]), truth[some]

        def penalised(free: np.ndarray) -> float:
            odds = np.exp(free[0]) * x + free[1]
            return float((np.logaddexp(0, odds) - y * odds).sum() + 4.5 * np.square(free).sum())

        log_slope, shift = minimize(penalised, np.zeros(2), method="BFGS").x
        return cls(float(np.exp(log_slope)), float(shift))


# ---------------------------------------------------------------------- sizes, and calibration of probabilities


def uncertain(probability: Probabilities, observed: Flags) -> Float[np.ndarray, " genomes"]:
    """(genomes,) the unit of intervals of sizes, u = 2 + Σ of p over families that were not observed + Σ of 1 - p over
    those that were: how many are expected to be missing, or foreign. The truth can be off by no more than such; the
    standard deviation of independent families, sqrt(Σ p (1 - p)), says little of genomes that are nearly complete.
    """
    return 2 + np.where(observed, 1 - probability, probability).sum(1)


def deviation(ways: Sequence[Noisy], groups: Groups, judged: Bool[np.ndarray, " genomes"]) -> float:
    """How far the sizes of 95 of 100 genomes of new clades lie from what is expected, in units of `uncertain`:

        t sqrt(1 + 1 / K) sqrt(mean over clades of the mean of off^2)

    of K clades, t the 0.975 quantile of Student's t of K - 1 degrees of freedom: the prediction interval of one more
    clade from a normal distribution about 0. Of a single clade its genomes are what varies. Ways count alike.

    Args:
        judged: By which genomes, see `_judged`: those that are whole, else these, else all.
    """
    offs = [(way.truth.sum(1) - way.shown.sum(1)) / uncertain(way.shown, way.observed) for way in ways]
    hidden = ways[0].hidden
    whole = judged if hidden is None else judged & ~hidden.any(1)
    by = next((some for some in (whole, judged) if some.any()), ~judged)
    square, of = np.square(offs).mean(0)[by], groups[by]
    units = [square[of == clade].mean() for clade in np.unique(of)]
    units = units if len(units) > 1 else square.tolist()
    k = max(len(units), 2)
    return float(stats.t.ppf(CENTRAL, k - 1) * math.sqrt((1 + 1 / k) * np.mean(units)))


def reliability(probability: Probabilities, truth: Flags) -> tuple[float, list[tuple[int, float, float]]]:
    """Expected calibration error over tenths of probability (Naeini et al., "Obtaining well calibrated probabilities
    using Bayesian binning", 2015), and each tenth's number, mean probability and share present.
    """
    p, y = probability.ravel(), truth.ravel()
    which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    number = np.bincount(which, minlength=BINS)
    predicted, present = np.bincount(which, p, BINS), np.bincount(which, y, BINS)
    several = number.clip(1)
    tenths = zip(number.tolist(), (predicted / several).tolist(), (present / several).tolist(), strict=True)
    return float(np.abs(predicted - present).sum() / max(len(p), 1)), list(tenths)


def at_quality(levels: list[Level], completeness: float, contamination: float) -> Level:
    """What validation says at a completeness and contamination in percent: bilinear between the levels around, which
    are a grid; beyond them, that of the nearest. Precisions are known where they are at all levels that count.
    """
    sides = [
        _between(sorted({getattr(level, name) for level in levels}), float(value))
        for name, value in (("completeness", completeness), ("contamination", contamination))
    ]
    mixed = {(c, q): share_c * share_q for (c, share_c), (q, share_q) in product(*sides)}
    there = {(level.completeness, level.contamination): level for level in levels}
    parts = [(there[at], share) for at, share in mixed.items() if at in there and share > 0]
    if len(parts) < sum(share > 0 for share in mixed.values()):
        off = [abs(x.completeness - completeness) + abs(x.contamination - contamination) for x in levels]
        return levels[int(np.argmin(off))]
    if len(parts) == 1:
        return parts[0][0]
    nearest, shares = max(parts, key=lambda part: part[1])[0], [share for _, share in parts]

    def curve(which: str) -> list[float | None]:
        columns = zip(*(getattr(level, which) for level, _ in parts), strict=True)
        return [None if None in column else sum(map(mul, column, shares)) for column in columns]

    means = {name: sum(w * getattr(level, name) for level, w in parts) for name in (*OFFS, "novelty", "ece")}
    return replace(nearest, added=curve("added"), removed=curve("removed"), **means)


def _between(grid: list[float], value: float) -> list[tuple[float, float]]:
    """The values of a grid around one, and how much each counts."""
    if value <= grid[0] or value >= grid[-1]:
        return [(grid[0] if value <= grid[0] else grid[-1], 1.0)]
    upper = next(i for i, g in enumerate(grid) if g >= value)
    share = (value - grid[upper - 1]) / (grid[upper] - grid[upper - 1])
    return [(grid[upper - 1], 1 - share), (grid[upper], share)]


def of_json(values: list[dict[str, Any]]) -> list[Level]:
    return [Level(**value | {"bins": [tuple(b) for b in value["bins"]]}) for value in values]
