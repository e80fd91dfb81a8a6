"""Compiled code (blocks.cpp and small.cpp): of the wheel, or built when first wanted, and kept.

A wheel for one kind of machine has it ready, for the sources beside it. Otherwise a compiler builds it, which is told.
Without a compiler nothing is lost but time: `takes` says no, and tensor operations compute the same. What is built is
kept in the user's cache folder, under a name that tells the code, the target, the compiler, and the file's own content,
and is loaded only if nobody else could have written it, and it is whole. OMNISET_COMPILE=0 switches all of it off.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from omniset.core import private
from omniset.kernels import targets
from omniset.kernels.team import Piece, together

SECONDS = 120.0  # that the compiler may take
AGAIN = 86_400.0  # seconds after which a compiler that has failed is tried again
NARROW = 128  # numbers of an element
KINDS = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
FUNCTIONS = (
    *(f"{name}{way}_{kind}" for name in ("gather", "spread") for way in ("", "_backward") for kind in KINDS.values()),
    *(f"block{what}_{kind}" for what in ("", "_backward", "_kept") for kind in ("float32", "float64")),
)
LOAD = "import ctypes, sys; code = ctypes.CDLL(sys.argv[1]); [code[name] for name in sys.argv[2:]]"


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
    alone: bool = False,
) -> None:
    """Have threads, or this one alone, do all pieces by a compiled function for elements of this type.

    Args:
        arrays: Without gaps (`contiguous`), but for those whose strides are among the numbers.

    Raises:
        MemoryError: There is no memory for a block.
    """
    function = getattr(library(), f"{name}_{KINDS[dtype]}")
    sizes, pieces = ((ctypes.c_long * len(some))(*some) for some in (numbers, [*itertools.chain(*parts)]))
    others, turn, failed = (ctypes.c_double * len(reals))(*reals), ctypes.c_long(0), []

    def take() -> None:  # holds the arrays, which so outlive it, whatever becomes of the caller
        packed = (ctypes.c_void_p * len(arrays))(*(None if x is None else x.data_ptr() for x in arrays))
        if function(packed, sizes, others, pieces, ctypes.c_long(len(parts)), ctypes.byref(turn)):
            failed.append(name)

    together(take, 1 if alone else len(parts))
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
    """The compiled code; None where it is not ready and there is no compiler, or it fails, which is told once."""
    if os.environ.get("OMNISET_COMPILE") == "0" or not sys.platform.startswith(("linux", "darwin")):
        return None
    target = targets.best(platform.machine(), targets.processor().split())
    with contextlib.suppress(OSError, AttributeError):
        return _loaded(Path(__file__).with_name(f"{targets.stem(target)}.so"))  # as trusted as this file beside it
    named = os.environ.get("CXX", "").strip()
    try:
        # Words, as make has it, such as a cache and the compiler behind it.
        compiler = [named] if shutil.which(named) else shlex.split(named)
        compiler = compiler or [*filter(shutil.which, ("c++", "g++", "clang++"))][:1]
        return _built(compiler, target) if compiler else None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            said = error.stderr.decode(errors="replace").split("\n")
            reason = next((line for line in said if "rror" in line), f"it ended with {error.returncode}")
        warnings.warn(
            f"no code was compiled, so that PyTorch's operations compute the same in more time; "
            f"{named or 'the C++ compiler'}: {reason[:300]}. Set CXX to another compiler, or OMNISET_COMPILE=0 to do "
            "without; this one is tried again after a day",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _built(compiler: Sequence[str], target: str) -> ctypes.CDLL | None:
    """The library; built if no whole one is there. None: it failed not long ago."""
    version = hashlib.sha256(_said([*compiler, "--version"])).hexdigest()[:32]
    folder, name = _folder(), f"{targets.stem(target)}-{version}"
    for kept in folder.glob(f"{name}-*.so"):
        with contextlib.suppress(OSError, AttributeError):
            if _private(kept) and kept.stem == f"{name}-{_digest(kept)}":
                return _loaded(kept)
    failed = folder / f"{name}.failed"
    if failed.is_file() and time.time() - failed.stat().st_mtime < AGAIN:
        return None
    where = f"in {folder}" if folder.name == "omniset" else "nowhere: set XDG_CACHE_HOME to a folder of yours alone"
    # To standard error, unless a program has logs of its own; a warning would become a part of results.
    logging.getLogger("omniset").warning("omniset: compiling C++, which takes some seconds; it is kept %s", where)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        new = Path(place) / "new.so"
        try:
            _said([*compiler, *targets.compiler_arguments(target, new)])
            _said([sys.executable, "-ISc", LOAD, str(new), *FUNCTIONS])  # what a process might not survive
        except subprocess.CalledProcessError:
            failed.touch()
            raise
        new.chmod(0o700)  # whatever the umask is
        with new.open("rb+") as written:
            os.fsync(written.fileno())
        file = folder / f"{name}-{_digest(new)}.so"
        os.replace(new, file)  # whole, or not at all: several processes may build it at once
    return _loaded(file)


def _said(command: Sequence[str]) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True, stdin=subprocess.DEVNULL)
    return done.stdout


def _loaded(file: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(file))
    for name in FUNCTIONS:
        getattr(found, name)
    found.block_kept_float32.restype = found.block_kept_float64.restype = ctypes.c_long
    return found


def _folder() -> Path:
    """Where libraries are kept; one for this process where the user has none that is theirs alone."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omniset"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _private(folder):
            with tempfile.TemporaryDirectory(dir=folder):  # it can be written to
                return folder
    except (OSError, RuntimeError):  # there is no home
        pass
    folder = Path(tempfile.mkdtemp(prefix="omniset-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]


def _private(path: Path) -> bool:
    """Whether only this user (or root) can have written it."""
    about = path.lstat()
    return about.st_uid in (os.getuid(), 0) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
