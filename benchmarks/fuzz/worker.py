"""Makes file after file, reads each as a command would, and judges what became of it. Runs in a process of its own."""

import contextlib
import faulthandler
import io
import os
import re
import resource
import shutil
import tempfile
import time
import traceback
import warnings
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import omniset
from benchmarks.fuzz import changes
from benchmarks.fuzz.formats import FORMATS, Format, NonsenseError
from omniset.runs.console import line_of

PACKAGE = Path(omniset.__file__).parent  # and not a clone, which is called so too
VARIANTS = 3  # valid files of a format
LONGEST = 600  # characters of an error
# Words of libraries, which tell a user nothing.
FOREIGN = re.compile(r"^\[Errno|\bat 0x|0x7f[0-9a-f]{6}|<class|Arrow(Invalid|\w+Error)|Traceback")


@dataclass
class Outcome:
    """What became of a file.

    Attributes:
        kind: "read", "refused", "unclear" (refused in words that do not help), "traceback", "nonsense" (read, but not
            what the reader promises), "memory", "hang" or "crash".
        said: The error as the command prints it.
        place: Type of the error and where in Omniset it came from.
        why: What is unclear.
        changes: What was done to the file.
        seconds: That it took.
    """

    kind: str
    said: str = ""
    place: str = ""
    why: str = ""
    changes: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Maker:
    """Files by their numbers. Valid ones are kept in a folder.

    Args:
        folder: Must be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def valid(self, name: str, variant: int) -> Path:
        """The folder of a valid file, written when it is first asked for."""
        place = self.folder / "valid" / name.replace("/", "-") / str(variant)
        if not place.is_dir():
            found = FORMATS[name]
            unfinished = Path(tempfile.mkdtemp(dir=self.folder))
            with contextlib.chdir(unfinished), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Path(found.file).parent.mkdir(parents=True, exist_ok=True)
                found.write(Path(found.file), np.random.default_rng([variant, zlib.crc32(name.encode())]))
            place.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(place)
        return place

    def make(self, name: str, seed: int, number: int, folder: Path) -> tuple[Path, list[str]]:
        """Write file `number` of a format to a folder that is made. Its path within the folder; what was done to it."""
        found = FORMATS[name]
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
        shutil.copytree(self.valid(name, 0 if found.costly else int(rng.integers(VARIANTS))), folder)
        path = folder / found.file
        if found.change is not None:
            return path.relative_to(folder), [found.change(path, rng)]
        said = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1]))):
                other = self._other(name, rng)
                if rng.random() < 0.015:
                    said.append(changes.change_place(path, rng))
                    break
                change = changes.change_folder if path.is_dir() else changes.change_file
                said.append(change(path, rng, other))
        if found.packs and path.is_file() and rng.random() < 0.15:
            path, packed = changes.pack(path, rng)
            said.append(packed)
        return path.relative_to(folder), said

    def _other(self, name: str, rng: np.random.Generator) -> bytes:
        """A valid file of this format, or of another one."""
        known = [n for n, f in FORMATS.items() if not f.costly and f.there()]
        chosen = name if rng.random() < 0.5 and name in known else changes.pick(rng, known)
        path = self.valid(chosen, int(rng.integers(VARIANTS))) / FORMATS[chosen].file
        if path.is_dir():
            path = changes.pick(rng, sorted(p for p in path.rglob("*") if p.is_file()))
        return path.read_bytes()


def judge(found: Format, path: Path, folder: Path) -> Outcome:
    """Read a file, within its folder, in this process."""
    names = {p.name for p in folder.rglob("*")} | {path.name}
    try:
        with contextlib.chdir(folder), _silently():
            found.read(path)
    except MemoryError as error:
        return Outcome("memory", _line(error), place_of(error))
    except NonsenseError as error:
        return Outcome("nonsense", str(error), place_of(error))
    except (ValueError, OSError, ImportError) as error:
        said = line_of(error)  # as the command prints it
        why = unclear(error, said, names)
        return Outcome("unclear" if why else "refused", said[: 3 * LONGEST], place_of(error), why)
    except Exception as error:
        return Outcome("traceback", _line(error), place_of(error))
    return Outcome("read")


def unclear(error: Exception, said: str, names: set[str]) -> str:
    """What is wrong with the words of an error; nothing, if they are clear."""
    own = type(error).__module__.startswith("omniset")
    if not said.strip():
        return "is empty"
    if isinstance(error, ValueError) and type(error) is not ValueError and not own:
        return f"is a library's {type(error).__name__}"
    if not any(name in said for name in names):
        return "does not name the file"
    if FOREIGN.search(said):
        return "has words of a library"
    return ""


def place_of(error: BaseException) -> str:
    """The type of an error, and the last place within Omniset that it came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(PACKAGE)]
    where = ""
    if frames:
        last = frames[-1]
        where = f" at {Path(last.filename).relative_to(PACKAGE)}:{last.lineno} {last.name}"
    return f"{type(error).__name__}{where}"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {changes.tidy(str(error))}"[:LONGEST]


@contextlib.contextmanager
def _silently() -> Any:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def limit_memory(size: int) -> None:
    """Of this process, in bytes; nor may it leave its memory behind when it crashes."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(connection: Any, folder: Path, seconds: float, memory: int) -> None:
    """Answer (format, seed, number) with ("reading", changes) and then with an Outcome, until None comes.

    Args:
        folder: For files.
        seconds: After which the places of all threads are written to its file `log`.
        memory: Bytes that this process may take.
    """
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)  # what libraries written in C print
    limit_memory(memory)
    log = open(folder / "log", "w")  # noqa: SIM115
    faulthandler.enable(log)
    own = Path(tempfile.mkdtemp(dir=folder))
    tempfile.tempdir = str(own)
    maker = Maker(folder)
    ready = set()
    for name, seed, number in iter(connection.recv, None):
        found = FORMATS[name]
        if name not in ready:  # imports take long, and are no matter of the file
            ready.add(name)
            case = own / "valid"
            shutil.copytree(maker.valid(name, 0), case)
            fine = judge(found, Path(found.file), case)
            shutil.rmtree(case)
            if fine.kind != "read":
                connection.send(("broken", asdict(fine)))
                continue
        case = own / "case"
        try:
            path, said = maker.make(name, seed, number, case)
        except Exception:
            connection.send(("not made", traceback.format_exc()))
            return
        log.seek(0)
        log.truncate()
        connection.send(("reading", said))
        faulthandler.dump_traceback_later(seconds, file=log)
        start = time.monotonic()
        outcome = judge(found, path, case)
        outcome.seconds = time.monotonic() - start
        faulthandler.cancel_dump_traceback_later()
        outcome.changes = said
        connection.send(("done", asdict(outcome)))
        shutil.rmtree(case)


def place_in_log(folder: Path) -> str:
    """Where in Omniset the process was when it took too long, or ended."""
    try:
        text = (folder / "log").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(rf'File "{re.escape(str(PACKAGE))}/([^"]+)", line (\d+) in (\w+)', text)
    return f" at {found[1]}:{found[2]} {found[3]}" if found else ""
