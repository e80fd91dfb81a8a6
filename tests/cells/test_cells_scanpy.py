"""`embed` and `annotate` beside scanpy's functions: where they write, and what they leave alone."""

import anndata as ad
import numpy as np
import pytest
from cell_files import SMALL, cells, text

from omniset.cells import CellAnnotator, CellEmbedder, annotate, embed

COLUMNS = ["omniset_label", "omniset_type", "omniset_probability"]


@pytest.fixture(scope="module")
def reference():
    data = cells(90)
    data.obs["kind"] = text(f"t{kind}" for kind in data.obs["kind"])
    return data


@pytest.fixture(scope="module")
def annotator(reference, fitted):
    return CellAnnotator(progress=False).fit(reference, label="kind", batch_key="batch", embedder=fitted)


def test_vectors_are_where_scanpy_looks_for_them(fitted, tmp_path, text_as_objects):
    sc = pytest.importorskip("scanpy")
    data, as_it_was = cells(40, seed=1), cells(40, seed=1)
    made = embed(data, fitted, copy=True)
    assert "X_omniset" not in data.obsm
    assert "omniset" not in data.uns
    fitted.save(tmp_path / "model")
    assert embed(data, tmp_path / "model") is None
    for one in (made, data):
        np.testing.assert_array_equal(one.obsm["X_omniset"], fitted.transform(as_it_was))
        assert one.uns["omniset"]["model"] == one.uns["omniset"]["obsm"]["X_omniset"]["model"] == fitted.identity()
    assert (data.X != as_it_was.X).nnz == 0
    assert data.obs.equals(as_it_was.obs)
    sc.pp.neighbors(data, use_rep="X_omniset", n_neighbors=5)
    assert data.uns["neighbors"]["params"]["use_rep"] == "X_omniset"
    data.write_h5ad(tmp_path / "cells.h5ad")
    again = ad.read_h5ad(tmp_path / "cells.h5ad")
    embed(again, fitted)  # its own, after a file too
    assert again.uns["neighbors"]["params"]["n_neighbors"] == 5


def test_a_model_is_learned_where_none_is_given():
    data = cells()
    embed(data, CellEmbedder(**SMALL), batch_key="batch", key_added="X_mine")
    expected = CellEmbedder(**SMALL).fit(cells(), batch_key="batch")
    np.testing.assert_array_equal(data.obsm["X_mine"], expected.transform(cells()))
    assert data.uns["omniset"]["obsm"]["X_mine"]["batch_key"] == "batch"


def test_types_are_columns_of_obs(reference, annotator, fitted, tmp_path, text_as_objects):
    data = cells(40, seed=1)
    embed(data, fitted)
    assert annotate(data, annotator) is None
    table = annotator.annotate(cells(40, seed=1)).table
    for name in COLUMNS:
        assert data.obs[name].tolist() == table[name.removeprefix("omniset_")].tolist()
    assert data.obs["omniset_label"].dtype == "category"
    annotate(data, annotator)
    fitted.embed(data)  # the method keeps what is known of the types
    data.write_h5ad(tmp_path / "cells.h5ad")
    about = ad.read_h5ad(tmp_path / "cells.h5ad").uns["omniset"]
    assert about["obs"]["omniset"]["label"] == "kind"
    assert about["obsm"]["X_omniset"]["model"] == about["obs"]["omniset"]["model"] == fitted.identity()


def test_a_reference_is_learned_from(reference, monkeypatch):
    given = {}

    def fit(self, source, **arguments):
        given.update(arguments, source=source)
        raise InterruptedError

    monkeypatch.setattr(CellAnnotator, "fit", fit)
    with pytest.raises(InterruptedError):
        annotate(cells(), reference, label="kind", batch_key="batch", layer="raw")
    assert given == {"source": reference, "label": "kind", "batch_key": "batch", "layer": "raw"}


@pytest.mark.parametrize(
    ("call", "place", "name", "given", "said"),
    [
        (embed, "obsm", "X_omniset", {}, r'obsm\["X_omniset"\] is there'),
        (annotate, "obs", "omniset_type", {}, r'obs\["omniset_type"\] is there'),
        (embed, "obs", "more", {"batch_key": "batch"}, "batch_key='batch' is for learning"),
        (annotate, "obs", "more", {"batch_key": "batch"}, "batch_key='batch' is for learning"),
    ],
)
def test_what_others_wrote_is_not_replaced(call, place, name, given, said, fitted, annotator):
    data = cells()
    getattr(data, place)[name] = np.ones((len(data), 2) if place == "obsm" else len(data))
    before = data.copy()
    with pytest.raises(ValueError, match=said):
        call(data, fitted if call is embed else annotator, **given)
    assert not data.uns
    assert data.obs.equals(before.obs)


def test_files_are_for_the_classes(fitted):
    with pytest.raises(ValueError, match="adata must be an AnnData, got str"):
        embed("cells.h5ad", fitted)
