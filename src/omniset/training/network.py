"""An encoder with a head: what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from omniset.core.sets import SetBatch, Sets
from omniset.core.sources import Source
from omniset.encoders import Encoder

VALUES = 1 << 22  # features that statistics are taken of at a time


class Standardize(nn.Module):
    """(x - shift) / scale, fitted once on training data and stored with the weights."""

    shift: Float[Tensor, " dim"]
    scale: Float[Tensor, " dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def fit(self, blocks: Iterable[tuple[Float[Tensor, "rows dim"], Float[Tensor, " rows"]]]) -> Bool[Tensor, " dim"]:
        """Weighted mean and standard deviation per column; constant columns are only shifted.

        Args:
            blocks: Rows and their weights, piece by piece; read twice.

        Returns:
            Which columns are constant.
        """
        total = float(sum(w.double().sum() for _, w in blocks))
        if total <= 0:
            return torch.zeros_like(self.shift, dtype=torch.bool)
        mean, square = torch.zeros_like(self.shift).double(), torch.zeros_like(self.shift).double()
        for x, w in blocks:
            mean += (w[:, None].double() * x.double()).sum(0) / total
        for x, w in blocks:
            square += (w[:, None].double() * (x.double() - mean).square()).sum(0)
        deviation = (square / total).sqrt()
        self.shift.copy_(mean)
        varies = deviation > 1e-6 * mean.abs().clamp(min=1e-30)
        self.scale.copy_(torch.where(varies, deviation, 1))
        return ~varies

    def forward(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return (x - self.shift).div_(self.scale)

    def undo(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return x * self.scale + self.shift


class SetNetwork(nn.Module):
    """Standardised features, encoder, and one Linear from the summary (or from each element) to the outputs.

    Args:
        widths: Outputs of each target: its number of classes, or 1. Outputs are logits, or targets standardised by
            `targets`.
        of_elements: Outputs for every element instead of the set.

    Raises:
        ValueError: Outputs for elements from an encoder that has none.
    """

    def __init__(self, encoder: Encoder, widths: list[int], of_elements: bool = False) -> None:
        super().__init__()
        if of_elements and not encoder.outputs_elements:
            raise ValueError(
                f"{type(encoder).__name__} has no output for each element: labels of elements need another"
            )
        # As its first input layer the encoder standardises shard by shard, whatever source it reads.
        encoder.embed = nn.Sequential(Standardize(encoder.input_dim), encoder.embed)
        self.encoder, self.widths, self.of_elements = encoder, widths, of_elements
        self.head = nn.Linear(encoder.dim if of_elements else encoder.num_outputs * encoder.dim, sum(widths))
        self.targets = Standardize(sum(widths))
        if of_elements:  # freeze what outputs ignore: several processes would wait for its gradient
            for module in filter(None, (encoder.pool, encoder.decoder)):
                module.requires_grad_(False)

    @property
    def input_dim(self) -> int:
        """Features of an element."""
        return self.encoder.input_dim

    def forward(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "sets ..."]:
        """(B, outputs), or, for elements of a SetBatch, (B, N, outputs)."""
        out = self.encoder(source, **options)
        return self.head(out.elements if self.of_elements else out.summary.flatten(1))

    def summary(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "sets width"]:
        """What the head reads of each set, width num_outputs * dim. A set that is read shard by shard comes alone."""
        options = self.for_large(options) if isinstance(source, Source) else options
        return self.encoder(source, **options).summary.flatten(1)

    @property
    def summary_dim(self) -> int:
        """Numbers of a summary."""
        return self.encoder.num_outputs * self.encoder.dim

    def split(self, outputs: Float[Tensor, "rows outputs"]) -> tuple[Tensor, ...]:
        """The outputs of each target."""
        return outputs.split(self.widths, 1)

    def of_parts(self, parts: list[Any], max_elements: int, **options: Any) -> Float[Tensor, "rows outputs"]:
        """A batch that comes in parts (omniset.training.sets.Part): rows in the order of its sets.

        Where there are several parts, one is kept for the backward at a time, and the others computed again. Of no
        parts there are no rows, with gradients of 0.
        """
        if not parts:
            trained: list[Tensor] = [p for p in self.parameters() if p.requires_grad]
            trained = trained or [self.head.weight]  # FSDP hides parameters
            return (0 * torch.stack([p.sum() for p in trained]).sum()).expand(0, sum(self.widths))
        rows: dict[int, Tensor] = {}
        for source, positions, sizes in parts:
            if isinstance(source, Source):
                out = self.of_large(source, **options)
            elif len(sizes) == 1 and sizes[0] > max_elements and options.get("shard_size") is None:
                out = self(source, **{**options, "shard_size": max_elements, "store": self.store_of_large(options)})
            elif len(parts) > 1 and torch.is_grad_enabled() and options.get("shard_size") is None:
                out = checkpoint(self, source, use_reentrant=False, **options)
            else:
                out = self(source, **options)
            for row, (position, size) in enumerate(zip(positions, sizes, strict=True)):
                rows[position] = out[row, :size] if self.of_elements else out[row : row + 1]
        return torch.cat([rows[position] for position in sorted(rows)])

    def of_large(self, source: Source, **options: Any) -> Float[Tensor, "one outputs"]:
        """The outputs of one set that is read shard by shard."""
        if options.get("gradient", "exact") != "exact" and torch.is_grad_enabled():
            size = sum(shard.elements.shape[1] for shard in source)
            raise ValueError(
                f"gradient={options['gradient']!r} needs random shards, and a set of {size} elements is "
                f"read in its own order: raise max_elements above {size}, or take gradient='exact'"
            )
        return self(source, **self.for_large(options))

    def for_large(self, options: dict[str, Any]) -> dict[str, Any]:
        """How the encoder reads one set that comes shard by shard."""
        return {**options, "shard_size": None, "store": self.store_of_large(options)}

    def store_of_large(self, options: dict[str, Any]) -> str:
        """Layer inputs of a large set wait on disk rather than in memory, where the encoder can."""
        store = options.get("store", "device")
        streams = not any(layer.keeps_elements for layer in self.encoder.layers)
        return "disk" if store == "device" and streams else store

    def fit_features(self, sets: Sets, which: Int[np.ndarray, " chosen"]) -> Bool[Tensor, " dim"]:
        """Fit the standardisation of features to these sets, every element counted by its multiplicity.

        Returns:
            Which features are constant.
        """
        embed: Any = self.encoder.embed
        constant: Bool[Tensor, " dim"] = embed[0].fit(_Blocks(sets[which]))
        return constant

    def fit_targets(self, values: Float[Tensor, "rows targets"]) -> None:
        """Fit the standardisation of numbers to be predicted, each column where it is not NaN."""
        for number, column in enumerate(values.T):
            known = column[column.isfinite()]
            one = Standardize(1)
            one.fit([(known[:, None], torch.ones(len(known)))])
            self.targets.shift[number], self.targets.scale[number] = one.shift[0], one.scale[0]


class _Blocks:
    """All elements, in blocks of bounded size, as often as they are asked for."""

    def __init__(self, sets: Sets) -> None:
        self.sets = sets

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.sets.blocks(max(VALUES // self.sets.dim, 1))
