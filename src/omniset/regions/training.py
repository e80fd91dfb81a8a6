"""Training of networks of region pairs, as methods beside the baselines."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.methods import Method
from omniset.regions.scaling import centred_target, known_pairs, places_of
from omniset.regions.seed import CrossAttention, PairNetwork, SelfAttentionConcat
from omniset.regions.splits import FEWEST, split
from omniset.runs import devices
from omniset.training.artefacts import Weights
from omniset.training.data import EpochSampler, Key, Lesson
from omniset.training.fit import TrainingModule, fit

COLUMNS_TOGETHER = 4  # of the seed's grid
PATIENCE = 10
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
        resume: Go on from the folder's checkpoint, if it was made with the same settings.
        settings: Of the run.
    """

    network: Any
    history: list[dict[str, Any]]
    device: str
    progress: bool
    folder: Path | None = None
    resume = False
    settings: Mapping[str, Any] = MappingProxyType({})

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

    def state(self) -> dict[str, Any]:
        """What else than the weights is needed to predict."""
        return {"mean": self._mean, "scale": self._scale}

    def built(self, state: dict[str, Any], train: Regions, weights: Weights) -> NetworkMethod:
        """Become as when `state` was taken, with the network of an artefact."""
        self.genes, self.directed = list(train.genes), train.directed
        self._mean, self._scale, self.history = state["mean"], state["scale"], []
        self.network = weights.build(self._maker(train), f"{self.name}.")
        return self

    @abstractmethod
    def _maker(self, train: Regions) -> Callable[[], nn.Module]:
        """Makes the network that `built` gives its weights."""


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
        self.log("train_loss", loss, batch_size=len(rows))
        if self.symmetry:
            loss = loss + self.symmetry * (predicted - predicted.mT).square().mean()
        return loss

    def validation_step(self, rows: Tensor, index: int) -> None:
        predicted = self.matrix(rows)
        if self.symmetry is not None:
            predicted = (predicted + predicted.mT) / 2
        self.log("val_loss", self._error(predicted, rows), batch_size=len(rows))

    def _error(self, predicted: Float[Tensor, "rows rows"], rows: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
        target = self.target[rows.cpu()][:, rows.cpu()].to(predicted)
        known = torch.isfinite(target)
        error = torch.where(known, predicted - target.nan_to_num(), 0).square()
        return error.sum() / known.sum().clamp(min=1)


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
    folds of the training regions, divided as `held_out` says where places are known, is watched: training stops after
    10 epochs without progress there, and the weights of the best epoch are taken. An epoch has as many batches as the
    pairs need.

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
        module = SeedModule(
            network,
            self.learning_rate,
            self.weight_decay,
            seed,
            {**self.settings, "vectors": vectors, "data": checksum(train)},
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
        watched = split(self.held_out if train.placed else "random", train, VALIDATION_FOLDS, seed)[0]
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

    def _maker(self, train: Regions) -> Callable[[], nn.Module]:
        return partial(self._network, len(train.genes), 0)


NETWORKS: dict[str, type[PairNetwork]] = {"seed": CrossAttention, "concat": SelfAttentionConcat}
