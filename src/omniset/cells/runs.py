"""`omniset cells`: the same verbs on files, with their reports."""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.cells import report
from omniset.cells.data import Cells, read_cells
from omniset.cells.embedder import KEY, LEAST, STEPS, CellEmbedder, batch_codes
from omniset.cells.evaluate import MINE, Evaluation
from omniset.cells.evaluate import evaluate as run_evaluation
from omniset.cells.formats import needed
from omniset.console import noted, own_command, refuse_own_input, run_folder, say, say_notes
from omniset.files import provenance, replacing, write_json
from omniset.gene_vectors import read_gene_vectors
from omniset.genes import match, read_aliases
from omniset.progress import Progress
from omniset.report import multiqc
from omniset.report import write as write_report
from omniset.report.blocks import many
from omniset.tables.files import TableWriter, _listed, kind_of

MEMORY = 512 << 20  # bytes of counts that are kept; of more, blocks are read each epoch anew
TOGETHER = 1024  # cells written at a time
LOW = 0.5  # confidence below which a label has not even half of the neighbours
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN = 12  # columns
SECONDS_PER_STEP, SECONDS_PER_STEP_AND_GENE = 0.03, 2e-5  # with the default options, on two cores of a server


# ---------------------------------------------------------------------- inspect


def inspect(
    files: list[str],
    read: dict[str, Any],
    progress: bool,
    batch_key: str | None,
    model: Path | None,
    gene_vectors: Path | None,
    aliases: Path | None,
) -> None:
    """See `omniset.cli.cells.inspect`."""
    others = _aliases(aliases)
    embedder = None if model is None else CellEmbedder.load(model)
    with noted() as notes, _opened(files, read) as cells:
        scan = cells.scan(progress)
        for number in range(len(cells.sources)):
            _describe(cells, number, scan.library, scan.genes)
        say("together" if len(cells.sources) > 1 else "what fit would make of it")
        for note in cells.notes:
            say(f"  {note}")
        if embedder is not None:
            _match_model(cells, embedder, model, others)
        if gene_vectors is not None:
            found = read_gene_vectors(gene_vectors).of(cells.genes, others)[1]
            say(f"  {gene_vectors}: {found.sentence()}")
        _plan(cells, batch_key, int((scan.cells > 0).sum()))
        say_notes(notes())


def _describe(
    cells: Cells, number: int, library: Float[np.ndarray, " cells"], genes: Int[np.ndarray, " cells"]
) -> None:
    source, own = cells.sources[number], cells.source_of == number
    rows, columns = source.shape
    say(f"{source.name}")
    stored = f"{'sparse' if source.sparse else 'dense'}, {source.dtype}, {source.nbytes / 1e6:,.0f} MB to read"
    filled = genes[own].sum() / (rows * columns)
    say(f"  {rows:,} cells, {columns:,} genes; {stored}; {filled:.1%} of the counts are not 0")
    if cells.relative[number]:
        say("  counts per cell: not known")
    else:
        say(f"  counts per cell: {_quantiles(library[own])}")
    say(f"  genes per cell: {_quantiles(genes[own])}")
    if empty := int((genes[own] == 0).sum()):
        first = source.names[int((genes[own] == 0).argmax())]
        say(f"  {many(empty, 'cell')} without counts, such as {first!r}")
    twice = source.names[source.names.duplicated()]
    if len(twice):
        say(f"  {len(twice):,} names of cells occur again, such as {twice[0]!r}")
    if same := cells.match[number].duplicates:
        say(f"  {len(same):,} names of genes occur more than once and are summed, such as {same[0]!r}")
    few = report.few_values(source.obs)
    keys = [f"{name} ({values}: {_values(source.obs[name])})" for name, values in list(few.items())[:SHOWN]]
    say(f"  obs columns with few values, for --batch_key or labels: {'; '.join(keys) or 'none'}")
    rest = [str(name) for name in source.obs.columns if str(name) not in few]
    if rest:
        say(f"  other obs columns: {_listed(rest)}")
    choices = ["X" if choice is None else choice for choice in source.choices]
    say(f"  matrices, for --layer: {', '.join(choices)}; read is {source.layer or 'X'}")


def _quantiles(values: Any) -> str:
    found = np.quantile(values, QUANTILES)
    return ", ".join(f"{q:.0%} {v:,.0f}" for q, v in zip(QUANTILES, found, strict=True)).replace("50%", "median")


def _values(column: pd.Series) -> str:
    return report.sample_of([str(value) for value in column.value_counts().index], 5)


def _aliases(path: Path | None) -> dict[str, str] | None:
    return None if path is None else read_aliases(path)


def _match_model(cells: Cells, embedder: CellEmbedder, model: Path | None, aliases: dict[str, str] | None) -> None:
    try:
        on = cells.on(embedder.genes_, aliases)
    except ValueError as error:
        say(f"  {model}: {error}")
        return
    for source, found in zip(on.sources, on.match, strict=True):
        lacking = (
            f"; {len(found.missing):,} of the model's {len(embedder.genes_):,} are not here" if found.missing else ""
        )
        say(f"  {model} on {source.name}: {found.sentence()}{lacking}")


def _plan(cells: Cells, batch_key: str | None, genes: int) -> None:
    if len(cells) < LEAST:
        say(f"  nothing: there are {len(cells)} cells to learn from, at least {LEAST} are needed")
        return
    codes, names = batch_codes(cells, batch_key)
    numbers, usual = np.bincount(codes, minlength=len(names)), CellEmbedder().get_params()
    size, most = usual["batch_size"], usual["max_genes"] or genes
    epochs = max(1, -(-STEPS * size // len(cells)))
    steps = epochs * max(1, len(cells) // size)
    varying = f"; the {most:,} that vary most are learned" if genes > most else ""
    say(f"  fit would learn from {len(cells):,} cells and {genes:,} genes that are seen in them{varying}")
    if len(names) > 1:
        least = int(numbers.argmin())
        smallest = f"the smallest, {names[least]}, has {numbers[least]:,} cells"
        say(f"  {len(names):,} batches by {batch_key or 'file'}; {smallest}")
    else:
        say(f"  1 batch by {batch_key or 'file'}: there is nothing to mix")
    fits = sum(source.nbytes for source in cells.sources) <= MEMORY
    kept = "kept in memory" if fits else "read in blocks, each epoch anew"
    say(f"  {epochs:,} epochs of {size} cells a step, {steps:,} steps in all; counts are {kept}")
    seconds = steps * (SECONDS_PER_STEP + SECONDS_PER_STEP_AND_GENE * min(genes, most))
    say(f"  a rough guess on two CPU cores: {max(1, round(seconds / 60))} min")


# ---------------------------------------------------------------------- fit


def fit(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    batch_key: str | None,
    out: Path,
    gene_vectors: Path | None,
    aliases: Path | None,
    start_from: Path | None,
    explained: Sequence[str] | None,
    resume: bool,
) -> CellEmbedder:
    """See `omniset.cli.cells.fit`."""
    embedder = CellEmbedder(**arguments)
    embedder.check_arguments()
    base = None if start_from is None else CellEmbedder.load(start_from)
    with run_folder(out), noted() as notes, _opened(files, read) as cells:
        codes, names = batch_codes(cells, batch_key)
        _known_cells(cells, explained)
        vectors = None if gene_vectors is None else read_gene_vectors(gene_vectors)
        others = _aliases(aliases)
        if (out / "config.json").exists() and not resume:
            say(f"{out} holds a model already: it is replaced when this one is done")
        batches = "1 batch" if len(names) == 1 else f"{len(names):,} batches"
        say(f"{many(len(cells), 'cell')}, {many(len(cells.genes), 'gene')}, {batches}")
        given: dict[str, Any] = {"gene_vectors": vectors, "aliases": others, "start_from": base}
        embedder.fit(cells, batch_key=batch_key, **given, folder=out, resume=resume)
        for note in embedder.notes_:
            say(f"  {note}")
        about = provenance(embedder.seed)
        embedder.save(out, {"provenance": about})
        if embedder.progress:
            print("writing the report", file=sys.stderr)
        drawn = report.draw(embedder, cells, codes, batch_key, embedder.seed)
        chosen = report.central(drawn, embedder.seed) if explained is None else explained
        page, numbers = report.of_fit(
            embedder,
            drawn,
            embedder.explain(cells, chosen, top=report.GENES) if chosen else None,
            _batches(cells, codes, names),
            title=f"Model of {_title(files)}",
            command=own_command(),
            notes=notes(),
            provenance=about,
        )
        write_report(out, page, numbers)
        multiqc.write(out, out.resolve().name, {}, embedder.history_)
        say_notes(notes())
        say(f"Written to {out}: the model, report.html, report.json")
        return embedder


def _batches(cells: Cells, codes: Int[np.ndarray, " cells"], names: list[str]) -> pd.DataFrame:
    library = np.where(np.array(cells.relative)[cells.source_of], np.nan, cells.library())
    median = pd.Series(library).groupby(codes).median().reindex(range(len(names)))
    return pd.DataFrame(
        {"batch": names, "cells": np.bincount(codes, minlength=len(names)), "library": median.to_numpy()}
    )


# ---------------------------------------------------------------------- embed


def embed(
    files: list[str],
    read: dict[str, Any],
    overrides: dict[str, Any],
    aliases: Path | None,
    model: Path,
    out: Path,
    overwrite: bool,
) -> None:
    """See `omniset.cli.cells.embed`."""
    embedder, kind = _load(model, overrides), _kind(out)
    with noted() as notes, _opened(files, read, out) as cells:
        whole = _single(cells) if kind == "h5ad" else None
        if whole is not None and not overwrite:
            _refuse_existing(whole)
        z, seconds = _vectors(embedder, cells, aliases)
        if whole is not None:
            _copy_with(whole, out, z, embedder.provenance(KEY))
        elif kind == "h5ad":
            _write_without_counts(out, cells, z, embedder.provenance(KEY))
        elif kind == "npy":
            with replacing(out) as temporary, open(temporary, "wb") as file:
                np.save(file, z)
        else:
            columns = [f"z{i}" for i in range(1, z.shape[1] + 1)]
            _write_table(out, cells.names, columns, (z[s : s + TOGETHER] for s in range(0, len(z), TOGETHER)))
        say(f"{many(len(z), 'cell')} in {seconds:,.1f} s: {len(z) / max(seconds, 1e-9):,.0f} cells/s")
        what = {"h5ad": f'obsm["{KEY}"]', "npy": "an array"}.get(kind, "a table")
        if kind == "h5ad":
            what += ", all else as in the input" if whole else ", with obs and without counts"
        say_notes(notes())
        say(f"Written to {out}: {what}, {z.shape[0]:,} cells x {z.shape[1]}")


def _vectors(
    embedder: CellEmbedder, cells: Cells, aliases: Path | None
) -> tuple[Float[np.ndarray, "cells dim"], float]:
    """Of all cells, and the seconds that it took. Says which genes are known, and which cells nothing is known of."""
    others = _aliases(aliases)
    for source, found in zip(cells.sources, cells.on(embedder.genes_, others).match, strict=True):
        say(f"{source.name}: {found.sentence()}")
        if found.case > found.matched / 2:
            warnings.warn(
                f"{source.name}: {found.case:,} of {found.matched:,} genes are matched by case only, as those of "
                "another species would be",
                stacklevel=3,
            )
        share = len(found.missing) / len(embedder.genes_)
        if share > 0.1:
            warnings.warn(
                f"{source.name}: {share:.0%} of the model's {len(embedder.genes_):,} genes are not in it, such as "
                f"{found.missing[0]!r}: they count as not seen",
                stacklevel=3,
            )
    start = time.perf_counter()
    library = cells.scan(embedder.progress).library
    if not library.all():
        empty = int((library == 0).sum())
        warnings.warn(
            f"{many(empty, 'cell')} without counts, such as {cells.names[int(np.argmin(library))]!r}: their vector is "
            "that of an empty cell",
            stacklevel=3,
        )
    z = embedder._embed(cells, None, others)
    return z, time.perf_counter() - start


def _single(cells: Cells) -> Path | None:
    """The only source, where that is an .h5ad file that can be copied and added to."""
    if len(cells.sources) > 1:
        return None
    path, h5py = Path(cells.sources[0].name).expanduser(), needed("h5py")
    if not path.is_file() or not h5py.is_hdf5(path):
        return None
    with h5py.File(path, "r") as root:
        if "obs" not in root or not all(isinstance(root.get(k, root), h5py.Group) for k in ("obs", "obsm", "uns")):
            return None
    return path


def _refuse_existing(path: Path) -> None:
    with needed("h5py").File(path, "r") as root:
        for group, name in (("obsm", KEY), ("uns", "omniset")):
            if group in root and name in root[group]:
                raise ValueError(f'{path} has {group}["{name}"] already: --overwrite true replaces it in the copy')


def _copy_with(path: Path, out: Path, z: Float[np.ndarray, "cells dim"], about: dict[str, Any]) -> None:
    """The file as it is, to the byte, with these vectors added."""
    write_elem = needed("anndata.io").write_elem
    with replacing(out) as temporary:
        shutil.copyfile(path, temporary)
        try:
            with needed("h5py").File(temporary, "r+") as root:
                for group in ("obsm", "uns"):
                    if group not in root:
                        write_elem(root, group, {})
                write_elem(root["obsm"], KEY, z)
                write_elem(root["uns"], "omniset", about)
        except RuntimeError as error:
            raise ValueError(f"{out} cannot be written: {' '.join(str(error).split())[:200]}") from error


def _write_without_counts(out: Path, cells: Cells, z: Float[np.ndarray, "cells dim"], about: dict[str, Any]) -> None:
    with replacing(out) as temporary:
        _write_frame(temporary, out, cells.obs, cells.names, [], {"omniset": about}, {KEY: z})


def _write_frame(
    path: Path, out: Path, obs: pd.DataFrame, names: np.ndarray, genes: list[str], uns: dict[str, Any], obsm: Any = None
) -> None:
    """An .h5ad without counts. anndata writes no text as pandas 3 keeps it: indexes and categories are objects."""
    anndata = needed("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names that occur twice: told when they were read
        var = pd.DataFrame(index=pd.Index(genes, dtype=object))
        made = anndata.AnnData(obs=_plain(obs, names), var=var, obsm=obsm, uns=uns)
        try:
            made.write_h5ad(path)
        except OSError:
            raise
        except Exception as error:  # anndata's own are of no common kind
            raise ValueError(f"{out} cannot be written: {' '.join(str(error).split())[:200]}") from error


def _plain(obs: pd.DataFrame, names: np.ndarray) -> pd.DataFrame:
    """With columns that every anndata writes: numbers as they are, all else as categories of plain text."""
    columns = {}
    for name in obs.columns:
        values = obs[name]
        if not isinstance(values.dtype, np.dtype) or values.dtype.kind not in "biuf":
            text = values.astype(str).to_numpy(dtype=object, copy=True)
            text[values.isna().to_numpy()] = None
            known = np.array(sorted({value for value in text if value is not None}), dtype=object)
            values = pd.Series(pd.Categorical(text, categories=pd.Index(known, dtype=object)))
        columns[str(name)] = values.array
    return pd.DataFrame(columns, index=pd.Index(names.astype(object), dtype=object))


def _write_table(out: Path, names: np.ndarray, columns: Sequence[str], blocks: Iterator[np.ndarray]) -> None:
    start = 0
    with TableWriter(out) as writer:
        for block in blocks:
            frame = pd.DataFrame(block, columns=list(columns))
            frame.insert(0, "cell", names[start : start + len(block)], allow_duplicates=True)
            writer.write(frame)
            start += len(block)


# ---------------------------------------------------------------------- query


def query(
    files: list[str],
    read: dict[str, Any],
    overrides: dict[str, Any],
    aliases: Path | None,
    reference: Path,
    label: str | None,
    model: Path,
    out: Path,
    k: int,
) -> pd.DataFrame:
    """See `omniset.cli.cells.query`."""
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    embedder = _load(model, overrides)
    kind_of(out)
    refuse_own_input(out, reference)
    with noted() as notes:
        vectors, obs = read_embedded(reference, embedder, model)
        labels = None
        if label is not None:
            if label not in obs:
                columns = _listed([str(name) for name in obs.columns]) or "none"
                raise ValueError(f"label: {reference} has no column {label!r} of obs; there are: {columns}")
            known = obs[label].notna().to_numpy()
            if not known.all():
                lacking = int((~known).sum())
                warnings.warn(
                    f"{reference}: {many(lacking, 'cell')} {'has' if lacking == 1 else 'have'} no {label} and "
                    f"{'is' if lacking == 1 else 'are'} left out, such as {obs.index[~known][0]!r}",
                    stacklevel=2,
                )
                vectors, obs = vectors[known], obs[known]
            labels = obs[label].astype(str).tolist()
        if k > len(vectors):
            warnings.warn(f"k={k}, but the reference has {len(vectors):,} cells: all of them vote", stacklevel=2)
        with _opened(files, read, out) as cells:
            z, _ = _vectors(embedder, cells, aliases)
            found = embedder.query(z, vectors, labels, k=k).frame(cells.names.tolist(), obs.index.tolist())
        with TableWriter(out) as writer:
            writer.write(found)
        _say_calls(found)
        say_notes(notes())
        say(f"Written to {out}: {len(found):,} cells")
        return found


def read_embedded(
    path: Path, embedder: CellEmbedder, model: Path
) -> tuple[Float[np.ndarray, "cells dim"], pd.DataFrame]:
    """Vectors and obs of what `embed` wrote with this model.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: No .h5ad file, without vectors, or with those of another model.
    """
    h5py = needed("h5py")
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    if not path.is_file() or not h5py.is_hdf5(path):
        raise ValueError(f"{path} is no .h5ad file: write one with omniset cells embed")
    with h5py.File(path, "r") as root:
        found = _embedded_by(root)
        if found is None:
            raise ValueError(f'{path} has no obsm["{KEY}"] of ours: write one with omniset cells embed')
        if found != embedder.identity():
            raise ValueError(
                f"{path} was embedded by model {found}, {model} is model {embedder.identity()}: their vectors have "
                "nothing in common; embed it again with this model"
            )
        read_elem = needed("anndata.io").read_elem
        vectors, obs = read_elem(root[f"obsm/{KEY}"]), read_elem(root["obs"])
    obs.index = obs.index.astype(str)
    return np.asarray(vectors, dtype=np.float32), obs


def _embedded_by(root: Any) -> str | None:
    """Identity of the model whose vectors an open .h5ad file has."""
    if f"obsm/{KEY}" not in root or "uns/omniset/model" not in root:
        return None
    return str(needed("anndata.io").read_elem(root["uns/omniset/model"]))


def _say_calls(found: pd.DataFrame) -> None:
    far = int(found["far"].sum())
    if "label" not in found:
        say(f"{len(found):,} cells, {far:,} of them far from the reference")
        return
    found = found.assign(low=found["confidence"] < LOW)
    by = found.groupby("label").agg(cells=("cell", "size"), low=("low", "sum"), far=("far", "sum"))
    by = by.sort_values("cells", ascending=False, kind="stable")
    width = max(12, *(len(str(name)) for name in by.index)) if len(by) else 12
    say(f"{'label':{width}}{'cells':>10}{'confidence < .5':>18}{'far':>10}")
    for name, row in by.iterrows():
        say(f"{name!s:{width}}{row['cells']:>10,}{row['low']:>18,}{row['far']:>10,}")
    say(f"{'all':{width}}{len(found):>10,}{int(found['low'].sum()):>18,}{far:>10,}")


# ---------------------------------------------------------------------- decode


def decode(
    files: list[str],
    read: dict[str, Any],
    overrides: dict[str, Any],
    aliases: Path | None,
    model: Path,
    out: Path,
    genes: Sequence[str] | None,
    batch: str | None,
    library: float,
) -> None:
    """See `omniset.cli.cells.decode`."""
    if not 0 < library < np.inf:
        raise ValueError(f"library must be > 0, got {library:g}")
    embedder, kind = _load(model, overrides), _kind(out)
    if batch is not None and batch not in embedder.batches_:
        raise ValueError(f"batch must be one of those learned from, {_listed(embedder.batches_)}; got {batch!r}")
    columns = _chosen(genes, embedder.genes_)
    names = [embedder.genes_[i] for i in columns]
    with noted() as notes:
        z, obs = _embedded(files, read, embedder, aliases, model, out)
        with Progress("decoding", len(z), embedder.progress, unit="cells") as progress:

            def blocks() -> Iterator[np.ndarray]:
                for start in range(0, len(z), TOGETHER):
                    some = z[start : start + TOGETHER]
                    yield embedder.decode(some, batch=batch, library=float(library))[:, columns]
                    progress.at(start + len(some))

            if kind == "table":
                _write_table(out, obs.index.to_numpy(dtype=object), names, blocks())
            else:
                write = _write_npy if kind == "npy" else _write_h5ad
                write(out, obs, names, blocks(), embedder.provenance(KEY))
        say_notes(notes())
        say(f"Written to {out}: expected counts, {len(z):,} cells x {len(names):,} genes")


def _chosen(genes: Sequence[str] | None, known: list[str]) -> list[int]:
    if genes is None:
        return list(range(len(known)))
    if not genes:
        raise ValueError("genes must name at least one gene")
    found = match(genes, known)
    if found.unmatched:
        raise ValueError(
            f"genes: the model does not know {found.unmatched[0]!r}; it has {len(known):,}, such as {known[0]!r}"
        )
    if found.duplicates:
        raise ValueError(f"genes: {found.duplicates[0]!r} is named more than once")
    return found.positions.tolist()


def _embedded(
    files: list[str], read: dict[str, Any], embedder: CellEmbedder, aliases: Path | None, model: Path, out: Path
) -> tuple[Float[np.ndarray, "cells dim"], pd.DataFrame]:
    """Vectors as this model wrote them to the file, or made from its counts; and obs."""
    h5py, path = needed("h5py"), Path(files[0]).expanduser()
    if len(files) == 1 and path.is_file() and h5py.is_hdf5(path):
        with h5py.File(path, "r") as root:
            found = _embedded_by(root)
            counts = "X" in root and root["X"].attrs.get("encoding-type") != "null"
        if found is not None and (found == embedder.identity() or not counts):
            refuse_own_input(out, path)
            z, obs = read_embedded(path, embedder, model)
            say(f'{path}: vectors are those of obsm["{KEY}"]')
            return z, obs
        if found is not None:
            warnings.warn(
                f'{path}: obsm["{KEY}"] is of model {found}, {model} is model {embedder.identity()}: cells are '
                "embedded anew from their counts",
                stacklevel=2,
            )
    with _opened(files, read, out) as cells:
        z, _ = _vectors(embedder, cells, aliases)
        obs = cells.obs
        obs.index = pd.Index(cells.names, dtype=object)
        return z, obs


def _write_npy(out: Path, obs: pd.DataFrame, genes: list[str], blocks: Iterator[np.ndarray], about: Any) -> None:
    with replacing(out) as temporary:
        shape = (len(obs), len(genes))
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        _fill(array, blocks)
        array.flush()


def _write_h5ad(
    out: Path, obs: pd.DataFrame, genes: list[str], blocks: Iterator[np.ndarray], about: dict[str, Any]
) -> None:
    with replacing(out) as temporary:
        _write_frame(temporary, out, obs, obs.index.to_numpy(dtype=object), genes, {"omniset": about})
        with needed("h5py").File(temporary, "r+") as root:
            if "X" in root:
                del root["X"]
            x = root.create_dataset("X", (len(obs), len(genes)), np.float32)
            x.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
            _fill(x, blocks)


def _fill(array: Any, blocks: Iterator[np.ndarray]) -> None:
    start = 0
    for block in blocks:
        array[start : start + len(block)] = block
        start += len(block)


# ---------------------------------------------------------------------- explain


def explain(
    files: list[str],
    read: dict[str, Any],
    overrides: dict[str, Any],
    aliases: Path | None,
    named: Sequence[str] | None,
    model: Path,
    out: Path | None,
    top: int,
) -> pd.DataFrame:
    """See `omniset.cli.cells.explain_cells`."""
    if top < 1:
        raise ValueError(f"top must be >= 1, got {top}")
    embedder = _load(model, overrides)
    if out is not None:
        kind_of(out)
    with noted() as notes, _opened(files, read, out) as cells:
        _known_cells(cells, named)
        others = _aliases(aliases)
        on = cells.on(embedder.genes_, others)
        if named is None:
            drawn = report.draw(embedder, on, np.zeros(len(on), dtype=np.int64), None, embedder.seed, columns=0)
            named = report.central(drawn, embedder.seed)
        found = embedder.explain(on, named, top=top)
        for name, rows in found.groupby("cell", sort=False):
            say(f"{name}\n  {'gene':20}{'count':>8}{'change':>10}{'attribution':>14}")
            for row in rows.to_dict("records"):
                score = "-" if np.isnan(row["attribution"]) else f"{row['attribution']:.3f}"
                say(f"  {row['gene']:20}{row['count']:>8g}{row['change']:>+10.4f}{score:>14}")
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(found)
            say(f"Written to {out}: {len(found):,} genes of {found['cell'].nunique():,} cells")
        say_notes(notes())
        return found


def _known_cells(cells: Cells, named: Sequence[str] | None) -> None:
    """Before any work is spent on them."""
    if named is None:
        return
    if not named:
        raise ValueError("cells must name at least one cell")
    known = set(cells.names)
    if lacking := [name for name in named if name not in known]:
        raise ValueError(f"cell {lacking[0]!r} is not there; names are such as {str(cells.names[0])!r}")


# ---------------------------------------------------------------------- evaluate


def evaluate(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    batch_key: str | None,
    label_key: str,
    out: Path,
    baselines: Sequence[str],
    seeds: int,
    inductive: bool,
    gene_vectors: Path | None,
    aliases: Path | None,
    resume: bool,
) -> Evaluation:
    """See `omniset.cli.cells.evaluate`."""
    if out.is_dir() and (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out), noted() as notes:
        talk: Callable[[str], None] = say if arguments["progress"] else lambda line: None
        evaluation = run_evaluation(
            files,
            batch_key=batch_key,
            label_key=label_key,
            baselines=baselines,
            seeds=seeds,
            inductive=inductive,
            gene_vectors=gene_vectors,
            aliases=_aliases(aliases),
            folder=out,
            resume=resume,
            say=talk,
            **read,
            **arguments,
        )
        talk("writing the report")
        page, numbers = report.of_evaluation(
            evaluation,
            title=f"Evaluation on {_title(files)}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(arguments["seed"]),
        )
        write_json(out / "metrics.json", evaluation.numbers())
        write_report(out, page, numbers)
        _print_evaluation(evaluation)
        say_notes(notes())
        say(f"\nWritten to {out}: metrics.json, report.html, report.json, rows/")
        return evaluation


def _print_evaluation(evaluation: Evaluation) -> None:
    table, left = evaluation.table(), evaluation.inductive_table()
    say(f"\nMean over {evaluation.transductive['seed'].nunique()} seeds; 1 is best. Inductive: on batches left out\n")
    say(f"  {'':20}{'total':>8}{'bio':>8}{'batch':>8}{'kNN F1':>10}{'linear F1':>11}{'fit, s':>9}")
    scores = left.to_dict("index")
    for method, row in table.iterrows():
        other = scores.get(method, {})
        values = [row["total"], row["bio"], row["batch"], other.get("knn_f1", np.nan), other.get("linear_f1", np.nan)]
        texts = [f"{v:.3f}" if v == v else "-" for v in values] + [f"{row['fit_seconds']:,.1f}"]
        mark = "*" if method == MINE else " "
        widths = (8, 8, 8, 10, 11, 9)
        say(f"{mark} {method:20}" + "".join(f"{text:>{w}}" for text, w in zip(texts, widths, strict=True)))
    for name, why in evaluation.not_run.items():
        say(f"  {name} was not run: {why}")
    say("\n* ours. What it must hold:\n")
    for gate in evaluation.gates():
        tie = " (a tie: within .02)" if gate["tie"] else ""
        holds = "holds" if gate["holds"] else "FAILS"
        say(f"  {holds}  {gate['gate']}: {gate['value']:,.4g}, asked {gate['bound']}{tie}")
    say(f"\n{evaluation.advice()}")


# ---------------------------------------------------------------------- parts


@contextmanager
def _opened(files: list[str], read: dict[str, Any], out: Path | None = None) -> Iterator[Cells]:
    """The cells of the files, closed at the end. `out` may be none of them."""
    cells = read_cells(files, memory=MEMORY, **read)
    try:
        if out is not None:
            for source in cells.sources:
                refuse_own_input(out, Path(source.name).expanduser())
        yield cells
    finally:
        cells.close()


def _load(folder: Path, overrides: dict[str, Any]) -> CellEmbedder:
    embedder = CellEmbedder.load(folder)
    embedder.set_params(**overrides)
    embedder.check_arguments()
    return embedder


def _kind(out: Path) -> str:
    """What is to be written, "h5ad", "npy" or "table", before any work is spent.

    Raises:
        ValueError: Another ending, or a folder.
        FileNotFoundError: The folder that it is to be in is not there.
    """
    if out.is_dir():
        raise ValueError(f"out must be a file, {out} is a directory")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} is no directory: make it before writing {out.name} to it")
    if out.suffix.lower() in (".h5ad", ".npy"):
        return out.suffix.lower()[1:]
    try:
        kind_of(out)
    except ValueError as error:
        raise ValueError(
            f"{out}: the name must end in .h5ad, .npy, .parquet, .csv or .tsv (the last two also with .gz, .bz2, .xz)"
        ) from error
    return "table"


def _title(files: list[str]) -> str:
    return Path(files[0]).name if len(files) == 1 else f"{Path(files[0]).name} and {len(files) - 1} more"
