"""The report on an evaluation of genomes: the verdict and the gates first, then every method at every quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes.evaluate import ACCESSORY, Evaluation
from omniset.genomes.metadata import WHOLE
from omniset.genomes.noise import LOSSES
from omniset.genomes.report import DIAGONAL, percent
from omniset.genomes.scores import CALIBRATED, CHANGES, CONDITIONS, DEFINITIONS, LOSSY, WHOLE_OF, Condition
from omniset.report import figures
from omniset.report.blocks import Block, Cell, Note, Plot, Report, Section, Table, listed, many, rounded, text_of
from omniset.report.figures import Series
from omniset.report.frame import Run, compose, ends, methods
from omniset.trials.comparison import OURS, Comparison
from omniset.trials.intervals import Interval

RELIABLE = (OURS, "knn", "as-is")  # whose reliability is drawn
CLEAN = "No contamination, quality known; band: 95 % interval."
WORSE = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"


def of_evaluation(run: Run, evaluation: Evaluation) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: gates first, then every method under every condition."""
    compared = evaluation.comparison
    scores = ("auprc_missing", "recall_missing", "f1", "ece_missing", "log_loss", "worse")
    sections = [
        Section("Methods", "", [methods(compared, c, scores, label=_label) for c in evaluation.decisive]),
        _tested(evaluation.splits),
        _ranking(compared),
        _called(compared),
        _calibrated(evaluation),
        _precise(evaluation),
        _lost(compared),
        _prevalence(evaluation),
        _less_known(compared),
        _original(compared),
        Section("What is measured", "", [Table("Scores.", ["score", "what it is"], [*map(list, DEFINITIONS.items())])]),
    ]
    errors = [gate.interval.value for gate in compared.gates if gate.score == "ece_missing"]
    headline: list[tuple[str, Any, str]] = []
    for name in ("auprc_missing", "recall_missing", "f1"):
        value, best = compared.interval(name, "70/0", OURS).value, compared.best_baseline(name, "70/0")
        beside = "" if best is None else f"{best}: {rounded(compared.interval(name, '70/0', best).value).text}"
        headline.append((f"{compared.score(name).text} at 70/0", rounded(value), beside))
    headline.append(("largest calibration error", max(errors, default=None), "of missing families, quality known"))
    genomes = many(evaluation.rows["genome"].nunique(), "genome")
    return compose(
        run,
        f"{many(len(compared.methods), 'method')} on {genomes} of clades that none of them has seen.",
        sections,
        evaluation.own_numbers(),
        headline=headline,
        text="Names such as 70/5 are completeness / contamination in percent. Intervals are of what other clades would "
        "give.",
        comparison=compared,
    )


def _tested(splits: pd.DataFrame) -> Section:
    columns = [k for k in splits.columns if k not in ("epochs", "provenance")]
    texts: dict[str, Callable[[Any], str]] = {"seed": str, "seconds": "{:,.0f}".format}
    rows = [
        [Cell(texts[k](split[k]), split[k]) if k in texts else split[k] for k in columns]
        for split in splits.to_dict("records")
    ]
    text = (
        "Genomes are split by clade: trained on the first part, chosen and calibrated on the second (validation "
        "clades), tested once on the third. Genomes are made incomplete by losing genes independently, and "
        "contaminated by genes of another genome, so what is there is known. Genes of real assemblies are lost "
        "together, with their contig, and rare ones more often: these have a section of their own."
    )
    return Section("How it was tested", text, [Table("Splits.", columns, rows)])


def _called(compared: Comparison) -> Section:
    known = _of_kind(compared, "known")
    seed = [c.name for c in known if _less(compared, c.name, "f1", "seed")]
    blocks: list[Block] = []
    if seed:
        where = f"at {len(seed)} of {len(known)} levels" if len(seed) < len(known) else "at every level"
        text = f"seed, the architecture as first described, has a lower F1 than doing nothing {where}:"
        blocks.append(Note("info", f"{text} it has no way to copy what was observed."))
    blocks += _lines(compared, "f1", "F1", f"F1 of called families by completeness. {CLEAN}")
    blocks += _lines(compared, "worse", "share made worse", f"Share of genomes made worse by completeness. {CLEAN}")
    blocks += _table(compared, "f1", known, "F1 of the families called present.", mark=True)
    blocks += _table(compared, "worse", known, "Share of genomes made worse than by doing nothing.")
    recall = _lines(compared, "recall_missing", "recall", f"Recall of missing families by completeness. {CLEAN}")
    recall += _table(compared, "recall_missing", known, "Recall of missing families: the share of them that is called.")
    blocks = recall + blocks
    text = "Families with p of at least 0.5 are called present. as-is calls what was observed: it does nothing."
    return Section("Families called present", text, blocks)


def _ranking(compared: Comparison) -> Section:
    known = _of_kind(compared, "known")
    foreign = [c for c in known if c.level[1] > 0]
    text = (
        "Average precision (AUPRC): are families that are there ranked above those that are not, among what was not "
        "observed; and foreign ones above own ones, among what was observed. It needs no threshold."
    )
    caption = f"Average precision among unobserved families by completeness. {CLEAN}"
    blocks = _lines(compared, "auprc_missing", "AUPRC, missing families", caption)
    blocks += _table(compared, "auprc_missing", known, "AUPRC of missing families.")
    if foreign:
        blocks += _table(compared, "auprc_foreign", foreign, "AUPRC of foreign families.")
    return Section("Missing and foreign families", text, blocks)


def _calibrated(evaluation: Evaluation) -> Section:
    compared = evaluation.comparison
    caption = f"Expected calibration error of missing families by completeness. {CLEAN}"
    bound = (f"asked for: below {CALIBRATED:g}", CALIBRATED)
    blocks = _lines(compared, "ece_missing", "calibration error", caption, bound)
    order = [_label(m) for m in compared.methods]
    for condition in evaluation.decisive:
        curves = {m: curve for m, curve in evaluation.reliability(condition).items() if m in RELIABLE}
        labelled = {_label(m): curves[m] for m in RELIABLE if m in curves}
        figure = figures.calibration_curves(labelled, order=order, reference=_label("as-is"))
        errors = listed({_label(m): compared.interval("ece", condition, m).value for m in RELIABLE if m in curves})
        caption = f"Share present against mean probability at {condition}. {DIAGONAL}"
        blocks.append(Plot(figure, f"Reliability at {condition}. Expected calibration errors: {errors}.", caption))
    known = _of_kind(compared, "known")
    blocks += _table(compared, "ece_missing", known, "Expected calibration error of missing families.")
    if evaluation.whole:
        caption = f"Expected calibration error of missing families, {_whole(evaluation)}."
        blocks += _table(compared, "ece_missing", _of_kind(compared, "whole"), caption)
    blocks += _table(compared, "ece", known, "Expected calibration error of all families.")
    text = (
        "Of all families given a probability of 0.8, 80 % should be there. Of nearly all families it is plain whether "
        "they are there: the first error is of those that were not observed and have a probability of at least 0.1."
    )
    return Section("Calibration", text, blocks)


def less_precise(evaluation: Evaluation) -> str:
    """Where changes are right less often than asked for, by more than chance, in a sentence; empty where nowhere."""
    compared = evaluation.comparison
    low = [
        f"{change} at {condition.name}"
        for condition in _of_kind(compared, "known", "whole", "estimated", "unknown")
        for change in CHANGES
        if compared.interval(f"precision_{change}", condition.name, OURS).high < evaluation.precision
    ]
    asked = f"Less precise than the {percent(evaluation.precision)} asked for, by more than chance"
    return f"{asked}: {', '.join(low)}." if low else ""


def _precise(evaluation: Evaluation) -> Section:
    compared, rows = evaluation.comparison, []
    for condition in (c.name for c in _of_kind(compared, "known", "whole", "estimated", "unknown")):
        row: list[Any] = [condition]
        number = evaluation.changes(condition)
        for change in CHANGES:
            interval = compared.interval(f"precision_{change}", condition, OURS)
            row += [rounded(interval.value), Cell(ends(interval), interval.low), rounded(number[change], 1)]
        row.append(rounded(compared.interval("recall_added", condition, OURS).value))
        rows.append(row)
    columns = ["condition"]
    for change in CHANGES:
        columns += [f"{change}: precision", f"95 % interval, {change}", f"{change} per genome"]
    columns.append("share of the missing that was added")
    text = (
        f"Changes were asked to be right in {percent(evaluation.precision)} of the cases, with thresholds from "
        "validation clades. The share that was right on test clades:"
    )
    if evaluation.whole:
        text += (
            " What a genome lacks counts as absent, though an incomplete one may have it: whole are the "
            f"{_whole(evaluation)}."
        )
    blocks: list[Block] = []
    if low := less_precise(evaluation):
        blocks.append(Note("warning", low))
    blocks.append(Table(f"Precision of changes by {_label(OURS)}.", columns, rows))
    return Section("Precision of changes", text, blocks if rows else [])


def _lost(compared: Comparison) -> Section:
    conditions = _of_kind(compared, *LOSSES[1:])
    if not conditions:
        return Section("Other losses", "Not measured.")
    text = (
        "Genes lost in other ways than each copy by itself. runs: 20 at a time, as with a contig. accessory: rare "
        "families more often than core ones, down to 65 % of what completeness says. islands: a tenth of the genes, "
        f"most of them of rare families, as islands that are recovered in 40 % of these cases. {ACCESSORY} is ours, "
        "told that rare families are lost more often."
    )
    copies = [c for c in _of_kind(compared, "known") if c.level in LOSSY]
    blocks = _table(compared, "covered", [*copies, *conditions], "Share of genomes whose size is in its 95 % interval.")
    blocks += _table(compared, "missing_error", [*copies, *conditions], "Error of the number of missing families.")
    blocks += _table(compared, "auprc_missing", conditions, "AUPRC of missing families.")
    blocks += _table(compared, "f1", conditions, "F1 of the families called present.", mark=True)
    return Section("Other losses", text, blocks)


def _prevalence(evaluation: Evaluation) -> Section:
    blocks: list[Block] = []
    for condition in evaluation.decisive:
        by_method = evaluation.by_prevalence(condition)
        bins = list(dict.fromkeys(b for row in by_method.values() for b in row))
        rows = [[_label(m), *(rounded(row[b]) for b in bins)] for m, row in by_method.items()]
        columns = ["method", *(b.replace("-", "\N{EN DASH}") for b in bins)]
        caption = f"F1 at {condition} by the share of training genomes that have the family."
        blocks.append(Table(caption, columns, rows))
    text = "Rare families are hard: few genomes show what they go with." if blocks else "Not measured."
    return Section("Rare and common families", text, blocks)


def _less_known(compared: Comparison) -> Section:
    conditions = _of_kind(compared, "estimated", "unknown")
    if not conditions:
        return Section("Quality estimated or unknown", "Not measured.")
    text = (
        "Methods are given a completeness and contamination that is wrong by up to 5 points (estimated), or none at "
        "all (unknown)."
    )
    blocks = _table(compared, "f1", conditions, "F1, quality not known.", mark=True)
    blocks += _table(compared, "auprc_missing", conditions, "AUPRC of missing families, quality not known.")
    blocks += _table(compared, "ece", conditions, "Expected calibration error, quality not known.")
    return Section("Quality estimated or unknown", text, blocks)


def _original(compared: Comparison) -> Section:
    conditions = _of_kind(compared, "original")
    if not conditions:
        return Section("Independent noise", "Not measured.")
    text = (
        "Each family of a genome is missed, and each other one is added, independently at the given rates: noise as "
        "the seed architecture was first judged with."
    )
    return Section("Independent noise", text, _table(compared, "f1", conditions, "F1, independent noise.", mark=True))


# ---------------------------------------------------------------------- parts


def _of_kind(compared: Comparison, *kinds: str) -> list[Condition]:
    there = [c for c in (*CONDITIONS, *WHOLE_OF.values()) if c.name in compared.conditions]
    return [c for kind in kinds for c in there if c.kind == kind]


def _whole(evaluation: Evaluation) -> str:
    return f"{many(evaluation.whole, 'genome')} that are at least {WHOLE:g} % complete themselves"


def _less(compared: Comparison, condition: str, score: str, method: str) -> bool:
    """Less than for doing nothing, in the three decimals that are shown."""
    one, other = (round(compared.interval(score, condition, m).value, 3) for m in (method, "as-is"))
    return one < other


def _table(
    compared: Comparison, score: str, conditions: Sequence[Condition], caption: str, *, mark: bool = False
) -> list[Block]:
    """Condition by method; the intervals in a second table, shut. `mark`: what is less than for as-is."""
    rows, wide, any_less = [], [], False
    for condition in (c.name for c in conditions):
        intervals = {m: compared.interval(score, condition, m) for m in compared.methods}
        less = {m: mark and _less(compared, condition, score, m) for m in compared.methods}
        cells = {m: rounded(interval.value) for m, interval in intervals.items()}
        rows.append([condition, *(Cell(c.text + WORSE * less[m], c.value) for m, c in cells.items())])
        wide.append([condition, *map(_with_interval, intervals.values())])
        any_less |= any(less.values())
    columns = ["condition", *map(_label, compared.methods)]
    return [
        Table(caption + (f" {WORSE} less than doing nothing (as-is)." if any_less else ""), columns, rows),
        Table(f"{caption.rstrip('.')}, with 95 % intervals over clades.", columns, wide, folded=True),
    ]


def _lines(
    compared: Comparison, score: str, ylabel: str, caption: str, bound: tuple[str, float] | None = None
) -> list[Block]:
    """By completeness without contamination, quality known; ours with its interval."""
    levels = sorted((c for c in _of_kind(compared, "known") if c.level[1] == 0), key=lambda c: c.level[0])
    x = [c.level[0] for c in levels]
    series = {}
    for method in compared.methods:
        intervals = [compared.interval(score, c.name, method) for c in levels]
        values = [i.value for i in intervals]
        if np.isfinite(values).any():
            band = ([i.low for i in intervals], [i.high for i in intervals]) if method == OURS else ()
            series[_label(method)] = Series(x, values, *band)
    if not series:
        return []
    order = [_label(m) for m in compared.methods]
    figure = figures.lines(series, "completeness, %", ylabel, order=order, reference=_label("as-is"), bound=bound)
    drawn = "; ".join(f"{name} {', '.join(text_of(y) for y in one.y)}" for name, one in series.items())
    alt = f"{ylabel} at completeness {', '.join(f'{c:g}' for c in x)} %: {drawn}."
    return [Plot(figure, alt, caption)]


def _label(method: str) -> str:
    return f"{method} (ours)" if method == OURS else method


def _with_interval(interval: Interval) -> Cell:
    value = rounded(interval.value)
    known = interval.value == interval.value
    return Cell(f"{value.text} ({ends(interval)})", interval.value) if known else value
