"""The reports of the system for brain regions: on a fitted model, on an evaluation, on the genes behind a pair.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from omniset.regions import surfaces
from omniset.regions.blend import Blend
from omniset.regions.data import Regions
from omniset.regions.evaluate import DECISIVE, PLACES, Evaluation
from omniset.regions.figures import (
    GENES,
    NEEDS,
    SHARE,
    against_null,
    arranged,
    brain,
    estimates,
    few_ticks,
    heat_map,
    limits,
    region_matrix,
    scatter,
    strongest,
    top_genes,
)
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scaling import known_pairs, matrix_of
from omniset.regions.scores import FEWEST, pair_distance, pearson
from omniset.regions.tested import kept_by_spins, r_by_distance, r_by_network, true_and_predicted, within_folds
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
)
from omniset.trials.comparison import OURS

SHOWN = 100  # genes in a table
METHODS = {
    OURS: "omniset (ours)",
    PLACES: "ours, places only",
    "distance": "distance decay",
    "geometry": "distance and mirrored distance",
    "copy": "nearest mirrored pair",
    "cge": "co-expression",
    "gaussian": "Gaussian kernel",
    "ridge-genes": "kernel ridge, genes",
    "ridge-position": "kernel ridge, places",
    "ridge": "kernel ridge",
    "boosting-genes": "boosted trees, genes",
    "boosting-position": "boosted trees, places",
    "boosting": "boosted trees",
    "bilinear": "low-rank bilinear",
    "mlp-position": "MLP, places",
    "mlp": "MLP",
}
PARTS = {
    **METHODS,
    "attention": "attention to known regions",
    "attention-position": "attention to known regions, places",
    "seed": "cross-attention",
}
NULLS = {"spin": "spins", "moran": "Moran", "variogram": "variogram", "file": "spins of the file"}
CAVEAT = (
    "Importance is how far Pearson's r of regions that were not seen falls, to first order, where the gene's map is "
    "made flat; p says how often a map of other places is as important. Genes that vary together stand in for one "
    "another, which lowers the importance of each. What is read from says where the network looked, not what would "
    "change."
)


# ---------------------------------------------------------------------- a fitted model


def of_fit(
    run: frame.Run, predictor: ConnectivityPredictor, importance: tuple[pd.DataFrame, pd.DataFrame] | None
) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model.

    Args:
        importance: What `ConnectivityPredictor.importance` gave; None: it was not measured.
    """
    regions, method = predictor.regions_, predictor.method_
    pairs, truth = known_pairs(regions)
    predicted = method.predict(regions, pairs)
    distance = None if regions.coordinates is None else pair_distance(regions.coordinates, pairs)
    possible = len(regions) * (len(regions) - 1) // (1 if regions.directed else 2)
    r, missing = pearson(truth, predicted), float(np.isnan(regions.expression).mean())
    scores = dict(method.scores) if isinstance(method, Blend) else {}
    text = (
        "These are the pairs that the model has learned from. How well it does on regions that it has not seen, only "
        "an evaluation says."
    )
    caption = f"Pearson's r {text_of(r)} over {many(len(pairs), 'pair')} learned from."
    points = Plot(scatter(truth, predicted, distance), f"Predicted against true connectivity. {caption}", caption)
    strength = surfaces.means(matrix_of(regions, pairs, predicted))
    maps = surfaces.plot(strength, regions, "connectivity", "Predicted connectivity, the mean of each region's pairs.")
    lead = (
        f"Connectivity of pairs of brain regions, learned from the expression of {many(len(regions.genes), 'gene')} in "
        f"{many(len(regions), 'region')}."
    )
    return frame.compose(
        run,
        lead,
        [
            _weights_of(predictor.weights_, scores),
            _learning(predictor),
            Section("Pairs learned from", text, [points, *maps]),
            _importance(importance, "Genes"),
        ],
        {
            "regions": len(regions),
            "genes": len(regions.genes),
            "pairs": len(pairs),
            "directed": regions.directed,
            "method": method.name,
            "weights": predictor.weights_,
            "scores": scores,
            "seconds": predictor.seconds_,
            "history": predictor.history_,
            "pearson_of_training_pairs": r,
            "importance": [] if importance is None else importance[0].to_dict("records"),
        },
        headline=[
            ("regions", len(regions), "learned from"),
            ("genes", len(regions.genes), f"{missing:.1%} of values not measured" if missing else "all measured"),
            ("pairs", len(pairs), f"known, of {possible:,}{', directed' if regions.directed else ''}"),
            ("seconds", Cell(f"{predictor.seconds_:,.0f}", predictor.seconds_), "of training"),
        ],
        settings=predictor.get_params(),
    )


def part_name(name: str) -> str:
    """A part of a blend, or a network, in words."""
    return "all together" if name == "blend" else PARTS.get(name, name)


def _weights_of(weights: dict[str, float], scores: dict[str, float]) -> Section:
    if not weights:
        return Section("Parts", "The model is one method, without parts to weigh.")
    rows = [[part_name(name), weights.get(name), scores.get(name)] for name in {**scores, **weights}]
    caption = "Weights of the parts, and Pearson's r of each in validation."
    text = (
        "The weights are those that predict best, by least squares with a pull towards equal ones, pairs of regions "
        "that no part had seen; a part of weight 0 is left out."
    )
    if scores:
        text += " The score of all together is of the very pairs that the weights were fitted to."
    return Section("Parts", text, [Table(caption, ["part", "weight", "r in validation"], rows, half=True)])


def _learning(predictor: ConnectivityPredictor) -> Section:
    text = "Squared error of what was hidden, as a multiple of the variance of connectivity."
    return frame.learning({part_name(name): history for name, history in predictor.history_.items()}, text=text)


def _importance(tables: tuple[pd.DataFrame, pd.DataFrame] | None, title: str, text: str = CAVEAT) -> Section:
    if tables is None or tables[0].empty:
        return Section(title, "The importance of genes was not measured in this run.")
    genes, sets = tables
    top = genes.head(GENES)
    named = dict(zip(top["gene"], top["importance"].tolist(), strict=True))
    bars = figures.bars(top["gene"].tolist(), top["importance"].tolist(), "fall of Pearson's r")
    few_ticks(bars)
    blocks: list[Block] = [Plot(bars, f"Bars of importance: {listed(named)}.", "The most important genes.")]
    columns = ["importance", "null", "p", "q"]
    rows = [[row["gene"], *(row[name] for name in columns)] for row in genes.head(SHOWN).to_dict("records")]
    sure = int((genes["q"] < 0.05).sum())
    caption = f"Genes, most important first; {sure:,} of {len(genes):,} have q < .05. null: mean of surrogate maps."
    blocks.append(Table(caption, ["gene", *columns], rows, half=True))
    if len(sets):
        rows = [[row["set"], row["genes"], *(row[name] for name in columns)] for row in sets.to_dict("records")]
        caption = "Sets of genes: the mean importance of their genes, beside that of surrogate maps."
        blocks.append(Table(caption, ["set", "genes", *columns], rows, half=True))
    return Section(title, text, blocks)


# ---------------------------------------------------------------------- an evaluation


def of_evaluation(run: frame.Run, evaluation: Evaluation) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: the verdict first, then every method.

    Matrices, points and maps are of the first seed, and of ours; of the best method where ours was not run.
    """
    comparison, table = evaluation.comparison, evaluation.table()
    best = comparison.best_baseline(DECISIVE.name, evaluation.split)
    shown = OURS if OURS in evaluation.methods else str(table.index[0])
    bins, by_distance = r_by_distance(evaluation, shown, evaluation.tested())
    distances_kept = kept_by_spins(evaluation)
    headline = [
        (f"r, {label(name)}", rounded(r), between(low, high))
        for name, (r, low, high) in comparison.table(DECISIVE.name, evaluation.split).iterrows()
        if name in (OURS, best, table.index[0])
    ]
    alone = "ours was not run" if best is not None else "no baseline was run"
    lead = (
        f"{many(len(evaluation.methods), 'method')} on {many(len(evaluation.regions), 'brain region')}, judged by "
        "pairs of regions that no method has seen."
    )
    return frame.compose(
        run,
        lead,
        [
            _methods(evaluation),
            _matrices(evaluation, shown),
            _distances(evaluation, shown, bins, by_distance),
            _nulls(evaluation, distances_kept),
            _weights(evaluation),
            _brains(evaluation, shown),
            _regions(evaluation),
        ],
        {**evaluation.numbers(), "shown": shown, "by_distance": by_distance, "distances_kept_by_spins": distances_kept},
        headline=headline,
        summary=[
            *([Note("info", evaluation.genes_add())] if evaluation.genes_add() else []),
            *([] if comparison.gates else [Note("warning", f"Nothing is said of ours beside baselines: {alone}.")]),
        ],
        comparison=comparison,
    )


def label(method: Any) -> str:
    """A method's name for readers."""
    return METHODS.get(method, str(method))


def _numbers(row: Any, names: Iterable[str]) -> list[Cell]:
    return [rounded(row[name]) for name in names]


def _by_fold(table: pd.DataFrame, names: Sequence[str]) -> list[list[Any]]:
    """A row for each seed, fold and method, with some columns."""
    rows = table.to_dict("records")
    return [[row["seed"], row["fold"] + 1, label(row["method"]), *_numbers(row, names)] for row in rows]


def _methods(evaluation: Evaluation) -> Section:
    comparison, table = evaluation.comparison, evaluation.table()
    names = [label(method) for method in table.index]
    drawn = estimates(
        names,
        *(table[column].to_numpy(np.float64) for column in ("pearson", "pearson_low", "pearson_high")),
        [method not in comparison.baselines for method in table.index],
    )
    alt = f"Pearson's r by method: {listed(dict(zip(names, table['pearson'].tolist(), strict=True)))}."
    plotted = "Pearson's r of test pairs, with 95 % intervals. Filled: ours. Open: baselines."
    others = (
        "Other scores, means over folds and seeds. Slope: of connectivity over prediction; 1 is calibrated. Fit: "
        "median seconds of a fold."
    )
    rows = [
        [
            label(method),
            *_numbers(row, ("spearman", "r2")),
            Cell(text_of(row["mse"]), row["mse"]),
            *_numbers(row, ("slope",)),
            rounded(row["seconds"], 1),
        ]
        for method, row in table.iterrows()
    ]
    square = "R\N{SUPERSCRIPT TWO}"
    parts = ["short", "mid", "long", "left", "right", "between"]
    where = (
        "Pearson's r of pairs that are near, at middle distance and far (a third of each fold's pairs each), and of "
        "pairs in the left hemisphere, in the right, and between the two."
    )
    by_part = [[label(method), *_numbers(row, (f"pearson_{p}" for p in parts))] for method, row in table.iterrows()]
    by_fold = _by_fold(evaluation.by_fold, ["pearson", "spearman", "r2"])
    folds = int(evaluation.by_fold["fold"].nunique())
    text = _divided(evaluation, folds)
    return Section(
        "Methods",
        text,
        [
            Plot(drawn, alt, plotted, half=False),
            frame.methods(comparison, evaluation.split, [DECISIVE.name], label=label),
            Table(others, ["method", "Spearman", square, "MSE", "slope", "fit, s"], rows),
            Table(where, ["method", *parts], by_part),
            Table("Every fold", ["seed", "fold", "method", "Pearson", "Spearman", square], by_fold, folded=True),
        ],
    )


def _divided(evaluation: Evaluation, folds: int) -> str:
    """How the regions were divided, and what the intervals are of."""
    how = {
        "bilateral": "neighbourhoods with their mirror images, so that a test region has few neighbours and few twins "
        "in the other hemisphere among those learned from",
        "spatial": "neighbourhoods, so that a test region has few neighbours among those learned from",
        "random": "drawn at random, so that most test regions have neighbours among those learned from",
    }[evaluation.split if not evaluation.regions.one_sided or evaluation.split == "random" else "spatial"]
    text = (
        f"The regions are divided into {many(folds, 'fold')}, {how}. A method learns from the pairs among the regions "
        "of all folds but one, and predicts the pairs within that one: both regions of a test pair are new to it. "
        f"Pearson's r is that within each fold, the mean over the folds of "
        f"{many(len(evaluation.seeds), 'seed')}. Its intervals are of what other brain regions would give: regions, "
        "with all of their pairs, are drawn again."
    )
    if np.isfinite(evaluation.twinned):
        text += (
            f" The mirror image of {evaluation.twinned:.0%} of the test pairs, in the other hemisphere, is among the "
            "pairs learned from: connectivity of the two agrees, so that these can be copied."
        )
    return text


# ---------------------------------------------------------------------- test pairs of the first seed


def _matrices(evaluation: Evaluation, shown: str) -> Section:
    regions = evaluation.regions
    assert regions.connectivity is not None
    order, groups = arranged(regions.network, regions.hemisphere, evaluation.folds[0])
    truth, predicted = (m[np.ix_(order, order)] for m in (regions.connectivity, evaluation.predictions[shown][0]))
    residual = predicted - truth
    both = np.concatenate([truth[np.isfinite(truth)], predicted[np.isfinite(predicted)]])
    low, high = limits(both)
    most = limits(np.abs(residual[np.isfinite(residual)]))[1]
    folds = evaluation.folds[0, order]
    test = folds[:, None] == folds
    blocks: list[Block] = []
    for name, values, ends, pale, caption in (
        ("true", truth, (low, high), ~test, "True. Pale: pairs between folds, no test pairs."),
        ("predicted", predicted, (low, high), None, f"Predicted by {label(shown)}. Grey: not predicted."),
        ("predicted minus true", residual, (-most, most), None, "Residuals: predicted minus true."),
    ):
        figure = region_matrix(values, groups, folds, ends, "residual" if values is residual else "connectivity", pale)
        seen = values[np.isfinite(values)]
        middle = f"median {text_of(float(np.median(seen)))}" if len(seen) else "none known"
        alt = f"Heat map of {len(order)} by {len(order)} regions, {name} connectivity: {middle}."
        blocks.append(Plot(figure, alt, caption))
    if regions.network is not None:
        networks, r = r_by_network(evaluation, shown, evaluation.tested())
        if len(networks) > 1:
            alt = f"Pearson's r within networks: {listed({n: r[i, i] for i, n in enumerate(networks)})}."
            caption = (
                "Pearson's r of test pairs by the networks of both regions, within folds. Grey: fewer than "
                f"{FEWEST} pairs in every fold."
            )
            blocks.append(Plot(heat_map(r, networks, networks, "Pearson's r", (-1.0, 1.0), "RdBu_r"), alt, caption))
    by = "network, then hemisphere" if regions.network is not None else "hemisphere"
    text = (
        f"Of the first seed. Regions are ordered by {by}, then fold; columns are in the order of rows. The stripes at "
        "the sides are the folds: pairs are predicted where both stripes have one colour. Colours end at the 1st and "
        "the 99th percentile."
    )
    return Section("Matrices", text, blocks)


def _distances(evaluation: Evaluation, shown: str, bins: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Section:
    tested = evaluation.tested()
    truth, predicted = true_and_predicted(evaluation, shown, tested)
    places = evaluation.regions.coordinates
    distance = None if places is None else pair_distance(places, tested)
    r = within_folds(truth, predicted, evaluation.folds[0, tested[:, 0]])
    caption = f"{label(shown)}, {many(len(tested), 'test pair')}: Pearson's r within folds {text_of(r)}."
    blocks: list[Block] = [Plot(scatter(truth, predicted, distance), f"Predicted against true. {caption}", caption)]
    if not rows:
        return Section("Distance", "Places are not known, so that r by distance is not either.", blocks)
    series = {
        label(method): figures.Series([row["mean"] for row in of_it], [row["pearson"] for row in of_it])
        for method in dict.fromkeys(row["method"] for row in rows)
        for of_it in [[row for row in rows if row["method"] == method]]
    }
    ends = {
        name: f"{text_of(one.y[0])} for the nearest, {text_of(one.y[-1])} for the farthest"
        for name, one in series.items()
    }
    alt = "Lines of Pearson's r by distance. " + "; ".join(f"{name}: {text}" for name, text in ends.items()) + "."
    caption = f"Pearson's r in {many(len(bins), 'bin')} of distance, with as many test pairs each."
    blocks.append(Plot(figures.lines(series, "distance, mm", "Pearson's r within folds"), alt, caption))
    cells = [
        [
            Cell(f"{part['low']:.0f} to {part['high']:.0f}", part["mean"]),
            int(part["rows"].sum()),
            *(rounded(one.y[at]) for one in series.values()),
        ]
        for at, part in enumerate(bins)
    ]
    blocks.append(Table("The same as a table", ["distance, mm", "pairs", *series], cells, folded=True))
    text = (
        "Near regions tend to be connected more. Within a bin of distance little of that is left to predict: r there "
        "comes mostly from something else."
    )
    return Section("Distance", text, blocks)


# ---------------------------------------------------------------------- nulls, weights, maps


def _nulls(evaluation: Evaluation, distances_kept: float | None) -> Section:
    if not evaluation.nulls:
        return Section("Null model", "No null model was asked for: how much of r is owed to smoothness is not known.")
    blocks: list[Block] = []
    rows = []
    for result in evaluation.nulls:
        about = result.as_dict()
        title = f"{result.what}, {NULLS[result.kind]}"
        caption = (
            f"{title}: r {text_of(result.observed)}; with nulls {text_of(about['mean'])} on average, "
            f"p {result.p:.3g} of {many(len(result.nulls), 'null')}."
        )
        drawn = against_null(result.nulls, f"observed: {result.observed:.3f}", result.observed)
        blocks.append(Plot(drawn, f"Histogram. {caption}", caption))
        cells = [rounded(about[name]) for name in ("observed", "mean", "highest", "gain")]
        rows.append([result.what, NULLS[result.kind], *cells, between(about["gain_low"], about["gain_high"]), result.p])
    columns = ["kernel ridge of", "null", "observed", "mean of nulls", "highest", "gain", "of 95 % of nulls", "p"]
    blocks.append(Table("Mean over the folds of the first seed. p: (1 + nulls as high) / (1 + nulls).", columns, rows))
    text = (
        "A kernel ridge over what distance says, with expression as it is and with maps that mean nothing; what it "
        "reaches then comes from places and from how smooth maps of the brain are, not from genes. It is the best of "
        "the same few rates and penalties for all. Spins: each hemisphere is laid on a sphere and turned, cortex and "
        "subcortex each for themselves. Moran: the spatial scales of the maps get other signs. Variogram: rows are "
        "permuted and smoothed until neighbours are as alike as before. The last two have both hemispheres alike."
    )
    if distances_kept is not None:
        text += (
            f" A spin does not keep all distances: Pearson's r of the distances within hemispheres before and after is "
            f"{text_of(distances_kept)} on average (1: all kept), a share of {max(distances_kept, 0.0) ** 2:.0%} of "
            "their variance. What is not kept makes the null easier to beat."
        )
    return Section("Null model", text, blocks)


def _weights(evaluation: Evaluation) -> Section:
    weights = evaluation.weights
    if not len(weights):
        return Section("Weights of the parts", "No method with weighed parts was run.")
    parts = [name for name in weights.columns if name not in ("seed", "fold", "method")]
    means = {part_name(name): float(weights[name].mean()) for name in parts}
    text = (
        "What ours weighs its parts with, by validation on regions that the part had not seen; 0: left out. Weights "
        f"that differ much between folds are uncertain. Means: {listed({k: round(v, 3) for k, v in means.items()})}."
    )
    columns = ["seed", "fold", "method", *(part_name(name) for name in parts)]
    return Section("Weights of the parts", text, [Table("Weights in each fold.", columns, _by_fold(weights, parts))])


def _brains(evaluation: Evaluation, shown: str) -> Section:
    regions = evaluation.regions
    if regions.coordinates is None:
        return Section("Glass brains", "Places are not known.")
    assert regions.connectivity is not None
    predicted = evaluation.predictions[shown][0]
    blocks: list[Block] = []
    try:
        for what, values in (
            ("strongest predicted edges", predicted),
            ("largest residuals, predicted minus true", predicted - regions.connectivity),
        ):
            if np.isfinite(strongest(values, SHARE)).any():
                caption = f"The {what}: {SHARE:.0%} of the test pairs."
                blocks.append(
                    Plot(brain(values, regions.coordinates), f"Brain from three sides. {caption}", caption, half=False)
                )
    except ImportError:
        return Section("Glass brains", "", [Note("info", f"Not drawn: {NEEDS}.")])
    residual = surfaces.means(np.abs(predicted - regions.connectivity))
    for name, values, caption in (
        ("connectivity", surfaces.means(predicted), "Predicted connectivity, the mean of each region's test pairs."),
        ("size of residuals", residual, "The mean size of the residuals of each region's test pairs."),
    ):
        blocks += surfaces.plot(values, regions, name, caption)
    return Section("Glass brains", f"Of the first seed, {label(shown)}.", blocks)


def _regions(evaluation: Evaluation) -> Section:
    places, folds = evaluation.regions.coordinates, evaluation.folds[0]
    names = np.array([f"fold {f + 1}" for f in folds], dtype=object)
    blocks: list[Block] = []
    if places is not None:
        known = np.isfinite(places).all(1)
        sizes = listed({f"fold {f + 1}": int((folds == f).sum()) for f in np.unique(folds)})
        for (x, y), xlabel, ylabel, side in (
            ((0, 1), "left to right", "back to front", "above"),
            ((1, 2), "back to front", "bottom to top", "the side"),
        ):
            figure = figures.categories(places[known][:, [x, y]], names[known], xlabel, ylabel)
            figure.axes[0].set_aspect("equal")
            blocks.append(
                Plot(figure, f"A point per region, by fold: {sizes}.", f"Folds of the first seed, from {side}.")
            )
    sizes_of = [[f"fold {f + 1}", int((folds == f).sum())] for f in np.unique(folds)]
    blocks.append(Table("Regions of each fold.", ["fold", "regions"], sizes_of, half=True))
    return Section("Folds", "", blocks)


# ---------------------------------------------------------------------- an explanation


def of_explanation(
    run: frame.Run,
    looked: pd.DataFrame,
    importance: tuple[pd.DataFrame, pd.DataFrame] | None,
    first: str,
    second: str,
    known: Regions | None = None,
) -> tuple[Report, dict[str, Any]]:
    """The report on a pair of regions.

    Args:
        looked: What `ConnectivityPredictor.explain` gave: known regions that were read from, or pairs of genes.
        importance: What `ConnectivityPredictor.importance` gave; None: the method has none.
        first, second: Names of the regions.
        known: Those that are read from.
    """
    blocks: list[Block] = []
    if "known" in looked.columns:
        for name in (first, second):
            mine = looked[looked["region"] == name]
            top = mine.head(GENES)
            named = dict(zip(top["known"], top["weight"].tolist(), strict=True))
            bars = figures.bars(top["known"].tolist(), top["weight"].tolist(), "weight")
            few_ticks(bars)
            blocks.append(Plot(bars, f"Bars: {listed(named)}.", f"Known regions whose connectivity {name} reads."))
            rows = mine[["known", "weight"]].values.tolist()
            blocks.append(Table(f"Read by {name}.", ["known region", "weight"], rows, half=True))
            if known is not None:
                weights = dict(rows)
                values = np.array([weights.get(one, np.nan) for one in known.names])
                blocks += surfaces.plot(values, known, "weight", f"The weights with which {name} reads known regions.")
        title, text = "Read from", "Known regions that each region attends to, mean over heads."
    else:
        title, text = "Pairs of genes", "Which genes of the first region attend to which of the second."
        if len(looked):
            blocks += _pairs_of_genes(looked, first, second)
    return frame.compose(
        run,
        f"Where the network looked for the connectivity of {first} and {second}, and what its predictions rest on.",
        [Section(title, text, blocks), _importance(importance, "Importance of genes", "")],
        {
            "first": first,
            "second": second,
            "pairs": looked.to_dict("records"),
            "importance": [] if importance is None else importance[0].to_dict("records"),
            "sets": [] if importance is None else importance[1].to_dict("records"),
        },
        summary=[Note("warning", CAVEAT)],
    )


def _pairs_of_genes(pairs_table: pd.DataFrame, first: str, second: str) -> list[Block]:
    rows, columns, weights = top_genes(pairs_table, GENES)
    strong = pairs_table.sort_values("weight", ascending=False)[["gene_i", "gene_j", "weight"]].values.tolist()
    gene_i, gene_j, most = strong[0]
    alt = (
        f"Heat map of {len(rows)} by {len(columns)} genes. The largest weight, {text_of(most)}, is of {gene_i} and "
        f"{gene_j}."
    )
    caption = (
        f"Attention of genes of {first} (rows) to genes of {second} (columns): of either, at most {GENES} with the "
        "largest weights. Grey: below those of the table."
    )
    ends = (float(strong[-1][2]), float(most)) if most > strong[-1][2] else (0.0, float(most) or 1.0)
    drawn = heat_map(weights, rows, columns, "weight", ends, "viridis", numbers=False)
    names = [f"gene of {first}", f"gene of {second}", "weight"]
    return [Plot(drawn, alt, caption), Table("Pairs of genes, largest weight first.", names, strong, half=True)]
