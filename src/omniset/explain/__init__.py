"""Which elements drive a prediction: self-attention attribution over sets.

Hao et al., "Self-Attention Attribution: Interpreting Information Interactions Inside Transformer", 2021. For one
attention layer with normalised weights A and prediction F,

    attribution = A * mean over k = 1..m of dF/d(alpha A) at alpha = k / m

one layer scaled at a time. By the chain rule A * dF/d(alpha A) = dF/dT for a gate T = alpha that multiplies the
weights, so nothing but the gate's gradient is needed. For induced attention A is the first one, inducing points on
elements; for a Slot Set Encoder it is that of its slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.encoders.base import Encoder
from omniset.layers.set_transformer import InducedLayer, SetAttentionBlock
from omniset.layers.slots import SlotSetEncoder
from omniset.layers.universal import AttentionBlock
from omniset.sets import SetBatch

Block = AttentionBlock | SlotSetEncoder


@dataclass
class LayerAttribution:
    """Attribution of one layer.

    Attributes:
        layer: Name of the attention block in the model.
        scores: (B, heads, queries, N), neither clipped nor scaled; class tokens left out of N.
        total: (B,) sum of the attribution, class tokens included.
        change: (B,) F with the layer's attention as it is, minus F with it at 0. Attribution is complete, in the limit
            of many steps, in that total = change.
    """

    layer: str
    scores: Float[Tensor, "sets heads queries elements"]
    total: Float[Tensor, " sets"]
    change: Float[Tensor, " sets"]


def attribute(
    model: Any, batch: SetBatch, target: int | Tensor | None = None, steps: int = 20
) -> Float[Tensor, "sets elements"]:
    """How much each element drove the prediction, from 0 to 1 (the set's strongest element, if any is positive).

    Args:
        model: A module that, called with a SetBatch, returns (B, outputs) or an encoder's output, and whose attention
            layers are Omniset's; or a fitted SetClassifier or SetRegressor. Put a module into eval mode first, or
            dropout is explained along with the rest.
        batch: B whole sets. Absent elements score 0. An element's score is that of all its copies together.
        target: Which output is explained: one for all sets, or (B,) one each. Default: each set's largest output.
            Of an encoder's output: which entry of the flattened summary; default their sum.
        steps: m above, >= 1.

    Raises:
        ValueError: A model without attention over the set, such as Deep Sets; steps < 1; a target out of range.
    """
    return combine(attribute_layers(model, batch, target, steps))


def attribute_layers(
    model: Any, batch: SetBatch, target: int | Tensor | None = None, steps: int = 20
) -> list[LayerAttribution]:
    """Attribution of each attention layer over the set, with what a completeness check needs. Arguments: attribute."""
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    model = getattr(model, "network_", model)  # of an estimator
    blocks = _set_attention(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no attention over the elements of a set: nothing to attribute")
    with torch.no_grad():
        chosen = _choose(model(batch), target)
        full = _score(model(batch), chosen)
    return [_attribute_layer(model, batch, name, block, chosen, full, steps) for name, block in blocks.items()]


def attends(model: nn.Module) -> bool:
    """Whether there is attention over the elements of a set to attribute to."""
    return bool(_set_attention(model))


def combine(layers: list[LayerAttribution]) -> Float[Tensor, "sets elements"]:
    """Clip at 0, sum over heads, queries and layers, divide by the set's largest score."""
    scores = torch.stack([layer.scores.clamp(min=0).sum((1, 2)) for layer in layers]).sum(0)
    largest = scores.amax(1, keepdim=True) if scores.shape[1] else scores.new_ones(len(scores), 1)
    return scores / torch.where(largest > 0, largest, 1)


def _attribute_layer(
    model: nn.Module, batch: SetBatch, name: str, block: Block, chosen: Tensor | None, full: Tensor, steps: int
) -> LayerAttribution:
    shape = _weights_shape(model, batch, block)
    total: Any = 0
    for k in range(1, steps + 1):
        with torch.enable_grad():
            gate = torch.full(shape, k / steps, dtype=full.dtype, device=full.device, requires_grad=True)
            with _gated(block, gate):
                score = _score(model(batch), chosen)
            total = total + torch.autograd.grad(score.sum(), gate)[0]
    attribution = total / steps
    with torch.no_grad(), _gated(block, torch.zeros(shape, dtype=full.dtype, device=full.device)):
        without = _score(model(batch), chosen)
    elements = attribution[..., shape[3] - batch.elements.shape[1] :]  # class tokens come first
    return LayerAttribution(name, elements, attribution.sum((1, 2, 3)), full - without)


@contextmanager
def _gated(block: Block, gate: Tensor) -> Iterator[None]:
    block.gate = gate
    try:
        yield
    finally:
        block.gate = None


def _weights_shape(model: nn.Module, batch: SetBatch, block: Block) -> tuple[int, int, int, int]:
    """(B, heads, queries, keys) of a block's attention, found by looking at what passes through it."""
    seen: list[tuple[int, int, int, int]] = []
    original = block.project

    def spy(queries: Tensor, elements: Tensor) -> Any:
        seen.append((len(elements), block.num_heads, queries.shape[1], elements.shape[1]))
        return original(queries, elements)

    block.project = spy  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            model(batch)
    finally:
        del block.project
    return seen[0]


def _set_attention(model: nn.Module) -> dict[str, Block]:
    """The blocks that attend to elements of the set. An encoder's decoder attends to the summary: not among them."""
    decoders = [e.decoder for e in model.modules() if isinstance(e, Encoder)]
    after = {m for decoder in decoders for m in decoder.modules()}
    layers = {n: m for n, m in model.named_modules() if m not in after}
    kinds = SetAttentionBlock | InducedLayer | SlotSetEncoder
    return {n: m.set_attention for n, m in layers.items() if isinstance(m, kinds)}


def _choose(out: Any, target: int | Tensor | None) -> Tensor | None:
    """(B,) the output that is explained for each set; None: the sum of all."""
    if target is None:
        return out.argmax(1) if isinstance(out, Tensor) else None
    values = _values(out)
    chosen = torch.as_tensor(target, device=values.device).expand(len(values))
    if bool(((chosen < 0) | (chosen >= values.shape[1])).any()):
        raise ValueError(f"target must be from 0 to {values.shape[1] - 1}, got {target}")
    return chosen


def _values(out: Any) -> Float[Tensor, "sets outputs"]:
    return out if isinstance(out, Tensor) else out.summary.flatten(1)


def _score(out: Any, chosen: Tensor | None) -> Float[Tensor, " sets"]:
    values = _values(out)
    return values.sum(1) if chosen is None else values.gather(1, chosen[:, None])[:, 0]
