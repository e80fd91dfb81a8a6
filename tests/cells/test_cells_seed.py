"""The seed's network of cells: its published sizes, its mathematics in float64, its loss and its sampling."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from omniset.cells.seed import SeedModel, SeedOptions, collate, draw_shared, seed_loss, sentence
from omniset.layers import SetAttentionBlock
from omniset.testing import relative_error
from oracle import linear, msab, norm

GENES, TOKEN, DIM, HEADS, DEPTH, FFN, OUT, DATASETS = 29, 11, 6, 2, 2, 13, 5, 7
B, N, T = 4, 13, 11
SIZES = {"token_dim": TOKEN, "num_heads": HEADS, "depth": DEPTH}


def model_of(learned=False, datasets=DATASETS, dropout=0.0, **options):
    """In float64, all parameters away from their start."""
    vectors = None if learned else 3 * torch.randn(GENES, TOKEN)
    model = SeedModel(vectors, GENES, datasets, SeedOptions(**SIZES | options), DIM, OUT, dropout).double()
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
        model = SeedModel(torch.empty(19_790, 5120), 19_790, 1139, SeedOptions(depth=8, num_heads=16), 512, 512)
    e, d, f, o, w = 5120, 512, 1024, 512, 512 + 512 + 1 + 10

    def skip(n):
        return (n * 2 * n + 2 * n) + (2 * n * n + n) + 2 * n

    parts = [
        (model.encoder, e * d + d + 2 * d, 2.6),
        (model.transformer, 8 * (4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d), 16.8),
        (model.decoder, skip(d) + d * o + o, 1.3),
        (model.binary_decoder, 2 * skip(w) + w + 1, 8.6),
    ]
    for module, by_hand, published in parts:
        assert parameters_of(module) == by_hand
        assert round(by_hand / 1e6, 1) == published
    count = (512 + 512) + (512 * 10 + 10) + 10 * d
    dataset = (o * 10 + 10) + (o * d + d + 2 * d + d * 1139 + 1139)
    total = sum(by_hand for _, by_hand, _ in parts) + count + dataset + 2 * e  # CLS and dataset token
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
    rows = torch.stack(rows)
    for layer in model.transformer:
        rows = msab(layer.block, rows, rows)
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
    "no counts": {"read_counts": False},
    "no depth": {"depth_scalar": False},
    "one dataset": {"datasets": 1},
    "no dataset token": {"dataset_token": False},
    "nothing": {"read_counts": False, "depth_scalar": False, "datasets": 1},
}


@pytest.mark.parametrize("case", BRANCHES)
def test_forward_against_the_oracle(case):
    """Each cell by itself, one of them empty; and the gradient of every parameter, none of which is out of reach."""
    options = BRANCHES[case]
    model = model_of(**options)
    genes, counts, multiplicity, tasks, depth = cells()
    counts = counts if options.get("read_counts", True) else None
    depth = depth if options.get("depth_scalar", True) else None
    got = model(genes, counts, multiplicity, tasks, depth)
    given = (genes, counts, multiplicity, tasks, depth)
    each = [oracle(model, *(None if x is None else x[i] for x in given)) for i in range(B)]
    expected = [None if part[0] is None else torch.stack(part) for part in zip(*each, strict=True)]
    assert (got.dataset_logits is None) == (options.get("datasets") == 1 or "dataset_token" in options)
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


def test_counts_reach_the_tokens_of_genes_that_are_there_and_no_other(model):
    """Not CLS, not the dataset token, not padding; and each its own gene."""
    genes, counts, multiplicity, *_ = cells()
    tokens = model.tokens(genes, counts, multiplicity)
    changed = (tokens.elements != model.tokens(genes, None, multiplicity).elements).any(-1)
    assert torch.equal(changed[:, 1:-1], multiplicity > 0)
    assert not changed[:, [0, -1]].any()
    third = counts.clone()
    third[:, 2] += 1
    moved = (model.tokens(genes, third, multiplicity).elements != tokens.elements).any(-1)
    assert moved[0].nonzero().tolist() == [[3]]  # the third gene comes after CLS


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
    nothing = model.embed(genes[-1:, :0], counts[-1:, :0])  # no genes, and no padding
    assert relative_error(nothing, expected.embedding[-1:]) < 1e-13


def test_order_changes_nothing(model):
    genes, counts, multiplicity, tasks, depth = cells()
    expected = model(genes, counts, multiplicity, tasks, depth)
    order = torch.randperm(N)
    got = model(genes[:, order], counts[:, order], multiplicity[:, order], tasks, depth)
    for ours, theirs in zip(got, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-13
    apart = model.embed(genes[:, order], counts, multiplicity)  # counts of other genes are another cell
    assert relative_error(apart[:3], expected.embedding[:3]) > 1e-3


def test_dropout_is_off_in_eval():
    model = model_of(dropout=0.3)
    first, second = (model(*cells()) for _ in range(2))
    assert all(relative_error(a, b) > 1e-3 for a, b in zip(first, second, strict=True))
    first, second = (model.eval()(*cells()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_vectors_are_frozen_and_stored_once():
    vectors = torch.randn(GENES, TOKEN)
    model = SeedModel(vectors, GENES, 1, SeedOptions(**SIZES), DIM, OUT)
    state, given = model.state_dict(), vectors.clone()
    assert [name for name, tensor in state.items() if tensor.shape == vectors.shape] == ["vectors"]
    assert "vectors" not in dict(model.named_parameters())
    assert "vectors" in dict(model_of(learned=True).named_parameters())
    vectors.zero_()  # the caller's, of which the model has a copy
    assert torch.equal(state["vectors"], given)


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
    own, other = (model.decode(z, tasks, depth, given) for given in (vector, vector.flip(0)))
    assert torch.equal(own, model(genes, counts, multiplicity, tasks, depth).prediction)
    assert relative_error(other, own) > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"genes": 0}, "genes must be an integer >= 1, got 0"),
        ({"depth": 0}, "depth must be an integer >= 1, got 0"),
        ({"dim": 7}, "dim must be divisible by num_heads, got dim=7 and num_heads=2"),
    ],
)
def test_bad_sizes(change, message):
    given = {"genes": GENES, "dim": DIM, **SIZES} | change
    with pytest.raises(ValueError, match=message):
        SeedModel(None, given.pop("genes"), 1, dim=given.pop("dim"), output_dim=OUT, options=SeedOptions(**given))


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


# ---------------------------------------------------------------------- sentences


def row(genes=101, expressed=41, seed=5):
    """Many ties, counts of 1 among them."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(genes)
    counts[rng.choice(genes, expressed, replace=False)] = rng.integers(1, 7, expressed)
    return counts


@pytest.mark.parametrize("slots", [0, 1, 13, 41, 67, 101, 2048])
def test_genes_of_a_sentence(slots):
    counts = row()
    drawn = [sentence(counts, np.random.default_rng(seed), slots=slots) for seed in range(40)]
    c = np.log1p(counts)
    for found in drawn:
        assert len(found.genes) == min(slots, 101) == len(set(found.genes))
        top = min(slots, 41)
        assert np.array_equal(counts[found.genes[:top]], np.sort(counts)[::-1][:top])
        assert not counts[found.genes[top:]].any()
        assert np.allclose(found.counts, [100 * c[g] / c.sum() for g in found.genes], rtol=1e-14, atol=0)
        assert found.depth == pytest.approx(c[c > 0].mean(), rel=1e-14)
    if slots == 13:  # ties at the end of the sentence: any of them
        least = min(counts[found.genes].min() for found in drawn)
        assert {g for f in drawn for g in f.genes} == set(np.flatnonzero(counts >= least))
    if slots == 67:  # any gene that is not expressed tops it up
        assert {g for f in drawn for g in f.genes[41:]} == set(np.flatnonzero(counts == 0))


def test_tasks_of_a_sentence():
    counts = row()
    rng = np.random.default_rng(0)
    shared = draw_shared(101, rng, 17)
    assert len(set(shared)) == 17
    seen = []
    for _ in range(40):
        found = sentence(counts, rng, shared, positives=11, negatives=23)
        assert np.array_equal(found.tasks[:17], shared)
        assert np.array_equal(found.targets, np.log1p(counts[found.tasks]))
        assert found.mask.all()
        assert len(set(found.tasks[17:])) == 11 + 23
        assert (counts[found.tasks[17:28]] > 0).all()
        assert (counts[found.tasks[28:]] == 0).all()  # a count of 1 is one, though log(1 + 1) < 1
        seen.append(found.tasks[17:])
    assert {g for tasks in seen for g in tasks[:11]} == set(np.flatnonzero(counts))
    assert {g for tasks in seen for g in tasks[11:]} == set(np.flatnonzero(counts == 0))


@pytest.mark.parametrize(("genes", "expressed"), [(1, 0), (1, 1), (2, 1), (50, 7), (50, 50), (50, 0)])
def test_small_panels(genes, expressed):
    rng = np.random.default_rng(0)
    found = sentence(row(genes, expressed), rng, draw_shared(genes, rng))
    assert len(found.genes) == genes
    assert len(found.tasks) == 2 * genes  # each gene as shared, and once as expressed or as not
    assert np.isfinite(found.counts).all()
    assert found.counts.sum() == pytest.approx(100 if expressed else 0)
    assert (found.depth > 0) == (expressed > 0)


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.float32])
def test_the_same_generator_gives_the_same_sentence(dtype):
    one, same, other = (
        sentence(row().astype(dtype), np.random.default_rng(seed), slots=67, positives=5) for seed in (1, 1, 2)
    )
    for ours, again, another in ((one.genes, same.genes, other.genes), (one.tasks, same.tasks, other.tasks)):
        assert np.array_equal(ours, again)
        assert not np.array_equal(ours, another)


def test_genes_that_are_not_measured():
    """They are no zeros: neither drawn nor counted; as shared tasks they are masked."""
    counts, measured = row(), np.random.default_rng(1).random(101) < 0.5
    rng = np.random.default_rng(0)
    shared = draw_shared(101, rng, 31)
    found = sentence(counts, rng, shared, measured=measured)
    alone = sentence(np.where(measured, counts, 0), np.random.default_rng(0), measured=measured)
    assert set(found.genes) == set(np.flatnonzero(measured)) == set(found.tasks[31:])
    assert found.counts.sum() == pytest.approx(100)
    assert found.depth == pytest.approx(alone.depth)
    assert np.array_equal(found.mask[:31], measured[shared])
    assert found.mask[31:].all()
    assert 0 < found.mask[:31].sum() < 31


def test_batches():
    """Of cells of different lengths, the network and its loss see what they see of each alone."""
    rng = np.random.default_rng(0)
    shared = draw_shared(GENES, rng, 5)
    drawn = [
        sentence(row(GENES, n, seed=n), rng, shared, slots=s, positives=7, negatives=3)
        for n, s in ((13, 11), (3, 23), (0, 17), (29, 2))
    ]
    batch = collate(drawn)
    assert batch.multiplicity.sum(1).tolist() == [11, 23, 17, 2]
    assert batch.mask.sum(1).tolist() == [15, 11, 8, 12]
    model = SeedModel(torch.randn(GENES, TOKEN), GENES, 1, SeedOptions(**SIZES), DIM, OUT).eval()
    out = model(batch.genes, batch.counts, batch.multiplicity, batch.tasks, batch.depth)
    losses = []
    for i, one in enumerate(drawn):
        b = collate([one])
        alone = model(b.genes, b.counts, b.multiplicity, b.tasks, b.depth)
        assert relative_error(out.embedding[i : i + 1], alone.embedding) < 1e-5
        assert relative_error(out.prediction[i : i + 1, : len(one.tasks)], alone.prediction) < 1e-5
        losses.append(seed_loss(alone.prediction, b.targets, 0, b.mask))
    together = seed_loss(out.prediction, batch.targets, 0, batch.mask)
    assert relative_error(together, torch.stack(losses).mean()) < 1e-5
