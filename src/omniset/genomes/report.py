"""The reports of the genome system, lists of sections: on completed genomes, on a fitted model, on an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes import evaluate as measured
from omniset.genomes.calibration import Level
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.completion import Cohort
from omniset.genomes.evaluate import CALIBRATED, CHANGES, LOSSY, Condition, Evaluation
from omniset.genomes.kegg_modules import Modules
from omniset.genomes.metadata import WHOLE
from omniset.genomes.noise import LOSSES
from omniset.report import figures
from omniset.report.blocks import Block, Cell, Note, Plot, Report, Section, Table, many, plots_of, rounded
from omniset.report.frame import Run, compose, ends, learning, methods
from omniset.trials.comparison import Comparison
from omniset.trials.intervals import Interval, decimals

ROWS, OFTEN, DRAWN = 500, 25, 120  # of a table of genomes and of families, and bars of genomes, at most
PRECISION = 0.95  # for which the report on a fit shows thresholds
AUPRC = "AUPRC, the area under the precision-recall curve, is 1 where all missing families rank above the absent ones."
Made = tuple[Report, dict[str, Any]]

# ---------------------------------------------------------------------- completed genomes


def of_completion(
    run: Run, cohort: Cohort, *, threshold: float, precision: float | None, modules: Modules | None = None
) -> Made:
    """The report on completed genomes: sizes, changes by genome and family, novelty, warnings."""
    rows, families, number = cohort.summary, cohort.by_family, max(len(cohort.rows), 1)
    changed, rule = families[families[[*CHANGES]].any(axis=1)], f"where its probability p is at least {threshold:g}"
    if precision is not None:
        rule = f"as observed, but where at least {percent(precision)} of such changes were right on validation clades"
    totals = {name: int(rows[name].sum()) for name in ("observed", *CHANGES, "unknown_families", "far")}
    verdict = (
        f"{many(len(rows), 'genome')}: {totals['added']:,} families added as missing, {totals['added'] / number:,.1f} "
        f"to each, and {totals['removed']:,} removed, of about {rows['foreign'].sum():,.0f} that are foreign; "
        f"{totals['far']:,} far from all references, where this is less sure."
    )
    sections = [_genomes(rows), _changes(cohort, changed)]
    sections += [] if modules is None else [_modules(modules)]
    numbers = {
        **{"threshold": threshold, "precision": precision, "genomes": len(rows), "totals": totals},
        "families": changed[["family", "observed", "expected", *CHANGES]].to_dict("records"),
    }
    about = f"A family is called present {rule}. Observed were {totals['observed']:,}, over all genomes, of the "
    about += f"{len(families):,} that the model knows, and {totals['unknown_families']:,} others."
    return compose(run, verdict, about, sections, numbers, picture=plots_of(sections[0]))


def _genomes(rows: pd.DataFrame) -> Section:
    if rows.empty:
        return Section("Genomes")
    drawn = rows.head(DRAWN).sort_values("called", ascending=False, kind="stable")
    more = "" if len(rows) <= DRAWN else f" The first {DRAWN} of {len(rows):,} genomes."
    caption = f"Families of each genome: kept, added, and removed (below 0).{more}"
    parts = [("kept", drawn["kept"]), ("added", drawn["added"]), ("removed", -drawn["removed"])]
    figure = figures.stacked([(n, v.to_numpy(np.float64)) for n, v in parts], [*map(str, drawn["genome"])], "families")
    blocks: list[Block] = [Plot(figure, caption, caption, half=False)]
    shown = rows.drop(columns=["quality", "called", "kept", "unknown_families", "warnings"])
    blocks.append(_frame(f"The genomes, {ROWS} at most; the summary file has all.", shown))
    if len(warned := rows.loc[rows["warnings"] != "", ["genome", "warnings"]]):
        blocks.append(_frame("Genomes with warnings.", warned))
    text = (
        "Expected: how many families the complete genome should have, the sum of p; of 100 validation genomes 95 had a "
        "true number in the interval, which takes the completeness to be right. Novelty: 1 minus the Jaccard "
        "similarity to the nearest reference, corrected for what is missing and foreign; far: above that of 95 % of "
        "the validation genomes, whose clades the model had not seen. Of unknown families, which are not in its "
        "vocabulary, nothing is said."
    )
    return Section("Genomes", text, blocks)


def _changes(cohort: Cohort, changed: pd.DataFrame) -> Section:
    """The families that changed most often."""
    if changed.empty:
        return Section("Changes")
    blocks: list[Block] = []
    texts = [name for name in ("category", "description") if (changed[name] != "").any()]
    for change in CHANGES:
        often = changed[changed[change] > 0].nlargest(OFTEN, change)
        often = often.assign(genomes=often[change].astype(int))
        often["% of genomes"] = (100 * often["genomes"] / len(cohort.rows)).round(1)
        if len(often):
            often = often[["family", "genomes", "% of genomes", *texts]]
            blocks.append(_frame(f"Families most often {change}.", often))
    text = (
        "Added: not observed, but probably there. Removed: observed, probably foreign. Genes of real assemblies are "
        "missing together, with their contig; p comes from genomes that lost them independently: it may be too sure."
    )
    return Section("Changes", text, blocks)


def _modules(modules: Modules) -> Section:
    """How many genomes have each module."""
    sums, rows = [modules.sums[name] for name in ("observed", "called", "expected")], []
    for i, (module, (known, number)) in enumerate(zip(modules.modules, modules.known, strict=True)):
        about = [module.name, module.title, len(module.steps), f"{known} of {number}"]
        rows.append([*about, *(rounded(of[i], 1) for of in sums)])
    columns = ["module", "name", "steps", "families that the model knows", "complete as observed", "complete as called"]
    columns.append("expected")
    text = (
        "A module is complete where all of its steps are. Probabilities are those of independent families, mapped to "
        "what they were right in validation genomes. What the model does not know is absent where it was not observed."
    )
    return Section("Modules", text, [Table("Genomes in which each module is complete.", columns, rows[:ROWS])])


# ---------------------------------------------------------------------- a fitted model


def of_fit(run: Run, completer: GenomeCompleter) -> Made:
    """The report on a fitted model: data, what validation clades say, learning curves."""
    sizes, levels, histories = completer.sizes_, completer.levels_, completer.histories_
    worst, clades = max(levels, key=lambda level: level.ece), sizes["validation clades"]
    error = rounded(worst.ece, max(decimals(Interval(worst.ece, units=clades)), 3)).text
    verdict = f"{completer.compared_.verdict()} Probabilities were off by at most {error} on average."
    kept = {name: min(history, key=lambda row: row["val_loss"])["epoch"] for name, history in histories.items()}
    rows = []
    for level in levels:
        add, remove = level.threshold("added", PRECISION), 1 - level.threshold("removed", PRECISION)
        row: list[Any] = [Cell(_name(level), 1000 * level.completeness + level.contamination), rounded(level.ece)]
        row.append("never" if add == 1 else Cell(f"p \N{GREATER-THAN OR EQUAL TO} {add:.4g}", add))
        row.append("never" if remove == 0 else Cell(f"p \N{LESS-THAN OR EQUAL TO} {remove:.4g}", remove))
        rows.append([*row, rounded(level.novelty), rounded(level.off, 2)])
    columns = ["completeness / contamination", "calibration error", "add where", "remove where"]
    columns += ["far above a novelty of", "off"]
    curves = {_name(x): x.bins for x in levels if x.contamination == 0 or x is levels[-1]}
    alt = f"Share present against mean probability; calibration error at most {worst.ece:.4f}."
    weights = "The weights kept are those of the marked epoch."
    text = (
        f"Changes are made from the p on from which {percent(PRECISION)} of them are right, by the lower bound of 90 % "
        "over validation clades. A genome's size is expected \N{PLUS-MINUS SIGN} off u, where u is 2 plus how many "
        "families are expected to be missing or foreign."
    )
    diagonal = (
        "Of families given 0.8, 80 % are there where probabilities are right: on the dotted line. Each line is of "
        "genomes of a completeness / contamination, in percent; fewer than 20 pairs of genome and family make no point."
    )
    plot, table = Plot(figures.calibration_curves(curves), alt, diagonal), Table("By level of noise.", columns, rows)
    told = [asdict(level) | {c: level.threshold(c, PRECISION) for c in CHANGES} for level in levels]
    what = f"of rank {completer.clade}" if completer.with_taxonomy_ else "clusters of similar genomes"
    return compose(
        run,
        verdict,
        f"Which of {sizes['families']:,} families a genome has, learned from {many(sizes['training'], 'genome')}. "
        f"Kept back were {many(sizes['validation'], 'genome')} of {many(clades, 'clade')} ({what}), for the verdict "
        "made 70 % complete and 5 % contaminated. They told thresholds and weights too, which flatters ours a little: "
        f"evaluate tests on others, also beside stronger simple methods. {AUPRC}",
        [Section("Thresholds and limits", text, [table]), learning(histories, kept_epochs=kept, text=weights)],
        {"sizes": sizes, "histories": histories, "levels": told},
        picture=[plot],
        comparison=completer.compared_,
        settings=completer.get_params(),
    )


# ---------------------------------------------------------------------- an evaluation

# Titles, kinds of conditions, scores, and what is to be said of them.
PARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    ("Precision of changes", ("known", "whole", "estimated", "unknown"),
     ("precision_added", "precision_removed", "recall_added"),
     "What was observed is changed where enough of such changes were right on validation clades. What an incomplete "
     "genome lacks counts as absent: whole ones tell more."),
    ("Quality known", ("known",), ("auprc_missing", "auprc_foreign", "recall_missing", "f1", "worse"),
     "Families with p of at least 0.5 are called present. as-is calls what was observed: it does nothing."),
    ("Calibration", ("known", "whole"), ("ece_missing", "ece", "ece_modules"),
     f"Of families given 0.8, 80 % should be there. Asked for: below {CALIBRATED:g} among those not observed that have "
     f"at least 0.1. whole: of genomes that are at least {WHOLE:g} % complete themselves. Modules are drawn out of "
     "families that go together; those of other methods are products of probabilities."),
    ("Other losses", LOSSES[1:], ("covered", "missing_error", "auprc_missing", "f1"),
     "Genes lost otherwise than each copy by itself: 20 at a time (runs), rare families more often (accessory), or "
     f"most of some islands. {measured.ACCESSORY} is ours, told that rare families are lost more often. Intervals of "
     "sizes are of genes lost one by one, and told, of the last two."),
    ("Quality estimated or unknown", ("estimated", "unknown"), ("f1", "auprc_missing", "ece"),
     "Methods are given a completeness and contamination that is wrong by up to 5 points, or none at all."),
    ("Independent noise", ("original",), ("f1",),
     "Each family is missed, and each other one added, independently: noise as the seed was first judged with."),
)  # fmt: skip


def of_evaluation(run: Run, evaluation: Evaluation) -> Made:
    """The report on an evaluation: verdict and gates first, then every method under every condition."""
    compared, columns = evaluation.comparison, ("auprc_missing", "recall_missing", "f1", "ece_missing", "worse")
    tables = [methods(compared, condition, columns) for condition in evaluation.decisive]
    sections = [Section("Methods", "", [*tables])]
    for title, kinds, scores, text in PARTS:
        conditions = evaluation.of_kind(*kinds)
        conditions += [c for c in evaluation.of_kind("known") if c.level in LOSSY] if kinds == LOSSES[1:] else []
        sections.append(Section(title, text, [_table(compared, title, s, conditions) for s in scores if conditions]))
    splits = evaluation.splits.drop(columns=["epochs", "provenance", "verdict"], errors="ignore").astype({"seed": str})
    about = "Trained on the first part, chosen and calibrated on the second, tested once on the third: no clade in two."
    sections.append(Section("How it was tested", about, [_frame("Splits.", splits)]))
    lead = f"{many(len(compared.methods), 'method')} on {many(evaluation.rows['genome'].nunique(), 'genome')} of clades"
    return compose(
        run,
        "",
        f"{lead} that none of them has seen. Names such as 70/5 are completeness / contamination in percent. {AUPRC}",
        sections,
        evaluation.own_numbers(),
        remarks=[Note("warning", low)] if (low := evaluation.imprecise()) else [],
        comparison=compared,
    )


def _table(compared: Comparison, title: str, score: str, conditions: Sequence[Condition]) -> Table:
    """Condition by method, with intervals; without methods of which the score is not known anywhere."""
    found = {m: [compared.interval(score, c.name, m) for c in conditions] for m in compared.methods}
    found = {m: intervals for m, intervals in found.items() if any(np.isfinite(i.value) for i in intervals)}
    cells = [
        [Cell(f"{rounded(i.value, decimals(i)).text} ({ends(i)})", i.value) for i in intervals]
        for intervals in found.values()
    ]
    rows = [[condition.name, *row] for condition, *row in zip(conditions, *cells, strict=True)]
    caption = f"{title}: {compared.score(score).text}, with 95 % intervals over clades."
    return Table(caption, ["condition", *found], rows)


# ---------------------------------------------------------------------- parts


def percent(share: float) -> str:
    """With a decimal where there is one."""
    return f"{f'{100 * share:.1f}'.removesuffix('.0')} %"


def _name(level: Level) -> str:
    return f"{level.completeness:g}/{level.contamination:g}"


def _frame(caption: str, rows: pd.DataFrame) -> Table:
    cells = rows.head(ROWS).to_numpy(object).tolist()
    return Table(caption, [*rows], [[rounded(v, 2) if isinstance(v, float) else v for v in row] for row in cells])
