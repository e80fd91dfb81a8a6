"""The default: attention to the known regions, kernel ridge and boosted trees, as regions held back weigh them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from omniset.regions.data import Pairs, PairValues, Regions, known_pairs
from omniset.regions.kernel_ridge import KernelRidge
from omniset.regions.methods import Boosting, Method
from omniset.regions.scores import pearson
from omniset.regions.set_attention import SetAttention
from omniset.regions.splits import FEWEST, held_back

FOLDS = 4
PULL = 1.0  # of the weights towards equal ones
OTHER = 7919  # added to the seed where the ridge chooses: by other folds than those that weigh it
STEEPEST = 3.0  # that predictions are stretched by
POSITION = "attention-position"  # attention to known regions by their places alone

Columns = Sequence[Float[np.ndarray, "_ parts"]]  # predictions of the pairs of each fold
Values = Sequence[Float[np.ndarray, " _"]]  # their connectivity


# ---------------------------------------------------------------------- from predictions of regions held back


def stacked(columns: Columns, values: Values, usual: Float[np.ndarray, " parts"]) -> Float[np.ndarray, " parts"]:
    """Weights w >= 0 of parts, from their predictions x of pairs in several folds, whose connectivity is y.

    With x and y centred within each fold and both divided by the standard deviation of y there,

        w = argmin over w >= 0 of  sum_f mean_f (y - sum_p w_p x_p)^2  +  sum_p (w_p - u_p)^2 sum_f mean_f x_p^2

    where mean_f is that over the pairs of fold f. So every fold counts the same, whatever its size and spread, and what
    folds cannot tell apart is shared out as the usual weights u say. A fold whose y is constant says nothing. Without
    any fold, w = u. After Wolpert, "Stacked generalization" (1992), and Breiman, "Stacked regressions" (1996), who has
    w >= 0.

    Args:
        columns: x of each fold, pairs by parts.
        values: y of each fold.
        usual: u.
    """
    rows, targets = [], []
    for x, y in zip(columns, values, strict=True):
        deviation = float(y.std())
        if deviation > 0:
            scale = deviation * np.sqrt(len(y))
            rows.append((x - x.mean(0)) / scale)
            targets.append((y - y.mean()) / scale)
    if not rows:
        return usual
    size = np.sqrt(PULL * sum(np.square(x).sum(0) for x in rows))
    weights, _ = nnls(np.vstack([*rows, np.diag(size)]), np.concatenate([*targets, size * usual]))
    return weights


def slope_of(predicted: Values, values: Values) -> float:
    """The slope of connectivity over prediction within folds, by least squares: 1, predictions are not squeezed.

        sum_f sum (x - mean_f x) (y - mean_f y) / sum_f sum (x - mean_f x)^2

    Within 0 and 3; 1 where predictions do not differ.
    """
    centred = [(x - x.mean(), y - y.mean()) for x, y in zip(predicted, values, strict=True)]
    spread = sum(float(x @ x) for x, _ in centred)
    if not spread > 0:
        return 1.0
    return float(np.clip(sum(float(x @ y) for x, y in centred) / spread, 0.0, STEEPEST))


def scores_of(names: Sequence[str], columns: Columns, values: Values) -> dict[str, float]:
    """Pearson's r of each column, the mean over folds; without those that are not defined, as of a constant."""
    folds = [[pearson(y, x[:, at]) for at in range(len(names))] for x, y in zip(columns, values, strict=True)]
    means = np.mean(folds, 0).tolist() if folds else []
    return {name: r for name, r in zip(names, means, strict=False) if np.isfinite(r)}


# ---------------------------------------------------------------------- the method


class Blend(Method):
    """b + s sum over parts p of w_p p(i, j), with weights w >= 0 and a slope s on which regions held back decide.

    The parts are attention to the set of known regions, with genes and with places alone, kernel ridge and boosted
    trees. Four folds of the training regions, divided as `held_out` says, are predicted by parts that had not seen them
    (the kernel and the penalty of the ridge were chosen before, by other folds). The weights are `stacked`, and pulled
    towards equal ones, which few regions rarely better. s makes the slope of connectivity over prediction 1 on the
    pairs held back, so that predictions are neither squeezed nor stretched; b makes the mean right. Parts of weight 0
    are left out.

    Args:
        genes: Look at expression.
        device: Where the network learns.
        say: Told what is being fitted.

    Attributes:
        weights: By name.
        scores: Pearson's r over the folds of each part, and of "blend", whose weights were fitted to these very pairs.
        slope, level: s and b.
        fitted: The parts.
    """

    name = "blend"
    weights: dict[str, float]
    scores: dict[str, float]
    slope: float
    level: float
    fitted: dict[str, Method]

    def __init__(
        self,
        genes: bool = True,
        device: str = "cpu",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(genes)
        self.device, self.say = device, say

    def _fit(self, train: Regions, seed: int) -> None:
        both = self.needs_genes and train.coordinates is not None
        rows = np.arange(len(train))
        whole: dict[str, Method] = {}
        for name in ("attention", *((POSITION,) if both else ()), "ridge", "boosting"):
            self.say(f"fitting {name}")
            whole[name] = self._part(name).fit(train, rows, seed + OTHER if name == "ridge" else seed)
        columns, values = self._held_back(train, whole, seed)
        weights = stacked(columns, values, np.full(len(whole), 1 / len(whole)))
        blended = [x @ weights for x in columns]
        self.slope = slope_of(blended, values)
        tried = [np.column_stack([x, y]) for x, y in zip(columns, blended, strict=True)]
        self.scores = scores_of([*whole, "blend"], tried, values)
        self.weights = {name: float(w) for name, w in zip(whole, weights, strict=True)}
        self.fitted = {name: part for name, part in whole.items() if self.weights[name]}
        self.level = (1 - self.slope * sum(self.weights.values())) * float(known_pairs(train)[1].mean())

    def _part(self, name: str, chosen: Method | None = None) -> Method:
        """A part, not fitted; with the choices of one that is."""
        part: Method
        if name == "ridge":
            part = KernelRidge(self.needs_genes, chosen if isinstance(chosen, KernelRidge) else None)
        elif name == "boosting":
            part = Boosting(self.needs_genes)
        else:
            part = SetAttention(self.needs_genes and name != POSITION, self.device)
        part.held_out = self.held_out
        return part

    def _held_back(self, train: Regions, whole: Mapping[str, Method], seed: int) -> tuple[Columns, Values]:
        """What each part predicts of regions that it has not seen, fold by fold, and what is true."""
        columns, values = [], []
        folds = held_back(train, FOLDS, seed, self.held_out)
        for at, (learn, left) in enumerate(folds, 1):
            self.say(f"validation {at} of {len(folds)}")
            if not len(left.pairs()) or len(learn.pairs()) < FEWEST:
                continue
            pairs, known = known_pairs(left)
            rows = np.arange(len(learn))
            parts = [self._part(name, part).fit(learn, rows, seed) for name, part in whole.items()]
            columns.append(np.stack([part.predict(left, pairs) for part in parts], 1))
            values.append(known)
        return columns, values

    def state(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in ("weights", "scores", "slope", "level")}
        return {**about, "parts": {name: part.state() for name, part in self.fitted.items()}}

    def restore(self, state: dict[str, Any], train: Regions) -> Blend:
        self._prepare(train)
        self.weights, self.scores = dict(state["weights"]), dict(state["scores"])
        self.slope, self.level = state["slope"], state["level"]
        self.fitted = {name: self._part(name).restore(part, train) for name, part in state["parts"].items()}
        return self

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        predicted = np.full(len(pairs), self.level)
        for name, part in self.fitted.items():
            predicted += self.slope * self.weights[name] * part.predict(regions, pairs)
        return predicted


def attention_of(method: Method) -> SetAttention | None:
    """The network of a method that reads from known regions: with genes, where there are two."""
    if isinstance(method, Blend):
        parts = [method.fitted[name] for name in ("attention", POSITION) if name in method.fitted]
        method = parts[0] if parts else method
    return method if isinstance(method, SetAttention) else None
