"""Set norm (Zhang et al., "Set Norm and Equivariant Skip Connections: Putting the Deep in Deep Sets", 2022) over
multisets, and the layers of Deep Sets++ and Set Transformer++ that are made with it.

A set's mean and deviation are known when all its elements have been read. So each norm is a reduce, and a block with
two of them is two layers or more: what a layer's map has to hand on beside its result, it writes beside each element.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.checks import check_sizes
from omniset.core.states import State, wide
from omniset.layers.base import SetLayer, activation_layer, feed_forward
from omniset.layers.set_transformer import InducedLayer, PointsInit, PoolingByMultiheadAttention, learned_points
from omniset.layers.universal import AttentionBlock, Scale, attention_block

EPS = 1e-5


class Moments(SetLayer):
    """Mean and deviation of a set, over all elements and all of their features: one number each.

        reduce:  sum_i m_i D,  sum_i m_i sum_d x_id,  sum_i m_i sum_d x_id^2
        finish:  mean, 1 / sqrt(variance + 1e-5)

    The sums are in float64 from the start (float32 on MPS), as variances are differences of them. An empty set has
    mean 0 and deviation 1. The map writes the two numbers beside each element: (B, N, D) to (B, N, D + 2).
    """

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"],
        peak: Tensor | None = None,
    ) -> State:
        x, m = wide(self.normed(elements)), wide(multiplicity)
        sums = m.sum(1) * x.shape[2], (m * x.sum(2)).sum(1), (m * x.square().sum(2)).sum(1)
        return State(None, tuple(s[:, None] for s in sums))

    def finish(self, state: State) -> Float[Tensor, "sets 1 2"]:
        count, total, squares = state.sums
        number = torch.where(count == 0, 1, count)
        mean = total / number
        variance = (squares / number - mean.square()).clamp(min=0)
        return torch.stack([mean, torch.where(count == 0, 1, (variance + EPS).rsqrt())], -1)

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements mapped"]:
        return torch.cat([elements, context.expand(-1, elements.shape[1], -1)], -1)

    def normed(self, elements: Float[Tensor, "sets elements mapped"]) -> Float[Tensor, "sets elements dim"]:
        """What of the elements the moments are of."""
        return elements


class Affine(nn.Module):
    """(x - mean) / deviation * weight + bias, with a weight and a bias of each feature."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(
        self, x: Float[Tensor, "sets elements dim"], moments: Float[Tensor, "sets rows 2"]
    ) -> Float[Tensor, "sets elements dim"]:
        mean, inverse = moments[..., :1], moments[..., 1:]
        return (x - mean) * inverse * self.weight + self.bias


class SetNorm(Moments):
    """Set norm: what `Moments` measure, taken from each element, with a weight and a bias of each feature.

        x_id -> (x_id - mean) / sqrt(variance + 1e-5) * weight_d + bias_d

    Of a set's features two numbers are lost, its mean and its scale; a layer norm takes these two from every element.

    Args:
        dim: D, width of the elements.

    >>> norm = SetNorm(4)
    >>> x = torch.randn(1, 3, 4)
    >>> counted, copied = norm(x, torch.tensor([[2, 1, 0]])), norm(x[:, [0, 0, 1]])
    >>> torch.allclose(counted[:, :2], copied[:, 1:], atol=1e-6)
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.affine = Affine(dim)

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets elements dim"]:
        m = elements.new_ones(elements.shape[:2]) if multiplicity is None else multiplicity
        return self.map(elements, self.finish(self.reduce(elements, m)).to(elements.dtype))

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements dim"]:
        return self.affine(elements, context)


class NormedFeedForward(SetNorm):
    """x + FFN(SN(x)), the second half of a block of Set Transformer++.

    Args:
        dim: D, width of the elements.
        ffn: From D features to D.
    """

    def __init__(self, dim: int, ffn: nn.Module) -> None:
        super().__init__(dim)
        self.ffn = ffn

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements dim"]:
        return elements + self.ffn(super().map(elements, context))


class NormedInducedAttention(InducedLayer):
    """Induced attention of Set Transformer++, on elements with their set's `Moments` beside them.

        reduce, finish:  h = I + MHA(I, SN(x), m);  h = h + FFN(SN(h))
        map:             x + MHA(SN(x), SN(h))

    The residuals are clean paths: nothing is done to what is added. Of the k points there are all, so that their set
    norm needs no further pass. Each norm has a weight and a bias of its own.

    Args:
        dim: As in InducedSetAttentionBlock, and so num_heads, num_inducing, ffn_dim, points_init and scale.
        **options: Likewise dropout, hidden_dropout, activation, init and attention.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        ffn_dim: int | None = None,
        points_init: PointsInit | None = None,
        scale: Scale = "width",
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(num_inducing=num_inducing)
        self.dim = dim
        self.points = learned_points(num_inducing, dim, points_init, options)
        self.gather = without_norms(attention_block(dim, num_heads, ffn_dim, scale=scale, **options))
        self.spread = without_norms(attention_block(dim, num_heads, 0, **options))
        if ffn_dim != 0:
            self.gather.norm_ffn = SetNorm(dim)
        self.norm_keys, self.norm_queries = Affine(dim), Affine(dim)
        self.norm_points = SetNorm(dim)

    def forward(
        self, elements: Float[Tensor, "sets elements mapped"], multiplicity: Shaped[Tensor, "sets elements"]
    ) -> Float[Tensor, "sets elements dim"]:
        return self.map(elements, self.finish(self.reduce(elements, multiplicity)))

    def prepare(self, elements: Float[Tensor, "sets elements mapped"]) -> Float[Tensor, "sets elements dim"]:
        return self.norm_keys(elements[..., : self.dim], elements[..., self.dim :])

    def map(
        self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets k dim"]
    ) -> Float[Tensor, "sets elements dim"]:
        x, moments = elements[..., : self.dim], elements[..., self.dim :]
        state = self.spread.reduce(self.norm_queries(x, moments), self.norm_points(context))
        return self.spread.finish(x, state)


class NormedLinear(SetNorm):
    """W act(SN(x)) + b: what ends phi of Deep Sets++."""

    def __init__(self, dim: int, activation: str) -> None:
        super().__init__(dim)
        self.activation, self.linear = activation_layer(activation), nn.Linear(dim, dim)

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements mapped"]:
        return self.linear(self.activation(super().map(elements, context)))


class NormedBeside(NormedLinear):
    """(x, W act(SN(x)) + b), beside each other: the first half of a block of Deep Sets++."""

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements mapped"]:
        return torch.cat([elements, super().map(elements, context)], -1)


class NormedResidual(NormedLinear):
    """(x, y) -> x + W act(SN(y)) + b: the second half of a block of Deep Sets++, with a clean path for x."""

    def map(
        self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements dim"]:
        x, y = elements.chunk(2, -1)
        return x + super().map(y, context)

    def normed(self, elements: Float[Tensor, "sets elements mapped"]) -> Float[Tensor, "sets elements dim"]:
        return elements.chunk(2, -1)[1]


def deep_sets_block(dim: int, activation: str) -> list[SetLayer]:
    """A block of Deep Sets++, x + W_2 act(SN(W_1 act(SN(x)) + b_1)) + b_2, as two layers."""
    return [NormedBeside(dim, activation), NormedResidual(dim, activation)]


def set_transformer_block(
    dim: int, num_heads: int, num_inducing: int, ffn_dim: int | None = None, **options: Any
) -> list[SetLayer]:
    """An induced block of Set Transformer++ as three layers: moments, attention, FFN. Without FFN (0) as two.

    Args:
        dim: As in NormedInducedAttention, and so the others.
    """
    layers: list[SetLayer] = [Moments(), NormedInducedAttention(dim, num_heads, num_inducing, ffn_dim, **options)]
    if ffn_dim == 0:
        return layers
    of_ffn: dict[str, Any] = {"dropout": 0.0, "activation": "relu", "hidden_dropout": 0.0}
    taken = {name: options.get(name) or usual for name, usual in of_ffn.items()}
    ffn = feed_forward(dim, dim if ffn_dim is None else ffn_dim, **taken)
    return [*layers, NormedFeedForward(dim, ffn)]


def without_norms(block: AttentionBlock) -> AttentionBlock:
    """The same block, with nothing in place of its layer normalizations."""
    for name in ("norm_queries", "norm_elements", "norm_ffn"):
        setattr(block, name, nn.Identity())
    return block


def pool_without_norms(dim: int, num_heads: int, num_seeds: int, **options: Any) -> PoolingByMultiheadAttention:
    """PMA on elements that are normalised already."""
    pool = PoolingByMultiheadAttention(dim, num_heads, num_seeds, **options)
    without_norms(pool.gather)
    return pool
