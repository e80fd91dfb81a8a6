"""A few sets worth a look, with what drove their prediction: for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int, Real, Shaped

from omniset import explain
from omniset.core.sets import Sets
from omniset.estimators.explaining import chosen
from omniset.trials.outcomes import Outcome

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator
    from omniset.estimators.evaluation import Evaluation

CHEAP = 1 << 25  # numbers in a set, times its elements, up to which elements are left out one by one


def examples(
    model: SetEstimator,
    sets: Sets,
    which: Int[np.ndarray, " chosen"],
    evaluation: Evaluation | None,
    truth: Shaped[np.ndarray, "sets targets"],
) -> list[Any]:
    """Attributions of a few of these sets, where there are any to be had, as `omniset.report.sets.Example`.

    Args:
        which: Positions of the sets in the rows of the evaluation.
    """
    from omniset.report.sets import Example

    if evaluation is None or not evaluation.outcomes or model.level != "set":
        return []
    explained = []
    for i in dict.fromkeys(which[telling(evaluation.outcomes[0])].tolist()):
        stored = sets[i]
        if len(stored) > model.max_elements:  # takes long
            continue
        if chosen(model, "auto") == "attribution":
            layers = model.explain_layers([stored])
            scores = explain.combine(layers)[0].cpu().numpy()
        elif len(stored) ** 2 * sets.dim <= CHEAP:
            layers, scores = [], model.explain([stored], method="removal")[0]
        else:
            continue
        largest = max((float(layer.scores.max()) for layer in layers if len(stored)), default=0.0)
        frame = next(iter(model.predictions([stored])))
        elements, counts = stored.read()
        explained.append(
            Example(
                set=str(stored.name),
                predicted=frame[model.targets_[0]].iloc[0],
                truth=truth[i, 0],
                elements=[str(e) for e in stored.names_of_elements()],
                multiplicity=_whole(counts.double().numpy()),
                scores=scores.astype(np.float64),
                features={f: elements[:, j].double().numpy() for j, f in enumerate(sets.features or [])},
                layers={a.layer: a.scores[0].double().cpu().numpy() / (largest or 1.0) for a in layers},
                gaps={a.layer: gap for a, gap in zip(layers, _gaps(layers), strict=True)},
            )
        )
    return explained


def _gaps(layers: list[explain.LayerAttribution]) -> list[float]:
    return explain.completeness(layers).tolist() if layers else []


def telling(outcome: Outcome) -> list[int]:
    """Rows worth a look: the surest right and the surest wrong class, and the least sure; or the least, the median and
    the largest error, or risk.
    """
    rows = np.arange(len(outcome.truth))
    if outcome.probabilities is None:
        error = np.abs(outcome.truth - outcome.predicted)
        order = np.argsort(error if outcome.events is None else outcome.predicted, kind="stable")
        return list(dict.fromkeys(int(order[i]) for i in (0, len(order) // 2, -1)))
    sure = outcome.probabilities.max(1)
    right = outcome.truth == outcome.predicted
    surest = [part[sure[part].argmax()] for part in (rows[right], rows[~right]) if len(part)]
    return list(dict.fromkeys(int(i) for i in (*surest, sure.argmin())))


def _whole(values: Real[np.ndarray, " elements"]) -> Real[np.ndarray, " elements"]:
    """Counts as integers, weights as they are."""
    return values.astype(np.int64) if (values == np.round(values)).all() else values
