"""Training the network: the taxon of each sequence by itself."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from omniset.microbiomes.model import KmerProjection, SequenceNetwork, TaxonNetwork
from omniset.microbiomes.naive_bayes import KmerLikelihood
from omniset.microbiomes.options import ClassifierOptions
from omniset.microbiomes.references import References
from omniset.runs import devices
from omniset.runs.console import telling
from omniset.tables.dna import Kmers
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train

DROPPED = 0.5  # of a step's k-mers, at most
SHORT = 0.25  # share of the batches that are of a shorter length
STEPS, EPOCHS = 1600, (4, 60)  # where the number of epochs is not given

Batch = tuple[list[Kmers], Tensor]  # of sequences, and their taxa
History = list[dict[str, Any]]


@dataclass
class Material:
    """What is learned from, and how."""

    references: References  # all of them
    # Pairs that are learned from, and pairs that are kept back.
    chosen: Int[np.ndarray, " chosen"]
    validation: Int[np.ndarray, " validation"]
    options: ClassifierOptions  # of the classifier
    folder: Path | None  # for checkpoints
    resume: bool  # go on with those in the folder

    def counted(self, pairs: Int[np.ndarray, " some"]) -> KmerLikelihood:
        """Naive Bayes of some pairs."""
        references = self.references
        sequence, taxon = references.sequence[pairs], references.taxon[pairs]
        device = devices.find(self.options.device)
        return KmerLikelihood.of(references.texts, sequence, taxon, references.taxa).to(device)

    def lesson(self, projection: KmerProjection) -> Lesson:
        """Batches of k-mers and of taxa. In some of the training batches all sequences have one of the shorter
        lengths.
        """
        references, seed, lengths = self.references, self.options.seed, self.options.lengths

        def make(keys: list[Key], training: bool) -> Batch:
            pairs = np.array([i for _, i in keys])
            length = None
            if training and lengths:
                rng = np.random.default_rng([seed, keys[0][0], zlib.crc32(pairs.tobytes())])
                length = int(rng.choice(lengths)) if rng.random() < SHORT else None
            texts = [references.texts[i][:length] for i in references.sequence[pairs]]
            return projection.read(texts), torch.from_numpy(references.taxon[pairs])

        return Lesson(make, self.chosen, self.validation, batch_size=self.options.BATCH_SIZE, seed=seed)


class SequenceModule(TrainingModule):
    """Cross-entropy of each sequence's taxon, mean over the members. Of a step's k-mers a share is left out, drawn
    evenly from [0, 0.5).

    In training only, the log of each taxon's share of the references is added to the logits: many references do not
    make a taxon more likely in a sample (Menon et al., "Long-tail learning via logit adjustment", 2021).
    """

    network: SequenceNetwork
    log_shares: Tensor

    def __init__(self, *arguments: Any, shares: Float[np.ndarray, " taxa"]) -> None:
        super().__init__(*arguments)
        self.register_buffer("log_shares", torch.from_numpy(np.log(np.maximum(shares, 1e-12))).float())

    def training_step(self, batch: Batch, index: int) -> Tensor:
        inputs, taxa = batch
        share = DROPPED * torch.rand((), device=self.device)
        inputs = [one.without(torch.rand(len(one.numbers), device=self.device) >= share) for one in inputs]
        logits = self.network.logits_of_members(self.network.vectors(inputs)) + self.log_shares
        loss = F.cross_entropy(logits.flatten(0, 1), taxa.repeat(len(logits)))
        self.log("train_loss", loss.detach(), batch_size=len(taxa))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        inputs, taxa = batch
        logits = self.network(inputs) + self.log_shares
        self.log("val_loss", F.cross_entropy(logits, taxa), batch_size=len(taxa))
        self.log("val_accuracy", (logits.argmax(1) == taxa).float().mean(), batch_size=len(taxa))


def learn_sequences(network: TaxonNetwork, material: Material) -> History:
    """Train the network of sequences until the loss of what is kept back no longer falls. Leaves it on the device."""
    telling(material.options.progress)("learning the sequences")
    references, options, size = material.references, material.options, material.options.BATCH_SIZE
    numbers = np.bincount(references.taxon[material.chosen], minlength=references.taxa)
    fingerprint = options.fingerprint() | {"data": references.checksum()}
    optimiser = (options.learning_rate, options.WEIGHT_DECAY, options.seed, fingerprint)
    module = SequenceModule(network.alone, *optimiser, shares=numbers / numbers.sum())
    train(
        module,
        material.lesson(network.alone.projection),
        epochs=options.epochs or int(np.clip(round(STEPS / max(len(material.chosen) // size, 1)), *EPOCHS)),
        folder=material.folder,
        resume=material.resume,
        device=devices.find(options.device).type,
        progress=options.progress,
        log=None,
        patience=options.PATIENCE if len(material.validation) else None,
    )
    network.to(devices.find(options.device)).eval()
    return module.history
