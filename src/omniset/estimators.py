"""Fit, predict, explain and store models of sets, scikit-learn style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from torch import Tensor

from omniset import encoders, explain
from omniset.sets import SetCollection
from omniset.training import artefacts
from omniset.training.network import SetNetwork


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
        batch_size: Sets per step.
        learning_rate: Peak of the warm-up and cosine schedule of AdamW.
        weight_decay: Of AdamW.
        validation_fraction: Share of the sets kept back to watch the training.
        patience: Stop after so many epochs without a better validation loss, and keep the best epoch. None, or
            without validation: never stop, keep the last.
        shard_size: Run the encoder on shards of so many elements, drawn at random in training. None: whole sets.
        shards: "merged" or "independent", see `Encoder.forward`.
        gradient: "exact", "first-shard" or "first-shard-literal", likewise.
        store: "device", "cpu", "disk" or "recompute", likewise.
        seed: Of weights, split, order and dropout. The same seed gives the same numbers to the bit on a CPU.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Show progress bars.
        log: "csv" or "tensorboard": written to the folder given to `fit`.

    Attributes:
        history_: One dict per epoch: epoch, train_loss, train_accuracy (or train_mse), and val_loss and so on.
        network_: The trained module.
        features_: Names of the features, where the sets came as a table.
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
        seed: int = 0,
        device: str = "auto",
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
        self.seed = seed
        self.device = device
        self.progress = progress
        self.log = log

    # ------------------------------------------------------------------ the verbs

    def fit(self, sets: Any, y: Any, *, folder: str | Path | None = None, resume: bool = False) -> SetEstimator:
        """Train.

        Args:
            sets: A SetBatch, a list of N_i x D arrays, or a long DataFrame with a column `set`.
            y: One label (or row of targets) per set, in the order of the sets; for a DataFrame, sets come in the
                order in which they first appear, and a Series is matched by its index.
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
        targets, num_targets = self._encode_targets(_aligned(y, collection))
        train, validation = self._split(targets)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = self._build(collection.dim, num_targets)
        network.fit_features(collection, train)
        if not self._classify:
            network.targets.fit(targets[train])
        options = {name: getattr(self, name) for name in ("shard_size", "shards", "gradient", "store")}
        free = ("device", "progress", "log", "store")
        fingerprint = {k: v for k, v in self.get_params().items() if k not in free}
        fingerprint |= {"sets": len(collection), "features": collection.dim, "elements": len(collection.elements)}
        module = SetModule(
            network,
            self._classify,
            self.learning_rate,
            self.weight_decay,
            options,
            self.seed,
            fingerprint,
        )
        data = SetDataModule(
            collection, targets, train, validation, self.batch_size, self.seed, self.shard_size is not None
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
        )
        self.network_, self.history_, self.features_ = network, module.history, collection.features
        return self

    def explain(self, sets: Any, target: Any = None, steps: int = 20) -> list[Float[np.ndarray, " _"]]:
        """Scores from 0 to 1: how much each element of each set drove the prediction (omniset.explain.attribute).

        Args:
            target: The output explained: a class label, or the number of a regression target. Default: each set's
                predicted class; the first target.
            steps: Of the integral.
        """
        collection, device = self._read(sets), self._device()
        network = self._fitted().to(device)
        scores = []
        for batch in collection.batches(self.batch_size):
            found = explain.attribute(network, batch.to(device), self._target_index(target), steps).cpu().numpy()
            scores += list(found)
        return [s[: len(collection[i][0])] for i, s in enumerate(scores)]

    def save(self, folder: str | Path) -> None:
        """Write the artefact: config.json, model.safetensors, metrics.json (omniset.training.artefacts)."""
        network = self._fitted()
        fitted = {
            "input_dim": network.encoder.input_dim,
            "num_targets": network.head.out_features,
            "features": self.features_,
            **self._fitted_state(),
        }
        artefacts.save(
            folder,
            type(self).__name__,
            self.get_params(),
            fitted,
            network,
            {"history": self.history_},
            self._device().type,
        )

    @classmethod
    def load(cls, folder: str | Path) -> SetEstimator:
        """Read an artefact. Checks format, version, class, configuration and every tensor, and says what differs."""
        config = artefacts.load_config(folder, cls.__name__)
        try:
            estimator = cls(**config["arguments"])
            network = estimator._build(config["fitted"]["input_dim"], config["fitted"]["num_targets"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"{Path(folder) / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        artefacts.load_weights(folder, network)
        estimator.network_, estimator.history_ = network.eval(), []
        estimator.features_ = config["fitted"]["features"]
        estimator._restore(config["fitted"])
        return estimator

    # ------------------------------------------------------------------ what they are made of

    def _outputs(self, sets: Any, shard_size: int | None) -> Float[Tensor, "sets targets"]:
        collection, device = self._read(sets), self._device()
        network = self._fitted().to(device).eval()
        size = self.shard_size if shard_size is None else shard_size
        options = {"shard_size": size, "shards": self.shards, "store": self.store}
        with torch.no_grad():
            found = [network(b.to(device), **options).cpu() for b in collection.batches(self.batch_size)]
        network.to("cpu")
        return torch.cat(found)

    def _read(self, sets: Any) -> SetCollection:
        network = self._fitted()
        if self.features_ is not None and hasattr(sets, "columns"):
            missing = [f for f in self.features_ if f not in sets.columns]
            if missing:
                raise ValueError(f"the table lacks features that the model was fitted on: {missing[:5]}")
            others = [c for c in ("set", "multiplicity") if c in sets.columns]
            sets = sets[[*others, *self.features_]]
        collection = SetCollection.of(sets, torch.float32)
        if collection.dim != network.encoder.input_dim:
            raise ValueError(
                f"the sets have {collection.dim} features, the model was fitted on {network.encoder.input_dim}"
            )
        return collection

    def _build(self, input_dim: int, num_targets: int) -> SetNetwork:
        encoder = encoders.build(
            self.encoder,
            input_dim=input_dim,
            dim=self.dim,
            depth=self.depth,
            num_heads=self.num_heads,
            num_inducing=self.num_inducing,
            **(self.encoder_options or {}),
        )
        return SetNetwork(encoder, num_targets)

    def _split(self, targets: Shaped[Tensor, "sets ..."]) -> tuple[np.ndarray, np.ndarray]:
        positions = np.arange(len(targets))
        held = round(len(targets) * self.validation_fraction)
        if not held or held >= len(targets):
            return positions, positions[:0]
        counts = np.bincount(targets.numpy()) if self._classify else np.array([])
        stratify = targets.numpy() if self._classify and counts.min() > 1 and held >= len(counts) else None
        train, validation = train_test_split(positions, test_size=held, random_state=self.seed, stratify=stratify)
        return np.sort(train), np.sort(validation)

    def _check_arguments(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be >= 0 and < 1, got {self.validation_fraction}")
        if self.device not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'mps', got {self.device!r}")
        self._device()

    def _device(self) -> torch.device:
        here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if self.device != "auto":
            if not here[self.device]:
                raise ValueError(f"device={self.device!r} is not there on this machine: set device to 'auto'")
            return torch.device(self.device)
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator

    def _fitted(self) -> SetNetwork:
        if not hasattr(self, "network_"):
            raise ValueError(f"this {type(self).__name__} is not fitted: call fit or load first")
        return self.network_

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, int]:
        raise NotImplementedError

    def _target_index(self, target: Any) -> int | None:
        raise NotImplementedError

    def _fitted_state(self) -> dict[str, Any]:
        return {}

    def _restore(self, fitted: dict[str, Any]) -> None:
        pass


class SetClassifier(SetEstimator):
    """Classify sets. Arguments and attributes are those of SetEstimator, and `classes_`, the labels in order.

    >>> sets = [[[0.0], [0.1]], [[5.0]], [[0.2]], [[5.1], [4.9], [5.0]]]
    >>> model = SetClassifier(dim=8, num_heads=2, depth=1, epochs=30, learning_rate=0.01, progress=False,
    ...                       validation_fraction=0.0, device="cpu").fit(sets, ["low", "high", "low", "high"])
    >>> model.predict([[[0.05]], [[5.2], [5.0]]]).tolist()
    ['low', 'high']
    """

    _classify = True

    def predict_proba(self, sets: Any, shard_size: int | None = None) -> Float[np.ndarray, "sets classes"]:
        """Probabilities, columns as in `classes_`. shard_size: default that of the model; the result is the same."""
        return self._outputs(sets, shard_size).double().softmax(1).numpy()

    def predict(self, sets: Any, shard_size: int | None = None) -> Shaped[np.ndarray, " sets"]:
        """The most probable label of each set."""
        found = self._outputs(sets, shard_size).argmax(1).numpy()
        return self.classes_[found]

    def score(self, sets: Any, y: Any) -> float:
        """Accuracy.

        Raises:
            ValueError: A label that was not in training.
        """
        collection = self._read(sets)
        y = _aligned(y, collection)
        unknown = sorted({str(label) for label in y[~np.isin(y, self.classes_)]})
        if unknown:
            raise ValueError(f"labels {unknown[:5]} were not in training, which had {self.classes_.tolist()[:20]}")
        return float((self.predict(collection) == y).mean())

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, int]:
        if y.ndim != 1:
            raise ValueError(f"y must hold one label per set, got shape {y.shape}")
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_.tolist()[0]!r}: nothing to learn")
        return torch.as_tensor(codes), len(self.classes_)

    def _target_index(self, target: Any) -> int | None:
        if target is None:
            return None
        found = np.flatnonzero(self.classes_ == target)
        if not len(found):
            raise ValueError(f"target must be one of {self.classes_.tolist()[:20]}, got {target!r}")
        return int(found[0])

    def _fitted_state(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist()}

    def _restore(self, fitted: dict[str, Any]) -> None:
        self.classes_ = np.asarray(fitted["classes"])


class SetRegressor(SetEstimator):
    """Predict one or several numbers for a set. Arguments and attributes are those of SetEstimator."""

    _classify = False

    def predict(self, sets: Any, shard_size: int | None = None) -> Float[np.ndarray, "sets ..."]:
        """The targets: (B,) if y was one number per set, else (B, targets)."""
        found = self._fitted().targets.undo(self._outputs(sets, shard_size)).double().numpy()
        return found[:, 0] if self.single_ else found

    def score(self, sets: Any, y: Any) -> float:
        """R2, averaged over targets."""
        collection = self._read(sets)
        return float(r2_score(_aligned(y, collection), self.predict(collection)))

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, int]:
        try:
            values = torch.as_tensor(y.astype(np.float64), dtype=torch.float32)
        except ValueError as error:
            raise ValueError(f"y must be numbers for regression: {error}") from error
        if not bool(values.isfinite().all()):
            at = (~values.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"y{at} is {values[tuple(at)].item()}: targets must be finite")
        self.single_ = values.dim() == 1
        values = values[:, None] if self.single_ else values
        return values, values.shape[1]

    def _target_index(self, target: Any) -> int | None:
        return 0 if target is None else int(target)

    def _fitted_state(self) -> dict[str, Any]:
        return {"single": self.single_}

    def _restore(self, fitted: dict[str, Any]) -> None:
        self.single_ = bool(fitted["single"])


def _aligned(y: Any, sets: SetCollection) -> np.ndarray:
    """Labels in the order of the sets."""
    if hasattr(y, "index") and hasattr(y, "loc") and sets.features is not None:
        missing = [name for name in sets.names if name not in y.index]
        if missing:
            raise ValueError(f"y has no label for {len(missing)} sets, among them {missing[:3]}")
        y = y.loc[sets.names]
    values = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if len(values) != len(sets):
        raise ValueError(f"y has {len(values)} labels for {len(sets)} sets")
    missing_labels = np.array([v is None or v != v for v in values.reshape(len(values), -1)[:, 0]])
    if missing_labels.any():
        raise ValueError(f"y[{int(missing_labels.argmax())}] is missing")
    return values
