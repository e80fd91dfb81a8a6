"""The options of SetClassifier and SetRegressor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from omniset import options as shared
from omniset.options import Computing, option, options

AUTO = "auto"
SIMPLE = ("prior", "pooled-linear", "pooled-forest", "dissimilarity-linear")  # without a network

SIZES = {"dim": 32, "depth": 2, "learning_rate": 2e-3}  # of each of several networks
SIZES_OF_ONE = {"dim": 64, "depth": 3, "learning_rate": 1e-3, "epochs": 50}


def encoders() -> list[str]:
    """Names of the set encoders."""
    from omniset.encoders import ENCODERS

    return sorted(ENCODERS)


def methods() -> list[str]:
    """What can be asked for: a mixture, one simple method, or one network."""
    return [AUTO, *SIMPLE, *encoders()]


@options
class SetOptions(Computing):
    """How a model of sets is made."""

    encoder: str | None = option(None, "The same as method, for one network with this set encoder.", choices=encoders)
    _: KW_ONLY
    method: str = option(
        AUTO,
        "auto: a forest on pooled features, a linear method on distances between sets and small networks, ust, beside "
        "each other, weighted by what each says of sets left out; of numbers also ridge on pooled features. Or one of "
        "its simple methods alone: prior, pooled-forest, dissimilarity-linear or, of numbers, pooled-linear. Or one "
        "network: ust, set-transformer-isab, set-transformer-sab, flare, deep-sets, abmil, umbc, sse, fspool or strxl.",
        choices=methods,
    )
    folds: int | None = option(
        None,
        "Parts of the sets that are left out in turn, to learn what each method is worth. None: 5, or 3 of 1,000 sets "
        "or more, dealt up to three times where sets are few; of one network, none.",
        group="training",
        least=2,
    )
    repeats: int | None = option(
        None,
        "How often the sets are dealt to folds anew. None: once, or where folds is None by the number of sets.",
        group="training",
        least=1,
    )
    dim: int | None = shared.dim(None, "Width of a network. None: 64, and 32 for each of several.")
    depth: int | None = shared.depth(None, "Set layers of a network. None: 3, and 2 for each of several.")
    num_heads: int = shared.num_heads(4)
    num_inducing: int = shared.num_inducing(8)
    encoder_options: dict[str, Any] | None = shared.encoder_options()
    epochs: int | None = shared.epochs(
        None, "How often, at most, each set is learned from. None: 50; of several networks, by the number of sets."
    )
    batch_size: int | None = shared.batch_size(
        None, "Sets per step, of all processes together. None: an eighth of the sets, 4 to 64."
    )
    learning_rate: float | None = shared.learning_rate(
        None, "Largest step size of AdamW. None: 0.001, and 0.002 for each of several networks."
    )
    weight_decay: float = shared.weight_decay(1e-2)
    validation_fraction: float | None = shared.validation_fraction(
        None,
        "Share of the sets (or groups) kept back to watch the training of one network. None: a tenth, more of fewer "
        "than 300 sets, nothing of fewer than 30.",
    )
    patience: int | None = shared.patience(10, "sets")
    class_weight: Literal["balanced"] | None = option(
        None, '"balanced": rare classes count as much as common ones. None: as they come.', group="training"
    )
    level: Literal["set", "element"] = option("set", "Whether a set or each of its elements has a label.", group="data")
    missing: Literal["error", "indicator"] = option(
        "error",
        'What a missing value in a table is: an "error", or with "indicator" replaced by the mean of its column and '
        "marked by a feature of its own.",
        group="data",
    )
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
    importance: bool | None = option(
        None,
        "Measure how much each feature matters, by permutation, on sets left out. None: of a mixture, where features "
        "times sets are at most 5,000.",
        group="training",
        changes_fit=False,
    )
    log: Literal["csv", "tensorboard"] | None = option(
        None, "Write learning curves for other tools too.", group="training", changes_fit=False
    )

    @property
    def single(self) -> str | None:
        """The encoder of the one network that learns; None: a mixture of methods does, or one that has no network."""
        if self.level == "element" and self.encoder is None and self.method == AUTO:
            return "ust"
        return self.encoder if self.method in (AUTO, *SIMPLE) else self.method

    def size(self, name: str) -> Any:
        """This option of a network as it was given, or as it is where nothing was said."""
        given = getattr(self, name)
        return (SIZES if self.single is None else SIZES_OF_ONE)[name] if given is None else given

    def fingerprint(self) -> dict[str, Any]:
        """Without how much is computed at a time where, as with the number of processes, the expected step is the same:
        where gradients are exact, what another value changes is rounding, and what dropout draws.
        """
        values = super().fingerprint()
        if self.gradient == "exact" and self.shards == "merged":
            del values["max_elements"], values["shard_size"]
        return values

    @property
    def alone(self) -> str | None:
        """The simple method that learns alone, if one does."""
        return self.method if self.method in SIMPLE else None
