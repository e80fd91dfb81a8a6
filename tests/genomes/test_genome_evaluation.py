"""Metrics against scikit-learn and plain loops, intervals over clades, and the splits that they are measured on."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from genome_oracle import some_frame, some_taxonomy
from sklearn.metrics import brier_score_loss, f1_score, log_loss

from omniset.genomes import GenomeCompleter, calibration, suite
from omniset.genomes import evaluate as module
from omniset.genomes.calibration import GRID, Level, Noisy, reliability
from omniset.genomes.evaluate import CONDITIONS, METRICS, PREVALENCE, Condition, Evaluation, _of_genomes, evaluate

SMALL = {
    **{"dim": 6, "depth": 1, "num_heads": 2, "num_inducing": 3, "epochs": 1, "batch_size": 7, "device": "cpu"},
    **{"validation_fraction": 0.17, "progress": False},
}
TESTED = [c for c in CONDITIONS if c.name in ("100/0", "70/5 unknown", "50/0", "missed 0.25, foreign 0.01")]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# ---------------------------------------------------------------------- metrics of a genome


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


def level(added=None, removed=None):
    values = [[p] * len(GRID) if p else [None] * len(GRID) for p in (added, removed)]
    return Level(70.0, 5.0, *values, 2.0, 0.5, 0.0, [(0, 0.0, 0.0)] * 10, {})


def test_metrics_by_hand(noisy):
    for i, found in enumerate(_of_genomes(noisy, np.full(53, 0.3), None, 0.95)):
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


def test_metrics_at_their_bounds():
    truth = np.array([[True, True, False, False], [False] * 4, [True] * 4, [True, True, False, False]])
    observed = np.array([[True, True, False, False], [False] * 4, [True] * 4, [True, False, False, True]])
    odds = np.array([[5.0, 5, -5, -5], [-5.0] * 4, [5.0] * 4, [700.0, -700, 700, -700]])
    perfect, nothing, everything, wrong = _of_genomes(
        Noisy(np.arange(4), truth, observed, odds, np.zeros(4)), np.full(4, 0.5), None, 0.95
    )
    assert perfect["f1"] == everything["f1"] == 1
    assert nothing["f1"] == 0
    assert nothing["size_error"] < 0.05
    for one in (perfect, nothing, everything):  # nothing is missing, nothing is foreign
        assert all(math.isnan(one[k]) for k in ("auprc_missing", "auroc_missing", "auprc_foreign", "auroc_foreign"))
    assert wrong["log_loss"] == pytest.approx(350)
    assert wrong["auroc_missing"] == 0
    assert wrong["auprc_missing"] == 0.5
    assert wrong["auroc_foreign"] == wrong["auprc_foreign"] == 1


def test_sums_by_prevalence_and_probability_by_hand(noisy, rng):
    prevalence = np.concatenate([rng.random(48), [0.0, 0.01, 0.1, 0.5, 0.9]])
    bounds = [(0, 0.01), (0.01, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.0)]
    assert [b for b, _ in bounds] == list(PREVALENCE[:-1])
    for i, found in enumerate(_of_genomes(noisy, prevalence, None, 0.95)):
        y, p = noisy.truth[i], noisy.probability[i]
        for b, (low, high) in enumerate(bounds):
            inside = (prevalence >= low) & (prevalence < high)
            assert found[f"tp{b}"] == (y & (p >= 0.5) & inside).sum()
            assert found[f"called{b}"] == ((p >= 0.5) & inside).sum()
            assert found[f"true{b}"] == (y & inside).sum()
        for b in range(10):
            inside = (p >= b / 10) & ((p < (b + 1) / 10) | (b == 9))
            assert found[f"n{b}"] == inside.sum()
            assert found[f"said{b}"] == pytest.approx(p[inside].sum())
            assert found[f"was{b}"] == y[inside].sum()
    last = _of_genomes(noisy, np.ones(53), None, 0.95)[0]
    assert last["true4"] == noisy.truth[0].sum()  # a family of all genomes is in the last bin


def test_changes_at_a_precision_by_hand(noisy):
    p = noisy.probability
    made = _of_genomes(noisy, np.full(53, 0.3), level(added=0.96, removed=0.96), 0.95)
    for i, found in enumerate(made):
        added = ~noisy.observed[i] & (p[i] >= GRID[0])
        removed = noisy.observed[i] & (1 - p[i] >= GRID[0])
        assert found["added_made"] == added.sum() > 0
        assert found["added_right"] == (added & noisy.truth[i]).sum()
        assert found["removed_made"] == removed.sum() > 0
        assert found["removed_right"] == (removed & ~noisy.truth[i]).sum()
    none = _of_genomes(noisy, np.full(53, 0.3), level(added=0.94), 0.95)
    assert sum(one["added_made"] + one["removed_made"] for one in none) == 0
    sure = Noisy(noisy.rows, noisy.truth, noisy.observed, np.where(noisy.observed, -99.0, 99.0), noisy.novelty)
    none = _of_genomes(sure, np.full(53, 0.3), level(), 0.95)  # not even what rounds to a probability of 1
    assert sum(one["added_made"] + one["removed_made"] for one in none) == 0


# ---------------------------------------------------------------------- means and intervals


def rows_of(values, clades=None, method="evidence", condition="95/0", seed=0, metric="f1"):
    count = len(values)
    clades = [f"c{i}" for i in range(count)] if clades is None else clades
    return pd.DataFrame(
        {
            **{"seed": seed, "genome": [f"g{i}" for i in range(count)], "clade": list(clades)},
            **{"condition": condition, "method": method},
            **{m: np.asarray(values, dtype=float) if m == metric else 0.5 for m in METRICS},
            **{f"n{b}": 1.0 for b in range(10)},
            **{f"said{b}": b / 10 + 0.05 for b in range(10)},
            **{f"was{b}": b / 10 + 0.05 for b in range(10)},
        }
    )


def evaluation(*frames, resamples=1000):
    return Evaluation(pd.concat(frames, ignore_index=True), pd.DataFrame(), 0.95, resamples)


def test_mean_over_genomes_and_seeds_without_those_that_have_none():
    frames = [
        rows_of([0.2, 0.4, np.nan]),
        rows_of([0.9, np.nan, np.nan], seed=1),
        rows_of([0.0, 0.1, 0.1], method="knn"),
    ]
    found = evaluation(*frames).table("f1", "95/0")
    assert found.index.tolist() == ["evidence", "knn"]
    assert found.loc["evidence", "value"] == pytest.approx(0.5)
    assert found.loc["knn", "value"] == pytest.approx(0.2 / 3)
    nothing = evaluation(rows_of([np.nan, np.nan])).table("f1", "95/0").loc["evidence"]
    assert nothing.isna().all()
    assert evaluation(*frames).methods == ["evidence", "knn"]
    assert evaluation(*frames).conditions == ["95/0"]


def test_interval_of_a_constant_and_of_one_clade(rng):
    constant = evaluation(rows_of([0.7] * 13)).table("f1", "95/0").loc["evidence"]
    assert constant.tolist() == pytest.approx([0.7] * 3)
    one = evaluation(rows_of(rng.random(13), clades=["c"] * 13)).table("f1", "95/0").loc["evidence"]
    assert one["low"] == one["value"] == one["high"]


def test_interval_is_that_of_clades(rng):
    """Of many clades it is the normal one, value +- 1.96 standard errors over *clades*."""
    means = rng.normal(0.5, 0.1, 97)
    values = np.repeat(means, 5) + rng.normal(0, 0.001, 485)
    clades = np.repeat([f"c{i}" for i in range(97)], 5)
    found = evaluation(rows_of(values, clades), resamples=4000).table("f1", "95/0").loc["evidence"]
    error = means.std() / math.sqrt(97)
    assert found["value"] == pytest.approx(values.mean())
    assert found["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert found["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    again = evaluation(rows_of(values, clades), resamples=4000).table("f1", "95/0").loc["evidence"]
    assert (again == found).all()  # the resamples are the same at every call


def test_differences_are_paired(rng):
    values = rng.random(31)
    mine, other = rows_of(values + 0.25), rows_of(values, method="knn").sample(frac=1, random_state=0)
    found = evaluation(mine, other).difference("f1", "95/0", "knn")
    assert found == pytest.approx((0.25, 0.25, 0.25))  # however much genomes differ
    holes = values.copy()
    holes[3] = np.nan
    found = evaluation(rows_of(values + np.arange(31)), rows_of(holes, method="knn")).difference("f1", "95/0", "knn")
    assert found[0] == pytest.approx(np.mean([i for i in range(31) if i != 3]))
    two = [rows_of([0.5, 0.1], method=m, seed=s) for m, s in (("evidence", 0), ("knn", 1))]
    two += [rows_of([0.3, 0.7], method=m, seed=s) for m, s in (("evidence", 1), ("knn", 0))]
    assert evaluation(*two).difference("f1", "95/0", "knn")[0] == pytest.approx(0.0)


def of_noisy(noisy, prevalence, clades, method="evidence", the_level=None):
    found = pd.DataFrame(_of_genomes(noisy, prevalence, the_level, 0.95))
    about = {"seed": 0, "genome": [f"g{i}" for i in range(len(found))], "clade": clades, "condition": "70/5"}
    return found.assign(**about, method=method, worse=0.0)


def test_calibration_error_and_bins_are_those_of_all_pairs(noisy):
    one = evaluation(of_noisy(noisy, np.full(53, 0.3), list("aabbccc")))
    ece, bins = reliability(noisy.probability, noisy.truth)
    found = one.ece("70/5").loc["evidence"]
    assert found["value"] == pytest.approx(ece)
    assert found["low"] < ece < found["high"]
    assert one.bins("70/5")["evidence"] == [(n, pytest.approx(a), pytest.approx(b)) for n, a, b in bins]
    alone = evaluation(of_noisy(noisy, np.full(53, 0.3), ["a"] * 7)).ece("70/5").loc["evidence"]
    assert alone["low"] == alone["high"] == pytest.approx(ece)


def test_f1_by_prevalence_is_over_pairs(noisy, rng):
    prevalence = rng.uniform(0.02, 0.8, 53)
    found = evaluation(of_noisy(noisy, prevalence, ["a"] * 7)).by_prevalence("70/5")
    assert found.columns.tolist() == ["0-0.01", "0.01-0.1", "0.1-0.5", "0.5-0.9", "0.9-1"]
    for column, (low, high) in (("0.01-0.1", (0.01, 0.1)), ("0.1-0.5", (0.1, 0.5)), ("0.5-0.9", (0.5, 0.9))):
        inside = (prevalence >= low) & (prevalence < high)
        expected = f1_score(noisy.truth[:, inside].ravel(), noisy.probability[:, inside].ravel() >= 0.5)
        assert found.loc["evidence", column] == pytest.approx(expected)
    assert found[["0-0.01", "0.9-1"]].isna().all().all()


def test_achieved_precision(noisy):
    frame = of_noisy(noisy, np.full(53, 0.3), list("aabbccc"), the_level=level(added=0.96))
    other = of_noisy(noisy, np.full(53, 0.3), list("aabbccc"), method="knn")
    found = evaluation(frame, other).achieved_precision("added", "70/5")
    assert found.index.tolist() == ["evidence"]  # thresholds are those of our model alone
    added = ~noisy.observed & (noisy.probability >= GRID[0])
    assert found.loc["evidence", "value"] == pytest.approx((added & noisy.truth).sum() / added.sum())
    assert found.loc["evidence", "changes"] == pytest.approx(added.sum() / 7)
    assert found.loc["evidence", "low"] <= found.loc["evidence", "value"] <= found.loc["evidence", "high"]
    removed = evaluation(frame, other).achieved_precision("removed", "70/5").loc["evidence"]
    assert removed["changes"] == 0
    assert math.isnan(removed["value"])


def gate(found, name):
    (one,) = (g for g in found.gates() if g["gate"].startswith(name))
    return one


def test_gates(rng):
    """F1 no more than .003 below doing nothing, AUPRC above neighbours with an interval, ECE at most .02."""
    values = rng.uniform(0.5, 0.9, 23)

    def with_loss(loss, condition="95/0"):
        return evaluation(
            rows_of(values - loss, condition=condition), rows_of(values, method="as-is", condition=condition)
        )

    for loss, holds in ((-0.1, True), (0.0, True), (0.0029, True), (0.0031, False), (0.2, False)):
        for condition in ("100/0", "95/0"):
            one = gate(with_loss(loss, condition), f"F1 at {condition}")
            assert one["holds"] is holds
            assert one["value"] == pytest.approx(-loss)
    assert not [g for g in with_loss(0.0, "90/0").gates() if g["gate"].startswith("F1")]

    def won(difference, spread):
        mine = values + difference + spread * rng.normal(size=23)
        options = {"condition": "70/0", "metric": "auprc_missing"}
        return evaluation(rows_of(mine, **options), rows_of(values, method="knn", **options))

    assert gate(won(0.05, 0.01), "AUPRC of missing families at 70/0")["holds"] is True
    assert gate(won(0.0, 0.01), "AUPRC")["holds"] is False
    assert gate(won(-0.05, 0.01), "AUPRC")["holds"] is False
    unsure = gate(won(0.02, 0.2), "AUPRC")
    assert unsure["low"] < 0 < unsure["high"]
    assert unsure["holds"] is False
    assert gate(won(0.05, 0.01), "ECE at 70/0")["holds"] is True
    off = won(0.05, 0.01)
    for shift, holds in ((0.019, True), (0.021, False)):
        shifted = off.rows.assign(**{f"said{b}": off.rows[f"was{b}"] + shift for b in range(10)})
        one = gate(evaluation(shifted), "ECE at 70/0")
        assert one["value"] == pytest.approx(shift)
        assert one["holds"] is holds
    assert not evaluation(rows_of(values, condition="70/0 unknown")).gates()


def test_conditions():
    names = [c.name for c in CONDITIONS]
    assert len(set(names)) == len(names)
    assert {"100/0", "50/10", "95/0 estimated", "70/5 unknown", "missed 0.75, foreign 0.01"} <= set(names)
    assert Condition((70.0, 5.0), "known").of_data == (70.0, 5.0)
    assert Condition((0.25, 0.01), "original").of_data == "iid:0.25:0.01"


# ---------------------------------------------------------------------- the whole of it


def shorten(patch):
    """A few conditions and levels; baselines need not be trained well."""
    patch.setattr(module, "CONDITIONS", TESTED)
    patch.setattr(calibration, "LEVELS", [(100.0, 0.0), (50.0, 5.0)])
    for options in suite.TRAINING.values():
        patch.setitem(options, "epochs", 1)


@pytest.fixture
def _quickly(monkeypatch):
    shorten(monkeypatch)


FRAME, TAXONOMY = some_frame(), some_taxonomy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def evaluated(folder):
    said = []
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        found = evaluate(FRAME, TAXONOMY, methods=["pca"], seeds=2, folder=folder, say=said.append, **SMALL)
    assert sum("training" in line for line in said) == 2
    assert sum("testing at" in line for line in said) == 8
    return found


def test_every_method_is_tested_on_every_genome_of_the_test_clades(evaluated):
    rows = evaluated.rows
    assert evaluated.methods == ["evidence", "as-is", "prevalence", "prevalence-bayes", "knn", "pca"]
    assert evaluated.conditions == [c.name for c in TESTED]
    for seed, some in rows.groupby("seed"):
        genomes = sorted(set(some["genome"]))
        about = evaluated.splits.set_index("seed").loc[seed]
        assert len(genomes) == about["test genomes"] > 0
        assert len(some) == len(genomes) * 6 * 4
        assert not some.duplicated(["genome", "condition", "method"]).any()
        assert (some["clade"] == TAXONOMY.loc[some["genome"], "family"].to_numpy()).all()
        assert some["clade"].nunique() == about["test clades"]
        parts = [about[f"{p} {what}"] for what in ("genomes", "clades") for p in ("training", "validation", "test")]
        assert sum(parts[:3]) == 24
        assert sum(parts[3:]) == 6
        whole = TAXONOMY["family"].value_counts()
        assert len(genomes) == whole[list(set(some["clade"]))].sum()  # clades are tested as a whole
    assert set(rows[rows["seed"] == 0]["genome"]) != set(rows[rows["seed"] == 1]["genome"])
    few = Evaluation(rows[rows["condition"] == "50/0"], evaluated.splits, 0.95, resamples=7)
    assert json.loads(json.dumps(few.numbers()))["tables"].keys() == {"50/0"}
    metrics = rows[["f1", "brier", "log_loss", "size_error", "worse"]]
    assert np.isfinite(metrics.to_numpy()).all()


def test_doing_nothing_and_worse_than_that(evaluated):
    rows = evaluated.rows.set_index(["seed", "condition", "genome"])
    nothing = rows[rows["method"] == "as-is"]["f1"]
    assert (nothing.xs("100/0", level="condition") == 1).all()
    assert (nothing.xs("50/0", level="condition") < 0.97).all()
    for method in evaluated.methods:
        some = rows[rows["method"] == method]
        assert (some["worse"] == (some["f1"] < nothing.loc[some.index] - 1e-12)).all()
    assert not rows[rows["method"] == "as-is"]["worse"].any()
    assert rows["worse"].any()


def test_thresholds_are_our_models_alone(evaluated):
    rows = evaluated.rows
    tested = (rows["method"] == "evidence") & ~rows["condition"].str.startswith("missed")
    assert (rows["added_made"].notna() == tested).all()


class StopError(Exception):
    pass


@pytest.mark.parametrize("test_fraction", [0.2, 0.4])
def test_no_clade_is_in_two_parts(test_fraction, monkeypatch):
    frame, taxonomy = some_frame(61, clades=17), some_taxonomy(61, clades=17)
    taxonomy.loc["g07", "family"] = None
    drawn = []

    def captured(self, table, given, clades, train, validation, **options):
        test = np.setdiff1d(np.arange(61), [*train, *validation])
        drawn.append((test, [set(taxonomy["family"].fillna("own").iloc[p]) for p in (train, validation, test)]))
        raise StopError

    monkeypatch.setattr(GenomeCompleter, "fit_split", captured)
    for seed in range(12):
        with pytest.warns(UserWarning, match="1 of 61 genomes have no family"), pytest.raises(StopError):
            evaluate(frame, taxonomy, seed=seed, seeds=1, test_fraction=test_fraction, **SMALL)
        test, (train, validation, tested) = drawn[-1]
        assert not train & validation
        assert not train & tested
        assert not validation & tested
        assert train
        assert validation
        assert tested
        assert abs(len(test) / 61 - test_fraction) < 0.1
    assert len({tuple(test) for test, _ in drawn}) > 6


@pytest.mark.usefixtures("_quickly")
def test_genomes_without_a_clade_are_not_drawn_together():
    """Each is a clade of its own, in the split and in the intervals."""
    taxonomy = TAXONOMY.copy()
    taxonomy.loc[taxonomy["family"].isin(["F1", "F2", "F4"]), "family"] = ""
    with pytest.warns(UserWarning, match="12 of 24 genomes have no family"):
        found = evaluate(FRAME, taxonomy, methods=[], seeds=1, test_fraction=0.4, **SMALL)
    assert found.rows["clade"].nunique() == found.splits["test clades"][0] > 3


@pytest.mark.usefixtures("_quickly")
def test_resume_reads_what_was_kept(evaluated, folder, monkeypatch):
    kept, calls = GenomeCompleter.fit_split, []

    def counted(self, *arguments, **options):
        calls.append(self.seed)
        return kept(self, *arguments, **options)

    monkeypatch.setattr(GenomeCompleter, "fit_split", counted)
    options = {"methods": ["pca"], "folder": folder, "resume": True, **SMALL}
    again = evaluate(FRAME, TAXONOMY, seeds=2, **options)
    assert calls == []
    pd.testing.assert_frame_equal(again.rows, evaluated.rows)
    assert again.splits["test genomes"].tolist() == evaluated.splits["test genomes"].tolist()
    more = evaluate(FRAME, TAXONOMY, seeds=3, **options | {"progress": True})  # how it is shown does not matter
    assert calls == [2]
    pd.testing.assert_frame_equal(more.rows[: len(again.rows)], again.rows)
    for changed, message in (
        ({"dim": 8}, r"dim was 6, is 8\)"),
        ({"precision": 0.9}, r"precision was 0.95, is 0.9\)"),
        ({"methods": []}, r"methods was \['pca'\], is \[\]"),
    ):
        with pytest.raises(ValueError, match=rf"seed_0.parquet is of another evaluation \({message}"):
            evaluate(FRAME, TAXONOMY, seeds=2, **options | changed)
    with pytest.raises(ValueError, match="another evaluation .data was"):
        evaluate(FRAME[:23], TAXONOMY, seeds=2, **options)
    assert calls == [2]


@pytest.mark.usefixtures("_quickly")
def test_the_same_seed_gives_the_same_rows(evaluated):
    again = evaluate(FRAME, TAXONOMY, methods=["pca"], seed=1, seeds=1, **SMALL)
    expected = evaluated.rows[evaluated.rows["seed"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(again.rows, expected, check_exact=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["magic"]}, "methods must be out of evidence, seed, .*; got 'magic'"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"test_fraction": 0.0}, "test_fraction must be above 0 and below 0.9, got 0.0"),
        ({"test_fraction": 0.9}, "test_fraction must be above 0 and below 0.9, got 0.9"),
        ({"precision": 1.0}, "precision must be at least 0.5 and below 1, got 1.0"),
        ({"precision": 0.4}, "precision must be at least 0.5 and below 1, got 0.4"),
        ({"encoder": "nonsense"}, "encoder must be one of"),
        ({"test_fraction": 0.05}, "test_fraction=0.05 of 24 genomes is less than any clade has"),
        ({"validation_fraction": 0.01}, "there is no validation genome"),
        ({"clade": "phylum"}, "clade must be a rank that the taxonomy has, order, family; got 'phylum'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(FRAME, TAXONOMY, **SMALL | arguments)
