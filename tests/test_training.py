"""Targets of every kind, parts, large sets, and data on disk: what training makes of them."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from omniset import SetBatch, SetClassifier, SetRegressor
from omniset.core.disk import DiskRows
from omniset.core.sets import Sets, batched
from omniset.core.stored import StoredSet
from omniset.encoders import build
from omniset.training.data import Lesson
from omniset.training.network import SetNetwork
from omniset.training.sets import SetBatches, SetModule

SMALL = {"dim": 8, "num_heads": 2, "depth": 2, "num_inducing": 3, "progress": False, "device": "cpu", "batch_size": 7}
SMALL["method"] = "ust"


def some_sets(number=29, seed=0, largest=13):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest, number)
    frame = pd.DataFrame(rng.normal(size=(sizes.sum(), 2)), columns=["x", "y"])
    frame.insert(0, "set", np.repeat([f"s{i}" for i in range(number)], sizes))
    frame["multiplicity"] = rng.integers(1, 4, len(frame))
    return frame


def on_disk(sets, folder, dtype=torch.float32):
    elements, counts = DiskRows(sets.dim, dtype, folder), DiskRows(None, dtype, folder)
    for rows, multiplicity in sets.blocks(17):
        elements.append(rows)
        counts.append(multiplicity)
    return Sets.from_rows(elements, counts, sets.offsets, sets.names, sets.features)


def gradients(network, sets, targets, of_elements=False, max_elements=10**9, weights=None, classify=True):
    """Loss of all sets as one batch, and its gradient."""
    module = SetModule(network, classify, weights, 0.1, 0.0, {"max_elements": max_elements}, 0, {})
    module.log = lambda *_, **__: None
    batch = all_of(sets, targets, of_elements=of_elements, max_elements=max_elements)
    network.zero_grad()
    loss = module.step(batch, "train")
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def all_of(sets, targets, **options):
    """The loader's one batch of all sets."""
    make = SetBatches(sets, targets, **{"of_elements": False, "max_elements": 10**9} | options)
    data = Lesson(make, [], np.arange(len(sets)), batch_size=len(sets), seed=0)
    return next(iter(data.loader(False)))


def network_of(encoder="ust", widths=(2,), of_elements=False, **options):
    torch.manual_seed(1)
    made = build(encoder, input_dim=2, dim=8, depth=2, num_heads=2, num_inducing=3, **options)
    return SetNetwork(made, list(widths), of_elements).double()


def doubled(sets):
    elements, counts = next(sets.blocks(10**9))
    return Sets.from_rows(elements.double(), counts.double(), sets.offsets, sets.names, sets.features)


def test_batched_by_hand():
    elements, counts = torch.zeros(40, 1), torch.ones(40)
    bounds = [(0, 3), (3, 5), (5, 6), (6, 26), (26, 30), (30, 30), (30, 34), (34, 40)]
    sets = [StoredSet(elements, counts, a, b) for a, b in bounds]
    sizes = [[len(s) for s in group] for group in batched(sets, 3, 12)]
    # at most three sets, at most 12 entries when padded, the set of 20 by itself
    assert sizes == [[3, 2, 1], [20], [4, 0, 4], [6]]


@pytest.mark.parametrize("encoder", ["ust", "deep-sets", "set-transformer-sab"])
@pytest.mark.parametrize("disk", [False, True])
def test_parts_and_large_sets_are_the_whole_batch(encoder, disk, tmp_path):
    sets = doubled(Sets.of(some_sets(11), torch.float64))
    sets = on_disk(sets, tmp_path, torch.float64) if disk else sets
    targets = torch.arange(11)[:, None] % 2
    network = network_of(encoder)
    whole = gradients(network, sets, targets, max_elements=10**9)
    # 5 entries at a time: groups of small sets are computed again in the backward, larger sets streamed in shards
    parts = gradients(network, sets, targets, max_elements=5)
    assert len(all_of(sets, targets, max_elements=5)[0]) > 5
    assert torch.allclose(whole[0], parts[0], rtol=1e-12)
    assert (whole[1] - parts[1]).norm() < 1e-12 * whole[1].norm()


def test_random_shards_of_a_set_on_disk_are_refused():
    frame = some_sets(10)
    model = SetClassifier(
        **SMALL, epochs=1, max_elements=4, shard_size=2, gradient="first-shard", validation_fraction=0.0
    )
    with pytest.raises(ValueError, match=r"gradient='first-shard' needs random shards, .* raise max_elements above"):
        model.fit(frame, ["a", "b"] * 5)


@pytest.mark.parametrize("level", ["set", "element"])
def test_sets_on_disk_train_and_predict_to_the_same_bits(level, tmp_path):
    frame = some_sets()
    sets = Sets.of(frame, torch.float32)
    y = np.arange(len(sets)) % 3 if level == "set" else (frame["x"] > 0).to_numpy()
    models = [
        SetClassifier(**SMALL, epochs=2, level=level, max_elements=19).fit(s, y)
        for s in (sets, on_disk(sets, tmp_path))
    ]
    tables = [m.predict_table(s) for m, s in zip(models, (frame, on_disk(sets, tmp_path)), strict=True)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert all(torch.equal(a, b) for a, b in zip(*(m.network_.state_dict().values() for m in models), strict=True))


@pytest.mark.parametrize("classify", [True, False])
def test_the_loss_by_hand(classify):
    """Elements of two sets, two targets, some without label, multiplicities as weights."""
    sets = doubled(Sets.of(some_sets(2, largest=9), torch.float64))
    rows = int(sets.sizes.sum())
    rng = np.random.default_rng(3)
    widths = (3, 2) if classify else (1, 1)
    network = network_of(widths=widths, of_elements=True)
    if classify:
        targets = torch.as_tensor(np.stack([rng.integers(-1, 3, rows), rng.integers(-1, 2, rows)], 1))
    else:
        targets = torch.as_tensor(rng.normal(size=(rows, 2)))
        targets[::3, 0] = np.nan
        network.fit_targets(targets)
    loss, _ = gradients(network, sets, targets, of_elements=True, classify=classify)
    outputs = []
    for i in range(2):
        elements, counts = sets[i].read()
        outputs.append(network(SetBatch(elements[None], counts[None]))[0])
    outputs, weights = torch.cat(outputs).detach().numpy(), next(sets.blocks(rows))[1].numpy()
    expected = []
    for t, values in enumerate(targets.T.numpy()):
        there = values >= 0 if classify else ~np.isnan(values)
        if classify:
            logits = outputs[:, :3] if t == 0 else outputs[:, 3:]
            logits = logits[there]
            each = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), values[there]]
        else:
            known = values[there]
            each = (outputs[there, t] - (known - known.mean()) / known.std()) ** 2
        expected.append(np.average(each, weights=weights[there]))
    assert np.isclose(float(loss), np.sum(expected) if classify else np.mean(expected), rtol=1e-5)


def test_balanced_class_weights_are_scikit_learns():
    frame = some_sets(31)
    y = np.array(["rare"] * 4 + ["common"] * 20 + ["other"] * 7)
    model = SetClassifier(**SMALL, class_weight="balanced")
    codes = torch.as_tensor(np.unique(y, return_inverse=True)[1])[:, None]
    (weights,) = model.class_weights(codes, [3])
    assert np.allclose(weights, compute_class_weight("balanced", classes=np.unique(y), y=y))
    sets = doubled(Sets.of(frame, torch.float64))
    network = network_of(widths=(3,))
    loss, _ = gradients(network, sets, codes, weights=[weights])
    with torch.no_grad():
        outputs = torch.cat([network(SetBatch(e[None], m[None])) for e, m in (sets[i].read() for i in range(31))])
    each = torch.nn.functional.cross_entropy(outputs, codes[:, 0], weight=weights.double())
    assert np.isclose(float(loss), float(each), rtol=1e-6)


def test_several_classes_and_several_numbers(tmp_path):
    frame = some_sets(23)
    names = frame["set"].unique()
    y = pd.DataFrame({"kind": np.arange(23) % 3, "side": np.where(np.arange(23) % 2, "l", "r")}, index=names)
    model = SetClassifier(**SMALL, epochs=2).fit(frame, y.sample(frac=1, random_state=0))
    assert [c.tolist() for c in model.classes_] == [[0, 1, 2], ["l", "r"]]
    predicted, probabilities = model.predict(frame), model.predict_proba(frame)
    assert predicted.shape == (23, 2)
    assert [p.shape for p in probabilities] == [(23, 3), (23, 2)]
    assert all(np.allclose(p.sum(1), 1) for p in probabilities)
    table = model.predict_table(frame)
    assert table.columns.tolist() == ["set", "kind", "side", *(f"p_kind_{k}" for k in range(3)), "p_side_l", "p_side_r"]
    assert (table["p_side_r"] == probabilities[1][:, 1]).all()
    accuracy = [(predicted[:, i] == y.iloc[:, i].to_numpy()).mean() for i in range(2)]
    assert np.isclose(model.score(frame, y), np.mean(accuracy))
    model.save(tmp_path)
    pd.testing.assert_frame_equal(SetClassifier.load(tmp_path).predict_table(frame), table)
    numbers = SetRegressor(**SMALL | {"method": "deep-sets"}, epochs=1).fit(
        frame, np.random.default_rng(0).normal(size=(23, 2))
    )
    assert numbers.predict_table(frame).columns.tolist() == ["set", "label1", "label2"]


def test_labels_of_elements(tmp_path):
    frame = some_sets(37).sample(frac=1, random_state=0).reset_index(drop=True)  # rows of a set need not be together
    frame["element"] = [f"e{i}" for i in range(len(frame))]
    y = np.where(frame["x"] + frame["y"] > 0, "up", "down").astype(object)
    holes = np.arange(len(frame)) % 5 == 0
    model = SetClassifier(**SMALL, epochs=30, learning_rate=2e-2, level="element", validation_fraction=0.0)
    model.fit(frame, np.where(holes, None, y))
    predicted = model.predict(frame)
    assert predicted.shape == (len(frame),)
    assert (predicted[holes] == y[holes]).mean() > 0.8  # row by row: other orders would be right by chance only
    assert np.isclose(model.score(frame, np.where(holes, None, y)), (predicted == y)[~holes].mean())
    table = model.predict_table(frame).set_index("element").loc[frame["element"]]
    assert (table["label"].to_numpy() == predicted).all()
    assert (table["set"].to_numpy() == frame["set"].to_numpy()).all()
    sets = [g[["x", "y"]].to_numpy() for _, g in frame.groupby("set", sort=False)]
    labels = [y[g.index] for _, g in frame.groupby("set", sort=False)]
    listed = SetClassifier(**SMALL, epochs=1, level="element").fit(sets, labels)
    assert [p.shape for p in listed.predict(sets)] == [(len(s),) for s in sets]
    assert listed.predict_proba(sets)[0].shape == (len(sets[0]), 2)
    with pytest.raises(ValueError, match="explain is for level='set'"):
        listed.explain(sets)
    with pytest.raises(ValueError, match="has no output for each element"):
        SetClassifier(**SMALL | {"method": "deep-sets"}, level="element").fit(sets, labels)
    with pytest.raises(ValueError, match=r"y\[0\] has 1 labels, the set has"):
        SetClassifier(**SMALL, level="element").fit(sets, [labels[0][:1], *labels[1:]])


def test_elements_of_large_sets_and_absent_ones():
    frame = some_sets(7)
    frame.loc[3, "multiplicity"] = 0
    y = (frame["x"] > 0).to_numpy()
    model = SetClassifier(**SMALL, epochs=1, level="element", validation_fraction=0.0).fit(frame, y)
    whole = model.predict_table(frame)
    model.max_elements = 3
    streamed = model.predict_table(frame)
    assert whole.iloc[3, 2:].isna().all()
    assert streamed.iloc[:, :2].equals(whole.iloc[:, :2])
    assert np.allclose(streamed["p_True"].astype(float), whole["p_True"].astype(float), atol=1e-6, equal_nan=True)


def test_groups_are_not_split():
    frame = some_sets(41)
    groups = np.arange(41) // 4
    model = SetClassifier(**SMALL, epochs=1, validation_fraction=0.3)
    model.fit(frame, np.arange(41) % 2, groups=groups)
    held = set(model.validation_.tolist())
    assert 0 < len(held) < 41
    assert not {groups[i] for i in held} & {groups[i] for i in range(41) if i not in held}
    with pytest.raises(ValueError, match="all sets are of one group"):
        model.fit(frame, np.arange(41) % 2, groups=np.zeros(41))
    with pytest.raises(ValueError, match=r"groups must be one per set, \(41,\), got shape \(3,\)"):
        model.fit(frame, np.arange(41) % 2, groups=[1, 2, 3])
