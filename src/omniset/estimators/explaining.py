"""Which elements drove a prediction of a model of sets: attribution of its network, or of some networks of a mixture,
or what changes where an element is left out (`omniset.estimators.removal`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from omniset import explain
from omniset.core.sets import SetBatch, batched
from omniset.core.sources import source_of
from omniset.core.stored import StoredSet
from omniset.estimators import removal
from omniset.estimators.stack import INTERPLAY, Stack
from omniset.explain import LayerAttribution
from omniset.runs.devices import find, threads_for
from omniset.training.network import SetNetwork

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

EXPLAINED = 4  # networks of a mixture, of which scores are the mean
LITTLE = 0.1  # weight of these in a mixture

Method = Literal["auto", "attribution", "contrast", "attention", "removal"]


def chosen(model: SetEstimator, method: Method) -> Method:
    """What "auto" is: attribution where a network attends to elements, else removal."""
    if method != "auto":
        return method
    return "attribution" if any(map(explain.attends, networks_of(model))) else "removal"


def check(model: SetEstimator, target: Any = None, method: Method = "auto") -> None:
    """Raise the ValueError that `scores` would, where that can be said without sets."""
    if model.level == "element":
        raise ValueError("explain is for level='set': what drives the prediction of one element is not attributed")
    method = chosen(model, method)
    if method != "removal" and not any(map(explain.attends, networks_of(model))):
        what = f"encoder {model.single!r}" if model.alone is None else f"method {model.alone!r}"
        raise ValueError(f"{what} has no attention over the elements of sets, for method={method!r}: take 'removal'")
    if target is not None:
        model.output_of(target)


def networks_of(model: SetEstimator) -> list[SetNetwork]:
    """The networks that are explained."""
    fitted = model.fitted()
    if isinstance(fitted, SetNetwork):
        return [fitted]
    if INTERPLAY not in fitted.networks:
        return []
    networks: Any = fitted.networks[INTERPLAY]
    return [*networks[:EXPLAINED]]


def scores(
    model: SetEstimator,
    sets: Any,
    target: Any,
    steps: int,
    method: Method,
    per: Literal["element", "copy"],
) -> list[Float[np.ndarray, " _"]]:
    """See `SetEstimator.explain`."""
    check(model, target, method)
    method = chosen(model, method)
    if method == "removal":
        collection = model.read(sets)
        return [removal.scores(model, collection[i], target, per) for i in range(len(collection))]
    _warn(model)
    each: list[np.ndarray] = []
    for group, source, options in _to_explain(model, sets):
        explained = model.explained(group, target)
        of_networks = []
        with threads_for(sum(map(len, group)) * model.n_features_in_):
            for network in networks_of(model):
                network.to(find(model.device)).eval()
                if method == "attention":
                    of_networks.append(explain.attention(network, source, per=per, **options))
                else:
                    how: dict[str, Any] = {"per": per, "baseline": "equal" if method == "contrast" else "zero"}
                    of_networks.append(explain.attribute(network, source, explained, steps, **how, **options))
                network.to("cpu")
        mean = torch.stack(of_networks).mean(0)
        if len(of_networks) > 1:
            mean = mean / mean.amax(1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
        each += [mean[row, : len(stored)].cpu().numpy() for row, stored in enumerate(group)]
    return each


def layers(model: SetEstimator, sets: Any, target: Any, steps: int) -> list[LayerAttribution]:
    """See `SetEstimator.explain_layers`."""
    check(model, target, "attribution")
    ((group, source, options),) = _to_explain(model, sets)
    network = networks_of(model)[0].to(find(model.device)).eval()
    attributed = explain.attribute_layers(network, source, model.explained(group, target), steps, **options)
    network.to("cpu")
    return attributed


def _to_explain(model: SetEstimator, sets: Any) -> Iterator[tuple[Sequence[StoredSet], Any, dict[str, Any]]]:
    """Sets, what a network reads of them, and how; sets above max_elements in shards, from disk."""
    network = networks_of(model)[0]
    for group in batched(model.read(sets), model.together, model.max_elements):
        source = source_of(group, model.max_elements)
        large = not isinstance(source, SetBatch)
        if large and not network.encoder.mini_batch_consistent:
            raise ValueError(
                f"set {group[0].name!r} has {len(group[0])} elements, more than max_elements={model.max_elements}, and "
                f"encoder {model.single!r} cannot read it in shards"
            )
        options = {"store": network.store_of_large({})} if large else {}
        yield group, source.to(find(model.device)), options


def _warn(model: SetEstimator) -> None:
    """Of scores that explain what counts little."""
    if (share := share_explained(model)) is not None and share < LITTLE:
        warnings.warn(
            f"the mixture gives {INTERPLAY} a weight of {share:.2f}: scores of elements are those of its networks, "
            "which decide little of the prediction; method='removal' explains all of it",
            stacklevel=4,
        )


def share_explained(model: SetEstimator) -> float | None:
    """The weight, for the first target, of the methods of a mixture that attribution explains; None: all of it."""
    fitted = model.fitted()
    if not isinstance(fitted, Stack) or INTERPLAY not in fitted.networks:
        return None
    return fitted.weights_of(0)[INTERPLAY]
