"""Fit, predict, explain and store models of sets, scikit-learn style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset import encoders
from omniset.core.encoding import SCHEMA, Encoding
from omniset.core.sets import Sets, batched
from omniset.core.sources import Source, source_of
from omniset.core.stored import StoredSet
from omniset.estimators import arguments, explaining, labels, stack, units
from omniset.estimators.forms import sets_of
from omniset.estimators.model import SetModel
from omniset.estimators.stack import Stack
from omniset.explain import LayerAttribution
from omniset.options import blaming
from omniset.runs import processes
from omniset.runs.devices import find
from omniset.runs.finite import require_finite_outputs
from omniset.training import artefacts, schema
from omniset.training.network import SetNetwork

if TYPE_CHECKING:
    from omniset.estimators.stacking import Kind, OutOfFold

FEW = 30  # sets below which none are kept back


class SetEstimator(SetModel):
    """What SetClassifier and SetRegressor share.

    Args:
        {options}

    Attributes:
        history_: One dict per epoch: epoch, train_loss, train_accuracy (or train_mse), and val_loss and so on.
        network_: What was learned: one network, or a mixture (omniset.estimators.stack.Stack); of a simple method
            alone, a mixture in which it has all the weight.
        out_of_fold_: What each method said of sets left out (omniset.estimators.stacking.OutOfFold); None where no
            folds were asked for, and after `load`.
        importance_: How much each feature matters, on sets left out (omniset.estimators.importance); None where it was
            not measured, and after `load`.
        simple_: Simple methods beside one network, fitted to what it was trained on; None beside a mixture.
        features_: Names of the features, where the sets came as a table.
        encoding_: How the columns of the table became features.
        targets_: Names of the targets: the columns of y, or its name, or "label".
        notes_: What was decided on the data, a sentence each.
        seen_: Digests of the names of the sets that were learned from, where they came as a table.
        chosen_: Of the options that are None, the values that `fit` chose.
        prior_: Of each target what is known without looking at a set: how frequent each class is in training, or
            the mean.
    """

    HISTORIES: ClassVar = ("history", "notes", "chosen")
    FITTED: ClassVar[dict[str, Any]] = {
        "input_dim": schema.COUNT,
        "widths": schema.array(schema.SIZE, minItems=1),
        "features": schema.optional(schema.array(schema.TEXT)),
        "encoding": schema.optional(SCHEMA),
        "reading": schema.OBJECT,
        "targets": schema.array(schema.TEXT),
        "single": schema.FLAG,
        "ignored": schema.array(schema.TEXT),
        "prior": schema.array(schema.array(schema.NUMBER, minItems=1)),
        "stack": schema.optional(stack.SHAPES),
        "seen": schema.array(schema.TEXT),
    }

    classifies: ClassVar[bool]
    usual_target: ClassVar[str] = "label"  # where y has no name

    # ------------------------------------------------------------------ the verbs

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
        from omniset.estimators import learning

        self.check_arguments()
        arguments.check_method(self)
        self.check_resumed(folder, resume)
        collection = sets_of(sets, missing=self.missing)
        values, self.targets_, self.single_ = labels.aligned(y, collection, self.level, self.usual_target)
        targets, widths = self._encode_targets(values)
        by_group = None if groups is None else labels.per_set(groups, collection, "groups")
        by_group = units.groups_of(collection.names, by_group)
        units.require_spread(self, targets, by_group)
        weights = None if sample_weight is None else labels.weights_per_set(sample_weight, collection)
        given = learning.Given(
            collection, values, targets, widths, weights, by_group, None if folder is None else Path(folder), resume
        )
        self.notes_ = [labels.task_of(values, self.targets_, self.level, self.classifies)]
        self.simple_: Stack | None = None
        self.out_of_fold_: OutOfFold | None = None
        self.importance_: pd.DataFrame | None = None
        self.chosen_: dict[str, Any] = {}
        self.features_, self.encoding_ = collection.features, collection.encoding
        learning.learn(self, given)
        self.seen_ = units.digests(collection, np.setdiff1d(np.arange(len(collection)), self.validation_))
        self.ignored_: list[str] = []  # columns of a file that were not used
        self.reading_: dict[str, Any] = {}  # how files were read
        return self

    def fit_transform(self, sets: Any, y: Any, **arguments: Any) -> Any:
        """`fit`, with these arguments, and then `transform`."""
        return self.fit(sets, y, **arguments).transform(sets)

    def predict_table(self, sets: Any, shard_size: int | None = None) -> pd.DataFrame:
        """Predictions as a table, a row per set (or per element, sets one after the other).

        Columns: `set`, for elements `element` (its number in the set, from 1), and what `predict` and, for classes,
        `predict_proba` say: the target's name, and p_CLASS, with several targets p_TARGET_CLASS.
        """
        collection = self.read(sets)
        frames = self.predictions(collection, shard_size)
        return pd.concat(frames, ignore_index=True)

    def predictions(self, sets: Iterable[StoredSet], shard_size: int | None = None) -> Iterator[pd.DataFrame]:
        """`predict_table` piece by piece, of sets as they come."""
        for group, outputs in self.outputs(sets, shard_size):
            yield from self._frames(group, outputs)

    def shared_predictions(self, sets: Iterable[StoredSet]) -> Iterator[pd.DataFrame]:
        """`predictions`, computed by all processes of the run in turn; the first one gets them (processes.in_turn)."""
        jobs = (self._frames(group, outputs) for group, outputs in self.outputs(sets))
        return processes.in_turn(jobs, find(self.device), self.devices, self.num_nodes)

    def _frames(self, group: list[Any], outputs: Iterator[Tensor]) -> Iterator[pd.DataFrame]:
        row = 0
        for some in outputs:
            yield self._frame(group, some, row)
            row += len(some)

    def _frame(self, group: list[Any], outputs: Tensor, row: int) -> pd.DataFrame:
        """Some rows of predict_table; of elements, from `row` of the group on, which is then one set."""
        if self.level == "set":
            return pd.DataFrame({"set": [s.name for s in group], **self._columns(outputs)})
        rows = len(outputs)
        keys = {
            "set": np.repeat(np.array([s.name for s in group], dtype=object), [min(len(s), rows) for s in group]),
            "element": np.concatenate([s.names_of_elements(row, rows) for s in group]),
        }
        frame = pd.DataFrame(keys | self._columns(outputs))
        absent = torch.cat([s.read(row, rows)[1] for s in group]).numpy() == 0
        if absent.any():  # nothing is said of what is not there
            for column in frame.columns[2:]:
                kind = frame[column].dtype.kind
                frame[column] = frame[column].astype(np.float64 if kind == "f" else object).where(~absent)
        return frame

    def explain(
        self,
        sets: Any,
        target: Any = None,
        steps: int = 20,
        method: explaining.Method = "auto",
        per: Literal["element", "copy"] = "element",
    ) -> list[Float[np.ndarray, " _"]]:
        """Scores from 0 to 1: how much each element of each set drove the prediction (omniset.explain).

        Args:
            target: The output explained: a class label (of the first target), or the name or number of a regression
                target. Default: each set's predicted class; the first target.
            steps: Of the integral of attribution.
            method: "attribution" (Hao et al., 2021); "contrast": the same against equal attention; "attention": how
                much of it an element gets, whatever is predicted; "removal": how much the prediction falls without it
                (omniset.estimators.removal), of any model. "auto": attribution where a network attends to elements,
                else removal. Of a mixture all but removal are of its networks of `ust`.
            per: Whether a score is that of all copies of an element together, or of one of them.

        Raises:
            ValueError: An unknown target; predictions of elements; attribution of what has no attention; a set of more
                than max_elements elements, and an encoder that cannot read it in shards; one too large for removal.
        """
        return explaining.scores(self, sets, target, steps, method, per)

    def explain_layers(self, sets: Any, target: Any = None, steps: int = 20) -> list[LayerAttribution]:
        """The attribution of each layer for one set (omniset.explain.attribute_layers). Arguments: explain."""
        return explaining.layers(self, sets, target, steps)

    def check_explainable(self, target: Any = None, method: explaining.Method = "auto") -> None:
        """Raise the ValueError that `explain` would, where that can be said without sets."""
        explaining.check(self, target, method)

    def _state(self) -> dict[str, Any]:
        network, beside = self.fitted(), self.simple_
        mixed = network if isinstance(network, Stack) else beside
        return {
            "input_dim": network.input_dim,
            "widths": network.widths,
            "stack": None if mixed is None else mixed.shapes(),
            "features": self.features_,
            "encoding": self.encoding_ and self.encoding_.state,
            "reading": self.reading_,
            "targets": self.targets_,
            "single": self.single_,
            "ignored": self.ignored_,
            "prior": [values.tolist() for values in self.prior_],
            "seen": self.seen_,
        }

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        self._check_fitted(fitted)
        dim, widths, shapes = fitted["input_dim"], fitted["widths"], fitted["stack"]
        self.simple_, self.out_of_fold_, self.importance_ = None, None, None
        self.chosen_ = {}

        def stored() -> Stack:
            return self.kind.stack.empty(
                dim, widths, self.classifies, shapes, lambda name: self.build(dim, widths, name)
            )

        if self.single is None:
            self.network_ = weights.build(stored, "network.")
        else:
            self.network_ = weights.build(lambda: self.build(dim, widths), "network.")
            self.simple_ = None if shapes is None else weights.build(stored, "simple.")
        self.features_, self.targets_ = fitted["features"], fitted["targets"]
        self.prior_ = [np.asarray(values, dtype=np.float64) for values in fitted["prior"]]
        self.single_, self.ignored_, self.reading_ = fitted["single"], fitted["ignored"], fitted["reading"]
        self.encoding_ = fitted["encoding"] and Encoding.of_state(fitted["encoding"])
        self.seen_ = fitted["seen"]

    def _networks(self) -> nn.Module:
        parts = {"network": self.fitted()}
        return nn.ModuleDict(parts if self.simple_ is None else {**parts, "simple": self.simple_})

    # ------------------------------------------------------------------ what they are made of

    def outputs(
        self, sets: Iterable[StoredSet], shard_size: int | None = None
    ) -> Iterator[tuple[list[StoredSet], Iterator[Float[Tensor, "rows outputs"]]]]:
        """The sets as they come, some at a time, with their outputs: one tensor, or for elements several in a row."""
        device = find(self.device)
        network = self.fitted()
        size = self.shard_size if shard_size is None else shard_size
        if isinstance(network, Stack):
            reading = self.reading() | {"shard_size": size}
            for group in batched(sets, self.together, self.max_elements):
                yield group, iter([network.outputs(group, device, **reading)])
            return
        network = network.to(device).eval()
        try:
            for group in batched(sets, self.together, self.max_elements):
                yield group, self._run(network, group, size, device)
        finally:
            network.to("cpu")

    @property
    def kind(self) -> Kind:
        """What differs by what is learned."""
        from omniset.estimators.stacking import LABELS

        return LABELS

    def kept_back(self, sets: int) -> float:
        """The share of so many sets that is kept back to watch one network."""
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.0 if sets < FEW else max(0.1, min(0.25, FEW / sets))

    def _run(
        self, network: SetNetwork, group: list[Any], size: int | None, device: torch.device
    ) -> Iterator[Float[Tensor, "rows outputs"]]:
        source = source_of(group, self.max_elements, size)
        options = {"shard_size": size, "shards": self.shards, "store": self.store}
        with torch.no_grad():
            if isinstance(source, Source) and self.level == "element":
                elements = network.encoder(source, **options | {"shard_size": None}).elements
                for shard in elements:
                    out = network.head(shard.elements[0]).cpu()
                    require_finite_outputs(out[None], [s.name for s in group], "set")
                    yield out
                return
            if isinstance(source, Source):
                out = network.of_large(source, **options)
            else:
                out = network(source.to(device), **options)
            require_finite_outputs(out, [s.name for s in group], "set")
            out = out.cpu()
            yield torch.cat([out[i, : len(s)] for i, s in enumerate(group)]) if self.level == "element" else out

    def _outputs(self, sets: Any, shard_size: int | None) -> tuple[Sets, Float[Tensor, "rows outputs"]]:
        collection = self.read(sets)
        return collection, torch.cat([some for _, outputs in self.outputs(collection, shard_size) for some in outputs])

    def _shaped(self, values: np.ndarray, collection: Sets) -> Any:
        """Per set as they are; per element in the order of the table's rows, or a list of one array per set."""
        if self.level == "set":
            return values
        if collection.features is None:
            return np.split(values, collection.offsets[1:-1])
        if collection.order is None:
            return values
        by_row = np.empty_like(values)
        by_row[collection.order] = values
        return by_row

    def build(self, input_dim: int, widths: list[int], encoder: str | None = None) -> SetNetwork:
        """An untrained network.

        Args:
            widths: Outputs of each target.
            encoder: Of a mixture, which of its networks.

        Raises:
            ValueError: Options of the encoder that it does not take.
        """
        with blaming(self.encoder_options):
            made = encoders.build(
                encoder or self.single or "ust",
                input_dim=input_dim,
                dim=self.size("dim"),
                depth=self.size("depth"),
                num_heads=self.num_heads,
                num_inducing=self.num_inducing,
                **(self.encoder_options or {}),
            )
        return SetNetwork(made, widths, self.level == "element")

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

    def check_arguments(self) -> None:
        """Check the options one by one and together, and that the device and the processes are to be had.

        Raises:
            ValueError: Naming the option, its bound and the value.
        """
        arguments.check(self)

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        """Codes or numbers (rows, targets), and the number of outputs of each target."""
        raise NotImplementedError

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        """See `prior_`.

        Args:
            targets: Of what is trained on, as `_encode_targets` gives them.
        """
        raise NotImplementedError

    def _columns(self, outputs: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        """Outputs as columns of a table."""
        raise NotImplementedError

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        """Probabilities, or numbers in their own units, as columns of a table."""
        raise NotImplementedError

    def probable(self, sets: Any, like: SetEstimator) -> Float[np.ndarray, "sets outputs"]:
        """Probabilities of the classes, target by target, or numbers, in the order that another model has.

        Args:
            like: Whose classes there are. One that this model does not know has the probability 0.
        """
        raise NotImplementedError

    def constant(self, rows: int) -> pd.DataFrame:
        """`prior_` as predictions of so many sets or elements: a table with the columns of `predict_table` but `set`
        and `element`.
        """
        raise NotImplementedError

    def explained(self, group: Sequence[StoredSet], target: Any) -> Any:
        """The output that is explained: one, or one for each set."""
        raise NotImplementedError

    def output_of(self, target: Any) -> int:
        """The number of the output that explains this label, or target."""
        raise NotImplementedError

    def _check_fitted(self, fitted: dict[str, Any]) -> None:
        """Raise the ValueError of parts of an artefact's `fitted` that do not belong together."""
        if [len(values) for values in fitted["prior"]] != fitted["widths"]:
            raise ValueError(f"fitted.prior must be as long as the outputs of each target, {fitted['widths']}")
        lengths = {"targets": len(fitted["widths"])}
        if fitted["features"] is not None:
            lengths["features"] = fitted["input_dim"]
        if fitted["encoding"] and Encoding.of_state(fitted["encoding"]).features != fitted["features"]:
            raise ValueError("fitted.encoding must give the names in fitted.features")
        for name, length in lengths.items():
            if len(fitted[name]) != length:
                raise ValueError(f"fitted.{name} must be {length} names, got {len(fitted[name])}")


def target_called(name: str, number: int) -> str:
    """What an error calls a target: "y" where it is the only one."""
    return "y" if number == 1 else f"target {name!r}"
