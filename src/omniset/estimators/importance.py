"""Permutation importance of features: how much worse a model predicts sets when a feature tells it nothing.

For a model f, set X_i with label y_i, and X_i^(jr) the set with the values of feature j from another set, its donor,
which is another one each time, r = 1, ..., R,

    d_ij = 1 / R sum_r loss(y_i, f(X_i^(jr))) - loss(y_i, f(X_i)),        importance of j = mean over sets i of d_ij

The sets are ones that f has not learned from. Beside each importance there is its 95 % interval over sets, or groups of
sets, and what chance gives (`omniset.trials.importances`): if feature j is independent of all else, its own values give
a set no other loss than those of another set. So the R + 1 donors of a set, itself among them, are of different units.

For each element n of set i a row k of its donor is drawn, by multiplicity,

    x'_inf = x_jkf,        P(k) = m_jk / M_j,        M_j = sum_k m_jk

so that the joint distribution over the elements of all other features, their multiplicities, and the size of the set
stay, and what is cut is the tie of feature f to them and to the label. The elements, in random order, divide the
interval from 0 to M_j, turned by a random amount, among themselves as their multiplicities are: of two sets of as many
single elements the values are the very same. Empty sets neither give nor get. Whatever is drawn depends on the seed and
on the rank of the set among the names of all sets, not on its place.

Importance is that of a feature alone: of two that say the same, either can stand in for the other.

Sources: Breiman, "Random forests", 2001; Fisher, Rudin and Dominici, "All models are wrong, but many are useful", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets, batched
from omniset.core.stored import StoredSet
from omniset.estimators.mixture import TOGETHER
from omniset.runs.progress import Progress
from omniset.trials.importances import table_of

REPEATS = 5
FEW = 8  # units in a trial, below which the null chooses for all of them together
READ = 1 << 28  # numbers that are read anew, over all features, up to which values are exchanged more than once
READ_AT_ONCE = 1 << 22  # numbers of one set
NUMBERS = 1 << 24  # in some features of some sets, that are held at once
CHEAP = 5_000  # features times sets up to which `fit` measures importance without being asked

Outputs = Float64[np.ndarray, "sets outputs"]
Losses = Callable[[Outputs, Int[np.ndarray, " rows"]], Float64[np.ndarray, "rows targets"]]
# What a model says of sets, and the positions of those that it has not seen.
Trial = tuple[Callable[[Sequence[StoredSet]], Outputs], Int[np.ndarray, " _"]]


@dataclass
class Task:
    """What is measured.

    Attributes:
        losses: Of what is said of some sets, and their positions.
        units: Of each set a number; sets of one depend on each other.
        ranks: Of each set among the names of all.
        totals: Elements of each set, with their copies.
        max_elements: That are predicted at once.
    """

    sets: Sets
    losses: Losses
    units: Int[np.ndarray, " sets"]
    ranks: Int[np.ndarray, " sets"]
    totals: Float64[np.ndarray, " sets"]
    repeats: int
    seed: int
    max_elements: int
    progress: bool

    @classmethod
    def of(cls, sets: Sets, losses: Losses, groups: Shaped[np.ndarray, " sets"] | None, **how: Any) -> Task:
        """`how` is the last four attributes."""
        names, ranks = np.unique(np.array([str(name) for name in sets.names], dtype=object), return_inverse=True)
        ranks = ranks if len(names) == len(sets) else np.arange(len(sets))  # places, where a name is there twice
        units = ranks if groups is None else np.unique(groups.astype(str), return_inverse=True)[1]
        totals = np.array([counts_of(sets[i]).sum() for i in range(len(sets))])
        return cls(sets, losses, units, ranks, totals, **how)

    def donors(self, rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " donors"]:
        """Sets that may give values to these, which a model has not seen: the same; if they are of one unit, any."""
        full = np.flatnonzero(self.totals > 0)
        there = np.intersect1d(rows, full)
        return there if len(np.unique(self.units[there])) > 1 else full


def wanted(asked: bool | None, sets: Sets) -> bool:
    """Whether `fit` of a mixture measures importance."""
    return len(sets) * sets.dim <= CHEAP if asked is None else asked


def exchanges(sets: Sets) -> int:
    """How often values are exchanged where the user does not say: less often of much."""
    read = sets.dim**2 * float(sets.sizes.sum())
    return int(np.clip(READ // max(read, 1.0), 1, REPEATS))


def measured(task: Task, trials: Sequence[Trial], targets: Sequence[str]) -> pd.DataFrame:
    """The table of importances, each set in one trial at most.

    The null chooses for units, but for all of a trial together where these are fewer than 8: there what one unit loses
    another gains, as each has the values of the other.
    """
    sets = task.sets
    others = min(len(np.unique(task.units[task.donors(rows)])) for _, rows in trials) - 1
    repeats = max(min(task.repeats, others), 1)
    increases = np.zeros((len(sets), repeats, len(targets), sets.dim))
    blocks = np.full(len(sets), -1)
    steps = repeats * sets.dim * sum(len(rows) for _, rows in trials)
    with Progress("importance of features", steps, task.progress, "sets") as progress:
        done = 0
        for number, (says, rows) in enumerate(trials):
            seed = [task.seed, number]
            sizes = [len(group) for group in batched((sets[int(i)] for i in rows), TOGETHER, task.max_elements)]
            groups = np.split(rows, np.cumsum(sizes)[:-1])
            said = [says([sets[int(i)] for i in group]) for group in groups]
            drawn = donors_of(task.donors(rows), task.units, task.ranks, repeats, np.random.default_rng(seed))
            for repeat, donors in enumerate(drawn):
                for group, before in zip(groups, said, strict=True):
                    losses = task.losses(before, group)
                    for place, exchanged in _exchanged(task, donors, group, [*seed, repeat]):
                        if exchanged is not None:
                            increase = task.losses(says(exchanged), group) - losses
                            increases[group, repeat, :, place] = increase
                        done += len(group)
                        progress.at(done)
            few = len(np.unique(task.units[rows])) < FEW
            blocks[rows] = number if few else len(trials) + task.units[rows]
    looked = blocks >= 0
    features = sets.features or [*range(sets.dim)]
    how: dict[str, Any] = {"seed": task.seed, "blocks": blocks[looked], "folds": len(trials)}
    return table_of(increases[looked], task.units[looked], targets, features, **how)


# ---------------------------------------------------------------------- what is exchanged


class Replaced:
    """The elements of a set with another column (omniset.core.stored.Rows)."""

    def __init__(self, stored: StoredSet, feature: int, column: Shaped[Tensor, " elements"]) -> None:
        self.stored, self.feature, self.column = stored, feature, column
        self.shape = (len(stored), int(stored.elements.shape[1]))

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice) -> Shaped[Tensor, "rows dim"]:
        start, stop, _ = rows.indices(len(self))
        elements = self.stored.read(start, stop - start)[0].clone()
        elements[:, self.feature] = self.column[start:stop]
        return elements


def replaced(stored: StoredSet, feature: int, column: Shaped[Tensor, " elements"]) -> StoredSet:
    counts = torch.from_numpy(counts_of(stored)).float()
    return StoredSet(Replaced(stored, feature, column), counts, 0, len(stored), stored.name)


def _exchanged(
    task: Task, donors: dict[int, int], group: Int[np.ndarray, " group"], seed: Sequence[int]
) -> Iterator[tuple[int, list[StoredSet] | None]]:
    """For each feature its place, and the sets with the values of their donors; None where these are the same."""
    pairs: list[tuple[StoredSet, StoredSet, Tensor | None]] = []
    for i in group.tolist():
        stored, donor, rows = task.sets[i], task.sets[donors.get(i, i)], None
        if donors.get(i, i) != i:
            rng = np.random.default_rng([*seed, int(task.ranks[i]) + 1])
            rows = torch.from_numpy(drawn_rows(counts_of(stored), counts_of(donor), rng))
        pairs.append((stored, donor, rows))
    width = max(NUMBERS // max(sum(len(stored) for stored, _, _ in pairs), 1), 1)
    for start in range(0, task.sets.dim, width):
        block = range(start, min(start + width, task.sets.dim))
        before = [columns_of(stored, block) for stored, _, _ in pairs]
        given = [
            x if rows is None else columns_of(donor, block)[rows]
            for x, (_, donor, rows) in zip(before, pairs, strict=True)
        ]
        for at, feature in enumerate(block):
            columns = [z[:, at] for z in given]
            same = all(torch.equal(x[:, at], z) for x, z in zip(before, columns, strict=True))
            of_pairs = zip(pairs, columns, strict=True)
            yield feature, None if same else [replaced(stored, feature, z) for (stored, _, _), z in of_pairs]


def donors_of(
    there: Int[np.ndarray, " there"],
    units: Int[np.ndarray, " sets"],
    ranks: Int[np.ndarray, " sets"],
    repeats: int,
    rng: np.random.Generator,
) -> list[dict[int, int]]:
    """Each time the donor of each of the sets `there`; all others keep their values.

    Their units stand in a circle, in random order. The donors of a time are the sets of the unit so many places
    further, another random number each time, in random order, again from the first where they are fewer. Repeats are
    fewer than units, so that all donors of a set are of different units, and none of its own.
    """
    there = there[np.argsort(ranks[there], kind="stable")]
    _, unit = np.unique(units[there], return_inverse=True)
    drawn = rng.permutation(len(there))
    members = np.split(there[drawn[np.argsort(unit[drawn], kind="stable")]], np.cumsum(np.bincount(unit))[:-1])
    circle, donors = rng.permutation(len(members)), []
    for places in 1 + rng.permutation(len(members) - 1)[:repeats]:
        pairs = zip(circle, np.roll(circle, -places), strict=True)
        given = [(members[one], np.resize(members[further], len(members[one]))) for one, further in pairs]
        donors.append({int(i): int(j) for mine, theirs in given for i, j in zip(mine, theirs, strict=True)})
    return donors


def drawn_rows(
    counts: Float64[np.ndarray, " elements"], theirs: Float64[np.ndarray, " rows"], rng: np.random.Generator
) -> Int[np.ndarray, " elements"]:
    """For each element a row of the donor, see above, by the multiplicities of both."""
    mine, order = rng.permutation(len(counts)), rng.permutation(len(theirs))
    place = np.empty(len(counts))
    place[mine] = (counts[mine].cumsum() - counts[mine]) / counts.sum()
    bounds = theirs[order].cumsum()
    at = np.searchsorted(bounds, (place + rng.random()) % 1 * bounds[-1], side="right")
    return order[np.minimum(at, np.flatnonzero(theirs[order])[-1])]


def columns_of(stored: StoredSet, features: Sequence[int]) -> Float32[Tensor, "elements features"]:
    """Some features of a set, which is read in pieces."""
    size = max(READ_AT_ONCE // max(int(stored.elements.shape[1]), 1), 1)
    parts = [stored.read(start, size)[0][:, [*features]] for start in range(0, max(len(stored), 1), size)]
    return torch.cat(parts).float()


def counts_of(stored: StoredSet) -> Float64[np.ndarray, " elements"]:
    """The multiplicities of a set."""
    return stored.multiplicity[stored.start : stored.stop].double().numpy()
