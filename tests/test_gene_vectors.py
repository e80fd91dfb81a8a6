"""Vectors of genes from every kind of file, and what is said of files that are wrong."""

import bz2
import gzip
import io
import lzma
import pickle
import re
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch

from omniset.tables.gene_vectors import GeneVectors, read_gene_vectors

GENES, DIM = 7, 5
NAMES = ["TP53", "GAPDH", "ENSG00000141510.17", "MT-CO1", "Rps6", "7157", "HLA-A"]
VECTORS = np.random.default_rng(0).normal(size=(GENES, DIM)).astype(np.float32)


def lines_of(names=NAMES, vectors=VECTORS, first="\t", between=" "):
    return [name + first + between.join(repr(float(v)) for v in row) for name, row in zip(names, vectors, strict=True)]


def text_of(*lines):
    return "\n".join(lines) + "\n"


def tensors(**more):
    return {name: torch.tensor(row) for name, row in zip(NAMES, VECTORS, strict=True)} | more


def write(path, content):
    """Text and bytes as they are, anything else by torch.save."""
    if isinstance(content, str | bytes):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        torch.save(content, path)
    return path


TEXT, MATRIX = text_of(*lines_of()), torch.tensor(VECTORS)
GOOD = {
    "tab then spaces.txt": TEXT,
    "spaces.vec": text_of(*lines_of(first=" ")),
    "tabs.tsv": text_of(*lines_of(between="\t")),
    "header.txt": f"{GENES} {DIM}\n{TEXT}",
    "windows.txt": b"\xef\xbb\xbf" + "\r\n".join(lines_of()).encode(),
    "blank lines.txt": "\n" + "\n\n".join(lines_of()) + " \n\n",
    "table.txt.gz": gzip.compress(TEXT.encode()),
    "table.txt.xz": lzma.compress(TEXT.encode()),
    "table.txt.bz2": bz2.compress(TEXT.encode()),
    "dict.pt": tensors(),
}


def assert_table(found, names=NAMES, vectors=VECTORS):
    assert found.names == [*names]
    assert found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors, vectors)


@pytest.mark.parametrize("name", GOOD)
def test_files_with_names(name, tmp_path):
    assert_table(read_gene_vectors(write(tmp_path / name, GOOD[name])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8])
def test_numbers_of_other_kinds(dtype, tmp_path):
    table = torch.tensor(VECTORS * 10).to(dtype)
    path = write(tmp_path / "a.pt", dict(zip(NAMES, table.clone(), strict=True)))
    assert_table(read_gene_vectors(path), vectors=table.float().numpy())


def test_numbers_are_read_to_the_last_bit(tmp_path):
    written = ["0.1", "+1.5", "-2e-3", "1E5", ".5", "3.", "16777217", "1e-45", "0.333333343267440796"]
    found = read_gene_vectors(write(tmp_path / "a.txt", text_of("A " + " ".join(written))))
    assert found.vectors[0].tolist() == [float(np.float32(float(text))) for text in written]


@pytest.mark.parametrize(
    ("content", "names", "vectors"),
    [
        ("2 1\nA 5\nB 7\n", ["A", "B"], [[5], [7]]),
        ("7157 5\n672 7\n", ["7157", "672"], [[5], [7]]),
        ("7157 5 3\n672 7 1\n", ["7157", "672"], [[5, 3], [7, 1]]),
        ("1 2\nA 5 6\n", ["A"], [[5, 6]]),
    ],
)
def test_a_first_line_of_two_numbers(content, names, vectors, tmp_path):
    assert_table(read_gene_vectors(write(tmp_path / "a.txt", content)), names, np.array(vectors, dtype=np.float32))


def test_genes_there_twice(tmp_path):
    rows = [0, 1, 2, 0, 3, 1, 4, 0]
    names = [NAMES[i] for i in rows]
    vectors = VECTORS[rows].copy()
    vectors[5] += 1  # the second of gene 1; gene 0 is there three times, the same
    path = write(tmp_path / "a.txt", text_of(*lines_of(names, vectors)))
    with pytest.warns(UserWarning, match=r"a.txt: 1 gene\(s\) occur more than once .*, such as 'GAPDH': the mean"):
        found = read_gene_vectors(path)
    expected = VECTORS[:5].copy()
    expected[1] = (vectors[1].astype(np.float64) + vectors[5]) / 2
    assert_table(found, NAMES[:5], expected)
    names[5] = "other"
    write(path, text_of(*lines_of(names, vectors)))
    assert read_gene_vectors(path).names == [*NAMES[:4], "other", NAMES[4]]  # without a warning


def test_of():
    table = GeneVectors(NAMES, VECTORS)
    wanted = ["FOO1", "ENSG00000141510", "P53", "gapdh", "HLA-A", "FOO2", "7157"]
    chosen, found = table.of(wanted, aliases={"P53": "TP53"})
    expected = np.zeros((7, DIM), dtype=np.float32)
    expected[[1, 2, 3, 4, 6]] = VECTORS[[2, 0, 1, 6, 5]]
    assert np.array_equal(chosen, expected)
    assert chosen.dtype == np.float32
    assert found.positions.tolist() == [-1, 2, 0, 1, 6, -1, 5]
    assert table.of([])[0].shape == (0, DIM)
    chosen[:] = 7
    assert not (table.vectors == 7).any()


def test_names_and_vectors_are_as_many():
    with pytest.raises(ValueError, match="names and vectors differ in number: 6 and 7"):
        GeneVectors(NAMES[:6], VECTORS)


# ---------------------------------------------------------------------- wrong files

LINES = lines_of()
LONG = " ".join(["1"] * DIM)
TEXTS = {
    "nothing": ("", "has no vectors"),
    "blank": ("\n \n", "has no vectors"),
    "first line only": ("7 5\n", "has no vectors"),
    "names only": (text_of(*NAMES), "line 1: gene 'TP53' has no numbers"),
    "commas": ("A,1,2\nB,2,3\n", "line 1: gene 'A,1,2' has no numbers. Tabs or spaces must separate"),
    "narrower": (text_of(*LINES[:3], "X 1 2", *LINES[3:]), "line 4: gene 'X' has 2 numbers, those before have 5"),
    "wider": (text_of(*LINES[:3], f"\nX {LONG} 6"), "line 5: gene 'X' has 6 numbers, those before have 5"),
    "first line of another width": (text_of("7 4", *LINES), "line 2: gene 'TP53' has 5 numbers, the first line says 4"),
    "first line of more": (text_of("8 5", *LINES), "the first line says 8 vectors, there are 7: is it cut off?"),
    "first line of fewer": (text_of("6 5", *LINES), "the first line says 6 vectors, there are 7"),
    "titles": (text_of("gene " + LONG.replace("1", "V"), *LINES), "line 1: gene 'gene', number 1 is 'V', it must be a"),
    "a word": (text_of(*LINES[:2], "X 1 2 red 4 5"), "line 3: gene 'X', number 3 is 'red', it must be a number"),
    "decimal comma": (text_of(*LINES[:2], "X 1 2 3 4 0,5"), "line 3: gene 'X', number 5 is '0,5', it must be a number"),
    "underscore": (text_of(*LINES[:2], "X 1 2 3 4 1_0"), "line 3: gene 'X', number 5 is '1_0', it must be a number"),
    "nan": (text_of(*LINES[:2], "X 1 2 3 NaN 5"), "line 3: gene 'X', number 4 is 'NaN', it must be a finite"),
    "nan and plus": (text_of("X 1 2 +3 NaN 5"), "line 1: gene 'X', number 4 is 'NaN', it must be a finite"),
    "infinite": (text_of(*LINES[:2], "X 1 2 -inf 4 5"), "line 3: gene 'X', number 3 is '-inf', it must be a finite"),
    "too large": (
        text_of(*LINES[:2], "X 1 1e39 3 4 5"),
        "line 3: gene 'X', number 2 is '1e39', it must be a finite 32-",
    ),
    "Latin-1": (text_of(*LINES).encode() + b"\xfc 1 2 3 4 5\n", "line 8: is not UTF-8 text"),
    "word2vec's binary": (b"7 5\nTP53 \x00\x80\xff\x01", "line 2: is not UTF-8 text"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_wrong_texts(case, tmp_path):
    content, message = TEXTS[case]
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(ValueError, match=rf"a.txt:? {re.escape(message)}"):
        read_gene_vectors(path)


class Thing:
    pass


def changed(value):
    vectors = MATRIX.double()
    vectors[2, 3] = value
    return vectors


def changed_pickle():
    """A file of torch.save whose pickle gives what makes tensors other arguments."""
    saved, out = io.BytesIO(), io.BytesIO()
    torch.save(MATRIX, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"K\x07K\x05", b"K\x07]"))
    return out.getvalue()


PLAIN = "pickle of objects, and reading those can run any code. .* load it and write it as plain numbers and text: "
NOT_SAVED = "is cut off, damaged or no file of torch.save"
ARRAYS = {
    "object": ({"TP53": Thing()}, PLAIN + "torch.save"),
    "arrays": ({"TP53": VECTORS[0]}, PLAIN + "torch.save"),
    "pickle": (pickle.dumps({"TP53": VECTORS[0]}), PLAIN + "torch.save"),
    "text": (TEXT, NOT_SAVED),
    "empty": (b"", NOT_SAVED),
    "changed": (changed_pickle(), NOT_SAVED),
    "number": (7, "holds a int, it must hold a dict of gene to tensor"),
    "no gene": ({}, "has no vectors"),
    "no number": ({"A": torch.zeros(0)}, "has no vectors"),
    "complex gene": (tensors(B=torch.zeros(5).cfloat()), "gene 'B' has complex64 of shape .* it must be numbers"),
    "width": (tensors(B=torch.ones(3)), "gene 'B' has 3 numbers, 'TP53' has 5"),
    "shape": (tensors(B=torch.ones(1, 5)), r"'B' has float32 of shape \(1, 5\), it must be numbers of shape \(dim,\)"),
    "list": (tensors(B=[1.0] * 5), "gene 'B' has a value of type list, it must be"),
    "nan": (
        dict(zip(NAMES, changed(np.nan), strict=True)),
        "gene 'ENSG00000141510.17', number 4 is nan, it must be a finite",
    ),
    "infinite": (
        dict(zip(NAMES, changed(-np.inf), strict=True)),
        "number 4 is -inf, it must be a finite 32-bit number",
    ),
    "large": (dict(zip(NAMES, changed(1e39), strict=True)), "number 4 is inf, it must"),
    "list of names": ({"names": NAMES, "X": MATRIX}, "gene 'names' has a value of type list, it must be a tensor"),
    "no name": ({"A": torch.ones(5), " ": torch.ones(5)}, "gene 2 has no name"),
    "sparse": ({"X": torch.eye(7).to_sparse()}, "'X' must be a plain tensor, it is torch.sparse_coo"),
    "unnamed": (MATRIX, "does not name its genes: write a dict of them"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_wrong_arrays(case, tmp_path):
    content, message = ARRAYS[case]
    path = write(tmp_path / "a.pt", content)
    with pytest.raises(ValueError, match=rf"a.pt:? .*({message})"):
        read_gene_vectors(path)


def test_a_pickle_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    (tmp_path / "a.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="a.pt"):
        read_gene_vectors(tmp_path / "a.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", [n for n in GOOD if not n.endswith((".txt", ".vec", ".tsv"))])
def test_cut_off(name, tmp_path):
    path = write(tmp_path / name, GOOD[name])
    whole = path.read_bytes()
    for share in (0.3, 0.7, 0.97):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ValueError, match=rf"{re.escape(name)}:? is cut off"):
            read_gene_vectors(path)


def test_no_file(tmp_path):
    for name in ("a.txt", "a.pt"):
        with pytest.raises(FileNotFoundError, match=name):
            read_gene_vectors(tmp_path / name)
    with pytest.raises(ValueError, match="is a directory, it must be a file"):
        read_gene_vectors(tmp_path)


@pytest.mark.slow
def test_real_vectors(data_folder):
    path = data_folder / "gene_vectors" / "annotation_svd128.txt.xz"
    with pytest.warns(UserWarning, match="occur more than once with different vectors"):
        found = read_gene_vectors(path)
    with lzma.open(path, "rt") as file:
        lines = [line.split() for line in file]
    times = Counter(line[0] for line in lines)
    assert found.names == list(times)
    some = [line for line in lines[::97] if times[line[0]] == 1]
    chosen, matched = found.of([line[0] for line in some])
    assert np.array_equal(chosen, np.array([line[1:] for line in some], dtype=np.float32))
    assert matched.exact == len(some) > 100
