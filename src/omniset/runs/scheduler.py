"""Who works on the parts of `omniset.runs.parts`: this process, or the workers of a Dask cluster."""

from __future__ import annotations

import logging
import re
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omniset.lazy import needs
from omniset.runs.parts import Job, Outcome, Part, do
from omniset.runs.processes import processors

SYNCHRONOUS, LOCAL = "synchronous", re.compile(r"local(?::(\d+))?")
PATIENCE = "15s"  # for a scheduler to answer


def check(scheduler: str) -> None:
    """Raise the ValueError of a name that is no scheduler's, or the ImportError where Dask is not installed."""
    if scheduler == SYNCHRONOUS:
        return
    match = LOCAL.fullmatch(scheduler)
    if match and match[1] == "0":
        raise ValueError(f"scheduler={scheduler!r}: at least 1 worker is needed")
    if not match and not (":" in scheduler or scheduler.endswith(".json")):
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


@contextmanager
def _client(scheduler: str, parts: int) -> Iterator[Any]:
    """Of the scheduler; a cluster of this machine ends with it."""
    distributed = _distributed()
    with ExitStack() as stack:
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
