"""Whether attribution finds the element that decides (Figure 3)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.explain import attribute
from omniset.sets import SetBatch

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
    own = scores.gather(1, where[:, None].cpu())
    rank = (scores > own).sum(1)
    found = [rank < k for k in range(1, elements.shape[1] + 1)]
    return {
        "identified": [float(f.double().mean()) for f in found],
        "score": [float(own[f].mean()) if bool(f.any()) else 0.0 for f in found],
    }
