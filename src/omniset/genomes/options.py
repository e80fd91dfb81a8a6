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
    learning_rate: float = shared.learning_rate(1e-3)
    clade: Rank = option("family", "Rank of the taxonomy whose clades are never split.", group="data")
