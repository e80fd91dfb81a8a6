"""Second derivatives of what has its first ones written out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def derived(
    function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor | None, ...], upstream: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Gradients of the inputs that can themselves be differentiated; None of what needs none."""
    # An input may come from another one: what is wanted ends at views of them.
    views = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x in views if x is not None and x.requires_grad]
    gradients = iter(torch.autograd.grad(function(*views), wanted, upstream, create_graph=True, allow_unused=True))
    return [next(gradients) if x is not None and x.requires_grad else None for x in views]
