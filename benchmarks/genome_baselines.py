"""Baselines of genomes that are measured here and are in no command: denoising autoencoders, and the mean of three
simple methods, the strongest of all. Importing this adds them to those that `omniset.genomes.evaluate` compares.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.genomes.baselines import Method
from omniset.genomes.noise import NoiseModel, Observed
from omniset.genomes.training import MAKERS, TRAINING, Suite

MEAN_OF = ("knn-likelihood", "pca", "autoencoder")
OTHER_BASELINES = ("autoencoder", "autoencoder-evidence", "mean")


class Mean(Method):
    """The mean of the log-odds of other methods."""

    def __init__(self, noise: NoiseModel, methods: Sequence[Method]) -> None:
        super().__init__(noise)
        self.methods = tuple(methods)  # no submodules: their weights are their own

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return torch.stack([method.log_odds(observed, given) for method in self.methods]).mean(0)


class Autoencoder(Method):
    """A denoising autoencoder (Vincent et al., "Extracting and composing robust features with denoising autoencoders",
    2008): presence, completeness and contamination in, log-odds out.

    Args:
        with_evidence: Add the evidence to its output, which then need not copy what was observed.
    """

    trained = True

    def __init__(self, noise: NoiseModel, families: int, with_evidence: bool, dim: int = 256) -> None:
        super().__init__(noise)
        self.with_evidence = with_evidence
        self.encoder = nn.Sequential(nn.Linear(families + 2, dim), nn.ReLU(), nn.Dropout(0.1))
        self.decoder = nn.Linear(dim, families)

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        with torch.no_grad():
            self.decoder.bias.copy_(self.noise.prior())

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        quality = torch.stack([observed.completeness, observed.contamination], 1)
        log_odds = self.decoder(self.encoder(torch.cat([observed.present.to(observed.counts), quality], 1)))
        return log_odds + self.noise.evidence(observed) if self.with_evidence else log_odds


def _autoencoder(with_evidence: bool, suite: Suite) -> Method:
    return Autoencoder(suite.noise, suite.families, with_evidence)


MAKERS["autoencoder"] = partial(_autoencoder, False)
MAKERS["autoencoder-evidence"] = partial(_autoencoder, True)
MAKERS["mean"] = lambda suite: Mean(suite.noise, [suite[name] for name in MEAN_OF])
for _name in OTHER_BASELINES[:2]:
    TRAINING[_name] = {"epochs": 40, "learning_rate": 1e-3, "weight_decay": 1e-2, "batch_size": 16}
