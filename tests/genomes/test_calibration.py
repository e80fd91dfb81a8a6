"""What is learned from degraded validation genomes, against plain loops."""

import json
import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import corrected, rates, some_counts, suite_of

from omniset.genomes import calibration
from omniset.genomes.calibration import (
    GRID,
    LEVELS,
    Level,
    apply_all,
    clade_weights,
    cross_entropy,
    degraded,
    nearest_level,
    of_json,
    reliability,
    to_json,
)
from omniset.genomes.training import ERROR, Clades, Genomes

SIGMAS = 4.5
SOME_LEVELS = [(90.0, 0.0), (40.0, 60.0)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def genomes():
    groups = np.arange(29) % 7
    codes = np.stack([groups // 2, groups, np.arange(29)], 1)
    train, validation = np.flatnonzero(groups < 4), np.flatnonzero(groups >= 4)
    return Genomes(sp.csr_array(some_counts()), Clades(codes), train, validation, np.arange(23))


@pytest.fixture(scope="module")
def methods():
    suite = suite_of(["autoencoder-evidence"], double=False)  # which says anything
    return {name: suite[name] for name in ("autoencoder-evidence", "knn", "prevalence-bayes", "as-is")}


def level(c=70.0, q=5.0, added=None, removed=None, **others):
    nothing = [None] * len(GRID)
    values = {"spread": 2.0, "novelty": 0.5, "ece": 0.01, "bins": [(3, 0.05, 0.1)] * 10, "loss": {"knn": 0.1}}
    return Level(c, q, added or nothing, removed or nothing, **(values | others))


# ---------------------------------------------------------------------- degraded genomes


def everything(genomes, rows, *arguments):
    batches = list(degraded(genomes, rows, *arguments))
    assert all(len(some) <= 16 for some, _ in batches)
    assert np.concatenate([some for some, _ in batches]).tolist() == rows.tolist()
    return [torch.cat([getattr(o, n) for _, o in batches]) for n in ("counts", "completeness", "contamination")]


@pytest.mark.parametrize("at", [(70.0, 10.0), "iid:0.25:0.05"])
def test_the_same_call_gives_the_same_noise(genomes, at):
    rows = np.arange(29)
    one, again = (everything(genomes, rows, at, "estimated", 5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    other = everything(genomes, rows, at, "estimated", 6)
    assert not torch.equal(one[0], other[0])
    some = np.array([28, 3, 17])  # a genome's noise does not depend on which others are asked for
    assert all(torch.equal(a[some], b) for a, b in zip(one, everything(genomes, some, at, "estimated", 5), strict=True))
    # Nor does what is told change what is seen.
    assert torch.equal(one[0], everything(genomes, rows, at, "known", 5)[0])


def test_what_is_told_of_degraded_genomes(genomes):
    rows = np.arange(29)
    for at, kind, c, q, off in (
        ((70.0, 10.0), "known", 0.7, 0.1, 0),
        ((70.0, 10.0), "estimated", 0.7, 0.1, ERROR),
        ("iid:0.25:0.05", "known", 0.75, 0.05, 0),
    ):
        _, *quality = everything(genomes, rows, at, kind, 0)
        for told, true in zip(quality, (c, q), strict=True):
            assert 0.5 * off <= (told - true).abs().max() <= off + 1e-7
    _, *quality = everything(genomes, rows, (70.0, 10.0), "unknown", 0)
    assert all(told.isnan().all() for told in quality)


def test_levels_are_of_copies(genomes):
    counts = genomes.counts.toarray()
    rows = np.arange(29)
    kept, brought = [], []
    for seed in range(8):
        kept.append(everything(genomes, rows, (70.0, 0.0), "known", seed)[0].numpy())
        brought.append(everything(genomes, rows, (100.0, 10.0), "known", seed)[0].numpy() - counts)
    total = counts.sum() * 8
    assert abs(np.sum(kept) / total - 0.7) < SIGMAS * math.sqrt(0.21 / total)
    assert np.min(brought) == 0
    assert abs(np.sum(brought) / total - 0.1) < SIGMAS * math.sqrt(0.1 / total)
    assert (everything(genomes, rows, (100.0, 0.0), "known", 0)[0].numpy() == counts).all()


def test_all_methods_see_the_same(genomes, methods):
    rows = genomes.validation
    found = apply_all(methods, genomes, rows, (70.0, 5.0), "estimated", 3)
    assert list(found) == list(methods)
    batch = next(observed for _, observed in degraded(genomes, rows, (70.0, 5.0), "estimated", 3))
    for name, noisy in found.items():
        assert (noisy.rows == rows).all()
        assert (noisy.truth == (genomes.counts[rows].toarray() > 0)).all()
        assert (noisy.observed == batch.present.numpy()).all()
        with torch.no_grad():
            assert np.array_equal(noisy.log_odds, methods[name](batch).numpy())
        assert np.allclose(noisy.probability, 1 / (1 + np.exp(-noisy.log_odds)))
        for i in range(len(rows)):
            missed, _ = rates(some_counts(), float(batch.completeness[i]), float(batch.contamination[i]))
            near = max(corrected(batch.counts[i].numpy(), r, missed) for r in some_counts()[:23])
            assert noisy.novelty[i] == pytest.approx(1 - near, abs=1e-5)


# ---------------------------------------------------------------------- what is computed of them


def test_reliability_by_hand(rng):
    p = np.concatenate([rng.random(400), [0.0, 1.0, 0.1, 0.2, 0.3, 0.5, 0.9]]).reshape(11, 37)
    truth = rng.random((11, 37)) < 1 - p  # said too little in some bins, too much in others
    ece, bins = reliability(p, truth)
    expected = 0.0
    for b in range(10):
        inside = [(x, y) for x, y in zip(p.ravel(), truth.ravel(), strict=True) if b == min(int(x * 10), 9)]
        said, was = np.mean([x for x, _ in inside]), np.mean([y for _, y in inside])
        assert bins[b] == (len(inside), pytest.approx(said), pytest.approx(was))
        expected += len(inside) / p.size * abs(said - was)
    assert ece == pytest.approx(expected)
    assert ece > 0.1  # these probabilities are not calibrated


def test_reliability_at_its_bounds():
    assert reliability(np.full((3, 5), 0.25), np.tile([True, False, False, False, False], (3, 1)))[0] == pytest.approx(
        0.05
    )
    ece, bins = reliability(np.ones((2, 3)), np.ones((2, 3), dtype=bool))
    assert ece == 0
    assert bins[9] == (6, 1.0, 1.0)
    assert bins[0] == (0, 0.0, 0.0)  # nothing is there
    assert reliability(np.zeros((0, 3)), np.zeros((0, 3), dtype=bool))[0] == 0


def precision_by_hand(probability, right, weights):
    found = []
    for bound in GRID:
        made = [i for i in range(len(probability)) if probability[i] >= bound]
        correct = sum(weights[i] for i in made if right[i])
        found.append(correct / sum(weights[i] for i in made) if len(made) >= 20 else None)
    return found


def test_precision_by_hand(rng):
    p = np.concatenate([rng.random(300), GRID, rng.uniform(0.9, 1, 60)])  # some exactly at a bound
    right, weights = rng.random(len(p)) < p, rng.uniform(0.1, 3, len(p))
    found, expected = calibration._precision(p, right, weights), precision_by_hand(p, right, weights)
    assert [f is None for f in found] == [e is None for e in expected]
    assert 0 < sum(f is None for f in found) < len(GRID)
    assert [f for f in found if f is not None] == pytest.approx([e for e in expected if e is not None])
    nothing = np.zeros(0)
    assert calibration._precision(nothing, nothing.astype(bool), nothing) == [None] * len(GRID)


def test_thresholds():
    rising = np.linspace(0.6, 0.97, len(GRID)).tolist()
    one = level(added=rising, removed=[None, *rising[1:-5], *[None] * 5])
    for which in ("added", "removed"):
        found = getattr(one, which)
        for asked in (0.5, 0.7, 0.9):
            first = next(p for p, f in zip(GRID, found, strict=True) if f is not None and f >= asked)
            assert one.threshold(which, asked) == first
    assert one.threshold("added", 0.6) == GRID[0]
    assert one.threshold("removed", 0.6) == GRID[1]
    assert one.threshold("added", 0.97) == GRID[-1]
    assert one.threshold("removed", 0.97) == 1
    assert one.threshold("added", 0.98) == 1
    assert level().threshold("added", 0.5) == 1


def test_clades_count_alike():
    groups = np.array([3, 3, 3, 8, 1, 1, 3])
    weights = clade_weights(groups)
    assert weights.mean() == pytest.approx(1)
    assert [weights[groups == g].sum() for g in (3, 8, 1)] == pytest.approx([7 / 3] * 3)
    assert len(clade_weights(groups[:0])) == 0


def test_nearest_level():
    levels = [level(c, q) for c, q in LEVELS]
    for c, q, expected in (
        *((100.0, 0.0, (100, 0)), (97.6, 2.4, (100, 0)), (97.4, 2.6, (95, 5)), (0.0, 99.0, (50, 10))),
        *((80.1, 0.0, (90, 0)), (79.9, 7.4, (70, 5)), (61.0, 30.0, (70, 10))),
    ):
        found = nearest_level(levels, c, q)
        assert (found.completeness, found.contamination) == expected


def test_cross_entropy_by_hand(rng):
    z, y = rng.normal(size=(5, 7)) * 3, rng.random((5, 7)) < 0.5
    p = 1 / (1 + np.exp(-z))
    assert cross_entropy(z, y) == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
    assert cross_entropy(np.array([[2000.0, -2000.0]]), np.array([[False, False]])) == 1000
    assert cross_entropy(z.astype(np.float32), y) == pytest.approx(cross_entropy(z, y), rel=1e-6)


# ---------------------------------------------------------------------- calibration


def calibrate(methods, main, genomes, seed, levels=SOME_LEVELS):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LEVELS", levels)
        return calibration.calibrate(methods, main, genomes, seed)


@pytest.fixture(scope="module")
def calibrated(genomes, methods):
    return calibrate(methods, "autoencoder-evidence", genomes, 4)


def test_calibration_by_hand(genomes, methods, calibrated):
    assert [(one.completeness, one.contamination) for one in calibrated] == SOME_LEVELS
    rows = genomes.validation
    weight = clade_weights(genomes.clades.groups[rows])
    for number, one in enumerate(calibrated):
        noisy = apply_all(methods, genomes, rows, SOME_LEVELS[number], "estimated", 4000 + number)
        main = noisy["autoencoder-evidence"]
        p = main.probability.astype(np.float64)
        adds = [(p[i, v], main.truth[i, v], weight[i]) for i, v in zip(*np.nonzero(~main.observed), strict=True)]
        drops = [(1 - p[i, v], ~main.truth[i, v], weight[i]) for i, v in zip(*np.nonzero(main.observed), strict=True)]
        for found, changes in ((one.added, adds), (one.removed, drops)):
            expected = precision_by_hand(*zip(*changes, strict=True))
            assert [f is None for f in found] == [e is None for e in expected]
            assert [f for f in found if f is not None] == pytest.approx([e for e in expected if e is not None])
        off = [abs(t.sum() - q.sum()) / np.sqrt((q * (1 - q)).sum()) for t, q in zip(main.truth, p, strict=True)]
        assert one.spread == pytest.approx(max(np.quantile(off, 0.95), 1.96), rel=1e-4)
        assert one.novelty == pytest.approx(np.quantile(main.novelty, 0.95))
        assert one.ece == pytest.approx(reliability(p, main.truth)[0], rel=1e-4)
        for name, n in noisy.items():
            y, q = n.truth, 1 / (1 + np.exp(-n.log_odds.astype(np.float64)))
            assert one.loss[name] == pytest.approx(-(y * np.log(q) + ~y * np.log(1 - q)).mean(), rel=1e-4)
    assert list(calibrated[0].loss) == list(methods)
    assert all(calibrated[1].added[:5])
    assert all(calibrated[1].removed[:5])


def test_calibration_repeats_and_is_of_the_validation_genomes(genomes, methods, calibrated):
    other = genomes.counts.toarray()
    again = calibrate(methods, "autoencoder-evidence", genomes, 4)
    assert to_json(again) == to_json(calibrated)
    other[genomes.validation] = some_counts(29, seed=9)[genomes.validation]
    changed = Genomes(sp.csr_array(other), genomes.clades, genomes.train, genomes.validation, genomes.references)
    found = calibrate(methods, "autoencoder-evidence", changed, 4, levels=SOME_LEVELS)
    assert found[0].loss["knn"] != calibrated[0].loss["knn"]


def test_spread_is_of_sizes_that_vary_together(monkeypatch):
    """Where families come together, sizes vary more than of independent ones, and the interval is wider."""
    counts = np.zeros((40, 41), dtype=int)
    counts[::2] = 1  # all families or none
    rows = np.arange(40)
    genomes = Genomes(sp.csr_array(counts), Clades(np.stack([rows] * 3, 1)), rows, rows, rows)
    method = suite_of([], references=counts, double=False)["knn"]
    monkeypatch.setattr(type(method), "forward", lambda self, observed: torch.zeros_like(observed.counts))
    (one,) = calibrate({"knn": method}, "knn", genomes, 0, [(100.0, 0.0)])
    assert one.spread == pytest.approx(20.5 / math.sqrt(41 / 4))


def test_there_and_back_as_json(calibrated):
    assert of_json(json.loads(json.dumps(to_json(calibrated)))) == calibrated
    made = [level(added=[0.5] * len(GRID))]
    back = of_json(json.loads(json.dumps(to_json(made))))
    assert back[0].threshold("added", 0.5) == made[0].threshold("added", 0.5) == GRID[0]
