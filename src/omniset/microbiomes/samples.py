"""Feature tables of sequences: how often each was seen in each sample; and what a user gives to be classified, in all
its forms, as one table with a sequence for each of its features.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.microbiomes.sequences import SHORTEST, UNPAIRED, dereplicate, fragment_of
from omniset.report.blocks import many
from omniset.runs.files import replacing
from omniset.tables import spreadsheets
from omniset.tables.counts import Samples, check, read_samples, without_totals
from omniset.tables.dna import OTHER, PLAIN, EmptyFileError, SequenceFile, known_as, read_fasta
from omniset.tables.doubts import judge_join, refuse_equal_rows

Table = Mapping[str, str] | str | Path  # sequences by name, or a FASTA file
Counts = Samples | str | Path | pd.DataFrame  # a feature table in any form


def write_samples(path: Path, samples: Samples) -> None:
    """A table as text, as `read_samples` reads it."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\t".join(["#OTU ID", *spreadsheets.fields(samples.names)]) + "\n")
        by_feature = samples.counts.tocsc()
        for start in range(0, len(samples.features), 1000):
            block = by_feature[:, start : start + 1000].toarray().T
            for name, row in zip(samples.features[start : start + 1000], block, strict=True):
                file.write("\t".join([spreadsheets.field(name), *(f"{value:.0f}" for value in row)]) + "\n")


def are_sequences(features: Sequence[str]) -> bool:
    """Whether the identifiers are the sequences themselves, as DADA2 has them."""
    return all(len(name) >= SHORTEST and not OTHER.search(name.translate(PLAIN)) for name in features)


# ---------------------------------------------------------------------- what is given to be classified


def matched(sequences: Table | None, counts: Counts | None, progress: bool) -> tuple[list[str], Samples]:
    """The sequence of each feature of the table, and the table; turned around if features are its rows' names.

    Features without a sequence are left out, with a warning.

    Raises:
        ValueError: Neither is given, they have no name in common, or bad files or values.
    """
    if sequences is None and counts is None:
        raise ValueError("sequences or counts must be given")
    texts = {} if sequences is None else sequences_of(sequences, "sequences", progress)
    if counts is None:
        return list(texts.values()), Samples(["sample"], list(texts), sp.csr_array(np.ones((1, len(texts)))))
    samples = _as_samples(counts)
    if (part := samples.counts.data % 1 > 0).any():
        warnings.warn(
            f"counts are not whole numbers, such as {samples.counts.data[part][0]:g}: give reads, not their shares; "
            "they are taken as they are",
            stacklevel=3,
        )
    if sequences is None and samples.sequences:
        texts = sequences_of(samples.sequences, "sequences")
    elif sequences is None:
        if not are_sequences(samples.features):
            if not are_sequences(samples.names):
                raise ValueError(
                    f"sequences must be given: features are names, such as {samples.features[0]!r}, not sequences"
                )
            samples = samples.turned()
        texts = {name: name.translate(PLAIN) for name in samples.features}
    called, note = known_as(samples.features, texts)
    if not called:
        samples, (called, note) = samples.turned(), known_as(samples.names, texts)
    if not called:
        raise ValueError(
            f"sequences and counts have no feature in common: the table has such as {samples.names[0]!r}, the "
            f"sequences such as {next(iter(texts), None)!r}"
        )
    if note:
        warnings.warn(f"features and sequences: {note}", stacklevel=3)
    if lacking := [name for name in samples.features if name not in called]:
        known = np.array([name in called for name in samples.features], dtype=bool)
        share = float(samples.counts[:, ~known].sum() / max(samples.counts.sum(), 1e-300))
        others = texts.keys() - called.values()
        judge_join(lacking, len(known), others, file="the table", other="the sequences", what="features")
        warnings.warn(
            f"{len(lacking):,} of {len(known):,} features have no sequence and are left out, such as "
            f"{lacking[0]!r}; {share:.1%} of all reads are theirs",
            stacklevel=3,
        )
        samples = Samples(samples.names, [*called], sp.csr_array(samples.counts[:, known]), samples.taxa)
    refuse_equal_samples(samples)
    return [texts[called[name]] for name in samples.features], samples


def refuse_equal_samples(samples: Samples) -> None:
    """See that samples of several features differ."""
    counts, starts = samples.counts, samples.counts.indptr
    some = np.flatnonzero(np.diff(starts) > 1)
    parts = [slice(starts[row], starts[row + 1]) for row in some]
    keys = [hash(counts.indices[at].tobytes() + counts.data[at].tobytes()) for at in parts]
    rows, names = np.array(keys, dtype=np.int64)[:, None], [samples.names[row] for row in some]
    refuse_equal_rows(rows, names, file="the feature table", what="samples")


def sequences_of(given: Any, argument: str, progress: bool = False) -> dict[str, str]:
    """Sequences by name, of a FASTA file, a mapping or a pandas Series, in capitals and as DNA.

    Raises:
        ValueError: It is something else, or a sequence has a letter that is none of the IUPAC code or is empty.
    """
    if isinstance(given, (str, Path)):
        return read_fasta(given, progress)
    if not isinstance(given, (Mapping, pd.Series)):
        raise ValueError(
            f"{argument} must be a mapping of names to sequences, or a FASTA file, got a {type(given).__name__}"
        )
    texts: dict[Any, str] = {}
    for name, text in given.items():
        if not isinstance(text, str):
            raise ValueError(f"{argument} must be text, {name!r} is a {type(text).__name__}")
        if name in texts:
            raise ValueError(f"{argument} has {name!r} a second time")
        texts[name] = text.translate(PLAIN)
        if other := OTHER.search(texts[name]):
            raise ValueError(f"{argument}: {name!r} has {other[0]!r}, which is no base of the IUPAC code")
        if not texts[name]:
            raise ValueError(f"{argument}: {name!r} has no sequence")
    return texts


def _as_samples(counts: Counts) -> Samples:
    if isinstance(counts, (str, Path)):
        return read_samples(counts)
    if isinstance(counts, pd.DataFrame):
        for name, kind in counts.dtypes.items():
            if kind.kind not in "iufb":
                raise ValueError(f"counts must be numbers, column {name!r} is {kind}")
        values = sp.csr_array(counts.to_numpy(dtype=np.float64))
        counts = Samples(counts.index.astype(str).tolist(), counts.columns.astype(str).tolist(), values)
    check(counts.counts, counts.names, counts.features, "counts")
    return without_totals("counts", counts)


def sample_name(path: str | Path) -> str:
    """The name of a file of reads without its endings.

    >>> sample_name("runs/gut_1.fastq.gz")
    'gut_1'
    """
    name = Path(path).name
    while Path(name).suffix.lower() in (".gz", ".xz", ".bz2", ".fastq", ".fq", ".fasta", ".fa", ".fna"):
        name = Path(name).stem
    return name


PAIR = re.compile(r"(.*[._-](R?))([12])((?:_\d{3})?)", re.IGNORECASE)  # S1_L001_R1_001, SRR1_1, a.R2


def of_pairs(files: Sequence[Path], pairs: str | None) -> list[Path]:
    """The files of reads, without those of second reads where pairs is "first"; with None a warning says that there are
    such: by R2 in their names, or by 2 where the first reads of both files are of one fragment.
    """
    named = {sample_name(path): path for path in files}
    second: dict[Path, Path] = {}
    for name, path in named.items():
        match = PAIR.fullmatch(name)
        first = named.get(f"{match[1]}1{match[4]}") if match is not None and match[3] == "2" else None
        if match is not None and first is not None and (match[2] or _first_fragment(first) == _first_fragment(path)):
            second[path] = first
    if second and pairs is None:
        (path, first), *_ = second.items()
        what = f"{many(len(second), 'file')} of second reads, such as {path.name} beside {first.name}"
        warnings.warn(f"reads: {what}{UNPAIRED}", stacklevel=2)
    return [path for path in files if pairs != "first" or path not in second]


def _first_fragment(path: Path) -> str:
    try:
        return fragment_of(next(iter(SequenceFile(path))))
    except EmptyFileError:
        return path.name


def pooled(
    files: Sequence[Path], progress: bool, pairs: str | None = None, sample_from: str | None = None
) -> tuple[dict[str, str], Samples]:
    """Distinct reads of several files by name, and how often each sample has them. The most frequent are named first.

    A file is a sample; with `sample_from` the names of reads say of which they are, as `dereplicate` has it. An empty
    file among others, such as that of a negative control, is a sample without reads.

    Raises:
        EmptyFileError: All are.
        ValueError: Two samples of one name, or damaged files.
    """
    names: list[str] = []
    each: list[dict[str, int]] = []
    for path in of_pairs(files, pairs):
        try:
            found = dereplicate(path, progress, pairs, sample_from)
        except EmptyFileError:
            if len(files) == 1:
                raise
            found = {} if sample_from else {"": {}}
        names += [label or sample_name(path) for label in found]
        each += found.values()
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"reads: two files would both be the sample {twice[0]!r}")
    if not any(each):
        raise EmptyFileError(f"reads: all {len(files)} files are empty, such as {files[0]}")
    total: Counter[str] = Counter()
    for counts in each:
        total.update(counts)
    order = sorted(total, key=lambda text: (-total[text], text))
    place = {text: i for i, text in enumerate(order)}
    rows = np.repeat(np.arange(len(each)), [len(counts) for counts in each])
    columns = np.array([place[text] for counts in each for text in counts])
    values = np.array([number for counts in each for number in counts.values()], dtype=np.float64)
    table = sp.csr_array((values, (rows, columns)), shape=(len(each), len(order)))
    features = [f"read{i}" for i in range(1, len(order) + 1)]
    return dict(zip(features, order, strict=True)), Samples(names, features, table)
