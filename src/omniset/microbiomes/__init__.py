"""Microbiomes: a taxon for every read, in the context of its sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.microbiomes.assignments import Calls
    from omniset.microbiomes.classifier import TaxonClassifier
    from omniset.microbiomes.samples import Samples, read_samples
    from omniset.microbiomes.taxonomy import read_taxonomy

__all__ = ["Calls", "Samples", "TaxonClassifier", "read_samples", "read_taxonomy"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Calls": "assignments",
        "Samples": "samples",
        "TaxonClassifier": "classifier",
        "read_samples": "samples",
        "read_taxonomy": "taxonomy",
    },
)
