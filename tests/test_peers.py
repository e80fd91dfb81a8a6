"""What is special about each peer: sorted pooling, slots, segments with a memory, the unbiased gradient."""

import itertools

import numpy as np
import pytest
import torch

from omniset import SetBatch, encoders, engine, testing
from omniset.layers import FeaturewiseSortPooling, PoolingByMultiheadAttention, SetAttentionBlock, SlotSetEncoder
from omniset.testing import relative_error
from oracle import shaken

SIZES = {"input_dim": 3, "dim": 8, "num_heads": 2, "num_inducing": 3, "depth": 2}
DOUBLE = torch.float64


def random_batch(sets=3, length=11, dim=3, seed=0):
    torch.manual_seed(seed)
    m = torch.randint(0, 4, (sets, length))
    m[0] = 1
    m[-1] = 0
    return SetBatch(torch.randn(sets, length, dim, dtype=DOUBLE), m)


def gradients(encoder, batch, **options):
    """Of a loss that is not linear in the summary; and the summary."""
    out = encoder(batch, **options)
    torch.manual_seed(1)
    upstream = torch.randn(out.summary.shape, dtype=DOUBLE)
    return out.summary, torch.autograd.grad((out.summary.tanh() * upstream).sum(), list(encoder.parameters()))


def sorted_sum(layer, elements, copies):
    """By the definition, of one set with its copies written out."""
    x = elements.repeat_interleave(copies, 0).sort(0, descending=True).values
    n, pieces = len(x), layer.weight.shape[1] - 1
    total = torch.zeros(elements.shape[1], dtype=DOUBLE)
    for j in range(n):
        at = j / (n - 1) * pieces if n > 1 else 0.0
        left = min(int(np.floor(at + 1e-12)), pieces - 1)
        total = total + (layer.weight[:, left] * (left + 1 - at) + layer.weight[:, left + 1] * (at - left)) * x[j]
    return total


@pytest.mark.parametrize("length", [0, 1, 2, 20, 21, 22, 53])
@pytest.mark.parametrize("pieces", [1, 20])
def test_sorted_pooling_by_its_definition(pieces, length):
    torch.manual_seed(length)
    layer = FeaturewiseSortPooling(5, pieces).double()
    x = torch.randn(3, length, 5, dtype=DOUBLE, requires_grad=True)
    m = torch.randint(0, 4, (3, length))
    m[0] = 1
    got = layer(x, m)[:, 0]
    expected = torch.stack([sorted_sum(layer, *pair) for pair in zip(x, m, strict=True)])
    assert (got - expected).norm() <= 1e-12 * max(1, expected.norm())
    upstream = torch.randn(3, 5, dtype=DOUBLE)
    if length:
        pairs = [torch.autograd.grad(y, [x, layer.weight], upstream) for y in (got, expected)]
        for g, e in zip(*pairs, strict=True):
            assert (g - e).norm() <= 1e-11


def test_a_sorted_sum_grows_with_the_set():
    layer = FeaturewiseSortPooling(4).double()
    x = torch.ones(1, 1, 4, dtype=DOUBLE)
    sums = [layer(x, torch.tensor([[n]]))[0, 0] for n in (10_000_001, 20_000_001)]
    mean = (layer.weight.sum(1) - layer.weight[:, [0, -1]].sum(1) / 2) / 20
    assert relative_error(sums[1] - sums[0], 1e7 * mean) < 1e-6


def slots_of_one_set(layer, x, copies):
    """By the definition: each copy, slot and head by itself."""
    x = x.repeat_interleave(copies, 0)
    d = x.shape[1] // layer.num_heads
    q, k, v = layer.query(layer.norm_slots(layer.slots[0])), layer.key(x), layer.value(x)
    out = torch.zeros_like(q)
    for h in range(layer.num_heads):
        part = slice(h * d, (h + 1) * d)
        scores = q[:, part] @ k[:, part].mT / d**0.5
        if layer.weighting == "softmax":
            a = torch.exp(scores - scores.max()) if len(x) else scores
        elif layer.weighting == "sigmoid":
            a = 1 / (1 + torch.exp(-scores))
        else:
            a = torch.exp(scores) / torch.exp(scores).sum(0)
        if len(x):
            out[:, part] = (a @ v[:, part]) / a.sum(1, keepdim=True)
    return layer.norm_output(q + out)


@pytest.mark.parametrize("number", [3, 17])  # folded, and not
@pytest.mark.parametrize("weighting", ["softmax", "sigmoid", "slots"])
def test_slots_by_their_definition(weighting, number):
    torch.manual_seed(0)
    layer = shaken(SlotSetEncoder(12, 3, number, weighting)).eval()
    batch = random_batch(dim=12)
    x, m = batch.elements.requires_grad_(), batch.multiplicity
    got = layer(x, m)
    expected = torch.stack([slots_of_one_set(layer, *pair) for pair in zip(x, m, strict=True)])
    assert relative_error(got, expected) < 1e-13
    wanted = [x, *(p for n, p in layer.named_parameters() if n != "rho")]
    upstream = torch.randn_like(got)
    pairs = [torch.autograd.grad(y, wanted, upstream, allow_unused=True) for y in (got, expected)]
    for g, e in zip(*pairs, strict=True):
        assert (g - e).norm() <= 1e-12 * max(1, float(e.norm()))


def test_large_scores_are_not_cut_off():
    layer = SlotSetEncoder(12, 3, 4, "softmax").double().eval()
    layer.query.weight.data *= 300
    x = random_batch(dim=12).elements[:1]
    expected = slots_of_one_set(layer, x[0], torch.ones(11, dtype=torch.long))
    parts = [layer.reduce(part) for part in x.split(4, 1)]
    assert relative_error(layer.finish(parts[0].merge(parts[1]).merge(parts[2]))[0], expected) < 1e-12


@pytest.mark.parametrize("name", ["sse", "umbc"])
def test_one_draw_for_all_shards(name):
    encoder = encoders.build(name, **SIZES).double()
    batch = random_batch(4, 23)

    def drawn(seed, **options):
        torch.manual_seed(seed)
        return gradients(encoder, batch, **options)

    whole, other = drawn(3), drawn(4)
    assert relative_error(other[0], whole[0]) > 1e-4
    for options in ({"shard_size": 5}, {"shard_size": 5, "store": "cpu"}, {"shard_size": 1}):
        summary, grads = drawn(3, **options)
        assert relative_error(summary, whole[0]) < 1e-12
        assert relative_error(grads, whole[1]) < 1e-12
    encoder.eval()
    assert torch.equal(encoder(batch).summary, encoder(batch).summary)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deep-sets", {}),
        ("umbc", {}),
        ("umbc", {"random": False}),
        ("umbc", {"random": False, "slot_block": True}),
        *(("sse", {"weighting": w}) for w in ("softmax", "sigmoid", "slots")),
    ],
)
def test_the_mean_over_all_subsets_is_the_full_gradient(name, options):
    encoder = encoders.build(name, **SIZES, **options).double()
    torch.manual_seed(2)
    x = torch.randn(2, 6, 3, dtype=DOUBLE)
    torch.manual_seed(3)  # of random slots
    summary, full = gradients(encoder, SetBatch(x))
    found = []
    for subset in itertools.combinations(range(6), 2):
        order = [*subset, *(i for i in range(6) if i not in subset)]
        torch.manual_seed(3)
        same, grads = gradients(encoder, SetBatch(x[:, order]), shard_size=2, gradient="unbiased")
        assert relative_error(same, summary) < 1e-12
        found.append(grads)
    mean = [torch.stack(g).mean(0) for g in zip(*found, strict=True)]
    assert relative_error(mean, full) < 1e-12
    assert max(relative_error(g, full) for g in found) > 0.01  # each by itself is another one


def test_each_set_is_scaled_by_its_own_size():
    """Sets of 6, 3 and 0 present entries, padded; the mean over all orders of the present ones."""
    encoder = encoders.build("umbc", **SIZES, random=False).double()
    x, m = torch.randn(3, 7, 3, dtype=DOUBLE), torch.zeros(3, 7)
    m[0, :6], m[1, :3] = torch.rand(6) + 0.5, torch.rand(3) + 0.5
    _, full = gradients(encoder, SetBatch(x, m))
    found = []
    for first, second in itertools.product(itertools.combinations(range(6), 2), itertools.combinations(range(3), 2)):
        order = torch.arange(7).repeat(3, 1)
        order[0, :6] = torch.tensor([*first, *(i for i in range(6) if i not in first)])
        order[1, :3] = torch.tensor([*second, *(i for i in range(3) if i not in second)])
        shuffled = SetBatch(x.gather(1, order[..., None].expand_as(x)), m.gather(1, order))
        _, grads = gradients(encoder, list(shuffled.shards(2)), gradient="unbiased")  # of a source that is read anew
        found.append(grads)
    mean = [torch.stack(g).mean(0) for g in zip(*found, strict=True)]
    assert relative_error(mean, full) < 1e-12


def test_an_estimate_for_several_layers():
    encoder = encoders.build("ust", **SIZES).double()
    batch = random_batch(3, 24)
    summary, full = gradients(encoder, batch)
    orders = (torch.randperm(24) for _ in range(40))
    shuffled = [SetBatch(batch.elements[:, o], batch.multiplicity[:, o]) for o in orders]
    found = [gradients(encoder, one, shard_size=6, gradient="unbiased") for one in shuffled]
    assert all(relative_error(same, summary) < 1e-12 for same, _ in found)
    mean = torch.cat([torch.stack(g).mean(0).flatten() for g in zip(*(g for _, g in found), strict=True)])
    assert torch.cosine_similarity(mean, torch.cat([g.flatten() for g in full]), dim=0) > 0.9


def test_where_nothing_can_be_scaled():
    batch = random_batch()
    for name, options, shards, message in (
        ("ust", {}, "independent", "gradient='unbiased' is for shards='merged'"),
        ("ust", {"class_token": True}, "merged", "scales what a pool sums up, and class tokens"),
        (
            "set-transformer-sab",
            {},
            "merged",
            r"scales the sums of a layer, and full self-attention \(SetTransformer\)",
        ),
    ):
        encoder = encoders.build(name, **SIZES, **options).double()
        with pytest.raises(ValueError, match=message):
            encoder(batch, shard_size=4, shards=shards, gradient="unbiased")


PLAIN = {None: "set-transformer-sab", 3: "set-transformer-isab"}


@pytest.mark.parametrize("points", PLAIN)
@pytest.mark.parametrize("tokens", [0, 2])
def test_a_whole_set_is_one_segment(tokens, points):
    options = {**SIZES, "num_outputs": max(tokens, 1), "class_token": bool(tokens), "num_inducing": points}
    xl, plain = (encoders.build(name, **options).double() for name in ("strxl", PLAIN[points]))
    plain.load_state_dict(xl.state_dict())
    batch = random_batch()
    out, expected = xl(batch), plain(batch)
    assert torch.equal(out.summary, expected.summary)
    segmented = xl(batch, shard_size=11, shards="independent")
    assert relative_error(segmented.summary, out.summary) < 1e-13
    assert relative_error(segmented.elements, out.elements) < 1e-13


@pytest.mark.parametrize("points", PLAIN)
@pytest.mark.parametrize(("memory", "at_once"), [(0, 1), (3, 33), (5, 1), (5, 1000), (100, 420), (100, 1000)])
def test_segments_attend_to_what_was_before(memory, at_once, points, monkeypatch):
    """However many segments are read at once: one, two or all."""
    monkeypatch.setattr(engine, "AT_ONCE", at_once)
    encoder = encoders.build("strxl", **{**SIZES, "num_inducing": points}, memory=memory).double()

    def attend(layer, part, elements, multiplicity):
        if points is None:
            return layer.block(part, elements, multiplicity)
        return layer.spread(part, layer.gather(layer.points, elements, multiplicity))

    batch = random_batch(2, 13)
    x, m = encoder.embed(batch.elements), batch.multiplicity
    starts = range(0, 13, 5)
    parts = [x[:, s : s + 5] for s in starts]
    for layer in encoder.layers:
        before = x.detach()
        parts = [
            attend(
                layer,
                part,
                torch.cat([before[:, max(s - memory, 0) : s], part], 1),
                torch.cat([m[:, max(s - memory, 0) : s], m[:, s : s + 5]], 1),
            )
            for s, part in zip(starts, parts, strict=True)
        ]
        x = torch.cat(parts, 1)
    pooled = [encoder.pool(part, m[:, s : s + 5]) for s, part in zip(starts, parts, strict=True)]
    expected = pooled[0] * 0
    for b in range(2):
        seen = [p[b] for s, p in zip(starts, pooled, strict=True) if m[b, s : s + 5].any()]
        expected[b] = torch.stack(seen).mean(0) if seen else pooled[0][b]
    out = encoder(batch, shard_size=5, shards="independent")
    assert relative_error(out.summary, expected) < 1e-13
    assert relative_error(out.elements, torch.where(m[..., None] > 0, x, 0)) < 1e-13
    wanted = list(encoder.parameters())
    upstream = torch.randn_like(expected)
    got, true = (torch.autograd.grad(y, wanted, upstream) for y in (out.summary, expected))
    assert relative_error(got, true) < 1e-12
    stream = encoder(list(batch.shards(5)), shards="independent")
    assert relative_error(torch.cat([s.elements for s in stream.elements], 1), out.elements) < 1e-13
    first = encoder(batch, shard_size=5, shards="independent", gradient="first-shard").summary
    seen = torch.stack([(m[:, s : s + 5] > 0).any(1) for s in starts]).sum(0).clamp(min=1)
    of_first = encoder(batch.shards(5)[0]).summary / seen[:, None, None]
    got, true = (torch.autograd.grad(y, wanted, upstream) for y in (first, of_first))
    assert relative_error(got, true) < 1e-12


def test_a_memory_makes_the_order_count():
    encoder = encoders.build("strxl", **SIZES).double()
    batch = random_batch(3, 13)
    turned = SetBatch(batch.elements.flip(1), batch.multiplicity.flip(1))
    split = [encoder(b, shard_size=5, shards="independent").summary for b in (batch, turned)]
    assert relative_error(*split) > 1e-6
    testing.assert_permutation_invariant(encoder, batch)


def test_slots_in_a_block_are_pma_before_what_follows():
    options = {"norm": "post", "ffn_dim": 5, "activation": "gelu"}
    encoder = encoders.build("umbc", **SIZES, **options, random=False, slot_block=True).double().eval()
    layers = [
        PoolingByMultiheadAttention(8, 2, 3, **options),
        *(SetAttentionBlock(8, 2, **options) for _ in range(2)),
        PoolingByMultiheadAttention(8, 2, 1, **options),
    ]
    of_encoder = [encoder.pool, *encoder.decoder]
    for layer, given in zip(layers, of_encoder, strict=True):
        layer.double().load_state_dict(given.state_dict())
    batch = random_batch()
    expected = layers[0](encoder.embed(batch.elements), batch.multiplicity)
    for layer in layers[1:]:
        expected = layer(expected)
    summary = encoder(batch).summary
    assert relative_error(summary, expected) < 1e-13
    upstream = torch.randn_like(expected)
    for layer, given in zip(layers, of_encoder, strict=True):
        got = torch.autograd.grad(summary, [*given.parameters()], upstream, retain_graph=True)
        grads = torch.autograd.grad(expected, [*layer.parameters()], upstream, retain_graph=True)
        assert relative_error(got, grads) < 1e-12


@pytest.mark.parametrize("given", [{"random": True}, {"random": False, "weighting": "slots"}])
def test_slots_in_a_block_are_learned_and_share_a_softmax(given):
    with pytest.raises(ValueError, match="slot_block=True has learned slots and a softmax over the set"):
        encoders.build("umbc", **SIZES, slot_block=True, **given)


def test_slots_may_be_the_summary():
    encoder = encoders.build("umbc", **SIZES, num_outputs=3, pma=False)
    with pytest.raises(ValueError, match="num_outputs must be num_inducing=3 without PMA, got 1"):
        encoders.build("umbc", **SIZES, pma=False)
    assert [type(layer).__name__ for layer in encoder.decoder] == ["SetAttentionBlock"] * 2
