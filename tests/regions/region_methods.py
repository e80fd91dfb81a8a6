"""Regions for tests of methods, and what these are compared with: loops, and statistics by hand."""

import itertools
import math

import numpy as np
import pandas as pd

from omniset.regions.data import Regions
from omniset.regions.evaluate import PARTS, Evaluation
from omniset.regions.scores import scores

REGIONS, GENES = 23, 13
UNKNOWN = ((0, 3), (2, 8), (15, 4))
TRAIN = np.delete(np.arange(REGIONS), [1, 6, 7, 12, 18, 22])


def brain_of(number=REGIONS, genes=GENES, seed=0, placed=True, directed=False, alike=1.0, unknown=((0, 3),)):
    """Connectivity of distance, of the likeness of three genes, and a little noise."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    expression = rng.random((number, genes)).astype(np.float32)
    side = expression[:, :3] - 0.5
    noise = 0.02 * rng.normal(size=(number, number))
    values = 0.4 * np.exp(-np.linalg.norm(places[:, None] - places, axis=2) / 40) + alike * side @ side.T
    values += noise + 0.3 * side[:, :1] if directed else noise + noise.T
    np.fill_diagonal(values, np.nan)
    for i, j in unknown:
        values[i, j] = values[j, i] = np.nan
    return Regions(
        [f"region {i}" for i in rng.permutation(number)],
        [f"G{g}" for g in range(genes)],
        expression,
        places if placed else None,
        hemisphere=["L" if x < 0 else "R" for x in places[:, 0]] if placed else None,
        connectivity=values,
        directed=directed,
    )


def regions_of(number=REGIONS, missing=True, unknown=(), **options):
    """As `brain_of`, with expression that is missing."""
    made = brain_of(number, unknown=unknown, **options)
    if missing:
        made.expression[[3, 7], [5, 2]] = made.expression[11] = np.nan
    return made


def made_up(noise, regions, folds=2, level=0.0):
    """An evaluation of two seeds whose predictions are the truth and so much noise, by method.

    Args:
        level: By which predictions differ between a fold and the next.
    """
    rng = np.random.default_rng(0)
    fold_of = np.stack([rng.permutation(np.arange(len(regions)) % folds) for _ in range(2)])
    within = fold_of[:, :, None] == fold_of[:, None]
    predictions, rows = {}, []
    for method, size in noise.items():
        wrong = size * rng.normal(size=within.shape)
        wrong = regions.connectivity + wrong + wrong.transpose(0, 2, 1) + level * fold_of[:, None]
        predictions[method] = np.where(within, wrong, np.nan)
    made = Evaluation(pd.DataFrame(), [], predictions, fold_of, regions, "spatial")
    for method, seed, fold in itertools.product(noise, range(2), range(folds)):
        pairs = made.tested(seed)
        i, j = pairs[fold_of[seed][pairs[:, 0]] == fold].T
        about = {"seed": seed, "fold": fold, "method": method, "seconds": 1.0 + fold, **dict.fromkeys(PARTS, math.nan)}
        rows.append(about | scores(regions.connectivity[i, j], predictions[method][seed, i, j]))
    made.by_fold = pd.DataFrame(rows)
    return made


def squared(a, b):
    return np.array([[sum((x - y) ** 2) for y in b] for x in a])


def every_pair(number, directed=True):
    return np.array([(i, j) for i in range(number) for j in range(number) if i != j and (directed or i < j)])


def pairs_once(number):
    return every_pair(number, directed=False)


def standardised(values, train):
    """Column by column, over what is known of the training rows."""
    found = np.zeros(values.shape)
    for g, column in enumerate(np.asarray(values, dtype=float).T):
        known = column[train][~np.isnan(column[train])]
        if len(set(known)) > 1:
            found[:, g] = [0 if np.isnan(x) else (x - np.mean(known)) / np.std(known) for x in column]
    return found
