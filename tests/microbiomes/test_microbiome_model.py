"""K-mers, communities, the network and the calls, against what is written out by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from omniset.microbiomes import calibration
from omniset.microbiomes.abundances import Prior
from omniset.microbiomes.assignments import Calls
from omniset.microbiomes.baselines import NaiveBayes, Nearest
from omniset.microbiomes.calibration import ALONE, Choice, Confidence, KeptBack, choose, weights_of
from omniset.microbiomes.model import Candidates, SequenceNetwork, TaxonNetwork, candidates_of, most_probable
from omniset.microbiomes.naive_bayes import KmerLikelihood
from omniset.microbiomes.references import Members, References, de_novo, draw, held_out, replicate
from omniset.microbiomes.sequences import strand_table
from omniset.microbiomes.taxonomy import Taxa
from omniset.tables.dna import kmers_of

TEXTS = ["ACGTNACGGT", "", "AC", "TTTTTTTTT", "NNNNN", "GATTACA"]


def kmers_by_hand(text, k):
    found = []
    for i in range(len(text) - k + 1):
        if set(text[i : i + k]) <= set("ACGT"):
            found.append(sum("ACGT".index(c) * 4 ** (k - 1 - j) for j, c in enumerate(text[i : i + k])))
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_kmers_are_all_of_them(k):
    found = kmers_of(TEXTS, k)
    ours = [one.tolist() for one in found.numbers.split(found.sizes.tolist())]
    assert ours == [kmers_by_hand(text, k) for text in TEXTS]
    left = torch.arange(len(found.numbers)) % 3 > 0
    thinned = found.without(left)
    parts = zip(found.numbers.split(found.sizes.tolist()), left.split(found.sizes.tolist()), strict=True)
    assert [one.tolist() for one in thinned.numbers.split(thinned.sizes.tolist())] == [
        one[m].tolist() for one, m in parts
    ]


def test_vectors_are_the_formula():
    torch.manual_seed(0)
    whole = SequenceNetwork((2, 3), 8, 3, 2).double()
    network = whole.projection
    read = network.read(TEXTS)
    found, normalised = network(read), whole.vectors(read)
    for text, ours in zip(TEXTS, found, strict=True):
        total, number = torch.zeros(8, dtype=torch.float64), 0
        for k, table in zip((2, 3), network.tables, strict=True):
            for word in kmers_by_hand(text, k):
                total, number = total + table.weight[word], number + 1
        assert (ours - total / max(number, 1) ** 0.5).abs().max() < 1e-12
    for part in (slice(0, 4), slice(4, 8)):
        assert (normalised[:, part] - F.layer_norm(found[:, part], (4,))).abs().max() < 1e-12


def test_the_strand_table_tells_strands():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACGT"), 50, p=[0.4, 0.3, 0.2, 0.1])) for _ in range(30)]
    turned = [t[::-1].translate(str.maketrans("ACGT", "TGCA")) for t in texts]
    table = strand_table(texts, turned, 3)
    assert all(table[kmers_of([t], 3).numbers].sum() > 0 for t in texts)
    assert torch.allclose(table, -strand_table(turned, texts, 3))


def test_replicates_are_of_their_profile():
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


def network(taxa=7, width=6, members=2):
    torch.manual_seed(1)
    alone = SequenceNetwork((2,), width, taxa, members).double()
    torch.nn.init.uniform_(alone.log_scale)
    return alone


def test_logits_are_scaled_cosines():
    alone = network()
    vectors = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.zeros(3, 7, dtype=torch.float64)
    for i, taxon in np.ndindex(3, 7):
        for m, part in enumerate([slice(0, 3), slice(3, 6)]):
            one, other = vectors[i, part], alone.prototypes[taxon, m]
            expected[i, taxon] += alone.log_scale[m].exp() * one @ other / (one.norm() * other.norm()) / 2
    assert (alone.logits(vectors, alone.directions()) - expected).abs().max() < 1e-12
    assert (alone.logits(vectors, alone.directions(slice(2, 5))) - expected[:, 2:5]).abs().max() < 1e-12


def test_members_learn_for_themselves():
    alone = network()
    rng = np.random.default_rng(3)
    vectors = alone.vectors(alone.projection.read(["".join(rng.choice(list("ACGT"), 17)) for _ in range(11)]))
    taxa = torch.arange(11) % 7

    def loss(logits):
        return torch.nn.functional.cross_entropy(logits, taxa)

    both = alone.logits_of_members(vectors)
    assert (both.mean(0) - alone.logits(vectors, alone.directions())).abs().max() < 1e-12
    ours = torch.autograd.grad(loss(both[0]) + loss(both[1]), alone.prototypes, retain_graph=True)[0]
    for m, part in enumerate([slice(0, 3), slice(3, 6)]):
        single = SequenceNetwork((2,), 3, 7).double()
        single.prototypes.data = alone.prototypes.data[:, m : m + 1].clone()
        single.log_scale.data = alone.log_scale.data[m : m + 1].clone()
        expected = torch.autograd.grad(loss(single.logits(vectors[:, part], single.directions())), single.prototypes)[0]
        assert (ours[:, m : m + 1] - expected).abs().max() < 1e-12
        # Nor does what makes another's part of the vectors.
        slope = torch.autograd.grad(loss(both[m]), alone.projection.tables[0].weight, retain_graph=True)[0]
        assert slope[:, part].abs().max() > 1e-3
        assert slope[:, 3 - part.start : 6 - part.start].abs().max() == 0


def of_taxa(seed=0, taxa=5, each=3, length=90):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("ACGT"), length, p=rng.dirichlet(np.ones(4)))) for _ in range(taxa * each)]
    texts[4] = texts[4][:40] + "N" + texts[4][41:]
    sequence = np.concatenate([np.arange(len(texts)), [0]])  # the first is of two taxa
    taxon = np.concatenate([np.arange(len(texts)) % taxa, [3]])
    order = rng.permutation(len(sequence))
    return texts, sequence[order], taxon[order]


def slow_scores(read, texts, sequence, taxon, taxa):
    """Word by word, from the definition."""
    scores = []
    for t in range(taxa):
        seen = [w for s, of in zip(sequence, taxon, strict=True) if of == t for w in kmers_by_hand(texts[s], 7)]
        words = kmers_by_hand(read, 7)
        logs = [np.log((seen.count(w) + 0.001) / (len(seen) + 0.001 * 4**7)) for w in words]
        scores.append(sum(logs) / len(words) ** 0.5 if seen else -1e3 * len(words) ** 0.5)
    return scores


@pytest.mark.parametrize("counted", [1 << 22, 100])
def test_naive_bayes_is_the_formula(counted, monkeypatch):
    monkeypatch.setattr("omniset.microbiomes.naive_bayes.COUNTED", counted)
    parts = of_taxa()
    likelihood = KmerLikelihood.of(*parts, 7)  # two taxa without references
    reads = [parts[0][0][10:71], parts[0][7][:40] + parts[0][8][40:], "ACGTNNACGTACGTA"]
    expected = np.array([slow_scores(read, *parts, 7) for read in reads])
    for room, block in ((1 << 28, 256), (1 << 28, 2), (3 * 4**7, 2)):
        monkeypatch.setattr("omniset.microbiomes.naive_bayes.BLOCK", block)
        tables = [*likelihood.tables(room)]
        found = torch.cat([table.scores(kmers_of(reads, 7)) for table in tables], 1)
        assert np.abs(found.numpy() - expected).max() < 1e-4 * np.abs(expected).max()
        assert found.argmax(1).tolist() == expected.argmax(1).tolist()
    assert [(table.first, table.last) for table in tables] == [(0, 3), (3, 6), (6, 7)]


def test_candidates_are_the_best_of_all_taxa(monkeypatch):
    """However many taxa are looked at a time."""
    monkeypatch.setattr("omniset.microbiomes.model.CANDIDATES", 3)
    texts, sequence, taxon = of_taxa(taxa=11, each=2)
    torch.manual_seed(0)
    alone = SequenceNetwork((3,), 4, 11)
    model = TaxonNetwork(alone, KmerLikelihood.of(texts, sequence, taxon, 11))
    reads = [text[5:70] for text in texts[:7]]
    with torch.no_grad():
        logits = alone(alone.projection.read(reads)).numpy()
    words = next(model.likelihood.tables()).scores(kmers_of(reads, 7)).numpy()
    both = 0.3 * words + 0.3 * logits
    for room in (1 << 28, 4 * 4**7, 1):
        found = candidates_of(model, reads, room=room)
        assert [set(row) for row in found.taxon.tolist()] == [set(row) for row in np.argsort(-both, 1)[:, :3].tolist()]
        for values, table in (
            (found.naive_bayes, words),
            (found.network, logits),
            (found.logits(np.array([0.3, 0.3])), both),
        ):
            assert np.allclose(values, np.take_along_axis(table, found.taxon, 1), atol=1e-5)
    likeness = np.stack(
        [found.naive_bayes.max(1) / np.sqrt([len(kmers_by_hand(read, 7)) for read in reads]), found.network.max(1)], 1
    )
    assert np.allclose(found.likeness, likeness)
    less = found.without(found.taxon[:, 1])
    assert np.allclose(less.likeness[:, 1], found.network[:, [0, 2]].max(1))


def sample(seed=0, members=11, candidates=5, taxa=7):
    rng = np.random.default_rng(seed)
    taxon = np.stack([rng.permutation(taxa)[:candidates] for _ in range(members)])
    return taxon, rng.normal(size=taxon.shape), rng.integers(0, 5, members).astype(float)


def slow_shares(taxon, logits, reads, taxa, strength, rounds, mean):
    """Read by read."""
    share = mean
    for _ in range(rounds):
        counts = np.zeros(taxa)
        for row, values, number in zip(taxon, logits, reads, strict=True):
            for _ in range(int(number)):
                posterior = np.exp(values) * share[row]
                counts[row] += posterior / posterior.sum()
        share = (counts / reads.sum() + strength * mean) / (1 + strength)
    return share


def test_shares_are_the_formula_for_multisets():
    taxon, logits, reads = sample()
    expected = slow_shares(taxon, logits, reads, 7, 0.4, 6, np.full(7, 1 / 7))
    found = Prior(0.4).log_shares(taxon, logits, reads, 7, 6)
    assert np.abs(np.exp(found) - expected).max() < 1e-12
    order = np.random.default_rng(1).permutation(11)
    permuted = Prior(0.4).log_shares(taxon[order], logits[order], reads[order], 7, 6)
    assert np.abs(permuted - found).max() < 1e-12
    repeated = [np.repeat(values, reads.astype(int), axis=0) for values in (taxon, logits)]
    repeated = Prior(0.4).log_shares(*repeated, np.ones(int(reads.sum())), 7, 6)
    assert np.abs(repeated - found).max() < 1e-12


def test_pieces_of_a_sample_give_the_shares_of_the_whole(monkeypatch):
    taxon, logits, reads = sample()
    profiles = np.random.default_rng(2).dirichlet(np.ones(7), 3)
    whole = Prior(0.4, 2.0, profiles).log_shares(taxon, logits, reads, 7)
    for size in (1, 4, 11):
        monkeypatch.setattr("omniset.microbiomes.abundances.TOGETHER", size)
        assert np.abs(Prior(0.4, 2.0, profiles).log_shares(taxon, logits, reads, 7) - whole).max() < 1e-12


def test_shares_have_the_largest_posterior():
    """After many rounds its gradient is the same for all taxa: no share could be moved from one to another."""
    taxon, logits, reads = sample()
    share = np.exp(Prior(0.4).log_shares(taxon, logits, reads, 7, 5000))
    assert abs(share.sum() - 1) < 1e-9
    likelihood = np.zeros((11, 7))
    np.put_along_axis(likelihood, taxon, np.exp(logits), 1)
    gradient = (reads[:, None] * likelihood / (likelihood @ share)[:, None]).sum(0)
    gradient += 0.4 * reads.sum() / 7 / share
    assert np.abs(gradient / (reads.sum() * 1.4) - 1).max() < 1e-6


def test_a_sample_of_a_profile_is_told():
    """Profiles are mixed as makes the sample most probable; of a sample unlike all, the uniform one takes over."""
    profiles = np.array([[0.7, 0.3, 0, 0, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0, 0]])
    taxon = np.tile(np.arange(7), (3, 1))
    clear = np.full((3, 7), -20.0)
    clear[0, 0], clear[1, 1] = 0, 0
    unclear = np.array([0.0, -20, 0, 0, 0, -20, -20])  # of taxa 0, 2 and 3 alike
    reads = np.array([70.0, 30, 1])
    share = np.exp(Prior(0.5, 3.0, profiles).log_shares(taxon, np.stack([clear[0], clear[1], unclear]), reads, 7, 50))
    assert share[0] > 0.6
    assert share[[2, 3]].max() < 0.01
    other = np.full((1, 7), -20.0)
    other[0, 6] = 0
    share = np.exp(Prior(0.5, 3.0, profiles).log_shares(taxon[:1], other, np.ones(1), 7, 50))
    assert np.allclose(share[:6], 0.5 / 7 / 1.5, atol=1e-6)
    assert abs(share[6] - (1 + 0.5 / 7) / 1.5) < 1e-6


def slow_left_out(prior, taxon, logits, reads, taxa, rounds):
    """Each sequence by what the others' reads, shared out as all of them say, make of the shares."""
    shares = prior._shares(taxon, np.exp(logits), reads, taxa, rounds)
    posterior = np.exp(logits) * shares.share[taxon]
    posterior /= posterior.sum(1, keepdims=True)
    total = 0.0
    for i in range(len(taxon)):
        counts = np.zeros(taxa)
        for j in range(len(taxon)):
            if j != i:
                counts[taxon[j]] += reads[j] * posterior[j]
        share = (counts / (reads.sum() - reads[i]) + shares.expected) / (1 + shares.expected.sum())
        total += reads[i] * np.log(np.exp(logits[i]) @ share[taxon[i]])
    return total


def test_profiles_of_another_habitat_are_left_out():
    rng = np.random.default_rng(5)
    taxon, logits, reads = sample(seed=1, members=31)
    logits = logits - logits.max(1, keepdims=True)
    reads[:2] = 40, 3
    profiles = rng.dirichlet(np.full(7, 0.2), 3)
    told, untold = Prior(0.4, 5.0, profiles), Prior(0.4)
    for prior in (told, untold):
        # By the shares of the round before counts were made: many rounds, after which these are the same.
        shares = prior._shares(taxon, np.exp(logits), reads, 7, 3000)
        found = shares.left_out(taxon, np.exp(logits), reads)
        assert abs(found - slow_left_out(prior, taxon, logits, reads, 7, 3000)) < 1e-6
    verdicts = set()
    for turn in range(40):
        own = profiles[0] if turn % 2 else rng.dirichlet(np.full(7, 0.2))
        truth = rng.choice(7, 31, p=own)
        logits = rng.normal(size=taxon.shape) + 2.0 * (taxon == truth[:, None])
        logits -= logits.max(1, keepdims=True)
        given = taxon, np.exp(logits), reads
        shares = [prior._shares(*given, 7, 10) for prior in (told, untold)]
        better = shares[0].left_out(*given) > shares[1].left_out(*given)
        expected = np.log(np.maximum(shares[0 if better else 1].share, 1e-300))
        found = told.log_shares(taxon, logits, reads, 7)
        assert np.array_equal(found, expected)
        order = rng.permutation(31)
        assert np.abs(told.log_shares(taxon[order], logits[order], reads[order], 7) - found).max() < 1e-9
        verdicts.add((turn % 2, better))
    assert {(1, True), (0, False)} <= verdicts


def test_what_a_sample_does_not_tell_changes_nothing():
    taxon, logits, reads = sample()
    assert np.ptp(Prior(0.4).log_shares(taxon, logits, 0 * reads, 7)) < 1e-12
    assert np.ptp(Prior(0.4).log_shares(taxon[:0], logits[:0], reads[:0], 7)) < 1e-12
    assert np.ptp(Prior(1e12).log_shares(taxon, logits, reads, 7)) < 1e-9


def kept_back(seed=0, sequences=40, taxa=7):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, taxa, sequences)
    right = np.arange(taxa) == truth[:, None]
    words = (3 * right + rng.normal(size=right.shape)).astype(np.float32)
    scores = (2 * right + 2 * rng.normal(size=right.shape)).astype(np.float32)
    taxon = np.tile(np.arange(taxa), (sequences, 1))
    return Candidates(taxon, words, scores, np.full(sequences, 100.0)), truth


def test_weights_are_those_of_the_least_loss():
    candidates, truth = kept_back()
    candidates.naive_bayes[0] = 0  # one that is not among its candidates counts for nothing
    candidates.taxon[0] = (truth[0] + 1) % 7

    def loss(weights):
        parts = (candidates.naive_bayes, candidates.network)
        logits = sum(w * torch.from_numpy(part).double() for w, part in zip(weights, parts, strict=True))
        return F.cross_entropy(logits[1:], torch.from_numpy(truth[1:]))

    weights = torch.tensor(weights_of(candidates, truth), requires_grad=True)
    assert weights.min() > 0.1
    assert torch.autograd.grad(loss(weights), weights)[0].abs().max() < 1e-3
    alone = torch.tensor(weights_of(candidates, truth, (True, False)), requires_grad=True)
    assert alone[1] == 0
    assert torch.autograd.grad(loss(alone), alone)[0][0].abs() < 1e-3
    candidates.network[:] = -candidates.network  # what speaks against the truth is not listened to
    assert weights_of(candidates, truth)[1] == 0


def test_the_sample_has_a_say_where_more_reads_are_right():
    """Counted read by read: unless fewer are, by a standard error; and a part where more are."""
    candidates, truth = kept_back()
    samples = [KeptBack(candidates, truth, np.array(w), 7, None, 3) for w in ((0.3, 0.1), (0.3, 0), (0, 0.1))]

    def right(one, prior, more=1):
        shares = []
        for rows, reads, _ in one:
            logits = more * candidates.of(rows).logits(one.weights)
            called = (logits + prior.log_shares(candidates.taxon[rows], logits, reads, 7)).argmax(1)
            shares.append(sum(k for k, c, t in zip(reads, called, truth[rows], strict=True) if c == t) / sum(reads))
        return np.array(shares)

    def first_of(first, others, errors):
        best = max(others, key=lambda shares: shares.mean())
        gains = best - first
        return best if gains.mean() > errors * gains.std(ddof=1) / len(gains) ** 0.5 else first

    forms = [(k, more) for more in (1, 2, 4) for k in (0.1, 0.3, 1.0)]
    each = [first_of(right(one, ALONE), [right(one, Prior(k), more) for k, more in forms], -1) for one in samples]
    found = choose(samples)
    assert np.allclose(found.right, first_of(each[0], each[1:], 1))
    assert choose(samples, context=False).prior is ALONE


def test_naive_bayes_beside_the_choice_is_what_it_calls_by_itself():
    candidates, truth = kept_back()
    choice = Choice(KeptBack(candidates, truth, np.array([0.0, 0.1]), 7, None, 3), Prior(0.3))
    shares = []
    for rows, reads, _ in choice.samples:
        called = candidates.taxon[rows, candidates.naive_bayes[rows].argmax(1)]
        shares.append(sum(k for k, c, t in zip(reads, called, truth[rows], strict=True) if c == t) / sum(reads))
    compared = calibration._compared(choice, "genus")
    values = compared.table("right", calibration.KEPT)["value"]
    assert values["omniset"] == pytest.approx(choice.right.mean())
    assert values[calibration.NAIVE_BAYES] == pytest.approx(np.mean(shares))
    assert np.mean(shares) != pytest.approx(choice.right.mean(), abs=0.01)
    assert "share of reads whose genus is right 0." in compared.verdict()


def test_a_sample_that_overrules_its_reads_is_not_asked(monkeypatch):
    """Scores that are not sharp, of taxa one sequence each: frequent taxa would take the reads of all others."""
    truth = np.arange(30)
    taxon = np.tile(truth, (30, 1))
    words = (2.0 * np.eye(30)).astype(np.float32)
    candidates = Candidates(taxon, words, np.zeros_like(words), np.full(30, 100.0))
    samples = [KeptBack(candidates, truth, np.array([1.0, 0.0]), 30, None, 0)]
    assert Choice(samples[0], Prior(0.1)).right.mean() < 0.8
    assert choose(samples).right.mean() == 1.0
    assert choose(samples).prior is not ALONE  # where nothing is lost the sample has a say
    monkeypatch.setattr("omniset.microbiomes.calibration.SHARPER", (1.0,))
    assert choose(samples).prior is ALONE


def test_a_part_that_beats_the_sum_is_taken_alone():
    candidates, truth = kept_back(sequences=300)
    candidates.network[:] = np.random.default_rng(1).normal(scale=9, size=candidates.network.shape)
    samples = [KeptBack(candidates, truth, np.array(w), 7, None, 0) for w in ((1.0, 1.0), (1.0, 0), (0, 1.0))]
    assert choose(samples).samples.weights[1] == 0


LINEAGES = [("d", "f1", "a"), ("d", "f1", "b"), ("d", "f2", "c"), ("e", "f3", "g")]


def test_odds_of_clades_are_those_of_sums():
    taxa = Taxa.of(LINEAGES)
    rng = np.random.default_rng(0)
    numbers = np.stack([rng.permutation(4)[:3] for _ in range(20)])
    logits = 4 * rng.normal(size=(20, 3))
    taxon, odds = most_probable(numbers, logits, taxa.clade)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for row in range(20):
        best = int(numbers[row, p[row].argmax()])
        assert int(taxon[row]) == best
        for rank in range(3):
            alike = [LINEAGES[t][: rank + 1] == LINEAGES[best][: rank + 1] for t in numbers[row]]
            inside, outside = p[row, alike].sum(), p[row, np.logical_not(alike)].sum()
            by_hand = 16 if outside == 0 else np.log(inside / outside)
            assert abs(float(odds[row, rank]) - np.clip(by_hand, -16, 16)) < 1e-9


def test_confidences_are_calibrated_and_never_rise():
    rng = np.random.default_rng(0)
    odds = np.sort(rng.normal(size=(3000, 2)), axis=1)[:, ::-1].copy()
    likeness = rng.random((3000, 2))
    truth = 1 / (1 + np.exp(-(1.5 * odds + (likeness @ [4, 2])[:, None] - 3)))
    right, weight = (rng.random((3000, 2)) < truth).astype(float), rng.integers(1, 9, 3000).astype(float)
    found = Confidence.fit(odds, likeness, right, weight)
    assert np.abs(found.weights - [1.5, 4, 2, -3]).max() < 0.7
    mine = odds * found.weights[:, 0] + likeness @ found.weights[:, 1:3].T
    said = 1 / (1 + np.exp(-mine - found.weights[:, 3]))
    # The property of a logistic regression with an intercept: on the whole it is as often right as it says.
    assert np.abs(np.average(said - right, axis=0, weights=weight)).max() < 1e-3
    assert np.allclose(found.of(odds, likeness), np.minimum.accumulate(said, axis=1))
    assert np.allclose(Confidence().of(odds, likeness), 1 / (1 + np.exp(-odds)))


def test_what_is_like_nothing_is_never_the_surer_for_it():
    rng = np.random.default_rng(0)
    odds, likeness = rng.normal(size=(500, 1)), rng.random((500, 2))
    chance = (1.2 - likeness[:, :1]) / (1 + np.exp(-odds)) * (0.2 + 0.8 * likeness[:, 1:])
    right = (rng.random((500, 1)) < chance).astype(float)
    weights = Confidence.fit(odds, likeness, right, np.ones(500)).weights[0]
    assert weights[1] == 0
    assert weights[[0, 2]].min() > 0.2
    assert Confidence.fit(odds, likeness, np.ones((500, 1)), np.ones(500)).weights.tolist() == [[0, 0, 0, 6]]


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
    method = NaiveBayes("sample")
    method.taxa, method.table = 4, logits
    assert np.abs(method.logits(np.arange(9), reads) - logits - np.log(share)).max() < 1e-12


def test_baselines_name_what_they_know():
    rng = np.random.default_rng(0)
    roots = ["".join(rng.choice(list("ACGT"), 80)) for _ in range(3)]
    texts = [root[:i] + "A" + root[i + 1 :] for root in roots for i in (10, 30, 50)]
    references = References(texts, np.arange(9), np.repeat([0, 1, 3], 3), 4)
    for method in (NaiveBayes(), NaiveBayes("community"), NaiveBayes("sample"), Nearest()):
        method.fit(references, np.arange(9), np.array([[0.5, 0.2, 0.1, 0.2]]), Taxa.of(LINEAGES))
        method.read([root[:70] for root in roots])
        rows, reads = np.array([2, 0, 1]), np.array([1.0, 5.0, 2.0])
        logits = method.logits(rows, reads)
        assert (logits[:, 2] < logits.max(1) - 0.1).all()
        called, sure = method.call(rows, reads)
        assert called.tolist() == [3, 0, 1]
        assert (sure > 0.5).all()


def test_every_taxon_keeps_a_reference():
    taxon = np.array([0, 0, 1, 2, 2, 2, 2, 2])
    references = References([str(i) for i in range(7)], np.array([0, 1, 1, 2, 3, 4, 5, 6]), taxon, 3)
    sizes = set()
    for seed in range(30):
        kept = held_out(references, 0.5, np.random.default_rng(seed))
        assert set(taxon[~kept[references.sequence]]) == {0, 1, 2}
        sizes.add(int(kept.sum()))
    assert max(sizes) == 4
