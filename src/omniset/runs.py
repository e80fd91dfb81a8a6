"""`omniset fit`, `predict`, `evaluate` and `explain`: estimators on tables in files, with a report."""

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

from omniset import explain as attribution
from omniset import processes
from omniset.console import noted, own_command, refuse_own_input, run_folder, say, say_notes
from omniset.estimators import SetClassifier, SetEstimator, SetRegressor
from omniset.evaluation import Metric, Outcome
from omniset.files import provenance, write_json
from omniset.progress import Progress
from omniset.report import multiqc
from omniset.report import sets as set_report
from omniset.report import write as write_report
from omniset.report.data import summarize
from omniset.sets import SetCollection, StoredSet
from omniset.tables.files import TableFile, TableWriter, _listed
from omniset.tables.labels import LabelFile, as_numbers, choose_task, column_labels, require_choice, require_known
from omniset.tables.sets import SetTable, collect


def fit(
    sets: Path,
    target: Path | None,
    out: Path,
    *,
    columns: Sequence[str] | None,
    features: Sequence[str] | None,
    group: str | None,
    task: str,
    level: str,
    unused: str,
    arguments: dict[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """See `omniset.cli.sets.fit`. Returns what is written to metrics.json, nothing if other processes write it."""
    if level not in ("auto", "set", "element"):
        raise ValueError(f"level must be 'auto', 'set' or 'element', got {level!r}")
    if target is None and not columns:
        raise ValueError("target: a file of labels is needed, or target_columns, columns of the table that hold them")
    asked = SetClassifier(**arguments)  # what is wrong with the arguments is said before anything is read
    asked._check_arguments()
    if processes.start(asked.devices, asked.num_nodes):
        return {}  # the processes have done it
    with processes.one_voice(asked.devices, asked.num_nodes) as first, run_folder(out), noted() as notes:
        labels = None if target is None else LabelFile(target, columns, group)
        if labels is not None and level not in ("auto", labels.level):
            raise ValueError(f"level={level!r}, but {target} has labels of {labels.level}s")
        in_table = [*(columns or [])] if labels is None else []
        in_table += [group] if group and labels is None else []
        table = SetTable(sets, features, in_table, arguments["max_elements"], out)
        _refuse_leaks(table, labels, columns or [], group)
        asked._build(len(table.features), [2])
        level = labels.level if labels is not None else "element" if level == "auto" else level
        collection, values, groups = _read(table, labels, columns or [], group, level, unused, out, asked.progress)
        require_choice(labels, values, table.file)
        chosen = choose_task(values, task)
        if chosen == "regression":
            values = as_numbers(labels, values, table.file)
        maker = SetClassifier if chosen == "classification" else SetRegressor
        model = maker(**arguments | {"level": level})
        say(
            f"{len(collection):,} sets, {len(collection.elements):,} elements, {collection.dim} features; "
            f"{chosen} of {level}s: {_described(values, chosen)}"
        )
        _warn_of_few(values, chosen, level)
        if (out / "config.json").exists() and not resume:
            say(f"{out} holds a model already: it is replaced when this one is done")
        y = values if values.shape[1] > 1 else values.iloc[:, 0]
        y = y.set_axis(collection.names) if level == "set" else y.reset_index(drop=True)
        model.fit(collection, y, groups=groups, folder=out, resume=resume)
        if not first:
            return {}
        model.ignored_ = [c for c in table.file.columns if c not in ("set", "multiplicity", "element", *table.features)]
        truth = values.to_numpy()
        outcomes = _validation_outcomes(model, collection, truth, groups)
        share = f"{len(model.validation_):,} of {len(collection):,} sets, kept back to watch the training"
        share += "; they chose the epoch, which flatters" if model.patience is not None else ""
        run = set_report.SetRun(
            title=f"Model of {sets.name}",
            on=f"validation sets ({share})" if outcomes else "",
            data=summarize(collection, values),
            history=model.history_,
            kept_epoch=_kept_epoch(model),
            outcomes=outcomes,
            examples=_examples(model, collection, model.validation_, outcomes, truth),
            arguments=model.get_params() | {"task": chosen},
        )
        return _finish(run, out, notes(), model, model)


def predict(sets: Path, model: Path, out: Path, overrides: dict[str, Any]) -> int:
    """See `omniset.cli.sets.predict`. Returns the number of rows that this process has written."""
    estimator = _load(model, overrides)
    refuse_own_input(out, sets)
    together = estimator.devices, estimator.num_nodes
    writer = TableWriter(out)
    if processes.start(*together):
        return 0  # the processes have done it
    rows = 0
    with processes.one_voice(*together) as first, noted() as notes, writer if first else nullcontext():
        table = _watched(_table_for(estimator, sets, out.parent), estimator.progress, "predicting")
        alone = processes.layout(*together) == (1, 1)
        for frame in estimator.predictions(table) if alone else estimator.shared_predictions(table):
            writer.write(frame)
            rows += len(frame)
    if first:
        say(f"{rows:,} predictions written to {out}")
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
) -> dict[str, Any]:
    """See `omniset.cli.sets.evaluate`. Returns what is written to metrics.json."""
    estimator = _load(model, overrides)
    if (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out), noted() as notes:
        labels = None if target is None else LabelFile(target, estimator.targets_, group)
        if labels is not None and labels.level != estimator.level:
            raise ValueError(f"{target} has labels of {labels.level}s, the model predicts {estimator.level}s")
        names = estimator.targets_ if labels is None else []
        in_table = [*names, *([group] if group and labels is None else [])]
        table = _table_for(estimator, sets, out, in_table)
        collection, values, groups = _read(
            table, labels, names, group, estimator.level, unused, out, estimator.progress
        )
        chosen = "classification" if isinstance(estimator, SetClassifier) else "regression"
        if chosen == "regression":
            values = as_numbers(labels, values, table.file)
        else:
            known_labels = {n: c.tolist() for n, c in zip(estimator.targets_, estimator._classes, strict=True)}
            require_known(labels, values, table.file, known_labels)
        truth = values.to_numpy()
        positions = np.arange(len(collection))
        outcomes = _outcomes(estimator, collection, positions, truth, groups)
        run = set_report.SetRun(
            title=f"Evaluation on {sets.name}",
            on=f"{len(collection):,} sets of {sets.name}",
            data=summarize(collection, values),
            outcomes=outcomes,
            examples=_examples(estimator, collection, positions, outcomes, truth),
            arguments=estimator.get_params() | {"model": str(model)},
        )
        return _finish(run, out, notes(), estimator, None)


def explain(
    sets: Path,
    model: Path,
    out: Path,
    only: Sequence[str] | None,
    label: str | None,
    steps: int,
    method: str,
    per: str,
    overrides: dict[str, Any],
) -> int:
    """See `omniset.cli.sets.explain`. Returns the number of rows written."""
    estimator = _load(model, overrides)
    estimator.check_explainable()
    known = estimator._classes[0].tolist() if isinstance(estimator, SetClassifier) else estimator.targets_
    if label is not None and label not in known:
        raise ValueError(f"label must be one of {_listed([str(name) for name in known])}, got {label!r}")
    if method == "attention" and label is not None:
        raise ValueError(f"label={label!r} is for method='attribution': attention knows of no prediction")
    refuse_own_input(out, sets)
    wanted = None if only is None else set(only)
    rows = 0
    with noted() as notes, TableWriter(out) as writer:
        table = _table_for(estimator, sets, out.parent)
        for found in _watched(table, estimator.progress, "explaining"):
            if wanted is not None and found.name not in wanted:
                continue
            wanted = wanted and wanted - {found.name}
            frame = _explanation(estimator, found, label, steps, method, per)
            writer.write(frame)
            rows += len(frame)
            if wanted is not None and not wanted:
                break
        if wanted:
            raise ValueError(f"only: {sets} has no set {sorted(wanted)[0]!r}")
    say(f"{rows:,} scores written to {out}")
    say_notes(notes())
    return rows


# ---------------------------------------------------------------------- reading


def _load(folder: Path, overrides: dict[str, Any]) -> SetEstimator:
    config = Path(folder) / "config.json"
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("class") if config.is_file() else None
    except (ValueError, AttributeError):
        kind = None  # load says what is wrong
    maker = SetRegressor if kind == "SetRegressor" else SetClassifier
    model = maker.load(folder)
    alone = {"devices": 1, "num_nodes": 1, "strategy": "auto"}  # however it was trained
    model.set_params(**alone | {k: v for k, v in overrides.items() if v is not None})
    model._check_arguments()
    return model


def _table_for(model: SetEstimator, path: Path, folder: Path, keep: Sequence[str] = ()) -> SetTable:
    """The table with the features of the model, whatever their order."""
    if model.features_ is None:
        raise ValueError("the model was fitted on arrays without names of features: fit it on a table")
    file = TableFile(path)
    file.require(["set", *model.features_])
    known = ("set", "multiplicity", "element", *model.features_, *model.targets_, *model.ignored_, *keep)
    extra = [c for c in file.columns if c not in known]
    if extra:
        raise file.error(
            None,
            f"has a column {extra[0]!r} that the model was not fitted with: it knows the features {model.features_}",
        )
    here = [c for c in file.columns if c in model.features_]
    if here != model.features_:
        warnings.warn(f"{path}: features are in another order than at fit; they were matched by name", stacklevel=2)
    return SetTable(path, model.features_, keep, model.max_elements, folder)


def _read(
    table: SetTable,
    labels: LabelFile | None,
    columns: Sequence[str],
    group: str | None,
    level: str,
    unused: str,
    folder: Path,
    progress: bool,
) -> tuple[SetCollection, pd.DataFrame, np.ndarray | None]:
    """The sets, on disk, their targets (from the file of labels, or from these columns) and their groups."""
    wanted = [*columns, *([group] if group else [])]
    if labels is not None:
        wanted = ["element"] if labels.level == "element" and table.has_elements else []
    collection, kept = collect(_watched(table, progress, "reading"), table.features, folder, wanted)
    if labels is None:
        return collection, *column_labels(table.file, collection, kept, columns, group, level)
    aligned = labels.align(collection, table.file, kept.get("element"), unused)
    return collection, aligned[labels.columns], labels.groups(collection)


def _watched(table: SetTable, show: bool, what: str) -> Iterator[Any]:
    rows = 0
    with Progress(f"{what} {table.file.path.name}", table.file.size, show) as progress:
        for found in table:
            rows += len(found)
            progress.at(table.file.position, rows)
            yield found
        progress.at(table.file.size, rows)


# ---------------------------------------------------------------------- results


def _validation_outcomes(
    model: SetEstimator, sets: SetCollection, truth: np.ndarray, groups: np.ndarray | None
) -> list[Outcome]:
    if not len(model.validation_):
        say("no validation sets: nothing to say of how good the model is; see `omniset evaluate`")
        return []
    return _outcomes(model, sets, model.validation_, truth, groups)


def _refuse_leaks(table: SetTable, labels: LabelFile | None, columns: Sequence[str], group: str | None) -> None:
    """What is to be predicted, or says which sets belong together, is no feature."""
    if labels is None and group in columns:
        raise table.file.error(None, f"column {group!r} is the group: it cannot be a target too")
    for name in [*(labels.columns if labels else columns), *([group] if group else [])]:
        if name in table.features:
            where = f"of {labels.file.path}" if labels else "too"
            message = f"column {name!r} is a target or the group {where}, and would be learned from as a feature: "
            raise table.file.error(None, message + "take it out of the table, or name the features with --features")


def _outcomes(
    model: SetEstimator, sets: SetCollection, which: np.ndarray, truth: np.ndarray, groups: np.ndarray | None
) -> list[Outcome]:
    """Predictions beside the truth, of each target; elements without label, or with multiplicity 0, left out.

    What intervals draw again are the groups, where there are any, and else the sets.
    """
    frame = pd.concat(model.predictions(sets[int(i)] for i in which), ignore_index=True)
    sizes = sets.sizes[which]
    numbers = np.arange(len(which))
    group = None if groups is None else pd.factorize(groups[which])[0]
    if model.level == "element":
        truth = truth[np.concatenate([np.arange(sets.offsets[i], sets.offsets[i + 1]) for i in which])]
        numbers, group = np.repeat(numbers, sizes), None if group is None else np.repeat(group, sizes)
        sizes = np.repeat(sizes, sizes)
    else:
        truth = truth[which]
    found = []
    for i, name in enumerate(model.targets_):
        there = ~pd.isna(truth[:, i]) & frame[name].notna().to_numpy()
        if not there.any():
            continue
        kind = object if isinstance(model, SetClassifier) else np.float64
        about: dict[str, Any] = {} if group is None else {"groups": group[there]}
        if isinstance(model, SetClassifier):
            classes = [str(c) for c in model._classes[i]]
            prefix = "p_" if model.single_ or len(model.targets_) == 1 else f"p_{name}_"
            columns = frame[[f"{prefix}{c}" for c in classes]].to_numpy(dtype=np.float64)
            about |= {"classes": classes, "probabilities": columns[there]}
        predicted = frame[name].to_numpy(dtype=kind)[there]
        found.append(Outcome(name, truth[there, i].astype(kind), predicted, numbers[there], sizes[there], **about))
    return found


def _telling(outcome: Outcome) -> list[int]:
    """Rows worth a look: the surest right and the surest wrong class, and the least sure; or the least, the median and
    the largest error.
    """
    rows = np.arange(len(outcome.truth))
    if outcome.probabilities is None:
        order = np.argsort(np.abs(outcome.truth - outcome.predicted), kind="stable")
        return list(dict.fromkeys(int(order[i]) for i in (0, len(order) // 2, -1)))
    sure = outcome.probabilities.max(1)
    right = outcome.truth == outcome.predicted
    surest = [part[sure[part].argmax()] for part in (rows[right], rows[~right]) if len(part)]
    return list(dict.fromkeys(int(i) for i in (*surest, sure.argmin())))


def _examples(
    model: SetEstimator, sets: SetCollection, which: np.ndarray, outcomes: list[Outcome], truth: np.ndarray
) -> list[set_report.Example]:
    """Attributions of a few of these sets, where there are any to be had."""
    found = []
    for i in which[_telling(outcomes[0])] if outcomes and model.level == "set" else []:
        stored = sets[int(i)]
        if len(stored) > model.max_elements:  # takes long
            continue
        try:
            layers = model.explain_layers(_alone(model, stored))
        except ValueError:  # an encoder without attention
            return []
        scores = attribution.combine(layers)[0].cpu().numpy()
        largest = max(float(layer.scores.max()) for layer in layers) if len(stored) else 0.0
        frame = next(iter(model.predictions([stored])))
        elements, counts = stored.read()
        found.append(
            set_report.Example(
                set=str(stored.name),
                predicted=frame[model.targets_[0]].iloc[0],
                truth=truth[i, 0],
                elements=[str(e) for e in stored.names_of_elements()],
                multiplicity=_whole(counts.double().numpy()),
                scores=scores.astype(np.float64),
                features={f: elements[:, j].double().numpy() for j, f in enumerate(sets.features or [])},
                layers={a.layer: a.scores[0].double().cpu().numpy() / (largest or 1.0) for a in layers},
                gaps=dict(zip([a.layer for a in layers], attribution.completeness(layers).tolist(), strict=True)),
            )
        )
    return found


def _whole(values: np.ndarray) -> np.ndarray:
    """Counts as integers, weights as they are."""
    return values.astype(np.int64) if (values == np.round(values)).all() else values


def _alone(model: SetEstimator, stored: StoredSet) -> SetCollection:
    """A collection of this set, which stays where it is."""
    bounds = np.array([stored.start, stored.stop])
    return SetCollection(stored.elements, stored.multiplicity, bounds, [stored.name], model.features_)


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
            "score": model.explain(_alone(model, stored), label, steps, method, per)[0].astype(np.float64),
            "explained": "" if method == "attention" else explained,
            "method": method,
            "per": per,
        }
    )


def _kept_epoch(model: SetEstimator) -> int | None:
    """The epoch whose weights were kept: the best on validation, or the last."""
    watched = [h for h in model.history_ if "val_loss" in h]
    if watched and model.patience is not None:
        return int(min(watched, key=lambda h: h["val_loss"])["epoch"])
    return int(model.history_[-1]["epoch"]) if model.history_ else None


def _finish(
    run: set_report.SetRun, out: Path, notes: list[str], model: SetEstimator, save: SetEstimator | None
) -> dict[str, Any]:
    """Write everything, and print what matters."""
    if model.progress:
        print("writing the report", file=sys.stderr)
    run.warnings, run.command = notes, own_command()
    run.provenance = provenance(model.seed, model._device().type)
    metrics = {a.name: a.metrics for a in run.assessments}
    numbers = {
        "on": run.on,
        "metrics": {name: {m.name: _plain(m) for m in found} for name, found in metrics.items()},
        "provenance": run.provenance,
    }
    if save is not None:
        save.save(out, numbers)
    else:
        write_json(out / "metrics.json", numbers)
    write_report(out, set_report.compose(run), set_report.numbers(run))
    multiqc.write(out, out.resolve().name, metrics, run.history)
    _print_metrics(run.on, metrics)
    say_notes(notes)
    say(f"\nWritten to {out}: {'the model, ' if save else ''}metrics.json, report.html, report.json")
    return numbers


def _plain(metric: Metric) -> dict[str, float | None]:
    return {"value": metric.value, "low": metric.low, "high": metric.high}


def _print_metrics(on: str, metrics: dict[str, list[Metric]]) -> None:
    for name, found in metrics.items():
        say(f"\n{name}, on {on}\n\n  {'':28}{'value':>9}   95 % interval")
        for metric in found:
            if metric.value is not None:
                interval = "" if metric.low is None else f"{metric.low:.3f} to {metric.high:.3f}"
                say(f"  {metric.name:28}{metric.value:>9.3f}   {interval}")


def _described(values: pd.DataFrame, task: str) -> str:
    def one(column: str) -> str:
        return f"{column} ({values[column].nunique()} classes)" if task == "classification" else column

    return ", ".join(one(str(c)) for c in values)


def _warn_of_few(values: pd.DataFrame, task: str, level: str) -> None:
    if task != "classification":
        return
    for column in values:
        counts = values[column].value_counts()
        few = counts[counts < 5]
        if len(counts) > 0.5 * counts.sum():
            warnings.warn(
                f"{column}: {len(counts)} classes for {counts.sum()} labelled {level}s: is it meant to be predicted? "
                "--target_columns and --group say what columns are",
                stacklevel=2,
            )
        elif len(few):
            shown = ", ".join(f"{label!r} ({n})" for label, n in few.head(5).items())
            more = f" and {len(few) - 5} more" if len(few) > 5 else ""
            warnings.warn(f"{column}: classes with fewer than 5 {level}s: {shown}{more}", stacklevel=2)
