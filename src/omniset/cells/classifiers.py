"""What the labels of reference cells teach: four simple methods, each of which says how likely a new cell is what.

    genes        multinomial logistic regression (L2, C = 1) on the log-normalised genes of the vocabulary
    components   the same (C = 0.1) on their 32 principal components, not scaled: those of little variance count less
    embedding    the same (C = 1) on the vectors of cells, standardised
    neighbours   attention to the reference cells: softmax over these of - |z - z_i|^2 / 2 w^2, cell i in the set as
                 often as its type is rare, its type the value

All types weigh alike, whatever their numbers, so that rare ones are not lost. Beside them stand two numbers on how
strange a cell is: minus the largest logit of its genes, and how far it lies from the cells of the type that it is
called (`omniset.cells.novelty`).
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from omniset.runs.devices import one_blas_thread

PerCell = Float64[np.ndarray, " cells"]
METHODS = ("genes", "components", "embedding", "neighbours")
OF_GENES = 2  # methods, the first ones, that read no vectors
COMPONENTS, STRENGTH = 32, 0.1  # C of the logistic regression on them
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
    def learn(self, x: Float[np.ndarray, "cells width"], y: Codes, standardised: bool = False, c: float = 1.0) -> None:
        """Logistic regression (L2) in which each type weighs the same."""
        if standardised:
            deviation = x.std(0)
            self.centre.copy_(torch.from_numpy(x.mean(0)))
            self.spread.copy_(torch.from_numpy(np.where(deviation > 0, deviation, 1)))
            x = (x - self.centre.numpy()) / self.spread.numpy()
        codes = np.unique(y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the optimum is not needed to the last digit
            model = LogisticRegression(C=c, class_weight="balanced", max_iter=ITERATIONS).fit(x, y)
        weight, bias = model.coef_, model.intercept_
        if len(codes) == 2:  # one row, which is the difference of both
            weight, bias = np.concatenate((-weight, weight)) / 2, np.concatenate((-bias, bias)) / 2
        self.weight[codes] = torch.from_numpy(weight).to(self.weight)
        self.bias[codes] = torch.from_numpy(bias).to(self.bias)

    def forward(self, x: Float[Tensor, "cells width"]) -> Float[Tensor, "cells types"]:
        return (x - self.centre) / self.spread @ self.weight.T + self.bias


class Classifiers(nn.Module):
    """The four methods, and what is needed to use them. Vectors and components of the reference cells are kept."""

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
            types: How many there are; those that no cell here has are never predicted.
        """
        wide = min(COMPONENTS, len(values) - 1, values.shape[1] - 1)
        learned = cls(values.shape[1], z.shape[1], types, len(y), max(wide, 1))
        if wide > 0 and np.ptp(values, 0).any():
            model = PCA(wide, svd_solver="arpack", random_state=seed).fit(values)
            learned.axes.copy_(torch.from_numpy(np.ascontiguousarray(model.components_.T)))
            learned.middle.copy_(torch.from_numpy(model.mean_))
        scores = learned.scores_of(values)
        learned.genes.learn(values, y)
        learned.components.learn(scores, y, c=STRENGTH)
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
