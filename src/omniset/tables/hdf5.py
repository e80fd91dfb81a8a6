"""Files of HDF5 and of MATLAB, which libraries written in C read: damaged ones make these crash, or never end.

Another process opens a file of HDF5 first, and reads a file of MATLAB in our place: SciPy may read one well and crash
at it the next time. That process runs this very file as a script, without the package, so that it imports h5py or SciPy
only.

Known imperfections: of a large file of HDF5, damage among the values is not looked for. On Windows nothing limits the
memory.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any

SECONDS = 10.0  # that opening a file may take,
RATE = 20e6  # and one more for so many bytes of it
START = 120.0  # and this for Python and its imports, on a slow disk
MEMORY = 4 << 30  # bytes that looking at a file of HDF5 may take
OBJECTS = 5_000  # groups and datasets that are looked at
VALUES = 16 << 20  # bytes of datasets that are read, the small ones first
SIZES = {"double": 8, "single": 4, "int8": 1, "uint8": 1, "logical": 1}  # bytes of MATLAB's numbers
SIZES |= {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (16, 32, 64)}
TEXT = 256  # bytes that a text counts as: it takes longer to read
CLAIM = 256 << 20  # bytes of a dataset from which on a tenth of it must be stored
CRASHES = {f"SIG{name}" for name in ("SEGV", "ABRT", "BUS", "FPE", "ILL")}
TOGETHER = 64  # files that one process looks at
UNABLE = 3  # exit status of the process that looks where it cannot look

_verdicts: dict[tuple[str, int, int, bool], str | None] = {}


def check_hdf5(path: str | Path, whole: bool = False) -> None:
    """Refuse a file of HDF5 (also of MATLAB from v7.3 on) that cannot be opened in this process without harm. `whole`:
    all of it is going to be read at once.

    What is looked at is bounded, whatever the size of the file: at most `OBJECTS` groups and datasets with attributes
    and types, and `VALUES` bytes of the smallest datasets. What is merely an error to h5py is left to the reader. In a
    process a file is looked at once, unless it changes.

    Raises:
        ValueError: Looking at it crashes, never ends or takes all memory; a part that cannot be opened; a link that
            leads nowhere, in a circle or to another file; a dataset that claims far more than the file holds; more that
            would have to be unpacked at once than `omniset.core.bounded.most_of`.
    """
    if (key := _key(path, whole)) is None:
        return  # the reader says so
    if key not in _verdicts:
        _verdicts[key] = _answer("hdf5", key[0], SECONDS + key[1] / RATE, whole=whole)
    if verdict := _verdicts[key]:
        raise ValueError(f"{path}: {verdict}")


def check_all(paths: Sequence[str | Path]) -> None:
    """`check_hdf5` of many files, some at a time in one process."""
    unknown = [key for path in paths if (key := _key(path)) is not None and key not in _verdicts]
    for start in range(0, len(unknown), TOGETHER):
        some = unknown[start : start + TOGETHER]
        (first, *others), sizes = [key[0] for key in some], [key[1] for key in some]
        if _answer("hdf5", first, SECONDS + sum(sizes) / RATE, others=others) == []:
            _verdicts.update(dict.fromkeys(some))
    for path in paths:  # one by one those of which one is wrong
        check_hdf5(path)


def _key(path: str | Path, whole: bool = False) -> tuple[str, int, int, bool] | None:
    """A file as it is now: its place, size and time; None where it is not there."""
    place = os.path.abspath(path)
    try:
        status = os.stat(place)
    except OSError:
        return None
    return place, status.st_size, status.st_mtime_ns, whole


def read_mat(path: str | Path) -> dict[str, Any]:
    """The variables of a file of MATLAB before v7.3, without harm to this process.

    Returns:
        An array of each variable of numbers or text, dense where it was sparse. Of any other (a cell array, a field
        `a.b` of a struct, a table) its shape and the texts in it: None where these are unknown.

    Raises:
        ValueError: SciPy cannot read it; reading it crashes, never ends or takes all memory.
    """
    import numpy as np

    place = os.path.abspath(path)
    with tempfile.TemporaryDirectory(prefix="omniset-") as folder:
        arrays = os.path.join(folder, "arrays.npz")
        answer = _answer("mat", place, SECONDS + os.path.getsize(place) / RATE, arrays=arrays)
        if answer is None:  # no other process can be had
            answer = _plain_mat(place, arrays, math.inf)
        if isinstance(answer, str):
            raise ValueError(f"{path}: {answer}")
        with np.load(arrays, allow_pickle=False) as file:
            return {key: file[one] if isinstance(one, str) else _part(*one) for key, one in answer}


def _part(shape: Sequence[int] | None, said: list[str] | None) -> tuple[tuple[int, ...] | None, list[str] | None]:
    return shape if shape is None else tuple(shape), said


def _answer(kind: str, path: str, seconds: float, **more: Any) -> Any:
    """What the other process says: text of what is wrong with the file. None: nothing, or nobody can know. An empty
    list: nothing is wrong with it and the `others`.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    from omniset.core.bounded import TIMES, WHOLE  # not there where this file is a script

    job = {"kind": kind, "path": path, "seconds": seconds, "modules": [place for place in sys.path if place]}
    job |= {"bounds": (WHOLE, TIMES), **more}
    unending = f"is damaged: looking into it takes more than {seconds:.3g} s, if it ever ends"
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__],
            input=json.dumps(job).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds + START,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return unending
    except OSError:  # no process can be started
        return None
    if done.returncode == 0:
        with suppress(ValueError):
            return json.loads(done.stdout)
    if done.returncode >= 0xC0000000:  # as Windows has it
        return f"is damaged: reading it ends the process ({done.returncode:#x})"
    ended = {-number: number.name for number in signal.Signals}.get(done.returncode)
    if ended in CRASHES:
        return f"is damaged: reading it ends the process ({ended})"
    return {"SIGALRM": unending, "SIGKILL": "reading it takes more memory than there is"}.get(ended or "")


# ---------------------------------------------------------------------- in the other process

ORDINARY = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # of h5py, whatever is wrong


class _RefusedError(Exception):
    pass


def _main() -> None:
    job = json.load(sys.stdin)
    sys.path += [place for place in job["modules"] if place not in sys.path]
    hdf5 = job["kind"] == "hdf5"
    importlib.import_module("h5py" if hdf5 else "scipy.io")  # before the clock starts
    _limit(job["seconds"], MEMORY if hdf5 else None)
    answer: Any = None
    try:
        if hdf5:
            for path in (job["path"], *job.get("others", [])):
                _look_hdf5(path, _most(path, job), job.get("whole", False))
            answer = [] if "others" in job else None
        else:
            answer = _plain_mat(job["path"], job["arrays"], _most(job["path"], job))
    except _RefusedError as error:
        answer = str(error)
    except MemoryError:
        answer = "is damaged: it claims to hold more than there is memory for"
    except Exception as error:  # of a file of HDF5 the reader meets it too, if it is about what is read
        answer = None if hdf5 else f"is no .mat file of MATLAB, or damaged ({' '.join(str(error).split())})"
    print(json.dumps(answer))


def _most(path: str, job: dict[str, Any]) -> int:
    least, times = job["bounds"]
    return max(least, times * os.path.getsize(path))


def _limit(seconds: float, memory: int | None) -> None:
    """Limit this process as far as the system can. Default of memory: what the machine has."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever that does
        signal.setitimer(signal.ITIMER_REAL, seconds)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        memory = memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _plain_mat(path: str, arrays: str, most: float) -> list[tuple[str, str | tuple[Any, Any]]]:
    """Write the numbers and texts of a file of MATLAB to one of NumPy.

    Args:
        most: Bytes that variables which are not sparse may hold.

    Returns:
        Each variable with its name in that file, or with its shape and its texts.
    """
    import numpy as np
    import scipy.io
    from scipy.io.matlab import MatlabOpaque
    from scipy.sparse import issparse

    held = sum(math.prod(shape) * SIZES.get(kind, 0) for _, shape, kind in scipy.io.whosmat(path))
    if held > most:
        raise _RefusedError(f"is packed, and holds {held:,} bytes, at most {most:,} are unpacked: save it with -v6")
    parts: dict[str, Any] = {}
    variables: list[tuple[str, str | tuple[Any, Any]]] = []
    for key, value in scipy.io.loadmat(path).items():
        if isinstance(value, MatlabOpaque):  # a string, a table: of one, the name is inside
            variables.append((str(value["s0"].item(0).decode() if key == "None" else key), (None, None)))
        elif key.startswith("__"):
            continue
        elif getattr(value.dtype, "names", None) and value.size == 1:
            for name in value.dtype.names:
                one = value[name].item()
                variables.append((f"{key}.{name}", (np.shape(one), texts(one) or None)))
        elif value.dtype.kind in "OV":
            variables.append((key, (value.shape, texts(value) or None)))
        else:
            place = f"v{len(parts)}"
            variables.append((key, place))
            parts[place] = value.toarray() if issparse(value) else value
    np.savez(arrays, **parts)
    return variables


def texts(value: Any) -> list[str]:
    """What an array of text, or MATLAB's cell array of it, says; empty if it is none."""
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind == "O":
        parts = [np.ravel(np.asarray(part)) for part in array.ravel()]
        if any(len(part) != 1 or part.dtype.kind not in "U" for part in parts):
            return []
        return [str(part[0]).strip() for part in parts]
    if array.dtype.kind == "S":
        return [text.decode("utf-8", "replace").strip() for text in array.ravel().tolist()]
    return [text.strip() for text in array.ravel().tolist()] if array.dtype.kind == "U" else []


def _look_hdf5(path: str, most: int, whole: bool) -> None:
    """Raise the error of a file that is wrong, or of which more than `most` bytes are unpacked at once: of a chunk, or,
    where it is read `whole`, of all.
    """
    import h5py

    with h5py.File(path, "r") as file:
        datasets = [(_size(name, held, os.path.getsize(path), most), held) for name, held in _walk(file)]
        total = sum((held.size or 0) * held.dtype.itemsize for size, held in datasets if size < math.inf)
        if whole and total > most:
            bound = f"at most {most:,} are unpacked at once: unpack it, as by h5repack -f NONE"
            raise _RefusedError(f"is packed, and holds {total:,} bytes, {bound}")
        left = float(VALUES)
        for size, held in sorted(datasets, key=lambda one: one[0]):
            left -= size
            if left < 0:
                break
            with suppress(*ORDINARY):
                values = held[()]
                if h5py.check_ref_dtype(held.dtype) is h5py.Reference:
                    for reference in values.ravel()[:OBJECTS]:
                        _ = file[reference]


def _walk(file: Any) -> list[tuple[str, Any]]:
    """The datasets and their names, after a look at groups, links and attributes."""
    import h5py

    datasets: list[tuple[str, Any]] = []
    links: list[tuple[str, Any, str]] = []
    groups: dict[int, set[int]] = {_address(file): set()}  # which ones are in it
    waiting = deque([("", file)])
    for name, group, key in islice(_entries(waiting), OBJECTS):
        link = _opened(name, group.get, key, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise _elsewhere(name, link.filename)
        if isinstance(link, h5py.SoftLink):
            links.append((name, group, key))
            continue
        held = _opened(name, group.__getitem__, key)
        for attribute in islice(_opened(name, list, held.attrs), OBJECTS):
            with suppress(*ORDINARY):
                _ = held.attrs[attribute]
        if isinstance(held, h5py.Dataset):
            datasets.append((name, held))
        elif isinstance(held, h5py.Group):
            groups[_address(group)].add(_address(held))
            if _address(held) not in groups:
                groups[_address(held)] = set()
                waiting.append((name, held))
    for name, group, key in links:  # none of which can lead to another file
        try:
            held = group[key]
        except ORDINARY:
            raise _RefusedError(f"{_short(name)} is a link that leads nowhere or in a circle") from None
        if isinstance(held, h5py.Group):
            groups[_address(group)].add(_address(held))
    try:
        TopologicalSorter(groups).prepare()
    except CycleError:
        raise _RefusedError("is damaged: it has a group within itself") from None
    return datasets


def _entries(waiting: deque[tuple[str, Any]]) -> Iterator[tuple[str, Any, str]]:
    while waiting:
        above, group = waiting.popleft()
        for key in _opened(above or "/", list, group):
            yield f"{above}/{key}", group, key


def _address(group: Any) -> int:
    import h5py

    return h5py.h5o.get_info(group.id).addr


def _opened(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except ORDINARY as error:
        raise _RefusedError(f"is damaged: {_short(name)} cannot be opened ({_short(error)})") from None


def _size(name: str, held: Any, file: int, most: int) -> float:
    """Bytes that reading a dataset takes; infinite where nobody can know."""
    with suppress(*ORDINARY):
        others = [path for path, *_ in held.external or ()]
        if held.is_virtual:
            others += [one.file_name for one in held.virtual_sources() if one.file_name != "."]
        if others:
            raise _elsewhere(name, others[0])
        if held.shape is None or held.is_virtual:
            return 0.0 if held.shape is None else math.inf
        chunk = math.prod(held.chunks or ())
        claimed, stored = 1, held.id.get_storage_size()
        if held.chunks:
            claimed = math.prod(-(-a // b) for a, b in zip(held.shape, held.chunks, strict=True))
            stored = held.id.get_num_chunks()
        absent = held.size * held.dtype.itemsize > CLAIM and 10 * stored < claimed
        if absent or (not held.chunks and stored > file):
            raise _RefusedError(f"is damaged: {_short(name)} claims {held.size:,} values, which the file does not hold")
        if chunk * held.dtype.itemsize > most:
            bound = f"at most {most:,} are unpacked at once: write smaller ones, as by h5repack"
            raise _RefusedError(f"has a chunk of {chunk * held.dtype.itemsize:,} bytes in {_short(name)}, {bound}")
        return max(held.size, chunk) * (TEXT if held.dtype.kind == "O" else held.dtype.itemsize)
    return math.inf


def _elsewhere(name: str, other: str) -> _RefusedError:
    return _RefusedError(
        f"{_short(name)} is in another file, {_short(other)}, which is not opened: copy what is there into this one"
    )


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


if __name__ == "__main__":
    try:
        _main()
    except Exception:
        sys.exit(UNABLE)
