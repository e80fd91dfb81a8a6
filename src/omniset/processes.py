"""Several processes that share the work of a command: started by the command itself, by torchrun or by SLURM."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

STRATEGIES = ("auto", "ddp", "fsdp")
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes of a process that was ended for another one's sake
OVER = 4  # processes for each processor, beyond which a machine is only kept from working
GRACE = 10.0  # seconds in which the first process meets an error that another one has met

Result = TypeVar("Result")


def check(device: torch.device, devices: int, num_nodes: int, strategy: str) -> None:
    """Raise the ValueError of what cannot be run so."""
    for name, value in (("devices", devices), ("num_nodes", num_nodes)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    here, nodes = layout(devices, num_nodes)
    if strategy == "fsdp" and device.type != "cuda":
        raise ValueError(f"strategy='fsdp' needs GPUs of NVIDIA or AMD, and the device is {device.type!r}: take 'ddp'")
    if device.type == "cuda" and here > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the GPUs of this machine, got {here}")
    if device.type == "cpu" and not (_by_torchrun() or _slurm_tasks() > 1) and here > (most := OVER * processors()):
        raise ValueError(f"devices must be at most {most}, {OVER} for each processor here, got {here}")
    if device.type == "mps" and here * nodes > 1:
        raise ValueError(f"devices must be 1 on 'mps', got {here}: device='cpu' takes several")


def layout(devices: int, num_nodes: int) -> tuple[int, int]:
    """Processes on each machine, and machines. Those of torchrun, where it has started this process.

    Raises:
        ValueError: They are not those that torchrun or SLURM has started; several machines without either.
    """
    if _by_torchrun():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        started = here, int(os.environ["WORLD_SIZE"]) // here
        if (devices, num_nodes) not in ((1, 1), started):
            raise ValueError(
                f"devices={devices} and num_nodes={num_nodes}, but torchrun has started {started[0]} processes on "
                f"each of {started[1]} machines: leave both away"
            )
        return started
    if devices * num_nodes > 1 and _slurm_tasks() > 1:
        started = int(os.environ.get("SLURM_NTASKS_PER_NODE", 0)), int(os.environ.get("SLURM_NNODES", 1))
        if started != (devices, num_nodes):
            raise ValueError(
                f"devices={devices} and num_nodes={num_nodes} must be what SLURM was told, got --ntasks-per-node="
                f"{started[0] or 'nothing'} and --nodes={started[1]}"
            )
    elif num_nodes > 1:
        raise ValueError(
            f"num_nodes={num_nodes}: start the command on each machine, with torchrun or with SLURM's srun"
        )
    return devices, num_nodes


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(devices: int, num_nodes: int) -> bool:
    """Run this command in `devices` processes, and wait for them. False: this process is to do the work itself.

    It is torchrun's agent that starts and watches them: if one ends early, it ends all others.

    Raises:
        SystemExit: One of them failed, or was interrupted; it is said why.
    """
    if devices * num_nodes == 1 or _by_torchrun() or _slurm_tasks() > 1:
        return False
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import __main__

    config = LaunchConfig(
        1,
        1,
        devices,
        run_id=f"omniset-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    # A script of the user's that calls omniset.cli.main is run again; else the command itself.
    script = __main__.__spec__ is None and Path(sys.argv[0]).is_file()
    program = [sys.argv[0]] if script else ["-m", "omniset"]
    logging.disable(logging.CRITICAL)  # what went wrong is said here, in one line
    try:
        elastic_launch(config, sys.executable)(*program, *sys.argv[1:])
    except SignalException as ended:
        raise SystemExit(128 + ended.sigval) from None  # the processes have had the signal too, and said so
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        number = min(codes, key=lambda n: (codes[n] in ENDED, codes[n]))  # killed, rather than ended for that
        if codes[number] not in (1, *ENDED) and codes[number] > 0:
            raise SystemExit(codes[number]) from None  # it has said why
        told = "failed"
        if codes[number] < 0:
            told = (
                f"was killed ({signal.Signals(-codes[number]).name}); where nobody did, memory was probably too small"
            )
        print(f"omniset: error: process {number} of {devices} {told}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        logging.disable(logging.NOTSET)
    return True


@contextmanager
def one_voice(devices: int, num_nodes: int) -> Iterator[bool]:
    """Around the work of a command; gives whether this process is the first. Only that one prints.

    An error that all processes meet is told once: the others wait for the first one to tell it, and to be ended. A
    process ends, and removes its unfinished files, if another one has ended, or what has started it.
    """
    here, nodes = layout(devices, num_nodes)
    if here * nodes == 1:
        yield True
        return
    first = int(os.environ["RANK" if _by_torchrun() else "SLURM_PROCID"]) == 0
    before = signal.getsignal(signal.SIGTERM)
    end_when_told()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    try:
        with ExitStack() as stack:
            if not first:
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            yield first
    except (ValueError, OSError, ImportError):
        if not first:
            time.sleep(GRACE)
        raise
    except KeyboardInterrupt:
        if first:
            raise
        raise SystemExit(130) from None
    except RuntimeError as error:
        if not _of_others(error):
            raise
        if first:
            print("omniset: error: lost another process of this run", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def in_turn(jobs: Iterable[Iterable[Result]], device: str, devices: int, num_nodes: int) -> Iterator[Result]:
    """The results of all jobs, in their order, for the first process; the others get none.

    Every process walks through all jobs and does each W-th of them, W their number. The results of W jobs at a time
    are brought together: they have to fit into memory.
    """
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    for name in ("lightning.fabric", "lightning.pytorch"):  # either says where it runs
        logging.getLogger(name).setLevel(logging.WARNING)
    here, nodes = layout(devices, num_nodes)
    gloo = DDPStrategy(process_group_backend="gloo")  # results are brought together in main memory
    fabric = Fabric(accelerator=device, devices=here, num_nodes=nodes, strategy=gloo)
    fabric.launch()
    own: list[Result] = []
    turn = 0
    for job in jobs:
        if turn == fabric.global_rank:
            own = list(job)
        turn += 1
        if turn == fabric.world_size:
            yield from _gathered(own, fabric)
            own, turn = [], 0
    if turn:
        yield from _gathered(own, fabric)


def end_when_told() -> None:
    """From now on SIGTERM ends this process as an error would: unfinished files are removed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _ended)


def _gathered(own: list[Result], fabric: Any) -> list[Result]:
    found: Any = [None] * fabric.world_size if fabric.is_global_zero else None
    torch.distributed.gather_object(own, found)
    return [result for results in found or [] for result in results]


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _slurm_tasks() -> int:
    """Processes that SLURM has started; in an interactive job (which Lightning tells by these names too) it is one."""
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return 1 if interactive or "SLURM_PROCID" not in os.environ else int(os.environ.get("SLURM_NTASKS", 1))


def _of_others(error: RuntimeError) -> bool:
    """Whether it is what torch.distributed says when another process has ended."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()


def _ended(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)  # it hangs waiting for the others
