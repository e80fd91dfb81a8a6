"""The reports on brain regions: of a fitted model, of an evaluation, of what a pair is predicted from.

Each is a list of sections on the frame that all systems share, and the plain numbers behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from omniset.regions import figures as drawn
from omniset.regions.blend import RELATIONS, Blend
from omniset.regions.data import Regions, Square, known_pairs, matrix_of
from omniset.regions.evaluate import DECISIVE, NAMES, PARTS, Evaluation
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scores import pearson
from omniset.report import figures, frame
from omniset.report.blocks import Block, Note, Plot, Report, Section, Table, between, listed, many, plots_of, rounded
from omniset.trials.comparison import OURS
from omniset.trials.intervals import Interval, decimals

DRAWN, SHOWN = 15, 100  # genes and known regions, in a figure and in a table
DIVIDED = {
    "bilateral": "neighbourhoods with their mirror images: few neighbours and twins of a test region are learned from",
    "spatial": "neighbourhoods: few neighbours of a test region are learned from, but most of their mirror images",
    "random": "drawn at random: most test regions have neighbours among those learned from",
}
HALVES = "Measured connectivity above the diagonal, predicted below."
CAVEAT = (
    "Importance is how far Pearson's r of regions not seen falls, to first order, where the gene's map is made flat; p "
    "says how often a map of other places is as important. Genes that vary together stand in for one another. What is "
    "read from says where the network looked, not what would change. Both are of the network, whatever its weight."
)
Importance = pd.DataFrame | None  # as `ConnectivityPredictor.importance` gives


def name_of(method: Any) -> str:
    """A method, or a part of one, in words."""
    return f"{OURS} (ours)" if method == OURS else NAMES.get(method, str(method))


def of_fit(run: frame.Run, predictor: ConnectivityPredictor, importance: Importance) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model; importance None: it was not measured."""
    regions, method = predictor.regions_, predictor.method_
    pairs, truth = known_pairs(regions)
    predicted = method.predict(regions, pairs)
    scores = dict(method.scores) if isinstance(method, Blend) else {}
    order, groups = drawn.arranged(regions.network, regions.hemisphere, np.zeros(len(regions), dtype=np.int64))
    matrix = _halves(regions, matrix_of(regions, pairs, predicted), order)[np.ix_(order, order)]
    ends = drawn.limits(matrix[np.isfinite(matrix)])
    caption = f"{HALVES} These pairs were learned from."
    picture = Plot(drawn.region_matrix(matrix, groups, None, ends, "connectivity"), f"Heat map. {caption}", caption)
    histories = {name_of(name): history for name, history in predictor.history_.items()}
    sections = [
        _parts(predictor.weights_, scores),
        _importance(importance, CAVEAT),
        frame.learning(histories, text="Squared error of what was hidden, beside the variance of connectivity."),
    ]
    sizes = {"regions": len(regions), "genes": len(regions.genes), "pairs": len(pairs)}
    about: dict[str, Any] = {"directed": regions.directed, "method": predictor.method}
    about |= {"weights": predictor.weights_, "scores": scores}
    about |= {"seconds": predictor.seconds_, "history": predictor.history_}
    about["pearson_of_training_pairs"] = pearson(truth, predicted)
    about["importance"] = [] if importance is None else importance.to_dict("records")
    missing = float(np.isnan(regions.expression).mean())
    measured = f"{missing:.1%} of their expression not measured" if missing else "all measured"
    lead = (
        f"Learned from {len(pairs):,} pairs of {len(regions):,} regions and {len(regions.genes):,} genes, {measured}."
    )
    told = [_told(of, predictor.weights_[kind], len(regions), RELATIONS[kind]) for kind, of in scores.items()]
    verdict = f"Connectivity is predicted by {name_of(predictor.method)}; how well of regions not seen, evaluate says."
    if told:
        verdict = f"On pairs of regions held back, Pearson's r is {', and '.join(told)}."
    how: dict[str, Any] = {"picture": [picture], "settings": predictor.get_params()}
    return frame.compose(run, verdict, lead, sections, sizes | about, **how)


def _told(scores: Mapping[str, float], weights: Mapping[str, float], regions: int, where: str) -> str:
    """What predicts such regions, beside the best simple part of it."""
    digits = decimals(Interval(math.nan, units=regions))
    taken = max(weights, key=weights.__getitem__) if max(weights.values()) == 1 else "blend"
    simple = max({*scores} - {taken, "attention", "blend"}, key=scores.__getitem__, default="")
    beside = f" ({name_of(simple)} alone: {scores[simple]:.{digits}f})" if simple else ""
    return f"{scores.get(taken, math.nan):.{digits}f} {where}{beside}"


def of_evaluation(run: frame.Run, evaluation: Evaluation) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: the verdict first, then every method.

    Matrices, points and brains are of the first seed, and of ours; of the best method where ours was not run.
    """
    comparison = evaluation.comparison
    shown = OURS if OURS in evaluation.methods else str(evaluation.table().index[0])
    sections = [_methods(evaluation), _matrices(evaluation, shown), _predicted(evaluation, shown)]
    sections += [_nulls(evaluation), _brains(evaluation, shown)]
    numbers = evaluation.numbers() | {"shown": shown}
    remarks = [Note("info", evaluation.genes_add())] if evaluation.genes_add() else []
    lead = f"Methods on {many(len(evaluation.regions), 'brain region')}. Pearson's r is of predicted and measured "
    lead += "connectivity, of pairs of regions that no method has seen: 1 is best, 0 says nothing."
    how: dict[str, Any] = {"picture": plots_of(sections[1]), "remarks": remarks, "comparison": comparison}
    return frame.compose(run, "", lead, sections, numbers, **how)


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
    told = [f"For {first} and {second} nothing is read from others"] if looked.empty else []
    ranked = looked.sort_values("weight", ascending=False, kind="stable")
    for name, rows in ranked.groupby(looked.columns[0], sort=False):
        told.append(f"{name} reads most from {', '.join(map(str, rows.iloc[:3, 1]))}")
    verdict = f"{'; '.join(told[:2])}."
    if len(tables["importance"]):
        genes = tables["importance"]
        sure = int((genes["q"] < 0.05).sum())
        verdict += f" Of {len(genes):,} genes, {sure:,} matter for regions not seen (q < .05)."
    lead = "Where the network looked, and what its predictions rest on."
    sections = [Section(title, text, blocks), _importance(importance, "")]
    how: dict[str, Any] = {"picture": [*plots_of(sections[0]), *plots_of(sections[1])]}
    about = {"first": first, "second": second, **numbers}
    return frame.compose(run, verdict, lead, sections, about, remarks=[Note("warning", CAVEAT)], **how)


# ---------------------------------------------------------------------- sections of a model and of a pair


def _parts(weights: Mapping[str, Mapping[str, float]], scores: Mapping[str, Mapping[str, float]]) -> Section:
    if not weights:
        return Section("Parts")
    text = "Weights that predict pairs of regions not seen best; all together are scored with those of other folds."
    names = dict.fromkeys(name for of in (*scores.values(), *weights.values()) for name in of)
    columns = ["part"]
    rows: list[list[Any]] = [[name_of(name)] for name in names]
    for kind, of in weights.items():
        where, r = f", {kind}" if len(weights) > 1 else "", scores.get(kind, {})
        columns += [f"weight{where}", f"r in validation{where}"]
        shown = [[rounded(of_one.get(name, math.nan), 2) for of_one in (of, r)] for name in names]
        rows = [[*row, *cells] for row, cells in zip(rows, shown, strict=True)]
        text += f" {kind.capitalize()}: pairs of regions {RELATIONS[kind]}." if where else ""
        shares = [name for name, weight in of.items() if weight]
        if len(shares) == 1:
            both = [rounded(r.get(name, math.nan), 2).text for name in ("blend", shares[0])]
            text += f" {name_of(shares[0]).capitalize()} is taken alone: on regions held back all together were no "
            text += f"better, r {both[0]} against {both[1]}."
    return Section("Parts", text, [Table("Weights of the parts, and Pearson's r of each.", columns, rows, half=True)])


def _bars(rows: pd.DataFrame, unit: str, caption: str) -> Plot:
    """Of the first column the names, of the second the values."""
    names, values = (rows.iloc[:, at].tolist() for at in (0, 1))
    bars = figures.bars(names, values, unit)
    return Plot(bars, f"Bars: {listed(dict(zip(names, values, strict=True)))}.", caption)


def _table(rows: pd.DataFrame, caption: str, columns: Sequence[str] = ()) -> Table:
    return Table(caption, list(columns or rows.columns), [[*row] for row in rows.itertuples(index=False)], half=True)


def _importance(genes: Importance, text: str) -> Section:
    title = "Importance of genes"
    if genes is None or genes.empty:
        return Section(title)
    sure = f"{int((genes['q'] < 0.05).sum()):,} of {len(genes):,} have q < .05"
    blocks: list[Block] = [_bars(genes.head(DRAWN), "fall of Pearson's r", "The most important genes.")]
    blocks.append(_table(genes.head(SHOWN), f"Most important first; {sure}. null: mean of surrogate maps."))
    return Section(title, text, blocks)


# ---------------------------------------------------------------------- sections of an evaluation


def _methods(evaluation: Evaluation) -> Section:
    how = "spatial" if evaluation.regions.one_sided and evaluation.split == "bilateral" else evaluation.split
    folds = many(int(evaluation.by_fold["fold"].nunique()), "fold")
    text = (
        f"There are {folds} of regions, {DIVIDED[how]}. A method learns from the pairs among the regions of all folds "
        "but one, and predicts the pairs within that one: both regions of a test pair are new to it. "
        f"Pearson's r is that within each fold, the mean over the folds of {many(len(evaluation.seeds), 'seed')}. Its "
        "intervals are of what other brain regions would give: regions, with all of their pairs, are drawn again."
    )
    names = {"spearman": "Spearman", "r2": "R\N{SUPERSCRIPT TWO}", "mse": "MSE", "slope": "slope", "seconds": "fit, s"}
    others = "Means over folds and seeds. Slope: of connectivity over prediction. Fit: median of a fold."
    where = "Pearson's r of near, middle and far pairs, and of pairs within and between the hemispheres."
    blocks: list[Block] = [frame.methods(evaluation.comparison, evaluation.split, [DECISIVE.name])]
    for caption, columns in ((others, names), (where, {name: name.removeprefix("pearson_") for name in PARTS})):
        rows = [[name_of(m), *(rounded(row[name]) for name in columns)] for m, row in evaluation.table().iterrows()]
        blocks.append(Table(caption, ["method", *columns.values()], rows))
    return Section("Methods", text, blocks)


def _matrices(evaluation: Evaluation, shown: str) -> Section:
    regions = evaluation.regions
    assert regions.connectivity is not None
    order, groups = drawn.arranged(regions.network, regions.hemisphere, evaluation.folds[0])
    truth, predicted = regions.connectivity, evaluation.predictions[shown][0]
    residual = predicted - truth
    ends = drawn.limits(np.concatenate([m[np.isfinite(m)] for m in (truth, predicted)]))
    most = drawn.limits(np.abs(residual[np.isfinite(residual)]))[1]
    folds = evaluation.folds[0, order]
    both = f"{HALVES} By {name_of(shown)}, of regions not learned from; grey: pairs between folds, which are no test."
    whole = f"Predicted by {name_of(shown)}. Grey: pairs between folds, which are no test."
    parts = [(_halves(regions, predicted, order), ends, "connectivity", whole if regions.directed else both)]
    parts += [(truth, ends, "connectivity", "True.")] if regions.directed else []
    parts += [(residual, (-most, most), "residual", "Residuals: predicted minus true.")]
    blocks: list[Block] = []
    for values, colours, name, caption in parts:
        figure = drawn.region_matrix(values[np.ix_(order, order)], groups, folds, colours, name)
        blocks.append(Plot(figure, f"Heat map of {len(order)} by {len(order)} regions. {caption}", caption))
    text = "Of the first seed, ordered by network, hemisphere and fold, which the stripes at the sides show."
    return Section("Matrices", text, blocks)


def _halves(regions: Regions, predicted: Square, order: Int[np.ndarray, " regions"]) -> Square:
    """In this order measured above the diagonal and predicted below; of directed connectivity what is predicted."""
    assert regions.connectivity is not None
    place = np.argsort(order)
    below = (place[:, None] >= place) | regions.directed
    return np.where(below, predicted, regions.connectivity)


def _predicted(evaluation: Evaluation, shown: str) -> Section:
    tested = evaluation.tested()
    assert evaluation.regions.connectivity is not None
    both = (of[tuple(tested.T)] for of in (evaluation.regions.connectivity, evaluation.predictions[shown][0]))
    caption = f"{name_of(shown)}, {many(len(tested), 'test pair')} of the first seed."
    figure = figures.scatter(*both, "true connectivity", "predicted connectivity")
    return Section("Pairs", "", [Plot(figure, f"Predicted against true. {caption}", caption)])


def _nulls(evaluation: Evaluation) -> Section:
    rows = []
    for result in evaluation.nulls:
        about = result.as_dict()
        cells = [rounded(about[name]) for name in ("observed", "mean", "highest", "gain")]
        gain = between(about["gain_low"], about["gain_high"])
        rows.append([result.what, result.kind, len(result.nulls), *cells, gain, rounded(result.p)])
    columns = ["kernel ridge of", "null", "nulls", "observed", "mean of nulls", "highest", "gain", "of 95 % of nulls"]
    caption = "Mean over the folds of the first seed. p: (1 + nulls as high) / (1 + nulls)."
    text = "A kernel ridge over what distance says, with expression as it is and with maps that mean nothing."
    return Section("Null model", text, [Table(caption, [*columns, "p"], rows)] if rows else [])


def _brains(evaluation: Evaluation, shown: str) -> Section:
    regions, predicted = evaluation.regions, evaluation.predictions[shown][0]
    if regions.coordinates is None:
        return Section("Glass brains")
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
