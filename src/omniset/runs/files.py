"""Writing files so that nobody ever sees half of one, and saying what made them."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import omniset

HALF_WRITTEN = re.compile(r"\..*-[a-z0-9_]{8}(\.[^.]*)?")  # names that `replacing` makes
PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "safetensors")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`: moved to it when the block ends well, removed when it does not.

    A file that is replaced gives the new one its permissions. A link is replaced itself: it may lead to others' files.
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        kept = path.is_file() and not path.is_symlink()
        temporary.chmod(stat.S_IMODE(path.stat().st_mode) if kept else 0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def state_of(path: Path) -> dict[str, Any]:
    """Which file it is, bytes and time of the last change, of all files of a store."""
    files = [p.stat() for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path.stat()]
    changed = max((f.st_mtime_ns for f in files), default=0)
    return {"file": str(path.resolve()), "bytes": sum(f.st_size for f in files), "changed_ns": changed}


def write_json(path: str | Path, value: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """As JSON has it: keys are texts, arrays and tuples are lists, NaN and infinities are None, other objects texts."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy's, which is not imported for this
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def reserve(path: str | Path, size: int) -> None:
    """Take the bytes of a file that is mapped into memory from the disk at once.

    Raises:
        OSError: The disk is full, at which writing into the map would end the process (SIGBUS).
    """
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def writable_folder(folder: str | Path) -> Path:
    """Make the folder and see that files can be made in it, before any work is spent on them."""
    try:
        (folder := Path(folder)).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, f"the folder cannot be written to ({error.strerror})", str(folder)) from error
    return folder


def provenance(seed: int | None = None, device: str = "cpu") -> dict[str, Any]:
    """What a number came from: versions, commit, seed, device."""
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else _processor()
    return {
        "omniset": omniset.__version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "platform": platform.system(),
        "device": f"{device}: {name}",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "seed": seed,
    }


def _processor() -> str:
    """Its name where Linux lists it: seconds of two processors differ by more than those of two methods."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Of the checkout that this package is run from, with a + where files differ from it; None outside of one."""

    def git(*words: str) -> str:
        folder = Path(omniset.__file__).parent
        return subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", omniset.__file__)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
