"""How a model of sets learns: one network, one simple method, or a mixture; scikit-learn style."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets
from omniset.estimators import importance, inputs
from omniset.estimators.methods import FOLDS
from omniset.estimators.mixture import (
    NETWORK,
    PRIOR,
    ElementMixture,
    MixtureLearner,
    OutOfFold,
    Regime,
    columns_of_targets,
)
from omniset.estimators.model import SetModel
from omniset.estimators.options import AUTO, SIZES, SIZES_OF_ONE
from omniset.options import defaults_of
from omniset.runs import processes
from omniset.runs.devices import SMALL_STEP, find, threads_for
from omniset.training.network import SetNetwork
from omniset.trials.comparison import OURS
from omniset.trials.stacking import Stack

FEW, FEW_OF_ELEMENTS = 30, 8  # sets below which none are kept back, of one network, and where elements are labelled
POOLED = 1 << 28  # numbers up to which sets are pooled for what stands beside one network
DRAWN = 2048  # elements of a set that a step of a mixture's networks sees

OF_ONE = ("log", "gradient", "validation_fraction")  # options of one network
OF_NETWORKS = (
    *("dim", "depth", "num_heads", "num_inducing", "encoder_options"),
    *("epochs", "learning_rate", "weight_decay", "patience"),
)


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


class SetEstimator(SetModel):
    """What SetClassifier and SetRegressor share.

    Args:
        {options}

    Attributes:
        history_: One dict per epoch: epoch, train_loss, train_accuracy (or train_mse), and val_loss and so on.
        network_: What was learned: one network, or a mixture (omniset.estimators.mixture.SetMixture); of a simple
            method alone, a mixture in which it has all the weight.
        out_of_fold_: What each method said of sets left out (omniset.estimators.mixture.OutOfFold); None where no
            folds were asked for, and after `load`.
        importance_: How much each feature matters, on sets left out (omniset.estimators.importance); None where it was
            not measured, and after `load`.
        simple_: Simple methods beside one network, fitted to what it was trained on; None beside a mixture.
        features_: Names of the features, where the sets came as a table.
        encoding_: How the columns of the table became features.
        targets_: Names of the targets: the columns of y, or its name, or "label".
        notes_: What was decided on the data, a sentence each.
        seen_: Digests of the names of the sets that were learned from, where they came as a table.
        scales_: Where the values of each feature lie, by which other units are seen (omniset.estimators.inputs.Scales).
        chosen_: Of the options that are None, the values that `fit` chose.
        prior_: Of each target what is known without looking at a set: how frequent each class is in training, or
            the mean.
    """

    def fit(
        self,
        sets: Any,
        y: Any,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> SetEstimator:
        """Train.

        Args:
            sets: A SetBatch, a list of N_i x D arrays, a long DataFrame with a column `set`, or Sets. An array of
                numbers (B, N, D) is B sets of N elements, and (B, D) B sets of one.
            y: Labels, or rows of them for several targets. level="set": one per set, in the order of the sets; for a
                DataFrame, sets come in the order in which they first appear, and y is matched by its index, or by its
                column `set`.
                level="element": one per row of the table, or a list of one array per set; None or NaN: no label.
            groups: (B,) sets of one group stay together wherever sets are divided. A Series as y.
            sample_weight: (B,) how much each set counts, >= 0. A Series as y. None: all the same.
            folder: Keep checkpoints and logs here.
            resume: Continue the interrupted run that this folder holds.

        Raises:
            ValueError: Sets or labels that cannot be used, or a checkpoint of another run.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        self._check_method()
        self.check_resumed(folder, resume)
        collection = inputs.sets_of(sets, missing=self.missing)
        values, self.targets_, self.single_ = inputs.aligned(y, collection, self.level, self.usual_target)
        targets, widths = self._encode_targets(values)
        by_group = None if groups is None else inputs.per_set(groups, collection, "groups")
        by_group = inputs.groups_of(collection.names, by_group)
        self._check_groups(targets, by_group)
        weights = None if sample_weight is None else inputs.weights_per_set(sample_weight, collection)
        place = None if folder is None else Path(folder)
        given = Given(collection, values, targets, widths, weights, by_group, place, resume)
        self.notes_ = [inputs.task_of(values, self.targets_, self.level, self.classifies)]
        self.simple_ = None
        self.out_of_fold_ = None
        self.importance_ = None
        self.chosen_ = {}
        self.features_, self.encoding_ = collection.features, collection.encoding
        self.scales_ = inputs.Scales.of(collection)
        if self.single is not None:
            self._fit_network(given)
        elif self.alone is not None:
            self._fit_simple(given)
        else:
            self._fit_mixture(given)
        self.seen_ = inputs.digests(collection, np.setdiff1d(np.arange(len(collection)), self.validation_))
        self.ignored_ = []  # columns of a file that were not used
        self.reading_ = {}  # how files were read
        return self

    def fit_transform(self, sets: Any, y: Any, **arguments: Any) -> Any:
        """`fit`, with these arguments, and then `transform`."""
        return self.fit(sets, y, **arguments).transform(sets)

    # ------------------------------------------------------------------ one network

    def _fit_network(self, given: Given) -> None:
        from omniset.training.fit import fit

        sets, targets, widths = given.sets, given.targets, given.widths
        of_elements = self.level == "element"
        beside = not of_elements and int(sets.sizes.sum()) * sets.dim <= POOLED
        learner = self._learner(given) if beside else None
        evenly = (self.classifies or self.MIXTURE.risks) and not of_elements and targets.shape[1] == 1
        stratum = self.MIXTURE.stratum(targets) if evenly else None
        fraction = self._kept_back(len(sets))
        train, self.validation_ = inputs.split(len(sets), fraction, self.seed, given.groups, stratum)
        known = targets[inputs.rows_of(sets, train) if of_elements else train]
        if len(self.validation_):
            flatters = "; they chose the epoch, which flatters" if self.patience is not None else ""
            self.notes_.append(
                f"{len(self.validation_):,} of {len(sets):,} sets, kept back to watch the training{flatters}"
            )
        self.prior_ = self.prior_of(known, widths)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = self.build(sets.dim, widths)
        self.warn_of_classes(given.values, known)
        _fit_features(network, sets, train)
        if not self.classifies and not self.MIXTURE.risks:
            network.fit_targets(known)
        data = inputs.checksum(sets, targets, train, given.weights)
        module = self._module(network, self.class_weights(known, widths), data)
        lesson = self._lesson(given, train)
        mean = int(np.ceil(sets.sizes.mean()))  # elements of a set that are computed together
        mean = mean if self.shard_size is None else min(mean, self.shard_size)
        with threads_for(lesson.batch_size * mean * self.size("dim"), SMALL_STEP):
            named = ("patience", "device", "progress", "log", "devices", "num_nodes")
            how: dict[str, Any] = {name: getattr(self, name) for name in named}
            fit(module, lesson, epochs=self.size("epochs"), folder=given.folder, resume=given.resume, **how)
        self.network_, self.history_ = module.network, module.history
        self.chosen_ = SIZES_OF_ONE | {"batch_size": inputs.batch_of(len(sets))}
        self.chosen_ |= {"validation_fraction": fraction, "importance": False}
        if learner is not None:
            self.simple_ = learner.simple(train)
            if self.folds is not None:
                self.out_of_fold_ = self._cross_validated(given, learner)
        if of_elements:
            self._mix_elements(given, train, module.network)
        if self.importance:
            self._measure_kept_back(given)

    def _mix_elements(self, given: Given, train: Int[np.ndarray, " _"], network: SetNetwork) -> None:
        """Forests beside the network that was named; where none was, mixed with it, as the sets kept back say."""
        sets, widths, kept = given.sets, given.widths, self.validation_
        y = given.targets.double().numpy()
        there = y >= 0 if self.classifies else np.isfinite(y)
        y = np.where(there, y, 0).astype(np.int64 if self.classifies else np.float64)
        copies = np.concatenate([importance.counts_of(sets[i]) for i in range(len(sets))])
        counts = there * self._counts(given, copies)
        if not counts[inputs.rows_of(sets, train)].any(0).all():
            return  # of some target nothing is known but in sets kept back
        make = partial(ElementMixture, sets.dim, widths, self.classifies)
        classes = [width if self.classifies else None for width in widths]
        simple = ElementMixture.fitted(sets, train, y, counts, classes, self.seed)
        if self.encoder is not None or self.method != AUTO:
            self.simple_ = make([], simple).eval()
            return
        self.network_ = mixture = make([network], simple).eval()
        mixture.weights[:, ElementMixture.METHODS.index(NETWORK)] = 1
        groups = np.arange(len(sets)) if given.groups is None else np.unique(given.groups, return_inverse=True)[1]
        if len(np.unique(groups[kept])) < 2:
            return
        rows, unit = inputs.rows_of(sets, kept), np.repeat(groups[kept], sets.sizes[kept])
        said = [mixture.predictions(g, find(self.device), **self.reading()) for g in self._grouped(sets[kept])]
        for target, part in enumerate(columns_of_targets(widths)):
            each = np.stack([np.concatenate([one[name][:, part] for one in said]) for name in mixture.METHODS])
            truth, of_row = y[rows, target], counts[rows, target]
            if not of_row.any():
                continue
            folds = inputs.folds_of(truth, FOLDS, self.seed, unit)
            each = each if self.classifies else each[..., 0]
            stack = Stack.learned(each, mixture.target(each, truth, folds), folds, of_row, unit)
            mixture.weights[target], mixture.powers[target] = map(torch.from_numpy, (stack.weights, stack.powers))
        self.notes_[-1:-1] = mixture.in_words(self.targets_)  # what was kept back is said last

    def _module(self, network: SetNetwork, class_weights: list[Tensor] | None, data: int) -> Any:
        """What is trained. A checkpoint of it can be resumed with the same options and data only."""
        from omniset.training.cox import CoxModule
        from omniset.training.sets import SetModule

        return (CoxModule if self.MIXTURE.risks else SetModule)(
            network,
            self.classifies,
            class_weights,
            self.size("learning_rate"),
            self.weight_decay,
            self.reading() | {"gradient": self.gradient},
            self.seed,
            self.fingerprint() | {"data": data},  # the number of processes changes no step but for rounding
        )

    def _lesson(self, given: Given, train: Int[np.ndarray, " _"]) -> Any:
        """The batches of an epoch. Where they are read in shards, these are of random elements."""
        from omniset.training.data import Lesson
        from omniset.training.sets import SetBatches

        weights = None if given.weights is None else torch.from_numpy(given.weights).float()
        shuffled = None if self.shard_size is None else self.seed
        reading = (self.max_elements, self.shard_size, shuffled, weights)
        make = SetBatches(given.sets, given.targets, self.level == "element", *reading)
        batch_size = self.batch_size or self.MIXTURE.batch_of(len(train))
        return Lesson(make, train, self.validation_, batch_size=batch_size, seed=self.seed)

    def _kept_back(self, sets: int) -> float:
        if self.validation_fraction is not None:
            return self.validation_fraction
        mixes = self.level == "element" and self.encoder is None and self.method == AUTO  # by the sets kept back
        return 0.0 if sets < (FEW_OF_ELEMENTS if mixes else FEW) else max(0.1, min(0.25, FEW / sets))

    def _cross_validated(self, given: Given, learner: MixtureLearner) -> OutOfFold:
        folds = learner.deal()
        answers = learner.left_out([*self.MIXTURE.SIMPLE], folds)
        answers[OURS] = np.zeros((len(given.sets), sum(given.widths)))
        for fold_of in folds:
            for fold in range(fold_of.max() + 1):
                rows, held = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
                if not self.MIXTURE.can_learn(given.targets[rows]):
                    answers[OURS][held] += answers[PRIOR][held] / len(folds)
                    continue
                one = type(self)(**self.get_params()).set_params(folds=None, repeats=None, importance=False)
                y = self.MIXTURE.labels(given.values[rows], given.sets[rows], self.targets_)
                groups, weights = (None if of is None else of[rows] for of in (given.groups, given.weights))
                if groups is not None and len(np.unique(groups)) < 2:
                    one.set_params(validation_fraction=0.0)  # nothing can be kept back
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the whole has said it
                    one.fit(given.sets[rows], y, groups=groups, sample_weight=weights)
                probable = one.probable(given.sets[held], self)
                answers[OURS][held] += self.MIXTURE.centred(probable) / len(folds)
        return OutOfFold(folds, answers)

    # ------------------------------------------------------------------ a mixture, or one of its simple methods

    def _fit_mixture(self, given: Given) -> None:
        sets = given.sets
        with torch.random.fork_rng():  # options that the network does not take are refused before anything is learned
            self.build(sets.dim, given.widths)
        learner = self._learner(given)
        self.validation_ = np.arange(0)
        self.prior_ = self.prior_of(given.targets, given.widths)
        self.warn_of_classes(given.values, given.targets)
        data = inputs.checksum(sets, given.targets, np.arange(len(sets)))
        with threads_for(int(sets.sizes.sum()) * sets.dim):
            mixture, self.out_of_fold_, self.history_ = learner.learn(
                given.folder,
                given.resume,
                learning_rate=self.size("learning_rate"),
                weight_decay=self.weight_decay,
                fingerprint=self.fingerprint() | {"sets": data},
            )
        self.network_, regime = mixture, learner.regime
        self.chosen_ = SIZES | self._folds(learner)
        self.chosen_ |= {"epochs": regime.epochs, "batch_size": regime.batch_size}
        loss = "log loss" if self.classifies else "partial likelihood" if mixture.risks else "squared error"
        mean = "" if regime.repeats == 1 else "the mean over these of "
        self.notes_ += [
            *mixture.in_words(self.targets_),
            f"{regime.in_words()}: the table has {mean}what each method says of sets left out; "
            f"weights follow its {loss} there, so that another method can be first by another score; those in the "
            "table's row of omniset were learned without the sets that it is judged on, fold by fold",
        ]
        self._measure_left_out(given)
        if int(sets.sizes.max(initial=0)) > DRAWN:
            self.notes_.append(
                f"networks of the mixture learn from {DRAWN:,} elements of a larger set, drawn anew for each epoch; "
                "they predict from all"
            )

    def _fit_simple(self, given: Given) -> None:
        learner = self._learner(given)
        self.validation_, self.history_ = np.arange(0), []
        self.prior_ = self.prior_of(given.targets, given.widths)
        self.warn_of_classes(given.values, given.targets)
        self.network_, self.out_of_fold_ = learner.learn_alone(str(self.alone))
        self.notes_.append(f"omniset is {self.alone} alone here; simple methods stand beside it")
        if self.out_of_fold_ is not None:
            self.chosen_ = self._folds(learner)
            self.notes_.append(f"{learner.regime.in_words()}: what is said of how good it is, is of sets left out")
            self._measure_left_out(given)

    def _counts(self, given: Given, copies: Float[np.ndarray, " rows"]) -> Float[np.ndarray, "rows targets"]:
        """How much each label counts: sample_weight, class_weight, and the multiplicity of an element."""
        if given.weights is not None:
            copies = copies * (given.weights if self.level == "set" else np.repeat(given.weights, given.sets.sizes))
        each = np.repeat(copies[:, None], len(given.widths), 1)
        for target, of_class in enumerate(self.class_weights(given.targets, given.widths) or []):
            each[:, target] *= of_class.numpy()[given.targets[:, target].numpy()]
        return each

    def _learner(self, given: Given) -> MixtureLearner:
        sets = given.sets
        units = self.MIXTURE.units(given.targets, given.groups)
        if self.folds is None and (self.single is not None or self.alone is not None):
            units = max(units, 2)  # nothing need be left out
        batch = self.batch_size or self.MIXTURE.batch_of(len(sets))
        asked = (self.folds, self.repeats, self.epochs, batch, self.patience)
        return MixtureLearner(
            self.MIXTURE,
            sets,
            given.targets,
            given.widths,
            self.classifies,
            self._counts(given, np.ones(len(sets))),
            given.groups,
            Regime.of(len(sets), units, *asked),
            lambda: self.build(sets.dim, given.widths),
            self.reading(),
            DRAWN,
            self.seed,
            find(self.device),
            self.progress,
            keep=self.single is None and importance.wanted(self.importance, sets),
        )

    def _folds(self, learner: MixtureLearner) -> dict[str, Any]:
        regime = learner.regime
        return {"folds": regime.folds, "repeats": regime.repeats, "importance": learner.keep}

    # ------------------------------------------------------------------ importance of features

    def _measure_left_out(self, given: Given) -> None:
        """By the methods of each fold on the sets that it left out, where that was asked for or is cheap.

        Neither methods nor weights have seen the sets of the fold. The folds are those of the first dealing: where a
        set is left out twice, its own values would be looked at twice, and those of each other set once.
        """
        sets, left_out = given.sets, self.out_of_fold_
        if self.importance is None and not importance.wanted(None, sets):
            self.notes_.append(
                f"which features matter was not measured, as it takes long: {len(sets):,} sets times {sets.dim:,} "
                f"features are more than {importance.CHEAP:,}: --importance true (in Python importance=True) looks"
            )
        if left_out is None or not left_out.mixtures:
            return
        trials: list[importance.Trial] = [
            (partial(self._said_by, mixture), np.flatnonzero(left_out.folds[0] == fold))
            for fold, mixture in left_out.mixtures.items()
        ]
        self._measure(given, left_out.predictions[OURS], trials, importance.exchanges(sets))
        self.out_of_fold_ = OutOfFold(left_out.folds, left_out.predictions)

    def _measure_kept_back(self, given: Given) -> None:
        if len(self.validation_) < 2:
            self.notes_.insert(0, "importance of features was not measured: fewer than two sets were kept back")
            return
        trials: list[importance.Trial] = [(lambda some: self.probable(some, self), self.validation_)]
        repeats = importance.exchanges(given.sets[np.asarray(self.validation_)])
        self._measure(given, self.probable(given.sets, self), trials, repeats)

    def _measure(
        self, given: Given, answers: Float[np.ndarray, "sets outputs"], trials: list[importance.Trial], repeats: int
    ) -> None:
        codes = self._codes_in_training(given.targets, answers)
        task = self.importance_task(given.sets, codes, given.groups, repeats, self.seed)
        self.importance_ = importance.measured(task, trials, self.targets_)

    def importance_task(
        self,
        sets: Sets,
        codes: Shaped[np.ndarray, "sets columns"],
        groups: Shaped[np.ndarray, " sets"] | None,
        repeats: int,
        seed: int,
    ) -> importance.Task:
        """What is measured: the loss of this kind of model on sets with these labels."""
        losses = lambda outputs, rows: self.losses(outputs, codes[rows])  # noqa: E731
        how: dict[str, Any] = {"repeats": repeats, "seed": seed, "max_elements": self.max_elements}
        how["progress"] = self.progress
        return importance.Task.of(sets, losses, groups, **how)

    def says(self, sets: Any) -> Float[np.ndarray, "sets outputs"]:
        """Probabilities of the classes, target by target, numbers, or log relative risks."""
        fitted = self.fitted()
        return self.probable(sets, self) if isinstance(fitted, SetNetwork) else self._said_by(fitted, sets)

    def _said_by(self, mixture: Any, sets: Any) -> Float[np.ndarray, "sets outputs"]:
        outputs = mixture.outputs([*sets], find(self.device), **self.reading()).numpy()
        return np.exp(outputs) if self.classifies else outputs

    def _codes_in_training(
        self, targets: Shaped[Tensor, "sets targets"], answers: Float[np.ndarray, "sets outputs"]
    ) -> Shaped[np.ndarray, "sets columns"]:
        """Labels as `losses` takes them, while the model learns."""
        return targets.numpy()

    # ------------------------------------------------------------------ options that must fit together

    def check_arguments(self) -> None:
        """Check the options one by one and together, and that the device and the processes are to be had.

        Raises:
            ValueError: Naming the option, its bound and the value.
        """
        self.check_options()
        if self.class_weight is not None and not self.classifies:
            raise ValueError(f"class_weight={self.class_weight!r} is for classes, and this is a regression")
        if self.encoder is not None and self.method not in (AUTO, self.encoder):
            raise ValueError(f"encoder={self.encoder!r} and method={self.method!r} are two networks: give one")
        if self.single is None:
            here, nodes = processes.layout(self.devices, self.num_nodes)
            if (here, nodes) != (1, 1):
                raise ValueError(
                    f"method={self.method!r} learns in one process, got devices={here}, num_nodes={nodes}: name one "
                    "network, such as method='ust'"
                )
            self._refuse_unused()
        for name, asked in (("folds", self.folds), ("importance", self.importance or None)):
            if asked is not None and (self.level == "element" or self.devices * self.num_nodes > 1):
                raise ValueError(f"{name}={asked} is for labels of sets, and one process")
        processes.check(find(self.device), self.devices, self.num_nodes)

    def _refuse_unused(self) -> None:
        without, what = [*OF_ONE], "a mixture"
        if self.alone is not None:
            without, what = [*OF_ONE, *OF_NETWORKS], f"method={self.alone!r}"
            if self.level == "element":
                raise ValueError(
                    f"{what} is for level='set': elements are learned by one network, such as method='ust'"
                )
        defaults = defaults_of(type(self))
        for name in without:
            if (value := getattr(self, name)) != defaults[name]:
                raise ValueError(f"{name}={value!r} is for one network, such as method='ust': {what} has no use for it")

    def _check_method(self) -> None:
        known = self.MIXTURE.SIMPLE
        if self.alone is not None and self.alone not in known:
            raise ValueError(
                f"method={self.alone!r} is none of the simple methods of {type(self).__name__}: {', '.join(known)}"
            )

    def _check_groups(self, targets: Shaped[Tensor, "sets targets"], groups: inputs.Groups | None) -> None:
        """See that what is learned is in several groups, where groups are left out."""
        left_out = self.single is None or self.folds is not None
        if groups is None or self.level == "element" or not (left_out or self._kept_back(len(targets))):
            return
        if len(np.unique(groups.astype(str))) > 1:  # one is refused where sets are dealt
            self._require_spread(targets, groups.astype(str), left_out)

    def _require_spread(self, targets: Shaped[Tensor, "sets targets"], groups: inputs.Groups, left_out: bool) -> None:
        """Raise the ValueError of `_check_groups`."""

    # ------------------------------------------------------------------ what differs by what is learned

    def warn_of_classes(self, y: np.ndarray, codes: Tensor) -> None:
        """Of classes that are hardly meant, or of which nothing can be learned.

        Args:
            y: All labels.
            codes: Of what is trained on.
        """

    def class_weights(self, codes: Tensor, widths: list[int]) -> list[Tensor] | None:
        """N / (classes * count) of each class, as scikit-learn's "balanced"; 0 for one that training lacks."""
        if self.class_weight is None or not self.classifies:
            return None
        balanced = []
        for number, width in enumerate(widths):
            counts = torch.bincount(codes[:, number][codes[:, number] >= 0], minlength=width).double()
            weights = counts.sum() / (width * counts.clamp(min=1))
            balanced.append(torch.where(counts > 0, weights, 0).float())
        return balanced

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        """Codes or numbers (rows, targets), and the number of outputs of each target."""
        raise NotImplementedError

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        """See `prior_`.

        Args:
            targets: Of what is trained on, as `_encode_targets` gives them.
        """
        raise NotImplementedError


def _fit_features(network: SetNetwork, sets: Sets, train: Int[np.ndarray, " _"]) -> None:
    """Fit the standardisation of features to the training sets, and warn of those that never change."""
    constant = network.fit_features(sets, train)
    names = sets.features or [f"number {i}" for i in range(1, sets.dim + 1)]
    flat = [name for name, is_constant in zip(names, constant, strict=True) if is_constant]
    if flat:
        shown = ", ".join(flat[:5])
        warnings.warn(f"features with one value in all training sets, which say nothing: {shown}", stacklevel=3)


def target_called(name: str, number: int) -> str:
    """What an error calls a target: "y" where it is the only one."""
    return "y" if number == 1 else f"target {name!r}"
