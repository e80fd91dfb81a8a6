"""DNA: sequences from FASTA and FASTQ files, read and checked, and their k-mers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int, UInt8
from torch import Tensor

from omniset.runs.progress import Progress
from omniset.tables.doubts import affix, counted_from
from omniset.tables.files import TextFile, short

PLAIN = str.maketrans("acgturyswkmbdhvnU", "ACGTTRYSWKMBDHVNT", "-. ")  # gaps of alignments go
OTHER = re.compile("[^ACGTRYSWKMBDHVN]")
FASTA = (".fasta", ".fa", ".fna", ".fas", ".ffn")
CODE = np.full(256, 4, dtype=np.uint8)  # A C G T are 0 to 3, all others 4
CODE[np.frombuffer(b"ACGT", dtype=np.uint8)] = range(4)
VERSION = re.compile(r"(;.*|(\.\d+)+)$")  # and what else stands behind a name
ANNOTATION = ";tax="  # usearch's and vsearch's, behind the name


@dataclass
class Record:
    """A sequence of a file."""

    name: str  # the first word of its header, up to ";tax="
    bases: str  # in capitals, T for U, without gaps; "": a read of which trimming left nothing
    row: int  # of its header in the file
    header: str  # without its first character


def name_of(header: str) -> str:
    """The first word of a header, without a taxon behind it.

    >>> name_of("seq1;tax=d:Bacteria,s:Bacillus subtilis; from soil")
    'seq1'
    """
    return "".join(header.split(None, 1)[:1]).partition(ANNOTATION)[0]


class EmptyFileError(ValueError):
    """A file without any sequence."""


class SequenceFile(TextFile):
    """FASTA or FASTQ, recognised by the first character; compressed too (.gz, .bz2, .xz).

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: A directory. When read: neither format, a record that is cut off, a letter that is none of the
            IUPAC code, an empty name, a damaged file; each with its line.
    """

    longest = 1 << 30  # bytes of a line: a chromosome may be one

    def __iter__(self) -> Iterator[Record]:
        self.refuse_other_kinds()
        lines = self.lines()
        first = next(((row, line) for row, line in lines if line.strip()), None)
        if first is None:
            raise EmptyFileError(f"{self.path}: is empty, it must hold sequences in FASTA or FASTQ")
        row, line = first
        if line[0] not in ">@":
            raise self.error(row, f"starts with {short(line[:20])}: FASTA starts with '>', FASTQ with '@'")
        yield from self._fasta(row, line, lines) if line[0] == ">" else self._fastq(row, line, lines)

    def _fasta(self, row: int, header: str, lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
        parts: list[str] = []
        start = row
        for row, line in lines:
            if line.startswith(">"):
                yield self._record(start, header, "".join(parts))
                start, header, parts = row, line, []
            elif line:
                parts.append(self._bases(row, line))
        yield self._record(start, header, "".join(parts))

    def _fastq(self, row: int, header: str, lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
        while True:
            if not header.startswith("@"):
                raise self.error(row, f"must be the header of a record, starting with '@', is {short(header[:20])}")
            rest = [line for _, line in islice(lines, 3)]
            if len(rest) < 3:
                raise self.error(row, "the record is cut off: it needs header, sequence, '+' and qualities")
            bases, plus, quality = rest
            if not plus.startswith("+"):
                raise self.error(row + 2, f"must start with '+', is {short(plus[:20])}")
            if len(quality) != len(bases):
                raise self.error(row + 3, f"has {len(quality)} qualities for {len(bases)} bases")
            yield self._record(row, header, self._bases(row + 1, bases.replace(".", "N")))  # of old sequencers
            following = next((pair for pair in lines if pair[1].strip()), None)
            if following is None:
                return
            row, header = following

    def _bases(self, row: int, line: str) -> str:
        bases = line.translate(PLAIN)
        if other := OTHER.search(bases):
            raise self.error(row, f"has {other[0]!r}, which is no base of the IUPAC code")
        return bases

    def _record(self, row: int, header: str, bases: str) -> Record:
        if not (name := name_of(header[1:])):
            raise self.error(row, "has no name behind its first character")
        return Record(name, bases, row, header[1:])


def read_fasta(
    path: str | Path, progress: bool = False, called: Callable[[Record], str] = lambda record: record.name
) -> dict[str, str]:
    """All sequences of a file by name.

    Raises:
        ValueError: A name that comes twice, an empty sequence; and as `SequenceFile`.
    """
    file = SequenceFile(path)
    sequences: dict[str, str] = {}
    with Progress(f"reading {file.path.name}", file.size, progress) as bar:
        for record in file:
            name = called(record)
            if not record.bases:
                raise file.error(record.row, f"{record.name} has no sequence")
            if name in sequences:
                raise file.error(record.row, f"has the sequence {name!r} a second time")
            sequences[name] = record.bases
            if len(sequences) % 1000 == 0:
                bar.at(file.position, len(sequences), "sequences")
        bar.at(file.size, len(sequences), "sequences")
    return sequences


def known_as(
    names: Iterable[str], there: Collection[str], texts: Mapping[str, str] | None = None
) -> tuple[dict[str, str], str]:
    """What names are called there, those that are; and what else than the names themselves was compared, as a sentence.

    Names that are not there are known by their sequence among `texts`; else without what ; begins, without a version
    and in any case, where that is one name on each side; else without what all of them begin or end in.

    >>> known_as(["A1.1", "B", "c;size=3"], ["a1", "c", "d"])
    ({'A1.1': 'a1', 'c;size=3': 'c'}, "2 names are joined in another spelling, such as 'A1.1' as 'a1'")
    """
    names, pool, texts = list(names), set(there), texts or {}
    found = {name: name if name in pool else texts[name] for name in names if name in pool or texts.get(name) in pool}
    lost, taken = [name for name in names if name not in found], set(found.values())
    others = [name for name in there if name not in taken]
    near: dict[str, list[tuple[str, ...]]] = {}  # with the side that each is of, and whether it is no longer than that
    for side, some in (("names", lost), ("there", others)):
        for name in some:
            plain = VERSION.sub("", name).casefold()
            near.setdefault(plain, []).append((side, name, plain if name.casefold() == plain else ""))
    pairs = {a[1]: b[1] for a, b in (p for p in near.values() if len(p) == 2) if a[0] != b[0] and (a[2] or b[2])}
    if not pairs and counted_from(lost) is None and counted_from(others) is None:
        for some, rest in ((lost, others), (others, lost)):
            if (common := affix(some, rest)) is not None:
                both = [(name, common.without(name) or name) for name in some]
                pairs = dict(both if some is lost else [(short, long) for long, short in both])
    one, other = next(iter(pairs.items()), ("", ""))
    what = f"{len(pairs):,} name{' is' if len(pairs) == 1 else 's are'} joined in another spelling"
    found |= pairs
    note = f"{what}, such as {one!r} as {other!r}" if pairs else ""
    if not lost and others and counted_from(names) is not None:
        note = f"names only count to {names[-1]}, in files of other numbers: are they the same in both?"
    return {name: found[name] for name in names if name in found}, note


def joined(texts: Sequence[str]) -> tuple[UInt8[np.ndarray, " letters"], Int[np.ndarray, " sequences_and_end"]]:
    """All letters one behind the other, and where each sequence starts; the last entry is the end."""
    letters = np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)
    return letters, np.cumsum([0, *map(len, texts)])


@dataclass
class Kmers:
    """The k-mers of some sequences, one after the other."""

    numbers: Int[Tensor, " kmers"]  # below 4^k: the bases as digits, A C G T = 0 1 2 3, the first one the highest
    starts: Int[Tensor, " sequences"]  # where those of each start

    @property
    def sizes(self) -> Int[Tensor, " sequences"]:
        """How many k-mers each sequence has."""
        return torch.diff(self.starts, append=self.starts.new_tensor([len(self.numbers)]))

    def to(self, device: torch.device) -> Kmers:
        return Kmers(self.numbers.to(device), self.starts.to(device))

    def without(self, left: Tensor) -> Kmers:
        """Only those where a mask (k-mers,) holds."""
        before = torch.cat([left.new_zeros(1, dtype=torch.int64), left.cumsum(0)])
        return Kmers(self.numbers[left], before[self.starts])


def kmers_of(texts: Sequence[str], k: int) -> Kmers:
    """All k-mers, words of k bases, of the strand as it is. Those with an ambiguous base are left out.

    >>> found = kmers_of(["ACGT", "AANAC", "A"], 2)
    >>> found.numbers.tolist(), found.sizes.tolist()
    ([1, 6, 11, 0, 1], [3, 2, 0])
    """
    letters, ends = joined(texts)
    codes = CODE[letters]
    number = max(len(codes) - k + 1, 0)
    numbers = np.zeros(number, dtype=np.int64)
    usable = np.ones(number, dtype=bool)
    for i in range(k):
        digit = codes[i : number + i]
        numbers = 4 * numbers + digit
        usable &= digit < 4
    sizes = np.diff(ends)
    # A k-mer that starts in the last k - 1 letters of a sequence would reach into the next.
    for i in range(1, k):
        last = ends[1:] - i
        usable[last[(last >= ends[:-1]) & (last < number)]] = False
    before = np.concatenate([[0], usable.cumsum()])
    starts = before[np.minimum(ends[:-1], number)] if len(sizes) else np.zeros(0, dtype=np.int64)
    return Kmers(torch.from_numpy(numbers[usable]), torch.from_numpy(starts))


def all_kmers(k: int) -> list[str]:
    """All that there are, as their numbers order them.

    >>> all_kmers(2)[:5]
    ['AA', 'AC', 'AG', 'AT', 'CA']
    """
    return ["".join(bases) for bases in product("ACGT", repeat=k)]


def kmer_shares(texts: Sequence[str], k: int) -> Float32[np.ndarray, "sequences kmers"]:
    """Of each sequence, which share of its k-mers each of `all_kmers` is; NaN where it has none.

    >>> kmer_shares(["AAAC", "N"], 1).tolist()
    [[0.75, 0.25, 0.0, 0.0], [nan, nan, nan, nan]]
    """
    kmers = kmers_of(texts, k)
    counts = np.zeros((len(texts), 4**k), dtype=np.float32)
    np.add.at(counts, (np.repeat(np.arange(len(texts)), kmers.sizes.numpy()), kmers.numbers.numpy()), 1)
    with np.errstate(invalid="ignore"):
        return counts / counts.sum(1, keepdims=True)
