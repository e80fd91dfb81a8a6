"""What the engine runs, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch
from omniset.core.sources import Source
from omniset.layers.base import SetLayer


@dataclass
class EncoderOutput:
    """What an encoder makes of B sets.

    Attributes:
        elements: (B, N, dim), absent entries 0, where the source was a SetBatch. For a source another
            source, whose shards are computed when they are read, without gradient. None where the encoder has none.
        summary: (B, num_outputs, dim).
        contexts: One per layer, for `encoder.contextualize`. None for independent shards.
    """

    elements: Float[Tensor, "sets elements dim"] | Source | None
    summary: Float[Tensor, "sets outputs dim"]
    contexts: list[Any] | None


class Stack(nn.Module):
    """Input layers, set layers, a pool, and layers on what was pooled."""

    embed: nn.Module  # row-wise, (B, N, input_dim) to (B, N, dim)
    # (1, num_outputs, dim) learned elements of multiplicity 1 that join every set; what they become is the summary.
    # None: the pool makes the summary.
    class_tokens: nn.Parameter | None
    layers: nn.ModuleList  # set layers that map elements
    pool: SetLayer | None  # set layer that reduces them to the summary; None with class tokens
    decoder: nn.Module  # what comes after pooling; (B, k, dim) to (B, num_outputs, dim)
    outputs_elements = True  # the elements have outputs of their own
    mini_batch_consistent = True  # shards="merged" gives the whole set's result
    recurrent = False  # independent shards are read in order, with a memory of those before (`segments`)
    cross_attention = False  # learned points attend to the set
    self_attention = False  # elements, or what became of them, attend to each other

    def __init__(self, input_dim: int, dim: int, num_outputs: int) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, dim=dim, num_outputs=num_outputs)
        self.input_dim, self.dim, self.num_outputs = input_dim, dim, num_outputs
        self.layers = nn.ModuleList()
        self.register_module("pool", None)
        self.register_parameter("class_tokens", None)

    def segments(self, batch: SetBatch, size: int, memory: Any) -> tuple[Tensor, Tensor | None, Any]:
        """Summaries (sets, shards, outputs, dim) of shards of `size` entries, elements, and the memory after them,
        given that of the shards before them (None: none).
        """
        raise TypeError(f"{type(self).__name__} has no memory of other shards")

    @property
    def place(self) -> tuple[torch.device, torch.dtype]:
        """Where and in which precision it computes: as its first parameter; one that is quantized may lack any."""
        first = next(self.parameters(), None)
        return (torch.device("cpu"), torch.float32) if first is None else (first.device, first.dtype)

    @property
    def num_tokens(self) -> int:
        return 0 if self.class_tokens is None else self.class_tokens.shape[1]
