"""Sequences to their candidates: the taxa that each may be of, scored by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omniset.microbiomes.likelihood import TABLE, WORDS
from omniset.microbiomes.model import CANDIDATES, TaxonNetwork
from omniset.microbiomes.shares import Candidates
from omniset.runs.files import reserve
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.dna import spectra

TOGETHER = 512  # sequences at a time
ARRAYS = (("taxon", "i4"), ("words", "f4"), ("network", "f4"))

Read = Callable[[Sequence[str]], Any]  # sequences to what a projection takes


def candidates_of(
    network: TaxonNetwork,
    read: Read,
    texts: Sequence[str],
    progress: bool = False,
    folder: Path | None = None,
    room: int = TABLE,
) -> Candidates:
    """Of sequences, the taxa with the largest logits.

    Args:
        folder: Keep them there in files, mapped into memory; None: in memory.
        room: Entries of the table of words that is in memory at a time: bounds the memory, and changes nothing.

    Raises:
        ValueError: A score that is not finite.
    """
    number, taxa = len(texts), len(network.alone.prototypes)
    shape = (number, min(CANDIDATES, taxa))
    taxon, words_scores, logits = (_room(name, kind, shape, folder) for name, kind in ARRAYS)
    made = Candidates(taxon, words_scores, logits, np.zeros(number))
    device = network.strand.device
    with Progress("scoring sequences", number * taxa, progress, unit="scores") as bar:
        for table in network.likelihood.tables(room):
            directions = network.directions(table)
            for start in range(0, number, TOGETHER):
                some = list(texts[start : start + TOGETHER])
                words = spectra(some, WORDS).to(device)
                scores = network.candidates(on(read(some), device), words, table, directions)
                require_finite_outputs(
                    scores[1] + scores[2], [f"number {start + i + 1}" for i in range(len(some))], "sequence"
                )
                rows = slice(start, start + len(some))
                made.sizes[rows] = words.sizes.cpu().numpy()
                _keep_best(
                    made,
                    rows,
                    [values.cpu().numpy() for values in scores],
                    network.weights.numpy(force=True),
                    table.first,
                )
                bar.at(table.first * number + (table.last - table.first) * (start + len(some)))
            del table  # before there is room for the next
    return made


def _room(name: str, kind: str, shape: tuple[int, int], folder: Path | None) -> np.ndarray:
    if folder is None or not shape[0]:
        return np.zeros(shape, dtype=kind)
    room = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
    reserve(folder / f"{name}.npy", room.offset + room.nbytes)
    return room


def _keep_best(made: Candidates, rows: slice, new: list[np.ndarray], weights: np.ndarray, before: int) -> None:
    """Take up new candidates where they are better.

    Args:
        new: Numbers, scores of naive Bayes, logits.
        before: Taxa that were scored before: only so many of the old candidates are some.
    """
    arrays = (made.taxon, made.words, made.network)
    width = made.taxon.shape[1]
    old = [array[rows, : min(before, width)] for array in arrays]
    both = [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]
    if both[0].shape[1] > width:
        best = np.argpartition(-(weights[0] * both[1] + weights[1] * both[2]), width - 1, axis=1)[:, :width]
        both = [np.take_along_axis(values, best, axis=1) for values in both]
    for array, values in zip(arrays, both, strict=True):
        array[rows, : values.shape[1]] = values


def on(inputs: Any, device: torch.device) -> Any:
    """What a projection takes, on a device."""
    return [one.to(device) for one in inputs] if isinstance(inputs, list) else inputs.to(device)
