"""How a stack learns: every method on folds of the sets, the weights from what was left out, then on all sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets, batched
from omniset.estimators import ensembles
from omniset.estimators.ensembles import EnsembleModule, Lessons
from omniset.estimators.folds import folds_of
from omniset.estimators.lessons import batch_of
from omniset.estimators.pooling import pooled, spread_of
from omniset.estimators.references import References, Sample, samples_of, seen_of
from omniset.estimators.simple import DISTANCES, POOLED, Member
from omniset.estimators.stack import (
    MEAN,
    NETWORKS,
    PRIOR,
    SIMPLE,
    Arrays,
    Stack,
    columns_of_targets,
    ensemble_outputs,
)
from omniset.estimators.weights import Mixed, Predictions, cross_fitted, mixture_of
from omniset.runs.console import telling
from omniset.runs.progress import Progress
from omniset.training.network import SetNetwork
from omniset.trials.comparison import OURS

STEPS = 300  # of the networks, on few sets
FEW = 100
WATCHED = 30  # sets from which on networks stop early
TOGETHER = 64  # sets that networks read at once


@dataclass(frozen=True)
class Regime:
    """How a stack of so many sets learns, where the user did not say.

    Attributes:
        folds, repeats: Of sets left out.
        networks: Per fold.
        batch_size: Sets per step.
        epochs: Of the networks, at most.
        patience: Epochs without progress after which the networks stop. None: they learn to the end.
    """

    folds: int
    repeats: int
    networks: int
    batch_size: int
    epochs: int
    patience: int | None = 10

    @classmethod
    def of(
        cls,
        sets: int,
        units: int,
        folds: int | None = None,
        repeats: int | None = None,
        epochs: int | None = None,
        batch: int | None = None,
        patience: int | None = 10,
    ) -> Regime:
        """For a number of sets, in so many units (groups, or sets) that are not split.

        Networks take about 300 steps on up to 100 sets, and more on many: about 300 (sets / 100)^(1/2).

        Raises:
            ValueError: More folds than units.
        """
        if units < 2:
            what = "there is one set only" if sets < 2 else "groups: all sets are of one group"
            raise ValueError(f"{what}, so that no fold can be left out")
        if folds is not None and folds > units:
            raise ValueError(f"folds must be at most the number of groups (or sets), {units}, got {folds}")
        few = sets < 1000
        folds = min(5 if few else 3, units) if folds is None else folds
        repeats = (3 if sets < 60 else 2 if sets < 200 else 1) if repeats is None else repeats
        batch = batch_of(sets) if batch is None else batch
        steps = STEPS * max(1, math.sqrt(sets / FEW))
        epochs = math.ceil(steps / math.ceil(sets / batch)) if epochs is None else epochs
        networks = 1 if sets < 200 else 2
        return cls(folds, repeats, networks, batch, epochs, patience)


@dataclass(frozen=True)
class Kind:
    """What differs by what is learned: labels, or risks (`omniset.estimators.risks`).

    Attributes:
        stack: The methods, and how they are mixed.
        lesson: The loss of networks.
        weigh: (what methods say of sets left out, targets, folds, weights, groups, seed) to the weights and powers of
            the methods, and to what the mixture that is learned on the other folds says of the sets of each, the mean
            over repeats. The folds are (repeats, sets).
        beside: Simple methods beside one network.
        risks: Log relative risks are learned, of which only differences count: on no other scale, and up to a constant.
            That of a network is chosen so that the mean over the sets that it left out is 0, before risks of several
            repeats are put together.
    """

    stack: type[Stack]
    lesson: type[EnsembleModule]
    weigh: Callable[..., tuple[Float64[np.ndarray, " methods"], Float64[np.ndarray, " methods"], np.ndarray]]
    beside: Sequence[str]
    risks: bool = False

    def stratum(self, targets: Shaped[Tensor, "sets targets"]) -> Shaped[np.ndarray, " sets"]:
        """What folds have evenly: the first target, or events."""
        first = targets[:, 0].numpy()
        return (first > 0).astype(np.int64) if self.risks else first

    def units(self, targets: Shaped[Tensor, "sets targets"], groups: Shaped[np.ndarray, " sets"] | None) -> int:
        """Into how many folds the sets can be dealt: each has an event."""
        number = len(targets) if groups is None else len(np.unique(groups))
        return min(number, int((targets > 0).sum())) if self.risks else number

    def labels(self, values: Shaped[np.ndarray, "rows targets"], sets: Sets, targets: list[str]) -> Any:
        """Labels of some sets, as `fit` has handed them on, for another `fit`: of signed ranks, ranks as times."""
        if self.risks:
            return np.stack([np.abs(values[:, 0]), values[:, 0] > 0], 1)
        return pd.DataFrame(values, sets.names, targets)

    def centred(self, answers: Float64[np.ndarray, "*some sets outputs"]) -> Float64[np.ndarray, "*some sets outputs"]:
        """What a model says of the sets that it left out, by the constant that risks are to have."""
        return answers - answers.mean(-2, keepdims=True) if self.risks else answers

    def batch_of(self, sets: int) -> int:
        """Sets per step. Of risks more: an event says something beside the other sets of its step only."""
        return min(max(sets // 4, 32), 128) if self.risks else batch_of(sets)


@dataclass
class OutOfFold:
    """What methods said of sets that they had not learned from.

    Attributes:
        folds: (repeats, sets) the fold of each set.
        predictions: By method, ours among them: probabilities of the classes, target by target, numbers, or log
            relative risks; the mean over repeats, in each of which the set was left out. The weights that ours takes
            for a fold are learned on the others. Risks are compared within the folds of the first repeat
            (`omniset.estimators.risks`).
        stacks: Of each repeat and fold, where they were asked for: the methods that have not seen the sets of the fold,
            with the weights of the whole.
    """

    folds: Int[np.ndarray, "repeats sets"]
    predictions: Mapping[str, Float64[np.ndarray, "sets outputs"]]
    stacks: Mapping[tuple[int, int], Stack] = field(default_factory=dict, repr=False)


@dataclass
class Material:
    """What a stack learns from.

    Attributes:
        targets: (sets, targets): codes of classes, or numbers.
        weights: (sets, targets): how much each set counts.
        groups: Sets of one group are in one fold.
        build: Makes an untrained network: build(method).
        reading: max_elements, shard_size, shards and store.
        kind: Of what is learned.
        keep: What is learned on the folds is given too, see `OutOfFold.stacks`.
    """

    sets: Sets
    targets: Shaped[Tensor, "sets targets"]
    widths: Sequence[int]
    classify: bool
    weights: Float[np.ndarray, "sets targets"]
    groups: Shaped[np.ndarray, " sets"] | None
    regime: Regime
    build: Callable[[str], SetNetwork]
    reading: Mapping[str, Any]
    elements: int
    seed: int
    device: torch.device
    progress: bool
    kind: Kind
    keep: bool = False


def learn(
    material: Material,
    *,
    learning_rate: float,
    weight_decay: float,
    fingerprint: dict[str, Any],
    folder: Path | None,
    resume: bool,
) -> tuple[Stack, OutOfFold, list[dict[str, Any]]]:
    """A stack, what its methods said of sets left out, and a dict per epoch of its networks."""
    kind, folds = material.kind, _dealt(material)
    looks = Looks.of(material, kind.stack.METHODS)
    simple = [name for name in kind.stack.METHODS if name in kind.stack.MEMBERS]
    of_folds: dict[tuple[int, int], Simple] = {}
    answers = _left_out(material, simple, looks, folds, of_folds if material.keep else None)
    networks, history, places = {}, [], {}
    for name in NETWORKS:
        fitting = {"device": material.device.type, "progress": material.progress, "resume": resume}
        fitting["folder"] = None if folder is None else folder / name
        learner = _Ensemble(material, name, folds, looks.pooled)
        telling(material.progress)(f"{name}: {len(learner.networks)} small networks learn together")
        optimiser = {"learning_rate": learning_rate, "weight_decay": weight_decay, "fingerprint": fingerprint}
        history += [{"method": name, **epoch} for epoch in learner.learn(**optimiser, **fitting)]
        answers[name] = learner.left_out()
        networks[name], places[name] = learner.networks, learner.places
    mixtures = [_mixture(material, answers, folds, target) for target in range(len(material.widths))]
    weights, powers = (torch.from_numpy(np.stack(parts)) for parts in zip(*mixtures, strict=True))
    whole = _simple(material, simple, looks, np.arange(len(material.sets)), material.seed)
    of_all = (material.sets.dim, material.widths, material.classify)
    stack = kind.stack(*of_all, networks, whole.members, weights, powers, whole.references)
    by_fold = {place: _of_fold(stack, place, of_folds[place], networks, places) for place in of_folds}
    return stack.eval(), OutOfFold(folds, answers, by_fold), history


def learn_alone(material: Material, name: str) -> tuple[Stack, OutOfFold | None]:
    """One simple method, which has all the weight, with those of `Kind.beside` beside it; and what they said of sets
    left out, where there are two units or more.
    """
    kind = material.kind
    names = [method for method in kind.stack.METHODS if method == name or method in kind.beside]
    stack = simple_alone(material, names, np.arange(len(material.sets)))
    stack.weights[:, kind.stack.METHODS.index(name)] = 1
    if kind.units(material.targets, material.groups) < 2:
        return stack, None
    folds = _dealt(material)
    of_folds: dict[tuple[int, int], Simple] = {}
    answers = _left_out(material, names, Looks.of(material, names), folds, of_folds if material.keep else None)
    by_fold = {place: _of_fold(stack, place, of_folds[place], {}, {}) for place in of_folds}
    return stack, OutOfFold(folds, {OURS: answers.pop(name), **answers}, by_fold)


def _dealt(material: Material) -> Int[np.ndarray, "repeats sets"]:
    labels, regime = material.kind.stratum(material.targets), material.regime
    seeds = [material.seed + repeat for repeat in range(regime.repeats)]
    return np.stack([folds_of(labels, regime.folds, seed, material.groups) for seed in seeds])


def _of_fold(
    whole: Stack,
    place: tuple[int, int],
    simple: Simple,
    networks: Mapping[str, Sequence[SetNetwork]],
    places: Mapping[str, Int[np.ndarray, "networks 2"]],
) -> Stack:
    """The methods that have not seen the sets of a repeat's fold, with the weights of the whole."""
    of_place = {
        name: [networks[name][i] for i in np.flatnonzero((at == place).all(1)).tolist()] for name, at in places.items()
    }
    of_all = (whole.input_dim, whole.widths, whole.classify)
    stack = type(whole)(*of_all, of_place, simple.members, whole.weights, whole.powers, simple.references)
    return stack.eval()


def _mixture(
    material: Material,
    answers: dict[str, Float64[np.ndarray, "sets outputs"]],
    folds: Int[np.ndarray, "repeats sets"],
    target: int,
) -> tuple[Float64[np.ndarray, " methods"], Float64[np.ndarray, " methods"]]:
    """Weights and powers of the methods; and into `answers`, what ours says of sets left out.

    They are learned from the mean over repeats: what the networks of several repeats say together is closer to what all
    of them will say of new sets.
    """
    part = columns_of_targets(material.widths)[target]
    y, counts = material.targets[:, target].numpy(), material.weights[:, target]
    methods = material.kind.stack.METHODS
    each = np.stack([answers[name][:, part] for name in methods])
    each = each if material.classify else each[..., 0]
    weights, powers, ours = material.kind.weigh(each, y, folds, counts, material.groups, material.seed)
    answers.setdefault(OURS, np.zeros_like(answers[methods[0]]))[:, part] = ours.reshape(len(y), -1)
    return weights, powers


def weighed(
    each: Predictions,
    y: Shaped[np.ndarray, " rows"],
    folds: Int[np.ndarray, "repeats rows"],
    weights: Float[np.ndarray, " rows"],
    groups: Shaped[np.ndarray, " rows"] | None,
    seed: int,
) -> tuple[Float64[np.ndarray, " methods"], Float64[np.ndarray, " methods"], Mixed]:
    """`Kind.weigh` of labels."""
    ours = [cross_fitted(each, y, fold_of, weights, groups, seed) for fold_of in folds]
    mixture = mixture_of(each, y, weights, groups, seed)
    return mixture.weights, mixture.powers, np.mean(ours, 0)


LABELS = Kind(Stack, EnsembleModule, weighed, (PRIOR, MEAN, SIMPLE[0], SIMPLE[-1]))


@dataclass
class Looks:
    """What simple methods see of all sets, or make it of.

    Attributes:
        pooled: Their pooled features.
        samples: The elements that distances are of; None where no method sees distances.
        seen: How many of a set, at most.
    """

    pooled: Float32[np.ndarray, "sets columns"]
    samples: list[Sample] | None
    seen: int

    @classmethod
    def of(cls, material: Material, names: Sequence[str]) -> Looks:
        """What methods of these names need."""
        sets, members = material.sets, material.kind.stack.MEMBERS
        seen = seen_of(len(sets), sets.dim)
        wanted = any(name in members and members[name].sees == DISTANCES for name in names)
        return cls(pooled(sets), samples_of(sets, seen) if wanted else None, seen)

    def references(self, rows: Int[np.ndarray, " rows"], dim: int, seed: int) -> References | None:
        """Some of the sets, for others to be compared with."""
        if self.samples is None:
            return None
        return References.of([self.samples[int(i)] for i in rows], spread_of(self.pooled[rows], dim), self.seen, seed)

    def tables(self, references: References | None) -> dict[str, Float32[np.ndarray, "sets columns"]]:
        """What members see."""
        if references is None or self.samples is None:
            return {POOLED: self.pooled}
        return {POOLED: self.pooled, DISTANCES: references.distances(self.samples)}


@dataclass
class Simple:
    """Fitted simple methods: by name, for each target the arrays of its member; and the references of all of them."""

    members: dict[str, list[Arrays]]
    references: Arrays


def _fitted(
    material: Material,
    name: str,
    tables: Mapping[str, Float32[np.ndarray, "sets columns"]],
    rows: Int[np.ndarray, " rows"],
    target: int,
    seed: int,
) -> Member:
    member = material.kind.stack.MEMBERS[name](material.widths[target] if material.classify else None)
    table = tables[member.sees]
    y = material.targets[:, target].double().numpy()
    y = y.astype(np.int64) if material.classify else y
    groups = None if material.groups is None else material.groups[rows]
    return member.fit(table[rows], y[rows], material.weights[rows, target], seed, groups)


def simple_left_out(
    material: Material, names: Sequence[str], folds: Int[np.ndarray, "repeats sets"]
) -> dict[str, Float64[np.ndarray, "sets outputs"]]:
    """What simple methods say of sets left out."""
    return _left_out(material, names, Looks.of(material, names), folds)


def simple_alone(material: Material, names: Sequence[str], rows: Int[np.ndarray, " rows"]) -> Stack:
    """Simple methods fitted to some of the sets, without weights."""
    simple, kind = _simple(material, names, Looks.of(material, names), rows, material.seed), material.kind.stack
    weights = torch.zeros(len(material.widths), len(kind.METHODS), dtype=torch.float64)
    of_all = (material.sets.dim, material.widths, material.classify)
    return kind(*of_all, {}, simple.members, weights, torch.ones_like(weights), simple.references).eval()


def _left_out(
    material: Material,
    names: Sequence[str],
    looks: Looks,
    folds: Int[np.ndarray, "repeats sets"],
    by_fold: dict[tuple[int, int], Simple] | None = None,
) -> dict[str, Float64[np.ndarray, "sets outputs"]]:
    """See `simple_left_out`; into `by_fold`, the methods of each repeat and fold."""
    answers = {name: np.zeros((len(material.sets), sum(material.widths))) for name in names}
    steps = len(names) * len(material.widths) * int((folds.max(1) + 1).sum())
    with Progress("simple methods", steps, material.progress, "fits") as progress:
        done = 0
        for repeat, fold_of in enumerate(folds):
            for fold in range(fold_of.max() + 1):
                held, rows = fold_of == fold, np.flatnonzero(fold_of != fold)
                seed = material.seed + repeat
                references = looks.references(rows, material.sets.dim, seed)
                tables = looks.tables(references)
                members: dict[str, list[Arrays]] = {name: [] for name in names}
                for name in names:
                    for target, part in enumerate(columns_of_targets(material.widths)):
                        member = _fitted(material, name, tables, rows, target, seed)
                        predicted = member.predict(tables[member.sees][held]).reshape(held.sum(), -1)
                        answers[name][held, part] += predicted / len(folds)
                        if by_fold is not None:
                            members[name].append(Arrays.of(member.state()))
                        done += 1
                        progress.at(done)
                if by_fold is not None:
                    by_fold[repeat, fold] = Simple(members, _arrays(references))
    return answers


def _simple(
    material: Material, names: Sequence[str], looks: Looks, rows: Int[np.ndarray, " rows"], seed: int
) -> Simple:
    """Methods fitted to some of the sets."""
    references = looks.references(rows, material.sets.dim, seed)
    tables, targets = looks.tables(references), range(len(material.widths))
    members = {
        name: [Arrays.of(_fitted(material, name, tables, rows, target, seed).state()) for target in targets]
        for name in names
    }
    return Simple(members, _arrays(references))


def _arrays(references: References | None) -> Arrays:
    return Arrays.of({} if references is None else references.state())


class _Ensemble:
    """The networks of one method, some for each fold of each repeat."""

    def __init__(
        self,
        material: Material,
        name: str,
        folds: Int[np.ndarray, "repeats sets"],
        table: Float32[np.ndarray, "sets columns"],
    ) -> None:
        self.material, self.folds = material, folds
        places = [(r, f) for r, fold_of in enumerate(folds) for f in range(fold_of.max() + 1)]
        self.places = np.repeat(np.array(places), material.regime.networks, axis=0)
        self.held = np.stack([folds[repeat] == fold for repeat, fold in self.places])
        self.networks = []
        with torch.random.fork_rng():
            torch.manual_seed(material.seed)
            for held in self.held:
                network = material.build(name)
                self._standardise(network, table[~held], np.flatnonzero(~held))
                self.networks.append(network)

    def _standardise(self, network: SetNetwork, table: Float32[np.ndarray, "rows columns"], rows: np.ndarray) -> None:
        """Fit the scales of features and numbers to what the network learns from."""
        shift, scale = spread_of(table, self.material.sets.dim)
        embed: Any = network.encoder.embed
        embed[0].shift.copy_(torch.from_numpy(shift))
        embed[0].scale.copy_(torch.from_numpy(scale))
        if not self.material.classify and not self.material.kind.risks:
            counted = rows[self.material.weights[rows].any(1)]
            network.fit_targets(self.material.targets[counted if len(counted) else rows])

    def learn(self, **how: Any) -> list[dict[str, Any]]:
        material, regime = self.material, self.material.regime
        counts, held = torch.from_numpy(material.weights.mean(1)).float(), torch.from_numpy(self.held)
        targets = material.targets.expand(len(self.networks), -1, -1)
        if not material.classify:
            targets = torch.stack([network.targets(material.targets) for network in self.networks])
        lessons = Lessons(material.sets, targets, counts * ~held, counts * held, material.elements, material.seed)
        repeat, fold = torch.from_numpy(self.places).T
        others = (repeat[:, None] == repeat) & (fold[:, None] != fold)
        return ensembles.learn(
            self.networks,
            lessons,
            material.classify,
            others=others if regime.patience is not None and len(material.sets) >= WATCHED else None,
            epochs=regime.epochs,
            patience=regime.patience or regime.epochs,
            batch_size=regime.batch_size,
            lesson=material.kind.lesson,
            **how,
        )

    def left_out(self) -> Float64[np.ndarray, "sets outputs"]:
        """What the networks say of the sets of their own fold, the mean of those of a fold and over repeats."""
        material = self.material
        answers = np.zeros((len(material.sets), sum(material.widths)))
        for place in np.unique(self.places, axis=0):
            networks = [self.networks[i] for i in np.flatnonzero((self.places == place).all(1))]
            held = np.flatnonzero(self.folds[place[0]] == place[1])
            each = self._said_of(networks, held)
            if material.kind.risks:
                for network, level in zip(networks, each.mean(1), strict=True):
                    network.head.bias.data -= torch.from_numpy(level).to(network.head.bias)
            answers[held] += material.kind.centred(each).mean(0) / len(self.folds)
        return answers

    def _said_of(
        self, networks: Sequence[SetNetwork], which: Int[np.ndarray, " chosen"]
    ) -> Float64[np.ndarray, "networks chosen outputs"]:
        material = self.material
        groups = batched((material.sets[int(i)] for i in which), TOGETHER, material.reading["max_elements"])
        parts = [ensemble_outputs(networks, group, material.device, **material.reading) for group in groups]
        return np.concatenate(parts, 1)
