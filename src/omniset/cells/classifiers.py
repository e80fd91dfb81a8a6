"""What the labels of reference cells teach: four simple methods, each of which says how likely a new cell is what.

    genes        multinomial logistic regression on the log-normalised genes of the vocabulary
    components   the same on their principal components
    embedding    the same on the vectors of cells
    neighbours   attention to the reference cells: softmax over these of - |z - z_i|^2 / 2 w^2, cell i in the set as
                 often as its type is rare, its type the value

All types weigh alike, whatever their numbers, so that rare ones are not lost. Beside them stand two numbers on how
strange a cell is: minus the largest logit of its genes, and how far it lies from the cells of the type that it is
called (`Novelty`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int
from scipy.stats import median_abs_deviation
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from omniset.runs.devices import one_blas_thread

PerCell = Float64[np.ndarray, " cells"]
METHODS = ("genes", "components", "embedding", "neighbours")
COMPONENTS = 50
ITERATIONS = 1000
NEAR = 5  # the distance to a type is that to its fifth cell
WIDTHS = (0.25, 0.5, 1.0, 2.0)  # of the neighbours' weights, in median distances of a cell to its nearest
NEVER = -1e4  # the logit of a type that was not learned from
TOGETHER = 2048  # cells at a time

Values = Float32[np.ndarray, "cells genes"]
Vectors = Float[np.ndarray, "cells latent"]
Codes = Int[np.ndarray, " cells"]
Numbers = Float[np.ndarray, "cells features"]


class Linear(nn.Module):
    """Logits of types: (x - centre) / spread times weights, plus a bias."""

    centre: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, types: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("weight", torch.zeros(types, width))
        self.register_buffer("bias", torch.full((types,), NEVER))

    @one_blas_thread()
    def learn(self, x: Float[np.ndarray, "cells width"], y: Codes, standardised: bool) -> None:
        """Logistic regression (L2, C = 1) in which each type weighs the same."""
        if standardised:
            deviation = x.std(0)
            self.centre.copy_(torch.from_numpy(x.mean(0)))
            self.spread.copy_(torch.from_numpy(np.where(deviation > 0, deviation, 1)))
            x = (x - self.centre.numpy()) / self.spread.numpy()
        codes = np.unique(y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the optimum is not needed to the last digit
            model = LogisticRegression(class_weight="balanced", max_iter=ITERATIONS).fit(x, y)
        weight, bias = model.coef_, model.intercept_
        if len(codes) == 2:  # one row, which is the difference of both
            weight, bias = np.concatenate((-weight, weight)) / 2, np.concatenate((-bias, bias)) / 2
        self.weight[codes] = torch.from_numpy(weight).to(self.weight)
        self.bias[codes] = torch.from_numpy(bias).to(self.bias)

    def forward(self, x: Float[Tensor, "cells width"]) -> Float[Tensor, "cells types"]:
        return (x - self.centre) / self.spread @ self.weight.T + self.bias


class Classifiers(nn.Module):
    """The four methods, and what is needed to use them.

    Args:
        genes: Vocabulary size.
        latent: Width of the cells' vectors.
        types: Number of types.
        cells: Number of reference cells, whose vectors and components are kept.
        components: Number of principal components.
    """

    axes: Tensor
    middle: Tensor
    places: Tensor
    scores: Tensor
    labels: Tensor
    width: Tensor
    typical: Tensor

    def __init__(self, genes: int, latent: int, types: int, cells: int, components: int) -> None:
        super().__init__()
        self.types = types
        self.genes, self.components = Linear(genes, types), Linear(components, types)
        self.embedding = Linear(latent, types)
        self.register_buffer("axes", torch.zeros(genes, components))
        self.register_buffer("middle", torch.zeros(genes))
        self.register_buffer("places", torch.zeros(cells, latent))
        self.register_buffer("scores", torch.zeros(cells, components))
        self.register_buffer("labels", torch.zeros(cells, dtype=torch.int64))
        self.register_buffer("width", torch.ones(()))
        self.register_buffer("typical", torch.ones(types))

    @classmethod
    def learned(cls, values: Values, z: Vectors, y: Codes, types: int, seed: int) -> Classifiers:
        """From cells of at least two types.

        Args:
            values: Log-normalised genes.
            z: Vectors of the same cells.
            y: Numbers of their types.
            types: How many there are; those that no cell here has are never predicted.
        """
        wide = min(COMPONENTS, len(values) - 1, values.shape[1] - 1)
        learned = cls(values.shape[1], z.shape[1], types, len(y), max(wide, 1))
        if wide > 0 and np.ptp(values, 0).any():
            model = PCA(wide, svd_solver="arpack", random_state=seed).fit(values)
            learned.axes.copy_(torch.from_numpy(np.ascontiguousarray(model.components_.T)))
            learned.middle.copy_(torch.from_numpy(model.mean_))
        scores = learned.scores_of(values)
        learned.genes.learn(values, y, False)
        learned.components.learn(scores, y, True)
        learned.embedding.learn(z, y, True)
        learned.places.copy_(learned.place(torch.from_numpy(z).float()))
        learned.scores.copy_(torch.from_numpy(scores))
        learned.labels.copy_(torch.from_numpy(y))
        places = learned.places.numpy()
        learned.width.fill_(max(float(np.median(distances(places, 1))), 1e-3))
        for code in np.unique(y):
            of_type = scores[y == code]
            if len(of_type) > 1:
                learned.typical[code] = max(float(np.median(distances(of_type, NEAR)[:, -1])), 1e-6)
        return learned

    def scores_of(self, values: Values) -> Float32[np.ndarray, "cells components"]:
        return (values - self.middle.numpy()) @ self.axes.numpy()

    def place(self, z: Float[Tensor, "cells latent"]) -> Float[Tensor, "cells latent"]:
        return (z - self.embedding.centre) / self.embedding.spread

    def neighbours(self, z: Float[Tensor, "cells latent"], width: float) -> Float[Tensor, "cells types"]:
        """Probabilities by the reference cells' types, near ones first.

        |z - z_i|^2 = |z|^2 - 2 (z z_i - |z_i|^2 / 2): what is the same for all i leaves no trace in a softmax, so that
        the keys are the reference cells with one number more.
        """
        labels = self.labels
        rarity = len(labels) / torch.bincount(labels, minlength=self.types).clamp(min=1).float()
        key = torch.cat((self.places, -0.5 * self.places.square().sum(1, keepdim=True)), 1)
        value = nn.functional.one_hot(labels, self.types).to(key)
        place = self.place(z)
        query = torch.cat((place, torch.ones_like(place[:, :1])), 1)
        # `multiset_attention(query, key, value, rarity[labels], scale=width**-2)`. Most weights are next to nothing:
        # there PyTorch's softmax takes, on some processors, a tenth of the time that its exponential takes.
        return torch.addmm(rarity[labels].log(), query * width**-2, key.T).softmax(1) @ value

    @torch.no_grad()
    def probabilities(
        self,
        values: Values,
        z: Vectors,
        widths: tuple[float, ...] = (1.0,),
        weights: Float64[np.ndarray, " methods"] | None = None,
    ) -> Float64[np.ndarray, "methods cells types"]:
        """What each method says; of neighbours once for each width, in units of the one that was learned.

        Args:
            weights: A method whose weight is 0 is not asked: its rows are 0. None: all are asked.
        """
        methods = [
            lambda x, _: self.genes(x).softmax(1),
            lambda x, _: self.components((x - self.middle) @ self.axes).softmax(1),
            lambda _, vectors: self.embedding(vectors).softmax(1),
            *(lambda _, vectors, width=width: self.neighbours(vectors, float(self.width) * width) for width in widths),
        ]
        asked = [True] * len(methods) if weights is None else [weight > 0 for weight in weights]
        said = np.zeros((len(methods), len(values), self.types))
        for start in range(0, len(values), TOGETHER):
            some = slice(start, start + TOGETHER)
            x, vectors = (torch.from_numpy(a[some]).float() for a in (values, z))
            for rows, method, wanted in zip(said, methods, asked, strict=True):
                if wanted:
                    rows[some] = method(x, vectors).numpy()
        return said

    @torch.no_grad()
    def strangeness(self, values: Values, calls: Codes) -> Float32[np.ndarray, "cells 2"]:
        """Minus the largest logit of the genes; the logarithm of how far the fifth cell of the called type is, in units
        of how far it is from cells of this type.
        """
        strange = np.zeros((len(values), 2), dtype=np.float32)
        for start in range(0, len(values), TOGETHER):
            logits = self.genes(torch.from_numpy(values[start : start + TOGETHER]))
            strange[start : start + len(logits), 0] = -logits.max(1).values.numpy()
        scores, labels, reference = self.scores_of(values), self.labels.numpy(), self.scores.numpy()
        for code in np.unique(calls):
            called = calls == code
            distance = distances(reference[labels == code], NEAR, scores[called])[:, -1]
            strange[called, 1] = np.log(np.maximum(distance, 1e-6) / float(self.typical[code]))
        return strange


def evenly(y: Codes, most: int, seed: int) -> Int[np.ndarray, " chosen"]:
    """At most so many cells, ascending, of which rare types lose none: the largest quota per type that fits."""
    if len(y) <= most:
        return np.arange(len(y))
    sizes = np.sort(np.bincount(y))
    sizes = sizes[sizes > 0]
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    quotas = (most - before) // np.arange(len(sizes), 0, -1)
    fits = np.flatnonzero(quotas <= sizes)
    quota = max(int(quotas[fits[0]]), 1) if len(fits) else int(sizes[-1])
    order = np.random.default_rng(seed).permutation(len(y))
    rank = np.zeros(len(y), dtype=np.int64)
    for code in np.unique(y):
        of_type = order[y[order] == code]
        rank[of_type] = np.arange(len(of_type))
    return np.flatnonzero(rank < quota)


def distances(
    reference: Float[np.ndarray, "reference dim"], k: int, queries: Float[np.ndarray, "queries dim"] | None = None
) -> Float[np.ndarray, "queries k"]:
    """Euclidean distances to the k nearest of the reference, ascending, or to all where there are fewer.

    Args:
        queries: None: the reference itself, of which none is its own neighbour.
    """
    k = min(k, len(reference) - (queries is None))
    return NearestNeighbors(n_neighbors=k).fit(reference).kneighbors(queries)[0]


# ---------------------------------------------------------------------- novelty


SHRINKAGE = 30  # cells of a type that weigh as much as all
TAIL = 0.1  # share of the known cells from which on the tail is taken for exponential
FLOOR = 1e-6
CELLS = 2_000  # of the reference that are learned from without a type, at most; rare types lose none
HELD = 10  # cells of a type kept back, at least
TYPES = 20  # left out, at most: those with most cells kept back


@dataclass
class Novelty:
    """What is usual.

    Each number x of a cell that was called k becomes u = (x - m_k) / s_k, m_k and s_k the median and the median
    deviation of known cells that were called k, drawn towards those of all known cells as by 30 cells more. A cell's
    strangeness is the sum over its numbers of -log of the share of known cells with at least this u; beyond their 90 %
    quantile the share falls exponentially, as fast as the mean excess says, so that the strangest are told apart.

    Attributes:
        known: Numbers of known cells that were kept back: not learned from.
        calls: What they were called.
        bound: Strangeness above which a cell is unknown.
    """

    known: Numbers
    calls: Codes
    bound: float = np.inf

    @classmethod
    def learned(cls, known: Numbers, calls: Codes, batches: Codes, error: float) -> Novelty:
        """With a bound that in each batch kept back calls at most a share of its known cells unknown."""
        strangeness = cls(known, calls).strangeness(known, calls)
        shares = [
            np.quantile(strangeness[batches == batch], 1 - error, method="higher") for batch in np.unique(batches)
        ]
        return cls(known, calls, float(max(shares)))

    def strangeness(self, numbers: Numbers, calls: Codes) -> PerCell:
        total = np.zeros(len(numbers))
        for column in range(self.known.shape[1]):
            usual, given = self._relative(column, self.known, self.calls), self._relative(column, numbers, calls)
            total += _surprise(usual, given)
        return total

    def unknown(self, numbers: Numbers, calls: Codes) -> Bool[np.ndarray, " cells"]:
        return self.strangeness(numbers, calls) > self.bound

    def share(self, strangeness: PerCell) -> PerCell:
        """Of known cells kept back, that are at least as strange; of n such cells 1 / (n + 1) at least."""
        usual = np.sort(self.strangeness(self.known, self.calls))
        return (len(usual) - np.searchsorted(usual, strangeness, side="left") + 1) / (len(usual) + 1)

    def _relative(self, column: int, numbers: Numbers, calls: Codes) -> PerCell:
        known, values = self.known[:, column].astype(np.float64), numbers[:, column].astype(np.float64)
        of_all, width = np.median(known), median_abs_deviation(known)
        relative = np.zeros(len(values))
        for code in np.unique(calls):
            of_type = known[self.calls == code]
            weight = len(of_type) / (len(of_type) + SHRINKAGE)
            middle = weight * np.median(of_type) + (1 - weight) * of_all if len(of_type) else of_all
            spread = weight * median_abs_deviation(of_type) + (1 - weight) * width if len(of_type) else width
            here = calls == code
            relative[here] = (values[here] - middle) / max(spread, FLOOR)
        return relative


def _surprise(usual: Float64[np.ndarray, " known"], given: PerCell) -> PerCell:
    """-log of the share of usual values that are at least as large."""
    usual = np.sort(usual)
    share = (len(usual) - np.searchsorted(usual, given, side="left") + 1) / (len(usual) + 1)
    start = np.quantile(usual, 1 - TAIL)
    excess = usual[usual > start] - start
    if not len(excess) or excess.mean() <= FLOOR:
        return -np.log(share)
    return np.where(given > start, -np.log(TAIL) + (given - start) / excess.mean(), -np.log(share))


def types_left_out(numbers: Int[np.ndarray, "types parts"]) -> list[tuple[int, int]]:
    """Which types are left out, and the part of the reference that is kept back then.

    Args:
        numbers: Of cells of each type in each part that is kept back.
    """
    most = numbers.max(1)
    order = np.argsort(-most, kind="stable")[:TYPES]
    return [(int(code), int(numbers[code].argmax())) for code in np.sort(order) if most[code] >= HELD]


def type_left_out(
    code: int,
    values: Float32[np.ndarray, "rows genes"],
    y: Int[np.ndarray, " rows"],
    held: Float32[np.ndarray, "cells genes"],
    of_held: Codes,
    batches: Codes,
    types: int,
    error: float,
    seed: int,
) -> dict[str, Any] | None:
    """A type left out. None: there is nothing else to learn from, or to compare with.

    A stated error for known types says nothing on how many cells of unknown ones are found, which depends on how near
    to these the nearest known type is. So it is measured: a logistic regression learns from the reference without the
    type, and its bound comes from cells kept back of all others.

    Args:
        code: Number of the type.
        values: Log-normalised genes of the reference without it.
        y: Numbers of the types there.
        held: Genes of the cells kept back.
        of_held: Their types.
        batches: Their batches.
        types: How many there are.
        error: Share of known cells that may be unknown, in each batch.

    Returns:
        `type`, its number; `cells` of it that were kept back; `unknown`, the share of these that is called unknown;
        `called`, the number of the type that most of the others are called.
    """
    new = of_held == code
    if len(np.unique(y)) < 2 or new.all():
        return None
    classifiers = Classifiers.learned(
        values, np.zeros((len(values), 1), dtype=np.float32), y, types, seed
    )  # vectors have no part
    with torch.no_grad():
        calls = classifiers.genes(torch.from_numpy(held)).argmax(1).numpy()
    numbers = classifiers.strangeness(held, calls)
    novelty = Novelty.learned(numbers[~new], calls[~new], batches[~new], error)
    unknown = novelty.unknown(numbers[new], calls[new])
    others = calls[new] if unknown.all() else calls[new][~unknown]
    called, share = int(np.bincount(others).argmax()), float(unknown.mean())
    return {"type": code, "cells": int(new.sum()), "unknown": share, "called": called}
