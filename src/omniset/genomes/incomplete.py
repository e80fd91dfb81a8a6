"""Genomes to learn from that are incomplete themselves: how much they lack, by what is said of their completeness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from omniset.genomes.calibration import Level
from omniset.genomes.methods import References
from omniset.genomes.noise import NoiseModel
from omniset.genomes.training import Genomes

LEAST = 0.05  # completeness, at least, that a genome is taken to have
FEWEST = 20  # genomes beside the first of their clade, at least, to compare genomes with those of their clade
EXPECTED = 0.99  # of organisms like it, at least this share has a family that a genome is expected to have


def known(completeness: Float[np.ndarray, " genomes"] | None) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness, 1 where nothing is known of it. None: all are taken for complete."""
    if completeness is None or not (completeness < 1).any():
        return None
    return np.where(np.isnan(completeness), 1.0, completeness.clip(LEAST))


@torch.no_grad()
def lacking(genomes: Genomes, seed: int) -> float:
    """How much of what genomes are said to lack they do lack: the slope g, from 0 to 1, of

        share of the expected families that a genome lacks = a + g (1 - a) missed,

    missed the share of them that it would lack by its completeness (for a family of one copy 1 - completeness), by
    least squares over the reference genomes, a of each clade its own: a lineage may have lost families that others like
    it have, and then more of them the fewer markers it has. Completeness is measured on these few, and where a lineage
    has lost some, or an annotation misses some, all other families may be there.

    Returns:
        1 where the genomes do not tell: all of the same completeness, or without expected families.
    """
    assert genomes.itself is not None
    rows = genomes.references
    counts, itself = genomes.counts[rows], genomes.itself[rows]
    noise, references = NoiseModel(counts.shape[1]), References(len(rows), counts.shape[1])
    noise.fit(counts, np.random.default_rng(seed), itself)
    references.fit(counts)
    shares = np.zeros((len(rows), 2))  # of expected families: lacking, and lacking by what completeness says
    for some, shown, _, share in references.of_others(noise, itself, np.arange(len(rows))):
        expected = share >= EXPECTED
        number = expected.sum(1).clamp(min=1)
        lacks = [~shown.present, 1 - noise.shows(shown.completeness)]
        shares[some.numpy()] = torch.stack([(expected * part).sum(1) / number for part in lacks], 1).numpy()
    lacked, missed = shares.T
    if np.ptp(itself) < 1e-3 or np.ptp(missed) < 1e-3:
        return 1.0
    _, clade = np.unique(genomes.clades.groups[rows], return_inverse=True)
    if len(rows) - clade.max() < FEWEST:  # they are hardly any clades
        clade = np.zeros(len(rows), dtype=np.int64)
    y, x = (values - (np.bincount(clade, values) / np.bincount(clade))[clade] for values in (lacked, missed))
    slope = (x * y).sum() / max((x * x).sum(), 1e-12)
    first = lacked.mean() - slope * missed.mean()
    return float(np.clip(slope / max(1 - first, 1e-6), 0, 1))


def corrected(itself: Float[np.ndarray, " genomes"] | None, lacking: float) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness, by how much of what they are said to lack they do lack."""
    return None if itself is None else 1 - lacking * (1 - itself)


def notes(
    itself: Float[np.ndarray, " genomes"] | None,
    lacking: float,
    learned: Int[np.ndarray, " learned"],
    levels: Sequence[Level],
) -> list[str]:
    """How complete the genomes are that are learned from, and of which qualities a precision is known."""
    if itself is None:
        return []
    low, middle = (100 * np.quantile(itself[learned], share) for share in (0.05, 0.5))
    found = [
        f"genomes that are learned from are {middle:.4g} % complete themselves in the median, one in twenty at most "
        f"{low:.4g} %: they lack {100 * lacking:.0f} % of what that says, which may be there all the same"
    ]
    told = {level.completeness for level in levels if any(level.added)}
    blank = sorted({level.completeness for level in levels} - told - {100.0}, reverse=True)  # nothing lacks at 100 %
    if blank:
        at = ", ".join(f"{completeness:g}" for completeness in blank)
        found.append(f"too few are complete enough to tell how often an addition is right at {at} %")
    return found
