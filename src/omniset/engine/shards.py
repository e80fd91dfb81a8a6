"""What lies between the stages: the elements of each shard on the way up, their gradients on the way down.

Below the first stage is the source, above the last one what the encoder makes of the elements. In between, shards wait
in a store, or nothing is kept and each pass computes them from the source again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.engine.self_attention import AllElements
from omniset.engine.stack import Stack
from omniset.engine.stages import Stage, prepend_ones
from omniset.engine.stores import GraphStore, Store

Shard = tuple[int, Tensor, Tensor]


class RecomputedShards:
    """Shards of which nothing is kept: each pass computes them from the source up to its stage.

    Backward, only d(x_L) of the last stage is there. So the pass of stage t computes stages t to L of each shard again:

        d(context_{t-1}) = sum over i of (stages t..L of shard i)' (d(x_L[i]), d(state_t), ..., d(state_L))

    where contexts t to L - 1 are constants, as what flows into them is in d(state_t), ..., d(state_{L-1}) already.
    d(theta), d(x_{-1}[i]) and d(m[i]) are taken at t = 0 alone, where these stages are all: elsewhere too, they would
    count twice. Both directions read the source L + 1 times, in O(L^2) maps of each shard.

    x_t[i] and d(x_t[i]) are as in `omniset.engine.exact`.

    Args:
        encoder: Of L layers: the last stage is L.
        source: The SetBatch that `parts` are cut from, if they are.
        tokens: Number of class tokens that travel with the first shard: in a group of processes, that of the first one.
    """

    for_backward = False  # keep what each stage reads until the backward has read it too

    def __init__(
        self,
        stages: Sequence[Stage],
        encoder: Stack,
        source: SetBatch | None,
        parts: Iterable[SetBatch],
        device: torch.device,
        tokens: int,
    ) -> None:
        self.stages = stages
        self.source, self.parts, self.device, self.tokens = source, parts, device, tokens
        self.encoder, self.last = encoder, len(encoder.layers)
        self.starts: list[int] = []  # of each shard in the set, and the end; known after the first pass
        self.token_summary: Tensor | None = None  # (sets, tokens, dim), what class tokens became
        # Gradients of the source's elements and multiplicities, where they are wanted.
        self.d_source: tuple[Tensor | None, Tensor | None] = None, None
        self._outputs: list[Tensor] = []
        self._d_outputs: tuple[Tensor | None, Tensor | None] = None, None

    def inputs(self, t: int, contexts: dict[int, Any]) -> Iterator[Shard]:
        """Of each shard its number i, x_{t-1}[i], and m[i] with the multiplicities of class tokens."""
        for i, x, m in self._read_source():
            for u in range(t):
                x = self.stages[u].map(i, x, contexts[u - 1])
            yield i, x, m

    def put_output(self, t: int, i: int, x: Tensor, m: Tensor) -> None:
        """Take x = x_t[i]."""
        if t == self.last:
            self._put_out(i, x, m)

    def all_outputs(self, t: int) -> AllElements:
        """x_t of all shards, for full self-attention."""
        raise TypeError("full self-attention needs a store")

    def elements(self) -> Tensor | None:
        """What the encoder made of the elements of `source`, (sets, elements, dim)."""
        if len(self._outputs) > 1:
            self._outputs = [torch.cat(self._outputs, 1)]
        return self._outputs[0] if self._outputs else None

    def start_backward(self, d_elements: Tensor | None, d_tokens: Tensor | None, wanted: Sequence[bool]) -> None:
        """Take the gradients of what was put out, and whether those of the source's two tensors are `wanted`."""
        self._d_outputs = d_elements, d_tokens
        if self.source is not None:
            given = self.source.elements, self.source.multiplicity
            d_x, d_m = (torch.zeros_like(x) if want else None for x, want in zip(given, wanted, strict=True))
            self.d_source = d_x, d_m

    def first_trained(self) -> int:
        """The lowest stage through which gradients are wanted."""
        return 0

    def recomputed(self, t: int) -> range:
        """The stages that the backward of stage t computes again: from t up to the first whose d(x) is there."""
        return range(t, self.last + 1)

    def wanted(self, t: int) -> tuple[bool, ...]:
        """Whether the pass of stage t returns gradients of elements, of multiplicities, and of parameters."""
        d_elements, d_multiplicity = self.d_source
        return t == 0 and d_elements is not None, t == 0 and d_multiplicity is not None, t == 0

    def output_gradient(self, t: int, i: int, x: Tensor, m: Tensor) -> Tensor | None:
        """d(x_t[i]), for x = x_t[i] and m = m[i]. None means zero. This class knows it only for the last stage."""
        d_elements, d_tokens = self._d_outputs
        tokens = self.tokens if i == 0 else 0
        if d_elements is None and (d_tokens is None or not tokens):
            return None
        d_x = torch.zeros_like(x)
        if tokens and d_tokens is not None:
            d_x[:, :tokens] = d_tokens
        if d_elements is not None:
            d_x[:, tokens:] = d_elements[:, self._place(i)].to(x) * (m[:, tokens:, None] > 0)
        return d_x

    def put_input_gradient(self, t: int, i: int, d_x: Tensor | None, d_m: Tensor | None) -> None:
        """Take d(x_{t-1}[i]), and add a part to d(m[i])."""
        d_elements, d_multiplicity = self.d_source
        if t == 0 and d_x is not None and d_elements is not None:
            d_elements[:, self._place(i)] = d_x.to(d_elements)
        if d_m is not None and d_multiplicity is not None:
            d_m = d_m[:, self.tokens :] if i == 0 else d_m
            d_multiplicity[:, self._place(i)] += d_m.to(d_multiplicity)

    def add_output_gradient(self, t: int, i: int, d_x: Tensor, d_m: Tensor | None) -> None:
        """Add parts to d(x_t[i]) and d(m[i]) that come from another shard, which has attended to this one."""
        raise TypeError("full self-attention needs a store")

    def _read_source(self) -> Iterator[Shard]:
        starts = [0]
        for i, shard in enumerate(self.parts):
            m = shard.multiplicity.to(self.device)
            starts.append(starts[i] + m.shape[1])
            yield i, shard.elements, m if i else prepend_ones(self.tokens, m)
        number, before = len(starts) - 1, len(self.starts) - 1
        if self.starts and number != before:
            raise ValueError(f"the source gave {before} shards when first read and {number} when read again")
        self.starts = starts

    def _put_out(self, i: int, x: Tensor, m: Tensor) -> None:
        """Keep what class tokens became, and of a SetBatch its elements, absent ones 0, where the source is."""
        if self.encoder.num_tokens and i == 0:
            # One process has them; the sum over the group gives them to all.
            absent = x.new_zeros(len(x), self.encoder.num_tokens, x.shape[2])
            self.token_summary = x[:, : self.tokens] if self.tokens else absent
            x, m = x[:, self.tokens :], m[:, self.tokens :]
        if self.source is not None and self.encoder.outputs_elements:
            self._outputs.append(torch.where(m[..., None] > 0, x, 0).to(self.source.elements.device))

    def _place(self, i: int) -> slice:
        return slice(self.starts[i], self.starts[i + 1])


class StoredShards(RecomputedShards):
    """Shards that wait in a store instead, and so do their gradients: each pass computes one stage.

    Args:
        store: Of tensors that carry no graph.
    """

    def __init__(self, *arguments: Any, store: Store) -> None:
        super().__init__(*arguments)
        self.store = GraphStore(store)

    def inputs(self, t: int, contexts: dict[int, Any]) -> Iterator[Shard]:
        if t:
            yield from _stream(self.store, t - 1, len(self.starts) - 1)
            return
        first = not self.starts
        for i, x, m in self._read_source():
            if first:
                self.store.put(("m", i), m)
            yield i, x, m

    def put_output(self, t: int, i: int, x: Tensor, m: Tensor) -> None:
        super().put_output(t, i, x, m)
        if t < self.last:
            self.store.put(("x", t, i), x)
        if t and not self.for_backward and not self.stages[t - 1].keeps_elements:
            self.store.drop(("x", t - 1, i))

    def all_outputs(self, t: int) -> AllElements:
        # The run holds what is returned. If that held the run, both would stay until the garbage collector comes.
        return AllElements(partial(_stream, self.store, t, len(self.starts) - 1))

    def first_trained(self) -> int:
        if any(d is not None for d in self.d_source):
            return 0
        return next((t for t, stage in enumerate(self.stages) if stage.parameters), self.last)

    def recomputed(self, t: int) -> range:
        return range(t, t + 1)

    def wanted(self, t: int) -> tuple[bool, ...]:
        d_elements, d_multiplicity = self.d_source
        return t > 0 or d_elements is not None, d_multiplicity is not None, True

    def output_gradient(self, t: int, i: int, x: Tensor, m: Tensor) -> Tensor | None:
        if t == self.last:
            return super().output_gradient(t, i, x, m)
        gradient, others = self.store.take(("d", t, i)), self.store.take(("d of others", t, i))
        return gradient if others is None else others if gradient is None else gradient + others

    def put_input_gradient(self, t: int, i: int, d_x: Tensor | None, d_m: Tensor | None) -> None:
        super().put_input_gradient(t, i, d_x, d_m)
        if t and d_x is not None:
            self.store.put(("d", t - 1, i), d_x)

    def add_output_gradient(self, t: int, i: int, d_x: Tensor, d_m: Tensor | None) -> None:
        before = self.store.take(("d of others", t, i))
        self.store.put(("d of others", t, i), d_x if before is None else before + d_x)
        self.put_input_gradient(t, i, None, d_m)


def _stream(store: GraphStore, t: int, number: int) -> Iterator[Shard]:
    for i in range(number):
        yield i, store.get(("x", t, i)), store.get(("m", i))
