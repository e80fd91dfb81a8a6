"""Genomes to learn from that are incomplete themselves: what they lack may be there, against plain loops in float64."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import (
    COUNTS,
    FAMILIES,
    REFERENCES,
    SMALL,
    genomes_of,
    imputed,
    rates,
    some_frame,
    some_taxonomy,
    suite_of,
)

from omniset.genomes import GenomeCompleter, calibration, references, training
from omniset.genomes.calibration import GRID, calibrate
from omniset.genomes.noise import NoiseModel, Recovery, cross_entropy
from omniset.genomes.training import GenomeBatches, apply_all, degraded, drawn_quality, mix


def some_completeness(number=29, seed=7):
    """From a half to all; one in three is complete."""
    rng = np.random.default_rng(seed)
    return np.where(np.arange(number) % 3 == 0, 1.0, rng.uniform(0.5, 1.0, number))


@pytest.mark.parametrize(("itself", "completeness"), [(0.7, 0.49), (0.98, 0.931), (0.6, 0.6), (1.0, 0.7), (1.0, 1.0)])
def test_how_often_a_family_is_hidden_by_enumeration(itself, completeness):
    """Every way in which copies may be lost twice, and a foreign one may come in."""
    suite, contamination = suite_of(["pca"]), 0.1
    noise, families = suite.noise, [0, 3, 11, 23, 37]
    told = Recovery(*(torch.full((2,), value, dtype=torch.float64) for value in (itself, completeness, contamination)))
    present = torch.zeros(2, FAMILIES, dtype=torch.bool)
    present[1] = True
    found = noise.hidden(present, told).numpy()
    foreign = noise.rates(told.completeness, told.contamination)[1][0].numpy()
    for v in families:
        joint = np.zeros((2, 2))  # whether the genome has it, whether it was observed
        for copies, share in enumerate(noise.copies[:, v].tolist(), 1):
            for in_genome in range(copies + 1):
                p = math.comb(copies, in_genome) * itself**in_genome * (1 - itself) ** (copies - in_genome)
                none = (1 - completeness / itself) ** in_genome * (1 - foreign[v])
                joint[int(in_genome > 0)] += share * p * np.array([none, 1 - none])
        for seen in (0, 1):
            total = joint[:, seen].sum()
            if total > 1e-12:
                assert found[seen, v] == pytest.approx(joint[0, seen] / total, rel=1e-9, abs=1e-12)


def test_cross_entropy_of_missing_targets():
    """-log p, or -log(1 - p (1 - m)), and its gradient; finite where m is 0 or 1 and log-odds are extreme."""
    rng = np.random.default_rng(0)
    z, y, m = rng.normal(size=(5, 13)) * 4, rng.random((5, 13)) < 0.4, rng.random((5, 13))
    m[0, :3], m[1, :3] = 0, 1
    odds = torch.from_numpy(z).requires_grad_()
    found = cross_entropy(odds, torch.from_numpy(y).double(), torch.from_numpy(m))
    p = 1 / (1 + np.exp(-z))
    assert np.allclose(found.detach(), np.where(y, -np.log(p), -np.log(1 - p * (1 - m))), rtol=1e-10)
    found.sum().backward()
    slope = np.where(y, p - 1, p * (1 - p) * (1 - m) / (1 - p * (1 - m)))
    assert np.allclose(odds.grad, slope, rtol=1e-9, atol=1e-15)
    plain = cross_entropy(odds, torch.from_numpy(y).double())
    assert torch.allclose(cross_entropy(odds, torch.from_numpy(y).double(), torch.zeros(5, 13).double()), plain)
    extreme = torch.tensor([1e4, -1e4, 1e4, -1e4], requires_grad=True)
    found = cross_entropy(extreme, torch.zeros(4), torch.tensor([0.25, 0.25, 1.0, 0.0]))
    assert found.tolist() == pytest.approx([-math.log(0.25), 0, 0, 0], abs=1e-3)
    found.sum().backward()
    assert extreme.grad.isfinite().all()
    assert cross_entropy(torch.tensor([1e4, -1e4]), torch.tensor([0.0, 1.0])).tolist() == [1e4, 1e4]


def test_prevalence_counts_what_genomes_would_show():
    itself = some_completeness()
    noise = NoiseModel(FAMILIES).double()
    noise.fit(sp.csr_array(COUNTS), np.random.default_rng(0), itself)
    for v, column in enumerate(COUNTS.T):
        copies = [min(int(k), 10) for k in column if k > 0]
        shares = np.bincount(copies, minlength=11) + 0.5 * (np.arange(11) == 1)
        shares = shares / shares.sum()
        showing = sum(1 - sum(s * (1 - r) ** k for k, s in enumerate(shares) if k) for r in itself)
        expected = (min(len(copies) * len(itself) / showing, len(itself)) + 0.5) / (len(itself) + 1)
        assert noise.prevalence[v].item() == pytest.approx(expected, rel=1e-6)
    one, other = NoiseModel(FAMILIES), NoiseModel(FAMILIES)
    one.fit(sp.csr_array(COUNTS), np.random.default_rng(0), np.ones(29))
    other.fit(sp.csr_array(COUNTS), np.random.default_rng(0))
    assert all(torch.allclose(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_completeness_is_read_of_the_organism():
    """Estimated from markers that incomplete genomes were taken for, it is that of the organism."""
    rng = np.random.default_rng(0)
    itself = np.full(401, 0.7)
    counts = rng.binomial(np.ones((401, 53), dtype=np.int64), 0.7)
    noise = NoiseModel(53)
    noise.fit(sp.csr_array(counts), rng, itself)
    seen = torch.from_numpy(rng.binomial(np.ones((97, 53), dtype=np.int64), 0.5)).float()
    estimated = noise.estimate(seen)[0]
    assert estimated.mean().item() == pytest.approx(0.5, abs=0.03)


def test_references_are_imputed_by_hand():
    suite = suite_of(["pca"])
    references, noise = suite.references, suite.noise
    itself = some_completeness(23)
    references.impute(noise, itself)
    for r in range(23):
        has = REFERENCES[r] > 0
        assert (references.presence[r].numpy()[has] == 255).all()
        if itself[r] == 1:
            assert not references.presence[r].numpy()[~has].any()
            continue
        missed, foreign = rates(COUNTS, np.float32(itself[r]), 0.0)
        evidence = np.where(has, np.log((1 - missed) / foreign), np.log(missed / (1 - foreign)))
        p = imputed(noise, evidence, REFERENCES, itself, r)
        assert np.allclose(references.presence[r].numpy()[~has] / 255, p[~has], atol=0.5 / 255 + 1e-4)
    assert np.allclose(references.dense(torch.zeros(1).double()), references.presence.numpy() / 255)


def test_complete_references_are_not_imputed():
    suite = suite_of(["pca"])
    before = suite.references.presence.clone()
    suite.references.impute(suite.noise, np.ones(23))
    assert torch.equal(suite.references.presence, before)
    assert set(before.unique().tolist()) == {0, 255}


@pytest.mark.parametrize(("true", "tolerance"), [(1.0, 0.08), (0.5, 0.08), (0.0, 0.03)])
def test_how_much_genomes_lack_of_what_is_said(true, tolerance):
    """Clades of the same families, each lost by itself; one in fifty is lost by a lineage."""
    rng = np.random.default_rng(1)
    clades = (rng.random((7, 307)) < 0.6).astype(np.int64)
    of = np.arange(203) % 7
    said = rng.uniform(0.5, 1.0, 203)
    kept = rng.binomial(clades[of], (1 - true * (1 - said))[:, None]) * (rng.random((203, 307)) < 0.98)
    assert references.lacking(sp.csr_array(kept), said, 0) == pytest.approx(true, abs=tolerance)
    assert references.lacking(sp.csr_array(kept), np.full(203, 0.8), 0) == 1  # nothing tells


def test_which_genomes_are_whole():
    assert references.known(None) is None
    assert references.known(np.array([1.0, np.nan])) is None
    assert references.known(np.array([0.995, 0.99])) is None
    assert np.allclose(references.known(np.array([0.0, 0.69, 0.98, np.nan])), [0.05, 0.7, 0.99, 1.0])


def test_quality_is_that_of_the_organism(monkeypatch):
    """Of a genome that is 60 % complete itself, 70 % of its copies are 42 % of the organism's."""
    monkeypatch.setattr(training, "COMPLETENESS", (0.7, 0.7))
    rng = np.random.default_rng(0)
    drawn = np.array([drawn_quality(rng, 0.6) for _ in range(2003)])
    known = (drawn[:, 0] == 0.7) & np.isclose(drawn[:, 2], 0.42)
    assert 0.1 < known.mean() < 0.5
    off = np.abs(drawn[:, 2] - 0.6 * drawn[:, 0])
    assert np.nanmax(off) <= 0.05 + 1e-12
    assert np.nanmax(np.abs(drawn[:, 3] - 0.6 * drawn[:, 1])) <= 0.05 + 1e-12


def test_batches_tell_how_much_is_there():
    itself = some_completeness()
    batches = GenomeBatches(genomes_of(itself, kept=2), 3, 2)
    keys = [(1, i) for i in range(29)]
    observed, truth, _, recovery = batches(keys, True)
    assert np.allclose(recovery.itself, itself)
    assert (recovery.completeness <= recovery.itself + 1e-7).all()
    known = ~observed.completeness.isnan()
    assert ((observed.completeness - recovery.completeness)[known].abs() <= 0.05 + 1e-6).all()
    assert torch.equal(truth, torch.from_numpy((COUNTS > 0).astype(np.float32)))
    whole = GenomeBatches(replace(batches.genomes, itself=None), 3, 2)(keys, True)
    assert whole[3] is None
    assert torch.equal(whole[0].counts, observed.counts)  # the same noise
    levels = list(degraded(genomes_of(itself, kept=2), np.arange(29), (70.0, 5.0), "known", 0))
    assert np.allclose(torch.cat([told.completeness for _, _, told in levels]), np.minimum(itself, 0.7))
    assert np.allclose(torch.cat([seen.completeness for _, seen, _ in levels]), np.minimum(itself, 0.7))


def test_weights_of_a_mixture_take_the_likelihood():
    suite = suite_of(["evidence"], double=False)
    found = []
    for itself in (None, np.ones(29), some_completeness()):
        model = suite["evidence"]
        model.mixture.zero_()
        mix(model, genomes_of(itself, kept=2), 0)
        found.append(model.mixture.clone())
    assert torch.allclose(found[0], found[1], atol=1e-4)
    assert not torch.allclose(found[0], found[2], atol=1e-2)


def test_thresholds_are_told_by_what_genomes_would_show(monkeypatch):
    """By genomes of which half of what is lacking is known, each counted for as many as it would show."""
    itself, level = some_completeness(), (80.0, 0.0)
    genomes = replace(genomes_of(itself, kept=2), validation=np.arange(29), train=np.arange(29))
    method = suite_of(["pca"], double=False)["pca"]
    monkeypatch.setattr(calibration, "LEVELS", [level])
    (one,), _ = calibrate(method, genomes, 4)
    noisy = apply_all({"it": method}, genomes, degraded(genomes, genomes.validation, level, "estimated", 4000))["it"]
    judged = itself >= 0.9 - 1e-9
    assert 5 < judged.sum() < 20
    p, groups = noisy.probability.astype(np.float64), genomes.clades.groups
    sums = []
    for clade in np.unique(groups[judged]):
        rows = judged & (groups == clade)
        made = ~noisy.observed[rows] & (p[rows] >= GRID[0])
        right = (made * noisy.truth[rows] / (1 - noisy.hidden[rows])).sum() / rows.sum()
        sums.append((right, made.sum() / rows.sum()))
    right, made = np.transpose(sums)
    share = right.sum() / made.sum()
    n = len(sums)
    error = math.sqrt(n / (n - 1) * ((right - share * made) ** 2).sum()) / made.sum()
    t = calibration.stats.t.ppf(0.9, n - 1)
    assert one.added[0] == pytest.approx(share - t * error, rel=1e-4)
    expected = noisy.probability * (1 - noisy.hidden)
    assert one.ece == pytest.approx(calibration.reliability(expected, noisy.truth)[0], rel=1e-4)


def test_no_addition_is_judged_by_genomes_that_lack_too_much(monkeypatch):
    genomes = replace(genomes_of(np.full(29, 0.7), kept=2), validation=np.arange(29))
    monkeypatch.setattr(calibration, "LEVELS", [(95.0, 0.0), (30.0, 0.0)])
    (high, low), _ = calibrate(suite_of(["pca"], double=False)["pca"], genomes, 4)
    assert high.added == [None] * len(GRID)
    assert any(low.added)
    # Nor do they tell how far sizes are off: as far as where they do, or farther.
    assert all(getattr(high, name) >= getattr(low, name) for name in calibration.OFFS)


def test_complete_genomes_are_judged_as_before(monkeypatch):
    method = suite_of(["pca"], double=False)["pca"]
    monkeypatch.setattr(calibration, "LEVELS", [(90.0, 5.0), (50.0, 0.0)])
    plain, known = (calibrate(method, genomes_of(itself, kept=2), 4)[0] for itself in (None, np.ones(29)))
    for one, other in zip(plain, known, strict=True):
        assert (one.added, one.removed) == (other.added, other.removed)
        for name in (*calibration.OFFS, "ece"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6)


@pytest.mark.filterwarnings("ignore:. of 24 genomes")  # that are far
def test_incomplete_genomes_are_learned_from(tmp_path):
    said, rng = np.where(np.arange(24) % 2, 0.5, 1.0), np.random.default_rng(0)
    frame = some_frame()
    frame[:] = rng.binomial(frame.to_numpy(), said[:, None])
    quality = pd.DataFrame({"completeness": 100 * said}, index=frame.index)
    completer = GenomeCompleter(**SMALL).fit(frame, some_taxonomy(), quality)
    presence = completer.network_.references.presence
    assert ((presence > 0) & (presence < 255)).any()
    assert any("may be there all the same" in note for note in completer.notes_)
    completer.save(tmp_path / "model")
    again = GenomeCompleter.load(tmp_path / "model")
    assert again.complete(some_frame()).equals(completer.complete(some_frame()))
