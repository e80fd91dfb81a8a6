"""All studies by name, and their tables."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paper.features import features
from paper.study import Study
from paper.tables import Results, Table

STUDIES = {
    "ablation": "mnist_points.Ablation",
    "anomaly": "anomaly.DigitAnomaly",
    "anomaly-faces": "faces.FaceAnomaly",
    "mnist-points": "mnist_points.MnistPoints",
    "max-regression": "max_regression.MaxRegression",
    "max-parts": "max_regression.MaxParts",
    "max-settings": "max_regression.MaxSettings",
    "mixture-of-gaussians": "mixture_of_gaussians.MixtureOfGaussians",
    "point-shapes": "point_shapes.PointShapes",
    "taxonomy": "taxonomy.Taxonomy",
}


def load(name: str, data: Path | None = None, epochs: int | None = None, more: Sequence[str] = ()) -> Study:
    """A study by its name; the error for an unknown name lists `more` beside the studies.

    Raises:
        ValueError: An unknown name, or epochs < 1.
    """
    if name not in STUDIES:
        raise ValueError(f"name must be one of {', '.join([*STUDIES, *more])}, got {name!r}")
    module, cls = STUDIES[name].split(".")
    study = getattr(importlib.import_module(f"paper.{module}"), cls)(data)
    if epochs is not None:
        if epochs < 1:
            raise ValueError(f"epochs must be >= 1, got {epochs}")
        study.recipe = replace(study.recipe, epochs=epochs)
    return study


def tables_of(name: str, out: Path) -> list[Table]:
    """Tables of a study from the results in a folder; "features" and "memory" are tables without a study."""
    if name == "features":
        return [features()]
    if name == "memory":
        return [memory(out if out.suffix == ".json" else Path("results/benchmarks/multisets.json"))]
    return load(name, more=("features", "memory")).tables(Results.read(out))


def memory(file: Path) -> Table:
    """Figure A.1 in numbers, of the benchmark's results: memory and time of multisets against sets as large as what is
    distinct in them.
    """
    measured = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for row in measured["rows"]:
        seconds, extra = row["seconds"], {kind: value / 1e6 for kind, value in row["extra_bytes"].items()}
        ratio = seconds["multiset"]["median"] / seconds["set"]["median"]
        rows.append(
            [row["layer"], f"{row['distinct']:,}", f"{extra['multiset']:.2f}", f"{extra['set']:.2f}", f"{ratio:.2f}"]
        )
    head = ["layer", "distinct elements", "peak MB, multiset", "peak MB, set", "time, multiset over set"]
    title = f"A multiset of {measured['elements']:,} against a set of its distinct elements (Figure A.1)"
    return Table(title, head, rows, [f"{measured['provenance']['device']}, {measured['date']}"])


def describe() -> list[str]:
    """Every study and how its networks are trained."""
    lines: list[Any] = []
    for name in STUDIES:
        recipe = load(name).recipe
        lines.append(
            f"{name}: {recipe.title}; {recipe.epochs:,} epochs of {recipe.steps:,} steps of {recipe.batch_size} sets"
            + (f"; needs {recipe.needs}" if recipe.needs else "")
        )
        for training in recipe.trainings:
            way = "whole sets"
            if training.shard_size is not None:
                way = f"shards of {training.shard_size}, {training.shards}, {training.gradient} gradient"
            labels = ", ".join(column.label for column in training.columns)
            lines.append(f"    {training.name}: {way}; tested as {labels}")
    return [*lines, "memory: peak memory of multisets (Figure A.1); run by python -m benchmarks multisets"]
