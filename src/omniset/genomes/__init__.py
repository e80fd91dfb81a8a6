"""Genomes: complete and clean noisy gene content, with probabilities.

>>> from omniset.genomes import GenomeCompleter, read_qualities, read_table, read_taxonomy  # doctest: +SKIP
>>> completer = GenomeCompleter().fit(read_table("families.tsv"), read_taxonomy("taxonomy.tsv"))  # doctest: +SKIP
>>> completer.complete(read_table("mags.tsv"), read_qualities("quality_report.tsv"))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.genomes.completer import GenomeCompleter
    from omniset.genomes.completion import Completion, Explanation
    from omniset.genomes.data import GenomeFile, GenomeTable, read_table
    from omniset.genomes.metadata import read_qualities, read_taxonomy
    from omniset.genomes.readers import Genome

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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Completion": "completion",
        "Explanation": "completion",
        "Genome": "readers",
        "GenomeCompleter": "completer",
        "GenomeFile": "data",
        "GenomeTable": "data",
        "read_qualities": "metadata",
        "read_table": "data",
        "read_taxonomy": "metadata",
    },
)
