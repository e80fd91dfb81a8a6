"""The same expression, connectivity and coordinates of regions, in every format that is read."""

import re

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

# pandas 3 with anndata 0.12, which cannot write its new type of text.
TEXT_AS_OBJECTS = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated"),
    pytest.mark.usefixtures("text_as_objects"),
]
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
GOOD = "label,TP53,A1BG\nL_a,0.1,0.2\nL_b,0.3,0.4\n"


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


def mat73(path, names=None, key="connectivity", matrix=None, characters=(), decoded=""):
    """As MATLAB lays out a v7.3 file: a header of its own, arrays column by column, cell arrays of references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file[key] = (connectivity() if matrix is None else matrix).T
        file[key].attrs["MATLAB_class"] = np.bytes_("double")
        file["note"] = np.array([[ord(c)] for c in "resting state"], dtype=np.uint16)
        file["note"].attrs["MATLAB_class"] = np.bytes_("char")
        file["nothing"] = np.zeros(2, dtype=np.uint64)
        file["nothing"].attrs["MATLAB_empty"] = 1
        if characters:
            file["label"] = np.array([[ord(c) for c in name] for name in characters], dtype=np.uint16).T
            file["label"].attrs["MATLAB_class"] = np.bytes_("char")
        if decoded:  # as MATLAB keeps an array of strings: numbers that stand for an object
            file[decoded] = np.arange(6, dtype=np.uint32)
            file[decoded].attrs["MATLAB_object_decode"] = 3
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
    "npz, names by another key": (lambda p: npz(p / "a.npz", m=connectivity(), who=np.array(NAMES)), NAMES),
    "npz, names and objects": (lambda p: npz(p / "a.npz", m=connectivity(), o=cells(NAMES), n=np.array(NAMES)), NAMES),
    "npz, ids": (lambda p: npz(p / "a.npz", m=connectivity(), ids=np.array(IDS, dtype=int)), IDS),
    "npz, other numbers": (lambda p: npz(p / "a.npz", m=connectivity(), voxels=np.array(IDS, dtype=int)), None),
    "mat": (lambda p: mat(p / "a.mat", connectivity=connectivity(), other=np.eye(5)), None),
    "mat, only square": (lambda p: mat(p / "a.mat", sc=connectivity(), n=13.0, xyz=np.ones((REGIONS, 3))), None),
    "mat, names": (lambda p: mat(p / "a.mat", sc=connectivity(), labels=cells(NAMES), who="me"), NAMES),
    "mat, characters": (lambda p: mat(p / "a.mat", sc=connectivity(), region=np.array(NAMES)), NAMES),
    "mat, names by another key": (lambda p: mat(p / "a.mat", sc=connectivity(), who=cells(NAMES)), NAMES),
    "mat, struct": (lambda p: mat(p / "a.mat", sc=connectivity(), atlas={"n": 13.0, "label": cells(NAMES)}), NAMES),
    "mat, ids": (lambda p: mat(p / "a.mat", sc=connectivity(), roi=np.array(IDS, dtype=float)), IDS),
    "mat, sparse": (lambda p: mat(p / "a.mat", sc=sp.csc_matrix(connectivity())), None),
    "mat 7.3": (lambda p: mat73(p / "a.mat"), None),
    "mat 7.3, names": (lambda p: mat73(p / "a.mat", NAMES, "sc"), NAMES),
    "mat 7.3, characters": (lambda p: mat73(p / "a.mat", key="sc", characters=NAMES), NAMES),
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
SIDES = [name[0] for name in NAMES]
PLACES = np.random.default_rng(8).uniform(-70, 70, (REGIONS, 3)).round(4)
PLACES[:, 0] = [abs(x) * {"L": -1, "R": 1}[side] for x, side in zip(PLACES[:, 0], SIDES, strict=True)]


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
