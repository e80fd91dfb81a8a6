"""How much each part of the default counts: fitted to genomes that no part has learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from omniset.genomes.calibration import clade_weights, degraded
from omniset.genomes.model import FACTS, Mixture, balance
from omniset.genomes.noise import Observed, Recovery
from omniset.genomes.together import each_with_others
from omniset.genomes.training import Genomes, cross_entropy

Degraded = tuple[np.ndarray, Observed, Recovery]
Pairs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

# Completeness and contamination, in percent, of the genomes that weights are fitted to.
QUALITIES = ((97.0, 1.0), (90.0, 5.0), (80.0, 0.0), (65.0, 5.0), (50.0, 2.0))
RIDGE = 3e-5  # few clades may be kept back: weights of what they do not tell stay near to equal ones
PAIRS = 400_000  # genomes x families, at most, drawn at random
TOGETHER = 150  # genomes that are completed together, at most


def mix(model: Mixture, genomes: Genomes, seed: int, device: torch.device | str = "cpu") -> None:
    """Fit the weights of the parts, temperatures and shift, in place: least cross-entropy of the mixture over degraded
    genomes that were kept back, with relatives among the references and without, plus a ridge on all parameters.
    In both groups clades count alike. Then, with all else as it is, what changes with the share of the likeliest that
    are completed together: over genomes kept back that are. Without genomes all parts count the same.
    """
    groups = [rows for rows in (genomes.validation, genomes.single) if len(rows)]
    if not groups:
        return
    rng = np.random.default_rng(seed)
    model.eval().to(device)
    noise = [seed * 1000 + 500 + number for number in range(len(QUALITIES))]
    each = max(PAIRS // (sum(map(len, groups)) * len(QUALITIES)), 1)
    alone = [
        pairs
        for (level, at), rows in product(zip(QUALITIES, noise, strict=True), groups)
        for pairs in _pairs(model, genomes, rows, degraded(genomes, rows, level, "estimated", at), each, rng, device)
    ]
    known, number = genomes.itself is None, len(model.mixture)
    mixture = _fitted(alone, known, number, FACTS - 1, lambda free: nn.functional.pad(free, (0, 1)))
    if len(genomes.validation):
        rows = _side_by_side(genomes)
        each = max(PAIRS // (len(rows) * len(QUALITIES)), 1)
        together = [
            pairs
            for level, at in zip(QUALITIES, noise, strict=True)
            for pairs in _pairs(model, genomes, rows, _joined(model, genomes, rows, level, at), each, rng, device)
        ]
        mixture = _fitted(together, known, number, 1, lambda free: torch.cat([mixture[:, :-1], free], 1))
    with torch.no_grad():
        model.mixture.copy_(mixture)


def _side_by_side(genomes: Genomes) -> Int[np.ndarray, " chosen"]:
    """Genomes kept back, so many at most, one clade after another: relatives stay together."""
    order = np.argsort(genomes.clades.groups[genomes.validation], kind="stable")
    return genomes.validation[order[:TOGETHER]]


def _joined(
    model: Mixture, genomes: Genomes, rows: Int[np.ndarray, " chosen"], level: tuple[float, float], seed: int
) -> Iterator[Degraded]:
    """Genomes degraded at a level, each a reference of the others as long as this is read."""
    batches = list(degraded(genomes, rows, level, "estimated", seed))
    seen = [observed.to(model.references.presence.device) for _, observed, _ in batches]
    for position, observed in each_with_others(model.references, model.noise, seen):
        some, _, recovery = batches[position]
        yield some, observed, recovery


def _fitted(
    drawn: list[Pairs], known: bool, parameters: int, facts: int, whole: Callable[[Tensor], Tensor]
) -> Float64[Tensor, "parameters all_facts"]:
    """The mixture of least cross-entropy, with a ridge, over pairs of genomes and families.

    Args:
        known: The genomes are complete themselves.
        facts: How many the parameters that are fitted depend on.
        whole: Of these parameters, the mixture.
    """
    x, y, w, about, seen, m = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    hidden = None if known else m
    free = torch.zeros(parameters, facts, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        weights, shift = balance(whole(free), about, seen)
        log_odds = (weights * x).sum(1) + shift
        loss = (w * cross_entropy(log_odds, y, hidden)).mean()
        total = loss + RIDGE * free.square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    return whole(free).detach()


def _pairs(
    model: Mixture,
    genomes: Genomes,
    rows: Int[np.ndarray, " chosen"],
    batches: Iterable[Degraded],
    each: int,
    rng: np.random.Generator,
    device: torch.device | str,
) -> Iterator[Pairs]:
    """Log-odds of the parts, the truth, weights, facts, whether it was observed and how often it would be hidden, of so
    many families of each genome, drawn at random; of all, where these are no more.
    """
    by_clade = dict(zip(rows.tolist(), clade_weights(genomes.clades.groups[rows]).tolist(), strict=True))
    for some, observed, recovery in batches:
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
