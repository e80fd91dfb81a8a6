"""Encoders whose slots attend to the set: Slot Set Encoders, one or a hierarchy, and UMBC."""

from __future__ import annotations

from typing import Any

from torch import nn

from omniset.core.checks import check_sizes
from omniset.encoders.base import Encoder, linear_layers
from omniset.layers.base import SetLayer
from omniset.layers.set_transformer import PointsInit, PoolingByMultiheadAttention, SetAttentionBlock
from omniset.layers.slots import SlotSetEncoder, Weighting


class HierarchicalSlotSetEncoder(Encoder):
    """Linear layers, `depth` Slot Set Encoders one on the other (Andreis et al., 2021).

    Only the first reads the set; each further one reads the slots before it.

    Args:
        input_dim: Features of an element.
        dim: Width, divisible by num_heads.
        depth: Slot Set Encoders, >= 1.
        num_inducing: Slots of all but the last, which has num_outputs.
        num_outputs: Vectors in the summary.
        input_layers: Linear layers before, ReLU between them.
        weighting: As in SlotSetEncoder, and so random.
    """

    outputs_elements = False
    cross_attention = True

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        num_heads: int,
        num_inducing: int = 16,
        depth: int = 1,
        num_outputs: int = 1,
        input_layers: int = 1,
        weighting: Weighting = "sigmoid",
        random: bool = True,
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        check_sizes(depth=depth, num_inducing=num_inducing)
        self.embed = linear_layers(input_dim, dim, input_layers)
        slots = [num_inducing] * (depth - 1) + [num_outputs]
        encoders = [SlotSetEncoder(dim, num_heads, number, weighting, random) for number in slots]
        self.pool = encoders[0]
        self.decoder = nn.Sequential(*encoders[1:])


class UMBC(Encoder):
    """Linear layers, a Slot Set Encoder, `depth` SABs among its slots, PMA.

    Willette et al., "Scalable Set Encoding with Universal Mini-Batch Consistency and Unbiased Full Set Gradient
    Approximation", 2023. Their approximation is `gradient="unbiased"`.

    Args:
        input_dim: Features of an element.
        dim: Width, divisible by num_heads.
        depth: SABs, >= 0.
        num_inducing: Slots.
        num_outputs: Vectors in the summary.
        pma: Without, the slots are the summary, as in a study of the paper; num_outputs is then num_inducing.
        input_layers: Linear layers before the slots, ReLU between them.
        weighting: As in SlotSetEncoder, and so random.
        slot_block: The slots attend to the set in a transformer block, as PMA's seeds do: its norm is on the elements
            too, and it has an FFN. This is our reading of the Universal Set Transformer paper, sections 3.3 and A.2.
            Needs random=False and weighting="softmax".
        points_init: How PMA's seed starts, and with slot_block the slots, as in InducedSetAttentionBlock.
        element_ffn_dim: Of PMA, as in PoolingByMultiheadAttention.
        **options: ffn_dim, norm, dropout, hidden_dropout, activation, init of the blocks, as in MultisetAttentionBlock,
            and variant.

    Raises:
        ValueError: A size out of bounds, num_outputs that is not num_inducing without PMA, or slot_block with random
            slots or another weighting.
    """

    outputs_elements = False
    cross_attention = self_attention = True

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_inducing: int,
        num_outputs: int = 1,
        input_layers: int = 1,
        weighting: Weighting = "softmax",
        random: bool = True,
        slot_block: bool = False,
        pma: bool = True,
        points_init: PointsInit | None = None,
        element_ffn_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        check_sizes(0, depth=depth)
        if not pma and num_outputs != num_inducing:
            raise ValueError(f"num_outputs must be num_inducing={num_inducing} without PMA, got {num_outputs}")
        if slot_block and (random or weighting != "softmax"):
            raise ValueError(
                "slot_block=True has learned slots and a softmax over the set: it needs random=False and "
                f"weighting='softmax', got {random} and {weighting!r}"
            )
        self.embed = linear_layers(input_dim, dim, input_layers)
        self.pool: SetLayer
        if slot_block:
            of_slots: dict[str, Any] = {"points_init": points_init, "element_ffn_dim": 0}
            self.pool = PoolingByMultiheadAttention(dim, num_heads, num_inducing, **of_slots, **options)
        else:
            self.pool = SlotSetEncoder(dim, num_heads, num_inducing, weighting, random)
        self.decoder = nn.Sequential(*(SetAttentionBlock(dim, num_heads, **options) for _ in range(depth)))
        if pma:
            of_pool: dict[str, Any] = {"points_init": points_init, "element_ffn_dim": element_ffn_dim}
            self.decoder.append(PoolingByMultiheadAttention(dim, num_heads, num_outputs, **of_pool, **options))
