"""Our predictor beside its baselines on regions that none of them has seen, and on expression that means nothing.

Regions are divided into folds; a method learns from the pairs among the regions of all folds but one and predicts the
pairs within that one: both regions of a test pair are new. Bilateral folds are neighbourhoods with their mirror images,
so that a test region has few neighbours, and no twin, among those learned from. What genes add is what ours has more
than the same methods with places alone; and what a closed form has more with expression than with maps that mean
nothing, see `omniset.regions.null_models.null_test`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.regions.data import Pairs, Regions, known_pairs, matrix_of
from omniset.regions.null_models import KINDS, NullResult, maps_of, null_test, surrogates
from omniset.regions.options import BASELINES
from omniset.regions.predictor import LEAST, ConnectivityPredictor
from omniset.regions.scores import pair_distance, pair_hemispheres, pearson_of_draws, scores
from omniset.regions.seed import checksum
from omniset.regions.splits import KINDS as SPLITS
from omniset.regions.splits import split
from omniset.report.blocks import many
from omniset.runs.devices import one_blas_thread
from omniset.runs.files import provenance
from omniset.tables.gene_vectors import GeneVectors
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.kept import Done, Kept

DECISIVE = Score("pearson", "Pearson's r", formula=pearson_of_draws)
PLACES = "places only"  # ours without genes
NAMES = {
    OURS: "ours",
    PLACES: "ours without genes",
    "geometry": "distance and mirrored distance",
    "ridge": "kernel ridge",
    "ridge-places": "kernel ridge of mirrored places",
    "geometry-genes": "distance and ridge of genes",
    "boosting": "boosted trees",
    "attention": "attention to known regions",
    "blend": "all together",
}
METRICS = ("pearson", "spearman", "r2", "mse", "slope")
PARTS = ("pearson_short", "pearson_mid", "pearson_long", "pearson_left", "pearson_right", "pearson_between")


@dataclass
class Evaluation:
    """Methods, and how well each predicts pairs of regions that it has not seen.

    Attributes:
        by_fold: A row per seed, fold and method: `seed`, `fold`, `method`, `seconds` of the fit, and what
            `omniset.regions.scores.scores` gives for the pairs of the fold.
        nulls: Of the first seed: the closed form beside its nulls, by kind of null.
        predictions: By method, of every seed: all pairs, NaN between folds; rows and columns are `regions`.
        folds: The fold of each region, of every seed.
        regions: All of them.
        split: "bilateral", "spatial" or "random".
    """

    by_fold: pd.DataFrame
    nulls: list[NullResult]
    predictions: dict[str, Float[np.ndarray, "seeds regions regions"]]
    folds: Int[np.ndarray, "seeds regions"]
    regions: Regions
    split: str

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
        return [*self.regions.notes, *one * (self.regions.one_sided and self.split == "bilateral")]

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
            baselines=[name for name in self.methods if name in BASELINES],
            aims=[Aim(self.split, DECISIVE.name)],
            names=NAMES,
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

    def lines(self) -> Iterator[str]:
        """For a console: what genes add, the nulls, methods, the verdict and the gates."""
        number = many(len(self.seeds), "seed")
        yield f"\n{self.split.capitalize()} split, {self.by_fold['fold'].nunique()} folds x {number}."
        if self.genes_add():
            yield self.genes_add()
        for one in self.nulls:
            about = one.as_dict()
            ends = f"{about['gain_low']:+.3f} to {about['gain_high']:+.3f}"
            yield (
                f"  null, {one.kind}: a kernel ridge of {one.what} reaches {one.observed:.3f}, {about['mean']:.3f} "
                f"with {len(one.nulls):,} nulls: {about['gain']:+.3f} ({ends}), p {one.p:.3g}"
            )
        yield from self.comparison.lines()

    def numbers(self) -> dict[str, Any]:
        """What is known beside the comparison and the predictions."""
        return {
            "regions": len(self.regions),
            "genes": len(self.regions.genes),
            "split": self.split,
            "notes": self.notes,
            "table": self.table().to_dict("index"),
            "seeds": self.seeds,
            "folds": int(self.by_fold["fold"].nunique()),
            "genes_add": self.genes_add(),
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
    methods: Sequence[str] | None = None,
    variants: Mapping[str, dict[str, Any]] | None = None,
    mine: bool = True,
    gene_vectors: GeneVectors | None = None,
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
        null: Nulls of each of `omniset.regions.null_models.KINDS`, for the folds of the first seed.
        methods: Baselines, of `omniset.regions.options.BASELINES`. None: all, but the method that ours is itself.
        variants: Further models of ours: a name, and what differs in `arguments`.
        mine: Run ours as given by `arguments`; the default also without genes.
        gene_vectors: As in `ConnectivityPredictor.fit`, for models that take them.
        folder: Keep the rows of each seed and method here, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Is given a line of what is done next.
        arguments: Of ConnectivityPredictor; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no connectivity, nothing that can be run, places that a method needs
            and nobody knows, or a folder with rows of other arguments or data.
    """
    first = arguments.pop("seed", 0)
    # A baseline that ours is itself would tie with it; without places, some are the ridge or nothing.
    useless = (arguments.get("method"), *(() if regions.placed else ("ridge-places", "geometry-genes")))
    chosen = [name for name in BASELINES if name not in useless] if methods is None else list(methods)
    models: dict[str, dict[str, Any]] = {name: {"method": name} for name in chosen}
    models |= {OURS: arguments} if mine else {}
    if mine and regions.placed and arguments.get("method", "blend") == "blend":
        models[PLACES] = {**arguments, "method": "places"}
    models |= {name: {**arguments, **more} for name, more in (variants or {}).items()}
    for name, value, least in (("folds", folds, 2), ("seeds", seeds, 1), ("null", null, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")
    _check_names("split_by", [split_by], SPLITS)
    _check_names("methods", chosen, BASELINES)
    if null and not regions.placed:
        raise ValueError("null needs coordinates of every region, which are not known")
    _check_models(models, regions, folds)
    parts = {seed: split(split_by, regions, folds, seed) for seed in range(first, first + seeds)}
    store = Kept(folder, resume)
    about = {"split": split_by, "folds": folds, "data": checksum(regions)}

    def keep(name: str, settings: dict[str, Any], work: Callable[[], Done]) -> Done:
        return store.do(name, {**about, **settings}, work)

    done: dict[str, list[Done]] = {}
    for model, options in models.items():
        vectors = gene_vectors if options.get("method") == "seed" else None
        runs = [_Run(regions, parts[seed], split_by, model, options, seed, vectors) for seed in parts]
        done[model] = [keep(f"{model}_{run.seed}_scores", run.about(), partial(run.scored, say)) for run in runs]
    tested: list[NullResult] = []
    for kind in KINDS if null else ():
        unit = keep(f"null_{kind}_{null}_{first}", {}, partial(_nulled, regions, parts[first], kind, null, first, say))
        observed = zip(unit.facts["what"], unit.facts["observed"], strict=True)
        tested += [NullResult(what, kind, value, unit.arrays[what]) for what, value in observed]
    fold_of = np.zeros((seeds, len(regions)), dtype=np.int64)
    for row, of_seed in zip(fold_of, parts.values(), strict=True):
        for fold, rows in enumerate(of_seed):
            row[rows] = fold
    return Evaluation(
        pd.concat([unit.rows for units in done.values() for unit in units], ignore_index=True),
        tested,
        {model: np.stack([unit.arrays["predictions"] for unit in units]) for model, units in done.items()},
        fold_of,
        regions,
        split_by,
    )


def _check_names(name: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [one for one in given if one not in known]
    if unknown:
        raise ValueError(f"{name} must be out of {', '.join(known)}; got {unknown[0]!r}")


def _check_models(models: Mapping[str, dict[str, Any]], regions: Regions, folds: int) -> None:
    """Raise what stops any of them, before work is done for the first."""
    if not models:
        raise ValueError("methods, variants and mine leave nothing to run")
    for model, options in models.items():
        predictor = ConnectivityPredictor(**options)
        predictor.check_arguments()
        if regions.coordinates is None and predictor.make().needs_coordinates:
            raise ValueError(f"{model} needs coordinates, which are not known")
    regions.pairs()
    if len(regions) - math.ceil(len(regions) / folds) < LEAST:
        raise ValueError(f"there are {len(regions)} regions: without one of {folds} folds, fewer than {LEAST} are left")


def _nulled(
    regions: Regions, parts: list[Int[np.ndarray, " _"]], kind: str, number: int, seed: int, say: Callable[[str], None]
) -> Done:
    """The closed form of `omniset.regions.null_models.null_test`, and so many nulls."""
    say(f"{number:,} nulls, {kind}")
    found = null_test(regions, parts, kind, surrogates(kind, maps_of(regions), regions, number, seed))
    facts = {"observed": [one.observed for one in found], "what": [one.what for one in found]}
    return Done({**facts, "provenance": provenance(seed)}, None, {one.what: one.nulls for one in found})


@dataclass
class _Run:
    """A method on the folds of one seed."""

    regions: Regions
    parts: list[Int[np.ndarray, " _"]]  # folds, which differ in size
    split: str
    model: str
    options: dict[str, Any]
    seed: int
    vectors: GeneVectors | None

    def about(self) -> dict[str, Any]:
        """What tells its model from others."""
        vectors = {} if self.vectors is None else {"gene_vectors": self.vectors.checksum()}
        options = ConnectivityPredictor(**self.options).plain()
        del options["seed"]
        return {**options, **vectors}

    def scored(self, say: Callable[[str], None]) -> Done:
        """Fitted and scored in every fold."""
        rows = []
        predictions = np.full((len(self.regions), len(self.regions)), np.nan)
        for fold, test in enumerate(self.parts):
            say(f"{self.model}, seed {self.seed}, fold {fold + 1} of {len(self.parts)}")
            start = time.perf_counter()
            predictor = ConnectivityPredictor(**{"progress": False, **self.options}, seed=self.seed)
            learn = np.setdiff1d(np.arange(len(self.regions)), test)
            predictor.fit_rows(self.regions, learn, gene_vectors=self.vectors, held_out=self.split)
            within = self.regions.take(test)
            pairs, truth = known_pairs(within)
            predicted = predictor.method_.predict(predictor.aligned(within), pairs)
            sides = None if within.hemisphere is None else pair_hemispheres(within.hemisphere, pairs)
            distances = None if within.coordinates is None else pair_distance(within.coordinates, pairs)
            measured = scores(truth, predicted, distances, sides)
            about = {"seed": self.seed, "fold": fold, "method": self.model}
            seconds = time.perf_counter() - start
            rows.append({**about, "seconds": seconds, **dict.fromkeys(PARTS, math.nan), **measured})
            predictions[np.ix_(test, test)] = matrix_of(within, pairs, predicted)
        return Done({"provenance": provenance(self.seed)}, pd.DataFrame(rows), {"predictions": predictions})
