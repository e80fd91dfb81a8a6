"""The card of a model, README.md in its folder, as the Hugging Face hub reads it: what the files beside it say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from omniset.runs.files import replacing

NAME = "README.md"
TEXT = """---
license: unknown
library_name: omniset
tags: [omniset, {class}]
metrics: {metrics}
---

# {class}

A model of Omniset: commands take its folder as `--model`, Python takes it as
`{class}.load(folder)`. Saved by Omniset {omniset}, with Python {python}, PyTorch {torch} and NumPy {numpy}.

## Data

{facts}

{names}

## Metrics

{scores}

## Limits

{limits}
"""
NOTHING = "None: `fit` kept nothing back to measure on; `evaluate` measures."
MOST = 30  # names that are listed
FILE = re.compile(r"\w\.[A-Za-z]\w")  # what a note has that names one
WORDS = {"format_version": "version of the format", "input_dim": "features of an element"}
HOLDS = {  # of the data that it was learned from
    "GenomeCompleter": "the gene families of each reference genome, and names of genomes",
    "CellEmbedder": "names of batches, and means of cells",
    "CellAnnotator": "vectors of the labelled cells",
    "CellPerturber": "means of populations of cells, and names of donors",
    "ConnectivityPredictor": "expression and connectivity of its regions",
    "TaxonClassifier": "k-mers of the references, and profiles of samples that were given",
}


def write(folder: Path) -> None:
    """Write the card of the model in a folder that is the run's own; where there is no model, none."""
    if (folder / "config.json").is_file():
        with replacing(folder / NAME) as path:
            path.write_text(card(folder), encoding="utf-8")


def card(folder: Path) -> str:
    """Of config.json, metrics.json and, where a command fitted, report.json. No file that was read is named."""
    paths = [folder / f"{name}.json" for name in ("config", "metrics", "report")]
    config, metrics, report = (json.loads(p.read_text("utf-8")) if p.is_file() else {} for p in paths)
    measured = metrics.get("validation") or {"scores": []}
    scores, fitted = measured["scores"], config["fitted"]
    shown = [row for row in scores if row["method"] == measured["ours"] or row["score"] == scores[0]["score"]]
    on = measured.get("on") or metrics.get("on") or "data that were kept back"
    facts = {"format_version": config["format_version"], **report.get("data", {}), **fitted, **fitted.get("sizes", {})}
    facts |= {name: report[name] for name in ("regions", "genes", "pairs") if name in report}
    facts |= {name: len(fitted[name]) for name in ("targets", "types", "batches") if name in fitted}
    facts |= {"classes": sum(map(len, fitted["classes"]))} if "classes" in fitted else {}
    columns = [column["name"] for column in (fitted.get("encoding") or {}).get("columns", [])]
    names = {"Features": columns or fitted.get("features"), "Types": fitted.get("types")}
    names |= dict(zip((f"Classes of {t}" for t in fitted.get("targets", [])), fitted.get("classes", []), strict=False))
    if config["class"].startswith("Set"):
        names["Column of the set"] = [fitted["reading"].get("set_column", "set")]
    names = {what: [*some[:MOST], *["..."] * (len(some) > MOST)] for what, some in names.items() if some}
    limits = [measured.get("verdict"), *(report.get("notes") or metrics.get("notes") or [])]
    compared = (fitted.get("mixture") or {}).get("references")
    if holds := "elements of sets that it learned from, to compare with" if compared else HOLDS.get(config["class"]):
        limits.append(f"The model holds {holds}: do not pass it on if they are confidential.")
    about = {
        "metrics": json.dumps([*dict.fromkeys(row["score"] for row in shown)]),
        "facts": _table([{"what": WORDS.get(n, n), "number": v} for n, v in facts.items() if type(v) is int]),
        "names": "\n\n".join(f"{what}: `{'`, `'.join(map(str, some))}`" for what, some in names.items()),
        "scores": f"Of {on}.\n\n{_table(shown)}" if shown else NOTHING,
        "limits": "\n".join(f"- {text}" for text in limits if text and not FILE.search(text)) or "None were noted.",
    }
    return TEXT.format(**{"class": config["class"]}, **config["versions"], **about)


def _table(rows: list[dict[str, Any]]) -> str:
    texts = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [[*rows[0]], ["---"] * len(rows[0]), *texts])
