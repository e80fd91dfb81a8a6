"""Our predictor beside its baselines on regions that none of them has seen, and on expression that means nothing.

Regions are divided into folds; a method learns from the pairs among the regions of all folds but one and predicts the
pairs within that one: both regions of a test pair are new. Spatial folds are neighbourhoods, so that a test region has
few neighbours among those learned from. The null: expression whose rows have changed places by a rotation of the
cortex; what a method reaches with it comes from coordinates and from how smooth brain maps are, not from genes.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.files import plain, provenance, replacing, writable_folder
from omniset.gene_vectors import GeneVectors
from omniset.regions.baselines import METHODS
from omniset.regions.data import Regions
from omniset.regions.nulls import spins
from omniset.regions.predictor import LEAST, ConnectivityPredictor
from omniset.regions.scores import interval, pair_distance, pair_hemispheres, scores
from omniset.regions.splits import split
from omniset.regions.training import checksum

MINE = "omniset"
METRICS = ("pearson", "spearman", "r2", "mse")
PARTS = ("pearson_short", "pearson_mid", "pearson_long", "pearson_left", "pearson_right", "pearson_between")
NULLED = ("ridge", MINE)
SUBCORTEX = re.compile(
    r"accumb|amyg|caud|hippoc|pallid|putam|thal|cerebell|brain.?stem|ventraldc|subcort", re.IGNORECASE
)


@dataclass
class Evaluation:
    """What was found.

    Attributes:
        rows: A row per seed, fold and method: `seed`, `fold`, `method`, `seconds` of the fit, and what
            `omniset.regions.scores.scores` gives for the pairs of the fold.
        null: A row per fold and spin of the first seed and method: `seed`, `fold`, `method`, `spin`, `pearson`.
        weights: Of our default, a row per seed and fold: what its parts are weighed with.
        predictions: By method, of the first seed: all pairs, NaN between folds; rows and columns are `regions`.
        folds: (regions,) the fold of each region, of the first seed.
        regions: All of them.
        split: "spatial" or "random".
        not_run: Methods that could not be run, and why.
    """

    rows: pd.DataFrame
    null: pd.DataFrame
    weights: pd.DataFrame
    predictions: dict[str, Float[np.ndarray, "regions regions"]]
    folds: Int[np.ndarray, " regions"]
    regions: Regions
    split: str
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        return self.rows["method"].unique().tolist()

    @property
    def baselines(self) -> list[str]:
        return [name for name in self.methods if name in METHODS]

    def table(self) -> pd.DataFrame:
        """Index method, best first: the mean of each score over folds and seeds; `pearson_low` and `pearson_high`, a 95
        % interval of its mean, folds drawn seed by seed (of one seed: folds drawn); `null`, Pearson's r with spun
        expression; `gain`, what Pearson's r of the first seed has more than that; `seconds`, the median.
        """
        found = {}
        for method, rows in self.rows.groupby("method", sort=False):
            low, high = _interval(rows["pearson"], rows["seed"])
            spun = self.null[self.null["method"] == method]
            null = float(spun["pearson"].mean()) if len(spun) else math.nan
            first = rows[rows["seed"] == self.rows["seed"].iloc[0]]["pearson"].mean()
            found[method] = {
                "pearson": rows["pearson"].mean(),
                "pearson_low": low,
                "pearson_high": high,
                **{name: rows[name].mean() for name in (*METRICS[1:], *PARTS)},
                "null": null,
                "gain": float(first) - null,
                "seconds": rows["seconds"].median(),
            }
        return pd.DataFrame.from_dict(found, orient="index").sort_values("pearson", ascending=False)

    def best_baseline(self) -> str | None:
        """With the largest mean of Pearson's r."""
        table = self.table()
        here = [name for name in table.index if name in self.baselines]
        return here[0] if here else None

    def difference(self, other: str, mine: str = MINE) -> tuple[float, float, float]:
        """Mean over folds and seeds of Pearson's r of mine minus the other's, and its 95 % interval."""
        of = {
            name: self.rows[self.rows["method"] == name].set_index(["seed", "fold"])["pearson"]
            for name in (mine, other)
        }
        paired = (of[mine] - of[other]).dropna()
        seeds = paired.index.get_level_values("seed")
        return (float(paired.mean()), *_interval(paired.reset_index(drop=True), pd.Series(seeds)))

    def gates(self) -> list[dict[str, Any]]:
        """What a useful method must hold: `gate`, `value`, `low`, `high` (its interval), `bound`, `holds`."""
        best = self.best_baseline()
        if best is None or MINE not in self.methods:
            return []
        value, low, high = self.difference(best)
        gate = f"Pearson's r, ours minus the best baseline ({best})"
        return [{"gate": gate, "value": value, "low": low, "high": high, "bound": "> 0", "holds": value > 0}]

    def numbers(self) -> dict[str, Any]:
        """All of it but the predictions, as plain JSON; None where a number is not defined."""
        return plain(
            {
                "regions": len(self.regions),
                "genes": len(self.regions.genes),
                "split": self.split,
                "notes": self.regions.notes,
                "gates": self.gates(),
                "table": self.table().to_dict("index"),
                "not_run": self.not_run,
                "seeds": self.rows["seed"].unique().tolist(),
                "folds": int(self.rows["fold"].nunique()),
                "spins": int(self.null["spin"].nunique()) if len(self.null) else 0,
                "weights": self.weights.to_dict("records"),
                "rows": self.rows.to_dict("records"),
                "null": self.null.to_dict("records"),
            }
        )


def evaluate(
    regions: Regions,
    *,
    split_by: str = "spatial",
    folds: int = 4,
    seeds: int = 3,
    null: int = 0,
    nulled: Sequence[str] = NULLED,
    baselines: Sequence[str] | None = None,
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
        split_by: "spatial" or "random".
        folds: Of each seed.
        seeds: Divisions, from the first seed on.
        null: Spins of the expression, for each fold of the first seed.
        nulled: Methods that are also fitted to spun expression.
        baselines: Names in `omniset.regions.baselines.METHODS`. None: all, but the method that ours is itself.
        variants: Further models of ours: a name, and what differs in `arguments`.
        mine: Run ours as given by `arguments`.
        gene_vectors: As in `ConnectivityPredictor.fit`, for models that take them.
        folder: Keep the rows of each seed and method here, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Told what is being done.
        arguments: Of ConnectivityPredictor; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no connectivity, nothing that can be run, or a folder with rows of
            other arguments or data.
    """
    first = arguments.pop("seed", 0)
    # A baseline that ours is itself would tie with it.
    chosen = [n for n in METHODS if n != arguments.get("method")] if baselines is None else list(baselines)
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        raise ValueError(f"baselines must be out of {', '.join(METHODS)}; got {unknown[0]!r}")
    unknown = [name for name in nulled if name not in (*NULLED, *chosen, *(variants or {}))]
    if unknown:
        raise ValueError(f"nulled must be out of the methods that are run, got {unknown[0]!r}")
    for name, value, least in (("folds", folds, 2), ("seeds", seeds, 1), ("null", null, 0), ("seed", first, 0)):
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")
    if resume and folder is None:
        raise ValueError("resume needs the folder that has the rows")
    if null and regions.coordinates is None:
        raise ValueError("null needs coordinates, which are not known: expression is spun on the sphere")
    regions.pairs()
    if len(regions) - math.ceil(len(regions) / folds) < LEAST:
        raise ValueError(f"there are {len(regions)} regions: without one of {folds} folds, fewer than {LEAST} are left")
    models: dict[str, dict[str, Any]] = {name: {"method": name} for name in chosen}
    models |= {MINE: dict(arguments)} if mine else {}
    models |= {name: {**arguments, **more} for name, more in (variants or {}).items()}
    predictors = {model: ConnectivityPredictor(**options, seed=first) for model, options in models.items()}
    for predictor in predictors.values():
        predictor.check_arguments()
    kept = _Kept(None if folder is None else Path(folder) / "rows", resume, regions, split_by, folds)
    rows: list[pd.DataFrame] = []
    spun: list[pd.DataFrame] = []
    predictions: dict[str, np.ndarray] = {}
    weights: list[dict[str, Any]] = []
    not_run: dict[str, str] = {}
    for model, options in models.items():
        usable = gene_vectors if options.get("architecture", "multiset") != "multiset" else None
        if regions.coordinates is None and predictors[model].make().needs_coordinates:
            not_run[model] = "it needs coordinates, which are not known"
            continue
        for seed in range(first, first + seeds):
            parts = split(split_by, regions, folds, seed)
            run = _Run(regions, parts, model, options, seed, usable)
            found = kept.find(run, "scores") or kept.keep(run, "scores", _scored(run, say))
            rows.append(pd.DataFrame(found["rows"]))
            weights += found["weights"]
            if seed == first:
                predictions[model] = np.array(found["predictions"], dtype=np.float64)
                if null and model in nulled:
                    found = kept.find(run, f"null{null}") or kept.keep(run, f"null{null}", _nulled(run, null, say))
                    spun.append(pd.DataFrame(found["rows"]))
    if not rows:
        why = "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        raise ValueError(f"baselines, variants and mine leave nothing to run. {why}".strip())
    fold_of = np.zeros(len(regions), dtype=np.int64)
    for at, part in enumerate(split(split_by, regions, folds, first)):
        fold_of[part] = at
    none = pd.DataFrame({"seed": [], "fold": [], "method": [], "spin": [], "pearson": []})
    return Evaluation(
        pd.concat(rows, ignore_index=True),
        pd.concat(spun, ignore_index=True) if spun else none,
        pd.DataFrame(weights),
        predictions,
        fold_of,
        regions,
        split_by,
        not_run,
    )


@dataclass
class _Run:
    """A method on the folds of one seed."""

    regions: Regions
    parts: list[Int[np.ndarray, " _"]]  # folds, which differ in size
    model: str
    options: dict[str, Any]
    seed: int
    vectors: Any

    def fitted(self, regions: Regions, test: Int[np.ndarray, " fold"]) -> ConnectivityPredictor:
        rows = np.setdiff1d(np.arange(len(regions)), test)
        options = {"progress": False, **self.options}
        return ConnectivityPredictor(**options, seed=self.seed).fit_rows(regions, rows, gene_vectors=self.vectors)

    def scored(
        self, regions: Regions, test: Int[np.ndarray, " fold"]
    ) -> tuple[dict[str, float], np.ndarray, np.ndarray, ConnectivityPredictor]:
        """Scores of the pairs of a fold, these pairs, what is predicted, and the model."""
        predictor = self.fitted(regions, test)
        own = regions.take(test)
        pairs = own.pairs()
        assert own.connectivity is not None
        found = predictor.method_.predict(predictor._aligned(own), pairs)
        distance = None if own.coordinates is None else pair_distance(own.coordinates, pairs)
        sides = None if own.hemisphere is None else pair_hemispheres(own.hemisphere, pairs)
        return scores(own.connectivity[tuple(pairs.T)], found, distance, sides), pairs, found, predictor


def _scored(run: _Run, say: Callable[[str], None]) -> dict[str, Any]:
    rows, weights = [], []
    predictions = np.full((len(run.regions), len(run.regions)), np.nan)
    for fold, test in enumerate(run.parts):
        say(f"{run.model}, seed {run.seed}, fold {fold + 1} of {len(run.parts)}")
        start = time.perf_counter()
        found, pairs, predicted, predictor = run.scored(run.regions, test)
        seconds = time.perf_counter() - start
        about = {"seed": run.seed, "fold": fold, "method": run.model}
        rows.append({**about, "seconds": seconds, **dict.fromkeys(PARTS, math.nan), **found})
        if predictor.weights_:
            weights.append({**about, **predictor.weights_})
        i, j = test[pairs].T
        predictions[i, j] = predicted
        if not run.regions.directed:
            predictions[j, i] = predicted
    return {"rows": rows, "weights": weights, "predictions": predictions.tolist(), "provenance": provenance(run.seed)}


def _nulled(run: _Run, number: int, say: Callable[[str], None]) -> dict[str, Any]:
    regions = run.regions
    assert regions.coordinates is not None
    rows = []
    turned = spins(regions.coordinates, regions.hemisphere, number, run.seed, groups_of(regions))
    for fold, test in enumerate(run.parts):
        for spin in range(number):
            say(f"{run.model}, seed {run.seed}, fold {fold + 1} of {len(run.parts)}, spin {spin + 1} of {number}")
            found = run.scored(regions.with_(expression=regions.expression[turned[spin]]), test)[0]
            about = {"seed": run.seed, "fold": fold, "method": run.model}
            rows.append({**about, "spin": spin, "pearson": found["pearson"]})
    return {"rows": rows, "provenance": provenance(run.seed)}


def groups_of(regions: Regions) -> list[str]:
    """Cortex and subcortex, by the regions' names or networks: a rotation must not carry one into the other."""
    networks = regions.network or [""] * len(regions)
    names = zip(regions.names, networks, strict=True)
    return ["subcortex" if SUBCORTEX.search(f"{name} {network}") else "cortex" for name, network in names]


class _Kept:
    """What is done, a file per method, seed and part, so that an interrupted evaluation goes on."""

    def __init__(self, folder: Path | None, resume: bool, regions: Regions, split_by: str, folds: int) -> None:
        self.folder, self.resume = folder, resume
        self.about = {"split": split_by, "folds": folds, "data": checksum(regions)}
        if folder is not None:
            writable_folder(folder)
            if not resume:
                for old in folder.glob("*.json"):
                    old.unlink()

    def find(self, run: _Run, part: str) -> dict[str, Any] | None:
        path = self._path(run, part)
        if path is None or not self.resume or not path.is_file():
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        about = self._about(run)
        differs = [key for key in about if found["about"].get(key) != about[key]]
        if differs:
            raise ValueError(
                f"{path} is of another run and cannot be resumed: {differs[0]} was {found['about'].get(differs[0])!r}, "
                f"is {about[differs[0]]!r}"
            )
        return found

    def keep(self, run: _Run, part: str, found: dict[str, Any]) -> dict[str, Any]:
        path = self._path(run, part)
        if path is not None:
            with replacing(path) as temporary:
                temporary.write_text(json.dumps({"about": self._about(run), **found}), encoding="utf-8")
        return found

    def _about(self, run: _Run) -> dict[str, Any]:
        unwatched = ("device", "progress", "seed")
        arguments = ConnectivityPredictor(**run.options).get_params()
        vectors = {"gene_vectors": run.vectors.checksum()} if isinstance(run.vectors, GeneVectors) else {}
        return {**self.about, **{k: v for k, v in arguments.items() if k not in unwatched}, **vectors}

    def _path(self, run: _Run, part: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{run.model}_{run.seed}_{part}.json"


def _interval(values: pd.Series, seeds: pd.Series) -> tuple[float, float]:
    groups = seeds.to_numpy() if seeds.nunique() > 1 else None
    return interval(values.to_numpy(np.float64), groups)
