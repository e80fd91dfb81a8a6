"""How much each part of a mixture counts: predictions for genomes that no part has learned from in, weights out
(Wolpert, "Stacked generalization", 1992).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from omniset.genomes.noise import cross_entropy

FACTS = 5  # that the weights depend on, the last of which is 0 for a genome that is completed alone
RIDGE = 3e-5  # few clades may be kept back: weights of what they do not tell stay near to equal ones


@dataclass
class Predictions:
    """What parts say of pairs of genome and family.

    Attributes:
        parts: Log-odds of each part.
        truth: 1 where the genome has the family.
        weights: Of the pairs.
        facts: About the genome.
        present: Whether the family was observed.
        hidden: How often the genome lacks it although its organism has it. None: never.
    """

    parts: Float[Tensor, "pairs parts"]
    truth: Float[Tensor, " pairs"]
    weights: Float[Tensor, " pairs"]
    facts: Float[Tensor, "pairs facts"]
    present: Bool[Tensor, " pairs"]
    hidden: Float[Tensor, " pairs"] | None


def balance(
    mixture: Float[Tensor, "parameters facts"], facts: Float[Tensor, "*pairs facts"], present: Bool[Tensor, "*_"]
) -> tuple[Float[Tensor, "*_ parts"], Float[Tensor, "*_"]]:
    """How parts count in genomes and families: with weights t softmax_j(u_j . f), f the facts, and a shift b.

    A family that was observed has t = exp(s . f) and b = 0; one that was not has t = exp(r . f) and b = d . f: parts
    that are calibrated over all families are too sure, or not sure enough, of the few that are there and were missed.

    Args:
        mixture: u_1 to u_J, s, r and d.
    """
    seen, unseen, shift = (facts @ row for row in mixture[-3:])
    weights = (facts @ mixture[:-3].T).softmax(-1) * torch.where(present, seen, unseen).exp()[..., None]
    return weights, torch.where(present, torch.zeros_like(shift), shift)


def fit_weights(alone: Sequence[Predictions], together: Sequence[Predictions]) -> Float64[Tensor, "parameters facts"]:
    """The mixture of least cross-entropy plus a ridge on all parameters: over genomes that are completed alone; then,
    with all else as it is, what changes with the last fact, over genomes that are completed together, if there are any.
    """
    number = alone[0].parts.shape[1] + 3
    mixture = _fitted(alone, number, FACTS - 1, lambda free: nn.functional.pad(free, (0, 1)))
    if together:
        mixture = _fitted(together, number, 1, lambda free: torch.cat([mixture[:, :-1], free], 1))
    return mixture


def _fitted(
    drawn: Sequence[Predictions], parameters: int, facts: int, whole: Callable[[Tensor], Tensor]
) -> Float64[Tensor, "parameters all_facts"]:
    """The mixture out of parameters that depend on so many facts."""
    names = ("parts", "truth", "weights", "facts", "present")
    x, y, w, about, seen = (torch.cat([getattr(some, name) for some in drawn]) for name in names)
    parts = [some.hidden for some in drawn if some.hidden is not None]
    hidden = torch.cat(parts) if parts else None
    free = torch.zeros(parameters, facts, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        weights, shift = balance(whole(free), about, seen)
        log_odds = (weights * x).sum(1) + shift
        total = (w * cross_entropy(log_odds, y, hidden)).mean() + RIDGE * free.square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    return whole(free).detach()
