"""Multiset attention: scaled dot-product attention that counts key j m_j times.

    softmax(Q K^T * scale + log m) V        (Universal Set Transformer, Eq. 1)

log 0 = -inf removes a key, so multiplicity 0 is a mask, and a query that no key is present for gets 0. The softmax is
not computed at once but as a state that shards of keys are merged into. With s_j = q . k_j scale + log m_j, a query has

    peak M = max of s_j,    weight Z = sum of e^(s_j - M),    total A = sum of e^(s_j - M) v_j
    merge:   M = max(M_1, M_2),    Z = e^(M_1 - M) Z_1 + e^(M_2 - M) Z_2,    A likewise
    finish:  A / Z, and 0 if Z = 0

The paper's Algorithm A.1 goes wrong when the first shard is fully masked; here every maximum is made safe first, and
no NaN is ever made, so none has to be removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.core.checks import check_multiplicity
from omniset.core.states import State, wide

Query = Float[Tensor, "*#batch q d"]
Key = Float[Tensor, "*#batch n d"]
Value = Float[Tensor, "*#batch n d_v"]
Multiplicity = Shaped[Tensor, "*#batch n"]
Peak = Float[Tensor, "*#batch q 1"]


def multiset_attention(
    query: Query, key: Key, value: Value, multiplicity: Multiplicity | None = None, scale: float | None = None
) -> Float[Tensor, "*batch q d_v"]:
    """softmax(query key^T * scale + log multiplicity) value; 0 where no key is present.

    Equal to repeating key j multiplicity_j times (Universal Set Transformer, Eq. 1 and A.1).

    Args:
        multiplicity: (..., n) finite and >= 0, bool, integer or fractional. Default: 1.
        scale: Default: 1 / sqrt(d).

    Raises:
        ValueError: A multiplicity that is negative, NaN or infinite.

    >>> q = torch.zeros(1, 1)
    >>> multiset_attention(q, torch.zeros(2, 1), torch.tensor([[1.0], [4.0]]), torch.tensor([2, 1]))
    tensor([[2.]])
    """
    if multiplicity is not None:
        check_multiplicity(multiplicity)
    return AttentionState.of(query, key, value, multiplicity, scale).finish()


@dataclass(frozen=True)
class AttentionState(State):
    """What a query knows of the keys seen so far. peak (..., q, 1); sums: weight (..., q, 1) and total (..., q, d_v).

    >>> q, k, v = torch.randn(3, 5), torch.randn(7, 5), torch.randn(7, 2)
    >>> state = AttentionState.identity(q, v)
    >>> for shard in (slice(0, 4), slice(4, 7)):
    ...     state = state.update(q, k[shard], v[shard])
    >>> torch.allclose(state.finish().float(), multiset_attention(q, k, v), atol=1e-6)
    True
    """

    @classmethod
    def of(
        cls,
        query: Query,
        key: Key,
        value: Value,
        multiplicity: Multiplicity | None = None,
        scale: float | None = None,
        *,
        peak: Peak | None = None,
    ) -> AttentionState:
        """The state of these keys alone, measured against their own largest score or a given `peak`."""
        weights, peak = cls.exponentials(query, key, multiplicity, scale, peak)
        return cls(peak, (weights.sum(-1, keepdim=True), weights @ value))

    @staticmethod
    def exponentials(
        query: Query,
        key: Key,
        multiplicity: Multiplicity | None = None,
        scale: float | None = None,
        peak: Peak | None = None,
    ) -> tuple[Float[Tensor, "*batch q n"], Float[Tensor, "*batch q 1"]]:
        """exp(s - peak) = m exp(q . k scale - peak), and the peak: the attention weights before normalisation."""
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
        if multiplicity is not None:
            scores = scores + log_multiplicity(multiplicity, scores.dtype)[..., None, :]
        if peak is None:
            has_keys = scores.shape[-1] > 0
            peak = scores.detach().amax(-1, True) if has_keys else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        return torch.exp(scores - zero_if_minus_inf(peak).to(scores.dtype)), peak

    @classmethod
    def identity(cls, query: Query, value: Value) -> AttentionState:
        """The state of no keys at all."""
        return cls.of(query, query[..., :0, :].expand(*value.shape[:-2], 0, -1), value[..., :0, :])

    def update(
        self, query: Query, key: Key, value: Value, multiplicity: Multiplicity | None = None, scale: float | None = None
    ) -> AttentionState:
        """The state after some more keys."""
        return self.merge(AttentionState.of(query, key, value, multiplicity, scale))

    def factor(self, peak: Tensor | None) -> Tensor:
        assert self.peak is not None
        assert peak is not None
        return torch.exp(wide(self.peak) - wide(zero_if_minus_inf(peak)))  # exp(-inf) = 0 where nothing was seen yet

    def finish(self) -> Float[Tensor, "*batch q d_v"]:
        """The attention output: the weighted mean of the values, 0 where no key is present."""
        weight, total = self.sums
        return total / torch.where(weight == 0, 1, weight)

    @property
    def normaliser(self) -> Float[Tensor, "*batch q 1"]:
        """What the weights of `exponentials` are divided by."""
        return self.sums[0]


def log_multiplicity(multiplicity: Shaped[Tensor, ...], dtype: torch.dtype) -> Float[Tensor, ...]:
    """Log m with log 0 = -inf, and gradient 1/m where m > 0 and 0 (not NaN) where m = 0."""
    present = multiplicity > 0
    precise = torch.promote_types(torch.promote_types(multiplicity.dtype, dtype), torch.float32)  # 1e-50 is present
    return torch.where(present, torch.where(present, multiplicity, 1).to(precise).log().to(dtype), -torch.inf)


def zero_if_minus_inf(peak: Tensor) -> Tensor:
    return torch.where(peak == -torch.inf, 0, peak)
