"""Cells before and after a perturbation: populations, what moves between them, and how well it was foretold.

A group is a population of untreated cells, of one type and donor, and the treated one beside it. Which cell became
which is not known: sets are learned from sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int, Shaped
from torch import Tensor

from omniset.cells.data import Cells
from omniset.cells.heads import log_normalised
from omniset.cells.model import SCALE
from omniset.cells.neighbours import unlabelled
from omniset.cells.variable import most_variable, survey
from omniset.core.attention import multiset_attention
from omniset.tables.files import listed

LEAST = 10  # cells of a population
GENES = 2000
WIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 1e3)  # of the kernel, in median distances between groups; the last: the mean of all
TOP = 50  # genes that change most


@dataclass(frozen=True)
class Group:
    """One type of one donor under one perturbation.

    Attributes:
        control, treated: Rows of the cells; `treated` may be empty, where it is to be foretold.
    """

    perturbation: str
    type: str
    donor: str
    control: Int[np.ndarray, " controls"]
    treated: Int[np.ndarray, " treated"]

    @property
    def name(self) -> str:
        return f"{self.perturbation}, {self.type}, {self.donor}"


@dataclass
class Study:
    """Log-normalised cells, and the populations among them.

    Attributes:
        values: (cells, genes) of the genes that vary most.
        groups: Those of which treated and untreated cells are there.
        lacking: Those without treated cells, of perturbations that others have.
    """

    values: Float32[np.ndarray, "cells genes"]
    genes: list[str]
    groups: list[Group]
    lacking: list[Group]

    @classmethod
    def of(cls, cells: Cells, condition: str, control: str, label: str, donor: str | None) -> Study:
        """To learn from, by columns of obs; of the genes that vary most.

        Raises:
            ValueError: No such column or control, or no population of at least 10 cells before and after.
        """
        rows = _populations(cells, condition, control, label, donor)
        codes = pd.factorize(_column(cells, condition, "condition"))[0].astype(np.int64)
        seen, moments = survey(cells, codes, np.arange(len(cells)), False)
        often = np.flatnonzero(seen)
        chosen = often[most_variable([m.of_genes(often) for m in moments], GENES)]
        counts = cells.take(np.arange(len(cells)))[:, chosen]
        values = log_normalised(counts, cells.library(), SCALE)
        groups, lacking = _groups(rows, control, sorted({state for state, _, _ in rows} - {control, ""}))
        if len(groups) < 2:
            parts = ({of for s, _, of in rows if s and (s == control) == before} for before in (True, False))
            divided = donor is not None and not set.intersection(*parts)
            apart = f"; no {donor} has both untreated and treated cells" if divided else ""
            raise ValueError(
                f"condition: {len(groups)} populations of {condition} have {LEAST} cells or more before and after, at "
                f"least 2 are needed{apart}"
            )
        return cls(values, [cells.genes[i] for i in chosen], groups, lacking)

    @classmethod
    def of_new(
        cls,
        cells: Cells,
        values: Float32[np.ndarray, "cells genes"],
        genes: list[str],
        perturbations: list[str],
        *,
        condition: str | None,
        control: str,
        label: str,
        donor: str | None,
    ) -> Study:
        """Cells to be foretold under known perturbations.

        Args:
            values: Log-normalised, of the genes that are known.
            condition: None: no cell is treated.

        Raises:
            ValueError: No such column or control, or no population of at least 10 untreated cells.
        """
        groups, lacking = _groups(_populations(cells, condition, control, label, donor), control, perturbations)
        if not groups and not lacking:
            raise ValueError(f"label: no {label} has {LEAST} untreated cells or more of one donor")
        return cls(values, genes, groups, lacking)

    def mean(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " genes"]:
        return self.values[rows].mean(0, dtype=np.float64)

    def shift(self, group: Group) -> Float[np.ndarray, " genes"]:
        """Mean of the treated cells minus that of the others."""
        return self.mean(group.treated) - self.mean(group.control)


def _populations(
    cells: Cells, condition: str | None, control: str, label: str, donor: str | None
) -> dict[tuple[str, str, str], Int[np.ndarray, " rows"]]:
    """Rows by condition, type and donor; "" for a value that is missing."""
    state = np.full(len(cells), control, dtype=object)
    if condition is not None:
        state = _column(cells, condition, "condition")
    kind = _column(cells, label, "label")
    donors = np.full(len(cells), "all", dtype=object) if donor is None else _column(cells, donor, "donor")
    known = pd.unique(state[state != ""])
    if control not in known:
        raise ValueError(f"control must be a value of {condition}, there are {listed(known.tolist())}; got {control!r}")
    frame = pd.DataFrame({"state": state, "type": kind, "donor": donors})
    parts: Any = frame.groupby(["state", "type", "donor"], sort=True)
    return {key: np.asarray(part.index) for key, part in parts}


def _groups(
    rows: dict[tuple[str, str, str], Int[np.ndarray, " rows"]], control: str, perturbations: list[str]
) -> tuple[list[Group], list[Group]]:
    """Untreated populations under each perturbation: those that were measured after it, and the others."""
    groups: list[Group] = []
    lacking: list[Group] = []
    for perturbation in perturbations:
        for (state, kind, donor), before in rows.items():
            if state != control or not kind or len(before) < LEAST:
                continue
            after = rows.get((perturbation, kind, donor), np.zeros(0, dtype=np.int64))
            measured = len(after) >= LEAST
            group = Group(perturbation, kind, donor, before, after if measured else after[:0])
            (groups if measured else lacking).append(group)
    return groups, lacking


def _column(cells: Cells, name: str, what: str) -> Shaped[np.ndarray, " cells"]:
    if name not in cells.obs:
        columns = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"{what} must be a column of obs, there is no {name!r}; there are: {columns}")
    values = cells.obs[name]
    text = np.array(values.astype(str), dtype=object)
    text[unlabelled(values)] = ""
    return text


@dataclass
class Shifts:
    """The shift of a new group: the mean of known groups' shifts, those whose untreated cells are like its own first.

        s(q) = sum_g n_g exp(-|q - k_g|^2 / 2 w^2) s_g / sum_g n_g exp(-|q - k_g|^2 / 2 w^2)

    over groups g of its perturbation, k_g the mean of their untreated cells, n_g the harmonic mean of the numbers of
    their cells: multiset attention (`omniset.core.attention.multiset_attention`). A small w is the shift of the same
    type in other donors, a large one the mean shift; it is learned on known groups, each foretold from the others, one
    for types that others have and one for new types.

    Attributes:
        keys: (groups, components).
        values: (groups, genes) shifts.
        numbers: (groups, 2) of untreated and of treated cells.
        widths: Of groups whose type is known, and of others.
    """

    perturbations: list[str]
    types: list[str]
    donors: list[str]
    keys: Float[np.ndarray, "groups components"]
    values: Float[np.ndarray, "groups genes"]
    numbers: Int[np.ndarray, "groups 2"]
    widths: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def learned(cls, study: Study, groups: list[Group], keys: Float[np.ndarray, "groups components"]) -> Shifts:
        numbers = np.array([(len(g.control), len(g.treated)) for g in groups], dtype=np.int64)
        values = np.stack([study.shift(g) for g in groups])
        names = [g.perturbation for g in groups], [g.type for g in groups], [g.donor for g in groups]
        shifts = cls(*names, keys, values, numbers)
        shifts.widths = tuple(shifts._width(groups, new) for new in (False, True))  # type: ignore[assignment]
        return shifts

    def __call__(
        self, group: Group, key: Float[np.ndarray, " components"], without: Shaped[np.ndarray, " groups"] | None = None
    ) -> Float[np.ndarray, " genes"]:
        """Args:
        key: Mean of its untreated cells.
        without: (groups,) those that are left out, of a group that is known itself.
        """
        left = np.zeros(len(self.keys), dtype=bool) if without is None else without
        allowed = np.array([p == group.perturbation for p in self.perturbations]) & ~left
        known = any(t == group.type for t, yes in zip(self.types, allowed, strict=True) if yes)
        return self._at(key, allowed, self.widths[0 if known else 1])

    def _at(
        self, key: Float[np.ndarray, " components"], allowed: Shaped[np.ndarray, " groups"], width: float
    ) -> Float[np.ndarray, " genes"]:
        if not allowed.any():
            return np.zeros(self.values.shape[1])
        keys = torch.from_numpy(self.keys[allowed])
        wide = torch.cat((keys, -0.5 * keys.square().sum(1, keepdim=True)), 1)
        query = torch.from_numpy(np.append(key, 1.0))[None]
        values, sizes = torch.from_numpy(self.values[allowed]), torch.from_numpy(self.sizes[allowed])
        scale = 1 / (width * self.unit) ** 2
        return multiset_attention(query, wide, values, sizes, scale=scale)[0].numpy()

    @property
    def sizes(self) -> Float[np.ndarray, " groups"]:
        """n_g."""
        return 2 / (1 / self.numbers).sum(1)

    @property
    def unit(self) -> float:
        """Median distance between the groups' keys."""
        apart = np.linalg.norm(self.keys[:, None] - self.keys[None], axis=2)[np.triu_indices(len(self.keys), 1)]
        return max(float(np.median(apart)), 1e-6)

    def left_out(self, groups: list[Group], number: int, new: bool) -> Shaped[np.ndarray, " groups"]:
        """Groups that foretell a known one as if its type, or else its donor, were new."""
        group = groups[number]
        if new:
            return np.array([g.type == group.type for g in groups])
        same = np.array([g.donor == group.donor for g in groups])
        same[number] = True
        return same

    def _width(self, groups: list[Group], new: bool) -> float:
        errors = np.zeros(len(WIDTHS))
        for number, group in enumerate(groups):
            left = self.left_out(groups, number, new)
            allowed = np.array([p == group.perturbation for p in self.perturbations]) & ~left
            if not allowed.any() or not (
                new or any(t == group.type for t, a in zip(self.types, allowed, strict=True) if a)
            ):
                continue
            for i, width in enumerate(WIDTHS):
                error = np.square(self._at(self.keys[number], allowed, width) - self.values[number]).sum()
                errors[i] += self.sizes[number] * error
        # Without a donor more, the same type tells most of a type that is known; of a new one all do.
        return WIDTHS[int(errors.argmin())] if errors.any() else (WIDTHS[-1] if new else WIDTHS[0])


def energy_distance(x: Float[Tensor, "n dim"], y: Float[Tensor, "m dim"]) -> Float[Tensor, ""]:
    """2 E|x - y| - E|x - x'| - E|y - y'|, pairs of a cell with itself left out of the last two.

    0 for two draws of one distribution, on average; negative values are chance (Szekely and Rizzo, "Energy statistics:
    a class of statistics based on distances", 2013).
    """
    across = torch.cdist(x, y).mean()
    within = [torch.cdist(a, a).sum() / max(len(a) * (len(a) - 1), 1) for a in (x, y)]
    return 2 * across - within[0] - within[1]


def foretold(
    study: Study, group: Group, predicted: Float[np.ndarray, "controls genes"], axes: Float[np.ndarray, "genes dim"]
) -> dict[str, float]:
    """How well a predicted treated population is that which was measured.

    Returns:
        `pearson`: of the changes of means, over all genes; `pearson_top`: over the 50 genes that change most, by the
        t statistic of the measured cells; `overlap`: share of the 50 genes with the largest predicted change that are
        among the 50 with the largest measured one; `energy`: energy distance in principal components.
    """
    before, after = study.values[group.control].astype(np.float64), study.values[group.treated].astype(np.float64)
    true, said = after.mean(0) - before.mean(0), predicted.mean(0) - before.mean(0)
    error = np.sqrt(before.var(0) / len(before) + after.var(0) / len(after) + 1e-8)
    top = np.argsort(-np.abs(true / error), kind="stable")[:TOP]
    most = [set(np.argsort(-np.abs(x), kind="stable")[:TOP].tolist()) for x in (true, said)]
    places = [torch.from_numpy(a @ axes) for a in (predicted.astype(np.float64), after)]
    return {
        "pearson": _pearson(said, true),
        "pearson_top": _pearson(said[top], true[top]),
        "overlap": len(most[0] & most[1]) / len(most[0]) if np.ptp(said) > 0 else 0.0,
        "energy": float(energy_distance(*places)),
    }


def _pearson(x: Float[np.ndarray, " genes"], y: Float[np.ndarray, " genes"]) -> float:
    """0 where either does not vary: no change foretells nothing."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
