"""The exact gradient of an encoder over shards, with the graph of one shard at a time.

An encoder of L layers and a pool is L + 1 *stages*: map_t belongs to layer t - 1 (map_0 embeds the source), reduce_t
and finish_t to layer t, or to the pool. With x_t[i] for the elements of shard i after stage t (t = -1: the source),
m[i] for the multiplicities and theta for the parameters, the forward is, stage by stage,

    map       x_t[i] = map_t(x_{t-1}[i], context_{t-1})         each shard by itself
    state     state_t = sum over i of reduce_t(x_t[i], m[i])    states are added by `State.merge`
    finish    context_t = finish_t(state_t)                     small, and all that shards share

and the context of the last stage is the summary. The backward goes through the stages in the opposite order. Given the
final peak a state is a plain sum over the shards (omniset.core.states), so that d(state_t) is the same for every shard.
The peak may be a constant, as finish(e^c sums) = finish(sums): nothing depends on it, and its gradient is 0. (Max
pooling only compares with it.)

    (d(state_t), d(theta)) = finish_t' d(context_t)
    (d(x_{t-1}[i]), d(context_{t-1}), d(m[i]), d(theta)) = (map_t, reduce_t)' (d(x_t[i]), d(state_t))

where f' stands for the transposed Jacobian of f, which autograd applies to one shard that is computed again. All but
d(state_t) and d(x_{t-1}[i]) are parts, to be added (+=): d(context_{t-1}) over the shards, d(m[i]) over the stages,
d(theta) over both. After the last shard d(context_{t-1}) is complete, and stage t - 1 follows. No graph ever spans two
shards; the inputs of the layers wait in a store, or are computed again.

This file is these lines. What surrounds them has a file each: `stages` (map, reduce and finish of a stage; class
tokens), `shards` (where x and d(x) wait between the stages, or are computed again), `noise` (dropout and random slots,
the same whenever they are computed), `self_attention` (full self-attention, which has no small state), `group` (sets
spread over processes), `ragged` (batches of sets of very different sizes). `encoding` puts them together for one
encoder and one source, and shows autograd the whole as one function; gradients that are not exact are there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from omniset.core.states import State, wide
from omniset.engine.group import OneProcess
from omniset.engine.self_attention import AllElements
from omniset.engine.shards import RecomputedShards
from omniset.engine.stages import Stage, parameters_of


class Run:
    """One forward of the stages over the shards, and its backward."""

    def __init__(self, stages: Sequence[Stage], shards: RecomputedShards, group: OneProcess) -> None:
        self.stages, self.shards, self.group = stages, shards, group
        # state_t. None before full self-attention, and of the last stage if class tokens make the summary.
        self.states: list[State | None] = []
        self.contexts: dict[int, Any] = {-1: None}  # that at t is made by stage t and read by stage t + 1

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Those that are trained."""
        return parameters_of(self.stages)

    def forward(self) -> None:
        for t, stage in enumerate(self.stages):
            state: State | None = None
            for i, x_before, m in self.shards.inputs(t, self.contexts):
                x_t = stage.map(i, x_before, self.contexts[t - 1])  # map
                part = stage.reduce(i, x_t, m)  # state
                state = part if state is None else state.merge(part)
                self.shards.put_output(t, i, x_t, m)
            state = None if state is None else self.group.merge(state)  # with those of other processes
            self.states.append(state)
            if stage.keeps_elements:
                self.contexts[t] = self.shards.all_outputs(t)
            else:
                self.contexts[t] = stage.finish(state)  # finish

    def backward(self, d_contexts: Iterable[Tensor | None]) -> dict[int, Tensor]:
        """Gradients of the parameters by their ids; those of the source are left in `shards`.

        Args:
            d_contexts: What the loss itself adds to d(context_t), for each stage.
        """
        self.d_contexts = [*d_contexts]
        self.d_states: list[tuple[Tensor, ...] | None] = [None] * len(self.stages)
        self.d_parameters: dict[int, Tensor] = {}
        # In a group every process takes part in all sums, whatever is wanted of its own share.
        lowest = self.shards.first_trained() if self.group.size == 1 else 0
        for t in reversed(range(lowest, len(self.stages))):
            self._finish_gradient(t)
            self._shards_gradient(t)
        return self.d_parameters

    def _finish_gradient(self, t: int) -> None:
        """From d(context_t), which is complete, to d(state_t)."""
        state, stage = self.states[t], self.stages[t]
        if state is None:
            return
        (d_context,) = self.group.sum([self.d_contexts[t]], [self.contexts[t]])
        if d_context is None:
            return
        with torch.enable_grad():
            sums = [_leaf(s) for s in state.sums]
            context = stage.finish(replace(state, sums=tuple(sums)))
        d_sums, d_parameters = _vjp([context], [d_context], sums, stage.parameters)
        self.d_states[t] = tuple(torch.zeros_like(s) if d is None else d for s, d in zip(sums, d_sums, strict=True))
        if self.group.rank == 0:  # every process has computed the same
            self._add(stage.parameters, d_parameters)

    def _shards_gradient(self, t: int) -> None:
        """From d(x_t[i]) and d(state_t) to d(x_{t-1}[i]), d(context_{t-1}), d(m[i]) and d(theta), shard by shard.

        Recomputes stage t; with store="recompute", stages t to L (`RecomputedShards`).
        """
        recomputed = self.shards.recomputed(t)
        x_wanted, m_wanted, parameters_wanted = self.shards.wanted(t)
        parameters = parameters_of(self.stages[u] for u in recomputed) if parameters_wanted else []
        context = self._context_leaf(t - 1)
        for i, x_before, m in self.shards.inputs(t, self.contexts):
            with torch.enable_grad():
                x_before, m = _leaf(x_before, x_wanted), _leaf(m, m_wanted)
                x_t = x_before
                sums: list[Tensor] = []
                d_sums: list[Tensor | None] = []
                for u in recomputed:
                    x_t = self.stages[u].map(i, x_t, context if u == t else self.contexts[u - 1])
                    state, d_state = self.states[u], self.d_states[u]
                    if state is not None and d_state is not None:
                        # Against the final peak the state is the sum of what the shards give here.
                        sums += self.stages[u].reduce(i, x_t, m, state.peak).sums
                        d_sums += d_state
            d_x_t = self.shards.output_gradient(recomputed[-1], i, x_t, m)
            inputs = [x_before, m, context]
            (d_x, d_m, d_context), d_parameters = _vjp([*sums, x_t], [*d_sums, d_x_t], inputs, parameters)
            self.shards.put_input_gradient(t, i, d_x, d_m)
            if d_context is not None:
                self.d_contexts[t - 1] = _add_wide(self.d_contexts[t - 1], d_context)
            self._add(parameters, d_parameters)

    def _context_leaf(self, t: int) -> Any:
        context = self.contexts[t]
        if isinstance(context, AllElements):
            return replace(context, add_gradient=partial(self.shards.add_output_gradient, t))
        return None if context is None else _leaf(context)

    def _add(self, parameters: Iterable[Tensor], gradients: Iterable[Tensor | None]) -> None:
        for p, d in zip(parameters, gradients, strict=True):
            if d is not None:
                self.d_parameters[id(p)] = _add_wide(self.d_parameters.get(id(p)), d)


def _vjp(
    outputs: list[Tensor], d_outputs: list[Tensor | None], inputs: Sequence[Any], parameters: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients of inputs and parameters from those of what was made of them; None where nothing flows or is wanted."""
    # What depends on nothing that is wanted (a sum of multiplicities, frozen weights) has no graph.
    pairs = [(o, d.to(o.dtype)) for o, d in zip(outputs, d_outputs, strict=True) if d is not None and o.requires_grad]
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    targets = [*wanted, *parameters]
    if not pairs or not targets:
        return [None] * len(inputs), [None] * len(parameters)
    roots, upstream = zip(*pairs, strict=True)
    gradients: Sequence[Tensor | None] = torch.autograd.grad(roots, targets, upstream, allow_unused=True)
    by_id = dict(zip(map(id, wanted), gradients, strict=False))
    return [by_id.get(id(x)) for x in inputs], [*gradients[len(wanted) :]]


def _leaf(x: Tensor, wanted: bool = True) -> Tensor:
    return x.detach().requires_grad_(wanted)


def _add_wide(total: Tensor | None, part: Tensor) -> Tensor:
    """In float64, as there may be many shards."""
    return wide(part) + (0 if total is None else wide(total))
