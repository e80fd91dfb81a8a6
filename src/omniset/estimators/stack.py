"""Methods side by side, weighted by what each said of sets that it had not seen: `method="auto"`.

A stack has simple methods (`omniset.estimators.members`), on pooled features and on the distances of a set to those
learned from, and two ensembles of small networks: deep sets, which see each element by itself, and the Universal Set
Transformer, which sees elements in the light of the others. What it predicts is

    p = sum over methods m of  w_m p_m,

with weights, and a calibration of each p_m, from the losses of sets left out (`omniset.estimators.weights`). A method
that adds nothing gets no weight, so that the weights say what was worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor, nn

from omniset.core.sets import StoredSet
from omniset.core.sources import Source, source_of
from omniset.estimators.members import MEMBERS
from omniset.estimators.pooling import pooled
from omniset.estimators.references import References, samples_of
from omniset.estimators.simple import POOLED, Member
from omniset.estimators.weights import Mixture
from omniset.training import schema
from omniset.training.network import SetNetwork, Standardize

PRIOR, MEAN = "prior", "mean-forest"
SIMPLE = ("pooled-linear", "pooled-forest", "pooled-boosting", "dissimilarity-linear")
NETWORKS = ("deep-sets", "ust")
INTERPLAY = "ust"  # the method that sees elements in the light of others
METHODS = (PRIOR, MEAN, *SIMPLE, *NETWORKS)
BASELINES = (PRIOR, MEAN, *SIMPLE)  # without a network

SHAPES = schema.whole(
    {
        "networks": schema.OBJECT | {"additionalProperties": schema.SIZE},
        "members": schema.OBJECT | {"additionalProperties": schema.array(schema.OBJECT)},
        "references": schema.OBJECT,
    }
)

Predictions = dict[str, Float64[np.ndarray, "sets outputs"]]


class Arrays(nn.Module):
    """Named arrays among the weights of an artefact."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, array)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Arrays:
        return cls({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    @classmethod
    def empty(cls, shapes: Mapping[str, Sequence[Any]]) -> Arrays:
        """Of what `shapes` gave."""
        return cls({name: torch.zeros(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in shapes.items()})

    def shapes(self) -> dict[str, list[Any]]:
        """Type and shape of each, as JSON has them."""
        return {name: [str(a.dtype).removeprefix("torch."), [*a.shape]] for name, a in self.named_buffers()}

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: array.cpu().numpy() for name, array in self.named_buffers()}


class Stack(nn.Module):
    """Fitted methods and their weights.

    Args:
        input_dim: Features of an element.
        widths: Outputs of each target: its number of classes, or 1.
        classify: The targets are classes.
        networks: By method, the networks of its ensemble.
        members: By method, for each target the arrays of its member.
        weights, powers: (targets, methods), methods as in METHODS: how much each counts, and the power to which its
            probabilities are raised (`omniset.estimators.weights`).
        references: The arrays of the sets that others are compared with, where a method sees distances.

    Attributes:
        METHODS, MEMBERS: All methods, and the class of each that has no network.
        targets: Numbers are predicted in their own units: nothing is to be undone.
    """

    METHODS: ClassVar[Sequence[str]] = METHODS
    MEMBERS: ClassVar[Mapping[str, type[Member]]] = MEMBERS

    weights: Tensor
    powers: Tensor

    def __init__(
        self,
        input_dim: int,
        widths: Sequence[int],
        classify: bool,
        networks: Mapping[str, Sequence[SetNetwork]],
        members: Mapping[str, Sequence[Arrays]],
        weights: Float[Tensor, "targets methods"],
        powers: Float[Tensor, "targets methods"],
        references: Arrays | None = None,
    ) -> None:
        super().__init__()
        self.input_dim, self.widths, self.classify = input_dim, [*widths], classify
        self.networks = nn.ModuleDict({name: nn.ModuleList(each) for name, each in networks.items()})
        self.members = nn.ModuleDict({name: nn.ModuleList(each) for name, each in members.items()})
        self.references = Arrays({}) if references is None else references
        self.register_buffer("weights", weights)
        self.register_buffer("powers", powers)
        self.targets = Standardize(sum(widths)).double()
        self._restored: dict[str, list[Member]] = {}
        self._restored_references: References | None = None

    @classmethod
    def empty(
        cls,
        input_dim: int,
        widths: Sequence[int],
        classify: bool,
        shapes: Mapping[str, Any],
        network: Callable[[str], SetNetwork],
    ) -> Stack:
        """A stack for weights that are stored: of what `shapes` gave, its networks made by network(method)."""
        networks = {name: [network(name) for _ in range(number)] for name, number in shapes["networks"].items()}
        members = {name: [Arrays.empty(one) for one in each] for name, each in shapes["members"].items()}
        # Not ones_like, for which PyTorch imports its symbolic shapes where weights are to have no memory.
        shape = len(widths), len(cls.METHODS)
        weights, powers = torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
        references = Arrays.empty(shapes["references"])
        return cls(input_dim, widths, classify, networks, members, weights, powers, references)

    def split(self, outputs: Float[Tensor, "rows outputs"]) -> tuple[Tensor, ...]:
        """The outputs of each target."""
        return outputs.split(self.widths, 1)

    def weights_of(self, target: int) -> dict[str, float]:
        """Of each method, for the target of this number; they sum to 1."""
        return dict(zip(self.METHODS, self.weights[target].tolist(), strict=True))

    def shapes(self) -> dict[str, Any]:
        """What is needed to build a stack that holds the weights of this one, as JSON has it."""
        networks: Any = self.networks
        members: Any = self.members
        return {
            "networks": {name: len(each) for name, each in networks.items()},
            "members": {name: [one.shapes() for one in each] for name, each in members.items()},
            "references": self.references.shapes(),
        }

    def predictions(
        self,
        group: Sequence[StoredSet],
        device: torch.device,
        methods: Sequence[str] | None = None,
        **reading: Any,
    ) -> Predictions:
        """What methods say of some sets: probabilities of the classes, target by target, or numbers.

        Args:
            methods: Default: all.
            reading: max_elements, shard_size, shards and store: how the networks read the sets.
        """
        methods = [name for name in self.METHODS if (methods is None or name in methods) and self.has(name)]
        simple = [name for name in methods if self.sees_pooled(name)]
        answers = self.of_table(pooled(group), simple) if simple else {}
        return answers | self.of_sets(group, device, [name for name in methods if name not in simple], **reading)

    def has(self, name: str) -> bool:
        """Whether the stack has this method: a fitted member, or networks."""
        return name in self.members or name in self.networks

    def sees_pooled(self, name: str) -> bool:
        """Whether a method sees nothing of a set but its pooled features."""
        return name in self.members and self.MEMBERS[name].sees == POOLED

    def of_table(self, table: Float32[np.ndarray, "sets columns"], methods: Sequence[str]) -> Predictions:
        """What simple methods say of the table that they see."""
        answers: Predictions = {}
        for name in methods:
            columns = [member.predict(table) for member in self._members(name)]
            answers[name] = np.concatenate([c.reshape(len(table), -1) for c in columns], 1).astype(np.float64)
        return answers

    def of_sets(
        self, group: Sequence[StoredSet], device: torch.device, methods: Sequence[str], **reading: Any
    ) -> Predictions:
        """What methods say that see more of sets than pooled features: networks, and those that see distances."""
        simple = [name for name in methods if name in self.members]
        answers: Predictions = {}
        if simple:
            references = self._references()
            answers = self.of_table(references.distances(samples_of(group, references.seen)), simple)
        for name in methods:
            if name in self.networks:
                networks: Any = self.networks[name]
                answers[name] = ensemble_outputs([*networks], group, device, **reading).mean(0)
        return answers

    def seen(self, name: str, group: Sequence[StoredSet]) -> Float32[np.ndarray, "sets seen"]:
        """What a simple method looks at of some sets."""
        if self.sees_pooled(name):
            table = pooled(group)
        else:
            references = self._references()
            table = references.distances(samples_of(group, references.seen))
        return self._members(name)[0].inputs(table)

    @property
    def number_of_references(self) -> int:
        """Sets that others are compared with."""
        return len(self._references())

    def mixed(self, answers: Predictions) -> Float64[Tensor, "sets outputs"]:
        """The outputs of the stack from those of its methods: logarithms of probabilities, or numbers."""
        names = [name for name in self.METHODS if name in answers]
        columns = [self.METHODS.index(name) for name in names]
        parts = []
        for target, part in enumerate(columns_of_targets(self.widths)):
            weights, powers = (of[target, columns].cpu().numpy() for of in (self.weights, self.powers))
            each = np.stack([answers[name][:, part] for name in names])
            mixed = Mixture(weights, powers)(each if self.classify else each[..., 0])
            parts.append(mixed.reshape(len(each[0]), -1))
        mixture = torch.from_numpy(np.concatenate(parts, 1))
        return mixture.clamp(min=1e-300).log() if self.classify else mixture

    def outputs(
        self, group: Sequence[StoredSet], device: torch.device, **reading: Any
    ) -> Float64[Tensor, "sets outputs"]:
        """What the stack says of some sets, by the methods that have weight."""
        return self.mixed(self.predictions(group, device, self.weighed(), **reading))

    def weighed(self) -> list[str]:
        """The methods that have weight for any target."""
        return [name for name, some in zip(self.METHODS, (self.weights > 0).any(0).tolist(), strict=True) if some]

    def _references(self) -> References:
        if self._restored_references is None:
            self._restored_references = References.restored(self.references.arrays())
        return self._restored_references

    def _members(self, name: str) -> list[Member]:
        if name not in self._restored:
            classes = [width if self.classify else None for width in self.widths]
            arrays: Any = self.members[name]
            self._restored[name] = [
                self.MEMBERS[name](k).restore(one.arrays()) for k, one in zip(classes, arrays, strict=True)
            ]
        return self._restored[name]


def columns_of_targets(widths: Sequence[int]) -> list[slice]:
    """The outputs of each target."""
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *widths]).tolist())]


def ensemble_outputs(
    networks: Sequence[SetNetwork],
    group: Sequence[StoredSet],
    device: torch.device,
    max_elements: int,
    shard_size: int | None = None,
    **options: Any,
) -> Float64[np.ndarray, "networks sets outputs"]:
    """What each network says of some sets: probabilities, or numbers in their own units. Sets are read once."""
    source = source_of([*group], max_elements, shard_size)
    each = []
    with torch.no_grad():
        for network in networks:
            network.to(device)
            if isinstance(source, Source):
                out = network.of_large(source, shard_size=shard_size, **options)
            else:
                out = network(source.to(device), shard_size=shard_size, **options)
            network.to("cpu")
            each.append(probable(network, out.cpu()))
    return np.stack(each)


def probable(network: SetNetwork, outputs: Float[Tensor, "sets outputs"]) -> Float64[np.ndarray, "sets outputs"]:
    """Probabilities of the classes of each target, or numbers in their own units."""
    if max(network.widths) == 1:
        return network.targets.undo(outputs).double().numpy()
    return torch.cat([part.double().softmax(1) for part in network.split(outputs)], 1).numpy()
