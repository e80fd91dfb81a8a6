"""The reports of the genome system on completed genomes and on a fitted model.

Each composer returns the page and the plain numbers behind it. Every part of what is reported may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from omniset.genomes.calibration import Level, at_quality
from omniset.genomes.cohort import COG, Cohort
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.modules import Modules
from omniset.report import figures
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
from omniset.report.figures import BLUE, ORANGE
from omniset.report.frame import Run, compose, learning

SHOWN = {"rows": 500, "genomes with intervals": 60, "often changed": 25, "map columns": 40}
DIAGONAL = "On the diagonal probabilities are right; tenths of less than 20 pairs of genome and family are left out."
SUMS = ("observed", "called", "expected")  # of modules, in the order of the columns
PRECISION = 0.95  # for which the report on a fit shows thresholds


# ---------------------------------------------------------------------- completed genomes


def of_completion(
    run: Run,
    cohort: Cohort,
    completer: GenomeCompleter,
    *,
    threshold: float,
    precision: float | None,
    modules: Modules | None = None,
) -> tuple[Report, dict[str, Any]]:
    """The report on completed genomes: sizes, changes by genome, category and family, novelty, warnings."""
    rows, families = cohort.summary, cohort.by_family
    meaning: list[Block] = [Table("What each number is.", ["number", "meaning"], MEANING)]
    meaning += [Note("info", text) for text in CAVEATS]
    changed = families[families["added"] + families["removed"] > 0]
    numbers = {
        "threshold": threshold,
        "precision": precision,
        "genomes": len(rows),
        "totals": {name: int(rows[name].sum()) for name in ("observed", "added", "removed", "unknown_families", "far")},
        "summary": rows.head(SHOWN["rows"]).to_dict("records"),
        "families": changed[["family", "observed", "expected", "added", "removed"]].to_dict("records"),
        "categories": cohort.by_category.reset_index().to_dict("records"),
    }
    return compose(
        run,
        f"{many(len(rows), 'genome')}, completed and cleaned with a vocabulary of {len(families):,} families.",
        [
            _genomes(rows),
            _changes(cohort, families),
            _novelty(rows, completer.levels_),
            *([] if modules is None else [_modules(modules)]),
            Section("How to read the numbers", "", meaning),
        ],
        numbers,
        headline=_headline(rows),
        text=_rule(threshold, precision),
    )


MEANING: list[list[Any]] = [
    ["p", "Probability that the complete, clean genome has the family, given all that was observed and its quality."],
    ["observed", "Families of the model's vocabulary that were found in the genome."],
    ["expected", "Families that the complete genome should have: the sum of p. In at least 95 of 100 "
     "validation genomes the true number lay in the interval."],
    ["added", "Families that were not observed and are called present: probably there, but not recovered."],
    ["removed", "Families that were observed and are called absent: probably foreign, from another genome."],
    ["called", "Families called present: those observed, minus removed, plus added."],
    ["completeness, contamination", "In percent. Given by the user, or estimated from families that nearly all "
     "reference genomes have."],
    ["unknown families", "Observed families that are not in the model's vocabulary, as share of all observed ones. "
     "Nothing is said of them."],
    ["novelty", "1 minus the estimated share of families (Jaccard similarity) in common with the nearest reference "
     "genome, corrected for what is missing and foreign. 0: the same families as a reference; 1: none in common."],
    ["far", "Novelty is above that of 95 % of the validation genomes, whose clades the model had not seen, at the same "
     "quality: probabilities are less to be trusted."],
]  # fmt: skip
CAVEATS = [
    "In real assemblies genes are missing together, with the contig they lie on, and rare families more often than "
    "core ones. Intervals hold for these losses too; probabilities and thresholds come from genomes whose genes were "
    "removed independently of each other, so they may be too sure.",
    "References are the genomes that the model was trained on, and no others. A genome may be far from them and near "
    "to one that is public.",
]


def _rule(threshold: float, precision: float | None) -> str:
    if precision is None:
        return f"A family is called present where its probability p is at least {threshold:g}."
    return (
        f"A family is added or removed only where at least {percent(precision)} of such changes, at this completeness "
        "and contamination, were right on validation clades; all else stays as observed."
    )


def _headline(rows: pd.DataFrame) -> list[tuple[str, Any, str]]:
    n = max(len(rows), 1)
    all_families = max(int(rows["observed"].sum() + rows["unknown_families"].sum()), 1)
    unknown = rows["unknown_families"].sum() / all_families
    completeness = _median(rows["completeness"])
    estimated = int((rows["quality"] == "estimated").sum())
    return [
        ("genomes", len(rows), f"{int((rows['warnings'] != '').sum()):,} with warnings"),
        ("median completeness", Cell(percent(completeness / 100), completeness), f"{estimated:,} estimated"),
        ("families added", int(rows["added"].sum()), f"{rows['added'].sum() / n:.1f} per genome"),
        ("families removed", int(rows["removed"].sum()), f"{rows['removed'].sum() / n:.1f} per genome"),
        ("far from references", int(rows["far"].sum()), f"{percent(rows['far'].sum() / n)} of the genomes"),
        ("unknown families", Cell(percent(unknown), unknown), "of those observed"),
    ]


HEADERS = {  # of columns that are named otherwise
    "completeness": "completeness %",
    "contamination": "contamination %",
    "interval": "95 % interval",
    "unknown_share": "unknown families %",
    "nearest_reference": "nearest reference",
    "share": "% of genomes",
}


def _genomes(rows: pd.DataFrame) -> Section:
    if rows.empty:
        return Section("Genomes", "There was no genome.")
    ends = zip(rows["low"], rows["high"], strict=True)
    intervals: Any = [Cell(between(low, high, lambda value: rounded(value, 0)), low) for low, high in ends]
    shown = rows.assign(interval=intervals, unknown_share=100 * rows["unknown_share"])
    columns = ["genome", "completeness", "contamination", "observed", "expected", "interval", "added", "removed"]
    columns += ["novelty", "far", "called", "unknown_share", "nearest_reference", "quality", "method"]
    digits = {"completeness": 1, "contamination": 1, "expected": 0, "novelty": 3, "unknown_share": 1}
    blocks: list[Block] = [_sizes(rows), _table(f"The genomes.{_cut(len(rows))}", shown, columns, digits)]
    warned = rows[rows["warnings"] != ""]
    if len(warned):
        blocks.append(_table(f"Genomes with warnings.{_cut(len(warned))}", warned, ["genome", "warnings"]))
    text = "How many families each complete genome should have, and what was changed to get there."
    return Section("Genomes", text, blocks)


def _median(values: pd.Series) -> float:
    """NaN without a warning where nothing is known."""
    known = values.dropna()
    return float(known.median()) if len(known) else np.nan


def _sizes(rows: pd.DataFrame) -> Plot:
    quartiles = {name: _median(rows[name]) for name in ("observed", "expected")}
    alt = f"Expected against observed number of families of {many(len(rows), 'genome')}. Medians: {listed(quartiles)}."
    if len(rows) > SHOWN["genomes with intervals"]:
        x, y = rows["observed"].to_numpy(np.float64), rows["expected"].to_numpy(np.float64)
        caption = "Expected size against observed. Above the line: families are missing; below: some are foreign."
        return Plot(figures.scatter(x, y, "families observed", "families expected"), alt, caption)
    ordered = rows.sort_values("expected", ascending=False, kind="stable")
    names, observed, *interval = (ordered[c].tolist() for c in ("genome", "observed", "expected", "low", "high"))
    expected = ("expected, with 95 % interval", *interval)
    figure = figures.intervals(names, expected, ("observed", observed), "families")
    return Plot(figure, alt, "Expected number of families of each complete genome, beside the number observed.")


def _changes(cohort: Cohort, families: pd.DataFrame) -> Section:
    if not (families["added"] + families["removed"]).any():
        return Section("Changes", "No family was added to, or removed from, any genome.")
    blocks = _by_category(cohort.by_category)
    extra = [name for name in ("category", "description") if (families[name] != "").any()]
    for change in ("added", "removed"):
        often = families.sort_values(change, ascending=False, kind="stable").head(SHOWN["often changed"])
        often = often[often[change] > 0]
        often = often.assign(genomes=often[change].astype(int), share=100 * often[change] / len(cohort.rows))
        columns, half = ["family", "genomes", "share", *extra], "description" not in extra
        table = _table(f"Families most often {change}.", often, columns, {"share": 1}, half=half)
        blocks.append(table if len(often) else Note("info", f"No family was {change}."))
    blocks += _map(cohort, families)
    text = "Added: not observed, but probably there. Removed: observed, but probably foreign."
    return Section("Changes", text, blocks)


def _by_category(categories: pd.DataFrame) -> list[Block]:
    if categories.empty:
        text = "Functional categories of the families are not known: the table the model was trained on has none."
        return [Note("info", text)]
    categories = categories.assign(changes=categories["added"] + categories["removed"])
    categories = categories.sort_values("changes", ascending=False, kind="stable").head(len(COG))
    names = [f"{letter} {COG[letter]}" if letter in COG else letter for letter in categories.index]
    sides = [(name, categories[name].tolist()) for name in ("removed", "added")]
    figure = figures.two_sided_bars(names, sides[0], sides[1], "changes, over all genomes")
    alt = f"Bars of changes by category. {listed(dict(zip(names, categories['changes'].tolist(), strict=True)), 6)}."
    columns = ["category", "families", "observed", "expected", "added", "removed"]
    whole = categories.astype({name: int for name in columns if name not in ("category", "expected")})
    caption = "Functional categories, summed over all genomes. A family of several categories counts for each."
    return [
        Plot(figure, alt, "Changes by functional category. A family of several categories counts for each."),
        _table(caption, whole.assign(category=names), columns, {"expected": 0}),
    ]


# Name, colour and sign of what becomes of a family.
STATES = [("absent", "#eceff2", ""), ("kept", "#b9c0c8", "")]
STATES += [("added", BLUE, "+"), ("removed", ORANGE, "\N{MINUS SIGN}")]


def _map(cohort: Cohort, families: pd.DataFrame) -> list[Block]:
    changes = (families["added"] + families["removed"]).to_numpy()
    columns = np.argsort(-changes, kind="stable")[: SHOWN["map columns"]]
    columns = columns[changes[columns] > 0]
    genomes = sorted(cohort.most_changed, key=lambda entry: -entry[1])
    states = np.stack([states_of(observed[columns], call[columns]) for *_, observed, call in genomes])
    names = [name for _, _, name, _, _ in genomes]
    figure = figures.state_map(states, names, families["family"].iloc[columns].tolist(), STATES, "family", "genome")
    which = "all genomes" if len(genomes) == len(cohort.rows) else f"the {len(genomes)} genomes that changed most"
    caption = f"What became of the families most often changed, {len(columns)} of them, in {which}."
    cells = {name: int((states == i).sum()) for i, (name, _, _) in enumerate(STATES)}
    return [Plot(figure, f"{caption} Cells: {listed(cells)}.", caption, half=len(columns) <= 12)]


def states_of(
    observed: Bool[np.ndarray, " families"], called: Bool[np.ndarray, " families"]
) -> Int[np.ndarray, " families"]:
    """Positions in STATES."""
    return np.where(called, np.where(observed, 1, 2), np.where(observed, 3, 0))


def _modules(modules: Modules) -> Section:
    """How many genomes have each module, and a picture of those in doubt."""
    rows = [
        [module.name, module.title, len(module.steps), *(rounded(modules.sums[name][i], 1) for name in SUMS)]
        for i, module in enumerate(modules.modules)
    ]
    columns = ["module", "name", "steps", "complete as observed", "complete as called", "expected"]
    caption = "Genomes in which each module is complete; expected: the sum of the probabilities that it is."
    blocks: list[Block] = [Table(caption, columns, rows[: SHOWN["rows"]])]
    if modules.probabilities:
        values = np.stack(modules.probabilities)[: SHOWN["genomes with intervals"]]
        doubt = (values * (1 - values)).sum(0)
        shown = np.sort(np.argsort(-doubt, kind="stable")[: SHOWN["map columns"]])
        names = [modules.modules[i].name for i in shown]
        figure = figures.heat_map(values[:, shown], modules.genomes[: len(values)], names, "probability")
        means = listed(dict(zip(names, values[:, shown].mean(0).tolist(), strict=True)), 6)
        these = f"{many(len(names), 'module')} that are least certain, in {many(len(values), 'genome')}"
        caption = f"Probability that a module is complete: {these}."
        blocks.insert(0, Plot(figure, f"{caption} Means: {means}.", caption))
    text = (
        "A module is complete where all of its steps are. Families are taken as independent, given what was observed. "
        "The table of modules names, for each genome, the step that is least probable."
    )
    return Section("Modules", text, blocks)


def _novelty(rows: pd.DataFrame, levels: list[Level]) -> Section:
    values = rows["novelty"].to_numpy(np.float64)
    if not np.isfinite(values).any():
        return Section("Novelty", "Of no genome is known how far it is from the reference genomes.")
    limits = [at_quality(levels, r["completeness"], r["contamination"]).novelty for r in rows.to_dict("records")]
    far = int(rows["far"].sum())
    text = (
        f"How far genomes are from the nearest reference genome. {many(far, 'genome')} of {len(rows):,} "
        f"{'is' if far == 1 else 'are'} farther than 95 % of the validation genomes."
    )
    figure = figures.limited_histogram(
        values, "novelty", "genomes", "limit from validation clades", min(limits), max(limits)
    )
    caption = "Novelty. The limit depends on completeness and contamination: the band holds those of these genomes."
    alt = f"Histogram of novelty; median {text_of(float(np.nanmedian(values)))}, limits from {text_of(min(limits))} to "
    return Section("Novelty", text, [Plot(figure, f"{alt}{text_of(max(limits))}.", caption)])


# ---------------------------------------------------------------------- a fitted model


def of_fit(run: Run, completer: GenomeCompleter) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model: data, learning curves, and what validation clades say."""
    sizes, levels = completer.sizes_, completer.levels_
    worst = max(levels, key=lambda level: level.ece)
    seconds = getattr(completer, "seconds_", None)
    headline: list[tuple[str, Any, str]] = [
        ("genomes", sizes["genomes"], f"{sizes['validation']:,} kept back for validation"),
        ("clades", sizes["training clades"] + sizes["validation clades"], f"{sizes['validation clades']:,} kept back"),
        ("families", sizes["families"], "the vocabulary"),
        ("largest calibration error", worst.ece, f"at completeness / contamination {_level(worst)}"),
        *([] if seconds is None else [("seconds", rounded(seconds, 0), "of training")]),
    ]
    chosen = [min(level.loss, key=level.loss.__getitem__) for level in levels]
    return compose(
        run,
        f"Which of {sizes['families']:,} families a genome has, learned from {many(sizes['training'], 'genome')}.",
        [_learning(completer), _calibration(levels), _thresholds(levels), _choice(levels, chosen)],
        {
            "sizes": sizes,
            "seconds": seconds,
            "histories": completer.histories_,
            "levels": [_numbers(level, name) for level, name in zip(levels, chosen, strict=True)],
        },
        headline=headline,
        text=_about_clades(completer),
        settings=completer.get_params(),
    )


def _numbers(level: Level, chosen: str) -> dict[str, Any]:
    names = ("completeness", "contamination", "ece", "novelty", "below", "above", "loss", "bins")
    thresholds = {change: level.threshold(change, PRECISION) for change in ("added", "removed")}
    return {name: getattr(level, name) for name in names} | thresholds | {"auto": chosen}


def _about_clades(completer: GenomeCompleter) -> str:
    taxonomy = completer.with_taxonomy_
    what = f"of rank {completer.clade}" if taxonomy else "clusters of similar genomes, without a taxonomy"
    return (
        f"Clades ({what}) were split into training and validation clades. No genome of a validation clade was "
        "learned from, so results on them tell what to expect of genomes that are new to the model. Thresholds, "
        "intervals, limits of novelty and calibration below all come from validation clades, their genomes made "
        "incomplete and contaminated in known ways."
    )


def _learning(completer: GenomeCompleter) -> Section:
    histories = {name: history for name, history in completer.histories_.items() if history}
    marked = {}
    for name, history in histories.items():
        best = min(history, key=lambda row: row.get("val_loss", np.inf))
        marked[name] = int((history[-1] if completer.patience is None else best)["epoch"])
    text = (
        "The loss, binary cross-entropy as a mean over families and genomes, on training and on validation clades. The "
        "weights kept are those of the marked epoch."
    )
    return learning(histories, kept_epochs=marked, text=text)


def _calibration(levels: list[Level]) -> Section:
    errors = {(level.completeness, level.contamination): level.ece for level in levels}
    across = sorted({q for _, q in errors})
    rows = [
        [Cell(f"{c:g} %", c), *(errors.get((c, q)) for q in across)]
        for c in sorted({c for c, _ in errors}, reverse=True)
    ]
    columns = ["completeness", *(f"{q:g} %" for q in across)]
    wanted = [(100, 0), (90, 0), (70, 0), (50, 0), (50, 10)]
    figure = figures.calibration_curves(
        {_level(x): x.bins for x in levels if (x.completeness, x.contamination) in wanted}
    )
    by_level = ", ".join(f"{_level(level)}: {text_of(level.ece)}" for level in levels)
    alt = f"Share present against mean probability. Expected calibration errors: {by_level}."
    caption = "Expected calibration error on validation clades, by completeness and, across, contamination."
    text = (
        "Of all families given a probability of 0.8, 80 % should be there. The expected calibration error is the mean "
        "distance between probability and share present."
    )
    plot = Plot(figure, alt, f"Completeness / contamination in percent. {DIAGONAL}")
    return Section("Calibration", text, [plot, Table(caption, columns, rows, half=True)])


def _thresholds(levels: list[Level]) -> Section:
    rows = []
    for level in levels:
        add, remove = (level.threshold(change, PRECISION) for change in ("added", "removed"))
        least = "never" if add == 1 else Cell(f"p \N{GREATER-THAN OR EQUAL TO} {add:.4g}", add)
        most = "never" if remove == 1 else Cell(f"p \N{LESS-THAN OR EQUAL TO} {1 - remove:.4g}", 1 - remove)
        rows.append(
            [_in_order(level), least, most, rounded(level.novelty), rounded(level.below, 2), rounded(level.above, 2)]
        )
    columns = ["completeness / contamination", "add where", "remove where", "far above a novelty of", "below", "above"]
    text = (
        f"From which probability on {percent(PRECISION)} of additions, and of removals, are right, by the lower "
        "bound of 90 % confidence over validation clades; "
        "\N{LEFT DOUBLE QUOTATION MARK}never\N{RIGHT DOUBLE QUOTATION MARK}: no probability is sure enough. "
        "95 % of the validation genomes have a novelty up to its limit. The interval of "
        "a genome's size is from the expected number - below \N{MULTIPLICATION SIGN} s to it + above "
        "\N{MULTIPLICATION SIGN} s, s the standard deviation it would have if families were independent; it holds too "
        "where genes are lost with their contig, or rare families more often than core ones."
    )
    return Section("Thresholds and limits", text, [Table("By level of noise.", columns, rows)])


def _choice(levels: list[Level], chosen: list[str]) -> Section:
    methods = list(dict.fromkeys(name for level in levels for name in level.loss))
    rows = [
        [_in_order(level), name, *(level.loss.get(method) for method in methods)]
        for level, name in zip(levels, chosen, strict=True)
    ]
    text = (
        "Mean binary cross-entropy on validation clades; lower is better. With method=auto, each genome is completed "
        "by the method that lost least at its level."
    )
    columns = ["completeness / contamination", "auto takes", *methods]
    return Section("Which method", text, [Table("Loss by method.", columns, rows)])


# ---------------------------------------------------------------------- parts


def percent(share: float) -> str:
    """With a decimal where there is one; a dash if it is NaN."""
    return text_of(None) if share != share else f"{f'{100 * share:.1f}'.removesuffix('.0')} %"


def _level(level: Level) -> str:
    return f"{level.completeness:g}/{level.contamination:g}"


def _in_order(level: Level) -> Cell:
    return Cell(_level(level), 1000 * level.completeness + level.contamination)


def _table(
    caption: str, rows: pd.DataFrame, columns: list[str], digits: Mapping[str, int] | None = None, *, half: bool = False
) -> Table:
    """Some columns of the first rows, some of them with so many decimals."""
    digits = digits or {}
    cells = [
        [rounded(row[name], digits[name]) if name in digits else row[name] for name in columns]
        for row in rows.head(SHOWN["rows"]).to_dict("records")
    ]
    return Table(caption, [HEADERS.get(name, name) for name in columns], cells, half=half)


def _cut(number: int) -> str:
    shown = SHOWN["rows"]
    return f" The first {shown} of {number:,} are shown; the summary file has all." if number > shown else ""
