"""Lightning's strategies, for processes that meet in a file and send each other nothing that could run code."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

from omniset.runs import processes


class _Closed:
    """What of a strategy opens ports and sends objects; see `omniset.runs.processes`."""

    def setup_environment(self: Any) -> None:
        processes.connect(self.cluster_environment.local_rank(), self.num_processes, self._get_process_group_backend())
        super().setup_environment()  # type: ignore[misc]

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return processes.broadcast(obj, src) if torch.distributed.is_initialized() else obj


class DataParallel(_Closed, DDPStrategy):
    """Every process holds the network."""


class FullySharded(_Closed, FSDPStrategy):
    """The processes share the network out. To bring its parts together torch itself sends pickles, over NCCL."""


class TablesInTurn(_Closed, FabricDDP):
    """Every process computes some of the tables of `processes.in_turn`."""


def environment() -> list[Any]:
    """Lightning's environment where processes meet in a file: it must ignore others that it sees, such as SLURM."""
    return [LightningEnvironment()] if processes.MEETING in os.environ else []
