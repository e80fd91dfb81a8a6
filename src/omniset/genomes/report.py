"""The reports of the genome system: on a fitted model, on completed genomes, on an evaluation.

Each composer returns the page and the plain numbers behind it. Every part of what is reported may be missing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from omniset.genomes.calibration import Level, nearest_level
from omniset.genomes.completer import Completion, GenomeCompleter
from omniset.genomes.evaluate import CONDITIONS, METRICS, MINE, Condition, Evaluation
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
    value_of,
)
from omniset.report.figures import BLUE, ORANGE, Series

FORMAT, VERSION = "omniset report of genomes", 1
SHOWN = {"rows": 500, "genomes with intervals": 60, "often changed": 25, "map rows": 60, "map columns": 40}
DIAGONAL = "On the diagonal probabilities are right; tenths of less than 20 pairs of genome and family are left out."
MINUS = "\N{MINUS SIGN}"
PRECISION = 0.95  # for which the report on a fit shows thresholds

# Galperin et al., "COG database update: focus on microbial diversity, model organisms, and widespread pathogens", 2021.
COG = {
    "J": "Translation, ribosomal structure and biogenesis",
    "A": "RNA processing and modification",
    "K": "Transcription",
    "L": "Replication, recombination and repair",
    "B": "Chromatin structure and dynamics",
    "D": "Cell cycle control, cell division, chromosome partitioning",
    "Y": "Nuclear structure",
    "V": "Defense mechanisms",
    "T": "Signal transduction mechanisms",
    "M": "Cell wall/membrane/envelope biogenesis",
    "N": "Cell motility",
    "Z": "Cytoskeleton",
    "W": "Extracellular structures",
    "U": "Intracellular trafficking, secretion, and vesicular transport",
    "O": "Posttranslational modification, protein turnover, chaperones",
    "X": "Mobilome: prophages, transposons",
    "C": "Energy production and conversion",
    "G": "Carbohydrate transport and metabolism",
    "E": "Amino acid transport and metabolism",
    "F": "Nucleotide transport and metabolism",
    "H": "Coenzyme transport and metabolism",
    "I": "Lipid transport and metabolism",
    "P": "Inorganic ion transport and metabolism",
    "Q": "Secondary metabolites biosynthesis, transport and catabolism",
    "R": "General function prediction only",
    "S": "Function unknown",
}


# ---------------------------------------------------------------------- completed genomes


def summary_row(one: Completion) -> dict[str, Any]:
    """A genome in a line."""
    observed, unknown = int(one.observed.sum()), len(one.unknown)
    return {
        "genome": one.name,
        "completeness": round(one.completeness, 2),
        "contamination": round(one.contamination, 2),
        "quality": "given" if one.given else "estimated",
        "observed": observed,
        "expected": round(one.expected, 2),
        "low": round(one.low, 2),
        "high": round(one.high, 2),
        "called": int(one.call.sum()),
        "kept": int((one.call & one.observed).sum()),
        "added": int(one.added.sum()),
        "removed": int(one.removed.sum()),
        "unknown_families": unknown,
        "unknown_share": round(unknown / max(observed + unknown, 1), 4),
        "novelty": round(one.novelty, 4),
        "nearest_reference": one.nearest,
        "far": one.far,
        "method": one.method,
        "warnings": "; ".join(one.warnings),
    }


@dataclass
class Cohort:
    """What is kept of completed genomes to report on: a line each, sums over them by family, and all calls of the few
    that changed most.
    """

    families: list[str]
    vocabulary: pd.DataFrame
    rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    most_changed: list[tuple[int, int, str, np.ndarray, np.ndarray]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.sums = {name: np.zeros(len(self.families)) for name in ("observed", "expected", "added", "removed")}

    def add(self, one: Completion) -> None:
        added, removed, observed = one.added, one.removed, one.observed
        for name, values in zip(self.sums, (observed, one.probability, added, removed), strict=True):
            self.sums[name] += values
        # A heap: the genome that changed least, of those the latest, is on top.
        entry = (int(added.sum() + removed.sum()), -len(self.rows), one.name, observed, one.call)
        push = heapq.heappush if len(self.most_changed) < SHOWN["map rows"] else heapq.heappushpop
        push(self.most_changed, entry)
        self.rows.append(summary_row(one))

    @property
    def summary(self) -> pd.DataFrame:
        """A row per genome, as `summary_row` has it."""
        return pd.DataFrame(self.rows, columns=SUMMARY)

    @property
    def by_family(self) -> pd.DataFrame:
        """The vocabulary with sums over the genomes: observed, expected, added, removed."""
        return self.vocabulary.reset_index(drop=True).assign(**self.sums)

    @property
    def by_category(self) -> pd.DataFrame:
        """Index category; `families` and the sums of `by_family`. A family of several categories counts for each."""
        found = self.by_family.assign(families=1)
        found["category"] = found["category"].map(categories_of)
        found = found.explode("category").dropna(subset="category")
        return found.groupby("category")[["families", *self.sums]].sum()


def categories_of(text: str) -> list[str]:
    """Letters of COG count each; any other text is one category.

    >>> categories_of("CE"), categories_of("transport"), categories_of("")
    (['C', 'E'], ['transport'], [])
    """
    if text in ("", "-"):
        return []
    return list(dict.fromkeys(text)) if set(text) <= COG.keys() else [text]


def of_completion(
    cohort: Cohort,
    completer: GenomeCompleter,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
    threshold: float,
    precision: float | None,
) -> tuple[Report, dict[str, Any]]:
    """The report on completed genomes: sizes, changes by genome, category and family, novelty, warnings."""
    rows, families = cohort.summary, cohort.by_family
    sections = [
        Section("Summary", _rule(threshold, precision), [_cohort_headline(rows), *_warnings(notes)]),
        _genomes(rows, completer.levels_),
        _changes(cohort, families),
        _novelty(rows, completer.levels_),
        Section("How to read the numbers", "", [Table("What each number is.", ["number", "meaning"], MEANING)]),
    ]
    sections[-1].blocks += [Note("info", text) for text in CAVEATS]
    lead = f"{many(len(rows), 'genome')}, completed and cleaned with a vocabulary of {len(families):,} families."
    changed = families[families["added"] + families["removed"] > 0]
    found = {
        "threshold": threshold,
        "precision": precision,
        "genomes": len(rows),
        "totals": {name: int(rows[name].sum()) for name in ("observed", "added", "removed", "unknown_families", "far")},
        "summary": rows.head(SHOWN["rows"]).to_dict("records"),
        "families": changed[["family", "observed", "expected", "added", "removed"]].to_dict("records"),
        "categories": cohort.by_category.reset_index().to_dict("records"),
    }
    return _finish("completion", Report(title, lead, sections, command, provenance), notes, found)


SUMMARY = [
    "genome",
    "completeness",
    "contamination",
    "quality",
    "observed",
    "expected",
    "low",
    "high",
    "called",
    "kept",
    "added",
    "removed",
    "unknown_families",
    "unknown_share",
    "novelty",
    "nearest_reference",
    "far",
    "method",
    "warnings",
]
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
    "In real assemblies genes are missing together, with the contig they lie on. Probabilities, intervals and "
    "thresholds come from genomes whose genes were removed independently of each other, so they may be too sure.",
    "References are the genomes that the model was trained on, and no others. A genome may be far from them and near "
    "to one that is public.",
]


def _rule(threshold: float, precision: float | None) -> str:
    if precision is None:
        return f"A family is called present where its probability p is at least {threshold:g}."
    return (
        f"A family is added or removed only where at least {_percent(precision)} of such changes, at this completeness "
        "and contamination, were right on validation clades; all else stays as observed."
    )


def _cohort_headline(rows: pd.DataFrame) -> Headline:
    n = max(len(rows), 1)
    all_families = max(int(rows["observed"].sum() + rows["unknown_families"].sum()), 1)
    unknown = rows["unknown_families"].sum() / all_families
    completeness = _median(rows["completeness"])
    estimated = int((rows["quality"] == "estimated").sum())
    return Headline(
        [
            ("genomes", len(rows), f"{int((rows['warnings'] != '').sum()):,} with warnings"),
            ("median completeness", Cell(_percent(completeness / 100), completeness), f"{estimated:,} estimated"),
            ("families added", int(rows["added"].sum()), f"{rows['added'].sum() / n:.1f} per genome"),
            ("families removed", int(rows["removed"].sum()), f"{rows['removed'].sum() / n:.1f} per genome"),
            ("far from references", int(rows["far"].sum()), f"{_percent(rows['far'].sum() / n)} of the genomes"),
            ("unknown families", Cell(_percent(unknown), unknown), "of those observed"),
        ]
    )


def _genomes(rows: pd.DataFrame, levels: list[Level]) -> Section:
    if rows.empty:
        return Section("Genomes", "There was no genome.")
    blocks: list[Block] = [_sizes(rows)]
    columns = ["genome", "completeness %", "contamination %", "observed", "expected", "95 % interval", "added"]
    columns += ["removed", "novelty", "far", "called", "unknown families %", "nearest reference", "quality", "method"]
    cells = [
        [
            row["genome"],
            _rounded(row["completeness"], 1),
            _rounded(row["contamination"], 1),
            row["observed"],
            _rounded(row["expected"], 0),
            Cell(f"{row['low']:,.0f} to {row['high']:,.0f}", row["low"]),
            row["added"],
            row["removed"],
            _rounded(row["novelty"], 3),
            bool(row["far"]),
            row["called"],
            _rounded(100 * row["unknown_share"], 1),
            row["nearest_reference"],
            row["quality"],
            row["method"],
        ]
        for row in rows.head(SHOWN["rows"]).to_dict("records")
    ]
    blocks.append(Table(f"The genomes.{_cut(len(rows))}", columns, cells))
    warned = rows[rows["warnings"] != ""]
    if len(warned):
        cells = [[row["genome"], row["warnings"]] for row in warned.head(SHOWN["rows"]).to_dict("records")]
        blocks.append(Table(f"Genomes with warnings.{_cut(len(warned))}", ["genome", "warnings"], cells))
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
    found = rows.sort_values("expected", ascending=False, kind="stable")
    figure = figures.intervals(
        found["genome"].tolist(),
        ("expected, with 95 % interval", found["expected"].tolist(), found["low"].tolist(), found["high"].tolist()),
        ("observed", found["observed"].tolist()),
        "families",
    )
    return Plot(figure, alt, "Expected number of families of each complete genome, beside the number observed.")


def _changes(cohort: Cohort, families: pd.DataFrame) -> Section:
    if not (families["added"] + families["removed"]).any():
        return Section("Changes", "No family was added to, or removed from, any genome.")
    blocks = [*_by_category(cohort.by_category)]
    described = bool((families["description"] != "").any())
    for change in ("added", "removed"):
        order = families.sort_values(change, ascending=False, kind="stable").head(SHOWN["often changed"])
        order = order[order[change] > 0]
        extra = [name for name in ("category", "description") if (families[name] != "").any()]
        cells = [
            [
                row["family"],
                int(row[change]),
                _rounded(100 * row[change] / len(cohort.rows), 1),
                *(row[name] for name in extra),
            ]
            for row in order.to_dict("records")
        ]
        columns = ["family", "genomes", "% of genomes", *extra]
        table = Table(f"Families most often {change}.", columns, cells, half=not described)
        blocks.append(table if cells else Note("info", f"No family was {change}."))
    blocks += _map(cohort, families)
    text = "Added: not observed, but probably there. Removed: observed, but probably foreign."
    return Section("Changes", text, blocks)


def _by_category(found: pd.DataFrame) -> list[Block]:
    if found.empty:
        text = "Functional categories of the families are not known: the table the model was trained on has none."
        return [Note("info", text)]
    found = found.assign(changes=found["added"] + found["removed"])
    found = found.sort_values("changes", ascending=False, kind="stable").head(len(COG))
    names = [f"{letter} {COG[letter]}" if letter in COG else letter for letter in found.index]
    sides = [(name, found[name].tolist()) for name in ("removed", "added")]
    figure = figures.two_sided_bars(names, sides[0], sides[1], "changes, over all genomes")
    alt = f"Bars of changes by category. {listed(dict(zip(names, found['changes'].tolist(), strict=True)), 6)}."
    cells = [
        [
            name,
            int(row["families"]),
            int(row["observed"]),
            _rounded(row["expected"], 0),
            int(row["added"]),
            int(row["removed"]),
        ]
        for name, row in zip(names, found.to_dict("records"), strict=True)
    ]
    columns = ["category", "families", "observed", "expected", "added", "removed"]
    caption = "Functional categories, summed over all genomes. A family of several categories counts for each."
    return [
        Plot(figure, alt, "Changes by functional category. A family of several categories counts for each."),
        Table(caption, columns, cells),
    ]


STATES = [("absent", "#eceff2", ""), ("kept", "#b9c0c8", ""), ("added", BLUE, "+"), ("removed", ORANGE, MINUS)]


def _map(cohort: Cohort, families: pd.DataFrame) -> list[Block]:
    changes = (families["added"] + families["removed"]).to_numpy()
    columns = np.argsort(-changes, kind="stable")[: SHOWN["map columns"]]
    columns = columns[changes[columns] > 0]
    genomes = sorted(cohort.most_changed, key=lambda entry: -entry[1])
    states = np.stack([_states(observed[columns], call[columns]) for *_, observed, call in genomes])
    names = [name for _, _, name, _, _ in genomes]
    figure = figures.state_map(states, names, families["family"].iloc[columns].tolist(), STATES, "family", "genome")
    which = "all genomes" if len(genomes) == len(cohort.rows) else f"the {len(genomes)} genomes that changed most"
    caption = f"What became of the families most often changed, {len(columns)} of them, in {which}."
    said = {name: int((states == i).sum()) for i, (name, _, _) in enumerate(STATES)}
    return [Plot(figure, f"{caption} Cells: {listed(said)}.", caption, half=len(columns) <= 12)]


def _states(
    observed: Bool[np.ndarray, " families"], called: Bool[np.ndarray, " families"]
) -> Int[np.ndarray, " families"]:
    """Positions in STATES."""
    return np.where(called, np.where(observed, 1, 2), np.where(observed, 3, 0))


def _novelty(rows: pd.DataFrame, levels: list[Level]) -> Section:
    values = rows["novelty"].to_numpy(np.float64)
    if not np.isfinite(values).any():
        return Section("Novelty", "Of no genome is known how far it is from the reference genomes.")
    limits = [nearest_level(levels, r["completeness"], r["contamination"]).novelty for r in rows.to_dict("records")]
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


def of_fit(
    completer: GenomeCompleter, *, title: str, command: str, notes: list[str], provenance: dict[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model: data, learning curves, and what validation clades say."""
    sizes, levels = completer.sizes_, completer.levels_
    worst = max(levels, key=lambda level: level.ece)
    seconds = getattr(completer, "seconds_", None)
    items: list[tuple[str, Any, str]] = [
        ("genomes", sizes["genomes"], f"{sizes['validation']:,} kept back for validation"),
        ("clades", sizes["training clades"] + sizes["validation clades"], f"{sizes['validation clades']:,} kept back"),
        ("families", sizes["families"], "the vocabulary"),
        ("largest calibration error", worst.ece, f"at completeness / contamination {_level(worst)}"),
    ]
    if seconds is not None:
        items.append(("seconds", Cell(f"{seconds:,.0f}", seconds), "of training"))
    chosen = {_level(level): min(level.loss, key=level.loss.__getitem__) for level in levels}
    sections = [
        Section("Summary", _about_clades(completer), [Headline(items), *_warnings(notes)]),
        _learning(completer),
        _calibration(levels),
        _thresholds(levels),
        _choice(levels, list(chosen.values())),
        Section("Settings", "", [Facts(list(completer.get_params().items()))]),
    ]
    lead = f"Which of {sizes['families']:,} families a genome has, learned from {many(sizes['training'], 'genome')}."
    found = {
        "sizes": sizes,
        "seconds": seconds,
        "histories": completer.histories_,
        "levels": [
            {
                "completeness": level.completeness,
                "contamination": level.contamination,
                "ece": level.ece,
                "novelty": level.novelty,
                "spread": level.spread,
                **{name: level.threshold(name, PRECISION) for name in ("added", "removed")},
                "loss": level.loss,
                "auto": name,
                "bins": level.bins,
            }
            for level, name in zip(levels, chosen.values(), strict=True)
        ],
        "arguments": completer.get_params(),
    }
    return _finish("fit", Report(title, lead, sections, command, provenance), notes, found)


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
    if not histories:
        return Section("Learning curves", "Nothing was trained with gradients in this run.")
    blocks: list[Block] = []
    for name, history in histories.items():
        best = history[-1]
        if completer.patience is not None:
            best = min(history, key=lambda row: row.get("val_loss", np.inf))
        alt = f"Line plot of the loss of {name} by epoch; at epoch {best['epoch']:g}: {listed(dict(best))}."
        caption = f"{name}: binary cross-entropy by epoch, mean over families and genomes."
        blocks.append(Plot(figures.learning_curve(history, "loss", int(best["epoch"])), alt, caption))
    text = "The loss on training and on validation clades. The weights kept are those of the marked epoch."
    return Section("Learning curves", text, blocks)


def _calibration(levels: list[Level]) -> Section:
    found = {(level.completeness, level.contamination): level.ece for level in levels}
    across = sorted({q for _, q in found})
    rows = [
        [Cell(f"{c:g} %", c), *(found.get((c, q)) for q in across)] for c in sorted({c for c, _ in found}, reverse=True)
    ]
    columns = ["completeness", *(f"{q:g} %" for q in across)]
    wanted = [(100, 0), (90, 0), (70, 0), (50, 0), (50, 10)]
    curves = {_level(x): x.bins for x in levels if (x.completeness, x.contamination) in wanted}
    said = ", ".join(f"{_level(level)}: {text_of(level.ece)}" for level in levels)
    return Section(
        "Calibration",
        "Of all families given a probability of 0.8, 80 % should be there. The expected calibration error is the mean "
        "distance between probability and share present.",
        [
            Plot(
                figures.calibration_curves(curves),
                f"Share present against mean probability. Expected calibration errors: {said}.",
                f"Completeness / contamination in percent. {DIAGONAL}",
            ),
            Table(
                "Expected calibration error on validation clades, by completeness and, across, contamination.",
                columns,
                rows,
                half=True,
            ),
        ],
    )


def _thresholds(levels: list[Level]) -> Section:
    rows = []
    for level in levels:
        add, remove = (level.threshold(change, PRECISION) for change in ("added", "removed"))
        rows.append(
            [
                Cell(_level(level), 1000 * level.completeness + level.contamination),
                "never" if add == 1 else Cell(f"p \N{GREATER-THAN OR EQUAL TO} {add:.4g}", add),
                "never" if remove == 1 else Cell(f"p \N{LESS-THAN OR EQUAL TO} {1 - remove:.4g}", 1 - remove),
                _rounded(level.novelty, 3),
                _rounded(level.spread, 2),
            ]
        )
    columns = ["completeness / contamination", "add where", "remove where", "far above a novelty of", "interval factor"]
    text = (
        f"From which probability on {_percent(PRECISION)} of additions, and of removals, were right on validation "
        "clades; \N{LEFT DOUBLE QUOTATION MARK}never\N{RIGHT DOUBLE QUOTATION MARK}: no probability was sure enough. "
        "95 % of the validation genomes have a novelty up to its limit. The interval of a genome's size is the "
        "expected number \N{PLUS-MINUS SIGN} factor \N{MULTIPLICATION SIGN} the standard deviation it would have if "
        "families were independent (which alone would give a factor of 1.96)."
    )
    return Section("Thresholds and limits", text, [Table("By level of noise.", columns, rows)])


def _choice(levels: list[Level], chosen: list[str]) -> Section:
    methods = list(dict.fromkeys(name for level in levels for name in level.loss))
    rows = [
        [
            Cell(_level(level), 1000 * level.completeness + level.contamination),
            name,
            *(level.loss.get(method) for method in methods),
        ]
        for level, name in zip(levels, chosen, strict=True)
    ]
    text = (
        "Mean binary cross-entropy on validation clades; lower is better. With method=auto, each genome is completed "
        "by the method that lost least at its level."
    )
    columns = ["completeness / contamination", "auto takes", *methods]
    return Section("Which method", text, [Table("Loss by method.", columns, rows)])


# ---------------------------------------------------------------------- an evaluation


def of_evaluation(
    evaluation: Evaluation, *, title: str, command: str, notes: list[str], provenance: dict[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: gates first, then every method under every condition."""
    found = evaluation.numbers()
    compared = _Compared(evaluation, found["tables"])
    found["prevalence"] = {c: evaluation.by_prevalence(c).to_dict("index") for c in compared.named("70/0")}
    found["reliability"] = {c: evaluation.bins(c) for c in compared.named("70/0", "50/0")}
    sections = [
        _gates(compared, found["gates"], notes),
        _tested(found["splits"], len(compared.methods)),
        _called(compared),
        _ranking(compared),
        _calibrated(compared, found["reliability"]),
        _precise(compared),
        _prevalence(found["prevalence"]),
        _less_known(compared),
        _original(compared),
        Section("What is measured", "", [Table("Means over genomes of test clades.", ["metric", "what it is"], WHAT)]),
    ]
    lead = (
        f"{many(len(compared.methods), 'method')} on {many(evaluation.rows['genome'].nunique(), 'genome')} of clades "
        "that none of them has seen."
    )
    return _finish("evaluation", Report(title, lead, sections, command, provenance), notes, found)


WHAT: list[list[Any]] = [
    *([name, text] for name, text in METRICS.items()),
    ["ece", "expected calibration error over tenths of probability"],
]
RELIABLE = (MINE, "knn", "as-is")  # whose reliability is drawn
CLEAN = "No contamination, quality known; band: 95 % interval."
WORSE = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"


@dataclass
class _Compared:
    """Tables of an evaluation: by condition, metric and method `value`, `low` and `high`."""

    evaluation: Evaluation
    tables: dict[str, dict[str, dict[str, dict[str, float]]]]

    @cached_property
    def methods(self) -> list[str]:
        return self.evaluation.methods

    def of_kind(self, kind: str) -> list[Condition]:
        return [c for c in CONDITIONS if c.kind == kind and c.name in self.tables]

    def named(self, *names: str) -> list[str]:
        return [name for name in names if name in self.tables]

    def value(self, condition: str, metric: str, method: str) -> dict[str, float]:
        """NaN where it was not measured."""
        nothing = dict.fromkeys(("value", "low", "high"), np.nan)
        return self.tables.get(condition, {}).get(metric, {}).get(method, nothing)

    def less(self, condition: str, metric: str, method: str) -> bool:
        """Less than for doing nothing, in the three decimals that are shown."""
        ours, theirs = (round(self.value(condition, metric, m)["value"], 3) for m in (method, "as-is"))
        return ours < theirs

    def table(self, metric: str, conditions: Sequence[Condition], caption: str, *, mark: bool = False) -> list[Block]:
        """Condition by method; the intervals in a second table, shut. `mark`: what is less than for as-is."""
        rows, wide, any_less = [], [], False
        for condition in (c.name for c in conditions):
            of = {m: self.value(condition, metric, m) for m in self.methods}
            less = {m: mark and self.less(condition, metric, m) for m in self.methods}
            rows.append([condition, *(_rounded(v["value"], 3, WORSE if less[m] else "") for m, v in of.items())])
            wide.append([condition, *map(_with_interval, of.values())])
            any_less |= any(less.values())
        columns = ["condition", *map(_label, self.methods)]
        return [
            Table(caption + (f" {WORSE} less than doing nothing (as-is)." if any_less else ""), columns, rows),
            Table(f"{caption.rstrip('.')}, with 95 % intervals over clades.", columns, wide, folded=True),
        ]

    def lines(self, metric: str, ylabel: str, caption: str, bound: tuple[str, float] | None = None) -> list[Block]:
        """By completeness without contamination, quality known; ours with its interval."""
        levels = sorted((c for c in self.of_kind("known") if c.level[1] == 0), key=lambda c: c.level[0])
        series = {}
        for method in self.methods:
            of = [self.value(c.name, metric, method) for c in levels]
            ends = [[v[end] for v in of] if method == MINE else None for end in ("low", "high")]
            if any(np.isfinite(v["value"]) for v in of):
                x = [c.level[0] for c in levels]
                series[_label(method)] = Series(x, [v["value"] for v in of], ends[0], ends[1])
        if not series:
            return []
        order = [_label(m) for m in self.methods]
        figure = figures.lines(series, "completeness, %", ylabel, order=order, reference=_label("as-is"), bound=bound)
        said = "; ".join(f"{name} {', '.join(text_of(y) for y in one.y)}" for name, one in series.items())
        alt = f"{ylabel} at completeness {', '.join(f'{c.level[0]:g}' for c in levels)} %: {said}."
        return [Plot(figure, alt, caption)]


def _gates(compared: _Compared, gates: list[dict[str, Any]], notes: list[str]) -> Section:
    held = sum(gate["holds"] for gate in gates)
    errors = [compared.value(c.name, "ece", MINE)["value"] for c in compared.of_kind("known")]
    items: list[tuple[str, Any, str]] = [("gates held", Cell(f"{held} of {len(gates)}", held), "")]
    for metric, name, other in (("f1", "F1", "as-is"), ("auprc_missing", "AUPRC of missing families", "knn")):
        ours, theirs = (compared.value("70/0", metric, method)["value"] for method in (MINE, other))
        items.append((f"{name} at 70/0", _rounded(ours, 3), f"{other}: {text_of(_rounded(theirs, 3))}"))
    items.append(("largest calibration error", max(errors, default=None), "quality known"))
    failed = [gate for gate in gates if not gate["holds"]]
    blocks: list[Block] = [Headline(items), *_warnings(notes)]
    if failed:
        said = "; ".join(f"{g['gate']}: {_rounded(g['value'], 4).text}, asked for {_bound(g)}" for g in failed)
        blocks.append(Note("warning", f"{many(len(failed), 'gate')} of {len(gates)} not held. {said}."))
    rows = [
        [
            gate["gate"],
            _rounded(gate["value"], 4),
            Cell(_ends(gate, 4), gate["low"]),
            _bound(gate),
            Cell("yes" if gate["holds"] else "NO", gate["holds"]),
        ]
        for gate in gates
    ]
    blocks.append(Table("Gates.", ["gate", "value", "95 % interval", "asked for", "holds"], rows))
    text = (
        "What a useful method must hold. Names such as 70/5 are completeness / contamination in percent. "
        f"Ours is the method {MINE}; intervals are bootstrapped over clades."
    )
    if not failed and gates:
        text += " Every gate is held."
    return Section("Summary", text, blocks)


def _bound(gate: Mapping[str, Any]) -> str:
    signs = {">=": "\N{GREATER-THAN OR EQUAL TO}", "<=": "\N{LESS-THAN OR EQUAL TO}", "-": MINUS}
    return reduce(lambda text, sign: text.replace(*sign), signs.items(), str(gate["bound"]))


def _tested(splits: list[dict[str, Any]], methods: int) -> Section:
    columns = [k for k in (splits[0] if splits else {}) if k not in ("epochs", "provenance")]
    texts: dict[str, Callable[[Any], str]] = {"seed": str, "seconds": "{:,.0f}".format}
    rows = [[Cell(texts[k](split[k]), split[k]) if k in texts else split[k] for k in columns] for split in splits]
    text = (
        "Genomes are split by clade: trained on the first part, chosen and calibrated on the second (validation "
        "clades), tested once on the third. Genomes are made incomplete by losing genes independently, and "
        "contaminated by genes of another genome, so what is there is known. Genes of real assemblies are lost "
        "together, with their contig: there, results may be worse."
    )
    return Section("How it was tested", text, [Table("Splits.", columns, rows)])


def _called(compared: _Compared) -> Section:
    known = compared.of_kind("known")
    seed = [c.name for c in known if compared.less(c.name, "f1", "seed")]
    blocks: list[Block] = []
    if seed:
        where = f"at {len(seed)} of {len(known)} levels" if len(seed) < len(known) else "at every level"
        text = f"seed, the architecture as first described, has a lower F1 than doing nothing {where}:"
        blocks.append(Note("info", f"{text} it has no way to copy what was observed."))
    blocks += compared.lines("f1", "F1", f"F1 of called families by completeness. {CLEAN}")
    blocks += compared.lines("worse", "share made worse", f"Share of genomes made worse by completeness. {CLEAN}")
    blocks += compared.table("f1", known, "F1 of the families called present.", mark=True)
    blocks += compared.table("worse", known, "Share of genomes made worse than by doing nothing.")
    text = "Families with p of at least 0.5 are called present. as-is calls what was observed: it does nothing."
    return Section("Families called present", text, blocks)


def _ranking(compared: _Compared) -> Section:
    known = compared.of_kind("known")
    foreign = [c for c in known if c.level[1] > 0]
    text = (
        "Average precision (AUPRC): are families that are there ranked above those that are not, among what was not "
        "observed; and foreign ones above own ones, among what was observed. It needs no threshold."
    )
    caption = f"Average precision among unobserved families by completeness. {CLEAN}"
    blocks = compared.lines("auprc_missing", "AUPRC, missing families", caption)
    blocks += compared.table("auprc_missing", known, "AUPRC of missing families.")
    if foreign:
        blocks += compared.table("auprc_foreign", foreign, "AUPRC of foreign families.")
    return Section("Missing and foreign families", text, blocks)


def _calibrated(compared: _Compared, reliability: dict[str, Any]) -> Section:
    caption = f"Expected calibration error by completeness. {CLEAN}"
    blocks = compared.lines("ece", "calibration error", caption, ("asked for: at most 0.02", 0.02))
    for condition, bins in reliability.items():
        curves_of = [m for m in RELIABLE if m in bins]
        curves = {_label(m): bins[m] for m in curves_of}
        order = [_label(m) for m in compared.methods]
        figure = figures.calibration_curves(curves, order=order, reference=_label("as-is"))
        said = listed({_label(m): compared.value(condition, "ece", m)["value"] for m in curves_of})
        caption = f"Share present against mean probability at {condition}. {DIAGONAL}"
        blocks.append(Plot(figure, f"Reliability at {condition}. Expected calibration errors: {said}.", caption))
    blocks += compared.table("ece", compared.of_kind("known"), "Expected calibration error.")
    text = "Of all families given a probability of 0.8, 80 % should be there."
    return Section("Calibration", text, blocks)


def _precise(compared: _Compared) -> Section:
    asked, rows, low = compared.evaluation.precision, [], []
    for condition in (c for kind in ("known", "estimated", "unknown") for c in compared.of_kind(kind)):
        row: list[Any] = [condition.name]
        for change in ("added", "removed"):
            of = compared.value(condition.name, f"precision_{change}", MINE)
            row += [_rounded(of["value"], 3), Cell(_ends(of, 3), of["low"]), _rounded(of.get("changes", np.nan), 1)]
            if of["high"] < asked:
                low.append(f"{change} at {condition.name}")
        rows.append(row)
    columns = ["condition"]
    for change in ("added", "removed"):
        columns += [f"{change}: precision", f"95 % interval, {change}", f"{change} per genome"]
    text = (
        f"Changes were asked to be right in {_percent(asked)} of the cases, with thresholds from validation clades. "
        "The share that was right on test clades:"
    )
    blocks: list[Block] = []
    if low:
        blocks.append(Note("warning", f"Less precise than asked for, by more than chance: {', '.join(low)}."))
    blocks.append(Table(f"Precision of changes by {_label(MINE)}.", columns, rows))
    return Section("Precision of changes", text, blocks if rows else [])


def _prevalence(found: dict[str, dict[str, dict[str, float]]]) -> Section:
    blocks: list[Block] = []
    for condition, by_method in found.items():
        bins = list(dict.fromkeys(b for row in by_method.values() for b in row))
        rows = [[_label(m), *(_rounded(row.get(b, np.nan), 3) for b in bins)] for m, row in by_method.items()]
        columns = ["method", *(b.replace("-", "\N{EN DASH}") for b in bins)]
        caption = f"F1 at {condition} by the share of training genomes that have the family."
        blocks.append(Table(caption, columns, rows))
    text = "Rare families are hard: few genomes show what they go with." if blocks else "Not measured."
    return Section("Rare and common families", text, blocks)


def _less_known(compared: _Compared) -> Section:
    conditions = [c for kind in ("estimated", "unknown") for c in compared.of_kind(kind)]
    text = (
        "Methods are told a completeness and contamination that is wrong by up to 5 points (estimated), or none at all "
        "(unknown)."
    )
    if not conditions:
        return Section("Quality estimated or unknown", "Not measured.")
    blocks = compared.table("f1", conditions, "F1, quality not known.", mark=True)
    blocks += compared.table("auprc_missing", conditions, "AUPRC of missing families, quality not known.")
    blocks += compared.table("ece", conditions, "Expected calibration error, quality not known.")
    return Section("Quality estimated or unknown", text, blocks)


def _original(compared: _Compared) -> Section:
    conditions = compared.of_kind("original")
    if not conditions:
        return Section("Independent noise", "Not measured.")
    text = (
        "Each family of a genome is missed, and each other one is added, independently at the given rates: noise as "
        "the seed architecture was first judged with."
    )
    return Section("Independent noise", text, compared.table("f1", conditions, "F1, independent noise.", mark=True))


# ---------------------------------------------------------------------- parts


def _finish(kind: str, report: Report, notes: list[str], found: dict[str, Any]) -> tuple[Report, dict[str, Any]]:
    about = {"format": FORMAT, "version": VERSION, "kind": kind, "title": report.title}
    made = {"notes": notes, "command": report.command, "provenance": report.provenance}
    return report, about | found | made


def _warnings(texts: Iterable[str]) -> list[Block]:
    return [Note("warning", text) for text in texts]


def _label(method: str) -> str:
    return f"{method} (ours)" if method == MINE else method


def _level(level: Level) -> str:
    return f"{level.completeness:g}/{level.contamination:g}"


def _percent(share: float) -> str:
    return text_of(None) if share != share else f"{f'{100 * share:.1f}'.removesuffix('.0')} %"


def _rounded(value: float, digits: int, sign: str = "") -> Cell:
    """With so many decimals, and a sign behind; a dash if it is NaN."""
    text = f"{value:,.{digits}f}".replace("-", MINUS)
    return Cell(text_of(None) if value != value else text + sign, value)


def _ends(found: Mapping[str, Any], digits: int) -> str:
    low, high = (_rounded(found[end], digits) for end in ("low", "high"))
    return "no interval" if value_of(low) is None or value_of(high) is None else f"{low.text} to {high.text}"


def _with_interval(found: Mapping[str, float]) -> Cell:
    value = _rounded(found["value"], 3)
    return value if value_of(value) is None else Cell(f"{value.text} ({_ends(found, 3)})", found["value"])


def _cut(number: int) -> str:
    shown = SHOWN["rows"]
    return f" The first {shown} of {number:,} are shown; the summary file has all." if number > shown else ""
