"""Our model beside every baseline, on clades that none of them has seen: what is measured of completed genomes whose
truth is known, under which noise, and the gates of our model.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.genomes import training
from omniset.genomes.calibration import BINS, LEVELS, MISSING, Level, at_quality, check_precision, ranked
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.data import GenomeTable, Table, as_table
from omniset.genomes.kegg_modules import Module, Modules, Node
from omniset.genomes.metadata import completeness_of, is_whole, lineages
from omniset.genomes.noise import LOSSES
from omniset.genomes.training import MAKERS, NO_NETWORK, UNTRAINED, Clades, Genomes, Noisy, apply_all, degraded, split
from omniset.runs.files import provenance
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.intervals import Draws, Values
from omniset.trials.kept import Done, Kept

ACCESSORY = f"{OURS}-accessory"  # ours, told that rare families are lost more often
OF_OURS = (OURS, NO_NETWORK, ACCESSORY, "evidence", "seed")  # all others are baselines
NAMES = {
    OURS: "ours",
    NO_NETWORK: "ours without the network",
    ACCESSORY: "ours, told of rare families",
    "as-is": "what was observed",
    "prevalence": "share of references",
    "prevalence-bayes": "the same, and the evidence",
    "knn": "most similar references",
    "knn-likelihood": "likeliest references",
    "pca": "principal components",
    "mean": "of the strongest baselines",
}
DEFAULT = (NO_NETWORK, "pca", "autoencoder", "mean")  # methods beside ours and the untrained ones
TEST_FRACTION = 0.2  # share of the genomes that is kept for the test, by whole clades
# (missed, foreign) at which the public original was judged, independent noise of families.
ORIGINAL = ((0.0, 0.0), (0.10, 0.0), (0.25, 0.01), (0.50, 0.01), (0.75, 0.01))
LOSSY = ((95.0, 0.0), (70.0, 0.0), (50.0, 0.0))
LESS_KNOWN = ((100.0, 0.0), (95.0, 0.0), (70.0, 0.0), (50.0, 0.0), (70.0, 5.0))
DECISIVE = ("95/0", "70/0", "50/0", "70/5")  # conditions at which ours has to beat the best baseline
CHANGES = ("added", "removed")
MODULES, NEAR = 100, 20  # modules that are drawn, and families of which each is made
CALIBRATED, COVERED = 0.05, 0.9  # largest calibration error of missing families; least share of sizes in their interval


@dataclass(frozen=True)
class Condition:
    """A level of noise, and what methods read of it."""

    # Completeness and contamination in percent; or (missed, foreign) rates of independent noise.
    level: tuple[float, float]
    # "known", "estimated" (within 5 points), "unknown"; "original" for independent noise, which methods read; one of
    # `noise.LOSSES` for genes that are lost otherwise than by copies, at a known quality. With "whole" at the end, or
    # for "known": of those test genomes alone that are whole themselves, see `metadata.WHOLE`.
    kind: str

    @property
    def name(self) -> str:
        a, b = self.level
        if self.kind == "original":
            return f"missed {a:g}, foreign {b:g}"
        return f"{a:g}/{b:g}" + ("" if self.kind == "known" else f" {self.kind}")

    @property
    def stated(self) -> str:
        """What methods read: "known", "estimated" or "unknown"."""
        return self.kind if self.kind in ("estimated", "unknown") else "known"

    @property
    def lost(self) -> str:
        """How genes are lost."""
        return self.kind if self.kind in LOSSES else LOSSES[0]

    @property
    def of_data(self) -> tuple[float, float] | str:
        return f"iid:{self.level[0]}:{self.level[1]}" if self.kind == "original" else self.level


CONDITIONS = (
    *(Condition(level, "known") for level in LEVELS),
    *(Condition(level, kind) for kind in ("estimated", "unknown") for level in LESS_KNOWN),
    *(Condition(level, "original") for level in ORIGINAL),
    *(Condition(level, lost) for lost in LOSSES[1:] for level in LOSSY),
)
# Of each condition of a known quality, but of whole genomes alone.
WHOLE_OF = {
    c: Condition(c.level, "whole" if c.kind == "known" else f"{c.kind} whole")
    for c in CONDITIONS
    if c.kind in ("known", *LOSSES) and c.level[0] < 100
}


def of_whole(rows: pd.DataFrame, whole: Collection[str]) -> pd.DataFrame:
    """The rows of the conditions of whole genomes, see `WHOLE_OF`.

    Args:
        rows: With the columns condition and genome.
        whole: Names of the whole genomes.
    """
    names = {one.name: whole.name for one, whole in WHOLE_OF.items()}
    chosen = rows[rows["genome"].isin(list(whole)) & rows["condition"].isin(list(names))]
    return chosen.assign(condition=chosen["condition"].map(names))


def calibration_error(sums: Sequence[str], first: int, rows: pd.DataFrame, draws: Draws) -> Values:
    """Expected calibration error of pairs of genome and family, or module; NaN where there is none:

        Σ_b |Σ p - Σ y| / Σ_b n,   b the tenths of probability, n the pairs in each, y 1 where the family is there.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", 2015.

    Args:
        sums: Columns that have n, Σ p and Σ y of each tenth.
        first: The tenth from which on they count.
    """
    columns = [f"{k}{b}" for k in sums for b in range(first, BINS)]
    if columns[0] not in rows:
        return np.full(len(draws), np.nan)
    number, predicted, present = np.split(draws.sums(rows[columns].to_numpy(np.float64)), 3, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(predicted - present).sum(1) / number.sum(1)


def ratio_of(over: str, under: str, rows: pd.DataFrame, draws: Draws) -> Values:
    """Sum of a column over that of another; NaN where the columns are not there, or the latter is 0."""
    if over not in rows or under not in rows:
        return np.full(len(draws), np.nan)
    above, below = draws.sums(np.column_stack([rows[name].to_numpy(np.float64) for name in (over, under)])).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return above / below


def error_of_missing(rows: pd.DataFrame, draws: Draws) -> Values:
    """|expected / true - 1| of the number of families that are there and were not observed, over all genomes."""
    return np.abs(ratio_of("missing_expected", "missing", rows, draws) - 1)


SUMS = ("n", "said", "was")  # columns of a row for each tenth of probability: pairs, sum of p, families that are there
SUMS_OF_MISSING = ("unseen_n", "unseen_said", "unseen_was")  # the same of families that were not observed
SUMS_OF_MODULES = ("module_n", "module_said", "module_was")  # of modules that a genome has or lacks as a whole
share = partial(Score, share=True)
SCORES = (
    MISSING,
    share("recall_missing", "recall of missing families"),
    share("f1", "F1"),
    share(
        "ece_missing",
        "calibration error of missing families",
        larger=False,
        # Of a probability below 0.1 all are trivial.
        formula=partial(calibration_error, SUMS_OF_MISSING, 1),
    ),
    share("ece", "calibration error", larger=False, formula=partial(calibration_error, SUMS, 0)),
    share("auprc_foreign", "AUPRC of foreign families"),
    share("auroc_missing", "AUROC of missing families"),
    share("auroc_foreign", "AUROC of foreign families"),
    share("brier", "Brier score", larger=False),
    Score("log_loss", "log loss", larger=False),
    Score("size_error", "size error", larger=False),
    Score("missing_error", "error of the number of missing families", larger=False, formula=error_of_missing),
    share("worse", "share of genomes made worse", larger=False),
    share("precision_added", "precision of added families", formula=partial(ratio_of, "added_right", "added_made")),
    share(
        "precision_removed", "precision of removed families", formula=partial(ratio_of, "removed_right", "removed_made")
    ),
    share("recall_added", "recall of added families", formula=partial(ratio_of, "added_right", "missing")),
    share("covered", "sizes within their interval"),
    Score("width", "families in the interval of the size", larger=False),
    share(
        "ece_modules",
        "calibration error of modules",
        larger=False,
        formula=partial(calibration_error, SUMS_OF_MODULES, 1),
    ),
)


def aims(whole: bool) -> tuple[Aim, ...]:
    """What is asked of a useful model: it ranks missing families better than the best baseline, spoils no genome that
    is nearly complete, gives probabilities that are right, and intervals that hold.

    Args:
        whole: It is known which test genomes are whole: these judge probabilities and sizes, which are of organisms.
    """
    names = {one: WHOLE_OF[one].name if whole else one.name for one in WHOLE_OF}
    return (
        *(Aim(name, "auprc_missing") for name in DECISIVE),
        *(Aim(name, "f1", "as-is", bound=-0.003) for name in ("100/0", "95/0")),
        *(Aim(names[c], "ece_missing", None, bound=CALIBRATED, most=True) for c in names if c.kind == "known"),
        *(Aim(names[c], "covered", None, bound=COVERED) for c in names if c.kind == "known" and c.level in LOSSY),
    )


def of_genomes(
    noisy: Noisy, level: Level | None, precision: float, modules: Modules | None = None, given: bool = True
) -> pd.DataFrame:
    """Everything that is measured, a row per genome.

    Args:
        level: Whose thresholds make changes; None: none are made.
        precision: Of these.
        modules: Of which it is measured how right their probabilities are.
        given: The quality of the genomes is, by which intervals of sizes are taken.
    """
    rows, found = [], []
    if modules is not None:
        found = [whole for whole, _ in modules.complete(np.stack([noisy.probability, noisy.truth]))]
    of_modules = np.stack(found, 2) if found else np.zeros((2, len(noisy.rows), 0))
    everything = zip(noisy.truth, noisy.observed, noisy.log_odds.astype(np.float64), *of_modules, strict=True)
    for truth, observed, odds, said, was in everything:
        p = 1 / (1 + np.exp(-odds))
        call = p >= 0.5
        both, calls, there = truth & call, call.sum(), truth.sum()
        missing = truth & ~observed
        row = {
            "missing": float(missing.sum()),
            "missing_expected": float(p[~observed].sum()),
            "recall_missing": float(call[missing].mean()) if missing.any() else np.nan,
            "f1": 2 * both.sum() / max(calls + there, 1),
            **ranked("missing", odds[~observed], truth[~observed]),
            **ranked("foreign", -odds[observed], ~truth[observed]),
            "brier": float(np.square(p - truth).mean()),
            "log_loss": float(np.logaddexp(0, np.where(truth, -odds, odds)).mean()),
            "size_error": float(abs(p.sum() - there) / max(there, 1)),
        }
        which = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        sums = {key: np.bincount(which, weights, BINS) for key, weights in zip(SUMS, (None, p, truth), strict=True)}
        of_unseen = (None, p[~observed], truth[~observed])
        for key, weights in zip(SUMS_OF_MISSING, of_unseen, strict=True):
            sums[key] = np.bincount(which[~observed], weights, BINS)
        if len(said):
            which = np.minimum((said * BINS).astype(np.int64), BINS - 1)
            for key, weights in zip(SUMS_OF_MODULES, (None, said, was), strict=True):
                sums[key] = np.bincount(which, weights, BINS)
        row |= {f"{key}{b}": float(value) for key, values in sums.items() for b, value in enumerate(values)}
        row["covered"] = row["width"] = np.nan
        if level is not None:
            changes = level.changes(p, observed, precision)
            for change, made, right in zip(CHANGES, changes, (truth, ~truth), strict=True):
                row |= {f"{change}_made": float(made.sum()), f"{change}_right": float((made & right).sum())}
            _, low, high = level.size(odds, observed, given)
            row |= {"covered": float(low <= there <= high), "width": high - low}
        rows.append(row)
    return pd.DataFrame(rows)


def drawn_modules(
    counts: sp.csr_array, families: Sequence[str], rng: np.random.Generator, number: int = MODULES
) -> list[Module]:
    """Modules as KEGG's are made, out of families that go together: 2 to 8 steps around one family that at least a
    twentieth of the genomes has and a twentieth lacks, each out of the 20 that are correlated with it most, a third of
    them with an alternative. Which families of a file of KEGG's a table has is not known here.
    """
    present = (counts > 0).astype(np.float64)
    share = present.mean(0)
    centres = np.flatnonzero((share >= 0.05) & (share <= 0.95))
    if len(families) < NEAR or not len(centres):
        return []
    modules = []
    for at, centre in enumerate(rng.choice(centres, number)):
        together = (present[:, [centre]].T @ present).toarray()[0] / len(counts.indptr[1:]) - share[centre] * share
        near = np.argsort(-together / np.sqrt(share * (1 - share)).clip(1e-3), kind="stable")[:NEAR]
        taken = iter(rng.permutation(near))
        steps = []
        for _ in range(rng.integers(2, 9)):
            ways = [Node("family", families[next(taken)]) for _ in range(1 + (rng.random() < 1 / 3))]
            steps.append(ways[0] if len(ways) == 1 else Node("or", parts=tuple(ways)))
        modules.append(Module(f"M{at}", "", tuple(steps)))
    return modules


# ---------------------------------------------------------------------- the evaluation


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        rows: A row per seed, test genome, condition and method: `seed`, `genome`, `clade`, `condition`, `method`, the
            scores, and what ECE and precision are made of.
        splits: A row per seed: genomes and clades in training, validation and test; families.
        precision: The precision that calls against the observation should have.
        notes: What was decided on the data, a sentence each.
    """

    rows: pd.DataFrame
    splits: pd.DataFrame
    precision: float
    notes: Sequence[str] = ()

    @property
    def baselines(self) -> list[str]:
        return [str(name) for name in self.rows["method"].unique() if name not in OF_OURS]

    @cached_property
    def comparison(self) -> Comparison:
        """Means over genomes and seeds, intervals over clades."""
        about: dict[str, Any] = {"baselines": self.baselines, "aims": aims(self.whole > 0), "names": NAMES}
        return Comparison(self.rows, SCORES, "clade", "clade", ("seed", "genome"), **about)

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

    def changes(self, condition: str) -> dict[str, float]:
        """How many families ours added and removed per genome, at the chosen precision; NaN where it made none."""
        rows = self.rows[(self.rows["condition"] == condition) & (self.rows["method"] == OURS)]
        return {change: float(rows.get(f"{change}_made", pd.Series(dtype=float)).mean()) for change in CHANGES}

    def own_numbers(self) -> dict[str, Any]:
        """What no other system measures."""
        return {
            "splits": self.splits.to_dict("records"),
            "precision": self.precision,
            "whole": self.whole,
            "changes": {condition: self.changes(condition) for condition in self.comparison.conditions},
        }

    def numbers(self) -> dict[str, Any]:
        """What metrics.json has."""
        return {**self.comparison.numbers(), **self.own_numbers(), "notes": [*self.notes]}

    def of_kind(self, *kinds: str) -> list[Condition]:
        """The conditions of these kinds that were tested."""
        there = [c for c in (*CONDITIONS, *WHOLE_OF.values()) if c.name in self.comparison.conditions]
        return [c for kind in kinds for c in there if c.kind == kind]

    def imprecise(self) -> str:
        """Where changes are right less often than asked for, by more than chance; empty where nowhere."""
        low = [
            f"{change} at {condition.name}"
            for condition in self.of_kind("known", "whole", "estimated", "unknown")
            for change in CHANGES
            if self.comparison.interval(f"precision_{change}", condition.name, OURS).high < self.precision
        ]
        asked = f"Less precise than the {100 * self.precision:g} % asked for, by more than chance"
        return f"{asked}: {', '.join(low)}." if low else ""


@dataclass
class Known:
    """Genomes to evaluate on, and what is known of them: see `GenomeCompleter.fit`."""

    table: GenomeTable
    taxonomy: pd.DataFrame | None
    quality: pd.DataFrame | None
    clades: Clades

    def clade_names(self, rank: str) -> list[str]:
        """A genome without a clade is one of its own."""
        if self.taxonomy is None:
            return [*map(str, self.clades.groups)]
        names = self.table.names
        return [clade or name for clade, name in zip(lineages(self.taxonomy, names)[rank], names, strict=True)]


def evaluate(
    table: Table,
    taxonomy: pd.DataFrame | None = None,
    quality: pd.DataFrame | None = None,
    *,
    methods: Sequence[str] = DEFAULT,
    seeds: int = 3,
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
        methods: Beside "omniset" and the untrained ones, which are always there, out of
            `omniset.genomes.training.MAKERS`; "pca" and "autoencoder" before their "mean".
        seeds: Number of splits, each with weights and noise of its own.
        precision: At which calls against the observation are judged.
        folder: Keep the rows of each seed here, for `resume`.
        say: Is given a line on what is being done.
        arguments: Of GenomeCompleter.

    Raises:
        ValueError: An unknown method, a number out of its bounds, too few clades; a quality of none of the genomes.
    """
    first = arguments.pop("seed", 0)
    completer = GenomeCompleter(seed=first, **arguments)
    completer.check_arguments()
    there = [OURS, *(name for name in MAKERS if name != completer.architecture)]
    if unknown := [name for name in methods if name not in there]:
        raise ValueError(f"methods must be out of {', '.join(there)}; got {unknown[0]!r}")
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    check_precision(precision)
    if completer.architecture != "evidence":
        methods = [name for name in methods if name != NO_NETWORK]  # it has none but its network
    genomes = as_table(table)
    itself = completeness_of(quality, genomes.names)
    clades = Clades.of(genomes.counts, taxonomy, genomes.names, completer.clade)
    counts = np.concatenate([genomes.counts.indptr, genomes.counts.indices, genomes.counts.data]).astype(np.int64)
    data = zlib.crc32(clades.codes.tobytes(), zlib.crc32(counts.tobytes()))
    data = data if itself is None else zlib.crc32(itself.tobytes(), data)
    store, known = Kept(folder, resume), Known(genomes, taxonomy, quality, clades)
    units: list[Done] = []
    for seed in range(first, first + seeds):
        completer = GenomeCompleter(**arguments, seed=seed)
        settings = {**completer.plain(), "methods": sorted(methods), "precision": precision, "data": data}
        work = partial(_one_seed, completer, known, methods, precision, say)
        units.append(store.do(f"seed_{seed}", settings, work))
    rows = pd.concat([unit.rows for unit in units], ignore_index=True)
    names = [] if itself is None else np.array(genomes.names)[is_whole(itself)]
    rows = pd.concat([rows, of_whole(rows, names)], ignore_index=True)
    splits = [unit.facts for unit in units]
    verdicts = [f"seed {facts['seed']}: {facts['verdict']}" for facts in splits if facts["verdict"]]
    return Evaluation(rows, pd.DataFrame(splits), precision, [*clades.notes(), *verdicts])


def _one_seed(
    completer: GenomeCompleter,
    known: Known,
    methods: Sequence[str],
    precision: float,
    say: Callable[[str], None],
) -> Done:
    say(f"seed {completer.seed}: training")
    table, clades, rng = known.table, known.clades, np.random.default_rng(completer.seed)
    train, test, validation = split(clades.groups, (TEST_FRACTION, training.VALIDATION_FRACTION), rng)
    if not len(test):
        raise ValueError(
            f"there is no test genome: a share of {TEST_FRACTION:g} of {len(table)} genomes is less than any clade of "
            f"rank {completer.clade!r} has; take a lower rank as clade"
        )
    also = [*UNTRAINED, *(m for m in methods if m != OURS)]
    completer.fit_split(table, known.taxonomy, clades, train, validation, quality=known.quality, also=also)
    suite, main = completer.network_, completer.architecture
    drawn = drawn_modules(completer.columns(table)[train], completer.families_, rng)
    # Ours are calibrated, those of others are products of probabilities.
    each = {True: completer.asked_, False: None} if drawn else {}
    ways = {ours: Modules(drawn, completer.families_, told) for ours, told in each.items()}
    chosen = {OURS: suite[main]} | {name: suite[name] for name in (NO_NETWORK, *MAKERS) if name in also}
    # The noise of the test draws its donors from the training genomes. What a test genome has is the truth here.
    genomes = Genomes(completer.columns(table), clades, train, validation)
    clade_names = known.clade_names(completer.clade)
    named = {"genome": [table.names[i] for i in test], "clade": [clade_names[i] for i in test]}
    frames = []
    for number, condition in enumerate(CONDITIONS):
        say(f"seed {completer.seed}: testing at {condition.name} ({number + 1} of {len(CONDITIONS)})")
        # A condition of its own noise; methods see the same.
        noise_seed = 7919 * (completer.seed + 1) + number
        noisy = degraded(genomes, test, condition.of_data, condition.stated, noise_seed, condition.lost)
        completed = apply_all(chosen, genomes, noisy, shift=True)
        completed[ACCESSORY] = completed[OURS].shifted
        levels = {OURS: completer.levels_, ACCESSORY: completer.accessory_levels_}
        at = {} if condition.kind == "original" else {m: at_quality(v, *condition.level) for m, v in levels.items()}
        asked = ways if condition.kind == "known" else {}
        given = condition.kind != "unknown"
        scores = {m: of_genomes(n, at.get(m), precision, asked.get(m in levels), given) for m, n in completed.items()}
        for method, frame in scores.items():
            about = {"seed": completer.seed, **named, "condition": condition.name, "method": method}
            worse = frame["f1"].to_numpy() < scores["as-is"]["f1"].to_numpy() - 1e-12
            frames.append(pd.concat([pd.DataFrame(about), frame.assign(worse=worse.astype(float))], axis=1))
    parts = {"training": train, "validation": validation, "test": test}
    facts = {
        "seed": completer.seed,
        **{f"{name} genomes": len(part) for name, part in parts.items()},
        **{f"{name} clades": len(np.unique(clades.groups[part])) for name, part in parts.items()},
        "families": len(completer.families_),
        "epochs": {OURS if m == main else m: len(history) for m, history in completer.histories_.items()},
        "seconds": completer.seconds_,
        "verdict": getattr(suite[main], "verdict", ""),
        "provenance": provenance(completer.seed),
    }
    return Done(facts, pd.concat(frames, ignore_index=True))
