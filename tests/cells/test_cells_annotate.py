"""Annotation: each formula against an independent one in float64, what is kept back, and what is unknown."""

import numpy as np
import pandas as pd
import pytest
import torch
from cell_files import SMALL, cells
from scipy.stats import rankdata
from sklearn.metrics import f1_score, roc_auc_score

from omniset.cells import CellAnnotator, CellEmbedder, read_cells
from omniset.cells import annotator as module
from omniset.cells.baselines import symphony
from omniset.cells.classifiers import METHODS, NEAR, OF_GENES, Classifiers, evenly
from omniset.cells.evaluate_annotation import BINS, calibration_error, evaluate_annotation, macro_f1, unknown_auroc
from omniset.cells.novelty import SHRINKAGE, Novelty
from omniset.trials.intervals import Draws
from omniset.trials.kept import Kept


@pytest.fixture(scope="module")
def classifiers():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 3], [29, 17, 3])  # type 2 is never seen
    values = rng.normal(size=(49, 11)).astype(np.float32) + 2 * np.eye(11, dtype=np.float32)[y]
    z = rng.normal(size=(49, 5)).astype(np.float32) + 2 * np.eye(5, dtype=np.float32)[y]
    return Classifiers.learned(values, z, y, 4, 0), values, z, y


def test_neighbours_weigh_reference_cells_by_nearness_and_types_alike(classifiers):
    learned, _values, z, y = classifiers
    place = ((z - z.mean(0)) / z.std(0)).astype(np.float64)
    new = place[:7] + 0.3
    width = 0.8
    kernel = np.exp(-((new[:, None] - place[None]) ** 2).sum(2) / (2 * width**2)) / np.bincount(y)[y]
    expected = kernel @ np.eye(4)[y]
    expected /= expected.sum(1, keepdims=True)
    given = torch.from_numpy(new * z.std(0) + z.mean(0)).float()
    np.testing.assert_allclose(learned.neighbours(given, width).numpy(), expected, atol=2e-5)
    nearest = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(nearest, np.inf)
    assert float(learned.width) == pytest.approx(np.median(nearest.min(1)), rel=1e-4)


def test_a_type_that_was_not_seen_is_never_called_and_rare_ones_are_found(classifiers):
    learned, values, z, y = classifiers
    said = learned.probabilities(values, z)
    assert said.shape == (len(METHODS), 49, 4)
    np.testing.assert_allclose(said.sum(2), 1, atol=1e-5)
    assert (said[:, :, 2] == 0).all()
    assert (said[:, y == 3].argmax(2) == 3).mean() > 0.9  # three cells of 49
    weights = np.array([0.3, 0.0, 0.0, 0.7])  # a method without weight is not asked
    asked = learned.probabilities(values, z, weights=weights)
    np.testing.assert_array_equal(asked, said * (weights > 0)[:, None, None])


def test_strangeness_is_minus_the_largest_logit_and_how_far_the_called_type_is(classifiers):
    learned, values, _z, y = classifiers
    calls = np.array([0, 1, 0, 3, 1])
    new = values[:5] * 1.5
    found = learned.strangeness(new, calls)
    logits = new @ learned.genes.weight.numpy().T + learned.genes.bias.numpy()
    np.testing.assert_allclose(found[:, 0], -logits.max(1), rtol=1e-5)
    scores, reference = learned.scores_of(new).astype(np.float64), learned.scores_of(values).astype(np.float64)
    for i, call in enumerate(calls):
        own = reference[y == call]
        far = np.sort(np.linalg.norm(own - scores[i], axis=1))[min(NEAR, len(own)) - 1]
        within = np.sort(np.linalg.norm(own[:, None] - own[None], axis=2), axis=1)[:, 1:]
        typical = np.median(within[:, min(NEAR, len(own) - 1) - 1])
        assert found[i, 1] == pytest.approx(np.log(far / typical), abs=1e-4)


def test_a_quota_takes_from_frequent_types_only():
    y = np.repeat([0, 1, 2, 3], [3, 50, 7, 40])
    rows = evenly(y, 50, 0)
    assert np.bincount(y[rows]).tolist() == [3, 20, 7, 20]
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(evenly(y, 100, 0), np.arange(100))


def test_strangeness_is_relative_to_cells_that_were_called_the_same():
    rng = np.random.default_rng(1)
    calls = rng.integers(0, 3, 997)
    known = rng.normal(size=(997, 2)) * (1 + calls)[:, None] + 5 * calls[:, None]
    batches = rng.integers(0, 4, 997)
    learned = Novelty.learned(known, calls, batches, 0.05)
    refused = learned.unknown(known, calls)  # in no batch more than the stated error, nor far fewer where it decides
    assert 0.04 < max(refused[batches == b].mean() for b in range(4)) <= 0.05
    assert not Novelty(known, calls).unknown(known * 100, calls).any()  # without a bound
    found = learned.strangeness(known, calls)
    total = np.zeros(len(known))
    for x in known.T:
        middle, spread = np.median(x), np.median(abs(x - np.median(x)))
        u = np.empty(len(x))
        for call in range(3):
            own = x[calls == call]
            w = len(own) / (len(own) + SHRINKAGE)
            m = w * np.median(own) + (1 - w) * middle
            s = w * np.median(abs(own - np.median(own))) + (1 - w) * spread
            u[calls == call] = (own - m) / s
        start = np.quantile(u, 0.9)
        beyond = -np.log(0.1) + (u - start) / (u[u > start] - start).mean()
        total += np.where(u > start, beyond, -np.log((len(u) - rankdata(u) + 2) / (len(u) + 1)))
    np.testing.assert_allclose(found, total, rtol=1e-9)
    share = learned.share(found)
    assert share[found.argmax()] == pytest.approx(2 / 998)
    assert (np.diff(share[np.argsort(found)]) <= 0).all()


def test_symphony_takes_off_the_shift_of_a_new_batch():
    rng = np.random.default_rng(2)
    kind = rng.integers(0, 2, 600)
    reference = rng.normal(size=(600, 5)) * 0.1 + 10 * np.eye(5)[kind]
    shares = np.eye(2)[kind]
    shift = np.array([0.5, -0.4, 0.3, 0, 0])
    moved = symphony(reference, shares, reference + shift)
    centres = np.stack([reference[kind == k].mean(0) for k in range(2)])
    for k in range(2):  # the ridge keeps 1 / (2 n_k) of it or so
        left = moved[kind == k].mean(0) - centres[k]
        assert np.linalg.norm(left) < 0.02 * np.linalg.norm(shift)
    assert np.allclose(symphony(reference, shares, reference), reference, atol=1e-6)


def of_cells(number=211):
    rng = np.random.default_rng(3)
    truth = rng.choice(["a", "b", "c"], number, p=[0.6, 0.3, 0.1])
    call = np.where(rng.random(number) < 0.7, truth, rng.choice(["a", "b", "d"], number))
    unknown = rng.random(number) < 0.3
    strange = np.round(rng.normal(size=number) + unknown, 1)  # with ties
    about = {"seed": 0, "batch": "x", "removed": "", "probability": rng.random(number), "right": truth == call}
    return pd.DataFrame({"truth": truth, "call": call, "unknown": unknown, "strangeness": strange}).assign(**about)


def test_scores_are_scikit_learns_in_every_draw():
    rows = of_cells()
    drawn = np.random.default_rng(4).integers(0, len(rows), (5, len(rows)))
    weights = np.stack([np.bincount(d, minlength=len(rows)) for d in drawn]).astype(float)
    draws = Draws(np.arange(len(rows)), weights)
    known = ~rows["unknown"].to_numpy()
    for found, aucs, weight in zip(macro_f1(rows, draws), unknown_auroc(rows, draws), weights, strict=True):
        part = rows[known]
        f1 = f1_score(part["truth"], part["call"], average="macro", sample_weight=weight[known], zero_division=0)
        assert found == pytest.approx(f1, abs=1e-12)
        assert aucs == pytest.approx(roc_auc_score(rows["unknown"], rows["strangeness"], sample_weight=weight))


@pytest.fixture(scope="module")
def labelled():
    data = cells(211, 41, 5)
    data.obs["kind"] = data.obs["kind"].map({0: "x", 1: "y", 2: "z"}).astype(object)
    return data


@pytest.fixture(scope="module")
def embedder(labelled):
    return CellEmbedder(**SMALL).fit(labelled, batch_key="batch")


def test_calibration_error_is_over_bins_of_stated_probabilities():
    rows = of_cells().assign(probability=np.repeat([0.05, 0.55, 1.0], [70, 70, 71]))
    known = ~rows["unknown"]
    bins = [(p, known & (rows["probability"] == p)) for p in (0.05, 0.55, 1.0)]
    gaps = [abs(rows["right"][here].sum() - p * here.sum()) for p, here in bins]
    found = calibration_error(rows, Draws(np.arange(len(rows)), np.ones((1, len(rows)))))
    assert BINS == 10
    assert found[0] == pytest.approx(sum(gaps) / known.sum())


def fit(data, embedder, batch_key="batch", **options):
    return CellAnnotator(progress=False, **options).fit(data, label="kind", batch_key=batch_key, embedder=embedder)


@pytest.fixture(scope="module")
def annotator(labelled, embedder):
    return fit(labelled, embedder)


def test_vectors_of_a_part_that_is_kept_back_have_not_seen_it(labelled, monkeypatch):
    """Each fit has the cells of the other batch alone, and the last one all."""
    fitted, real = [], CellEmbedder.fit_cells

    def noted(self, cells, codes, rows, **more):
        fitted.append(tuple(rows))
        return real(self, cells, codes, rows, **more)

    monkeypatch.setattr(CellEmbedder, "fit_cells", noted)
    annotator = fit(labelled, CellEmbedder(**SMALL))
    one, two = (tuple(np.flatnonzero(labelled.obs["batch"] == name)) for name in ("one", "two"))
    assert sorted(fitted) == sorted([one, two, tuple(range(211))])
    assert sum(annotator.weights_.values()) == pytest.approx(1)


def test_what_is_saved_says_the_same_and_nothing_else_is_taken_for_it(annotator, labelled, embedder, tmp_path):
    annotator.save(tmp_path / "saved")
    loaded = CellAnnotator.load(tmp_path / "saved", progress=False)
    assert loaded.kept_back_ == annotator.kept_back_
    found, again = (a.annotate(labelled) for a in (annotator, loaded))
    pd.testing.assert_frame_equal(found.table, again.table)
    assert np.array_equal(found.probabilities, again.probabilities)
    alone = annotator.annotate(labelled[7:8].copy())
    np.testing.assert_allclose(alone.probabilities, found.probabilities[7:8], atol=1e-5)
    other = CellEmbedder(**SMALL, seed=1).fit(labelled, batch_key="batch")
    other.write(tmp_path / "saved" / "embedder")
    with pytest.raises(ValueError, match="the annotator was fitted with"):
        CellAnnotator.load(tmp_path / "saved")


def overlapping(number):
    """Six neighbouring states of cells in one batch, told by few directions of many noisy genes."""
    rng = np.random.default_rng(7)
    state = rng.integers(0, 6, number)
    place = rng.normal(size=(6, 3))[state] + 0.4 * rng.normal(size=(number, 3))
    rates = np.exp(rng.normal(size=151) + place @ (0.35 * rng.normal(size=(3, 151))))
    data = cells(number, 151)
    data.X = rng.poisson(300 * rates / rates.sum(1, keepdims=True)).astype(np.float32)
    data.obs["kind"] = pd.Series([f"s{i}" for i in state], data.obs_names, dtype=object)
    return data


def test_in_one_batch_components_count_and_what_is_said_holds_for_new_cells():
    data = overlapping(1200)
    known, new = data[:500].copy(), data[500:].copy()
    truth = new.obs["kind"].to_numpy()
    annotator = fit(known, CellEmbedder(**SMALL), batch_key="none")
    assert annotator.weights_["embedding"] == annotator.weights_["neighbours"] == 0
    assert any("how well vectors carry over to a new batch cannot be told" in note for note in annotator.notes_)
    table = annotator.annotate(new).table
    y = np.array([annotator.types_.index(name) for name in truth])
    learned = annotator.network_.classifiers
    values = module.values_of(read_cells(new).on(annotator.embedder_.genes_), np.arange(len(new)), None)
    parts = learned.probabilities(values, np.zeros((len(new), SMALL["embedding_dim"]), np.float32))[:OF_GENES]
    right = (table["type"] == truth).mean()
    assert right > (parts[0].argmax(1) == y).mean() + 0.03  # genes alone are worse
    assert right > (parts.argmax(2) == y).mean(1).max() - 0.02
    assert annotator.kept_back_["right"] == pytest.approx(right, abs=0.05)
    assert annotator.kept_back_["simple"] == pytest.approx((parts[0].argmax(1) == y).mean(), abs=0.05)
    assert annotator.kept_back_["low"] < annotator.kept_back_["right"] < annotator.kept_back_["high"]
    assert table["probability"].mean() == pytest.approx(right, abs=0.04)


def test_cells_without_a_label_change_no_head(labelled, embedder):
    some = labelled.copy()
    some.obs.loc[some.obs_names[:40], "kind"] = [None] * 20 + ["unknown"] * 20
    with pytest.warns(UserWarning, match="'unknown' are taken for unlabelled"):
        annotator = fit(some, embedder)
    rest = fit(some[40:].copy(), embedder)
    left, right = (a.annotate(labelled).probabilities for a in (annotator, rest))
    np.testing.assert_allclose(left, right, atol=1e-4)


def test_genes_that_were_not_measured_are_as_in_the_mean_cell_or_filled_in(labelled, embedder):
    part = read_cells(labelled[:, :30].copy()).on(embedder.genes_)
    measured, completion = part.measured[0], embedder.network_.encoder.completion
    middle, rows = np.arange(len(embedder.genes_), dtype=np.float32), np.arange(211)
    plain, as_mean = (module.values_of(part, rows, given) for given in (None, middle))
    assert 0 < measured.sum() < len(measured)
    assert np.array_equal(as_mean, np.where(measured, plain, middle))
    counts = labelled.X.toarray().astype(np.float64)[:, [*map(list(labelled.var_names).index, embedder.genes_)]]
    library = labelled[:, :30].X.toarray().sum(1)
    expected = torch.from_numpy(np.where(measured, np.log1p(1e4 * counts / library[:, None]), 0)).float()
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)
    expected = completion(expected, torch.from_numpy(measured).expand(211, -1)).numpy()
    np.testing.assert_allclose(module.values_of(part, rows, middle, completion), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected, plain)


def test_a_cell_without_counts_is_unknown_and_said(labelled, embedder):
    annotator = fit(labelled, embedder, error=0)
    some = labelled[:20].copy()
    counts = some.X.toarray()
    counts[[3, 11]] = 0
    some.X = counts
    with pytest.warns(UserWarning, match=f"2 cells without counts .*, such as '{some.obs_names[3]}': nothing tells"):
        found = annotator.annotate(some)
    assert np.flatnonzero(found.empty).tolist() == [3, 11]
    assert np.flatnonzero(found.table["label"] == "unknown").tolist() == [3, 11]  # with error=0 no other cell is


def test_a_reference_that_teaches_nothing_is_refused(labelled, embedder):
    one = labelled.copy()
    one.obs["kind"] = "x"
    with pytest.raises(ValueError, match="label: the reference has 1 type in kind, 2 are needed"):
        fit(one, embedder)


def test_evaluation_leaves_out_batches_and_types(labelled, tmp_path):
    pytest.importorskip("harmonypy")
    seen = []
    arguments = {"batch_key": "batch", "label_key": "kind", "seeds": 1, "removed": 1}
    arguments["model"] = CellEmbedder(**SMALL | {"epochs": 1})
    methods = ["logistic", "balanced", "pca", "symphony"]
    found = evaluate_annotation(labelled, methods=methods, kept=Kept(tmp_path, False, seen.append), **arguments)
    rows = found.rows
    new = rows[rows["condition"] == "new batches"]
    assert new.groupby("method").size().to_dict() == dict.fromkeys(["omniset", *methods], 211)
    half = rows[rows["condition"] == "half labelled"]
    assert half.groupby("method")["cell"].nunique().to_dict() == dict.fromkeys(["omniset", *methods], 106)
    assert not half["unknown"].any()
    removed = rows[rows["condition"] == "types removed"]
    assert {*removed["method"]} == {"omniset", "logistic", "balanced", "pca"}
    for (_, name), part in removed.groupby(["batch", "removed"]):
        assert (part["unknown"] == (part["truth"] == name)).all()
        assert not (part["call"] == name).any()
    assert {gate.score for gate in found.comparison.gates} == {"f1", "right", "kept", "auroc"}
    again = evaluate_annotation(labelled, methods=methods, kept=Kept(tmp_path, True, seen.append), **arguments)
    assert len(seen) == len(set(seen))  # nothing was done twice
    pd.testing.assert_frame_equal(again.rows, rows)
