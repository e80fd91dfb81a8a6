"""Small input for every module, in this folder, and its config.yaml: to try the workflows, and to test them.

python small.py && snakemake --cores 2 --snakefile snakemake/Snakefile --configfile config.yaml
"""

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import yaml

from omniset.genomes import simulate as genomes
from omniset.microbiomes import simulate as microbiomes
from omniset.regions import data as regions

NAME = "O'Brien $1"  # names are quoted, whatever they are
SETS, BATCH = f"{NAME}.csv", "patient's"
SMALL = "--dim 8 --num_heads 2 --depth 1 --device cpu"
READS = "--device cpu --region 515F-806R --lengths 100 --epochs 2"
CONFIG = {
    "sets": {
        "sets": SETS,
        "target": "labels.csv",
        "new": {NAME: SETS},
        "held_out": {"sets": SETS, "target": "labels.csv"},
        "options": {"fit": f"--method ust --epochs 1 {SMALL}"},
    },
    "genomes": {
        "table": "simulated/families.tsv",
        "taxonomy": "simulated/taxonomy.tsv",
        "quality": f"simulated/{NAME}.tsv",
        "new": {NAME: "simulated/mags.tsv"},
        "options": {
            "fit": "--clade genus --epochs 1 --device cpu",
            "report": "--clade genus --epochs 1 --seeds 1 --device cpu",
        },
    },
    "cells": {
        "files": [f"{NAME}.h5ad"],
        "batch_key": BATCH,
        "label_key": "type",
        "new": {NAME: f"{NAME}.h5ad"},
        "options": {
            "fit": "--embedding_dim 8 --dim 8 --epochs 1 --device cpu",
            "report": "--epochs 1 --methods pca --seeds 1 --device cpu",
        },
    },
    "regions": {
        "expression": "brain/expression.csv",
        "connectivity": "brain/connectivity.csv",
        "coordinates": f"brain/{NAME}.csv",
        "new": {NAME: "pairs.csv"},
        "options": {"fit": "--method ridge", "report": "--methods geometry --folds 2 --seeds 1"},
    },
    "microbiomes": {
        "references": f"microbiome/{NAME}.fasta",
        "out": f"{NAME} of microbiomes",
        "taxonomy": "microbiome/taxonomy.tsv",
        "new": {NAME: "microbiome/reads.fastq.gz"},
        "options": {
            "fit": READS,
            "report": "--methods omniset,naive-bayes --seeds 1 --sizes 64 --region 515F-806R --epochs 2 --device cpu",
        },
    },
}


def sets() -> None:
    rng = np.random.default_rng(3)
    sizes, label = rng.integers(1, 7, 41), rng.integers(0, 2, 41)
    frame = pd.DataFrame({"set": np.repeat([f"s{i}" for i in range(41)], sizes)})
    frame["x"] = rng.normal(size=len(frame)) + np.repeat(label, sizes)
    frame.to_csv(SETS, index=False)
    pd.DataFrame({"set": [f"s{i}" for i in range(41)], "label": np.where(label, "a", "b")}).to_csv(
        "labels.csv", index=False
    )


def cells() -> None:
    rng = np.random.default_rng(4)
    types = rng.integers(0, 3, 97)
    obs = pd.DataFrame({"type": [f"t{i}" for i in types], BATCH: [f"b{i % 2}" for i in range(97)]})
    obs.index = pd.Index([f"cell{i}" for i in range(97)], dtype=object)
    var = pd.DataFrame(index=pd.Index([f"Gene{i}" for i in range(31)], dtype=object))
    counts = rng.poisson(rng.gamma(0.5, 2, (3, 31))[types]).astype(np.float32)
    anndata.AnnData(sp.csr_matrix(counts), obs, var).write_h5ad(f"{NAME}.h5ad")


def main() -> None:
    sets()
    cells()
    genomes.write("simulated", genomes.simulate(60, 61, 3))
    regions.write_tables(Path("brain"), regions.simulate(34, 13))
    microbiomes.write(Path("microbiome"), microbiomes.simulate(3))
    for file, name in (
        ("simulated/quality_report.tsv", f"simulated/{NAME}.tsv"),
        ("brain/regions.csv", f"brain/{NAME}.csv"),
        ("microbiome/references.fasta", f"microbiome/{NAME}.fasta"),
    ):
        Path(file).rename(name)
    names = pd.read_csv("brain/expression.csv", index_col=0).index.astype(str)
    pd.DataFrame({"i": names[:5], "j": names[5:10]}).to_csv("pairs.csv", index=False)
    Path("config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
