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
from omniset.cells import training
from omniset.cells.data import read_cells
from omniset.cells.embedder import CellEmbedder, build
from omniset.cells.training import CellBatches, start_from_axes
from omniset.cells.variable_genes import Moments, most_variable
from omniset.tables.gene_vectors import GeneVectors
from omniset.training.fit import TrainingModule


@pytest.fixture(scope="module")
def fitted() -> CellEmbedder:
    return CellEmbedder(**SMALL).fit(cells(), batch_key="batch")


@pytest.fixture(scope="module")
def of_seed() -> CellEmbedder:
    return CellEmbedder(**SEED).fit(cells(), batch_key="batch")


@pytest.fixture(params=["multiset", "seed"])
def either(request, fitted, of_seed) -> CellEmbedder:
    return fitted if request.param == "multiset" else of_seed


def test_the_same_cell_gets_the_same_vector(either):
    data = cells()
    z = either.transform(data)
    assert z.shape == (53, 5)
    assert np.array_equal(either.transform(data), z)
    order = np.random.default_rng(1).permutation(53)
    assert np.allclose(either.transform(data[order].copy()), z[order], rtol=0, atol=1e-5)
    for i in (0, 17):  # one cell
        assert np.allclose(either.transform(data[[i]].copy()), z[[i]], rtol=0, atol=1e-5)
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


def test_files_backed_lists_and_globs(fitted, tmp_path):
    data = cells()
    z = fitted.transform(data)
    data[:20].copy().write_h5ad(tmp_path / "part1.h5ad")
    data[20:].copy().write_h5ad(tmp_path / "part2.h5ad")
    data.write_h5ad(tmp_path / "all.h5ad")
    backed = ad.read_h5ad(tmp_path / "all.h5ad", backed="r")
    parts = [tmp_path / "part1.h5ad", str(tmp_path / "part2.h5ad")]
    for source in (tmp_path / "all.h5ad", backed, parts, str(tmp_path / "part*.h5ad"), [data[:20], data[20:]]):
        assert np.allclose(fitted.transform(source), z, rtol=0, atol=1e-6)
    backed.file.close()


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
    with pytest.warns(
        UserWarning, match="1 cell without counts of the model's genes, such as 'cell3': their vector is"
    ):
        z = either.transform(data)
    assert np.isfinite(z).all()
    with pytest.warns(UserWarning, match="1 cell without counts"):
        assert np.allclose(either.transform(data[[3]].copy())[0], z[3], rtol=0, atol=1e-5)
    assert np.linalg.norm(z[3] - z[4]) > 1e-3


def test_one_gene(either):
    one = cells()[:, ["Gene3"]].copy()
    become = "count as not" if either.architecture == "seed" else "are filled in by"
    with pytest.warns(UserWarning, match=f"98% of the model's 41 genes are not in it, such as 'Gene0': they {become}"):
        found = either.transform(one[one.X.toarray()[:, 0] > 0].copy())
    assert np.isfinite(found).all()
    embedder = CellEmbedder(**(SEED if either.architecture == "seed" else SMALL))
    with pytest.warns(UserWarning, match="27 cells without counts of .*, such as 'cell0': they teach nothing"):
        embedder.fit(one, batch_key="none")
    with pytest.warns(UserWarning, match="27 cells without counts of the model's genes, such as 'cell0': their vector"):
        z = embedder.transform(one)
    assert np.isfinite(z).all()
    counts = one.X.toarray()[:, 0]
    assert np.allclose(z[counts == 0], z[counts == 0][0], rtol=0, atol=1e-5)


def test_two_fits_are_the_same_to_the_bit():
    data = cells()
    state = torch.get_rng_state()
    for arguments in (SMALL, SEED):
        a, b = (CellEmbedder(**arguments).fit(data, batch_key="batch") for _ in range(2))
        assert a.identity() == b.identity()
        assert a.history == b.history
        assert np.array_equal(a.transform(data), b.transform(data))
        other = CellEmbedder(**arguments | {"seed": 1}).fit(data, batch_key="batch")
        assert other.identity() != a.identity()
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are not drawn from


def test_counts_read_in_blocks_teach_the_same(tmp_path):
    data = cells()
    data.write_h5ad(tmp_path / "all.h5ad")
    found = []
    for memory in (1 << 30, 0):
        source = read_cells(tmp_path / "all.h5ad", memory=memory)
        assert source.cached == (memory > 0)
        found.append(CellEmbedder(**SMALL).fit(source, batch_key="batch").identity())
        source.close()
    assert found[0] == found[1]


def test_labels_and_the_order_of_batches_do_not_enter():
    data = cells()
    a = CellEmbedder(**SMALL).fit(data, data.obs["kind"], batch_key="batch")
    data.obs["kind"] = 0
    b = CellEmbedder(**SMALL).fit(data, batch_key="batch")
    assert a.identity() == b.identity()
    assert a.batches_ == ["one", "two"]


def test_labels_teach_where_they_are_asked_to(fitted, tmp_path, monkeypatch):
    data = cells()
    data.obs["kind"] = data.obs["kind"].map({0: "x", 1: "y", 2: "z"}).astype(object)
    data.obs.loc[data.obs_names[::2], "kind"] = None
    with monkeypatch.context() as patch:
        patch.setattr(training, "LABEL_WEIGHT", 0.0)
        idle = CellEmbedder(**SMALL).fit(data, batch_key="batch", label="kind")
    weights = fitted.network_.state_dict()
    assert idle.types_ == ["x", "y", "z"]
    assert weights.keys() == {name for name in idle.network_.state_dict() if not name.startswith("types.")}
    for name, tensor in weights.items():
        assert torch.equal(idle.network_.state_dict()[name], tensor), name
    taught = CellEmbedder(**SMALL).fit(data, batch_key="batch", label="kind")
    assert "train_types" in taught.history[0]
    assert any("26 of 53 cells have a label, of 3 types" in note for note in taught.notes_)
    z = taught.transform(data)
    assert not np.allclose(z, fitted.transform(data))
    taught.save(tmp_path)
    assert np.array_equal(CellEmbedder.load(tmp_path).transform(data), z)
    data.obs["kind"] = data.obs["kind"].fillna("")
    with pytest.raises(ValueError, match="label is for architecture='multiset'"):
        CellEmbedder(**SEED).fit(data, batch_key="batch", label="kind")
    data.obs["kind"] = data.obs["kind"].replace({"x": "", "y": ""})
    with pytest.raises(ValueError, match="label: the cells have 1 type, 2 are needed"):
        CellEmbedder(**SMALL).fit(data, batch_key="batch", label="kind")


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
    assert again.identity() == either.identity()
    assert again.get_params() == either.get_params()
    assert again.history == either.history


def test_decoded_counts_add_up_to_the_library(either):
    z = either.transform(cells())
    expected = either.decode(z, library=np.arange(1.0, 54.0))
    assert expected.shape == (53, len(either.genes_))
    assert np.allclose(expected.sum(1), np.arange(1, 54), rtol=1e-4)
    with pytest.raises(ValueError, match=r"embedding must be cells x 5, got shape \(53, 4\)"):
        either.decode(z[:, :4])
    with pytest.raises(ValueError, match="embedding must be finite, row 2 is not"):
        either.decode(np.where(np.arange(53)[:, None] == 2, np.nan, z))
    for library, told in ((-5.0, "-5"), (np.arange(53.0), "0"), (np.inf, "inf")):
        with pytest.raises(ValueError, match=f"library must be > 0, got {told}$"):
            either.decode(z, library=library)


def test_decoding_for_a_batch(fitted):
    z = fitted.transform(cells())
    one, two = (fitted.decode(z, batch=b) for b in ("one", "two"))
    assert np.allclose((one + two) / 2, fitted.decode(z), rtol=1e-4)
    assert not np.allclose(one, two)
    with pytest.raises(ValueError, match="batch must be one of those learned from, one, two; got 'three'"):
        fitted.decode(z, batch="three")


def test_explained_changes_are_those_of_leaving_the_gene_out(fitted):
    data = cells()
    found = fitted.explain(data, ["cell7", "cell2"], top=100)
    assert list(dict.fromkeys(found["cell"])) == ["cell7", "cell2"]
    rows = found[found["cell"] == "cell7"].set_index("gene")
    counts = data["cell7"].X.toarray()[0]
    assert dict(zip(rows.index, rows["count"], strict=True)) == {
        f"Gene{i}": c for i, c in enumerate(counts) if c and f"Gene{i}" in fitted.genes_
    }
    assert rows["change"].abs().is_monotonic_decreasing
    z = fitted.transform(data)
    away = z[7] - fitted.mean_
    gene = rows.index[3]
    network = fitted.network_.encoder
    position = fitted.genes_.index(gene)
    own = torch.from_numpy(data.X.toarray()[7:8, [list(data.var_names).index(g) for g in fitted.genes_]])
    library = own.new_tensor([counts.sum()])
    without = own.clone()
    without[0, position] = 0
    with torch.no_grad():
        moved = (network(own, library) - network(without, library))[0].numpy()
    assert np.isclose(rows.loc[gene, "change"], moved @ away / np.linalg.norm(away), rtol=1e-3, atol=1e-5)
    assert rows["attribution"].between(0, 1).all()
    assert rows["attribution"].max() == 1
    with pytest.raises(ValueError, match="cell 'nobody' is not in the source"):
        fitted.explain(data, ["nobody"])
    for name in ("top", "steps"):
        with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
            fitted.explain(data, ["cell7"], **{name: 0})


def test_genes_that_are_missing_are_filled_in(fitted, tmp_path):
    data, network = cells(), fitted.network_.encoder
    source = read_cells(data).on(fitted.genes_)
    counts = torch.from_numpy(source.take(np.arange(53)).toarray())
    assert torch.equal(  # nothing is
        torch.from_numpy(fitted.transform(data)),
        network(counts, counts.sum(1)).detach(),
    )
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
    fitted.save(tmp_path)
    with pytest.warns(UserWarning, match="49% of the model's"):
        assert np.array_equal(CellEmbedder.load(tmp_path).set_params(progress=False).transform(panel), z)


def test_genes_that_are_filled_in_are_not_explained(fitted):
    """What is left out is the count; what is expected of others without it is part of the change."""
    data = cells()
    with pytest.warns(UserWarning, match="49% of the model's"):
        found = fitted.explain(data[:, ::2].copy(), "cell2", top=41)
    counts = pd.Series(data[2, ::2].X.toarray()[0], data.var_names[::2])
    assert set(found["gene"]) == set(counts.index[counts > 0])
    assert np.array_equal(found["count"], counts[found["gene"]])
    assert np.isfinite(found[["change", "attribution"]]).all().all()
    assert found["attribution"].max() <= 1 + 1e-6


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
    assert np.array_equal(again.mean_, on.mean_)


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

    on = CellEmbedder(**SMALL).fit(others, **given)
    assert not np.allclose(on.transform(cells()), z)
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
    codes = (data.obs["batch"] == "two").to_numpy().astype(int)
    parts = [Moments.none(41) for _ in range(2)]
    for start in range(0, 53, 7):  # in blocks
        for b in range(2):
            parts[b].add(sp.csr_array(counts[start : start + 7][codes[start : start + 7] == b]))
    expected = [
        f"Gene{i}"
        for i in np.delete(np.arange(41), 5)[
            most_variable([p.of_genes(np.delete(np.arange(41), 5)) for p in parts], 13)
        ]
    ]
    assert embedder.genes_ == expected


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
    assert batch.measured is not None
    assert batch.measured.sum(1).tolist() == [30] * 53
    assert torch.equal(batch.counts[~batch.measured], torch.zeros((~batch.measured).sum()))
    # A cell is read in the same way where it is learned from and where it is embedded: what is missing is filled in.
    seen = embedder.network_.encoder(batch.counts, batch.library, measured=batch.measured).detach().numpy()
    assert np.array_equal(seen, embedder.embed_cells(source))


def test_tokens_start_on_the_principal_axes(fitted):
    source = read_cells(cells())
    encoder = build(CellEmbedder(**SMALL), 41, 2, None).encoder
    before = encoder.tokens.clone()
    start_from_axes(encoder, source, np.arange(53), 0)
    values = cells().X.toarray().astype(np.float64)
    values = np.log1p(values / values.sum(1, keepdims=True) * 1e4)
    _, sizes, axes = np.linalg.svd(values - values.mean(0), full_matrices=False)
    expected = axes[:8].T * sizes[:8]
    expected /= np.sqrt(np.square(expected).mean())
    ours = encoder.tokens.numpy()
    assert np.allclose(ours @ ours.T, expected @ expected.T, atol=1e-3)  # axes may be turned round
    one = build(CellEmbedder(**SMALL), 41, 2, None).encoder
    one.tokens.copy_(before)
    start_from_axes(one, source, np.array([4]), 0)  # one cell has no axes
    assert torch.equal(one.tokens, before)
    assert torch.equal(fitted.network_.encoder.tokens, encoder.tokens)  # they are not learned
    wide = build(CellEmbedder(**SMALL | {"dim": 60}), 41, 2, None).encoder
    start_from_axes(wide, source, np.arange(53), 0)
    assert not wide.tokens[:, 40:].any()  # 41 genes have 40 axes


BAD = {
    "alignment": (-1.0, "alignment must be >= 0, got -1"),
    "dim": (6, "dim must be divisible by num_heads, got dim=6 and num_heads=4"),
    "encoder_options": ({"slots": 1}, "encoder_options are for architecture='seed'"),
    "device": ("abacus", "device"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    value, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        CellEmbedder(**SMALL | {name: value}).fit(cells())
    for options, message in (
        ({"colour": 1}, "does not take colour"),
        ({"num_heads": 3}, "dim must be divisible by num_heads"),
        ({"depth": 0}, "depth must be an integer >= 1"),
        ({"slots": -1}, "slots must be >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"encoder_options={{.*{message}"):
            CellEmbedder(**SEED | {"encoder_options": options}).fit(cells())


def test_bad_input():
    with pytest.raises(
        ValueError, match="batch_key must be a column of obs, there is no 'plate'; there are: batch, kind"
    ):
        CellEmbedder(**SMALL).fit(cells(), batch_key="plate")
    with pytest.raises(ValueError, match="there are 7 cells to learn from, at least 8 are needed"):
        CellEmbedder(**SMALL).fit(cells()[:7], batch_key="none")
    with pytest.raises(ValueError, match="not fitted yet"):
        CellEmbedder().transform(cells())
    empty = cells()
    empty.X = sp.csr_matrix(empty.shape, dtype=np.float32)
    with pytest.raises(ValueError, match="no gene has a count in any of the 53 cells"):
        CellEmbedder(**SMALL).fit(empty, batch_key="none")
