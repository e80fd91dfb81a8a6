"""The reports on brain regions: of a fitted model, of an evaluation, of what a pair is predicted from.

Each is a list of sections on the frame that all systems share, and the plain numbers behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from omniset.regions import figures as drawn
from omniset.regions.blend import RELATIONS, Blend
from omniset.regions.data import known_pairs
from omniset.regions.evaluate import DECISIVE, PARTS, PLACES, Evaluation, distances_of
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scores import pearson
from omniset.report import figures, frame
from omniset.report.blocks import Block, Note, Plot, Report, Section, Table, between, listed, many, rounded, text_of
from omniset.trials.comparison import OURS

DRAWN, SHOWN = 15, 100  # genes and known regions, in a figure and in a table
NAMES = {
    OURS: "omniset (ours)",
    PLACES: "ours, places only",
    "geometry": "distance and mirrored distance",
    "ridge": "kernel ridge",
    "ridge-places": "kernel ridge of mirrored places",
    "geometry-genes": "distance, and ridge of genes",
    "boosting": "boosted trees",
    "attention": "attention to known regions",
    "blend": "all together",
}
DIVIDED = {
    "bilateral": "neighbourhoods with their mirror images: few neighbours and twins of a test region are learned from",
    "spatial": "neighbourhoods: few neighbours of a test region are learned from",
    "random": "drawn at random: most test regions have neighbours among those learned from",
}
CAVEAT = (
    "Importance is how far Pearson's r of regions not seen falls, to first order, where the gene's map is made flat; p "
    "says how often a map of other places is as important. Genes that vary together stand in for one another. What is "
    "read from says where the network looked, not what would change. Both are of the network, whatever its weight."
)
Importance = pd.DataFrame | None  # as `ConnectivityPredictor.importance` gives


def name_of(method: Any) -> str:
    """A method, or a part of one, in words."""
    return NAMES.get(method, str(method))


def of_fit(run: frame.Run, predictor: ConnectivityPredictor, importance: Importance) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model; importance None: it was not measured."""
    regions, method = predictor.regions_, predictor.method_
    pairs, truth = known_pairs(regions)
    predicted = method.predict(regions, pairs)
    scores = dict(method.scores) if isinstance(method, Blend) else {}
    seen = f"Pearson's r {text_of(pearson(truth, predicted))} over {many(len(pairs), 'pair')} learned from."
    points = Plot(
        drawn.scatter(truth, predicted, distances_of(regions, pairs)), f"Predicted against true. {seen}", seen
    )
    histories = {name_of(name): history for name, history in predictor.history_.items()}
    sections = [
        _parts(predictor.weights_, scores),
        frame.learning(histories, text="Squared error of what was hidden, beside the variance of connectivity."),
        Section("Pairs learned from", "How well it does on regions not seen, only an evaluation says.", [points]),
        _importance(importance, CAVEAT),
    ]
    sizes = {"regions": len(regions), "genes": len(regions.genes), "pairs": len(pairs)}
    about: dict[str, Any] = {"directed": regions.directed, "method": predictor.method}
    about |= {"weights": predictor.weights_, "scores": scores}
    about |= {"seconds": predictor.seconds_, "history": predictor.history_}
    about["pearson_of_training_pairs"] = pearson(truth, predicted)
    about["importance"] = [] if importance is None else importance.to_dict("records")
    missing = float(np.isnan(regions.expression).mean())
    remarks = ("learned from", f"{missing:.1%} of values not measured" if missing else "all measured", "known")
    headline = [(name, size, remark) for (name, size), remark in zip(sizes.items(), remarks, strict=True)]
    lead = "Connectivity of pairs of brain regions, learned from the expression of their genes."
    return frame.compose(run, lead, sections, sizes | about, headline=headline, settings=predictor.get_params())


def of_evaluation(run: frame.Run, evaluation: Evaluation) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: the verdict first, then every method.

    Matrices, points and brains are of the first seed, and of ours; of the best method where ours was not run.
    """
    comparison = evaluation.comparison
    shown = OURS if OURS in evaluation.methods else str(evaluation.table().index[0])
    by_distance = evaluation.r_by_distance(shown)
    sections = [_methods(evaluation), _matrices(evaluation, shown), _distances(evaluation, shown, by_distance)]
    sections += [_nulls(evaluation), _brains(evaluation, shown)]
    numbers = {"shown": shown, "by_distance": by_distance}
    summary: list[Block] = [Note("info", evaluation.genes_add())] if evaluation.genes_add() else []
    if not comparison.gates:
        alone = "ours was not run" if comparison.baselines else "no baseline was run"
        summary.append(Note("warning", f"Nothing is said of ours beside baselines: {alone}."))
    lead = f"Methods on {many(len(evaluation.regions), 'brain region')}, judged by pairs that none of them has seen."
    return frame.compose(run, lead, sections, evaluation.numbers() | numbers, summary=summary, comparison=comparison)


def of_explanation(
    run: frame.Run, looked: pd.DataFrame, importance: Importance, first: str, second: str
) -> tuple[Report, dict[str, Any]]:
    """The report on a pair of regions: what `ConnectivityPredictor.explain` gave, and `importance`."""
    blocks: list[Block] = []
    if "known" in looked.columns:
        title, text = "Read from", "Known regions that each region attends to, mean over heads."
        for name, rows in looked.groupby("region", sort=False)[["known", "weight"]]:
            blocks.append(_bars(rows.head(DRAWN), "weight", f"Known regions whose connectivity {name} reads."))
            blocks.append(_table(rows, f"Read by {name}.", ["known region", "weight"]))
    else:
        title, text = "Pairs of genes", "Which genes of the first region attend to which of the second."
        if len(looked):
            rows = looked.sort_values("weight", ascending=False)
            blocks.append(_table(rows, f"{text} Largest weight first.", [f"of {first}", f"of {second}", "weight"]))
    tables = {"pairs": looked, "importance": looked[:0] if importance is None else importance}
    numbers = {name: table.to_dict("records") for name, table in tables.items()}
    lead = f"Where the network looked for the connectivity of {first} and {second}, and what its predictions rest on."
    sections = [Section(title, text, blocks), _importance(importance, "")]
    summary = [Note("warning", CAVEAT)]
    return frame.compose(run, lead, sections, {"first": first, "second": second, **numbers}, summary=summary)


# ---------------------------------------------------------------------- sections of a model and of a pair


def _parts(weights: Mapping[str, Mapping[str, float]], scores: Mapping[str, Mapping[str, float]]) -> Section:
    if not weights:
        return Section("Parts", "The model is one method, without parts to weigh.")
    text = "Weights that predict pairs of regions not seen best; all together are scored with those of other folds."
    names = dict.fromkeys(name for of in (*scores.values(), *weights.values()) for name in of)
    columns = ["part"]
    rows: list[list[Any]] = [[name_of(name)] for name in names]
    for kind, of in weights.items():
        where, r = f", {kind}" if len(weights) > 1 else "", scores.get(kind, {})
        columns += [f"weight{where}", f"r in validation{where}"]
        rows = [[*row, of.get(name), r.get(name)] for row, name in zip(rows, names, strict=True)]
        text += f" {kind.capitalize()}: pairs of regions {RELATIONS[kind]}." if where else ""
        shares = [name for name, weight in of.items() if weight]
        if len(shares) == 1:
            both = [text_of(r.get(name, math.nan)) for name in ("blend", shares[0])]
            text += f" {name_of(shares[0]).capitalize()} is taken alone: on regions held back all together were no "
            text += f"better, r {both[0]} against {both[1]}."
    return Section("Parts", text, [Table("Weights of the parts, and Pearson's r of each.", columns, rows, half=True)])


def _bars(rows: pd.DataFrame, unit: str, caption: str) -> Plot:
    """Of the first column the names, of the second the values."""
    names, values = (rows.iloc[:, at].tolist() for at in (0, 1))
    bars = figures.bars(names, values, unit)
    drawn.few_ticks(bars)
    return Plot(bars, f"Bars: {listed(dict(zip(names, values, strict=True)))}.", caption)


def _table(rows: pd.DataFrame, caption: str, columns: Sequence[str] = ()) -> Table:
    return Table(caption, list(columns or rows.columns), [[*row] for row in rows.itertuples(index=False)], half=True)


def _importance(genes: Importance, text: str) -> Section:
    title = "Importance of genes"
    if genes is None or genes.empty:
        return Section(title, "The importance of genes was not measured in this run.")
    sure = f"{int((genes['q'] < 0.05).sum()):,} of {len(genes):,} have q < .05"
    blocks: list[Block] = [_bars(genes.head(DRAWN), "fall of Pearson's r", "The most important genes.")]
    blocks.append(_table(genes.head(SHOWN), f"Most important first; {sure}. null: mean of surrogate maps."))
    return Section(title, text, blocks)


# ---------------------------------------------------------------------- sections of an evaluation


def _methods(evaluation: Evaluation) -> Section:
    how = "spatial" if evaluation.regions.one_sided and evaluation.split == "bilateral" else evaluation.split
    folds = many(int(evaluation.by_fold["fold"].nunique()), "fold")
    text = (
        f"Folds are {folds} of regions, {DIVIDED[how]}. A method learns from the pairs among the regions of all folds "
        "but one, and predicts the pairs within that one: both regions of a test pair are new to it. "
        f"Pearson's r is that within each fold, the mean over the folds of {many(len(evaluation.seeds), 'seed')}. Its "
        "intervals are of what other brain regions would give: regions, with all of their pairs, are drawn again."
    )
    if np.isfinite(evaluation.twinned):
        text += f" The mirror image of {evaluation.twinned:.0%} of the test pairs is learned from, and can be copied."
    names = {"spearman": "Spearman", "r2": "R\N{SUPERSCRIPT TWO}", "mse": "MSE", "slope": "slope", "seconds": "fit, s"}
    others = "Means over folds and seeds. Slope: of connectivity over prediction. Fit: median of a fold."
    where = "Pearson's r of near, middle and far pairs, and of pairs within and between the hemispheres."
    blocks: list[Block] = [frame.methods(evaluation.comparison, evaluation.split, [DECISIVE.name], label=name_of)]
    for caption, columns in ((others, names), (where, {name: name.removeprefix("pearson_") for name in PARTS})):
        rows = [[name_of(m), *(rounded(row[name]) for name in columns)] for m, row in evaluation.table().iterrows()]
        blocks.append(Table(caption, ["method", *columns.values()], rows))
    return Section("Methods", text, blocks)


def _matrices(evaluation: Evaluation, shown: str) -> Section:
    regions = evaluation.regions
    assert regions.connectivity is not None
    order, groups = drawn.arranged(regions.network, regions.hemisphere, evaluation.folds[0])
    truth, predicted = (m[np.ix_(order, order)] for m in (regions.connectivity, evaluation.predictions[shown][0]))
    ends = drawn.limits(np.concatenate([m[np.isfinite(m)] for m in (truth, predicted)]))
    residual = predicted - truth
    most = drawn.limits(np.abs(residual[np.isfinite(residual)]))[1]
    folds = evaluation.folds[0, order]
    blocks: list[Block] = []
    for values, colours, name, caption in (
        (truth, ends, "connectivity", "True."),
        (predicted, ends, "connectivity", f"Predicted by {name_of(shown)}. Grey: pairs between folds, no test pairs."),
        (residual, (-most, most), "residual", "Residuals: predicted minus true."),
    ):
        figure = drawn.region_matrix(values, groups, folds, colours, name)
        blocks.append(Plot(figure, f"Heat map of {len(order)} by {len(order)} regions. {caption}", caption))
    text = "Of the first seed, ordered by network, hemisphere and fold, which the stripes at the sides show."
    return Section("Matrices", text, blocks)


def _distances(evaluation: Evaluation, shown: str, rows: list[dict[str, Any]]) -> Section:
    tested = evaluation.tested()
    points = drawn.scatter(*evaluation.true_and_predicted(shown, tested), distances_of(evaluation.regions, tested))
    caption = f"{name_of(shown)}, {many(len(tested), 'test pair')} of the first seed."
    blocks: list[Block] = [Plot(points, f"Predicted against true. {caption}", caption)]
    if not rows:
        return Section("Distance", "Places are not known, so that r by distance is not either.", blocks)
    series = {
        name_of(name): figures.Series(of["mean"].tolist(), of["pearson"].tolist())
        for name, of in pd.DataFrame(rows).groupby("method", sort=False)
    }
    ends = {name: f"{text_of(one.y[0])} nearest, {text_of(one.y[-1])} farthest" for name, one in series.items()}
    lines = figures.lines(series, "distance, mm", "Pearson's r within folds")
    caption = "Pearson's r in bins of distance with as many test pairs each."
    blocks.append(Plot(lines, f"Lines of Pearson's r by distance. {listed(ends)}.", caption))
    text = "Near regions tend to be connected more. Within a bin of distance little of that is left to predict."
    return Section("Distance", text, blocks)


def _nulls(evaluation: Evaluation) -> Section:
    if not evaluation.nulls:
        return Section("Null model", "No null model was asked for: how much of r is owed to smoothness is not known.")
    blocks: list[Block] = []
    rows = []
    for result in evaluation.nulls:
        about = result.as_dict()
        cells = [rounded(about[name]) for name in ("observed", "mean", "highest", "gain")]
        rows.append([result.what, result.kind, *cells, between(about["gain_low"], about["gain_high"]), result.p])
        figure = drawn.against_null(result.nulls, f"observed: {result.observed:.3f}", result.observed)
        caption = f"{result.what}, {result.kind}: p {result.p:.3g} of {many(len(result.nulls), 'null')}."
        blocks.append(Plot(figure, f"Histogram. {caption}", caption))
    columns = ["kernel ridge of", "null", "observed", "mean of nulls", "highest", "gain", "of 95 % of nulls", "p"]
    blocks.append(Table("Mean over the folds of the first seed. p: (1 + nulls as high) / (1 + nulls).", columns, rows))
    text = "A kernel ridge over what distance says, with expression as it is and with maps that mean nothing."
    return Section("Null model", text, blocks)


def _brains(evaluation: Evaluation, shown: str) -> Section:
    regions, predicted = evaluation.regions, evaluation.predictions[shown][0]
    if regions.coordinates is None:
        return Section("Glass brains", "Places are not known.")
    assert regions.connectivity is not None
    blocks: list[Block] = []
    edges = {"strongest predicted edges": predicted, "largest residuals": predicted - regions.connectivity}
    try:
        for what, values in edges.items():
            if np.isfinite(drawn.strongest(values, drawn.SHARE)).any():
                caption = f"The {what}: {drawn.SHARE:.0%} of the test pairs."
                figure = drawn.brain(values, regions.coordinates)
                blocks.append(Plot(figure, f"Brain from three sides. {caption}", caption, half=False))
    except ImportError:
        return Section("Glass brains", "", [Note("info", f"Not drawn: {drawn.NEEDS}.")])
    return Section("Glass brains", f"Of the first seed, {name_of(shown)}.", blocks)
