"""Networks of the user's own that turn elements into features: of image tiles, signals, texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.checks import check_sizes

BATCH_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
)


class RowWise(nn.Module):
    """A module on rows, applied to each element: the rows of all sets of a shard are one batch of it.

    What the module makes of a row must depend on this row alone, or a shard is no longer a part of the whole. Batch
    normalization mixes rows and is refused; group and layer normalization do not. The backward through shards computes
    the module again: of what is random in training, only PyTorch's dropout modules are replayed, and a forward must
    leave no trace in buffers. Absent entries are rows of 0, of which the module must make finite features; they have no
    effect.

    Args:
        module: (n, input_dim) to (n, dim).
        input_dim: Features of an element, such as channels * height * width of a tile.
        dim: Width of the encoder.

    Raises:
        TypeError: No module.
        ValueError: Batch normalization; rows of input_dim that the module does not take, or does not turn into dim
            features.

    >>> rows = RowWise(nn.Sequential(nn.Unflatten(1, (1, 5, 5)), nn.Conv2d(1, 7, 5), nn.Flatten()), 25, 7)
    >>> rows(torch.zeros(2, 3, 25)).shape
    torch.Size([2, 3, 7])
    """

    def __init__(self, module: nn.Module, input_dim: int, dim: int) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, dim=dim)
        if not isinstance(module, nn.Module):
            raise TypeError(f"embed must be a torch.nn.Module, got {type(module).__name__}")
        for name, part in module.named_modules():
            if isinstance(part, BATCH_NORMS):
                raise ValueError(
                    f"embed must treat each element by itself, and {type(part).__name__} ({name or 'embed itself'}) "
                    "normalises over the batch: take GroupNorm or LayerNorm, or batch normalization with frozen "
                    "statistics, as torchvision.ops.FrozenBatchNorm2d"
                )
        self.module, self.dim = module, dim
        _check_shapes(module, input_dim, dim)

    def forward(self, x: Float[Tensor, "*batch input_dim"]) -> Float[Tensor, "*batch dim"]:
        rows = x.flatten(0, -2)
        if not len(rows):  # which not every module takes
            return x.new_zeros(*x.shape[:-1], self.dim)
        return self.module(rows).unflatten(0, x.shape[:-1])


def _check_shapes(module: nn.Module, input_dim: int, dim: int) -> None:
    weight = next(module.parameters(), torch.zeros(()))
    try:
        with torch.no_grad(), _in_eval(module):
            made = module(torch.zeros(2, input_dim, dtype=weight.dtype, device=weight.device))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(f"embed does not take rows of input_dim={input_dim} features: {error}") from error
    shape = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
    if shape != (2, dim):
        raise ValueError(f"embed must make rows of dim={dim} features, (2, {dim}) of (2, {input_dim}), got {shape}")


@contextmanager
def _in_eval(module: nn.Module) -> Iterator[None]:
    """Without dropout, and no running statistics change."""
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, was in training.items():
            part.training = was
