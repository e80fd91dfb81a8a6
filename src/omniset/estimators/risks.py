"""A mixture of methods that learn log relative risks: its methods, its loss, and the weights.

Each method m says a log relative risk f_m, known up to a constant. It counts as much as it has shown to tell,

    a_m = argmin over a in [0, 5] of   - sum_i w_i c_i(a f_m) + (a - 1)^2 / 2,

c_i the contribution of an event to the partial likelihood (`omniset.training.cox`): Cox regression on one number that
the method had not learned from, the penalty a normal distribution around 1. The mixture is

    f = sum over methods m of  w_m a_m f_m

with the weights of `omniset.estimators.weights`, where the loss of a set is - c_i(a_m f_m) if its event was seen, and 0
if not. Sets left out are at risk beside those of their own fold only: the risks of others are of other models. Where
sets were dealt to folds several times, f_m is the mean over the repeats, and the folds are those of the first repeat:
two sets of a fold have the same model in that repeat, and in the others models whose constants agree. The constant of
a network is the one at which the mean over the sets that it left out is 0; simple methods choose theirs so that the
mean over what they learned from is about 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Shaped
from scipy.optimize import minimize_scalar
from torch import Tensor

from omniset.estimators.cox import MEMBERS
from omniset.estimators.ensembles import Batch, EnsembleModule
from omniset.estimators.simple import Member
from omniset.estimators.stack import NETWORKS, PRIOR, Predictions, Stack
from omniset.estimators.stacking import Kind
from omniset.estimators.weights import shares
from omniset.training.cox import contributions, loss_parts

LARGEST = 5.0  # slope
SIMPLE = ("mean-linear", "pooled-linear", "pooled-forest", "pooled-boosting", "dissimilarity-linear")

Risks = Float[np.ndarray, "methods rows"]
Rows = Shaped[np.ndarray, " rows"]
RowWeights = Float[np.ndarray, " rows"]


class RiskStack(Stack):
    """Fitted methods, their weights, and as powers the slopes of their log relative risks."""

    METHODS: ClassVar[Sequence[str]] = (PRIOR, *SIMPLE, *NETWORKS)
    MEMBERS: ClassVar[Mapping[str, type[Member]]] = MEMBERS

    def mixed(self, answers: Predictions) -> Float64[Tensor, "sets outputs"]:
        """The sum of w_m a_m f_m; of methods without a weight f may be missing."""
        rows = len(next(iter(answers.values())))
        factors = (self.weights * self.powers)[0].tolist()
        mixed = np.zeros((rows, 1))
        for name, factor in zip(self.METHODS, factors, strict=True):
            if factor:
                mixed += factor * answers[name]
        return torch.from_numpy(mixed)


class CoxEnsemble(EnsembleModule):
    """The partial likelihood as the loss of an ensemble: each network has the sets of a batch at risk that it learns
    from; those left out are taken together at the end of an epoch.
    """

    def training_step(self, batch: Batch, index: int) -> Tensor:
        total, weight = loss_parts(self._risks(batch), batch.targets[0, :, 0], batch.weights)
        loss = total / weight.clamp(min=torch.finfo(total.dtype).tiny)
        self.log("train_loss", loss.mean().detach(), batch_size=batch.targets.shape[1])
        return loss.sum()

    def _risks(self, batch: Batch) -> Float[Tensor, "networks sets"]:
        outputs, positions = zip(*self.outputs_of(batch), strict=True)
        risks = torch.cat(outputs, 1)[..., 0]
        order = torch.tensor([*chain.from_iterable(positions)], device=risks.device)
        return risks[:, order.argsort()]

    def on_validation_epoch_start(self) -> None:
        self._batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def validation_step(self, batch: Batch, index: int) -> None:
        self._batches.append((self._risks(batch), batch.targets[0, :, 0], batch.left_out))

    def on_validation_epoch_end(self) -> None:
        risks, ranks, weights = zip(*self._batches, strict=True)
        summed, counted = loss_parts(torch.cat(risks, 1), torch.cat(ranks), torch.cat(weights, 1))
        self.log("val_loss", summed.sum() / counted.sum().clamp(min=torch.finfo(summed.dtype).tiny))
        self.choose(summed.double().cpu(), counted.double().cpu())


def in_folds(risks: Risks, y: Rows, folds: Int[np.ndarray, " rows"], weights: RowWeights) -> Risks:
    """c_i of each event for each method, those of its fold at risk; 0 where no event was seen."""
    each = np.zeros(risks.shape)
    for fold in np.unique(folds):
        rows = folds == fold
        f, w = torch.from_numpy(risks[:, rows]), torch.from_numpy(weights[rows])
        each[:, rows] = contributions(f, torch.from_numpy(y[rows]), w.expand_as(f)).numpy()
    return each


def slope_of(risk: RowWeights, y: Rows, folds: Int[np.ndarray, " rows"], weights: RowWeights) -> float:
    """a_m."""

    def penalised(a: float) -> float:
        return float(-weights @ in_folds(a * risk[None], y, folds, weights)[0] + (a - 1) ** 2 / 2)

    if not risk.any():
        return 1.0
    return float(minimize_scalar(penalised, bounds=(0, LARGEST), method="bounded").x)


def mixture_of(
    risks: Risks,
    y: Rows,
    folds: Int[np.ndarray, " rows"],
    weights: RowWeights,
    groups: Rows | None = None,
    seed: int = 0,
) -> tuple[Float64[np.ndarray, " methods"], Float64[np.ndarray, " methods"]]:
    """Weights and slopes of methods.

    Args:
        risks: Of rows left out.
        y: Signed ranks of times.
        folds: Of each row.
        weights: How much each row counts, >= 0, not all 0; only their proportions matter.
        groups: Rows that belong together are one unit, with the mean of their losses.
    """
    there = weights > 0
    risks, y, folds, w = risks[:, there], y[there].astype(np.float64), folds[there], weights[there]
    w = w / w.mean()
    slopes = np.array([slope_of(risk, y, folds, w) for risk in risks])
    losses = -in_folds(slopes[:, None] * risks, y, folds, w)
    unit = np.arange(len(y)) if groups is None else np.unique(groups[there], return_inverse=True)[1]
    of_unit = np.bincount(unit, w)
    return shares(np.stack([np.bincount(unit, w * loss) for loss in losses]) / of_unit, of_unit, seed), slopes


def weighed(
    each: Risks,
    y: Rows,
    folds: Int[np.ndarray, "repeats rows"],
    weights: RowWeights,
    groups: Rows | None,
    seed: int,
) -> tuple[Float64[np.ndarray, " methods"], Float64[np.ndarray, " methods"], Float64[np.ndarray, " rows"]]:
    """`omniset.estimators.stacking.Kind.weigh` of risks; rows are compared within the folds of the first repeat."""
    ours, strata = np.zeros(len(y)), folds[0]
    for fold_of in folds:
        for fold in np.unique(fold_of):
            left, there = fold_of == fold, fold_of != fold
            together = None if groups is None else groups[there]
            share, slopes = mixture_of(each[:, there], y[there], strata[there], weights[there], together, seed)
            ours[left] += (share * slopes) @ each[:, left] / len(folds)
    return *mixture_of(each, y, strata, weights, groups, seed), ours


RISKS = Kind(RiskStack, CoxEnsemble, weighed, (PRIOR, *SIMPLE[:2], SIMPLE[-1]), risks=True)
