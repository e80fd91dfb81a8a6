"""Maps of the brain that mean nothing and are as smooth: other nulls than rotations, with the hemispheres alike.

All are of several maps at once, which go through the same change, so that they stay as alike as they were.

Sources: Wagner and Dray, "Generating spatially constrained null models for irregularly spaced data using Moran spectral
randomization methods", 2015; Burt, Helmer, Shinn, Anticevic and Murray, "Generative modeling of brain maps with spatial
autocorrelation", 2020; Markello and Misic, "Comparing spatial null models for brain maps", 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial.distance import cdist

from omniset.regions.nulls import spins
from omniset.regions.splits import check_places, mirrored

KINDS = ("spin", "moran", "variogram")
TWIN = 5.0  # mm, the least distance in weights: twins have the same place
SHARES = np.arange(1, 10) / 10  # of the regions that a value is smoothed over
BINS = 20  # of distance, in a variogram
NEAR = 0.25  # quantile of the distances that a variogram is of

Maps = Float[np.ndarray, "regions maps"]


def surrogates(
    kind: str,
    maps: Maps,
    coordinates: Float[np.ndarray, "regions 3"],
    hemisphere: Sequence[str] | None,
    number: int,
    seed: int,
    groups: Sequence[str] | None = None,
) -> Iterator[Maps]:
    """So many surrogates of maps.

    Args:
        kind: "spin", rows by rotation (`omniset.regions.nulls.spins`); "moran" (`moran`); or "variogram" (`variogram`).
        coordinates, hemisphere, groups: Of the regions, as for `spins`.

    Raises:
        ValueError: An unknown kind, or as `spins` does.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if kind == "spin":
        yield from (maps[rows] for rows in spins(coordinates, hemisphere, number, seed, groups))
        return
    check_places(coordinates)
    make = {"moran": moran, "variogram": variogram}[kind]
    yield from make(maps, mirrored(coordinates), number, seed)


def moran(maps: Maps, places: Float[np.ndarray, "regions 3"], number: int, seed: int) -> Iterator[Maps]:
    """Moran spectral randomization: the sign of each spatial scale is drawn anew.

        X' = mean + V diag(s) V^T (X - mean),     s_k = 1 or -1

    V are the orthonormal eigenvectors of the centred weights C W C, W_ij = 1 / max(d_ij, 5 mm). The mean, the variance
    and Moran's I of every map are those of X, and so are the correlations of maps.
    """
    apart = np.maximum(cdist(places, places), TWIN)
    weights = 1 / apart
    np.fill_diagonal(weights, 0)
    centre = np.eye(len(places)) - 1 / len(places)
    _, vectors = np.linalg.eigh(centre @ weights @ centre)
    mean = maps.mean(0)
    parts = vectors.T @ (maps - mean)
    rng = np.random.default_rng(seed)
    for _ in range(number):
        signs = rng.choice([-1.0, 1.0], size=len(parts))
        turned = vectors @ (signs[:, None] * parts)
        yield mean + turned - turned.mean(0)


def variogram(maps: Maps, places: Float[np.ndarray, "regions 3"], number: int, seed: int) -> Iterator[Maps]:
    """Surrogates whose variogram is that of the map.

    Rows are permuted, all maps alike, and smoothed over the nearest regions with weights exp(-d / d_k), d_k the
    distance of the farthest of them; of shares of .1 to .9 of the regions each map takes the one that, as a + b
    gamma, comes nearest to the variogram gamma of the map by least squares, and X' = sqrt(b) smoothed + sqrt(a)
    noise. Departing from Burt et al., values are not put back by rank.
    """
    apart = cdist(places, places)
    edges = np.quantile(apart[np.triu_indices(len(places), 1)], np.linspace(0, NEAR, BINS + 1))
    bins = [(apart > low) & (apart <= high) for low, high in pairwise(edges)]
    bins = [one.astype(np.float64) for one in bins if one.any()]
    kernels = [_smoother(apart, share) for share in SHARES]
    wanted = variogram_of(maps, bins)
    rng = np.random.default_rng(seed)
    for _ in range(number):
        order = rng.permutation(len(maps))
        noise = rng.normal(size=len(maps))[:, None]
        best, least = np.empty_like(maps), np.full(maps.shape[1], np.inf)
        for kernel in kernels:
            smoothed = kernel @ maps[order]
            a, b, error = _fitted(variogram_of(smoothed, bins), wanted)
            better = error < least
            made = np.sqrt(b) * (smoothed - smoothed.mean(0)) + np.sqrt(a) * noise
            best[:, better], least[better] = made[:, better], error[better]
        yield best + maps.mean(0)


def variogram_of(maps: Maps, bins: Sequence[Float[np.ndarray, "regions regions"]]) -> Float[np.ndarray, "bins maps"]:
    """Mean of (x_i - x_j)^2 / 2 over the pairs of each bin."""
    return np.stack([(b.sum(1) @ maps**2 - (maps * (b @ maps)).sum(0)) / b.sum() for b in bins])


def _smoother(apart: Float[np.ndarray, "n n"], share: float) -> Float[np.ndarray, "n n"]:
    k = max(int(share * len(apart)), 2)
    farthest = np.maximum(np.sort(apart, 1)[:, k - 1 : k], 1e-9)
    weights = np.where(apart <= farthest, np.exp(-apart / farthest), 0)
    return weights / weights.sum(1, keepdims=True)


def _fitted(
    x: Float[np.ndarray, "bins maps"], y: Float[np.ndarray, "bins maps"]
) -> tuple[Float[np.ndarray, " maps"], Float[np.ndarray, " maps"], Float[np.ndarray, " maps"]]:
    """a, b >= 0 of a + b x by least squares, and the squared error."""
    centred = x - x.mean(0)
    spread = np.maximum(np.square(centred).sum(0), 1e-300)
    b = np.maximum((centred * (y - y.mean(0))).sum(0) / spread, 0)
    a = y.mean(0) - b * x.mean(0)
    through = (x * y).sum(0) / np.maximum(np.square(x).sum(0), 1e-300)
    b, a = np.where(a < 0, through, b), np.maximum(a, 0)
    return a, b, np.square(y - a - b * x).sum(0)


def file_spins(turned: Int[np.ndarray, "number regions"], maps: Maps) -> Iterator[Maps]:
    """Surrogates by spins made elsewhere."""
    yield from (maps[rows] for rows in turned)
