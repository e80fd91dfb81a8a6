"""What a fit learns: the network of sequences, then from what was kept back how far to trust it and the sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from omniset.microbiomes.calibration import Samples, choose_prior, confidence_of, weights_of
from omniset.microbiomes.calls import Confidence
from omniset.microbiomes.candidates import Read, candidates_of
from omniset.microbiomes.likelihood import WordLikelihood
from omniset.microbiomes.model import WEIGHTS, TaxonNetwork
from omniset.microbiomes.options import ClassifierOptions
from omniset.microbiomes.references import References
from omniset.microbiomes.shares import Prior
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import SequenceModule, sequence_lesson
from omniset.runs import devices
from omniset.runs.console import telling
from omniset.training.fit import fit as train

LEAST = 20  # validation sequences below which nothing is calibrated
FOREIGNERS = 500  # sequences that are nothing's, for the calibration
STEPS, EPOCHS = 1600, (4, 60)  # of the network's lesson, where the number of epochs is not given

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

    def counted(self, pairs: Int[np.ndarray, " some"]) -> WordLikelihood:
        """Naive Bayes of some pairs."""
        references = self.references
        sequence, taxon = references.sequence[pairs], references.taxon[pairs]
        device = devices.find(self.options.device)
        return WordLikelihood.of(references.texts, sequence, taxon, references.taxa).to(device)


def epochs_of(references: int, batch_size: int) -> int:
    """So many that about `STEPS` steps are made."""
    return int(np.clip(round(STEPS / max(references // batch_size, 1)), *EPOCHS))


def learn_sequences(network: TaxonNetwork, material: Material) -> History:
    """Train the network of sequences until the loss of what is kept back no longer falls. Leaves it on the device."""
    telling(material.options.progress)("learning the sequences")
    references, options = material.references, material.options
    numbers = np.bincount(references.taxon[material.chosen], minlength=references.taxa)
    fingerprint = options.fingerprint() | {"data": references.checksum()}
    optimiser = (options.learning_rate, options.weight_decay, options.seed, fingerprint)
    module = SequenceModule(network.alone, *optimiser, shares=numbers / numbers.sum())
    pairs = (material.chosen, material.validation)
    data = sequence_lesson(references, *pairs, material.read, options.lengths, options.batch_size, options.seed)
    train(
        module,
        data,
        epochs=options.epochs or epochs_of(len(material.chosen), options.batch_size),
        folder=material.folder,
        resume=material.resume,
        device=devices.find(options.device).type,
        progress=options.progress,
        log=None,
        patience=options.patience if len(material.validation) else None,
    )
    network.to(devices.find(options.device)).eval()
    return module.history


def learn_trust(
    network: TaxonNetwork,
    taxa: Taxa,
    material: Material,
    profiles: Float[np.ndarray, "profiles taxa"] | None,
    *,
    prior: Prior | None = None,
    without_network: bool = False,
) -> tuple[Prior, Confidence]:
    """On sequences that were kept back: the weights of naive Bayes and of the network, which are set in the network;
    how far to trust what is expected of a sample; and how sure to be of a call. Leaves naive Bayes with all references.

    Args:
        profiles: Of the habitat.
        prior: Do not choose one.
        without_network: Naive Bayes alone.
    """
    references, validation = material.references, material.validation
    everything = np.arange(len(references.sequence))
    if len(validation) < LEAST:
        network.likelihood = material.counted(everything)
        return prior or Prior(profiles=profiles), Confidence()
    rng = np.random.default_rng([material.options.seed, 4])
    network.likelihood = material.counted(material.chosen)
    network.weights.copy_(torch.tensor(WEIGHTS))
    sequences, place = np.unique(references.sequence[validation], return_inverse=True)
    texts = [references.texts[i] for i in sequences]
    candidates = candidates_of(network, material.read, texts, material.options.progress).of(place)
    taxon = references.taxon[validation]
    weights = weights_of(candidates, taxon, without_network)
    network.weights.copy_(torch.from_numpy(weights))
    samples = Samples(candidates, taxon, weights, len(taxa), profiles, material.options.seed)
    prior = prior or choose_prior(samples)
    shuffled = ["".join(rng.permutation(list(texts[i % len(texts)]))) for i in range(FOREIGNERS)]
    foreign = candidates_of(network, material.read, shuffled)
    confidence = confidence_of(samples, prior, taxa, foreign, material.options.novel)
    network.likelihood = material.counted(everything)
    return prior, confidence
