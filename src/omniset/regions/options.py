"""The options of ConnectivityPredictor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class PredictorOptions(Computing):
    """How a model of brain regions is made."""

    architecture: Literal["multiset", "seed", "concat"] = option(
        "multiset",
        'Network: "multiset"; "seed", genes that attend to genes as first described; or "concat", each region by '
        "itself, then both.",
    )
    method: str | None = option(
        None,
        'None: "blend" (distance, kernel ridge, boosted trees and the network) for "multiset", else the network alone. '
        'Or "no-attention" (the blend without its network), "attention" (the network alone), or a baseline: distance, '
        "cge, gaussian, ridge-genes, ridge-position, ridge, boosting-genes, boosting-position, boosting, bilinear or "
        "mlp.",
    )
    _: KW_ONLY
    dim: int | None = shared.dim(None, 'Width of the network. None: 32; for "seed" and "concat" 128.')
    depth: int = shared.depth(4, 'Layers of "seed" and "concat".')
    num_heads: int = shared.num_heads(4)
    num_queries: int = option(1, 'Vectors that "multiset" pools a region to.', least=1)
    axes: int = option(16, 'Principal axes of expression on which the tokens of "multiset" lie.', least=1)
    cls: Literal["random", "spatial"] = option(
        "random", 'CLS token of "seed": "random", or "spatial" from the places of both regions.'
    )
    pooling: Literal["mean", "attention", "cls"] = option("mean", 'Of "seed" and "concat".')
    bins: int = option(5, 'Of expression, in "seed" and "concat".', least=2)
    dropout: float = option(0.1, "In training.", group="training", least=0, below=1)
    seen: int = option(
        128,
        'Genes that a step of training of "multiset" sees, drawn anew each time.',
        group="training",
        least=1,
    )
    steps: int = option(
        150,
        'Of the optimiser, for "multiset", or some more: ten epochs of whole passes over the regions.',
        group="training",
        least=1,
    )
    epochs: int = shared.epochs(100, 'Of "seed" and "concat", at most.')
    batch_size: int | None = shared.batch_size(
        None,
        'Regions per step, all of whose pairs are learned from. None: 40; for "seed" and "concat" 23.',
        least=2,
    )
    learning_rate: float | None = shared.learning_rate(
        None, 'Largest step size of AdamW. None: 0.002; for "seed" and "concat" 0.001.'
    )
    weight_decay: float = shared.weight_decay(1e-2)
    symmetry: float = option(
        0.1, 'Weight of the mean of (f(i, j) - f(j, i))^2 in "seed" and "concat".', group="training", least=0
    )


@options
class Reading:
    """How connectivity is read."""

    fisher_z: bool = option(
        False, "Connectivity is correlations: learn their inverse hyperbolic tangent.", group="data"
    )
    zero_negative: bool = option(False, "Negative connectivity counts as 0.", group="data")
    directed: bool = option(False, "Connectivity from i to j may differ from that of j to i.", group="data")
