"""Writes the tables of README and docs from results/, between markers `<!-- results:NAME -->` and `<!-- end -->`."""

import json
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from paper.registry import STUDIES, load, tables_of
from paper.tables import Results

from benchmarks import cells as recorded
from benchmarks import pictures
from benchmarks.conditions import table as conditions_of
from benchmarks.results import RESULTS, ROOT, by_place
from benchmarks.sentences import SENTENCES, best
from omniset.report.blocks import many
from omniset.report.plots import save
from omniset.runs.files import replacing
from omniset.trials.comparison import HOLDS, OURS, SHORT, TIE, Comparison

PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{p}.md"
        for p in ("cells", "clusters", "microbiomes", "promises", "regions", "results", "speed", "studies", "when-not")
    ),
    *sorted(RESULTS.glob("*.md")),
)


def _threads(found: dict[str, Any], noun: str = "thread") -> str:
    return many(found["provenance"]["threads"], noun)


def demo(found: dict[str, Any]) -> list[str]:
    lines = ["| trained on | accuracy | 95 % interval | seconds |", "|---|---|---|---|"]
    for way, row in found["accuracy"].items():
        low, high = row["interval_95"]
        lines.append(f"| {way} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} | {row['seconds']:.0f} |")
    worst = max(row["largest_difference"] for row in found["shard_agreement"].values())
    changed = sum(row["labels_changed"] for row in found["shard_agreement"].values())
    sizes = ", ".join(found["shard_agreement"])
    return [
        *lines,
        "",
        f"{found['test_sets']} held-out digits, seed {found['provenance']['seed']}, "
        f"{_threads(found, 'CPU thread')}. Predicted from shards of {sizes} points instead of whole sets: "
        f"{changed} labels change, no probability by more than {worst:.0e}.",
    ]


def five(found: dict[str, Any]) -> list[str]:
    """One number per promise, the strongest beside it that is no variant of ours, and where ours loses."""
    read = pictures.read
    off = max(row["gradients"] for row in found["rows"] if row["dtype"] == "float64")
    lines = ["| what | Omniset | the strongest beside it | where it loses |", "|---|---|---|---|"]
    exact = "gradients of shards against those of the whole set, largest relative error"
    lines.append(f"| {exact} | {off:.0e} | | `fspool`, `strxl`: not exact |")

    def row(what: str, scores: dict[str, float], baselines: Iterable[str], loses: str) -> None:
        name, value = best(scores, baselines)
        lines.append(f"| {what} | {scores[OURS]:.3f} | {name} {value:.3f} | {loses} |")

    archaea = read("genomes.json")
    places = by_place(archaea)
    f1 = {m: value["value"] for (condition, score, m), value in places.items() if (condition, score) == ("70/5", "f1")}
    left, kept = (places["100/0", "f1", m]["value"] for m in ("as-is", OURS))
    loses = f"complete genomes: {kept:.3f}, as they are {left:.3f}"
    row("archaea, 70 % complete: F1 of the gene content", f1, archaea["baselines"], loses)
    comparison, seeds = recorded.read(read("cells/baron.json"))
    totals = comparison.table("total", "all cells")["value"]
    integrated = dict(zip(totals.index, totals, strict=True))
    loses = f"here; and {seeds.seconds[OURS]:.0f} s, harmony {seeds.seconds['harmony']:.0f} s"
    row("cells of Baron's pancreas: integration", integrated, integrated.keys() - {OURS}, loses)
    regions = read("regions/schaefer_400_bilateral.json")
    correlations = {method: of_all["pearson"] for method, of_all in regions["table"].items()}
    gate = read("regions/schaefer_100_bilateral.json")["gates"][0]
    loses = f"100 regions: {gate['verdict']} with {gate['opponent']}"
    row("connectivity of 365 brain regions: Pearson's r", correlations, regions["baselines"], loses)
    reads = read("microbiomes/contax.json")
    genera, families = (
        {m: v[0] for m, v in pictures.accuracies(reads, kind, score).items()}
        for kind, score in (("new communities", "genus_accuracy"), ("known communities", "family_accuracy"))
    )
    name, value = best(families, reads["baselines"])
    loses = f"families: {families[OURS]:.3f}, {name} {value:.3f}"
    row("reads of new communities: accuracy of genera", genera, reads["baselines"], loses)
    return lines


def exactness(found: dict[str, Any]) -> list[str]:
    lines = ["| encoder | stores | outputs, float64 | gradients, float64 | outputs, float32 | gradients, float32 |"]
    lines.append("|---|---|---|---|---|---|")
    for name in dict.fromkeys(row["encoder"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["encoder"] == name]
        stores = ", ".join(dict.fromkeys(row["store"] for row in rows))
        cells = [
            f"{max(row[key] for row in rows if row['dtype'] == dtype):.0e}"
            for dtype in ("float64", "float32")
            for key in ("outputs", "gradients")
        ]
        lines.append(f"| `{name}` | {stores} | {' | '.join(cells)} |")
    sizes = ", ".join(str(size) for size in found["shard_sizes"])
    return [*lines, "", f"Largest relative error, shards of {sizes} against the whole set, over all stores."]


def author(found: dict[str, Any]) -> list[str]:
    """Errors of the package of the paper's author beside ours, in float64 and float32; the time of both."""
    lines = [
        "| float64 | outputs, ours | outputs, package | gradients, ours | gradients, package |",
        "|---|---|---|---|---|",
    ]
    for dtype in ("float64", "float32"):
        lines += [f"| **{dtype}** | | | | |"] if dtype == "float32" else []
        for row in (row for row in found["rows"] if row["dtype"] == dtype):
            errors = [row[who][key] for key in ("outputs", "gradients") for who in ("ours", "author")]
            cells = ["not a number" if e is None or e != e else f"{e:.0e}" for e in errors]
            lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    timed = found["speed"]
    ours, theirs = timed["cpu_seconds"]["ours"], timed["cpu_seconds"]["author"]
    said = (
        f"Errors against whole sets in float64. Forward and backward of {timed['sets']} whole sets of "
        f"{timed['elements']:,} elements: {theirs / ours:.1f} times the CPU time of ours."
    )
    return [*lines, "", said]


COUNTED = (
    "All that is computed: products of the form that was taken, also those that the backward pass makes again, and "
    "exponentials ([Speed](../docs/speed.md#measured))."
)


def speed(found: dict[str, Any]) -> list[str]:
    counted = all("counted" in row for row in found["rows"])  # of older results it was not
    more = " of the limit of all that is computed |" if counted else ""
    lines = ["| case | sets x elements, dim, points | work | speed | memory | share of the limit |" + more]
    lines.append("|---|---|---|---|---|---|" + "---|" * counted)
    for row in found["rows"]:
        case, by = row["case"], row["limit"]["by"]
        shape = f"{case['sets']} x {case['elements']:,}, {case['dim']}, {case['inducing']}"
        quiet = not row["beside"] and row.get("quota") is None
        work = row["what"]
        if row["beside"]:
            work += f", {row['beside']} other busy process" + "es" * (row["beside"] != 1)
        if row.get("quota") is not None:
            work += f", the time of {row['quota']:g} of {found['processors']} processors"
        memory = f"{row['memory_ratio']:.2f}" if row["memory_ratio"] else "-"
        share = f"{row['share_of_limit']:.0%} ({by})" if quiet else "-"
        lines.append(
            f"| {case['name']} | {shape} | {work} | {row['speedup']:.2f} x {row['faster_peer']} | {memory} | {share} |"
        )
        if counted:
            lines[-1] += f" {row['share_counted']:.0%} ({row['counted']['form']}) |" if quiet else " - |"
    half, machine = found["bfloat16"], found["machine"]
    rates = [f"{name.removesuffix('_gflops')} {rate:.0f} GF/s" for name, rate in machine.items() if "flops" in name]
    return [
        *lines,
        "",
        f"Case {half['case']} with elements and weights in bfloat16, forward+backward: {half['speedup']:.2f} x "
        f"{half['faster_peer']} in float32, at a relative error of {half['error']:.0e}. Best rates here, "
        f"{_threads(found)}: {', '.join(rates)}, copying {machine['copy_gbytes']:.0f} GB/s"
        + (f", {machine['exponentials_giga']:.1f} exponentials in a nanosecond. {COUNTED}" if counted else "."),
    ]


def faults(found: dict[str, Any]) -> list[str]:
    lines = ["| case | pages, Omniset | the peer | seconds, Omniset | the peer |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        if row["what"] != "forward" and not row["beside"] and row.get("quota") is None:
            peer, pages, seconds = row["faster_peer"], row["faults"], row["seconds"]
            times = f"{seconds['omniset']['median']:.3f} | {seconds[peer]['median']:.3f}"
            lines.append(f"| {row['case']['name']} | {pages['omniset']:,} | {pages[peer]:,} | {times} |")
    return lines


def grid(found: dict[str, Any]) -> list[str]:
    lines = ["| by | | forward | forward+backward | memory | share of the limit |", "|---" * 6 + "|"]
    pairs = zip(found["rows"][::2], found["rows"][1::2], strict=True)  # forward, and with backward
    for forward, both in pairs:
        memory = f"{both['memory_ratio']:.2f}" if both["memory_ratio"] else "-"
        speeds = " | ".join(f"{row['speedup']:.2f} x {row['faster_peer']}" for row in (forward, both))
        share = f"{both['share_of_limit']:.0%} ({both['limit']['by']})"
        lines.append(f"| {both['sweep']} | {both['case']['name']} | {speeds} | {memory} | {share} |")
    return [*lines, "", "Ratios of medians, as above; share of the limit with the backward pass. One layer each."]


def batches(found: dict[str, Any]) -> list[str]:
    lines = ["| one layer of | width | points | threads | forward | forward+backward |", "|---" * 6 + "|"]
    for forward, both in zip(found["rows"][::2], found["rows"][1::2], strict=True):
        case = both["case"]
        speeds = " | ".join(f"{row['speedup']:.2f} x {row['faster_peer']}" for row in (forward, both))
        lines.append(f"| {case['name']} | {case['dim']} | {case['inducing']} | {both['threads']} | {speeds} |")
    return lines


def scale(found: dict[str, Any]) -> list[str]:
    lines = ["| elements | store | seconds | peak anonymous memory |", "|---|---|---|---|"]
    for row in found["larger_than_memory"]:
        peak = row["peak_anonymous_bytes"] / 1e6
        lines.append(f"| {row['elements']:,} | {row['store']} | {row['seconds']:.0f} | {peak:.0f} MB |")
    lines += ["", "| one million elements | seconds | peak extra memory |", "|---|---|---|"]
    for way, row in found["one_million"].items():
        lines.append(f"| {way} | {row['median']:.1f} | {row['extra_bytes'] / 1e6:.0f} MB |")
    processes = found["processes"]
    return [
        *lines,
        "",
        f"{found['layers']} layers and a PMA, width {found['dim']}, {found['inducing']} points, shards of "
        f"{found['shard_size']:,}.",
        f"Two processes with one thread each against one, on one set of {processes['elements']:,} elements: "
        f"{processes['speedup']:.2f} x.",
    ]


def multisets(found: dict[str, Any]) -> list[str]:
    lines = ["| layer | distinct elements | time | memory |", "|---|---|---|---|"]
    for row in found["rows"]:
        seconds, extra = row["seconds"], row["extra_bytes"]
        time = seconds["multiset"]["median"] / seconds["set"]["median"]
        memory = extra["multiset"] / extra["set"] if extra["set"] else 1.0
        lines.append(f"| {row['layer']} | {row['distinct']:,} | {time:.2f} | {memory:.2f} |")
    return [
        *lines,
        "",
        f"A multiset of {found['elements']:,} elements, as a ratio to a set of its distinct elements alone.",
    ]


def encoders(found: dict[str, Any]) -> list[str]:
    """Plain over ours, forward / forward+backward, by how many threads and what else runs."""
    ratios = {(row["case"], row["on"], row["what"]): row["ratio"] for row in found["rows"]}
    places = list(dict.fromkeys(row["on"] for row in found["rows"]))
    lines = [f"| | {' | '.join(places)} |", "|---" * (1 + len(places)) + "|"]
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        of = [[ratios.get((case, place, what)) for what in ("forward", "forward+backward")] for place in places]
        cells = (" / ".join(f"{ratio:.2f}" for ratio in both if ratio is not None) for both in of)
        lines.append(f"| {case} | {' | '.join(cells)} |")
    about = f"Forward / forward and backward. `ust` where no other encoder is named; {found['provenance']['device']}."
    return [*lines, "", about]


def busy(found: dict[str, Any]) -> list[str]:
    lines = ["| other programs | seconds, waiting awake | seconds, sleeping soon | ratio |", "|---" * 4 + "|"]
    for row in found["rows"]:
        lines.append(f"| {row['others'] or 'none'} | {row['awake']:.0f} | {row['asleep']:.0f} | {row['ratio']:.1f} |")
    of = f"{found['regions']} regions and {found['genes']} genes"
    return [*lines, "", f"`omniset regions fit` of {of}, {found['processors']} processors; one run each."]


def ensembles(found: dict[str, Any]) -> list[str]:
    lines = ["| study | networks | ms of one | ms of ten at once | ratio |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        cells = (f"{row[key]:.{digits}f}" for key, digits in (("ms_of_one", 1), ("ms_of_ten", 1), ("ratio", 1)))
        lines.append(f"| {row['study']} | {row['training']} | {' | '.join(cells)} |")
    return [*lines, "", f"A training step, {_threads(found)}, {found['provenance']['device']}."]


def study(name: str) -> Callable[[dict[str, Any]], list[str]]:
    """All tables of a study in which anything was run."""

    def lines(_: dict[str, Any]) -> list[str]:
        made: list[str] = []
        left_out = []
        for table in tables_of(name, RESULTS / "studies" / name):
            if not table.rows:
                left_out.append(table.title)
                continue
            made += ["", f"**{table.title}**", "", *table.markdown()]
        return [*made[1:], *(["", "Not run here:", "", *(f"- {title}" for title in left_out)] if left_out else [])]

    return lines


def memory(found: dict[str, Any]) -> list[str]:
    lines = ["| command | rows | sets | peak resident memory | seconds |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        lines.append(
            f"| {row['command']} | {row['rows']:,} | {row['sets']:,} | {row['peak_mb']:.0f} MB | {row['seconds']:.0f} |"
        )
    same = "equal to the bit" if found["equal_to_the_bit"] else "NOT equal"
    return [
        *lines,
        "",
        f"{found['features']} features, one epoch, one network (`--method ust`); programs and libraries included. "
        f"Predictions of the file and of the same table in memory, {found['compared']:,} sets: {same}.",
    ]


def growth(found: dict[str, Any]) -> list[str]:
    columns = ("doubled", "command", "peak resident memory, MB", "seconds of a processor", "growth of both")
    lines, stopped = [f"| {' | '.join(columns)} |", "|---" * 5 + "|"], []
    for axis in found["axes"].values():
        sizes = list(dict.fromkeys(row["size"] for row in axis["rows"]))
        first = f"{' / '.join(f'{size:,}' for size in sizes)} {axis['of']}"
        for name in dict.fromkeys(row["command"] for row in axis["rows"]):
            rows = [row for row in axis["rows"] if row["command"] == name]
            done = [row for row in rows if "stopped" not in row]
            stopped += [f"{name} of {row['size']:,} ({axis['of']})" for row in rows if "stopped" in row]
            memory, seconds = (" / ".join(f"{row[of]:,.0f}" for row in done) for of in ("peak_mb", "cpu_seconds"))
            grown = ", ".join(f"{value:.2f}" for value in axis["growth"].get(name, {}).values())
            lines.append(f"| {first} | {name} | {memory} | {seconds} | {grown or '-'} |")
            first = ""
    over = f" Not finished within these, or for want of a model that was not: {'; '.join(stopped)}." if stopped else ""
    loads = [axis["load"] for axis in found["axes"].values()]
    over += f" Others ran beside: load {min(loads):.1f} to {max(loads):.1f}."
    return [
        *lines,
        "",
        "Growth: b in cost = constant x size^b, over the last doubling; 1 is linear. Programs and libraries, about "
        f"400 MB and 3 seconds, are included. Each run has one thread, at most {found['gigabytes']} GB and "
        f"{found['seconds']} seconds of a processor.{over}",
    ]


def coverage(found: dict[str, Any]) -> list[str]:
    lines = [
        "| sets | simulated data sets | accuracy of new sets within the interval | without the part of training "
        "| expected minus that, mean |",
        "|---|---|---|---|---|",
    ]
    for r in found["rows"]:
        alone = f"{r['inside without training']:.0%}" if "inside without training" in r else "-"
        lines.append(f"| {r['sets']} | {r['splits']} | {r['inside']:.0%} | {alone} | {r['gap']:+.3f} |")
    if (small := found.get("methods")) is None:
        return lines
    sizes = ", ".join(f"{name} {value}" for name, value in small.items())
    return [*lines, "", f"The methods of the mixture are small ones here, so that many fits are cheap: {sizes}."]


def folders(found: dict[str, Any]) -> list[str]:
    lines = ["| command | sets | folder | peak resident memory | seconds |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        what = f"{row['command']} {'of one set' if row['command'] == 'explain' else ''}".strip()
        size, seconds = f"{row['gigabytes']:.0f} GB", f"{row['seconds']:,.0f}"
        lines.append(f"| {what} | {row['sets']:,} | {size} | {row['peak_mb']:,.0f} MB | {seconds} |")
    loads = sorted(row["load"] for row in found["rows"])
    busy = " to ".join(dict.fromkeys(f"{load:.1f}" for load in (loads[0], loads[-1])))
    return [
        *lines,
        "",
        f"{found['elements']:,} elements of {found['features']:,} features a set, in 16 bits. The default mixture with "
        f"`{' '.join(found['options'])}`. In the last five minutes of each command {busy} processes were at work on "
        "the machine, these included.",
    ]


def sets_costs(found: dict[str, Any]) -> list[str]:
    lines = [
        "| `fit` of | busy processes beside | seconds, each time | of processors | peak resident memory |",
        "|---" * 5 + "|",
    ]
    for (data, beside), rows in pd.DataFrame(found["rows"]).groupby(["data", "beside"]):
        seconds = ", ".join(f"{value:.0f}" for value in rows["seconds"])
        processor, peak = rows["processor"].median(), rows["peak_mb"].max()
        lines.append(f"| {data} | {beside} | {seconds} | {processor:.0f} | {peak:,.0f} MB |")
    loads = [row["load"] for row in found["rows"]]
    return [
        *lines,
        "",
        f"{found['processors']} processors; programs and libraries included. In the minute before, {min(loads):.1f} to "
        f"{max(loads):.1f} processes were at work on the machine.",
    ]


def flows(found: dict[str, Any]) -> list[str]:
    lines = ["| workers | seconds of the command | processor time of the busiest worker |", "|---|---|---|"]
    for workers, rows in found["seconds"].items():
        wall, busy = (statistics.median(row[key] for row in rows) for key in ("wall", "busy"))
        lines.append(f"| {workers} | {wall:.1f} | {busy:.1f} |")
    speedup, killed = found["speedup"], found["killed"]
    return [
        *lines,
        "",
        f"{found['parts']} parts of {found['sets']:,} sets of {found['elements']:,} elements. Two workers are "
        f"{speedup['wall']:.2f} times as fast as one, and {speedup['busy']:.2f} times by processor time, on two cores "
        f"with a load of {found['load']:.1f}. With one of two workers killed at work, {killed['equal']} of "
        f"{killed['parts']} parts are the same to the bit as those of one process.",
    ]


def genomes(found: dict[str, Any]) -> list[str]:
    shown = ("100/0", "95/0", "90/0", "70/0", "50/0", "70/5", "50/5")
    parts = (
        ("recall_missing", "recall of missing families", shown[1:]),
        ("f1", "F1", shown),
        ("auprc_missing", "AUPRC of missing families", shown[1:]),
        ("ece_missing", "ECE of missing families", shown[1:]),
    )
    scores, gates, changes = by_place(found), found["gates"], found["changes"]
    lines = []
    for key, title, conditions in parts:
        lines += ["", f"| {title} | " + " | ".join(conditions) + " |", "|---|" + "---|" * len(conditions)]
        for method in [m for c, k, m in scores if (c, k) == (conditions[0], key)]:
            cells = " | ".join(_share(scores[c, key, method]["value"]) for c in conditions)
            lines.append(f"| {method if method in found['baselines'] else f'**{method}** (ours)'} | {cells} |")
    splits = found["splits"]
    tested = " / ".join(str(s["test genomes"]) for s in splits)
    clades = " / ".join(str(s["test clades"]) for s in splits)
    lines += [
        "",
        f"Columns are completeness/contamination in percent, known to the methods. {len(splits)} splits of "
        f"{sum(splits[0][f'{part} genomes'] for part in ('training', 'validation', 'test')):,} archaea; means over "
        f"{tested} genomes of {clades} families (GTDB) that no method had seen.",
        "",
        "| asked of ours | found | 95 % interval over families | |",
        "|---|---|---|---|",
    ]
    errors, covered = ([gate for gate in gates if gate["score"] == name] for name in ("ece_missing", "covered"))
    worst = [
        _worst(errors, lambda gate: gate["high"], "ECE of missing families"),
        _worst(covered, lambda gate: -gate["low"], "share of sizes in their interval"),
    ]
    for gate in [*(gate for gate in gates if gate not in (*errors, *covered)), *worst]:
        interval = f"{gate['low']:.4f} to {gate['high']:.4f}"
        verdict = gate["verdict"] if gate["verdict"] == "holds" else f"**{gate['verdict']}**"
        lines.append(f"| {gate['gate']}, {gate['asked']} | {gate['value']:.4f} | {interval} | {verdict} |")
    lines += [
        "",
        "| genes are lost | sizes in their interval | number of missing families off by | told, in their interval "
        "| told, off by |",
        "|---|---|---|---|---|",
    ]
    for condition in dict.fromkeys(gate["condition"] for gate in covered):
        told = [
            _share(scores[condition, score, method]["value"])
            for method in ("omniset", "omniset-accessory")
            for score in ("covered", "missing_error")
        ]
        lines.append(f"| {condition} | {' | '.join(told)} |")
    lines += ["", "| precision asked: 0.95 | changes per genome | right | 95 % interval |", "|---|---|---|---|"]
    levels = ("95/0", "95/5", "90/0", "70/0", "70/5", "50/0", "50/5")
    for change, conditions in (("added", levels), ("removed", ("95/10", "50/10"))):
        for condition in conditions:
            row = scores.get((condition, f"precision_{change}", "omniset"))
            if row is not None and row["value"] is not None and row["value"] == row["value"]:
                interval = f"{row['low']:.3f} to {row['high']:.3f}"
                number = changes[condition][change]
                lines.append(f"| {change} at {condition} | {number:.1f} | {row['value']:.3f} | {interval} |")
    return lines[1:]


def genomes_costs(found: dict[str, Any]) -> list[str]:
    lines = ["| command | genomes | families | peak resident memory | seconds |", "|---|---|---|---|---|"]
    for row in found["costs"] + pictures.read("genomes_large.json")["costs"]:
        about = f"{row['command']} | {row['genomes']:,} | {row['families']:,}"
        lines.append(f"| {about} | {row['peak_mb']:,.0f} MB | {row['seconds']:,.0f} |")
    return [*lines, "", f"{_machine(found)}. Programs and libraries included."]


FITS = {"omniset": "without `--quality`", "omniset-told": "with `--quality`"}  # of models of archaea


def genomes_whole(found: dict[str, Any]) -> list[str]:
    scores, groups, splits = by_place(found), found["by_completeness"], found["splits"]
    conditions = list(dict.fromkeys(row["condition"] for row in groups))
    there = {(row["condition"], row["least"]): row for row in groups}
    lines = [
        "| completeness of the test genome | genomes | probability at 95/0 | "
        + " | ".join(f"there at {c}" for c in conditions)
        + " |",
        "|---|---|---|" + "---|" * len(conditions),
    ]
    lowest = list(dict.fromkeys(row["least"] for row in groups))
    for least, below in zip(lowest, [*lowest[1:], None], strict=True):
        of = f"{least:g} %" if below is None else f"below {below:g} %" if not least else f"{least:g} to {below:g} %"
        first = there["95/0", least]
        shares = " | ".join(_share(there[c, least]["there"]) for c in conditions)
        lines.append(f"| {of} | {first['genomes']} | {_share(first['said'])} | {shares} |")
    lines += ["", "| ECE of missing families | " + " | ".join(conditions) + " |", "|---|" + "---|" * len(conditions)]
    for of, end in (("all test genomes", ""), (f"at least {found['whole']:g} % complete", " whole")):
        for method, fit in FITS.items():
            cells = " | ".join(_with_ends(scores[f"{c}{end}", "ece_missing", method]) for c in conditions)
            lines.append(f"| {of}, {fit} | {cells} |")
    lines += [
        "",
        f"| precision asked: {found['precision']:g} | fit | added per genome | right | of the missing |",
        "|---|---|---|---|---|",
    ]
    added = {(row["condition"], row["method"]): row["added"] for row in found["added"]}
    for condition in (f"{c}{end}" for c in conditions for end in ("", " whole")):
        for method, of in FITS.items():
            right, share = (scores[condition, f"{k}_added", method] for k in ("precision", "recall"))
            number = f"{added[condition, method]:.1f}"
            lines.append(f"| {condition} | {of} | {number} | {_with_ends(right)} | {_with_ends(share)} |")
    tested, clades = (" / ".join(str(s[k]) for s in splits) for k in ("whole test genomes", "validation clades"))
    return [
        *lines,
        "",
        f"{len(splits)} splits: {' / '.join(str(s['test genomes']) for s in splits)} test genomes, of which {tested} "
        f"are whole; {clades} validation clades. In brackets: 95 % intervals over clades.",
    ]


def genomes_poor(found: dict[str, Any]) -> list[str]:
    scores, low_high = by_place(found), found["completeness"]
    names = {
        "omniset": "as they are",
        "omniset-poor": "incomplete, taken for complete",
        "omniset-poor-told": "incomplete, `--quality`",
    }
    shown = {
        "auprc_missing": "AUPRC",
        "ece_missing": "ECE of missing",
        "missing_error": "number of missing off by",
        "covered": "sizes in their interval",
        "precision_added": "additions right",
    }
    lines = [
        f"| | learned from genomes | {' | '.join(shown.values())} | added per genome |",
        "|---|---|" + "---|" * (len(shown) + 1),
    ]
    added = {(row["condition"], row["method"]): row["added"] for row in found["added"]}
    for condition in dict.fromkeys(row["condition"] for row in found["scores"]):
        for method, learned in names.items():
            cells = " | ".join(_with_ends(scores[condition, score, method]) for score in shown)
            lines.append(f"| {condition} | {learned} | {cells} | {added[condition, method]:.1f} |")
    return [
        *lines,
        "",
        f"{found['splits']} splits, {found['genomes']} test genomes that are at least {found['whole']:g} % complete. "
        f"The incomplete genomes have {low_high[0]:g} to {low_high[1]:g} % of what they had, and are said to have that "
        "within five points. In brackets: 95 % intervals over clades.",
    ]


def genomes_together(found: dict[str, Any]) -> list[str]:
    scores, splits = by_place(found), found["splits"]
    gains = {(row["condition"], row["score"], row["other"]): row for row in found["differences"]}
    names = {
        "omniset": "omniset, one by one",
        "omniset-together": "**omniset, together**",
        "knn-likelihood": "knn-likelihood, one by one",
        "knn-likelihood-together": "knn-likelihood, together",
    }
    compared = {"auprc_missing": "AUPRC of missing", "auprc_foreign": "AUPRC of foreign", "f1": "F1"}
    more = {
        "precision_added": "additions right",
        "recall_added": "of the missing added",
        "ece_missing": "ECE of missing",
        "covered": "sizes in their interval",
    }
    lines = [
        f"| | | {' | '.join(f'{text} | ours together gains' for text in compared.values())} | "
        f"{' | '.join(more.values())} |",
        "|---|---|" + "---|" * (2 * len(compared) + len(more)),
    ]
    for condition in dict.fromkeys(row["condition"] for row in found["scores"]):
        for method, name in names.items():
            cells = []
            for score in compared:
                gained = gains.get((condition, score, method))
                cells += [_share(scores[condition, score, method]["value"])]
                cells += ["" if gained is None else _with_ends(gained, "+.3f")]
            cells += [_share(scores[condition, score, method]["value"]) for score in more]
            lines.append(f"| {condition} | {name} | {' | '.join(cells)} |")
    genomes, clades = (" / ".join(str(split[key]) for split in splits) for key in ("genomes", "clades"))
    return [
        *lines,
        "",
        f"{len(splits)} splits: {genomes} test genomes of {clades} families that no method had seen; quality estimated "
        "to five points, `--precision 0.95` where it was calibrated. In brackets: 95 % intervals over families.",
    ]


def genomes_ranks(found: dict[str, Any]) -> list[str]:
    scores = by_place(found)
    lines = ["| | test genomes | method | AUPRC of missing | with ranks | gain | nats a rank |", "|---" * 7 + "|"]
    for row in found["differences"]:
        level, group = row["condition"].split(" ", 1)
        before, after = (scores[row["condition"], "auprc_missing", row[key]]["value"] for key in ("other", "method"))
        nats = " / ".join(
            f"{one['nats']:g}"
            for one in found["chosen"]
            if (one["group"], one["method"]) == (group, row["other"])
            and level == "/".join(f"{value:g}" for value in one["level"])
        )
        cells = f"{_share(before)} | {_share(after)} | {_with_ends(row, '+.3f')} | {nats}"
        lines.append(f"| {level} | {group} | {row['other']} | {cells} |")
    tried = ", ".join(f"{nats:g}" for nats in found["nats"])
    return [
        *lines,
        "",
        f"Nats are those of the splits, out of {tried}. In brackets: 95 % intervals of the gain over families.",
    ]


# F1 of the document's own model, on 4,789 COGs of genomes out of 113,102 (GTDB r220), at the noise of each row below.
ORIGINAL = (0.857, 0.855, 0.838, 0.833, 0.810)


def genomes_seed(found: dict[str, Any]) -> list[str]:
    scores, history = by_place(found), found["losses"]["seed"]
    methods = [*dict.fromkeys(row["method"] for row in found["scores"])]
    names = {"seed": "**`seed`**", "evidence": "**omniset**"}
    titles = " | ".join(names.get(method, f"`{method}`") for method in methods)
    conditions = dict.fromkeys(row["condition"] for row in found["scores"])
    lines = [f"| F1 | {titles} | the original, on its genomes |", "|---|---|" + "---|" * len(methods)]
    for condition, original in zip(conditions, ORIGINAL, strict=True):
        cells = " | ".join(_share(scores[condition, "f1", method]["value"]) for method in methods)
        lines.append(f"| {condition} | {cells} | {_share(original)} |")
    lines += ["", f"| AUPRC of missing families | {titles} |", "|---|" + "---|" * len(methods)]
    for condition in [*conditions][1:]:  # in the first none is missing
        cells = " | ".join(_share(scores[condition, "auprc_missing", method]["value"]) for method in methods)
        lines.append(f"| {condition} | {cells} |")
    losses, epochs = [epoch["val_loss"] for epoch in history], len(history)
    tenth = losses[-epochs // 10 :]
    return [
        *lines,
        "",
        f"One split, {found['training genomes']} genomes to learn from, {found['test genomes']} test genomes of "
        f"{found['clades']} families that no method had seen; {found['families']:,} gene families, of which a genome "
        f"has {found['families of a genome']:.0f}. {epochs} epochs of `seed`; its loss on validation clades went from "
        f"{losses[0]:.3f} to {losses[-1]:.3f}, and by {abs(tenth[-1] / tenth[0] - 1):.1%} in the last tenth; the least "
        f"was {min(losses):.3f}, in epoch {losses.index(min(losses)) + 1}.",
    ]


def genomes_relatives(found: dict[str, Any]) -> list[str]:
    scores = by_place(found)
    gaps = {(r["condition"], r["other"]): r for r in found["differences"] if r["score"] == "auprc_missing"}
    others = dict.fromkeys(other for _, other in gaps)
    columns = " | ".join("ours minus " + ("before" if name == "omniset-first" else f"`{name}`") for name in others)
    lines = [f"| AUPRC of missing families | ours | {columns} |", "|---|---|" + "---|" * len(others)]
    for condition in found["genomes"]:
        level, group = condition.split(" ", 1)
        cells = [_share(scores[condition, "auprc_missing", "omniset"]["value"])]
        for other in others:
            cells.append(_with_ends(gaps[condition, other], "+.3f"))
        lines.append(f"| {level}, relatives {group} | {' | '.join(cells)} |")
    groups = ("learned", "kept back")
    clades = {group: " / ".join(str(split[f"{group} clades"]) for split in found["splits"]) for group in groups}
    families = " / ".join(f"{s['families'] - s['first families']} of {s['families']:,}" for s in found["splits"])
    return [
        *lines,
        "",
        f"{len(found['splits'])} splits: test genomes of {clades['learned']} clades that were learned from, and of "
        f"{clades['kept back']} that were kept back; {families} families were added to the vocabulary. In brackets: "
        "95 % intervals over clades.",
    ]


def _worst(gates: list[dict[str, Any]], badness: Callable[[dict[str, Any]], float], text: str) -> dict[str, Any]:
    """The gate that speaks most against ours, and how many of each verdict there are."""
    order = (HOLDS, TIE, SHORT)
    numbers = Counter(gate["verdict"] for gate in gates)
    worst = max(gates, key=lambda gate: (order.index(gate["verdict"]), badness(gate)))
    told = ", ".join(f"{verdict} at {numbers[verdict]}" for verdict in order if numbers[verdict])
    return worst | {"gate": f"{text}, worst of {len(gates)} levels ({told}): {worst['condition']}"}


def _with_ends(row: dict[str, Any], how: str = ".3f") -> str:
    """A value and its interval, of a score or a difference."""
    value, low, high = (row[key] for key in ("value", "low", "high"))
    if value is None or value != value:
        return "-"
    ends = "" if low is None or low != low else f" ({low:{how}} to {high:{how}})"
    return f"{value:{how}}{ends}"


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3f}"


def cells(found: dict[str, Any]) -> list[str]:
    comparison, seeds = recorded.read(found)
    lines = ["| method | total | bio | batch | new batch: kNN | linear | fit, seconds |", "|---" * 7 + "|"]
    for method in comparison.methods:
        whole = [comparison.interval(score, "all cells", method).value for score in ("total", "bio", "batch")]
        scores = [f"{whole[0]:.3f} ({seeds.low[method]:.3f} to {seeds.high[method]:.3f})"]
        scores += [f"{value:.3f}" for value in whole[1:]]
        scores += [_new_batch(comparison, score, method) for score in ("knn_f1", "linear_f1")]
        name = f"**{method}** (ours)" if method == "omniset" else method
        lines.append(f"| {name} | {' | '.join(scores)} | {seeds.seconds[method]:.1f} |")
    batches = max(gate.interval.units for gate in comparison.gates)
    lines += [
        "",
        f"Means over {len(found['seeds'])} seeds. In brackets: lowest and highest seed; of {batches} new batches a "
        "95 % interval.",
    ]
    lines += ["", "| asked of ours | value | 95 % interval | |", "|---|---|---|---|"]
    for gate in comparison.gates:
        low, high = gate.interval.low, gate.interval.high
        interval = "-" if low != low else f"{low:.3f} to {high:.3f}"
        lines.append(f"| {gate.gate}, {gate.asked} | {gate.interval.value:.3f} | {interval} | {gate.verdict} |")
    checks = found["checks"]
    lines += [
        "",
        f"Vectors of two fits of one seed differ by {checks['determinism']:g}; training took "
        f"{checks['training_seconds']:.0f} s; {checks['cells_per_second']:,.0f} cells were embedded per second.",
    ]
    return lines


def cells_annotate(found: dict[str, Any]) -> list[str]:
    values = {(row["condition"], row["score"], row["method"]): row for row in found["scores"] if row["units"]}
    texts = {"f1": "macro-F1", "right": "accuracy", "ece": "calibration error", "kept": "kept"}
    texts |= {"auroc": "AUROC of unknown", "found": "found"}
    asked = {"half labelled": ("f1", "right", "ece"), "new batches": ("f1", "right", "ece", "kept")}
    asked["types removed"] = ("auroc", "found", "kept")
    there = {condition: scores for condition, scores in asked.items() if condition in {key[0] for key in values}}
    heads = [f"{condition}: {' | '.join(texts[name] for name in scores)}" for condition, scores in there.items()]
    columns = [(condition, name) for condition, scores in there.items() for name in scores]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for method in dict.fromkeys(row["method"] for row in found["scores"]):
        cells = []
        for condition, score in columns:
            row = values.get((condition, score, method), {"value": None})
            if row["value"] is None:
                cells.append("-")
                continue
            ends = "" if row["low"] is None else f" ({row['low']:.3f} to {row['high']:.3f})"
            cells.append(f"{row['value']:.3f}{ends}")
        lines.append(f"| {f'**{method}** (ours)' if method == 'omniset' else method} | {' | '.join(cells)} |")
    lines += ["", "| asked of ours | value | 95 % interval | |", "|---|---|---|---|"]
    for gate in found["gates"]:
        ends = "-" if gate["low"] is None else f"{gate['low']:.3f} to {gate['high']:.3f}"
        lines.append(f"| {gate['gate']}, {gate['asked']} | {gate['value']:.3f} | {ends} | {gate['verdict']} |")
    lines += ["", f"Intervals are of {found['units']:,} {found['unit']}s."]
    if perfect := found.get("calibrated"):
        lines[-1] += (
            " Were every stated probability of ours right, the calibration error, half labelled, would be "
            f"{perfect['mean']:.3f} in the mean, and at most {perfect['high']:.3f} in 95 of 100 draws."
        )
    return lines


def cells_perturb(found: dict[str, Any]) -> list[str]:
    scores = ("pearson_top", "pearson", "overlap", "energy")
    values = {(row["condition"], row["method"], row["score"]): row["value"] for row in found["scores"]}
    head = "| left out | method | Pearson of changes, 50 genes | all genes | overlap | energy distance |"
    lines = [head, "|---" * 6 + "|"]
    for condition, method in dict.fromkeys(key[:2] for key in values):
        name = f"**{method}** (ours)" if method == "omniset" else method
        cells = " | ".join(f"{values[condition, method, score]:.3f}" for score in scores)
        lines.append(f"| {condition} | {name} | {cells} |")
    lines += ["", "| asked of ours | value | 95 % interval | |", "|---|---|---|---|"]
    for gate in found["gates"]:
        ends = "-" if gate["low"] is None else f"{gate['low']:.3f} to {gate['high']:.3f}"
        lines.append(f"| {gate['gate']}, {gate['asked']} | {gate['value']:.3f} | {ends} | {gate['verdict']} |")
    return [*lines, "", f"Intervals are of {found['units']} {found['unit']}s."]


def _new_batch(comparison: Comparison, score: str, method: str) -> str:
    interval = comparison.interval(score, "new batches", method)
    if interval.value != interval.value:
        return "-"
    ends = "" if interval.low != interval.low else f" ({interval.low:.3f} to {interval.high:.3f})"
    return f"{interval.value:.3f}{ends}"


def cells_seed(found: dict[str, Any]) -> list[str]:
    lines = ["| model | epochs | loss of the first | of the last | total | bio | batch |", "|---" * 7 + "|"]
    for row in found["models"]:
        first, *_, last = (epoch["train_loss"] for epoch in row["history"])
        scores = " | ".join(_share(row[score]) for score in ("total", "bio", "batch"))
        lines.append(f"| {row['model']} | {len(row['history'])} | {first:.2f} | {last:.2f} | {scores} |")
    said = " ".join(f"`{row['model']}`: {row['settled']}." for row in found["models"])
    return [*lines, "", f"{said} The losses are of different kinds, and are not to be compared."]


def cells_costs(found: dict[str, Any]) -> list[str]:
    lines = ["| command | cells | peak resident memory | seconds | cells per second |", "|---" * 5 + "|"]
    for row in found["rows"]:
        command, seconds = f"{row['command']}, {row['data']}", row["seconds"]
        about = f"{row['cells']:,} | {row['peak_mb']:,.0f} MB | {seconds:,.0f} | {row['cells'] / seconds:,.0f}"
        lines.append(f"| {command} | {about} |")
    read = "The simulated cells are read in blocks from a sparse file; one epoch. Programs and libraries included."
    return [*lines, "", f"{_machine(found)}. {read}"]


def cells_panels(found: dict[str, Any]) -> list[str]:
    """Cells that lack genes: means over models and panels."""
    keys = ("shift", "moved", "itself", "near")
    titles = ("shift of the mean", "a cell moves", "nearest is itself", "among the 15 nearest")
    lines = [f"| data | genes left out | they are | {' | '.join(titles)} |", "|---" * 7 + "|"]
    rows = pd.DataFrame(found["rows"])
    for (data, lacking, how), some in rows.groupby(["data", "lacking", "genes"], sort=False):
        shift, moved, itself, near = some[list(keys)].mean()
        mark = "**" if how == "filled in" else ""
        lines.append(
            f"| {data} | {lacking:.0%} | {mark}{how}{mark} | {shift:.2f} | {moved:.2f} | {itself:.0%} | {near:.0%} |"
        )
    models, draws = rows["seed"].nunique(), rows["draw"].nunique()
    of = many(models, "model")
    lines += ["", "| data | genes left out | called as in the file | unknown |", "|---" * 4 + "|"]
    for (data, lacking), some in pd.DataFrame(found["calls"]).groupby(["data", "lacking"], sort=False):
        right, unknown = some[["right", "unknown"]].mean()
        lines.append(f"| {data} | {lacking:.0%} | {right:.1%} | {unknown:.1%} |")
    return [*lines, "", f"Means over {of} and {draws} panels of genes, drawn from all genes of the file."]


def cells_ablations(found: dict[str, Any]) -> list[str]:
    """Variants by total, the default among them."""
    both, whole = recorded.read(found["both"])[0], recorded.read(found["transductive"])[0]
    lines = ["| Kang's cells | total | bio | batch | new batch: kNN | linear |", "|---" * 6 + "|"]
    measured = dict.fromkeys(whole.methods, whole) | dict.fromkeys(both.methods, both)
    rows = {
        method: [where.interval(score, "all cells", method).value for score in ("total", "bio", "batch")]
        + [both.interval(score, "new batches", method).value for score in ("knn_f1", "linear_f1")]
        for method, where in measured.items()
    }
    ranked = sorted((item for item in rows.items() if item[1][0] == item[1][0]), key=lambda item: -item[1][0])
    for method, values in ranked:
        scores = ["-" if value != value else f"{value:.3f}" for value in values]
        lines.append(f"| {'**default**' if method == 'omniset' else method} | {' | '.join(scores)} |")
    seeds = ", ".join(map(str, found["both"]["seeds"]))
    said = f"Seed {seeds} of one data set: small differences say nothing. Dash: no batch was left out."
    return [*lines, "", said]


def cells_alignment(found: dict[str, Any]) -> list[str]:
    """Total by weight and number of clusters, and how well batches mix: the mean over seeds, least and most."""
    rows = {data: pd.DataFrame(of["transductive"]) for data, of in found["data"].items()}
    head = " | ".join(f"{data}: total | bio | batch" for data in rows)
    lines = [f"| alignment | {head} |", "|---" * (3 * len(rows) + 1) + "|"]
    first = next(iter(rows.values()))
    for method in first["method"].unique():
        cells = []
        for of in rows.values():
            some = of[of["method"] == method]
            total = some["total"]
            cells += [f"{total.mean():.3f} ({total.min():.3f} to {total.max():.3f})"]
            cells += [f"{some[score].mean():.3f}" for score in ("bio", "batch")]
        named = "**default**" if method == "omniset" else method
        lines.append(f"| {named} | {' | '.join(cells)} |")
    return [*lines, "", f"Means of {many(first['seed'].nunique(), 'seed')}; in brackets the least and the most."]


def sets(found: dict[str, Any]) -> list[str]:
    """AUROC and log loss of each method by data set, the best single method in bold."""
    values = {(row["condition"], row["score"], row["method"]): row["value"] for row in found["scores"]}
    data = list(dict.fromkeys(row["data"] for row in found["against the best single"]))
    methods = list(dict.fromkeys(method for _, _, method in values))
    best = {(row["data"], row["score"]): row["best"] for row in found["against the best single"]}
    lines = [f"| AUROC / log loss | {' | '.join(data)} |", "|---" * (len(data) + 1) + "|"]
    for method in methods:
        cells = []
        for name in data:
            pair = [f"{values[name, score, method]:.3f}" for score in ("AUROC", "log loss")]
            marks = [best[name, score] == method for score in ("AUROC", "log loss")]
            cells.append(" / ".join(f"**{x}**" if mark else x for x, mark in zip(pair, marks, strict=True)))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    gaps = [
        f"{row['data']} {row['value']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        for row in found["against the best single"]
        if row["score"] == "AUROC"
    ]
    repeats = {*found["repeats"].values()}
    dealt = "dealt " + ", ".join(f"{number} times ({name})" for name, number in found["repeats"].items())
    if len(repeats) == 1:
        dealt = "dealt once" if repeats == {1} else f"dealt {repeats.pop()} times"
    rules = pd.DataFrame(found["against other rules"]).groupby(["rule", "score"], sort=False)["value"].mean().unstack()
    means = [f"{rule} {row['AUROC']:+.3f} and {row['log loss']:+.3f}" for rule, row in rules.iterrows()]
    text = (
        f"Five folds, {dealt}; the default learns its weights within the other four. Bold: the best single method of "
        f"that data set, chosen on the same sets that it is shown on. Ours minus that one, AUROC with a 95 % interval "
        f"over sets: {', '.join(gaps)}; `noise` is there to see that nothing is found. Ours minus other rules to "
        "combine the same methods, AUROC and log loss, mean over the data sets: "
        f"{'; '.join(means)}. {found['looks']}"
    )
    return [*lines, "", text]


def sets_heavy(found: dict[str, Any]) -> list[str]:
    """R2 of each method by simulation, and what ours has more than the strongest of the others on the same sets."""
    values = {(row["condition"], row["method"]): row["value"] for row in found["scores"] if row["score"] == "R2"}
    data, methods = (list(dict.fromkeys(key[i] for key in values)) for i in (0, 1))
    lines = [f"| R2 | {' | '.join(data)} |", "|---" * (len(data) + 1) + "|"]
    lines += [f"| {method} | {' | '.join(f'{values[name, method]:.3f}' for name in data)} |" for method in methods]
    gaps = []
    for name in data:
        each = [r for r in found["differences"] if (r["score"], r["method"], r["condition"]) == ("R2", "omniset", name)]
        row = min(each, key=lambda row: row["value"])
        gaps.append(f"{row['other']} {row['value']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})")
    text = f"Learned from {found['learned from']} persons, {many(found['dealings'], 'dealing')}, tested on "
    text += f"{found['scores'][0]['units']:,} others. Ours minus the strongest method, 95 % intervals over persons: "
    return [*lines, "", f"{text}{'; '.join(gaps)}."]


def regions(found: dict[str, Any]) -> list[str]:
    """Methods by Pearson's r; what is neither a baseline nor the document's network is ours."""
    from omniset.regions.options import BASELINES

    lines = ["| method | Pearson's r | Spearman | R2 | slope | fit, seconds |", "|---" * 6 + "|"]
    for method, row in found["table"].items():
        theirs = method in BASELINES or method.startswith("seed")  # the document's network
        name = method if theirs else f"**{method}** (ours)"
        r = f"{row['pearson']:.3f}"
        r += f" ({row['pearson_low']:.3f} to {row['pearson_high']:.3f})" if "unit" in found else ""
        rest = [f"{row[s]:.3f}" if row.get(s) is not None else "-" for s in ("spearman", "r2", "slope")]
        lines.append(f"| {name} | {r} | {' | '.join(rest)} | {row['seconds']:.1f} |")
    number = len(found["seeds"])
    divided = f"{number} seeds x {found['folds']} folds" if number > 1 else f"{found['folds']} folds of one seed"
    interval = ", in brackets a 95 % interval over brain regions" if "unit" in found else ""
    said = f"{found['regions']} regions, {found['genes']} genes; {found['split']} split, {divided}{interval}."
    if found.get("twinned") is not None:
        said += f" The mirror image of {found['twinned']:.0%} of the test pairs is learned from."
    lines += ["", said] + (["", found["genes_add"]] if found.get("genes_add") else [])
    for gate in found["gates"]:
        ends = f"({gate['low']:+.3f} to {gate['high']:+.3f})"
        lines += ["", f"{gate['gate']}, asked {gate['asked']}: {gate['value']:+.3f} {ends}, {gate['verdict']}."]
    return lines


def regions_nulls(found: dict[str, Any]) -> list[str]:
    """A closed form beside maps that mean nothing."""
    lines = [
        "| kernel ridge of | null | observed | mean of nulls | gain (of 95 % of nulls) | nulls | p |",
        "|---" * 7 + "|",
    ]
    for one in found["nulls"]:
        gain = f"{one['gain']:+.3f} ({one['gain_low']:+.3f} to {one['gain_high']:+.3f})"
        numbers = f"{one['observed']:.3f} | {one['mean']:.3f} | {gain} | {one['nulls']:,} | {one['p']:.3g}"
        lines.append(f"| {one['what']} | {one['null']} | {numbers} |")
    return lines


def regions_costs(found: dict[str, Any]) -> list[str]:
    lines = ["| command | regions | peak resident memory | seconds |", "|---|---|---|---|"]
    for row in found["rows"]:
        command = f"{row['command']}, {row['data']}"
        lines.append(f"| {command} | {row['regions']:,} | {row['peak_mb']:.0f} MB | {row['seconds']:.0f} |")
    return [*lines, "", f"{_machine(found)}; the default, 10,000 simulated genes. Programs and libraries included."]


def _machine(found: dict[str, Any]) -> str:
    """Threads and processor that seconds were measured on."""
    about = found["provenance"]
    return f"{many(about['threads'], 'thread')} of {about['device'].removeprefix('cpu: ')}"


def _microbiome_scores(found: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Of each condition the scores of all methods, means over seeds."""
    scores = pd.DataFrame(found["scores"]).pivot_table("value", ["condition", "method"], "score", sort=False)
    pooled = pd.DataFrame(found["pooled"]).drop(columns="seed").groupby(["condition", "method"]).mean()
    scores = scores.join(pooled, how="inner")
    return {str(name): some.droplevel(0) for name, some in scores.groupby(level=0, sort=False)}


def _reads_of(condition: str) -> int:
    return int(condition.split(", ")[1].removesuffix(" reads").replace(",", ""))


def microbiomes(found: dict[str, Any]) -> list[str]:
    """Methods by accuracy in known communities, and what is asked of ours."""
    from benchmarks.programs import PROGRAMS
    from omniset.microbiomes.evaluate import BASELINES, KNOWN, NEW, UNKNOWN

    tables, rank = _microbiome_scores(found), found["ranks"][0]
    known_name, new_name, unknown_name = (
        min((name for name in tables if name.startswith(kind)), key=_reads_of) for kind in (KNOWN, NEW, UNKNOWN)
    )
    known, new, unknown = tables[known_name], tables[new_name], tables[unknown_name]
    known = known.sort_values(f"{rank}_accuracy", ascending=False)
    parts = [
        ("known communities", known[f"{rank}_accuracy"]),
        ("by sequence", known[f"{rank}_accuracy_by_sequence"]),
        ("macro-F1", known[f"{rank}_macro_f1"]),
        ("family", known["family_accuracy"]),
        ("new communities", new[f"{rank}_accuracy"]),
        ("calibration error", unknown["calibration_error"]),
        ("unknown told, AUROC", unknown["rejection_auroc"]),
        ("fit, seconds", known["seconds"]),
    ]
    lines = [f"| method | {' | '.join(name for name, _ in parts)} |", "|---" * (len(parts) + 1) + "|"]
    for method in known.index:
        cells = [f"{values[method]:{'.0f' if 'seconds' in name else '.4f'}}" for name, values in parts]
        lines.append(
            f"| {method if method in {*BASELINES, *PROGRAMS} else f'**{method}** (ours)'} | {' | '.join(cells)} |"
        )
    sizes, seeds = found["sizes"], len({row["seed"] for row in found["pooled"]})
    lines += [
        "",
        f"Accuracy at the rank of {rank}, by reads where nothing else is said, samples of {_reads_of(known_name):,} "
        f"reads; calibration and unknown taxa in samples of {_reads_of(unknown_name):,} reads, of which a tenth is of "
        f"unknown taxa. {seeds} seeds, each with its own split: {sizes['taxa']:,} taxa, "
        f"{sizes['training sequences']:,} training and {sizes['test sequences']:,} test sequences in the first. CPU "
        f"threads: {found['provenance']['threads']}. {found['looks']}",
        "",
    ]
    lines += ["| asked of ours | asked | value | 95 % interval over communities | |", "|---|---|---|---|---|"]
    for gate in found["gates"]:
        interval = f"{gate['low']:+.4f} to {gate['high']:+.4f}"
        lines.append(f"| {gate['gate']} | {gate['asked']} | {gate['value']:+.4f} | {interval} | {gate['verdict']} |")
    gaps = [
        f"{row['other']} {row['value']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
        for row in found["differences"]
        if row["condition"] == new_name and row["score"] == f"{rank}_accuracy" and row["other"] in PROGRAMS
    ]
    if gaps:
        text = f"Ours minus programs that others have made, in {new_name}, 95 % interval over communities: "
        lines += ["", *textwrap.wrap(f"{text}{', '.join(gaps)}.", 120)]
    return lines


def microbiome_sizes(found: dict[str, Any]) -> list[str]:
    from omniset.microbiomes.evaluate import KNOWN

    rank = found["ranks"][0]
    tables = {name: table for name, table in _microbiome_scores(found).items() if name.startswith(KNOWN)}
    names = sorted(tables, key=_reads_of)
    lines = [
        f"| reads | {' | '.join(f'{_reads_of(name):,}' for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for method in tables[names[0]].index:
        cells = [f"{tables[name].loc[method, f'{rank}_accuracy']:.4f}" for name in names]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def microbiome_costs(found: dict[str, Any]) -> list[str]:
    lines = ["| command | seconds | peak resident memory |", "|---|---|---|"]
    for row in found["rows"]:
        lines.append(f"| {row['command']} | {row['seconds']:.0f} | {row['peak_mb']:,.0f} MB |")
    rates = [f"{rate:,.0f} of them in {name}" for name, rate in found["per_second"].items()]
    text = (
        f"{_threads(found)}, programs and libraries included. The million reads are of "
        f"{found['distinct']:,} sequences; in a second there go {' and '.join(rates)}."
    )
    return [*lines, "", *textwrap.wrap(text, 120)]


def microbiome_agreement(found: dict[str, Any]) -> list[str]:
    from omniset.microbiomes.assignments import share_of

    lines = ["| rank | same name, by reads | by sequences | compared, of all reads |", "|---|---|---|---|"]
    for row in found["agreement"]:
        shares = " | ".join(share_of(row[key]) for key in ("by_reads", "by_sequences", "compared_reads"))
        lines.append(f"| {row['rank']} | {shares} |")
    return lines


def fuzz(found: dict[str, Any]) -> list[str]:
    kinds = ("files", "read", "refused", "unclear", "nonsense", "traceback", "memory", "hang", "crash")
    groups: dict[str, dict[str, int]] = {}
    for name, row in found["formats"].items():
        group = groups.setdefault(name.partition("/")[0], {"formats": 0, **dict.fromkeys(kinds, 0)})
        group["formats"] += 1
        for kind in kinds:
            group[kind] += row[kind]
    groups["all"] = {kind: sum(group[kind] for group in groups.values()) for kind in ("formats", *kinds)}
    names = ("formats", "files", "read", "refused", "unclear", "nonsense", "traceback", "memory", "hang", "crash")
    lines = [f"| | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    lines += [f"| {name} | {' | '.join(f'{group[kind]:,}' for kind in names)} |" for name, group in groups.items()]
    return [
        *lines,
        "",
        *textwrap.wrap(
            f"Seed {found['provenance']['seed']}, {found['files_of_each']} files of each format, "
            f"{found['seconds']:g} seconds and {found['memory_gib']} GiB for each. Read: as it stands, or in spite of "
            "the damage. Refused: in one line that names the file. Unclear: in one that does not, or in a library's "
            "words. Nonsense: read, but with numbers that no such file may have.",
            120,
        ),
    ]


def interruptions(found: dict[str, Any]) -> list[str]:
    kinds = ("runs", "lost", "mixed", "unequal", "left", "exit", "traceback")
    groups: dict[str, dict[str, int]] = {}
    for name, row in found["verbs"].items():
        group = groups.setdefault(name.partition(" ")[0], {"verbs": 0, **dict.fromkeys(kinds, 0)})
        group["verbs"] += 1
        for kind in kinds:
            group[kind] += row[kind]
    groups["all"] = {kind: sum(group[kind] for group in groups.values()) for kind in ("verbs", *kinds)}
    names = ("verbs", *kinds)
    lines = [f"| | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    lines += [f"| {name} | {' | '.join(f'{group[kind]:,}' for kind in names)} |" for name, group in groups.items()]
    return [
        *lines,
        "",
        *textwrap.wrap(
            f"Each verb ended at {found['moments']} moments in each of four ways: SIGKILL, SIGINT, SIGTERM, a full "
            "disk. Lost: files that were there and that the run did not make. Mixed: files of two runs in one folder. "
            "Unequal: the same command, run again, does not give what an uninterrupted one gives. Left: temporary "
            "files that stay. Exit: another status than 130, 143 or 2. Traceback: one is shown.",
            120,
        ),
    ]


REGIONS = (("100", "bilateral"), ("100", "spatial"), ("400", "bilateral"), ("400", "spatial"))
REGIONS += (("100_structural", "bilateral"), ("100_structural", "spatial"))
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
    "five": ("exactness.json", five),
    "demo": ("demo.json", demo),
    "exactness": ("exactness.json", exactness),
    "author": ("author.json", author),
    "speed": ("benchmarks/speed.json", speed),
    "faults": ("benchmarks/speed.json", faults),
    "speed_older": ("benchmarks/speed_older.json", speed),
    "grid": ("benchmarks/grid.json", grid),
    "batches": ("benchmarks/batches.json", batches),
    "scale": ("benchmarks/scale.json", scale),
    "multisets": ("benchmarks/multisets.json", multisets),
    "memory": ("benchmarks/memory.json", memory),
    "growth": ("benchmarks/growth.json", growth),
    "encoders": ("benchmarks/encoders.json", encoders),
    "busy": ("benchmarks/busy.json", busy),
    "ensembles": ("benchmarks/ensembles.json", ensembles),
    "study_mnist_points": ("studies/mnist-points/isab.json", study("mnist-points")),
    "study_mixture": ("studies/mixture-of-gaussians/ust-msa-8.json", study("mixture-of-gaussians")),
    "study_taxonomy": ("studies/taxonomy/isab.json", study("taxonomy")),
    "study_max": ("studies/max-regression/isab.json", study("max-regression")),
    "study_max_parts": ("studies/max-parts/umbc.json", study("max-parts")),
    "study_max_settings": ("studies/max-settings/plain.json", study("max-settings")),
    "study_point_shapes": ("studies/point-shapes/ust.json", study("point-shapes")),
    "study_ablation": ("studies/ablation/umbc-both.json", study("ablation")),
    "study_anomaly": ("studies/anomaly/isab.json", study("anomaly")),
    "sets": ("sets/methods.json", sets),
    "conditions": ("sets/methods.json", conditions_of),
    "coverage": ("sets/coverage.json", coverage),
    "sets_heavy": ("sets/heavy.json", sets_heavy),
    "sets_costs": ("sets/costs.json", sets_costs),
    "folders": ("sets/folders.json", folders),
    "flows": ("flows.json", flows),
    "interruptions": ("interruptions.json", interruptions),
    "genomes": ("genomes.json", genomes),
    "genomes_whole": ("genomes_whole.json", genomes_whole),
    "genomes_poor": ("genomes_poor.json", genomes_poor),
    "genomes_together": ("genomes_together.json", genomes_together),
    "genomes_ranks": ("genomes_ranks.json", genomes_ranks),
    "genomes_seed": ("genomes_seed.json", genomes_seed),
    "genomes_relatives": ("genomes_relatives.json", genomes_relatives),
    "genomes_costs": ("genomes_costs.json", genomes_costs),
    "cells_kang": ("cells/kang.json", cells),
    "cells_baron": ("cells/baron.json", cells),
    "cells_annotate_baron": ("cells/annotate_baron.json", cells_annotate),
    "cells_annotate_kang": ("cells/annotate_kang.json", cells_annotate),
    "cells_annotate_pbmc68k": ("cells/annotate_pbmc68k.json", cells_annotate),
    "cells_perturb_kang": ("cells/perturb_kang.json", cells_perturb),
    "cells_ablations": ("cells/ablations.json", cells_ablations),
    "cells_alignment": ("cells/alignment.json", cells_alignment),
    "cells_panels": ("cells/panels.json", cells_panels),
    "cells_costs": ("cells/costs.json", cells_costs),
    "cells_seed": ("cells/seed.json", cells_seed),
    **{f"regions_{n}_{split}": (f"regions/schaefer_{n}_{split}.json", regions) for n, split in REGIONS},
    "regions_nulls": ("regions/nulls.json", regions_nulls),
    "regions_nulls_400": ("regions/nulls_400.json", regions_nulls),
    "regions_networks": ("regions/networks.json", regions),
    "regions_costs": ("regions/costs.json", regions_costs),
    "regions_seed": ("regions/seed.json", regions),
    "microbiomes": ("microbiomes/contax.json", microbiomes),
    "microbiome_sizes": ("microbiomes/contax.json", microbiome_sizes),
    "microbiome_costs": ("microbiomes/costs.json", microbiome_costs),
    "fuzz": ("fuzz.json", fuzz),
    "microbiome_agreement": ("microbiomes/costs.json", microbiome_agreement),
    **SENTENCES,
}


def render(text: str) -> str:
    """The text with every table made anew."""

    def table(match: re.Match[str]) -> str:
        if match[1] not in TABLES:
            return match[0]
        file, make = TABLES[match[1]]
        found = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        lines = [part for line in make(found) for part in (wrapped(line) or [""])]
        return "\n".join([f"<!-- results:{match[1]} -->", "", *lines, "", "<!-- end -->"])

    return re.sub(r"<!-- results:(\w+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def wrapped(line: str) -> list[str]:
    """Rows of tables as they are, sentences as the pages have them."""
    return [line] if line.startswith("|") else textwrap.wrap(line, 120, break_long_words=False, break_on_hyphens=False)


def draw() -> None:
    """The figures of systems and studies, from their results."""
    pictures.draw()
    for name in STUDIES:
        if (folder := RESULTS / "studies" / name).exists():
            for file, figure in load(name).figures(Results.read(folder)).items():
                save(figure, ROOT / "docs" / "images" / f"{file}.png")


def write() -> None:
    """All pages, with the tables of what results/ holds now."""
    for page in PAGES:
        with replacing(page) as temporary:
            temporary.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    draw()
    write()
