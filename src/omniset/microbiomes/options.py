"""The options of TaxonClassifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Literal

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class ClassifierOptions(Computing):
    """How a model of marker genes is made."""

    rank: str = option(
        "genus",
        "Rank of the taxa: domain, phylum, class, order, family, genus, species, or another of the taxonomy's ranks.",
        group="data",
    )
    _: KW_ONLY
    ranks: Sequence[str] | None = option(
        None,
        "Names of the taxonomy's ranks, from the first on. None: those above, or PR2's where its supergroups are, or "
        "with a kingdom where taxa have d__ and k__.",
        group="data",
        changes_fit=False,
    )
    region: str | None = option(
        None,
        "Which part of the references to learn: 515F-806R, 341F-805R, or the primers as FORWARD...REVERSE. None: the "
        "references as they are.",
        group="data",
    )
    words: Sequence[int] = option((5, 7), "Lengths of the k-mers.", least=1, most=10)
    width: int = option(256, "Of a sequence's vector.", least=1)
    members: int = option(
        4,
        "Classifiers of single sequences whose logits are averaged, each with its part of the width, which it divides.",
        least=1,
    )
    embedder: str | Path | None = option(
        None, "Folder of a transformer that makes vectors in place of k-mers. None: k-mers.", place=True
    )
    trust_code: bool = option(
        False, "Run Python files that are in that folder. DNABERT-S needs it.", place=True, changes_fit=False
    )
    cache: str | Path | None = option(
        None,
        "Folder in which the transformer's vectors are kept from run to run.",
        group="computing",
        place=True,
        changes_fit=False,
    )
    encoder: Literal["ust", "set-transformer-isab", "set-transformer-sab", "none"] = option(
        "ust",
        'What sees the sample: "ust" (the same as "set-transformer-isab") or "set-transformer-sab". "none": every '
        "sequence by itself.",
    )
    dim: int = shared.dim(128, "Width of the encoder.")
    depth: int = shared.depth(2, "Its layers.", least=0)
    num_heads: int = shared.num_heads(4)
    num_inducing: int = shared.num_inducing(16, "Inducing points of a layer.")
    lengths: Sequence[int] = option(
        (100, 150, 200),
        "Of reads that may be shorter than the region; learned beside it.",
        group="data",
        least=50,
    )
    kinds: int | None = option(
        None,
        "How many kinds of communities to learn from where no table of them is given. None: a new one for every "
        "sample, which teaches to read any sample. A number: replicates of so many, which learns what is usual there.",
        group="data",
        least=1,
    )
    background: float = option(
        0.1, "Share of new communities that is mixed into given ones.", group="training", least=0, most=1
    )
    reads: int = option(1024, "Of a training sample.", group="training", least=1)
    views: int = option(
        2,
        "Mutated versions of each reference in the lesson on samples, for each length.",
        group="training",
        least=1,
    )
    steps: int = option(
        600,
        "Of the lesson on samples, in 20 epochs of equal length: more than 20 are rounded up to a multiple of it.",
        group="training",
        least=1,
    )
    batch_size: int = shared.batch_size(8, "Samples in a step.")
    learning_rate: float = shared.learning_rate(1e-3, "Largest step size of AdamW in that lesson.")
    weight_decay: float = shared.weight_decay(1e-4)
    sequence_epochs: int = shared.epochs(8, "Of the lesson on sequences by themselves.")
    sequence_batch: int = shared.batch_size(128, "Sequences in a step of it.")
    sequence_rate: float = shared.learning_rate(3e-3, "Largest step size in it.")
    validation_fraction: float = option(
        0.05,
        "Share of distinct sequences kept back to watch training and to calibrate confidences.",
        group="training",
        least=0,
        most=0.5,
    )
    novel: float = option(
        0.1, "Share of reads taken to be of taxa without references, for confidences.", group="data", least=0, most=0.9
    )
    threshold: float = option(
        0.7, "Confidence that a rank needs to be named.", group="data", least=0, most=1, changes_fit=False
    )
