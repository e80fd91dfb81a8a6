"""Methods side by side, weighted by what each said of sets that it had not seen: `method="auto"`.

A mixture has a forest on pooled features, a linear method on the distances of a set to those learned from
(`omniset.estimators.methods`), an ensemble of small Universal Set Transformers, which see elements in the light of
others, and the prior. What it predicts is

    p = sum over methods m of  w_m p_m,

with weights, and a calibration of each p_m, from the losses of sets left out (`omniset.trials.stacking`). A method
that adds nothing gets no weight, so that the weights say what was worth it; where all together are worse than the best
of them, that one has all the weight.

Every method learns on folds of the sets, the weights from what was left out. Then simple methods learn from all sets;
the networks are those of the folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Int, Shaped
from torch import Tensor, nn

from omniset.core.sets import Sets, StoredSet, batched
from omniset.core.sources import Source, source_of
from omniset.estimators import ensembles
from omniset.estimators.distances import References, Sample, samples_of, seen_of
from omniset.estimators.ensembles import EnsembleBatches, EnsembleModule
from omniset.estimators.inputs import batch_of, folds_of, rows_of
from omniset.estimators.methods import (
    DISTANCES,
    ELEMENTS,
    IN_SETS,
    POOLED,
    ContextForest,
    DissimilarityLinear,
    ElementForest,
    Method,
    PooledForest,
    PooledLinear,
    Prior,
    Table,
)
from omniset.estimators.pooling import pooled, spread_of
from omniset.runs.console import telling
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.training import schema
from omniset.training.ensemble import Ensemble
from omniset.training.network import SetNetwork, Standardize
from omniset.trials.comparison import OURS
from omniset.trials.stacking import Classes, Numbers, Stack, Target, Weights, cross_fitted, in_words

PRIOR = Prior.name
NETWORK = "ust"  # the method that sees elements in the light of others
STEPS = 300  # of the networks, on few sets
FEW = 100
WATCHED = 30  # sets from which on networks stop early
FAR, NEAR = 3 * 1.4826, 0.95  # median errors beyond which an error is drawn in; the share of errors that never is
LEARNED, ROOM = 100_000, 1 << 27  # labelled elements that simple methods learn from, and numbers of these, at most
SEEN = 1 << 24  # numbers of the elements of one large set that simple methods see at a time
TOGETHER = 256  # sets that are read at once where nothing is learned, within max_elements

SHAPES = schema.whole(
    {
        "networks": schema.COUNT,
        "methods": schema.OBJECT | {"additionalProperties": schema.array(schema.OBJECT)},
        "references": schema.OBJECT,
    }
)

Predictions = dict[str, Float64[np.ndarray, "sets outputs"]]
Fold = tuple[int, int]  # a repeat, and one of its folds


class Arrays(nn.Module):
    """Named arrays among the weights of an artefact."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, array)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Arrays:
        return cls({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    @classmethod
    def empty(cls, shapes: Mapping[str, Sequence[Any]]) -> Arrays:
        """Of what `shapes` gave."""
        return cls({name: torch.zeros(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in shapes.items()})

    def shapes(self) -> dict[str, list[Any]]:
        """Type and shape of each, as JSON has them."""
        return {name: [str(a.dtype).removeprefix("torch."), [*a.shape]] for name, a in self.named_buffers()}

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: array.cpu().numpy() for name, array in self.named_buffers()}


@dataclass
class Simple:
    """Fitted methods without a network: by name, for each target the arrays; and the references of all of them."""

    methods: dict[str, list[Arrays]]
    references: Arrays


class SetMixture(nn.Module):
    """Fitted methods and their weights.

    Args:
        input_dim: Features of an element.
        widths: Outputs of each target: its number of classes, or 1.
        classify: The targets are classes.
        networks: Of the ensemble.
        simple: Methods without a network.
        weights, powers: (targets, methods), methods as in METHODS: how much each counts, and the power to which its
            probabilities are raised (`omniset.trials.stacking`). Default: no weight.

    Attributes:
        SIMPLE: The methods without a network.
        METHODS: The names of all methods.
        ENSEMBLE: The loss of the networks.
        risks: Log relative risks are learned, of which only differences count: on no other scale, and up to a constant.
        targets: Numbers are predicted in their own units: nothing is to be undone.
    """

    SIMPLE: ClassVar[Mapping[str, type[Method]]] = {
        method.name: method for method in (Prior, PooledForest, DissimilarityLinear)
    }
    METHODS: ClassVar[Sequence[str]] = (*SIMPLE, NETWORK)
    ENSEMBLE: ClassVar[type[EnsembleModule]] = EnsembleModule
    risks: ClassVar[bool] = False

    weights: Tensor
    powers: Tensor

    def __init__(
        self,
        input_dim: int,
        widths: Sequence[int],
        classify: bool,
        networks: Sequence[SetNetwork],
        simple: Simple,
        weights: Float[Tensor, "targets methods"] | None = None,
        powers: Float[Tensor, "targets methods"] | None = None,
    ) -> None:
        super().__init__()
        self.input_dim, self.widths, self.classify = input_dim, [*widths], classify
        self.networks = nn.ModuleList(networks)
        self.methods = nn.ModuleDict({name: nn.ModuleList(each) for name, each in simple.methods.items()})
        self.references = simple.references
        none = torch.zeros(len(widths), len(self.METHODS), dtype=torch.float64)
        self.register_buffer("weights", none if weights is None else weights)
        self.register_buffer("powers", torch.ones(none.shape, dtype=none.dtype) if powers is None else powers)
        self.targets = Standardize(sum(widths)).double()
        self._restored: dict[str, list[Method]] = {}

    # ------------------------------------------------------------------ how it is stored

    @classmethod
    def empty(
        cls,
        input_dim: int,
        widths: Sequence[int],
        classify: bool,
        shapes: Mapping[str, Any],
        network: Callable[[], SetNetwork],
    ) -> SetMixture:
        """A mixture for weights that are stored: of what `shapes` gave, its networks made by network()."""
        methods = {name: [Arrays.empty(one) for one in each] for name, each in shapes["methods"].items()}
        networks = [network() for _ in range(shapes["networks"])]
        return cls(input_dim, widths, classify, networks, Simple(methods, Arrays.empty(shapes["references"])))

    def shapes(self) -> dict[str, Any]:
        """What is needed to build a mixture that holds the weights of this one, as JSON has it."""
        methods: Any = self.methods
        return {
            "networks": len(self.networks),
            "methods": {name: [one.shapes() for one in each] for name, each in methods.items()},
            "references": self.references.shapes(),
        }

    # ------------------------------------------------------------------ what it says

    def split(self, outputs: Float[Tensor, "rows outputs"]) -> tuple[Tensor, ...]:
        """The outputs of each target."""
        return outputs.split(self.widths, 1)

    def weights_of(self, target: int) -> dict[str, float]:
        """Of each method, for the target of this number; they sum to 1."""
        return dict(zip(self.METHODS, self.weights[target].tolist(), strict=True))

    def predictions(
        self,
        group: Sequence[StoredSet],
        device: torch.device,
        methods: Sequence[str] | None = None,
        **reading: Any,
    ) -> Predictions:
        """What methods say of some sets: probabilities of the classes, target by target, or numbers.

        Args:
            methods: Default: all that were fitted.
            reading: max_elements, shard_size, shards and store: how the networks read the sets.
        """
        wanted = [name for name in self.METHODS if methods is None or name in methods]
        names = [name for name in wanted if name in self.methods]
        networks: Any = [*self.networks]
        tables = {sees: self._table(sees, group) for sees in {self.SIMPLE[name].sees for name in names}}
        answers: Predictions = {}
        for name in names:
            columns = [method.predict(tables[method.sees]) for method in self._methods(name)]
            answers[name] = np.concatenate([c.reshape(len(group), -1) for c in columns], 1).astype(np.float64)
        if NETWORK in wanted and networks:
            answers[NETWORK] = ensemble_outputs(networks, group, device, **reading).mean(0)
        return answers

    def _table(self, sees: str, group: Sequence[StoredSet]) -> Float32[np.ndarray, "sets columns"]:
        if sees == POOLED:
            return pooled(group)
        references = self.restored_references
        return references.distances(samples_of(group, references.seen))

    def inputs(self, name: str, group: Sequence[StoredSet]) -> Float32[np.ndarray, "sets columns"]:
        """What a simple method looks at of some sets."""
        return self._methods(name)[0].inputs(self._table(self.SIMPLE[name].sees, group))

    def mixed(self, answers: Predictions) -> Float64[Tensor, "sets outputs"]:
        """The outputs of the mixture from those of its methods: logarithms of probabilities, or numbers."""
        names = [name for name in self.METHODS if name in answers]
        columns = [self.METHODS.index(name) for name in names]
        parts = []
        for target, part in enumerate(columns_of_targets(self.widths)):
            weights, powers = (of[target, columns].cpu().numpy() for of in (self.weights, self.powers))
            each = np.stack([answers[name][:, part] for name in names])
            mixed = Stack(weights, powers)(each if self.classify else each[..., 0])
            parts.append(mixed.reshape(len(each[0]), -1))
        mixture = torch.from_numpy(np.concatenate(parts, 1))
        return mixture.clamp(min=1e-300).log() if self.classify else mixture

    def outputs(
        self, group: Sequence[StoredSet], device: torch.device, **reading: Any
    ) -> Float64[Tensor, "sets outputs"]:
        """What the mixture says of some sets, by the methods that have weight."""
        there = (self.weights > 0).any(0).tolist()
        weighed = [name for name, some in zip(self.METHODS, there, strict=True) if some]
        return self.mixed(self.predictions(group, device, weighed, **reading))

    @cached_property
    def restored_references(self) -> References:
        """The sets that others are compared with."""
        return References.restored(self.references.arrays())

    def _methods(self, name: str) -> list[Method]:
        if name not in self._restored:
            classes = [width if self.classify else None for width in self.widths]
            arrays: Any = self.methods[name]
            self._restored[name] = [
                self.SIMPLE[name](k).restore(one.arrays()) for k, one in zip(classes, arrays, strict=True)
            ]
        return self._restored[name]

    def in_words(self, targets: Sequence[str]) -> list[str]:
        """The weights, target by target. The networks say whether the interplay of elements tells something."""
        sentences = []
        for number, target in enumerate(targets):
            weights = self.weights_of(number)
            of = f"{target}: " if len(targets) > 1 else ""
            nothing = "" if weights[NETWORK] else "; the elements' interplay adds nothing here"
            sentences.append(f"{of}{in_words(weights)}{nothing}")
        return sentences

    # ------------------------------------------------------------------ what differs where risks are learned

    @classmethod
    def stratum(cls, targets: Shaped[Tensor, "sets targets"]) -> Shaped[np.ndarray, " sets"]:
        """What folds have evenly: the first target, or events."""
        return targets[:, 0].numpy()

    @classmethod
    def units(cls, targets: Shaped[Tensor, "sets targets"], groups: Shaped[np.ndarray, " sets"] | None) -> int:
        """Into how many folds the sets can be dealt."""
        return len(targets) if groups is None else len(np.unique(groups))

    @classmethod
    def labels(cls, values: Shaped[np.ndarray, "rows targets"], sets: Sets, targets: list[str]) -> Any:
        """Labels of some sets, as `fit` has handed them on, for another `fit`."""
        return pd.DataFrame(values, sets.names, targets)

    @classmethod
    def centred(cls, answers: Float64[np.ndarray, "*some sets outputs"]) -> Float64[np.ndarray, "*some sets outputs"]:
        """What a model says of the sets that it left out, by the constant that risks are to have."""
        return answers

    @classmethod
    def batch_of(cls, sets: int) -> int:
        """Sets per step."""
        return batch_of(sets)

    @classmethod
    def can_learn(cls, targets: Shaped[Tensor, "rows targets"]) -> bool:
        """Whether `fit` would take these: two labels."""
        return not bool((targets == targets[0]).all(0).any())

    @classmethod
    def target(
        cls, each: Float[np.ndarray, "methods ..."], y: Shaped[np.ndarray, " rows"], strata: Int[np.ndarray, " rows"]
    ) -> Target:
        """What was true of some sets, of which methods say `each`.

        Args:
            strata: The folds in which risks are compared.
        """
        return Classes(y) if each.ndim == 3 else Numbers(drawn_in(y, each))

    @classmethod
    def weigh(
        cls,
        each: Float[np.ndarray, "methods ..."],
        y: Shaped[np.ndarray, " rows"],
        folds: Int[np.ndarray, "repeats rows"],
        weights: Float[np.ndarray, " rows"],
        groups: Shaped[np.ndarray, " rows"] | None,
    ) -> tuple[Weights, Weights, Float64[np.ndarray, "..."]]:
        """Weights and powers of methods, from what they say of sets left out; and what the mixture that is learned on
        the other folds says of the sets of each, the mean over repeats.
        """
        target, first = cls.target(each, y, folds[0]), folds[0]
        ours = [cross_fitted(each, target, fold_of, first, weights, groups) for fold_of in folds]
        stack = Stack.learned(each, target, first, weights, groups)
        return stack.weights, stack.powers, np.mean(ours, 0)


def drawn_in(y: Float[np.ndarray, " rows"], each: Float[np.ndarray, "methods rows"]) -> Float64[np.ndarray, " rows"]:
    """Numbers from which weights are learned, with m the median of what methods say:

        m + clip(y - m, -t, t),      t = the larger of 3 * 1.4826 median |y - m| and the 95 % quantile of |y - m|

    Of normal errors hardly one is beyond t. Where they have heavy tails, as counts of visits do, squared errors of a
    few sets would decide all weights, and by chance: a method that learned from one of two outliers is right on the
    other.
    """
    m = np.median(each, 0).astype(np.float64)
    t = max(FAR * float(np.median(np.abs(y - m))), float(np.quantile(np.abs(y - m), NEAR)))
    return m + np.clip(y - m, -t, t)


class NumberMixture(SetMixture):
    """Of numbers: beside the others ridge on pooled features, as no forest says more than it has seen."""

    SIMPLE: ClassVar[Mapping[str, type[Method]]] = {
        method.name: method for method in (Prior, PooledLinear, PooledForest, DissimilarityLinear)
    }
    METHODS: ClassVar[Sequence[str]] = (*SIMPLE, NETWORK)


class ElementMixture(SetMixture):
    """Of labels of elements: forests on the features of an element, alone and in the light of its set, and one network.

    The network learns as one alone does, beside sets kept back, and so do the forests; weights come from these sets.
    """

    SIMPLE: ClassVar[Mapping[str, type[Method]]] = {m.name: m for m in (Prior, ElementForest, ContextForest)}
    METHODS: ClassVar[Sequence[str]] = (*SIMPLE, NETWORK)

    @classmethod
    def fitted(
        cls,
        sets: Sets,
        which: Int[np.ndarray, " chosen"],
        targets: Shaped[np.ndarray, "rows targets"],
        counts: Float[np.ndarray, "rows targets"],
        classes: Sequence[int | None],
        seed: int,
    ) -> Simple:
        """The simple methods, fitted to the elements of some sets.

        Args:
            counts: How much each element counts, 0 where it has no label.
        """
        rows = rows_of(sets, which)
        labelled = rows[counts[rows].any(1)]
        most = min(LEARNED, max(ROOM // (10 * sets.dim), 1))
        rows = np.sort(np.random.default_rng(seed).permutation(labelled)[:most])
        parts = []
        for i in np.unique(np.searchsorted(sets.offsets, rows, side="right") - 1).tolist():
            first, end = np.searchsorted(rows, sets.offsets[i : i + 2])
            whole = np.concatenate([tables[IN_SETS] for tables in tables_of_elements([sets[i]])])
            parts.append(whole[rows[first:end] - sets.offsets[i]])
        table = np.concatenate(parts)
        seen = {IN_SETS: table, ELEMENTS: table[:, : sets.dim]}
        fitted: dict[str, list[Arrays]] = {}
        for name, method in cls.SIMPLE.items():
            each = [
                method(k).fit(seen.get(method.sees, table), y, w, seed)
                for k, y, w in zip(classes, targets[rows].T, counts[rows].T, strict=True)
            ]
            fitted[name] = [Arrays.of(one.state()) for one in each]
        return Simple(fitted, Arrays({}))

    def predictions(
        self, group: Sequence[StoredSet], device: torch.device, methods: Sequence[str] | None = None, **reading: Any
    ) -> Predictions:
        """What methods say of the elements of some sets, one set after the other."""
        wanted = [name for name in self.METHODS if methods is None or name in methods]
        said: dict[str, list[np.ndarray]] = {name: [] for name in wanted if name in self.methods}
        for tables in tables_of_elements(group) if said else ():
            for name, parts in said.items():
                seen = tables.get(self.SIMPLE[name].sees, tables[IN_SETS])
                columns = [method.predict(seen).reshape(len(seen), -1) for method in self._methods(name)]
                parts.append(np.concatenate(columns, 1).astype(np.float64))
        answers = {name: np.concatenate(parts) for name, parts in said.items()}
        networks: Any = [*self.networks] if NETWORK in wanted else []
        for network in networks:
            answers[NETWORK] = probable(network, torch.cat([*outputs_of(network, group, device, **reading)]))
        return answers


def tables_of_elements(group: Sequence[StoredSet]) -> Iterator[dict[str, Table]]:
    """What simple methods see of elements, set after set; one large set in pieces."""
    of_sets = pooled(group)
    longest, columns = max(map(len, group)), of_sets.shape[1] + group[0].elements.shape[1]
    size = max(longest if len(group) > 1 else SEEN // columns, 1)
    for start in range(0, max(longest, 1), size):
        each = [stored.read(start, size)[0].float().numpy() for stored in group]
        elements = np.concatenate(each)
        of_set = np.repeat(of_sets, [len(x) for x in each], 0)
        yield {ELEMENTS: elements, IN_SETS: np.concatenate([elements, of_set], 1)}


def columns_of_targets(widths: Sequence[int]) -> list[slice]:
    """The outputs of each target."""
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *widths]).tolist())]


def ensemble_outputs(
    networks: Sequence[SetNetwork],
    group: Sequence[StoredSet],
    device: torch.device,
    max_elements: int,
    shard_size: int | None = None,
    **options: Any,
) -> Float64[np.ndarray, "networks sets outputs"]:
    """What each network says of some sets: probabilities, or numbers in their own units. Sets are read once."""
    source = source_of([*group], max_elements, shard_size)
    each = []
    with torch.no_grad():
        for network in networks:
            network.to(device)
            if isinstance(source, Source):
                out = network.of_large(source, shard_size=shard_size, **options).cpu()
            else:
                out = network(source.to(device), shard_size=shard_size, **options).cpu()
            network.to("cpu")
            each.append(probable(network, out))
    return np.stack(each)


def probable(network: SetNetwork, out: Float[Tensor, "rows outputs"]) -> Float64[np.ndarray, "rows outputs"]:
    """Outputs of a network as probabilities, or numbers in their own units."""
    if max(network.widths) == 1:
        return network.targets.undo(out).double().numpy()
    return torch.cat([part.double().softmax(1) for part in network.split(out)], 1).numpy()


def outputs_of(
    network: SetNetwork,
    group: Sequence[StoredSet],
    device: torch.device,
    max_elements: int,
    shard_size: int | None = None,
    **options: Any,
) -> Iterator[Float[Tensor, "rows outputs"]]:
    """The outputs of one network on some sets, or on their elements: of those of a large set several in a row.

    Raises:
        ValueError: They are no numbers.
    """
    source = source_of([*group], max_elements, shard_size)
    network = network.to(device).eval()
    names = [stored.name for stored in group]
    with torch.no_grad():
        if isinstance(source, Source) and network.of_elements:
            for shard in network.encoder(source, shard_size=None, **options).elements:
                out = network.head(shard.elements[0]).cpu()
                require_finite_outputs(out[None], names, "set")
                yield out
            return
        if isinstance(source, Source):
            out = network.of_large(source, shard_size=shard_size, **options)
        else:
            out = network(source.to(device), shard_size=shard_size, **options)
        require_finite_outputs(out, names, "set")
        out = out.cpu()
        yield torch.cat([out[i, : len(s)] for i, s in enumerate(group)]) if network.of_elements else out


# ---------------------------------------------------------------------- how it learns


@dataclass(frozen=True)
class Regime:
    """How a mixture of so many sets learns, where the user did not say.

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
        if repeats is None:
            repeats = 1 if folds is not None or sets >= 200 else 2 if sets >= 60 else 3
        folds = min(5 if sets < 1000 else 3, units) if folds is None else folds
        batch = batch_of(sets) if batch is None else batch
        steps = STEPS * max(1, math.sqrt(sets / FEW))
        epochs = math.ceil(steps / math.ceil(sets / batch)) if epochs is None else epochs
        networks = 1 if sets < 200 else 2
        return cls(folds, repeats, networks, batch, epochs, patience)

    def in_words(self) -> str:
        dealt = "once" if self.repeats == 1 else f"{self.repeats} times"
        return f"{self.folds} folds of the sets, dealt {dealt}"


@dataclass
class OutOfFold:
    """What methods said of sets that they had not learned from.

    Attributes:
        folds: (repeats, sets) the fold of each set.
        predictions: By method, ours among them: probabilities of the classes, target by target, numbers, or log
            relative risks; the mean over repeats, in each of which the set was left out. The weights that ours takes
            for a fold are learned on the others. Risks are compared within the folds of the first repeat
            (`omniset.estimators.survival`).
        mixtures: Of each fold of the first repeat, where they were asked for: the methods that have not seen its sets,
            with the weights that the other sets give.
    """

    folds: Int[np.ndarray, "repeats sets"]
    predictions: Mapping[str, Float64[np.ndarray, "sets outputs"]]
    mixtures: Mapping[int, SetMixture] = field(default_factory=dict, repr=False)


@dataclass
class MixtureLearner:
    """Learns a mixture, or some of its methods.

    Attributes:
        kind: Of labels, or of risks.
        targets: (sets, targets): codes of classes, or numbers.
        weights: (sets, targets): how much each set counts.
        groups: Sets of one group are in one fold.
        build: Makes an untrained network.
        reading: max_elements, shard_size, shards and store.
        elements: Of a set that a step of the networks sees, at most.
        keep: What is learned on the folds is given too, see `OutOfFold.mixtures`.
    """

    kind: type[SetMixture]
    sets: Sets
    targets: Shaped[Tensor, "sets targets"]
    widths: Sequence[int]
    classify: bool
    weights: Float[np.ndarray, "sets targets"]
    groups: Shaped[np.ndarray, " sets"] | None
    regime: Regime
    build: Callable[[], SetNetwork]
    reading: Mapping[str, Any]
    elements: int
    seed: int
    device: torch.device
    progress: bool
    keep: bool = False

    def learn(
        self, folder: Path | None, resume: bool, **optimiser: Any
    ) -> tuple[SetMixture, OutOfFold, list[dict[str, Any]]]:
        """A mixture, what its methods said of sets left out, and a dict per epoch of its networks.

        Args:
            optimiser: learning_rate and weight_decay; and the fingerprint of the run.
        """
        folds, simple = self.deal(), [*self.kind.SIMPLE]
        of_folds: dict[int, Simple] = {}
        answers = self.left_out(simple, folds, of_folds)
        ensemble = _Ensemble(self, folds)
        telling(self.progress)(f"{NETWORK}: {len(ensemble.networks)} small networks learn together")
        history = ensemble.learn(
            **optimiser, device=self.device.type, progress=self.progress, resume=resume, folder=folder
        )
        answers[NETWORK] = ensemble.left_out()
        mixtures = [self._weighed(answers, folds, target) for target in range(len(self.widths))]
        weights = [torch.from_numpy(np.stack(parts)) for parts in zip(*mixtures, strict=True)]
        by_fold = {
            fold: self._mixture(ensemble.of_fold((0, fold)), simple, *self._without(answers, folds[0], fold))
            for fold, simple in of_folds.items()
        }
        whole = self._mixture(ensemble.networks, self._fit_simple(simple, np.arange(len(self.sets))), *weights)
        return whole, OutOfFold(folds, answers, by_fold), history

    def learn_alone(self, name: str) -> tuple[SetMixture, OutOfFold | None]:
        """One simple method, which has all the weight, with the others beside it; and what they said of sets left out,
        where there are two units or more.
        """
        names = [*self.kind.SIMPLE]
        mixture = self.simple(np.arange(len(self.sets)))
        mixture.weights[:, self.kind.METHODS.index(name)] = 1
        if self.kind.units(self.targets, self.groups) < 2:
            return mixture, None
        folds = self.deal()
        of_folds: dict[int, Simple] = {}
        answers = self.left_out(names, folds, of_folds)
        by_fold = {at: self._mixture([], simple, mixture.weights, mixture.powers) for at, simple in of_folds.items()}
        return mixture, OutOfFold(folds, {OURS: answers.pop(name), **answers}, by_fold)

    def simple(self, rows: Int[np.ndarray, " rows"]) -> SetMixture:
        """Methods without a network, fitted to some of the sets, without weights."""
        return self._mixture([], self._fit_simple([*self.kind.SIMPLE], rows))

    def deal(self) -> Int[np.ndarray, "repeats sets"]:
        """Sets to folds."""
        stratum, seeds = self.kind.stratum(self.targets), range(self.seed, self.seed + self.regime.repeats)
        return np.stack([folds_of(stratum, self.regime.folds, seed, self.groups) for seed in seeds])

    def left_out(
        self, names: Sequence[str], folds: Int[np.ndarray, "repeats sets"], of_folds: dict[int, Simple] | None = None
    ) -> Predictions:
        """What simple methods say of sets left out; into `of_folds`, the methods of each fold of the first repeat,
        where they are kept.
        """
        answers = {name: np.zeros((len(self.sets), sum(self.widths))) for name in names}
        steps = len(names) * len(self.widths) * int((folds.max(1) + 1).sum())
        with Progress("simple methods", steps, self.progress, "fits") as progress:
            done = 0
            for repeat, fold_of in enumerate(folds):
                for fold in range(fold_of.max() + 1):
                    held, rows, seed = fold_of == fold, np.flatnonzero(fold_of != fold), self.seed + repeat
                    references = self._references(rows, seed)
                    tables = self._tables(references)
                    fitted: dict[str, list[Arrays]] = {name: [] for name in names}
                    for name in names:
                        for target, part in enumerate(columns_of_targets(self.widths)):
                            method = self._fitted(name, tables, rows, target, seed)
                            predicted = method.predict(tables[method.sees][held]).reshape(held.sum(), -1)
                            answers[name][held, part] += predicted / len(folds)
                            if self.keep:
                                fitted[name].append(Arrays.of(method.state()))
                            done += 1
                            progress.at(done)
                    if of_folds is not None and self.keep and not repeat:
                        of_folds[fold] = Simple(fitted, Arrays.of(references.state()))
        return answers

    @cached_property
    def pooled(self) -> Float32[np.ndarray, "sets columns"]:
        return pooled(self.sets)

    @cached_property
    def _seen(self) -> int:
        return seen_of(len(self.sets), self.sets.dim)

    @cached_property
    def _samples(self) -> list[Sample]:
        return samples_of(self.sets, self._seen)

    def _references(self, rows: Int[np.ndarray, " rows"], seed: int) -> References:
        samples = [self._samples[int(i)] for i in rows]
        return References.of(samples, spread_of(self.pooled[rows], self.sets.dim), self._seen, seed)

    def _tables(self, references: References) -> dict[str, Float32[np.ndarray, "sets columns"]]:
        return {POOLED: self.pooled, DISTANCES: references.distances(self._samples)}

    def _fitted(
        self,
        name: str,
        tables: Mapping[str, Float32[np.ndarray, "sets columns"]],
        rows: Int[np.ndarray, " rows"],
        target: int,
        seed: int,
    ) -> Method:
        method = self.kind.SIMPLE[name](self.widths[target] if self.classify else None)
        y = self.targets[:, target].double().numpy()
        y = y.astype(np.int64) if self.classify else y
        groups = None if self.groups is None else self.groups[rows]
        return method.fit(tables[method.sees][rows], y[rows], self.weights[rows, target], seed, groups)

    def _fit_simple(self, names: Sequence[str], rows: Int[np.ndarray, " rows"]) -> Simple:
        references, targets = self._references(rows, self.seed), range(len(self.widths))
        tables = self._tables(references)
        fitted = {
            name: [Arrays.of(self._fitted(name, tables, rows, target, self.seed).state()) for target in targets]
            for name in names
        }
        return Simple(fitted, Arrays.of(references.state()))

    def _mixture(self, networks: Sequence[SetNetwork], simple: Simple, *weights: Tensor) -> SetMixture:
        return self.kind(self.sets.dim, self.widths, self.classify, networks, simple, *weights).eval()

    def _weighed(
        self, answers: Predictions, folds: Int[np.ndarray, "repeats sets"], target: int
    ) -> tuple[Weights, Weights]:
        """Weights and powers of the methods; and into `answers`, what ours says of sets left out.

        They are learned from the mean over repeats: what the networks of several repeats say together is closer to what
        all of them will say of new sets.
        """
        part, methods = columns_of_targets(self.widths)[target], self.kind.METHODS
        y, counts = self.targets[:, target].numpy(), self.weights[:, target]
        each = np.stack([answers[name][:, part] for name in methods])
        each = each if self.classify else each[..., 0]
        weights, powers, ours = self.kind.weigh(each, y, folds, counts, self.groups)
        answers.setdefault(OURS, np.zeros_like(answers[PRIOR]))[:, part] = ours.reshape(len(y), -1)
        return weights, powers

    def _without(self, answers: Predictions, fold_of: Int[np.ndarray, " sets"], fold: int) -> list[Tensor]:
        """Weights and powers that the sets of all other folds give."""
        rows, parts = fold_of != fold, []
        groups = None if self.groups is None else self.groups[rows]
        for target, part in enumerate(columns_of_targets(self.widths)):
            each = np.stack([answers[name][rows, part] for name in self.kind.METHODS])
            each, y = each if self.classify else each[..., 0], self.targets[:, target].numpy()[rows]
            of_folds = self.kind.target(each, y, fold_of[rows])
            stack = Stack.learned(each, of_folds, fold_of[rows], self.weights[rows, target], groups)
            parts.append((stack.weights, stack.powers))
        return [torch.from_numpy(np.stack(of)) for of in zip(*parts, strict=True)]


class _Ensemble:
    def __init__(self, learner: MixtureLearner, folds: Int[np.ndarray, "repeats sets"]) -> None:
        self.learner, self.folds = learner, folds
        places = [(r, f) for r, fold_of in enumerate(folds) for f in range(fold_of.max() + 1)]
        self.places = np.repeat(np.array(places), learner.regime.networks, axis=0)
        self.held = np.stack([folds[repeat] == fold for repeat, fold in self.places])
        self.networks: list[SetNetwork] = []
        with torch.random.fork_rng():
            torch.manual_seed(learner.seed)
            for held in self.held:
                network = learner.build()
                self._standardise(network, np.flatnonzero(~held))
                self.networks.append(network)

    def of_fold(self, fold: Fold) -> list[SetNetwork]:
        """The networks that have not seen the sets of a repeat's fold."""
        return [self.networks[i] for i in np.flatnonzero((self.places == fold).all(1)).tolist()]

    def _standardise(self, network: SetNetwork, rows: np.ndarray) -> None:
        learner = self.learner
        shift, scale = spread_of(learner.pooled[rows], learner.sets.dim)
        embed: Any = network.encoder.embed
        embed[0].shift.copy_(torch.from_numpy(shift))
        embed[0].scale.copy_(torch.from_numpy(scale))
        if not learner.classify and not learner.kind.risks:
            counted = rows[learner.weights[rows].any(1)]
            network.fit_targets(learner.targets[counted if len(counted) else rows])

    def learn(
        self, learning_rate: float, weight_decay: float, fingerprint: dict[str, Any], **fitting: Any
    ) -> list[dict[str, Any]]:
        learner, regime = self.learner, self.learner.regime
        counts, held = torch.from_numpy(learner.weights.mean(1)).float(), torch.from_numpy(self.held)
        targets = learner.targets.expand(len(self.networks), -1, -1)
        if not learner.classify:
            targets = torch.stack([network.targets(learner.targets) for network in self.networks])
        batches = EnsembleBatches(learner.sets, targets, counts * ~held, counts * held, learner.elements, learner.seed)
        repeat, fold = torch.from_numpy(self.places).T
        others = (repeat[:, None] == repeat) & (fold[:, None] != fold)
        module = learner.kind.ENSEMBLE(
            Ensemble(self.networks),
            learner.widths,
            learner.classify,
            others if regime.patience is not None and len(learner.sets) >= WATCHED else None,
            regime.patience or regime.epochs,
            learning_rate,
            weight_decay,
            learner.seed,
            fingerprint | {"data": batches.checksum()},
        )
        sizes = {"epochs": regime.epochs, "batch_size": regime.batch_size, "together": TOGETHER}
        return ensembles.learn(self.networks, module, batches, **sizes, **fitting)

    def left_out(self) -> Float64[np.ndarray, "sets outputs"]:
        """What the networks say of the sets of their own fold, the mean of those of a fold and over repeats."""
        learner = self.learner
        answers = np.zeros((len(learner.sets), sum(learner.widths)))
        for repeat, fold in dict.fromkeys(map(tuple, self.places.tolist())):
            networks, held = self.of_fold((repeat, fold)), np.flatnonzero(self.folds[repeat] == fold)
            groups = batched((learner.sets[int(i)] for i in held), TOGETHER, learner.reading["max_elements"])
            parts = [ensemble_outputs(networks, group, learner.device, **learner.reading) for group in groups]
            each = np.concatenate(parts, 1)
            if learner.kind.risks:
                for network, level in zip(networks, each.mean(1), strict=True):
                    network.head.bias.data -= torch.from_numpy(level).to(network.head.bias)
            answers[held] += learner.kind.centred(each).mean(0) / len(self.folds)
        return answers
