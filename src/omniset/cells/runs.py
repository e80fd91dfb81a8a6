"""`omniset cells`: the same verbs on files, with their reports."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.cells import annotation_report, perturb_runs, report
from omniset.cells.annotating import AnnotationEvaluation, evaluate_annotation
from omniset.cells.annotator import CellAnnotator
from omniset.cells.batches import batch_codes
from omniset.cells.data import Cells, read_cells
from omniset.cells.embedder import KEY, CellEmbedder
from omniset.cells.evaluate import Evaluation
from omniset.cells.evaluate import evaluate as run_evaluation
from omniset.cells.inspection import MEMORY, describe, match_model, plan
from omniset.cells.perturber import CellPerturber
from omniset.cells.perturbing import PerturbationEvaluation
from omniset.cells.proteins import ProteinModel, protein_vectors, read_proteins, write_gene_vectors
from omniset.cells.vectors import (
    TOGETHER,
    copy_with,
    copyable,
    embedding_in,
    kind_to_write,
    read_embedded,
    refuse_existing,
    write_counts,
    write_table,
    write_without_counts,
)
from omniset.report import multiqc
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.console import noted, say, say_notes, telling
from omniset.runs.files import replacing
from omniset.runs.folders import new_file, unfinished
from omniset.runs.progress import Progress
from omniset.runs.verbs import Folder, working_folder
from omniset.tables.files import TableWriter, kind_of, listed
from omniset.tables.gene_vectors import read_gene_vectors
from omniset.tables.genes import match, read_aliases
from omniset.tables.matrices import needed


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
            describe(cells, number, scan.library, scan.genes)
        say("together" if len(cells.sources) > 1 else "what fit would make of it")
        for note in cells.notes:
            say(f"  {note}")
        if embedder is not None:
            match_model(cells, embedder, model, others)
        if gene_vectors is not None:
            matching = read_gene_vectors(gene_vectors).of(cells.genes, others)[1]
            say(f"  {gene_vectors}: {matching.sentence()}")
        plan(cells, batch_key, int((scan.cells > 0).sum()))
        say_notes(notes())


def fit(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    batch_key: str | None,
    label: str | None,
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
    embedder.check_resumed(unfinished(out), resume)
    base = None if start_from is None else CellEmbedder.load(start_from)
    about: dict[str, Any] = {"seed": embedder.seed, "device": devices.find(embedder.device).type, "resume": resume}
    about |= {"makes": ["CellEmbedder"], "reads": [*files, gene_vectors, aliases, start_from]}
    with working_folder(out, "cells", "fit", **about) as folder, _opened(files, read) as cells:
        codes, names = batch_codes(cells, batch_key, label)
        _known_cells(cells, explained)
        vectors = None if gene_vectors is None else read_gene_vectors(gene_vectors)
        others = _aliases(aliases)
        batches = "1 batch" if len(names) == 1 else f"{len(names):,} batches"
        say(f"{many(len(cells), 'cell')}, {many(len(cells.genes), 'gene')}, {batches}")
        given: dict[str, Any] = {"gene_vectors": vectors, "aliases": others, "start_from": base}
        embedder.fit(cells, batch_key=batch_key, label=label, **given, folder=folder.path, resume=resume)
        if not folder.first:
            return embedder
        folder.save(embedder, {"provenance": folder.provenance})
        telling(embedder.progress)("writing the report")
        cells = cells.on(embedder.genes_, others)  # as in the fit
        drawn = report.draw(embedder, cells, codes, batch_key, embedder.seed)
        chosen = report.central(drawn, embedder.seed) if explained is None else explained
        genes = embedder.explain(cells, chosen, top=report.GENES) if chosen else None
        run = folder.about(f"Model of {_title(files)}", embedder.notes_)
        folder.write(
            report.of_fit(embedder, drawn, genes, _batches(cells, codes, names), run),
            histories={"": embedder.history_},
            files=["the model"],
            lines=[f"  {note}" for note in embedder.notes_],
        )
        return embedder


def _batches(cells: Cells, codes: Int[np.ndarray, " cells"], names: list[str]) -> pd.DataFrame:
    library = np.where(np.array(cells.relative)[cells.source_of], np.nan, cells.library())
    median = pd.Series(library).groupby(codes).median().reindex(range(len(names)))
    return pd.DataFrame(
        {"batch": names, "cells": np.bincount(codes, minlength=len(names)), "library": median.to_numpy()}
    )


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
    embedder, kind = _load(model, overrides), kind_to_write(out)
    with noted() as notes, _opened(files, read, out) as cells:
        whole = copyable(cells) if kind == "h5ad" else None
        if whole is not None and not overwrite:
            refuse_existing(whole)
        z, seconds = _vectors(embedder, cells, aliases)
        if whole is not None:
            copy_with(whole, out, z, embedder.provenance(KEY))
        elif kind == "h5ad":
            write_without_counts(out, cells, z, embedder.provenance(KEY))
        elif kind == "npy":
            with replacing(out) as temporary, open(temporary, "wb") as file:
                np.save(file, z)
        else:
            columns = [f"z{i}" for i in range(1, z.shape[1] + 1)]
            write_table(out, cells.names, columns, (z[s : s + TOGETHER] for s in range(0, len(z), TOGETHER)))
        say(f"{many(len(z), 'cell')} in {seconds:,.1f} s: {len(z) / max(seconds, 1e-9):,.0f} cells/s")
        what = {"h5ad": f'obsm["{KEY}"]', "npy": "an array"}.get(kind, "a table")
        if kind == "h5ad":
            what += ", all else as in the input" if whole else ", with obs and without counts"
        say_notes(notes())
        say(f"Written to {out}: {what}, {z.shape[0]:,} cells x {z.shape[1]}")


def _vectors(
    embedder: CellEmbedder, cells: Cells, aliases: Path | None
) -> tuple[Float[np.ndarray, "cells dim"], float]:
    """Of all cells, and the seconds that it took. Says which genes are there."""
    known = embedder.on(cells, _aliases(aliases))
    for source, matching in zip(known.sources, known.match, strict=True):
        number = len(known.genes)
        say(f"{source.name}: {number - len(matching.missing):,} of the model's {number:,} genes; {matching.sentence()}")
    known.scan(embedder.progress)
    start = time.perf_counter()
    return embedder.transform(known), time.perf_counter() - start


def annotate(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    reference: str | None,
    label: str,
    batch_key: str | None,
    model: Path | None,
    annotator: Path | None,
    sample: str | None,
    out: Path,
    aliases: Path | None,
) -> CellAnnotator:
    """See `omniset.cli.cells.annotate`."""
    if (reference is None) == (annotator is None):
        raise ValueError("give either reference, to learn from, or annotator, which has learned")
    if annotator is not None and model is not None:
        raise ValueError("model comes with the annotator: leave it out")
    used = {name: arguments[name] for name in ("device", "progress")}
    fitted = None if annotator is None else CellAnnotator.load(annotator, **used)
    about: dict[str, Any] = {"seed": arguments["seed"], "device": devices.find(arguments["device"]).type}
    about["reads"] = [*files, reference, model, annotator, aliases]
    with working_folder(out, "cells", "annotation", **about) as folder, _opened(files, read) as cells:
        if sample is not None and sample not in cells.obs:
            columns = listed([str(name) for name in cells.obs.columns]) or "none"
            raise ValueError(f"sample must be a column of obs, there is no {sample!r}; there are: {columns}")
        if fitted is None:
            with _opened([str(reference)], read) as known:
                cells.on(known.genes, _aliases(aliases))  # that none is known is said before anything is learned
                fitted = CellAnnotator(**arguments)
                fitted.fit(known, label=label, batch_key=batch_key, embedder=model)
            fitted.write(folder.path / "annotator")
        others = _aliases(aliases)
        annotation = fitted.annotate(cells, aliases=others)
        with TableWriter(folder.path / "calls.tsv") as writer:
            writer.write(annotation.table)
        frame = pd.DataFrame(annotation.probabilities, columns=annotation.types)
        frame.insert(0, "cell", annotation.table["cell"].to_numpy(), allow_duplicates=True)
        with TableWriter(folder.path / "probabilities.parquet") as writer:
            writer.write(frame)
        telling(fitted.progress)("writing the report")
        run = folder.about(f"Types of {_title(files)}", fitted.notes_)
        page = annotation_report.of_annotation(
            fitted, annotation, cells.on(fitted.embedder_.genes_, others), label, sample, run
        )
        written = ["calls.tsv", "probabilities.parquet", *(["annotator/"] if annotator is None else [])]
        folder.write(page, files=written, lines=annotation_report.lines(fitted, annotation))
        return fitted


def make_vectors(
    files: list[str], computing: dict[str, Any], protein_model: Path, out: Path, names: Literal["symbol", "id"]
) -> None:
    """See `omniset.cli.cells.vectors`."""
    if out.suffix.lower() != ".safetensors":
        raise ValueError(f"{out}: the name must end in .safetensors")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} is no directory: make it before writing {out.name} to it")
    new_file(out)
    genes = read_proteins(files, names)
    model = ProteinModel(protein_model, computing["device"])
    write_gene_vectors(out, protein_vectors(genes, model, computing["progress"]))
    proteins = sum(map(len, genes.values()))
    say(f"Written to {out}: vectors of {many(len(genes), 'gene')} x {model.width}, of {many(proteins, 'protein')}")


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
    embedder, kind = _load(model, overrides), kind_to_write(out)
    if batch is not None and batch not in embedder.batches_:
        raise ValueError(f"batch must be one of those learned from, {listed(embedder.batches_)}; got {batch!r}")
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

            write_counts(kind, out, obs, names, blocks(), embedder.provenance(KEY))
        say_notes(notes())
        say(f"Written to {out}: expected counts, {len(z):,} cells x {len(names):,} genes")


def _chosen(genes: Sequence[str] | None, known: list[str]) -> list[int]:
    if genes is None:
        return list(range(len(known)))
    if not genes:
        raise ValueError("genes must name at least one gene")
    matching = match(genes, known)
    if matching.unmatched:
        raise ValueError(
            f"genes: the model does not know {matching.unmatched[0]!r}; it has {len(known):,}, such as {known[0]!r}"
        )
    if matching.duplicates:
        raise ValueError(f"genes: {matching.duplicates[0]!r} is named more than once")
    return matching.positions.tolist()


def _embedded(
    files: list[str], read: dict[str, Any], embedder: CellEmbedder, aliases: Path | None, model: Path, out: Path
) -> tuple[Float[np.ndarray, "cells dim"], pd.DataFrame]:
    """Vectors as this model wrote them to the file, or made from its counts; and obs."""
    h5py, path = needed("h5py"), Path(files[0]).expanduser()
    if len(files) == 1 and path.is_file() and h5py.is_hdf5(path):
        identity, counts = embedding_in(path)
        if identity is not None and (identity == embedder.identity() or not counts):
            new_file(out, path)
            z, obs = read_embedded(path, embedder, model)
            say(f'{path}: vectors are those of obsm["{KEY}"]')
            return z, obs
        if identity is not None:
            warnings.warn(
                f'{path}: obsm["{KEY}"] is of model {identity}, {model} is model {embedder.identity()}: cells are '
                "embedded anew from their counts",
                stacklevel=2,
            )
    with _opened(files, read, out) as cells:
        z, _ = _vectors(embedder, cells, aliases)
        obs = cells.obs
        obs.index = pd.Index(cells.names, dtype=object)
        return z, obs


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
        on = embedder.on(cells, _aliases(aliases))
        if named is None:
            drawn = report.draw(embedder, on, np.zeros(len(on), dtype=np.int64), None, embedder.seed, columns=0)
            named = report.central(drawn, embedder.seed)
        explanation = embedder.explain(on, named, top=top)
        for name, rows in explanation.groupby("cell", sort=False):
            say(f"{name}\n  {'gene':20}{'count':>8}{'change':>10}{'attribution':>14}")
            for row in rows.to_dict("records"):
                score = "-" if np.isnan(row["attribution"]) else f"{row['attribution']:.3f}"
                say(f"  {row['gene']:20}{row['count']:>8g}{row['change']:>+10.4f}{score:>14}")
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(explanation)
            say(f"Written to {out}: {len(explanation):,} genes of {explanation['cell'].nunique():,} cells")
        say_notes(notes())
        return explanation


def _known_cells(cells: Cells, named: Sequence[str] | None) -> None:
    """Before any work is spent on them."""
    if named is None:
        return
    if not named:
        raise ValueError("cells must name at least one cell")
    known = set(cells.names)
    if lacking := [name for name in named if name not in known]:
        raise ValueError(f"cell {lacking[0]!r} is not there; names are such as {str(cells.names[0])!r}")


def evaluate(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    batch_key: str | None,
    label_key: str,
    out: Path,
    methods: Sequence[str] | None,
    seeds: int,
    inductive: bool,
    gene_vectors: Path | None,
    aliases: Path | None,
    resume: bool,
) -> Evaluation:
    """See `omniset.cli.cells.evaluate`."""
    about: dict[str, Any] = {"seed": arguments["seed"], "device": devices.find(arguments["device"]).type}
    with working_folder(out, "cells", "evaluation", **about, reads=files, resume=resume) as folder:
        evaluation = run_evaluation(
            files,
            batch_key=batch_key,
            label_key=label_key,
            methods=methods,
            seeds=seeds,
            inductive=inductive,
            gene_vectors=gene_vectors,
            aliases=_aliases(aliases),
            folder=folder.path,
            resume=resume,
            say=say if arguments["progress"] else lambda line: None,
            **read,
            **arguments,
        )
        run = folder.about(f"Evaluation on {_title(files)}", evaluation.notes)
        _write_evaluation(folder, evaluation, report.of_evaluation(evaluation, run), [evaluation.advice()])
        return evaluation


def perturb(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    columns: dict[str, Any],
    perturber: Path | None,
    aliases: Path | None,
    out: Path,
) -> PerturbationEvaluation | None:
    """See `omniset.cli.cells.perturb`."""
    if perturber is None and columns["condition"] is None:
        raise ValueError("condition must be given where there is no perturber")
    if perturber is None and aliases is not None:
        raise ValueError("aliases are for perturber, whose genes may be spelled otherwise")
    used = {name: arguments[name] for name in ("device", "progress")}
    fitted = None if perturber is None else CellPerturber.load(perturber, **used)
    kind = "evaluation" if fitted is None else "prediction"
    about: dict[str, Any] = {"seed": arguments["seed"], "device": "cpu", "reads": [*files, perturber, aliases]}
    with working_folder(out, "cells", kind, **about) as folder, _opened(files, read) as cells:
        if fitted is None:
            return perturb_runs.perturb(folder, cells, arguments, columns, _title(files))
        return perturb_runs.foretell(folder, cells, fitted, columns, _aliases(aliases), _title(files))


def evaluate_annotations(
    files: list[str],
    read: dict[str, Any],
    arguments: dict[str, Any],
    batch_key: str | None,
    label_key: str,
    out: Path,
    methods: Sequence[str] | None,
    seeds: int,
    resume: bool,
) -> AnnotationEvaluation:
    """See `omniset.cli.cells.evaluate`."""
    about: dict[str, Any] = {"seed": arguments["seed"], "device": devices.find(arguments["device"]).type}
    with working_folder(out, "cells", "evaluation", **about, reads=files, resume=resume) as folder:
        evaluation = evaluate_annotation(
            files,
            batch_key=batch_key,
            label_key=label_key,
            methods=methods,
            seeds=seeds,
            folder=folder.path,
            resume=resume,
            say=say if arguments["progress"] else lambda line: None,
            **read,
            **arguments,
        )
        run = folder.about(f"Annotation of {_title(files)}, evaluated", evaluation.notes)
        _write_evaluation(folder, evaluation, annotation_report.of_evaluation(evaluation, run))
        return evaluation


# ---------------------------------------------------------------------- parts


def _write_evaluation(
    folder: Folder,
    evaluation: Evaluation | AnnotationEvaluation,
    page: tuple[Any, dict[str, Any]],
    advice: Sequence[str] = (),
) -> None:
    """The rows of all methods, and the report of them."""
    comparison = evaluation.comparison
    comparison.write_rows(folder.path / "scores.csv.gz")
    folder.write(
        page,
        metrics=evaluation.numbers(),
        scores=multiqc.of_ours(comparison),
        files=["rows/", "scores.csv.gz"],
        lines=[*comparison.lines(), *evaluation.notes, *advice],
    )


def _aliases(path: Path | None) -> dict[str, str] | None:
    return None if path is None else read_aliases(path)


@contextmanager
def _opened(files: list[str], read: dict[str, Any], out: Path | None = None) -> Iterator[Cells]:
    """The cells of the files, closed at the end. `out` may be none of them."""
    with closing(read_cells(files, memory=MEMORY, **read)) as cells:
        if out is not None:
            new_file(out, *(Path(source.name).expanduser() for source in cells.sources))
        yield cells


def _load(folder: Path, overrides: dict[str, Any]) -> CellEmbedder:
    embedder = CellEmbedder.load(folder).set_params(**overrides)
    embedder.check_arguments()
    return embedder


def _title(files: list[str]) -> str:
    return Path(files[0]).name if len(files) == 1 else f"{Path(files[0]).name} and {len(files) - 1} more"
