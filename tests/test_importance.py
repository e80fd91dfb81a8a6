"""Importance by permutation against hand calculations, and its null against all sign flips written out."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from omniset import SetClassifier, SetRegressor, Sets
from omniset.cli import main
from omniset.estimators import importance
from omniset.estimators.evaluation import feature_importance
from omniset.estimators.importance import donors_of, drawn_rows
from omniset.estimators.methods import PooledLinear
from omniset.estimators.mixture import Arrays, MixtureLearner, Simple
from omniset.estimators.pooling import OF_SIZE, STATISTICS
from omniset.trials.importances import in_words, randomised, table_of
from small import QUIET, TINY

DIM = 3
COLUMNS = len(OF_SIZE) + DIM * len(STATISTICS)
READING = {"max_elements": 1000}
MEANS = slice(len(OF_SIZE), len(OF_SIZE) + DIM)


def mixture(model, slope, features=None):
    """A model that says the sum of slope times the mean of each feature; of classes, that is the log odds of the last.

    All weight is on its linear member.
    """
    classes = 2 if model.classifies else 1
    state = {"prior": np.full(classes, 1 / classes), "fill": np.zeros(COLUMNS, np.float32), "rows": np.array(2**60)}
    state |= {"learns": np.array(True), "mean": np.zeros(COLUMNS), "intercept": np.zeros(classes)}
    state |= {"per_unit": np.full(COLUMNS, 1e-3), "slope": np.zeros((COLUMNS, classes))}
    state["slope"][MEANS, -1] = 1e3 * np.sqrt(COLUMNS) * np.array(slope)
    kind = type("Linear", (model.MIXTURE,), {"SIMPLE": {"linear": PooledLinear}, "METHODS": ("linear",)})
    simple = Simple({"linear": [Arrays.of(state)]}, Arrays({}))
    model.network_ = kind(DIM, [classes], model.classifies, [], simple, torch.ones(1, 1, dtype=torch.float64))
    model.features_, model.targets_, model.single_, model.encoding_ = features, ["y"], True, None
    if model.classifies:
        model._classes = [np.array(["a", "b"])]
    return model


def linear_model():
    return mixture(SetRegressor(device="cpu", progress=False), [1.0, 2.0, 0.0])


class Product(SetRegressor):
    def probable(self, sets, like):
        said = []
        for stored in sets:
            x, m = (part.double().numpy() for part in stored.read())
            said.append([m @ (x[:, 0] * x[:, 1]) / m.sum() if m.sum() else 0.0])
        return np.array(said)


def product_model():
    model = Product("deep-sets", dim=4, depth=1, device="cpu", progress=False)
    model.network_ = model.build(DIM, [1])
    model.features_, model.targets_, model.single_, model.encoding_ = None, ["y"], True, None
    return model


def constant_sets(values, seed=0):
    rng = np.random.default_rng(seed)
    sizes = [2, 7, 3, 11, 5, 13, 17]
    elements = [np.tile(row, (size, 1)) for row, size in zip(values, sizes, strict=False)]
    return Sets.from_ragged(elements, [rng.integers(1, 5, len(x)).astype(np.float32) for x in elements])


def random_sets(number=13, seed=0, names=None):
    rng = np.random.default_rng(seed)
    elements = [rng.normal(size=(size, DIM)) for size in rng.integers(1, 11, number)]
    counts = [rng.integers(1, 4, len(x)).astype(np.float32) for x in elements]
    return Sets.from_ragged(elements, counts, names), rng.normal(size=number)


# ---------------------------------------------------------------------- the null


def test_p_is_the_share_of_all_sign_flips_written_out():
    d = np.random.default_rng(3).normal(0.4, 1, (7, 5)) * [1, 10, 0.1, 0, 1]
    d[:, 4] = 1 + np.arange(7)  # one that is beyond all flips but its own
    spread = np.sqrt((d**2).sum(0))

    def t(signs):
        return [sum(s * x for s, x in zip(signs, d[:, f], strict=True)) / (spread[f] or 1) for f in range(5)]

    largest = [max(t(signs)) for signs in product([1, -1], repeat=7)]
    expected = [sum(most >= value - 1e-12 for most in largest) / 128 for value in t([1] * 7)]
    tested = randomised(d[:, None])
    np.testing.assert_array_equal(tested.p, expected)
    of_folds = randomised(d[:, None], folds=5)  # of what learned from the other four
    expected = [sum(most >= 0.8 * value - 1e-12 for most in largest) / 128 for value in t([1] * 7)]
    np.testing.assert_array_equal(of_folds.p, expected)
    np.testing.assert_allclose(0.8 * of_folds.threshold, tested.threshold)
    assert tested.p[3] == 1
    assert tested.p[4] < 0.05 < tested.p[0]
    bound = sorted(largest)[-7]  # six flips are fewer than 5 % of 128
    np.testing.assert_allclose(tested.threshold, [bound * s if s else np.nan for s in spread], rtol=1e-12)
    np.testing.assert_array_equal(tested.p < 0.05, d.sum(0) > tested.threshold + 1e-9)


def test_of_repeats_each_loss_may_be_that_of_the_values_as_they_are():
    losses = np.random.default_rng(0).normal(0, 1, (5, 3, 2))
    losses[:, 0] -= [0.9, 0.3]

    def sums(choice):
        return [
            sum(np.delete(losses[u, :, f], c).mean() - losses[u, c, f] for u, c in enumerate(choice)) for f in range(2)
        ]

    every = np.array([sums(choice) for choice in product(range(3), repeat=5)])
    spread = np.sqrt([np.mean([(sums_of_one(losses[u, :, f]) ** 2).mean() for u in range(5)]) * 5 for f in range(2)])
    largest = (every / spread).max(1)
    tested = randomised(losses[:, 1:] - losses[:, :1])
    np.testing.assert_allclose(tested.p, [(largest >= s - 1e-12).mean() for s in every[0] / spread], rtol=1e-12)
    np.testing.assert_allclose(tested.threshold, np.sort(largest)[-13] * spread)  # 12 are fewer than 5 % of 243


def sums_of_one(losses):
    return np.array([np.delete(losses, c).mean() - losses[c] for c in range(len(losses))])


@pytest.mark.parametrize(("units", "repeats"), [(11, 1), (5, 4)])
def test_drawn_choices_are_close_to_all(units, repeats, monkeypatch):
    d = np.random.default_rng(1).normal(0.3, 1, (units, repeats, 3))
    exact = randomised(d).p
    monkeypatch.setattr("omniset.trials.importances.DRAWN", 2000)
    monkeypatch.setattr("omniset.trials.importances.BLOCK", 1000)
    drawn = randomised(d, 5)
    np.testing.assert_allclose(drawn.p, exact, atol=5 * np.sqrt(0.25 / 2000))
    assert not np.array_equal(drawn.p, randomised(d, 6).p)
    np.testing.assert_array_equal(drawn.p, randomised(d, 5).p)


def test_units_are_chosen_for_and_drawn_not_sets():
    rng = np.random.default_rng(0)
    increases, groups = rng.normal(0.2, 1, (13, 3, 2, 5)), np.array(list("aabbbccddefgg"))
    table = table_of(increases, groups, ["s", "t"], list("vwxyz"))
    for number, target in enumerate(["s", "t"]):
        rows = table[table["target"] == target].set_index("feature")
        assert rows["importance"].is_monotonic_decreasing
        rows = rows.loc[list("vwxyz")]
        np.testing.assert_allclose(rows["importance"], increases[:, :, number].mean((0, 1)))
        sums = np.stack([increases[groups == g, :, number].sum(0) for g in "abcdefg"])
        tested = randomised(sums)
        np.testing.assert_allclose(rows["p"], tested.p, atol=1e-3)
        np.testing.assert_allclose(rows["threshold"], tested.threshold / 13)
        assert ((rows["low"] < rows["importance"]) & (rows["importance"] < rows["high"])).all()
    assert (table["units"] == 7).all()


def test_too_few_units_are_said():
    table = table_of(np.ones((4, 1, 1, 2)), np.arange(4), ["y"], ["a", "b"])
    assert (table["p"] == 1 / 16).all()
    assert table["threshold"].isna().all()
    assert in_words(table, "patient") == ["y: no feature can be told from chance: there are only 4 patients"]
    nothing = table_of(np.zeros((31, 1, 1, 2)), np.arange(31), ["y"], ["a", "b"])
    assert "no feature alone matters" in in_words(nothing)[0]


def test_the_null_chooses_for_few_sets_of_a_fold_together(monkeypatch):
    """Of two sets each has the values of the other: what one loses by them the other does too."""
    (sets, y), model, seen = random_sets(14), linear_model(), []
    task = model.importance_task(sets, y[:, None], None, 1, 0)
    tested = lambda increases, *how: seen.append(increases) or randomised(increases, *how)  # noqa: E731
    monkeypatch.setattr("omniset.trials.importances.randomised", tested)
    importance.measured(task, [(model.says, np.arange(2 * k, 2 * k + 2)) for k in range(7)], ["y"])
    importance.measured(task, [(model.says, np.arange(14))], ["y"])
    assert [increases.shape for increases in seen] == [(7, 1, DIM), (14, 1, DIM)]


# ---------------------------------------------------------------------- what is exchanged


def test_rows_are_drawn_by_multiplicity():
    rng = np.random.default_rng(0)
    theirs = np.array([2.0, 0.0, 3.0, 6.0])
    for _ in range(20):
        drawn = drawn_rows(np.ones(22), theirs, rng)
        np.testing.assert_array_equal(np.bincount(drawn, minlength=4), [4, 0, 6, 12])
        assert sorted(drawn_rows(np.ones(17), np.ones(17), rng)) == [*range(17)]
    often = np.zeros(4)
    for _ in range(2000):  # elements that count differently: each draws by multiplicity
        often[drawn_rows(np.array([5.0, 0.5, 0.0]), theirs, rng)[1]] += 1
    assert often[1] == 0
    np.testing.assert_allclose(often / 2000, theirs / 11, atol=5 * np.sqrt(0.25 / 2000))


def test_values_of_two_elements_are_drawn_by_the_chance_not_by_the_order():
    rng = np.random.default_rng(0)
    together = np.zeros((3, 3))
    for _ in range(3000):
        a, b, _ = drawn_rows(np.ones(3), np.ones(3), rng)
        together[a, b] += 1
    np.testing.assert_allclose(together / 3000, (1 - np.eye(3)) / 6, atol=5 * np.sqrt(0.25 / 3000))


@pytest.mark.parametrize("units", [np.arange(13), np.array([0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 6])])
def test_each_set_has_donors_of_units_other_than_its_own_and_each_others(units):
    there = np.array([0, 1, 2, 3, 5, 7, 8, 9, 11, 12])
    others = len(np.unique(units[there])) - 1
    seen = set()
    for seed in range(200):
        donors = donors_of(there, units, np.arange(13), others, np.random.default_rng(seed))
        assert len(donors) == others
        for i in there:
            assert {*donors[0]} == {*there} >= {one[i] for one in donors}
            assert sorted({units[i], *(units[one[i]] for one in donors)}) == sorted(set(units[there]))
        seen.add(donors[0][0])
    assert seen == {i for i in there if units[i] != units[0]}
    (once,) = donors_of(np.arange(13), np.arange(13), np.arange(13), 1, np.random.default_rng(0))
    assert sorted(once.values()) == [*range(13)]  # each is the donor of one, where units are sets


def test_a_set_gets_one_column_from_its_donor_and_keeps_the_rest(monkeypatch):
    sets, y = random_sets(5)
    monkeypatch.setattr(importance, "READ_AT_ONCE", 7)  # sets are read in pieces
    monkeypatch.setattr(importance, "NUMBERS", 1)  # and features one by one
    model = product_model()
    task = model.importance_task(sets, y[:, None], None, 1, 0)
    donors, group = dict(zip(range(5), [1, 2, 3, 4, 0], strict=True)), np.array([3, 0])
    for feature, exchanged in importance._exchanged(task, donors, group, [0, 0, 0]):
        for stored, i in zip(exchanged, group, strict=True):
            x, m = stored.read()
            own, counts = sets[int(i)].read()
            others = [f for f in range(DIM) if f != feature]
            torch.testing.assert_close(x[:, others], own[:, others], rtol=0, atol=0)
            torch.testing.assert_close(m, counts, rtol=0, atol=0)
            assert set(x[:, feature].tolist()) <= set(sets[donors[int(i)]].read()[0][:, feature].tolist())
            torch.testing.assert_close(stored.read(1, 2)[0], x[1:3], rtol=0, atol=0)


# ---------------------------------------------------------------------- importance


VALUES = np.array([[1.5, 4.0, 2.0], [-0.5, 1.0, 7.0]])


@pytest.mark.parametrize(
    ("make", "said"), [(linear_model, lambda x: x @ [1, 2, 0]), (product_model, lambda x: x[:, 0] * x[:, 1])]
)
def test_numbers_by_hand(make, said):
    sets, y = constant_sets(VALUES), np.array([1.0, -2.0])
    table = feature_importance(make(), sets, y).set_index("feature")
    for feature in range(DIM):
        swapped = VALUES.copy()
        swapped[:, feature] = VALUES[::-1, feature]  # of two sets each is the donor of the other
        expected = ((y - said(swapped)) ** 2 - (y - said(VALUES)) ** 2).mean()
        np.testing.assert_allclose(table["importance"][feature], expected, rtol=1e-6, atol=0)
    assert (table["p"] >= 1 / 4).all()  # of two sets each has one donor, however many are asked for


def test_classes_by_hand():
    sets, y = constant_sets(VALUES / 4), np.array(["b", "a"])
    model = mixture(SetClassifier(device="cpu", progress=False), [1.0, -0.5, 0.0], ["u", "v", "w"])
    sets.features = ["u", "v", "w"]
    table = feature_importance(model, sets, y, repeats=2).set_index("feature")

    def loss(values):
        odds = values / 4 @ [1.0, -0.5, 0.0]
        return np.log1p(np.exp(-odds * [1, -1])).mean()

    for place, feature in enumerate(["u", "v", "w"]):
        swapped = VALUES.copy()
        swapped[:, place] = VALUES[::-1, place]
        np.testing.assert_allclose(table["importance"][feature], loss(swapped) - loss(VALUES), rtol=1e-5, atol=0)


@pytest.mark.parametrize("make", [linear_model, product_model])
def test_a_feature_that_is_not_used_has_importance_0(make):
    sets, y = random_sets()
    table = feature_importance(make(), sets, y).set_index("feature")
    assert table["importance"][2] == 0
    assert (table["low"][2], table["high"][2], table["p"][2]) == (0, 0, 1)
    assert (table["importance"][[0, 1]] != 0).all()


@pytest.mark.parametrize("groups", [None, np.array(list("aabbbccddeffg"))])
@pytest.mark.parametrize("make", [linear_model, product_model])
def test_the_order_of_sets_does_not_matter(make, groups):
    sets, y = random_sets(names=[f"s{i}" for i in range(13)])
    order = np.random.default_rng(5).permutation(13)
    table = feature_importance(make(), sets, y, groups=groups)
    other = feature_importance(make(), sets[order], y[order], groups=None if groups is None else groups[order])
    pd.testing.assert_frame_equal(table, other, rtol=1e-9, atol=1e-12)
    again = feature_importance(make(), sets, y, groups=groups, seed=1)
    assert not np.allclose(table["importance"], again["importance"])
    assert (table["units"] == (13 if groups is None else 7)).all()


def test_blocks_and_pieces_give_the_whole(monkeypatch):
    sets, y = random_sets()
    model = SetRegressor("deep-sets", dim=4, depth=1, epochs=1, validation_fraction=0.0, device="cpu", progress=False)
    model.fit(sets, y)
    whole = feature_importance(model, sets, y, repeats=2)
    linear = linear_model()
    of_table = feature_importance(linear, sets, y, repeats=2)
    monkeypatch.setattr(importance, "NUMBERS", 1)
    monkeypatch.setattr(importance, "READ_AT_ONCE", 5)
    for changed in (model, linear):
        changed.set_params(max_elements=7, batch_size=3)
    pieces = feature_importance(model, sets, y, repeats=2)
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-4, atol=1e-5)
    pd.testing.assert_frame_equal(of_table, feature_importance(linear, sets, y, repeats=2), rtol=1e-5, atol=1e-7)


def test_empty_sets_keep_what_they_have():
    full, y = random_sets(7)
    elements = [full[i].read()[0].numpy() for i in range(7)]
    sets = Sets.from_ragged([*elements, np.zeros((0, DIM))])
    table = feature_importance(linear_model(), sets, np.append(y, 0.0))
    assert np.isfinite(table["importance"]).all()
    assert (table["units"] == 8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats must be >= 1, got 0"),
        ({"groups": [1, 2]}, "groups must be one per set"),
    ],
)
def test_bad_arguments(options, message):
    sets, y = random_sets()
    with pytest.raises(ValueError, match=message):
        feature_importance(mixture(SetRegressor(device="cpu"), [1, 2, 0]), sets, y, **options)


def test_what_cannot_be_measured():
    sets, y = random_sets()
    for few, groups in ((sets[:1], None), (sets, ["one"] * 13)):
        with pytest.raises(ValueError, match="at least 2"):
            feature_importance(mixture(SetRegressor(device="cpu"), [1, 2, 0]), few, y[: len(few)], groups=groups)
    with pytest.raises(ValueError, match=r"\['c'\] were not in training"):
        feature_importance(mixture(SetClassifier(device="cpu"), [1, 2, 0]), sets, ["a", "c"] * 6 + ["b"])
    with pytest.raises(ValueError, match="level='element'"):
        feature_importance(SetRegressor(level="element"), sets, y)
    with pytest.raises(ValueError, match="importance=True is for labels of sets"):
        SetRegressor(level="element", importance=True).fit(sets, y)


# ---------------------------------------------------------------------- out of fold


def test_mixtures_of_folds_are_what_was_said_of_sets_left_out(monkeypatch):
    sets, y = random_sets(11)
    given, learn = [], MixtureLearner.learn
    monkeypatch.setattr(MixtureLearner, "learn", lambda *a, **k: given.append(learn(*a, **k)) or given[-1])
    tiny = {"dim": 4, "depth": 1, "num_heads": 1, "num_inducing": 2, "epochs": 1, "folds": 3, "repeats": 1}
    model = SetRegressor(**tiny, importance=True, device="cpu", progress=False).fit(sets, y)
    left_out = given[0][1]
    assert set(left_out.mixtures) == {0, 1, 2}
    for fold, mixture in left_out.mixtures.items():
        held = left_out.folds[0] == fold
        said = mixture.predictions([sets[int(i)] for i in np.flatnonzero(held)], torch.device("cpu"), **READING)
        for name, values in said.items():
            np.testing.assert_allclose(values, left_out.predictions[name][held], rtol=1e-5, atol=1e-6)
        ours = left_out.predictions["omniset"][held]  # by weights that the other folds give
        np.testing.assert_allclose(mixture.mixed(said), ours, rtol=1e-5, atol=1e-6)
    assert model.out_of_fold_.mixtures == {}  # they are there only while it learns
    assert set(model.importance_["feature"]) == {0, 1, 2}
    assert (model.importance_["units"] == 11).all()


def test_importance_is_measured_where_it_is_cheap_or_asked_for():
    sets = Sets.from_ragged(np.zeros((50, 1, 100), dtype=np.float32))
    assert importance.wanted(None, sets)
    assert not importance.wanted(None, Sets.from_ragged(np.zeros((51, 1, 100), dtype=np.float32)))
    assert not importance.wanted(False, sets[:2])


def test_one_network_without_sets_kept_back_says_so():
    sets, y = random_sets()
    tiny = {"dim": 4, "depth": 1, "epochs": 1, "validation_fraction": 0.0, "device": "cpu", "progress": False}
    model = SetRegressor("deep-sets", **tiny, importance=True).fit(sets, y)
    assert model.importance_ is None
    assert any("importance of features was not measured" in note for note in model.notes_)


def test_donors_are_of_the_same_fold(monkeypatch):
    (sets, y), model = random_sets(13), linear_model()
    task = model.importance_task(sets, y[:, None], None, importance.REPEATS, 0)
    seen, drawn = [], importance.donors_of
    monkeypatch.setattr(importance, "donors_of", lambda *a: seen.extend(drawn(*a)) or seen)
    importance.measured(task, [(model.says, np.array([1, 4, 7, 12]))], ["y"])
    assert all(sorted(donors.values()) == [1, 4, 7, 12] for donors in seen)
    seen.clear()
    importance.measured(task, [(model.says, np.array([3]))], ["y"])  # alone in its fold: any donor
    assert all(donors[3] != 3 for donors in seen)


# ---------------------------------------------------------------------- report and shell


def test_shell(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(101, 2)), columns=["CD3", "CD25"])
    rows.insert(0, "set", [f"s{i % 37:02d}" for i in range(101)])
    rows.sort_values("set", kind="stable").to_csv(tmp_path / "sets.csv", index=False)
    labels = pd.DataFrame({"set": [f"s{i:02d}" for i in range(37)], "label": ["a", "b", "c", "a"] * 9 + ["a"]})
    labels.to_csv(tmp_path / "labels.csv", index=False)
    given = [f"{tmp_path}/sets.csv", f"--target={tmp_path}/labels.csv", "--importance=true", *QUIET]
    assert main(["fit", *given, *TINY, f"--out={tmp_path}/run"]) == 0
    assert main(["evaluate", *given, f"--model={tmp_path}/run", f"--out={tmp_path}/new"]) == 0
    for folder in ("run", "new"):
        table = pd.read_csv(tmp_path / folder / "features.csv")
        assert set(table["feature"]) == {"CD3", "CD25"}
        assert ">Features<" in (tmp_path / folder / "report.html").read_text(encoding="utf-8")
    assert "importance of features by permutation" in capsys.readouterr().out
    model = SetClassifier.load(tmp_path / "run")
    held = pd.read_csv(tmp_path / "sets.csv")
    same = feature_importance(model, held, labels.set_index("set")["label"])
    pd.testing.assert_frame_equal(same, table, check_exact=False, rtol=1e-6)
