"""Our model against its mathematics: tokens, terms of the log-odds, what they are special cases of."""

import genome_oracle as oracle
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import (
    COUNTS,
    FAMILIES,
    REFERENCES,
    genomes_of,
    genomes_of_all_sizes,
    observed_of,
    rates,
    some_counts,
    suite_of,
)

from omniset.genomes import training
from omniset.genomes.model import PARTS, Predictions, balance, facts, fit_weights
from omniset.genomes.noise import Recovery
from omniset.genomes.references import Compared
from omniset.genomes.training import Clades, Genomes, mix


@torch.no_grad()
def test_terms_are_what_the_log_odds_are_the_sum_of():
    model = suite_of(["evidence"])["evidence"]
    mixture_of(model)
    for observed in (genomes_of_all_sizes(), oracle.unknown_quality(genomes_of_all_sizes())):
        terms = model.terms(*model.noise.settle(observed))
        assert list(terms) == [*PARTS, "evidence", "shift"]
        total = sum(terms.values())
        shift = terms.pop("shift")
        assert (shift[~observed.present] != 0).all()
        assert not shift[observed.present].any()
        some = observed.present.any(1)
        assert torch.allclose(total[some], model(observed)[some], atol=1e-12)
        assert all((t[some].abs().amax(1) > 1e-3).all() for t in terms.values())


@torch.no_grad()
def test_the_mixture_by_hand():
    model = suite_of(["evidence"])["evidence"]
    mixture, observed = mixture_of(model), genomes_of_all_sizes()
    parts, found = model.parts(observed)[0].numpy(), model(observed).numpy()
    for i in (0, 1, 4, 7):
        assert np.allclose(found[i], mixed_by_hand(mixture, parts[i], observed, i), atol=1e-6)


def mixture_of(model):
    """Some weights, temperatures and a shift."""
    mixture = np.random.default_rng(0).normal(0, 0.4, model.mixture.shape)
    model.mixture.copy_(torch.from_numpy(mixture))
    return mixture


def mixed_by_hand(mixture, parts, observed, i):
    *of_parts, seen, unseen, shift = mixture @ facts_by_hand(observed, i)
    w = np.exp(of_parts) / np.exp(of_parts).sum()
    present = observed.counts[i].numpy() > 0
    return np.where(present, parts @ w * np.exp(seen), parts @ w * np.exp(unseen) + shift)


def facts_by_hand(observed, i):
    seen, c, q = observed.counts[i].numpy(), float(observed.completeness[i]), float(observed.contamination[i])
    missed, _ = oracle.rates(COUNTS, c, q)
    allowed = ~observed.excluded[i].numpy()
    similar = sorted(
        (oracle.corrected(seen, r, missed) if there else 0.0 for r, there in zip(REFERENCES, allowed, strict=True)),
        reverse=True,
    )
    gap = similar[0] - similar[:15][-1]
    return np.array([1, 1 - c, np.clip(5 * similar[0] - 3.75, -2, 2), np.clip(10 * gap - 1, -2, 2), 0])


@torch.no_grad()
def test_what_weights_depend_on_is_bounded():
    """However far a genome is, or however few the references."""
    observed, company = observed_of(some_counts(3), 0.7, 0.05), torch.tensor([0.0, 0.5, 1.0]).double()

    def about(similarity):
        return facts(observed, Compared(similarity, similarity, observed.counts, company))

    for similarity, near in ((-1.0, (-2.0, -1.0)), (0.3, (-2.0, -1.0)), (0.8, (0.25, -1.0)), (1.0, (1.25, -1.0))):
        found = about(torch.full((3, 1), similarity).double())
        assert torch.allclose(found[:, :4], torch.tensor([1, 0.3, *near]).double().expand(3, 4), atol=1e-6)
        assert torch.equal(found[:, 4], 3 * company)
    alone = torch.tensor([[0.9, *[-1.0] * 20]]).double().expand(3, 21)  # all others are excluded
    assert torch.allclose(about(alone)[:, 2:4], torch.tensor([0.75, 2.0]).double().expand(3, 2))


@torch.no_grad()
def test_parts_by_hand():
    """Of the references: weights by family and by quality; of the context: what it says without the evidence too."""
    model = suite_of(["evidence"])["evidence"]
    observed = genomes_of_all_sizes()
    parts, about_all = (values.numpy() for values in model.parts(observed))
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
        assert np.allclose(parts[i, :, 1], oracle.logit(shares[2]) + llr, atol=1e-5)
        assert np.allclose(about_all[i], facts_by_hand(observed, i), atol=1e-6)
        scores = ((seen > 0) - c * p) @ w["components.components"] / w["components.spread"]
        linear = w["components.regression.weight"] @ (6 * scores) + w["components.regression.bias"]
        assert np.allclose(parts[i, :, 2], linear + llr, atol=1e-5)
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
        assert np.allclose(parts[i, :, 3], np.where(seen > 0, prior + llr, unseen), atol=1e-5)


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


@torch.no_grad()
def test_simple_methods_are_special_cases(suite):
    model = suite_of(["evidence"])["evidence"]
    near = model.neighbours
    for parameter in (*near.gate.parameters(), near.trust, near.offset, model.belief, model.mixture):
        parameter.zero_()
    model.mixture[PARTS.index("neighbours"), 0] = 1e3  # this part alone
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
    parts, about = model.parts(observed)
    weights, shift = balance(model.mixture, about[:, None], observed.present)
    assert torch.allclose(weights, torch.full((11, FAMILIES, 4), 1 / 4).double())
    assert not shift.any()
    bayes = prior + model.noise.evidence(observed)
    assert torch.allclose(parts[..., 2], bayes, atol=1e-6)
    assert float(model.neighbours.start.sum()) == pytest.approx(1)
    sharp = torch.tensor([30.0, 60.0, 120.0, 240.0]).double() / FAMILIES
    assert torch.allclose(model.neighbours.log_sharpness.exp(), sharp, rtol=1e-6)


@torch.no_grad()
def test_without_its_network_it_is_the_simple_parts():
    suite = suite_of(["evidence", "no-network"])
    model, simple, observed = suite["evidence"], suite["no-network"], genomes_of_all_sizes()
    assert [name for name, _ in simple.named_parameters()] == []
    parts, about = model.parts(observed)
    assert torch.equal(simple.parts(observed)[0], parts[..., :3])
    assert torch.equal(simple.parts(observed)[1], about)
    mixture, found = mixture_of(simple), simple(observed).numpy()
    for i in (0, 1, 4, 7):
        assert np.allclose(found[i], mixed_by_hand(mixture, parts[i, :, :3].numpy(), observed, i), atol=1e-6)
    assert np.allclose(found[3], suite.noise.prior())  # of which nothing was seen


@pytest.mark.parametrize("part", range(4))
def test_weights_are_fitted_to_genomes_kept_back(part, monkeypatch):
    """A part that is the truth of clades without relatives gets the weight there, another one gets it where there are
    relatives, a third where genomes are completed together; and the truth of training genomes is not looked at.
    """
    counts, groups = some_counts(), np.arange(29) % 7
    train, validation = np.flatnonzero(groups < 4), np.flatnonzero(groups >= 4)
    train, single = train[::2], train[1::2]
    clades = Clades(np.stack([groups, groups, np.arange(29)], 1))
    model = suite_of(["evidence"], counts=counts, double=False)["evidence"]
    several = validation[np.argsort(groups[validation], kind="stable")]
    near, far = (single, 1.0, 0.0, (part + 1) % 4), (validation, -1.0, 0.0, part)
    both = several, 0.0, 1.0, (part + 2) % 4
    here = iter([*[far, near] * 5, *[both] * 5])

    def parts(observed):
        rows, closeness, company, right = next(here)
        assert len(rows) == len(observed)
        assert (len(model.references.presence) > 23) == (company > 0)
        said = torch.randn(len(observed), FAMILIES, 4)
        said[..., right] = 4 * torch.as_tensor(counts[rows] > 0).float() - 2
        about = torch.stack([torch.ones(len(observed)), 1 - observed.completeness, *torch.zeros(3, len(observed))], 1)
        about[:, 2], about[:, 4] = closeness, company
        return said, about

    monkeypatch.setattr(model, "parts", parts)
    genomes = Genomes(sp.csr_array(counts), clades, train, validation, train, single=single)
    mix(model, genomes, seed=3)
    assert next(here, None) is None
    assert len(model.references.presence) == 23
    for _, closeness, company, right in (far, near, both):
        about = torch.tensor([[1.0, 0.1, closeness, 0.0, company], [1.0, 0.4, closeness, 0.0, company]])
        weights, _ = balance(model.mixture, about[:, None], observed_of(counts[:2], 0.7, 0.05).present)
        assert (weights.argmax(2) == right).all()
        assert (weights[..., right] > 1).all()  # surer than it says: temperature


def test_families_that_were_not_observed_are_shifted(monkeypatch):
    """A part says of all the same; of those that were observed it is right, of the others three times too seldom."""
    rng, rows = np.random.default_rng(5), np.arange(29)
    clades = Clades(np.stack([rows % 7, rows % 7, rows], 1))
    seen = rng.random((29, FAMILIES)) < 0.5
    counts = (rng.random((29, FAMILIES)) < np.where(seen, 0.2, 0.6)).astype(int)
    model = suite_of(["evidence"], counts=some_counts(), double=False)["evidence"]

    def parts(observed):
        about = torch.zeros(len(observed), 5)
        about[:, 0] = 1
        return torch.full((len(observed), FAMILIES, 4), np.log(0.25)), about

    def levels(genomes, chosen, *_):
        ones = torch.ones(len(chosen))
        yield chosen, observed_of(seen[chosen].astype(int), 0.7, 0.05), Recovery(ones, ones, ones)

    monkeypatch.setattr(model, "parts", parts)
    monkeypatch.setattr(training, "degraded", levels)
    mix(model, Genomes(sp.csr_array(counts), clades, rows[:0], rows), seed=3)
    observed = observed_of(seen[:2].astype(int), 0.7, 0.05)
    weights, shift = balance(model.mixture, torch.tensor([[[1.0, 0, 0, 0, 0]]] * 2), observed.present)
    found = torch.sigmoid(weights.sum(2) * np.log(0.25) + shift)
    w = 1 / np.bincount(rows % 7)[rows % 7]
    for here, present in ((True, seen), (False, ~seen)):
        expected = (w[:, None] * counts * present).sum() / (w[:, None] * present).sum()
        of = torch.from_numpy(seen[:2]) if here else torch.from_numpy(~seen[:2])
        assert torch.allclose(found[of], torch.tensor(expected).float(), atol=0.02)
    assert not shift[torch.from_numpy(seen[:2])].any()


def test_as_many_are_missing_as_completeness_says():
    """All families that were not observed move alike, until A^(1 - w) H^w of them are expected."""
    model = suite_of(["evidence"])["evidence"]
    observed = observed_of(some_counts(11, seed=5) * (np.random.default_rng(3).random((11, FAMILIES)) < 0.7))
    settled, given = model.noise.settle(observed)
    with torch.no_grad():
        plain = model.log_odds(settled, given)
        for weight in (0.3, 1.0):
            model.completeness_weight.fill_(weight)
            moved = model.log_odds(settled, given)
            model.completeness_weight.zero_()
            for i in range(11):
                seen, p = observed.present[i].numpy(), torch.sigmoid(plain[i]).numpy()
                missed, foreign = rates(some_counts(), float(settled.completeness[i]), float(settled.contamination[i]))
                lost = missed * (1 - foreign)
                expected = p[~seen].sum() ** (1 - weight) * (p * lost / (1 - lost))[seen].sum() ** weight
                change = (moved - plain)[i].numpy()
                assert np.ptp(change[~seen]) < 1e-9
                assert not change[seen].any()
                if abs(change[~seen][0]) < 4.9:  # not farther than it may move
                    assert torch.sigmoid(moved[i]).numpy()[~seen].sum() == pytest.approx(expected, rel=1e-4)


def test_completeness_counts_as_much_as_it_tells(monkeypatch):
    """Where probabilities of new clades are far too high it is all that counts; where they are the truth, nothing."""
    genomes = genomes_of(kept=3, references=np.arange(23))
    for said, weight in ((3.0, 1.0), (None, 0.0)):
        model = suite_of(["evidence"], double=False)["evidence"]
        rows = iter(np.split(np.tile(genomes.validation, 10), 10))

        def forward(observed, said=said, rows=rows):
            truth = torch.as_tensor(genomes.counts[next(rows)].toarray() > 0)
            return torch.where(truth | observed.present, 6.0, -6.0 if said is None else said)

        monkeypatch.setattr(model, "forward", forward)
        training.weigh_completeness(model, genomes, 3)
        assert float(model.completeness_weight) == pytest.approx(weight, abs=0.21)


@pytest.mark.parametrize("right", [None, 2])
def test_a_mixture_is_not_below_its_best_part(right):
    """A part that is the truth of all clades but one in three, where its opposite is: of the clades left out the
    mixture of the others is wrong, and a part that says little is better. Where a part is always right, all is well.
    """
    rng, clades = torch.Generator().manual_seed(0), torch.arange(9).repeat_interleave(400)
    truth = (torch.rand(3600, generator=rng) < 0.4).double()
    odd = clades % 3 == 0 if right is None else clades < 0
    parts = torch.randn(3600, 4, generator=rng, dtype=torch.float64) * 0.1
    parts[:, 2] = torch.where(odd, -1.0, 1.0) * (4 * truth - 2)
    facts, there = torch.zeros(3600, 5, dtype=torch.float64), torch.ones(3600, dtype=torch.bool)
    facts[:, 0] = 1
    facts[:, 1] = clades / 4.5 - 1
    drawn = Predictions(parts, truth, torch.ones(3600, dtype=torch.float64), facts, there, clades)
    mixture, contest, best = fit_weights([drawn], [])
    weights = balance(mixture, facts, there)[0]
    if right is None:
        assert contest.below == (weights[:, best] > 0.999).all()
    else:
        assert not contest.below
        assert best == right
        assert (weights.argmax(1) == right).all()


def test_without_genomes_kept_back_parts_count_the_same():
    model = suite_of(["evidence"], double=False)["evidence"]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mix(model, genomes_of(kept=0), seed=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
