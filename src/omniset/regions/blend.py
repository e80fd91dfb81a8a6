"""The default: attention to the known regions, kernel ridge and boosted trees, as regions held back weigh them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from omniset.regions.data import Pairs, PairValues, Regions, known_pairs
from omniset.regions.kernel_ridge import KernelRidge
from omniset.regions.methods import Boosting, Method
from omniset.regions.scores import pearson
from omniset.regions.set_attention import SetAttention
from omniset.regions.splits import FEWEST, held_back
from omniset.trials.stacking import Numbers, Stack

FOLDS = 4
OTHER = 7919  # added to the seed where the ridge chooses: by other folds than those that weigh it
STEEPEST = 3.0  # that predictions are stretched by
ATTENTION = "attention"
POSITION = "attention-position"  # attention to known regions by their places alone

Values = Sequence[Float[np.ndarray, " _"]]  # of the pairs of each fold


# ---------------------------------------------------------------------- from predictions of regions held back


@dataclass
class Fold:
    """What parts say of pairs of regions that they have not seen.

    Attributes:
        regions: The names of both regions of each pair.
        columns: What each part predicts.
        values: What is true.
    """

    regions: Shaped[np.ndarray, "pairs 2"]
    columns: Float[np.ndarray, "pairs parts"]
    values: Float[np.ndarray, " pairs"]


def stacked(folds: Sequence[Fold]) -> Stack | None:
    """Weights of parts, from `omniset.trials.stacking`; None without folds.

    Predictions and connectivity are centred within each fold and divided by the standard deviation of connectivity
    there, and pairs of a fold weigh together as much as those of another: every fold counts the same, whatever its size
    and spread. Units are regions.
    """
    if not folds:
        return None
    sizes = [len(fold.values) for fold in folds]
    columns = np.concatenate([(fold.columns - fold.columns.mean(0)) / fold.values.std() for fold in folds])
    truth = np.concatenate([(fold.values - fold.values.mean()) / fold.values.std() for fold in folds])
    units, numbers = np.concatenate([fold.regions for fold in folds]), np.repeat(np.arange(len(folds)), sizes)
    return Stack.learned(columns.T, Numbers(truth), numbers, 1 / np.repeat(sizes, sizes), units)


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


def scores_of(names: Sequence[str], folds: Sequence[Fold], stack: Stack | None) -> dict[str, float]:
    """Pearson's r of each part, the mean over folds, and of "blend", by weights that are learned on the other folds.

    Without those that are not defined, as of a constant.
    """
    scores: dict[str, list[float]] = {name: [] for name in names}
    weights = {} if stack is None or stack.contest is None else stack.contest.weights
    for number, fold in enumerate(folds):
        for name, column in zip(names, fold.columns.T, strict=True):
            scores[name].append(pearson(fold.values, column))
        if number in weights:
            scores.setdefault("blend", []).append(pearson(fold.values, fold.columns @ weights[number]))
    means = {name: float(np.mean(each)) for name, each in scores.items() if each}
    return {name: r for name, r in means.items() if np.isfinite(r)}


# ---------------------------------------------------------------------- the method


class Blend(Method):
    """b + s sum over parts p of w_p p(i, j), with weights w and a slope s on which regions held back decide.

    The parts are attention to the set of known regions, with genes and with places alone, kernel ridge and boosted
    trees. Four folds of the training regions, divided as `held_out` says, are predicted by parts that had not seen them
    (the kernel and the penalty of the ridge were chosen before, by other folds). The weights, which sum to 1, are
    `stacked`: where all parts together predict regions worse than the best of them, by more than noise, it is taken
    alone. s makes the slope of connectivity over prediction 1 on the pairs held back, so that predictions are neither
    squeezed nor stretched; b makes the mean right. Of parts of weight 0 only attention with genes is kept: it says
    where connectivity was read from, and which genes tell.

    Args:
        genes: Look at expression.
        device: Where the network learns.
        say: Told what is being fitted.

    Attributes:
        weights: By name.
        scores: Pearson's r over the folds of each part, and of "blend", all parts together, with weights that are
            learned on the other folds.
        slope, level: s and b.
        fitted: The parts that are kept.
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
        for name in (ATTENTION, *((POSITION,) if both else ()), "ridge", "boosting"):
            self.say(f"fitting {name}")
            whole[name] = self._part(name).fit(train, rows, seed + OTHER if name == "ridge" else seed)
        folds = self._held_back(train, whole, seed)
        stack = stacked(folds)
        weights = np.full(len(whole), 1 / len(whole)) if stack is None else stack.weights
        self.slope = slope_of([fold.columns @ weights for fold in folds], [fold.values for fold in folds])
        self.scores = scores_of([*whole], folds, stack)
        self.weights = {name: float(w) for name, w in zip(whole, weights, strict=True)}
        self.fitted = {name: part for name, part in whole.items() if self.weights[name] or name == ATTENTION}
        self.level = (1 - self.slope) * float(known_pairs(train)[1].mean())

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

    def _held_back(self, train: Regions, whole: Mapping[str, Method], seed: int) -> list[Fold]:
        """What each part predicts of regions that it has not seen; a fold of constant connectivity says nothing."""
        folds = []
        divided = held_back(train, FOLDS, seed, self.held_out)
        for at, (learn, left) in enumerate(divided, 1):
            self.say(f"validation {at} of {len(divided)}")
            if not len(left.pairs()) or len(learn.pairs()) < FEWEST:
                continue
            pairs, known = known_pairs(left)
            rows = np.arange(len(learn))
            parts = [self._part(name, part).fit(learn, rows, seed) for name, part in whole.items()]
            columns = np.stack([part.predict(left, pairs) for part in parts], 1)
            folds.append(Fold(np.array(left.names)[pairs], columns, known))
        return [fold for fold in folds if fold.values.std() > 0]

    @property
    def alone(self) -> str | None:
        """The part that is taken alone; None where several are mixed."""
        weighed = [name for name, weight in self.weights.items() if weight]
        return weighed[0] if len(weighed) == 1 else None

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
            if self.weights[name]:
                predicted += self.slope * self.weights[name] * part.predict(regions, pairs)
        return predicted


def attention_of(method: Method) -> SetAttention | None:
    """The network of a method that reads from known regions, whatever its weight."""
    if isinstance(method, Blend):
        method = method.fitted.get(ATTENTION, method)
    return method if isinstance(method, SetAttention) else None
