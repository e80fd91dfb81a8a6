"""Microbiomes: a taxon for every read, in the context of its sample."""

from omniset.microbiomes.calls import Calls
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.samples import Samples, read_samples
from omniset.microbiomes.taxonomy import read_taxonomy

__all__ = ["Calls", "Samples", "TaxonClassifier", "read_samples", "read_taxonomy"]
