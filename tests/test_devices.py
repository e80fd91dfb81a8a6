"""Threads of the libraries that compute."""

import scipy.linalg  # noqa: F401  (has a library for linear algebra beside NumPy's)
from threadpoolctl import threadpool_info, threadpool_limits

from omniset.runs.devices import one_blas_thread


def threads_of_blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@one_blas_thread()
def inside() -> list[int]:
    return threads_of_blas()


def test_linear_algebra_has_one_thread_where_it_is_asked_for_and_all_after():
    for number in (2, 1, 2):  # libraries are looked for once, their threads each time
        with threadpool_limits(number, "blas"):
            before = threads_of_blas()
            assert set(before) == {number}
            assert set(inside()) == {1}
            assert threads_of_blas() == before
