"""Ways of completing a genome: what all of them are, and those that our model must beat: doing nothing, prevalence,
neighbours, principal components, a denoising autoencoder, and the mean of the best of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from torch import Tensor, nn

from omniset.genomes.noise import NoiseModel, Observed
from omniset.genomes.references import PerFamily, References, log_odds_of

Given = Float[Tensor, "genomes two"]  # 1 where completeness, and contamination, was given
CERTAIN = 7.0  # log-odds of a probability of 0.999


class Method(nn.Module):
    """Log-odds, for each genome and family of the vocabulary, that the complete genome has the family.

    A genome of which nothing was observed gets the prior: the log-odds of the prevalence in the training genomes.
    """

    trained = False  # there are weights to be learned; else `fit` is all

    def __init__(self, noise: NoiseModel) -> None:
        super().__init__()
        self.noise = noise

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        """Take what can be had of the (genomes, families) complete training genomes without training."""

    def forward(self, observed: Observed) -> PerFamily:
        settled, given = self.noise.settle(observed)
        empty = ~observed.present.any(1, keepdim=True)
        return torch.where(empty, self.noise.prior(), self.log_odds(settled, given))

    def learned(self, observed: Observed) -> list[PerFamily]:
        """The log-odds that training makes right, each by a loss of its own."""
        return [self(observed)]

    def shift(self, observed: Observed, log_odds: PerFamily) -> PerFamily:
        """What is added to its log-odds where rare families are lost more often."""
        return self.noise.shift(observed)

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        """What forward gives for genomes with at least one family.

        Args:
            observed: With estimates where completeness or contamination is not known.
            given: 1 where it is.
        """
        raise NotImplementedError


class AsIs(Method):
    """Doing nothing: the families observed are the families present."""

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        return torch.where(observed.present, CERTAIN, -CERTAIN).to(observed.counts)


class Prevalence(Method):
    """The share of training genomes with the family, updated by the evidence (Bayes' rule) or not."""

    def __init__(self, noise: NoiseModel, bayes: bool) -> None:
        super().__init__(noise)
        self.bayes = bayes

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        prior = self.noise.prior().expand_as(observed.counts)
        return prior + self.noise.evidence(observed) if self.bayes else prior


class Neighbours(Method):
    """The share of the 15 training genomes nearest by Jaccard similarity with the family, updated by the evidence."""

    def __init__(self, noise: NoiseModel, references: References) -> None:
        super().__init__(noise)
        self.references = references

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        shares = self.references.neighbours(observed, self.noise.prevalence)
        return log_odds_of(shares) + self.noise.evidence(observed)


class LikelihoodNeighbours(Neighbours):
    """The share of the 15 training genomes under which the observation is likeliest with the family, updated by the
    evidence: see `References.likeliest`.
    """

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        evidence = self.noise.evidence(observed)
        likelihood = self.references.likelihood(observed, evidence)
        return log_odds_of(self.references.likeliest(observed, likelihood, self.noise.prevalence)) + evidence


class PrincipalComponents(Method):
    """Logistic regression of every family on the principal components of the observed ones, plus the evidence.

    Args:
        rank: Number of components.
        gain: By which components are multiplied. Steps of Adam have the size of the learning rate, whatever the
            gradient: a larger gain learns faster.
    """

    components: Float[Tensor, "families rank"]
    spread: Float[Tensor, " rank"]
    trained = True

    def __init__(self, noise: NoiseModel, families: int, rank: int = 64, gain: float = 1.0) -> None:
        super().__init__(noise)
        self.gain = gain
        self.register_buffer("components", torch.zeros(families, rank))
        self.register_buffer("spread", torch.ones(rank))
        self.regression = nn.Linear(rank, families)

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        values, directions = principal_directions(counts, self.components.shape[1])
        rank = int((values > 1e-4 * values[0]).sum())  # few genomes have few
        self.components[:, :rank] = torch.from_numpy(directions[:rank].T.copy())
        self.spread[:rank] = torch.from_numpy(values[:rank] / np.sqrt(counts.shape[0]))
        nn.init.zeros_(self.regression.weight)
        with torch.no_grad():
            self.regression.bias.copy_(self.noise.prior())

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        return self.regress(observed) + self.noise.evidence(observed)

    def regress(self, observed: Observed) -> PerFamily:
        """Without the evidence."""
        # Of a genome that is c complete about c of each family is expected.
        expected = observed.completeness[:, None] * self.noise.prevalence
        scores = (observed.present.to(observed.counts) - expected) @ self.components / self.spread
        return self.regression(self.gain * scores)


class Autoencoder(Method):
    """A denoising autoencoder (Vincent et al., "Extracting and composing robust features with denoising autoencoders",
    2008): presence, completeness and contamination in, log-odds out.
    """

    trained = True

    def __init__(self, noise: NoiseModel, families: int, dim: int = 256) -> None:
        super().__init__(noise)
        self.encoder = nn.Sequential(nn.Linear(families + 2, dim), nn.ReLU(), nn.Dropout(0.1))
        self.decoder = nn.Linear(dim, families)

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        with torch.no_grad():
            self.decoder.bias.copy_(self.noise.prior())

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        quality = torch.stack([observed.completeness, observed.contamination], 1)
        return self.decoder(self.encoder(torch.cat([observed.present.to(observed.counts), quality], 1)))


class Mean(Method):
    """The mean of the log-odds of other methods."""

    def __init__(self, noise: NoiseModel, methods: Sequence[Method]) -> None:
        super().__init__(noise)
        self.methods = tuple(methods)  # no submodules: their weights are their own

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        return torch.stack([method.log_odds(observed, given) for method in self.methods]).mean(0)


def principal_directions(
    counts: sp.csr_array, rank: int
) -> tuple[Float[np.ndarray, " components"], Float[np.ndarray, "components families"]]:
    """The largest singular values, at most `rank`, and principal directions of the centred presence of families."""
    present = (counts > 0).astype(np.float32)
    if min(present.shape) > max(4 * rank, 100):
        # The centred table is not sparse and is never made: Lanczos iterations need its products alone.
        fitted = PCA(rank, svd_solver="arpack", random_state=0).fit(present)
        return fitted.singular_values_.astype(np.float32), fitted.components_.astype(np.float32)
    centred = present.toarray()
    centred -= centred.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    return values[:rank], directions[:rank]
