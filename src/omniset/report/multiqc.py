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
from omniset.trials.comparison import Comparison, Score

PARENT = {
    "parent_id": "omniset",
    "parent_name": "Omniset",
    "parent_description": "Models of sets, trained and evaluated with omniset.",
}


def of_ours(comparison: Comparison) -> dict[str, list[tuple[Score, float]]]:
    """The scores of ours by condition, as `write` takes them."""
    scores = {}
    for condition in comparison.conditions:
        values = ((s, comparison.interval(s.name, condition, comparison.ours).value) for s in comparison.scores)
        scores[condition] = [(score, value) for score, value in values if not math.isnan(value)]
    return scores


def write(
    folder: str | Path,
    sample: str,
    scores: Mapping[str, Sequence[tuple[Score, float]]],
    histories: Mapping[str, list[dict[str, Any]]],
) -> list[Path]:
    """Write a table of the scores and a line graph per quantity of the learning curves; files of nothing are left out.

    Args:
        sample: Name of the run. Runs that share a name overwrite each other in MultiQC.
        scores: With their values, by target or condition.
        histories: By what was trained, "" where there is one: a dict per epoch, with `epoch`, and quantities such as
            train_loss and val_loss.

    Returns:
        The files written.
    """
    folder = writable_folder(folder)
    sections = {"omniset_metrics": _table(sample, scores)} | _curves(sample, histories)
    written = []
    for name, section in sections.items():
        if section["data"]:
            written.append(folder / f"{name}_mqc.json")
            write_json(written[-1], {"id": name, **PARENT, **section})
    return written


def _table(sample: str, scores: Mapping[str, Sequence[tuple[Score, float]]]) -> dict[str, Any]:
    row, headers = {}, {}
    for condition, of_condition in scores.items():
        for score, value in of_condition:
            key = f"{condition}: {score.name}"
            row[key] = value
            about = {"title": score.name, "namespace": condition, "description": score.text}
            headers[key] = about | {"format": "{:,.4f}"}
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
