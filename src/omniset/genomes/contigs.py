"""Foreign contigs, where a file says on which contig each gene lies: all families of a contig are judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int

from omniset.genomes.calibration import PerFamily
from omniset.genomes.noise import NoiseModel, Observed
from omniset.genomes.readers import Genome

TRUST = 0.5  # of the sum over the families of a contig, which are not independent
LEAST = 1e-3  # contamination, at least: no assembly is quite clean
FOREIGN = 0.5  # probability from which on a contig is taken out


def foreign_share(
    contigs: Sequence[Int[np.ndarray, " _"]],
    log_odds: PerFamily,
    prevalence: PerFamily,
    completeness: float,
    contamination: float,
) -> Float[np.ndarray, " contigs"]:
    """(contigs,) probability that each is foreign.

    A gene of the genome itself is of family v with probability p_v / Σ p, p what is said of the genome without the
    observation of v; a foreign one with probability π_v / Σ π, π the prevalence. So the log-odds of "own" are

        t Σ_v log((p_v / Σ p) / (π_v / Σ π)) + log(c / q),   v the families on the contig, t = 1/2.

    Args:
        contigs: Families on each.
        log_odds: Of p.
        completeness, contamination: c and q, as shares.
    """
    own = 1 / (1 + np.exp(-log_odds))
    ratio = np.log(np.clip(own, 1e-4, 1) / own.sum()) - np.log(prevalence / prevalence.sum())
    sums = np.array([ratio[families].sum() for families in contigs])
    return 1 / (1 + np.exp(TRUST * sums + np.log(completeness / max(contamination, LEAST))))


def judged(
    genomes: Sequence[Genome],
    batch: Observed,
    log_odds: Float[np.ndarray, "genomes families"],
    noise: NoiseModel,
    position: dict[str, int],
) -> list[dict[str, float]]:
    """For each genome the probability that each of its contigs is foreign; empty where no contigs are told.

    Args:
        log_odds: That were found, the evidence of the observations included.
        position: Of each family in the vocabulary.
    """
    settled = noise.settle(batch)[0]
    without = log_odds - noise.evidence(settled).double().cpu().numpy()
    prevalence = noise.prevalence.double().cpu().numpy()
    shares = []
    for row, genome in enumerate(genomes):
        known = [[position[family] for family in on if family in position] for on in genome.contigs.values()]
        places = [np.array(families, dtype=np.int64) for families in known]
        quality = float(settled.completeness[row]), float(settled.contamination[row])
        found = foreign_share(places, without[row], prevalence, *quality) if places else np.zeros(0)
        shares.append(dict(zip(genome.contigs, found.tolist(), strict=True)))
    return shares


def without_foreign(
    genomes: Sequence[Genome], batch: Observed, shares: Sequence[dict[str, float]], position: dict[str, int]
) -> Observed | None:
    """What is left of the genomes without foreign contigs; None where there are none. Contamination falls by what was
    taken out.
    """
    counts, contamination = batch.counts.clone(), batch.contamination.clone()
    for row, (genome, share) in enumerate(zip(genomes, shares, strict=True)):
        before = float(counts[row].sum())
        for contig in (contig for contig, foreign in share.items() if foreign >= FOREIGN):
            for family, copies in genome.contigs[contig].items():
                if family in position:
                    counts[row, position[family]] -= copies
        gone = before - float(counts[row].sum())
        complete = before / float((batch.completeness[row] + contamination[row]).clamp(min=1e-3))
        contamination[row] = (contamination[row] - gone / max(complete, 1.0)).clamp(min=0)
    return None if torch.equal(counts, batch.counts) else replace(batch, counts=counts, contamination=contamination)
