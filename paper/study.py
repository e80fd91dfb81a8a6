"""What every study is, and the network that all of them train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from matplotlib.figure import Figure
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from paper import recipes
from paper.encoders import build
from paper.recipes import Column, Training
from paper.tables import Results, Table


class Sample(NamedTuple):
    """A batch of sets with what is to be learned of them."""

    elements: Float[Tensor, "sets elements dim"]
    multiplicity: Shaped[Tensor, "sets elements"]
    target: Tensor

    def to(self, device: torch.device) -> Sample:
        return Sample(*(x.to(device) for x in self))


class SummaryNetwork(nn.Module):
    """An encoder, or what like one has a `dim` and gives a summary, and one Linear on each vector of the summary."""

    encoder: Any

    def __init__(self, encoder: nn.Module, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(self.encoder.dim, outputs)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def forward(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "sets outputs"]:
        """Outputs of all vectors of the summary, side by side."""
        return self.head(self.encoder(source, **options).summary).flatten(1)


class Study(ABC):
    """An experiment of the Universal Set Transformer paper: its data, its loss, how it is tested and drawn.

    Args:
        data: Folder with the data, where the study reads any.
    """

    name: str
    input_dim: int
    outputs: int
    network_type: type[SummaryNetwork] = SummaryNetwork
    encoder_arguments: Mapping[str, Any] = MappingProxyType({})  # beside those of each training
    data_identity: dict[str, Any] | None = None  # where results depend on what data `prepare` has found

    def __init__(self, data: Path | None = None) -> None:
        self.recipe = recipes.read(self.name)
        self.data = data

    @abstractmethod
    def prepare(self, seeds: Sequence[int]) -> None:
        """Read or make the data, once, before the first training."""

    @abstractmethod
    def batch(self, training: Training, seed: int, step: int) -> Sample:
        """What is trained on in a step, counted from 0: the same whenever it is asked for."""

    @abstractmethod
    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        """What the best epoch is chosen by."""

    @abstractmethod
    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        """Mean over the sets. Computed under `torch.func.vmap`: no value may decide what is computed."""

    @abstractmethod
    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        """What is reported of a trained network, run as the column says."""

    @abstractmethod
    def tables(self, results: Results) -> list[Table]:
        """Ours beside the paper's."""

    @abstractmethod
    def figures(self, results: Results) -> dict[str, Figure]:
        """The paper's figures from our numbers, by name."""

    def share(self, results: Results, training: str) -> str:
        """Of the steps that the recipe, which is the paper's, has."""
        return results.share(training, self.recipe.epochs * self.recipe.steps)

    def conditions(self, results: Results, trainings: Sequence[str] | None = None) -> list[str]:
        """How each of these trainings (default: all) was run, and where its recipe is no longer the present one."""
        lines = []
        now = {training.name: training.arguments for training in self.recipe.trainings}
        for name in dict.fromkeys(results.trainings if trainings is None else trainings):
            line = results.condition(name)
            if not line:
                continue
            then = results.trainings[name].get("recipe", {}).get("arguments", {})
            names = [key for key in now.get(name, {}) if then.get(key) != now[name][key]]
            differs = ", ".join(f"{key} {then.get(key, 'as by default')}, now {now[name][key]}" for key in names)
            lines.append(line + (f"; {differs}" if differs else ""))
        return lines

    def network(self, training: Training, seed: int | None = None, column: Column | None = None) -> SummaryNetwork:
        """A new network, its weights drawn with the seed; or one that takes the weights of such a one as a column
        runs it.
        """
        name = training.encoder if column is None else column.encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(self.name, "weights", seed or 0))
            arguments = {**self.encoder_arguments, **training.arguments}
            return self.network_type(build(name, input_dim=self.input_dim, **arguments), self.outputs)


def training_source(
    sample: Sample, training: Training, gradient: bool = True
) -> tuple[SetBatch | list[SetBatch], dict[str, Any]]:
    """The sets as a training reads them, and the options of the call. Without gradient, merged shards are the whole."""
    batch = SetBatch(sample.elements, sample.multiplicity, validate=False)
    size = training.shard_size
    if size is None or (training.shards == "merged" and not gradient):
        return batch, {}
    options = {"shards": training.shards, "gradient": training.gradient}
    if training.shards == "merged" and training.gradient != "exact":
        # Gradients tell the first shard from the rest, and nothing depends on how the rest is cut: in one piece.
        rest = SetBatch(sample.elements[:, size:], sample.multiplicity[:, size:], validate=False)
        return [SetBatch(sample.elements[:, :size], sample.multiplicity[:, :size], validate=False), rest], options
    return batch, {"shard_size": size, **options}


def generator(*keys: str | int) -> torch.Generator:
    """A generator of its own for every combination of keys."""
    return torch.Generator().manual_seed(number(*keys))


def number(*keys: str | int) -> int:
    """A seed from names and numbers, well mixed. A 0 at the end adds nothing: keys of one name must be as many."""
    words = [w for key in keys for w in ([key] if isinstance(key, int) else [len(key), *key.encode()])]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def shuffled(sample: Sample, draw: torch.Generator) -> Sample:
    """Every set's present elements in random order, before the absent ones: what makes shards random."""
    absent = sample.multiplicity == 0
    keys = torch.rand(absent.shape, generator=draw).masked_fill(absent, 2.0)
    order = keys.argsort(1)
    elements = sample.elements.gather(1, order[..., None].expand_as(sample.elements))
    return Sample(elements, sample.multiplicity.gather(1, order), sample.target)


def in_batches(size: int, total: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
