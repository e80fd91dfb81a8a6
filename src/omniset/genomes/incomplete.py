"""Genomes to learn from that are incomplete themselves: how much they lack, by what is said of their completeness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from omniset.genomes.calibration import Level
from omniset.genomes.metadata import WHOLE
from omniset.genomes.methods import References
from omniset.genomes.noise import NoiseModel
from omniset.genomes.training import Genomes
from omniset.report.blocks import many

LEAST = 0.05  # completeness, at least, that a genome is taken to have
EXPECTED = 0.99  # of organisms like it, at least this share has a family that a genome is expected to have
SINGLE = 0.9  # of the genomes that have it, at least this share has one copy of a family by which loss is measured


def known(completeness: Float[np.ndarray, " genomes"] | None) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness, 1 of whole genomes and where nothing is known; of others by how much they are less than
    whole, see `metadata.WHOLE`. None: all are taken for complete.
    """
    if completeness is None:
        return None
    less = np.nan_to_num(WHOLE / 100 - completeness).clip(0, 1 - LEAST)
    return 1 - less if less.any() else None


@torch.no_grad()
def lacking(genomes: Genomes, seed: int) -> float:
    """How much of what genomes are said to lack they do lack: the slope g, from 0 to 1, of

        share of the expected families that a genome lacks = a + g (1 - a) missed,

    missed the share of them that it would lack by its completeness, by least squares over the reference genomes.
    Families of several copies, whose copies may lie side by side and be lost together, do not tell. Completeness is
    measured on few markers: where a lineage has lost some, or an annotation misses some, all other families may be
    there.

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
        expected = (share >= EXPECTED) & (noise.copies[0] >= SINGLE)
        number = expected.sum(1).clamp(min=1)
        lacks = [~shown.present, 1 - noise.shows(shown.completeness)]
        shares[some.numpy()] = torch.stack([(expected * part).sum(1) / number for part in lacks], 1).numpy()
    lacked, missed = shares.T
    if np.ptp(itself) < 1e-3 or np.ptp(missed) < 1e-3:
        return 1.0
    slope, first = np.polyfit(missed, lacked, 1)
    return float(np.clip(slope / max(1 - first, 1e-6), 0, 1))


def corrected(itself: Float[np.ndarray, " genomes"] | None, lacking: float) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness, by how much of what they are said to lack they do lack."""
    return None if itself is None else 1 - lacking * (1 - itself)


def believed(genomes: Genomes, seed: int) -> tuple[Float[np.ndarray, " genomes"] | None, float]:
    """(genomes,) completeness as it is believed, and how much of what genomes are said to lack they do lack."""
    share = 0.0 if genomes.itself is None else lacking(genomes, seed)
    return corrected(genomes.itself, share), share


def notes(
    itself: Float[np.ndarray, " genomes"] | None,
    lacking: float,
    learned: Int[np.ndarray, " learned"],
    levels: Sequence[Level],
) -> list[str]:
    """How complete the genomes are that are learned from, and of which qualities a precision is known."""
    if itself is None:
        return []
    less = itself[learned] < 1
    found = [
        f"{less.sum():,} of {many(len(learned), 'genome')} to learn from are less than {WHOLE:g} % complete "
        f"themselves: they lack {100 * lacking:.0f} % of what that says, and it may be there all the same"
    ]
    told = {level.completeness for level in levels if any(level.added)}
    blank = sorted({level.completeness for level in levels} - told - {100.0}, reverse=True)  # nothing lacks at 100 %
    if blank:
        at = ", ".join(f"{completeness:g}" for completeness in blank)
        found.append(f"too few are complete enough to tell how often an addition is right at {at} %")
    return found
