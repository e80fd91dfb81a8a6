"""Survival of sets: members, the mixture of risks, and SetSurvival, against what they are defined to be."""

import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.ensemble import ExtraTreesRegressor

from omniset import SetBatch, SetSurvival
from omniset.core.sets import Sets
from omniset.estimators import importance, methods
from omniset.estimators.ensembles import EnsembleBatches
from omniset.estimators.evaluation import evaluate, feature_importance, out_of_fold
from omniset.estimators.pooling import OF_SIZE, STATISTICS
from omniset.estimators.survival import (
    CoxEnsemble,
    DissimilarityCox,
    RiskMixture,
    Risks,
    deviance_residuals,
    observed,
)
from omniset.training.cox import contributions, loss_parts, ranked
from omniset.training.ensemble import Ensemble
from omniset.trials.comparison import OURS
from omniset.trials.stacking import Stack
from omniset.trials.survival import Steps, breslow, concordance, integrated_brier

DIM = 2
COLUMNS = len(OF_SIZE) + DIM * len(STATISTICS)
SMALL = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False, "device": "cpu"}
MIXED = {**SMALL, "folds": 2, "repeats": 2}
ONE = {**SMALL, "repeats": 1, "method": "deep-sets", "validation_fraction": 0.0}


def table(rows, columns=COLUMNS, seed=0):
    """Pooled features, and times that depend exponentially on two of them."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(rows, columns)).astype(np.float32)
    f = 1.5 * x[:, 3] - x[:, 4]
    time, censored = r.exponential(np.exp(-f)), r.exponential(2, rows)
    return x, ranked(np.minimum(time, censored).round(1), time <= censored)


def data(number=41, seed=0):
    r = np.random.default_rng(seed)
    sets = [r.normal(size=(r.integers(1, 7), DIM)).astype(np.float32) + 1 for _ in range(number)]
    f = np.array([2 * s[:, 0].mean() for s in sets])
    time, censored = r.exponential(np.exp(-f)), r.exponential(np.exp(-f) * 2)
    return sets, np.stack([np.minimum(time, censored), time <= censored], 1)


# ---------------------------------------------------------------------- members


@pytest.mark.parametrize("rows", [23, 61])  # fewer rows than columns: the slopes are looked for in another space
def test_cox_is_the_least_of_its_own_objective(rows, monkeypatch):
    monkeypatch.setattr(DissimilarityCox, "variances", (0.3, 3.0))
    x, y = table(rows, 30)
    w = np.random.default_rng(1).uniform(0.5, 2, rows)
    member = DissimilarityCox(None).fit(x, y, w)
    z = x.astype(np.float64)
    weights = w / w.mean()
    mean = np.average(z, 0, weights)
    deviation = np.sqrt(np.average((z - mean) ** 2, 0, weights))
    z = np.clip((z - mean) / deviation, -3, 3) / np.sqrt(30)

    def objective(b):
        slope = torch.tensor(b, requires_grad=True)
        f, total = torch.tensor(z) @ slope, 0
        for i in np.flatnonzero(y > 0):  # by risk sets, ties in the manner of Efron
            tied = np.flatnonzero(y == y[i])
            at_risk = torch.tensor(weights)[np.abs(y) >= y[i]] @ f[np.abs(y) >= y[i]].exp()
            events = torch.tensor(weights)[tied] @ f[tied].exp()
            lost = sum((at_risk - k / len(tied) * events).log() for k in range(len(tied))) / len(tied)
            total = total - weights[i] * (f[i] - lost)
        total = total + slope @ slope / (2 * member.variance)
        total.backward()
        return float(total.detach()), slope.grad.numpy()

    best = minimize(objective, np.zeros(30), jac=True, method="BFGS", options={"gtol": 1e-7}).x
    expected = z @ best - weights @ (z @ best) / weights.sum()
    assert expected.std() > 0.1
    np.testing.assert_allclose(member.predict(x), expected, atol=3e-3 * expected.std())


def test_deviance_residuals_by_hand():
    y = np.array([2.0, -1.0, 1.0, 3.0, -3.0])
    hazards = [1 / 5, 1 / 5 + 1 / 3, 1 / 5 + 1 / 3 + 1 / 2]
    expected = []
    for value in y:
        hazard, event = hazards[int(abs(value)) - 1], value > 0
        martingale = event - hazard
        inner = martingale + (np.log(event - martingale) if event else 0)
        expected.append(np.sign(martingale) * np.sqrt(-2 * inner))
    np.testing.assert_allclose(deviance_residuals(y, np.ones(5)), expected, rtol=1e-12)


def test_the_forest_learns_residuals():
    x, y = table(61)
    w = np.random.default_rng(2).uniform(0.5, 2, 61)
    member = RiskMixture.SIMPLE["pooled-forest"](None).fit(x, y, w, seed=5)
    weights = w / w.mean()
    oracle = ExtraTreesRegressor(methods.TREES, random_state=5, max_features="sqrt", min_samples_leaf=3)
    oracle.fit(x, deviance_residuals(y, weights), weights)
    np.testing.assert_allclose(member.predict(x[:13]), oracle.predict(x[:13]), atol=1e-7)


@pytest.mark.parametrize("name", list(RiskMixture.SIMPLE))
def test_members_are_restored_and_are_0_where_there_is_no_event(name):
    x, y = table(41)
    new = table(13, seed=1)[0]
    new[2] = np.nan  # an empty set
    member = RiskMixture.SIMPLE[name](None).fit(x, y)
    again = RiskMixture.SIMPLE[name](None).restore({key: value.copy() for key, value in member.state().items()})
    assert np.isfinite(member.predict(new)).all()
    assert (again.predict(new) == member.predict(new)).all()
    assert (RiskMixture.SIMPLE[name](None).fit(x, -np.abs(y)).predict(new) == 0).all()
    assert (RiskMixture.SIMPLE[name](None).fit(x, y, (y < 0).astype(float)).predict(new) == 0).all()


# ---------------------------------------------------------------------- the mixture


def left_out(rows=61, seed=0):
    """Methods that say nothing, the truth, half of the truth, and noise."""
    x, y = table(rows, seed=seed)
    f = 1.5 * x[:, 3].astype(np.float64) - x[:, 4]
    noise = np.random.default_rng(seed + 1).normal(size=rows)
    return np.stack([0 * f, f, f / 2, noise]), y, np.arange(rows) % 3


def test_sets_left_out_are_at_risk_beside_those_of_their_fold():
    risks, y, folds = left_out()
    w = np.random.default_rng(0).uniform(0.5, 2, len(y))
    outcome = Risks(y, folds)
    losses = outcome.losses(risks[2], w)
    for fold in range(3):
        rows = folds == fold
        f, ranks, weights = (torch.tensor(part) for part in (risks[2, rows], y[rows], w[rows]))
        np.testing.assert_allclose(losses[rows], -contributions(f, ranks, weights).numpy(), rtol=1e-12)
    shift = np.array([3.0, -5.0, 7.0])[folds]
    np.testing.assert_allclose(outcome.losses(risks[2] + shift, w), losses, atol=1e-10)  # constants do not count
    value, gradient = outcome.mean(w)(risks[2])
    assert value == pytest.approx(w @ losses / w.sum())
    for row in (0, 7, 60):
        step = 1e-5 * (np.arange(len(y)) == row)
        ends = [outcome.mean(w)(risks[2] + sign * step)[0] for sign in (1, -1)]
        assert gradient[row] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-9)


def test_slopes_are_the_best_of_many():
    risks, y, folds = left_out()
    w, outcome = np.ones(len(y)), Risks(y, folds)
    grid = np.linspace(0, 5, 101)
    for risk in risks[1:]:
        loss = [outcome.losses(a * risk, w).sum() + (a - 1) ** 2 / 2 for a in grid]
        assert outcome.power(risk, w) == pytest.approx(grid[int(np.argmin(loss))], abs=0.03)
    assert outcome.power(-risks[1], w) < 0.01  # never negative
    assert outcome.power(risks[0], w) == 1


def test_weights_go_to_what_tells_and_halves_are_doubled():
    risks, y, folds = left_out(301)
    found = Stack.learned(risks, Risks(y, folds), folds)
    assert found.weights[0] == found.weights[3] == 0
    assert found.powers[2] > 1.5 * found.powers[1]

    def objective(u):
        f = (softmax(u) * found.powers) @ risks
        return Risks(y, folds).losses(f, np.ones(len(y))).sum() + 6 * np.square(softmax(u) - 1 / 4).sum()

    expected = softmax(minimize(objective, np.zeros(4), method="BFGS").x)
    expected[expected < 0.02] = 0
    np.testing.assert_allclose(found.weights, expected / expected.sum(), atol=1e-3)
    doubled = [np.repeat(part, 2, -1) for part in (risks, y, folds)]
    weighed = Stack.learned(doubled[0], Risks(doubled[1], doubled[2]), doubled[2], np.tile([0.0, 3.0], len(y)))
    np.testing.assert_allclose(weighed.weights, found.weights, atol=1e-6)  # rows without weight are not there


def test_what_the_mixture_says_is_learned_on_other_folds_and_the_mean_over_repeats():
    """Sets are at risk beside those of the folds of the first repeat."""
    risks, y, folds = left_out()
    ones = np.ones(len(y))
    again = np.random.default_rng(3).permutation(folds)
    weights, slopes, ours = RiskMixture.weigh(risks, y, np.stack([folds, again]), ones, None)
    expected = np.zeros(len(y))
    for dealt in (folds, again):
        for fold in range(3):
            there = dealt != fold
            stack = Stack.learned(risks[:, there], Risks(y[there], folds[there]), folds[there])
            expected[dealt == fold] += (stack.weights * stack.powers) @ risks[:, dealt == fold] / 2
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    whole = Stack.learned(risks, Risks(y, folds), folds)
    assert (weights == whole.weights).all()
    assert (slopes == whole.powers).all()
    changed = np.where(folds == 1, -y, y)
    once, lied = (RiskMixture.weigh(risks, truth, folds[None], ones, None)[2][folds == 1] for truth in (y, changed))
    assert (once == lied).all()


def test_networks_of_an_ensemble_learn_as_each_alone():
    sets, y = data(17)
    ranks = torch.tensor(ranked(y[:, 0], y[:, 1] == 1)).float()
    model = SetSurvival(**SMALL)
    networks = [model.build(DIM, [1]) for _ in range(3)]
    weights = (torch.rand(3, 17) < 0.7).float()
    batches = EnsembleBatches(
        Sets.of(sets, torch.float32), ranks[:, None].expand(3, -1, -1), weights, 1 - weights, 99, 0
    )
    others = torch.ones(3, 3, dtype=torch.bool)
    module = CoxEnsemble(Ensemble(networks), [1], False, others, 5, 0.1, 0.0, 0, {})
    batch = batches([(0, i) for i in range(17)], True)
    module.training_step(batch, 0).backward()
    names = module.network.names
    for number, network in enumerate(networks):
        f = network(SetBatch.from_ragged([torch.tensor(s) for s in sets]))[:, 0]
        total, events = loss_parts(f, ranks, weights[number])
        (total / events).backward()
        alone = dict(network.named_parameters())
        for name, stacked in zip(names, module.network.stacked, strict=False):
            torch.testing.assert_close(stacked.grad[number], alone[name].grad, rtol=1e-3, atol=1e-6)
    module.on_validation_epoch_start()
    for keys in (range(5), range(5, 17)):  # batches of those left out are put together
        module.validation_step(batches([(0, i) for i in keys], False), 0)
    seen = []
    module.choose = lambda *sums: seen.append(sums)
    with torch.no_grad():
        module.on_validation_epoch_end()
        f = networks[1](SetBatch.from_ragged([torch.tensor(s) for s in sets]))[:, 0]
    expected = loss_parts(f, ranks, 1 - weights[1])
    assert float(seen[0][0][1]) == pytest.approx(float(expected[0]), rel=1e-5)
    assert float(seen[0][1][1]) == float(expected[1])


# ---------------------------------------------------------------------- the estimator


@pytest.fixture(scope="module")
def mixed():
    return SetSurvival(**MIXED).fit(*data())


def test_predictions_do_not_depend_on_order_mates_or_copies(mixed):
    sets, _ = data()
    risk = mixed.predict(sets)
    assert risk.std() > 0.05
    np.testing.assert_allclose([mixed.predict([s])[0] for s in sets], risk, atol=1e-6)
    np.testing.assert_allclose(mixed.predict([s[::-1].copy() for s in sets]), risk, atol=1e-6)
    counts = [np.random.default_rng(i).integers(1, 4, len(s)) for i, s in enumerate(sets)]
    repeated = mixed.predict([np.repeat(s, m, 0) for s, m in zip(sets, counts, strict=True)])
    multiset = SetBatch.from_ragged([torch.tensor(s) for s in sets], [torch.tensor(m).float() for m in counts])
    np.testing.assert_allclose(mixed.predict(multiset), repeated, atol=1e-5)


def test_survival_is_that_of_the_baseline_hazard(mixed):
    sets, y = data()
    times = np.array([0.0, 0.1, 0.5, 3.0, 1e9])
    alive = mixed.predict_survival(sets, times)
    risk = mixed.predict(sets)
    np.testing.assert_allclose(alive, np.exp(-mixed.baseline_(times)[None] * np.exp(risk)[:, None]), rtol=1e-12)
    assert (alive[:, 0] == 1).all()
    assert (np.diff(alive, axis=1) <= 0).all()
    hazard = breslow(y[:, 0], y[:, 1] == 1, mixed.out_of_fold_.predictions[OURS][:, 0])
    np.testing.assert_allclose(mixed.baseline_.values, hazard.values, rtol=1e-12)
    frame = mixed.predict_table(sets)
    assert frame.columns.tolist() == ["set", "risk", "median_time"]
    for row, middle in enumerate(frame["median_time"]):
        at_events = np.exp(-mixed.baseline_.values * np.exp(risk[row]))
        reached = mixed.baseline_.times[at_events <= 0.5]
        assert middle == reached[0] if len(reached) else np.isnan(middle)
    for bad in ([-1.0], [np.nan], 3.0):
        with pytest.raises(ValueError, match="times must be a list of numbers of at least 0"):
            mixed.predict_survival(sets, bad)
    with pytest.raises(ValueError, match="target must be 'risk', got 'time'"):
        mixed.explain(sets, target="time")


def test_score_and_evaluation_are_concordances(mixed):
    sets, y = data()
    time, event = y[:, 0], y[:, 1] == 1
    expected = concordance(time, event, mixed.predict(sets), np.ones((1, len(y))))[0]
    assert mixed.score(sets, y) == expected
    evaluation = evaluate(mixed, sets, y, resamples=20)
    table = evaluation.comparison.table("concordance", "risk")
    assert table.loc[OURS, "value"] == pytest.approx(expected, abs=1e-12)
    assert table.loc["prior", "value"] == 0.5
    assert set(table.index) == {OURS, *RiskMixture.METHODS}
    gains = evaluation.comparison.table("log likelihood gain", "risk")
    f, ranks = torch.tensor(mixed.predict(sets)), torch.tensor(ranked(time, event))
    gain = (contributions(f, ranks) - contributions(0 * f, ranks)).sum() / event.sum()
    assert gains.loc[OURS, "value"] == pytest.approx(float(gain), rel=1e-9)
    assert gains.loc["prior", "value"] == 0


def test_sets_left_out_are_compared_within_their_fold(mixed):
    sets, y = data()
    collection = mixed.read(sets)
    evaluation = out_of_fold(mixed, collection, y, resamples=20)
    value = evaluation.comparison.table("concordance", "risk").loc[OURS, "value"]
    left = mixed.out_of_fold_
    risk, folds = left.predictions[OURS][:, 0], left.folds
    right = total = 0.0
    for fold in range(2):
        rows = np.flatnonzero(folds[0] == fold)
        for i in rows:
            for j in rows:
                if y[i, 1] and y[i, 0] < y[j, 0]:
                    total += 1
                    right += np.sign(risk[i] - risk[j]) / 2 + 0.5
    assert value == pytest.approx(right / total, abs=1e-12)
    assert evaluation.comparison.baselines == [*RiskMixture.SIMPLE]


@pytest.mark.parametrize("options", [MIXED, {**ONE, "folds": 2}, ONE])
def test_an_artefact_predicts_the_same(options, mixed, tmp_path):
    sets, y = data()
    model = mixed if options is MIXED else SetSurvival(**options).fit(sets, y)
    model.save(tmp_path / "model")
    again = SetSurvival.load(tmp_path / "model")
    assert (again.predict(sets) == model.predict(sets)).all()
    assert (again.predict_survival(sets, [0.1, 1.0]) == model.predict_survival(sets, [0.1, 1.0])).all()
    assert again.columns_ == ["time", "event"]
    assert {name: steps.values.tolist() for name, steps in again.hazards_.items()} == {
        name: steps.values.tolist() for name, steps in model.hazards_.items()
    }
    if options is not MIXED:
        assert model.predict(sets).mean() == pytest.approx(0, abs=1e-6)
        assert (model.out_of_fold_ is None) == ("folds" not in options)
        assert set(evaluate(again, sets, y, resamples=5).rows["method"]) == {OURS, *RiskMixture.SIMPLE}


def test_forms_of_times_and_events_say_the_same():
    sets, y = data(23)
    names = [f"s{i}" for i in range(23)]
    rows = [{"set": n, "a": v[0], "b": v[1]} for n, s in zip(names, sets, strict=True) for v in s.tolist()]
    long = pd.DataFrame(rows)
    frame = pd.DataFrame({"event": y[:, 1].astype(bool), "time": y[:, 0]}, index=names)
    fields = np.array([(bool(e), t) for t, e in y], dtype=[("death", bool), ("days", float)])
    for form in (torch.tensor(y), y.tolist(), fields, frame.reset_index(drop=True)):
        time, event = observed(form, Sets.of(sets, torch.float32))
        assert (time == y[:, 0]).all()
        assert (event == (y[:, 1] == 1)).all()
    shuffled = frame.sample(frac=1, random_state=0)
    for form in (
        shuffled,
        shuffled.rename_axis("set").reset_index(),
        shuffled[["time", "event"]].set_axis(["a1", "b1"], axis=1),
    ):
        time, event = observed(form, Sets.of(long, torch.float32))
        assert (time == y[:, 0]).all()
        assert (event == (y[:, 1] == 1)).all()
    assert SetSurvival(**ONE).fit(long, form).columns_ == ["a1", "b1"]
    with pytest.raises(ValueError, match="column 'a' is both a feature and a target"):
        observed(form.set_axis(["a", "b1"], axis=1), Sets.of(long, torch.float32))


def test_time_counts_by_its_order_only_and_a_validation_share_is_watched():
    sets, y = data()
    options = {**ONE, "validation_fraction": 0.3, "epochs": 3}
    one = SetSurvival(**options).fit(sets, y)
    other = SetSurvival(**options).fit(sets, np.stack([y[:, 0] ** 3, y[:, 1]], 1))
    assert (one.predict(sets) == other.predict(sets)).all()
    assert len(one.validation_) == 12
    watched = [h["val_loss"] for h in one.history_]
    assert len(watched) == 3
    assert np.isfinite(watched).all()
    kept = y[one.validation_]
    assert 0 < kept[:, 1].sum() < len(kept)
    f = torch.tensor(one.predict([sets[i] for i in one.validation_]))
    total, events = loss_parts(f, torch.tensor(ranked(kept[:, 0], kept[:, 1] == 1)), torch.ones(12))
    assert min(watched) == pytest.approx(float(total / events), rel=1e-4)  # whole, not batch by batch


def test_groups_and_weights():
    sets, y = data(31)
    groups = np.arange(31) // 3
    model = SetSurvival(**MIXED | {"repeats": 1}).fit(
        sets, y, groups=groups, sample_weight=np.where(np.arange(31) < 3, 0.0, 1.0)
    )
    left = model.out_of_fold_
    (fold_of,) = left.folds
    assert all(len(np.unique(fold_of[groups == g])) == 1 for g in range(11))
    hazard = breslow(y[3:, 0], y[3:, 1] == 1, left.predictions[OURS][3:, 0])
    np.testing.assert_allclose(model.baseline_.values, hazard.values, rtol=1e-12)
    for name in RiskMixture.METHODS[-1:]:  # each fold's networks have the mean 0
        means = [left.predictions[name][fold_of == fold].mean() for fold in range(2)]
        np.testing.assert_allclose(means, 0, atol=1e-9)


def hazard_by_hand(time, event, risk):
    """At each time, the sum over events up to it of 1 over the hazards of those at risk."""
    steps = [(t, 1 / sum(np.exp(risk[time >= t]))) for t, seen in zip(time, event, strict=True) if seen]
    return np.array([sum(step for t, step in steps if t <= at) for at in time])


def test_importance_is_the_increase_of_each_sets_own_likelihood(mixed, monkeypatch):
    """The first feature decides, the second says nothing. Sets of one element: a feature is replaced by another's."""
    r = np.random.default_rng(3)
    x = r.normal(size=(31, 1, DIM)).astype(np.float32)
    time, event = r.exponential(np.exp(-x[:, 0, 0])), r.random(31) < 0.7
    y = np.stack([time, event], 1)
    donors = np.stack([(np.arange(31) + 1 + repeat) % 31 for repeat in range(2)])
    monkeypatch.setattr(importance, "donors_of", lambda *_: [dict(enumerate(d.tolist())) for d in donors])
    table = feature_importance(mixed, x, y, repeats=2).set_index("feature")
    hazard, risk = mixed.baseline_(time), mixed.predict(x)
    for feature in range(DIM):
        increase = 0
        for other in donors:
            changed = x.copy()
            changed[..., feature] = x[other][..., feature]
            f = mixed.predict(changed)
            increase += np.mean(hazard * (np.exp(f) - np.exp(risk)) - event * (f - risk)) / 2
        assert table.loc[feature, "importance"] == pytest.approx(increase, rel=1e-5)


@pytest.mark.parametrize("options", [MIXED, ONE | {"validation_fraction": 0.4}])
def test_fit_measures_importance_on_sets_left_out_or_kept_back(options, mixed, monkeypatch):
    sets, y = data()
    asked = []
    measured = importance.measured
    monkeypatch.setattr(importance, "measured", lambda task, *rest: asked.append(task) or measured(task, *rest))
    model = SetSurvival(**options, importance=True).fit(sets, y)
    (task,) = asked
    flat, steep = (task.losses(np.full((41, 1), risk), np.arange(41))[:, 0] for risk in (0.0, np.log(2)))
    hazards, events = flat, (2 * flat - steep) / np.log(2)  # H exp f - [event] f
    left_out = model.out_of_fold_
    risk = model.predict(sets) if left_out is None else left_out.predictions[OURS][:, 0]
    by_hand = hazard_by_hand(y[:, 0], y[:, 1] == 1, risk)
    if left_out is None:  # its constant is chosen afterwards
        by_hand *= hazards[0] / by_hand[0]
    np.testing.assert_allclose(hazards, by_hand, rtol=1e-6)
    np.testing.assert_allclose(events, y[:, 1], atol=1e-12)
    assert set(model.importance_["feature"]) == {*range(DIM)}
    assert model.importance_["units"].unique().tolist() == [len(sets) if left_out else len(model.validation_)]


def brier_by_hand(time, event, risk, hazard, end):
    """By the definition, on a fine grid between the steps."""

    def still(t, before):
        share = 1.0
        for at in np.unique(time[~event]):
            if at < t or (at == t and not before):
                share *= 1 - ((time == at) & ~event).sum() / ((time > at) | ((time == at) & ~event)).sum()
        return share

    total = np.zeros(len(time))
    edges = np.unique([0.0, end, *time[time < end], *hazard.times[hazard.times < end]])
    for start, stop in pairwise(edges):
        t = (start + stop) / 2
        alive = np.exp(-hazard.values[hazard.times <= t].max(initial=0) * np.exp(risk))
        for i in range(len(time)):
            if time[i] > t:
                total[i] += (stop - start) * (1 - alive[i]) ** 2 / still(t, False)
            elif event[i]:
                total[i] += (stop - start) * alive[i] ** 2 / still(time[i], True)
    return total / end


@pytest.mark.parametrize("censored", [0.0, 0.5])
@pytest.mark.parametrize("latest", [0.9, 9.0])  # the hazard is known to then
def test_the_integrated_brier_score_by_hand(censored, latest):
    r = np.random.default_rng(5)
    time, event, risk = r.exponential(1, 23).round(1), r.random(23) >= censored, r.normal(size=23)
    hazard = Steps(np.array([0.2, 0.35, latest]), np.array([0.1, 0.4, 1.1]), 0.0)
    end = min(time[event].max(), latest)
    said = integrated_brier(time, event, risk, hazard)
    np.testing.assert_allclose(said, brier_by_hand(time, event, risk, hazard, end), rtol=1e-12)
    order = r.permutation(23)
    turned = integrated_brier(time[order], event[order], risk[order], hazard)
    np.testing.assert_allclose(turned, said[order], rtol=1e-12)


def test_integrated_brier_scores_that_are_known():
    time, event = np.array([1.0, 2.0, 3.0]), np.ones(3, dtype=bool)
    coin = Steps(np.array([1e-12, 3.0]), np.array([np.log(2), np.log(2)]), 0.0)
    np.testing.assert_allclose(integrated_brier(time, event, np.zeros(3), coin), 0.25)  # S = 1/2 throughout
    never = Steps(np.array([3.0]), np.array([0.0]), 0.0)
    np.testing.assert_allclose(integrated_brier(time, event, np.zeros(3), never), [2 / 3, 1 / 3, 0])
    assert np.isnan(integrated_brier(time, ~event, np.zeros(3), coin)).all()
    assert np.isnan(integrated_brier(0 * time, event, np.zeros(3), coin)).all()


def test_every_method_has_the_survival_curves_of_its_own_hazard(mixed):
    sets, y = data()
    time, event = y[:, 0], y[:, 1] == 1
    assert set(mixed.hazards_) == {OURS, *RiskMixture.METHODS}
    table = evaluate(mixed, sets, y, resamples=20).comparison.table("integrated Brier score", "risk")
    for method, steps in mixed.hazards_.items():
        hazard = breslow(time, event, mixed.out_of_fold_.predictions[method][:, 0])
        np.testing.assert_allclose(steps.values, hazard.values, rtol=1e-12)
    ours = integrated_brier(time, event, mixed.predict(sets), mixed.baseline_).mean()
    assert table.loc[OURS, "value"] == pytest.approx(ours, rel=1e-6)
    unknown = integrated_brier(time, event, np.zeros(41), breslow(time, event, np.zeros(41))).mean()
    assert table.loc["prior", "value"] == pytest.approx(unknown, rel=1e-9)


def test_folds_of_one_network_learn_from_times_weights_and_groups():
    sets, y = data()
    table = pd.concat([pd.DataFrame(s, columns=["time", "event"]).assign(set=f"s{i}") for i, s in enumerate(sets)])
    followed = pd.DataFrame(y, [f"s{i}" for i in range(41)], ["days", "died"])  # features are called as ours are
    weights, groups = np.random.default_rng(0).uniform(0.5, 2, 41), np.arange(41) // 2
    model = SetSurvival(**ONE | {"folds": 2}).fit(table, followed, groups=groups, sample_weight=weights)
    (fold_of,) = model.out_of_fold_.folds
    collection = model.read(table)
    for fold in range(2):
        rows, held = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        alone = SetSurvival(**ONE).fit(
            collection[rows], y[rows] ** [[3.0, 1.0]], groups=groups[rows], sample_weight=weights[rows]
        )
        risk = alone.predict(collection[held])
        said = model.out_of_fold_.predictions[OURS][held, 0]
        np.testing.assert_allclose(said, risk - risk.mean(), atol=1e-6)


def test_a_fold_without_two_events_says_the_prior():
    """Of two events, each is left out once: no risk can be learned from less."""
    sets, y = data()
    y[:, 1] = 0
    y[[2, 5], 1] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SetSurvival(**ONE, folds=2).fit(sets, y)
    assert np.ptp(model.out_of_fold_.predictions[OURS]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([(3, 0, -2.0)], r"y\[3\]: time is -2, it must be a finite number of at least 0"),
        ([(3, 0, np.inf)], r"y\[3\]: time is inf, it must be a finite number"),
        ([(3, 0, np.nan)], r"y\[3\] is missing"),
        ([(5, 1, 2.0)], r"y\[5\]: event is 2, it must be 1 \(seen\) or 0 \(not seen\)"),
        ([(slice(None), 1, 0.0)], "y has no events: at least two must have been seen"),
        ([(slice(1, None), 1, 0.0), (0, 1, 1.0)], "y has 1 event: at least two must have been seen"),
        ([(slice(None), 0, 3.0)], "y has the same time for all sets: nothing to learn"),
    ],
)
def test_bad_times_and_events_are_refused(changed, message):
    sets, y = data(11)
    for row, column, value in changed:
        y[row, column] = value
    with pytest.raises(ValueError, match=message):
        SetSurvival(**SMALL).fit(sets, y)


def test_what_cannot_be_learned_is_refused():
    sets, y = data(11)
    y[:, 1] = np.arange(11) < 3
    with pytest.raises(ValueError, match="survival is learned from two sets or more, got 1"):
        SetSurvival(**SMALL).fit(sets[:1], y[:1])
    with pytest.raises(ValueError, match="folds must be at most the number of events, 3, got 5"):
        SetSurvival(**SMALL, folds=5).fit(sets, y)
    with pytest.raises(ValueError, match=r"y must hold time and event of each set, shape \(11, 2\), got \(11, 1\)"):
        SetSurvival(**SMALL).fit(sets, y[:, 0])
    with pytest.raises(ValueError, match="time must be a number"):
        SetSurvival(**SMALL).fit(sets, [["soon", 1]] * 11)
    with pytest.raises(ValueError, match="one field of truth values and one of numbers"):
        SetSurvival(**SMALL).fit(sets, np.zeros(11, dtype=[("a", float), ("b", float)]))
    with pytest.raises(ValueError, match="level='element': survival is of sets"):
        SetSurvival(**SMALL, level="element").fit(sets, y)
    with pytest.raises(ValueError, match="survival is learned in one process"):
        SetSurvival(**ONE, devices=2).fit(sets, y)
    with pytest.warns(UserWarning, match="only 3 events were seen"):
        few = SetSurvival(**SMALL, repeats=1).fit(sets, y)
    assert few.out_of_fold_.folds.max() == 2  # as many folds as events
