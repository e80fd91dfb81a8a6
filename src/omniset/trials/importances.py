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
EXACT = 12  # units up to which all sign flips are looked at
FLIPS = 5_000  # of more units, the one that changes nothing among them
BLOCK = 1 << 22  # numbers in one block of flips
ROUNDING = 1e-12

NAMED = 5  # features in a sentence
COLUMNS = ("target", "feature", "importance", "low", "high", "p", "threshold", "units")


@dataclass
class Tested:
    """Sums over units, each beside the largest of all columns that sign flips give.

    Attributes:
        p: Of each column, adjusted for the number of columns.
        threshold: The sum that a column has to exceed for p < 0.05; NaN where none is enough: of too few units, or
            of zeros.
    """

    p: Float64[np.ndarray, " columns"]
    threshold: Float64[np.ndarray, " columns"]


def sign_flips(values: Float[np.ndarray, "units columns"], seed: int = 0) -> Tested:
    """Whether sums over units are above 0 by more than chance, column by column.

    If a column means nothing, each of its values d_uf is as likely as -d_uf. With signs s_u = +1 or -1, the same for
    all columns of a unit, so that what columns share is kept,

        T_f(s) = sum_u s_u d_uf / sqrt(sum_u d_uf^2),       p_f = share of all s with  max_g T_g(s) >= T_f(1)

    1 being the signs as they are. The root is the same for all s, so that ordering by T is ordering by Student's t. The
    maximum over the columns keeps the chance that any of them has p < 0.05 by chance below 0.05. With up to 12 units s
    runs through all 2^units signs, else through 5,000 drawn ones, 1 among them. A column of zeros has p = 1.

    Sources: Fisher, "The design of experiments", 1935; Westfall and Young, "Resampling-based multiple testing", 1993.
    """
    columns = values.shape[1]
    spread = np.sqrt(np.square(values).sum(0))
    scaled = np.divide(values, spread, out=np.zeros(values.shape), where=spread > 0)
    if not columns:
        return Tested(np.zeros(0), np.zeros(0))
    largest = np.concatenate([(signs @ scaled).max(1) for signs in _signs(len(values), columns, seed)])
    largest = np.sort(largest)[::-1]
    reached = len(largest) - np.searchsorted(largest[::-1], scaled.sum(0) - ROUNDING)
    tolerated = int(np.ceil(ALPHA * len(largest))) - 1  # flips that may reach as much for p < ALPHA
    bound = largest[tolerated] if tolerated else np.nan
    return Tested(reached / len(largest), np.where(spread > 0, bound * spread, np.nan))


def _signs(units: int, columns: int, seed: int) -> Iterator[Float64[np.ndarray, "flips units"]]:
    """Some at a time; those that change nothing come first."""
    size = max(BLOCK // max(units, columns), 1)
    number = 2**units if units <= EXACT else FLIPS
    rng = np.random.default_rng(seed)
    for start in range(0, number, size):
        places = np.arange(start, min(start + size, number))
        if units <= EXACT:
            flipped = (places[:, None] >> np.arange(units)) & 1
        else:
            flipped = rng.integers(0, 2, (len(places), units))
            flipped[places == 0] = 0
        yield 1.0 - 2.0 * flipped


def table_of(
    increases: Float[np.ndarray, "sets targets features"],
    units: Shaped[np.ndarray, " sets"],
    targets: Sequence[str],
    features: Sequence[Any],
    seed: int = 0,
) -> pd.DataFrame:
    """Importances of features, target by target, the largest first.

    Args:
        increases: Of the loss of each set, where the feature is permuted.
        units: Sets of one unit depend on each other: it is units whose signs are flipped, and that are drawn again.

    Returns:
        `target`, `feature`; `importance`, the mean over sets; `low` and `high`, its 95 % interval; `p`, the chance of
        so much under the null of `sign_flips`, adjusted for all features of the target; `threshold`, which the
        importance has to exceed for p < 0.05; `units`, how many there are.
    """
    resampling = Resampling(units, seed=seed)
    tables = []
    for number, target in enumerate(targets):
        of_sets = increases[:, number]
        of_units = np.zeros((resampling.units, len(features)))
        np.add.at(of_units, resampling.codes, of_sets)
        tested = sign_flips(of_units, seed)
        intervals = [resampling.estimate(partial(Draws.mean, values=values)) for values in of_sets.T]
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
            said = f"{len(matter)} of {len(rows)} features {words} ({named}; adjusted p < {ALPHA}); features that go "
            said += "together share what they matter"
        elif (rows["importance"] != 0).any() and not np.isfinite(rows["threshold"]).any():
            said = f"no feature can be told from chance: there are only {rows['units'].iloc[0]} {unit}s"
        else:
            said = f"no feature alone matters (adjusted p >= {ALPHA}); features that go together can stand in for each "
            said += "other, so that none of them is needed by itself"
        sentences.append(f"{target}: {said}")
    return sentences
