"""The options of ConnectivityPredictor."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from omniset import options as shared
from omniset.options import Computing, option, options

# The methods, and why each is there: what results/regions shows of it. A test reads these.
METHODS = {
    "blend": "the default: the highest r in every table",
    "places": "the default without genes: what genes add is what the default has more",
    "attention": "what new regions read from, and part of the default",
    "ridge": "the strongest simple method of functional connectivity near known regions, and part of the default",
    "ridge-places": "what mirrored places say, most where the mirror image is known; part of the default",
    "geometry-genes": "what genes add to distance: the strongest far from known regions; part of the default",
    "boosting": "the strongest simple method of structural connectivity, and part of the default",
    "geometry": "what distance alone says, which the others add to; without places it is the mean",
    "seed": "the network that this system began with, as its document has it",
}
BASELINES = ("ridge", "ridge-places", "geometry-genes", "boosting", "geometry")  # of these, what a model must beat


@options
class PredictorOptions(Computing):
    """How a model of brain regions is made."""

    method: Literal[
        "blend", "places", "attention", "ridge", "ridge-places", "geometry-genes", "boosting", "geometry", "seed"
    ] = option(
        "blend",
        '"blend": attention to known regions, kernel ridges and boosted trees, weighed on regions held back; "places": '
        'the same without genes; "attention", "ridge", "ridge-places" (kernel ridge of mirrored places), '
        '"geometry-genes" (distance, and ridge of genes on what it leaves) or "boosting": one of the parts alone; '
        '"geometry": what distance alone says; "seed": the network whose genes attend to genes, as first described.',
    )
    _: KW_ONLY
    dim: int = shared.dim(128, 'Width of "seed"; divisible by its four heads.')
    depth: int = shared.depth(4, 'Layers of "seed".')
    cls: Literal["random", "spatial"] = option(
        "random", 'CLS token of "seed": "random", or "spatial" from the places of both regions.'
    )
    pooling: Literal["mean", "attention", "cls"] = option("mean", 'Of the tokens of "seed".')
    epochs: int = shared.epochs(100, 'Of "seed", at most.')
    learning_rate: float = shared.learning_rate(1e-3, 'Largest step size of AdamW, of "seed".')


@options
class Reading:
    """How regions and connectivity are read."""

    fisher_z: bool = option(
        False, "Connectivity is correlations: learn their inverse hyperbolic tangent.", group="data"
    )
    zero_negative: bool = option(False, "Negative connectivity counts as 0.", group="data")
    directed: bool = option(False, "Connectivity from i to j may differ from that of j to i.", group="data")
    matrix: str | None = option(None, "Array of an .npz or .mat file that is the connectivity.", group="data")
    triangle: Literal["upper", "lower"] | None = option(
        None,
        "Triangle that a vector of connectivity holds row by row: lower by nilearn and MATLAB's A(triu(...)), upper by "
        "squareform. None: its diagonal tells.",
        group="data",
    )
