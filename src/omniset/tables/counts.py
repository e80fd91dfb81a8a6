"""Feature tables: how often each feature was seen in each sample, from BIOM files and tables of text."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from omniset.tables.files import ARTIFACT, TextFile, artifact_part, short, tidy
from omniset.tables.hdf5 import check_hdf5
from omniset.tables.sheets import look, numbers_of

HDF5 = b"\x89HDF\r\n\x1a\n"
BIOM = {  # the kinds of NumPy's types that each part may have
    **{"observation/ids": "OSUiu", "sample/ids": "OSUiu"},
    **{"sample/matrix/data": "iuf", "sample/matrix/indices": "iu", "sample/matrix/indptr": "iu"},
}
TAXA_OF_BIOM = "observation/metadata/taxonomy"
MOST = 1e15  # reads of a feature in a sample: whole numbers up to here are exact

FEATURE = (  # what a column of features' names is called
    *("feature id", "feature-id", "featureid", "feature_id", "#otu id", "#otuid", "otu id", "id", "#id", "name"),
    *("otu", "asv"),
)
TAXON = ("taxon", "taxonomy", "lineage", "consensus lineage")


@dataclass
class Samples:
    """A feature table: counts of features in samples.

    Attributes:
        names: Of the samples.
        features: Their identifiers.
        counts: (samples, features), from 0 to 1e15.
        taxa: What the table says of the features' taxa, by feature, ranks with "; " between.
    """

    names: list[str]
    features: list[str]
    counts: sp.csr_array
    taxa: dict[str, str] = field(default_factory=dict)

    def turned(self) -> Samples:
        """With features as samples and the other way round."""
        return Samples(self.features, self.names, sp.csr_array(self.counts.T))


def read_samples(path: str | Path) -> Samples:
    """A feature table: BIOM 2.1 (HDF5), also within an artifact of QIIME 2 (.qza), BIOM 1.0 (JSON), or text with a line
    per feature and a column per sample, as `biom convert` writes it; separated by tabs, or by commas in a .csv.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Neither of these, a count that is no number or negative, a name that is empty or comes twice, a
            damaged file.
    """
    path = Path(path)
    with open(TextFile(path).path, "rb") as raw:
        start = raw.read(8)
    if start == HDF5:
        return _read_biom(path)
    if path.suffix.lower() == ARTIFACT:
        return _read_artifact(path)
    if start.lstrip().startswith(b"{"):
        return _read_json(path)
    return _read_text(path)


def _read_artifact(path: Path) -> Samples:
    with tempfile.TemporaryDirectory(prefix="omniset-") as folder:
        copy = Path(folder) / "feature-table.biom"
        try:
            with (
                open(path, "rb") as raw,
                artifact_part(raw, names=[copy.name], whole=True) as part,
                open(copy, "wb") as out,
            ):
                shutil.copyfileobj(part, out)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path}: is no artifact of QIIME 2 that can be read: {tidy(str(error))}") from error
        try:
            return _read_biom(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), str(path))) from error


def _read_biom(path: Path) -> Samples:
    check_hdf5(path, whole=True)
    import h5py

    try:
        with h5py.File(path) as root:
            parts = [_part(root, name, kinds) for name, kinds in BIOM.items()]
            features, samples = (_texts(part[:]) for part in parts[:2])
            data, indices, indptr = parts[2:]
            if len(indptr) != len(samples) + 1 or len(indices) != len(data):
                raise ValueError(
                    f"{len(samples)} samples must have {len(samples) + 1} numbers in sample/matrix/indptr, which has "
                    f"{len(indptr)}, and as many indices as data, which are {len(indices)} and {len(data)}"
                )
            if indptr[-1] != len(data):
                raise ValueError(
                    f"sample/matrix/indptr must end with the number of data, {len(data)}, not {indptr[-1]}"
                )
            shape = (len(samples), len(features))
            counts = sp.csr_array((data[:].astype(np.float64), indices[:], indptr[:]), shape=shape)
            counts.check_format()
            taxa = _biom_taxa(root, features)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # all of them h5py's, or ours
        raise ValueError(f"{path} is cut off, damaged or no BIOM 2.1 file: {tidy(str(error))}") from error
    return _checked(path, samples, features, counts, taxa)


def _checked(
    path: Path, samples: list[str], features: list[str], counts: sp.csr_array, taxa: dict[str, str]
) -> Samples:
    check(counts, samples, features, str(path))
    counts.sort_indices()
    if not counts.has_canonical_format:
        raise ValueError(f"{path} is damaged: it has two counts of one feature in one sample")
    counts.eliminate_zeros()
    return Samples(samples, features, counts, taxa)


def _read_json(path: Path) -> Samples:
    """BIOM 1.0: {"rows": features, "columns": samples, "matrix_type": "sparse" or "dense", "shape": ..., "data": [[row,
    column, count], ...] or a list for each feature}.
    """
    try:
        root = json.loads(path.read_text(encoding="utf-8"))
        features, samples = ([str(one["id"]) for one in root[axis]] for axis in ("rows", "columns"))
        shape = (len(features), len(samples))
        if [*root["shape"]] != [*shape]:
            raise ValueError(f"its shape is {root['shape']}, it has {shape[0]} rows and {shape[1]} columns")
        if root["matrix_type"] == "dense":
            counts = sp.csr_array(np.array(root["data"], dtype=np.float64).reshape(shape).T)
        elif root["matrix_type"] == "sparse":
            counts = _of_entries(np.array(root["data"], dtype=np.float64).reshape(-1, 3), shape)
        else:
            raise ValueError(f"its matrix_type must be sparse or dense, is {root['matrix_type']!r}")
        given = {one["id"]: (one.get("metadata") or {}).get("taxonomy") for one in root["rows"]}
        taxa = {str(f): taxon if isinstance(taxon, str) else "; ".join(taxon) for f, taxon in given.items() if taxon}
    except KeyError as error:
        raise ValueError(f"{path} is no BIOM 1.0 file (JSON): it has no {error}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is cut off, damaged or no BIOM 1.0 file (JSON): {tidy(str(error))}") from error
    return _checked(path, samples, features, counts, taxa)


def _of_entries(entries: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    """(samples, features) of rows, columns and counts."""
    places = entries[:, :2]
    if outside := int(((places < 0) | (places >= shape) | (places % 1 != 0)).any(1).sum()):
        raise ValueError(f"{outside} of its counts are at no place of {shape[0]} rows and {shape[1]} columns")
    row, column = places.T.astype(np.int64)
    order = np.lexsort((row, column))
    starts = np.searchsorted(column[order], np.arange(shape[1] + 1))
    return sp.csr_array((entries[order, 2], row[order], starts), shape=shape[::-1])


def _part(root: Any, name: str, kinds: str) -> Any:
    """A row of values in an HDF5 file."""
    try:
        part = root[name]
    except (KeyError, RuntimeError, OSError) as error:
        raise ValueError(f"it has no {name} ({error})") from error
    if len(getattr(part, "shape", ())) != 1 or part.dtype.kind not in kinds:
        what = "numbers" if kinds == "iuf" else "whole numbers" if kinds == "iu" else "texts"
        raise ValueError(f"{name} must be a row of {what}, is {part}")
    return part


def _texts(values: np.ndarray) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _biom_taxa(root: Any, features: list[str]) -> dict[str, str]:
    if TAXA_OF_BIOM not in root or not features:
        return {}
    part = root[TAXA_OF_BIOM]
    rows = getattr(part, "shape", (0,))[0]
    if rows != len(features):
        raise ValueError(f"{TAXA_OF_BIOM} has {rows} rows for {len(features)} features")
    taxa = part[:].reshape(rows, -1)
    return {name: "; ".join(_texts(taxon)) for name, taxon in zip(features, taxa, strict=True)}


def _read_text(path: Path) -> Samples:
    sheet = look(path)
    file = sheet.file
    has_taxa = sheet.titles[-1].lower() in TAXON
    names = sheet.titles[1:-1] if has_taxa else sheet.titles[1:]
    first = sheet.titles[0].lower()
    if not names or not (first in ("", *FEATURE) or sheet.marked):
        raise file.error(
            sheet.header, f"must be a header of #OTU ID and the samples' names, starts with {short(sheet.titles[0])}"
        )
    if wrong := _wrong_name("sample", names):
        raise file.error(sheet.header, wrong)
    rows: list[sp.csr_array] = []
    taxa: dict[str, str] = {}
    row_of: dict[str, int] = {}
    for row, (feature, *cells) in sheet.whole():
        if feature in row_of or not feature:
            raise file.error(
                row, f"has the feature {feature!r} a second time" if feature else "has no name of a feature"
            )
        row_of[feature] = row
        if has_taxa:
            taxa[feature] = cells.pop()
        rows.append(sp.csr_array(_numbers(file, row, cells, names)[None]))
    if not rows:
        raise file.error(None, "has no counts: it needs a header and a line per feature")
    return Samples(names, [*row_of], sp.csr_array(sp.vstack(rows).T), taxa)


def _numbers(file: TextFile, row: int, cells: list[str], names: list[str]) -> np.ndarray:
    values, _ = numbers_of(cells)
    if (bad := _bad(values)).any():
        place = int(bad.argmax())
        raise file.error(row, f"column {names[place]!r} must be a count from 0 to {MOST:g}, is {short(cells[place])}")
    return values


def _bad(values: np.ndarray) -> np.ndarray:
    return ~((values >= 0) & (values <= MOST))  # NaN too


def check(counts: sp.csr_array, samples: Sequence[str], features: Sequence[str], what: str) -> None:
    """See that a table has counts alone, and a name of its own for each sample and feature.

    Args:
        what: For the error.

    Raises:
        ValueError: Naming the first that is wrong.
    """
    if counts.shape != (len(samples), len(features)):
        raise ValueError(
            f"{what}: {len(samples)} samples x {len(features)} features have counts of shape {counts.shape}"
        )
    for kind, names in (("sample", samples), ("feature", features)):
        if wrong := _wrong_name(kind, names):
            raise ValueError(f"{what} {wrong}")
    if (bad := _bad(counts.data)).any():
        where = int(bad.argmax())
        sample = int(np.searchsorted(counts.indptr, where, side="right")) - 1
        raise ValueError(
            f"{what}: sample {samples[sample]!r}, feature {features[counts.indices[where]]!r}: the count must be a "
            f"number from 0 to {MOST:g}, is {counts.data[where]:g}"
        )


def _wrong_name(kind: str, names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for place, name in enumerate(names, 1):
        if not name:
            return f"has a {kind} without a name, number {place}"
        if name in seen:
            return f"has the {kind} {name!r} a second time"
        seen.add(name)
    return None
