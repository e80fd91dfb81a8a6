"""Training in two lessons: sequences by themselves, then their samples.

What was learned by heart is known for sure, and a network that reads such vectors never learns to ask the sample. So in
the second lesson sequences are mutated, at the rate at which the first one's loss is that of sequences it has not seen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Real
from scipy import optimize
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.microbiomes.communities import Members, de_novo, draw
from omniset.microbiomes.model import SequenceNetwork, TaxonNetwork
from omniset.microbiomes.references import References
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule

Read = Callable[[Sequence[str]], Any]  # sequences to what a projection takes
BASES = np.frombuffer(b"ACGT", dtype=np.uint8)
DROPPED = 0.5  # of a step's words, at most, in the first lesson
SHORT = 0.25  # share of the batches that are of a shorter length, in the first lesson
VALIDATION_SAMPLES = 16
TOGETHER = 512  # sequences embedded at a time
RATES = np.array([0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2])


def mutated(text: str, rate: float, rng: np.random.Generator) -> str:
    """With this share of its letters drawn anew from the four bases."""
    letters = np.frombuffer(text.encode("ascii"), dtype=np.uint8).copy()
    where = rng.random(len(letters)) < rate
    letters[where] = rng.choice(BASES, int(where.sum()))
    return letters.tobytes().decode("ascii")


# ---------------------------------------------------------------------- first lesson


def sequence_lesson(
    references: References,
    train: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    read: Read,
    lengths: Sequence[int],
    batch_size: int,
    seed: int,
) -> Lesson:
    """The first lesson: batches of what the projection takes, and of taxa. In some of the training batches all
    sequences have one of the shorter lengths.

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


def on(inputs: Any, device: torch.device) -> Any:
    """What a projection takes, on a device."""
    return [one.to(device) for one in inputs] if isinstance(inputs, list) else inputs.to(device)


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
        self.log("train_loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(taxa), prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Any, Tensor], index: int) -> None:
        inputs, taxa = batch
        logits = self.network(inputs) + self.log_shares
        self.log("val_loss", F.cross_entropy(logits, taxa), batch_size=len(taxa), prog_bar=True)
        self.log("val_accuracy", (logits.argmax(1) == taxa).float().mean(), batch_size=len(taxa), prog_bar=True)


@torch.no_grad()
def embed(
    network: SequenceNetwork,
    read: Read,
    texts: Sequence[str],
    out: Float[np.ndarray, "sequences width"],
) -> None:
    """Write the vectors of sequences to `out`."""
    device = network.prototypes.device
    for start in range(0, len(texts), TOGETHER):
        some = texts[start : start + TOGETHER]
        out[start : start + len(some)] = network.vectors(on(read(some), device)).cpu().numpy()


def _logits(network: SequenceNetwork, read: Read, texts: Sequence[str]) -> Iterator[Float[Tensor, "sequences taxa"]]:
    """Of `TOGETHER` sequences after the other, on the CPU."""
    device = network.prototypes.device
    for start in range(0, len(texts), TOGETHER):
        yield network(on(read(texts[start : start + TOGETHER]), device)).cpu()


@torch.no_grad()
def temper(
    network: SequenceNetwork,
    read: Read,
    references: References,
    validation: Int[np.ndarray, " validation"],
    log_shares: Float[Tensor, " taxa"],
    seed: int,
) -> None:
    """Scale all logits by the factor, from 1/4 to 4, with the least loss on (at most 4,000 pairs of) the validation.

    Guo et al., "On calibration of modern neural networks", 2017. What is too sure of itself does not ask the sample.
    """
    validation = np.random.default_rng([seed, 3]).permutation(validation)[:4000]
    texts = [references.texts[i] for i in references.sequence[validation]]
    taxa = torch.from_numpy(references.taxon[validation])
    logits = torch.cat([*_logits(network, read, texts)])

    def loss(log_factor: float) -> float:
        return float(F.cross_entropy(math.exp(log_factor) * logits + log_shares.to(logits), taxa))

    optimum = optimize.minimize_scalar(loss, bounds=(-math.log(4), math.log(4)), method="bounded")
    network.log_scale.add_(float(optimum.x))


@torch.no_grad()
def matching_rate(
    network: SequenceNetwork,
    read: Read,
    references: References,
    train: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    seed: int,
) -> float:
    """The rate of mutations at which sequences learned from are as hard as those of the validation: equal loss.

    Found between the rates tried by linear interpolation, on at most 4,000 sequences; at most 0.2.
    """
    rng = np.random.default_rng([seed, 1])

    def loss(pairs: np.ndarray, rate: float) -> float:
        texts = [mutated(references.texts[i], rate, rng) for i in references.sequence[pairs]]
        taxa = torch.from_numpy(references.taxon[pairs]).split(TOGETHER)
        batches = zip(_logits(network, read, texts), taxa, strict=True)
        return sum(float(F.cross_entropy(*batch, reduction="sum")) for batch in batches) / len(pairs)

    aim = loss(rng.permutation(validation)[:4000], 0.0)
    some = rng.permutation(train)[:4000]
    losses: list[float] = []
    for rate in RATES:
        losses.append(loss(some, float(rate)))
        if losses[-1] > aim:
            break
    return float(np.interp(aim, np.maximum.accumulate(losses), RATES[: len(losses)]))


# ---------------------------------------------------------------------- second lesson


@dataclass
class Views:
    """Vectors of every reference, of several lengths and mutated.

    Attributes:
        vectors: (views, sequences, width); may be mapped from disk.
        of_length: For each length the views that have it, the whole region first.
    """

    vectors: Float[np.ndarray, "views sequences width"]
    of_length: list[list[int]]


@dataclass
class SampleBatch:
    """Samples to learn from.

    Attributes:
        sets: References that were drawn, with their reads. A sequence of two taxa, where both were drawn, is in the set
            as two elements, which is the same multiset.
        taxon: Of each element.
    """

    sets: SetBatch
    taxon: Int[Tensor, "samples references"]

    def to(self, device: torch.device) -> SampleBatch:
        return SampleBatch(self.sets.to(device), self.taxon.to(device))


@dataclass
class SampleBatches:
    """Batches by their number: communities, and reads of them, that depend on it alone.

    Args:
        chosen: Which references to draw.
        views: Vectors to take those of each sequence from: a sample's all of one length, which is the whole region in
            half of the samples.
        profiles: To draw from with equal probability; None: a new log-normal community each time.
        background: Share of a new log-normal community that is mixed into each given profile.
    """

    references: References
    chosen: Int[np.ndarray, " chosen"]
    views: Views
    profiles: Float[np.ndarray, "profiles taxa"] | None
    background: float
    reads: int
    batch_size: int
    seed: int

    @cached_property
    def members(self) -> Members:
        return self.references.members(self.chosen)

    def __getitem__(self, step: int) -> SampleBatch:
        rng = np.random.default_rng([self.seed, step])
        vectors, counts, taxa = [], [], []
        for _ in range(self.batch_size):
            drawn, times = draw(self._profile(rng), self.reads, self.members, rng)
            lengths = self.views.of_length
            length = 0 if len(lengths) == 1 or rng.random() < 0.5 else int(rng.integers(1, len(lengths)))
            view = rng.choice(lengths[length], len(drawn))
            vectors.append(torch.from_numpy(self.views.vectors[view, self.references.sequence[drawn]]))
            counts.append(torch.from_numpy(times))
            taxa.append(torch.from_numpy(self.references.taxon[drawn]))
        taxon = torch.nn.utils.rnn.pad_sequence(taxa, batch_first=True)
        return SampleBatch(SetBatch.from_ragged(vectors, counts), taxon)

    def _profile(self, rng: np.random.Generator) -> np.ndarray:
        taxa = len(self.members.present)
        if self.profiles is None:
            return de_novo(taxa, rng)
        given = (1 - self.background) * self.profiles[rng.integers(len(self.profiles))]
        return given + self.background * de_novo(taxa, rng) if self.background else given


def sample_lesson(train: SampleBatches, validation: SampleBatches | None, steps: int) -> Lesson:
    """The second lesson: training samples, a batch per step, and the same validation samples after each epoch."""
    watched: list[SampleBatch] = []
    if validation is not None:
        watched = [validation[i] for i in range(-(-VALIDATION_SAMPLES // validation.batch_size))]

    def make(keys: list[Key], training: bool) -> SampleBatch:
        ((epoch, position),) = keys
        return train[epoch * steps + position] if training else watched[position]

    positions = range(steps), range(len(watched))
    return Lesson(make, *positions, batch_size=1, seed=None, move=lambda batch, device: batch.to(device))


def loss_of(
    logits: Float[Tensor, "samples references taxa"],
    taxon: Int[Tensor, "samples references"],
    reads: Real[Tensor, "samples references"],
) -> Float[Tensor, ""]:
    """Cross-entropy, mean over the reads of all samples."""
    each = F.cross_entropy(logits.flatten(0, 1), taxon.flatten(), reduction="none")
    return (reads.flatten() * each).sum() / reads.sum()


class ContextModule(TrainingModule):
    """Cross-entropy of each read's taxon in its sample, mean over two priors: the class token's alone, and the last.
    With the last alone the token would not learn what expectation maximisation finds without it. The first lesson's
    weights stay as they are.
    """

    network: TaxonNetwork

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.network.alone.requires_grad_(False)

    def training_step(self, batch: SampleBatch, index: int) -> Tensor:
        alone, reads = self.network.alone.logits(batch.sets.elements), batch.sets.multiplicity
        priors = self.network.priors(batch.sets)
        loss = torch.stack([loss_of(alone + p[:, None], batch.taxon, reads) for p in priors]).mean()
        self.log("train_loss", loss.detach(), on_step=False, on_epoch=True, batch_size=1, prog_bar=True)
        return loss

    def validation_step(self, batch: SampleBatch, index: int) -> None:
        logits = self.network(batch.sets)
        reads = batch.sets.multiplicity
        right = (logits.argmax(2) == batch.taxon) * reads
        self.log("val_loss", loss_of(logits, batch.taxon, reads), batch_size=1, prog_bar=True)
        self.log("val_accuracy", right.sum() / reads.sum(), batch_size=1, prog_bar=True)
