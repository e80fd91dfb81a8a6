"""Whole = shards, outputs and gradients, for every store, order and kind of absence."""

import errno
import gc
import itertools
import weakref
from collections import defaultdict
from functools import partial

import pytest
import torch

from omniset import SetBatch, encoders, engine
from omniset.core import disk
from omniset.engine import stores
from omniset.engine.exact import Run
from omniset.kernels import folded
from omniset.testing import relative_error
from oracle import assert_along, encode

B, N, D = 3, 67, 2
OUTPUTS = {torch.float64: 1e-12, torch.float32: 1e-6}
GRADIENTS = {torch.float64: 1e-12, torch.float32: 3e-6}
STORES = {"set-transformer-sab": ("device", "cpu")}
MERGED = [name for name, encoder in encoders.ENCODERS.items() if encoder.mini_batch_consistent]
KINDS = ("deep-sets", "ust", "sse", "set-transformer-sab")  # of state; what costs time is tested of these
BY_OPTION = [  # encoders in whose shards an option changes what is summed up
    ("deep-sets", {"pooling": "max"}),
    ("ust", {"ffn_dim": 0, "decoder_depth": 1}),
    ("set-transformer-sab", {"class_token": True}),
    ("umbc", {"random": False, "slot_block": True}),
]
BUILT = [*((name, {}) for name in KINDS), *BY_OPTION]
WITH_ELEMENTS = [name for name in MERGED if encoders.ENCODERS[name].outputs_elements]


@pytest.fixture(autouse=True)
def folded_however_small(monkeypatch):
    monkeypatch.setattr(folded, "LEAST", 0)


def make(name, dtype=torch.float64, **more):
    arguments = {"input_dim": D, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5, "num_outputs": 3} | more
    encoder = encoders.build(name, **arguments).to(dtype).eval()  # without random slots
    for p in encoder.parameters():
        p.data += 0.2 * torch.randn_like(p)
    return encoder


def sets(dtype=torch.float64):
    """Set 0 is empty; 1 lacks its first 14 elements, 2 its last 30, all elements 21 to 27."""
    m = torch.randint(0, 4, (B, N)).to(dtype) * 0.7
    m[0], m[1, :14], m[2, -30:], m[:, 21:28] = 0, 0, 0, 0
    return SetBatch(torch.randn(B, N, D, dtype=dtype), m)


def results(encoder, batch, source=None, **options):
    """Outputs, and gradients of one scalar of them all (of elements and multiplicities too, given a SetBatch)."""
    leaves = []
    if source is None:
        source = SetBatch(batch.elements.clone().requires_grad_(), batch.multiplicity.clone().requires_grad_())
        leaves = [source.elements, source.multiplicity]
    out = encoder(source, **options)
    outputs = [out.summary]
    generator = torch.Generator().manual_seed(1)
    loss = (out.summary * torch.randn(out.summary.shape, generator=generator).to(out.summary)).sum()
    if isinstance(out.elements, torch.Tensor) and leaves:
        outputs.append(out.elements)
        loss = loss + (out.elements * torch.randn(out.elements.shape, generator=generator).to(out.elements)).sum()
    targets = [*leaves, *encoder.parameters()]
    return outputs, [*torch.autograd.grad(loss, targets, materialize_grads=True)]


def assert_same(got, expected):
    dtype = expected[0][0].dtype
    assert relative_error(got[0], expected[0]) <= OUTPUTS[dtype]
    assert relative_error(got[1], expected[1]) <= GRADIENTS[dtype]


CASES = [(name, store) for name in MERGED for store in STORES.get(name, stores.STORES)]
OF_KINDS = [(name, store) for name, store in CASES if name in KINDS]
MORE = [{"class_token": True, "decoder_depth": 1}, {"norm": "post", "ffn_dim": 0}]
OTHERS = [
    pytest.param(name, store, more, marks=[] if store == "device" else pytest.mark.slow)
    for name, store in CASES
    for more in MORE
]


@pytest.mark.parametrize(("name", "store", "more"), [*((name, store, {}) for name, store in CASES), *OTHERS])
def test_shards_are_the_whole(name, store, more):
    check_shards(name, store, torch.float64, **more)


@pytest.mark.parametrize(("name", "more"), [*((name, {"decoder_depth": 1}) for name in MERGED), *BY_OPTION])
def test_shards_are_the_whole_in_float32(name, more):
    check_shards(name, "device", torch.float32, **more)


def check_shards(name, store, dtype, **more):
    encoder, batch = make(name, dtype, **more), sets(dtype)
    few = SetBatch(batch.elements[:, 8:25], batch.multiplicity[:, 8:25])
    for given, sizes in ((few, [1]), (batch, [7, 64])):  # of one element, 17: self-attention takes every pair
        whole = results(encoder, given)
        for size in sizes:
            assert_same(results(encoder, given, shard_size=size, store=store), whole)


def test_sums_over_shards_lose_no_digits():
    """Gradients of weights, and of what all shards share, are added up in float64, also where weights are float32."""
    encoder, grads = make("ust", torch.float32, depth=1), []
    elements = torch.randn(1, 2, D).repeat(1, 3, 1)  # the same shard three times
    scale = torch.tensor([2.0**25, 1, -(2.0**25)]).repeat_interleave(2)[:, None]  # all but the second cancel
    for dtype in (torch.float32, torch.float64):
        encoder.to(dtype)
        out = encoder(SetBatch(elements.to(dtype)), shard_size=2).elements
        parameters = [p for n, p in encoder.layers.named_parameters() if "ffn" in n]
        grads.append([g.double() for g in torch.autograd.grad((out * scale.to(dtype)).sum(), parameters)])
    for got, expected in zip(*grads, strict=True):
        assert relative_error(got, expected) < 1e-5


@pytest.mark.parametrize(("name", "more"), BUILT)
def test_a_source_that_is_read_anew(name, more):
    encoder, batch = make(name, **more), sets()
    summary, gradients = results(encoder, batch, source=[batch])
    for store in STORES.get(name, stores.STORES):
        got = results(encoder, batch, source=batch.shards(7), store=store)
        assert_same(got, (summary, gradients))
    shards = batch.shards(11)  # in any order
    for order in (shards[::-1], [shards[i] for i in torch.randperm(len(shards))]):
        assert_same(results(encoder, batch, source=order), (summary, gradients))
    with torch.no_grad():
        out = encoder(batch.shards(7), store=store)
        whole = encoder(batch)
    if encoder.outputs_elements:
        for _ in range(2):  # as often as one likes
            elements = torch.cat([shard.elements for shard in out.elements], 1)
            assert relative_error(elements, whole.elements) <= 1e-12
    else:
        assert out.elements is whole.elements is None


@pytest.mark.parametrize(("name", "more"), BUILT)
@pytest.mark.parametrize("absent", [0, 3, 6])
def test_a_shard_fully_absent(name, more, absent):
    """It changes nothing: as if it had been left out."""
    encoder, batch = make(name, **more), sets()
    m = batch.multiplicity.clone()
    m[:, absent * 10 : absent * 10 + 10] = 0
    shards = SetBatch(batch.elements, m).shards(10)
    without = shards[:absent] + shards[absent + 1 :]
    assert_same(results(encoder, batch, source=shards), results(encoder, batch, source=without))


PLAIN = [(name, {}) for name in ["deep-sets", "abmil", *WITH_ELEMENTS]]  # slots: tests/test_peers.py
SPECIAL = [
    *((name, more) for name, more in BY_OPTION if more.get("pooling") != "max"),
    ("flare", {"ffn_dim": 7, "hidden_layers": 1}),
    ("flare", {"ffn_dim": 0, "hidden_layers": 0, "activation": "relu"}),
]


@pytest.mark.parametrize(("name", "more"), PLAIN + SPECIAL)
@pytest.mark.parametrize("shard_size", [None, 7])
def test_against_the_oracle_with_elements_repeated(name, more, shard_size):
    encoder = make(name, **{"decoder_depth": 1} | more)
    batch = SetBatch(torch.randn(B, 17, D, dtype=torch.float64), torch.randint(0, 4, (B, 17)))
    out = encoder(batch, shard_size=shard_size)
    expected = [
        encode(encoder, e.repeat_interleave(c, 0)) for e, c in zip(batch.elements, batch.multiplicity, strict=True)
    ]
    summary = torch.stack([s for _, s in expected])
    assert relative_error(out.summary, summary) <= 1e-12
    upstream, loss, reference = torch.randn_like(summary), 0, 0
    loss, reference = (out.summary * upstream).sum(), (summary * upstream).sum()
    if out.elements is not None:
        copies = torch.cat([e.repeat_interleave(c, 0) for e, c in zip(out.elements, batch.multiplicity, strict=True)])
        repeated = torch.cat([e for e, _ in expected])
        assert relative_error(copies, repeated) <= 1e-12
        upstream = torch.randn_like(repeated)
        loss, reference = loss + (copies * upstream).sum(), reference + (repeated * upstream).sum()
    parameters = [p for n, p in encoder.named_parameters() if not n.endswith("key.bias")]  # 0 in truth
    assert relative_error(torch.autograd.grad(loss, parameters), torch.autograd.grad(reference, parameters)) <= 1e-12


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in MERGED), *BY_OPTION])
@pytest.mark.parametrize("length", [0, 5])
def test_empty_sets_are_finite(name, more, length):
    encoder = make(name, **more)
    batch = SetBatch(torch.randn(B, length, D, dtype=torch.float64), torch.zeros(B, length))
    for options in ({}, {"shard_size": 2}):
        (summary, *_), gradients = results(encoder, batch, **options)
        assert summary.isfinite().all()
        assert all(g.isfinite().all() for g in gradients)
        assert relative_error(summary[0], summary[1]) == 0


def test_whole_gradients_by_finite_differences():
    encoder = make("ust", depth=1)
    batch = SetBatch(torch.randn(1, 5, D, dtype=torch.float64), torch.tensor([[1.0, 2, 0, 0.5, 3]]).double())

    def f(elements, multiplicity):
        return encoder(SetBatch(elements, multiplicity, validate=False), shard_size=2).summary

    inputs = batch.elements.requires_grad_(), (batch.multiplicity + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(f, inputs)


def graph_bytes(function):
    """Most bytes that autograd graphs held at one time, forward and backward, counted as they are saved and freed."""
    held = {"now": 0, "peak": 0}

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor.detach()  # a result that is saved would hold the node that holds it
            size = tensor.numel() * tensor.element_size()
            held["now"] += size
            held["peak"] = max(held["peak"], held["now"])
            weakref.finalize(self, lambda: held.__setitem__("now", held["now"] - size))

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        function()
    return held["peak"]


@pytest.mark.parametrize("name", KINDS)
def test_exact_gradient_keeps_the_graph_of_one_shard(name):
    encoder = make(name, depth=1 if name == "set-transformer-sab" else 3)
    number = 9 if name == "set-transformer-sab" else 13  # of a SAB every pair of shards
    if name == "sse":
        number = 17  # next to which the queries of slots, which each shard has anew, are small
        encoder.decoder = torch.nn.Identity()  # its graph is that of the slots, however large the set is
    batch = SetBatch(torch.randn(B, number * 16, D, dtype=torch.float64))
    one = SetBatch(batch.elements[:, :16])

    def step(source, **options):
        return lambda: encoder(source, **options).summary.sum().backward()

    with pytest.MonkeyPatch.context() as patch:  # of the plain form: the folded one keeps hardly more than its input
        patch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
        whole = graph_bytes(step(batch))
    shard = graph_bytes(step(one))
    for store in STORES.get(name, stores.STORES):
        streamed = graph_bytes(step(batch, shard_size=16, store=store))
        assert streamed <= shard < whole / 8


@pytest.fixture
def new_objects_only():
    """What lives already (modules, mostly) is left out of `gc.get_objects`, which is slow with it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", ["deep-sets", "ust"])
@pytest.mark.parametrize("store", ["disk", "recompute"])
def test_a_stream_is_not_held_in_memory(name, store, new_objects_only):
    """Bytes of all living tensors, looked at in every pass as the last shard is read, do not grow with their number."""
    encoder = make(name)

    class Stream:
        def __init__(self, shards):
            self.shards, self.most = shards, 0

        def __iter__(self):
            for i in range(self.shards):
                if i == self.shards - 1:  # whatever a pass keeps of its shards is there by now
                    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors()}
                    self.most = max(self.most, sum(storages.values()))
                yield SetBatch(torch.randn(1, 512, D, dtype=torch.float64, generator=torch.Generator().manual_seed(i)))

    def tensors():
        return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]

    def most(shards):
        gc.collect()
        stream = Stream(shards)
        encoder(stream, store=store).summary.sum().backward()
        return stream.most

    assert most(13) <= most(5) + 4096  # a shard has 8192 bytes


@pytest.mark.parametrize(
    ("name", "store"), [("ust", "device"), ("ust", "recompute"), ("set-transformer-sab", "device"), ("umbc", "device")]
)
def test_below_frozen_layers_there_is_no_backward(name, store, monkeypatch):
    encoder, batch = make(name, depth=3), sets()
    passes, go = [], Run._shards_gradient
    monkeypatch.setattr(Run, "_shards_gradient", lambda self, *a, **k: (passes.append(a), go(self, *a, **k))[1])
    stages = len(encoder.layers) + 1
    for frozen in range(stages + 1):  # the embedding, then a layer each
        if frozen:
            [encoder.embed, *encoder.layers][frozen - 1].requires_grad_(False)
        trained = [p for p in encoder.parameters() if p.requires_grad]
        found = []
        for shard_size in (None, 20):
            summary = encoder(batch, shard_size=shard_size, store=store).summary
            found.append(torch.autograd.grad(summary.sin().sum(), trained, allow_unused=True))
        assert [g is None for g in found[0]] == [g is None for g in found[1]]
        pairs = [(a, b) for a, b in zip(*found, strict=True) if a is not None]
        assert relative_error([b for _, b in pairs], [a for a, _ in pairs]) <= 1e-12
        if store == "device" and frozen > 1:
            assert len(passes) == stages - frozen + 1
        passes.clear()


def test_what_a_run_keeps_goes_with_its_outputs(monkeypatch):
    """No cycle of references, which would hold memory until the garbage collector happens to come by."""
    made, start = [], Run.__init__
    monkeypatch.setattr(
        Run, "__init__", lambda self, *a, **k: (start(self, *a, **k), made.append(weakref.ref(self)))[0]
    )
    gc.disable()
    try:
        for name in MERGED:
            out = make(name)(sets(), shard_size=7)
            assert out.summary.requires_grad
            assert made[-1]() is not None
            del out
            assert made[-1]() is None
    finally:
        gc.enable()


def test_first_shard_gradient_is_bounded_and_literal_is_not():
    encoder = make("ust", depth=3)
    batch = SetBatch(torch.randn(B, 64 * 16, D, dtype=torch.float64))

    def step(gradient):
        return lambda: encoder(batch, shard_size=16, gradient=gradient).summary.sum().backward()

    shard = graph_bytes(lambda: encoder(SetBatch(batch.elements[:, :16])).summary.sum().backward())
    assert graph_bytes(step("first-shard")) < 2 * shard
    assert graph_bytes(step("first-shard-literal")) > 16 * shard


def stopped(encoder, batch, size, literal):
    """StopGrad written with plain autograd on one induced layer and PMA, sharing nothing with the engine."""
    first = torch.zeros(batch.elements.shape[1]).bool()
    first[:size] = True

    def live(x):
        return torch.where(first[:, None], x, x.detach())

    def attend(block, queries, x, m, cut):
        """Softmax attention whose sums over the other shards are constants if `cut`."""
        q, y = block.norm_queries(queries), block.norm_elements(x)
        q, k, v = (
            z.unflatten(-1, (block.num_heads, -1)).transpose(1, 2)
            for z in (block.query(q), block.key(y), block.value(y))
        )
        logits = q @ k.mT / k.shape[-1] ** 0.5
        w = torch.exp(logits - logits.amax(-1, True).detach()) * m[:, None, None]
        total = 0
        for part in (first, ~first):
            num, den = w[..., part] @ v[..., part, :], w[..., part].sum(-1, True)
            total = (
                (num, den)
                if part is first
                else (total[0] + (num.detach() if cut else num), total[1] + (den.detach() if cut else den))
            )
        heads = (total[0] / total[1]).transpose(1, 2).flatten(2)
        h = queries + block.output(heads)
        return h + block.ffn(block.norm_ffn(h))

    m, (layer,) = batch.multiplicity, encoder.layers
    x = encoder.embed(batch.elements)
    context = attend(layer.gather, layer.points.expand(len(m), -1, -1), x, m, cut=not literal)
    y = (
        layer.spread(x, context)
        if literal
        else torch.cat([layer.spread(x[:, :size], context), layer.spread(x[:, size:], context).detach()], 1)
    )
    if literal:  # only what the pool sees is cut
        return attend(encoder.pool.gather, encoder.pool.points.expand(len(m), -1, -1), live(y), m, cut=False)
    return attend(encoder.pool.gather, encoder.pool.points.expand(len(m), -1, -1), live(y), m, cut=True)


@pytest.mark.parametrize("literal", [False, True])
def test_first_shard_gradients(literal):
    encoder = make("ust", depth=1)
    batch = SetBatch(torch.randn(B, 23, D, dtype=torch.float64), torch.rand(B, 23, dtype=torch.float64) + 0.1)
    gradient = "first-shard-literal" if literal else "first-shard"
    expected = stopped(encoder, batch, 7, literal)
    upstream = torch.randn_like(expected)
    parameters = list(encoder.parameters())
    reference = torch.autograd.grad((expected * upstream).sum(), parameters)
    for store in stores.STORES:
        out = encoder(batch, shard_size=7, gradient=gradient, store=store)
        assert relative_error(out.summary, expected) <= 1e-12
        got = torch.autograd.grad((out.summary * upstream).sum(), parameters)
        assert relative_error(got, reference) <= 1e-12
    exact = torch.autograd.grad((encoder(batch, shard_size=7).summary * upstream).sum(), parameters)
    assert relative_error(got, exact) > 1e-2


@pytest.mark.parametrize("name", [n for n in MERGED if n != "deep-sets"])
def test_first_shard_changes_gradients_only(name):
    encoder, batch = make(name), sets()
    whole = results(encoder, batch)
    for gradient in ("first-shard", "first-shard-literal"):
        got = results(encoder, batch, shard_size=7, gradient=gradient)
        assert relative_error(got[0], whole[0]) <= 1e-12
        assert relative_error(got[1], whole[1]) > 1e-2
        assert gradient != "first-shard" or not got[1][0][:, 7:].any()  # elements of the others get none


@pytest.mark.parametrize("at_once", [1, 14 * B, 1000])  # entries: one shard, two, or all
@pytest.mark.parametrize("name", [n for n, e in encoders.ENCODERS.items() if not e.recurrent])
def test_independent_shards(name, at_once, monkeypatch):
    """The mean of the summaries of those shards in which a set has elements; really something else than the whole."""
    monkeypatch.setattr(engine, "AT_ONCE", at_once)
    encoder, batch = make(name), sets()
    out = encoder(batch, shard_size=7, shards="independent")
    means = []
    for b in range(B):
        shards = [s[b : b + 1] for s in batch.shards(7)]
        present = [encoder(s).summary for s in shards if (s.multiplicity > 0).any()] or [encoder(shards[0]).summary]
        means.append(torch.cat(present).mean(0))
    expected = torch.stack(means)
    assert relative_error(out.summary, expected) <= 1e-12
    if out.elements is not None:
        each = torch.cat([encoder(s).elements for s in batch.shards(7)], 1)
        assert relative_error(out.elements, each) <= 1e-12
    assert relative_error(out.summary, encoder(batch).summary) > 1e-3
    streamed = encoder(batch.shards(7), shards="independent")
    assert relative_error(streamed.summary, out.summary) <= 1e-12
    if out.elements is not None:
        assert relative_error(torch.cat([s.elements for s in streamed.elements], 1), out.elements) <= 1e-12
    parameters = list(encoder.parameters())
    first = encoder(batch, shard_size=7, shards="independent", gradient="first-shard").summary
    exact, stopped, true = (
        [g for g in torch.autograd.grad(y.square().sum(), parameters, allow_unused=True) if g is not None]
        for y in (out.summary, first, expected)
    )
    assert relative_error(exact, true) <= 1e-11
    assert relative_error(stopped, true) > 1e-2


def test_a_set_does_not_see_its_batch_mates():
    for name in encoders.ENCODERS:
        encoder, batch = make(name), sets()
        alone = SetBatch.from_ragged(*([part[2]] for part in batch.to_ragged()))
        for options in ({}, {"shard_size": 7}, {"shard_size": 80, "shards": "independent"}):
            if options == {"shard_size": 7} and name not in MERGED:
                continue
            got = encoder(batch, **options).summary[2:]
            assert relative_error(got, encoder(alone, **options).summary) <= 1e-12


@pytest.mark.parametrize("name", WITH_ELEMENTS)
def test_contextualize(name):
    """Elements of the set come out as they did; new ones as if they had been members of multiplicity 0."""
    encoder, batch = make(name), sets()
    for options in ({}, {"shard_size": 7}):
        out = encoder(batch, **options)
        again = encoder.contextualize(batch, out.contexts)
        assert relative_error(again, out.elements) <= 1e-12
    new = torch.randn(B, 5, D, dtype=torch.float64)
    joined = SetBatch(
        torch.cat([batch.elements, new], 1),
        torch.cat([batch.multiplicity, torch.full((B, 5), 1e-300, dtype=torch.float64)], 1),
    )
    expected = encoder(joined).elements[:, N:]
    got = encoder.contextualize(SetBatch(new), out.contexts)
    assert relative_error(got[1:], expected[1:]) <= 1e-12  # in the empty set even 1e-300 is all there is
    with pytest.raises(ValueError, match=f"contexts are of {B} sets, and batch has 1"):
        encoder.contextualize(batch[:1], out.contexts)
    with pytest.raises(ValueError, match="has 2 contexts for elements, got 1"):
        encoder.contextualize(batch, out.contexts[:1])
    with pytest.raises(ValueError, match="contexts is None: shards='independent' leaves none"):
        encoder.contextualize(batch, encoder(batch, shard_size=7, shards="independent").contexts)


def test_contexts_carry_gradients_through_shards():
    encoder, batch = make("ust"), sets()
    new = SetBatch(torch.randn(B, 5, D, dtype=torch.float64))

    def grads(**options):
        loss = encoder.contextualize(new, encoder(batch, **options).contexts).square().sum()
        parameters = [p for n, p in encoder.named_parameters() if not n.startswith("pool")]
        return torch.autograd.grad(loss, parameters)

    for store in stores.STORES:
        assert relative_error(grads(shard_size=7, store=store), grads()) <= 1e-12


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("alone", [False, True])
def test_dropout_is_replayed(name, alone):
    """The streamed gradient is that of the very masks drawn in the forward.

    Also where the dropouts alone are in training, as for Monte Carlo dropout.
    """
    for store in STORES.get(name, stores.STORES)[: 1 if alone else None]:
        encoder, batch = make(name, dropout=0.3).train(), sets()
        for module in encoder.modules():
            module.training = not alone or isinstance(module, torch.nn.Dropout)
        parameters = list(encoder.parameters())

        def loss(encoder=encoder, batch=batch, store=store):
            torch.manual_seed(7)
            return encoder(batch, shard_size=7, store=store).summary.square().sum()

        assert_along(parameters, torch.autograd.grad(loss(), parameters, allow_unused=True), loss)


NO_DROPOUT = ("abmil", "deep-sets", "sse", "umbc")  # in what the engine runs
WITH_DROPOUT = [name for name in MERGED if name not in NO_DROPOUT]


def watch_masks(encoder):
    """What every dropout drops from here on: by module and shape of its input, all masks in turn."""
    masks = defaultdict(list)
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _, given, out, n=name: masks[n, given[0].shape].append(out != 0))
    return masks


@pytest.mark.parametrize(("name", "store"), [(n, s) for n in WITH_DROPOUT for s in STORES.get(n, stores.STORES)])
def test_masks_of_dropout(name, store):
    """What all shards share has one mask, drawn once; each shard has masks of its own in each layer; the backward has
    those of the forward, and another call has others.
    """
    encoder = make(name, dropout=0.5, num_inducing=2).train()
    sizes = (7, 11, 13)  # which tell the shards from each other
    batch = SetBatch(torch.randn(1, sum(sizes), D, dtype=torch.float64))
    source = [SetBatch(x) for x in batch.elements.split(sizes, 1)]
    masks, found = watch_masks(encoder), []
    for _ in range(2):
        summary = encoder(source, store=store).summary
        drawn = {key: len(given) for key, given in masks.items()}
        torch.rand(3)  # the forward's random numbers are long gone
        summary.sum().backward()
        for (module, shape), given in masks.items():
            assert all(torch.equal(mask, given[0]) for mask in given)
            if shape[1] not in sizes or store != "recompute":  # which maps a shard again for each layer above
                assert (drawn[module, shape], len(given)) == (1, 2)
        found += [(key, given[0].flatten()[:20].tolist()) for key, given in masks.items()]
        masks.clear()
    points = 3 if name in ("ust", "set-transformer-isab") else 1  # layers whose points are shared by all shards
    assert len(found) == 2 * 2 * (2 * len(sizes) + points)  # calls, dropouts of a block, blocks
    assert len({tuple(mask) for _, mask in found}) == len(found)


def drop_within_reduce(encoder):
    """Elements pass a dropout on their way into every state: of full self-attention, into that of its block."""
    for layer in filter(None, [*encoder.layers, encoder.pool]):
        module = getattr(layer, "block", layer)
        module.within = torch.nn.Dropout(0.5)

        def reduce(*given, module=module, plain=module.reduce, place=int(module is not layer)):
            return plain(*(module.within(x) if i == place else x for i, x in enumerate(given)))

        module.reduce = reduce
    return encoder


@pytest.mark.parametrize(("name", "store"), OF_KINDS)
def test_dropout_within_reduce_is_replayed(name, store):
    """Each shard has masks of its own, and the backward has those of the forward."""
    encoder, x = drop_within_reduce(make(name)), torch.randn(1, 17, D, dtype=torch.float64, requires_grad=True)
    for module in encoder.modules():
        module.training = isinstance(module, torch.nn.Dropout)
    masks = watch_masks(encoder)

    def loss():
        torch.manual_seed(7)
        return encoder(SetBatch(x), shard_size=7, store=store).summary.square().sum()

    def distinct(masks):
        return {key: len({tuple(mask.flatten().tolist()) for mask in given}) for key, given in masks.items()}

    value = loss()
    drawn = distinct(masks)
    assert all(number > 1 for (module, shape), number in drawn.items() if "within" in module and shape[1] == 7)
    torch.rand(3)  # the forward's random numbers are long gone
    grads = torch.autograd.grad(value, x)
    assert distinct(masks) == drawn
    assert_along([x], grads, loss)


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_masks_leave_the_stream_of_random_numbers_alone(name):
    """Of which a call takes one number, however many shards there are; the backward none, nor where nothing drops."""
    encoder, batch, after = make(name, dropout=0.5).train(), sets(), []
    for size in (17, 40):
        torch.manual_seed(5)
        summary = encoder(batch, shard_size=size).summary
        after.append(torch.get_rng_state())
        summary.sum().backward()
        after.append(torch.get_rng_state())
    assert all(torch.equal(state, after[0]) for state in after)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert not torch.equal(before, after[0])
    encoder.eval()(batch, shard_size=17)
    assert torch.equal(torch.get_rng_state(), before)


def test_backward_twice():
    encoder, batch = make("ust"), sets()
    loss = encoder(batch, shard_size=7, store="disk").summary.sum()
    first = torch.autograd.grad(loss, encoder.pool.points, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, encoder.pool.points)[0])


ORDER = (
    r"exact gradient of sets in shards cannot be differentiated again: .* encode the sets whole, .*without shard_size"
)


@pytest.mark.parametrize(("name", "store"), OF_KINDS)
def test_second_derivatives_of_shards_are_refused(name, store):
    """However they are asked for: what is left out of a sum would be a wrong second derivative."""
    encoder = make(name, depth=1)
    batch = SetBatch(torch.randn(2, 7, D, dtype=torch.float64, requires_grad=True))
    x, p = batch.elements, next(encoder.pool.parameters(), next(encoder.parameters()))
    for loss in (torch.sum, lambda summary: summary.square().sum()):  # gradients that are constants, and that are not
        value = loss(encoder(batch, shard_size=3, store=store).summary)
        dx, dp = torch.autograd.grad(value, (x, p), create_graph=True)
        plain = torch.autograd.grad(loss(encoder(batch, shard_size=3, store=store).summary), (x, p))
        assert relative_error([dx.detach(), dp.detach()], [*plain]) < 1e-12
        for grad, wanted in itertools.product((dx, dp), (x, p)):
            penalised = grad.square().sum() + wanted.square().sum()
            with pytest.raises(RuntimeError, match=ORDER):
                torch.autograd.grad(penalised, wanted, retain_graph=True, allow_unused=True)
            with pytest.raises(RuntimeError, match=ORDER):
                penalised.backward(inputs=[wanted], retain_graph=True)


def test_second_derivatives_of_what_follows_the_shards():
    """A head's own are exact: only what goes back into the shards a second time is refused."""
    encoder, batch, found = make("ust"), sets(), []
    head = torch.randn(10, dtype=torch.float64, requires_grad=True)
    parameter = encoder.pool.points
    for shard_size in (None, 7):
        value = (encoder(batch, shard_size=shard_size).summary @ head).sin().sum()
        (grad,) = torch.autograd.grad(value, head, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), (head, parameter)))
    assert relative_error([*found[1]], [*found[0]]) < 1e-12


@pytest.mark.parametrize("name", KINDS)
def test_transforms_of_shards_are_refused(name):
    encoder, batch = make(name), sets()

    def f(x, **options):
        return encoder(SetBatch(x, batch.multiplicity, validate=False), shard_size=7, **options).summary.sum()

    with pytest.raises(ValueError, match=r"torch.func cannot transform .* encode them whole, .*without shard_size"):
        torch.func.grad(f)(batch.elements)
    for gradient in ("exact", "first-shard"):
        with pytest.raises(ValueError, match=r"sets in shards have no forward mode: encode them whole"):
            torch.func.jvp(partial(f, gradient=gradient), (batch.elements,), (batch.elements,))
    with torch.no_grad():
        stacked = torch.func.vmap(f)(torch.stack([batch.elements, 2 * batch.elements]))
        each = torch.stack([f(batch.elements), f(2 * batch.elements)])
    assert relative_error(stacked, each) < 1e-12


def test_the_backward_recomputes_in_the_forwards_precision():
    encoder, batch = make("ust", torch.float32), sets(torch.float32)
    seen = []
    encoder.embed.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        out = encoder(batch, shard_size=7)
    assert len(seen) == 10
    out.summary.sum().backward()
    assert seen == [torch.bfloat16] * 20


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shards": "mixed"}, ValueError, "shards must be one of .* got 'mixed'"),
        ({"gradient": "none"}, ValueError, "gradient must be one of .* got 'none'"),
        ({"store": "tape"}, ValueError, "store must be one of .* got 'tape'"),
        ({"store": "cpu:x"}, ValueError, "store must be one of .* got 'cpu:x'"),
        ({"shard_size": 0}, ValueError, "shard_size must be an integer >= 1, got 0"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        make("ust")(sets(), **options)


def test_bad_sources():
    encoder, batch = make("ust"), sets()
    with pytest.raises(TypeError, match="can be read more than once.*got list_iterator"):
        encoder(iter(batch.shards(7)))
    with pytest.raises(TypeError, match="got generator"):
        encoder(s for s in batch.shards(7))
    with pytest.raises(TypeError, match="SetBatch"):
        encoder([batch.elements])
    with pytest.raises(ValueError, match="gave no shard"):
        encoder([])
    with pytest.raises(ValueError, match="shard_size=7 is for a SetBatch"):
        encoder(batch.shards(7), shard_size=7)
    with pytest.raises(ValueError, match=r"elements must have 2 features \(input_dim\), got 3"):
        encoder(SetBatch(torch.zeros(1, 2, 3)))
    with pytest.raises(ValueError, match="shard 0 has 3, shard 1 has 2"):
        encoder([batch, batch[:2]])
    with pytest.raises(ValueError, match="shard 0 of a re-iterable source requires grad"):
        encoder([SetBatch(batch.elements.clone().requires_grad_())])
    with pytest.raises(ValueError, match="streams from store='device' or 'cpu', got 'disk'"):
        make("set-transformer-sab")(batch, shard_size=7, store="disk")

    class Shrinking:
        def __init__(self):
            self.left = 5

        def __iter__(self):
            self.left -= 1
            return iter(batch.shards(20)[: self.left])

    with pytest.raises(ValueError, match="gave 4 shards when first read and 3 when read again"):
        encoder(Shrinking(), store="recompute")


def test_disk_store_leaves_nothing_behind(tmp_path, monkeypatch):
    encoder, batch = make("ust"), sets()
    store = f"disk:{tmp_path}"
    encoder(batch, shard_size=7, store=store).summary.sum().backward()
    assert list(tmp_path.iterdir()) == []

    class BrokenError(Exception):
        pass

    def broken(*_):
        raise BrokenError

    monkeypatch.setattr(encoder.pool, "reduce", broken)
    with pytest.raises(BrokenError):
        encoder(batch, shard_size=7, store=store)
    assert list(tmp_path.iterdir()) == []


def test_full_disk(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    real = disk.tempfile.TemporaryFile
    monkeypatch.setattr(disk.tempfile, "TemporaryFile", lambda **k: Full(real(**k)))
    with pytest.raises(OSError, match="store='disk' is full: No space left on device.*its file was removed") as caught:
        make("ust")(sets(), shard_size=7, store=f"disk:{tmp_path}")
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_disk_store_in_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="store='disk' cannot write to its folder"):
        make("ust")(sets(), shard_size=7, store=f"disk:{tmp_path / 'nowhere'}")


def test_disk_store_keeps_any_tensor_and_reuses_room():
    store = stores.open_store("disk")
    for i, tensor in enumerate((torch.randn(3, 5), torch.zeros(0, 4), torch.arange(7), torch.randn(2, 3).bfloat16())):
        store.put(i, tensor)
        assert torch.equal(store.get(i), tensor)
        assert store.get(i).dtype == tensor.dtype
    for _ in range(10):
        store.put("again", torch.randn(1000))
    assert store._end < 2 * 4000 + 1000
