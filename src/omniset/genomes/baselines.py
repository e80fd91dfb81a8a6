"""What a model must beat: doing nothing, prevalence, neighbours, principal components, autoencoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.genomes.methods import Method, References, log_odds_of, principal_directions
from omniset.genomes.noise import NoiseModel, Observed

CERTAIN = 7.0  # log-odds of a probability of 0.999


class AsIs(Method):
    """Doing nothing: the families observed are the families present."""

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return torch.where(observed.present, CERTAIN, -CERTAIN).to(observed.counts)


class Prevalence(Method):
    """The share of training genomes with the family, updated by the evidence (Bayes' rule) or not.

    Args:
        bayes: Add the evidence.
    """

    def __init__(self, noise: NoiseModel, bayes: bool) -> None:
        super().__init__(noise)
        self.bayes = bayes

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        prior = self.noise.prior().expand_as(observed.counts)
        return prior + self.noise.evidence(observed) if self.bayes else prior


class Neighbours(Method):
    """The share of the 15 training genomes nearest by Jaccard similarity with the family, updated by the evidence."""

    def __init__(self, noise: NoiseModel, references: References) -> None:
        super().__init__(noise)
        self.references = references

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        shares = self.references.neighbours(observed, self.noise.prevalence)
        return log_odds_of(shares) + self.noise.evidence(observed)


class LikelihoodNeighbours(Method):
    """The share of the 15 training genomes under which the observation is likeliest with the family, updated by the
    evidence: see `References.likeliest`.
    """

    def __init__(self, noise: NoiseModel, references: References) -> None:
        super().__init__(noise)
        self.references = references

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        evidence = self.noise.evidence(observed)
        likelihood = self.references.likelihood(observed, evidence)
        return log_odds_of(self.references.likeliest(observed, likelihood, self.noise.prevalence)) + evidence


class Mean(Method):
    """The mean of the log-odds of other methods."""

    def __init__(self, noise: NoiseModel, methods: Sequence[Method]) -> None:
        super().__init__(noise)
        self.methods = tuple(methods)  # no submodules: their weights are their own

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return torch.stack([method.log_odds(observed, given) for method in self.methods]).mean(0)


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

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return self.regress(observed) + self.noise.evidence(observed)

    def regress(self, observed: Observed) -> Float[Tensor, "genomes families"]:
        """Without the evidence."""
        # Of a genome that is c complete about c of each family is expected.
        expected = observed.completeness[:, None] * self.noise.prevalence
        scores = (observed.present.to(observed.counts) - expected) @ self.components / self.spread
        return self.regression(self.gain * scores)


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
