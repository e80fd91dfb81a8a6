"""The reports of the genome system, lists of sections: on completed genomes, on a fitted model, on an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes import evaluate as measured
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.completion import COG, Cohort
from omniset.genomes.evaluate import CALIBRATED, CHANGES, LOSSY, Condition, Evaluation
from omniset.genomes.metadata import WHOLE
from omniset.genomes.modules import Modules
from omniset.genomes.noise import LOSSES
from omniset.genomes.thresholds import Level
from omniset.report import figures
from omniset.report.blocks import Block, Cell, Note, Plot, Report, Section, Table, between, listed, many, rounded
from omniset.report.figures import BLUE, ORANGE, Series
from omniset.report.frame import Run, compose, ends, learning, methods
from omniset.trials.comparison import OURS, Comparison

SHOWN = {"rows": 500, "genomes with intervals": 60, "often changed": 25, "map columns": 40}
PRECISION = 0.95  # for which the report on a fit shows thresholds
DIAGONAL = "On the diagonal probabilities are right; tenths of less than 20 pairs of genome and family are left out."
KEPT = "The weights kept are those of the marked epoch."
WORSE = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"
# Name, colour and sign of what becomes of a family.
STATES = [("absent", "#eceff2", ""), ("kept", "#b9c0c8", "")]
STATES += [("added", BLUE, "+"), ("removed", ORANGE, "\N{MINUS SIGN}")]
Made = tuple[Report, dict[str, Any]]

# ---------------------------------------------------------------------- completed genomes

MEANING: list[list[Any]] = [
    ["p", "Probability that the complete, clean genome has the family, given all that was observed and its quality."],
    ["expected", "Families that the complete genome should have: the sum of p. Of 100 validation genomes at least 95 "
     "had a true number in the interval."],
    ["added, removed", "Not observed, but called present: not recovered. Observed, but called absent: foreign."],
    ["unknown families", "Observed families that are not in the model's vocabulary, of which nothing is said."],
    ["novelty, far", "1 minus the Jaccard similarity to the nearest reference genome, corrected for what is missing "
     "and foreign; far: above that of 95 % of the validation genomes, whose clades the model had not seen."],
    ["beware", "Genes of real assemblies are missing together, with their contig. Probabilities come from genomes "
     "whose genes were removed independently: they may be too sure."],
]  # fmt: skip
# Columns of the summary that are shown, with their decimals.
GENOMES: dict[str, int | None] = {
    **{"genome": None, "completeness": 1, "contamination": 1, "observed": None, "expected": 0, "interval": None},
    **{"added": None, "removed": None, "novelty": 3, "far": None, "unknown_share": 3, "nearest_reference": None},
}


def of_completion(
    run: Run,
    cohort: Cohort,
    completer: GenomeCompleter,
    *,
    threshold: float,
    precision: float | None,
    modules: Modules | None = None,
) -> Made:
    """The report on completed genomes: sizes, changes by genome, category and family, novelty, warnings."""
    rows, families, number = cohort.summary, cohort.by_family, max(len(cohort.rows), 1)
    families["changes"] = families["added"] + families["removed"]
    changed, rule = families[families["changes"] > 0], f"where its probability p is at least {threshold:g}"
    if precision is not None:
        rule = f"as observed, but where at least {percent(precision)} of such changes were right on validation clades"
    totals = {name: int(rows[name].sum()) for name in ("observed", "added", "removed", "unknown_families", "far")}
    unknown = totals["unknown_families"] / max(totals["observed"] + totals["unknown_families"], 1)
    estimated = int((rows["quality"] == "estimated").sum())
    complete = rows["completeness"].dropna().median() if len(rows) else np.nan
    headline = [
        ("genomes", len(rows), f"{int((rows['warnings'] != '').sum()):,} with warnings"),
        ("median completeness", Cell(percent(complete / 100), complete), f"{estimated:,} estimated"),
        *((f"families {c}", totals[c], f"{totals[c] / number:.1f} per genome") for c in CHANGES),
        ("far from references", totals["far"], f"{percent(totals['far'] / number)} of the genomes"),
        ("unknown families", Cell(percent(unknown), unknown), "of those observed"),
    ]
    sections = [_genomes(rows), _changes(cohort, families)]
    sections += [] if modules is None else [_modules(modules)]
    numbers = {
        **{"threshold": threshold, "precision": precision, "genomes": len(rows), "totals": totals},
        "summary": rows.head(SHOWN["rows"]).to_dict("records"),
        "families": changed[["family", "observed", "expected", *CHANGES]].to_dict("records"),
        "categories": cohort.by_category.reset_index().to_dict("records"),
    }
    lead = f"{many(len(rows), 'genome')}, completed and cleaned with a vocabulary of {len(families):,} families."
    meaning = Table("What each number is.", ["number", "meaning"], MEANING)
    sections.append(Section("How to read the numbers", "", [meaning]))
    return compose(run, lead, sections, numbers, headline=headline, text=f"A family is called present {rule}.")


def _genomes(rows: pd.DataFrame) -> Section:
    if rows.empty:
        return Section("Genomes", "There was no genome.")
    alt = f"Expected against observed number of families of {many(len(rows), 'genome')}."
    if len(rows) > SHOWN["genomes with intervals"]:
        x, y = (rows[name].to_numpy(np.float64) for name in ("observed", "expected"))
        drawn = figures.scatter(x, y, "families observed", "families expected")
    else:
        ordered = rows.sort_values("expected", ascending=False, kind="stable")
        names, observed, *interval = (ordered[c].tolist() for c in ("genome", "observed", "expected", "low", "high"))
        expected = ("expected, with 95 % interval", *interval)
        drawn = figures.intervals(names, expected, ("observed", observed), "families")
    sizes = zip(rows["low"], rows["high"], strict=True)
    intervals: Any = [Cell(between(low, high, lambda value: rounded(value, 0)), low) for low, high in sizes]
    cut = f" The first {SHOWN['rows']} are shown; the summary file has all." if len(rows) > SHOWN["rows"] else ""
    caption = "Expected number of families of each complete genome, beside the observed."
    table = _frame(f"The genomes.{cut}", rows.assign(interval=intervals), GENOMES)
    blocks: list[Block] = [Plot(drawn, alt, caption), table]
    if len(warned := rows[rows["warnings"] != ""]):
        blocks.append(_frame("Genomes with warnings.", warned, dict.fromkeys(("genome", "warnings"))))
    return Section("Genomes", "How many families each complete genome should have, and what was changed.", blocks)


def _changes(cohort: Cohort, families: pd.DataFrame) -> Section:
    if not families["changes"].any():
        return Section("Changes", "No family was added to, or removed from, any genome.")
    blocks: list[Block] = []
    categories = cohort.by_category
    if len(categories):
        names = [f"{letter} {COG[letter]}" if letter in COG else letter for letter in categories.index]
        sides = [(change, categories[change].tolist()) for change in reversed(CHANGES)]
        drawn = figures.two_sided_bars(names, sides[0], sides[1], "changes, over all genomes")
        caption = "Changes by functional category. A family of several categories counts for each."
        blocks.append(
            Plot(drawn, f"{caption} Added: {listed(dict(zip(names, sides[1][1], strict=True)), 6)}.", caption)
        )
    texts = [name for name in ("category", "description") if (families[name] != "").any()]
    columns: dict[str, int | None] = {"family": None, "genomes": None, "% of genomes": 1} | dict.fromkeys(texts)
    for change in CHANGES:
        often = families[families[change] > 0].sort_values(change, ascending=False, kind="stable")
        often = often.head(SHOWN["often changed"])
        often["genomes"], often["% of genomes"] = often[change].astype(int), 100 * often[change] / len(cohort.rows)
        table = _frame(f"Families most often {change}.", often, columns)
        blocks.append(table if len(often) else Note("info", f"No family was {change}."))
    changes = families["changes"].to_numpy()
    most = [c for c in np.argsort(-changes, kind="stable")[: SHOWN["map columns"]] if changes[c] > 0]
    genomes = sorted(cohort.most_changed, key=lambda entry: -entry[1])
    states = np.stack([np.where(call, 2 - seen, 3 * seen)[most] for *_, seen, call in genomes])
    shown = families["family"].iloc[most].tolist()
    drawn = figures.state_map(states, [name for _, _, name, _, _ in genomes], shown, STATES, "family", "genome")
    caption = f"What became of the {len(most)} families most often changed, in {many(len(genomes), 'genome')}."
    cells = {name: int((states == i).sum()) for i, (name, _, _) in enumerate(STATES)}
    blocks.append(Plot(drawn, f"{caption} Cells: {listed(cells)}.", caption, half=len(most) <= 12))
    return Section("Changes", "Added: not observed, but probably there. Removed: observed, probably foreign.", blocks)


def _modules(modules: Modules) -> Section:
    """How many genomes have each module."""
    sums = [modules.sums[name] for name in ("observed", "called", "expected")]
    rows = [[m.name, m.title, len(m.steps), *(rounded(of[i], 1) for of in sums)] for i, m in enumerate(modules.modules)]
    columns = ["module", "name", "steps", "complete as observed", "complete as called", "expected"]
    table = Table("Genomes in which each module is complete.", columns, rows[: SHOWN["rows"]])
    text = "A module is complete where all of its steps are; families are independent, given what was observed."
    return Section("Modules", text, [table])


# ---------------------------------------------------------------------- a fitted model


def of_fit(run: Run, completer: GenomeCompleter) -> Made:
    """The report on a fitted model: data, what validation clades say, learning curves."""
    sizes, levels, seconds = completer.sizes_, completer.levels_, getattr(completer, "seconds_", None)
    worst, clades = max(levels, key=lambda level: level.ece), sizes["validation clades"]
    headline: list[tuple[str, Any, str]] = [
        ("genomes", sizes["genomes"], f"{sizes['validation']:,} kept back for validation"),
        ("clades", sizes["training clades"] + clades, f"{clades:,} kept back"),
        ("families", sizes["families"], "the vocabulary"),
        ("largest calibration error", worst.ece, f"at completeness / contamination {_name(worst)}"),
        *([] if seconds is None else [("seconds", rounded(seconds, 0), "of training")]),
    ]
    histories, kept = {name: history for name, history in completer.histories_.items() if history}, {}
    for name, history in histories.items():
        best = min(history, key=lambda row: row.get("val_loss", np.inf))
        kept[name] = int((history[-1] if completer.patience is None else best)["epoch"])
    told = [{c: level.threshold(c, PRECISION) for c in CHANGES} for level in levels]
    rows = []
    for level, of in zip(levels, told, strict=True):
        add, remove = of["added"], 1 - of["removed"]
        row = [Cell(_name(level), 1000 * level.completeness + level.contamination), level.ece]
        row.append("never" if add == 1 else Cell(f"p \N{GREATER-THAN OR EQUAL TO} {add:.4g}", add))
        row.append("never" if remove == 0 else Cell(f"p \N{LESS-THAN OR EQUAL TO} {remove:.4g}", remove))
        rows.append([*row, level.novelty, rounded(level.below, 2), rounded(level.above, 2)])
    columns = ["completeness / contamination", "calibration error", "add where", "remove where"]
    columns += ["far above a novelty of", "below", "above"]
    curves = {_name(x): x.bins for x in levels if x.contamination == 0 or x is levels[-1]}
    alt = f"Share present against mean probability; calibration error at most {worst.ece:.4f}."
    text = (
        f"Changes are made from the p on from which {percent(PRECISION)} of them are right, by the lower bound of 90 % "
        "over validation clades. A size is from expected - below s to expected + above s, s its deviation if families "
        "were independent."
    )
    table = Table("By level of noise.", columns, rows)
    blocks: list[Block] = [Plot(figures.calibration_curves(curves), alt, DIAGONAL), table]
    what = f"of rank {completer.clade}" if completer.with_taxonomy_ else "clusters of similar genomes"
    names = ("completeness", "contamination", "ece", "novelty", "below", "above", "bins")
    return compose(
        run,
        f"Which of {sizes['families']:,} families a genome has, learned from {many(sizes['training'], 'genome')}.",
        [Section("Thresholds and limits", text, blocks), learning(histories, kept_epochs=kept, text=KEPT)],
        {
            **{"sizes": sizes, "seconds": seconds, "histories": completer.histories_},
            "levels": [{n: getattr(x, n) for n in names} | of for x, of in zip(levels, told, strict=True)],
        },
        headline=headline,
        text=f"Thresholds, intervals and limits come from validation clades ({what}), which were not learned from, "
        "their genomes made incomplete and contaminated in known ways.",
        settings=completer.get_params(),
    )


# ---------------------------------------------------------------------- an evaluation

# Titles, kinds of conditions, scores in tables, the score that is drawn, and what is to be said of them.
PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str | None, str], ...] = (
    ("Missing and foreign families", ("known",), ("auprc_missing", "auprc_foreign"), "auprc_missing",
     "Average precision: are families that are there ranked first among what was not observed; and foreign ones among "
     "what was. It needs no threshold."),
    ("Families called present", ("known",), ("recall_missing", "f1", "worse"), "f1",
     "Families with p of at least 0.5 are called present. as-is calls what was observed: it does nothing."),
    ("Calibration", ("known", "whole"), ("ece_missing", "ece"), "ece_missing",
     f"Of families given 0.8, 80 % should be there. Asked for: below {CALIBRATED:g} among those not observed that have "
     f"at least 0.1. whole: of genomes that are at least {WHOLE:g} % complete themselves."),
    ("Other losses", LOSSES[1:], ("covered", "missing_error", "auprc_missing", "f1"), None,
     "Genes lost otherwise than each copy by itself: 20 at a time (runs), rare families more often (accessory), or "
     f"most of some islands. {measured.ACCESSORY} is ours, told that rare families are lost more often."),
    ("Quality estimated or unknown", ("estimated", "unknown"), ("f1", "auprc_missing", "ece"), None,
     "Methods are given a completeness and contamination that is wrong by up to 5 points, or none at all."),
    ("Independent noise", ("original",), ("f1",), None,
     "Each family is missed, and each other one added, independently: noise as the seed was first judged with."),
)  # fmt: skip


def of_evaluation(run: Run, evaluation: Evaluation) -> Made:
    """The report on an evaluation: verdict and gates first, then every method under every condition."""
    compared, columns = evaluation.comparison, ("auprc_missing", "recall_missing", "f1", "ece_missing", "worse")
    sections = [Section("Methods", "", [methods(compared, c, columns, label=_label) for c in evaluation.decisive])]
    sections.append(_precise(evaluation))
    for title, kinds, scores, drawn, text in PARTS:
        conditions = evaluation.of_kind(*kinds)
        conditions += [c for c in evaluation.of_kind("known") if c.level in LOSSY] if kinds == LOSSES[1:] else []
        blocks = [] if drawn is None else _lines(evaluation, drawn)
        blocks += [_table(compared, title, score, conditions) for score in scores if conditions]
        sections.append(Section(title, text if blocks else "Not measured.", blocks))
    names = [k for k in evaluation.splits.columns if k not in ("epochs", "provenance")]
    splits = [[str(row[k]) if k == "seed" else row[k] for k in names] for row in evaluation.splits.to_dict("records")]
    about = "Trained on the first part, chosen and calibrated on the second, tested once on the third: no clade in two."
    defined = Table("Scores.", ["score", "what it is"], [*map(list, measured.DEFINITIONS.items())])
    sections.append(Section("How it was tested", about, [Table("Splits.", names, splits), defined]))
    headline: list[tuple[str, Any, str]] = []
    for name in columns[:3]:
        value, best = compared.interval(name, "70/0", OURS).value, compared.best_baseline(name, "70/0")
        beside = "" if best is None else f"{best}: {rounded(compared.interval(name, '70/0', best).value).text}"
        headline.append((f"{compared.score(name).text} at 70/0", rounded(value), beside))
    lead = f"{many(len(compared.methods), 'method')} on {many(evaluation.rows['genome'].nunique(), 'genome')} of clades"
    return compose(
        run,
        f"{lead} that none of them has seen.",
        sections,
        evaluation.own_numbers(),
        headline=headline,
        text="Names such as 70/5 are completeness / contamination in percent.",
        comparison=compared,
    )


def _precise(evaluation: Evaluation) -> Section:
    compared, rows = evaluation.comparison, []
    for condition in (c.name for c in evaluation.of_kind("known", "whole", "estimated", "unknown")):
        row: list[Any] = [condition]
        number = evaluation.changes(condition)
        for change in CHANGES:
            interval = compared.interval(f"precision_{change}", condition, OURS)
            row += [rounded(interval.value), Cell(ends(interval), interval.low), rounded(number[change], 1)]
        rows.append([*row, rounded(compared.interval("recall_added", condition, OURS).value)])
    parts = ("{}: precision", "95 % interval, {}", "{} per genome")
    columns = ["condition", *(p.format(c) for c in CHANGES for p in parts), "share of the missing that was added"]
    low = evaluation.imprecise()
    blocks: list[Block] = [Note("warning", low)] if low else []
    blocks += [Table(f"Precision of changes by {_label(OURS)}.", columns, rows)] if rows else []
    text = f"Changes were asked to be right in {percent(evaluation.precision)} of the cases. What an incomplete genome "
    return Section("Precision of changes", f"{text}lacks counts as absent: whole ones tell more.", blocks)


def _table(compared: Comparison, title: str, score: str, conditions: Sequence[Condition]) -> Table:
    """Condition by method, with intervals; F1 that is less than of as-is is marked."""
    text, rows = compared.score(score).text, []
    for condition in (c.name for c in conditions):
        found = {m: compared.interval(score, condition, m) for m in compared.methods}
        least = round(found["as-is"].value, 3) if score == "f1" and "as-is" in found else -np.inf
        cells = [f"{rounded(i.value).text} ({ends(i)})" + WORSE * (round(i.value, 3) < least) for i in found.values()]
        rows.append([condition, *(Cell(c, i.value) for c, i in zip(cells, found.values(), strict=True))])
    marked = f" {WORSE} less than doing nothing (as-is)." if score == "f1" else ""
    caption = f"{title}: {text}, with 95 % intervals over clades.{marked}"
    return Table(caption, ["condition", *map(_label, compared.methods)], rows)


def _lines(evaluation: Evaluation, score: str) -> list[Block]:
    """By completeness without contamination, quality known; ours with its interval."""
    compared = evaluation.comparison
    levels = sorted((c for c in evaluation.of_kind("known") if c.level[1] == 0), key=lambda c: c.level[0])
    x, series, text = [c.level[0] for c in levels], {}, compared.score(score).text
    for method in compared.methods:
        found = [compared.interval(score, c.name, method) for c in levels]
        if np.isfinite([i.value for i in found]).any():
            band = ([i.low for i in found], [i.high for i in found]) if method == OURS else ()
            series[_label(method)] = Series(x, [i.value for i in found], *band)
    if not series:
        return []
    order = [_label(m) for m in compared.methods]
    figure = figures.lines(series, "completeness, %", text, order=order, reference=_label("as-is"))
    best = {name: max(one.y) for name, one in series.items()}
    return [Plot(figure, f"{text} by completeness; largest: {listed(best)}.", f"{text} by completeness, none foreign.")]


# ---------------------------------------------------------------------- parts


def percent(share: float) -> str:
    """With a decimal where there is one; a dash if it is NaN."""
    return "\N{EN DASH}" if share != share else f"{f'{100 * share:.1f}'.removesuffix('.0')} %"


def _label(method: str) -> str:
    return f"{method} (ours)" if method == OURS else method


def _name(level: Level) -> str:
    return f"{level.completeness:g}/{level.contamination:g}"


def _frame(caption: str, rows: pd.DataFrame, columns: Mapping[str, int | None]) -> Table:
    """The first rows of a frame; columns, with their decimals."""
    cells = [
        [row[name] if digits is None else rounded(row[name], digits) for name, digits in columns.items()]
        for row in rows.head(SHOWN["rows"]).to_dict("records")
    ]
    return Table(caption, [*columns], cells)
