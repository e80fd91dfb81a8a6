"""Full self-attention over processes: each gathers the elements that the others hold, layer by layer.

Queries stay where they are; keys are the elements of all processes, in the order of the processes, in shards no longer
than a process's own. So every process holds the inputs of all its self-attention layers for the whole set, which is
what a process alone does. On the way down each adds up the gradients of all keys, and their owners get the sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from omniset.core.states import wide
from omniset.engine.group import OneProcess
from omniset.engine.self_attention import AllElements

Put = Callable[[int, Tensor, Tensor | None], None]


class Shares:
    """All elements that one layer reads, of which each process has a share.

    Args:
        group: The processes, all of which make this at the same time.
        local: Those of this process.
    """

    def __init__(self, group: OneProcess, local: AllElements) -> None:
        self.group, self.local = group, local
        shards = [*local.read()]
        self.lengths = [x.shape[1] for _, x, _ in shards]
        x = torch.cat([x.detach() for _, x, _ in shards], 1)
        m = torch.cat([m.detach() for _, _, m in shards], 1)
        shares = zip(group.gather(x), group.gather(wide(m)[..., None]), strict=True)
        # Those of this process wait in its store already.
        self.others = [None if rank == group.rank else (x, m[..., 0]) for rank, (x, m) in enumerate(shares)]
        self.places = self._places()
        self._local_shapes = x, wide(m)
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def read(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """As `AllElements.read`, of all processes."""
        shards = iter(self.local.read())
        for number, (rank, columns) in enumerate(self.places):
            share = self.others[rank]
            if share is None:
                _, x, m = next(shards)
            else:
                x, m = share[0][:, columns], share[1][:, columns]
            yield number, x, m

    def add_gradient(self, put: Put, number: int, d_x: Tensor, d_m: Tensor | None) -> None:
        """Take a part of the gradient of a shard: to `put` if it is this process's own, else until `settle`."""
        rank, columns = self.places[number]
        share = self.others[rank]
        if share is None:
            put(number - next(i for i, place in enumerate(self.places) if place[0] == rank), d_x, d_m)
            return
        if rank not in self._sums:
            self._sums[rank] = torch.zeros_like(wide(share[0])), torch.zeros_like(share[1])
        of_x, of_m = self._sums[rank]
        of_x[:, columns] += d_x
        if d_m is not None:
            of_m[:, columns] += d_m

    def settle(self, put: Put) -> None:
        """Send each process the gradients of its elements that the others have added up, all at the same time."""
        x, m = self._local_shapes
        shares = [(x, m) if share is None else share for share in self.others]
        like = [tensor for x, m in shares for tensor in (wide(x), m)]
        sums = [tensor for rank in range(self.group.size) for tensor in self._sums.get(rank, (None, None))]
        totals = self.group.sum(sums, like)
        self._sums = {}
        d_x, d_m = totals[2 * self.group.rank : 2 * self.group.rank + 2]
        if d_x is None or d_m is None:
            return
        parts = zip(d_x.to(x).split(self.lengths, 1), d_m.split(self.lengths, 1), strict=True)
        for i, (of_x, of_m) in enumerate(parts):
            put(i, of_x, of_m)

    def _places(self) -> list[tuple[int, slice]]:
        """Of every shard the process that has it, and where in its share it is."""
        longest, places = max(*self.lengths, 1), []
        for rank, share in enumerate(self.others):
            length = 0 if share is None else share[0].shape[1]
            steps = self.lengths if share is None else [longest] * (-(-length // longest))
            starts = itertools.accumulate(steps, initial=0)
            places += [(rank, slice(start, start + step)) for start, step in zip(starts, steps, strict=False)]
        return places
