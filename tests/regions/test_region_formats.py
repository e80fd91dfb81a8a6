"""Whatever a file is written as, its regions, genes and pairs are the same; what is wrong with it is named."""

import gzip
import re
import sys
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from omniset.regions.formats import (
    Connectivity,
    Expression,
    hemisphere_of_name,
    read_connectivity,
    read_coordinates,
    read_expression,
)

# pandas 3 with anndata 0.12, which cannot write its new type of text.
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")


@pytest.fixture(autouse=True)
def text_as_objects():
    with pd.option_context("future.infer_string", False):
        yield


REGIONS, GENES = 13, 17
NAMES = [f"{side}_area{'abcdefg'[i % 7]}" for i, side in enumerate(["L"] * 7 + ["R"] * 6)]
SYMBOLS = ["A1BG", "HLA-A", "C2orf27A", "SST", "PVALB", "NKX2-1", "TP53", "GAD1", "GAD2", "VIP", "MT-CO1", "AGO1"]
SYMBOLS += ["BDNF", "DRD1", "DRD2", "GRIN1", "GRIN2B"]
IDS = [str(i + 1) for i in range(REGIONS)]


def refused(read, source, name, message):
    """It names the source first and then says what is wrong."""
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(source)
    assert str(error.value).startswith(str(name))


def expression(rows=NAMES, columns=SYMBOLS):
    values = np.random.default_rng(1).random((len(rows), len(columns))).round(6)
    values[3] = np.nan
    values[5, 2] = np.nan
    return pd.DataFrame(values, index=pd.Index(rows, dtype=object), columns=pd.Index(columns, dtype=object))


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def csv(frame, path, **options):
    frame.to_csv(path, **options)
    return path


def parquet(frame, path, **options):
    frame.to_parquet(path, **options)
    return path


def adata(frame, store=np.array):
    return anndata.AnnData(
        store(frame.to_numpy()), obs=pd.DataFrame(index=frame.index), var=pd.DataFrame(index=frame.columns)
    )


def h5ad(frame, path, store=np.array):
    adata(frame, store).write_h5ad(path)
    return path


EXPRESSIONS = {
    "csv": lambda f, p: csv(f, p / "a.csv"),
    "label": lambda f, p: csv(f, p / "a.csv", index_label="label"),
    "tsv.gz": lambda f, p: csv(f, p / "a.tsv.gz", sep="\t"),
    "csv.bz2": lambda f, p: csv(f, p / "a.csv.bz2"),
    "csv.xz": lambda f, p: csv(f, p / "A.CSV.xz"),
    "tabs in a csv": lambda f, p: csv(f, p / "a.csv", sep="\t", na_rep="NA"),
    "semicolons": lambda f, p: csv(f, p / "a.csv", sep=";", na_rep="NaN"),
    "spaces": lambda f, p: csv(f, p / "a.txt", sep=" ", na_rep="nan", index_label="region"),
    "quotes": lambda f, p: csv(f, p / "a.csv", quoting=2, na_rep="NA"),
    "byte order mark": lambda f, p: csv(f, p / "a.csv", encoding="utf-8-sig", index_label="label"),
    "Windows": lambda f, p: csv(f, p / "a.csv", lineterminator="\r\n"),
    "R": lambda f, p: written(p / "a.txt", csv(f, p / "b", sep=" ", na_rep="NA", quoting=2).read_text()[3:]),
    "names in column 2": lambda f, p: csv(f.rename_axis("label").reset_index(), p / "a.csv"),
    "blank lines": lambda f, p: written(
        p / "a.csv", csv(f, p / "b").read_text().replace("\n", "\n\n") + "," * f.shape[1] + "\n"
    ),
    "parquet": lambda f, p: parquet(f, p / "a.parquet"),
    "parquet, no index": lambda f, p: parquet(f.rename_axis("id").reset_index(), p / "a.parquet", index=False),
    "parquet, no title": lambda f, p: parquet(f.rename_axis("x").reset_index(), p / "a.parquet"),
    "h5ad": lambda f, p: h5ad(f, p / "a.h5ad"),
    "h5ad CSR": lambda f, p: h5ad(f, p / "a.h5ad", sp.csr_matrix),
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


@pytest.mark.parametrize("form", ["{}", "{}.0"])
def test_ids_of_an_atlas(form, tmp_path):
    """As abagen writes them, and as they are after pandas has had a row without id."""
    path = csv(expression([form.format(i) for i in IDS]), tmp_path / "a.csv", index_label="label")
    assert read_expression(path).frame.index.tolist() == IDS
    numbers = expression([float(i) if "." in form else int(i) for i in IDS]).rename_axis("label")
    assert read_expression(numbers).frame.index.tolist() == IDS
    assert read_expression(numbers.T).frame.index.tolist() == IDS


def test_ids_from_0_stay(tmp_path):
    path = csv(expression([str(i) for i in range(REGIONS)]), tmp_path / "a.csv")
    assert read_expression(path).frame.index.tolist() == [str(i) for i in range(REGIONS)]


# Which way round


@pytest.mark.parametrize(("regions", "genes"), [(31, 5), (5, 31), (13, 13)])
@pytest.mark.parametrize("kind", ["symbols", "Ensembl", "Ensembl, versions", "Ensembl of mice"])
@pytest.mark.parametrize("turned", [False, True])
def test_shape_says_nothing_about_the_side_of_the_genes(regions, genes, kind, turned):
    columns = {
        "symbols": [f"SLC{i}A{i + 1}" for i in range(genes)],
        "Ensembl": [f"ENSG{i:011d}" for i in range(genes)],
        "Ensembl, versions": [f"ENSG{i:011d}.{i}" for i in range(genes)],
        "Ensembl of mice": [f"ENSMUSG{i:011d}" for i in range(genes)],
    }[kind]
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
        assert f"such as {source.columns[0]!r} are taken for genes" in undecided.notes[0]


def test_aliases_are_genes_too():
    frame = expression(columns=[str(100 * i) for i in range(GENES)])
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


@pytest.mark.parametrize("kind", ["list", "dict", "files"])
def test_donors_are_averaged_over_what_each_measured(kind, tmp_path):
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
    if kind == "files":
        sources = [csv(donor, tmp_path / f"{number}.csv") for number, donor in enumerate(sources)]
    found = read_expression(dict(enumerate(sources)) if kind == "dict" else sources)
    # Rows and columns without any value are kept, where pandas leaves them out.
    pd.testing.assert_frame_equal(found.frame.loc[oracle.index, oracle.columns], oracle, check_names=False)
    assert set(found.frame.index) == set(np.concatenate([donor.index for donor in donors]))
    assert set(found.frame.columns) == set(np.concatenate([donor.columns for donor in donors]))
    shared = [
        len(set.intersection(*(set(names) for names in names_of)))
        for names_of in ([d.index for d in donors], [d.columns for d in donors])
    ]
    assert found.notes[-1] == (
        f"expression is the mean over 3 donors of what each measured; {shared[0]} of {len(found.frame)} regions and "
        f"{shared[1]} of {found.frame.shape[1]} genes are in the tables of all of them"
    )
    assert len(found.notes) == 2


def test_an_error_names_the_donor():
    bad = expression()
    bad.iloc[2, 1] = np.inf
    with pytest.raises(
        ValueError, match="^expression of donor '9861': region 'L_areac', gene 'HLA-A' is inf, it must be"
    ):
        read_expression({"1": expression(), "9861": bad})
    with pytest.raises(ValueError, match="^expression of donor 2: region 'L_areac'"):
        read_expression([expression(), bad])
    for nothing in ([], {}):
        with pytest.raises(ValueError, match="expression must be of one donor at least"):
            read_expression(nothing)


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


GOOD = "label,TP53,A1BG\nL_a,0.1,0.2\nL_b,0.3,0.4\n"
BAD_EXPRESSIONS = {
    "text": (GOOD.replace("0.3", "much"), "line 3: 'L_b', 'TP53' is 'much', it must be a number"),
    "decimal comma": (GOOD.replace("0.3", '"0,3"'), "line 3: 'L_b', 'TP53' is '0,3', it must be a number"),
    "underscore": (GOOD.replace("0.3", "1_0"), "line 3: 'L_b', 'TP53' is '1_0', it must be a number"),
    "infinite": (GOOD.replace("0.4", "-inf"), "region 'L_b', gene 'A1BG' is -inf, it must be finite"),
    "Infinity": (GOOD.replace("0.4", "Infinity"), "region 'L_b', gene 'A1BG' is inf, it must be finite"),
    "too large": (GOOD.replace("0.4", "1e39"), "region 'L_b', gene 'A1BG' is 1e+39, it must be finite, at most 3.4e38"),
    "region twice": (GOOD.replace("L_b", "L_a"), "region 'L_a' is there twice"),
    "region without name": (GOOD.replace("L_b", ""), "region 2 has no name"),
    "gene without name": (GOOD.replace("TP53", ""), "gene 1 has no name"),
    "too few fields": (GOOD.replace(",0.4", ""), "line 3: has 2 fields, the header has 3: is the file cut off?"),
    "too many fields": (GOOD.replace("0.4", "0.4,0.5"), "line 3: has 4 fields, the header has 3"),
    "header only": ("label,TP53,A1BG\n", "must have regions and genes, it has 0 x 2"),
    "one column": ("label\nL_a\n", "line 1: has one column only"),
    "names only": ("label,gene\nL_a,L_b\n", "must have regions and genes, it has 1 x 0"),
    "empty": ("\n \n", "is empty"),
    "open quote": (GOOD.replace("L_b", '"L_b'), "line 3: has a quote"),
    "UTF-16": (GOOD.encode("utf-16"), "line 1: is not UTF-8 text"),
    "Latin-1": (GOOD.replace("L_b", "L_ü").encode("latin-1"), "line 3: is not UTF-8 text"),
}


@pytest.mark.parametrize("kind", BAD_EXPRESSIONS)
def test_what_is_wrong_with_an_expression(kind, tmp_path):
    text, message = BAD_EXPRESSIONS[kind]
    path = tmp_path / "a.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(read_expression, path, path, message)


@pytest.mark.parametrize("reader", [read_expression, read_connectivity, read_coordinates])
def test_files_that_are_none(reader, tmp_path):
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(GOOD.encode() * 99)[:40])
    written(tmp_path / "a.parquet", GOOD)
    written(tmp_path / "a.xlsx", GOOD)
    with pytest.raises(ValueError, match="cut.csv.gz: is cut off or not a whole compressed file"):
        reader(tmp_path / "cut.csv.gz")
    with pytest.raises(ValueError, match="a.parquet: is cut off, damaged or no Parquet file"):
        reader(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a.xlsx: the name must end in .csv, .tsv or .txt .* or .parquet"):
        reader(tmp_path / "a.xlsx")
    with pytest.raises(ValueError, match="is a directory, it must be a file"):
        reader(tmp_path)
    for name in ("none.csv", "none.parquet", "none.npy", "none.mat", "none.h5ad"):
        with pytest.raises(FileNotFoundError, match=name):
            reader(tmp_path / name)
    with pytest.raises(ValueError, match=r"^(expression|connectivity|coordinates) must be a file.*, got int"):
        reader(3)


def test_objects_that_are_no_expression(tmp_path):
    frame = expression()
    frame.insert(2, "words", "x")
    with pytest.raises(ValueError, match="^expression: 'L_areaa', 'words' is 'x', it must be a number"):
        read_expression(frame)
    with pytest.raises(ValueError, match="^expression: 'L_areaa', 'A1BG' is .*1j.*, it must be a number"):
        read_expression(expression() + 1j)
    with pytest.raises(ValueError, match="^expression must have regions and genes, it has 13 x 0"):
        read_expression(expression()[[]])
    with pytest.raises(ValueError, match="^expression: has no X"):
        read_expression(anndata.AnnData(obs=pd.DataFrame(index=NAMES), var=pd.DataFrame(index=SYMBOLS)))
    twice = adata(expression())
    twice.obs_names = [NAMES[0], *NAMES[:-1]]
    with pytest.raises(ValueError, match="^expression: region 'L_areaa' is there twice"):
        read_expression(twice)
    with pytest.raises(ValueError, match="a.h5ad: is no .h5ad file that can be read"):
        read_expression(written(tmp_path / "a.h5ad", GOOD))


# Connectivity


def connectivity(size=REGIONS):
    matrix = np.random.default_rng(2).normal(0.3, 0.2, (size, size)).round(6)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    np.fill_diagonal(matrix, 1)
    matrix[2, 4] = matrix[4, 2] = np.nan
    return matrix


def truth(matrix=None):
    matrix = connectivity() if matrix is None else matrix.copy()
    np.fill_diagonal(matrix, np.nan)
    return matrix


def named(names=NAMES):
    return pd.DataFrame(connectivity(), index=pd.Index(names, dtype=object), columns=pd.Index(names, dtype=object))


def edges(names, rng=None, diagonal=True):
    """Each pair once, either way round."""
    matrix = connectivity()
    rows = []
    for i in range(REGIONS):
        for j in range(i if diagonal else i + 1, REGIONS):
            a, b = (i, j) if rng is None or rng.random() < 0.5 else (j, i)
            rows.append((names[a], names[b], matrix[i, j]))
    frame = pd.DataFrame(rows, columns=["i", "j", "weight"])
    return frame if rng is None else frame.iloc[rng.permutation(len(frame))]


def lines(matrix, path, separator=","):
    np.savetxt(path, matrix, delimiter=separator)
    return path


def mat(path, **arrays):
    scipy.io.savemat(path, arrays)
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def npy(path, array):
    np.save(path, array)
    return path


def mat73(path, names=None, key="connectivity", matrix=None):
    """As MATLAB lays out a v7.3 file: a header of its own, arrays column by column, cell arrays of references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file[key] = (connectivity() if matrix is None else matrix).T
        file[key].attrs["MATLAB_class"] = np.bytes_("double")
        file["note"] = np.array([[ord(c)] for c in "resting state"], dtype=np.uint16)
        file["note"].attrs["MATLAB_class"] = np.bytes_("char")
        file["nothing"] = np.zeros(2, dtype=np.uint64)
        file["nothing"].attrs["MATLAB_empty"] = 1
        if names:
            texts = []
            for number, name in enumerate(names):
                held = file.create_dataset(f"#refs#/{number}", data=np.array([[ord(c)] for c in name], dtype=np.uint16))
                held.attrs["MATLAB_class"] = np.bytes_("char")
                texts.append(held.ref)
            file.create_dataset("labels", data=np.array([texts], dtype=h5py.ref_dtype))
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    return path


def cells(names):
    return np.array(names, dtype=object)


UPPER = np.triu_indices(REGIONS, 1)
VECTOR = connectivity()[UPPER]
SQUARES = {  # a source, and the names it gives
    "csv, all names": (lambda p: csv(named(), p / "a.csv"), NAMES),
    "csv, titled corner": (lambda p: csv(named(), p / "a.csv", index_label="region"), NAMES),
    "csv, header": (lambda p: csv(named(), p / "a.csv", index=False), NAMES),
    "csv, index": (lambda p: csv(named(), p / "a.csv", header=False), NAMES),
    "csv, no names": (lambda p: csv(named(), p / "a.csv", header=False, index=False), None),
    "csv, empty diagonal": (lambda p: csv(pd.DataFrame(truth()), p / "a.csv", header=False, index=False), None),
    "savetxt": (lambda p: lines(connectivity(), p / "a.txt", " "), None),
    "savetxt.gz": (lambda p: lines(connectivity(), p / "a.tsv.gz", "\t"), None),
    "semicolons": (lambda p: csv(named(), p / "a.csv", sep=";"), NAMES),
    "R": (
        lambda p: written(p / "a.txt", csv(named(), p / "b", sep=" ", na_rep="NA", quoting=2).read_text()[3:]),
        NAMES,
    ),
    "columns in another order": (lambda p: csv(named()[NAMES[::-1]], p / "a.csv"), NAMES),
    "ids, all": (lambda p: csv(named(IDS), p / "a.csv"), IDS),
    "ids, titled corner": (lambda p: csv(named(IDS), p / "a.csv", index_label="label"), IDS),
    "ids, header": (lambda p: csv(named(IDS), p / "a.csv", index=False), IDS),
    "ids, index": (lambda p: csv(named(IDS), p / "a.csv", header=False), IDS),
    "ids as floats": (lambda p: csv(named([f"{i}.0" for i in IDS]), p / "a.csv"), IDS),
    "ids in columns in another order": (lambda p: csv(named(IDS)[IDS[::-1]], p / "a.csv"), IDS),
    "ids in rows, names in columns": (lambda p: csv(named().set_axis(range(REGIONS)), p / "a.csv"), NAMES),
    "names in rows, ids in columns": (lambda p: csv(named().set_axis(range(REGIONS), axis=1), p / "a.csv"), NAMES),
    "a count": (lambda p: csv(pd.DataFrame(connectivity()), p / "a.csv"), None),
    "a count, header": (lambda p: csv(pd.DataFrame(connectivity()), p / "a.csv", index=False), None),
    "parquet": (lambda p: parquet(named(), p / "a.parquet"), NAMES),
    "parquet, column": (lambda p: parquet(named().rename_axis("x").reset_index(), p / "a.parquet"), NAMES),
    "parquet, columns only": (lambda p: parquet(named().reset_index(drop=True), p / "a.parquet"), NAMES),
    "parquet, ids": (lambda p: parquet(named(IDS), p / "a.parquet"), IDS),
    "parquet, no names": (lambda p: parquet(pd.DataFrame(connectivity()).rename(columns=str), p / "a.parquet"), None),
    "DataFrame": (lambda p: named(), NAMES),
    "DataFrame, index only": (lambda p: named().set_axis(range(REGIONS), axis=1), NAMES),
    "DataFrame, ids": (lambda p: named([int(i) for i in IDS]), IDS),
    "DataFrame, id column": (lambda p: named(IDS).rename_axis("x").reset_index().astype({"x": int}), IDS),
    "DataFrame, no names": (lambda p: pd.DataFrame(connectivity()), None),
    "npy": (lambda p: npy(p / "a.npy", connectivity()), None),
    "npz": (lambda p: npz(p / "a.npz", whatever=connectivity()), None),
    "npz, several": (lambda p: npz(p / "a.npz", other=np.eye(7), Connectivity=connectivity()), None),
    "npz, only square": (lambda p: npz(p / "a.npz", xyz=np.ones((REGIONS, 3)), m=connectivity(), n=np.ones(9)), None),
    "npz, names": (lambda p: npz(p / "a.npz", m=connectivity(), names=np.array(NAMES)), NAMES),
    "npz, bytes": (lambda p: npz(p / "a.npz", m=connectivity(), labels=np.array(NAMES, dtype="S")), NAMES),
    "npz, networks": (lambda p: npz(p / "a.npz", m=connectivity(), label=["Vis"] * REGIONS, names=["a", "b"]), None),
    "npz, objects": (lambda p: npz(p / "a.npz", m=connectivity(), names=cells(NAMES)), None),
    "mat": (lambda p: mat(p / "a.mat", connectivity=connectivity(), other=np.eye(5)), None),
    "mat, only square": (lambda p: mat(p / "a.mat", sc=connectivity(), n=13.0, xyz=np.ones((REGIONS, 3))), None),
    "mat, names": (lambda p: mat(p / "a.mat", sc=connectivity(), labels=cells(NAMES), who="me"), NAMES),
    "mat, characters": (lambda p: mat(p / "a.mat", sc=connectivity(), region=np.array(NAMES)), NAMES),
    "mat, sparse": (lambda p: mat(p / "a.mat", sc=sp.csc_matrix(connectivity())), None),
    "mat 7.3": (lambda p: mat73(p / "a.mat"), None),
    "mat 7.3, names": (lambda p: mat73(p / "a.mat", NAMES, "sc"), NAMES),
    "array": (lambda p: connectivity(), None),
    "list": (lambda p: connectivity().tolist(), None),
    "sparse": (lambda p: sp.csr_array(connectivity()), None),
    "triangle": (lambda p: VECTOR, None),
    "triangle, line": (lambda p: lines(VECTOR[None], p / "a.csv"), None),
    "triangle, column": (lambda p: lines(VECTOR, p / "a.txt"), None),
    "triangle, npy": (lambda p: npy(p / "a.npy", VECTOR), None),
    "triangle, mat": (lambda p: mat(p / "a.mat", fc=VECTOR[:, None]), None),
    "edges": (lambda p: csv(edges(NAMES), p / "a.csv", index=False), NAMES),
    "edges, counted": (lambda p: csv(edges(NAMES), p / "a.csv"), NAMES),
    "edges, no header": (lambda p: csv(edges(NAMES), p / "a.tsv", index=False, header=False, sep="\t"), NAMES),
    "edges, no diagonal": (lambda p: csv(edges(NAMES, diagonal=False), p / "a.csv", index=False), NAMES),
    "edges, ids": (lambda p: csv(edges(IDS), p / "a.csv", index=False), IDS),
    "edges, ids without header": (lambda p: csv(edges(IDS), p / "a.csv", index=False, header=False), IDS),
    "edges, positions": (lambda p: csv(edges(list(range(REGIONS))), p / "a.csv", index=False), None),
    "edges, titled": (
        lambda p: csv(
            edges(NAMES).set_axis(["Region.1", "Region.2", "any"], axis=1)[::-1][::-1], p / "a.csv", index=False
        ),
        NAMES,
    ),
    "edges, more columns": (
        lambda p: csv(
            edges(NAMES).assign(p=0.5).set_axis(["source", "target", "r", "p"], axis=1)[["p", "r", "target", "source"]],
            p / "a.csv",
            index=False,
        ),
        NAMES,
    ),
    "edges, parquet": (lambda p: parquet(edges(NAMES), p / "a.parquet"), NAMES),
    "edges, DataFrame": (lambda p: edges([int(i) for i in IDS]), IDS),
    "edges, both ways": (
        lambda p: pd.concat([edges(NAMES), edges(NAMES).set_axis(["j", "i", "weight"], axis=1)]),
        NAMES,
    ),
}


@pytest.mark.parametrize("format", SQUARES)
def test_every_format_gives_the_same_connectivity(format, tmp_path):
    make, names = SQUARES[format]
    source = make(tmp_path)
    found = read_connectivity(str(source) if isinstance(source, Path) else source)
    assert isinstance(found, Connectivity)
    assert found.names == names
    np.testing.assert_array_equal(found.matrix, truth())
    assert found.matrix.dtype == np.float64
    of = source if isinstance(source, Path) else "connectivity"
    assert found.notes[-1] == f"{of}: 1 pair among the other regions are not known"


def test_edges_in_any_order_and_either_way_round():
    found = read_connectivity(edges(NAMES, np.random.default_rng(5)))
    at = [found.names.index(name) for name in NAMES]
    np.testing.assert_array_equal(found.matrix[np.ix_(at, at)], truth())


def test_the_array_given_is_not_touched():
    matrix = connectivity()
    matrix[0, 1] = matrix[1, 0] = -0.5
    for source in (matrix, matrix[None], pd.DataFrame(matrix)):
        before = matrix.copy()
        read_connectivity(source, fisher_z=True, zero_negative=True)
        np.testing.assert_array_equal(matrix, before)


# A region between others has no edge, the last one none, either way of counting.
@pytest.mark.parametrize(("begin", "last"), [(0, REGIONS - 1), (0, REGIONS - 2), (1, REGIONS - 1)])
def test_edges_of_positions(begin, last):
    rows = [(i + begin, j + begin, i + j / 7) for i in range(last + 1) for j in range(i) if 3 not in (i, j)]
    found = read_connectivity(pd.DataFrame(rows, columns=["i", "j", "weight"]), regions=NAMES)
    assert found.names is None
    assert found.matrix.shape == (REGIONS, REGIONS)
    for i, j, weight in rows:
        assert found.matrix[i - begin, j - begin] == found.matrix[j - begin, i - begin] == weight
    assert np.isfinite(found.matrix).sum() == 2 * len(rows)
    assert f"numbers of regions count from {begin}, they are taken for positions, not for names" in found.notes[0]


def test_edges_that_may_count_from_0_or_1_are_between_names():
    rows = [(i, j, i + j / 7) for i in range(1, REGIONS - 2) for j in range(1, i)]
    frame = pd.DataFrame(rows, columns=["i", "j", "weight"])
    assert set(read_connectivity(frame, regions=NAMES).names) == {str(i) for i in range(1, REGIONS - 2)}
    assert set(read_connectivity(frame, regions=IDS).names) == {str(i) for i in range(1, REGIONS - 2)}
    from_0 = frame - [1, 1, 0]
    assert read_connectivity(from_0, regions=[str(i) for i in range(REGIONS)]).names is not None


def test_a_count_is_names_where_the_expression_has_them():
    counted = [str(i) for i in range(REGIONS)]
    frame = pd.DataFrame(connectivity(), counted, counted)
    assert read_connectivity(frame, regions=counted).names == counted
    found = read_connectivity(frame, regions=IDS)  # 1 to 13: names would be one off
    assert found.names is None
    assert "0, 1, ... beside the matrix are taken for a count, not for names" in found.notes[0]


def test_numbers_of_an_atlas_are_names_too():
    ids = [str(1000 + 3 * i) for i in range(REGIONS)]
    peeled = np.full((REGIONS + 1, REGIONS + 1), np.nan)
    peeled[1:, 1:], peeled[0, 1:], peeled[1:, 0] = connectivity(), [int(i) for i in ids], [int(i) for i in ids]
    for source in (peeled, peeled[:, 1:], peeled[1:]):
        found = read_connectivity(source)
        assert found.names == ids
        np.testing.assert_array_equal(found.matrix, truth())


def test_a_parcellated_connectome(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    voxels = [np.array([[i, 0, 0]]) for i in range(REGIONS)]
    axis = nibabel.cifti2.ParcelsAxis(NAMES, voxels, [{}] * REGIONS, np.eye(4), (REGIONS, 1, 1), {})
    values = np.nan_to_num(connectivity()).astype(np.float32)
    nibabel.Cifti2Image(values, (axis, axis)).to_filename(tmp_path / "a.pconn.nii")
    found = read_connectivity(tmp_path / "a.pconn.nii")
    assert found.names == NAMES
    np.testing.assert_array_equal(found.matrix, truth(values.astype(np.float64)))
    (tmp_path / "b.pconn.nii").write_bytes((tmp_path / "a.pconn.nii").read_bytes()[:700])
    with pytest.raises(ValueError, match="b.pconn.nii: is no .pconn.nii file, or damaged"):
        read_connectivity(tmp_path / "b.pconn.nii")


@pytest.mark.parametrize(
    ("module", "file", "package"),
    [
        ("nibabel", "a.pconn.nii", "nibabel"),
        ("h5py", "a.mat", "'omniset[cells]'"),
        ("anndata", "a.h5ad", "'omniset[cells]'"),
    ],
)
def test_what_a_format_needs_is_said(module, file, package, tmp_path, monkeypatch):
    mat73(tmp_path / file)
    monkeypatch.setitem(sys.modules, module, None)
    reader = read_expression if module == "anndata" else read_connectivity
    with pytest.raises(ImportError) as error:
        reader(tmp_path / file)
    assert str(error.value) == f"{tmp_path / file} needs {module}: pip install {package}"


# Subjects, transformations


def subjects(number=5):
    rng = np.random.default_rng(4)
    stack = rng.uniform(-0.9, 0.9, (number, REGIONS, REGIONS))
    stack = np.triu(stack, 1) + np.triu(stack, 1).transpose(0, 2, 1)
    stack[1, 2, 3] = stack[1, 3, 2] = np.nan
    stack[:, 4, 5] = stack[:, 5, 4] = np.nan
    stack[:, np.arange(REGIONS), np.arange(REGIONS)] = 1
    return stack


def mean_of_subjects(stack):
    expected = np.full(stack.shape[1:], np.nan)
    for i in range(REGIONS):
        for j in range(REGIONS):
            there = [value for value in stack[:, i, j].tolist() if value == value]
            if i != j and there:
                expected[i, j] = sum(there) / len(there)
    return expected


STACKS = {
    "array": lambda s, p: s,
    "subjects last": lambda s, p: s.transpose(1, 2, 0),
    "list": lambda s, p: list(s),
    "npy": lambda s, p: npy(p / "a.npy", s),
    "npz": lambda s, p: npz(p / "a.npz", subjects=s, age=np.ones(len(s))),
    "mat": lambda s, p: mat(p / "a.mat", subjects=s.transpose(1, 2, 0)),
    "triangles": lambda s, p: s[:, *UPPER],
    "triangles, csv": lambda s, p: lines(s[:, *UPPER], p / "a.csv"),
    "triangles, titled csv": lambda s, p: csv(
        pd.DataFrame(
            s[:, *UPPER], [f"sub-{i}" for i in range(len(s))], [f"{i}-{j}" for i, j in zip(*UPPER, strict=True)]
        ),
        p / "a.csv",
    ),
}


@pytest.mark.parametrize("number", [5, REGIONS])
@pytest.mark.parametrize("format", STACKS)
def test_subjects_are_averaged(format, number, tmp_path):
    source = STACKS[format](subjects(number), tmp_path)
    found = read_connectivity(source)
    np.testing.assert_allclose(found.matrix, mean_of_subjects(subjects(number)), rtol=0, atol=1e-14)
    assert found.names is None
    of = source if isinstance(source, Path) else "connectivity"
    assert f"{of} is the mean over {number} subjects" in found.notes
    if "triangles" in format:
        assert found.notes[0] == f"{of}: 78 values are taken as the upper triangle of 13 regions, row by row"


def test_fisher_z_is_taken_of_each_subject():
    stack = subjects()
    ones = stack.copy()
    ones[:, np.arange(REGIONS), np.arange(REGIONS)] = 0.5
    expected = mean_of_subjects(0.5 * np.log((1 + ones) / (1 - ones)))
    found = read_connectivity(stack, fisher_z=True)
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-12)
    assert "connectivity: values are Fisher's z of what the source has" in found.notes


def test_negative_values_to_0():
    matrix = connectivity()
    matrix[0, 1] = matrix[1, 0] = -0.25
    negative = np.triu(matrix < 0, 1).sum()
    found = read_connectivity(matrix, zero_negative=True)
    np.testing.assert_array_equal(found.matrix, truth(np.where(matrix < 0, 0, matrix)))
    assert f"connectivity: {negative} pairs of negative connectivity are set to 0" in found.notes
    both = read_connectivity(matrix, fisher_z=True, zero_negative=True).matrix
    np.testing.assert_allclose(both, np.arctanh(truth(np.where(matrix < 0, 0, matrix))), rtol=1e-12)


@pytest.mark.parametrize("value", [1.0, -1.0, 1.5])
def test_correlations_of_1_have_no_fisher_z(value):
    matrix = connectivity()
    matrix[2, 7] = matrix[7, 2] = value
    with pytest.raises(
        ValueError, match=f"^connectivity: pair 'L_areac', 'R_areaa' is {value:g}, with fisher_z it must be"
    ):
        read_connectivity(pd.DataFrame(matrix, NAMES, NAMES), fisher_z=True)
    assert read_connectivity(matrix).matrix[2, 7] == value


@pytest.mark.parametrize("diagonal", [0.0, 1.0, np.nan, np.inf, 99.0])
def test_the_diagonal_is_not_read(diagonal):
    matrix = connectivity()
    np.fill_diagonal(matrix, diagonal)
    np.testing.assert_array_equal(read_connectivity(matrix, fisher_z=True).matrix, np.arctanh(truth()))


# Symmetry, unknown pairs


def test_what_is_not_symmetric_is_named(tmp_path):
    matrix = connectivity()
    matrix[6, 8] += 2e-6
    matrix[9, 7] = 5
    path = csv(pd.DataFrame(matrix, NAMES, NAMES), tmp_path / "a.csv")
    message = f"is not symmetric at 2 pair(s): pair 'L_areag', 'R_areab' is {matrix[6, 8]:g}, the other way "
    message += f"{matrix[8, 6]:g}; give directed=True if connectivity has a direction"
    refused(read_connectivity, path, path, message)
    np.testing.assert_array_equal(read_connectivity(path, directed=True).matrix, truth(matrix))
    with pytest.raises(ValueError, match="^connectivity: subject 2 is not symmetric at 2 pair.* regions 7 and 9 is"):
        read_connectivity(np.stack([connectivity(), matrix]))
    with pytest.raises(ValueError, match="one triangle is all 0: fill it"):
        read_connectivity(np.nan_to_num(np.triu(connectivity())))


def test_symmetry_has_a_tolerance_by_pair():
    matrix = connectivity()
    matrix[6, 8] += 1e-7
    matrix[1, 0], matrix[0, 1] = 1e6, 1e6 + 0.5  # single precision
    expected = truth(matrix)
    expected[6, 8] = expected[8, 6] = (matrix[6, 8] + matrix[8, 6]) / 2
    expected[0, 1] = expected[1, 0] = 1e6 + 0.25
    np.testing.assert_array_equal(read_connectivity(matrix).matrix, expected)
    matrix[6, 8] += 1e-5  # beside large values all the same
    with pytest.raises(ValueError, match="not symmetric at 1 pair"):
        read_connectivity(matrix)


def test_a_pair_given_one_way_is_taken_for_both_unless_directed():
    matrix = connectivity()
    matrix[np.tril_indices(REGIONS)] = np.nan
    found = read_connectivity(matrix)
    np.testing.assert_array_equal(found.matrix, truth())
    assert found.notes[0] == "connectivity: 77 pair(s) are given one way only, which is taken for both"
    directed = read_connectivity(matrix, directed=True)
    np.testing.assert_array_equal(directed.matrix, truth(matrix))
    assert directed.notes == ["connectivity: 79 pairs among the other regions are not known"]


@pytest.mark.parametrize("format", ["mat", "mat 7.3", "npy", "npz", "csv", "parquet"])
def test_a_direction_is_that_from_row_to_column(format, tmp_path):
    matrix = np.random.default_rng(6).random((REGIONS, REGIONS))
    frame = pd.DataFrame(matrix, NAMES, NAMES)
    source = {
        "mat": lambda: mat(tmp_path / "a.mat", sc=matrix),
        "mat 7.3": lambda: mat73(tmp_path / "a.mat", matrix=matrix),
        "npy": lambda: npy(tmp_path / "a.npy", matrix),
        "npz": lambda: npz(tmp_path / "a.npz", sc=matrix),
        "csv": lambda: csv(frame, tmp_path / "a.csv"),
        "parquet": lambda: parquet(frame, tmp_path / "a.parquet"),
    }[format]()
    np.testing.assert_array_equal(read_connectivity(source, directed=True).matrix, truth(matrix))


def test_edges_with_a_direction():
    rows = [("a", "b", 1.0), ("b", "a", 2.0), ("b", "c", 3.0), ("c", "c", 9.0)]
    frame = pd.DataFrame(rows, columns=["from", "to", "weight"])
    found = read_connectivity(frame, directed=True)
    nan = np.nan
    np.testing.assert_array_equal(found.matrix, [[nan, 1, nan], [2, nan, 3], [nan, nan, nan]])
    with pytest.raises(ValueError, match="^connectivity: the pair 'b', 'a' is there twice, 1 and 2"):
        read_connectivity(frame)


def test_regions_without_a_known_pair_are_kept_and_counted():
    matrix = connectivity()
    matrix[[3, 5]] = matrix[:, [3, 5]] = np.nan
    found = read_connectivity(matrix)
    np.testing.assert_array_equal(found.matrix, truth(matrix))
    assert found.notes == [
        "connectivity: 2 of 13 regions have no known pair",
        "connectivity: 1 pair among the other regions are not known",
    ]


def other(change):
    matrix = connectivity()
    change(matrix)
    return matrix


def put(at, value):
    return lambda matrix: matrix.__setitem__(at, value)


ROW = "a,b,weight\n"
BAD_SQUARES = {
    "constant": (np.ones((7, 7)), "is 1 for every pair of regions: there is nothing to predict"),
    "constant but for the diagonal": (np.eye(7), "is 0 for every pair of regions"),
    "nothing known": (np.full((7, 7), np.nan), "has no known pair of regions"),
    "infinite": (other(put(([1, 2], [2, 1]), np.inf)), "the pair of regions 2 and 3 is inf, it must be finite"),
    "too large": (
        other(put(([1, 2], [2, 1]), -1e39)),
        "the pair of regions 2 and 3 is -1e+39, it must be finite, at most",
    ),
    "not square": (np.ones((7, 5)), "must be a square, or have the N(N-1)/2 values of an upper triangle; it is 7 x 5"),
    "no triangle": (np.ones(7), "must be a square, or have the N(N-1)/2 values of an upper triangle; it is 1 x 7"),
    "a number": (np.array(1.0), "must be regions x regions, it is "),
    "one region": (np.ones((1, 1)), "has 1 regions, a pair needs 2"),
    "no region": (np.ones((0, 0)), "has 0 regions, a pair needs 2"),
    "no subject": (np.ones((0, 7, 7)), "has no known pair"),
    "four axes": (np.ones((2, 3, 7, 7)), "must be regions x regions, it is 2 x 3 x 7 x 7"),
    "no stack": (np.ones((2, 3, 4)), "a stack must be subjects x regions x regions, it is 2 x 3 x 4"),
    "complex": (np.ones((7, 7)) * 1j, "must be of numbers, it is of complex128"),
    "words": (np.array([["a", "b"]]), "must be of numbers, it is of <U1"),
    "ragged": ([[1, 2], [3]], "is no array of numbers"),
    "other columns": (named().rename(columns={"L_areaa": "x"}), "only in rows: 'L_areaa'; only in columns: 'x'"),
    "a name twice": (named([NAMES[0], *NAMES[:-1]]), "region 'L_areaa' is there twice"),
    "no name": (named(["", *NAMES[1:]]), "region 1 has no name"),
    "text in a frame": (named().astype(object).replace(1.0, "x"), "'L_areaa', 'L_areaa' is 'x', it must be a number"),
    "text": (",a,b\na,1,x\nb,2,1\n", "line 2: pair 'a', 'b' is 'x', it must be a number"),
    "text without names": ("1,2,3\n2,1,4\n3,x,1\n1,2,3\n", "line 3: pair '3', '2' is 'x', it must be a number"),
    "cut off": (",a,b\na,1,2\nb,2\n", "line 3: has 2 fields, the first line has 3: is the file cut off?"),
    "header only": ("a,b,c\n", "has no rows below its header"),
    "edges, text": (ROW + "a,b,1\na,c,2\na,d,x\na,e,1\n", "line 4: the weight of 'a', 'd' is 'x', it must be a number"),
    "edges, no name": (ROW + "a,b,1\n,c,2\na,d,3\na,e,1\n", "line 3: names one region only, an edge has two"),
    "edges, twice": (ROW + "a,b,1\na,c,2\nb,a,3\na,e,1\n", "the pair 'b', 'a' is there twice, 1 and 3"),
    "edges, unknown twice": (ROW + "a,b,\na,c,2\nb,a,3\na,e,1\n", "the pair 'b', 'a' is there twice, nan and 3"),
    "edges, numbers": (
        "".join(f"{i}.5,{i}.25,1\n" for i in range(7)),
        "must be between names or whole numbers, they are",
    ),
    "edges, none": ("i,j,weight\n", "has no edges"),
    "edges, infinite": (ROW + "a,b,1\na,c,2\nb,d,inf\na,e,1\n", "pair 'b', 'd' is inf, it must be finite"),
}


@pytest.mark.parametrize("kind", BAD_SQUARES)
def test_what_is_wrong_with_a_connectivity(kind, tmp_path):
    source, message = BAD_SQUARES[kind]
    name = "connectivity"
    if isinstance(source, str):
        source = written(tmp_path / "a.csv", source)
        name = str(source)
    refused(read_connectivity, source, name, message)


def test_too_many_regions_of_edges(monkeypatch):
    monkeypatch.setattr("omniset.regions.formats.MOST", REGIONS - 1)
    with pytest.raises(ValueError, match="^connectivity: edges are between 13 regions, at most 12 can be read"):
        read_connectivity(edges(NAMES))


def test_files_of_arrays_that_do_not_say_which(tmp_path):
    two = npz(tmp_path / "a.npz", fc=np.eye(3), sc=np.eye(5), n=np.ones(2))
    message = "must have one square array, or one called 'connectivity'; it has fc (3 x 3), sc (5 x 5), n (2)"
    refused(read_connectivity, two, two, message)
    with pytest.raises(ValueError, match="or one called 'connectivity'; it has none"):
        read_connectivity(npz(tmp_path / "b.npz"))
    for name, said in (("a.npy", "is no array of NumPy"), ("a.npz", "is no .npz file"), ("a.mat", "is no .mat file")):
        with pytest.raises(ValueError, match=f"{name}: {said}"):
            read_connectivity(written(tmp_path / name, GOOD))
    np.save(tmp_path / "c.npy", cells(NAMES))
    with pytest.raises(ValueError, match="c.npy: is no array of NumPy, or damaged .*allow_pickle"):
        read_connectivity(tmp_path / "c.npy")


# Coordinates


PLACES = np.random.default_rng(8).uniform(-70, 70, (REGIONS, 3)).round(4)
SIDES = [name[0] for name in NAMES]


def places(columns=("x", "y", "z"), names=NAMES, **more):
    frame = pd.DataFrame(PLACES, columns=list(columns)).assign(**more)
    frame.insert(0, "region", names)
    return frame


COORDINATES = {
    "csv": lambda p: csv(places(), p / "a.csv", index=False),
    "tsv.gz": lambda p: csv(places(), p / "a.tsv.gz", index=False, sep="\t"),
    "spaces": lambda p: csv(places(), p / "a.txt", index=False, sep=" "),
    "counted": lambda p: csv(places(), p / "a.csv"),
    "index": lambda p: csv(places().set_index("region"), p / "a.csv"),
    "index without title": lambda p: csv(places().set_index("region").rename_axis(None), p / "a.csv"),
    "R": lambda p: csv(places().set_index("region").rename_axis(None), p / "a.csv", index_label=False),
    "any first title": lambda p: csv(places().rename(columns={"region": "parcel"}), p / "a.csv", index=False),
    "label": lambda p: csv(places(ID=IDS).rename(columns={"region": "Label"}), p / "a.csv", index=False),
    "columns in another order": lambda p: csv(places()[["z", "x", "region", "y"]], p / "a.csv", index=False),
    "mni_x": lambda p: csv(places(["mni_x", "mni_y", "mni_z"], x=1, y=2, z=3), p / "a.csv", index=False),
    "X_MNI": lambda p: csv(places(["X_MNI", "Y_MNI", "Z_MNI"]), p / "a.csv", index=False),
    "MNI.X": lambda p: csv(places(["MNI.X", "MNI.Y", "MNI.Z"]), p / "a.csv", index=False),
    "XYZ": lambda p: csv(places(["X", "Y", "Z"]), p / "a.csv", index=False),
    "RAS": lambda p: csv(places(["R", "A", "S"]), p / "a.csv", index=False),
    "parquet": lambda p: parquet(places(), p / "a.parquet"),
    "parquet, index": lambda p: parquet(places().set_index("region"), p / "a.parquet"),
    "DataFrame": lambda p: places(),
    "DataFrame, index": lambda p: places().set_index("region"),
    "DataFrame, index without title": lambda p: places(id=IDS).set_index("region").rename_axis(None),
}


@pytest.mark.parametrize("format", COORDINATES)
def test_every_format_gives_the_same_coordinates(format, tmp_path):
    found = read_coordinates(COORDINATES[format](tmp_path))
    assert found.index.tolist() == NAMES
    assert found.columns.tolist() == ["x", "y", "z", "hemisphere"]
    np.testing.assert_array_equal(found[["x", "y", "z"]].to_numpy(), PLACES)
    assert found["hemisphere"].tolist() == SIDES
    assert found.attrs["notes"] == []


def test_the_column_of_names_is_the_one_that_the_expression_has():
    """An atlas with an id, a label that is there twice (left and right), and a name."""
    frame = places(id=[f"{i}.0" for i in IDS], label=[name[2:] for name in NAMES])
    assert read_coordinates(frame).index.tolist() == NAMES
    assert read_coordinates(frame, regions=IDS[::-1]).index.tolist() == IDS
    assert read_coordinates(frame.drop(columns="region")).index.tolist() == IDS
    with pytest.raises(ValueError, match="^coordinates: region 'areaa' is there twice"):
        read_coordinates(frame.drop(columns=["region", "id"]))


@pytest.mark.parametrize("title", ["hemisphere", "Hemi"])
def test_hemispheres_of_a_column(title):
    words = ["L", "lh", "LEFT", "R", "rh", "Right", "", "B", "midline", None, "left", "NA", "both"]
    found = read_coordinates(places(**{title: words}))
    assert found["hemisphere"].tolist() == ["L", "L", "L", "R", "R", "R", "", "", "", "", "L", "", ""]
    assert found.attrs["notes"] == []
    with pytest.raises(
        ValueError, match="^coordinates: region 'L_areab': hemisphere is 'up', it must be L, R or empty"
    ):
        read_coordinates(places(**{title: ["L", "up", *words[2:]]}))


def test_names_tell_the_hemisphere_before_x_does():
    names = ["7Networks_LH_Vis_1", "ctx-rh-cuneus", "V1_L", "Right Thalamus", "lh.bankssts", "R_V1_ROI"]
    names += ["Laccumb", "Rthal", "brainstem", "L", "area_R_1", "LHipp", "left"]
    x = np.array([5, -5, 5, -5, 5, -5, -9, 9, 0, -1, -2, 3, 4.0])
    found = read_coordinates(pd.DataFrame({"region": names, "x": x, "y": 0, "z": 0}))
    assert found["hemisphere"].tolist() == ["L", "R", "L", "R", "L", "R", "L", "R", "", "L", "L", "R", "R"]
    assert found.attrs["notes"] == [
        "coordinates: the hemisphere of 7 of 13 regions, such as 'Laccumb', is that of the sign of x"
    ]
    assert [hemisphere_of_name(name) for name in names[6:]] == [""] * 7


SCHAEFER = ["7Networks_LH_Vis_1", "17Networks_RH_DefaultA_PFCm_2", "7Networks_RH_Cont_Par_1", "7Networks_LH_Limbic"]
SCHAEFER += ["Laccumb", "Rthal", "x", "y"]


def test_networks():
    frame = pd.DataFrame({"region": SCHAEFER, "x": 1.0, "y": 2.0, "z": 3.0})
    assert "network" not in read_coordinates(frame.tail(4))
    assert read_coordinates(frame)["network"].tolist() == ["Vis", "DefaultA", "Cont", "Limbic", "", "", "", ""]
    frame["cortex"] = ["True"] * 4 + ["False", "0", "1", None]
    found = read_coordinates(frame)
    assert found["network"].tolist() == ["Vis", "DefaultA", "Cont", "Limbic", "subcortex", "subcortex", "cortex", ""]
    assert found["cortex"].tolist() == [True] * 4 + [False, False, True, pd.NA]
    frame["Structure"] = ["cortex"] * 4 + ["subcortex/brainstem", "", "nan", "cerebellum"]
    found = read_coordinates(frame)["network"].tolist()
    assert found == ["Vis", "DefaultA", "Cont", "Limbic", "subcortex/brainstem", "subcortex", "cortex", "cerebellum"]
    for title in ("network", "Network_Label", "yeo7"):
        given = read_coordinates(frame.assign(**{title: ["a", "b", "", "c", "d", None, "e", ""]}))["network"].tolist()
        assert given == ["a", "b", "Cont", "c", "d", "subcortex", "e", "cerebellum"]


@pytest.mark.parametrize("flags", [[True, False] * 4, ["true", "false"] * 4, [1, 0] * 4, ["1.0", "0.0"] * 4])
def test_cortex_alone_is_the_network(flags):
    names = [f"L_{letter}" for letter in "abcdefgh"]
    found = read_coordinates(pd.DataFrame({"region": names, "x": 1.0, "y": 2.0, "z": 3.0, "cortex": flags}))
    assert found["network"].tolist() == ["cortex", "subcortex"] * 4
    assert found["cortex"].dtype == bool


ROWS = "region,x,y,z\nL_a,1,2,3\nL_b,4,5,6\n"
BAD_COORDINATES = {
    "empty": (ROWS.replace("5", ""), "region 'L_b': y is empty, it must be a finite number"),
    "NaN": (ROWS.replace("5", "nan"), "region 'L_b': y is 'nan', it must be a finite number"),
    "infinite": (ROWS.replace("5", "inf"), "region 'L_b': y is 'inf', it must be a finite number"),
    "text": (ROWS.replace("5", "far"), "region 'L_b': y is 'far', it must be a finite number"),
    "no columns": (
        ROWS.replace("y,", "up,"),
        "must have columns x, y, z (or mni_x, ...; x_mni, ...), it has 'region', 'x'",
    ),
    "no names": ("x,y,z\n1,2,3\n", "must have a column of names of the regions, called region, label, name, roi, id"),
    "twice": (ROWS.replace("L_b", "L_a"), "region 'L_a' is there twice"),
    "no name": (ROWS.replace("L_b", ""), "region 2 has no name"),
    "no rows": ("region,x,y,z\n", "has no rows below its header"),
    "cut off": (ROWS.replace(",5,6", ",5"), "line 3: has 3 fields, the header has 4: is the file cut off?"),
}


@pytest.mark.parametrize("kind", BAD_COORDINATES)
def test_what_is_wrong_with_coordinates(kind, tmp_path):
    text, message = BAD_COORDINATES[kind]
    path = written(tmp_path / "a.csv", text)
    refused(read_coordinates, path, path, message)


# Damage


DAMAGED = {
    "expression": (read_expression, ["csv", "tsv.gz", "parquet", "h5ad", "quotes"], EXPRESSIONS),
    "connectivity": (
        read_connectivity,
        ["csv, all names", "savetxt", "npy", "npz, names", "mat, names", "mat 7.3, names", "edges", "parquet, ids"],
        SQUARES,
    ),
    "coordinates": (read_coordinates, ["csv", "parquet", "R"], COORDINATES),
}


@pytest.mark.parametrize(
    ("kind", "format"), [(kind, format) for kind, (_, formats, _) in DAMAGED.items() for format in formats]
)
def test_damaged_files_are_read_or_refused(kind, format, tmp_path):
    """Files of HDF5 and MATLAB are cut off only: their libraries may end the process, or never end, on other damage."""
    reader, _, made = DAMAGED[kind]
    make = made[format][0] if kind == "connectivity" else made[format]
    path = make(expression(), tmp_path) if kind == "expression" else make(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    refusals = 0
    for number in range(12):
        data = bytearray(whole)
        for _ in range(3):
            at = int(rng.integers(len(data)))
            match 3 if path.suffix in (".mat", ".h5ad") else number % 4:
                case 0:
                    data[at] = int(rng.integers(256))
                case 1:
                    del data[at : at + int(rng.integers(1, 9))]
                case 2:
                    data[at:at] = bytes(rng.choice(list(b',;"\n\t0a.-'), 3).tolist())
                case 3:
                    data[:] = data[: max(at, 1)]
        path.write_bytes(data)
        said = str(path)
        try:
            found = reader(path)
        except (ValueError, OSError) as error:
            said = str(error)
            refusals += 1
        else:
            assert isinstance(found, Expression | Connectivity | pd.DataFrame)
        assert str(path) in said
    assert refusals
