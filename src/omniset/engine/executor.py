"""The executor: runs a stack of set layers over shards, and its exact gradient in the memory of one shard.

A stack of L layers and a pool is L + 1 *stages*. Stage t reads what stage t - 1 left of each shard, maps it, and sums
it up:

    x_t[i] = map_t(x_{t-1}[i], context_{t-1})        for each shard i        (map_0 embeds the source)
    state_t = sum over shards of reduce_t(x_t[i]),     context_t = finish_t(state_t)

All that shards share are the contexts. So the exact gradient goes back the same way, a shard at a time: with the final
peak known a state is a plain sum, hence d(state_t) is the same for every shard; recompute stage t of one shard, send
in d(state_t) and d(x_t[i]), take out d(x_{t-1}[i]), a share of d(context_{t-1}) and of the parameters' gradients.
d(context_{t-1}) is complete after the pass over the shards and gives d(state_{t-1}) through finish. No graph ever
spans two shards.

The whole set is one shard under plain autograd. With no store ("recompute"), a pass maps each shard from the source
up, and back from the pool down, so that nothing is kept but the contexts.

In a group of processes (omniset.engine.group) each has shards of its own. State_t is then merged over the processes
too, and their shares of d(context_t) and of the parameters' gradients are added up; all else each does for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from omniset.engine.group import OneProcess, Processes
from omniset.engine.kept import KeptElements
from omniset.engine.stack import Stack
from omniset.engine.stores import DeviceStore, Store
from omniset.sets import SetBatch
from omniset.states import State, wide

Live = Callable[[int], bool]
Shard = tuple[int, Tensor, Tensor]


def always(i: int) -> bool:
    return True


def never(i: int) -> bool:
    return False


class Run:
    """One forward of an encoder over a source of shards, with all that its backward needs.

    Attributes:
        contexts: One per stage; the last is what the pool made (None if class tokens are the summary).
        elements: (sets, elements, dim) where the source is a SetBatch.
    """

    def __init__(
        self,
        encoder: Stack,
        source: SetBatch | None,
        shards: Iterable[SetBatch],
        store: Store | None,
        replay: bool,
        group: OneProcess | None = None,
    ) -> None:
        self.encoder, self.source, self.shards, self.store = encoder, source, shards, store
        self.reducers: list[Any] = [*encoder.layers, encoder.pool]
        self.last = len(self.reducers) - 1
        weight = next(encoder.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.num_shards = 0  # known after the first pass
        self.states: list[State | None] = []
        self.contexts: list[Any] = []
        self.elements: Tensor | None = None
        self.token_summary: Tensor | None = None
        self.detach_before_pool = False
        self.scale_of_gradient: Tensor | None = None  # (sets,) of what the sums over a set hand back
        self.keep_for_backward = False
        self.whole = not replay
        self._live: Live = always
        self._memory = DeviceStore()  # shards that carry a graph cannot leave memory
        dropout = encoder.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in encoder.modules())
        self._seed = int(torch.randint(2**40, ())) if dropout and replay else None
        self.group = OneProcess() if group is None else group
        self.tokens = encoder.num_tokens if self.group.rank == 0 else 0  # class tokens travel with the very first shard
        self._common: int | None = None  # seed of what all processes draw alike
        if isinstance(self.group, Processes):
            seed = int(torch.randint(2**40, ())) if self._seed is None else self._seed
            self._common = self.group.agree(self._facts, seed)
            self._seed = None if self._seed is None else self._common
        with nullcontext() if self._common is None else self._replayable(self._common):
            self._drawn = [None if layer is None else layer.draw() for layer in self.reducers]

    # ------------------------------------------------------------------ forward

    def forward(self, live: Live) -> None:
        """All stages over all shards; gradients flow, through plain autograd, in the shards that are `live`."""
        self._live = live
        for t, layer in enumerate(self.reducers):
            state: Any = None
            pieces: list[Tensor] = []
            for i, x, m in self._inputs(t):
                with torch.set_grad_enabled(torch.is_grad_enabled() and live(i)):
                    y = self._map(t, i, x, self.contexts)
                    part = self._reduce(t, i, y, m)
                state = part if state is None or part is None else state.merge(part)
                if t == self.last:
                    self._collect(pieces, i, y, m)
                elif self.store is not None:
                    self._put((t, i), y)
                if t and not self.keep_for_backward and not self.reducers[t - 1].keeps_elements:
                    self._drop((t - 1, i))
            state = None if state is None else self.group.merge(state)
            if state is not None and self.scale_of_gradient is not None:
                state = state.with_gradient_scaled(self.scale_of_gradient)
            self.states.append(state)
            self.contexts.append(None if state is None else self._finish(t, state))
            if layer is not None and layer.keeps_elements:
                self.contexts[t] = KeptElements(self._reader(t), live, whole=self.whole)
        if pieces:
            self.elements = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
        if self.token_summary is not None:
            (self.token_summary,) = self.group.sum([self.token_summary], [self.token_summary])

    def _facts(self) -> tuple[int, ...]:
        """What the processes of a group must have in common: omniset.engine.group.FACTS."""
        first = next(iter(self.shards)) if self.source is None else self.source
        parameters = self._parameters(0, self.last)
        leaves = [first.elements, first.multiplicity, *parameters]
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        return len(first), wanted, sum(p.numel() for p in parameters), self._seed is not None

    def _inputs(self, t: int) -> Iterator[Shard]:
        """Shard number, what stage t reads of it, and its multiplicities."""
        if t and self.store is not None:
            for i in range(self.num_shards):
                yield i, self._get((t - 1, i)), self._get(("m", i))
            return
        number = 0
        for i, shard in enumerate(self.shards):
            x, m = shard.elements, shard.multiplicity.to(self.device)
            if t == 0 and self.store is not None and not self.states:
                self._put(("m", i), m)
            with torch.set_grad_enabled(torch.is_grad_enabled() and self._live(i)):
                for u in range(t):
                    x = self._map(u, i, x, self.contexts)
            yield i, x, m
            number = i + 1
        if self.num_shards and number != self.num_shards:
            raise ValueError(f"the source gave {self.num_shards} shards when first read and {number} when read again")
        self.num_shards = number

    def _map(self, t: int, i: int, x: Tensor, contexts: list[Any]) -> Tensor:
        with self._noise(t, i):
            if t:
                layer: Any = self.encoder.layers[t - 1]
                return layer.map(x, contexts[t - 1])
            x = self.encoder.embed(x.to(self.device, self.dtype))
            tokens = self.encoder.class_tokens
            if tokens is None or not self.tokens or i:
                return x
            return torch.cat([tokens.expand(len(x), -1, -1), x], 1)

    def _reduce(self, t: int, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        layer = self.reducers[t]
        if layer is None or layer.keeps_elements:
            return None
        if self.detach_before_pool and t == self.last and i:
            x = x.detach()
        with self._holding(t):
            return layer.reduce(x, self._with_tokens(i, m), peak)

    def _finish(self, t: int, state: State) -> Tensor:
        with self._noise(t, -1), self._holding(t):
            return self.reducers[t].finish(state).to(self.dtype)

    def _holding(self, t: int) -> AbstractContextManager[None]:
        drawn = self._drawn[t]
        return nullcontext() if drawn is None else self.reducers[t].holding(drawn)

    def _with_tokens(self, i: int, m: Tensor) -> Tensor:
        return m if not self.tokens or i else torch.cat([m.new_ones(len(m), self.tokens), m], 1)

    def _collect(self, pieces: list[Tensor], i: int, x: Tensor, m: Tensor) -> None:
        """Keep what class tokens became, and of a SetBatch its elements, absent ones 0, where the source is."""
        if self.encoder.num_tokens and i == 0:
            # The first process has them; the sum over the group gives them to all.
            absent = x.new_zeros(len(x), self.encoder.num_tokens, x.shape[2])
            self.token_summary, x = x[:, : self.tokens] if self.tokens else absent, x[:, self.tokens :]
        if self.source is not None and self.encoder.outputs_elements:
            pieces.append(torch.where(m[..., None] > 0, x, 0).to(self.source.elements.device))

    def _reader(self, t: int) -> Callable[[], Iterator[Shard]]:
        """Reads what the SAB after stage t was given, class tokens included."""

        def read() -> Iterator[Shard]:
            for i in range(self.num_shards):
                yield i, self._get((t, i)), self._with_tokens(i, self._get(("m", i)))

        return read

    @contextmanager
    def _replayable(self, seed: int) -> Iterator[None]:
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            yield

    def _noise(self, t: int, i: int) -> AbstractContextManager[None]:
        """Dropout of stage t and shard i draws the same mask whenever it is computed; i = -1: on all processes."""
        if self._seed is None:
            return nullcontext()
        process = 0 if i < 0 else self.group.rank * 0x9E3779B9  # on the CPU only 32 bits of a seed count
        return self._replayable(self._seed + process + t * 1_000_003 + i + 1)

    def noise_of_decoder(self) -> AbstractContextManager[None]:
        """The summary is decoded alike on all processes."""
        return nullcontext() if self._common is None else self._replayable(self._common + (self.last + 1) * 1_000_003)

    def _put(self, key: Any, x: Tensor) -> None:
        assert self.store is not None
        (self._memory if x.requires_grad else self.store).put(key, x)

    def _get(self, key: Any) -> Tensor:
        assert self.store is not None
        try:
            return self._memory.get(key)
        except KeyError:
            return self.store.get(key)

    def _drop(self, key: Any) -> None:
        self._memory.drop(key)
        if self.store is not None:
            self.store.drop(key)

    # ----------------------------------------------------------------- backward

    def backward(
        self, d_summary: Tensor | None, d_elements: Tensor | None, d_contexts: list[Tensor | None], wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None, dict[int, Tensor]]:
        """Gradients of the source's elements and multiplicities (where `wanted`) and, by id, of the parameters."""
        # All processes have the summary and the contexts, and a loss of them: it counts once, as the mean.
        *d_contexts, d_summary = (None if d is None else d / self.group.size for d in (*d_contexts, d_summary))
        if self.token_summary is not None:
            (d_summary,) = self.group.sum([d_summary], [self.token_summary])
        self._d_outputs = d_elements, d_summary if self.encoder.num_tokens else None
        self._d_states: list[tuple[Tensor, ...] | None] = [None] * (self.last + 1)
        self._d_contexts: list[Tensor | None] = [*d_contexts, None if self.encoder.num_tokens else d_summary]
        self._d_parameters: dict[int, Tensor] = {}
        self._d_source: list[Any] = [
            self._source_gradient(want, which) for want, which in zip(wanted, range(2), strict=True)
        ]
        self._live = never  # what is replayed below the pass's own stage carries no gradient
        lowest = 0  # stage that a gradient is asked of: where layers are frozen, those below need none
        if self.store is not None and not any(wanted) and not isinstance(self.group, Processes):
            asked = (t for t in range(self.last + 1) if self._parameters(t, t))
            lowest = next(asked, self.last)
        for t in range(self.last, lowest - 1, -1):
            self._finish_backward(t)
            if self.store is not None:
                self._pass(t, t)
            elif t:
                self._pass(t, self.last, only_context=True)
        if self.store is None:
            self._pass(0, self.last)
        d_elements, d_multiplicity = self._d_source
        parameters = self._parameters(0, self.last)
        grads = self.group.sum([self._d_parameters.get(id(p)) for p in parameters], parameters)
        found = {id(p): grad for p, grad in zip(parameters, grads, strict=True) if grad is not None}
        return d_elements, d_multiplicity, found

    def _finish_backward(self, t: int) -> None:
        """d(context_t), complete after the sum over the processes, to d(state_t)."""
        state = self.states[t]
        if state is None:
            return
        (d_context,) = self.group.sum([self._d_contexts[t]], [self.contexts[t]])
        if d_context is None:
            return
        with torch.enable_grad():
            state = replace(state, sums=tuple(s.detach().requires_grad_() for s in state.sums))
            context = self._finish(t, state)
        parameters = self._parameters(t, t)
        grads = torch.autograd.grad(context, [*state.sums, *parameters], d_context.to(context.dtype), allow_unused=True)
        self._d_states[t] = tuple(
            torch.zeros_like(s) if g is None else g for s, g in zip(state.sums, grads, strict=False)
        )
        if self.group.rank == 0:  # all have computed the same
            self._add_parameters(parameters, grads[len(state.sums) :])

    def _pass(self, first: int, last: int, only_context: bool = False) -> None:
        """Backward of stages first..last, a shard at a time."""
        parameters = [] if only_context else self._parameters(first, last)
        context = self.contexts[first - 1] if first else None
        kept = context if isinstance(context, KeptElements) else None
        if kept is not None:
            context, kept = None, KeptElements(kept.read, accumulate=self._add_kept)
        start = 0
        for i, x, m in self._inputs(first):
            stop = start + m.shape[1]
            with torch.enable_grad():
                x = x.detach().requires_grad_((first > 0 or self._d_source[0] is not None) and not only_context)
                m = m.detach().requires_grad_(self._d_source[1] is not None and not only_context)
                leaf = None if context is None else context.detach().requires_grad_()
                contexts = [*self.contexts]
                if first:
                    contexts[first - 1] = leaf if kept is None else kept
                outputs: list[Tensor] = []
                d_outputs: list[Tensor] = []
                y = x
                for t in range(first, last + 1):
                    y = self._map(t, i, y, contexts)
                    d_state, state = self._d_states[t], self.states[t]
                    if d_state is not None and state is not None:
                        part = self._reduce(t, i, y, m, state.peak)
                        outputs += part.sums
                        d_outputs += [d.to(s.dtype) for d, s in zip(d_state, part.sums, strict=True)]
            upstream = self._final_gradient(i, y, m, start, stop) if last == self.last else self._take(("g", i))
            if upstream is not None:
                outputs.append(y)
                d_outputs.append(upstream.to(y.dtype))
            start = stop
            targets = [v for v in (x, m, leaf) if v is not None and v.requires_grad] + parameters
            # What does not depend on a target (a sum of multiplicities, frozen weights) has no graph.
            pairs = [(o, d) for o, d in zip(outputs, d_outputs, strict=True) if o.requires_grad]
            if not pairs or not targets:
                continue
            grads = list(torch.autograd.grad([o for o, _ in pairs], targets, [d for _, d in pairs], allow_unused=True))
            if x.requires_grad and (d_x := grads.pop(0)) is not None:
                if first:
                    self._put(("g", i), d_x)
                else:
                    self._d_source[0][:, start - m.shape[1] : stop] = d_x.to(self._d_source[0])
            if m.requires_grad and (d_m := grads.pop(0)) is not None:
                self._d_source[1][:, start - m.shape[1] : stop] += d_m.to(self._d_source[1])
            if leaf is not None and (d_leaf := grads.pop(0)) is not None:
                before = self._d_contexts[first - 1]
                self._d_contexts[first - 1] = wide(d_leaf) + (0 if before is None else wide(before))
            self._add_parameters(parameters, grads)
        if kept is not None:
            for i in range(self.num_shards):
                d_kept: Tensor | None = self._take(("k", i))
                if d_kept is not None:
                    own = self._take(("g", i))
                    self._put(("g", i), d_kept if own is None else own + d_kept)

    def _add_kept(self, i: int, d_x: Tensor, d_m: Tensor | None) -> None:
        before = self._take(("k", i))
        self._put(("k", i), d_x if before is None else before + d_x)
        if d_m is not None and self._d_source[1] is not None:
            start = sum(self._get(("m", j)).shape[1] for j in range(i))
            d_m = d_m[:, self.encoder.num_tokens if i == 0 else 0 :]
            self._d_source[1][:, start : start + d_m.shape[1]] += d_m.to(self._d_source[1])

    def _final_gradient(self, i: int, y: Tensor, m: Tensor, start: int, stop: int) -> Tensor | None:
        """d(x) of the last stage's shard i, from the gradients of the element outputs and of the class tokens."""
        d_elements, d_tokens = self._d_outputs
        tokens = self.tokens if i == 0 else 0
        if d_elements is None and (d_tokens is None or not tokens):
            return None
        upstream = torch.zeros_like(y)
        if tokens and d_tokens is not None:
            upstream[:, :tokens] = d_tokens
        if d_elements is not None:
            upstream[:, tokens:] = d_elements[:, start:stop].to(y) * (m[..., None] > 0)
        return upstream

    def _take(self, key: Any) -> Tensor | None:
        try:
            tensor = self._get(key)
        except KeyError:
            return None
        self._drop(key)
        return tensor

    def _source_gradient(self, wanted: bool, which: int) -> Tensor | None:
        if not wanted or self.source is None:
            return None
        return torch.zeros_like((self.source.elements, self.source.multiplicity)[which])

    def _parameters(self, first: int, last: int) -> list[nn.Parameter]:
        """Those that stages first..last use."""
        encoder, modules = self.encoder, []
        for t in range(first, last + 1):
            modules += [encoder.layers[t - 1] if t else encoder.embed, self.reducers[t]]
        found = {id(p): p for module in modules if module is not None for p in module.parameters() if p.requires_grad}
        if first == 0 and encoder.class_tokens is not None and encoder.class_tokens.requires_grad:
            found[id(encoder.class_tokens)] = encoder.class_tokens
        return list(found.values())

    def _add_parameters(self, parameters: list[nn.Parameter], grads: Iterable[Tensor | None]) -> None:
        for p, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                self._d_parameters[id(p)] = wide(grad) + self._d_parameters.get(id(p), 0)


class ExactGradient(torch.autograd.Function):
    """A Run as one differentiable function of the source and the parameters."""

    @staticmethod
    def forward(ctx: Any, run: Run, elements: Tensor | None, multiplicity: Tensor | None, *parameters: Tensor):
        ctx.set_materialize_grads(False)
        kind = run.device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        run.keep_for_backward = True
        run.forward(never)
        ctx.run, ctx.parameters = run, parameters
        summary = run.token_summary if run.encoder.num_tokens else run.contexts[-1]
        contexts = [c if isinstance(c, Tensor) else None for c in run.contexts[:-1]]
        # What the run keeps must not become part of the graph that leads back to it.
        assert summary is not None
        elements = None if run.elements is None else run.elements.detach()
        return summary.detach(), elements, *(None if c is None else c.detach() for c in contexts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_summary: Tensor | None, d_elements: Tensor | None, *d_contexts: Tensor | None):
        kind, dtype, enabled = ctx.autocast
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            d_source, d_multiplicity, d_parameters = ctx.run.backward(
                d_summary, d_elements, list(d_contexts), list(ctx.needs_input_grad[1:3])
            )
        grads = (d_parameters.get(id(p)) for p in ctx.parameters)
        return (
            None,
            d_source,
            d_multiplicity,
            *(g if g is None else g.to(p.dtype) for g, p in zip(grads, ctx.parameters, strict=True)),
        )
