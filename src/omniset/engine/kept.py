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

if TYPE_CHECKING:
    from omniset.attention import AttentionState
    from omniset.layers.universal import AttentionBlock

Read = Callable[[], Iterator[tuple[int, Tensor, Tensor]]]
Accumulate = Callable[[int, Tensor, Tensor | None], None]


@dataclass
class KeptElements:
    """The inputs of one SAB. `read` yields (shard number, elements, multiplicity); `live` tells through which shards
    gradients flow; with `accumulate` set, the gradients of the elements and multiplicities of a shard go there.
    `whole`: there is one shard, under plain autograd.
    """

    read: Read
    live: Callable[[int], bool] = lambda i: True
    accumulate: Accumulate | None = None
    whole: bool = False

    def apply(self, block: AttentionBlock, queries: Tensor) -> Tensor:
        """The block's output for `queries`."""
        if self.whole:
            ((_, elements, multiplicity),) = self.read()
            return block(queries, elements, multiplicity)
        return block.finish(queries, self.attend(block, queries))

    def attend(self, block: AttentionBlock, queries: Tensor) -> AttentionState:
        """The state of `queries` having attended to all kept elements."""
        if self.accumulate is None:
            return self._fold(block, queries)
        with torch.no_grad():
            state = self._fold(block, queries)
        sums = _ExactFold.apply(self, block, state, queries, *block.parameters())
        return type(state)(state.peak, tuple(sums))

    def _fold(self, block: AttentionBlock, queries: Tensor) -> AttentionState:
        state: AttentionState | None = None
        for i, elements, multiplicity in self.read():
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.live(i)):
                part = block.reduce(queries, elements, multiplicity)
            state = part if state is None else state.merge(part)
        assert state is not None
        return state


class _ExactFold(torch.autograd.Function):
    """Sums of the finished state as a function of queries, keys and parameters; gradient by recomputation per shard."""

    @staticmethod
    def forward(
        ctx: Any, kept: KeptElements, block: AttentionBlock, state: AttentionState, queries: Tensor, *_: Tensor
    ):
        ctx.kept, ctx.block, ctx.peak, ctx.queries = kept, block, state.peak, queries.detach()
        return state.sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_sums: Tensor) -> tuple[Tensor | None, ...]:
        kept, block = ctx.kept, ctx.block
        parameters = [p for p in block.parameters() if p.requires_grad]
        d_parameters: dict[int, Tensor] = {}
        d_queries = torch.zeros_like(ctx.queries, dtype=d_sums[0].dtype)
        for i, elements, multiplicity in kept.read():
            with torch.enable_grad():
                x, m = elements.detach().requires_grad_(), multiplicity.detach()
                m = m.requires_grad_(m.is_floating_point())
                q = ctx.queries.detach().requires_grad_()
                sums = block.reduce(q, x, m, ctx.peak).sums
            d_part = [d.to(s.dtype) for d, s in zip(d_sums, sums, strict=True)]
            wanted = [q, x, *([m] if m.requires_grad else []), *parameters]
            d_q, d_x, *rest = torch.autograd.grad(sums, wanted, d_part, allow_unused=True)
            d_queries += d_q
            kept.accumulate(i, d_x, rest.pop(0) if m.requires_grad else None)
            for p, d in zip(parameters, rest, strict=True):
                if d is not None:
                    d_parameters[id(p)] = d_parameters.get(id(p), 0) + d.to(d_sums[0].dtype)
        grads = (d_parameters.get(id(p)) for p in block.parameters())
        return (
            None,
            None,
            None,
            d_queries.to(ctx.queries.dtype),
            *(g if g is None else g.to(p.dtype) for g, p in zip(grads, block.parameters(), strict=True)),
        )
