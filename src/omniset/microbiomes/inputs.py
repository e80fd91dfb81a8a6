"""What a user gives to be classified, in all its forms, as one table with a sequence for each of its features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.microbiomes.samples import Samples, are_sequences, read_samples
from omniset.microbiomes.sequences import read_fasta

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
        return [name.upper().replace("U", "T") for name in samples.features], samples
    known = np.array([name in texts for name in samples.features], dtype=bool)
    if not known.any() and any(name in texts for name in samples.names):
        samples = samples.turned()
        known = np.array([name in texts for name in samples.features], dtype=bool)
    if not known.any():
        raise ValueError(
            f"sequences and counts have no feature in common: the table has such as {samples.features[0]!r}, the "
            f"sequences such as {next(iter(texts), None)!r}"
        )
    if not known.all():
        lacking = samples.features[int((~known).argmax())]
        share = float(samples.counts[:, ~known].sum() / max(samples.counts.sum(), 1e-300))
        warnings.warn(
            f"{int((~known).sum()):,} of {len(known):,} features have no sequence and are left out, such as "
            f"{lacking!r}; {share:.1%} of all reads are theirs",
            stacklevel=3,
        )
        features = [name for name, there in zip(samples.features, known.tolist(), strict=True) if there]
        samples = Samples(samples.names, features, sp.csr_array(samples.counts[:, known]), samples.taxa)
    return [texts[name] for name in samples.features], samples


def named(sequences: Any, argument: str) -> dict[str, str]:
    """Sequences by name, of a mapping or a pandas Series.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(sequences, (Mapping, pd.Series)):
        raise ValueError(
            f"{argument} must be a mapping of names to sequences, or a FASTA file, got a {type(sequences).__name__}"
        )
    found = dict(sequences.items())
    for name, text in found.items():
        if not isinstance(text, str):
            raise ValueError(f"{argument} must be text, {name!r} is a {type(text).__name__}")
    return found


def _as_samples(counts: Samples | str | Path | pd.DataFrame) -> Samples:
    if isinstance(counts, Samples):
        return counts
    if isinstance(counts, pd.DataFrame):
        values = counts.to_numpy(dtype=np.float64)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError("counts must be finite and >= 0")
        return Samples(counts.index.astype(str).tolist(), counts.columns.astype(str).tolist(), sp.csr_array(values))
    return read_samples(counts)


def sample_name(path: str | Path) -> str:
    """The name of a file of reads without its endings.

    >>> sample_name("runs/gut_1.fastq.gz")
    'gut_1'
    """
    name = Path(path).name
    while Path(name).suffix.lower() in (".gz", ".xz", ".bz2", ".fastq", ".fq", ".fasta", ".fa", ".fna"):
        name = Path(name).stem
    return name
