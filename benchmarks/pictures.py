"""Draws the pictures of README and docs that show results of the systems, from the files under results/."""

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import cells as recorded
from benchmarks.results import RESULTS, ROOT, by_place
from omniset.report.plots import COLOURS, save

OURS = {"omniset"}
GREY = "#9aa0a6"


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def panels(number: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, number))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def ranked(ax: Any, rows: dict[str, tuple[float, float, float]], title: str) -> None:
    """Methods by their score, best on top, ours in colour."""
    order = sorted(rows, key=lambda method: rows[method][0])
    for place, method in enumerate(order):
        value, low, high = rows[method]
        colour = COLOURS[0] if method in OURS else GREY
        ax.plot([low, high], [place, place], color=colour, linewidth=2)
        ax.plot(value, place, "o", color=colour, markersize=6)
    ax.set_yticks(range(len(order)), ["Omniset" if method in OURS else method for method in order], fontsize="small")
    ax.set_title(title, fontsize="medium", loc="left")


def genomes() -> Figure:
    """F1 and AUPRC of missing families by how complete a genome is."""
    scores = by_place(read("genomes.json"))
    figure, axes = panels(2)
    conditions = ("100/0", "95/0", "90/0", "70/0", "50/0")
    for ax, (score, title, shown) in zip(
        axes,
        (
            ("f1", "F1 of the gene content", conditions),
            ("auprc_missing", "AUPRC of the missing families", conditions[1:]),
        ),
        strict=True,
    ):
        for place, method in enumerate(("omniset", "as-is", "prevalence-bayes", "autoencoder-evidence", "mean")):
            values = [scores[condition, score, method]["value"] for condition in shown]
            ours = method in OURS
            ax.plot(
                [int(c.split("/")[0]) for c in shown],
                values,
                "o-",
                color=(*COLOURS, GREY)[place],
                linewidth=2.5 if ours else 1,
                alpha=1 if ours else 0.75,
                label="Omniset" if ours else method,
                zorder=3 if ours else 2,
            )
        ax.invert_xaxis()
        ax.set_xlabel("completeness of the genome, %")
        ax.set_title(title, fontsize="medium", loc="left")
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def cells() -> Figure:
    """Integration of two data sets."""
    figure, axes = panels(2)
    for ax, (file, title) in zip(axes, (("kang", "Kang's blood cells"), ("baron", "Baron's pancreas")), strict=True):
        comparison, seeds = recorded.read(read(f"cells/{file}.json"))
        totals = comparison.table("total", "all cells")["value"]
        rows = {m: (totals[m], seeds.low[m], seeds.high[m]) for m in totals.index}
        ranked(ax, rows, title)
        ax.set_xlabel("integration, 1 is best (line: lowest to highest seed)")
    return figure


def regions() -> Figure:
    """Pearson's r of unseen regions in two atlases."""
    figure, axes = panels(2)
    for ax, number in zip(axes, (100, 400), strict=True):
        table = read(f"regions/schaefer_{number}_bilateral.json")["table"]
        left_out = ("places only", "attention alone")  # variants of ours
        rows = {m: (r["pearson"],) * 3 for m, r in table.items() if m not in left_out}
        ranked(ax, rows, f"Schaefer's atlas of {number} regions")
        ax.set_xlabel("Pearson's r, bilateral split")
    return figure


def microbiomes() -> Figure:
    """Accuracy and calibration of genera."""
    found = read("microbiomes/contax.json")
    figure, axes = panels(2)
    for ax, (kind, score, title) in zip(
        axes,
        (
            ("new communities", "genus_accuracy", "accuracy of genera"),
            ("with unknown taxa", "calibration_error", "calibration error (0 is best)"),
        ),
        strict=True,
    ):
        ranked(ax, accuracies(found, kind, score), title)
        ax.set_xlabel("mean (line: lowest to highest seed)" if "rows" in found else "mean (line: 95 % interval)")
    return figure


def accuracies(found: dict[str, Any], kind: str, score: str) -> dict[str, tuple[float, float, float]]:
    """Of each method on the smallest samples of a kind: mean and interval, in results of before there were intervals
    the lowest and highest seed. Ours is what fit makes.
    """
    if "rows" not in found:
        conditions = {row["condition"] for row in found["scores"] if row["condition"].startswith(f"{kind}, ")}
        least = min(conditions, key=lambda name: (len(name), name))
        return {
            row["method"]: (row["value"], row["low"], row["high"])
            for row in found["scores"]
            if (row["condition"], row["score"]) == (least, score)
        }
    here = [row for row in found["rows"] if row["kind"] == kind]
    reads = min(row["reads"] for row in here)
    names = ("general", "naive-bayes", "naive-bayes-community", "naive-bayes-sample", "nearest", "no-context")
    values = {n: [row[score] for row in here if (row["method"], row["reads"]) == (n, reads)] for n in names}
    return {"omniset" if name == "general" else name: (float(np.mean(v)), min(v), max(v)) for name, v in values.items()}


def example() -> Figure:
    """`omniset example tables`: what is explained of one sample, and what each method says of those held out."""
    found = read("examples.json")["examples"]["tables"]
    about = found["cells"]
    figure, (left, right) = panels(2)
    x, y, both = np.array(about["CD25"]), np.array(about["CD69"]), np.array(about["state"]) == "CD25+ CD69+"
    order = np.argsort(about["score"])  # the highest on top
    shown = left.scatter(x[order], y[order], c=np.array(about["score"])[order], cmap="viridis", s=45)
    left.scatter(x[both], y[both], facecolors="none", edgecolors="#d1495b", s=110, label="CD25+ CD69+ in truth")
    left.set_xlabel("CD25")
    left.set_ylabel("CD69")
    left.set_title(f"cells of {found['set']}, held out", fontsize="medium", loc="left")
    left.legend(frameon=False, fontsize="small", loc="upper left")
    figure.colorbar(shown, ax=left, label="how much it drove the prediction")
    ranked(right, {name: (value,) * 3 for name, value in found["accuracy"].items()}, "infected or healthy: accuracy")
    right.set_xlabel("24 samples held out")
    return figure


def draw() -> None:
    for picture in (example, genomes, cells, regions, microbiomes):
        save(picture(), ROOT / "docs" / "images" / f"{picture.__name__}.png")
