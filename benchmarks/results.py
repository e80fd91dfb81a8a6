"""Where results go, and what is written with every one of them."""

import time
from pathlib import Path
from typing import Any

from omniset.runs.files import provenance, write_json

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


def by_place(found: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The scores of an evaluation by condition, score and method."""
    return {(row["condition"], row["score"], row["method"]): row for row in found["scores"]}
