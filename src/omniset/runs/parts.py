"""A command on each of many files, written file by file: here, or by the workers of a Dask cluster.

What is made of a file is what the command makes of it alone, in one thread: it depends neither on the other files nor
on who computes it, and so is the same to the bit. Workers must see the files, the model and `out` under the names that
this command has for them, as on a shared file system. Nothing but names and settings is sent.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import omniset
from omniset.runs.console import RECORDS, line_of, own_command, resumable, run_folder, say, say_notes
from omniset.runs.files import plain, write_json
from omniset.runs.folders import RECORD, check, read_record, swap, write_record
from omniset.runs.locks import NAME as LOCK
from omniset.runs.progress import Progress

COMPRESSED = (".gz", ".bz2", ".xz")
SHOWN = 10  # warnings and failures that are printed
COMPUTING = ("device", "progress", "replace")  # options that change nothing
BAD_INPUT = (ValueError, OSError, ImportError, MemoryError)
_one_at_a_time = threading.Lock()  # of a process: what is said is caught for all of it


@dataclass(frozen=True)
class Part:
    """One file (or zarr store) of many.

    Attributes:
        name: Of what is made of it.
        value: What the command's argument is for it.
    """

    name: str
    path: Path
    value: Any


@dataclass(frozen=True)
class Job:
    """A command to run on each part.

    Attributes:
        function: Of the command, such as "omniset.cli.sets:predict".
        argument: The one that takes a part.
        arguments: All others but `out`.
        out: Folder of what is made.
        ending: Of the file that is made of a part; None: a folder is.
        unsaid: Pattern of warnings that are of a part alone, not of all of them.
        joined: Names of what is made of all parts together.
        words: The command as it was typed, which reports quote.
        here: Folder in which it was typed.
        version: Of Omniset there.
    """

    function: str
    argument: str
    arguments: dict[str, Any]
    out: Path
    ending: str | None
    unsaid: str | None = None
    joined: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv[1:]))
    here: str = field(default_factory=os.getcwd)
    version: str = omniset.__version__

    @property
    def kind(self) -> str:
        return f"parts by {self.function}"

    def made(self, part: Part) -> Path:
        return self.out / f"{part.name}{self.ending or ''}"

    def settings(self) -> dict[str, Any]:
        """All that what is made depends on beside the part."""
        arguments = {name: value for name, value in self.arguments.items() if name not in COMPUTING}
        model = Path(arguments["model"])
        if not (model / "config.json").is_file():
            raise FileNotFoundError(f"model={model} is no folder of a model, such as fit writes: it has no config.json")
        checksums = [_checksum(model / name) for name in ("config.json", "model.safetensors")]
        settings: dict[str, Any] = plain(arguments | {"model": checksums, "omniset": self.version, "torch": _torch()})
        return settings


@dataclass
class Outcome:
    """What became of a part: warnings, or the error that it ended with."""

    warnings: list[str] = field(default_factory=list)
    error: str | None = None


# ---------------------------------------------------------------------- which parts there are


def find(given: str | Path, endings: Sequence[str], name: str) -> list[Path]:
    """The files that are meant: one, those of a folder, or those of a pattern such as "runs/*.parquet"; sorted.

    Args:
        endings: That files of a folder have; others, and hidden ones, are left out. A folder that ends in .zarr is one.
        name: Of the argument.

    Raises:
        ValueError: There are none.
    """
    path = Path(given).expanduser()
    if path.is_file() or path.suffix == ".zarr":
        return [path]
    if path.is_dir():
        there = sorted(p for p in path.iterdir() if not p.name.startswith((".", "_")))
        found = [p for p in there if _without_compression(p.name).lower().endswith(tuple(endings))]
        what = f"a file that ends in {', '.join(endings)}"
    else:
        found = sorted(Path(p) for p in glob.glob(str(path)))
        what = "such a file" if glob.has_magic(str(path)) else "there"
    if not found:
        raise ValueError(f"{name}: {given} is not {what}" if what == "there" else f"{name}: {given} has not {what}")
    return found


def named(paths: Sequence[Path], place: Callable[[Path], Any] = lambda path: path) -> list[Part]:
    """Parts by the names of their files, without what these end in; with their folders, where files of several have one
    name.

    Args:
        place: A part as the command's argument has it.

    Raises:
        ValueError: Two would have one name.
    """
    names = [_stem(path.name) for path in paths]
    if len(set(names)) < len(names):
        parents = [path.absolute().parent for path in paths]
        common = Path(os.path.commonpath(parents))
        names = ["-".join([*p.relative_to(common).parts, n]) for p, n in zip(parents, names, strict=True)]
    first: dict[str, Path] = {}
    for name, path in zip(names, paths, strict=True):
        if name in first:
            raise ValueError(f"{first[name]} and {path} would both be written as {name}: name one of them otherwise")
        first[name] = path
    return [Part(name, path, place(path)) for name, path in first.items()]


def ending_of(out: Path, endings: Sequence[str], default: str) -> str:
    """What `out`, the name of a folder, says of the files in it: "predictions.csv.gz" holds .csv.gz files."""
    name = _without_compression(out.name)
    if not Path(name).suffix:
        return default
    if not name.lower().endswith(tuple(endings)):
        raise ValueError(f"out must be the name of a folder, without an ending or with {', '.join(endings)}; got {out}")
    return Path(name).suffix + out.name[len(name) :]


def _without_compression(name: str) -> str:
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in COMPRESSED else name


def _stem(name: str) -> str:
    return Path(_without_compression(name)).stem


# ---------------------------------------------------------------------- the work on one


def do(job: Job, part: Part) -> Outcome:
    """Run the command on a part, and move what it has made to its place when it is whole."""
    if job.version != omniset.__version__:
        return Outcome(error=f"this worker has Omniset {omniset.__version__}, the command {job.version}")
    if not Path(job.here).is_dir():
        return Outcome(error=f"a worker has no folder {job.here}: workers must see the same files as the command")
    module, name = job.function.split(":")
    with _one_at_a_time, _as_typed(job) as said:
        try:
            command = getattr(importlib.import_module(module), name)
            with tempfile.TemporaryDirectory(dir=job.out / RECORDS, ignore_cleanup_errors=True) as work:
                made = Path(work) / job.made(part).name
                command(**job.arguments | {job.argument: part.value, "out": made, "progress": False})
                _move(made, job.made(part))
        except BAD_INPUT as error:
            return Outcome(error=line_of(error))
    notes = re.findall(r"^warning: (.*)$", said.getvalue(), flags=re.MULTILINE)
    return Outcome([note for note in notes if job.unsaid is None or not re.match(job.unsaid, note)])


def _move(made: Path, place: Path) -> None:
    """To its place, over what the same work has made there: before, or on a worker that was thought dead."""
    if made.is_file():
        made.replace(place)
        return
    record = read_record(made)
    check(place, [] if record is None else [record["kind"]], replace=True)
    swap(made, place)


@contextlib.contextmanager
def _as_typed(job: Job) -> Iterator[io.StringIO]:
    """In the folder of the command, by its words, in one thread; gives what is said on standard error."""
    threads, words = torch.get_num_threads(), sys.argv
    said = io.StringIO()
    try:
        torch.set_num_threads(1)
        sys.argv = ["omniset", *job.words]
        with contextlib.chdir(job.here), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            yield said
    finally:
        torch.set_num_threads(threads)
        sys.argv = words


# ---------------------------------------------------------------------- all of it


def run(
    job: Job,
    parts: Sequence[Part],
    scheduler: str,
    *,
    resume: bool,
    progress: bool,
    join: Callable[[Mapping[str, Path]], Iterable[str]] = lambda made: [],
) -> None:
    """Run the command on all parts. What is done is kept whatever becomes of the others.

    Args:
        scheduler: See `omniset.runs.scheduler.each`.
        resume: Keep what is done, by the same settings and of the same files.
        join: Is given what was made, by part, when all is done; gives lines to say.

    Raises:
        ValueError: Parts failed.
    """
    from omniset.runs.scheduler import each

    records = Records(job, parts)
    records.check(resume, job.arguments["replace"])
    with resumable(job.out), run_folder(job.out):
        left = [part for part in parts if not (resume and records.has(part))]
        records.begin(resume)
        if len(left) < len(parts):
            say(f"{len(parts) - len(left):,} of {len(parts):,} parts are done already")
        failed: dict[str, str] = {}
        told: dict[str, None] = {}
        with Progress("parts", len(parts), progress, unit="parts") as bar:
            done = len(parts) - len(left)
            for part, outcome in each(job, left, scheduler):
                if outcome.error is None:
                    records.keep(part)
                    told |= dict.fromkeys(outcome.warnings)
                    done += 1
                    bar.at(done)
                else:
                    failed[str(part.path)] = outcome.error
        say_notes([*told][:SHOWN])
        if len(told) > SHOWN:
            say_notes([f"{len(told) - SHOWN:,} more warnings"])
        if failed:
            raise _failure(failed, len(parts), job.out)
        made = {part.name: job.made(part) for part in parts}
        lines = [*join(made)]
        for line in lines:
            say(line)
        say(f"Written to {job.out}: {len(parts):,} parts, such as {made[parts[0].name].name}")


def _failure(failed: dict[str, str], number: int, out: Path) -> ValueError:
    for path, error in [*failed.items()][1:SHOWN]:
        print(f"omniset: {path}: {error}", file=sys.stderr)
    path, error = next(iter(failed.items()))
    named = error if path in error else f"{path}: {error}"
    if number == 1:
        return ValueError(named)
    others = f"{len(failed):,} of {number:,} parts failed, the first: " if len(failed) > 1 else ""
    kept = f". What is done is kept in {out}, the same command with --resume true goes on"
    return ValueError(f"{others}{named}{kept if len(failed) < number else ''}")


class Records:
    """What is done, in the folder `.parts`: `run.json` lists all that the command makes in `out`, and of each part that
    is done a file has the settings of the command, and size and time of the part's file.
    """

    def __init__(self, job: Job, parts: Sequence[Part]) -> None:
        self.job, self.folder, self.settings = job, job.out / RECORDS, job.settings()
        self.makes: dict[str, Any] = dict.fromkeys(job.joined) | {job.made(part).name: None for part in parts}
        self.reads = [*(part.path for part in parts), Path(job.arguments["model"])]

    def check(self, resume: bool, replace: bool) -> None:
        """See that nothing in `out` is read, or made by anybody else, before any work.

        Raises:
            ValueError: There is such a thing; or what is done would be done again.
        """
        out, place = self.job.out, self.job.out.resolve()
        if out.exists() and not out.is_dir():
            raise ValueError(f"out must be a folder, {out} is a file")
        for path in self.reads:
            if place in (path.resolve(), *path.resolve().parents):
                raise ValueError(f"out={out} is or holds {path}, which is read: choose another folder")
        there = {path.name for path in out.iterdir()} - {RECORDS, LOCK} if out.is_dir() else set()
        record = read_record(self.folder)
        if there and (record is None or record["kind"] != self.job.kind):
            raise ValueError(f"out={out} holds {min(there)}, which this command has not made: choose another folder")
        if others := there - set((record or {}).get("made") or ()):
            raise ValueError(f"out={out} holds {min(others)}, which this command has not made: move it elsewhere")
        if others := there - set(self.makes):
            raise ValueError(f"out={out} holds {min(others)} of files that are not given now: choose another folder")
        if there and not (resume or replace):
            raise ValueError(
                f"out={out} holds what an earlier run has done: --resume true keeps that, --replace true does all anew"
            )

    def begin(self, resume: bool) -> None:
        self.folder.mkdir(exist_ok=True)
        record = read_record(self.folder)  # by now the folder is held
        made = ((record or {}).get("made") or {}) | self.makes
        for path in self.folder.iterdir():
            if path.is_dir():  # half made, by a worker that was killed
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != RECORD and not resume:
                path.unlink()
        write_record(self.folder, self.job.kind, own_command(), made)

    def has(self, part: Part) -> bool:
        """Whether it is done.

        Raises:
            ValueError: By other settings; the record is damaged.
        """
        path, made = self._path(part), self.job.made(part)
        if not path.is_file() or not made.exists():
            return False
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            before, file, now = record["settings"], record["file"], self.settings
            differing = [key for key in {**now, **before} if before.get(key) != now.get(key)]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: remove it, and this part is done again") from error
        if differing and self.job.arguments["replace"]:
            return False
        for key in differing:
            what = "the model is another" if key == "model" else f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
            raise ValueError(f"{made} is of another run and cannot be resumed: {what}. Start anew, not resuming")
        return bool(file == _state(part.path))

    def keep(self, part: Part) -> None:
        write_json(self._path(part), {"settings": self.settings, "file": _state(part.path)})

    def _path(self, part: Part) -> Path:
        return self.folder / f"part-{part.name}.json"


def _state(path: Path) -> list[int]:
    """Bytes and time of the last change, of all files of a store."""
    files = [p.stat() for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path.stat()]
    return [sum(f.st_size for f in files), max((f.st_mtime_ns for f in files), default=0)]


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _torch() -> str:
    return str(torch.__version__)
