"""The seed's network of cells: its published sizes, its mathematics in float64, its loss and its sampling."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from omniset.cells.seed import SeedModel, seed_loss
from omniset.layers import SetAttentionBlock
from omniset.testing import relative_error

GENES, TOKEN, DIM, HEADS, DEPTH, FFN, OUT, DATASETS, DATASET_DIM = 29, 11, 6, 2, 2, 13, 5, 7, 3
B, N, T = 4, 13, 11
SIZES = {
    "token_dim": TOKEN,
    "dim": DIM,
    "num_heads": HEADS,
    "depth": DEPTH,
    "ffn_dim": FFN,
    "output_dim": OUT,
    "dataset_dim": DATASET_DIM,
}
PUBLISHED = {"datasets": 1139}  # as in the public original's configuration; all other sizes are the defaults


def model_of(learned=False, datasets=DATASETS, **options):
    """In float64, all parameters away from their start, so that none can be forgotten unnoticed."""
    vectors = None if learned else 3 * torch.randn(GENES, TOKEN)
    model = SeedModel(vectors, GENES, datasets=datasets, **(SIZES | options)).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def cells(seed=0):
    """Genes each at most once in a cell; multiplicities of 0, 1 and 2; the last cell is empty."""
    generator = torch.Generator().manual_seed(seed)
    genes = torch.stack([torch.randperm(GENES, generator=generator)[:N] for _ in range(B)])
    counts = 9 * torch.rand(B, N, generator=generator, dtype=torch.float64)
    multiplicity = torch.randint(0, 3, (B, N), generator=generator)
    multiplicity[0] = 1
    multiplicity[-1] = 0
    tasks = torch.randint(0, GENES, (B, T), generator=generator)
    depth = torch.rand(B, generator=generator, dtype=torch.float64)
    return genes, counts, multiplicity, tasks, depth


# ---------------------------------------------------------------------- the published size


def parameters_of(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def test_parameters_of_the_published_size():
    with torch.device("meta"):
        model = SeedModel(torch.empty(19_790, 5120), 19_790, **PUBLISHED)
    e, d, f, o, w = 5120, 512, 1024, 512, 512 + 512 + 1 + 10

    def skip(n):
        return (n * 2 * n + 2 * n) + (2 * n * n + n) + 2 * n

    parts = {
        "encoder": (model.encoder, e * d + d + 2 * d, 2.6),
        "transformer": (model.transformer, 8 * (4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d), 16.8),
        "decoder": (model.decoder, skip(d) + d * o + o, 1.3),
        "binary decoder": (model.binary_decoder, 2 * skip(w) + w + 1, 8.6),
    }
    for name, (module, by_hand, published) in parts.items():
        assert parameters_of(module) == by_hand, name
        assert round(by_hand / 1e6, 1) == published, name
    count = (512 + 512) + (512 * 10 + 10) + 10 * d
    dataset = (o * 10 + 10) + (o * d + d + 2 * d + d * 1139 + 1139)
    total = sum(by_hand for _, by_hand, _ in parts.values()) + count + dataset + 2 * e  # CLS and dataset token
    assert parameters_of(model) == total
    assert round(total / 1e6, 1) == 30.2


def test_a_layer_is_that_of_torch():
    ours = SetAttentionBlock(DIM, HEADS, FFN, norm="post", activation="gelu").double()
    theirs = nn.TransformerEncoderLayer(DIM, HEADS, FFN, dropout=0.0, activation="gelu", batch_first=True).double()
    assert parameters_of(ours) == parameters_of(theirs)
    for parameter in theirs.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    block = ours.block
    weights, biases = theirs.self_attn.in_proj_weight.chunk(3), theirs.self_attn.in_proj_bias.chunk(3)
    for projection, w, b in zip((block.query, block.key, block.value), weights, biases, strict=True):
        projection.weight.data, projection.bias.data = w.data, b.data
    block.output.load_state_dict(theirs.self_attn.out_proj.state_dict())
    block.ffn[0].load_state_dict(theirs.linear1.state_dict())
    block.ffn[2].load_state_dict(theirs.linear2.state_dict())
    block.norm_attention.load_state_dict(theirs.norm1.state_dict())
    block.norm_ffn.load_state_dict(theirs.norm2.state_dict())
    x = torch.randn(B, N, DIM, dtype=torch.float64)
    present = torch.rand(B, N) < 0.6
    present[:, 0] = True  # a set without elements is NaN there
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        expected = theirs(x, src_key_padding_mask=~present)
        assert relative_error(ours(x, present)[present], expected[present]) < 1e-13


# ---------------------------------------------------------------------- against an oracle


def linear(layer, x):
    return layer.weight @ x + layer.bias


def norm(layer, x):
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias


def unit(x):
    return x / x.square().sum().sqrt()


def encoded(model, x):
    y = norm(model.encoder[1], linear(model.encoder[0], x))
    return y / (1 + torch.exp(-y))


def skip(block, x):
    return norm(block.norm, x + linear(block.narrow, linear(block.widen, x).clamp(min=0)))


def count_vector(model, count):
    first, _, second = model.count_encoder.bins
    h = linear(first, count[None])
    e = torch.exp(linear(second, torch.where(h > 0, h, 0.01 * h)))
    return e / e.sum() @ model.count_encoder.vectors


def layer_of(block, rows):
    """One query at a time, one head at a time."""
    width = DIM // HEADS
    keys, values = (torch.stack([linear(part, r) for r in rows]) for part in (block.key, block.value))
    out = []
    for row in rows:
        query, heads = linear(block.query, row), []
        for h in range(HEADS):
            part = slice(h * width, (h + 1) * width)
            e = torch.exp(keys[:, part] @ query[part] / math.sqrt(width))
            heads.append(e / e.sum() @ values[:, part])
        x = norm(block.norm_attention, row + linear(block.output, torch.cat(heads)))
        h = linear(block.ffn[0], x)
        gelu = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        out.append(norm(block.norm_ffn, x + linear(block.ffn[2], gelu)))
    return out


def oracle(model, genes, counts, multiplicity, tasks, depth):
    """z, prediction and dataset logits of one cell; an argument that is None is a branch that is absent."""
    rows = [encoded(model, model.cls)]
    for position, (gene, m) in enumerate(zip(genes, multiplicity, strict=True)):
        token = encoded(model, unit(model.vectors[gene]))
        if counts is not None:
            token = token + count_vector(model, counts[position])
        rows += [token] * int(m)
    if model.dataset_token is not None:
        rows.append(encoded(model, model.dataset_token))
    for layer in model.transformer:
        rows = layer_of(layer.block, rows)
    z = unit(linear(model.decoder[1], skip(model.decoder[0], rows[0])))
    dataset = None
    if model.dataset_token is not None:
        dataset = linear(model.decoder[1], skip(model.decoder[0], rows[-1]))
    predictions = []
    for gene in tasks:
        x = [encoded(model, unit(model.vectors[gene])), z]
        x += [] if depth is None else [depth[None]]
        x += [] if dataset is None else [linear(model.dataset_embedder, dataset)]
        first, second, last = model.binary_decoder
        predictions.append(linear(last, skip(second, skip(first, torch.cat(x)))))
    if dataset is None:
        return z, torch.cat(predictions), None
    h = linear(model.dataset_head[0], dataset)
    logits = linear(model.dataset_head[4], norm(model.dataset_head[2], h / (1 + torch.exp(-h))))
    return z, torch.cat(predictions), logits


BRANCHES = {
    "all": {},
    "learned table": {"learned": True},
    "no counts": {"counts": False},
    "no depth": {"depth_scalar": False},
    "no datasets": {"datasets": 0},
    "nothing": {"counts": False, "depth_scalar": False, "datasets": 0},
}


@pytest.mark.parametrize("case", BRANCHES)
def test_forward_against_the_oracle(case):
    options = BRANCHES[case]
    model = model_of(**options)
    genes, counts, multiplicity, tasks, depth = cells()
    counts = counts if options.get("counts", True) else None
    depth = depth if options.get("depth_scalar", True) else None
    got = model(genes, counts, multiplicity, tasks, depth)
    given = (genes, counts, multiplicity, tasks, depth)
    each = [oracle(model, *(None if x is None else x[i] for x in given)) for i in range(B)]
    expected = [None if part[0] is None else torch.stack(part) for part in zip(*each, strict=True)]
    assert (got.dataset_logits is None) == (options.get("datasets") == 0)
    got, expected = ([x for x in parts if x is not None] for parts in (got, expected))
    assert relative_error(got, expected) < 1e-12
    upstream = [torch.randn_like(x) for x in got]
    parameters = list(model.parameters())
    grads = [torch.autograd.grad(parts, parameters, upstream) for parts in (got, expected)]
    assert relative_error(grads[0], grads[1]) < 1e-11


# ---------------------------------------------------------------------- what holds for any weights


@pytest.fixture
def model():
    return model_of().eval()


def test_tokens(model):
    genes, counts, multiplicity, *_ = cells()
    tokens = model.tokens(genes, counts, multiplicity)
    bare = model.tokens(genes, None, multiplicity)
    assert tokens.elements.shape == (B, 1 + N + 1, DIM)
    assert torch.equal(tokens.multiplicity[:, 1:-1], multiplicity)
    assert (tokens.multiplicity[:, [0, -1]] == 1).all()
    # Counts reach the tokens of genes that are there, and no other: not CLS, not the dataset token, not padding.
    changed = (tokens.elements != bare.elements).any(-1)
    assert torch.equal(changed[:, 1:-1], multiplicity > 0)
    assert not changed[:, [0, -1]].any()
    assert not tokens.elements[:, 1:-1][multiplicity == 0].any()
    third = counts.clone()
    third[:, 2] += 1
    moved = (model.tokens(genes, third, multiplicity).elements != tokens.elements).any(-1)
    assert moved[0].nonzero().tolist() == [[3]]  # the third gene comes after CLS
    assert model_of(datasets=0).tokens(genes, counts, multiplicity).elements.shape == (B, 1 + N, DIM)


def test_padding_changes_nothing(model):
    genes, counts, multiplicity, tasks, depth = cells()
    expected = model(genes, counts, multiplicity, tasks, depth)
    more = [nn.functional.pad(x, (2, 3)) for x in (genes, counts, multiplicity)]
    absent = more[2] == 0
    more[0][absent], more[1][absent] = -1, torch.nan  # whatever stands there
    got = model(*more, tasks, depth)
    assert relative_error([*got], [*expected]) < 1e-13
    upstream = [torch.randn_like(x) for x in got]
    grads = [torch.autograd.grad([*parts], model.parameters(), upstream) for parts in (got, expected)]
    assert relative_error(grads[0], grads[1]) < 1e-12


def test_order_changes_nothing(model):
    genes, counts, multiplicity, tasks, depth = cells()
    expected = model(genes, counts, multiplicity, tasks, depth)
    order = torch.randperm(N)
    got = model(genes[:, order], counts[:, order], multiplicity[:, order], tasks, depth)
    for ours, theirs in zip(got, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-13
    apart = model.embed(genes[:, order], counts, multiplicity)  # counts of other genes are another cell
    assert relative_error(apart[:3], expected.embedding[:3]) > 1e-3


def test_cells_know_nothing_of_each_other(model):
    """A batch of one gives the same, and so do other mates and another order."""
    everything = cells()
    together = model(*everything)
    for chosen in ([0], [1], [3], [2, 0, 3]):
        got = model(*(x[chosen] for x in everything))
        for ours, theirs in zip(got, together, strict=True):
            assert ours.shape == theirs[chosen].shape
            assert relative_error(ours, theirs[chosen]) < 1e-13
    assert relative_error(together.embedding[0], together.embedding[1]) > 1e-3


def test_a_cell_without_genes(model):
    """CLS and dataset token alone, however much padding there is, or none."""
    nothing = torch.zeros(1, 0, dtype=torch.int64)
    z = model.embed(nothing, torch.zeros(1, 0, dtype=torch.float64))
    genes, counts, multiplicity, *_ = cells()
    assert relative_error(model.embed(genes, counts, multiplicity)[-1:], z) < 1e-13
    expected, _, _ = oracle(model, [], None, [], [0], torch.zeros((), dtype=torch.float64))
    assert relative_error(z[0], expected) < 1e-12


def test_dropout_is_off_in_eval():
    model = model_of(dropout=0.3)
    everything = cells()
    one, other = model(*everything), model(*everything)
    assert all(relative_error(a, b) > 1e-3 for a, b in zip(one, other, strict=True))
    model.eval()
    assert all(torch.equal(a, b) for a, b in zip(model(*everything), model(*everything), strict=True))


def test_gradients_reach_every_parameter():
    for learned in (False, True):
        model = model_of(learned)
        genes, counts, multiplicity, tasks, depth = cells()
        out = model(genes, counts, multiplicity, tasks, depth)
        target = torch.rand(B, T, dtype=torch.float64)
        seed_loss(out.prediction, target, 3, None, out.dataset_logits, torch.arange(B)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            # A bias of all keys alike shifts all scores of a query alike.
            assert parameter.grad.abs().max() > 1e-9 or name.endswith("key.bias"), name
        used = torch.cat([genes[multiplicity > 0], tasks.flatten()]).unique()
        assert ("vectors" in dict(model.named_parameters())) == learned
        if learned:
            reached = (model.vectors.grad != 0).any(1).nonzero()[:, 0]
            assert set(reached.tolist()) <= set(used.tolist()) | {0}
            assert len(reached) >= len(used) - 1


def test_vectors_are_frozen_and_stored_once():
    vectors = torch.randn(GENES, TOKEN)
    model = SeedModel(vectors, GENES, datasets=DATASETS, **SIZES)
    genes, counts, multiplicity, tasks, depth = cells()
    everything = (genes, counts.float(), multiplicity, tasks, depth.float())
    state = model.state_dict()
    assert [name for name, tensor in state.items() if tensor.shape == vectors.shape] == ["vectors"]
    assert torch.equal(state["vectors"], vectors)
    assert not state["vectors"].requires_grad
    other = SeedModel(torch.zeros(GENES, TOKEN), GENES, datasets=DATASETS, **SIZES)
    other.load_state_dict(state)
    before = model(*everything)
    vectors.zero_()  # the caller's, of which the model has a copy
    for got in (other(*everything), model(*everything)):
        assert all(torch.equal(a, b) for a, b in zip(got, before, strict=True))


def test_a_gene_without_a_vector():
    """A vector of 0 stays 0."""
    model = model_of()
    model.vectors[3] = 0
    z = model.embed(torch.tensor([[3, 5]]))
    assert z.isfinite().all()
    assert relative_error(model.tokens(torch.tensor([[3]])).elements[0, 1], encoded(model, model.vectors[3])) < 1e-13


def test_decode_of_another_dataset(model):
    genes, counts, multiplicity, tasks, depth = cells()
    z, dataset = model.encode(genes, counts, multiplicity)
    vector = model.dataset_embedder(dataset)
    assert vector.shape == (B, DATASET_DIM)
    assert torch.equal(
        model.decode(z, tasks, depth, vector), model(genes, counts, multiplicity, tasks, depth).prediction
    )
    assert relative_error(model.decode(z, tasks, depth, vector.flip(0)), model.decode(z, tasks, depth, vector)) > 1e-3
    assert model.decode(z, tasks[:, :0], depth, vector).shape == (B, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"genes": 0}, "genes must be an integer >= 1, got 0"),
        ({"depth": 0}, "depth must be an integer >= 1, got 0"),
        ({"dim": 7}, "dim must be divisible by num_heads, got dim=7 and num_heads=2"),
    ],
)
def test_bad_sizes(change, message):
    with pytest.raises(ValueError, match=message):
        SeedModel(**{"vectors": None, "genes": GENES, **SIZES} | change)


# ---------------------------------------------------------------------- loss


@pytest.mark.parametrize("shared", [0, 5, T])
@pytest.mark.parametrize("masked", [False, True])
def test_loss(shared, masked):
    rng = np.random.default_rng(3)
    y, p = rng.normal(size=(2, B, T))
    mask = rng.random((B, T)) < 0.7
    mask[2], mask[:, 1] = False, False  # a cell and a shared gene of which nothing counts
    mask = mask if masked else np.ones((B, T), dtype=bool)
    of_cells = [math.sqrt(sum((p[i, t] - y[i, t]) ** 2 for t in range(T) if mask[i, t])) for i in range(B)]
    of_genes = [math.sqrt(sum((p[i, t] - y[i, t]) ** 2 for i in range(B) if mask[i, t])) for t in range(shared)]
    some_cells, some_genes = mask.any(1).sum(), mask[:, :shared].any(0).sum()
    assert (some_cells < B) == masked
    assert (some_genes < shared) == (masked and shared > 0)
    expected = sum(of_cells) / some_cells + (sum(of_genes) / some_genes if shared else 0)
    y[~mask] = np.nan  # not known
    prediction, target = torch.tensor(p, requires_grad=True), torch.tensor(y)
    loss = seed_loss(prediction, target, shared, torch.tensor(mask) if masked else None)
    assert relative_error(loss, torch.tensor(expected, dtype=torch.float64)) < 1e-13
    loss.backward()
    assert prediction.grad.isfinite().all()
    assert torch.equal(prediction.grad != 0, torch.tensor(mask))


def test_loss_of_datasets():
    rng = np.random.default_rng(3)
    y, logits = rng.normal(size=(B, T)), rng.normal(size=(B, DATASETS))
    datasets = [4, 0, 6, 4]
    expected = -np.mean([x[d] - math.log(np.exp(x).sum()) for x, d in zip(logits, datasets, strict=True)])
    prediction = torch.tensor(y, requires_grad=True)
    loss = seed_loss(prediction, torch.tensor(y), 2, None, torch.tensor(logits), torch.tensor(datasets))
    assert relative_error(loss, torch.tensor(expected)) < 1e-13
    loss.backward()
    assert not prediction.grad.any()  # right everywhere: 0, not NaN


def test_loss_of_nothing():
    prediction = torch.randn(B, T, requires_grad=True)
    nothing = torch.zeros(B, T, dtype=torch.bool)
    loss = seed_loss(prediction, torch.randn(B, T), 3, nothing)
    loss.backward()
    assert loss == 0
    assert not prediction.grad.any()
