"""The network of the default as a method: trained in episodes that hide what is to be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.geometry import Geometry, geometry_of
from omniset.regions.kept import Kept
from omniset.regions.methods import Method
from omniset.regions.model import RegionSetAttention
from omniset.regions.scaling import Components, known_pairs, matrix_of, places_of
from omniset.regions.splits import FEWEST, mirrored, split
from omniset.runs import devices

FOLDS = 4  # one of which an episode hides
NEAR = 30.0  # mm, that are 1 in the keys
SIDE = 0.5  # of either hemisphere in the keys, away from the midline
MIDLINE = 10.0  # mm, within which a region is less and less of a side
TOGETHER = 512  # regions on either side that are computed at a time
SLOWEST = 1e-3  # learning rate of the last step


@dataclass
class Keys:
    """What regions are known by: components of expression, and (|x|, y, z) and the side.

    Components are divided by the root of their mean sum of squares over the training regions, so that together they
    have the variance 1; places by 30 mm; the side is x / 20 mm, within -0.5 and 0.5.

    Attributes:
        components: None: expression is not looked at.
        size: Of the components.
        places: Are places looked at?
    """

    components: Components | None
    size: float
    places: bool

    KEPT: ClassVar[Kept] = {"components": Components, "size": None, "places": None}

    @classmethod
    def of(cls, train: Regions, number: int, genes: bool, places: bool) -> Keys:
        components = Components(train, number) if genes else None
        size = 1.0 if components is None else float(np.sqrt(np.square(components(train)).sum(1).mean())) or 1.0
        return cls(components, size, places and train.placed)

    @property
    def genes(self) -> int:
        """Columns of expression."""
        return 0 if self.components is None else self.components.axes.shape[1]

    def __call__(self, regions: Regions) -> Float[np.ndarray, "regions columns"]:
        parts = [] if self.components is None else [self.components(regions) / self.size]
        if self.places:
            c = places_of(regions)
            parts += [mirrored(c) / NEAR, SIDE * np.clip(c[:, :1] / MIDLINE, -1, 1)]
        return np.concatenate(parts, 1)


@dataclass(eq=False)
class SetAttention(Method):
    """A new region attends to the set of known regions: see `omniset.regions.model.RegionSetAttention`.

    What is read, and learned, is what the trunk leaves of connectivity: see `omniset.regions.geometry.Geometry`. An
    episode is a step of Adam: the regions, at most `batch_size` of them drawn anew, are divided as `held_out` says;
    one of four folds is hidden, the trunk fitted without it, and the loss is the squared error of the pairs within it.
    The learning rate falls linearly.

    Args:
        name: Of the method.
        genes, place: Use expression; use coordinates.
        components: Principal components of expression in the keys, at most.
        num_heads: Of the network.
        steps: Episodes.
        batch_size: Regions of an episode, at most.
        learning_rate: Of the first step.
        device: Where to learn.
        also: More regions to take episodes from, in turn: such as the same with other subjects' connectivity, or
            those of another atlas, with the same genes. They have to have places where the others have.
    """

    name: str = "attention"
    genes_too: bool = True
    place: bool = True
    components: int = 16
    num_heads: int = 8
    steps: int = 60
    batch_size: int = 200
    learning_rate: float = 0.05
    device: str = "cpu"
    also: Sequence[Regions] = ()

    KEPT: ClassVar[Kept] = {
        "keys": Keys,
        "trunk": Geometry,
        "scale": None,
        "tensors": None,
        "values": None,
        "known": None,
    }
    keys: Keys = field(init=False)
    trunk: Geometry = field(init=False)
    scale: float = field(init=False)
    values: Float[np.ndarray, "n n"] = field(init=False)
    known: Bool[np.ndarray, "n n"] = field(init=False)
    network: RegionSetAttention = field(init=False)
    history: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        if not (self.genes_too or self.place):
            raise ValueError("genes_too and place must not both be False")
        self.needs_genes = self.genes_too
        self.needs_coordinates = False

    # ------------------------------------------------------------------ learning

    def _fit(self, train: Regions, seed: int) -> None:
        if not self.genes_too and not train.placed:
            raise ValueError(f"coordinates are not known of these regions: {self.name!r} needs them")
        self.keys = Keys.of(train, self.components, self.genes_too, self.place)
        self.needs_coordinates = self.keys.places
        self.network = self._network(seed)
        self._learn([train, *self.also], seed)
        self.trunk, self.scale, rest = self._left(train)
        self.known = np.isfinite(rest)
        self.values = np.where(self.known, rest, 0)
        self._train = train

    def _network(self, seed: int) -> RegionSetAttention:
        generator = torch.Generator().manual_seed(seed)
        places = 4 if self.keys.places else 0
        return RegionSetAttention(self.keys.genes, places, self.num_heads, self.directed, generator)

    def _learn(self, material: Sequence[Regions], seed: int) -> None:
        """A step of Adam per episode.

        Not by `omniset.training.fit`: its optimizer, schedule and batches are others, so that numbers would change, and
        what it adds is of no use here. There is nothing to watch, to resume or to share between processes in a second,
        and a lesson that draws these episodes in their order would have more lines than the loop.
        """
        device = devices.find(self.device)
        network = self.network.to(device).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate, betas=(0.9, 0.95))
        rng = np.random.default_rng(seed)
        self.history = []
        waiting: list[list[tuple[Regions, Regions]]] = [[] for _ in material]
        for step in range(self.steps):
            at = step % len(material)
            if not waiting[at]:
                waiting[at] = self._episodes(material[at], rng)
            if not waiting[at]:
                continue  # too few regions to hide some
            optimizer.param_groups[0]["lr"] = SLOWEST + self.learning_rate * (1 - step / self.steps)
            loss = self._loss(*waiting[at].pop(), device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.history.append({"epoch": step, "train_loss": float(loss.detach())})
        self.network = network.to("cpu").eval()

    def _episodes(self, regions: Regions, rng: np.random.Generator) -> list[tuple[Regions, Regions]]:
        """Regions that are known, and those that are hidden, of each fold of a division."""
        if len(regions) > self.batch_size:
            regions = regions.take(np.sort(rng.choice(len(regions), self.batch_size, replace=False)))
        folds = min(FOLDS, len(regions) // FEWEST)
        if folds < 2:
            return []
        parts = split(self.held_out if regions.placed else "random", regions, folds, int(rng.integers(1 << 31)))
        everything = np.arange(len(regions))
        episodes = [(regions.take(np.setdiff1d(everything, part)), regions.take(part)) for part in parts]
        return [(one, other) for one, other in episodes if len(one.pairs()) >= FEWEST and len(other.pairs())]

    def _loss(self, known: Regions, hidden: Regions, device: torch.device) -> Tensor:
        trunk, scale, rest = self._left(known)
        pairs, values = known_pairs(hidden)
        target = torch.from_numpy((values - trunk.at(hidden, pairs)) / scale).float().to(device)
        there = np.isfinite(rest)
        predicted = self.network(*self._inputs(hidden, known, np.where(there, rest, 0), there, device))
        return (predicted[tuple(torch.from_numpy(pairs.T).to(device))] - target).square().mean()

    def _left(self, regions: Regions) -> tuple[Geometry, float, Float[np.ndarray, "n n"]]:
        """The trunk, the deviation of connectivity, and what the trunk leaves as multiples of it, NaN: not known."""
        trunk = geometry_of(regions if self.keys.places else regions.with_(coordinates=None))
        pairs, values = known_pairs(regions)
        scale = float(values.std()) or 1.0
        return trunk, scale, matrix_of(regions, pairs, (values - trunk.at(regions, pairs)) / scale)

    # ------------------------------------------------------------------ predicting

    def _inputs(
        self,
        queries: Regions,
        keys: Regions,
        values: Float[np.ndarray, "n n"],
        known: Bool[np.ndarray, "n n"],
        device: torch.device | None = None,
    ) -> list[Tensor]:
        arrays = self.keys(queries), self.keys(keys), values, known
        return [torch.from_numpy(np.asarray(array, np.float32)).to(device or "cpu") for array in arrays]

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        queries, *rest = self._inputs(regions, self._train, self.values, self.known)
        blocks = torch.arange(len(regions)).split(TOGETHER)
        matrix = np.empty((len(regions), len(regions)))
        for a, rows in enumerate(blocks):
            for columns in blocks[a:] if not self.directed else blocks:
                both = torch.cat([rows, columns]) if rows is not columns else rows
                values = self.network(queries[both], *rest).double().numpy()
                matrix[np.ix_(rows, columns)] = values[: len(rows), -len(columns) :]
                if not self.directed:
                    matrix[np.ix_(columns, rows)] = values[: len(rows), -len(columns) :].T
        return matrix[tuple(pairs.T)] * self.scale + self.trunk.at(regions, pairs)

    @torch.no_grad()
    def read(self, regions: Regions) -> Float[np.ndarray, "regions known"]:
        """How much each region reads of each known one, in the order of their names; mean over heads, sums to 1."""
        queries, keys, _, _ = self._inputs(regions, self._train, self.values, self.known)
        return self.network.weights(queries, keys).mean(0).double().numpy()

    def slopes(self, regions: Regions) -> Float[np.ndarray, "regions genes"]:
        """The derivative of Pearson's r of the known pairs with respect to each standardised value of expression."""
        assert self.keys.components is not None
        pairs, values = known_pairs(regions)
        queries, *rest = self._inputs(regions, self._train, self.values, self.known)
        queries.requires_grad_()
        trunk = torch.from_numpy(self.trunk.at(regions, pairs) / self.scale)
        x = self.network(queries, *rest)[tuple(torch.from_numpy(pairs.T))].double() + trunk
        x, y = (v - v.mean() for v in (x, torch.from_numpy(values)))
        r = x @ y / (x.norm() * y.norm())
        (by_key,) = torch.autograd.grad(r, queries)
        axes = self.keys.components.axes
        return by_key[:, : axes.shape[1]].double().numpy() @ axes.T / self.keys.size

    # ------------------------------------------------------------------ on disk

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}

    @tensors.setter
    def tensors(self, tensors: dict[str, np.ndarray]) -> None:
        self._stored = tensors

    def _restored(self, train: Regions) -> None:
        self._train, self.history = train, []
        self.needs_coordinates = self.keys.places
        self.num_heads = len(self._stored["read"])
        self.network = self._network(0)
        self.network.load_state_dict({name: torch.from_numpy(np.array(t)) for name, t in self._stored.items()})
        self.network.eval()
