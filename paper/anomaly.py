"""Is one of ten images unlike the others (section 4.4.2, A.3.5): Table 7, Figure 3, bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from omniset.core.sets import SetBatch
from paper import figures
from paper.explaining import identification
from paper.mnist import mnist_images
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, in_batches
from paper.tables import OURS, Results, Table, published

WHOLE = "trained on whole sets"
SHARDS = "trained on one-image shards"


class Anomaly(Study):
    """Sets of ten images that have something in common; in half of them one image has not.

    Subclasses say what images there are and how a set is drawn.
    """

    outputs = 1

    def draw(
        self, part: str, sets: int, anomalous: Bool[Tensor, " sets"], draw: torch.Generator
    ) -> tuple[Float[Tensor, "sets images features"], Int[Tensor, " sets"]]:
        """Images of each set, and the place of the anomaly if it has one. Parts: train, validation, test."""
        raise NotImplementedError

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        return self._sample("train", self.recipe.batch_size, seed, step)[0]

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        yield self._sample("validation", self.recipe.options["validation_sets"], seed)[0]

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.binary_cross_entropy_with_logits(output[:, 0], sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        sample, _ = self._sample("test", self.recipe.test["sets"])
        right = 0
        for rows in in_batches(500, len(sample.target)):
            elements = sample.elements[rows].to(network.device)
            with torch.no_grad():
                output = network(SetBatch(elements), shard_size=training.shard_size, shards=column.shards)
            right += int(((output[:, 0] > 0).cpu() == (sample.target[rows] > 0)).sum())
        sets = self.recipe.test["explained_sets"]
        elements, where = self.draw("test", sets, torch.ones(sets, dtype=torch.bool), generator(self.name, "explained"))
        identified = identification(network, elements.to(network.device), where.to(network.device), target=0)
        return {"accuracy": right / len(sample.target), "test_sets": len(sample.target), **identified}

    def tables(self, results: Results) -> list[Table]:
        rows, missing = [], []
        for training, column in self.recipe.columns:
            ours = results.mean(training.name, column.name, "accuracy")
            theirs = published(self.recipe.paper.get(column.name), 2)
            first = results.mean(training.name, column.name, "identified", 0)
            if ours is None or first is None:
                missing.append(f"{column.label}, {_group(training)}")
                continue
            mine = [*ours.cells(3), self.share(results, training.name)]
            rows.append([column.label, _group(training), *mine, theirs, f"{first.value:.0%}"])
        head = ["accuracy", "", *OURS, self.recipe.test["paper_label"], "anomaly scored highest"]
        return [Table(f"{self.recipe.title} (Table 7)", head, rows, self.conditions(results), missing)]

    def figures(self, results: Results) -> dict[str, Figure]:
        rows: dict[str, figures.Series] = {}
        labels: dict[str, dict[str, str]] = {}
        for training, column in self.recipe.columns:
            if results.rows(training.name, column.name):
                rows.setdefault(_group(training), {})[column.label] = (training.name, column.name)
        for training in self.recipe.trainings:  # one line of several columns, which are the same network
            label = ", ".join(column.label for column in training.columns)
            labels.setdefault(_group(training), {})[label] = training.name
        drawn = {self.name: figures.identification(results, rows)} if rows else {}
        losses = figures.over_steps(results, labels, self.recipe.steps)
        return drawn if losses is None else drawn | {f"{self.name}-steps": losses}

    def _sample(self, part: str, sets: int, *keys: int) -> tuple[Sample, Tensor]:
        draw = generator(self.name, part, *keys)
        anomalous = torch.rand(sets, generator=draw) < 0.5
        elements, where = self.draw(part, sets, anomalous, draw)
        return Sample(elements, torch.ones(elements.shape[:2]), anomalous.float()), where


class DigitAnomaly(Anomaly):
    """Images of one digit, the anomaly of another; pixels from 0 to 1, in place of the paper's embedded faces."""

    name = "anomaly"
    input_dim = 784

    def prepare(self, seeds: Sequence[int]) -> None:
        images, labels = mnist_images(self.data, "train")
        test, test_labels = mnist_images(self.data, "test")
        validation = len(images) // 10
        order = torch.randperm(len(images), generator=generator(self.name, "split")).numpy()
        parts = {
            "train": (images[order[validation:]], labels[order[validation:]]),
            "validation": (images[order[:validation]], labels[order[:validation]]),
            "test": (test, test_labels),
        }
        self.images = {name: torch.as_tensor(pixels).flatten(1) for name, (pixels, _) in parts.items()}
        self.rows = {
            name: [torch.as_tensor(digits == digit).nonzero()[:, 0] for digit in range(10)]
            for name, (_, digits) in parts.items()
        }

    def draw(
        self, part: str, sets: int, anomalous: Bool[Tensor, " sets"], draw: torch.Generator
    ) -> tuple[Float[Tensor, "sets images features"], Int[Tensor, " sets"]]:
        size = self.recipe.options["size"]
        common = torch.randint(10, (sets, 1), generator=draw)
        other = (common + torch.randint(1, 10, (sets, 1), generator=draw)) % 10
        where = torch.randint(size, (sets,), generator=draw)
        odd = (torch.arange(size) == where[:, None]) & anomalous[:, None]
        digits = torch.where(odd, other, common)
        rows = self.rows[part]
        sizes = torch.tensor([len(r) for r in rows])
        place = (torch.rand(sets, size, generator=draw, dtype=torch.float64) * sizes[digits]).long()
        chosen = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[digits, place]
        return self.images[part][chosen].float() / 255, where


def _group(training: Training) -> str:
    return WHOLE if training.shard_size is None else SHARDS
