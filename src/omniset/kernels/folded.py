"""Induced attention without keys or values of the elements: weights folded into the few points.

With k points, h heads and n elements of width d, a score is a product of two projections of which one can move over to
the points: (W_q p) . (W_k x) = (W_k^T W_q p) . x. What the points attend to is then the elements themselves, and the
weighted sum of the elements is projected once, not each element. LayerNorm's affine part moves over in the same way,
so that only an element less its mean, over its deviation, is left. Two functions of elements remain, each with the
gradient written out, each in pieces that stay in the processor's cache, and neither keeps anything of the size of the
set but its input: `gather` (points attend to elements) and `spread` (elements attend to points, then the FFN).

Scores lie with the elements innermost, (points, elements), as a softmax over a handful of neighbours in memory is slow.
Elements in half precision are read as they are and computed with in float32, a tile at a time, but for the products of
bfloat16 on processors that have units for them.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.core import private
from omniset.core.attention import AttentionState, log_multiplicity
from omniset.kernels import blocks
from omniset.kernels.gather import Gather
from omniset.kernels.points import Average, Folded
from omniset.kernels.spread import Spread
from omniset.kernels.team import in_one_thread
from omniset.kernels.tiles import ACTIVATIONS, PRECISION

LEAST = 1 << 15  # numbers of the elements, from where on folding is faster (D from 32 to 256)
MORE = 5  # times as many elements as points in a set, below which folding the points takes longer than it saves
DEARER = 1.8  # operations in compiled blocks that take the time of one of the plain form
PLAIN = None, None


class Parts:
    """The parts of a block that are folded.

    They can be only as they were made: none replaced, parametrized or with a hook of its own. That is found out when
    this is made; `hold` says whether it is still so.

    Args:
        written_for: Its class that says what is done with them: not so if a subclass does something else.

    Attributes:
        fold: Whether they can be folded.
        modules: Those with weight and bias, in the order of `omniset.kernels.small`.
        hidden: Width of the FFN; 0: none.
    """

    def __init__(self, block: Any, written_for: type[nn.Module]) -> None:
        kind = type(block)
        overridden = any(getattr(kind, name) is not getattr(written_for, name) for name in ("project", "combine"))
        self.heads, self.scale = block.num_heads, block.scale
        self.query, self.key, self.value, self.output = block.query, block.key, block.value, block.output
        self.norm_queries, self.norm_elements, self.norm_ffn = block.norm_queries, block.norm_elements, block.norm_ffn
        self.ffn: Any = None
        self.dropouts = [block.dropout]
        linear: list[Any] = [self.query, self.key, self.value, self.output]
        norms: list[Any] = [self.norm_queries, self.norm_elements]
        known = True
        if block.ffn is not None:
            # Dropout may also follow the activation, in one place with it.
            layers = [part for some in block.ffn for part in (some if type(some) is nn.Sequential else [some])]
            self.dropouts += [part for part in layers if type(part) is nn.Dropout]
            self.ffn = [part for part in layers if type(part) is not nn.Dropout]
            kinds = [type(part) for part in self.ffn]
            known = kinds[::2] == [nn.Linear, nn.Linear] and len(kinds) == 3 and kinds[1] in ACTIVATIONS
            known = known and type(block.ffn) is nn.Sequential
            linear += self.ffn[::2]
            norms.append(self.norm_ffn)
        self.modules = [self.norm_queries, self.norm_elements, self.query, self.key, self.value, self.output]
        self.modules += [] if self.ffn is None else [self.norm_ffn, *self.ffn[::2]]
        self.hidden = self.ffn[0].out_features if self.ffn is not None and known else 0
        self._snapshot = private.Snapshot(block) if private.CAN_WATCH else None
        self.fold = (
            known
            and not overridden
            and all(type(part) is nn.Linear and part.bias is not None for part in linear)
            and all(part.weight.shape == (self.query.in_features,) * 2 for part in linear[:4])
            and all(type(part) is nn.LayerNorm and part.bias is not None for part in norms)
            and self._snapshot is not None
            and not self._snapshot.hooked
        )

    @property
    def activation(self) -> type[nn.Module] | None:
        """The class of the FFN's; None: there is no FFN."""
        return None if self.ffn is None else type(self.ffn[1])

    def hold(self, block: Any) -> bool:
        same = block.scale == self.scale and block.num_heads == self.heads
        return same and self._snapshot is not None and self._snapshot.holds(block)


def form(block: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> tuple[str | None, Parts | None]:
    """Choose "gather" or "spread", with the block's parts, where it computes the same as the plain form in less time,
    else None.

    With P points, H heads and width D, of either half the scores and averages take 4 N P D operations plain and
    4 N H P D folded, the projections of elements 4 N D^2 plain and none folded, the FFN 4 N D^2 in both. So folding
    takes fewer where P (H - 1) < D; compiled, it is faster for somewhat more points too. The elements of all sets have
    to be so many (LEAST) that its small steps take no time, and those of a set so many (MORE) that it is worth folding
    its points.
    """
    # A program that is compiled for many sizes must not ask for the size.
    if torch.compiler.is_compiling() or max(queries.numel(), elements.numel()) < LEAST:
        return PLAIN
    spreads = queries.shape[1] > elements.shape[1]
    number, points = (x.shape[1] for x in ((queries, elements) if spreads else (elements, queries)))
    shared = queries.shape[0] == 1  # learned points are the same for all sets
    few = multiplicity is None and queries.shape[0] == elements.shape[0] and points > 0
    dim = queries.shape[2]
    worth = DEARER if blocks.takes(queries if spreads else elements) else 1.0
    operations, plain = _operations(points * block.num_heads, dim), _operations(points, dim, projections=8)
    if number < MORE * points or not (few if spreads else shared) or operations >= worth * plain:
        return PLAIN
    if queries.dtype not in PRECISION or torch.is_autocast_enabled(queries.device.type):
        return PLAIN
    parts = None if private.plain_only() else block.foldable()
    if parts is None:
        return PLAIN
    return "spread" if spreads else "gather", parts


def _operations(columns: int, dim: int, projections: int = 0) -> int:
    """Of an element, by its width: scores and averages in both halves, the FFN, and projections."""
    return 8 * columns + (4 + projections) * dim


def gather(
    parts: Parts, queries: Tensor, elements: Tensor, multiplicity: Tensor | None, peak: Tensor | None = None
) -> AttentionState:
    """As `AttentionBlock.reduce`, for queries (1, Q, D) that all sets share."""

    def work() -> AttentionState:
        dtype, heads, eps = PRECISION[elements.dtype], parts.heads, parts.norm_elements.eps
        own, query, key, value, norm = _weights(
            dtype, parts.norm_queries, parts.query, parts.key, parts.value, parts.norm_elements
        )
        points = queries.to(dtype)
        folded, offset = Folded.apply(heads, parts.scale, parts.norm_queries.eps, points, *own, *query, *key, *norm)
        log_m = None if multiplicity is None else log_multiplicity(multiplicity, dtype)
        given = None if peak is None else peak.flatten(1, 2)
        measured_peak, weight_sum, total = Gather.apply(elements, log_m, folded, offset, given, eps)
        average = Average.apply(heads, weight_sum, total, *value, *norm)
        by_head = heads, -1
        known = measured_peak.unflatten(1, by_head) if peak is None else peak
        return AttentionState(known, (weight_sum.unflatten(1, by_head), average))

    return in_one_thread(len(elements) * queries.numel() * parts.heads, work)


def spread(parts: Parts, elements: Tensor, points: Tensor) -> Tensor:
    """As `AttentionBlock.forward` with elements (B, N, D) for queries, which attend to few points (B, P, D)."""

    def work() -> Tensor:
        dtype, heads, eps = PRECISION[elements.dtype], parts.heads, parts.norm_queries.eps
        own, *weights = _weights(
            dtype, parts.norm_elements, parts.value, parts.output, parts.key, parts.query, parts.norm_queries
        )
        how = heads, parts.scale, parts.norm_elements.eps
        keys, offset, values = Folded.apply(*how, points.to(dtype), *own, *itertools.chain(*weights))
        ffn: tuple[Tensor | None, ...] = (None,) * 4
        if parts.ffn is not None:
            first, _, second = parts.ffn
            (w1, b1), w2, (norm, bias) = _weights(dtype, first, second, parts.norm_ffn)
            ffn = w1 * norm, F.linear(bias, w1, b1), *w2
        return Spread.apply(elements, keys, offset, values, heads, parts.activation, eps, *ffn)

    return in_one_thread(points.numel() * parts.heads, work)


def _weights(dtype: torch.dtype, *layers: Any) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each, in this precision."""
    pairs = [(layer.weight, layer.bias) for layer in layers]
    return pairs if pairs[0][0].dtype == dtype else [(weight.to(dtype), bias.to(dtype)) for weight, bias in pairs]
