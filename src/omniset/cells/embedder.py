"""The public class: fit on cells without labels, then give any cell its vector."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from torch import Tensor, nn

import omniset
from omniset import devices, explain
from omniset.cells.data import Cells, read_cells
from omniset.cells.losses import LOSSES
from omniset.cells.model import SCALE, CellModel
from omniset.cells.neighbours import Transfer, transfer
from omniset.cells.seed import SeedModel
from omniset.cells.seed_training import SeedData, SeedModule, seed_decode, seed_embed, seed_options
from omniset.cells.training import CellData, CellModule, start_from_axes
from omniset.cells.variable import Moments, most_variable
from omniset.encoders import ENCODERS
from omniset.gene_vectors import GeneVectors, read_gene_vectors
from omniset.progress import Progress
from omniset.sets import SetBatch
from omniset.training import artefacts
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train

KEY = "X_omniset"
ARCHITECTURES = ("multiset", "seed")
COUNTS = ("multiplicity", "log1p", "tokens")
TOKENS = {"axes": "fixed", "learned": "learned", "random": "learned", "given": "none"}
SIZES = (  # that a model learned on from must have in common
    *("embedding_dim", "encoder", "dim", "depth", "num_heads", "num_inducing", "num_outputs", "encoder_options"),
    *("counts", "gene_tokens", "clusters"),
)
STEPS = 800  # of training, about, unless `epochs` is given
LEAST = 8  # cells to learn from
TOGETHER = 512  # cells embedded at a time


class CellEmbedder(BaseEstimator):
    """A vector for each cell, learned from counts without labels, in which batches are mixed and cell states are not.

    The vector is a function of the cell's own counts: the same whatever else is in the file, and without its batch.

    Args:
        architecture: "multiset", or "seed": network and training of the document "State Embedding Neural Network
            Architecture" (see `cells.seed`). Its sizes are dim, depth, num_heads and embedding_dim (published: 512, 8,
            16, 512), with FFNs of width 2 dim, and encoder_options sets its branches and sentences (see
            `cells.seed_training.DEFAULTS`). Of what follows it uses these, batch_size, epochs, the options of AdamW
            (published: 1e-5 and 0.01), dropout and validation only.
        embedding_dim: Width of the vectors.
        encoder: In `omniset.encoders.ENCODERS`.
        dim, depth, num_heads, num_inducing, num_outputs, encoder_options: Its size. With depth 0 (None; for "seed" 2)
            genes are pooled by `num_outputs` attention queries at once, which costs one product per cell; with more
            they see each other first, in U-ISABs.
        counts: How counts enter: "multiplicity" (the gene is in the cell's multiset log(1 + 10^4 count / library)
            times), "log1p" (log(1 + count) times), or "tokens" (once, its token changed by the count).
        gene_tokens: What a gene's token is, beside the projection of its vector where gene vectors are given to fit:
            "axes" (its place on the principal axes of the log-normalised counts), "learned" (from there on), "random"
            (learned from a random start) or "given" (nothing: gene vectors are needed).
        likelihood: Of the counts: "nb" (negative binomial), "poisson", or "mse" of log-normalised values.
        beta: Weight of the divergence from a normal prior. 0: no noise, no prior.
        alignment: Weight of mixing the batches within clusters of cells.
        clusters: How many.
        condition: Tell the decoder a cell's batch, so that its vector need not hold it.
        hide: Mean share of expressed genes that are hidden from the encoder in training and predicted.
        dropout: In the head of the encoder.
        max_genes: Genes in the vocabulary, at most: those that vary most for their mean (see `cells.variable`). None:
            all.
        min_cells: Genes seen in fewer cells are left out of the vocabulary.
        epochs: None: enough for 800 steps.
        batch_size: Cells per step.
        learning_rate, weight_decay: Of AdamW.
        patience: Stop after so many epochs without a better validation loss. None: never, and keep the last weights.
        validation_fraction: Share of the cells kept back to watch the training. 0: none.
        seed: Of everything drawn. The same seed gives the same numbers to the bit on a CPU.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Show progress.

    Attributes:
        genes_: The vocabulary.
        batches_: Names of the batches that the decoder knows.
        network_: The model.
        history: A dict per epoch.
        notes_: What was decided on the data, a sentence each.
    """

    genes_: list[str]
    network_: CellModel | SeedModel

    def __init__(
        self,
        architecture: str = "multiset",
        *,
        embedding_dim: int = 32,
        encoder: str = "ust",
        dim: int = 64,
        depth: int | None = None,
        num_heads: int = 4,
        num_inducing: int = 16,
        num_outputs: int = 8,
        encoder_options: dict[str, Any] | None = None,
        counts: str = "multiplicity",
        gene_tokens: str = "axes",
        likelihood: str = "nb",
        beta: float = 0.0,
        alignment: float = 20.0,
        clusters: int = 30,
        condition: bool = True,
        hide: float = 0.2,
        dropout: float = 0.1,
        max_genes: int | None = 2000,
        min_cells: int = 1,
        epochs: int | None = None,
        batch_size: int = 128,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-4,
        patience: int | None = None,
        validation_fraction: float = 0.0,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.architecture = architecture
        self.embedding_dim = embedding_dim
        self.encoder = encoder
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.num_inducing = num_inducing
        self.num_outputs = num_outputs
        self.encoder_options = encoder_options
        self.counts = counts
        self.gene_tokens = gene_tokens
        self.likelihood = likelihood
        self.beta = beta
        self.alignment = alignment
        self.clusters = clusters
        self.condition = condition
        self.hide = hide
        self.dropout = dropout
        self.max_genes = max_genes
        self.min_cells = min_cells
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.seed = seed
        self.device = device
        self.progress = progress

    # ------------------------------------------------------------------ the verbs

    def fit(
        self,
        source: Any,
        y: Any = None,
        *,
        batch_key: str | None = None,
        layer: str | None = None,
        input: str = "auto",  # noqa: A002
        gene_column: str | None = None,
        gene_vectors: GeneVectors | str | Path | None = None,
        aliases: Mapping[str, str] | None = None,
        start_from: CellEmbedder | str | Path | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> CellEmbedder:
        """Learn from all cells of the source.

        Args:
            source: An AnnData, a path (.h5ad, zarr, 10x .h5), a pattern, a list of these, or `Cells`. Nothing in it is
                changed. Counts of more than 512 MB are read in blocks, each epoch anew.
            y: Ignored; labels are never used.
            batch_key: Column of obs with the batch. None: each source is a batch.
            layer, input, gene_column: As in `read_cells`.
            gene_vectors: A table of vectors of genes, such as ESM2's or gene2vec's, or its path.
            aliases: Other names of genes, for the vectors or for start_from.
            start_from: A fitted model of the same sizes, or its folder, to learn on from: with its genes, its gene
                vectors and its weights. Its vectors and the new ones cannot be compared. "multiset" only.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds or other than in start_from, bad values in the source, or too few
                cells.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        cells = as_cells(source, layer=layer, input=input, gene_column=gene_column)
        codes, self.batches_ = batch_codes(cells, batch_key)
        return self.fit_cells(
            cells,
            codes,
            np.arange(len(cells)),
            gene_vectors=gene_vectors,
            aliases=aliases,
            start_from=start_from,
            folder=folder,
            resume=resume,
        )

    def fit_cells(
        self,
        cells: Cells,
        codes: Int[np.ndarray, " cells"],
        rows: Int[np.ndarray, " rows"],
        *,
        gene_vectors: GeneVectors | str | Path | None = None,
        aliases: Mapping[str, str] | None = None,
        start_from: CellEmbedder | str | Path | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> CellEmbedder:
        """`fit` on some of the cells, of these batches (-1: not among the rows). Others are not looked at."""
        if len(rows) < LEAST:
            raise ValueError(f"there are {len(rows)} cells to learn from, at least {LEAST} are needed")
        start = time.monotonic()
        base = None if start_from is None else self._base(start_from, gene_vectors)
        scan = cells.scan(self.progress)
        if base is not None:
            cells = cells.on(base.genes_, aliases)
        self._choose_genes(cells, codes, rows, base)
        genes = self.genes_
        if not scan.library[rows].all():
            without = rows[scan.library[rows] == 0]
            warnings.warn(
                f"cells without counts, such as {cells.names[without[0]]!r}, teach nothing: {len(without):,} of "
                f"{len(rows):,}",
                stacklevel=3,
            )
        known = None if base is None else base.network_
        vectors = known.encoder.tokens.vectors if isinstance(known, CellModel) else self._vectors(gene_vectors, aliases)
        own = cells.on(genes)
        if not hasattr(self, "batches_"):
            self.batches_ = [str(i) for i in range(int(codes.max()) + 1)]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = self._build(len(genes), len(self.batches_), vectors)
        rng = np.random.default_rng(self.seed)
        kept = np.sort(rng.permutation(rows)[: round(self.validation_fraction * len(rows))])
        chosen = np.setdiff1d(rows, kept)
        unwatched = ("device", "progress")
        data = zlib.crc32(scan.library[rows].tobytes(), zlib.crc32(codes[rows].tobytes()))
        data = data if vectors is None else zlib.crc32(vectors.numpy().tobytes(), data)
        data = data if base is None else zlib.crc32(base.identity().encode(), data)
        fingerprint = {k: v for k, v in self.get_params().items() if k not in unwatched} | {"data": data}
        if base is not None and isinstance(network, CellModel) and isinstance(known, CellModel):
            number = {name: i for i, name in enumerate(base.batches_)}
            network.start_from(known, [number.get(name) for name in self.batches_])
        elif isinstance(network, CellModel) and self.gene_tokens != "random":
            start_from_axes(network.encoder.tokens, own, chosen, self.seed)
        module, batches = self._lessons(network, own, codes, chosen, kept, fingerprint)
        train(
            module,
            batches,
            epochs=self.epochs or max(1, -(-STEPS * self.batch_size // len(chosen))),
            patience=self.patience,
            device=self.device,
            progress=self.progress,
            log=None,
            folder=folder,
            resume=resume,
        )
        self.network_ = network
        self.history_ = module.history
        self.seconds_ = round(time.monotonic() - start, 1)
        self.sizes_ = {"cells": len(rows), "training": len(chosen), "validation": len(kept), "genes": len(genes)}
        self.mean_ = self._embed(cells, rows).mean(0)
        return self

    def fit_transform(self, source: Any, y: Any = None, **options: Any) -> Float[np.ndarray, "cells embedding_dim"]:
        """`fit`, then `transform`."""
        read = {k: options[k] for k in ("layer", "input", "gene_column") if k in options}
        return self.fit(source, **options).transform(source, **read)

    def transform(
        self,
        source: Any,
        *,
        layer: str | None = None,
        input: str = "auto",  # noqa: A002
        gene_column: str | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> Float[np.ndarray, "cells embedding_dim"]:
        """The vectors of all cells, in their order; a cell without counts gets that of the empty set.

        Args:
            source, layer, input, gene_column: As for fit; other genes, in another order, are matched by name.

        Raises:
            ValueError: None of the genes is known.
        """
        self._fitted()
        cells = as_cells(source, layer=layer, input=input, gene_column=gene_column)
        return self._embed(cells, None, aliases)

    def embed(self, source: Any, *, key: str | None = KEY, **options: Any) -> Float[np.ndarray, "cells embedding_dim"]:
        """`transform`, kept in `obsm[key]` of an AnnData, with its provenance in `uns["omniset"]`.

        Nothing else of it is changed. Options as for transform.
        """
        found = self.transform(source, **options)
        if key is not None and type(source).__name__ == "AnnData":
            source.obsm[key] = found
            source.uns["omniset"] = self.provenance(key)
        return found

    def decode(
        self,
        embedding: Float[np.ndarray, "cells embedding_dim"],
        *,
        batch: str | None = None,
        library: float | Float[np.ndarray, " cells"] = SCALE,
    ) -> Float[np.ndarray, "cells genes"]:
        """Expected counts of the genes `genes_`.

        Args:
            embedding: What transform gave, or means of it.
            batch: As this batch would show them. None: mean over the batches.
            library: Sum of the counts of each cell.

        Raises:
            ValueError: A batch that was not learned from, or vectors of another width.
        """
        network = self._fitted()
        z = np.asarray(embedding, dtype=np.float32)
        if z.ndim != 2 or z.shape[1] != self.embedding_dim:
            raise ValueError(f"embedding must be cells x {self.embedding_dim}, got shape {z.shape}")
        if batch is not None and batch not in self.batches_:
            raise ValueError(f"batch must be one of those learned from, {', '.join(self.batches_)}; got {batch!r}")
        if isinstance(network, SeedModel) and batch is not None:
            raise ValueError("batch is for architecture='multiset': the seed's decoder reads no batch's name")
        which = range(len(self.batches_)) if batch is None else [self.batches_.index(batch)]
        device = devices.find(self.device)
        network.to(device).eval()
        found = np.empty((len(z), len(self.genes_)), dtype=np.float32)
        for start in range(0, len(z), TOGETHER):
            some = torch.from_numpy(z[start : start + TOGETHER]).to(device)
            found[start : start + TOGETHER] = self._shares(network, some, which).cpu().numpy()
        network.to("cpu")
        return found * np.broadcast_to(np.asarray(library, dtype=np.float32), len(z))[:, None]

    def query(
        self,
        source: Any,
        reference: Float[np.ndarray, "reference embedding_dim"],
        labels: Any = None,
        *,
        k: int = 15,
        **options: Any,
    ) -> Transfer:
        """The nearest cells of an embedded reference, and the labels that they suggest.

        Args:
            source: Cells as for transform; or their vectors.
            reference: Vectors that this model gave.
            labels: Of the reference cells, a list, array or column.
            k: Neighbours.
        """
        z = source if isinstance(source, np.ndarray) else self.transform(source, **options)
        return transfer(z, reference, labels, k)

    def explain(
        self, source: Any, cells: Sequence[str] | str, *, top: int = 20, steps: int = 20, **options: Any
    ) -> pd.DataFrame:
        """Which genes make these cells' vectors what they are.

        Returns a row per cell and gene, largest change first: `cell`, `gene`, `count`; `change`, how far along its
        own direction (from the mean of the training cells) the vector would go back without the gene; `attribution`,
        self-attention attribution (0 to 1), NaN where the encoder does not attend.

        Args:
            cells: Their names, or one name.
            top: Genes per cell.
            steps: Of the attribution's integral.

        Raises:
            ValueError: A cell that is not there, or without counts of known genes.
        """
        if isinstance(self._fitted(), SeedModel):
            raise ValueError("explain is for architecture='multiset'")
        cells = [cells] if isinstance(cells, str) else cells
        found = as_cells(source, **options).on(self.genes_)
        names = pd.Index(found.names)
        lacking = [name for name in cells if name not in names]
        if lacking:
            raise ValueError(f"cell {lacking[0]!r} is not in the source, whose cells are such as {names[0]!r}")
        frames = []
        for name in cells:
            row = int(np.flatnonzero(names == name)[0])
            counts = found.take(np.array([row]))
            if not counts.nnz:
                raise ValueError(f"cell {name!r} has no counts of genes that the model knows")
            library = torch.from_numpy(found.library(np.array([row])).astype(np.float32))
            frames.append(self._explained(name, torch.from_numpy(counts.toarray()), library, steps).head(top))
        return pd.concat(frames, ignore_index=True)

    @property
    def history(self) -> list[dict[str, Any]]:
        self._fitted()
        return self.history_

    def provenance(self, key: str = KEY) -> dict[str, Any]:
        """What an embedding came from: kept in `uns["omniset"]`, and compared before cells are queried."""
        return {
            "key": key,
            "model": self.identity(),
            "class": type(self).__name__,
            "version": omniset.__version__,
            "seed": int(self.seed),
            "genes": len(self.genes_),
        }

    def identity(self) -> str:
        """A checksum of the weights: vectors of models that differ in it have nothing in common."""
        checksum = 0
        for tensor in self._fitted().state_dict().values():
            checksum = zlib.crc32(tensor.contiguous().cpu().numpy().tobytes(), checksum)
        return f"{checksum:08x}"

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> None:
        """Write the artefact: config.json, model.safetensors, vocabulary.parquet, metrics.json."""
        network = self._fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        artefacts.save_table(folder, "vocabulary", self.vocabulary_)
        given = network.vectors if isinstance(network, SeedModel) else network.encoder.tokens.vectors
        vectors = None if isinstance(given, nn.Parameter) else given
        fitted = {
            "genes": len(self.genes_),
            "vocabulary": _checksum(self.genes_),
            "batches": self.batches_,
            "vectors": None if vectors is None else vectors.shape[1],
            "sizes": self.sizes_,
            "mean": self.mean_.tolist(),
            "notes": self.notes_,
        }
        kept = {"history": self.history_, **(metrics or {})}
        artefacts.save(
            folder, type(self).__name__, self.get_params(), fitted, network, kept, devices.find(self.device).type
        )

    @classmethod
    def load(cls, folder: str | Path) -> CellEmbedder:
        """Read an artefact. Checks format, version, class, vocabulary and every tensor, and says what differs."""
        folder = Path(folder)
        config = artefacts.load_config(folder, cls.__name__)
        try:
            embedder, fitted = cls(**config["arguments"]), config["fitted"]
            embedder.check_arguments()
            embedder.batches_, embedder.sizes_, embedder.notes_ = fitted["batches"], fitted["sizes"], fitted["notes"]
            embedder.mean_ = np.array(fitted["mean"], dtype=np.float32)
            network = embedder._build(fitted["genes"], len(embedder.batches_), fitted["vectors"])
            checksum = fitted["vocabulary"]
        except (TypeError, KeyError) as error:
            raise ValueError(f"{folder / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        embedder.vocabulary_ = artefacts.load_table(folder, "vocabulary")
        embedder.genes_ = embedder.vocabulary_["gene"].tolist()
        if _checksum(embedder.genes_) != checksum:
            raise ValueError(f"{folder / 'vocabulary.parquet'} is not the vocabulary that the model was saved with")
        artefacts.load_weights(folder, network)
        embedder.network_ = network.eval()
        embedder.history_ = artefacts.load_metrics(folder).get("history", [])
        return embedder

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without cells."""
        for name, known in (
            *(
                ("architecture", ARCHITECTURES),
                ("encoder", sorted(ENCODERS)),
                ("counts", COUNTS),
                ("gene_tokens", tuple(TOKENS)),
                ("likelihood", LOSSES),
            ),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name, least in (
            *(("embedding_dim", 1), ("clusters", 1), ("min_cells", 1), ("epochs", 1), ("batch_size", 2), ("seed", 0)),
            *(("patience", 1), ("num_outputs", 1), ("max_genes", 1)),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        for name, most in (("hide", 0.5), ("dropout", 1.0), ("validation_fraction", 0.5)):
            if not 0 <= getattr(self, name) < most:
                raise ValueError(f"{name} must be >= 0 and below {most:g}, got {getattr(self, name)}")
        for name in ("beta", "alignment", "weight_decay"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if not 0 < self.learning_rate < np.inf:
            raise ValueError(f"learning_rate must be > 0, got {self.learning_rate}")
        devices.find(self.device)
        try:
            with torch.random.fork_rng():
                self._build(1, 1, 1 if self.gene_tokens == "given" else None)
        except TypeError as error:
            raise ValueError(f"encoder_options: {error}") from error

    def _build(self, genes: int, batches: int, vectors: Tensor | int | None) -> CellModel | SeedModel:
        if self.architecture == "seed":
            options = seed_options(self.encoder_options)
            table = torch.zeros(genes, vectors) if isinstance(vectors, int) else vectors
            width = (options["token_dim"] or self.dim) if table is None else table.shape[1]
            return SeedModel(
                table,
                genes,
                width,
                self.dim,
                self.num_heads,
                2 if self.depth is None else self.depth,
                2 * self.dim,
                self.embedding_dim,
                counts=options["read_counts"],
                datasets=batches if batches > 1 and options["dataset_token"] else 0,
                depth_scalar=options["depth_scalar"],
                dropout=self.dropout,
                scale_tokens=options["scale_tokens"],
            )
        return CellModel(
            genes,
            batches,
            latent=self.embedding_dim,
            clusters=self.clusters,
            encoder=self.encoder,
            dim=self.dim,
            depth=self.depth or 0,
            num_heads=self.num_heads,
            num_inducing=self.num_inducing,
            num_outputs=self.num_outputs,
            dropout=self.dropout,
            counts=self.counts,
            vectors=vectors,
            own=TOKENS[self.gene_tokens],
            options=self.encoder_options,
        )

    def _base(self, given: CellEmbedder | str | Path, gene_vectors: Any) -> CellEmbedder:
        """What is learned on from. Its sizes must be ours."""
        base = given if isinstance(given, CellEmbedder) else CellEmbedder.load(given)
        if "seed" in (self.architecture, base.architecture):
            raise ValueError("start_from is for architecture='multiset'")
        base._fitted()
        if gene_vectors is not None:
            raise ValueError("start_from comes with the gene vectors it had, if any: leave gene_vectors out")
        own, others = self.get_params(), base.get_params()
        for name in SIZES:
            if own[name] != others[name]:
                raise ValueError(f"{name} must be as in start_from, {others[name]!r}; got {own[name]!r}")
        return base

    def _choose_genes(
        self,
        cells: Cells,
        codes: Int[np.ndarray, " cells"],
        rows: Int[np.ndarray, " rows"],
        base: CellEmbedder | None = None,
    ) -> None:
        """The vocabulary: of the genes that are seen, those that vary most; or that of the base, all of it."""
        seen = np.zeros(len(cells.genes), dtype=np.int64)
        moments = [Moments.none(len(seen)) for _ in range(int(codes[rows].max()) + 1)]
        with Progress("choosing genes", len(rows), self.progress, unit="cells") as progress:
            for start in range(0, len(rows), TOGETHER):
                some = rows[start : start + TOGETHER]
                counts = cells.take(some)
                seen += np.bincount(counts.indices[counts.data > 0], minlength=len(seen))
                for batch in np.unique(codes[some]):
                    moments[batch].add(counts[codes[some] == batch])
                progress.at(min(start + TOGETHER, len(rows)))
        if base is not None:
            self.genes_ = list(base.genes_)
            self.vocabulary_ = pd.DataFrame({"gene": self.genes_, "cells": seen})
            found = f"{int((seen > 0).sum()):,} of its {len(seen):,} genes are seen in these cells"
            self.notes_ = [*cells.notes, f"learned on from the model {base.identity()}: {found}"]
            return
        often = np.flatnonzero(seen >= self.min_cells)
        if not len(often):
            raise ValueError(f"no gene is seen in min_cells={self.min_cells} of the {len(rows)} cells")
        chosen = often
        if self.max_genes is not None:
            chosen = often[most_variable([m.of_genes(often) for m in moments], self.max_genes)]
        self.genes_ = [cells.genes[i] for i in chosen]
        self.vocabulary_ = pd.DataFrame({"gene": self.genes_, "cells": seen[chosen]})
        left = "" if len(chosen) == len(often) else f", the {len(chosen):,} that vary most are learned from"
        self.notes_ = [*cells.notes, f"{len(often):,} of {len(cells.genes):,} genes are seen in these cells{left}"]

    def _lessons(
        self,
        network: CellModel | SeedModel,
        cells: Cells,
        codes: Int[np.ndarray, " cells"],
        chosen: Int[np.ndarray, " train"],
        kept: Int[np.ndarray, " validation"],
        fingerprint: dict[str, Any],
    ) -> tuple[TrainingModule, Any]:
        """What is trained, and the data that it is trained on."""
        training = (self.learning_rate, self.weight_decay, self.seed, fingerprint)
        if isinstance(network, SeedModel):
            options = seed_options(self.encoder_options)
            data = SeedData(cells, codes, chosen, kept, batch_size=self.batch_size, options=options, seed=self.seed)
            return SeedModule(network, *training, shared=options["shared"]), data
        objective = {name: getattr(self, name) for name in ("likelihood", "beta", "alignment", "condition")}
        return (
            CellModule(network, *training, objective=objective),
            CellData(cells, codes, chosen, kept, batch_size=self.batch_size, hide=self.hide, seed=self.seed),
        )

    def _vectors(self, given: GeneVectors | str | Path | None, aliases: Mapping[str, str] | None) -> Tensor | None:
        if given is None:
            if self.gene_tokens == "given":
                raise ValueError("gene_tokens='given' needs gene_vectors")
            return None
        vectors = given if isinstance(given, GeneVectors) else read_gene_vectors(given)
        found, matched = vectors.of(self.genes_, aliases)
        if not matched.matched:
            raise ValueError(
                f"gene_vectors: none of the genes, such as {self.genes_[0]!r}, has a vector; there are such as "
                f"{vectors.names[0]!r}"
            )
        self.notes_.append(f"gene vectors: {matched.sentence()}")
        lacking = int((matched.positions < 0).sum())
        if lacking and self.gene_tokens == "given":
            warnings.warn(
                f"{lacking:,} of {len(self.genes_):,} genes have no vector and, as gene_tokens='given', are not seen "
                f"by the model, such as {matched.unmatched[0]!r}",
                stacklevel=4,
            )
        return torch.from_numpy(found)

    def _fitted(self) -> CellModel | SeedModel:
        if not hasattr(self, "network_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet: call fit first, or load one")
        return self.network_

    @torch.no_grad()
    def _embed(
        self,
        cells: Cells,
        rows: Int[np.ndarray, " rows"] | None,
        aliases: Mapping[str, str] | None = None,
    ) -> Float[np.ndarray, "rows embedding_dim"]:
        """Vectors of some cells, or of all, read block by block."""
        rows = np.arange(len(cells)) if rows is None else rows
        device = devices.find(self.device)
        network = self._fitted().to(device).eval()
        own = cells.on(self.genes_, aliases)
        found = np.empty((len(rows), self.embedding_dim), dtype=np.float32)
        table = None if isinstance(network, SeedModel) else network.encoder.table()
        with Progress("embedding", len(rows), self.progress, unit="cells") as progress:
            for start in range(0, len(rows), TOGETHER):
                some = rows[start : start + TOGETHER]
                if isinstance(network, SeedModel):
                    z = seed_embed(network, own, some, seed_options(self.encoder_options), device)
                else:
                    counts = torch.from_numpy(own.take(some).toarray()).to(device)
                    library = torch.from_numpy(own.library(some).astype(np.float32)).to(device)
                    z = network.encoder(counts, library, table)[0]
                found[start : start + len(z)] = z.cpu().numpy()
                progress.at(start + len(z))
        network.to("cpu")
        return found

    @torch.no_grad()
    def _shares(
        self, network: CellModel | SeedModel, z: Float[Tensor, "cells embedding_dim"], batches: Sequence[int] | range
    ) -> Float[Tensor, "cells genes"]:
        """What each gene has of a cell's counts, mean over the batches."""
        if isinstance(network, SeedModel):
            counts = torch.expm1(seed_decode(network, z, 1.0)).clamp(min=0)
            return counts / counts.sum(1, keepdim=True).clamp(min=1e-12)
        share = torch.zeros((), device=z.device)
        for b in batches:
            own = torch.zeros(len(z), len(self.batches_), device=z.device)
            own[:, b] = self.condition
            share = share + network.decoder(z, own).exp() / len(batches)
        return share

    def _explained(
        self, name: str, counts: Float[Tensor, "1 genes"], library: Float[Tensor, " 1"], steps: int
    ) -> pd.DataFrame:
        network = self._fitted()
        assert isinstance(network, CellModel)
        encoder = network.encoder.eval()
        which = counts[0].nonzero()[:, 0]
        with torch.no_grad():
            table = encoder.table()
            z, mean = encoder(counts, library, table)[0], torch.from_numpy(self.mean_)
            away = z - mean
            direction = away[0] / away.norm().clamp(min=1e-12)
            changes = []
            for some in which.split(TOGETHER):
                without = counts.repeat(len(some), 1)
                without[torch.arange(len(some)), some] = 0
                changes.append((z - encoder(without, library.expand(len(some)), table)[0]) @ direction)
            tokens = encoder.sets_of(counts, library)
        scores = np.full(len(which), np.nan)
        if explain.attends(encoder.encoder):
            scores = explain.attribute(_Along(encoder, direction, mean).eval(), tokens, 0, steps)[0].numpy()
        frame = pd.DataFrame(
            {
                "cell": name,
                "gene": [self.genes_[i] for i in which.tolist()],
                "count": counts[0, which].numpy(),
                "change": torch.cat(changes).numpy(),
                "attribution": scores,
            }
        )
        return frame.sort_values("change", key=np.abs, ascending=False, ignore_index=True)


class _Along(nn.Module):
    """How far a cell's vector lies along a direction, as a function of its tokens, for attribution."""

    def __init__(self, encoder: Any, direction: Tensor, mean: Tensor) -> None:
        super().__init__()
        self.encoder, self.direction, self.middle = encoder, direction, mean

    def forward(self, tokens: SetBatch) -> Float[Tensor, "cells 1"]:
        z = self.encoder.mean(self.encoder.head_of(self.encoder.encoder(tokens).summary))
        return ((z - self.middle) @ self.direction)[:, None]


def as_cells(source: Any, **options: Any) -> Cells:
    """Whatever holds cells."""
    if isinstance(source, Cells):
        if given := [name for name, value in options.items() if value not in (None, "auto")]:
            raise ValueError(f"{given[0]} was decided when the cells were read")
        return source
    return read_cells(source, **options)


def batch_codes(cells: Cells, batch_key: str | None) -> tuple[Int[np.ndarray, " cells"], list[str]]:
    """Number of each cell's batch, and the batches' names.

    Raises:
        ValueError: No such column, or a cell without a batch.
    """
    if batch_key is None:
        return cells.source_of.astype(np.int64), [source.name for source in cells.sources]
    if batch_key not in cells.obs:
        columns = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"batch_key must be a column of obs, there is no {batch_key!r}; there are: {columns}")
    values = cells.obs[batch_key]
    if values.isna().any():
        name = cells.names[np.flatnonzero(values.isna())[0]]
        raise ValueError(f"batch_key: cell {name!r} has no {batch_key}")
    codes, names = pd.factorize(values.astype(str), sort=True)
    return codes.astype(np.int64), names.astype(str).tolist()


def _checksum(names: list[str]) -> int:
    return zlib.crc32("\n".join(names).encode())
