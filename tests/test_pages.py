"""Memory of large results is used again, and never while anything still holds it."""

import gc
import platform
import sys
import threading
from pathlib import Path

import pytest
import torch

from omniset.kernels import pages

NUMBERS = pages.SMALLEST // 4 + 5
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is held back under Linux only")


@pytest.fixture(autouse=True)
def nothing_held_back(monkeypatch):
    monkeypatch.setattr(pages, "_back", {})


def large(like=None):
    return pages.empty((NUMBERS,), torch.empty(0) if like is None else like)


@pytest.mark.parametrize("shape", [(0,), (3,), (NUMBERS,), (1, 5, NUMBERS // 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_memory_is_as_any(shape, dtype):
    x = torch.randn(shape).to(dtype)
    for y in (pages.empty(shape, x), pages.empty(shape, torch.empty(0), dtype)):
        assert (y.shape, y.dtype, y.stride(), y._is_view()) == (x.shape, dtype, x.stride(), False)
        assert torch.equal(y.copy_(x), x)


@linux
@pytest.mark.parametrize(
    "holder",
    [
        lambda x: x,
        lambda x: x[3:5],
        lambda x: x.numpy(),
        lambda x: x.untyped_storage(),
        lambda x: memoryview(x.numpy()),
    ],
)
def test_used_again_but_not_while_held(holder):
    first = large()
    place = first.data_ptr()
    held = holder(first)
    del first
    assert large().data_ptr() != place
    del held
    gc.collect()
    places = {(a := large()).data_ptr(), (b := large()).data_ptr()}
    assert place in places
    assert len(places) == 2
    del a, b


@linux
def test_not_while_a_graph_needs_it():
    x = large().fill_(2).requires_grad_()
    y = (x * x).sum()
    place = x.data_ptr()
    held = x.grad_fn, y
    del x, y
    other = large().fill_(9)
    assert other.data_ptr() != place
    assert torch.autograd.grad(held[1], held[1])[0] == 1


@linux
def test_second_gradients_are_added_in_place():
    x = torch.randn(NUMBERS, requires_grad=True)
    places = []

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, d):
            found = large().copy_(d)
            places.append(found.data_ptr())
            return found

    (Through.apply(x) + Through.apply(x)).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))
    assert x.grad.data_ptr() in places


@linux
def test_no_more_is_held_back_than_said(monkeypatch):
    monkeypatch.setattr(pages, "HELD_BACK", 3 * pages.SMALLEST)
    results = [large() for _ in range(5)]
    del results
    assert 0 < pages._held_back() <= 3 * pages.SMALLEST
    other = pages.empty((2 * NUMBERS,), torch.empty(0))
    place = other.data_ptr()
    del other  # takes the place of those of another size
    assert 0 < pages._held_back() <= 3 * pages.SMALLEST
    assert pages.empty((2 * NUMBERS,), torch.empty(0)).data_ptr() == place


@linux
def test_threads_never_share():
    wrong = []

    def work(number):
        for _ in range(50):
            x = large().fill_(number)
            y = large().fill_(-number)
            if not (bool((x == number).all()) and bool((y == -number).all())):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


@linux
def test_shared_with_other_processes():
    x = large().fill_(3)
    place = x.data_ptr()
    x.share_memory_()
    assert x.is_shared()
    assert large().fill_(5).data_ptr() == place  # the memory came back, the numbers are elsewhere
    assert bool((x == 3).all())


@linux
def test_without_memory_pytorch_decides(monkeypatch):
    large()
    assert pages._held_back()

    def none_left(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages.mmap, "mmap", none_left)
    first, second = large(), large()
    assert first.shape == second.shape == (NUMBERS,)
    assert pages._held_back() == 0


@linux
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are asked nothing")
def test_memory_between_what_lives_on_is_given_back():
    blocks = [bytearray(b"x" * 100_000) for _ in range(2_000)]  # too small for a map of their own
    del blocks[::2]
    before = resident()
    pages.trim()
    assert before - resident() > 50_000_000
    assert all(block == b"x" * 100_000 for block in blocks)


def resident():
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024
