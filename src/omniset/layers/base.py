"""What every set layer is (a reduce and a map), and the parts that several layers share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.states import State

Elements = Float[Tensor, "sets elements dim"]
Multiplicity = Shaped[Tensor, "sets elements"]


class SetLayer(nn.Module):
    """reduce: elements -> state; finish: state -> context; map: (element, context) -> element.

    The states of shards are merged (`State.merge`), so a layer never needs the whole set at once. A layer that only
    pools has no `map`; its context is its result. A layer with `keeps_elements` has no small state: its context is
    all elements (full self-attention), which the engine streams past every shard of queries.

    The backward through shards computes each method again, so nothing in them may be random but PyTorch's dropout
    modules, whose masks the engine replays, and what `draw` has drawn.
    """

    keeps_elements = False

    def draw(self) -> Tensor | None:
        """Random numbers that reduce and finish need, the same ones for all shards of a set; None if they need none."""
        return None

    def holding(self, drawn: Tensor | None) -> AbstractContextManager[None]:
        """Inside this block, reduce and finish use `drawn`."""
        return nullcontext()

    def reduce(self, elements: Elements, multiplicity: Multiplicity, peak: Tensor | None = None) -> State:
        """Sum up these elements, measured against their own peak or a given one."""
        raise TypeError(f"{type(self).__name__} does not reduce")

    def finish(self, state: State) -> Float[Tensor, "sets k dim"]:
        """Turn the state of the whole set into the context, k vectors per set."""
        raise TypeError(f"{type(self).__name__} does not finish states")

    def map(self, elements: Elements, context: Any) -> Elements:
        """Map every element by itself, given the context."""
        raise TypeError(f"{type(self).__name__} does not map elements")

    def context(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Float[Tensor, "sets k dim"]:
        """`finish(reduce(elements, multiplicity))` of whole sets, which a layer may compute in another way where all
        elements are here. Without multiplicities each is there once.
        """
        if multiplicity is None:
            multiplicity = elements.new_ones(elements.shape[:2])
        with self.holding(self.draw()):
            return self.finish(self.reduce(elements, multiplicity))

    def mapped(self, elements: Elements, multiplicity: Multiplicity | None = None) -> tuple[Elements, Any]:
        """What whole sets are mapped to, and the context."""
        context = self.context(elements, multiplicity)
        return self.map(elements, context), context

    def forward(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Float[Tensor, "sets rows dim"]:
        """The layer on whole sets: their elements mapped, or, of a layer that only pools, the context."""
        if type(self).map is SetLayer.map:
            return self.context(elements, multiplicity)
        return self.mapped(elements, multiplicity)[0]


ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def activation_layer(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


def feed_forward(dim: int, ffn_dim: int, dropout: float, activation: str, hidden_dropout: float = 0.0) -> nn.Sequential:
    """Linear(dim, ffn_dim), activation, hidden dropout, Linear(ffn_dim, dim), dropout."""
    between = activation_layer(activation)
    if hidden_dropout:  # in one place with the activation, so that weights have the same names with and without it
        between = nn.Sequential(between, nn.Dropout(hidden_dropout))
    return nn.Sequential(nn.Linear(dim, ffn_dim), between, nn.Linear(ffn_dim, dim), nn.Dropout(dropout))
