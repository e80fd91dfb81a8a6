"""Pooling of multiple-instance learning: a set has a label, its elements (instances) have none.

Gated attention pooling (Ilse, Tomczak, Welling, "Attention-based Deep Multiple Instance Learning", 2018) is one
reduce. Dual-stream pooling (Li, Li, Eliceiri, "Dual-stream Multiple Instance Learning Network for Whole Slide Image
Classification with Self-supervised Contrastive Learning", 2021) is two: `CriticalInstances` finds the elements with the
largest scores, its map writes beside each element how much it resembles them, and `CriticalAttention` weighs by that.

Shapes: B sets, N elements, D = dim, Q queries or critical instances, L = width of the attention.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.checks import check_sizes
from omniset.core.states import State
from omniset.layers.base import SetLayer
from omniset.layers.deep_sets import MaxState
from omniset.layers.probes import Probe


class InstanceAttention(SetLayer):
    """A softmax over the set, by keys that a layer makes of each element; what is averaged are the elements themselves.

    The state is that of multiset attention, with one head: peak (B, 1, Q, 1).

    Args:
        dim: How many of the features that `project` gives are an element's; others are averaged beside them.
    """

    probe: Probe | None
    """Set by omniset.explain, for the time of an explanation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.dim = dim
        self.register_module("probe", None)

    @property
    def set_attention(self) -> InstanceAttention:
        return self

    def project(self, elements: Float[Tensor, "sets elements d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (Q, L), keys (B, N, L), and what is averaged, (B, N, d_v): scores are queries keys^T."""
        raise NotImplementedError

    def reduce(
        self,
        elements: Float[Tensor, "sets elements d"],
        multiplicity: Shaped[Tensor, "sets elements"] | None = None,
        peak: Float[Tensor, "sets 1 queries 1"] | None = None,
    ) -> AttentionState:
        m = None if multiplicity is None else multiplicity[:, None]
        query, key, value = self.project(elements)
        key, value = key[:, None], value[:, None]
        if self.probe is not None:
            self.probe.see(partial(self._measured, query, key, value[..., : self.dim], m), multiplicity)
        return AttentionState.of(query, key, value, m, 1.0, peak=peak)

    def averages(self, state: State) -> tuple[Float[Tensor, "sets queries dim"], Float[Tensor, "sets queries beside"]]:
        """Of the elements, for each query, and of what is beside them; 0 for an empty set."""
        weight, total = state.sums
        average = total / torch.where(weight == 0, 1, weight)
        of_elements, beside = average[..., : self.dim], average[..., self.dim :]
        if self.probe is not None:
            of_elements = self.probe(of_elements, state.peak, weight)
        return of_elements[:, 0], beside[:, 0]

    @staticmethod
    def _measured(
        query: Tensor, key: Tensor, value: Tensor, m: Tensor | None, peak: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return AttentionState.exponentials(query, key, m, 1.0, peak)[0], value


class GatedAttentionPooling(InstanceAttention):
    """Gated attention pooling (Ilse et al., 2018, Eq. 7 to 9) over multisets, with Q attentions side by side.

        z_q = sum_k a_qk h_k,   a_q = softmax_k(w_q . (tanh(V h_k) * sigmoid(U h_k)) + log m_k)

    Without the gate: softmax_k(w_q . tanh(V h_k) + log m_k). An empty set gives 0. V and U have biases, as in the code
    of the paper, and the paper has Q = 1.

    Args:
        dim: D, width of the elements.
        num_outputs: Q, >= 1.
        attention_dim: L, >= 1. None: dim.
        gated: With the factor sigmoid(U h_k).

    Raises:
        ValueError: A size out of bounds.

    >>> pool = GatedAttentionPooling(4)
    >>> x = torch.randn(1, 3, 4)
    >>> counted, copied = pool(x, torch.tensor([[2, 1, 0]])), pool(x[:, [0, 0, 1]])
    >>> torch.allclose(counted, copied, atol=1e-6)
    True
    """

    def __init__(self, dim: int, num_outputs: int = 1, attention_dim: int | None = None, gated: bool = True) -> None:
        super().__init__(dim)
        width = dim if attention_dim is None else attention_dim
        check_sizes(num_outputs=num_outputs, attention_dim=width)
        self.tanh = nn.Linear(dim, width)
        self.gate = nn.Linear(dim, width) if gated else None
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_outputs, width)))

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets outputs dim"]:
        return self.finish(self.reduce(elements, multiplicity))

    def project(self, elements: Float[Tensor, "sets elements dim"]) -> tuple[Tensor, Tensor, Tensor]:
        key = self.tanh(elements).tanh()
        return self.weight, key if self.gate is None else key * self.gate(elements).sigmoid(), elements

    def finish(self, state: State) -> Float[Tensor, "sets outputs dim"]:
        return self.averages(state)[0].to(self.weight.dtype)


class CriticalInstances(SetLayer):
    """First stream of DSMIL (Li et al., 2021, Eq. 3): of each of Q scores w_q . h + b_q, the element that has most.

    Several elements may share the largest score, and copies of one do. The critical instance is their mean by
    multiplicity, which is the element itself if they are copies: the paper's argmax would take the one that comes
    first, and so depend on the order. Ties share the gradient by multiplicity, as copies would. An empty set has 0.

    Rounding may tell the scores of copies apart, as they are products of matrices of many sizes. So scores are compared
    without the last third of their digits (to a relative 2e-11 in float64, 2e-5 in float32), and copies tie. Where a
    score lies on the edge of two such numbers they may still not; then, too, only the gradient of the single copies
    depends on it, not their sum.

    The map writes beside each element h, for each critical instance c_q, their likeness and c_q's score:

        (h, (W h) . (W c_1) / sqrt(L), ..., (W h) . (W c_Q) / sqrt(L), w_1 . c_1 + b_1, ..., w_Q . c_Q + b_Q)

    The scale 1 / sqrt(L) is that of the paper's code; its Eq. 5 has none.

    Args:
        dim: D, width of the elements.
        number: Q, >= 1.
        attention_dim: L, >= 1. None: dim.

    Raises:
        ValueError: A size out of bounds.
    """

    probe: Probe | None
    """Set by omniset.explain, for the time of an explanation."""

    def __init__(self, dim: int, number: int = 1, attention_dim: int | None = None) -> None:
        super().__init__()
        width = dim if attention_dim is None else attention_dim
        check_sizes(dim=dim, number=number, attention_dim=width)
        self.score = nn.Linear(dim, number)
        self.query = nn.Linear(dim, width)
        self.scale = width**-0.5
        self.register_module("probe", None)

    @property
    def set_attention(self) -> CriticalInstances:
        return self

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"],
        peak: Float[Tensor, "sets queries 1"] | None = None,
    ) -> MaxState:
        """The sums of m h and of m over the elements that reach the peak."""
        if self.probe is not None:
            self.probe.see(partial(self._measured, elements, multiplicity), multiplicity)
        weights, peak = self._critical(elements, multiplicity, peak)
        return MaxState(peak, (weights @ elements, weights.sum(-1, keepdim=True)))

    def finish(self, state: State) -> Float[Tensor, "sets queries dim"]:
        total, weight = state.sums
        critical = total / torch.where(weight == 0, 1, weight)
        if self.probe is not None:
            assert state.peak is not None
            critical = self.probe(critical[:, None], state.peak[:, None], weight[:, None])[:, 0]
        return critical.to(self.score.weight.dtype)

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets queries dim"]
    ) -> Float[Tensor, "sets elements mapped"]:
        likeness = self.query(elements) @ (self.query(context) * self.scale).mT  # (B, N, Q)
        scores = (context * self.score.weight).sum(-1) + self.score.bias  # (B, Q)
        return torch.cat([elements, likeness, scores[:, None].expand_as(likeness)], -1)

    def _critical(
        self, elements: Tensor, multiplicity: Tensor, peak: Tensor | None
    ) -> tuple[Float[Tensor, "sets queries elements"], Float[Tensor, "sets queries 1"]]:
        """The multiplicities of the elements that reach the peak, 0 of the others; and the peak."""
        m = multiplicity.to(elements.dtype)[:, None]
        scores = torch.where(m > 0, _rounded(self.score(elements).detach()).mT, -torch.inf)
        if peak is None:
            has_elements = scores.shape[-1] > 0
            peak = scores.amax(-1, True) if has_elements else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        return torch.where(scores == peak, m, 0), peak

    def _measured(
        self, elements: Tensor, multiplicity: Tensor, peak: Tensor | None
    ) -> tuple[Float[Tensor, "sets 1 queries elements"], Float[Tensor, "sets 1 elements dim"]]:
        of_queries = None if peak is None else peak[:, 0]
        return self._critical(elements, multiplicity, of_queries)[0][:, None], elements[:, None]


class CriticalAttention(InstanceAttention):
    """Second stream of DSMIL (Li et al., 2021, Eq. 4 to 7), and the mean of both, on what `CriticalInstances` wrote.

        z_q = (e_q s_q + W_v sum_i u_qi h_i + b_v) / 2,   u_q = softmax_i(likeness_qi + log m_i)

    s_q is the critical instance's score, e_q a learned direction. A linear head on z then gives the paper's score of a
    set, the mean of a score of the critical instance and of one of the weighted mean. Where the paper trains the score
    that chooses as its first half, here the first half is that score times a number, head . e_q: so the score is
    learned from the labels of sets alone, by whatever loss is put on the head. The paper's W_b is the head. An empty
    set has s_q = 0 and a weighted mean of 0.

    Args:
        dim: D, width of the elements without what is written beside them.
        number: Q, >= 1.

    Raises:
        ValueError: A size out of bounds.
    """

    def __init__(self, dim: int, number: int = 1) -> None:
        super().__init__(dim)
        check_sizes(number=number)
        self.number = number
        self.value = nn.Linear(dim, dim)
        self.direction = nn.Parameter(torch.randn(number, dim) * dim**-0.5)

    def project(self, elements: Float[Tensor, "sets elements mapped"]) -> tuple[Tensor, Tensor, Tensor]:
        # What the attention is by is there already: query q picks the q-th likeness, as row q of the unit matrix.
        h, likeness, scores = elements.split([self.dim, self.number, self.number], -1)
        return torch.eye(self.number, dtype=h.dtype, device=h.device), likeness, torch.cat([h, scores], -1)

    def finish(self, state: State) -> Float[Tensor, "sets queries dim"]:
        average, scores = (x.to(self.direction.dtype) for x in self.averages(state))
        score = scores.diagonal(dim1=-2, dim2=-1)  # s_q, of which all elements had a copy
        return (self.value(average) + score[..., None] * self.direction) / 2


def _rounded(scores: Tensor) -> Tensor:
    """Without the last third of their binary digits (the split of Dekker, "A Floating-Point Technique for Extending
    the Available Precision", 1971).
    """
    shifted = scores * (2 ** round(-math.log2(torch.finfo(scores.dtype).eps) / 3) + 1)
    return shifted - (shifted - scores)
