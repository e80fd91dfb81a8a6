"""What the sets are: a summary, read block by block, as they may be larger than memory; and the section on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int, Real, Shaped

from omniset.core.sets import Sets
from omniset.report import figures
from omniset.report.blocks import Block, Facts, Plot, Section, Table, listed, many, rounded, text_of, whole

SAMPLE = 1_000_000  # multiplicities, evenly spread, that quantiles are taken of
STEP = 1 << 16  # rows read at a time
QUANTILES = {"smallest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "largest": 1.0}


@dataclass
class DataSummary:
    """What the sets are.

    Args:
        sets: Their number.
        elements: Number of distinct elements, over all sets.
        total_multiplicity: Elements with their copies; None: every element is there once.
        sizes: (sets,) number of distinct elements of each set.
        multiplicity_quantiles: Such as `quantiles` gives.
        missing: What was missing or left out, and how often.
        features: Their names.
        targets: By name, the labels or numbers to learn.
    """

    sets: int
    elements: int
    total_multiplicity: float | int | None
    sizes: Int[np.ndarray, " sets"]
    multiplicity_quantiles: dict[str, float] | None = None
    missing: dict[str, int] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    targets: dict[str, Shaped[np.ndarray, " _"]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For report.json."""
        data = asdict(self) | {"sizes": quantiles(self.sizes)}
        data["targets"] = {
            name: quantiles(values) if values.dtype.kind in "fiu" else _counts(values)
            for name, values in self.targets.items()
        }
        return data

    def section(self) -> Section:
        facts: list[tuple[str, Any]] = [("sets", self.sets), ("distinct elements", self.elements)]
        if self.total_multiplicity is not None:
            facts.append(("elements with their copies", whole(self.total_multiplicity)))
        facts += [("empty sets", int((self.sizes == 0).sum())), ("features", len(self.features)), *self.missing.items()]
        if spread := self.multiplicity_quantiles:
            low, middle, high = (text_of(whole(spread[name])) for name in ("smallest", "median", "largest"))
            facts.append(("multiplicity", f"{low} to {high}, median {middle}"))
        blocks: list[Block] = [Facts(facts)]
        if len(self.sizes):
            figure = figures.histogram(self.sizes[self.sizes > 0], "distinct elements per set", "sets")
            sizes = listed(quantiles(self.sizes))
            caption = f"Sizes of the sets that are not empty. Of all sets: {sizes}."
            blocks.append(Plot(figure, f"Histogram of the sizes of {many(self.sets, 'set')}: {sizes}.", caption))
        for name, values in self.targets.items():
            blocks.append(_distribution(name, values, "sets" if len(values) <= self.sets else "elements"))
        return Section("Data", "", blocks)


def summarize(sets: Sets, labels: pd.DataFrame) -> DataSummary:
    """What a report says of the data. Labels have a column per target."""
    total, spread = _multiplicities(sets)
    return DataSummary(
        sets=len(sets),
        elements=int(sets.offsets[-1]),
        total_multiplicity=None if spread is None else int(total) if total.is_integer() else total,
        sizes=sets.sizes,
        multiplicity_quantiles=spread,
        missing={f"no label of {c}": int(n) for c, n in labels.isna().sum().items() if n},
        features=sets.features or [],
        targets={str(c): labels[c].dropna().to_numpy() for c in labels},
    )


def _multiplicities(sets: Sets) -> tuple[float, dict[str, float] | None]:
    total, sample = 0.0, []
    stride = -(-int(sets.offsets[-1]) // SAMPLE)
    for _, weights in sets.blocks(STEP):
        counts = weights.double().numpy()
        total += float(counts.sum())
        sample.append(counts[::stride])
    values = np.concatenate(sample)
    return total, None if (values == 1).all() else quantiles(values)


def quantiles(values: Real[np.ndarray, " _"]) -> dict[str, float]:
    """By name; of nothing: nothing."""
    return {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()} if len(values) else {}


def _distribution(name: str, values: Shaped[np.ndarray, " _"], noun: str) -> Block:
    counts = _counts(values)
    if not counts:
        spread = listed(quantiles(values.astype(np.float64)))
        figure = figures.histogram(values.astype(np.float64), name, noun)
        return Plot(figure, f"Histogram of {name}: {spread}.", f"Target {name}: {spread or 'no value'}.")
    rows = [[label, n, rounded(n / sum(counts.values()), 2)] for label, n in counts.items()]
    return Table(f"Target {name}: how often each label occurs.", ["label", noun, "fraction"], rows, half=True)


def _counts(values: Shaped[np.ndarray, " _"]) -> dict[str, int]:
    """Of labels, most frequent first; of numbers: nothing."""
    if values.dtype.kind in "fiu":
        return {}
    labels, counts = np.unique(values.astype(str), return_counts=True)
    return {str(labels[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}
