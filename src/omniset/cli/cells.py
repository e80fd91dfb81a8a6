"""`omniset cells`: inspect, fit, embed, annotate, perturb, decode, explain, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from omniset.cells.options import AnnotatorOptions, EmbedderOptions, PerturberOptions, Reading
from omniset.cli.options import Saving, given, split, takes
from omniset.cli.parts import in_parts
from omniset.options import Computing

VECTORS = (".h5ad", ".npy", ".parquet", ".csv", ".tsv")  # files that embed writes


@takes(Reading)
@takes(Computing, "progress")
def inspect(
    files: list[str],
    batch_key: str | None = None,
    model: Path | None = None,
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say what files of cells hold, and what fit would make of them.

    Example: omniset cells inspect kang.h5ad

    Args:
        files: An .h5ad file, a zarr store, a 10x .h5 file, a pattern such as "runs/*.h5ad", or several of these.
        batch_key: Column of obs with the batch, as fit would be given it.
        model: Folder that fit wrote: says how many of its genes are here.
        gene_vectors: Vectors of genes: says how many of the genes here have one.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than there.
    """
    from omniset.cells import runs

    runs.inspect(files, given(Reading, options), options["progress"], batch_key, model, gene_vectors, aliases)


@takes(Reading)
@takes(EmbedderOptions)
@takes(Saving, "replace")
def fit(
    files: list[str],
    batch_key: str | None = None,
    label: str | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    start_from: Path | None = None,
    resume: bool = False,
    aliases: Path | None = None,
    explain_cells: str | None = None,
    **options: Any,
) -> None:
    """Learn vectors of cells from their counts, without labels, or with those that there are.

    Example: omniset cells fit kang.h5ad --batch_key ind --out model

    Args:
        files: An .h5ad file, a zarr store, a 10x .h5 file, a pattern such as "runs/*.h5ad", or several of these.
            Counts of more than 512 MB are read in blocks, each epoch anew.
        batch_key: Column of obs with the batch, such as the donor or the chemistry; "file": each file is a batch;
            "none": there is nothing to mix. null: each file, unless obs has a column batch, which is asked about.
        label: Column of obs with the types of some or all cells, which vectors are taught to tell apart too. Cells
            without one teach as ever. null: no labels are used.
        out: Folder for the model and its report.
        gene_vectors: Vectors of genes, such as ESM2's or gene2vec's, beside `gene_tokens`: a .pt,
            .safetensors, .npz or .npy file, or text with a gene per line.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than the vectors, or than in
            start_from.
        start_from: Folder of a fitted model to learn on from: with its genes and its weights. Sizes must be the same.
        explain_cells: Names of the cells whose genes the report explains, separated by commas. null: six in the middle
            of clusters.
        resume: Go on with an interrupted run in the same folder.
    """
    from omniset.cells import runs
    from omniset.runs.processes import one_voice

    named = split(explain_cells)
    with one_voice(1, 1):
        runs.fit(
            files,
            given(Reading, options),
            given(EmbedderOptions, options),
            batch_key,
            label,
            out,
            gene_vectors,
            aliases,
            start_from,
            named,
            resume,
        )


def _parts(arguments: dict[str, Any]) -> list[Path]:
    from omniset.runs import parts

    found = [path for given in arguments["files"] for path in parts.find(given, (".h5ad", ".zarr", ".h5"), "files")]
    return [*dict.fromkeys(found)]


@in_parts("files", _parts, place=lambda path: [str(path)], endings=VECTORS)
@takes(Reading)
@takes(Computing, "device", "progress")
@takes(Saving)
def embed(
    files: list[str],
    model: Path = Path("model"),
    out: Path = Path("embedded.h5ad"),
    overwrite: bool = False,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Write the vector of every cell.

    Example: omniset cells embed new.h5ad --model model --out embedded.h5ad

    Args:
        files: As for fit.
        model: Folder that fit wrote.
        out: Ends in .h5ad: one .h5ad file is copied as it is, with the vectors in obsm["X_omniset"]; of others, obs and
            the vectors are written, without counts. Or in .npy, .parquet, .csv or .tsv: the vectors alone, rows in the
            order of the cells.
        overwrite: Replace vectors that the file itself has in obsm["X_omniset"].
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.cells import runs

    runs.embed(files, given(Reading, options), given(Computing, options), aliases, model, out, overwrite)


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
    from omniset.cells import runs

    arguments = given(AnnotatorOptions, options)
    read = given(Reading, options)
    runs.annotate(files, read, arguments, reference, label, batch_key, model, annotator, sample, out, aliases)


@takes(Computing, "device", "progress")
@takes(Saving, "replace")
def vectors(
    files: list[str],
    protein_model: Path = Path("esm2"),
    out: Path = Path("gene_vectors.safetensors"),
    names: Literal["symbol", "id"] = "symbol",
    **options: Any,
) -> None:
    """Make vectors of genes from their proteins, by a protein language model such as ESM2.

    Example: omniset cells vectors proteins.fasta.gz --protein_model esm2 --out gene_vectors.safetensors

    Args:
        files: FASTA of proteins, as UniProt, Ensembl, GENCODE and NCBI have it; compressed too.
        protein_model: Folder with the model, as the package transformers saves it. It is not downloaded.
        out: Ends in .safetensors; fit takes it as gene_vectors.
        names: What a gene is called: its symbol, or the identifier of the database.
    """
    from omniset.cells import runs

    runs.make_vectors(files, given(Computing, options), protein_model, out, names)


@takes(Reading)
@takes(Computing, "device", "progress")
@takes(Saving)
def decode(
    files: list[str],
    model: Path = Path("model"),
    out: Path = Path("expected.h5ad"),
    genes: str | None = None,
    batch: str | None = None,
    library: float = 10000.0,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Write the counts that the model expects of each cell: without noise, and as one batch would show them.

    Example: omniset cells decode embedded.h5ad --model model --genes CD3E,MS4A1 --out expected.parquet

    Args:
        files: As for fit; or what embed wrote, with the same model.
        model: Folder that fit wrote.
        out: Ends in .h5ad, .npy, .parquet, .csv or .tsv: a row per cell, a column per gene.
        genes: Names of genes, separated by commas. null: all that the model knows.
        batch: As this batch, one of those learned from, would show them. null: mean over the batches.
        library: Sum of the counts of each cell.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.cells import runs

    runs.decode(
        files, given(Reading, options), given(Computing, options), aliases, model, out, split(genes), batch, library
    )


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
    from omniset.cells import runs

    runs.explain(files, given(Reading, options), given(Computing, options), aliases, split(cells), model, out, top)


@takes(Reading)
@takes(PerturberOptions)
@takes(Saving, "replace")
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
    from omniset.cells import runs

    columns = {"condition": condition, "control": control, "label": label, "donor": donor}
    read, arguments = given(Reading, options), given(PerturberOptions, options)
    runs.perturb(files, read, arguments, columns, perturber, aliases, out)


@takes(Reading)
@takes(EmbedderOptions)
@takes(Saving, "replace")
def evaluate(
    files: list[str],
    batch_key: str | None = None,
    label_key: str = "cell_type",
    out: Path = Path("evaluation"),
    methods: str | None = None,
    resume: bool = False,
    seeds: int = 3,
    inductive: bool = True,
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    task: Literal["embed", "annotate"] = "embed",
    **options: Any,
) -> None:
    """Compare the vectors with those of other methods, by labels that none of them has seen; or annotation.

    Example: omniset cells evaluate kang.h5ad --batch_key ind --label_key cell --out evaluation

    Args:
        files: As for fit.
        batch_key: As for fit.
        label_key: Column of obs with the cell types: for comparison only, never learned from.
        out: Folder for the report, the metrics and the rows of every seed.
        methods: To compare with, separated by commas: pca, harmony, scvi; of annotation logistic, balanced, pca,
            symphony, celltypist. null: all; those that are not installed are left out, and this is said.
        seeds: How often all of it is done, each time with another seed.
        inductive: Also leave one batch out at a time, and embed it with what the others taught. Annotation is always
            of batches left out.
        gene_vectors: As for fit.
        aliases: As for fit.
        resume: Keep what is done in the same folder.
        task: What is compared: embed, the vectors; annotate, the types of new cells.
    """
    from omniset.cells import runs

    if task == "annotate":
        if gene_vectors is not None or aliases is not None:
            raise ValueError("gene_vectors and aliases are for task=embed")
        read, arguments = given(Reading, options), given(EmbedderOptions, options)
        runs.evaluate_annotations(files, read, arguments, batch_key, label_key, out, split(methods), seeds, resume)
        return
    runs.evaluate(
        files,
        given(Reading, options),
        given(EmbedderOptions, options),
        batch_key,
        label_key,
        out,
        split(methods),
        seeds,
        inductive,
        gene_vectors,
        aliases,
        resume,
    )
