"""Where results go, and what is written with every one of them."""

import time
from pathlib import Path
from typing import Any

from omniset.genomes.scores import AIMS
from omniset.genomes.suite import BASELINES
from omniset.runs.files import provenance, write_json
from omniset.trials.comparison import Gate
from omniset.trials.intervals import Interval

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def record(
    name: str, values: dict[str, Any], *, seed: int | None = None, device: str = "cpu", part_of: str | None = None
) -> Path:
    """Write results/NAME.json: the command, the date, provenance and the values.

    Args:
        part_of: The benchmark, where its results are several files.
    """
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks {part_of or path.stem}"
    head = {"command": command, "date": time.strftime("%Y-%m-%d"), "provenance": provenance(seed, device)}
    write_json(path, head | values)
    print(f"written: {path.relative_to(ROOT)}")
    return path


def of_genomes(found: dict[str, Any]) -> tuple[dict[tuple[str, str, str], Any], list[Any], dict[str, Any]]:
    """Scores by condition, score and method, gates, changes per genome; also of results of before all systems had one
    form, when our method was called evidence.
    """
    if "scores" in found:
        scores = {(row["condition"], row["score"], row["method"]): row for row in found["scores"]}
        return scores, found["gates"], found["changes"]
    scores, changes = {}, {}
    for condition, tables in found["tables"].items():
        for score, methods in tables.items():
            for method, row in methods.items():
                scores[condition, score, "omniset" if method == "evidence" else method] = row
        of_ours = {change: tables[f"precision_{change}"].get("evidence", {}) for change in ("added", "removed")}
        changes[condition] = {change: row.get("changes") for change, row in of_ours.items()}
    return scores, [gate.as_dict() for gate in _gates_of_genomes(found, scores)], changes


def _gates_of_genomes(found: dict[str, Any], scores: dict[tuple[str, str, str], Any]) -> list[Gate]:
    """Today's gates, against the best baseline, out of the differences with intervals over clades that the file has."""
    gates = []
    for aim in AIMS:
        methods = {m: row["value"] for (c, k, m), row in scores.items() if (c, k) == (aim.condition, aim.score)}
        rivals = {m: value for m, value in methods.items() if m in BASELINES}
        opponent = max(rivals, key=lambda m: rivals[m]) if aim.against == "best" else aim.against
        if opponent is None:
            row = scores[aim.condition, aim.score, "omniset"]
            ends, text = (row["value"], row["low"], row["high"]), f"{aim.score}, {aim.condition}"
        else:
            ends = found["differences"][aim.condition][opponent][aim.score]
            text = f"{aim.score}, {aim.condition}: ours minus {opponent}"
        text += " (the best baseline)" if aim.against == "best" else ""
        interval = Interval(*ends, how="bootstrap")
        gates.append(Gate(text, aim.condition, aim.score, opponent, interval, aim.bound, aim.most))
    return gates
