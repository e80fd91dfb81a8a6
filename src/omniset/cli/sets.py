"""`omniset fit`, `predict`, `evaluate`, `explain`: sets in tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

Device = Literal["auto", "cpu", "cuda", "mps"]
Strategy = Literal["auto", "ddp", "fsdp"]


def fit(
    sets: Path,
    target: Path | None = None,
    out: Path = Path("run"),
    target_columns: str | None = None,
    features: str | None = None,
    group: str | None = None,
    task: Literal["auto", "classification", "regression"] = "auto",
    level: Literal["auto", "set", "element"] = "auto",
    unused_labels: Literal["error", "ignore"] = "error",
    encoder: str = "ust",
    dim: int = 64,
    depth: int = 3,
    num_heads: int = 4,
    num_inducing: int = 8,
    encoder_options: dict[str, Any] | None = None,
    epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-2,
    validation_fraction: float = 0.1,
    patience: int | None = 10,
    class_weight: Literal["balanced"] | None = None,
    shard_size: int | None = None,
    shards: Literal["merged", "independent"] = "merged",
    gradient: Literal["exact", "first-shard", "first-shard-literal", "unbiased"] = "exact",
    store: str = "device",
    max_elements: int = 32768,
    seed: int = 0,
    device: Device = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: Strategy = "auto",
    log: Literal["csv", "tensorboard"] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> None:
    """Learn to predict a label, or a number, of sets (or of each of their elements) from a table.

    Example: omniset fit cells.parquet --target diagnoses.csv --out run

    Args:
        sets: Table with one row per element: column "set" (which set it is of; rows of a set together), one column of
            numbers per feature, and optionally "multiplicity" (how often the element occurs) and "element" (its name).
            Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        target: Table of what is to be predicted: column "set" and a column per target, such as "label". With a column
            "element" too, labels are those of elements.
        out: Folder for the model, its report and metrics.
        target_columns: Names of the targets, separated by commas. Default: all other columns of the target file.
            Without a target file: columns of the table itself.
        features: Names of the features, separated by commas. Default: all other columns of the table.
        group: Column of the target file (or of the table) that says which sets belong together, such as the patient:
            they are never split between training and validation.
        task: Whether labels are classes or numbers. "auto": numbers where all labels of all targets are
            numbers, and some have fractions or more than 20 different values.
        level: Whether sets or elements are labelled. "auto": elements where the target file has a column "element", or
            the targets are columns of the table.
        unused_labels: What to do with labels whose set is not in the table.
        encoder: Kind of model: ust, set-transformer-isab, set-transformer-sab, deep-sets, umbc, sse, fspool or strxl.
        dim: Width of the model: more learns more, and slower.
        depth: Layers of the model.
        num_heads: Attention heads; must divide dim.
        num_inducing: Inducing points, through which the elements of a set see each other.
        encoder_options: Further settings of the encoder, such as '{"dropout": 0.1}'.
        epochs: How often, at most, each set is learned from.
        batch_size: Sets per step, of all processes together.
        learning_rate: Largest step size.
        weight_decay: Pull of the weights towards zero.
        validation_fraction: Share of the sets (or groups) kept back to watch the training.
        patience: Stop after so many epochs without progress on the sets kept back. null: never.
        class_weight: "balanced": rare classes count as much as common ones.
        shard_size: Compute on pieces of so many elements of each set. null: whole sets. The results are the same.
        shards: "independent": take pieces for sets of their own, as models without our merging must.
        gradient: How to learn from pieces; "exact" is as from whole sets.
        store: Where intermediate results of pieces wait: device, cpu, disk (or disk:FOLDER) or recompute.
        max_elements: Elements computed on at a time: lower it if memory runs out. Larger sets are streamed.
        seed: The same seed gives the same numbers.
        device: Where to compute.
        devices: Processes that train together on this machine: GPUs, or parts of the CPU (at most 4 per processor).
            They take the same steps as one alone.
        num_nodes: Machines that train together: start the command on each with torchrun or srun, on the same files.
        strategy: "ddp": each process holds the model. "fsdp": they share it out, on GPUs. "auto": ddp.
        log: Write learning curves for other tools too.
        resume: Go on with an interrupted run in the same folder.
        progress: Show progress.
    """
    from omniset import runs

    given = dict(locals())
    others = (
        "sets",
        "target",
        "out",
        "target_columns",
        "features",
        "group",
        "task",
        "level",
        "unused_labels",
        "resume",
        "runs",
    )
    try:
        runs.fit(
            sets,
            target,
            out,
            columns=_split(target_columns),
            features=_split(features),
            group=group,
            task=task,
            level=level,
            unused=unused_labels,
            arguments={name: value for name, value in given.items() if name not in others},
            resume=resume,
        )
    except KeyboardInterrupt:
        if (out / "checkpoints").is_dir():
            print(f"\nWhole epochs, if any, are kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def predict(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("predictions.csv"),
    shard_size: int | None = None,
    batch_size: int | None = None,
    max_elements: int | None = None,
    device: Device = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: Literal["auto", "ddp"] = "auto",
    progress: bool = True,
) -> None:
    """Predict the sets of a table, and write as they are read.

    Example: omniset predict new.parquet --model run --out predictions.csv

    Args:
        sets: Table as for fit, with the same features; their order does not matter.
        model: Folder that fit wrote.
        out: Table of predictions, a row per set (or element): the label and the probability of each class, or the
            number. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        shard_size: Compute on pieces of so many elements of each set. null: as at fit.
        batch_size: Sets computed on at a time. null: as at fit.
        max_elements: Elements computed on at a time. null: as at fit.
        device: Where to compute.
        devices: Processes on this machine that share the sets: GPUs, or parts of the CPU (at most 4 per processor).
        num_nodes: Machines that share the sets: start the command on each with torchrun or srun, on the same files.
        strategy: "ddp", and "auto": each process holds the model.
        progress: Show progress.
    """
    from omniset import runs

    overrides = _overrides(shard_size, batch_size, max_elements, device, progress)
    overrides |= {"devices": devices, "num_nodes": num_nodes, "strategy": strategy}
    runs.predict(sets, model, out, overrides)


def evaluate(
    sets: Path,
    target: Path | None = None,
    model: Path = Path("run"),
    out: Path = Path("evaluation"),
    group: str | None = None,
    unused_labels: Literal["error", "ignore"] = "error",
    shard_size: int | None = None,
    batch_size: int | None = None,
    max_elements: int | None = None,
    device: Device = "auto",
    progress: bool = True,
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
        shard_size: Compute on pieces of so many elements of each set. null: as at fit.
        batch_size: Sets computed on at a time. null: as at fit.
        max_elements: Elements computed on at a time. null: as at fit.
        device: Where to compute.
        progress: Show progress.
    """
    from omniset import runs

    overrides = _overrides(shard_size, batch_size, max_elements, device, progress)
    runs.evaluate(sets, target, model, out, group, unused_labels, overrides)


# jsonargparse looks a function up by name in the package, and `omniset.explain` is a module that loads PyTorch.
def explain_sets(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("explanations.csv"),
    only: str | None = None,
    label: str | None = None,
    steps: int = 20,
    method: Literal["attribution", "attention"] = "attribution",
    per: Literal["element", "copy"] = "element",
    max_elements: int | None = None,
    device: Device = "auto",
    progress: bool = True,
) -> None:
    """Score which elements of each set drove its prediction.

    Example: omniset explain new.parquet --model run --only patient_7 --out scores.csv

    Args:
        sets: Table as for fit.
        model: Folder that fit wrote.
        out: Table of scores: set, element, multiplicity, score from 0 to 1 (the set's strongest element), which label
            the score explains, method and per. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz,
            .bz2, .xz).
        only: Names of sets, separated by commas. null: all.
        label: Explain this label rather than the predicted one.
        steps: Of the integral: more are more exact, and slower.
        method: "attribution" (self-attention attribution), or "attention": how much attention an element gets,
            whatever is predicted.
        per: Whether a score is that of all copies of an element together, or of one of them.
        max_elements: Larger sets are read in shards of so many. null: as at fit.
        device: Where to compute.
        progress: Show progress.
    """
    from omniset import runs

    overrides = _overrides(None, None, max_elements, device, progress)
    runs.explain(sets, model, out, _split(only), label, steps, method, per, overrides)


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def _overrides(
    shard_size: int | None, batch_size: int | None, max_elements: int | None, device: str, progress: bool
) -> dict[str, Any]:
    return {
        "shard_size": shard_size,
        "batch_size": batch_size,
        "max_elements": max_elements,
        "device": device,
        "progress": progress,
    }
