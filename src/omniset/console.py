"""What every command that reads and writes files does: its folder, its warnings, its lines on the terminal."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omniset.files import writable_folder


@contextmanager
def run_folder(out: Path) -> Iterator[None]:
    """The folder of a run; one that was made for a run that failed at once is removed again."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is a file")
    made = [folder for folder in (out, *out.absolute().parents) if not folder.exists()]
    writable_folder(out)
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # what holds a file stays; another process may have been faster
                folder.rmdir()
        raise


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
        print(f"warning: {note}", file=sys.stderr)


def own_command() -> str:
    """The words by which this program was started, as a shell takes them: reports and results quote them."""
    return shlex.join(["omniset", *sys.argv[1:]])


def say(line: str) -> None:
    print(line, flush=True)


def refuse_own_input(out: Path, given: Path) -> None:
    if out.exists() and given.exists() and out.samefile(given):
        raise ValueError(f"out is the input itself, {given}: choose another name")
