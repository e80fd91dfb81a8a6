"""Connectivity of region pairs from the expression of genes: `ConnectivityPredictor`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import nn

from omniset.estimators.mixture import Arrays
from omniset.fitted import Estimator
from omniset.regions.blend import RELATIONS, Blend, attention_of
from omniset.regions.data import LABELS, Pairs, PairValues, Regions, known_pairs, matrix_of
from omniset.regions.importance import attended, gene_importance
from omniset.regions.kernel_ridge import GenesOverDistance, KernelRidge, MirroredPlaces
from omniset.regions.methods import Boosting, Geometry, Method, joined, parted
from omniset.regions.options import PredictorOptions
from omniset.regions.reading import read_regions
from omniset.regions.scaling import check_scale
from omniset.regions.scores import pearson
from omniset.regions.seed import HEADS, SeedMethod
from omniset.regions.set_attention import SetAttention
from omniset.regions.splits import KINDS
from omniset.runs import devices
from omniset.tables.gene_vectors import GeneVectors, read_gene_vectors
from omniset.tables.genes import match
from omniset.training import artefacts, schema

LEAST, LEAST_GENES = 12, 10  # regions
METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (KernelRidge, MirroredPlaces, GenesOverDistance, Boosting, Geometry)
}
ONE_SIDED = "the model learned from one hemisphere: what it predicts between the two is extrapolated"


class ConnectivityPredictor(PredictorOptions, Estimator):
    """Predicts connectivity of pairs of brain regions from the genes that the regions express.

    The default, method="blend", is a weighted sum of a network whose new regions attend to the set of known regions
    (`omniset.regions.set_attention.RegionSetAttention`), two-step kernel ridges and boosted trees. Regions that are
    held back decide on the weights: see `omniset.regions.blend.Blend`. Connectivity without direction is predicted
    alike for (i, j) and (j, i). Pairs of the regions learned from may be unknown: what is known is used as it is.

    Args:
        {options}

    Attributes:
        regions_: Those learned from, with their notes.
        method_: What was fitted.
        history_: Of networks, by name: a dict per epoch, or episode.
        seconds_: That the fit took.
    """

    FITTED: ClassVar[dict[str, Any]] = {
        "state": schema.OBJECT,
        "arrays": schema.OBJECT,
        "directed": schema.FLAG,
        "token_dim": schema.optional(schema.SIZE),
        "notes": schema.array(schema.TEXT),
        "seconds": schema.NUMBER,
    }
    TABLES: ClassVar = {"vocabulary": ["gene"], "regions": ["region"], "expression": [], "connectivity": []}

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
        """Learn from all known pairs of the regions.

        Args:
            expression: Regions x genes: a path, a DataFrame, an AnnData, or `Regions`, which hold all three.
            coordinates: x, y, z in mm of each region: a path or a DataFrame. None: not known.
            connectivity: A path, a DataFrame or a square array. See `omniset.regions.reading.read_regions`.
            gene_vectors: For "seed": vectors of genes, such as gene2vec's, or their path; genes without one are left
                out. None: vectors are learned.
            folder: Keep checkpoints of "seed" here; the others learn in seconds, and have none.
            resume: Go on with an interrupted run in this folder.
            **options: Of `read_regions`: fisher_z, zero_negative, directed.

        Raises:
            ValueError: An argument out of its bounds, or bad values in the input.
        """
        self.check_arguments()
        self.check_resumed(folder, resume)
        regions = _as_regions(expression, coordinates, connectivity, **options)
        rows = range(len(regions))
        return self.fit_rows(regions, rows, gene_vectors=gene_vectors, folder=folder, resume=resume)

    @devices.one_blas_thread()
    def fit_rows(
        self,
        regions: Regions,
        rows: Sequence[int] | Int[np.ndarray, " rows"],
        *,
        gene_vectors: GeneVectors | str | Path | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        held_out: str = KINDS[0],
        say: Callable[[str], None] = lambda line: None,
    ) -> ConnectivityPredictor:
        """`fit` on some of the regions; the others are not looked at.

        Args:
            held_out: How regions are held back to choose by, see `omniset.regions.splits.split`: as those will be that
                are predicted.
            say: Is given a line of what is done next.
        """
        if len(rows) < LEAST:
            raise ValueError(f"there are {len(rows)} regions to learn from, at least {LEAST} are needed")
        start = time.monotonic()
        self.check_arguments()
        regions, vectors = self._with_vectors(regions, gene_vectors)
        train = regions.take(np.sort(rows))
        method = self.make(vectors, say)
        method.held_out = held_out
        if isinstance(method, SeedMethod):
            method.folder, method.resume = None if folder is None else Path(folder), resume
        method.fit(train, np.arange(len(train)), self.seed)
        self.regions_, self.method_ = train, method
        if isinstance(method, Blend):
            scores = [
                {"condition": f"regions {RELATIONS[kind]}", "method": name, "score": "Pearson's r", "value": r}
                for kind, of in method.scores.items()
                for name, r in of.items()
            ]
            self.measured_ = {"ours": method.name, "scores": scores, "on": "regions held back, in turn"}
        self.seconds_ = round(time.monotonic() - start, 1)
        return self

    @devices.one_blas_thread()
    def predict(self, pairs: Any, expression: Any = None, coordinates: Any = None, **options: Any) -> PairValues:
        """Connectivity of pairs of regions.

        Args:
            pairs: Names of regions, two columns: an array, a DataFrame or a list of pairs; or positions, as integers.
            expression, coordinates: Of other regions than those learned from, as for fit. Genes are matched by name;
                those that are not there count as not measured.
            **options: As for fit.

        Raises:
            ValueError: A region that is not there, expression that clearly is on another scale than at fit, or bad
                values in the input.
        """
        regions = self._regions(expression, coordinates, **options)
        return self.method_.predict(regions, positions(pairs, regions.names))

    @devices.one_blas_thread()
    def predict_matrix(self, expression: Any = None, coordinates: Any = None, **options: Any) -> pd.DataFrame:
        """Connectivity of all pairs, NaN on the diagonal. Arguments as for predict."""
        regions = self._regions(expression, coordinates, **options)
        number = len(regions)
        pairs = np.argwhere(~np.eye(number, dtype=bool)) if regions.directed else np.argwhere(np.tri(number, k=-1).T)
        matrix = matrix_of(regions, pairs, self.method_.predict(regions, pairs))
        return pd.DataFrame(matrix, regions.names, regions.names)

    def score(self, expression: Any, coordinates: Any = None, connectivity: Any = None, **options: Any) -> float:
        """Pearson's r of the predictions of all known pairs. Arguments as for fit."""
        self._fitted()
        regions = self._scaled(self.aligned(_as_regions(expression, coordinates, connectivity, **options)))
        pairs, truth = known_pairs(regions)
        return pearson(truth, self.method_.predict(regions, pairs))

    def explain(
        self,
        first: str,
        second: str,
        expression: Any = None,
        coordinates: Any = None,
        *,
        top: int = 100,
        **options: Any,
    ) -> pd.DataFrame:
        """What the network looks at for a pair of regions, largest weight first.

        "multiset": which known regions are read from: `region` and `known`, `weight`, a row for each of the first `top`
        known regions of either region; weights of a region, means over heads, sum to 1 over all known regions. "seed":
        which genes attend to which: `gene_i`, `gene_j`, `weight`, the attention of the last layer, mean over heads;
        rows of gene_i sum to 1, those of CLS have gene_i "CLS". Attention says where the network looked, not what would
        change its prediction: see `importance`.

        Args:
            first, second: Names of regions i and j.
            expression, coordinates, **options: As for predict.
            top: Rows.

        Raises:
            ValueError: A method without attention, a region that is not there, or no rows.
        """
        if top < 1:
            raise ValueError(f"top must be >= 1, got {top}")
        regions = self._regions(expression, coordinates, **options)
        return attended(self.method_, regions.take(positions([(first, second)], regions.names)[0]), self.regions_, top)

    @devices.one_blas_thread()
    def importance(self, nulls: int = 1000) -> pd.DataFrame:
        """Which genes predictions of unseen regions rest on, for all genes, beside maps of other places.

        See `omniset.regions.importance.gene_importance`, which says what the columns are.

        Args:
            nulls: Spun maps of each gene, see `omniset.regions.null_models.spins`. Without coordinates rows are
                permuted.

        Raises:
            ValueError: A method that does not attend to known regions with genes, or no nulls.
        """
        attention = attention_of(self._fitted())
        if attention is None or not attention.needs_genes:
            raise ValueError(
                "importance is of methods that attend to known regions with genes: the default, 'attention'"
            )
        return gene_importance(self.regions_, attention, nulls, self.seed)

    # ------------------------------------------------------------------ on disk

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "method_")

    def _networks(self) -> nn.Module:
        method = self._fitted()
        if isinstance(method, SeedMethod):
            return nn.ModuleDict({method.name: method.network})
        return nn.ModuleDict({"arrays": Arrays.of(parted(method.state())[1])})

    def _state(self) -> dict[str, Any]:
        method = self._fitted()
        plain, arrays = parted(method.state())
        return {
            "state": plain,
            "arrays": Arrays.of(arrays).shapes(),
            "directed": self.regions_.directed,
            "token_dim": self._token_dim,
            "notes": self.regions_.notes,
            "seconds": self.seconds_,
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        """The regions learned from, which are part of the model: new ones are compared with them."""
        train = self.regions_
        about = pd.DataFrame({"region": train.names})
        if train.coordinates is not None:
            about[["x", "y", "z"]] = train.coordinates
        for name in LABELS:
            if getattr(train, name) is not None:
                about[name] = getattr(train, name)
        columns = [str(i) for i in range(len(train))]
        return {
            "vocabulary": pd.DataFrame({"gene": train.genes}),
            "regions": about,
            "expression": pd.DataFrame(train.expression.T, columns=columns),
            "connectivity": pd.DataFrame(train.connectivity, columns=columns),
        }

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        self.check_arguments()
        about = tables["regions"]
        labels: dict[str, Any] = {name: about[name].tolist() for name in LABELS if name in about}
        train = Regions(
            names=about["region"].tolist(),
            genes=tables["vocabulary"]["gene"].tolist(),
            expression=np.ascontiguousarray(tables["expression"].to_numpy(np.float32).T),
            coordinates=about[["x", "y", "z"]].to_numpy(np.float64) if "x" in about else None,
            connectivity=tables["connectivity"].to_numpy(np.float64),
            directed=fitted["directed"],
            notes=fitted["notes"],
            **labels,
        )
        width = fitted["token_dim"]
        if width is not None and width * len(train.genes) > weights.numbers:
            raise ValueError(f"fitted.token_dim={width} is more than the weights hold")
        method = self.make(None if width is None else np.zeros((len(train.genes), width), np.float32))
        # In the order in which the method learned: sums are then the same to the bit.
        ordered = train.take(sorted(range(len(train)), key=train.names.__getitem__))
        if isinstance(method, SeedMethod):
            method.built(fitted["state"], ordered, weights)
        else:
            arrays = weights.build(partial(Arrays.empty, fitted["arrays"]), "arrays.").arrays()
            method.restore(joined(fitted["state"], arrays), ordered)
        self.regions_, self.method_ = train, method
        self._token_dim, self.seconds_ = width, fitted["seconds"]

    # ------------------------------------------------------------------ what they are made of

    @property
    def notes_(self) -> list[str]:
        """What was decided on the data, a sentence each."""
        return self.regions_.notes

    @property
    def history_(self) -> dict[str, list[dict[str, Any]]]:
        return {name: part.history for name, part in self._with_history().items()}

    @history_.setter
    def history_(self, histories: dict[str, list[dict[str, Any]]]) -> None:
        for name, part in self._with_history().items():
            part.history = histories.get(name, []) if isinstance(histories, dict) else []

    def _with_history(self) -> dict[str, SeedMethod | SetAttention]:
        method = self._fitted()
        parts: dict[str, Method] = method.fitted if isinstance(method, Blend) else {method.name: method}
        return {name: part for name, part in parts.items() if isinstance(part, SeedMethod | SetAttention)}

    @property
    def gene_vectors_(self) -> GeneVectors | None:
        """Those that "seed" was fitted with, of its genes; None: it has learned them, or is another method."""
        method = self._fitted()
        if self._token_dim is None or not isinstance(method, SeedMethod):
            return None
        return GeneVectors(self.regions_.genes, method.network.tokens.vectors.numpy())

    @property
    def weights_(self) -> dict[str, dict[str, float]]:
        """What "blend" weighs its parts with, by relation to known regions and by name; empty for other methods."""
        method = self._fitted()
        return {kind: dict(of) for kind, of in method.weights.items()} if isinstance(method, Blend) else {}

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without regions."""
        self.check_options()
        if self.method == "seed" and self.dim % HEADS:
            raise ValueError(f"dim must be divisible by the {HEADS} heads, got {self.dim}")
        devices.find(self.device)

    def make(
        self,
        vectors: Float[np.ndarray, "genes token_dim"] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Method:
        """The method that these arguments stand for, not fitted."""
        method: Method
        if self.method == "seed":
            method = SeedMethod(self, vectors)
        elif self.method in ("blend", "places"):
            method = Blend(self.method == "blend", self.device, say)
        elif self.method == "attention":
            method = SetAttention(device=self.device)
        else:
            method = METHODS[self.method]()
        return method

    def _fitted(self) -> Method:
        self.require_fitted()
        return self.method_

    def _regions(self, expression: Any, coordinates: Any, **options: Any) -> Regions:
        self._fitted()
        if expression is None:
            if coordinates is not None or options:
                raise ValueError("coordinates and options come with expression: without, the regions of fit are meant")
            return self.regions_
        regions = _as_regions(expression, coordinates, None, **options)
        if self.regions_.one_sided and len(set(regions.hemisphere or ()) - {""}) > 1:
            warnings.warn(ONE_SIDED, stacklevel=3)
        return self._scaled(self.aligned(regions))

    def _scaled(self, regions: Regions) -> Regions:
        """With the genes of the fit, on their scale; refused where they are on another one."""
        if self.method_.needs_genes:
            check_scale(self.regions_.expression, regions.expression)
        return regions

    def aligned(self, regions: Regions) -> Regions:
        """With the genes of the fit, in their order; NaN where one is not there."""
        genes, directed = self.regions_.genes, self.regions_.directed
        if regions.genes == genes:
            return regions.with_(directed=directed)
        matched = match(genes, regions.genes)
        if not matched.matched:
            raise ValueError(
                f"none of the model's genes, such as {genes[0]!r}, is there; there are such as {regions.genes[0]!r}"
            )
        values = np.full((len(regions), len(genes)), np.nan, np.float32)
        here = matched.positions >= 0
        values[:, here] = regions.expression[:, matched.positions[here]]
        share = 1 - here.mean()
        if share > 0.1:
            warnings.warn(
                f"{share:.0%} of the model's {len(genes):,} genes are not there, such as {matched.unmatched[0]!r}: "
                "they count as not measured",
                stacklevel=4,
            )
        return regions.with_(genes=list(genes), expression=values, directed=directed)

    def _with_vectors(
        self, regions: Regions, given: GeneVectors | str | Path | None
    ) -> tuple[Regions, Float[np.ndarray, "genes token_dim"] | None]:
        """The regions with those genes that have a vector, and these."""
        self._token_dim = None
        if given is None:
            return regions, None
        if self.method != "seed":
            raise ValueError("gene_vectors are for method='seed'")
        vectors = given if isinstance(given, GeneVectors) else read_gene_vectors(given)
        chosen, joined = vectors.of(regions.genes)
        here = np.flatnonzero(joined.positions >= 0)
        if len(here) < LEAST_GENES:
            raise ValueError(
                f"gene_vectors: {len(here)} of {len(regions.genes):,} genes, such as {regions.genes[0]!r}, have a "
                f"vector, at least {LEAST_GENES} are needed; there are such as {vectors.names[0]!r}"
            )
        self._token_dim = vectors.dim
        notes = [*regions.notes, f"gene vectors: {joined.sentence()}; only genes with a vector are used"]
        genes = [regions.genes[g] for g in here]
        return regions.with_(genes=genes, expression=regions.expression[:, here], notes=notes), chosen[here]


def positions(pairs: Any, names: Sequence[str]) -> Pairs:
    """Pairs of names, or of positions, as positions.

    Raises:
        ValueError: Not two columns, a region that is not there, a region with itself, or integers where names are other
            integers: nobody can tell which of them are meant.
    """
    values = np.asarray(pairs.to_numpy() if isinstance(pairs, pd.DataFrame) else pairs)
    if values.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if values.ndim != 2 or values.shape[1] != 2:
        raise ValueError(f"pairs must have two columns, got shape {values.shape}")
    if np.issubdtype(values.dtype, np.integer):
        places = values.astype(np.int64)
        if all(map(str.isdigit, names)) and [str(at) for at in range(len(names))] != list(names):
            raise ValueError(
                f"pairs must be of text where names of regions are numbers such as {names[0]!r}: integers, got "
                f"{places[0].tolist()}, would be positions. Give pairs.astype(str)"
            )
        bad = places[((places < 0) | (places >= len(names))).any(1)]
        if len(bad):
            raise ValueError(f"pairs must be of positions from 0 to {len(names) - 1}, got {bad[0].tolist()}")
    else:
        place = {name: at for at, name in enumerate(names)}
        regions = [str(name) for name in values.ravel()]
        for name in regions:
            if name not in place:
                raise ValueError(f"pairs: region {name!r} is not there, regions are such as {names[0]!r}")
        places = np.array([place[name] for name in regions], dtype=np.int64).reshape(-1, 2)
    same = places[places[:, 0] == places[:, 1]]
    if len(same):
        raise ValueError(f"pairs must be of two regions, got {names[same[0, 0]]!r} with itself")
    return places


def _as_regions(expression: Any, coordinates: Any, connectivity: Any, **options: Any) -> Regions:
    if isinstance(expression, Regions):
        if coordinates is not None or connectivity is not None or options:
            raise ValueError("coordinates, connectivity and options are part of Regions: give these alone")
        return expression
    return read_regions(expression, connectivity, coordinates, **options)
