"""Feature tables: how often each sequence was seen in each sample, from BIOM files and tables of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from omniset.microbiomes.sequences import OTHER, SHORTEST
from omniset.microbiomes.taxonomy import FEATURE, Lineage, lineage_of
from omniset.tables.files import TextFile, _short

BIOM = ("observation/ids", "sample/ids", "sample/matrix/data", "sample/matrix/indices", "sample/matrix/indptr")


@dataclass
class Samples:
    """Counts of features in samples.

    Attributes:
        names: Of the samples.
        features: Their identifiers.
        counts: (samples, features), no negative ones.
        taxa: Lineages that the table itself gives, by feature.
    """

    names: list[str]
    features: list[str]
    counts: sp.csr_array
    taxa: dict[str, Lineage] = field(default_factory=dict)

    def turned(self) -> Samples:
        """With features as samples and the other way round."""
        return Samples(self.features, self.names, sp.csr_array(self.counts.T))


def read_samples(path: str | Path) -> Samples:
    """A feature table: BIOM 2.1 (HDF5), or text with a line per feature and a column per sample, as `biom convert`
    writes it; separated by tabs, or by commas in a .csv.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Neither of these, a count that is no number or negative, a name that comes twice.
    """
    path = Path(path)
    file = TextFile(path)
    with open(path, "rb") as raw:
        start = raw.read(8)
    if start == b"\x89HDF\r\n\x1a\n":
        return _read_biom(path)
    if start.lstrip().startswith(b"{"):
        raise ValueError(f"{path} is a BIOM 1.0 file (JSON): convert it with biom convert --to-hdf5")
    return _read_text(file, "," if ".csv" in path.suffixes else "\t")


def _read_biom(path: Path) -> Samples:
    try:
        import h5py
    except ImportError:
        raise ImportError(f'{path} is a BIOM file, which needs h5py: pip install "omniset[biom]"') from None
    try:
        with h5py.File(path) as root:
            if lacking := [name for name in BIOM if name not in root]:
                raise ValueError(f"{path} is no BIOM 2.1 file: it has no {lacking[0]}")
            features, samples = (_texts(root[f"{axis}/ids"]) for axis in ("observation", "sample"))
            matrix = root["sample/matrix"]
            parts = tuple(np.asarray(matrix[name]) for name in ("data", "indices", "indptr"))
            counts = sp.csr_array(parts, shape=(len(samples), len(features)))
            counts.check_format()
            taxa = _biom_taxa(root, features)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is cut off or damaged: {' '.join(str(error).split())[:200]}") from error
    bad = ~(np.isfinite(counts.data) & (counts.data >= 0))
    if bad.any():
        where = int(bad.argmax())
        sample = int(np.searchsorted(counts.indptr, where, side="right")) - 1
        raise ValueError(
            f"{path}: sample {samples[sample]!r}, feature {features[counts.indices[where]]!r}: the count must be a "
            f"finite number >= 0, is {counts.data[where]:g}"
        )
    _refuse_twice(path, "feature", features)
    _refuse_twice(path, "sample", samples)
    counts.eliminate_zeros()
    return Samples(samples, features, counts, taxa)


def _texts(data: Any) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in data[:]]


def _biom_taxa(root: Any, features: list[str]) -> dict[str, Lineage]:
    key = "observation/metadata/taxonomy"
    if key not in root or not len(features):
        return {}
    rows = np.asarray(root[key]).reshape(len(features), -1)
    texts = ("; ".join(v.decode() if isinstance(v, bytes) else str(v) for v in row) for row in rows)
    return {name: lineage_of(text) for name, text in zip(features, texts, strict=True)}


def _read_text(file: TextFile, separator: str) -> Samples:
    names: list[str] | None = None
    features: list[str] = []
    seen: set[str] = set()
    rows: list[sp.csr_array] = []
    taxa: dict[str, Lineage] = {}
    has_taxa = False
    for row, line in file.lines():
        if not line.strip() or (names is None and line.startswith("# ")):  # "# Constructed from biom file"
            continue
        cells = [cell.strip().strip('"') for cell in line.split(separator)]
        if names is None:
            has_taxa = cells[-1].lower() in ("taxonomy", "taxon", "consensus lineage")
            names = cells[1:-1] if has_taxa else cells[1:]
            if not names or not (cells[0] == "" or cells[0].lower() in FEATURE or cells[0].startswith("#")):
                raise file.error(
                    row, f"must be a header of #OTU ID and the samples' names, starts with {_short(line[:40])}"
                )
            name, times = Counter(names).most_common(1)[0]
            if times > 1:
                raise file.error(row, f"has the sample {name!r} {times} times")
            continue
        if len(cells) != 1 + len(names) + has_taxa:
            raise file.error(row, f"has {len(cells)} fields, the header has {1 + len(names) + has_taxa}")
        if cells[0] in seen:
            raise file.error(row, f"has the feature {cells[0]!r} a second time")
        seen.add(cells[0])
        features.append(cells[0])
        if has_taxa:
            taxa[cells[0]] = lineage_of(cells.pop())
        rows.append(sp.csr_array(_numbers(file, row, cells[1:], names)[None]))
    if names is None or not features:
        raise file.error(None, "has no counts: it needs a header and a line per feature")
    return Samples(names, features, sp.csr_array(sp.vstack(rows).T), taxa)


def _numbers(file: TextFile, row: int, cells: list[str], names: list[str]) -> np.ndarray:
    try:
        values = np.array(cells, dtype=np.float64)
        bad = ~(np.isfinite(values) & (values >= 0))
    except ValueError:
        bad = np.array([not _is_number(cell) for cell in cells])
    if bad.any():
        place = int(bad.argmax())
        raise file.error(row, f"column {names[place]!r} must be a count >= 0, is {_short(cells[place])}")
    return values


def _is_number(cell: str) -> bool:
    try:
        return np.isfinite(float(cell)) and float(cell) >= 0
    except ValueError:
        return False


def _refuse_twice(path: Path, what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path} has the {what} {name!r} twice")
        seen.add(name)


def are_sequences(features: Sequence[str]) -> bool:
    """Whether the identifiers are the sequences themselves, as DADA2 has them."""
    return all(len(name) >= SHORTEST and not OTHER.search(name.upper()) for name in features)
