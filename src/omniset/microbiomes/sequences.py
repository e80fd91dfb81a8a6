"""Sequences of a marker gene: counted once each, written, cut to a region by primers, turned to a strand."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from omniset.runs.files import replacing
from omniset.runs.progress import Progress
from omniset.tables.dna import OTHER, PLAIN, SequenceFile, joined, kmers_of

IUPAC = {
    **{"A": "A", "C": "C", "G": "G", "T": "T", "R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"},
    **{"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"},
}
COMPLEMENT = str.maketrans("ACGTRYSWKMBDHVN", "TGCAYRSWMKVHDBN")
REGIONS = {
    "515F-806R": ("GTGYCAGCMGCCGCGGTAA", "GGACTACNVGGGTWTCTAAT"),
    "341F-805R": ("CCTACGGGNGGCWGCAG", "GACTACHVGGGTATCTAATCC"),
}
MISMATCHES = 0.2  # share of a primer's bases that may differ
SHORTEST = 50  # bases: shorter sequences stay unassigned
STRAND = 7  # length of the k-mers that tell a strand
READ = 4096  # sequences looked at together
SHORTER, LONGER = 0.9, 1.2  # of the shortest and longest length learned from: beyond, a warning is due
MASK = np.zeros(256, dtype=np.uint8)  # a bit for each base that a letter may stand for
for _letter, _bases in IUPAC.items():
    MASK[ord(_letter)] = sum(1 << "ACGT".index(base) for base in _bases)
SIZE = re.compile(r";size=([1-9]\d{0,14})(;|$)", re.ASCII)
VERSION = re.compile(r"(;.*|(\.\d+)+)$")


def alike(lacking: Iterable[str], known: Iterable[str]) -> str:
    """For messages: how many names that are lacking are known but for their case, their version or what ; begins.

    >>> alike(["A1.1", "B"], ["a1", "c"])
    "; 1 of these is there in another spelling, such as 'A1.1' as 'a1': names must be the same"
    """
    there = {VERSION.sub("", name).casefold(): name for name in known}
    pairs = [(name, there[plain]) for name in lacking if (plain := VERSION.sub("", name).casefold()) in there]
    if not pairs:
        return ""
    return (
        f"; {len(pairs):,} of these {'is' if len(pairs) == 1 else 'are'} there in another spelling, such as "
        f"{pairs[0][0]!r} as {pairs[0][1]!r}: names must be the same"
    )


def dereplicate(path: str | Path, progress: bool = False) -> dict[str, int]:
    """Every distinct sequence of a file of reads, and how often it comes, most frequent first.

    A read that usearch or vsearch has counted already, as ;size= behind its name says, comes so often.

    Raises:
        EmptyFileError: There are none.
        ValueError: As `SequenceFile`.
    """
    file = SequenceFile(path)
    counts: dict[str, int] = {}
    reads = sized = 0
    with Progress(f"reading {file.path.name}", file.size, progress) as bar:
        for reads, record in enumerate(file, 1):
            times = SIZE.search(record.name)
            sized += times is not None
            counts[record.bases] = counts.get(record.bases, 0) + (1 if times is None else int(times[1]))
            if reads % 10_000 == 0:
                bar.at(file.position, reads, "reads")
        bar.at(file.size, reads, "reads")
    if sized:
        warnings.warn(
            f"{file.path}: {sized:,} of {reads:,} reads say by ;size= how often they were read, and count so often",
            stacklevel=2,
        )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def write_fasta(path: Path, texts: dict[str, str]) -> None:
    """Sequences by name, as `read_fasta` reads them."""
    with replacing(path) as temporary, open(temporary, "w", encoding="ascii") as file:
        file.writelines(f">{name}\n{text}\n" for name, text in texts.items())


def reverse_complement(bases: str) -> str:
    """The other strand.

    >>> reverse_complement("AACGTN")
    'NACGTT'
    """
    return bases.translate(COMPLEMENT)[::-1]


def primers_of(region: str) -> tuple[str, str]:
    """Forward and reverse primer, each 5' to 3', of a region that is known by name or given as FORWARD...REVERSE.

    Raises:
        ValueError: Neither.

    >>> primers_of("GTGYCAGCMG...ggactacnvgg")
    ('GTGYCAGCMG', 'GGACTACNVGG')
    """
    if region in REGIONS:
        return REGIONS[region]
    forward, dots, reverse = region.partition("...")
    primers = forward.translate(PLAIN), reverse.translate(PLAIN)
    if not dots or not all(len(p) >= 8 and not OTHER.search(p) for p in primers):
        raise ValueError(
            f"region must be one of {', '.join(REGIONS)}, or two primers of at least 8 bases as FORWARD...REVERSE, got "
            f"{region!r}"
        )
    return primers


def extract(texts: Sequence[str], region: str) -> list[str | None]:
    """What lies between the primers in each sequence, without them; None where they are not found on either strand, or
    where it is shorter than `SHORTEST`.

    The forward primer is looked for on the strand as given, the other behind it. Where a primer fits several times, the
    best place is taken, of equal ones the first. A base of the sequence that is ambiguous fits where the primer allows
    all that it may be.

    Args:
        region: As `primers_of`.
    """
    forward, reverse = primers_of(region)
    primers = forward, reverse_complement(reverse)
    regions = _between(texts, *primers)
    rest = [i for i, text in enumerate(regions) if text is None]
    turned = [reverse_complement(texts[i]) for i in rest]
    for i, text in zip(rest, _between(turned, *primers), strict=True):
        regions[i] = text
    return regions


TOGETHER = 1 << 24  # letters searched at a time


def _between(texts: Sequence[str], left: str, right: str) -> list[str | None]:
    regions: list[str | None] = []
    group: list[str] = []
    size = 0
    for i, text in enumerate(texts):
        group.append(text)
        size += len(text)
        if size >= TOGETHER or i == len(texts) - 1:
            letters, starts = joined(group)
            a, a_fits = _best(letters, starts[:-1], starts[1:], left)
            a += len(left)
            b, b_fits = _best(letters, np.minimum(a, starts[1:]), starts[1:], right)
            good = a_fits & b_fits & (b - a >= SHORTEST)
            local = (a - starts[:-1]).tolist(), (b - starts[:-1]).tolist()
            regions += [t[x:y] if ok else None for t, x, y, ok in zip(group, *local, good.tolist(), strict=True)]
            group, size = [], 0
    return regions


def _best(
    letters: UInt8[np.ndarray, " letters"],
    starts: Int[np.ndarray, " sequences"],
    ends: Int[np.ndarray, " sequences"],
    primer: str,
) -> tuple[Int[np.ndarray, " sequences"], Bool[np.ndarray, " sequences"]]:
    """Where the primer fits each stretch of letters with the fewest mismatches, and whether these are few enough."""
    windows = len(letters) - len(primer) + 1
    if windows < 1:
        return starts.copy(), np.zeros(len(starts), dtype=bool)
    masks = MASK[letters]
    wrong = np.zeros(windows, dtype=np.uint8)
    for i, letter in enumerate(primer):
        wrong += (masks[i : windows + i] & ~MASK[ord(letter)]) != 0
    place = starts.copy()
    fits = np.zeros(len(starts), dtype=bool)
    for i, (start, end) in enumerate(zip(starts.tolist(), (ends - len(primer) + 1).tolist(), strict=True)):
        if end > start:
            best = int(wrong[start:end].argmin())
            place[i], fits[i] = start + best, wrong[start + best] <= MISMATCHES * len(primer)
    return place, fits


# ---------------------------------------------------------------------- strands and lengths


def strand_table(texts: Sequence[str], turned: Sequence[str], k: int = STRAND) -> Float[Tensor, " kmers"]:
    """How much each k-mer speaks for the strand of `texts`: log of its share there over that in the other strand.

    They are counted once more than they occur, so that every weight is finite.
    """
    shares = []
    for strand in (texts, turned):
        counts = torch.ones(4**k, dtype=torch.float64)
        for start in range(0, len(strand), 1024):
            counts += torch.bincount(kmers_of(strand[start : start + 1024], k).numbers, minlength=4**k)
        shares.append((counts / counts.sum()).log())
    return (shares[0] - shares[1]).float()


def readable(texts: Sequence[str], strand: Float[Tensor, " kmers"]) -> tuple[list[str], Bool[np.ndarray, " sequences"]]:
    """Sequences on the strand of the references, as their k-mers tell, with a warning of those that were turned; and
    which could be read, with a warning of the others.

    Args:
        strand: `strand_table` of the references.
    """
    usable = np.zeros(len(texts), dtype=bool)
    plain, turned = [*texts], 0
    for start in range(0, len(texts), READ):
        kmers = kmers_of(plain[start : start + READ], STRAND)
        usable[start : start + READ] = (kmers.sizes > SHORTEST - STRAND).numpy()
        votes = strand[kmers.numbers].double()
        ends = torch.cat([votes.new_zeros(1), votes.cumsum(0)])
        score = ends[kmers.starts + kmers.sizes] - ends[kmers.starts]
        for i in (start + (score < 0).nonzero()[:, 0]).tolist():
            plain[i], turned = reverse_complement(plain[i]), turned + 1
    if turned:
        warnings.warn(f"{turned:,} of {len(texts):,} sequences are of the other strand, and were turned", stacklevel=4)
    if not usable.all():
        warnings.warn(
            f"{int((~usable).sum()):,} of {len(texts):,} sequences have fewer than {SHORTEST} bases without "
            "ambiguity, and are left unassigned",
            stacklevel=4,
        )
    return plain, usable


def warn_of_lengths(texts: Sequence[str], least: int, most: int) -> None:
    """Where half of the sequences are much shorter or longer than those that were learned."""
    median = float(np.median([len(text) for text in texts])) if len(texts) else float(least)
    if not SHORTER * least <= median <= LONGER * most:
        warnings.warn(
            f"half of the sequences have at {'most' if median < least else 'least'} {median:.0f} bases, the "
            f"model has learned from {least} to {most}: "
            + ("confidences may be wrong" if median < least else "cut them to the region that it has learned"),
            stacklevel=4,
        )
