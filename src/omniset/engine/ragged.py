"""Sets of very different sizes in one batch: run in buckets of about one size, so that padding is not computed with.

Sets do not meet in an encoder, so that any of them may be run together. Those of a bucket are cut to the longest of
them; the buckets are chosen so that the entries that are computed, and a fixed cost for each bucket, are least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.core.private import hooked, plain_only
from omniset.core.sets import SetBatch
from omniset.engine.self_attention import AllElements
from omniset.engine.stack import EncoderOutput, Stack
from omniset.layers.base import SetLayer

OVERHEAD = 1 << 15  # numbers of elements that take about as long as the steps of one more bucket do by themselves
ON_ACCELERATORS = 1 << 20
FINENESS = 3  # bounds between a length and its double
WORTH = 0.8  # of what the padded batch costs


class Bucket(NamedTuple):
    """Some sets of a batch, and how many of their entries there are up to the last one that is present."""

    sets: np.ndarray
    length: int


def in_buckets(encoder: Stack, batch: SetBatch, run: Callable[[Stack, SetBatch], EncoderOutput]) -> EncoderOutput:
    """What `run` makes of a batch, by buckets where this takes less."""
    chosen = [] if plain_only() or not batch.multiplicity.numel() else buckets(batch, encoder.dim)
    if not chosen or not _may_be_cut(encoder, batch):
        return run(encoder, batch)
    outputs = [run(encoder, _cut(batch, bucket)) for bucket in chosen]
    order = torch.from_numpy(np.argsort(np.concatenate([bucket.sets for bucket in chosen])))
    number = batch.elements.shape[1]

    def joined(parts: list[Any]) -> Any:
        if parts[0] is None:
            return None
        if isinstance(parts[0], AllElements):
            return replace(parts[0], read=lambda: _read_joined(parts, joined))
        longest = max(part.shape[1] for part in parts)
        return torch.cat([_padded(part, longest) for part in parts])[order.to(parts[0].device)]

    elements = joined([output.elements for output in outputs])
    contexts = [joined([*parts]) for parts in zip(*(output.contexts or [] for output in outputs), strict=True)]
    summary = joined([output.summary for output in outputs])
    return replace(
        outputs[0],
        elements=None if elements is None else _padded(elements, number),
        summary=summary,
        contexts=None if outputs[0].contexts is None else contexts,
    )


def buckets(batch: SetBatch, dim: int) -> list[Bucket]:
    """The cheapest buckets, whose bounds are some quarter apart; none where the padded batch costs hardly more."""
    lengths = batch.presence.lengths
    fixed = OVERHEAD if batch.elements.device.type == "cpu" else ON_ACCELERATORS
    whole = batch.multiplicity.numel() * dim + fixed
    if int(lengths.sum()) * dim + fixed > WORTH * whole:
        return []
    by_length = np.argsort(lengths, kind="stable")
    classes = np.ceil(FINENESS * np.log2(np.maximum(lengths[by_length], 1)))
    bounds = [0, *(np.flatnonzero(np.diff(classes)) + 1), len(lengths)]
    # The least cost of the sets before each bound, and the bound before it where the last bucket begins.
    least, before = [0], [0]
    for stop in bounds[1:]:
        longest = int(lengths[by_length[stop - 1]])
        costs = [
            cost + (stop - start) * longest * dim + fixed
            for start, cost in zip(bounds[: len(least)], least, strict=True)
        ]
        before.append(int(np.argmin(costs)))
        least.append(costs[before[-1]])
    if least[-1] > WORTH * whole:
        return []
    chosen, stop = [], len(bounds) - 1
    while stop:
        sets = by_length[bounds[before[stop]] : bounds[stop]]
        chosen.append(Bucket(np.sort(sets), int(lengths[sets].max())))
        stop = before[stop]
    return chosen


def _may_be_cut(encoder: Stack, batch: SetBatch) -> bool:
    """Whether nothing can tell: no probe or hook that waits for the whole batch, no common draws."""
    if batch.multiplicity.requires_grad:
        return False
    layers = [*encoder.layers, encoder.pool]
    draws = any(layer is not None and type(layer).draw is not SetLayer.draw for layer in layers)
    probed = any(getattr(module, "probe", None) is not None for module in encoder.modules())
    return not (draws and encoder.training) and not probed and not hooked(encoder)


def _cut(batch: SetBatch, bucket: Bucket) -> SetBatch:
    sets = torch.from_numpy(bucket.sets).to(batch.elements.device)
    elements, multiplicity = (x[:, : bucket.length].index_select(0, sets) for x in (batch.elements, batch.multiplicity))
    return SetBatch(elements, multiplicity, validate=False)


def _padded(x: Tensor, length: int) -> Tensor:
    return x if x.shape[1] == length else F.pad(x, (0, 0, 0, length - x.shape[1]))


def _read_joined(
    parts: list[AllElements], joined: Callable[[list[Tensor]], Tensor]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The elements of all sets, as one shard."""
    read = [next(iter(part.read())) for part in parts]
    elements = joined([x for _, x, _ in read])
    yield 0, elements, joined([m[..., None] for _, _, m in read])[..., 0]
