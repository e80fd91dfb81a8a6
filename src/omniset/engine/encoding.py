"""One encoding of a source: a run put together from an encoder, shards, a store, a kind of gradient and a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.core.states import State, wide
from omniset.engine import noise
from omniset.engine.exact import Run
from omniset.engine.group import OneProcess, Processes
from omniset.engine.self_attention import AllElements
from omniset.engine.shards import RecomputedShards, StoredShards
from omniset.engine.stack import Stack
from omniset.engine.stages import JoinedByTokens, Stage, Wrapper, parameters_of, stages_of
from omniset.engine.stores import Store


class Encoding:
    """One encoding of the sets in `parts`.

    Args:
        source: The SetBatch that `parts` are cut from, if they are.
        store: None: recompute.
        gradient: As in `Encoder.forward`.
        process_group: A torch.distributed group.
    """

    def __init__(
        self,
        encoder: Stack,
        source: SetBatch | None,
        parts: Iterable[SetBatch],
        store: Store | None,
        gradient: str = "exact",
        process_group: Any = None,
    ) -> None:
        device, dtype = encoder.place
        self.encoder, self.source, self.parts = encoder, source, parts
        self.group = OneProcess() if process_group is None else Processes(process_group, device)
        first_process = self.group.rank == 0
        stages = stages_of(encoder, device, dtype)
        if encoder.class_tokens is not None:
            stages[0] = JoinedByTokens(stages[0], encoder.class_tokens, here=first_process)
        stages = self._with_noise(stages, device)
        if gradient == "unbiased" and torch.is_grad_enabled():
            stages = [ScaledSums(stage, scale) for scale in [entries_per_entry_of_first(parts)] for stage in stages]
        if gradient in ("first-shard", "unbiased"):
            stages = [FirstShardOnly(stage) for stage in stages]
        if gradient == "first-shard-literal":
            stages[-1] = OthersDetached(stages[-1])
        make: Callable[..., RecomputedShards] = RecomputedShards
        if store is not None:
            make = partial(StoredShards, store=store)
        tokens = encoder.num_tokens if first_process else 0
        self.shards = make(stages, encoder, source, parts, device, tokens)
        self.run = Run(stages, self.shards, self.group)

    def _with_noise(self, stages: list[Stage], device: torch.device) -> list[Stage]:
        seed = noise.draw_seed() if noise.drops_out(self.encoder) else None
        self._common_seed: int | None = None  # of what all processes draw alike
        if isinstance(self.group, Processes):
            facts = partial(self._facts, stages, seed is not None)
            self._common_seed = self.group.agree(facts, noise.draw_seed() if seed is None else seed)
            seed = None if seed is None else self._common_seed
        with self._drawn_alike(device):
            for t, layer in enumerate([*self.encoder.layers, self.encoder.pool]):
                drawn = None if layer is None else layer.draw()
                if drawn is not None:
                    stages[t] = noise.DrawnOnce(stages[t], layer, drawn)
        if seed is None:
            return stages
        return [noise.ReplayedDropout(stage, t, seed, self.group.rank, device) for t, stage in enumerate(stages)]

    def _facts(self, stages: list[Stage], drops_out: bool) -> tuple[int, ...]:
        """What the processes of a group must have in common: omniset.engine.group.FACTS."""
        first = next(iter(self.parts)) if self.source is None else self.source
        parameters = parameters_of(stages)
        leaves = [first.elements, first.multiplicity, *parameters]
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        return len(first), wanted, sum(p.numel() for p in parameters), drops_out

    def _drawn_alike(self, device: torch.device, stage: int = 0) -> AbstractContextManager[None]:
        if self._common_seed is None:
            return nullcontext()
        return noise.seeded(self._common_seed + stage * noise.STRIDE, device)

    def forward(self) -> None:
        self.run.forward()
        tokens = self.shards.token_summary
        if tokens is not None:
            (self.shards.token_summary,) = self.group.sum([tokens], [tokens])

    def backward(
        self, d_summary: Tensor | None, d_elements: Tensor | None, d_contexts: list[Tensor | None], wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None, Sequence[Tensor | None]]:
        """Gradients of the source's elements and multiplicities (where `wanted`) and of the run's parameters."""
        # All processes have the summary and the contexts, and a loss of them: it counts once, as the mean.
        *d_contexts, d_summary = (None if d is None else d / self.group.size for d in (*d_contexts, d_summary))
        d_tokens, tokens = None, self.shards.token_summary
        if tokens is not None:
            (d_tokens,), d_summary = self.group.sum([d_summary], [tokens]), None
        self.shards.start_backward(d_elements, d_tokens, wanted)
        d_parameters = self.run.backward([*d_contexts, d_summary])
        sums = self.group.sum([d_parameters.get(id(p)) for p in self.run.parameters], self.run.parameters)
        return *self.shards.d_source, sums

    @property
    def summary(self) -> Tensor:
        tokens = self.shards.token_summary
        return self.run.contexts[self.shards.last] if tokens is None else tokens

    @property
    def contexts(self) -> list[Any]:
        """One per layer."""
        return [self.run.contexts[t] for t in range(self.shards.last)]

    def decode(self, summary: Tensor) -> Tensor:
        """Alike on all processes."""
        with self._drawn_alike(summary.device, self.shards.last + 1):
            return self.encoder.decoder(summary)


class ExactGradient(torch.autograd.Function):
    """Summary, elements and contexts of an encoding as a function of the source and the parameters."""

    @staticmethod
    def forward(
        ctx: Any, encoding: Encoding, elements: Tensor | None, multiplicity: Tensor | None, *parameters: Tensor
    ):
        ctx.set_materialize_grads(False)
        kind = encoding.shards.device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        encoding.shards.for_backward = True
        encoding.forward()
        ctx.encoding, ctx.parameters = encoding, parameters
        contexts = [c if isinstance(c, Tensor) else None for c in encoding.contexts]
        # What the run keeps must not become part of the graph that leads back to it.
        outputs = encoding.summary, encoding.shards.elements(), *contexts
        return tuple([None if x is None else x.detach() for x in outputs])

    @staticmethod
    def backward(ctx: Any, d_summary: Tensor | None, d_elements: Tensor | None, *d_contexts: Tensor | None):
        kind, dtype, enabled = ctx.autocast
        with torch.no_grad(), torch.autocast(kind, dtype=dtype, enabled=enabled):
            d_source, d_multiplicity, d_parameters = ctx.encoding.backward(
                d_summary, d_elements, list(d_contexts), list(ctx.needs_input_grad[1:3])
            )
        pairs = zip(d_parameters, ctx.parameters, strict=True)
        grads: Any = [d_source, d_multiplicity, *[d if d is None else d.to(p.dtype) for d, p in pairs]]
        if torch.is_grad_enabled():  # they may be differentiated again
            source = ctx.encoding.source
            given = [] if source is None else [source.elements, source.multiplicity]
            given += [*ctx.parameters, *(d for d in (d_summary, d_elements, *d_contexts) if d is not None)]
            grads = [None if g is None else FirstOrder.apply(g, *given) for g in grads]
        return None, *grads


class FirstOrder(torch.autograd.Function):
    """A gradient as it is, which depends on all that is `given`, but cannot be differentiated.

    PyTorch's `once_differentiable` says so only where the gradients that came in depend on something. Those of a plain
    sum do not, and what it returns would pass for a constant: second derivatives would be wrong in silence.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *given: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "the exact gradient of sets in shards cannot be differentiated again: for second derivatives "
            "(create_graph=True) encode the sets whole, as a SetBatch without shard_size"
        )


# Gradients that are not exact, through plain autograd: what a stage does to its gradient on the way up.


def _is_first(i: int) -> bool:
    return i == 0


class FirstShardOnly(Wrapper):
    """No gradient goes through the map or reduce of another shard, nor is a graph made there."""

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        if isinstance(context, AllElements):
            context = replace(context, live=_is_first)
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_first(i)):
            return super().map(i, x, context)

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_first(i)):
            return super().reduce(i, x, m, peak)


class OthersDetached(Wrapper):
    """The pool, where the gradient stops at all shards but the first."""

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        return super().reduce(i, x if _is_first(i) else x.detach(), m, peak)


class ScaledSums(Wrapper):
    """The gradient of each set's sums, (sets,) times as large."""

    def __init__(self, stage: Stage, scale: Float[Tensor, " sets"]) -> None:
        super().__init__(stage)
        self.scale = scale

    def finish(self, state: State | None) -> Tensor | None:
        return super().finish(None if state is None else state.with_gradient_scaled(self.scale))


def entries_per_entry_of_first(parts: Iterable[SetBatch]) -> Float[Tensor, " sets"]:
    """How many present entries each set has for every one of its first shard."""
    counts = [(part.multiplicity > 0).sum(1) for part in parts]
    return wide(sum(counts[1:], counts[0])) / counts[0].clamp(min=1)
