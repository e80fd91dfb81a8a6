"""The seed's network of region pairs: its mathematics in float64, and the mistakes of the original, one by one."""

import itertools
import math
import warnings

import pytest
import torch
from torch import nn

from omniset.regions import seed as published
from omniset.regions.seed import BINS, CrossAttention, ExpressionTokens, TokenPooling
from omniset.testing import relative_error

N, GENES, TOKEN, DIM, HEADS, DEPTH, HIDDEN = 5, 13, 11, 6, 2, 3, (17, 19, 23)
SMALL = {"TOKEN_DIM": TOKEN, "HEADS": HEADS, "HIDDEN": HIDDEN}
REGIONS = torch.arange(N)
ALL = [(cls, pooling) for cls in ("random", "spatial") for pooling in ("mean", "attention", "cls")]
every_network = pytest.mark.parametrize("case", ALL, ids="-".join)
some_networks = pytest.mark.parametrize("case", [ALL[0], ALL[4], ALL[5]], ids="-".join)


def made(cls="random", pooling="mean", vectors=None, dropout=0.0):
    """A small network, as at its start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SMALL, "DROPOUT": dropout}.items():
            patch.setattr(published, name, value)
        return CrossAttention(GENES, DIM, DEPTH, cls, pooling, vectors)


def network_of(case, learned=False, dropout=0.0):
    """In eval mode and float64, all parameters and statistics away from their start, so that none can be forgotten."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of pooling="cls", which has a test
        network = made(*case, None if learned else 2 * torch.randn(GENES, TOKEN), dropout).double()
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    if case[0] == "spatial":
        network.cls_projection.weight.data *= 30  # against the factor of 0.02
        network.standardise(torch.tensor([9.0, -20, 31]) + torch.tensor([40.0, 20, 11]) * torch.randn(19, 3))
    return network.eval()


def regions():
    """Expression beyond [0, 1], some of it missing; region 3 has no genes. Places in mm."""
    generator = torch.Generator().manual_seed(7)
    expression = 1.4 * torch.rand(N, GENES, generator=generator) - 0.2
    expression[torch.rand(N, GENES, generator=generator) < 0.2] = torch.nan
    expression[3] = torch.nan
    return expression, 50 * torch.randn(N, 3, generator=generator, dtype=torch.float64)


def every_pair(network, expression, coordinates):
    return network(expression, REGIONS, REGIONS, coordinates)


def parameters_of(module):
    return sum(p.numel() for p in module.parameters())


def test_parameters_of_the_published_size():
    genes, d, token, bins = 17, 128, 200, 5  # no number of genes changes it, as their vectors are not learned
    tokens = (bins * token + token) + (token * d + d)
    cls = 6 + (6 * d + d)
    layers = 4 * (4 * (d * d + d) + (d * 4 * d + 4 * d) + (4 * d * d + d) + 2 * (2 * d))
    norms = 2 * (512 + 256 + 128)
    head = (d * 512 + 512) + (512 * 256 + 256) + (256 * 128 + 128) + (128 + 1) + norms
    vectors = torch.zeros(genes, token)
    network = CrossAttention(genes, vectors=vectors)
    parts = (network.tokens, network.layers, network.head)
    assert [parameters_of(part) for part in parts] == [tokens, layers, head]
    assert parameters_of(network) == tokens + cls + layers + head == 1_053_111
    assert parameters_of(CrossAttention(genes, vectors=vectors, cls="spatial")) == 1_053_111 - 6
    assert parameters_of(CrossAttention(genes, vectors=vectors, pooling="attention")) == 1_053_111 + d * d + d
    assert parameters_of(CrossAttention(genes)) == 1_053_111 + genes * token


def test_bins():
    """Bin k is [k/K, (k+1)/K), the last with its end; what is outside goes to the ends."""
    bins = BINS
    edges = [k / bins for k in range(bins)]
    x = torch.tensor([[*edges, *(e + 0.5 / bins for e in edges), 1.0, -0.5, 1.5]])
    tokens = ExpressionTokens(x.shape[1], DIM)
    found = tokens.one_hot(x)
    assert found.sum(-1).eq(1).all()
    assert found.argmax(-1)[0].tolist() == [*range(bins), *range(bins), bins - 1, 0, bins - 1]
    assert tokens.one_hot(x.double()).equal(found)
    below = tokens.one_hot(x.nextafter(torch.tensor(-1.0))).argmax(-1)[0].tolist()
    assert below[1:bins] == list(range(bins - 1))


def linear(layer, x):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def token_of(tokens, x, gene):
    """One gene of one region, from the formula."""
    k = sum(float(x) >= float(torch.tensor(e / BINS)) for e in range(1, BINS))
    one_hot = torch.zeros(BINS, dtype=torch.float64)
    one_hot[k] = 1
    return linear(tokens.project, linear(tokens.bin, one_hot) + tokens.vectors[gene])


def norm(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def layer_of(block, queries, keys):
    """One region, one head at a time; no key: the heads give 0."""
    width = DIM // HEADS
    q, k, v = linear(block.query, queries), linear(block.key, keys), linear(block.value, keys)
    heads = []
    for h in range(HEADS):
        part = slice(h * width, (h + 1) * width)
        e = torch.exp(q[:, part] @ k[:, part].T / math.sqrt(width))
        total = e.sum(1, keepdim=True)
        heads.append((e / (total if len(keys) else 1)) @ v[:, part])
    x = norm(block.norm_attention, queries + linear(block.output, torch.cat(heads, 1)))
    return norm(block.norm_ffn, x + linear(block.ffn[2], linear(block.ffn[0], x).clamp(min=0)))


def pooled_of(pool, rows, how):
    if how == "cls":
        return rows[0]
    if how == "mean":
        return sum(rows) / len(rows)
    e = torch.exp(linear(pool.score[2], torch.tanh(linear(pool.score[0], rows))))
    return (e / e.sum() * rows).sum(0)


def head_of(head, rows, training):
    for step in range(3):
        first, _, batch_norm, _ = head.layers[4 * step : 4 * step + 4]
        rows = linear(first, rows).clamp(min=0)
        if training:
            mean, var = rows.mean(0), rows.var(0, correction=0)
        else:
            mean, var = batch_norm.running_mean, batch_norm.running_var
        rows = (rows - mean) / (var + 1e-5).sqrt() * batch_norm.weight + batch_norm.bias
    return linear(head.layers[-1], rows)[:, 0]


def oracle(network, case, expression, pairs, coordinates, training=False):
    """Pair by pair, gene by gene; an absent gene has no token at all."""
    cls, pooling = case
    genes = []
    for region in expression:
        tokens = [token_of(network.tokens, x, g) for g, x in enumerate(region) if not x.isnan()]
        genes.append(torch.stack(tokens) if tokens else torch.zeros(0, DIM, dtype=torch.float64))
    pooled = []
    for i, j in pairs.tolist():
        first = network.cls
        if cls == "spatial":
            both = torch.cat([coordinates[i], coordinates[j]])
            first = 0.02 * (both - network.statistics.shift.repeat(2)) / network.statistics.scale.repeat(2)
        first = linear(network.cls_projection, first)
        rows = torch.cat([first[None], genes[i]])
        for block in network.layers:
            rows = layer_of(block, rows, genes[j])
        pooled.append(pooled_of(network.pool, rows, pooling))
    return head_of(network.head, torch.stack(pooled), training)


@every_network
def test_forward_against_the_oracle(case):
    """Outputs and gradients, in eval mode, and in training with the batch's own statistics in the head."""
    network = network_of(case, learned=case[1] == "mean")
    expression, coordinates = regions()
    rows, columns = torch.tensor([4, 0, 3]), torch.tensor([1, 0, 2, 3, 4])
    pairs = torch.cartesian_prod(rows, columns)
    for training in (False, True):
        network.train(training)
        parameters = list(network.parameters())
        expected = oracle(network, case, expression, pairs, coordinates, training)
        got = network(expression, rows, columns, coordinates)
        assert got.shape == (3, 5)
        got = got.flatten()
        assert relative_error(got, expected) < 1e-12
        upstream = torch.randn(15, dtype=torch.float64)
        grads = [torch.autograd.grad(x, parameters, upstream, materialize_grads=True) for x in (got, expected)]
        assert relative_error(grads[0], grads[1]) < 1e-10
        assert len(set(expected.tolist())) == 15 or case[1] == "cls"  # or there was nothing to compare


# ---------------------------------------------------------------------- mistakes of the original


@some_networks
def test_pairs_know_nothing_of_each_other(case):
    network = network_of(case)
    expression, coordinates = regions()
    together = every_pair(network, expression, coordinates)
    for rows, columns in (([0], [1]), ([4], [0]), ([3, 1], [1]), ([2], [2, 0, 3])):
        got = network(expression, torch.tensor(rows), torch.tensor(columns), coordinates)
        assert relative_error(got, together[rows][:, columns]) < 1e-13
    # Regions of no pair are nothing to it, whatever they are.
    others = torch.cat([expression.flip(0), expression])
    places = torch.cat([torch.full((N, 3), torch.nan, dtype=torch.float64), coordinates])
    assert relative_error(network(others, REGIONS + N, REGIONS + N, places), together) < 1e-13


def test_coordinates_are_standardised_with_stored_statistics():
    network = network_of(("spatial", "mean"))
    expression, coordinates = regions()
    training = torch.tensor([[1.0, -2, 30], [4, -2, 10], [10, -2, 20]])
    network.standardise(training)
    assert relative_error(network.statistics.shift, torch.tensor([5.0, -2, 20])) < 1e-12
    expected = torch.tensor([14.0, 1, 200 / 3], dtype=torch.float64).sqrt()  # the constant column is only shifted
    assert relative_error(network.statistics.scale, expected) < 1e-12
    before = [buffer.clone() for buffer in network.statistics.buffers()]
    every_pair(network.train(), expression, coordinates)
    assert all(torch.equal(a, b) for a, b in zip(network.statistics.buffers(), before, strict=True))
    got = every_pair(network.eval(), expression, coordinates)
    again = made("spatial", vectors=torch.zeros(GENES, TOKEN)).double().eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(every_pair(again, expression, coordinates), got)


def test_order_of_the_genes():
    """Columns and vectors permuted alike change nothing; columns alone do."""
    expression, coordinates = regions()
    order = torch.randperm(GENES, generator=torch.Generator().manual_seed(2))
    for case in (ALL[0], ALL[4]):
        network = network_of(case)
        expected = every_pair(network, expression, coordinates)
        alone = every_pair(network, expression[:, order], coordinates)
        network.tokens.vectors = network.tokens.vectors[order]
        assert relative_error(every_pair(network, expression[:, order], coordinates), expected) < 1e-13
        assert relative_error(alone, expected) > 1e-4


def test_it_costs_no_more_with_more_rows():
    """Beyond K G + 1 queries for each column there is nothing left to compute."""
    network = network_of(("random", "mean"))
    expression, columns, seen = torch.rand(101, GENES), torch.tensor([0, 7]), []
    network.layers[0].register_forward_pre_hook(lambda module, given: seen.append(tuple(given[0].shape[:2])))
    network(expression, torch.arange(101), columns)
    network(expression, torch.tensor([5]), columns)
    assert seen == [(2, 1 + BINS * GENES), (2, 1 + GENES)]


@pytest.mark.parametrize("pooling", ["mean", "attention", "cls"])
def test_pooling_of_large_scores(pooling):
    """A subset whose scores are far below the others' is pooled all the same."""
    pool = TokenPooling(DIM, pooling).double()
    if pooling == "attention":
        pool.score[2].weight.data *= 3000
    x = torch.randn(2, 1 + GENES, DIM, dtype=torch.float64)
    members = (torch.rand(5, GENES) < 0.5).double()
    got = pool(x[:, :1], x[:, 1:], members)
    for subset, each in itertools.product(range(5), range(2)):
        rows = x[each, torch.cat([torch.ones(1), members[subset]]) > 0]
        scores = torch.zeros(len(rows)) if pooling != "attention" else pool.score(rows)[:, 0]
        expected = rows[0] if pooling == "cls" else scores.double().softmax(0) @ rows
        assert relative_error(got[subset, each], expected) < 1e-12


@pytest.mark.parametrize("cls", ["random", "spatial"])
def test_attention_is_that_of_torch(cls):
    network = network_of((cls, "mean"))
    expression, coordinates = regions()
    block = network.layers[-1]
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    parts = (block.query, block.key, block.value)
    theirs.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    present = ~expression.isnan()
    for i, j in ((0, 1), (1, 0), (2, 4), (3, 1), (0, 3), (2, 2)):
        got = network.attention(expression[[i, j]], coordinates[[i, j]])
        first = network._cls(REGIONS[[i]], REGIONS[[j]], coordinates)[0]
        rows = torch.cat([first, _genes(network, expression[i])])
        keys = _genes(network, expression[j])
        for before in list(network.layers)[:-1]:
            rows = layer_of(before, rows, keys)
        expected = torch.zeros(1 + GENES, GENES, dtype=torch.float64)
        if len(keys):
            _, weights = theirs(rows, keys, keys)
            at = torch.cat([torch.tensor([True]), present[i]])
            expected[at.nonzero(), present[j].nonzero()[:, 0]] = weights
            assert relative_error(got[at].sum(-1), torch.ones(int(at.sum()), dtype=torch.float64)) < 1e-13
        assert relative_error(got, expected) < 1e-12


def _genes(network, expression):
    present = (~expression.isnan()).nonzero()[:, 0]
    return network.tokens(expression[None]).elements[0, present]


def test_vectors_are_frozen_and_stored_once():
    vectors = torch.randn(GENES, TOKEN)
    given, network = vectors.clone(), made(vectors=vectors)
    vectors.zero_()  # the caller's, of which the network has a copy
    state = network.state_dict()
    assert [name for name, tensor in state.items() if tensor.shape == vectors.shape] == ["tokens.vectors"]
    assert torch.equal(state["tokens.vectors"], given)
    assert "tokens.vectors" not in dict(network.named_parameters())
    assert "tokens.vectors" in dict(made().named_parameters())


def test_the_start_of_cls():
    start = torch.cat([made().cls.detach() for _ in range(11)])
    assert start.shape == (66,)
    assert 0.015 < start.std() < 0.025
    assert start.abs().max() < 0.1


def test_dropout():
    """In attention, FFN and head in training; off in eval."""
    given = regions()
    network = network_of(ALL[0], dropout=0.3)
    rates = [module.p for module in network.modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.3] * (2 * DEPTH + len(HIDDEN))
    assert torch.equal(every_pair(network, *given), every_pair(network, *given))
    network.train()
    assert relative_error(every_pair(network, *given), every_pair(network, *given)) > 1e-3
