"""Sets of cells from .h5ad are those that AnnData holds, in whatever order and kind of matrix, read block by block."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from omniset.cli import main
from omniset.tables import collect
from omniset.tables.labels import column_labels
from omniset.tables.reading import open_sets
from small import QUIET, in_a_folder  # noqa: F401

anndata = pytest.importorskip("anndata")

CELLS, GENES = 67, 13
ONES = np.ones((CELLS, GENES))


def cells(together=False, kind="csr", **changes):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.7, (CELLS, GENES)).astype(np.float32)
    counts[5] = 0
    which = rng.integers(0, 4, CELLS)
    donors = np.array(["d2", "d1", "d3", "d10"])[np.sort(which) if together else which]
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(CELLS)])
    obs["donor"] = pd.Categorical(donors)
    obs["disease"] = np.where(np.isin(donors, ["d1", "d10"]), "sick", "well")
    obs["age"] = np.char.replace(donors.astype(str), "d", "").astype(float)
    obs["type"] = rng.choice(["T", "B"], CELLS)
    make = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}[kind]
    adata = anndata.AnnData(make(counts), obs=obs, var=pd.DataFrame(index=[f"G{i}" for i in range(GENES)]))
    adata.obsm["X_pca"] = rng.normal(size=(CELLS, 5))
    adata.X = changes.pop("X", adata.X)
    for name, value in changes.items():
        adata.obs[name] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata.write_h5ad("t.h5ad")
    return adata


def expected(adata, matrix):
    dense = np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix, dtype=np.float32)
    names = pd.unique(adata.obs["donor"].astype(str))
    return {
        n: (dense[where], adata.obs_names[where].tolist())
        for n in names
        for where in [(adata.obs["donor"] == n).to_numpy()]
    }


def holds(table, adata, matrix, exact=True):
    sets = expected(adata, matrix)
    found = list(table)
    assert [s.name for s in found] == [*sets]
    for stored, (values, names) in zip(found, sets.values(), strict=True):
        close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-6, "atol": 0}
        torch.testing.assert_close(stored.read()[0], torch.from_numpy(values), **close)
        torch.testing.assert_close(stored.read(3, 5)[0], torch.from_numpy(values[3:8]), **close)
        assert stored.read(len(values))[0].shape == (0, values.shape[1])
        assert stored.names_of_elements().tolist() == names
        assert stored.names_of_elements(3, 2).tolist() == names[3:5]


@pytest.mark.parametrize("block", [1, 1 << 9, 1 << 25])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
def test_every_matrix_in_every_order(kind, together, block, monkeypatch):
    monkeypatch.setattr("omniset.tables.cells.BLOCK", block)
    adata = cells(together, kind)
    holds(open_sets("t.h5ad", set_column="donor"), adata, adata.obsm["X_pca"])
    table = open_sets("t.h5ad", set_column="donor", use_rep="X")
    assert table.features == adata.var_names.tolist()
    holds(table, adata, adata.X)
    scaled = adata.X.toarray() if sp.issparse(adata.X) else adata.X
    sums = np.maximum(scaled.sum(1, dtype=np.float64), 1)
    counts = np.log1p(1e4 * scaled / sums[:, None])
    assert (counts[5] == 0).all()
    table = open_sets("t.h5ad", ["G7", "G3"], set_column="donor", use_rep="counts", ignore=["G7"])
    holds(table, adata, counts[:, [3]], exact=False)  # of all genes' sum
    table = open_sets("t.h5ad", ["G7", "G3"], set_column="donor", use_rep="counts")
    assert table.ignored == [f"G{i}" for i in range(GENES) if i not in (3, 7)]
    holds(table, adata, counts[:, [7, 3]], exact=False)


def test_a_zarr_store_and_a_layer_of_counts():
    adata = cells()
    adata.layers["counts"] = adata.X.copy()
    adata.X = adata.X * 0.3
    adata.obsm["X_omniset"] = adata.obsm["X_pca"][:, :2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata.write_zarr("t.zarr")
    counts = adata.layers["counts"].toarray()
    expected = np.log1p(1e4 * counts / np.maximum(counts.sum(1, keepdims=True), 1))
    holds(open_sets("t.zarr", set_column="donor", use_rep="counts"), adata, expected, exact=False)
    adata.raw = anndata.AnnData(sp.csr_matrix(counts), var=adata.var)
    del adata.layers["counts"]
    adata.write_h5ad("raw.h5ad")
    with pytest.warns(UserWarning, match="X has no counts: those of .raw are taken"):
        holds(open_sets("raw.h5ad", set_column="donor", use_rep="counts"), adata, expected, exact=False)
    adata.obsm["abundance"] = pd.DataFrame(adata.obsm["X_pca"], columns=list("vwxyz"), index=adata.obs_names)
    adata.write_h5ad("frame.h5ad")
    table = open_sets("frame.h5ad", set_column="donor", use_rep="abundance")
    assert table.features == list("vwxyz")
    holds(table, adata, adata.obsm["X_pca"])
    table = open_sets("t.zarr", set_column="donor")
    assert (table.features, table.reading) == (["X_omniset_1", "X_omniset_2"], {"use_rep": "X_omniset"})
    holds(table, adata, adata.obsm["X_omniset"])


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_counts_that_nobody_asked_for_are_told(scale, recwarn):
    adata = cells()
    del adata.obsm["X_pca"]
    adata.X = adata.X * scale
    adata.write_h5ad("t.h5ad")
    recwarn.clear()
    table = open_sets("t.h5ad", set_column="donor")
    told = [str(one.message) for one in recwarn if "X has whole numbers, and is taken as it is" in str(one.message)]
    assert (len(told), table.reading) == (scale == 1, {"use_rep": "X"})
    holds(table, adata, adata.X)


def test_genes_that_are_counted_and_features_that_are_none():
    """Of counts: a column of var names genes, antibodies are left out, and names that count alone are refused."""
    adata = cells()
    adata.var = pd.DataFrame(
        {"gene_ids": [f"E{name}" for name in adata.var_names]}, index=[f"{i}" for i in range(GENES)]
    )
    adata.var["feature_types"] = ["Gene Expression"] * 9 + ["Antibody Capture"] * 4
    adata.write_h5ad("t.h5ad")
    with pytest.warns(
        UserWarning, match="no genes are left out: 4 Antibody|called as column 'gene_ids' of var"
    ) as caught:
        table = open_sets("t.h5ad", set_column="donor", use_rep="counts")
    assert len(caught) == 2
    assert table.features == [f"EG{i}" for i in range(9)]
    counts = adata.X.toarray()[:, :9]
    holds(table, adata, np.log1p(1e4 * counts / np.maximum(counts.sum(1, keepdims=True), 1)), exact=False)
    del adata.var["gene_ids"]
    adata.write_h5ad("u.h5ad")
    assert open_sets("u.h5ad", set_column="donor", use_rep="X").features == [f"{i}" for i in range(GENES)]
    with pytest.raises(ValueError, match="u.h5ad: its genes have no names"), warnings.catch_warnings(action="ignore"):
        open_sets("u.h5ad", set_column="donor", use_rep="counts")


def test_targets_that_are_columns_of_obs():
    adata = cells()
    table = open_sets("t.h5ad", keep=["disease", "age", "type"], set_column="donor")
    sets, kept = collect(table, table.features, None, ["disease", "age", "type"], table.encoding, table.stays)
    values, groups = column_labels(table.file, sets, kept, ["disease", "age"], "age", "set")
    truth = adata.obs.groupby("donor", observed=True)[["disease", "age"]].first().loc[sets.names]
    assert values["disease"].tolist() == truth["disease"].tolist()
    assert values["age"].tolist() == groups.tolist() == [f"{age:.0f}" for age in truth["age"]]
    said = r"t.h5ad: cell 'cell\d+': column 'type' is '.' where set 'd\d+' had '.': one per set"
    with pytest.raises(ValueError, match=said):
        column_labels(table.file, sets, kept, ["type"], None, "set")
    of_cells, _ = column_labels(table.file, sets, kept, ["type"], None, "element")
    names = np.concatenate([s.names_of_elements() for s in (sets[i] for i in range(4))])
    assert of_cells["type"].tolist() == adata.obs["type"][names].tolist()


WRONG = {
    "no column": ({"set_column": "patient"}, {}, "obs has no column 'patient', it has 'donor', .*; --set_column"),
    "no target": ({"keep": ["grade"]}, {}, "obs has no column 'grade', it has"),
    "no rep": ({"use_rep": "X_umap"}, {}, "t.h5ad has no 'X_umap' in obsm, it has 'X_pca'"),
    "no gene": ({"features": ["G1", "CD3E", "CD4"], "use_rep": "X"}, {}, "has no feature 'CD3E' and 1 more, it has"),
    "nothing left": ({"ignore": [f"X_pca_{i}" for i in range(1, 6)]}, {}, "no feature is left"),
    "no donor": ({}, {"donor": [None, *["a"] * (CELLS - 1)]}, "column 'donor' of obs is missing for cell 'cell0'"),
    "no counts": ({"use_rep": "counts"}, {"X": 0.5 * ONES}, "X of cell 'cell0', 'G0', is 0.5: it must be a count"),
    "negative": ({"use_rep": "counts"}, {"X": -ONES}, "X of cell 'cell0', 'G0', is -1: it must be a count"),
    "NaN": ({"use_rep": "X"}, {"X": np.nan * ONES}, "X of cell 'cell0', 'G0', is nan: it must be finite"),
    "an option of others": ({"missing": "indicator"}, {}, "t.h5ad: --missing is for files of another kind"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong(case):
    options, changes, said = WRONG[case]
    cells(together=True, **changes)
    with pytest.raises(ValueError, match=said.replace("(", "\\(")) as caught:
        _ = [stored.read() for stored in open_sets("t.h5ad", **{"set_column": "donor"} | options)]
    assert "t.h5ad" in str(caught.value)


def test_files_that_are_none(capsys):
    for content in (b"", b"set,x\na,1\n", b"\x89HDF\r\n\x1a\n" + bytes(99)):
        with open("t.h5ad", "wb") as file:
            file.write(content)
        assert main(["fit", "t.h5ad", "--set_column=donor", "--target_columns=disease", *QUIET]) == 2
        message = capsys.readouterr().err
        assert message.startswith("omniset: error: t.h5ad")
        assert message.count("\n") == 1
