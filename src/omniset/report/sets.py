"""The report on a model of sets: training and evaluation share it, and every part may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Real

from omniset.report import figures, frame
from omniset.report.blocks import (
    Block,
    Cell,
    Note,
    Plot,
    Report,
    Section,
    Table,
    between,
    listed,
    many,
    rounded,
    text_of,
    whole,
)
from omniset.report.data import DataSummary
from omniset.trials.comparison import OURS, Comparison, few_units
from omniset.trials.importances import in_words
from omniset.trials.outcomes import Assessment, Metric, Outcome, SizeGroup, assess
from omniset.trials.survival import Steps, kaplan_meier

SHOWN = {"classes": 30, "half width": 6, "confusions": 20, "elements": 10, "element features": 8, "bars": 20}
FOLDED = 200  # rows of the table of features


@dataclass
class Example:
    """Which elements drove the prediction for one set.

    Args:
        elements: Names, or numbers of rows.
        multiplicity: (elements,)
        scores: (elements,) attribution from 0 to 1.
        features: By name, (elements,) values.
        removal: Scores are how much the prediction falls without the element, not attribution of attention.
    """

    set: str
    predicted: Any
    truth: Any
    elements: list[str]
    multiplicity: Real[np.ndarray, " elements"]
    scores: Float[np.ndarray, " elements"]
    features: dict[str, Real[np.ndarray, " elements"]] = field(default_factory=dict)
    removal: bool = False

    def highest(self) -> Example:
        """Its elements of highest score, the first first."""
        order = np.argsort(-self.scores, kind="stable")[: SHOWN["elements"]]
        features = {name: values[order] for name, values in self.features.items()}
        elements = [self.elements[i] for i in order]
        return replace(
            self,
            elements=elements,
            multiplicity=self.multiplicity[order],
            scores=self.scores[order],
            features=features,
        )


@dataclass
class Importance:
    """Which features mattered.

    Attributes:
        table: As `omniset.trials.importances.table_of` gives it.
        on: Which sets, such as "sets left out".
        unit: What intervals and p are over, in the singular.
        loss: Which increases.
        exchanged: How often the values of each set were, where that was less often than usual.
    """

    table: pd.DataFrame
    on: str
    unit: str
    loss: str
    exchanged: int | None = None

    def fewer(self) -> list[str]:
        """A sentence, where values were exchanged less often than usual."""
        if self.exchanged is None:
            return []
        times = "once" if self.exchanged == 1 else f"{self.exchanged} times"
        return [f"Values were exchanged {times}, as there is much to read: intervals are wider than they could be."]


@dataclass
class SetRun:
    """What a run on sets has shown.

    Args:
        on: Which data the outcomes are on, such as "validation sets (10 % of the sets, kept back)".
        history: A dict per epoch with `epoch` and quantities, such as train_loss and val_loss.
        kept_epoch: Whose weights were kept.
        outcomes: Of ours, one for each target.
        comparison: Of ours with baselines; its conditions are the targets.
        chosen: Values of options that `fit` chose by the data.
        importance: Of features, where it was measured.
    """

    on: str = ""
    data: DataSummary | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    comparison: Comparison | None = None
    examples: list[Example] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    importance: Importance | None = None

    @cached_property
    def assessments(self) -> list[Assessment]:
        return [assess(outcome, measured=self._measured(outcome)) for outcome in self.outcomes]

    def _measured(self, outcome: Outcome) -> list[Metric] | None:
        """The metrics that the comparison has."""
        if self.comparison is None:
            return None
        metrics = []
        for name, measure in outcome.measures.items():
            interval = self.comparison.interval(name, outcome.name, OURS)
            value, low, high = (v if np.isfinite(v) else None for v in (interval.value, interval.low, interval.high))
            metrics.append(Metric(name, value, low, high, measure.text))
        return metrics

    def lines(self) -> Iterator[str]:
        """What a terminal shows."""
        if self.comparison is None:
            return
        yield f"\non {self.on}"
        yield from self.comparison.lines()
        for assessed in self.assessments:
            others = [f"{m.name} {m.value:.3f}" for m in assessed.metrics[1:] if m.value is not None]
            yield f"{assessed.name}, further scores of ours: {', '.join(others)}"
        if (found := self.importance) is not None:
            yield from ("", "importance of features by permutation", *in_words(found.table, found.unit), *found.fewer())
        yield ""


def compose(about: frame.Run, run: SetRun, settings: Mapping[str, Any]) -> tuple[Report, dict[str, Any]]:
    """The report, and all that it shows for report.json: data, learning curves, every target, examples, settings."""
    lead, on = f"Evaluated on {run.on}." if run.outcomes and run.on else "", f" on {run.on}" if run.on else ""
    if run.data is not None:
        lead = f"{many(run.data.sets, 'set')} of {many(run.data.elements, 'element')} in all. {lead}".rstrip()
    headline: list[tuple[str, Any, str]] = []
    summary: list[Block] = []
    text = "How good the predictions are is not known: no sets were kept back to compare with."
    if len(run.outcomes) == 1:
        (assessed,) = run.assessments
        text = f"Predictions of {assessed.name}{on}, with 95 % intervals."
        headline = [(m.name, m.value, _interval_text(m)) for m in assessed.metrics[:4]]
    elif run.outcomes:
        text = f"Predictions of {len(run.outcomes)} targets{on}."
        rows = [[assessed.name, *_metric_row(assessed.metrics[0])] for assessed in run.assessments]
        summary = [Table("The first metric of each target.", ["target", "metric", "value", "95 % interval"], rows)]
    trained = f"Training took {many(len(run.history), 'epoch')}"
    trained += "." if run.kept_epoch is None else f"; the model that was kept is that of epoch {run.kept_epoch}."
    history = {"": run.history} if run.history else {}
    sections = [
        Section("Data", "The data were not summarised.") if run.data is None else run.data.section(),
        frame.learning(history, kept_epochs={"": run.kept_epoch}, text=trained),
        *(_target(run, *pair) for pair in zip(run.outcomes, run.assessments, strict=True)),
        *([] if run.importance is None else [importance_section(run.importance)]),
        _examples(run.examples, learned=bool(run.history)),
    ]
    numbers = {
        "on": run.on,
        "data": None if run.data is None else run.data.as_dict(),
        "history": run.history,
        "kept_epoch": run.kept_epoch,
        "targets": [assessed.as_dict() for assessed in run.assessments],
        "examples": [asdict(example.highest()) for example in run.examples],
        "importance": None if run.importance is None else run.importance.table.to_dict("records"),
    }
    parts: dict[str, Any] = {"headline": headline, "summary": summary, "text": text, "comparison": run.comparison}
    return frame.compose(about, lead, sections, numbers, settings=settings, chosen=run.chosen, **parts)


# ---------------------------------------------------------------------- targets


def _target(run: SetRun, outcome: Outcome, assessed: Assessment) -> Section:
    rows = [[*_metric_row(m), m.description] for m in assessed.metrics]
    units = "sets" if outcome.groups is None else "groups of sets"
    caption = f"Intervals are of what other {units} would give."
    blocks: list[Block] = [Table(caption, ["metric", "value", "95 % interval", "what it is"], rows)]
    if run.comparison is not None:
        names = [score.name for score in run.comparison.scores]
        caption = f"Methods beside ours, best {names[0]} first."
        blocks.append(frame.methods(run.comparison, outcome.name, names, caption=caption))
    if outcome.events is not None:
        blocks += _survival(outcome)
    else:
        blocks += _classes(assessed) if outcome.classifies else _values(outcome)
    if groups := assessed.by_size:
        rows = [[Cell(_size_range(g), g.smallest), g.sets, *_metric_row(g.score)[1:]] for g in groups]
        columns = ["elements per set", "sets", groups[0].score.name, "95 % interval"]
        blocks.append(Table("Groups of sets of similar size.", columns, rows, half=True))
    text = f"{many(assessed.rows, 'prediction')} for {many(assessed.sets, 'set')}."
    return Section(f"Target: {outcome.name}", text if assessed.rows else "No set has a known truth.", blocks)


def _classes(assessed: Assessment) -> Iterator[Block]:
    labels, counts = assessed.classes or [], np.array(assessed.confusion)
    few = len(labels) <= SHOWN["half width"]
    if len(labels) <= SHOWN["classes"]:
        recall = listed({c.label: c.recall for c in assessed.by_class})
        alt = f"Confusion matrix of {len(labels)} classes. Recall: {recall}."
        caption = "Confusion matrix: true classes down, predicted ones across. Colour: fraction of the true class."
        yield Plot(figures.confusion_matrix(counts, labels), alt, caption, half=few)
    else:
        wrong = np.where(np.eye(len(labels), dtype=bool), 0, counts)
        order = np.argsort(-wrong, axis=None, kind="stable")[: SHOWN["confusions"]]
        pairs = [divmod(int(place), len(labels)) for place in order]
        rows = [[labels[i], labels[j], counts[i, j], counts[i, j] / counts[i].sum()] for i, j in pairs if wrong[i, j]]
        columns = ["true class", "predicted as", "predictions", "fraction of the true class"]
        yield Table("The most frequent confusions.", columns, rows)
    by_class: list[list[Any]] = [[c.label, c.true, c.predicted, c.recall, c.precision, c.f1] for c in assessed.by_class]
    yield Table("Class by class.", ["class", "true", "predicted", "recall", "precision", "F1"], by_class, half=few)
    rows = [[label, *row] for label, row in zip(labels, counts.tolist(), strict=True)]
    yield Table("Confusion matrix as a table", ["true class", *labels], rows, folded=True)
    filled = [b for b in assessed.calibration if b.confidence is not None and b.right is not None]
    alt = f"Fraction right against mean confidence: {listed({f'{b.confidence:.2f}': b.right for b in filled})}."
    caption = "Calibration: points on the dotted line are as often right as they are confident."
    curve = {OURS: [(b.count, float(b.confidence or 0), float(b.right or 0)) for b in filled]}
    yield Plot(figures.calibration_curves(curve, least=1), alt, caption)
    rows = [[Cell(f"{b.low:.1f} to {b.high:.1f}", b.low), b.count, b.confidence, b.right] for b in assessed.calibration]
    columns = ["confidence", "predictions", "mean confidence", "fraction right"]
    yield Table("Calibration by confidence.", columns, rows, half=True)


def _values(outcome: Outcome) -> Iterator[Block]:
    truth, predicted = outcome.numbers
    alt = f"Predicted against true values of {many(len(truth), 'row')}."
    drawn = figures.scatter(truth, predicted, "true value", "predicted value")
    yield Plot(drawn, alt, "Predicted against true values.", half=False)


def _survival(outcome: Outcome) -> Iterator[Block]:
    """How long the sets of low, middle and high risk were without the event."""
    time, risk = outcome.numbers
    events = np.asarray(outcome.events, dtype=bool)
    if not len(time):
        return
    third = np.searchsorted(np.quantile(risk, [1 / 3, 2 / 3]), risk, side="left")
    curves: dict[str, tuple[Steps, float]] = {}
    rows: list[list[Any]] = []
    for number, name in enumerate(("low risk", "middle risk", "high risk")):
        there = third == number
        if there.any():
            alive = kaplan_meier(time[there], events[there])
            curves[name] = alive, float(time[there].max())
            below = alive.times[alive.values <= 0.5]
            middle = float(below[0]) if len(below) else "not reached"
            rows.append([name, int(there.sum()), int(events[there].sum()), middle])
    medians = listed({str(row[0]): row[3] for row in rows})
    alt = f"Kaplan-Meier curves of {many(len(curves), 'group')}. Median times: {medians}."
    caption = "Share without the event (Kaplan-Meier), by thirds of the predicted risk."
    yield Plot(figures.survival_curves(curves), alt, caption)
    yield Table("Thirds of the predicted risk.", ["predicted", "predictions", "events", "median time"], rows, half=True)


# ---------------------------------------------------------------------- features, and examples


def importance_section(importance: Importance) -> Section:
    """How much each feature matters, target by target, beside what chance gives."""
    units = int(importance.table["units"].iloc[0])
    text = (
        f"How much the {importance.loss} increases, on {importance.on}, where the values of one feature are those of "
        "another set. Features that go together can stand in for each other, and then none of them matters alone. "
        f"{' '.join([few_units(units, importance.unit), *importance.fewer()])}"
    ).strip()
    blocks: list[Block] = []
    of_targets = importance.table.groupby("target", sort=False)
    for (target, rows), said in zip(of_targets, in_words(importance.table, importance.unit), strict=True):
        top = rows.head(SHOWN["bars"])
        names = [str(name) for name in top["feature"]]
        value, low, high, chance = (top[name].tolist() for name in ("importance", "low", "high", "threshold"))
        measured, reached = ("importance", value, low, high), ("what chance reaches", chance)
        figure = figures.intervals(names, measured, reached, f"increase of the {importance.loss}")
        caption = f"{said}. Dots: importance, with 95 % intervals. Diamonds: what chance reaches."
        alt = f"Importance of features: {listed(dict(zip(names, value, strict=True)))}."
        blocks.append(Plot(figure, alt, caption, half=False))
        caption = f"Target {target}: importance of {many(len(rows), 'feature')}"
        caption += "." if len(rows) <= FOLDED else f", the {FOLDED} largest; features.csv has all."
        columns = ["feature", "importance", "95 % interval", "p, adjusted", "what chance reaches"]
        shown = [_feature_row(row) for _, row in rows.head(FOLDED).iterrows()]
        blocks.append(Table(caption, columns, shown, folded=True))
    return Section("Features", text, blocks)


def _feature_row(row: pd.Series) -> list[Any]:
    interval = Cell(between(row["low"], row["high"], lambda value: Cell(text_of(value), value)), row["low"])
    return [str(row["feature"]), row["importance"], interval, rounded(row["p"], 4), row["threshold"]]


def _examples(examples: Sequence[Example], learned: bool) -> Section:
    if not examples:
        return Section("Examples", "No set was explained in this run.")
    score = "A score, by self-attention attribution, says how much all copies of an element drove it"
    if all(example.removal for example in examples):
        score = "A score says how much the prediction falls where all copies of an element are left out"
    text = f"What drove the prediction for a few sets. {score}; the set's highest is 1."
    if learned:
        text += " The predictions here are of the finished model, which has learned from most of these sets."
    return Section("Examples", text, [block for example in examples for block in _example(example)])


def _example(example: Example) -> Iterator[Block]:
    of, top = len(example.scores), example.highest()
    truth = "" if example.truth is None else f", truth {text_of(example.truth)}"
    title = f"Set {example.set}: predicted {text_of(example.predicted)}{truth}."
    if not of:
        yield Note("info", f"{title} It is empty.")
        return
    names = list(top.features)[: SHOWN["element features"]]
    rows = [
        [element, top.scores[i], top.multiplicity[i], *(top.features[name][i] for name in names)]
        for i, element in enumerate(top.elements)
    ]
    shown = f"The {len(rows)} highest of {of:,} scores." if len(rows) < of else ""
    copies = [f"{row[0]} (\N{MULTIPLICATION SIGN} {text_of(whole(row[2]))})" if row[2] != 1 else row[0] for row in rows]
    alt = f"Bars of attribution: {listed({row[0]: row[1] for row in rows})}."
    yield Plot(figures.bars(copies, [row[1] for row in rows], "attribution"), alt, f"{title} {shown}".strip())
    left = f" (the first {len(names)})." if len(top.features) > len(names) else "."
    columns = ["element", "score", "multiplicity", *names]
    yield Table(f"Set {example.set}: features of these elements{left}", columns, rows, half=True)


def _metric_row(metric: Metric) -> list[Any]:
    return [metric.name, metric.value, Cell(_interval_text(metric), metric.low)]


def _size_range(group: SizeGroup) -> str:
    """Such as 3–17."""
    low, high = f"{group.smallest:,}", f"{group.largest:,}"
    return low if low == high else f"{low}\N{EN DASH}{high}"


def _interval_text(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return "not defined" if metric.value is None else "no interval"
    return f"{text_of(metric.low)} to {text_of(metric.high)}"
