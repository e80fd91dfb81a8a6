"""`omniset fit`, `predict`, `embed`, `evaluate` and `explain`: estimators on tables in files, with a report."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators import SetClassifier, SetEstimator, SetRegressor, SetSurvival
from omniset.estimators.evaluation import compare, out_of_fold
from omniset.estimators.examples import examples
from omniset.estimators.explaining import LITTLE, Method, chosen, share_explained
from omniset.estimators.importance import REPEATS, exchanges, feature_importance
from omniset.estimators.importance import check as check_importance
from omniset.estimators.labels import task_of
from omniset.estimators.maps import maps_beside
from omniset.estimators.stack import INTERPLAY, PRIOR
from omniset.estimators.survival import events_of
from omniset.estimators.units import warn_of_empty, warn_of_known
from omniset.runs import processes
from omniset.runs.console import noted, resumable, say, say_notes
from omniset.runs.devices import find
from omniset.runs.folders import new_file, unfinished
from omniset.runs.progress import Progress
from omniset.runs.verbs import Folder, working_folder
from omniset.tables.files import Origin, TableWriter, listed
from omniset.tables.labels import (
    LabelFile,
    Task,
    as_numbers,
    as_survival,
    choose_task,
    column_labels,
    require_choice,
    require_known,
    survival_columns,
)
from omniset.tables.reading import OPTIONS, open_sets
from omniset.tables.sets import SetTable, collect
from omniset.tables.stored import StoredSets
from omniset.training import artefacts
from omniset.trials.comparison import HOLDS, OURS, number_of

OUT_OF_FOLD, FEATURES = "out_of_fold.csv", "features.csv"
MAKERS: dict[str, type[SetEstimator]] = {
    "classification": SetClassifier,
    "regression": SetRegressor,
    "survival": SetSurvival,
}


def fit(
    sets: Path,
    target: Path | None,
    out: Path,
    *,
    columns: Sequence[str] | None,
    features: Sequence[str] | None,
    ignore: Sequence[str],
    group: str | None,
    task: str,
    survival: Sequence[str],
    level: str,
    unused: str,
    arguments: dict[str, Any],
    resume: bool,
    reading: dict[str, Any],
) -> dict[str, Any]:
    """See `omniset.cli.sets.fit`. Returns what is written to metrics.json, nothing if other processes write it."""
    if level not in ("auto", "set", "element"):
        raise ValueError(f"level must be 'auto', 'set' or 'element', got {level!r}")
    if target is None and not columns and task != "survival":
        raise ValueError("target: a file of labels is needed, or target_columns, columns of the table that hold them")
    draft = (SetSurvival if task == "survival" else SetClassifier)(**arguments)
    draft.check_arguments()  # what is wrong with the arguments is said before anything is read
    draft.check_resumed(unfinished(out), resume, besides=("level",))  # which the labels may say
    times = survival_columns(target, columns, group, task, survival, reading["set_column"])
    task, columns = (task, columns) if times is None else ("survival", times)
    if times is not None:
        draft = SetSurvival(**arguments)
        draft.check_arguments()
    with resumable(unfinished(out)):
        if processes.start(draft.devices, draft.num_nodes):
            return {}  # the processes have done it
    kinds = [maker.__name__ for maker in MAKERS.values()]
    about: dict[str, Any] = {"seed": draft.seed, "device": find(draft.device).type, "resume": resume}
    about |= {"makes": kinds, "reads": [sets, target, reading["vectors"]]}
    with (
        processes.one_voice(draft.devices, draft.num_nodes) as first,
        working_folder(out, "sets", "fit", first=first, **about) as folder,
    ):
        labels = None if target is None else LabelFile(target, columns, group, reading["set_column"])
        if labels is not None and level not in ("auto", labels.level):
            raise ValueError(f"level={level!r}, but {target} has labels of {labels.level}s")
        in_table = [*(columns or []), *([group] if group else [])] if labels is None else []
        how: dict[str, Any] = {"ignore": ignore, "missing": draft.missing, "most": draft.max_elements}
        how["folder"] = folder.path
        table = open_sets(sets, features, in_table, **how, **reading)
        _refuse_leaks(table, labels, columns or [], group)
        draft.build(len(table.features), [2])
        in_columns = table.level if times is None else "set"
        level = labels.level if labels is not None else in_columns if level == "auto" else level
        collection, values, groups = _read(
            table, labels, columns or [], group, level, unused, folder.path, draft.progress
        )
        chosen, values, in_words = _task(labels, values, table.file, task, level)
        model = MAKERS[chosen](**arguments | {"level": level})
        folder.settle(type(model).__name__)
        number = f"{len(collection):,} sets, {collection.sizes.sum():,} elements, {collection.dim} features"
        for line in (number, in_words, f"features: {listed(table.features)}", *_read_with(table)):
            say(line)
        y = values if values.shape[1] > 1 else values.iloc[:, 0]
        y = y.set_axis(collection.names) if level == "set" else y.reset_index(drop=True)
        model.fit(collection, y, groups=groups, folder=folder.path, resume=resume)
        if not first:
            return {}
        for note in model.notes_[1:]:
            say(note)
        model.ignored_, model.reading_ = table.ignored, _remembered(reading | table.reading)
        folder.save(model)
        return _report_of_fit(folder, model, sets.name, collection, values, groups)


def _read_with(table: SetTable | StoredSets) -> list[str]:
    """Options that the reader has chosen, in words."""
    options = ", ".join(f"--{name} {json.dumps(value)}" for name, value in table.reading.items())
    return [f"read with {options}"] if options else []


def _remembered(reading: dict[str, Any]) -> dict[str, Any]:
    """How sets were read, as a model keeps it: without the file of vectors, which is a place of this machine."""
    return {name: value for name, value in reading.items() if value is not None and name != "vectors"}


def _report_of_fit(
    folder: Folder,
    model: SetEstimator,
    name: str,
    sets: Sets,
    values: pd.DataFrame,
    groups: np.ndarray | None,
) -> dict[str, Any]:
    """Write the report beside the model; returns what is written to metrics.json."""
    from omniset.report import sets as set_report
    from omniset.report.data import summarize

    truth, shown = values.to_numpy(), model.validation_
    evaluation, on = out_of_fold(model, sets, truth, groups), ""
    if evaluation is not None:
        on = "sets left out, in turn, while the others were learned from"
        shown = np.arange(len(sets))
        of_sets = evaluation.rows[evaluation.rows["method"] == OURS].drop(columns=["method", "size"])
        with TableWriter(folder.path / OUT_OF_FOLD) as writer:
            writer.write(of_sets.rename(columns={"condition": "target"}))
    elif len(shown):
        evaluation, on = compare(model, sets, truth, groups, shown), f"validation sets ({model.notes_[-1]})"
    else:
        say("no validation sets: nothing to say of how good the model is; --folds 5 or `omniset evaluate` does")
    measured = "sets left out" if model.single is None else "the sets kept back"
    run = set_report.SetRun(
        on=on,
        data=summarize(sets, _shown(model, values)),
        history=model.history_,
        kept_epoch=_kept_epoch(model),
        outcomes=[] if evaluation is None else evaluation.outcomes,
        comparison=None if evaluation is None else evaluation.comparison,
        examples=examples(model, sets, shown, evaluation, truth),
        chosen=model.chosen_,
        importance=_importance(folder, model, model.importance_, sets, measured, groups),
    )
    numbers: dict[str, Any] = {name: getattr(model, f"{name}_") for name in model.HISTORIES} | {"on": run.on}
    numbers |= {"validation": None if evaluation is None else evaluation.comparison.numbers()}
    (task,) = (name for name, maker in MAKERS.items() if type(model) is maker)
    files = ["the model", *([OUT_OF_FOLD] if model.out_of_fold_ is not None else [])]
    files += [FEATURES] if run.importance is not None else []
    return _finish(folder, f"Model of {name}", run, numbers, model, model.get_params() | {"task": task}, files)


def predict(sets: Path, model: Path, out: Path, overrides: dict[str, Any], reading: dict[str, Any]) -> int:
    """See `omniset.cli.sets.predict`. Returns the number of rows that this process has written."""
    new_file(out, sets, reading["vectors"])
    estimator = _load(model, overrides)
    together = estimator.devices, estimator.num_nodes
    writer = TableWriter(out)
    if processes.start(*together):
        return 0  # the processes have done it
    rows = 0
    with processes.one_voice(*together) as first, noted() as notes, writer if first else nullcontext():
        table = _watched(_sets_for(estimator, sets, out.parent, reading), estimator.progress, "predicting")
        alone = processes.layout(*together) == (1, 1)
        for frame in estimator.predictions(table) if alone else estimator.shared_predictions(table):
            writer.write(frame)
            rows += len(frame)
    if first:
        say(f"{rows:,} predictions written to {out}")
        say_notes(notes())
    return rows


def embed(sets: Path, model: Path, out: Path, overrides: dict[str, Any], reading: dict[str, Any]) -> int:
    """See `omniset.cli.sets.embed`. Returns the number of rows written."""
    new_file(out, sets, reading["vectors"])
    estimator = _load(model, overrides)
    width = len(estimator.get_feature_names_out())
    rows = 0
    with noted() as notes, TableWriter(out) as writer:
        table = _watched(_sets_for(estimator, sets, out.parent, reading), estimator.progress, "embedding")
        for frame in estimator.vectors(table):
            writer.write(frame)
            rows += len(frame)
    say(f"{rows:,} vectors of {width:,} numbers written to {out}")
    say_notes(notes())
    return rows


def evaluate(
    sets: Path,
    target: Path | None,
    model: Path,
    out: Path,
    group: str | None,
    unused: str,
    overrides: dict[str, Any],
    reading: dict[str, Any],
    importance: bool = False,
) -> dict[str, Any]:
    """See `omniset.cli.sets.evaluate`. Returns what is written to metrics.json."""
    from omniset.report import sets as set_report
    from omniset.report.data import summarize

    estimator = _load(model, overrides)
    if importance:
        check_importance(estimator)
    about: dict[str, Any] = {"seed": estimator.seed, "device": find(estimator.device).type}
    about["reads"] = [sets, target, model, reading["vectors"]]
    with working_folder(out, "sets", "evaluation", **about) as folder:
        wanted = estimator.columns_ if isinstance(estimator, SetSurvival) else estimator.targets_
        named = _read_as(estimator, reading)["set_column"]
        labels = None if target is None else LabelFile(target, wanted, group, named)
        if labels is not None and labels.level != estimator.level:
            raise ValueError(f"{target} has labels of {labels.level}s, the model predicts {estimator.level}s")
        names = wanted if labels is None else []
        in_table = [*names, *([group] if group and labels is None else [])]
        table = _sets_for(estimator, sets, folder.path, reading, in_table)
        collection, values, groups = _read(
            table, labels, names, group, estimator.level, unused, folder.path, estimator.progress
        )
        if isinstance(estimator, SetClassifier):
            require_known(labels, values, table.file, estimator.labels_)
        elif isinstance(estimator, SetSurvival):
            values = as_survival(labels, values, table.file, least=1)
        else:
            values = as_numbers(labels, values, table.file)
        truth = values.to_numpy()
        warn_of_known(estimator, collection)
        evaluation, on = compare(estimator, collection, truth, groups), f"{len(collection):,} sets of {sets.name}"
        mattered = feature_importance(estimator, collection, truth, groups=groups) if importance else None
        run = set_report.SetRun(
            on=on,
            data=summarize(collection, _shown(estimator, values)),
            outcomes=evaluation.outcomes,
            comparison=evaluation.comparison,
            examples=examples(estimator, collection, np.arange(len(collection)), evaluation, truth),
            chosen=estimator.chosen_,
            importance=_importance(folder, estimator, mattered, collection, on, groups),
        )
        evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
        numbers = {**evaluation.comparison.numbers(), "on": run.on}
        settings = estimator.get_params() | {"model": str(model)}
        files = ["scores.csv.gz", *([FEATURES] if importance else [])]
        return _finish(folder, f"Evaluation on {sets.name}", run, numbers, estimator, settings, files)


def explain(
    sets: Path,
    model: Path,
    out: Path,
    only: Sequence[str] | None,
    label: str | None,
    steps: int,
    method: Method,
    per: str,
    overrides: dict[str, Any],
    reading: dict[str, Any],
) -> int:
    """See `omniset.cli.sets.explain`. Returns the number of rows written."""
    estimator = _load(model, overrides)
    estimator.check_explainable(method=method)
    method = chosen(estimator, method)
    known = next(iter(estimator.labels_.values())) if isinstance(estimator, SetClassifier) else estimator.targets_
    if label is not None and label not in known:
        raise ValueError(f"label must be one of {listed([str(name) for name in known])}, got {label!r}")
    if method == "attention" and label is not None:
        raise ValueError(f"label={label!r} is for attribution or removal: attention knows of no prediction")
    new_file(out, sets, reading["vectors"])
    wanted = None if only is None else set(only)
    rows = 0
    with noted() as notes, maps_beside(out) as maps, TableWriter(out) as writer:
        table = _sets_for(estimator, sets, out.parent, reading)
        has_places = isinstance(table, StoredSets) and table.has_places
        for stored in _watched(table, estimator.progress, "explaining"):
            if wanted is not None and stored.name not in wanted:
                continue
            wanted = wanted and wanted - {stored.name}
            frame = _explanation(estimator, stored, label, steps, method, per)
            if has_places:
                frame[["x", "y"]] = maps.draw(stored, frame)
            writer.write(frame)
            rows += len(frame)
            if wanted is not None and not wanted:
                break
        if wanted:
            raise ValueError(f"only: {sets} has no set {sorted(wanted)[0]!r}")
    drawn = f", {number_of(maps.number, 'map')} to {maps.folder}" if maps.number else ""
    say(f"{number_of(rows, 'score')} written to {out}{drawn}")
    share = None if method == "removal" else share_explained(estimator)
    if share is not None and share >= LITTLE:  # else there is a warning
        say(f"scores are of the networks of {INTERPLAY}, which have {share:.0%} of the weight of the mixture")
    say_notes(notes())
    return rows


# ---------------------------------------------------------------------- reading


def _load(folder: Path, overrides: dict[str, Any]) -> SetEstimator:
    makers = {maker.__name__: maker for maker in MAKERS.values()}
    model = makers.get(artefacts.kind_of(folder), SetClassifier).load(folder)
    alone = {"devices": 1, "num_nodes": 1}  # however it was trained
    model.set_params(**alone | {k: v for k, v in overrides.items() if v is not None})
    model.check_arguments()
    return model


def _read_as(model: SetEstimator, reading: dict[str, Any]) -> dict[str, Any]:
    """How files are read: as at fit, but for what is given."""
    return OPTIONS | model.reading_ | {k: v for k, v in reading.items() if v is not None}


def _sets_for(
    model: SetEstimator, path: Path, folder: Path, reading: dict[str, Any], keep: Sequence[str] = ()
) -> SetTable | StoredSets:
    """The sets with the features of the model, whatever their order."""
    encoding = model.expected
    if encoding is None:
        raise ValueError("the model was fitted on arrays without names of features: fit it on a table")
    known = [*model.targets_, *model.ignored_]
    how: dict[str, Any] = {"encoding": encoding, "known": known, "most": model.max_elements, "folder": folder}
    sets = open_sets(path, None, keep, **how, **_read_as(model, reading))
    here = [c for c in sets.file.columns if c in model.expected_columns]
    if isinstance(sets, SetTable) and here != model.expected_columns:
        warnings.warn(f"{path}: features are in another order than at fit; they were matched by name", stacklevel=2)
    return sets


def _read(
    table: SetTable | StoredSets,
    labels: LabelFile | None,
    columns: Sequence[str],
    group: str | None,
    level: str,
    unused: str,
    folder: Path,
    progress: bool,
) -> tuple[Sets, pd.DataFrame, np.ndarray | None]:
    """The sets, their targets (from the file of labels, or from these columns) and their groups."""
    wanted = [*columns, *([group] if group else [])]
    if labels is not None:
        wanted = ["element"] if labels.level == "element" and table.has_elements else []
    watched = _watched(table, progress, "reading")
    collection, columns_of_table = collect(watched, table.features, folder, wanted, table.encoding, table.stays)
    warn_of_empty(collection, str(table.file.path))
    if labels is None:
        return collection, *column_labels(table.file, collection, columns_of_table, columns, group, level)
    aligned = labels.align(collection, table.file, columns_of_table.get("element"), unused)
    return collection, aligned[labels.columns], labels.groups(collection)


def _watched(table: SetTable | StoredSets, show: bool, what: str) -> Iterator[StoredSet]:
    rows = 0
    with Progress(f"{what} {table.file.path.name}", table.file.size, show) as progress:
        for stored in table:
            rows += len(stored)
            progress.at(table.file.position, rows)
            yield stored
        progress.at(table.file.size, rows)


def _task(
    labels: LabelFile | None, values: pd.DataFrame, source: Origin, task: str, level: str
) -> tuple[Task, pd.DataFrame, str]:
    """What is learned, the targets that it is learned from, and a sentence on it."""
    chosen = choose_task(labels, values, source, task)
    if chosen == "survival":
        values = as_survival(labels, values, source, least=2)
        return chosen, values, events_of(values.to_numpy()[:, 1])
    require_choice(labels, values, source)
    if chosen == "regression":
        values = as_numbers(labels, values, source)
    names = [str(name) for name in values]
    return chosen, values, task_of(values.to_numpy(), names, level, chosen == "classification")


# ---------------------------------------------------------------------- results


def _refuse_leaks(
    table: SetTable | StoredSets, labels: LabelFile | None, columns: Sequence[str], group: str | None
) -> None:
    """What is to be predicted, or says which sets belong together, is no feature."""
    if labels is None and group in columns:
        raise table.file.error(None, f"column {group!r} is the group: it cannot be a target too")
    for name in [*(labels.columns if labels else columns), *([group] if group else [])]:
        if name in table.columns:
            where = f"of {labels.file.path}" if labels else "too"
            message = f"column {name!r} is a target or the group {where}, and would be learned from as a feature: "
            raise table.file.error(None, message + "take it out of the table, or name the features with --features")


def _explanation(
    model: SetEstimator, stored: StoredSet, label: str | None, steps: int, method: Any, per: Any
) -> pd.DataFrame:
    predicted = next(iter(model.predictions([stored])))[model.targets_[0]].iloc[0]
    explained = predicted if label is None and isinstance(model, SetClassifier) else label or model.targets_[0]
    return pd.DataFrame(
        {
            "set": str(stored.name),
            "element": [str(e) for e in stored.names_of_elements()],
            "multiplicity": stored.read()[1].double().numpy(),
            "score": model.explain([stored], label, steps, method, per)[0].astype(np.float64),
            "explained": "" if method == "attention" else explained,
            "method": method,
            "per": per,
        }
    )


def _importance(
    folder: Folder, model: SetEstimator, table: pd.DataFrame | None, sets: Sets, on: str, groups: np.ndarray | None
) -> Any:
    """Write the importance of features, and what a report says of it; None where it was not measured."""
    from omniset.report.features import Importance

    if table is None:
        return None
    with TableWriter(folder.path / FEATURES) as writer:
        writer.write(table)
    unit, loss = "set" if groups is None else "group", "log loss" if model.classifies else "squared error"
    loss = "negative log likelihood" if model.kind.risks else loss
    often = exchanges(sets)
    return Importance(table, on, unit, loss, often if often < REPEATS else None)


def _shown(model: SetEstimator, values: pd.DataFrame) -> pd.DataFrame:
    """Targets as a report describes them: events in words."""
    if not isinstance(model, SetSurvival):
        return values
    time, event = values
    return pd.DataFrame({time: values[time], event: np.where(values[event] == 1, "seen", "not seen")})


def _kept_epoch(model: SetEstimator) -> int | None:
    """The epoch whose weights were kept: the best on validation, or the last. Of several networks, None."""
    if model.single is None:
        return None
    watched = [h for h in model.history_ if "val_loss" in h]
    if watched and model.patience is not None:
        return int(min(watched, key=lambda h: h["val_loss"])["epoch"])
    return int(model.history_[-1]["epoch"]) if model.history_ else None


def _finish(
    folder: Folder,
    title: str,
    run: Any,
    numbers: dict[str, Any],
    model: SetEstimator,
    settings: dict[str, Any],
    files: Sequence[str],
) -> dict[str, Any]:
    """Write the report and metrics.json, and print what matters."""
    from omniset.report.sets import compose

    if model.progress:
        print("writing the report", file=sys.stderr)
    metrics = {**numbers, "provenance": folder.provenance}
    folder.write(
        compose(folder.about(title, model.notes_), run, settings),
        metrics=metrics,
        scores={assessed.name: assessed.metrics for assessed in run.assessments},
        histories=run.histories,
        files=files,
        lines=[*_lines(run), *_simpler(run, model)],
    )
    return metrics


def _simpler(run: Any, model: SetEstimator) -> Iterator[str]:
    """How to fit the best simple method alone, where `fit` found a model no better: `evaluate` is not to choose by."""
    chooses = run.comparison is not None and model.alone is None and model.out_of_fold_ is not None
    gates = run.comparison.gates if chooses else []
    for gate in gates[:1]:
        if gate.verdict != HOLDS and gate.opponent in model.kind.stack.MEMBERS and gate.opponent != PRIOR:
            yield f"{gate.opponent} is simpler: `omniset fit` with --method {gate.opponent} fits it alone"


def _lines(run: Any) -> Iterator[str]:
    if run.comparison is None:
        return
    yield f"\non {run.on}"
    yield from run.comparison.lines()
    for assessed in run.assessments:
        others = [f"{m.name} {m.value:.3f}" for m in assessed.metrics[1:] if m.value is not None]
        yield f"{assessed.name}, further scores of ours: {', '.join(others)}"
    yield from [] if run.importance is None else run.importance.lines()
    yield ""
