"""What the commands on sets have in common: a model, sets and labels from files, and what is written beside a model."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators.base import SetEstimator
from omniset.estimators.evaluation import Evaluation, examples
from omniset.estimators.importance import REPEATS, exchanges
from omniset.estimators.inputs import is_empty, task_of, warn_of_empty
from omniset.estimators.mixture import PRIOR
from omniset.estimators.predictors import SetClassifier, SetRegressor
from omniset.estimators.survival import SetSurvival, events_of
from omniset.report.run import Folder
from omniset.runs import folders, processes
from omniset.runs.console import noted, say, say_notes
from omniset.runs.progress import Progress
from omniset.tables.doubts import refuse_equal_rows
from omniset.tables.files import Origin, TableWriter
from omniset.tables.labels import (
    LabelFile,
    Task,
    as_numbers,
    choose_task,
    column_labels,
    require_choice,
    require_known,
)
from omniset.tables.reading import OPTIONS, open_sets
from omniset.tables.sets import SetTable, collect
from omniset.tables.stored import StoredSets
from omniset.tables.survival import as_survival
from omniset.training import artefacts
from omniset.training.located import located
from omniset.trials.comparison import HOLDS

IDENTIFIER = re.compile(r"(.+[_ .-])?(id|barcode|uuid)", re.IGNORECASE)  # columns that are hardly features
SURE, LOOKED = 20, 1_000  # sets, at least and at most, of which is asked whether a feature tells the label
OUT_OF_FOLD, FEATURES, SCORES = "out_of_fold.csv", "features.csv", "scores.csv.gz"
MAKERS: dict[str, type[SetEstimator]] = {
    "classification": SetClassifier,
    "regression": SetRegressor,
    "survival": SetSurvival,
}


def load(folder: Path, overrides: dict[str, Any]) -> Any:
    """A model that `fit` wrote, in one process however it was trained.

    Raises:
        ValueError: torchrun has started several.
    """
    processes.require_alone("a model is used in one process; --scheduler shares many files out")
    makers = {maker.__name__: maker for maker in MAKERS.values()}
    folder = located(folder)
    model = makers.get(artefacts.read_config(folder)["class"], SetClassifier).load(folder)
    alone = {"devices": 1, "num_nodes": 1}
    model.set_params(**alone | {k: v for k, v in overrides.items() if v is not None})
    model.check_arguments()
    return model


# ---------------------------------------------------------------------- sets and labels


@dataclass
class Labels:
    """Where labels are: in a file of their own, or in columns of the table.

    Attributes:
        file: None: in the table.
        columns: Names of the targets. None: all other columns of the file.
        group: Column that says which sets belong together.
        unused: What to do with labels whose set is not in the table.
        event_value: Of survival: what means that the event was seen.
    """

    file: LabelFile | None
    columns: Sequence[str] | None
    group: str | None
    unused: str
    event_value: str | None = None

    @property
    def in_table(self) -> list[str]:
        """Columns of the table that are no features."""
        return [] if self.file is not None else [*(self.columns or []), *([self.group] if self.group else [])]

    def refuse_leaks(self, table: SetTable | StoredSets) -> None:
        """What is to be predicted, or says which sets belong together, is no feature."""
        if self.file is None and self.group in (self.columns or []):
            raise table.file.error(None, f"column {self.group!r} is the group: it cannot be a target too")
        known = self.file.columns if self.file else self.columns or []
        for name in [*known, *([self.group] if self.group else [])]:
            if name in table.columns:
                where = f"of {self.file.file.path}" if self.file else "too"
                message = f"column {name!r} is a target or the group {where}, and would be learned from as a feature: "
                raise table.file.error(None, message + "take it out of the table, or name the features with --features")

    def read(
        self, table: SetTable | StoredSets, level: str, folder: Path, progress: bool
    ) -> tuple[Sets, pd.DataFrame, np.ndarray | None]:
        """The sets, their targets and their groups."""
        wanted = self.in_table
        if self.file is not None:
            wanted = ["element"] if self.file.level == "element" and table.has_elements else []
        shown = watched(table, progress, "reading")
        sets, columns = collect(shown, table.features, folder, wanted, table.encoding, table.stays)
        named = [str(one.name) for one in (sets[number] for number in range(len(sets))) if is_empty(one)]
        warn_of_empty(named, len(sets), str(table.file.path))
        if self.file is None:
            return sets, *column_labels(table.file, sets, columns, self.columns or [], self.group, level)
        aligned = self.file.align(sets, table.file, columns.get("element"), self.unused)
        return sets, aligned[self.file.columns], self.file.groups(sets)

    def task(self, values: pd.DataFrame, source: Origin, task: str, level: str) -> tuple[Task, pd.DataFrame, str]:
        """What is learned, the targets that it is learned from, and a sentence on it."""
        chosen = choose_task(self.file, values, source, task)
        if chosen == "survival":
            values = as_survival(self.file, values, source, 2, self.event_value)
            return chosen, values, events_of(values.to_numpy()[:, 1])
        require_choice(self.file, values, source)
        if chosen == "regression":
            values = as_numbers(self.file, values, source)
        names = [str(name) for name in values]
        return chosen, values, task_of(values.to_numpy(), names, level, chosen == "classification")

    def known_to(self, model: SetEstimator, values: pd.DataFrame, source: Origin) -> pd.DataFrame:
        """Labels as the model predicts them.

        Raises:
            ValueError: Some that it cannot predict.
        """
        if isinstance(model, SetClassifier):
            require_known(self.file, values, source, model.labels_)
            return values
        if isinstance(model, SetSurvival):
            return as_survival(self.file, values, source, 1, self.event_value)
        return as_numbers(self.file, values, source)


def warn_of_features(table: SetTable | StoredSets, sets: Sets, values: pd.DataFrame, level: str) -> None:
    """Of those that are hardly meant: called as an identifier, or each alone what is to be predicted of sets."""
    doubts = [*_leaks(sets, values)] if level == "set" else []
    if found := [name for name in table.features if IDENTIFIER.fullmatch(name)]:
        doubts.append(f"feature {found[0]!r} looks like an identifier, which says nothing of new sets")
    for doubt in doubts:
        warnings.warn(f"{table.file.path}: {doubt}: --ignore leaves it out", stacklevel=2)


def _leaks(sets: Sets, values: pd.DataFrame) -> Iterator[str]:
    """Of features that tell a target alone: in the first elements of sets its classes one to one, or the same line."""
    looked = np.flatnonzero(sets.sizes)[:LOOKED]
    if len(looked) < SURE or not sets.features:
        return
    first = np.stack([sets[number].read(0, 1)[0][0].double().numpy() for number in looked.tolist()])
    for target in values:
        texts = values[target].iloc[looked].astype(str)
        codes, classes = pd.factorize(texts)
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
        for name, column in zip(sets.features, first.T, strict=True):
            kinds = len(np.unique(column))
            told = 1 < kinds == len(classes) <= len(looked) / 3 and len({*zip(column, codes, strict=True)}) == kinds
            with np.errstate(invalid="ignore", divide="ignore"):
                line = kinds > len(looked) / 3 and abs(np.corrcoef(column, numbers)[0, 1]) > 1 - 1e-9
            if told or line:
                where = f"of all {len(looked):,} sets, in their first elements"
                yield f"feature {name!r} alone tells {target!r} {where}, as if it were that"
                break


def read_as(model: SetEstimator, reading: dict[str, Any]) -> dict[str, Any]:
    """How files are read: as at fit, but for what is given."""
    own = {name: value for name, value in model.reading_.items() if name != "event_value"}  # of labels
    return OPTIONS | own | {k: v for k, v in reading.items() if v is not None}


def sets_for(
    model: SetEstimator, path: Path, folder: Path, reading: dict[str, Any], keep: Sequence[str] = ()
) -> SetTable | StoredSets:
    """The sets with the features of the model, whatever their order."""
    encoding = model.expected
    if encoding is None:
        raise ValueError("the model was fitted on arrays without names of features: fit it on a table")
    expected, known = model.expected_columns, [*model.targets_, *model.ignored_]
    how: dict[str, Any] = {"encoding": encoding, "known": known, "most": model.max_elements, "folder": folder}
    sets = open_sets(path, None, keep, **how, **read_as(model, reading))
    here = set(expected)
    if isinstance(sets, SetTable) and [c for c in sets.file.columns if c in here] != expected:
        warnings.warn(f"{path}: features are in another order than at fit; they were matched by name", stacklevel=2)
    return sets


def watched(table: SetTable | StoredSets, show: bool, what: str) -> Iterator[StoredSet]:
    rows = 0
    with Progress(f"{what} {table.file.path.name}", table.file.size, show) as progress:
        for stored in table:
            rows += len(stored)
            progress.at(table.file.position, rows)
            yield stored
        progress.at(table.file.size, rows)


def write_each(
    model: SetEstimator,
    frames: Callable[[Iterator[StoredSet]], Iterator[pd.DataFrame]],
    path: Path,
    out: Path,
    reading: dict[str, Any],
    what: tuple[str, str],
) -> None:
    """Write what `frames` makes of the sets of a file, as they are read; `what` says what is done, and what is made."""
    rows, empty = 0, dict[str, bool]()
    with noted() as notes, TableWriter(out) as writer:
        sets = watched(sets_for(model, path, out.parent, reading), model.progress, what[0])
        for frame in frames(_noting_empty(sets, empty)):
            writer.write(frame)
            rows += len(frame)
        warn_of_empty([name for name, none in empty.items() if none], len(empty), str(path))
    say(f"{rows:,} {what[1]} written to {out}")
    say_notes(notes())


def _noting_empty(sets: Iterator[StoredSet], empty: dict[str, bool]) -> Iterator[StoredSet]:
    """The sets as they come; of each it is noted whether it is empty."""
    for one in sets:
        empty[str(one.name)] = is_empty(one)
        yield one


def told_apart(
    frames: Callable[[Iterator[StoredSet]], Iterator[pd.DataFrame]], path: Path, sets: Iterator[StoredSet]
) -> Iterator[pd.DataFrame]:
    """Vectors of sets, as `frames` makes them.

    Raises:
        ValueError: Most of at least 5 sets have the same vector.
    """
    empty: dict[str, bool] = {}
    digests: list[np.ndarray] = [np.zeros(0, np.uint64)]
    for frame in frames(_noting_empty(sets, empty)):
        digests.append(pd.util.hash_pandas_object(frame.drop(columns="set"), index=False).to_numpy())
        yield frame
    full = [name for name, none in empty.items() if not none]
    there = ~np.array([*empty.values()], dtype=bool)
    refuse_equal_rows(np.concatenate(digests)[there, None], full, file=str(path), what="sets")


def remembered(reading: dict[str, Any]) -> dict[str, Any]:
    """How sets were read, as a model keeps it: without the file of vectors, which is a place of this machine."""
    return {name: value for name, value in reading.items() if value is not None and name != "vectors"}


# ---------------------------------------------------------------------- reports


@dataclass
class Judged:
    """A model on sets with labels.

    Attributes:
        which: Positions of the sets that are looked at.
        on: Which these are, in words.
        importance: Of features, where it was measured, and on which sets.
    """

    model: SetEstimator
    sets: Sets
    values: pd.DataFrame
    groups: np.ndarray | None
    evaluation: Evaluation | None
    which: np.ndarray
    on: str
    importance: pd.DataFrame | None
    measured_on: str

    def report(
        self, folder: Folder, title: str, numbers: dict[str, Any], settings: dict[str, Any], files: Sequence[str]
    ) -> None:
        """Write the report and metrics.json, and print what matters.

        Args:
            numbers: Of metrics.json.
            files: That are written.
        """
        from omniset.report import multiqc
        from omniset.report import sets as set_report
        from omniset.report.data import summarize

        model, evaluation = self.model, self.evaluation
        shown = self.values
        if isinstance(model, SetSurvival):  # events in words
            time, event = self.values
            seen = np.where(self.values[event] == 1, "seen", "not seen")
            shown = pd.DataFrame({time: self.values[time], event: seen})
        fitting = title.startswith("Model")
        run = set_report.SetRun(
            summarize(self.sets, shown),
            on=self.on,
            history=model.history_ if fitting else [],
            kept_epoch=_kept_epoch(model) if fitting else None,
            outcomes=[] if evaluation is None else evaluation.outcomes,
            comparison=None if evaluation is None else evaluation.comparison,
            examples=examples(model, self.sets, self.which, evaluation, self.values.to_numpy()),
            chosen=model.chosen_,
            importance=self._mattered(folder),
        )
        if model.progress:
            print("writing the report", file=sys.stderr)
        simpler = [*self._simpler()]
        notes = [*simpler, *model.notes_[1:], *model.notes_[:1]]  # the most telling first: a page begins with two
        folder.write(
            set_report.compose(folder.about(title, notes), run, settings),
            metrics={**numbers, "on": self.on, "provenance": folder.provenance},
            scores={} if evaluation is None else multiqc.of_ours(evaluation.comparison),
            histories={"": run.history} if run.history else {},
            files=[*files, *([] if self.importance is None else [FEATURES])],
            lines=[*run.lines(), *simpler],
        )

    def _mattered(self, folder: Folder) -> Any:
        from omniset.report.sets import Importance

        if self.importance is None:
            return None
        with TableWriter(folder.path / FEATURES) as writer:
            writer.write(self.importance)
        loss = "log loss" if self.model.classifies else "squared error"
        loss = "negative log likelihood" if self.model.MIXTURE.risks else loss
        unit, often = "set" if self.groups is None else "group", exchanges(self.sets)
        times = "once" if often == 1 else f"{often} times"
        few = f"Values were exchanged {times}, as there is much to read: intervals are wider than they could be."
        return Importance(self.importance, self.measured_on, unit, loss, few if often < REPEATS else "")

    def _simpler(self) -> Iterator[str]:
        """How to fit the best simple method alone, where `fit` found nothing better: `evaluate` is not to choose by."""
        model = self.model
        if self.evaluation is None or model.alone is not None or model.out_of_fold_ is None:
            return
        for gate in self.evaluation.comparison.gates[:1]:
            if gate.verdict != HOLDS and gate.opponent in model.MIXTURE.SIMPLE and gate.opponent != PRIOR:
                yield f"{gate.opponent} is simpler: `omniset fit` with --method {gate.opponent} fits it alone"


def _kept_epoch(model: SetEstimator) -> int | None:
    """The epoch whose weights were kept: the best on validation, or the last. Of several networks, None."""
    if model.single is None:
        return None
    seen = [h for h in model.history_ if "val_loss" in h]
    if seen and model.patience is not None:
        return int(min(seen, key=lambda h: h["val_loss"])["epoch"])
    return int(model.history_[-1]["epoch"]) if model.history_ else None


# ---------------------------------------------------------------------- explanations


MAPS = "maps of explain"


class Maps:
    """Heat maps of the scores of elements that have a place, drawn into a folder that is not there before the first.

    Attributes:
        folder: Where the maps are in the end.
        number: How many there are.
    """

    def __init__(self, folder: Path, waiting: Path) -> None:
        self.folder, self.number = folder, 0
        self._waiting = waiting

    def draw(self, stored: StoredSet, explained: pd.DataFrame) -> Float[np.ndarray, "elements xy"]:
        """Draw the scores of a set.

        Args:
            explained: Its rows of the table of scores.

        Returns:
            The places of its elements; NaN where they have none.
        """
        if "coords" not in stored.columns:
            return np.full((len(stored), 2), np.nan)
        places: Float[np.ndarray, "elements xy"] = stored.columns["coords"]()
        if len(places):
            from omniset.report import plots

            method, what = (str(explained[column].iloc[0]) for column in ("method", "explained"))
            title = f"{stored.name}: {what}" if what else str(stored.name)
            figure = plots.heat_map(places, explained["score"].to_numpy(np.float64), title.replace("$", r"\$"), method)
            plots.save(figure, self._waiting / f"{stored.name}.png")
            self.number += 1
        return places


@contextmanager
def maps_beside(out: Path) -> Iterator[Maps]:
    """Maps in a folder named as the table, `scores.csv` and `scores-maps/`. Where the table fails there are none.

    Raises:
        OSError: The folder cannot be written to.
        ValueError: It is there already, and not of an earlier command of this kind that may be replaced.
    """
    folder = out.with_name(f"{out.name.partition('.')[0]}-maps")
    folders.check(folder, [MAPS], folders.REPLACE.get())
    if not out.parent.is_dir():
        yield Maps(folder, out.parent)  # the table says so
        return
    with tempfile.TemporaryDirectory(prefix=".omniset-", dir=out.parent) as waiting:
        work = Path(waiting) / folder.name
        work.mkdir()
        maps = Maps(folder, work)
        yield maps
        if maps.number:
            folders.finish(work, MAPS, "")
            folders.swap(work, folder)
