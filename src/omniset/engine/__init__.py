"""Runs an encoder over a source: whole, in shards merged to the whole's result, or in independent shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from omniset.core.private import forward_mode, plain_only, transformed
from omniset.core.sets import SetBatch, cut
from omniset.core.sources import FunctionSource, Source, check_dim, checked
from omniset.engine.encoding import Encoding, ExactGradient
from omniset.engine.group import check_replicated
from omniset.engine.network import in_one_call
from omniset.engine.ragged import in_buckets
from omniset.engine.self_attention import AllElements
from omniset.engine.stack import EncoderOutput, Stack
from omniset.engine.stages import prepend_ones
from omniset.engine.stores import open_store

SHARDS = ("merged", "independent")
AT_ONCE = 1 << 13  # entries of independent shards, and of what is remembered for each, that are read at once
GRADIENTS = ("exact", "first-shard", "first-shard-literal", "unbiased")


def execute(
    encoder: Stack,
    source: SetBatch | Iterable[SetBatch],
    shard_size: int | None,
    shards: str,
    gradient: str,
    store: str,
    process_group: Any = None,
) -> EncoderOutput:
    """See `Encoder.forward`."""
    for name, value, known in (("shards", shards, SHARDS), ("gradient", gradient, GRADIENTS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, got {value!r}")
    if process_group is not None:
        _check_for_group(encoder, shards, gradient)
    opened = open_store(store)
    batch = source if isinstance(source, SetBatch) else None
    if batch is not None:
        check_dim(batch, encoder.input_dim)
        parts: Iterable[SetBatch] = [batch] if shard_size is None else batch.shards(shard_size)
    elif isinstance(source, Iterator) or not isinstance(source, Iterable):
        raise TypeError(
            f"source must be a SetBatch or something that can be read more than once and gives SetBatch shards, "
            f"got {type(source).__name__}"
        )
    elif shard_size is not None:
        raise ValueError(f"shard_size={shard_size} is for a SetBatch: this source comes in shards already")
    else:
        parts = checked(source, encoder.input_dim, gradient == "exact" and torch.is_grad_enabled())
    if shards == "independent":
        if gradient == "unbiased":
            raise ValueError("gradient='unbiased' is for shards='merged': independent shards have no sums in common")
        if batch is not None and shard_size is not None:
            parts = _runs(batch, shard_size, encoder.memory if encoder.recurrent else 0, gradient)
        return _independent(encoder, batch, parts, gradient, shard_size)
    if isinstance(parts, list) and len(parts) == 1 and process_group is None:
        return in_buckets(encoder, parts[0], _whole)
    if not encoder.mini_batch_consistent:
        raise ValueError(
            f"{type(encoder).__name__} is not mini-batch consistent: shards='merged' does not exist for it, "
            "use shards='independent'"
        )
    if store.partition(":")[0] in ("disk", "recompute") and any(layer.keeps_elements for layer in encoder.layers):
        raise ValueError(f"full self-attention streams from store='device' or 'cpu', got {store!r}")
    if forward_mode():
        raise ValueError("sets in shards have no forward mode: encode them whole, as a SetBatch without shard_size")
    if transformed() and gradient == "exact" and torch.is_grad_enabled():
        raise ValueError(
            "torch.func cannot transform the exact gradient of sets in shards: encode them whole, as a SetBatch "
            "without shard_size, or, where no gradient is wanted, under torch.no_grad()"
        )
    if gradient == "first-shard-literal" and encoder.pool is None:
        raise ValueError("gradient='first-shard-literal' stops gradients at the pool, and class tokens take its place")
    if gradient == "unbiased":
        _check_sums(encoder)
    encoding = Encoding(encoder, batch, parts, opened, gradient, process_group)
    if gradient == "exact" and torch.is_grad_enabled():
        return _exact(encoding)
    encoding.forward()
    return _output(encoding, encoding.summary, encoding.shards.elements(), encoding.contexts)


def contextualize(encoder: Stack, batch: SetBatch, contexts: list[Any] | None) -> Float[Tensor, "sets elements dim"]:
    """See `Encoder.contextualize`."""
    check_dim(batch, encoder.input_dim)
    if not encoder.outputs_elements:
        raise ValueError(f"{type(encoder).__name__} has no outputs of elements, and so none in the context of a set")
    if contexts is None:
        raise ValueError("contexts is None: shards='independent' leaves none")
    if len(contexts) != len(encoder.layers):
        raise ValueError(
            f"{type(encoder).__name__} has {len(encoder.layers)} contexts for elements, got {len(contexts)}"
        )
    for context in contexts:
        sets = len(context if isinstance(context, Tensor) else next(iter(context.read()))[1])
        if sets != len(batch):
            raise ValueError(f"contexts are of {sets} sets, and batch has {len(batch)}")
    device, dtype = encoder.place
    x = encoder.embed(batch.elements.to(device, dtype))
    layers: list[Any] = [*encoder.layers]
    for layer, context in zip(layers, contexts, strict=True):
        x = layer.map(x, context)
    return torch.where(batch.multiplicity.to(x.device)[..., None] > 0, x, 0)


def _check_for_group(encoder: Stack, shards: str, gradient: str) -> None:
    for name, value, only in (("shards", shards, "merged"), ("gradient", gradient, "exact")):
        if value != only:
            raise ValueError(f"process_group= takes {name}={only!r} only, got {value!r}")
    if any(layer.keeps_elements for layer in encoder.layers):
        raise ValueError(
            f"process_group= merges small states, and full self-attention ({type(encoder).__name__}) keeps all "
            "elements: encode the set in one process, or take induced attention, as encoder 'ust' has it"
        )
    if not encoder.mini_batch_consistent:
        raise ValueError(f"process_group= needs a mini-batch consistent encoder, and {type(encoder).__name__} is not")
    check_replicated(encoder)


def _check_sums(encoder: Stack) -> None:
    if encoder.pool is None:
        raise ValueError("gradient='unbiased' scales what a pool sums up, and class tokens take its place")
    if any(layer.keeps_elements for layer in encoder.layers):
        raise ValueError(
            f"gradient='unbiased' scales the sums of a layer, and full self-attention ({type(encoder).__name__}) "
            "has none of the whole set"
        )


def _whole(encoder: Stack, batch: SetBatch) -> EncoderOutput:
    """Under plain autograd: a layer sees all elements, and no state of it is asked for."""
    device, dtype = encoder.place
    x = encoder.embed(batch.elements.to(device, dtype))
    present = batch.multiplicity.to(device)
    tokens = encoder.num_tokens
    if encoder.class_tokens is not None:
        x = torch.cat([encoder.class_tokens.expand(x.shape[0], -1, -1), x], 1)
    m = prepend_ones(tokens, present)
    once = not (plain_only() or present.requires_grad) and batch.presence.once
    seen = None if once else m  # without a mask attention is faster
    contexts: list[Any] = []
    layers: list[Any] = [*encoder.layers]
    summary: Any = None
    done = None
    if not plain_only() and x.numel():
        done = in_one_call(encoder, x, seen, () if once else (batch.presence.lengths + tokens).clip(1).tolist())
    if done is not None:
        x, contexts, summary = done
    for layer in layers[len(contexts) :]:
        if layer.keeps_elements:
            contexts.append(AllElements(partial(iter, [(0, x, m)])))
            x = layer(x, seen)
        else:
            x, context = layer.mapped(x, seen)
            contexts.append(context.to(dtype))
    pool: Any = encoder.pool
    if summary is None:
        summary = x[:, :tokens] if pool is None else pool.context(x, seen).to(dtype)
    elements = None
    if encoder.outputs_elements:
        x = x[:, tokens:]
        elements = (x if once else torch.where(present[..., None] > 0, x, 0)).to(batch.elements.device)
    return EncoderOutput(elements, encoder.decoder(summary), contexts)


def _exact(encoding: Encoding) -> EncoderOutput:
    source = encoding.source
    leaves = (None, None) if source is None else (source.elements, source.multiplicity)
    summary, elements, *contexts = ExactGradient.apply(encoding, *leaves, *encoding.run.parameters)
    contexts = [elements if c is None else c for c, elements in zip(contexts, encoding.contexts, strict=True)]
    return _output(encoding, summary, elements, contexts)


def _output(encoding: Encoding, summary: Tensor, elements: Any, contexts: list[Any]) -> EncoderOutput:
    encoder = encoding.encoder
    contexts = [AllElements(c.read) if isinstance(c, AllElements) else c for c in contexts]
    if not encoder.outputs_elements:
        elements = None
    elif encoding.source is None:
        frozen = [c.detach() if isinstance(c, Tensor) else c for c in contexts]
        elements = _elements_of(encoder, encoding.parts, frozen)
    return EncoderOutput(elements, encoding.decode(summary), contexts)


def _elements_of(encoder: Stack, parts: Iterable[SetBatch], contexts: list[Any] | None) -> Source:
    """The element outputs of a source: it is read anew, shard by shard, whenever they are read."""

    @torch.no_grad()
    def outputs(shard: SetBatch, memory: Any) -> tuple[Any, Any]:
        if contexts is not None:
            return contextualize(encoder, shard, contexts), None
        _, elements, memory = _alone(encoder, shard.elements, shard.multiplicity, memory)
        return elements, memory

    def shards() -> Iterator[SetBatch]:
        memory: Any = None
        for shard in checked(parts, encoder.input_dim):
            elements, memory = outputs(shard, memory)
            yield SetBatch(elements, shard.multiplicity, validate=False)

    return FunctionSource(shards)


def _runs(batch: SetBatch, size: int, memory: Any, gradient: str) -> Iterator[SetBatch]:
    """Some shards in a row, which are read at once; the first by itself, where the gradient goes no further."""
    first = 0 if gradient == "exact" else size
    if first:
        yield SetBatch(batch.elements[:, :first], batch.multiplicity[:, :first], validate=False)
    rest = SetBatch(batch.elements[:, first:], batch.multiplicity[:, first:], validate=False)
    if not first or rest.elements.shape[1]:
        yield from rest.shards(size * max(AT_ONCE // (max(len(batch), 1) * (size + memory)), 1))


def _independent(
    encoder: Stack, batch: SetBatch | None, shards: Iterable[SetBatch], gradient: str, size: int | None
) -> EncoderOutput:
    """Each shard as a set of its own; the mean of the summaries over those shards in which a set has elements.

    Args:
        shards: Of `size` entries, or several in a row, which are read at once.
    """
    total: Any = 0
    count: Any = 0
    first: Any = None
    pieces: list[Tensor] = []
    memory: Any = None
    encode: Any = partial(_alone, encoder, size=size)
    for i, shard in enumerate(shards):
        with torch.set_grad_enabled(torch.is_grad_enabled() and (gradient == "exact" or i == 0)):
            # Recomputed in the backward, so that only one shard's graph exists at a time; torch.func cannot do that.
            again = partial(checkpoint, encode, use_reentrant=False)
            run = encode if transformed() else again
            summaries, elements, memory = run(shard.elements, shard.multiplicity, memory)
        segments = cut(shard.multiplicity, size or max(shard.elements.shape[1], 1))
        present = (segments > 0).any(2).to(summaries.device)[..., None, None]
        total, count = total + torch.where(present, summaries, 0).sum(1), count + present.int().sum(1)
        first = summaries[:, 0] if first is None else first
        if batch is not None and elements is not None:
            pieces.append(elements)
    mean = torch.where(count > 0, total / count.clamp(min=1), first)
    if batch is None and encoder.outputs_elements:
        return EncoderOutput(_elements_of(encoder, shards, None), mean, None)
    return EncoderOutput(torch.cat(pieces, 1) if pieces else None, mean, None)


def _alone(
    encoder: Stack, elements: Tensor, multiplicity: Tensor, memory: Any, size: int | None = None
) -> tuple[Tensor, Tensor | None, Any]:
    """Shards as sets of their own, but for the memory of an encoder that has one: (sets, shards, outputs, dim)
    summaries, elements, memory.
    """
    number = elements.shape[1]
    size = max(min(size or number, number), 1)
    if encoder.recurrent:
        return encoder.segments(SetBatch(elements, multiplicity, validate=False), size, memory)
    x, m = cut(elements, size), cut(multiplicity, size)
    out = _whole(encoder, SetBatch(x.flatten(0, 1), m.flatten(0, 1), validate=False))
    summaries = out.summary.unflatten(0, m.shape[:2])
    if out.elements is None:
        return summaries, None, None
    assert isinstance(out.elements, Tensor)
    return summaries, out.elements.unflatten(0, m.shape[:2]).flatten(1, 2)[:, :number], None
