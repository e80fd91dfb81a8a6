"""Which elements drive a prediction: self-attention attribution over sets, and attention itself.

Hao et al., "Self-Attention Attribution: Interpreting Information Interactions Inside Transformer", 2021. For one
attention layer with normalised weights A and prediction F,

    attribution = A * integral from 0 to 1 of dF/d(alpha A) d(alpha)

one layer scaled at a time. Hao et al. take the mean at alpha = k / m for k = 1..m, in 20 steps; here m steps are those
of Gauss and Legendre: 8 come closer to the integral. What multiplies A multiplies the averages A V, so that the
gradient is that of the averages (omniset.layers.probes), and elements are scored in one more forward: in shards as well
as whole. For induced attention A is the first one, inducing points on elements (of FLARE: latent queries on elements);
for a Slot Set Encoder it is that of its slots.

As weights have sum 1, what the values V of a set share reaches the average whatever is attended to; attribution shares
it out by attention all the same. With baseline="equal" the way starts at equal attention in place of none, at the mean
v of the values. With G the mean gradient with respect to the average of a query on that way,

    attribution_j = A_j (V_j - v) . G,        whose sum tends to F less F with equal attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from omniset.encoders.base import Encoder
from omniset.layers.flare import LatentRouting
from omniset.layers.pooling import GatedAttentionPooling
from omniset.layers.probes import Probe, Probed
from omniset.layers.set_transformer import InducedLayer, SetAttentionBlock
from omniset.layers.slots import SlotSetEncoder

Source = SetBatch | Iterable[SetBatch]
Baseline = Literal["zero", "equal"]
AT_ONCE = 1 << 13  # elements times steps: more are no faster


@dataclass
class LayerAttribution:
    """Attribution of one layer.

    Attributes:
        layer: Name of the attention block in the model.
        scores: (B, N) clipped at 0, then summed over heads and queries; class tokens left out of N.
        total: (B,) sum of the attribution, nothing clipped, class tokens included.
        change: (B,) F with the layer's attention as it is, minus F with it at the baseline. Attribution is complete, in
            the limit of many steps, in that total = change.
    """

    layer: str
    scores: Float[Tensor, "sets elements"]
    total: Float[Tensor, " sets"]
    change: Float[Tensor, " sets"]


def attribute(
    model: Any,
    batch: Source,
    target: int | Tensor | None = None,
    steps: int = 8,
    *,
    baseline: Baseline = "zero",
    max_elements: int = AT_ONCE,
    **options: Any,
) -> Float[Tensor, "sets elements"]:
    """How much each element drove the prediction, from 0 to 1 (the set's strongest element, if any is positive).

    Args:
        model: A module that, called with a SetBatch, returns (B, outputs) or an encoder's output, and whose attention
            layers are Omniset's; or a fitted SetClassifier or SetRegressor. Put a module into eval mode first, or
            dropout is explained along with the rest.
        batch: B sets; absent elements score 0. Or shards of them, if the model reads such (`Encoder.forward`).
        target: Which output is explained: one for all sets, or (B,) one each. Default: each set's largest output.
            Of an encoder's output: which entry of the flattened summary; default their sum.
        steps: m above, >= 1.
        baseline: What attention is compared with: "zero", none, as Hao et al. have it; "equal", that to all elements
            alike, so that an element scores by what distinguishes it from the others of its set.
        max_elements: Elements of whole sets times steps, at most 8,192, that are computed on at a time.
        **options: For the model, beside the sets: shard_size and store, as in `Encoder.forward`, bound the memory.

    Raises:
        ValueError: A model without attention over the set, such as Deep Sets; steps < 1; a target out of range;
            independent shards, each of which would be explained by itself; an unknown baseline.
    """
    layers = attribute_layers(model, batch, target, steps, baseline=baseline, max_elements=max_elements, **options)
    return combine(layers)


def attention(model: Any, batch: Source, **options: Any) -> Float[Tensor, "sets elements"]:
    """How much attention each element gets, from 0 to 1 (the set's most attended one): normalised weights, summed over
    heads, queries and layers. It knows of no prediction; to compare `attribute` with. Arguments and errors: attribute.
    """
    network, blocks = _explained(model, options)
    with _probes(network, blocks) as probes:
        _watch(network, batch, options, probes)
        _score_elements(network, batch, options, [(probe, None) for probe in probes])
        return _to_largest(torch.stack([_of_elements(network, batch, probe) for probe in probes]).sum(0))


def attribute_layers(
    model: Any,
    batch: Source,
    target: int | Tensor | None = None,
    steps: int = 8,
    *,
    baseline: Baseline = "zero",
    max_elements: int = AT_ONCE,
    **options: Any,
) -> list[LayerAttribution]:
    """Attribution of each attention layer over the set, with what a completeness check needs. Arguments: attribute."""
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    if baseline not in ("zero", "equal"):
        raise ValueError(f"baseline must be 'zero' or 'equal', got {baseline!r}")
    network, blocks = _explained(model, options)
    together = 1
    if isinstance(batch, SetBatch) and not options:
        together = max(min(max_elements, AT_ONCE) // max(batch.multiplicity.numel(), 1), 1)
    with _probes(network, blocks, baseline == "equal") as probes:
        out = _watch(network, batch, options, probes)
        chosen = _choose(out, target)
        full = _score(out, chosen)
        gradients, without = [], []
        for probe in probes:
            gradient: Any = 0
            for alpha, share in zip(*(part.split(together) for part in _steps(steps)), strict=True):
                shift, times = probe.start_shift(alpha), len(alpha)
                with torch.enable_grad():
                    out = network(_repeated(batch, times), **options)
                    score = _score(out, None if chosen is None else chosen.repeat(times))
                    of_steps = torch.autograd.grad(score.sum(), shift)[0]
                gradient = gradient + torch.tensordot(share.to(of_steps), of_steps.unflatten(0, (times, -1)), 1)
            gradients.append(gradient)
            probe.start_shift(torch.zeros(1, dtype=torch.float64))
            with torch.no_grad():
                without.append(_score(network(batch, **options), chosen))
            probe.end_shift()
        _score_elements(network, batch, options, zip(probes, gradients, strict=True))
        return [
            LayerAttribution(name, _of_elements(network, batch, probe), probe.total, full - least)
            for name, probe, least in zip(blocks, probes, without, strict=True)
        ]


def _steps(number: int) -> tuple[Float[Tensor, " steps"], Float[Tensor, " steps"]]:
    """Where an integral from 0 to 1 is looked at, and how much each place counts (Gauss and Legendre)."""
    places, shares = np.polynomial.legendre.leggauss(number)
    return torch.from_numpy((places + 1) / 2), torch.from_numpy(shares / 2)


def completeness(layers: list[LayerAttribution]) -> Float[Tensor, " layers"]:
    """Of each layer, how far the sum of its attribution is from the change that it explains: mean over the sets of the
    difference, over the mean size of the change. Falls with the number of steps.
    """
    gaps = [(layer.total - layer.change).abs().mean() for layer in layers]
    changes = [layer.change.abs().mean().clamp(min=torch.finfo(layer.change.dtype).tiny) for layer in layers]
    return torch.stack([gap / change for gap, change in zip(gaps, changes, strict=True)])


def attends(model: nn.Module) -> bool:
    """Whether there is attention over the elements of a set to attribute to."""
    return bool(_set_attention(model))


def combine(layers: list[LayerAttribution]) -> Float[Tensor, "sets elements"]:
    """Sum over layers, divide by the set's largest score."""
    return _to_largest(torch.stack([layer.scores for layer in layers]).sum(0))


def _to_largest(scores: Float[Tensor, "sets elements"]) -> Float[Tensor, "sets elements"]:
    largest = scores.amax(1, keepdim=True) if scores.shape[1] else scores.new_ones(len(scores), 1)
    return scores / torch.where(largest > 0, largest, 1)


def _explained(model: Any, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Probed]]:
    model = getattr(model, "network_", model)  # of an estimator
    blocks = _set_attention(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no attention over the elements of a set: nothing to attribute")
    if options.get("shards", "merged") != "merged":
        raise ValueError(f"shards must be 'merged' to explain a whole set, got {options['shards']!r}")
    return model, blocks


@contextmanager
def _probes(model: nn.Module, blocks: dict[str, Probed], equal: bool = False) -> Iterator[list[Probe]]:
    """One in every block, while nothing else asks for gradients."""
    flags = {p: p.requires_grad for p in model.parameters()}
    probes = [Probe(equal) for _ in blocks]
    try:
        model.requires_grad_(False)
        for block, probe in zip(blocks.values(), probes, strict=True):
            block.probe = probe
        yield probes
    finally:
        for block in blocks.values():
            block.probe = None
        for parameter, wanted in flags.items():
            parameter.requires_grad_(wanted)


def _watch(model: nn.Module, batch: Source, options: dict[str, Any], probes: list[Probe]) -> Any:
    with torch.no_grad():
        out = model(batch, **options)
    for probe in probes:
        probe.end_watch()
    return out


def _repeated(batch: Any, times: int) -> Source:
    if times == 1:
        return batch
    return SetBatch(batch.elements.repeat(times, 1, 1), batch.multiplicity.repeat(times, 1), validate=False)


def _score_elements(model: nn.Module, batch: Source, options: dict[str, Any], wanted: Iterable[Any]) -> None:
    for probe, gradient in wanted:
        probe.start_scores(gradient)
    with torch.no_grad():
        model(batch, **options)


def _of_elements(model: nn.Module, batch: Source, probe: Probe) -> Float[Tensor, "sets elements"]:
    scores = torch.cat(probe.scores or [], 1)  # those of class tokens come first
    if isinstance(batch, SetBatch):
        return scores[:, scores.shape[1] - batch.elements.shape[1] :]
    return scores[:, max((e.num_tokens for e in model.modules() if isinstance(e, Encoder)), default=0) :]


def _set_attention(model: nn.Module) -> dict[str, Probed]:
    """Those that attend to elements: none of a decoder, which attends to the summary, or of `embed`, which sees one."""
    parts = [part for e in model.modules() if isinstance(e, Encoder) for part in (e.embed, e.decoder)]
    others = {m for part in parts for m in part.modules()}
    layers = {n: m for n, m in model.named_modules() if m not in others}
    kinds = SetAttentionBlock | InducedLayer | SlotSetEncoder | GatedAttentionPooling | LatentRouting
    return {n: m.set_attention for n, m in layers.items() if isinstance(m, kinds)}


def _choose(out: Any, target: int | Tensor | None) -> Tensor | None:
    if target is None:
        return out.argmax(1) if isinstance(out, Tensor) else None  # None: the sum of all
    values = _values(out)
    chosen = torch.as_tensor(target, device=values.device).expand(len(values))
    if bool(((chosen < 0) | (chosen >= values.shape[1])).any()):
        raise ValueError(f"target must be from 0 to {values.shape[1] - 1}, got {target}")
    return chosen


def _values(out: Any) -> Float[Tensor, "sets outputs"]:
    return out if isinstance(out, Tensor) else out.summary.flatten(1)


def _score(out: Any, chosen: Tensor | None) -> Float[Tensor, " sets"]:
    values = _values(out)
    return values.sum(1) if chosen is None else values.gather(1, chosen[:, None])[:, 0]
