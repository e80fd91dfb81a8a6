"""Largest value of ten integers (section 4.4.1, A.3.4): Table 6 and Figure 3, top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from omniset.core.sets import SetBatch
from paper import figures
from paper.explaining import identification
from paper.figures import Series
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator
from paper.tables import OURS, THEIRS, Results, Table, apart, published


class MaxRegression(Study):
    """Each set: v ~ U(0, 1000), ten integers from 0 to v. Squared error is learned, absolute error reported."""

    name = "max-regression"
    input_dim, outputs = 1, 1

    def prepare(self, seeds: Sequence[int]) -> None:
        """Nothing: sets are drawn when they are needed."""

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        return self._given(self._draw(self.recipe.batch_size, "train", seed, step), training)

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        yield self._given(self._draw(self.recipe.options["validation_sets"], "validation", seed), training)

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.mse_loss(output[:, 0], sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        sample = self._given(self._draw(self.recipe.test["sets"], "test"), training).to(network.device)
        with torch.no_grad():
            output = network(SetBatch(sample.elements))[:, 0]
        error = {"mae": float((output - sample.target).abs().mean())}
        if not (network.encoder.cross_attention or network.encoder.self_attention):
            return error
        return error | identification(network, sample.elements, sample.elements[..., 0].argmax(1), target=0)

    def tables(self, results: Results) -> list[Table]:
        rows, missing = [], []
        attending = self._attending(results)
        for training, column in self.recipe.columns:
            place = (training.name, column.name)
            ours, theirs = results.mean(*place, "mae"), self.recipe.paper.get(column.name)
            if ours is None:
                missing.append(column.label)
                continue
            first = results.mean(*place, "identified", 0) if place in attending.values() else None
            found = "" if first is None else f"{first.value:.0%}"
            mine = [*ours.cells(2), self.share(results, training.name)]
            rows.append([column.label, *mine, published(theirs, 2), apart(ours, theirs), found])
        test = self._draw(self.recipe.test["sets"], "test").target
        train = self._draw(100_000, "constant").target
        constant = float((test - train.median()).abs().mean())
        rows.append(["constant: the median of training targets", f"{constant:.2f}", "", "", "", "", "", ""])
        rows.append(["oracle", "0.00", "", "", "", "", "", ""])
        head = ["mean absolute error", *OURS, *THEIRS, "maximum scored highest"]
        return [Table(f"{self.recipe.title} (Table 6)", head, rows, self.conditions(results), missing)]

    def figures(self, results: Results) -> dict[str, Figure]:
        return {self.name: figures.identification(results, {"": self._attending(results)})}

    def _attending(self, results: Results) -> Series:
        """Columns of networks that have attributions."""
        places = {c.label: (t.name, c.name) for t, c in self.recipe.columns}
        return {label: place for label, place in places.items() if any("identified" in r for r in results.rows(*place))}

    def _given(self, sample: Sample, training: Training) -> Sample:
        """The integers as a network reads them: divided by `input_scale`."""
        return sample._replace(elements=sample.elements / training.options.get("input_scale", 1))

    def _draw(self, sets: int, *keys: str | int) -> Sample:
        draw = generator(self.name, *keys)
        size = self.recipe.options["size"]
        bound = self.recipe.options["bound"] * torch.rand(sets, 1, generator=draw)
        values = (bound * torch.rand(sets, size, generator=draw)).floor()
        return Sample(values[..., None], torch.ones(sets, size), values.amax(1))


class MaxSettings(MaxRegression):
    """Which of the settings that the paper leaves open decides how well a UST learns the largest of ten integers."""

    name = "max-settings"

    def tables(self, results: Results) -> list[Table]:
        plateau = self.recipe.test["plateau"]
        rows, missing = [], []
        for training, column in self.recipe.columns:
            ours = results.mean(training.name, column.name, "mae")
            first = results.mean(training.name, column.name, "identified", 0)
            if ours is None or first is None:
                missing.append(column.label)
                continue
            stuck = f"{sum(error > plateau for error in ours.each)} of {len(ours.each)}"
            mine = [*ours.cells(2), self.share(results, training.name)]
            rows.append([column.label, *mine, stuck, f"{first.value:.0%}"])
        head = ["mean absolute error of a UST with", *OURS, f"above {plateau}", "maximum scored highest"]
        return [Table(self.recipe.title, head, rows, self.conditions(results), missing)]

    def figures(self, results: Results) -> dict[str, Figure]:
        return {}
