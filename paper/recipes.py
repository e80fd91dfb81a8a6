"""What a study trains and reads: its YAML file, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
# What a study itself knows of a training. All else is an argument of the encoder, which refuses those it does not know.
OPTIONS = {
    "bins",
    "elements",
    "group",
    "growth_alone",
    "input_scale",
    "multiplicities",
    "points",
    "reads",
    "single",
    "task",
    "test_points",
    "variant_of_block",
}


@dataclass(frozen=True)
class Column:
    """One way to run trained networks on test sets: a column of the paper's tables.

    Attributes:
        name: Unique in the study.
        label: As tables and figures have it.
        encoder: In the registry; it takes the trained weights as they are.
        shards: "merged" or "independent", where test sets come in shards.
        count_empty: Whether a set has a part in shards without an element of it, whose padding then counts as elements.
    """

    name: str
    label: str
    encoder: str
    shards: str = "merged"
    count_empty: bool = False


@dataclass(frozen=True)
class Training:
    """Networks that are trained in one way, one for each seed.

    Attributes:
        name: Unique in the study.
        encoder: In the registry.
        arguments: Of the encoder.
        shard_size: Elements of a training shard; None: whole sets.
        shards, gradient: As in `Encoder.forward`.
        stack_on_cpu: Whether all seeds at once take less time than one after the other also without an accelerator.
        columns: How its networks are tested.
        options: What the study itself knows about.
    """

    name: str
    encoder: str
    arguments: dict[str, Any]
    columns: list[Column]
    shard_size: int | None = None
    shards: str = "merged"
    gradient: str = "exact"
    stack_on_cpu: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def recomputed(self) -> bool:
        """Whether it takes exact gradients of shards."""
        return self.shard_size is not None and self.shards == "merged" and self.gradient == "exact"

    def stacks(self, device: str) -> bool:
        """Whether all seeds are trained at once. Exact gradients of shards cannot be."""
        return not self.recomputed and (self.stack_on_cpu or device != "cpu")


@dataclass(frozen=True)
class Recipe:
    """A study.

    Attributes:
        title: Of its tables.
        epochs, steps: An epoch is so many steps, and ends with validation and a checkpoint.
        batch_size: Sets of a step.
        learning_rate: Of Adam.
        drop: (share of all steps, factor): from there on the rate is multiplied by it.
        trainings: In the order of the tables.
        paper: Numbers of the paper, as the study reads them.
        options: What the study itself knows about, and training depends on.
        test: What only tests and tables depend on.
        needs: Data that has to be there.
    """

    name: str
    title: str
    epochs: int
    steps: int
    batch_size: int
    learning_rate: float
    trainings: list[Training]
    drop: tuple[float, float] | None = None
    paper: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    needs: str = ""

    @property
    def columns(self) -> list[tuple[Training, Column]]:
        """Every column after the training of its networks, in the order of the tables."""
        return [(training, column) for training in self.trainings for column in training.columns]

    def chosen(self, names: list[str] | None) -> list[Training]:
        """The trainings of these names, in their order. None: all.

        Raises:
            ValueError: A name that no training has, or no name.
        """
        if names is None:
            return self.trainings
        known = {training.name: training for training in self.trainings}
        if unknown := [name for name in names or [""] if name not in known]:
            raise ValueError(f"trainings must be among {', '.join(known)}, got {unknown[0]!r}")
        return [known[name] for name in names]


def read(name: str) -> Recipe:
    """The recipe beside a study's module."""
    file = FOLDER / f"{name.replace('-', '_')}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    architectures = content.pop("architectures", {})
    trainings = [_training(key, value, architectures) for key, value in content.pop("trainings").items()]
    drop = content.pop("drop", None)
    return Recipe(name=name, trainings=trainings, drop=drop and (drop["after"], drop["factor"]), **content)


def _training(name: str, given: dict[str, Any], architectures: dict[str, Any]) -> Training:
    values = architectures[given["architecture"]] | given
    del values["architecture"]
    columns = [
        Column(name=key, **{"encoder": values["encoder"]} | value) for key, value in values.pop("columns").items()
    ]
    known = {f.name for f in fields(Training)}
    settings = {k: v for k, v in values.items() if k in known}
    options = {k: v for k, v in values.items() if k in OPTIONS}
    arguments = {k: v for k, v in values.items() if k not in known | OPTIONS}
    return Training(name=name, arguments=arguments, columns=columns, options=options, **settings)
