"""Cells as a stream of counts, out of one or many matrices: what is raw, what a logarithm, and which gene is which.

`omniset.cells.readings` decides what a matrix holds; `Cells.notes` says it. `batch_codes` and `labels_of` tell of
which batch and type each cell is, and which columns may well hold batches that nobody has named.

Known imperfection: files of a list are all kept open.
"""

from __future__ import annotations

import glob
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Bool, Float64, Int, Int64, Shaped

from omniset.cells.readings import BLOCK, INPUTS, Reading, decide, not_whole, read_counts, spans
from omniset.runs.progress import Progress
from omniset.tables.doubts import FEWEST
from omniset.tables.files import listed
from omniset.tables.genes import Match, canonical, filled, gene_names, match, only_count, respelled, text_columns
from omniset.tables.labels import doubts_of_classes
from omniset.tables.matrices import Compressed, Opened, Source, open_source

NONE, FILE = "none", "file"  # no batches; each source is one
UNKNOWN = "unknown"  # no type
UNLABELLED = {UNKNOWN, "nan", "na", "n/a", "unassigned", "unlabeled", "unlabelled", "not assigned", "undefined"}
NUMBERS = 20  # so many different ones are labels of types, perhaps
ALL = "all"  # the only batch, where there are none
# Names of columns that often hold batches, in small letters and without what is between the words.
BATCHES = re.compile(
    "(batch|sample|donor|patient|subject|individual|library|run|plate|dataset|experiment)(es|s|id|name)?|ind|origident|"
    "lane|replicate|study|channel|pool|chip|chemistry|technology|tech|protocol|platform|assay|method"
)
MEMORY = 512 << 20  # bytes of counts that are kept; of more, blocks are read each epoch anew
BARCODE = re.compile(r"(?:.*[_#:-])?[ACGT]{12,}(?:[-_.:].*)?")  # what cells are called
GENE = re.compile(r"ENS[A-Z]*G\d{11}(\.\d+)?")
COMMON = {"ACTB", "GAPDH", "B2M", "MALAT1", "RPL3", "RPS6", "EEF1A1", "TMSB4X", "FTL", "TUBB"}  # genes of most cells
TURNED = "its cells are called as genes: it is genes x cells, give it turned (adata.T)"
ASKED = "give aliases, or the column of var that has the names"
MISSING = 0.1  # share of a model's genes from which on we speak of those that are not there


@dataclass(frozen=True)
class Scan:
    """What one pass over all values tells; all genes of the sources are counted, matched or not.

    Attributes:
        library: Sum of counts of each cell.
        genes: Number of genes with a count in each cell.
        seen: Whether each gene of `Cells.genes` has a count in any cell.
    """

    library: Float64[np.ndarray, " cells"]
    genes: Int64[np.ndarray, " cells"]
    seen: Bool[np.ndarray, " genes"]


@dataclass
class _Store:
    """What all views of the same cells share."""

    sources: list[Source]
    readings: list[Reading]
    spelled: list[list[str]]  # for each source its genes' names
    choose: bool  # whether another column of var may be taken for the names
    starts: np.ndarray  # number of the first cell of each source, and of all cells
    notes: list[str]
    cached: bool  # whether counts are kept in memory, once scanned
    cache: list[sp.csr_array] = field(default_factory=list)
    seen: list[np.ndarray] = field(default_factory=list)  # for each source, which genes have a count, once scanned
    scan: Scan | None = None


class Cells:
    """Counts of cells x genes, in the order of the sources; no cell is left out. Made by `read_cells`.

    Attributes:
        sources: Where the cells are from.
        names: The cells' names. They may occur twice.
        obs: What is known of each cell; NaN in columns that its source lacks.
        source_of: For each cell the number of its source.
        genes: The columns: canonical names of the sources' genes in order of first appearance, or a vocabulary.
        kinds: For each source what is stored, "counts" or "log1p".
        relative: For each source whether its counts are not known and library sizes mean nothing.
        match: For each source which column each of its genes is.
        measured: For each source which columns it has. What was not measured is 0 in `take`, and is no zero.
        notes: What was decided, a sentence each. `scan` adds to them.
    """

    def __init__(self, store: _Store, genes: list[str], matches: list[Match]) -> None:
        self._store = store
        self.genes, self.match = genes, matches
        self.measured: Bool[np.ndarray, "sources genes"] = np.zeros((len(matches), len(genes)), dtype=bool)
        for row, matching in zip(self.measured, matches, strict=True):
            row[matching.positions[matching.positions >= 0]] = True
        self._selections = [_selection(matching, len(genes)) for matching in matches]

    @property
    def sources(self) -> list[Source]:
        return self._store.sources

    @property
    def kinds(self) -> list[str]:
        return [reading.kind for reading in self._store.readings]

    @property
    def relative(self) -> list[bool]:
        return [reading.how == "relative" for reading in self._store.readings]

    @cached_property
    def names(self) -> Shaped[np.ndarray, " cells"]:
        return np.concatenate([source.names.to_numpy(dtype=object) for source in self.sources])

    @cached_property
    def obs(self) -> pd.DataFrame:
        return _concatenated([source.obs for source in self.sources])

    @cached_property
    def source_of(self) -> Int[np.ndarray, " cells"]:
        return np.repeat(np.arange(len(self.sources)), np.diff(self._store.starts))

    @property
    def notes(self) -> list[str]:
        matched = zip(self.sources, self.match, strict=True)
        unlike = [(s, m) for s, m in matched if m.exact < len(m.positions) or m.duplicates]
        return self._store.notes + [f"{source.name}: {m.sentence()}" for source, m in unlike]

    @property
    def cached(self) -> bool:
        """Whether all counts are kept in memory; else they are read again each time."""
        return self._store.cached

    def __len__(self) -> int:
        return int(self._store.starts[-1])

    def on(self, vocabulary: Sequence[str], aliases: Mapping[str, str] | None = None) -> Cells:
        """The same cells with these genes as columns: those of the same name are summed, unknown ones left out.

        Where another column of a source's `var`, or its names without what begins or ends many of them, has more of the
        vocabulary than its names, that is taken, with a warning. What is on this vocabulary already stays as it was.

        Args:
            aliases: Other names of genes, see `omniset.tables.genes.match`.

        Raises:
            ValueError: A source has none of these genes.
        """
        genes, store = list(vocabulary), self._store
        if aliases is None and genes == self.genes:
            return self
        named = zip(store.sources, store.spelled, strict=True)
        return Cells(store, genes, [_joined(source, names, genes, aliases, store.choose)[0] for source, names in named])

    def take(self, rows: Int[np.ndarray, " rows"]) -> sp.csr_array:
        """Counts of these cells, in this order, as float32 (len(rows), len(genes)).

        Raises:
            ValueError: A row is not there, or a cell cannot be read.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise ValueError(f"rows must be within 0 and {len(self) - 1}, one is {wrong}")
        store = self._store
        if store.cached:
            self._scanned()
        wanted, place = np.unique(rows, return_inverse=True)
        parts = [sp.csr_array((0, len(self.genes)), dtype=np.float32)]
        for number, (first, last) in enumerate(zip(store.starts[:-1], store.starts[1:], strict=True)):
            chosen = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, last)] - first
            if not len(chosen):
                continue
            if store.cached:
                parts.append(self._on_columns(number, store.cache[number][chosen]))
                continue
            for block in np.split(chosen, np.flatnonzero(np.diff(chosen // BLOCK)) + 1):
                start = int(block[0])
                counts, _ = read_counts(store.sources[number], store.readings[number], start, int(block[-1]) + 1)
                parts.append(self._on_columns(number, counts[block - start]))
        return sp.csr_array(sp.vstack(parts, format="csr"))[place]

    def library(self, rows: Int[np.ndarray, " rows"] | None = None) -> Float64[np.ndarray, " rows"]:
        """Sum of counts of these cells (default: all) over all genes of their source, in the columns or not."""
        library = self._scanned().library
        return library if rows is None else library[rows]

    def scan(self, progress: bool = True) -> Scan:
        """One pass over all values: library sizes, genes per cell, genes that are seen. Made once, by whichever view.

        Raises:
            ValueError: A value is missing, infinite, negative or too large for a logarithm: which one, and what to do.
        """
        scan = self._scanned(progress)
        seen = np.zeros(len(self.genes), dtype=bool)
        for matching, of_source in zip(self.match, self._store.seen, strict=True):
            seen[matching.positions[of_source & (matching.positions >= 0)]] = True
        return replace(scan, seen=seen)

    def _scanned(self, progress: bool = False) -> Scan:
        if self._store.scan is None:
            self._store.scan = _scan(self._store, progress)
        return self._store.scan

    def close(self) -> None:
        """Close the files that we opened."""
        for source in self.sources:
            source.close()

    def _on_columns(self, number: int, counts: sp.csr_array) -> sp.csr_array:
        selection = self._selections[number]
        if selection is None:
            return counts
        block = sp.csr_array(counts @ selection)
        block.sort_indices()
        return block


def read_cells(
    source: Any,
    *,
    layer: str | None = None,
    input: str = "auto",  # noqa: A002
    gene_column: str | None = None,
    memory: int = MEMORY,
) -> Cells:
    """Open cells.

    Args:
        source: An AnnData, a path (.h5ad, zarr, 10x .h5 or folder), a pattern ("runs/*.h5ad"), or a list of these.
        layer: Which matrix of each: None is X, "raw" that of `.raw`, else a layer.
        input: What is stored: "counts", "log1p" (of counts, normalised or not), or "auto": where at least 95 % of the
            values are whole they are counts; others are log1p if counts come back out of them, or if cells have equal
            sums without the logarithm; anything else is an error.
        gene_column: Column of `var` that has the genes' names. Default: its index, which also fills gaps.
        memory: Bytes of counts that may be kept; sources of more are read again each time.

    Raises:
        OSError: A file is not there or may not be read.
        ValueError: No cells, a pattern without match, a format that is not read, or values that are neither of `input`.
    """
    if input not in INPUTS:
        raise ValueError(f"input must be one of {', '.join(map(repr, INPUTS))}, got {input!r}")
    places = _places(source)
    with ExitStack() as files:  # closed where anything fails
        sources = [files.enter_context(open_source(place, layer)).of_genes() for place in places]
        for number, opened_source in enumerate(sources, 1):
            if opened_source.name == "AnnData" and len(sources) > 1:
                opened_source.name = f"AnnData {number}"
        spelled = _spelled(sources, gene_column)
        readings = [decide(opened_source, input) for opened_source in sources]
        cells = _cells(sources, readings, spelled, gene_column is None, memory)
        files.pop_all()
        return cells


def _cells(
    sources: list[Source], readings: list[Reading], spelled: list[list[str]], choose: bool, memory: int
) -> Cells:
    notes = [reading.note for reading in readings]
    kinds = [reading.kind for reading in readings]
    if len(set(kinds)) > 1:
        notes.append(
            f"sources of counts ({kinds.count('counts'):,}) and of logarithms ({kinds.count('log1p'):,}) are read "
            "together, each by its own kind"
        )
    starts = np.concatenate([[0], np.cumsum([source.shape[0] for source in sources])])
    index = pd.Index(np.concatenate([source.names.to_numpy(dtype=object) for source in sources]))
    twice = index[index.duplicated()]
    if len(twice):
        warnings.warn(f"{len(twice):,} names of cells occur more than once, such as {twice[0]!r}", stacklevel=3)
    genes = list(dict.fromkeys(canonical(name) for names in spelled for name in names))
    cached = sum(source.nbytes for source in sources) <= memory
    store = _Store(sources, readings, spelled, choose, starts, notes, cached)
    cells = Cells(store, genes, [match(names, genes) for names in spelled])
    shared = int(cells.measured.all(axis=0).sum())
    if shared < len(genes):
        notes.append(f"{shared:,} of {len(genes):,} genes are measured in every source")
        if 3 * shared < min(source.shape[1] for source in sources):
            warnings.warn(f"{notes[-1]}: are they called otherwise in some, or of other species?", stacklevel=3)
    return cells


def _places(source: Any) -> list[Any]:
    """One place a source."""
    if isinstance(source, list | tuple):
        if not source:
            raise ValueError("source must have at least one file or AnnData, the list is empty")
        return [place for part in source for place in _places(part)]
    if isinstance(source, str | Path) and glob.has_magic(str(source)) and not Path(source).exists():
        paths = sorted(glob.glob(str(Path(source).expanduser()), recursive=True))
        if not paths:
            raise ValueError(f"no file matches {str(source)!r}")
        return paths
    return [source]


def _spelled(sources: list[Source], column: str | None) -> list[list[str]]:
    """Names of genes: a column of var, or what `gene_names` makes of it; such that sources share them."""
    if column is not None:
        return [_column_of_var(source, column) for source in sources]
    known = {canonical(gene) for source in sources if not only_count(source.genes) for gene in source.genes}
    spelled: dict[int, list[str]] = {}
    # First those without another column to be called by, whom the others join.
    for number, source in sorted(enumerate(sources), key=lambda one: any(True for _ in text_columns(one[1].var))):
        called = (source.genes[:1000], source.names[:1000])
        barcodes = [np.mean([bool(BARCODE.fullmatch(name)) for name in names]) for names in called]
        if barcodes[0] > 0.9 and barcodes[1] < 0.1:
            raise ValueError(f"{source.name}: genes have barcodes for names, as {listed(source.genes, 2)}; {TURNED}")
        if _of_genes(source.names.tolist()) and not _of_genes(source.genes):  # of perturbed genes both are
            raise ValueError(
                f"{source.name}: cells have genes for names, as {listed([*source.names[:2]], 2)}; {TURNED}"
            )
        names, before = (
            gene_names(source.name, source.var, known),
            {canonical(n) for some in spelled.values() for n in some},
        )
        if 3 * len(before.intersection(map(canonical, names))) < min(len(before), len(names)):
            names = _joined(source, names, [*before], None, True)[1]
        spelled[number] = names
    return [spelled[number] for number in range(len(sources))]


def _of_genes(names: list[str]) -> bool:
    common = COMMON.intersection(name.upper() for name in names)
    shown = names[:1000]
    return len(common) > 2 or sum(bool(GENE.fullmatch(name)) for name in shown) > 0.9 * len(shown)


def _column_of_var(source: Source, column: str) -> list[str]:
    if column not in source.var:
        columns = listed([str(name) for name in source.var.columns]) or "none"
        raise ValueError(
            f"{source.name}: gene_column must be a column of var, it has no {column!r}; there are: {columns}"
        )
    return filled(source.var, column)


def _joined(
    source: Source, names: list[str], genes: list[str], aliases: Mapping[str, str] | None, choose: bool
) -> tuple[Match, list[str]]:
    """The genes of a source among others, and what they are called for that: as they are, or otherwise where more are
    known so. Without a part of all names a third must be: a few are by chance.
    """
    matching = match(names, genes, aliases)
    best, said = len(genes) - len(matching.missing), ""
    others = [(f"from column {column!r} of var", called, 0) for column, called in text_columns(source.var)]
    others += [("from the index of var", source.genes, 0)]
    size = min(len(names), len(genes))
    if 3 * matching.matched < size:
        others += [(words, called, size // 3) for words, called in respelled(names)]
    for words, called, least in others if choose else []:
        trial = match(called, genes, aliases)
        found = len(genes) - len(trial.missing)
        if found > max(best, least):
            best, matching, names = found, trial, called
            said = f"names of genes are taken {words}, where more are known ({best:,} of {len(genes):,})"
    if not matching.matched:
        turned = match(source.names.tolist(), genes, aliases).matched
        raise ValueError(
            f"{source.name}: none of its genes is known: they are such as {listed(names, 3)}, known are such "
            f"as {listed(genes, 3)}; {TURNED if turned else ASKED}"
        )
    if said:
        warnings.warn(f"{source.name}: {said}", stacklevel=3)
    return matching, names


def _selection(matching: Match, width: int) -> sp.csr_array | None:
    """The matrix genes of the source x columns that takes and sums; None where it is the identity."""
    if np.array_equal(matching.positions, np.arange(width)):
        return None
    known = np.flatnonzero(matching.positions >= 0)
    entries = (np.ones(len(known), dtype=np.float32), (known, matching.positions[known]))
    return sp.csr_array(entries, shape=(len(matching.positions), width))


def _concatenated(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """One below the other."""
    with warnings.catch_warnings():  # pandas is about to change what it makes of columns that are empty in some
        warnings.simplefilter("ignore", FutureWarning)
        obs = pd.concat(frames)
    return obs.set_axis(pd.Index(np.concatenate([frame.index.to_numpy(dtype=object) for frame in frames])))


@contextmanager
def opened(source: Any, **options: Any) -> Iterator[Cells]:
    """Whatever holds cells; files that are opened for it are closed at the end."""
    if isinstance(source, Cells):
        if given := [name for name, value in options.items() if value not in (None, "auto")]:
            raise ValueError(f"{given[0]} was decided when the cells were read")
        yield source
        return
    with closing(read_cells(source, **options)) as cells:
        yield cells


def known_genes(
    cells: Cells, genes: list[str], aliases: Mapping[str, str] | None = None, lacking: str = "they count as not seen"
) -> Cells:
    """The cells with a model's genes as columns. Warns where these are hardly the cells' genes. `lacking` says what
    becomes of those that are not there.

    Raises:
        ValueError: None of the genes is known.
    """
    known = cells.on(genes, aliases)
    for source, matching in zip(known.sources, known.match, strict=True):
        if matching.case > matching.matched / 2:
            warnings.warn(
                f"{source.name}: {matching.case:,} of {matching.matched:,} genes are matched by case only, as those of "
                "another species would be",
                stacklevel=4,
            )
        share = len(matching.missing) / len(genes)
        if share > MISSING:
            warnings.warn(
                f"{source.name}: {share:.0%} of the model's {len(genes):,} genes are not in it, such as "
                f"{matching.missing[0]!r}: {lacking}",
                stacklevel=4,
            )
    return known


def with_counts(cells: Cells, counts: sp.csr_array) -> Cells:
    """Other cells of the same genes, with these counts."""
    matrix = Compressed(counts.data, counts.indices, counts.indptr, counts.shape)
    obs, var = pd.DataFrame(index=range(counts.shape[0])), pd.DataFrame(index=cells.genes)
    source = Source(Opened("given"), obs, var, matrix)
    return _cells([source], [Reading("counts", "stored", "given")], [cells.genes], False, source.nbytes)


def _scan(store: _Store, progress: bool) -> Scan:
    total = sum(source.nbytes for source in store.sources)
    libraries, genes, seen, cache = [], [], [], []
    with Progress("reading cells", total, progress) as bar:
        done = 0.0
        for number, source in enumerate(store.sources):
            seen_here = np.zeros(source.shape[1], dtype=bool)
            blocks, broken, values = [], 0, 0
            for start, stop in spans(source.shape[0]):
                counts, fractions = read_counts(source, store.readings[number], start, stop)
                broken, values = broken + fractions, values + counts.nnz
                libraries.append(counts.sum(axis=1, dtype=np.float64))
                genes.append(np.diff(counts.indptr).astype(np.int64))
                seen_here[counts.indices] = True
                if store.cached:
                    blocks.append(counts)
                done += source.nbytes * (stop - start) / source.shape[0]
                bar.at(math.floor(done), int(store.starts[number]) + stop, "cells")
            seen.append(seen_here)
            if store.cached:
                cache.append(sp.csr_array(sp.vstack(blocks, format="csr")))
            if note := not_whole(source, store.readings[number], broken, values):
                store.notes.append(note)
                warnings.warn(note, stacklevel=2)
    library = np.concatenate(libraries)
    for source, of_source in zip(store.sources, np.split(library, store.starts[1:-1]), strict=True):
        if empty := int((of_source == 0).sum()):
            store.notes.append(f"{source.name}: {empty:,} {'cell has' if empty == 1 else 'cells have'} no counts")
    store.seen, store.cache = seen, cache
    return Scan(library, np.concatenate(genes), np.zeros(0, dtype=bool))


# ---------------------------------------------------------------------- batches and types


def column(cells: Cells, name: Any, what: str) -> pd.Series:
    """A column of obs. Raises: ValueError, naming the argument and what there is."""
    if name not in cells.obs:
        columns = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"{what} must be a column of obs, there is no {name!r}; there are: {columns}")
    return cells.obs[name]


def texts(cells: Cells, name: Any, what: str) -> Shaped[np.ndarray, " cells"]:
    """A column of obs as text, None where it is missing. Raises: as `column`."""
    values = column(cells, name, what)
    text = _as_text(values).to_numpy(dtype=object, copy=True)
    text[unlabelled(values)] = None
    return text


def _as_text(values: pd.Series) -> pd.Series:
    """Whole numbers alike, whether a file has them as such, as fractions (where some are missing) or as text."""
    return values.astype(str).str.replace(r"^(\d+)\.0$", r"\1", regex=True)


def numbered_anew(codes: Int[np.ndarray, " cells"], rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " cells"]:
    """Batches of these rows without gaps, so that nothing tells of others; -1 for the rest."""
    anew = np.full(len(codes), -1, dtype=np.int64)
    anew[rows] = np.unique(codes[rows], return_inverse=True)[1]
    return anew


def batch_codes(
    cells: Cells, batch_key: str | None, label_key: str | None = None
) -> tuple[Int[np.ndarray, " cells"], list[str]]:
    """Number of each cell's batch, and the batches' names.

    Args:
        batch_key: A column of obs, or else "file" or "none" (see `CellEmbedder.fit`). None: as "file", but a column of
            obs that is called `batch` is asked about, and others that may well hold batches are named in a warning.
        label_key: A column that holds none.

    Raises:
        ValueError: No such column, a cell without a batch, more batches than half the cells, or a column `batch` and
            no word about it.
    """
    if batch_key is None:
        likely = batch_columns(cells, label_key)
        batch_names = [name for name in likely if name.strip().casefold() == "batch"]
        likely = {name: likely[name] for name in dict.fromkeys([*batch_names, *likely])}
        columns = ", ".join(f"{name!r} ({number:,} values)" for name, number in likely.items())
        if batch_names:
            raise ValueError(
                f"which batches are there? No batch_key is given, and obs has {columns}: say "
                f"batch_key={batch_names[0]!r} (--batch_key {batch_names[0]}) if that column has them, or "
                f"batch_key={NONE!r} (--batch_key {NONE}) if all cells are one batch"
                + (f", or batch_key={FILE!r} if each file is a batch" if len(cells.sources) > 1 else "")
            )
        if likely:
            warnings.warn(
                f"no batch_key is given, and obs has {columns}: batches in there are not mixed; name the column that "
                f"has them, or say batch_key={NONE!r} if there is nothing to mix",
                stacklevel=3,
            )
    if batch_key not in cells.obs:
        if batch_key == NONE:
            return np.zeros(len(cells), dtype=np.int64), [ALL]
        if batch_key in (None, FILE):
            return cells.source_of.astype(np.int64), [source.name for source in cells.sources]
    values = column(cells, batch_key, "batch_key")
    lacking = unlabelled(values)
    if lacking.any():
        raise ValueError(f"batch_key: cell {cells.names[lacking.argmax()]!r} has no {batch_key}")
    codes, names = pd.factorize(_as_text(values), sort=True)
    alone = np.flatnonzero(np.bincount(codes) == 1)
    if 2 * len(names) > len(cells) >= FEWEST:
        raise ValueError(
            f"batch_key: {batch_key} has {len(names):,} values in {len(cells):,} cells, such as "
            f"{listed(names.astype(str).tolist(), 3)}: these are no batches; {NONE!r} says that there are none"
        )
    if len(alone) and len(names) > 1:
        warnings.warn(
            f"batch_key: {len(alone):,} of {len(names):,} values of {batch_key} have one cell, such as "
            f"{names[alone[0]]!r}: of such a batch nothing can be learned",
            stacklevel=3,
        )
    return codes.astype(np.int64), names.astype(str).tolist()


def batch_columns(cells: Cells, label_key: str | None = None) -> dict[str, int]:
    """Columns of obs that by their names and values may well hold batches, and how many: from 2 to half the cells.

    One whose values differ between sources only says no more than these.
    """
    columns = {}
    for name in cells.obs.columns:
        plain = re.sub(r"[\W_]+", "", str(name)).casefold()
        if name == label_key or not BATCHES.fullmatch(plain):
            continue
        values = cells.obs[name]
        number = int(values.nunique())
        within = values.groupby(cells.source_of, sort=False).nunique().max()
        if 2 <= number <= len(cells) / 2 and within > 1:
            columns[str(name)] = number
    return columns


def labels_of(cells: Cells, label: str) -> Shaped[np.ndarray, " cells"]:
    """The types as text, None where missing."""
    labels, values = texts(cells, label, "label"), cells.obs[label]
    if pd.api.types.is_float_dtype(values.dtype) and (number := values.nunique()) > NUMBERS:
        first = f"{values.dropna().iloc[0]:g}"
        said = f"{label} has {number:,} different numbers, such as {first}: each is taken for a type"
        warnings.warn(said, stacklevel=3)
    without = np.array([name is not None and name.strip().casefold() in UNLABELLED for name in labels], dtype=bool)
    if without.any():
        said = listed(sorted(set(labels[without])))
        warnings.warn(f"cells whose {label} is {said} are taken for unlabelled", stacklevel=3)
        labels[without] = None
    for said in doubts_of_classes(pd.DataFrame({label: labels})):
        warnings.warn(said, stacklevel=3)
    return labels


def unlabelled(labels: Any) -> Bool[np.ndarray, " cells"]:
    """Which labels are missing: None, NaN, NA or text without a letter."""
    values = pd.Series(np.asarray(labels, dtype=object))
    return (values.isna() | (values.astype(str).str.strip() == "")).to_numpy(dtype=bool)


def batch_sizes(cells: Cells, codes: Int[np.ndarray, " cells"], names: list[str]) -> pd.DataFrame:
    """A row per batch: `batch`, `cells`, and `library`, their median sum of counts."""
    library = np.where(np.array(cells.relative)[cells.source_of], np.nan, cells.library())
    median = pd.Series(library).groupby(codes).median().reindex(range(len(names)))
    sizes = np.bincount(codes, minlength=len(names))
    return pd.DataFrame({"batch": names, "cells": sizes, "library": median.to_numpy()})
