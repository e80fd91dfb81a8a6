"""Permutation importance of features: how much worse a model predicts sets when a feature tells it nothing.

For a model f, set X_i with label y_i, and X_i^(jr) the set with the values of feature j from another set
(`omniset.estimators.exchange`), which is another one each time, r = 1, ..., R,

    d_ij = 1 / R sum_r loss(y_i, f(X_i^(jr))) - loss(y_i, f(X_i)),        importance of j = mean over sets i of d_ij

loss is the log loss, or the squared error; of survival it is H(t_i) exp f_i - [event seen] f_i, H the cumulative
baseline hazard: up to a constant the negative log likelihood of set i alone, whatever the risks of others (Whitehead,
"Fitting Cox's regression model to survival data using GLIM", 1980). The sets are ones that f has not learned from.
Beside each importance there is its 95 % interval over sets, or groups of sets, and what chance gives
(`omniset.trials.importances`): if feature j is independent of all else, its own values give a set no other loss than
those of another set. So the R + 1 donors of a set, itself among them, are of different units.

Importance is that of a feature alone, to this model: of two features that say the same, either can stand in for the
other, and both may have none.

Sources: Breiman, "Random forests", 2001; Fisher, Rudin and Dominici, "All models are wrong, but many are useful", 2019.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Int, Shaped

from omniset.core.sets import Sets, batched
from omniset.core.stored import StoredSet
from omniset.estimators import labels
from omniset.estimators.exchange import Exchange, counts_of, donors_of, ranks_of
from omniset.estimators.pooling import columns_of_feature, pooled
from omniset.estimators.stack import Predictions, Stack, columns_of_targets
from omniset.estimators.weights import losses_of
from omniset.runs.console import telling
from omniset.runs.devices import find
from omniset.runs.progress import Progress
from omniset.trials.comparison import OURS
from omniset.trials.importances import table_of
from omniset.trials.survival import LARGEST, breslow

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator
    from omniset.estimators.stacking import OutOfFold

REPEATS = 5
READ = 1 << 28  # numbers that are read anew, over all features, up to which values are exchanged more than once
SLOW = 20  # seconds from which on it is said how long it will take
NUMBERS = 1 << 24  # in the features of some sets, or in predictions, that are held at once
CHEAP = 5_000  # features times sets up to which `fit` measures importance without being asked

Table = Float32[np.ndarray, "sets columns"]
Outputs = Float64[np.ndarray, "sets outputs"]


@dataclass
class Parts:
    """A model in parts.

    Attributes:
        of_table: What its methods say of pooled features; None where none counts.
        of_sets: What its other methods say of sets; None likewise.
        mixed: What the model says: probabilities, or numbers.
    """

    of_table: Callable[[Table], Predictions] | None
    of_sets: Callable[[Sequence[StoredSet]], Predictions] | None
    mixed: Callable[[Predictions], Outputs]


@dataclass
class Trial:
    """A model, and the sets that it has not seen."""

    parts: Parts
    rows: Int[np.ndarray, " rows"]


@dataclass
class Task:
    """What is measured.

    Attributes:
        y: Codes of classes, or numbers; of survival, whether the event was seen.
        hazards: Of survival: H at the time of each set. None: something else is predicted.
        widths: Outputs of each target.
        units: Of each set a number; sets of one depend on each other.
        totals: Elements of each set, with their copies.
        features: Their numbers.
        together, max_elements: Sets, and elements, that are predicted at once.
    """

    sets: Sets
    y: Shaped[np.ndarray, "sets targets"]
    hazards: Float64[np.ndarray, " sets"] | None
    widths: Sequence[int]
    classify: bool
    units: Int[np.ndarray, " sets"]
    totals: Float64[np.ndarray, " sets"]
    features: Sequence[int]
    repeats: int
    seed: int
    together: int
    max_elements: int
    progress: bool

    def donors(self, rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " donors"]:
        """Sets that may give values to these, which a model has not seen: the same; if they are of one unit, any."""
        full = np.flatnonzero(self.totals > 0)
        there = np.intersect1d(rows, full)
        return there if len(np.unique(self.units[there])) > 1 else full


def check(model: SetEstimator) -> None:
    """See that a model is one whose importances are measured.

    Raises:
        ValueError: It predicts elements.
    """
    if model.level == "element":
        raise ValueError("importance is measured for level='set', got a model with level='element'")


def wanted(model: SetEstimator, sets: Sets) -> bool:
    """Whether `fit` of a mixture measures importance."""
    return len(sets) * sets.dim <= CHEAP if model.importance is None else model.importance


def feature_importance(
    model: SetEstimator,
    sets: Any,
    y: Any,
    *,
    groups: Any = None,
    repeats: int | None = None,
    seed: int = 0,
    features: Sequence[Any] | None = None,
) -> pd.DataFrame:
    """How much each feature alone matters to a model, on sets that it has not learned from; see above.

    Args:
        sets, y, groups: As for `fit`; all sets count alike. Values are exchanged between groups, and intervals and p
            are over them, where there are any.
        repeats: How often values are exchanged, each time with another set; at most as often as there are others. None:
            five times, and fewer where that would read more than 2^28 numbers, at least once.
        features: Names of those that are looked at, or their numbers from 0 where they have no names. Default: all. p
            is adjusted for these.

    Returns:
        See `omniset.trials.importances.table_of`: for each target the features, the most important first.

    Raises:
        ValueError: Sets or labels that cannot be used; a class that was not in training; an unknown feature; one set or
            group; repeats below 1; a model of labels of elements; not fitted.
    """
    check(model)
    if repeats is not None and repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    collection = model.read(sets)
    if repeats is None:
        repeats = exchanges(collection, 1.0 if features is None else len(features) / collection.dim)
    by_group = None if groups is None else labels.per_set(groups, collection, "groups")
    codes, hazards = _known(model, y, collection)
    task = task_of(model, collection, codes, by_group, repeats, seed, features, hazards)
    if len(np.unique(task.units)) < 2:
        raise ValueError("sets must be at least 2, of different groups, to exchange values, got 1")
    return measured(task, [Trial(parts_of(model), np.arange(len(collection)))], model.targets_)


def out_of_fold_importance(
    model: SetEstimator,
    sets: Sets,
    y: Shaped[np.ndarray, "sets targets"],
    groups: Shaped[np.ndarray, " sets"] | None,
    left_out: OutOfFold,
) -> pd.DataFrame:
    """The same of a mixture that has just been learned, by the methods of each fold on the sets that it left out.

    Args:
        y: Codes of classes, numbers, or signed ranks of times.
        left_out: With the mixtures of the folds: their methods have not seen the sets of the fold, but their weights
            are those of the whole, a few numbers that all sets have decided. Each set is left out by as many mixtures
            as the sets were dealt to folds, and importance is the mean over these.
    """
    y, hazards = _of_training(model, y, left_out.predictions[OURS][:, 0])
    repeats = -(-exchanges(sets) // len(left_out.folds))
    task = task_of(model, sets, y, groups, repeats, model.seed, hazards=hazards)
    trials = [
        Trial(
            parts_of_stack(stack, find(model.device), model.reading()), np.flatnonzero(left_out.folds[repeat] == fold)
        )
        for (repeat, fold), stack in left_out.stacks.items()
    ]
    return measured(task, trials, model.targets_)


def kept_back_importance(
    model: SetEstimator, sets: Sets, y: Shaped[np.ndarray, "sets targets"], groups: Shaped[np.ndarray, " sets"] | None
) -> pd.DataFrame | None:
    """The same of one network that has just learned, on the sets kept back; None where these are fewer than two.

    Args:
        y: Codes of classes, numbers, or signed ranks of times.
    """
    if len(model.validation_) < 2:
        model.notes_.insert(0, "importance of features was not measured: fewer than two sets were kept back")
        return None
    y, hazards = _of_training(model, y, model.probable(sets, model)[:, 0] if model.kind.risks else None)
    repeats = exchanges(sets[np.asarray(model.validation_)])
    task = task_of(model, sets, y, groups, repeats, model.seed, hazards=hazards)
    return measured(task, [Trial(parts_of(model), model.validation_)], model.targets_)


def exchanges(sets: Sets, share: float = 1.0) -> int:
    """How often values are exchanged where the user does not say: less often where there is much to read.

    Args:
        share: Of the features that are looked at.
    """
    read = share * sets.dim**2 * float(sets.sizes.sum())
    return int(np.clip(READ // max(read, 1.0), 1, REPEATS))


def parts_of(model: SetEstimator) -> Parts:
    """Of a fitted model: a mixture has parts, one network is a whole."""
    fitted = model.fitted()
    if isinstance(fitted, Stack):
        return parts_of_stack(fitted, find(model.device), model.reading())
    return Parts(None, lambda sets: {OURS: model.probable(sets, model)}, lambda answers: answers[OURS])


def parts_of_stack(stack: Stack, device: torch.device, reading: Mapping[str, Any]) -> Parts:
    """Its methods that have weight: others are not asked."""
    weighed = stack.weighed()
    simple = [name for name in weighed if stack.sees_pooled(name)]
    others = [name for name in weighed if name not in simple]

    def mixed(answers: Predictions) -> Outputs:
        outputs = stack.mixed(answers).numpy()
        return np.exp(outputs) if stack.classify else outputs

    return Parts(
        partial(stack.of_table, methods=simple) if simple else None,
        partial(stack.of_sets, device=device, methods=others, **reading) if others else None,
        mixed,
    )


Known: TypeAlias = tuple[Shaped[np.ndarray, "sets targets"], Float64[np.ndarray, " sets"] | None]


def _known(model: SetEstimator, y: Any, sets: Sets) -> Known:
    """Labels as the losses take them; of survival also H at the time of each set."""
    from omniset.estimators.survival import SetSurvival, observed

    if not isinstance(model, SetSurvival):
        return _codes(model, labels.aligned(y, sets, model.level)[0]), None
    time, event = observed(y, sets)
    return event[:, None], model.baseline_(time)


def _of_training(
    model: SetEstimator, y: Shaped[np.ndarray, "sets targets"], risk: Float[np.ndarray, " sets"] | None
) -> Known:
    """The same of what a model has learned from, whose hazard is not known yet."""
    if not model.kind.risks or risk is None:
        return y, None
    time, event = np.abs(y[:, 0]).astype(np.float64), y[:, 0] > 0
    return event[:, None], breslow(time, event, risk)(time)


def _codes(model: SetEstimator, truth: Shaped[np.ndarray, "sets targets"]) -> Shaped[np.ndarray, "sets targets"]:
    """Labels as the losses take them."""
    if not model.classifies:
        return labels.numbers(truth)
    of_targets: dict[str, list[Any]] = model.labels_
    codes = np.empty(truth.shape, dtype=np.int64)
    for number, (column, classes) in enumerate(zip(truth.T, of_targets.values(), strict=True)):
        labels.require_trained(column, np.asarray(classes))
        places = {str(label): place for place, label in enumerate(classes)}
        codes[:, number] = [places[str(label)] for label in column.tolist()]
    return codes


def task_of(
    model: SetEstimator,
    sets: Sets,
    y: Shaped[np.ndarray, "sets targets"],
    groups: Shaped[np.ndarray, " sets"] | None,
    repeats: int = REPEATS,
    seed: int = 0,
    features: Sequence[Any] | None = None,
    hazards: Float64[np.ndarray, " sets"] | None = None,
) -> Task:
    """What is measured of a fitted model.

    Args:
        y, hazards: See `Task`.

    Raises:
        ValueError: An unknown feature, one twice, or none.
    """
    known = sets.features or [*range(sets.dim)]
    chosen = known if features is None else [*features]
    for feature in chosen:
        if feature not in known:
            raise ValueError(f"features: {feature!r} is none of {known[:20]}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"features must be at least one, and none twice, got {chosen[:20]}")
    ranks = ranks_of(sets.names)
    units = ranks if groups is None else np.unique(groups.astype(str), return_inverse=True)[1]
    return Task(
        sets,
        y,
        hazards,
        model.fitted().widths,
        model.classifies,
        units,
        np.array([counts_of(sets[i]).sum() for i in range(len(sets))]),
        [known.index(feature) for feature in chosen],
        repeats,
        seed,
        model.together,
        model.max_elements,
        model.progress,
    )


def measured(task: Task, trials: Sequence[Trial], targets: Sequence[str]) -> pd.DataFrame:
    """The table of importances: of each set the mean over the trials in which it was."""
    names = task.sets.features or [*range(task.sets.dim)]
    others = min(len(np.unique(task.units[task.donors(trial.rows)])) for trial in trials) - 1
    repeats = max(min(task.repeats, others), 1)
    increases = np.zeros((len(task.sets), repeats, task.y.shape[1], len(task.features)))
    times = np.zeros(len(task.sets))
    table = pooled(task.sets) if any(trial.parts.of_table is not None for trial in trials) else None
    steps = repeats * len(task.features) * sum(len(trial.rows) for trial in trials)
    with Progress("importance of features", steps, task.progress, "sets") as progress:
        done = 0
        for number, trial in enumerate(trials):
            started = time.perf_counter()
            measuring = _Measuring(task, trial, number, table)
            if number == 0:
                once = (time.perf_counter() - started) / max(len(trial.rows), 1)
                _say_how_long(task, once * steps)
            for repeat, places, increase in measuring.increases(repeats):
                increases[trial.rows, repeat, :, places] += increase
                done += len(trial.rows) * increase.shape[-1]
                progress.at(done)
            times[trial.rows] += 1
    looked = times > 0
    return table_of(
        increases[looked] / times[looked, None, None, None],
        task.units[looked],
        targets,
        [names[feature] for feature in task.features],
        task.seed,
    )


def _say_how_long(task: Task, seconds: float) -> None:
    """Say it before it is done."""
    if seconds > SLOW:
        long = f"{seconds / 60:,.0f} minutes" if seconds > 120 else f"{seconds:.0f} seconds"
        of = f"{len(task.features):,} features of {len(task.sets):,} sets"
        telling(task.progress)(f"importance of {of} will take about {long}")


class _Measuring:
    """One model on sets that it has not seen.

    Args:
        number: Of the trial.
        table: Pooled features of all sets.
    """

    def __init__(self, task: Task, trial: Trial, number: int, table: Table | None) -> None:
        self.task, self.trial, self.number = task, trial, number
        self.table = None if table is None or trial.parts.of_table is None else table[trial.rows]
        self.ranks = ranks_of(task.sets.names)
        stored = (task.sets[int(i)] for i in trial.rows)
        sizes = [len(group) for group in batched(stored, task.together, task.max_elements)]
        self.groups = np.split(trial.rows, np.cumsum(sizes)[:-1])
        self.of_table, self.of_sets = self._of_table(), self._of_sets()
        self.losses = self._losses(self.of_table | self.of_sets)

    def increases(self, repeats: int) -> Iterator[tuple[int, slice, Float64[np.ndarray, "rows targets features"]]]:
        """Each time, some features at a time: their places, and how much the losses increase."""
        task, features, methods = self.task, self.task.features, len(self.of_table) + len(self.of_sets)
        elements = max(sum(len(task.sets[int(i)]) for i in group) for group in self.groups)
        most = max(elements, len(self.trial.rows) * sum(task.widths) * methods)
        width = max(NUMBERS // max(most, 1), 1)
        seed = [task.seed, self.number]
        there, rng = task.donors(self.trial.rows), np.random.default_rng(seed)
        for repeat, donors in enumerate(donors_of(len(task.sets), there, task.units, self.ranks, repeats, rng)):
            exchange = Exchange(task.sets, donors, self.ranks, [*seed, repeat])
            for start in range(0, len(features), width):
                places = slice(start, min(start + width, len(features)))
                yield repeat, places, self._of_block(exchange, features[places])

    def _of_block(self, exchange: Exchange, features: Sequence[int]) -> Float64[np.ndarray, "rows targets features"]:
        of_sets = self._of_other_sets(exchange, features)
        given = None if self.table is None else exchange.pooled(self.groups, features)
        out = np.empty((*self.losses.shape, len(features)))
        for place, feature in enumerate(features):
            of_table = self.of_table
            if given is not None:
                of_table = self._of_other_table(feature, given[:, columns_of_feature(place, len(features))])
            answers = {**of_table, **{name: values[place] for name, values in of_sets.items()}}
            out[..., place] = self._losses(answers) - self.losses
        return out

    def _of_table(self) -> Predictions:
        of_table = self.trial.parts.of_table
        return {} if of_table is None or self.table is None else of_table(self.table)

    def _of_other_table(self, feature: int, given: Table) -> Predictions:
        """What the simple methods say where the columns of a feature are others."""
        assert self.table is not None
        columns = columns_of_feature(feature, self.task.sets.dim)
        own_columns = self.table[:, columns].copy()
        if np.array_equal(own_columns, given, equal_nan=True):
            return self.of_table
        self.table[:, columns] = given
        answers = self._of_table()
        self.table[:, columns] = own_columns
        return answers

    def _of_sets(self) -> Predictions:
        of_sets = self.trial.parts.of_sets
        if of_sets is None:
            return {}
        answers = [of_sets([self.task.sets[int(i)] for i in group]) for group in self.groups]
        return {name: np.concatenate([each[name] for each in answers]) for name in answers[0]}

    def _of_other_sets(
        self, exchange: Exchange, features: Sequence[int]
    ) -> Mapping[str, Float64[np.ndarray, "features rows outputs"]]:
        """What the networks say where the values of each feature are others."""
        answers = {name: np.repeat(values[None], len(features), 0) for name, values in self.of_sets.items()}
        if self.trial.parts.of_sets is None:
            return answers
        done = 0
        for group in self.groups:
            for place, sets in exchange.replaced(group, features):
                if sets is not None:
                    for name, values in self.trial.parts.of_sets(sets).items():
                        answers[name][place, done : done + len(group)] = values
            done += len(group)
        return answers

    def _losses(self, answers: Predictions) -> Float64[np.ndarray, "rows targets"]:
        outputs, y = self.trial.parts.mixed(answers), self.task.y[self.trial.rows]
        if self.task.hazards is not None:
            risk = np.clip(outputs[:, :1], -LARGEST, LARGEST)
            return self.task.hazards[self.trial.rows, None] * np.exp(risk) - y * risk
        each = []
        for target, part in enumerate(columns_of_targets(self.task.widths)):
            values = outputs[None, :, part] if self.task.classify else outputs[None, :, part.start]
            each.append(losses_of(values, y[:, target])[0])
        return np.stack(each, 1)
