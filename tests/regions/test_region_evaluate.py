"""Evaluation of regions: what no method may see, what is kept and resumed, and numbers by hand."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest

from omniset.regions import baselines, training
from omniset.regions.baselines import METHODS, Method
from omniset.regions.blend import Blend
from omniset.regions.data import Regions
from omniset.regions.evaluate import MINE, PARTS, Evaluation, evaluate, groups_of
from omniset.regions.nulls import spins
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scores import interval, scores
from omniset.regions.splits import split

REGIONS, GENES = 23, 13
RIDGE = {"method": "ridge", "device": "cpu"}


def regions_of(number=REGIONS, genes=GENES, seed=0, placed=True, directed=False):
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    expression = rng.random((number, genes)).astype(np.float32)
    side = expression[:, :3] - 0.5
    noise = 0.02 * rng.normal(size=(number, number))
    values = 0.4 * np.exp(-np.linalg.norm(places[:, None] - places, axis=2) / 40) + side @ side.T
    values = values + (noise if directed else noise + noise.T)
    np.fill_diagonal(values, np.nan)
    values[0, 5] = values[5, 0] = np.nan
    return Regions(
        [f"region {i}" for i in rng.permutation(number)],
        [f"G{g}" for g in range(genes)],
        expression,
        places if placed else None,
        hemisphere=["L" if x < 0 else "R" for x in places[:, 0]] if placed else None,
        connectivity=values,
        directed=directed,
    )


class Spy(Method):
    """Predicts the mean, tells what it saw, and stops after a number of fits."""

    name = "spy"
    log: list = []  # noqa: RUF012
    most = math.inf

    def _fit(self, train, seed):
        if sum(kind == "fit" for kind, *_ in Spy.log) >= Spy.most:
            raise KeyboardInterrupt
        self.train = train
        self.mean = float(np.nanmean(train.connectivity))
        Spy.log.append(("fit", set(train.names), train.expression.copy(), list(train.names)))

    def _predict(self, regions, pairs):
        names = [regions.names[i] for i in range(len(regions))]
        Spy.log.append(("predict", set(self.train.names), {names[i] for i in pairs.ravel()}, regions))
        return self.mean + regions.expression[pairs[:, 0], 0].astype(float) * regions.expression[pairs[:, 1], 0]


class Placed(Spy):
    name = "placed"
    needs_coordinates = True


@pytest.fixture(autouse=True)
def _spied(monkeypatch):
    """The quick methods alone, and the spies."""
    monkeypatch.setattr(Spy, "log", [])
    monkeypatch.setattr(Spy, "most", math.inf)
    for name, kind in {"spy": Spy, "placed": Placed}.items():
        monkeypatch.setitem(METHODS, name, kind)
    for name in ("RATES", "WIDTHS", "WEIGHTS", "PENALTIES"):
        monkeypatch.setattr(baselines, name, getattr(baselines, name)[:1])


def without_seconds(frame):
    return frame.drop(columns="seconds")


# ---------------------------------------------------------------------- what is seen


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("split_by", ["spatial", "random"])
def test_both_regions_of_every_test_pair_are_unseen(split_by, directed):
    regions = regions_of(directed=directed)
    found = evaluate(regions, split_by=split_by, folds=4, seeds=2, baselines=["spy"], mine=False)
    fits = [names for kind, names, *_ in Spy.log if kind == "fit"]
    asked = [(learned, named) for kind, learned, named, _ in Spy.log if kind == "predict"]
    assert len(fits) == len(asked) == 8
    for at, (learned, named) in enumerate(asked):
        seed, fold = divmod(at, 4)
        test = split(split_by, regions, 4, seed)[fold]
        assert named == {regions.names[i] for i in test}
        assert learned == set(regions.names) - named
    assert (found.split, found.methods, found.baselines) == (split_by, ["spy"], ["spy"])
    assert found.rows[["seed", "fold"]].to_numpy().tolist() == [list(p) for p in itertools.product((0, 1), range(4))]


def test_rows_are_the_scores_of_the_predictions():
    regions = regions_of()
    found = evaluate(regions, folds=4, seeds=1, baselines=["ridge"], mine=False, **{"seed": 3})
    parts = split("spatial", regions, 4, 3)
    places, sides = regions.coordinates, np.array(regions.hemisphere)
    predictions = found.predictions["ridge"]
    for fold, test in enumerate(parts):
        assert (found.folds[test] == fold).all()
        pairs = [p for p in itertools.combinations(test, 2) if not np.isnan(regions.connectivity[p])]
        truth = np.array([regions.connectivity[p] for p in pairs])
        given = np.array([predictions[p] for p in pairs])
        direct = ConnectivityPredictor(**RIDGE, progress=False, seed=3).fit_rows(
            regions, np.setdiff1d(np.arange(REGIONS), test)
        )
        assert np.array_equal(direct.predict(np.array(pairs), regions), given)
        distance = np.array([np.linalg.norm(places[i] - places[j]) for i, j in pairs])
        of_pair = np.array([sides[i] if sides[i] == sides[j] else "LR" for i, j in pairs])
        row = found.rows[found.rows["fold"] == fold].iloc[0]
        for name, value in scores(truth, given, distance, of_pair).items():
            assert row[name] == pytest.approx(value, nan_ok=True, rel=1e-12), name
        assert row["pearson"] == pytest.approx(np.corrcoef(truth, given)[0, 1], rel=1e-9)
        assert row["seconds"] > 0
    apart = found.folds[:, None] != found.folds
    assert np.isnan(predictions[apart]).all()
    assert np.array_equal(predictions, predictions.T, equal_nan=True)


def test_the_null_is_of_spun_rows_and_the_rest_of_the_others():
    regions = regions_of()
    found = evaluate(regions, folds=3, seeds=2, null=2, nulled=["spy"], baselines=["spy", "distance"], mine=False)
    assert len(found.null) == 6
    assert found.null[["seed", "fold", "spin"]].to_numpy().tolist() == [[0, f, s] for f in range(3) for s in range(2)]
    assert set(found.null["method"]) == {"spy"}
    turned = spins(regions.coordinates, regions.hemisphere, 2, 0, groups_of(regions))
    fits = [(values, names) for kind, _, values, names in Spy.log if kind == "fit"]
    row_of = {name: i for i, name in enumerate(regions.names)}

    def rows_of(spin):
        expected = regions.expression if spin is None else regions.expression[turned[spin]]
        return [np.array_equal(values, expected[[row_of[name] for name in names]]) for values, names in fits]

    # Three folds of the first seed, then the null of these, then three folds of the second seed.
    assert rows_of(None) == [True] * 3 + [False] * 6 + [True] * 3
    assert rows_of(0) == [False] * 3 + [True, False] * 3 + [False] * 3
    assert rows_of(1) == [False] * 3 + [False, True] * 3 + [False] * 3
    for learned, named, own in [(a, b, c) for kind, a, b, c in Spy.log if kind == "predict"]:
        assert not learned & named
        assert own.connectivity is not None
    table = found.table()
    first = found.rows[(found.rows["method"] == "spy") & (found.rows["seed"] == 0)]["pearson"].mean()
    assert table.loc["spy", "null"] == pytest.approx(found.null["pearson"].mean())
    assert table.loc["spy", "gain"] == pytest.approx(first - found.null["pearson"].mean())
    assert math.isnan(table.loc["distance", "null"])


# ---------------------------------------------------------------------- resumed


def test_killed_and_resumed_is_uninterrupted(tmp_path, monkeypatch):
    options = {"folds": 3, "seeds": 2, "null": 1, "nulled": ["spy"], "baselines": ["distance", "spy"], "mine": False}
    whole = evaluate(regions_of(), **options)
    Spy.log.clear()
    monkeypatch.setattr(Spy, "most", 7)  # within the second seed
    with pytest.raises(KeyboardInterrupt):
        evaluate(regions_of(), folder=tmp_path, **options)
    kept = {path.name for path in (tmp_path / "rows").iterdir()}
    assert kept == {"distance_0_scores.json", "distance_1_scores.json", "spy_0_scores.json", "spy_0_null1.json"}
    monkeypatch.setattr(Spy, "most", math.inf)
    Spy.log.clear()
    again = evaluate(regions_of(), folder=tmp_path, resume=True, **options)
    assert sum(kind == "fit" for kind, *_ in Spy.log) == 3  # the second seed alone
    pd.testing.assert_frame_equal(without_seconds(again.rows), without_seconds(whole.rows))
    pd.testing.assert_frame_equal(again.null, whole.null)
    assert again.predictions.keys() == whole.predictions.keys()
    for name, values in whole.predictions.items():
        assert np.array_equal(again.predictions[name], values, equal_nan=True)
    assert np.array_equal(again.folds, whole.folds)
    Spy.log.clear()
    last = evaluate(regions_of(), folder=tmp_path, resume=True, **options)
    assert not Spy.log
    pd.testing.assert_frame_equal(last.rows, again.rows)
    evaluate(regions_of(), folder=tmp_path, **options)  # anew
    assert len(Spy.log) == 18


def test_other_arguments_are_not_resumed(tmp_path):
    options = {"folds": 3, "seeds": 1, "baselines": [], "mine": True, "folder": tmp_path, **RIDGE}
    evaluate(regions_of(), **options)
    other = regions_of()
    other.expression[3, 2] += 0.01
    for regions, changed, message in (
        (regions_of(), {"folds": 4}, "folds was 3, is 4"),
        (regions_of(), {"split_by": "random"}, "split was 'spatial', is 'random'"),
        (regions_of(), {"dim": 64}, "dim was None, is 64"),
        (other, {}, r"data was \d+, is \d+"),
    ):
        with pytest.raises(
            ValueError, match=rf"omniset_0_scores.json is of another run and cannot be resumed: {message}"
        ):
            evaluate(regions, **options | changed, resume=True)
    evaluate(regions_of(), **options | {"device": "auto"}, resume=True)  # where, not what


# ---------------------------------------------------------------------- numbers by hand


def made_up(values, null=None):
    """Rows of methods by seeds and folds."""
    rows = [
        {"seed": seed, "fold": fold, "method": method, "seconds": 1.0 + fold, "pairs": 3.0}
        | {"pearson": r, "spearman": r / 2, "r2": r - 1, "mse": 1 - r}
        | dict.fromkeys(PARTS, math.nan)
        for method, by_seed in values.items()
        for seed, by_fold in enumerate(by_seed)
        for fold, r in enumerate(by_fold)
    ]
    none = pd.DataFrame({"seed": [], "fold": [], "method": [], "spin": [], "pearson": []})
    spun = none if null is None else pd.DataFrame(null)
    return Evaluation(
        pd.DataFrame(rows), spun, pd.DataFrame(), {}, np.zeros(REGIONS, dtype=np.int64), regions_of(), "spatial"
    )


def test_gates_and_differences_by_hand():
    found = made_up(
        {
            MINE: [[0.5, 0.7], [0.3, 0.5]],
            "ridge": [[0.4, 0.4], [0.4, 0.4]],
            "variant": [[0.9, 0.9], [0.9, 0.9]],
            "distance": [[0.1, 0.5], [0.2, 0.6]],
        },
        [{"seed": 0, "fold": f, "method": MINE, "spin": 0, "pearson": r} for f, r in enumerate((0.1, 0.3))],
    )
    assert found.methods == [MINE, "ridge", "variant", "distance"]
    assert found.baselines == ["ridge", "distance"]
    assert found.best_baseline() == "ridge"  # the variant is ours
    value, low, high = found.difference("ridge")
    assert value == pytest.approx((0.1 + 0.3 - 0.1 + 0.1) / 4)
    assert (low, high) == pytest.approx(interval([0.1, 0.3, -0.1, 0.1], [0, 0, 1, 1]))
    assert low == pytest.approx(0.0)  # both draws of the second seed
    assert high == pytest.approx(0.2)
    (gate,) = found.gates()
    assert gate == {
        "gate": "Pearson's r, ours minus the best baseline (ridge)",
        "value": value,
        "low": low,
        "high": high,
        "bound": "> 0",
        "holds": True,
    }
    assert found.difference(MINE, "ridge")[0] == pytest.approx(-value)
    table = found.table()
    assert list(table.index) == ["variant", MINE, "ridge", "distance"]
    assert table.loc[MINE, ["pearson", "spearman", "r2", "mse"]].tolist() == pytest.approx([0.5, 0.25, -0.5, 0.5])
    assert table.loc[MINE, "seconds"] == 1.5
    assert table.loc[MINE, "null"] == pytest.approx(0.2)
    assert table.loc[MINE, "gain"] == pytest.approx(0.6 - 0.2)  # of the first seed
    assert (table.loc[MINE, "pearson_low"], table.loc[MINE, "pearson_high"]) == pytest.approx((0.4, 0.6))
    worse = made_up({MINE: [[0.1, 0.2]], "ridge": [[0.3, 0.2]]})
    assert not worse.gates()[0]["holds"]
    assert worse.difference("ridge")[0] == pytest.approx(-0.1)
    assert worse.difference("ridge")[1:] == pytest.approx(interval([-0.2, 0.0]))  # folds, of one seed
    assert made_up({MINE: [[0.1, 0.2]]}).gates() == []
    assert made_up({"ridge": [[0.1, 0.2]]}).gates() == []


def test_numbers_are_plain_json():
    regions = regions_of(placed=False)
    found = evaluate(regions, split_by="random", folds=3, seeds=1, baselines=["spy", "distance"], **RIDGE)
    text = json.dumps(found.numbers(), allow_nan=False)
    numbers = json.loads(text)
    assert numbers == found.numbers()
    assert numbers["regions"] == REGIONS
    assert numbers["genes"] == GENES
    assert numbers["folds"] == 3
    assert numbers["seeds"] == [0]
    assert numbers["spins"] == 0
    assert len(numbers["rows"]) == 3
    assert numbers["rows"][0]["pearson_short"] is None
    assert numbers["table"]["spy"]["pearson"] == found.table().loc["spy", "pearson"]
    assert numbers["not_run"].keys() == {"distance", MINE}
    assert "predictions" not in numbers


def test_weights_of_the_default(monkeypatch):
    tiny = {"axes": 2, "dim": 4, "num_heads": 2, "steps": 1, "device": "cpu"}
    monkeypatch.setattr(training, "ROUNDS", 1)
    given = iter((0.25, 0.5, 0.75))

    def weigh(self, train, seed):
        self.scores = {}
        return dict.fromkeys(self._parts, 0.0) | {"ridge": next(given)}

    monkeypatch.setattr(Blend, "_weigh", weigh)
    found = evaluate(
        regions_of(19), folds=3, seeds=1, baselines=[], variants={"network": {"method": "attention"}}, **tiny
    )
    assert found.methods == [MINE, "network"]
    own = ["ridge", "ridge-position", "boosting", "boosting-position"]
    parts = [*own, *(f"distance+{name}" for name in own), "distance+attention"]
    assert list(found.weights.columns) == ["seed", "fold", "method", *parts]
    assert found.weights["method"].tolist() == [MINE] * 3
    assert found.weights["ridge"].tolist() == [0.25, 0.5, 0.75]
    assert found.numbers()["weights"] == found.weights.to_dict("records")


# ---------------------------------------------------------------------- what cannot be run


def test_only_methods_that_are_run_can_be_nulled():
    with pytest.raises(ValueError, match="^nulled must be out of the methods that are run, got 'rigde'"):
        evaluate(regions_of(), baselines=["spy"], null=1, nulled=["rigde"], mine=False)


def test_methods_that_need_coordinates_are_not_run():
    regions = regions_of(placed=False)
    options = {"split_by": "random", "folds": 3, "seeds": 1, "mine": False}
    found = evaluate(regions, baselines=["placed", "spy", "distance"], **options)
    assert found.methods == ["spy"]
    assert found.not_run == dict.fromkeys(("placed", "distance"), "it needs coordinates, which are not known")
    assert found.rows[list(PARTS)].isna().all(axis=None)
    with pytest.raises(ValueError, match="leave nothing to run. placed: it needs coordinates"):
        evaluate(regions, baselines=["placed"], **options)
    with pytest.raises(ValueError, match="coordinates are not known of these regions: spatial folds need them"):
        evaluate(regions, baselines=["spy"], **options | {"split_by": "spatial"})
    Spy.log.clear()
    with pytest.raises(ValueError, match="null needs coordinates, which are not known"):
        evaluate(regions, baselines=["spy"], null=1, nulled=["spy"], **options)
    assert not Spy.log  # before any work


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baselines": ["spy", "none"]}, "baselines must be out of .*; got 'none'"),
        ({"baselines": []}, "baselines, variants and mine leave nothing to run.$"),
        ({"folds": 1}, "folds must be >= 2, got 1"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"null": -1}, "null must be >= 0, got -1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"resume": True}, "resume needs the folder that has the rows"),
        ({"split_by": "none"}, "kind must be one of 'random', 'spatial', got 'none'"),
        ({"folds": 2}, "there are 23 regions: without one of 2 folds, fewer than 12 are left"),
        ({"mine": True, "dim": 0}, "dim must be >= 1, got 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(regions_of(), **{"baselines": ["spy"], "mine": False, "folds": 3, "seeds": 1} | options)
    assert not [kind for kind, *_ in Spy.log]


def test_no_connectivity():
    with pytest.raises(ValueError, match="connectivity is not known of these regions"):
        evaluate(regions_of().with_(connectivity=None))


def test_groups_are_told_by_names():
    regions = regions_of()
    names = ["L_Thalamus", "R_caudate", "Brain-Stem", *regions.names[3:]]
    network = ["Visual"] * 22 + ["Subcortex"]
    found = groups_of(regions.with_(names=names, network=network))
    assert [i for i, group in enumerate(found) if group == "subcortex"] == [0, 1, 2, 22]
    assert set(groups_of(regions)) == {"cortex"}


def test_what_is_done_is_told():
    lines = []
    evaluate(regions_of(), folds=3, seeds=1, null=1, nulled=["spy"], baselines=["spy"], mine=False, say=lines.append)
    assert lines == [f"spy, seed 0, fold {k} of 3" for k in (1, 2, 3)] + [
        f"spy, seed 0, fold {k} of 3, spin 1 of 1" for k in (1, 2, 3)
    ]
