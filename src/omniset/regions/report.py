"""The reports of the system for brain regions: on a fitted model, on an evaluation, on the genes behind a pair.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.stats import spearmanr

from omniset.regions.blend import Blend
from omniset.regions.evaluate import MINE, Evaluation, groups_of
from omniset.regions.nulls import distortion, spins
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scores import FEWEST, pair_distance, pearson
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
)

FORMAT, VERSION = "omniset report of brain regions", 1
BINS = 6  # of distance
GENES = 15  # drawn
SHARE = 0.02  # of edges, in glass brains
NULLS = 100  # spins, at most, whose distortion is measured
PIXELS = 600  # rows of a matrix, at most, that are kept as they are: more are averaged by the drawing
LEVELS = 64  # of colour, so that images of matrices are small files
UNKNOWN = "#d0d4d9"
INK = "#1b1f24"
PALE = 0.7  # of white, where a pair was no test pair
NEEDS = "glass brains need nilearn: pip install 'omniset[brain]'"
METHODS = {
    MINE: "Omniset (ours)",
    "distance": "distance decay",
    "cge": "co-expression",
    "gaussian": "Gaussian kernel",
    "ridge-genes": "kernel ridge, genes",
    "ridge-position": "kernel ridge, places",
    "ridge": "kernel ridge",
    "boosting-genes": "boosted trees, genes",
    "boosting-position": "boosted trees, places",
    "boosting": "boosted trees",
    "bilinear": "low-rank bilinear",
    "mlp": "MLP",
}
PARTS = {
    "trunk": "distance",
    "ridge": "kernel ridge",
    "boosting": "boosted trees",
    "attention": "cross-attention",
    "seed": "cross-attention",
    "blend": "all together",
}
CAVEAT = (
    "Attention says where the network looked, not what its prediction rests on: a gene may be looked at and change "
    "nothing. Importance is the fall of Pearson's r when the gene's values change places among the regions learned "
    "from. Genes that vary together stand in for one another, which lowers the importance of each."
)


# ---------------------------------------------------------------------- a fitted model


def of_fit(
    predictor: ConnectivityPredictor,
    importance: pd.DataFrame | None,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model.

    Args:
        importance: What `ConnectivityPredictor.importance` gave; None: it was not asked for.
        notes: Warnings of the run.
    """
    regions, method = predictor.regions_, predictor.method_
    pairs = regions.pairs()
    assert regions.connectivity is not None
    truth, predicted = regions.connectivity[tuple(pairs.T)], method.predict(regions, pairs)
    possible = len(regions) * (len(regions) - 1) // (1 if regions.directed else 2)
    r = pearson(truth, predicted)
    items: list[tuple[str, Any, str]] = [
        ("regions", len(regions), "learned from"),
        ("genes", len(regions.genes), _measured(regions.expression)),
        ("pairs", len(pairs), f"known, of {possible:,}{', directed' if regions.directed else ''}"),
        ("seconds", Cell(f"{predictor.seconds_:,.0f}", predictor.seconds_), "of training"),
    ]
    scores = dict(method.scores) if isinstance(method, Blend) else {}
    infos = [Note("info", text) for text in regions.notes]
    text = (
        "These are the pairs that the model has learned from. How well it does on regions that it has not seen, only "
        "an evaluation says."
    )
    said = f"Pearson's r {text_of(r)} over {many(len(pairs), 'pair')} learned from."
    scatter = _scatter(
        truth, predicted, None if regions.coordinates is None else pair_distance(regions.coordinates, pairs)
    )
    sections = [
        Section("Summary", "", [Headline(items), *_warnings(notes), *infos]),
        _weights_of(predictor.weights_, scores),
        _learning(predictor.history_, predictor.weights_),
        Section("Pairs learned from", text, [Plot(scatter, f"Predicted against true connectivity. {said}", said)]),
        _importance(importance, "Genes"),
        Section("Settings", "", [Facts(list(predictor.get_params().items()))]),
    ]
    lead = (
        f"Connectivity of pairs of brain regions, learned from the expression of {many(len(regions.genes), 'gene')} in "
        f"{many(len(regions), 'region')}."
    )
    found = {
        "regions": len(regions),
        "genes": len(regions.genes),
        "pairs": len(pairs),
        "directed": regions.directed,
        "decided": regions.notes,
        "method": method.name,
        "weights": predictor.weights_,
        "scores": scores,
        "seconds": predictor.seconds_,
        "history": predictor.history_,
        "pearson_of_training_pairs": r,
        "importance": [] if importance is None else importance.to_dict("records"),
        "arguments": predictor.get_params(),
    }
    return _finish("fit", Report(title, lead, sections, command, provenance), notes, found)


def _measured(expression: Float[np.ndarray, "regions genes"]) -> str:
    missing = float(np.isnan(expression).mean()) if expression.size else 0.0
    return f"{missing:.1%} of values not measured" if missing else "all measured"


def _weights_of(weights: dict[str, float], scores: dict[str, float]) -> Section:
    if not weights:
        return Section("Parts", "The model is one method, without parts to weigh.")
    rows = [[PARTS.get(name, name), weights.get(name), scores.get(name)] for name in {**weights, **scores}]
    caption = "Weights of the parts, and Pearson's r in validation: of a part, together with distance."
    text = (
        "Each part is fitted to what distance leaves. The weights are those that predict best, by least squares, pairs "
        "of regions that no part had seen; a part of weight 0 is left out."
    )
    if scores:
        text += " The score of all together is of the very pairs that the weights were fitted to."
    return Section("Parts", text, [Table(caption, ["part", "weight", "r in validation"], rows, half=True)])


def _learning(histories: dict[str, list[dict[str, Any]]], weights: dict[str, float]) -> Section:
    blocks: list[Block] = []
    for part, history in histories.items():
        keys = list(dict.fromkeys(key for row in history for key in row if key != "epoch"))
        for name in dict.fromkeys(key.removeprefix("train_").removeprefix("val_") for key in keys):
            own = [key for key in keys if key in (name, f"train_{name}", f"val_{name}")]
            last = {figures.words(key): history[-1].get(key) for key in own}
            alt = f"Line plot of {figures.words(name)} by epoch. In the last epoch: {listed(last)}."
            caption = f"{PARTS.get(part, part).capitalize()}: {figures.words(name)} by epoch."
            blocks.append(Plot(figures.learning_curve(history, name, None), alt, caption))
        if history:
            rows = [[row["epoch"], *(row.get(key) for key in keys)] for row in history]
            columns = ["epoch", *map(figures.words, keys)]
            blocks.append(Table(f"{PARTS.get(part, part).capitalize()}: as a table", columns, rows, folded=True))
    if not blocks:
        return Section("Learning curves", "The model has no network.")
    unused = (
        " Validation gave the network the weight 0: predictions do not use it." if weights.get("attention") == 0 else ""
    )
    return Section("Learning curves", f"Connectivity is standardised over the pairs learned from.{unused}", blocks)


def _importance(importance: pd.DataFrame | None, title: str, text: str = CAVEAT) -> Section:
    if importance is None or importance.empty:
        return Section(title, "The importance of genes was not measured in this run.")
    top = importance.head(GENES)
    named = dict(zip(top["gene"], top["importance"].tolist(), strict=True))
    bars = figures.bars(top["gene"].tolist(), top["importance"].tolist(), "fall of Pearson's r")
    _few_ticks(bars)
    caption = "The most important genes."
    blocks: list[Block] = [Plot(bars, f"Bars of importance: {listed(named)}.", caption)]
    both = importance.dropna(subset=["importance", "attention"])
    if len(both) >= FEWEST and both["attention"].nunique() > 1 and both["importance"].nunique() > 1:
        rank = float(spearmanr(both["attention"], both["importance"]).statistic)
        said = f"Attention and importance of {many(len(both), 'gene')}: Spearman's correlation {text_of(rank)}."
        drawn = figures.points(
            both["attention"].to_numpy(np.float64), both["importance"].to_numpy(np.float64), "attention", "importance"
        )
        _few_ticks(drawn)
        blocks.append(Plot(drawn, said, said))
    elif importance["attention"].isna().all():
        text = f"{text} This method has no attention.".strip()
    rows = [[row["gene"], row["importance"], row["attention"]] for row in importance.to_dict("records")]
    blocks.append(Table("Importance of genes, beside attention.", ["gene", "importance", "attention"], rows, half=True))
    return Section(title, text, blocks)


# ---------------------------------------------------------------------- an evaluation


def of_evaluation(
    evaluation: Evaluation, *, title: str, command: str, notes: list[str], provenance: dict[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: the verdict first, then every method.

    Matrices, points and maps are of the first seed, and of ours; of the best method where ours was not run.
    """
    found = evaluation.numbers()
    shown = MINE if MINE in evaluation.predictions else str(evaluation.table().index[0])
    tested = _tested(evaluation)
    bins, by_distance = _by_distance(evaluation, shown, tested)
    kept = _kept(evaluation)
    sections = [
        _verdict(evaluation, notes),
        _methods(evaluation),
        _matrices(evaluation, shown, tested),
        _distances(evaluation, shown, tested, bins, by_distance),
        _nulls(evaluation, kept),
        _weights(evaluation),
        _brains(evaluation, shown),
        _regions(evaluation),
    ]
    lead = (
        f"{many(len(evaluation.methods), 'method')} on {many(len(evaluation.regions), 'brain region')}, judged by "
        "pairs of regions that no method has seen."
    )
    found |= {"shown": shown, "by_distance": by_distance, "distances_kept_by_spins": kept}
    return _finish("evaluation", Report(title, lead, sections, command, provenance), notes, found)


def label(method: Any) -> str:
    """A method's name for readers."""
    return METHODS.get(method, str(method))


def _verdict(evaluation: Evaluation, notes: list[str]) -> Section:
    table, best, gates = evaluation.table(), evaluation.best_baseline(), evaluation.gates()
    items: list[tuple[str, Any, str]] = []
    said: Block
    if gates and best is not None:
        gate = gates[0]
        items.append(
            ("gate", Cell("held" if gate["holds"] else "NOT held", gate["holds"]), "ours above the best baseline")
        )
        items.append(("difference of r", _signed(gate["value"]), _between(gate["low"], gate["high"], _signed)))
        said = _sentence(gate, best)
    else:
        why = "ours was not run" if best is not None else "no baseline was run"
        said = Note("warning", f"Nothing can be said of ours beside baselines: {why}.")
    for method in dict.fromkeys(name for name in (MINE, best, table.index[0]) if name in table.index):
        r, low, high = (table[name].to_dict()[method] for name in ("pearson", "pearson_low", "pearson_high"))
        items.append((f"r, {label(method)}", _rounded(r), _between(low, high)))
    blocks: list[Block] = [said, Headline(items), *_warnings(notes)]
    blocks += [Note("info", f"{label(name)} was not run: {why}.") for name, why in evaluation.not_run.items()]
    blocks += [Note("info", note) for note in evaluation.regions.notes]
    return Section("Verdict", "", blocks)


def _sentence(gate: dict[str, Any], best: str) -> Note:
    """Plainly, what to use."""
    value, low, high = gate["value"], gate["low"], gate["high"]
    if math.isnan(value):
        return Note("warning", f"Ours and {label(best)} cannot be compared: Pearson's r is not defined in any fold.")
    interval = "" if math.isnan(low) else f" (95 % interval {_between(low, high, _signed)})"
    if not gate["holds"]:
        return Note(
            "warning",
            f"On these data use {label(best)} (method={best!r}). Ours is not better than this, the best baseline: "
            f"Pearson's r, ours minus its, is {_signed(value).text}{interval}.",
        )
    text = (
        f"Ours is better than the best baseline, {label(best)}: Pearson's r, ours minus its, is {_signed(value).text}"
        f"{interval}."
    )
    if low <= 0:
        text += f" The interval includes 0: {label(best)} may be as good, and is simpler."
    return Note("info", text)


def _division(evaluation: Evaluation) -> str:
    folds = int(evaluation.rows["fold"].nunique())
    how = {
        "spatial": "neighbourhoods, so that a test region has few neighbours among those learned from",
        "random": "drawn at random, so that most test regions have neighbours among those learned from",
    }.get(evaluation.split, evaluation.split)
    return (
        f"The regions are divided into {many(folds, 'fold')}, {how}. A method learns from the pairs among the regions "
        "of all folds but one, and predicts the pairs within that one: both regions of a test pair are new to it."
    )


def _meaning(evaluation: Evaluation) -> str:
    seeds = int(evaluation.rows["seed"].nunique())
    of = "the folds" if seeds == 1 else "the seeds, each with all of its folds"
    over = "folds" if seeds == 1 else f"folds and {seeds} seeds"
    return f"Scores are means over {over}; intervals are of 95 %, by drawing {of}."


def _methods(evaluation: Evaluation) -> Section:
    table = evaluation.table()
    names = [label(method) for method in table.index]
    drawn = _estimates(
        names,
        *(table[column].to_numpy(np.float64) for column in ("pearson", "pearson_low", "pearson_high")),
        [method not in evaluation.baselines for method in table.index],
    )
    alt = f"Pearson's r by method: {listed(dict(zip(names, table['pearson'].tolist(), strict=True)))}."
    scores = [
        [
            label(method),
            _rounded(row["pearson"]),
            _between(row["pearson_low"], row["pearson_high"]),
            *(_rounded(row[name]) for name in ("spearman", "r2")),
            Cell(text_of(row["mse"]), row["mse"]),
            _rounded(row["null"]),
            _rounded(row["gain"]),
            _rounded(row["seconds"], 1),
        ]
        for method, row in table.iterrows()
    ]
    columns = [
        "method",
        "Pearson",
        "95 % interval",
        "Spearman",
        "R\N{SUPERSCRIPT TWO}",
        "MSE",
        "null",
        "gain",
        "fit, s",
    ]
    parts = ["short", "mid", "long", "left", "right", "between"]
    rows = [[label(method), *(_rounded(row[f"pearson_{p}"]) for p in parts)] for method, row in table.iterrows()]
    every = [
        [row["seed"], row["fold"] + 1, label(row["method"]), *(_rounded(row[n]) for n in ("pearson", "spearman", "r2"))]
        for row in evaluation.rows.to_dict("records")
    ]
    caption = (
        "Scores of test pairs, best first. Null: Pearson's r with expression from other places. Gain: what the first "
        "seed has more than that. Fit: median seconds of a fold."
    )
    where = (
        "Pearson's r of pairs that are near, at middle distance and far (a third of each fold's pairs each), and of "
        "pairs in the left hemisphere, in the right, and between the two."
    )
    return Section(
        "Methods",
        f"{_division(evaluation)} {_meaning(evaluation)}",
        [
            Plot(
                drawn, alt, "Pearson's r of test pairs, with 95 % intervals. Filled: ours. Open: baselines.", half=False
            ),
            Table(caption, columns, scores),
            Table(where, ["method", *parts], rows),
            Table(
                "Every fold",
                ["seed", "fold", "method", "Pearson", "Spearman", "R\N{SUPERSCRIPT TWO}"],
                every,
                folded=True,
            ),
        ],
    )


# ---------------------------------------------------------------------- test pairs of the first seed


def _tested(evaluation: Evaluation) -> Int[np.ndarray, "pairs 2"]:
    """The known pairs within folds of the first seed."""
    pairs = evaluation.regions.pairs()
    return pairs[evaluation.folds[pairs[:, 0]] == evaluation.folds[pairs[:, 1]]]


def _values(evaluation: Evaluation, method: str, pairs: Int[np.ndarray, "pairs 2"]) -> tuple[np.ndarray, np.ndarray]:
    """What is true, and what the method predicts."""
    assert evaluation.regions.connectivity is not None
    return evaluation.regions.connectivity[tuple(pairs.T)], evaluation.predictions[method][tuple(pairs.T)]


def within_folds(
    truth: Float[np.ndarray, " pairs"], predicted: Float[np.ndarray, " pairs"], folds: Int[np.ndarray, " pairs"]
) -> float:
    """Pearson's r in each fold, the mean by numbers of pairs; NaN where it is defined in none.

    So levels that differ between folds do not pass for predictions.
    """
    found = [(pearson(truth[folds == f], predicted[folds == f]), int((folds == f).sum())) for f in np.unique(folds)]
    good = [(r, n) for r, n in found if not math.isnan(r)]
    return float(np.average([r for r, _ in good], weights=[n for _, n in good])) if good else math.nan


def _by_distance(
    evaluation: Evaluation, shown: str, tested: Int[np.ndarray, "pairs 2"]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Bins of distance with as many test pairs each; and r of ours and of the best baseline in them."""
    if evaluation.regions.coordinates is None:
        return [], []
    distance = pair_distance(evaluation.regions.coordinates, tested)
    known = np.isfinite(distance)
    pairs, distance = tested[known], distance[known]
    if not len(pairs):
        return [], []
    edges = np.quantile(distance, np.arange(1, BINS) / BINS, method="inverted_cdf")
    place = np.searchsorted(edges, distance)
    bins, rows = [], []
    for at in np.unique(place):
        here = place == at
        own = distance[here]
        bins.append({"rows": here, "mean": float(own.mean()), "low": float(own.min()), "high": float(own.max())})
    for method in dict.fromkeys([shown, evaluation.best_baseline() or shown]):
        truth, predicted = _values(evaluation, method, pairs)
        for part in bins:
            here = part["rows"]
            r = within_folds(truth[here], predicted[here], evaluation.folds[pairs[here, 0]])
            about = {key: part[key] for key in ("mean", "low", "high")}
            rows.append({"method": method, **about, "pairs": int(here.sum()), "pearson": r})
    return bins, rows


def _matrices(evaluation: Evaluation, shown: str, tested: Int[np.ndarray, "pairs 2"]) -> Section:
    regions = evaluation.regions
    assert regions.connectivity is not None
    order, groups = arranged(regions.network, regions.hemisphere, evaluation.folds)
    truth, predicted = (m[np.ix_(order, order)] for m in (regions.connectivity, evaluation.predictions[shown]))
    residual = predicted - truth
    both = np.concatenate([truth[np.isfinite(truth)], predicted[np.isfinite(predicted)]])
    low, high = _limits(both)
    most = _limits(np.abs(residual[np.isfinite(residual)]))[1]
    folds = evaluation.folds[order]
    test = folds[:, None] == folds
    blocks: list[Block] = []
    for name, values, ends, pale, caption in (
        ("true", truth, (low, high), ~test, "True. Pale: pairs between folds, no test pairs."),
        ("predicted", predicted, (low, high), None, f"Predicted by {label(shown)}. Grey: not predicted."),
        ("predicted minus true", residual, (-most, most), None, "Residuals: predicted minus true."),
    ):
        figure = _matrix(values, groups, folds, ends, "residual" if values is residual else "connectivity", pale)
        seen = values[np.isfinite(values)]
        middle = f"median {text_of(float(np.median(seen)))}" if len(seen) else "none known"
        alt = f"Heat map of {len(order)} by {len(order)} regions, {name} connectivity: {middle}."
        blocks.append(Plot(figure, alt, caption))
    if regions.network is not None:
        networks, found = _networks(evaluation, shown, tested)
        if len(networks) > 1:
            alt = f"Pearson's r within networks: {listed({n: found[i, i] for i, n in enumerate(networks)})}."
            caption = (
                "Pearson's r of test pairs by the networks of both regions, within folds. Grey: fewer than "
                f"{FEWEST} pairs in every fold."
            )
            blocks.append(Plot(_heat(found, networks, networks, "Pearson's r", (-1.0, 1.0), "RdBu_r"), alt, caption))
    by = "network, then hemisphere" if regions.network is not None else "hemisphere"
    text = (
        f"Of the first seed. Regions are ordered by {by}, then fold; columns are in the order of rows. The stripes at "
        "the sides are the folds: pairs are predicted where both stripes have one colour. Colours end at the 1st and "
        "the 99th percentile."
    )
    return Section("Matrices", text, blocks)


def arranged(
    network: Sequence[str] | None, hemisphere: Sequence[str] | None, folds: Int[np.ndarray, " regions"]
) -> tuple[Int[np.ndarray, " regions"], list[tuple[str, int, int]]]:
    """Order by network, hemisphere and fold, else as they are; and the groups: name, first place and the one after."""
    number = len(folds)
    first = [""] * number if network is None else list(network)
    second = [""] * number if hemisphere is None else list(hemisphere)
    order = sorted(range(number), key=lambda i: (first[i], second[i], int(folds[i]), i))
    names = [f"{first[i]} {second[i]}".strip() for i in order]
    starts = [i for i in range(number) if i == 0 or names[i] != names[i - 1]]
    groups = [(names[a], a, b) for a, b in zip(starts, [*starts[1:], number], strict=True)]
    return np.array(order, dtype=np.int64), groups


def _networks(
    evaluation: Evaluation, shown: str, tested: Int[np.ndarray, "pairs 2"]
) -> tuple[list[str], Float[np.ndarray, "networks networks"]]:
    """Names, and r of the test pairs between each two."""
    of = np.array(evaluation.regions.network, dtype=np.str_)
    names = sorted({name for name in of.tolist() if name})
    found = np.full((len(names), len(names)), np.nan)
    truth, predicted = _values(evaluation, shown, tested)
    i, j = of[tested].T
    for a, one in enumerate(names):
        for b, other in enumerate(names[: a + 1]):
            here = ((i == one) & (j == other)) | ((i == other) & (j == one))
            r = within_folds(truth[here], predicted[here], evaluation.folds[tested[here, 0]])
            found[a, b] = found[b, a] = r
    return names, found


def _distances(
    evaluation: Evaluation,
    shown: str,
    tested: Int[np.ndarray, "pairs 2"],
    bins: list[dict[str, Any]],
    rows: list[dict[str, Any]],
) -> Section:
    truth, predicted = _values(evaluation, shown, tested)
    places = evaluation.regions.coordinates
    distance = None if places is None else pair_distance(places, tested)
    r = within_folds(truth, predicted, evaluation.folds[tested[:, 0]])
    said = f"{label(shown)}, {many(len(tested), 'test pair')}: Pearson's r within folds {text_of(r)}."
    blocks: list[Block] = [Plot(_scatter(truth, predicted, distance), f"Predicted against true. {said}", said)]
    if not rows:
        return Section("Distance", "Places are not known, so that r by distance is not either.", blocks)
    series = {
        label(method): figures.Series([row["mean"] for row in own], [row["pearson"] for row in own])
        for method in dict.fromkeys(row["method"] for row in rows)
        for own in [[row for row in rows if row["method"] == method]]
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
            *(_rounded(one.y[at]) for one in series.values()),
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


def _kept(evaluation: Evaluation) -> float | None:
    """Pearson's r of distances before and after a spin, mean over spins; None without spins."""
    regions, number = evaluation.regions, int(evaluation.null["spin"].nunique()) if len(evaluation.null) else 0
    if not number or regions.coordinates is None:
        return None
    seed = int(evaluation.null["seed"].iloc[0])
    turned = spins(regions.coordinates, regions.hemisphere, min(number, NULLS), seed, groups_of(regions))
    kept = distortion(regions.coordinates, regions.hemisphere, turned)
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if len(kept) else None


def _nulls(evaluation: Evaluation, kept: float | None) -> Section:
    null = evaluation.null
    if not len(null):
        return Section("Null model", "No null model was asked for: how much of r is owed to smoothness is not known.")
    first = evaluation.rows[evaluation.rows["seed"] == null["seed"].iloc[0]]
    blocks: list[Block] = []
    rows = []
    for method, own in null.groupby("method", sort=False):
        values = own.groupby("spin")["pearson"].mean().to_numpy(np.float64)
        seen = float(first[first["method"] == method]["pearson"].mean())
        above = int((values >= seen).sum())
        p = (1 + above) / (1 + len(values))
        said = (
            f"{label(method)}: r {text_of(seen)}; with spun expression {text_of(float(values.mean()))} on average, "
            f"as high in {above} of {many(len(values), 'spin')}."
        )
        drawn = _against_null(values, f"observed: {seen:.3f}", seen)
        blocks.append(Plot(drawn, f"Histogram. {said}", said))
        ends = f"{_rounded(values.min()).text} to {_rounded(values.max()).text}"
        rows.append([label(method), _rounded(seen), _rounded(values.mean()), ends, _rounded(seen - values.mean()), p])
    columns = ["method", "observed", "mean of spins", "lowest to highest", "gain", "p"]
    blocks.append(Table("Mean over the folds of the first seed. p: (1 + spins as high) / (1 + spins).", columns, rows))
    text = (
        "Each hemisphere is laid on a sphere and turned, cortex and subcortex each for themselves; every region takes "
        "the expression of that which came to lie on it, and the method is fitted anew. What it still reaches comes "
        "from places and from how smooth maps of the brain are, not from genes."
    )
    if kept is not None:
        text += (
            f" A spin does not keep all distances: Pearson's r of the distances within hemispheres before and after is "
            f"{text_of(kept)} on average (1: all kept), a share of {max(kept, 0.0) ** 2:.0%} of their variance. What "
            "is not kept makes the null easier to beat."
        )
    return Section("Null model", text, blocks)


def _weights(evaluation: Evaluation) -> Section:
    weights = evaluation.weights
    if not len(weights):
        return Section("Weights of the parts", "No method with weighed parts was run.")
    parts = [name for name in weights.columns if name not in ("seed", "fold", "method")]
    rows = [
        [row["seed"], row["fold"] + 1, label(row["method"]), *(_rounded(row[name]) for name in parts)]
        for row in weights.to_dict("records")
    ]
    means = {PARTS.get(name, name): float(weights[name].mean()) for name in parts}
    text = (
        "What ours weighs its parts with, by validation on regions that the part had not seen; 0: left out. Weights "
        f"that differ much between folds are uncertain. Means: {listed({k: round(v, 3) for k, v in means.items()})}."
    )
    columns = ["seed", "fold", "method", *(PARTS.get(name, name) for name in parts)]
    return Section("Weights of the parts", text, [Table("Weights in each fold.", columns, rows)])


def _brains(evaluation: Evaluation, shown: str) -> Section:
    regions = evaluation.regions
    if regions.coordinates is None:
        return Section("Glass brains", "Places are not known.")
    assert regions.connectivity is not None
    predicted = evaluation.predictions[shown]
    blocks: list[Block] = []
    try:
        for what, values in (
            ("strongest predicted edges", predicted),
            ("largest residuals, predicted minus true", predicted - regions.connectivity),
        ):
            if np.isfinite(strongest(values, SHARE)).any():
                caption = f"The {what}: {SHARE:.0%} of the test pairs."
                blocks.append(
                    Plot(_brain(values, regions.coordinates), f"Brain from three sides. {caption}", caption, half=False)
                )
    except ImportError:
        return Section("Glass brains", "", [Note("info", f"Not drawn: {NEEDS}.")])
    return Section("Glass brains", f"Of the first seed, {label(shown)}.", blocks)


def _regions(evaluation: Evaluation) -> Section:
    places, folds = evaluation.regions.coordinates, evaluation.folds
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
    pairs_table: pd.DataFrame,
    importance: pd.DataFrame,
    first: str,
    second: str,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
) -> tuple[Report, dict[str, Any]]:
    """The report on the genes behind a pair of regions.

    Args:
        pairs_table: What `ConnectivityPredictor.explain` gave: `gene_i`, `gene_j`, `weight`.
        importance: What `ConnectivityPredictor.importance` gave: `gene`, `importance`, `attention`.
        first, second: Names of the regions.
    """
    blocks: list[Block] = []
    if len(pairs_table):
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
        blocks.append(Plot(_heat(weights, rows, columns, "weight", ends, "viridis", numbers=False), alt, caption))
        names = [f"gene of {first}", f"gene of {second}", "weight"]
        blocks.append(Table("Pairs of genes, largest weight first.", names, strong, half=True))
    text = "Which genes of the first region attend to which of the second." if blocks else "No weights were found."
    sections = [
        Section("Summary", "", [Note("warning", CAVEAT), *_warnings(notes)]),
        Section("Pairs of genes", text, blocks),
        _importance(importance, "Importance of genes", ""),
    ]
    lead = f"Where the network looked for the connectivity of {first} and {second}, and what its predictions rest on."
    found = {
        "first": first,
        "second": second,
        "pairs": pairs_table.to_dict("records"),
        "importance": importance.to_dict("records"),
    }
    return _finish("explanation", Report(title, lead, sections, command, provenance), notes, found)


def top_genes(
    pairs_table: pd.DataFrame, most: int
) -> tuple[list[str], list[str], Float[np.ndarray, "genes_i genes_j"]]:
    """The genes of either side with the largest sums of weights; the weights between them, NaN: not in the table."""
    sides = [
        pairs_table.groupby(side, sort=False)["weight"].sum().sort_values(ascending=False, kind="stable").index[:most]
        for side in ("gene_i", "gene_j")
    ]
    weights = pairs_table.pivot_table(index="gene_i", columns="gene_j", values="weight", aggfunc="sum")
    found = weights.reindex(index=sides[0], columns=sides[1]).to_numpy(np.float64)
    return sides[0].tolist(), sides[1].tolist(), found


# ---------------------------------------------------------------------- glass brains


def glass_brain(
    matrix: Float[np.ndarray, "_ _"],
    coordinates: Float[np.ndarray, "regions 3"],
    path: str | Path,
    share: float = SHARE,
) -> None:
    """Draw the strongest edges, by size, between the places of their regions, to an image file.

    Regions without coordinates are left out, and NaN are no edges.

    Args:
        matrix: Connectivity, or residuals.
        coordinates: In mm, of MNI space.
        path: Ends with the format, such as .png or .svg.
        share: Of the known pairs.

    Raises:
        ValueError: A share that is not above 0 and at most 1, arrays that do not fit, or no edge.
        ImportError: nilearn is not installed.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    if matrix.shape != (len(coordinates),) * 2:
        raise ValueError(
            f"matrix must have a row and a column for each of the {len(coordinates)} coordinates, "
            f"got shape {matrix.shape}"
        )
    here = np.isfinite(coordinates).all(1)
    edges = strongest(matrix[np.ix_(here, here)], share)
    if not np.isfinite(edges).any():
        raise ValueError("matrix must have a known edge between regions with coordinates, got none")
    try:
        from nilearn import plotting
    except ImportError as error:
        raise ImportError(NEEDS) from error
    values = np.nan_to_num(edges)
    sizes = np.abs(edges[np.isfinite(edges)])
    most = float(sizes.max()) or 1.0
    least = max(float(1.5 * sizes.min() - 0.5 * sizes.max()), 0.0)  # the palest third can hardly be seen on white
    least = least if least < most else 0.0
    signed = bool((values < 0).any())
    plotting.plot_connectome(
        values,
        np.asarray(coordinates, dtype=np.float64)[here],
        node_color=figures.GREY,
        node_size=4,
        edge_cmap="RdBu_r" if signed else "viridis_r",
        edge_vmin=-most if signed else least,
        edge_vmax=most,
        edge_kwargs={"linewidth": float(np.clip(300 / len(sizes), 0.6, 1.6))},
        colorbar=True,
        output_file=str(path),
    )


def strongest(matrix: Float[np.ndarray, "regions regions"], share: float) -> Float[np.ndarray, "regions regions"]:
    """The entries of largest size off the diagonal, at least one, NaN elsewhere; equal sizes stay together."""
    found = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(found, np.nan)
    sizes = np.abs(found[np.isfinite(found)])
    if not len(sizes):
        return found
    bound = np.sort(sizes)[-max(math.ceil(share * len(sizes)), 1)]
    return np.where(np.abs(found) >= bound, found, np.nan)


@figures.styled
def _brain(matrix: Float[np.ndarray, "regions regions"], coordinates: Float[np.ndarray, "regions 3"]) -> Figure:
    """The glass brain as a figure of a page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "brain.png"
        glass_brain(matrix, coordinates, path)
        image = imread(path)
    height, width = image.shape[:2]
    figure, axes = _panel(7.2, 7.2 * height / width)
    figure.set_dpi(figures.DPI)
    axes.imshow(image)
    axes.set_axis_off()
    return figure


# ---------------------------------------------------------------------- figures


def _panel(width: float = 4.6, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


@figures.styled
def _matrix(
    values: Float[np.ndarray, "regions regions"],
    groups: list[tuple[str, int, int]],
    folds: Int[np.ndarray, " regions"],
    ends: tuple[float, float],
    name: str,
    pale: Bool[np.ndarray, "regions regions"] | None,
) -> Figure:
    """A matrix as an image, grey where it is NaN, with stripes of folds and the names of groups."""
    number = len(values)
    parts = np.unique(folds)
    figure, axes = _panel(4.6, 3.7 + 0.2 * -(-len(parts) // 4))
    figure.set_dpi(figures.DPI)
    cmap = _levels("RdBu_r" if ends[0] < 0 else "viridis")
    norm = Normalize(*ends)
    image = _coloured(values, norm, cmap)
    if pale is not None:
        image[pale] = np.round(PALE * 255 + (1 - PALE) * image[pale]).astype(np.uint8)
    # As it is, where every pair can be seen; an image of more pixels would only make the page large.
    how = "none" if number <= PIXELS else "antialiased"
    axes.imshow(image, extent=(0, number, number, 0), interpolation=how)
    wide, gap = 0.03 * number, 0.012 * number
    colours = {f: figures.MORE_COLOURS[at % len(figures.MORE_COLOURS)] for at, f in enumerate(parts)}
    runs = [i for i in range(number) if i == 0 or folds[i] != folds[i - 1]]
    stripes = []
    for a, b in zip(runs, [*runs[1:], number], strict=True):
        stripes += [Rectangle((-gap - wide, a), wide, b - a), Rectangle((a, -gap - wide), b - a, wide)]
    of = [colours[folds[a]] for a in runs for _ in range(2)]
    axes.add_collection(PatchCollection(stripes, facecolors=of, linewidths=0))
    cuts = [a for _, a, _ in groups[1:]]
    axes.hlines(cuts, 0, number, color=INK, linewidth=0.5)
    axes.vlines(cuts, 0, number, color=INK, linewidth=0.5)
    places: dict[float, str] = {}
    for text, a, b in sorted(groups, key=lambda group: group[1] - group[2]):
        middle = (a + b) / 2
        if text and all(abs(middle - other) >= 0.05 * number for other in places):  # a line of text is as high
            places[middle] = _cut(text, 14)
    axes.set_yticks(list(places), list(places.values()), fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-gap - wide, number), ylim=(number, -gap - wide), aspect="equal")
    _bar(figure, axes, norm, cmap, name)
    handles = [Patch(facecolor=colours[f], label=f"fold {f + 1}") for f in parts]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1.0, columnspacing=1.2)
    return figure


@figures.styled
def _heat(
    values: Float[np.ndarray, "rows columns"],
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    ends: tuple[float, float],
    colours: str,
    *,
    numbers: bool = True,
) -> Figure:
    """A few named rows and columns, with numbers in the cells where these have room; grey where it is NaN."""
    height, width = values.shape
    figure, axes = _panel(4.6, 1.9 + 0.21 * max(height, 4))
    cmap, norm = _levels(colours), Normalize(*ends)
    image = _coloured(values, norm, cmap)
    axes.pcolormesh(image, edgecolors="white", linewidth=0.8)
    if numbers and width <= 10:
        for (i, j), value in np.ndenumerate(values):
            if not math.isnan(value):
                dark = image[i, j].astype(np.int64).sum() < 330
                text = f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
                axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=7, color="white" if dark else INK)
    axes.set_xticks(np.arange(width) + 0.5, [_cut(c, 14) for c in columns], rotation=90, fontsize=8)
    axes.set_yticks(np.arange(height) + 0.5, [_cut(r, 14) for r in rows], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    _bar(figure, axes, norm, cmap, name)
    return figure


@figures.styled
def _scatter(
    truth: Float[np.ndarray, " pairs"],
    predicted: Float[np.ndarray, " pairs"],
    distance: Float[np.ndarray, " pairs"] | None,
) -> Figure:
    """Predicted against true, coloured by distance where it is known."""
    if distance is None:
        return figures.predicted_against_true(truth, predicted)
    figure, axes = _panel()
    figure.set_dpi(figures.DPI)
    both = np.concatenate([truth, predicted])
    span = [both.min(), both.max()] if len(both) else [0, 1]
    order = np.random.default_rng(0).permutation(len(truth))  # so that no distance lies above the others
    drawn = axes.scatter(
        truth[order],
        predicted[order],
        c=distance[order],
        s=float(np.clip(6000 / max(len(order), 1), 1.5, 12)),
        cmap="viridis",
        alpha=0.6,
        linewidths=0,
        rasterized=len(order) > figures.PIXELS,
        plotnonfinite=True,
    )
    axes.plot(span, span, color=figures.GREY, linestyle=":", linewidth=1, label="predicted = true")
    axes.set(xlabel="true connectivity", ylabel="predicted connectivity")
    axes.legend(loc="upper left")
    if drawn.norm.vmin is not None and np.isfinite(distance).any():
        _bar(figure, axes, drawn.norm, drawn.cmap, "distance, mm")
    return figure


@figures.styled
def _estimates(
    labels: Sequence[str],
    values: Float[np.ndarray, " methods"],
    low: Float[np.ndarray, " methods"],
    high: Float[np.ndarray, " methods"],
    ours: Sequence[bool],
) -> Figure:
    """A row each, the first on top: a dot with its interval."""
    figure, axes = _panel(height=0.9 + 0.27 * max(len(labels), 3))
    places = np.arange(len(labels))
    for place, own in zip(places, ours, strict=True):
        colour = figures.ORANGE if own else figures.BLUE
        if not math.isnan(low[place]):
            axes.hlines(place, low[place], high[place], color=colour, linewidth=2, alpha=0.55)
        face = colour if own else "white"
        axes.plot(values[place], place, "o", color=colour, markerfacecolor=face, markersize=5.5)
    axes.set_yticks(places, [_cut(text, 26) for text in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color="#e6e9ed", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="Pearson's r")
    return figure


@figures.styled
def _against_null(values: Float[np.ndarray, " spins"], name: str, observed: float) -> Figure:
    """A histogram of the spins, and what was observed without."""
    figure, axes = _panel(height=3.1)
    known = values[np.isfinite(values)]
    axes.hist(known, bins=min(max(round(math.sqrt(len(known)) * 1.5), 3), 30), color=figures.BLUE, edgecolor="white")
    if math.isfinite(observed):
        axes.axvline(observed, color=figures.ORANGE, linestyle="--", linewidth=1.5, label=name)
        figure.legend(loc="outside upper left")
    seen = [*known, observed] if math.isfinite(observed) else [*known]
    if seen:
        margin = 0.06 * (max(seen) - min(seen)) or 0.05
        axes.set_xlim(min(seen) - margin, max(seen) + margin)
    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set(xlabel="Pearson's r, mean over folds", ylabel="spins")
    return figure


def _coloured(
    values: Float[np.ndarray, "rows columns"], norm: Normalize, cmap: Colormap
) -> Shaped[np.ndarray, "rows columns 3"]:
    """RGB of 0 to 255; grey where a value is NaN."""
    cmap = cmap.with_extremes(bad=UNKNOWN)
    return np.asarray(cmap(np.ma.masked_invalid(norm(values)), bytes=True))[..., :3].copy()


def _bar(figure: Figure, axes: Axes, norm: Any, cmap: Colormap, name: str) -> None:
    bar = figure.colorbar(ScalarMappable(norm, cmap), ax=axes, label=name, shrink=0.8, aspect=28)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)


def _few_ticks(figure: Figure) -> None:
    """Numbers may be small, and as text as long as 0.00005."""
    axis = figure.axes[0].xaxis
    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}".replace("-", "\N{MINUS SIGN}")))


def _levels(name: str) -> Colormap:
    return colormaps[name].resampled(LEVELS)


def _limits(values: Float[np.ndarray, " values"]) -> tuple[float, float]:
    """Where colours end: from the 1st to the 99th percentile, alike on both sides of 0 where there are both."""
    if not len(values):
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, [0.01, 0.99]))
    if low < 0 < high:
        most = max(-low, high)
        return -most, most
    return (low, high) if high > low else (low, low + 1.0)


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


# ---------------------------------------------------------------------- parts


def _finish(kind: str, report: Report, notes: list[str], found: dict[str, Any]) -> tuple[Report, dict[str, Any]]:
    about = {"format": FORMAT, "version": VERSION, "kind": kind, "title": report.title}
    # What was decided in reading stays under its own name: these are the warnings of the run.
    decided = {"decided": found["notes"]} if "notes" in found else {}
    made = {**decided, "notes": notes, "command": report.command, "provenance": report.provenance}
    return report, about | found | made


def _warnings(texts: Iterable[str]) -> list[Block]:
    return [Note("warning", text) for text in texts]


def _rounded(value: float, digits: int = 3) -> Cell:
    """With so many decimals; a dash if it is NaN."""
    text = f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return Cell(text_of(None) if value != value else text, value)


def _signed(value: float) -> Cell:
    return Cell(text_of(None) if value != value else f"{value:+.3f}".replace("-", "\N{MINUS SIGN}"), value)


def _between(low: float, high: float, form: Callable[[float], Cell] = _rounded) -> str:
    return text_of(None) if low != low else f"{form(low).text} to {form(high).text}"
