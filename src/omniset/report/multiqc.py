"""Files that MultiQC collects: run it above any number of runs and it shows them in one report.

They follow MultiQC's "custom content": a JSON file whose name ends in _mqc.json holds one section. Files of several
runs whose `id` is the same are shown together, a row or a line for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omniset.runs.files import writable_folder, write_json
from omniset.trials.comparison import Comparison
from omniset.trials.outcomes import Metric

PARENT = {
    "parent_id": "omniset",
    "parent_name": "Omniset",
    "parent_description": "Models of sets, trained and evaluated with omniset.",
}


def of_ours(comparison: Comparison) -> dict[str, list[Metric]]:
    """The scores of ours by condition, as `write` takes them."""
    metrics: dict[str, list[Metric]] = {}
    for condition in comparison.conditions:
        for score in comparison.scores:
            interval = comparison.interval(score.name, condition, comparison.ours)
            if not math.isnan(interval.value):
                metric = Metric(score.name, interval.value, interval.low, interval.high, score.text)
                metrics.setdefault(condition, []).append(metric)
    return metrics


def write(
    folder: str | Path,
    sample: str,
    metrics: Mapping[str, Sequence[Metric]],
    histories: Mapping[str, list[dict[str, Any]]],
) -> list[Path]:
    """Write a table of the metrics and a line graph per quantity of the learning curves; files of nothing are left out.

    Args:
        sample: Name of the run. Runs that share a name overwrite each other in MultiQC.
        metrics: By target or condition.
        histories: By what was trained, "" where there is one: a dict per epoch, with `epoch`, and quantities such as
            train_loss and val_loss.

    Returns:
        The files written.
    """
    folder = writable_folder(folder)
    sections = {"omniset_metrics": _table(sample, metrics)} | _curves(sample, histories)
    written = []
    for name, section in sections.items():
        if section["data"]:
            written.append(folder / f"{name}_mqc.json")
            write_json(written[-1], {"id": name, **PARENT, **section})
    return written


def _table(sample: str, metrics: Mapping[str, Sequence[Metric]]) -> dict[str, Any]:
    row, headers = {}, {}
    for target, of_target in metrics.items():
        for metric in of_target:
            if metric.value is not None:
                key = f"{target}: {metric.name}"
                row[key] = metric.value
                headers[key] = {"title": metric.name, "namespace": target, "description": metric.description}
                headers[key] |= {"format": "{:,.4f}"}
    return {
        "section_name": "Metrics",
        "plot_type": "table",
        "pconfig": {"id": "omniset_metrics_table", "title": "Omniset: metrics"},
        "headers": headers,
        "data": {sample: row} if row else {},
    }


def _curves(sample: str, histories: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    lines: dict[str, dict[str, dict[int, float]]] = {}
    for trained, history in histories.items():
        for row in history:
            for key, value in row.items():
                if key == "epoch" or not isinstance(value, (int, float)) or not math.isfinite(value):
                    continue
                part, _, name = key.partition("_") if key.startswith(("train_", "val_")) else ("", "", key)
                words = (sample, trained, {"train": "training", "val": "validation"}.get(part, ""))
                lines.setdefault(name, {}).setdefault(" ".join(filter(None, words)), {})[int(row["epoch"])] = value
    return {
        f"omniset_{name}": {
            "section_name": f"Learning curve: {name.replace('_', ' ')}",
            "plot_type": "linegraph",
            "pconfig": {
                "id": f"omniset_{name}_plot",
                "title": f"Omniset: {name.replace('_', ' ')} by epoch",
                "xlab": "epoch",
                "ylab": name.replace("_", " "),
                "x_decimals": False,
            },
            "data": data,
        }
        for name, data in lines.items()
    }
