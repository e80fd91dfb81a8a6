"""What a user gives to be classified, in all its forms, as one table with a sequence for each of its features."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.microbiomes.samples import Samples, are_sequences, read_samples
from omniset.microbiomes.sequences import alike, dereplicate
from omniset.tables.counts import check
from omniset.tables.dna import OTHER, PLAIN, EmptyFileError, read_fasta

Table = Mapping[str, str] | str | Path  # sequences by name, or a FASTA file


def matched(
    sequences: Table | None, counts: Samples | str | Path | pd.DataFrame | None, progress: bool
) -> tuple[list[str], Samples]:
    """The sequence of each feature of the table, and the table; turned around if features are its rows' names.

    Features without a sequence are left out, with a warning.

    Raises:
        ValueError: Neither is given, they have no name in common, or bad files or values.
    """
    if sequences is None and counts is None:
        raise ValueError("sequences or counts must be given")
    texts: dict[str, str] = {}
    if sequences is not None:
        texts = read_fasta(sequences, progress) if isinstance(sequences, (str, Path)) else named(sequences, "sequences")
    if counts is None:
        return list(texts.values()), Samples(["sample"], list(texts), sp.csr_array(np.ones((1, len(texts)))))
    samples = _as_samples(counts)
    if (part := samples.counts.data % 1 > 0).any():
        warnings.warn(
            f"counts are not whole numbers, such as {samples.counts.data[part][0]:g}: give reads, not their shares; "
            "they are taken as they are",
            stacklevel=3,
        )
    if sequences is None:
        if not are_sequences(samples.features):
            if not are_sequences(samples.names):
                raise ValueError(
                    f"sequences must be given: features are names, such as {samples.features[0]!r}, not sequences"
                )
            samples = samples.turned()
        return [name.translate(PLAIN) for name in samples.features], samples
    if texts.keys().isdisjoint(samples.features) and not texts.keys().isdisjoint(samples.names):
        samples = samples.turned()
    known = np.array([name in texts for name in samples.features], dtype=bool)
    if not known.any():
        raise ValueError(
            f"sequences and counts have no feature in common: the table has such as {samples.features[0]!r}, the "
            f"sequences such as {next(iter(texts), None)!r}{alike(samples.features, texts)}"
        )
    if not known.all():
        lacking = [name for name in samples.features if name not in texts]
        share = float(samples.counts[:, ~known].sum() / max(samples.counts.sum(), 1e-300))
        warnings.warn(
            f"{len(lacking):,} of {len(known):,} features have no sequence and are left out, such as "
            f"{lacking[0]!r}; {share:.1%} of all reads are theirs{alike(lacking, texts)}",
            stacklevel=3,
        )
        features = [name for name in samples.features if name in texts]
        samples = Samples(samples.names, features, sp.csr_array(samples.counts[:, known]), samples.taxa)
    return [texts[name] for name in samples.features], samples


def named(sequences: Any, argument: str) -> dict[str, str]:
    """Sequences by name, of a mapping or a pandas Series, in capitals and as DNA.

    Raises:
        ValueError: It is something else, or a sequence has a letter that is none of the IUPAC code or is empty.
    """
    if not isinstance(sequences, (Mapping, pd.Series)):
        raise ValueError(
            f"{argument} must be a mapping of names to sequences, or a FASTA file, got a {type(sequences).__name__}"
        )
    texts: dict[Any, str] = {}
    for name, text in sequences.items():
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


def _as_samples(counts: Samples | str | Path | pd.DataFrame) -> Samples:
    if isinstance(counts, (str, Path)):
        return read_samples(counts)
    if isinstance(counts, pd.DataFrame):
        for name, kind in counts.dtypes.items():
            if kind.kind not in "iufb":
                raise ValueError(f"counts must be numbers, column {name!r} is {kind}")
        values = sp.csr_array(counts.to_numpy(dtype=np.float64))
        counts = Samples(counts.index.astype(str).tolist(), counts.columns.astype(str).tolist(), values)
    check(counts.counts, counts.names, counts.features, "counts")
    return counts


def sample_name(path: str | Path) -> str:
    """The name of a file of reads without its endings.

    >>> sample_name("runs/gut_1.fastq.gz")
    'gut_1'
    """
    name = Path(path).name
    while Path(name).suffix.lower() in (".gz", ".xz", ".bz2", ".fastq", ".fq", ".fasta", ".fa", ".fna"):
        name = Path(name).stem
    return name


def pooled(files: Sequence[Path], progress: bool) -> tuple[dict[str, str], Samples]:
    """Distinct reads of several files by name, and how often each file has them. The most frequent are named first.

    An empty file among others, such as that of a negative control, is a sample without reads.

    Raises:
        EmptyFileError: All are.
        ValueError: Two files of one name, or damaged ones.
    """
    names = [sample_name(path) for path in files]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"reads: two files would both be the sample {twice[0]!r}")
    each: list[dict[str, int]] = []
    for path in files:
        try:
            each.append(dereplicate(path, progress))
        except EmptyFileError:
            if len(files) == 1:
                raise
            each.append({})
    if not any(each):
        raise EmptyFileError(f"reads: all {len(files)} files are empty")
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
