"""Lightning's strategies, for processes that meet in a file and send each other nothing that could run code."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import torch.distributed
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from omniset.runs import meeting, processes


class _Closed:
    """What of a strategy opens ports and sends objects; see `omniset.runs.meeting`."""

    def setup_environment(self: Any) -> None:
        meeting.connect(self.cluster_environment.local_rank(), self.num_processes, self._get_process_group_backend())
        super().setup_environment()  # type: ignore[misc]

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return meeting.broadcast(obj, src) if torch.distributed.is_initialized() else obj


class DataParallel(_Closed, DDPStrategy):
    """Every process holds the network."""


class FullySharded(_Closed, FSDPStrategy):
    """The processes share the network out. To bring its parts together torch itself sends pickles, over NCCL."""


class TablesInTurn(_Closed, FabricDDP):
    """Every process computes some of the tables of `in_turn`."""


class _Lasting(LightningEnvironment):
    """Takes none of the variables away that say how many processes there are: another command may follow in them."""

    def teardown(self) -> None:
        pass


def environment() -> list[Any]:
    """Lightning's environment where processes meet in a file: it must ignore others that it sees, such as SLURM."""
    return [_Lasting()] if meeting.MEETING in os.environ else []


def in_turn(
    jobs: Iterable[Iterable[pd.DataFrame]], device: str, devices: int, num_nodes: int
) -> Iterator[pd.DataFrame]:
    """The tables of all jobs, in their order, for the first process; the others get none.

    Every process walks through all jobs and does each W-th of them, W their number. The tables of W jobs at a time
    are brought together: they have to fit into memory.
    """
    for name in ("lightning.fabric", "lightning.pytorch"):  # either says where it runs
        logging.getLogger(name).setLevel(logging.WARNING)
    here, nodes = processes.layout(devices, num_nodes)
    strategy = TablesInTurn(process_group_backend="gloo")  # tables are brought together in main memory
    fabric = Fabric(accelerator=device, devices=here, num_nodes=nodes, strategy=strategy, plugins=environment())
    fabric.launch()
    tables: list[pd.DataFrame] = []
    turn = 0
    for job in jobs:
        if turn == fabric.global_rank:
            tables = list(job)
        turn += 1
        if turn == fabric.world_size:
            yield from meeting.gather(tables)
            tables, turn = [], 0
    if turn:
        yield from meeting.gather(tables)
