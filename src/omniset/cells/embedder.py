"""The public class: fit on cells without labels, then give any cell its vector."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor, nn

import omniset
from omniset.cells import seed
from omniset.cells.data import Cells, batch_codes, known_genes, opened
from omniset.cells.model import DROPOUT, SCALE, CellEncoder, CellModel
from omniset.cells.options import EmbedderOptions
from omniset.cells.seed import SeedModel, SeedOptions
from omniset.cells.training import BlockSampler, CellBatches, CellModule, loss_settled, start_from_axes
from omniset.cells.variable_genes import most_variable, survey
from omniset.fitted import Estimator
from omniset.options import blaming
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.doubts import FEWEST, judge_join, refuse_equal_rows
from omniset.tables.gene_vectors import GeneVectors, read_gene_vectors
from omniset.tables.matrices import needed
from omniset.training import artefacts, schema
from omniset.training.data import Lesson
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train

Codes = Int[np.ndarray, " cells"]
Rows = Int[np.ndarray, " rows"]
KEY = "X_omniset"
STEPS = 800  # of training, about, unless `epochs` is given
WEIGHT_DECAY = 1e-4  # of AdamW
LEAST = 8  # cells to learn from
TOGETHER = 512  # cells embedded at a time
FILLED = "they are filled in by what goes with them in the cells that were learned from"
NOT_SEEN = "they count as not seen"
Network = CellModel | SeedModel


class CellEmbedder(EmbedderOptions, Estimator):
    """A vector for each cell, learned from counts without labels, in which batches are mixed and cell states are not.

    The vector is a function of the cell's own counts: the same whatever else is in the file, and without its batch.

    Args:
        {options}

    Attributes:
        genes_: The vocabulary.
        batches_: Names of the batches that the decoder knows.
        network_: The model.
        history: A dict per epoch.
        notes_: What was decided on the data, a sentence each.
    """

    network_: Network
    genes_: list[str]
    batches_: list[str]
    FITTED: ClassVar[dict[str, Any]] = {
        "genes": schema.SIZE,
        "batches": schema.array(schema.TEXT, minItems=1),
        "vectors": schema.optional(schema.SIZE),
        "sizes": schema.OBJECT,
        "mean": schema.array(schema.NUMBER),
        "notes": schema.array(schema.TEXT),
    }
    TABLES: ClassVar = {"vocabulary": ["gene"]}

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
            source: An AnnData, a path (.h5ad, zarr, 10x .h5 or folder), a pattern, a list of these, or `Cells`.
                Nothing in it is changed. Counts of more than 512 MB are read in blocks, each epoch anew.
            y: Ignored.
            batch_key: Column of obs with the batch; "file": each source is a batch; "none": nothing is to be mixed, all
                cells are of one batch. None: each source, unless obs has a column `batch`, which is asked about.
            layer, input, gene_column: As in `read_cells`.
            gene_vectors: A table of vectors of genes, such as ESM2's or gene2vec's, or its path. "seed" only.
            aliases: Other names of genes, for the vectors or for start_from.
            start_from: A fitted model of the same sizes, or its folder, to learn on from: with its genes and its
                weights. Its vectors and the new ones cannot be compared. "multiset" only.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds or other than in start_from, bad values in the source, too few
                cells, or batches that are asked about.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        self.check_resumed(folder, resume)
        with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
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
        """`fit` on some of the cells, of these batches (-1: not among the rows).

        Others are not looked at. The rows are in ascending order.
        """
        if gene_vectors is not None and self.architecture != "seed":
            raise ValueError("gene_vectors are for architecture='seed'")
        if start_from is not None and self.architecture == "seed":
            raise ValueError("start_from is for architecture='multiset'")
        if len(rows) < LEAST:
            raise ValueError(f"there are {len(rows)} cells to learn from, at least {LEAST} are needed")
        start = time.monotonic()
        base = None if start_from is None else self._base(start_from)
        scan = cells.scan(self.progress)
        if base is not None:
            cells = cells.on(base.genes_, aliases)
        self.vocabulary_, note = _vocabulary(cells, codes, rows, self, base)
        self.genes_ = self.vocabulary_["gene"].tolist()
        self.notes_ = [*cells.notes, note]
        empty = np.zeros(len(cells), dtype=bool)
        empty[rows] = scan.library[rows] == 0
        warn_of_empty(cells, empty, "they teach nothing")
        vectors, notes = _vectors_of_genes(gene_vectors, self.genes_, aliases)
        self.notes_ += notes
        on_genes = self.on(cells)
        if not hasattr(self, "batches_"):
            self.batches_ = [str(i) for i in range(int(codes.max()) + 1)]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = build(self, len(self.genes_), len(self.batches_), vectors)
        if base is not None and isinstance(network, CellModel):
            assert isinstance(base.network_, CellModel)
            number = {name: i for i, name in enumerate(base.batches_)}
            network.start_from(base.network_, [number.get(name) for name in self.batches_])
        elif isinstance(network, CellModel):
            start_from_axes(network.encoder, on_genes, rows, self.seed)
        learned_from = [scan.library[rows], codes[rows]]
        fingerprint = self.fingerprint() | {"data": _checksum(learned_from, vectors, base)}
        module, batches = self._lesson(network, on_genes, codes, fingerprint)
        whole = isinstance(network, CellModel)  # batches: a few cells tell little of a batch's place
        data = Lesson(batches, rows, [], batch_size=self.batch_size, seed=self.seed, sampler=BlockSampler, whole=whole)
        epochs = self.epochs or max(1, -(-STEPS * self.batch_size // len(rows)))
        computing: dict[str, Any] = {"device": self.device, "progress": self.progress, "log": None}
        # Of a step: genes of each cell, by their tokens where they see each other.
        with devices.threads_for(self.batch_size * len(self.genes_) * (1 if whole else self.dim)):
            train(module, data, epochs=epochs, patience=None, folder=folder, resume=resume, **computing)
        self.network_, self.history_ = network, module.history
        self.seconds_ = round(time.monotonic() - start, 1)
        self.sizes_ = {"cells": len(rows), "genes": len(self.genes_)}
        self.mean_ = self.embed_cells(cells, rows).mean(0)
        self.notes_.append(loss_settled(self.history_))
        return self

    def fit_transform(self, source: Any, y: Any = None, **options: Any) -> Float[np.ndarray, "cells embedding_dim"]:
        """`fit`, then `transform`."""
        read = {k: options[k] for k in ("layer", "input", "gene_column", "aliases") if k in options}
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
            source, layer, input, gene_column: As for fit; other genes, in another order, are matched by name. Those
                that a source lacks are filled in, see `omniset.cells.model.Completion` ("seed": they count as not
                seen). Where many are missing, or are matched by case only, there is a warning.
            aliases: Other names of genes.

        Raises:
            ValueError: None of the genes is known; most cells have no counts of them, or the same vector.
        """
        self.require_fitted()
        with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
            known = self.on(cells, aliases)
            vectors, empty = self.vectors_of(known, np.arange(len(known)))
            warn_of_empty(known, empty, "their vector is that of an empty cell")
            refuse_equal_rows(vectors[~empty], known.names[~empty].tolist(), file=known.sources[0].name, what="cells")
            return vectors

    def embed_cells(
        self, cells: Cells, rows: Int[np.ndarray, " rows"] | None = None
    ) -> Float[np.ndarray, "rows embedding_dim"]:
        """Vectors of some of the cells, or of all: as `transform`, without a word on genes and empty cells."""
        self.require_fitted()
        rows = np.arange(len(cells)) if rows is None else rows
        return self.vectors_of(cells.on(self.genes_), rows)[0]

    @torch.no_grad()
    def vectors_of(
        self, cells: Cells, rows: Int[np.ndarray, " rows"], *, silent: bool = False
    ) -> tuple[Float[np.ndarray, "rows embedding_dim"], Bool[np.ndarray, " rows"]]:
        """Vectors of cells on the model's genes, read block by block, and which have no counts of these genes.
        `silent`: the caller shows progress.
        """
        device = devices.find(self.device)
        network = self.network_.to(device).eval()
        vectors = np.empty((len(rows), self.embedding_dim), dtype=np.float32)
        empty = np.zeros(len(rows), dtype=bool)
        table = None if isinstance(network, SeedModel) else network.encoder.table()
        with Progress("embedding", len(rows), self.progress and not silent, unit="cells") as progress:
            for start in range(0, len(rows), TOGETHER):
                some = rows[start : start + TOGETHER]
                block = cells.take(some)
                if isinstance(network, SeedModel):
                    alone = seed.sentences(cells, some, block, SeedOptions.of(self.encoder_options), None)
                    z = network.embed(*seed.read_by(network, alone.to(device)))
                else:
                    counts = torch.from_numpy(block.toarray()).to(device)
                    library = torch.from_numpy(cells.library(some).astype(np.float32)).to(device)
                    z = network.encoder(counts, library, table, measured_in(cells, some, device))
                vectors[start : start + len(z)] = z.cpu().numpy()
                empty[start : start + len(z)] = np.diff(block.indptr) == 0
                progress.at(start + len(z))
        network.to("cpu")
        require_finite_outputs(vectors, [cells.names[row] for row in rows], "cell")
        return vectors, empty

    def on(self, cells: Cells, aliases: Mapping[str, str] | None = None) -> Cells:
        """The same cells with the model's genes as columns. Warns where these are hardly the cells' genes.

        Raises:
            ValueError: None of the genes is known.
        """
        return known_genes(cells, self.genes_, aliases, FILLED if self.architecture == "multiset" else NOT_SEEN)

    def embed(self, source: Any, *, key: str | None = KEY, **options: Any) -> Float[np.ndarray, "cells embedding_dim"]:
        """`transform`, with its options; kept in `obsm[key]` of an AnnData, its provenance in `uns["omniset"]`."""
        z = self.transform(source, **options)
        if key is not None and type(source).__name__ == "AnnData":
            source.obsm[key] = z
            source.uns["omniset"] = {**source.uns.get("omniset", {}), **self.provenance(key)}
        return z

    def decode(
        self,
        embedding: Float[np.ndarray, "cells embedding_dim"],
        *,
        batch: str | None = None,
        library: float | Float[np.ndarray, " cells"] = SCALE,
    ) -> Float[np.ndarray, "cells genes"]:
        """Expected counts of the genes `genes_`, a column each.

        Args:
            embedding: What transform gave, or means of it.
            batch: As this batch would show them. None: mean over the batches.
            library: Sum of the counts of each cell.

        Raises:
            ValueError: A batch that was not learned from, vectors of another width or not finite, or library not > 0.
        """
        self.require_fitted()
        z = np.asarray(embedding, dtype=np.float32)
        if z.ndim != 2 or z.shape[1] != self.embedding_dim:
            raise ValueError(f"embedding must be cells x {self.embedding_dim}, got shape {z.shape}")
        if not (finite := np.isfinite(z).all(1)).all():
            raise ValueError(f"embedding must be finite, row {finite.argmin()} is not")
        sums = np.asarray(library, dtype=np.float32)
        if not (sums > 0).all() or not np.isfinite(sums).all():
            raise ValueError(f"library must be > 0, got {sums.min():g}")
        if batch is not None and batch not in self.batches_:
            raise ValueError(f"batch must be one of those learned from, {', '.join(self.batches_)}; got {batch!r}")
        if isinstance(self.network_, SeedModel) and batch is not None:
            raise ValueError("batch is for architecture='multiset': the seed's decoder reads no batch's name")
        which = range(len(self.batches_)) if batch is None else [self.batches_.index(batch)]
        return self._shares(z, which) * np.broadcast_to(sums, len(z))[:, None]

    @torch.no_grad()
    def _shares(
        self, vectors: Float32[np.ndarray, "cells embedding_dim"], batches: Sequence[int] | range
    ) -> Float32[np.ndarray, "cells genes"]:
        """What each gene has of the counts of cells with these vectors: mean over some of the batches."""
        device = devices.find(self.device)
        network = self.network_.to(device).eval()
        parts = []
        for some in torch.from_numpy(vectors).split(TOGETHER):
            z = some.to(device)
            if isinstance(network, SeedModel):
                counts = torch.expm1(network.decode_all(z, 1.0)).clamp(min=0)
                share = counts / counts.sum(1, keepdim=True).clamp(min=1e-12)
            else:
                share = torch.zeros((), device=device)
                for batch in batches:
                    one_hot = torch.zeros(len(z), len(self.batches_), device=device)
                    one_hot[:, batch] = 1
                    share = share + network.decoder(z, one_hot).exp() / len(batches)
            parts.append(share.cpu().numpy())
        network.to("cpu")
        return np.concatenate(parts)

    def explain(
        self,
        source: Any,
        cells: Sequence[str] | str,
        *,
        top: int = 20,
        aliases: Mapping[str, str] | None = None,
        **options: Any,
    ) -> pd.DataFrame:
        """Which genes make these cells' vectors what they are.

        Returns a row per cell and gene, largest change first: `cell`, `gene`, `count`; `change`, how far along its
        own direction (from the mean of the training cells) the vector would go back without the gene. Genes that are
        filled in have no row.

        Args:
            cells: Their names, or one name.
            top: Genes per cell.
            aliases: Other names of genes.

        Raises:
            ValueError: A cell that is not there or without counts of known genes, top below 1, or a model of
                architecture "seed".
        """
        self.require_fitted()
        if not isinstance(self.network_, CellModel):
            raise ValueError("explain is for architecture='multiset'")
        if top < 1:
            raise ValueError(f"top must be >= 1, got {top}")
        cells = [cells] if isinstance(cells, str) else cells
        if not cells:
            raise ValueError("cells must name at least one cell")
        with opened(source, **options) as given:
            known = self.on(given, aliases)
            names = pd.Index(known.names)
            lacking = [name for name in cells if name not in names]
            if lacking:
                raise ValueError(f"cell {lacking[0]!r} is not in the source, whose cells are such as {names[0]!r}")
            frames = []
            for name in cells:
                row = np.flatnonzero(names == name)[:1]
                if not known.take(row).nnz:
                    raise ValueError(f"cell {name!r} has no counts of genes that the model knows")
                frame = self._changes(self.network_.encoder.eval(), known, row)
                frame = frame.sort_values("change", key=np.abs, ascending=False, ignore_index=True).head(top)
                frame.insert(0, "cell", name)
                frames.append(frame)
            return pd.concat(frames, ignore_index=True)

    @torch.no_grad()
    def _changes(self, encoder: CellEncoder, cells: Cells, row: Int[np.ndarray, "1"]) -> pd.DataFrame:
        """Of each gene of a cell, without its count."""
        cell, measured = torch.from_numpy(cells.take(row).toarray()), measured_in(cells, row)
        library = torch.from_numpy(cells.library(row).astype(np.float32))
        which = cell[0].nonzero()[:, 0]
        table = encoder.table()
        whole = encoder(cell, library, table, measured)
        away = (whole - torch.from_numpy(self.mean_))[0]
        direction = away / away.norm().clamp(min=1e-12)
        changes = []
        for some in which.split(TOGETHER):
            fewer = cell.repeat(len(some), 1)
            fewer[torch.arange(len(some)), some] = 0
            there = None if measured is None else measured.expand(len(some), -1)
            z = encoder(fewer, library.expand(len(some)), table, there)
            changes.append((whole - z) @ direction)
        numbers = {"count": cell[0, which].numpy(), "change": torch.cat(changes).numpy()}
        return pd.DataFrame({"gene": [self.genes_[i] for i in which.tolist()], **numbers})

    def given_vectors(self) -> GeneVectors | None:
        """Vectors of its genes that the model was given; None: it is not fitted, has none, or learns its own."""
        vectors = getattr(getattr(self, "network_", None), "vectors", None)
        if vectors is None or isinstance(vectors, nn.Parameter):
            return None
        return GeneVectors(self.genes_, vectors.cpu().numpy())

    @property
    def history(self) -> list[dict[str, Any]]:
        self.require_fitted()
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
        for tensor in self._networks().state_dict().values():
            checksum = zlib.crc32(tensor.contiguous().cpu().numpy().tobytes(), checksum)
        return f"{checksum:08x}"

    def _state(self) -> dict[str, Any]:
        given = self.given_vectors()
        return {
            "genes": len(self.genes_),
            "batches": self.batches_,
            "vectors": None if given is None else given.dim,
            "sizes": self.sizes_,
            "mean": self.mean_.tolist(),
            "notes": self.notes_,
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {"vocabulary": self.vocabulary_}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        self.vocabulary_ = tables["vocabulary"]
        self.genes_ = self.vocabulary_["gene"].tolist()
        if len(self.genes_) != fitted["genes"]:
            raise ValueError(f"the vocabulary must have {fitted['genes']} genes, it has {len(self.genes_)}")
        self.batches_, self.sizes_, self.notes_ = fitted["batches"], fitted["sizes"], fitted["notes"]
        self.mean_ = np.array(fitted["mean"], dtype=np.float32)
        sizes = len(self.genes_), len(self.batches_), fitted["vectors"]
        self.network_ = weights.build(lambda: build(self, *sizes))
        self.check_arguments()

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without cells."""
        self.check_options()
        devices.find(self.device)
        if self.encoder_options and self.architecture != "seed":
            raise ValueError("encoder_options are for architecture='seed'")
        with blaming(self.encoder_options), torch.random.fork_rng():
            build(self, 1, 1, None)

    def _base(self, given: CellEmbedder | str | Path) -> CellEmbedder:
        """What is learned on from. Its sizes must be ours."""
        base = given if isinstance(given, CellEmbedder) else CellEmbedder.load(given)
        base.require_fitted()
        for name in ("architecture", "embedding_dim", "dim"):
            mine, others = getattr(self, name), getattr(base, name)
            if mine != others:
                raise ValueError(f"{name} must be as in start_from, {others!r}; got {mine!r}")
        return base

    def _lesson(
        self, network: Network, cells: Cells, codes: Codes, fingerprint: dict[str, Any]
    ) -> tuple[TrainingModule, Any]:
        """What is trained, and the batches that it is trained on."""
        if isinstance(network, SeedModel):
            further = SeedOptions.of(self.encoder_options)
            steps = (self.learning_rate, seed.WEIGHT_DECAY, self.seed, fingerprint)
            module = seed.SeedModule(network, *steps, shared=further.shared)
            return module, seed.SeedBatches(cells, codes, further, self.seed)
        steps = (self.learning_rate, WEIGHT_DECAY, self.seed, fingerprint)
        return CellModule(network, *steps, alignment=self.alignment), CellBatches(cells, codes, self.seed)


def embed(
    adata: Any,
    model: CellEmbedder | str | Path | None = None,
    *,
    batch_key: str | None = None,
    key_added: str = KEY,
    copy: bool = False,
    **reading: Any,
) -> Any:
    """Vectors of cells, kept in their AnnData as scanpy's functions do: a copy is returned, or None.

    Example:
        omniset.cells.embed(adata, batch_key="donor")
        scanpy.pp.neighbors(adata, use_rep="X_omniset")

    Args:
        adata: Counts, or log1p of counts. Added are `obsm[key_added]`, and what made it: `uns["omniset"]`.
        model: A fitted model or its folder; None or one that is not fitted is learned here, with this `batch_key`.
        reading: `layer`, `input`, `gene_column` and, of a fitted model, `aliases`, as in `CellEmbedder.transform`.

    Raises:
        ValueError: The key is there and not of Omniset, or what `fit` and `transform` refuse.
    """
    about = claimed(adata, "obsm", key_added, [key_added], batch_key=batch_key, **reading)
    embedder = CellEmbedder.load(model) if isinstance(model, str | Path) else model or CellEmbedder()
    if not hasattr(embedder, "network_"):
        embedder.fit(adata, batch_key=batch_key, **reading)
    elif batch_key is not None:
        raise ValueError(f"batch_key={batch_key!r} is for learning, and the model is fitted: leave it out")
    z = embedder.transform(adata, **reading)
    adata = adata.copy() if copy else adata
    made = embedder.provenance(key_added)
    about["obsm"][key_added] |= made
    adata.obsm[key_added], adata.uns["omniset"] = z, about | made
    return adata if copy else None


def claimed(adata: Any, place: str, key: str, names: Sequence[str], **given: Any) -> dict[str, Any]:
    """`uns["omniset"]` with what was given for this key. Its names in obs or obsm must not be of others."""
    if not isinstance(adata, needed("anndata").AnnData):
        raise ValueError(f"adata must be an AnnData, got {type(adata).__name__}: omniset.cells.read_cells reads files")
    about = dict(adata.uns.get("omniset", {}))
    there = [name for name in names if name in getattr(adata, place)]
    if there and key not in about.get(place, {}) and (place, key) != ("obsm", about.get("key")):
        raise ValueError(
            f'{place}["{there[0]}"] is there, and uns["omniset"] does not say that Omniset wrote it: delete it, or '
            f"choose another key_added than {key!r}"
        )
    return {**about, place: {**about.get(place, {}), key: {k: v for k, v in given.items() if isinstance(v, str)}}}


def build(options: EmbedderOptions, genes: int, batches: int, vectors: Tensor | int | None) -> Network:
    """The network of the options, not trained.

    Args:
        vectors: Of the genes, (genes, width), or their width alone where weights are loaded afterwards; "seed" only.
    """
    if options.architecture == "multiset":
        return CellModel(genes, batches, latent=options.embedding_dim, dim=options.dim)
    further = SeedOptions.of(options.encoder_options)
    table = torch.zeros(genes, vectors) if isinstance(vectors, int) else vectors
    return SeedModel(table, genes, batches, further, options.dim, options.embedding_dim, DROPOUT)


def _vectors_of_genes(
    given: GeneVectors | str | Path | None, genes: Sequence[str], aliases: Mapping[str, str] | None
) -> tuple[Tensor | None, list[str]]:
    """Vectors of these genes, 0 where there is none, and a sentence on how many have one. None given: none."""
    if given is None:
        return None, []
    table = given if isinstance(given, GeneVectors) else read_gene_vectors(given)
    vectors, matched = table.of(list(genes), aliases)
    if not matched.matched:
        raise ValueError(
            f"gene_vectors: none of the genes, such as {genes[0]!r}, has a vector; there are such as {table.names[0]!r}"
        )
    lost, there = matched.unmatched, matched.missing
    if said := judge_join(lost, len(genes), there, file="the cells", other="gene_vectors", what="genes"):
        warnings.warn(said, stacklevel=4)
    return torch.from_numpy(vectors), [f"gene vectors: {matched.sentence()}"]


def measured_in(cells: Cells, rows: Rows, device: torch.device | str = "cpu") -> Bool[Tensor, "rows genes"] | None:
    """Which genes were measured in these cells. None: all of them."""
    measured = cells.measured[cells.source_of[rows]]
    return None if measured.all() else torch.from_numpy(measured).to(device)


def warn_of_empty(cells: Cells, empty: Bool[np.ndarray, " cells"], what: str) -> None:
    """Of cells without counts of a model's genes, and what becomes of them.

    Raises:
        ValueError: They are most of the cells.
    """
    if not empty.any():
        return
    said = f"without counts of the model's genes, such as {cells.names[empty.argmax()]!r}"
    if 2 * empty.sum() > len(empty) >= FEWEST:
        raise ValueError(
            f"{cells.sources[0].name}: {empty.sum():,} of {len(empty):,} cells are {said}: leave out what is no cell "
            "(as Cell Ranger's filtered matrix does), or take a model of more of these genes"
        )
    warnings.warn(f"{many(int(empty.sum()), 'cell')} {said}: {what}", stacklevel=3)


def _vocabulary(
    cells: Cells, codes: Codes, rows: Rows, options: EmbedderOptions, base: CellEmbedder | None
) -> tuple[pd.DataFrame, str]:
    """Of the genes that are seen, those that vary most; or all genes of the base. And a sentence on how many."""
    seen, moments = survey(cells, codes, rows, options.progress)
    if base is not None:
        known = f"{int((seen > 0).sum()):,} of its {len(seen):,} genes are seen in these cells"
        note = f"learned on from the model {base.identity()}: {known}"
        return pd.DataFrame({"gene": list(base.genes_), "cells": seen}), note
    often = np.flatnonzero(seen)
    if not len(often):
        raise ValueError(f"no gene has a count in any of the {len(rows)} cells")
    chosen = often
    if options.max_genes is not None:
        chosen = often[most_variable([m.of_genes(often) for m in moments], options.max_genes)]
    left = "" if len(chosen) == len(often) else f", the {len(chosen):,} that vary most are learned from"
    note = f"{len(often):,} of {len(cells.genes):,} genes are seen in these cells{left}"
    return pd.DataFrame({"gene": [cells.genes[i] for i in chosen], "cells": seen[chosen]}), note


def _checksum(arrays: list[np.ndarray], vectors: Tensor | None, base: CellEmbedder | None) -> int:
    """Of what a model is learned from."""
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.tobytes(), checksum)
    checksum = checksum if vectors is None else zlib.crc32(vectors.numpy().tobytes(), checksum)
    return checksum if base is None else zlib.crc32(base.identity().encode(), checksum)
