"""The report on a model of sets: training, prediction and evaluation share it, and every part may be missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real, Shaped

from omniset.evaluation import Assessment, Metric, Outcome, assess
from omniset.report import figures
from omniset.report.blocks import (
    Block,
    Cell,
    Facts,
    Headline,
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

FORMAT, VERSION = "omniset report of sets", 1
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
    """A run on sets.

    Args:
        on: Which data the outcomes are on, such as "validation sets (10 % of the sets, kept back)".
        history: A dict per epoch with `epoch` and quantities, such as train_loss and val_loss.
        kept_epoch: Whose weights were kept.
        command: That makes the run again.
    """

    title: str
    on: str = ""
    data: DataSummary | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def assessments(self) -> list[Assessment]:
        return [assess(outcome) for outcome in self.outcomes]


def quantiles(values: Real[np.ndarray, " _"]) -> dict[str, float]:
    """By name; of nothing: nothing."""
    return {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()} if len(values) else {}


def compose(run: SetRun) -> Report:
    """The report: summary, data, learning curves, every target, examples, settings and warnings."""
    targets = [_target(run, outcome, found) for outcome, found in zip(run.outcomes, run.assessments, strict=True)]
    sections = [_summary(run), _data(run.data), _learning(run), *targets, _examples(run.examples), _settings(run)]
    return Report(run.title, _lead(run), sections, run.command, run.provenance)


def numbers(run: SetRun) -> dict[str, Any]:
    """All that the report shows, for report.json."""
    data = None
    if run.data is not None:
        data = asdict(run.data) | {"sizes": quantiles(run.data.sizes)}
        data["features"] = [dict(zip(("name", *FEATURE), f, strict=True)) for f in run.data.features]
        data["targets"] = {name: _counts(values) or quantiles(values) for name, values in run.data.targets.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": run.title,
        "on": run.on,
        "data": data,
        "history": run.history,
        "kept_epoch": run.kept_epoch,
        "targets": [found.as_dict() for found in run.assessments],
        "examples": [asdict(_highest(example)) for example in run.examples],
        "warnings": run.warnings,
        "arguments": run.arguments,
        "command": run.command,
        "provenance": run.provenance,
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


def _summary(run: SetRun) -> Section:
    notes: list[Block] = [Note("warning", text) for text in run.warnings]
    if not run.outcomes:
        text = "How good the predictions are is not known: no sets were kept back to compare with."
        return Section("Summary", text, notes)
    if len(run.outcomes) == 1:
        (found,) = run.assessments
        items = [(m.name, m.value, _interval_text(m)) for m in found.metrics[:4]]
        text = f"Predictions of {found.name}{_on(run)}, with 95 % intervals."
        return Section("Summary", text, [Headline(items), *notes])
    rows = [[found.name, *_metric_row(found.metrics[0])] for found in run.assessments]
    table = Table("The first metric of each target.", ["target", "metric", "value", "95 % interval"], rows)
    return Section("Summary", f"Predictions of {len(rows)} targets{_on(run)}.", [table, *notes])


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
    spread = {name: found for name, found in spread.items() if found}
    names = list(dict.fromkeys(q for found in spread.values() for q in found))
    rows = [[Cell(name, at), *(whole(f.get(name)) for f in spread.values())] for at, name in enumerate(names)]
    return Table(caption, ["quantile", *spread], rows, half=True)


def _distribution(name: str, values: Shaped[np.ndarray, " _"], noun: str) -> list[Block]:
    """Of a target, over the sets or elements that have it."""
    counts = _counts(values)
    if not counts:
        found = quantiles(values.astype(np.float64))
        figure = figures.histogram(values.astype(np.float64), name, noun)
        plot = Plot(figure, f"Histogram of {name}: {listed(found)}.", f"Target {name}: distribution.")
        return [plot, _quantiles(f"Target {name}: quantiles.", {name: found})]
    rows = [[label, n, n / sum(counts.values())] for label, n in counts.items()]
    few = len(counts) <= SHOWN["classes"]
    table = Table(f"Target {name}: how often each label occurs.", ["label", noun, "fraction"], rows, half=few)
    if not few:
        return [table]
    alt = f"Bars of the number of {noun} of each label of {name}: {listed(counts)}."
    return [Plot(figures.bars(list(counts), list(counts.values()), noun), alt, f"Target {name}: labels."), table]


def _learning(run: SetRun) -> Section:
    if not run.history:
        return Section("Learning curves", "Nothing was trained in this run.")
    keys = list(dict.fromkeys(key for row in run.history for key in row if key != "epoch"))
    names = list(dict.fromkeys(key.removeprefix("train_").removeprefix("val_") for key in keys))
    text = f"Training took {many(len(run.history), 'epoch')}"
    text += "." if run.kept_epoch is None else f"; the model that was kept is that of epoch {run.kept_epoch}."
    blocks: list[Block] = []
    for name in names:
        last = {key: run.history[-1].get(key) for key in keys if key.endswith(name)}
        alt = f"Line plot of {name} by epoch. In the last epoch: {listed(last)}."
        figure = figures.learning_curve(run.history, name, run.kept_epoch)
        blocks.append(Plot(figure, alt, f"{figures.words(name).capitalize()} by epoch."))
    rows = [[row["epoch"], *(row.get(key) for key in keys)] for row in run.history]
    columns = ["epoch", *map(figures.words, keys)]
    blocks.append(Table("Learning curves as a table", columns, rows, folded=True))
    return Section("Learning curves", text, blocks)


def _target(run: SetRun, outcome: Outcome, found: Assessment) -> Section:
    rows = [[*_metric_row(m), m.description] for m in found.metrics]
    units = "sets" if outcome.groups is None else "groups of sets"
    caption = f"Intervals hold 95 % of bootstrap resamples of whole {units}."
    blocks: list[Block] = [Table(caption, ["metric", "value", "95 % interval", "what it is"], rows)]
    blocks += _classes(found) if outcome.classifies else _numbers(outcome)
    if found.by_size:
        score = found.by_size[0].score.name
        caption = f"{score[0].upper() + score[1:]} by size of the set, with 95 % intervals."
        sized = [[figures.size_range(g), g.sets, *_metric_row(g.score)[1:]] for g in found.by_size]
        sized = [[Cell(row[0], g.smallest), *row[1:]] for row, g in zip(sized, found.by_size, strict=True)]
        said = {figures.size_range(g): g.score.value for g in found.by_size}
        blocks.append(
            Plot(figures.score_by_size(found.by_size), f"{score} by elements per set: {listed(said)}.", caption)
        )
        columns = ["elements per set", "sets", score, "95 % interval"]
        blocks.append(Table("Groups of sets of similar size.", columns, sized, half=True))
    text = f"{many(found.rows, 'prediction')} for {many(found.sets, 'set')}."
    return Section(f"Target: {outcome.name}", text if found.rows else "No set has a known truth.", blocks)


def _classes(found: Assessment) -> list[Block]:
    labels, counts = found.classes or [], np.array(found.confusion)
    blocks: list[Block] = []
    rows: list[list[Any]]
    few = len(labels) <= SHOWN["half width"]
    if len(labels) <= SHOWN["classes"]:
        recall = listed({c.label: c.recall for c in found.by_class})
        alt = f"Confusion matrix of {len(labels)} classes. Recall: {recall}."
        caption = "Confusion matrix: true classes down, predicted ones across. Colour: fraction of the true class."
        blocks.append(Plot(figures.confusion_matrix(counts, labels), alt, caption, half=few))
    else:
        wrong = np.where(np.eye(len(labels), dtype=bool), 0, counts)
        order = np.argsort(-wrong, axis=None, kind="stable")[: SHOWN["confusions"]]
        pairs = [divmod(int(place), len(labels)) for place in order]
        rows = [[labels[i], labels[j], counts[i, j], counts[i, j] / counts[i].sum()] for i, j in pairs if wrong[i, j]]
        columns = ["true class", "predicted as", "predictions", "fraction of the true class"]
        blocks.append(Table("The most frequent confusions.", columns, rows))
    rows = [[c.label, c.true, c.predicted, c.recall, c.precision, c.f1] for c in found.by_class]
    columns = ["class", "true", "predicted", "recall", "precision", "F1"]
    blocks.append(Table("Class by class.", columns, rows, half=few))
    rows = [[label, *row] for label, row in zip(labels, counts.tolist(), strict=True)]
    blocks.append(Table("Confusion matrix as a table", ["true class", *labels], rows, folded=True))
    said = {f"{b.confidence:.2f}": b.right for b in found.calibration if b.confidence is not None}
    alt = f"Fraction right against mean confidence: {listed(said)}."
    caption = "Calibration: points on the dotted line are as often right as they are confident; larger ones count more."
    blocks.append(Plot(figures.calibration_curve(found.calibration), alt, caption))
    bins = [[Cell(f"{b.low:.1f} to {b.high:.1f}", b.low), b.count, b.confidence, b.right] for b in found.calibration]
    columns = ["confidence", "predictions", "mean confidence", "fraction right"]
    blocks.append(Table("Calibration by confidence.", columns, bins, half=True))
    return blocks


def _numbers(outcome: Outcome) -> list[Block]:
    truth, predicted = outcome.numbers
    alt = f"Predicted against true values of {many(len(truth), 'row')}"
    return [
        Plot(figures.predicted_against_true(truth, predicted), f"{alt}.", "Predicted against true values."),
        Plot(figures.residuals(truth, predicted), f"{alt}: differences.", "Errors against predicted values."),
    ]


def _examples(examples: list[Example]) -> Section:
    if not examples:
        return Section("Examples", "No set was explained in this run.")
    text = (
        "What drove the prediction for a few sets. A score, by self-attention attribution, says how much all copies of "
        "an element drove it; the set's highest is 1."
    )
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
        said = listed({layer: float(values.sum()) for layer, values in example.layers.items()})
        blocks.append(Plot(drawn, f"Attribution of these elements layer by layer; sums: {said}.", _complete(example)))
    return blocks


def _complete(example: Example) -> str:
    gaps = listed({layer: f"{gap:.1%}" for layer, gap in example.gaps.items()})
    return (
        f"Set {example.set}: attribution of these elements in each layer. Completeness: how far the sum over all "
        f"elements is from the change of the output that the layer's attention makes: {gaps}."
    )


def _settings(run: SetRun) -> Section:
    met = f"{many(len(run.warnings), 'warning')}: see the summary." if run.warnings else "No warnings were met."
    text = met if run.arguments else f"No settings were recorded. {met}"
    return Section("Settings", text, [Facts(list(run.arguments.items()))] if run.arguments else [])


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
