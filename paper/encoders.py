"""Encoders that only a study compares: each was level or worse there, and so is no part of the wheel.

Transolver (Wu et al., "Transolver: A Fast Transformer Solver for PDEs on General Geometries", 2024); DSMIL (Li, Li,
Eliceiri, "Dual-stream Multiple Instance Learning Network for Whole Slide Image Classification with Self-supervised
Contrastive Learning", 2021); set norm in Deep Sets++ and Set Transformer++ (Zhang et al., "Set Norm and Equivariant
Skip Connections: Putting the Deep in Deep Sets", 2022); and attention by sigmoids, which the package
universal-set-transformers has. All are exact in shards and count multiplicities, as those of the wheel do.

Shapes: B sets, N elements, D = dim, Q critical instances, H heads, k slices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset import encoders
from omniset.core.attention import AttentionState
from omniset.core.checks import check_sizes
from omniset.core.states import State, wide
from omniset.encoders.base import AttentionEncoder, Encoder
from omniset.encoders.pooling import DeepSets, mlp
from omniset.layers.base import SetLayer, feed_forward
from omniset.layers.pooling import MaxState
from omniset.layers.set_transformer import InducedLayer, learned_points
from omniset.layers.universal import AttentionBlock, MultisetAttentionBlock, attention_block

Elements = Float[Tensor, "sets elements dim"]
Multiplicity = Shaped[Tensor, "sets elements"]

EPS = 1e-5  # beside the variance of a set norm


def build(name: str, **arguments: Any) -> Encoder:
    """As `omniset.encoders.build`, with the encoders of this file.

    norm="set" of "ust" and "deep-sets" has set norms, attention="sigmoid" of those with attention has sigmoids.
    """
    if arguments.get("norm") == "set":
        del arguments["norm"]
        return {"ust": SetTransformerPlusPlus, "deep-sets": DeepSetsPlusPlus}[name](**arguments)
    if arguments.get("attention") == "sigmoid":
        del arguments["attention"]
        return with_sigmoids(encoders.build(name, **arguments))
    if name not in ENCODERS:
        return encoders.build(name, **arguments)
    if name == "dsmil":  # which has no heads and no learned points
        arguments = {key: value for key, value in arguments.items() if key not in ("num_heads", "num_inducing")}
    return ENCODERS[name](**arguments)


# --------------------------------------------------------------------------------------------- Transolver


class SliceAttention(SetLayer):
    """Elements belong to k slices in part; slices attend to each other, and elements take back their parts.

    In each head, with p and f two projections of LN(x_i), and weights w_i that each element has by itself:

        reduce:  z_s = sum_i m_i w_is f_i / sum_i m_i w_is,    w_i = softmax_s((W p_i + b) / temperature)
        finish:  z' = softmax(W_q z (W_k z)^T / sqrt(D / H)) W_v z
        map:     y_i = sum_s w_is z'_s,    h = x + W_o y,    out = h + FFN(LN(h))

    All heads share W, b, W_q, W_k and W_v; each has a temperature of its own, from 0.5 on, which is held between 0.1
    and 5, as in the paper's code for regular meshes. That code divides by the sum of weights plus 1e-5; here a slice
    without weight has z_s = 0. So an empty set has z = 0. W starts orthogonal, other Linear layers as PyTorch's own
    (the paper's code: from N(0, 0.02^2), cut off).
    """

    def __init__(self, dim: int, num_heads: int, num_slices: int, ffn_dim: int | None = None) -> None:
        super().__init__()
        check_sizes(num_slices=num_slices)
        self.num_heads, width = num_heads, dim // num_heads
        ffn = feed_forward(dim, dim if ffn_dim is None else ffn_dim, 0.0, "gelu")
        self.output, self.norm_mixing, self.norm_ffn = nn.Linear(dim, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = ffn
        self.place, self.content = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.slices = nn.Linear(width, num_slices)
        nn.init.orthogonal_(self.slices.weight)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), 0.5))
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def reduce(self, elements: Elements, multiplicity: Multiplicity, peak: Tensor | None = None) -> State:
        y = self.norm_mixing(elements)
        weights = self._weights(y).mT * multiplicity.to(y.dtype)[:, None, None]  # (B, H, k, N)
        return State(None, (weights.sum(-1, keepdim=True), weights @ self._heads(self.content(y))))

    def finish(self, state: State) -> Float[Tensor, "sets k dim"]:
        weight, total = state.sums
        z = (total / torch.where(weight == 0, 1, weight)).to(self.query.weight.dtype)
        scores = self.query(z) @ self.key(z).mT * z.shape[-1] ** -0.5
        return (scores.softmax(-1) @ self.value(z)).transpose(1, 2).flatten(2)

    def map(self, elements: Elements, context: Float[Tensor, "sets k dim"]) -> Elements:
        mixed = self._weights(self.norm_mixing(elements)) @ self._heads(context)
        h = elements + self.output(mixed.transpose(1, 2).flatten(2))
        return h + self.ffn(self.norm_ffn(h))

    def _heads(self, x: Float[Tensor, "sets rows dim"]) -> Float[Tensor, "sets heads rows d"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _weights(self, y: Elements) -> Float[Tensor, "sets heads elements k"]:
        return (self.slices(self._heads(self.place(y))) / self.temperature.clamp(0.1, 5)).softmax(-1)


class Transolver(AttentionEncoder):
    """Transolver's blocks and PMA. The paper has outputs of elements alone. Arguments: AttentionEncoder and
    num_inducing, the slices of each layer.
    """

    def __init__(self, *, num_inducing: int, activation: str = "gelu", **arguments: Any) -> None:
        super().__init__(num_inducing=num_inducing, activation=activation, **arguments)

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        return SliceAttention(dim, num_heads, options["num_inducing"], options.get("ffn_dim"))


# -------------------------------------------------------------------------------------------------- DSMIL


class CriticalInstances(SetLayer):
    """First stream of DSMIL (Eq. 3): of each of Q scores w_q . h + b_q, the element that has most.

    Several elements may share the largest score, and copies of one do. The critical instance is their mean by
    multiplicity, which is the element itself if they are copies: the paper's argmax would take the one that comes
    first, and so depend on the order. Ties share the gradient by multiplicity, as copies would. An empty set has 0.

    Rounding may tell the scores of copies apart, as they are products of matrices of many sizes. So scores are compared
    without the last third of their digits (to a relative 2e-11 in float64, 2e-5 in float32), and copies tie. Where a
    score lies on the edge of two such numbers they may still not; then, too, only the gradient of the single copies
    depends on it, not their sum.

    The map writes beside each element h, for each critical instance c_q, their likeness and c_q's score:

        (h, (W h) . (W c_1) / sqrt(L), ..., (W h) . (W c_Q) / sqrt(L), w_1 . c_1 + b_1, ..., w_Q . c_Q + b_Q)

    The scale 1 / sqrt(L) is that of the paper's code; its Eq. 5 has none. L is dim here.
    """

    def __init__(self, dim: int, number: int = 1) -> None:
        super().__init__()
        check_sizes(dim=dim, number=number)
        self.score, self.query, self.scale = nn.Linear(dim, number), nn.Linear(dim, dim), dim**-0.5

    def reduce(
        self, elements: Elements, multiplicity: Multiplicity, peak: Float[Tensor, "sets queries 1"] | None = None
    ) -> MaxState:
        """The sums of m h and of m over the elements that reach the peak."""
        m = multiplicity.to(elements.dtype)[:, None]
        scores = torch.where(m > 0, _rounded(self.score(elements).detach()).mT, -torch.inf)
        if peak is None:
            has_elements = scores.shape[-1] > 0
            peak = scores.amax(-1, True) if has_elements else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        weights = torch.where(scores == peak, m, 0)
        return MaxState(peak, (weights @ elements, weights.sum(-1, keepdim=True)))

    def finish(self, state: State) -> Float[Tensor, "sets queries dim"]:
        total, weight = state.sums
        return (total / torch.where(weight == 0, 1, weight)).to(self.score.weight.dtype)

    def map(
        self, elements: Elements, context: Float[Tensor, "sets queries dim"]
    ) -> Float[Tensor, "sets elements mapped"]:
        likeness = self.query(elements) @ (self.query(context) * self.scale).mT  # (B, N, Q)
        scores = (context * self.score.weight).sum(-1) + self.score.bias  # (B, Q)
        return torch.cat([elements, likeness, scores[:, None].expand_as(likeness)], -1)


class CriticalAttention(SetLayer):
    """Second stream of DSMIL (Eq. 4 to 7), and the mean of both, on what `CriticalInstances` wrote.

        z_q = (e_q s_q + W_v sum_i u_qi h_i + b_v) / 2,   u_q = softmax_i(likeness_qi + log m_i)

    s_q is the critical instance's score, e_q a learned direction. A linear head on z then gives the paper's score of a
    set, the mean of a score of the critical instance and of one of the weighted mean. Where the paper trains the score
    that chooses as its first half, here the first half is that score times a number, head . e_q: so the score is
    learned from the labels of sets alone, by whatever loss is put on the head. The paper's W_b is the head. An empty
    set has s_q = 0 and a weighted mean of 0.
    """

    def __init__(self, dim: int, number: int = 1) -> None:
        super().__init__()
        check_sizes(dim=dim, number=number)
        self.dim, self.number = dim, number
        self.value = nn.Linear(dim, dim)
        self.direction = nn.Parameter(torch.randn(number, dim) * dim**-0.5)

    def reduce(
        self,
        elements: Float[Tensor, "sets elements mapped"],
        multiplicity: Multiplicity,
        peak: Float[Tensor, "sets queries 1"] | None = None,
    ) -> AttentionState:
        # What the attention is by is there already: query q picks the q-th likeness, as row q of the unit matrix.
        h, likeness, scores = elements.split([self.dim, self.number, self.number], -1)
        query = torch.eye(self.number, dtype=h.dtype, device=h.device)
        return AttentionState.of(query, likeness, torch.cat([h, scores], -1), multiplicity, 1.0, peak=peak)

    def finish(self, state: AttentionState) -> Float[Tensor, "sets queries dim"]:  # type: ignore[override]
        average, scores = state.finish().to(self.direction.dtype).split([self.dim, self.number], -1)
        score = scores.diagonal(dim1=-2, dim2=-1)  # s_q, of which all elements had a copy
        return (self.value(average) + score[..., None] * self.direction) / 2


def _rounded(scores: Tensor) -> Tensor:
    """Without the last third of their binary digits (the split of Dekker, "A Floating-Point Technique for Extending
    the Available Precision", 1971).
    """
    shifted = scores * (2 ** round(-math.log2(torch.finfo(scores.dtype).eps) / 3) + 1)
    return shifted - (shifted - scores)


class DSMIL(Encoder):
    """(Linear, ReLU) x depth, Linear; the element with the largest score, and attention of it to all: two passes."""

    outputs_elements = False
    cross_attention = self_attention = True

    def __init__(self, *, input_dim: int, dim: int, depth: int = 1, num_outputs: int = 1) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed = mlp(input_dim, dim, dim, depth, "relu")
        self.layers = nn.ModuleList([CriticalInstances(dim, num_outputs)])
        self.pool = CriticalAttention(dim, num_outputs)
        self.decoder = nn.Sequential()


# ----------------------------------------------------------------------------------------------- set norm


class Moments(SetLayer):
    """Mean and deviation of a set, over all elements and all of their features: one number each.

        reduce:  sum_i m_i D,  sum_i m_i sum_d x_id,  sum_i m_i sum_d x_id^2
        finish:  mean, 1 / sqrt(variance + 1e-5)

    The sums are in float64 from the start (float32 on MPS), as variances are differences of them. An empty set has
    mean 0 and deviation 1. They are known when all elements have been read: so each norm is a reduce, and a block with
    two norms two layers. What a map has to hand on beside its result, it writes beside each element, as this one does.
    """

    def reduce(
        self, elements: Float[Tensor, "sets elements mapped"], multiplicity: Multiplicity, peak: Tensor | None = None
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
        self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements more"]:
        return torch.cat([elements, context.expand(-1, elements.shape[1], -1)], -1)

    def normed(self, elements: Float[Tensor, "sets elements mapped"]) -> Elements:
        """What of the elements the moments are of."""
        return elements


class Affine(nn.Module):
    """(x - mean) / deviation * weight + bias, with a weight and a bias of each feature."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Elements, moments: Float[Tensor, "sets rows 2"]) -> Elements:
        mean, inverse = moments[..., :1], moments[..., 1:]
        return (x - mean) * inverse * self.weight + self.bias


class SetNorm(Moments):
    """What `Moments` measure, taken from each element. Of a set's features two numbers are lost, its mean and its
    scale; a layer norm takes these two from every element.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.affine = Affine(dim)

    def forward(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Elements:
        m = elements.new_ones(elements.shape[:2]) if multiplicity is None else multiplicity
        return self.map(elements, self.finish(self.reduce(elements, m)).to(elements.dtype))

    def map(self, elements: Elements, context: Float[Tensor, "sets 1 2"]) -> Elements:
        return self.affine(elements, context)


class NormedFeedForward(SetNorm):
    """x + FFN(SN(x)), the second half of a block of Set Transformer++."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__(dim)
        self.ffn = feed_forward(dim, ffn_dim, 0.0, "relu")

    def map(self, elements: Elements, context: Float[Tensor, "sets 1 2"]) -> Elements:
        return elements + self.ffn(super().map(elements, context))


class NormedInducedAttention(InducedLayer):
    """Induced attention of Set Transformer++, on elements with their set's `Moments` beside them.

        reduce, finish:  h = I + MHA(I, SN(x), m);  h = h + FFN(SN(h))
        map:             x + MHA(SN(x), SN(h))

    The residuals are clean paths: nothing is done to what is added. Of the k points there are all, so that their set
    norm needs no further pass. Each norm has a weight and a bias of its own.
    """

    def __init__(self, dim: int, num_heads: int, num_inducing: int, ffn_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.points = learned_points(num_inducing, dim, None, {})
        self.gather = without_norms(attention_block(dim, num_heads, ffn_dim))
        self.spread = without_norms(attention_block(dim, num_heads, 0))
        self.gather.norm_ffn = SetNorm(dim)
        self.norm_keys, self.norm_queries = Affine(dim), Affine(dim)
        self.norm_points = SetNorm(dim)

    def prepare(self, elements: Float[Tensor, "sets elements mapped"]) -> Elements:
        return self.norm_keys(elements[..., : self.dim], elements[..., self.dim :])

    def map(self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets k dim"]) -> Elements:
        x, moments = elements[..., : self.dim], elements[..., self.dim :]
        state = self.spread.reduce(self.norm_queries(x, moments), self.norm_points(context))
        return self.spread.finish(x, state)


class SetTransformerPlusPlus(AttentionEncoder):
    """Set Transformer++: set norms before attention and FFN, and clean residuals. `layers` has three for each of
    `depth`, and a last set norm, whose outputs PMA reads without a norm of its own.
    """

    def __init__(
        self, *, dim: int, depth: int, num_heads: int, num_inducing: int, ffn_dim: int, **arguments: Any
    ) -> None:
        super().__init__(dim=dim, depth=0, num_heads=num_heads, ffn_dim=ffn_dim, **arguments)
        for _ in range(depth):
            attention = NormedInducedAttention(dim, num_heads, num_inducing, ffn_dim)
            self.layers.extend([Moments(), attention, NormedFeedForward(dim, ffn_dim)])
        self.layers.append(SetNorm(dim))
        assert isinstance(self.pool, InducedLayer)
        without_norms(self.pool.gather)


def without_norms(block: AttentionBlock) -> AttentionBlock:
    """The same block, with nothing in place of its layer normalizations."""
    for name in ("norm_queries", "norm_elements", "norm_ffn"):
        setattr(block, name, nn.Identity())
    return block


class NormedLinear(SetNorm):
    """W relu(SN(x)) + b: what ends phi of Deep Sets++."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.linear = nn.Linear(dim, dim)

    def map(
        self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets 1 2"]
    ) -> Float[Tensor, "sets elements more"]:
        return self.linear(super().map(elements, context).relu())


class NormedBeside(NormedLinear):
    """(x, W relu(SN(x)) + b), beside each other: the first half of a block of Deep Sets++."""

    def map(self, elements: Elements, context: Float[Tensor, "sets 1 2"]) -> Float[Tensor, "sets elements more"]:
        return torch.cat([elements, super().map(elements, context)], -1)


class NormedResidual(NormedLinear):
    """(x, y) -> x + W relu(SN(y)) + b: the second half of a block of Deep Sets++, with a clean path for x."""

    def map(self, elements: Float[Tensor, "sets elements mapped"], context: Float[Tensor, "sets 1 2"]) -> Elements:
        x, y = elements.chunk(2, -1)
        return x + super().map(y, context)

    def normed(self, elements: Float[Tensor, "sets elements mapped"]) -> Elements:
        return elements.chunk(2, -1)[1]


class DeepSetsPlusPlus(DeepSets):
    """Deep Sets++: phi is Linear, `depth` residual blocks x + W_2 relu(SN(W_1 relu(SN(x)))), and Linear of relu(SN(x)),
    each block as two layers.
    """

    def __init__(self, *, input_dim: int, dim: int, depth: int = 3, **arguments: Any) -> None:
        super().__init__(input_dim=input_dim, dim=dim, depth=depth, **arguments)
        self.embed = nn.Sequential(nn.Linear(input_dim, dim))
        blocks = [layer(dim) for _ in range(depth) for layer in (NormedBeside, NormedResidual)]
        self.layers = nn.ModuleList([*blocks, NormedLinear(dim)])


# -------------------------------------------------------------------------------------------------- sigmoids


@dataclass(frozen=True)
class SigmoidState(State):
    """What a query knows of the keys seen so far where weights are sigmoids of the scores: sum of m sigmoid(s) v.

    The weight of a key does not depend on the other keys, so the state is one sum, (..., q, d_v), without a peak.
    """

    def finish(self) -> Tensor:
        return self.sums[0]


class SigmoidAttentionBlock(MultisetAttentionBlock):
    """The heads have sums in place of averages, sum_j m_j sigmoid(s_j) v_j of the scores s_j: weights of elements do
    not depend on each other, and the sum grows with the set.
    """

    def foldable(self) -> None:
        return None

    def forward(self, queries: Tensor, elements: Tensor, multiplicity: Tensor | None = None) -> Tensor:
        state: Any = self.reduce(queries, elements, multiplicity)
        return self.finish(queries, state)

    def reduce(  # type: ignore[override]
        self,
        queries: Tensor,
        elements: Tensor,
        multiplicity: Tensor | None = None,
        peak: Tensor | None = None,
    ) -> SigmoidState:
        q, k, v = self._heads(queries, elements)
        weights = ((q * self.scale) @ k.mT).sigmoid()
        if multiplicity is not None:
            weights = weights * multiplicity.to(weights.dtype)[:, None, None]
        return SigmoidState(None, (weights @ v,))


def with_sigmoids(encoder: Encoder) -> Encoder:
    """The encoder, with sigmoids in place of softmaxes in all its blocks: they have the same parts."""
    for module in encoder.modules():
        if type(module) is MultisetAttentionBlock:
            module.__class__ = SigmoidAttentionBlock
    return encoder


ENCODERS: dict[str, type[Encoder]] = {"dsmil": DSMIL, "transolver": Transolver}
