"""One row for every condition that a default was measured in: beside its best part, and the strongest simple method.

The best part and the best simple method are those of the best value on the very units of the row, chosen after all were
measured: harder opponents than a user could choose. Differences are ours minus theirs, with 95 % intervals over the
units that new data will be new in.
"""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.results import RESULTS
from omniset.trials.comparison import OURS, number_of

ABOVE, TIE, BELOW = "above", "tie", "**below**"
ATLASES = {
    f"{regions} regions{what}, {split}": f"schaefer_{regions}{file}_{split}"
    for regions, what, file in ((100, "", ""), (400, "", ""), (100, ", structural", "_structural"))
    for split in ("bilateral", "spatial")
}


@dataclass(frozen=True)
class Source:
    """One committed file of an evaluation: which of its scores a default is for, and what its methods are."""

    file: str
    scores: dict[str, str]  # by its name in the file: what the table calls it
    parts: Collection[str]  # what the default mixes, each alone, or the default without one of them
    simple: Collection[str]
    dealings: Callable[[dict[str, Any]], str]
    name: str = ""  # of the data, before the condition
    conditions: Callable[[str], bool] = lambda condition: True


def _repeats(found: dict[str, Any]) -> str:
    low, high = min(found["repeats"].values()), max(found["repeats"].values())
    return number_of(low, "dealing") if low == high else f"{low} to {high} dealings"


SIMPLE_REGIONS = ("ridge", "ridge-places", "geometry-genes", "boosting")
SIMPLE_READS = ("naive-bayes", "naive-bayes-sample", "naive-bayes-community", "nearest", "sintax", "rdp")
SOURCES = {
    "sets": (
        Source(
            "sets/methods.json",
            {"AUROC": "AUROC", "log loss": "log loss"},
            parts=("pooled-forest", "dissimilarity-linear", "ust"),
            simple=("prior", "pooled-forest", "dissimilarity-linear"),
            dealings=_repeats,
        ),
        Source(
            "sets/heavy.json",
            {"R2": "R2"},
            parts=("pooled-linear", "pooled-forest", "dissimilarity-linear", "ust"),
            simple=("prior", "pooled-linear", "pooled-forest", "dissimilarity-linear"),
            dealings=lambda found: number_of(found["dealings"], "dealing"),
        ),
    ),
    "genomes": (
        Source(
            "genomes.json",
            {"auprc_missing": "AUPRC of missing", "f1": "F1"},
            parts=("no-network", "knn-likelihood"),
            simple=("as-is", "prevalence", "prevalence-bayes", "knn", "knn-likelihood", "pca", "mean"),
            dealings=lambda found: number_of(len(found["splits"]), "split"),
            name="archaea",
            conditions=lambda condition: condition.replace("/", "").isdigit(),
        ),
    ),
    "cells": tuple(
        Source(
            f"cells/annotate_{data}.json",
            {"right": "right", "f1": "macro-F1"},
            parts=("balanced", "pca"),
            simple=("logistic", "balanced", "pca", "symphony"),
            dealings=lambda found: number_of(len({row["seed"] for row in found["weights"]}), "split"),
            name=name,
        )
        for data, name in (("kang", "Kang"), ("baron", "Baron"), ("pbmc68k", "68k blood cells"))
    ),
    "regions": tuple(
        Source(
            f"regions/{file}.json",
            {"pearson": "Pearson's r"},
            parts=("attention alone", *SIMPLE_REGIONS),
            simple=(*SIMPLE_REGIONS, "geometry"),
            dealings=lambda found: number_of(len(found["seeds"]), "split"),
            name=name,
        )
        for name, file in ATLASES.items()
    ),
    "microbiomes": (
        Source(
            "microbiomes/contax.json",
            {"genus_accuracy": "genera right"},
            parts=("no-context", "no-network", "naive-bayes"),
            simple=SIMPLE_READS,
            dealings=lambda found: number_of(len({row["seed"] for row in found["pooled"]}), "split"),
            name="ConTax",
        ),
    ),
}
SMALLER_IS_BETTER = ("log loss",)


@dataclass(frozen=True)
class Row:
    system: str
    condition: str
    score: str
    ours: float
    part: dict[str, Any] | None  # the difference to the best part; None where there is none in the file
    simple: dict[str, Any] | None
    units: str
    better: int  # 1 where a larger score is better, -1 otherwise

    def verdict(self, other: dict[str, Any] | None) -> str:
        """Above or below where the interval leaves 0 on one side; also a difference of exactly 0 is a tie."""
        if other is None or other["low"] is None:
            return TIE
        low, high = sorted((self.better * other["low"], self.better * other["high"]))
        return ABOVE if low > 0 else BELOW if high < 0 else TIE


def rows() -> Iterator[Row]:
    for system, sources in SOURCES.items():
        for source in sources:
            found = json.loads((RESULTS / source.file).read_text(encoding="utf-8"))
            yield from _rows(system, source, found)


def _rows(system: str, source: Source, found: dict[str, Any]) -> Iterator[Row]:
    ours = {(r["condition"], r["score"]): r for r in found["scores"] if r["method"] == OURS and r["value"] is not None}
    for (condition, score), row in ours.items():
        if score not in source.scores or not source.conditions(condition):
            continue
        better = -1 if score in SMALLER_IS_BETTER else 1
        beside = {
            r["other"]: r
            for r in found["differences"]
            if (r["condition"], r["score"], r["method"]) == (condition, score, OURS) and r["value"] is not None
        }

        def best(names: Collection[str], beside=beside, better=better) -> dict[str, Any] | None:
            # The best method is the one that ours is least better than.
            return min((r for n, r in beside.items() if n in names), key=lambda r: better * r["value"], default=None)

        part, simple = best(source.parts), best(source.simple)
        if part is None and simple is None:
            continue
        name = source.name if system == "regions" else f"{source.name}, {condition}" if source.name else condition
        units = f"{number_of(row['units'], found['unit'])}, {source.dealings(found)}"
        yield Row(system, name, source.scores[score], row["value"], part, simple, units, better)


def _cell(row: Row, other: dict[str, Any] | None) -> tuple[str, str]:
    if other is None:
        return "-", "-"
    values = [other["value"]] if other["low"] is None else [other[key] for key in ("value", "low", "high")]
    shown = [f"{value:+.{3 if max(map(abs, values)) > 0.002 else 4}f}" for value in values]
    ends = f" ({' to '.join(shown[1:])})" if shown[1:] else ""
    return f"{other['other']}: {shown[0]}{ends}", row.verdict(other)


def table(found: dict[str, Any]) -> list[str]:
    """The table of `docs/results.md`, what is below first said in a sentence."""
    every = list(rows())
    against = {"its best part": [row.verdict(row.part) for row in every if row.part]}
    against["the strongest simple method"] = [row.verdict(row.simple) for row in every if row.simple]
    counted = [
        f"Beside {what} the default is above in {said.count(ABOVE)}, ties in {said.count(TIE)} and is below in "
        f"{said.count(BELOW)} of {len(said)} rows."
        for what, said in against.items()
    ]
    lines = [
        " ".join(counted),
        "",
        "| system | data, condition | score | default | minus its best part | it is "
        "| minus the best simple one | it is | units |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in every:
        part, simple = _cell(row, row.part), _cell(row, row.simple)
        cells = (row.system, row.condition, row.score, f"{row.ours:.3f}", *part, *simple, row.units)
        lines.append(f"| {' | '.join(cells)} |")
    return lines
