"""One simple method alone, as `method=` names it: it is the method of the mixture; and scores by removal."""

import json
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch

from omniset import SetClassifier, SetRegressor, Sets, SetSurvival
from omniset.cli import main
from omniset.estimators import methods, options, pooling, survival
from omniset.estimators.evaluation import evaluate
from omniset.estimators.mixture import NETWORK, NumberMixture, SetMixture
from omniset.trials.comparison import OURS
from test_stack import SMALL, of, some_sets

ALONE = {"folds": 3, "repeats": 1, "device": "cpu", "progress": False, "importance": False}
KINDS = {"classes": SetClassifier, "numbers": SetRegressor, "survival": SetSurvival}


@pytest.fixture(scope="module", autouse=True)
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods.PooledLinear, "variances", (0.1, 1.0))
        patch.setattr(survival.DissimilarityCox, "variances", (0.1,))
        patch.setattr(survival, "SEARCH", {"maxiter": 3})
        patch.setattr(methods, "TREES", 3)
        patch.setattr("omniset.trials.stacking.NOISE", np.inf)  # all parts are mixed
        yield


def data(kind, number=19):
    elements, counts, numbers = some_sets(number, seed=5, empty=False)
    y = {"classes": np.where(numbers > 0, "up", "down"), "numbers": numbers}
    y["survival"] = np.stack([np.exp(numbers), np.ones(number)], 1)
    return elements, counts, y[kind]


@pytest.fixture(scope="module")
def mixtures():
    fitted = {}
    for kind, maker in KINDS.items():
        elements, counts, y = data(kind)
        fitted[kind] = maker(**{**SMALL, **ALONE, "epochs": 1}).fit(of(elements, counts), y)
    return fitted


def test_every_simple_method_has_a_name():
    assert {*options.SIMPLE} == {*NumberMixture.SIMPLE} > {*SetMixture.SIMPLE} == {*survival.RiskMixture.SIMPLE}
    assert {*options.SIMPLE} < {*options.methods()}


CASES = [("classes", name) for name in SetMixture.SIMPLE]
CASES += [("numbers", "pooled-linear"), ("survival", "dissimilarity-linear")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_is_the_method_of_the_mixture(kind, name, mixtures, tmp_path):
    """Of sets left out, of new sets, and after it was saved."""
    elements, counts, y = data(kind)
    sets, mixture = of(elements, counts), mixtures[kind]
    model = KINDS[kind](method=name, **ALONE).fit(sets, y)
    left_out = model.out_of_fold_.predictions
    np.testing.assert_array_equal(left_out[OURS], mixture.out_of_fold_.predictions[name])
    assert name not in left_out
    new = of(*some_sets(11, seed=9)[:2])
    ours = model.probable(new, model)
    stored = [new[i] for i in range(len(new))]
    np.testing.assert_allclose(ours, mixture.network_.predictions(stored, torch.device("cpu"), [name])[name])
    model.save(tmp_path / "run")
    again = type(model).load(tmp_path / "run")
    np.testing.assert_array_equal(again.probable(new, again), ours)
    np.testing.assert_array_equal(again.transform(new), model.transform(new))
    assert (again.method, again.out_of_fold_, again.history_) == (name, None, [])


def test_it_stands_beside_simple_methods():
    elements, counts, y = data("classes")
    model = SetClassifier(method="pooled-forest", **ALONE).fit(of(elements, counts), y)
    table = evaluate(model, of(elements, counts), y).comparison.table("accuracy", "label")
    assert {*table.index} == {OURS, *SetMixture.SIMPLE} - {"pooled-forest"}
    assert "omniset is pooled-forest alone here" in " ".join(model.notes_)


def test_one_group_is_not_left_out():
    """A mixture, which learns weights from what is left out, refuses that."""
    elements, counts, y = data("numbers", 11)
    model = SetRegressor(method="pooled-linear", **(ALONE | {"folds": None}))
    model.fit(of(elements, counts), y, groups=["one"] * 11)
    assert model.out_of_fold_ is None
    assert np.corrcoef(model.predict(of(elements, counts)), y)[0, 1] > 0.3


def test_vectors_are_what_it_looks_at():
    elements, counts, y = data("classes")
    frame = pd.DataFrame(np.concatenate(elements), columns=["a", "b"])
    frame["set"] = np.repeat(np.arange(len(elements)), [len(x) for x in elements])
    frame["multiplicity"] = np.concatenate(counts)
    model = SetClassifier(method="pooled-forest", **ALONE).fit(frame, pd.Series(y))
    assert model.get_feature_names_out()[3:5].tolist() == ["mean of a", "mean of b"]
    np.testing.assert_array_equal(model.transform(frame), pooling.pooled(Sets.from_pandas(frame)))
    model = SetClassifier(method="dissimilarity-linear", **ALONE).fit(frame, pd.Series(y))
    own = model.transform(frame)[:, : len(elements)]
    np.testing.assert_allclose(np.diag(own), 0, atol=1e-6)  # of a set to itself
    assert model.get_feature_names_out()[len(elements)] == "from reference 1"


# ---------------------------------------------------------------------- removal


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_removal_is_predicting_without_the_element(kind, mixtures):
    """Of the mixture and of a simple method: rows are really taken out of arrays."""
    elements, counts, y = data(kind)
    alone = KINDS[kind](method="dissimilarity-linear", **ALONE).fit(of(elements, counts), y)
    for model in (alone, mixtures[kind]):
        compared = 0
        for x, m in zip(elements[2:7], counts[2:7], strict=True):
            drops = [max(said(model, kind, x, m) - said(model, kind, x, fewer), 0) for fewer in less(m)]
            target = "up" if kind == "classes" else None
            (scores,) = model.explain(of([x], [m]), target, method="removal")
            if max(drops) > 0:
                np.testing.assert_allclose(scores, np.array(drops) / max(drops), atol=1e-3)
                compared += 1
        assert compared


def less(counts):
    for i in range(len(counts)):
        fewer = counts.copy()
        fewer[i] = 0
        yield fewer


def said(model, kind, x, m):
    """What is said of one set, from the rows that are there."""
    out = model.probable(of([x[m > 0]], [m[m > 0]]), model)[0]
    return np.log(out[1]) if kind == "classes" else out[0]


def test_scores_of_a_simple_method_are_by_removal():
    elements, counts, y = data("classes")
    model = SetClassifier(method="pooled-forest", **ALONE).fit(of(elements, counts), y)
    some = of(elements[:3], counts[:3])
    for one, other in zip(model.explain(some), model.explain(some, method="removal"), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="method 'pooled-forest' has no attention .* take 'removal'"):
        model.explain(some, method="attribution")
    (empty,) = model.explain(of([np.zeros((2, 2), dtype=np.float32)], [np.zeros(2)]))
    assert empty.tolist() == [0, 0]
    large = of([np.zeros((20_000, 2), dtype=np.float32)], [np.ones(20_000)])
    with pytest.raises(ValueError, match="has 20,000 elements: leaving out each in turn takes too long above 16,384"):
        model.explain(large)


@pytest.mark.parametrize(("weight", "method"), [(0.05, "removal"), (0.2, "attribution")])
def test_a_mixture_is_explained_by_what_decides_its_predictions(mixtures, monkeypatch, weight, method):
    elements, counts, _ = data("classes")
    some, model = of(elements[:3], counts[:3]), mixtures["classes"]
    monkeypatch.setattr(type(model.fitted()), "weights_of", lambda *_: {NETWORK: weight})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.explain(some)
    with nullcontext() if weight > 0.1 else pytest.warns(UserWarning, match="a weight of 0.05: scores of elements are"):
        by_networks = model.explain(some, method="attribution")
    other = model.explain(some, method="removal") if method == "removal" else by_networks
    for one, same in zip(found, other, strict=True):
        np.testing.assert_array_equal(one, same)


# ---------------------------------------------------------------------- what is refused, and others' tools


@pytest.mark.parametrize(
    ("maker", "given", "message"),
    [
        (
            SetClassifier,
            {"method": "pooled-linear"},
            "'pooled-linear' is none of the simple methods of SetClassifier: prior, pooled-f",
        ),
        (
            SetSurvival,
            {"method": "pooled-linear"},
            "'pooled-linear' is none of the simple methods of SetSurvival: prior, pooled-f",
        ),
        (SetClassifier, {"method": "prior", "dim": 3}, "dim=3 is for one network, .* method='prior' has no use for it"),
        (SetClassifier, {"method": "prior", "epochs": 3}, "epochs=3 is for one network"),
        (SetClassifier, {"method": "prior", "level": "element"}, "method='prior' is for level='set'"),
        (SetClassifier, {"method": "prior", "devices": 2}, "method='prior' learns in one process, got devices=2"),
    ],
)
def test_what_is_refused(maker, given, message):
    with pytest.raises(ValueError, match=message):
        maker(progress=False, **given).fit([[[0.0]], [[1.0]]], [[1.0, 1], [2.0, 1]] if maker is SetSurvival else [0, 1])


def test_at_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    elements, _, y = data("classes")
    frame = pd.DataFrame(np.concatenate(elements), columns=["a", "b"])
    frame.insert(0, "set", np.repeat([f"s{i}" for i in range(len(elements))], [len(x) for x in elements]))
    frame.to_csv("sets.csv", index=False)
    pd.DataFrame({"set": frame["set"].unique(), "label": y}).to_csv("labels.csv", index=False)
    quiet = "--device=cpu --progress=false"
    assert main(f"fit sets.csv --target labels.csv --method pooled-forest --folds 2 --out run {quiet}".split()) == 0
    said = capsys.readouterr().out
    assert "omniset is pooled-forest alone here" in said
    assert json.loads((tmp_path / "run/metrics.json").read_text())["validation"]["units"] == len(y)
    report = (tmp_path / "run/report.html").read_text()
    assert "how much the prediction falls where all copies of an element are left out" in report
    assert main(f"evaluate sets.csv --target labels.csv --model run --out held {quiet}".split()) == 0
    assert main(f"explain sets.csv --model run --only s3 --out scores.csv {quiet}".split()) == 0
    rows = pd.read_csv("scores.csv")
    assert (rows["method"] == "removal").all()
    assert len(rows) == len(elements[3])
    assert main(f"embed sets.csv --model run --out vectors.csv {quiet}".split()) == 0
    assert "quantile 0.5 of b" in pd.read_csv("vectors.csv")
    capsys.readouterr()
    assert main(f"fit sets.csv --target labels.csv --method pooled --out other {quiet}".split()) == 2
    assert "pooled-forest" in capsys.readouterr().err
