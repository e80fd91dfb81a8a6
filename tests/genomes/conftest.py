"""A completer that knows all methods, and incomplete genomes with their qualities."""

import numpy as np
import pandas as pd
import pytest
from genome_oracle import EVERY, FRAME, fit_split, some_counts, some_frame, suite_of

from omniset.genomes import calibration, evaluate, training
from omniset.genomes.calibration import LEVELS


@pytest.fixture(scope="session", autouse=True)
def _quickly():
    """Baselines need not be trained well; of few clades one is kept back, and asked at two qualities."""
    with pytest.MonkeyPatch.context() as patch:
        assert evaluate.CONDITIONS  # are made of all levels, before these are patched
        patch.setattr(calibration, "LEVELS", [(90.0, 5.0), (60.0, 0.0)])
        patch.setattr(training, "VALIDATION_FRACTION", 0.2)
        for options in training.TRAINING.values():
            patch.setitem(options, "epochs", 1)
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def suite():
    """All methods, with random weights."""
    return suite_of()


@pytest.fixture(scope="session")
def completer():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LEVELS", LEVELS)
        return fit_split(also=EVERY[1:])


@pytest.fixture(scope="session")
def mags():
    """Eleven incomplete genomes, one of them empty; columns in another order than in training."""
    rng = np.random.default_rng(5)
    counts = rng.binomial(some_counts(11, clades=6, seed=3), rng.uniform(0.4, 1.0, (11, 1)))
    counts[8] = 0
    found = pd.DataFrame(counts, index=[f"m{i}" for i in range(11)], columns=some_frame().columns)
    return found[rng.permutation(FRAME.columns)]


@pytest.fixture(scope="session")
def quality():
    rng = np.random.default_rng(6)
    found = pd.DataFrame({"completeness": rng.uniform(45, 100, 11), "contamination": rng.uniform(0, 11, 11)})
    found.index = [f"m{i}" for i in rng.permutation(11)]
    found.loc["m3", "contamination"] = np.nan
    return found.drop("m4")
