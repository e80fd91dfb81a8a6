"""What validation clades, degraded in known ways, teach about a method: thresholds, intervals, novelty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from operator import mul
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats

from omniset.genomes.metadata import is_whole
from omniset.genomes.methods import Method
from omniset.genomes.noise import LOSSES, Observed, Recovery, degrade, flip
from omniset.genomes.training import Genomes, cross_entropy, recovery_of, stated_quality

# Completeness and contamination, in percent, at which methods are calibrated and compared.
LEVELS = [(float(c), float(q)) for c in (100, 95, 90, 70, 50) for q in (0, 5, 10)]
GRID = np.concatenate([np.linspace(0.5, 0.98, 25), np.linspace(0.982, 0.998, 9), [0.999, 0.9995, 0.9999]])
BINS = 10
FEWEST = 20  # changes, at least, of which a precision is estimated
SURE = 0.9  # confidence of the lower bound of a precision
NOVEL = 0.95  # quantile of novelty in validation above which a genome is far from what was learned


@dataclass
class Noisy:
    """Complete genomes, degraded at one level, with a method's log-odds.

    Attributes:
        rows: (genomes,) positions in the table.
        truth: (genomes, families) what the complete genomes have.
        observed: (genomes, families) what was recovered.
        log_odds: (genomes, families)
        novelty: (genomes,) 1 - similarity to the nearest reference.
        shift: (genomes, families) by which log-odds change if rare families are lost more often; None: not asked for.
        hidden: (genomes, families) how often a family of the organism is not in `truth`, since the genome is incomplete
            itself, see `NoiseModel.hidden`. None: it is complete.
    """

    rows: Int[np.ndarray, " genomes"]
    truth: Bool[np.ndarray, "genomes families"]
    observed: Bool[np.ndarray, "genomes families"]
    log_odds: Float[np.ndarray, "genomes families"]
    novelty: Float[np.ndarray, " genomes"]
    shift: Float[np.ndarray, "genomes families"] | None = None
    hidden: Float[np.ndarray, "genomes families"] | None = None

    @property
    def probability(self) -> Float[np.ndarray, "genomes families"]:
        """That the organism has the family."""
        return 1 / (1 + np.exp(-self.log_odds))

    @property
    def shown(self) -> Float[np.ndarray, "genomes families"]:
        """Probability that `truth` has it: what it can be compared with."""
        return self.probability if self.hidden is None else self.probability * (1 - self.hidden)

    @property
    def shifted(self) -> Noisy:
        """The same, had it been known that rare families are lost more often."""
        assert self.shift is not None
        return replace(self, log_odds=self.log_odds + self.shift, shift=None)


def degraded(
    genomes: Genomes,
    rows: Int[np.ndarray, " chosen"],
    level: tuple[float, float] | str,
    kind: str,
    seed: int,
    lost: str = "copies",
) -> Iterator[tuple[np.ndarray, Observed, Recovery]]:
    """Genomes degraded at a level, 16 at a time: their positions, what is observed of them, and how much of them that
    truly is. Same call, same noise.

    Args:
        level: Completeness and contamination in percent, of the organism: less is taken from a genome that is
            incomplete itself, and nothing from one that has no more; or "iid:missed:foreign", independent noise of
            families.
        kind: What methods read of the quality: "known", "estimated", "unknown".
        lost: How genes are lost, one of LOSSES.
    """
    prevalence = genomes.prevalence
    for start in range(0, len(rows), 16):
        some = rows[start : start + 16]
        counts, quality, told = [], [], []
        for i in some.tolist():
            rng = np.random.default_rng([seed, i])
            row = genomes.row(i)
            if isinstance(level, str):
                missed, foreign = (float(v) for v in level.split(":")[1:])
                counts.append(flip(row, missed, foreign, rng))
                quality.append((1 - missed, foreign))
                told.append((1.0, 1 - missed, foreign))
            else:
                itself = 1.0 if genomes.itself is None else float(genomes.itself[i])
                c, q = min(level[0] / 100, itself), level[1] / 100
                donor = genomes.donor(i, rng.random() < 0.5, rng)
                counts.append(degrade(row, donor, c / itself, q / itself, rng, lost, prevalence))
                quality.append(stated_quality(c, q, kind, rng))
                told.append((itself, c, q))
        c_stated, q_stated = torch.tensor(quality, dtype=torch.float32).unbind(1)
        yield some, Observed(torch.from_numpy(np.stack(counts)).float(), c_stated, q_stated), recovery_of(told)


@torch.no_grad()
def apply_all(
    methods: dict[str, Method],
    genomes: Genomes,
    rows: Int[np.ndarray, " chosen"],
    level: tuple[float, float] | str,
    kind: str,
    seed: int,
    device: torch.device | str = "cpu",
    lost: str = "copies",
    shift: bool = False,
) -> dict[str, Noisy]:
    """Predictions of several methods for the same degraded genomes.

    Args:
        shift: Keep by how much log-odds change if rare families are lost more often.
    """
    for method in methods.values():
        method.to(device)
    log_odds: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    observed, novelty, shifts, hidden = [], [], [], []
    any_method = next(iter(methods.values()))
    references: Any = next((m.references for m in methods.values() if hasattr(m, "references")), None)
    for _, batch, recovery in degraded(genomes, rows, level, kind, seed, lost):
        batch = batch.to(device)
        observed.append(batch.present.cpu().numpy())
        for name, method in methods.items():
            log_odds[name].append(method(batch).cpu().numpy())
        noise = any_method.noise
        settled = noise.settle(batch)[0]
        if genomes.itself is not None:
            hidden.append(noise.hidden(batch.present, recovery.to(device)).cpu().numpy())
        if shift:
            shifts.append(noise.shift(batch, noise.accessory()).cpu().numpy())
        if references is None:
            novelty.append(np.full(len(batch), np.nan, dtype=np.float32))
        else:
            near = references.corrected_similarity(settled, noise).amax(1)
            novelty.append(1 - near.cpu().numpy())
    truth = genomes.counts[rows].toarray() > 0
    seen, far = np.concatenate(observed), np.concatenate(novelty)
    others = [np.concatenate(parts) if parts else None for parts in (shifts, hidden)]
    return {name: Noisy(rows, truth, seen, np.concatenate(odds), far, *others) for name, odds in log_odds.items()}


@dataclass
class Level:
    """What validation says at one level of noise.

    Attributes:
        completeness, contamination: In percent.
        added, removed: (GRID,) lower bound, of 90 % confidence, of the precision of the changes with at least this
            probability of being right, as genomes tell that are complete enough themselves, see `_judged`.
        below, above: The interval of a genome's size, of 95 %, is from expected - below s to expected + above s, s the
            standard deviation of independent families, sqrt(sum p (1 - p)).
        novelty: Above it a genome is farther from the references than 95 % of the validation genomes.
        ece: Expected calibration error.
        bins: Number of (genome, family) pairs, mean probability and share present, by tenths of probability.
        loss: By method, mean binary cross-entropy.
    """

    completeness: float
    contamination: float
    added: list[float | None]
    removed: list[float | None]
    below: float
    above: float
    novelty: float
    ece: float
    bins: list[tuple[int, float, float]]
    loss: dict[str, float]

    def threshold(self, which: str, precision: float) -> float:
        """The lowest probability from which on changes ("added" or "removed") have the precision; 1 if none."""
        reached = (p for p, right in zip(GRID, getattr(self, which), strict=True) if right and right >= precision)
        return float(next(reached, 1.0))

    def changes(
        self, probability: Float[np.ndarray, " families"], observed: Bool[np.ndarray, " families"], precision: float
    ) -> tuple[Bool[np.ndarray, " families"], Bool[np.ndarray, " families"]]:
        """(families,) what is added to the observation, and what is removed, at the precision."""
        # Where none reaches it, not even what rounds to 1 is changed.
        add, remove = (2.0 if t == 1 else t for t in (self.threshold(c, precision) for c in ("added", "removed")))
        return ~observed & (probability >= add), observed & (1 - probability >= remove)


def calibrate(
    methods: dict[str, Method], main: str, genomes: Genomes, seed: int, device: torch.device | str = "cpu"
) -> tuple[list[Level], list[Level]]:
    """Degrade the validation genomes at every level, and see: what is said as it stands, and what is said of genomes
    whose rare families are known to be lost more often.

    Args:
        main: The method that thresholds are for; the others are only compared by their loss.
    """
    levels, accessory = [], []
    groups, rows = genomes.clades.groups[genomes.validation], genomes.validation
    for number, level in enumerate(LEVELS):
        apply = partial(apply_all, genomes=genomes, rows=rows, level=level, kind="estimated", device=device, shift=True)
        at = seed * 1000 + number
        noisy = apply(methods, seed=at)
        ways = {"copies": noisy[main]}
        ways |= {lost: apply({main: methods[main]}, seed=at, lost=lost)[main] for lost in LOSSES[1:]}
        loss = {name: mean_cross_entropy(n) for name, n in noisy.items()}
        told = {lost: way.shifted for lost, way in ways.items()}
        judged = _judged(genomes, level[0])
        levels.append(_level(level, ways, "copies", groups, judged, loss))
        accessory.append(_level(level, told, "accessory", groups, judged, loss))
    blank = {level[0] for level in LEVELS if not _judged(genomes, level[0]).any()}
    return _widened(levels, blank), _widened(accessory, blank)


def _widened(levels: list[Level], blank: set[float]) -> list[Level]:
    """Where genomes are too incomplete to tell how far sizes are off, these are as far off as at the next lower
    completeness at which they tell, or farther.

    Args:
        blank: Completeness at which none tells.
    """
    told = [level for level in levels if level.completeness not in blank]
    return [_no_narrower(level, told) if level.completeness in blank else level for level in levels]


def _no_narrower(level: Level, told: list[Level]) -> Level:
    """A level with an interval as wide as that of the nearest below it, of the same contamination, if there is one."""
    lower = [t for t in told if t.completeness < level.completeness and t.contamination == level.contamination]
    if not lower:
        return level
    nearest = max(lower, key=lambda t: t.completeness)
    return replace(level, below=max(level.below, nearest.below), above=max(level.above, nearest.above))


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
    level: tuple[float, float],
    ways: dict[str, Noisy],
    usual: str,
    groups: Int[np.ndarray, " genomes"],
    judged: Bool[np.ndarray, " genomes"],
    loss: dict[str, float],
) -> Level:
    """Out of genomes whose genes were lost in each of LOSSES; thresholds are those of the usual one. What is added is
    right as often as `truth` has it, over how often it would (Horvitz and Thompson, 1952).
    """
    one = ways[usual]
    p, truth, observed = one.probability, one.truth, one.observed
    right = truth if one.hidden is None or level[0] == 100 else truth / (1 - one.hidden).clip(1e-6)
    below, above = np.max([_off(way) for way in ways.values()], 0)
    added: list[float | None] = [None] * len(GRID)
    if judged.any():
        added = precision_bounds(p[judged], right[judged], ~observed[judged], groups[judged])
    return Level(
        *level,
        added,
        precision_bounds(1 - p, ~truth, observed, groups),
        float(below),
        float(above),
        float(np.quantile(one.novelty, NOVEL)),
        *reliability(one.shown, truth),
        loss,
    )


def _off(noisy: Noisy) -> tuple[float, float]:
    """Quantiles of 97.5 % of how far sizes lie below and above what is expected, in standard deviations."""
    p = noisy.shown
    off = (noisy.truth.sum(1) - p.sum(1)) / np.sqrt((p * (1 - p)).sum(1).clip(1e-6))
    below, above = (max(float(np.quantile(side, 0.975)), 1.96) for side in (-off, off))
    return below, above


def precision_bounds(
    probability: Float[np.ndarray, "genomes families"],
    right: Bool[np.ndarray, "genomes families"] | Float[np.ndarray, "genomes families"],
    possible: Bool[np.ndarray, "genomes families"],
    groups: Int[np.ndarray, " genomes"],
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


def clade_weights(groups: Int[np.ndarray, " genomes"]) -> Float[np.ndarray, " genomes"]:
    """(genomes,) so that every clade counts the same; mean 1."""
    _, which, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / sizes[which]
    return weights / weights.mean() if len(weights) else weights


def reliability(
    probability: Float[np.ndarray, "genomes families"], truth: Bool[np.ndarray, "genomes families"]
) -> tuple[float, list[tuple[int, float, float]]]:
    """Expected calibration error over tenths of probability (Naeini et al., "Obtaining well calibrated probabilities
    using Bayesian binning", 2015), and each tenth's number, mean probability and share present.
    """
    p, y = probability.ravel(), truth.ravel()
    which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    number = np.bincount(which, minlength=BINS)
    predicted, present = np.bincount(which, p, BINS), np.bincount(which, y, BINS)
    return float(np.abs(predicted - present).sum() / max(len(p), 1)), tenths(number, predicted, present)


def tenths(number: np.ndarray, predicted: np.ndarray, present: np.ndarray) -> list[tuple[int, float, float]]:
    """Number of pairs, mean probability and share present of each tenth, out of their sums."""
    several = number.clip(1)
    return [
        (int(n), float(a), float(b)) for n, a, b in zip(number, predicted / several, present / several, strict=True)
    ]


def mean_cross_entropy(noisy: Noisy) -> float:
    """Mean of `omniset.genomes.training.cross_entropy`."""
    hidden = None if noisy.hidden is None else torch.from_numpy(noisy.hidden).double()
    pair = torch.from_numpy(noisy.log_odds).double(), torch.from_numpy(noisy.truth).double()
    return float(cross_entropy(*pair, hidden).mean())


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

    means = {name: sum(w * getattr(level, name) for level, w in parts) for name in ("below", "above", "novelty", "ece")}
    loss = {name: sum(w * level.loss[name] for level, w in parts) for name in nearest.loss}
    return replace(nearest, added=curve("added"), removed=curve("removed"), loss=loss, **means)


def _between(grid: list[float], value: float) -> list[tuple[float, float]]:
    """The values of a grid around one, and how much each counts."""
    if value <= grid[0] or value >= grid[-1]:
        return [(grid[0] if value <= grid[0] else grid[-1], 1.0)]
    upper = next(i for i, g in enumerate(grid) if g >= value)
    share = (value - grid[upper - 1]) / (grid[upper] - grid[upper - 1])
    return [(grid[upper - 1], 1 - share), (grid[upper], share)]


def to_json(levels: list[Level]) -> list[dict[str, Any]]:
    return [asdict(level) for level in levels]


def of_json(values: list[dict[str, Any]]) -> list[Level]:
    return [Level(**value | {"bins": [tuple(b) for b in value["bins"]]}) for value in values]
