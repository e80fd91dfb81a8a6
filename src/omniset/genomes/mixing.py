"""How much each part of the default counts: fitted to genomes that no part has learned from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from omniset.genomes.calibration import clade_weights, degraded
from omniset.genomes.model import Mixture, balance
from omniset.genomes.training import Genomes, cross_entropy

# Completeness and contamination, in percent, of the genomes that weights are fitted to.
QUALITIES = ((97.0, 1.0), (90.0, 5.0), (80.0, 0.0), (65.0, 5.0), (50.0, 2.0))
RIDGE = 3e-5  # few clades may be kept back: weights of what they do not tell stay near to equal ones
PAIRS = 400_000  # genomes x families, at most, drawn at random


def mix(model: Mixture, genomes: Genomes, seed: int, device: torch.device | str = "cpu") -> None:
    """Fit the weights of the parts, temperatures and shift, in place: least cross-entropy of the mixture over degraded
    genomes that were kept back, with relatives among the references and without, plus a ridge on all parameters.
    In both groups clades count alike. Without genomes all parts count the same.
    """
    groups = [rows for rows in (genomes.validation, genomes.single) if len(rows)]
    if not groups:
        return
    rng = np.random.default_rng(seed)
    each = max(PAIRS // (sum(map(len, groups)) * len(QUALITIES)), 1)
    model.eval().to(device)
    drawn = [
        pairs
        for (number, level), rows in product(enumerate(QUALITIES), groups)
        for pairs in _pairs(model, genomes, rows, level, seed * 1000 + 500 + number, each, rng, device)
    ]
    x, y, w, about, seen, m = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    hidden = None if genomes.itself is None else m
    free = torch.zeros(model.mixture.shape, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        weights, shift = balance(free, about, seen)
        log_odds = (weights * x).sum(1) + shift
        loss = (w * cross_entropy(log_odds, y, hidden)).mean()
        total = loss + RIDGE * free.square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    with torch.no_grad():
        model.mixture.copy_(free)


def _pairs(
    model: Mixture,
    genomes: Genomes,
    rows: Int[np.ndarray, " chosen"],
    level: tuple[float, float],
    seed: int,
    each: int,
    rng: np.random.Generator,
    device: torch.device | str,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Log-odds of the parts, the truth, weights, facts, whether it was observed and how often it would be hidden, of so
    many families of each genome, drawn at random; of all, where these are no more.
    """
    by_clade = dict(zip(rows.tolist(), clade_weights(genomes.clades.groups[rows]).tolist(), strict=True))
    for some, observed, recovery in degraded(genomes, rows, level, "estimated", seed):
        with torch.no_grad():
            parts, about = (values.cpu().double() for values in model.parts(observed.to(device)))
        truth = torch.from_numpy(genomes.counts[some].toarray() > 0).double()
        hidden = torch.zeros_like(truth)
        if genomes.itself is not None:
            hidden = model.noise.hidden(observed.present.to(device), recovery.to(device)).cpu().double()
        shape, every = (len(some), each), np.arange(parts.shape[1])
        chosen = torch.from_numpy(rng.choice(every, shape) if each < len(every) else np.tile(every, (len(some), 1)))
        weights = torch.tensor([by_clade[i] for i in some.tolist()], dtype=torch.float64)
        yield (
            parts.gather(1, chosen[..., None].expand(-1, -1, parts.shape[2])).flatten(0, 1),
            truth.gather(1, chosen).flatten(),
            weights.repeat_interleave(chosen.shape[1]),
            about.repeat_interleave(chosen.shape[1], 0),
            observed.present.cpu().gather(1, chosen).flatten(),
            hidden.gather(1, chosen).flatten(),
        )
