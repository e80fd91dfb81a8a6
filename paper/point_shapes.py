"""Which shape: noisy, rotated point clouds of parametric bodies and curves; all encoders at equal parameters.

No experiment of the paper, whose point clouds are digits in the plane. Here they are in space, turned at random, so
that no coordinate means anything by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor, nn

from omniset.core.sets import SetBatch
from omniset.engine import EncoderOutput
from paper import figures
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, in_batches, number
from paper.tables import Results, Table

Points = Float[Tensor, "sets points 3"]
Shape = Callable[[int, int, Generator], Points]


class PointShapes(Study):
    """Ten shapes, each with random proportions, turned at random, with noise and points that are of no shape."""

    name = "point-shapes"
    input_dim, outputs = 3, 10

    def prepare(self, seeds: Sequence[int]) -> None:
        """Nothing: clouds are drawn when they are needed."""

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        """All clouds of a step have one number of points, log-uniform between the bounds."""
        low, high = (math.log(points) for points in self.recipe.options["points"])
        share = float(torch.rand((), generator=generator(self.name, "points", seed, step)))
        points = round(math.exp(low + share * (high - low)))
        return self._draw(self.recipe.batch_size, points, "train", seed, step)

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        for points in self.recipe.options["validation_points"]:
            yield self._draw(self.recipe.options["validation_sets"], points, "validation", seed, points)

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.cross_entropy(output, sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        """Per cent of clouds that are told, for each number of points. The clouds are the same for all networks."""
        test, accuracy = self.recipe.test, []
        for points in test["points"]:
            right = 0
            for part in in_batches(max(test["points_at_once"] // points, 1), test["sets"]):
                sample = self._draw(part.stop - part.start, points, "test", points, part.start).to(network.device)
                with torch.no_grad():
                    output = network(SetBatch(sample.elements, sample.multiplicity, validate=False))
                right += int((output.argmax(1) == sample.target).sum())
            accuracy.append(100 * right / test["sets"])
        return {"accuracy": accuracy, "parameters": sum(p.numel() for p in network.parameters())}

    def network(self, training: Training, seed: int | None = None, column: Column | None = None) -> SummaryNetwork:
        if "bins" not in training.options:
            return super().network(training, seed, column)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(self.name, "weights", seed or 0))
            encoder = ShapeDistributions(training.options["bins"], training.arguments["dim"])
            return self.network_type(encoder, self.outputs)

    def tables(self, results: Results) -> list[Table]:
        rows, missing = [], []
        sizes = self.recipe.test["points"]
        for training, column in self.recipe.columns:
            place = (training.name, column.name)
            means = [results.mean(*place, "accuracy", i) for i in range(len(sizes))]
            parameters = results.mean(*place, "parameters")
            if parameters is None:
                missing.append(column.label)
                continue
            rows.append([column.label, f"{parameters.value:,.0f}", *("" if m is None else m.text(1) for m in means)])
        head = ["accuracy %", "parameters", *(f"{points:,} points" for points in sizes)]
        return [Table(self.recipe.title, head, rows, self._conditions(results), missing)]

    def figures(self, results: Results) -> dict[str, Figure]:
        series = {c.label: (t.name, c.name) for t, c in self.recipe.columns if results.rows(t.name, c.name)}
        if not series:
            return {}
        labels = ("points of a test cloud", "accuracy %")
        return {
            self.name: figures.against_sizes(results, {"": ("accuracy", series)}, self.recipe.test["points"], *labels)
        }

    def _conditions(self, results: Results) -> list[str]:
        """As `conditions`, with those that are alike in one line."""
        lines: dict[str, list[str]] = {}
        for line in self.conditions(results):
            name, _, how = line.partition(": ")
            lines.setdefault(how, []).append(name)
        return [f"{', '.join(names)}: {how}" for how, names in lines.items()]

    def _draw(self, sets: int, points: int, *keys: str | int) -> Sample:
        draw = generator(self.name, *keys)
        options = self.recipe.options
        kinds = torch.randint(len(SHAPES), (sets,), generator=draw)
        x = torch.empty(sets, points, 3)
        for kind, shape in enumerate(SHAPES.values()):
            chosen = kinds == kind
            x[chosen] = shape(int(chosen.sum()), points, draw)
        x = standard(x)
        stray = options["stray"] * torch.rand(sets, 1, 1, generator=draw)
        box = options["box"] * _uniform(draw, -1.0, 1.0, sets, points, 3)
        x = torch.where(torch.rand(sets, points, 1, generator=draw) < stray, box, x)
        noise = options["noise"] * torch.rand(sets, 1, 1, generator=draw)
        x = x + noise * torch.randn(sets, points, 3, generator=draw)
        return Sample(standard(x @ rotations(sets, draw)), torch.ones(sets, points), kinds)


class ShapeDistributions(nn.Module):
    """What a network without attention is told of a cloud: how its distances are distributed, turned as it may be.

    Soft histograms of the distances of points from the middle and of neighbours in the order of the points, which is
    random, from each other (Osada et al., "Shape Distributions", 2002), and the three variances along the principal
    axes; then a multilayer perceptron.
    """

    centres: Tensor

    def __init__(self, bins: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("centres", torch.linspace(0, 4, bins))
        layers = nn.Linear(2 * bins + 3, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        self.network = nn.Sequential(*layers)

    def forward(self, batch: SetBatch) -> EncoderOutput:
        x = batch.elements
        apart = [(x - x.roll(shift, 1)).norm(dim=2) for shift in range(1, 9)]
        axes = torch.linalg.eigvalsh(x.mT @ x / x.shape[1])
        told = torch.cat([self._histogram(x.norm(dim=2)), self._histogram(torch.cat(apart, 1)), axes], 1)
        return EncoderOutput(None, self.network(told)[:, None], None)

    def _histogram(self, distances: Float[Tensor, "sets distances"]) -> Float[Tensor, "sets bins"]:
        width = self.centres[1] - self.centres[0]
        return torch.stack([torch.exp(-(((distances - c) / width) ** 2)).mean(1) for c in self.centres], 1)


def standard(x: Points) -> Points:
    """With its mean at 0 and a mean square distance of 1 from it."""
    x = x - x.mean(1, keepdim=True)
    return x / x.square().sum(2, keepdim=True).mean(1, keepdim=True).sqrt()


def rotations(sets: int, draw: Generator) -> Float[Tensor, "sets 3 3"]:
    """Uniform ones: Q of the decomposition QR of normal numbers, with R's diagonal above 0 and a determinant of 1."""
    q, r = torch.linalg.qr(torch.randn(sets, 3, 3, generator=draw))
    q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None]
    return torch.cat([q[..., :2], q[..., 2:] * torch.linalg.det(q)[:, None, None]], 2)


def _uniform(draw: Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=draw)


def _angle(sets: int, points: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Cosine and sine."""
    angle = _uniform(draw, 0.0, 2 * math.pi, sets, points)
    return angle.cos(), angle.sin()


def _sphere(sets: int, points: int, draw: Generator) -> Points:
    return F.normalize(torch.randn(sets, points, 3, generator=draw), dim=2)


def _hemisphere(sets: int, points: int, draw: Generator) -> Points:
    x, y, z = _sphere(sets, points, draw).unbind(2)
    return torch.stack([x, y, z.abs()], 2)


def _ellipsoid(sets: int, points: int, draw: Generator) -> Points:
    return _sphere(sets, points, draw) * _uniform(draw, 0.4, 1.0, sets, 1, 3)


def _torus(sets: int, points: int, draw: Generator) -> Points:
    (c, s), (height, out) = _angle(sets, points, draw), _angle(sets, points, draw)
    radius = _uniform(draw, 0.2, 0.6, sets, 1)
    return torch.stack([(1 + radius * out) * c, (1 + radius * out) * s, radius * height], 2)


def _cylinder(sets: int, points: int, draw: Generator) -> Points:
    """Side and both ends, points by area."""
    c, s = _angle(sets, points, draw)
    height = _uniform(draw, 0.8, 3.0, sets, 1)
    at_end = torch.rand(sets, points, generator=draw) < 1 / (1 + height)
    radius = torch.where(at_end, torch.rand(sets, points, generator=draw).sqrt(), 1)
    z = torch.rand(sets, points, generator=draw)
    return torch.stack([radius * c, radius * s, height * torch.where(at_end, z.round(), z)], 2)


def _cone(sets: int, points: int, draw: Generator) -> Points:
    """Side and base, points by area."""
    c, s = _angle(sets, points, draw)
    height = _uniform(draw, 0.8, 3.0, sets, 1)
    at_base = torch.rand(sets, points, generator=draw) < 1 / (1 + (1 + height.square()).sqrt())
    radius = torch.rand(sets, points, generator=draw).sqrt()
    return torch.stack([radius * c, radius * s, torch.where(at_base, 0, height * (1 - radius))], 2)


def _box(sets: int, points: int, draw: Generator) -> Points:
    x = _uniform(draw, -1.0, 1.0, sets, points, 3)
    face = torch.randint(3, (sets, points, 1), generator=draw)
    x = x.scatter(2, face, x.gather(2, face).sign())
    return x * _uniform(draw, 0.5, 1.0, sets, 1, 3)


def _tetrahedron(sets: int, points: int, draw: Generator) -> Points:
    corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    corners = corners * _uniform(draw, 0.6, 1.0, sets, 1, 3)
    weights = torch.empty(sets, points, 3).exponential_(generator=draw)
    weights = F.pad(weights / weights.sum(2, keepdim=True), (0, 1))  # on the face opposite the last corner
    turned = (torch.arange(4) + torch.randint(4, (sets, points, 1), generator=draw)) % 4
    return weights.gather(2, turned) @ corners


def _helix(sets: int, points: int, draw: Generator) -> Points:
    turns, height = _uniform(draw, 1.5, 4.0, sets, 1), _uniform(draw, 1.0, 4.0, sets, 1)
    t = torch.rand(sets, points, generator=draw)
    angle = 2 * math.pi * turns * t
    return torch.stack([angle.cos(), angle.sin(), height * t], 2)


def _moebius(sets: int, points: int, draw: Generator) -> Points:
    angle = _uniform(draw, 0.0, 2 * math.pi, sets, points)
    across = _uniform(draw, 0.2, 0.5, sets, 1) * _uniform(draw, -1.0, 1.0, sets, points)
    radius = 1 + across * (angle / 2).cos()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), across * (angle / 2).sin()], 2)


SHAPES: dict[str, Shape] = {
    "sphere": _sphere,
    "hemisphere": _hemisphere,
    "ellipsoid": _ellipsoid,
    "torus": _torus,
    "cylinder": _cylinder,
    "cone": _cone,
    "box": _box,
    "tetrahedron": _tetrahedron,
    "helix": _helix,
    "Moebius strip": _moebius,
}
