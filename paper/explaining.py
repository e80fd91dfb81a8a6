"""Whether attribution finds the element that decides (Figure 3)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from omniset.explain import attribute
from paper.study import SummaryNetwork

STEPS = 20


def identification(
    network: nn.Module,
    elements: Float[Tensor, "sets elements dim"],
    where: Int[Tensor, " sets"],
    target: int | None = None,
) -> dict[str, Any]:
    """How often the element `where` is among the k highest scores, and its mean score then, for k = 1 to the size.

    Elements with a score equal to its own do not count as higher.
    """
    scores = attribute(network, SetBatch(elements, validate=False), target=target, steps=STEPS).cpu().double()
    score = scores.gather(1, where[:, None].cpu())
    rank = (scores > score).sum(1)
    among = [rank < k for k in range(1, elements.shape[1] + 1)]
    return {
        "identified": [float(sets.double().mean()) for sets in among],
        "score": [float(score[sets].mean()) if bool(sets.any()) else 0.0 for sets in among],
    }


def pma_scores(
    network: SummaryNetwork, elements: Float[Tensor, "sets elements dim"]
) -> tuple[Float[Tensor, "sets elements"], Float[Tensor, "sets elements"]]:
    """Scores of PMA alone, as `omniset.explain.attribute_layers` has them, and against attention that is equal.

    Let A_j be a head's attention to element j, v_j its value. The first scores are sums over heads of the positive
    A_j v_j . G, with G the mean gradient of the output while the heads' averages go from 0 to what they are. As
    attention has sum 1, what all values share is a part of the average whatever is attended to. The scores share it out
    by attention all the same, and it can be moved from the values to the bias of the projection that follows: the
    network stays the same, the scores do not. The second scores have v_j less the mean of the values, and averages that
    start there, where attention is equal. They add up, before negative ones are left out, to what attention changes.
    """
    encoder = network.encoder
    block, points = encoder.pool.gather, encoder.pool.points
    with torch.no_grad():
        seen = encoder.pool.prepare(encoder(SetBatch(elements, validate=False)).elements)
        q, k, v = (x.unflatten(-1, (block.num_heads, -1)).transpose(1, 2) for x in block.project(points, seen))
        attention, mean = (block.scale * q @ k.mT).softmax(-1), v.mean(2, keepdim=True)

    def scores(start: Tensor) -> Tensor:
        change = attention @ (v - start)
        gradient = torch.zeros_like(change)
        for step in range(1, STEPS + 1):
            with torch.enable_grad():
                averages = (start + change * step / STEPS).requires_grad_()
                summary = encoder.decoder(block.combine(points, averages.transpose(1, 2).flatten(2)))
                gradient += torch.autograd.grad(network.head(summary).sum(), averages)[0] / STEPS
        return (attention * (gradient @ (v - start).mT)).clamp(min=0).sum((1, 2))

    return scores(torch.zeros_like(mean)), scores(mean)
