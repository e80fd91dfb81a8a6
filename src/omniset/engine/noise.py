"""Randomness that is the same whenever a shard is computed: dropout masks are replayed, random slots drawn once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from omniset.core.states import State
from omniset.engine.stages import Stage, Wrapper

STRIDE = 1_000_003  # seed distance between stages; above any number of shards, so no two masks share a seed
RANK_STRIDE = 0x9E3779B9  # on the CPU only 32 bits of a seed count
DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout


def drops_out(encoder: nn.Module) -> bool:
    """Whether a dropout module of PyTorch is active: other randomness (F.dropout, say) is not seen, nor replayed."""
    return any(isinstance(m, DROPOUTS) and m.p > 0 and m.training for m in encoder.modules())


def draw_seed() -> int:
    return int(torch.randint(2**40, ()))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """With random numbers from this seed; those outside go on as if nothing had been drawn."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def resumed(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """With the random numbers that followed this state; those outside go on as if nothing had been drawn."""
    cpu, cuda = state
    with torch.random.fork_rng([] if cuda is None else [device]):
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        yield


class ReplayedDropout(Wrapper):
    """Every mask is determined by the seed of the run, the stage, and the shard: in finish by no shard.

    The seeds of map count up from that of the run, those of reduce down.

    Args:
        seed: Of the run, common to all processes of a group: they finish a state alike.
        rank: Of the process: each has shards of its own.
    """

    def __init__(self, stage: Stage, t: int, seed: int, rank: int, device: torch.device) -> None:
        super().__init__(stage)
        self.finish_seed, self.device = seed + t * STRIDE, device
        self.map_seed, self.reduce_seed = (seed + rank * RANK_STRIDE + up * (t * STRIDE + 1) for up in (1, -1))

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        with seeded(self.map_seed + i, self.device):
            return super().map(i, x, context)

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        with seeded(self.reduce_seed - i, self.device):
            return super().reduce(i, x, m, peak)

    def finish(self, state: State | None) -> Tensor | None:
        with seeded(self.finish_seed, self.device):
            return super().finish(state)


class DrawnOnce(Wrapper):
    """Reduce and finish of all shards have the same random numbers (`SetLayer.draw`): random slots."""

    def __init__(self, stage: Stage, layer: Any, drawn: Tensor) -> None:
        super().__init__(stage)
        self.layer, self.drawn = layer, drawn

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        with self.layer.holding(self.drawn):
            return super().reduce(i, x, m, peak)

    def finish(self, state: State | None) -> Tensor | None:
        with self.layer.holding(self.drawn):
            return super().finish(state)
