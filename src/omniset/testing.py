"""Public assertions: does a model on sets respect what a set is? Use them on models of your own.

A model is anything that can be called with a SetBatch (and, for shards, `shard_size`) and returns a tensor with one
row per set, or an object with `summary` and `elements` (an encoder's output). Every assertion raises AssertionError
with the relative error it found: the norm of the difference over the norm of the reference, all sets together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.sets import SetBatch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Relative error that rounding explains, per dtype."""


def relative_error(got: Tensor | Sequence[Tensor], reference: Tensor | Sequence[Tensor]) -> float:
    """||got - reference|| / ||reference|| in float64, over all tensors together; 0 / 0 is 0."""
    pairs = zip(*([t] if isinstance(t, Tensor) else t for t in (got, reference)), strict=True)
    off, norm = 0.0, 0.0
    for a, b in pairs:
        off += float((a.detach().double() - b.detach().double()).square().sum())
        norm += float(b.detach().double().square().sum())
    return (off / norm) ** 0.5 if norm else off**0.5


def assert_permutation_invariant(
    model: Callable[..., Any], batch: SetBatch, *, tolerance: float | None = None, seed: int = 0
) -> None:
    """The order of the elements does not change what is said of the set."""
    _, shuffled = _shuffled(batch, seed)
    _compare(_summary(model(shuffled)), _summary(model(batch)), tolerance, "permutation invariant")


def assert_permutation_equivariant(
    model: Callable[..., Any], batch: SetBatch, *, tolerance: float | None = None, seed: int = 0
) -> None:
    """Permuted elements give permuted element outputs."""
    order, shuffled = _shuffled(batch, seed)
    _compare(_elements(model(shuffled)), _elements(model(batch))[:, order], tolerance, "permutation equivariant")


def assert_shard_consistent(
    model: Callable[..., Any],
    batch: SetBatch,
    *,
    shard_sizes: Sequence[int] = (1, 7, 64),
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Shards give what the whole set gives: for summaries, and for element outputs where there are any.

    Args:
        **options: Passed on with `shard_size`, such as `store`.
    """
    whole = model(batch)
    for size in shard_sizes:
        parts = model(batch, shard_size=size, **options)
        _compare(_summary(parts), _summary(whole), tolerance, f"shard consistent at shard_size={size}")
        if getattr(whole, "elements", None) is not None:
            what = f"shard consistent in its element outputs at shard_size={size}"
            _compare(_elements(parts), _elements(whole), tolerance, what)


def assert_multiset_consistent(
    model: Callable[..., Any], batch: SetBatch, *, copies: int = 3, tolerance: float | None = None, seed: int = 0
) -> None:
    """A multiplicity of m gives what m physical copies give. Draws multiplicities 0 to `copies` for the elements."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, copies + 1, batch.multiplicity.shape, generator=generator)
    counts = counts.to(batch.elements.device) * (batch.multiplicity > 0)
    repeated = [e.repeat_interleave(c, 0) for e, c in zip(batch.elements, counts, strict=True)]
    counted = SetBatch(batch.elements, counts)
    ours, copied = model(counted), model(SetBatch.from_ragged(repeated))
    _compare(_summary(ours), _summary(copied), tolerance, "multiset consistent")
    if getattr(ours, "elements", None) is not None:
        spread = [e.repeat_interleave(c, 0) for e, c in zip(_elements(ours), counts, strict=True)]
        reference = [e[: len(s)] for e, s in zip(_elements(copied), spread, strict=True)]
        _compare(torch.cat(spread), torch.cat(reference), tolerance, "multiset consistent in its element outputs")


def _shuffled(batch: SetBatch, seed: int) -> tuple[Tensor, SetBatch]:
    order = torch.randperm(batch.elements.shape[1], generator=torch.Generator().manual_seed(seed))
    order = order.to(batch.elements.device)
    return order, SetBatch(batch.elements[:, order], batch.multiplicity[:, order])


def _summary(out: Any) -> Float[Tensor, "sets ..."]:
    return out if isinstance(out, Tensor) else out.summary


def _elements(out: Any) -> Float[Tensor, "sets elements dim"]:
    elements = out if isinstance(out, Tensor) else out.elements
    if elements is None:
        raise ValueError("the model has no element outputs")
    return elements


def _compare(got: Tensor, reference: Tensor, tolerance: float | None, what: str) -> None:
    if got.shape != reference.shape:
        raise AssertionError(f"not {what}: shapes {tuple(got.shape)} and {tuple(reference.shape)} differ")
    tolerance = TOLERANCE[reference.dtype] if tolerance is None else tolerance
    error = relative_error(got, reference)
    if not error <= tolerance:
        raise AssertionError(f"not {what}: relative error {error:.2e}, allowed {tolerance:.0e}")
