"""Calls as an artifact of QIIME 2: what `qiime tools import` makes of the table of taxa."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from omniset.runs.files import replacing

# The layout that every QIIME 2 from 2018.11 on reads, and the version of it that wrote it first.
VERSION = "QIIME 2\narchive: 5\nframework: 2018.11.0\n"
TYPE, FORMAT, DATA = "FeatureData[Taxonomy]", "TSVTaxonomyDirectoryFormat", "taxonomy.tsv"
CITATION = """@misc{{omniset|omniset:{version}|0,
 title = {{Omniset: learning from sets and multisets of any size}},
 version = {{{version}}}
}}
"""


def write_artifact(path: Path, table: Path, start: datetime, command: str, versions: Mapping[str, Any]) -> None:
    """A `FeatureData[Taxonomy]` of a table with columns Feature ID, Taxon and Confidence.

    A zip file with one folder, called by the artifact's UUID: VERSION, metadata.yaml, data/, checksums.md5 and
    provenance/, which says what made it. For QIIME 2 that is an import of the table; the command, and versions of what
    it ran with, are beside it. As described in "Anatomy of an archive", QIIME 2 Development Team, 2024.

    Args:
        start: When the work began.
    """
    identity, data = uuid.uuid4(), table.read_bytes()
    metadata = _yaml({"uuid": str(identity), "type": TYPE, "format": FORMAT})
    parts: dict[str, str | bytes] = {
        "VERSION": VERSION,
        "metadata.yaml": metadata,
        f"data/{DATA}": data,
        "provenance/VERSION": VERSION,
        "provenance/metadata.yaml": metadata,
        "provenance/citations.bib": CITATION.format(version=versions["omniset"]),
        "provenance/action/action.yaml": _action(data, start, command, versions),
    }
    encoded = {name: part if isinstance(part, bytes) else part.encode() for name, part in parts.items()}
    sums = "".join(
        f"{hashlib.md5(part, usedforsecurity=False).hexdigest()}  {name}\n" for name, part in encoded.items()
    )
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in {**encoded, "checksums.md5": sums.encode()}.items():
            archive.writestr(f"{identity}/{name}", part)


def _action(data: bytes, start: datetime, command: str, versions: Mapping[str, Any]) -> str:
    end = datetime.now(UTC)
    packages = {name: text for name, text in versions.items() if name in ("omniset", "torch", "numpy", "scikit-learn")}
    return _yaml(
        {
            "execution": {
                "uuid": str(uuid.uuid4()),
                "runtime": {"start": start, "end": end, "duration": f"{(end - start).total_seconds():g} seconds"},
            },
            "action": {
                "type": "import",
                "format": "TSVTaxonomyFormat",
                "manifest": [{"name": DATA, "md5sum": hashlib.md5(data, usedforsecurity=False).hexdigest()}],
            },
            "transformers": {"output": [{"from": "TSVTaxonomyFormat", "to": FORMAT}]},
            "environment": {
                "platform": sysconfig.get_platform(),
                "python": sys.version,
                "framework": {"version": "2018.11.0", "website": "https://qiime2.org"},
                "plugins": {},
                "python-packages": packages,
                "omniset": {"command": command, **versions},
            },
        }
    )


def _yaml(values: Any) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)
