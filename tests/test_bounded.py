"""What is held at once is bounded, in one place for all readers; what is read from top to bottom is of any size."""

import bz2
import gzip
import lzma
import os
import tempfile
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import torch

from omniset import SetClassifier
from omniset.cli import main
from omniset.core import bounded
from omniset.regions.connectivity import read_connectivity
from omniset.tables import arrays, files
from omniset.tables.counts import read_samples
from omniset.tables.dna import SequenceFile
from omniset.tables.gene_vectors import read_gene_vectors
from omniset.tables.reading import open_sets
from omniset.training import artefacts

PACKERS = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MUCH = 5_000_003  # bytes, a thousand times what packed zeros of them take


@pytest.fixture(autouse=True)
def small_bounds(tmp_path, monkeypatch):
    """A megabyte in place of a quarter of a gigabyte; and a folder for temporary files, where nothing may be left."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(bounded, "WHOLE", 1_000_000)
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"set": ["a", "b"], "label": ["p", "q"]}).to_csv("labels.csv", index=False)
    yield
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize(("text", "line"), [("set,x\na,1\nb,{}\n", 3), ("{},x\na,1\n", 1), ("set,x\na,1\nb,{}", 3)])
def test_a_line_is_bounded(text, line, packed, monkeypatch, capsys):
    monkeypatch.setattr(files.TextFile, "longest", 1_000_000)
    with PACKERS[packed](f"t.csv{packed}", "wb") as file:
        file.write(text.format("1" * MUCH).encode())
    assert main(["fit", f"t.csv{packed}", "--target=labels.csv", "--out=run", "--progress=false"]) == 2
    said = f"t.csv{packed}: line {line}: is longer than 1 MB, at most that is read: a line must be one row"
    assert capsys.readouterr().err == f"omniset: error: {said}\n"


def test_lines_that_end_in_any_way_are_lines(monkeypatch):
    """Of three megabytes, where a line may have one."""
    monkeypatch.setattr(files.TextFile, "longest", 1_000_000)
    for end in ("\n", "\r\n", "\r"):
        text = end.join(["set,x", *(f"{'s' * 90_000},{i}" for i in range(30))])
        with gzip.open("t.csv.gz", "wb") as file:
            file.write(text.encode())
        chunks = [*files.TableFile("t.csv.gz").chunks()]
        assert [float(x) for chunk in chunks for x in chunk.columns["x"].to_pylist()] == [*range(30)]


def test_a_chromosome_may_be_a_line(monkeypatch):
    monkeypatch.setattr(files.TextFile, "longest", 1_000_000)
    with gzip.open("c.fa.gz", "wb") as file:
        file.write(b">c\n" + b"A" * MUCH)
    assert [len(record.bases) for record in SequenceFile("c.fa.gz")] == [MUCH]
    assert SequenceFile.longest == 1 << 30


@pytest.mark.parametrize("packed", PACKERS)
def test_a_quote_that_is_never_closed_is_bounded(packed, monkeypatch):
    monkeypatch.setattr(bounded, "BLOCK", 2_000_000)
    with PACKERS[packed](f"t.csv{packed}", "wb") as file:
        file.write(b'set,x\na,1\nb,"2\n' + b"c,3\n" * (MUCH // 4))
    with pytest.raises(ValueError, match=r"line \d+: more than 2 MB are read before some rows end: is a quote never"):
        list(files.TableFile(f"t.csv{packed}").chunks())


def test_columns_are_bounded(monkeypatch):
    monkeypatch.setattr(files, "COLUMNS", 1_000)
    for number in (1_000, 1_001):
        pd.DataFrame(np.ones((2, number)), columns=[f"x{i}" for i in range(number)]).to_csv(
            f"{number}.csv", index=False
        )
    assert len(files.TableFile("1000.csv").columns) == 1_000
    with pytest.raises(ValueError, match=r"1001.csv: line 1: has 1,001 columns, at most 1,000 are read"):
        files.TableFile("1001.csv")


def test_what_is_read_from_top_to_bottom_may_be_of_any_size():
    """Packed a thousand times, and larger than what may be held at once."""
    with gzip.open("t.csv.gz", "wb") as file:
        file.write(b"set,x\n" + b"a,0.000000000000\n" * 600_000)
    assert os.path.getsize("t.csv.gz") * bounded.TIMES < 600_000 * 17
    assert sum(len(chunk) for chunk in files.TableFile("t.csv.gz").chunks()) == 600_000


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def artifact(path):
    zipped(path, {"uuid/data/feature-table.biom": b"\0" * MUCH})


def square(path):
    np.savez_compressed(path, connectivity=np.zeros((997, 997)))


def tensor(path):
    torch.save({"features": torch.zeros(MUCH // 20, 5)}, "plain.pt")
    with zipfile.ZipFile("plain.pt") as plain:
        zipped(path, {name: plain.read(name) for name in plain.namelist()})


def matlab(path):
    scipy.io.savemat(path, {"connectivity": np.zeros((997, 997))}, do_compression=True)


def biom(path):
    with h5py.File(path, "w") as root:
        for name in ("observation/ids", "sample/ids"):
            root[name] = np.array([b"a"])
        for name, kind in (("data", "f8"), ("indices", "i4"), ("indptr", "i4")):
            root.create_dataset(f"sample/matrix/{name}", data=np.zeros(MUCH // 8, kind), compression="gzip")


def chunked(path):
    with h5py.File(path, "w") as root:
        root.create_dataset("features", data=np.zeros((MUCH // 20, 5)), chunks=(MUCH // 20, 5), compression="gzip")


def parquet(path):
    pd.DataFrame(np.zeros((MUCH // 80, 20)), columns=[f"r{i}" for i in range(20)]).to_parquet(path)


HELD = {
    "a.qza": (artifact, read_samples, "unpack it, and give its feature-table.biom"),
    "c.npz": (square, read_connectivity, "write it by numpy.savez, which does not pack"),
    "a.pt": (tensor, open_sets, "torch.save does not pack, write it by that"),
    "a.mat": (matlab, read_connectivity, "save it with -v6"),
    "a.biom": (biom, read_samples, "unpack it, as by h5repack -f NONE"),
    "a.h5": (chunked, open_sets, "write smaller ones, as by h5repack"),
    "c.parquet": (parquet, read_connectivity, "write it as .npy, .npz or .h5ad"),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_at_once_is_bounded(name, tmp_path):
    make, read, remedy = HELD[name]
    make(tmp_path / name)
    bound = r"holds (more than (1 MB|100 times its size)|.*at most [\d,]+ are unpacked.*)|has a chunk of .* at most .*"
    with pytest.raises(ValueError, match=f"{name}:? (is .*packed, and )?({bound}): {remedy}") as caught:
        read(tmp_path / name)
    assert str(caught.value).count(str(tmp_path / name)) == 1


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 5), }"
HEADERS = {
    "cut": ("{'descr': (", 1, "a.npy is cut off, damaged or no .npy file"),
    "a name": (HEADER.replace("False", "x"), 1, "no .npy file: [^<>]*$"),
    "version": (HEADER, 3, "no .npy file: the matrix is of version 3 of NumPy's"),
    "large": (HEADER.replace("7", "9" * 12), 1, r"the matrix is said to be float32 of shape \(9+, 5\), which is more"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_what_an_array_says_of_itself(case, tmp_path):
    """NumPy takes the memory before it reads."""
    header, version, message = HEADERS[case]
    start = b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little")
    (path := tmp_path / "a.npy").write_bytes(start + header.encode("latin1") + bytes(140))
    with pytest.raises(ValueError, match=message):
        arrays.mapped_npy(path, "")
    if case == "large":
        zipped(tmp_path / "a.npz", {"matrix.npy": path.read_bytes()})
        with pytest.raises(ValueError, match=message.replace("the matrix", "matrix.npy")):
            arrays.require_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["s.csv", "s.parquet", "s.npy", "s.pt", "s.h5", "s.h5ad", "s.fcs", "s.biom"])
def test_a_pipe_is_no_file(name, tmp_path, capsys):
    os.mkfifo(tmp_path / name)
    assert main(["fit", name, "--target=labels.csv", "--out=run", "--progress=false"]) == 2
    assert capsys.readouterr().err.startswith(f"omniset: error: {name} is a pipe or a device, it must be a file")


@pytest.mark.parametrize("read", [read_gene_vectors, read_connectivity, read_samples, files.TextFile])
@pytest.mark.parametrize("ending", [".csv", ".npy", ".npz", ".mat", ".biom", ".parquet"])
def test_a_device_is_no_file(read, ending, tmp_path):
    (path := tmp_path / f"a{ending}").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=f"a{ending} is a pipe or a device, it must be a file"):
        read(path)


def test_settings_of_a_model_are_a_file_of_bounded_size(tmp_path):
    folder, sets = tmp_path / "model", [[[0.1, 1.0]], [[1.0, 0.3], [0.4, 0.2]]] * 5
    model = SetClassifier("ust", dim=4, num_heads=1, depth=1, epochs=1, progress=False, device="cpu")
    model.fit(sets, ["a", "b"] * 5).save(folder)
    for name in ("config.json", "metrics.json"):
        path = folder / name
        text = path.read_text()
        for make in (os.mkfifo, lambda one: one.symlink_to("/dev/zero"), lambda one: one.write_text(" " * MUCH)):
            path.unlink()
            make(path)
            if name == "metrics.json":
                assert artefacts.load_metrics(folder) == {}
                continue
            with pytest.raises((ValueError, OSError), match="larger than 1 MB, at most that|has no config.json"):
                SetClassifier.load(folder)
        path.write_text(text)
    SetClassifier.load(folder)
