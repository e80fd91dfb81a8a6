"""Vectors of genes from files: tables of ESM2, and text of gene2vec and word2vec.

Reading runs no code from the file: pickles may hold tensors, lists and text only.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from omniset.core.bounded import require_file
from omniset.tables.arrays import load_torch, plain
from omniset.tables.files import TextFile, listed, short
from omniset.tables.genes import Match, match, only_count
from omniset.tables.sheets import numbers_of

Lines = Iterator[tuple[int, list[str]]]
REMEDY = "torch.save({gene: torch.as_tensor(v) for gene, v in table.items()}, path)"


@dataclass
class GeneVectors:
    """Vectors of genes.

    Attributes:
        names: Of the genes, each once.
        vectors: float32, row i is gene `names[i]`.
    """

    names: list[str]
    vectors: Float[np.ndarray, "genes dim"]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.vectors):
            raise ValueError(f"names and vectors differ in number: {len(self.names):,} and {len(self.vectors):,}")

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def of(
        self, genes: Sequence[str], aliases: Mapping[str, str] | None = None
    ) -> tuple[Float[np.ndarray, "chosen dim"], Match]:
        """The vectors of these genes, 0 where there is none, and what matched.

        Args:
            genes: Names in the order of the rows wanted.
            aliases: Other names of genes, see `omniset.tables.genes.match`.
        """
        matched = match(genes, self.names, aliases)
        here = matched.positions >= 0
        chosen = np.zeros((len(genes), self.dim), dtype=np.float32)
        chosen[here] = self.vectors[matched.positions[here]]
        return chosen, matched

    def checksum(self) -> str:
        """Of names and numbers."""
        names = zlib.crc32("\n".join(self.names).encode())
        return f"{zlib.crc32(np.ascontiguousarray(self.vectors).tobytes(), names):08x}"


def read_gene_vectors(path: str | Path) -> GeneVectors:
    """Read vectors of genes.

    | file | holds |
    |---|---|
    | `.pt`, `.pth` | a dict of gene to tensor |
    | any other | text: a gene per line, its name and its numbers, between them tabs or spaces; the first line may be \
"genes dim", as in word2vec's format; also compressed (.gz, .bz2, .xz) |

    A gene that occurs twice with one vector is kept once; with different ones its vector is their mean, with a warning.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Naming the file and, where there is one, the line or the gene: vectors of different widths, an entry
            that is not a finite number, no vectors, a pickle with more than tensors in it, a file that is cut off or of
            another kind.
    """
    path = Path(path)
    require_file(path)
    path.stat()  # not there: FileNotFoundError, whatever would read it
    given, vectors = (_read_torch if path.suffix.lower() in (".pt", ".pth") else _read_text)(path)
    names = [name.strip() for name in given]
    _check(path, names, vectors)
    merged, differing = _merge(names, vectors)
    if differing:
        warnings.warn(
            f"{path}: {len(differing):,} gene(s) occur more than once with different vectors, such as "
            f"{differing[0]!r}: the mean is taken",
            stacklevel=2,
        )
    return merged


def _check(path: Path, names: list[str], vectors: Float[np.ndarray, "rows dim"]) -> None:
    if not vectors.size:
        raise ValueError(f"{path} has no vectors")
    if only_count(names):
        raise ValueError(f"{path}: its genes have no names, {listed(names, 3)} only count them")
    if "" in names:
        raise ValueError(f"{path}: gene {names.index('') + 1:,} has no name")
    bad = ~np.isfinite(vectors).all(1)
    if bad.any():
        gene = int(bad.argmax())
        at = int((~np.isfinite(vectors[gene])).argmax())
        raise ValueError(
            f"{path}: gene {names[gene]!r}, number {at + 1} is {vectors[gene, at]}, it must be a finite 32-bit number"
        )


def _merge(names: list[str], vectors: Float[np.ndarray, "rows dim"]) -> tuple[GeneVectors, list[str]]:
    if len({*names}) == len(names):
        return GeneVectors(names, vectors), []
    genes = pd.DataFrame(vectors, dtype=np.float64).groupby(np.array(names, dtype=object), sort=False)
    mean, differing = genes.mean(), (genes.max() != genes.min()).any(axis=1)
    return GeneVectors([*mean.index], mean.to_numpy(np.float32)), [*mean.index[differing]]


# ---------------------------------------------------------------------- text


def _read_text(path: Path) -> tuple[list[str], Float[np.ndarray, "rows dim"]]:
    file = TextFile(path)
    lines: Lines = ((row, fields) for row, line in file.lines() if (fields := line.split()))
    head, lines = _header(file, lines)
    names: list[str] = []
    parts: list[Float[np.ndarray, " dim"]] = []
    for row, (name, *texts) in lines:
        gene, dim = f"gene {short(name)}", len(texts)
        if not dim:
            hint = ". Tabs or spaces must separate the numbers, not commas" if "," in name else ""
            raise file.error(row, f"{gene} has no numbers{hint}")
        if not parts and head is not None and head[1] != dim:
            raise file.error(row, f"{gene} has {dim} numbers, the first line says {head[1]} each")
        if parts and dim != len(parts[0]):
            raise file.error(row, f"{gene} has {dim} numbers, those before have {len(parts[0])}")
        numbers, at = numbers_of(texts)
        values = _as_float32(numbers)
        if at is not None or not np.isfinite(values).all():
            kind = "finite 32-bit number" if at is None else "number"
            at = int(np.isfinite(values).argmin()) if at is None else at
            raise file.error(row, f"{gene}, number {at + 1} is {short(texts[at])}, it must be a {kind}")
        names.append(name)
        parts.append(values)
    if not parts:
        raise ValueError(f"{path} has no vectors")
    if head is not None and head[0] != len(names):
        raise ValueError(f"{path}: the first line says {head[0]:,} vectors, there are {len(names):,}: is it cut off?")
    return names, np.stack(parts)


def _header(file: TextFile, lines: Lines) -> tuple[tuple[int, int] | None, Lines]:
    """What the first line says, if it is word2vec's "genes dim", and the lines of vectors."""
    start = list(islice(lines, 2))
    if start:
        fields = start[0][1]
        two = len(fields) == 2 and all(text.isascii() and text.isdigit() for text in fields)
        # A gene known by its number, with a vector of one number, looks the same, and so does the next line then.
        if two and (len(start) < 2 or len(start[1][1]) != 2 or fields[1] == "1"):
            return (int(fields[0]), int(fields[1])), chain(start[1:], lines)
    return None, chain(start, lines)


# ---------------------------------------------------------------------- tensors


def _read_torch(path: Path) -> tuple[list[str], Float[np.ndarray, "rows dim"]]:
    table = load_torch(path, REMEDY)
    if isinstance(table, Tensor):
        raise ValueError(f"{path} does not name its genes: write a dict of them, {REMEDY}")
    if not isinstance(table, dict):
        raise ValueError(f"{path} holds a {type(table).__name__}, it must hold a dict of gene to tensor")
    names: list[str] = []
    rows: list[Float[np.ndarray, " dim"]] = []
    for key, value in table.items():
        gene = str(key)
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"{path}: gene {gene!r} has a value of type {kind}, it must be a tensor")
        held = plain(path, value, repr(gene))
        vector = (held.float() if held.is_floating_point() else held).numpy()  # NumPy has no bfloat16
        if vector.ndim != 1 or vector.dtype.kind not in "biuf":
            what = f"{vector.dtype} of shape {tuple(vector.shape)}"
            raise ValueError(f"{path}: gene {gene!r} has {what}, it must be numbers of shape (dim,)")
        if rows and len(vector) != len(rows[0]):
            raise ValueError(f"{path}: gene {gene!r} has {len(vector):,} numbers, {names[0]!r} has {len(rows[0]):,}")
        names.append(gene)
        rows.append(_as_float32(vector))
    if not rows:
        raise ValueError(f"{path} has no vectors")
    return names, np.stack(rows)


def _as_float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # to inf, which is found and named
        return np.ascontiguousarray(array, dtype=np.float32)
