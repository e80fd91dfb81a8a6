"""What validation clades, degraded in known ways, teach about a method: thresholds, intervals, novelty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int

from omniset.genomes.methods import Method
from omniset.genomes.noise import Observed, degrade, flip
from omniset.genomes.training import Genomes, stated_quality

# Completeness and contamination, in percent, at which methods are calibrated and compared.
LEVELS = [(float(c), float(q)) for c in (100, 95, 90, 70, 50) for q in (0, 5, 10)]
GRID = np.concatenate([np.linspace(0.5, 0.98, 25), np.linspace(0.982, 0.998, 9), [0.999, 0.9995, 0.9999]])
BINS = 10
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
    """

    rows: Int[np.ndarray, " genomes"]
    truth: Bool[np.ndarray, "genomes families"]
    observed: Bool[np.ndarray, "genomes families"]
    log_odds: Float[np.ndarray, "genomes families"]
    novelty: Float[np.ndarray, " genomes"]

    @property
    def probability(self) -> Float[np.ndarray, "genomes families"]:
        return 1 / (1 + np.exp(-self.log_odds))


def degraded(
    genomes: Genomes, rows: Int[np.ndarray, " chosen"], level: tuple[float, float] | str, kind: str, seed: int
) -> Iterator[tuple[np.ndarray, Observed]]:
    """Genomes degraded at a level, 16 at a time: their positions and what is observed of them. Same call, same noise.

    Args:
        level: Completeness and contamination in percent; or "iid:missed:foreign", independent noise of families.
        kind: What methods read of the quality: "known", "estimated", "unknown".
    """
    for start in range(0, len(rows), 16):
        some = rows[start : start + 16]
        counts, quality = [], []
        for i in some.tolist():
            rng = np.random.default_rng([seed, i])
            row = genomes.row(i)
            if isinstance(level, str):
                missed, foreign = (float(v) for v in level.split(":")[1:])
                counts.append(flip(row, missed, foreign, rng))
                quality.append((1 - missed, foreign))
            else:
                c, q = level[0] / 100, level[1] / 100
                counts.append(degrade(row, genomes.donor(i, rng.random() < 0.5, rng), c, q, rng))
                quality.append(stated_quality(c, q, kind, rng))
        c_stated, q_stated = torch.tensor(quality, dtype=torch.float32).unbind(1)
        yield some, Observed(torch.from_numpy(np.stack(counts)).float(), c_stated, q_stated)


@torch.no_grad()
def apply_all(
    methods: dict[str, Method],
    genomes: Genomes,
    rows: Int[np.ndarray, " chosen"],
    level: tuple[float, float] | str,
    kind: str,
    seed: int,
    device: torch.device | str = "cpu",
) -> dict[str, Noisy]:
    """Predictions of several methods for the same degraded genomes."""
    for method in methods.values():
        method.to(device)
    log_odds: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    observed, novelty = [], []
    any_method = next(iter(methods.values()))
    references: Any = next((m.references for m in methods.values() if hasattr(m, "references")), None)
    for _, batch in degraded(genomes, rows, level, kind, seed):
        batch = batch.to(device)
        observed.append(batch.present.cpu().numpy())
        for name, method in methods.items():
            log_odds[name].append(method(batch).cpu().numpy())
        settled = any_method.noise.settle(batch)[0]
        near = references.corrected_similarity(settled, any_method.noise).amax(1) if references else torch.zeros(0)
        novelty.append(1 - near.cpu().numpy())
    truth = genomes.counts[rows].toarray() > 0
    return {
        name: Noisy(rows, truth, np.concatenate(observed), np.concatenate(odds), np.concatenate(novelty))
        for name, odds in log_odds.items()
    }


@dataclass
class Level:
    """What validation says at one level of noise.

    Attributes:
        completeness, contamination: In percent.
        added, removed: (GRID,) precision of the changes with at least this probability of being right.
        spread: By how much more than independent families genome sizes vary: the interval of 95 % is
            expected +- spread sqrt(sum p (1 - p)).
        novelty: Above it a genome is farther from the references than 95 % of the validation genomes.
        ece: Expected calibration error.
        bins: Number of (genome, family) pairs, mean probability and share present, by tenths of probability.
        loss: By method, mean binary cross-entropy.
    """

    completeness: float
    contamination: float
    added: list[float | None]
    removed: list[float | None]
    spread: float
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
) -> list[Level]:
    """Degrade the validation genomes at every level, and see.

    Args:
        main: The method that thresholds are for; the others are only compared by their loss.
    """
    weights = clade_weights(genomes.clades.groups[genomes.validation])
    levels = []
    for number, (c, q) in enumerate(LEVELS):
        noisy = apply_all(methods, genomes, genomes.validation, (c, q), "estimated", seed * 1000 + number, device)
        one = noisy[main]
        p, truth, observed = one.probability, one.truth, one.observed
        w = np.broadcast_to(weights[:, None], p.shape)
        residual = np.abs(truth.sum(1) - p.sum(1)) / np.sqrt((p * (1 - p)).sum(1).clip(1e-6))
        levels.append(
            Level(
                c,
                q,
                _precision(p[~observed], truth[~observed], w[~observed]),
                _precision(1 - p[observed], ~truth[observed], w[observed]),
                max(float(np.quantile(residual, 0.95)), 1.96),
                float(np.quantile(one.novelty, NOVEL)),
                *reliability(p, truth),
                {name: cross_entropy(n.log_odds, truth) for name, n in noisy.items()},
            )
        )
    return levels


def _precision(
    probability: Float[np.ndarray, " changes"],
    right: Bool[np.ndarray, " changes"],
    weights: Float[np.ndarray, " changes"],
) -> list[float | None]:
    """(GRID,) weighted share of right changes among those with at least each probability; None where there are few."""
    order = np.argsort(-probability)
    counted = np.cumsum(weights[order])
    correct = np.cumsum(weights[order] * right[order])
    upto = np.searchsorted(-probability[order], -GRID, side="right")
    return [float(correct[n - 1] / counted[n - 1]) if n >= 20 else None for n in upto.tolist()]


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


def cross_entropy(
    log_odds: Float[np.ndarray, "genomes families"], truth: Bool[np.ndarray, "genomes families"]
) -> float:
    """Mean binary cross-entropy."""
    z = torch.from_numpy(log_odds).double()
    return float(F.binary_cross_entropy_with_logits(z, torch.from_numpy(truth).double()))


def nearest_level(levels: list[Level], completeness: float, contamination: float) -> Level:
    """The level that is closest to a completeness and contamination in percent."""
    return min(levels, key=lambda x: abs(x.completeness - completeness) + abs(x.contamination - contamination))


def to_json(levels: list[Level]) -> list[dict[str, Any]]:
    return [asdict(level) for level in levels]


def of_json(values: list[dict[str, Any]]) -> list[Level]:
    return [Level(**value | {"bins": [tuple(b) for b in value["bins"]]}) for value in values]
