"""Largest value of ten integers (section 4.4.1, A.3.4): Table 6 and Figure 3, top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from omniset.sets import SetBatch
from omniset.studies import figures
from omniset.studies.explaining import identification
from omniset.studies.recipes import Column, Training
from omniset.studies.study import Sample, Study, SummaryNetwork, generator
from omniset.studies.tables import Results, Table, apart, cell, published


class MaxRegression(Study):
    """Each set: v ~ U(0, 1000), ten integers from 0 to v. Squared error is learned, absolute error reported."""

    name = "max-regression"
    input_dim, outputs = 1, 1

    def prepare(self, seeds: Sequence[int]) -> None:
        """Nothing: sets are drawn when they are needed."""

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        return self._draw(self.recipe.batch_size, "train", seed, step)

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        yield self._draw(self.recipe.options["validation_sets"], "validation", seed)

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.mse_loss(output[:, 0], sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        sample = self._draw(self.recipe.test["sets"], "test").to(next(network.parameters()).device)
        with torch.no_grad():
            output = network(SetBatch(sample.elements))[:, 0]
        found: dict[str, Any] = {"mae": float((output - sample.target).abs().mean())}
        if network.encoder.cross_attention or network.encoder.self_attention:
            found |= identification(network, sample.elements, sample.elements[..., 0].argmax(1), target=0)
        return found

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for training in self.recipe.trainings:
            for column in training.columns:
                ours = results.mean(training.name, column.name, "mae")
                theirs = self.recipe.paper.get(column.name)
                first = (
                    results.mean(training.name, column.name, "identified", 0)
                    if self._attends(results, training, column)
                    else None
                )
                rows.append(
                    [
                        column.label,
                        cell(ours, 2),
                        published(theirs, 2),
                        apart(ours, theirs),
                        "" if first is None else f"{first.value:.0%}",
                    ]
                )
        test = self._draw(self.recipe.test["sets"], "test").target
        train = self._draw(100_000, "constant").target
        constant = float((test - train.median()).abs().mean())
        rows.append(["constant: the median of training targets", f"{constant:.2f}", "", "", ""])
        rows.append(["oracle", "0.00", "", "", ""])
        head = ["", "MAE, ours", "MAE, paper", "outside both intervals by", "maximum scored highest"]
        return [Table(f"{self.recipe.title} (Table 6)", head, rows, results.conditions())]

    def figures(self, results: Results) -> dict[str, Figure]:
        series = {
            column.label: (training.name, column.name)
            for training in self.recipe.trainings
            for column in training.columns
            if self._attends(results, training, column)
        }
        return {"max-regression": figures.identification(results, {"": series})}

    @staticmethod
    def _attends(results: Results, training: Training, column: Column) -> bool:
        return any("identified" in row for row in results.rows(training.name, column.name))

    def _draw(self, sets: int, *keys: str | int) -> Sample:
        draw = generator(self.name, *keys)
        size = self.recipe.options["size"]
        bound = self.recipe.options["bound"] * torch.rand(sets, 1, generator=draw)
        values = (bound * torch.rand(sets, size, generator=draw)).floor()
        return Sample(values[..., None], torch.ones(sets, size), values.amax(1))
