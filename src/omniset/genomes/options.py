"""The options of GenomeCompleter."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from omniset import options as shared
from omniset.options import Computing, option, options

Rank = Literal["domain", "phylum", "class", "order", "family", "genus", "species"]


@options
class CompleterOptions(Computing):
    """How a model of genomes is made."""

    architecture: Literal["evidence", "seed"] = option(
        "evidence",
        '"evidence": attention over reference genomes, principal components and the set of observed families, mixed, '
        'plus what was observed. "seed": a set transformer alone, as its document says, which cannot copy its input.',
    )
    _: KW_ONLY
    epochs: int | None = shared.epochs(
        None,
        "How often, at most, each genome is learned from, each time with other noise. None: 15; for few genomes enough "
        "for 600 steps, for more than 2,000 fewer, so that 30,000 are read in all.",
    )
    batch_size: int = shared.batch_size(16, "Genomes per step, and at a time when completing.")
    learning_rate: float = shared.learning_rate(1e-3)
    weight_decay: float = shared.weight_decay(1e-2)
    patience: int | None = shared.patience(3, "genomes")
    validation_fraction: float = option(
        0.1,
        "Share of the genomes kept back, by whole clades, to watch the training and to calibrate.",
        group="training",
        above=0,
        below=1,
    )
    refit: bool = option(
        True,
        "Learn anew from all genomes when those kept back have told when to stop and how sure to be. False: these stay "
        "out, and nothing is learned twice.",
        group="training",
    )
    clade: Rank = option("family", "Rank of the taxonomy whose clades are never split.", group="data")
    completeness: tuple[float, float] = option(
        (30.0, 100.0), "Lowest and highest completeness that is simulated, in percent.", group="training"
    )
    contamination: tuple[float, float] = option(
        (0.0, 12.0), "Lowest and highest contamination that is simulated, in percent.", group="training"
    )
    min_genomes: int = option(
        1, "Families of fewer genomes that are learned from are left out of the vocabulary.", group="data", least=1
    )
    max_references: int = option(4000, "Genomes kept to compare with, at most, drawn over the clades.", least=1)
    far: Literal["keep", "warn", "stop"] = option(
        "warn",
        'Genomes farther from the references than 95 % of the validation genomes: "warn" draws their probabilities '
        'to what was observed, the more the farther, and warns; "keep" takes them like others; "stop" is an error.',
        changes_fit=False,
    )
