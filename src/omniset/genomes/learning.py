"""All methods learned from a part of the genomes; and anew from all of them, once the others have told when to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from omniset.genomes.calibration import clade_weights
from omniset.genomes.data import GenomeTable
from omniset.genomes.model import Mixture
from omniset.genomes.noise import LOSSES
from omniset.genomes.options import CompleterOptions
from omniset.genomes.suite import TRAINING, Suite
from omniset.genomes.training import Clades, Draws, Genomes, carriers
from omniset.training.fit import as_long

# Of large tables: genomes learned from in all epochs together, at least once each; and kept-back ones that are asked.
MOST_READ, MOST_ASKED = 30_000, 400
Histories = dict[str, list[dict[str, Any]]]


def suite_of(options: CompleterOptions, families: int, references: int, names: list[str]) -> Suite:
    """The methods, not yet learned."""
    sizes = ("encoder", "dim", "depth", "num_heads", "num_inducing", "encoder_options")
    return Suite(families, references, names, {name: getattr(options, name) for name in sizes})


def genomes_of(
    options: CompleterOptions,
    table: GenomeTable,
    clades: Clades,
    train: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    itself: Float[np.ndarray, " genomes"] | None = None,
    single: Int[np.ndarray, " single"] | None = None,
) -> tuple[Genomes, pd.DataFrame]:
    """What is learned from: vocabulary and references are those of the training genomes. Of many validation genomes 400
    are taken.

    Args:
        itself, single: See Genomes.

    Raises:
        ValueError: No family is in enough of them.
    """
    columns = np.flatnonzero(carriers(table.counts, train) >= options.min_genomes)
    if not len(columns):
        raise ValueError(f"no family is in min_genomes={options.min_genomes} training genomes")
    vocabulary = pd.DataFrame({"family": [table.families[i] for i in columns]})
    for name, known in (("category", table.categories), ("description", table.descriptions)):
        vocabulary[name] = [known.get(family, "") for family in vocabulary["family"]]
    references = _drawn(clades, train, options.max_references, options.seed)
    validation = _drawn(clades, validation, MOST_ASKED, options.seed)
    single = train[:0] if single is None else single
    counts = table.counts if len(columns) == len(table.families) else table.counts[:, columns]
    return Genomes(counts, clades, train, validation, references, itself, single), vocabulary


def singles(clades: Clades, train: Int[np.ndarray, " train"], number: int, seed: int) -> Int[np.ndarray, " single"]:
    """So many training genomes, drawn over the clades, that leave at least half of each clade."""
    shuffled = np.random.default_rng(seed).permutation(train)
    of_clade = pd.Series(clades.groups[shuffled]).groupby(clades.groups[shuffled])
    spare = (of_clade.cumcount() < of_clade.transform("size") // 2).to_numpy()
    return _drawn(clades, np.sort(shuffled[spare]), min(number, MOST_ASKED), seed)


def _drawn(clades: Clades, genomes: Int[np.ndarray, " genomes"], number: int, seed: int) -> Int[np.ndarray, " drawn"]:
    """All genomes, or so many of them, drawn over the clades."""
    if len(genomes) <= number:
        return genomes
    weights = clade_weights(clades.groups[genomes])
    chosen = np.random.default_rng(seed).choice(len(genomes), number, replace=False, p=weights / weights.sum())
    return genomes[np.sort(chosen)]


def learn(
    options: CompleterOptions,
    genomes: Genomes,
    names: list[str],
    folder: Path | None,
    *,
    epochs: dict[str, int] | None = None,
    **how: Any,
) -> tuple[Suite, Histories]:
    """The methods, learned, and a dict per epoch of those that are trained.

    Args:
        names: As for Suite.
        epochs: Of each method that is trained, instead of stopping early.
        how: resume and fingerprint of `Suite.fit`.
    """
    (lowest, highest), (cleanest, dirtiest) = options.completeness, options.contamination
    losses = LOSSES if options.losses == "mixed" else ("copies",)
    training = ("batch_size", "learning_rate", "weight_decay", "patience", "device", "progress")
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        suite = suite_of(options, genomes.counts.shape[1], len(genomes.references), names)
    histories = suite.fit(
        genomes,
        main=options.architecture,
        draws=Draws((lowest / 100, highest / 100), (cleanest / 100, dirtiest / 100), losses=losses),
        seed=options.seed,
        folder=folder,
        epochs=planned(options, len(genomes.train)),
        instead=epochs,
        **how,
        **{name: getattr(options, name) for name in training},
    )
    return suite, histories


def learn_anew(
    options: CompleterOptions,
    before: Suite,
    histories: Histories,
    number: int,
    genomes: Genomes,
    names: list[str],
    folder: Path | None,
    **how: Any,
) -> Suite:
    """The same methods, learned from all genomes: none is kept back.

    What was kept back has told when to stop (see `omniset.training.fit.as_long`) and how the parts of a mixture are
    weighted. Both are taken as they are.

    Args:
        before, histories, number: What a part of the genomes gave, and how many it has.
        names, folder, how: As in `learn`.
    """
    epochs = {}
    for name, history in histories.items():
        of_method = {} if name == options.architecture else TRAINING[name]
        stops = of_method.get("patience", options.patience) is not None  # else the last weights were taken
        best = min(history, key=lambda epoch: epoch["val_loss"]) if stops else history[-1]
        epochs[name] = as_long(int(best["epoch"]), of_method.get("epochs", planned(options, number)))
    suite, _ = learn(options, genomes, names, folder, epochs=epochs, **how)
    for name in suite.methods:
        told, method = before.methods[name], suite[name]
        if isinstance(told, Mixture) and isinstance(method, Mixture):
            method.mixture.copy_(told.mixture)
    return suite


def planned(options: CompleterOptions, genomes: int) -> int:
    """Epochs of the architecture, at most: 15, or 600 steps where genomes are few; `MOST_READ` genomes where many."""
    few = -(-600 * options.batch_size // genomes)
    return options.epochs or max(min(15, MOST_READ // genomes), few, 1)
