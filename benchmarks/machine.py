"""What the machine at hand can do, and what a piece of work takes of its memory."""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omniset.kernels import blocks, targets

STATUS = Path("/proc/self/status")  # Linux
GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds, in each of which a quota is given

EXPONENTIALS = """
#include "vectors.h"
extern "C" void exponentials(const float *x, float *out, long number, long times) {
  for (long t = 0; t < times; t++) {
    for (long i = 0; i < number; i += LANES<float>) store(out + i, exponential<float>(load(x + i)));
    asm volatile("" : : : "memory");  // every time anew
  }
}
"""


def rates(size: int = 1536, repeats: int = 7) -> dict[str, float]:
    """Best rates in this process: of matrix products by each library, in GF/s, of copying, in GB/s, and of exponentials
    as the kernels compute them, in 10^9 a second.

    `mkl` is what PyTorch's `@` and `linear` use for float32 on x86; `onednn` is the other library, asked for by name.
    """
    a, b = torch.randn(size, size), torch.randn(size, size)
    products: dict[str, Callable[[], Tensor]] = {"mkl": lambda: torch.mm(a, b)}
    if torch.backends.mkldnn.is_available():
        products["onednn"] = lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    found = {f"{name}_gflops": 2e-9 * size**3 / _best(product, repeats) for name, product in products.items()}
    half, other = a.bfloat16(), b.bfloat16()
    found["bfloat16_gflops"] = 2e-9 * size**3 / _best(lambda: torch.mm(half, other), 2)
    x, y = torch.randn(1 << 26), torch.empty(1 << 26)
    found["copy_gbytes"] = 2e-9 * x.numel() * x.element_size() / _best(lambda: y.copy_(x), repeats)
    found["exponentials_giga"] = _exponentials(repeats)
    return found


def limit(flops: float, traffic: float, of: dict[str, float], exponentials: float = 0.0) -> dict[str, Any]:
    """Seconds that this many operations and bytes take at least: products at the better library's rate and exponentials
    one after the other, as the same units compute both, or copying.
    """
    products = {name: of[name] for name in ("mkl_gflops", "onednn_gflops") if name in of}
    library = max(products, key=lambda name: products[name])
    seconds = {
        library.removesuffix("_gflops"): 1e-9 * flops / products[library],
        "copy": 1e-9 * traffic / of["copy_gbytes"],
    }
    if exponentials:
        seconds[library.removesuffix("_gflops")] += 1e-9 * exponentials / of["exponentials_giga"]
    bound = max(seconds, key=lambda name: seconds[name])
    return {"seconds": seconds[bound], "by": bound}


def _exponentials(repeats: int, number: int = 4096, times: int = 2000) -> float:
    """10^9 a second, of numbers in the cache: by vectors.h where the kernels are compiled, else by PyTorch."""
    if blocks.library() is None:
        x, y = torch.randn(number * torch.get_num_threads()), torch.empty(number * torch.get_num_threads())

        def work() -> None:
            for _ in range(times):
                torch.exp(x, out=y)
    else:
        with tempfile.TemporaryDirectory() as folder:
            source, built = Path(folder) / "exponentials.cpp", Path(folder) / "exponentials.so"
            source.write_text(EXPONENTIALS, encoding="utf-8")
            compiler = shlex.split(os.environ.get("CXX", "")) or [*filter(shutil.which, ("c++", "g++", "clang++"))][:1]
            kernels = Path(blocks.__file__).parent
            target = targets.best(platform.machine(), targets.processor().split())
            flags = (*targets.FLAGS, *targets.TARGETS[target][2])
            subprocess.run([*compiler, *flags, f"-I{kernels}", str(source), "-o", str(built)], check=True)
            run = ctypes.CDLL(str(built)).exponentials
        threads = ThreadPoolExecutor(torch.get_num_threads())
        x = torch.randn(torch.get_num_threads(), number)
        out = torch.empty_like(x)

        def one(i: int) -> None:
            pointers = (ctypes.c_void_p(tensor[i].data_ptr()) for tensor in (x, out))
            run(*pointers, ctypes.c_long(number), ctypes.c_long(times))

        def work() -> None:
            list(threads.map(one, range(len(x))))

    return 1e-9 * number * times * torch.get_num_threads() / _best(work, repeats)


def _best(work: Callable[[], Any], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


@contextmanager
def quota(processors: float) -> Iterator[bool]:
    """Within a container's quota: as many processors are seen as before, so much of their time is had.

    Yields:
        Whether there is one: it takes the right to make control groups, on Linux.
    """
    first = next((GROUPS / name for name in ("cpu", "") if (GROUPS / name / "cgroup.procs").exists()), GROUPS)
    if not os.access(first / "cgroup.procs", os.W_OK):
        yield False
        return
    group, share = first / f"omniset-{os.getpid()}", int(processors * PERIOD)
    group.mkdir()
    texts = {"cpu.max": f"{share} {PERIOD}", "cpu.cfs_period_us": f"{PERIOD}", "cpu.cfs_quota_us": f"{share}"}
    there = [name for name in texts if (group / name).exists()]  # of version 2 or 1
    try:
        for name in there:
            (group / name).write_text(texts[name])
        (group / "cgroup.procs").write_text(f"{os.getpid()}")
        yield bool(there)
    finally:
        (first / "cgroup.procs").write_text(f"{os.getpid()}")
        group.rmdir()


class Memory:
    """Anonymous resident memory of this process, watched while some work is done: `extra` and `peak`, in bytes.

    Anonymous memory is that of no file: pages of mapped files come and go as the system likes.
    """

    def __enter__(self) -> "Memory":
        self.start = self.peak = anonymous()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous())

    @property
    def extra(self) -> int:
        return self.peak - self.start

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, anonymous())


def anonymous() -> int:
    with STATUS.open(encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
