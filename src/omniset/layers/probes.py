"""Where explanations look into a set layer: at the heads' averages of the values, one per query.

With normalised weights A, attention hands on the averages A V. To multiply A by alpha is to multiply these, and by the
chain rule the gradient of a prediction with respect to alpha A_qj is v_j . G_q, where G_q is that with respect to query
q's average: no larger than the state of the layer, however large the set. A probe has G as the gradient of a shift, a
parameter that is 0 and added to the averages. The engine takes it like any other parameter, through shards too.

Against equal attention the averages start at the mean of the values, which is what equal attention would hand on, in
place of 0, and values are measured from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.states import wide

Measure = Callable[[Tensor | None], tuple[Tensor, Tensor]]


class Probed(nn.Module):
    """A layer whose averages a probe may look at."""

    probe: Probe | None  # set by omniset.explain, for the time of an explanation

    def __init__(self) -> None:
        super().__init__()
        self.register_module("probe", None)

    @property
    def set_attention(self) -> Probed:
        """What attends to the set."""
        return self

    def average(self, state: AttentionState) -> Tensor:
        """What a state is finished to, with what the probe makes of it."""
        average = state.finish()
        return average if self.probe is None else self.probe(average, state.peak, state.normaliser)


class Probe(nn.Module):
    """What a block's averages pass through while it is explained. `equal`: averages start at the mean of the values.

    In the first forward it notes what normalises the weights. With `start_shift` it changes the averages, with
    `start_scores` it weighs the elements, in the order in which they are reduced. Full self-attention finishes its
    queries a shard at a time, in the same order in every pass: `place` and `turn` say where it is.
    """

    shift: nn.Parameter | None  # (factors times sets, heads, queries, d)

    def __init__(self, equal: bool = False) -> None:
        super().__init__()
        self.register_parameter("shift", None)
        self.equal = equal
        # Of the values of all elements: their sum (sets, heads, 1, d), their number (sets, 1, 1, 1), their mean.
        self.sum = self.number = self.start = torch.zeros(())
        self.alpha = torch.ones(1)  # factors of the averages, from where they start, one after the other for all sets
        self.queries = self.place = self.turn = self.shard = 0
        self.watching = True
        self.averages: list[Tensor] = []
        self.normalisers: list[tuple[Tensor | None, Tensor]] = []
        self.gradient: Tensor | None = None
        # (sets, elements) of each shard: sums over heads and queries of what is positive.
        self.scores: list[Tensor] | None = None
        self.total: Any = 0  # (sets,) sum over everything

    def forward(
        self, averages: Float[Tensor, "sets heads queries d"], peak: Tensor | None, weight: Tensor
    ) -> Float[Tensor, "sets heads queries d"]:
        """What the block goes on with in place of the averages."""
        size = averages.shape[2]
        if self.watching:
            self.averages.append(averages)
            self.normalisers.append((peak, weight))
            self.queries += size
        elif self.shift is not None:
            start = self.start.to(averages)
            start = start.repeat(len(self.alpha), 1, 1, 1) if start.ndim else start
            alpha = self.alpha.to(averages).repeat_interleave(len(averages) // len(self.alpha))[:, None, None, None]
            shift = self.shift[:, :, self.place : self.place + size].to(averages)
            averages = start + alpha * (averages - start) + shift
        self.place, self.turn, self.shard = self.place + size, self.turn + 1, 0
        if not self.watching and self.place == self.queries:
            self.place = self.turn = 0
        return averages

    def end_watch(self) -> None:
        """The first forward is over."""
        self.watching, self.place, self.turn, self.shard = False, 0, 0, 0
        self.start = self.sum / torch.where(self.number == 0, 1, self.number)

    def start_shift(self, alpha: Float64[Tensor, " factors"]) -> nn.Parameter:
        """Scales all averages from here on, and adds a parameter, 0. The sets are to come once for each factor."""
        self.alpha = alpha
        self.shift = nn.Parameter(torch.zeros_like(torch.cat(self.averages, 2).repeat(len(alpha), 1, 1, 1)))
        return self.shift

    def end_shift(self) -> None:
        """Averages are as they are again."""
        self.shift = None

    def start_scores(self, gradient: Tensor | None) -> None:
        """Weighs elements in the next forward: by A_qj v_j . G_q, or, without a gradient G, by A_qj alone."""
        self.gradient, self.scores = gradient, []

    def see(self, measure: Measure, multiplicity: Shaped[Tensor, "sets elements"] | None) -> None:
        """A shard of elements on its way into the state.

        Args:
            measure: From a peak to weights that are not normalised, (sets, heads, queries, elements), and values,
                (sets, heads, elements, d).
            multiplicity: Of the elements; None: each is there once.
        """
        if self.watching and self.equal and not self.turn:  # other turns see the same elements
            values = wide(measure(None)[1])
            ones = values.new_ones(len(values), values.shape[2])
            m = (ones if multiplicity is None else multiplicity.to(values))[:, None, None]
            self.sum, self.number = self.sum + m @ values, self.number + m.sum(-1, keepdim=True)
        if self.scores is None:
            return
        peak, weight = self.normalisers[self.turn]
        weights, values = measure(peak)
        attributed = weights / torch.where(weight == 0, 1, weight)
        if self.gradient is not None:
            rows = self.gradient[:, :, self.place : self.place + weights.shape[2]]
            attributed = attributed * (rows.to(values) @ (values - self.start.to(values)).mT)
        positive = attributed.clamp(min=0).sum((1, 2))
        if self.shard < len(self.scores):
            self.scores[self.shard] = self.scores[self.shard] + positive
        else:
            self.scores.append(positive)
        self.total = self.total + attributed.sum((1, 2, 3))
        self.shard += 1
