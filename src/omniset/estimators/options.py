"""The options of SetClassifier and SetRegressor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class SetOptions(Computing):
    """How a model of sets is made."""

    encoder: str = shared.encoder(
        "ust",
        "Kind of model: ust, set-transformer-isab, set-transformer-sab, deep-sets, abmil, dsmil, umbc, sse, fspool or "
        "strxl.",
    )
    _: KW_ONLY
    dim: int = shared.dim(64)
    depth: int = shared.depth(3)
    num_heads: int = shared.num_heads(4)
    num_inducing: int = shared.num_inducing(8)
    encoder_options: dict[str, Any] | None = shared.encoder_options()
    epochs: int = shared.epochs(50, "How often, at most, each set is learned from.")
    batch_size: int = shared.batch_size(64, "Sets per step, of all processes together.")
    learning_rate: float = shared.learning_rate(1e-3)
    weight_decay: float = shared.weight_decay(1e-2)
    validation_fraction: float = shared.validation_fraction(
        0.1, "Share of the sets (or groups) kept back to watch the training."
    )
    patience: int | None = shared.patience(10, "sets")
    class_weight: Literal["balanced"] | None = option(
        None, '"balanced": rare classes count as much as common ones. None: as they come.', group="training"
    )
    level: Literal["set", "element"] = option("set", "Whether a set or each of its elements has a label.", group="data")
    shard_size: int | None = option(
        None,
        "Compute on pieces of so many elements of each set, drawn at random in training. None: whole sets.",
        group="computing",
        least=1,
    )
    shards: Literal["merged", "independent"] = option(
        "merged",
        '"merged": pieces give the result of the whole set. "independent": take pieces for sets of their own.',
        group="computing",
    )
    gradient: Literal["exact", "first-shard", "first-shard-literal", "unbiased"] = option(
        "exact", 'How to learn from pieces; "exact" is as from whole sets.', group="computing"
    )
    store: str = option(
        "device",
        "Where intermediate results of pieces wait: device, cpu, disk (or disk:FOLDER) or recompute.",
        group="computing",
        changes_fit=False,
    )
    max_elements: int = option(
        32768,
        "Elements computed on at a time, padding included: lower it if memory runs out. Larger sets are streamed, with "
        "the same gradient.",
        group="computing",
        least=1,
    )
    devices: int = option(
        1,
        "Processes that train together on this machine: GPUs, or parts of the CPU (at most 4 per processor). They take "
        "the same steps as one alone.",
        group="computing",
        least=1,
        changes_fit=False,
    )
    num_nodes: int = option(
        1,
        "Machines that train together: start the command on each with torchrun or srun, on the same files.",
        group="computing",
        least=1,
        changes_fit=False,
    )
    strategy: Literal["auto", "ddp", "fsdp"] = option(
        "auto",
        '"ddp": each process holds the model. "fsdp": they share it out, on GPUs. "auto": ddp.',
        group="computing",
        changes_fit=False,
    )
    log: Literal["csv", "tensorboard"] | None = option(
        None, "Write learning curves for other tools too.", group="training", changes_fit=False
    )
