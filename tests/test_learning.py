"""How a model learns: one network with folds, what was said of sets left out as an evaluation, words, and commands."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from omniset import SetClassifier, SetRegressor, explain
from omniset.cli import main
from omniset.core.sets import SetBatch, Sets
from omniset.estimators.evaluation import evaluate, out_of_fold
from omniset.estimators.mixture import SetMixture
from omniset.trials.comparison import OURS
from test_stack import SMALL, of, said_by, some_sets

ONE = SMALL | {"method": "ust", "batch_size": 8, "folds": 3}


# ---------------------------------------------------------------------- one network


def alone(model, sets, y, fold, weights, groups):
    """What the same model, fitted to the sets of the other folds, says of those of this one."""
    (folds,) = model.out_of_fold_.folds
    there, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
    fresh = clone(model).set_params(folds=None, repeats=None)
    given = {name: v[there] for name, v in (("sample_weight", weights), ("groups", groups)) if v is not None}
    return held, fresh.fit(sets[there], y.iloc[there].reset_index(drop=True), **given).predict_table(sets[held])


@pytest.mark.filterwarnings("ignore:kind. ")
@pytest.mark.parametrize("weighted", [False, True])
def test_folds_of_one_network_are_fits_of_the_same_model(weighted):
    """Of two targets with names of their own, one with a class that a fold lacks: it has probability 0 there."""
    elements, counts, _ = some_sets(17)
    sets = of(elements, counts)
    y = pd.DataFrame({"kind": np.array(["a", "b"])[np.arange(17) % 2], "side": np.arange(17) // 3 % 2})
    y.loc[4, "kind"] = "lone"
    weights = np.arange(17.0) if weighted else None
    groups = np.arange(17) // 2 if weighted else None
    model = SetClassifier(**ONE).fit(sets, y, sample_weight=weights, groups=groups)
    said = said_by(model)
    assert {*said} == {*SetMixture.SIMPLE, OURS}
    columns = ["p_kind_a", "p_kind_b", "p_kind_lone", "p_side_0", "p_side_1"]
    for fold in range(3):
        held, table = alone(model, sets, y, fold, weights, groups)
        expected = table.reindex(columns=columns, fill_value=0.0).to_numpy()
        np.testing.assert_array_equal(said[OURS][held], expected)
        assert ("p_kind_lone" in table) == (4 not in held)
    np.testing.assert_allclose(said[OURS].sum(-1), 2, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:label. classes with fewer than 5 sets", "ignore:label. classes in one group only")
def test_where_a_fold_leaves_one_class_the_prior_is_said():
    elements, counts, _ = some_sets(17)
    groups = np.arange(17) // 3
    y = np.where(groups == 2, "b", "a")
    model = SetClassifier(**ONE).fit(of(elements, counts), y, groups=groups)
    (folds,), said = model.out_of_fold_.folds, said_by(model)
    held = folds == folds[groups == 2][0]
    np.testing.assert_array_equal(said[OURS][held], said["prior"][held])
    assert (said[OURS][~held] != said["prior"][~held]).all()


@pytest.mark.parametrize("names", [["amount"], ["amount", "size"]])
def test_folds_of_one_network_of_numbers(names):
    elements, counts, numbers = some_sets(17)
    sets = of(elements, counts)
    y = pd.DataFrame({name: numbers * (7 + i) for i, name in enumerate(names)})
    y = y if len(names) > 1 else y["amount"]
    model = SetRegressor(**ONE).fit(sets, y)
    assert model.targets_ == names
    for fold in range(3):
        held, table = alone(model, sets, y, fold, None, None)
        np.testing.assert_array_equal(said_by(model)[OURS][held], table[names].to_numpy())


def test_without_folds_one_network_has_simple_methods_beside_it():
    """Fitted to the sets that it was trained on, not to those that chose its epoch."""
    elements, counts, numbers = some_sets(41)
    y = (numbers > 0).astype(int)
    model = SetClassifier(**ONE | {"folds": None}).fit(of(elements, counts), y)
    assert model.out_of_fold_ is None
    assert out_of_fold(model, of(elements, counts), y[:, None]) is None
    train = np.setdiff1d(np.arange(41), model.validation_)
    assert 0 < len(train) < 41
    beside = evaluate(model, of(elements, counts), y, resamples=19).rows
    assert {*beside["method"]} == {OURS, *SetMixture.SIMPLE}
    prior = beside[beside["method"] == "prior"]["p_1"].unique()
    np.testing.assert_allclose(prior, (y[train].sum() + 0.5) / (len(train) + 1), rtol=1e-9)


# ---------------------------------------------------------------------- what was said, as an evaluation


@pytest.mark.parametrize("grouped", [False, True])
def test_the_evaluation_of_sets_left_out(grouped):
    """Every method and set once; scores are those of the rows; groups are the unit where there are any."""
    elements, counts, numbers = some_sets(19)
    sets, y = of(elements, counts), np.where(numbers > 0, "up", "down")
    groups = np.array([f"g{i // 3}" for i in range(19)]) if grouped else None
    model = SetClassifier(**SMALL).fit(sets, y, groups=groups)
    found = out_of_fold(model, sets, y[:, None], groups, resamples=101)
    assert len(found.rows) == len(found.rows.drop_duplicates(["method", "set"])) == (len(SetMixture.METHODS) + 1) * 19
    assert {*found.rows["method"]} == {OURS, *SetMixture.METHODS}
    for method, said in said_by(model).items():
        rows = found.rows[found.rows["method"] == method]
        assert rows["set"].tolist() == [str(name) for name in sets.names]
        assert rows["truth"].tolist() == y.tolist()
        np.testing.assert_array_equal(rows[["p_down", "p_up"]], said)
        assert (rows["predicted"] == np.array(["down", "up"])[said.argmax(1)]).all()
        assert rows["size"].tolist() == sets.sizes.tolist()
    numbers = found.comparison.numbers()
    assert (numbers["unit"], numbers["units"]) == (("group", 7) if grouped else ("set", 19))
    assert set(numbers["baselines"]) == {*SetMixture.SIMPLE}
    rows = found.rows.assign(right=found.rows["truth"] == found.rows["predicted"])
    shares = rows.groupby("method")["right"].mean()
    values = {s["method"]: s["value"] for s in numbers["scores"] if s["score"] == "accuracy"}
    assert values == pytest.approx(shares.to_dict())
    (gate,) = numbers["gates"]
    best = max(SetMixture.SIMPLE, key=values.get)
    assert values[gate["opponent"]] == values[best]
    assert gate["value"] == pytest.approx(values[OURS] - values[best])
    assert gate["opponent"] in numbers["verdict"]


# ---------------------------------------------------------------------- explaining a mixture


@pytest.fixture(scope="module")
def mixture():
    elements, counts, numbers = some_sets(19)
    return SetClassifier(**SMALL | {"folds": 5, "learning_rate": 0.05}).fit(of(elements, counts), numbers > 0)


def weighing(model, ust):
    model.network_.weights.zero_()
    model.network_.weights[0, SetMixture.METHODS.index("ust")] = ust
    model.network_.weights[0, SetMixture.METHODS.index("prior")] = 1 - ust
    return model


@pytest.mark.parametrize("method", ["attribution", "contrast", "attention"])
def test_scores_of_a_mixture_are_the_mean_of_its_networks(mixture, method):
    elements, counts, _ = some_sets(7, seed=3)
    found = weighing(mixture, 0.6).explain(of(elements, counts), target=True, steps=3, method=method)
    networks = [*mixture.network_.networks][:4]
    assert len(mixture.network_.networks) > 4
    for stored, scores in zip(of(elements, counts), found, strict=True):
        assert len(scores) == len(stored)
        if not len(stored):
            continue
        batch = SetBatch(*(part[None] for part in stored.read()))
        each = [
            explain.attention(network, batch)
            if method == "attention"
            else explain.attribute(network, batch, 1, 3, baseline="equal" if method == "contrast" else "zero")
            for network in networks
        ]
        mean = torch.stack(each).mean(0)[0]
        if method == "contrast" and len(stored) == 1:  # nothing distinguishes it
            assert not scores.any()
            assert not mean.any()
            continue
        np.testing.assert_allclose(scores, mean / mean.max(), atol=1e-4)
        assert scores.max() == pytest.approx(1)


def test_scores_that_decide_little_are_said(mixture):
    sets = of(*some_sets(7, seed=3)[:2])
    with pytest.warns(UserWarning, match="gives ust a weight of 0.05: scores of elements are those of its networks"):
        weighing(mixture, 0.05).explain(sets, steps=2, method="attribution")
    weighing(mixture, 0.5).explain(sets, steps=2)  # no warning
    weighing(mixture, 0.05).explain(sets)  # by removal


# ---------------------------------------------------------------------- at the shell


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elements, counts, numbers = some_sets(23, empty=False)
    names = np.repeat([f"s{i}" for i in range(23)], [len(e) for e in elements])
    frame = pd.DataFrame({"set": names, "multiplicity": np.concatenate(counts)})
    frame["x"], frame["y"] = np.concatenate(elements).T
    frame.to_csv("sets.csv", index=False)
    labels = pd.DataFrame({"set": [f"s{i}" for i in range(23)], "label": np.where(numbers > 0, "up", "down")})
    labels["patient"] = [f"p{i // 3}" for i in range(23)]
    labels.to_csv("labels.csv", index=False)
    return labels.set_index("set")


TINY = "--dim=4 --num_heads=2 --depth=1 --epochs=1 --device=cpu --progress=false"


@pytest.mark.parametrize("method", ["auto", "deep-sets"])
def test_fit_writes_what_was_said_of_sets_left_out(method, files, tmp_path, capsys):
    words = "fit sets.csv --target labels.csv --group patient --folds 2 --out run"
    named = [] if method == "auto" else ["--method", method]
    assert main([*words.split(), *TINY.split(), *named]) == 0
    said = capsys.readouterr().out
    rows = pd.read_csv("run/out_of_fold.csv", float_precision="round_trip")
    assert {"target", "set", "group", "truth", "predicted", "p_down", "p_up"} <= {*rows}
    assert rows["set"].tolist() == files.index.tolist()
    assert (rows["truth"].to_numpy() == files.loc[rows["set"], "label"].to_numpy()).all()
    assert (rows["group"].to_numpy() == files.loc[rows["set"], "patient"].to_numpy()).all()
    assert (rows["predicted"] == np.where(rows["p_up"] > rows["p_down"], "up", "down")).all()
    numbers = json.loads((tmp_path / "run/metrics.json").read_text())
    assert numbers["on"] == "sets left out, in turn, while the others were learned from"
    validation = numbers["validation"]
    assert (validation["unit"], validation["units"]) == ("group", 8)
    values = {s["method"]: s["value"] for s in validation["scores"] if s["score"] == "accuracy"}
    assert values[OURS] == pytest.approx((rows["truth"] == rows["predicted"]).mean())
    assert {*values} == {OURS, *(SetMixture.METHODS if method == "auto" else SetMixture.SIMPLE)}
    assert validation["verdict"] in said
    assert "out_of_fold.csv" in said
    model = SetClassifier.load("run")
    assert (model.method, model.folds, model.repeats) == (method, 2, None)
    assert isinstance(model.network_, SetMixture) == (method == "auto")
    common = "predict sets.csv --model run --out predictions.csv --device=cpu --progress=false"
    assert main(common.split()) == 0
    found = pd.read_csv("predictions.csv", float_precision="round_trip")
    frame = pd.read_csv("sets.csv")
    pd.testing.assert_frame_equal(found, model.predict_table(frame), check_dtype=False, check_exact=True)


def test_sets_on_disk_are_sets_in_memory(files):
    """What the command learns from a file is what Python learns from the table, to the bit."""
    words = "fit sets.csv --target labels.csv --target_columns label --group patient --folds 2 --out run"
    assert main([*words.split(), *TINY.split()]) == 0
    model = SetClassifier.load("run")
    frame = pd.read_csv("sets.csv")
    ours = clone(model).fit(frame, files["label"], groups=files["patient"])
    states = [m.network_.state_dict() for m in (model, ours)]
    assert {*states[0]} == {*states[1]}
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert isinstance(Sets.of(frame, torch.float32), Sets)
