"""One set over many processes: what they tell each other.

Each process of a group holds the same B sets and its own share of each set's elements. States are sums against a peak,
so the state of the whole is a maximum and a sum over the processes, and gradients are sums. A missing tensor is sent as
zeros, so that all take part in the same operations in the same order, whatever their shares are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from omniset.core.private import managed_by_fsdp
from omniset.core.states import S, wide

FACTS = ("the number of sets", "whether gradients are wanted", "the number of trainable weights", "whether to drop out")
UNKNOWN = -1


class OneProcess:
    """A set in one process: nothing to tell, so every operation returns what it was given."""

    rank, size = 0, 1

    def merge(self, state: S) -> S:
        """The state of the whole from that of this process's share."""
        return state

    def sum(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Sums over the processes, in the shapes and dtypes of `like`; None where no process has a tensor."""
        return tensors


class Processes(OneProcess):
    """The processes of a torch.distributed group.

    Args:
        group: Of which this process is a member.
        device: Of the tensors. If the group's backends do not take it (MPS), they go through host memory.

    Raises:
        ValueError: No ProcessGroup, one of other processes, or one whose backends take neither device nor host memory.
        RuntimeError: In every operation, if another process has ended or does not answer within the group's timeout.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(
                f"process_group must be a torch.distributed.ProcessGroup that has this process, got {group!r}"
            )
        backends = str(dist.get_backend_config(group))  # as "cpu:gloo,cuda:nccl"
        taken = [part.partition(":")[0] for part in backends.split(",")]
        if device.type not in taken and "cpu" not in taken:
            raise ValueError(
                f"process_group has the backends {backends!r}, and none for the encoder on {device.type!r}"
            )
        self._group = group
        self._device = device if device.type in taken else torch.device("cpu")
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def agree(self, facts: Callable[[], tuple[int, ...]], seed: int) -> int:
        """Make sure that FACTS are the same everywhere. Returns the seed of the first process.

        Raises:
            ValueError: On all processes, if they differ. On the others, if `facts` fails on one.
        """
        mine: tuple[int, ...] = (UNKNOWN,) * len(FACTS)
        try:
            mine = facts()
        finally:  # who fails tells the others first, as they would wait
            row = torch.tensor([*mine, seed], device=self._device)
            rows = [torch.empty_like(row) for _ in range(self.size)]
            with _together():
                dist.all_gather(rows, row, group=self._group)
        *columns, seeds = zip(*(row.tolist() for row in rows), strict=True)
        failed = [rank for rank, number in enumerate(columns[0]) if number == UNKNOWN]
        if failed:
            raise ValueError(f"process {failed[0]} of process_group could not read its source: see its own error")
        for fact, numbers in zip(FACTS, columns, strict=True):
            if len(set(numbers)) > 1:
                raise ValueError(
                    f"the processes of process_group must agree on {fact}, "
                    f"got {', '.join(map(str, numbers))} on processes 0 to {self.size - 1}"
                )
        return seeds[0]

    def merge(self, state: S) -> S:
        peak = state.peak
        if peak is not None:
            peak = self._all_reduce(wide(peak), dist.ReduceOp.MAX).to(peak)
        factor = state.factor(peak)
        sums = [wide(s) * factor for s in state.sums]
        return replace(state, peak=peak, sums=tuple(s for s in self.sum(sums, sums) if s is not None))

    def sum(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not like:
            return []
        # One operation for all of them, and for how many processes have each.
        parts = [wide(torch.zeros_like(o) if x is None else x).flatten() for x, o in zip(tensors, like, strict=True)]
        present = parts[0].new_tensor([x is not None for x in tensors])
        *parts, present = self._all_reduce(torch.cat([*parts, present]), dist.ReduceOp.SUM).split(
            [*(o.numel() for o in like), len(like)]
        )
        return [
            part.view(o.shape).to(o.dtype) if count else None
            for part, o, count in zip(parts, like, present.tolist(), strict=True)
        ]

    def _all_reduce(self, x: Tensor, operation: Any) -> Tensor:
        total = x.detach().to(self._device, copy=True).contiguous()
        with _together():
            dist.all_reduce(total, operation, group=self._group)
        return total.to(x.device)


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"a process of the group has ended or does not answer: {error}") from error


def check_replicated(module: nn.Module) -> None:
    """Raise ValueError if the weights are sharded over processes."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    fsdp = any(isinstance(m, FullyShardedDataParallel | FSDPModule) or managed_by_fsdp(m) for m in module.modules())
    if fsdp or any(isinstance(p, DTensor) for p in module.parameters()):
        raise ValueError(
            "process_group= needs the whole encoder on every process, and its weights are sharded (FSDP or DTensor): "
            "use DistributedDataParallel"
        )
