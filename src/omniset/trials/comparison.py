"""A table of methods, what ours has more than each, and whether that is enough: of every system in one form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from omniset.trials.intervals import FEW, Draws, Interval, Resampling, Values, decimals

OURS = "omniset"
FORMAT, VERSION = "omniset evaluation", 1
HOLDS, TIE, SHORT, UNKNOWN = "holds", "tie", "falls short", "cannot be told"


Formula = Callable[[pd.DataFrame, Draws], Values]
# Rows of two methods that belong together, in the same order, and the resampling of their units.
Pair = tuple[pd.DataFrame, pd.DataFrame, Resampling]


@dataclass(frozen=True)
class Score:
    """A number by which methods are compared."""

    name: str  # in tables and files; without a formula, the column of the rows whose mean it is
    text: str  # in words
    larger: bool = True  # larger is better
    share: bool = False  # it lies between 0 and 1
    # Of the rows of a method in a condition, and of draws of them. None: the mean over the rows that have a value.
    formula: Formula | None = None
    draws: int | None = None  # at most so many resamples, for a formula that takes long
    within: tuple[float, float] = (-math.inf, math.inf)  # the least and the largest value that it can have
    # The standard error of a formula in each draw, of the rows of a method, or of two for their difference.
    error: Callable[[pd.DataFrame, pd.DataFrame | None, Draws], Values] | None = None

    @property
    def of_differences(self) -> tuple[float, float]:
        """The least and the largest value that a difference of two can have."""
        width = 1.0 if self.share else self.within[1] - self.within[0]
        return -width, width


@dataclass(frozen=True)
class Gate:
    """A bound that a useful method keeps, and whether ours does."""

    gate: str  # in words
    # What was measured.
    condition: str
    score: str
    # The best baseline of that condition, or the method named; None: the score itself is bounded.
    opponent: str | None
    interval: Interval  # of the score, or of ours minus the opponent's
    bound: float = 0.0
    most: bool = False  # the bound is an upper one
    best: bool = False  # the opponent is the best baseline

    @property
    def verdict(self) -> str:
        """Of the interval beside the bound.

        "holds": it lies beyond the bound; "tie": the bound lies within it; "falls short": it lies on the other side;
        "cannot be told": there is none.
        """
        low, high = self.interval.low, self.interval.high
        if math.isnan(low) or math.isnan(high):
            return UNKNOWN
        if self.most:
            low, high = -high, -low
        bound = -self.bound if self.most else self.bound
        return HOLDS if low > bound else SHORT if high < bound else TIE

    def __str__(self) -> str:
        digits = decimals(self.interval)
        value = f"{self.interval.value:+.{digits}f}{_ends(self.interval, digits, '+')}"
        return f"{self.verdict}: {self.gate}: {value}, asked {self.asked}"

    @property
    def asked(self) -> str:
        return f"{'<' if self.most else '>'} {self.bound:g}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("gate", "condition", "score", "opponent", "bound")
        about = {name: getattr(self, name) for name in names}
        return {**about, "asked": self.asked, **self.interval.as_dict(), "verdict": self.verdict}


@dataclass(frozen=True)
class Aim:
    """A gate before it is measured: the bound that ours must pass."""

    condition: str
    score: str
    against: str | None = "best"  # a method; "best": the best baseline of the condition; None: the score itself
    bound: float = 0.0
    most: bool = False


@dataclass
class Comparison:
    """Methods under conditions, scored on the same units."""

    # `condition`, `method`, the columns of units, the keys that pair rows of two methods, and the scores.
    rows: pd.DataFrame
    scores: Sequence[Score]  # the one that decides first
    unit: str  # what new data are new in, in the singular, such as "clade"
    units: str | tuple[str, ...]  # column of the rows that names it; several where a row has several
    keys: Sequence[str]  # columns that tell rows of one method and condition apart
    baselines: Sequence[str] = ()  # methods that ours has to beat
    aims: Sequence[Aim] = ()  # of the gates
    ours: str = OURS
    resamples: int = 1000
    learned: bool = False  # the methods learned from the same units, each left out in its turn
    names: Mapping[str, str] = field(default_factory=dict)  # what methods are, in words, for sentences and tables
    _intervals: dict[tuple[str, ...], Interval] = field(default_factory=dict, repr=False)
    _pairs: dict[tuple[str, str], Pair | None] = field(default_factory=dict, repr=False)
    _resamplings: dict[tuple[str, str], Resampling] = field(default_factory=dict, repr=False)

    def named(self, method: str) -> str:
        """A method, and what it is."""
        return f"{method} ({self.names[method]})" if method in self.names else method

    @cached_property
    def methods(self) -> list[str]:
        return self.rows["method"].unique().tolist()

    @cached_property
    def conditions(self) -> list[str]:
        return self.rows["condition"].unique().tolist()

    def score(self, name: str) -> Score:
        """The one of this name.

        Raises:
            ValueError: There is none.
        """
        for score in self.scores:
            if score.name == name:
                return score
        raise ValueError(f"score must be one of {', '.join(s.name for s in self.scores)}, got {name!r}")

    def interval(self, name: str, condition: str, method: str) -> Interval:
        """The score of a method; NaN where it has no rows."""
        key = (name, condition, method)
        if key not in self._intervals:
            self._intervals[key] = self._estimate(self.score(name), (condition, method))
        return self._intervals[key]

    def table(self, name: str, condition: str) -> pd.DataFrame:
        """Index method; `value`, `low`, `high`."""
        here = [m for m in self.methods if (condition, m) in self._parts]
        ends = {m: self.interval(name, condition, m) for m in here}
        values = [(i.value, i.low, i.high) for i in ends.values()]
        return pd.DataFrame(values, index=list(ends), columns=["value", "low", "high"], dtype=np.float64)

    def difference(self, name: str, condition: str, other: str) -> Interval:
        """Ours minus the other's, on the same draws; a mean is taken over the rows in which both have a value."""
        key = (name, condition, self.ours, other)
        if key not in self._intervals:
            self._intervals[key] = self._paired(self.score(name), self._pair(condition, other))
        return self._intervals[key]

    def best_baseline(self, name: str, condition: str) -> str | None:
        """None: no baseline has a value. Of several that are equal by this score, the next scores decide."""
        best = [m for m in self.baselines if m in self.methods]
        for score in [self.score(name), *(s for s in self.scores if s.name != name)]:
            values = {m: self.interval(score.name, condition, m).value for m in best}
            values = {m: value if score.larger else -value for m, value in values.items() if math.isfinite(value)}
            if not values and score.name == name:
                return None
            best = [m for m in best if values.get(m) == max(values.values())] if values else best
            if len(best) == 1:
                break
        return best[0] if best else None

    @cached_property
    def gates(self) -> list[Gate]:
        """Of the aims whose condition and methods are there."""
        gates = []
        for aim in self.aims:
            if (aim.condition, self.ours) not in self._parts:
                continue
            score = self.score(aim.score)
            opponent = self.best_baseline(aim.score, aim.condition) if aim.against == "best" else aim.against
            if aim.against is None:
                interval, text = self.interval(aim.score, aim.condition, self.ours), f"{score.text}, {aim.condition}"
            elif opponent is None or (aim.condition, opponent) not in self._parts:
                continue
            else:
                interval = self.difference(aim.score, aim.condition, opponent)
                text = f"{score.text}, {aim.condition}: ours minus {opponent}"
                text += " (the best baseline)" if aim.against == "best" else ""
            turned = opponent is not None and not score.larger
            bound, most = (0.0 - aim.bound, True) if turned else (aim.bound, aim.most)
            best = aim.against == "best"
            gates.append(Gate(text, aim.condition, aim.score, opponent, interval, bound, most, best))
        return gates

    @property
    def decisive(self) -> Gate | None:
        """The gate that the verdict is of."""
        return next((gate for gate in self.gates if gate.opponent is not None), None)

    def verdict(self) -> str:
        """The score of ours, beside the method of the first gate, in a sentence; empty where nothing was compared."""
        gate = self.decisive
        if gate is None or gate.opponent is None:
            return ""
        gap, text = gate.interval, self.score(gate.score).text
        mine, other = (self.interval(gate.score, gate.condition, m) for m in (self.ours, gate.opponent))
        digits = max(decimals(mine, other), decimals(gap))
        if gate.verdict in (HOLDS, SHORT):  # an end that is not 0 does not look like 0
            digits += not round(min(abs(gap.low), abs(gap.high)), digits)
        text += f", {gate.condition}," if len(self.conditions) > 1 else ""
        theirs, ours = f"{other.value:.{digits}f}", f"{text} {mine.value:.{digits}f}"
        ours += _ends(mine, digits, before=f"95 % interval over {plural(self.unit)} ")
        opponent = self.named(gate.opponent) + (", the best baseline" if gate.best else "")
        few = f"; only {number_of(gap.units, self.unit)}" if gap.few else ""
        apart = f"difference {gap.value:+.{digits}f}, {_ends(gap, digits, '+').strip(' ()')}{few}"
        if gap.low == gap.high == 0:
            apart = f"the same in each {self.unit}{few}"  # a point would look as if it were sure
        if gate.verdict == SHORT:
            return f"Use {opponent}: {text} {theirs}, better than {mine.value:.{digits}f} of ours ({apart})."
        ours = ours[:1].upper() + ours[1:]
        if gate.verdict == UNKNOWN:
            return f"{ours}; {opponent} has {theirs}: too few units ({gap.units}) for an interval."
        result = "better than" if gate.verdict == HOLDS else "a tie with"
        end = "" if gate.verdict == HOLDS else f"; these {plural(self.unit)} do not tell them apart"
        return f"{ours}: {result} {opponent}, with {theirs} ({apart}){end}{self._next(gate, digits)}."

    def _next(self, gate: Gate, digits: int) -> str:
        """The best baseline but for the opponent, where the opponent is the best: how much there was to be won."""
        found = self.table(gate.score, gate.condition)["value"].dropna()
        found = found[[m for m in self.baselines if m in found.index and m != gate.opponent]]
        if not gate.best or found.empty:
            return ""
        first = str(found.idxmax() if self.score(gate.score).larger else found.idxmin())
        return f"; the next best baseline, {self.named(first)}, has {found[first]:.{digits}f}"

    def lines(self, conditions: Sequence[str] | None = None) -> list[str]:
        """What a terminal shows below the verdict: methods, best first; the gates, where there are several.

        Args:
            conditions: Those whose methods are shown, by their first score that was measured. None: all.
        """
        lines = []
        for condition in self.conditions if conditions is None else conditions:
            measured = (s for s in self.scores if self.table(s.name, condition)["value"].notna().any())
            first = next(measured, self.scores[0])
            table = self.table(first.name, condition).sort_values("value", ascending=not first.larger, kind="stable")
            lines += ["", f"{first.text}, {condition}"]
            found = {method: self.interval(first.name, condition, method) for method in table.index}
            width, digits = max(map(len, found), default=0), decimals(*found.values())
            lines += [f"  {m:<{width}}  {i.value:.{digits}f} {_ends(i, digits)}".rstrip() for m, i in found.items()]
        return [*lines, *([""] if self.told_gates else []), *map(str, self.told_gates)]

    @property
    def told_gates(self) -> list[Gate]:
        """None where there is but the one of the verdict, which says it all."""
        alone = len(self.gates) == 1 and self.gates[0].opponent is not None and self.gates[0].bound == 0
        return [] if alone else self.gates

    def numbers(self) -> dict[str, Any]:
        """All scores, differences and gates, in the one form of all systems."""
        scores, differences = [], []
        for condition, method in self._parts:
            for score in self.scores:
                about = {"condition": condition, "score": score.name, "method": method}
                scores.append({**about, **self.interval(score.name, condition, method).as_dict()})
                if method != self.ours and (condition, self.ours) in self._parts:
                    about = {"condition": condition, "score": score.name, "method": self.ours, "other": method}
                    differences.append({**about, **self.difference(score.name, condition, method).as_dict()})
        return {
            "format": FORMAT,
            "version": VERSION,
            "ours": self.ours,
            "baselines": [m for m in self.baselines if m in self.methods],
            "unit": self.unit,
            "units": self._resampling(self.rows).units,
            "scores": scores,
            "differences": differences,
            "gates": [gate.as_dict() for gate in self.gates],
            "verdict": self.verdict(),
        }

    def write_rows(self, path: Any, columns: Sequence[str] | None = None) -> None:
        """As a table: condition, method, units, keys and scores; or only some columns of the rows."""
        from omniset.tables.files import TableWriter

        with TableWriter(path) as writer:
            writer.write(self.rows if columns is None else self.rows[[*columns]])

    # ------------------------------------------------------------------

    @cached_property
    def _parts(self) -> Mapping[tuple[str, str], pd.DataFrame]:
        groups = self.rows.groupby(["condition", "method"], sort=False)
        return {(str(c), str(m)): rows for (c, m), rows in groups}

    def _resampling(self, rows: pd.DataFrame) -> Resampling:
        several = isinstance(self.units, tuple)
        names = rows[list(self.units)] if several else rows[self.units]
        return Resampling(names.to_numpy().astype(str), self.resamples, learned=self.learned)

    def _estimate(self, score: Score, part: tuple[str, str]) -> Interval:
        rows = self._parts.get(part)
        if rows is None:
            return Interval(math.nan)
        if part not in self._resamplings:
            self._resamplings[part] = self._resampling(rows)
        resampling = self._resamplings[part]
        how: dict[str, Any] = {"share": score.share, "draws": score.draws, "within": score.within}
        how["error"] = None if score.error is None else partial(score.error, rows, None)
        if score.formula is not None:
            return resampling.estimate(partial(score.formula, rows), **how)
        values = rows[score.name].to_numpy(np.float64)
        known = ~np.isnan(values)
        if not known.all():
            resampling, values = self._resampling(rows[known]), values[known]
        return resampling.estimate(lambda draws: draws.mean(values), **how)

    def _pair(self, condition: str, other: str) -> Pair | None:
        if (condition, other) not in self._pairs:
            one, two = (self._parts.get((condition, method)) for method in (self.ours, other))
            self._pairs[condition, other] = None if one is None or two is None else self._joined(one, two)
        return self._pairs[condition, other]

    def _joined(self, mine: pd.DataFrame, other: pd.DataFrame) -> Pair:
        units = [self.units] if isinstance(self.units, str) else self.units
        keys = list(dict.fromkeys([*units, *self.keys]))
        places = [rows[keys].assign(**{str(i): np.arange(len(rows))}) for i, rows in enumerate((mine, other))]
        both = places[0].merge(places[1], on=keys)
        mine, other = mine.iloc[both["0"].to_numpy()], other.iloc[both["1"].to_numpy()]
        return mine, other, self._resampling(mine)

    def _paired(self, score: Score, pair: Pair | None) -> Interval:
        if pair is None:
            return Interval(math.nan)
        (mine, other, resampling), formula = pair, score.formula
        how: dict[str, Any] = {"paired": score.share, "within": score.of_differences}
        how["error"] = None if score.error is None else partial(score.error, mine, other)
        if formula is not None:
            gap = lambda draws: formula(mine, draws) - formula(other, draws)  # noqa: E731
            return resampling.estimate(gap, draws=score.draws, **how)
        values = mine[score.name].to_numpy(np.float64) - other[score.name].to_numpy(np.float64)
        known = np.isfinite(values)
        resampling = resampling if known.all() else self._resampling(mine[known])
        return resampling.estimate(lambda draws: draws.mean(values[known]), **how)


def _ends(interval: Interval, digits: int, sign: str = "", before: str = "") -> str:
    if math.isnan(interval.low):
        return ""
    return f" ({before}{interval.low:{sign}.{digits}f} to {interval.high:{sign}.{digits}f})"


def number_of(units: int, noun: str) -> str:
    """So many units, in words.

    >>> number_of(1, "clade"), number_of(7, "community")
    ('1 clade', '7 communities')
    """
    return f"{units:,} {noun if units == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Of a unit's name.

    >>> plural("clade"), plural("batch")
    ('clades', 'batches')
    """
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def few_units(units: int, noun: str) -> str:
    """A sentence beside intervals of few units; empty where there are enough."""
    if not 1 < units < FEW:  # of one there is no interval
        return ""
    return f"Intervals are of {number_of(units, noun)} only: Student's t, or Wilson's of shares."
