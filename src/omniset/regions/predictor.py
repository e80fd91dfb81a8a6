"""Connectivity of region pairs from the expression of genes: `ConnectivityPredictor`."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from torch import nn

from omniset import devices
from omniset.gene_vectors import GeneVectors, read_gene_vectors
from omniset.genes import match
from omniset.progress import Progress
from omniset.regions.baselines import METHODS, Method
from omniset.regions.blend import NETWORK, Blend
from omniset.regions.data import Regions
from omniset.regions.reading import read_regions
from omniset.regions.scores import pearson
from omniset.regions.seed import CrossAttention
from omniset.regions.training import Attention, NetworkMethod, SeedMethod, checksum
from omniset.training import artefacts

ARCHITECTURES = ("multiset", "seed", "concat")
LEAST, LEAST_GENES = 12, 10  # regions
CLS, POOLING = ("random", "spatial"), ("mean", "attention", "cls")


class ConnectivityPredictor(BaseEstimator):
    """Predicts connectivity of pairs of brain regions from the genes that the regions express.

    The default, method="blend", is a weighted sum of two-step kernel ridges, boosted trees and a cross-attention
    network over the genes of both regions, with and without what distance says. Regions that are held back decide on
    the weights: see `omniset.regions.blend.Blend`. Connectivity without direction is predicted alike for (i, j) and
    (j, i).

    Args:
        architecture: Network: "multiset" (`omniset.regions.model.RegionAttention`); "seed", genes attending to genes as
            first described (`omniset.regions.seed.CrossAttention`); or "concat", each region by itself, then both
            (`omniset.regions.seed.SelfAttentionConcat`).
        method: None: "blend" for architecture="multiset", else the network alone. Or "no-attention", the blend without
            its network; "attention", the network alone; or a baseline: a name in
            `omniset.regions.baselines.METHODS`, such as "ridge".
        dim: Width of the network. None: 32; "seed" and "concat": 128.
        depth: Layers of "seed" and "concat".
        num_heads: Attention heads; must divide dim.
        num_queries: Vectors that "multiset" pools a region to.
        axes: Principal axes of expression on which the tokens of "multiset" lie.
        cls: CLS token of "seed": "random" or "spatial", from the places of both regions.
        pooling: Of "seed" and "concat": "mean", "attention" or "cls".
        bins: Of expression, in "seed" and "concat".
        dropout: In training.
        seen: Genes that a step of training of "multiset" sees, drawn anew each time.
        steps: Of the optimiser, for "multiset", or some more: ten epochs of whole passes over the regions.
        epochs: Of "seed" and "concat", at most.
        batch_size: Regions per step, all of whose pairs are learned from. None: 40; "seed" and "concat": 23.
        learning_rate: Largest step size. None: 0.002; "seed" and "concat": 0.001.
        weight_decay: Pull of the weights towards zero.
        symmetry: Weight of the mean of (f(i, j) - f(j, i))^2 in "seed" and "concat".
        seed: The same seed gives the same numbers.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Show it.

    Attributes:
        regions_: Those learned from, with their notes.
        method_: What was fitted.
        history_: Of networks, by name: a dict per epoch.
        seconds_: That the fit took.
    """

    regions_: Regions
    method_: Method

    def __init__(
        self,
        architecture: str = "multiset",
        method: str | None = None,
        *,
        dim: int | None = None,
        depth: int = 4,
        num_heads: int = 4,
        num_queries: int = 1,
        axes: int = 16,
        cls: str = "random",
        pooling: str = "mean",
        bins: int = 5,
        dropout: float = 0.1,
        seen: int = 128,
        steps: int = 150,
        epochs: int = 100,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        symmetry: float = 0.1,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.architecture = architecture
        self.method = method
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.num_queries = num_queries
        self.axes = axes
        self.cls = cls
        self.pooling = pooling
        self.bins = bins
        self.dropout = dropout
        self.seen = seen
        self.steps = steps
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.symmetry = symmetry
        self.seed = seed
        self.device = device
        self.progress = progress

    # ------------------------------------------------------------------ the verbs

    def fit(
        self,
        expression: Any,
        coordinates: Any = None,
        connectivity: Any = None,
        *,
        gene_vectors: GeneVectors | str | Path | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        **options: Any,
    ) -> ConnectivityPredictor:
        """Learn from all pairs of the regions.

        Args:
            expression: Regions x genes: a path, a DataFrame, an AnnData, or `Regions`, which hold all three.
            coordinates: x, y, z in mm of each region: a path or a DataFrame. None: not known.
            connectivity: A path, a DataFrame or a square array. See `omniset.regions.reading.read_regions`.
            gene_vectors: For "seed" and "concat": vectors of genes, such as gene2vec's, or their path; genes without
                one are left out. None: vectors are learned.
            folder: Keep checkpoints here, of a network alone; "blend", whose trainings are many and short, has none.
            resume: Go on with an interrupted run in this folder.
            **options: Of `read_regions`: fisher_z, zero_negative, directed, genes.

        Raises:
            ValueError: An argument out of its bounds, or bad values in the input.
        """
        self.check_arguments()
        regions = _as_regions(expression, coordinates, connectivity, **options)
        return self.fit_rows(regions, np.arange(len(regions)), gene_vectors=gene_vectors, folder=folder, resume=resume)

    def fit_rows(
        self,
        regions: Regions,
        rows: Int[np.ndarray, " rows"],
        *,
        gene_vectors: GeneVectors | str | Path | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> ConnectivityPredictor:
        """`fit` on some of the regions; the others are not looked at."""
        if len(rows) < LEAST:
            raise ValueError(f"there are {len(rows)} regions to learn from, at least {LEAST} are needed")
        start = time.monotonic()
        self.check_arguments()
        regions, vectors = self._with_vectors(regions, gene_vectors)
        train = regions.take(np.sort(rows))
        method = self.make(vectors, say)
        if isinstance(method, NetworkMethod):
            method.folder, method.resume = None if folder is None else Path(folder), resume
        method.fit(train, np.arange(len(train)), self.seed)
        self.regions_, self.method_ = train, method
        self.seconds_ = round(time.monotonic() - start, 1)
        return self

    def predict(
        self, pairs: Any, expression: Any = None, coordinates: Any = None, **options: Any
    ) -> Float[np.ndarray, " pairs"]:
        """Connectivity of pairs of regions.

        Args:
            pairs: Names of regions, two columns: an array, a DataFrame or a list of pairs; or positions, as integers.
            expression, coordinates: Of other regions than those learned from, as for fit. Genes are matched by name;
                those that are not there count as not measured.
            **options: As for fit.

        Raises:
            ValueError: A region that is not there, or bad values in the input.
        """
        regions = self._regions(expression, coordinates, **options)
        return self.method_.predict(regions, positions(pairs, regions.names))

    def predict_matrix(self, expression: Any = None, coordinates: Any = None, **options: Any) -> pd.DataFrame:
        """Connectivity of all pairs, NaN on the diagonal. Arguments as for predict."""
        regions = self._regions(expression, coordinates, **options)
        number = len(regions)
        pairs = np.argwhere(~np.eye(number, dtype=bool)) if regions.directed else np.argwhere(np.tri(number, k=-1).T)
        found = np.full((number, number), np.nan)
        found[tuple(pairs.T)] = self.method_.predict(regions, pairs)
        if not regions.directed:
            found = np.where(np.isnan(found), found.T, found)
        return pd.DataFrame(found, regions.names, regions.names)

    def score(self, expression: Any, coordinates: Any = None, connectivity: Any = None, **options: Any) -> float:
        """Pearson's r of the predictions of all known pairs. Arguments as for fit."""
        regions = self._aligned(_as_regions(expression, coordinates, connectivity, **options))
        pairs = regions.pairs()
        assert regions.connectivity is not None
        return pearson(regions.connectivity[tuple(pairs.T)], self.method_.predict(regions, pairs))

    def explain(
        self, first: str, second: str, expression: Any = None, coordinates: Any = None, *, top: int = 50, **options: Any
    ) -> pd.DataFrame:
        """Which genes of one region attend to which of the other: a row per pair of genes, largest weight first.

        `gene_i`, `gene_j`, `weight`. "multiset": of each query, the weight that pooling gives to gene_i times the
        weight with which the pooled query attends to gene_j, both means over heads; mean over queries; weights of all
        pairs of genes sum to 1. "seed": the attention of the last layer, mean over heads; rows of gene_i sum to 1,
        those of CLS have gene_i "CLS". Attention weights say where the network looked, not what would change its
        prediction: read them beside `importance`.

        Args:
            first, second: Names of regions i and j.
            expression, coordinates, **options: As for predict.
            top: Rows.

        Raises:
            ValueError: A method without cross-attention, a region that is not there, or no rows.
        """
        if top < 1:
            raise ValueError(f"top must be >= 1, got {top}")
        regions = self._regions(expression, coordinates, **options)
        pair = positions([(first, second)], regions.names)[0]
        weights, rows = self._attention(regions.take(pair))
        order = np.argsort(weights, axis=None, kind="stable")[::-1][:top]
        i, j = np.unravel_index(order, weights.shape)
        genes = np.array(regions.genes, dtype=object)
        return pd.DataFrame(
            {"gene_i": np.array(rows, dtype=object)[i], "gene_j": genes[j], "weight": weights[i, j].astype(np.float64)}
        )

    def importance(self, genes: Sequence[str] | None = None, *, repeats: int = 1, top: int = 100) -> pd.DataFrame:
        """How much the predictions of the regions learned from lose, where a gene's values change places.

        A row per gene, largest first: `gene`; `importance`, the mean fall of Pearson's r when the gene's expression is
        permuted among the regions (Breiman, "Random forests", 2001), between values that the model has seen; and
        `attention`, the mean weight that the network gives to the gene (NaN without one).

        Args:
            genes: Which. None: the `top` by attention, or by the variance of expression where there is no attention.
            repeats: Permutations of each gene.

        Raises:
            ValueError: A gene that is not known, no genes or no permutations.
        """
        self._fitted()
        for name, value in (("repeats", repeats), ("top", top), ("genes", 1 if genes is None else len(genes))):
            if value < 1:
                raise ValueError(f"{name} must be {'given' if name == 'genes' else '>= 1'}, got {value}")
        regions = self.regions_
        attention = self._gene_attention(regions)
        if genes is None:
            by = np.nanvar(regions.expression, axis=0) if np.isnan(attention).all() else attention
            chosen = np.argsort(-np.nan_to_num(by), kind="stable")[:top]
        else:
            place = {gene: at for at, gene in enumerate(regions.genes)}
            for gene in genes:
                if gene not in place:
                    raise ValueError(f"gene {gene!r} is not among the {len(place):,} of the model")
            chosen = np.array([place[gene] for gene in genes])
        pairs = regions.pairs()
        assert regions.connectivity is not None
        truth = regions.connectivity[tuple(pairs.T)]
        base = pearson(truth, self.method_.predict(regions, pairs))
        rng = np.random.default_rng(self.seed)
        falls = []
        with Progress("permuting genes", len(chosen), self.progress, "genes") as progress:
            for number, gene in enumerate(chosen, 1):
                found = []
                for _ in range(repeats):
                    changed = regions.expression.copy()
                    changed[:, gene] = changed[rng.permutation(len(regions)), gene]
                    found.append(base - pearson(truth, self.method_.predict(regions.with_(expression=changed), pairs)))
                falls.append(float(np.mean(found)))
                progress.at(number)
        frame = pd.DataFrame(
            {"gene": [regions.genes[g] for g in chosen], "importance": falls, "attention": attention[chosen]}
        )
        return frame.sort_values("importance", ascending=False, ignore_index=True)

    # ------------------------------------------------------------------ on disk

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> None:
        """Write the artefact: config.json, model.safetensors, metrics.json, and tables of the regions learned from.

        These are part of it: a kernel ridge is made of them, and methods without a network are fitted again when it is
        loaded.
        """
        method = self._fitted()
        train = self.regions_
        fitted = {
            "state": method.state() if isinstance(method, NetworkMethod | Blend) else {},
            "directed": train.directed,
            "genes": _checksum(train.genes),
            "data": checksum(train),
            "token_dim": self._token_dim,
            "notes": train.notes,
            "seconds": self.seconds_,
        }
        networks = nn.ModuleDict({name: part.network for name, part in self._parts().items()})
        kept = {**(metrics or {}), "history": self.history_}
        artefacts.save(
            folder, type(self).__name__, self.get_params(), fitted, networks, kept, devices.find(self.device).type
        )
        for name, table in _tables(train).items():
            artefacts.save_table(folder, name, table)

    @classmethod
    def load(cls, folder: str | Path) -> ConnectivityPredictor:
        """Read an artefact. Raises: FileNotFoundError, ValueError: it is not there, of another kind, or damaged."""
        config = artefacts.load_config(folder, cls.__name__)
        folder = Path(folder)
        try:
            predictor, fitted = cls(**config["arguments"]), config["fitted"]
            tables = {name: artefacts.load_table(folder, name) for name in TABLES}
            train = _of_tables(tables, fitted["directed"], fitted["notes"])
            if _checksum(train.genes) != fitted["genes"]:
                raise ValueError(f"{folder / 'vocabulary.parquet'} is not the vocabulary that the model was saved with")
            if checksum(train) != fitted["data"]:
                raise ValueError(f"the tables in {folder} are not those of the regions that the model was saved with")
            width = fitted["token_dim"]
            method = predictor.make(None if width is None else np.zeros((len(train.genes), width), np.float32))
            if isinstance(method, NetworkMethod | Blend):
                # In the order in which the method learned: sums are then the same to the bit.
                method.restore(fitted["state"], train.take(sorted(range(len(train)), key=train.names.__getitem__)))
            else:
                method.fit(train, np.arange(len(train)), predictor.seed)
            predictor.regions_, predictor.method_ = train, method
            predictor._token_dim, predictor.seconds_ = width, fitted["seconds"]
        except (TypeError, KeyError) as error:
            raise ValueError(f"{folder / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        parts = predictor._parts()
        artefacts.load_weights(folder, nn.ModuleDict({name: part.network for name, part in parts.items()}))
        history = artefacts.load_metrics(folder).get("history", {})
        for name, part in parts.items():
            part.history = history.get(name, [])
        return predictor

    # ------------------------------------------------------------------ what they are made of

    @property
    def history_(self) -> dict[str, list[dict[str, Any]]]:
        return {name: part.history for name, part in self._parts().items()}

    @property
    def weights_(self) -> dict[str, float]:
        """What "blend" weighs its parts with, by name; empty for other methods."""
        method = self._fitted()
        return dict(method.weights) if isinstance(method, Blend) else {}

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without regions."""
        own = ("attention",) if self.architecture != "multiset" else ("blend", "no-attention", "attention", *METHODS)
        for name, known in (("architecture", ARCHITECTURES), ("cls", CLS), ("pooling", POOLING)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.method is not None and self.method not in own:
            raise ValueError(
                f"method must be one of {', '.join(own)} with architecture={self.architecture!r}, got {self.method!r}"
            )
        for name, least in (
            *(("dim", 1), ("depth", 1), ("num_heads", 1), ("num_queries", 1), ("axes", 1), ("bins", 2)),
            *(("seen", 1), ("steps", 1), ("epochs", 1), ("batch_size", 2), ("seed", 0)),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be >= 0 and below 1, got {self.dropout}")
        for name in ("weight_decay", "symmetry"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be > 0, got {self.learning_rate}")
        if self._dim % self.num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got dim={self._dim} and num_heads={self.num_heads}")
        devices.find(self.device)

    def make(
        self,
        vectors: Float[np.ndarray, "genes token_dim"] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Method:
        """The method that these arguments stand for, not fitted."""
        if self.architecture != "multiset":
            options = {"dim": self._dim, "num_heads": self.num_heads, "depth": self.depth, "pooling": self.pooling}
            options |= {"dropout": self.dropout, "bins": self.bins}
            options |= {"cls": self.cls} if self.architecture == "seed" else {}
            return SeedMethod(
                self.architecture,
                vectors,
                options,
                self.epochs,
                self.batch_size or 23,
                self.learning_rate or 1e-3,
                self.weight_decay,
                self.symmetry,
                device=self.device,
                progress=self.progress,
            )
        attention = partial(
            Attention,
            self.axes,
            self._dim,
            self.num_heads,
            self.num_queries,
            self.dropout,
            self.seen,
            self.steps,
            self.batch_size or 40,
            self.learning_rate or 2e-3,
            self.weight_decay,
            device=self.device,
        )
        if self.method in (None, "blend"):
            return Blend(attention, say)
        if self.method == "no-attention":
            return Blend(None, say)
        if self.method == "attention":
            return attention(progress=self.progress)
        return METHODS[self.method]()

    @property
    def _dim(self) -> int:
        return self.dim or (32 if self.architecture == "multiset" else 128)

    def _fitted(self) -> Method:
        if not hasattr(self, "method_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet: call fit first, or load one")
        return self.method_

    def _parts(self) -> dict[str, NetworkMethod]:
        """What has a network, by name."""
        method = self._fitted()
        if isinstance(method, Blend):
            return method.networks
        return {method.name: method} if isinstance(method, NetworkMethod) else {}

    def _regions(self, expression: Any, coordinates: Any, **options: Any) -> Regions:
        self._fitted()
        if expression is None:
            if coordinates is not None or options:
                raise ValueError("coordinates and options come with expression: without, the regions of fit are meant")
            return self.regions_
        return self._aligned(_as_regions(expression, coordinates, None, **options))

    def _aligned(self, regions: Regions) -> Regions:
        """With the genes of the fit, in their order; NaN where one is not there."""
        genes = self.regions_.genes
        if regions.genes == genes:
            return regions.with_(directed=self.regions_.directed)
        found = match(genes, regions.genes)
        if not found.matched:
            raise ValueError(
                f"none of the model's genes, such as {genes[0]!r}, is there; there are such as {regions.genes[0]!r}"
            )
        values = np.full((len(regions), len(genes)), np.nan, np.float32)
        here = found.positions >= 0
        values[:, here] = regions.expression[:, found.positions[here]]
        share = 1 - here.mean()
        if share > 0.1:
            warnings.warn(
                f"{share:.0%} of the model's {len(genes):,} genes are not there, such as {found.unmatched[0]!r}: they "
                "count as not measured",
                stacklevel=4,
            )
        return regions.with_(genes=list(genes), expression=values, directed=self.regions_.directed)

    def _with_vectors(
        self, regions: Regions, given: GeneVectors | str | Path | None
    ) -> tuple[Regions, Float[np.ndarray, "genes token_dim"] | None]:
        """The regions with those genes that have a vector, and these."""
        self._token_dim: int | None = None
        if given is None:
            return regions, None
        if self.architecture == "multiset":
            raise ValueError("gene_vectors are for architecture='seed' and 'concat'")
        vectors = given if isinstance(given, GeneVectors) else read_gene_vectors(given)
        chosen, found = vectors.of(regions.genes)
        here = np.flatnonzero(found.positions >= 0)
        if len(here) < LEAST_GENES:
            raise ValueError(
                f"gene_vectors: {len(here)} of {len(regions.genes):,} genes, such as {regions.genes[0]!r}, have a "
                f"vector, at least {LEAST_GENES} are needed; there are such as {vectors.names[0]!r}"
            )
        self._token_dim = vectors.dim
        notes = [*regions.notes, f"gene vectors: {found.sentence()}; only genes with a vector are used"]
        genes = [regions.genes[g] for g in here]
        return regions.with_(genes=genes, expression=regions.expression[:, here], notes=notes), chosen[here]

    @torch.no_grad()
    def _attention(self, pair: Regions) -> tuple[Float[np.ndarray, "rows genes"], list[str]]:
        """Weights of two regions, the first attending to the second, and what the rows are."""
        part = next(iter(self._parts().values()), None)
        if isinstance(part, Attention):
            if isinstance(self.method_, Blend) and not self.method_.weights[NETWORK]:
                warnings.warn(
                    "validation gave the network the weight 0: predictions do not use what is explained here",
                    stacklevel=3,
                )
            return part.weights(pair), pair.genes
        if isinstance(part, SeedMethod) and isinstance(part.network, CrossAttention):
            return part.weights(pair), ["CLS", *pair.genes]
        raise ValueError(
            "explain is for methods with cross-attention: the default, 'attention' and architecture='seed'"
        )

    def _gene_attention(self, regions: Regions) -> Float[np.ndarray, " genes"]:
        """Mean weight of each gene over the regions that attend, and are attended to; NaN without attention."""
        part = next(iter(self._parts().values()), None)
        if isinstance(part, Attention):
            return part.gene_weights(regions)
        return np.full(len(regions.genes), np.nan)


TABLES = ("vocabulary", "regions", "expression", "connectivity")


def _tables(train: Regions) -> dict[str, pd.DataFrame]:
    """The regions as tables, one line per region or gene."""
    about = pd.DataFrame({"region": train.names})
    if train.coordinates is not None:
        about[["x", "y", "z"]] = train.coordinates
    for name in ("hemisphere", "network"):
        if getattr(train, name) is not None:
            about[name] = getattr(train, name)
    columns = [str(i) for i in range(len(train))]
    return {
        "vocabulary": pd.DataFrame({"gene": train.genes}),
        "regions": about,
        "expression": pd.DataFrame(train.expression.T, columns=columns),
        "connectivity": pd.DataFrame(train.connectivity, columns=columns),
    }


def _of_tables(tables: dict[str, pd.DataFrame], directed: bool, notes: list[str]) -> Regions:
    about = tables["regions"]
    return Regions(
        names=about["region"].tolist(),
        genes=tables["vocabulary"]["gene"].tolist(),
        expression=np.ascontiguousarray(tables["expression"].to_numpy(np.float32).T),
        coordinates=about[["x", "y", "z"]].to_numpy(np.float64) if "x" in about else None,
        hemisphere=about["hemisphere"].tolist() if "hemisphere" in about else None,
        network=about["network"].tolist() if "network" in about else None,
        connectivity=tables["connectivity"].to_numpy(np.float64),
        directed=directed,
        notes=notes,
    )


def positions(pairs: Any, names: Sequence[str]) -> Int[np.ndarray, "pairs 2"]:
    """Pairs of names, or of positions, as positions.

    Raises:
        ValueError: Not two columns, a region that is not there, or a region with itself.
    """
    values = np.asarray(pairs.to_numpy() if isinstance(pairs, pd.DataFrame) else pairs)
    if values.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if values.ndim != 2 or values.shape[1] != 2:
        raise ValueError(f"pairs must have two columns, got shape {values.shape}")
    if np.issubdtype(values.dtype, np.integer):
        found = values.astype(np.int64)
        bad = found[((found < 0) | (found >= len(names))).any(1)]
        if len(bad):
            raise ValueError(f"pairs must be of positions from 0 to {len(names) - 1}, got {bad[0].tolist()}")
    else:
        place = {name: at for at, name in enumerate(names)}
        for name in map(str, values.ravel()):
            if name not in place:
                raise ValueError(f"pairs: region {name!r} is not there, regions are such as {names[0]!r}")
        found = np.array([[place[str(a)], place[str(b)]] for a, b in values], dtype=np.int64)
    same = found[found[:, 0] == found[:, 1]]
    if len(same):
        raise ValueError(f"pairs must be of two regions, got {names[same[0, 0]]!r} with itself")
    return found


def _as_regions(expression: Any, coordinates: Any, connectivity: Any, **options: Any) -> Regions:
    if isinstance(expression, Regions):
        if coordinates is not None or connectivity is not None or options:
            raise ValueError("coordinates, connectivity and options are part of Regions: give these alone")
        return expression
    return read_regions(expression, connectivity, coordinates, **options)


def _checksum(names: list[str]) -> int:
    return zlib.crc32("\n".join(names).encode())
