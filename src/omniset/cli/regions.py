"""`omniset regions`: fit, predict, evaluate, explain, simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, given, needed, takes
from omniset.cli.options import split as words
from omniset.options import Computing
from omniset.regions.options import PredictorOptions, Reading


@takes(Reading)
@takes(PredictorOptions)
@takes(Saving, "replace")
def fit(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    also: str | None = None,
    resume: bool = False,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Learn the connectivity of brain regions from the genes that they express.

    Example: omniset regions fit --expression expression.csv --connectivity fc.csv --coordinates regions.csv --out model

    Args:
        expression: Regions x genes, as abagen and the ENIGMA toolbox write them, or an .h5ad. Files are joined by the
            regions' names.
        connectivity: Square table with or without names, .npy, .npz, .mat, .pconn.nii, a list of pairs (i, j, weight),
            or the upper triangle.
        coordinates: Table with x, y and z of each region in mm; or the name of an atlas whose centroids nilearn is to
            fetch: schaefer_100 to schaefer_1000, aal, aal_3, destrieux, harvard_oxford, harvard_oxford_sub or juelich.
            null: not known.
        out: Folder for the model and its report.
        gene_vectors: For "seed" and "concat": vectors of genes, such as gene2vec's. null: learned.
        also: More connectomes for the network to practise on, with commas between. A file is connectivity of the same
            regions, as of another subject; three files with + between (expression+connectivity+coordinates) are
            another atlas, with genes of the same names on the same scale. null: none.
        resume: Go on with an interrupted run of a single network in the same folder.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import runs
    from omniset.runs import processes

    needed(expression=expression, connectivity=connectivity)
    files = {"expression": expression, "connectivity": connectivity, "coordinates": coordinates}
    with processes.one_voice(1, 1):
        processes.require_alone("models of brain regions are solved for, or take few and small steps")
        read, model = given(Reading, options), given(PredictorOptions, options)
        runs.fit(files, read, aliases, model, gene_vectors, out, resume, words(also) or ())


@takes(Computing, "device", "progress")
@takes(Saving)
def predict(
    model: Path = Path("model"),
    pairs: Path | None = None,
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("predicted.csv"),
    rescale: Literal["genes", "ranks"] | None = None,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Predict the connectivity of pairs of regions, or of all of them.

    Example: omniset regions predict --model model --expression new.csv --coordinates places.csv --out predicted.csv

    Args:
        model: Folder that fit wrote.
        pairs: Table whose first two columns name the regions of each pair. null: the whole matrix.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions, as for fit.
        out: Of pairs a table with the column connectivity, of a matrix a square one: .csv, .tsv or .parquet; or .npy.
        rescale: For expression on another scale than at fit, where the new regions are a sample like those of the fit,
            and 10 at least. "genes": each gene is taken to its mean and deviation at fit; "ranks": to its distribution
            there, by rank. null: such expression is refused.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import runs

    files = {"expression": expression, "connectivity": None, "coordinates": coordinates}
    runs.predict(files, aliases, given(Computing, options), model, pairs, out, rescale)


@takes(Reading)
@takes(PredictorOptions)
@takes(Saving, "replace")
def evaluate(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    resume: bool = False,
    split: Literal["bilateral", "spatial", "random"] = "bilateral",
    folds: int = 4,
    seeds: int = 3,
    null: int = 0,
    null_kinds: str = "spin",
    spins: Path | None = None,
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Compare predictions with those of other methods, on regions that none of them has seen.

    Example: omniset regions evaluate --expression genes.csv --connectivity fc.csv --coordinates regions.csv --null 1000

    Args:
        expression: Regions x genes, in any form that fit reads.
        connectivity: Of the same regions, in any form that fit reads.
        coordinates: Table with x, y and z of each region in mm, or the name of an atlas, as for fit. null: random
            splits only, and no nulls.
        out: Folder for the report, metrics.json, scores.csv.gz (every test pair of every method), rows of every seed.
        split: "bilateral": each fold is a neighbourhood and its mirror image, far from most of what is learned from;
            "spatial": a neighbourhood, most of whose mirror image is learned from; "random": any regions. Regions are
            held back in the same way to choose by within those learned from.
        folds: One of which is left out at a time.
        seeds: How often the regions are divided anew.
        null: Nulls of each kind: maps of genes that mean nothing. A kernel ridge that is quickly fitted, of genes and
            of genes and places, says what they reach; 1,000 take minutes.
        null_kinds: Separated by commas: "spin", a rotation of the cortex; "moran" or "variogram", surrogates that are
            as smooth as the genes, alike in both hemispheres.
        spins: Spins made elsewhere, as by neuromaps: .npy or a table of positions from 0. null: none.
        methods: To compare with, separated by commas. null: all of them.
        gene_vectors: For "seed" and "concat": vectors of genes, such as gene2vec's. null: learned.
        resume: Keep what is done in the same folder.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import runs

    needed(expression=expression, connectivity=connectivity)
    files = {"expression": expression, "connectivity": connectivity, "coordinates": coordinates}
    chosen = words(methods)
    read, model = given(Reading, options), given(PredictorOptions, options)
    more = {"seeds": seeds, "null": null, "null_kinds": words(null_kinds)}
    runs.evaluate(files, read, aliases, model, gene_vectors, split, folds, chosen, out, resume, spins, **more)


@takes(Computing, "device", "progress")
@takes(Saving)
def explain_pair(
    first: str,
    second: str,
    model: Path = Path("model"),
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("explanation"),
    top: int = 100,
    nulls: int = 1000,
    kind: Literal["spin", "moran"] = "spin",
    gene_sets: Path | None = None,
    rescale: Literal["genes", "ranks"] | None = None,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say which known regions two regions read from, and which genes predictions of unseen regions rest on.

    Example: omniset regions explain L_cuneus L_lingual --model model --out explanation

    Args:
        first: Name of a region.
        second: Name of another.
        model: Folder that fit wrote.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions, as for fit.
        out: Folder for pairs.tsv (what is read from; of "seed" attention of genes to genes), genes.tsv (importance of
            every gene with p and q, which is also the background of enrichment tools), sets.tsv and a report.
        top: Rows of attention.
        nulls: Surrogate maps of each gene, which p values are from.
        kind: Of surrogates: "spin" or "moran".
        gene_sets: GMT file of sets of genes whose importance is wanted. null: none.
        rescale: For expression on another scale than at fit: "genes" takes each gene to its mean and deviation at fit,
            "ranks" to its distribution there. null: such expression is refused.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import runs

    files = {"expression": expression, "connectivity": None, "coordinates": coordinates}
    runs.explain(
        files, aliases, given(Computing, options), model, first, second, out, top, nulls, kind, gene_sets, rescale
    )


@takes(Saving)
def simulate(out: Path = Path("brain"), regions: int = 80, genes: int = 120, seed: int = 0) -> None:
    """Write a made-up brain to try the other commands on: expression.csv, connectivity.csv and regions.csv.

    Example: omniset regions simulate --out brain

    Args:
        out: Folder for the three tables.
        regions: Even; half of them on each side.
        genes: Number of genes.
        seed: The same seed gives the same brain.
    """
    from omniset.regions import simulate as simulated
    from omniset.runs.console import say

    say(f"Written to {out}: {', '.join(simulated.write(simulated.simulate(regions, genes, seed), out))}")
