"""All members without a network, by name."""

from __future__ import annotations

from omniset.estimators.boosting import PooledBoosting
from omniset.estimators.linear import DissimilarityLinear, PooledLinear
from omniset.estimators.simple import MeanForest, Member, PooledForest, Prior

MEMBERS: dict[str, type[Member]] = {
    kind.name: kind for kind in (PooledLinear, PooledForest, PooledBoosting, DissimilarityLinear, MeanForest, Prior)
}
