"""Sets as vectors: the summaries of a model's networks, or what its simple method looks at. What they mean is said by
`SetModel.transform`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32

from omniset.core.sets import batched
from omniset.core.sources import Source, source_of
from omniset.core.stored import StoredSet
from omniset.estimators import pooling
from omniset.estimators.stack import NETWORKS, Stack
from omniset.runs.devices import find
from omniset.runs.finite import require_finite_outputs
from omniset.training.network import SetNetwork

if TYPE_CHECKING:
    from omniset.estimators.model import SetModel

LITTLE = 0.1  # weight of a mixture's networks together


def check(model: SetModel) -> None:
    """Raise the ValueError of a model that has no vectors of sets."""
    model.require_fitted()
    if model.level == "element":
        raise ValueError("transform is for level='set': a model of elements has learned no summary of a set")


def networks_of(model: SetModel) -> list[tuple[str, SetNetwork]]:
    """The networks whose summaries the vectors are, with the names of their columns in front of the axis."""
    fitted = model.fitted()
    if isinstance(fitted, SetNetwork):
        return [(str(model.single), fitted)]
    networks: Any = fitted.networks
    return [(f"{name}_{i}", network) for name in NETWORKS for i, network in enumerate(networks[name], 1)]


def names(model: SetModel) -> list[str]:
    """Of the numbers of a vector."""
    check(model)
    if model.alone is not None:
        return _seen(model, model.alone)
    return [f"{name}_{axis}" for name, network in networks_of(model) for axis in range(1, network.summary_dim + 1)]


def of(
    model: SetModel, sets: Iterable[StoredSet]
) -> Iterator[tuple[list[StoredSet], Float32[np.ndarray, "sets width"]]]:
    """The sets as they come, some at a time, with their vectors."""
    check(model)
    fitted = model.fitted()
    if isinstance(fitted, Stack) and model.alone is not None:
        for group in batched(sets, model.together, model.max_elements):
            yield group, fitted.seen(model.alone, group).astype(np.float32)
        return
    _warn(model)
    networks = [network for _, network in networks_of(model)]
    for group in batched(sets, model.together, model.max_elements):
        summaries = [_summaries(model, network, group) for network in networks]
        yield group, np.concatenate(summaries, 1) / np.float32(math.sqrt(len(networks)))


def _seen(model: SetModel, name: str) -> list[str]:
    """Names of the columns that a simple method looks at."""
    fitted: Any = model.fitted()
    features = model.features_ or [f"feature {number}" for number in range(1, fitted.input_dim + 1)]
    if fitted.sees_pooled(name):
        of_table = pooling.names_of(features)
    else:
        number = fitted.number_of_references
        of_table = [f"{way} reference {k}" for way in ("to", "from") for k in range(1, number + 1)]
        of_table = of_table or ["no reference"]  # all sets of training were empty
    return of_table[fitted.MEMBERS[name].columns(len(of_table))]


def _summaries(model: SetModel, network: SetNetwork, group: list[StoredSet]) -> Float32[np.ndarray, "sets width"]:
    device = find(model.device)
    source = source_of(group, model.max_elements, model.shard_size)
    options = {name: value for name, value in model.reading().items() if name != "max_elements"}
    network.to(device).eval()
    with torch.no_grad():
        out = network.summary(source if isinstance(source, Source) else source.to(device), **options).cpu()
    network.to("cpu")
    require_finite_outputs(out, [stored.name for stored in group], "set")
    return out.numpy()


def _warn(model: SetModel) -> None:
    """Of vectors that tell little of what a mixture predicts."""
    fitted = model.fitted()
    if not isinstance(fitted, Stack):
        return
    weight = sum(fitted.weights_of(0)[name] for name in NETWORKS)
    if weight < LITTLE:
        warnings.warn(
            f"the mixture gives its networks a weight of {weight:.2f}: vectors of sets are those of its networks, "
            "which decide little of the prediction",
            stacklevel=4,
        )
