"""What all encoders are: input layers, set layers, a pool, and layers on what was pooled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.engine import EncoderOutput, check_dim, execute
from omniset.layers.base import SetLayer, check_sizes
from omniset.layers.set_transformer import PoolingByMultiheadAttention, SetAttentionBlock
from omniset.sets import SetBatch


class Encoder(nn.Module):
    """A stack of set layers that the engine runs. Subclasses fill in the parts.

    Attributes:
        embed: Row-wise, input_dim to dim.
        class_tokens: (1, num_outputs, dim) learned elements of multiplicity 1 that join every set; what they become
            is then the summary. None: the pool makes the summary.
        layers: Set layers that map elements.
        pool: Set layer that reduces them to the summary; None with class tokens.
        decoder: What comes after pooling; (B, k, dim) to (B, num_outputs, dim).
        outputs_elements: Whether the elements have outputs of their own.
        mini_batch_consistent: Whether shards="merged" gives the whole set's result.
    """

    embed: nn.Module
    class_tokens: nn.Parameter | None
    layers: nn.ModuleList
    pool: SetLayer | None
    decoder: nn.Module
    outputs_elements = True
    mini_batch_consistent = True

    def __init__(self, input_dim: int, dim: int, num_outputs: int) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, dim=dim, num_outputs=num_outputs)
        self.input_dim, self.dim, self.num_outputs = input_dim, dim, num_outputs
        self.layers = nn.ModuleList()
        self.register_module("pool", None)
        self.register_parameter("class_tokens", None)

    @property
    def num_tokens(self) -> int:
        return 0 if self.class_tokens is None else self.class_tokens.shape[1]

    def forward(
        self,
        source: SetBatch | Iterable[SetBatch],
        shard_size: int | None = None,
        shards: str = "merged",
        gradient: str = "exact",
        store: str = "device",
    ) -> EncoderOutput:
        """Encode B sets.

        Args:
            source: A SetBatch (B, N, input_dim); or anything that can be read repeatedly and gives SetBatch shards of
                the same B sets (sets larger than memory).
            shard_size: Cut a SetBatch into shards of so many entries. None: whole.
            shards: "merged": the whole set's result. "independent": each shard a set of its own, summaries averaged.
            gradient: "exact": all shards, recomputed one at a time. "first-shard": no gradient goes through another
                shard's reduce or map, nor is it computed. "first-shard-literal": only the pool's gradient is stopped
                at the other shards, as the Universal Set Transformer paper words it; it keeps every shard's graph.
            store: Where layer inputs wait for the backward: "device", "cpu", "disk" ("disk:FOLDER"), or "recompute"
                to keep none and read the source again (L + 1 times forward, as often backward).

        Raises:
            TypeError: A source that can be read only once.
            ValueError: An unknown option, a wrong number of features, full self-attention with a store that is
                neither "device" nor "cpu", or shards="merged" for an encoder that is not mini-batch consistent.
            OSError: The disk is full or not writable.
        """
        return execute(self, source, shard_size, shards, gradient, store)

    def contextualize(self, batch: SetBatch, contexts: list[Any]) -> Float[Tensor, "sets elements dim"]:
        """Map elements, which need not be of the set, in the context of a set that was encoded before.

        Args:
            batch: B sets of elements, one for each set that was encoded.
            contexts: `EncoderOutput.contexts` of these sets.
        """
        check_dim(batch, self.input_dim)
        if not self.outputs_elements or len(contexts) != len(self.layers):
            raise ValueError(f"{type(self).__name__} has {len(self.layers)} contexts for elements, got {len(contexts)}")
        weight = next(self.parameters())
        x = self.embed(batch.elements.to(weight.device, weight.dtype))
        layers: list[Any] = [*self.layers]
        for layer, context in zip(layers, contexts, strict=True):
            x = layer.map(x, context)
        return torch.where(batch.multiplicity.to(x.device)[..., None] > 0, x, 0)


class AttentionEncoder(Encoder):
    """Linear layers, `depth` attention layers, PMA or class tokens, and `decoder_depth` SABs on what was pooled.

    Args:
        input_dim: Features of an element.
        dim: Width, divisible by num_heads.
        depth: Number of set layers.
        num_outputs: Vectors in the summary.
        input_layers: Linear layers before the set layers, ReLU between them; 0 asks for input_dim == dim.
        class_token: num_outputs class tokens in place of PMA.
        decoder_depth: SABs on the summary.
        **options: ffn_dim, norm, dropout, activation, variant, as in MultisetAttentionBlock.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_outputs: int = 1,
        input_layers: int = 1,
        class_token: bool = False,
        decoder_depth: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        for name, number in (("depth", depth), ("input_layers", input_layers), ("decoder_depth", decoder_depth)):
            if number < 0:
                raise ValueError(f"{name} must be >= 0, got {number}")
        self.embed = linear_layers(input_dim, dim, input_layers)
        self.layers = nn.ModuleList(self.set_layer(dim, num_heads, options) for _ in range(depth))
        options.pop("num_inducing", None)
        if class_token:
            self.class_tokens = nn.Parameter(torch.randn(1, num_outputs, dim) * 0.02)
        else:
            self.pool = PoolingByMultiheadAttention(dim, num_heads, num_outputs, **options)
        self.decoder = nn.Sequential(*(SetAttentionBlock(dim, num_heads, **options) for _ in range(decoder_depth)))

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        raise NotImplementedError


def linear_layers(input_dim: int, dim: int, number: int) -> nn.Sequential:
    """Linear(input_dim, dim) and `number` - 1 times ReLU, Linear(dim, dim)."""
    if number == 0 and input_dim != dim:
        raise ValueError(f"input_layers=0 needs input_dim == dim, got {input_dim} and {dim}")
    layers: list[nn.Module] = []
    for n in range(number):
        layers += [nn.Linear(dim if n else input_dim, dim), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
