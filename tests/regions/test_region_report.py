"""Reports on brain regions: what they say, what is drawn from which numbers, and every part missing in turn."""

import json
import sys
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.stats import pearsonr

from omniset.regions import evaluate, figures, report
from omniset.regions.data import Regions
from omniset.regions.evaluate import PARTS, PLACES, Evaluation, within_folds
from omniset.regions.null_models import WHAT, NullResult
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.scores import scores
from omniset.report import render, write
from omniset.report.blocks import value_of
from omniset.report.frame import Run
from omniset.report.page import svg
from omniset.trials.comparison import OURS

REGIONS, GENES, FOLDS, SPINS = 43, 13, 3, 7
WARNING = "A <warning>."


@pytest.fixture(autouse=True)
def without_nilearn(monkeypatch):
    """It takes longer to import than all tests to run."""
    monkeypatch.setitem(sys.modules, "nilearn", None)


def regions(number=REGIONS, **changed):
    rng = np.random.default_rng(0)
    side = np.where(np.arange(number) % 2, "R", "L")
    places = rng.normal(0, 30, (number, 3))
    places[:, 0] = np.abs(places[:, 0]) * np.where(side == "L", -1, 1)
    connectivity = rng.normal(0.2, 0.3, (number, number))
    connectivity += connectivity.T
    np.fill_diagonal(connectivity, np.nan)
    made = {
        "names": [f"region{i}" for i in range(number)],
        "genes": [f"GENE{i}" for i in range(GENES)],
        "expression": rng.uniform(size=(number, GENES)).astype(np.float32),
        "coordinates": places,
        "hemisphere": side.tolist(),
        "network": [("Vis", "<b>Default</b>", "subcortex")[i % 3] for i in range(number)],
        "connectivity": connectivity,
        "notes": ["What was decided."],
    }
    return Regions(**(made | changed))


def evaluation(own=None, mine=0.1, **changed):
    """Ours with so much noise, two baselines and a variant with more; levels differ between folds."""
    own = own or regions()
    rng = np.random.default_rng(1)
    folds = np.stack([rng.permutation(np.arange(len(own)) % FOLDS) for _ in range(2)])
    within = folds[:, :, None] == folds[:, None]
    predictions = {}
    for method, size in ((OURS, mine), ("geometry", 0.9), ("ridge", 0.3), ("<i>small</i>", 0.5)):
        noise = size * rng.normal(size=within.shape)
        wrong = noise if own.directed else noise + noise.transpose(0, 2, 1)
        predictions[method] = np.where(within, 0.5 * own.connectivity + wrong + folds[:, None], np.nan)
    found = Evaluation(pd.DataFrame(), [], pd.DataFrame(), predictions, folds, own, "spatial")
    rows = []
    for method in predictions:
        for seed in (0, 1):
            for fold in range(FOLDS):
                i, j = np.array([pair for pair in found.tested(seed) if folds[seed, pair[0]] == fold]).T
                about = {"seed": seed, "fold": fold, "method": method, "seconds": 1.5, **dict.fromkeys(PARTS, 0.25)}
                rows.append(about | scores(own.connectivity[i, j], predictions[method][seed, i, j]))
    rng = np.random.default_rng(2)
    nulls = [
        NullResult(what, kind, 0.4, 0.3 + 0.1 * rng.random(SPINS)) for kind in ("spin", "variogram") for what in WHAT
    ]
    weights = [
        {"seed": seed, "fold": fold, "method": OURS, "ridge": 0.5, "boosting": 0.125, "attention": 0.0}
        for seed in (0, 1)
        for fold in range(FOLDS)
    ]
    made = {
        "by_fold": pd.DataFrame(rows),
        "nulls": nulls,
        "weights": pd.DataFrame(weights),
    }
    return replace(found, **(made | changed))


def about(found, warnings=()):
    return Run("regions", "evaluation", "A title", "omniset regions evaluate a&b", {"seed": 0}, warnings, found)


def page_of(found, warnings=()):
    """The page, its numbers, and what it says; figures are not rendered, which takes long."""
    page, numbers = report.of_evaluation(about(found.notes, warnings), found)
    return page, numbers, said_in(page)


def said_in(page):
    found = []
    for part in page.sections:
        found.append(part.text)
        for block in part.blocks:
            for name in ("text", "caption", "alt", "rows", "items"):
                found.append(str(getattr(block, name, "")))
    return "\n".join(found)


@pytest.fixture(scope="module")
def whole():
    """Page, numbers and text of one evaluation, for tests that only look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nilearn", None)
        return page_of(evaluation(), [WARNING])


def section(page, title):
    return next(part for part in page.sections if part.title == title)


def plots(part):
    return [block for block in part.blocks if isinstance(block, report.Plot)]


# ---------------------------------------------------------------------- the verdict


def test_the_report_on_an_evaluation(whole, tmp_path):
    page, numbers, said = whole
    html = write(tmp_path, page, numbers).read_text(encoding="utf-8")
    verdict = evaluation().comparison.verdict()
    assert verdict.startswith("Ours beats ridge, the best baseline")
    for word in (verdict, "both regions of a test pair are new to it", "folds of 2 seeds", figures.NEEDS):
        assert word in said
    for word in ("A &lt;warning&gt;.", "What was decided."):
        assert word in html
    assert "<i>small" not in html
    kept = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (kept["system"], kept["kind"], kept["warnings"]) == ("regions", "evaluation", [WARNING])
    assert kept["notes"] == ["What was decided."]
    assert kept["evaluation"]["gates"][0]["verdict"] == "holds"
    assert kept["table"]["ridge"]["pearson"] == evaluation().table().loc["ridge", "pearson"]


def test_without_ours_or_without_baselines_there_is_no_verdict():
    full = evaluation()
    for left, why in (((OURS,), "ours was not run"), (("ridge", "geometry"), "no baseline was run")):
        some = replace(
            full,
            by_fold=full.by_fold[~full.by_fold["method"].isin(left)],
            predictions={name: m for name, m in full.predictions.items() if name not in left},
        )
        _, numbers, said = page_of(some)
        assert f"Nothing is said of ours beside baselines: {why}." in said
        assert numbers["shown"] == ("ridge" if OURS in left else OURS)  # the best that there is


# ---------------------------------------------------------------------- numbers of pairs


def test_r_within_folds_is_that_of_each_fold_by_its_pairs():
    rng = np.random.default_rng(0)
    folds = np.repeat([0, 1, 2], [17, 5, 2])
    truth = rng.normal(size=24)
    predicted = truth + rng.normal(size=24) + 100.0 * folds
    parts = [(pearsonr(truth[folds == f], predicted[folds == f]).statistic, (folds == f).sum()) for f in (0, 1)]
    expected = sum(r * n for r, n in parts) / 22  # of two pairs there is no correlation
    order = rng.permutation(24)
    assert within_folds(truth, predicted, folds) == pytest.approx(expected, rel=1e-12)
    assert within_folds(truth[order], predicted[order], folds[order]) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(within_folds(truth[:0], predicted[:0], folds[:0]))


def test_bins_of_distance(whole):
    found, numbers = evaluation(), whole[1]["by_distance"]
    pairs = found.tested()
    distance = np.array([np.linalg.norm(np.subtract(*found.regions.coordinates[[i, j]])) for i, j in pairs])
    ranked = np.argsort(distance)
    for method in (OURS, "ridge"):
        rows = [row for row in numbers if row["method"] == method]
        assert len(rows) == evaluate.BINS
        assert sum(row["pairs"] for row in rows) == len(pairs)
        assert max(row["pairs"] for row in rows) - min(row["pairs"] for row in rows) <= 1
        start = 0
        for row in rows:
            own = ranked[start : start + row["pairs"]]
            start += row["pairs"]
            assert row["mean"] == pytest.approx(distance[own].mean(), rel=1e-12)
            assert (row["low"], row["high"]) == pytest.approx((distance[own].min(), distance[own].max()), rel=1e-15)
            i, j = pairs[own].T
            truth, predicted = found.regions.connectivity[i, j], found.predictions[method][0, i, j]
            expected = within_folds(truth, predicted, found.folds[0, i])
            assert row["pearson"] == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------- matrices


def test_matrices_of_many_regions_are_images_and_small():
    found = evaluation(regions(414))
    drawn = plots(report._matrices(found, OURS))[0]
    page = svg(drawn, "p")
    assert page.count("data:image/png;base64,") == 2  # and the bar of colours
    assert len(page) < 6e5  # the largest of five; a page has 3 MB


# ---------------------------------------------------------------------- null, weights


def test_nulls_are_beside_what_was_observed(whole):
    page, *_ = whole
    part = section(page, "Null model")
    table = next(block for block in part.blocks if isinstance(block, report.Table))
    rows = [[value_of(cell) for cell in row] for row in table.rows]
    assert [row[:2] for row in rows] == [[what, kind] for kind in ("spin", "variogram") for what in WHAT]
    first = evaluation().nulls[0]
    expected = [0.4, first.nulls.mean(), first.nulls.max(), 0.4 - first.nulls.mean()]
    np.testing.assert_allclose(rows[0][2:6], expected, rtol=1e-12)
    assert rows[0][7] == 1 / (1 + SPINS)
    line = plots(part)[0].figure.axes[0].lines[0]
    assert line.get_xdata()[0] == pytest.approx(0.4)
    bars = plots(part)[0].figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == SPINS


def test_an_evaluation_may_lack_its_parts():
    full = evaluation()
    bare = regions(coordinates=None, hemisphere=None, network=None, notes=[])
    some = replace(full, regions=bare, nulls=[], weights=pd.DataFrame([]), split="random")
    page, numbers, said = page_of(some)
    for word in ("No null model", "Places are not known", "drawn at random"):
        assert word in said
    assert numbers["by_distance"] == []
    assert len(plots(section(page, "Matrices"))) == 3


# ---------------------------------------------------------------------- a fitted model


@pytest.fixture(scope="module")
def predictor():
    return ConnectivityPredictor(method="ridge", device="cpu", progress=False).fit_rows(regions(), np.arange(REGIONS))


def importance():
    rng = np.random.default_rng(0)
    values = {"importance": np.linspace(1e-4, -1e-5, GENES), "null": 1e-6, "p": 0.01, "q": np.linspace(0.01, 1, GENES)}
    genes = pd.DataFrame({"gene": [f"GENE{i}" for i in range(GENES)], **values})
    sets = pd.DataFrame(
        {"set": ["<i>A</i>"], "genes": [5], "importance": rng.random(1), "null": 0.0, "p": 0.5, "q": 0.5}
    )
    return genes, sets


def fit_page(predictor, genes, warnings=()):
    page, numbers = report.of_fit(about(predictor.notes_, warnings), predictor, genes)
    return page, numbers, said_in(page)


def test_the_report_on_a_model(predictor):
    page, numbers, said = fit_page(predictor, importance(), [WARNING])
    assert "A &lt;warning&gt;." in render(page)
    own = regions()
    i, j = np.triu_indices(REGIONS, 1)
    predicted = predictor.predict(np.stack([i, j], 1))
    r = pearsonr(own.connectivity[i, j], predicted).statistic
    assert numbers["pearson_of_training_pairs"] == pytest.approx(r, rel=1e-9)
    drawn = plots(section(page, "Pairs learned from"))[0].figure.axes[0].collections[0]
    expected = np.stack([own.connectivity[i, j], predicted], 1)
    np.testing.assert_allclose(
        drawn.get_offsets()[np.lexsort(drawn.get_offsets().T)], expected[np.lexsort(expected.T)], rtol=1e-6
    )
    for word in (
        "A <warning>.",
        "What was decided.",
        "How well it does on regions not seen",
        "without parts to weigh",
        "Nothing was trained by epochs.",
        "Importance is how far Pearson's r of regions not seen falls",
        "1 of 13 have q < .05",
        "<i>A</i>",
        "903",
    ):
        assert word in said


def test_what_genes_add_is_said_first():
    full = evaluation()
    own = full.predictions[OURS] + 0.3 * np.random.default_rng(0).normal(size=full.predictions[OURS].shape)
    rows = full.by_fold[full.by_fold["method"] == OURS].assign(method=PLACES)
    found = replace(full, predictions={**full.predictions, PLACES: own}, by_fold=pd.concat([full.by_fold, rows]))
    said = page_of(found)[2]
    assert found.genes_add().startswith("Genes add +0.")
    assert found.genes_add() in said
    assert f"{found.twinned:.0%} of the test pairs" in said


# ---------------------------------------------------------------------- an explanation


def pairs_of_genes():
    return pd.DataFrame(
        {"gene_i": ["A", "B", "A", "<i>C</i>"], "gene_j": ["X", "X", "Y", "Z"], "weight": [0.4, 0.35, 0.1, 0.2]}
    )


def test_the_report_on_known_regions_that_are_read():
    looked = pd.DataFrame({"region": ["one", "one", "two"], "known": ["A<b>", "B", "A<b>"], "weight": [0.5, 0.2, 0.9]})
    page, numbers = report.of_explanation(about([]), looked, None, "one", "two")
    tables = [block.rows for block in section(page, "Read from").blocks if isinstance(block, report.Table)]
    assert tables == [[["A<b>", 0.5], ["B", 0.2]], [["A<b>", 0.9]]]
    assert numbers["pairs"] == looked.to_dict("records")
    assert "was not measured" in said_in(page)


def test_the_report_on_an_explanation():
    page, numbers = report.of_explanation(about([], ["Hm."]), pairs_of_genes(), importance(), "one<b>", "two")
    html = render(page)
    for word in ("where the network looked", "Hm.", "one&lt;b&gt;", "&lt;i&gt;C"):
        assert word in html
    assert numbers["pairs"] == pairs_of_genes().to_dict("records")
    table = next(b for b in section(page, "Pairs of genes").blocks if isinstance(b, report.Table))
    assert [row[2] for row in table.rows] == [0.4, 0.35, 0.2, 0.1]
    empty, _ = report.of_explanation(about([]), pairs_of_genes()[:0], None, "one", "two")
    assert not section(empty, "Pairs of genes").blocks


# ---------------------------------------------------------------------- glass brains


@pytest.fixture
def nilearn(monkeypatch):
    """A stub: keeps what it is given, and draws a small image."""
    calls = []

    def plot_connectome(matrix, places, *, output_file, **options):
        calls.append((matrix, places, options))
        figure = Figure(figsize=(1, 0.5))
        figure.savefig(output_file)

    stub = types.ModuleType("nilearn")
    stub.plotting = types.SimpleNamespace(plot_connectome=plot_connectome)
    monkeypatch.setitem(sys.modules, "nilearn", stub)
    return calls


def test_without_nilearn_the_error_says_what_to_install():
    with pytest.raises(ImportError, match=r'needs nilearn, which is not installed: pip install "omniset\[regions\]"'):
        figures.brain(np.ones((3, 3)), np.zeros((3, 3)))


def test_with_nilearn_the_page_has_brains(nilearn):
    found = evaluation()
    drawn = plots(report._brains(found, OURS))
    assert len(drawn) == len(nilearn) == 2
    assert "data:image/png;base64," in svg(drawn[0], "p")
    residual = found.predictions[OURS][0] - found.regions.connectivity
    np.testing.assert_array_equal(nilearn[1][0], np.nan_to_num(figures.strongest(residual, figures.SHARE)))


@pytest.mark.parametrize("spread", [0, 1e-3, 0.01, 0.04, 0.2])
def test_ends_of_the_colours_of_edges_differ_in_two_digits(nilearn, spread):
    """They are rounded so by nilearn, which cannot draw a scale without length."""
    values = 0.105 * (1 + spread * np.linspace(-1, 0, 40 * 40).reshape(40, 40))
    figures.brain(np.maximum(values, values.T), np.zeros((40, 3)))
    ((_, _, options),) = nilearn
    assert f"{options['edge_vmin']:.2g}" != f"{options['edge_vmax']:.2g}"
