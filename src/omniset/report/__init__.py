"""Reports: one HTML file that needs nothing else, and the raw numbers beside it.

`blocks` says what a report is made of, `page` renders it, `figures` draws, `sets` composes the report on a model of
sets, `multiqc` writes the files that MultiQC collects over many runs.
"""

from omniset.lazy import lazily

__all__ = ["Cell", "Facts", "Note", "Plot", "Report", "Section", "Table", "render", "write"]

__getattr__, __dir__ = lazily(__name__, {**dict.fromkeys(__all__[:7], "blocks"), "render": "page", "write": "page"})
