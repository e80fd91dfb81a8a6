"""Which elements drive a prediction, of any model: what changes where an element is not there.

For a model f, a set X and the output that is explained,

    score of i = max(f(X) - f(X without i), 0) / the largest of these

X without i is X with multiplicity 0 of i: all its copies are gone, or with per="copy" one of them. f is the logarithm
of the probability of a class, or the number, or log relative risk, that is predicted. Where no element alone changes
anything, all scores are 0: one of many like ones can be spared. It is the leave-one-out of Li, Monroe and Jurafsky,
"Understanding neural networks through representation erasure" (2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from omniset.core.stored import StoredSet

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

TOGETHER = 64  # sets without an element that are made at once
MOST = 1 << 29  # numbers in a set, times its elements, up to which they are left out one by one


def scores(model: SetEstimator, stored: StoredSet, target: Any, per: str) -> Float64[np.ndarray, " elements"]:
    """Scores of the elements of a set from 0 to 1.

    Args:
        target: As for `SetEstimator.explain`.
        per: "element" or "copy".

    Raises:
        ValueError: A set so large that this would take hours.
    """
    elements, counts = stored.read()
    size, dim = elements.shape
    if size**2 * dim > MOST:
        most = int((MOST / max(dim, 1)) ** 0.5)
        raise ValueError(
            f"set {stored.name!r} has {size:,} elements: leaving out each in turn takes too long above {most:,} of "
            f"{dim:,} features; a network, such as method='ust', is explained by attribution"
        )
    there = torch.nonzero(counts > 0)[:, 0]
    if not len(there):
        return np.zeros(size)
    output = model.explained([stored], target)
    output = int(output[0]) if isinstance(output, Tensor) else int(output)
    drops = np.zeros(size)
    before = _said(model, [stored], output)[0]
    for some in there.split(TOGETHER):
        drops[some.numpy()] = before - _said(model, [*_without(stored, elements, counts, some, per)], output)
    drops = np.maximum(drops, 0.0)
    return drops / max(float(drops.max()), np.finfo(np.float64).tiny)


def _without(stored: StoredSet, elements: Tensor, counts: Tensor, some: Tensor, per: str) -> Iterator[StoredSet]:
    for i in some.tolist():
        fewer = counts.clone()
        fewer[i] = max(float(counts[i]) - 1, 0.0) if per == "copy" else 0.0
        yield StoredSet(elements, fewer, 0, len(elements), stored.name)


def _said(model: SetEstimator, sets: list[StoredSet], output: int) -> Float[np.ndarray, " sets"]:
    """The output that is explained: logarithms of probabilities, or numbers."""
    outputs = torch.cat([some for _, parts in model.outputs(sets) for some in parts]).double()
    if model.classifies:
        outputs = torch.cat([part.log_softmax(1) for part in model.fitted().split(outputs)], 1)
    return outputs[:, output].numpy()
