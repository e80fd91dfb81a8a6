"""Which features mattered: means of the increase of a loss, with intervals, beside what chance gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Float64, Shaped

from omniset.trials.intervals import Draws, Resampling

ALPHA = 0.05
DRAWN = 5_000  # choices of the null, of which the one that was made is one; all of them where they are fewer
BLOCK = 1 << 22  # numbers in one block of choices
ROUNDING = 1e-12

NAMED = 5  # features in a sentence
COLUMNS = ("target", "feature", "importance", "low", "high", "p", "threshold", "units")


@dataclass
class Tested:
    """Sums over units, each beside the largest of all columns that chance gives."""

    p: Float64[np.ndarray, " columns"]  # of each column, adjusted for the number of columns
    # The sum that a column has to exceed for p < 0.05; NaN where none is enough: of too few units, or of zeros.
    threshold: Float64[np.ndarray, " columns"]


def randomised(increases: Float[np.ndarray, "units repeats columns"], seed: int = 0, folds: int = 1) -> Tested:
    """Whether sums over units of the mean of repeats are above 0 by more than chance, column by column.

    l_urf is the loss of unit u when column f was exchanged for the r-th time, r = 1, ..., R, and l_u0f when it was not;
    `increases` are l_urf - l_u0f. If the column means nothing, each of these R + 1 losses could as well be the one of
    the values as they are. With a choice c of one for each unit, the same for all columns, so that what columns share
    is kept,

        d_uf(c) = 1 / R sum_{r != c_u} l_urf - l_{u c_u f}
        T_f(c) = sum_u d_uf(c) / s_f,    s_f^2 = sum_u mean_r d_uf(r)^2,    p_f = share of c with max_g T_g(c) >= T_f(0)

    where 0 chooses the values as they are. This is Fisher's randomisation; of one repeat it flips the signs of d_uf.
    The maximum over the columns keeps the chance that any of them has p < 0.05 by chance below 0.05. Where there are at
    most 5,000 choices, c runs through all; else through 5,000 drawn ones, 0 among them. A column of zeros has p = 1.

    In J folds, each left out by what learned from the others, T_f(0) is taken (J - 1) / J times. With s_k what fold k
    says by chance of a column, in standard deviations, and z = sum_k s_k / J^(1/2), a linear method gains
    sum_k s_k sum_{j != k} s_j, about J (z^2 - 1), in all folds by the same chance, while c has the deviation (J - 1) z.
    So T is J / (J - 1) (z - 1 / z) of these, which without the factor exceeds z where z is large.

    Sources: Fisher, "The design of experiments", 1935; Westfall and Young, "Resampling-based multiple testing", 1993.
    """
    units, repeats, columns = increases.shape
    if not columns:
        return Tested(np.zeros(0), np.zeros(0))
    losses = np.concatenate([np.zeros((units, 1, columns)), increases], 1)
    chosen = (losses.mean(1, keepdims=True) - losses) * (repeats + 1) / repeats  # d_uf(c) by c_u
    spread = np.sqrt(np.square(chosen).mean(1).sum(0))
    scaled = np.divide(chosen, spread, out=np.zeros(chosen.shape), where=spread > 0)
    each = [choices @ scaled.reshape(-1, columns) for choices in _choices(units, repeats + 1, columns, seed)]
    kept = (folds - 1) / folds if folds > 1 else 1.0
    seen, largest = kept * each[0][0], np.sort(np.concatenate([of_choice.max(1) for of_choice in each]))
    reached = len(largest) - np.searchsorted(largest, seen - ROUNDING)
    tolerated = int(np.ceil(ALPHA * len(largest))) - 1  # choices that may reach as much for p < ALPHA
    bound = largest[-1 - tolerated] if tolerated else np.nan
    return Tested(reached / len(largest), np.where(spread > 0, bound * spread / kept, np.nan))


def _choices(units: int, among: int, columns: int, seed: int) -> Iterator[Float64[np.ndarray, "choices entries"]]:
    """Some at a time, 0 first: 1 at the entry (unit, what is chosen of it), else 0."""
    number = among**units if units * np.log(among) <= np.log(DRAWN) else DRAWN
    exact = number < DRAWN
    size = max(BLOCK // max(units * among, columns), 1)
    rng = np.random.default_rng(seed)
    for start in range(0, number, size):
        places = np.arange(start, min(start + size, number))
        if exact:
            chosen = places[:, None] // among ** np.arange(units) % among
        else:
            chosen = rng.integers(0, among, (len(places), units))
            chosen[places == 0] = 0
        yield np.eye(among)[chosen].reshape(len(places), -1)


def table_of(
    increases: Float[np.ndarray, "sets repeats targets features"],
    units: Shaped[np.ndarray, " sets"],
    targets: Sequence[str],
    features: Sequence[Any],
    seed: int = 0,
    blocks: Shaped[np.ndarray, " sets"] | None = None,
    folds: int = 1,
) -> pd.DataFrame:
    """Importances of features, target by target, the largest first.

    Args:
        increases: Of the loss of each set, each time the feature was exchanged.
        units: Sets of one unit depend on each other: units are drawn again.
        blocks: What the null chooses for, of one or more units. Default: units.

    Returns:
        `target`, `feature`; `importance`, the mean over sets; `low` and `high`, its 95 % interval; `p`, the chance of
        so much under the null of `randomised`, adjusted for all features of the target; `threshold`, which the
        importance has to exceed for p < 0.05; `units`, how many there are.
    """
    resampling, tables = Resampling(units, seed=seed), []
    of_set = np.unique(units if blocks is None else blocks, return_inverse=True)[1]
    for number, target in enumerate(targets):
        of_sets = increases[:, :, number]
        of_blocks = np.zeros((of_set.max(initial=-1) + 1, *of_sets.shape[1:]))
        np.add.at(of_blocks, of_set, of_sets)
        tested = randomised(of_blocks, seed, folds)
        intervals = [resampling.estimate(partial(Draws.mean, values=values)) for values in of_sets.mean(1).T]
        ends = [(interval.value, interval.low, interval.high) for interval in intervals]
        table = pd.DataFrame(ends, columns=["importance", "low", "high"], dtype=np.float64)
        table = table.assign(target=target, feature=[*features], p=tested.p, units=resampling.units)
        table["threshold"] = tested.threshold / len(of_sets)
        order = np.argsort(-table["importance"].to_numpy(), kind="stable")
        tables.append(table.iloc[order])
    return pd.concat(tables, ignore_index=True)[[*COLUMNS]]


def in_words(table: pd.DataFrame, unit: str = "set") -> list[str]:
    """What a table of importances says: a sentence for each target.

    >>> one = dict(target="y", importance=0.1, low=0.0, high=0.2, threshold=0.05, units=31)
    >>> in_words(pd.DataFrame([dict(feature="a", p=0.001, **one), dict(feature="b", p=0.2, **one)]))[0][:44]
    'y: 1 of 2 features matters by itself (a; adj'
    """
    sentences = []
    for target, rows in table.groupby("target", sort=False):
        matter = [str(name) for name in rows.loc[rows["p"] < ALPHA, "feature"]]
        if matter:
            named = ", ".join(matter[:NAMED]) + (", ..." if len(matter) > NAMED else "")
            words = "matters by itself" if len(matter) == 1 else "matter by themselves"
            claim = f"{len(matter)} of {len(rows)} features {words} ({named}; adjusted p < {ALPHA}); features that go "
            claim += "together share their importance"
        elif (rows["importance"] != 0).any() and not np.isfinite(rows["threshold"]).any():
            claim = f"no feature can be told from chance: there are only {rows['units'].iloc[0]} {unit}s"
        else:
            claim = (
                f"no feature alone matters (adjusted p >= {ALPHA}); features that go together can stand in for each "
            )
            claim += "other, so that none of them is needed by itself"
        sentences.append(f"{target}: {claim}")
    return sentences
