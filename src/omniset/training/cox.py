"""Cox's partial likelihood: what is known of risks from the order in which events were seen.

Of sets i with log relative risks f_i, times t_i and weights w_i, those at risk at time t are R(t) = {k: t_k >= t}, and
D(t) are the d events that were seen at t. With Efron's handling of ties an event of time t contributes

    c_i = f_i - 1/d sum_{l=0}^{d-1} log( sum_{k in R(t)} w_k exp f_k  -  l/d sum_{k in D(t)} w_k exp f_k ),

and the logarithm of the partial likelihood is the sum of w_i c_i over the events. It does not change if a number is
added to all f. Only the order of the times counts, so that a target is one number: the rank of its time among all
times, equal times sharing one, as it is for an event, negative where the event was not seen.

Sources: Cox, "Regression models and life-tables", 1972; Efron, "The efficiency of Cox's likelihood function for
censored data", 1977. Weights are those of Therneau and Grambsch, "Modeling survival data", 2000.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from omniset.training.sets import Batch, SetModule

NOTHING = -1e9  # the logarithm of a weight of 0, finite so that gradients are

Ranks = Float[Tensor, " rows"]


def ranked(time: Float[np.ndarray, " rows"], event: Bool[np.ndarray, " rows"]) -> Float64[np.ndarray, " rows"]:
    """Targets: dense ranks of the times from 1, negative where the event was not seen.

    >>> ranked(np.array([3.0, 0.5, 3.0]), np.array([True, True, False])).tolist()
    [2.0, 1.0, -2.0]
    """
    rank = np.unique(time, return_inverse=True)[1] + 1.0
    return np.where(event, rank, -rank)


def contributions(
    risks: Float[Tensor, "*several rows"], ranks: Ranks, weights: Float[Tensor, "*several rows"] | None = None
) -> Float[Tensor, "*several rows"]:
    """c_i of each event; 0 where the event was not seen, or the weight is 0. In float64 where the device has it.

    Args:
        risks: f, of one model or of several.
        ranks: The targets, see `ranked`; those of some of the rows do as well.
        weights: w, not negative. Default: 1.
    """
    f = risks if risks.device.type == "mps" else risks.double()
    w = torch.ones_like(f) if weights is None else weights.to(f)
    order = torch.argsort(ranks.abs(), descending=True, stable=True)
    _, group, size = torch.unique_consecutive(ranks[order].abs(), return_inverse=True, return_counts=True)
    last = size.cumsum(0) - 1  # of those who have the time, in the order of falling times
    f, w = f[..., order], w[..., order]
    seen = (ranks[order] > 0) & (w > 0)
    x = f + torch.where(w > 0, w.clamp(min=torch.finfo(w.dtype).tiny).log(), NOTHING)
    at_risk = torch.logcumsumexp(x, -1)[..., last][..., group]

    def of_group(values: Tensor) -> Tensor:
        """The sum over the rows of each time, at each row."""
        return values.new_zeros(*values.shape[:-1], len(size)).index_add(-1, group, values)[..., group]

    share = of_group(torch.where(seen, (x - at_risk).exp(), 0.0))  # of the events in all at risk
    events = of_group(seen.to(f)).clamp(min=1)
    number = seen.to(f).cumsum(-1)
    before = torch.cat([torch.zeros_like(number[..., :1]), number[..., last[:-1]]], -1)[..., group]
    left = torch.where(seen, torch.log1p(-(number - 1 - before).clamp(min=0) / events * share), 0.0)
    each = torch.where(seen, f - at_risk - of_group(left) / events, 0.0)
    return torch.empty_like(each).index_copy(-1, order, each)


def loss_parts(
    risks: Float[Tensor, "*several rows"], ranks: Ranks, weights: Float[Tensor, "*several rows"]
) -> tuple[Float[Tensor, "*several"], Float[Tensor, "*several"]]:
    """- sum of w_i c_i, and the sum of the w_i, over the events."""
    each = contributions(risks, ranks, weights)
    w = torch.where(ranks > 0, weights.to(each), 0.0)
    return -(w * each).sum(-1), w.sum(-1)


class CoxModule(SetModule):
    """The partial likelihood as a loss: - sum w_i c_i / sum w_i over the events of a batch, whose sets are those at
    risk; of the sets kept back together. Where no event was seen it is 0.
    """

    _watched: list[tuple[Tensor, Tensor, Tensor]]

    def _outputs(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        parts, targets, weights = batch
        risks = self.network.of_parts(parts, **self.reading)[:, 0]
        return risks, targets[:, 0], weights

    def _logged(self, stage: str, outputs: tuple[Tensor, Tensor, Tensor]) -> Shaped[Tensor, ""]:
        total, weight = loss_parts(*outputs)
        loss = total / weight.clamp(min=torch.finfo(total.dtype).tiny)
        self.log(f"{stage}_loss", loss, batch_size=len(outputs[0]))
        return loss

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self._logged("train", self._outputs(batch))

    def on_validation_epoch_start(self) -> None:
        self._watched = []

    def validation_step(self, batch: Batch, index: int) -> None:
        self._watched.append(self._outputs(batch))

    def on_validation_epoch_end(self) -> None:
        risks, ranks, weights = (torch.cat(parts) for parts in zip(*self._watched, strict=True))
        self._logged("val", (risks, ranks, weights))
