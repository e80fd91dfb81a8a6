"""Full self-attention in shards: the context of a SAB is all elements, streamed past each shard of queries.

For every shard of queries the keys' shards are summed up into one attention state (Universal Set Transformer, Eq. 4).
Its exact gradient recomputes one pair of shards at a time, so memory is that of a pair, time O(n^2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from omniset.engine.noise import random_state, resumed

if TYPE_CHECKING:
    from omniset.core.attention import AttentionState
    from omniset.layers.universal import AttentionBlock

Read = Callable[[], Iterator[tuple[int, Tensor, Tensor]]]
AddGradient = Callable[[int, Tensor, Tensor | None], None]


@dataclass
class AllElements:
    """The inputs of one SAB."""

    read: Read  # yields number, elements and multiplicities of each shard
    live: Callable[[int], bool] = lambda i: True  # whether gradients flow through a shard
    # Where, if it is given, the exact gradients of elements and multiplicities of a shard go.
    add_gradient: AddGradient | None = None

    def apply(self, block: AttentionBlock, queries: Tensor) -> Tensor:
        """The block's output for `queries`."""
        return block.finish(queries, self.attend(block, queries))

    def attend(self, block: AttentionBlock, queries: Tensor) -> AttentionState:
        """The state of `queries` having attended to all elements."""
        if self.add_gradient is None:
            return self._merge_all(block, queries)
        noise = random_state(queries.device)
        with torch.no_grad():
            state = self._merge_all(block, queries)
        sums = _ExactAttend.apply(self, block, state, noise, queries, *block.parameters())
        return type(state)(state.peak, tuple(sums))

    def _merge_all(self, block: AttentionBlock, queries: Tensor) -> AttentionState:
        state: Any = None
        for i, elements, multiplicity in self.read():
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.live(i)):
                part = block.reduce(queries, elements, multiplicity)
            state = part if state is None else state.merge(part)
        assert state is not None
        return state


class _ExactAttend(torch.autograd.Function):
    """Sums of the merged state as a function of queries, keys and parameters; gradient by recomputation per shard.

    Against the final peak the sums are the sum over i of reduce_i = reduce(q, x_i, m_i), for shard i of the keys:

        d(q) = sum over i of reduce_i' d(sums)                          and d(theta) likewise
        d(x_i) = sum over the shards of queries of reduce_i' d(sums)    and d(m_i) likewise, added up by `add_gradient`
    """

    @staticmethod
    def forward(ctx: Any, keys: AllElements, block: AttentionBlock, state: AttentionState, noise, queries: Tensor, *_):
        ctx.keys, ctx.block, ctx.peak, ctx.noise, ctx.queries = keys, block, state.peak, noise, queries.detach()
        return state.sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_sums: Tensor) -> tuple[Tensor | None, ...]:
        keys, block = ctx.keys, ctx.block
        parameters = [p for p in block.parameters() if p.requires_grad]
        d_parameters: dict[int, Tensor] = {}
        d_queries = torch.zeros_like(ctx.queries, dtype=d_sums[0].dtype)
        with resumed(ctx.noise, ctx.queries.device):
            for i, elements, multiplicity in keys.read():
                with torch.enable_grad():
                    x, m = elements.detach().requires_grad_(), multiplicity.detach()
                    m = m.requires_grad_(m.is_floating_point())
                    q = ctx.queries.detach().requires_grad_()
                    sums = block.reduce(q, x, m, ctx.peak).sums
                d_part = [d.to(s.dtype) for d, s in zip(d_sums, sums, strict=True)]
                wanted = [q, x, *([m] if m.requires_grad else []), *parameters]
                d_q, d_x, *rest = torch.autograd.grad(sums, wanted, d_part, allow_unused=True)
                d_queries += d_q
                keys.add_gradient(i, d_x, rest.pop(0) if m.requires_grad else None)
                for p, d in zip(parameters, rest, strict=True):
                    if d is not None:
                        d_parameters[id(p)] = d_parameters.get(id(p), 0) + d.to(d_sums[0].dtype)
        grads = (d_parameters.get(id(p)) for p in block.parameters())
        d_own = (g if g is None else g.to(p.dtype) for g, p in zip(grads, block.parameters(), strict=True))
        return None, None, None, None, d_queries.to(ctx.queries.dtype), *d_own
