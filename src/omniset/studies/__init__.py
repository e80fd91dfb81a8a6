"""The experiments of the Universal Set Transformer paper, re-runnable: one module and one YAML file each."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omniset.console import run_folder, say
from omniset.studies.features import features
from omniset.studies.study import Study
from omniset.studies.tables import Results, Table

STUDIES = {
    "ablation": "mnist_points.Ablation",
    "anomaly": "anomaly.DigitAnomaly",
    "anomaly-faces": "faces.FaceAnomaly",
    "mnist-points": "mnist_points.MnistPoints",
    "max-regression": "max_regression.MaxRegression",
    "mixture-of-gaussians": "mixture_of_gaussians.MixtureOfGaussians",
    "taxonomy": "taxonomy.Taxonomy",
}


def load(name: str, data: Path | None = None, epochs: int | None = None, more: Sequence[str] = ()) -> Study:
    """A study by its name; `more` are names that are none, but known where it is asked for.

    Raises:
        ValueError: An unknown name, or epochs < 1.
    """
    if name not in STUDIES:
        raise ValueError(f"name must be one of {', '.join([*STUDIES, *more])}, got {name!r}")
    module, cls = STUDIES[name].split(".")
    study = getattr(importlib.import_module(f"omniset.studies.{module}"), cls)(data)
    if epochs is not None:
        if epochs < 1:
            raise ValueError(f"epochs must be >= 1, got {epochs}")
        study.recipe = replace(study.recipe, epochs=epochs)
    return study


def run_study(
    name: str,
    out: Path,
    data: Path | None,
    seeds: int,
    epochs: int | None,
    trainings: list[str] | None,
    budget: float | None,
    device: str,
    test_again: bool,
    progress: bool,
) -> None:
    """See `omniset studies run`."""
    from omniset.devices import find
    from omniset.studies.report import write_report
    from omniset.studies.running import Runner

    if name == "memory":
        raise ValueError(
            "name: the study memory is a benchmark, run by python -m benchmarks multisets in the repository"
        )
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if budget is not None and budget <= 0:
        raise ValueError(f"budget must be > 0 minutes, got {budget}")
    deadline = None if budget is None else time.monotonic() + 60 * budget
    study = load(name, data, epochs)
    chosen = study.recipe.trainings
    if trainings is not None:
        known = {t.name: t for t in chosen}
        if unknown := [t for t in trainings or [""] if t not in known]:
            raise ValueError(f"trainings must be among {', '.join(known)}, got {unknown[0]!r}")
        chosen = [known[t] for t in trainings]
    with run_folder(out):
        runner = Runner(study, out, device, progress)
        runner.check(chosen)
        study.prepare(range(seeds))
        lines = runner.test_again(chosen, range(seeds)) if test_again else runner.run(chosen, range(seeds), deadline)
        done = 0
        for line in lines:
            say(line)
            done += 1
        if test_again and not done:
            raise ValueError(f"out: no networks of these trainings and seeds are kept in {out}")
        for table in study.tables(Results.read(out)):
            say(f"\n{table.text()}")
        write_report(study, out, find(device).type)
        say(f"\nWritten to {out}: results, figures, report.html, report.json")


def tables_of(name: str, out: Path) -> list[Table]:
    """See `omniset studies table`."""
    if name == "features":
        return [features()]
    if name == "memory":
        return [memory(out if out.suffix == ".json" else Path("results/benchmarks/multisets.json"))]
    return load(name, more=("features", "memory")).tables(Results.read(out))


def memory(file: Path) -> Table:
    """Figure A.1 in numbers, of the benchmark's results: memory and time of multisets against sets as large as what is
    distinct in them.
    """
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for row in found["rows"]:
        seconds, extra = row["seconds"], {kind: value / 1e6 for kind, value in row["extra_bytes"].items()}
        ratio = seconds["multiset"]["median"] / seconds["set"]["median"]
        rows.append(
            [row["layer"], f"{row['distinct']:,}", f"{extra['multiset']:.2f}", f"{extra['set']:.2f}", f"{ratio:.2f}"]
        )
    head = ["layer", "distinct elements", "peak MB, multiset", "peak MB, set", "time, multiset over set"]
    title = f"A multiset of {found['elements']:,} against a set of its distinct elements (Figure A.1)"
    return Table(title, head, rows, [f"{found['provenance']['device']}, {found['date']}"])


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
