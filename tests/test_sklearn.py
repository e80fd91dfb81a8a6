"""SetClassifier and SetRegressor in scikit-learn's hands: its own checks, its tools, and sets as vectors."""

import math
import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from omniset import SetBatch, SetClassifier, SetRegressor, Sets
from omniset.cli import main
from omniset.core.sources import source_of
from omniset.estimators import base
from omniset.estimators.inputs import sets_of

CHEAP = {"dim": 8, "depth": 1, "num_heads": 1, "epochs": 8, "batch_size": 128, "learning_rate": 0.05}
CHEAP |= {"validation_fraction": 0.0, "device": "cpu", "progress": False}
TABLE = "a DataFrame is a long table here, and one without a column 'set' is an error that users make"
SHARED = {
    "check_sample_weights_pandas_series": TABLE,
    "check_sample_weight_equivalence_on_dense_data": "sets are learned from in batches: repeated sets are more batches",
}
FAILED = {
    "SetClassifier": SHARED
    | {
        "check_classifier_data_not_an_array": TABLE,
        "check_class_weight_classifiers": "class_weight is 'balanced' or None, as a command line has it",
    },
    "SetRegressor": SHARED | {"check_regressor_data_not_an_array": TABLE},
}


@pytest.fixture(autouse=True, scope="module")
def alone():
    """One network without simple methods beside it, whose forests take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "POOLED", -1)
        yield


@pytest.fixture
def single_precision(monkeypatch):
    """scikit-learn compares predictions to 1e-7; networks compute in float32, whose products differ with the batch."""
    for name in ("assert_allclose", "assert_allclose_dense_sparse"):
        monkeypatch.setattr(estimator_checks, name, partial(close, getattr(estimator_checks, name)))


def close(compare, x, y, rtol=1e-7, atol=0.0, err_msg=""):
    compare(x, y, rtol=max(rtol, 1e-4), atol=max(atol, 1e-5), err_msg=err_msg)


def its_checks():
    """They warn of what keeps to scikit-learn's conventions without inheriting from its classes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* does not inherit from `sklearn.base.BaseEstimator`")
        return parametrize_with_checks(
            [SetClassifier("deep-sets", **CHEAP), SetRegressor("deep-sets", **CHEAP)],
            expected_failed_checks=lambda estimator: FAILED[type(estimator).__name__],
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("single_precision")
@its_checks()
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def data(number=31):
    rng = np.random.default_rng(0)
    kinds = np.array(["low" if i % 3 else "high" for i in range(number)])
    arrays = [rng.normal(2.0 * (k == "high"), 1, size=(rng.integers(1, 8), 3)) for k in kinds]
    return arrays, kinds, np.array([a.mean() for a in arrays])


def table(arrays, names):
    frames = [pd.DataFrame(a, columns=["a", "b", "c"]).assign(set=n) for a, n in zip(arrays, names, strict=True)]
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def fitted():
    arrays, kinds, _ = data()
    return SetClassifier("deep-sets", **CHEAP).fit(arrays, kinds)


# ---------------------------------------------------------------------- its tools


def test_cross_validation_stratifies_and_ranks():
    arrays, kinds, _ = data()
    sets, order = Sets.from_ragged(arrays), np.argsort(kinds)  # sorted: folds without strata would have one class
    model = SetClassifier("deep-sets", **CHEAP)
    found = cross_val_score(model, sets[order], kinds[order], cv=3, scoring="roc_auc")
    expected = []
    for train, test in StratifiedKFold(3).split(order, kinds[order]):
        one = clone(model).fit([arrays[i] for i in order[train]], kinds[order[train]])
        probabilities = one.predict_proba([arrays[i] for i in order[test]])
        assert one.classes_.tolist() == ["high", "low"]
        expected.append(roc_auc_score(kinds[order[test]] == "low", probabilities[:, 1]))
    assert np.allclose(found, expected)


@pytest.mark.parametrize("form", [list, Sets.from_ragged])
def test_voting(form):
    arrays, kinds, _ = data()
    sets = form(arrays)
    a, b = SetClassifier("deep-sets", **CHEAP), SetClassifier("deep-sets", **CHEAP, seed=1)
    voted = VotingClassifier([("a", a), ("b", b)], voting="soft").fit(sets, kinds)
    coded = (kinds == "low").astype(int)  # as the vote hands them on
    mean = (clone(a).fit(arrays, coded).predict_proba(arrays) + clone(b).fit(arrays, coded).predict_proba(arrays)) / 2
    assert np.allclose(voted.predict_proba(sets), mean, atol=1e-6)
    assert voted.classes_.tolist() == ["high", "low"]


def test_stacking_and_calibration():
    arrays, kinds, _ = data()
    sets, model = Sets.from_ragged(arrays), SetClassifier("deep-sets", **CHEAP)
    said = model.fit(arrays, kinds).predict_proba(arrays)
    stacked = StackingClassifier([("a", model)], cv=2).fit(sets, kinds)
    assert np.allclose(stacked.predict_proba(sets), stacked.final_estimator_.predict_proba(said[:, 1:]), atol=1e-5)
    calibrated = CalibratedClassifierCV(model, cv=2, ensemble=False).fit(sets, kinds, sample_weight=np.ones(len(kinds)))
    assert np.array_equal(np.argsort(calibrated.predict_proba(sets)[:, 1]), np.argsort(said[:, 1]))


def test_bagging_takes_a_column_of_sets():
    arrays, kinds, _ = data()
    sets = Sets.from_ragged(arrays)
    column = np.empty((len(sets), 1), dtype=object)
    column[:, 0] = list(sets)
    bag = BaggingClassifier(SetClassifier("deep-sets", **CHEAP), n_estimators=2, random_state=0).fit(column, kinds)
    mean = np.mean([model.predict_proba(sets) for model in bag.estimators_], 0)
    assert np.allclose(bag.predict_proba(column), mean, atol=1e-6)
    with pytest.raises(ValueError, match="Expected 2D array"):  # what the documentation says
        bag.fit(sets, kinds)


def test_permutation_importance_of_features_of_a_table():
    arrays, _, _ = data()
    names = [f"s{i}" for i in range(len(arrays))]
    means = pd.Series([a[:, 1].mean() for a in arrays], index=names)
    model = SetRegressor("deep-sets", **CHEAP | {"epochs": 40}).fit(table(arrays, names), means)
    importance = permutation_importance(model, table(arrays, names), means, n_repeats=3, random_state=0)
    assert table(arrays, names).columns.tolist() == ["a", "b", "c", "set"]
    a, b, c, _ = importance.importances_mean
    assert b > max(a, c)


def test_a_step_of_a_pipeline():
    arrays, kinds, _ = data()
    steps = make_pipeline(SetClassifier("deep-sets", **CHEAP), LogisticRegression()).fit(arrays, kinds)
    vectors = SetClassifier("deep-sets", **CHEAP).fit_transform(arrays, kinds)
    assert np.allclose(steps.predict_proba(arrays), LogisticRegression().fit(vectors, kinds).predict_proba(vectors))


# ---------------------------------------------------------------------- conventions


def test_not_fitted(tmp_path):
    model, arrays = SetClassifier("deep-sets"), data()[0]
    uses = [model.predict, model.predict_proba, model.predict_table, model.transform]
    uses += [lambda _: model.save(tmp_path), lambda _: model.get_feature_names_out()]
    for use in uses:
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use(arrays)
    assert issubclass(NotFittedError, ValueError)
    assert not any(hasattr(model, name) for name in ("classes_", "n_features_in_", "feature_names_in_"))


def test_features_and_their_names(fitted):
    arrays, kinds, _ = data()
    assert fitted.n_features_in_ == 3
    assert not hasattr(fitted, "feature_names_in_")
    names = [f"s{i}" for i in range(len(arrays))]
    named = clone(fitted).fit(table(arrays, names), pd.Series(kinds, index=names))
    assert named.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.allclose(named.predict_proba(arrays), fitted.predict_proba(arrays))
    said = "the sets have 2 features, the model was fitted on 3: X has 2 features, but SetClassifier is expecting 3"
    with pytest.raises(ValueError, match=said):
        fitted.predict([np.zeros((4, 2))])


def test_a_copy_by_pickle_says_the_same(fitted):
    arrays = data()[0]
    assert (pickle.loads(pickle.dumps(fitted)).predict_proba(arrays) == fitted.predict_proba(arrays)).all()


def test_scores(fitted):
    arrays, kinds, means = data()
    truth = np.roll(kinds, 4)
    assert math.isclose(fitted.score(arrays, truth), accuracy_score(truth, fitted.predict(arrays)))
    model = SetRegressor("deep-sets", **CHEAP).fit(arrays, means)
    assert math.isclose(model.score(arrays, means), r2_score(means, model.predict(arrays)))


@pytest.mark.filterwarnings("ignore:label. classes")
def test_scores_of_elements():
    arrays, _, _ = data(11)
    signs = [np.where(a[:, 0] > 0, "+", "-").astype(object) for a in arrays]
    signs[3][0] = None
    model = SetClassifier("ust", level="element", **CHEAP | {"epochs": 2}).fit(arrays, signs)
    truth, said = np.concatenate(signs), np.concatenate(model.predict(arrays))
    there = truth != None  # noqa: E711
    assert math.isclose(model.score(arrays, signs), accuracy_score(truth[there].astype(str), said[there]))


def test_continuous_labels_are_no_classes():
    arrays, _, means = data()
    with pytest.raises(ValueError, match="y is continuous.*SetRegressor"):
        SetClassifier("deep-sets").fit(arrays, means)
    halves = np.arange(len(arrays)) % 2 / 2
    assert SetClassifier("deep-sets", **CHEAP).fit(arrays, halves).classes_.tolist() == [0, 0.5]


# ---------------------------------------------------------------------- forms of sets


def test_forms_of_arrays():
    values = np.random.default_rng(0).normal(size=(5, 7, 3)).astype(np.float32)
    objects = np.empty((5, 1), dtype=object)
    objects[:, 0] = list(values)
    for form in (values, torch.from_numpy(values), objects, objects[:, 0]):
        sets = sets_of(form)
        assert sets.sizes.tolist() == [7] * 5
        assert torch.equal(sets.to_batch().elements, torch.from_numpy(values))
    rows = values[:, 0]
    for form in (rows, rows.tolist(), torch.from_numpy(rows), rows.astype(object), np.asfortranarray(rows)):
        sets = sets_of(form)
        assert sets.sizes.tolist() == [1] * 5
        assert torch.equal(sets.to_batch().elements[:, 0], torch.from_numpy(rows))
    assert sets_of([values[0], values[1, :2]]).sizes.tolist() == [7, 2]
    assert sets_of([[], [[1.0, 2.0]]]).sizes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        (np.zeros(3), ValueError, "Reshape your data"),
        (np.array([[0.0, np.nan]]), ValueError, "contains NaN"),
        (np.array([[0.0, 1e300]]), ValueError, "too large for dtype"),
        (np.array([["1", "2"]]), ValueError, "not compatible with arrays of bytes/strings"),
        (np.array([[1j]]), ValueError, "Complex data not supported"),
        (np.zeros((0, 3)), ValueError, r"0 sample\(s\)"),
        (np.zeros((2, 3, 4, 5)), ValueError, "dim 4"),
        (csr_array(np.eye(3)), TypeError, "Sparse data was passed"),
        (pd.DataFrame({"a": [1.0, 2.0]}), ValueError, "needs a column 'set'"),
    ],
)
def test_forms_that_are_refused(form, error, message):
    with pytest.raises(error, match=message):
        sets_of(form)


# ---------------------------------------------------------------------- vectors


@pytest.mark.parametrize("encoder", ["deep-sets", "ust"])
def test_vectors_of_one_network_are_what_its_head_reads(encoder):
    arrays, kinds, _ = data()
    options = CHEAP | {"epochs": 2, "encoder_options": {"num_outputs": 2} if encoder == "ust" else None}
    model = SetClassifier(encoder, **options).fit(arrays, kinds)
    vectors = model.transform(arrays)
    assert vectors.shape == (31, 16 if encoder == "ust" else 8)
    head = model.fitted().head
    logits = vectors.astype(np.float64) @ head.weight.detach().double().numpy().T + head.bias.detach().double().numpy()
    odds = np.exp(logits - logits.max(1, keepdims=True))
    assert np.allclose(odds / odds.sum(1, keepdims=True), model.predict_proba(arrays), atol=1e-6)
    assert model.get_feature_names_out().tolist() == [f"{encoder}_{i + 1}" for i in range(vectors.shape[1])]
    # Of the multiset, however it is written and read.
    counts = [np.arange(len(a)) % 3 + 1 for a in arrays]
    counted = model.transform(SetBatch.from_ragged(arrays, counts))
    repeated = [np.repeat(a, c, axis=0)[::-1].copy() for a, c in zip(arrays, counts, strict=True)]
    assert np.allclose(model.transform(repeated), counted, atol=1e-5)
    assert not np.allclose(vectors, counted, atol=1e-3)
    for reading in ({"shard_size": 2}, {"max_elements": 3}, {"batch_size": 5}):
        assert np.allclose(clone_of(model, **reading).transform(arrays), vectors, atol=1e-5)


def clone_of(model, **options):
    return pickle.loads(pickle.dumps(model)).set_params(**options)


@pytest.fixture(scope="module")
def mixture():
    arrays, kinds, _ = data(17)
    names = [f"s{i}" for i in range(17)]
    options = {name: value for name, value in CHEAP.items() if name != "validation_fraction"}
    model = SetClassifier(folds=2, repeats=1, **options | {"dim": 4, "epochs": 1})
    return model.fit(table(arrays, names), pd.Series(kinds, index=names))


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_vectors_in_tables(container, fitted):
    library = pytest.importorskip(container)
    arrays, kinds, _ = data()
    sets = Sets.from_ragged(arrays[:5], names=[*"edcba"])
    plain, columns = fitted.transform(sets), fitted.get_feature_names_out().tolist()
    chosen = clone_of(fitted)
    assert chosen.set_output(transform=container) is chosen
    assert isinstance(plain, np.ndarray)
    with config_context(transform_output=container):
        tables = [chosen.transform(sets), fitted.transform(sets)]
    for table in (*tables, chosen.set_output().transform(sets)):
        assert isinstance(table, library.DataFrame)
        assert [*table.columns] == columns
        np.testing.assert_array_equal(table.to_numpy(), plain)
        if container == "pandas":
            assert table.index.tolist() == sets.names
    assert isinstance(clone(chosen).fit_transform(arrays, kinds), library.DataFrame)  # as scikit-learn's own do
    scaled = make_pipeline(chosen, StandardScaler()).set_output(transform=container)
    assert [*scaled.fit(arrays, kinds).transform(arrays).columns] == columns
    assert isinstance(chosen.set_output(transform="default").transform(sets), np.ndarray)
    with pytest.raises(ValueError, match="transform must be one of default, pandas, polars, got 'numpy'"):
        chosen.set_output(transform="numpy")


@pytest.mark.filterwarnings("ignore:the mixture gives its networks")
def test_products_of_a_mixtures_vectors_are_means_over_its_networks(mixture):
    arrays = data(17)[0]
    vectors = mixture.transform(arrays)
    networks = [*mixture.fitted().networks]
    with torch.no_grad():
        source = source_of(list(Sets.from_ragged(arrays)), 10_000)
        summaries = [network.encoder(source).summary.flatten(1).double().numpy() for network in networks]
    assert len(networks) > 1
    assert np.allclose(vectors @ vectors.T, np.mean([s @ s.T for s in summaries], 0), atol=1e-5)
    names = mixture.get_feature_names_out()
    assert vectors.shape == (17, len(names)) == (17, 4 * len(networks))
    assert (names[0], names[-1]) == ("ust_1_1", f"ust_{len(networks)}_4")
    assert len(set(names)) == len(names)


def test_vectors_that_decide_little_are_said_to(mixture):
    model = clone_of(mixture)
    model.fitted().weights.zero_()
    with pytest.warns(UserWarning, match="gives its networks a weight of 0.00"):
        model.transform(data(17)[0])


@pytest.mark.filterwarnings("ignore:the mixture gives its networks")
def test_the_command_writes_the_vectors_of_python(mixture, tmp_path, capsys):
    arrays, _, _ = data(17)
    frame = table(arrays, [f"s{i}" for i in range(17)])
    frame[["c", "set", "a", "b"]].to_csv(tmp_path / "sets.csv", index=False)
    mixture.save(tmp_path / "run")
    words = [f"{tmp_path}/sets.csv", f"--model={tmp_path}/run", "--progress=false"]
    assert main(["embed", *words, f"--out={tmp_path}/v.parquet", "--max_elements=100"]) == 0
    found, expected = pd.read_parquet(tmp_path / "v.parquet"), mixture.transform(frame)
    assert found.columns.tolist() == ["set", *mixture.get_feature_names_out()]
    assert found["set"].tolist() == frame["set"].unique().tolist()
    assert np.allclose(found.iloc[:, 1:], expected, atol=1e-5)
    said = capsys.readouterr()
    assert f"17 vectors of {found.shape[1] - 1} numbers" in said.out
    assert "features are in another order than at fit" in said.err
    assert main(["embed", *words, f"--out={tmp_path}/sets.csv"]) == 2
    assert "is the input itself" in capsys.readouterr().err
