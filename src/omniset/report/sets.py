"""The report on a model of sets: training and evaluation share it, and every part but the data may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Real

from omniset.report import figures, frame
from omniset.report.blocks import Block, Cell, Plot, Report, Section, Table, listed, many, rounded, text_of
from omniset.report.data import DataSummary
from omniset.trials.comparison import OURS, Comparison, few_units
from omniset.trials.importances import in_words
from omniset.trials.intervals import Interval, decimals
from omniset.trials.outcomes import Outcome, by_class, calibration, carried, confusion
from omniset.trials.survival import Steps, kaplan_meier

SHOWN = {"classes": 30, "half width": 6, "confusions": 20, "element features": 8, "features": 20}


@dataclass
class Example:
    """Which elements drove the prediction for one set: those of the highest scores, the first first.

    Args:
        size: How many elements the set has.
        elements: Names, or numbers of rows.
        multiplicity: (elements,)
        scores: (elements,) attribution from 0 to 1.
        features: By name, (elements,) values.
        removal: Scores are how much the prediction falls without the element, not attribution of attention.
    """

    set: str
    predicted: Any
    truth: Any
    size: int
    elements: list[str]
    multiplicity: Real[np.ndarray, " elements"]
    scores: Float[np.ndarray, " elements"]
    features: dict[str, Real[np.ndarray, " elements"]] = field(default_factory=dict)
    removal: bool = False


@dataclass
class Importance:
    """Which features mattered (`omniset.trials.importances.table_of`): on which sets, over units of which name, by the
    increase of which loss, and a sentence on how it was measured.
    """

    table: pd.DataFrame
    on: str
    unit: str
    loss: str
    note: str = ""


@dataclass
class SetRun:
    """What a run on sets has shown.

    Args:
        on: Which data the outcomes are on, such as "validation sets (10 % of the sets, kept back)".
        history: A dict per epoch with `epoch` and quantities, such as train_loss and val_loss.
        kept_epoch: Whose weights were kept.
        outcomes: Of ours, one for each target.
        comparison: Of ours with baselines; its conditions are the targets. It is there where outcomes are.
        chosen: Values of options that `fit` chose by the data.
        importance: Of features, where it was measured.
    """

    data: DataSummary
    on: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    comparison: Comparison | None = None
    examples: list[Example] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    importance: Importance | None = None

    def metrics(self, outcome: Outcome) -> dict[str, Interval]:
        """Of ours, most telling first."""
        assert self.comparison is not None
        return {name: self.comparison.interval(name, outcome.name, OURS) for name in outcome.measures}

    def lines(self) -> Iterator[str]:
        """What a terminal shows."""
        if self.comparison is None:
            return
        yield f"\non {self.on}"
        yield from self.comparison.lines()
        for outcome in self.outcomes:
            more = [*self.metrics(outcome).items()][1:]
            others = [f"{name} {i.value:.{decimals(i)}f}" for name, i in more if np.isfinite(i.value)]
            yield f"{outcome.name}, further scores of ours: {', '.join(others)}"
            yield from filter(None, [carried(outcome)])
        if (found := self.importance) is not None:
            yield from ("", "importance of features by permutation", *in_words(found.table, found.unit))
            yield from [found.note] if found.note else []
        yield ""


def compose(about: frame.Run, run: SetRun, settings: Mapping[str, Any]) -> tuple[Report, dict[str, Any]]:
    """The report, and all that it shows for report.json: data, learning curves, every target, examples, settings."""
    on = f" {' and '.join(o.name for o in run.outcomes)} predicted on {run.on}." if run.outcomes else ""
    verdict = (
        "" if run.outcomes else "How good the predictions are is not known: no sets were kept back to compare with."
    )
    trained = f"Training took {many(len(run.history), 'epoch')}"
    trained += "." if run.kept_epoch is None else f"; the model that was kept is that of epoch {run.kept_epoch}."
    targets = [_target(run, outcome) for outcome in run.outcomes]
    pictures = [_picture(outcome) for outcome in run.outcomes if len(outcome.truth)]
    sections = [
        *(section for section, _ in targets),
        Section("Predictions of the other targets", "", [*pictures[1:]]),
        *([] if run.importance is None else [importance_section(run.importance)]),
        _examples(run.examples, learned=bool(run.history)),
        run.data.section(),
        frame.learning({"": run.history} if run.history else {}, kept_epochs={"": run.kept_epoch}, text=trained),
    ]
    numbers = {
        "on": run.on,
        "data": run.data.as_dict(),
        "history": run.history,
        "kept_epoch": run.kept_epoch,
        "targets": [of_target for _, of_target in targets],
        "examples": [asdict(example) for example in run.examples],
        "importance": None if run.importance is None else run.importance.table.to_dict("records"),
    }
    sets = f"{many(run.data.sets, 'set')} of {many(run.data.elements, 'element')} in all.{on}"
    parts: dict[str, Any] = {"picture": pictures, "comparison": run.comparison, "chosen": run.chosen}
    return frame.compose(about, verdict, sets, sections, numbers, settings=settings, **parts)


def _picture(outcome: Outcome) -> Plot:
    """The predictions beside the truth, every one of them."""
    if outcome.events is not None:
        return _kaplan_meier(outcome)
    if outcome.probabilities is None:
        drawn = figures.scatter(*outcome.numbers, "true value", "predicted value", outcome.sets)
        caption = f"{outcome.name}: predicted against true values."
        return Plot(drawn, f"{caption[:-1]} of {many(len(outcome.truth), 'row')}.", caption)
    truth, called = outcome.codes
    given = np.asarray(outcome.probabilities, dtype=np.float64)[np.arange(len(truth)), truth]
    figure = figures.probabilities(given, outcome.truth, truth == called, outcome.sets)
    caption = f"{outcome.name}: the probability that each prediction gives to the true class."
    right = f"{int((truth == called).sum()):,} of {many(len(truth), 'point')} are called so."
    return Plot(figure, f"{caption} {right}", caption)


# ---------------------------------------------------------------------- targets


def _target(run: SetRun, outcome: Outcome) -> tuple[Section, dict[str, Any]]:
    assert run.comparison is not None
    metrics, sets = run.metrics(outcome), len(np.unique(outcome.sets))
    numbers: dict[str, Any] = {"name": outcome.name, "rows": len(outcome.truth), "sets": sets}
    numbers["metrics"] = [{"name": name, **interval.as_dict()} for name, interval in metrics.items()]
    rows: list[list[Any]] = [[name, *_shown(i), outcome.measures[name].text] for name, i in metrics.items()]
    units = "sets" if outcome.groups is None else "groups of sets"
    columns = ["metric", "value", "95 % interval", "what it is"]
    caption = f"Methods beside ours, best {next(iter(metrics))} first."
    blocks: list[Block] = [
        Table(f"Intervals are of what other {units} would give.", columns, rows),
        frame.methods(run.comparison, outcome.name, [*metrics], caption=caption),
    ]
    if outcome.classes is not None:
        counts, classes, bins = confusion(outcome), by_class(outcome), calibration(outcome)
        blocks += _classes(counts, classes, bins)
        labels = outcome.classes
        pairs = [[labels[i], labels[j], counts[i, j]] for i, j in np.argwhere(counts)]  # a matrix has classes squared
        numbers |= {"confusion": counts} if len(labels) <= SHOWN["classes"] else {"confusions": pairs}
        numbers |= {"classes": labels, "by_class": classes.to_dict("records"), "calibration": bins.to_dict("records")}
    text = f"{many(len(outcome.truth), 'prediction')} for {many(sets, 'set')}. {carried(outcome)}".strip()
    return Section(f"Target: {outcome.name}", text if sets else "No set has a known truth.", blocks), numbers


def _classes(counts: Int[np.ndarray, "classes classes"], classes: pd.DataFrame, bins: pd.DataFrame) -> Iterator[Block]:
    labels = classes["label"].tolist()
    few = len(labels) <= SHOWN["half width"]
    if len(labels) <= SHOWN["classes"]:
        recall = listed(dict(zip(labels, classes["recall"], strict=True)))
        alt = f"Confusion matrix of {len(labels)} classes. Recall: {recall}."
        caption = "Confusion matrix: true classes down, predicted ones across. Colour: fraction of the true class."
        yield Plot(figures.confusion_matrix(counts, labels), alt, caption, half=few)
    else:
        wrong = [(i, j, counts[i, j]) for i, j in np.argwhere(counts) if i != j]
        most = sorted(wrong, key=lambda one: -one[2])[: SHOWN["confusions"]]
        rows = [[labels[i], labels[j], n, n / counts[i].sum()] for i, j, n in most]
        columns = ["true class", "predicted as", "predictions", "fraction of the true class"]
        yield Table("The most frequent confusions.", columns, rows)
    columns = ["class", "true", "predicted", "recall", "precision", "F1"]
    rows = [
        [*row[:3], *(rounded(share, decimals(Interval(share, units=row[1]))) for share in row[3:])]
        for row in classes.itertuples(index=False)
    ]
    yield Table("Class by class.", columns, rows, half=few)
    points = bins.loc[bins["count"] > 0, ["count", "confidence", "right"]].itertuples(index=False, name=None)
    curve = {OURS: [*points]}
    right = listed({f"{confidence:.2f}": share for _, confidence, share in curve[OURS]})
    caption = "Calibration: points on the dotted line are as often right as they are confident."
    yield Plot(figures.calibration_curves(curve, least=1), f"Fraction right against mean confidence: {right}.", caption)


def _kaplan_meier(outcome: Outcome) -> Plot:
    time, risk = outcome.numbers
    events = np.asarray(outcome.events, dtype=bool)
    third = np.searchsorted(np.quantile(risk, [1 / 3, 2 / 3]), risk, side="left")
    curves: dict[str, tuple[Steps, float]] = {}
    told = []
    for number in np.unique(third):
        there, name = third == number, f"{('low', 'middle', 'high')[number]} risk"
        alive = kaplan_meier(time[there], events[there])
        curves[name] = alive, float(time[there].max())
        below = alive.times[alive.values <= 0.5]
        median = f"median time {text_of(below[0])}" if len(below) else "median not reached"
        told.append(f"{name}: {events[there].sum():,} events of {there.sum():,}, {median}")
    caption = f"Thirds of the predicted risk: share without the event (Kaplan-Meier). {'; '.join(told)}."
    return Plot(figures.survival_curves(curves), caption, caption)


def _shown(interval: Interval) -> tuple[Cell, Cell]:
    """A score and its interval, with as many decimals as it bears."""
    return rounded(interval.value, decimals(interval)), Cell(frame.ends(interval), interval.low)


# ---------------------------------------------------------------------- features, and examples


def importance_section(importance: Importance) -> Section:
    """How much each feature matters, target by target, beside what chance gives."""
    text = (
        f"How much the {importance.loss} increases, on {importance.on}, where the values of one feature are those of "
        "another set. Features that go together can stand in for each other, and then none of them matters alone. "
    )
    text += f"{few_units(int(importance.table['units'].iloc[0]), importance.unit)} {importance.note}".strip()
    blocks: list[Block] = []
    of_targets = (rows for _, rows in importance.table.groupby("target", sort=False))
    for rows, said in zip(of_targets, in_words(importance.table, importance.unit), strict=True):
        top = rows.head(SHOWN["features"])
        names = [str(name) for name in top["feature"]]
        value, low, high, chance = (top[name].tolist() for name in ("importance", "low", "high", "threshold"))
        measured, reached = ("importance", value, low, high), ("what chance reaches", chance)
        figure = figures.intervals(names, measured, reached, f"increase of the {importance.loss}")
        caption = f"{said}. Dots: importance, with 95 % intervals. Diamonds: what chance reaches."
        caption += "" if len(top) == len(rows) else f" The {len(top)} largest; features.csv has all."
        alt = f"Importance of features: {listed(dict(zip(names, value, strict=True)))}."
        blocks.append(Plot(figure, alt, caption, half=False))
    return Section("Features", text.strip(), blocks)


def _examples(examples: Sequence[Example], learned: bool) -> Section:
    if not examples:
        return Section("Examples")
    score = "A score, by self-attention attribution, says how much all copies of an element drove it"
    if examples[0].removal:
        score = "A score says how much the prediction falls where all copies of an element are left out"
    text = f"What drove the prediction for a few sets. {score}; the set's highest is 1."
    if learned:
        text += " The predictions here are of the finished model, which has learned from most of these sets."
    return Section("Examples", text, [*map(_example, examples)])


def _example(example: Example) -> Table:
    truth = "" if example.truth is None else f", truth {text_of(example.truth)}"
    title = f"Set {example.set}: predicted {text_of(example.predicted)}{truth}."
    names = list(example.features)[: SHOWN["element features"]]
    scores = [rounded(score, 2) for score in example.scores.tolist()]
    columns = [example.elements, scores, example.multiplicity, *(example.features[name] for name in names)]
    if not example.size:
        title += " It is empty."
    if len(example.elements) < example.size:
        title += f" The {len(example.elements)} highest of {example.size:,} scores."
    if len(example.features) > len(names):
        title += f" The first {len(names)} features."
    rows = [[*row] for row in zip(*columns, strict=True)]
    return Table(title, ["element", "score", "multiplicity", *names], rows, half=True)
