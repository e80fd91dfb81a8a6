"""Several processes that share the work of a command: started by the command itself, by torchrun or by SLURM."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed

from omniset.runs.meeting import MEETING, connect, local_meeting
from omniset.runs.signals import Terminated, terminable

ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes of a process that was ended for another one's sake
OVER = 4  # processes for each processor, beyond which a machine is only kept from working
GRACE = 5.0  # seconds in which the first process meets an error that another one has met, and in which one ends
POLL = 0.1  # seconds between two looks at whether a process still runs


def check(device: torch.device, devices: int, num_nodes: int) -> None:
    """Raise the ValueError of what cannot be run so."""
    here, nodes = layout(devices, num_nodes)
    if device.type == "cuda" and here > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the GPUs of this machine, got {here}")
    if device.type == "cpu" and not _started() and here > (most := OVER * processors()):
        raise ValueError(f"devices must be at most {most}, {OVER} for each processor here, got {here}")
    if device.type == "mps" and here * nodes > 1:
        raise ValueError(f"devices must be 1 on 'mps', got {here}: device='cpu' takes several")


def layout(devices: int, num_nodes: int) -> tuple[int, int]:
    """Processes on each machine, and machines. Those of torchrun, where it has started this process.

    Raises:
        ValueError: They are not those that torchrun or SLURM has started; several machines without either.
    """
    if _placed():
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


def is_first(devices: int, num_nodes: int) -> bool:
    """Whether this process is the first of those that share the work, or the only one."""
    if _placed():
        return int(os.environ["RANK"]) == 0
    rank = "SLURM_PROCID" if _slurm_tasks() > 1 else "LOCAL_RANK"
    return devices * num_nodes == 1 or int(os.environ.get(rank, 0)) == 0


def require_alone(why: str) -> None:
    """Raise the ValueError of what has no use for the processes that torchrun has started."""
    here, nodes = layout(1, 1)
    if here * nodes > 1:
        raise ValueError(f"torchrun has started {here * nodes} processes, and one is needed: {why}")


def start(devices: int, num_nodes: int) -> bool:
    """Run this command in `devices` processes of this machine, and wait for them. False: this process does the work.

    If one ends early, the others are ended.

    Raises:
        SystemExit: One of them failed; it is said why.
        KeyboardInterrupt, Terminated: This process, or one of them, was interrupted; they are silent about it.
    """
    if devices * num_nodes == 1 or _started():
        return False
    import __main__

    # A script of the user's that calls omniset.cli.main is run again; else the command itself.
    script = __main__.__spec__ is None and Path(sys.argv[0]).is_file()
    command = [sys.executable, *([sys.argv[0]] if script else ["-m", "omniset"]), *sys.argv[1:]]
    running: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory(prefix="omniset-") as folder, terminable():
        meet = local_meeting(Path(folder))
        threads = str(max(processors() // devices, 1))
        try:
            for rank in range(devices):
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": devices}
                places = {name: str(value) for name, value in place.items()}
                environment = {"OMP_NUM_THREADS": threads} | os.environ | meet | places
                running.append(subprocess.Popen(command, env=environment))
            codes = _wait(running)
        except KeyboardInterrupt:
            _end(running, GRACE / 2)  # Ctrl-C has reached them too, but a signal may have reached this process alone
            raise
        except BaseException:
            _end(running)
            raise
    if any(codes.values()):
        _tell(codes, devices)
    return True


def together(device: torch.device, devices: int, num_nodes: int, **of_ddp: Any) -> Any:
    """Fabric, launched: it knows the devices of these processes, and averages gradients over them.

    In Python, where nothing has started the other processes, it runs the script once more for each of them.
    """
    here, nodes = layout(devices, num_nodes)
    if here * nodes == 1 and device.type == "cpu":  # Fabric has nothing to do there, and takes seconds to import
        alone = {"device": device, "global_rank": 0, "world_size": 1, "strategy": SimpleNamespace(launcher=None)}
        return SimpleNamespace(**alone, setup=lambda *both: both, backward=torch.Tensor.backward, to_device=lambda x: x)
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment
    from lightning_fabric.strategies import DDPStrategy, Strategy

    class DataParallel(DDPStrategy):
        """Its processes meet in a file, and send each other nothing that could run code; see `meeting`."""

        def setup_environment(self) -> None:
            connect(self.local_rank, self.num_processes, self._get_process_group_backend())
            super().setup_environment()

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it says where it runs
    strategy: str | Strategy = "auto"
    if here * nodes > 1:
        strategy = DataParallel(**of_ddp)
        if MEETING not in os.environ and not _started() and not torch.distributed.is_initialized():
            folder = Path(tempfile.mkdtemp(prefix="omniset-"))
            os.environ.update(local_meeting(folder))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Where processes meet in a file, others that Fabric sees, such as SLURM's, are none of theirs.
    plugins: list[Any] = [LightningEnvironment()] if MEETING in os.environ else []
    fabric = Fabric(accelerator=device.type, devices=here, num_nodes=nodes, strategy=strategy, plugins=plugins)
    fabric.launch()
    return fabric


@contextmanager
def ending(fabric: Any) -> Iterator[None]:
    """Around what processes do together: an error of this one ends those that Fabric has started from it."""
    try:
        yield
    except BaseException:
        for process in getattr(fabric.strategy.launcher, "procs", []):
            process.terminate()
        raise


def _wait(running: list[subprocess.Popen]) -> dict[int, int]:
    """Exit codes by number, when all have ended; of those that ended by themselves, when one of them has failed."""
    while True:
        codes = {number: code for number, process in enumerate(running) if (code := process.poll()) is not None}
        if any(codes.values()):
            time.sleep(POLL)  # what failed first may be seen second
            codes |= {number: code for number, process in enumerate(running) if (code := process.poll()) is not None}
            _end(running)
            return codes
        if len(codes) == len(running):
            return codes
        time.sleep(POLL)


def _end(running: list[subprocess.Popen], wait: float = 0.0) -> None:
    """End what still runs after some seconds: by SIGTERM and, if that does not help, by SIGKILL."""
    until = time.monotonic() + wait
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(POLL)
    for process in running:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in running:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tell(codes: dict[int, int], devices: int) -> None:
    """Raise the error of processes of which one failed, or more, or was interrupted."""
    failed = {number: code for number, code in codes.items() if code}
    if 130 in failed.values():
        raise KeyboardInterrupt
    if all(code in ENDED for code in failed.values()):
        raise Terminated
    number = min(failed, key=lambda n: (failed[n] in ENDED, failed[n]))  # killed, rather than ended by us
    code = failed[number]
    if code > 1:
        raise SystemExit(code)  # it has said why
    ending = "failed"
    if code < 0:
        ending = f"was killed ({signal.Signals(-code).name}); where nobody did, memory was probably too small"
    print(f"omniset: error: process {number} of {devices} {ending}", file=sys.stderr)
    raise SystemExit(1)


@contextmanager
def one_voice(devices: int, num_nodes: int) -> Iterator[bool]:
    """Around the work of a command; gives whether this process is the first. Only that one prints.

    An error of all processes is printed once: the others wait until the first one has printed it, and are ended. Where
    `start` has started them, it tells what interrupted them. A process ends, and removes its unfinished files, if
    another one has ended, or what has started it.
    """
    here, nodes = layout(devices, num_nodes)
    if here * nodes == 1:
        yield True
        return
    first = is_first(devices, num_nodes)
    speaks = first and MEETING not in os.environ
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    try:
        with ExitStack() as stack:
            stack.enter_context(terminable())
            if not first:
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            yield first
    except (ValueError, OSError, ImportError):
        if not first:
            try:
                time.sleep(GRACE)
            except (KeyboardInterrupt, Terminated):  # the first one has printed it
                raise SystemExit(ENDED[-1]) from None
        raise
    except (KeyboardInterrupt, Terminated) as error:
        if speaks:
            raise
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else error.code) from None
    except RuntimeError as error:
        if not _of_others(error):
            raise
        if speaks:
            print("omniset: error: lost another process of this run", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM) from None


def _placed() -> bool:
    """Whether the environment says which process this is: torchrun's, or that of `start`."""
    return "TORCHELASTIC_RUN_ID" in os.environ or (MEETING in os.environ and "LOCAL_WORLD_SIZE" in os.environ)


def _started() -> bool:
    return _placed() or _slurm_tasks() > 1


def _slurm_tasks() -> int:
    """Processes that SLURM has started; in an interactive job (which Fabric tells by these names too) it is one."""
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return 1 if interactive or "SLURM_PROCID" not in os.environ else int(os.environ.get("SLURM_NTASKS", 1))


def _of_others(error: RuntimeError) -> bool:
    """Whether it is what torch.distributed says when another process has ended."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)  # it hangs waiting for the others
