"""Set Transformer-XL."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.sets import SetBatch
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
        if memory < 0:
            raise ValueError(f"memory must be >= 0, got {memory}")
        self.memory = memory

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        kind = InducedSetAttentionBlock if "num_inducing" in options else SetAttentionBlock
        return kind(dim, num_heads, **options)

    def segment(
        self, batch: SetBatch, memory: Memory | None
    ) -> tuple[Float[Tensor, "sets outputs dim"], Float[Tensor, "sets elements dim"], Memory]:
        """Summary and elements of a segment, and the memory of each layer (elements, multiplicity) after it."""
        weight = next(self.parameters())
        x, m = self.embed(batch.elements.to(weight.device, weight.dtype)), batch.multiplicity.to(weight.device)
        tokens = self.num_tokens
        if self.class_tokens is not None:
            x = torch.cat([self.class_tokens.expand(len(x), -1, -1), x], 1)
            m = torch.cat([m.new_ones(len(m), tokens), m], 1)
        memories: Memory = []
        for number, layer in enumerate(self.layers):
            elements, multiplicity = x, m
            if memory is not None:
                elements, multiplicity = (torch.cat(parts, 1) for parts in zip(memory[number], (x, m), strict=True))
            # Class tokens belong to the segment; what is kept of it are its elements.
            before = elements.shape[1] - x.shape[1]
            places = torch.cat([torch.arange(before), torch.arange(before + tokens, elements.shape[1])])
            places = places[max(len(places) - self.memory, 0) :].to(x.device)
            memories.append((elements[:, places].detach(), multiplicity[:, places]))
            if isinstance(layer, InducedSetAttentionBlock):
                x = layer.map(x, layer.gather(layer.points, elements, multiplicity))
            else:
                assert isinstance(layer, SetAttentionBlock)
                x = layer.block(x, elements, multiplicity)
        summary = x[:, :tokens] if self.pool is None else self.pool(x, m)
        x, m = x[:, tokens:], m[:, tokens:]
        return self.decoder(summary), torch.where(m[..., None] > 0, x, 0), memories
