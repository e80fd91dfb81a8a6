"""Evaluation of regions: what no method may see, what is kept and resumed, and numbers by hand."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from region_methods import GENES, REGIONS, brain_of, made_up

from omniset.regions.evaluate import PARTS, PLACES, evaluate
from omniset.regions.methods import Method
from omniset.regions.null_models import WHAT, Statistic, maps_of, spins
from omniset.regions.predictor import METHODS, ConnectivityPredictor
from omniset.regions.scores import scores
from omniset.regions.splits import split
from omniset.runs.files import plain
from omniset.trials.comparison import OURS, TIE

RIDGE = {"method": "ridge", "device": "cpu"}


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
        Spy.log.append(("fit", self.held_out))

    def _predict(self, regions, pairs):
        Spy.log.append(("predict", set(self.train.names), {regions.names[i] for i in pairs.ravel()}))
        return self.mean + regions.expression[pairs[:, 0], 0].astype(float) * regions.expression[pairs[:, 1], 0]


@pytest.fixture(autouse=True)
def _spied(monkeypatch, quick):
    """A spy in the place of boosting."""
    monkeypatch.setattr(Spy, "log", [])
    monkeypatch.setattr(Spy, "most", math.inf)
    monkeypatch.setitem(METHODS, "boosting", Spy)


def without_seconds(frame):
    return frame.drop(columns="seconds")


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("split_by", ["bilateral", "spatial", "random"])
def test_both_regions_of_every_test_pair_are_unseen(split_by, directed):
    regions = brain_of(directed=directed)
    found = evaluate(regions, split_by=split_by, folds=4, seeds=2, methods=["boosting"], mine=False)
    assert [about for about in Spy.log if about[0] == "fit"] == [("fit", split_by)] * 8
    asked = [about for about in Spy.log if about[0] == "predict"]
    assert len(asked) == 8
    for at, (_, learned, named) in enumerate(asked):
        seed, fold = divmod(at, 4)
        test = split(split_by, regions, 4, seed)[fold]
        assert named == {regions.names[i] for i in test}
        assert learned == set(regions.names) - named
    assert (found.split, found.methods, found.seeds) == (split_by, ["boosting"], [0, 1])
    assert found.by_fold[["seed", "fold"]].to_numpy().tolist() == [list(p) for p in itertools.product((0, 1), range(4))]


def test_one_hemisphere():
    """Its bilateral folds are spatial ones, no mirror image is learned from, and every null is of it alone."""
    whole = brain_of(40)
    left = whole.take([i for i, side in enumerate(whole.hemisphere) if side == "L"])
    one, other = (
        evaluate(left, split_by=by, folds=3, seeds=1, methods=["ridge"], mine=False, null=2)
        for by in ("bilateral", "spatial")
    )
    assert np.array_equal(one.folds, other.folds)
    assert np.array_equal(one.predictions["ridge"], other.predictions["ridge"], equal_nan=True)
    assert [each.observed for each in one.nulls] == [each.observed for each in other.nulls]
    assert all(np.isfinite(each.nulls).all() for each in one.nulls)
    assert one.notes == ["all regions are of one hemisphere: bilateral folds of them are spatial folds"]
    assert other.notes == []
    assert one.by_fold["pearson_left"].notna().all()
    assert one.by_fold[["pearson_right", "pearson_between"]].isna().all().all()
    # A model of it warns of pairs between the two.
    predictor = ConnectivityPredictor(**RIDGE, progress=False).fit(left)
    assert np.isfinite(predictor.predict([[0, 1]], left)).all()
    with pytest.warns(UserWarning, match="learned from one hemisphere"):
        predictor.predict([[0, 1]], whole)


def test_rows_are_the_scores_of_the_predictions():
    regions = brain_of()
    found = evaluate(regions, folds=4, seeds=2, methods=["ridge"], mine=False, seed=2)
    parts = split("bilateral", regions, 4, 3)
    places, sides = regions.coordinates, np.array(regions.hemisphere)
    predictions, folds = found.predictions["ridge"][1], found.folds[1]
    for fold, test in enumerate(parts):
        assert (folds[test] == fold).all()
        pairs = [p for p in itertools.combinations(test, 2) if not np.isnan(regions.connectivity[p])]
        truth = np.array([regions.connectivity[p] for p in pairs])
        given = np.array([predictions[p] for p in pairs])
        rest = np.setdiff1d(np.arange(REGIONS), test)
        direct = ConnectivityPredictor(**RIDGE, progress=False, seed=3).fit_rows(regions, rest)
        assert np.array_equal(direct.predict(np.array(pairs), regions), given)
        distance = np.array([np.linalg.norm(places[i] - places[j]) for i, j in pairs])
        of_pair = np.array([sides[i] if sides[i] == sides[j] else "LR" for i, j in pairs])
        row = found.by_fold[(found.by_fold["fold"] == fold) & (found.by_fold["seed"] == 3)].iloc[0]
        for name, value in scores(truth, given, distance, of_pair).items():
            assert row[name] == pytest.approx(value, nan_ok=True, rel=1e-12), name
        assert row["pearson"] == pytest.approx(np.corrcoef(truth, given)[0, 1], rel=1e-9)
        assert row["seconds"] > 0
    apart = folds[:, None] != folds
    assert np.isnan(predictions[apart]).all()
    assert np.array_equal(predictions, predictions.T, equal_nan=True)


def test_nulls_are_of_the_folds_of_the_first_seed():
    regions = brain_of()
    found = evaluate(regions, methods=["boosting"], folds=3, seeds=2, null=3, mine=False)
    assert [(one.kind, one.what, len(one.nulls)) for one in found.nulls] == [
        (kind, what, 3) for kind in ("spin", "variogram") for what in WHAT
    ]
    statistic = Statistic(regions, split("bilateral", regions, 3, 0))
    maps = maps_of(regions)
    turned = spins(regions, 3, 0)
    for at, what in enumerate(WHAT):
        assert found.nulls[at].observed == statistic(maps)[what]
        assert np.allclose(found.nulls[at].nulls, [statistic(maps[rows])[what] for rows in turned])


def test_places_alone_are_beside_ours(monkeypatch):
    monkeypatch.setattr("omniset.regions.blend.FOLDS", 2)
    regions = brain_of()
    found = evaluate(regions, folds=3, seeds=1, methods=[], device="cpu")
    assert found.methods == [OURS, PLACES]
    gap = found.comparison.difference("pearson", "bilateral", PLACES)
    assert f"{gap.value:+.3f} to Pearson's r of places alone" in found.genes_add()
    assert found.numbers()["genes_add"] == found.genes_add()
    noise = regions.with_(expression=np.random.default_rng(0).random((REGIONS, GENES)).astype(np.float32))
    alone = {PLACES: {"method": "places"}}
    other = evaluate(noise, folds=3, seeds=1, methods=[], mine=False, variants=alone, device="cpu")
    assert np.array_equal(other.predictions[PLACES], found.predictions[PLACES], equal_nan=True)
    assert not np.array_equal(found.predictions[OURS], found.predictions[PLACES], equal_nan=True)


def test_killed_and_resumed_is_uninterrupted(tmp_path, monkeypatch):
    options = {"folds": 3, "seeds": 2, "null": 2, "methods": ["geometry", "boosting"], "mine": False}
    whole = evaluate(brain_of(), **options)
    Spy.log.clear()
    monkeypatch.setattr(Spy, "most", 4)  # within the second seed
    with pytest.raises(KeyboardInterrupt):
        evaluate(brain_of(), folder=tmp_path, **options)
    kept = {path.name for path in (tmp_path / "rows").iterdir()}
    done = ("geometry_0_scores", "geometry_1_scores", "boosting_0_scores")
    assert {name for name in kept if name.endswith(".json")} == {f"{name}.json" for name in done}
    monkeypatch.setattr(Spy, "most", math.inf)
    Spy.log.clear()
    again = evaluate(brain_of(), folder=tmp_path, resume=True, **options)
    assert sum(kind == "fit" for kind, *_ in Spy.log) == 3  # the second seed alone
    pd.testing.assert_frame_equal(without_seconds(again.by_fold), without_seconds(whole.by_fold))
    for one, other in zip(again.nulls, whole.nulls, strict=True):
        assert one.as_dict() == other.as_dict()
    for name, values in whole.predictions.items():
        assert np.array_equal(again.predictions[name], values, equal_nan=True)
    Spy.log.clear()
    last = evaluate(brain_of(), folder=tmp_path, resume=True, **options)
    assert not Spy.log
    pd.testing.assert_frame_equal(last.by_fold, again.by_fold)
    with pytest.raises(ValueError, match="earlier evaluation"):  # what is done is not thrown away
        evaluate(brain_of(), folder=tmp_path, **options)


def test_other_arguments_are_not_resumed(tmp_path):
    options = {"folds": 3, "seeds": 1, "methods": [], "mine": True, "folder": tmp_path, **RIDGE}
    evaluate(brain_of(), **options)
    other = brain_of()
    other.expression[3, 2] += 0.01
    for regions, changed, message in (
        (brain_of(), {"folds": 4}, "folds was 3, is 4"),
        (brain_of(), {"split_by": "random"}, "split was 'bilateral', is 'random'"),
        (brain_of(), {"dim": 64}, "dim was 128, is 64"),
        (other, {}, r"data was \d+, is \d+"),
    ):
        with pytest.raises(ValueError, match=f"is of another evaluation and cannot be resumed: {message}"):
            evaluate(regions, **options | changed, resume=True)
    evaluate(brain_of(), **options | {"device": "auto"}, resume=True)  # where, not what


def test_methods_are_compared_on_regions():
    """The variant is best and is no baseline; ours beats the best of these."""
    noise = {OURS: 0.01, "ridge": 0.1, "variant": 0.001, "geometry": 0.3}
    found = made_up(noise, brain_of(37))
    comparison, table = found.comparison, found.table()
    assert list(table.index) == ["variant", OURS, "ridge", "geometry"]
    assert (comparison.baselines, comparison.best_baseline("pearson", "spatial")) == (["ridge", "geometry"], "ridge")
    for method in noise:
        rows = found.by_fold[found.by_fold["method"] == method]
        interval = comparison.interval("pearson", "spatial", method)
        assert interval.value == table.loc[method, "pearson"] == rows["pearson"].mean()  # to the bit
        assert (interval.units, interval.how) == (37, "bootstrap")
        assert interval.low < interval.value < interval.high
        assert table.loc[method, "spearman"] == rows["spearman"].mean()
    pairs = comparison.rows[(comparison.rows["method"] == OURS) & (comparison.rows["seed"] == 1)]
    names = found.regions.names
    assert [(names.index(a), names.index(b)) for a, b in pairs[["region_a", "region_b"]].to_numpy()] == [
        tuple(pair) for pair in found.tested(1).tolist()
    ]
    (gate,) = comparison.gates
    assert (gate.opponent, gate.verdict) == ("ridge", "holds")
    assert table.loc[OURS, "seconds"] == 1.5


def test_ours_that_is_a_baseline_ties_with_it():
    found = made_up({OURS: 0.1, "ridge": 0.1}, brain_of(37, directed=True))
    found.predictions["ridge"] = found.predictions[OURS] + 1e-3 * np.random.default_rng(3).normal(size=(2, 37, 37))
    assert found.comparison.gates[0].verdict == TIE
    assert len(found.comparison.rows) == 2 * sum(len(found.tested(seed)) for seed in (0, 1))


def test_numbers_are_plain_json():
    regions = brain_of(placed=False)
    found = evaluate(regions, split_by="random", folds=3, seeds=1, methods=["boosting", "geometry"], **RIDGE)
    numbers = json.loads(json.dumps(plain(found.numbers()), allow_nan=False))
    assert not numbers.keys() & found.comparison.numbers().keys()
    expected = {"regions": REGIONS, "genes": GENES, "folds": 3, "seeds": [0], "nulls": []}
    assert {name: numbers[name] for name in expected} == expected
    assert len(numbers["by_fold"]) == 9
    assert numbers["by_fold"][0]["pearson_short"] is None
    assert numbers["table"]["boosting"]["pearson"] == found.table().loc["boosting", "pearson"]


def test_what_needs_coordinates_stops_before_any_work():
    regions = brain_of(placed=False)
    options = {"split_by": "random", "folds": 3, "seeds": 1, "mine": False, "methods": ["boosting"]}
    found = evaluate(regions, **options)
    assert found.by_fold[list(PARTS)].isna().all(axis=None)
    Spy.log.clear()
    for more, message in (
        ({"variants": {"alone": {"method": "places"}}}, "alone needs coordinates, which are not known"),
        ({"variants": {"one": {"method": "seed", "cls": "spatial"}}}, "one needs coordinates, which are not known"),
        ({"split_by": "spatial"}, "coordinates are not known of these regions: spatial folds need them"),
        ({"null": 1}, "null needs coordinates of every region, which are not known"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(regions, **{**options, **more})
    assert not Spy.log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"methods": ["boosting", "none"]},
            "methods must be out of ridge, ridge-places, geometry-genes, boosting, geometry; got 'none'",
        ),
        ({"methods": []}, "methods, variants and mine leave nothing to run$"),
        ({"folds": 1}, "folds must be >= 2, got 1"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"null": -1}, "null must be >= 0, got -1"),
        ({"resume": True}, "resume needs the folder that has the rows"),
        ({"split_by": "none"}, "split_by must be out of bilateral, spatial, random; got 'none'"),
        ({"folds": 2}, "there are 23 regions: without one of 2 folds, fewer than 12 are left"),
        ({"mine": True, "dim": 0}, "dim must be >= 1, got 0"),
        ({"regions": brain_of().with_(connectivity=None)}, "connectivity is not known of these regions"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**{"regions": brain_of(), "methods": ["boosting"], "mine": False, "folds": 3, "seeds": 1} | options)
    assert not [kind for kind, *_ in Spy.log]
