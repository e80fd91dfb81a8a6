"""Independent float64 references: one set at a time, elements physically repeated, textbook softmax, no shards."""

import torch
import torch.nn.functional as F


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
    factors = [1.0] * block.num_heads
    if block.size_scale is not None:
        size = torch.tensor(len(elements), dtype=queries.dtype) if weights is None else weights.sum()
        factors = [b + s * torch.log(1 + size) for b, s in block.size_scale.T]
    q, k, v = linear(block.query, queries), linear(block.key, elements), linear(block.value, elements)
    width = q.shape[-1] // block.num_heads
    out = []
    for h in range(block.num_heads):
        columns = slice(h * width, (h + 1) * width)
        if len(elements) == 0:
            out.append(torch.zeros(len(queries), width, dtype=q.dtype))
            continue
        logits = q[:, columns] @ k[:, columns].T * scale * factors[h]
        sums = block.attention == "sigmoid"
        e = 1 / (1 + torch.exp(-logits)) if sums else torch.exp(logits - logits.max(1, keepdim=True).values)
        e = e if weights is None else e * weights
        out.append(e @ v[:, columns] / (1 if sums else e.sum(1, keepdim=True)))
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
    y = norm(layer.norm_mixing, x) if layer.pre else x
    width = x.shape[1] // layer.num_heads
    heads = [mix(h, y, slice(h * width, (h + 1) * width)) for h in range(layer.num_heads)]
    h = x + linear(layer.output, torch.cat(heads, 1))
    if layer.pre:
        return h if layer.ffn is None else h + ffn(norm(layer.norm_ffn, h))
    h = norm(layer.norm_mixing, h)
    return h if layer.ffn is None else norm(layer.norm_ffn, h + ffn(h))


def latent_routing(layer, x):
    """FLARE's block on one set: two softmaxes of one matrix of scores, over its rows and over its columns."""

    def mix(h, y, columns):
        keys, values = (residual_mlp(mlp, y)[:, columns] for mlp in (layer.key, layer.value))
        scores = torch.exp(layer.latents[h] @ keys.T)
        return (scores / scores.sum(0)).T @ ((scores / scores.sum(1, keepdim=True)) @ values) if len(x) else values

    return around(layer, x, mix, lambda h: residual_mlp(layer.ffn[0], h))


def slice_attention(layer, x):
    """Transolver's block on one set, one slice at a time."""

    def mix(h, y, columns):
        place, content = linear(layer.place, y)[:, columns], linear(layer.content, y)[:, columns]
        temperature = min(max(layer.temperature[h], 0.1), 5)
        weights = torch.exp(linear(layer.slices, place) / temperature)
        weights = weights / weights.sum(1, keepdim=True)
        zero = content.new_zeros(content.shape[1])
        tokens = [w @ content / w.sum() if len(x) else zero for w in weights.T]
        new = []
        for token in tokens:
            products = [(layer.query.weight @ token) @ (layer.key.weight @ other) for other in tokens]
            e = torch.exp(torch.stack(products) / len(token) ** 0.5)
            new.append(sum(a * (layer.value.weight @ other) for a, other in zip(e / e.sum(), tokens, strict=True)))
        return weights @ torch.stack(new)

    return around(layer, x, mix, lambda h: feed_forward(layer.ffn, h))


def set_norm(affine, x):
    """Of one set: one mean and one deviation of all its numbers."""
    if not x.numel():
        return x
    deviation = ((x - x.mean()) ** 2).mean().add(1e-5).sqrt()
    return (x - x.mean()) / deviation * affine.weight + affine.bias


def normed_transformer(encoder, x):
    """Set Transformer++ on one set: elements, and the output of PMA."""
    scale = (x.shape[1] / encoder.pool.gather.num_heads) ** -0.5
    layers, last = encoder.layers[:-1], encoder.layers[-1]
    step = 3 if encoder.pool.gather.ffn else 2
    for n in range(0, len(layers), step):
        block, points = layers[n + 1], layers[n + 1].points[0]
        h = points + linear(
            block.gather.output, heads_average(block.gather, points, set_norm(block.norm_keys, x), scale)
        )
        h = h + feed_forward(block.gather.ffn, set_norm(block.gather.norm_ffn.affine, h)) if step == 3 else h
        normed = set_norm(block.norm_queries, x), set_norm(block.norm_points.affine, h)
        x = x + linear(block.spread.output, heads_average(block.spread, *normed, scale))
        x = x + feed_forward(layers[n + 2].ffn, set_norm(layers[n + 2].affine, x)) if step == 3 else x
    x, seeds = set_norm(last.affine, x), encoder.pool.points[0]
    h = seeds + linear(encoder.pool.gather.output, heads_average(encoder.pool.gather, seeds, x, scale))
    return x, h + feed_forward(encoder.pool.gather.ffn, h) if step == 3 else h


def normed_phi(encoder, x):
    """Phi of Deep Sets++ on one set, after its first Linear."""
    *layers, last = encoder.layers
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        h = linear(first.linear, activated(first.activation, set_norm(first.affine, x)))
        x = x + linear(second.linear, activated(second.activation, set_norm(second.affine, h)))
    return linear(last.linear, activated(last.activation, set_norm(last.affine, x)))


def gated(pool, x):
    """Gated attention pooling of one set, one attention and one element at a time."""
    out = []
    for w in pool.weight:
        scores = []
        for h in x:
            hidden = torch.tanh(linear(pool.tanh, h))
            scores.append(w @ (hidden if pool.gate is None else hidden * torch.sigmoid(linear(pool.gate, h))))
        e = [torch.exp(s - max(scores)) for s in scores]
        out.append(sum((a * h for a, h in zip(e, x, strict=True)), x.new_zeros(x.shape[1])) / (sum(e) if e else 1))
    return torch.stack(out)


def dual_stream(first, second, x):
    """DSMIL of one set: the first element of largest score, its inner products with all, the mean of both streams."""
    out = []
    for c, direction in enumerate(second.direction):
        w, b = first.score.weight[c], first.score.bias[c]
        score, average = x.new_zeros(()), x.new_zeros(x.shape[1])
        if len(x):
            critical = x[int((x @ w).argmax())]
            score = critical @ w + b
            products = linear(first.query, x) @ linear(first.query, critical) / first.query.out_features**0.5
            e = torch.exp(products - products.max())
            average = e @ x / e.sum()
        out.append((direction * score + linear(second.value, average)) / 2)
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
        x = normed_phi(encoder, x) if len(encoder.layers) else x
        pooled = x.mean(0) if len(x) else x.new_zeros(x.shape[1])
        rho = encoder.decoder[1]
        return None, mlp(rho, pooled).reshape(encoder.num_outputs, -1)
    if name == "ABMIL":
        return None, gated(encoder.pool, x)
    if name == "DSMIL":
        return None, dual_stream(encoder.layers[0], encoder.pool, x)
    tokens = encoder.num_tokens
    if tokens:
        x = torch.cat([encoder.class_tokens[0], x])
    blocks = {"FLARE": latent_routing, "Transolver": slice_attention, "UniversalSetTransformer": induced}
    if name == "UniversalSetTransformer" and len(encoder.layers) and not hasattr(encoder.layers[-1], "points"):
        x, summary = normed_transformer(encoder, x)
        for layer in encoder.decoder:
            summary = msab(layer.block, summary, summary)
        return x, summary
    for layer in encoder.layers:
        x = blocks[name](layer, x) if name in blocks else msab(layer.block, x, x)
    summary = x[:tokens] if tokens else msab(encoder.pool.gather, encoder.pool.points[0], x)
    for layer in encoder.decoder:  # of UMBC it ends with PMA
        pools = hasattr(layer, "points")
        summary = msab(layer.gather, layer.points[0], summary) if pools else msab(layer.block, summary, summary)
    return x[tokens:], summary
