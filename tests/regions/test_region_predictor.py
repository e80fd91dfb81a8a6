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
from omniset.regions import ConnectivityPredictor
from omniset.regions.data import LABELS
from omniset.regions.evaluate import PLACES
from omniset.regions.methods import Method
from omniset.regions.options import BASELINES, METHODS, PredictorOptions
from omniset.regions.predictor import METHODS as CLASSES
from omniset.regions.predictor import positions
from omniset.regions.scores import pearson
from omniset.tables.gene_vectors import GeneVectors
from omniset.trials.comparison import OURS

pytestmark = pytest.mark.usefixtures("quick")
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
    labels = ["cortex"] * number
    return brain_of(number, genes, unknown=(), **options).with_(network=labels, structure=labels)


@pytest.fixture(scope="module")
def models(quick) -> dict[str, ConnectivityPredictor]:
    return {name: ConnectivityPredictor(**options).fit(complete()) for name, options in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def model(request, models) -> ConnectivityPredictor:
    return models[request.param]


def test_pairs_by_names_positions_and_in_frames(models):
    model, pairs = models["ridge"], pairs_once(REGIONS)[[2, 40, 71]]
    names = [(model.regions_.names[i], model.regions_.names[j]) for i, j in pairs]
    found = model.predict(pairs)
    assert found.shape == (3,)
    assert np.isfinite(found).all()
    for given in (names, pd.DataFrame(names, columns=["a", "b"]), pairs.tolist()):
        assert np.array_equal(model.predict(given), found)
    assert np.array_equal(model.predict(pairs[:, ::-1]), found)  # without direction
    assert model.predict([]).shape == (0,)


def test_other_regions_with_genes_in_another_order_and_absent_genes(model):
    other, pairs = complete(11, seed=3), pairs_once(11)
    found = model.predict(pairs, other)
    order = np.random.default_rng(0).permutation(GENES)
    shuffled = other.with_(genes=[other.genes[g] for g in order], expression=other.expression[:, order])
    matrix = model.predict_matrix(shuffled)
    assert list(matrix.index) == list(matrix.columns) == other.names
    values = matrix.to_numpy()
    assert np.array_equal(values[tuple(pairs.T)], found)
    assert np.array_equal(values, values.T, equal_nan=True)
    assert np.isnan(values.diagonal()).all()
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
    predictor = ConnectivityPredictor(**KINDS["ridge"]).fit(complete(directed=True))
    matrix, pairs = predictor.predict_matrix().to_numpy(), every_pair(REGIONS)
    assert not np.allclose(matrix, matrix.T, equal_nan=True)
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
    for given in (frames, paths):
        predictor = ConnectivityPredictor(**KINDS["ridge"]).fit(**given)
        assert np.allclose(predictor.predict(pairs_once(REGIONS)), expected, rtol=0, atol=1e-9)
    others = {name: paths[name] for name in ("expression", "coordinates")}
    assert np.allclose(predictor.predict(pairs_once(REGIONS), **others), expected, rtol=0, atol=1e-9)
    truth = made.connectivity[tuple(pairs_once(REGIONS).T)]
    assert predictor.score(**paths) == pytest.approx(pearson(truth, expected), abs=1e-6)


def test_saved_and_loaded(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model", {"note": 3})
    monkeypatch.setattr(Method, "fit", None)  # nothing is fitted when a model is read
    again = ConnectivityPredictor.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    for name in ("history_", "weights_", "seconds_"):
        assert getattr(again, name) == getattr(model, name)
    for name in ("names", *LABELS):
        assert getattr(again.regions_, name) == getattr(model.regions_, name) is not None
    assert np.array_equal(again.predict(pairs_once(REGIONS)), model.predict(pairs_once(REGIONS)))
    other = complete(11, seed=3)
    assert np.array_equal(again.predict(pairs_once(11), other), model.predict(pairs_once(11), other))
    assert json.loads((tmp_path / "model" / "metrics.json").read_text())["note"] == 3
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors", ".parquet", ".md"}


def test_a_default_without_coordinates_is_weighed_saved_and_loaded(tmp_path):
    made = complete(placed=False)
    made.expression[2, 5] = np.nan
    made.connectivity[3, 8] = made.connectivity[8, 3] = np.nan
    predictor = ConnectivityPredictor(**QUIET).fit(made)
    assert {kind: list(of) for kind, of in predictor.weights_.items()} == {"far": ["attention", "ridge", "boosting"]}
    predictor.save(tmp_path)
    again = ConnectivityPredictor.load(tmp_path)
    assert np.array_equal(again.predict(pairs_once(REGIONS)), predictor.predict(pairs_once(REGIONS)))
    assert again.regions_.coordinates is None
    assert again.method_.scores == predictor.method_.scores


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
        first_rows = found.iloc[[0, REGIONS]].reset_index(drop=True)
        pd.testing.assert_frame_equal(models[name].explain(first, second, top=1), first_rows)
    found = models["seed"].explain(first, second, top=10**6)
    assert len(found) == (GENES + 1) * GENES
    assert np.allclose(found.groupby("gene_i")["weight"].sum(), 1, atol=1e-6)
    assert "CLS" in set(found["gene_i"])
    with pytest.raises(ValueError, match="explain is for methods with attention"):
        models["ridge"].explain(first, second)
    with pytest.raises(ValueError, match="importance is of methods that attend"):
        models["ridge"].importance()
    with pytest.raises(ValueError, match="top must be >= 1, got 0"):
        models["blend"].explain(first, second, top=0)
    with pytest.raises(ValueError, match="region 'nowhere' is not there"):
        models["blend"].explain("nowhere", second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "none"}, "method must be one of blend, places, .*, seed, got 'none'"),
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
        ([(0, 17)], r"pairs must be of positions from 0 to 16, got \[0, 17\]"),
        ([(-1, 1)], r"pairs must be of positions from 0"),
        ([(name, "nowhere")], "pairs: region 'nowhere' is not there, regions are such as"),
        ([(name, name)], "pairs must be of two regions, got 'region .*' with itself"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(pairs)
    with pytest.raises(ValueError, match="coordinates and options come with expression"):
        model.predict([(0, 1)], coordinates=pd.DataFrame())
    with pytest.raises(ValueError, match="coordinates, connectivity and options are part of Regions"):
        model.predict([(0, 1)], complete(), pd.DataFrame())
    unplaced = complete(placed=False)
    for one in ("blend", "seed"):
        with pytest.raises(ValueError, match="coordinates are not known of these regions"):
            models[one].explain(*unplaced.names[:2], unplaced)
    for call in (ConnectivityPredictor().importance, ConnectivityPredictor().predict_matrix):
        with pytest.raises(ValueError, match="this ConnectivityPredictor is not fitted yet"):
            call()
    with pytest.raises(ValueError, match="there are 11 regions to learn from, at least 12 are needed"):
        ConnectivityPredictor(**KINDS["ridge"]).fit(complete(11))
    assert positions(np.zeros((0, 2)), ["a"]).shape == (0, 2)


def test_gene_vectors(tmp_path):
    made, rng = complete(), np.random.default_rng(0)
    vectors = GeneVectors([f"g{g}" for g in range(2, GENES + 5)], rng.normal(size=(GENES + 3, 7)).astype(np.float32))
    predictor = ConnectivityPredictor(**OF_SEED).fit(made, gene_vectors=vectors)
    assert predictor.regions_.genes == made.genes[2:]
    assert any("11 of 13 genes matched" in note for note in predictor.regions_.notes)
    predictor.save(tmp_path)
    again = ConnectivityPredictor.load(tmp_path)
    assert np.array_equal(again.predict(pairs_once(REGIONS), made), predictor.predict(pairs_once(REGIONS)))
    assert again.gene_vectors_.names == made.genes[2:]
    assert np.array_equal(again.gene_vectors_.vectors, vectors.vectors[:11])  # kept as they are
    with pytest.raises(ValueError, match="gene_vectors are for method='seed'"):
        ConnectivityPredictor(**QUIET).fit(made, gene_vectors=vectors)
    few = GeneVectors(["G1", "G2"], np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="gene_vectors: 2 of 13 genes, such as 'G0', have a vector, at least 10"):
        ConnectivityPredictor(**OF_SEED).fit(made, gene_vectors=few)


def test_every_method_has_its_reason_in_the_results():
    assert set(METHODS) == set(typing.get_args(hints(PredictorOptions)["method"]))
    assert set(BASELINES) == set(CLASSES) == set(METHODS) - {"blend", "places", "attention", "seed"}
    tables = {path.stem: json.loads(path.read_text())["table"] for path in RESULTS.glob("schaefer_*.json")}
    assert len(tables) == 6
    for name, table in tables.items():
        r = {method: row["pearson"] for method, row in table.items()}
        assert {*BASELINES} <= set(r) <= {OURS, PLACES, "attention alone", *BASELINES}
        assert max(r, key=r.get) == OURS
        strongest = "geometry-genes" if name == "schaefer_100_bilateral" else "ridge"
        assert max(BASELINES, key=r.get) == ("boosting" if "structural" in name else strongest)
        assert min(r, key=r.get) == "geometry"


def test_a_ridge_takes_little_memory():
    number, genes, most = 307, 3000, 200e6  # regions: more than choices are made on
    made, pairs = complete(number, genes), pairs_once(number)
    assert len(pairs) * genes * 4 > most  # what genes of pairs would take
    tracemalloc.start()
    try:
        ConnectivityPredictor(**KINDS["ridge"]).fit(made).predict(pairs)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_integers_are_no_positions_where_names_are_other_numbers():
    made = complete()
    model = ConnectivityPredictor(**KINDS["ridge"]).fit(made.with_(names=[str(i + 1) for i in range(REGIONS)]))
    pairs = pd.DataFrame({"i": [1, 4], "j": [2, 9]})
    with pytest.raises(ValueError, match=r"pairs must be of text where names .* such as '1': integers, got \[1, 2\]"):
        model.predict(pairs)
    expected = model.predict_matrix().to_numpy()[[0, 3], [1, 8]]
    assert np.allclose(model.predict(pairs.astype(str)), expected, rtol=0, atol=1e-9)
    assert positions(pairs, [str(i) for i in range(REGIONS)]).tolist() == pairs.to_numpy().tolist()
