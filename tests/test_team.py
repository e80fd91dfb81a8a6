"""Threads of the pool take pieces; those of PyTorch's operations are few, or gone, meanwhile."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from omniset.kernels import blocks, folded, team
from omniset.layers import InducedSetAttentionBlock, SetAttentionBlock


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)
    team._helpers.clear()  # a signal right behind the acquiring of a lock leaves its helper waiting for good


def met() -> int:
    """Threads of which each waits for the other."""
    barrier, names = threading.Barrier(2, timeout=60), set()

    def work():
        barrier.wait()
        names.add(threading.get_ident())

    team.together(work, 2)
    return len(names)


def test_operations_take_one_thread_and_pieces_all(two_threads):
    def work():
        assert torch.get_num_threads() == 1
        assert met() == 2

    def nested():
        work()
        team.in_one_thread(team.FEW, work)  # a function within another
        work()

    team.in_one_thread(team.FEW, nested)
    assert torch.get_num_threads() == 2
    assert team.in_one_thread(team.FEW + 1, torch.get_num_threads) == 2
    assert team.in_one_thread(team.FEW + 1, met) == 2


def test_an_error_leaves_the_threads_as_they_were(two_threads):
    with pytest.raises(ZeroDivisionError):
        team.in_one_thread(1, lambda: 1 // 0)
    assert torch.get_num_threads() == 2
    assert met() == 2


def of_new_thread():
    """The number of threads that operations of a new one take."""
    found = []

    def look():
        torch.ones(3).sum()
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_begin_meanwhile_have_as_many_as_the_program(two_threads):
    parts = team.pieces(torch.empty(1, 1 << 19, 1))
    assert set(team.share_out(parts, lambda _: of_new_thread())) == {2}
    assert team.in_one_thread(1, of_new_thread) == 2


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")
def test_products_take_one_thread_too(two_threads):
    def number():
        lines = torch.__config__.parallel_info().split("\n")
        return [line.strip() for line in lines if "mkl_get_max" in line]

    before = number()
    assert team.in_one_thread(1, number) == ["mkl_get_max_threads() : 1"]
    assert number() == before != ["mkl_get_max_threads() : 1"]


@pytest.mark.skipif(team._pause() is None, reason="PyTorch has another OpenMP here than GNU's, which is not asked")
def test_threads_of_openmp_are_let_go_and_come_back(two_threads):
    x = torch.arange(1e6, dtype=torch.float64)
    expected = (x + 1).sum()
    with_them = len(os.listdir("/proc/self/task"))
    team._let_go()
    assert len(os.listdir("/proc/self/task")) < with_them
    assert (x + 1).sum() == expected
    assert len(os.listdir("/proc/self/task")) == with_them


class HitError(Exception):
    """What a signal raises."""


@pytest.fixture
def hit(monkeypatch):
    """Runs something that signals hit every fifth of a millisecond, from a random moment on; says whether they did."""
    inside, moments = [], random.Random(3)

    def raises(*_):
        if inside:
            raise HitError

    def run(work, longest):
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, longest), 2e-4)
        try:
            try:
                inside.append(True)
                work()
            finally:
                inside.clear()
        except HitError:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    # Python itself drops what is raised while an object is freed.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGALRM, raises)
    yield run
    signal.signal(signal.SIGALRM, before)


def test_what_signals_raise_waits_for_all_threads(two_threads, hit):
    busy = set()

    def work():
        if threading.current_thread() is threading.main_thread():
            time.sleep(1e-3)
            return
        busy.add(1)
        time.sleep(3e-3)
        busy.clear()

    hits = 0
    for _ in range(200):
        hits += hit(lambda: team.together(work, 2), 4e-3)
        assert not busy
    assert hits
    assert met() == 2


@pytest.mark.parametrize("form", ["blocks", "tiles"])
def test_memory_of_what_was_interrupted_is_written_to_by_none(form, two_threads, hit, monkeypatch):
    if form == "tiles":
        monkeypatch.setattr(blocks, "takes", lambda _: False)
    elif blocks.library() is None:
        pytest.skip("there is no compiler here, or it fails")
    monkeypatch.setattr(folded, "LEAST", 0)
    layer, x = InducedSetAttentionBlock(32, 4, 4), torch.randn(4, 1009, 32)
    with torch.no_grad():
        expected, hits = layer(x), 0
        start = time.perf_counter()
        layer(x)
        longest = time.perf_counter() - start
        for _ in range(50):
            hits += hit(lambda: layer(x), longest)
            others = [torch.zeros_like(x) for _ in range(3)]
            assert torch.equal(layer(x), expected)
            assert not any(bool(other.any()) for other in others)
    assert hits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["blocks", "tiles", "whole"])
def test_threads_have_the_modes_of_their_caller(form, dtype, two_threads, monkeypatch):
    if form != "blocks":
        monkeypatch.setattr(blocks, "takes", lambda _: False)
    if form == "whole":
        layer, x = SetAttentionBlock(32, 4), torch.randn(64, 512, 32)
        monkeypatch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
    else:
        layer, x = InducedSetAttentionBlock(32, 4, 4, 0), torch.randn(8, 4001, 32)
    layer, x = layer.to(dtype), x.to(dtype).requires_grad_()
    with torch.inference_mode():
        inferred = layer(x)
    assert inferred.is_inference()
    out = layer(x)  # in memory that threads have taken before
    out.sum().backward()
    with torch.no_grad():
        plain = layer(x)
    assert not plain.is_inference()
    for one in (inferred.clone(), plain):
        torch.testing.assert_close(one, out.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("enabled", [False, True])
def test_modes_of_operations_in_threads(enabled, two_threads):
    parts, both = team.pieces(torch.empty(1, 1 << 19, 1)), threading.Barrier(2, timeout=60)

    def modes(piece):
        if piece in parts[:2]:
            both.wait()
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return product.dtype, torch.ones(1).dtype, torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    torch.set_default_dtype(torch.float64 if enabled else torch.float32)
    try:
        with torch.inference_mode(enabled), torch.autocast("cpu", torch.float16, enabled=not enabled):
            found = team.share_out(parts, modes)
    finally:
        torch.set_default_dtype(torch.float32)
    of_products = torch.float64 if enabled else torch.float16
    assert set(found) == {(of_products, torch.float64 if enabled else torch.float32, enabled, False)}


OUTLIVES = """
import atexit, threading, torch
from omniset.kernels import team

torch.set_num_threads(2)
parts = team.pieces(torch.empty(1, 1 << 20, 1))

def train(said):
    assert team.share_out(parts, lambda piece: piece) == parts
    print(said, flush=True)

def late():
    threading.main_thread().join()
    train("after the script")

threading.Thread(target=late).start()
atexit.register(train, "at exit")

if {before}:
    train("before")
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_work_is_done_after_the_main_script_and_at_exit(before):
    script = OUTLIVES.replace("{before}", str(before))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    said = ["before"] * before + ["after the script", "at exit"]
    assert (done.stdout.splitlines(), done.stderr) == (said, "")
