"""ConnectivityPredictor: every method through its verbs, to disk and back, and what it says of bad arguments."""

import json
import tracemalloc
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from region_methods import brain_of, every_pair, pairs_once

from omniset.options import hints
from omniset.regions import ConnectivityPredictor, kernel_ridge, methods, set_attention
from omniset.regions.evaluate import PLACES
from omniset.regions.methods import Method
from omniset.regions.options import BASELINES, METHODS, PredictorOptions
from omniset.regions.predictor import METHODS as CLASSES
from omniset.regions.predictor import positions
from omniset.regions.scores import pearson
from omniset.tables.gene_vectors import GeneVectors
from omniset.trials.comparison import OURS

RESULTS = Path(__file__).parents[2] / "results" / "regions"
REGIONS, GENES = 17, 13
QUIET = {"progress": False, "device": "cpu"}
OF_SEED = {**QUIET, "method": "seed", "dim": 8, "depth": 1, "epochs": 1}
KINDS = {
    "blend": QUIET,
    "attention": {**QUIET, "method": "attention"},
    "ridge": {**QUIET, "method": "ridge"},
    "boosting": {**QUIET, "method": "boosting"},
    "seed": {**OF_SEED, "cls": "spatial"},
}


def complete(number=REGIONS, genes=GENES, **options):
    return brain_of(number, genes, unknown=(), **options)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    """Few trees, kernels to choose from, and steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "ITERATIONS", 5)
        patch.setattr(set_attention, "STEPS", 5)
        for name in ("RATES", "WIDTHS", "WEIGHTS", "PENALTIES"):
            patch.setattr(kernel_ridge, name, getattr(kernel_ridge, name)[:1])
        yield


@pytest.fixture(scope="module")
def models() -> dict[str, ConnectivityPredictor]:
    return {name: ConnectivityPredictor(**options).fit(complete()) for name, options in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def model(request, models) -> ConnectivityPredictor:
    return models[request.param]


# ---------------------------------------------------------------------- predictions


def test_pairs_by_names_positions_and_in_frames(model):
    pairs = pairs_once(REGIONS)[[2, 40, 71]]
    names = [(model.regions_.names[i], model.regions_.names[j]) for i, j in pairs]
    found = model.predict(pairs)
    assert found.shape == (3,)
    assert np.isfinite(found).all()
    for given in (names, np.array(names), pd.DataFrame(names, columns=["a", "b"]), pd.DataFrame(pairs), pairs.tolist()):
        assert np.array_equal(model.predict(given), found)
    assert np.array_equal(model.predict(pairs[:, ::-1]), found)  # without direction
    assert model.predict([]).shape == (0,)


def test_the_matrix_is_all_pairs(model):
    matrix = model.predict_matrix()
    assert list(matrix.index) == list(matrix.columns) == model.regions_.names
    values = matrix.to_numpy()
    assert np.isnan(values.diagonal()).all()
    pairs = pairs_once(REGIONS)
    assert np.array_equal(values[tuple(pairs.T)], model.predict(pairs))
    assert np.array_equal(values, values.T, equal_nan=True)


def test_other_regions_with_genes_in_another_order_and_absent_genes(model):
    other = complete(11, seed=3)
    pairs = pairs_once(11)
    found = model.predict(pairs, other)
    order = np.random.default_rng(0).permutation(GENES)
    shuffled = other.with_(genes=[other.genes[g] for g in order], expression=other.expression[:, order])
    assert np.array_equal(model.predict(pairs, shuffled), found)
    assert np.array_equal(model.predict_matrix(shuffled).to_numpy()[tuple(pairs.T)], found)
    kept = order[order != 4]
    without = other.with_(genes=[other.genes[g] for g in kept], expression=other.expression[:, kept])
    unmeasured = other.take(np.arange(11))
    unmeasured.expression[:, 4] = np.nan
    assert np.array_equal(model.predict(pairs, without), model.predict(pairs, unmeasured))
    few = other.with_(genes=["G1", "G5", "new"], expression=other.expression[:, [1, 5, 0]])
    with pytest.warns(UserWarning, match="85% of the model's 13 genes are not there, such as 'G0'"):
        assert np.isfinite(model.predict(pairs, few)).all()
    truth = other.connectivity[tuple(pairs.T)]
    assert model.score(shuffled) == pytest.approx(pearson(truth, found), rel=1e-12)
    none = other.with_(genes=[f"X{g}" for g in range(GENES)])
    with pytest.raises(ValueError, match="none of the model's genes, such as 'G0', is there; there are such as 'X0'"):
        model.predict(pairs, none)


def test_directed_connectivity():
    for name in ("attention", "ridge"):
        predictor = ConnectivityPredictor(**KINDS[name]).fit(complete(directed=True))
        matrix = predictor.predict_matrix().to_numpy()
        assert np.isfinite(matrix[~np.eye(REGIONS, dtype=bool)]).all()
        assert not np.allclose(matrix, matrix.T, equal_nan=True)
        pairs = every_pair(REGIONS)
        assert np.allclose(predictor.predict(pairs), matrix[tuple(pairs.T)], rtol=0, atol=1e-7)
        assert predictor.predict_matrix(complete(11, seed=1)).shape == (11, 11)  # without direction itself


def test_files_frames_and_regions_are_the_same(tmp_path):
    made = complete()
    index = pd.Index(made.names, name="region")
    frames = {
        "expression": pd.DataFrame(made.expression, index, made.genes),
        "coordinates": pd.DataFrame(made.coordinates, index, ["x", "y", "z"]).assign(hemisphere=made.hemisphere),
        "connectivity": pd.DataFrame(np.nan_to_num(made.connectivity, nan=1.0), index, made.names),
    }
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv")
    paths = {name: tmp_path / f"{name}.csv" for name in frames}
    expected = ConnectivityPredictor(**KINDS["ridge"]).fit(made).predict(pairs_once(REGIONS))
    for given in (frames, paths, {name: str(path) for name, path in paths.items()}):
        predictor = ConnectivityPredictor(**KINDS["ridge"]).fit(**given)
        assert predictor.regions_.names == made.names
        assert np.allclose(predictor.predict(pairs_once(REGIONS)), expected, rtol=0, atol=1e-9)
    others = {name: paths[name] for name in ("expression", "coordinates")}
    assert np.allclose(predictor.predict(pairs_once(REGIONS), **others), expected, rtol=0, atol=1e-9)
    assert predictor.score(**paths) == pytest.approx(
        pearson(made.connectivity[tuple(pairs_once(REGIONS).T)], expected), abs=1e-6
    )


# ---------------------------------------------------------------------- on disk


def test_saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model", {"note": 3})
    again = ConnectivityPredictor.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    assert again.weights_ == model.weights_
    assert again.seconds_ == model.seconds_
    assert again.regions_.names == model.regions_.names
    assert np.array_equal(again.predict(pairs_once(REGIONS)), model.predict(pairs_once(REGIONS)))
    other = complete(11, seed=3)
    assert np.array_equal(again.predict(pairs_once(11), other), model.predict(pairs_once(11), other))
    assert json.loads((tmp_path / "model" / "metrics.json").read_text())["note"] == 3
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors", ".parquet"}


def test_a_default_without_coordinates_is_weighed_saved_and_loaded(tmp_path):
    made = complete(placed=False)
    made.expression[2, 5] = np.nan
    made.connectivity[3, 8] = made.connectivity[8, 3] = np.nan
    predictor = ConnectivityPredictor(**QUIET).fit(made)
    assert all(weight >= 0 for weight in predictor.weights_.values())
    assert list(predictor.weights_) == ["attention", "ridge", "boosting"]
    predictor.save(tmp_path)
    again = ConnectivityPredictor.load(tmp_path)
    assert np.array_equal(again.predict(pairs_once(REGIONS)), predictor.predict(pairs_once(REGIONS)))
    assert again.regions_.coordinates is None
    assert again.method_.scores == predictor.method_.scores


# ---------------------------------------------------------------------- explanations


def test_nothing_is_fitted_when_a_model_is_read(models, tmp_path, monkeypatch):
    models["blend"].save(tmp_path)
    monkeypatch.setattr(Method, "fit", None)
    again = ConnectivityPredictor.load(tmp_path)
    assert np.array_equal(again.predict_matrix(), models["blend"].predict_matrix(), equal_nan=True)


def test_known_regions_are_explained_and_genes_of_the_seed(models):
    first, second = models["blend"].regions_.names[3], models["blend"].regions_.names[8]
    for name in ("blend", "attention"):
        found = models[name].explain(first, second, top=REGIONS)
        assert list(found.columns) == ["region", "known", "weight"]
        assert found.groupby("region", sort=False).size().to_dict() == {first: REGIONS, second: REGIONS}
        assert np.allclose(found.groupby("region")["weight"].sum(), 1, atol=1e-5)
        for region, rows in found.groupby("region"):
            assert rows["weight"].is_monotonic_decreasing
            assert rows["known"].iloc[0] == region  # it is known, and nearest to itself
        pd.testing.assert_frame_equal(
            models[name].explain(first, second, top=1), found.iloc[[0, REGIONS]].reset_index(drop=True)
        )
    found = models["seed"].explain(first, second, top=10**6)
    assert len(found) == (GENES + 1) * GENES
    assert np.allclose(found.groupby("gene_i")["weight"].sum(), 1, atol=1e-6)
    assert "CLS" in set(found["gene_i"])
    with pytest.raises(ValueError, match="explain is for methods with attention"):
        models["ridge"].explain(first, second)
    with pytest.raises(ValueError, match="top must be >= 1, got 0"):
        models["blend"].explain(first, second, top=0)
    with pytest.raises(ValueError, match="region 'nowhere' is not there"):
        models["blend"].explain("nowhere", second)


def test_importance_of_a_model(models, tmp_path):
    (tmp_path / "sets.gmt").write_text("some\tx\tG1\tG2\tG3\n")
    genes, sets = models["blend"].importance(nulls=19, gene_sets=tmp_path / "sets.gmt")
    assert sorted(genes["gene"]) == sorted(models["blend"].regions_.genes)
    assert list(genes.columns) == ["gene", "importance", "null", "p", "q"]
    assert sets["set"].tolist() == ["some"]
    assert genes["p"].between(1 / 20, 1).all()
    with pytest.raises(ValueError, match="importance is of methods that attend"):
        models["ridge"].importance()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "none"}, "method must be one of blend, places, .*, seed, got 'none'"),
        ({"dim": 0}, "dim must be >= 1, got 0"),
        ({"method": "seed", "dim": 6}, "dim must be divisible by the 4 heads, got 6"),
        ({"device": "none"}, "device"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ConnectivityPredictor(**QUIET | options).fit(complete())


def test_bad_pairs_and_calls(models):
    model = models["ridge"]
    name = model.regions_.names[0]
    for pairs, message in (
        ([(0, 1, 2)], r"pairs must have two columns, got shape \(1, 3\)"),
        ([0, 1], r"pairs must have two columns, got shape \(2,\)"),
        ([(0, 17)], r"pairs must be of positions from 0 to 16, got \[0, 17\]"),
        ([(-1, 1)], r"pairs must be of positions from 0 to 16, got \[-1, 1\]"),
        ([(name, "nowhere")], "pairs: region 'nowhere' is not there, regions are such as"),
        ([(3, 3)], "pairs must be of two regions, got 'region .*' with itself"),
        ([(name, name)], "pairs must be of two regions"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(pairs)
    with pytest.raises(ValueError, match="coordinates and options come with expression"):
        model.predict([(0, 1)], coordinates=pd.DataFrame())
    with pytest.raises(ValueError, match="coordinates, connectivity and options are part of Regions"):
        model.predict([(0, 1)], complete(), pd.DataFrame())
    unplaced = complete(placed=False)
    with pytest.raises(ValueError, match="coordinates are not known of these regions"):
        model.predict([(0, 1)], unplaced)
    for one in ("blend", "seed"):
        with pytest.raises(ValueError, match="coordinates are not known of these regions"):
            models[one].explain(*unplaced.names[:2], unplaced)
    for call in (lambda p: p.predict([(0, 1)]), lambda p: p.save("nowhere"), lambda p: p.importance()):
        with pytest.raises(ValueError, match="this ConnectivityPredictor is not fitted yet"):
            call(ConnectivityPredictor())
    with pytest.raises(ValueError, match="there are 11 regions to learn from, at least 12 are needed"):
        ConnectivityPredictor(**KINDS["ridge"]).fit(complete(11))
    with pytest.raises(ValueError, match="connectivity is not known of these regions"):
        ConnectivityPredictor(**KINDS["ridge"]).fit(complete().with_(connectivity=None))
    assert positions(np.zeros((0, 2)), ["a"]).shape == (0, 2)


def test_gene_vectors(tmp_path):
    made, rng = complete(), np.random.default_rng(0)
    vectors = GeneVectors([f"g{g}" for g in range(2, GENES + 5)], rng.normal(size=(GENES + 3, 7)).astype(np.float32))
    predictor = ConnectivityPredictor(**OF_SEED).fit(made, gene_vectors=vectors)
    assert predictor.regions_.genes == made.genes[2:]
    assert any("11 of 13 genes matched" in note for note in predictor.regions_.notes)
    tokens = predictor.method_.network.tokens
    assert np.array_equal(tokens.vectors.numpy(), vectors.vectors[:11])  # kept as they are
    predictor.save(tmp_path)
    again = ConnectivityPredictor.load(tmp_path)
    assert np.array_equal(again.predict(pairs_once(REGIONS), made), predictor.predict(pairs_once(REGIONS)))
    assert again.gene_vectors_.names == made.genes[2:]
    assert np.array_equal(again.gene_vectors_.vectors, vectors.vectors[:11])
    with pytest.raises(ValueError, match="gene_vectors are for method='seed'"):
        ConnectivityPredictor(**QUIET).fit(made, gene_vectors=vectors)
    few = GeneVectors(["G1", "G2"], np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="gene_vectors: 2 of 13 genes, such as 'G0', have a vector, at least 10"):
        ConnectivityPredictor(**OF_SEED).fit(made, gene_vectors=few)


# ---------------------------------------------------------------------- why each method is there


def test_every_method_has_its_reason_in_the_results():
    assert set(METHODS) == set(typing.get_args(hints(PredictorOptions)["method"]))
    assert set(BASELINES) == set(CLASSES) == set(METHODS) - {"blend", "places", "attention", "seed"}
    tables = {path.stem: json.loads(path.read_text())["table"] for path in RESULTS.glob("schaefer_*.json")}
    assert len(tables) == 6
    for name, table in tables.items():
        r = {method: row["pearson"] for method, row in table.items()}
        assert set(BASELINES) <= set(r) <= {OURS, PLACES, "attention alone", *BASELINES}
        assert max(r, key=r.get) == OURS
        assert max(BASELINES, key=r.get) == ("boosting" if "structural" in name else "ridge")
        assert min(r, key=r.get) == "geometry"
    table = tables["schaefer_100_bilateral"]
    assert abs(table["attention alone"]["pearson"] - table[OURS]["pearson"]) < 0.005
    assert table["attention alone"]["seconds"] < table[OURS]["seconds"] / 10


# ---------------------------------------------------------------------- memory


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("number", "genes", "most"), [(414, 282, 1e9), (300, 3000, 200e6)])
def test_a_ridge_takes_little_memory(number, genes, most):
    made = complete(number, genes)
    assert number * (number - 1) / 2 * genes * 4 > min(most, 90e6)  # what genes of pairs would take
    predictor = ConnectivityPredictor(**KINDS["ridge"])
    assert peak_of(lambda: predictor.fit(made).predict(pairs_once(number))) < most


def test_integers_are_no_positions_where_names_are_other_numbers():
    made = complete()
    model = ConnectivityPredictor(**KINDS["ridge"]).fit(made.with_(names=[str(i + 1) for i in range(REGIONS)]))
    pairs = pd.DataFrame({"i": [1, 4], "j": [2, 9]})
    with pytest.raises(ValueError, match=r"pairs must be of text where names .* such as '1': integers, got \[1, 2\]"):
        model.predict(pairs)
    expected = model.predict_matrix().to_numpy()[[0, 3], [1, 8]]
    assert np.allclose(model.predict(pairs.astype(str)), expected, rtol=0, atol=1e-9)
    same = ConnectivityPredictor(**KINDS["ridge"]).fit(made.with_(names=[str(i) for i in range(REGIONS)]))
    assert np.array_equal(same.predict(pairs), same.predict(pairs.astype(str)))
