"""What every report has: summary with warnings and notes, learning curves, methods beside each other, settings.

A system gives what is its own; the frame puts it together, so that a page of any system is read like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    between,
    listed,
    rounded,
    signed,
    text_of,
)
from omniset.runs.files import plain
from omniset.trials.comparison import SHORT, Comparison, few_units, plural
from omniset.trials.intervals import Interval

FORMAT, VERSION = "omniset report", 2

History = list[dict[str, Any]]
Label = Callable[[str], str]


@dataclass
class Run:
    """What a report says of the run that made it.

    Attributes:
        system: "sets", "genomes", "cells", "regions" or "microbiomes".
        kind: "fit", "evaluation", or what the system calls it.
        warnings: What may be wrong, as the command says it.
        notes: What was decided on the data, a sentence each.
    """

    system: str
    kind: str
    title: str
    command: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


def compose(
    run: Run,
    lead: str,
    sections: Iterable[Section],
    numbers: Mapping[str, Any],
    *,
    headline: Sequence[tuple[str, Any, str]] = (),
    summary: Sequence[Block] = (),
    text: str = "",
    comparison: Comparison | None = None,
    settings: Mapping[str, Any] | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> tuple[Report, dict[str, Any]]:
    """A page, and what report.json has.

    Args:
        lead: A sentence below the title.
        sections: The system's own, between summary and settings.
        numbers: Likewise, behind them.
        headline: The few numbers to remember: name, value, remark.
        summary: Further blocks of the summary.
        text: Of the summary.
        comparison: Its verdict comes first, its gates close the summary, and its numbers are those of `evaluate`.
        settings: Of the model.
        chosen: Values that the run chose for settings that are None.
    """
    blocks: list[Block] = [] if comparison is None else verdict(comparison)
    blocks += [Headline(list(headline))] if headline else []
    blocks += [Note("warning", text) for text in run.warnings] + [Note("info", text) for text in run.notes]
    blocks += summary
    if comparison is not None and comparison.gates:
        blocks.append(gates(comparison))
    page = [Section("Summary", text, blocks), *sections]
    about = {"format": FORMAT, "version": VERSION, "system": run.system, "kind": run.kind, "title": run.title}
    about |= {"command": run.command, "provenance": run.provenance}
    about |= {"warnings": [*run.warnings], "notes": [*run.notes]}
    if comparison is not None:
        about["evaluation"] = comparison.numbers()
    if settings is not None:
        found = {name: f"{text_of(one)} (chosen)" for name, one in (chosen or {}).items() if one is not None}
        facts = [(name, found.get(name) if value is None else value) for name, value in settings.items()]
        page.append(Section("Settings", "", [Facts(facts)]))
        about["arguments"] = dict(settings)
        about |= {"chosen": dict(chosen)} if chosen else {}
    return Report(run.title, lead, page, run.command, run.provenance), plain({**about, **numbers})


def verdict(comparison: Comparison) -> list[Block]:
    """The verdict in a sentence, and how many units it is of."""
    decisive = next((gate for gate in comparison.gates if gate.opponent is not None), None)
    if decisive is None:
        return []
    blocks: list[Block] = [Note("warning" if decisive.verdict == SHORT else "info", comparison.verdict())]
    few = few_units(decisive.interval.units, comparison.unit)
    return [*blocks, Note("info", few)] if few else blocks


def gates(comparison: Comparison) -> Table:
    """What a useful method keeps, and whether ours does."""
    rows = [
        [gate.gate, signed(gate.interval.value), ends(gate.interval, signed), gate.asked, gate.verdict]
        for gate in comparison.gates
    ]
    caption = "Gates: one holds where the whole interval lies beyond the bound; a bound within the interval is a tie."
    return Table(caption, ["", "value", "95 % interval", "asked", "verdict"], rows)


def methods(
    comparison: Comparison,
    condition: str,
    scores: Sequence[str],
    *,
    caption: str = "",
    label: Label = str,
) -> Table:
    """Methods down, best first by the first score; its interval beside it, and what ours has more than each."""
    first = comparison.score(scores[0])
    table = comparison.table(first.name, condition).sort_values("value", ascending=not first.larger, kind="stable")
    rows: list[list[Any]] = []
    for method in table.index:
        interval = comparison.interval(first.name, condition, method)
        row = [label(method), rounded(interval.value), ends(interval)]
        if comparison.ours in table.index and len(table) > 1:
            same = method == comparison.ours
            gap = Interval(math.nan) if same else comparison.difference(first.name, condition, method)
            row += [signed(gap.value), ends(gap, signed)]
        row += [rounded(comparison.interval(name, condition, method).value) for name in scores[1:]]
        rows.append(row)
    columns = ["method", first.text, "95 % interval"]
    if rows and len(rows[0]) > 3 + len(scores) - 1:
        columns += ["ours minus it", "95 % interval of this"]
    columns += [comparison.score(name).text for name in scores[1:]]
    where = caption or f"{first.text}, {condition}. Intervals are of what other {plural(comparison.unit)} would give."
    return Table(where, columns, rows)


def learning(
    histories: Mapping[str, History], *, kept_epochs: Mapping[str, int | None] | None = None, text: str = ""
) -> Section:
    """Curves of every quantity, training beside validation.

    Args:
        histories: By name of what was trained; "" where there is one. A dict per epoch with `epoch`.
        kept: The epoch whose weights were kept.
    """
    blocks: list[Block] = []
    for name, history in histories.items():
        keys = [key for key in dict.fromkeys(k for row in history for k in row) if key != "epoch"]
        keys = [key for key in keys if any(isinstance(row.get(key), (int, float)) for row in history)]
        before = f"{name}: " if name else ""
        for quantity in dict.fromkeys(key.removeprefix("train_").removeprefix("val_") for key in keys):
            parts = [key for key in keys if key in (quantity, f"train_{quantity}", f"val_{quantity}")]
            last = {figures.words(key): history[-1].get(key) for key in parts}
            alt = f"Line plot of {figures.words(quantity)} by epoch. In the last epoch: {listed(last)}."
            figure = figures.learning_curve(history, quantity, (kept_epochs or {}).get(name))
            caption = f"{before}{figures.words(quantity)} by epoch."
            blocks.append(Plot(figure, alt, caption[:1].upper() + caption[1:]))
    return Section("Learning curves", text if blocks else "Nothing was trained by epochs.", blocks)


def ends(interval: Interval, form: Callable[[float], Cell] = rounded) -> str:
    """Such as 0.812 to 0.873; a dash where there is no interval."""
    return between(interval.low, interval.high, form)
