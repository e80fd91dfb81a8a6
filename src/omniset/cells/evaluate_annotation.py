"""Our annotation beside those of `omniset.cells.baselines`, on batches and types that no method has seen.

"Half labelled": all cells are taken for one batch, half of them, at random, have a label, and the others are called. A
batch is left out altogether, and its cells are called by what the others teach. "Types removed": besides, one type at a
time is taken out of the reference, vectors included; its cells are then unknown, the others of the batch are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from omniset.cells.annotator import FEW_BATCHES, CellAnnotator
from omniset.cells.baselines import CALLERS
from omniset.cells.data import UNKNOWN, numbered_anew, opened
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import Task, Work, asked_for
from omniset.runs.files import plain
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import Draws, Values
from omniset.trials.kept import Done, Kept

HALF, NEW, REMOVED = "half labelled", "new batches", "types removed"
TYPE_CELLS = 20  # in the batch left out, for a type to be removed
DRAWS = 200
NO_BATCH = -1  # is left out, but half of the labels
BINS = 10  # of stated probabilities
NAMES = {
    OURS: "ours",
    "logistic": "logistic regression on genes",
    "balanced": "logistic regression on genes, types weigh alike",
    "pca": "logistic regression on principal components",
    "symphony": "neighbours, batches corrected",
}


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


def calibration_error(rows: pd.DataFrame, draws: Draws) -> Values:
    """Sum over bins of stated probabilities of |sum of (probability - right)| / known cells."""
    part = rows[~rows["unknown"]]
    p, right = (part[name].to_numpy(dtype=float) for name in ("probability", "right"))
    of_bin = np.minimum((p * BINS).astype(np.int64), BINS - 1)[:, None] == np.arange(BINS)
    drawn = _drawn(draws, rows, part)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(drawn.sums((p - right)[:, None] * of_bin)).sum(1) / drawn.sums(np.ones((len(p), 1)))[:, 0]


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
    Score("ece", "calibration error", larger=False, share=True, formula=calibration_error, draws=DRAWS),
    Score("kept", "known cells kept", share=True),
    Score("auroc", "AUROC of unknown", share=True, formula=unknown_auroc, draws=DRAWS),
    Score("found", "unknown cells found", share=True),
)
AIMS = (
    Aim(HALF, "right"),
    Aim(HALF, "f1"),
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
            `probability` of the call, `strangeness`, `unknown` (whether it is of the removed type), `kept` and `found`
            (ours: that a known cell is not called unknown, that an unknown one is).
        weights: Of our methods, a row per case; with `said`, the share that `fit` says it calls rightly.
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
        return Comparison(rows, SCORES, unit, unit, keys, tuple(CALLERS), AIMS, names=NAMES)

    def numbers(self) -> dict[str, Any]:
        about = {"weights": self.weights.to_dict("records"), "not_run": self.not_run, "notes": self.notes}
        return plain({**self.comparison.numbers(), **about})


def evaluate_annotation(
    source: Any,
    *,
    batch_key: str | None,
    label_key: str,
    model: CellEmbedder | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    removed: int = 6,
    kept: Kept | None = None,
    **reading: Any,
) -> AnnotationEvaluation:
    """Leave out half of the labels, then a batch at a time, and then a type too.

    Args:
        source, batch_key, label_key, reading: As in `omniset.cells.evaluate.evaluate`.
        model: Has the options of our vectors, of which `seed` is the first seed. None: the defaults.
        methods: Baselines, out of `omniset.cells.baselines.CALLERS`; None: all.
        seeds: How many, from the first on. Types are removed with the first seed only.
        removed: Types removed of each batch, at most: the most frequent of those with at least 20 cells there.
        kept: What an earlier run has done, which is not done again. None: nothing is kept.

    Raises:
        ValueError: An argument out of its bounds, no such column, or fewer than two types of two cells.
    """
    chosen = [OURS, *asked_for(methods, list(CALLERS), seeds)]
    if model is not None and model.given_vectors() is not None:
        raise ValueError("model has gene vectors, which no annotation reads: take one without")
    with opened(source, **reading) as cells:
        task = Task.of(cells, batch_key, label_key, model)
        types, numbers = np.unique(task.labels[pd.notna(task.labels)].astype(str), return_counts=True)
        if (numbers > 1).sum() < 2:
            raise ValueError("label_key: half of the labels cannot be left out, since no two types have two cells")
        work, first = Work(task, kept or Kept(None, False)), task.model.seed
        if not len(task.leavable()):
            work.note("no batch is left out, since none shares two types with the others")
        cases: list[tuple[int, int, str | None]] = []
        for seed in range(first, first + seeds):
            cases += [(seed, code, None) for code in (NO_BATCH, *task.left_out(seed).tolist())]
        for code in task.left_out(first).tolist():
            cases += [(first, code, name) for name in _removable(task, code, removed)]
        rows: list[pd.DataFrame] = []
        weights: list[dict[str, Any]] = []
        for seed, code, without in cases:
            batch = HALF if code == NO_BATCH else str(task.batches[task.codes == code][0])
            for name in [name for name in chosen if without is None or name != "symphony"]:
                condition = REMOVED if without else HALF if code == NO_BATCH else NEW
                number = types.tolist().index(without) if without else -1
                unit = f"{condition.split()[0]}_{seed}_{code}_{name}_{number}"
                line = f"seed {seed}: {name}, {'' if condition == HALF else 'without '}{batch}"
                line += f" and {without}" if without else ""
                call_all = partial(_called, task, name, seed, code, without)
                done = work.do(unit, name, seed, call_all, line, removed=without)
                if done is None or done.rows is None:
                    continue
                about: dict[str, Any] = {"condition": condition, "method": name, "seed": seed}
                rows.append(done.rows.assign(**about, batch=task.batches[done.rows["cell"]], removed=without or ""))
                if "weights" in done.facts:
                    weights.append({**about, "batch": batch, "removed": without or "", **done.facts["weights"]})
        found = pd.concat(rows, ignore_index=True), pd.DataFrame(weights)
        return AnnotationEvaluation(*found, work.not_run, [*cells.notes, *work.notes])


def _removable(task: Task, code: int, most: int) -> list[str]:
    """Types of a batch, most frequent first, that can be removed from the others: none of two that they share."""
    here, there = task.labels[task.codes == code], {*task.labels[task.codes != code]}
    names, numbers = np.unique(here[here != None].astype(str), return_counts=True)  # noqa: E711
    both = [(str(names[i]), numbers[i]) for i in np.argsort(-numbers, kind="stable") if names[i] in there]
    return [name for name, number in both if number >= TYPE_CELLS][:most] if len(both) > 2 else []


def _called(task: Task, name: str, seed: int, code: int, removed: str | None) -> Done:
    """A row per cell that is left out and of a type of the reference, or of the removed one."""
    codes, labels, out = task.codes, task.labels, task.codes == code
    if code == NO_BATCH:
        every = np.random.default_rng(seed).permutation(np.flatnonzero(pd.notna(labels)))
        codes, out = np.zeros_like(codes), np.isin(np.arange(len(codes)), every[::2])
        labels = labels.copy()
        labels[out] = None
    train = np.flatnonzero((~out | (code == NO_BATCH)) & (task.labels != removed if removed else True))
    known = {label for label in labels[train] if label is not None} | ({removed} - {None})
    test = np.array([row for row in np.flatnonzero(out) if task.labels[row] in known])
    truth, facts = task.labels[test].astype(str), {}
    unknown = np.isin(truth, [removed] if removed else [])
    if name == OURS:
        annotator, embedder = CellAnnotator(seed=seed, progress=False), task.ours(seed)
        codes = numbered_anew(codes, train)
        if removed is not None:  # once for all folds: what counts here is that no vectors know the type
            embedder.fit_cells(task.cells, codes, train)
        annotator.fit_cells(task.cells, codes, train, labels, "type", embedder)
        table = annotator.annotate_cells(task.cells, test).table
        calls, strangeness = table["type"].to_numpy(dtype=str), table["strangeness"].to_numpy(dtype=float)
        said = {"said": annotator.kept_back_["right"]}
        refused, facts = table["label"].to_numpy(dtype=object) == UNKNOWN, {"weights": annotator.weights_ | said}
        sure = table["probability"].to_numpy(dtype=float)
    else:
        labelled = train[[labels[row] is not None for row in train]]
        batches = np.unique(codes[labelled], return_inverse=True)[1]
        counts, types = task.counts, labels[labelled].astype(str)
        calls, strangeness = CALLERS[name](counts[labelled], types, batches, counts[test], seed)
        refused, sure = None, 1 - strangeness
    rows = pd.DataFrame({"cell": test, "truth": truth, "call": calls.astype(str), "strangeness": strangeness})
    rows["probability"], rows["unknown"] = sure, unknown
    rows["right"] = np.where(unknown, np.nan, rows["truth"] == rows["call"])
    rows["kept"] = np.nan if refused is None else np.where(unknown, np.nan, ~refused)
    rows["found"] = np.nan if refused is None else np.where(unknown, refused, np.nan)
    return Done(facts, rows)
