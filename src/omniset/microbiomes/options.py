"""The options of TaxonClassifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class ClassifierOptions(Computing):
    """How a model of marker genes is made.

    Attributes:
        KMERS: Lengths of the network's k-mers.
        WIDTH: Of a sequence's vector.
        MEMBERS: Classifiers of single sequences whose logits are averaged, each with its part of the width.
        BATCH_SIZE: Sequences in a step.
        PATIENCE: Epochs without progress on the sequences kept back, after which the network stops.
        WEIGHT_DECAY: Pull of its weights towards zero.
        KEPT_BACK: So many distinct sequences are kept back, but not less nor more of all than
            FRACTIONS: on them is learned how far to trust naive Bayes, the network and the sample, and how sure to be.
    """

    KMERS: ClassVar[tuple[int, ...]] = (5, 7)
    WIDTH: ClassVar[int] = 256
    MEMBERS: ClassVar[int] = 4
    BATCH_SIZE: ClassVar[int] = 128
    PATIENCE: ClassVar[int] = 2
    WEIGHT_DECAY: ClassVar[float] = 1e-4
    KEPT_BACK: ClassVar[int] = 1000
    FRACTIONS: ClassVar[tuple[float, float]] = (0.05, 0.2)

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
    lengths: Sequence[int] = option(
        (100, 150, 200),
        "Of reads that may be shorter than the region; the network learns them beside it.",
        group="data",
        least=50,
    )
    epochs: int | None = shared.epochs(None, "Of the network, at most. None: as many as make 1,600 steps.")
    learning_rate: float = shared.learning_rate(3e-3)
    novel: float = option(
        0.1, "Share of reads taken to be of taxa without references, for confidences.", group="data", least=0, most=0.9
    )
    threshold: float = option(
        0.7, "Confidence that a rank needs to be named.", group="data", least=0, most=1, changes_fit=False
    )
