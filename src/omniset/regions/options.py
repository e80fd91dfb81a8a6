"""The options of ConnectivityPredictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Literal

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class PredictorOptions(Computing):
    """How a model of brain regions is made."""

    architecture: Literal["multiset", "seed", "concat"] = option(
        "multiset",
        'Network: "multiset", regions that attend to the set of known regions; "seed", genes that attend to genes as '
        'first described; or "concat", each region by itself, then both.',
    )
    method: str | None = option(
        None,
        'None: "blend" (attention to known regions, kernel ridge and boosted trees) for "multiset", else the network '
        'alone. Or "blend-position" (the same of places alone), "no-attention" (the blend without its network), '
        '"attention" or "attention-position" (the network alone), or a baseline: distance, geometry, copy, cge, '
        "gaussian, ridge-genes, ridge-position, ridge, boosting-genes, boosting-position, boosting, bilinear, "
        "mlp-position or mlp.",
    )
    _: KW_ONLY
    held_out: Literal["bilateral", "spatial", "random"] = option(
        "bilateral",
        "How regions are held back to choose by and to learn to predict: as those will be that are new. "
        '"bilateral": a neighbourhood and its mirror image; "spatial": a neighbourhood; "random": any regions.',
    )
    num_heads: int | None = option(None, 'Attention heads. None: 8; for "seed" and "concat" 4.', least=1)
    components: int = option(16, 'Principal components of expression that "multiset" knows regions by.', least=1)
    steps: int = option(60, 'Episodes that "multiset" learns from, a step each.', group="training", least=1)
    dim: int = shared.dim(128, 'Width of "seed" and "concat"; divisible by num_heads.')
    depth: int = shared.depth(4, 'Layers of "seed" and "concat".')
    cls: Literal["random", "spatial"] = option(
        "random", 'CLS token of "seed": "random", or "spatial" from the places of both regions.'
    )
    pooling: Literal["mean", "attention", "cls"] = option("mean", 'Of "seed" and "concat".')
    bins: int = option(5, 'Of expression, in "seed" and "concat".', least=2)
    dropout: float = option(0.1, 'In training of "seed" and "concat".', group="training", least=0, below=1)
    epochs: int = shared.epochs(100, 'Of "seed" and "concat", at most.')
    batch_size: int | None = shared.batch_size(
        None,
        'Regions per step, all of whose pairs are learned from. None: 200; for "seed" and "concat" 23.',
        least=2,
    )
    learning_rate: float | None = shared.learning_rate(
        None, 'Largest step size of Adam. None: 0.05; for "seed" and "concat" 0.001.'
    )
    weight_decay: float = option(
        1e-2, 'Pull of the weights of "seed" and "concat" towards zero.', group="training", least=0, most=1e9
    )
    symmetry: float = option(
        0.1, 'Weight of the mean of (f(i, j) - f(j, i))^2 in "seed" and "concat".', group="training", least=0
    )


@options
class Reading:
    """How regions and connectivity are read."""

    fisher_z: bool = option(
        False, "Connectivity is correlations: learn their inverse hyperbolic tangent.", group="data"
    )
    zero_negative: bool = option(False, "Negative connectivity counts as 0.", group="data")
    directed: bool = option(False, "Connectivity from i to j may differ from that of j to i.", group="data")
    only: Sequence[str] | None = option(
        None,
        "Regions of one part of the brain: left or right, cortex or subcortex, or one of either. None: all regions.",
        group="data",
    )
