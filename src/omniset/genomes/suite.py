"""All methods by name, sharing one noise model and one set of reference genomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from omniset.genomes.baselines import (
    AsIs,
    Autoencoder,
    LikelihoodNeighbours,
    Mean,
    Neighbours,
    Prevalence,
    PrincipalComponents,
)
from omniset.genomes.methods import Method, References
from omniset.genomes.mixing import mix
from omniset.genomes.model import EvidenceModel, Mixture, SeedModel, WithoutNetwork
from omniset.genomes.noise import NoiseModel
from omniset.genomes.training import Draws, Genomes, train
from omniset.runs import devices

# Kept beside every model: they cost nothing.
UNTRAINED = ("as-is", "prevalence", "prevalence-bayes", "knn", "knn-likelihood")
BASELINES = (*UNTRAINED, "pca", "autoencoder", "autoencoder-evidence", "mean")
NO_NETWORK = "no-network"  # our model without its network
UNMOVED = ("as-is", "prevalence")  # what was observed, or what was not, says nothing to them beyond itself
MEAN_OF = ("knn-likelihood", "pca", "autoencoder")
# What the methods that are compared with are trained with.
TRAINING: dict[str, dict[str, Any]] = {
    # The document's optimiser; its curriculum needs all its epochs.
    "seed": {"epochs": 6, "learning_rate": 1e-3, "weight_decay": 0.0, "batch_size": 10, "patience": None},
    "pca": {"epochs": 20, "learning_rate": 3e-3, "weight_decay": 1e-2, "batch_size": 16},
    "autoencoder": {"epochs": 40, "learning_rate": 1e-3, "weight_decay": 1e-2, "batch_size": 16},
    "autoencoder-evidence": {"epochs": 40, "learning_rate": 1e-3, "weight_decay": 1e-2, "batch_size": 16},
}


class Suite(nn.Module):
    """Methods that are fitted on the same genomes.

    Args:
        families: Vocabulary size.
        references: Number of reference genomes.
        names: Methods beside the untrained ones: "evidence", "seed", "pca", "autoencoder", "autoencoder-evidence",
            "mean"; and "no-network", where "evidence" is one.
        sizes: encoder (None: each architecture's own), dim, depth, num_heads, num_inducing, encoder_options.
    """

    def __init__(self, families: int, references: int, names: list[str], sizes: dict[str, Any]) -> None:
        super().__init__()
        self.noise, self.references = noise, genomes = NoiseModel(families), References(references, families)

        makers: dict[str, Any] = {
            "as-is": lambda: AsIs(noise),
            "prevalence": lambda: Prevalence(noise, bayes=False),
            "prevalence-bayes": lambda: Prevalence(noise, bayes=True),
            "knn": lambda: Neighbours(noise, genomes),
            "knn-likelihood": lambda: LikelihoodNeighbours(noise, genomes),
            "pca": lambda: PrincipalComponents(noise, families),
            "autoencoder": lambda: Autoencoder(noise, families, with_evidence=False),
            "autoencoder-evidence": lambda: Autoencoder(noise, families, with_evidence=True),
            "evidence": lambda: EvidenceModel(noise, genomes, families, **sizes),
            "seed": lambda: SeedModel(
                noise, families, **sizes | {"encoder": sizes["encoder"] or "set-transformer-sab"}
            ),
        }
        own = [*UNTRAINED, *(MEAN_OF if "mean" in names else ()), *(name for name in names if name in makers)]
        self.methods = nn.ModuleDict({name: makers[name]() for name in dict.fromkeys(own)})
        if "mean" in names:
            self.methods["mean"] = Mean(noise, [self[name] for name in MEAN_OF])
        if NO_NETWORK in names:
            model = self["evidence"]
            assert isinstance(model, EvidenceModel)
            self.methods[NO_NETWORK] = WithoutNetwork(noise, model)

    def fit(
        self,
        genomes: Genomes,
        *,
        main: str,
        draws: Draws,
        seed: int,
        folder: Path | None,
        fingerprint: dict[str, Any],
        instead: dict[str, int] | None = None,
        **training: Any,
    ) -> dict[str, list[dict[str, Any]]]:
        """Fit every method; returns the history of those that are trained.

        Args:
            main: The method that `training` is for; others are trained with TRAINING, on the same device.
            instead: Epochs of each method that is trained, all of which are taken.
            training: epochs, batch_size, learning_rate, weight_decay, patience, device, progress, resume.
        """
        rng = np.random.default_rng(seed)
        counts = genomes.training_counts
        self.noise.fit(counts, rng, None if genomes.itself is None else genomes.itself[genomes.train])
        self.references.fit(genomes.counts[genomes.references])
        if genomes.itself is not None:
            self.references.impute(self.noise, genomes.itself[genomes.references])
        for name in self.methods:
            self[name].fit(counts, rng)
        del counts  # a copy, where genomes are kept back
        history = {}
        for name in self.methods:
            method = self[name]
            if method.trained:
                length = {} if instead is None else {"epochs": instead[name], "patience": None}
                history[name] = train(
                    method,
                    genomes,
                    draws=Draws(curriculum=True) if name == "seed" else draws,
                    seed=seed,
                    folder=folder if folder is None or name == main else folder / name,
                    fingerprint=fingerprint | {"method": name},
                    **training | ({} if name == main else TRAINING.get(name, {})) | length,
                )
            if isinstance(method, Mixture):
                mix(method, genomes, seed, devices.find(training["device"]))
        self.eval()
        return history

    def __getitem__(self, name: str) -> Method:
        method = self.methods[name]
        assert isinstance(method, Method)
        return method
