import itertools

import numpy as np
import pytest
import torch
from genome_oracle import evidence, noise_of, observed_of, prevalence, rates, some_counts

from omniset.genomes.noise import (
    ISLAND,
    ISLANDS,
    LEAST_FOREIGN,
    LEAST_MISSED,
    RUN,
    Observed,
    accessory_loss,
    degrade,
    flip,
    lose,
)

SIGMAS = 4.5  # of a mean over draws; the seeds are fixed
QUALITIES = [(1.0, 0.0), (0.95, 0.05), (0.71, 0.13), (0.31, 0.0), (0.0, 1.7)]


@pytest.fixture(scope="module")
def many():
    """997 genomes with 53 families: 37 markers with a copy or two, the others by chance with many copies."""
    rng = np.random.default_rng(3)
    markers = (rng.random((997, 37)) < 0.99) * rng.choice([1, 2], p=[0.95, 0.05], size=(997, 37))
    return np.concatenate([markers, (rng.random((997, 16)) < 0.4) * rng.integers(1, 14, (997, 16))], 1)


# ---------------------------------------------------------------------- error rates and evidence


@pytest.mark.parametrize("copies", [1, 3, 17])
def test_rates_by_hand(copies):
    counts = some_counts() * copies
    model = noise_of(counts)
    c, q = torch.tensor(QUALITIES).double().T
    missed, foreign = model.rates(c, q)
    for row, quality in enumerate(QUALITIES):
        expected = rates(counts, *quality)
        assert np.allclose(missed[row], expected[0], rtol=1e-6, atol=0)
        assert np.allclose(foreign[row], expected[1], rtol=1e-6, atol=0)
    assert torch.allclose(model.prevalence, torch.as_tensor(prevalence(counts)))
    assert torch.allclose(model.prior(), torch.as_tensor(np.log(prevalence(counts) / (1 - prevalence(counts)))))


def test_rates_are_what_happens(many, rng):
    """Degrade complete genomes, and count how often their families are lost and how often a donor brings one in."""
    model = noise_of(many)
    c, q, draws = 0.6, 0.08, 20
    missed, foreign = (r[0].numpy() for r in model.rates(torch.tensor([c]).double(), torch.tensor([q]).double()))
    has = many > 0
    lost = np.mean([(rng.binomial(many, c) == 0) & has for _ in range(draws)], 0).sum(0) / has.sum(0)
    came = np.mean([rng.binomial(many, q) > 0 for _ in range(draws)], (0, 1))
    error = np.sqrt(missed * (1 - missed) / (draws * has.sum(0)))
    assert (np.abs(lost - missed) < SIGMAS * error + 1 / len(many)).all()
    error = np.sqrt(foreign * (1 - foreign) / (draws * len(many)))
    assert (np.abs(came - foreign) < SIGMAS * error + 1 / len(many)).all()
    assert np.ptp(missed) > 0.2  # families with many copies are missed less
    assert np.ptp(foreign) > 0.03


def test_rates_are_never_0_or_1():
    model = noise_of(some_counts())
    missed, foreign = model.rates(torch.tensor([1.0, 0.0, 0.5]).double(), torch.tensor([0.0, 5.0, 1.0]).double())
    assert (missed[0] == LEAST_MISSED).all()
    assert (missed[1] == 1 - LEAST_MISSED).all()
    assert (foreign[0] == LEAST_FOREIGN).all()
    assert foreign[1:].max() == 0.5
    assert (foreign >= LEAST_FOREIGN).all()


def test_prior_and_evidence_are_bayes_rule(many):
    """Over the joint distribution of a family being there and being seen."""
    model = noise_of(many)
    missed, foreign = (r[0].numpy() for r in model.rates(*torch.tensor([[0.7], [0.1]]).double()))
    p = prevalence(many)
    for seen in (0, 1):
        there = p * ((1 - missed) if seen else missed)
        not_there = (1 - p) * (foreign if seen else 1 - foreign)
        odds = model.prior() + model.evidence(observed_of(np.full((1, many.shape[1]), seen), 0.7, 0.1))[0]
        assert np.allclose(torch.sigmoid(odds), there / (there + not_there), rtol=1e-6)


def test_evidence_by_hand():
    """Also of families with a detection of their own, of which all at 1 are the same as none."""
    counts, seen = some_counts(), some_counts(5, seed=4)
    seen[2] = 0
    detection = np.random.default_rng(1).uniform(0.05, 1.0, counts.shape[1])
    model, told = noise_of(counts), torch.as_tensor(detection)
    for quality in QUALITIES:
        observed = observed_of(seen, *quality)
        missed, foreign = model.rates(observed.completeness, observed.contamination, told)
        expected = rates(counts, *quality, detection)
        assert np.allclose(missed[0], expected[0], rtol=1e-6, atol=0)
        assert np.allclose(foreign[0], expected[1], rtol=1e-6, atol=0)
        shift, accessory = model.shift(observed).numpy(), accessory_loss(model.prevalence.numpy())
        for row in range(5):
            lost, own, alike = (evidence(counts, seen[row] > 0, *quality, of) for of in (detection, accessory, None))
            assert np.allclose(model.evidence(observed)[row], alike, rtol=1e-6)
            assert np.allclose(model.evidence(observed, told)[row], lost, rtol=1e-6)
            # Nothing was seen of the third: the prior holds whatever is missed.
            assert np.allclose(shift[row], 0 if row == 2 else own - alike, atol=1e-6)
        of = observed.completeness, observed.contamination
        assert torch.allclose(model.rates(*of, torch.ones(41).double())[0], model.rates(*of)[0])


def test_rare_families_are_detected_less_often():
    counts = some_counts()
    share = np.minimum(prevalence(counts) / 0.95, 1)
    assert np.allclose(accessory_loss(prevalence(counts)), 0.65 + 0.35 * share, rtol=1e-12)
    often = noise_of(counts).prevalence
    assert accessory_loss(often)[often >= 0.95].eq(1).all()


def test_degrade_keeps_and_brings_what_it_should(rng):
    counts, donor = rng.integers(0, 5, 23), rng.integers(0, 3, 23)
    counts[:2], donor[:2] = (0, 4), (4, 0)
    draws = np.array([degrade(counts, donor, 0.7, 0.2, rng) for _ in range(2000)])
    share = 0.2 * counts.sum() / donor.sum()
    expected = 0.7 * counts + share * donor
    error = np.sqrt((0.21 * counts + share * (1 - share) * donor) / len(draws))
    assert (np.abs(draws.mean(0) - expected) <= SIGMAS * error).all()
    assert (draws <= counts + donor).all()
    # foreign copies are a fifth of the complete genome's
    foreign = np.array([degrade(counts, donor, 0.0, 0.2, rng).sum() for _ in range(2000)])
    assert abs(foreign.mean() - 0.2 * counts.sum()) < SIGMAS * foreign.std() / np.sqrt(len(foreign))


def test_degrade_at_its_bounds(rng):
    counts, donor, nothing = rng.integers(0, 5, 23), rng.integers(0, 2, 23), np.zeros(23, dtype=int)
    for genome, foreign, c, q, expected in (
        (counts, donor, 1.0, 0.0, counts),
        (counts, donor, 0.0, 0.0, nothing),
        (counts, donor, 0.0, 99.0, donor),  # at most all that the donor has
        (counts, nothing, 1.0, 0.5, counts),
        (nothing, donor, 0.5, 0.5, nothing),
    ):
        assert (degrade(genome, foreign, c, q, rng) == expected).all()


def test_islands_are_lost_as_a_whole(rng):
    """Of 1,000 copies of families that nobody else has, 100 are on five islands; core families are on none."""
    rare, core = np.ones(1000, dtype=int), np.full(7, 100)
    counts, prevalence = np.concatenate([rare, core]), np.concatenate([np.zeros(1000), np.ones(7)])
    number, draws = int(ISLANDS * counts.sum()), 400
    islands = np.array([lose(counts, 1.0, "islands", rng, prevalence) for _ in range(draws)])
    assert (islands[:, 1000:] == core).all()
    lost = 1000 - islands[:, :1000].sum(1)
    sizes = [RUN] * (number // RUN) + [number % RUN] * (number % RUN > 0)
    assert set(lost.tolist()) <= {np.dot(sizes, gone) for gone in itertools.product((0, 1), repeat=len(sizes))}
    error = np.sqrt(np.square(sizes).sum() * ISLAND * (1 - ISLAND) / draws)
    assert abs(lost.mean() - (1 - ISLAND) * number) < SIGMAS * error
    half = np.array([lose(counts, 0.5, "islands", rng, prevalence) for _ in range(draws)])
    assert abs(half[:, 1000:].mean() / 50 - 1) < SIGMAS / np.sqrt(700 * draws)
    kept = 0.5 * (1000 - number + ISLAND * number)
    assert abs(half[:, :1000].sum(1).mean() - kept) < SIGMAS * half[:, :1000].sum(1).std() / np.sqrt(draws)
    for lost in ("islands", "accessory"):
        assert (lose(counts, 1.0, lost, rng, np.ones(1007)) == counts).all()  # all are core
        assert (lose(counts * 0, 0.5, lost, rng, prevalence) == 0).all()
        with pytest.raises(ValueError, match=f"prevalence must be given where {lost} are lost"):
            lose(counts, 0.5, lost, rng)


def test_flip(rng):
    counts = np.array([0, 0, 1, 3, 7] * 101)
    draws = np.array([flip(counts, 0.25, 0.1, rng) for _ in range(200)])
    has = counts > 0
    assert set(np.unique(draws[:, ~has])) == {0, 1}
    assert ((draws[:, has] == 0) | (draws[:, has] == counts[has])).all()
    for found, expected in (((draws[:, has] == 0), 0.25), (draws[:, ~has], 0.1)):
        assert abs(found.mean() - expected) < SIGMAS * np.sqrt(expected * (1 - expected) / found.size)
    assert (flip(counts, 0.0, 0.0, rng) == counts).all()
    assert (flip(counts, 1.0, 1.0, rng) == ~has).all()


def test_completeness_and_contamination_are_read_off_the_markers(many, rng):
    """The error of one genome is that of 37 markers; the means show that there is little bias."""
    model = noise_of(many)
    for c, q in itertools.product((0.3, 0.6, 0.9, 1.0), (0.0, 0.05, 0.15)):
        pairs = rng.integers(len(many), size=(150, 2)).tolist()
        seen = np.array([degrade(many[i], many[d], c, q, rng) for i, d in pairs])
        found = [v.numpy() for v in model.estimate(torch.from_numpy(seen).double())]
        # Of a third of the markers, with as many again by half foreign, the two cannot be told apart.
        assert abs(found[0].mean() - c) < (0.04 if c > 0.5 else 0.1), (c, q)
        assert abs(found[1].mean() - q) < (0.06 if c > 0.5 else 0.1), (c, q)
        assert np.abs(found[0] - c).mean() < 0.1
        others = torch.from_numpy(seen).double()
        others[:, 37:] = 5
        assert torch.equal(model.estimate(others)[0], torch.from_numpy(found[0]))  # families that are no markers


def test_markers_are_the_most_common_families():
    counts = some_counts(genomes=61, families=53, clades=5)
    counts[:, :11] = 1
    weights = noise_of(counts).markers.numpy()
    chosen = weights > 0
    have = (counts > 0).sum(0)
    assert chosen.sum() == max((have >= 0.95 * 61).sum(), 30)
    assert have[chosen].min() >= have[~chosen].max()
    assert np.allclose(weights[chosen], 1 / chosen.sum(), rtol=1e-6)
    few = noise_of(some_counts(families=7))
    assert (few.markers > 0).all()  # of fewer than 30 families all are


def test_estimates_stay_in_bounds(many):
    model = noise_of(many)
    c, q = model.estimate(torch.stack([torch.zeros(53), torch.full((53,), 1000.0)]).double())
    assert ((c >= 0.05) & (c <= 1)).all()
    assert ((q >= 0) & (q <= 0.3)).all()


def test_settle_fills_only_what_is_not_given(many):
    model = noise_of(many)
    counts = torch.from_numpy(many[:4]).double()
    told = torch.tensor([[0.5, np.nan, 0.7, np.nan], [0.1, 0.2, np.nan, np.nan]]).double()
    observed = Observed(counts, *told)
    settled, given = model.settle(observed)
    c, q = model.estimate(counts)
    assert settled.completeness.tolist() == [0.5, c[1], observed.completeness[2], c[3]]
    assert settled.contamination.tolist() == [observed.contamination[0], observed.contamination[1], q[2], q[3]]
    assert given.tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]
    told = observed_of(many[:3], 0.5, 0.1)
    assert model.settle(told)[0] is told
    assert model.settle(told)[1].tolist() == [[1, 1]] * 3
    observed.excluded = torch.ones(4, 5, dtype=torch.bool)
    assert model.settle(observed)[0].excluded is observed.excluded
