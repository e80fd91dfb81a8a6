"""Compiled code (blocks.cpp and small.cpp): built when first wanted, and kept, where there is a compiler.

Without a compiler nothing is lost but time: `takes` says no, and tensor operations compute the same. A library that is
built is kept in the user's cache folder, under a name that has the code, the compiler and the processor in it, and is
loaded only if nobody else could have written it. OMNISET_COMPILE=0 switches all of it off.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import itertools
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from omniset.kernels import private
from omniset.kernels.team import Piece, together

SOURCES = tuple(Path(__file__).with_name(name) for name in ("blocks.cpp", "small.cpp", "vectors.h"))
WIDE = ("-mprefer-vector-width=512",)  # loops as products have them, where the processor does
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
    *(WIDE if platform.machine().lower() in ("x86_64", "amd64") else ()),
)
SECONDS = 120.0  # that the compiler may take
NARROW = 128  # numbers of an element
KINDS = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


def takes(elements: Tensor) -> bool:
    """Whether elements on this device, of this type, are computed with in blocks.

    Wide ones in bfloat16 are not where the processor has units for their products, which blocks do not use.
    """
    if elements.device.type != "cpu" or elements.dtype not in KINDS:
        return False
    units = elements.dtype == torch.bfloat16 and private.HALF_UNITS
    return not (units and elements.shape[-1] > NARROW) and library() is not None


def run(
    name: str,
    dtype: torch.dtype,
    arrays: Sequence[Tensor | None],
    numbers: Sequence[int],
    reals: Sequence[float],
    parts: Sequence[Piece],
) -> None:
    """Have threads do all pieces by a compiled function for elements of this type.

    Args:
        arrays: Without gaps (`contiguous`), but for those whose strides are among the numbers.

    Raises:
        MemoryError: There is no memory for a block.
    """
    function = getattr(library(), f"{name}_{KINDS[dtype]}")
    packed = (ctypes.c_void_p * len(arrays))(*(None if x is None else x.data_ptr() for x in arrays))
    sizes, pieces = ((ctypes.c_long * len(some))(*some) for some in (numbers, [*itertools.chain(*parts)]))
    others, turn, failed = (ctypes.c_double * len(reals))(*reals), ctypes.c_long(0), []

    def take() -> None:
        if function(packed, sizes, others, pieces, ctypes.c_long(len(parts)), ctypes.byref(turn)):
            failed.append(name)

    together(take, len(parts))
    if failed:
        raise MemoryError("no memory for a block of elements")


def kept_numbers(dtype: torch.dtype, numbers: Sequence[int]) -> int:
    """How many numbers small.cpp keeps of each set between the passes."""
    return getattr(library(), f"block_kept_{KINDS[dtype]}")((ctypes.c_long * len(numbers))(*numbers))


def contiguous(*arrays: Tensor | None) -> list[Tensor | None]:
    """As blocks read them, without gaps."""
    return [None if x is None else x.contiguous() for x in arrays]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled code; None where there is no compiler, or it fails."""
    if os.environ.get("OMNISET_COMPILE") == "0" or not sys.platform.startswith(("linux", "darwin")):
        return None
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        return None
    try:
        found = ctypes.CDLL(str(_built(compiler)))
    except (OSError, subprocess.SubprocessError):
        return None
    found.block_kept_float32.restype = found.block_kept_float64.restype = ctypes.c_long
    return found


def _built(compiler: str) -> Path:
    """The library's file; built if it is not there."""
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    code = (source.read_bytes() for source in SOURCES)
    parts = (*code, " ".join(FLAGS).encode(), version, _processor().encode())
    name = f"blocks-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omniset"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _private(folder):
            raise PermissionError(f"{folder} is not this user's alone")
        with tempfile.TemporaryDirectory(dir=folder):  # it can be written to
            pass
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="omniset-"))  # for this process
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / name
    if not (file.is_file() and _private(file)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            new = Path(place) / name
            command = [compiler, *FLAGS, *(str(file) for file in SOURCES if file.suffix == ".cpp"), "-o", str(new)]
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True, stdin=subprocess.DEVNULL)
            os.replace(new, file)  # whole, or not at all: several processes may build it at once
    return file


def _private(path: Path) -> bool:
    """Whether only this user (or root) can have written it."""
    about = path.lstat()
    return about.st_uid in (os.getuid(), 0) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _processor() -> str:
    """What code built for this processor may use: a cache folder may be that of several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
