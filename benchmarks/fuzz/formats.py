"""Every format: a valid file of it, and what reads it, as the commands do."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.random import Generator

from benchmarks.fuzz import changes, seeds


class Read(BaseException):
    """All is read: the command is stopped before it learns anything."""


class NonsenseError(AssertionError):
    """What was read is not what the reader promises."""


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        file: Name of the file, or of the folder, that is changed.
        write: Writes it, and the files that are read with it, into the current folder.
        read: Reads it, as the commands do; the path may have got another ending.
        packs: It may be compressed too.
        needs: Module without which it is left out.
        costly: Its valid file takes seconds to make.
        change: Its only change, after which `read` knows what is right; it says what it did.
    """

    file: str
    write: Callable[[Path, Generator], None]
    read: Callable[[Path], Any]
    packs: bool = False
    needs: str | None = None
    costly: bool = False
    change: Callable[[Path, Generator], str] | None = None

    @property
    def group(self) -> str:
        return next(name for name, one in FORMATS.items() if one is self).partition("/")[0]

    def there(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def must(holds: Any, what: str) -> None:
    if not holds:
        raise NonsenseError(what)


@contextmanager
def _stopped(kind: type, name: str, check: Callable[..., None]) -> Iterator[None]:
    """Whatever calls this method is stopped there, after a look at what it was given."""

    def stop(self: Any, *given: Any, **named: Any) -> None:
        check(*given, **named)
        raise Read

    with patch.object(kind, name, stop), suppress(Read):
        yield


# ---------------------------------------------------------------------- tables


def _fit_sets(path: Path, **options: Any) -> None:
    from omniset.cli import sets as commands
    from omniset.estimators import SetEstimator

    def check(sets: Any, y: Any, groups: Any = None, **_: Any) -> None:
        for elements, counts in sets.blocks(1 << 16):
            must(np.isfinite(elements.numpy()).all(), "elements are not finite")
            finite = np.isfinite(counts.numpy()).all()
            must(finite and (counts.numpy() >= 0).all(), "multiplicities are not finite or negative")
        must(len(set(sets.names)) == len(sets.names) and "" not in sets.names, "names of sets are not distinct")
        must(len(y) == len(sets), "labels are not one a set")

    with _stopped(SetEstimator, "fit", check):
        commands.fit(path, out=Path("run"), progress=False, **options)


def _known_sets(path: Path) -> None:
    from omniset.cli import sets as commands
    from omniset.estimators import SetEstimator

    def check(sets: Any, y: Any, **_: Any) -> None:
        rows, right = np.concatenate([e.numpy() for e, _ in sets.blocks(1 << 16)]), np.load("truth.npy")
        must(rows.shape == right.shape and np.allclose(rows, right), "numbers are others")
        must([*y] == ["pq"["abcd".index(name[0].lower()) % 2] for name in sets.names], "labels are of other sets")

    options: dict[str, Any] = {"cofactor": 0.0} if path.is_dir() else {}
    with _stopped(SetEstimator, "fit", check):
        commands.fit(path, target=Path("labels.csv"), out=Path("run"), progress=False, **options)


def _sets(path: Path) -> None:
    _fit_sets(path, target=Path("labels.csv"))


def _labels(path: Path) -> None:
    def check(sets: Any, y: Any, groups: Any = None, **_: Any) -> None:
        must(len(y) in (len(sets), int(sets.sizes.sum())), "labels are not one a set or an element")

    from omniset.cli import sets as commands
    from omniset.estimators import SetEstimator

    with _stopped(SetEstimator, "fit", check):
        commands.fit(Path("sets.csv"), target=path, out=Path("run"), progress=False)


def _columns(path: Path) -> None:
    _fit_sets(path, target_columns="label", group="donor", level="set")


def _categories(path: Path) -> None:
    _fit_sets(path, target=Path("labels.csv"), set_column="donor", missing="indicator")


def _counts(path: Path) -> None:
    _fit_sets(path, target=Path("labels.csv"), vectors=Path("vectors.csv"))


def _vectors_of_features(path: Path) -> None:
    _fit_sets(Path("table.tsv"), target=Path("labels.csv"), vectors=path)


def _cells_of_sets(path: Path) -> None:
    for rep in ("X_pca", "counts"):
        _fit_sets(path, target_columns="label", set_column="donor", use_rep=rep)


def _write_sets(path: Path, rng: Generator) -> None:
    seeds.sets(path, rng)
    seeds.write_table(path.parent / "labels.csv", [("set", "label"), *zip("abcd", "pqpq", strict=True)])


# ---------------------------------------------------------------------- genomes


def _genomes(path: Path) -> None:
    from omniset.cli import genomes as commands
    from omniset.genomes.completer import GenomeCompleter

    def check(table: Any, taxonomy: Any = None, quality: Any = None, **_: Any) -> None:
        must(len(set(table.names)) == len(table.names) > 0, "names of genomes are not distinct")
        must(len(set(table.families)) == len(table.families), "families are not distinct")
        must((table.counts.data > 0).all(), "counts are not above 0")
        must(table.counts.shape == (len(table.names), len(table.families)), "counts are not genomes x families")
        if "Total" in table.names and len(table.families) > 7 and len(table.names) > 4:
            *others, total = table.counts.toarray()  # as it was written; what was changed may be no sum
            must(table.names[-1] != "Total" or (np.sum(others, 0) != total).any(), "a column of sums is a genome")

    with _stopped(GenomeCompleter, "fit", check):
        commands.fit(path, out=Path("run"), progress=False)


def _qualities(path: Path) -> None:
    from omniset.genomes.metadata import read_qualities

    found = read_qualities(path)
    must(found.index.is_unique and "" not in found.index, "names of genomes are not distinct")
    values = found.to_numpy()
    must(((values >= 0) | np.isnan(values)).all() and not np.isinf(values).any(), "percentages out of their bounds")


def _lineages(path: Path) -> None:
    from omniset.genomes.metadata import read_taxonomy

    found = read_taxonomy(path)
    must(found.index.is_unique and "" not in found.index, "names of genomes are not distinct")
    must(all(v is None or (isinstance(v, str) and v) for v in found.to_numpy().ravel()), "taxa are not texts")


# ---------------------------------------------------------------------- cells


def _cells(path: Path) -> None:
    from omniset.cells.data import read_cells
    from omniset.cli import cells as commands

    commands.inspect([str(path)], progress=False)
    cells = read_cells([str(path)])
    try:
        values = cells.take(np.arange(len(cells))).data
        must(np.isfinite(values).all() and (values >= 0).all(), "counts are not finite or negative")
        must(len(cells.names) == len(cells.obs) == len(cells), "names, obs and cells differ in number")
    finally:
        cells.close()


def _known_cells(path: Path) -> None:
    from omniset.cells.data import read_cells

    cells = read_cells(path)
    must(not any(name.isdecimal() for name in cells.genes), "genes are called by numbers")
    found, right = cells.on(seeds.SYMBOLS[: seeds.GENES]), np.load("truth.npy")
    counts = found.take(np.arange(len(found))).toarray()
    # Counts of a cell with a common divisor, made fractions, are those of a shallower cell.
    same = np.allclose(counts / counts.sum(1, keepdims=True), right / right.sum(1, keepdims=True), rtol=1e-6)
    must(same, "counts are of other genes, or no counts")


def _vectors(path: Path) -> None:
    from omniset.tables.gene_vectors import read_gene_vectors

    found = read_gene_vectors(path)
    must(np.isfinite(found.vectors).all(), "vectors are not finite")
    must(len(set(found.names)) == len(found.names) and "" not in found.names, "genes are not distinct")


def _aliases(path: Path) -> None:
    from omniset.tables.genes import read_aliases

    must(all(a and b for a, b in read_aliases(path).items()), "names are empty")


# ---------------------------------------------------------------------- regions


def _regions(**files: Path) -> None:
    from omniset.cli import regions as commands
    from omniset.regions.predictor import ConnectivityPredictor

    def check(regions: Any, *_: Any, **__: Any) -> None:
        must(len(set(regions.names)) == len(regions.names) and "" not in regions.names, "regions are not distinct")
        must(len(set(regions.genes)) == len(regions.genes) and "" not in regions.genes, "genes are not distinct")
        must(not np.isinf(regions.expression).any(), "expression is infinite")
        must(not np.isinf(regions.connectivity).any(), "connectivity is infinite")
        apart = np.nan_to_num(regions.connectivity - regions.connectivity.T)
        must(not apart.any(), "connectivity is not symmetric")
        places = regions.coordinates
        must(places is None or np.isfinite(places).all(), "coordinates are not finite")

    given: dict[str, Any] = {"expression": Path("expression.csv"), "connectivity": Path("connectivity.csv")}
    with _stopped(ConnectivityPredictor, "fit_rows", check):
        commands.fit(**given | files, out=Path("run"), progress=False)


def _write_expression(write: Callable[[Path, Generator], None]) -> Callable[[Path, Generator], None]:
    def both(path: Path, rng: Generator) -> None:
        seeds.connectivity(path.parent / "connectivity.csv", rng)
        write(path, rng)

    return both


def _brain(path: Path) -> None:
    from omniset.regions import read_regions

    found = read_regions("expression.csv", path, "places.csv")
    at = [seeds.BRAIN.index(name.removeprefix("7Networks_")) for name in found.names]
    truth = np.load("truth.npy")[np.ix_(at, at)]
    must(np.allclose(found.connectivity, truth, equal_nan=True), "connectivity is that of other regions")


def _pairs(path: Path) -> None:
    from omniset.regions.reading import read_pairs

    must(read_pairs(path, seeds.REGIONS).isin(seeds.REGIONS).to_numpy().all(), "regions are not known")


# ---------------------------------------------------------------------- microbiomes


def _fit_taxa(references: Path, taxonomy: Path, profiles: Path | None = None) -> None:
    from omniset.cli import microbiomes as commands
    from omniset.microbiomes.classifier import TaxonClassifier

    def check(references: Any, taxa: Any, communities: Any, *_: Any, **__: Any) -> None:
        must(len(taxa) == references.taxa, "taxa are not numbered")
        must(len(set(references.texts)) == len(references.texts) > 0, "sequences are not distinct")
        must(communities is None or np.isfinite(communities).all(), "shares are not finite")

    with _stopped(TaxonClassifier, "fit_references", check):
        commands.fit(references, taxonomy, profiles, out=Path("run"), progress=False)


def _reads(path: Path) -> None:
    from omniset.microbiomes.samples import pooled

    texts, found = pooled([path], False)
    must(texts and all(set(text) <= set("ACGTRYSWKMBDHVN") for text in texts.values()), "letters are no bases")
    must(found.counts.sum() > 0, "there are no reads")


def _samples(path: Path) -> None:
    """As `classify` reads a table and its sequences, and `fit` profiles."""
    from omniset.microbiomes.samples import matched, read_samples
    from omniset.tables.dna import read_fasta

    table = read_samples(path)
    texts, found = matched(read_fasta(Path("references.fasta")), table, False)
    must(len(texts) == len(found.features) == found.counts.shape[1], "sequences and features differ in number")
    must(np.isfinite(found.counts.data).all() and (found.counts.data >= 0).all(), "counts are not finite or negative")
    must(len(set(table.features)) == len(table.features), "features are not distinct")
    _fit_taxa(Path("references.fasta"), Path("taxonomy.tsv"), path)


def _lineages_of_silva(path: Path) -> None:
    from omniset.microbiomes.taxonomy import read_references

    found = [lineage[5:6] for lineage in read_references(path)[1].values()]
    must(found == [(seeds.silva_lineage(i)[5],) for i in range(len(found))], "genera are others")


def _samples_alone(path: Path) -> None:
    from omniset.microbiomes.samples import read_samples

    must(read_samples(path).names == [*"ABCD"], "what is no sample is one")


def _fragments(path: Path) -> None:
    from omniset.microbiomes.samples import pooled

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reads = pooled([path], False)[1].counts.sum()
    must(reads == seeds.FEATURES or any("twice" in str(one.message) for one in said), "fragments count twice")
    must(pooled([path], False, "first")[1].counts.sum() == seeds.FEATURES, "fragments are lost, or count twice")


# ---------------------------------------------------------------------- artefacts


def _model_of_sets(path: Path) -> None:
    from omniset.cli import sets as commands

    commands.predict(Path("sets.csv"), path, Path("predicted.csv"), device="cpu", progress=False)


def _checkpoint(path: Path) -> None:
    import pandas as pd

    from omniset import SetClassifier

    frame = pd.read_csv("sets.csv")
    SetClassifier("ust", **seeds.SMALL, epochs=2).fit(frame, [*"pqpqpqpq"], folder=path.parent.parent, resume=True)


MODELS = {
    "genomes": "GenomeCompleter",
    "cells": "CellEmbedder",
    "regions": "ConnectivityPredictor",
    "microbiomes": "TaxonClassifier",
}


def _loaded(system: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        cls = getattr(import_module(f"omniset.{system}"), MODELS[system])
        cls.load(path, device="cpu", progress=False).check_arguments()

    return read


S, C = seeds, changes
FORMATS: dict[str, Format] = {
    "tables/sets.csv": Format("sets.csv", _write_sets, _sets, packs=True),
    "tables/sets.tsv": Format("sets.tsv", _write_sets, _sets, packs=True),
    "tables/sets.parquet": Format("sets.parquet", _write_sets, _sets),
    "tables/labelled-sets.csv": Format("labelled.csv", S.labelled_sets, _columns, packs=True),
    "tables/labelled-sets.parquet": Format("labelled.parquet", S.labelled_sets, _columns),
    "tables/labels.csv": Format("labels.csv", S.labels_of_sets, _labels, packs=True),
    "tables/labels.parquet": Format("labels.parquet", S.labels_of_sets, _labels),
    "tables/categories.csv": Format("sets.csv", S.categories, _categories, packs=True),
    "tables/categories.parquet": Format("sets.parquet", S.categories, _categories),
    "tables/folder-h5": Format("slides", S.folder_h5, _sets, needs="h5py"),
    "tables/folder-npy": Format("bags", S.folder_npy, _sets),
    "tables/folder-pt": Format("bags", S.folder_pt, _sets),
    "tables/folder-fcs": Format("samples", S.folder_fcs, _sets),
    "tables/readings": Format("sets.tsv", S.known_sets, _known_sets, change=C.write_sets_otherwise),
    "tables/readings-fcs": Format("samples", S.known_fcs, _known_sets, change=C.write_sets_otherwise),
    "tables/cells.h5ad": Format("cells.h5ad", S.sets_of_cells, _cells_of_sets, needs="anndata"),
    "tables/counts.biom": Format("table.biom", S.counts_of_features, _counts, needs="h5py"),
    "tables/counts.tsv": Format("table.tsv", S.counts_of_features, _counts, packs=True),
    "tables/vectors.csv": Format("vectors.csv", S.vectors_of_features, _vectors_of_features, packs=True),
    "tables/element-labels.csv": Format("labels.csv", S.labels_of_elements, _labels),
    "genomes/wide.tsv": Format("wide.tsv", S.wide, _genomes, packs=True),
    "genomes/wide.csv": Format("wide.csv", S.wide, _genomes),
    "genomes/wide.parquet": Format("wide.parquet", S.wide, _genomes),
    "genomes/transposed.tsv": Format("turned.tsv", S.transposed, _genomes),
    "genomes/totals": Format("Orthogroups.GeneCount.tsv", S.totals, _genomes),
    "genomes/rtab": Format("gene_presence_absence.Rtab", S.transposed, _genomes, packs=True),
    "genomes/picrust2": Format("picrust.tsv", S.picrust2, _genomes, packs=True),
    "genomes/long.tsv": Format("long.tsv", S.long, _genomes),
    "genomes/long.csv": Format("long.csv", S.long, _genomes, packs=True),
    "genomes/long.parquet": Format("long.parquet", S.long, _genomes),
    "genomes/eggnog": Format("A.emapper.annotations", S.eggnog, _genomes, packs=True),
    "genomes/cogclassifier": Format("cog_classify.tsv", S.cogclassifier, _genomes),
    "genomes/kofamscan": Format("A.detail.txt", S.kofamscan, _genomes, packs=True),
    "genomes/kofamscan-tsv": Format("A.detail.tsv", S.kofamscan_tsv, _genomes),
    "genomes/ko-list": Format("A.ko", S.ko_list, _genomes),
    "genomes/dram": Format("annotations.tsv", S.dram, _genomes),
    "genomes/anvio-matrix": Format("a-FREQUENCY.txt", S.anvio_matrix, _genomes),
    "genomes/anvio-functions": Format("functions.txt", S.anvio_functions, _genomes),
    "genomes/qualities": Format("quality_report.tsv", S.qualities, _qualities, packs=True),
    "genomes/lineages": Format("gtdb.tsv", S.taxonomy_of_genomes, _lineages, packs=True),
    "genomes/ranks.parquet": Format("ranks.parquet", S.ranks_of_genomes, _lineages),
    "cells/h5ad-dense": Format("cells.h5ad", S.h5ad, _cells, needs="anndata"),
    "cells/h5ad-csr": Format("cells.h5ad", S.h5ad_csr, _cells, needs="anndata"),
    "cells/h5ad-csc": Format("cells.h5ad", S.h5ad_csc, _cells, needs="anndata"),
    "cells/10x": Format("filtered_feature_bc_matrix.h5", S.tenx, _cells, needs="anndata"),
    "cells/zarr": Format("cells.zarr", S.zarr, _cells, needs="zarr"),
    "cells/readings": Format("cells.h5ad", S.named_cells, _known_cells, needs="anndata", change=C.call_genes_otherwise),
    "cells/vectors.txt": Format("vectors.txt", S.vectors_text, _vectors, packs=True),
    "cells/vectors.pt": Format("vectors.pt", S.vectors_torch, _vectors),
    "cells/aliases.csv": Format("aliases.csv", S.aliases, _aliases, packs=True),
    "regions/expression.csv": Format(
        "expression.csv", _write_expression(S.expression), lambda p: _regions(expression=p), packs=True
    ),
    "regions/expression.parquet": Format(
        "expression.parquet", _write_expression(S.expression), lambda p: _regions(expression=p)
    ),
    "regions/expression.h5ad": Format(
        "expression.h5ad", _write_expression(S.expression_h5ad), lambda p: _regions(expression=p), needs="anndata"
    ),
    "regions/connectivity.csv": Format("fc.csv", S.connectivity, lambda p: _regions(connectivity=p), packs=True),
    "regions/connectivity.parquet": Format("fc.parquet", S.connectivity, lambda p: _regions(connectivity=p)),
    "regions/edges.csv": Format("edges.csv", S.edges, lambda p: _regions(connectivity=p)),
    "regions/connectivity.npy": Format("fc.npy", S.connectivity_npy, lambda p: _regions(connectivity=p)),
    "regions/connectivity.npz": Format("fc.npz", S.connectivity_npz, lambda p: _regions(connectivity=p)),
    "regions/connectivity.mat": Format("fc.mat", S.connectivity_mat, lambda p: _regions(connectivity=p)),
    "regions/connectivity-7.3.mat": Format("fc.mat", S.connectivity_mat73, lambda p: _regions(connectivity=p)),
    "regions/pconn.nii": Format(
        "fc.pconn.nii", S.connectivity_pconn, lambda p: _regions(connectivity=p), needs="nibabel"
    ),
    "regions/coordinates.csv": Format("places.csv", S.coordinates, lambda p: _regions(coordinates=p), packs=True),
    "regions/coordinates.parquet": Format("places.parquet", S.coordinates, lambda p: _regions(coordinates=p)),
    "regions/pairs.csv": Format("pairs.csv", S.pairs, _pairs),
    "regions/readings": Format("fc.csv", S.brain, _brain, change=C.write_otherwise),
    "microbiomes/references.fasta": Format(
        "references.fasta", S.fasta, lambda p: _fit_taxa(p, Path("taxonomy.tsv")), packs=True
    ),
    "microbiomes/reads.fastq": Format("reads.fastq", S.fastq, _reads, packs=True),
    "microbiomes/reads.fasta": Format("reads.fasta", S.fasta, _reads),
    "microbiomes/taxonomy.tsv": Format(
        "lineages.tsv", S.taxonomy_of_references, lambda p: _fit_taxa(Path("references.fasta"), p), packs=True
    ),
    "microbiomes/table.tsv": Format("table.tsv", S.samples, _samples, packs=True),
    "microbiomes/table.csv": Format("table.csv", S.samples, _samples),
    "microbiomes/biom": Format("table.biom", S.biom, _samples, needs="h5py"),
    "artefacts/sets": Format("model", S.model_of_sets, _model_of_sets, costly=True),
    "artefacts/checkpoint": Format("run/checkpoints/last.ckpt", S.checkpoint, _checkpoint, costly=True),
    "artefacts/genomes": Format("model", S.model_of_genomes, _loaded("genomes"), costly=True),
    "artefacts/cells": Format("model", S.model_of_cells, _loaded("cells"), needs="anndata", costly=True),
    "artefacts/regions": Format("model", S.model_of_regions, _loaded("regions"), costly=True),
    "microbiomes/missing-ranks": Format("silva.fasta", S.silva, _lineages_of_silva, change=C.drop_rank),
    "microbiomes/totals": Format("table.tsv", S.samples, _samples_alone, change=C.add_total),
    "microbiomes/pairs": Format("reads.fastq", S.fastq, _fragments, change=C.double_reads),
    "artefacts/microbiomes": Format("model", S.model_of_microbiomes, _loaded("microbiomes"), costly=True),
}
