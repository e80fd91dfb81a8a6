"""Weights of the package universal-set-transformers, by the author of the Universal Set Transformer paper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxtyping import Shaped
from torch import Tensor, nn

from omniset.encoders.base import AttentionEncoder
from omniset.encoders.set_transformer import SetTransformer, UniversalSetTransformer

Weights = Mapping[str, Shaped[Tensor, "..."]]

# Our names and those of that package, part by part.
NAMES = {
    r"^layers\.(\d+)\.gather": r"encoder.layers.\1.mab1",
    r"^layers\.(\d+)\.spread": r"encoder.layers.\1.mab2",
    r"^layers\.(\d+)\.block\.norm_queries": r"encoder.layers.\1.norm1",
    r"^layers\.(\d+)\.block\.norm_ffn": r"encoder.layers.\1.norm2",
    r"^layers\.(\d+)\.(block\.)?": r"encoder.layers.\1.",
    r"^pool\.gather": "pooler.mab",
    r"^pool\.": "pooler.",
    r"\.points$": ".slots.slots",
    r"\.query\.": ".attention.wq.",
    r"\.key\.": ".attention.wk.",
    r"\.value\.": ".attention.wv.",
    r"\.output\.": ".attention.wo.",
    r"\.(element_)?ffn\.0\.": ".linear1.",
    r"\.(element_)?ffn\.2\.": ".linear2.",
    r"\.norm_queries\.": ".norm_x.",
    r"\.norm_elements\.": ".pre_norm_y.",
}

OPTIONS = {"activation", "dropout", "hidden_dropout"}  # what no weight tells, beside num_heads


def from_author(
    state_dict: Weights, *, num_heads: int, input_dim: int | None = None, embed: nn.Module | None = None, **options: Any
) -> AttentionEncoder:
    """The encoder and the pooler of a `SetTransformerModel` of the package universal-set-transformers (0.3.0).

    Layers of that package are InducedSetAttentionBlock (here an encoder "ust") or SetAttentionBlock
    ("set-transformer-sab"), the pooler is PoolingByMultiheadSetAttention; all with norm_first and learned slots, as
    they are by default. On the same sets the result computes the same (`variant="author"`).

    Args:
        state_dict: Of the model, with the names `encoder.layers...` and `pooler...`. What it has beside them, as a
            preprocessor or a decoder, is the user's own and has to be left out.
        num_heads: Of the model; no weight tells it. All networks of the paper have 4.
        input_dim: Features of an element that `embed` takes. None: the width.
        embed: Turns elements into features, in place of a preprocessor: `omniset.encoders.build`. None: elements are
            features already.
        **options: dropout, hidden_dropout and activation, where they are not those of
            `variant="author"`. No weight tells them; nor does one tell a model that has the package's
            ScaledDotProductSigmoidSetAttention, which there is no encoder for here.

    Raises:
        TypeError: A state_dict that is no mapping; an option that the weights decide, or an unknown one.
        ValueError: Names or shapes that are not of these blocks.

    >>> from_author({}, num_heads=4)
    Traceback (most recent call last):
    ...
    ValueError: state_dict has no 'pooler.mab.attention.wq.weight'
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be what model.state_dict() gives, got {type(state_dict).__name__}")
    if unknown := sorted(set(options) - OPTIONS):
        raise TypeError(f"from_author does not take {unknown[0]}; it takes {', '.join(sorted(OPTIONS))}")
    dim = _shape(state_dict, "pool.gather.query.weight")[1]
    depth = len({name.split(".")[2] for name in state_dict if re.match(r"encoder\.layers\.\d+\.", name)})
    arguments = options | {
        "variant": "author",
        "input_dim": dim if input_dim is None else input_dim,
        "dim": dim,
        "depth": depth,
        "num_heads": num_heads,
        "num_outputs": _shape(state_dict, "pool.points")[1],
        "input_layers": 0 if embed is None else 1,
        "ffn_dim": _shape(state_dict, "pool.gather.ffn.0.weight")[0],
        "element_ffn_dim": _shape(state_dict, "pool.element_ffn.0.weight")[0],
    }
    encoder: AttentionEncoder
    if any(".mab1." in name for name in state_dict):
        encoder = UniversalSetTransformer(num_inducing=_shape(state_dict, "layers.0.points")[1], **arguments)
    else:
        encoder = SetTransformer(**arguments)
    expected = {n: v for n, v in encoder.state_dict().items() if not n.startswith("embed.")}
    theirs = {_their_name(name): name for name in expected}
    if extra := sorted(set(state_dict) - set(theirs)):
        raise ValueError(f"state_dict has {extra[0]!r}, which is of no such layer or pooler: leave out what is not")
    for name, ours in theirs.items():
        shape = _shape(state_dict, ours)
        if shape != expected[ours].shape:
            raise ValueError(
                f"{name!r} of state_dict is {shape}, and must be {tuple(expected[ours].shape)} with {dim} features, an "
                f"FFN of {arguments['ffn_dim']} and as many points in each layer"
            )
    encoder = encoder.to(state_dict[_their_name("pool.points")].dtype)
    encoder.load_state_dict({ours: state_dict[name] for name, ours in theirs.items()}, strict=False)
    return encoder if embed is None else encoder.with_embed(embed)  # type: ignore[return-value]


def _their_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = re.sub(ours, theirs, name)
    return name


def _shape(state_dict: Weights, name: str) -> tuple[int, ...]:
    theirs = _their_name(name)
    if theirs not in state_dict:
        raise ValueError(f"state_dict has no {theirs!r}")
    return tuple(state_dict[theirs].shape)
