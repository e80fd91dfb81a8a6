"""Sources that are read anew give what the array in memory gives, forward and backward."""

import numpy as np
import pytest
import torch

from omniset import SetBatch, encoders
from omniset.core.disk import DiskRows
from omniset.core.sources import ArraySource, FunctionSource
from omniset.testing import relative_error

N, D = 101, 3


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, D)), rng.integers(0, 4, N).astype(np.float64)


def sources(x, m, folder):
    np.save(folder / "x.npy", x)
    whole = SetBatch(torch.from_numpy(x)[None], torch.from_numpy(m)[None])
    return {
        "array": ArraySource(x, 17, m),
        "mapped": ArraySource(np.load(folder / "x.npy", mmap_mode="r"), 17, m),
        "function": FunctionSource(lambda: iter(whole.shards(17))),
    }


@pytest.mark.parametrize("store", ["disk", "recompute"])
def test_every_source_is_the_whole_set(data, store, tmp_path):
    x, m = data
    encoder = encoders.build("ust", input_dim=D, dim=8, depth=2, num_heads=2, num_inducing=3, num_outputs=2).double()
    parameters = list(encoder.parameters())

    def results(source, **options):
        out = encoder(source, **options)
        return out, torch.autograd.grad(out.summary.square().sum(), parameters, allow_unused=True)

    whole, expected = results(SetBatch(torch.from_numpy(x)[None], torch.from_numpy(m)[None]))
    for name, source in sources(x, m, tmp_path).items():
        out, got = results(source, store=store)
        assert relative_error(out.summary, whole.summary) < 1e-12, name
        pairs = [(g, e) for g, e in zip(got, expected, strict=True) if e is not None]
        assert relative_error(*zip(*pairs, strict=True)) < 1e-12, name
        elements = torch.cat([shard.elements for shard in out.elements], 1)
        assert relative_error(elements, whole.elements) < 1e-12, name


def test_a_mapped_file_is_read_a_shard_at_a_time(data, tmp_path):
    np.save(tmp_path / "x.npy", data[0])
    source = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), 17)
    assert next(iter(source)).elements.untyped_storage().nbytes() == 17 * D * 8


def test_bad_sources(data):
    x, m = data
    holey = np.where(np.arange(101) == 44, np.nan, x.T).T
    for make, message in (
        (lambda: ArraySource(x, 0), "shard_size must be an integer >= 1, got 0"),
        (lambda: ArraySource(m, 5), r"array must be \(N, D\), and multiplicity \(N,\), got the shapes \[\(101,\)\]"),
        (lambda: ArraySource(x, 5, m[:7]), r"got the shapes \[\(101, 3\), \(7,\)\]"),
        (lambda: ArraySource(x, 5, -m), "multiplicity"),
        (lambda: ArraySource(holey, 5), r"rows from 40 .*: elements\[0, 4, 0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            list(make())
    with pytest.raises(TypeError, match="must give SetBatch shards to iterate over, it gave NoneType"):
        list(FunctionSource(lambda: None))
    (shard,) = ArraySource(np.zeros((0, 2)), 5)  # no elements are no error
    assert shard.elements.shape == (1, 0, 2)


def test_rows_on_disk_are_those_in_memory(tmp_path, monkeypatch):
    rows = torch.arange(3 * 997, dtype=torch.float32).view(997, 3)
    for memory in (0, 1, 500, 1 << 20):  # bytes that wait in memory
        monkeypatch.setattr("omniset.core.disk.MEMORY", memory)
        stored = DiskRows(3, torch.float32, tmp_path)
        for part in rows.split(101):
            stored.append(part)
            assert stored[: len(stored)].equal(rows[: len(stored)])
        assert stored[13:640].equal(rows[13:640])
        assert stored[5:5].shape == (0, 3)
