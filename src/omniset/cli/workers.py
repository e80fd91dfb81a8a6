"""A command on a part of its input, and who does it: this process, processes of this machine, or workers of Dask.

What is made of a part is what the command makes of it alone, in one thread: it depends neither on the other parts nor
on who computes it, and so is the same to the bit. Workers must see the files, the model and `out` under the names that
this command has for them, as on a shared file system. Nothing but names and settings is sent.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import io
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import omniset
from omniset.cli.options import of_program, words_of_program
from omniset.lazy import needs
from omniset.runs.console import RECORDS, line_of
from omniset.runs.files import state_of
from omniset.runs.processes import processors

SYNCHRONOUS, LOCAL = "synchronous", re.compile(r"local(?::0*([1-9]\d*))?")
PATIENCE = "15s"  # for a scheduler to answer
WORK = "half-made-"  # folders of the parts at work, among the records
BAD_INPUT = (ValueError, OSError, ImportError, MemoryError)
_one_at_a_time = threading.Lock()  # of a process: what is said is caught for all of it


@dataclass(frozen=True)
class Part:
    """One file (or zarr store) of many."""

    name: str  # of what is made of it
    path: Path
    value: Any  # what the command's argument is for it
    state: dict[str, Any]  # of the file when the command began


@dataclass(frozen=True)
class Job:
    """A command to run on each part."""

    function: str  # of the command, such as "omniset.cli.sets:predict"
    argument: str  # the one that takes a part
    arguments: dict[str, Any]  # all others but `out`
    out: Path  # folder of what is made
    ending: str = ""  # of the file that is made of a part; "": a folder is
    program: tuple[str, ...] = field(default_factory=words_of_program)  # options of the program
    # States of the model and of files that options name, when the command began.
    reads: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    # The command as it was typed, which reports quote.
    words: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv[1:]))
    here: str = field(default_factory=os.getcwd)  # folder in which it was typed
    version: str = omniset.__version__  # of Omniset there

    def made(self, part: Part) -> Path:
        return self.out / (part.name + self.ending)


@dataclass
class Outcome:
    """What became of a part: warnings, or the error that it ended with."""

    warnings: list[str] = field(default_factory=list)
    error: str | None = None


def remove(made: Path) -> None:
    """What was made of a part, within the folder of the run."""
    shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)


def do(job: Job, part: Part) -> Outcome:
    """Run the command on a part, and move what it has made to its place when it is whole."""
    if job.version != omniset.__version__:
        return Outcome(error=f"this worker has Omniset {omniset.__version__}, the command {job.version}")
    if not Path(job.here).is_dir():
        return Outcome(error=f"a worker has no folder {job.here}: workers must see the same files as the command")
    module, name = job.function.split(":")
    with _one_at_a_time, _as_typed(job) as said:
        try:
            command, place = getattr(importlib.import_module(module), name), job.made(part)
            with tempfile.TemporaryDirectory(prefix=WORK, dir=job.out / RECORDS, ignore_cleanup_errors=True) as work:
                made = Path(work) / place.name
                contextvars.copy_context().run(_call, command, job, part, made)
                for path, state in ((part.path, part.state), *((Path(p), s) for p, s in job.reads.items())):
                    if state_of(path) != state:
                        return Outcome(error=f"{path} has changed since the command began")
                remove(place)  # of a worker that was thought dead
                made.rename(place)
        except BAD_INPUT as error:
            return Outcome(error=line_of(error))
    return Outcome(re.findall(r"^warning: (.*)$", said.getvalue(), flags=re.MULTILINE))


def _call(command: Callable[..., Any], job: Job, part: Part, made: Path) -> None:
    of_program(job.program)
    command(**job.arguments | {job.argument: part.value, "out": made})


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


def check_scheduler(scheduler: str) -> None:
    """Raise the ValueError of a name that is no scheduler's, or the ImportError where Dask is not installed."""
    if scheduler == SYNCHRONOUS:
        return
    address = ":" in scheduler and not scheduler.startswith("local:")
    if not (LOCAL.fullmatch(scheduler) or address or scheduler.endswith(".json")):
        raise ValueError(
            "scheduler must be 'synchronous', 'local', 'local:N' with N >= 1, an address such as 'tcp://host:8786' or "
            f"a scheduler file that ends in .json; got {scheduler!r}"
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
    with _client(distributed, scheduler, len(parts)) as client:
        futures = {client.submit(do, job, part, pure=False): part for part in parts}
        try:
            for future in distributed.as_completed([*futures]):
                try:
                    outcome = future.result()
                except distributed.KilledWorker as error:
                    last = getattr(error.last_worker, "address", error.last_worker)
                    outcome = Outcome(error=f"each worker that it was given to died, the last at {last}")
                except CancelledError as error:
                    raise OSError(f"scheduler={scheduler}: it has gone away, or has cancelled the work") from error
                yield futures[future], outcome
        finally:
            client.cancel([*futures])


@contextlib.contextmanager
def _client(distributed: Any, scheduler: str, parts: int) -> Iterator[Any]:
    """Of the scheduler; a cluster of this machine ends with it."""
    if match := LOCAL.fullmatch(scheduler):
        number = min(int(match[1] or processors()), parts)
        options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
        with distributed.LocalCluster(n_workers=number, **options) as cluster, distributed.Client(cluster) as client:
            yield client
        return
    given = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    if "scheduler_file" in given and not Path(scheduler).is_file():
        raise FileNotFoundError(f"scheduler: {scheduler} is not there")
    try:
        client = distributed.Client(**given, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise OSError(f"scheduler: no Dask scheduler answers at {scheduler}: {error}") from error
    with client:
        threads = client.nthreads().values()
        if not threads or max(threads) > 1:
            there = "has no worker yet: nothing is done before one joins it"
            several = "has workers of several threads, of which one works at a time"
            warnings.warn(
                f"the scheduler {several if threads else there}. Start them by dask worker --nthreads 1 --nworkers N",
                stacklevel=4,
            )
        yield client


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ImportError(needs("scheduler", "distributed")) from error
    return distributed
