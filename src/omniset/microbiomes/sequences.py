"""Sequences of a marker gene: counted once each, written, cut to a region by primers, turned to a strand."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from omniset.runs.files import replacing
from omniset.runs.progress import Progress
from omniset.tables.dna import OTHER, PLAIN, Record, SequenceFile, joined, kmers_of
from omniset.tables.files import short

IUPAC = {
    **{"A": "A", "C": "C", "G": "G", "T": "T", "R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"},
    **{"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"},
}
COMPLEMENT = str.maketrans("ACGTRYSWKMBDHVN", "TGCAYRSWMKVHDBN")
REGIONS = {
    "515F-806R": ("GTGYCAGCMGCCGCGGTAA", "GGACTACNVGGGTWTCTAAT"),
    "341F-805R": ("CCTACGGGNGGCWGCAG", "GACTACHVGGGTATCTAATCC"),
}
PRIMER = PLAIN | {ord("I"): "N", ord("i"): "N"}  # inosine pairs with all
MISMATCHES = 0.2  # share of a primer's bases that may differ
SHORTEST = 50  # bases: shorter sequences stay unassigned
STRAND = 7  # length of the k-mers that tell a strand
READ = 4096  # sequences looked at together
SHORTER, LONGER = 0.9, 1.2  # of the shortest and longest length learned from: beyond, a warning is due
MASK = np.zeros(256, dtype=np.uint8)  # a bit for each base that a letter may stand for
for _letter, _bases in IUPAC.items():
    MASK[ord(_letter)] = sum(1 << "ACGT".index(base) for base in _bases)
SIZE = re.compile(r"""[;\s{]"?(?:size|count)"?[=:]\s*([1-9]\d{0,14})(?!\d)""", re.ASCII)  # count: of OBITools
FALLING = re.compile(r"_(\d{1,15})$", re.ASCII)
# Which read of a pair: /1, what SRA's --readids adds, Illumina's second word, or /1 at the end.
END = re.compile(r"\S+?/([12])(?=\s|$)|[SED]RR\d+\.\d+\.([12])(?=\s|$)|\S+\s([12]):[YN]:|.*/([12])$")
FRAGMENT = re.compile(r"([SED]RR\d+\.\d+)\.[12]|(.+)/[12]")
UNPAIRED = (
    ": each fragment counts twice. Merge pairs before (vsearch --fastq_mergepairs), or say --pairs first, which leaves "
    "the second ones out, or --pairs both"
)
SAMPLE = {  # where the name of a read says of which sample it is
    "sample": re.compile(r"(?:.*[;\s])?sample=([^;\s]+)"),
    "barcodelabel": re.compile(r"(?:.*[;\s])?barcode(?:label)?=([^;\s]+)"),  # and Nanopore's barcode=
    "header": re.compile(r"([^\s;]+)[._]\d+(?=[\s;]|$)"),
}
MOST_SAMPLES = 10_000  # of a file


def dereplicate(
    path: str | Path, progress: bool = False, pairs: str | None = None, sample_from: str | None = None
) -> dict[str, dict[str, int]]:
    """By sample every distinct sequence of a file of reads, and how often it comes, most frequent first.

    A read that was counted already, as ;size= or count= behind its name says, comes so often.

    Args:
        pairs: "first": second reads of pairs are left out. "both": they are reads too. None: the same, with a warning.
        sample_from: What of a read's name is its sample, one of `SAMPLE`. None: all are of the sample "".

    Raises:
        EmptyFileError: There are none.
        ValueError: A read whose name has no sample; and as `SequenceFile`.
    """
    file = SequenceFile(path)
    counts: dict[str, dict[str, int]] = {} if sample_from else {"": {}}
    second: dict[str, dict[str, int]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    reads = sized = empty = firsts = seconds = 0
    ends: list[int] = []  # numbers behind names, as long as they fall
    before, tried = "", [*SAMPLE] if sample_from is None else [sample_from]
    with Progress(f"reading {file.path.name}", file.size, progress) as bar:
        for reads, record in enumerate(file, 1):
            header, name = record.header, record.name
            end, fragment = END.match(header), fragment_of(record)
            is_second = fragment == before if end is None else "2" in end.groups()
            before = fragment
            firsts, seconds, empty = firsts + (not is_second), seconds + is_second, empty + (not record.bases)
            label = ""
            if ("=" in header or "_" in name or "." in name) and len(seen) <= MOST_SAMPLES:
                found = ((key, SAMPLE[key].match(fragment if key == "header" else header)) for key in tried)
                key, match = next((one for one in found if one[1]), ("", None))
                label = "" if match is None else match[1]
                seen[key, label] += 1
            if sample_from is not None and not label:
                raise file.error(record.row, f"{short(name)} names no sample that sample_from={sample_from} could read")
            number = FALLING.search(name)
            if number is not None and len(ends) == reads - 1 and int(number[1]) <= (ends or [10**15])[-1]:
                ends.append(int(number[1]))
            times = SIZE.search(header) if "size" in header or "count" in header else None
            sized += times is not None
            if record.bases:
                of_sample = (second if is_second else counts).setdefault(label if sample_from else "", {})
                of_sample[record.bases] = of_sample.get(record.bases, 0) + (1 if times is None else int(times[1]))
            if reads % 10_000 == 0:
                bar.at(file.position, reads, "reads")
        bar.at(file.size, reads, "reads")
    if not firsts or pairs != "first":
        for label, of_sample in second.items():
            counts[label] = dict(Counter(counts.get(label, {})) + Counter(of_sample))
    notes = [
        (sized, f"{sized:,} of {reads:,} reads say by size= or count= how often they were read, and count so often"),
        (empty, f"{empty:,} of {reads:,} reads have no bases, and are left out"),
        (firsts and seconds and pairs is None, f"{seconds:,} of {reads:,} reads are the second of a pair{UNPAIRED}"),
    ]
    if sample_from is None and 1 < len(seen) <= min(reads / 2, MOST_SAMPLES) and seen.total() == reads:
        (key, one), (other, two), *_ = seen
        what = f"by their names the reads are of {len(seen):,} samples, such as {one!r} and {two!r}, and count as one"
        notes.append((key == other != "", f"{what}: --sample_from {key} tells them apart"))
    said = "numbers behind names fall, as swarm tells how often each was read: write a_5 as a;size=5"
    notes.append((1 < reads == len(ends) == len(seen) and ends[0] > 1, said))  # names differ, the most frequent first
    for due, note in notes:
        if due:
            warnings.warn(f"{file.path}: {note}", stacklevel=2)
    return {
        label: dict(sorted(of_sample.items(), key=lambda item: (-item[1], item[0])))
        for label, of_sample in counts.items()
    }


def fragment_of(record: Record) -> str:
    """What both reads of a pair are called."""
    match = FRAGMENT.fullmatch(record.name)
    return record.name if match is None else match[1] or match[2]


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
    primers = forward.translate(PRIMER), reverse.translate(PRIMER)
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
