"""Layers that pool: of Deep Sets (Zaheer et al., "Deep Sets", 2017), featurewise sort pooling (Zhang et al., "FSPool:
Learning Set Representations with Featurewise Sort Pooling", 2020), and gated attention (Ilse, Tomczak, Welling,
"Attention-based Deep Multiple Instance Learning", 2018), over multisets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.checks import check_sizes
from omniset.core.states import State, wide
from omniset.kernels.sums import weighted_sum
from omniset.layers.base import Elements, Multiplicity, SetLayer
from omniset.layers.probes import Probed

Pooling = Literal["mean", "sum", "max"]


@dataclass(frozen=True)
class MaxState(State):
    """peak: the maximum (B, D). sums: of m x over the elements that reach it, and of their m; the ratio is the maximum.

    Written so, ties share the gradient by multiplicity, just as repeated elements would.
    """

    def factor(self, peak: Tensor | None) -> Tensor:
        assert self.peak is not None
        assert peak is not None
        return wide((self.peak == peak) & (peak > -torch.inf))


class SetPooling(SetLayer):
    """mean: sum m x / sum m. sum: sum m x. max: the largest present x, per channel. An empty set gives 0.

    Raises:
        ValueError: Another pooling.
    """

    def __init__(self, pooling: Pooling = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "sum", "max"):
            raise ValueError(f"pooling must be 'mean', 'sum' or 'max', got {pooling!r}")
        self.pooling = pooling

    def reduce(self, elements: Elements, multiplicity: Multiplicity, peak: Tensor | None = None) -> State:
        m = multiplicity.to(elements.dtype)[..., None]
        if self.pooling != "max":
            return State(None, (weighted_sum(m, elements), m.sum(1)))
        if peak is None:
            seen = torch.where(m > 0, elements, -torch.inf).detach()
            has_elements = elements.shape[1] > 0
            peak = seen.amax(1) if has_elements else seen.new_full((seen.shape[0], seen.shape[2]), -torch.inf)
        # The engine's backward computes x again, and it must equal the forward's bit for bit to be found here.
        m = torch.where(elements.detach() == peak[:, None], m, 0)
        return MaxState(peak, ((m * elements).sum(1), m.sum(1)))  # m has channels here

    def context(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Float[Tensor, "sets 1 dim"]:
        """Where each element is there once, a sum whose gradient is a view."""
        if multiplicity is None and self.pooling != "max" and elements.shape[1]:
            return (elements.mean if self.pooling == "mean" else elements.sum)(1, keepdim=True)
        return super().context(elements, multiplicity)

    def finish(self, state: State) -> Float[Tensor, "sets 1 dim"]:
        total, weight = state.sums
        pooled = total if self.pooling == "sum" else total / torch.where(weight == 0, 1, weight)
        return pooled[:, None]


class FeaturewiseSortPooling(SetLayer):
    """Sorts each channel by itself, the largest first, and sums it up with weights that depend on the place alone.

        y_c = sum over j = 0..n-1 of f_c(j / (n - 1)) x_(j, c)

    f_c is piecewise linear with `pieces` pieces of equal length and learned values at their ends, drawn N(0, 1). A set
    of one element has it at place 0, an empty set gives 0. The sum grows with n.

    An element of multiplicity m takes m places in a row, n is the sum of all m, and the weights of these places are
    summed up in closed form, so that cost follows the distinct elements; fractional m continue the same formula.

    A place in the whole set is not known from a part of it: this layer is not mini-batch consistent.

    Args:
        dim: Channels.
        pieces: Of f, >= 1.

    Raises:
        ValueError: A size out of bounds.
    """

    def __init__(self, dim: int, pieces: int = 20) -> None:
        super().__init__()
        check_sizes(dim=dim, pieces=pieces)
        self.weight = nn.Parameter(torch.randn(dim, pieces + 1))

    def reduce(self, elements: Elements, multiplicity: Multiplicity, peak: Tensor | None = None) -> State:
        """Of whole sets only: these states do not merge to that of the union."""
        m = wide(multiplicity)
        ordered, order = elements.mT.sort(-1, descending=True)  # (B, D, N)
        copies = m[:, None].expand(ordered.shape).gather(-1, order)
        stop = copies.cumsum(-1)
        weights = self._weights_before(stop, m.sum(1)) - self._weights_before(stop - copies, m.sum(1))
        return State(None, ((weights * ordered).sum(-1),))

    def finish(self, state: State) -> Float[Tensor, "sets 1 dim"]:
        (pooled,) = state.sums
        return pooled[:, None].to(self.weight.dtype)

    def _weights_before(
        self, place: Float[Tensor, "sets dim elements"], number: Float[Tensor, " sets"]
    ) -> Float[Tensor, "sets dim elements"]:
        """Sum of f(j / (n - 1)) over the places j < `place` of a set of n = `number` elements.

        On piece i, f at place j is w_i + (w_(i+1) - w_i)(j s - i) with s = pieces / (n - 1), so that its sum over a
        stretch of places needs their number and the sum of j only.
        """
        pieces = self.weight.shape[1] - 1
        i = torch.arange(pieces, device=place.device)
        several = number[:, None] > 1
        s = torch.where(several, pieces / torch.where(several, number[:, None] - 1, 1), 0)  # (B, 1)
        # The first place of each piece: in sets of one element all but the first piece start beyond it.
        first = torch.where(several, (i / torch.where(several, s, 1)).ceil(), i * number[:, None].ceil()).detach()
        left, slope = wide(self.weight[:, :-1]), wide(self.weight.diff(dim=1))
        level = (left - i * slope)[None]  # (1, D, pieces)
        length, places = first.diff(dim=1), _sum_below(first).diff(dim=1)
        of_piece = level[..., :-1] * length[:, None] + slope[None, :, :-1] * (s * places)[:, None]
        before = torch.nn.functional.pad(of_piece.cumsum(-1), (1, 0))  # (B, D, pieces): all pieces further left
        boundaries = first[:, None].expand(-1, place.shape[1], -1).contiguous()
        piece = (torch.searchsorted(boundaries, place.detach().contiguous(), right=True) - 1).clamp(min=0)

        def here(values: Tensor) -> Tensor:
            return values.expand(place.shape[0], place.shape[1], -1).gather(-1, piece)

        within = here(level) * (place - here(first[:, None]))
        within = within + here(slope[None]) * s[..., None] * (_sum_below(place) - here(_sum_below(first)[:, None]))
        return here(before) + within


def _sum_below(place: Tensor) -> Tensor:
    """0 + 1 + ... + (place - 1)."""
    return place * (place - 1) / 2


class GatedAttentionPooling(Probed, SetLayer):
    """Gated attention pooling (Ilse et al., 2018, Eq. 7 and 9) over multisets, with Q attentions side by side.

        z_q = sum_k a_qk h_k,   a_q = softmax_k(w_q . (tanh(V h_k) * sigmoid(U h_k)) + log m_k)

    An empty set gives 0. V and U have biases, as in the code of the paper, which has Q = 1. The state is that of
    multiset attention, with one head.

    Args:
        dim: D, width of the elements.
        num_outputs: Q, >= 1.
        attention_dim: L, >= 1. None: dim.

    Raises:
        ValueError: A size out of bounds.

    >>> pool = GatedAttentionPooling(4)
    >>> x = torch.randn(1, 3, 4)
    >>> counted, copied = pool(x, torch.tensor([[2, 1, 0]])), pool(x[:, [0, 0, 1]])
    >>> torch.allclose(counted, copied, atol=1e-6)
    True
    """

    def __init__(self, dim: int, num_outputs: int = 1, attention_dim: int | None = None) -> None:
        super().__init__()
        width = dim if attention_dim is None else attention_dim
        check_sizes(dim=dim, num_outputs=num_outputs, attention_dim=width)
        self.tanh = nn.Linear(dim, width)
        self.gate = nn.Linear(dim, width)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_outputs, width)))

    def reduce(
        self,
        elements: Elements,
        multiplicity: Multiplicity | None = None,
        peak: Float[Tensor, "sets 1 outputs 1"] | None = None,
    ) -> AttentionState:
        m = None if multiplicity is None else multiplicity[:, None]
        key = (self.tanh(elements).tanh() * self.gate(elements).sigmoid())[:, None]
        value = elements[:, None]
        if self.probe is not None:
            self.probe.see(partial(self._measured, key, value, m), multiplicity)
        return AttentionState.of(self.weight, key, value, m, 1.0, peak=peak)

    def finish(self, state: AttentionState) -> Float[Tensor, "sets outputs dim"]:  # type: ignore[override]
        return self.average(state)[:, 0].to(self.weight.dtype)

    def _measured(self, key: Tensor, value: Tensor, m: Tensor | None, peak: Tensor | None) -> tuple[Tensor, Tensor]:
        return AttentionState.exponentials(self.weight, key, m, 1.0, peak)[0], value
