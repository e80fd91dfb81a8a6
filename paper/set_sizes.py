"""Sets of any size: learned from up to a thousand elements, tested up to a million; attention plain and scaled.

No experiment of the paper. Its architecture reads sets of any size in any shards; this asks how well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils import parametrize

from omniset.core.sets import SetBatch
from omniset.layers.universal import AttentionBlock
from paper import figures
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, in_batches
from paper.tables import Results, Table


class SetSizes(Study):
    """Two tasks on sets of elements (marker, value), both with a number between 0 and 1 to be predicted.

    needle: one element has the marker 2, the others U(-1, 1); all values are U(0, 1); the target is the needle's.
    fraction: markers are U(-1, 1) less 2 p - 1, with p ~ U(0, 1) of the set; the target is the fraction above 0.
    """

    name = "set-sizes"
    input_dim, outputs = 2, 1

    def network(self, training: Training, seed: int | None = None, column: Column | None = None) -> SummaryNetwork:
        network = super().network(training, seed, column)
        if training.options.get("growth_alone"):
            for block in [*network.modules()]:
                if isinstance(block, AttentionBlock) and block.size_scale is not None:
                    block.size_scale.data[1] = 1 / math.log1p(self.recipe.options["sizes"][1])
                    parametrize.register_parametrization(block, "size_scale", GrowthAlone())
        return network

    def prepare(self, seeds: Sequence[int]) -> None:
        """Nothing: sets are drawn when they are needed."""

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        """All sets of a step are of one size, log-uniform between the bounds."""
        low, high = (math.log(size) for size in self.recipe.options["sizes"])
        share = float(torch.rand((), generator=generator(self.name, "size", seed, step)))
        size = round(math.exp(low + share * (high - low)))
        return self._draw(training, size, self.recipe.batch_size, "train", seed, step)

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        sets, size = self.recipe.options["validation_sets"], self.recipe.options["sizes"][1]
        yield self._draw(training, size, sets, "validation", seed)

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.mse_loss(output[:, 0], sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        """Root of the mean squared error for each size; one set at a time, in shards where it is large."""
        test, errors = self.recipe.test, []
        for size in test["sizes"]:
            # Small sets are drawn many at once, and read so.
            sets, together = self._sets(size), max(test["elements_at_once"] // size, 1)
            squared = []
            for part in in_batches(together, sets):
                sample = self._draw(training, size, part.stop - part.start, "test", size, part.start)
                sample = sample.to(network.device)
                with torch.no_grad():
                    batch = SetBatch(sample.elements, sample.multiplicity, validate=False)
                    output = network(batch, shard_size=test["elements_at_once"])[:, 0]
                squared.append((output - sample.target).double().square())
            errors.append(float(torch.cat(squared).mean().sqrt()))
        return {"rmse": errors, "scales": self._scales(network)}

    def tables(self, results: Results) -> list[Table]:
        tables = []
        for task in self.recipe.test["tasks"]:
            columns = [(t, c) for t, c in self.recipe.columns if t.options["task"] == task]
            columns = [(t, c) for t, c in columns if results.rows(t.name, c.name)]
            rows: list[list[str]] = []
            for i, size in enumerate(self.recipe.test["sizes"]):
                rows.append([f"{size:,}"])
                for t, c in columns:
                    mean = results.mean(t.name, c.name, "rmse", i)
                    rows[-1] += [] if mean is None else mean.cells(3)
            head = ["elements of a test set"]
            head += [name for _, c in columns for name in (f"{c.label}: mean", "median", "every seed")]
            sets = ", ".join(f"{self._sets(size):,}" for size in self.recipe.test["sizes"])
            notes = [f"Test sets of each size: {sets}.", *self.conditions(results, [t.name for t, _ in columns])]
            title = f"{self.recipe.title}: {task}, root of the mean squared error"
            tables.append(Table(title, head, rows if columns else [], notes, [] if columns else [task]))
        return [*tables, self._factors(results)]

    def figures(self, results: Results) -> dict[str, Figure]:
        panels = {}
        for task in self.recipe.test["tasks"]:
            places = {c.label: (t.name, c.name) for t, c in self.recipe.columns if t.options["task"] == task}
            if series := {label: place for label, place in places.items() if results.rows(*place)}:
                panels[task] = ("rmse", series)
        labels = ("elements of a test set", "root of the mean squared error")
        return {self.name: figures.against_sizes(results, panels, self.recipe.test["sizes"], *labels)} if panels else {}

    def _sets(self, size: int) -> int:
        """How many sets of a size are tested."""
        least, most = self.recipe.test["sets"]
        return min(max(self.recipe.test["elements"] // size, least), most)

    def _factors(self, results: Results) -> Table:
        """What scores are multiplied by in the largest sets."""
        largest, rows = self.recipe.test["sizes"][-1], []
        for training, column in self.recipe.columns:
            for seed, row in enumerate(results.rows(training.name, column.name)):
                if row["scales"]:
                    factors = sorted(b + s * math.log1p(largest) for b, s in row["scales"])
                    cells = " ".join(f"{factor:.2f}" for factor in factors), f"{row['rmse'][-1]:.3f}"
                    rows.append([training.options["task"], column.label, str(seed), *cells])
        head = ["task", "attention", "seed", "factors of the scores, of every head", "root of the mean squared error"]
        return Table(f"{self.recipe.title}: scores at {largest:,} elements", head, rows)

    def _draw(self, training: Training, size: int, sets: int, *keys: str | int) -> Sample:
        task = training.options["task"]
        draw = generator(self.name, task, *keys)
        marker = 2 * torch.rand(sets, size, generator=draw) - 1
        if task == "needle":
            value = torch.rand(sets, size, generator=draw)
            place = torch.randint(size, (sets, 1), generator=draw)
            marker.scatter_(1, place, 2.0)
            target = value.gather(1, place)[:, 0]
        else:
            value = torch.rand(sets, size, generator=draw)
            marker = marker - (1 - 2 * torch.rand(sets, 1, generator=draw))
            target = (marker > 0).float().mean(1)
        return Sample(torch.stack([marker, value], -1), torch.ones(sets, size), target)

    @staticmethod
    def _scales(network: SummaryNetwork) -> list[list[float]]:
        """Of each head, b and s; none in plain networks."""
        scales = [block.size_scale for block in network.modules() if isinstance(block, AttentionBlock)]
        return [head for scale in scales if scale is not None for head in scale.T.tolist()]


class GrowthAlone(nn.Module):
    """Of the scales b and s, b held at 0: scores scaled as by Nakanishi, "Scalable-Softmax Is Superior for Attention",
    2025. (2, heads) to (2, heads).
    """

    def forward(self, scales: Float[Tensor, "2 heads"]) -> Float[Tensor, "2 heads"]:
        return torch.stack([torch.zeros_like(scales[1]), scales[1]])
