"""Results of a study on disk, means with intervals, and tables of ours beside the paper's."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

Curve = tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]
"""Means over seeds, and half the width of their 95 % intervals, 0 for one seed."""


@dataclass(frozen=True)
class Mean:
    """Mean over seeds and half the width of its 95 % interval, by Student's t; one seed has no interval."""

    value: float
    half: float | None
    each: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: list[float]) -> Mean:
        n = len(values)
        half = None if n < 2 else float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
        return cls(float(np.mean(values)), half, tuple(values))

    def text(self, digits: int) -> str:
        return f"{self.value:.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")

    def cells(self, digits: int) -> list[str]:
        """Under OURS: the mean, and where there are several seeds the median and all of them, the least first."""
        if len(self.each) < 2:
            return [self.text(digits), "", ""]
        median = f"{statistics.median(self.each):.{digits}f}"
        return [self.text(digits), median, " ".join(f"{value:.{digits}f}" for value in sorted(self.each))]


@dataclass
class Results:
    """What was measured: for each training, each seed, each column.

    Attributes:
        trainings: {training: {"seeds": {seed: {"steps", "of", "columns": {column: {...}}}}, ...}}.
    """

    trainings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Results:
        files = sorted(path for path in folder.glob("*.json") if path.name[0] != "." and path.stem != "report")
        trainings = {}
        for path in files:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                trainings[content["training"]] = content
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{path} is not of a study: move it away, or take another --out") from None
        return cls(trainings)

    def rows(self, training: str, column: str) -> list[dict[str, Any]]:
        """What was measured of each seed, early results too."""
        seeds = self.trainings.get(training, {}).get("seeds", {})
        return [seeds[s]["columns"][column] for s in sorted(seeds, key=int) if column in seeds[s]["columns"]]

    def mean(self, training: str, column: str, *path: str | int) -> Mean | None:
        values = []
        for row in self.rows(training, column):
            value: Any = row
            for key in path:
                value = value[key]
            values.append(float(value))
        return Mean.of(values) if values else None

    def curve(self, training: str, column: str, key: str) -> Curve:
        """Of a list of numbers that each seed of a column with results has."""
        return _curve([row[key] for row in self.rows(training, column)])

    def losses(self, training: str) -> Curve | None:
        """Validation losses of the epochs that all seeds have had, as `curve`; None where no seed has kept them."""
        seeds = self.trainings.get(training, {"seeds": {}})["seeds"].values()
        lists = [seed["validation_losses"] for seed in seeds if "validation_losses" in seed]
        return _curve([losses[: min(map(len, lists))] for losses in lists]) if lists else None

    def condition(self, training: str) -> str:
        """How a training was run: seeds, steps, device; empty if it was not."""
        seeds = self.trainings.get(training, {"seeds": {}})["seeds"].values()
        if not seeds:
            return ""
        done, of = {s["steps"] for s in seeds}, {s["of"] for s in seeds}
        steps = f"{min(done):,}" if len(done) == 1 else f"{min(done):,} to {max(done):,}"
        early = "" if done == of else f" of {max(of):,} (stopped early)"
        device = ", ".join(sorted({s["provenance"]["device"] for s in seeds}))
        return f"{training}: {len(seeds)} seed{'s' * (len(seeds) > 1)}, {steps} steps{early}, {device}"

    def share(self, training: str, steps: int) -> str:
        """What part of so many steps each seed has had, at least; empty if there is none."""
        seeds = self.trainings.get(training, {"seeds": {}})["seeds"].values()
        if not seeds:
            return ""
        percent = 100 * min(s["steps"] for s in seeds) / steps
        return f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"


def _curve(of_seeds: list[list[float]]) -> Curve:
    means = [Mean.of([float(value) for value in values]) for values in zip(*of_seeds, strict=True)]
    return np.array([m.value for m in means]), np.array([m.half or 0.0 for m in means])


@dataclass
class Table:
    """Rows of texts under a head.

    Attributes:
        notes: Said below it.
        missing: What was not run, and so has no cell.
    """

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def remarks(self) -> list[str]:
        """The notes, and what was not run."""
        return [*self.notes, *([f"Not run: {'; '.join(self.missing)}."] if self.missing else [])]

    def markdown(self) -> list[str]:
        lines = [f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return [*lines, *(line for note in self.remarks for line in ("", note))]

    def text(self) -> str:
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        rule = "  ".join("-" * w for w in widths)
        return "\n".join([self.title, "", lines[0], rule, *lines[1:], *(["", *self.remarks] if self.remarks else [])])


SHARES = "Means, the paper's in brackets; a percentage in the head is the share of the paper's steps."
OURS = ["ours: mean", "median", "every seed", "of the paper's steps"]
THEIRS = ["paper", "difference beyond chance"]
SEEDS = 10  # that each mean of the paper is of


def published(value: Any, digits: int) -> str:
    """A number of the paper's with its half interval, or nothing where the paper has none."""
    return "" if value is None else f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def beside(ours: Mean | None, digits: int, theirs: Any, digits_of_theirs: int) -> str:
    """Ours, and in brackets the paper's where it has a number; nothing where there is none of ours."""
    if ours is None:
        return ""
    return ours.text(digits) + (f" ({published(theirs, digits_of_theirs)})" if theirs else "")


def apart(ours: Mean, theirs: Any) -> str:
    """Ours minus the paper's where the intervals do not meet; else empty, as where the paper has no number.

    One seed has no interval: the paper's is then widened to the one in which the difference to another of its networks
    lies. Its mean of n networks has the variance s^2 / n, the difference to one of them s^2 (1 + 1 / n).
    """
    if theirs is None:
        return ""
    gap, reach = ours.value - theirs[0], theirs[1]
    reach = reach * (SEEDS + 1) ** 0.5 if ours.half is None else reach + ours.half
    return "" if abs(gap) <= reach else f"{gap:+.3g}"
