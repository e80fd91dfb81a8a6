"""The report on a model of sets: training and evaluation share it, and every part may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real, Shaped

from omniset.report import features, figures, frame, outcome_figures
from omniset.report.blocks import (
    Block,
    Cell,
    Facts,
    Note,
    Plot,
    Report,
    Section,
    Table,
    listed,
    many,
    text_of,
    whole,
)
from omniset.trials.comparison import OURS, Comparison
from omniset.trials.outcomes import Assessment, Metric, Outcome, assess
from omniset.trials.survival import Steps, kaplan_meier

SHOWN = {"features": 200, "classes": 30, "half width": 6, "confusions": 20, "elements": 10, "element features": 8}
QUANTILES = {"smallest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "largest": 1.0}


@dataclass
class DataSummary:
    """What the sets are.

    Args:
        sets: Their number.
        elements: Number of distinct elements, over all sets.
        total_multiplicity: Elements with their copies; None: every element is there once.
        sizes: (sets,) number of distinct elements of each set.
        multiplicity_quantiles: Such as `quantiles` gives.
        missing: What was missing or left out, and how often.
        features: Name, mean, standard deviation, smallest and largest value of each.
        targets: By name, the labels or numbers to learn.
    """

    sets: int
    elements: int
    total_multiplicity: float | int | None
    sizes: Int[np.ndarray, " sets"]
    multiplicity_quantiles: dict[str, float] | None = None
    missing: dict[str, int] = field(default_factory=dict)
    features: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    targets: dict[str, Shaped[np.ndarray, " _"]] = field(default_factory=dict)


@dataclass
class Example:
    """Which elements drove the prediction for one set.

    Args:
        elements: Names, or numbers of rows.
        multiplicity: (elements,)
        scores: (elements,) attribution from 0 to 1.
        features: By name, (elements,) values.
        layers: Of each layer, (elements,) scores, the highest of all layers 1.
        gaps: Of each layer, how far the sum of its attribution is from the change that it explains, as a share of it.
    """

    set: str
    predicted: Any
    truth: Any
    elements: list[str]
    multiplicity: Real[np.ndarray, " elements"]
    scores: Float[np.ndarray, " elements"]
    features: dict[str, Real[np.ndarray, " elements"]] = field(default_factory=dict)
    layers: dict[str, Float[np.ndarray, " elements"]] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)


@dataclass
class SetRun:
    """What a run on sets has shown.

    Args:
        on: Which data the outcomes are on, such as "validation sets (10 % of the sets, kept back)".
        history: A dict per epoch with `epoch` and quantities, such as train_loss and val_loss; of several networks also
            `method`, which of them.
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
    importance: features.Importance | None = None

    @property
    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """By network."""
        named: dict[str, list[dict[str, Any]]] = {}
        for epoch in self.history:
            numbers = {name: value for name, value in epoch.items() if name != "method"}
            named.setdefault(epoch.get("method", ""), []).append(numbers)
        return named

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


def quantiles(values: Real[np.ndarray, " _"]) -> dict[str, float]:
    """By name; of nothing: nothing."""
    return {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()} if len(values) else {}


def compose(about: frame.Run, run: SetRun, settings: Mapping[str, Any]) -> tuple[Report, dict[str, Any]]:
    """The report, and all that it shows for report.json: data, learning curves, every target, examples, settings."""
    targets = [_target(run, outcome, assessed) for outcome, assessed in zip(run.outcomes, run.assessments, strict=True)]
    text, headline, summary = _summary(run)
    mattered = [] if run.importance is None else [features.section(run.importance)]
    return frame.compose(
        about,
        _lead(run),
        [_data(run.data), _learning(run), *targets, *mattered, _examples(run.examples, learned=bool(run.history))],
        _numbers(run),
        headline=headline,
        summary=summary,
        text=text,
        comparison=run.comparison,
        settings=settings,
        chosen=run.chosen,
    )


def _numbers(run: SetRun) -> dict[str, Any]:
    data = None
    if run.data is not None:
        data = asdict(run.data) | {"sizes": quantiles(run.data.sizes)}
        data["features"] = [dict(zip(("name", *FEATURE), f, strict=True)) for f in run.data.features]
        data["targets"] = {
            name: quantiles(values) if values.dtype.kind in "fiu" else _counts(values)
            for name, values in run.data.targets.items()
        }
    return {
        "on": run.on,
        "data": data,
        "history": run.history,
        "kept_epoch": run.kept_epoch,
        "targets": [assessed.as_dict() for assessed in run.assessments],
        "examples": [asdict(_highest(example)) for example in run.examples],
        "importance": None if run.importance is None else run.importance.table.to_dict("records"),
    }


# ---------------------------------------------------------------------- sections

FEATURE = ("mean", "standard deviation", "smallest", "largest")


def _lead(run: SetRun) -> str:
    if run.data is None:
        return f"Evaluated on {run.on}." if run.on else ""
    data = f"{many(run.data.sets, 'set')} of {many(run.data.elements, 'element')} in all"
    return f"{data}. Evaluated on {run.on}." if run.outcomes and run.on else f"{data}."


def _on(run: SetRun) -> str:
    return f" on {run.on}" if run.on else ""


def _summary(run: SetRun) -> tuple[str, list[tuple[str, Any, str]], list[Block]]:
    """Text, headline and further blocks."""
    if not run.outcomes:
        return "How good the predictions are is not known: no sets were kept back to compare with.", [], []
    if len(run.outcomes) == 1:
        (assessed,) = run.assessments
        headline = [(m.name, m.value, _interval_text(m)) for m in assessed.metrics[:4]]
        return f"Predictions of {assessed.name}{_on(run)}, with 95 % intervals.", headline, []
    rows = [[assessed.name, *_metric_row(assessed.metrics[0])] for assessed in run.assessments]
    table = Table("The first metric of each target.", ["target", "metric", "value", "95 % interval"], rows)
    return f"Predictions of {len(rows)} targets{_on(run)}.", [], [table]


def _data(data: DataSummary | None) -> Section:
    if data is None:
        return Section("Data", "The data were not summarised.")
    facts: list[tuple[str, Any]] = [("sets", data.sets), ("distinct elements", data.elements)]
    if data.total_multiplicity is not None:
        facts.append(("elements with their copies", whole(data.total_multiplicity)))
    facts += [("empty sets", int((data.sizes == 0).sum())), ("features", len(data.features)), *data.missing.items()]
    blocks: list[Block] = [Facts(facts)]
    if len(data.sizes):
        figure = figures.histogram(data.sizes[data.sizes > 0], "distinct elements per set", "sets")
        alt = f"Histogram of the sizes of {many(data.sets, 'set')}: {listed(quantiles(data.sizes))}."
        blocks.append(Plot(figure, alt, "Sizes of the sets that are not empty."))
        spread = {"elements per set": quantiles(data.sizes), "multiplicity": data.multiplicity_quantiles or {}}
        blocks.append(_quantiles("Sizes and multiplicities.", spread))
    for name, values in data.targets.items():
        blocks += _distribution(name, values, "sets" if len(values) <= data.sets else "elements")
    if data.features:
        caption = f"{many(len(data.features), 'feature')}, each over the elements of all sets."
        if len(data.features) > SHOWN["features"]:
            caption += f" The first {SHOWN['features']} are shown; report.json has all."
        rows = [list(feature) for feature in data.features[: SHOWN["features"]]]
        blocks.append(Table(caption, ["feature", *FEATURE], rows, folded=len(rows) > 20))
    return Section("Data", "", blocks)


def _quantiles(caption: str, spread: dict[str, dict[str, float]]) -> Table:
    spread = {name: values for name, values in spread.items() if values}
    names = list(dict.fromkeys(q for values in spread.values() for q in values))
    rows = [[Cell(name, at), *(whole(f.get(name)) for f in spread.values())] for at, name in enumerate(names)]
    return Table(caption, ["quantile", *spread], rows, half=True)


def _distribution(name: str, values: Shaped[np.ndarray, " _"], noun: str) -> list[Block]:
    """Of a target, over the sets or elements that have it."""
    counts = _counts(values)
    if not counts:
        spread = quantiles(values.astype(np.float64))
        figure = figures.histogram(values.astype(np.float64), name, noun)
        plot = Plot(figure, f"Histogram of {name}: {listed(spread)}.", f"Target {name}: distribution.")
        return [plot, _quantiles(f"Target {name}: quantiles.", {name: spread})]
    rows = [[label, n, n / sum(counts.values())] for label, n in counts.items()]
    few = len(counts) <= SHOWN["classes"]
    table = Table(f"Target {name}: how often each label occurs.", ["label", noun, "fraction"], rows, half=few)
    if not few:
        return [table]
    alt = f"Bars of the number of {noun} of each label of {name}: {listed(counts)}."
    return [Plot(figures.bars(list(counts), list(counts.values()), noun), alt, f"Target {name}: labels."), table]


def _learning(run: SetRun) -> Section:
    histories = run.histories
    if len(histories) > 1:
        took = [f"{name} {len(epochs)}" for name, epochs in histories.items()]
        text = f"Epochs that the networks of each method took: {', '.join(took)}. Losses are means over the networks."
        return frame.learning(histories, kept_epochs=dict.fromkeys(histories), text=text)
    text = f"Training took {many(len(run.history), 'epoch')}"
    text += "." if run.kept_epoch is None else f"; the model that was kept is that of epoch {run.kept_epoch}."
    return frame.learning(histories, kept_epochs={"": run.kept_epoch}, text=text)


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
    if assessed.by_size:
        score = assessed.by_size[0].score.name
        caption = f"{score[0].upper() + score[1:]} by size of the set, with 95 % intervals."
        sized = [[outcome_figures.size_range(g), g.sets, *_metric_row(g.score)[1:]] for g in assessed.by_size]
        sized = [[Cell(row[0], g.smallest), *row[1:]] for row, g in zip(sized, assessed.by_size, strict=True)]
        values = {outcome_figures.size_range(g): g.score.value for g in assessed.by_size}
        alt = f"{score} by elements per set: {listed(values)}."
        blocks.append(Plot(outcome_figures.score_by_size(assessed.by_size), alt, caption))
        columns = ["elements per set", "sets", score, "95 % interval"]
        blocks.append(Table("Groups of sets of similar size.", columns, sized, half=True))
    text = f"{many(assessed.rows, 'prediction')} for {many(assessed.sets, 'set')}."
    return Section(f"Target: {outcome.name}", text if assessed.rows else "No set has a known truth.", blocks)


def _classes(assessed: Assessment) -> list[Block]:
    labels, counts = assessed.classes or [], np.array(assessed.confusion)
    blocks: list[Block] = []
    rows: list[list[Any]]
    few = len(labels) <= SHOWN["half width"]
    if len(labels) <= SHOWN["classes"]:
        recall = listed({c.label: c.recall for c in assessed.by_class})
        alt = f"Confusion matrix of {len(labels)} classes. Recall: {recall}."
        caption = "Confusion matrix: true classes down, predicted ones across. Colour: fraction of the true class."
        blocks.append(Plot(outcome_figures.confusion_matrix(counts, labels), alt, caption, half=few))
    else:
        wrong = np.where(np.eye(len(labels), dtype=bool), 0, counts)
        order = np.argsort(-wrong, axis=None, kind="stable")[: SHOWN["confusions"]]
        pairs = [divmod(int(place), len(labels)) for place in order]
        rows = [[labels[i], labels[j], counts[i, j], counts[i, j] / counts[i].sum()] for i, j in pairs if wrong[i, j]]
        columns = ["true class", "predicted as", "predictions", "fraction of the true class"]
        blocks.append(Table("The most frequent confusions.", columns, rows))
    rows = [[c.label, c.true, c.predicted, c.recall, c.precision, c.f1] for c in assessed.by_class]
    columns = ["class", "true", "predicted", "recall", "precision", "F1"]
    blocks.append(Table("Class by class.", columns, rows, half=few))
    rows = [[label, *row] for label, row in zip(labels, counts.tolist(), strict=True)]
    blocks.append(Table("Confusion matrix as a table", ["true class", *labels], rows, folded=True))
    points = {f"{b.confidence:.2f}": b.right for b in assessed.calibration if b.confidence is not None}
    alt = f"Fraction right against mean confidence: {listed(points)}."
    caption = "Calibration: points on the dotted line are as often right as they are confident; larger ones count more."
    blocks.append(Plot(outcome_figures.calibration_curve(assessed.calibration), alt, caption))
    bins = [[Cell(f"{b.low:.1f} to {b.high:.1f}", b.low), b.count, b.confidence, b.right] for b in assessed.calibration]
    columns = ["confidence", "predictions", "mean confidence", "fraction right"]
    blocks.append(Table("Calibration by confidence.", columns, bins, half=True))
    return blocks


def _values(outcome: Outcome) -> list[Block]:
    truth, predicted = outcome.numbers
    alt = f"Predicted against true values of {many(len(truth), 'row')}"
    return [
        Plot(outcome_figures.predicted_against_true(truth, predicted), f"{alt}.", "Predicted against true values."),
        Plot(outcome_figures.residuals(truth, predicted), f"{alt}: differences.", "Errors against predicted values."),
    ]


def _survival(outcome: Outcome) -> list[Block]:
    """How long the sets of low, middle and high risk were without the event."""
    time, risk = outcome.numbers
    events = np.asarray(outcome.events, dtype=bool)
    if not len(time):
        return []
    third = np.searchsorted(np.quantile(risk, [1 / 3, 2 / 3]), risk, side="left")
    curves: dict[str, tuple[Steps, float]] = {}
    rows: list[list[Any]] = []
    for number, name in enumerate(("low risk", "middle risk", "high risk")):
        there = third == number
        if not there.any():
            continue
        alive = kaplan_meier(time[there], events[there])
        curves[name] = alive, float(time[there].max())
        below = alive.times[alive.values <= 0.5]
        middle = float(below[0]) if len(below) else "not reached"
        rows.append([name, int(there.sum()), int(events[there].sum()), middle])
    figure = outcome_figures.survival_curves(curves)
    alt = (
        f"Kaplan-Meier curves of {many(len(curves), 'group')}. Median times: {listed({str(r[0]): r[3] for r in rows})}."
    )
    caption = "Share without the event (Kaplan-Meier), by thirds of the predicted risk."
    columns = ["predicted", "predictions", "events", "median time"]
    return [Plot(figure, alt, caption), Table("Thirds of the predicted risk.", columns, rows, half=True)]


def _examples(examples: list[Example], learned: bool) -> Section:
    if not examples:
        return Section("Examples", "No set was explained in this run.")
    score = "A score, by self-attention attribution, says how much all copies of an element drove it"
    if not any(example.layers for example in examples):
        score = "A score says how much the prediction falls where all copies of an element are left out"
    text = f"What drove the prediction for a few sets. {score}; the set's highest is 1."
    if learned:
        text += " The predictions here are of the finished model, which has learned from most of these sets."
    return Section("Examples", text, [block for example in examples for block in _example(example)])


def _highest(example: Example) -> Example:
    """Its elements of highest score, the first first."""
    order = np.argsort(-example.scores, kind="stable")[: SHOWN["elements"]]
    return replace(
        example,
        elements=[example.elements[i] for i in order],
        multiplicity=example.multiplicity[order],
        scores=example.scores[order],
        features={name: values[order] for name, values in example.features.items()},
        layers={name: values[order] for name, values in example.layers.items()},
    )


def _example(example: Example) -> list[Block]:
    of, whole_set, example = len(example.scores), example, _highest(example)
    truth = "" if example.truth is None else f", truth {text_of(example.truth)}"
    title = f"Set {example.set}: predicted {text_of(example.predicted)}{truth}."
    if not of:
        return [Note("info", f"{title} It is empty.")]
    names = list(example.features)[: SHOWN["element features"]]
    columns = ["element", "score", "multiplicity", *names]
    rows = [
        [element, example.scores[i], example.multiplicity[i], *(example.features[name][i] for name in names)]
        for i, element in enumerate(example.elements)
    ]
    shown = f"The {len(rows)} highest of {of:,} scores." if len(rows) < of else ""
    alt = f"Bars of attribution: {listed({row[0]: row[1] for row in rows})}."
    figure = figures.bars([_times(row[0], row[2]) for row in rows], [row[1] for row in rows], "attribution")
    left = len(example.features) - len(names)
    features = f"Set {example.set}: features of these elements" + (f" (the first {len(names)})." if left else ".")
    blocks: list[Block] = [Plot(figure, alt, f"{title} {shown}".strip()), Table(features, columns, rows, half=True)]
    if len(whole_set.features) == 2:
        (xlabel, x), (ylabel, y) = whole_set.features.items()
        drawn = figures.scored_points(x, y, whole_set.multiplicity, whole_set.scores, xlabel, ylabel)
        alt = f"The {of:,} elements of the set as points, coloured by their attribution."
        blocks.append(Plot(drawn, alt, f"Set {example.set}: its elements. Area: multiplicity. Colour: attribution."))
    if example.layers:
        drawn = figures.heat_map(np.stack([*example.layers.values()]), [*example.layers], example.elements)
        sums = listed({layer: float(values.sum()) for layer, values in example.layers.items()})
        blocks.append(Plot(drawn, f"Attribution of these elements layer by layer; sums: {sums}.", _complete(example)))
    return blocks


def _complete(example: Example) -> str:
    gaps = listed({layer: f"{gap:.1%}" for layer, gap in example.gaps.items()})
    return (
        f"Set {example.set}: attribution of these elements in each layer. Completeness: how far the sum over all "
        f"elements is from the change of the output that the layer's attention makes: {gaps}."
    )


# ---------------------------------------------------------------------- words


def _metric_row(metric: Metric) -> list[Any]:
    return [metric.name, metric.value, Cell(_interval_text(metric), metric.low)]


def _interval_text(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return "not defined" if metric.value is None else "no interval"
    return f"{text_of(metric.low)} to {text_of(metric.high)}"


def _counts(values: Shaped[np.ndarray, " _"]) -> dict[str, int]:
    """Of labels, most frequent first; of numbers: nothing."""
    if values.dtype.kind in "fiu":
        return {}
    labels, counts = np.unique(values.astype(str), return_counts=True)
    return {str(labels[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}


def _times(name: str, multiplicity: Any) -> str:
    return name if multiplicity == 1 else f"{name} (\N{MULTIPLICATION SIGN} {text_of(whole(multiplicity))})"
