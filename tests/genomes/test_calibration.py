"""What is learned from degraded validation genomes, against plain loops."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import corrected, genomes_of, level, rates, some_counts, suite_of
from scipy import stats
from sklearn.metrics import average_precision_score

from omniset.genomes import calibration
from omniset.genomes.calibration import GRID, LEVELS, at_quality, reliability
from omniset.genomes.noise import LOSSES, lose_runs
from omniset.genomes.training import ERROR, Clades, Genomes, apply_all, degraded

SIGMAS = 4.5
SOME_LEVELS = [(90.0, 0.0), (40.0, 60.0)]


@pytest.fixture(scope="module")
def genomes():
    return genomes_of(kept=3, references=np.arange(23))


@pytest.fixture(scope="module")
def methods():
    suite = suite_of(["pca"], double=False)  # which says anything
    return {name: suite[name] for name in ("pca", "knn", "prevalence-bayes", "as-is")}


# ---------------------------------------------------------------------- degraded genomes


def everything(genomes, rows, *arguments):
    batches = list(degraded(genomes, rows, *arguments))
    assert all(len(some) <= 16 for some, _, _ in batches)
    assert np.concatenate([some for some, _, _ in batches]).tolist() == rows.tolist()
    return [torch.cat([getattr(o, n) for _, o, _ in batches]) for n in ("counts", "completeness", "contamination")]


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
    _, completeness, contamination = everything(genomes, rows, (100.0, 0.0), "estimated", 0)
    assert completeness.max() <= 1
    assert contamination.min() >= 0


def test_contamination_is_of_copies(genomes):
    """Completeness: see `test_rare_families_are_lost_more_often`."""
    counts, rows = genomes.counts.toarray(), np.arange(29)
    brought = [everything(genomes, rows, (100.0, 10.0), "known", seed)[0].numpy() - counts for seed in range(8)]
    total = counts.sum() * 8
    assert np.min(brought) == 0
    assert abs(np.sum(brought) / total - 0.1) < SIGMAS * math.sqrt(0.1 / total)
    assert (everything(genomes, rows, (100.0, 0.0), "known", 0)[0].numpy() == counts).all()


def test_all_methods_see_the_same(genomes, methods):
    rows = genomes.validation
    found = apply_all(methods, genomes, degraded(genomes, rows, (70.0, 5.0), "estimated", 3))
    assert list(found) == list(methods)
    batch = next(observed for _, observed, _ in degraded(genomes, rows, (70.0, 5.0), "estimated", 3))
    for name, noisy in found.items():
        assert (noisy.rows == rows).all()
        assert (noisy.truth == (genomes.counts[rows].toarray() > 0)).all()
        assert (noisy.observed == batch.present.numpy()).all()
        with torch.no_grad():
            assert np.array_equal(noisy.log_odds, methods[name](batch).numpy())
        for i in range(len(rows)):
            missed, _ = rates(some_counts(), float(batch.completeness[i]), float(batch.contamination[i]))
            near = max(corrected(batch.counts[i].numpy(), r, missed) for r in some_counts()[:23])
            assert noisy.novelty[i] == pytest.approx(1 - near, abs=1e-5)


def test_ours_stands_beside_the_simple_method_on_the_same_genomes(genomes, methods):
    """By scikit-learn, of the families that a genome lacks of what was drawn for both."""
    compared = calibration.beside(methods["pca"], methods["knn"], genomes, 2, "cpu")
    _, observed, _ = next(degraded(genomes, genomes.validation, (70.0, 5.0), "estimated", 2800))
    missing, truth = ~observed.present.numpy(), genomes.counts[genomes.validation].toarray() > 0
    for name, method in (("omniset", methods["pca"]), (calibration.LIKELIEST, methods["knn"])):
        with torch.no_grad():
            odds = method(observed).numpy()
        lacking = [one for one in zip(truth, missing, odds, strict=True) if one[0][one[1]].any()]
        each = [average_precision_score(t[m], o[m]) for t, m, o in lacking]
        assert compared.interval("auprc_missing", "70/5", name).value == pytest.approx(np.mean(each))
    assert compared.decisive.opponent == calibration.LIKELIEST


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
    assert reliability(np.full((3, 5), 0.25), np.tile([True, *[False] * 4], (3, 1)))[0] == pytest.approx(0.05)
    ece, bins = reliability(np.ones((2, 3)), np.ones((2, 3), dtype=bool))
    assert (ece, bins[9], bins[0]) == (0, (6, 1.0, 1.0), (0, 0.0, 0.0))  # of the last nothing is there
    assert reliability(np.zeros((0, 3)), np.zeros((0, 3), dtype=bool))[0] == 0


def precision_by_hand(probability, right, possible, groups):
    """Plain loops over bounds and clades; of a clade, the mean over its genomes."""
    bounds = []
    for bound in GRID:
        made, correct, number = [], [], 0
        for clade in sorted(set(groups)):
            rows = [i for i, g in enumerate(groups) if g == clade]
            pairs = [(i, v) for i in rows for v in np.flatnonzero(possible[i] & (probability[i] >= bound))]
            number += len(pairs)
            made.append(len(pairs) / len(rows))
            correct.append(sum(right[p] for p in pairs) / len(rows))
        if number < 20:
            bounds.append(None)
            continue
        share, n = sum(correct) / sum(made), len(made)
        spread = sum((c - m * share) ** 2 for c, m in zip(correct, made, strict=True)) * n / (n - 1)
        bounds.append(share - stats.t.ppf(0.9, n - 1) * math.sqrt(spread) / sum(made))
    return bounds


def assert_near(bounds, expected, rel=1e-6):
    assert [f is None for f in bounds] == [e is None for e in expected]
    assert [f for f in bounds if f is not None] == pytest.approx([e for e in expected if e is not None], rel=rel)


def test_precision_by_hand(rng):
    p = np.concatenate([rng.random(400), GRID, rng.uniform(0.9, 1, 200 - len(GRID))]).reshape(12, 50)
    right, possible = rng.random(p.shape) < p, rng.random(p.shape) < 0.7
    groups = np.array([4, 4, 4, 1, 1, 7, 7, 7, 7, 2, 2, 2])
    bounds, expected = (f(p, right, possible, groups) for f in (calibration.precision_bounds, precision_by_hand))
    assert_near(bounds, expected)
    assert 0 < sum(f is None for f in bounds) < len(GRID)
    alone = calibration.precision_bounds(p, right, possible, np.zeros(12, int))  # genomes are what varies
    assert alone[0] == pytest.approx(precision_by_hand(p, right, possible, np.arange(12))[0])
    nothing = np.zeros((3, 5))
    assert calibration.precision_bounds(nothing, nothing > 0, nothing > 0, np.arange(3)) == [None] * len(GRID)


def test_precision_is_a_lower_bound(rng):
    """Of 300 draws of nine clades that differ, the bound is below the true share in about 90 %."""
    below = 0
    for _ in range(300):
        share = rng.beta(8, 2, 9)  # of each clade; the mean is 0.8
        right = rng.random((9, 400)) < share[:, None]
        below += calibration.precision_bounds(np.full((9, 400), 0.7), right, right | True, np.arange(9))[0] < 0.8
    assert 0.85 < below / 300 < 0.96


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
    clades = Clades(np.stack([groups] * 3, 1))
    weights = clades.weights(np.arange(7))
    assert weights.mean() == pytest.approx(1)
    assert [weights[groups == g].sum() for g in (3, 8, 1)] == pytest.approx([7 / 3] * 3)
    assert len(clades.weights(np.arange(0))) == 0


def test_what_validation_says_between_levels():
    levels = [level(c, q, novelty=c + 7 * q, added=[c / 100 - q / 200] * len(GRID)) for c, q in LEVELS]
    for c, q in ((97.6, 2.4), (79.9, 0.0), (80.1, 0.0), (61.0, 7.5), (90.0, 10.0)):
        mixed = at_quality(levels, c, q)
        assert mixed.novelty == pytest.approx(c + 7 * q)  # bilinear functions are met exactly
        assert mixed.added == pytest.approx([c / 100 - q / 200] * len(GRID))
    for c, q, expected in ((0.0, 99.0, (50, 10)), (100.0, 0.0, (100, 0)), (70.0, 5.0, (70, 5))):
        there = at_quality(levels, c, q)  # beyond the levels, and at them
        assert (there.completeness, there.contamination) == expected
    # No cliff: a little more or less changes little.
    assert at_quality(levels, 79.99, 0.0).added[0] == pytest.approx(at_quality(levels, 80.01, 0.0).added[0], abs=1e-3)
    levels[3] = level(95.0, 0.0, novelty=0.0)  # of which no precision is known
    assert at_quality(levels, 96.0, 1.0).added == [None] * len(GRID)
    few = [level(90.0, 5.0), level(60.0, 0.0)]  # no grid: the nearest
    assert at_quality(few, 70.0, 1.0) is few[1]


def calibrate(methods, genomes, seed, levels=SOME_LEVELS):
    """Of the first method; another one may have the references."""
    method, *others = methods.values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LEVELS", levels)
        return calibration.calibrate(method, genomes, seed, references=others[0].references if others else None)[0]


@pytest.fixture(scope="module")
def calibrated(genomes, methods):
    return calibrate(methods, genomes, 4)


def off_by_hand(ways, groups):
    """Half of the prediction interval of one more clade, in what may be missing or foreign; about 0, clades alike."""
    squares = {clade: [] for clade in groups.tolist()}
    for way in ways:
        for clade, t, p, o in zip(groups.tolist(), way.truth, way.probability, way.observed, strict=True):
            unit = 2 + sum(1 - x if seen else x for x, seen in zip(p, o, strict=True))
            squares[clade].append(((t.sum() - p.sum()) / unit) ** 2)
    k, mean = len(squares), statistics.mean(statistics.mean(of) for of in squares.values())
    return stats.t(k - 1, scale=math.sqrt(mean + mean / k)).interval(0.95)[1]


def offs(method, genomes, level, losses, seed, shifted=False):
    """Of genomes whose quality is known, lost so; and of some whose quality is not."""
    found = []
    for kinds in ([("known", lost) for lost in losses], [("unknown", losses[0])]):
        ways = []
        for kind, lost in kinds:
            batches = degraded(genomes, genomes.validation, level, kind, seed, lost)
            way = apply_all({"it": method}, genomes, batches, shift=True)["it"]
            ways.append(way.shifted if shifted else way)
        found.append(off_by_hand(ways, genomes.clades.groups[genomes.validation]))
    return found


def test_calibration_by_hand(genomes, methods, calibrated):
    assert [(one.completeness, one.contamination) for one in calibrated] == SOME_LEVELS
    rows = genomes.validation
    for number, one in enumerate(calibrated):
        noisy = apply_all(methods, genomes, degraded(genomes, rows, SOME_LEVELS[number], "estimated", 4000 + number))
        main = noisy["pca"]
        p = main.probability.astype(np.float64)
        groups = genomes.clades.groups[rows]
        for bounds, said, right, possible in (
            (one.added, p, main.truth, ~main.observed),
            (one.removed, 1 - p, ~main.truth, main.observed),
        ):
            assert_near(bounds, precision_by_hand(said, right, possible, groups), rel=1e-4)
        expected = offs(methods["pca"], genomes, SOME_LEVELS[number], ("copies",), 4000 + number)
        assert [one.off, one.off_estimated] == pytest.approx(expected, rel=1e-4)
        assert one.novelty == pytest.approx(np.quantile(main.novelty, 0.95))
        assert one.ece == pytest.approx(reliability(p, main.truth)[0], rel=1e-4)
    assert all(calibrated[1].added[:5])
    assert all(calibrated[1].removed[:5])


def test_calibration_where_rare_families_are_known_to_be_lost_more_often(genomes, methods):
    """Thresholds are those of genomes that lost them so, intervals hold for all losses, of log-odds that know it."""
    name, rows, level = "pca", genomes.validation, (70.0, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LEVELS", [level])
        _, (one,) = calibration.calibrate(methods[name], genomes, 4)
    at = rows, level, "estimated", 4000, "accessory"
    noisy = apply_all({name: methods[name]}, genomes, degraded(genomes, *at), shift=True)[name]
    batch = next(observed for _, observed, _ in degraded(genomes, *at))
    with torch.no_grad():
        odds = methods[name](batch) + methods[name].noise.shift(batch)
    p = 1 / (1 + np.exp(-odds.double().numpy()))
    assert np.allclose(noisy.shifted.probability, p, atol=1e-6)
    assert not np.allclose(noisy.probability, p, atol=1e-3)
    assert_near(one.added, precision_by_hand(p, noisy.truth, ~noisy.observed, genomes.clades.groups[rows]), rel=1e-4)
    expected = offs(methods[name], genomes, level, ("accessory", "islands"), 4000, shifted=True)
    assert [one.off, one.off_estimated] == pytest.approx(expected, rel=1e-4)


def test_calibration_repeats_and_is_of_the_validation_genomes(genomes, methods, calibrated):
    assert calibrate(methods, genomes, 4) == calibrated
    other = genomes.counts.toarray()
    other[genomes.validation] = some_counts(29, seed=9)[genomes.validation]
    assert calibrate(methods, replace(genomes, counts=sp.csr_array(other)), 4)[0].ece != calibrated[0].ece


def test_intervals_are_of_sizes_that_vary_together(monkeypatch):
    """Where families come together, sizes vary more than of independent ones, and the interval is wider."""
    counts = np.zeros((40, 41), dtype=int)
    counts[::2] = 1  # all families or none
    rows = np.arange(40)
    genomes = Genomes(sp.csr_array(counts), Clades(np.stack([rows] * 3, 1)), rows, rows, rows)
    method = suite_of([], references=counts, double=False)["knn"]
    monkeypatch.setattr(type(method), "forward", lambda self, observed: torch.zeros_like(observed.counts))
    (one,) = calibrate({"knn": method}, genomes, 0, [(100.0, 0.0)])
    assert one.off == pytest.approx(20.5 / 22.5 * math.sqrt(41 / 40) * stats.t(39).ppf(0.975))


def test_rare_families_are_lost_more_often(genomes):
    """Runs and single copies are lost as often as completeness says; rare families more often, core ones as often."""
    rows, counts, prevalence = np.arange(29), genomes.counts.toarray(), genomes.prevalence
    kept, draws = dict.fromkeys(LOSSES, 0), 12
    for seed in range(draws):
        for lost in LOSSES:
            batches = degraded(genomes, rows, (70.0, 0.0), "known", seed, lost)
            kept[lost] = kept[lost] + np.concatenate([observed.counts.numpy() for _, observed, _ in batches])
    core, total = prevalence >= 0.95, draws * counts.sum()
    assert kept["islands"][:, ~core].sum() < 0.95 * kept["copies"][:, ~core].sum()
    for lost in ("copies", "runs"):
        assert abs(kept[lost].sum() / total - 0.7) < SIGMAS * math.sqrt(0.21 * 20 / total)
    for some, share in ((core, 1.0), (~core, 0.65 + 0.35 * prevalence[~core] / 0.95)):
        expected = (0.7 * counts[:, some] * share).sum() * draws
        assert abs(kept["accessory"][:, some].sum() - expected) < SIGMAS * math.sqrt(expected)
    assert kept["accessory"][:, ~core].sum() < 0.9 * kept["copies"][:, ~core].sum()


def test_genes_of_a_run_are_lost_together():
    rng = np.random.default_rng(0)
    left = [int(lose_runs(np.full(50, 4), 0.5, rng).sum()) for _ in range(200)]
    assert set(left) <= set(range(0, 201, 20))
    assert len(set(left)) > 3
    assert (lose_runs(np.full(50, 4), 1.0, rng) == 4).all()
    assert lose_runs(np.zeros(3, dtype=int), 0.5, rng).tolist() == [0, 0, 0]
