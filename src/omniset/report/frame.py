"""What every report has: what was found, a picture and two notes first; methods beside each other; at the end further
notes, learning curves and settings.

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
from omniset.trials.comparison import Comparison, Gate, few_units, plural
from omniset.trials.intervals import Interval, decimals

FORMAT, VERSION = "omniset report", 2
NOTES = 2  # that are read first
History = list[dict[str, Any]]


@dataclass
class Run:
    """What a report says of the run that made it."""

    system: str  # "sets", "genomes", "cells", "regions" or "microbiomes"
    kind: str  # "fit", "evaluation", or what the system calls it
    title: str
    command: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()  # what may be wrong, as the command says it
    notes: Sequence[str] = ()  # what was decided on the data, a sentence each


def compose(
    run: Run,
    verdict: str,
    about: str,
    sections: Iterable[Section],
    numbers: Mapping[str, Any],
    *,
    picture: Iterable[Plot] = (),
    remarks: Sequence[Note] = (),
    comparison: Comparison | None = None,
    settings: Mapping[str, Any] | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> tuple[Report, dict[str, Any]]:
    """A page, and what report.json has. Warnings come before remarks, and these before notes.

    Args:
        verdict: What was found, in a sentence. "": that of the comparison.
        about: What it was found on.
        sections: The system's own; those without a block are left out.
        numbers: Likewise, behind them.
        picture: The first is shown first, and not again in its section. Without one, methods are beside each other.
        comparison: Its numbers are those of `evaluate`.
        settings: Of the model.
        chosen: Values that the run chose for settings that are None.
    """
    first = next(iter(picture), None) or (None if comparison is None else beside(comparison))
    page = []
    for section in sections:
        section.blocks = [block for block in section.blocks if block is not first]
        page += [section] if section.blocks else []
    notes = [Note("warning", text) for text in run.warnings] + [*remarks] + [Note("info", text) for text in run.notes]
    if comparison is not None:
        why = "ours was not run" if comparison.baselines else "no baseline was run"
        verdict = verdict or comparison.verdict() or f"Nothing is said of ours beside baselines: {why}."
        page += [Section("Gates", "", [gates(comparison.told_gates)])] if comparison.told_gates else []
    page += [Section("Notes", "", [*notes[NOTES:]])] if notes[NOTES:] else []
    made = {"verdict": verdict, "format": FORMAT, "version": VERSION, "system": run.system, "kind": run.kind}
    made |= {"title": run.title, "command": run.command, "provenance": run.provenance}
    made |= {"warnings": [*run.warnings], "notes": [*run.notes]}
    if comparison is not None:
        made["evaluation"] = comparison.numbers()
    if settings is not None:
        found = {name: f"{text_of(one)} (chosen)" for name, one in (chosen or {}).items() if one is not None}
        facts = [(name, found.get(name) if value is None else value) for name, value in settings.items()]
        page += [Section("Settings", "", [Facts(facts)])] if facts else []
        made["arguments"] = dict(settings)
        made |= {"chosen": dict(chosen)} if chosen else {}
    opening: list[Block] = [*([] if first is None else [first]), *notes[:NOTES]]
    return Report(run.title, verdict, page, run.command, run.provenance, about, opening), plain({**made, **numbers})


def beside(comparison: Comparison) -> Plot | None:
    """Methods by the score of the verdict, each with its interval; None where there is no verdict."""
    if (gate := comparison.decisive) is None:
        return None
    score = comparison.score(gate.score)
    table = comparison.table(score.name, gate.condition).sort_values("value", ascending=not score.larger, kind="stable")
    names, (value, low, high) = table.index.tolist(), (table[name].tolist() for name in ("value", "low", "high"))
    figure = figures.intervals(names, (score.text, value, low, high), None, f"{score.text}, 95 % intervals")
    caption = f"{score.text[:1].upper()}{score.text[1:]}, {gate.condition}, best method first."
    return Plot(figure, f"{caption} {listed(dict(zip(names, value, strict=True)))}.", caption)


def gates(asked: Sequence[Gate]) -> Block:
    """What a useful method keeps, and whether ours does; of one a sentence."""
    if len(asked) == 1:
        return Note("info", str(asked[0]))
    rows = []
    for gate in asked:
        digits = decimals(gate.interval)
        value, interval = signed(gate.interval.value, digits), ends(gate.interval, digits, signed)
        rows.append([gate.gate, value, interval, gate.asked, gate.verdict])
    caption = "One holds where the whole interval lies beyond the bound; a bound within the interval is a tie."
    return Table(caption, ["", "value", "95 % interval", "asked", "verdict"], rows)


def methods(
    comparison: Comparison,
    condition: str,
    scores: Sequence[str],
    *,
    caption: str = "",
) -> Table:
    """Methods down, best first by the first score; its interval beside it, and what ours has more than each."""
    first = comparison.score(scores[0])
    names = (
        comparison.table(first.name, condition).sort_values("value", ascending=not first.larger, kind="stable").index
    )
    found = {name: {m: comparison.interval(name, condition, m) for m in names} for name in scores}
    digits = {name: decimals(*of.values()) for name, of in found.items()}
    others = [m for m in names if m != comparison.ours] if comparison.ours in names else []
    gaps = {m: comparison.difference(first.name, condition, m) for m in others}
    rows: list[list[Any]] = []
    for method in names:
        interval, gap = found[first.name][method], gaps.get(method, Interval(math.nan))
        row: list[Any] = [comparison.named(method), rounded(interval.value, digits[first.name])]
        row.append(ends(interval, digits[first.name]))
        row += [signed(gap.value, decimals(gap)), ends(gap, form=signed)] if others else []
        rows.append([*row, *(rounded(found[name][method].value, digits[name]) for name in scores[1:])])
    columns = ["method", first.text, "95 % interval"]
    columns += ["ours minus it", "95 % interval of this"] if others else []
    columns += [comparison.score(name).text for name in scores[1:]]
    where = caption or f"{first.text}, {condition}. Intervals are of what other {plural(comparison.unit)} would give."
    few = few_units(max((i.units for i in found[first.name].values()), default=0), comparison.unit)
    return Table(f"{where[:1].upper()}{where[1:]} {few}".strip(), columns, rows)


def learning(
    histories: Mapping[str, History], *, kept_epochs: Mapping[str, int | None] | None = None, text: str = ""
) -> Section:
    """Curves of every quantity, training beside validation; none where nothing was trained by epochs.

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
    return Section("Learning curves", text, blocks)


def ends(interval: Interval, digits: int | None = None, form: Callable[[float, int], Cell] = rounded) -> str:
    """Such as 0.81 to 0.87; a dash where there is no interval. digits: as the interval alone bears."""
    return between(interval.low, interval.high, decimals(interval) if digits is None else digits, form)
