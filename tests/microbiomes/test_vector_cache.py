"""Vectors of sequences that several processes keep in one folder, some of which are killed or write nonsense."""

import multiprocessing
import os
import signal
import sys

import numpy as np
import pytest

from omniset.microbiomes.embeddings import VectorCache, settings_checksum
from omniset.runs.locks import held

WIDTH = 3
forked = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")


def compute(texts):
    return np.array([[len(text), text.count("A"), 0.5] for text in texts], dtype=np.float32)


def never(texts):
    raise AssertionError(f"asked for {len(texts)} vectors that are kept")


def assert_kept(folder, texts):
    """Whoever comes later has their vectors, and computes none."""
    assert np.array_equal(VectorCache(folder, "model", WIDTH).of(texts, never), compute(texts))


def texts_of(first, last):
    return ["ACGT"[i % 4] * (1 + i // 4) for i in range(first, last)]


def together(*works):
    """Run each, a function and its arguments, in a process of its own; they begin at the same time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["omniset.microbiomes.embeddings"])
    gate = context.Barrier(len(works) + 1)
    processes = [context.Process(target=begin, args=(gate, *work), daemon=True) for work in works]
    for process in processes:
        process.start()
    gate.wait(120)
    return processes


def begin(gate, work, *arguments):
    gate.wait()
    work(*arguments)


def keep(folder, first, last):
    cache = VectorCache(folder, "model", WIDTH)
    for start in range(first, last, 2):
        some = texts_of(start, start + 2)
        assert np.array_equal(cache.of(some, compute), compute(some))


def die(folder):
    with held(folder / "model.lock", "the cache"), open(folder / "model.rows", "ab", 0) as file:
        file.write(b"half a row")
        os.kill(os.getpid(), signal.SIGKILL)


def fill(folder):
    import resource
    import sys

    sys.dont_write_bytecode = True  # it would be cut short, and read by others
    cache = VectorCache(folder, "model", WIDTH)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
    with pytest.raises(OSError, match="cache cannot be written: .*model.rows"):
        cache.of(["CC"], compute)


def exit_codes(processes):
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


@forked
def test_processes_at_once(tmp_path):
    """Each has its own vectors, and the cache those of all, for whoever comes later."""
    assert exit_codes(together(*((keep, tmp_path, first, first + 120) for first in (0, 60, 120)))) == [0, 0, 0]
    assert_kept(tmp_path, texts_of(0, 240))


def test_caches_opened_before_others_wrote(tmp_path):
    """Neither knows at first what the other has kept."""
    first, second = (VectorCache(tmp_path, "model", WIDTH) for _ in range(2))
    first.of(["A", "CC"], compute)
    second.of(["GGG"], compute)
    assert np.array_equal(first.of(["GGG", "A"], never), compute(["GGG", "A"]))
    first.of(["T"], compute)
    second.of(["TTTT", "T"], compute)
    assert_kept(tmp_path, ["TTTT", "T", "GGG", "CC", "A"])


@forked
def test_a_process_that_is_killed_holds_no_lock(tmp_path):
    """In the middle of a row: the others go on, and its half row is written over."""
    first = VectorCache(tmp_path, "model", WIDTH)
    first.of(["A"], compute)

    assert exit_codes(together((die, tmp_path))) == [-signal.SIGKILL]
    assert np.array_equal(first.of(["CC", "A"], compute), compute(["CC", "A"]))
    assert_kept(tmp_path, ["A", "CC"])
    assert first.rows.stat().st_size == 2 * (16 + 4 * WIDTH + 4)


@forked
def test_a_second_process_waits_for_the_first(tmp_path):
    with held(tmp_path / "model.lock", "the cache"):
        (process,) = together((keep, tmp_path, 0, 2))
        process.join(0.2)
        assert process.is_alive()
        assert not (tmp_path / "model.rows").exists()
    assert exit_codes([process]) == [0]
    assert_kept(tmp_path, texts_of(0, 2))


@pytest.mark.parametrize("place", [0, 16, 20, 31], ids=["key", "vector", "its middle", "checksum"])
def test_damaged_rows_are_computed_anew(tmp_path, place):
    cache = VectorCache(tmp_path, "model", WIDTH)
    texts = ["A", "CC", "GGG"]
    cache.of(texts, compute)
    whole = cache.rows.read_bytes()
    size = len(whole) // 3
    damaged = bytearray(whole)
    damaged[size + place] ^= 1
    cache.rows.write_bytes(damaged)
    asked = []

    def asking(texts):
        asked.extend(texts)
        return compute(texts)

    with pytest.warns(UserWarning, match="model.rows has 1 damaged vector: computed anew"):
        assert np.array_equal(cache.of(texts, asking), compute(texts))
    assert asked == ["CC"]
    assert cache.rows.read_bytes() == whole
    assert_kept(tmp_path, texts)


def test_rows_that_are_not_of_this_model_are_not_used(tmp_path):
    """Such as those of another file that was copied to its name, or rows in another order."""
    other = VectorCache(tmp_path, "other", WIDTH)
    other.of(["A", "CC"], lambda texts: -compute(texts))
    cache = VectorCache(tmp_path, "model", WIDTH)
    cache.rows.write_bytes(other.rows.read_bytes() + b"and more")
    cache = VectorCache(tmp_path, "model", WIDTH)
    assert np.array_equal(cache.of(["A", "CC"], compute), compute(["A", "CC"]))
    assert_kept(tmp_path, ["CC", "A"])
    size = 16 + 4 * WIDTH + 4
    rows = cache.rows.read_bytes()
    cache.rows.write_bytes(rows[: 2 * size] + rows[3 * size :] + rows[2 * size : 3 * size])
    with pytest.warns(UserWarning, match="has 2 damaged vectors: computed anew"):
        assert np.array_equal(cache.of(["A", "CC"], compute), compute(["A", "CC"]))


@forked
def test_a_full_disk_is_one_line(tmp_path):
    """What was written before is kept."""
    cache = VectorCache(tmp_path, "model", WIDTH)
    cache.of(["A"], compute)

    assert exit_codes(together((fill, tmp_path))) == [0]
    assert_kept(tmp_path, ["A"])
    assert np.array_equal(VectorCache(tmp_path, "model", WIDTH).of(["CC"], compute), compute(["CC"]))


def test_no_texts_and_one_twice(tmp_path):
    cache = VectorCache(tmp_path, "model", WIDTH)
    assert cache.of([], never).shape == (0, WIDTH)
    assert np.array_equal(cache.of(["A", "A"], compute), compute(["A", "A"]))


def test_other_settings_are_another_transformer(tmp_path):
    """The same weights make other vectors with another tokenizer."""
    (tmp_path / "vocab.txt").write_text("A\nC\n")
    (tmp_path / "model.safetensors").write_bytes(b"weights, which have their own checksum")
    first = settings_checksum(tmp_path)
    (tmp_path / "README.md").write_text("no setting")
    assert settings_checksum(tmp_path) == first
    (tmp_path / "vocab.txt").write_text("C\nA\n")
    assert settings_checksum(tmp_path) != first
