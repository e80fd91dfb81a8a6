"""The sentence of docs/results.md beside each figure, and the table of docs/when-not.md: how good, and where not."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks import cells as recorded
from benchmarks.pictures import accuracies, read
from benchmarks.results import by_place
from omniset.trials.comparison import HOLDS, OURS

Lines = Callable[[dict[str, Any]], list[str]]


def best(scores: Mapping[str, float], names: Iterable[str]) -> tuple[str, float]:
    name = max((n for n in names if n in scores), key=lambda n: scores[n])
    return name, scores[name]


def listed(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def ends(row: Mapping[str, float], digits: int = 3) -> str:
    return f"{row['value']:+.{digits}f} ({row['low']:+.{digits}f} to {row['high']:+.{digits}f})"


def exactness(found: dict[str, Any]) -> list[str]:
    worst = {d: max(r["gradients"] for r in found["rows"] if r["dtype"] == d) for d in ("float64", "float32")}
    return [
        f"Gradients through shards of 1, 7 and 64 elements differ from those of the whole set by at most "
        f"{worst['float64']:.0e}, relative, in float64 and {worst['float32']:.0e} in float32. Where it fails: `fspool` "
        "and `strxl` are read whole, or give something else in parts."
    ]


def _timed(file: str) -> list[dict[str, Any]]:
    rows = read(f"benchmarks/{file}.json")["rows"]
    return [r for r in rows if r["what"] == "forward+backward" and not r["beside"] and r.get("quota") is None]


def speed(found: dict[str, Any]) -> list[str]:
    new, old = _timed("speed"), _timed("speed_older")
    slow = [row for row in read("benchmarks/grid.json")["rows"] if row["speedup"] < 1 and "backward" in row["what"]]
    shown = listed([f"{row['case']['name']} {row['sweep']} ({row['speedup']:.2f})" for row in slow])
    least, most = (f(row["speedup"] for row in new) for f in (min, max))
    return [
        f"Two attention layers are {least:.1f} to {most:.1f} times as fast, forward and backward, as the faster of "
        f"torch_geometric and plain PyTorch, in {max(row['memory_ratio'] for row in new):.0%} of the memory or less; "
        f"on an older processor {min(r['speedup'] for r in old):.1f} to {max(r['speedup'] for r in old):.1f} times. "
        f"Where it loses: one layer at {shown}."
    ]


def demo(found: dict[str, Any]) -> list[str]:
    whole, exact, first = found["accuracy"].values()
    return [
        f"Trained on shards of 8 points with exact gradients, {exact['accuracy']:.0%} of held-out digits are read, as "
        f"on whole sets ({whole['accuracy']:.0%}); with the gradient of the first shard alone {first['accuracy']:.0%}. "
        f"What it costs: {exact['seconds']:.0f} seconds in place of {whole['seconds']:.0f}."
    ]


def sets(found: dict[str, Any]) -> list[str]:
    rows = [row for row in found["against the best single"] if row["score"] == "AUROC"]
    above, below = ([f"{r['data']} {r['value']:+.3f}" for r in rows if sign * r["value"] > 0.0005] for sign in (1, -1))
    sure = [row["data"] for row in rows if row["low"] > 0 or row["high"] < 0]
    said = f"sure in {listed(sure)}" if sure else "none is sure"
    return [
        f"The default beside the best single method of each data set, which nobody knows beforehand: AUROC higher in "
        f"{listed(above)}, lower in {listed(below)}, and {said}: it ties. What it saves is the choice; where the "
        "simple method is known to be right, it is enough."
    ]


def genomes(found: dict[str, Any]) -> list[str]:
    scores = by_place(found)
    f1 = {m: r["value"] for (c, s, m), r in scores.items() if (c, s) == ("70/5", "f1")}
    name, value = best(f1, found["baselines"])
    whole = {m: scores["100/0", "f1", m]["value"] for m in (OURS, "as-is")}
    gate = next(g for g in found["gates"] if g["condition"] == "95/0" and g["score"] == "auprc_missing")
    return [
        f"On archaea of unseen families, 70 % complete and 5 % contaminated, F1 of the gene content is {f1[OURS]:.3f}, "
        f"of {name} {value:.3f}; AUPRC of missing families at 95 % exceeds the best baseline by {ends(gate, 4)}. Where "
        f"it loses: a complete genome is best left as it is ({whole['as-is']:.3f} beside {whole[OURS]:.3f}), and "
        f"without its network F1 is the same ({f1['no-network']:.3f})."
    ]


def cells(found: dict[str, Any]) -> list[str]:
    totals = {}
    for data in ("kang", "baron"):
        table = recorded.read(read(f"cells/{data}.json"))[0].table("total", "all cells")["value"]
        totals[data] = dict(zip(table.index, table, strict=True))
    theirs = {data: best(scores, scores.keys() - {OURS}) for data, scores in totals.items()}
    gate = next(
        g for g in read("cells/annotate_baron.json")["gates"] if g["score"] == "f1" and "new batches" in g["condition"]
    )
    return [
        f"Integration of Kang's cells, on which it was tuned, is {totals['kang'][OURS]:.3f} beside "
        f"{theirs['kang'][1]:.3f} of {theirs['kang'][0]}; labels of new donors of Baron's pancreas exceed the best "
        f"baseline's macro-F1 by {ends(gate)}. Where it loses: Baron's pancreas, on which it was not tuned, is "
        f"integrated as well by {theirs['baron'][0]} ({theirs['baron'][1]:.3f} beside {totals['baron'][OURS]:.3f}), "
        "and Harmony takes a second."
    ]


SPLITS = {f"{n}_{split}": f"{n} regions, {split}" for n in (400, 100) for split in ("bilateral", "spatial")}
SPLITS |= {f"100_structural_{split}": f"100 regions, structural, {split}" for split in ("bilateral", "spatial")}


def regions(found: dict[str, Any]) -> list[str]:
    gates = {name: read(f"regions/schaefer_{file}.json")["gates"][0] for file, name in SPLITS.items()}
    holds = [f"{ends(gate)} in {name}" for name, gate in gates.items() if gate["verdict"] == HOLDS]
    ties = [f"{name} ({gate['opponent']})" for name, gate in gates.items() if gate["verdict"] != HOLDS]
    return [
        f"Pearson's r of regions that were not learned from exceeds the best baseline by {listed(holds)}. Where it "
        f"ties with it: {listed(ties)}."
    ]


def microbiomes(found: dict[str, Any]) -> list[str]:
    gate = next(g for g in found["gates"] if g["condition"].startswith("new communities") and g["bound"] == 0)
    genus = {m: v[0] for m, v in accuracies(found, "new communities", "genus_accuracy").items()}
    family = {m: v[0] for m, v in accuracies(found, "known communities", "family_accuracy").items()}
    error = {m: v[0] for m, v in accuracies(found, "with unknown taxa", "calibration_error").items()}
    name, value = best(family, found["baselines"])
    return [
        f"Of the reads of new communities {genus[OURS]:.1%} get their genus, {ends(gate, 4)} more than the best "
        f"baseline, {gate['opponent']}. Where it loses: families, of which {name} names {value:.1%} and Omniset "
        f"{family[OURS]:.1%}, and calibration, which is better without its network ({error['no-network']:.3f} beside "
        f"{error[OURS]:.3f})."
    ]


def enough(found: dict[str, Any]) -> list[str]:
    """Where a simple method ties or wins."""
    rows: list[tuple[str, str, str, str]] = []
    values = {(r["condition"], r["method"]): r["value"] for r in found["scores"] if r["score"] == "AUROC"}
    gaps = {
        (r["condition"], r["other"]): r for r in found["differences"] if (r["score"], r["method"]) == ("AUROC", OURS)
    }
    for data, what in (("breast_tissue", "patches of tissue"), ("cfs", "stool, as reads"), ("musk2", "molecules")):
        simple = ("pooled-forest", "dissimilarity-linear")
        name, value = best({m: values[data, m] for m in simple}, simple)
        rows.append((f"{what}: AUROC", f"`{name}` {value:.3f}", f"{values[data, OURS]:.3f}", ends(gaps[data, name])))
    archaea = read("genomes.json")
    gap = next(
        r
        for r in archaea["differences"]
        if (r["condition"], r["score"], r["method"], r["other"]) == ("100/0", "f1", OURS, "as-is")
    )
    scores = by_place(archaea)
    ours, left = (scores["100/0", "f1", m]["value"] for m in (OURS, "as-is"))
    rows.append(
        ("a complete genome: F1 of its gene content", f"leave it as it is {left:.4f}", f"{ours:.4f}", ends(gap, 4))
    )
    comparison, seeds = recorded.read(read("cells/baron.json"))
    table = comparison.table("total", "all cells")["value"]
    harmony = f"Harmony {table['harmony']:.3f} in {seeds.seconds['harmony']:.1f} s"
    own = f"{table[OURS]:.3f} in {seeds.seconds[OURS]:.0f} s"
    rows.append(("two mice of Baron's pancreas: integration", harmony, own, f"{table[OURS] - table['harmony']:+.3f}"))
    for data, name in (("kang", "Kang's blood"), ("baron", "Baron's pancreas")):
        of = read(f"cells/annotate_{data}.json")
        gate = next(g for g in of["gates"] if g["score"] == "f1" and g["condition"] == "half labelled")
        score = {
            r["method"]: r["value"] for r in of["scores"] if (r["condition"], r["score"]) == ("half labelled", "f1")
        }
        theirs = f"balanced logistic regression {score[gate['opponent']]:.3f}"
        rows.append((f"{name}, half of the cells labelled: macro-F1", theirs, f"{score[OURS]:.3f}", ends(gate)))
    treated = read("cells/perturb_kang.json")
    gate = next(g for g in treated["gates"] if g["score"] == "pearson_top" and "donors" in g["condition"])
    score = {
        r["method"]: r["value"]
        for r in treated["scores"]
        if (r["condition"], r["score"]) == (gate["condition"], "pearson_top")
    }
    theirs = f"a linear shift {score[gate['opponent']]:.3f}"
    rows.append(("treated cells of new donors: Pearson of changes", theirs, f"{score[OURS]:.3f}", ends(gate)))
    for file, name in SPLITS.items():
        of = read(f"regions/schaefer_{file}.json")
        gate = of["gates"][0]
        if gate["verdict"] != HOLDS:
            theirs = f"`{gate['opponent']}` {of['table'][gate['opponent']]['pearson']:.3f}"
            rows.append((f"{name}: Pearson's r", theirs, f"{of['table'][OURS]['pearson']:.3f}", ends(gate)))
    reads = read("microbiomes/contax.json")
    gap = next(
        r
        for r in reads["differences"]
        if r["condition"] == "known communities, 1,024 reads"
        and (r["score"], r["method"], r["other"]) == ("family_accuracy", OURS, "naive-bayes")
    )
    family = {m: v[0] for m, v in accuracies(reads, "known communities", "family_accuracy").items()}
    theirs = f"naive Bayes on 7-mers {family['naive-bayes']:.4f}"
    rows.append(("reads of known communities: accuracy of families", theirs, f"{family[OURS]:.4f}", ends(gap, 4)))
    lines = ["| what was asked | the simple answer | Omniset | difference, 95 % interval |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += [
        "",
        "The simple answer is the best one on the very data that it is shown on: harder than one could choose.",
    ]
    slow = [
        r
        for r in read("benchmarks/grid.json")["rows"]
        if "backward" in r["what"] and r["sweep"] in ("elements", "points")
    ]
    slow = [
        f"{r['case']['name']} {r['sweep']} {r['speedup']:.2f} x {r['faster_peer']}" for r in slow if r["speedup"] < 1.2
    ]
    lines += ["", f"One layer on a CPU, forward and backward, against the faster of two peers: {', '.join(slow)}."]
    return lines


def seconds(found: dict[str, Any]) -> list[str]:
    """What the default takes, where one forest takes a second."""
    rows = [row for row in found["rows"] if not row["beside"]]
    took = statistics.median(row["seconds"] for row in rows)
    peak = max(row["peak_mb"] for row in rows)
    return [
        f"`fit` of {rows[0]['data']}, 102 sets of 65 elements with 166 features, takes {took:.0f} seconds and "
        f"{peak:,.0f} MB: it fits three methods on five folds, and networks several times."
    ]


SENTENCES: dict[str, tuple[str, Lines]] = {
    "exactness_said": ("exactness.json", exactness),
    "speed_said": ("benchmarks/speed.json", speed),
    "demo_said": ("demo.json", demo),
    "sets_said": ("sets/methods.json", sets),
    "genomes_said": ("genomes.json", genomes),
    "cells_said": ("cells/kang.json", cells),
    "regions_said": ("regions/schaefer_400_bilateral.json", regions),
    "microbiomes_said": ("microbiomes/contax.json", microbiomes),
    "enough": ("sets/methods.json", enough),
    "seconds": ("sets/costs.json", seconds),
}
