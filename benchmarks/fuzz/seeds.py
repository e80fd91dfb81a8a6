"""Small valid files of every format, written anew from a generator: the same generator writes the same bytes."""

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse as sp
from numpy.random import Generator

MAT_HEADER = b"MATLAB 5.0 MAT-file, Platform: posix, Created on: some day".ljust(116)  # SciPy writes the time there
REGIONS = [f"{side}_area{'abcdefg'[i % 7]}" for i, side in enumerate(["L"] * 7 + ["R"] * 6)]
SYMBOLS = ["A1BG", "HLA-A", "C2orf27A", "SST", "PVALB", "NKX2-1", "TP53", "GAD1", "GAD2", "VIP", "MT-CO1", "AGO1"]
BRAIN = [f"{side}H_Vis_{i + 1}" for side in "LR" for i in range(30)]
BASES = np.array(list("ACGT"))
Row = Sequence[Any]


def write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


def write_table(path: Path, rows: Iterable[Row], separator: str | None = None) -> None:
    """Fields as text, quoted where they must be. A .parquet has the first row's names."""
    rows = list(rows)
    if path.suffix == ".parquet":
        columns = {str(name): list(values) for name, *values in zip(*rows, strict=True)}
        pq.write_table(pa.table(columns), path)
        return
    out = io.StringIO()
    chosen = separator or ("," if path.suffix == ".csv" else "\t")
    csv.writer(out, delimiter=chosen, lineterminator="\n").writerows(rows)
    write_text(path, out.getvalue())


def numbers(rng: Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).round(4)


def sequence(rng: Generator, length: int) -> str:
    return "".join(rng.choice(BASES, length))


# ---------------------------------------------------------------------- tables


def sets(path: Path, rng: Generator) -> None:
    """Four sets with elements, multiplicities, two features, and in the table itself a label and a group."""
    sizes = rng.integers(2, 7, 4).tolist()
    rows: list[Row] = [("set", "element", "multiplicity", "x", "y")]
    for name, size in zip("abcd", sizes, strict=True):
        rows += [(name, f"e{i}", int(rng.integers(1, 9)), *map(float, numbers(rng, 2))) for i in range(size)]
    write_table(path, rows)


def labelled_sets(path: Path, rng: Generator) -> None:
    rows: list[Row] = [("set", "x", "y", "label", "donor")]
    for number, name in enumerate("abcd"):
        rows += [(name, *map(float, numbers(rng, 2)), "pq"[number % 2], f"d{number // 2}") for _ in range(3)]
    write_table(path, rows)


def labels_of_sets(path: Path, rng: Generator) -> None:
    sets(path.parent / "sets.csv", rng)
    rows = [(name, "pq"[i % 2], int(rng.integers(20, 90)), f"d{i // 2}") for i, name in enumerate("abcd")]
    write_table(path, [("set", "label", "age", "donor"), *rows])


def labels_of_elements(path: Path, rng: Generator) -> None:
    sets(path.parent / "sets.csv", rng)
    with open(path.parent / "sets.csv", encoding="utf-8") as file:
        rows = [line.split(",")[:2] for line in file][1:]
    write_table(path, [("set", "element", "label"), *((*row, "pqr"[i % 3]) for i, row in enumerate(rows))])


def categories(path: Path, rng: Generator) -> None:
    """Text, numbers of which some are missing, and a column of the set of another name."""
    write_table(path.parent / "labels.csv", [("donor", "label"), *zip("abcd", "pqpq", strict=True)])
    rows: list[Row] = [("donor", "stain", "x")]
    for name in "abcd":
        rows += [(name, str(rng.choice(["HE", "PAS", ""])), str(numbers(rng, 1)[0]) if i else "NA") for i in range(4)]
    write_table(path, rows)


def labels_of_files(path: Path) -> None:
    write_table(path.parent / "labels.csv", [("set", "label"), *zip("abcd", "pqpq", strict=True)])


def folder_h5(path: Path, rng: Generator) -> None:
    """As TRIDENT writes slides."""
    path.mkdir()
    labels_of_files(path)
    for name in "abcd":
        with h5py.File(path / f"{name}.h5", "w") as root:
            root["features"] = numbers(rng, 1, 4, 3).astype(np.float32)
            root["coords"] = rng.integers(0, 9, (1, 4, 2)) * 256


def folder_npy(path: Path, rng: Generator) -> None:
    path.mkdir()
    labels_of_files(path)
    for name in "abcd":
        np.save(path / f"{name}.npy", numbers(rng, 4, 3).astype(np.float16))


def folder_pt(path: Path, rng: Generator) -> None:
    import torch

    path.mkdir()
    labels_of_files(path)
    for name in "abcd":
        buffer = io.BytesIO()
        places = torch.from_numpy(rng.integers(0, 9, (4, 2)))
        torch.save({"features": torch.from_numpy(numbers(rng, 4, 3)), "coords": places}, buffer)
        (path / f"{name}.pt").write_bytes(buffer.getvalue())


def fcs_bytes(data: bytes, words: dict[str, Any], version: str = "FCS3.1", far: bool = False, mark: str = "/") -> bytes:
    """A file of these keywords; `far`: the header leaves it to TEXT where DATA is."""
    start = 0
    for _ in range(2):  # the numbers have the same width the second time
        more = {"$BEGINDATA": f"{start:>12}", "$ENDDATA": f"{start + len(data) - 1:>12}", "$MODE": "L", "$NEXTDATA": 0}
        text = mark + "".join(f"{word}{mark}{value}{mark}" for word, value in (more | words).items())
        start = 58 + len(text)
    ends = (0, 0) if far else (start, start + len(data) - 1)
    header = version + "    " + "".join(f"{n:>8}" for n in (58, start - 1, *ends, 0, 0))
    return header.encode() + text.encode() + data


def folder_fcs(path: Path, rng: Generator) -> None:
    path.mkdir()
    labels_of_files(path)
    for name in "abcd":
        words: dict[str, Any] = {"$PAR": 3, "$TOT": 4, "$DATATYPE": "F", "$BYTEORD": "1,2,3,4", "$CYT": "Aurora"}
        for n, (short, stain) in enumerate((("Time", ""), ("FSC-A", ""), ("FITC-A", "CD3")), 1):
            words |= {f"$P{n}N": short, f"$P{n}B": 32, f"$P{n}R": 262144, f"$P{n}E": "0,0"}
            words |= {f"$P{n}S": stain} if stain else {}
        values = np.abs(100 * numbers(rng, 4, 3)).astype("<f4")
        (path / f"{name}.fcs").write_bytes(fcs_bytes(values.tobytes(), words))


def known_fcs(path: Path, rng: Generator) -> None:
    folder_fcs(path, rng)
    events = [np.frombuffer(file.read_bytes()[-48:], "<f4").reshape(4, 3) for file in sorted(path.glob("*.fcs"))]
    np.save(path.with_name("truth.npy"), np.concatenate(events)[:, 1:])


def known_sets(path: Path, rng: Generator) -> None:
    labels_of_files(path)
    values = numbers(rng, 12, 2).round(2)
    np.save(path.with_name("truth.npy"), values)
    write_table(path, [("set", "x", "y"), *(("abcd"[i // 3], *map(float, row)) for i, row in enumerate(values))])


def sets_of_cells(path: Path, rng: Generator) -> None:
    """Donors take turns."""
    with h5py.File(path, "w") as root:
        _encoded(root, "anndata", "0.1.0")
        donors, labels = (["abcd"[i % 4] for i in range(CELLS)], ["pq"[i % 2] for i in range(CELLS)])
        _frame(root, "obs", [f"cell{i}" for i in range(CELLS)], {"donor": donors, "label": labels})
        _frame(root, "var", [f"G{i}" for i in range(GENES)], {})
        _matrix(root, "X", matrix_of_cells(rng), "csr")
        _encoded(root.create_group("obsm"), "dict", "0.1.0")
        held = root.create_dataset("obsm/X_pca", data=numbers(rng, CELLS, 3))
        held.attrs["encoding-type"], held.attrs["encoding-version"] = "array", "0.2.0"


# ---------------------------------------------------------------------- genomes

FAMILIES = [f"COG{i:04d}" for i in range(1, 10)]
GENOMES = [f"GCF_00{i:07d}.1" for i in range(1, 7)]


def counts(rng: Generator) -> list[list[int]]:
    """Genomes x families."""
    return np.maximum(rng.poisson(1.2, (len(GENOMES), len(FAMILIES))), np.eye(6, 9, dtype=int)).tolist()


def wide(path: Path, rng: Generator) -> None:
    write_table(path, [("genome", *FAMILIES), *((g, *c) for g, c in zip(GENOMES, counts(rng), strict=True))])


def transposed(path: Path, rng: Generator) -> None:
    first = "Gene" if path.suffix == ".Rtab" else "family"
    families = [f"group_{i}" for i in range(9)] if first == "Gene" else FAMILIES
    write_table(path, [(first, *GENOMES), *zip(families, *counts(rng), strict=True)])


def totals(path: Path, rng: Generator) -> None:
    """With a column of sums, as OrthoFinder's counts."""
    of = counts(rng)
    write_table(
        path, [("family", *GENOMES, "Total"), *zip(FAMILIES, *of, map(sum, zip(*of, strict=True)), strict=True)]
    )


def picrust2(path: Path, rng: Generator) -> None:
    kos = [f"ko:K{i:05d}" for i in range(1, 10)]
    rows = [(name, *c, 0.1) for name, c in zip(GENOMES, counts(rng), strict=True)]
    write_table(path, [("assembly", *kos, "metadata_NSTI"), *rows])


def long(path: Path, rng: Generator) -> None:
    rows = [
        (genome, family, count)
        for genome, of in zip(GENOMES, counts(rng), strict=True)
        for family, count in zip(FAMILIES, of, strict=True)
        if count
    ]
    write_table(path, [("genome", "family", "count"), *rows])


def eggnog(path: Path, rng: Generator) -> None:
    head = "#query seed_ortholog evalue score eggNOG_OGs max_annot_lvl COG_category Description Preferred_name GOs EC"
    columns = [*head.split(), "KEGG_ko", "CAZy", "PFAMs"]
    rows = []
    for number in range(8):
        cog = int(rng.integers(1, 9))
        groups = f"COG{cog:04d}@1|root,COG{cog:04d}@2|Bacteria,1MUWI@1224|Proteobacteria"
        more = (f"5'-nucleotidase {cog}", "hemL", "GO:0000001,GO:0000002", "5.4.3.8", f"ko:K{cog:05d},ko:K00002", "-")
        rows.append((f"g{number}", "1.A", "1e-9", "99.5", groups, "2|Bacteria", "H", *more, "Aminotran_3"))
    body = ["\t".join(columns), *("\t".join(row) for row in rows)]
    head_lines = ["## Mon Feb 27 09:05:50 2023", "## emapper-2.1.9", "## emapper.py -i a.faa", "##"]
    write_text(path, "\n".join([*head_lines, *body, "## 8 queries scanned", "## Total time (seconds): 45.7", ""]))


def cogclassifier(path: Path, rng: Generator) -> None:
    head = [
        "QUERY_ID",
        "CDD_ID",
        "EVALUE",
        "IDENTITY",
        "GENE_NAME",
        "COG_NAME",
        "COG_LETTER",
        "COG_DESCRIPTION",
        "COG_ID",
    ]
    rows = [
        (f"p{i}", 223601, "1e-9", 46.97, "MetL1", "Aspartate kinase", "E", "Amino acid transport", FAMILIES[n])
        for i, n in enumerate(rng.integers(0, 9, 8).tolist())
    ]
    write_table(path, [head, *rows])


def kofamscan(path: Path, rng: Generator) -> None:
    lines = ["# gene name           KO     thrshld  score   E-value KO definition"]
    lines.append("#-------------------- ------ ------- ------ --------- ---------------------")
    for number in range(8):
        mark, ko = " *"[number % 2], f"K{int(rng.integers(1, 5)):05d}"
        lines.append(
            f"{mark} gene{number}               {ko}   99.52  150.1     5e-05 alcohol dehydrogenase [EC:1.1.1.1]"
        )
    write_text(path, "\n".join([*lines, ""]))


def kofamscan_tsv(path: Path, rng: Generator) -> None:
    lines = [
        '#\tgene name\tKO\tthrshld\tscore\tE-value\t"KO definition"',
        "#\t---------\t------\t-------\t---\t---\t---",
    ]
    for number in range(8):
        mark, ko = ("", "*")[number % 2], f"K{int(rng.integers(1, 5)):05d}"
        lines.append(f'{mark}\tgene{number}\t{ko}\t99.52\t150.1\t5e-05\t"alcohol dehydrogenase [EC:1.1.1.1]"')
    write_text(path, "\n".join([*lines, ""]))


def ko_list(path: Path, rng: Generator) -> None:
    kos = [f"\tK{n:05d}" if n < 5 else "" for n in rng.integers(1, 8, 8).tolist()]
    write_text(path, "".join(f"gene{i}{ko}\n" for i, ko in enumerate(["\tK00001", *kos])))


def dram(path: Path, rng: Generator) -> None:
    head = ("", "fasta", "scaffold", "gene_position", "rank", "ko_id", "kegg_hit", "pfam_hits", "cazy_ids")
    rows = [
        (
            f"b{i // 4}_{i}",
            f"b{i // 4}",
            "s",
            i,
            "C",
            f"K{n:05d}",
            "x",
            f"Glycosyl [PF{n:05d}.20]; O [PF13692.6]",
            "GT4",
        )
        for i, n in enumerate(rng.integers(1, 9, 8).tolist())
    ]
    write_table(path, [head, *rows])


def anvio_matrix(path: Path, rng: Generator) -> None:
    rows = [(f"func_{i:06d}", *c, f"COG{i:04d}") for i, c in enumerate(zip(*counts(rng), strict=True), 1)]
    write_table(path, [("key", *GENOMES, "COG20_FUNCTION"), *rows])


def anvio_functions(path: Path, rng: Generator) -> None:
    rows = [
        (i, "COG20_FUNCTION", f"COG{n:04d}!!!COG0188", "DNA gyrase B!!!DNA gyrase A", "4e-136")
        for i, n in enumerate(rng.integers(1, 9, 8).tolist())
    ]
    write_table(path, [("gene_callers_id", "source", "accession", "function", "e_value"), *rows])


def qualities(path: Path, rng: Generator) -> None:
    rows = [(g, *rng.uniform(50, 100, 1).round(2), *rng.uniform(0, 9, 1).round(2), "model") for g in GENOMES]
    write_table(path, [("Name", "Completeness", "Contamination", "Completeness_Model_Used"), *rows])


def taxonomy_of_genomes(path: Path, rng: Generator) -> None:
    lineages = [
        f"d__Bacteria;p__P{n % 2};c__C{n % 2};o__O{n};f__F{n};g__G{n};s__G{n} sp{i}"
        for i, n in enumerate(rng.integers(0, 4, len(GENOMES)).tolist())
    ]
    write_table(path, [("user_genome", "classification"), *zip(GENOMES, lineages, strict=True)])


def ranks_of_genomes(path: Path, rng: Generator) -> None:
    rows = [(g, "Bacteria", f"P{n % 2}", f"F{n}") for g, n in zip(GENOMES, rng.integers(0, 4, 6).tolist(), strict=True)]
    write_table(path, [("genome", "domain", "phylum", "family"), *rows])


# ---------------------------------------------------------------------- cells

CELLS, GENES = 23, 7


def matrix_of_cells(rng: Generator) -> np.ndarray:
    found = rng.poisson(0.9, (CELLS, GENES)).astype(np.float32)
    found[:, 0] += 1
    return found


def _encoded(group: Any, kind: str, version: str) -> Any:
    group.attrs["encoding-type"], group.attrs["encoding-version"] = kind, version
    return group


def _texts(group: Any, name: str, values: Sequence[str]) -> None:
    held = group.create_dataset(name, data=np.array(values, dtype=object), dtype=h5py.string_dtype())
    _encoded(held, "string-array", "0.2.0")


def _frame(root: Any, name: str, index: list[str], columns: dict[str, Any]) -> None:
    group = _encoded(root.create_group(name), "dataframe", "0.2.0")
    group.attrs["_index"] = "_index"
    group.attrs.create("column-order", np.array([*columns], dtype=object), dtype=h5py.string_dtype())
    _texts(group, "_index", index)
    for column, values in columns.items():
        if isinstance(values, np.ndarray):
            _encoded(group.create_dataset(column, data=values), "array", "0.2.0")
            continue
        held = _encoded(group.create_group(column), "categorical", "0.2.0")
        held.attrs["ordered"] = False
        known = sorted(set(values))
        _encoded(
            held.create_dataset("codes", data=np.array([known.index(v) for v in values], np.int8)), "array", "0.2.0"
        )
        _texts(held, "categories", known)


def _matrix(root: Any, name: str, dense: np.ndarray, kind: str) -> None:
    if kind == "dense":
        _encoded(root.create_dataset(name, data=dense), "array", "0.2.0")
        return
    held = sp.csr_matrix(dense) if kind == "csr" else sp.csc_matrix(dense)
    group = _encoded(root.create_group(name), f"{kind}_matrix", "0.1.0")
    group.attrs["shape"] = np.array(dense.shape)
    for part in ("data", "indices", "indptr"):
        group[part] = getattr(held, part)


def h5ad(path: Path, rng: Generator, kind: str = "dense") -> None:
    """As anndata writes it today."""
    dense = matrix_of_cells(rng)
    names = [f"cell{i}" for i in range(CELLS)]
    genes = [f"G{i}" for i in range(GENES)]
    with h5py.File(path, "w") as root:
        _encoded(root, "anndata", "0.1.0")
        batch = {"batch": ["ab"[i % 2] for i in range(CELLS)], "depth": np.arange(CELLS) / 7}
        _frame(root, "obs", names, batch)
        _frame(root, "var", genes, {"gene_ids": np.arange(GENES)})
        _matrix(root, "X", dense, kind)
        for name in ("layers", "obsm", "uns"):
            _encoded(root.create_group(name), "dict", "0.1.0")
        _matrix(root["layers"], "counts", dense, "csr")


def h5ad_csr(path: Path, rng: Generator) -> None:
    h5ad(path, rng, "csr")


def h5ad_csc(path: Path, rng: Generator) -> None:
    h5ad(path, rng, "csc")


def named_cells(path: Path, rng: Generator) -> None:
    h5ad(path, rng)
    with h5py.File(path, "r+") as root:
        root["var/_index"][...] = SYMBOLS[:GENES]
        np.save(path.with_name("truth.npy"), root["X"][()])


def tenx(path: Path, rng: Generator) -> None:
    """As Cell Ranger 3 lays it out: genes x cells, columns compressed, so that a column is a cell."""
    held = sp.csc_matrix(matrix_of_cells(rng).T.astype(np.int32))
    with h5py.File(path, "w") as root:
        group = root.create_group("matrix")
        group["data"], group["indices"] = held.data, held.indices.astype(np.int64)
        group["indptr"], group["shape"] = held.indptr.astype(np.int64), np.array(held.shape, dtype=np.int32)
        group["barcodes"] = np.array([f"ACGT{i}-1" for i in range(CELLS)], dtype="S")
        features = group.create_group("features")
        features["id"] = np.array([f"ENSG{i:011d}" for i in range(GENES)], dtype="S")
        features["name"] = np.array([f"G{i}" for i in range(GENES)], dtype="S")
        features["feature_type"] = np.array(["Gene Expression"] * (GENES - 1) + ["Antibody Capture"], dtype="S")
        features["genome"] = np.array(["GRCh38"] * GENES, dtype="S")


def zarr(path: Path, rng: Generator) -> None:
    """Version 2, by hand: JSON beside chunks that are not compressed."""

    def attributes(place: Path, **values: Any) -> None:
        (place / ".zattrs").write_text(json.dumps(values))

    def group(place: Path, kind: str, version: str, **values: Any) -> Path:
        place.mkdir()
        (place / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
        attributes(place, **{"encoding-type": kind, "encoding-version": version}, **values)
        return place

    def array(place: Path, values: np.ndarray | list[str]) -> None:
        place.mkdir()
        texts = isinstance(values, list)
        held = np.zeros(len(values)) if texts else np.asarray(values)
        shape = list(held.shape)
        dtype, filters = ("|O", [{"id": "vlen-utf8"}]) if texts else (held.dtype.str, None)
        meta = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "filters": filters, "order": "C"}
        (place / ".zarray").write_text(json.dumps(meta | {"compressor": None, "fill_value": "" if texts else 0}))
        attributes(place, **{"encoding-type": "string-array" if texts else "array", "encoding-version": "0.2.0"})
        data = held.tobytes()
        if texts:
            parts = [str(value).encode() for value in values]
            data = len(parts).to_bytes(4, "little") + b"".join(len(p).to_bytes(4, "little") + p for p in parts)
        (place / ".".join("0" * len(shape))).write_bytes(data)

    root = group(path, "anndata", "0.1.0")
    for name, size, letter in (("obs", CELLS, "cell"), ("var", GENES, "G")):
        frame = group(root / name, "dataframe", "0.2.0", **{"_index": "_index", "column-order": ["depth"]})
        array(frame / "_index", [f"{letter}{i}" for i in range(size)])
        array(frame / "depth", np.arange(size) / 7)
    held = sp.csr_matrix(matrix_of_cells(rng))
    x = group(root / "X", "csr_matrix", "0.1.0", shape=list(held.shape))
    for part in ("data", "indices", "indptr"):
        array(x / part, getattr(held, part))
    group(root / "layers", "dict", "0.1.0")


# ---------------------------------------------------------------------- vectors of genes


def vectors_text(path: Path, rng: Generator) -> None:
    rows = [f"{gene} {' '.join(map(str, row))}\n" for gene, row in zip(SYMBOLS, numbers(rng, 12, 4), strict=True)]
    write_text(path, "12 4\n" + "".join(rows))


def vectors_torch(path: Path, rng: Generator) -> None:
    import torch

    table = dict(zip(SYMBOLS, torch.from_numpy(numbers(rng, 12, 4)).unbind(), strict=True))
    buffer = io.BytesIO()  # a name would be written into the file
    torch.save({gene: vector.clone() for gene, vector in table.items()}, buffer)
    path.write_bytes(buffer.getvalue())


def aliases(path: Path, rng: Generator) -> None:
    write_table(path, [("alias", "name"), *((f"old{i}", gene) for i, gene in enumerate(SYMBOLS))])


# ---------------------------------------------------------------------- regions


def expression(path: Path, rng: Generator) -> None:
    values = rng.random((len(REGIONS), len(SYMBOLS))).round(4)
    write_table(path, [("region", *SYMBOLS), *((r, *map(float, v)) for r, v in zip(REGIONS, values, strict=True))])


def expression_h5ad(path: Path, rng: Generator) -> None:
    with h5py.File(path, "w") as root:
        _encoded(root, "anndata", "0.1.0")
        _frame(root, "obs", REGIONS, {})
        _frame(root, "var", SYMBOLS, {})
        _matrix(root, "X", rng.random((len(REGIONS), len(SYMBOLS))), "dense")


def square(rng: Generator) -> np.ndarray:
    matrix = np.triu(rng.normal(0.3, 0.2, (13, 13)).round(4), 1)
    return matrix + matrix.T + np.eye(13)


def connectivity(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    rows = [(name, *map(float, row)) for name, row in zip(REGIONS, square(rng), strict=True)]
    write_table(path, [("region", *REGIONS), *rows])


def edges(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    i, j = np.triu_indices(13, 1)
    rows = [(REGIONS[a], REGIONS[b], float(w)) for a, b, w in zip(i, j, square(rng)[i, j], strict=True)]
    write_table(path, [("source", "target", "weight"), *rows])


def connectivity_npy(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    np.save(path, square(rng))


def connectivity_npz(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    np.savez(path, connectivity=square(rng), names=np.array(REGIONS), xyz=np.ones((13, 3)))


def connectivity_mat(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    names = np.array(REGIONS, dtype=object)
    scipy.io.savemat(path, {"connectivity": square(rng), "labels": names, "n": 13.0})
    data = path.read_bytes()
    path.write_bytes(MAT_HEADER + data[len(MAT_HEADER) :])


def connectivity_mat73(path: Path, rng: Generator) -> None:
    """A header of its own, arrays column by column, cell arrays of references."""
    expression(path.parent / "expression.csv", rng)
    with h5py.File(path, "w", userblock_size=512) as root:
        root["connectivity"] = square(rng).T
        root["connectivity"].attrs["MATLAB_class"] = np.bytes_("double")
        texts = []
        for number, name in enumerate(REGIONS):
            held = root.create_dataset(f"#refs#/{number}", data=np.array([[ord(c)] for c in name], dtype=np.uint16))
            held.attrs["MATLAB_class"] = np.bytes_("char")
            texts.append(held.ref)
        root.create_dataset("labels", data=np.array([texts], dtype=h5py.ref_dtype))
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def connectivity_pconn(path: Path, rng: Generator) -> None:
    import nibabel
    from nibabel import cifti2

    expression(path.parent / "expression.csv", rng)
    vertices = [{"CIFTI_STRUCTURE_CORTEX_LEFT": np.array([i])} for i in range(13)]
    names, counted = np.array(REGIONS, dtype=object), {"CIFTI_STRUCTURE_CORTEX_LEFT": 20}
    axis = cifti2.ParcelsAxis(names, [np.empty((0, 3), int)] * 13, vertices, np.eye(4), (2, 2, 2), counted)
    image = cifti2.Cifti2Image(square(rng).astype(np.float32), (axis, axis))
    image.nifti_header["intent_code"] = 3006
    nibabel.save(image, path)


def coordinates(path: Path, rng: Generator) -> None:
    expression(path.parent / "expression.csv", rng)
    connectivity(path.parent / "connectivity.csv", rng)
    places = rng.uniform(1, 70, (13, 3)).round(3) * [[-1 if r[0] == "L" else 1, 1, 1] for r in REGIONS]
    rows = [(r, *map(float, p), r[0], "Vis", True) for r, p in zip(REGIONS, places, strict=True)]
    write_table(path, [("region", "x", "y", "z", "hemisphere", "network", "cortex"), *rows])


def brain(path: Path, rng: Generator) -> None:
    from omniset.regions.data import simulate

    made = simulate(len(BRAIN), 20, int(rng.integers(1000)))
    names = [f"7Networks_{name}" for name in BRAIN]
    np.save(path.parent / "truth.npy", made.connectivity)
    full = np.where(np.eye(len(names)), 1, made.connectivity)
    tables = ((path.name, names, full), ("expression.csv", [f"SLC{i}A1" for i in range(20)], made.expression))
    for file, columns, values in (*tables, ("places.csv", ["x", "y", "z"], made.coordinates)):
        write_table(path.parent / file, [("region", *columns), *((n, *v) for n, v in zip(names, values, strict=True))])


def pairs(path: Path, rng: Generator) -> None:
    chosen = rng.permutation(13)
    write_table(
        path, [("first", "second"), *((REGIONS[a], REGIONS[b]) for a, b in zip(chosen, chosen[::-1], strict=True))]
    )


# ---------------------------------------------------------------------- microbiomes

FEATURES = 12


def _references(rng: Generator) -> dict[str, str]:
    return {f"ref{i}": sequence(rng, 70 + i) for i in range(FEATURES)}


def _lineage(number: int) -> str:
    return f"d__B; p__P; c__C{number % 2}; o__O; f__F{number % 3}; g__G{number % 3}"


def fasta(path: Path, rng: Generator) -> None:
    taxonomy(path.parent / "taxonomy.tsv", rng)
    text = "".join(f">{name} made up\n{one[:60]}\n{one[60:]}\n" for name, one in _references(rng).items())
    write_text(path, text)


def fastq(path: Path, rng: Generator) -> None:
    text = "".join(f"@{name} 1:N:0\n{one}\n+\n{'I' * len(one)}\n" for name, one in _references(rng).items())
    write_text(path, text)


def silva_lineage(number: int) -> list[str]:
    order, family = f"O{number % 3}ales", f"F{number % 6}aceae"
    return ["Bacteria", f"Phyl{number % 2}ota", f"Class{number % 3}", order, family, f"Genus{'abcdef'[number % 6]}"]


def silva(path: Path, rng: Generator) -> None:
    lines = [";".join([*silva_lineage(i), "uncultured bacterium"]) for i in range(3 * FEATURES)]
    write_text(path, "".join(f">AB{i}.1.99 {line}\n{sequence(rng, 70)}\n" for i, line in enumerate(lines)))


def taxonomy(path: Path, rng: Generator) -> None:
    rows = [(f"ref{i}", _lineage(i), round(float(rng.random()), 3)) for i in range(FEATURES)]
    write_table(path, [("Feature ID", "Taxon", "Confidence"), *rows])


def taxonomy_of_references(path: Path, rng: Generator) -> None:
    fasta(path.parent / "references.fasta", rng)
    taxonomy(path, rng)


def samples(path: Path, rng: Generator) -> None:
    fasta(path.parent / "references.fasta", rng)
    rows = [(f"ref{i}", *rng.integers(0, 40, 4).tolist(), _lineage(i)) for i in range(FEATURES)]
    write_table(path, [("#OTU ID", "A", "B", "C", "D", "taxonomy"), *rows])
    if path.suffix == ".tsv":
        write_text(path, "# Constructed from biom file\n" + path.read_text(encoding="utf-8"))


def _vectors_beside(path: Path, rng: Generator) -> None:
    rows = [(f"ref{i}", *map(float, numbers(rng, 2))) for i in range(FEATURES)]
    write_table(path, [("feature", "u", "v"), *rows])


def counts_of_features(path: Path, rng: Generator) -> None:
    (biom if path.suffix == ".biom" else samples)(path, rng)
    write_table(path.parent / "labels.csv", [("set", "label"), *zip("ABCD", "pqpq", strict=True)])
    _vectors_beside(path.parent / "vectors.csv", rng)


def vectors_of_features(path: Path, rng: Generator) -> None:
    counts_of_features(path.parent / "table.tsv", rng)
    _vectors_beside(path, rng)


def biom(path: Path, rng: Generator) -> None:
    fasta(path.parent / "references.fasta", rng)
    held = sp.csr_matrix(np.maximum(rng.integers(-5, 40, (4, FEATURES)), 0).astype(float))
    with h5py.File(path, "w") as root:
        root.attrs["id"], root.attrs["format-version"] = "table", np.array([2, 1])
        root.attrs["shape"], root.attrs["nnz"] = np.array([FEATURES, 4]), held.nnz
        for axis, names, matrix in (
            ("observation", [f"ref{i}" for i in range(FEATURES)], sp.csr_matrix(held.T)),
            ("sample", [*"ABCD"], held),
        ):
            root.create_dataset(f"{axis}/ids", data=np.array(names, dtype=object), dtype=h5py.string_dtype())
            for part in ("data", "indices", "indptr"):
                root[f"{axis}/matrix/{part}"] = getattr(matrix, part)
            root.create_group(f"{axis}/metadata")
        taxa = np.array([_lineage(i).split("; ") for i in range(FEATURES)], dtype=object)
        root.create_dataset("observation/metadata/taxonomy", data=taxa, dtype=h5py.string_dtype())


# ---------------------------------------------------------------------- models


def _saved(path: Path, model: Any) -> None:
    """Without what the checkout and the clock would write into it."""
    with patch("omniset.training.artefacts.provenance", return_value={}):
        model.save(path, {})


def _small_sets(rng: Generator) -> Any:
    import pandas as pd

    frame = pd.DataFrame(numbers(rng, 24, 2), columns=["x", "y"])
    frame.insert(0, "set", [f"s{i // 3}" for i in range(24)])
    return frame


SMALL: dict[str, Any] = {"dim": 8, "depth": 1, "num_heads": 2, "num_inducing": 2, "device": "cpu", "progress": False}


def model_of_sets(path: Path, rng: Generator) -> None:
    from omniset import SetClassifier

    frame = _small_sets(rng)
    frame.to_csv(path.parent / "sets.csv", index=False)
    _saved(path, SetClassifier("ust", **SMALL, epochs=1).fit(frame, [*"pqpqpqpq"]))


def checkpoint(path: Path, rng: Generator) -> None:
    """Of a run that stopped after the first of two epochs."""
    from omniset import SetClassifier
    from omniset.training import fit as training

    frame, out = _small_sets(rng), path.parent.parent
    frame.to_csv(out.parent / "sets.csv", index=False)
    original = training.TrainingModule.on_train_epoch_end

    def stop(self: Any) -> None:
        original(self)
        self.should_stop = True

    with patch.object(training.TrainingModule, "on_train_epoch_end", stop):
        SetClassifier("ust", **SMALL, epochs=2).fit(frame, [*"pqpqpqpq"], folder=out)


def model_of_genomes(path: Path, rng: Generator) -> None:
    import pandas as pd

    from omniset.genomes.completer import GenomeCompleter
    from omniset.genomes.data import GenomeTable

    table = rng.poisson(0.8, (40, 30))
    frame = pd.DataFrame(table, [f"g{i}" for i in range(40)], [f"COG{i:04d}" for i in range(1, 31)])
    given = {"device": "cpu", "progress": False, "epochs": 1}
    _saved(path, GenomeCompleter(**given).fit(GenomeTable.from_frame(frame)))


def model_of_cells(path: Path, rng: Generator) -> None:
    from omniset.cells.embedder import CellEmbedder

    given = {"device": "cpu", "progress": False, "dim": 4, "epochs": 1, "batch_size": 16}
    source = path.parent / "cells.h5ad"
    h5ad(source, rng)
    _saved(path, CellEmbedder(**given).fit(source, batch_key="none"))


def model_of_regions(path: Path, rng: Generator) -> None:
    from omniset.regions.predictor import ConnectivityPredictor

    for number, write in enumerate((expression, connectivity)):
        write(path.parent / ("expression.csv", "connectivity.csv")[number], rng)
    predictor = ConnectivityPredictor(device="cpu", progress=False)
    predictor.fit(path.parent / "expression.csv", connectivity=path.parent / "connectivity.csv")
    predictor.seconds_ = 0.0
    _saved(path, predictor)


def model_of_microbiomes(path: Path, rng: Generator) -> None:
    from omniset.microbiomes import TaxonClassifier

    classifier = TaxonClassifier(lengths=(), epochs=1, device="cpu", progress=False)
    lineages = {f"ref{i}": tuple(_lineage(i).split("; ")) for i in range(FEATURES)}
    _saved(path, classifier.fit(_references(rng), lineages))


def zipped(parts: dict[str, bytes]) -> bytes:
    """A zip file of these members, without the time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in parts.items():
            file.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()
