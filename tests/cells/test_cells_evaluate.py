"""Rows are what the metrics say of the methods' vectors; left-out cells teach nothing."""

import json
import math
import sys

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from cell_files import SEED, SMALL

from omniset.cells import baselines
from omniset.cells import evaluate as module
from omniset.cells.data import read_cells
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import TRANSFER, WHOLE, Evaluation, evaluate, thinned, thinning_robustness
from omniset.cells.evaluate_annotation import evaluate_annotation
from omniset.cells.metrics import integration, transfer
from omniset.tables.gene_vectors import GeneVectors

pytestmark = pytest.mark.usefixtures("text_as_objects")
MODEL = CellEmbedder(**SMALL)
KEYS = {"batch_key": "batch", "label_key": "type"}
CELLS, GENES = 89, 41


def simulated(cells=CELLS, batches=2, seed=0):
    """Three types in every batch; cells 3 and 17 without a type."""
    rng = np.random.default_rng(seed)
    kind, batch = np.arange(cells) % 3, rng.permutation(np.arange(cells) % batches)
    rate = np.exp(rng.normal(0, 1, (3, GENES)))[kind] * np.exp(rng.normal(0, 0.4, (batches, GENES)))[batch]
    counts = rng.poisson(rate * rng.lognormal(0, 0.4, (cells, 1)))
    types = [f"type {k}" for k in kind]
    types[3] = types[17] = None
    return counts, [f"batch {b}" for b in batch], types


def adata(counts, batch, kind):
    obs = pd.DataFrame({"batch": batch, "type": kind}, index=[f"cell{i}" for i in range(len(counts))])
    var = pd.DataFrame(index=[f"G{i}" for i in range(GENES)])
    return anndata.AnnData(sp.csr_matrix(counts.astype(np.float32)), obs=obs, var=var)


@pytest.fixture
def table():
    return adata(*simulated())


def projected(counts, seed, middle, dim=5):
    """What the model of `quick` gives."""
    return ((np.log1p(counts) - middle) @ np.random.default_rng(seed).normal(size=(GENES, dim))).astype(np.float32)


@pytest.fixture
def quick(monkeypatch):
    """A model of ours that is fitted at once; gives the fits: arguments, with gene vectors, batches and cells."""
    fits = []

    def fit(self, cells, codes, rows, *, gene_vectors=None):
        self.middle = np.log1p(cells.take(rows).toarray()).mean(0)
        fits.append((self.get_params() | {"gene_vectors": gene_vectors}, codes.copy(), rows.copy()))
        return self

    def embed(self, cells, rows=None):
        rows = np.arange(len(cells)) if rows is None else rows
        return projected(cells.take(rows).toarray(), self.seed, self.middle, self.embedding_dim)

    monkeypatch.setattr(CellEmbedder, "fit_cells", fit)
    monkeypatch.setattr(CellEmbedder, "embed_cells", embed)
    return fits


def scored(z, labels, batches, reference, seed):
    """Scores that tell vectors, references and seeds apart, and cost nothing."""
    values = np.linspace(0, 1, len(WHOLE)) * np.abs(z).mean() + 0.01 * seed + 0.001 * np.abs(reference).mean()
    return dict(zip(WHOLE, values.tolist(), strict=True))


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(module, "integration", scored)


PCA_OF_CELLS = baselines.BASELINES["pca"]


def shifted(counts, batches, seed=0):
    """In place of Harmony: the components with a shift."""
    return PCA_OF_CELLS(counts, batches, seed) + np.arange(len(batches))[:, None] % 2


def test_rows_are_the_metrics_of_each_methods_vectors(table, quick, monkeypatch):
    monkeypatch.setitem(baselines.BASELINES, "harmony", shifted)
    found = evaluate(table, **KEYS, methods=("pca", "harmony"), seeds=2, model=CellEmbedder(**SMALL, seed=3))
    counts, batch, kind = simulated()
    code = np.array([int(b[-1]) for b in batch])
    reference = PCA_OF_CELLS(sp.csr_array(counts), code, 0)
    middle = np.log1p(counts).mean(0)
    assert found.comparison.methods == ["omniset", "pca", "harmony"]
    assert found.transductive[["seed", "method"]].to_numpy().tolist() == [
        [seed, name] for seed in (3, 4) for name in found.comparison.methods
    ]
    rows = found.transductive.set_index(["seed", "method"])
    for seed in (3, 4):
        expected = {
            "omniset": projected(counts, seed, middle),
            "pca": reference,
            "harmony": reference + np.arange(CELLS)[:, None] % 2,
        }
        for name, z in expected.items():
            scores = integration(z.astype(np.float64), np.array(kind, dtype=object), np.array(batch), reference, seed)
            # Components are found by iteration.
            assert rows.loc[(seed, name), list(scores)].to_dict() == pytest.approx(scores, abs=1e-5), (seed, name)
            if seed == 3:
                assert found.embeddings[name] == pytest.approx(z, abs=1e-5)
    assert found.labels.tolist() == ["" if k is None else k for k in kind]
    assert found.batches.tolist() == batch
    assert not found.not_run
    numbers = json.loads(json.dumps(found.numbers(), allow_nan=False))
    assert numbers["seconds"]["omniset"]["embed_seconds"] >= 0
    assert numbers["seconds"]["pca"]["embed_seconds"] is None  # fitted and embedded in one
    assert numbers["seeds"] == [3, 4]


def test_left_out_batches(table, quick, cheap):
    found = evaluate(table, **KEYS, methods=(), seeds=2, model=MODEL)
    counts, batch, kind = simulated()
    kind = np.array(kind, dtype=object)
    rows = found.inductive.set_index(["seed", "batch", "method"])
    assert len(rows) == 2 * 2 * 2
    for (seed, left, name), row in rows.iterrows():
        out = np.array(batch) == left
        if name == "omniset":
            z = projected(counts, seed, np.log1p(counts[~out]).mean(0))
        else:
            one = np.zeros((~out).sum(), dtype=np.int64)
            z = baselines.PrincipalComponents().fit(sp.csr_array(counts[~out]), one).transform(sp.csr_array(counts))
        assert row[list(TRANSFER)].to_dict() == pytest.approx(transfer(z[~out], kind[~out], z[out], kind[out]))
    for arguments, codes, some in quick:
        assert arguments == MODEL.get_params() | {"seed": arguments["seed"], "gene_vectors": None}
        assert sorted(set(codes[some])) == list(range(codes.max() + 1))  # no gap tells of others
        assert (np.delete(codes, some) == -1).all()
    # Per seed one fit on all, one on each half; another on all for the checks.
    assert [len(some) == CELLS for _, _, some in quick] == [True, True, False, False, True, False, False]


def test_left_out_cells_teach_nothing(monkeypatch):
    """Whatever they hold: the same model, the same components, and the same vectors of the others."""
    counts, batch, kind = simulated()
    out = np.array([b == "batch 1" for b in batch])
    others = counts.copy()
    others[out] = np.random.default_rng(7).poisson(30, (out.sum(), GENES))
    for one in (counts, others):
        one[np.ix_(~out, [5, 11])] = 0  # genes that are in left-out cells only
    fitted, real, maps, pca = [], module.Task.fitted, [], module.Task.components
    monkeypatch.setattr(module.Task, "fitted", lambda *a: fitted.append(real(*a)) or fitted[-1])
    monkeypatch.setattr(module.Task, "components", lambda *a: maps.append(pca(*a)) or maps[-1])
    monkeypatch.setattr(module.Task, "left_out", lambda task, seed: np.array([1]))
    rows = []
    for one in (counts, others):
        task = module.Task.of(read_cells(adata(one, batch, kind)), "batch", "type", MODEL)
        rows += [module._inductive(task, name, 0).rows for name in ("omniset", "pca")]
        assert set(rows[-1]["batch"]) == {"batch 1"}
    assert fitted[0].identity() == fitted[1].identity()
    assert fitted[0].genes_ == fitted[1].genes_ == [f"G{i}" for i in range(GENES) if i not in (5, 11)]
    assert np.array_equal(*(one.transform(sp.csr_array(counts)) for one in maps))
    assert np.array_equal(maps[0].genes, maps[1].genes)
    assert not rows[1][list(TRANSFER)].equals(rows[3][list(TRANSFER)])  # though they are judged by other cells


def test_no_more_than_six_batches_are_left_out(cheap):
    counts, batch, kind = simulated(cells=97, batches=8)
    task = module.Task.of(read_cells(adata(counts, batch, kind)), "batch", "type")
    assert task.leavable().tolist() == list(range(8))
    drawn = [set(module._inductive(task, "pca", seed).rows["batch"]) for seed in (0, 0, 1)]
    assert len(drawn[0]) == len(drawn[2]) == 6
    assert drawn[0] == drawn[1] != drawn[2]


def test_batches_that_cannot_be_judged_are_not_left_out(quick, cheap):
    counts, batch, kind = simulated()
    said, options = [], {**KEYS, "methods": ("pca",), "seeds": 1, "model": MODEL}

    def leavable(**changed):
        table = adata(counts, changed.get("batch", batch), changed.get("kind", kind))
        return module.Task.of(read_cells(table), "batch", "type").leavable().tolist()

    assert leavable() == [0, 1]
    # A third batch of one type, and one that shares but one type, or has few others beside it.
    assert leavable(batch=["own" if k == "type 2" else b for b, k in zip(batch, kind, strict=True)]) == [0, 1]
    alone = [k if b == "batch 0" else "x" if k == "type 1" else k for b, k in zip(batch, kind, strict=True)]
    assert leavable(kind=[None if k == "type 2" else k for k in alone]) == []
    assert leavable(batch=["rest"] * 7 + ["large"] * (CELLS - 7)) == [1]  # named in sorted order

    found = evaluate(adata(counts, ["only"] * CELLS, kind), say=said.append, **options)
    assert found.inductive.empty
    assert found.comparison.conditions == [gate.condition for gate in found.comparison.gates] == ["all cells"]
    assert found.notes[-1] == said[0] == "no batch was left out of a fit: all cells are of one batch"
    assert [len(some) for _, _, some in quick] == [CELLS] * 2
    assert json.dumps(found.numbers(), allow_nan=False)
    apart = adata(counts, batch, [k and k + b for b, k in zip(batch, kind, strict=True)])
    assert "none shares at least 2 labels with the others" in evaluate(apart, **options).notes[-1]
    without = evaluate(adata(counts, batch, kind), inductive=False, **options)
    assert without.inductive.empty
    assert not [note for note in without.notes if "left out" in note]


@pytest.mark.usefixtures("cheap")
def test_resume_after_a_kill(table, quick, tmp_path, monkeypatch):
    options = {**KEYS, "methods": ("pca", "harmony"), "seeds": 2, "model": MODEL}
    kept = {"folder": tmp_path / "made", "resume": True}

    def dies(counts, batches, seed):
        raise KeyboardInterrupt

    monkeypatch.setitem(baselines.BASELINES, "harmony", dies)
    with pytest.raises(KeyboardInterrupt):
        evaluate(table, folder=kept["folder"], **options)
    assert len(quick) == 2  # ours, again for the checks
    monkeypatch.setitem(baselines.BASELINES, "harmony", shifted)
    quick.clear()
    said = []
    found = evaluate(table, **kept, say=said.append, **options)
    assert said[:2] == ["seed 0: harmony", "seed 0: omniset, one batch left out at a time"]
    assert len(quick) == 2 + 1 + 2  # left out, and the second seed
    whole = evaluate(table, **options)
    times = ["fit_seconds", "embed_seconds"]
    pd.testing.assert_frame_equal(found.transductive.drop(columns=times), whole.transductive.drop(columns=times))
    pd.testing.assert_frame_equal(found.inductive, whole.inductive)
    assert found.embeddings.keys() == whole.embeddings.keys()
    assert all(np.array_equal(found.embeddings[name], whole.embeddings[name]) for name in whole.embeddings)
    assert found.checks["thinning"] == whole.checks["thinning"]

    quick.clear()
    assert evaluate(table, **kept, **options).numbers() == found.numbers()
    (kept["folder"] / "rows" / "transductive_1_omniset.json").unlink()  # as if killed while it was written
    (kept["folder"] / "rows" / "transductive_0_omniset.npz").unlink()
    evaluate(table, **kept, **options)
    assert [a["seed"] for a, _, _ in quick] == [0, 1]


@pytest.mark.usefixtures("cheap")
def test_rows_of_other_arguments_or_data_are_not_taken(table, quick, tmp_path):
    options = {**KEYS, "methods": (), "seeds": 1, "inductive": False, "model": MODEL, "folder": tmp_path}
    evaluate(table, **options)
    quick.clear()
    counts, batch, kind = simulated()
    more = counts + (np.arange(GENES) == 7)
    for changed, given, message in (
        ({"model": CellEmbedder(**SMALL | {"dim": 16})}, table, "0_omniset.json is of another .*: dim was 8, is 16"),
        ({"label_key": "batch"}, table, ": label_key was 'type', is 'batch'. Start anew, not resuming"),
        ({}, adata(more, batch, kind), r": data was \d+, is \d+\."),
        ({}, adata(counts, batch, [*kind[:-1], "type 0"]), r": data was \d+, is \d+\."),
        ({}, adata(counts, [*batch[:-2], *2 * ["batch 2"]], kind), r": data was \d+, is \d+\."),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(given, resume=True, **options | changed)
    assert not quick


@pytest.mark.usefixtures("cheap")
def test_gene_vectors_of_a_model_are_given_to_every_fit(table, request, tmp_path):
    names = [f"G{i}" for i in range(GENES) if i != 2]
    one, other = (GeneVectors(names, np.array([1, x] + [4] * (GENES - 3), np.float32)[:, None]) for x in (2, 3))
    models = [CellEmbedder(**SEED).fit(table, batch_key="batch", gene_vectors=given) for given in (one, other)]
    quick = request.getfixturevalue("quick")
    options = {**KEYS, "folder": tmp_path / "kept", "resume": True, "methods": (), "seeds": 1}
    evaluate(table, model=models[0], **options)
    assert len(quick) == 2 + 2  # ours and its checks; again without either batch
    for arguments, _, _ in quick:
        given = arguments["gene_vectors"]
        assert np.array_equal(given.of(["G0", "G1", "G2"])[0], [[1], [2], [0]])
    quick.clear()
    evaluate(table, model=models[0], **options)
    assert not quick
    with pytest.raises(ValueError, match="gene_vectors was '[0-9a-f]{8}', is '[0-9a-f]{8}'"):
        evaluate(table, model=models[1], **options)
    with pytest.raises(ValueError, match="model has gene vectors, which no annotation reads"):
        evaluate_annotation(table, **KEYS, model=models[0])


@pytest.mark.usefixtures("cheap")
def test_a_baseline_that_is_not_installed_is_not_run(table, quick, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "harmonypy", None)
    said = []
    options = {**KEYS, "methods": ("harmony", "pca"), "seeds": 2, "inductive": False, "model": MODEL}
    options["folder"] = tmp_path
    found = evaluate(table, say=said.append, **options)
    assert found.comparison.methods == ["omniset", "pca"]
    assert list(found.not_run) == ["harmony"]
    assert sum("harmony was not run: Harmony needs harmonypy" in line for line in said) == 1
    assert "harmony was not run" in found.notes[-1]
    assert found.advice().startswith("Whether Harmony is enough cannot be told: Harmony needs harmonypy, which")
    monkeypatch.setitem(baselines.BASELINES, "harmony", shifted)  # installed since
    assert "harmony" in evaluate(table, resume=True, **options).comparison.methods
    monkeypatch.setattr(CellEmbedder, "fit_cells", lambda *a, **k: (_ for _ in ()).throw(ImportError("ours")))
    with pytest.raises(ImportError, match="ours"):  # what ours lacks is an error
        evaluate(table, **options | {"folder": tmp_path / "new"})


def made(totals, f1=None, batches=("a", "b")):
    """By method, the totals of each seed; by method, seed and batch, the F1."""
    rows = [
        dict.fromkeys(WHOLE, 0.5) | {"seed": s, "method": m, "total": total, "fit_seconds": 7.0 + s**3}
        for m, values in totals.items()
        for s, total in enumerate(values)
    ]
    left = [
        {"seed": s, "batch": b, "method": m, **dict.fromkeys(TRANSFER, value)}
        for m, seeds in (f1 or {}).items()
        for s, values in enumerate(seeds)
        for b, value in values.items()
    ]
    about = {}, {}, {}, np.full(len(batches), "type"), np.array(batches)
    return Evaluation(pd.DataFrame(rows).assign(embed_seconds=1.0), pd.DataFrame(left), *about)


def test_batches_are_the_units_and_seeds_are_none():
    f1 = {"omniset": [{"a": 0.25, "b": 0.75}, {"a": 0.75, "b": 0.75}], "pca": [{"a": 0.5, "b": 0.5}] * 2}
    comparison = made({"omniset": [0.5, 0.75], "pca": [0.25, 0.25], "scvi": [0.5, 0.25]}, f1).comparison
    whole = comparison.interval("total", "all cells", "omniset")
    new = comparison.interval("knn_f1", "new batches", "omniset")
    assert (whole.value, whole.units, new.value, new.units) == (0.625, 1, 0.625, 2)
    assert math.isnan(whole.low)
    assert new.low < 0.5 < 0.75 < new.high  # of two batches, whose means are .5 and .75
    gates = {gate.score: (gate.opponent, gate.interval.value, gate.verdict) for gate in comparison.gates}
    tie = ("pca", 0.125, "tie")
    assert gates == {"knn_f1": tie, "linear_f1": tie, "total": ("scvi", 0.25, "cannot be told")}
    # Of seconds the median: a baseline's first run also imports its package.
    assert made({"omniset": [0.5] * 3}).seconds().loc["omniset", "fit_seconds"] == 8


@pytest.mark.parametrize(
    ("totals", "batches", "words"),
    [
        ([0.75, 0.7], "ab", "Ours integrates these cells better than Harmony (total 0.750 against 0.700; Harmony took"),
        ([0.7, 0.7], "ab", "Harmony is enough for integrating these cells: ours is not better"),
        ([0.6, 0.7], "aa", "All cells are taken for one batch"),
        ([0.6], "ab", "Whether Harmony is enough cannot be told: it was not asked for."),
    ],
)
def test_advice(totals, batches, words):
    given = {name: [total] for name, total in zip(("omniset", "harmony"), totals, strict=False)}
    assert made(given, batches=list(batches)).advice().startswith(words)


def test_thinned_counts_are_binomial():
    counts = sp.csr_array(np.repeat(np.array([[0, 1, 7, 40]], dtype=np.float32), 4001, axis=0))
    before = counts.toarray()
    values = thinned(counts, 0.25, 0).toarray()
    assert np.array_equal(counts.toarray(), before)
    assert (values <= before).all()
    assert np.array_equal(values, np.rint(values))
    n = before[0].astype(np.float64)
    for moment, of, error in ((n * 0.25, values.mean(0), 0.2), (n * 0.25 * 0.75, values.var(0), 0.6)):
        assert of == pytest.approx(moment, abs=error)
    assert np.array_equal(thinned(counts, 0.25, 0).toarray(), values)
    assert not np.array_equal(thinned(counts, 0.25, 1).toarray(), values)
    assert np.array_equal(thinned(counts, 1.0, 0).toarray(), before)
    assert thinned(counts, 0.0, 0).nnz == 0


def test_thinning_robustness_by_hand():
    rng = np.random.default_rng(0)
    full, fewer = rng.normal(size=(31, 3)) + 5, rng.normal(size=(31, 3)) + 5
    cosine, found = thinning_robustness(full, fewer, 7)
    a, b = full - full.mean(0), fewer - full.mean(0)
    assert cosine == pytest.approx(np.mean([x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(a, b, strict=True)]))
    ranks = [sum(np.linalg.norm(full - y, axis=1) < np.linalg.norm(full[i] - y)) for i, y in enumerate(fewer)]
    assert found == pytest.approx(np.mean([rank < 7 for rank in ranks]))
    assert 0 < found < 1
    assert thinning_robustness(full, full) == (pytest.approx(1), 1)
    assert thinning_robustness(full, 2 * full.mean(0) - full)[0] == pytest.approx(-1)
    assert thinning_robustness(full, np.tile(full.mean(0), (31, 1)), 31) == (pytest.approx(0, abs=1e-9), 1)


@pytest.mark.usefixtures("cheap")
def test_what_is_no_count_is_not_thinned(quick):
    counts, batch, kind = simulated()
    values = np.where(counts > 0, np.random.default_rng(5).uniform(0.3, 3, counts.shape), 0)
    rest = {**KEYS, "input": "log1p", "methods": ("pca",), "seeds": 1, "inductive": False}
    found = evaluate(adata(values, batch, kind), **rest, model=MODEL)
    assert "thinning" not in found.checks
    assert found.checks["determinism"] == 0
    assert "counts are not known" in found.notes[-1]


def test_a_model_of_ours(table, tmp_path, monkeypatch):
    """Nothing replaced: the same vectors from two fits; thinned as the model itself has it."""
    path = tmp_path / "table.h5ad"
    table.write_h5ad(path)
    found = evaluate(path, **KEYS, methods=("pca",), seeds=1, inductive=False, model=MODEL)
    model = CellEmbedder(**SMALL).fit(table, batch_key="batch")
    z = model.transform(table)
    assert np.array_equal(found.embeddings["omniset"], z)
    checks = found.checks
    assert checks["determinism"] == 0
    assert checks["training_seconds"] == found.transductive["fit_seconds"][0] > 0
    assert checks["peak_memory_mb"] > 100
    assert [(one["method"], one["kept"]) for one in checks["thinning"]] == [
        (name, share) for share in (0.5, 0.25, 0.1) for name in ("omniset", "pca")
    ]
    counts = sp.csr_array(table.X)
    fewer = table.copy()
    fewer.X = sp.csr_matrix(thinned(counts, 0.25, 0))
    codes = pd.factorize(table.obs["batch"], sort=True)[0]
    components = baselines.PrincipalComponents().fit(counts, codes)
    for one, full, after in (
        (checks["thinning"][2], z, model.transform(fewer)),
        (checks["thinning"][3], components.transform(counts), components.transform(sp.csr_array(fewer.X))),
    ):
        expected = thinning_robustness(full.astype(np.float64), after.astype(np.float64))
        assert (one["cosine"], one["found"]) == pytest.approx(expected, abs=1e-5)


def test_differences_between_fits_are_seen(table, quick, cheap, monkeypatch):
    """A model that is another one at every fit."""
    embed = CellEmbedder.embed_cells

    def drifting(self, cells, rows=None):
        return embed(self, cells, rows) + np.float32(len(quick) / 4)

    monkeypatch.setattr(CellEmbedder, "embed_cells", drifting)
    with pytest.warns(UserWarning, match=r"two fits of seed 0 differ, by up to 0\.25 in a vector"):
        evaluate(table, **KEYS, methods=(), seeds=1, inductive=False, model=MODEL)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label_key": "cell"}, "label_key must be a column of obs, there is no 'cell'; there are: batch, type, none"),
        ({"label_key": "none"}, "label_key: all 89 cells are without none, there is nothing to judge by"),
        ({"methods": ("pca", "magic")}, "methods must be out of pca, harmony, scvi; got 'magic'"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"model": CellEmbedder(alignment=-1.0)}, "alignment must be >= 0, got -1"),
    ],
)
def test_bad_arguments(table, changed, message):
    table.obs["none"] = np.nan
    with pytest.raises(ValueError, match=message):
        evaluate(table, **KEYS | {"model": MODEL} | changed)
