"""Genomes: complete and clean noisy gene content, with probabilities.

>>> from omniset.genomes import GenomeCompleter, read_qualities, read_table, read_taxonomy  # doctest: +SKIP
>>> completer = GenomeCompleter().fit(read_table("families.tsv"), read_taxonomy("taxonomy.tsv"))  # doctest: +SKIP
>>> completer.complete(read_table("mags.tsv"), read_qualities("quality_report.tsv"))  # doctest: +SKIP
"""

from omniset.genomes.completer import Completion, Explanation, GenomeCompleter
from omniset.genomes.data import (
    Genome,
    GenomeFile,
    GenomeTable,
    read_qualities,
    read_table,
    read_taxonomy,
)

__all__ = [
    "Completion",
    "Explanation",
    "Genome",
    "GenomeCompleter",
    "GenomeFile",
    "GenomeTable",
    "read_qualities",
    "read_table",
    "read_taxonomy",
]
