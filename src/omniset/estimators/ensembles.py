"""Several small networks that learn at once, each from sets of its own: what is tried on few sets.

The networks of an ensemble have one architecture, and differ in their weights and in the sets that they learn from.
They go through one `torch.func.vmap` (`omniset.training.ensemble`), on the same batches: a set that a network must not
see has weight 0 in its loss,

    loss = sum over networks j of  sum_i w_ji l_ji / sum_i w_ji,

so that its gradient is that of each network alone on its own sets. How long a network learns is decided by sets that
none of its fold has seen: it keeps the epoch that was best for the networks of all *other* folds on the sets that these
left out. So no choice was made by what it says of the sets of its own fold.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from omniset.core.sets import SetBatch, Sets, collate
from omniset.kernels import pages
from omniset.training.data import Key, Lesson
from omniset.training.ensemble import Ensemble, keep_best
from omniset.training.fit import TrainingModule, fit
from omniset.training.network import SetNetwork

RUNS = 8  # pieces of a large set, each of neighbouring elements, that are drawn for a step
SMOOTHING = 0.1  # of the labels of classes
LITTLE = 1 << 10  # entries of a batch, padding included, up to which it is one part: parts take longer than padding
PART = 1 << 15  # entries of a part of a batch
VALUES = 1 << 23  # entries of a part times features times networks, but one set is never divided
GRAPH = 1 << 18  # entries of a batch times networks up to which its graph is kept whole

STORED = ("best", "best_loss", "best_epoch")  # in a checkpoint, beside the networks


@dataclass
class Batch:
    """Some sets.

    Attributes:
        parts: Sets of like size, and their positions in the batch.
        targets, weights, left_out: Of these sets, see `EnsembleBatches`.
    """

    parts: list[tuple[SetBatch, list[int]]]
    targets: Tensor
    weights: Tensor
    left_out: Tensor

    def to(self, device: torch.device) -> Batch:
        parts = [(part.to(device), positions) for part, positions in self.parts]
        return Batch(parts, self.targets.to(device), self.weights.to(device), self.left_out.to(device))


@dataclass
class EnsembleBatches:
    """What networks of an ensemble learn from.

    Attributes:
        targets: (networks, sets, targets): codes of classes, or numbers on the scale of the network.
        weights: (networks, sets): how much each set counts for each network.
        left_out: (networks, sets): how much it counts where those networks are watched that did not learn from it.
        elements: Elements of a set that a step sees at most. Of a larger set they are drawn anew for each epoch, in a
            few runs of neighbours, so that a file is read in few places.
        seed: Of all that is drawn.
    """

    sets: Sets
    targets: Shaped[Tensor, "networks sets targets"]
    weights: Float[Tensor, "networks sets"]
    left_out: Float[Tensor, "networks sets"]
    elements: int
    seed: int

    def __call__(self, keys: list[Key], training: bool) -> Batch:
        positions = [position for _, position in keys]
        sizes = [min(len(self.sets[i]), self.elements) for i in positions]
        entries = min(PART, VALUES // max(self.sets.dim * len(self.targets), 1))
        order = sorted(range(len(keys)), key=sizes.__getitem__)
        parts: list[tuple[SetBatch, list[int]]] = []
        little = len(keys) * max(sizes) <= LITTLE
        while order:  # sets of like size together: less padding
            part = order if little else [i for i in order if sizes[i] <= max(2 * sizes[order[0]], 32)]
            part = part[: max(entries // max(sizes[part[-1]], 1), 1)]
            parts.append((collate(self._of(*keys[i]) for i in part), part))
            order = [i for i in order if i not in part]
        return Batch(parts, self.targets[:, positions], self.weights[:, positions], self.left_out[:, positions])

    def checksum(self) -> int:
        data = 0
        for tensor in (self.weights, self.left_out, self.targets):
            data = zlib.crc32(tensor.numpy().tobytes(), data)
        return data

    def _of(self, epoch: int, i: int) -> tuple[Tensor, Tensor]:
        stored = self.sets[i]
        size = len(stored)
        if size <= self.elements:
            return stored.read()
        rng = np.random.default_rng([self.seed, epoch, i])
        length = max(self.elements // RUNS, 1)
        cells = np.linspace(0, size, min(RUNS, self.elements) + 1).astype(np.int64)  # one run in each stretch
        runs = []
        for first, end in pairwise(cells.tolist()):
            start = int(rng.integers(first, end))
            runs.append(stored.read(start, min(length, end - start)))
            if (over := start + length - end) > 0:  # it goes on at the start of its stretch: each element is as likely
                runs.append(stored.read(first, over))
        return torch.cat([elements for elements, _ in runs]), torch.cat([counts for _, counts in runs])


class EnsembleModule(TrainingModule):
    """The loss of an ensemble: cross-entropy with smoothed labels, or squared error; mean over several targets.

    Args:
        widths, classify: Outputs of each target, and whether they are classes.
        others: Which networks decide how long each one learns. None: all learn to the end.
        patience: Stop after so many epochs in which no network had a better one.

    Attributes:
        best: The stacked states of the networks in their best epochs.
    """

    network: Ensemble

    def __init__(
        self,
        network: Ensemble,
        widths: Sequence[int],
        classify: bool,
        others: Bool[Tensor, "networks networks"] | None,
        patience: int,
        *arguments: Any,
    ) -> None:
        super().__init__(network, *arguments)
        self.widths, self.classify, self.others, self.patience = [*widths], classify, others, patience
        self.best = network.states()
        self.best_loss = torch.full((network.size,), torch.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(network.size, dtype=torch.int64)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.others is not None and self.current_epoch - int(self.best_epoch.max()) >= self.patience:
            self.should_stop = True  # a run that had stopped early, and is resumed

    def training_step(self, batch: Batch, index: int) -> Tensor:
        total, weights = batch.weights.new_zeros(len(batch.weights)), batch.weights
        for outputs, positions in self.outputs_of(batch):
            losses = self._losses(outputs, batch.targets[:, positions], SMOOTHING)
            total = total + (losses * weights[:, positions]).sum(1)
        loss = total / weights.sum(1).clamp(min=torch.finfo(weights.dtype).tiny)
        self.log("train_loss", loss.mean().detach(), batch_size=batch.targets.shape[1])
        return loss.sum()

    def outputs_of(self, batch: Batch) -> Iterator[tuple[Float[Tensor, "networks sets outputs"], list[int]]]:
        """Of the parts of a batch, with the positions of their sets; the graph of a large batch is made anew."""
        entries = sum(part.multiplicity.numel() for part, _ in batch.parts)
        again = torch.is_grad_enabled() and entries * self.network.size > GRAPH
        for part, positions in batch.parts:
            if again:
                yield checkpoint(_forward, self.network, part, use_reentrant=False), positions
                pages.trim()
            else:
                yield _forward(self.network, part), positions

    def _summed_left_out(self, batch: Batch) -> Float[Tensor, " networks"]:
        """Losses by `left_out`, where each network sees no other sets than those that count."""
        total = batch.left_out.new_zeros(len(batch.left_out))
        for part, positions in batch.parts:
            weights = batch.left_out[:, positions]
            number = int((weights > 0).sum(1).max())
            if not number:
                continue
            which = (
                (weights > 0).int().argsort(dim=1, descending=True, stable=True)[:, :number]
            )  # the others have weight 0
            places = torch.tensor(positions, device=which.device)[which]
            outputs = self.network(_forward_one, part.elements[which], part.multiplicity[which])
            targets = batch.targets.gather(1, places[..., None].expand(-1, -1, batch.targets.shape[2]))
            losses = self._losses(outputs, targets, 0.0)
            total = total + (losses * weights.gather(1, which)).sum(1)
        return total

    def _losses(
        self,
        outputs: Float[Tensor, "networks sets outputs"],
        targets: Shaped[Tensor, "networks sets targets"],
        smoothing: float,
    ) -> Float[Tensor, "networks sets"]:
        losses: list[Tensor] = []
        for number, values in enumerate(outputs.split(self.widths, 2)):
            if not self.classify:
                losses.append((values[..., 0] - targets[..., number]).square())
                continue
            codes = targets[..., number]
            each = F.cross_entropy(values.flatten(0, 1), codes.flatten(), reduction="none", label_smoothing=smoothing)
            losses.append(each.view(codes.shape))
        return torch.stack(losses).mean(0)

    def on_validation_epoch_start(self) -> None:
        self._watched: list[Tensor] = []

    def validation_step(self, batch: Batch, index: int) -> None:
        weights = batch.left_out
        summed = self._summed_left_out(batch)
        self._watched.append(torch.stack([summed, weights.sum(1)]).double().cpu())
        mean = summed.sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
        self.log("val_loss", mean, batch_size=batch.targets.shape[1])

    def on_validation_epoch_end(self) -> None:
        summed, counted = torch.stack(self._watched).sum(0)
        self.choose(summed, counted)

    def choose(self, summed: Float64[Tensor, " networks"], counted: Float64[Tensor, " networks"]) -> None:
        """Keep the weights of each network for which this epoch is the best; stop where none has had one for long.

        Args:
            summed: Losses of the sets that each network has not seen.
            counted: How much these sets count.
        """
        assert self.others is not None
        others = self.others.double()
        loss = others @ summed / (others @ counted)
        better = loss < self.best_loss  # never where it is NaN
        states = {name: value.cpu() for name, value in self.network.states().items()}
        self.best = keep_best(self.best, states, better)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.current_epoch + 1, self.best_epoch)
        if self.current_epoch + 1 - int(self.best_epoch.max()) >= self.patience:
            self.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["ensemble"] = {name: getattr(self, name) for name in STORED}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        for name in STORED:
            setattr(self, name, checkpoint["ensemble"][name])


def learn(
    networks: Sequence[SetNetwork],
    module: EnsembleModule,
    batches: EnsembleBatches,
    *,
    epochs: int,
    batch_size: int,
    together: int,
    **fitting: Any,
) -> list[dict[str, Any]]:
    """Train networks of one architecture in place. Returns a dict per epoch: epoch, train_loss, and val_loss.

    Args:
        module: The loss of these networks.
        together: Sets that are watched at once.
        fitting: device, progress, folder and resume of `omniset.training.fit.fit`.
    """
    positions = range(len(batches.sets))
    how: dict[str, Any] = {"batch_size": batch_size, "seed": batches.seed, "move": Batch.to}
    data = Lesson(batches, positions, [] if module.others is None else positions, **how)
    data.watched = together
    fit(module, data, epochs=epochs, patience=None, log=None, **fitting)
    states = module.network.states() if module.others is None else module.best
    for number, network in enumerate(networks):
        network.load_state_dict({name: values[number] for name, values in states.items()})
        network.eval()
    return module.history


def _forward_one(network: Any, elements: Tensor, multiplicity: Tensor) -> Float[Tensor, "sets outputs"]:
    return network(SetBatch(elements, multiplicity, validate=False))


def _forward(ensemble: Ensemble, batch: SetBatch) -> Float[Tensor, "networks sets outputs"]:
    return ensemble(lambda network: network(batch))
