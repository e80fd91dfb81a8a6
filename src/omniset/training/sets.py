"""Batches of sets to learn from (`omniset.training.data.Lesson`), and the loss of their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.core.sets import SetBatch, Sets, batched, collate
from omniset.core.sources import Source, source_of
from omniset.core.stored import StoredSet
from omniset.training.data import Key
from omniset.training.fit import TrainingModule
from omniset.training.network import SetNetwork

# A source, the positions in the batch of its sets, and their numbers of elements.
Part = tuple[SetBatch | Source, list[int], list[int]]
# All parts, then one row per set (or per element, set after set): targets and weights.
Batch = tuple[list[Part], Tensor, Tensor]


@dataclass
class SetBatches:
    """Makes a batch of some of the sets."""

    sets: Sets
    targets: Shaped[Tensor, "rows targets"]  # a row per set, or, `of_elements`, per element of all sets
    of_elements: bool
    # Entries that are computed on at a time. A larger batch comes in several parts, a larger set is read shard by
    # shard.
    max_elements: int
    shard_size: int | None = None
    # In training, put the elements of each set that is read as a whole in an order that depends on this, the epoch and
    # the set: random elements in each shard. None: as they are.
    seed: int | None = None
    weights: Float[Tensor, " sets"] | None = None  # How much each set counts. None: all the same.

    def __call__(self, keys: list[Key], training: bool) -> Batch:
        if not keys:
            return [], self.targets[:0], torch.ones(0)
        items = [self._item(*key, training) for key in keys]
        stored = [s for s, _ in items]
        order = list(range(len(items)))
        if len(order) * max(map(len, stored)) > self.max_elements:
            order.sort(key=lambda i: len(stored[i]))  # sets of like size together: less padding
        parts: list[Part] = []
        for group in batched([stored[i] for i in order], len(order), self.max_elements):
            # Elements' outputs need their graph, and so their set in memory.
            source = (
                collate(s.read() for s in group)
                if self.of_elements
                else source_of(group, self.max_elements, self.shard_size)
            )
            positions, order = order[: len(group)], order[len(group) :]
            parts.append((source, positions, [len(s) for s in group]))
        targets = torch.cat([t for _, t in items])
        of_sets = torch.ones(len(keys)) if self.weights is None else self.weights[[i for _, i in keys]]
        counts = [s.read()[1] * w for s, w in zip(stored, of_sets, strict=True)] if self.of_elements else []
        weights = torch.cat(counts) if self.of_elements else of_sets
        return parts, targets, weights

    def _item(self, epoch: int, i: int, training: bool) -> tuple[StoredSet, Tensor]:
        stored = self.sets[i]
        first, stop = self.sets.offsets[i : i + 2].tolist() if self.of_elements else (i, i + 1)
        targets = self.targets[first:stop]
        if training and self.seed is not None and len(stored) <= self.max_elements:
            order = np.random.default_rng([self.seed, epoch, i]).permutation(len(stored))
            elements, multiplicity = stored.read()
            stored = StoredSet(elements[order], multiplicity[order], 0, len(stored))
            targets = targets[order] if self.of_elements else targets
        return stored, targets


class SetModule(TrainingModule):
    """Cross-entropy of classes, or squared error of standardised targets.

    The loss of a target is the mean over the sets of a batch, or over its labelled elements with their multiplicities;
    those of several targets are added up (classes) or averaged (numbers). A batch is what all processes compute on at
    once: each contributes the sum over its share, divided by the total weight of all shares.

    Args:
        class_weights: For each target, the weight of each of its classes; None: all the same.
        reading: How the network reads the sets: max_elements, see SetBatches; and, if given, shard_size, shards,
            gradient and store of the encoder.
    """

    shares_batches = True

    def __init__(
        self,
        network: SetNetwork,
        classify: bool,
        class_weights: list[Tensor] | None,
        learning_rate: float,
        weight_decay: float,
        reading: dict[str, Any],
        seed: int,
        fingerprint: dict[str, Any],
    ) -> None:
        super().__init__(network, learning_rate, weight_decay, seed, fingerprint)
        self.classify, self.class_weights, self.reading = classify, class_weights, reading
        self.metric_name = "accuracy" if classify else "mse"

    def step(self, batch: Batch, stage: str) -> Tensor:
        parts, targets, weights = batch
        outputs = self.network.of_parts(parts, **self.reading)
        sums, totals, right, counted = (self._classes if self.classify else self._numbers)(outputs, targets, weights)
        totals, rows = self._of_all(totals, len(targets))
        means = sums / totals.clamp(min=torch.finfo(totals.dtype).tiny)
        # Gradients, and what is logged, are averaged over the processes: of the parts of a mean that is to be the sum.
        loss = (means.sum() if self.classify else means.mean()) * self.world
        self.log(f"{stage}_loss", loss, batch_size=rows)
        total = counted.sum()
        mean = (right * counted).sum() / total.clamp(min=torch.finfo(total.dtype).tiny)
        self.log(f"{stage}_{self.metric_name}", mean, batch_size=total)
        return loss

    def _of_all(self, totals: Tensor, rows: int) -> tuple[Tensor, int]:
        """The totals and the number of rows of all processes."""
        if self.world == 1:
            return totals, rows
        both = torch.cat([totals.double(), totals.new_tensor([rows], dtype=torch.float64)])
        torch.distributed.all_reduce(both)
        return both[:-1].to(totals), int(both[-1])

    def _classes(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each target the weighted sum of losses and the total weight; for each row and target whether it was
        right, and how much it counts. Code -1: no label.
        """
        sums, totals, right = [], [], []
        counted = torch.where(targets >= 0, weights[:, None], 0)
        for number, logits in enumerate(self.network.split(outputs)):
            codes, rows = targets[:, number].clamp(min=0), counted[:, number]
            if self.class_weights is not None:
                rows = rows * self.class_weights[number].to(rows)[codes]
            each = F.cross_entropy(logits, codes, reduction="none")
            sums.append((rows * each).sum())
            totals.append(rows.sum())
            right.append(logits.argmax(1) == codes)
        return torch.stack(sums), torch.stack(totals), torch.stack(right, 1).to(counted), counted

    def _numbers(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same with squared errors. NaN: no label."""
        counted = torch.where(targets.isnan(), 0, weights[:, None])
        each = (outputs - self.network.targets(targets.nan_to_num())).square()
        return (counted * each).sum(0), counted.sum(0), each.detach(), counted

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: Batch, index: int) -> None:
        self.step(batch, "val")
