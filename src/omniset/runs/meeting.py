"""Where the processes of a command meet, and what they send each other: nothing that could run code."""

from __future__ import annotations

import atexit
import io
import json
import os
import socket
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
import torch.distributed
from torch import Tensor

from omniset.runs.files import plain

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
    """Make the group of the processes that meet in a file; torchrun's or SLURM's, who meet elsewhere, Lightning makes.

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


def broadcast(value: Value, source: int = 0) -> Value:
    """The value of process `source`: tensors, numbers, texts, and lists and dicts of them.

    It is read as checkpoints are, `weights_only`: bytes from a socket cannot run code, as torch's own pickles can.
    """
    here = torch.distributed.get_rank() == source
    buffer = io.BytesIO()
    if here:
        torch.save(str(value) if isinstance(value, Path) else value, buffer)
    message = torch.frombuffer(bytearray(buffer.getvalue()) or bytearray(1), dtype=torch.uint8).to(_device())
    size = torch.tensor([len(message)], device=_device())
    torch.distributed.broadcast(size, source)
    if not here:
        message = torch.empty(int(size), dtype=torch.uint8, device=_device())
    torch.distributed.broadcast(message, source)
    return value if here else torch.load(io.BytesIO(message.cpu().numpy().tobytes()), weights_only=True)


def gather(tables: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables of all processes, in the order of these, for the first one; nothing for the others."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    message = packed(tables)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    torch.distributed.all_gather(sizes, torch.tensor([len(message)]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(message)] = message
    messages = [torch.empty_like(padded) for _ in range(world)] if rank == 0 else None
    torch.distributed.gather(padded, messages)
    return [
        table for size, packet in zip(sizes, messages or [], strict=False) for table in unpacked(packet[: int(size)])
    ]


def packed(tables: list[pd.DataFrame]) -> Tensor:
    """Tables as bytes: numbers as NumPy stores them, all else as JSON."""
    arrays: dict[str, np.ndarray] = {"columns": np.array(json.dumps([list(table.columns) for table in tables]))}
    for number, table in enumerate(tables):
        for place in range(table.shape[1]):
            values = table.iloc[:, place].to_numpy()
            numeric = values.dtype.kind in "biuf"
            arrays[f"{number}.{place}"] = values if numeric else np.array(json.dumps([_scalar(v) for v in values]))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpacked(message: Tensor) -> list[pd.DataFrame]:
    tables = []
    with np.load(io.BytesIO(message.numpy().tobytes()), allow_pickle=False) as arrays:
        for number, columns in enumerate(json.loads(str(arrays["columns"]))):
            table = {}
            for place, column in enumerate(columns):
                values = arrays[f"{number}.{place}"]
                table[column] = values if values.ndim else np.array([*json.loads(str(values)), None], dtype=object)[:-1]
            tables.append(pd.DataFrame(table, columns=columns))
    return tables


def _scalar(value: Any) -> Any:
    """A label as JSON has it: NaN stays NaN, so that it is written as nothing."""
    return value if isinstance(value, float) else plain(value)


def _device() -> str:
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
