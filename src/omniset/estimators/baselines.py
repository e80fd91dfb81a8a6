"""Methods without a network that a model of sets has to beat. All were fitted on the sets that it was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

PRIOR = "prior"
BASELINES = (PRIOR,)


def predictions(model: SetEstimator, rows: int) -> dict[str, pd.DataFrame]:
    """What each baseline says of so many sets (or elements): tables with the columns of `predict_table`.

    "prior" looks at no set: it says the class that is most frequent in training, with the frequencies as
    probabilities, or the mean.
    """
    return {PRIOR: model.constant(rows)}
