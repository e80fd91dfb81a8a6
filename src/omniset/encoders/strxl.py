"""Set Transformer-XL."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch, cut
from omniset.encoders.base import AttentionEncoder
from omniset.layers import InducedSetAttentionBlock, SetAttentionBlock, SetLayer

Memory = list[tuple[Tensor, Tensor]]


class SetTransformerXL(AttentionEncoder):
    """STrXL (Givens et al., 2024): attention within a segment, and to a memory of the segments before it.

    A whole set is one segment, and the encoder is then the Set Transformer. With shards="independent" the shards are
    the segments, in their order: each layer attends to the last `memory` of its own earlier inputs and to the segment,
    no gradient goes into the memory, and the summary is the mean of the segments'. What a segment makes of its elements
    depends on those before it, so this encoder is not mini-batch consistent.

    Args:
        num_inducing: Inducing points of ISABs, which attend to memory and segment. None: SABs.
        memory: Inputs that each layer keeps, >= 0.
        **arguments: As in AttentionEncoder.
    """

    mini_batch_consistent = False
    recurrent = True

    def __init__(self, *, num_inducing: int | None = None, memory: int = 512, **arguments: Any) -> None:
        super().__init__(**arguments | ({} if num_inducing is None else {"num_inducing": num_inducing}))
        check_sizes(0, memory=memory)
        self.memory = memory

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        kind = InducedSetAttentionBlock if "num_inducing" in options else SetAttentionBlock
        return kind(dim, num_heads, **options)

    def segments(
        self, batch: SetBatch, size: int, memory: Memory | None
    ) -> tuple[Float[Tensor, "sets segments outputs dim"], Float[Tensor, "sets elements dim"], Memory]:
        """Summaries of segments of `size` entries (the last may be smaller), elements, and the memory of each layer
        (elements, multiplicity) after them.

        A layer remembers its inputs, not its outputs, so that no segment waits for another: a layer reads all of them
        at once, each with what was before it.
        """
        device, dtype = self.place
        x, m = self.embed(batch.elements.to(device, dtype)), batch.multiplicity.to(device)
        sets, number, tokens = x.shape[0], x.shape[1], self.num_tokens
        x, m = cut(x, size).flatten(0, 1), cut(m, size).flatten(0, 1)
        if self.class_tokens is not None:
            x = torch.cat([self.class_tokens.expand(len(x), -1, -1), x], 1)
            m = torch.cat([m.new_ones(len(m), tokens), m], 1)

        def joined(y: Tensor) -> Tensor:
            """Elements of the sets, from those of segments with class tokens."""
            return y[:, tokens:].unflatten(0, (sets, -1)).flatten(1, 2)[:, :number]

        memories: Memory = []
        for i, layer in enumerate(self.layers):
            # Class tokens belong to their segment; what is kept of it are its elements.
            past = joined(x).detach(), joined(m)
            first = 0 if memory is None else memory[i][1].shape[1]
            if memory is not None:
                past = torch.cat([memory[i][0], past[0]], 1), torch.cat([memory[i][1], past[1]], 1)
            start = max(past[1].shape[1] - self.memory, 0)
            memories.append((past[0][:, start:], past[1][:, start:]))
            before = (_before(y, first, size, self.memory) for y in past)
            elements, multiplicity = (torch.cat(parts, 1) for parts in zip(before, (x, m), strict=True))
            if isinstance(layer, InducedSetAttentionBlock):
                x = layer.map(x, layer.gather(layer.points, elements, multiplicity))
            else:
                assert isinstance(layer, SetAttentionBlock)
                x = layer.block(x, elements, multiplicity)
        summary = x[:, :tokens] if self.pool is None else self.pool(x, m)
        out = torch.where(joined(m)[..., None] > 0, joined(x), 0)
        return self.decoder(summary).unflatten(0, (sets, -1)), out, memories


def _before(past: Tensor, first: int, size: int, memory: int) -> Tensor:
    """The last `memory` entries before each segment: (sets times segments, memory, ...), zeros where there are fewer.

    Args:
        past: (sets, entries, ...): those that are remembered, then those of the segments.
        first: Where the segments begin.
    """
    number = max(-(-(past.shape[1] - first) // size), 1)
    memory = min(memory, first + (number - 1) * size)
    padded = torch.cat([past.new_zeros(len(past), memory, *past.shape[2:]), past], 1)
    starts = torch.arange(number, device=past.device)[:, None] * size + first
    return padded[:, starts + torch.arange(memory, device=past.device)].flatten(0, 1)
