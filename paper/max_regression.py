"""Largest value of ten integers (section 4.4.1, A.3.4): Table 6 and Figure 3, top; and why it comes out so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from omniset.explain import attribute_layers
from omniset.report.figures import line_style
from paper import figures
from paper.explaining import STEPS, identification
from paper.figures import Series
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator
from paper.tables import OURS, THEIRS, Results, Table, apart, published

SHARES = "identified_by_pma", "identified_against_equal"  # of sets whose largest element has the highest score


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
        others = self._draw(100_000, "constant").target
        constant = float((test - others.median()).abs().mean())
        rows.append(
            [f"constant: the median of {len(others):,} other targets", f"{constant:.2f}", "", "", "", "", "", ""]
        )
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
    row_head = "mean absolute error of a UST with"

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
            seeds = " ".join(f"{share:.0%}" for share in sorted(first.each))
            rows.append([column.label, *mine, stuck, f"{first.value:.0%}", seeds])
        head = [self.row_head, *OURS, f"above {plateau}", "maximum scored highest", "by every seed"]
        return [Table(self.recipe.title, head, rows, self.conditions(results), missing)]

    def figures(self, results: Results) -> dict[str, Figure]:
        return {}


class MaxParts(MaxSettings):
    """Two questions to networks as they are and with one part changed: what normalization takes from the largest
    integer, and off which element PMA reads it.

    A training's `elements` changes one normalization: "normalized" adds a LayerNorm after the embedding; "plain"
    removes the one of elements in a block of slots.
    """

    name = "max-parts"
    row_head = "mean absolute error"

    def network(self, training: Training, seed: int | None = None, column: Column | None = None) -> SummaryNetwork:
        network = super().network(training, seed, column)
        encoder, elements = network.encoder, training.options.get("elements")
        if elements == "normalized":
            encoder.embed = nn.Sequential(encoder.embed, nn.LayerNorm(encoder.dim))
        elif elements == "plain":
            encoder.pool.gather.norm_elements = nn.Identity()
        elif elements is not None:
            raise ValueError(f"elements must be 'normalized' or 'plain', got {elements!r}")
        return network

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        row = super().test(network, training, column, seed)
        if not network.encoder.outputs_elements:
            return row
        sample = self._given(self._draw(self.recipe.test["sets"], "test"), training).to(network.device)
        largest = sample.elements[..., 0].argmax(1)
        layers = attribute_layers(network, SetBatch(sample.elements), 0, STEPS)
        (of_pma,) = (layer.scores for layer in layers if layer.layer == "encoder.pool")
        share = float((of_pma.argmax(1) == largest).double().mean())
        against = identification(network, sample.elements, largest, target=0, baseline="equal")["identified"][0]
        error = error_without_largest(network, sample)
        return row | {"mae_without_largest": error, **dict(zip(SHARES, (share, against), strict=True))}

    def tables(self, results: Results) -> list[Table]:
        """Errors of all networks; then those that learned, by whether PMA reads the maximum off the largest element."""
        limit, rows = self._limit(), []
        for training, column in self.recipe.columns:
            tested = results.rows(training.name, column.name)
            learned = self._learned(tested, limit)
            needing = [row for row in learned if row["mae_without_largest"] >= limit]
            others = [row for row in learned if row["mae_without_largest"] < limit]
            for element, some in (("the largest", needing), ("others", others)):
                if some:
                    errors = [np.mean([row[key] for row in some]) for key in ("mae", "mae_without_largest")]
                    shares = [np.mean([row["identified"][0] for row in some])]
                    shares += [np.mean([row[key] for row in some]) for key in SHARES]
                    cells = [*(f"{error:.2f}" for error in errors), *(f"{share:.0%}" for share in shares)]
                    rows.append([column.label, element, f"{len(some)} of {len(tested)}", *cells])
        head = ["network", "element that PMA reads the maximum off", "networks", "mean absolute error"]
        head += ["error if PMA lacks the largest element", "maximum scored highest"]
        head += ["by PMA alone", "all layers, against equal attention"]
        notes = [
            f"Networks with an error below {limit:.1f} alone. PMA counts as reading the largest element if the error "
            f"without it is at least {limit:.1f}: half of what the largest integer is above the next, on average."
        ]
        title = "Largest of ten integers: off which element it is read"
        return [*super().tables(results), Table(title, head, rows, notes)]

    def figures(self, results: Results) -> dict[str, Figure]:
        """Networks by how much PMA needs the largest element, and how often attribution finds it."""
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes, limit = figure.subplots(), self._limit()
        for training, column in self.recipe.columns:
            learned = self._learned(results.rows(training.name, column.name), limit)
            if learned:
                points = [row["mae_without_largest"] for row in learned], [row["identified"][0] for row in learned]
                style = line_style(len(axes.lines)) | {"linestyle": ""}
                axes.plot(*points, label=column.label, **style)
        axes.set(xlabel="mean absolute error if PMA lacks the largest element", ylabel="maximum scored highest")
        axes.set_ylim(-0.03, 1.03)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False, fontsize="x-small")
        return {self.name: figure}

    def _limit(self) -> float:
        """Half the mean gap of the two largest integers. Without the largest, a network that reads the maximum off it
        errs by about that gap, or more.
        """
        values = self._draw(self.recipe.test["sets"], "test").elements[..., 0].sort(1).values
        return float((values[:, -1] - values[:, -2]).mean()) / 2

    @staticmethod
    def _learned(tested: list[dict[str, Any]], limit: float) -> list[dict[str, Any]]:
        """Those that were tested without the largest element in PMA, and with it err less than the limit."""
        return [row for row in tested if "mae_without_largest" in row and row["mae"] < limit]


@torch.no_grad()
def error_without_largest(network: SummaryNetwork, sample: Sample) -> float:
    """The mean absolute error where PMA, but no layer before it, is without the largest element of each set."""
    encoder = network.encoder
    largest = sample.elements[..., 0].argmax(1, keepdim=True)
    others = torch.ones_like(sample.multiplicity).scatter(1, largest, 0)
    elements = encoder(SetBatch(sample.elements)).elements
    output = network.head(encoder.decoder(encoder.pool(elements, others))).flatten(1)[:, 0]
    return float((output - sample.target).abs().mean())
