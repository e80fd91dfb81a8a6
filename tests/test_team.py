"""Threads of the pool take pieces; those of PyTorch's operations are few, or gone, meanwhile."""

import os
import threading

import pytest
import torch

from omniset.kernels import team


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def met() -> int:
    """Threads of which each waits for the other."""
    barrier, names = threading.Barrier(2, timeout=60), set()

    def work():
        barrier.wait()
        names.add(threading.get_ident())

    team.together(work, 2)
    return len(names)


def test_operations_take_one_thread_and_pieces_all(two_threads):
    with team.one_thread(team.FEW):
        assert torch.get_num_threads() == 1
        assert met() == 2
        with team.one_thread(team.FEW):  # a function within another
            assert met() == 2
        assert met() == 2
    assert torch.get_num_threads() == 2
    with team.one_thread(team.FEW + 1):
        assert torch.get_num_threads() == 2
        assert met() == 2


def test_an_error_leaves_the_threads_as_they_were(two_threads):
    with pytest.raises(ZeroDivisionError), team.one_thread(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    assert met() == 2


@pytest.mark.skipif(team._pause() is None, reason="PyTorch has another OpenMP here than GNU's, which is not asked")
def test_threads_of_openmp_are_let_go_and_come_back(two_threads):
    x = torch.arange(1e6, dtype=torch.float64)
    expected = (x + 1).sum()
    with_them = len(os.listdir("/proc/self/task"))
    team._let_go()
    assert len(os.listdir("/proc/self/task")) < with_them
    assert (x + 1).sum() == expected
    assert len(os.listdir("/proc/self/task")) == with_them
