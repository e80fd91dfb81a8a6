"""Our embedding beside PCA, Harmony and scVI: with all cells at hand, and on batches that no fit has seen.

Labels judge; no fit is ever given them. With all cells at hand every method is fitted on all of them, with their
batches, and its embedding is scored by `omniset.cells.metrics.integration`. A new batch is left out of the fit
altogether and then embedded without being named; `omniset.cells.metrics.transfer` tells its labels from the others'.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from sklearn.neighbors import NearestNeighbors

from omniset.cells import baselines as compared
from omniset.cells.data import Cells, batch_codes, numbered_anew, opened, texts, with_counts
from omniset.cells.embedder import LEAST, CellEmbedder
from omniset.cells.metrics import BATCH, BIO, integration, transfer
from omniset.runs.files import plain
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.kept import Done, Kept

Vectors = Float[np.ndarray, "cells dim"]
BASELINES = tuple(compared.BASELINES)
ALL, NEW = "all cells", "new batches"
MOST_BATCHES = 6  # left out per seed
NEIGHBOURS = 15
THINNED = (0.5, 0.25, 0.1)  # shares of the counts that are kept
PASSES = 3
WHOLE = ("total", "bio", "batch", *BIO, *BATCH)  # of embeddings of all cells
TRANSFER = ("knn_f1", "linear_f1", "knn_accuracy", "linear_accuracy")
TEXTS = ("kNN macro-F1", "linear macro-F1", "kNN accuracy", "linear accuracy")
SCORES = tuple(Score(name, text, share=True) for name, text in zip((*WHOLE, *TRANSFER), (*WHOLE, *TEXTS), strict=True))
# What new batches tell comes first: it has an interval, as one data set has none.
AIMS = (Aim(NEW, "knn_f1"), Aim(NEW, "linear_f1"), Aim(ALL, "total"))


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        transductive: A row per seed and method: `seed`, `method`, the scores of `omniset.cells.metrics.integration`, in
            which 1 is best, `fit_seconds` and `embed_seconds` (NaN where both are one step), counts already read.
        inductive: A row per seed, batch left out and method: `seed`, `batch`, `method`, and what
            `omniset.cells.metrics.transfer` gives.
        checks: Of our model of the first seed. `determinism`: largest difference of vectors between two fits;
            `cells_per_second`; `training_seconds`; `peak_memory_mb`: of the process, until the first model was fitted
            and had embedded all cells (None where the system does not tell); `thinning`: a dict per method and share of
            counts that were kept, see `thinning_robustness`.
        not_run: Baselines that were not run, and why.
        embeddings: By method, those of the first seed.
        labels: (cells,) the empty string where a cell has none.
        batches: (cells,)
        notes: What was decided on the data, a sentence each.
    """

    transductive: pd.DataFrame
    inductive: pd.DataFrame
    checks: dict[str, Any]
    not_run: dict[str, str]
    embeddings: dict[str, np.ndarray]
    labels: Shaped[np.ndarray, " cells"]
    batches: Shaped[np.ndarray, " cells"]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def comparison(self) -> Comparison:
        """See `comparison_of`."""
        return comparison_of(self.transductive, self.inductive)

    def seconds(self) -> pd.DataFrame:
        """Index method: `fit_seconds` and `embed_seconds`, the median over seeds: a baseline's first run also imports
        its package.
        """
        return self.transductive.groupby("method", sort=False)[["fit_seconds", "embed_seconds"]].median()

    def advice(self) -> str:
        """Whether Harmony, which takes a moment, would have done: a sentence or two."""
        ours, harmony = (self.comparison.interval("total", ALL, name).value for name in (OURS, "harmony"))
        if math.isnan(harmony):
            return f"Whether Harmony is enough cannot be told: {self.not_run.get('harmony', 'it was not asked for')}."
        if len(set(self.batches.tolist())) < 2:
            return "All cells are taken for one batch: nothing was integrated, by Harmony or by ours."
        seconds = self.seconds()["fit_seconds"]
        totals = f"total {ours:.3f} against {harmony:.3f}"
        times = f"Harmony took {seconds['harmony']:,.1f} s, ours {seconds[OURS]:,.1f} s"
        if ours > harmony:
            return (
                f"Ours integrates these cells better than Harmony ({totals}; {times}). Whether it would other cells "
                "cannot be told from one data set."
            )
        return (
            f"Harmony is enough for integrating these cells: ours is not better ({totals}; {times}). What Harmony "
            "cannot do is to embed new cells without a new fit."
        )

    def numbers(self) -> dict[str, Any]:
        """All of it but vectors and rows, as plain JSON; None where a number is not defined."""
        about = {
            "advice": self.advice(),
            "seconds": self.seconds().to_dict("index"),
            "checks": self.checks,
            "not_run": self.not_run,
            "notes": self.notes,
            "seeds": self.transductive["seed"].unique().tolist(),
        }
        return plain({**self.comparison.numbers(), **about})


def comparison_of(transductive: pd.DataFrame, inductive: pd.DataFrame) -> Comparison:
    """Scores under the conditions "all cells", which are one unit "all" without an interval, and "new batches", whose
    units are the batches left out. Seeds are repetitions. The rows are those of `Evaluation`.
    """
    parts = [transductive.assign(condition=ALL, left_out="all")]
    if len(inductive):
        parts.append(inductive.rename(columns={"batch": "left_out"}).assign(condition=NEW))
    columns = ["condition", "method", "left_out", "seed", *(score.name for score in SCORES)]
    rows = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    return Comparison(rows, SCORES, "batch", "left_out", ["seed"], BASELINES, AIMS)


def evaluate(
    source: Any,
    *,
    batch_key: str | None,
    label_key: str,
    model: CellEmbedder | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    inductive: bool = True,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    **reading: Any,
) -> Evaluation:
    """Fit, embed and score every method for every seed.

    Every method is run for every seed, PCA too: it is deterministic, but the k-means of the scores has the seed. The
    reference of `pcr_comparison` is the PCA of the first seed for all of them. All counts are held in memory.

    A batch is left out in turn where at least 2 labels are in it and also in the others; of more than 6 such batches, 6
    that the seed draws. Its counts are not looked at in fitting: genes, scales and weights come from the others alone.

    Args:
        source, batch_key: As in `CellEmbedder.fit`.
        label_key: Column of obs with the cell type. Of cells without one see `omniset.cells.metrics.integration`.
        model: Has the options of ours, of which `seed` is the first seed; and the gene vectors, where it is fitted and
            was given some. None: the defaults.
        methods: Baselines, out of "pca", "harmony", "scvi"; None: all. On new batches ours is compared with PCA alone,
            which is always run.
        seeds: How many, from the first one on.
        inductive: Also leave batches out.
        folder: Keep the rows of each seed and method here, and the embeddings of the first seed, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Is given a line of each step.
        reading: `layer`, `input` and `gene_column`, as in `CellEmbedder.fit`.

    Raises:
        ValueError: An argument out of its bounds, no such column, no label at all, or a folder that has rows of other
            arguments or data.
    """
    chosen = [OURS, *asked_for(methods, BASELINES, seeds)]
    with opened(source, **reading) as cells:
        task = Task.of(cells, batch_key, label_key, model)
        work, seed_0 = Work(task, Kept(folder, resume, say)), task.model.seed
        leavable = task.leavable() if inductive else np.zeros(0, dtype=np.int64)
        if inductive and not len(leavable):
            apart = f"none shares at least 2 labels with the others, of which at least {LEAST} cells are needed"
            work.note(f"no batch was left out of a fit: {apart if task.codes.max() else 'all cells are of one batch'}")
        found: list[pd.DataFrame] = []
        left_out: list[pd.DataFrame] = []
        embeddings: dict[str, np.ndarray] = {}
        checks: dict[str, Any] = {}
        for seed in range(seed_0, seed_0 + seeds):
            first = seed == seed_0
            for name in chosen:
                unit, line = f"transductive_{seed}_{name}", f"seed {seed}: {name}"
                fit = partial(_transductive, task, name, seed, first)
                done = work.do(unit, name, seed, fit, line, ["embedding"] * first)
                if done is None or done.rows is None:
                    continue
                found.append(done.rows)
                if first:
                    embeddings[name] = done.arrays["embedding"]
                if first and name == OURS:
                    check = partial(_checks, task, seed, embeddings[OURS])
                    checked = work.do(f"checks_{seed}_{OURS}", OURS, seed, check, f"seed {seed}: checks")
                    checks = {**(checked.facts if checked else {}), **done.facts}
            for name in (OURS, "pca") if len(leavable) else ():
                unit, line = f"inductive_{seed}_{name}", f"seed {seed}: {name}, one batch left out at a time"
                done = work.do(unit, name, seed, partial(_inductive, task, name, seed), line)
                if done is not None and done.rows is not None:
                    left_out.append(done.rows)
        if not task.counted:
            work.notes.append("counts are not known: they are not thinned")
        if (difference := checks["determinism"]) != 0:
            warnings.warn(f"two fits of seed {seed_0} differ, by up to {difference:.2g} in a vector", stacklevel=2)
        return Evaluation(
            pd.concat(found, ignore_index=True),
            pd.concat(left_out, ignore_index=True) if left_out else pd.DataFrame(),
            checks,
            work.not_run,
            embeddings,
            np.array(["" if label is None else label for label in task.labels], dtype=str),
            task.batches,
            [*cells.notes, *work.notes],
        )


def asked_for(methods: Sequence[str] | None, known: Sequence[str], seeds: int) -> list[str]:
    """The baselines to run, each once.

    Raises:
        ValueError: One that is not known, or no seed.
    """
    chosen = list(dict.fromkeys(known if methods is None else methods))
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"methods must be out of {', '.join(known)}; got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    return chosen


@dataclass
class Task:
    """The cells, their batches and labels, and the model whose options are ours."""

    cells: Cells
    codes: np.ndarray  # number of each cell's batch
    batches: np.ndarray  # its name
    labels: np.ndarray  # None where missing
    model: CellEmbedder
    settings: dict[str, Any]  # what the rows of each method depend on, beside the seed and, of ours, the model

    @classmethod
    def of(cls, cells: Cells, batch_key: str | None, label_key: str, model: CellEmbedder | None = None) -> Task:
        model = CellEmbedder() if model is None else model
        model.check_arguments()
        codes, names = batch_codes(cells, batch_key, label_key)
        labels = texts(cells, label_key, "label_key")
        if pd.isna(labels).all():
            raise ValueError(
                f"label_key: all {len(cells):,} cells are without {label_key}, there is nothing to judge by"
            )
        settings = {"batch_key": batch_key, "label_key": label_key}
        return cls(cells, codes, np.array(names, dtype=str)[codes], labels, model, settings)

    @cached_property
    def counts(self) -> sp.csr_array:
        return self.cells.take(np.arange(len(self.cells)))

    @cached_property
    def reference(self) -> np.ndarray:
        return compared.BASELINES["pca"](self.counts, self.codes, self.model.seed)

    @property
    def counted(self) -> bool:
        return not any(self.cells.relative)

    @cached_property
    def checksum(self) -> int:
        checksum = zlib.crc32("\n".join(self.cells.genes).encode(), zlib.crc32(self.codes.tobytes()))
        checksum = zlib.crc32(json.dumps(self.labels.tolist()).encode(), checksum)
        for part in (self.counts.indptr.astype(np.int64), self.counts.indices.astype(np.int64), self.counts.data):
            checksum = zlib.crc32(part.tobytes(), checksum)
        return checksum

    def leavable(self) -> Int[np.ndarray, " batches"]:
        """Numbers of the batches that can be predicted from the others."""
        codes = []
        for code in range(int(self.codes.max()) + 1):
            out = self.codes == code
            shared = {*self.labels[out]} & {*self.labels[~out]} - {None}
            if len(shared) >= 2 and (~out).sum() >= LEAST:
                codes.append(code)
        return np.array(codes, dtype=np.int64)

    def left_out(self, seed: int) -> Int[np.ndarray, " batches"]:
        """Those batches; of more than 6, which the seed draws."""
        codes = self.leavable()
        if len(codes) <= MOST_BATCHES:
            return codes
        return np.sort(np.random.default_rng(seed).choice(codes, MOST_BATCHES, replace=False))

    def ours(self, seed: int) -> CellEmbedder:
        """Not fitted yet."""
        return CellEmbedder(**self.model.get_params() | {"seed": seed})

    def fitted(self, seed: int, rows: Int[np.ndarray, " rows"]) -> CellEmbedder:
        """Ours, fitted on these cells."""
        vectors = self.model.given_vectors()
        return self.ours(seed).fit_cells(self.cells, numbered_anew(self.codes, rows), rows, gene_vectors=vectors)

    def components(self, seed: int, rows: Int[np.ndarray, " rows"]) -> compared.PrincipalComponents:
        """PCA, fitted on these cells."""
        return compared.PrincipalComponents(seed).fit(self.counts[rows], self.codes[rows])


@dataclass
class Work:
    """What is done, unit by unit, and what was not."""

    task: Task
    store: Kept
    not_run: dict[str, str] = field(default_factory=dict)  # methods that are not installed, and why
    notes: list[str] = field(default_factory=list)  # what was decided, a sentence each

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.store.say(text)

    def do(
        self,
        unit: str,
        name: str,
        seed: int,
        work: Callable[[], Done],
        line: str,
        needs: Sequence[str] = (),
        **more: Any,
    ) -> Done | None:
        """What a method gives for a seed. None: it is not installed, which is noted once.

        Args:
            unit, work, line, needs: As in `omniset.trials.kept.Kept.do`.
            more: Settings that are this unit's.
        """
        if name in self.not_run:
            return None
        settings, vectors = {"seed": seed, **self.task.settings, **more, "data": self.task.checksum}, None
        if name == OURS:
            vectors = self.task.model.given_vectors()
            settings = {**self.task.model.get_params(), **settings}
        if vectors is not None:
            settings["gene_vectors"] = vectors.checksum()
        try:
            return self.store.do(unit, settings, work, line=line, needs=needs)
        except ImportError as error:
            if name == OURS:
                raise
            self.not_run[name] = str(error)
            self.note(f"{name} was not run: {error}")
            return None


def _transductive(task: Task, name: str, seed: int, with_embedding: bool) -> Done:
    """What is kept of a method that was fitted on all cells."""
    task.cells.scan(False)
    everything, embedding = np.arange(len(task.cells)), math.nan
    if name == OURS:
        model, fitting = _timed(lambda: task.fitted(seed, everything))
        z, embedding = _timed(lambda: model.embed_cells(task.cells, everything))
    else:
        counts = task.counts  # read before the clock runs
        z, fitting = _timed(lambda: compared.BASELINES[name](counts, task.codes, seed))
    about = {"peak_memory_mb": peak_memory_mb(), "training_seconds": fitting}  # before the scores take any
    scores = integration(z.astype(np.float64), task.labels, task.codes, task.reference, seed)
    row = {"seed": seed, "method": name, **scores, "fit_seconds": fitting, "embed_seconds": embedding}
    return Done(about, pd.DataFrame([row]), {"embedding": z} if with_embedding else {})


def _inductive(task: Task, name: str, seed: int) -> Done:
    rows = []
    for code in task.left_out(seed):
        train, test = np.flatnonzero(task.codes != code), np.flatnonzero(task.codes == code)
        if name == OURS:
            model = task.fitted(seed, train)
            z, new = model.embed_cells(task.cells, train), model.embed_cells(task.cells, test)
        else:
            components = task.components(seed, train)
            z, new = components.transform(task.counts[train]), components.transform(task.counts[test])
        scores = transfer(z, task.labels[train], new, task.labels[test], NEIGHBOURS)
        about = {"seed": seed, "batch": task.batches[test[0]], "method": name}
        rows.append(about | {metric: scores[metric] for metric in TRANSFER})
    return Done(rows=pd.DataFrame(rows))


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


# ---------------------------------------------------------------------- what holds whatever the labels


def _checks(task: Task, seed: int, z: Vectors) -> Done:
    """What a second fit of the seed gives: see `Evaluation.checks`; z is what the first one gave."""
    cells, everything = task.cells, np.arange(len(task.cells))
    again = task.fitted(seed, everything)
    passes = [_timed(lambda: again.embed_cells(cells)) for _ in range(PASSES)]
    full, seconds = passes[-1][0], float(np.median([seconds for _, seconds in passes]))
    facts: dict[str, Any] = {"determinism": float(np.abs(full - z).max()), "cells_per_second": len(cells) / seconds}
    if task.counted:
        facts["thinning"] = _thinning(task, again, full, task.components(seed, everything), seed)
    return Done(facts)


def _thinning(
    task: Task, model: CellEmbedder, full: Vectors, components: compared.PrincipalComponents, seed: int
) -> list[dict[str, Any]]:
    """`thinning_robustness` of our vectors and of principal components, a dict per method and share of counts kept."""
    known, rows = components.transform(task.counts), []
    for share in THINNED:
        fewer = thinned(task.counts, share, seed)
        ours = model.embed_cells(with_counts(task.cells, fewer))
        for name, before, after in ((OURS, full, ours), ("pca", known, components.transform(fewer))):
            cosine, near = thinning_robustness(before.astype(np.float64), after.astype(np.float64))
            rows.append({"method": name, "kept": share, "cosine": cosine, "found": near})
    return rows


def thinned(counts: sp.csr_array, share: float, seed: int) -> sp.csr_array:
    """Binomial(count, share) in place of each count, as if so much had been sequenced. Counts are rounded first."""
    rng = np.random.default_rng([seed, round(1e6 * share)])
    remaining = rng.binomial(np.rint(counts.data).astype(np.int64), share).astype(counts.dtype)
    sample = sp.csr_array((remaining, counts.indices, counts.indptr), shape=counts.shape, copy=True)
    sample.eliminate_zeros()
    return sample


def thinning_robustness(full: Vectors, fewer: Vectors, k: int = NEIGHBOURS) -> tuple[float, float]:
    """How near cells with fewer counts stay to themselves.

    Returns:
        Mean cosine of a cell's two vectors, both less the mean of the full ones (0 where one of them is 0); and the
        share of cells whose own full vector is among the k nearest of all full ones.
    """
    middle = full.mean(0)
    a, b = full - middle, fewer - middle
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.divide((a * b).sum(1), lengths, out=np.zeros(len(a)), where=lengths > 0)
    near = NearestNeighbors(n_neighbors=min(k, len(full))).fit(full).kneighbors(fewer, return_distance=False)
    return float(cosine.mean()), float((near == np.arange(len(full))[:, None]).any(1).mean())


def peak_memory_mb() -> float | None:
    """Most resident memory of this process so far, in MiB; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
