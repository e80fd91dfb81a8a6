"""The network of regions and the training of both: the formula in float64, what may not enter, what repeats."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from region_methods import every_pair, pairs_once

from omniset.regions import training
from omniset.regions.data import Regions
from omniset.regions.model import RegionAttention
from omniset.regions.training import Attention, PairsModule, SeedMethod, checksum, position_lesson
from omniset.testing import relative_error

REGIONS, OTHERS, GENES, AXES, PLACES, DIM, HEADS, QUERIES, RANK = 7, 5, 13, 3, 2, 10, 5, 3, 11


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch):
    monkeypatch.setattr(training, "ROUNDS", 3)


# ---------------------------------------------------------------------- the network


def network_of(directed=False, places=PLACES, queries=QUERIES, genes=GENES):
    """In eval mode and float64, all parameters away from their start, so that none can be forgotten."""
    axes = torch.randn(genes, AXES)
    made = RegionAttention(axes, places, DIM, HEADS, queries, RANK, dropout=0.1, directed=directed).double().eval()
    for parameter in made.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return made


def inputs_of(number, places=PLACES):
    """Multiplicities from 0 to 1, some 0; the last region has no genes."""
    m = torch.rand(number, GENES, dtype=torch.float64)
    m[torch.rand(number, GENES) < 0.3] = 0
    m[-1] = 0
    return m, torch.randn(number, places, dtype=torch.float64) if places else None


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def norm(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def attended(block, queries, elements, m):
    """With h = x + MHA(LN(x), LN(y), m), h + FFN(LN(h)); of each head the softmax of scores + log m."""
    q = linear(block.query, norm(block.norm_queries, queries))
    k, v = (linear(part, norm(block.norm_elements, elements)) for part in (block.key, block.value))
    heads = []
    for part in torch.arange(DIM).chunk(HEADS):
        if not (m > 0).any():
            heads.append(torch.zeros(len(q), len(part), dtype=q.dtype))
            continue
        scores = q[:, part] @ k[:, part].T / math.sqrt(DIM / HEADS) + m.log()
        heads.append(F.softmax(scores, 1) @ v[:, part])
    h = queries + linear(block.output, torch.cat(heads, 1))
    first, _, second, _ = block.ffn
    return h + linear(second, linear(first, norm(block.norm_ffn, h)).relu())


def oracle(network, m, places, others, other_places, directed):
    """f(i, j), a pair at a time."""
    t = norm(network.token[1], linear(network.token[0], network.axes))

    def pooled(m, place):
        q = attended(network.pool.gather, network.pool.points[0], t, m)
        return q if place is None else q + linear(network.place, place)

    def g(i, m_j, q_i, q_j, form):
        h = attended(network.cross, q_i, t, m_j).mean(0)
        u, w = (linear(network.factor, q.mean(0)) for q in (q_i, q_j))
        return linear(network.head, norm(network.norm, h))[0] + u @ form @ w

    found = torch.zeros(len(m), len(others), dtype=torch.float64)
    for i in range(len(m)):
        for j in range(len(others)):
            q_i = pooled(m[i], None if places is None else places[i])
            q_j = pooled(others[j], None if places is None else other_places[j])
            if directed:
                found[i, j] = g(i, others[j], q_i, q_j, network.form)
            else:
                form = network.form
                found[i, j] = (g(i, others[j], q_i, q_j, form) + g(j, m[i], q_j, q_i, form)) / 2
    return found


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("places", [0, PLACES])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_against_the_formula(directed, places, queries):
    network = network_of(directed, places, queries)
    m, c = inputs_of(REGIONS, places)
    others, d = inputs_of(OTHERS, places)
    assert relative_error(network(m, c, others, d), oracle(network, m, c, others, d, directed)) < 1e-12
    whole = network(m, c)
    assert relative_error(whole, oracle(network, m, c, m, c, directed)) < 1e-12
    apart = (whole - whole.T).abs().max()
    assert apart > 1e-2 if directed else apart == 0


def test_gradients_are_those_of_the_formula():
    network = network_of()
    m, c = inputs_of(REGIONS)
    upstream = torch.randn(REGIONS, REGIONS, dtype=torch.float64)
    own, expected = (
        torch.autograd.grad((found * upstream).sum(), list(network.parameters()), allow_unused=True)
        for found in (network(m, c), oracle(network, m, c, m, c, False))
    )
    for one, other in zip(own, expected, strict=True):
        assert one is not None
        assert relative_error(one, other) < 1e-12 or max(one.abs().max(), other.abs().max()) < 1e-12


@pytest.mark.parametrize("directed", [False, True])
def test_genes_in_another_order_and_genes_that_are_absent(directed):
    network = network_of(directed)
    m, c = inputs_of(REGIONS)
    found = network(m, c)
    order = torch.randperm(GENES)
    assert relative_error(network(m[:, order], c, genes=order), found) < 1e-12
    permuted = network_of(directed)
    permuted.load_state_dict({**network.state_dict(), "axes": network.axes[order]})
    assert relative_error(permuted(m[:, order], c), found) < 1e-12
    assert relative_error(network(m[:, order], c), found) > 1e-3  # which gene it is does matter
    m[:, [2, 5, 11]] = 0
    kept = torch.tensor([g for g in range(GENES) if g not in (2, 5, 11)])
    dropped = network(m[:, kept], c, genes=kept)
    assert relative_error(dropped, network(m, c)) < 1e-12
    assert relative_error(dropped, found) > 1e-3


@pytest.mark.parametrize("directed", [False, True])
def test_blocks_are_the_whole_matrix_and_other_regions_do_not_matter(directed):
    network = network_of(directed)
    m, c = inputs_of(REGIONS)
    whole = network(m, c)
    for rows in (slice(0, 3), slice(3, 7), slice(6, 7)):
        for columns in (slice(0, 2), slice(2, 7), slice(4, 5)):
            found = network(m[rows], c[rows], m[columns], c[columns])
            assert relative_error(found, whole[rows, columns]) < 1e-12
    changed = m.clone()
    changed[[0, 2, 5]] = torch.rand(3, GENES, dtype=torch.float64)
    same = torch.tensor([1, 3, 4, 6])
    assert relative_error(network(changed, c)[same][:, same], whole[same][:, same]) < 1e-12
    assert network(m[:1], c[:1]).shape == (1, 1)


def test_weights_are_a_softmax():
    network = network_of()
    m, c = inputs_of(REGIONS)
    other = torch.rand(1, GENES, dtype=torch.float64)
    pooled, crossed = network.weights(m, c, other)
    assert pooled.shape == crossed.shape == (REGIONS, QUERIES, GENES)
    t = norm(network.token[1], linear(network.token[0], network.axes))
    for i in range(REGIONS):
        points = network.pool.points[0]
        q_i = attended(network.pool.gather, points, t, m[i]) + linear(network.place, c[i])
        for block, queries, of, got in (
            (network.pool.gather, points, m[i], pooled[i]),
            (network.cross, q_i, other[0], crossed[i]),
        ):
            q = linear(block.query, norm(block.norm_queries, queries))
            k = linear(block.key, norm(block.norm_elements, t))
            expected = torch.zeros(QUERIES, GENES, dtype=torch.float64)
            for part in torch.arange(DIM).chunk(HEADS) if (of > 0).any() else ():
                expected += F.softmax(q[:, part] @ k[:, part].T / math.sqrt(DIM / HEADS) + of.log(), 1) / HEADS
            assert relative_error(got, expected) < 1e-12


def test_sizes_out_of_bounds():
    axes = torch.zeros(GENES, AXES)
    for options, message in (
        ({"dim": 6, "num_heads": 4}, "dim must be divisible by num_heads"),
        ({"num_queries": 0}, "num_queries must be"),
        ({"rank": 0}, "rank must be"),
        ({"dropout": 1.0}, "dropout must be >= 0 and < 1, got 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            RegionAttention(axes, **options)


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize(("number", "size"), [(1, 1), (7, 2), (13, 5), (13, 13), (5, 11)])
def test_a_pass_has_every_position_once_but_for_the_last_smaller_batch(number, size):
    lesson = position_lesson(number, size, passes=3, seed=0, watched=3)
    loader = lesson.loader(True)
    batches = [batch.numpy() for batch in loader]
    used = min(size, number)
    assert len(loader) == len(batches) == 3 * (number // used)
    assert all(len(batch) == used for batch in batches)
    for at in range(3):
        one = np.concatenate(batches[at * (number // used) : (at + 1) * (number // used)])
        assert len(set(one)) == len(one) == number // used * used
        assert set(one) <= set(range(number))
    assert [batch.tolist() for batch in lesson.loader(False)] == [[number, number + 1, number + 2]]
    assert not len(position_lesson(number, size, 1, 0).validation)


def test_the_order_of_batches_repeats_and_changes_with_seed_pass_and_epoch():
    def orders(seed, epoch=0, passes=2):
        loader = position_lesson(31, 31, passes, seed).loader(True)
        loader.batch_sampler.sampler.set_epoch(epoch)
        return [tuple(batch.tolist()) for batch in loader]

    assert orders(0) == orders(0)
    assert len({*orders(0), *orders(1), *orders(0, epoch=1)}) == 6


def test_the_loss_is_of_known_pairs_alone():
    class Constant(PairsModule):
        def matrix(self, rows):
            return rows[:, None] + 10.0 * rows

    target = torch.full((3, 3), torch.nan)
    target[0, 1] = 5.0
    target[2, 1] = 7.0
    module = Constant(torch.nn.Linear(1, 1), 1e-3, 0.0, 0, {}, target=target)
    module.log = lambda *_, **__: None
    rows = torch.tensor([2, 0, 1])
    expected = ((0 + 10 * 1 - 5) ** 2 + (2 + 10 * 1 - 7) ** 2) / 2
    assert float(module.training_step(rows, 0)) == expected
    found = module.matrix(rows)
    module.symmetry = 0.5
    pull = np.mean([(float(found[i, j]) - float(found[j, i])) ** 2 for i in range(3) for j in range(3)])
    assert float(module.training_step(rows, 0)) == pytest.approx(expected + 0.5 * pull, rel=1e-6)
    assert float(module.training_step(rows[:1], 0)) == 0  # no pair at all
    logged = {}
    module.log = lambda name, value, **_: logged.update({name: float(value)})
    module.validation_step(rows, 0)
    assert logged["val_loss"] == ((11 * (0 + 1) / 2 - 5) ** 2 + (11 * (2 + 1) / 2 - 7) ** 2) / 2


# ---------------------------------------------------------------------- fits


def regions_of(number=19, genes=17, directed=False, seed=0, placed=True):
    """Connectivity that grows with the likeness of three genes; some expression is missing, a pair is not known."""
    rng = np.random.default_rng(seed)
    expression = rng.random((number, genes))
    side = np.sign(expression[:, :3] - 0.5)
    connectivity = side @ side.T / 3 + 0.05 * rng.normal(size=(number, number))
    connectivity = connectivity + side[:, :1] if directed else (connectivity + connectivity.T) / 2
    connectivity[0, 3] = connectivity[3, 0] = np.nan
    np.fill_diagonal(connectivity, np.nan)
    expression[2, 7] = expression[5, 9] = np.nan
    return Regions(
        [f"region {i}" for i in range(number)],
        [f"G{g}" for g in range(genes)],
        expression.astype(np.float32),
        rng.normal(size=(number, 3)) * 40 if placed else None,
        connectivity=connectivity,
        directed=directed,
    )


SEED_OPTIONS = {"dim": 8, "num_heads": 2, "depth": 1, "hidden": (7, 5), "token_dim": 5}
MAKERS = {
    "attention": lambda **more: Attention(**{"axes": 3, "dim": 8, "num_heads": 2, "seen": 11, "steps": 10, **more}),
    "seed": lambda **more: SeedMethod(**{"options": SEED_OPTIONS, "epochs": 2, "batch_size": 5, **more}),
    "spatial": lambda **more: SeedMethod(
        **{"options": {**SEED_OPTIONS, "cls": "spatial"}, "epochs": 2, "batch_size": 5, **more}
    ),
    "concat": lambda **more: SeedMethod("concat", **{"options": SEED_OPTIONS, "epochs": 2, "batch_size": 5, **more}),
}


@pytest.mark.parametrize("make", [MAKERS["attention"], MAKERS["spatial"]], ids=["attention", "spatial"])
def test_fits_repeat_to_the_bit_and_see_the_training_rows_alone(make):
    regions, rows = regions_of(), np.delete(np.arange(19), [1, 4, 16])
    pairs = pairs_once(19)
    state = torch.get_rng_state()
    first = make().fit(regions, rows, seed=3)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are not drawn from
    changed = regions.take(np.arange(19))
    others = np.setdiff1d(np.arange(19), rows)
    changed.expression[others] = 90
    changed.coordinates[others] = np.nan
    changed.connectivity[others] = changed.connectivity[:, others] = 7.0
    again = make().fit(changed, rows[::-1], seed=3)
    assert np.array_equal(again.predict(regions, pairs), first.predict(regions, pairs))
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    assert again.history == first.history
    other = make().fit(regions, rows, seed=4)
    assert not np.allclose(other.predict(regions, pairs), first.predict(regions, pairs))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("make", [MAKERS["attention"], MAKERS["seed"]], ids=["attention", "seed"])
def test_a_prediction_is_of_its_pair_alone(make, directed, monkeypatch):
    regions = regions_of(directed=directed)
    method = make().fit(regions, np.arange(13), seed=0)
    pairs = every_pair(19, directed)
    found = method.predict(regions, pairs)
    back = method.predict(regions, pairs[:, ::-1])
    assert directed == (not np.array_equal(back, found))
    monkeypatch.setattr(training, "REGIONS_TOGETHER", 5)
    monkeypatch.setattr(training, "COLUMNS_TOGETHER", 3)
    assert np.allclose(method.predict(regions, pairs), found, rtol=0, atol=1e-6)
    few = pairs[[3, 50, 77]]
    assert np.allclose(method.predict(regions, few), found[[3, 50, 77]], rtol=0, atol=1e-6)
    alone = regions.take(few[1])
    assert np.allclose(method.predict(alone, np.array([[0, 1]])), found[50], rtol=0, atol=1e-6)
    assert np.abs(found - found.mean()).max() > 1e-3


def test_statistics_of_attention_are_those_of_the_rows():
    regions = regions_of()
    method = MAKERS["attention"](steps=1).fit(regions, np.arange(13), seed=0)
    known = regions.expression[:13]
    low, high = np.nanmin(known, 0), np.nanmax(known, 0)
    m, places = method._inputs(regions)
    expected = ((regions.expression - low) / (high - low)).clip(0, 1)
    assert np.allclose(m.numpy(), np.nan_to_num(expected), atol=1e-6)
    assert m[2, 7] == 0
    assert (m >= 0).all()
    assert (m <= 1).all()
    assert ((regions.expression > high) | (regions.expression < low)).any()  # the bound is met
    folded = np.column_stack([abs(regions.coordinates[:, 0]), regions.coordinates[:, 1:]])
    scaled = (folded - folded[:13].mean(0)) / folded[:13].std(0)
    expected = np.exp(-((scaled[:, None] - method._centres) ** 2).sum(2) / 2)
    assert np.allclose(places.numpy(), expected, atol=1e-6)
    values = [regions.connectivity[i, j] for i, j in pairs_once(13) if not np.isnan(regions.connectivity[i, j])]
    assert (method._mean, method._scale) == pytest.approx((np.mean(values), np.std(values)), rel=1e-12)


@pytest.mark.parametrize(("name", "batch_size"), [("attention", 1), ("attention", 7), ("seed", 3), ("seed", 40)])
def test_batches_of_any_size(name, batch_size):
    regions = regions_of(13)
    method = MAKERS[name](batch_size=batch_size, **({"steps": 1} if name == "attention" else {"epochs": 1}))
    assert np.isfinite(method.fit(regions, np.arange(13), 0).predict(regions, pairs_once(13))).all()


def test_a_step_sees_a_part_of_the_genes(monkeypatch):
    seen = []
    forward = RegionAttention.forward

    def spy(self, multiplicity, places=None, others=None, other_places=None, genes=None):
        seen.append(None if genes is None else tuple(genes.tolist()))
        return forward(self, multiplicity, places, others, other_places, genes)

    monkeypatch.setattr(RegionAttention, "forward", spy)
    method = MAKERS["attention"](batch_size=5, steps=30).fit(regions_of(), np.arange(13), 0)
    assert len(seen) == 30  # three epochs of five passes, two batches each
    assert all(len(set(genes)) == 11 for genes in seen)
    assert len(set(seen)) == 30
    assert len(method.history) == 3
    seen.clear()
    method.predict(regions_of(), pairs_once(19))
    assert seen == [None]


def test_regions_that_are_watched_are_not_learned_from(monkeypatch):
    learned, watched = set(), set()
    steps = training.SeedModule.training_step, training.SeedModule.validation_step

    def spied(kind, step):
        def run(self, rows, index):
            kind.update(rows.tolist())
            return step(self, rows, index)

        return run

    regions = regions_of(23)
    monkeypatch.setattr(training.SeedModule, "training_step", spied(learned, steps[0]))
    monkeypatch.setattr(training.SeedModule, "validation_step", spied(watched, steps[1]))
    method = MAKERS["seed"](epochs=2).fit(regions, np.arange(23), 0)
    assert len(watched) == 5
    assert learned == set(range(18))
    assert not learned & watched
    assert all("val_loss" in line for line in method.history)
    # Their connectivity may be anything: the weights of an epoch do not change, only which epoch is taken.
    train = regions.take(sorted(range(23), key=regions.names.__getitem__))
    _, apart = method._split(train, 0)
    assert len(apart) == 5
    changed = train.take(np.arange(23))
    among = np.ix_(apart, apart)
    changed.connectivity[among] = -changed.connectivity[among]

    def plain(self, train):
        self._mean, self._scale = 0.0, 1.0

    monkeypatch.setattr(SeedMethod, "_standardise", plain)
    losses = []
    for given in (train, changed):
        monkeypatch.setattr(training, "centred_target", lambda train, given=given: (0.0, given.connectivity))
        losses.append([line["train_loss"] for line in MAKERS["seed"](epochs=2).fit(given, np.arange(23), 0).history])
    assert losses[0] == losses[1]


def test_few_regions_are_all_learned_from():
    method = MAKERS["seed"](epochs=1)
    learn, watched = method._split(regions_of(14), 0)
    assert (len(learn), len(watched)) == (14, 0)
    assert "val_loss" not in method.fit(regions_of(14), np.arange(14), 0).history[0]


def test_interrupted_and_resumed_is_uninterrupted(tmp_path):
    """Of a network that keeps the best of its epochs; `tests/test_contract.py` has the other."""
    regions, rows = regions_of(), np.arange(19)
    options, make = {"epochs": 4}, MAKERS["seed"]
    whole = make(**options).fit(regions, rows, 0)
    halved = make(**options)
    halved.folder = tmp_path
    step, left = training.SeedModule.training_step, iter(range(20))

    def interrupted(self, batch, index):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.SeedModule, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            halved.fit(regions, rows, 0)
    again = make(**options)
    again.folder, again.resume = tmp_path, True
    again.fit(regions, rows, 0)
    for key, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[key])
    assert again.history == whole.history
    assert [line["epoch"] for line in again.history] == list(range(1, len(again.history) + 1))
    other = make(**options, learning_rate=0.5)
    other.folder, other.resume = tmp_path, True
    with pytest.raises(ValueError, match=r"cannot be resumed: learning_rate was .*, is 0.5"):
        other.fit(regions, rows, 0)
    changed = regions.take(rows)
    changed.expression[3, 4] += 0.01
    with pytest.raises(ValueError, match="cannot be resumed"):
        again.fit(changed, rows, 0)


def test_the_checksum_is_of_everything():
    regions = regions_of()
    found = {checksum(regions), checksum(regions.with_(coordinates=None)), checksum(regions.with_(connectivity=None))}
    for name, at in (("expression", (3, 4)), ("coordinates", (5, 1)), ("connectivity", (2, 6))):
        changed = regions.take(np.arange(19))
        getattr(changed, name)[at] += 0.01
        found.add(checksum(changed))
    found.add(checksum(regions.with_(names=[*regions.names[1:], "new"])))
    found.add(checksum(regions.with_(genes=[*regions.genes[1:], "new"])))
    assert len(found) == 8
    other = regions.take(np.arange(19))
    other.expression[2, 7] = -np.float32(np.nan)  # another bit pattern of NaN
    assert checksum(other) == checksum(regions)


def test_what_cannot_be_used():
    with pytest.raises(ValueError, match="network must be one of seed, concat, got 'other'"):
        SeedMethod("other")
    with pytest.raises(ValueError, match="options: .*nothing"):
        SeedMethod(options={"nothing": 3}).fit(regions_of(), np.arange(19), 0)
    with pytest.raises(ValueError, match="'seed' needs them"):
        MAKERS["spatial"]().fit(regions_of(placed=False), np.arange(19), 0)
    method = MAKERS["attention"](steps=1).fit(regions_of(), np.arange(19), 0)
    with pytest.raises(ValueError, match="coordinates must be known of every region, as they were"):
        method.predict(regions_of(placed=False), pairs_once(19))
