"""Whether attribution finds the element that decides (Figure 3)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from omniset.explain import Baseline, attribute

STEPS = 20


def identification(
    network: nn.Module,
    elements: Float[Tensor, "sets elements dim"],
    where: Int[Tensor, " sets"],
    target: int | None = None,
    baseline: Baseline = "zero",
) -> dict[str, Any]:
    """How often the element `where` is among the k highest scores, and its mean score then, for k = 1 to the size.

    Elements with a score equal to its own do not count as higher.
    """
    batch = SetBatch(elements, validate=False)
    scores = attribute(network, batch, target, STEPS, baseline=baseline).cpu().double()
    score = scores.gather(1, where[:, None].cpu())
    rank = (scores > score).sum(1)
    among = [rank < k for k in range(1, elements.shape[1] + 1)]
    return {
        "identified": [float(sets.double().mean()) for sets in among],
        "score": [float(score[sets].mean()) if bool(sets.any()) else 0.0 for sets in among],
    }
