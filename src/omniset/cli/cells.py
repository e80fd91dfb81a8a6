"""`omniset cells`: inspect, fit, embed, annotate, perturb, explain, evaluate. A command is one function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from omniset.cells.options import AnnotatorOptions, EmbedderOptions, Reading
from omniset.cli.options import Saving, chosen, given, split, takes
from omniset.cli.parts import find, in_parts
from omniset.options import Computing
from omniset.runs.console import noted, say, say_notes

VECTORS = (".h5ad", ".npy", ".parquet", ".csv", ".tsv")  # files that embed writes


@takes(Reading)
@takes(Computing, "progress")
def inspect(files: list[str], batch_key: str | None = None, **options: Any) -> None:
    """Say what files of cells hold, and what fit would make of them.

    Example: omniset cells inspect kang.h5ad

    Args:
        files: An .h5ad file, a zarr store, 10x's .h5 file or folder, a pattern such as "runs/*.h5ad", or several.
        batch_key: Column of obs with the batch, as fit would be given it.
    """
    from omniset.cells import inspection

    with noted() as notes, _opened(files, options) as cells:
        scan = cells.scan(options["progress"])
        inspection.describe(cells, scan)
        inspection.plan(cells, batch_key, int(scan.seen.sum()))
        say_notes(notes())


@takes(Reading)
@takes(EmbedderOptions)
@takes(Saving)
def fit(
    files: list[str],
    batch_key: str | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    start_from: Path | None = None,
    resume: bool = False,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Learn vectors of cells from their counts, without labels.

    Example: omniset cells fit kang.h5ad --batch_key ind --out model

    Args:
        files: An .h5ad file, a zarr store, 10x's .h5 file or folder, a pattern such as "runs/*.h5ad", or several.
            Counts of more than 512 MB are read in blocks, each epoch anew.
        batch_key: Column of obs with the batch, such as the donor or the chemistry; "file": each file is a batch;
            "none": there is nothing to mix. null: each file, unless obs has a column batch, which is asked about.
        out: Folder for the model and its report.
        gene_vectors: Vectors of genes, such as ESM2's or gene2vec's, for architecture "seed": a .pt file, or text with
            a gene per line.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than the vectors, or than in
            start_from.
        start_from: Folder of a fitted model to learn on from: with its genes and its weights. Sizes must be the same.
            Not for architecture "seed".
        resume: Go on with an interrupted run in the same folder.
    """
    from omniset.cells import projection, report
    from omniset.cells.data import batch_codes, batch_sizes
    from omniset.cells.embedder import CellEmbedder
    from omniset.report.blocks import many
    from omniset.report.run import working_folder
    from omniset.runs import devices
    from omniset.runs.console import telling
    from omniset.runs.folders import unfinished
    from omniset.runs.processes import one_voice
    from omniset.tables.gene_vectors import read_gene_vectors

    embedder = CellEmbedder(**given(EmbedderOptions, options))
    with one_voice(1, 1):
        embedder.check_arguments()
        embedder.check_resumed(unfinished(out), resume)
        base = None if start_from is None else CellEmbedder.load(start_from)
        about: dict[str, Any] = {"seed": embedder.seed, "device": devices.find(embedder.device).type, "resume": resume}
        about |= {"makes": ["CellEmbedder"], "reads": [*files, gene_vectors, aliases, start_from]}
        with working_folder(out, "cells", "fit", **about) as folder, _opened(files, options) as cells:
            codes, names = batch_codes(cells, batch_key)
            vectors = None if gene_vectors is None else read_gene_vectors(gene_vectors)
            others = _aliases(aliases)
            batches = "1 batch" if len(names) == 1 else f"{len(names):,} batches"
            say(f"{many(len(cells), 'cell')}, {many(len(cells.genes), 'gene')}, {batches}")
            taught: dict[str, Any] = {"gene_vectors": vectors, "aliases": others, "start_from": base}
            embedder.fit(cells, batch_key=batch_key, **taught, folder=folder.path, resume=resume)
            if not folder.first:
                return
            folder.save(embedder, {"provenance": folder.provenance})
            telling(embedder.progress)("writing the report")
            cells = cells.on(embedder.genes_, others)  # as in the fit
            drawn = projection.draw(embedder, cells, codes, batch_key, embedder.seed)
            chosen = projection.central(drawn, embedder.seed) if embedder.architecture == "multiset" else []
            genes = embedder.explain(cells, chosen, top=report.GENES) if chosen else None
            run = folder.about(f"Model of {_title(files)}", embedder.notes_)
            folder.write(
                report.of_fit(embedder, drawn, genes, batch_sizes(cells, codes, names), run),
                histories={"": embedder.history_},
                files=["the model"],
                lines=[f"  {note}" for note in embedder.notes_],
            )


def _parts(arguments: dict[str, Any]) -> list[Path]:
    found = [path for given in arguments["files"] for path in find(given, (".h5ad", ".zarr", ".h5"), "files")]
    return [*dict.fromkeys(found)]


@in_parts("files", _parts, place=lambda path: [str(path)], endings=VECTORS)
@takes(Reading)
@takes(Computing, "device", "progress")
@takes(Saving)
def embed(
    files: list[str],
    model: Path = Path("model"),
    out: Path = Path("embedded.h5ad"),
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Write the vector of every cell.

    Example: omniset cells embed new.h5ad --model model --out embedded.h5ad

    Args:
        files: As for fit.
        model: Folder that fit wrote.
        out: Ends in .h5ad: one .h5ad file is copied as it is, with the vectors in obsm["X_omniset"]; of others, obs and
            the vectors are written, without counts. Vectors that the file itself has there are others in the copy. Or
            in .npy, .parquet, .csv or .tsv: the vectors alone, rows in the order of the cells.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.cells import outputs
    from omniset.report.blocks import many
    from omniset.runs.files import state_of

    embedder, kind = _load(model, options), outputs.kind_to_write(out)
    with noted() as notes, _opened(files, options, out) as cells:
        whole = outputs.copyable(cells) if kind == "h5ad" else None
        before = None if whole is None else state_of(whole)
        z, seconds = _vectors(embedder, cells, aliases)
        if whole is not None and state_of(whole) != before:
            raise ValueError(f"{whole} has changed since the command began: its copy would hold vectors of other cells")
        outputs.write_vectors(kind, out, cells, whole, z, embedder.provenance())
        say(f"{many(len(z), 'cell')} in {seconds:,.1f} s: {len(z) / max(seconds, 1e-9):,.0f} cells/s")
        what = {"h5ad": 'obsm["X_omniset"]', "npy": "an array"}.get(kind, "a table")
        if kind == "h5ad":
            what += ", all else as in the input" if whole else ", with obs and without counts"
        say_notes(notes())
        say(f"Written to {out}: {what}, {z.shape[0]:,} cells x {z.shape[1]}")


@takes(Reading)
@takes(AnnotatorOptions)
@takes(Saving)
def annotate(
    files: list[str],
    reference: str | None = None,
    label: str = "cell_type",
    batch_key: str | None = None,
    model: Path | None = None,
    annotator: Path | None = None,
    sample: str | None = None,
    out: Path = Path("annotation"),
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say of which type each cell is, or that it is of none that the reference has.

    Example: omniset cells annotate new.h5ad --reference atlas.h5ad --label cell_type --batch_key donor --out annotation

    Args:
        files: As for fit.
        reference: Cells with labels, to learn from: a file, or a pattern in quotes.
        label: Column of its obs with the types; cells without one shape the vectors only. Where new cells have this
            column too, the report compares.
        batch_key: As for fit, of the reference: batches are kept back to learn what to trust.
        model: Folder that fit wrote, for the vectors. null: learned from the reference, anew for each part kept back.
        annotator: Folder "annotator" of an earlier run, instead of a reference.
        sample: Column of the new cells' obs, such as the donor: the report has the types of each.
        out: Folder for calls.tsv, probabilities.parquet, the report, and the annotator.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the reference.
    """
    import pandas as pd

    from omniset.cells import report
    from omniset.cells.annotator import CellAnnotator
    from omniset.cells.data import column
    from omniset.report.run import working_folder
    from omniset.runs import devices
    from omniset.runs.console import telling
    from omniset.tables.files import TableWriter

    if (reference is None) == (annotator is None):
        raise ValueError("give either reference, to learn from, or annotator, which has learned")
    if annotator is not None and model is not None:
        raise ValueError("model comes with the annotator: leave it out")
    arguments = given(AnnotatorOptions, options)
    used = {name: arguments[name] for name in ("device", "progress")}
    fitted = None if annotator is None else CellAnnotator.load(annotator, **used)
    about: dict[str, Any] = {"seed": arguments["seed"], "device": devices.find(arguments["device"]).type}
    about["reads"] = [*files, reference, model, annotator, aliases]
    with working_folder(out, "cells", "annotation", **about) as folder, _opened(files, options) as cells:
        if sample is not None:
            column(cells, sample, "sample")
        others = _aliases(aliases)
        if fitted is None:
            with _opened([str(reference)], options) as known:
                cells.on(known.genes, others)  # that none is known is said before anything is learned
                fitted = CellAnnotator(**arguments)
                fitted.fit(known, label=label, batch_key=batch_key, embedder=model)
            fitted.write(folder.path / "annotator")
        annotation = fitted.annotate(cells, aliases=others)
        with TableWriter(folder.path / "calls.tsv") as writer:
            writer.write(annotation.table)
        frame = pd.DataFrame(annotation.probabilities, columns=annotation.types)
        frame.insert(0, "cell", annotation.table["cell"].to_numpy(), allow_duplicates=True)
        with TableWriter(folder.path / "probabilities.parquet") as writer:
            writer.write(frame)
        telling(fitted.progress)("writing the report")
        run = folder.about(f"Types of {_title(files)}", fitted.notes_)
        page = report.of_annotation(fitted, annotation, cells, label, sample, run)
        written = ["calls.tsv", "probabilities.parquet", *(["annotator/"] if annotator is None else [])]
        folder.write(page, files=written, lines=[*annotation.lines(), *(f"  {note}" for note in fitted.notes_)])


@takes(Reading)
@takes(Computing, "device", "progress")
@takes(Saving)
def explain_cells(
    files: list[str],
    cells: str | None = None,
    model: Path = Path("model"),
    out: Path | None = None,
    top: int = 20,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say which genes make the vectors of cells what they are.

    Example: omniset cells explain kang.h5ad --cells AAACATACATTTCC-1,AAACATACCAGAAA-1 --model model

    Args:
        files: As for fit.
        cells: Names of cells, separated by commas. null: six in the middle of clusters.
        model: Folder that fit wrote.
        out: Table with a row per cell and gene. Ends in .parquet, .csv or .tsv; the last two may be compressed.
        top: Genes per cell.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.cells import projection
    from omniset.tables.files import TableWriter, kind_of

    if top < 1:
        raise ValueError(f"top must be >= 1, got {top}")
    embedder, named = _load(model, options), split(cells)
    if out is not None:
        kind_of(out)
    with noted() as notes, _opened(files, options, out) as source:
        on = embedder.on(source, _aliases(aliases))
        if named is None:
            named = projection.central(projection.draw(embedder, on, None, None, embedder.seed), embedder.seed)
        explanation = embedder.explain(on, named, top=top)
        for name, rows in explanation.groupby("cell", sort=False):
            say(f"{name}\n  {'gene':20}{'count':>8}{'change':>10}")
            for row in rows.to_dict("records"):
                say(f"  {row['gene']:20}{row['count']:>8g}{row['change']:>+10.4f}")
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(explanation)
            say(f"Written to {out}: {len(explanation):,} genes of {explanation['cell'].nunique():,} cells")
        say_notes(notes())


@takes(Reading)
@takes(Computing, "progress")
@takes(Saving)
def perturb(
    files: list[str],
    condition: str | None = "condition",
    control: str = "control",
    label: str = "cell_type",
    donor: str | None = None,
    perturber: Path | None = None,
    out: Path = Path("perturbation"),
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say what a perturbation does to cells, and how well that is foretold of new donors and new types.

    Example: omniset cells perturb kang.h5ad --condition stim --control ctrl --label cell --donor ind --out perturbation

    Args:
        files: As for fit. All counts are held in memory.
        condition: Column of obs with the perturbation of each cell. null: none of the cells is treated, of which a
            perturber is to foretell all.
        control: Its value for untreated cells.
        label: Column of obs with the cell types.
        donor: Column of obs with the donor, or the sample. null: all cells are of one.
        perturber: Folder "perturber" of an earlier run: these untreated cells are foretold by what it has learned.
        out: Folder for the report, the scores and the perturber; and for foretold.h5ad, the untreated cells of types
            and donors that were not measured after a treatment, as if they had been treated. With a perturber: all
            untreated cells.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the perturber.
    """
    from omniset.cells import report
    from omniset.cells.evaluate_perturbation import evaluate_perturbation
    from omniset.cells.perturber import CellPerturber, Study
    from omniset.report import multiqc
    from omniset.report.blocks import many
    from omniset.report.run import working_folder
    from omniset.runs.files import replacing

    if perturber is None and condition is None:
        raise ValueError("condition must be given where there is no perturber")
    if perturber is None and aliases is not None:
        raise ValueError("aliases are for perturber, whose genes may be spelled otherwise")
    columns: dict[str, Any] = {"condition": condition, "control": control, "label": label, "donor": donor}
    arguments, written = given(Computing, options), ["foretold.h5ad"]
    measured: dict[str, Any] = {}
    lines: list[str] = []
    fitted = None if perturber is None else CellPerturber.load(perturber, **arguments)
    kind = "evaluation" if fitted is None else "prediction"
    about: dict[str, Any] = {"seed": 0, "device": "cpu", "reads": [*files, perturber, aliases]}
    with working_folder(out, "cells", kind, **about) as folder, _opened(files, options) as cells:
        if fitted is None:
            study = Study.of(cells, **columns)
            evaluation: Any = evaluate_perturbation(study, say if options["progress"] else lambda line: None)
            fitted, groups, table = CellPerturber(**arguments).fit_groups(study), study.lacking, None
            fitted.write(folder.path / "perturber", {"validation": evaluation.numbers()})
            evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
            notes = [*cells.notes, *fitted.notes_, *evaluation.notes]
            written = ["scores.csv.gz", "perturber/", *(written if groups else [])]
            foretold = f"{many(len(groups), 'population')} not measured after treatment are foretold"
            measured = {"metrics": evaluation.numbers(), "scores": multiqc.of_ours(evaluation.comparison)}
            lines = evaluation.comparison.lines()
        else:
            study = fitted.study(cells, columns, _aliases(aliases))
            groups, table = [*study.groups, *study.lacking], fitted.populations(study)
            evaluation, notes = None, [*cells.notes]
            foretold = f"{many(len(groups), 'population')} of untreated cells are foretold"
        if groups:
            notes.append(foretold)
            with replacing(folder.path / "foretold.h5ad") as temporary:
                fitted.treated(study, groups, cells.names).write_h5ad(temporary)
        lines += [f"  {note}" for note in notes]
        run = folder.about(f"Perturbation of {_title(files)}" + (", foretold" if perturber else ""), notes)
        folder.write(report.of_perturbation(fitted, evaluation, table, run), files=written, lines=lines, **measured)


@takes(Reading)
@takes(EmbedderOptions, "epochs", "seed", "device", "progress", as_at_fit=True)
@takes(Saving)
def evaluate(
    files: list[str],
    batch_key: str | None = None,
    label_key: str = "cell_type",
    model: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    resume: bool = False,
    seeds: int = 3,
    task: Literal["embed", "annotate"] = "embed",
    **options: Any,
) -> None:
    """Compare the vectors with those of other methods, by labels that none of them has seen; or annotation.

    Example: omniset cells evaluate kang.h5ad --batch_key ind --label_key cell --out evaluation

    Args:
        files: As for fit.
        batch_key: As for fit.
        label_key: Column of obs with the cell types: for comparison only, never learned from.
        model: Folder that fit wrote: what is compared is fitted anew, with its options and gene vectors. null: with
            the defaults of fit.
        out: Folder for the report, the metrics and the rows of every seed.
        methods: To compare with, separated by commas: pca, harmony, scvi; of annotation logistic, balanced, pca,
            symphony. null: all; those that are not installed are left out, and this is said.
        seeds: How often all of it is done, each time with another seed.
        resume: Keep what is done in the same folder.
        task: What is compared: embed, the vectors; annotate, the types of new cells.
    """
    from omniset.cells import report
    from omniset.cells.embedder import CellEmbedder
    from omniset.cells.evaluate import evaluate as compare
    from omniset.cells.evaluate_annotation import evaluate_annotation
    from omniset.report import multiqc
    from omniset.report.run import working_folder
    from omniset.runs import devices
    from omniset.trials.kept import Kept

    asked = chosen(EmbedderOptions, options)
    embedder = CellEmbedder(**asked) if model is None else CellEmbedder.load(model, **asked)
    embedder.check_arguments()
    about: dict[str, Any] = {"seed": embedder.seed, "device": devices.find(embedder.device).type, "resume": resume}
    about["reads"] = [*files, model]
    same: dict[str, Any] = {"batch_key": batch_key, "label_key": label_key, "methods": split(methods), "seeds": seeds}
    kept: dict[str, Any] = {"resume": resume, "say": say if embedder.progress else lambda line: None}
    with working_folder(out, "cells", "evaluation", **about) as folder:
        same |= {"model": embedder, **given(Reading, options)}
        found: Any
        advice: list[str] = []
        if task == "annotate":
            found = evaluate_annotation(files, kept=Kept(folder.path, **kept), **same)
            run = folder.about(f"Annotation of {_title(files)}, evaluated", found.notes)
            page = report.of_annotation_evaluation(found, run)
        else:
            found = compare(files, folder=folder.path, **kept, **same)
            advice = [found.advice()]
            page = report.of_evaluation(found, folder.about(f"Evaluation on {_title(files)}", found.notes))
        comparison = found.comparison
        comparison.write_rows(folder.path / "scores.csv.gz")
        folder.write(
            page,
            metrics=found.numbers(),
            scores=multiqc.of_ours(comparison),
            files=["rows/", "scores.csv.gz"],
            lines=[*comparison.lines(), *found.notes, *advice],
        )


# ---------------------------------------------------------------------- what several commands do


def _aliases(path: Path | None) -> dict[str, str] | None:
    from omniset.tables.genes import read_aliases

    return None if path is None else read_aliases(path)


@contextmanager
# Types of PyTorch's side are Any here: to show help, jsonargparse would import what names them.
def _opened(files: list[str], options: dict[str, Any], out: Path | None = None) -> Iterator[Any]:
    """The cells of the files, closed at the end. `out` may be none of them."""
    from omniset.cells.data import read_cells
    from omniset.runs.folders import new_file

    with closing(read_cells(files, **given(Reading, options))) as cells:
        if out is not None:
            new_file(out)
        yield cells


def _load(folder: Path, options: dict[str, Any]) -> Any:
    from omniset.cells.embedder import CellEmbedder

    embedder = CellEmbedder.load(folder, **given(Computing, options))
    embedder.check_arguments()
    return embedder


def _vectors(embedder: Any, cells: Any, aliases: Path | None) -> tuple[Any, float]:
    """Of all cells, and the seconds that it took. Says which genes are there."""
    import time

    known = embedder.on(cells, _aliases(aliases))
    for source, matching in zip(known.sources, known.match, strict=True):
        number = len(known.genes)
        say(f"{source.name}: {number - len(matching.missing):,} of the model's {number:,} genes; {matching.sentence()}")
    known.scan(embedder.progress)
    start = time.perf_counter()
    return embedder.transform(known), time.perf_counter() - start


def _title(files: list[str]) -> str:
    return Path(files[0]).name if len(files) == 1 else f"{Path(files[0]).name} and {len(files) - 1} more"
