"""What all encoders are: input layers, set layers, a pool, and layers on what was pooled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch
from omniset.encoders.embedding import RowWise
from omniset.engine import EncoderOutput, contextualize, execute
from omniset.engine.stack import Stack
from omniset.layers.base import SetLayer
from omniset.layers.set_transformer import PointsInit, PoolingByMultiheadAttention, SetAttentionBlock


class Encoder(Stack):
    """What turns sets into summaries and elements. Subclasses fill in the parts of a Stack."""

    def forward(
        self,
        source: SetBatch | Iterable[SetBatch],
        shard_size: int | None = None,
        shards: str = "merged",
        gradient: str = "exact",
        store: str = "device",
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> EncoderOutput:
        """Encode B sets.

        With `process_group` the sets are shared out: every process of the group calls the encoder, with the same
        weights, on the same B sets and its own share of each set's elements. Shares may be of any size, also empty.
        `summary` and `contexts` are those of the whole sets, on every process; `elements` those of its share. In
        training, every process calls backward too, and then has the whole gradient of the encoder's weights, and that
        of its own elements and multiplicities. This is the gradient of

            mean over the processes of L_r(summary, contexts) + sum over the processes of E_r(elements)

        so let the loss of the summary be the same function on all of them, and a loss of elements a term of its own,
        on each process's share. Weights of layers of your own that read elements get the gradient of the share, and
        are yours to sum. DistributedDataParallel, over all processes of such groups, gives the mean over the groups.

        Args:
            source: A SetBatch (B, N, input_dim); or anything that can be read repeatedly and gives SetBatch shards of
                the same B sets (sets larger than memory).
            shard_size: Cut a SetBatch into shards of so many entries. None: whole.
            shards: "merged": the whole set's result. "independent": each shard a set of its own, summaries averaged.
            gradient: "exact": all shards, recomputed one at a time. "first-shard": no gradient goes through another
                shard's reduce or map, nor is it computed. "first-shard-literal": only the pool's gradient is stopped
                at the other shards, as the Universal Set Transformer paper words it; it keeps every shard's graph.
                "unbiased": the first shard carries the gradient, and that of each set's sums is multiplied by the
                set's entries per entry of the first shard (Willette et al., 2023, who scale the weights' gradients
                instead, which is biased for slots that have a residual). For elements in random order its mean is
                the exact gradient of the summary where only the pool sums up (deep-sets, sse, umbc); for encoders
                with set layers (ust) it is an estimate.
            store: Where layer inputs wait for the backward: "device", "cpu", "disk" ("disk:FOLDER"), or "recompute"
                to keep none and read the source again (L + 1 times forward, as often backward).
            process_group: A torch.distributed group that has this process, as torch.distributed.group.WORLD. Its
                `timeout` bounds how long a process waits for another that is alive but does not answer. One that has
                ended is noticed at once with the backend gloo; with nccl its watchdog ends the others.

        Raises:
            TypeError: A source that can be read only once.
            ValueError: An unknown option, a wrong number of features, full self-attention with a store that is
                neither "device" nor "cpu", or shards="merged" for an encoder that is not mini-batch consistent.
                gradient="unbiased" for independent shards, class tokens or full self-attention.
                Merged shards in forward mode, or their exact gradient under torch.func. With
                `process_group`: anything but shards="merged" and gradient="exact", weights that
                are sharded (FSDP, DTensor), or, on every process, processes that do not hold the same number of sets
                or differ in whether they want gradients or drop out.
            OSError: The disk is full or not writable.
            RuntimeError: A process of the group has ended or does not answer; in the backward too. When the exact
                gradient of merged shards is differentiated again.
        """
        return execute(self, source, shard_size, shards, gradient, store, process_group)

    def contextualize(self, batch: SetBatch, contexts: list[Any] | None) -> Float[Tensor, "sets elements dim"]:
        """Map elements, which need not be of the set, in the context of a set that was encoded before.

        Args:
            batch: B sets of elements, one for each set that was encoded.
            contexts: `EncoderOutput.contexts` of these sets.

        Raises:
            ValueError: Contexts of another number of sets or layers, or of none (shards="independent"); an encoder
                without outputs of elements; a wrong number of features.
        """
        return contextualize(self, batch, contexts)

    def with_embed(self, module: nn.Module) -> Encoder:
        """This encoder, with a module of one's own (`RowWise`) in place of the input layers, trained with the rest.

        Raises:
            TypeError: No module.
            ValueError: A module that does not make `dim` features of `input_dim`, or that has batch normalization.
        """
        self.embed = RowWise(module, self.input_dim, self.dim)
        return self


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
        points_init: How inducing points and seeds start, as in InducedSetAttentionBlock.
        element_ffn_dim: As in PoolingByMultiheadAttention.
        **options: ffn_dim, norm, dropout, hidden_dropout, activation, init, as in MultisetAttentionBlock, and variant.

    Attributes:
        only_of_layers: Options that the pool and the decoder have not.
    """

    cross_attention = self_attention = True
    only_of_layers: tuple[str, ...] = ("num_inducing",)

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
        points_init: PointsInit | None = None,
        element_ffn_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        check_sizes(0, depth=depth, input_layers=input_layers, decoder_depth=decoder_depth)
        self.embed = linear_layers(input_dim, dim, input_layers)
        of_layers = options | ({"points_init": points_init} if options.get("num_inducing") else {})
        options = {name: value for name, value in options.items() if name not in self.only_of_layers}
        self.layers = nn.ModuleList(self.set_layer(dim, num_heads, of_layers) for _ in range(depth))
        if class_token:
            self.class_tokens = nn.Parameter(torch.randn(1, num_outputs, dim) * 0.02)
        else:
            of_pool = {"points_init": points_init, "element_ffn_dim": element_ffn_dim} | options
            self.pool = PoolingByMultiheadAttention(dim, num_heads, num_outputs, **of_pool)
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
