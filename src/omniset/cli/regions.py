"""`omniset regions`: fit, predict, evaluate, explain.

Options that several commands share are written once, as dataclasses: the parser finds them behind `**options`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omniset.cli.sets import Device, _split


@dataclass(kw_only=True)
class Using:
    """How a model is used.

    Args:
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
        device: Where to compute.
        progress: Show progress.
    """

    aliases: Path | None = None
    device: Device = "auto"
    progress: bool = True

    def read(self) -> dict[str, Any]:
        """The options of `read_regions`."""
        from omniset.genes import read_aliases

        return {} if self.aliases is None else {"aliases": read_aliases(self.aliases)}

    def model(self) -> dict[str, Any]:
        """Arguments of `ConnectivityPredictor` that may differ from those at fit."""
        return {"device": self.device, "progress": self.progress}


@dataclass(kw_only=True)
class Learning(Using):
    """How files are read, and how a model is made: the arguments of `ConnectivityPredictor`, with its defaults.

    Args:
        fisher_z: Connectivity is correlations: learn their inverse hyperbolic tangent.
        zero_negative: Negative connectivity counts as 0.
        directed: Connectivity from i to j may differ from that of j to i.
        architecture: Network: "multiset"; "seed", genes that attend to genes as first described; or "concat", each
            region by itself, then both.
        method: null: for "multiset" "blend" (distance, kernel ridge, boosted trees and the network), else the network
            alone. Or "no-attention" (without the network), "attention" (the network alone), or a baseline: distance,
            cge, gaussian, ridge-genes, ridge-position, ridge, boosting-genes, boosting-position, boosting, bilinear,
            mlp.
        dim: Width of the network. null: 32; for "seed" and "concat" 128.
        depth: Layers of "seed" and "concat".
        num_heads: Attention heads; must divide dim.
        num_queries: Vectors that "multiset" pools a region to.
        axes: Principal axes of expression on which the tokens of "multiset" lie.
        cls: CLS token of "seed": "random", or "spatial" from the places of both regions.
        pooling: Of "seed" and "concat".
        bins: Of expression, in "seed" and "concat".
        dropout: In training.
        seen: Genes that a step of training of "multiset" sees, drawn anew each time.
        steps: Of the optimiser, for "multiset".
        epochs: Of "seed" and "concat", at most.
        batch_size: Regions per step, all of whose pairs are learned from. null: 40; for "seed" and "concat" 23.
        learning_rate: Largest step size. null: 0.002; for "seed" and "concat" 0.001.
        weight_decay: Pull of the weights towards zero.
        symmetry: Weight of the pull of f(i, j) to f(j, i) in "seed" and "concat".
        seed: The same seed gives the same numbers.
    """

    fisher_z: bool = False
    zero_negative: bool = False
    directed: bool = False
    architecture: Literal["multiset", "seed", "concat"] = "multiset"
    method: str | None = None
    dim: int | None = None
    depth: int = 4
    num_heads: int = 4
    num_queries: int = 1
    axes: int = 16
    cls: Literal["random", "spatial"] = "random"
    pooling: Literal["mean", "attention", "cls"] = "mean"
    bins: int = 5
    dropout: float = 0.1
    seen: int = 128
    steps: int = 150
    epochs: int = 100
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float = 1e-2
    symmetry: float = 0.1
    seed: int = 0

    def read(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("fisher_z", "zero_negative", "directed")} | super().read()

    def predictor(self) -> dict[str, Any]:
        """The arguments of `ConnectivityPredictor`."""
        others = ("fisher_z", "zero_negative", "directed", "aliases")
        return {name: value for name, value in vars(self).items() if name not in others}


def fit(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    """Learn the connectivity of brain regions from the genes that they express.

    Example: omniset regions fit --expression expression.csv --connectivity fc.csv --coordinates regions.csv --out model

    Args:
        expression: Regions x genes, as abagen and the ENIGMA toolbox write them, or an .h5ad. Files are joined by the
            regions' names.
        connectivity: Square table with or without names, .npy, .npz, .mat, .pconn.nii, a list of pairs (i, j, weight),
            or the upper triangle.
        coordinates: Table with x, y and z of each region in mm. null: not known.
        out: Folder for the model and its report.
        gene_vectors: For "seed" and "concat": vectors of genes, such as gene2vec's. null: learned.
        resume: Go on with an interrupted run of a single network in the same folder.
        **options: See `Learning`.
    """
    from omniset.regions import runs

    learning = Learning(**options)
    files = _files(expression, connectivity, coordinates, needed=("expression", "connectivity"))
    try:
        runs.fit(files, learning.read(), learning.predictor(), gene_vectors, out, resume)
    except KeyboardInterrupt:
        if (out / "checkpoints").is_dir():
            print(f"\nWhole epochs, if any, are kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def predict(
    model: Path = Path("model"),
    pairs: Path | None = None,
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("predicted.csv"),
    **options: Any,
) -> None:
    """Predict the connectivity of pairs of regions, or of all of them.

    Example: omniset regions predict --model model --expression new.csv --coordinates places.csv --out predicted.csv

    Args:
        model: Folder that fit wrote.
        pairs: Table whose first two columns name the regions of each pair. null: the whole matrix.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions.
        out: Of pairs a table with the column connectivity, of a matrix a square one: .csv, .tsv or .parquet; or .npy.
        **options: See `Using`.
    """
    from omniset.regions import runs

    using = Using(**options)
    files = _files(expression, None, coordinates)
    runs.predict(files, using.read(), using.model(), model, pairs, out)


def evaluate(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("evaluation"),
    split: Literal["spatial", "random"] = "spatial",
    folds: int = 4,
    seeds: int = 3,
    null: int = 0,
    baselines: str | None = None,
    gene_vectors: Path | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    """Compare predictions with those of other methods, on regions that none of them has seen.

    Example: omniset regions evaluate --expression genes.csv --connectivity fc.csv --coordinates regions.csv --null 10

    Args:
        expression: As for fit.
        connectivity: As for fit.
        coordinates: As for fit.
        out: Folder for the report, the metrics and the rows of every seed.
        split: "spatial": each fold is a neighbourhood, far from most of what is learned from; "random": any regions.
        folds: One of which is left out at a time.
        seeds: How often the regions are divided anew.
        null: How often the expression's rows change places by a rotation of the cortex and ours and the kernel ridge
            are fitted to that: what they reach then does not come from genes. Takes as long as so many fits per fold.
        baselines: Methods to compare with, separated by commas. null: all of them.
        gene_vectors: As for fit.
        resume: Keep what is done in the same folder.
        **options: See `Learning`.
    """
    from omniset.regions import runs

    learning = Learning(**options)
    files = _files(expression, connectivity, coordinates, needed=("expression", "connectivity"))
    chosen = _split(baselines)
    try:
        runs.evaluate(
            files,
            learning.read(),
            learning.predictor(),
            gene_vectors,
            split,
            folds,
            seeds,
            null,
            chosen,
            out,
            resume,
        )
    except KeyboardInterrupt:
        if out.is_dir():
            print(f"\nWhat is done is kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def explain_pair(
    first: str,
    second: str,
    model: Path = Path("model"),
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("explanation"),
    top: int = 100,
    repeats: int = 1,
    **options: Any,
) -> None:
    """Say which genes of one region attend to which of another, and which genes the predictions need.

    Example: omniset regions explain L_cuneus L_lingual --model model --out explanation

    Args:
        first: Name of the region whose genes attend.
        second: Name of the region whose genes are attended to.
        model: Folder that fit wrote.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions.
        out: Folder for pairs.tsv (attention of genes to genes), genes.tsv (importance of genes by permutation beside
            attention, for enrichment tools) and a report.
        top: Rows of each table.
        repeats: Permutations of each gene.
        **options: See `Using`.
    """
    from omniset.regions import runs

    using = Using(**options)
    files = _files(expression, None, coordinates)
    runs.explain(files, using.read(), using.model(), model, first, second, out, top, repeats)


def _files(
    expression: Path | None, connectivity: Path | None, coordinates: Path | None, needed: tuple[str, ...] = ()
) -> dict[str, Path | None]:
    files = {"expression": expression, "connectivity": connectivity, "coordinates": coordinates}
    for name in needed:
        if files[name] is None:
            raise ValueError(f"--{name} must be given: the file with it")
    return files


def simulate(out: Path = Path("brain"), regions: int = 80, genes: int = 120, seed: int = 0) -> None:
    """Write a made-up brain to try the other commands on: expression.csv, connectivity.csv and regions.csv.

    Example: omniset regions simulate --out brain

    Args:
        out: Folder for the three tables.
        regions: Even; half of them on each side.
        genes: Number of genes.
        seed: The same seed gives the same brain.
    """
    from omniset.console import say
    from omniset.regions import simulate as simulated

    say(f"Written to {out}: {', '.join(simulated.write(simulated.simulate(regions, genes, seed), out))}")
