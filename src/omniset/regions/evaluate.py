"""Our predictor beside its baselines on regions that none of them has seen, and on expression that means nothing.

Regions are divided into folds; a method learns from the pairs among the regions of all folds but one and predicts the
pairs within that one: both regions of a test pair are new. Bilateral folds are neighbourhoods with their mirror images,
so that a test region has few neighbours, and no twin, among those learned from. What genes add is what ours has more
than the same methods with places alone; and what a closed form has more with expression than with maps that mean
nothing, see `omniset.regions.nulltest`.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.regions.baselines import METHODS
from omniset.regions.data import Pairs, Regions
from omniset.regions.nulltest import NullResult, maps_of, null_test
from omniset.regions.predictor import LEAST, ConnectivityPredictor
from omniset.regions.scaling import known_pairs, matrix_of
from omniset.regions.scores import pair_distance, pair_hemispheres, pearson_of_draws, scores
from omniset.regions.splits import split, twinned
from omniset.regions.structures import groups_of
from omniset.regions.surrogates import KINDS, file_spins, surrogates
from omniset.regions.training import checksum
from omniset.runs.devices import one_blas_thread
from omniset.runs.files import provenance
from omniset.tables.gene_vectors import GeneVectors
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.kept import Done, Kept

DECISIVE = Score("pearson", "Pearson's r", formula=pearson_of_draws)
METRICS = ("pearson", "spearman", "r2", "mse", "slope")
PARTS = ("pearson_short", "pearson_mid", "pearson_long", "pearson_left", "pearson_right", "pearson_between")
PLACES = "places only"  # ours without genes


@dataclass
class Evaluation:
    """Methods, and how well each predicts pairs of regions that it has not seen.

    Attributes:
        by_fold: A row per seed, fold and method: `seed`, `fold`, `method`, `seconds` of the fit, and what
            `omniset.regions.scores.scores` gives for the pairs of the fold.
        nulls: Of the first seed: the closed form beside its nulls, by kind of null.
        weights: Of our default, a row per seed and fold: what its parts are weighed with.
        predictions: By method, of every seed: all pairs, NaN between folds; rows and columns are `regions`.
        folds: The fold of each region, of every seed.
        regions: All of them.
        split: "bilateral", "spatial" or "random".
        not_run: Methods that could not be run, and why.
    """

    by_fold: pd.DataFrame
    nulls: list[NullResult]
    weights: pd.DataFrame
    predictions: dict[str, Float[np.ndarray, "seeds regions regions"]]
    folds: Int[np.ndarray, "seeds regions"]
    regions: Regions
    split: str
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        return self.by_fold["method"].unique().tolist()

    @property
    def seeds(self) -> list[int]:
        return self.by_fold["seed"].unique().tolist()

    @property
    def notes(self) -> list[str]:
        """What was decided on the data, a sentence each."""
        one = ["all regions are of one hemisphere: bilateral folds of them are spatial folds"]
        not_run = (f"{name} was not run: {why}" for name, why in self.not_run.items())
        return [*self.regions.notes, *one * (self.regions.one_sided and self.split == "bilateral"), *not_run]

    @cached_property
    def twinned(self) -> float:
        """The share of test pairs whose mirror image is learned from, see `omniset.regions.splits.twinned`.

        NaN: places are not known, or all are of one hemisphere.
        """
        if not self.regions.placed or self.regions.one_sided:
            return math.nan
        coordinates = self.regions.coordinates
        assert coordinates is not None
        shares = [twinned(coordinates, self.tested(at), self.folds[at]) for at in range(len(self.seeds))]
        return float(np.mean(shares))

    def genes_add(self) -> str:
        """What ours has more than ours with places alone, in a sentence; empty where either was not run."""
        if not {OURS, PLACES} <= set(self.methods):
            return ""
        gap = self.comparison.difference(DECISIVE.name, self.split, PLACES)
        with_, without = (self.comparison.interval(DECISIVE.name, self.split, m).value for m in (OURS, PLACES))
        ends = f", 95 % interval {gap.low:+.3f} to {gap.high:+.3f}" if math.isfinite(gap.low) else ""
        what = "Genes add" if gap.low > 0 else "Genes take away" if gap.high < 0 else "Genes add nothing that is sure:"
        both = f"{with_:.3f} with genes, {without:.3f} without"
        return f"{what} {gap.value:+.3f} to Pearson's r of places alone{ends}: {both}."

    def tested(self, seed: int = 0) -> Pairs:
        """The known pairs within folds of a seed, by its place among the seeds."""
        pairs = self.regions.pairs()
        fold = self.folds[seed]
        return pairs[fold[pairs[:, 0]] == fold[pairs[:, 1]]]

    @cached_property
    def comparison(self) -> Comparison:
        """Pearson's r of every method: a row per seed, test pair and method. What is drawn again are brain regions."""
        assert self.regions.connectivity is not None
        names = np.array(self.regions.names, dtype=object)
        parts = []
        for method, predictions in self.predictions.items():
            for at, seed in enumerate(self.seeds):
                i, j = self.tested(at).T
                about = {"condition": self.split, "method": method, "seed": seed, "fold": self.folds[at, i]}
                about |= {"region_a": names[i], "region_b": names[j], "truth": self.regions.connectivity[i, j]}
                parts.append(pd.DataFrame({**about, "predicted": predictions[at, i, j]}))
        return Comparison(
            pd.concat(parts, ignore_index=True),
            scores=[DECISIVE],
            unit="brain region",
            units=("region_a", "region_b"),
            keys=["seed", "fold"],
            baselines=[name for name in self.methods if name in METHODS],
            aims=[Aim(self.split, DECISIVE.name)],
        )

    def table(self) -> pd.DataFrame:
        """Index method, best first: the mean of each score over folds and seeds; `pearson_low` and `pearson_high`, the
        95 % interval of the first; `seconds`, the median.
        """
        table = {}
        for method, rows in self.by_fold.groupby("method", sort=False):
            interval = self.comparison.interval(DECISIVE.name, self.split, str(method))
            table[method] = {
                "pearson": rows["pearson"].mean(),
                "pearson_low": interval.low,
                "pearson_high": interval.high,
                **{name: rows[name].mean() for name in (*METRICS[1:], *PARTS)},
                "seconds": rows["seconds"].median(),
            }
        return pd.DataFrame.from_dict(table, orient="index").sort_values("pearson", ascending=False)

    def numbers(self) -> dict[str, Any]:
        """What is known beside the comparison and the predictions."""
        return {
            "regions": len(self.regions),
            "genes": len(self.regions.genes),
            "split": self.split,
            "notes": self.notes,
            "table": self.table().to_dict("index"),
            "not_run": self.not_run,
            "seeds": self.seeds,
            "folds": int(self.by_fold["fold"].nunique()),
            "twinned": self.twinned,
            "genes_add": self.genes_add(),
            "weights": self.weights.to_dict("records"),
            "by_fold": self.by_fold.to_dict("records"),
            "nulls": [result.as_dict() for result in self.nulls],
        }


@one_blas_thread()
def evaluate(
    regions: Regions,
    *,
    split_by: str = "bilateral",
    folds: int = 4,
    seeds: int = 3,
    null: int = 0,
    null_kinds: Sequence[str] = ("spin",),
    spun: Int[np.ndarray, "number regions"] | None = None,
    methods: Sequence[str] | None = None,
    variants: Mapping[str, dict[str, Any]] | None = None,
    mine: bool = True,
    gene_vectors: GeneVectors | str | Path | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    **arguments: Any,
) -> Evaluation:
    """Fit and score every method for every seed and fold.

    Args:
        regions: With connectivity.
        split_by: "bilateral", "spatial" or "random"; regions are also held back so within the training regions.
        folds: Of each seed.
        seeds: Divisions, from the first seed on.
        null: Nulls of each kind, for the folds of the first seed.
        null_kinds: Of `omniset.regions.surrogates.KINDS`.
        spun: Spins made elsewhere, which are a kind of their own: see `omniset.regions.nulls.as_spins`.
        methods: Baselines, names in `omniset.regions.baselines.METHODS`. None: all, but the method that ours is itself.
        variants: Further models of ours: a name, and what differs in `arguments`.
        mine: Run ours as given by `arguments`; the default also without genes.
        gene_vectors: As in `ConnectivityPredictor.fit`, for models that take them.
        folder: Keep the rows of each seed and method here, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Is given a line of what is done next.
        arguments: Of ConnectivityPredictor; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no connectivity, nothing that can be run, or a folder with rows of
            other arguments or data.
    """
    first = arguments.pop("seed", 0)
    arguments = {**arguments, "held_out": split_by}
    # A baseline that ours is itself would tie with it.
    chosen = [n for n in METHODS if n != arguments.get("method")] if methods is None else list(methods)
    _check(regions, chosen, folds, seeds, null, null_kinds, spun)
    parts = {seed: split(split_by, regions, folds, seed) for seed in range(first, first + seeds)}
    ConnectivityPredictor(seed=first, **arguments).check_arguments()
    models = _models(regions, chosen, arguments, variants or {}, mine)
    not_run = _not_run(models, regions)
    models = {model: options for model, options in models.items() if model not in not_run}
    if not models:
        why = "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        raise ValueError(f"methods, variants and mine leave nothing to run. {why}".strip())
    store = Kept(folder, resume)
    about = {"split": split_by, "folds": folds, "data": checksum(regions)}
    done: dict[str, list[Done]] = {}
    for model, options in models.items():
        vectors = gene_vectors if options.get("architecture", "multiset") != "multiset" else None
        done[model] = []
        for seed in parts:
            run = _Run(regions, parts[seed], model, options, seed, vectors)
            settings = {**about, **run.about()}
            done[model].append(store.do(f"{model}_{seed}_scores", settings, partial(_scored, run, say)))
    nulls = _null_results(regions, parts[first], null, null_kinds, spun, first, store, about, say)
    fold_of = np.zeros((seeds, len(regions)), dtype=np.int64)
    for row, of_seed in zip(fold_of, parts.values(), strict=True):
        for fold, rows in enumerate(of_seed):
            row[rows] = fold
    return Evaluation(
        pd.concat([unit.rows for units in done.values() for unit in units], ignore_index=True),
        nulls,
        pd.DataFrame([row for units in done.values() for unit in units for row in unit.facts["weights"]]),
        {model: np.stack([unit.arrays["predictions"] for unit in units]) for model, units in done.items()},
        fold_of,
        regions,
        split_by,
        not_run,
    )


def _models(
    regions: Regions,
    chosen: Sequence[str],
    arguments: dict[str, Any],
    variants: Mapping[str, dict[str, Any]],
    mine: bool,
) -> dict[str, dict[str, Any]]:
    """The options of every model that is run."""
    models: dict[str, dict[str, Any]] = {name: {"method": name, "held_out": arguments["held_out"]} for name in chosen}
    models |= {OURS: dict(arguments)} if mine else {}
    default = arguments.get("architecture", "multiset") == "multiset" and arguments.get("method") in (None, "blend")
    if mine and default and regions.placed:
        models[PLACES] = {**arguments, "method": "blend-position"}
    return models | {name: {**arguments, **more} for name, more in variants.items()}


def _null_results(
    regions: Regions,
    parts: list[Int[np.ndarray, " _"]],
    number: int,
    kinds: Sequence[str],
    spun: Int[np.ndarray, "number regions"] | None,
    seed: int,
    store: Kept,
    about: dict[str, Any],
    say: Callable[[str], None],
) -> list[NullResult]:
    """The closed form of `omniset.regions.nulltest` beside the nulls of each kind."""
    made = {kind: number for kind in kinds if number} | ({"file": len(spun)} if spun is not None else {})
    results = []
    for kind, size in made.items():

        def work(kind: str = kind, size: int = size) -> Done:
            say(f"{size:,} nulls, {kind}")
            assert regions.coordinates is not None
            maps = maps_of(regions)
            if spun is not None and kind == "file":
                nulls = file_spins(spun, maps)
            else:
                nulls = surrogates(kind, maps, regions.coordinates, regions.hemisphere, size, seed, groups_of(regions))
            tested = null_test(regions, parts, kind, nulls)
            facts = {"observed": [one.observed for one in tested], "what": [one.what for one in tested]}
            return Done({**facts, "provenance": provenance(seed)}, None, {one.what: one.nulls for one in tested})

        crc = {} if kind != "file" or spun is None else {"spins": zlib.crc32(np.ascontiguousarray(spun).tobytes())}
        unit = store.do(f"null_{kind}_{size}_{seed}", {**about, **crc}, work)
        observed = zip(unit.facts["what"], unit.facts["observed"], strict=True)
        results += [NullResult(what, kind, value, unit.arrays[what]) for what, value in observed]
    return results


def _check(
    regions: Regions,
    chosen: Sequence[str],
    folds: int,
    seeds: int,
    null: int,
    null_kinds: Sequence[str],
    spun: Int[np.ndarray, "number regions"] | None,
) -> None:
    """Raise the ValueErrors of `evaluate` that need no model."""
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        raise ValueError(f"methods must be out of {', '.join(METHODS)}; got {unknown[0]!r}")
    unknown = [name for name in null_kinds if name not in KINDS]
    if unknown:
        raise ValueError(f"null_kinds must be out of {', '.join(KINDS)}; got {unknown[0]!r}")
    for name, value, least in (("folds", folds, 2), ("seeds", seeds, 1), ("null", null, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")
    if (null or spun is not None) and not regions.placed:
        raise ValueError("null needs coordinates of every region, which are not known")
    regions.pairs()
    if len(regions) - math.ceil(len(regions) / folds) < LEAST:
        raise ValueError(f"there are {len(regions)} regions: without one of {folds} folds, fewer than {LEAST} are left")


def _not_run(models: Mapping[str, dict[str, Any]], regions: Regions) -> dict[str, str]:
    """Models that need what is not known, and why; the ValueError of one with bad options."""
    not_run = {}
    for model, options in models.items():
        predictor = ConnectivityPredictor(**options)
        predictor.check_arguments()
        if regions.coordinates is None and predictor.make().needs_coordinates:
            not_run[model] = "it needs coordinates, which are not known"
    return not_run


@dataclass
class _Run:
    """A method on the folds of one seed."""

    regions: Regions
    parts: list[Int[np.ndarray, " _"]]  # folds, which differ in size
    model: str
    options: dict[str, Any]
    seed: int
    vectors: Any

    def about(self) -> dict[str, Any]:
        """What tells its model from others."""
        vectors = {"gene_vectors": self.vectors.checksum()} if isinstance(self.vectors, GeneVectors) else {}
        options = ConnectivityPredictor(**self.options).plain()
        del options["seed"]
        return {**options, **vectors}

    def scored(
        self, regions: Regions, test: Int[np.ndarray, " fold"]
    ) -> tuple[dict[str, float], np.ndarray, np.ndarray, ConnectivityPredictor]:
        """Scores of the pairs of a fold, these pairs, what is predicted, and the model."""
        predictor = ConnectivityPredictor(**{"progress": False, **self.options}, seed=self.seed)
        predictor.fit_rows(regions, np.setdiff1d(np.arange(len(regions)), test), gene_vectors=self.vectors)
        within = regions.take(test)
        pairs, truth = known_pairs(within)
        predicted = predictor.method_.predict(predictor.aligned(within), pairs)
        distance = None if within.coordinates is None else pair_distance(within.coordinates, pairs)
        sides = None if within.hemisphere is None else pair_hemispheres(within.hemisphere, pairs)
        return scores(truth, predicted, distance, sides), pairs, predicted, predictor


def _scored(run: _Run, say: Callable[[str], None]) -> Done:
    rows, weights = [], []
    predictions = np.full((len(run.regions), len(run.regions)), np.nan)
    for fold, test in enumerate(run.parts):
        say(f"{run.model}, seed {run.seed}, fold {fold + 1} of {len(run.parts)}")
        start = time.perf_counter()
        measured, pairs, predicted, predictor = run.scored(run.regions, test)
        seconds = time.perf_counter() - start
        about = {"seed": run.seed, "fold": fold, "method": run.model}
        rows.append({**about, "seconds": seconds, **dict.fromkeys(PARTS, math.nan), **measured})
        if predictor.weights_:
            weights.append({**about, **predictor.weights_})
        predictions[np.ix_(test, test)] = matrix_of(run.regions.take(test), pairs, predicted)
    facts = {"weights": weights, "provenance": provenance(run.seed)}
    return Done(facts, pd.DataFrame(rows), {"predictions": predictions})
