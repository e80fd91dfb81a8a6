"""Evaluation of regions: what no method may see, what is kept and resumed, and numbers by hand."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from region_methods import GENES, REGIONS, brain_of

from omniset.regions import kernel_ridge, methods, set_attention
from omniset.regions.atlas_coordinates import groups_of
from omniset.regions.evaluate import PARTS, PLACES, Evaluation, evaluate
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
        Spy.log.append(("fit", set(train.names), train.expression.copy(), list(train.names)))

    def _predict(self, regions, pairs):
        names = [regions.names[i] for i in range(len(regions))]
        Spy.log.append(("predict", set(self.train.names), {names[i] for i in pairs.ravel()}, regions))
        return self.mean + regions.expression[pairs[:, 0], 0].astype(float) * regions.expression[pairs[:, 1], 0]


@pytest.fixture(autouse=True)
def _spied(monkeypatch):
    """A spy in the place of boosting, and few choices of the ridge."""
    monkeypatch.setattr(Spy, "log", [])
    monkeypatch.setattr(Spy, "most", math.inf)
    monkeypatch.setitem(METHODS, "boosting", Spy)
    for name in ("RATES", "WIDTHS", "WEIGHTS", "PENALTIES"):
        monkeypatch.setattr(kernel_ridge, name, getattr(kernel_ridge, name)[:1])


def without_seconds(frame):
    return frame.drop(columns="seconds")


# ---------------------------------------------------------------------- what is seen


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("split_by", ["bilateral", "spatial", "random"])
def test_both_regions_of_every_test_pair_are_unseen(split_by, directed):
    regions = brain_of(directed=directed)
    found = evaluate(regions, split_by=split_by, folds=4, seeds=2, methods=["boosting"], mine=False)
    fits = [names for kind, names, *_ in Spy.log if kind == "fit"]
    asked = [(learned, named) for kind, learned, named, _ in Spy.log if kind == "predict"]
    assert len(fits) == len(asked) == 8
    for at, (learned, named) in enumerate(asked):
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
    assert math.isnan(one.twinned)
    assert one.by_fold["pearson_left"].notna().all()
    assert one.by_fold[["pearson_right", "pearson_between"]].isna().all().all()


def test_a_model_of_one_hemisphere_warns_of_pairs_between_two():
    whole = brain_of(40)
    left = whole.take([i for i, side in enumerate(whole.hemisphere) if side == "L"])
    predictor = ConnectivityPredictor(**RIDGE, progress=False).fit(left)
    assert np.isfinite(predictor.predict([[0, 1]], left)).all()
    with pytest.warns(UserWarning, match="learned from one hemisphere"):
        predictor.predict([[0, 1]], whole)


def test_rows_are_the_scores_of_the_predictions():
    regions = brain_of()
    found = evaluate(regions, folds=4, seeds=2, methods=["ridge"], mine=False, **{"seed": 2})
    parts = split("bilateral", regions, 4, 3)
    places, sides = regions.coordinates, np.array(regions.hemisphere)
    predictions, folds = found.predictions["ridge"][1], found.folds[1]
    for fold, test in enumerate(parts):
        assert (folds[test] == fold).all()
        pairs = [p for p in itertools.combinations(test, 2) if not np.isnan(regions.connectivity[p])]
        truth = np.array([regions.connectivity[p] for p in pairs])
        given = np.array([predictions[p] for p in pairs])
        direct = ConnectivityPredictor(**RIDGE, progress=False, seed=3).fit_rows(
            regions, np.setdiff1d(np.arange(REGIONS), test)
        )
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


@pytest.mark.parametrize("split_by", ["bilateral", "spatial", "random"])
def test_regions_are_held_back_within_as_the_split_divides(split_by, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Spy, "_fit", lambda self, train, seed: seen.append(self.held_out) or setattr(self, "train", train)
    )
    monkeypatch.setattr(Spy, "mean", 0.0, raising=False)
    evaluate(brain_of(), split_by=split_by, folds=3, seeds=1, methods=["boosting"], mine=False)
    assert seen == [split_by] * 3


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
    monkeypatch.setattr(methods, "ITERATIONS", 3)
    monkeypatch.setattr(set_attention, "STEPS", 2)
    regions = brain_of()
    found = evaluate(regions, folds=3, seeds=1, methods=[], device="cpu")
    assert found.methods == [OURS, PLACES]
    gap = found.comparison.difference("pearson", "bilateral", PLACES)
    assert f"{gap.value:+.3f} to Pearson's r of places alone" in found.genes_add()
    assert found.numbers()["genes_add"] == found.genes_add()
    other = evaluate(
        regions.with_(expression=np.random.default_rng(0).random((REGIONS, GENES)).astype(np.float32)),
        folds=3, seeds=1, methods=[], device="cpu",
    )  # fmt: skip
    assert np.array_equal(other.predictions[PLACES], found.predictions[PLACES], equal_nan=True)
    assert not np.array_equal(other.predictions[OURS], found.predictions[OURS], equal_nan=True)
    assert list(found.weights.columns)[:3] == ["seed", "fold", "method"]
    assert found.weights["method"].tolist() == [OURS] * 3 + [PLACES] * 3


# ---------------------------------------------------------------------- resumed


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
    assert again.predictions.keys() == whole.predictions.keys()
    for name, values in whole.predictions.items():
        assert np.array_equal(again.predictions[name], values, equal_nan=True)
    assert np.array_equal(again.folds, whole.folds)
    Spy.log.clear()
    last = evaluate(brain_of(), folder=tmp_path, resume=True, **options)
    assert not Spy.log
    pd.testing.assert_frame_equal(last.by_fold, again.by_fold)
    with pytest.raises(ValueError, match="earlier evaluation"):
        evaluate(brain_of(), folder=tmp_path, **options)  # what is done is not thrown away


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
        with pytest.raises(
            ValueError, match=rf"omniset_0_scores.json is of another evaluation and cannot be resumed: {message}"
        ):
            evaluate(regions, **options | changed, resume=True)
    evaluate(brain_of(), **options | {"device": "auto"}, resume=True)  # where, not what


# ---------------------------------------------------------------------- numbers by hand


def made_up(noise, regions, seeds=2, folds=2):
    """Predictions that are the truth and so much noise, by method; and the scores of each fold."""
    rng = np.random.default_rng(0)
    fold_of = np.stack([rng.permutation(np.arange(len(regions)) % folds) for _ in range(seeds)])
    within = fold_of[:, :, None] == fold_of[:, None]
    predictions, rows = {}, []
    for method, size in noise.items():
        wrong = size * rng.normal(size=within.shape)
        predictions[method] = np.where(within, regions.connectivity + wrong + wrong.transpose(0, 2, 1), np.nan)
    made = Evaluation(pd.DataFrame(), [], pd.DataFrame(), predictions, fold_of, regions, "spatial")
    for method, (seed, fold) in itertools.product(noise, itertools.product(range(seeds), range(folds))):
        pairs = made.tested(seed)
        i, j = pairs[fold_of[seed][pairs[:, 0]] == fold].T
        measured = scores(regions.connectivity[i, j], predictions[method][seed, i, j])
        rows.append(
            {"seed": seed, "fold": fold, "method": method, "seconds": 1.0 + fold, **dict.fromkeys(PARTS, math.nan)}
        )
        rows[-1] |= measured
    made.by_fold = pd.DataFrame(rows)
    return made


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
    expected = {"regions": REGIONS, "genes": GENES, "folds": 3, "seeds": [0], "nulls": [], "twinned": None}
    assert {name: numbers[name] for name in expected} == expected
    assert len(numbers["by_fold"]) == 9
    assert numbers["by_fold"][0]["pearson_short"] is None
    assert numbers["table"]["boosting"]["pearson"] == found.table().loc["boosting", "pearson"]


# ---------------------------------------------------------------------- what cannot be run


def test_what_needs_coordinates_stops_before_any_work():
    regions = brain_of(placed=False)
    options = {"split_by": "random", "folds": 3, "seeds": 1, "mine": False, "methods": ["boosting"]}
    found = evaluate(regions, **options)
    assert found.by_fold[list(PARTS)].isna().all(axis=None)
    Spy.log.clear()
    for more, message in (
        ({"variants": {"alone": {"method": "places"}}}, "alone needs coordinates, which are not known"),
        (
            {"variants": {"one": {"method": "seed", "cls": "spatial"}}},
            "one needs coordinates, which are not known",
        ),
        ({"split_by": "spatial"}, "coordinates are not known of these regions: spatial folds need them"),
        ({"null": 1}, "null needs coordinates of every region, which are not known"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(regions, **{**options, **more})
    assert not Spy.log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["boosting", "none"]}, "methods must be out of ridge, boosting, geometry; got 'none'"),
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


def test_groups_are_told_by_names():
    regions = brain_of()
    names = ["L_Thalamus", "R_caudate", "Brain-Stem", *regions.names[3:]]
    network = ["Visual"] * 22 + ["Subcortex"]
    found = groups_of(regions.with_(names=names, network=network))
    assert [i for i, group in enumerate(found) if group == "subcortex"] == [0, 1, 2, 22]
    assert set(groups_of(regions)) == {"cortex"}
