"""`omniset fit`, `predict`, `embed`, `evaluate`, `explain`: sets in tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, given, split, takes
from omniset.cli.parts import in_parts
from omniset.estimators.options import SetOptions
from omniset.options import option, options

TABLES = (".parquet", ".csv", ".tsv")
SETS = (*TABLES, ".h5ad", ".zarr", ".fcs", ".biom", ".h5", ".hdf5", ".npy", ".pt")  # that a folder of parts may hold


@options
class Sharing:
    """Processes that use a model together."""

    devices: int = option(
        1,
        "Processes on this machine that share the sets: GPUs, or parts of the CPU (at most 4 per processor).",
        group="computing",
        least=1,
    )
    num_nodes: int = option(
        1,
        "Machines that share the sets: start the command on each with torchrun or srun, on the same files.",
        group="computing",
        least=1,
    )
    strategy: Literal["auto", "ddp"] = option(
        "auto", '"ddp", and "auto": each process holds the model.', group="computing"
    )


def _parts(arguments: dict[str, Any]) -> list[Path]:
    from omniset.runs import parts

    return parts.find(arguments["sets"], SETS, "sets")


def _each_set_once(arguments: dict[str, Any]) -> Any:
    def join(made: Mapping[str, Path], out: Path) -> list[str]:
        from omniset.tables import joined

        joined.require_each_once(made, "set")
        return []

    return join


of_many = in_parts("sets", _parts, endings=TABLES, join=_each_set_once)


@takes(SetOptions, but=["level", "gradient"])
@takes(Saving, "replace")
def fit(
    sets: Path,
    target: Path | None = None,
    out: Path = Path("run"),
    features: str | None = None,
    ignore: str | None = None,
    resume: bool = False,
    set_column: str = "set",
    use_rep: str | None = None,
    cofactor: float | None = None,
    compensate: bool | None = None,
    vectors: Path | None = None,
    target_columns: str | None = None,
    group: str | None = None,
    task: Literal["auto", "classification", "regression", "survival"] = "auto",
    time_column: str = "time",
    event_column: str = "event",
    level: Literal["auto", "set", "element"] = "auto",
    unused_labels: Literal["error", "ignore"] = "error",
    **options: Any,
) -> None:
    """Learn to predict a label, or a number, of sets (or of each of their elements) from a table.

    Example: omniset fit cells.parquet --target diagnoses.csv --out run

    Args:
        sets: Table with one row per element: column "set" (which set it is of; rows of a set together), columns of
            numbers or text that are features, and optionally "multiplicity" (how often the element occurs) and
            "element" (its name).
            Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz). Or cells in an .h5ad file;
            .fcs files; .h5, .npy or .pt files of features, one a set; a table of counts (.biom): see "Tables" in the
            documentation.
        target: Table of what is to be predicted: column "set" and a column per target, such as "label". With a column
            "element" too, labels are those of elements.
        out: Folder for the model, its report and metrics.
        target_columns: Names of the targets, separated by commas. Default: all other columns of the target file.
            Without a target file: columns of the table itself.
        features: Names of the features, separated by commas. Default: all other columns of the table, of which none may
            look like a row index, or like a misspelt "set", "multiplicity" or "element".
        ignore: Names of columns of the table that are no features, separated by commas.
        group: Column of the target file (or of the table) that says which sets belong together, such as the patient:
            they are never split between training and validation.
        task: Whether labels are classes, numbers, or times until an event. "auto": survival where the target file has
            the columns set, time, event, and no other but the group's; numbers where all labels of all targets are
            numbers, and some have fractions or more than 20 different values.
        time_column: Of survival: column with the time of the event, or until which it had not happened.
        event_column: Of survival: column with 1 where the event was seen at that time, else 0.
        level: Whether sets or elements are labelled. "auto": elements where the target file has a column "element", or
            the targets are columns of the table.
        unused_labels: What to do with labels whose set is not in the table.
        resume: Go on with an interrupted run in the same folder.
        set_column: Name of the column that says which set a row is of, in the table (or in obs of an .h5ad) and, where
            it is there, in the target file.
        use_rep: What the features of cells in an .h5ad are: "X" as it is, "counts" (the layer of that name, else X;
            logarithms of counts per 10,000), or a key of obsm, such as "X_pca". null: X_omniset, else X_pca, else X.
        cofactor: What stains in .fcs files are divided by before their arcsinh is taken; 0: they stay as they are.
            null: 5 for a mass cytometer, else 150.
        compensate: Whether the spillover that a .fcs file says ($SPILLOVER or SPILL) is taken out of its stains. null:
            yes.
        vectors: Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of
            counts.
    """
    from omniset.estimators import runs

    runs.fit(
        sets,
        target,
        out,
        columns=split(target_columns),
        features=split(features),
        ignore=split(ignore) or [],
        group=group,
        task=task,
        survival=(time_column, event_column),
        level=level,
        unused=unused_labels,
        arguments=given(SetOptions, options),
        resume=resume,
        reading={
            "set_column": set_column,
            "use_rep": use_rep,
            "cofactor": cofactor,
            "compensate": compensate,
            "vectors": vectors,
        },
    )


@of_many
@takes(SetOptions, "shard_size", "batch_size", "max_elements", "device", "progress", as_at_fit=True)
@takes(Sharing)
@takes(Saving)
def predict(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("predictions.csv"),
    set_column: str | None = None,
    vectors: Path | None = None,
    **options: Any,
) -> None:
    """Predict the sets of a table, and write as they are read.

    Example: omniset predict new.parquet --model run --out predictions.csv

    Args:
        sets: Table as for fit, with the same features; their order does not matter.
        model: Folder that fit wrote.
        out: Table of predictions, a row per set (or element): the label and the probability of each class, or the
            number. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        set_column: Name of the column that says which set a row is of. null: as at fit.
        vectors: Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of
            counts.
    """
    from omniset.estimators import runs

    overrides = given(SetOptions, options)
    overrides |= given(Sharing, options)
    runs.predict(sets, model, out, overrides, {"set_column": set_column, "vectors": vectors})


@of_many
@takes(SetOptions, "shard_size", "batch_size", "max_elements", "device", "progress", as_at_fit=True)
@takes(Saving)
def embed(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("vectors.csv"),
    set_column: str | None = None,
    vectors: Path | None = None,
    **options: Any,
) -> None:
    """Write each set of a table as a vector, which other tools can group, draw or learn from.

    Example: omniset embed new.parquet --model run --out vectors.parquet

    Args:
        sets: Table as for fit, with the same features; their order does not matter.
        model: Folder that fit wrote, from labels of sets.
        out: Table of vectors, a row per set: its name, and what each network of the model makes of it before it
            predicts. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        set_column: Name of the column that says which set a row is of. null: as at fit.
        vectors: Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of
            counts.
    """
    from omniset.estimators import runs

    runs.embed(sets, model, out, given(SetOptions, options), {"set_column": set_column, "vectors": vectors})


@takes(SetOptions, "shard_size", "batch_size", "max_elements", "device", "progress", as_at_fit=True)
@takes(Saving, "replace")
def evaluate(
    sets: Path,
    target: Path | None = None,
    model: Path = Path("run"),
    out: Path = Path("evaluation"),
    group: str | None = None,
    unused_labels: Literal["error", "ignore"] = "error",
    set_column: str | None = None,
    vectors: Path | None = None,
    importance: bool = False,
    **options: Any,
) -> None:
    """Compare a model's predictions with known labels, best on sets that it has never seen.

    Example: omniset evaluate held_out.parquet --target labels.csv --model run --out evaluation

    Args:
        sets: Table as for fit.
        target: Table of the true labels, as for fit. null: they are columns of the table.
        model: Folder that fit wrote.
        out: Folder for the report and the metrics.
        group: Column of the target file (or of the table) that says which sets belong together, such as the patient:
            intervals are then over patients.
        unused_labels: What to do with labels whose set is not in the table.
        set_column: Name of the column that says which set a row is of. null: as at fit.
        vectors: Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of
            counts.
        importance: Measure how much each feature matters, by permutation, into features.csv and the report. It takes as
            many predictions as five times the features; of much data as the features.
    """
    from omniset.estimators import runs

    overrides = given(SetOptions, options)
    reading = {"set_column": set_column, "vectors": vectors}
    runs.evaluate(sets, target, model, out, group, unused_labels, overrides, reading, importance)


# jsonargparse looks a function up by name in the package, and `omniset.explain` is a module that loads PyTorch.
@takes(SetOptions, "max_elements", "device", "progress", as_at_fit=True)
@takes(Saving)
def explain_sets(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("explanations.csv"),
    only: str | None = None,
    label: str | None = None,
    steps: int = 20,
    method: Literal["auto", "attribution", "contrast", "attention", "removal"] = "auto",
    per: Literal["element", "copy"] = "element",
    set_column: str | None = None,
    vectors: Path | None = None,
    **options: Any,
) -> None:
    """Score which elements of each set drove its prediction.

    Example: omniset explain new.parquet --model run --only patient_7 --out scores.csv

    Args:
        sets: Table as for fit.
        model: Folder that fit wrote.
        out: Table of scores: set, element, multiplicity, score from 0 to 1 (the set's strongest element), which label
            the score explains, method and per. Elements with coordinates are drawn in a folder beside it. Ends in
            .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        only: Names of sets, separated by commas. null: all.
        label: Explain this label rather than the predicted one.
        steps: Of the integral of attribution: more are more exact, and slower.
        method: "attribution" (self-attention attribution, of networks); "contrast": the same against equal attention,
            by what distinguishes an element from the others of its set; "attention": how much attention an element
            gets, whatever is predicted; "removal": how much the prediction falls where the element is left out, of any
            model. "auto": attribution where a network attends to elements, else removal.
        per: Whether a score is that of all copies of an element together, or of one of them.
        set_column: Name of the column that says which set a row is of. null: as at fit.
        vectors: Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of
            counts.
    """
    from omniset.estimators import runs

    overrides = given(SetOptions, options)
    reading = {"set_column": set_column, "vectors": vectors}
    runs.explain(sets, model, out, split(only), label, steps, method, per, overrides, reading)
