"""Several networks of one architecture, which differ in their seeds, computed at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


class Ensemble(nn.Module):
    """Networks whose parameters lie stacked, (networks, ...), and go through one `torch.func.vmap`.

    No network sees another: the gradient of the sum of their losses is, for each, that of its own loss. What draws
    random numbers in the forward (dropout, random slots) draws others than a network alone would, and the exact
    gradient of shards cannot be stacked. One network is not stacked at all, and can do both.

    Args:
        networks: At least one. Their parameters and buffers are copied.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        if not networks:
            raise ValueError("networks is empty: an ensemble has at least one")
        self.size = len(networks)
        self.only = copy.deepcopy(networks[0]) if self.size == 1 else None
        if self.only is None:
            parameters, buffers = stack_module_state([*networks])
            self.names, self.buffer_names = [*parameters], [*buffers]
            self.stacked = nn.ParameterList(parameters.values())
            for number, buffer in enumerate(buffers.values()):
                self.register_buffer(f"buffer_{number}", buffer)
            # In a tuple, so that its own parameters, which hold nothing, are not among the ensemble's.
            self._skeleton = (copy.deepcopy(networks[0]).to("meta"),)

    def forward(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """function(network, *inputs of one network) for each of them, stacked.

        Args:
            function: Calls the network it is given as often as it wants and returns a tensor.
            inputs: (networks, ...) each.
        """
        if self.only is not None:
            return function(self.only, *(x[0] for x in inputs))[None]
        skeleton = self._skeleton[0].train(self.training)

        def one(state: dict[str, Tensor], *mine: Tensor) -> Tensor:
            def network(*arguments: Any, **options: Any) -> Any:
                return functional_call(skeleton, state, arguments, options)

            return function(network, *mine)

        return vmap(one, randomness="different")(self._state(), *inputs)

    def _state(self) -> dict[str, Tensor]:
        buffers = (self.get_buffer(f"buffer_{number}") for number in range(len(self.buffer_names)))
        return dict(zip((*self.names, *self.buffer_names), (*self.stacked, *buffers), strict=True))

    def states(self) -> dict[str, Tensor]:
        """The state dicts of all networks, stacked: each value (networks, ...)."""
        if self.only is not None:
            return {name: value.detach()[None].clone() for name, value in self.only.state_dict().items()}
        return {name: value.detach().clone() for name, value in self._state().items()}


def keep_best(old: dict[str, Tensor], new: dict[str, Tensor], better: Tensor) -> dict[str, Tensor]:
    """Of each network the new state where it is better, (networks,), else the kept one."""
    better_in = {name: better.view(-1, *[1] * (value.dim() - 1)) for name, value in new.items()}
    return {name: torch.where(better_in[name], value, old[name]) for name, value in new.items()}
