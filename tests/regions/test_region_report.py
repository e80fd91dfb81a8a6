"""Reports on brain regions: what they say, what is drawn from which numbers, and every part missing in turn."""

import json
import sys
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from region_methods import brain_of, made_up
from scipy.stats import pearsonr

from omniset.regions import figures, report
from omniset.regions.evaluate import PLACES
from omniset.regions.null_models import WHAT, NullResult
from omniset.regions.predictor import ConnectivityPredictor
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


def regions(number=REGIONS):
    networks = [("Vis", "<b>Default</b>", "subcortex")[i % 3] for i in range(number)]
    return brain_of(number, GENES, unknown=()).with_(network=networks, notes=["What was decided."])


def evaluation(own=None):
    """Ours with little noise, two baselines and a variant with more; levels differ between folds."""
    noise = {OURS: 0.1, "geometry": 0.9, "ridge": 0.3, "<i>small</i>": 0.5}
    values = 0.3 + 0.1 * np.random.default_rng(2).random((4, SPINS))
    about = [(what, kind) for kind in ("spin", "variogram") for what in WHAT]
    nulls = [NullResult(*one, 0.4, of) for one, of in zip(about, values, strict=True)]
    return replace(made_up(noise, own or regions(), FOLDS, level=1.0), nulls=nulls)


def about(notes, warnings=()):
    return Run("regions", "evaluation", "A title", "omniset regions evaluate a&b", {"seed": 0}, warnings, notes)


def page_of(found, warnings=()):
    """The page, its numbers, and what it says; figures are not rendered, which takes long."""
    page, numbers = report.of_evaluation(about(found.notes, warnings), found)
    return page, numbers, said_in(page)


def said_in(page):
    found = [page.lead, page.about]
    for part in [report.Section("", "", page.opening), *page.sections]:
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


def test_the_report_on_an_evaluation(whole, tmp_path):
    page, numbers, said = whole
    html = write(tmp_path, page, numbers).read_text(encoding="utf-8")
    found = evaluation()
    verdict = found.comparison.verdict()
    assert verdict.startswith("Pearson's r ")
    assert ": better than ridge (kernel ridge), the best baseline, with " in verdict
    for word in (verdict, "both regions of a test pair are new to it", "folds of 2 seeds", figures.NEEDS):
        assert word in said
    for word in ("A &lt;warning&gt;.", "What was decided."):
        assert word in html
    assert "<i>small" not in html
    kept = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (kept["system"], kept["kind"], kept["warnings"]) == ("regions", "evaluation", [WARNING])
    assert kept["notes"] == ["What was decided."]
    assert kept["evaluation"]["gates"][0]["verdict"] == "holds"
    assert page.lead == kept["verdict"] == verdict
    assert page.opening[0].caption.startswith(report.HALVES)
    assert kept["table"]["ridge"]["pearson"] == found.table().loc["ridge", "pearson"]


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


def test_matrices_of_many_regions_are_images_and_small():
    found = evaluation(regions(414))
    drawn = plots(report._matrices(found, OURS))[0]
    page = svg(drawn, "p")
    assert page.count("data:image/png;base64,") == 2  # and the bar of colours
    assert len(page) < 6e5  # the largest of five; a page has 3 MB


def test_nulls_are_beside_what_was_observed(whole):
    part = section(whole[0], "Null model")
    table = next(block for block in part.blocks if isinstance(block, report.Table))
    rows = [[value_of(cell) for cell in row] for row in table.rows]
    assert [row[:2] for row in rows] == [[what, kind] for kind in ("spin", "variogram") for what in WHAT]
    first = evaluation().nulls[0]
    expected = [0.4, first.nulls.mean(), first.nulls.max(), 0.4 - first.nulls.mean()]
    np.testing.assert_allclose(rows[0][3:7], expected, rtol=1e-12)
    assert (rows[0][2], rows[0][8]) == (SPINS, 1 / (1 + SPINS))


def test_an_evaluation_may_lack_its_parts():
    bare = regions().with_(coordinates=None, hemisphere=None, network=None, notes=[])
    some = replace(evaluation(bare), nulls=[], split="random")
    page, _, said = page_of(some)
    assert "drawn at random" in said
    assert not {"Null model", "Glass brains", "Notes"} & {part.title for part in page.sections}
    assert len(plots(section(page, "Matrices"))) == 1  # and the one that is shown first


def importance():
    values = {"importance": np.linspace(1e-4, -1e-5, GENES), "null": 1e-6, "p": 0.01, "q": np.linspace(0.01, 1, GENES)}
    return pd.DataFrame({"gene": [f"GENE{i}" for i in range(GENES)], **values})


def test_the_report_on_a_model():
    own = regions()
    predictor = ConnectivityPredictor(method="ridge", device="cpu", progress=False).fit_rows(own, np.arange(REGIONS))
    page, numbers = report.of_fit(about(predictor.notes_, [WARNING]), predictor, importance())
    i, j = np.triu_indices(REGIONS, 1)
    truth, predicted = own.connectivity[i, j], predictor.predict(np.stack([i, j], 1))
    r = pearsonr(truth, predicted).statistic
    assert numbers["pearson_of_training_pairs"] == pytest.approx(r, rel=1e-9)
    shown = page.opening[0].figure.axes[0].images[0].get_array()
    order = figures.arranged(own.network, own.hemisphere, np.zeros(REGIONS, dtype=int))[0]
    assert np.ma.count(shown) == 2 * len(i)
    both = np.zeros((2, REGIONS, REGIONS))
    both[:, i, j] = both[:, j, i] = truth, predicted
    for half, of in ((np.triu_indices(REGIONS, 1), both[0]), (np.tril_indices(REGIONS, -1), both[1])):
        np.testing.assert_allclose(shown[half], of[np.ix_(order, order)][half], rtol=1e-6)
    said = said_in(page)
    for word in (
        *(WARNING, "What was decided.", "how well of regions not seen, evaluate says", "Learned from 903 pairs"),
        *("1 of 13 have q < .05"),
    ):
        assert word in said
    assert "A &lt;warning&gt;." in render(page)


@pytest.mark.parametrize(("weights", "alone"), [((0.5, 0.5), False), ((1.0, 0.0), True)])
def test_a_part_that_is_taken_alone_is_said(weights, alone):
    of = {"near": {"ridge": 0.5, "boosting": 0.5}, "far": dict(zip(("ridge", "boosting"), weights, strict=True))}
    part = report._parts(of, {"near": {"ridge": 0.2}, "far": {"ridge": 0.4, "blend": 0.3}})
    words = "Far: pairs of regions away from known regions. Kernel ridge is taken alone: on regions held back all"
    assert (f"{words} together were no better, r 0.30 against 0.40." in part.text) == alone
    (table,) = part.blocks
    assert [*map(value_of, table.rows[0])] == ["kernel ridge", 0.5, 0.2, weights[0], 0.4]


def test_what_genes_add_is_said_first():
    full = evaluation()
    own = full.predictions[OURS] + 0.3 * np.random.default_rng(0).normal(size=full.predictions[OURS].shape)
    rows = full.by_fold[full.by_fold["method"] == OURS].assign(method=PLACES)
    found = replace(full, predictions={**full.predictions, PLACES: own}, by_fold=pd.concat([full.by_fold, rows]))
    said = page_of(found)[2]
    assert found.genes_add().startswith("Genes add +0.")
    assert found.genes_add() in said


def test_the_report_on_known_regions_that_are_read():
    looked = pd.DataFrame({"region": ["one", "one", "two"], "known": ["A<b>", "B", "A<b>"], "weight": [0.5, 0.2, 0.9]})
    page, numbers = report.of_explanation(about([]), looked, None, "one", "two")
    tables = [block.rows for block in section(page, "Read from").blocks if isinstance(block, report.Table)]
    assert tables == [[["A<b>", 0.5], ["B", 0.2]], [["A<b>", 0.9]]]
    assert numbers["pairs"] == looked.to_dict("records")
    assert page.lead == "two reads most from A<b>; one reads most from A<b>, B."
    assert [part.title for part in page.sections] == ["Read from"]


def test_the_report_on_an_explanation():
    pairs = {"gene_i": ["A", "B", "A", "<i>C</i>"], "gene_j": ["X", "X", "Y", "Z"], "weight": [0.4, 0.35, 0.1, 0.2]}
    looked = pd.DataFrame(pairs)
    page, numbers = report.of_explanation(about([], ["Hm."]), looked, importance(), "one<b>", "two")
    html = render(page)
    for word in ("Where the network looked", "Hm.", "one&lt;b&gt;", "&lt;i&gt;C"):
        assert word in html
    assert numbers["pairs"] == looked.to_dict("records")
    table = next(b for b in section(page, "Pairs of genes").blocks if isinstance(b, report.Table))
    assert [row[2] for row in table.rows] == [0.4, 0.35, 0.2, 0.1]
    empty, _ = report.of_explanation(about([]), looked[:0], None, "one", "two")
    assert "nothing is read" in empty.lead
    assert not empty.sections


@pytest.fixture
def nilearn(monkeypatch):
    """A stub: keeps matrices and options that it is given, and draws a small image."""
    given = []

    def plot_connectome(matrix, places, *, output_file, **options):
        given.append((matrix, options))
        Figure(figsize=(1, 0.5)).savefig(output_file)

    stub = types.ModuleType("nilearn")
    stub.plotting = types.SimpleNamespace(plot_connectome=plot_connectome)
    monkeypatch.setitem(sys.modules, "nilearn", stub)
    return given


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
    ((_, options),) = nilearn
    assert f"{options['edge_vmin']:.2g}" != f"{options['edge_vmax']:.2g}"
