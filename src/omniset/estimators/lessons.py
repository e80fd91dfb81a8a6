"""What `fit` of a model of sets gives to the training loop: which sets are learned from, the loss, and the batches."""

from __future__ import annotations

import warnings
import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets
from omniset.training.network import SetNetwork

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator
    from omniset.estimators.learning import Given
    from omniset.training.data import Lesson
    from omniset.training.sets import SetModule

Positions = Int[np.ndarray, " _"]


def split(
    number: int,
    fraction: float,
    seed: int,
    groups: Shaped[np.ndarray, " sets"] | None = None,
    classes: Int[np.ndarray, " sets"] | None = None,
) -> tuple[Positions, Positions]:
    """Positions of the sets to train on and of those to watch, in order.

    Args:
        fraction: Of sets, or of groups, that are kept back.
        groups: Sets of one group stay together.
        classes: Are kept in proportion, where there are enough sets of each.

    Raises:
        ValueError: All sets are of one group.
    """
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    positions = np.arange(number)
    held = round(number * fraction)
    if groups is not None and held:
        if len(set(groups.tolist())) < 2:
            raise ValueError("groups: all sets are of one group, so none can be kept back: validation_fraction=0")
        train, validation = next(
            GroupShuffleSplit(1, test_size=fraction, random_state=seed).split(positions, groups=groups)
        )
        return np.sort(train), np.sort(validation)
    if not held or held >= number:
        return positions, positions[:0]
    counts = np.array([0]) if classes is None else np.bincount(classes)
    enough = counts.min() > 1 and held >= len(counts) and number - held >= len(counts)
    train, validation = train_test_split(
        positions, test_size=held, random_state=seed, stratify=classes if enough else None
    )
    return np.sort(train), np.sort(validation)


def rows_of(sets: Sets, which: Positions) -> Int[np.ndarray, " rows"]:
    """The elements of these sets."""
    bounds = np.stack([sets.offsets[which], sets.offsets[which + 1]], 1).tolist()
    return np.concatenate([np.arange(start, stop) for start, stop in bounds])


def kept_back(number: int, held: int, chose: bool) -> list[str]:
    """What to say of the sets that are watched.

    Args:
        chose: They choose the epoch whose weights are kept.
    """
    if not held:
        return []
    flatters = "; they chose the epoch, which flatters" if chose else ""
    return [f"{held:,} of {number:,} sets, kept back to watch the training{flatters}"]


def fit_features(network: SetNetwork, sets: Sets, train: Positions) -> None:
    """Fit the standardisation of features to the training sets, and warn of those that never change."""
    constant = network.fit_features(sets, train)
    names = sets.features or [f"number {i}" for i in range(1, sets.dim + 1)]
    flat = [name for name, is_constant in zip(names, constant, strict=True) if is_constant]
    if flat:
        shown = ", ".join(flat[:5])
        warnings.warn(f"features with one value in all training sets, which say nothing: {shown}", stacklevel=3)


def module(
    model: SetEstimator,
    network: SetNetwork,
    class_weights: list[Tensor] | None,
    learned_from: tuple[Sets, Tensor, Positions],
) -> SetModule:
    """What is trained. A checkpoint of it can be resumed with the same options and data only."""
    from omniset.training.cox import CoxModule
    from omniset.training.sets import SetModule

    return (CoxModule if model.kind.risks else SetModule)(
        network,
        model.classifies,
        class_weights,
        model.size("learning_rate"),
        model.weight_decay,
        {name: getattr(model, name) for name in ("shard_size", "shards", "gradient", "store")},
        model.max_elements,
        model.seed,
        model.fingerprint() | {"data": checksum(*learned_from)},
    )


def data(model: SetEstimator, given: Given, train: Positions) -> Lesson:
    """The batches of an epoch. Where they are read in shards, these are of random elements."""
    from omniset.training.data import Lesson
    from omniset.training.sets import SetBatches

    weights = None if given.weights is None else torch.from_numpy(given.weights).float()
    shuffled = None if model.shard_size is None else model.seed
    of_elements = model.level == "element"
    reading = (model.max_elements, model.shard_size, shuffled, weights)
    make = SetBatches(given.sets, given.targets, of_elements, *reading)
    batch_size = model.batch_size or model.kind.batch_of(len(train))
    return Lesson(make, train, model.validation_, batch_size=batch_size, seed=model.seed)


def batch_of(sets: int) -> int:
    """Sets per step: an eighth of them, so that an epoch has at least eight steps, and 64 at most."""
    return min(max(sets // 8, 4), 64)


def checksum(sets: Sets, targets: Tensor, train: Positions) -> int:
    """Of everything that is learned from, so that a resumed run cannot go on with other data."""
    digest = 0
    for part in (sets.offsets, targets.numpy(), train):
        digest = zlib.crc32(part.tobytes(), digest)
    for block in sets.blocks(min(1 << 16, max((1 << 24) // max(sets.dim, 1), 1))):
        for rows in block:
            digest = zlib.crc32(rows.numpy().tobytes(), digest)
    return digest
