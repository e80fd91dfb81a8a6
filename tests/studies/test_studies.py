"""Studies: their data, their losses, that they resume, and what they print."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from paper import mixture_of_gaussians
from paper.anomaly import DigitAnomaly
from paper.max_regression import MaxRegression, error_without_largest
from paper.mnist_points import empty_counted
from paper.point_shapes import SHAPES, ShapeDistributions, rotations
from paper.registry import STUDIES, load, tables_of
from paper.study import Sample, generator, number, shuffled, training_source
from paper.tables import Mean, Results, apart
from scipy import stats
from sklearn.cluster import DBSCAN
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from omniset import SetBatch, encoders
from omniset.cli import main
from omniset.testing import relative_error

pytestmark = pytest.mark.slow

SMALL = """
title: Small
epochs: 3
steps: 4
batch_size: 8
learning_rate: 0.01
drop: {after: 0.7, factor: 0.1}
options: {size: 4, bound: 1000, validation_sets: 20}
test: {sets: 10}
architectures:
  isab: {encoder: ust, dim: 8, depth: 1, num_heads: 2, num_inducing: 2}
trainings:
  whole:
    architecture: isab
    columns: {ust: {label: UST}, st: {label: ST, encoder: set-transformer-isab}}
  exact:
    architecture: isab
    shard_size: 2
    columns: {ust-exact: {label: exact}}
paper: {ust: [5.0, 1.0]}
"""


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The study max-regression with small networks, in this process."""
    (tmp_path / "max_regression.yaml").write_text(SMALL)
    monkeypatch.setattr("paper.recipes.FOLDER", tmp_path)
    return tmp_path


def run(*words):
    return main(["studies", *map(str, words), "--progress", "false"][: None if words[0] == "run" else -2])


def whole(folder, seeds):
    """Run one of the trainings."""
    run("run", "max-regression", "--out", folder, "--device", "cpu", "--seeds", seeds, "--trainings", "whole")


def numbers(folder):
    """All that is written but when and how long."""
    trainings = Results.read(folder).trainings
    for content in trainings.values():
        for row in content["seeds"].values():
            row.pop("tested_again", None)
            for key in ("seconds", "date", "command", "provenance", "together"):
                row.pop(key)
    return trainings


def test_run_writes_everything_once(small, capsys):
    out = small / "out"
    words = ("run", "max-regression", "--out", out, "--device", "cpu", "--seeds")
    assert run(*words, 2) == 0
    said = capsys.readouterr().out
    assert "whole, seed 0, 1: done" in said
    assert "exact, seed 1: done" in said
    assert "oracle" in said
    assert {p.name for p in out.iterdir()} == {
        *("exact.json", "whole.json", "max-regression.png", "report.html", "report.json", "runs"),
    }
    assert sorted(p.name for p in (out / "runs").iterdir()) == [
        f"{name}.seed{seed}.safetensors" for name in ("exact", "whole") for seed in (0, 1)
    ]
    before = numbers(out)
    exact = before["exact"]["seeds"]["0"]
    assert exact["steps"] == exact["of"] == 12
    assert len(exact["gradient_errors"]) == 3
    assert max(exact["gradient_errors"]) < 3e-6
    for row in (row for name in before for row in before[name]["seeds"].values()):
        assert len(row["validation_losses"]) == 3
        assert row["validation_losses"].index(row["validation_loss"]) + 1 == row["best_epoch"]
        assert row["validation_loss"] == min(row["validation_losses"])
    columns = before["whole"]["seeds"]["0"]["columns"]
    assert columns["ust"] == columns["st"]  # of one network
    page = (out / "report.html").read_text()
    assert all(f"{row['columns']['ust']['mae']:.2f}" in page for row in before["whole"]["seeds"].values())
    assert json.loads((out / "report.json").read_text())["results"].keys() == {"whole", "exact"}
    assert run(*words, 3) == 0  # adds a seed, and does nothing again
    assert "seed 0" not in capsys.readouterr().out.split("Small")[0]
    after = numbers(out)
    assert [*after["whole"]["seeds"]] == ["0", "1", "2"]
    for name in before:
        assert before[name]["seeds"] == {s: after[name]["seeds"][s] for s in ("0", "1")}
    commands = [row["command"] for name in after for row in Results.read(out).trainings[name]["seeds"].values()]
    assert run(*words, 3, "--test_again", "true") == 0
    assert numbers(out) == after
    again = [row for name in after for row in Results.read(out).trainings[name]["seeds"].values()]
    assert [row["command"] for row in again] == commands  # that which trained it
    assert all({"command", "date", "provenance"} == {*row["tested_again"]} for row in again)


def test_every_step_has_its_own_batch(small, monkeypatch):
    seen = []
    drawn = MaxRegression.batch
    monkeypatch.setattr(MaxRegression, "batch", lambda *a: (seen.append(a[2:]), drawn(*a))[1])
    whole(small / "out", 2)
    assert seen == [(seed, step) for step in range(12) for seed in (0, 1)]


def test_the_budget_stops_between_epochs_and_early_results_are_there(small, capsys):
    cut = small / "cut"
    run("run", "max-regression", "--out", small / "whole", "--device", "cpu", "--seeds", 2)
    words = ("run", "max-regression", "--out", cut, "--device", "cpu", "--seeds", 2)
    assert run(*words, "--budget", 1e-5) == 0
    assert "stopped after 1 of 3 epochs" in capsys.readouterr().out
    row = numbers(cut)["whole"]["seeds"]["1"]
    assert (row["steps"], row["of"]) == (4, 12)
    assert row["columns"]["ust"]["mae"] > 0
    assert main(["studies", "table", "max-regression", "--out", str(cut)]) == 0
    said = capsys.readouterr().out
    assert "4 steps of 12 (stopped early)" in said
    assert "Not run: exact." in said
    assert run(*words) == 0
    assert numbers(cut) == numbers(small / "whole")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "name must be one of .*mnist-points.*, got 'nothing'"),
        (["memory"], "benchmarks multisets"),
        (["max-regression", "--seeds", 0], "seeds must be >= 1, got 0"),
        (["max-regression", "--epochs", 0], "epochs must be >= 1, got 0"),
        (["max-regression", "--budget", -1], "budget must be > 0 minutes, got -1"),
        (["max-regression", "--trainings", ""], "trainings must be among whole, exact, got ''"),
        (["max-regression", "--test_again", "true"], "no networks of these trainings and seeds are kept in"),
        (["max-regression", "--trainings", "x"], "trainings must be among whole, exact, got 'x'"),
        (["mnist-points", "--data", "/nowhere"], "/nowhere has neither train-images"),
    ],
)
def test_bad_arguments(small, words, message, capsys, monkeypatch):
    if words[0] == "mnist-points":
        monkeypatch.undo()
    assert run("run", *words, "--out", small / "out") == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error
    assert not (small / "out").exists()


@pytest.mark.parametrize("words", [[], ["list"], ["run", "max-regression", "--seeds", "1"], ["--help"]])
def test_without_the_repository_one_line_says_where_they_are(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("omniset.cli.studies.PAPER", tmp_path / "paper")
    assert main(["studies", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("omniset: error: the studies lie in the folder paper/ of the repository")
    assert error.count("\n") == 1


def test_other_commands_need_no_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("omniset.cli.studies.PAPER", tmp_path / "paper")
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    assert "studies" not in capsys.readouterr().out


def test_results_of_another_recipe_are_kept(small, capsys):
    words = ("run", "max-regression", "--out", small / "out", "--device", "cpu", "--seeds", 1)
    run(*words, "--epochs", 1)
    before = (small / "out" / "whole.json").read_text()
    assert run(*words) == 2
    assert "is of another recipe of whole (epochs was 1, is 3)" in capsys.readouterr().err
    assert (small / "out" / "whole.json").read_text() == before


def test_every_recipe_builds_and_every_table_prints(capsys):
    for name in STUDIES:
        study = load(name)
        study.outputs = getattr(study, "outputs", 10)  # taxonomy counts its references
        for training in study.recipe.trainings:
            state = study.network(training, 0).state_dict()
            for column in training.columns:
                study.network(training, column=column).load_state_dict(state)
        assert study.figures(Results()) is not None
        assert main(["studies", "table", name, "--format", "markdown"]) == 0
        assert main(["studies", "table", name, "--out", "nowhere"]) == 2
    assert main(["studies", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in STUDIES)


def test_a_word_of_a_recipe_that_nobody_knows_is_refused(small):
    file = small / "max_regression.yaml"
    file.write_text(file.read_text().replace("num_inducing: 2", "num_inducing: 2, num_indusing: 3"))
    study = load("max-regression")
    with pytest.raises(TypeError, match="encoder 'ust' does not take num_indusing"):
        study.network(study.recipe.trainings[0])


def test_table_1():
    (table,) = tables_of("features", Path())
    rows = {row[0]: row[2:] for row in table.rows}
    assert len(rows) == 12
    assert rows["UST"] == rows["FLARE"] == rows["Transolver"] == ["yes"] * 4
    assert rows["STrXL"][-1] == rows["FSPool"][-1] == "no"
    assert rows["UMBC"] == ["yes", "yes", "no", "yes"]


def test_means_and_intervals():
    values = [5.1, 4.9, 6.0, 5.5]
    found = Mean.of(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert math.isclose(found.value - found.half, low)
    assert math.isclose(found.value + found.half, high)
    assert Mean.of([2.0]).half is None
    assert Mean.of([2.0]).text(1) == "2.0"
    assert Mean.of([3.0, 1.0, 1.5]).cells(1)[1:] == ["1.5", "1.0 1.5 3.0"]
    assert Mean.of([2.0]).cells(1) == ["2.0", "", ""]
    assert apart(Mean(10.0, 1.0), (5.0, 2.0)) == "+5"
    assert apart(Mean(8.0, 1.0), (5.0, 2.0)) == ""
    # Ten networks, and another of the same deviation: where their mean and it differ by so much.
    t, deviation = stats.t.ppf(0.975, 9), 1.3
    half, most = t * deviation / np.sqrt(10), t * deviation * np.sqrt(1 + 1 / 10)
    assert apart(Mean(0.999 * most, None), (0.0, half)) == ""
    assert apart(Mean(-1.001 * most, None), (0.0, half)) == f"{-1.001 * most:+.3g}"
    assert apart(Mean(1.0, None), None) == ""


def test_seeds_are_all_different():
    keys = [("a", 1), ("a", 2), ("a", 1, 1), ("a", 2, 1), ("b", 1), (1, "a"), ("ab",), ("a", "b")]
    assert len({number(*k) for k in keys}) == len(keys)
    assert number("a", 1) == number("a", 1)


def test_shuffled_sets_are_the_same_sets():
    elements, m = torch.arange(24.0).view(2, 6, 2), torch.tensor([[1, 0, 2, 0, 3, 1], [0, 0, 0, 0, 0, 5]])
    found = shuffled(Sample(elements, m, torch.zeros(2)), generator("x"))
    for b in range(2):
        pairs = lambda e, c: sorted((*row, n) for row, n in zip(e.tolist(), c.tolist(), strict=True) if n)  # noqa: E731
        assert pairs(found.elements[b], found.multiplicity[b]) == pairs(elements[b], m[b])
        present = (found.multiplicity[b] > 0).int()
        assert (present.diff() <= 0).all()  # absent entries last
    first = {float(shuffled(Sample(elements, m, m), generator("x", i)).elements[0, 0, 0]) for i in range(40)}
    assert first == {0.0, 4.0, 8.0, 10.0}


def test_empty_shards_that_are_counted():
    """A set of three points, padded to seven, in shards of two: the mean of four sets, of which two are padding."""
    m = torch.tensor([[1.0] * 3 + [0] * 4, [1.0] * 7])
    assert empty_counted(m, 2).tolist() == [[1, 1, 1, 0, 1, 1, 1], [1] * 7]
    assert empty_counted(m, 7).tolist() == m.tolist()
    study = load("mnist-points")
    (training,) = (t for t in study.recipe.trainings if t.name == "isab-variable")
    (column,) = (c for c in training.columns if c.name == "st-isab-padding")
    network = study.network(training, 0, column).double().eval()
    points = torch.randn(3, 2, generator=generator("x"), dtype=torch.float64)
    origin = torch.zeros(1, 4, 2, dtype=torch.float64)
    with torch.no_grad():
        mean = network(
            SetBatch(torch.cat([points[None], origin], 1), empty_counted(m[:1], 2)), shard_size=2, shards="independent"
        )
        parts = [points[:2], points[2:], origin[0, :2], origin[0, :1]]
        expected = torch.stack([network(SetBatch(part[None])) for part in parts]).mean(0)
    assert relative_error(mean, expected) < 1e-14


@pytest.mark.parametrize("name", ["ust-msa-8", "ust-msa-8-literal", "umbc-msa-8"])
def test_training_on_the_first_shard_and_the_rest_is_that_on_all_shards(name):
    """Gradients that are not exact: a shard of 8 and one of 11, for shards of 8, 8 and 3."""
    study = load("mixture-of-gaussians")
    (training,) = (t for t in study.recipe.trainings if t.name == name)
    network = study.network(training, 0).double()
    sample = Sample(torch.randn(2, 19, 2).double(), torch.rand(2, 19).double() + 0.5, torch.randn(2, 9, 2).double())
    source, options = training_source(sample, training)
    assert [len(s.elements[0]) for s in source] == [8, 11]
    grads = []
    whole, _ = training_source(sample, training, False)
    for given, how in ((source, options), (whole, options | {"shard_size": 8}), (whole, {})):
        loss = study.loss(network(given, **how), sample)
        grads.append(torch.autograd.grad(loss, [*network.parameters()], materialize_grads=True))
    two, three, exact = grads
    assert relative_error(two, three) < 1e-12
    assert relative_error(two, exact) > 1e-3


def test_clusters_are_those_of_dbscan():
    for seed in range(5):
        elements, counts, points, _ = mixture_of_gaussians.draw_set(generator("test", seed))
        labels = DBSCAN(eps=0.2, min_samples=1).fit_predict(points)
        expected = {(tuple(np.round(points[labels == k].numpy().mean(0), 4)), (labels == k).sum()) for k in set(labels)}
        found = {(tuple(np.round(e.numpy(), 4)), int(c)) for e, c in zip(elements, counts, strict=True)}
        assert len(found) == len(expected)
        close = lambda a, b: a[1] == b[1] and np.allclose(a[0], b[0], atol=1e-3)  # noqa: E731
        assert all(any(close(a, b) for b in expected) for a in found)
        assert counts.sum() == 1024


def test_mixtures_are_drawn_as_said():
    truth = torch.stack([mixture_of_gaussians.draw_set(generator("many", i))[3] for i in range(300)])
    assert torch.allclose(truth[..., 0].sum(1), torch.ones(300))
    assert stats.kstest(truth[:, 0, 0], stats.beta(1, 3).cdf).pvalue > 1e-3  # one weight of a Dirichlet(1, 1, 1, 1)
    assert stats.kstest(truth[..., 1:3].flatten(), stats.uniform(-4, 8).cdf).pvalue > 1e-3
    assert stats.kstest(truth[..., 3:].flatten(), stats.uniform(0.1, 0.5).cdf).pvalue > 1e-3


def test_with_variances_in_this_range_the_true_mixtures_would_be_below_the_networks_of_the_paper():
    draw, worst = generator("variances"), max(load("mixture-of-gaussians").recipe.paper["sizes"]["ust"][64])
    truth = torch.stack([mixture_of_gaussians.draw_set(generator("many", i))[3] for i in range(100)])
    of = mixture_of_gaussians.Mixture(truth[..., 0], truth[..., 1:3], truth[..., 3:].sqrt())
    which = torch.multinomial(of.weights, 1024, replacement=True, generator=draw)[..., None].expand(-1, -1, 2)
    points = of.means.gather(1, which) + of.deviations.gather(1, which) * torch.randn(100, 1024, 2, generator=draw)
    assert mixture_of_gaussians.negative_log_likelihood(of, points).mean() > worst + 0.5


def test_shards_of_the_largest_size_are_whole_sets():
    sizes = [len(mixture_of_gaussians.draw_set(generator("mixture-of-gaussians", "train", i))[0]) for i in range(300)]
    assert 60 < max(sizes) <= load("mixture-of-gaussians").recipe.test["largest_set"]


def test_likelihood_is_that_of_torch():
    output, points = torch.randn(3, 20).double(), torch.randn(3, 7, 2).double()
    of = mixture_of_gaussians.mixture(output)
    normal = Independent(Normal(of.means, of.deviations), 1)
    mixture = MixtureSameFamily(Categorical(probs=of.weights), normal)
    expected = -torch.stack([mixture.log_prob(points[:, i]) for i in range(7)], 1).mean(1)
    assert relative_error(mixture_of_gaussians.negative_log_likelihood(of, points), expected) < 1e-12


def test_largest_of_ten_integers():
    study = load("max-regression")
    sample = study.batch(study.recipe.trainings[0], 0, 0)
    assert sample.elements.shape == (32, 10, 1)
    assert (sample.elements == sample.elements.floor()).all()
    assert (sample.target == sample.elements[..., 0].amax(1)).all()
    large = study._draw(20_000, "x")
    assert 0 <= large.elements.min() < large.elements.max() < 1000
    assert abs(float(large.target.mean()) - 500 * 10 / 11) < 5


def test_what_one_changed_part_does():
    study = load("max-parts")
    plain, normalized = (study.network(t, 0) for t in study.recipe.chosen(["ust", "ust-normalized"]))
    x = torch.rand(3, 7, 1) * 1000
    embedded = plain.encoder.embed(x)
    expected = (embedded - embedded.mean(-1, keepdim=True)) / embedded.var(-1, unbiased=False, keepdim=True).sqrt()
    assert relative_error(normalized.encoder.embed(x), expected) < 1e-5
    # One element has all the weight, so that the average is its value, which is linear in it.
    slots = study.network(study.recipe.chosen(["umbc-plain"])[0], 0).encoder.pool.gather
    q, y = torch.randn(1, 4, 64), torch.randn(3, 1, 64)
    h = q + slots.output(slots.value(y))
    assert relative_error(slots(q, y), h + slots.ffn(slots.norm_ffn(h))) < 1e-5


@pytest.mark.parametrize("which", ["ust", "st-sab"])
def test_error_without_the_largest_element_in_the_pool(which):
    study = load("max-parts")
    network = study.network(study.recipe.chosen([which])[0], 0).double().requires_grad_(False)
    sample = study._draw(5, "x")
    sample = sample._replace(elements=sample.elements.double())
    errors = []
    for elements, target in zip(sample.elements, sample.target, strict=True):
        seen = network.encoder.embed(elements[None])
        for layer in network.encoder.layers:
            seen = layer(seen)
        others = [i for i in range(10) if i != int(elements[:, 0].argmax())]
        errors.append(abs(float(network.head(network.encoder.pool(seen[:, others]))) - float(target)))
    assert error_without_largest(network, sample) == pytest.approx(np.mean(errors), rel=1e-9)


@pytest.fixture
def digits():
    """Ten images of each digit; pixel 0 is the digit, pixel 1 the image."""
    study = DigitAnomaly()
    labels = torch.arange(100) % 10
    images = torch.zeros(100, 784, dtype=torch.uint8)
    images[:, 0], images[:, 1] = labels.byte(), torch.arange(100).byte()
    study.images = dict.fromkeys(("train", "validation", "test"), images)
    study.rows = {name: [(labels == d).nonzero()[:, 0] for d in range(10)] for name in study.images}
    return study


def test_one_of_ten_digits_is_another(digits):
    anomalous = torch.arange(400) % 2 == 0
    elements, where = digits.draw("train", 400, anomalous, generator("x"))
    found = (255 * elements[..., 0]).round().long()
    for b in range(400):
        others = found[b][torch.arange(10) != where[b]]
        assert len(set(others.tolist())) == 1
        assert (found[b, where[b]] != others[0]) == anomalous[b]
    assert len({*where.tolist()}) == 10
    assert len({*found.flatten().tolist()}) == 10
    assert len({*(255 * elements[..., 1]).round().flatten().tolist()}) == 100
    sample = digits.batch(digits.recipe.trainings[0], 0, 0)
    assert 0.3 < sample.target.mean() < 0.7


@pytest.mark.parametrize("content", ["{", "[]", '{"seeds": {}}'])
def test_a_file_that_is_not_of_a_study_is_named(tmp_path, content):
    (tmp_path / "isab.json").write_text(content)
    with pytest.raises(ValueError, match="isab.json is not of a study"):
        Results.read(tmp_path)


def test_shapes_in_space():
    """Clouds are standard; of each shape, without noise, points lie where they should; turned every way alike."""
    study, draw = load("point-shapes"), generator("test")
    sample = study._draw(200, 101, "test")
    assert sample.elements.mean(1).abs().max() < 1e-6
    assert (sample.elements.square().sum(2).mean(1) - 1).abs().max() < 1e-5
    assert {*sample.target.tolist()} == {*range(10)}
    clouds = {name: shape(40, 300, draw).double() for name, shape in SHAPES.items()}
    assert (clouds["sphere"].norm(dim=2) - 1).abs().max() < 1e-6
    assert clouds["hemisphere"][..., 2].min() >= 0
    x, y, z = clouds["torus"].unbind(2)
    radius = ((x**2 + y**2).sqrt() - 1).square() + z**2
    assert (radius.std(1) / radius.mean(1)).max() < 1e-5
    x, y, z = clouds["cylinder"].unbind(2)
    on_side, at_end = (x**2 + y**2 - 1).abs() < 1e-6, (z == 0) | (z == z.amax(1, keepdim=True))
    assert (on_side | at_end).double().mean() > 0.95  # the uppermost end is known to rounding
    x, y, z = clouds["cone"].unbind(2)
    slope = (z / (1 - (x**2 + y**2).sqrt())).masked_fill(z <= 1e-3, torch.nan)
    assert (slope.nanmean(1, keepdim=True) - slope).abs().nan_to_num().max() < 1e-2
    box = clouds["box"].abs() / clouds["box"].abs().amax(1, keepdim=True)
    assert ((box > 1 - 1e-6).sum(2) >= 1).all()
    scale = 0.6 + 0.4 * torch.rand(40, 1, 3, generator=generator("scale"))  # what is drawn first
    corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    faces = SHAPES["tetrahedron"](40, 300, generator("scale")) / scale @ corners.T
    assert (faces.amin(2) + 1).abs().max() < 1e-5
    assert [count > 2000 for count in faces.argmin(2).flatten().bincount().tolist()] == [True] * 4
    x, y, _ = clouds["helix"].unbind(2)
    assert (x**2 + y**2 - 1).abs().max() < 1e-5
    turned = rotations(2000, draw).double()
    assert (turned @ turned.mT - torch.eye(3)).abs().max() < 1e-5
    assert (torch.linalg.det(turned) - 1).abs().max() < 1e-5
    assert turned.mean(0).abs().max() < 0.05


def test_all_encoders_are_there_at_equal_parameters():
    study = load("point-shapes")
    networks = {t.name: study.network(t, 0) for t in study.recipe.trainings}
    for network in networks.values():
        assert abs(sum(p.numel() for p in network.parameters()) / 30_000 - 1) < 0.1
    of = {type(network.encoder) for network in networks.values()} - {ShapeDistributions}
    same_on_whole_sets = {encoders.ENCODERS[name] for name in ("strxl", "ust")}
    others = {type(networks[name].encoder) for name in ("dsmil", "transolver", "deep-sets-norm", "ust-norm")}
    assert (of | same_on_whole_sets) - others == {*encoders.ENCODERS.values()}
    sample = study._draw(3, 40, "test")
    outputs = [
        networks["distances"](SetBatch(x)) for x in (sample.elements, sample.elements @ rotations(3, generator("a")))
    ]
    assert relative_error(*outputs) < 1e-4
