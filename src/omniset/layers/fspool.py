"""Featurewise sort pooling (Zhang et al., "FSPool: Learning Set Representations with Featurewise Sort Pooling", 2020),
over multisets.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.checks import check_sizes
from omniset.core.states import State, wide
from omniset.layers.base import SetLayer


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

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets 1 dim"]:
        if multiplicity is None:
            multiplicity = elements.new_ones(elements.shape[:2])
        return self.finish(self.reduce(elements, multiplicity))

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"],
        peak: Tensor | None = None,
    ) -> State:
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
            return values.expand(len(place), place.shape[1], -1).gather(-1, piece)

        within = here(level) * (place - here(first[:, None]))
        within = within + here(slope[None]) * s[..., None] * (_sum_below(place) - here(_sum_below(first)[:, None]))
        return here(before) + within


def _sum_below(place: Tensor) -> Tensor:
    """0 + 1 + ... + (place - 1)."""
    return place * (place - 1) / 2
