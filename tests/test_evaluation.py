import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from omniset.trials.intervals import Draws
from omniset.trials.outcomes import (
    CLASSIFICATION,
    REGRESSION,
    Outcome,
    by_class,
    calibration,
    carried,
    confusion,
    score,
)

ROWS, SETS, CLASSES = 211, 53, 5
LABELS = np.array(["b", "a", "e & f", "d", "c"])  # not in alphabetical order: columns go by position


def classified(k=CLASSES, rows=ROWS, seed=0):
    r = np.random.default_rng(seed)
    truth = r.integers(0, k, rows)
    scores = r.normal(size=(rows, k)) + 1.3 * np.eye(k)[truth]
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    p[: rows // 3] = p[r.integers(0, 11, rows // 3)]  # ties
    sets = r.integers(0, SETS, rows)
    labels = LABELS[:k]
    return Outcome("kind", labels[truth], labels[p.argmax(1)], sets, 3 + sets % 7, labels.tolist(), p)


def regressed(rows=ROWS, seed=0):
    r = np.random.default_rng(seed)
    truth = (1e3 + r.normal(size=rows)).round(1)
    sets = r.integers(0, SETS, rows)
    return Outcome("weight", truth, truth + r.normal(size=rows).round(1), sets, 3 + sets % 7)


def calibration_error(probabilities, truth):
    confidence, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = [right[(confidence > i / 10) & (confidence <= (i + 1) / 10)].sum() for i in range(10)]
    sums = [confidence[(confidence > i / 10) & (confidence <= (i + 1) / 10)].sum() for i in range(10)]
    return np.abs(np.subtract(bins, sums)).sum() / len(truth)


def expected(o):
    if o.classes is None:
        t, p = o.truth, o.predicted
        return {
            "R2": sk.r2_score(t, p),
            "RMSE": sk.root_mean_squared_error(t, p),
            "MAE": sk.mean_absolute_error(t, p),
            "Pearson r": stats.pearsonr(t, p).statistic,
            "Spearman r": stats.spearmanr(t, p).statistic,
        }
    k = len(o.classes)
    truth = np.array([o.classes.index(label) for label in o.truth])
    ranked = o.probabilities[:, 1] if k == 2 else o.probabilities
    return {
        "accuracy": sk.accuracy_score(o.truth, o.predicted),
        "balanced accuracy": sk.balanced_accuracy_score(o.truth, o.predicted),
        "macro F1": sk.f1_score(o.truth, o.predicted, average="macro"),
        "AUROC": sk.roc_auc_score(truth, ranked, multi_class="ovr"),
        "log loss": sk.log_loss(truth, o.probabilities, labels=range(k)),
        "Brier score": sk.brier_score_loss(truth, o.probabilities, labels=range(k), scale_by_half=False),
        "calibration error": calibration_error(o.probabilities, truth),
    }


def metrics(o, **options):
    return {name: score(o, name, **options) for name in o.measures}


def values(o, **options):
    return {name: interval.value for name, interval in metrics(o, **options).items()}


OUTCOMES = pytest.mark.parametrize("make", [classified, lambda: classified(2), regressed], ids=["5", "2", "numbers"])


@OUTCOMES
def test_metrics_against_other_libraries(make):
    outcome = make()
    found, others = values(outcome, resamples=2), expected(outcome)
    assert list(found) == list(others)
    for name, value in others.items():
        assert found[name] == pytest.approx(value, rel=1e-8), name


@OUTCOMES
def test_weights_are_numbers_of_copies(make):
    """What the bootstrap computes: the metric of the outcome whose rows are there w times."""
    outcome = make()
    counts = np.random.default_rng(1).integers(0, 4, (3, ROWS))
    table = CLASSIFICATION if outcome.classifies else REGRESSION
    for i, copies in enumerate(counts):
        repeated = expected(outcome.rows(np.repeat(np.arange(ROWS), copies)))
        for name, measure in table.items():
            assert measure.formula(outcome, counts.astype(float))[i] == pytest.approx(repeated[name], rel=1e-8), name


def test_groups_are_drawn_instead_of_sets():
    """Intervals are those of an outcome whose sets are the groups; everything else is as without groups."""
    plain = regressed()
    groups = plain.sets // 3
    grouped = replace(plain, groups=groups)
    drawn, of_groups, of_sets = (metrics(o) for o in (grouped, replace(plain, sets=groups), plain))
    assert drawn == of_groups
    assert [m.value for m in drawn.values()] == [m.value for m in of_sets.values()]
    assert [m.low for m in drawn.values()] != [m.low for m in of_sets.values()]


def test_few_sets_without_an_error_have_intervals():
    """Of n sets that are all right the share of errors may still be some 3 / n."""
    truth, p = np.array(["yes"] * 7), np.tile([0.9, 0.1], (7, 1))
    outcome = Outcome("x", truth, truth, np.arange(7), np.ones(7, int), ["yes", "no"], p)
    for name in ("accuracy", "balanced accuracy", "macro F1"):
        metric = score(outcome, name)
        assert metric.value == metric.high == 1
        assert 0.4 < metric.low < 0.8


@pytest.mark.parametrize("make", [classified, regressed])
def test_nothing_is_not_defined(make):
    empty = make().rows(np.arange(0))
    assert np.isnan([*values(empty).values()]).all()
    assert not empty.classifies or calibration(empty)["count"].sum() == 0


def test_constant_truth():
    outcome = regressed(rows=11)
    outcome.truth = np.full(11, 0.1)
    found = values(outcome)
    assert np.isnan(found["R2"])
    assert np.isnan(found["Pearson r"])
    assert np.isnan(found["Spearman r"])
    assert found["MAE"] == pytest.approx(np.abs(outcome.predicted - 0.1).mean())


def test_classes_that_do_not_occur():
    """Averages go over the classes that do."""
    outcome = classified(3)
    two = outcome.rows((outcome.truth != "a") & (outcome.predicted != "a"))
    found = values(two, resamples=101)
    assert found["balanced accuracy"] == pytest.approx(sk.balanced_accuracy_score(two.truth, two.predicted))
    assert found["macro F1"] == pytest.approx(sk.f1_score(two.truth, two.predicted, average="macro"))
    areas = [sk.roc_auc_score(two.truth == label, two.probabilities[:, i]) for i, label in ((0, "b"), (2, "e & f"))]
    assert found["AUROC"] == pytest.approx(np.mean(areas))
    assert np.isnan(by_class(two)["recall"][1])
    one = two.rows(two.truth == "b")
    assert np.isnan(values(one)["AUROC"])
    assert np.isfinite(values(one)["accuracy"])
    rare = outcome.rows(np.r_[np.flatnonzero(outcome.truth == "b")[:19], np.flatnonzero(outcome.truth == "a")[:1]])
    rare.sets = np.arange(20)  # a third of the resamples lack "a": they are left out
    auroc = score(rare, "AUROC")
    assert 0 <= auroc.low <= auroc.value <= auroc.high <= 1


def test_predictions_that_are_not_numbers():
    numbers, classes = regressed(), classified()
    numbers.predicted[3] = np.nan
    classes.probabilities[3, 0] = np.inf
    for outcome in (numbers, classes):
        assert np.isnan([*values(outcome).values()]).all()


def test_bad_outcomes():
    ones = np.ones(2, int)
    with pytest.raises(ValueError, match=r"target 'x': labels \['c'\] are not among its classes"):
        Outcome("x", np.array(["a", "c"]), np.array(["a", "b"]), ones, ones, ["a", "b"], np.ones((2, 2)))
    with pytest.raises(ValueError, match="a column for each of the 2 classes"):
        Outcome("x", np.array(["a", "b"]), np.array(["a", "b"]), ones, ones, ["a", "b"], np.ones((2, 3)))


def test_confusion_and_classes_against_sklearn():
    outcome = classified()
    labels = outcome.classes
    assert (confusion(outcome) == sk.confusion_matrix(outcome.truth, outcome.predicted, labels=labels)).all()
    found = by_class(outcome)
    precision, recall, f1, true = sk.precision_recall_fscore_support(outcome.truth, outcome.predicted, labels=labels)
    assert found["label"].tolist() == labels
    assert found["true"].tolist() == true.tolist()
    assert found["predicted"].tolist() == [(outcome.predicted == label).sum() for label in labels]
    for name, reference in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert found[name].tolist() == pytest.approx(reference.tolist(), rel=1e-12)


@pytest.mark.parametrize("name", ["balanced accuracy", "macro F1"])
def test_an_interval_takes_memory_of_rows_and_classes(name):
    """Not of classes squared in every draw: 1,000 draws of 300 x 300 counts would be 720 MB."""
    labels = [f"c{i:03d}" for i in range(300)]
    truth, p = np.array(labels * 2), np.full((600, 300), 1 / 300)
    outcome = Outcome("x", truth, np.roll(truth, 1), np.arange(600), np.ones(600, int), labels, p)
    score(outcome, name, 2)
    tracemalloc.start()
    score(outcome, name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000


def test_calibration_by_hand():
    p = np.array([[0.5, 0.5], [0.3, 0.7], [0.26, 0.74], [0.0, 1.0], [0.9, 0.1]])
    truth, predicted = np.array(["a", "b", "a", "b", "b"]), np.array(["a", "b", "b", "b", "a"])
    outcome = Outcome("x", truth, predicted, np.arange(5), np.ones(5, int), ["a", "b"], p)
    found = calibration(outcome, bins=4)
    bins = [[0, 0.25, 0], [0.25, 0.5, 0], [0.5, 0.75, 3], [0.75, 1, 2]]
    assert found[["low", "high", "count"]].to_numpy().tolist() == bins
    assert calibration(outcome)["count"][7] == 2  # 0.7 belongs to the bin that it begins
    means = [[np.nan] * 2, [np.nan] * 2, [(0.5 + 0.7 + 0.74) / 3, 2 / 3], [0.95, 0.5]]
    np.testing.assert_allclose(found[["confidence", "right"]], means)


# ---------------------------------------------------------------------- heavy tails


def test_the_error_of_r2_is_that_of_its_derivatives():
    """By one unit's weight after the other, a little changed; of a difference too."""
    o, measure, units = regressed(), REGRESSION["R2"], np.arange(ROWS) % 40
    other = replace(o, predicted=o.predicted[::-1])
    weights = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), 3).astype(float)
    changed = (weights[:, None] + 1e-6 * np.eye(40)).reshape(-1, 40)
    for second in (None, other):

        def value(w, second=second):
            draws = Draws(units, w)
            return measure.of(o, draws) - (0 if second is None else measure.of(second, draws))

        slopes = (value(changed).reshape(3, 40) - value(weights)[:, None]) / 1e-6
        found = measure.error(o, second, Draws(units, weights))
        np.testing.assert_allclose(found, np.sqrt((weights * slopes**2).sum(1)), rtol=1e-3)


def test_the_interval_of_r2_holds_where_a_few_counts_are_large(monkeypatch):
    """Of 40 counts with many zeros quantiles alone hold the true R2 of 0.064 in three of four data sets."""
    r, sets, inside, r2 = np.random.default_rng(0), np.arange(40), {True: 0, False: 0}, REGRESSION["R2"]
    for _ in range(60):
        mean = np.exp(0.6 + 0.6 * r.normal(size=40))
        truth = r.poisson(mean * r.gamma(0.4, 2.5, 40)) * (r.random(40) > 0.3)
        o = Outcome("visits", truth, 0.7 * mean, sets, sets)
        for error in inside:
            monkeypatch.setitem(REGRESSION, "R2", replace(r2, error=r2.error if error else None))
            found = score(o, "R2", 200)
            inside[error] += found.low <= 0.064 <= found.high
    assert inside[True] >= 0.9 * 60 > 0.85 * 60 > inside[False]


def test_few_sets_that_carry_r2_are_named():
    r = np.random.default_rng(0)
    truth, names = r.normal(size=120), np.array([f"s{i:03d}" for i in range(120)])
    predicted = 0.1 * r.normal(size=120)
    assert carried(Outcome("y", truth, predicted, names, names)) == ""
    truth[:3], predicted[:3] = 30, 25
    without = sk.r2_score(truth[3:], predicted[3:])
    said = carried(Outcome("y", truth, predicted, names, names))
    assert said.startswith("3 of 120 sets carry this score: without s000, s001, s002 R2 is")
    assert f"{without:.3f}" in said
    predicted[:3] = -30
    assert "3 of 120 sets spoil" in carried(Outcome("y", truth, predicted, names, names))
