"""Parameters of a mixture of four Gaussians from density-based clusters of its points (section 4.2, A.3.2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.runs.files import replacing
from omniset.runs.progress import Progress
from paper import figures
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, in_batches, shuffled
from paper.tables import OURS, THEIRS, Results, Table, apart, published


class Mixture(NamedTuple):
    """Weights (..., 4), means and standard deviations (..., 4, 2)."""

    weights: Tensor
    means: Tensor
    deviations: Tensor


class MixtureOfGaussians(Study):
    """1,024 points of a mixture: weights ~ Dirichlet(1), means ~ U(-4, 4), standard deviations ~ U(0.1, 0.6) per axis.

    Points in reach of each other, through others, at steps of 0.2 (DBSCAN with min_samples=1: connected components)
    are one element, at their mean, whose multiplicity is their number. The loss is the negative log-likelihood of the
    points themselves. Sets are made once and kept in a file.
    """

    name = "mixture-of-gaussians"
    input_dim, outputs = 2, 5

    def prepare(self, seeds: Sequence[int]) -> None:
        sizes = {part: self.recipe.options[f"{part}_sets"] for part in ("train", "validation")}
        sizes["test"] = self.recipe.test["sets"]
        self.sets = {part: self._read_or_make(part, sets) for part, sets in sizes.items()}

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        sets = len(self.sets["train"][1])
        rows = torch.randint(sets, (self.recipe.batch_size,), generator=generator(self.name, "rows", seed, step))
        sample = self._read("train", rows, training)
        return shuffled(sample, generator(self.name, "order", seed, step))

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        for rows in in_batches(100, len(self.sets["validation"][1])):
            sample = self._read("validation", torch.arange(rows.start, rows.stop), training)
            yield shuffled(sample, generator(self.name, "order of validation", rows.start))

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return negative_log_likelihood(mixture(output), sample.target).mean()

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        losses, change, example = [], 0.0, None
        for rows in in_batches(100, len(self.sets["test"][1])):
            sample = self._read("test", torch.arange(rows.start, rows.stop), training).to(network.device)
            batch = SetBatch(sample.elements, sample.multiplicity, validate=False)
            with torch.no_grad():
                whole = network(batch)
                for size in self.recipe.test["shard_sizes"]:
                    change = max(change, float((network(batch, shard_size=size) - whole).abs().max()))
                losses.append(negative_log_likelihood(mixture(whole), sample.target).double())
            if example is None:
                weights, means, deviations = mixture(whole[: self.recipe.test["drawn_sets"]])
                example = torch.cat([weights[..., None], means, deviations], -1).tolist()
        nll = float(torch.cat(losses).mean())
        return {"nll": nll, "oracle": self.oracle(), "largest_change_in_shards": change, "predicted": example}

    def tables(self, results: Results) -> list[Table]:
        return [self._table_4(results), self._table_3(results)]

    @property
    def _of_table_4(self) -> list[tuple[Training, Column]]:
        return [(t, c) for t, c in self.recipe.columns if t.options.get("group") != "sizes"]

    def _table_4(self, results: Results) -> Table:
        rows, missing = [], []
        for training, column in self._of_table_4:
            ours = results.mean(training.name, column.name, "nll")
            theirs = self.recipe.paper.get(column.name)
            shards = "whole sets" if training.shard_size is None else f"shards of {training.shard_size}"
            if ours is None:
                missing.append(f"{column.label}, {shards}")
                continue
            mine = [*ours.cells(3), self.share(results, training.name)]
            rows.append([column.label, shards, *mine, published(theirs, 3), apart(ours, theirs)])
        oracle = [row["oracle"] for t, c in self.recipe.columns for row in results.rows(t.name, c.name)]
        if oracle:
            rows.append(["oracle: the true mixture", "", f"{oracle[0]:.3f}", "", "", "", "", ""])
        head = ["negative log-likelihood", "trained on", *OURS, *THEIRS]
        notes = self.conditions(results, [t.name for t, _ in self._of_table_4])
        return Table(f"{self.recipe.title} (Table 4)", head, rows, notes, missing)

    def _table_3(self, results: Results) -> Table:
        """By the size of training shards. Where it is at least that of all sets, the network is that of whole sets."""
        largest = self.recipe.test["largest_set"]
        rows, missing = [], []
        for encoder, published_sizes in self.recipe.paper["sizes"].items():
            for size, theirs in published_sizes.items():
                name = f"{encoder}-msa-{size if size < largest else 'whole'}"
                label, ours = {c.name: c.label for _, c in self.recipe.columns}[name], results.mean(name, name, "nll")
                if ours is None:
                    missing.append(f"{label}, {size}")
                    continue
                mine = [*ours.cells(3), self.share(results, name)]
                rows.append([str(size), label, *mine, published(theirs, 3), apart(ours, theirs)])
        head = ["elements of a training shard", "negative log-likelihood", *OURS, *THEIRS]
        sizes = [t.name for t in self.recipe.trainings if t.options.get("group") == "sizes"]
        whole = f"No set has more than {largest} elements: larger shards are whole sets, their rows of one training."
        notes = [whole, *self.conditions(results, sizes)]
        return Table(f"{self.recipe.title}: size of training shards (Table 3)", head, rows, notes, missing)

    def figures(self, results: Results) -> dict[str, Figure]:
        """Figure 2: what the first seed of each makes of some test sets, ellipses of two standard deviations."""
        places = {c.label: (t.name, c.name) for t, c in self._of_table_4 if t.shard_size}
        shown = {label: rows[0]["predicted"] for label, place in places.items() if (rows := results.rows(*place))}
        if not shown:
            return {}
        number = self.recipe.test["drawn_sets"]
        points = [draw_set(generator(self.name, "test", i))[2].numpy() for i in range(number)]
        return {self.name: figures.mixtures(points, {label: np.array(sets) for label, sets in shown.items()})}

    def oracle(self) -> float:
        """Mean NLL of the test points under the mixtures that they were drawn from."""
        _, _, points, truth = self.sets["test"]
        weights, means, deviations = truth[..., 0], truth[..., 1:3], truth[..., 3:]
        return float(negative_log_likelihood(Mixture(weights, means, deviations), points).double().mean())

    def _read(self, part: str, rows: Tensor, training: Training) -> Sample:
        elements, counts, points, _ = self.sets[part]
        m = counts[rows].float()
        return Sample(elements[rows], m if training.options["multiplicities"] else (m > 0).float(), points[rows])

    def _read_or_make(self, part: str, sets: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Clusters (sets, most, 2) and their sizes (sets, most), the points, and the true mixtures (sets, 4, 5)."""
        folder = Path("studies-data") if self.data is None else self.data
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}-{part}-{sets}.npz"
        if not path.exists():
            made = []
            with Progress(f"drawing {part} sets", sets, sys.stderr.isatty(), "sets") as progress:
                for i in range(sets):
                    made.append(draw_set(generator(self.name, part, i)))
                    progress.at(i + 1)
            elements, counts, points, truth = (list(of_all) for of_all in zip(*made, strict=True))
            pad = torch.nn.utils.rnn.pad_sequence
            values = (pad(elements, True), pad(counts, True), torch.stack(points), torch.stack(truth))
            with replacing(path) as temporary:
                np.savez(temporary, *(v.numpy() for v in values))
        with np.load(path) as file:
            a, b, c, d = (torch.as_tensor(file[name]) for name in file.files)
        return a, b, c, d


def draw_set(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clusters, their sizes, the points, and the mixture (4, 5) they came from."""
    weights = -torch.rand(4, generator=draw).clamp(min=1e-30).log()  # exponential: normalised they are Dirichlet(1)
    weights = weights / weights.sum()
    means = 8 * torch.rand(4, 2, generator=draw) - 4
    deviations = 0.1 + 0.5 * torch.rand(4, 2, generator=draw)
    which = torch.multinomial(weights, 1024, replacement=True, generator=draw)
    points = means[which] + deviations[which] * torch.randn(1024, 2, generator=draw)
    elements, counts = clusters(points)
    return elements, counts, points, torch.cat([weights[:, None], means, deviations], 1)


def clusters(
    points: Float[Tensor, "points xy"], reach: float = 0.2
) -> tuple[Float[Tensor, "clusters xy"], Float[Tensor, " clusters"]]:
    """Means and sizes of the connected components of points at most `reach` apart."""
    pairs = cKDTree(points.numpy()).query_pairs(reach, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs), bool), pairs.T), shape=(len(points), len(points)))
    number, labels = connected_components(graph, directed=False)
    which = torch.as_tensor(labels, dtype=torch.int64)
    counts = torch.zeros(number).index_add_(0, which, torch.ones(len(points)))
    return torch.zeros(number, 2).index_add_(0, which, points) / counts[:, None], counts


def mixture(output: Float[Tensor, "sets twenty"]) -> Mixture:
    """A softmax of weights, means, and a softplus of standard deviations from the outputs of four vectors."""
    parts = output.unflatten(1, (4, 5))
    return Mixture(parts[..., 0].softmax(1), parts[..., 1:3], torch.nn.functional.softplus(parts[..., 3:]) + 1e-3)


def negative_log_likelihood(of: Mixture, points: Float[Tensor, "sets points xy"]) -> Float[Tensor, " sets"]:
    """Mean over the points of -log sum_c w_c N(x; mean_c, diag(deviation_c^2))."""
    z = (points[:, :, None] - of.means[:, None]) / of.deviations[:, None]
    log_density = -0.5 * z.square().sum(-1) - of.deviations.log().sum(-1)[:, None] - math.log(2 * math.pi)
    return -torch.logsumexp(log_density + of.weights.clamp(min=1e-30).log()[:, None], -1).mean(1)
