import itertools
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from genome_oracle import completion

from omniset.genomes import completion as cohort
from omniset.genomes import report
from omniset.genomes.calibration import BINS
from omniset.genomes.evaluate import Evaluation, of_genomes
from omniset.genomes.training import Noisy
from omniset.report import Note, Plot, Table, write
from omniset.report.blocks import value_of
from omniset.report.frame import Run

EVIL = '<script>alert(1)</script> & "q" $x_1$'
RUN = Run("genomes", "some", "A title", "omniset genomes", {"seed": 3}, ["take care"], ["so it was decided"])


def cohort_of(completions, categories=("C", "CE", "", "S", "transport"), descriptions=("", "", "", "", "a pump")):
    families = [f"F{i}" for i in range(len(categories))]
    vocabulary = pd.DataFrame({"family": families, "category": categories, "description": descriptions})
    found = cohort.Cohort(families, vocabulary)
    for one in completions:
        found.add(one)
    return found


def on_completion(found, **options):
    return report.of_completion(RUN, found, **{"threshold": 0.5, "precision": None, **options})


def blocks(page):
    return [*page.opening, *(b for s in page.sections for b in s.blocks)]


def table_of(page, start):
    """The table whose caption starts so, as a frame of raw values."""
    tables = [b for b in blocks(page) if isinstance(b, Table) and b.caption.startswith(start)]
    assert len({t.caption for t in tables}) == len(tables) > 0, start
    return pd.DataFrame([[value_of(c) for c in row] for row in tables[0].rows], columns=tables[0].columns)


def captions(page):
    return [b.caption for b in blocks(page) if isinstance(b, Plot)]


def notes(page):
    return [b.text for b in blocks(page) if isinstance(b, Note)]


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
        "foreign": pytest.approx(1.1),
        **{"unknown_families": 2, "unknown_share": pytest.approx(0.4), "novelty": 0.25, "nearest_reference": "R1"},
        **{"far": False, "warnings": "one; two"},
    }
    summary = cohort_of(HAND).summary
    assert summary.columns.tolist() == list(found) == cohort_of([]).summary.columns.tolist()
    assert summary["quality"].tolist() == ["given", "estimated", "given"]


def test_completion_by_hand(tmp_path):
    page, numbers = on_completion(cohort_of(HAND))
    assert page.lead == numbers["verdict"] == next(iter(numbers.values()))
    assert page.lead.startswith("3 genomes: 4 families added as missing, 1.3 to each, and 2 removed")
    assert "1 far from all references" in page.lead
    added, removed = (table_of(page, f"Families most often {change}.") for change in ("added", "removed"))
    assert added.iloc[:, :3].to_numpy().tolist() == [["F2", 2, 66.7], ["F0", 1, 33.3], ["F1", 1, 33.3]]
    assert removed.to_numpy().tolist() == [["F4", 2, 66.7, "transport", "a pump"]]
    genomes = table_of(page, "The genomes,")
    assert genomes["genome"].tolist() == ["a", "b", "c"]
    assert genomes["added"].tolist() == [1, 2, 1]
    assert genomes["unknown_share"].tolist() == pytest.approx([0.4, 0, 0])
    assert table_of(page, "Genomes with warnings.").to_numpy().tolist() == [["a", "one; two"]]
    bars = page.opening[0].figure.axes[0].patches
    assert sorted(bar.get_height() for bar in bars if bar.get_height() < 0) == [-1, -1]
    assert captions(page)[0].startswith("Families of each genome: kept, added, and removed")
    assert "take care" in notes(page)
    _, found = written(tmp_path, page, numbers)
    assert found["totals"] == {"observed": 5, "added": 4, "removed": 2, "unknown_families": 2, "far": 1}
    assert [f["family"] for f in found["families"]] == ["F0", "F1", "F2", "F4"]


NAN = float("nan")
WITHOUT = {"categories": [""] * 5, "descriptions": [""] * 5}
NOTHING = ": 0 families added as missing"
ODD = {
    "none": ([], {}, {}, ["0 genomes", NOTHING]),
    "one": (HAND[:1], {}, {}, []),
    "no change": ([completion("a", [1, 0, 1, 0, 0], [1, 0, 1, 0, 0])], {}, {}, [NOTHING]),
    "nothing observed": (HAND[2:], {}, {}, []),
    "all NaN": (
        [completion("a", [0] * 5, [0] * 5, completeness=NAN, contamination=NAN, novelty=NAN, expected=NAN)],
        {},
        {},
        [NOTHING],
    ),
    "names": (
        [completion(EVIL, [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], nearest=EVIL, warnings=[EVIL])],
        {"categories": [EVIL] * 5, "descriptions": [EVIL] * 5},
        {},
        ["&lt;script&gt;alert(1)"],
    ),
    "no categories": (HAND, WITHOUT, {}, []),
    "precision": (HAND, {}, {"precision": 0.95}, ["at least 95 % of such changes were right"]),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_cohorts(case, tmp_path):
    genomes, vocabulary, options, said = ODD[case]
    page, numbers = on_completion(cohort_of(genomes, **vocabulary), **options)
    text, found = written(tmp_path, page, numbers)
    assert "<script>alert" not in text
    assert found["genomes"] == len(genomes)
    assert all(words in text for words in said)
    if case == "no categories":
        assert table_of(page, "Families most often added.").columns.tolist() == ["family", "genomes", "% of genomes"]


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
    assert captions(page)[0].endswith(f"The first {report.DRAWN} of 2,003 genomes.")


def test_fit(tmp_path, completer):
    page, numbers = report.of_fit(RUN, completer)
    _, found = written(tmp_path, page, numbers)
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
    assert "of rank family" in page.about


def evaluation(methods=("omniset", "seed", "as-is", "knn"), conditions=None, genomes=7, seeds=(0, 1), nan=()):
    """Of random predictions; seed is worst in F1, omniset best in ranking."""
    r = np.random.default_rng(0)
    frames = []
    wanted = conditions or ["70/0", "70/5", "70/0 estimated", "missed 0.1, foreign 0"]
    for seed, condition, method in itertools.product(seeds, wanted, methods):
        truth, observed = r.random((2, genomes, 53)) < 0.5
        noisy = Noisy(np.arange(genomes), truth, observed, r.normal(size=truth.shape), np.zeros(genomes))
        found = of_genomes(noisy, None, 0.95)
        found = found.assign(seed=seed, condition=condition, method=method, worse=0.0, **dict.fromkeys(nan, np.nan))
        found["genome"] = [f"{EVIL}{i}" for i in range(genomes)]
        found["clade"] = [f"{EVIL}{i % 3}" for i in range(genomes)]
        found["f1"] = {"seed": 0.1, "as-is": 0.5}.get(method, 0.9) + 0.05 * r.random(genomes)
        if "auprc_missing" not in nan:
            found["auprc_missing"] = (0.8 if method == "omniset" else 0.5) + 0.05 * r.random(genomes)
        if method == "omniset" and not condition.startswith("missed"):
            found = found.assign(added_made=10.0, removed_made=10.0, added_right=1.0, removed_right=10.0, missing=20.0)
        frames.append(found)
    splits = [{"seed": s, "test genomes": 7, "epochs": {"seed": 3}, "provenance": {"seed": s}} for s in seeds]
    return Evaluation(pd.concat(frames, ignore_index=True), pd.DataFrame(splits), 0.95)


def test_evaluation(tmp_path):
    made = evaluation()
    page, numbers = report.of_evaluation(RUN, made)
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
    assert table_of(page, "One holds")["verdict"].tolist() == [gate.verdict for gate in gates]
    assert gates[0].opponent == made.comparison.best_baseline("auprc_missing", "70/0")
    assert table_of(page, "AUPRC of missing families, 70/0.")["method"][0] == "omniset (ours)"
    assert found["evaluation"]["verdict"] == made.comparison.verdict() == page.lead == found["verdict"]
    assert found["precision"] == 0.95


TWO = {"methods": ("omniset", "as-is")}


@pytest.mark.parametrize(
    "made",
    [
        {"methods": ["omniset"], "conditions": ["70/0", "50/5"]},
        TWO | {"conditions": ["70/0"], "genomes": 1, "seeds": (5,)},
        TWO | {"conditions": ["70/0 unknown", "missed 0, foreign 0"]},
        TWO | {"conditions": ["100/0"], "nan": ("auprc_missing", "auprc_foreign", "auroc_missing", "auroc_foreign")},
    ],
    ids=["one method", "one genome", "no known level", "nothing to rank"],
)
def test_odd_evaluations(made, tmp_path):
    page, numbers = report.of_evaluation(RUN, evaluation(**made))
    _, found = written(tmp_path, page, numbers)
    assert found["evaluation"]["ours"] == "omniset"
