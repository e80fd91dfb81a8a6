"""Our annotation beside those of `omniset.cells.baselines`, on batches and types that no method has seen.

A batch is left out altogether, and its cells are called by what the others teach. "Types removed": besides, one type
at a time is taken out of the reference, vectors included; its cells are then unknown, the others of the batch are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.cells.annotator import CellAnnotator
from omniset.cells.baselines import CALLERS, call
from omniset.cells.data import UNKNOWN, numbered_anew, opened
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import Task
from omniset.runs.files import plain
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import Draws, Values
from omniset.trials.kept import Done, Kept

NEW, REMOVED = "new batches", "types removed"
FEW_BATCHES = 5  # fewer, and intervals are of cells
TYPE_CELLS = 20  # in the batch left out, for a type to be removed
DRAWS = 200


def macro_f1(rows: pd.DataFrame, draws: Draws) -> Values:
    """Mean over types of 2 TP / (true + called), true or called of a known cell; over seeds."""
    means = []
    for _, part in rows[~rows["unknown"]].groupby("seed", sort=False):
        truth, calls = part["truth"].to_numpy(dtype=object), part["call"].to_numpy(dtype=object)
        types = np.unique(np.concatenate([truth, calls]).astype(str))
        true, called = (values[:, None] == types for values in (truth, calls))
        of_seed = _drawn(draws, rows, part)
        hits, sizes = of_seed.sums((true & called).astype(float)), of_seed.sums(true.astype(float) + called)
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append(_mean(2 * hits / sizes, 1))
    return _mean(np.array(means).reshape(-1, len(draws)), 0)


def unknown_auroc(rows: pd.DataFrame, draws: Draws) -> Values:
    """Mean over removed types, batches and seeds of the chance that an unknown cell is stranger than a known one."""
    values = []
    for _, part in rows.groupby(["seed", "batch", "removed"], sort=False):
        weights = _drawn(draws, rows, part).rows()
        new, x = part["unknown"].to_numpy(dtype=bool), part["strangeness"].to_numpy(dtype=float)
        order = np.argsort(x, kind="stable")
        _, group = np.unique(x[order], return_inverse=True)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        of_new, of_known = (np.add.reduceat(weights[:, order] * kind[order], starts, axis=1) for kind in (new, ~new))
        below = np.cumsum(of_known, 1) - of_known / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            values.append((of_new * below).sum(1) / (of_new.sum(1) * of_known.sum(1)))
    return _mean(np.array(values).reshape(-1, len(draws)), 0)


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Of those that are defined; NaN where none is."""
    defined = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(defined, values, 0).sum(axis) / defined.sum(axis)


def _drawn(draws: Draws, rows: pd.DataFrame, part: pd.DataFrame) -> Draws:
    return Draws(draws.codes[rows.index.get_indexer(part.index)], draws.weights)


SCORES = (
    Score("f1", "macro-F1", share=True, formula=macro_f1, draws=DRAWS),
    Score("right", "accuracy", share=True),
    Score("kept", "known cells kept", share=True),
    Score("auroc", "AUROC of unknown", share=True, formula=unknown_auroc, draws=DRAWS),
    Score("found", "unknown cells found", share=True),
)
AIMS = (
    Aim(NEW, "f1"),
    Aim(NEW, "kept", None, 0.95),
    Aim(REMOVED, "auroc", None, 0.9),
    Aim(REMOVED, "auroc"),
    Aim(REMOVED, "kept", None, 0.95),
)


@dataclass
class AnnotationEvaluation:
    """What was measured.

    Attributes:
        rows: A row per condition, method, seed, batch left out, removed type and cell: `truth`, `call`, `right`,
            `strangeness`, `unknown` (whether it is of the removed type), `kept` and `found` (ours: that a known cell is
            not called unknown, that an unknown one is).
        weights: Of our methods, a row per seed and batch.
        not_run: Baselines that were not run, and why.
        notes: What was decided, a sentence each.
    """

    rows: pd.DataFrame
    weights: pd.DataFrame
    not_run: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def comparison(self) -> Comparison:
        several = self.rows["batch"].nunique() >= FEW_BATCHES
        rows = self.rows.reset_index(drop=True)
        keys = ["batch", "removed", "seed", "cell"]
        unit = "batch" if several else "cell"
        return Comparison(rows, SCORES, unit, unit, keys, tuple(CALLERS), AIMS)

    def numbers(self) -> dict[str, Any]:
        about = {"weights": self.weights.to_dict("records"), "not_run": self.not_run, "notes": self.notes}
        return plain({**self.comparison.numbers(), **about})


def evaluate_annotation(
    source: Any,
    *,
    batch_key: str | None,
    label_key: str,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    removed: int = 6,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    layer: str | None = None,
    input: str = "auto",  # noqa: A002
    gene_column: str | None = None,
    **arguments: Any,
) -> AnnotationEvaluation:
    """Leave out a batch at a time, and then a type too.

    Args:
        source, batch_key, label_key, folder, resume, say, layer, input, gene_column: As in
            `omniset.cells.evaluate.evaluate`.
        methods: Baselines, out of `omniset.cells.baselines.CALLERS`; None: all.
        seeds: How many, from the first on. Types are removed with the first seed only.
        removed: Types removed of each batch, at most: the most frequent of those with at least 20 cells there.
        arguments: Of CellEmbedder; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no such column, or no batch that can be left out.
    """
    chosen = list(CALLERS if methods is None else methods)
    if unknown := [name for name in chosen if name not in CALLERS]:
        raise ValueError(f"methods must be out of {', '.join(CALLERS)}; got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    first = arguments.pop("seed", 0)
    CellEmbedder(**arguments, seed=first).check_arguments()
    with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
        task = Task.of(cells, batch_key, label_key, first)
        if not len(task.leavable()):
            raise ValueError("batch_key: no batch can be left out, since none shares two types with the others")
        settings = {"arguments": arguments, "batch_key": batch_key, "label_key": label_key, "data": task.checksum}
        work = _Work(task, arguments, Kept(folder, resume, say), settings, say)
        for seed in range(first, first + seeds):
            work.new_batches(seed, [OURS, *chosen])
        work.types_removed(
            first, [OURS, *(name for name in chosen if name in ("logistic", "balanced", "pca"))], removed
        )
        return AnnotationEvaluation(
            pd.concat(work.rows, ignore_index=True),
            pd.DataFrame(work.weights),
            work.not_run,
            [*cells.notes, *work.notes],
        )


@dataclass
class _Work:
    task: Task
    arguments: dict[str, Any]
    store: Kept
    settings: dict[str, Any]
    say: Callable[[str], None]
    rows: list[pd.DataFrame] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def new_batches(self, seed: int, methods: list[str]) -> None:
        for code in self.task.left_out(seed):
            for name in methods:
                self._do(NEW, name, seed, int(code), None)

    def types_removed(self, seed: int, methods: list[str], most: int) -> None:
        task = self.task
        for code in self.task.left_out(seed):
            here, there = task.codes == code, task.codes != code
            names, numbers = np.unique(task.labels[here & (task.labels != None)].astype(str), return_counts=True)  # noqa: E711
            both = [n for n in names[np.argsort(-numbers, kind="stable")] if n in set(task.labels[there])]
            large = [n for n in both if (task.labels[here] == n).sum() >= TYPE_CELLS][:most]
            for removed in large if len(both) > 2 else []:
                for name in methods:
                    self._do(REMOVED, name, seed, int(code), removed)

    def _do(self, condition: str, name: str, seed: int, code: int, removed: str | None) -> None:
        if name in self.not_run:
            return
        batch = str(self.task.batches[self.task.codes == code][0])
        unit = f"{'new' if removed is None else 'removed'}_{seed}_{code}_{name}_{_number(self.task, removed)}"
        line = f"seed {seed}: {name}, without {batch}" + (f" and {removed}" if removed else "")
        work = partial(_called, self.task, self.arguments, name, seed, code, removed)
        try:
            done = self.store.do(unit, {**self.settings, "seed": seed, "removed": removed}, work, line=line)
        except ImportError as error:
            self.not_run[name] = str(error)
            self.notes.append(f"{name} was not run: {error}")
            return
        assert done.rows is not None
        about: dict[str, Any] = {"condition": condition, "method": name, "seed": seed, "batch": batch}
        about["removed"] = removed or ""
        self.rows.append(done.rows.assign(**about))
        if "weights" in done.facts:
            self.weights.append({**about, **done.facts["weights"]})


def _number(task: Task, removed: str | None) -> int:
    return -1 if removed is None else sorted({label for label in task.labels if label is not None}).index(removed)


def _called(task: Task, arguments: dict[str, Any], name: str, seed: int, code: int, removed: str | None) -> Done:
    """A row per cell of the batch left out that is of a type of the reference, or of the removed one."""
    train = np.flatnonzero((task.codes != code) & (task.labels != removed if removed else True))
    known = {label for label in task.labels[train] if label is not None}
    test = np.array(
        [row for row in np.flatnonzero(task.codes == code) if task.labels[row] in known | {removed} - {None}]
    )
    truth, facts = task.labels[test].astype(str), {}
    unknown = np.isin(truth, [removed] if removed else [])
    if name == OURS:
        annotator, embedder = CellAnnotator(seed=seed, progress=False), CellEmbedder(**arguments, seed=seed)
        codes = numbered_anew(task.codes, train)
        if removed is not None:  # once for all folds: what counts here is that no vectors know the type
            embedder.fit_cells(task.cells, codes, train)
        annotator.fit_cells(task.cells, codes, train, task.labels, "type", embedder)
        table = annotator.annotate_cells(task.cells, test).table
        calls, strangeness = table["type"].to_numpy(dtype=str), table["strangeness"].to_numpy(dtype=float)
        refused, facts = table["label"].to_numpy(dtype=object) == UNKNOWN, {"weights": annotator.weights_}
    else:
        labelled = train[[task.labels[row] is not None for row in train]]
        batches = np.unique(task.codes[labelled], return_inverse=True)[1]
        counts, types = task.counts, task.labels[labelled]
        calls, strangeness = call(name, counts[labelled], types, batches, counts[test], seed)
        refused = None
    rows = pd.DataFrame({"cell": test, "truth": truth, "call": calls.astype(str), "strangeness": strangeness})
    rows["right"] = np.where(unknown, np.nan, rows["truth"] == rows["call"])
    rows["unknown"] = unknown
    rows["kept"] = np.nan if refused is None else np.where(unknown, np.nan, ~refused)
    rows["found"] = np.nan if refused is None else np.where(unknown, refused, np.nan)
    return Done(facts, rows)
