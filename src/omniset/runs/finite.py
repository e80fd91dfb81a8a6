"""The gate that numbers pass in training, saving, loading and predicting: none is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def require_finite(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]], where: str, advice: str = "") -> None:
    """See that tensors have neither NaN nor infinities.

    Args:
        tensors: By name.
        where: What the error begins with.
        advice: What it ends with.
    """
    for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{where}: {name} holds {_first(tensor.detach().cpu().numpy())}{advice}")


def require_finite_outputs(outputs: Tensor | np.ndarray, names: Sequence[Any], what: str) -> None:
    """See that a model's outputs are numbers.

    Args:
        outputs: One or more for each name, along the first axis.
        names: Of what they are the outputs of.
        what: What the names name, such as "set".
    """
    values = outputs.detach().cpu().numpy() if isinstance(outputs, Tensor) else np.asarray(outputs)
    bad = ~np.isfinite(values).all(tuple(range(1, values.ndim)))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{what} {names[row]!r}: the model's output is {_first(values[row])}, it must be finite: the values are "
            "far from those that the model was fitted on, or its fit was not sound"
        )


def check_training(loss: Tensor, epoch: int, step: int, learning_rate: float) -> None:
    """See that a step's loss is a number.

    Raises:
        ValueError: It is not; with the epoch and the step, from 1, and what to try.
    """
    if not bool(torch.isfinite(loss).all()):
        raise ValueError(f"{_diverged(float(loss), 'the loss', epoch)}, step {step}{advice(learning_rate)}")


def check_epoch(
    losses: Mapping[str, float], parameters: Iterable[tuple[str, Tensor]], epoch: int, learning_rate: float
) -> None:
    """See that the losses and the weights of an epoch are numbers. Raises and arguments: as `check_training`."""
    for name, value in losses.items():
        if not np.isfinite(value):
            raise ValueError(_diverged(value, name, epoch) + advice(learning_rate))
    require_finite(parameters, f"the training diverged in epoch {epoch}", advice(learning_rate))


def advice(learning_rate: float) -> str:
    return f"; try a smaller learning rate (it was {learning_rate:g}), and look for features far larger than the others"


def _diverged(value: float, name: str, epoch: int) -> str:
    return f"the training diverged: {name} was {value:g} in epoch {epoch}"


def _first(values: np.ndarray) -> str:
    return f"{values[~np.isfinite(values)].flat[0]:g}"
