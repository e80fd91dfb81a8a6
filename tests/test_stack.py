"""Mixtures of methods: no set is learned from where it is left out, and what they say is the formula written out."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from omniset import SetClassifier, SetRegressor
from omniset.core.sets import Sets
from omniset.estimators import mixture
from omniset.estimators.distances import References, samples_of
from omniset.estimators.inputs import folds_of
from omniset.estimators.methods import DISTANCES
from omniset.estimators.mixture import NETWORK, NumberMixture, Regime, SetMixture
from omniset.estimators.pooling import pooled, spread_of
from omniset.trials.comparison import OURS

SMALL = {"dim": 4, "num_heads": 2, "depth": 1, "num_inducing": 2, "epochs": 2, "folds": 2, "repeats": 1}
SMALL |= {"batch_size": 16, "progress": False, "device": "cpu"}


def some_sets(number, seed=0, empty=True):
    """Arrays of 1 to 8 elements, multiplicities, and a number of each set; the last set may be empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, number)
    if empty and number > 5:
        sizes[-1] = 0
    elements = [rng.normal(size=(n, 2)) + rng.choice([-1, 1]) for n in sizes]
    counts = [rng.integers(1, 4, n).astype(float) for n in sizes]
    return elements, counts, np.array([e[:, 0].sum() for e in elements])


def of(elements, counts=None):
    return Sets.from_ragged(elements, counts, dtype=torch.float32)


def weighted(model, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(model.MIXTURE.METHODS)), len(model.targets_))
    model.network_.weights.copy_(torch.as_tensor(weights))
    if model.classifies:
        model.network_.powers.copy_(torch.as_tensor(rng.uniform(0.5, 2, weights.shape)))
    return model


@pytest.fixture(scope="module")
def classifier():
    elements, counts, numbers = some_sets(23)
    y = pd.DataFrame({"kind": np.arange(23) % 3, "side": np.where(numbers > 0, "l", "r")})
    return weighted(SetClassifier(**SMALL).fit(of(elements, counts), y.to_numpy()))


@pytest.fixture(scope="module")
def regressor():
    elements, counts, numbers = some_sets(23)
    return weighted(SetRegressor(**SMALL).fit(of(elements, counts), np.stack([numbers, 100 - numbers**2], 1)))


# ---------------------------------------------------------------------- sets left out


def said_by(model):
    predictions = model.out_of_fold_.predictions
    return {method: said.reshape(-1, *said.shape[-2:]).mean(0) for method, said in predictions.items()}


def left_out(monkeypatch, sets, y, folds, **options):
    """A mixture with these folds, whatever the labels."""
    maker = SetRegressor if np.asarray(y).dtype.kind == "f" else SetClassifier
    with monkeypatch.context() as patch:
        patch.setattr(mixture, "folds_of", lambda *_: folds)
        given = {name: options.pop(name) for name in ("sample_weight", "groups") if name in options}
        return maker(**SMALL | options).fit(sets, y, **given)


@pytest.mark.parametrize("number", [23, 31])
@pytest.mark.parametrize("classify", [True, False])
def test_labels_of_sets_left_out_change_nothing_that_is_said_of_them(number, classify, monkeypatch):
    """To the bit. Of the others they do. Networks of more than 29 sets choose epochs together, simple methods never."""
    elements, counts, numbers = some_sets(number)
    folds = np.arange(number) % 3
    y = (numbers > 0).astype(int) if classify else numbers
    changed = np.where(folds == 1, 1 - y if classify else 50 - 3 * y, y)
    said = [said_by(left_out(monkeypatch, of(elements, counts), labels, folds)) for labels in (y, changed)]
    for method in (SetMixture if classify else NumberMixture).METHODS:
        one, other = (of_labels[method] for of_labels in said)
        if number < mixture.WATCHED or method != NETWORK:
            np.testing.assert_array_equal(one[folds == 1], other[folds == 1], err_msg=method)
        if method != "prior" or not classify:
            assert (one[folds != 1] != other[folds != 1]).any(), method


def of_fold(model, number, folds):
    networks = model.network_.networks
    each, rest = divmod(len(networks), folds)
    assert (each > 0, rest) == (True, 0)
    return networks[each * number : each * (number + 1)]


def test_a_method_is_fitted_to_the_other_folds_alone():
    """Simple ones again, from nothing but the sets that were there; networks by what their states say. Two repeats."""
    elements, counts, numbers = some_sets(19)
    y, sets = (numbers > 0).astype(int), of(elements, counts)
    model = SetClassifier(**SMALL | {"repeats": 2}).fit(sets, y)
    said, table = said_by(model), pooled(sets)
    expected = {name: np.zeros((19, 2)) for name in SetMixture.METHODS}
    for repeat, folds in enumerate(model.out_of_fold_.folds):
        np.testing.assert_array_equal(folds, folds_of(y, 2, model.seed + repeat))
        for fold in range(2):
            there, held = folds != fold, np.flatnonzero(folds == fold)
            samples = samples_of(sets, 1_024)
            learned = [samples[i] for i in np.flatnonzero(there)]
            references = References.of(learned, spread_of(table[there], 2), 1_024, model.seed + repeat)
            distances = references.distances(samples)
            for name in SetMixture.METHODS:
                if name == NETWORK:
                    networks = of_fold(model, 2 * repeat + fold, 4)
                    with torch.no_grad():
                        each = [network(sets[held].to_batch()).double().softmax(1) for network in networks]
                    predicted = torch.stack(each).mean(0).numpy()
                else:
                    seen = distances if SetMixture.SIMPLE[name].sees == DISTANCES else table
                    member = SetMixture.SIMPLE[name](2).fit(seen[there], y[there], seed=model.seed + repeat)
                    predicted = member.predict(seen[held])
                expected[name][held] += predicted / 2
    for name in SetMixture.METHODS:
        np.testing.assert_allclose(said[name], expected[name], atol=1e-6 if name == NETWORK else 1e-15, err_msg=name)


@pytest.mark.parametrize("number", [29, 31])
def test_what_networks_are_given(number, monkeypatch):
    """Each learns from the sets of the other folds, and is watched, if at all, by networks of these, of its repeat."""
    given = []
    monkeypatch.setattr(mixture.ensembles, "learn", lambda *arguments, **_: given.append(arguments) or [])
    elements, counts, numbers = some_sets(number)
    weights = np.arange(number) + 1.0
    model = SetClassifier(**SMALL | {"folds": 3, "repeats": 2})
    model.fit(of(elements, counts), numbers > 0, sample_weight=weights)
    places = [(repeat, fold) for repeat in range(2) for fold in range(3)]
    assert len(given) == 1
    for networks, module, batches in given:
        assert module.classify
        of_network = [place for place in places for _ in range(len(networks) // 6)]
        held = np.stack([model.out_of_fold_.folds[repeat] == fold for repeat, fold in of_network])
        np.testing.assert_array_equal(batches.weights, np.where(held, 0, weights))
        np.testing.assert_array_equal(batches.left_out, np.where(held, weights, 0))
        np.testing.assert_array_equal(batches.targets[..., 0], np.tile(numbers > 0, (len(networks), 1)))
        expected = [[a[0] == b[0] and a[1] != b[1] for b in of_network] for a in of_network]
        if number < mixture.WATCHED:
            assert module.others is None
        else:
            assert module.others.tolist() == expected


# ---------------------------------------------------------------------- the formula


def test_the_mixture_is_the_formula_written_out(classifier):
    elements, counts, _ = some_sets(11, seed=5)
    sets, stack = of(elements, counts), classifier.network_
    said = stack.predictions([*sets], torch.device("cpu"), **classifier.reading())
    assert {*said} == {*SetMixture.METHODS}
    found = classifier.predict_proba(sets)
    for target, part in enumerate((slice(0, 3), slice(3, 5))):
        expected = np.zeros_like(found[target])
        for at, method in enumerate(SetMixture.METHODS):
            power = float(stack.powers[target, at])
            p = said[method][:, part] ** power
            expected += float(stack.weights[target, at]) * p / p.sum(1, keepdims=True)
        np.testing.assert_allclose(found[target], expected, rtol=1e-10)
        np.testing.assert_allclose(found[target].sum(1), 1, rtol=1e-12)


def test_of_numbers_the_mixture_is_the_weighted_mean(regressor):
    elements, counts, _ = some_sets(11, seed=5)
    sets, stack = of(elements, counts), regressor.network_
    said = stack.predictions([*sets], torch.device("cpu"), **regressor.reading())
    weights = stack.weights.numpy()
    expected = sum(weights[:, at] * said[method] for at, method in enumerate(NumberMixture.METHODS))
    np.testing.assert_allclose(regressor.predict(sets), expected, rtol=1e-12)


def test_methods_without_weight_are_not_asked(classifier, monkeypatch):
    sets, model, at = (
        of(*some_sets(7, seed=5)[:2]),
        copy.deepcopy(classifier),
        SetMixture.METHODS.index("pooled-forest"),
    )
    model.network_.weights.copy_(torch.eye(len(SetMixture.METHODS))[at])
    monkeypatch.setattr("omniset.estimators.mixture.ensemble_outputs", None)
    found = model.predict_proba(sets)
    (only,) = model.network_.predictions([*sets], torch.device("cpu"), ["pooled-forest"]).values()
    powers = model.network_.powers[:, at].tolist()
    for p, part, power in zip(found, (slice(0, 3), slice(3, 5)), powers, strict=True):
        raised = only[:, part] ** power
        np.testing.assert_allclose(p, raised / raised.sum(1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_what_is_saved_is_loaded_to_the_bit(kind, request, tmp_path):
    model, sets = request.getfixturevalue(kind), of(*some_sets(11, seed=5)[:2])
    model.save(tmp_path)
    again = type(model).load(tmp_path)
    pd.testing.assert_frame_equal(again.predict_table(sets), model.predict_table(sets), check_exact=True)
    assert again.network_.weights_of(1) == model.network_.weights_of(1)
    assert again.get_params() == model.get_params()
    assert again.out_of_fold_ is None


# ---------------------------------------------------------------------- multisets


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_mixture_sees_multisets(kind, request):
    """Permuted, or with copies in place of multiplicities, alone or in shards: the same."""
    model, (elements, counts, _) = request.getfixturevalue(kind), some_sets(13, seed=7)
    rng = np.random.default_rng(2)
    orders = [rng.permutation(len(e)) for e in elements]
    permuted = of(
        [e[o] for e, o in zip(elements, orders, strict=True)], [c[o] for c, o in zip(counts, orders, strict=True)]
    )
    repeated = of([np.repeat(e, c.astype(int), 0) for e, c in zip(elements, counts, strict=True)])

    def said(sets, **options):
        return model.predict_table(sets, **options).drop(columns="set").select_dtypes("number").to_numpy()

    expected = said(of(elements, counts))
    scale = np.abs(expected).max()
    alone = np.concatenate([said(of([e], [c])) for e, c in zip(elements, counts, strict=True) if len(e)])
    for found in (said(permuted), said(repeated), said(of(elements, counts), shard_size=3)):
        assert np.abs(found - expected).max() < 1e-5 * scale
    assert np.abs(alone - expected[[len(e) > 0 for e in elements]]).max() < 1e-5 * scale
    nothing = said(Sets.from_ragged([np.zeros((0, 2)), np.ones((3, 2))], [[], [0] * 3], dim=2))
    np.testing.assert_allclose(nothing, expected[[-1, -1]], atol=1e-5 * scale)  # absent elements are none


def test_the_spread_of_features_is_numpys_on_repeated_rows():
    elements, counts, _ = some_sets(23)
    elements = [np.column_stack([e * [1, 100] + [0, 1000], np.full(len(e), 7.0)]) for e in elements]
    shift, scale = spread_of(pooled(of(elements, counts)), 3)
    rows = np.concatenate([np.repeat(e, c.astype(int), 0) for e, c in zip(elements, counts, strict=True)])
    np.testing.assert_allclose(shift, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(scale, [*rows.std(0)[:2], 1], rtol=1e-4)
    shift, scale = spread_of(pooled(Sets.from_ragged([np.zeros((0, 2))], dim=2)), 2)
    assert (shift.tolist(), scale.tolist()) == ([0, 0], [1, 1])


def test_each_network_is_standardised_by_what_it_learns_from():
    elements, counts, numbers = some_sets(23)
    torch.manual_seed(11)
    model = SetRegressor(**SMALL).fit(of(elements, counts), numbers)
    after = torch.rand(1)
    torch.manual_seed(11)
    assert torch.equal(after, torch.rand(1))  # the caller's random numbers are left alone
    (folds,) = model.out_of_fold_.folds
    for fold in range(2):
        there = np.flatnonzero(folds != fold)
        rows = np.concatenate([np.repeat(elements[i], counts[i].astype(int), 0) for i in there])
        for network in of_fold(model, fold, 2):
            np.testing.assert_allclose(network.encoder.embed[0].shift, rows.mean(0), atol=1e-5)
            np.testing.assert_allclose(network.encoder.embed[0].scale, rows.std(0), rtol=1e-5)
            np.testing.assert_allclose(network.targets.shift, numbers[there].mean(), rtol=1e-5)


# ---------------------------------------------------------------------- weights of sets


@pytest.mark.parametrize("classify", [True, False])
def test_the_label_of_a_set_of_weight_0_says_nothing(classify, monkeypatch):
    elements, counts, numbers = some_sets(23)
    y, folds = (numbers > 0).astype(int) if classify else numbers, np.arange(23) % 2
    ignored = np.arange(23) % 5 == 0
    changed = np.where(ignored, 1 - y if classify else 1000 + y, y)
    weights = np.where(ignored, 0.0, np.arange(23) + 1)
    one, other = (left_out(monkeypatch, of(elements, counts), v, folds, sample_weight=weights) for v in (y, changed))
    for method in said_by(one):
        np.testing.assert_array_equal(*(said_by(m)[method] for m in (one, other)), err_msg=method)
    assert torch.equal(one.network_.weights, other.network_.weights)
    states = [m.network_.state_dict() for m in (one, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    plain = left_out(monkeypatch, of(elements, counts), y, folds)
    assert (said_by(plain)["dissimilarity-linear"] != said_by(one)["dissimilarity-linear"]).any()


def test_balanced_classes_are_weights_of_sets(monkeypatch):
    elements, counts, _ = some_sets(23)
    y, folds = np.array(["rare"] * 5 + ["common"] * 18), np.arange(23) % 2
    weights = np.where(y == "rare", np.float32(23 / (2 * 5)), np.float32(23 / (2 * 18))).astype(float)
    sets = of(elements, counts)
    balanced = left_out(monkeypatch, sets, y, folds, class_weight="balanced")
    expected = left_out(monkeypatch, sets, y, folds, sample_weight=weights)
    for method in (*SetMixture.METHODS, OURS):
        found = [said_by(m)[method] for m in (balanced, expected)]
        np.testing.assert_allclose(*found, atol=1e-6, err_msg=method)
    plain = left_out(monkeypatch, sets, y, folds)
    assert (said_by(plain)["prior"][:, 1] < said_by(balanced)["prior"][:, 1]).all()  # "rare"


# ---------------------------------------------------------------------- few sets


@pytest.mark.filterwarnings("ignore:label. ")
@pytest.mark.parametrize("classify", [True, False])
@pytest.mark.parametrize("number", [2, 5, 29])
def test_few_sets(number, classify):
    elements, counts, numbers = some_sets(number)
    y = np.array(["a", "b"])[np.arange(number) % 2] if classify else numbers
    maker = SetClassifier if classify else SetRegressor
    options = SMALL | {"folds": None, "epochs": 1} | ({"folds": 2} if number == 29 else {})
    model = maker(**options).fit(of(elements, counts), y)
    folds = model.out_of_fold_.folds
    assert folds.shape == (1, number)
    assert len(np.unique(folds)) == min(5, number) if number < 29 else 2
    said = said_by(model)
    assert all(np.isfinite(p).all() for p in said.values())
    assert {*said} == {*model.MIXTURE.METHODS, OURS}
    np.testing.assert_allclose(model.network_.weights.sum(1), 1, rtol=1e-12)
    if classify:
        assert all(p.min() > 0 for p in said.values())
        for p in (*said.values(), model.predict_proba(of(elements, counts))):
            np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:label. classes with fewer than 5 sets")
def test_a_class_that_a_fold_does_not_learn_is_not_impossible(monkeypatch):
    """The one set of its class: whoever has not seen it gives it a probability, as no class is ruled out."""
    elements, counts, _ = some_sets(23)
    y = np.array(["a", "b"])[np.arange(23) % 2].astype(object)
    y[4] = "lone"
    model = left_out(monkeypatch, of(elements, counts), y, np.arange(23) % 2)
    assert model.classes_.tolist() == ["a", "b", "lone"]
    for method, said in said_by(model).items():
        assert (said > 0).all(), method
        np.testing.assert_allclose(said.sum(-1), 1, rtol=1e-6)
    for method in SetMixture.SIMPLE:
        assert said_by(model)[method][4, 2] < 0.1


# ---------------------------------------------------------------------- how it learns


def test_the_regime_by_the_number_of_sets(monkeypatch):
    monkeypatch.setattr(mixture, "STEPS", 300)
    few, some, many = (Regime.of(n, n) for n in (24, 150, 4000))
    assert (few.folds, few.repeats, few.batch_size) == (5, 3, 4)
    assert (some.folds, some.repeats, some.batch_size) == (5, 2, 18)
    assert (many.folds, many.repeats, many.batch_size) == (3, 1, 64)
    assert few.epochs == 50  # 300 steps of 4 sets
    assert some.epochs == 41  # 60 sqrt(150 / 4) = 367.4 steps, 9 an epoch
    assert many.epochs == 31  # 60 sqrt(1000) = 1,897.4 steps, 63 an epoch
    assert Regime.of(24, 3).folds == 3
    asked = Regime.of(24, 24, folds=7, repeats=4, epochs=9, batch=5, patience=None)
    assert asked == Regime(7, 4, few.networks, 5, 9, None)


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({"folds": 8}, None, r"folds must be at most the number of groups \(or sets\), 7, got 8"),
        ({"folds": 4}, [0, 0, 1, 1, 2, 2, 2], r"folds must be at most the number of groups \(or sets\), 3, got 4"),
        ({}, [5] * 7, "groups: all sets are of one group, so that no fold can be left out"),
        ({"folds": 1}, None, "folds must be >= 2, got 1"),
        ({"repeats": 0}, None, "repeats must be >= 1, got 0"),
        ({"encoder": "ust", "method": "deep-sets"}, None, "encoder='ust' and method='deep-sets' are two networks"),
        ({"devices": 2}, None, r"method='auto' learns in one process, got devices=2, .* name one network"),
        ({"method": "ust", "devices": 2}, None, "folds=2 is for labels of sets, and one process"),
        ({"level": "element"}, None, "folds=2 is for labels of sets, and one process"),
        ({"encoder_options": {"nonsense": 1}}, None, "encoder_options={'nonsense': 1}: .*does not take nonsense"),
        ({"method": "nonsense"}, None, "method must be one of .*auto.* got 'nonsense'"),
    ],
)
def test_what_is_refused(options, groups, message):
    y = [0.5] * 3 + [1.5] * 4
    with pytest.raises(ValueError, match=message):
        SetRegressor(**SMALL | options).fit([[[float(i)]] for i in range(7)], y, groups=groups)


def test_patience():
    elements, counts, numbers = some_sets(31)
    options = SMALL | {"epochs": 12, "learning_rate": 1.0}
    ends = {}
    for patience in (1, None):
        model = SetClassifier(**options, patience=patience).fit(of(elements, counts), numbers > 0)
        ends[patience] = len(model.history_)
        assert ("val_loss" in model.history_[0]) == (patience is not None)
    assert ends[1] < 12
    assert ends[None] == 12


def test_two_outliers_do_not_decide_the_weights():
    """A method that is right about two outliers and says noise else; of normal errors values stay."""
    rng = np.random.default_rng(0)
    y, told, noise = rng.normal(size=(3, 100))
    y = y + told
    each = np.stack([np.full(100, y.mean()), told, 2 * noise])
    assert np.isclose(mixture.drawn_in(y, each), y, rtol=1e-12).mean() >= 0.95
    y[:2], each[2, :2] = 60, 50
    m = np.median(each, 0)
    t = np.median(np.abs(y - m)) * 3 * 1.4826
    np.testing.assert_allclose(mixture.drawn_in(y, each)[:3], [m[0] + t, m[1] + t, y[2]], rtol=1e-12)
    folds = np.arange(100)[None] % 5
    weights, _, ours = NumberMixture.weigh(each, y, folds, np.ones(100), None)
    assert weights.argmax() == 1
    assert weights[2] < 0.2
    assert np.square(ours[2:] - y[2:]).mean() < 1.2 * np.square(told[2:] - y[2:]).mean()


@pytest.mark.parametrize("maker", [SetClassifier, SetRegressor])
def test_labels_of_elements_are_a_forests_where_it_is_better(maker, tmp_path):
    """The label is of an element's own features: two epochs of a network do not find it."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)).astype(np.float32) for n in rng.integers(5, 15, 60)]
    y = [np.where(each[:, 0] * each[:, 1] > 0, 1.0, -1.0) for each in x]
    sizes = {"dim": 4, "num_heads": 2, "depth": 1, "epochs": 2, "progress": False, "device": "cpu"}
    model = maker(level="element", **sizes).fit(x, [each.astype(int) for each in y])
    weights = model.network_.weights_of(0)
    assert weights["element-forest"] > 0.8
    said = np.concatenate(model.predict(x))
    assert (np.sign(said) == np.concatenate(y)).mean() > 0.95
    tables = model.by_method(of(x))
    assert {*tables} == {OURS, *model.mixes.METHODS}
    forest = model.network_._methods("element-forest")[0]
    column = "p_1" if model.classifies else "label"
    expected = forest.predict(np.concatenate(x)).reshape(len(said), -1)[:, -1]
    np.testing.assert_allclose(tables["element-forest"][column], expected, rtol=1e-6)
    model.save(tmp_path)
    again = maker.load(tmp_path).set_params(max_elements=4, device="cpu")
    np.testing.assert_allclose(np.concatenate(again.predict(x)), said, rtol=1e-5, atol=1e-6)
    named = maker("ust", level="element", **sizes).fit(x, [each.astype(int) for each in y])
    assert {*named.by_method(of(x))} == {OURS, *model.mixes.SIMPLE}
