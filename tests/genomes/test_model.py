"""Our model against its mathematics: tokens, terms of the log-odds, what they are special cases of."""

import genome_oracle as oracle
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import COUNTS, FAMILIES, REFERENCES, genomes_of_all_sizes, observed_of, some_counts, suite_of

from omniset.core.sets import SetBatch
from omniset.genomes.mixing import mix
from omniset.genomes.model import FamilyTokens, mean_of_present
from omniset.genomes.training import Clades, Genomes


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


PARTS = ("neighbours", "components", "context")


def only(model, part):
    """Its mixture is one part alone."""
    model.mixture.zero_()
    model.temperature.zero_()
    model.mixture[PARTS.index(part), 0] = 1e3


@torch.no_grad()
def test_terms_are_what_the_log_odds_are_the_sum_of(suite):
    model = suite["evidence"]
    for observed in (genomes_of_all_sizes(), oracle.unknown_quality(genomes_of_all_sizes())):
        terms = model.terms(observed)
        assert list(terms) == [*PARTS, "evidence"]
        total = sum(terms.values())
        some = observed.present.any(1)
        assert torch.allclose(total[some], model(observed)[some], atol=1e-12)
        assert all((t[some].abs().amax(1) > 1e-3).all() for t in terms.values())


@torch.no_grad()
def test_the_mixture_by_hand():
    model = suite_of(["evidence"])["evidence"]
    model.mixture.copy_(torch.tensor([[0.3, -1.0], [0.1, 0.4], [-0.5, 0.7]]))
    model.temperature.copy_(torch.tensor([0.2, -0.3]))
    observed = genomes_of_all_sizes()
    parts, found = model.parts(observed).numpy(), model(observed).numpy()
    for i in (0, 1, 4, 7):
        lost = 1 - float(observed.completeness[i])
        u = np.array([0.3 - 1.0 * lost, 0.1 + 0.4 * lost, -0.5 + 0.7 * lost])
        w = np.exp(u) / np.exp(u).sum() * np.exp(0.2 - 0.3 * lost)
        assert np.allclose(found[i], parts[i] @ w, atol=1e-6)


@torch.no_grad()
def test_parts_by_hand():
    """Of the references: weights by family and by quality; of the context: what it says without the evidence too."""
    model = suite_of(["evidence"])["evidence"]
    observed = genomes_of_all_sizes()
    parts = model.parts(observed).numpy()
    p, near = oracle.prevalence(COUNTS), model.neighbours
    sharp, start = np.exp(near.log_sharpness.numpy()), np.array([0.1, *[0.15] * 6])
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    belief = w["belief"]
    for i in (0, 1, 4, 7):
        seen, c, q = observed.counts[i].numpy(), float(observed.completeness[i]), float(observed.contamination[i])
        allowed = ~observed.excluded[i].numpy()
        llr = oracle.evidence(COUNTS, seen > 0, c, q)
        shares = [p, oracle.neighbours(seen, REFERENCES, allowed, p), oracle.likeliest(llr, REFERENCES, allowed, p)]
        shares += [oracle.kernel(llr, REFERENCES, allowed, p, s) for s in sharp]
        missed, _ = oracle.rates(COUNTS, c, q)
        nearest = max(oracle.corrected(seen, REFERENCES[r], missed) for r in np.flatnonzero(allowed))
        about = torch.tensor([nearest, c, 10 * q, 1.0, 1.0]).double()
        gates = start + near.gate(about).numpy()
        expected = sum(
            gates[j] * (1 + w["neighbours.trust"][:, j]) * oracle.logit(share) for j, share in enumerate(shares)
        )
        a = 1 + np.where(seen > 0, belief[:, 0], belief[:, 1])
        assert np.allclose(parts[i, :, 0], expected + w["neighbours.offset"] + a * llr, atol=1e-5)
        scores = ((seen > 0) - c * p) @ w["components.components"] / w["components.spread"]
        linear = w["components.regression.weight"] @ (6 * scores) + w["components.regression.bias"]
        assert np.allclose(parts[i, :, 1], linear + llr, atol=1e-5)
        quality = [c, 10 * q, 1.0, 1.0, np.log1p((seen > 0).sum()) - 7]
        outputs = []
        for place in ("contexts.0.", "contexts.1."):
            hidden = w[place + "sum.weight"] @ (seen > 0) + w[place + "quality.weight"] @ quality
            hidden = np.maximum(hidden + w[place + "quality.bias"], 0)
            outputs.append(
                [w[f"{place}{name}.weight"] @ hidden + w[f"{place}{name}.bias"] for name in ("prior", "posterior")]
            )
        prior, posterior = np.mean(outputs, 0)
        unseen = (prior + llr + posterior) / 2
        assert np.allclose(parts[i, :, 2], np.where(seen > 0, prior + llr, unseen), atol=1e-5)


def test_every_predictor_has_its_own_loss():
    """None of them learns what another one does not say."""
    model = suite_of(["evidence"])["evidence"].train()
    parts = (("neighbours.", "belief"), ("components.",), *[("contexts.0.",)] * 2, *[("contexts.1.",)] * 2)
    for number, own in enumerate(parts):
        model.zero_grad()
        model.learned(genomes_of_all_sizes())[number].square().sum().backward()
        trained = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
        assert trained
        assert all(name.startswith(own) for name in trained)


@pytest.mark.parametrize("encoder", [None, "ust"])
@torch.no_grad()
def test_the_network_is_told_the_quality(encoder):
    """Completeness, contamination and whether they were given reach the families' context, each by itself."""
    model, seen = suite_of(["evidence"], encoder=encoder)["evidence"], some_counts(5, seed=5)
    told = torch.ones(5, 2).double()

    def context(c, q, given=told):
        return model.contexts[0](observed_of(seen, c, q), given)[0]

    first = context(0.7, 0.05)
    changed = [context(0.8, 0.05), context(0.7, 0.1), context(0.7, 0.05, told * torch.tensor([0.0, 1.0]))]
    changed.append(context(0.7, 0.05, told * torch.tensor([1.0, 0.0])))
    for other in changed:
        assert (other - first).abs().amax(1).min() > 1e-3
    assert torch.equal(context(0.7, 0.05), first)


def zeroed(model):
    for parameter in (*model.neighbours.gate.parameters(), model.neighbours.trust, model.neighbours.offset):
        parameter.zero_()
    model.belief.zero_()


@torch.no_grad()
def test_simple_methods_are_special_cases(suite):
    model = suite_of(["evidence"])["evidence"]
    zeroed(model)
    only(model, "neighbours")
    observed = genomes_of_all_sizes()
    bias = model.neighbours.gate[2].bias
    for place, name in enumerate(("prevalence-bayes", "knn", "knn-likelihood")):
        bias.copy_(torch.eye(7)[place] - model.neighbours.start)
        assert torch.allclose(model(observed), suite[name](observed), atol=1e-6)
    # A weight of 0 can also be the family's: 1 + trust.
    bias.copy_(1 - model.neighbours.start)
    model.neighbours.trust[:, 1:] = -1
    assert torch.allclose(model(observed), suite["prevalence-bayes"](observed), atol=1e-6)
    bias.copy_(-model.neighbours.start)  # no reference counts: doing nothing
    found, some = model(observed), observed.present.any(1)
    assert torch.equal((found > 0)[some], observed.present[some])


def test_it_starts_as_the_simple_methods():
    """Before training components and context say the prevalence, and all parts count the same."""
    model = suite_of(["evidence"], random=False)["evidence"]
    observed, prior = genomes_of_all_sizes(), model.noise.prior()
    assert torch.allclose(model.weights(observed.completeness), torch.full((11, 3), 1 / 3).double())
    bayes = prior + model.noise.evidence(observed)
    assert torch.allclose(model.parts(observed)[..., 1], bayes, atol=1e-6)
    assert float(model.neighbours.start.sum()) == pytest.approx(1)
    sharp = torch.tensor([30.0, 60.0, 120.0, 240.0]).double() / FAMILIES
    assert torch.allclose(model.neighbours.log_sharpness.exp(), sharp, rtol=1e-6)


def test_families_start_at_principal_directions():
    counts = some_counts(61)
    model = suite_of(["evidence"], counts=counts, encoder="ust", random=False)["evidence"]
    present = (counts > 0).astype(float)
    _, vectors = np.linalg.eigh(np.cov(present.T))
    found = model.contexts[0].tokens.family.weight.detach().numpy()
    for j in range(6):
        direction = vectors[:, -1 - j] * 0.5 * np.sqrt(FAMILIES)
        rest = min(np.abs(found[:, j] - s * direction).max() for s in (1, -1))
        assert rest < 0.05 * 5  # the noise added to it


# ---------------------------------------------------------------------- the mixture


@torch.no_grad()
def test_without_its_network_it_is_neighbours_and_components():
    suite = suite_of(["evidence", "no-network"])
    model, simple, observed = suite["evidence"], suite["no-network"], genomes_of_all_sizes()
    assert [name for name, _ in simple.named_parameters()] == []
    assert torch.equal(simple.parts(observed), model.parts(observed)[..., :2])
    simple.mixture.copy_(torch.tensor([[0.3, -1.0], [0.1, 0.4]]))
    simple.temperature.copy_(torch.tensor([0.2, -0.3]))
    found, parts = simple(observed).numpy(), model.parts(observed).numpy()
    for i in (0, 1, 4, 7):
        lost = 1 - float(observed.completeness[i])
        u = np.exp([0.3 - 1.0 * lost, 0.1 + 0.4 * lost])
        assert np.allclose(found[i], parts[i, :, :2] @ (u / u.sum()) * np.exp(0.2 - 0.3 * lost), atol=1e-6)
    assert np.allclose(found[3], suite.noise.prior())  # of which nothing was seen


def test_weights_are_fitted_to_clades_kept_back(monkeypatch):
    """A part that is the truth gets the weight, and the truth of training genomes is not looked at."""
    counts, groups = some_counts(), np.arange(29) % 7
    train, validation = np.flatnonzero(groups < 4), np.flatnonzero(groups >= 4)
    clades = Clades(np.stack([groups, groups, np.arange(29)], 1))
    truth = torch.as_tensor(counts[validation] > 0).double()
    for part in range(3):
        model = suite_of(["evidence"], counts=counts, double=False)["evidence"]
        batches = iter(range(10**6))

        def parts(observed, part=part, batches=batches):
            assert next(batches) >= 0
            said = torch.randn(len(observed), FAMILIES, 3)
            said[..., part] = 4 * truth.float()[: len(observed)] - 2
            return said

        monkeypatch.setattr(model, "parts", parts)
        genomes = Genomes(sp.csr_array(counts), clades, train, validation, train)
        mix(model, genomes, seed=3)
        weights = model.weights(torch.tensor([0.9, 0.6]))
        assert (weights.argmax(1) == part).all()
        assert (weights[:, part] > 1).all()  # surer than it says: temperature
    untouched = suite_of(["evidence"], counts=counts, double=False)["evidence"]
    before = untouched.state_dict()
    mix(untouched, Genomes(sp.csr_array(counts), clades, train, validation[:0], train), seed=3)
    assert all(torch.equal(v, before[k]) for k, v in untouched.state_dict().items())
