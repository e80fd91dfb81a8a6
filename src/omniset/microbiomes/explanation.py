"""Which other members of a sample moved the call of one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.special import log_softmax, softmax

from omniset.microbiomes.calibration import Trust
from omniset.microbiomes.candidates import Candidates
from omniset.microbiomes.samples import Samples
from omniset.microbiomes.taxonomy import Taxa

CLEAR = 0.99  # probability by itself of a read that is clear


def place_of(samples: Samples, feature: str, sample: str | None) -> tuple[int, int]:
    """Number of a sample, by default the one with most reads of the feature, and of the feature.

    Raises:
        ValueError: One that is not there, or a feature without reads in the sample.
    """
    if feature not in samples.features:
        raise ValueError(f"feature {feature!r} is not in the table, whose features are such as {samples.features[0]!r}")
    column = samples.features.index(feature)
    reads = samples.counts[:, [column]].toarray()[:, 0]
    if sample is not None and sample not in samples.names:
        raise ValueError(f"sample {sample!r} is not in the table, whose samples are such as {samples.names[0]!r}")
    row = int(reads.argmax()) if sample is None else samples.names.index(sample)
    if not reads[row]:
        raise ValueError(f"feature {feature!r} has no reads in sample {samples.names[row]!r}")
    return row, column


def members_of(samples: Samples, row: int) -> tuple[Int[np.ndarray, " members"], Float[np.ndarray, " members"]]:
    """Numbers of the features that have reads in a sample, and their reads."""
    counts = samples.counts[[row]].tocsr()
    present = counts.data > 0
    return counts.indices[present], counts.data[present]


def explained(
    trust: Trust,
    members: Candidates,
    reads: Float[np.ndarray, " members"],
    features: Sequence[str],
    place: int,
    taxa: Taxa,
    top: int,
) -> pd.DataFrame:
    """Take out members one at a time, and see by how much the log-odds of the call (natural logarithm) fall.

    The table's `attrs` have the call, its probability in the sample and alone, and whether it is clear by itself.

    Args:
        members: Of the sample, with their candidates.
        features: Their names.
        place: Of the member that is explained.
        top: How many are taken out.
    """
    names = np.array(["; ".join(lineage) for lineage in taxa.lineages], dtype=object)
    taxon, logits = members.taxon, members.logits(trust.weights)

    def with_reads(number: Float[np.ndarray, " members"]) -> Float[np.ndarray, " taxa"]:
        return trust.prior.log_shares(taxon, logits, number, len(taxa))

    log_shares = with_reads(reads)
    together = softmax(logits + log_shares[taxon], axis=1)
    alone = softmax(logits[place])
    ranked = np.argsort(-together[place], kind="stable")
    best, itself = int(ranked[0]), int(alone.argmax())

    def log_odds(shares: Float[np.ndarray, " taxa"]) -> float:
        log_share = log_softmax(logits[place] + shares[taxon[place]])
        return float(log_share[best] - np.logaddexp.reduce(np.delete(log_share, best), initial=-np.inf))

    rivals = taxon[place, [*ranked[:2], itself]]
    given = reads * (together * np.isin(taxon, rivals)).sum(1)
    given[place] = -1.0  # without itself there is nothing to explain
    taken = np.argsort(-given, kind="stable")[: min(top, len(reads) - 1)]
    whole = log_odds(log_shares)
    changes = []
    for i in taken.tolist():
        less = reads.copy()
        less[i] = 0
        changes.append(whole - log_odds(with_reads(less)))
    called = names[np.take_along_axis(taxon, together.argmax(1)[:, None], axis=1)[:, 0]]
    table = pd.DataFrame(
        {
            "Feature ID": np.array(features, dtype=object)[taken],
            "count": reads[taken],
            "Taxon": called[taken],
            "change": np.array(changes, dtype=np.float64),
        }
    ).sort_values("change", key=np.abs, ascending=False, ignore_index=True)
    table.attrs = {
        "feature": features[place],
        "taxon": names[taxon[place, best]],
        "probability": float(together[place, best]),
        "alone": float(alone[best]),
        "taxon_alone": names[taxon[place, itself]],
        "clear": bool(best == itself and alone[best] >= CLEAR),
    }
    return table
