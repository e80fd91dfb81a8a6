"""Our embedding beside PCA, Harmony and scVI: with all cells at hand, and on batches that no fit has seen.

Labels judge; no fit is ever given them. Transductive: every method is fitted on all cells, with their batches, and its
embedding is scored by `omniset.cells.metrics.integration`. Inductive: one batch is left out of the fit altogether and
then embedded without being named; `omniset.cells.metrics.transfer` tells its labels from those of the others.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from scipy.stats import rankdata
from sklearn.neighbors import NearestNeighbors

from omniset.cells import baselines as compared
from omniset.cells.data import Cells, Reading, _cells
from omniset.cells.embedder import LEAST, CellEmbedder, as_cells, batch_codes
from omniset.cells.formats import Compressed, Source
from omniset.cells.metrics import BATCH, BIO, integration, transfer
from omniset.files import plain, provenance, replacing, writable_folder
from omniset.gene_vectors import GeneVectors, read_gene_vectors

MINE = "omniset"
BASELINES = ("pca", "harmony", "scvi")
TIE = 0.02  # totals and F1 that are nearer to each other are a tie: seeds differ by as much
MOST_BATCHES = 6  # left out per seed
NEIGHBOURS = 15
THINNED = (0.5, 0.25, 0.1)  # shares of the counts that are kept
COMPONENTS = 5  # of an embedding, compared with library sizes
ALONE = 16  # cells embedded one by one
PASSES = 3
TRAINING_SECONDS = 180.0
CELLS_PER_SECOND = 1000.0
SCORES = ("total", "bio", "batch", *BIO, *BATCH)
TRANSFER = ("knn_f1", "linear_f1", "knn_accuracy", "linear_accuracy")


@dataclass
class Evaluation:
    """What was found.

    Attributes:
        transductive: A row per seed and method: `seed`, `method`, the scores of `omniset.cells.metrics.Integration`, in
            which 1 is best, `fit_seconds` and `embed_seconds` (NaN where both are one step), counts already read.
        inductive: A row per seed, batch left out and method: `seed`, `batch`, `method`, and what
            `omniset.cells.metrics.transfer` gives.
        checks: Of our model of the first seed. `determinism`: largest difference of vectors between two fits; `order`
            and `alone`: between cells embedded all at once and in another order, or one by one; `cells_per_second`;
            `training_seconds`; `peak_memory_mb`: of the process, until the first model was fitted and had embedded
            all cells (None where the system does not tell); `thinning`: a dict per method and share of counts that
            were kept, see `thinning_robustness`; `library`: see `library_correlation`, by method.
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

    @property
    def methods(self) -> list[str]:
        return self.transductive["method"].unique().tolist()

    def table(self) -> pd.DataFrame:
        """Index method: each score's mean over seeds; of total, bio and batch also `_low` and `_high`, the smallest and
        the largest of any seed (no confidence interval); of `fit_seconds` and `embed_seconds` the median, since a
        baseline's first run also imports its package.
        """
        found = _over_seeds(self.transductive, SCORES, ranges=("total", "bio", "batch"))
        times = self.transductive.groupby("method", sort=False)[["fit_seconds", "embed_seconds"]].median()
        return found.join(times)

    def inductive_table(self) -> pd.DataFrame:
        """Index method: mean over batches, then over seeds; `_low` and `_high` of the F1 as in `table`, of the seeds'
        means over batches. No rows where nothing was left out.
        """
        means = self.inductive.groupby(["method", "seed"], sort=False)[list(TRANSFER)].mean().reset_index()
        return _over_seeds(means, TRANSFER, ranges=("knn_f1", "linear_f1"))

    def difference(self, metric: str, other: str, mine: str = MINE) -> float:
        """Mean over seeds of mine minus other, of a column of `transductive`, or of `inductive` (there paired by batch,
        and first a mean over batches); NaN where one of them is not there.
        """
        inductive = metric in TRANSFER
        rows = self.inductive if inductive else self.transductive
        keys = ["seed", "batch"] if inductive else ["seed"]
        of = {name: rows[rows["method"] == name].set_index(keys)[metric] for name in (mine, other)}
        paired = (of[mine] - of[other]).dropna()
        return float(paired.groupby(level="seed").mean().mean()) if len(paired) else math.nan

    def gates(self) -> list[dict[str, Any]]:
        """What a useful method must hold, where it was measured: `gate`, `value`, `bound`, `holds`; `tie`: a difference
        of scores within .02; `quality`: False for speed, which hangs on the machine and is only reported.
        """
        found: list[dict[str, Any]] = []

        def add(gate: str, value: float, bound: str, holds: bool, *, tie: bool = False, quality: bool = True) -> None:
            found.append(
                {"gate": gate, "value": value, "bound": bound, "holds": bool(holds), "tie": tie, "quality": quality}
            )

        for metric, name, others in (
            ("total", "total", ("harmony", "scvi")),
            ("knn_f1", "inductive kNN macro-F1", ("pca",)),
            ("linear_f1", "inductive linear macro-F1", ("pca",)),
        ):
            for other in others:
                value = self.difference(metric, other)
                if not math.isnan(value):
                    add(f"{name}, ours minus {other}", value, "> 0", value > 0, tie=abs(value) <= TIE)
        if "determinism" in self.checks:
            value = self.checks["determinism"]
            add("largest difference between two fits", value, "== 0", value == 0)
        if "training_seconds" in self.checks:
            value = self.checks["training_seconds"]
            add("training, seconds", value, f"<= {TRAINING_SECONDS:g}", value <= TRAINING_SECONDS, quality=False)
        if "cells_per_second" in self.checks:
            value = self.checks["cells_per_second"]
            add("embedding, cells/s", value, f">= {CELLS_PER_SECOND:,.0f}", value >= CELLS_PER_SECOND, quality=False)
        return found

    def advice(self) -> str:
        """Whether Harmony, which takes a moment, would have done: a sentence or two."""
        value = self.difference("total", "harmony")
        if math.isnan(value):
            return (
                f"Whether Harmony is enough here is not known: {self.not_run.get('harmony', 'it was not asked for')}."
            )
        table = self.table()
        if len(set(self.batches.tolist())) < 2:
            return "All cells are of one batch: there is nothing to integrate, by Harmony or by ours."
        mine, other = table.loc[MINE], table.loc["harmony"]
        totals = f"total {mine['total']:.3f} against {other['total']:.3f}"
        times = f"Harmony took {other['fit_seconds']:,.1f} s, ours {mine['fit_seconds']:,.1f} s"
        if value > TIE:
            return f"Ours integrates these cells better than Harmony ({totals}); {times}."
        how = "within .02 of" if value >= -TIE else "below"
        return (
            f"Harmony is enough for integrating these cells: ours is {how} it ({totals}); {times}. What Harmony cannot "
            "do is to embed new cells without a new fit."
        )

    def numbers(self) -> dict[str, Any]:
        """All of it but the vectors, as plain JSON; None where a number is not defined."""
        return plain(
            {
                "gates": self.gates(),
                "advice": self.advice(),
                "table": self.table().to_dict("index"),
                "inductive_table": self.inductive_table().to_dict("index"),
                "checks": self.checks,
                "not_run": self.not_run,
                "notes": self.notes,
                "seeds": self.transductive["seed"].unique().tolist(),
                "transductive": self.transductive.to_dict("records"),
                "inductive": self.inductive.to_dict("records"),
            }
        )


def evaluate(
    source: Any,
    *,
    batch_key: str | None,
    label_key: str,
    baselines: Sequence[str] = BASELINES,
    seeds: int = 5,
    inductive: bool = True,
    variants: Mapping[str, dict[str, Any]] | None = None,
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
        batch_key: Column of obs with the batch. None: each source is a batch.
        label_key: Column of obs with the cell type. Of cells without one see `omniset.cells.metrics.integration`.
        baselines: Out of "pca", "harmony", "scvi". Inductively ours is compared with PCA alone, which is always run.
        seeds: How many, from the first one on.
        inductive: Also leave batches out.
        variants: Further models of ours, such as ablations: a name, and what differs in `arguments`, or in
            `gene_vectors`.
        folder: Keep the rows of each seed and method here, and the embeddings of the first seed, for `resume`.
        resume: Take what the folder has, and do the rest.
        say: Told what is being done.
        gene_vectors, aliases: As in `CellEmbedder.fit`, for our models.
        arguments: Of CellEmbedder; `seed` is the first seed.

    Raises:
        ValueError: An argument out of its bounds, no such column, no label at all, or a folder that has rows of other
            arguments or data.
    """
    variants = dict(variants or {})
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise ValueError(f"baselines must be out of {', '.join(BASELINES)}; got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if resume and folder is None:
        raise ValueError("resume needs the folder that has the rows")
    first = arguments.pop("seed", 0)
    _check_variants(variants)
    default = _Model.of({**arguments, "gene_vectors": gene_vectors}, aliases)
    default.embedder(first).check_arguments()
    own = {MINE: default}
    for name, changed in variants.items():
        try:
            own[name] = _Model.of({**arguments, "gene_vectors": default.vectors, **changed}, aliases)
            own[name].embedder(first).check_arguments()
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"variants: {name!r}: {error}") from error

    cells = as_cells(source, layer=layer, input=input, gene_column=gene_column)
    try:
        task = _Task.of(cells, batch_key, label_key, first)
        notes, not_run = [], {}
        leavable = task.leavable() if inductive else np.zeros(0, dtype=np.int64)
        if inductive and not len(leavable):
            notes.append(f"no batch was left out of a fit: {task.why_not()}")
            say(notes[-1])
        rows, left, embeddings = [], [], {}
        checks: dict[str, Any] = {}

        def kept(part: str, seed: int, name: str) -> _Kept:
            given = own[name].about() if name in own else {}
            keys = {"batch_key": batch_key, "label_key": label_key}
            return _Kept(folder, f"{part}_{seed}_{name}", {**given, "seed": seed, **keys, "data": task.checksum})

        for seed in range(first, first + seeds):
            for name in dict.fromkeys([*own, *baselines]):
                if name in not_run:
                    continue
                unit = kept("transductive", seed, name)
                if not (resume and unit.done("npz" if seed == first else "parquet")):
                    say(f"seed {seed}: {name}")
                    try:
                        unit.write(*_transductive(task, name, own.get(name), seed, seed == first))
                    except ImportError as error:
                        if name in own:
                            raise
                        not_run[name] = str(error)
                        say(f"{name} is not run: {error}")
                        continue
                about, frame, z = unit.read(seed == first)
                rows.append(frame)
                if z is not None:
                    embeddings[name] = z
                if (seed, name) == (first, MINE):
                    unit = kept("checks", seed, MINE)
                    if not (resume and unit.done("json")):
                        say(f"seed {seed}: checks")
                        unit.write(_checks(task, default, seed, embeddings[MINE]))
                    checks = {
                        **unit.read(False)[0],
                        "training_seconds": float(frame["fit_seconds"].iloc[0]),
                        "peak_memory_mb": about["peak_memory_mb"],
                    }
            for name in dict.fromkeys([*own, "pca"]) if len(leavable) else ():
                unit = kept("inductive", seed, name)
                if not (resume and unit.done("parquet")):
                    say(f"seed {seed}: {name}, one batch left out at a time")
                    unit.write(*_inductive(task, name, own.get(name), seed, leavable))
                left.append(unit.read(False)[1])
        if task.counted:
            library = cells.library()
            checks["library"] = {name: library_correlation(z, library) for name, z in embeddings.items()}
        else:
            notes.append("counts are not known: neither thinned, nor is anything compared with library sizes")
        return Evaluation(
            pd.concat(rows, ignore_index=True),
            pd.concat(left, ignore_index=True) if left else _nothing(),
            checks,
            not_run,
            embeddings,
            np.array(["" if label is None else label for label in task.labels], dtype=str),
            task.batches,
            [*cells.notes, *notes],
        )
    finally:
        if cells is not source:
            cells.close()


# ---------------------------------------------------------------------- what is evaluated


@dataclass
class _Model:
    """One of ours: arguments of CellEmbedder, and what its fit is given beside cells."""

    arguments: dict[str, Any]
    vectors: GeneVectors | None
    aliases: Mapping[str, str] | None

    @classmethod
    def of(cls, arguments: dict[str, Any], aliases: Mapping[str, str] | None) -> _Model:
        """Of arguments among which are gene_vectors."""
        arguments = dict(arguments)
        given = arguments.pop("gene_vectors")
        return cls(arguments, read_gene_vectors(given) if isinstance(given, (str, Path)) else given, aliases)

    def embedder(self, seed: int) -> CellEmbedder:
        return CellEmbedder(**self.arguments, seed=seed)

    def fitted(
        self, cells: Cells, codes: Int[np.ndarray, " cells"], rows: Int[np.ndarray, " rows"], seed: int
    ) -> CellEmbedder:
        return self.embedder(seed).fit_cells(cells, codes, rows, gene_vectors=self.vectors, aliases=self.aliases)

    def about(self) -> dict[str, Any]:
        """What tells it from others, as plain JSON."""
        vectors = {} if self.vectors is None else {"gene_vectors": self.vectors.checksum()}
        aliases = {} if self.aliases is None else {"aliases": dict(self.aliases)}
        return {**CellEmbedder(**self.arguments).get_params(), **vectors, **aliases}


@dataclass
class _Task:
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
    def of(cls, cells: Cells, batch_key: str | None, label_key: str, first: int) -> _Task:
        codes, names = batch_codes(cells, batch_key)
        if label_key not in cells.obs:
            columns = ", ".join(map(str, cells.obs.columns)) or "none"
            raise ValueError(f"label_key must be a column of obs, there is no {label_key!r}; there are: {columns}")
        given = cells.obs[label_key]
        if given.isna().all():
            raise ValueError(
                f"label_key: all {len(cells):,} cells are without {label_key}, there is nothing to judge by"
            )
        labels = np.array(given.astype(str), dtype=object)
        labels[given.isna().to_numpy()] = None
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
        found = zlib.crc32("\n".join(self.cells.genes).encode(), zlib.crc32(self.codes.tobytes()))
        found = zlib.crc32(json.dumps(self.labels.tolist()).encode(), found)
        for _, block in self.cells.blocks():
            for part in (block.indptr.astype(np.int64), block.indices.astype(np.int64), block.data):
                found = zlib.crc32(part.tobytes(), found)
        return found

    def leavable(self) -> Int[np.ndarray, " batches"]:
        """Numbers of the batches that can be told from the others."""
        found = []
        for code in range(int(self.codes.max()) + 1):
            out = self.codes == code
            shared = {*self.labels[out]} & {*self.labels[~out]} - {None}
            if len(shared) >= 2 and (~out).sum() >= LEAST:
                found.append(code)
        return np.array(found, dtype=np.int64)

    def why_not(self) -> str:
        if not self.codes.max():
            return "all cells are of one batch"
        return f"none shares at least 2 labels with the others, of which at least {LEAST} cells are needed"


def _nothing() -> pd.DataFrame:
    return pd.DataFrame({"seed": [], "batch": [], "method": [], **{metric: [] for metric in TRANSFER}})


def _check_variants(variants: Mapping[str, dict[str, Any]]) -> None:
    for name, changed in variants.items():
        if name in (MINE, *BASELINES):
            raise ValueError(f"variants: {name!r} is the name of another method")
        if not re.fullmatch(r"\w[\w .+=-]*", name):  # files are named by it
            raise ValueError(f"variants: names must be letters, digits, spaces and _.+=-, got {name!r}")
        if "seed" in changed:
            raise ValueError(f"variants: {name!r} has a seed of its own, all methods must have the same")


# ---------------------------------------------------------------------- the two ways


def _transductive(
    task: _Task, name: str, mine: _Model | None, seed: int, with_embedding: bool
) -> tuple[dict[str, Any], pd.DataFrame, np.ndarray | None]:
    """What is kept of a method that was fitted on all cells. `mine` is None for a baseline."""
    task.cells.scan(False)
    everything = np.arange(len(task.cells))
    if mine is None:
        counts = task.counts
        z, fitting = _timed(lambda: compared.embed(name, counts, task.codes, seed=seed))
        embedding = math.nan
    else:
        model, fitting = _timed(lambda: _fitted(task, mine, seed, everything))
        z, embedding = _timed(lambda: model._embed(task.cells, everything))
    about = {"peak_memory_mb": peak_memory_mb(), "provenance": task.provenance}  # before the scores take any
    scores = integration(z.astype(np.float64), task.labels, task.codes, task.reference, seed).numbers()
    row = {"seed": seed, "method": name, **scores, "fit_seconds": fitting, "embed_seconds": embedding}
    return about, pd.DataFrame([row]), z if with_embedding else None


def _inductive(
    task: _Task, name: str, mine: _Model | None, seed: int, leavable: Int[np.ndarray, " batches"]
) -> tuple[dict[str, Any], pd.DataFrame]:
    if len(leavable) > MOST_BATCHES:
        leavable = np.sort(np.random.default_rng(seed).choice(leavable, MOST_BATCHES, replace=False))
    rows = []
    for code in leavable:
        train, test = np.flatnonzero(task.codes != code), np.flatnonzero(task.codes == code)
        if mine is None:
            components = _pca(task, train, seed)
            z, new = components.transform(task.counts[train]), components.transform(task.counts[test])
        else:
            model = _fitted(task, mine, seed, train)
            z, new = model._embed(task.cells, train), model._embed(task.cells, test)
        scores = transfer(z, task.labels[train], new, task.labels[test], NEIGHBOURS)
        about = {"seed": seed, "batch": task.batches[test[0]], "method": name}
        rows.append({**about, **{metric: scores[metric] for metric in TRANSFER}})
    return {"provenance": task.provenance}, pd.DataFrame(rows)


def _fitted(task: _Task, mine: _Model, seed: int, rows: Int[np.ndarray, " rows"]) -> CellEmbedder:
    """Fitted on these cells, of batches that are numbered anew: how many others there are is not told either."""
    codes = np.full(len(task.cells), -1, dtype=np.int64)
    codes[rows] = np.unique(task.codes[rows], return_inverse=True)[1]
    return mine.fitted(task.cells, codes, rows, seed)


def _pca(task: _Task, rows: Int[np.ndarray, " rows"], seed: int) -> compared.PrincipalComponents:
    return compared.PrincipalComponents(seed=seed).fit(task.counts[rows], task.codes[rows])


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


# ---------------------------------------------------------------------- checks


def _checks(task: _Task, mine: _Model, seed: int, z: Float[np.ndarray, "cells dim"]) -> dict[str, Any]:
    """See `Evaluation.checks`; z is what the first fit gave."""
    cells, rng = task.cells, np.random.default_rng(seed)
    everything = np.arange(len(cells))
    again = _fitted(task, mine, seed, everything)
    order = rng.permutation(len(cells))
    some = np.sort(rng.choice(len(cells), min(ALONE, len(cells)), replace=False))
    alone = np.concatenate([again._embed(cells, some[i : i + 1]) for i in range(len(some))])
    passes = [_timed(lambda: again._embed(cells, everything)) for _ in range(PASSES)]
    full = passes[0][0]
    found: dict[str, Any] = {
        "determinism": _largest(full - z),
        "order": _largest(again._embed(cells, order) - full[order]),
        "alone": _largest(alone - full[some]),
        "cells_per_second": len(cells) / float(np.median([seconds for _, seconds in passes])),
    }
    if task.counted:
        components = _pca(task, everything, seed)
        known = components.transform(task.counts)
        found["thinning"] = []
        for share in THINNED:
            fewer = thinned(task.counts, share, seed)
            for name, before, after in (
                (MINE, full, again._embed(_with_counts(cells, fewer), everything)),
                ("pca", known, components.transform(fewer)),
            ):
                cosine, nearest = thinning_robustness(before.astype(np.float64), after.astype(np.float64))
                found["thinning"].append({"method": name, "kept": share, "cosine": cosine, "found": nearest})
    return found


def _largest(difference: Float[np.ndarray, "cells dim"]) -> float:
    return float(np.abs(difference).max())


def thinned(counts: sp.csr_array, share: float, seed: int) -> sp.csr_array:
    """Binomial(count, share) in place of each count, as if so much had been sequenced. Counts are rounded first."""
    rng = np.random.default_rng([seed, round(1e6 * share)])
    kept = rng.binomial(np.rint(counts.data).astype(np.int64), share).astype(counts.dtype)
    found = sp.csr_array((kept, counts.indices, counts.indptr), shape=counts.shape, copy=True)
    found.eliminate_zeros()
    return found


def _with_counts(cells: Cells, counts: sp.csr_array) -> Cells:
    """As many cells of the same genes, with these counts."""
    matrix = Compressed(counts.data, counts.indices, counts.indptr, counts.shape)
    source = Source("thinned", pd.DataFrame(index=range(len(cells))), pd.DataFrame(index=cells.genes), matrix)
    return _cells([source], [Reading("counts", "stored", "thinned")], [cells.genes], False, source.nbytes)


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
    kept = sizes[:COMPONENTS] > 1e-9 * np.linalg.norm(z)  # the others are rounding
    ranks = np.column_stack([rankdata(library), *(rankdata(c) for c in u[:, :COMPONENTS].T[kept])])
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


# ---------------------------------------------------------------------- means, plain numbers, what is kept


def _over_seeds(rows: pd.DataFrame, columns: Sequence[str], ranges: Sequence[str]) -> pd.DataFrame:
    groups = rows.groupby("method", sort=False)
    found = {}
    for column in columns:
        found[column] = groups[column].mean()
        if column in ranges:
            found |= {f"{column}_low": groups[column].min(), f"{column}_high": groups[column].max()}
    return pd.DataFrame(found)


class _Kept:
    """Rows, notes and an embedding of one seed and method, on disk where there is a folder.

    The .json is written last and is there only if the others are.
    """

    def __init__(self, folder: str | Path | None, name: str, arguments: dict[str, Any]) -> None:
        self.arguments = json.loads(json.dumps({k: v for k, v in arguments.items() if k not in ("device", "progress")}))
        self.path = None if folder is None else writable_folder(Path(folder) / "rows") / name
        self.found: tuple[dict[str, Any], Any, Any] | None = None

    def done(self, needed: str) -> bool:
        """Raises ValueError where what is kept is of another evaluation.

        Args:
            needed: Suffix of a file that must be there.
        """
        if self.path is None or not self._with("json").is_file() or not self._with(needed).is_file():
            return False
        before = json.loads(self._with("json").read_text(encoding="utf-8"))["arguments"]
        for name in {**before, **self.arguments}:
            value = self.arguments.get(name)
            if before.get(name) != value:
                raise ValueError(
                    f"{self._with('json')} is of another evaluation ({name} was {before.get(name)!r}, is {value!r}): "
                    "start anew, not resuming"
                )
        return True

    def write(
        self, about: dict[str, Any], rows: pd.DataFrame | None = None, embedding: np.ndarray | None = None
    ) -> None:
        self.found = about, rows, embedding
        if self.path is None:
            return
        self._with("json").unlink(missing_ok=True)
        if rows is not None:
            with replacing(self._with("parquet")) as temporary:
                rows.to_parquet(temporary)
        if embedding is not None:
            with replacing(self._with("npz")) as temporary:
                np.savez(temporary, embedding=embedding)
        with replacing(self._with("json")) as temporary:
            temporary.write_text(json.dumps({"arguments": self.arguments, "about": about}, indent=1), encoding="utf-8")

    def read(self, with_embedding: bool) -> tuple[dict[str, Any], Any, Any]:
        if self.found is None:
            about = json.loads(self._with("json").read_text(encoding="utf-8"))["about"]
            rows = pd.read_parquet(self._with("parquet")) if self._with("parquet").is_file() else None
            embedding = None
            if with_embedding:
                with np.load(self._with("npz")) as archive:
                    embedding = archive["embedding"]
            self.found = about, rows, embedding
        return self.found

    def _with(self, suffix: str) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.{suffix}")
