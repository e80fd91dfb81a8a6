import json
import math
import signal

import numpy as np
import pandas as pd
import pytest
import torch

from omniset import SetBatch, SetClassifier, SetRegressor
from omniset.training.artefacts import digest
from omniset.training.network import Standardize
from tampering import contents, put, refused

SMALL = {"dim": 8, "num_heads": 2, "depth": 1, "num_inducing": 3, "progress": False, "device": "cpu", "batch_size": 7}
ONE = {**SMALL, "method": "ust"}  # network; tests/test_stack.py has those of several


def data(number=31):
    """Label: whether the mean of the first feature, multiplicities counted, is above 0."""
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(n, 2)) + rng.choice([-1, 1]) * np.array([0.7, 0]) for n in rng.integers(1, 9, number)]
    counts = [rng.integers(1, 4, len(s)) for s in sets]
    means = np.array([np.average(s[:, 0], weights=c) for s, c in zip(sets, counts, strict=True)])
    return sets, counts, means


def table(sets, counts):
    frames = [
        pd.DataFrame({"set": f"s{i}", "x": s[:, 0], "y": s[:, 1], "multiplicity": c})
        for i, (s, c) in enumerate(zip(sets, counts, strict=True))
    ]
    return pd.concat(frames, ignore_index=True)


def weights(model):
    return [p.detach().clone() for p in model.network_.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("encoder", ["ust", "deep-sets", "set-transformer-sab", "set-transformer-isab"])
def test_learns_and_comes_back_from_disk(encoder, tmp_path):
    sets, counts, means = data()
    batch, labels = SetBatch.from_ragged(sets, counts), np.where(means > 0, "up", "down")
    model = SetClassifier(encoder, **SMALL, epochs=40, learning_rate=2e-2, validation_fraction=0.0).fit(batch, labels)
    assert model.score(batch, labels) >= 0.9  # it learned at all; how well is not tested here
    assert model.classes_.tolist() == ["down", "up"]
    probabilities = model.predict_proba(batch)
    assert np.allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(batch)).all()
    model.save(tmp_path / "model")
    again = SetClassifier.load(tmp_path / "model")
    assert (again.predict_proba(batch) == probabilities).all()
    assert again.get_params() == model.get_params()
    written = {p.name for p in (tmp_path / "model").iterdir()}
    assert written == {"config.json", "model.safetensors", "metrics.json", "run.json", "README.md"}
    history = json.loads((tmp_path / "model" / "metrics.json").read_text())["history"]
    assert [h["epoch"] for h in history] == list(range(1, 41))


@pytest.mark.parametrize("targets", [1, 2])
def test_regressor(targets):
    sets, counts, means = data()
    batch = SetBatch.from_ragged(sets, counts)
    y = 100 + 7 * means if targets == 1 else np.stack([100 + 7 * means, -means], 1)
    model = SetRegressor("deep-sets", **SMALL, epochs=60, learning_rate=2e-2, validation_fraction=0.0).fit(batch, y)
    assert model.predict(batch).shape == y.shape
    assert model.score(batch, y) > 0.8


def test_the_three_forms_of_sets_are_one():
    sets, counts, means = data()
    labels = means > 0
    options = {**ONE, "epochs": 2}
    batch = SetBatch.from_ragged(sets, counts)
    frame = table(sets, counts)
    shuffled = pd.Series(labels, index=[f"s{i}" for i in range(len(sets))]).sample(frac=1, random_state=0)
    by_batch = SetClassifier(**options).fit(batch, labels)
    by_table = SetClassifier(**options).fit(frame, shuffled)
    assert equal(weights(by_batch), weights(by_table))
    repeated = [np.repeat(s, c, axis=0) for s, c in zip(sets, counts, strict=True)]
    for other in (frame, frame.assign(element="a"), frame[["y", "multiplicity", "set", "x"]], repeated):
        assert np.allclose(by_table.predict_proba(other), by_batch.predict_proba(batch), atol=1e-6)


def test_same_seed_same_numbers_and_other_seed_others():
    sets, _, means = data()
    options = {**ONE, "epochs": 3, "encoder_options": {"dropout": 0.2}, "shard_size": 3}
    torch.manual_seed(11)
    one = SetClassifier(**options).fit(sets, means > 0)
    after = torch.rand(1)
    torch.manual_seed(12)
    two = SetClassifier(**options).fit(sets, means > 0)
    assert equal(weights(one), weights(two))
    assert one.history_ == two.history_
    assert (one.predict_proba(sets) == two.predict_proba(sets)).all()
    assert not equal(weights(one), weights(SetClassifier(**options, seed=1).fit(sets, means > 0)))
    torch.manual_seed(11)
    assert torch.equal(after, torch.rand(1))  # the caller's random numbers are left alone


def test_training_in_shards_with_exact_gradients_is_training_whole():
    sets, _, means = data()
    whole = SetClassifier(**ONE, epochs=2).fit(sets, means > 0)
    sharded = SetClassifier(**ONE, epochs=2, shard_size=3, store="disk").fit(sets, means > 0)
    stopped = SetClassifier(**ONE, epochs=2, shard_size=3, gradient="first-shard").fit(sets, means > 0)
    difference = [np.abs(m.predict_proba(sets) - whole.predict_proba(sets)).max() for m in (sharded, stopped)]
    assert difference[0] < 1e-4 < 1e-3 < difference[1]


def test_a_prediction_depends_neither_on_batch_mates_nor_on_shards():
    sets, _, means = data()
    model = SetClassifier(**ONE, epochs=2).fit(sets, means > 0)
    together = model.predict_proba(sets)
    alone = np.concatenate([model.predict_proba([s]) for s in sets])
    assert np.abs(together - alone).max() < 1e-6
    for size in (1, 3, 64):
        assert np.abs(model.predict_proba(sets, shard_size=size) - together).max() < 1e-6


def test_early_stopping_keeps_the_best_epoch():
    sets, _, means = data()
    model = SetClassifier(**ONE, epochs=50, patience=2, learning_rate=0.5, validation_fraction=0.3).fit(sets, means > 0)
    losses = [h["val_loss"] for h in model.history_]
    assert len(losses) < 50
    assert len(losses) == int(np.argmin(losses)) + 3


def test_explain():
    sets, counts, means = data()
    model = SetClassifier(**ONE, epochs=2).fit(SetBatch.from_ragged(sets, counts), means > 0)
    scores = model.explain(sets, steps=3)
    assert [len(s) for s in scores] == [len(s) for s in sets]
    assert all(s.min() >= 0 and s.max() <= 1 for s in scores)
    assert not np.allclose(np.concatenate(scores), np.concatenate(model.explain(sets, target=True, steps=3)))
    with pytest.raises(ValueError, match=r"target must be one of \[False, True\], got 'up'"):
        model.explain(sets, target="up")
    regressor = SetRegressor(**ONE, epochs=1).fit(sets, means)
    assert len(regressor.explain(sets[:2], target=0, steps=2)) == 2


def interrupt(monkeypatch, model, *arguments, folder):
    from omniset.training.fit import TrainingModule

    end, calls = TrainingModule.on_train_epoch_end, []

    def interrupted(module):
        end(module)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "on_train_epoch_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*arguments, folder=folder)


@pytest.mark.parametrize("changed", [{"max_elements": 11}, {"shard_size": 2}, {"store": "recompute", "log": "csv"}])
def test_what_changes_no_step_forbids_no_resume(changed, tmp_path, monkeypatch):
    sets, _, means = data()
    options = {**ONE, "epochs": 5, "patience": None}
    whole = SetClassifier(**options).fit(sets, means > 0)
    interrupt(monkeypatch, SetClassifier(**options), sets, means > 0, folder=tmp_path)
    resumed = SetClassifier(**options, **changed).fit(sets, means > 0, folder=tmp_path, resume=True)
    assert np.abs(resumed.predict_proba(sets) - whole.predict_proba(sets)).max() <= 1e-5
    # Pieces that are sets of their own, or that are left out of the gradient, make another model.
    interrupt(monkeypatch, SetClassifier(**options, shards="independent"), sets, means > 0, folder=tmp_path / "other")
    for other in ({"max_elements": 11}, {"shard_size": 2}):
        model = SetClassifier(**options, shards="independent", **other)
        with pytest.raises(ValueError, match=f"cannot be resumed: {next(iter(other))} was "):
            model.fit(sets, means > 0, folder=tmp_path / "other", resume=True)


@pytest.mark.parametrize("method", ["auto", "ust"])
def test_a_resume_with_other_options_is_refused_before_work(method, tmp_path, monkeypatch):
    sets, _, means = data()
    options = {**SMALL, "method": method, "epochs": 5}
    interrupt(monkeypatch, SetClassifier(**options), sets, means > 0, folder=tmp_path)
    monkeypatch.delattr("omniset.estimators.base.SetEstimator._fit_mixture")
    monkeypatch.delattr("omniset.estimators.base.SetEstimator._fit_network")
    with pytest.raises(ValueError, match=r"cannot be resumed: seed was 0, is 3\. Start anew"):
        SetClassifier(**options, seed=3).fit(sets, means > 0, folder=tmp_path, resume=True)


def test_resume_ends_where_an_uninterrupted_run_ends(tmp_path, monkeypatch):
    sets, _, means = data()
    options = {**ONE, "epochs": 6, "encoder_options": {"dropout": 0.2}, "shard_size": 3, "patience": None}
    whole = SetClassifier(**options).fit(sets, means > 0)

    from omniset.training.sets import SetModule

    step, calls = SetModule.training_step, []

    def interrupted(self, batch, index):
        calls.append(1)
        if len(calls) == 14:  # in the fourth epoch of four steps
            raise KeyboardInterrupt
        return step(self, batch, index)

    monkeypatch.setattr(SetModule, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SetClassifier(**options).fit(sets, means > 0, folder=tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Ctrl-C still works
    monkeypatch.undo()
    resumed = SetClassifier(**options).fit(sets, means > 0, folder=tmp_path, resume=True)
    assert equal(weights(resumed), weights(whole))
    assert resumed.history_ == whole.history_
    with pytest.raises(ValueError, match="cannot be resumed: learning_rate was None, is 0.1"):
        SetClassifier(**options, learning_rate=0.1).fit(sets, means > 0, folder=tmp_path, resume=True)


@pytest.mark.parametrize("log", ["csv", "tensorboard"])
def test_logs(log, tmp_path):
    sets, _, means = data()
    SetClassifier(**ONE, epochs=2, log=log).fit(sets, means > 0, folder=tmp_path)
    written = [p.name for p in (tmp_path / "logs").iterdir()]
    assert "metrics.csv" in written if log == "csv" else any(n.startswith("events.") for n in written)


def test_standardize_by_hand():
    layer = Standardize(2)
    blocks = [(torch.tensor([[1.0, 5.0]]), torch.tensor([2.0])), (torch.tensor([[4.0, 5.0]]), torch.tensor([1.0]))]
    layer.fit(blocks)
    assert torch.allclose(layer.shift, torch.tensor([2.0, 5.0]))
    assert torch.allclose(layer.scale, torch.tensor([math.sqrt(2), 1.0]))  # constant column: shifted only
    x = torch.randn(3, 2)
    assert torch.allclose(layer.undo(layer(x)), x, atol=1e-6)


def test_standardize_large_blocks():
    layer = Standardize(257)
    layer.shift.copy_(torch.linspace(-3, 5, 257))
    layer.scale.copy_(torch.linspace(0.5, 4, 257))
    x = torch.randn(4099, 257)  # results of this size lie in memory that is used again
    expected, negated = (((y.double() - layer.shift) / layer.scale).float() for y in (x, -x))
    first, second = layer(x), layer(-x)
    assert torch.allclose(first, expected, atol=1e-6)  # the second result is not written over it
    assert torch.allclose(second, negated, atol=1e-6)
    assert torch.allclose(torch.vmap(layer)(x.view(1, 4099, 257))[0], expected, atol=1e-6)
    wanted = x.clone().requires_grad_()
    layer(wanted).sum().backward()
    assert torch.allclose(wanted.grad, (1 / layer.scale).expand_as(x))
    assert layer(x.double()).dtype == torch.float64


# ---------------------------------------------------------------------- bad input


@pytest.fixture(scope="module")
def fitted():
    sets, counts, means = data()
    return SetClassifier(**ONE, epochs=1).fit(table(sets, counts), np.where(means > 0, "up", "down"))


@pytest.mark.parametrize(
    ("arguments", "y", "message"),
    [
        ({"encoder": "nonsense"}, [0, 1], "encoder must be one of .* got 'nonsense'"),
        ({"encoder_options": {"nonsense": 1}}, [0, 1], "encoder_options={'nonsense': 1}: .*does not take nonsense"),
        ({"device": "abacus"}, [0, 1], "device must be .* got 'abacus'"),
        ({}, None, "requires y to be passed, but the target y is None"),
        ({}, [0], "y has 1 labels for 2 sets"),
        ({}, [0, 0], "y has only one class, 0"),
        ({}, ["a", None], r"y\[1\] is missing"),
        ({}, [[[0, 1]], [[1, 0]]], "one row of labels, per set"),
        ({}, [[0, 1], [1, 1]], "target 'label2' has only one class, 1"),
    ],
)
def test_bad_arguments_and_labels(arguments, y, message):
    with pytest.raises(ValueError, match=message):
        SetClassifier(**{**SMALL, "epochs": 1, **arguments}).fit([[[0.0]], [[1.0]]], y)


def test_bad_targets():
    with pytest.raises(ValueError, match=r"y\[1, 0\] is inf: targets must be finite"):
        SetRegressor(**SMALL).fit([[[0.0]], [[1.0]]], [[0.0, 1.0], [math.inf, 1.0]])
    with pytest.raises(ValueError, match="y must be numbers for regression"):
        SetRegressor(**SMALL).fit([[[0.0]], [[1.0]]], ["a", "b"])


# ---------------------------------------------------------------------- artefacts


@pytest.fixture
def artefact(fitted, tmp_path):
    fitted.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format_version=1), "has format_version 1, this Omniset reads 13: make the model anew"),
        (lambda c: c["fitted"].update(classes=[["up", "down"]]), r"fitted.classes was \[\['down', 'up'\]\]"),
        (lambda c: c["arguments"].update(nonsense=1), "config.json was changed after the model was saved: arguments.n"),
    ],
)
def test_tampered_config(artefact, change, message):
    path = artefact / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        SetClassifier.load(artefact)


def test_artefacts_of_another_model(artefact):
    with pytest.raises(ValueError, match="holds a SetClassifier, not a SetRegressor"):
        SetRegressor.load(artefact)
    config, tensors = contents(artefact)
    kept = tensors.pop("network.head.bias")
    put(artefact, config | {"weights": digest(tensors)}, tensors)
    refused(SetClassifier.load, artefact, "network.head.bias is missing")
    tensors |= {"network.head.bias": torch.cat([kept, kept])}
    put(artefact, config | {"weights": digest(tensors)}, tensors)
    refused(SetClassifier.load, artefact, r"network.head.bias has shape \(4,\), expected \(2,\)")


def test_unwritable_output(fitted, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file"):
        fitted.save(tmp_path / "file")
