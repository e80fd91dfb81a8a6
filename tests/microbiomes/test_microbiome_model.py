"""Spectra, communities, the network and the calls, against what is written out by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from omniset.core.sets import SetBatch
from omniset.microbiomes.baselines import NaiveBayes, Nearest, most_probable_shares
from omniset.microbiomes.calls import Calls, Confidence, most_probable
from omniset.microbiomes.communities import Members, de_novo, draw, replicate, replicates
from omniset.microbiomes.model import NONE, SequenceNetwork, SpectrumProjection, TaxonNetwork, VectorProjection
from omniset.microbiomes.references import References, held_out
from omniset.microbiomes.strands import strand_table
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import loss_of, temper
from omniset.tables.dna import spectra

TEXTS = ["ACGTNACGGT", "", "AC", "TTTTTTTTT", "NNNNN", "GATTACA"]


def words_of(text, k):
    found = []
    for i in range(len(text) - k + 1):
        if set(text[i : i + k]) <= set("ACGT"):
            found.append(sum("ACGT".index(c) * 4 ** (k - 1 - j) for j, c in enumerate(text[i : i + k])))
    return found


# ---------------------------------------------------------------------- spectra


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_spectra_are_all_words(k):
    found = spectra(TEXTS, k)
    ours = [w.tolist() for w in found.words.split(found.sizes.tolist())]
    assert ours == [words_of(text, k) for text in TEXTS]
    left = torch.arange(len(found.words)) % 3 > 0
    thinned = found.without(left)
    parts = zip(found.words.split(found.sizes.tolist()), left.split(found.sizes.tolist()), strict=True)
    assert [w.tolist() for w in thinned.words.split(thinned.sizes.tolist())] == [w[m].tolist() for w, m in parts]


def test_vectors_are_the_formula():
    torch.manual_seed(0)
    network = SpectrumProjection((2, 3), 8).double()
    read = network.read(TEXTS)
    found, normalised = network(read), SequenceNetwork(network, 8, 3, 2).vectors(read)
    for text, ours in zip(TEXTS, found, strict=True):
        total, number = torch.zeros(8, dtype=torch.float64), 0
        for k, table in zip((2, 3), network.tables, strict=True):
            for word in words_of(text, k):
                total, number = total + table.weight[word], number + 1
        assert (ours - total / max(number, 1) ** 0.5).abs().max() < 1e-12
    for part in (slice(0, 4), slice(4, 8)):
        assert (normalised[:, part] - F.layer_norm(found[:, part], (4,))).abs().max() < 1e-12


def test_the_strand_table_tells_strands():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACGT"), 50, p=[0.4, 0.3, 0.2, 0.1])) for _ in range(30)]
    turned = [t[::-1].translate(str.maketrans("ACGT", "TGCA")) for t in texts]
    table = strand_table(texts, turned, 3)
    assert all(table[spectra([t], 3).words].sum() > 0 for t in texts)
    assert torch.allclose(table, -strand_table(turned, texts, 3))


# ---------------------------------------------------------------------- communities


def test_replicates_are_of_their_profile():
    rng = np.random.default_rng(3)
    found = replicates(50, 2, 400, rng)
    assert found.shape == (2, 400, 50)
    assert (found >= 0).all()
    assert np.allclose(found.sum(2), 1)
    profile = de_novo(50, np.random.default_rng(3))
    noise = np.random.default_rng(4).standard_normal(50)
    by_hand = np.maximum(profile + 0.6 * profile * noise, 0)
    assert np.allclose(replicate(profile, 0.6, np.random.default_rng(4)), by_hand / by_hand.sum())


def test_profiles_are_log_normal():
    logs = np.log(de_novo(20_000, np.random.default_rng(0)))
    assert abs(logs.std() - 2) < 0.05  # five standard errors


def test_reads_are_drawn_by_abundance():
    taxon = np.array([0, 0, 1, 3, 3, 3])
    members = Members.of(np.array([10, 11, 12, 13, 14, 15]), taxon, 4)
    profile = np.array([0.2, 0.3, 0.4, 0.1])  # taxon 2 has no reference
    drawn, counts = draw(profile, 60_000, members, np.random.default_rng(0))
    assert drawn.tolist() == [10, 11, 12, 13, 14, 15]
    assert counts.sum() == 60_000
    expected = np.array([0.1, 0.1, 0.3, 0.1 / 3, 0.1 / 3, 0.1 / 3]) / 0.6
    assert np.abs(counts / 60_000 - expected).max() < 5 * 0.5 / 60_000**0.5
    with pytest.raises(ValueError, match="none of the taxa"):
        draw(np.array([0, 0, 1.0, 0]), 5, members, np.random.default_rng(0))


# ---------------------------------------------------------------------- the network


def network(encoder="ust", taxa=7, width=6, members=2):
    torch.manual_seed(1)
    alone = SequenceNetwork(VectorProjection(5, width), width, taxa, members)
    torch.nn.init.uniform_(alone.log_scale)
    found = TaxonNetwork(alone, encoder, dim=8, depth=2, num_heads=2, num_inducing=3).double()
    if found.shares is not None:
        torch.nn.init.normal_(found.shares.first.weight)
        torch.nn.init.normal_(found.shares.strength.weight, std=0.3)
    return found.eval()


def sample(seed=0, sets=2, elements=11, width=6):
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 5, (sets, elements), generator=draw)
    return SetBatch(torch.randn(sets, elements, width, dtype=torch.float64, generator=draw), counts)


@pytest.mark.parametrize("encoder", ["ust", "set-transformer-sab", NONE])
def test_in_context_is_the_whole_network(encoder):
    model, batch = network(encoder), sample()
    whole = model(batch)
    there = batch.multiplicity > 0
    for size in (1, 4, 11):
        prior = model.prior(batch.shards(size))
        ours = torch.cat([model.in_context(shard, prior) for shard in batch.shards(size)], 1)
        assert (ours - whole)[there].abs().max() < 1e-12
    order = torch.randperm(11, generator=torch.Generator().manual_seed(5))
    permuted = model(SetBatch(batch.elements[:, order], batch.multiplicity[:, order]))
    assert (permuted - whole[:, order]).abs().max() < 1e-12


def test_one_sequence_of_two_taxa_is_the_same_multiset():
    model, batch = network(), sample(sets=1)
    counts = torch.tensor([[2, 3, 1, 4]])
    merged = model(SetBatch(batch.elements[:, :4], counts))
    twice = SetBatch(batch.elements[:, [0, 1, 2, 3, 3]], torch.tensor([[2, 3, 1, 1, 3]]))
    assert (model(twice)[:, [0, 1, 2, 3]] - merged).abs().max() < 1e-12
    assert (model(twice)[:, 4] - merged[:, 3]).abs().max() < 1e-12


def test_what_is_added_up():
    batch, model = sample(), network()
    out = model.encoder(batch)
    alone = torch.zeros(*batch.elements.shape[:2], 7, dtype=torch.float64)
    for i in np.ndindex(*alone.shape):
        sequence, taxon = batch.elements[i[:2]], model.alone.prototypes[i[2]].flatten()
        for m, part in enumerate([slice(0, 3), slice(3, 6)]):
            cosine = sequence[part] @ taxon[part] / (sequence[part].norm() * taxon[part].norm()).clamp(min=1e-12)
            alone[i] += model.alone.log_scale[m].exp() * cosine / 2
    expected = alone + slow_shares(out.summary[:, 0], alone, batch.multiplicity, model.shares)[:, None]
    assert (model(batch) - expected).abs().max() < 1e-12


def test_members_learn_for_themselves():
    alone = network().alone
    given = torch.randn(11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    vectors = alone.vectors(given)
    taxa = torch.arange(11) % 7

    def loss(logits):
        return torch.nn.functional.cross_entropy(logits, taxa)

    both = alone.logits_of_members(vectors)
    assert (both.mean(0) - alone.logits(vectors)).abs().max() < 1e-12
    ours = torch.autograd.grad(loss(both[0]) + loss(both[1]), alone.prototypes, retain_graph=True)[0]
    for m, part in enumerate([slice(0, 3), slice(3, 6)]):
        single = SequenceNetwork(VectorProjection(5, 3), 3, 7).double()
        single.prototypes.data = alone.prototypes.data[:, m : m + 1].clone()
        single.log_scale.data = alone.log_scale.data[m : m + 1].clone()
        expected = torch.autograd.grad(loss(single.logits(vectors[:, part])), single.prototypes)[0]
        assert (ours[:, m : m + 1] - expected).abs().max() < 1e-12
        # Nor does what makes another's part of the vectors.
        slope = torch.autograd.grad(loss(both[m]), alone.projection.linear.weight, retain_graph=True)[0]
        assert slope[part].abs().max() > 1e-3
        assert slope[3 - part.start : 6 - part.start].abs().max() == 0


def slow_shares(tokens, alone, reads, shares):
    """Sample by sample, read by read."""
    found = []
    for token, logits, counts in zip(tokens, alone, reads, strict=True):
        first = (shares.first.weight @ token + shares.first.bias).softmax(0)
        strength = (shares.strength.weight[0] @ token + shares.strength.bias[0]).exp()
        share = first
        for _ in range(shares.rounds):
            likelihood = [row.exp() for row, n in zip(logits, counts, strict=True) for _ in range(n)]
            posterior = torch.stack([each * share / (each @ share) for each in likelihood])
            share = (posterior.mean(0) + strength * first) / (1 + strength)
        found.append(share.log())
    return torch.stack(found)


def test_shares_have_the_largest_posterior():
    """After many rounds its gradient is the same for all taxa: no share could be moved from one to another."""
    model, batch = network(), sample(sets=1)
    model.shares.rounds = 3000
    with torch.no_grad():
        token = model.encoder(batch).summary[:, 0]
        share = model.shares(token, [(batch.multiplicity.double(), model.alone.logits(batch.elements))])[1][0].exp()
        first, strength = model.shares.first(token)[0].softmax(0), float(model.shares.strength(token).exp())
        likelihood = model.alone.logits(batch.elements)[0].exp()
    assert abs(float(share.sum()) - 1) < 1e-9
    counts = batch.multiplicity[0].double()
    gradient = (counts[:, None] * likelihood / (likelihood @ share)[:, None]).sum(0)
    gradient = gradient + strength * counts.sum() * first / share
    assert (gradient / (counts.sum() * (1 + strength)) - 1).abs().max() < 1e-6


def test_what_a_sample_does_not_tell_changes_nothing():
    """All taxa have the same prior in a sample without reads, before anything is learned."""
    torch.manual_seed(0)
    alone = SequenceNetwork(VectorProjection(5, 6), 6, 7)
    model = TaxonNetwork(alone, "ust", dim=8, depth=2, num_heads=2, num_inducing=3).double()
    batch = sample()
    prior = model.prior(SetBatch(batch.elements, torch.zeros(2, 11)))
    assert (prior - prior[:, :1]).abs().max() < 1e-12
    assert torch.equal(network(NONE)(batch), network(NONE).alone.logits(batch.elements))


def test_the_temperature_is_that_of_the_least_loss():
    alone = network().alone
    texts = [str(i) for i in range(40)]
    vectors = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    alone.projection = torch.nn.Identity()
    taxon = alone(vectors).argmax(1).numpy()
    taxon[::5] = 0
    references = References(texts, np.arange(40), taxon, 7)
    log_shares = torch.linspace(-1, 0, 7, dtype=torch.float64)
    with torch.no_grad():
        alone.log_scale += 0.7
    before = alone.log_scale.clone()
    temper(alone, lambda some: vectors[[int(t) for t in some]], references, np.arange(40), log_shares, 0)
    moved = alone.log_scale - before
    assert (moved - moved[0]).abs().max() < 1e-12
    assert moved.abs().max() > 0.1
    # The loss does not fall any more, whatever way the factor goes.
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    logits = factor * alone(vectors).detach() + log_shares
    loss = F.cross_entropy(logits, torch.from_numpy(taxon))
    assert abs(float(torch.autograd.grad(loss, factor)[0])) < 1e-4


def test_the_loss_is_the_mean_over_reads():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 4, dtype=torch.float64, generator=draw)
    taxon, reads = torch.randint(0, 4, (2, 5), generator=draw), torch.randint(0, 4, (2, 5), generator=draw)
    each = [
        -float(logits[b, n].log_softmax(0)[taxon[b, n]]) for b in range(2) for n in range(5) for _ in range(reads[b, n])
    ]
    assert abs(float(loss_of(logits, taxon, reads)) - np.mean(each)) < 1e-12


# ---------------------------------------------------------------------- calls

LINEAGES = [("d", "f1", "a"), ("d", "f1", "b"), ("d", "f2", "c"), ("e", "f3", "g")]


def test_odds_of_clades_are_those_of_sums():
    taxa = Taxa.of(LINEAGES)
    logits = 4 * torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    taxon, odds = most_probable(logits, torch.from_numpy(taxa.clade))
    p = np.exp(logits.numpy())
    p /= p.sum(1, keepdims=True)
    for row in range(20):
        best = int(p[row].argmax())
        assert int(taxon[row]) == best
        for rank in range(3):
            alike = [LINEAGES[t][: rank + 1] == LINEAGES[best][: rank + 1] for t in range(4)]
            by_hand = np.log(p[row, alike].sum() / p[row, np.logical_not(alike)].sum())
            assert abs(float(odds[row, rank]) - np.clip(by_hand, -16, 16)) < 1e-12


def test_odds_of_what_is_sure_are_not_lost_in_rounding():
    """1 - p is 0 in float32 here."""
    logits = torch.tensor([[14.0, 0.0, -1.0]])
    odds = most_probable(logits, torch.tensor([[0, 0, 0], [0, 1, 2]]))[1]
    assert odds[0, 0] == 16  # there is no other clade
    assert abs(float(odds[0, 1]) - (14 - np.log(1 + np.exp(-1)))) < 1e-5


def test_confidences_are_calibrated_and_never_rise():
    rng = np.random.default_rng(0)
    odds = np.sort(rng.normal(size=(3000, 2)), axis=1)[:, ::-1].copy()
    similarity = rng.random(3000)
    truth = 1 / (1 + np.exp(-(1.5 * odds + 4 * similarity[:, None] - 2)))
    right, weight = (rng.random((3000, 2)) < truth).astype(float), rng.integers(1, 9, 3000).astype(float)
    found = Confidence.fit(odds, similarity, right, weight)
    assert np.abs(found.weights - [1.5, 4, -2]).max() < 0.5
    mine = odds * found.weights[:, 0] + similarity[:, None] * found.weights[:, 1]
    said = 1 / (1 + np.exp(-mine - found.weights[:, 2]))
    # The property of a logistic regression with an intercept: on the whole it is as often right as it says.
    assert np.abs(np.average(said - right, axis=0, weights=weight)).max() < 1e-3
    assert np.allclose(found.of(odds, similarity), np.minimum.accumulate(said, axis=1))
    assert np.allclose(Confidence().of(odds, similarity), 1 / (1 + np.exp(-odds)))


def test_what_is_like_nothing_is_never_the_surer_for_it():
    rng = np.random.default_rng(0)
    odds, similarity = rng.normal(size=(500, 1)), rng.random(500)
    right = (rng.random((500, 1)) < (1.2 - similarity[:, None]) / (1 + np.exp(-odds))).astype(float)
    assert Confidence.fit(odds, similarity, right, np.ones(500)).weights[0, 1] == 0
    assert Confidence.fit(odds, similarity, np.ones((500, 1)), np.ones(500)).weights.tolist() == [[0, 0, 6]]


def calls():
    sample, feature = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 2, 0, 3])
    taxon = np.array([0, 2, 1, 3, 1, -1])
    sure = np.array([[0.9, 0.9, 0.6], [1, 0.8, 0.8], [1, 0.8, 0.5], [0.3, 0.3, 0.2], [1, 1, 0.9], [0, 0, 0]])
    counts = np.array([5.0, 1, 2, 7, 4, 3])
    return Calls(Taxa.of(LINEAGES), ["A", "B", "C"], ["w", "x", "y", "z", "none"], sample, feature, counts, taxon, sure)


def test_reads_vote():
    found = calls().per_feature(0.7)
    assert found["Feature ID"].tolist() == ["w", "x", "y", "z", "none"]
    # w: taxon b has 6 reads, a 5. At rank 3 only samples B and C agree: (2 .5 + 4 .9) / 11; at rank 2 all do.
    assert found["Taxon"].tolist() == ["d; f1", "d; f2; c", "Unassigned", "Unassigned", "Unassigned"]
    by_hand = [(5 * 0.9 + 2 * 0.8 + 4 * 1) / 11, 0.8, 0.7, 0.0, 0.0]
    assert np.allclose(found["Confidence"], by_hand)
    deepest = calls().per_feature(0.4)["Confidence"][0]
    assert np.isclose(deepest, (2 * 0.5 + 4 * 0.9) / 11)


def test_calls_by_sample_and_abundance():
    found = calls().per_sample(0.7)
    assert found["Taxon"].tolist() == ["d; f1", "d; f2; c", "d; f1", "Unassigned", "d; f1; b", "Unassigned"]
    assert np.allclose(found["Confidence"], [0.9, 0.8, 0.8, 0.7, 0.9, 0])
    table = calls().abundance(0.7, 2)
    assert {taxon: reads.tolist() for taxon, reads in table.items()} == {
        "d; f1": [5, 2, 4],
        "Unassigned": [0, 7, 3],
        "d; f2": [1, 0, 0],
    }
    assert list(table.columns) == ["d; f1", "Unassigned", "d; f2"]


# ---------------------------------------------------------------------- baselines


def test_shares_that_make_the_sample_most_probable():
    rng = np.random.default_rng(0)
    logits, reads = rng.normal(size=(9, 4)), rng.integers(1, 6, 9).astype(float)
    share = [0.25] * 4
    for _ in range(50):
        summed = np.zeros(4)
        for row, number in zip(logits, reads, strict=True):
            posterior = np.array([np.exp(row[t]) * share[t] for t in range(4)])
            summed += number * posterior / posterior.sum()
        share = [0.9 * summed[t] / reads.sum() + 0.1 / 4 for t in range(4)]
    assert np.allclose(most_probable_shares(logits, reads), share)


def test_baselines_name_what_they_know():
    rng = np.random.default_rng(0)
    roots = ["".join(rng.choice(list("ACGT"), 80)) for _ in range(3)]
    texts = [root[:i] + "A" + root[i + 1 :] for root in roots for i in (10, 30, 50)]
    references = References(texts, np.arange(9), np.repeat([0, 1, 3], 3), 4)
    for method in (NaiveBayes(), NaiveBayes("community"), NaiveBayes("sample"), Nearest()):
        method.fit(references, np.arange(9), np.array([[0.5, 0.2, 0.1, 0.2]]))
        method.read([root[:70] for root in roots])
        logits = method.logits(np.array([2, 0, 1]), np.array([1.0, 5.0, 2.0]))
        assert logits.argmax(1).tolist() == [3, 0, 1]
        assert (logits[:, 2] < logits.max(1) - 0.1).all()
        assert (method.confidence(np.array([2, 0, 1]), logits) > 0.5).all()


def test_every_taxon_keeps_a_reference():
    taxon = np.array([0, 0, 1, 2, 2, 2, 2, 2])
    references = References([str(i) for i in range(7)], np.array([0, 1, 1, 2, 3, 4, 5, 6]), taxon, 3)
    sizes = set()
    for seed in range(30):
        kept = held_out(references, 0.5, np.random.default_rng(seed))
        assert set(taxon[~kept[references.sequence]]) == {0, 1, 2}
        sizes.add(int(kept.sum()))
    assert max(sizes) == 4
