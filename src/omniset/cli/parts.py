"""Commands that take many files at once: `--scheduler` gives each to a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omniset.cli.options import Function, Taken
from omniset.options import check, option, options

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
    find: Callable[[dict[str, Any]], Sequence[Path]],
    *,
    place: Callable[[Path], Any] = lambda path: path,
    endings: Sequence[str] = (),
    unsaid: str | None = None,
    join: Callable[[dict[str, Any]], Join] = lambda arguments: lambda made, out: [],
    joined: Callable[[dict[str, Any]], str | None] = lambda arguments: None,
) -> Callable[[Function], Function]:
    """Give a command the options of `Scheduling`.

    Args:
        argument: That takes a part.
        find: The parts' files, by all arguments.
        place: A file as the argument has it.
        endings: Of files that are made of a part, the default first; without any, a folder is made of each.
        unsaid: See `omniset.cli.workers.Job`.
        join: By all arguments, what is done when all parts are; see `omniset.cli.workers.run`.
        joined: By all arguments, the name of what `join` writes.
    """

    def decorate(function: Function) -> Function:
        taken = Taken(Scheduling, ("scheduler", "resume"), as_at_fit=False)

        @functools.wraps(function)
        def scheduled(*words: Any, scheduler: str | None = None, resume: bool = False, **arguments: Any) -> None:
            check(Scheduling, {"resume": resume})
            if scheduler is not None:
                _run(f"{function.__module__}:{function.__name__}", scheduler, resume, arguments)
            elif resume:
                raise ValueError("resume=True is for parts: give scheduler too")
            else:
                function(*words, **arguments)

        def _run(name: str, address: str, resume: bool, arguments: dict[str, Any]) -> None:
            from omniset.cli import workers
            from omniset.runs import folders

            workers.check_scheduler(address)
            if arguments.get("devices", 1) * arguments.get("num_nodes", 1) > 1:
                raise ValueError("devices and num_nodes share one file out, scheduler many: give one of them")
            folders.REPLACE.set(arguments["replace"])
            out = arguments["out"]
            ending = workers.ending_of(out, endings, endings[0]) if endings else None
            rest = {key: value for key, value in arguments.items() if key not in (argument, "out")}
            found = workers.named(find(arguments), place)
            options = {"resume": resume, "progress": arguments["progress"], "join": join(arguments)}
            job = workers.Job(name, argument, rest, out, ending, unsaid, joined(arguments))
            workers.run(job, found, address, **options)

        scheduled.taken = [taken, *getattr(function, "taken", [])]  # type: ignore[attr-defined]
        return scheduled  # type: ignore[return-value]

    return decorate
