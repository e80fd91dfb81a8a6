"""`omniset demo`: handwritten digits as multisets of points, learned whole and in shards.

Nothing heavy is imported before it is used, not even for types: the help needs no PyTorch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import takes
from omniset.options import Computing
from omniset.runs import folders
from omniset.runs.console import own_command
from omniset.runs.files import provenance, write_json

WAYS: dict[str, dict[str, Any]] = {
    "whole sets": {},
    "exact gradients, 8-point shards": {"shard_size": 8},
    "first shard's gradient only": {"shard_size": 8, "gradient": "first-shard"},
}
PICTURE = "Digits as multisets of points: area is multiplicity, colour how much a point drove the prediction."
SAME = (
    "The first two ways have the same gradient, but make its sums in another order, which rounds otherwise in float32 "
    "(about 1 part in 10 million). Step by step that grows, and they end at other weights."
)
EXACT = "exact gradients, 8-point shards"

# Chosen so that three runs take under four minutes on two cores.
VARIANTS = 3  # of each training digit of scikit-learn's
MODEL: dict[str, Any] = {"dim": 64, "depth": 2, "num_inducing": 8, "batch_size": 128, "learning_rate": 4e-3}


@takes(Computing, "progress")
def demo(
    out: Path = Path("demo-run"),
    epochs: int = 13,
    max_sets: int | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    resume: bool = False,
    replace: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Learn to read handwritten digits as multisets of points.

    Three times: from whole sets, from shards with exact gradients, and with the first shard's gradient only. Takes
    under four minutes on two cores.

    Args:
        out: Folder for the model, metrics, a picture and a report, report.html.
        epochs: How often each digit is learned from.
        max_sets: Use only the first so many digits.
        seed: The same seed gives the same numbers.
        device: Where to compute.
        resume: Go on with an interrupted demo in the same folder.
        replace: Replace an earlier demo in the folder, or another model of its class, SetClassifier.
    """
    from omniset.estimators import SetClassifier
    from omniset.report.run import working_folder

    folders.REPLACE.set(replace)
    settings = {
        **MODEL,
        "epochs": epochs,
        "validation_fraction": 0.0,
        "patience": None,
        "seed": seed,
        "device": device,
        "progress": options["progress"],
        "log": "csv",
    }
    models = {way: SetClassifier("ust", **settings, **how) for way, how in WAYS.items()}
    for model in models.values():
        model.check_arguments()
    with working_folder(out, "sets", "demo", makes=["SetClassifier"], seed=seed, resume=resume) as place:
        return _learn(place, models, max_sets, seed)


def _learn(place: Any, models: dict[str, Any], max_sets: int | None, seed: int) -> dict[str, Any]:
    """Learn in all ways, save the exact one, and report. Returns what is written to metrics.json."""
    from omniset.report import plots, write
    from omniset.report.blocks import Plot
    from omniset.runs import devices

    out, resume = place.path, True
    train, y_train, test, y_test = _read(max_sets, seed)
    points_each = [(b.multiplicity > 0).sum(1).float().mean() for b in (train, test)]
    _say(f"{len(train)} sets to train on, {len(test)} held out")
    _say("distinct points in each, on average: {:.0f} and {:.0f}".format(*points_each))
    _say(f"(to train on, each digit also in {VARIANTS} variants: a little shifted, stretched and turned)")
    rows: dict[str, dict[str, Any]] = {}
    for number, (way, model) in enumerate(models.items(), 1):
        _say(f"\n[{number}/{len(WAYS)}] {way}")
        start = time.perf_counter()
        model.fit(train, y_train, folder=out / "runs" / f"{number}", resume=resume)
        rows[way] = _accuracy(model.predict(test), y_test) | {"seconds": round(time.perf_counter() - start, 1)}
        _say(f"      accuracy {rows[way]['accuracy']:.1%}, 95 % interval {_ends(rows[way])}")

    model = models[EXACT]
    model.simple_ = None  # what stands beside one network, which nobody asks for here, would be most of the artefact
    agreement = _agreement(model, test)
    place.save(model)
    picture = _explained(model, test, y_test)
    plots.save(picture, out / "digits.png")
    scores = [
        {"score": "accuracy", "method": way, "value": row["accuracy"], "95 % interval": _ends(row)}
        for way, row in rows.items()
    ]
    result = {
        "train_sets": len(train),
        "test_sets": len(test),
        "model": {k: v for k, v in model.get_params().items() if k not in ("progress", "device", "log")},
        "accuracy": rows,
        "validation": {"ours": EXACT, "on": f"{len(test):,} held-out digits", "scores": scores},
        "shard_agreement": agreement,
        "history": {way: m.history_ for way, m in models.items()},
        "provenance": provenance(seed, devices.find(model.device).type),
    }
    write_json(out / "metrics.json", result)
    page, numbers = _page(result, Plot(picture, PICTURE, PICTURE, half=False))
    write(out, page, numbers)
    _say(f"\n{numbers['verdict']}\n{SAME}")
    _say(
        f"\nWritten to {place.out}: the model, metrics.json, digits.png, report.html, report.json, the three runs in "
        f"runs/; run.json lists all files. Open {place.out / 'report.html'} in a browser."
    )
    return result


def _read(max_sets: int | None, seed: int) -> tuple[Any, ...]:
    import numpy as np
    from sklearn.model_selection import train_test_split

    from omniset.tables import point_clouds

    sets, labels = point_clouds.digits()
    chosen = np.arange(len(labels))[:max_sets]
    train, test = train_test_split(chosen, test_size=0.2, random_state=seed, stratify=labels[chosen])
    return *point_clouds.with_variants(sets[train], labels[train], VARIANTS, seed), sets[test], labels[test]


def _accuracy(predicted: Any, labels: Any) -> dict[str, Any]:
    from scipy.stats import binomtest

    right = int((predicted == labels).sum())
    interval = binomtest(right, len(labels)).proportion_ci(method="wilson")
    return {"accuracy": right / len(labels), "interval_95": [interval.low, interval.high]}


def _agreement(model: Any, test: Any) -> dict[str, Any]:
    """Largest difference in probability, and number of labels that differ, of shards against whole sets."""
    whole = model.predict_proba(test, shard_size=test.elements.shape[1])
    differences = {}
    for size in (1, 7, 64):
        probabilities = model.predict_proba(test, shard_size=size)
        differences[str(size)] = {
            "largest_difference": float(abs(probabilities - whole).max()),
            "labels_changed": int((probabilities.argmax(1) != whole.argmax(1)).sum()),
        }
    return differences


def _explained(model: Any, test: Any, labels: Any) -> Any:
    import numpy as np

    from omniset.report import plots

    shown = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:10]]
    few = test[shown]
    elements, counts = few.to_ragged()
    titles = [f"{t} read as {p}" for t, p in zip(labels[shown], model.predict(few), strict=True)]
    return plots.point_clouds(
        [e.numpy() for e in elements], [c.double().numpy() for c in counts], model.explain(few), titles
    )


def _page(result: dict[str, Any], picture: Any) -> tuple[Any, dict[str, Any]]:
    from omniset.report.blocks import Cell, Section, Table
    from omniset.report.frame import Run, compose, learning

    run = Run("sets", "demo", "Digits as multisets of points", own_command(), result["provenance"])
    rows = result["accuracy"]
    accuracies = [
        [way, Cell(f"{row['accuracy']:.1%}", row["accuracy"]), _ends(row), round(row["seconds"])]
        for way, row in rows.items()
    ]
    agreement = [
        [int(size), Cell(f"{row['largest_difference']:.1g}", row["largest_difference"]), row["labels_changed"]]
        for size, row in result["shard_agreement"].items()
    ]
    ways = ["trained on", "accuracy", "95 % interval", "seconds"]
    columns = ["shard size", "largest difference in probability", "labels changed"]
    tables = [
        Table("How it was trained. Intervals are of what other digits would give.", ways, accuracies),
        Table("The same predictions from shards of any size, against whole sets.", columns, agreement),
    ]
    whole, exact, first = (f"{row['accuracy']:.1%} (95 % interval {_ends(row)})" for row in rows.values())
    verdict = (
        f"Of {result['test_sets']:,} held-out digits {exact} are read right after learning from 8-point shards with "
        f"exact gradients; after whole sets {whole}, and after the first shard of each alone, the simple way, {first}."
    )
    about = (
        "A digit is a set of points, each as often as its pixel is dark; a shard is a part of it. One model, trained "
        f"in three ways on {result['train_sets']:,} digits."
    )
    sections = [Section("How good it is", SAME, [*tables]), learning(result["history"])]
    return compose(run, verdict, about, sections, result, picture=[picture], settings=result["model"])


def _ends(row: dict[str, Any]) -> str:
    return "{:.1%} to {:.1%}".format(*row["interval_95"])


def _say(line: str) -> None:
    print(line, flush=True, file=sys.stdout)
