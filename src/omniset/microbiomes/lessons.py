"""The lessons of a fit: sequences by themselves, then in samples; then how sure to be of what was learned."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from omniset.microbiomes.calibration import calibrated
from omniset.microbiomes.calls import Confidence
from omniset.microbiomes.model import NONE, SequenceNetwork, TaxonNetwork
from omniset.microbiomes.options import ClassifierOptions
from omniset.microbiomes.references import References
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import (
    ContextModule,
    Read,
    SampleBatches,
    SequenceModule,
    Views,
    embed,
    mutated,
    sample_lesson,
    sequence_lesson,
    temper,
)
from omniset.runs import devices
from omniset.runs.console import telling
from omniset.runs.progress import Progress
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train

EPOCHS = 20  # that the steps of the second lesson are cut into, for validation and checkpoints
FOREIGNERS = 64  # sequences that are nothing's, for the calibration
LEAST = 20  # validation sequences below which nothing is calibrated

History = list[dict[str, Any]]


@dataclass
class Material:
    """What is learned from, and how.

    Attributes:
        references, read: All of them, and what makes of sequences what the network takes.
        chosen, validation: Pairs that are learned from, and pairs that are kept back.
        options: Of the classifier.
        folder: For checkpoints.
        resume: Go on with those in the folder.
    """

    references: References
    read: Read
    chosen: Int[np.ndarray, " chosen"]
    validation: Int[np.ndarray, " validation"]
    options: ClassifierOptions
    folder: Path | None
    resume: bool

    def optimiser(self, learning_rate: float, data: int) -> tuple[float, float, int, dict[str, Any]]:
        """What a `TrainingModule` takes behind the network; data: a checksum."""
        options = self.options
        return learning_rate, options.weight_decay, options.seed, options.fingerprint() | {"data": data}

    def train(self, module: TrainingModule, data: Any, epochs: int, lesson: str) -> None:
        train(
            module,
            data,
            epochs=epochs,
            folder=None if self.folder is None else self.folder / lesson,
            resume=self.resume,
            device=devices.find(self.options.device).type,
            progress=self.options.progress,
            log=None,
            patience=None,
        )


def learn_sequences(network: TaxonNetwork, material: Material) -> History:
    """The first lesson, and the scale at which its logits are as sure as they are right.

    Leaves the network on the device of the options.
    """
    telling(material.options.progress)("first lesson: sequences by themselves")
    references, options = material.references, material.options
    numbers = np.bincount(references.taxon[material.chosen], minlength=references.taxa)
    optimiser = material.optimiser(options.sequence_rate, references.checksum())
    module = SequenceModule(network.alone, *optimiser, shares=numbers / numbers.sum())
    pairs = (material.chosen, material.validation)
    data = sequence_lesson(references, *pairs, material.read, options.lengths, options.sequence_batch, options.seed)
    material.train(module, data, options.sequence_epochs, "first")
    network.to(devices.find(options.device)).eval()
    if len(material.validation) >= LEAST:
        temper(network.alone, material.read, references, material.validation, module.log_shares, options.seed)
    return module.history


def views_of(network: SequenceNetwork, material: Material, rate: float, folder: Path) -> Views:
    """Vectors of all references as they are, and of mutated ones of every length, mapped from a file.

    Args:
        rate: Of mutations, on average.
    """
    references, options = material.references, material.options
    rng = np.random.default_rng([options.seed, 2])
    lengths: list[int | None] = [] if options.encoder == NONE else [None, *options.lengths]
    number = 1 + len(lengths) * options.views
    shape = (number, len(references.texts), options.width)
    vectors = np.lib.format.open_memmap(folder / "views.npy", "w+", np.float32, shape)
    total = number * len(references.texts)
    with Progress("embedding references", total, options.progress, unit="sequences") as bar:
        embed(network, material.read, references.texts, vectors[0])
        for view in range(1, number):
            length = lengths[(view - 1) // options.views]
            texts = (mutated(t[:length], rng.uniform(0, 2 * rate), rng) for t in references.texts)
            embed(network, material.read, list(texts), vectors[view])
            bar.at((view + 1) * len(references.texts))
    of_length = [[1 + i * options.views + j for j in range(options.views)] for i in range(len(lengths))]
    return Views(vectors, of_length) if rate else Views(vectors, [[0], *of_length[1:]])


def samples_of(
    material: Material, views: Views, profiles: Float[np.ndarray, "profiles taxa"] | None
) -> tuple[SampleBatches, SampleBatches | None]:
    """Samples to learn from; and those of references that are kept back, as they are, where there are any."""
    options = material.options
    shared = (profiles, options.background, options.reads, options.batch_size)
    lessons = SampleBatches(material.references, material.chosen, views, *shared, options.seed)
    if not len(material.validation):
        return lessons, None
    plain = Views(views.vectors, [[0]])
    return lessons, SampleBatches(material.references, material.validation, plain, *shared, options.seed + 1)


def learn_samples(
    network: TaxonNetwork, material: Material, lessons: SampleBatches, watched: SampleBatches | None
) -> History:
    """The second lesson."""
    telling(material.options.progress)("second lesson: samples")
    options, data = material.options, material.references.checksum()
    if lessons.profiles is not None:
        data = zlib.crc32(lessons.profiles.tobytes(), data)
    network.train()
    epochs = min(EPOCHS, options.steps)
    module = ContextModule(network, *material.optimiser(options.learning_rate, data))
    material.train(module, sample_lesson(lessons, watched, -(-options.steps // epochs)), epochs, "second")
    return module.history


def confidence_of(
    network: TaxonNetwork, taxa: Taxa, material: Material, watched: SampleBatches | None, rng: np.random.Generator
) -> Confidence:
    """Fitted on samples of what was kept back, and on sequences that are nothing's: those of references, shuffled."""
    if watched is None or len(material.validation) < LEAST:
        return Confidence()
    texts = [material.references.texts[i] for i in material.references.sequence[material.validation][:FOREIGNERS]]
    foreign = np.empty((len(texts), material.options.width), dtype=np.float32)
    embed(network.alone, material.read, ["".join(rng.permutation(list(text))) for text in texts], foreign)
    return calibrated(network, taxa, watched, torch.from_numpy(foreign), material.options.novel)
