"""What every command that reads and writes files does: its folder, its warnings, its lines on the terminal."""

from __future__ import annotations

import errno
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from tqdm import tqdm

from omniset.runs.files import writable_folder
from omniset.runs.locks import locked
from omniset.runs.signals import Terminated

RECORDS = ".parts"  # folder that says which parts of many are done
KEPT = (
    "last.ckpt",
    "config.json",
    "rows/*",
    f"{RECORDS}/settings.json",
)  # what a run that is interrupted leaves, and a resumed one takes up
LONGEST = 580  # letters of an error
OUT_OF_MEMORY = re.compile(r"can't allocate memory|out of memory|[Ss]torage size calculation overflowed|invalid.*size")


@contextmanager
def run_folder(out: Path, first: bool = True, name: Path | None = None) -> Iterator[None]:
    """The folder of a run, locked for it; one that was made for a run that failed at once is removed again.

    Args:
        first: Whether this is the first of the processes that share the run: it holds the lock.
        name: Of the folder, in an error. None: its own.

    Raises:
        OSError, ValueError: It cannot be written to; another run holds it.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is a file")
    made = [folder for folder in (out, *out.absolute().parents) if not folder.exists()]
    writable_folder(out)
    try:
        with locked(out, name) if first else nullcontext():
            yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # what holds a file stays; another process may have been faster
                folder.rmdir()
        raise


@contextmanager
def resumable(out: Path, command: str = "the same command with --resume true") -> Iterator[None]:
    """Around work that keeps in a folder what is done: where it is interrupted, the error says how to go on."""
    try:
        yield
    except BaseException as error:
        note_kept(error, out, command)
        raise


def note_kept(error: BaseException, folder: Path, command: str = "the same command with --resume true") -> None:
    """Add to what interrupted a run how to go on, where it has done something."""
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    if (full or isinstance(error, (KeyboardInterrupt, Terminated))) and has_work(folder):
        error.add_note(f"what is done is kept in {folder}, {command} goes on")


def has_work(folder: Path) -> bool:
    """Whether a folder has something that a run can go on with."""
    return any(next(folder.rglob(pattern), None) is not None for pattern in KEPT)


@contextmanager
def noted() -> Iterator[Callable[[], list[str]]]:
    """Gives a function that tells the warnings met so far, each once. What fails tells them before its error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")

        def notes() -> list[str]:
            return list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))

        try:
            yield notes
        except Exception:
            say_notes(notes())
            raise


def say_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"warning: {line_of(ValueError(note), None)}", file=sys.stderr)


def own_command() -> str:
    """The words by which this program was started, as a shell takes them: reports and results quote them."""
    return shlex.join(["omniset", *sys.argv[1:]])


def line_of(error: BaseException, longest: int | None = LONGEST) -> str:
    r"""What an error says, on one line as any terminal can show it, the middle of what is very long left out.

    >>> line_of(ValueError(f"sets.csv,{chr(10)}line 3: {chr(7)}"))
    'sets.csv, line 3: \\x07'
    """
    if isinstance(error, OSError) and error.strerror is not None:  # without Python's [Errno 2]
        error = ValueError(error.strerror if error.filename is None else f"{error.filename}: {error.strerror}")
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(error).split()))
    return text if longest is None or len(text) <= longest else f"{text[: longest - 200]} ... {text[-195:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory: PyTorch says so by a RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


def say(text: str) -> None:
    """Print what may have names of the user's in it, of which a terminal gets no control characters."""
    print("".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text), flush=True)


def telling(progress: bool) -> Callable[[str], None]:
    """Prints lines of what is being done on standard error, above bars that are there; nothing without progress."""
    return (lambda line: tqdm.write(line, file=sys.stderr)) if progress else lambda line: None
