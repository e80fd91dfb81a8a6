"""What every estimator does with what it has learned: say whether it is there, save it, load it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd
from torch import nn

from omniset.options import Computing, defaults_of, from_plain, options_of, without_folder
from omniset.runs import devices, folders, processes
from omniset.training import artefacts
from omniset.training.fit import check_resumed
from omniset.training.located import located

Fitted = TypeVar("Fitted", bound="Estimator")


class Estimator(Computing):
    """An estimator whose model can be stored as a folder: see `omniset.training.artefacts`.

    It keeps to scikit-learn's conventions without inheriting from its classes, whose module takes a second to import:
    a command that predicts needs none of it.

    Attributes:
        FITTED: A JSON schema for each key of what `_state` gives.
        TABLES: The tables of an artefact, and the columns of text that each must have.
        HISTORIES: Attributes, without the underscore at the end, that metrics.json has.
        measured_: What was measured at fit of data kept back, as an evaluation has it: for the card.
    """

    network_: Any
    history_: Any
    measured_: Mapping[str, Any] = {}
    FITTED: ClassVar[dict[str, Any]] = {}
    TABLES: ClassVar[Mapping[str, Sequence[str]]] = {}
    HISTORIES: ClassVar[tuple[str, ...]] = ("history",)

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None, replace: bool = False) -> None:
        """Write the artefact: config.json, model.safetensors, metrics.json, run.json, and a file for each table.

        Of several processes that share a fit, the first one writes, and the others return at once.

        Args:
            folder: Is made where there is none.
            metrics: What metrics.json has beside the history of the training.
            replace: Replace a model of the same class, with all that the run of its fit has made.

        Raises:
            OSError: The folder cannot be written to.
            ValueError: It is not fitted; a weight is not finite; another run works in the folder; the folder holds
                something else, or a model that is not to be replaced.
        """
        self.require_fitted()
        if processes.is_first(getattr(self, "devices", 1), getattr(self, "num_nodes", 1)):
            with folders.saving(Path(folder).expanduser(), type(self).__name__, replace) as place:
                self.write(place, metrics)

    def write(self, folder: str | Path, metrics: Mapping[str, Any] | None = None) -> None:
        """Write the artefact's files into a folder that is the run's own: see `save`."""
        artefacts.save(
            folder,
            type(self).__name__,
            without_folder(self.plain()),
            self._state(),
            self._tables(),
            self._networks(),
            {**{n: getattr(self, f"{n}_") for n in self.HISTORIES}, "validation": self.measured_, **(metrics or {})},
            devices.find(self.device).type,
        )

    def check_resumed(self, folder: str | Path | None, resume: bool, *, besides: Collection[str] = ()) -> None:
        """Before anything is read: an interrupted run that the folder holds, if it is to be resumed, had these options.

        Args:
            besides: Options that are not known yet.
        """
        if resume and folder is not None:
            options = {name: value for name, value in self.fingerprint().items() if name not in besides}
            check_resumed(Path(folder) / self._learns_first_in(), options)

    def _learns_first_in(self) -> str:
        """Where the first network to learn keeps its checkpoints, in the folder of a run."""
        return "."

    @classmethod
    def load(cls: type[Fitted], folder: str | Path, **overrides: Any) -> Fitted:
        """Read an artefact. Checks format, version, class, tables and every tensor, and says what differs.

        Args:
            folder: What `save` wrote, or what else `omniset.training.located` finds a model by.
            **overrides: Options that are to be others than at fit, such as device; and those that an artefact does not
                keep, which are places on a machine.

        Raises:
            FileNotFoundError, ValueError: It is not there, of another kind, changed or damaged.
        """
        folder = located(folder)
        config = artefacts.load_config(folder, cls)
        weights = artefacts.Weights(folder, config)
        tables = {name: artefacts.load_table(folder, config, name, text) for name, text in cls.TABLES.items()}
        with artefacts.reading(folder, cls):
            estimator = cls(**from_plain(cls, config["arguments"]))
            estimator.check_options()
            estimator.set_params(**overrides)
            estimator._restore(config["fitted"], tables, weights)
        weights.require_read()
        metrics = artefacts.load_metrics(folder)
        estimator.measured_ = found if isinstance(found := metrics.get("validation"), dict) else {}
        for name in cls.HISTORIES:
            default = getattr(estimator, f"{name}_", None)
            value = metrics.get(name, [] if default is None else default)
            of_kind = default is None or isinstance(value, type(default))
            setattr(estimator, f"{name}_", value if of_kind else default)
        return estimator

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All options, as scikit-learn's tools ask for them."""
        return {name: getattr(self, name) for name in sorted(options_of(type(self)))}

    def set_params(self: Fitted, **options: Any) -> Fitted:
        """Change options.

        Raises:
            ValueError: One that it does not have.
        """
        known = options_of(type(self))
        for name, value in options.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no option {name!r}; there are: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = defaults_of(type(self))
        changed = (f"{n}={v!r}" for n, v in self.get_params().items() if v is not defaults[n] and v != defaults[n])
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(None, TargetTags(required=False))

    def require_fitted(self) -> None:
        """Raise scikit-learn's NotFittedError, which is a ValueError, of an estimator that has learned nothing yet."""
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first, or load one")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def _networks(self) -> nn.Module:
        """The module with all weights; the ValueError of `require_fitted` where there is none."""
        self.require_fitted()
        network: nn.Module = self.network_
        return network

    def _state(self) -> dict[str, Any]:
        """What is needed to predict beside options, weights and tables."""
        raise NotImplementedError

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        """Take up what `_state` and `_tables` gave, and the weights.

        Raises:
            ValueError: Parts that do not belong together.
        """
        raise NotImplementedError
