"""Fit, predict, explain and store models of sets, scikit-learn style."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from torch import Tensor

from omniset import encoders, explain, labels, processes
from omniset.devices import find
from omniset.explain import LayerAttribution
from omniset.sets import LargeSet, SetBatch, SetCollection, StoredSet, batched, source_of
from omniset.training import artefacts
from omniset.training.network import SetNetwork

Group = TypeVar("Group", bound=StoredSet)


class SetEstimator(BaseEstimator):
    """What SetClassifier and SetRegressor share.

    Args:
        encoder: Name in `omniset.encoders.ENCODERS`.
        dim: Width of the encoder.
        depth: Its set layers.
        num_heads: Attention heads; divides dim.
        num_inducing: Inducing points per layer.
        encoder_options: Further arguments of `omniset.encoders.build`, such as {"dropout": 0.1}.
        epochs: At most so many.
        batch_size: Sets per step, of all processes together.
        learning_rate: Peak of the warm-up and cosine schedule of AdamW.
        weight_decay: Of AdamW.
        validation_fraction: Share of the sets kept back to watch the training.
        patience: Stop after so many epochs without a better validation loss, and keep the best epoch. None, or
            without validation: never stop, keep the last.
        shard_size: Run the encoder on shards of so many elements, drawn at random in training. None: whole sets.
        shards: "merged" or "independent", see `Encoder.forward`.
        gradient: "exact", "first-shard", "first-shard-literal" or "unbiased", likewise.
        store: "device", "cpu", "disk" or "recompute", likewise.
        level: "set": one prediction per set. "element": one per element; labels then come per element (see `fit`).
        class_weight: "balanced": classes count inversely to their frequency in training. None: as they come.
        max_elements: Entries (sets times their padded length) that are computed on at a time: bounds the memory.
            A larger batch is done in parts, and of a larger set shards of so many elements, with the same gradient.
        seed: Of weights, split, order and dropout. The same seed gives the same numbers to the bit on a CPU.
        device: "auto", "cpu", "cuda" or "mps".
        devices: So many processes train together on each machine, each on a GPU of its own or on the CPU. Lightning
            starts them, by running the script again. Under torchrun: as many as that has started.
        num_nodes: Machines that train together; torchrun or SLURM starts the script on each.
        strategy: "auto" or "ddp": every process holds the network. "fsdp": they share it out (GPUs only).
        progress: Show progress bars.
        log: "csv" or "tensorboard": written to the folder given to `fit`.

    Attributes:
        history_: One dict per epoch: epoch, train_loss, train_accuracy (or train_mse), and val_loss and so on.
        network_: The trained module.
        features_: Names of the features, where the sets came as a table.
        targets_: Names of the targets: the columns of y, or its name, or "label".
    """

    _classify: bool

    def __init__(
        self,
        encoder: str = "ust",
        *,
        dim: int = 64,
        depth: int = 3,
        num_heads: int = 4,
        num_inducing: int = 8,
        encoder_options: dict[str, Any] | None = None,
        epochs: int = 50,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        validation_fraction: float = 0.1,
        patience: int | None = 10,
        shard_size: int | None = None,
        shards: str = "merged",
        gradient: str = "exact",
        store: str = "device",
        level: str = "set",
        class_weight: str | None = None,
        max_elements: int = 32768,
        seed: int = 0,
        device: str = "auto",
        devices: int = 1,
        num_nodes: int = 1,
        strategy: str = "auto",
        progress: bool = True,
        log: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.num_inducing = num_inducing
        self.encoder_options = encoder_options
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.shard_size = shard_size
        self.shards = shards
        self.gradient = gradient
        self.store = store
        self.level = level
        self.class_weight = class_weight
        self.max_elements = max_elements
        self.seed = seed
        self.device = device
        self.devices = devices
        self.num_nodes = num_nodes
        self.strategy = strategy
        self.progress = progress
        self.log = log

    # ------------------------------------------------------------------ the verbs

    def fit(
        self, sets: Any, y: Any, *, groups: Any = None, folder: str | Path | None = None, resume: bool = False
    ) -> SetEstimator:
        """Train.

        Args:
            sets: A SetBatch, a list of N_i x D arrays, a long DataFrame with a column `set`, or a SetCollection.
            y: Labels, or rows of them for several targets. level="set": one per set, in the order of the sets; for a
                DataFrame, sets come in the order in which they first appear, and y is matched by its index, or by its
                column `set`.
                level="element": one per row of the table, or a list of one array per set; None or NaN: no label.
            groups: (B,) sets of one group are not split between training and validation. A Series as y.
            folder: Keep checkpoints and logs here.
            resume: Continue the interrupted run that this folder holds.

        Raises:
            ValueError: Sets or labels that cannot be used, or a checkpoint of another run.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        from omniset.training.data import SetDataModule
        from omniset.training.fit import SetModule, fit

        self._check_arguments()
        collection = SetCollection.of(sets, torch.float32)
        values, self.targets_, self.single_ = labels.aligned(y, collection, self.level)
        targets, widths = self._encode_targets(values)
        if self.strategy == "fsdp":
            self._check_fits(int(collection.sizes.max(initial=0)))
        train, validation = self._split(
            targets, len(collection), None if groups is None else labels.per_set(groups, collection, "groups")
        )
        of_elements = self.level == "element"
        known = _rows_of(collection, train) if of_elements else train
        self._warn_of_classes_not_trained(targets[known])
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = self._build(collection.dim, widths)
        network.fit_features(collection, train)
        if not self._classify:
            network.fit_targets(targets[known])
        # The number of processes changes no step but for rounding; what "fsdp" keeps only it can read.
        free = ("device", "devices", "num_nodes", "progress", "log", "store")
        fingerprint = {k: v for k, v in self.get_params().items() if k not in free}
        if fingerprint["strategy"] != "fsdp":
            del fingerprint["strategy"]
        module = SetModule(
            network,
            self._classify,
            self._class_weights(targets[known], widths),
            self.learning_rate,
            self.weight_decay,
            {name: getattr(self, name) for name in ("shard_size", "shards", "gradient", "store")},
            self.max_elements,
            self.seed,
            fingerprint | {"data": _checksum(collection, targets, train)},
        )
        data = SetDataModule(
            collection,
            targets,
            train,
            validation,
            of_elements=of_elements,
            batch_size=self.batch_size,
            max_elements=self.max_elements,
            shard_size=self.shard_size,
            shuffle_elements=self.shard_size is not None,
            seed=self.seed,
        )
        fit(
            module,
            data,
            epochs=self.epochs,
            patience=self.patience,
            device=self.device,
            progress=self.progress,
            log=self.log,
            folder=folder,
            resume=resume,
            devices=self.devices,
            num_nodes=self.num_nodes,
            strategy=self.strategy,
        )
        self.network_, self.history_, self.features_ = module.network, module.history, collection.features
        self.validation_ = validation
        self.ignored_: list[str] = []  # columns of a file that were not used
        return self

    def predict_table(self, sets: Any, shard_size: int | None = None) -> pd.DataFrame:
        """Predictions as a table, a row per set (or per element, sets one after the other).

        Columns: `set`, for elements `element` (its number in the set, from 1), and what `predict` and, for classes,
        `predict_proba` say: the target's name, and p_CLASS, with several targets p_TARGET_CLASS.
        """
        collection = self._read(sets)
        frames = self.predictions((collection[i] for i in range(len(collection))), shard_size)
        return pd.concat(frames, ignore_index=True)

    def predictions(self, sets: Iterable[StoredSet], shard_size: int | None = None) -> Iterator[pd.DataFrame]:
        """`predict_table` piece by piece, of sets as they come."""
        for group, outputs in self._groups(sets, shard_size):
            yield from self._frames(group, outputs)

    def shared_predictions(self, sets: Iterable[StoredSet]) -> Iterator[pd.DataFrame]:
        """`predictions`, computed by all processes of the run in turn; the first one gets them (processes.in_turn)."""
        jobs = (self._frames(group, outputs) for group, outputs in self._groups(sets))
        return processes.in_turn(jobs, self.device, self.devices, self.num_nodes)

    def _frames(self, group: list[Any], outputs: Iterator[Tensor]) -> Iterator[pd.DataFrame]:
        row = 0
        for found in outputs:
            yield self._frame(group, found, row)
            row += len(found)

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
        method: Literal["attribution", "attention"] = "attribution",
        per: Literal["element", "copy"] = "element",
    ) -> list[Float[np.ndarray, " _"]]:
        """Scores from 0 to 1: how much each element of each set drove the prediction (omniset.explain).

        Args:
            target: The output explained: a class label (of the first target), or the name or number of a regression
                target. Default: each set's predicted class; the first target.
            steps: Of the integral.
            method: "attribution" (Hao et al., 2021), or "attention": how much attention an element gets, whatever is
                predicted.
            per: Whether a score is that of all copies of an element together, or of one of them.

        Raises:
            ValueError: An unknown target; predictions of elements, which are not explained; a set of more than
                max_elements elements, and an encoder that cannot read it in shards.
        """
        self.check_explainable(target)
        scores: list[np.ndarray] = []
        for group, network, source, options in self._to_explain(sets):
            if method == "attention":
                found = explain.attention(network, source, per=per, **options)
            else:
                explained = self._explained(network, source, target, options)
                found = explain.attribute(network, source, explained, steps, per=per, **options)
            scores += [found[row, : len(stored)].cpu().numpy() for row, stored in enumerate(group)]
        return scores

    def explain_layers(self, sets: Any, target: Any = None, steps: int = 20) -> list[LayerAttribution]:
        """The attribution of each layer for one set (omniset.explain.attribute_layers). Arguments: explain."""
        self.check_explainable(target)
        ((_, network, source, options),) = self._to_explain(sets)
        explained = self._explained(network, source, target, options)
        return explain.attribute_layers(network, source, explained, steps, **options)

    def _to_explain(self, sets: Any) -> Iterator[tuple[list[StoredSet], SetNetwork, Any, dict[str, Any]]]:
        """Sets, the network, what it reads of them, and how; sets above max_elements in shards, from disk."""
        collection, device = self._read(sets), self._device()
        network = self._fitted().to(device).eval()
        seen = 0
        for group in batched((collection[i] for i in range(len(collection))), self.batch_size, self.max_elements):
            source = source_of(group, self.max_elements)
            large = not isinstance(source, SetBatch)
            if large and not network.encoder.mini_batch_consistent:
                raise ValueError(
                    f"set {collection.names[seen]!r} has {len(group[0])} elements, more than "
                    f"max_elements={self.max_elements}, and encoder {self.encoder!r} cannot read it in shards"
                )
            yield group, network, source.to(device), {"store": network.store_of_large({})} if large else {}
            seen += len(group)
        network.to("cpu")

    def check_explainable(self, target: Any = None) -> None:
        """Raise the ValueError that `explain` would, where that can be said without sets."""
        if self.level == "element":
            raise ValueError("explain is for level='set': what drives the prediction of one element is not attributed")
        if not explain.attends(self._fitted()):
            raise ValueError(f"encoder {self.encoder!r} has no attention over the elements of sets: nothing to explain")
        if target is not None:
            self._output_of(target)

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> None:
        """Write the artefact: config.json, model.safetensors, metrics.json (omniset.training.artefacts).

        Args:
            metrics: What metrics.json is to hold beside the history of the training.
        """
        network = self._fitted()
        fitted = {
            "input_dim": network.encoder.input_dim,
            "widths": network.widths,
            "features": self.features_,
            "targets": self.targets_,
            "single": self.single_,
            "ignored": self.ignored_,
            **self._fitted_state(),
        }
        artefacts.save(
            folder,
            type(self).__name__,
            self.get_params(),
            fitted,
            network,
            {"history": self.history_, **(metrics or {})},
            self._device().type,
        )

    @classmethod
    def load(cls, folder: str | Path) -> SetEstimator:
        """Read an artefact. Checks format, version, class, configuration and every tensor, and says what differs."""
        config = artefacts.load_config(folder, cls.__name__)
        try:
            estimator = cls(**config["arguments"])
            network = estimator._build(config["fitted"]["input_dim"], config["fitted"]["widths"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"{Path(folder) / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        artefacts.load_weights(folder, network)
        estimator.network_, estimator.history_ = network.eval(), artefacts.load_metrics(folder).get("history", [])
        fitted = config["fitted"]
        estimator.features_, estimator.targets_ = fitted["features"], fitted["targets"]
        estimator.single_, estimator.ignored_ = fitted["single"], fitted["ignored"]
        estimator._restore(fitted)
        return estimator

    # ------------------------------------------------------------------ what they are made of

    def _groups(
        self, sets: Iterable[Group], shard_size: int | None = None
    ) -> Iterator[tuple[list[Group], Iterator[Float[Tensor, "rows outputs"]]]]:
        """The sets as they come, some at a time, with their outputs: one tensor, or for elements several in a row."""
        device = self._device()
        network = self._fitted().to(device).eval()
        size = self.shard_size if shard_size is None else shard_size
        try:
            for group in batched(sets, self.batch_size, self.max_elements):
                yield group, self._run(network, group, size, device)
        finally:
            network.to("cpu")

    def _run(
        self, network: SetNetwork, group: list[Any], size: int | None, device: torch.device
    ) -> Iterator[Float[Tensor, "rows outputs"]]:
        source = source_of(group, self.max_elements, size)
        options = {"shard_size": size, "shards": self.shards, "store": self.store}
        with torch.no_grad():
            if isinstance(source, LargeSet) and self.level == "element":
                elements = network.encoder(source, **options | {"shard_size": None}).elements
                for shard in elements:
                    yield network.head(shard.elements[0]).cpu()
            elif isinstance(source, LargeSet):
                yield network.of_large(source, **options).cpu()
            else:
                out = network(source.to(device), **options).cpu()
                yield torch.cat([out[i, : len(s)] for i, s in enumerate(group)]) if self.level == "element" else out

    def _outputs(self, sets: Any, shard_size: int | None) -> tuple[SetCollection, Float[Tensor, "rows outputs"]]:
        collection = self._read(sets)
        stored = (collection[i] for i in range(len(collection)))
        return collection, torch.cat([found for _, outputs in self._groups(stored, shard_size) for found in outputs])

    def _shaped(self, values: np.ndarray, collection: SetCollection) -> Any:
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

    def _read(self, sets: Any) -> SetCollection:
        network = self._fitted()
        if self.features_ is not None and hasattr(sets, "columns"):
            missing = [f for f in self.features_ if f not in sets.columns]
            if missing:
                raise ValueError(f"the table lacks features that the model was fitted on: {missing[:5]}")
            others = [c for c in ("set", "multiplicity", "element") if c in sets.columns]
            sets = sets[[*others, *self.features_]]
        collection = SetCollection.of(sets, torch.float32)
        if collection.dim != network.encoder.input_dim:
            raise ValueError(
                f"the sets have {collection.dim} features, the model was fitted on {network.encoder.input_dim}"
            )
        return collection

    def _build(self, input_dim: int, widths: list[int]) -> SetNetwork:
        try:
            encoder = encoders.build(
                self.encoder,
                input_dim=input_dim,
                dim=self.dim,
                depth=self.depth,
                num_heads=self.num_heads,
                num_inducing=self.num_inducing,
                **(self.encoder_options or {}),
            )
        except TypeError as error:
            raise ValueError(f"encoder_options={self.encoder_options}: {error}") from error
        return SetNetwork(encoder, widths, self.level == "element")

    def _split(
        self, targets: Shaped[Tensor, "rows targets"], number: int, groups: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of sets to train on and to watch: by whole groups, else stratified by class where possible."""
        positions = np.arange(number)
        held = round(number * self.validation_fraction)
        if groups is not None and held:
            if len(set(groups.tolist())) < 2:
                raise ValueError("groups: all sets are of one group, so none can be kept back: validation_fraction=0")
            split = GroupShuffleSplit(1, test_size=self.validation_fraction, random_state=self.seed)
            train, validation = next(split.split(positions, groups=groups))
            return np.sort(train), np.sort(validation)
        if not held or held >= number:
            return positions, positions[:0]
        by = targets[:, 0].numpy() if self._classify and self.level == "set" and targets.shape[1] == 1 else None
        counts = np.array([0]) if by is None else np.bincount(by)
        stratify = by if counts.min() > 1 and held >= len(counts) and number - held >= len(counts) else None
        train, validation = train_test_split(positions, test_size=held, random_state=self.seed, stratify=stratify)
        return np.sort(train), np.sort(validation)

    def _warn_of_classes_not_trained(self, codes: Tensor) -> None:
        """Of classes that are known from sets that were kept back, and from no other."""

    def _class_weights(self, codes: Tensor, widths: list[int]) -> list[Tensor] | None:
        """N / (classes * count) of each class, as scikit-learn's "balanced"; 0 for one that training lacks."""
        if self.class_weight is None or not self._classify:
            return None
        found = []
        for number, width in enumerate(widths):
            counts = torch.bincount(codes[:, number][codes[:, number] >= 0], minlength=width).double()
            weights = counts.sum() / (width * counts.clamp(min=1))
            found.append(torch.where(counts > 0, weights, 0).float())
        return found

    def _check_arguments(self) -> None:
        for name in ("epochs", "batch_size", "max_elements"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be >= 0 and < 1, got {self.validation_fraction}")
        for name, known in (("level", ("set", "element")), ("class_weight", (None, "balanced"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if self.class_weight is not None and not self._classify:
            raise ValueError(f"class_weight={self.class_weight!r} is for classes, and this is a regression")
        processes.check(self._device(), self.devices, self.num_nodes, self.strategy)

    def _check_fits(self, largest: int) -> None:
        """Gradients in shards and parts are taken of parameters one by one, and FSDP puts others in their place."""
        share = math.ceil(self.batch_size / math.prod(processes.layout(self.devices, self.num_nodes)))
        if self.shard_size is not None or share * largest > self.max_elements:
            raise ValueError(
                f"strategy='fsdp' computes on whole batches: shard_size must be None, got {self.shard_size}, and "
                f"max_elements at least {share * largest} ({share} sets of {largest} elements), got "
                f"{self.max_elements}; 'ddp' needs neither"
            )

    def _device(self) -> torch.device:
        return find(self.device)

    def _fitted(self) -> SetNetwork:
        if not hasattr(self, "network_"):
            raise ValueError(f"this {type(self).__name__} is not fitted: call fit or load first")
        return self.network_

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        """Codes or numbers (rows, targets), and the number of outputs of each target."""
        raise NotImplementedError

    def _columns(self, outputs: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        """Outputs as columns of a table."""
        raise NotImplementedError

    def _explained(self, network: SetNetwork, source: Any, target: Any, options: dict[str, Any]) -> Any:
        """The output that is explained: one, or one for each set."""
        raise NotImplementedError

    def _output_of(self, target: Any) -> int:
        """The number of the output that explains this label, or target."""
        raise NotImplementedError

    def _fitted_state(self) -> dict[str, Any]:
        return {}

    def _restore(self, fitted: dict[str, Any]) -> None:
        pass


class SetClassifier(SetEstimator):
    """Classify sets. Arguments and attributes are those of SetEstimator, and `classes_`, the labels in order.

    With several targets `classes_` is a list of such arrays, and `predict` and `predict_proba` are as scikit-learn's
    for several outputs: (B, targets), and a list of (B, classes).

    >>> sets = [[[0.0], [0.1]], [[5.0]], [[0.2]], [[5.1], [4.9], [5.0]]]
    >>> model = SetClassifier(dim=8, num_heads=2, depth=1, epochs=30, learning_rate=0.01, progress=False,
    ...                       validation_fraction=0.0, device="cpu").fit(sets, ["low", "high", "low", "high"])
    >>> model.predict([[[0.05]], [[5.2], [5.0]]]).tolist()
    ['low', 'high']
    """

    _classify = True

    @property
    def classes_(self) -> Any:
        if not hasattr(self, "_classes"):
            raise AttributeError("classes_ is there after fit")
        return self._classes[0] if self.single_ else self._classes

    def predict_proba(self, sets: Any, shard_size: int | None = None) -> Any:
        """Probabilities (B, classes), columns as in `classes_`. With several targets a list; level="element": a row per
        row of the table, or one array per set. shard_size: default that of the model; the result is the same.
        """
        collection, outputs = self._outputs(sets, shard_size)
        found = [self._shaped(p, collection) for p in self._probabilities(outputs)]
        return found[0] if self.single_ else found

    def predict(self, sets: Any, shard_size: int | None = None) -> Any:
        """The most probable label of each set (or element, in the form of `predict_proba`)."""
        collection, outputs = self._outputs(sets, shard_size)
        predicted = self._labels(outputs)
        same = len({c.dtype.kind for c in self._classes}) == 1
        found = np.stack(predicted if same else [c.astype(object) for c in predicted], 1)
        return self._shaped(found[:, 0] if self.single_ else found, collection)

    def score(self, sets: Any, y: Any) -> float:
        """Accuracy; of several targets the mean. Elements without a label are left out.

        Raises:
            ValueError: A label that was not in training.
        """
        collection, outputs = self._outputs(sets, None)
        truth = labels.aligned(y, collection, self.level)[0]
        found = []
        for number, predicted in enumerate(self._labels(outputs)):
            values, classes = truth[:, number], self._classes[number]
            there = ~labels.missing(values)
            values = values[there]
            unknown = sorted({str(label) for label in values[~np.isin(values, classes)]})
            if unknown:
                raise ValueError(f"labels {unknown[:5]} were not in training, which had {classes.tolist()[:20]}")
            found.append(float((predicted[there] == values).mean()))
        return float(np.mean(found))

    def _probabilities(self, outputs: Tensor) -> list[np.ndarray]:
        return [o.double().softmax(1).numpy() for o in self._fitted().split(outputs)]

    def _labels(self, outputs: Tensor) -> list[np.ndarray]:
        return [c[o.argmax(1).numpy()] for c, o in zip(self._classes, self._fitted().split(outputs), strict=True)]

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = dict(zip(self.targets_, self._labels(outputs), strict=True))
        for name, classes, columns in zip(self.targets_, self._classes, self._probabilities(outputs), strict=True):
            prefix = "p_" if len(self.targets_) == 1 else f"p_{name}_"
            found |= {f"{prefix}{label}": columns[:, i] for i, label in enumerate(classes)}
        return found

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        self._classes: list[np.ndarray] = []
        codes = np.full(y.shape, -1)
        for number, name in enumerate(self.targets_):
            there = ~labels.missing(y[:, number])
            classes, codes[there, number] = np.unique(y[there, number].tolist(), return_inverse=True)
            if len(classes) < 2:
                found = f"only one class, {classes.tolist()[0]!r}" if len(classes) else "no labels"
                raise ValueError(f"{_which(name, len(self.targets_))} has {found}: nothing to learn")
            self._classes.append(classes)
        return torch.as_tensor(codes), [len(c) for c in self._classes]

    def _warn_of_classes_not_trained(self, codes: Tensor) -> None:
        for number, (name, classes) in enumerate(zip(self.targets_, self._classes, strict=True)):
            lacking = [c for i, c in enumerate(classes.tolist()) if not bool((codes[:, number] == i).any())]
            if lacking:
                warnings.warn(
                    f"{name}: no training set has {', '.join(map(repr, lacking[:5]))}, only sets kept back have: the "
                    "model cannot learn it",
                    stacklevel=3,
                )

    def _explained(self, network: SetNetwork, source: Any, target: Any, options: dict[str, Any]) -> Any:
        if target is None:
            with torch.no_grad():
                return network.split(network(source, **options))[0].argmax(1)
        return self._output_of(target)

    def _output_of(self, target: Any) -> int:
        classes = self._classes[0]
        found = np.flatnonzero(classes == target)
        if not len(found):
            raise ValueError(f"target must be one of {classes.tolist()[:20]}, got {target!r}")
        return int(found[0])

    def _fitted_state(self) -> dict[str, Any]:
        return {"classes": [c.tolist() for c in self._classes]}

    def _restore(self, fitted: dict[str, Any]) -> None:
        self._classes = [np.asarray(c) for c in fitted["classes"]]


class SetRegressor(SetEstimator):
    """Predict one or several numbers for a set. Arguments and attributes are those of SetEstimator."""

    _classify = False

    def predict(self, sets: Any, shard_size: int | None = None) -> Any:
        """The targets: (B,) if y was one number per set, else (B, targets). level="element": a row per row of the
        table, or one array per set.
        """
        collection, outputs = self._outputs(sets, shard_size)
        found = self._values(outputs)
        return self._shaped(found[:, 0] if self.single_ else found, collection)

    def score(self, sets: Any, y: Any) -> float:
        """R2, averaged over targets. Elements without a label are left out."""
        collection, outputs = self._outputs(sets, None)
        truth = labels.numbers(labels.aligned(y, collection, self.level)[0])
        found = self._values(outputs)
        there = [np.isfinite(t) for t in truth.T]
        return float(np.mean([r2_score(t[i], p[i]) for t, p, i in zip(truth.T, found.T, there, strict=True)]))

    def _values(self, outputs: Tensor) -> np.ndarray:
        return self._fitted().targets.undo(outputs).double().numpy()

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        return dict(zip(self.targets_, self._values(outputs).T, strict=True))

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        values = labels.numbers(y)
        bad = np.isinf(values) if self.level == "element" else ~np.isfinite(values)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            at = f"[{row}]" if self.single_ else f"[{row}, {column}]"
            raise ValueError(f"y{at} is {values[row, column]}: targets must be finite")
        for number, name in enumerate(self.targets_):
            column = values[:, number][np.isfinite(values[:, number])]
            if not len(column) or (column == column[0]).all():
                raise ValueError(f"{_which(name, len(self.targets_))} is constant: nothing to learn")
        return torch.as_tensor(values, dtype=torch.float32), [1] * values.shape[1]

    def _explained(self, network: SetNetwork, source: Any, target: Any, options: dict[str, Any]) -> Any:
        return 0 if target is None else self._output_of(target)

    def _output_of(self, target: Any) -> int:
        if target in self.targets_:
            return self.targets_.index(target)
        if not isinstance(target, int) or not 0 <= target < len(self.targets_):
            raise ValueError(f"target must be one of {self.targets_}, or its number, got {target!r}")
        return target


def _rows_of(sets: SetCollection, which: np.ndarray) -> np.ndarray:
    """The elements of these sets."""
    return np.concatenate([np.arange(sets.offsets[i], sets.offsets[i + 1]) for i in which.tolist()])


def _checksum(sets: SetCollection, targets: Tensor, train: np.ndarray) -> int:
    """Of everything that is learned from, so that a resumed run cannot go on with other data."""
    found = 0
    for part in (sets.offsets, targets.numpy(), train):
        found = zlib.crc32(part.tobytes(), found)
    step = 1 << 16
    for start in range(0, len(sets.elements), step):
        for rows in (sets.elements, sets.multiplicity):
            found = zlib.crc32(rows[start : start + step].numpy().tobytes(), found)
    return found


def _which(name: str, number: int) -> str:
    return "y" if number == 1 else f"target {name!r}"
