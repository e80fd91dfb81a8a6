"""How much each part of the default counts: fitted to genomes of clades that no part has learned from."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from omniset.genomes.calibration import clade_weights, degraded
from omniset.genomes.model import Mixture
from omniset.genomes.training import Genomes

# Completeness and contamination, in percent, of the genomes that weights are fitted to.
QUALITIES = ((97.0, 1.0), (90.0, 5.0), (80.0, 0.0), (65.0, 5.0), (50.0, 2.0))
RIDGE = 2e-3  # few clades are kept back: the weights stay near to equal ones unless there is a reason
PAIRS = 400_000  # genomes x families, at most, drawn at random


def mix(model: Mixture, genomes: Genomes, seed: int, device: torch.device | str = "cpu") -> None:
    """Fit the weights of the parts, and the temperature, in place: least binary cross-entropy of the mixture over
    degraded validation genomes, clades counting alike, plus 0.002 times the sum of squares of all parameters. Without
    validation genomes all parts count the same.
    """
    rows = genomes.validation
    if not len(rows):
        return
    rng = np.random.default_rng(seed)
    by_clade = clade_weights(genomes.clades.groups[rows])
    each = max(PAIRS // (len(rows) * len(QUALITIES)), 1)
    model.eval().to(device)
    parts, truths, missing, weights = [], [], [], []
    for number, level in enumerate(QUALITIES):
        done = 0
        for some, observed in degraded(genomes, rows, level, "estimated", seed * 1000 + 500 + number):
            with torch.no_grad():
                predicted = model.parts(observed.to(device)).cpu().double()
            complete = model.noise.settle(observed.to(device))[0].completeness.cpu().double()
            truth = torch.from_numpy(genomes.counts[some].toarray() > 0)
            chosen = torch.from_numpy(rng.integers(predicted.shape[1], size=(len(some), each)))
            parts.append(predicted.gather(1, chosen[..., None].expand(-1, -1, predicted.shape[2])).flatten(0, 1))
            truths.append(truth.gather(1, chosen).flatten())
            missing.append((1 - complete)[:, None].expand_as(chosen).flatten())
            weights.append(torch.from_numpy(by_clade[done : done + len(some), None]).expand_as(chosen).flatten())
            done += len(some)
    x, y, w, lost = torch.cat(parts), torch.cat(truths).double(), torch.cat(weights), torch.cat(missing)
    about = torch.stack([torch.ones_like(lost), lost], 1)
    free = torch.zeros(x.shape[1] + 1, 2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        shares = (about @ free[:-1].T).softmax(1)
        log_odds = (shares * x).sum(1) * (about @ free[-1]).exp()
        loss = (w * F.binary_cross_entropy_with_logits(log_odds, y, reduction="none")).mean()
        total = loss + RIDGE * free.square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    with torch.no_grad():
        model.mixture.copy_(free[:-1])
        model.temperature.copy_(free[-1])
