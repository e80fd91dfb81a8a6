"""Our model against its mathematics: tokens, terms of the log-odds, what they are special cases of."""

import genome_oracle as oracle
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import COUNTS, FAMILIES, REFERENCES, genomes_of_all_sizes, observed_of, some_counts, suite_of

from omniset.core.sets import SetBatch
from omniset.genomes.methods import References
from omniset.genomes.model import FamilyTokens, mean_of_present
from omniset.genomes.noise import NoiseModel


@pytest.fixture(scope="module")
def suite():
    return suite_of()


# ---------------------------------------------------------------------- our default


def test_tokens_by_hand():
    counts = torch.tensor([[0, 2, 0, 0, 1], [0, 0, 0, 0, 0], [3, 1, 1, 0, 7]]).double()
    for binary in (True, False):
        tokens = FamilyTokens(5, 3, binary).double()
        batch = tokens(counts)
        assert batch.multiplicity.tolist() == [[1, 1, 0, 0], [0] * 4, [1] * 4]
        assert not batch.elements[batch.multiplicity == 0].any()
        for i, present in ((0, [1, 4]), (2, [0, 1, 2, 4])):
            for position, family in enumerate(present):
                count = 1.0 if binary else np.log1p(float(counts[i, family]))
                expected = tokens.family.weight[family] + tokens.count.weight[:, 0] * count + tokens.count.bias
                assert torch.allclose(batch.elements[i, position], expected, atol=1e-12)


def test_the_local_mean_is_of_present_families():
    elements = torch.tensor([[[1.0], [4.0], [100.0]], [[9.0], [9.0], [9.0]]])
    batch = SetBatch(elements, torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), validate=False)
    assert mean_of_present(batch).tolist() == [[2.5], [0.0]]


@torch.no_grad()
def test_terms_are_what_the_log_odds_are_the_sum_of(suite):
    model = suite["evidence"]
    for observed in (genomes_of_all_sizes(), oracle.unknown_quality(genomes_of_all_sizes())):
        terms = model.terms(observed)
        assert list(terms) == ["neighbours", "context", "evidence"]
        total = sum(terms.values())
        some = observed.present.any(1)
        assert torch.allclose(total[some], model(observed)[some], atol=1e-12)
        assert all((t[some].abs().amax(1) > 1e-3).all() for t in terms.values())


@torch.no_grad()
def test_terms_by_hand():
    """Weights of the neighbours depend on the family and on what the genome asks for; evidence on a_v."""
    model = suite_of(["evidence"])["evidence"]
    model.gate.weight[:, :-2] = 0  # what is asked for then depends on novelty and completeness alone
    observed = genomes_of_all_sizes()
    terms = model.terms(observed)
    p = oracle.prevalence(COUNTS)
    start, bias = np.array([0.1, 0.3, 0.3, 0.3]), model.gate.bias.numpy()
    of_nearest, of_completeness = model.gate.weight[:, -2:].numpy().T
    trust, belief = model.trust.numpy(), model.belief.numpy()
    sharp = np.exp(model.log_sharpness.numpy())
    for i in (0, 1, 4, 7):
        seen, c, q = observed.counts[i].numpy(), float(observed.completeness[i]), float(observed.contamination[i])
        allowed = ~observed.excluded[i].numpy()
        llr = oracle.evidence(COUNTS, seen > 0, c, q)
        shares = [p, oracle.neighbours(seen, REFERENCES, allowed, p)]
        shares += [oracle.kernel(llr, REFERENCES, allowed, p, s) for s in sharp]
        missed, _ = oracle.rates(COUNTS, c, q)
        nearest = max(oracle.corrected(seen, REFERENCES[r], missed) for r in np.flatnonzero(allowed))
        asked = start + bias + of_nearest * nearest + of_completeness * c
        expected = sum(asked[j] * (1 + trust[:, j]) * oracle.logit(share) for j, share in enumerate(shares))
        assert np.allclose(terms["neighbours"][i], expected, atol=1e-5)
        a = 1 + np.where(seen > 0, belief[:, 0], belief[:, 1])
        assert np.allclose(terms["evidence"][i], a * llr, atol=1e-5)


@torch.no_grad()
def test_the_network_is_told_the_quality(suite):
    """Completeness, contamination and whether they were given reach the families' context, each by itself."""
    model, seen = suite["evidence"], some_counts(5, seed=5)
    told = torch.ones(5, 2).double()

    def context(c, q, given=told):
        return model._terms(observed_of(seen, c, q), given)["context"]

    first = context(0.7, 0.05)
    changed = [context(0.8, 0.05), context(0.7, 0.1), context(0.7, 0.05, told * torch.tensor([0.0, 1.0]))]
    changed.append(context(0.7, 0.05, told * torch.tensor([1.0, 0.0])))
    for other in changed:
        assert (other - first).abs().amax(1).min() > 1e-3
    assert torch.equal(context(0.7, 0.05), first)


@torch.no_grad()
def test_what_the_genome_asks_for_comes_from_its_summary():
    model = suite_of(["evidence"])["evidence"]
    observed = genomes_of_all_sizes()
    before = model.terms(observed)["neighbours"]
    model.gate.weight[:, 3] += 1.0  # of the summary
    assert (model.terms(observed)["neighbours"] - before).abs().amax(1).min() > 1e-6


def zeroed(model):
    for part in (model.output, model.gate):
        part.weight.zero_()
        part.bias.zero_()
    model.trust.zero_()
    model.belief.zero_()


@torch.no_grad()
def test_prevalence_and_bayes_and_nearest_neighbours_are_special_cases(suite):
    model = suite_of(["evidence"])["evidence"]
    zeroed(model)
    observed = genomes_of_all_sizes()
    model.gate.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]) - model.start)
    assert torch.allclose(model(observed), suite["prevalence-bayes"](observed), atol=1e-6)
    model.gate.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]) - model.start)
    assert torch.allclose(model(observed), suite["knn"](observed), atol=1e-6)
    # A weight of 0 can also be the family's: 1 + trust.
    model.gate.bias.copy_(1 - model.start)
    model.trust[:, 1:] = -1
    assert torch.allclose(model(observed), suite["prevalence-bayes"](observed), atol=1e-6)


@torch.no_grad()
def test_doing_nothing_is_a_special_case():
    model = suite_of(["evidence"])["evidence"]
    zeroed(model)
    model.gate.bias.copy_(-model.start)
    observed = genomes_of_all_sizes()
    found, some = model(observed), observed.present.any(1)
    assert torch.equal((found > 0)[some], observed.present[some])
    model.belief[:] = 99.0  # the surer of itself the more evidence counts
    assert ((model(observed).sigmoid() - observed.present.double()).abs()[some] < 1e-6).double().mean() > 0.99


def test_it_starts_as_a_sum_without_context():
    """Before training the network says nothing, the weights of the parts add up to 1 and the evidence counts once."""
    model = suite_of(["evidence"], random=False)["evidence"]
    observed = genomes_of_all_sizes()
    terms = model.terms(observed)
    assert not terms["context"].any()
    assert torch.allclose(terms["evidence"], model.noise.evidence(observed))
    assert float(model.start.sum()) == pytest.approx(1)
    assert torch.allclose(model.log_sharpness.exp(), torch.tensor([60.0, 180.0]).double() / FAMILIES, rtol=1e-6)


def test_families_start_at_principal_directions():
    counts = some_counts(61)
    noise, references = NoiseModel(FAMILIES), References(5, FAMILIES)
    from omniset.genomes.model import EvidenceModel

    sizes = {"encoder": "ust", "dim": 6, "depth": 1, "num_heads": 2, "num_inducing": 3}
    model = EvidenceModel(noise, references, FAMILIES, **sizes)
    model.fit(sp.csr_array(counts), np.random.default_rng(0))
    present = (counts > 0).astype(float)
    _, vectors = np.linalg.eigh(np.cov(present.T))
    found = model.tokens.family.weight.detach().numpy()
    for j in range(6):
        direction = vectors[:, -1 - j] * 0.5 * np.sqrt(FAMILIES)
        rest = min(np.abs(found[:, j] - s * direction).max() for s in (1, -1))
        assert rest < 0.05 * 5  # the noise added to it
