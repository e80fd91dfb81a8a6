"""Training of networks of region pairs, as methods beside the baselines."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor, nn

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.methods import Method
from omniset.regions.model import RegionAttention
from omniset.regions.scaling import (
    Components,
    Scaling,
    centred_target,
    known_pairs,
    mirrored_places,
    places_of,
    squared_distances,
)
from omniset.regions.seed import CrossAttention, PairNetwork, SelfAttentionConcat
from omniset.regions.splits import FEWEST, split
from omniset.runs import devices
from omniset.training.artefacts import Weights
from omniset.training.data import EpochSampler, Key, Lesson
from omniset.training.fit import TrainingModule, fit

ROUNDS = 10  # what the training loop takes for an epoch is a tenth of the steps
REGIONS_TOGETHER = 64  # on either side of the pairs that are computed at a time
COLUMNS_TOGETHER = 4  # of the seed's grid
CENTRES = 16  # of places
PATIENCE = 10
# What another value of makes another network.
SHAPING = ("axes", "dim", "num_heads", "num_queries", "dropout", "seen")
LEARNING = ("batch_size", "learning_rate", "weight_decay")
VALIDATION_FOLDS = 5  # one of which is kept back


class Passes(EpochSampler):
    """Several passes over the positions in an epoch, each in an order of its own and in batches of one size: the rest
    of a pass is left out. Without a seed the positions as they are.
    """

    def __init__(self, positions: Sequence[int] | np.ndarray, seed: int | None, *, size: int, passes: int) -> None:
        super().__init__(positions, seed)
        self.used, self.passes = (len(positions) // size * size, passes) if seed is not None else (len(positions), 1)

    def __iter__(self) -> Iterator[Key]:
        for number in range(self.passes):
            order = self.positions
            if self.seed is not None:
                order = np.random.default_rng([self.seed, self.epoch, number]).permutation(order)
            yield from ((self.epoch, int(i)) for i in order[: self.used])

    def __len__(self) -> int:
        return self.passes * self.used


def position_lesson(number: int, size: int, passes: int, seed: int, watched: int = 0) -> Lesson:
    """Batches of positions: the network's module has all the data.

    Args:
        number: Positions to learn from.
        size: Of a batch.
        passes: Over the positions, in an epoch.
        watched: The positions behind these, all in one batch.
    """

    def make(keys: list[Key], training: bool) -> Tensor:
        return torch.tensor([i for _, i in keys]) if training else torch.arange(number, number + watched)

    size = min(size, number)
    sampler = partial(Passes, size=size, passes=passes)
    validation = [0] if watched else []
    return Lesson(make, range(number), validation, batch_size=size, seed=seed, sampler=sampler)


class NetworkMethod(Method):
    """A method with a network; its connectivity is standardised over the training pairs.

    Attributes:
        network: Once fitted.
        history: A dict per epoch: the losses.
        folder: For checkpoints; None: a temporary one.
        resume: Go on from the folder's checkpoint.
    """

    network: Any
    history: list[dict[str, Any]]
    device: str
    progress: bool
    folder: Path | None = None
    resume = False

    def _standardise(self, train: Regions) -> None:
        _, values = known_pairs(train)
        self._mean, self._scale = float(values.mean()), float(values.std()) or 1.0

    def _run(self, module: TrainingModule, data: Lesson, epochs: int, patience: int | None) -> None:
        fit(
            module,
            data,
            epochs=epochs,
            patience=patience,
            device=self.device,
            progress=self.progress,
            log=None,
            folder=self.folder,
            resume=self.resume,
        )
        self.network, self.history = module.network.eval(), module.history

    def _fingerprint(self, train: Regions, seed: int, names: Sequence[str], **more: Any) -> dict[str, Any]:
        """What must be the same for a run to be resumed: attributes by their names, and more."""
        return {**more, **{name: getattr(self, name) for name in names}, "seed": seed, "data": checksum(train)}

    def state(self) -> dict[str, Any]:
        """What else than the weights is needed to predict, as plain numbers, text and lists."""
        return {"mean": self._mean, "scale": self._scale}

    def restore(self, state: dict[str, Any], train: Regions, weights: Weights | None = None) -> NetworkMethod:
        """Become as when `state` was taken; without `weights`, but for those of the network."""
        self.genes, self.directed = list(train.genes), train.directed
        self._mean, self._scale, self.history = state["mean"], state["scale"], []
        make = self._maker(state, train)
        self.network = make().eval() if weights is None else weights.build(make, f"{self.name}.")
        return self

    @abstractmethod
    def _maker(self, state: dict[str, Any], train: Regions) -> Callable[[], nn.Module]:
        """Makes the network that `restore` gives its weights."""


def checksum(regions: Regions) -> int:
    """Of names, expression, coordinates and connectivity."""
    crc = zlib.crc32("\n".join([*regions.names, *regions.genes]).encode())
    for part in (regions.expression, regions.coordinates, regions.connectivity):
        if part is not None:  # NaN has many bit patterns, of which a file gives back one
            crc = zlib.crc32(np.ascontiguousarray(np.where(np.isnan(part), np.nan, part)).tobytes(), crc)
    return crc


class PairsModule(TrainingModule):
    """Squared error of all pairs among the regions of a batch, and a pull of f(i, j) to f(j, i).

    Args:
        target: (N, N), NaN where not known.
        symmetry: Weight of the mean of (f(i, j) - f(j, i))^2; what is watched is the mean of both. None: f is
            symmetric by itself, or is not to be.
    """

    def __init__(
        self, *arguments: Any, target: Float[Tensor, "regions regions"], symmetry: float | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.target, self.symmetry = target, symmetry

    @abstractmethod
    def matrix(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "rows rows"]:
        """All f of pairs among some regions."""

    def training_step(self, rows: Tensor, index: int) -> Tensor:
        predicted = self.matrix(rows)
        loss = self._error(predicted, rows)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(rows), prog_bar=True)
        if self.symmetry:
            loss = loss + self.symmetry * (predicted - predicted.mT).square().mean()
        return loss

    def validation_step(self, rows: Tensor, index: int) -> None:
        predicted = self.matrix(rows)
        if self.symmetry is not None:
            predicted = (predicted + predicted.mT) / 2
        self.log("val_loss", self._error(predicted, rows), batch_size=len(rows), prog_bar=True)

    def _error(self, predicted: Float[Tensor, "rows rows"], rows: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
        target = self.target[rows.cpu()][:, rows.cpu()].to(predicted)
        known = torch.isfinite(target)
        error = torch.where(known, predicted - target.nan_to_num(), 0).square()
        return error.sum() / known.sum().clamp(min=1)


# ---------------------------------------------------------------------- the default's network


class AttentionModule(PairsModule):
    """Each step of training sees a random part of the genes: the others are taken for not measured.

    Args:
        multiplicity: (N, G)
        places: (N, P); None: not known.
        seen: Number of genes that a step sees.
    """

    def __init__(
        self,
        *arguments: Any,
        multiplicity: Float[Tensor, "regions genes"],
        places: Float[Tensor, "regions places"] | None,
        seen: int,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.multiplicity, self.places, self.seen = multiplicity, places, seen

    def matrix(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "rows rows"]:
        m = self.multiplicity[rows.cpu()]
        places = None if self.places is None else self.places[rows.cpu()].to(rows.device)
        genes = None
        if self.training and self.seen < m.shape[1]:
            genes = torch.randperm(m.shape[1])[: self.seen]
            m, genes = m[:, genes], genes.to(rows.device)
        return self.network(m.to(rows.device), places, genes=genes)


@dataclass(eq=False)
class Attention(NetworkMethod):
    """Genes of one region attend to those of the other: see `omniset.regions.model.RegionAttention`.

    A gene is in a region (x - low) / (high - low) times, within 0 and 1, with the gene's lowest and highest expression
    x among the training regions. Places are exp(-|c - k|^2 / 2) for 16 centres k (k-means) of the training regions'
    standardised (|x|, y, z), if these are known.

    Args:
        axes: Number of principal axes on which genes' tokens lie.
        dim, num_heads, num_queries, dropout: Of the network.
        seen: Genes that a step of training sees, drawn anew each time.
        steps: Of the optimiser, or some more: ten epochs of whole passes over the regions.
        batch_size: Regions per step, all of whose pairs are learned from.
        learning_rate, weight_decay: Of AdamW.
        device: Where to compute.
        progress: Show it.
    """

    name = "attention"
    network: RegionAttention = field(init=False)
    axes: int = 16
    dim: int = 32
    num_heads: int = 4
    num_queries: int = 1
    dropout: float = 0.1
    seen: int = 128
    steps: int = 150
    batch_size: int = 40
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    device: str = "cpu"
    progress: bool = False

    def _fit(self, train: Regions, seed: int) -> None:
        self._standardise(train)
        self._learn_scales(train, seed)
        _, target = centred_target(train)
        network = self._network(seed)
        size = min(self.batch_size, len(train))
        passes = -(-self.steps // (ROUNDS * (len(train) // size)))
        multiplicity, places = self._inputs(train)
        module = AttentionModule(
            network,
            self.learning_rate,
            self.weight_decay,
            seed,
            self._fingerprint(train, seed, (*SHAPING, "steps", *LEARNING)),
            multiplicity=multiplicity,
            places=places,
            target=torch.from_numpy(target / self._scale).float(),
            seen=self.seen,
        )
        self._run(module, position_lesson(len(train), size, passes, seed), ROUNDS, None)

    def _learn_scales(self, train: Regions, seed: int) -> None:
        known = np.isfinite(train.expression)
        low = np.where(known, train.expression, np.inf).min(0)
        high = np.where(known, train.expression, -np.inf).max(0)
        self._low, self._high = (np.where(known.any(0), ends, 0) for ends in (low, high))
        components = Components(train, self.axes)
        spread = np.sqrt(np.square(components(train)).mean(0)) if components.axes.size else np.zeros(0)
        axes = components.axes * spread
        size = np.sqrt(np.square(axes).mean()) if axes.size else 1.0
        self._axes = torch.from_numpy(axes / (size or 1.0)).float()
        self._centres = None
        if train.placed:
            self._of_places = Scaling.of(mirrored_places(train))
            scaled = self._of_places(mirrored_places(train))
            number = min(CENTRES, len(np.unique(scaled, axis=0)))
            self._centres = KMeans(number, n_init=1, random_state=seed).fit(scaled).cluster_centers_

    def _network(self, seed: int) -> RegionAttention:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return RegionAttention(
                self._axes,
                0 if self._centres is None else len(self._centres),
                self.dim,
                self.num_heads,
                self.num_queries,
                dropout=self.dropout,
                directed=self.directed,
            )

    def _inputs(self, regions: Regions) -> tuple[Tensor, Tensor | None]:
        share = (regions.expression - self._low) / np.where(self._high > self._low, self._high - self._low, 1)
        share = np.where(np.isfinite(share) & (self._high > self._low), share.clip(0, 1), 0)
        m = torch.from_numpy(share).float()
        if self._centres is None:
            return m, None
        if not regions.placed:
            raise ValueError("coordinates must be known of every region, as they were of those learned from")
        near = np.exp(-squared_distances(self._of_places(mirrored_places(regions)), self._centres) / 2)
        return m, torch.from_numpy(near).float()

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        device = devices.find(self.device)
        network = self.network.to(device).eval()
        m, places = self._inputs(regions)
        parts = m.to(device).split(REGIONS_TOGETHER)
        near = [None] * len(parts) if places is None else places.to(device).split(REGIONS_TOGETHER)
        values = np.empty(len(pairs))
        block, within = np.divmod(pairs, REGIONS_TOGETHER)
        for a, b in np.unique(block, axis=0).tolist():
            here = np.flatnonzero((block == [a, b]).all(1))
            i, j = torch.from_numpy(within[here]).T
            values[here] = network(parts[a], near[a], parts[b], near[b]).cpu()[i, j].numpy()
        network.to("cpu")
        return values * self._scale + self._mean

    @torch.no_grad()
    def weights(self, pair: Regions) -> Float[np.ndarray, "genes genes"]:
        """Of two regions: how much each gene of the first stands for its queries, times how much these attend to each
        gene of the second; mean over queries and heads. All sum to 1.
        """
        m, places = self._inputs(pair)
        pooled, crossed = self.network.weights(m[:1], None if places is None else places[:1], m[1:])
        return torch.einsum("qg,qh->gh", pooled[0], crossed[0]).div(len(pooled[0])).double().numpy()

    @torch.no_grad()
    def gene_weights(self, regions: Regions) -> Float[np.ndarray, " genes"]:
        """Mean weight with which each gene is pooled in any region, and attended to by any, half and half."""
        m, places = self._inputs(regions)
        pooled, crossed = self.network.weights(m, places, m.mean(0, keepdim=True))
        return ((pooled.mean((0, 1)) + crossed.mean((0, 1))) / 2).double().numpy()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "centres": None if self._centres is None else self._centres.tolist()}

    def _maker(self, state: dict[str, Any], train: Regions) -> Callable[[], nn.Module]:
        self._learn_scales(train, 0)
        self._centres = None if state["centres"] is None else np.array(state["centres"])
        return partial(self._network, 0)


# ---------------------------------------------------------------------- the seed's networks


class SeedModule(PairsModule):
    """Pairs in a grid, so that what they share is computed once: see `CrossAttention.grid`."""

    def __init__(
        self,
        *arguments: Any,
        expression: Float[Tensor, "regions genes"],
        coordinates: Float[Tensor, "regions 3"] | None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.expression, self.coordinates = expression, coordinates

    def matrix(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "rows rows"]:
        coordinates = None if self.coordinates is None else self.coordinates[rows.cpu()].to(rows.device)
        everything = torch.arange(len(rows), device=rows.device)
        return self.network.grid(self.expression[rows.cpu()].to(rows.device), everything, everything, coordinates)


@dataclass(eq=False)
class SeedMethod(NetworkMethod):
    """A network of the seed document, trained as described there, with a part of the training regions kept back.

    The document's batches are of 512 pairs; these are all pairs among 23 regions, 529 with those of a region with
    itself, which no loss reads. The loss is mean((f(i, j) - y)^2) + symmetry mean((f(i, j) - f(j, i))^2). One of five
    folds of the training regions, spatial where places are known, is watched: training stops after 10 epochs without
    progress there, and the weights of the best epoch are taken. An epoch has as many batches as the pairs need.

    Args:
        name: "seed" (`CrossAttention`) or "concat" (`SelfAttentionConcat`).
        vectors: (G, T) of the genes; None: learned.
        options: Of the network: dim, num_heads, depth, cls, pooling, dropout, bins, hidden, token_dim.
        epochs, batch_size, learning_rate, weight_decay, symmetry: batch_size in regions.
    """

    name: str = "seed"
    network: PairNetwork = field(init=False)
    vectors: Float[np.ndarray, "genes token_dim"] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 100
    batch_size: int = 23
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    symmetry: float = 0.1
    device: str = "cpu"
    progress: bool = False

    def __post_init__(self) -> None:
        if self.name not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {self.name!r}")
        self.needs_coordinates = self.options.get("cls") == "spatial"

    def _fit(self, train: Regions, seed: int) -> None:
        self._standardise(train)
        learn, watched = self._split(train, seed)
        network = self._network(len(train.genes), seed)
        coordinates = self._coordinates(train)
        if coordinates is not None:
            assert isinstance(network, CrossAttention)
            network.standardise(coordinates[learn])
        _, target = centred_target(train)
        order = np.concatenate([learn, watched])
        vectors = None if self.vectors is None else zlib.crc32(np.ascontiguousarray(self.vectors).tobytes())
        of_fit = ("options", "epochs", *LEARNING, "symmetry")
        module = SeedModule(
            network,
            self.learning_rate,
            self.weight_decay,
            seed,
            self._fingerprint(train, seed, of_fit, network=self.name, vectors=vectors),
            expression=torch.from_numpy(train.expression[order]).float(),
            coordinates=None if coordinates is None else coordinates[order],
            target=torch.from_numpy(target[np.ix_(order, order)] / self._scale).float(),
            symmetry=None if self.directed else self.symmetry,
        )
        size = min(self.batch_size, len(learn))
        passes = max(1, round(len(learn) / size))
        data = position_lesson(len(learn), size, passes, seed, len(watched))
        self._run(module, data, self.epochs, PATIENCE if len(watched) else None)

    def _split(self, train: Regions, seed: int) -> tuple[Int[np.ndarray, " learn"], Int[np.ndarray, " watched"]]:
        """Regions to learn from, and those whose pairs are watched."""
        everything = np.arange(len(train))
        if len(train) < VALIDATION_FOLDS * FEWEST:
            return everything, everything[:0]
        watched = split("spatial" if train.placed else "random", train, VALIDATION_FOLDS, seed)[0]
        return np.setdiff1d(everything, watched), watched

    def _network(self, genes: int, seed: int) -> PairNetwork:
        vectors = None if self.vectors is None else torch.from_numpy(self.vectors).float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                return NETWORKS[self.name](genes, vectors=vectors, **self.options)
            except TypeError as error:
                raise ValueError(f"options: {error}") from error

    def _coordinates(self, regions: Regions) -> Float[Tensor, "regions 3"] | None:
        """For the networks that read them."""
        if not self.needs_coordinates:
            return None
        return torch.from_numpy(places_of(regions)).float()

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        device = devices.find(self.device)
        network = self.network.to(device).eval()
        expression = torch.from_numpy(regions.expression).float().to(device)
        coordinates = self._coordinates(regions)
        coordinates = None if coordinates is None else coordinates.to(device)
        rows = torch.arange(len(regions), device=device)
        parts = [network.grid(expression, rows, some, coordinates) for some in rows.split(COLUMNS_TOGETHER)]
        matrix = torch.cat(parts, 1).double().cpu().numpy()
        network.to("cpu")
        if not self.directed:
            matrix = (matrix + matrix.T) / 2
        return matrix[tuple(pairs.T)] * self._scale + self._mean

    @torch.no_grad()
    def weights(self, pair: Regions) -> Float[np.ndarray, "rows genes"]:
        """Of two regions: the last layer's attention of CLS and of each gene of the first to each of the second."""
        assert isinstance(self.network, CrossAttention)
        expression, both = torch.from_numpy(pair.expression).float(), torch.tensor([[0, 1]])
        return self.network.attention(expression, both, self._coordinates(pair))[0].double().numpy()

    def _maker(self, state: dict[str, Any], train: Regions) -> Callable[[], nn.Module]:
        return partial(self._network, len(train.genes), 0)


NETWORKS: dict[str, type[PairNetwork]] = {"seed": CrossAttention, "concat": SelfAttentionConcat}
