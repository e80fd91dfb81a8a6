"""The default: attention to the known regions, kernel ridges and boosted trees, as regions held back weigh them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from omniset.regions.data import Pairs, PairValues, Places, Regions, known_pairs, places_of
from omniset.regions.kernel_ridge import GenesOverDistance, KernelRidge, MirroredPlaces
from omniset.regions.methods import Boosting, Method
from omniset.regions.scores import pearson
from omniset.regions.set_attention import SetAttention
from omniset.regions.splits import FEWEST, KINDS, held_back_twice, near_known
from omniset.trials.stacking import Numbers, Stack

FOLDS = 3  # of either manner
OTHER = 7919  # added to the seed where the ridges choose: by other folds than those that weigh them
STEEPEST = 3.0  # that predictions are stretched by
LEAST = 12  # regions that weights of their own are learned from
ATTENTION = "attention"
RIDGES = {kind.name: kind for kind in (KernelRidge, MirroredPlaces, GenesOverDistance)}
NEAR, FAR = "near", "far"
RELATIONS = {NEAR: "close to known regions or to their mirror images", FAR: "away from known regions"}

Values = Sequence[Float[np.ndarray, " _"]]  # of the pairs of each fold
Weights = Mapping[str, Mapping[str, float]]  # by relation and part


# ---------------------------------------------------------------------- from predictions of regions held back


@dataclass
class Fold:
    """What parts say of pairs of regions that they have not seen."""

    regions: Shaped[np.ndarray, "pairs 2"]  # the names of both regions of each pair
    columns: Float[np.ndarray, "pairs parts"]  # what each part predicts
    values: Float[np.ndarray, " pairs"]  # what is true
    # Are both regions, or their mirror images, close to regions that were learned from?
    near: Bool[np.ndarray, " pairs"]


def related(folds: Sequence[Fold]) -> dict[str, list[Bool[np.ndarray, " pairs"]]]:
    """The pairs of each fold, by their relation to known regions.

    A relation of fewer than 12 regions, or of pairs of one fold alone, says too little: if there is one, all pairs are
    taken together, as "far".
    """
    kinds = {NEAR: [fold.near for fold in folds], FAR: [~fold.near for fold in folds]}
    for rows in kinds.values():
        regions = [np.unique(fold.regions[there]) for fold, there in zip(folds, rows, strict=True) if there.any()]
        if len(regions) < 2 or len(np.unique(np.concatenate(regions))) < LEAST:
            return {FAR: [np.ones(len(fold.values), dtype=bool) for fold in folds]}
    return kinds


def stacked(folds: Sequence[Fold]) -> dict[str, Stack]:
    """Weights of parts for each relation to known regions, from `omniset.trials.stacking`; none without folds.

    Predictions and connectivity are centred within each fold and divided by the standard deviation of connectivity
    there, and pairs of a fold weigh together as much as those of another: every fold counts the same, whatever its size
    and spread. Units are regions.
    """
    if not folds:
        return {}
    sizes = [len(fold.values) for fold in folds]
    columns = np.concatenate([(fold.columns - fold.columns.mean(0)) / fold.values.std() for fold in folds])
    truth = Numbers(np.concatenate([(fold.values - fold.values.mean()) / fold.values.std() for fold in folds]))
    units, numbers = np.concatenate([fold.regions for fold in folds]), np.repeat(np.arange(len(folds)), sizes)
    return {
        kind: Stack.learned(columns.T, truth, numbers, np.concatenate(rows) / np.repeat(sizes, sizes), units)
        for kind, rows in related(folds).items()
    }


def mixture(columns: Mapping[str, PairValues], near: Bool[np.ndarray, " pairs"], weights: Weights) -> PairValues:
    """The sum over parts of what each says times its weight for the relation of the pair; else for that there is."""
    mixed = np.zeros(len(near))
    for kind, rows in ((NEAR, near), (FAR, ~near)):
        of = weights.get(kind, weights[FAR])
        for name, column in columns.items():
            if of[name]:
                mixed[rows] += of[name] * column[rows]
    return mixed


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


def scores_of(names: Sequence[str], folds: Sequence[Fold], stacks: Mapping[str, Stack]) -> dict[str, dict[str, float]]:
    """Pearson's r of each part by relation, and of "blend", by weights that are learned on the other folds.

    Means over folds, by numbers of pairs, without those that are not defined, as of a constant.
    """
    scores: dict[str, dict[str, float]] = {}
    for kind, rows in related(folds).items() if folds else ():
        weights = contest.weights if (contest := stacks[kind].contest) else {}
        sums: dict[str, list[tuple[float, int]]] = {}
        for number, (fold, there) in enumerate(zip(folds, rows, strict=True)):
            said = dict(zip(names, fold.columns[there].T, strict=True))
            if number in weights:
                said["blend"] = fold.columns[there] @ weights[number]
            for name, column in said.items():
                if there.sum() >= FEWEST:
                    sums.setdefault(name, []).append((pearson(fold.values[there], column), int(there.sum())))
        means = {n: float(np.average([r for r, _ in each], weights=[w for _, w in each])) for n, each in sums.items()}
        scores[kind] = {name: r for name, r in means.items() if np.isfinite(r)}
    return scores


# ---------------------------------------------------------------------- the method


class Blend(Method):
    """b + s sum over parts p of w_p p(i, j), with weights w and a slope s on which regions held back decide.

    The parts are attention to the set of known regions, kernel ridge of genes and places, of mirrored places alone and
    of genes over what distance says, and boosted trees; without genes the first two and the trees, of places. Folds of
    the training regions are predicted by parts that had not seen them (the ridges chose before, by other folds).
    There are two manners of folds, see `omniset.regions.splits.held_back_twice`, as new regions may or may not have a
    mirror image that is known; so there are two kinds of weights: of pairs both of whose regions are "near" known ones,
    see `omniset.regions.splits.near_known`, and of those "far" from them. For each the weights, which sum to 1, are
    `stacked`: where all parts together predict regions worse than the best of them, by more than noise, it is taken
    alone. s makes the slope of connectivity over prediction 1 on the pairs held back, so that predictions are neither
    squeezed nor stretched; b makes the mean right. Of parts of weight 0 only attention with genes is kept: it says
    where connectivity was read from, and which genes tell. `held_out` is not looked at.

    Args:
        genes: Look at expression.
        device: Where the network learns.
        say: Told what is being fitted.

    Attributes:
        weights: By relation to known regions and by name; "far" alone where too little was held back "near".
        scores: Likewise, Pearson's r over the folds of each part, and of "blend", all parts together, with weights that
            are learned on the other folds.
        slope, level: s and b.
        fitted: The parts that are kept.
    """

    name = "blend"
    weights: dict[str, dict[str, float]]
    scores: dict[str, dict[str, float]]
    slope: float
    level: float
    fitted: dict[str, Method]

    def __init__(self, genes: bool = True, device: str = "cpu", say: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(genes)
        self.device, self.say = device, say

    def _fit(self, train: Regions, seed: int) -> None:
        placed = train.coordinates is not None
        self._known = places_of(train) if placed else None
        more = ("ridge-places", *(("geometry-genes",) if self.needs_genes else ())) if placed else ()
        rows = np.arange(len(train))
        whole: dict[str, Method] = {}
        for name in (ATTENTION, "ridge", *more, "boosting"):
            self.say(f"fitting {name}")
            whole[name] = self._part(name).fit(train, rows, seed + OTHER if name in RIDGES else seed)
        folds = self._held_back(train, whole, seed)
        stacks = stacked(folds)
        weights = {kind: stack.weights for kind, stack in stacks.items()} or {FAR: np.full(len(whole), 1 / len(whole))}
        self.weights = {kind: dict(zip(whole, w.tolist(), strict=True)) for kind, w in weights.items()}
        mixed = [mixture(dict(zip(whole, fold.columns.T, strict=True)), fold.near, self.weights) for fold in folds]
        self.slope = slope_of(mixed, [fold.values for fold in folds])
        self.scores = scores_of([*whole], folds, stacks)
        self.fitted = {name: part for name, part in whole.items() if self._counts(name) or name == ATTENTION}
        self.level = (1 - self.slope) * float(known_pairs(train)[1].mean())

    def _counts(self, name: str) -> bool:
        return any(of[name] for of in self.weights.values())

    def _part(self, name: str, chosen: Method | None = None) -> Method:
        """A part, not fitted; with the choices of one that is."""
        part: Method
        if name in RIDGES:
            part = RIDGES[name](self.needs_genes, chosen if isinstance(chosen, KernelRidge) else None)
        elif name == "boosting":
            part = Boosting(self.needs_genes)
        else:
            part = SetAttention(self.needs_genes, self.device)
        part.held_out = "spatial" if name == "ridge-places" else KINDS[0]
        return part

    def _near(self, known: Places | None, regions: Regions, pairs: Pairs) -> Bool[np.ndarray, " pairs"]:
        if known is None:
            return np.zeros(len(pairs), dtype=bool)
        return near_known(known, places_of(regions))[pairs].all(1)

    def _held_back(self, train: Regions, whole: Mapping[str, Method], seed: int) -> list[Fold]:
        """What each part predicts of regions that it has not seen; a fold of constant connectivity says nothing."""
        folds = []
        divided = held_back_twice(train, FOLDS, seed)
        for at, (learn, left) in enumerate(divided, 1):
            self.say(f"validation {at} of {len(divided)}")
            if not len(left.pairs()) or len(learn.pairs()) < FEWEST:
                continue
            pairs, known = known_pairs(left)
            rows = np.arange(len(learn))
            parts = [self._part(name, part).fit(learn, rows, seed) for name, part in whole.items()]
            columns = np.stack([part.predict(left, pairs) for part in parts], 1)
            near = self._near(None if self._known is None else places_of(learn), left, pairs)
            folds.append(Fold(np.array(left.names)[pairs], columns, known, near))
        return [fold for fold in folds if fold.values.std() > 0]

    def state(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in ("weights", "scores", "slope", "level")}
        return {**about, "parts": {name: part.state() for name, part in self.fitted.items()}}

    def restore(self, state: dict[str, Any], train: Regions) -> Blend:
        self._prepare(train)
        self._known = None if train.coordinates is None else places_of(train)
        self.weights, self.scores = ({kind: dict(of) for kind, of in state[n].items()} for n in ("weights", "scores"))
        self.slope, self.level = state["slope"], state["level"]
        self.fitted = {name: self._part(name).restore(part, train) for name, part in state["parts"].items()}
        return self

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        said = {name: part.predict(regions, pairs) for name, part in self.fitted.items() if self._counts(name)}
        return self.level + self.slope * mixture(said, self._near(self._known, regions, pairs), self.weights)


def attention_of(method: Method) -> SetAttention | None:
    """The network of a method that reads from known regions, whatever its weight."""
    if isinstance(method, Blend):
        method = method.fitted.get(ATTENTION, method)
    return method if isinstance(method, SetAttention) else None
