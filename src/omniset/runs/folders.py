"""Folders and files that a run makes. What was there before is replaced only where the user says so.

A run that makes a folder works in a hidden one beside it, `.NAME.unfinished`, and moves it to its place when all is
done. The file `run.json` in it says of which kind the run is, and which files it has made: these alone are ever removed
for another run, and only for one of the same kind.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from omniset.runs import cards
from omniset.runs.console import has_work, run_folder
from omniset.runs.files import HALF_WRITTEN, writable_folder, write_json
from omniset.runs.locks import NAME as LOCK
from omniset.runs.locks import locked

RECORD, FORMAT, VERSION = "run.json", "omniset-run", 1
LONGEST = 1 << 24  # bytes of a record: of a hundred thousand files
TRAINING = ("checkpoints", "rows", "logs")  # folders of what a fit keeps until its model is saved, or resumes from
CONFIG = "config.json"  # that a folder of a model has
CHANGING_NOTHING = ("resume", "replace", "progress")  # options of a command
REPLACE: ContextVar[bool] = ContextVar("replace", default=False)  # the option --replace of the command that runs

Tree = dict[str, Any]  # names in a folder; of a folder again a tree, of a file None


# What a fit in Python keeps in a folder, or in folders of its networks.
TRAINED = re.compile(
    r"(?:[^/]+/){0,2}(checkpoints/\.?(best|last)(-\w+)?\.ckpt|logs/(metrics\.csv|hparams\.yaml|events\..+))"
)


def unfinished(out: Path) -> Path:
    """The folder in which a run works that makes `out`."""
    return _beside(out, "unfinished")


def _replaced(out: Path) -> Path:
    """Where a folder is while another one takes its place."""
    return _beside(out, "replaced")


def _beside(out: Path, what: str) -> Path:
    place = out.resolve()
    if not place.name:
        raise ValueError(f"out={out} is the root of the file system: name a folder within it")
    return place.with_name(f".{place.name}.{what}")


def read_record(folder: Path) -> dict[str, Any] | None:
    """What `run.json` says, checked; None where there is none.

    Raises:
        ValueError: It is damaged.
    """
    path = folder / RECORD
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        record = json.loads(path.read_text(encoding="utf-8"))
        sound = isinstance(record, dict) and record.get("format") == FORMAT and record.get("format_version") == VERSION
        sound = sound and all(isinstance(record.get(key), str) for key in ("kind", "command"))
        if not (sound and (record.get("made") is None or _is_tree(record["made"]))):
            raise ValueError(f"it is no record of format {FORMAT!r}, version {VERSION}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not say what a run has made: {error}. Choose another folder") from error
    return record


def _is_tree(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    plain = (name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name) for name in value)
    return all(plain) and all(below is None or _is_tree(below) for below in value.values())


def tree_of(folder: Path) -> Tree:
    """All names in a folder. A link is a name, whatever it leads to."""
    with os.scandir(folder) as entries:
        names = sorted(entries, key=lambda entry: entry.name)
    return {
        entry.name: tree_of(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else None
        for entry in names
        if entry.name != LOCK
    }


def _others(there: Tree, made: Tree, where: str = "") -> Iterator[str]:
    """What is in a folder and was not made by its run."""
    for name, below in there.items():
        if name not in made or (below is None) != (made[name] is None):
            yield where + name + ("" if below is None else "/")
        elif below is not None:
            yield from _others(below, made[name], f"{where}{name}/")


def _refuse_above(out: Path) -> None:
    place = out.resolve()
    if place == Path.cwd() or place in Path.cwd().parents or place.is_mount():
        what = "holds other file systems" if place.is_mount() else "is the folder that you are in"
        raise ValueError(f"out={out} {what}: name a folder within it, such as {out / 'run'}")


def check(
    out: Path, kinds: Sequence[str], replace: bool, command: str | None = None, reads: Iterable[Path | None] = ()
) -> None:
    """See that a run may make the folder, before any work.

    Args:
        kinds: Of what it makes; one of them must be the kind of what is there.
        replace: Whether what is there may be replaced.
        command: That goes on with an earlier run, and may replace what the same command has made.
        reads: What the run reads, which may not lie in the folder.

    Raises:
        OSError, ValueError: There is something that it may not replace.
    """
    place = out.resolve()
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is a file")
    _refuse_above(out)
    for path in reads:
        for own in (place, unfinished(out)):
            if path is not None and path.exists() and own in (path.resolve(), *path.resolve().parents):
                raise ValueError(f"out={out}: {own} is or holds {path}, which is read: choose another folder")
    for own in (unfinished(out), _replaced(out)):
        if own.is_symlink() or (own.exists() and not own.is_dir()):
            raise ValueError(f"{own} is in the way of the run, and is no folder: move it elsewhere")
    if _replaced(out).exists() and read_record(_replaced(out)) is None:
        raise ValueError(f"{_replaced(out)} is in the way, and no run of Omniset has made it: move it elsewhere")
    there = tree_of(place) if place.exists() else {}
    record = read_record(place) if there else None
    if not there:
        return
    if record is None or record["made"] is None:
        raise ValueError(
            f"out={out} holds what no run of Omniset has made, such as {next(iter(there))}: choose another folder"
        )
    if record["kind"] not in kinds:
        raise ValueError(
            f"out={out} holds the {record['kind']} of another run, which this one does not replace: "
            "choose another folder"
        )
    if not replace and (command is None or record["command"] != command):
        raise ValueError(
            f"out={out} holds the {record['kind']} of an earlier run: choose another folder, or replace it "
            "with --replace true (in Python replace=True)"
        )
    others = [*_others(there, {RECORD: None, **record["made"]})]
    if others:
        raise ValueError(
            f"out={out} cannot be replaced, it also holds {others[0]}, which its run has not made: "
            "move that elsewhere, or choose another folder"
        )


def finish(folder: Path, kind: str, command: str) -> None:
    """Say in a folder what a run has made there; of a model in its card too."""
    cards.write(folder)
    made = tree_of(folder)
    write_record(folder, kind, command, {name: below for name, below in made.items() if name != RECORD})


def interrupted(work: Path) -> None:
    """Say in the hidden folder of a run that ends early what is its own there."""
    record = read_record(work)
    if record is not None:
        write_record(work, record["kind"], record["command"], tree_of(work))


def write_record(folder: Path, kind: str, command: str, made: Tree | None) -> None:
    """Say in a folder which run works there and, in the end, what it has made."""
    about = {"format": FORMAT, "format_version": VERSION, "kind": kind, "command": command, "made": made}
    write_json(folder / RECORD, about)


def swap(work: Path, out: Path) -> None:
    """Move the folder of a finished run to its place, then remove what it replaces, which `check` has looked at."""
    place, old = out.resolve(), _replaced(out)
    try:
        if place.exists() and any(place.iterdir()):
            place.rename(old)
        work.rename(place)
    except BaseException:
        if old.exists() and not place.exists():
            old.rename(place)
        raise
    (place / LOCK).unlink(missing_ok=True)
    if old.exists():
        remove(old)


def recover(out: Path) -> None:
    """Put back what a run that was killed within `swap` was about to replace, or remove it where that was done. The
    folder `unfinished` must be held: else that run may still be at it.
    """
    place, old = out.resolve(), _replaced(out)
    if old.exists() and read_record(old) is not None:
        if place.exists():
            remove(old)
        else:
            old.rename(place)


def remove(folder: Path) -> None:
    """Remove what the run of a folder has made, by its record, and the folder where nothing else is in it."""
    record = read_record(folder)
    _remove(folder, {LOCK: None, **((record or {}).get("made") or {})})
    (folder / RECORD).unlink(missing_ok=True)  # last: what was killed here goes on
    with suppress(OSError):
        folder.rmdir()


def _remove(folder: Path, made: Tree) -> None:
    for name, below in made.items():
        path = folder / name
        if below is None:
            path.unlink(missing_ok=True)
        elif path.is_dir() and not path.is_symlink():
            _remove(path, below)
            with suppress(OSError):
                path.rmdir()


def clear(work: Path) -> None:
    """Empty the hidden folder in which a run works: all that is in it is the run's, or `take_up` has refused it."""
    for path in work.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def only_training(folder: Path) -> bool:
    """Whether a folder holds nothing but what a fit in Python has kept there: its model may be saved beside that."""
    return all(TRAINED.fullmatch(name) for name in _names(tree_of(folder)))


def _names(tree: Tree, where: str = "") -> Iterator[str]:
    for name, below in tree.items():
        if below:
            yield from _names(below, f"{where}{name}/")
        else:  # a file, or an empty folder
            yield where + name + ("" if below is None else "/")


def essence(command: str) -> str:
    """A command without the options that change nothing of what it makes."""
    words, kept = shlex.split(command), []
    names = {f"--{name}" for name in CHANGING_NOTHING}
    while words:
        word = words.pop(0)
        if word in names:
            words = words[1:]
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return shlex.join(kept)


def take_up(out: Path, kind: str, command: str, resume: bool | None, replace: bool) -> None:
    """Make the hidden folder ready for a run: empty, or with what the run that goes on there has done.

    Args:
        resume: Whether to go on with what is there; None: such runs do not go on.

    Raises:
        ValueError: What an unfinished run has done would be lost.
    """
    work, place = unfinished(out), out.resolve()
    if tree_of(work):
        record = read_record(work)
        if record is None:
            raise ValueError(f"{work} is in the way of the run, and no run of Omniset has made it: move it elsewhere")
        if others := [*_others(tree_of(work), {RECORD: None, **record["made"]})] if record["made"] else []:
            raise ValueError(f"{work} holds {others[0]}, which no run of Omniset has made: move it elsewhere")
        if record["kind"] != kind and has_work(work):
            raise ValueError(
                f"{work} holds what an unfinished run has done that makes the {record['kind']}: choose another folder, "
                "or remove it"
            )
        if resume and record["kind"] == kind:
            for path in work.rglob(".*-*"):  # half written, by what was killed
                if path.is_file() and HALF_WRITTEN.fullmatch(path.name):
                    path.unlink()
            write_record(work, kind, record["command"], None)
            return
        if resume is not None and not replace and has_work(work):
            raise ValueError(
                f"{work} holds what an unfinished run has done: --resume true goes on with it, --replace "
                "true starts anew"
            )
        clear(work)
    elif resume and (read_record(place) or {}).get("command") == command:
        if kind.startswith("parts"):  # each is written anew or not at all
            shutil.copytree(place, work, copy_function=_link, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))
        else:
            for path in place.iterdir():
                if path.is_dir() and not path.is_symlink() and (path.name in TRAINING or only_training(path)):
                    shutil.copytree(path, work / path.name)
    write_record(work, kind, command, None)


def _link(file: str, to: str) -> None:
    try:
        os.link(file, to)
    except OSError:  # a file system without
        shutil.copy2(file, to)


@contextmanager
def saving(folder: Path, kind: str, replace: bool) -> Iterator[Path]:
    """A folder to write a model to, from Python; it is at its place when the block ends well."""
    _refuse_above(folder)
    if folder.is_dir() and RECORD not in (before := tree_of(folder)) and only_training(folder):
        with locked(folder):
            yield folder
            cards.write(folder)
            write_record(folder, kind, "", {n: below for n, below in tree_of(folder).items() if n not in before})
        return
    check(folder, [kind], replace)
    work = unfinished(folder)
    with run_folder(work, name=folder):
        recover(folder)
        check(folder, [kind], replace)
        take_up(folder, kind, "", False, replace)
        try:
            yield work
            finish(work, kind, "")
            swap(work, folder)
        except BaseException:
            if work.exists():
                clear(work)
            raise


def refuse_own_input(out: Path, arguments: Iterable[Any]) -> None:
    """See that what a command writes replaces nothing that it reads.

    Args:
        arguments: All others of the command: those that are, or name, something that is there, are read.

    Raises:
        ValueError: `out` is one of them, holds one, is a file within one, or lies in a model.
    """
    try:
        place = out.resolve()
    except (RuntimeError, OSError) as error:  # which of them depends on the version of Python
        raise ValueError(f"out={out} is no name of a file or folder: {error}") from error
    for path in _files_of(arguments):
        read = path.resolve()
        if out.exists() and out.samefile(read):
            raise ValueError(f"out={out} is the input itself, {path}: choose another name")
        if place in read.parents and out.is_dir():
            raise ValueError(f"out={out} holds {path}, which is read: choose another folder")
        if read in place.parents and (out.is_file() or (read / CONFIG).is_file()):
            raise ValueError(f"out={out} lies in {path}, which is read: choose another folder")


def _files_of(arguments: Iterable[Any]) -> Iterator[Path]:
    """Files and folders that are there, by their names, by patterns, or by lists of these."""
    for value in arguments:
        if isinstance(value, (list, tuple, set)):
            yield from _files_of(value)
        elif isinstance(value, (str, Path)) and value:
            path = os.path.expanduser(value)
            if os.path.exists(path):
                yield Path(path)
            elif glob.has_magic(path):
                yield from map(Path, glob.glob(path))


def new_file(out: Path) -> None:
    """See that a file may be written: it is not there, or is to be replaced; its folder may be written to."""
    if (out.is_file() or out.is_symlink()) and not REPLACE.get():
        raise ValueError(f"out={out} is there already: choose another name, or replace it with --replace true")
    if out.parent.is_dir():
        writable_folder(out.parent)
