"""Whatever a file is written as, its regions and genes are the same; what is wrong with it is named."""

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from region_files import GOOD, IDS, NAMES, REGIONS, TEXT_AS_OBJECTS, csv, parquet, refused, written

from omniset.regions.expression import read_expression

pytestmark = TEXT_AS_OBJECTS
SYMBOLS = ["A1BG", "HLA-A", "C2orf27A", "SST", "PVALB", "NKX2-1", "TP53", "GAD1", "GAD2", "VIP", "MT-CO1", "AGO1"]
SYMBOLS += ["BDNF", "DRD1", "DRD2", "GRIN1", "GRIN2B"]


def expression(rows=NAMES, columns=SYMBOLS):
    values = np.random.default_rng(1).random((len(rows), len(columns))).round(6)
    values[3] = np.nan
    values[5, 2] = np.nan
    return pd.DataFrame(values, index=pd.Index(rows, dtype=object), columns=pd.Index(columns, dtype=object))


def adata(frame, store=np.array):
    return anndata.AnnData(
        store(frame.to_numpy()), obs=pd.DataFrame(index=frame.index), var=pd.DataFrame(index=frame.columns)
    )


def h5ad(frame, path, store=np.array):
    adata(frame, store).write_h5ad(path)
    return path


# What separates fields, quotes and the like: tests/test_sheets.py.
EXPRESSIONS = {
    "csv": lambda f, p: csv(f, p / "a.csv"),
    "label": lambda f, p: csv(f, p / "a.csv", index_label="label"),
    "tsv.gz": lambda f, p: csv(f, p / "a.tsv.gz", sep="\t"),
    "csv.xz": lambda f, p: csv(f, p / "A.CSV.xz"),
    "spaces": lambda f, p: csv(f, p / "a.txt", sep=" ", na_rep="nan", index_label="region"),
    "byte order mark": lambda f, p: csv(f, p / "a.csv", encoding="utf-8-sig", index_label="label"),
    "R": lambda f, p: written(p / "a.txt", csv(f, p / "b", sep=" ", na_rep="NA", quoting=2).read_text()[3:]),
    "names in column 2": lambda f, p: csv(f.rename_axis("label").reset_index(), p / "a.csv"),
    "blank lines": lambda f, p: written(
        p / "a.csv", csv(f, p / "b").read_text().replace("\n", "\n\n") + "," * f.shape[1] + "\n"
    ),
    "parquet": lambda f, p: parquet(f, p / "a.parquet"),
    "parquet, no index": lambda f, p: parquet(f.rename_axis("id").reset_index(), p / "a.parquet", index=False),
    "parquet, no title": lambda f, p: parquet(f.rename_axis("x").reset_index(), p / "a.parquet"),
    "h5ad": lambda f, p: h5ad(f, p / "a.h5ad"),
    "h5ad CSC": lambda f, p: h5ad(f, p / "a.h5ad", sp.csc_matrix),
    "AnnData": lambda f, p: adata(f),
    "AnnData on disk": lambda f, p: anndata.read_h5ad(h5ad(f, p / "a.h5ad"), backed="r"),
    "AnnData on disk CSR": lambda f, p: anndata.read_h5ad(h5ad(f, p / "a.h5ad", sp.csr_matrix), backed="r"),
    "DataFrame": lambda f, p: f,
    "DataFrame, column": lambda f, p: f.rename_axis("label").reset_index(),
    "DataFrame, text": lambda f, p: f.map(lambda v: "NA" if np.isnan(v) else str(v)),
    "DataFrame, nullable": lambda f, p: f.astype("Float64"),
    "one donor": lambda f, p: [f],
    "one donor by name": lambda f, p: {"9861": csv(f, p / "a.csv")},
}


@pytest.mark.parametrize("turned", [False, True], ids=["regions x genes", "genes x regions"])
@pytest.mark.parametrize("format", EXPRESSIONS)
def test_every_format_gives_the_same_expression(format, turned, tmp_path):
    frame = expression()
    source = EXPRESSIONS[format](frame.T if turned else frame, tmp_path)
    found = read_expression(str(source) if isinstance(source, Path) else source)
    pd.testing.assert_frame_equal(found.frame, frame, check_names=False, rtol=1e-12)
    assert set(found.frame.dtypes) == {np.dtype(np.float64)}
    assert len(found.notes) == turned
    assert not turned or found.notes[0].endswith("has genes in its rows and was turned round")


def test_the_source_is_not_touched():
    frame = expression()
    before = frame.copy()
    found = read_expression(frame)
    found.frame.iloc[:] = 7
    pd.testing.assert_frame_equal(frame, before)


def test_ids_of_an_atlas(tmp_path):
    """As abagen writes them, as they are after pandas has had a row without id, and counted from 0."""
    from_0 = [str(i) for i in range(REGIONS)]
    for given, ids in ((IDS, IDS), ([f"{i}.0" for i in IDS], IDS), (from_0, from_0)):
        path = csv(expression(given), tmp_path / "a.csv", index_label="label")
        assert read_expression(path).frame.index.tolist() == ids
        numbers = expression([float(i) if "." in i else int(i) for i in given]).rename_axis("label")
        assert read_expression(numbers).frame.index.tolist() == ids
        assert read_expression(numbers.T).frame.index.tolist() == ids


# Which way round


@pytest.mark.parametrize(("regions", "genes"), [(31, 5), (5, 31)])
@pytest.mark.parametrize("form", ["SLC{0}A{0}", "ENSG{0:011d}", "ENSG{0:011d}.{0}", "ENSMUSG{0:011d}"])
@pytest.mark.parametrize("turned", [False, True])
def test_shape_says_nothing_about_the_side_of_the_genes(regions, genes, form, turned):
    columns = [form.format(i) for i in range(genes)]
    frame = pd.DataFrame(np.ones((regions, genes)), [f"7Networks_LH_Vis_{i}" for i in range(regions)], columns)
    found = read_expression(frame.T if turned else frame).frame
    assert found.index.tolist() == frame.index.tolist()
    assert found.columns.tolist() == [name.split(".")[0] for name in columns]


@pytest.mark.parametrize("turned", [False, True])
def test_regions_of_other_files_tell_the_side(turned):
    """Names of regions that look like genes; ids of regions beside Entrez ids, some of which are the same."""
    acronyms = ["V1", "MT", "MST", "FEF", "PEF", "RSC", "ACC"]
    entrez = ["1", "2", "9", "10", "12", "13", "14"]
    for rows, columns in ((acronyms, SYMBOLS[:7]), ([str(i) for i in range(1, 8)], entrez)):
        frame = expression(rows, columns)
        source = frame.T if turned else frame
        assert read_expression(source, regions=[*rows, "other"]).frame.index.tolist() == rows
        undecided = read_expression(source)
        assert undecided.frame.index.tolist() == source.index.tolist()
        assert "names do not tell whether genes are in rows or columns" in undecided.notes[0]


def test_aliases_are_genes_too():
    frame = expression(columns=[str(100 * i) for i in range(len(SYMBOLS))])
    aliases = dict(zip(frame.columns, SYMBOLS, strict=True))
    found = read_expression(frame.T, aliases)
    assert (found.frame.index.tolist(), found.frame.columns.tolist()) == (NAMES, SYMBOLS)
    assert found.notes[1:] == ["expression: 17 gene(s) are named by an alias, such as '0'"]


def test_entrez_ids_stay_text():
    found = read_expression(expression(columns=[f"{i}.0" for i in range(7)]), regions=NAMES)
    assert found.frame.columns.tolist() == [str(i) for i in range(7)]
    assert found.notes == []


# Genes that are there twice, donors


def test_columns_of_one_gene_become_their_mean(tmp_path):
    text = "label,TP53,ENSG00000141510.17,A1BG,TP53 ,ENSG00000141510.2,P53\nL_a,1,7,0,2,9,6\nL_b,,,5,4,,\nL_c,,3,2,,,\n"
    found = read_expression(written(tmp_path / "a.csv", text), {"P53": "TP53"})
    assert found.frame.columns.tolist() == ["TP53", "ENSG00000141510", "A1BG"]
    np.testing.assert_array_equal(found.frame.to_numpy(), [[3, 8, 0], [4, np.nan, 5], [np.nan, 3, 2]])
    assert [note.removeprefix(f"{tmp_path}/a.csv: ") for note in found.notes] == [
        "1 gene(s) are named by an alias, such as 'P53'",
        "2 gene(s) are in several columns, such as 'TP53': the mean of what was measured is taken",
    ]


@pytest.mark.parametrize("kind", [list, dict])
def test_donors_are_averaged_over_what_each_measured(kind):
    rng = np.random.default_rng(7)
    donors = []
    for number in range(3):
        rows = rng.permutation(NAMES)[: 11 - number]
        columns = rng.permutation(SYMBOLS)[: 13 + number]
        values = rng.random((len(rows), len(columns)))
        values[rng.random(values.shape) < 0.2] = np.nan
        donors.append(pd.DataFrame(values, rows, columns))
    long = pd.concat([donor.rename_axis(index="r", columns="g").stack() for donor in donors])
    oracle = long.groupby(level=["r", "g"]).mean().unstack()
    sources = [donors[0], donors[1].T, donors[2]]
    found = read_expression(dict(enumerate(sources)) if kind is dict else sources)
    # Rows and columns without any value are kept, where pandas leaves them out.
    pd.testing.assert_frame_equal(found.frame.loc[oracle.index, oracle.columns], oracle, check_names=False)
    assert set(found.frame.index) == set(np.concatenate([donor.index for donor in donors]))
    assert set(found.frame.columns) == set(np.concatenate([donor.columns for donor in donors]))
    regions, genes = (len(set.intersection(*map(set, of))) for of in zip(*(d.axes for d in donors), strict=True))
    assert f"{regions} of {len(found.frame)} regions and {genes} of {found.frame.shape[1]} genes" in found.notes[-1]


def test_an_error_names_the_donor():
    bad = expression()
    bad.iloc[2, 1] = np.inf
    for donors, name in (({"1": expression(), "9861": bad}, "'9861'"), ([expression(), bad], "2")):
        message = "region 'L_areac', gene 'HLA-A' is inf, it must be"
        refused(read_expression, donors, message, f"expression of donor {name}: ")
    for nothing in ([], {}):
        refused(read_expression, nothing, "must be of one donor at least", "expression")


def test_regions_without_names_are_numbered(tmp_path):
    """Values may be whole numbers too, but then they are all together."""
    frame = expression()
    frame.iloc[:3, 0] = [0, 1, np.nan]
    assert frame.iloc[3].isna().all()  # a line of nothing but commas
    path = csv(frame, tmp_path / "a.csv", index=False)
    found = read_expression(path)
    assert found.frame.index.tolist() == IDS
    np.testing.assert_array_equal(found.frame.to_numpy(), frame.to_numpy())
    assert found.notes == [f"{path} has no names of regions: they are named by their number, from 1"]


BAD_EXPRESSIONS = {
    "text": (GOOD.replace("0.3", "much"), "line 3: 'L_b', 'TP53' is 'much', it must be a number"),
    "infinite": (GOOD.replace("0.4", "-inf"), "region 'L_b', gene 'A1BG' is -inf, it must be finite"),
    "too large": (GOOD.replace("0.4", "1e39"), "region 'L_b', gene 'A1BG' is 1e+39, it must be finite, at most 3.4e38"),
    "region twice": (GOOD.replace("L_b", "L_a"), "region 'L_a' is there twice"),
    "region without name": (GOOD.replace("L_b", ""), "region 2 has no name"),
    "gene without name": (GOOD.replace("TP53", ""), "gene 1 has no name"),
    "too few fields": (GOOD.replace(",0.4", ""), "line 3: has 2 fields, the header has 3: is the file cut off?"),
    "header only": ("label,TP53,A1BG\n", "must have regions and genes, it has 0 x 2"),
    "one column": ("label\nL_a\n", "line 1: has one column only"),
    "names only": ("label,gene\nL_a,L_b\n", "must have regions and genes, it has 1 x 0"),
}


@pytest.mark.parametrize("kind", BAD_EXPRESSIONS)
def test_what_is_wrong_with_an_expression(kind, tmp_path):
    text, message = BAD_EXPRESSIONS[kind]
    refused(read_expression, written(tmp_path / "a.csv", text), message)


def test_objects_that_are_no_expression(tmp_path):
    words, twice = expression(), adata(expression())
    words.insert(2, "words", "x")
    twice.obs_names = [NAMES[0], *NAMES[:-1]]
    nothing = anndata.AnnData(obs=pd.DataFrame(index=NAMES), var=pd.DataFrame(index=SYMBOLS))
    for source, message in (
        (words, ": 'L_areaa', 'words' is 'x', it must be a number"),
        (expression() + 1j, "1j"),
        (nothing, ": has no X"),
        (twice, ": region 'L_areaa' is there twice"),
    ):
        refused(read_expression, source, message, "expression")
    path = written(tmp_path / "a.h5ad", GOOD)
    refused(read_expression, path, "is no .h5ad file that can be read")
