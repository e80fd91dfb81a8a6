"""The section of a report that says which features mattered (`omniset.trials.importances`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from omniset.report.blocks import Block, Cell, Plot, Section, Table, between, listed, many, rounded, text_of
from omniset.report.figures import BLUE, GREY, ORANGE, distinct, panel, styled
from omniset.trials.comparison import few_units
from omniset.trials.importances import in_words

SHOWN = {"bars": 20, "rows": 200}


@dataclass
class Importance:
    """What was measured.

    Attributes:
        table: As `omniset.trials.importances.table_of` gives it.
        on: Which sets, such as "sets left out".
        unit: What intervals and p are over, in the singular.
        loss: Which increases.
        exchanged: How often the values of each set were, where that was less often than usual.
    """

    table: pd.DataFrame
    on: str
    unit: str
    loss: str
    exchanged: int | None = None

    def lines(self) -> list[str]:
        """What a terminal shows."""
        return ["", "importance of features by permutation", *in_words(self.table, self.unit), *self.fewer()]

    def fewer(self) -> list[str]:
        """A sentence, where values were exchanged less often than usual."""
        if self.exchanged is None:
            return []
        times = "once" if self.exchanged == 1 else f"{self.exchanged} times"
        return [f"Values were exchanged {times}, as there is much to read: intervals are wider than they could be."]


def section(importance: Importance) -> Section:
    """How much each feature matters, target by target, beside what chance gives."""
    units = int(importance.table["units"].iloc[0])
    text = (
        f"How much the {importance.loss} increases, on {importance.on}, where the values of one feature are those of "
        "another set. Features that go together can stand in for each other, and then none of them matters alone. "
        f"{' '.join([few_units(units, importance.unit), *importance.fewer()])}"
    ).strip()
    blocks: list[Block] = []
    of_targets = importance.table.groupby("target", sort=False)
    for (target, rows), said in zip(of_targets, in_words(importance.table, importance.unit), strict=True):
        top = rows.head(SHOWN["bars"])
        named = dict(zip(top["feature"].astype(str), top["importance"].tolist(), strict=True))
        ends: Any = [top[name].to_numpy(np.float64) for name in ("importance", "low", "high", "threshold")]
        figure = bars([str(name) for name in top["feature"]], *ends, f"increase of the {importance.loss}")
        caption = f"{said}. Bars: importance, with 95 % intervals. Marks: what chance reaches."
        blocks.append(Plot(figure, f"Bars of the importance of features: {listed(named)}.", caption, half=False))
        caption = f"Target {target}: importance of {many(len(rows), 'feature')}"
        caption += "." if len(rows) <= SHOWN["rows"] else f", the {SHOWN['rows']} largest; features.csv has all."
        columns = ["feature", "importance", "95 % interval", "p, adjusted", "what chance reaches"]
        blocks.append(
            Table(caption, columns, [_row(row) for _, row in rows.head(SHOWN["rows"]).iterrows()], folded=True)
        )
    return Section("Features", text, blocks)


def _row(row: pd.Series) -> list[Any]:
    interval = Cell(between(row["low"], row["high"], lambda value: Cell(text_of(value), value)), row["low"])
    return [str(row["feature"]), row["importance"], interval, rounded(row["p"], 4), row["threshold"]]


@styled
def bars(
    labels: Sequence[str],
    values: Float[np.ndarray, " bars"],
    low: Float[np.ndarray, " bars"],
    high: Float[np.ndarray, " bars"],
    threshold: Float[np.ndarray, " bars"],
    xlabel: str,
) -> Figure:
    """Horizontal bars with intervals, the first on top, and beside each a mark at its threshold, where it has one."""
    figure, axes = panel(6.4, 1.3 + 0.25 * max(len(labels), 2))
    places = np.arange(len(labels))
    axes.barh(places, values, color=BLUE, height=0.66, alpha=0.75, label="importance")
    axes.hlines(places, low, high, color="#1b1f24", linewidth=1.2)
    axes.vlines(threshold, places - 0.42, places + 0.42, color=ORANGE, linewidth=2, label="what chance reaches")
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(places, distinct(labels))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set(xlabel=xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    figure.legend(loc="outside upper left", ncols=2)
    return figure
