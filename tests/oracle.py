"""Independent float64 references: one set at a time, elements physically repeated, textbook softmax, no shards."""

import torch
import torch.nn.functional as F


def shaken(module, dtype=torch.float64):
    """Biases and norms away from 0 and 1, so that none can be forgotten unnoticed."""
    for p in module.to(dtype).parameters():
        p.data += 0.3 * torch.randn_like(p)
    return module


def assert_along(tensors, gradients, loss):
    """The gradients of a loss, along a random direction, are its differences."""
    generator, h, losses = torch.Generator().manual_seed(2), 1e-6, []
    direction = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]
    for step in (h, -2 * h, h):
        for t, d in zip(tensors, direction, strict=True):
            t.data += step * d
        losses.append(loss().item())
    slope = sum((g * d).sum().item() for g, d in zip(gradients, direction, strict=True) if g is not None)
    assert abs(slope - (losses[0] - losses[1]) / (2 * h)) <= 1e-5 * abs(slope)


def repeat(elements, counts):
    """Each row as often as its (integer) count says."""
    return torch.cat([row[None].expand(int(n), -1) for row, n in zip(elements, counts, strict=True)])


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def norm(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def heads_average(block, queries, elements, scale, weights=None):
    """Concatenated heads; `weights` are (fractional) multiplicities of a weighted softmax."""
    q, k, v = linear(block.query, queries), linear(block.key, elements), linear(block.value, elements)
    width = q.shape[-1] // block.num_heads
    out = []
    for h in range(block.num_heads):
        columns = slice(h * width, (h + 1) * width)
        if len(elements) == 0:
            out.append(torch.zeros(len(queries), width, dtype=q.dtype))
            continue
        logits = q[:, columns] @ k[:, columns].T * scale
        e = torch.exp(logits - logits.max(1, keepdim=True).values)
        e = e if weights is None else e * weights
        out.append(e @ v[:, columns] / e.sum(1, keepdim=True))
    return torch.cat(out, 1)


def activated(activation, x):
    if isinstance(activation, torch.nn.Sequential):
        activation = activation[0]  # beside a dropout that is off
    if isinstance(activation, torch.nn.ReLU):
        return torch.where(x > 0, x, 0)
    assert isinstance(activation, torch.nn.GELU)
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def feed_forward(ffn, x):
    first, activation, second, _ = ffn
    return linear(second, activated(activation, linear(first, x)))


def msab(block, queries, elements, weights=None):
    """MultisetAttentionBlock on one set: queries (q, D), elements (n, D)."""
    scale = (queries.shape[-1] / block.num_heads) ** -0.5

    def ffn(x):
        return feed_forward(block.ffn, x)

    if block.pre:
        q, y = norm(block.norm_queries, queries), norm(block.norm_elements, elements)
        h = queries + linear(block.output, heads_average(block, q, y, scale, weights))
        return h if block.ffn is None else h + ffn(norm(block.norm_ffn, h))
    h = norm(
        block.norm_attention, queries + linear(block.output, heads_average(block, queries, elements, scale, weights))
    )
    return h if block.ffn is None else norm(block.norm_ffn, h + ffn(h))


def lee(block, queries, elements, weights=None):
    """LeeAttentionBlock on one set."""
    pre = isinstance(block.norm_rff, torch.nn.LayerNorm)
    if pre:
        queries, elements = norm(block.norm_queries, queries), norm(block.norm_elements, elements)
    o = linear(block.query, queries) + heads_average(block, queries, elements, queries.shape[-1] ** -0.5, weights)
    if isinstance(block.norm_attention, torch.nn.LayerNorm):
        o = norm(block.norm_attention, o)
    o = o + F.relu(linear(block.rff, norm(block.norm_rff, o) if pre else o))
    return norm(block.norm_output, o) if isinstance(block.norm_output, torch.nn.LayerNorm) else o


def induced(layer, x, weights=None, block=msab):
    return block(layer.spread, x, block(layer.gather, layer.points[0], x, weights))


def residual_mlp(mlp, x):
    h = activated(mlp.activation, linear(mlp.first, x))
    h = h + x if mlp.residual else h
    for layer in mlp.hidden:
        h = h + activated(mlp.activation, linear(layer, h))
    return linear(mlp.last, h) + (h if mlp.residual else 0)


def around(layer, x, mix, ffn):
    """What surrounds a mixing of the elements; `mix` is of each head's columns."""
    y = norm(layer.norm_mixing, x)
    width = x.shape[1] // layer.num_heads
    heads = [mix(h, y, slice(h * width, (h + 1) * width)) for h in range(layer.num_heads)]
    h = x + linear(layer.output, torch.cat(heads, 1))
    return h if layer.ffn is None else h + ffn(norm(layer.norm_ffn, h))


def latent_routing(layer, x):
    """FLARE's block on one set: two softmaxes of one matrix of scores, over its rows and over its columns."""

    def mix(h, y, columns):
        keys, values = (residual_mlp(mlp, y)[:, columns] for mlp in (layer.key, layer.value))
        scores = torch.exp(layer.latents[h] @ keys.T)
        return (scores / scores.sum(0)).T @ ((scores / scores.sum(1, keepdim=True)) @ values) if len(x) else values

    return around(layer, x, mix, lambda h: residual_mlp(layer.ffn[0], h))


def gated(pool, x):
    """Gated attention pooling of one set, one attention and one element at a time."""
    out = []
    for w in pool.weight:
        scores = []
        for h in x:
            hidden = torch.tanh(linear(pool.tanh, h))
            scores.append(w @ (hidden * torch.sigmoid(linear(pool.gate, h))))
        e = [torch.exp(s - max(scores)) for s in scores]
        out.append(sum((a * h for a, h in zip(e, x, strict=True)), x.new_zeros(x.shape[1])) / (sum(e) if e else 1))
    return torch.stack(out)


def mlp(layers, x):
    for layer in layers:
        x = linear(layer, x) if isinstance(layer, torch.nn.Linear) else F.relu(x)
    return x


def encode(encoder, x):
    """(elements or None, summary) of one set x (n, input_dim), duplicates written out."""
    name = type(encoder).__name__
    x = mlp(encoder.embed, x)
    if name == "DeepSets":
        pooled = x.mean(0) if len(x) else x.new_zeros(x.shape[1])
        rho = encoder.decoder[1]
        return None, mlp(rho, pooled).reshape(encoder.num_outputs, -1)
    if name == "ABMIL":
        return None, gated(encoder.pool, x)
    tokens = encoder.num_tokens
    if tokens:
        x = torch.cat([encoder.class_tokens[0], x])
    blocks = {"FLARE": latent_routing, "UniversalSetTransformer": induced}
    for layer in encoder.layers:
        x = blocks[name](layer, x) if name in blocks else msab(layer.block, x, x)
    summary = x[:tokens] if tokens else msab(encoder.pool.gather, encoder.pool.points[0], x)
    for layer in encoder.decoder:  # of UMBC it ends with PMA
        pools = hasattr(layer, "points")
        summary = msab(layer.gather, layer.points[0], summary) if pools else msab(layer.block, summary, summary)
    return x[tokens:], summary
