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
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import omniset
from omniset.lazy import needs
from omniset.report.run import working_folder
from omniset.runs.console import RECORDS, line_of, say, say_notes
from omniset.runs.files import plain, write_json
from omniset.runs.folders import RECORD, read_record, unfinished
from omniset.runs.locks import NAME as LOCK
from omniset.runs.processes import processors
from omniset.runs.progress import Progress

SYNCHRONOUS, LOCAL = "synchronous", re.compile(r"local(?::(\d+))?")
PATIENCE = "15s"  # for a scheduler to answer
COMPRESSED = (".gz", ".bz2", ".xz")
SETTINGS, WORK = "settings.json", "half-made-"  # of all parts, among their records; folders of the parts at work
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
        joined: Name of what is made of all parts together, if any.
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
    joined: str | None = None
    words: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv[1:]))
    here: str = field(default_factory=os.getcwd)
    version: str = omniset.__version__

    def made(self, part: Part) -> Path:
        return self.out / f"{part.name}{self.ending or ''}"

    def settings(self) -> dict[str, Any]:
        """All that what is made depends on beside the part.

        Raises:
            FileNotFoundError: The model is not there.
        """
        arguments = {name: value for name, value in self.arguments.items() if name not in COMPUTING}
        model = Path(arguments["model"])
        if not (model / "config.json").is_file():
            raise FileNotFoundError(f"model={model} is no folder of a model, such as fit writes: it has no config.json")
        checksums = [_checksum(model / name) for name in ("config.json", "model.safetensors")]
        for name, value in arguments.items():  # the file that an option names may change, too
            if isinstance(value, (str, Path)) and os.path.isfile(value):
                arguments[name] = [str(value), _checksum(Path(value))]
        about = {"model": checksums, "omniset": self.version, "torch": str(torch.__version__)}
        settings: dict[str, Any] = plain(arguments | about)
        return settings


@dataclass
class Outcome:
    """What became of a part: warnings, or the error that it ended with; and what its file was when it was read."""

    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    state: dict[str, Any] = field(default_factory=dict)


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
        found = [p for p in there if p.suffix == ".zarr" or not p.is_dir()]
        found = [p for p in found if _without_compression(p.name).lower().endswith(tuple(endings))]
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
            command, place, state = getattr(importlib.import_module(module), name), job.made(part), _state(part.path)
            with tempfile.TemporaryDirectory(prefix=WORK, dir=job.out / RECORDS, ignore_cleanup_errors=True) as work:
                made = Path(work) / place.name
                command(**job.arguments | {job.argument: part.value, "out": made, "progress": False})
                if _state(part.path) != state:
                    return Outcome(error=f"{part.path} has changed while it was read")
                remove(place)  # of a worker that was thought dead, or of a file that has changed since
                made.rename(place)
        except BAD_INPUT as error:
            return Outcome(error=line_of(error))
    notes = re.findall(r"^warning: (.*)$", said.getvalue(), flags=re.MULTILINE)
    return Outcome([note for note in notes if job.unsaid is None or not re.match(job.unsaid, note)], state=state)


def remove(made: Path) -> None:
    """What was made of a part, within the folder of the run."""
    shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)


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
    join: Callable[[Mapping[str, Path], Path], Iterable[str]] = lambda made, out: [],
) -> None:
    """Run the command on all parts. What is done is kept whatever becomes of the others.

    Args:
        scheduler: Who works on the parts, see `each`.
        resume: Keep what is done, by the same settings and of the same files.
        join: Is given what was made, by part, and the folder of it, when all is done; gives lines to say.

    Raises:
        ValueError: Parts failed.
    """
    settings, reads = job.settings(), [*(part.path for part in parts), Path(job.arguments["model"])]
    for part in parts:
        if job.made(part).name in (RECORD, RECORDS, LOCK, job.joined):
            name = job.made(part).name
            raise ValueError(f"{part.path}: what is made of it would be {name}, which is taken: rename the file")
    command = job.function.split(":")[1]
    if resume:
        _check(unfinished(job.out) if unfinished(job.out).exists() else job.out, command, settings)
    with working_folder(job.out, command, "parts", reads=reads, resume=resume) as folder:
        job = replace(job, out=folder.path)
        done = _take_up(job, parts, settings)
        if done:
            say(f"{len(done):,} of {len(parts):,} parts are done already")
        failed: dict[str, str] = {}
        told: dict[str, None] = {}
        with Progress("parts", len(parts), progress, unit="parts") as bar:
            for part, outcome in each(job, [part for part in parts if part not in done], scheduler):
                if outcome.error is None:
                    write_json(_record(job, part), outcome.state)
                    told |= dict.fromkeys(outcome.warnings)
                    done.append(part)
                    bar.at(len(done))
                else:
                    failed[str(part.path)] = outcome.error
        say_notes([*told][:SHOWN])
        if len(told) > SHOWN:
            say_notes([f"{len(told) - SHOWN:,} more warnings"])
        if failed:
            raise _failure(failed, len(parts), job.out)
        for line in join({part.name: job.made(part) for part in parts}, job.out):
            say(line)
        say(f"Written to {folder.out}: {len(parts):,} parts, such as {job.made(parts[0]).name}")


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


def _check(folder: Path, command: str, settings: dict[str, Any]) -> None:
    """See that what is done in a folder was done by the same settings.

    Raises:
        ValueError: It was not, or is not known by which.
    """
    record = read_record(folder)
    if record is None or record["kind"] != f"parts of {command}" or not any((folder / RECORDS).glob("*")):
        return  # what else is there is checked by `working_folder`
    before = _read(folder / RECORDS / SETTINGS, settings)
    for key, now in settings.items():
        if before[key] != now:
            differs = "the model is another" if key == "model" else f"{key} was {before[key]!r}, is {now!r}"
            raise ValueError(
                f"{folder} holds parts of another run and cannot be resumed: {differs}. --replace true starts anew"
            )


def _take_up(job: Job, parts: Sequence[Part], settings: dict[str, Any]) -> list[Part]:
    """Make the folder of a run ready: gives the parts that are done.

    Raises:
        ValueError: It holds something else than what is made of these parts.
    """
    records = job.out / RECORDS
    records.mkdir(exist_ok=True)
    made = {job.made(part).name for part in parts}
    if others := {path.name for path in job.out.iterdir()} - {RECORD, RECORDS, LOCK, job.joined} - made:
        raise ValueError(
            f"{job.out} holds {min(others)}, which is made of none of these files: give its file too, or choose "
            "another folder; --replace true starts anew"
        )
    done = [part for part in parts if _is_done(job, part)]
    keep = {_record(job, part).name for part in done}
    for path in records.iterdir():  # of parts that are made again, and what a worker that was killed has half made
        if path.name.startswith(("part-", WORK)) and path.name not in keep:
            remove(path)
    write_json(records / SETTINGS, settings)
    return done


def _is_done(job: Job, part: Part) -> bool:
    record, now = _record(job, part), _state(part.path)
    return record.is_file() and job.made(part).exists() and _read(record, now) == now


def _record(job: Job, part: Part) -> Path:
    return job.out / RECORDS / f"part-{part.name}.json"


def _read(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record.keys() != like.keys():
            raise ValueError(record)
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: nothing of that run is resumed, --replace true starts anew") from error
    return record


def _state(path: Path) -> dict[str, Any]:
    """Which file it is, bytes and time of the last change, of all files of a store."""
    files = [p.stat() for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path.stat()]
    changed = max((f.st_mtime_ns for f in files), default=0)
    return {"file": str(path.resolve()), "bytes": sum(f.st_size for f in files), "changed_ns": changed}


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            checksum = zlib.crc32(block, checksum)
    return checksum


# ---------------------------------------------------------------------- who works on the parts


def check_scheduler(scheduler: str) -> None:
    """Raise the ValueError of a name that is no scheduler's, or the ImportError where Dask is not installed."""
    if scheduler == SYNCHRONOUS:
        return
    match = LOCAL.fullmatch(scheduler)
    if match and match[1] == "0":
        raise ValueError(f"scheduler={scheduler!r}: at least 1 worker is needed")
    address = ":" in scheduler and not scheduler.startswith("local:")
    if not (match or address or scheduler.endswith(".json")):
        raise ValueError(
            "scheduler must be 'synchronous', 'local', 'local:N', an address such as 'tcp://host:8786' or a scheduler "
            f"file that ends in .json; got {scheduler!r}"
        )
    _distributed()


def each(job: Job, parts: Sequence[Part], scheduler: str) -> Iterator[tuple[Part, Outcome]]:
    """What became of each part, as they are done.

    Args:
        scheduler: "synchronous": this process, one after the other. "local" or "local:N": N processes of this machine,
            started by Dask; as many as processors without N. Else the address of a Dask scheduler, or its file.

    A part whose worker dies is given to another worker, by Dask, up to `distributed.scheduler.allowed-failures` times.
    """
    if scheduler == SYNCHRONOUS or not parts:
        yield from ((part, do(job, part)) for part in parts)
        return
    distributed = _distributed()
    with _client(scheduler, len(parts)) as client:
        run = uuid.uuid4().hex[:8]
        name = job.function.split(":")[1]
        futures = {client.submit(do, job, part, key=f"{name}-{part.name}-{run}", pure=False): part for part in parts}
        try:
            for future in distributed.as_completed([*futures]):
                part = futures.pop(future)
                if future.status in ("cancelled", "lost"):
                    raise OSError(f"scheduler={scheduler}: it has gone away, or has cancelled the work")
                error = future.exception()
                if isinstance(error, distributed.KilledWorker):
                    yield part, Outcome(error=f"each worker that it was given to died, the last at {_place(error)}")
                elif error is not None:
                    raise error
                else:
                    yield part, future.result()
                future.release()
        finally:
            client.cancel([*futures])


@contextlib.contextmanager
def _client(scheduler: str, parts: int) -> Iterator[Any]:
    """Of the scheduler; a cluster of this machine ends with it."""
    distributed = _distributed()
    with contextlib.ExitStack() as stack:
        if match := LOCAL.fullmatch(scheduler):
            number = min(int(match[1]) if match[1] else processors(), parts)
            options: dict[str, Any] = {
                "threads_per_worker": 1,
                "dashboard_address": None,
                "silence_logs": logging.ERROR,
            }
            place = stack.enter_context(distributed.LocalCluster(n_workers=number, **options))
            client = stack.enter_context(distributed.Client(place))
        else:
            given = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
            if "scheduler_file" in given and not Path(scheduler).is_file():
                raise FileNotFoundError(f"scheduler: {scheduler} is not there")
            try:
                client = stack.enter_context(distributed.Client(**given, timeout=PATIENCE))
            except (OSError, ValueError, TypeError) as error:
                raise OSError(f"scheduler: no Dask scheduler answers at {scheduler}: {error}") from error
            _warn_of_workers(client.nthreads())
        yield client


def _warn_of_workers(threads_of: Mapping[str, int]) -> None:
    if not threads_of:
        warnings.warn("the scheduler has no worker yet: nothing is done before one joins it", stacklevel=4)
    threads = max(threads_of.values(), default=1)
    if threads > 1:
        warnings.warn(
            f"a worker has {threads} threads, of which one works at a time: start workers with --nthreads 1, and as "
            "many as there are processors with --nworkers",
            stacklevel=4,
        )


def _place(error: Any) -> str:
    return str(getattr(error.last_worker, "address", error.last_worker))


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ImportError(needs("scheduler", "distributed")) from error
    return distributed
