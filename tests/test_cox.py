"""Cox's partial likelihood, concordance and the survival functions against the definitions, written out as loops."""

import math

import numpy as np
import pytest
import torch

from omniset.estimators.survival import PartialLikelihood
from omniset.training.cox import contributions, loss_parts, ranked
from omniset.trials.survival import breslow, concordance, kaplan_meier

ROWS = 23


def observed(rows=ROWS, seed=0, ties=True):
    r = np.random.default_rng(seed)
    time = r.integers(0, 7, rows).astype(float) if ties else r.permutation(rows) + 0.5
    event = r.random(rows) < 0.6
    event[0] = True
    return time, event, r.normal(size=rows), r.integers(0, 3, rows) + r.random(rows).round()


def by_hand(time, event, f, w):
    """w_i c_i of each row: by risk sets."""
    each = [0.0] * len(time)
    for i in range(len(time)):
        if not event[i] or not w[i]:
            continue
        risk = sum(w[k] * math.exp(f[k]) for k in range(len(time)) if time[k] >= time[i])
        dying = [k for k in range(len(time)) if time[k] == time[i] and event[k] and w[k] > 0]
        tied = sum(w[k] * math.exp(f[k]) for k in dying)
        d = len(dying)
        lost = [math.log(risk - position / d * tied) for position in range(d)]
        each[i] = w[i] * (f[i] - sum(lost) / d)
    return np.array(each)


def tensors(time, event, f, w):
    return torch.tensor(f), torch.tensor(ranked(time, event)), torch.tensor(w)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_contributions_are_those_of_risk_sets(ties, seed):
    time, event, f, w = observed(seed=seed, ties=ties)
    risk, ranks, weights = tensors(time, event, f, w)
    expected = by_hand(time, event, f, w)
    np.testing.assert_allclose((weights * contributions(risk, ranks, weights)).numpy(), expected, rtol=1e-12)
    total, counted = loss_parts(risk, ranks, weights)
    assert float(total) == pytest.approx(-expected.sum(), rel=1e-12)
    assert float(counted) == pytest.approx(w[event].sum(), rel=1e-12)
    ones = np.ones(ROWS)
    np.testing.assert_allclose(contributions(risk, ranks).numpy(), by_hand(time, event, f, ones), rtol=1e-12)


@pytest.mark.parametrize("spread", [1, 300])  # exp(300) squared is no number of float64
@pytest.mark.parametrize(("ties", "seed"), [(True, 0), (True, 1), (False, 2)])
def test_closed_form_is_the_sum_and_its_gradient(ties, seed, spread):
    time, event, f, w = observed(seed=seed, ties=ties)
    risk, ranks, weights = tensors(time, event, spread * f, w)
    total = loss_parts(risk.requires_grad_(), ranks, weights)[0]
    (expected,) = torch.autograd.grad(total, risk)
    likelihood = PartialLikelihood(ranked(time, event), w)
    loss, gradient = likelihood.loss(spread * f[likelihood.order])
    assert loss == pytest.approx(float(total.detach()), rel=1e-12)
    np.testing.assert_allclose(gradient, expected.numpy()[likelihood.order], rtol=1e-11, atol=1e-13)
    if spread == 1:
        assert loss == pytest.approx(-by_hand(time, event, f, w).sum(), rel=1e-12)


def test_closed_form_where_no_event_was_seen():
    loss, gradient = PartialLikelihood(np.array([-2.0, -1.0, 3.0]), np.array([1.0, 1.0, 0.0])).loss(np.arange(3.0))
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("ties", [True, False])
def test_gradients_are_finite_differences(ties):
    time, event, f, w = observed(ties=ties)
    risk, ranks, weights = tensors(time, event, f, w)
    assert torch.autograd.gradcheck(lambda x: loss_parts(x, ranks, weights)[0], risk.requires_grad_())
    (gradient,) = torch.autograd.grad(loss_parts(risk, ranks, weights)[0], risk)
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-12)  # a constant changes nothing
    assert (gradient[torch.tensor(w == 0)] == 0).all()


def test_neither_constants_nor_order_nor_the_scale_of_time_count():
    time, event, f, w = observed()
    risk, ranks, weights = tensors(time, event, f, w)
    each = contributions(risk, ranks, weights)
    torch.testing.assert_close(contributions(risk + 700, ranks, weights), each, rtol=0, atol=1e-11)
    order = torch.randperm(ROWS)
    moved = contributions(risk[order], ranks[order], weights[order])
    torch.testing.assert_close(moved, each[order], rtol=0, atol=1e-12)
    same = torch.tensor(ranked(np.exp(time), event))
    assert torch.equal(contributions(risk, same, weights), each)


def test_several_models_are_each_of_them_alone_and_weights_leave_rows_out():
    time, event, f, _ = observed()
    risks = torch.tensor(np.stack([f, 2 * f, -f]))
    weights = torch.tensor(np.random.default_rng(1).integers(0, 2, (3, ROWS)).astype(float))
    weights[2] = 0
    ranks = torch.tensor(ranked(time, event))
    each = contributions(risks.requires_grad_(), ranks, weights)
    for one, risk, weight in zip(each[:2], risks, weights, strict=False):
        left = weight > 0
        torch.testing.assert_close(one[left], contributions(risk[left], ranks[left]))
        assert (one[~left] == 0).all()
    assert (each[2] == 0).all()  # nobody is at risk
    (gradient,) = torch.autograd.grad(each.sum(), risks)
    assert gradient.isfinite().all()
    assert (gradient[2] == 0).all()


def test_risks_far_apart_stay_finite():
    ranks = torch.tensor([-1.0, 2.0, 3.0, 3.0, -4.0])
    risk = torch.tensor([800.0, -900.0, 0.0, 900.0, -2000.0], dtype=torch.float64, requires_grad=True)
    each = contributions(risk, ranks)
    half = math.log(2) / 2  # of two events at once, of which one counts as good as nothing
    expected = torch.tensor([0, -1800, half - 900, half, 0], dtype=torch.float64)
    torch.testing.assert_close(each.detach(), expected, rtol=1e-14, atol=1e-12)
    (gradient,) = torch.autograd.grad(each.sum(), risk)
    assert gradient.isfinite().all()


def test_single_precision_is_computed_in_double():
    time, event, f, w = observed()
    risk, ranks, weights = tensors(time, event, f, w)
    each = contributions(risk.float(), ranks.float(), weights.float())
    assert each.dtype == torch.float64
    torch.testing.assert_close(each, contributions(risk, ranks, weights), rtol=1e-5, atol=1e-5)


def concordance_by_hand(time, event, f, w, strata):
    right = total = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            before = time[i] < time[j] or (time[i] == time[j] and not event[j])
            if event[i] and before and strata[i] == strata[j]:
                total += w[i] * w[j]
                right += w[i] * w[j] * (1.0 if f[i] > f[j] else 0.5 if f[i] == f[j] else 0.0)
    return right / total


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
def test_concordance_is_counted_over_pairs(block, monkeypatch):
    monkeypatch.setattr("omniset.trials.survival.BLOCK", block)
    time, event, f, w = observed(41)
    f = f.round(1)
    strata = np.random.default_rng(3).integers(0, 3, 41)
    draws = np.stack([w, np.ones(41), np.random.default_rng(4).integers(0, 4, 41)])
    for parts in (None, strata):
        hand = [concordance_by_hand(time, event, f, one, np.zeros(41) if parts is None else parts) for one in draws]
        np.testing.assert_allclose(concordance(time, event, f, draws, parts), hand, rtol=1e-12)
    assert concordance(time, event, np.zeros(41), draws[1:2])[0] == 0.5
    untied = np.arange(41.0)
    assert concordance(untied, event, -untied, draws[1:2])[0] == 1.0
    assert np.isnan(concordance(untied, np.zeros(41, dtype=bool), f, draws)).all()


def test_breslow_and_kaplan_meier_by_hand():
    time = np.array([5.0, 2.0, 2.0, 3.0, 2.0, 7.0])
    event = np.array([True, True, False, False, True, True])
    f = np.log([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    hazard = breslow(time, event, f)
    assert hazard.times.tolist() == [2.0, 5.0, 7.0]
    np.testing.assert_allclose(hazard.values, [2 / 21, 2 / 21 + 1 / 7, 2 / 21 + 1 / 7 + 1 / 6], rtol=1e-14)
    at = np.array([[1.9, 2.0], [6.9, 100.0]])
    np.testing.assert_allclose(hazard(at), [[0, 2 / 21], [2 / 21 + 1 / 7, hazard.values[-1]]], rtol=1e-14)
    twice = breslow(np.repeat(time, 2), np.repeat(event, 2), np.repeat(f, 2))
    np.testing.assert_allclose(breslow(time, event, f, np.full(6, 2.0)).values, twice.values, rtol=1e-14)
    alive = kaplan_meier(time, event)
    np.testing.assert_allclose(alive.values, [4 / 6, 4 / 6 * 1 / 2, 0], rtol=1e-14)
    assert alive(np.array([1.0, 2.0, 6.0])).tolist() == pytest.approx([1.0, 4 / 6, 2 / 6])


def test_the_baseline_hazard_undoes_a_constant():
    time, event, f, _ = observed(101)
    one, other = breslow(time, event, f), breslow(time, event, f + 3)
    np.testing.assert_allclose(one.values, other.values * np.exp(3), rtol=1e-12)
