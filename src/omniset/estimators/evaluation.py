"""Predictions of a model of sets beside known labels and baselines; which features mattered; sets worth a look."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from omniset import explain
from omniset.core.sets import Sets
from omniset.estimators import importance, inputs
from omniset.estimators.base import SetEstimator
from omniset.estimators.mixture import SetMixture
from omniset.estimators.predictors import SetClassifier
from omniset.estimators.survival import SetSurvival
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import RESAMPLES, Draws, Values
from omniset.trials.outcomes import Measure, Outcome
from omniset.trials.survival import integrated_brier

CHEAP = 1 << 25  # numbers in a set, times its elements, up to which elements are left out one by one
EXPLAINED = 10  # elements of an example


@dataclass
class Evaluation:
    """Methods on sets whose labels are known.

    Attributes:
        rows: A row per target, method, and set or labelled element: `condition` (the target), `method`, `set`,
            `element` (where elements are labelled), `group` (where there are groups), `size` (distinct elements of the
            set), `truth`, `predicted`, and of classes the probability of each. Of risks `truth` is the time, `event`
            whether the event was seen, `brier` the error of the survival curve, and `stratum`, of sets left out, beside
            which others each is compared.
        classes: Of each target, the column of `rows` with the probability of each label, labels in order. None:
            targets are numbers.
        resamples: Of the intervals.
        baselines: Methods that ours has to beat.
        left_out: The methods learned from the same sets, each left out in its turn: intervals are `widened`.
    """

    rows: pd.DataFrame
    classes: Mapping[str, Mapping[str, str]] | None = None
    resamples: int = RESAMPLES
    baselines: Sequence[str] = tuple(SetMixture.SIMPLE)
    left_out: bool = False
    _last: deque[tuple[pd.DataFrame, Outcome]] = field(default_factory=lambda: deque(maxlen=2), repr=False)

    @cached_property
    def targets(self) -> list[str]:
        return self.rows["condition"].unique().tolist()

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Of ours, target by target."""
        return [self.outcome(target) for target in self.targets]

    @cached_property
    def unit(self) -> str:
        """What intervals are of: groups, where there are any, else sets."""
        return "group" if "group" in self.rows else "set"

    def outcome(self, target: str, method: str = OURS) -> Outcome:
        """The predictions of a method."""
        return self._outcome(self.rows[(self.rows["condition"] == target) & (self.rows["method"] == method)])

    @cached_property
    def comparison(self) -> Comparison:
        """Conditions are the targets; the first metric decides."""
        names = self.outcomes[0].measures
        rows = max(self.rows.groupby(["condition", "method"]).size(), default=0)
        columns = max((len(c) for c in (self.classes or {}).values()), default=1)
        scores = [
            Score(name, name, m.larger, m.share, partial(self._measured, m), m.draws(rows, columns), m.within, error)
            for name, m in names.items()
            for error in (None if m.error is None else partial(self._error, m),)
        ]
        keys = [name for name in ("set", "element") if name in self.rows]
        aims = [Aim(target, scores[0].name) for target in self.targets]
        how: dict[str, Any] = {"resamples": self.resamples, "learned": self.left_out}
        return Comparison(self.rows, scores, self.unit, self.unit, keys, self.baselines, aims, **how)

    def _error(self, measure: Measure, mine: pd.DataFrame, other: pd.DataFrame | None, draws: Draws) -> Values:
        assert measure.error is not None
        return measure.error(self._outcome(mine), None if other is None else self._outcome(other), draws)

    def _measured(self, measure: Measure, rows: pd.DataFrame, draws: Draws) -> Values:
        for known, outcome in self._last:  # a formula is asked for the same rows, some draws at a time
            if known is rows:
                return measure.of(outcome, draws)
        self._last.append((rows, self._outcome(rows)))
        return measure.of(self._last[-1][1], draws)

    def _outcome(self, rows: pd.DataFrame) -> Outcome:
        target = str(rows["condition"].iloc[0])
        truth, predicted, sets, sizes = (rows[name].to_numpy() for name in ("truth", "predicted", "set", "size"))
        how: dict[str, Any] = {"groups": rows["group"].to_numpy() if "group" in rows else None}
        if "event" in rows:
            how |= {"events": rows["event"].to_numpy(dtype=bool), "briers": rows["brier"].to_numpy()}
            how["strata"] = rows["stratum"].to_numpy() if "stratum" in rows else None
        elif self.classes is not None:
            columns = self.classes[target]
            how |= {"classes": [*columns], "probabilities": rows[[*columns.values()]].to_numpy(np.float64)}
        return Outcome(target, truth, predicted, sets, sizes, **how)


def evaluate(model: SetEstimator, sets: Any, y: Any, *, groups: Any = None, resamples: int = RESAMPLES) -> Evaluation:
    """Compare what a model, and baselines, predict with known labels, best of sets that it has never seen.

    Args:
        sets, y, groups: As for `fit`; intervals are of groups, where there are any.

    Raises:
        ValueError: Sets or labels that cannot be used; a class that was not in training; not fitted.
    """
    collection = model.read(sets)
    truth = model.truth(y, collection)
    of_group = None if groups is None else inputs.per_set(groups, collection, "groups")
    model.warn_of_known(collection)
    return compare(model, collection, truth, of_group, resamples=resamples)


def compare(
    model: SetEstimator,
    sets: Sets,
    truth: Shaped[np.ndarray, "rows targets"],
    groups: Shaped[np.ndarray, " sets"] | None = None,
    which: Int[np.ndarray, " chosen"] | None = None,
    resamples: int = RESAMPLES,
) -> Evaluation:
    """`evaluate` of labels that are in the order of the sets, or of their elements.

    Args:
        which: Positions of the sets that are looked at. Default: all.

    Elements without a label, or with multiplicity 0, are left out.
    """
    which = np.arange(len(sets)) if which is None else which
    tables = model.by_method(sets[int(i)] for i in which)
    about = _about(model.level, sets, which, tables[OURS], groups)
    truth = truth[inputs.rows_of(sets, which) if model.level == "element" else which]
    return _evaluation(model, tables, about, truth, resamples)


def out_of_fold(
    model: SetEstimator,
    sets: Sets,
    truth: Shaped[np.ndarray, "sets targets"],
    groups: Shaped[np.ndarray, " sets"] | None = None,
    resamples: int = RESAMPLES,
) -> Evaluation | None:
    """What methods said of the sets that were left out while the model learned; None where none were.

    Args:
        sets, truth, groups: What it learned from.
    """
    left_out = model.out_of_fold_
    if left_out is None:
        return None
    stored = [sets[i] for i in range(len(sets))]
    tables = {method: model.answered(stored, answers) for method, answers in left_out.predictions.items()}
    about = _about(model.level, sets, np.arange(len(sets)), tables[OURS], groups)
    if model.MIXTURE.risks:
        about["stratum"] = left_out.folds[0]
    return replace(_evaluation(model, tables, about, truth, resamples), left_out=True)


def _evaluation(
    model: SetEstimator,
    tables: dict[str, pd.DataFrame],
    about: pd.DataFrame,
    truth: Shaped[np.ndarray, "rows targets"],
    resamples: int,
) -> Evaluation:
    classes = model.probability_columns() if isinstance(model, SetClassifier) else None
    if model.MIXTURE.risks:
        about, truth = about.assign(event=truth[:, 1].astype(bool)), truth[:, :1]
    rows = []
    for name, values in zip(model.targets_, truth.T, strict=True):
        there = ~inputs.missing(values) & tables[OURS][name].notna().to_numpy()
        for method, table in tables.items():
            part = about[there].assign(truth=values[there], predicted=table[name].to_numpy()[there])
            if classes is not None:
                text = {label: str(label) for label in model.labels_[name]}
                for column in ("truth", "predicted"):
                    part[column] = [text.get(label, str(label)) for label in part[column]]
                probabilities = table[[*classes[name].values()]][there]
                part = part.join(probabilities.set_axis(part.index))
            if isinstance(model, SetSurvival):
                time, event, risk = (part[column].to_numpy() for column in ("truth", "event", "predicted"))
                part["brier"] = integrated_brier(time, event, risk, model.hazards_[method])
            part.insert(0, "condition", name)
            part.insert(1, "method", method)
            rows.append(part)
    return Evaluation(pd.concat(rows, ignore_index=True), classes, resamples, [*model.mixes.SIMPLE])


def _about(
    level: str, sets: Sets, which: np.ndarray, predicted: pd.DataFrame, groups: np.ndarray | None
) -> pd.DataFrame:
    of_elements = level == "element"
    positions = np.repeat(which, sets.sizes[which]) if of_elements else which
    about = pd.DataFrame({"set": predicted["set"].astype(str)})
    if of_elements:
        twice = predicted.duplicated(["set", "element"]).any()
        about["element"] = predicted.groupby("set", sort=False).cumcount() + 1 if twice else predicted["element"]
    if groups is not None:
        about["group"] = np.asarray(groups)[positions].astype(str)
    about["size"] = sets.sizes[positions]
    return about


def feature_importance(
    model: SetEstimator,
    sets: Any,
    y: Any,
    *,
    groups: Any = None,
    repeats: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """How much each feature alone matters to a model, on sets that it has not learned from.

    See `omniset.estimators.importance`. The loss is the log loss, or the squared error; of survival the negative log
    likelihood of each set.

    Args:
        sets, y, groups: As for `fit`; all sets count alike. Values are exchanged between groups, and intervals and p
            are over them, where there are any.
        repeats: How often values are exchanged, each time with another set; at most as often as there are others. None:
            five times, and fewer where that would read more than 2^28 numbers, at least once.

    Returns:
        See `omniset.trials.importances.table_of`: for each target the features, the most important first.

    Raises:
        ValueError: Sets or labels that cannot be used; a class that was not in training; one set or group;
            repeats below 1; a model of labels of elements; not fitted.
    """
    require_importance(model)
    if repeats is not None and repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    collection = model.read(sets)
    if repeats is None:
        repeats = importance.exchanges(collection)
    by_group = None if groups is None else inputs.per_set(groups, collection, "groups")
    codes = model.codes(model.truth(y, collection))
    task = model.importance_task(collection, codes, by_group, repeats, seed)
    if len(np.unique(task.units)) < 2:
        raise ValueError("sets must be at least 2, of different groups, to exchange values, got 1")
    return importance.measured(task, [(model.says, np.arange(len(collection)))], model.targets_)


def require_importance(model: SetEstimator) -> None:
    """Raise the ValueError of a model whose importances are not measured: it predicts elements."""
    if model.level == "element":
        raise ValueError("importance is measured for level='set', got a model with level='element'")


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
    explained, by_removal = [], model.explains_by("auto") == "removal"
    for i in dict.fromkeys(which[telling(evaluation.outcomes[0])].tolist()):
        stored = sets[i]
        if len(stored) > model.max_elements:  # takes long
            continue
        if by_removal and len(stored) ** 2 * sets.dim > CHEAP:
            continue
        if by_removal:
            scores = model.explain([stored], method="removal")[0]
        else:
            scores = explain.combine(model.explain_layers([stored]))[0].cpu().numpy()
        frame = next(iter(model.predictions([stored])))
        elements, counts = stored.read()
        order = np.argsort(-scores, kind="stable")[:EXPLAINED]
        names, counts, features = stored.names_of_elements(), counts.double().numpy()[order], elements[order].double()
        explained.append(
            Example(
                set=str(stored.name),
                predicted=frame[model.targets_[0]].iloc[0],
                truth=truth[i, 0],
                size=len(stored),
                elements=[str(names[i]) for i in order],
                multiplicity=counts.astype(np.int64) if (counts == np.round(counts)).all() else counts,
                scores=scores[order].astype(np.float64),
                features={f: features[:, j].numpy() for j, f in enumerate(sets.features or [])},
                removal=by_removal,
            )
        )
    return explained


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
