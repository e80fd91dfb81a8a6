"""Sets that must stay together, classes that are in one group only, and sets that a model has seen already."""

import warnings

import numpy as np
import pandas as pd
import pytest

from omniset import SetClassifier, SetRegressor, Sets, SetSurvival
from omniset.cli import main
from omniset.estimators.evaluation import evaluate
from omniset.estimators.inputs import digests, groups_of
from omniset.tables.labels import LabelFile
from small import QUIET, in_a_folder  # noqa: F401

SMALL = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False, "device": "cpu", "repeats": 1}
ONE = {**SMALL, "method": "deep-sets"}
NUMBER = 13


def arrays(number=NUMBER, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, 2)).astype(np.float32) for _ in range(number)]


LABELS = np.arange(NUMBER) % 2


def test_sets_of_one_name_are_left_out_together():
    """As a bootstrap draws a set several times: its copy must not tell what is known of it."""
    sets = Sets.from_ragged(arrays(), names=[*"abcdefabcdef", "g"])
    folds = SetClassifier(**SMALL, folds=3).fit(sets, LABELS).out_of_fold_.folds[0]
    assert folds[:6].tolist() == folds[6:12].tolist()
    groups = np.array([0, 0, 0, 1, 1, 1] * 2 + [2])
    assert groups_of(sets.names, groups) is groups
    assert groups_of([1, 2], None) is None
    groups[7] = 5
    with pytest.raises(ValueError, match="set 'b' is there twice, in the groups 0 and 5: it would be learned from and"):
        SetClassifier(**SMALL).fit(sets, LABELS, groups=groups)


@pytest.mark.parametrize("options", [SMALL, ONE | {"folds": 2}, ONE | {"validation_fraction": 0.4}])
def test_a_class_per_group_is_refused(options):
    groups = np.where(LABELS == 1, "ill", "well")
    with pytest.raises(ValueError, match=r"groups: each class of label is in one group only \(0 in 'well', 1 in 'ill'"):
        SetClassifier(**options).fit(arrays(), LABELS, groups=groups)


def test_a_class_in_one_group_is_a_warning_and_nothing_where_none_is_left_out():
    groups = np.arange(NUMBER) // 5
    y = np.where(groups == 1, "alone", "common")
    with pytest.warns(UserWarning, match="label: classes in one group only: 'alone' in '1'; where it is left out"):
        SetClassifier(**ONE, folds=3).fit(arrays(), y, groups=groups)
    alone = SetClassifier(**ONE | {"repeats": None}, validation_fraction=0.0)
    alone.fit(arrays(), LABELS, groups=LABELS)
    alone.fit(arrays(), LABELS, groups=np.zeros(NUMBER))


def test_events_of_one_group_are_refused():
    groups, y = np.arange(NUMBER) // 3, np.stack([np.arange(NUMBER) + 1.0, np.arange(NUMBER) < 3], 1)
    said = "groups: all events are of one group, '0': nothing is left to learn"
    with pytest.warns(UserWarning, match="only 3 events"), pytest.raises(ValueError, match=said):
        SetSurvival(**SMALL).fit(arrays(), y, groups=groups)


def test_too_many_folds_are_refused_before_a_network_learns(monkeypatch):
    monkeypatch.setattr("omniset.training.fit.fit", None)
    with pytest.raises(ValueError, match=r"folds must be at most the number of groups \(or sets\), 3, got 5"):
        SetClassifier(**ONE, folds=5).fit(arrays(), LABELS, groups=np.arange(NUMBER) % 3)


@pytest.mark.parametrize("value", [1.0, None])  # all sets are the same; all sets are empty
@pytest.mark.parametrize(("maker", "y"), [(SetClassifier, LABELS), (SetRegressor, np.arange(NUMBER))])
def test_sets_that_cannot_be_told_apart_are_no_error(maker, y, value):
    sets = [np.full((0 if value is None else 3, 2), 1.0)] * NUMBER
    said = maker(**SMALL, folds=2).fit(sets, y).predict(sets)
    if maker is SetRegressor:
        # Products of matrices round the last rows of a batch otherwise.
        assert np.ptp(said) <= 1e-7 * np.abs(said).max()
    else:
        assert len(set(said.tolist())) == 1


def table(names):
    sets = zip(names, arrays(len(names)), strict=True)
    return pd.concat([pd.DataFrame(s, columns=["u", "v"]).assign(set=name) for name, s in sets])


def test_sets_that_were_learned_from_are_named(tmp_path):
    names = [f"s{i}" for i in range(NUMBER)]
    y = pd.Series(LABELS, names)
    model = SetClassifier(**ONE | {"repeats": None}, validation_fraction=0.3, patience=None).fit(table(names), y)
    learned = np.setdiff1d(np.arange(NUMBER), model.validation_)
    assert model.seen_ == digests(model.read(table(names)), learned)
    assert not any(name in "".join(model.seen_) for name in names)
    model.save("model")
    first = names[learned[0]]
    for one in (model, SetClassifier.load("model")):
        said = rf"1 of 3 sets have the name of one that the model learned from \('{first}'\): what is measured on them"
        with pytest.warns(UserWarning, match=said):
            evaluate(one, table(["n1", first, "n2"]), pd.Series([0, 1, 0], ["n1", first, "n2"]))
        evaluate(one, table(["n1", "n2"]), pd.Series([0, 1], ["n1", "n2"]))  # no warning, which would be an error


def test_empty_sets_are_named(tmp_path, capsys):
    (tmp_path / "sets").mkdir()
    for number, rows in enumerate(arrays()):
        np.save(tmp_path / "sets" / f"s{number:02}.npy", rows[: 0 if number in (3, 5) else None])
    names = [f"s{i:02}" for i in range(NUMBER)]
    pd.DataFrame({"set": names, "label": list("pq" * 6 + "p")}).to_csv("labels.csv", index=False)
    how = ["--method=deep-sets", "--dim=8", "--num_heads=2", "--depth=1", "--epochs=1", *QUIET]
    assert main(["fit", "sets", "--target=labels.csv", "--out=run", *how]) == 0
    assert "warning: sets: 2 of 13 sets are empty: 's03', 's05'\n" in capsys.readouterr().err


# ---------------------------------------------------------------------- units of values

OTHER_UNIT = "another unit, or another range, than those that the model learned from"
MARKERS = ["CD4", "CD8"]


def marked(rng, number, times=1.0, offset=0.0):
    """Sets of 30 cells; of the second marker four fifths are 0."""
    values = np.exp(rng.normal(size=(number, 30, 2)))
    values[..., 1] *= rng.random((number, 30)) < 0.2
    names = np.repeat([f"s{i}" for i in range(number)], 30)
    return pd.DataFrame((values * times + offset).reshape(-1, 2), columns=MARKERS).assign(set=names)


@pytest.fixture(scope="module", params=[ONE, {"method": "pooled-forest", "folds": None}], ids=lambda one: one["method"])
def fitted(request, tmp_path_factory):
    model = SetClassifier(**{"progress": False, **request.param})
    model.fit(marked(np.random.default_rng(0), NUMBER), LABELS)
    folder = tmp_path_factory.mktemp("units") / "model"
    model.save(folder)
    return SetClassifier.load(folder)


@pytest.mark.parametrize(
    ("times", "offset", "both"),
    [(1000, 0, True), (0.001, 0, True), (0.05, 0, True), (1, 200, True), (1, 0, None), (3, 0, None), (1 / 3, 0, None)],
)
def test_values_in_another_unit_are_told(fitted, times, offset, both):
    """A factor of three is what batches do."""
    table = marked(np.random.default_rng(1), 5, times, offset)
    if both is None:
        fitted.predict(table)  # a warning is an error
        return
    with pytest.warns(UserWarning, match=f"feature 'CD4', 'CD8': .*{OTHER_UNIT}"):
        fitted.predict(table)


def test_the_feature_in_another_unit_is_named_with_both_ranges(fitted):
    table = marked(np.random.default_rng(1), 5)
    table["CD8"] *= 1000  # four fifths stay 0, within the range
    low, high = table["CD8"].min(), table["CD8"].max()
    at_fit = marked(np.random.default_rng(0), NUMBER)["CD8"]
    with pytest.warns(UserWarning, match=OTHER_UNIT) as caught:
        fitted.transform(table)
    ranges = f"('CD8': {low:.3g} to {high:.3g}; at fit {at_fit.min():.3g} to {at_fit.max():.3g})"
    assert str(caught[0].message).startswith("feature 'CD8': ")
    assert ranges in str(caught[0].message)


def test_the_scale_of_arcsinh_is_told(fitted):
    """Raw intensities at fit, arcsinh(x / 5) at predict: within the range, and as large as hardly any were."""
    raw = SetClassifier(method="pooled-forest", folds=None, progress=False)
    raw.fit(marked(np.random.default_rng(0), NUMBER, 300), LABELS)
    table = marked(np.random.default_rng(1), 5, 300)
    raw.predict(table)
    table[MARKERS] = np.arcsinh(table[MARKERS] / 5)
    with pytest.warns(UserWarning, match=OTHER_UNIT):
        raw.predict(table)


def test_few_sets_may_lie_at_the_edge(fitted):
    """One patient may well have an extreme value of what is the same in all elements of a set."""
    table = marked(np.random.default_rng(0), 1)
    at_fit = marked(np.random.default_rng(0), NUMBER)
    table["CD4"] = at_fit["CD4"].max()
    fitted.predict(table)


def test_few_elements_tell_no_unit(fitted):
    fitted.predict(marked(np.random.default_rng(1), 1, 1000).head(19))


def test_a_feature_that_never_changed_has_no_range():
    """As where values are missing for the first time."""
    train = marked(np.random.default_rng(0), NUMBER).assign(flag=0.0)
    with pytest.warns(UserWarning, match="features with one value"):
        model = SetClassifier(**ONE).fit(train, LABELS)
    model.predict(marked(np.random.default_rng(1), 5).assign(flag=1.0))


def test_the_command_tells_another_unit(in_a_folder, capsys):  # noqa: F811
    marked(np.random.default_rng(0), NUMBER).to_csv("sets.csv", index=False)
    pd.DataFrame({"set": [f"s{i}" for i in range(NUMBER)], "label": list("ab" * 7)[:NUMBER]}).to_csv(
        "y.csv", index=False
    )
    marked(np.random.default_rng(1), 5, 1000).to_csv("new.csv", index=False)
    assert main(["fit", "sets.csv", "--target", "y.csv", "--out", "run", "--method", "pooled-forest", *QUIET]) == 0
    capsys.readouterr()
    assert main(["predict", "new.csv", "--model", "run", "--out", "said.csv", *QUIET]) == 0
    assert capsys.readouterr().err.count(OTHER_UNIT) == 1


# ---------------------------------------------------------------------- a target that is a group


def test_a_target_that_is_rather_a_group_is_told():
    """Forgotten, intervals are too narrow, and a patient is predicted."""
    labels = pd.DataFrame({"label": np.repeat(["a", "b"], 15), "patient": np.repeat([f"p{i}" for i in range(6)], 5)})
    with pytest.warns(UserWarning, match="patient: sets of one patient have the same label: .*--group patient"):
        SetClassifier(method="pooled-forest", folds=None).fit(arrays(30), labels)


def test_classes_within_classes_are_no_groups():
    """A few subtypes, each of one type, are two targets."""
    labels = pd.DataFrame({"type": np.repeat(["a", "b"], 14), "subtype": np.repeat([*"wxyz"], 7)})
    SetClassifier(method="pooled-forest", folds=None).fit(arrays(28), labels)


@pytest.mark.parametrize(("column", "told"), [("patient", True), ("mouse_id", True), ("site", False)])
def test_a_group_beside_the_target_is_told(in_a_folder, column, told):  # noqa: F811
    """Also where the target is named, and the column of patients is not read as one."""
    names, labels = [f"s{i}" for i in range(30)], np.where(np.arange(30) < 15, "a", "b")
    beside = np.repeat([f"p{i}" for i in range(6)], 5) if told else np.arange(30) % 2
    noted = np.where(np.arange(30) < 3, "", "seen")  # what is not asked for may be empty
    pd.DataFrame({"set": names, "status": labels, column: beside, "note": noted}).to_csv("y.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LabelFile("y.csv", ["status"])
        LabelFile("y.csv", ["status"], group=column)
    said = [str(one.message) for one in caught]
    assert len(said) == told
    assert not told or f"y.csv: {column}: sets of one {column} have the same status" in said[0]


def test_a_set_that_is_empty_at_predict_is_told(in_a_folder, capsys):  # noqa: F811
    table = marked(np.random.default_rng(0), NUMBER)
    table.to_csv("sets.csv", index=False)
    labels = pd.DataFrame({"set": [f"s{i}" for i in range(NUMBER)], "label": np.where(LABELS, "a", "b")})
    labels.to_csv("y.csv", index=False)
    assert main(["fit", "sets.csv", "--target", "y.csv", "--out", "run", "--method", "pooled-forest", *QUIET]) == 0
    table.assign(multiplicity=(table["set"] != "s3") * 1).to_csv("new.csv", index=False)
    capsys.readouterr()
    assert main(["predict", "new.csv", "--model", "run", "--out", "said.csv", *QUIET]) == 0
    assert "new.csv: 1 of 13 sets are empty: 's3'" in capsys.readouterr().err
