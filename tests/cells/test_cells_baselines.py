"""Baselines of cells: preprocessing against loops over genes and against scanpy, components against a dense SVD."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from omniset.cells import baselines
from omniset.cells.baselines import BASELINES, PrincipalComponents, variable_genes


def embed(name, counts, batches, seed=0):
    return BASELINES[name](counts, batches, seed)


def counts_of(cells=61, genes=83, seed=0):
    """Two types, two batches; some genes are not expressed, one only in a batch, one is the same everywhere."""
    rng = np.random.default_rng(seed)
    rate = rng.gamma(0.5, 2.0, (2, genes))[rng.integers(0, 2, cells)] * rng.gamma(3.0, 0.5, (cells, 1))
    batch = rng.integers(0, 2, cells)
    rate[batch == 1] *= rng.gamma(5.0, 0.2, genes)
    counts = rng.poisson(rate)
    counts[:, [5, 7]] = 0
    counts[batch == 1, 11] = 0
    return sp.csr_array(counts), batch


def one(cells=61):
    """All of one batch."""
    return np.zeros(cells, dtype=np.int64)


@pytest.fixture
def seven(monkeypatch):
    """Components."""
    monkeypatch.setattr(baselines, "COMPONENTS", 7)


def normalised(counts):
    dense = counts.toarray().astype(float)
    return 1e4 * dense / np.maximum(dense.sum(1, keepdims=True), 1)


def dispersions(values):
    """Gene by gene, after the words of the definition."""
    mean, variance = values.mean(0), values.var(0, ddof=1)
    raw = [np.log(v / m) if v > 0 else None for v, m in zip(variance, mean, strict=True)]
    bins = pd.cut(np.log1p(mean), 20, labels=False)
    found = np.full(len(raw), np.nan)
    for g, value in enumerate(raw):
        if value is not None:
            others = [r for r, b in zip(raw, bins, strict=True) if b == bins[g] and r is not None]
            found[g] = 1.0 if len(others) == 1 else (value - np.mean(others)) / np.std(others, ddof=1)
    return found


def test_variable_genes_of_one_batch():
    counts, _ = counts_of()
    score = dispersions(normalised(counts))
    expected = np.sort(np.argsort(-np.where(np.isnan(score), -np.inf, score), kind="stable")[:13])
    assert np.array_equal(variable_genes(counts, one(), 13), expected)


def test_variable_genes_are_ranked_by_batches_and_then_by_mean():
    counts, batch = counts_of()
    votes, scores = np.zeros(83), []
    for number in (0, 1):
        values = normalised(counts)[batch == number]
        there = values.sum(0) > 0
        score = np.zeros(83)
        score[there] = dispersions(values[:, there])
        order = sorted(np.flatnonzero(there & ~np.isnan(score)), key=lambda g, s=score: -s[g])
        votes[order[:13]] += 1
        scores.append(score)
    mean = np.nanmean(scores, 0)
    expected = sorted(sorted(range(83), key=lambda g: (-votes[g], -mean[g]))[:13])
    assert variable_genes(counts, batch, 13).tolist() == expected
    assert expected != variable_genes(counts, one(), 13).tolist()
    order = np.random.default_rng(1).permutation(61)
    assert variable_genes(counts[order], batch[order], 13).tolist() == expected


def test_few_genes_and_batches_of_one_cell():
    counts, batch = counts_of()
    assert np.array_equal(variable_genes(counts, batch), np.arange(83))
    lone = batch.copy()
    lone[17] = 2
    rest = np.arange(61) != 17
    assert np.array_equal(variable_genes(counts, lone, 13), variable_genes(counts[rest], batch[rest], 13))
    assert len(variable_genes(counts[:3], np.arange(3), 13)) == 13


def test_as_scanpy_has_it(data_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports
        scanpy = pytest.importorskip("scanpy")
    data = scanpy.read_h5ad(data_folder / "cells" / "baron_mouse_pancreas.h5ad")
    batch = pd.factorize(data.obs["batch"].astype(str), sort=True)[0].astype(np.int64)
    counts = sp.csr_array(data.X.copy())
    data.X = data.X.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas says of scanpy and anndata
        scanpy.pp.normalize_total(data, target_sum=1e4)
        scanpy.pp.log1p(data)
        theirs = {}
        for key in (None, "batch"):
            scanpy.pp.highly_variable_genes(data, n_top_genes=2000, batch_key=key)
            theirs[key] = np.flatnonzero(data.var["highly_variable"])
        scanpy.pp.pca(data, n_comps=50, mask_var="highly_variable")
    for key, genes in theirs.items():
        ours = variable_genes(counts, one(len(batch)) if key is None else batch)
        assert len(ours) == 2000
        assert len(set(ours) & set(genes)) >= 1995  # single precision there
    z, of_scanpy = embed("pca", counts, batch), data.obsm["X_pca"]
    for i in range(10):
        assert abs(np.corrcoef(z[:, i], of_scanpy[:, i])[0, 1]) > 0.999
    assert np.square(z).sum() == pytest.approx(np.square(of_scanpy.astype(float)).sum(), rel=1e-3)


@pytest.mark.usefixtures("seven")
def test_components_are_those_of_a_dense_decomposition():
    counts, batch = counts_of()
    values = np.log1p(normalised(counts))
    u, s, _ = np.linalg.svd(values - values.mean(0), full_matrices=False)
    before = counts.copy()
    found = embed("pca", counts, batch)
    assert np.allclose(np.abs(found), np.abs(u * s)[:, :7], atol=1e-8)
    assert (counts != before).nnz == 0
    assert np.allclose(np.abs(found), np.abs(embed("pca", counts, batch, seed=3)), atol=1e-8)


@pytest.mark.usefixtures("seven")
def test_new_cells_are_embedded_one_by_one_by_what_was_fitted(monkeypatch):
    monkeypatch.setattr(baselines, "GENES", 31)
    counts, batch = counts_of()
    train, test = counts[:43], counts[43:]
    model = PrincipalComponents().fit(train, batch[:43])
    values = np.log1p(normalised(train))[:, model.genes]
    _, _, v = np.linalg.svd(values - values.mean(0), full_matrices=False)
    expected = (np.log1p(normalised(test))[:, model.genes] - values.mean(0)) @ v[:7].T
    found = model.transform(test)
    assert np.allclose(np.abs(found), np.abs(expected), atol=1e-8)
    assert np.allclose(model.transform(test[[11]]), found[[11]], atol=1e-12)


@pytest.mark.parametrize(("cells", "genes"), [(2, 3), (3, 101), (101, 3), (60, 53), (31, 1)])
def test_small_data_has_fewer_components(cells, genes):
    counts, _ = counts_of(cells, 103)
    found = embed("pca", counts[:, 13 : 13 + genes], one(cells))
    assert found.shape == (cells, min(50, cells - 1, genes))
    assert np.isfinite(found).all()


def test_cells_that_do_not_differ():
    for counts in (np.ones((7, 5)), np.zeros((11, 103))):
        assert np.allclose(embed("pca", sp.csr_array(counts), one(len(counts))), 0)


@pytest.mark.usefixtures("seven")
def test_harmony_mixes_batches_and_is_the_same_again():
    pytest.importorskip("harmonypy")
    counts, batch = counts_of(211)
    before, after = (embed(name, counts, batch) for name in ("pca", "harmony"))
    gap = [np.linalg.norm(z[batch == 0].mean(0) - z[batch == 1].mean(0)) for z in (before, after)]
    assert gap[1] < 0.5 * gap[0]
    assert np.array_equal(after, embed("harmony", counts, batch))
    assert np.array_equal(embed("harmony", counts, one(211)), embed("pca", counts, one(211)))
    assert embed("harmony", counts[:7], batch[:7]).shape == (7, 6)


def test_scvi_is_the_same_again_and_leaves_no_trace(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports
        pytest.importorskip("scvi")
    counts, batch = counts_of(131)
    torch.manual_seed(5)
    expected, filters = torch.rand(1), list(warnings.filters)
    torch.manual_seed(5)
    found = baselines._scvi(counts, batch, 3, epochs=2)
    assert torch.equal(torch.rand(1), expected)
    assert warnings.filters == filters
    assert found.shape == (131, 10)
    assert np.isfinite(found).all()
    assert np.array_equal(found, baselines._scvi(counts, batch, 3, epochs=2))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "package"), [("harmony", "harmonypy"), ("scvi", "scvi")])
def test_a_package_that_is_not_there(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"needs \w+, which is not installed: pip install \"omniset\[baselines\]\""):
        embed(name, *counts_of())
