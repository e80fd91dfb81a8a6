"""Metrics against scikit-learn and plain loops, intervals over clades, and the splits that they are measured on."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from genome_oracle import SMALL, TAXONOMY, level, some_frame
from sklearn.metrics import brier_score_loss, f1_score, log_loss

from omniset.genomes import GenomeCompleter, GenomeTable, calibration, training
from omniset.genomes import evaluate as module
from omniset.genomes.calibration import GRID, reliability
from omniset.genomes.evaluate import (
    CONDITIONS,
    SCORES,
    Evaluation,
    Known,
    evaluate,
    of_genomes,
    of_whole,
)
from omniset.genomes.kegg_modules import Modules
from omniset.genomes.training import Clades, Noisy

NAMES = ("100/0", "70/5 unknown", "50/0", "missed 0.25, foreign 0.01", "50/0 accessory")
TESTED = [c for c in CONDITIONS if c.name in NAMES]


def average_precision(scores, positive):
    """Mean over the positives of the precision down to them, ties together."""
    found = 0.0
    for bound in sorted(set(scores), reverse=True):
        above = scores >= bound
        found += (positive & (scores == bound)).sum() / positive.sum() * (positive & above).sum() / above.sum()
    return found


def area_under_roc(scores, positive):
    """How often a positive is ranked above a negative, ties counting half."""
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    return np.mean(pairs)


@pytest.fixture
def noisy(rng):
    truth = rng.random((7, 53)) < 0.5
    observed = np.where(truth, rng.random((7, 53)) < 0.6, rng.random((7, 53)) < 0.15)
    odds = np.round(rng.normal(size=(7, 53)) * 2 + 2 * truth - 1, 1)  # with ties
    return Noisy(np.arange(7), truth, observed, odds, np.zeros(7))


def thresholds(added=None, removed=None):
    lists = ([bound] * len(GRID) if bound else None for bound in (added, removed))
    return level(70.0, 5.0, *lists, off=0.1)


def measured(*arguments):
    return of_genomes(*arguments).to_dict("records")


def test_metrics_by_hand(noisy):
    for i, found in enumerate(measured(noisy, None, 0.95)):
        y, o, z = noisy.truth[i], noisy.observed[i], noisy.log_odds[i]
        p = 1 / (1 + np.exp(-z))
        assert found["f1"] == pytest.approx(f1_score(y, p >= 0.5))
        assert found["brier"] == pytest.approx(brier_score_loss(y, p))
        assert found["log_loss"] == pytest.approx(log_loss(y, p))
        assert found["size_error"] == pytest.approx(abs(p.sum() - y.sum()) / y.sum())
        assert found["auprc_missing"] == pytest.approx(average_precision(z[~o], y[~o]))
        assert found["auroc_missing"] == pytest.approx(area_under_roc(z[~o], y[~o]))
        assert found["auprc_foreign"] == pytest.approx(average_precision(-z[o], ~y[o]))
        assert found["auroc_foreign"] == pytest.approx(area_under_roc(-z[o], ~y[o]))
        assert not [k for k in found if k.startswith(("added", "removed"))]
        assert math.isnan(found["covered"])
        assert found["missing"] == (y & ~o).sum()
        assert found["missing_expected"] == pytest.approx(p[~o].sum())
        for b in range(10):  # tenths of probability, of all families and of those that were not observed
            inside = (p >= b / 10) & ((p < (b + 1) / 10) | (b == 9))
            for name, some in (("", inside), ("unseen_", inside & ~o)):
                sums = [found[f"{name}{what}{b}"] for what in ("n", "said", "was")]
                assert sums == pytest.approx([some.sum(), p[some].sum(), y[some].sum()])
        assert found["recall_missing"] == pytest.approx((y & ~o & (p >= 0.5)).sum() / (y & ~o).sum())


def test_metrics_at_their_bounds():
    truth = np.array([[True, True, False, False], [False] * 4, [True] * 4, [True, True, False, False]])
    observed = np.array([[True, True, False, False], [False] * 4, [True] * 4, [True, False, False, True]])
    odds = np.array([[5.0, 5, -5, -5], [-5.0] * 4, [5.0] * 4, [700.0, -700, 700, -700]])
    perfect, nothing, everything, wrong = measured(Noisy(np.arange(4), truth, observed, odds, np.zeros(4)), None, 0.95)
    assert perfect["f1"] == everything["f1"] == 1
    assert nothing["f1"] == 0
    assert nothing["size_error"] < 0.05
    for one in (perfect, nothing, everything):  # nothing is missing, nothing is foreign
        assert all(math.isnan(one[k]) for k in ("auprc_missing", "auroc_missing", "auprc_foreign", "auroc_foreign"))
        assert math.isnan(one["recall_missing"])
    assert wrong["log_loss"] == pytest.approx(350)
    assert wrong["auroc_missing"] == 0
    assert wrong["auprc_missing"] == 0.5
    assert wrong["auroc_foreign"] == wrong["auprc_foreign"] == 1


def test_changes_at_a_precision_by_hand(noisy):
    p = noisy.probability
    made = measured(noisy, thresholds(added=0.96, removed=0.96), 0.95)
    for i, found in enumerate(made):
        added = ~noisy.observed[i] & (p[i] >= GRID[0])
        removed = noisy.observed[i] & (1 - p[i] >= GRID[0])
        assert found["added_made"] == added.sum() > 0
        assert found["added_right"] == (added & noisy.truth[i]).sum()
        assert found["removed_made"] == removed.sum() > 0
        assert found["removed_right"] == (removed & ~noisy.truth[i]).sum()
    sure = replace(noisy, log_odds=np.where(noisy.observed, -99.0, 99.0))
    # Where no precision is reached, not even what rounds to a probability of 1.
    for odds, bounds in ((noisy, thresholds(added=0.94)), (sure, thresholds())):
        none = measured(odds, bounds, 0.95)
        assert sum(one["added_made"] + one["removed_made"] for one in none) == 0


def test_sizes_within_their_interval(noisy):
    """A tenth of what may be missing or foreign below the expected number, and above it."""
    for i, found in enumerate(measured(noisy, thresholds(), 0.95)):
        p, o, size = noisy.probability[i], noisy.observed[i], noisy.truth[i].sum()
        side = 0.1 * (2 + p[~o].sum() + (1 - p[o]).sum())
        low, high = max(np.floor(p.sum() - side), 0), min(np.ceil(p.sum() + side), len(p))
        assert (found["covered"], found["width"]) == (low <= size <= high, high - low)
    for odds, right in ((np.where(noisy.truth, 99.0, -99.0), 1), (np.full((7, 53), 99.0), 0)):
        assert all(found["covered"] == right for found in measured(replace(noisy, log_odds=odds), thresholds(), 0.95))


# ---------------------------------------------------------------------- what is compared


def rows_of(values, clades=None, method="omniset", condition="95/0", seed=0, metric="f1"):
    count = len(values)
    clades = [f"c{i}" for i in range(count)] if clades is None else clades
    means = [score.name for score in SCORES if score.formula is None]
    return pd.DataFrame(
        {
            **{"seed": seed, "genome": [f"g{i}" for i in range(count)], "clade": list(clades)},
            **{"condition": condition, "method": method},
            **{m: np.asarray(values, dtype=float) if m == metric else 0.5 for m in means},
            **{f"{of}n{b}": 1.0 for of in ("", "unseen_") for b in range(10)},
            **{f"{of}said{b}": b / 10 + 0.08 + np.arange(count) % 3 / 500 for of in ("", "unseen_") for b in range(10)},
            **{f"{of}was{b}": b / 10 + 0.05 for of in ("", "unseen_") for b in range(10)},
            **{"missing": 5.0, "missing_expected": 5.0},
        }
    )


def evaluation(*frames):
    return Evaluation(pd.concat(frames, ignore_index=True), pd.DataFrame(), 0.95)


def test_means_are_over_genomes_and_seeds_and_units_are_clades(rng):
    frames = [
        rows_of([0.2, 0.4, np.nan], clades="aab"),
        rows_of([0.9, np.nan, np.nan], clades="aab", seed=1),
        rows_of([0.0, 0.1, 0.1], clades="aab", method="knn"),
    ]
    compared = evaluation(*frames).comparison
    found = compared.table("f1", "95/0")
    assert found["value"].tolist() == pytest.approx([0.5, 0.2 / 3])
    assert [compared.interval("f1", "95/0", m).units for m in ("omniset", "knn")] == [1, 2]  # b has no value of ours
    assert compared.difference("f1", "95/0", "knn").value == pytest.approx(0.25)  # paired by seed and genome
    assert (compared.numbers()["unit"], compared.numbers()["baselines"]) == ("clade", ["knn"])


def of_noisy(noisy, clades, method="omniset", the_level=None):
    found = of_genomes(noisy, the_level, 0.95)
    about = {"seed": 0, "genome": [f"g{i}" for i in range(len(found))], "clade": clades, "condition": "70/5"}
    return found.assign(**about, method=method, worse=0.0)


def test_errors_are_those_of_all_pairs(noisy):
    one = evaluation(of_noisy(noisy, list("aabbccc"))).comparison
    ece, _ = reliability(noisy.probability, noisy.truth)
    found = one.interval("ece", "70/5", "omniset")
    assert found.value == pytest.approx(ece)
    assert found.low < ece < found.high
    unseen = ~noisy.observed
    p, y = noisy.probability[unseen], noisy.truth[unseen]
    assert one.interval("missing_error", "70/5", "omniset").value == pytest.approx(abs(p.sum() / y.sum() - 1))
    p, y = p[p >= 0.1], y[p >= 0.1]
    tenth = np.minimum((p * 10).astype(int), 9)
    expected = sum(abs(p[tenth == b].sum() - y[tenth == b].sum()) for b in range(1, 10)) / len(p)
    assert one.interval("ece_missing", "70/5", "omniset").value == pytest.approx(expected)
    nothing = replace(noisy, observed=noisy.observed | True)
    none = evaluation(of_noisy(nothing, list("aabbccc"))).comparison
    assert math.isnan(none.interval("ece_missing", "70/5", "omniset").value)


def test_modules_are_of_families_that_go_together(rng):
    """Of three blocks of families, each there as a whole or not: a module is of one, and calibration is measured."""
    counts = np.repeat(rng.random((60, 3)) < 0.5, 20, axis=1).astype(int)
    families = [f"{block}{i}" for block in "abc" for i in range(20)]
    drawn = module.drawn_modules(sp.csr_array(counts), families, rng, 30)
    assert all(len({family[0] for family in one.families()}) == 1 for one in drawn)
    assert {2, 8} <= {len(one.steps) for one in drawn} <= set(range(2, 9))
    assert module.drawn_modules(sp.csr_array(counts[:, :7]), families[:7], rng) == []  # too few to go together
    p = np.full(counts.shape, 0.9)
    noisy = Noisy(np.arange(60), counts > 0, counts > 9, np.log(p / (1 - p)), np.zeros(60))
    found = of_genomes(noisy, None, 0.95, Modules(drawn, families))
    assert found[[f"module_n{b}" for b in range(10)]].sum(1).tolist() == [30] * 60
    complete = [whole[1] for whole, _ in Modules(drawn, families).complete(np.stack([p, counts]))]
    assert found[[f"module_was{b}" for b in range(10)]].to_numpy().sum() == np.sum(complete) > 0


def test_achieved_precision(noisy):
    frame = of_noisy(noisy, list("aabbccc"), the_level=thresholds(added=0.96))
    both = evaluation(frame, of_noisy(noisy, list("aabbccc"), method="knn"))
    compared = both.comparison
    assert math.isnan(compared.interval("precision_added", "70/5", "knn").value)  # thresholds are our model's alone
    found = compared.interval("precision_added", "70/5", "omniset")
    added = ~noisy.observed & (noisy.probability >= GRID[0])
    assert found.value == pytest.approx((added & noisy.truth).sum() / added.sum())
    assert found.low <= found.value <= found.high
    recall = (added & noisy.truth).sum() / (noisy.truth & ~noisy.observed).sum()
    assert compared.interval("recall_added", "70/5", "omniset").value == pytest.approx(recall)
    assert math.isnan(compared.interval("precision_removed", "70/5", "omniset").value)
    assert both.changes("70/5") == {"added": pytest.approx(added.sum() / 7), "removed": 0}
    none = evaluation(of_noisy(noisy, list("aabbccc")))
    assert math.isnan(none.comparison.interval("precision_added", "70/5", "omniset").value)
    assert all(math.isnan(value) for value in none.changes("70/5").values())


def test_rows_of_whole_genomes():
    frames = [rows_of([0.1, 0.2, 0.3, 0.4], condition=name) for name in ("100/0", "95/0", "95/0 runs", "70/5")]
    rows = pd.concat(frames, ignore_index=True)
    found = of_whole(rows, ["g0", "g3", "other"])
    assert list(found["condition"]) == ["95/0 whole"] * 2 + ["95/0 runs whole"] * 2 + ["70/5 whole"] * 2
    assert list(found["genome"]) == ["g0", "g3"] * 3
    assert list(found["f1"]) == [0.1, 0.4] * 3
    both = evaluation(rows, found)
    assert both.whole == 2
    assert both.comparison.interval("f1", "95/0 whole", "omniset").value == pytest.approx(0.25)
    assert both.comparison.numbers()["units"] == 4
    asked = {gate.condition for gate in both.comparison.gates if gate.score in ("ece_missing", "covered")}
    assert asked == {"95/0 whole", "70/5 whole"}  # by genomes of which it is known what is absent
    none = of_whole(rows, [])
    assert none.empty
    assert evaluation(rows, none).whole == 0


def test_what_is_asked_of_ours(rng):
    """AUPRC above the best baseline, F1 no more than .003 below doing nothing, probabilities of missing families right
    to .05, nine of ten sizes in their interval.
    """
    values = rng.uniform(0.5, 0.9, 47)
    found = {}
    measured = [("70/0", "auprc_missing"), ("95/0", "f1"), ("90/0", "f1"), ("70/0 unknown", "f1")]
    for condition, metric in [*measured, ("70/0 islands", "covered")]:
        options = {"condition": condition, "metric": metric}
        values = values if metric != "covered" else np.ones(47)
        better = values + 0.002 + rng.normal(0, 0.0005, 47)
        frames = [rows_of(values, **options), rows_of(better, method="as-is", **options)]
        frames += [rows_of(values - 0.01 * rng.random(47), method=m, **options) for m in ("knn", "pca", "seed")]
        for gate in evaluation(*frames).comparison.gates:
            found[gate.condition, gate.score] = (gate.opponent, gate.asked, gate.verdict)
    assert found == {
        ("70/0", "auprc_missing"): ("as-is", "> 0", "falls short"),
        ("70/0", "ece_missing"): (None, "< 0.05", "holds"),
        ("70/0", "covered"): (None, "> 0.9", "falls short"),
        ("95/0", "auprc_missing"): ("as-is", "> 0", "tie"),  # all are equal there
        ("95/0", "f1"): ("as-is", "> -0.003", "holds"),
        ("95/0", "ece_missing"): (None, "< 0.05", "holds"),
        ("95/0", "covered"): (None, "> 0.9", "falls short"),
        ("90/0", "ece_missing"): (None, "< 0.05", "holds"),
    }


# ---------------------------------------------------------------------- the whole of it


def shorten(patch):
    """A few conditions and levels; baselines need not be trained well."""
    patch.setattr(module, "CONDITIONS", TESTED)
    patch.setattr(calibration, "LEVELS", [(100.0, 0.0), (50.0, 5.0)])
    for options in training.TRAINING.values():
        patch.setitem(options, "epochs", 1)


@pytest.fixture
def _shortened(monkeypatch):
    shorten(monkeypatch)


FRAME, METHODS = some_frame(), ["pca", "no-network"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def evaluated(folder):
    said = []
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        found = evaluate(FRAME, TAXONOMY, methods=METHODS, seeds=2, folder=folder, say=said.append, **SMALL)
    assert sum("training" in line for line in said) == 2
    assert sum("testing at" in line for line in said) == 10
    return found


def test_every_method_is_tested_on_every_genome_of_the_test_clades(evaluated):
    rows = evaluated.rows
    assert evaluated.comparison.methods == ["omniset", "no-network", *training.UNTRAINED, "pca", "omniset-accessory"]
    assert evaluated.comparison.conditions == [c.name for c in TESTED]
    for seed, some in rows.groupby("seed"):
        genomes = sorted(set(some["genome"]))
        about = evaluated.splits.set_index("seed").loc[seed]
        assert len(genomes) == about["test genomes"] > 0
        assert len(some) == len(genomes) * 9 * 5
        assert not some.duplicated(["genome", "condition", "method"]).any()
        assert (some["clade"] == TAXONOMY.loc[some["genome"], "family"].to_numpy()).all()
        assert some["clade"].nunique() == about["test clades"]
        parts = [about[f"{p} {what}"] for what in ("genomes", "clades") for p in ("training", "validation", "test")]
        assert (sum(parts[:3]), sum(parts[3:])) == (24, 6)
        whole = TAXONOMY["family"].value_counts()
        assert len(genomes) == whole[list(set(some["clade"]))].sum()  # clades are tested as a whole
    assert set(rows[rows["seed"] == 0]["genome"]) != set(rows[rows["seed"] == 1]["genome"])
    assert np.isfinite(rows[["f1", "brier", "log_loss", "size_error", "worse"]].to_numpy()).all()
    few = Evaluation(rows[rows["condition"] == "50/0"], evaluated.splits, 0.95, ["a note"])
    assert (few.numbers()["changes"].keys(), few.numbers()["notes"]) == ({"50/0"}, ["a note"])
    assert {"genome", "clade", "method", "f1", "covered"} <= {*few.columns} < {*rows}


def test_doing_nothing_and_worse_than_that(evaluated):
    rows = evaluated.rows.set_index(["seed", "condition", "genome"])
    nothing = rows[rows["method"] == "as-is"]["f1"]
    assert (nothing.xs("100/0", level="condition") == 1).all()
    assert (nothing.xs("50/0", level="condition") < 0.97).all()
    for method in evaluated.comparison.methods:
        some = rows[rows["method"] == method]
        assert (some["worse"] == (some["f1"] < nothing.loc[some.index] - 1e-12)).all()
    assert rows["worse"].any()
    rows = evaluated.rows  # thresholds are our model's alone
    tested = rows["method"].str.startswith("omniset") & ~rows["condition"].str.startswith("missed")
    assert (rows["added_made"].notna() == tested).all()
    assert (rows["covered"].notna() == tested).all()


def test_told_of_the_losses_ours_expects_more(evaluated):
    """Of rare families, which are all that is told: where they are lost more often, and where they are not."""
    rows = evaluated.rows.set_index(["condition", "seed", "genome"])
    for condition in ("50/0", "50/0 accessory"):
        plain, told = (rows[rows["method"] == m].loc[condition] for m in ("omniset", "omniset-accessory"))
        assert (told["missing_expected"] > plain["missing_expected"]).all()
        assert (told["missing"] == plain["missing"]).all()
    lost = rows[rows["method"] == "omniset"]["missing"]
    assert lost.loc["50/0 accessory"].sum() > lost.loc["50/0"].sum()


def test_genomes_without_a_clade_are_units_of_their_own():
    taxonomy = TAXONOMY.assign(family=TAXONOMY["family"].replace("F1", ""))
    genomes = GenomeTable.from_frame(FRAME)
    with pytest.warns(UserWarning, match="4 of 24 genomes have no family"):
        clades = Clades.of_taxonomy(taxonomy, genomes.names, "family")
    units = Known(genomes, taxonomy, None, clades).clade_names("family")
    assert units == [family or name for name, family in zip(taxonomy.index, taxonomy["family"], strict=True)]


@pytest.mark.usefixtures("_shortened")
def test_resume_reads_what_was_kept(evaluated, folder, monkeypatch):
    """And what is not kept is the same as in a run of its own."""
    kept, calls = GenomeCompleter.fit_split, []

    def counted(self, *arguments, **options):
        calls.append(self.seed)
        return kept(self, *arguments, **options)

    monkeypatch.setattr(GenomeCompleter, "fit_split", counted)
    options = {"methods": METHODS, "folder": folder, "resume": True, **SMALL}
    (folder / "rows/seed_1.json").unlink()
    more = evaluate(FRAME, TAXONOMY, seeds=2, **options | {"progress": True})  # how it is shown does not matter
    assert calls == [1]
    pd.testing.assert_frame_equal(more.rows, evaluated.rows, check_exact=True)
    assert more.splits["test genomes"].tolist() == evaluated.splits["test genomes"].tolist()
    for changed, message in (
        ({"epochs": 2}, "epochs was 1, is 2"),
        ({"precision": 0.9}, "precision was 0.95, is 0.9"),
        ({"methods": []}, r"methods was \['no-network', 'pca'\], is \[\]"),
    ):
        with pytest.raises(ValueError, match=rf"seed_0.json is of another evaluation and cannot be resumed: {message}"):
            evaluate(FRAME, TAXONOMY, seeds=2, **options | changed)
    with pytest.raises(ValueError, match="another evaluation and cannot be resumed: data was"):
        evaluate(FRAME[:23], TAXONOMY, seeds=2, **options)
    assert calls == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["magic"]}, "methods must be out of omniset, as-is, .*, no-network; got 'magic'"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"precision": 1.0}, "precision must be at least 0.5 and below 1, got 1.0"),
        ({"precision": 0.4}, "precision must be at least 0.5 and below 1, got 0.4"),
        ({"clade": "order"}, "there is no test genome: a share of 0.2 of 24 genomes is less than any clade of rank"),
        ({"quality": pd.DataFrame({"completeness": [99.0]}, ["x"])}, "quality must have .* its names are such as 'x'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(FRAME, TAXONOMY, **SMALL | arguments)
