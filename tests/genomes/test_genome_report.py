import json
import pickle
from functools import cache

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from genome_oracle import SMALL, without_limit

from omniset.genomes import Completion, GenomeCompleter, GenomeTable, report
from omniset.genomes import completion as cohort
from omniset.genomes.calibration import BINS
from omniset.genomes.evaluate import SCORES, Evaluation
from omniset.genomes.metadata import RANKS
from omniset.genomes.simulate import simulate
from omniset.report import Note, Plot, Table, write
from omniset.report.blocks import value_of
from omniset.report.frame import Run

EVIL = '<script>alert(1)</script> & "q" $x_1$'
RUN = Run("genomes", "some", "A title", "omniset genomes", {"seed": 3}, ["take care"], ["so it was decided"])


@cache
def fitted():
    """A completer, and incomplete genomes."""
    made = simulate(genomes=61, families=83, mags=7)
    families = [EVIL, *made.families[1:]]
    categories = {EVIL: "CE", families[1]: "C", families[2]: "-", families[3]: EVIL, families[4]: "EJ"}
    table = GenomeTable(made.genomes, families, sp.csr_array(made.counts.astype(np.int32)), categories, {EVIL: EVIL})
    lineages = [line.split(";") for line in made.taxonomy[: len(made.genomes)]]
    taxonomy = pd.DataFrame(lineages, index=made.genomes, columns=[*RANKS])
    completer = GenomeCompleter(**SMALL | {"epochs": 2})
    mags = GenomeTable([EVIL, *made.mags[1:]], families, sp.csr_array(made.observed.astype(np.int32)))
    return without_limit(completer.fit(table, taxonomy)), mags


def completion(name, observed, call, **changes):
    """By hand: p is 0.9 where it is called, else 0.1."""
    observed, call = np.array(observed, dtype=bool), np.array(call, dtype=bool)
    log_odds = np.where(call, np.log(9.0), -np.log(9.0))
    given = {
        **{"unknown": {}, "completeness": 70.0, "contamination": 2.0, "given": True},
        **{"expected": float(np.where(call, 0.9, 0.1).sum()), "low": 1.0, "high": 4.0},
        **{"novelty": 0.25, "nearest": "R1", "far": False, "warnings": []},
    }
    return Completion(name, observed.astype(np.int64), log_odds, call, **(given | changes))


def cohort_of(completions, categories=("C", "CE", "", "S", "transport"), descriptions=("", "", "", "", "a pump")):
    families = [f"F{i}" for i in range(len(categories))]
    vocabulary = pd.DataFrame({"family": families, "category": categories, "description": descriptions})
    found = cohort.Cohort(families, vocabulary)
    for one in completions:
        found.add(one)
    return found


def on_completion(found, **options):
    return report.of_completion(RUN, found, **{"threshold": 0.5, "precision": None, **options})


def table_of(page, start):
    """The table whose caption starts so, as a frame of raw values."""
    tables = [b for s in page.sections for b in s.blocks if isinstance(b, Table) and b.caption.startswith(start)]
    assert len({t.caption for t in tables}) == len(tables) > 0, start
    return pd.DataFrame([[value_of(c) for c in row] for row in tables[0].rows], columns=tables[0].columns)


def plots(page):
    return [b for s in page.sections for b in s.blocks if isinstance(b, Plot)]


def notes(page):
    return [b.text for s in page.sections for b in s.blocks if isinstance(b, Note)]


def written(folder, page, numbers):
    """The page as text, and report.json, read strictly."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    path = write(folder, page, numbers)
    text = (folder / "report.json").read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8"), json.loads(text, parse_constant=refuse)


# ---------------------------------------------------------------------- completed genomes

HAND = [
    completion("a", [1, 1, 0, 0, 1], [1, 1, 1, 0, 0], unknown={"X": 2, "Y": 1}, warnings=["one", "two"]),
    completion("b", [1, 0, 0, 0, 1], [1, 1, 1, 0, 0], given=False, far=True, completeness=50.0),
    completion("c", [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], novelty=float("nan"), completeness=90.0),
]


def test_summary_by_hand():
    found = cohort_of(HAND).rows[0]
    assert found == {
        **{"genome": "a", "completeness": 70.0, "contamination": 2.0, "quality": "given", "observed": 3},
        **{"expected": pytest.approx(2.9), "low": 1.0, "high": 4.0, "called": 3, "kept": 2, "added": 1, "removed": 1},
        **{"unknown_families": 2, "unknown_share": pytest.approx(0.4), "novelty": 0.25, "nearest_reference": "R1"},
        **{"far": False, "warnings": "one; two"},
    }
    summary = cohort_of(HAND).summary
    assert summary.columns.tolist() == list(found) == cohort_of([]).summary.columns.tolist()
    assert summary["quality"].tolist() == ["given", "estimated", "given"]


def test_letters_of_categories_count_each():
    """C: F0 and F1; E: F1. F0 added in c; F1 added in b; F2 has no category; F4, a pump, removed in a and b."""
    found = cohort_of(HAND).by_category
    assert found.index.tolist() == ["C", "E", "S", "transport"]
    assert found["families"].tolist() == [2, 1, 1, 1]
    assert found["observed"].tolist() == [3, 1, 0, 2]
    assert found["expected"].tolist() == pytest.approx([0.9 * 5 + 0.1, 0.9 * 2 + 0.1, 0.3, 0.3])
    assert found["added"].tolist() == [2, 1, 0, 0]
    assert found["removed"].tolist() == [0, 0, 0, 2]
    categories = {"EEC": ["E", "C"], "Ec": ["Ec"], "-": []}
    assert {text: cohort.categories_of(text) for text in categories} == categories


def test_completion_by_hand(tmp_path):
    page, numbers = on_completion(cohort_of(HAND))
    (headline,) = [b.items for b in page.sections[0].blocks if hasattr(b, "items")]
    shown = {name: value_of(value) for name, value, _ in headline}
    assert shown == {
        **{"genomes": 3, "families added": 4, "families removed": 2},
        **{"far from references": 1, "unknown families": 2},
    }
    added, removed = (table_of(page, f"Families most often {change}.") for change in ("added", "removed"))
    assert added.iloc[:, :3].to_numpy().tolist() == [["F2", 2, 66.7], ["F0", 1, 33.3], ["F1", 1, 33.3]]
    assert removed.to_numpy().tolist() == [["F4", 2, 66.7, "transport", "a pump"]]
    genomes = table_of(page, "The genomes,")
    assert genomes["genome"].tolist() == ["a", "b", "c"]
    assert genomes["added"].tolist() == [1, 2, 1]
    assert genomes["unknown_share"].tolist() == pytest.approx([0.4, 0, 0])
    assert table_of(page, "Genomes with warnings.").to_numpy().tolist() == [["a", "one; two"]]
    assert [p.caption for p in plots(page)][1].startswith("Changes by functional category")
    assert "take care" in notes(page)
    _, found = written(tmp_path, page, numbers)
    assert found["totals"] == {"observed": 5, "added": 4, "removed": 2, "unknown_families": 2, "far": 1}
    assert [f["family"] for f in found["families"]] == ["F0", "F1", "F2", "F4"]


@pytest.mark.parametrize(
    "case", ["none", "one", "no change", "no categories", "nothing observed", "all NaN", "names", "precision"]
)
def test_odd_cohorts(case, tmp_path):
    options = {"precision": 0.95} if case == "precision" else {}
    nan = float("nan")
    genomes = {
        "none": [],
        "one": HAND[:1],
        "no change": [completion("a", [1, 0, 1, 0, 0], [1, 0, 1, 0, 0])],
        "nothing observed": HAND[2:],
        "all NaN": [completion("a", [0] * 5, [0] * 5, completeness=nan, contamination=nan, novelty=nan, expected=nan)],
        "names": [completion(EVIL, [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], nearest=EVIL, warnings=[EVIL])],
    }.get(case, HAND)
    plain = {"categories": [""] * 5, "descriptions": [""] * 5} if case == "no categories" else {}
    page, numbers = on_completion(cohort_of(genomes, **plain), **options)
    text, found = written(tmp_path, page, numbers)
    assert "<script>alert" not in text
    assert found["genomes"] == len(genomes)
    if case == "none":
        assert "There was no genome." in text
    if case in ("none", "no change", "all NaN"):
        assert "No family was added to, or removed from, any genome." in text
    if case == "no categories":
        assert table_of(page, "Families most often added.").columns.tolist() == ["family", "genomes", "% of genomes"]
    if case == "precision":
        assert "at least 95 % of such changes were right" in text
    if case == "names":
        assert "&lt;script&gt;alert(1)" in text


def test_many_genomes_are_cut_and_bounded(monkeypatch):
    """2,003 genomes of 997 families: their calls and counts alone would be 18 MB. Shown are the first ones."""
    monkeypatch.setattr(report, "ROWS", 13)
    r = np.random.default_rng(0)
    families = [f"F{i}" for i in range(997)]
    vocabulary = pd.DataFrame({"family": families, "category": "S", "description": ""})
    many = cohort.Cohort(families, vocabulary)
    changed = []
    for i in range(2003):
        observed = r.random(997) < 0.5
        call = observed ^ (r.random(997) < 0.01)
        changed.append(int((observed ^ call).sum()))
        many.add(completion(f"g{i}", observed, call, warnings=["a warning"]))
    assert len(pickle.dumps(many)) < 1e6
    assert many.summary["added"].sum() + many.summary["removed"].sum() == sum(changed)
    page, _ = on_completion(many)
    assert len(table_of(page, "The genomes, 13 at most")) == 13
    assert len(table_of(page, "Genomes with warnings.")) == 13
    assert any(p.caption.startswith("Expected number of families") for p in plots(page))


# ---------------------------------------------------------------------- a fitted model


def test_fit(tmp_path):
    completer, _ = fitted()
    page, numbers = report.of_fit(RUN, completer)
    text, found = written(tmp_path, page, numbers)
    assert "<script>alert" not in text
    limits = table_of(page, "By level of noise.")
    for i, level in enumerate(completer.levels_):
        assert limits["calibration error"][i] == level.ece
        add, remove = (level.threshold(change, 0.95) for change in ("added", "removed"))
        assert limits["add where"][i] == ("never" if add == 1 else add)
        assert limits["remove where"][i] == ("never" if remove == 1 else pytest.approx(1 - remove))
        assert limits["far above a novelty of"][i] == level.novelty
    assert found["sizes"] == completer.sizes_
    assert found["histories"]["evidence"] == completer.history_
    assert [level["ece"] for level in found["levels"]] == [level.ece for level in completer.levels_]
    assert "take care" in notes(page)
    assert "validation clade" in page.sections[0].text
    assert "of rank family" in page.sections[0].text


# ---------------------------------------------------------------------- an evaluation


MEANS = [score.name for score in SCORES if score.formula is None]


def evaluation(methods=("omniset", "seed", "as-is", "knn"), conditions=None, genomes=7, seeds=(0, 1), nan=()):
    """Rows of random numbers; seed is worst in F1, omniset best in ranking."""
    r = np.random.default_rng(0)
    wanted = conditions or ["70/0", "70/5", "70/0 estimated", "missed 0.1, foreign 0"]
    rows = []
    for seed in seeds:
        for condition in wanted:
            for i in range(genomes):
                for method in methods:
                    n, share = r.integers(1, 101, BINS).astype(float), r.random(BINS)
                    row = {"seed": seed, "genome": f"g{i}{EVIL}", "clade": f"{EVIL}{i % 3}"}
                    row |= {"condition": condition, "method": method, **{m: float(r.random()) for m in MEANS}}
                    row["f1"] = {"seed": 0.1, "as-is": 0.5}.get(method, 0.9) + 0.05 * r.random()
                    row["auprc_missing"] = (0.8 if method == "omniset" else 0.5) + 0.05 * r.random()
                    row |= dict.fromkeys(nan, np.nan)
                    for b in range(BINS):
                        of_bin = {"n": n[b], "said": n[b] * (b + 0.5) / BINS, "was": n[b] * share[b]}
                        row |= {f"{of}{k}{b}": value for k, value in of_bin.items() for of in ("", "unseen_")}
                    mine = method == "omniset" and not condition.startswith("missed")
                    row |= {f"{c}_made": 10.0 if mine else np.nan for c in ("added", "removed")}
                    row |= {"missing": 20.0, "missing_expected": 25.0}
                    row |= {"added_right": 1.0 if mine else np.nan, "removed_right": 10.0 if mine else np.nan}
                    rows.append(row)
    splits = [{"seed": s, "test genomes": 7, "epochs": {"seed": 3}, "provenance": {"seed": s}} for s in seeds]
    return Evaluation(pd.DataFrame(rows), pd.DataFrame(splits), 0.95)


@cache
def evaluated():
    made = evaluation()
    return made, *report.of_evaluation(RUN, made)


def test_evaluation(tmp_path):
    made, page, numbers = evaluated()
    text, found = written(tmp_path, page, numbers)
    assert "<script>alert" not in text
    f1 = table_of(page, "Quality known: F1,").set_index("condition")
    assert f1.columns.tolist() == ["omniset", "seed", "as-is", "knn"]
    of = made.rows.groupby(["condition", "method"])
    for condition in ("70/0", "70/5"):
        assert f1.loc[condition, "seed"] == pytest.approx(of["f1"].mean()[condition, "seed"])
    missing = table_of(page, "Quality known: AUPRC of missing").set_index("condition")
    assert missing.loc["70/5", "knn"] == pytest.approx(of["auprc_missing"].mean()["70/5", "knn"])
    ours = made.rows.query("condition == '70/0' and method == 'omniset'")
    said, was, n = (np.array([ours[f"{k}{b}"].sum() for b in range(BINS)]) for k in ("said", "was", "n"))
    ece = table_of(page, "Calibration: calibration error, with").set_index("condition")
    assert ece.loc["70/0", "omniset"] == pytest.approx(np.abs(said - was).sum() / n.sum())
    added, removed, recall = (
        table_of(page, f"Precision of changes: {score}").set_index("condition")
        for score in ("precision of added", "precision of removed", "recall of added")
    )
    assert [*added] == ["omniset"]  # no baseline has thresholds
    assert (added.loc["70/0", "omniset"], removed.loc["70/0", "omniset"]) == (0.1, 1.0)
    assert recall.loc["70/0", "omniset"] == 0.05
    assert "missed 0.1, foreign 0" not in added.index
    assert any(n.startswith("Less precise than the 95 % asked for") and "added at 70/0" in n for n in notes(page))
    gates = made.comparison.gates
    assert table_of(page, "Gates")["verdict"].tolist() == [gate.verdict for gate in gates]
    assert gates[0].opponent == made.comparison.best_baseline("auprc_missing", "70/0")
    assert table_of(page, "AUPRC of missing families, 70/0.")["method"][0] == "omniset"
    assert found["evaluation"]["verdict"] == made.comparison.verdict()
    assert found["precision"] == 0.95


TWO = ("omniset", "as-is")
RANKS_OF_CHANGES = ("auprc_missing", "auprc_foreign", "auroc_missing", "auroc_foreign")


@pytest.mark.parametrize(
    "made",
    [
        {"methods": ["omniset"], "conditions": ["70/0", "50/5"]},
        {"methods": TWO, "conditions": ["70/0"], "genomes": 1, "seeds": (5,)},
        {"methods": TWO, "conditions": ["70/0 unknown", "missed 0, foreign 0"]},
        {"methods": TWO, "conditions": ["100/0"], "nan": RANKS_OF_CHANGES},
    ],
    ids=["one method", "one genome", "no known level", "nothing to rank"],
)
def test_odd_evaluations(made, tmp_path):
    page, numbers = report.of_evaluation(RUN, evaluation(**made))
    _, found = written(tmp_path, page, numbers)
    assert found["evaluation"]["ours"] == "omniset"
