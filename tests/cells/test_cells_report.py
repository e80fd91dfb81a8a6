"""Reports on cells: what is drawn and explained, and every part missing in turn."""

import numpy as np
import pandas as pd
import pytest
from cell_files import SMALL
from cell_files import cells as adata
from sklearn.decomposition import PCA

from omniset.cells import CellEmbedder, projection, read_cells, report
from omniset.cells.data import batch_codes
from omniset.cells.evaluate import TRANSFER, WHOLE, Evaluation
from omniset.report import figures, render
from omniset.report.frame import Run
from omniset.report.page import svg

pytestmark = pytest.mark.usefixtures("without_umap")

CELLS = 83


def run(kind, warnings=("A <warning>.",), notes=("What was decided.",)):
    return Run("cells", kind, "A title", "omniset cells fit a&b", {"seed": 0}, warnings, notes)


@pytest.fixture(scope="module")
def cells():
    made = adata(CELLS, 29)
    rng = np.random.default_rng(0)
    made.obs["batch"] = made.obs["batch"].cat.rename_categories({"two": "<b>two</b>"})
    made.obs["kind"] = [None if i % 7 == 0 else "ABC"[kind] for i, kind in enumerate(made.obs["kind"])]
    made.obs["same"], made.obs["many"] = 1, np.arange(CELLS)
    made.obs["depth"] = rng.integers(0, 2, CELLS).astype(float)
    made.obs["flag"] = rng.integers(0, 2, CELLS).astype(bool)
    return read_cells(made)


@pytest.fixture(scope="module")
def embedder(cells):
    return CellEmbedder(**SMALL).fit(cells, batch_key="batch")


@pytest.fixture
def drawn(embedder, cells):
    return projection.draw(embedder, cells, batch_codes(cells, "batch")[0], "batch", 0)


BATCHES = pd.DataFrame({"batch": ["one", "<b>two</b>"], "cells": [40, 43], "library": [31.5, np.nan]})


def test_all_cells_are_drawn_where_they_are_few(embedder, cells, drawn):
    assert np.array_equal(drawn.z, embedder.transform(cells))
    assert list(drawn.groups) == ["batch", "kind", "flag"]
    assert drawn.groups["batch"].tolist() == cells.obs["batch"].tolist()
    assert drawn.groups["kind"].tolist() == ["" if pd.isna(v) else v for v in cells.obs["kind"]]
    assert len(drawn.rows) == drawn.of == CELLS


def test_of_many_cells_a_sample_is_drawn_and_this_is_said(embedder, cells, monkeypatch):
    monkeypatch.setattr(projection, "DRAWN", 17)
    codes = batch_codes(cells, "batch")[0]
    some = projection.draw(embedder, cells, codes, "batch", 3)
    assert len(set(some.rows.tolist())) == len(some.z) == 17
    np.testing.assert_allclose(some.z, embedder.transform(cells)[some.rows], rtol=0, atol=1e-6)
    assert some.names.tolist() == [f"cell{i}" for i in some.rows]
    assert projection.share_drawn(len(some.rows), some.of) == "17 of 83 cells, drawn at random."
    assert np.array_equal(projection.draw(embedder, cells, codes, "batch", 3).rows, some.rows)
    assert not np.array_equal(projection.draw(embedder, cells, codes, "batch", 4).rows, some.rows)


def test_central_cells():
    """Three clusters of 11, 7 and 5 cells around one in their middle."""
    rng = np.random.default_rng(0)
    parts, names = [], []
    for number, size in enumerate((11, 7, 5)):
        around = rng.normal(size=(size - 1, 2))
        parts.append(20.0 * number + np.concatenate([np.zeros((1, 2)), around - around.mean(0)]))
        names += [f"middle{number}", *(f"cell{number}.{i}" for i in range(1, size))]
    z = np.concatenate(parts).astype(np.float32)
    seen = np.ones(len(z), dtype=bool)

    def drawn(names, seen):
        return projection.Drawn(np.arange(len(z)), np.array(names, dtype=object), z, seen)

    assert projection.central(drawn(names, seen), 0, 3) == ["middle0", "middle1", "middle2"]
    twice = [*names[:-1], "middle2"]
    assert "middle2" not in projection.central(drawn(twice, seen), 0, 3)
    seen[0] = False
    assert "middle0" not in projection.central(drawn(names, seen), 0, 3)
    assert projection.central(drawn(names, np.zeros(len(z), dtype=bool)), 0, 3) == []


def test_components_are_those_of_scikit_learn():
    z = np.random.default_rng(0).normal(size=(13, 5)).astype(np.float32) * np.array([5, 1, 3, 1, 1], dtype=np.float32)
    expected = PCA(2).fit(z.astype(np.float64))
    signs = np.sign(expected.components_[[0, 1], np.abs(expected.components_).argmax(1)])
    np.testing.assert_allclose(projection.components(z), expected.transform(z) * signs, atol=1e-5)
    assert projection.components(z[:, :1]).shape == (13, 2)
    assert not projection.components(np.ones((7, 3), dtype=np.float32)).any()


def test_the_report_on_a_model(embedder, cells, drawn):
    explained = embedder.explain(cells, ["cell3", "cell5"], top=report.GENES)
    page, found = report.of_fit(embedder, drawn, explained, BATCHES, run("fit"))
    html = render(page)
    assert render(report.of_fit(embedder, drawn, explained, BATCHES, run("fit"))[0]) == html
    for word in ("A &lt;warning&gt;.", "a&amp;b", "Cell cell3", "PCA of the vectors, by kind.", "All 83 cells."):
        assert word in html
    assert "<b>two" not in html
    for key in embedder.history[0]:
        if key != "epoch":
            assert figures.words(key) in html
    assert page.opening[0].caption == "PCA of the vectors, by kind."
    assert page.lead == found["verdict"] == next(iter(found.values()))
    assert [row["gene"] for row in found["explained"]] == explained["gene"].tolist()


def test_every_part_may_be_missing(embedder, drawn, monkeypatch):
    monkeypatch.setattr(embedder, "history_", [])
    drawn.groups = {}
    page, found = report.of_fit(embedder, drawn, None, BATCHES[:1], run("fit"))
    html = render(page)
    assert "nothing was mixed" in html
    assert [section.title for section in page.sections] == ["Batches", "Settings"]
    assert found["explained"] == []


def evaluation(**changed):
    rng = np.random.default_rng(0)
    rows = [
        dict.fromkeys(WHOLE, 0.25) | {"seed": seed, "method": method, "total": total + seed / 100, "fit_seconds": 12.0}
        for seed in (0, 1)
        for method, total in (("omniset", 0.7), ("pca", 0.6), ("harmony", 0.71))
    ]
    left = [
        {"seed": 0, "batch": batch, "method": method} | dict.fromkeys(TRANSFER, score)
        for batch in ("x", "y")
        for method, score in (("omniset", 0.8), ("pca", 0.9))
    ]
    thinning = {"method": "omniset", "kept": 0.1, "cosine": 0.875, "found": 0.125}
    checks = {"determinism": 0.0, "peak_memory_mb": None, "thinning": [thinning]}
    made = {
        "transductive": pd.DataFrame(rows).assign(embed_seconds=np.nan),
        "inductive": pd.DataFrame(left),
        "checks": checks,
        "not_run": {"scvi": "it is not installed"},
        "embeddings": {name: rng.normal(size=(23, 3)).astype(np.float32) for name in ("omniset", "pca")},
        "labels": np.array(["A", "B", ""] * 7 + ["A", "B"]),
        "batches": np.array(["x", "y"] * 11 + ["x"]),
        "notes": ["What was decided."],
    }
    return Evaluation(**(made | changed))


def test_the_report_on_an_evaluation():
    page, found = report.of_evaluation(evaluation(), run("evaluation"))
    html = render(page)
    for word in ("What was decided.", "Harmony is enough", "a tie with pca, the best baseline, with "):
        assert word in html
    for method in ("omniset", "pca"):
        for by in ("batch", "cell type"):
            assert f"{method}: PCA by {by}." in html
    for number in ("0.71", "0.10"):
        assert number in html
    assert [gate["verdict"] for gate in found["evaluation"]["gates"]] == ["tie", "tie", "cannot be told"]


def test_an_evaluation_may_lack_its_parts_and_draws_a_sample_of_many_cells(monkeypatch):
    bare = evaluation(inductive=pd.DataFrame(), checks={}, embeddings={}, not_run={})
    html = render(report.of_evaluation(bare, run("evaluation", (), ()))[0])
    assert "Batches that were not seen" not in html
    monkeypatch.setattr(projection, "DRAWN", 11)
    page, found = report.of_evaluation(evaluation(), run("evaluation"))
    assert found["drawn"] == {"cells": 11, "of": 23, "by": "PCA"}
    assert "11 of 23 cells, drawn at random." in render(page)


@pytest.mark.parametrize(("number", "image"), [(figures.PIXELS + 1, True), (7, False)])
def test_many_points_are_one_image(number, image):
    x, y = np.random.default_rng(0).normal(size=(2, number))
    of_types = figures.categories(np.stack((x, y), 1), np.full(number, "a"), "x", "y")
    assert ("data:image/png;base64," in svg(report.Plot(of_types, "alt", "caption"), "p")) == image
