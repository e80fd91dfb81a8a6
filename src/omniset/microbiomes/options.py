"""The options of TaxonClassifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY

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
    words: Sequence[int] = option((5, 7), "Lengths of the network's k-mers.", least=1, most=10)
    width: int = option(256, "Of a sequence's vector.", least=1)
    members: int = option(
        4,
        "Classifiers of single sequences whose logits are averaged, each with its part of the width, which it divides.",
        least=1,
    )
    lengths: Sequence[int] = option(
        (100, 150, 200),
        "Of reads that may be shorter than the region; the network learns them beside it.",
        group="data",
        least=50,
    )
    epochs: int | None = shared.epochs(None, "Of the network, at most. None: as many as make 1,600 steps.")
    patience: int | None = shared.patience(2, "sequences")
    batch_size: int = shared.batch_size(128, "Sequences in a step.")
    learning_rate: float = shared.learning_rate(3e-3)
    weight_decay: float = shared.weight_decay(1e-4)
    validation_fraction: float | None = option(
        None,
        "Share of distinct sequences kept back: how far to trust naive Bayes, the network and the sample is learned on "
        "them, and confidences are calibrated. None: a twentieth, of few references up to a fifth.",
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
