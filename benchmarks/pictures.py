"""Draws the pictures of README and docs from the files under results/: what the systems make, and how good it is.

Letters of 11 points on 5.2 inches are still read on a telephone, 390 points wide.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import cells as recorded
from benchmarks.results import RESULTS, ROOT
from omniset.report.plots import COLOURS, save

OURS = "omniset"
GREY, LIGHT = "#80868b", "#dadce0"
Rows = dict[str, tuple[float, float, float]]


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def panels(rows: int = 1, columns: int = 1, height: float = 3.2) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(5.2, height), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, columns)).ravel())
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=11)
    return figure, axes


def titled(ax: Any, title: str, label: str = "") -> None:
    """Over all the width, where the axes are the only ones."""
    if len(ax.figure.axes) == 1:
        ax.figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        ax.figure.supxlabel(label, fontsize=11)
    else:
        ax.set_title(title, fontsize=12, loc="left")
        ax.set_xlabel(label, fontsize=11)


def ranked(ax: Any, rows: Rows) -> None:
    """Methods by their score with its interval, best on top, ours in colour, numbers at the right."""
    order = sorted(rows, key=lambda method: rows[method][0])
    for place, method in enumerate(order):
        value, low, high = rows[method]
        colour = COLOURS[0] if method == OURS else GREY
        ax.plot([low, high], [place, place], color=colour, linewidth=2.5)
        ax.plot(value, place, "o", color=colour, markersize=7)
        weight = "bold" if method == OURS else "normal"
        at = ax.get_yaxis_transform()
        ax.text(1.02, place, f"{value:.3f}", transform=at, va="center", fontsize=11, color=colour, weight=weight)
    ax.set_yticks(range(len(order)), ["Omniset" if method == OURS else method for method in order])
    ax.set_ylim(-0.6, len(order) - 0.4)
    ax.grid(axis="x", color=LIGHT, linewidth=0.8)
    ax.set_axisbelow(True)


def differences(ax: Any, rows: Rows) -> None:
    """Ours minus another with its interval, in the order given; nothing lies at 0."""
    for place, (value, low, high) in enumerate(reversed(rows.values())):
        colour = COLOURS[0] if low > 0 else COLOURS[1] if high < 0 else GREY
        ax.plot([low, high], [place, place], color=colour, linewidth=2.5)
        ax.plot(value, place, "o", color=colour, markersize=7)
    ax.axvline(0, color="black", linewidth=1)
    ax.set_yticks(range(len(rows)), list(reversed(rows)))
    ax.set_ylim(-0.6, len(rows) - 0.4)


def with_ends(rows: Iterable[dict[str, Any]]) -> Rows:
    return {row["method"]: (row["value"], row["low"], row["high"]) for row in rows}


def exactness() -> Figure:
    """The largest relative error of gradients of shards, of each encoder."""
    rows = read("exactness.json")["rows"]
    names = list(dict.fromkeys(row["encoder"] for row in rows))
    figure, (ax,) = panels(height=3.0)
    for dtype, colour in (("float64", COLOURS[0]), ("float32", COLOURS[1])):
        errors = [max(r["gradients"] for r in rows if (r["encoder"], r["dtype"]) == (n, dtype)) for n in names]
        ax.semilogx(errors, range(len(names)), "o", color=colour, markersize=7, label=dtype)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlim(1e-17, 1)
    ax.legend(frameon=False, fontsize=11, loc="upper right")
    titled(ax, "gradients of shards against the whole set's", "largest relative error")
    return figure


def speed() -> Figure:
    """How many times faster than the faster of two peers, forward and backward, on two processors."""
    figure, (ax,) = panels(height=3.2)
    for place, (file, name) in enumerate((("speed", "with AVX-512"), ("speed_older", "an older processor"))):
        rows = [
            row
            for row in read(f"benchmarks/{file}.json")["rows"]
            if row["what"] == "forward+backward" and not row["beside"] and row.get("quota") is None
        ]
        values = [row["speedup"] for row in rows]
        at = np.arange(len(rows)) + 0.4 * place - 0.2
        ax.bar(at, values, width=0.38, color=(COLOURS[0], GREY)[place], label=name)
        for x, value in zip(at, values, strict=True):
            ax.text(x, value, f"{value:.1f}", ha="center", va="bottom", fontsize=11)
        cases = [row["case"] for row in rows]
    ax.set_xticks(range(len(cases)), [f"{case['sets']} x\n{case['elements']:,}" for case in cases])
    ax.axhline(1, color="black", linewidth=1)
    ax.legend(frameon=False, fontsize=11, loc="upper left")
    titled(ax, "times as fast as the faster of two peers", "sets x elements; 1: as fast")
    return figure


def demo() -> Figure:
    """Accuracy by what was trained on."""
    figure, (ax,) = panels(height=2.0)
    found = read("demo.json")["accuracy"]
    differing = list(found)[-1]
    for place, (way, row) in enumerate(reversed(found.items())):
        colour = GREY if way == differing else COLOURS[0]
        ax.plot(row["interval_95"], [place, place], color=colour, linewidth=2.5)
        ax.plot(row["accuracy"], place, "o", color=colour, markersize=7)
    ax.set_yticks(
        range(len(found)), [way.replace(", ", ",\n").replace("gradient ", "gradient\n") for way in reversed(found)]
    )
    ax.set_ylim(-0.6, len(found) - 0.4)
    ax.xaxis.set_major_formatter("{x:.0%}")
    titled(ax, "accuracy of 360 held-out digits", "line: 95 % interval")
    return figure


def sets() -> Figure:
    """Ours minus the best single method of each data set."""
    rows = [row for row in read("sets/methods.json")["against the best single"] if row["score"] == "AUROC"]
    figure, (ax,) = panels(height=3.2)
    differences(ax, {f"{r['data']}\n({r['best']})": (r["value"], r["low"], r["high"]) for r in rows})
    titled(ax, "AUROC, Omniset minus the best single method", "line: 95 % interval over sets")
    return figure


def genomes() -> Figure:
    """F1 of the gene content of incomplete, contaminated genomes."""
    scores = [r for r in read("genomes.json")["scores"] if (r["condition"], r["score"]) == ("70/5", "f1")]
    shown = (OURS, "pca", "autoencoder-evidence", "knn-likelihood", "mean", "knn", "prevalence-bayes", "as-is")
    figure, (ax,) = panels(height=3.4)
    ranked(ax, with_ends(row for row in scores if row["method"] in shown))
    titled(ax, "archaea, 70 % complete: gene content", "F1; line: 95 % interval over families")
    return figure


def cells() -> Figure:
    """Integration of two data sets."""
    figure, axes = panels(2, height=4.2)
    for ax, (file, title) in zip(
        axes, (("kang", "Kang's blood cells (tuned on)"), ("baron", "Baron's pancreas")), strict=True
    ):
        comparison, seeds = recorded.read(read(f"cells/{file}.json"))
        totals = comparison.table("total", "all cells")["value"]
        ranked(ax, {m: (totals[m], seeds.low[m], seeds.high[m]) for m in totals.index})
        titled(ax, title, "")
    titled(axes[1], "Baron's pancreas", "integration, 1 is best; line: lowest to highest seed")
    return figure


def regions() -> Figure:
    """Ours minus the best baseline in six tests of regions that were not learned from."""
    tests = {
        "400 regions, bilateral": "400_bilateral",
        "400 regions, spatial": "400_spatial",
        "100 regions, bilateral": "100_bilateral",
        "100 regions, spatial": "100_spatial",
        "structural, bilateral": "100_structural_bilateral",
        "structural, spatial": "100_structural_spatial",
    }
    rows: Rows = {}
    for name, file in tests.items():
        gate = read(f"regions/schaefer_{file}.json")["gates"][0]
        rows[f"{name}\n({gate['opponent']})"] = (gate["value"], gate["low"], gate["high"])
    figure, (ax,) = panels(height=4.2)
    differences(ax, rows)
    titled(ax, "Pearson's r, Omniset minus the best", "in brackets the best baseline; line: 95 % interval")
    return figure


def microbiomes() -> Figure:
    """Accuracy of genera in new communities."""
    found = read("microbiomes/contax.json")
    figure, (ax,) = panels(height=3.4)
    shown = (OURS, *found["baselines"])
    ranked(ax, {m: v for m, v in accuracies(found, "new communities", "genus_accuracy").items() if m in shown})
    titled(ax, "reads of new communities: genera", "accuracy; line: 95 % interval")
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
    figure = Figure(figsize=(6.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    x, y, both = np.array(about["CD25"]), np.array(about["CD69"]), np.array(about["state"]) == "CD25+ CD69+"
    order = np.argsort(about["score"])  # the highest on top
    shown = left.scatter(x[order], y[order], c=np.array(about["score"])[order], cmap="viridis", s=45)
    left.scatter(x[both], y[both], facecolors="none", edgecolors="#d1495b", s=120, linewidths=1.8)
    left.set_xlabel("CD25", fontsize=12)
    left.set_ylabel("CD69", fontsize=12)
    left.set_title("Which cells told?", fontsize=13, loc="left")
    bar = figure.colorbar(shown, ax=left)
    bar.set_label("drove the prediction", fontsize=12)
    right.set_title("Infected or healthy?", fontsize=13, loc="left")
    order = sorted(found["accuracy"], key=lambda method: (found["accuracy"][method], method == OURS))
    held_out = 24
    for place, method in enumerate(order):
        share = found["accuracy"][method]
        right.barh(place, share, height=0.34, color=COLOURS[0] if method == OURS else LIGHT)
        name = "Omniset" if method == OURS else method
        right.text(0, place + 0.24, f"{name}: {share * held_out:.0f} of {held_out}", fontsize=12, va="bottom")
    right.set_xlim(0, 1)
    right.set_ylim(-0.4, len(order) - 0.1)
    right.set_axis_off()
    for ax in (left, bar.ax):
        ax.tick_params(labelsize=11)
    left.spines[["top", "right"]].set_visible(False)
    return figure


def completed_genomes() -> Figure:
    """Gene families of incomplete genomes, by what became of them."""
    found = read("examples.json")["examples"]["genomes"]
    figure, (ax,) = panels(height=3.6)
    colours = {
        "found": LIGHT,
        "added, right": COLOURS[0],
        "added, wrong": COLOURS[1],
        "still missing": "white",
    }
    before = np.zeros(len(found["genomes"]))
    for name, colour in colours.items():
        counts = np.array(found["families"][name])
        ax.barh(range(len(counts)), counts, left=before, color=colour, edgecolor=GREY, linewidth=0.5, label=name)
        before += counts
    ax.set_yticks([])
    ax.set_ylabel(f"{len(before)} incomplete genomes", fontsize=11)
    ax.invert_yaxis()
    ax.legend(frameon=False, fontsize=11, ncols=3, loc="lower left", bbox_to_anchor=(-0.05, 1.08), columnspacing=1)
    f1 = found["f1"]
    titled(ax, f"F1 {f1['as found']:.2f} as found, {f1['completed']:.2f} completed", "gene families")
    return figure


def labelled_cells() -> Figure:
    """Cells of a new donor by the type that they were called."""
    found = read("examples.json")["examples"]["cells"]
    figure, (ax,) = panels(height=3.4)
    x, y, called = (np.array(found[name]) for name in ("x", "y", "called"))
    palette = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
    for name, colour in zip(sorted({*called} - {"unknown"}), palette, strict=False):
        ax.scatter(x[called == name], y[called == name], s=22, color=colour, label=name)
    unknown = called == "unknown"
    ax.scatter(x[unknown], y[unknown], s=30, color=GREY, marker="x", label="unknown")
    ax.set(xticks=[], yticks=[])
    ax.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1)
    titled(ax, "types of the cells of a new donor", "UMAP of the vectors")
    return figure


def foretold_connectivity() -> Figure:
    """Connectivity of regions that were hidden, measured and predicted."""
    found = read("examples.json")["examples"]["regions"]
    figure, axes = panels(1, 2, height=2.9)
    matrices = [np.array([row.split() for row in found[name]], dtype=float) for name in ("true", "predicted")]
    least, most = np.nanmin(matrices), np.nanmax(matrices)
    for ax, matrix, title in zip(axes, matrices, ("measured", "predicted"), strict=True):
        shown = ax.imshow(matrix, cmap="viridis", vmin=least, vmax=most)
        ax.set(xticks=[], yticks=[])
        titled(ax, title, f"{len(matrix)} hidden regions")
    axes[0].set_xlabel(f"r = {found['pearson of hidden']:.2f}", fontsize=11)
    figure.colorbar(shown, ax=axes, shrink=0.75).ax.tick_params(labelsize=11)
    return figure


def classified_reads() -> Figure:
    """Genera of samples."""
    found = read("examples.json")["examples"]["microbiomes"]
    counts = {genus: np.array(row) for genus, row in found["reads"].items()}
    total = np.sum(list(counts.values()), axis=0)
    figure, (ax,) = panels(height=3.2)
    first = sorted(counts, key=lambda genus: -counts[genus].sum())[:8]
    order = np.argsort([name.rstrip("0123456789") for name in found["samples"]], kind="stable")
    below = np.zeros(len(order))
    palette = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#6a3d9a")
    for genus, colour in zip(first, palette, strict=True):
        share = (counts[genus] / total)[order]
        ax.bar(range(len(order)), share, bottom=below, color=colour, width=0.9, label=genus)
        below += share
    ax.bar(range(len(order)), 1 - below, bottom=below, color=LIGHT, width=0.9, label="others")
    ax.set_xticks(range(len(order)), [found["samples"][n] for n in order], rotation=60)
    ax.yaxis.set_major_formatter("{x:.0%}")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    titled(ax, f"genera of samples; {found['reads_right']:.0%} of reads right")
    return figure


PICTURES = (example, completed_genomes, labelled_cells, foretold_connectivity, classified_reads)
PICTURES += (exactness, speed, demo, sets, genomes, cells, regions, microbiomes)


def draw() -> None:
    for picture in PICTURES:
        save(picture(), ROOT / "docs" / "images" / f"{picture.__name__.replace('_', '-')}.png")
