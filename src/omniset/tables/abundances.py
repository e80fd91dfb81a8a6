"""Samples of a feature table as multisets: an element is a feature with its vector, its multiplicity the count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from omniset.core.checks import check_multiplicity
from omniset.core.encoding import Encoding
from omniset.core.features import doubt
from omniset.core.stored import StoredSet
from omniset.tables.counts import FEATURE, read_samples
from omniset.tables.dna import FASTA, all_kmers, kmer_shares, known_as, read_fasta
from omniset.tables.files import Origin, TableFile, listed, unpacked
from omniset.tables.folders import require_elements
from omniset.tables.sheets import key as spelled
from omniset.tables.stored import FileRows, StoredSets

K = 3  # length of k-mers
Vectors: TypeAlias = tuple[list[str], list[str], Float[np.ndarray, "features dim"], list[str]]


class _Chosen(FileRows):
    """Rows of a matrix in an order of their own."""

    def __init__(self, matrix: Float[np.ndarray, "features dim"], order: Int[np.ndarray, " rows"]) -> None:
        super().__init__(len(order), matrix.shape[1])
        self._matrix, self._order = matrix, order

    def _read(self, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        return torch.from_numpy(self._matrix[self._order[start:stop]].astype(np.float32))


def open_abundances(
    path: Path, vectors: Path, features: Sequence[str] | None = None, ignore: Sequence[str] = ()
) -> StoredSets:
    """The samples of a feature table: a set each, in the order of the table.

    Args:
        path: As for `omniset.tables.counts.read_samples`.
        vectors: A table with a row per feature: its name, in the column `feature` or in the first one that is called
            as such columns are ("#OTU ID", "id"), and numbers. Or the sequences of the features, in FASTA: the numbers
            are the shares of the 64 3-mers, AAA to TTT, among those of the sequence.
        features: Columns of numbers, in this order. Default: all.

    Raises:
        OSError, ValueError: A file that cannot be read; a feature without a vector, or with two; a sequence without
            three bases in a row.
    """
    read = _read_sequences if unpacked(vectors.name).lower().endswith(FASTA) else _read_vectors
    names, columns, matrix, unused = read(vectors, features, ignore)
    table = read_samples(path)
    at = {name: number for number, name in enumerate(names)}
    called = known_as(table.features, names)[0]
    place = {name: at[there] for name, there in called.items()}
    seen = np.unique(table.counts.indices)
    lacking = [table.features[number] for number in seen.tolist() if table.features[number] not in place]
    if lacking:
        more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
        raise ValueError(f"{vectors}: has no vector of feature {lacking[0]!r}{more} of {path}")
    of_feature = np.array([place.get(name, -1) for name in table.features], dtype=np.int64)
    counts, sets = table.counts, []
    for number, name in enumerate(table.names):
        inside = slice(int(counts.indptr[number]), int(counts.indptr[number + 1]))
        which = counts.indices[inside].astype(np.int64)
        rows = _Chosen(matrix, of_feature[which])
        elements = pa.chunked_array([pa.array([table.features[i] for i in which.tolist()], pa.string())])
        check_multiplicity(torch.from_numpy(counts.data[inside]), f"{path}: sample {name!r}: count", torch.float32)
        multiplicity = torch.from_numpy(counts.data[inside].astype(np.float32))
        sets.append(StoredSet(rows, multiplicity, 0, len(which), name, elements))
    require_elements(path, sets)
    return StoredSets(Origin(path), sets, columns, unused)


def _read_sequences(path: Path, features: Sequence[str] | None, ignore: Sequence[str]) -> Vectors:
    """As `_read_vectors`, of sequences: shares of their k-mers."""
    sequences, kmers = read_fasta(path), all_kmers(K)
    for name in (*(features or []), *ignore):
        if name not in kmers:
            raise ValueError(f"{path}: {name!r} is none of the {K}-mers, such as {kmers[0]!r}")
    table = kmer_shares([*sequences.values()], K)
    without = np.isnan(table).any(1)
    if without.any():
        name = [*sequences][int(without.argmax())]
        raise ValueError(f"{path}: {name!r} has no {K} bases in a row that are A, C, G or T")
    columns = [kmer for kmer in kmers if kmer not in ignore] if features is None else list(features)
    if not columns:
        raise ValueError(f"{path}: no {K}-mer is left")
    chosen = table[:, [kmers.index(kmer) for kmer in columns]]
    return [*sequences], columns, chosen, [kmer for kmer in kmers if kmer not in columns]


def _read_vectors(path: Path, features: Sequence[str] | None, ignore: Sequence[str]) -> Vectors:
    file = TableFile(path)
    named = [c for c in file.columns if spelled(c) in FEATURE]
    key = "feature" if "feature" in named else named[0] if named else ""
    if not key:
        raise file.error(None, f"has no column 'feature' with the names of features, it has {listed(file.columns)}")
    file.require([*(features or []), *ignore])
    others = [c for c in file.columns if c != key and c not in ignore]
    columns = others if features is None else list(features)
    if not columns:
        raise file.error(None, "has no numbers of features")
    for column in others if features is None else ():
        if why := doubt(column):
            raise file.error(None, f"column {column!r} would be a feature, but {why}; --ignore leaves it out")
    names: list[str] = []
    place: dict[str, int] = {}
    encoding, parts = Encoding.of_numbers(columns), []
    for chunk in file.chunks([key, *columns]):
        for row, name in enumerate(chunk.text(key).to_pylist()):
            if name in place:
                raise chunk.error(row, key, f"names {name!r} a second time (it was at {file.where(place[name])})")
            place[name] = chunk.first + row
            names.append(name)
        parts.append(encoding.apply(chunk, np.float32))
    if not parts:
        raise file.error(None, "has no rows below its header")
    unused = [c for c in file.columns if c != key and c not in columns]
    return names, columns, np.concatenate(parts), unused
