"""`omniset fit`, `predict`, `embed`, `evaluate`, `explain`: sets in tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Function, Saving, given, split, takes
from omniset.cli.parts import find, in_parts
from omniset.estimators.options import SetOptions
from omniset.options import option, options

TABLES = (".parquet", ".csv", ".tsv")
# That a folder of parts may hold.
SETS = (*TABLES, ".h5ad", ".zarr", ".fcs", ".biom", ".h5", ".hdf5", ".npy", ".npz", ".pt", ".txt")
PREDICTING = ("max_elements", "device", "progress")
# What the shell has no use for: what another option, or the labels, say, and settings of networks for Python.
# Of `SetOptions`: how networks are trained and computed in detail, which no result told to choose, and what is said
# otherwise here (method, max_elements, level).
OF_PYTHON_ALONE = (
    *("encoder", "level", "repeats", "num_inducing", "batch_size", "weight_decay", "patience"),
    *("validation_fraction", "shard_size", "shards", "gradient"),
)


@options
class Reading:
    """How sets are read."""

    set_column: str = option(
        "set",
        "Name of the column that says which set a row is of, in the table (or in obs of an .h5ad) and, where it is "
        "there, in the target file.",
        group="data",
    )
    use_rep: str | None = option(
        None,
        'What the features of cells in an .h5ad are: "X" as it is, "counts" (the layer of that name, else X; '
        'logarithms of counts per 10,000), or a key of obsm, such as "X_pca". null: X_omniset, else X_pca, else X.',
        group="data",
    )
    cofactor: float | None = option(
        None,
        "What stains in .fcs files are divided by before their arcsinh is taken; 0: they stay as they are. null: 5 for "
        "a mass cytometer, else 150.",
        group="data",
    )
    compensate: bool | None = option(
        None,
        "Whether the spillover that a .fcs file says ($SPILLOVER or SPILL) is taken out of its stains. null: yes.",
        group="data",
    )
    dataset: str | None = option(
        None, "What the features are called in .h5, .npz and .pt files. null: features.", group="data"
    )
    vectors: Path | None = option(
        None,
        "Table with numbers of each feature, or FASTA with its sequence, where sets are samples of a table of counts.",
        group="data",
    )


def _each_set_once(made: Mapping[str, Path], out: Path) -> list[str]:
    from omniset.cli import joined

    joined.require_each_once(made, "set")
    return []


of_many = in_parts("sets", lambda given: find(given["sets"], SETS, "sets"), endings=TABLES, join=_each_set_once)


def of_model(command: Function) -> Function:
    """A command that uses a model: with what may differ from its fit."""
    command = takes(SetOptions, *PREDICTING, as_at_fit=True)(takes(Saving)(command))
    return takes(Reading, "set_column", as_at_fit=True)(takes(Reading, "vectors")(command))


@takes(Reading)
@takes(SetOptions, but=OF_PYTHON_ALONE)
@takes(Saving)
def fit(
    sets: Path,
    target: Path | None = None,
    out: Path = Path("run"),
    features: str | None = None,
    ignore: str | None = None,
    resume: bool = False,
    target_columns: str | None = None,
    group: str | None = None,
    task: Literal["auto", "classification", "regression", "survival"] = "auto",
    time_column: str = "time",
    event_column: str = "event",
    event_value: str | None = None,
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
            .fcs files; .h5, .npy, .npz or .pt files of features, one a set; a table of counts (.biom): see "Tables" in
            the documentation.
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
            the columns set, time, event (or OS.time, OS and the like), and no other but the group's; numbers where all
            labels of all targets are numbers, and some have fractions or more than 20 different values.
        time_column: Of survival: column with the time of the event, or until which it had not happened.
        event_column: Of survival: column with 1 where the event was seen at that time, else 0; or words for that.
        event_value: Of survival: what that column has where the event was seen. null: 1, of 1 and 2 the 2, or a word
            such as True, dead or 1:DECEASED.
        level: Whether sets or elements are labelled. "auto": elements where the target file has a column "element", or
            the targets are columns of the table.
        unused_labels: What to do with labels whose set is not in the table.
        resume: Go on with an interrupted run in the same folder.
    """
    import json

    import numpy as np

    from omniset.estimators import commands
    from omniset.estimators.evaluation import compare, out_of_fold
    from omniset.report.run import working_folder
    from omniset.runs import processes
    from omniset.runs.console import resumable, say
    from omniset.runs.devices import find
    from omniset.runs.folders import unfinished
    from omniset.tables.files import TableWriter, listed
    from omniset.tables.labels import LabelFile
    from omniset.tables.reading import open_sets
    from omniset.tables.survival import survival_columns
    from omniset.trials.comparison import OURS

    arguments, reading, columns = given(SetOptions, options), given(Reading, options), split(target_columns)
    if target is None and not columns and task != "survival":
        raise ValueError("target: a file of labels is needed, or target_columns, columns of the table that hold them")
    draft = commands.MAKERS["survival" if task == "survival" else "classification"](**arguments)
    draft.check_arguments()  # what is wrong with the arguments is said before anything is read
    draft.check_resumed(unfinished(out), resume, besides=("level",))  # which the labels may say
    times = survival_columns(target, columns, group, task, (time_column, event_column), reading["set_column"])
    if times is not None:
        task, columns = "survival", times
        draft = commands.MAKERS["survival"](**arguments)
        draft.check_arguments()
    with resumable(unfinished(out)):
        if processes.start(draft.devices, draft.num_nodes):
            return  # the processes have done it
    about: dict[str, Any] = {"seed": draft.seed, "device": find(draft.device).type, "resume": resume}
    about |= {"makes": [m.__name__ for m in commands.MAKERS.values()], "reads": [sets, target, reading["vectors"]]}
    with (
        processes.one_voice(draft.devices, draft.num_nodes) as first,
        working_folder(out, "sets", "fit", first=first, **about) as folder,
    ):
        file = None if target is None else LabelFile(target, columns, group, reading["set_column"])
        if file is not None and level not in ("auto", file.level):
            raise ValueError(f"level={level!r}, but {target} has labels of {file.level}s")
        labels = commands.Labels(file, columns, group, unused_labels, event_value)
        how: dict[str, Any] = {"ignore": split(ignore) or [], "missing": draft.missing, "most": draft.max_elements}
        table = open_sets(sets, split(features), labels.in_table, folder=folder.path, **how, **reading)
        labels.refuse_leaks(table)
        draft.build(len(table.features), [2])
        in_columns = table.level if times is None else "set"
        of = file.level if file is not None else in_columns if level == "auto" else level
        collection, values, groups = labels.read(table, of, folder.path, draft.progress)
        if file is None and of == "element" != level and collection.sizes.max() > 1:
            same = values.groupby(np.repeat(np.arange(len(collection)), collection.sizes)).nunique(dropna=False) <= 1
            if same.all(axis=None):
                raise ValueError(f"{sets}: targets of a set are all the same: say --level set or --level element")
        commands.warn_of_features(table, collection, values, of)
        chosen, values, in_words = labels.task(values, table.file, task, of)
        model = commands.MAKERS[chosen](**arguments | {"level": of})
        folder.settle(type(model).__name__)
        say(f"{len(collection):,} sets, {collection.sizes.sum():,} elements, {collection.dim} features")
        say(in_words)
        say(f"features: {listed(table.features)}")
        if table.reading:
            say("read with " + ", ".join(f"--{name} {json.dumps(value)}" for name, value in table.reading.items()))
        y = values if values.shape[1] > 1 else values.iloc[:, 0]
        y = y.set_axis(collection.names) if of == "set" else y.reset_index(drop=True)
        model.fit(collection, y, groups=groups, folder=folder.path, resume=resume)
        if not first:
            return
        for note in model.notes_[1:]:
            say(note)
        how_read = reading | table.reading | {"event_value": event_value}
        model.ignored_, model.reading_ = table.ignored, commands.remembered(how_read)
        folder.save(model)
        truth, shown, written = values.to_numpy(), model.validation_, ["the model"]
        evaluation, on = out_of_fold(model, collection, truth, groups), ""
        if evaluation is not None:
            on, shown = "sets left out, in turn, while the others were learned from", np.arange(len(collection))
            of_sets = evaluation.rows[evaluation.rows["method"] == OURS].drop(columns=["method", "size"])
            with TableWriter(folder.path / commands.OUT_OF_FOLD) as writer:
                writer.write(of_sets.rename(columns={"condition": "target"}))
            written.append(commands.OUT_OF_FOLD)
        elif len(shown):
            evaluation, on = compare(model, collection, truth, groups, shown), f"validation sets ({model.notes_[-1]})"
        else:
            say("no validation sets: nothing to say of how good the model is; --folds 5 or `omniset evaluate` does")
        measured = "sets left out" if model.single is None else "the sets kept back"
        judged = commands.Judged(model, collection, values, groups, evaluation, shown, on, model.importance_, measured)
        numbers: dict[str, Any] = {name: getattr(model, f"{name}_") for name in model.HISTORIES}
        numbers |= {"validation": None if evaluation is None else evaluation.comparison.numbers()}
        judged.report(folder, f"Model of {sets.name}", numbers, model.get_params() | {"task": chosen}, written)


@of_many
@of_model
def predict(sets: Path, model: Path = Path("run"), out: Path = Path("predictions.csv"), **options: Any) -> None:
    """Predict the sets of a table, and write as they are read.

    Example: omniset predict new.parquet --model run --out predictions.csv

    Args:
        sets: Table as for fit, with the same features; their order does not matter.
        model: Folder that fit wrote.
        out: Table of predictions, a row per set (or element): the label and the probability of each class, or the
            number. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
    """
    from omniset.estimators import commands
    from omniset.runs.folders import new_file

    reading = given(Reading, options)
    new_file(out)
    estimator = commands.load(model, given(SetOptions, options))
    commands.write_each(estimator, estimator.predictions, sets, out, reading, ("predicting", "predictions"))


@of_many
@of_model
def embed(sets: Path, model: Path = Path("run"), out: Path = Path("vectors.csv"), **options: Any) -> None:
    """Write each set of a table as a vector, which other tools can group, draw or learn from.

    Example: omniset embed new.parquet --model run --out vectors.parquet

    Args:
        sets: Table as for fit, with the same features; their order does not matter.
        model: Folder that fit wrote, from labels of sets.
        out: Table of vectors, a row per set: its name, and what each network of the model makes of it before it
            predicts. Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
    """
    from omniset.estimators import commands
    from omniset.runs.folders import new_file

    reading = given(Reading, options)
    new_file(out)
    estimator = commands.load(model, given(SetOptions, options))
    made = f"vectors of {len(estimator.get_feature_names_out()):,} numbers"
    vectors = functools.partial(commands.told_apart, estimator.vectors, sets)
    commands.write_each(estimator, vectors, sets, out, reading, ("embedding", made))


@of_model
def evaluate(
    sets: Path,
    target: Path | None = None,
    model: Path = Path("run"),
    out: Path = Path("evaluation"),
    group: str | None = None,
    unused_labels: Literal["error", "ignore"] = "error",
    event_value: str | None = None,
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
        event_value: As for fit. null: as at fit.
        importance: Measure how much each feature matters, by permutation, into features.csv and the report. It takes as
            many predictions as five times the features; of much data as the features.
    """
    import numpy as np

    from omniset.estimators import commands
    from omniset.estimators.evaluation import compare, feature_importance, require_importance
    from omniset.report.run import working_folder
    from omniset.runs.devices import find
    from omniset.tables.labels import LabelFile

    reading = given(Reading, options)
    estimator = commands.load(model, given(SetOptions, options))
    if importance:
        require_importance(estimator)
    about: dict[str, Any] = {"seed": estimator.seed, "device": find(estimator.device).type}
    about["reads"] = [sets, target, model, reading["vectors"]]
    with working_folder(out, "sets", "evaluation", **about) as folder:
        wanted = getattr(estimator, "columns_", estimator.targets_)  # of survival, what time and event are called
        named = commands.read_as(estimator, reading)["set_column"]
        file = None if target is None else LabelFile(target, wanted, group, named)
        if file is not None and file.level != estimator.level:
            raise ValueError(f"{target} has labels of {file.level}s, the model predicts {estimator.level}s")
        event_value = event_value or estimator.reading_.get("event_value")
        labels = commands.Labels(file, wanted, group, unused_labels, event_value)
        table = commands.sets_for(estimator, sets, folder.path, reading, labels.in_table)
        collection, values, groups = labels.read(table, estimator.level, folder.path, estimator.progress)
        values = labels.known_to(estimator, values, table.file)
        truth = values.to_numpy()
        estimator.warn_of_known(collection)
        evaluation, on = compare(estimator, collection, truth, groups), f"{len(collection):,} sets of {sets.name}"
        mattered = feature_importance(estimator, collection, truth, groups=groups) if importance else None
        which = np.arange(len(collection))
        judged = commands.Judged(estimator, collection, values, groups, evaluation, which, on, mattered, on)
        evaluation.comparison.write_rows(folder.path / commands.SCORES)
        settings = estimator.get_params() | {"model": str(model)}
        numbers = evaluation.comparison.numbers()
        judged.report(folder, f"Evaluation on {sets.name}", numbers, settings, [commands.SCORES])


# jsonargparse looks a function up by name in the package, and `omniset.explain` is a module that loads PyTorch.
@of_model
def explain_sets(
    sets: Path,
    model: Path = Path("run"),
    out: Path = Path("explanations.csv"),
    only: str | None = None,
    label: str | None = None,
    steps: int = 8,
    method: Literal["auto", "attribution", "contrast", "attention", "removal"] = "auto",
    **options: Any,
) -> None:
    """Score which elements of each set drove its prediction.

    Example: omniset explain new.parquet --model run --only patient_7 --out scores.csv

    Args:
        sets: Table as for fit.
        model: Folder that fit wrote.
        out: Table of scores: set, element, multiplicity, score from 0 to 1 (the set's strongest element), which label
            the score explains, and method. Elements with coordinates are drawn in a folder beside it. Ends in
            .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        only: Names of sets, separated by commas. null: all.
        label: Explain this label rather than the predicted one.
        steps: Of the integral of attribution: more are more exact, and slower.
        method: "attribution" (self-attention attribution, of networks); "contrast": the same against equal attention,
            by what distinguishes an element from the others of its set; "attention": how much attention an element
            gets, whatever is predicted; "removal": how much the prediction falls where the element is left out, of any
            model. "auto": attribution where a network attends to elements and has at least a tenth of the weight of
            the mixture, else removal.
    """
    import numpy as np
    import pandas as pd

    from omniset.estimators import commands
    from omniset.estimators.mixture import NETWORK
    from omniset.estimators.model import LITTLE
    from omniset.runs.console import noted, say, say_notes
    from omniset.runs.folders import new_file
    from omniset.tables.files import TableWriter, listed
    from omniset.trials.comparison import number_of

    reading = given(Reading, options)
    estimator = commands.load(model, given(SetOptions, options))
    estimator.check_explainable(method=method)
    method = estimator.explains_by(method)
    known = estimator.labels_[estimator.targets_[0]] if estimator.classifies else estimator.targets_
    if label is not None and label not in known:
        raise ValueError(f"label must be one of {listed([str(name) for name in known])}, got {label!r}")
    if method == "attention" and label is not None:
        raise ValueError(f"label={label!r} is for attribution or removal: attention knows of no prediction")
    new_file(out)
    wanted = None if only is None else set(split(only) or ())
    rows = 0
    with noted() as notes, commands.maps_beside(out) as maps, TableWriter(out) as writer:
        table = commands.sets_for(estimator, sets, out.parent, reading)

        def chosen() -> Iterator[Any]:
            for stored in commands.watched(table, estimator.progress, "explaining"):
                if wanted is None or stored.name in wanted:
                    yield stored
                if wanted is not None:
                    wanted.discard(stored.name)
                    if not wanted:
                        return

        waiting: list[pd.DataFrame] = []  # a table is written faster in few pieces
        for stored, number, scores in estimator.explanations(chosen(), label, steps, method):
            columns: dict[str, Any] = {"set": str(stored.name), "element": list(map(str, stored.names_of_elements()))}
            columns |= {"multiplicity": stored.read()[1].double().numpy(), "score": scores.astype(np.float64)}
            columns |= {"explained": "" if method == "attention" else known[number], "method": method}
            frame = pd.DataFrame(columns)
            if getattr(table, "has_places", False):
                frame[["x", "y"]] = maps.draw(stored, frame)
            waiting.append(frame)
            rows += len(frame)
            if len(waiting) == 100 or len(frame) > 1_000:
                writer.write(pd.concat(waiting))
                waiting = []
        if waiting:
            writer.write(pd.concat(waiting))
        if wanted:
            raise ValueError(f'only: {sets} has no set {sorted(wanted)[0]!r}; a name with a comma stands in ""')
    drawn = f", {number_of(maps.number, 'map')} to {maps.folder}" if maps.number else ""
    say(f"{number_of(rows, 'score')} written to {out}{drawn}")
    if method == "removal":
        say("scores are by removal: how much the prediction falls where an element is left out")
    elif (share := estimator.share_explained()) is not None and share >= LITTLE:  # else there is a warning
        say(f"scores are of the networks of {NETWORK}, which have {share:.0%} of the weight of the mixture")
    say_notes(notes())
