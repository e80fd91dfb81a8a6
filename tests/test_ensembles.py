"""Networks that learn at once, against each of them alone, in float64; what they draw, keep and resume."""

import numpy as np
import pytest
import torch

from omniset.core.sets import SetBatch, Sets
from omniset.encoders import build
from omniset.estimators import ensembles
from omniset.estimators.ensembles import EnsembleBatches, EnsembleModule
from omniset.training.ensemble import Ensemble
from omniset.training.network import SetNetwork

NETWORKS, SETS = 3, 17
HOW = {"batch_size": 5, "together": 7, "device": "cpu", "progress": False, "folder": None, "resume": False}


def some_sets(seed=0, largest=11):
    """Sets of 0 to so many elements, with multiplicities of 0 to 3."""
    rng = np.random.default_rng(seed)
    sizes = [0, *rng.integers(1, largest, SETS - 1)]
    elements = [rng.normal(size=(n, 2)) for n in sizes]
    return Sets.from_ragged(elements, [rng.integers(0, 4, n) for n in sizes], dtype=torch.float64)


def some_networks(encoder="ust", widths=(3, 2), number=NETWORKS, dropout=0.0):
    torch.manual_seed(1)
    sizes = {"input_dim": 2, "dim": 8, "depth": 1, "num_heads": 2, "num_inducing": 3, "dropout": dropout}
    return [SetNetwork(build(encoder, **sizes), [*widths]).double() for _ in range(number)]


def some_lessons(sets, classify=True, widths=(3, 2), elements=100, number=NETWORKS):
    """Every network has sets of weight 0, which are those that it is watched on."""
    rng = np.random.default_rng(2)
    targets = [rng.integers(0, w, SETS) if classify else rng.normal(size=SETS) for w in widths]
    weights = torch.as_tensor(rng.uniform(0.5, 2, (number, SETS)))
    held = torch.as_tensor(np.arange(SETS) % number == np.arange(number)[:, None])
    each = torch.as_tensor(np.stack(targets, 1)).expand(number, -1, -1)
    return EnsembleBatches(sets, each, weights * ~held, weights * held, elements, 3)


def loss_of(network, lessons, j, rows, classify, weights, smoothing):
    """Of one network, one set after the other, written out."""
    total = counted = 0
    for i in rows:
        elements, counts = lessons.sets[i].read()
        outputs = network.split(network(SetBatch(elements[None], counts[None])))
        each = []
        for target, out in enumerate(outputs):
            y = lessons.targets[j, i, target]
            if classify:
                logs = out[0] - out[0].exp().sum().log()
                each.append(-(1 - smoothing) * logs[y] - smoothing * logs.mean())
            else:
                each.append((out[0, 0] - y) ** 2)
        total = total + weights[j, i] * sum(each) / len(each)
        counted += weights[j, i]
    return total, counted


def module_of(networks, widths=(3, 2), classify=True, others=None, rate=0.01, **fingerprint):
    return EnsembleModule(Ensemble(networks), widths, classify, others, 50, rate, 0.01, 3, fingerprint)


@pytest.mark.parametrize("parts", ["few", "many", "wide", "computed again"])
@pytest.mark.parametrize("classify", [True, False])
@pytest.mark.parametrize("encoder", ["ust", "deep-sets"])
def test_the_gradient_is_that_of_each_network_alone_on_its_own_sets(encoder, classify, parts, monkeypatch):
    if parts == "wide":
        monkeypatch.setattr(ensembles, "VALUES", 20 * some_sets().dim * NETWORKS)
    elif parts != "few":
        monkeypatch.setattr(ensembles, "PART", 20)
    if parts == "computed again":
        monkeypatch.setattr(ensembles, "GRAPH", 1)
    widths = (3, 2) if classify else (1, 1)
    networks, lessons = some_networks(encoder, widths), some_lessons(some_sets(), classify, widths)
    module = module_of(networks, widths, classify)
    batch = lessons([(0, i) for i in range(SETS)], True)
    assert (len(batch.parts) > 3) == (parts != "few")
    found = module.training_step(batch, 0)
    found.backward()
    expected = 0.0
    for j, network in enumerate(networks):
        own = np.flatnonzero(lessons.weights[j].numpy())
        assert 0 < len(own) < SETS
        total, counted = loss_of(network, lessons, j, own, classify, lessons.weights, 0.1)
        (total / counted).backward()
        expected += float((total / counted).detach())
        stacked = dict(zip(module.network.names, module.network.stacked, strict=True))
        gradients = [(stacked[name].grad[j], p.grad) for name, p in network.named_parameters() if p.grad is not None]
        assert len(gradients) > 5
        largest = max(float(alone.abs().max()) for _, alone in gradients)
        for together, alone in gradients:
            assert (together - alone).abs().max() <= 1e-12 * max(largest, 1)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------- drawing


def drawn(lessons, epoch, position=0):
    (batch, _), *rest = lessons([(epoch, position)], True).parts
    assert not rest
    return batch.elements[0, :, 0].numpy(), batch.multiplicity[0].numpy()


@pytest.mark.parametrize(("size", "most"), [(101, 16), (97, 19), (31, 29), (13, 5), (17, 1)])
def test_elements_of_a_large_set_are_drawn_evenly(size, most):
    """Again by seed, epoch and set; none twice, with its multiplicity; each as often as the others of its stretch."""
    rows = torch.arange(float(size))
    sets = Sets.from_ragged([rows[:, None], rows[:, None]], [rows + 1, rows + 1], dtype=torch.float64)
    one = torch.ones(1, 2)
    lessons = EnsembleBatches(sets, torch.zeros(1, 2, 1, dtype=torch.int64), one, one, most, 3)
    elements, counts = drawn(lessons, 4)
    assert (drawn(lessons, 4)[0] == elements).all()
    assert (counts == elements + 1).all()
    reseeded = EnsembleBatches(sets, lessons.targets, one, one, most, 4)
    others = [drawn(lessons, 5)[0], drawn(lessons, 4, 1)[0], drawn(reseeded, 4)[0]]
    if most not in (1, 29):
        assert not any(np.array_equal(elements, other) for other in others)
    number = max(most // 8, 1) * min(8, most)
    times = np.zeros(size)
    for epoch in range(400):
        found = drawn(lessons, epoch)[0].astype(int)
        assert len(np.unique(found)) == len(found) == number
        times[found] += 1
    cells = np.diff(np.linspace(0, size, min(8, most) + 1).astype(int))
    share = np.repeat(max(most // 8, 1) / cells, cells)
    assert np.abs(times / 400 - share).max() < 5 * np.sqrt(0.25 / 400)


def test_small_sets_are_seen_whole():
    lessons = some_lessons(some_sets(), elements=10)
    batch = lessons([(7, i) for i in range(SETS)], True)
    seen = {i: part[row : row + 1] for part, positions in batch.parts for row, i in enumerate(positions)}
    assert sorted(seen) == list(range(SETS))
    for i, found in seen.items():
        elements, counts = lessons.sets[i].read()
        assert torch.equal(found.multiplicity[0, : len(counts)], counts)
        assert not found.multiplicity[0, len(counts) :].any()
        assert torch.equal(found.elements[0, : len(counts)][counts > 0], elements[counts > 0])


# ---------------------------------------------------------------------- the best epoch, and a resumed run


def test_the_epoch_that_is_kept_is_the_best_of_the_other_folds_of_its_repeat(monkeypatch):
    """By hand from the states of each epoch. Two repeats of two folds, whose own sets would choose others."""
    repeat, fold = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    others = torch.as_tensor((repeat[:, None] == repeat) & (fold[:, None] != fold))
    lessons = some_lessons(some_sets(), number=4)
    networks = some_networks(number=4)
    states, end = [], EnsembleModule.on_validation_epoch_end

    def ending(module):
        states.append(module.network.states())
        end(module)

    monkeypatch.setattr(EnsembleModule, "on_validation_epoch_end", ending)
    ensembles.learn(networks, module_of(networks, others=others, rate=0.2), lessons, epochs=9, **HOW)
    losses = np.zeros((9, 4))
    scratch = some_networks(number=1)[0]
    for epoch, state in enumerate(states):
        for j in range(4):
            scratch.load_state_dict({name: values[j] for name, values in state.items()})
            held = np.flatnonzero(lessons.left_out[j].numpy())
            with torch.no_grad():
                total, counted = loss_of(scratch.eval(), lessons, j, held, True, lessons.left_out, 0.0)
            losses[epoch, j] = total / counted
    best, own = losses[:, [1, 0, 3, 2]].argmin(0), losses.argmin(0)
    assert len({*best}) > 1
    assert (best != own).any()
    for j, network in enumerate(networks):
        for name, value in network.state_dict().items():
            assert torch.equal(value, states[best[j]][name][j]), (j, name)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """In the third of five epochs, with dropout and drawn elements; what was best before is known after."""
    others = torch.as_tensor(~np.eye(NETWORKS, dtype=bool))

    def learned(folder, resume, changed=False):
        networks, lessons = some_networks(dropout=0.2), some_lessons(some_sets(), elements=4)
        if changed:
            lessons.targets = 1 - lessons.targets.clamp(max=1)
        module = module_of(networks, others=others, rate=0.1, data=lessons.checksum())
        history = ensembles.learn(networks, module, lessons, epochs=5, **HOW | {"folder": folder, "resume": resume})
        return networks, history

    whole, history = learned(None, False)
    step, calls = EnsembleModule.training_step, []

    def interrupted(module, batch, index):
        calls.append(1)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return step(module, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(EnsembleModule, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learned(tmp_path, False)
    resumed, again = learned(tmp_path, True)
    assert again == history
    for one, other in zip(whole, resumed, strict=True):
        values = other.state_dict()
        assert all(torch.equal(value, values[name]) for name, value in one.state_dict().items())
    with pytest.raises(ValueError, match="is of another run and cannot be resumed"):
        learned(tmp_path, True, changed=True)
