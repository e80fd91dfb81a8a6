"""What the C++ is compiled for, and how: the same at first use (blocks.py) and into wheels (hatch_build.py).

By the standard library alone: where a wheel is built, there is no PyTorch.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection
from pathlib import Path

SOURCES = tuple(Path(__file__).with_name(name) for name in ("blocks.cpp", "small.cpp", "vectors.h"))
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-shared", "-fPIC")
WIDE = ("-mprefer-vector-width=512",)  # loops as products have them, where the processor does
AVX2 = ("avx2", "fma")  # of x86-64-v3, whose other instructions change nothing here
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")  # of x86-64-v4
TARGETS = {  # the fastest first: the machine, what Linux must list of its processor, and flags that use no more
    "avx512": ("x86_64", AVX512, ("-march=x86-64", *(f"-m{feature}" for feature in AVX512), *WIDE)),
    "avx2": ("x86_64", AVX2, ("-march=x86-64", *(f"-m{feature}" for feature in AVX2))),
    "neon": ("aarch64", ("asimd",), ("-march=armv8-a",)),
    "native": ("", (), ("-march=native", *(WIDE if platform.machine().lower() in ("x86_64", "amd64") else ()))),
}


def processor() -> str:
    """What code may use here, as Linux lists it: a cache folder may be that of several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {platform.node()}"


def best(machine: str, features: Collection[str]) -> str:
    """The target for a machine whose processor has these features; "native", which is built here, if none is."""
    targets = TARGETS.items()
    return next(name for name, (of, needed, _) in targets if of in (machine, "") and {*needed} <= {*features})


def compiler_arguments(target: str, library: Path) -> list[str]:
    return [*FLAGS, *TARGETS[target][2], *(str(file) for file in SOURCES if file.suffix == ".cpp"), "-o", str(library)]


def stem(target: str) -> str:
    """Of the library's file: other source, other flags, and for "native" another processor, have another."""
    parts = [*(file.read_bytes() for file in SOURCES), " ".join([*FLAGS, *TARGETS[target][2]]).encode()]
    parts += [processor().encode()] if target == "native" else []
    return f"blocks-{target}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}"
