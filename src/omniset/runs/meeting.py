"""Where the processes of a command meet, and what they send each other: nothing that could run code."""

from __future__ import annotations

import atexit
import io
import os
import socket
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed

MEETING = "OMNISET_MEETING"  # names the file in which processes of one machine find each other

Value = TypeVar("Value")


def local_meeting(folder: Path) -> dict[str, str]:
    """What processes of one machine find each other by: a file that only this user can read, and the loopback.

    No port is opened beyond the loopback, and what is read from one is never unpickled (`broadcast`, `gather`).
    """
    variables = {MEETING: str(folder / "meeting")}
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        variables |= {"GLOO_SOCKET_IFNAME": loopback[0], "NCCL_SOCKET_IFNAME": loopback[0]}
    return variables


def connect(rank: int, world: int, backend: str) -> None:
    """Make the group of the processes that meet in a file; torchrun's or SLURM's, who meet elsewhere, Fabric makes.

    Either is left at exit.
    """
    atexit.register(_leave)
    if MEETING in os.environ and not torch.distributed.is_initialized():
        store = f"file://{os.environ[MEETING]}"
        torch.distributed.init_process_group(backend, init_method=store, rank=rank, world_size=world)


def _leave() -> None:
    """End the threads of the group while Python still runs: later, one that frees a tensor would abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def broadcast(value: Value) -> Value:
    """The value of the first process: tensors, numbers, texts, and lists and dicts of them.

    It is read as checkpoints are, `weights_only`: bytes from a socket cannot run code, as torch's own pickles can.
    """
    here = torch.distributed.get_rank() == 0
    buffer = io.BytesIO()
    if here:
        torch.save(str(value) if isinstance(value, Path) else value, buffer)
    message = torch.frombuffer(bytearray(buffer.getvalue()) or bytearray(1), dtype=torch.uint8).to(_device())
    size = torch.tensor([len(message)], device=_device())
    torch.distributed.broadcast(size, 0)
    if not here:
        message = torch.empty(int(size), dtype=torch.uint8, device=_device())
    torch.distributed.broadcast(message, 0)
    return value if here else torch.load(io.BytesIO(message.cpu().numpy().tobytes()), weights_only=True)


def _device() -> str:
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
