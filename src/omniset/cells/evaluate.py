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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from scipy.stats import rankdata
from sklearn.neighbors import NearestNeighbors

from omniset.cells import baselines as compared
from omniset.cells.data import Cells, batch_codes, column, numbered_anew, opened, unlabelled, with_counts
from omniset.cells.embedder import LEAST, CellEmbedder
from omniset.cells.metrics import BATCH, BIO, integration, transfer
from omniset.runs.files import plain, provenance
from omniset.tables.gene_vectors import GeneVectors, read_gene_vectors
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.kept import Done, Kept

BASELINES = ("pca", "harmony", "scvi")
ALL, NEW = "all cells", "new batches"
MOST_BATCHES = 6  # left out per seed
NEIGHBOURS = 15
THINNED = (0.5, 0.25, 0.1)  # shares of the counts that are kept
COMPONENTS = 5  # of an embedding, compared with library sizes
ALONE = 16  # cells embedded one by one
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
        transductive: A row per seed and method: `seed`, `method`, the scores of `omniset.cells.metrics.Integration`, in
            which 1 is best, `fit_seconds` and `embed_seconds` (NaN where both are one step), counts already read.
        inductive: A row per seed, batch left out and method: `seed`, `batch`, `method`, and what
            `omniset.cells.metrics.transfer` gives.
        checks: Of our model of the first seed. `determinism`: largest difference of vectors between two fits; `order`
            and `alone`: between cells embedded all at once and in another order, or one by one; `cells_per_second`;
            `training_seconds`; `peak_memory_mb`: of the process, until the first model was fitted and had embedded
            all cells (None where the system does not tell); `thinning`: a dict per method and share of counts that
            were kept, see `thinning_robustness`; `library`: see
            `library_correlation`, by method.
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
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    inductive: bool = True,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    layer: str | None = None,
    input: str = "auto",  # noqa: A002
    gene_column: str | None = None,
    gene_vectors: GeneVectors | str | Path | None = None,
    aliases: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Evaluation:
    """Fit, embed and score every method for every seed.

    Every method is run for every seed, PCA too: it is deterministic, but the k-means of the scores has the seed. The
    reference of `pcr_comparison` is the PCA of the first seed for all of them. All counts are held in memory.

    A batch is left out in turn where at least 2 labels are in it and also in the others; of more than 6 such batches, 6
    that the seed draws. Its counts are not looked at in fitting: genes, scales and weights come from the others alone.

    Args:
        source, layer, input, gene_column: As in `CellEmbedder.fit`.
        batch_key: As in `CellEmbedder.fit`.
        label_key: Column of obs with the cell type. Of cells without one see `omniset.cells.metrics.integration`.
        methods: Baselines, out of "pca", "harmony", "scvi"; None: all. On new batches ours is compared with PCA alone,
            which is always run.
        seeds: How many, from the first one on.
        inductive: Also leave batches out.
        folder: Keep the rows of each seed and method here, and the embeddings of the first seed, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Is given a line of each step.
        gene_vectors, aliases: As in `CellEmbedder.fit`, for our model.
        arguments: Of CellEmbedder; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no such column, no label at all, or a folder that has rows of other
            arguments or data.
    """
    chosen = BASELINES if methods is None else methods
    unknown = [name for name in chosen if name not in BASELINES]
    if unknown:
        raise ValueError(f"methods must be out of {', '.join(BASELINES)}; got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    first = arguments.pop("seed", 0)
    CellEmbedder(**arguments, seed=first).check_arguments()
    vectors = read_gene_vectors(gene_vectors) if isinstance(gene_vectors, (str, Path)) else gene_vectors
    model = _Model(arguments, vectors, aliases)
    with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
        task = Task.of(cells, batch_key, label_key, first)
        about = {"batch_key": batch_key, "label_key": label_key}
        work = _Work(task, model, [OURS, *dict.fromkeys(chosen)], Kept(folder, resume, say), about, say)
        leavable = task.leavable() if inductive else np.zeros(0, dtype=np.int64)
        if inductive and not len(leavable):
            why = f"none shares at least 2 labels with the others, of which at least {LEAST} cells are needed"
            why = why if task.codes.max() else "all cells are of one batch"
            work.note(f"no batch was left out of a fit: {why}")
        for seed in range(first, first + seeds):
            work.all_cells(seed)
            if len(leavable):
                work.new_batches(seed)
        return work.evaluation()


# ---------------------------------------------------------------------- what is evaluated


@dataclass
class _Model:
    """One of ours: arguments of CellEmbedder, and what its fit is given beside cells."""

    arguments: dict[str, Any]
    vectors: GeneVectors | None
    aliases: Mapping[str, str] | None

    def about(self) -> dict[str, Any]:
        """What tells it from others, as plain JSON."""
        vectors = {} if self.vectors is None else {"gene_vectors": self.vectors.checksum()}
        aliases = {} if self.aliases is None else {"aliases": dict(self.aliases)}
        return {**CellEmbedder(**self.arguments).get_params(), **vectors, **aliases}


@dataclass
class Task:
    """The cells, their batches and labels.

    Attributes:
        codes: (cells,) number of the batch.
        batches: (cells,) its name.
        labels: (cells,) None where missing.
    """

    cells: Cells
    codes: np.ndarray
    batches: np.ndarray
    labels: np.ndarray
    first: int

    @classmethod
    def of(cls, cells: Cells, batch_key: str | None, label_key: str, first: int) -> Task:
        codes, names = batch_codes(cells, batch_key, label_key)
        given = column(cells, label_key, "label_key")
        lacking = unlabelled(given)
        if lacking.all():
            raise ValueError(
                f"label_key: all {len(cells):,} cells are without {label_key}, there is nothing to judge by"
            )
        labels = np.array(given.astype(str), dtype=object)
        labels[lacking] = None
        return cls(cells, codes, np.array(names, dtype=str)[codes], labels, first)

    @cached_property
    def counts(self) -> sp.csr_array:
        return self.cells.take(np.arange(len(self.cells)))

    @cached_property
    def reference(self) -> np.ndarray:
        return compared.embed("pca", self.counts, self.codes, seed=self.first)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return provenance()

    @property
    def counted(self) -> bool:
        return not any(self.cells.relative)

    @cached_property
    def checksum(self) -> int:
        checksum = zlib.crc32("\n".join(self.cells.genes).encode(), zlib.crc32(self.codes.tobytes()))
        checksum = zlib.crc32(json.dumps(self.labels.tolist()).encode(), checksum)
        for _, block in self.cells.blocks():
            for part in (block.indptr.astype(np.int64), block.indices.astype(np.int64), block.data):
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


@dataclass
class _Work:
    """What is done, unit by unit.

    Attributes:
        methods: All to run; those that are not installed are found out.
        about: What the rows depend on beside data, model and seed.
    """

    task: Task
    model: _Model
    methods: list[str]
    store: Kept
    about: dict[str, Any]
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    rows: list[pd.DataFrame] = field(default_factory=list)
    left_out: list[pd.DataFrame] = field(default_factory=list)
    embeddings: dict[str, np.ndarray] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)

    def _model(self, name: str) -> _Model | None:
        """None: a baseline."""
        return self.model if name == OURS else None

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)

    def all_cells(self, seed: int) -> None:
        """Every method, fitted on all cells; with the first seed also the checks."""
        task, first = self.task, seed == self.task.first
        for name in self.methods:
            if name in self.not_run:
                continue
            work, needs = partial(_transductive, task, name, self._model(name), seed, first), ["embedding"] * first
            try:
                done = self._do("transductive", name, seed, work, f"seed {seed}: {name}", needs)
            except ImportError as error:
                if name == OURS:
                    raise
                self.not_run[name] = str(error)
                self.note(f"{name} was not run: {error}")
                continue
            assert done.rows is not None
            self.rows.append(done.rows)
            if first:
                self.embeddings[name] = done.arrays["embedding"]
            if first and name == OURS:
                work = partial(_checks, task, self.model, seed, self.embeddings[OURS])
                checked = self._do("checks", OURS, seed, work, f"seed {seed}: checks")
                times = {"training_seconds": float(done.rows["fit_seconds"].iloc[0])}
                self.checks = {**checked.facts, **times, "peak_memory_mb": done.facts["peak_memory_mb"]}

    def new_batches(self, seed: int) -> None:
        """Our model and PCA, one batch left out at a time."""
        for name in (OURS, "pca"):
            work = partial(_inductive, self.task, name, self._model(name), seed)
            line = f"seed {seed}: {name}, one batch left out at a time"
            done = self._do("inductive", name, seed, work, line)
            assert done.rows is not None
            self.left_out.append(done.rows)

    def evaluation(self) -> Evaluation:
        """Of what was done. Warns where two fits of one seed differ."""
        task = self.task
        if task.counted:
            library = task.cells.library()
            self.checks["library"] = {name: library_correlation(z, library) for name, z in self.embeddings.items()}
        else:
            self.notes.append("counts are not known: neither thinned, nor is anything compared with library sizes")
        if (difference := self.checks["determinism"]) != 0:
            warnings.warn(
                f"two fits of seed {task.first} differ, by up to {difference:.2g} in a vector",
                UserWarning,
                stacklevel=3,
            )
        return Evaluation(
            pd.concat(self.rows, ignore_index=True),
            pd.concat(self.left_out, ignore_index=True) if self.left_out else pd.DataFrame(),
            self.checks,
            self.not_run,
            self.embeddings,
            np.array(["" if label is None else label for label in task.labels], dtype=str),
            task.batches,
            [*task.cells.notes, *self.notes],
        )

    def _do(
        self, part: str, name: str, seed: int, work: Callable[[], Done], line: str, needs: Sequence[str] = ()
    ) -> Done:
        model = self.model.about() if name == OURS else {}
        settings = {**model, "seed": seed, **self.about, "data": self.task.checksum}
        return self.store.do(f"{part}_{seed}_{name}", settings, work, line=line, needs=needs)


def _transductive(task: Task, name: str, mine: _Model | None, seed: int, with_embedding: bool) -> Done:
    """What is kept of a method that was fitted on all cells. `mine` is None for a baseline."""
    task.cells.scan(False)
    everything = np.arange(len(task.cells))
    if mine is None:
        counts = task.counts  # read before the clock runs
        z, fitting = _timed(lambda: compared.embed(name, counts, task.codes, seed=seed))
        embedding = math.nan
    else:
        model, fitting = _timed(lambda: _fitted(task, mine, seed, everything))
        z, embedding = _timed(lambda: model.embed_cells(task.cells, everything))
    about = {"peak_memory_mb": peak_memory_mb(), "provenance": task.provenance}  # before the scores take any
    scores = integration(z.astype(np.float64), task.labels, task.codes, task.reference, seed).numbers()
    row = {"seed": seed, "method": name, **scores, "fit_seconds": fitting, "embed_seconds": embedding}
    return Done(about, pd.DataFrame([row]), {"embedding": z} if with_embedding else {})


def _inductive(task: Task, name: str, mine: _Model | None, seed: int) -> Done:
    rows = []
    for code in task.left_out(seed):
        train, test = np.flatnonzero(task.codes != code), np.flatnonzero(task.codes == code)
        if mine is None:
            components = _pca(task, train, seed)
            z, new = components.transform(task.counts[train]), components.transform(task.counts[test])
        else:
            model = _fitted(task, mine, seed, train)
            z, new = model.embed_cells(task.cells, train), model.embed_cells(task.cells, test)
        scores = transfer(z, task.labels[train], new, task.labels[test], NEIGHBOURS)
        about = {"seed": seed, "batch": task.batches[test[0]], "method": name}
        rows.append(about | {metric: scores[metric] for metric in TRANSFER})
    return Done({"provenance": task.provenance}, pd.DataFrame(rows))


def _fitted(task: Task, mine: _Model, seed: int, rows: Int[np.ndarray, " rows"]) -> CellEmbedder:
    """Fitted on these cells."""
    given: dict[str, Any] = {"gene_vectors": mine.vectors, "aliases": mine.aliases}
    codes = numbered_anew(task.codes, rows)
    return CellEmbedder(**mine.arguments, seed=seed).fit_cells(task.cells, codes, rows, **given)


def _pca(task: Task, rows: Int[np.ndarray, " rows"], seed: int) -> compared.PrincipalComponents:
    return compared.PrincipalComponents(seed=seed).fit(task.counts[rows], task.codes[rows])


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def _checks(task: Task, mine: _Model, seed: int, z: np.ndarray) -> Done:
    """See `Evaluation.checks`; z is what the first fit gave."""
    everything = np.arange(len(task.cells))
    again = _fitted(task, mine, seed, everything)
    repeated, full = _repeated(again, task.cells, z, seed)
    if not task.counted:
        return Done({**repeated})
    components = _pca(task, everything, seed)
    return Done({**repeated, "thinning": _thinning(again, full, components, task.cells, task.counts, seed)})


# ---------------------------------------------------------------------- what holds whatever the labels


def _repeated(
    again: CellEmbedder, cells: Cells, z: Float[np.ndarray, "cells dim"], seed: int
) -> tuple[dict[str, float], Float[np.ndarray, "cells dim"]]:
    """How far vectors differ between two fits of one seed, with the order of the cells, and from those of cells alone.

    Args:
        again: The second fit.
        z: What the first one gave.

    Returns:
        `determinism`, `order`, `alone`: the largest differences; `cells_per_second`. And the vectors of the second fit.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(cells))
    some = np.sort(rng.choice(len(cells), min(ALONE, len(cells)), replace=False))
    alone = np.concatenate([again.embed_cells(cells, some[i : i + 1]) for i in range(len(some))])
    seconds, full = [], z
    for _ in range(PASSES):
        start = time.perf_counter()
        full = again.embed_cells(cells)
        seconds.append(time.perf_counter() - start)
    differences = {
        "determinism": full - z,
        "order": again.embed_cells(cells, order) - full[order],
        "alone": alone - full[some],
    }
    largest = {name: float(np.abs(difference).max()) for name, difference in differences.items()}
    return largest | {"cells_per_second": len(cells) / float(np.median(seconds))}, full


def _thinning(
    model: CellEmbedder,
    full: Float[np.ndarray, "cells dim"],
    components: compared.PrincipalComponents,
    cells: Cells,
    counts: sp.csr_array,
    seed: int,
) -> list[dict[str, Any]]:
    """`thinning_robustness` of our vectors and of principal components, a dict per method and share of counts kept."""
    known, rows = components.transform(counts), []
    for share in THINNED:
        fewer = thinned(counts, share, seed)
        ours = model.embed_cells(with_counts(cells, fewer))
        for name, before, after in (("omniset", full, ours), ("pca", known, components.transform(fewer))):
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


def thinning_robustness(
    full: Float[np.ndarray, "cells dim"], fewer: Float[np.ndarray, "cells dim"], k: int = NEIGHBOURS
) -> tuple[float, float]:
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


def library_correlation(embedding: Float[np.ndarray, "cells dim"], library: Float[np.ndarray, " cells"]) -> float:
    """Largest |Spearman correlation| of library size with any of the first 5 principal components of an embedding: how
    much of a cell's place is depth of sequencing. 0 where either is the same for all cells.
    """
    z = embedding.astype(np.float64)
    u, sizes, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    large = sizes[:COMPONENTS] > 1e-9 * np.linalg.norm(z)  # the others are rounding
    ranks = np.column_stack([rankdata(library), *(rankdata(c) for c in u[:, :COMPONENTS].T[large])])
    ranks -= ranks.mean(0)
    lengths = np.linalg.norm(ranks, axis=0)
    products = np.abs(ranks[:, 1:].T @ ranks[:, 0])
    scale = lengths[1:] * lengths[0]
    return float(np.divide(products, scale, out=np.zeros_like(products), where=scale > 0).max(initial=0.0))


def peak_memory_mb() -> float | None:
    """Most resident memory of this process so far, in MiB; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
