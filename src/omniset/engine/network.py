"""Induced attention over whole small sets: all layers, and the pool, in one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from omniset.core.private import HOOKS
from omniset.engine.stack import Stack
from omniset.kernels import blocks, small
from omniset.layers.set_transformer import InducedSetAttentionBlock, PoolingByMultiheadAttention
from omniset.layers.universal import AttentionBlock

Steps = tuple[list[tuple[Any, int, int]], list[Tensor]]


def steps_of(encoder: Stack, sets: int, number: int) -> Steps | None:
    """The blocks of all layers, and of the pool where it is not faster folded, as `whole_blocks` takes them, and their
    points; None where layers have to be called one by one.
    """
    layers: list[Any] = [*encoder.layers]
    if not layers or not number or any(type(layer) is not InducedSetAttentionBlock for layer in layers):
        return None
    steps: list[tuple[Any, int, int]] = []
    points: list[Tensor] = [layer.points for layer in layers]
    x, first = 0, 2 + len(layers)  # of what blocks make, after the elements, the layers' points, and the pool's seeds
    for i, layer in enumerate(layers):
        steps += (layer.gather, 1 + i, x), (layer.spread, x, first + 2 * i)
        x = first + 2 * i + 1
    pool: Any = encoder.pool
    elements = torch.Size((sets, number, encoder.dim))
    if type(pool) is PoolingByMultiheadAttention and pool.element_ffn is None:
        points.append(pool.points)
        if small.worth(pool.points.shape, elements, pool.gather.num_heads):
            steps.append((pool.gather, 1 + len(layers), x))
    else:
        points.append(layers[0].points)  # not read
    for (block, _, _), layer in zip(steps[::2], layers, strict=False):
        if not small.worth(layer.points.shape, elements, block.num_heads):
            return None
    ready = all(
        block.probe is None
        and type(block).forward is AttentionBlock.forward
        and not any(getattr(block, name) for name in HOOKS)
        and block.foldable() is not None
        for block, _, _ in steps
    )
    return (steps, points) if ready and blocks.library() is not None else None


def in_one_call(
    encoder: Stack, x: Tensor, multiplicity: Tensor | None, lengths: Sequence[int]
) -> tuple[Tensor, list[Tensor], Tensor | None] | None:
    """What elements (B, N, D) become, contexts, and what is pooled where that is in it too; None: layer by layer."""
    if multiplicity is not None and multiplicity.requires_grad:  # log has no gradient at 0
        return None
    found = steps_of(encoder, x.shape[0], x.shape[1])
    if found is None:
        return None
    steps, points = found
    outputs = small.whole_blocks(steps, [x, *points], multiplicity, lengths)
    if outputs is None:
        return None
    if len(steps) % 2:
        return outputs[-2], [*outputs[:-2]], outputs[-1]
    return outputs[-1], [*outputs[:-1]], None
