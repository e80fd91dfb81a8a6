"""CellEmbedder: a vector is a function of its cell alone, whatever the file, its order, its genes or its batch."""

import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from cell_files import SEED, SMALL, cells

import omniset.cells.embedder as embedder_module
from omniset.cells.baselines import variable_genes
from omniset.cells.data import read_cells
from omniset.cells.embedder import CellEmbedder, build
from omniset.cells.training import CellBatches, start_from_axes
from omniset.tables.gene_vectors import GeneVectors
from omniset.training.fit import TrainingModule


@pytest.fixture(scope="module")
def of_seed() -> CellEmbedder:
    return CellEmbedder(**SEED).fit(cells(), batch_key="batch")


@pytest.fixture(params=["multiset", "seed"])
def either(request, fitted, of_seed) -> CellEmbedder:
    return fitted if request.param == "multiset" else of_seed


def test_the_same_cell_gets_the_same_vector(either):
    data = cells()
    z = either.transform(data)
    assert np.array_equal(either.transform(data), z)
    for rows in (np.random.default_rng(1).permutation(53), [0], [17]):
        assert np.allclose(either.transform(data[rows].copy()), z[rows], rtol=0, atol=1e-5)
    genes = np.random.default_rng(2).permutation(41)
    assert np.allclose(either.transform(data[:, genes].copy()), z, rtol=0, atol=1e-5)
    assert np.linalg.norm(z[0] - z[1]) > 1e-3


def test_embed_writes_obsm_and_uns_and_nothing_else(fitted):
    data = cells()
    before = data.copy()
    z = fitted.embed(data)
    assert np.array_equal(data.obsm["X_omniset"], z)
    assert data.uns["omniset"]["model"] == fitted.identity()
    del data.obsm["X_omniset"], data.uns["omniset"]
    assert (data.X != before.X).nnz == 0
    assert data.X.dtype == before.X.dtype
    pd.testing.assert_frame_equal(data.obs, before.obs)
    pd.testing.assert_frame_equal(data.var, before.var)
    assert not data.uns
    assert not data.obsm


def test_other_genes_duplicates_and_logarithms(fitted):
    data = cells()
    z = fitted.transform(data)
    twice = sp.csr_matrix(sp.hstack([data.X, data.X]))  # every gene twice, which are summed: depth does not enter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        halves = ad.AnnData(twice, obs=data.obs, var=pd.DataFrame(index=[*data.var_names, *data.var_names]))
        assert np.allclose(fitted.transform(halves), z, rtol=0, atol=1e-5)
    counts = data.X.toarray().astype(np.float64)
    data.X = sp.csr_matrix(np.log1p(1e4 * counts / counts.sum(1, keepdims=True)))
    assert np.allclose(fitted.transform(data), z, rtol=0, atol=1e-5)
    data = cells()
    data.var_names = data.var_names.str.upper()
    with pytest.warns(
        UserWarning, match="AnnData: 41 of 41 genes are matched by case only, as those of another species"
    ):
        assert np.allclose(fitted.transform(data), z, rtol=0, atol=1e-6)
    data.var_names = [f"Other{i}" for i in range(41)]
    with pytest.raises(ValueError, match="none of its genes is known"):
        fitted.transform(data)


def test_cells_without_counts_one_gene_and_all_genes(either):
    data = cells()
    counts = data.X.toarray()
    counts[3] = 0
    counts[4] = 0
    counts[4, 2] = 3
    counts[5] = 1
    data.X = sp.csr_matrix(counts)
    with pytest.warns(UserWarning, match="1 cell without counts of the model's genes, such as 'cell3': their vector"):
        z = either.transform(data)
    assert np.isfinite(z).all()
    assert np.linalg.norm(z[3] - z[4]) > 1e-3


def test_one_gene(either):
    """Vectors by one gene tell no cells apart: they are computed, and refused as a result."""
    one = cells()[:, ["Gene3"]].copy()
    filled = one.X.toarray()[:, 0] > 0
    one = one[np.r_[np.flatnonzero(filled), np.flatnonzero(~filled)[:5]]].copy()
    become = "count as not" if either.architecture == "seed" else "are filled in by"
    with (
        pytest.warns(UserWarning, match=f"98% of the model's 41 genes are not in it, such as 'Gene0': they {become}"),
        pytest.raises(ValueError, match="AnnData: 26 of 26 cells come out the same"),
    ):
        either.transform(one[:26].copy())
    embedder = CellEmbedder(**(SEED if either.architecture == "seed" else SMALL))
    with pytest.warns(UserWarning, match="5 cells without counts of .*, such as 'cell0': they teach nothing"):
        embedder.fit(one, batch_key="none")
    z = embedder.embed_cells(read_cells(one))
    assert np.isfinite(z).all()
    assert np.allclose(z[26:], z[26], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="27 of 53 cells are without counts of the model's genes, such as 'cell0': "):
        embedder.fit(cells()[:, ["Gene3"]].copy(), batch_key="none")


def test_two_fits_are_the_same_to_the_bit():
    data = cells()
    state = torch.get_rng_state()
    for arguments in (SMALL, SEED):
        a, b = (CellEmbedder(**arguments).fit(data, batch_key="batch") for _ in range(2))
        assert a.identity() == b.identity()
        assert a.history == b.history
        other = CellEmbedder(**arguments | {"seed": 1}).fit(data, batch_key="batch")
        assert other.identity() != a.identity()
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are not drawn from


def test_neither_labels_nor_how_counts_are_read_changes_what_is_learned(fitted):
    data = cells()
    labels, data.obs["kind"] = data.obs["kind"], 0
    assert CellEmbedder(**SMALL).fit(data, labels, batch_key="batch").identity() == fitted.identity()
    in_blocks = read_cells(data, memory=0)
    assert not in_blocks.cached
    assert CellEmbedder(**SMALL).fit(in_blocks, batch_key="batch").identity() == fitted.identity()


def test_a_seed_that_is_interrupted_goes_on_to_the_same_weights(of_seed, tmp_path, monkeypatch):
    """Its sentences are drawn anew; of the other architecture see the contract of all systems."""
    end, epochs = TrainingModule.on_train_epoch_end, []

    def ending(module):
        end(module)
        epochs.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "on_train_epoch_end", ending)
        with pytest.raises(KeyboardInterrupt):
            CellEmbedder(**SEED).fit(cells(), batch_key="batch", folder=tmp_path)
    again = CellEmbedder(**SEED).fit(cells(), batch_key="batch", folder=tmp_path, resume=True)
    assert len(epochs) == 1
    assert again.identity() == of_seed.identity()
    assert [h["epoch"] for h in again.history] == [1, 2]


def test_a_stored_model_is_the_one_that_was_fitted(either, tmp_path):
    either.save(tmp_path)
    again, z = CellEmbedder.load(tmp_path), either.transform(cells(seed=3))
    assert np.array_equal(again.transform(cells(seed=3)), z)
    assert np.array_equal(again.decode(z), either.decode(z))
    assert (again.get_params(), again.history) == (either.get_params(), either.history)


def test_decoded_counts_add_up_to_the_library(either):
    z = either.transform(cells())
    expected = either.decode(z, library=np.arange(1.0, 54.0))
    assert expected.shape == (53, len(either.genes_))
    assert np.allclose(expected.sum(1), np.arange(1, 54), rtol=1e-4)


BAD_VECTORS = [
    (np.zeros((53, 4)), {}, r"embedding must be cells x 5, got shape \(53, 4\)"),
    (np.where(np.arange(53)[:, None] == 2, np.nan, np.zeros((53, 5))), {}, "embedding must be finite, row 2 is not"),
    (np.zeros((53, 5)), {"library": -5.0}, "library must be > 0, got -5$"),
    (np.zeros((53, 5)), {"library": np.arange(53.0)}, "library must be > 0, got 0$"),
    (np.zeros((53, 5)), {"library": np.inf}, "library must be > 0, got inf$"),
    (np.zeros((53, 5)), {"batch": "three"}, "batch must be one of those learned from, one, two; got 'three'"),
]


@pytest.mark.parametrize(("z", "how", "message"), BAD_VECTORS)
def test_what_cannot_be_decoded(z, how, message, fitted):
    with pytest.raises(ValueError, match=message):
        fitted.decode(z, **how)


def test_decoding_for_a_batch(fitted):
    z = fitted.transform(cells())
    one, two = (fitted.decode(z, batch=b) for b in ("one", "two"))
    assert np.allclose((one + two) / 2, fitted.decode(z), rtol=1e-4)
    assert not np.allclose(one, two)


def test_explained_changes_are_those_of_leaving_the_gene_out(fitted):
    data = cells()
    found = fitted.explain(data, ["cell7", "cell2"], top=100)
    assert list(dict.fromkeys(found["cell"])) == ["cell7", "cell2"]
    rows = found[found["cell"] == "cell7"].set_index("gene")
    own = read_cells(data).on(fitted.genes_).take(np.array([7])).toarray()[0]
    assert rows["count"].to_dict() == {gene: count for gene, count in zip(fitted.genes_, own, strict=True) if count}
    assert rows["change"].abs().is_monotonic_decreasing
    away = fitted.transform(data)[7] - fitted.mean_
    gene = rows.index[3]
    both = torch.from_numpy(np.stack([own, np.where(np.array(fitted.genes_) == gene, 0, own)]))
    with torch.no_grad():
        whole, without = fitted.network_.encoder(both, both[:1].sum(1).expand(2)).numpy()
    moved = whole - without
    assert np.isclose(rows.loc[gene, "change"], moved @ away / np.linalg.norm(away), rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="cell 'nobody' is not in the source"):
        fitted.explain(data, ["nobody"])
    with pytest.raises(ValueError, match="top must be >= 1, got 0"):
        fitted.explain(data, ["cell7"], top=0)


def test_genes_that_are_missing_are_filled_in_and_not_explained(fitted):
    data, network = cells(), fitted.network_.encoder
    counts = torch.from_numpy(read_cells(data).on(fitted.genes_).take(np.arange(53)).toarray())
    assert np.array_equal(fitted.transform(data), network(counts, counts.sum(1)).detach())  # nothing is
    panel = data[:, ::2].copy()
    with pytest.warns(UserWarning, match="49% of the model's 41 genes are not in it, .*: they are filled in by what"):
        z = fitted.transform(panel)
    measured = np.isin(fitted.genes_, panel.var_names)
    values = np.log1p(1e4 * panel.X.toarray() / panel.X.toarray().sum(1, keepdims=True))
    middle, weights, noise = (x.double().numpy() for x in network.completion.buffers())
    covariance = weights @ weights.T + np.diag(noise)
    of_missing, of_both = covariance[~measured], covariance[np.ix_(measured, measured)]
    known = np.zeros((53, 41))
    known[:, measured] = values[:, [list(panel.var_names).index(g) for g in np.array(fitted.genes_)[measured]]]
    away = np.linalg.solve(of_both, (known - middle)[:, measured].T)
    expected = middle[~measured] + (of_missing[:, measured] @ away).T
    known[:, ~measured] = expected.clip(0) * (expected.sum(1) / expected.clip(0).sum(1))[:, None]
    summary = network.pool.pool_tabulated(network.table(), torch.from_numpy(known).float())
    ours = network.head_of(network.encoder.decoder(summary)).detach().numpy()
    assert np.allclose(z, ours, rtol=0, atol=1e-4)
    unfilled = network(counts * torch.from_numpy(measured), torch.from_numpy(panel.X.toarray().sum(1)))
    assert np.abs(z - unfilled.detach().numpy()).max() > 1e-2
    with pytest.warns(UserWarning, match="49% of the model's"):
        found = fitted.explain(panel, "cell2", top=41)
    own = pd.Series(panel.X.toarray()[2], panel.var_names)  # what is left out is a count, and no expectation
    assert found.set_index("gene")["count"].to_dict() == own[own > 0].to_dict()
    assert np.isfinite(found["change"]).all()


def test_aliases_reach_every_verb(fitted):
    data, z = cells(), fitted.transform(cells())
    expected = fitted.explain(data, "cell2", top=41)
    data.var_names = [f"Other{i}" for i in range(41)]
    aliases = {f"Other{i}": f"Gene{i}" for i in range(41)}
    assert np.array_equal(fitted.transform(data, aliases=aliases), z)
    pd.testing.assert_frame_equal(fitted.explain(data, "cell2", top=41, aliases=aliases), expected)
    on = CellEmbedder(**SMALL).fit(cells(), batch_key="batch", start_from=fitted)
    again = CellEmbedder(**SMALL).fit(data, batch_key="batch", start_from=fitted, aliases=aliases)
    assert again.identity() == on.identity()


def test_a_seed_reads_gene_vectors():
    data, rng = cells(), np.random.default_rng(0)
    vectors = GeneVectors([f"GENE{i}" for i in range(1, 41)], rng.normal(size=(40, 11)).astype(np.float32))
    model = CellEmbedder(**SEED).fit(data, batch_key="batch", gene_vectors=vectors)
    assert any("gene vectors: 40 of 41 genes matched" in note for note in model.notes_)
    places = [model.genes_.index(f"Gene{i}") for i in range(41)]
    assert np.array_equal(model.network_.vectors[places[1:]].numpy(), vectors.vectors)
    assert not model.network_.vectors[places[0]].any()
    with pytest.raises(ValueError, match="gene_vectors are for architecture='seed'"):
        CellEmbedder(**SMALL).fit(data, batch_key="batch", gene_vectors=vectors)
    none = GeneVectors(["A", "B"], np.ones((2, 3), dtype=np.float32))
    with pytest.raises(ValueError, match="none of the genes, such as 'Gene0', has a vector"):
        CellEmbedder(**SEED).fit(data, batch_key="batch", gene_vectors=none)
    given = model.given_vectors()
    assert np.array_equal(given.of([f"Gene{i}" for i in range(1, 41)])[0], vectors.vectors)


def test_a_seed_is_neither_learned_on_from_nor_explained(of_seed, fitted):
    with pytest.raises(ValueError, match="start_from is for architecture='multiset'"):
        CellEmbedder(**SEED).fit(cells(), batch_key="batch", start_from=of_seed)
    with pytest.raises(ValueError, match="explain is for architecture='multiset'"):
        of_seed.explain(cells(), ["cell7"])
    assert of_seed.given_vectors() is fitted.given_vectors() is None


def test_learning_on_from_a_model(fitted, of_seed, tmp_path, monkeypatch):
    fitted.save(tmp_path / "model")
    z = fitted.transform(cells())
    others = cells(number=61, genes=43, seed=3)  # two genes that the model does not know, and another order
    others = others[:, np.random.default_rng(0).permutation(43)].copy()
    others.obs["batch"] = pd.Categorical(np.where(others.obs["batch"] == "one", "two", "three").astype(object))
    others.var_names = others.var_names.str.replace("Gene7", "Alias7")
    given = {"batch_key": "batch", "start_from": tmp_path / "model", "aliases": {"Alias7": "Gene7"}}
    with monkeypatch.context() as patch:
        patch.setattr(embedder_module, "train", lambda *_, **__: None)
        start = CellEmbedder(**SMALL).fit(others, **given)
    assert start.genes_ == fitted.genes_
    assert start.batches_ == ["three", "two"]
    assert np.array_equal(start.transform(cells()), z)  # before the first step it is that model
    assert np.allclose(start.decode(z, batch="two"), fitted.decode(z, batch="two"), rtol=1e-5)
    assert any(f"learned on from the model {fitted.identity()}: 41 of its 41 genes" in note for note in start.notes_)
    seen = dict(zip(start.vocabulary_["gene"], start.vocabulary_["cells"], strict=True))
    assert seen["Gene7"] == (others[:, "Alias7"].X.toarray() > 0).sum()

    assert CellEmbedder(**SMALL).fit(others, **given).identity() != start.identity()
    for changed, message in (
        ({"dim": 16}, "dim must be as in start_from, 8; got 16"),
        ({"embedding_dim": 4}, "embedding_dim must be as in start_from, 5; got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            CellEmbedder(**SMALL | changed).fit(others, **given)
    with pytest.raises(ValueError, match="architecture must be as in start_from, 'seed'; got 'multiset'"):
        CellEmbedder(**SMALL).fit(others, batch_key="batch", start_from=of_seed)


def test_genes_that_vary_most_are_chosen():
    data = cells(genes=41)
    counts = data.X.toarray()
    counts[:, 5] = 0
    counts[::2, 7] = 90  # varies
    data.X = sp.csr_matrix(counts)
    embedder = CellEmbedder(**SMALL | {"max_genes": 13}).fit(data, batch_key="batch")
    assert len(embedder.genes_) == 13
    assert "Gene7" in embedder.genes_
    assert "Gene5" not in embedder.genes_
    assert any("40 of 41 genes are seen in these cells, the 13 that vary most" in note for note in embedder.notes_)
    seen = np.delete(np.arange(41), 5)
    codes = (data.obs["batch"] == "two").to_numpy().astype(np.int64)
    # Counts are normalised by all genes of a cell; that of gene 5 is 0 in each.
    expected = seen[variable_genes(sp.csr_array(counts[:, seen]), codes, 13)]
    assert embedder.genes_ == [f"Gene{i}" for i in expected]


def test_several_files_with_different_genes():
    data = cells()
    left, right = data[:25, :30].copy(), data[25:, 11:].copy()
    with pytest.warns(UserWarning, match="AnnData [12]: 27% of the model's 41 genes are not"):
        embedder = CellEmbedder(**SMALL).fit([left, right], batch_key="file")
    assert embedder.batches_ == ["AnnData 1", "AnnData 2"]
    assert len(embedder.genes_) == 41
    # What a file lacks is no zero: its shares are of the genes that it has.
    source = read_cells([left, right]).on(embedder.genes_)
    batch = CellBatches(source, source.source_of, 0)([(0, i) for i in range(53)], True)
    assert batch.measured.sum(1).tolist() == [30] * 53
    # A cell is read in the same way where it is learned from and where it is embedded: what is missing is filled in.
    seen = embedder.network_.encoder(batch.counts, batch.library, measured=batch.measured).detach().numpy()
    assert np.array_equal(seen, embedder.embed_cells(source))


def test_tokens_start_on_the_principal_axes(fitted):
    source = read_cells(cells())
    encoder, one, wide = (build(CellEmbedder(**SMALL | {"dim": dim}), 41, 2, None).encoder for dim in (8, 8, 60))
    start_from_axes(encoder, source, np.arange(53), 0)
    values = cells().X.toarray().astype(np.float64)
    values = np.log1p(values / values.sum(1, keepdims=True) * 1e4)
    _, sizes, axes = np.linalg.svd(values - values.mean(0), full_matrices=False)
    expected = axes[:8].T * sizes[:8]
    expected /= np.sqrt(np.square(expected).mean())
    ours = encoder.tokens.numpy()
    assert np.allclose(ours @ ours.T, expected @ expected.T, atol=1e-3)  # axes may be turned round
    assert torch.equal(fitted.network_.encoder.tokens, encoder.tokens)  # they are not learned
    before = one.tokens.clone()
    start_from_axes(one, source, np.array([4]), 0)  # one cell has no axes
    assert torch.equal(one.tokens, before)
    start_from_axes(wide, source, np.arange(53), 0)
    assert not wide.tokens[:, 40:].any()  # 41 genes have 40 axes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment": -1.0}, "alignment must be >= 0, got -1"),
        ({"dim": 6}, "dim must be divisible by num_heads, got dim=6 and num_heads=4"),
        ({"encoder_options": {"slots": 1}}, "encoder_options are for architecture='seed'"),
        ({"device": "abacus"}, "device"),
        (SEED | {"encoder_options": {"colour": 1}}, "encoder_options={.*does not take colour"),
        (SEED | {"encoder_options": {"num_heads": 3}}, "encoder_options={.*dim must be divisible by num_heads"),
        (SEED | {"encoder_options": {"depth": 0}}, "encoder_options={.*depth must be an integer >= 1"),
        (SEED | {"encoder_options": {"slots": -1}}, "encoder_options={.*slots must be >= 0, got -1"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        CellEmbedder(**SMALL | options).fit(cells())


def test_bad_input():
    empty = cells()
    empty.X = sp.csr_matrix(empty.shape, dtype=np.float32)
    for given, batch_key, message in (
        (cells(), "plate", "batch_key must be a column of obs, there is no 'plate'; there are: batch, kind"),
        (cells()[:7], "none", "there are 7 cells to learn from, at least 8 are needed"),
        (empty, "none", "no gene has a count in any of the 53 cells"),
    ):
        with pytest.raises(ValueError, match=message):
            CellEmbedder(**SMALL).fit(given, batch_key=batch_key)
    with pytest.raises(ValueError, match="not fitted yet"):
        CellEmbedder().transform(cells())
