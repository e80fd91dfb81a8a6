"""Regions for tests of methods, and what these are compared with: loops, and statistics by hand."""

import numpy as np
import pandas as pd

from omniset.regions.data import Regions

REGIONS, GENES = 23, 13
UNKNOWN = ((0, 3), (2, 8), (15, 4))
TRAIN = np.delete(np.arange(REGIONS), [1, 6, 7, 12, 18, 22])


def regions_of(number=REGIONS, genes=GENES, directed=False, seed=0, missing=True, unknown=()):
    """Connectivity that depends on places and genes; some expression is missing, some pairs are not known."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    expression = rng.random((number, genes))
    connectivity = np.exp(-squared(places, places) / 5000) + rng.normal(scale=0.2, size=(number, number))
    connectivity += expression[:, :1] * expression[:, 1]
    if not directed:
        connectivity = connectivity + connectivity.T
    np.fill_diagonal(connectivity, np.nan)
    if missing:
        expression[3, 5] = expression[7, 2] = np.nan
        expression[11] = np.nan
    for i, j in unknown:
        connectivity[i, j] = connectivity[j, i] = np.nan
    names = [f"region {i}" for i in rng.permutation(number)]
    return Regions(
        names,
        [f"G{g}" for g in range(genes)],
        expression.astype(np.float32),
        coordinates=places,
        connectivity=connectivity,
        directed=directed,
    )


def brain_of(number=REGIONS, genes=GENES, seed=0, placed=True, directed=False, alike=1.0, unknown=(0, 3)):
    """Connectivity of distance, of the likeness of three genes, and a little noise."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    expression = rng.random((number, genes)).astype(np.float32)
    side = expression[:, :3] - 0.5
    noise = 0.02 * rng.normal(size=(number, number))
    values = 0.4 * np.exp(-np.linalg.norm(places[:, None] - places, axis=2) / 40) + alike * side @ side.T
    values += noise + 0.3 * side[:, :1] if directed else noise + noise.T
    np.fill_diagonal(values, np.nan)
    if unknown:
        values[unknown] = values[unknown[::-1]] = np.nan
    return Regions(
        [f"region {i}" for i in rng.permutation(number)],
        [f"G{g}" for g in range(genes)],
        expression,
        places if placed else None,
        hemisphere=["L" if x < 0 else "R" for x in places[:, 0]] if placed else None,
        connectivity=values,
        directed=directed,
    )


def write(made, folder):
    """The three tables that `omniset regions simulate` writes."""
    folder.mkdir(exist_ok=True)
    index = pd.Index(made.names, name="region")
    places = pd.DataFrame(made.coordinates, index, ["x", "y", "z"])
    pd.DataFrame(made.expression, index, made.genes).to_csv(folder / "expression.csv")
    pd.DataFrame(made.connectivity, index, made.names).to_csv(folder / "connectivity.csv")
    places.assign(hemisphere=made.hemisphere, network=made.network).to_csv(folder / "regions.csv")


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
