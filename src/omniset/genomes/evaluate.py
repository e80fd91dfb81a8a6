"""Our model beside every baseline, on clades that none of them has seen."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes.calibration import apply_all, at_quality
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.completion import check_precision
from omniset.genomes.data import GenomeTable, Table, as_table
from omniset.genomes.metadata import completeness_of, is_whole, lineages, warn_of_small
from omniset.genomes.scores import (
    CHANGES,
    CONDITIONS,
    DECISIVE,
    SCORES,
    WHOLE_OF,
    aims,
    bins,
    by_prevalence,
    of_genomes,
    of_whole,
)
from omniset.genomes.suite import BASELINES, NO_NETWORK, UNTRAINED
from omniset.genomes.training import Clades, Genomes, split
from omniset.runs.files import provenance
from omniset.trials.comparison import OURS, Comparison
from omniset.trials.kept import Done, Kept

ARCHITECTURE = "evidence"  # of our model in an evaluation
DEFAULT = (OURS, NO_NETWORK, *BASELINES)
ALL = (*DEFAULT, "seed")
ACCESSORY = f"{OURS}-accessory"  # ours, told that rare families are lost more often


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        rows: A row per seed, test genome, condition and method: `seed`, `genome`, `clade`, `condition`, `method`, the
            scores, and what ECE, precision and bins of prevalence are made of.
        splits: A row per seed: genomes and clades in training, validation and test; families.
        precision: The precision that calls against the observation should have.
        notes: What was decided on the data, a sentence each.
    """

    rows: pd.DataFrame
    splits: pd.DataFrame
    precision: float
    notes: Sequence[str] = ()

    @cached_property
    def comparison(self) -> Comparison:
        """Means over genomes and seeds, intervals over clades."""
        return Comparison(self.rows, SCORES, "clade", "clade", ("seed", "genome"), BASELINES, aims(self.whole > 0))

    @property
    def decisive(self) -> list[str]:
        """Those of `DECISIVE` that were tested."""
        return [condition for condition in DECISIVE if condition in self.comparison.conditions]

    @property
    def whole(self) -> int:
        """How many test genomes are whole themselves; 0 where their completeness was not given."""
        return self.rows.loc[self.rows["condition"].isin([c.name for c in WHOLE_OF.values()]), "genome"].nunique()

    @property
    def columns(self) -> list[str]:
        """Of the rows, those of scores.csv.gz: what rows are of, and the scores that each has."""
        names = ["condition", "method", "clade", "seed", "genome", *(score.name for score in SCORES)]
        return [name for name in names if name in self.rows]

    def reliability(self, condition: str) -> dict[str, list[tuple[int, float, float]]]:
        """By method, see `omniset.genomes.scores.bins`."""
        return {method: bins(rows) for method, rows in self._by_method(condition)}

    def by_prevalence(self, condition: str) -> dict[str, dict[str, float]]:
        """By method, see `omniset.genomes.scores.by_prevalence`."""
        return {method: by_prevalence(rows) for method, rows in self._by_method(condition)}

    def changes(self, condition: str) -> dict[str, float]:
        """How many families ours added and removed per genome, at the chosen precision; NaN where it made none."""
        rows = dict(self._by_method(condition)).get(OURS, self.rows[:0])
        return {change: float(rows.get(f"{change}_made", pd.Series(dtype=float)).mean()) for change in CHANGES}

    def own_numbers(self) -> dict[str, Any]:
        """What is measured of genomes alone."""
        return {
            "splits": self.splits.to_dict("records"),
            "precision": self.precision,
            "whole": self.whole,
            "changes": {condition: self.changes(condition) for condition in self.comparison.conditions},
            "prevalence": {condition: self.by_prevalence(condition) for condition in self.decisive},
            "reliability": {condition: self.reliability(condition) for condition in self.decisive},
        }

    def numbers(self) -> dict[str, Any]:
        """What metrics.json has."""
        return {**self.comparison.numbers(), **self.own_numbers(), "notes": [*self.notes]}

    def _by_method(self, condition: str) -> list[tuple[str, pd.DataFrame]]:
        there = self.rows[self.rows["condition"] == condition]
        return [(str(method), rows) for method, rows in there.groupby("method", sort=False)]


def evaluate(
    table: Table,
    taxonomy: pd.DataFrame | None = None,
    quality: pd.DataFrame | None = None,
    *,
    methods: Sequence[str] = DEFAULT,
    seeds: int = 3,
    test_fraction: float = 0.2,
    precision: float = 0.95,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
    **arguments: Any,
) -> Evaluation:
    """Split by clade, train on the first part, choose and calibrate on the second, test once on the third.

    Args:
        table, taxonomy: As in `GenomeCompleter.fit`.
        quality: As in `GenomeCompleter.fit`. Test genomes that are whole themselves are then also judged alone, and
            tell whether probabilities and sizes are right.
        methods: Beside "omniset" and the untrained ones, which are always there. "seed" takes hundreds of epochs to
            learn, and is not among them unless it is named.
        seeds: Number of splits, each with weights and noise of its own.
        test_fraction: Share of the genomes kept for the test, by whole clades.
        precision: At which calls against the observation are judged.
        folder: Keep the rows of each seed here, for `resume`.
        say: Is given a line on what is being done.
        arguments: Of GenomeCompleter.

    Raises:
        ValueError: An unknown method, a number out of its bounds, too few clades; a quality of none of the genomes.
    """
    _check(methods, seeds, test_fraction, precision, arguments)
    first = arguments.pop("seed", 0)
    completer = GenomeCompleter(seed=first, **arguments)
    completer.check_arguments()
    warn_of_small(completer.contamination)
    genomes = as_table(table)
    itself = completeness_of(quality, genomes.names)
    clades = Clades.of(genomes.counts, taxonomy, genomes.names, completer.clade)
    counts = np.concatenate([genomes.counts.indptr, genomes.counts.indices, genomes.counts.data]).astype(np.int64)
    data = zlib.crc32(clades.codes.tobytes(), zlib.crc32(counts.tobytes()))
    data = data if itself is None else zlib.crc32(itself.tobytes(), data)
    store = Kept(folder, resume)
    units: list[Done] = []
    for seed in range(first, first + seeds):
        completer = GenomeCompleter(**arguments, seed=seed)
        settings = {**completer.plain(), "methods": sorted(methods), "test_fraction": test_fraction}
        settings |= {"precision": precision, "data": data}
        work = partial(_one_seed, completer, genomes, taxonomy, quality, clades, methods, test_fraction, precision, say)
        units.append(store.do(f"seed_{seed}", settings, work))
    rows = pd.concat([unit.rows for unit in units], ignore_index=True)
    names = [] if itself is None else np.array(genomes.names)[is_whole(itself)]
    rows = pd.concat([rows, of_whole(rows, names)], ignore_index=True)
    return Evaluation(rows, pd.DataFrame([unit.facts for unit in units]), precision, clades.notes())


def _check(
    methods: Sequence[str], seeds: int, test_fraction: float, precision: float, arguments: dict[str, Any]
) -> None:
    for name in methods:
        if name not in ALL:
            raise ValueError(f"methods must be out of {', '.join(ALL)}; got {name!r}")
    for name in ("architecture", "method"):
        if name in arguments:
            raise ValueError(f"{name} is not for evaluate: it compares {OURS!r} with the methods that are asked for")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not 0 < test_fraction < 0.9:
        raise ValueError(f"test_fraction must be above 0 and below 0.9, got {test_fraction}")
    check_precision(precision)


def _one_seed(
    completer: GenomeCompleter,
    table: GenomeTable,
    taxonomy: pd.DataFrame | None,
    quality: pd.DataFrame | None,
    clades: Clades,
    methods: Sequence[str],
    test_fraction: float,
    precision: float,
    say: Callable[[str], None],
) -> Done:
    say(f"seed {completer.seed}: training")
    rng = np.random.default_rng(completer.seed)
    train, test, validation = split(clades.groups, (test_fraction, completer.validation_fraction), rng)
    if not len(test):
        raise ValueError(
            f"test_fraction={test_fraction} of {len(table)} genomes is less than any clade has: take a lower rank"
        )
    also = [m for m in methods if m not in (*UNTRAINED, OURS)]
    completer.fit_split(table, taxonomy, clades, train, validation, quality=quality, also=also)
    suite = completer.network_
    chosen = {OURS: suite[ARCHITECTURE]} | {name: suite[name] for name in ALL if name in suite.methods}
    # The noise of the test draws its donors from the training genomes. What a test genome has is the truth here.
    genomes = Genomes(completer.columns(table), clades, train, validation)
    labels = _clade_names(taxonomy, table, clades, completer.clade)[test]
    prevalence, frames = suite.noise.prevalence.numpy(), []
    for number, condition in enumerate(CONDITIONS):
        say(f"seed {completer.seed}: testing at {condition.name} ({number + 1} of {len(CONDITIONS)})")
        # A condition of its own noise; methods see the same.
        noise_seed = 7919 * (completer.seed + 1) + number
        noise: dict[str, Any] = {"kind": condition.stated, "seed": noise_seed, "lost": condition.lost, "shift": True}
        completed = apply_all(chosen, genomes, test, condition.of_data, **noise)
        completed[ACCESSORY] = completed[OURS].shifted
        levels = {OURS: completer.levels_, ACCESSORY: completer.accessory_levels_}
        at = {} if condition.kind == "original" else {m: at_quality(v, *condition.level) for m, v in levels.items()}
        scores = {m: of_genomes(n, prevalence, at.get(m), precision) for m, n in completed.items()}
        for method, frame in scores.items():
            about = {"seed": completer.seed, "genome": [table.names[i] for i in test], "clade": labels}
            about |= {"condition": condition.name, "method": method}
            worse = frame["f1"].to_numpy() < scores["as-is"]["f1"].to_numpy() - 1e-12
            frames.append(pd.concat([pd.DataFrame(about), frame.assign(worse=worse.astype(float))], axis=1))
    parts = {"training": train, "validation": validation, "test": test}
    facts = {
        "seed": completer.seed,
        **{f"{name} genomes": len(part) for name, part in parts.items()},
        **{f"{name} clades": len(np.unique(clades.groups[part])) for name, part in parts.items()},
        "families": len(completer.families_),
        "epochs": {OURS if m == ARCHITECTURE else m: len(history) for m, history in completer.histories_.items()},
        "seconds": completer.seconds_,
        "provenance": provenance(completer.seed),
    }
    return Done(facts, pd.concat(frames, ignore_index=True))


def _clade_names(taxonomy: pd.DataFrame | None, table: GenomeTable, clades: Clades, rank: str) -> np.ndarray:
    """A genome without a clade is one of its own."""
    names: Any = clades.groups
    if taxonomy is not None:
        names = [clade or name for clade, name in zip(lineages(taxonomy, table.names)[rank], table.names, strict=True)]
    return pd.Series(np.asarray(names)).astype(str).to_numpy()
