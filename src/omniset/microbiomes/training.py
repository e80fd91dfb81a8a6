"""The network's lesson: the taxon of each sequence by itself."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from omniset.microbiomes.candidates import Read, on
from omniset.microbiomes.model import SequenceNetwork
from omniset.microbiomes.references import References
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule

BASES = np.frombuffer(b"ACGT", dtype=np.uint8)
DROPPED = 0.5  # of a step's words, at most
SHORT = 0.25  # share of the batches that are of a shorter length


def mutated(text: str, rate: float, rng: np.random.Generator) -> str:
    """With this share of its letters drawn anew from the four bases."""
    letters = np.frombuffer(text.encode("ascii"), dtype=np.uint8).copy()
    where = rng.random(len(letters)) < rate
    letters[where] = rng.choice(BASES, int(where.sum()))
    return letters.tobytes().decode("ascii")


def sequence_lesson(
    references: References,
    train: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    read: Read,
    lengths: Sequence[int],
    batch_size: int,
    seed: int,
) -> Lesson:
    """Batches of what the projection takes, and of taxa. In some of the training batches all sequences have one of the
    shorter lengths.

    Args:
        train, validation: Numbers of pairs.
    """

    def make(keys: list[Key], training: bool) -> tuple[Any, Tensor]:
        pairs = np.array([i for _, i in keys])
        length = None
        if training and lengths:
            rng = np.random.default_rng([seed, keys[0][0], zlib.crc32(pairs.tobytes())])
            length = int(rng.choice(lengths)) if rng.random() < SHORT else None
        texts = [references.texts[i][:length] for i in references.sequence[pairs]]
        return read(texts), torch.from_numpy(references.taxon[pairs])

    def move(batch: tuple[Any, Tensor], device: torch.device) -> tuple[Any, Tensor]:
        return on(batch[0], device), batch[1].to(device)

    return Lesson(make, train, validation, batch_size=batch_size, seed=seed, move=move)


class SequenceModule(TrainingModule):
    """Cross-entropy of each sequence's taxon, mean over the members. Of a step's words a share is left out, drawn
    evenly from [0, 0.5).

    In training only, the log of each taxon's share of the references is added to the logits: many references do not
    make a taxon more likely in a sample (Menon et al., "Long-tail learning via logit adjustment", 2021).

    Args:
        shares: Of the taxa among the references.
    """

    network: SequenceNetwork
    log_shares: Tensor

    def __init__(self, *arguments: Any, shares: Float[np.ndarray, " taxa"]) -> None:
        super().__init__(*arguments)
        self.register_buffer("log_shares", torch.from_numpy(np.log(np.maximum(shares, 1e-12))).float())

    def training_step(self, batch: tuple[Any, Tensor], index: int) -> Tensor:
        inputs, taxa = batch
        if isinstance(inputs, list):
            share = DROPPED * torch.rand((), device=self.device)
            inputs = [one.without(torch.rand(len(one.words), device=self.device) >= share) for one in inputs]
        logits = self.network.logits_of_members(self.network.vectors(inputs)) + self.log_shares
        loss = F.cross_entropy(logits.flatten(0, 1), taxa.repeat(len(logits)))
        self.log("train_loss", loss.detach(), batch_size=len(taxa))
        return loss

    def validation_step(self, batch: tuple[Any, Tensor], index: int) -> None:
        inputs, taxa = batch
        logits = self.network(inputs) + self.log_shares
        self.log("val_loss", F.cross_entropy(logits, taxa), batch_size=len(taxa))
        self.log("val_accuracy", (logits.argmax(1) == taxa).float().mean(), batch_size=len(taxa))
