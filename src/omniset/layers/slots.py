"""Slot Set Encoder (Andreis et al., "Mini-Batch Consistent Slot Set Encoder for Scalable Set Encoding", 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import AttentionState, zero_if_minus_inf
from omniset.core.checks import check_sizes
from omniset.core.private import plain_linear
from omniset.core.states import State
from omniset.layers.base import Elements, Multiplicity, SetLayer
from omniset.layers.probes import Probed

Weighting = Literal["softmax", "sigmoid", "slots"]


class SlotSetEncoder(Probed, SetLayer):
    """SSE: K slots attend to the set; their sums over elements are divided by the summed weights.

        q = W_q LN(S);  a = weighting(q (W_k x)^T / sqrt(dim / num_heads));  y = sum m a W_v x / sum m a
        out = LN(q + y)

    The weighting is exp ("softmax": over the set, as Willette et al., "Scalable Set Encoding with Universal Mini-Batch
    Consistency and Unbiased Full Set Gradient Approximation", 2023, take it; measured against the largest score, where
    their code cuts scores off at 10), the sigmoid, or a softmax over the slots ("slots"). An empty set has y = 0.

    Random slots are S = mu + softplus(rho) eps in training, with one eps for all sets and shards of a call, and mu
    otherwise. mu starts uniform in (-0.2, 0.2), rho in (-5, -4); slots that are not random start Xavier uniform.

    Args:
        dim: D, width of elements and slots; divisible by num_heads.
        num_slots: K, >= 1.
        weighting: softmax, sigmoid or slots.
        random: Random slots.

    Raises:
        ValueError: A size or weighting out of bounds.
    """

    rho: nn.Parameter | None

    def __init__(
        self, dim: int, num_heads: int, num_slots: int, weighting: Weighting = "sigmoid", random: bool = True
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads, num_slots=num_slots)
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got dim={dim} and num_heads={num_heads}")
        if weighting not in ("softmax", "sigmoid", "slots"):
            raise ValueError(f"weighting must be 'softmax', 'sigmoid' or 'slots', got {weighting!r}")
        self.num_heads, self.weighting = num_heads, weighting
        self.scale = (dim // num_heads) ** -0.5
        slots = torch.empty(1, num_slots, dim)
        self.slots = nn.Parameter(slots.uniform_(-0.2, 0.2) if random else nn.init.xavier_uniform_(slots))
        self.register_parameter("rho", nn.Parameter(torch.empty_like(slots).uniform_(-5, -4)) if random else None)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_output = nn.LayerNorm(dim)
        self._drawn: Tensor | None = None

    def draw(self) -> Tensor | None:
        """A new eps; None where slots are not random, or not in training."""
        return torch.randn_like(self.slots) if self.rho is not None and self.training else None

    @contextmanager
    def holding(self, drawn: Tensor | None) -> Iterator[None]:
        """Inside this block the slots are drawn with this eps: all shards of a set meet the same slots."""
        self._drawn = drawn
        try:
            yield
        finally:
            self._drawn = None

    def reduce(
        self,
        elements: Elements,
        multiplicity: Multiplicity | None = None,
        peak: Float[Tensor, "sets heads slots 1"] | None = None,
    ) -> State:
        by_head = (self.num_heads, -1)
        if self.probe is not None:
            self.probe.see(partial(self._measured, elements, multiplicity), multiplicity)
        few = self.slots.shape[1] * (self.num_heads - 1) < elements.shape[2]  # as in omniset.kernels.folded
        folds = few and plain_linear(self.key) and plain_linear(self.value)
        if folds:
            # A score is a product of two projections, one of which can move over to the slots; a sum is projected
            # once, not each element. No key and no value is made.
            q = self._queries(self._slots()).unflatten(-1, by_head).transpose(1, 2) * self.scale  # (1, H, K, D / H)
            rows = torch.einsum("bhkc,hcd->bhkd", q, self.key.weight.unflatten(0, by_head)).flatten(1, 2)[0]  # (H K, D)
            offset = torch.einsum("bhkc,hc->bhk", q, self.key.bias.unflatten(0, by_head))
            scores = (rows @ elements.mT).unflatten(1, by_head) + offset[..., None]
        else:
            scores, v = self._plain(elements)
        weights, peak = self._weigh(scores, multiplicity, peak)
        weight = weights.sum(-1, keepdim=True)
        if folds:
            total = (weights.flatten(1, 2) @ elements).unflatten(1, by_head)
            total = torch.einsum("bhkd,hcd->bhkc", total, self.value.weight.unflatten(0, by_head))
            total = total + weight * self.value.bias.unflatten(0, by_head)[:, None]
        else:
            total = weights @ v
        return State(None, (weight, total)) if peak is None else AttentionState(peak, (weight, total))

    def finish(self, state: State) -> Float[Tensor, "sets slots dim"]:
        weight, total = state.sums
        q = self._queries(self._slots())
        average = total / torch.where(weight == 0, 1, weight)
        if self.probe is not None:
            average = self.probe(average, state.peak, weight)
        average = average.to(q.dtype).transpose(1, 2).flatten(2)
        return self.norm_output(q + average)

    def _plain(self, elements: Elements) -> tuple[Tensor, Tensor]:
        """Scores (sets, heads, slots, elements) and values (sets, heads, elements, d)."""
        parts = self._queries(self._slots()), self.key(elements), self.value(elements)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in parts)
        return (q * self.scale) @ k.mT, v

    def _measured(self, elements: Tensor, multiplicity: Tensor | None, peak: Tensor | None) -> tuple[Tensor, Tensor]:
        scores, v = self._plain(elements)
        return self._weigh(scores, multiplicity, peak)[0], v

    def _queries(self, slots: Float[Tensor, "1 slots dim"]) -> Float[Tensor, "1 slots dim"]:
        return self.query(self.norm_slots(slots))

    def _slots(self) -> Float[Tensor, "1 slots dim"]:
        if self.rho is None or self._drawn is None:
            return self.slots
        return self.slots + F.softplus(self.rho) * self._drawn

    def _weigh(
        self, scores: Tensor, multiplicity: Tensor | None, peak: Tensor | None
    ) -> tuple[Float[Tensor, "sets heads slots elements"], Tensor | None]:
        """Weights times multiplicities; and the peak that exponentials are measured against."""
        m = None if multiplicity is None else multiplicity.to(scores.dtype)[:, None, None]
        if self.weighting == "softmax":
            if peak is None:
                here = scores.detach() if m is None else scores.detach().masked_fill(m == 0, -torch.inf)
                has_elements = scores.shape[-1] > 0
                peak = here.amax(-1, True) if has_elements else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
            shifted = scores - zero_if_minus_inf(peak).to(scores.dtype)
            # Of absent elements too the exponential must be finite: times 0 it would be NaN.
            weights = torch.exp(shifted if m is None else shifted.masked_fill(m == 0, -torch.inf))
        else:
            weights = scores.sigmoid() if self.weighting == "sigmoid" else scores.softmax(2)
        return weights if m is None else weights * m, peak
