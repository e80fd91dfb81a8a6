"""How a model of sets learns: one network, or a mixture of methods; and what either says of sets left out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import clone
from torch import Tensor

from omniset.core.sets import Sets
from omniset.estimators import importance, lessons, stacking
from omniset.estimators.folds import folds_of
from omniset.estimators.options import SIZES, SIZES_OF_ONE
from omniset.estimators.stack import INTERPLAY, NETWORKS, PRIOR, Stack
from omniset.estimators.stacking import Material, OutOfFold, Regime
from omniset.runs.devices import SMALL_STEP, find, threads_for
from omniset.training.fit import fit
from omniset.trials.comparison import OURS

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

POOLED = 1 << 28  # numbers up to which sets are pooled for what stands beside one network
DRAWN = 2048  # elements of a set that a step of a mixture's networks sees


@dataclass
class Given:
    """What a model learns from.

    Attributes:
        values: Labels as they were given.
        targets: The same as codes or numbers.
        widths: Outputs of each target.
        weights: How much each set counts.
        groups: Sets of one group stay together.
    """

    sets: Sets
    values: Shaped[np.ndarray, "rows targets"]
    targets: Shaped[Tensor, "rows targets"]
    widths: list[int]
    weights: Float[np.ndarray, " sets"] | None
    groups: Shaped[np.ndarray, " sets"] | None
    folder: Path | None
    resume: bool


def learn(model: SetEstimator, given: Given) -> None:
    """What the options ask for."""
    if model.single is not None:
        one_network(model, given)
    elif model.alone is not None:
        simple(model, given)
    else:
        mixture(model, given)


def one_network(model: SetEstimator, given: Given) -> None:
    """Train one network; the sets kept back choose its epoch."""
    collection, targets, widths = given.sets, given.targets, given.widths
    of_elements = model.level == "element"
    beside = not of_elements and int(collection.sizes.sum()) * collection.dim <= POOLED
    material = _material(model, given) if beside else None
    kind = model.kind
    evenly = (model.classifies or kind.risks) and not of_elements and targets.shape[1] == 1
    stratum = kind.stratum(targets) if evenly else None
    fraction = model.kept_back(len(collection))
    train, model.validation_ = lessons.split(len(collection), fraction, model.seed, given.groups, stratum)
    known = targets[lessons.rows_of(collection, train) if of_elements else train]
    model.notes_ += lessons.kept_back(len(collection), len(model.validation_), model.patience is not None)
    model.prior_ = model.prior_of(known, widths)
    with torch.random.fork_rng():
        torch.manual_seed(model.seed)
        network = model.build(collection.dim, widths)
    model.warn_of_classes(given.values, known)
    lessons.fit_features(network, collection, train)
    if not model.classifies and not kind.risks:
        network.fit_targets(known)
    class_weights = model.class_weights(known, widths)
    module = lessons.module(model, network, class_weights, (collection, targets, train))
    lesson = lessons.data(model, given, train)
    with threads_for(lesson.batch_size * _at_once(model, collection) * model.size("dim"), SMALL_STEP):
        fit(
            module,
            lesson,
            epochs=model.size("epochs"),
            patience=model.patience,
            device=model.device,
            progress=model.progress,
            log=model.log,
            folder=given.folder,
            resume=given.resume,
            devices=model.devices,
            num_nodes=model.num_nodes,
        )
    model.network_, model.history_ = module.network, module.history
    model.chosen_ = SIZES_OF_ONE | {"batch_size": lessons.batch_of(len(collection))}
    model.chosen_ |= {"validation_fraction": fraction, "importance": False}
    if material is not None:
        model.simple_ = stacking.simple_alone(material, kind.beside, train)
        if model.folds is not None:
            model.out_of_fold_ = _cross_validated(model, given, material)
    if model.importance:
        model.importance_ = importance.kept_back_importance(model, collection, targets.numpy(), given.groups)


def _at_once(model: SetEstimator, sets: Sets) -> int:
    """Elements of a set that are computed together, in the mean."""
    mean = int(np.ceil(sets.sizes.mean()))
    return mean if model.shard_size is None else min(mean, model.shard_size)


def mixture(model: SetEstimator, given: Given) -> None:
    """Train a stack; every set is left out once, or more often."""
    sets, folder = given.sets, given.folder
    with torch.random.fork_rng():  # options that no network takes are refused before anything is learned
        for name in NETWORKS:
            model.build(sets.dim, given.widths, name)
    material = replace(_material(model, given), keep=importance.wanted(model, given.sets))
    model.validation_ = np.arange(0)
    model.prior_ = model.prior_of(given.targets, given.widths)
    model.warn_of_classes(given.values, given.targets)
    with threads_for(int(sets.sizes.sum()) * sets.dim):
        stack, model.out_of_fold_, model.history_ = stacking.learn(
            material,
            learning_rate=model.size("learning_rate"),
            weight_decay=model.weight_decay,
            fingerprint=model.fingerprint() | {"sets": lessons.checksum(sets, given.targets, np.arange(len(sets)))},
            folder=folder,
            resume=given.resume,
        )
    model.network_ = stack
    regime = material.regime
    model.chosen_ = SIZES | _folds(model, given, regime)
    model.chosen_ |= {"epochs": regime.epochs, "batch_size": regime.batch_size}
    loss = "log loss" if model.classifies else "partial likelihood" if model.kind.risks else "squared error"
    mean = "" if regime.repeats == 1 else "the mean over these of "
    model.notes_ += [
        f"{_dealt(regime)}: the table has {mean}what each method says of sets left out; "
        f"weights follow its {loss} there",
        *worth(stack, model.targets_),
    ]
    _mattered(model, given)
    if int(sets.sizes.max(initial=0)) > DRAWN:
        model.notes_.append(
            f"networks of the mixture learn from {DRAWN:,} elements of a larger set, drawn anew for each epoch; they "
            "predict from all"
        )


def simple(model: SetEstimator, given: Given) -> None:
    """Fit one simple method; sets are left out, in turn, where there are two or more that can be."""
    material = replace(_material(model, given), keep=importance.wanted(model, given.sets))
    model.validation_, model.history_ = np.arange(0), []
    model.prior_ = model.prior_of(given.targets, given.widths)
    model.warn_of_classes(given.values, given.targets)
    model.network_, model.out_of_fold_ = stacking.learn_alone(material, str(model.alone))
    model.chosen_ = {} if model.out_of_fold_ is None else _folds(model, given, material.regime)
    model.notes_.append(f"omniset is {model.alone} alone here; simple methods stand beside it")
    if model.out_of_fold_ is not None:
        model.notes_.append(f"{_dealt(material.regime)}: what is said of how good it is, is of sets left out")
        _mattered(model, given)


def _folds(model: SetEstimator, given: Given, regime: Regime) -> dict[str, Any]:
    measured = importance.wanted(model, given.sets)
    return {"folds": regime.folds, "repeats": regime.repeats, "importance": measured}


def _dealt(regime: Regime) -> str:
    dealt = "once" if regime.repeats == 1 else f"{regime.repeats} times"
    return f"{regime.folds} folds of the sets, dealt {dealt}"


def _mattered(model: SetEstimator, given: Given) -> None:
    """Measure what each feature is worth, where that was asked for or is cheap."""
    sets, left_out = given.sets, model.out_of_fold_
    if model.importance is None and not importance.wanted(model, sets):
        model.notes_.append(
            f"which features matter was not measured, as it takes long: {len(sets):,} sets times {sets.dim:,} features "
            f"are more than {importance.CHEAP:,}; importance=True measures it"
        )
    if left_out is not None and left_out.stacks:
        y = given.targets.numpy()
        model.importance_ = importance.out_of_fold_importance(model, sets, y, given.groups, left_out)
        model.out_of_fold_ = replace(left_out, stacks={})


def worth(stack: Stack, targets: list[str]) -> list[str]:
    """The weights of a mixture in words, target by target.

    The networks that see elements in the light of others say whether their interplay tells something.
    """
    answers = []
    for number, target in enumerate(targets):
        weights = stack.weights_of(number)
        shares = sorted(((w, name) for name, w in weights.items() if w), reverse=True)
        named = ", ".join(f"{name} {w:.2f}" for w, name in shares)
        of = f"{target}: " if len(targets) > 1 else ""
        nothing = "" if weights[INTERPLAY] else "; the elements' interplay adds nothing here"
        answers.append(f"{of}weights of the methods: {named}{nothing}")
    return answers


def _material(model: SetEstimator, given: Given) -> Material:
    sets = given.sets
    weights = np.ones(len(sets)) if given.weights is None else given.weights
    each = np.repeat(weights[:, None], len(given.widths), 1)
    units = model.kind.units(given.targets, given.groups)
    if model.folds is None and (model.single is not None or model.alone is not None):
        units = max(units, 2)  # nothing need be left out
    balance = model.class_weights(given.targets, given.widths)
    if balance is not None:
        for target, of_class in enumerate(balance):
            each[:, target] *= of_class.numpy()[given.targets[:, target].numpy()]
    return Material(
        sets,
        given.targets,
        given.widths,
        model.classifies,
        each,
        given.groups,
        Regime.of(
            len(sets),
            units,
            model.folds,
            model.repeats,
            model.epochs,
            model.batch_size or model.kind.batch_of(len(sets)),
            model.patience,
        ),
        lambda name: model.build(sets.dim, given.widths, name),
        model.reading(),
        DRAWN,
        model.seed,
        find(model.device),
        model.progress,
        model.kind,
    )


def _can_learn(model: SetEstimator, targets: Shaped[Tensor, "rows targets"]) -> bool:
    """Whether `fit` would take these: two labels; of risks, two events and two times."""
    if model.kind.risks:
        return int((targets > 0).sum()) > 1 and len(targets.abs().unique()) > 1
    return not bool((targets == targets[0]).all(0).any())


def _cross_validated(model: SetEstimator, given: Given, material: Material) -> OutOfFold:
    """One network anew for each fold, beside simple methods."""
    regime, columns = material.regime, sum(given.widths)
    stratum = material.kind.stratum(given.targets)
    folds = np.stack([folds_of(stratum, regime.folds, model.seed + r, given.groups) for r in range(regime.repeats)])
    answers = stacking.simple_left_out(material, material.kind.beside, folds)
    answers[OURS] = np.zeros((len(given.sets), columns))
    for fold_of in folds:
        for fold in range(fold_of.max() + 1):
            rows, held = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            if not _can_learn(model, given.targets[rows]):
                answers[OURS][held] += answers[PRIOR][held] / len(folds)
                continue
            one = clone(model).set_params(folds=None, repeats=None, importance=False)
            y = material.kind.labels(given.values[rows], given.sets[rows], model.targets_)
            groups, weights = (None if of is None else of[rows] for of in (given.groups, given.weights))
            if groups is not None and len(np.unique(groups)) < 2:
                one.set_params(validation_fraction=0.0)  # nothing can be kept back
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the whole has said it
                one.fit(given.sets[rows], y, groups=groups, sample_weight=weights)
            probable = one.probable(given.sets[held], model)
            answers[OURS][held] += material.kind.centred(probable) / len(folds)
    return OutOfFold(folds, answers)
