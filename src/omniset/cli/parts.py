"""Commands that take many files at once: `--scheduler` gives each to a worker.

The folder of what is made keeps, among its records, the settings of the run and the state of each file: by these a run
that goes on knows what is done. A part is at its place only when it is whole.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omniset.cli.options import PROGRESS, Function, Taken
from omniset.options import check, option, options
from omniset.runs import folders
from omniset.runs.console import RECORDS, say, say_notes
from omniset.runs.files import plain, write_json
from omniset.runs.locks import NAME as LOCK

if TYPE_CHECKING:
    from omniset.cli.workers import Job, Part

COMPRESSED = (".gz", ".bz2", ".xz")
SETTINGS = "settings.json"
SHOWN = 10  # warnings and failures that are printed
COMPUTING = ("device", "progress", "replace")  # options that change nothing

Join = Callable[[Mapping[str, Path], Path], Iterable[str]]


@options
class Scheduling:
    """Who works on many files."""

    scheduler: str | None = option(
        None,
        "Take each file of a folder, or of a pattern in quotes, for a part of its own, and give parts to the workers "
        'of a Dask cluster: its address, such as "tcp://host:8786", or its scheduler file (.json). "local" or '
        '"local:N": N processes of this machine. "synchronous": one after the other, without Dask. out is then a '
        "folder with what the command makes of each part. null: the command as it is.",
        group="computing",
    )
    resume: bool = option(
        False, "With scheduler: keep the parts that an interrupted run has done in the same folder.", group="computing"
    )


def in_parts(
    argument: str,
    files: Callable[[dict[str, Any]], Sequence[Path]],
    *,
    place: Callable[[Path], Any] = lambda path: path,
    endings: Sequence[str] = (),
    join: Join = lambda made, out: [],
    joined: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Give a command the options of `Scheduling`.

    Args:
        argument: That takes a part.
        files: Of the parts, by all arguments.
        place: A file as the argument has it.
        endings: Of files that are made of a part, the default first; without any, a folder is made of each.
        join: Is given what was made, by part, and the folder of it, when all is done; gives lines to say.
        joined: How the names of what `join` writes begin.
    """

    def decorate(function: Function) -> Function:
        taken = Taken(Scheduling, ("scheduler", "resume"), as_at_fit=False)

        @functools.wraps(function)
        def scheduled(*words: Any, scheduler: str | None = None, resume: bool = False, **arguments: Any) -> None:
            check(Scheduling, {"resume": resume})
            if scheduler is None and resume:
                raise ValueError("resume=True is for parts: give scheduler too")
            if scheduler is None:
                return function(*words, **arguments)
            from omniset.cli import workers

            workers.check_scheduler(scheduler)
            folders.REPLACE.set(arguments["replace"])
            out: Path = arguments["out"]
            rest = {key: value for key, value in arguments.items() if key not in (argument, "out")}
            name = f"{function.__module__}:{function.__name__}"
            there = [value for value in rest.values() if isinstance(value, (str, Path)) and os.path.exists(value)]
            reads = {str(Path(value).absolute()): workers.state_of(Path(value)) for value in there}
            job = workers.Job(name, argument, rest, out, ending_of(out, endings) if endings else "", reads=reads)
            run(job, named(files(arguments), place), scheduler, resume=resume, join=join, joined=joined)

        scheduled.taken = [taken, *getattr(function, "taken", [])]  # type: ignore[attr-defined]
        return scheduled  # type: ignore[return-value]

    return decorate


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
        missing = f"has not a file that ends in {', '.join(endings)}"
    else:
        found = sorted(Path(p) for p in glob.glob(str(path)))
        missing = "matches no file" if glob.has_magic(str(path)) else "is not there"
    if not found:
        raise ValueError(f"{name}: {given} {missing}")
    return found


def named(paths: Sequence[Path], place: Callable[[Path], Any] = lambda path: path) -> list[Part]:
    """Parts by the names of their files, without what these end in; with their folders, where files of several have one
    name.

    Args:
        place: A part as the command's argument has it.

    Raises:
        ValueError: Two would have one name.
    """
    from omniset.cli.workers import Part, state_of

    names = [Path(_without_compression(path.name)).stem for path in paths]
    if len(set(names)) < len(names):
        parents = [path.absolute().parent for path in paths]
        common = Path(os.path.commonpath(parents))
        names = ["-".join([*p.relative_to(common).parts, n]) for p, n in zip(parents, names, strict=True)]
    first: dict[str, Path] = {}
    for name, path in zip(names, paths, strict=True):
        if name in ("", ".", ".."):
            raise ValueError(f"{path} has no name before its ending: rename it")
        if name in first:
            raise ValueError(f"{first[name]} and {path} would both be written as {name}: name one of them otherwise")
        first[name] = path
    return [Part(name, path, place(path), state_of(path)) for name, path in first.items()]


def ending_of(out: Path, endings: Sequence[str]) -> str:
    """What `out`, the name of a folder, says of the files in it: "predictions.csv.gz" holds .csv.gz files."""
    name = _without_compression(out.name)
    if not Path(name).suffix:
        return endings[0]
    if not name.lower().endswith(tuple(endings)):
        raise ValueError(f"out must be the name of a folder, without an ending or with {', '.join(endings)}; got {out}")
    return Path(name).suffix + out.name[len(name) :]


def _without_compression(name: str) -> str:
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in COMPRESSED else name


def run(
    job: Job,
    parts: Sequence[Part],
    scheduler: str,
    *,
    resume: bool,
    join: Join = lambda made, out: [],
    joined: tuple[str, ...] = (),
) -> None:
    """Run the command on all parts. What is done is kept whatever becomes of the others.

    Args:
        scheduler: Who works on the parts, see `omniset.cli.workers.each`.
        resume: Keep what is done, by the same settings and of the same files.
        join, joined: See `in_parts`.
    """
    from omniset.cli import workers
    from omniset.report.run import working_folder
    from omniset.runs.progress import Progress

    command, settings = job.function.split(":")[1], settings_of(job)
    reads = [*(part.path for part in parts), Path(job.arguments["model"])]
    for part in parts:
        if (name := job.made(part).name) in (folders.RECORD, RECORDS, LOCK) or name.startswith(joined):
            raise ValueError(f"{part.path}: what is made of it would be {name}, which is taken: rename the file")
    if resume:  # as `folders.take_up` does
        work = folders.unfinished(job.out)
        there = work if work.is_dir() and folders.tree_of(work) else job.out
        try:
            _check(there, command, settings)
        except ValueError:
            if not folders.REPLACE.get():
                raise
            resume = False  # nothing there to go on with, and leave to start anew
    with working_folder(job.out, command, "parts", reads=reads, resume=resume) as folder:
        job = replace(job, out=folder.path)
        done = _take_up(job, parts, joined, settings)
        record = {"settings": settings, "files": {part.name: part.state for part in parts}}
        if done:
            write_json(job.out / RECORDS / SETTINGS, record)
            say(f"{len(done):,} of {len(parts):,} parts are done already")
        failed: dict[str, str] = {}
        told: dict[str, None] = {}
        with Progress("parts", len(parts), PROGRESS.get(), unit="parts") as bar:
            for part, outcome in workers.each(job, [part for part in parts if part not in done], scheduler):
                if outcome.error is None:
                    told |= dict.fromkeys(outcome.warnings)
                    done.append(part)
                    if len(done) == 1:  # where nothing is done, there is nothing to go on with
                        write_json(job.out / RECORDS / SETTINGS, record)
                    bar.at(len(done))
                else:
                    failed[str(part.path)] = outcome.error
        more = [f"{len(told) - SHOWN:,} more warnings"] if len(told) > SHOWN else []
        say_notes([*[*told][:SHOWN], *more])
        if failed:
            raise _failure(failed, len(parts), job.out)
        for line in join({part.name: job.made(part) for part in parts}, job.out):
            say(line)
        say(f"Written to {folder.out}: {len(parts):,} parts, such as {job.made(parts[0]).name}")


def _failure(failed: dict[str, str], number: int, out: Path) -> ValueError:
    lines = [error if path in error else f"{path}: {error}" for path, error in failed.items()]
    for line in lines[1:SHOWN]:
        print(f"omniset: {line}", file=sys.stderr)
    if number == 1:
        return ValueError(lines[0])
    others = f"{len(failed):,} of {number:,} parts failed, the first: " if len(failed) > 1 else ""
    kept = f". What is done is kept in {out}, the same command with --resume true goes on"
    return ValueError(f"{others}{lines[0]}{kept if len(failed) < number else ''}")


def settings_of(job: Job) -> dict[str, Any]:
    """All that what is made depends on beside the part."""
    import torch

    from omniset.training.located import located

    arguments = {name: value for name, value in job.arguments.items() if name not in COMPUTING}
    model = located(arguments["model"])
    checksums = [_checksum(model / name) for name in ("config.json", "model.safetensors")]
    for name, value in arguments.items():  # the file that an option names may change, too
        if isinstance(value, (str, Path)) and os.path.isfile(value):
            arguments[name] = [str(value), _checksum(Path(value))]
    settings: dict[str, Any] = plain(
        arguments
        | {"model": checksums, "program": [*job.program], "omniset": job.version, "torch": str(torch.__version__)}
    )
    return settings


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _check(folder: Path, command: str, settings: dict[str, Any]) -> None:
    """See that what is done in a folder was done by the same settings."""
    record = folders.read_record(folder)
    if record is None or record["kind"] != f"parts of {command}" or not os.path.lexists(folder / RECORDS / SETTINGS):
        return  # what else is there is checked by `working_folder`
    before = _read(folder / RECORDS / SETTINGS)["settings"]
    for key, now in settings.items():
        if before.get(key) != now:
            differs = "the model is another" if key == "model" else f"{key} was {before.get(key)!r}, is {now!r}"
            raise ValueError(
                f"{folder} holds parts of another run and cannot be resumed: {differs}. --replace true starts anew"
            )


def _take_up(job: Job, parts: Sequence[Part], joined: tuple[str, ...], settings: dict[str, Any]) -> list[Part]:
    """Make the folder of a run ready: gives the parts that are done.

    Raises:
        ValueError: It holds something else than what is made of these parts.
    """
    from omniset.cli.workers import WORK, remove

    records = job.out / RECORDS
    there = {p.name for p in job.out.iterdir() if not p.name.startswith(joined)} - {folders.RECORD, RECORDS, LOCK}
    if others := there - {job.made(part).name for part in parts}:
        raise ValueError(
            f"{job.out} holds {min(others)}, which is made of none of these files: give its file too, or choose "
            "another folder; --replace true starts anew"
        )
    records.mkdir(exist_ok=True)
    record = _read(records / SETTINGS) if os.path.lexists(records / SETTINGS) else {}
    states = record["files"] if record.get("settings") == settings else {}
    done = []
    for part in parts:
        if job.made(part).exists() and states.get(part.name) == part.state:
            done.append(part)
        else:  # of a file that has changed since
            remove(job.made(part))
    for path in records.glob(f"{WORK}*"):  # of a worker that was killed
        remove(path)
    if not done:
        (records / SETTINGS).unlink(missing_ok=True)  # until a part of this run is
    return done


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > folders.LONGEST:
            raise ValueError(path)
        record = json.loads(path.read_text(encoding="utf-8"))
        if not (record.keys() == {"settings", "files"} and all(isinstance(value, dict) for value in record.values())):
            raise ValueError(record)
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: nothing of that run is resumed, --replace true starts anew") from error
    return dict(record)
