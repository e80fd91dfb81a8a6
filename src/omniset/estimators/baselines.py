"""What a model of sets is compared with: simple methods, fitted on the sets that it was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from omniset.core.sets import batched
from omniset.core.stored import StoredSet
from omniset.estimators.stack import BASELINES, PRIOR, Stack
from omniset.runs.devices import find
from omniset.trials.comparison import OURS

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

__all__ = ["BASELINES", "as_table", "by_method"]


def by_method(model: SetEstimator, sets: Iterable[StoredSet]) -> dict[str, pd.DataFrame]:
    """What ours and every method beside it say of sets: tables with the columns of `predict_table`.

    A mixture has its own methods beside it, one method the simple ones that were fitted with it. The prior alone is
    there for labels of elements, and beside models that learned from too much to be pooled.
    """
    stored = list(sets)
    fitted = model.fitted()
    if isinstance(fitted, Stack):
        beside = [name for name in fitted.METHODS if fitted.has(name) and name != model.alone]
        answers: dict[str, list[Float64[np.ndarray, "sets outputs"]]] = {name: [] for name in (OURS, *beside)}
        for group in batched(stored, model.together, model.max_elements):
            each = fitted.predictions(group, find(model.device), **model.reading())
            answers[OURS].append(fitted.mixed(each).exp().numpy() if model.classifies else fitted.mixed(each).numpy())
            for name in beside:
                answers[name].append(each[name])
        return {name: as_table(model, stored, np.concatenate(parts)) for name, parts in answers.items()}
    ours = pd.concat(model.predictions(stored), ignore_index=True)
    tables = {OURS: ours}
    if model.simple_ is None:
        return tables | {PRIOR: model.constant(len(ours))}
    simple = [
        model.simple_.predictions(group, find(model.device)) for group in batched(stored, model.together, 1 << 62)
    ]
    for name in simple[0]:
        tables[name] = as_table(model, stored, np.concatenate([each[name] for each in simple]))
    return tables


def as_table(
    model: SetEstimator, sets: Iterable[StoredSet], answers: Float64[np.ndarray, "sets outputs"]
) -> pd.DataFrame:
    """Probabilities, or numbers in their own units, as `predict_table` shows them."""
    names = [stored.name for stored in sets]
    return pd.DataFrame({"set": names, **model.columns(torch.from_numpy(answers))})
