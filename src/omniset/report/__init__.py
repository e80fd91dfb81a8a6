"""Reports: one HTML file that needs nothing else, and the raw numbers beside it.

`blocks` says what a report is made of, `page` renders it, `figures` draws, `sets` composes the report on a model of
sets, `multiqc` writes the files that MultiQC collects over many runs.
"""

from omniset.report.blocks import Cell, Facts, Headline, Note, Plot, Report, Section, Table
from omniset.report.page import render, write

__all__ = ["Cell", "Facts", "Headline", "Note", "Plot", "Report", "Section", "Table", "render", "write"]
