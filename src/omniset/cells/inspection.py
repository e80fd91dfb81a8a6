"""What `omniset cells inspect` says of files of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.cells.data import FILE, NONE, Cells, Scan, batch_codes
from omniset.cells.embedder import LEAST, STEPS, CellEmbedder
from omniset.cells.projection import few_values
from omniset.runs.console import say
from omniset.tables.files import listed

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 12  # columns


def describe(cells: Cells, scan: Scan) -> None:
    """Each source, and what was decided."""
    for number in range(len(cells.sources)):
        _source(cells, number, scan.library, scan.genes)
    say("together" if len(cells.sources) > 1 else "what fit would make of it")
    for note in cells.notes:
        say(f"  {note}")


def _source(cells: Cells, number: int, library: Float[np.ndarray, " cells"], genes: Int[np.ndarray, " cells"]) -> None:
    """One source: its size, counts, names and columns."""
    source, members = cells.sources[number], cells.source_of == number
    rows, columns = source.shape
    say(f"{source.name}")
    stored = f"{'sparse' if source.sparse else 'dense'}, {source.dtype}, {source.nbytes / 1e6:,.0f} MB to read"
    filled = genes[members].sum() / (rows * columns)
    say(f"  {rows:,} cells, {columns:,} genes; {stored}; {filled:.1%} of the counts are not 0")
    if cells.relative[number]:
        say("  counts per cell: not known")
    else:
        say(f"  counts per cell: {_quantiles(library[members])}")
    say(f"  genes per cell: {_quantiles(genes[members])}")
    few = few_values(source.obs)
    keys = [f"{name} ({values}: {_values(source.obs[name])})" for name, values in list(few.items())[:SHOWN]]
    say(f"  obs columns with few values, for --batch_key or labels: {'; '.join(keys) or 'none'}")
    rest = [str(name) for name in source.obs.columns if str(name) not in few]
    if rest:
        say(f"  other obs columns: {listed(rest)}")
    choices = ["X" if choice is None else choice for choice in source.choices]
    say(f"  matrices, for --layer: {', '.join(choices)}; read is {source.layer or 'X'}")


def _quantiles(values: Any) -> str:
    quantiles = np.quantile(values, QUANTILES)
    return ", ".join(f"{q:.0%} {v:,.0f}" for q, v in zip(QUANTILES, quantiles, strict=True)).replace("50%", "median")


def _values(column: pd.Series) -> str:
    """The most frequent ones."""
    names = [str(value) for value, number in column.value_counts().items() if number]
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def plan(cells: Cells, batch_key: str | None, genes: int) -> None:
    """What fit would make of the cells."""
    if len(cells) < LEAST:
        say(f"  nothing: there are {len(cells)} cells to learn from, at least {LEAST} are needed")
        return
    question = None
    try:
        codes, names = batch_codes(cells, batch_key)
    except ValueError as error:
        if batch_key is not None:
            raise
        question = str(error)
        codes, names = batch_codes(cells, FILE)
    numbers, usual = np.bincount(codes, minlength=len(names)), CellEmbedder().get_params()
    size, most = usual["batch_size"], usual["max_genes"] or genes
    epochs = max(1, -(-STEPS * size // len(cells)))
    steps = epochs * max(1, len(cells) // size)
    varying = f"; the {most:,} that vary most are learned" if genes > most else ""
    say(f"  fit would learn from {len(cells):,} cells and {genes:,} genes that are seen in them{varying}")
    if question is not None:
        say(f"  fit would ask: {question}")
    elif len(names) > 1:
        least = int(numbers.argmin())
        smallest = f"the smallest, {names[least]}, has {numbers[least]:,} cells"
        say(f"  {len(names):,} batches by {batch_key or 'file'}; {smallest}")
    else:
        by = "" if batch_key == NONE else f" by {batch_key or 'file'}"
        say(f"  1 batch{by}: nothing would be mixed")
    storage = "kept in memory" if cells.cached else "read in blocks, each epoch anew"
    say(f"  {epochs:,} epochs of {size} cells a step, {steps:,} steps in all; counts are {storage}")
