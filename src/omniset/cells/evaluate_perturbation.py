"""Foretold perturbations beside simple shifts, on donors and types of which no treated cell was learned from.

no change    the untreated cells as they are
mean shift   plus the mean of all known groups' shifts
type shift   plus the mean shift of their type; of all, for a new type
linear       plus what ridge regression on the untreated means says (Ahlmann-Eltze et al., "Deep-learning-based gene
perturbation effect prediction does not yet outperform simple linear baselines", 2025)
scgen        decoded from principal components, moved there by scGen's shift (Lotfollahi et al., "scGen predicts
single-cell perturbation responses", 2019), see `scgen_shift`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from sklearn.linear_model import Ridge
from torch import Tensor

from omniset.cells.perturber import CellPerturber, Group, Study
from omniset.runs.files import plain
from omniset.trials.comparison import OURS, Aim, Comparison, Score

DONORS, TYPES = "new donors", "new types"
SHIFTS = ("no change", "mean shift", "type shift", "linear", "scgen")
TOP = 50  # genes that change most
PREDICTORS = 10  # of the linear baseline
SCORES = (
    Score("pearson_top", "Pearson of changes, 50 genes", within=(-1.0, 1.0)),
    Score("pearson", "Pearson of changes, all genes", within=(-1.0, 1.0)),
    Score("overlap", "overlap of the 50 genes", share=True),
    Score("energy", "energy distance", larger=False),
)
AIMS = tuple(Aim(condition, score) for condition in (DONORS, TYPES) for score in ("pearson_top", "energy"))


@dataclass
class PerturbationEvaluation:
    """What was measured.

    Attributes:
        rows: A row per condition, method and group left out: `group`, `donor`, `type`, and the scores of
            `scores_of`.
        notes: A sentence each.
    """

    TEXTS: ClassVar[dict[str, str]] = {
        DONORS: "All treated cells of a donor are left out; its untreated ones are given.",
        TYPES: "All treated cells of a type are left out, of every donor; its untreated ones are given.",
    }
    rows: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    @cached_property
    def comparison(self) -> Comparison:
        """Units are donors, and types where these were left out: populations of one donor are not independent."""
        types = self.rows["condition"] == TYPES
        rows = self.rows.assign(left_out=np.where(types, self.rows["type"], self.rows["donor"]))
        unit = "left-out part" if types.any() else "donor"
        return Comparison(rows, SCORES, unit, "left_out", ["group"], SHIFTS, AIMS)

    def numbers(self) -> dict[str, Any]:
        about = {"notes": self.notes, "rows": self.rows.to_dict("records")}
        return plain({**self.comparison.numbers(), **about})


def evaluate_perturbation(study: Study, say: Callable[[str], None] = lambda line: None) -> PerturbationEvaluation:
    """Leave out each donor, and each type, of which others are there: all of its treated cells.

    Args:
        say: Is given a line of each step.

    Raises:
        ValueError: There is neither a second donor nor a second type.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for condition, of in ((DONORS, "donor"), (TYPES, "type")):
        names = sorted({getattr(group, of) for group in study.groups})
        if len(names) < 2:
            notes.append(f"{condition}: there is one {of}, none was left out")
            continue
        for name in names:
            rest = [group for group in study.groups if getattr(group, of) != name]
            if len(rest) < 2:
                continue
            say(f"without {of} {name}")
            perturber = CellPerturber(progress=False).fit_groups(study, rest)
            left = [group for group in study.groups if getattr(group, of) == name]
            rows += _scores(study, perturber, left, condition)
    if not rows:
        raise ValueError("donor: there is neither a second donor nor a second type that could be left out")
    return PerturbationEvaluation(pd.DataFrame(rows), notes)


def _scores(study: Study, perturber: CellPerturber, groups: list[Group], condition: str) -> list[dict[str, Any]]:
    """A row per group and method."""
    rows = []
    for group in groups:
        for method, predicted in _predicted(study, perturber, group).items():
            about = {"condition": condition, "method": method, "group": group.name}
            scores = scores_of(study, group, predicted, perturber.axes_)
            rows.append({**about, "donor": group.donor, "type": group.type, **scores})
    return rows


def _predicted(study: Study, perturber: CellPerturber, group: Group) -> dict[str, Float[np.ndarray, "controls genes"]]:
    """By each method; none says that there is less than nothing of a gene."""
    cells = study.values[group.control].astype(np.float64)
    known, same = perturber.shifts_, _same(perturber, group.perturbation)
    shifts, keys = known.values[same], known.keys[same, :PREDICTORS]
    alike = np.array([kind == group.type for kind in known.types])[same]
    mean = shifts.mean(0)
    simple = {
        "no change": np.zeros_like(mean),
        "mean shift": mean,
        "type shift": shifts[alike].mean(0) if alike.any() else mean,
        "linear": Ridge().fit(keys, shifts).predict(perturber.key(study, group)[None, :PREDICTORS])[0],
    }
    of_all = {OURS: perturber.predict(study, group)}
    of_all |= {name: np.maximum(cells + shift, 0) for name, shift in simple.items()}
    # Cells moved in principal components, and decoded: what these do not hold of a cell is lost.
    z = (cells - perturber.middle_) @ perturber.axes_ + scgen_shift(perturber, group.perturbation)
    of_all["scgen"] = np.maximum(perturber.middle_ + z @ perturber.axes_.T, 0)
    return of_all


def scgen_shift(perturber: CellPerturber, perturbation: str) -> Float[np.ndarray, " components"]:
    """Mean of the treated cells minus mean of the untreated ones, with cells of each type drawn equally often.

        delta = mean_t [ sum_g n'_g (k_g + s_g) / sum_g n'_g  -  sum_g n_g k_g / sum_g n_g ]

    over types t, and known groups g of a type under this perturbation (all, where it is not known): n_g untreated
    cells with mean k_g, and n'_g treated ones, whose mean is s_g from there. scGen has a variational autoencoder, and
    draws cells until types are balanced; here are principal components, in which this is a closed form.
    """
    known = perturber.shifts_
    same = _same(perturber, perturbation)
    types = np.array(known.types, dtype=object)
    shifts = known.values @ perturber.axes_
    deltas = []
    for kind in dict.fromkeys(types[same]):
        of = same & (types == kind)
        before, after = (known.numbers[of, i] for i in (0, 1))
        deltas.append(after @ (known.keys + shifts)[of] / after.sum() - before @ known.keys[of] / before.sum())
    return np.mean(deltas, 0)


def _same(perturber: CellPerturber, perturbation: str) -> Bool[np.ndarray, " groups"]:
    """Known groups under a perturbation; all, where there is none."""
    same = np.array([name == perturbation for name in perturber.shifts_.perturbations])
    return same if same.any() else np.ones_like(same)


def energy_distance(x: Float[Tensor, "n dim"], y: Float[Tensor, "m dim"]) -> Float[Tensor, ""]:
    """2 E|x - y| - E|x - x'| - E|y - y'|, pairs of a cell with itself left out of the last two.

    0 for two draws of one distribution, on average; negative values are chance (Szekely and Rizzo, "Energy statistics:
    a class of statistics based on distances", 2013).
    """
    across = torch.cdist(x, y).mean()
    within = [torch.cdist(a, a).sum() / max(len(a) * (len(a) - 1), 1) for a in (x, y)]
    return 2 * across - within[0] - within[1]


def scores_of(
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
