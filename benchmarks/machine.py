"""What the machine at hand can do, and what a piece of work takes of its memory."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATUS = Path("/proc/self/status")  # Linux
GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds, in each of which a quota is given


def rates(size: int = 1536, repeats: int = 7) -> dict[str, float]:
    """Best rates in this process: of matrix products by each library, in GF/s, and of copying, in GB/s.

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
    return found


def limit(flops: float, traffic: float, of: dict[str, float]) -> dict[str, Any]:
    """Seconds that this many operations and bytes take at least: at the better library's rate, or that of copying."""
    products = {name: of[name] for name in ("mkl_gflops", "onednn_gflops") if name in of}
    library = max(products, key=lambda name: products[name])
    seconds = {
        library.removesuffix("_gflops"): flops / products[library] / 1e9,
        "copy": traffic / of["copy_gbytes"] / 1e9,
    }
    bound = max(seconds, key=lambda name: seconds[name])
    return {"seconds": seconds[bound], "by": bound}


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
