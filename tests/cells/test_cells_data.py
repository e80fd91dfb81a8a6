"""The stream of counts: the dense matrix in any order; raw or logarithm by source; genes, batches and types."""

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from cell_files import SMALL
from cell_files import cells as three_types

from omniset.cells import CellEmbedder, readings
from omniset.cells.data import batch_codes, labels_of, read_cells

pytestmark = pytest.mark.usefixtures("text_as_objects")


def counts(cells=307, genes=13, seed=3, mean=0.7):
    """Cells of different depths, an empty one, and a gene that no cell has."""
    rng = np.random.default_rng(seed)
    dense = rng.poisson(mean * rng.lognormal(0, 0.7, (cells, 1)) * rng.lognormal(0, 1, genes))
    dense[cells // 3] = 0
    dense[:, genes // 2] = 0
    return dense


DENSE = counts()


def adata(dense=DENSE, genes=None, prefix="cell", **obs):
    names = genes or [f"G{i}" for i in range(dense.shape[1])]
    frame = pd.DataFrame(obs, index=[f"{prefix}{i}" for i in range(len(dense))])
    return anndata.AnnData(sp.csr_matrix(dense.astype(np.float32)), obs=frame, var=pd.DataFrame(index=names))


def normalised(dense, target=1e4, base=np.e):
    """What everyone's tutorial does, in float64 and then stored as float32."""
    sums = np.maximum(dense.sum(axis=1, keepdims=True), 1)
    return (np.log1p(dense / sums * (target or np.median(sums))) / np.log(base)).astype(np.float32)


def everything(cells):
    return cells.take(np.arange(len(cells))).toarray()


def written(folder, name, **kwargs):
    adata(**kwargs).write_h5ad(folder / name)
    return folder / name


# Rows


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize("store", [sp.csr_matrix, sp.csc_matrix, np.array])
def test_take_in_any_order_equals_the_dense_matrix(memory, store, tmp_path):
    given = adata()
    given.X = store(DENSE.astype(np.float32))
    given.write_h5ad(tmp_path / "a.h5ad")
    cells = read_cells(tmp_path / "a.h5ad", memory=memory)
    rng = np.random.default_rng(7)
    for rows in (
        rng.permutation(len(cells)),
        rng.integers(0, len(cells), 97),  # with some twice
        np.array([306, 0]),
        np.array([255, 256]),
        np.array([3, 3, 3]),
        np.array([], dtype=np.int64),
    ):
        block = cells.take(rows)
        assert block.dtype == np.float32
        assert np.array_equal(block.toarray(), DENSE[rows])
    for wrong in (-1, 307):
        with pytest.raises(ValueError, match=f"rows must be within 0 and 306, one is {wrong}"):
            cells.take(np.array([5, wrong]))


def reads_of(cells, monkeypatch):
    reads, source, rows = [], cells.sources[0], cells.sources[0].rows
    monkeypatch.setattr(source, "rows", lambda start, stop: reads.append((start, stop)) or rows(start, stop))
    return reads


def test_blocks_are_read_together_and_kept_where_they_fit(monkeypatch):
    """Cells of one block of 256 in one read, whatever the order in which they are asked for."""
    cells = read_cells(adata(counts(1021)), memory=0)
    reads = reads_of(cells, monkeypatch)
    cells.take(np.array([700, 3, 255, 256, 5, 1000, 3]))
    assert reads == [(3, 256), (256, 257), (700, 701), (1000, 1001)]
    for memory, times in ((1 << 20, 1), (100, 2)):
        cells = read_cells(adata(), memory=memory)
        reads = reads_of(cells, monkeypatch)
        assert all(np.array_equal(everything(cells), DENSE) for _ in range(2))
        assert reads == [(0, 256), (256, 307)] * times


def test_x_is_not_touched():
    given = adata()
    before = given.X.copy()
    cells = read_cells(given)
    assert np.array_equal(everything(cells.on(["G3", "G1", "X"])), np.c_[DENSE[:, [3, 1]], np.zeros(307)])
    cells.take(np.array([1])).data[:] = 99
    assert np.array_equal(everything(cells), DENSE)
    assert (before != given.X).nnz == 0


# Sources


def test_lists_patterns_and_paths(tmp_path):
    for name, dense in (("b.h5ad", DENSE[:5]), ("a.h5ad", DENSE[5:16])):
        written(tmp_path, name, dense=dense, prefix=name[0])
    cells = read_cells([str(tmp_path / "*.h5ad"), adata(DENSE[16:19], prefix="m"), adata(DENSE[19:20], prefix="n")])
    assert np.array_equal(everything(cells), DENSE[[*range(5, 16), *range(5), *range(16, 20)]])
    assert cells.names.tolist() == [f"{p}{i}" for p, n in (("a", 11), ("b", 5), ("m", 3), ("n", 1)) for i in range(n)]
    assert cells.source_of.tolist() == [0] * 11 + [1] * 5 + [2] * 3 + [3]
    assert [source.name for source in cells.sources[2:]] == ["AnnData 3", "AnnData 4"]
    cells.close()
    with pytest.raises(ValueError, match=r"no file matches '.*\*.zarr'"):
        read_cells(str(tmp_path / "*.zarr"))
    with pytest.raises(ValueError, match="the list is empty"):
        read_cells([])


def test_obs_of_several_sources():
    first = adata(
        DENSE[:3], batch=pd.Categorical(["a", "b", "a"]), depth=[1.5, 2.5, 3.5], same=pd.Categorical(["x", "x", "y"])
    )
    second = adata(DENSE[:2], prefix="other", batch=["c", "d"], flag=[True, False], same=pd.Categorical(["x", "y"]))
    obs = read_cells([first, second]).obs
    assert obs.columns.tolist() == ["batch", "depth", "same", "flag"]
    assert obs["batch"].tolist() == ["a", "b", "a", "c", "d"]
    assert obs["depth"].fillna(-1).tolist() == [1.5, 2.5, 3.5, -1, -1]
    assert obs["flag"].isna().tolist() == [True] * 3 + [False] * 2
    assert obs["flag"].tolist()[3:] == [True, False]
    assert obs["same"].dtype == pd.CategoricalDtype(["x", "y"])
    assert obs.index.tolist() == ["cell0", "cell1", "cell2", "other0", "other1"]


def test_cells_of_the_same_name_are_kept_and_said():
    with pytest.warns(UserWarning, match="5 names of cells occur more than once, such as 'cell0'"):
        cells = read_cells([adata(), adata(DENSE[:5])])
    assert len(cells) == 312


def test_files_with_different_genes_are_masked():
    first, second = adata(DENSE[:7, :5]), adata(DENSE[:3, 3:8], genes=[f"G{i}" for i in range(3, 8)], prefix="other")
    cells = read_cells([first, second])
    assert cells.genes == [f"G{i}" for i in range(8)]
    assert cells.measured.tolist() == [[True] * 5 + [False] * 3, [False] * 3 + [True] * 5]
    expected = np.zeros((10, 8))
    expected[:7, :5], expected[7:, 3:] = DENSE[:7, :5], DENSE[:3, 3:8]
    assert np.array_equal(everything(cells), expected)
    assert "2 of 8 genes are measured in every source" in cells.notes
    view = cells.on(["G7", "G4", "G0"])
    assert view.measured.tolist() == [[False, True, True], [True, True, False]]
    assert np.array_equal(everything(view), expected[:, [7, 4, 0]])
    assert np.array_equal(view.library(), expected.sum(axis=1))


# Genes


def test_names_that_mean_one_gene_are_summed():
    names = ["ENSG00000000017.1", "ENSG00000000017.2", "tp53", "TP53", "RP11-34P13.7", *[f"G{i}" for i in range(8)]]
    cells = read_cells(adata(genes=names))
    assert cells.genes == ["ENSG00000000017", *names[2:]]
    first, second = DENSE[:, 0] + DENSE[:, 1], DENSE[:, 2] + DENSE[:, 3]
    expected = np.c_[first, DENSE[:, 2:]]
    assert np.array_equal(everything(cells), expected)
    view = cells.on(["TP53", "ENSG00000000017.9", "FOO", "G3", "ALIASED"], {"G5": "ALIASED"})
    assert np.array_equal(everything(view), np.c_[second, first, np.zeros(307), DENSE[:, [8, 10]]])
    assert view.measured.tolist() == [[True, True, False, True, True]]
    assert any(f"AnnData: {view.match[0].sentence()}" == note for note in view.notes)
    assert np.array_equal(cells.library(), DENSE.sum(axis=1))
    assert np.array_equal(view.library(np.array([300, 2])), DENSE.sum(axis=1)[[300, 2]])  # over all genes, known or not
    assert np.array_equal(view.scan(progress=False).seen, (everything(view) > 0).any(axis=0))
    assert np.array_equal(cells.scan(progress=False).seen, (expected > 0).any(axis=0))


@pytest.mark.parametrize("kind", ["category", "object", "string"])
def test_another_column_of_var_with_better_names_is_taken_with_a_warning(kind):
    given = adata()
    given.var["number"] = np.arange(13)
    given.var["gene_ids"] = pd.Series([f"ENSG{i:011d}.3" for i in range(13)], index=given.var_names, dtype=kind)
    cells = read_cells(given)
    vocabulary = [f"ENSG{i:011d}" for i in (5, 2, 11)]
    with pytest.warns(UserWarning, match=r"taken from column 'gene_ids' of var, where more are known \(3 of 3\)"):
        view = cells.on(vocabulary)
    assert np.array_equal(everything(view), DENSE[:, [5, 2, 11]])
    assert np.array_equal(everything(cells.on(["G4"])), DENSE[:, [4]])  # no warning
    by_column = read_cells(given, gene_column="gene_ids")
    assert by_column.genes[:2] == ["ENSG00000000000", "ENSG00000000001"]
    with pytest.raises(ValueError, match="none of its genes is known: they are such as 'ENSG00000000000.3', .*'G4'"):
        by_column.on(["G4"])  # what was asked for is not second-guessed
    with pytest.raises(ValueError, match="gene_column must be a column of var.*'symbol'.*'number', 'gene_ids'"):
        read_cells(given, gene_column="symbol")
    given.var["symbol"] = ["A", None, np.nan, "", *[f"S{i}" for i in range(9)]]  # the index fills gaps
    assert read_cells(given, gene_column="symbol").genes[:5] == ["A", "G1", "G2", "G3", "S0"]


# Raw or logarithm


def test_counts_are_found_and_said(tmp_path):
    path = written(tmp_path, "a.h5ad")
    cells = read_cells(path)
    median = np.median(DENSE.sum(axis=1))
    assert cells.kinds == ["counts"]
    assert cells.notes == [f"{path}: integer counts, 307 cells, median {median:.0f} UMI"]
    scan = cells.scan(progress=False)
    assert np.array_equal(scan.library, DENSE.sum(axis=1))
    assert np.array_equal(scan.genes, (DENSE > 0).sum(axis=1))
    assert np.array_equal(scan.seen, (DENSE > 0).any(axis=0))
    assert f"{path}: 1 cell has no counts" in cells.notes


LOGS = {
    "10,000": (lambda x: normalised(x), "logarithms of counts normalised to 10,000 per cell"),
    "median": (lambda x: normalised(x, None), "logarithms of counts normalised to"),
    "base 2": (lambda x: normalised(x, 1e4, 2), "logarithms to base 2 of counts normalised to 10,000 per cell"),
    "base 10": (lambda x: normalised(x, 1e4, 10), "logarithms to base 10 of counts normalised to 10,000 per cell"),
    "not normalised": (lambda x: np.log1p(x), "logarithms of counts, 307 cells"),
    "base 2, not normalised": (lambda x: np.log2(x + 1), "logarithms to base 2 of counts, 307 cells"),
    "size factors": (
        lambda x: np.log1p(x / np.random.default_rng(5).lognormal(0, 0.3, (len(x), 1))),
        "logarithms of counts, 307 cells",
    ),
}


@pytest.mark.parametrize("how", LOGS)
@pytest.mark.parametrize("kind", ["auto", "log1p"])
def test_counts_come_back_out_of_logarithms(how, kind):
    make, note = LOGS[how]
    dense = counts(genes=53)
    # Cells without a single count of one: their smallest is 2 or 3.
    dense[[3, 7, 200]] = 0
    dense[3, :4], dense[7, 2:5], dense[200, :3] = [2, 3, 7, 1000], [3, 5, 8], [4, 6, 9]
    given = adata(make(dense))
    given.X = given.X.astype(np.float32)
    cells = read_cells(given, input=kind, memory=0)
    assert cells.kinds == ["log1p"]
    assert cells.relative == [False]
    assert note in cells.notes[0]
    assert "the counts are recovered" in cells.notes[0]
    assert np.array_equal(everything(cells), dense)
    assert np.array_equal(cells.library(), dense.sum(axis=1))


def test_logarithms_of_no_counts_are_relative():
    """Values that are multiples of nothing: scaled to 10,000 per cell over all genes of the source."""
    values = counts(genes=53) * np.random.default_rng(11).uniform(0.5, 2, (307, 53))
    cells = read_cells(adata(np.log1p(values)), input="log1p")  # of sums that differ: it has to be said
    expected = values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9) * 1e4
    assert cells.relative == [True]
    assert "counts cannot be recovered, library sizes are not known: values are scaled to" in cells.notes[0]
    np.testing.assert_allclose(everything(cells), expected, rtol=1e-5)
    view = cells.on(["G3", "G9"])
    np.testing.assert_allclose(everything(view), expected[:, [3, 9]], rtol=1e-5)
    np.testing.assert_allclose(view.library(), np.where(values.sum(axis=1) > 0, 1e4, 0), rtol=1e-6)


def test_mixed_sources_are_read_each_by_its_kind():
    dense = counts(genes=53)
    cells = read_cells([adata(dense), adata(normalised(dense), prefix="log")])
    assert cells.kinds == ["counts", "log1p"]
    assert "sources of counts (1) and of logarithms (1) are read together, each by its own kind" in cells.notes
    both = everything(cells)
    assert np.array_equal(both[:307], both[307:])


def test_the_decision_is_that_of_the_source_and_never_of_a_cell():
    """A cell of ones among logarithms is a logarithm, a cell of fractions among counts is named."""
    values = normalised(counts(genes=53)).copy()
    values[5] = 0
    values[5, :3] = 1.0
    assert np.array_equal(everything(read_cells(adata(values)))[5, :4], [1, 1, 1, 0])
    mixed = counts(5003).astype(float)
    mixed[2700:2710] *= 0.37  # between the cells that are looked at
    cells = read_cells(adata(mixed))
    assert cells.kinds == ["counts"]
    with pytest.warns(UserWarning, match="taken as integer counts, but 63 of its values are not whole"):
        cells.scan(progress=False)
    assert any("taken as integer counts, but" in note and "are not whole" in note for note in cells.notes)


def test_input_is_obeyed_with_a_warning():
    fractions = DENSE * 0.95
    with pytest.warns(UserWarning, match="input='counts', but .* values looked at are not whole, such as"):
        cells = read_cells(adata(fractions), input="counts")
    np.testing.assert_allclose(everything(cells), fractions, rtol=1e-6)
    assert cells.kinds == ["counts"]
    with pytest.warns(UserWarning, match="input='log1p', but all .* values looked at are whole as counts are"):
        cells = read_cells(adata(np.minimum(DENSE, 4)), input="log1p")
    assert cells.kinds == ["log1p"]
    with pytest.raises(ValueError, match="input must be one of 'auto', 'counts', 'log1p', got 'raw'"):
        read_cells(adata(), input="raw")


def panel(fractions, values=1000, genes=10):
    """Counts of a panel of genes, all below 20, of which so many have a half, as SoupX and alevin leave them."""
    rng = np.random.default_rng(2)
    found = rng.integers(1, 20, values).astype(np.float32)
    found[rng.choice(values, fractions, replace=False)] -= 0.5
    return found.reshape(-1, genes)


@pytest.mark.parametrize(("fractions", "values"), [(0, 1000), (1, 1000), (1, 25_900), (40, 1000), (50, 1000)])
def test_counts_of_which_a_few_are_not_whole_are_counts(fractions, values):
    """Read as logarithms to base 2, a count of 9 would be 511."""
    given = panel(fractions, values, genes=100 if values > 1000 else 10)
    if not fractions:
        cells = read_cells(adata(given))
    else:
        looked = f"{fractions} of {values:,} values looked at are not whole"
        with pytest.warns(UserWarning, match=rf"taken for counts, but {looked}, such as \d+\.5; they are taken as"):
            cells = read_cells(adata(given))
        assert f"counts, of which {looked}" in cells.notes[0]
    assert cells.kinds == ["counts"]
    assert np.array_equal(everything(cells), given)
    assert np.array_equal(cells.library(), given.sum(axis=1))


MIXED = np.concatenate([counts(genes=53), normalised(counts(genes=53, seed=5))])
NOISY = DENSE + np.random.default_rng(7).uniform(0.01, 0.02, DENSE.shape)
IDF = 0.9 * np.random.default_rng(8).uniform(size=13)
UNTOLD = {
    "5.1 % fractions": (panel(51), "cannot be told to be counts .51 of 1,000 values looked at are not whole, such as"),
    "6 % fractions": (panel(60), "cannot be told to be counts .60 of 1,000 values looked at are not whole, such as"),
    "corrected counts": (
        np.minimum(DENSE * np.random.default_rng(5).uniform(0.5, 1, DENSE.shape), 19),
        "cannot be told to be counts",
    ),
    "counts and logarithms": (np.minimum(MIXED, 19), "cannot be told to be counts"),
    "as scVI gives them": (NOISY / NOISY.sum(1, keepdims=True), "has shares of each cell, .*log1p of"),
    "TF-IDF": (NOISY / NOISY.sum(1, keepdims=True) * IDF, "are not whole, .* below 1 as shares and TF-IDF"),
    "normalised only": (np.expm1(normalised(DENSE, 15)), "counts that were divided by a size of each cell, .*log1p of"),
    "ones to base 2": (np.log2(1 + (np.arange(1000) % 50 == 3) + np.ones(1000)).reshape(-1, 10), "or .* to base 2"),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_what_cannot_be_told_is_asked(what):
    values, message = UNTOLD[what]
    assert values.max() < 20
    with pytest.raises(ValueError, match=f"AnnData: X .*{message}.*: say|{message}.*, or say") as error:
        read_cells(adata(values))
    assert "say input='counts' if they are counts, input='log1p' if they are their logarithms" in str(error.value)
    with pytest.warns(UserWarning, match="input='counts', but .* are not whole"):
        cells = read_cells(adata(values), input="counts")
    np.testing.assert_allclose(everything(cells), values, rtol=1e-6)


def test_shallow_logarithms_are_logarithms():
    """Nearly all counts are 1, and all of these are one number to the base that is not looked for."""
    dense = (np.random.default_rng(3).random((307, 23)) < 0.3).astype(int)
    dense[::29, 5] = 2
    assert read_cells(adata(dense)).kinds == ["counts"]
    for values in (np.log1p(dense), normalised(dense), normalised(dense, base=2)):
        cells = read_cells(adata(values))
        assert cells.kinds == ["log1p"]
        assert np.array_equal(everything(cells), dense)


@pytest.mark.parametrize(
    ("base", "words"), [(np.e, "logarithms normalised to"), (2, "logarithms to base 2 normalised")]
)
def test_equal_sums_tell_logarithms_whose_counts_do_not_come_back(base, words):
    values = counts(genes=53) * np.random.default_rng(11).uniform(0.5, 2, (307, 53))
    values[values.sum(axis=1) == 0, 0] = 1
    expected = values / values.sum(axis=1, keepdims=True) * 1e4
    cells = read_cells(adata(np.log1p(expected) / np.log(base)))
    assert cells.relative == [True]
    assert words in cells.notes[0]
    np.testing.assert_allclose(everything(cells), expected, rtol=1e-4)


def test_other_values_among_logarithms_are_named_by_the_scan(monkeypatch):
    monkeypatch.setattr(readings, "SAMPLE", 100)
    monkeypatch.setattr(readings, "RUN", 20)
    values = normalised(counts(genes=53)).copy()
    between = np.ones(307, dtype=bool)  # the cells that are not looked at
    for start in np.linspace(0, 287, 5).astype(int):
        between[start : start + 20] = False
    values[between] *= np.random.default_rng(5).uniform(0.5, 1, (between.sum(), 53))
    cells = read_cells(adata(values))
    assert "307 cells; the counts are recovered, median about" in cells.notes[0]  # by a sample
    with pytest.warns(UserWarning, match="taken as logarithms of counts, but .* values give no whole counts"):
        cells.scan(progress=False)
    assert any("give no whole counts" in note for note in cells.notes)


def test_large_fractions_are_not_guessed():
    values = DENSE * 10.5
    given = adata(values)
    given.layers["counts"] = DENSE.astype(np.float32)
    message = "X has values up to .* which are no log1p .all are below 20., and some are not .*layer='counts' would do"
    with pytest.raises(ValueError, match=message):
        read_cells(given)
    with pytest.raises(ValueError, match="which are no log1p .*: say input='counts' or 'auto'"):
        read_cells(adata(DENSE * 9), input="log1p")


@pytest.mark.parametrize(("value", "why"), [(-0.5, "negative"), (np.nan, "missing"), (np.inf, "infinite")])
@pytest.mark.parametrize("kind", ["auto", "counts", "log1p"])
def test_values_that_are_none_are_named(value, why, kind):
    given = adata(normalised(counts(genes=53)))
    given.raw = given.copy()
    values = given.X.toarray()
    values[17, 5] = value
    given.X = given.layers["bad"] = values
    where = r"for gene 'G5' in cell 'cell17' \(number 18\), which is"
    for layer, name in ((None, "X"), ("bad", "layer 'bad'")):
        with pytest.raises(ValueError, match=f"AnnData: {name} has {value} {where} {why}.*; layer='raw' would do$"):
            read_cells(given, input=kind, layer=layer)


def test_a_bad_value_anywhere_is_named_by_the_scan_and_by_take():
    dense = counts(5003).astype(np.float32)
    dense[2700, 4] = np.nan  # between the cells that are looked at
    cells = read_cells(adata(dense), memory=0)
    message = "has nan for gene 'G4' in cell 'cell2700' .number 2701., which is missing: .* no other matrix that would"
    for reading in (cells.scan, cells.library, lambda: cells.take(np.array([3, 2699, 2700]))):
        with pytest.raises(ValueError, match=message):
            reading()
    log = normalised(counts(5003, 53)).copy()
    log[2700, 4] = 21
    with pytest.raises(ValueError, match="X has 21 for gene 'G4' in cell 'cell2700' .*which is no log1p"):
        read_cells(adata(log)).scan(progress=False)


def test_cells_without_any_count():
    cells = read_cells(adata(np.zeros((5, 3))))
    assert "no counts at all in the cells looked at" in cells.notes[0]
    assert cells.library().tolist() == [0] * 5
    assert everything(cells).sum() == 0


def test_real_counts_are_counts_and_their_logarithms_are_logarithms(data_folder):
    """Also panels of 50 genes, of which a rule that looks at single cells misreads a third to a half."""
    path = data_folder / "cells" / "kang_pbmc_muscat.h5ad"
    given = anndata.read_h5ad(path)
    raw = given.X.astype(np.float64)

    def named(x):
        return anndata.AnnData(x, var=pd.DataFrame(index=[f"gene {i}" for i in range(x.shape[1])]))

    def logarithms(x, target):
        sums = np.maximum(np.asarray(x.sum(axis=1)).ravel(), 1)
        factors = (target or np.median(sums)) / sums
        return named(sp.csr_matrix((sp.diags_array(factors) @ x).log1p().astype(np.float32)))

    assert read_cells(path).kinds == ["counts"]
    assert abs(read_cells(path).take(np.arange(len(given.obs))) - raw).max() == 0
    for target in (1e4, None):
        log = read_cells(logarithms(raw, target))
        assert log.kinds == ["log1p"]
        assert abs(log.take(np.arange(len(given.obs))) - raw).max() == 0
    rng = np.random.default_rng(1)
    for _ in range(2):
        genes = np.sort(rng.choice(raw.shape[1], 50, replace=False))
        panel = raw[:, genes]
        assert read_cells(named(panel)).kinds == ["counts"]
        assert read_cells(logarithms(panel, 1e4)).kinds == ["log1p"]
        assert read_cells(named(logarithms(raw, 1e4).X[:, genes])).kinds == ["log1p"]


# Names

SYMBOLS = [f"GENE{letter}" for letter in "ABCDEFGHIJKLM"]
NUMBERS = [str(number) for number in range(13)]
GAPS = [str(number * number + 5) for number in range(13)]
IDS = {"gene_biotype": "gene", "feature_id": [f"ENSG{i:011d}" for i in range(13)], "feature_name": SYMBOLS}
CALLED = {  # names in the file, columns of var; what they are joined as (None: refused); what is said
    "counted": (
        NUMBERS,
        {},
        None,
        "genes have no names, '0', '1', '2' and 10 more only count them: give .*'gene_name'",
    ),
    "counted, shuffled": (NUMBERS[::-1], {}, None, "only count them"),
    "counted, sliced": (GAPS, {"length": "9"}, None, "only count them: give .* of var; there are: 'length'"),
    "counted, named": (NUMBERS, IDS, SYMBOLS, "called as column 'feature_name' of var has them"),
    "sliced, named": (GAPS, IDS, SYMBOLS, "called as column 'feature_name' of var has them"),
    "Entrez": ([str(int(n) * 9001 + 7) for n in NUMBERS], IDS, SYMBOLS, "are taken from column 'feature_name' of var"),
    "a genome": ([f"GRCh38_{n}" for n in SYMBOLS], {}, SYMBOLS, "are called without 'GRCh38_', as all begin"),
    "two": ([f"{'hg19_' if n < 'GENEH' else 'mm10___'}{n}" for n in SYMBOLS], {}, SYMBOLS[:7], "taken without 'hg19_'"),
    "ending": ([f"{n}_HUMAN" for n in SYMBOLS], {}, SYMBOLS, "names of genes are taken without '_HUMAN'"),
    "both": ([f"E{i}_{n}" for i, n in enumerate(SYMBOLS)], {}, SYMBOLS, "are taken without what is before '_'"),
    "dates": (
        ["1-Mar", "Sep-02", "2023-03-01", "2.31E+13", *SYMBOLS[4:]],
        {},
        SYMBOLS[4:],
        "of 4 genes .*, such as '1-",
    ),
}


@pytest.mark.parametrize("case", CALLED)
def test_what_genes_are_called(case):
    names, var, expected, said = CALLED[case]
    given = adata(genes=names)
    given.var = given.var.assign(**var)
    if expected is None:
        with pytest.raises(ValueError, match=said):
            read_cells(given)
        return
    with pytest.warns(UserWarning, match=said) as caught:
        cells = read_cells(given).on(SYMBOLS)
    assert len(caught) == 1
    assert [SYMBOLS[i] for i in np.flatnonzero(cells.measured[0])] == expected
    found, right = everything(cells), adata(genes=SYMBOLS).X.toarray()
    assert np.array_equal(found[:, cells.measured[0]], right[:, cells.measured[0]])


def test_genes_that_files_call_otherwise_are_joined():
    for names, var in (([f"ENSG{i:011d}" for i in range(13)], {"symbol": SYMBOLS}), ([f"x:{n}" for n in SYMBOLS], {})):
        other = adata(genes=names, prefix="other")
        other.var = other.var.assign(**var)
        with pytest.warns(UserWarning, match="AnnData 2: names of genes are taken"):
            cells = read_cells([adata(genes=SYMBOLS), other[:, ::-1].copy()])
        assert np.array_equal(everything(cells), np.vstack([DENSE, DENSE]))
    other = adata(genes=[f"ENSG{i:011d}" for i in range(13)], prefix="other")
    other.var["symbol"] = SYMBOLS
    with pytest.warns(UserWarning, match="AnnData 1: names of genes are taken from column 'symbol'"):
        assert read_cells([other, adata(genes=SYMBOLS)]).genes == SYMBOLS
    with pytest.warns(UserWarning, match="all .* counts looked at are 1: were they cut"):
        read_cells(adata(counts(3000, 53) > 0))
    with pytest.raises(ValueError, match="AnnData 2: none of its genes is known: they are such as 'G0'"):
        read_cells([adata(genes=SYMBOLS), adata(prefix="other")])
    barcodes = ["".join(np.random.default_rng(i).choice([*"ACGT"], 16)) + "-1" for i in range(307)]
    with pytest.raises(ValueError, match="genes have barcodes for names, .*: it is genes x cells, give it turned"):
        read_cells(adata(DENSE.T, barcodes))
    for called in (["Actb", "Gapdh", "B2m", *SYMBOLS[3:]], [f"ENSG{i:011d}.3" for i in range(13)]):
        turned = adata().T
        turned.obs_names = called
        with pytest.raises(ValueError, match="cells have genes for names, .*: it is genes x cells, give it turned"):
            read_cells(turned)
    perturbed = adata(DENSE[:13], genes=[*SYMBOLS[:10], "ACTB", "GAPDH", "B2M"])
    perturbed.obs_names = perturbed.var_names
    assert read_cells(perturbed).kinds == ["counts"]


@pytest.mark.parametrize("kinds", [("Gene Expression", "Antibody Capture"), ("GEX", "ADT"), ("rna", "prot")])
def test_features_that_are_no_genes_are_left_out_of_every_form(kinds):
    given = adata()
    given.var["feature_types"] = [kinds[0]] * 9 + [kinds[1]] * 4
    with pytest.warns(UserWarning, match=f"features that are no genes are left out: 4 {kinds[1]}"):
        cells = read_cells(given)
    assert np.array_equal(everything(cells), DENSE[:, :9])
    given.var["feature_types"] = ["protein_coding"] * 9 + ["lncRNA"] * 4  # as CELLxGENE has it
    assert read_cells(given).genes == given.var_names.tolist()
    names = [*SYMBOLS[:9], "__no_feature", "CD3_TotalSeqB", "Blank-1", "NegPrb3"]
    with pytest.warns(UserWarning, match="features that are no genes are left out: 4 by their names"):
        assert read_cells(adata(genes=names)).genes == SYMBOLS[:9]


# Batches and types


@pytest.mark.parametrize("name", ["batch", "Batch", "BATCH"])
def test_a_column_batch_is_asked_about(name):
    data = three_types()
    data.obs = data.obs.rename(columns={"batch": name})
    data.obs.insert(0, "donor_id", ["a", "b", "c", *"abcde" * 10])
    message = rf"obs has '{name}' .2 values., 'donor_id' .5 values.: say batch_key='{name}' .--batch_key {name}. if"
    with pytest.raises(ValueError, match=message + ".*batch_key='none' .--batch_key none. if all cells are one batch$"):
        CellEmbedder(**SMALL).fit(data)
    for key, expected in ((name, ["one", "two"]), ("none", ["all"]), ("file", ["AnnData"])):
        codes, names = batch_codes(read_cells(data), key)
        assert names == expected
        assert codes.max() == len(names) - 1


@pytest.mark.parametrize("name", ["Sample_ID", "donor", "batch_id", "orig.ident"])
def test_columns_that_may_be_batches_are_named_in_a_warning(name):
    data = three_types()
    data.obs = pd.DataFrame({name: np.where(np.arange(53) % 3, "a", "b"), "kind": 1.5}, index=data.obs_names)
    with pytest.warns(UserWarning, match=f"no batch_key is given, and obs has '{name}' .2 values.: .*batch_key='none'"):
        codes, names = batch_codes(read_cells(data), None)
    assert names == ["AnnData"]
    assert not codes.any()


def test_columns_that_are_no_batches_are_not_asked_about():
    data = three_types()
    data.obs = pd.DataFrame(
        {
            "batch": "the same",
            "sample": [f"s{i}" for i in range(53)],  # one a cell
            "louvain": data.obs["kind"].astype(str),
            **{name: np.arange(53) % 2 for name in ("bulk_labels", "n_genes", "n_counts", "phase", "S_score")},
        },
        index=data.obs_names,
    )
    assert batch_codes(read_cells(data), None)[1] == ["AnnData"]
    files = [data[:20].copy(), data[20:].copy()]  # each of them a batch, as its column says
    files[1].obs["batch"] = "another"
    assert batch_codes(read_cells(files), None)[1] == ["AnnData 1", "AnnData 2"]
    data.obs["batch"] = data.obs["louvain"]
    assert batch_codes(read_cells(data), None, "batch")[1] == ["AnnData"]  # the labels of evaluate
    data.obs["batch"] = np.where(np.arange(53) == 7, "", "one")
    with pytest.raises(ValueError, match="batch_key: cell 'cell7' has no batch"):
        batch_codes(read_cells(data), "batch")


def test_labels_that_are_hardly_types_are_warned_of():
    data = three_types()
    data.obs["depth"] = np.arange(53) / 7
    with pytest.warns(UserWarning, match="depth has 53 different numbers, such as 0: each is taken for a type"):
        labels_of(read_cells(data), "depth")
    data.obs["kind"] = ["B cell", "B  cell ", "b cell", "T cell", None, *["T cell"] * 48]
    spelled = "kind: 'B cell' and 'B  cell ' and 'b cell' are different classes; is it meant"
    with pytest.warns(UserWarning, match=spelled):
        assert labels_of(read_cells(data), "kind")[4] is None
    data.obs["kind"] = ["Unknown", "nan", None, *["T cell"] * 50]
    with pytest.warns(UserWarning, match="cells whose kind is 'Unknown', 'nan' are taken for unlabelled"):
        assert [*labels_of(read_cells(data), "kind")[:4]] == [None, None, None, "T cell"]
    data.obs["kind"] = pd.Categorical(np.arange(53) % 3)
    labels_of(read_cells(data), "kind")  # numbers of clusters: no warning, which would be an error


def test_batches_that_are_none():
    whole = [1 + i % 2 for i in range(307)]
    cells = read_cells(adata(cell=[f"c{i}" for i in range(307)], lane=["x", *whole[1:]], number=whole))
    with pytest.raises(ValueError, match="batch_key: cell has 307 values in 307 cells, .*these are no batches; 'none'"):
        batch_codes(cells, "cell")
    with pytest.warns(UserWarning, match="batch_key: 1 of 3 values of lane have one cell, such as 'x'"):
        batch_codes(cells, "lane")
    others = [adata(number=values) for values in ([float(n) for n in whole], [f"{n}.0" for n in whole])]
    with pytest.warns(UserWarning, match="names of cells occur more than once"):
        together = read_cells([cells.sources[0]._opened.origin, *others])
    assert batch_codes(together, "number")[1] == ["1", "2"]
