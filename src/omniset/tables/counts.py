"""Feature tables: how often each feature was seen in each sample, from BIOM files and tables of text."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from omniset.tables.doubts import FEWEST, counted_from
from omniset.tables.files import ARTIFACT, TextFile, artifact_part, short, tidy
from omniset.tables.hdf5 import check_hdf5
from omniset.tables.sheets import NUMBER, Sheet, key, look, numbers_of

HDF5 = b"\x89HDF\r\n\x1a\n"
BIOM = {  # the kinds of NumPy's types that each part may have
    **{"observation/ids": "OSUiu", "sample/ids": "OSUiu"},
    **{"sample/matrix/data": "iuf", "sample/matrix/indices": "iu", "sample/matrix/indptr": "iu"},
}
TAXA_OF_BIOM = "observation/metadata/taxonomy"
MOST = 1e15  # reads of a feature in a sample: whole numbers up to here are exact

FEATURE = (  # what a column of features' names is called, as `key` has it
    *("feature_id", "featureid", "feature", "otu_id", "otuid", "otu", "asv_id", "asvid", "asv", "id", "name", "zotu"),
    *("seqid", "seq_id", "sequence_id", "representative_sequence", "row_names", "rownames"),
)
TAXON = ("taxon", "taxonomy", "lineage", "consensus_lineage", "consensuslineage")
RANK_COLUMNS = (  # what columns of names of ranks are called
    *("superkingdom", "domain", "kingdom", "supergroup", "division", "subdivision", "phylum", "class", "order"),
    *("family", "genus", "species"),
)
LINEAGE = re.compile(r"(\w{1,2}__|D_\d+__).*|[^;|=]+[;|][^=]*")
DNA = re.compile(r"[ACGTRYSWKMBDHVNU]{20,}", re.IGNORECASE)
TOTAL = re.compile(r"(.*[ _.-])?(totals?|(row|col)?sums?)([ _.-].*)?", re.IGNORECASE)
PART = re.compile(r"(\d+),(\S+)")  # mothur's number and count of a sample, or its name


@dataclass
class Samples:
    """A feature table: counts of features in samples.

    Attributes:
        names: Of the samples.
        features: Their identifiers.
        counts: (samples, features), from 0 to 1e15.
        taxa: What the table says of the features' taxa, by feature, ranks with "; " between.
        sequences: And of their sequences.
    """

    names: list[str]
    features: list[str]
    counts: sp.csr_array
    taxa: dict[str, str] = field(default_factory=dict)
    sequences: dict[str, str] = field(default_factory=dict)

    def turned(self) -> Samples:
        """With features as samples and the other way round."""
        return replace(self, names=self.features, features=self.names, counts=sp.csr_array(self.counts.T))


def read_samples(path: str | Path) -> Samples:
    """A feature table: BIOM 2.1 (HDF5), also within an artifact of QIIME 2 (.qza), BIOM 1.0 (JSON), Parquet, mothur's
    count_table (its compressed form too) and .shared, or text with a line per feature and a column per sample, as
    `biom convert` and R write it; separated by tabs, commas, semicolons or, with quotes, spaces.

    What is named a total and is the sum of the others, of samples or of features, is left out, with a warning.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Neither of these, a count that is no number or negative, a name that is empty or comes twice, a
            damaged file.
    """
    path = Path(path)
    with open(TextFile(path).path, "rb") as raw:
        start = raw.read(8)
    if start == HDF5:
        found = _read_biom(path)
    elif path.suffix.lower() == ARTIFACT:
        found = _read_artifact(path)
    else:
        found = _read_json(path) if start.lstrip().startswith(b"{") else _read_text(path)
    return without_totals(path, found)


def without_totals(what: str | Path, held: Samples) -> Samples:
    """Without a sample and a feature that is the sum of all others; a feature, and one of few samples, by its name."""
    held = _without_total(what, held, FEWEST)
    if any(map(TOTAL.fullmatch, held.features)):
        held = _without_total(what, held.turned(), np.inf).turned()
    return held


def _without_total(what: str | Path, held: Samples, clear: float | int) -> Samples:
    of_all, totals = (np.asarray(held.counts.sum(axis)).ravel() for axis in (0, 1))
    half = np.isclose(2 * totals, totals.sum(), rtol=1e-6) & (totals > 0)
    for place, name in enumerate(held.names if len(held.names) > 1 else ()):
        named = TOTAL.fullmatch(name) is not None
        own = held.counts[[place]].toarray()[0] if half[place] else -of_all
        if not np.allclose(2 * own, of_all, rtol=1e-6):
            if named:
                warnings.warn(
                    f"{what}: {name!r} is not the sum of the others, and is taken for one of them", stacklevel=4
                )
        elif named or (len(held.names) > 2 and (own > 0).sum() >= clear):
            warnings.warn(f"{what}: {name!r} is the sum of all others, and is left out", stacklevel=4)
            kept = np.flatnonzero(np.arange(len(held.names)) != place)
            return replace(held, names=[held.names[at] for at in kept], counts=held.counts[kept])
    return held


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
            return _read_biom(copy)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path}: is no artifact of QIIME 2 that can be read: {tidy(str(error))}") from error
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
        taxa = {str(f): taxon if isinstance(taxon, str) else _joined(taxon) for f, taxon in given.items() if taxon}
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
    sheet = look(path, spaces=True)
    file, keys = sheet.file, [key(title) for title in sheet.titles]
    packed = keys[1:2] == ["total"] and any(PART.fullmatch(cell) for cells in sheet.rows for cell in cells[2:3])
    if packed:
        sheet.rows = [cells for _, cells in _unpacked(sheet)]
    shared = {"label", "group"} <= {*keys}
    name_at, roles = _columns(keys, sheet.rows, shared)
    counted = [at for at in range(len(keys)) if at != name_at and at not in roles]
    names = [sheet.titles[at] for at in counted]
    known = sheet.marked or keys[name_at] in ("", *FEATURE)
    if not names or (all(map(NUMBER.fullmatch, names)) and not known):
        raise file.error(
            sheet.header, f"must be a header of #OTU ID and the samples' names, starts with {short(sheet.titles[0])}"
        )
    if wrong := _wrong_name("sample", names):
        raise file.error(sheet.header, wrong)
    rows: list[sp.csr_array] = []
    told: dict[str, dict[str, list[str]]] = {"taxon": {}, "sequence": {}, "none": {}}
    row_of: dict[str, int] = {}
    labels = set()
    for row, cells in _unpacked(sheet) if packed else sheet.whole():
        feature = cells[name_at]
        labels |= {cells[keys.index("label")]} if shared else set()
        if len(labels) > 1:
            raise file.error(row, f"is of another label than the lines above: keep those of one, such as {min(labels)}")
        if feature in row_of or not feature:
            raise file.error(
                row, f"has the feature {feature!r} a second time" if feature else "has no name of a feature"
            )
        row_of[feature] = row
        for at, what in roles.items():
            told[what].setdefault(feature, []).append(cells[at])
        rows.append(sp.csr_array(_numbers(file, row, [cells[at] for at in counted], names)[None]))
    if not rows:
        raise file.error(None, "has no counts: it needs a header and a line per feature")
    taxa, sequences = ({name: _joined(c) for name, c in told[what].items()} for what in ("taxon", "sequence"))
    found = Samples(names, [*row_of], sp.csr_array(sp.vstack(rows).T), taxa, sequences)
    return found.turned() if shared else found


def _columns(keys: list[str], rows: list[list[str]], shared: bool) -> tuple[int, dict[int, str]]:
    """Which column has the names, and what those have that have no counts; of mothur's .shared the names are samples'.

    Names that only count are none where others are there.
    """
    values = [[cells[at] for cells in rows if len(cells) > at] for at in range(len(keys))]
    kinds = [_kind(title, some) for title, some in zip(keys, values, strict=True)]
    numbered = kinds[0] == "count" and counted_from(values[0]) is not None
    numbers = {at for at in range(len(keys)) if (at and keys[at] in FEATURE if numbered else not at)}
    texts = [at for at, kind in enumerate(kinds) if kind == "text" or (kind == "count" and at in numbers)]
    named = [at for at in texts if keys[at] in FEATURE]
    name_at = keys.index("group") if shared else [*named, *texts, 0][0]
    roles = {at: kind for at, kind in enumerate(kinds) if kind in ("taxon", "sequence", "none") and at != name_at}
    whole = any(keys[at] in TAXON for at in roles)
    roles |= {at: "none" for at in roles if whole and keys[at] in RANK_COLUMNS}
    roles |= {0: "none"} if numbered and name_at else {}
    return name_at, roles | {at: "none" for at in range(len(keys)) if shared and at < 3 and at != name_at}


def _unpacked(sheet: Sheet) -> Iterator[tuple[int, list[str]]]:
    """The rows of mothur's compressed count_table: of each sample with reads its number and their count."""
    place = {name: at for at, name in enumerate(sheet.titles)}
    at_of: dict[str, int] = {}
    for row, line in sheet.file.lines():
        parts = [match for cell in line.lstrip("#").split("\t") if (match := PART.fullmatch(cell.strip()))]
        if row < sheet.header:
            at_of |= {number: place[name] for number, name in (part.groups() for part in parts) if name in place}
        elif row > sheet.header and line.strip():
            cells = [*line.split("\t")[:2], *("0" if title else "" for title in sheet.titles[2:])]
            for number, count in (part.groups() for part in parts):
                if number not in at_of:
                    raise sheet.file.error(
                        row, f"has a count of sample {number}, which the line above the header lacks"
                    )
                cells[at_of[number]] = count
            yield row, cells


def _kind(title: str, values: Sequence[str]) -> str:
    """What a column has: "count", "taxon", "sequence", "none" of use, or "text"."""
    some = [value for value in values if value]
    if title == "confidence" or not (title or some):
        return "none"
    if not some or any(map(NUMBER.fullmatch, some)):
        return "count"
    if title in TAXON or title in RANK_COLUMNS or all(map(LINEAGE.fullmatch, some)):
        return "taxon"
    return "sequence" if all(map(DNA.fullmatch, some)) else "text"


def _joined(names: Sequence[str | None]) -> str:
    return "; ".join(name or "" for name in names)


def _numbers(file: TextFile, row: int, cells: list[str], names: list[str]) -> np.ndarray:
    values, _ = numbers_of(cells)
    if (bad := _bad(values)).any():
        name, cell = names[at := int(bad.argmax())], cells[at]
        rest = "" if any(map(str.isdigit, cell)) else ": leave the column out if it is no sample"
        raise file.error(row, f"column {name!r} must be a count from 0 to {MOST:g}, is {short(cell)}{rest}")
    return values


def _bad(values: np.ndarray) -> np.ndarray:
    return ~((values >= 0) & (values <= MOST))  # NaN too


def check(counts: sp.csr_array, samples: Sequence[str], features: Sequence[str], what: str) -> None:
    """See that a table has counts alone, and a name of its own for each sample and feature."""
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
