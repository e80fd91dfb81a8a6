"""Clades, splits, noise drawn in training, and the training loop."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import FRAME, SMALL, TAXONOMY, jaccard, some_counts, suite_of
from hypothesis import given, settings
from hypothesis import strategies as st

from omniset.genomes import GenomeCompleter, GenomeTable, training
from omniset.genomes.noise import cross_entropy
from omniset.genomes.training import (
    CURRICULUM,
    ERROR,
    HIDDEN,
    Clades,
    GenomeBatches,
    GenomeModule,
    Genomes,
    drawn_quality,
    lesson,
    split,
    stated_quality,
    train,
)

SIGMAS = 4.5
TRAINING = {
    **{"batch_size": 5, "learning_rate": 1e-2, "weight_decay": 0.0, "patience": None, "seed": 3},
    **{"device": "cpu", "progress": False, "folder": None, "resume": False, "fingerprint": {}},
}


def codes_of(groups, above=None):
    groups = np.asarray(groups)
    return Clades(np.stack([groups // 2 if above is None else np.asarray(above), groups, np.arange(len(groups))], 1))


def genomes_of(number=29, clades=7, references=None):
    counts = some_counts(number, clades=clades)
    groups = np.arange(number) % clades
    train_rows, validation = np.flatnonzero(groups < clades - 1), np.flatnonzero(groups == clades - 1)
    chosen = train_rows if references is None else references
    return Genomes(sp.csr_array(counts), codes_of(groups), train_rows, validation, chosen)


# ---------------------------------------------------------------------- clades


def taxonomy_of(**ranks):
    names = [f"g{i}" for i in range(len(next(iter(ranks.values()))))]
    return pd.DataFrame(ranks, index=pd.Index(names, name="genome")), names


def same_partition(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return ((a[:, None] == a) == (b[:, None] == b)).all()


def test_clades_of_a_taxonomy():
    taxonomy, names = taxonomy_of(
        phylum=["p", "p", "p", "q", "q"], order=["a", "a", "b", "c", "c"], family=["x", "y", "z", "w", "w"]
    )
    order = [3, 0, 4, 2, 1]  # of the table, which is not that of the taxonomy
    clades = Clades.of_taxonomy(taxonomy, [names[i] for i in order], "family")
    assert clades.given
    assert same_partition(clades.groups, ["w", "x", "w", "z", "y"])
    assert same_partition(clades.codes[:, 0], ["c", "a", "c", "b", "a"])
    assert clades.codes[:, 2].tolist() == [0, 1, 2, 3, 4]
    higher = Clades.of_taxonomy(taxonomy, names, "order")
    assert same_partition(higher.codes[:, 0], ["p", "p", "p", "q", "q"])
    highest = Clades.of_taxonomy(taxonomy, names, "phylum")  # there is none above
    assert (highest.codes[:, 0] == highest.codes[:, 1]).all()


def test_genomes_without_a_clade_are_each_their_own():
    taxonomy, names = taxonomy_of(order=["a", "a", None, "b", "b"], family=["x", None, "", "x2", "x2"])
    with pytest.warns(UserWarning, match="taxonomy: 3 of 6 genomes have no family, such as 'g1'.*clade of its own"):
        clades = Clades.of_taxonomy(taxonomy, [*names, "nobody"], "family")
    assert same_partition(clades.groups, [0, 1, 2, 3, 3, 4])
    assert same_partition(clades.codes[:, 0], [0, 0, 1, 2, 2, 3])


def test_ranks_that_the_taxonomy_lacks():
    taxonomy, names = taxonomy_of(order=["a", "a", "b"], family=["x", "y", "z"], genus=["", None, ""])
    for rank in ("genus", "class"):
        with pytest.raises(ValueError, match=f"a rank that the taxonomy has, order, family; got '{rank}'"):
            Clades.of_taxonomy(taxonomy, names, rank)
    with pytest.raises(ValueError, match=r"family for none of the 2 genomes.* such as 'g0', the genomes' such as 'G1'"):
        Clades.of_taxonomy(taxonomy, ["G1", "G2"], "family")


def test_clades_of_similarity_are_average_linkage():
    """Two clusters are merged while the mean Jaccard distance between their members is at most the cut."""
    rng = np.random.default_rng(0)
    counts = (rng.random((5, 61)) < 0.5)[np.arange(23) % 5] ^ (rng.random((23, 61)) < rng.uniform(0.02, 0.3, (23, 1)))
    clades = Clades.of_similarity(sp.csr_array(counts * rng.integers(1, 4, counts.shape)))
    assert not clades.given
    distance = np.array([[1 - jaccard(a, b) for b in counts] for a in counts])
    for column, cut in ((0, 0.5), (1, 0.35)):
        clusters = [[i] for i in range(23)]
        while len(clusters) > 1:
            pairs = [
                (distance[np.ix_(a, b)].mean(), i, j)
                for i, a in enumerate(clusters)
                for j, b in enumerate(clusters[:i])
            ]
            least, i, j = min(pairs)
            if least > cut:
                break
            clusters[j] += clusters.pop(i)
        found = np.zeros(23, dtype=int)
        for number, members in enumerate(clusters):
            found[members] = number
        assert 1 < len(clusters) < 23
        assert same_partition(clades.codes[:, column], found)
    assert Clades.of_similarity(sp.csr_array(counts[:1].astype(int))).codes.tolist() == [[0, 0, 0]]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=23),
    fractions=st.sampled_from([(0.1,), (0.2, 0.1), (0.3, 0.3, 0.3)]),
    seed=st.integers(0, 9),
)
def test_split_never_divides_a_group(sizes, fractions, seed):
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    parts = split(groups, fractions, np.random.default_rng(seed))
    assert len(parts) == len(fractions) + 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
    in_parts = [set(groups[part].tolist()) for part in parts]
    assert sum(map(len, in_parts)) == len(sizes)
    for part, fraction in zip(parts[1:], fractions, strict=True):
        assert len(part) <= (fraction + 0.02) * len(groups)
    again = split(groups, fractions, np.random.default_rng(seed))
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


def test_split_fills_its_parts():
    groups = np.repeat(np.arange(211), 3)
    drawn = [split(groups, (0.2, 0.1), np.random.default_rng(seed)) for seed in range(3)]
    for parts in drawn:
        shares = np.array([len(part) for part in parts]) / 633
        assert (np.abs(shares - [0.7, 0.2, 0.1]) < [0.05, 0.03, 0.03]).all()
    assert len({tuple(test) for _, test, _ in drawn}) == 3
    # A group that is too large for a part goes to the rest.
    rest, test = split(np.array([0] * 90 + [1] * 10), (0.1,), np.random.default_rng(0))
    assert test.tolist() == list(range(90, 100))
    assert len(rest) == 90


# ---------------------------------------------------------------------- what is drawn


def test_quality_of_the_draws(monkeypatch):
    monkeypatch.setattr(training, "COMPLETENESS", (0.4, 0.9))
    monkeypatch.setattr(training, "CONTAMINATION", (0.01, 0.2))
    rng = np.random.default_rng(0)
    drawn = np.array([drawn_quality(rng) for _ in range(4000)])
    c, q, c_told, q_told = drawn.T

    def share(of, expected):
        assert abs(of.mean() - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / len(of))

    share(c == 1, 0.2)
    share(q == 0, 0.4)
    for drawn, low, high in ((c[c < 1], 0.4, 0.9), (q[q > 0], 0.01, 0.2)):
        assert low <= drawn.min() <= drawn.max() <= high
    share(np.isnan(c_told), 0.2)
    assert (np.isnan(c_told) == np.isnan(q_told)).all()
    share((c_told == c) & (q_told == q), 0.4)


def test_what_is_told():
    rng = np.random.default_rng(0)
    assert stated_quality(0.7, 0.1, "known", rng) == (0.7, 0.1)
    assert np.isnan(stated_quality(0.7, 0.1, "unknown", rng)).all()
    estimates = np.array([stated_quality(0.7, 0.1, "estimated", rng) for _ in range(500)])
    assert np.ptp(estimates, 0).min() > 1.8 * ERROR
    assert np.abs(estimates - [0.7, 0.1]).max() <= ERROR
    bounded = np.array([stated_quality(1.0, 0.0, "estimated", rng) for _ in range(50)])
    assert bounded[:, 0].max() <= 1
    assert bounded[:, 1].min() >= 0


def test_a_donor_is_never_of_the_own_clade():
    genomes = genomes_of(53, clades=11)
    rng = np.random.default_rng(0)
    rows = [tuple(r) for r in genomes.counts.toarray().tolist()]
    assert len(set(rows)) == 53
    of = {r: i for i, r in enumerate(rows)}
    codes = genomes.clades.codes
    for i in range(53):  # of the genomes to train on and of others
        for near in (True, False):
            donors = {of[tuple(genomes.donor(i, near, rng).tolist())] for _ in range(15)}
            assert not donors & set(genomes.validation.tolist())
            assert all(codes[d, 1] != codes[i, 1] for d in donors)
            if near and ((codes[genomes.train, 0] == codes[i, 0]) & (codes[genomes.train, 1] != codes[i, 1])).any():
                assert all(codes[d, 0] == codes[i, 0] for d in donors)
            else:
                assert len(donors) > 5
    alone = Genomes(genomes.counts, codes_of(np.zeros(53, dtype=int)), genomes.train, genomes.validation)
    assert alone.donor(0, True, rng).shape == (41,)  # where there is no other clade


def item(data, epoch, i, training=True):
    return [np.asarray(v) for v in data.one((epoch, int(i)), training)]


def same(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("curriculum", [False, True])
def test_noise_of_training_is_drawn_anew_each_epoch_and_repeats(curriculum):
    genomes = genomes_of()
    one, two = (GenomeBatches(genomes, 5, 9, curriculum) for _ in range(2))
    other = GenomeBatches(genomes, 6, 9, curriculum)
    epochs = [[item(one, epoch, i) for i in genomes.train] for epoch in range(4)]
    assert all(same(a, item(two, 2, i)) for a, i in zip(epochs[2], genomes.train, strict=True))
    assert all(same(item(one, 2, i), item(one, 2, i)) for i in genomes.train[:3])

    def distinct(rows):
        return len({tuple(r[0].tolist()) for r in rows})

    for i in range(len(genomes.train)):
        assert distinct([e[i] for e in epochs]) > 1
    assert distinct([item(other, 0, i) for i in genomes.train] + epochs[0]) > 1.5 * len(genomes.train)
    for e, i in zip(epochs[0], genomes.train, strict=True):
        assert (e[4] == (genomes.row(int(i)) > 0)).all()  # the truth is the complete genome


@pytest.mark.parametrize("curriculum", [False, True])
def test_noise_of_validation_never_changes(curriculum):
    genomes = genomes_of()
    data = GenomeBatches(genomes, 5, 9, curriculum)
    for i in genomes.validation:
        first = item(data, 0, i, training=False)
        for epoch in (0, 1, 8):
            assert same(item(data, epoch, i, training=False), first)
    assert not all(same(item(data, 0, i), item(data, 0, i, training=False)) for i in genomes.validation)


def test_the_documents_curriculum():
    """Independent noise of families: (.10, .01), (.25, .02), (.50, .05) in the thirds of training."""
    counts = np.concatenate([np.ones((1, 5000), dtype=int), np.zeros((1, 5000), dtype=int)])
    genomes = Genomes(sp.csr_array(counts), codes_of([0, 1]), np.array([0, 1]), np.array([0]))
    data = GenomeBatches(genomes, 0, 9, curriculum=True)
    for epoch in range(9):
        for i, expected in enumerate(CURRICULUM[epoch // 3]):
            seen, c, q, *_ = item(data, epoch, i)
            flipped = (seen > 0) != (counts[i] > 0)
            assert abs(flipped.mean() - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / 5000)
            assert np.isnan([c, q]).all()


def test_what_is_hidden_from_the_references():
    """A training genome never sees itself; its clade, and the one above, at the shares that were set."""
    genomes = genomes_of(53, clades=11, references=np.arange(0, 50, 2))
    codes = genomes.clades.codes
    data = GenomeBatches(genomes, 0, 400)
    masks = codes[genomes.references] == codes[4]
    kinds = []
    for epoch in range(400):
        hidden = item(data, epoch, 4)[3]
        assert hidden[2]  # itself, the third of the references
        kinds.append(next(level for level in range(3) if (hidden == masks[:, level]).all()))
    shares = np.bincount(kinds, minlength=3) / 400
    assert (np.abs(shares - HIDDEN) < SIGMAS * np.sqrt(np.array(HIDDEN) * (1 - np.array(HIDDEN)) / 400)).all()
    assert masks[:, 0].sum() > masks[:, 1].sum() > masks[:, 2].sum() == 1
    for i in genomes.validation:
        expected = genomes.references == i
        assert (item(data, 0, i, training=False)[3] == expected).all()


def test_weights_of_genomes_of_large_clades():
    groups = np.array([0] * 9 + [1] * 4 + [2] + [3] * 3)
    genomes = Genomes(sp.csr_array(some_counts(17)), codes_of(groups), np.arange(14), np.arange(14, 17))
    weights = GenomeBatches(genomes, 0, 1).weights
    expected = np.array([1 / 3] * 9 + [1 / 2] * 4 + [1])
    assert np.allclose(weights[:14], expected / expected.mean())
    assert (weights[14:] == 1).all()


# ---------------------------------------------------------------------- the loss and the loop


def test_loss_of_extreme_log_odds():
    """A sigmoid first would have given infinite losses, or gradients of 0."""
    z = torch.tensor([[1e4, -1e4, 800.0, -800.0]], requires_grad=True)
    for truth, expected in (([1.0, 0.0, 1.0, 0.0], 0.0), ([0.0, 1.0, 0.0, 1.0], (2e4 + 1600) / 4)):
        z.grad = None
        found = cross_entropy(z, torch.tensor([truth])).mean(1)
        assert found.detach().tolist() == pytest.approx([expected])
        found.sum().backward()
        assert torch.allclose(z.grad[0], (torch.tensor([1.0, 0.0, 1.0, 0.0]) - torch.tensor(truth)) / 4)


def test_weights_of_genomes_weigh_the_loss():
    suite = suite_of(["pca"])
    module = GenomeModule(suite["pca"], 1e-3, 0.0, 0, {})
    logged = {}
    module.log = lambda name, value, **_: logged.update({name: value})
    genomes = genomes_of()
    observed, truth, _, none = next(iter(lesson(genomes, 5, 1, 0).loader(True)))
    observed.excluded, weights = None, torch.tensor([1.0, 0.5, 3.0, 0.0, 0.5])
    observed.counts = observed.counts.double()
    observed.completeness, observed.contamination = observed.completeness.double(), observed.contamination.double()
    found = module.training_step((observed, truth.double(), weights.double(), none), 0)
    p = torch.sigmoid(suite["pca"](observed)).detach().numpy()
    y = truth.numpy()
    each = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(1)
    assert found.item() == pytest.approx((weights.numpy() * each).mean(), rel=1e-9)
    assert list(logged) == ["train_loss"]
    module.validation_step((observed, truth.double(), weights.double(), none), 0)
    assert logged["val_loss"].item() == pytest.approx(found.item())


def small_method(name="pca", seed=0):
    counts = some_counts()
    return suite_of([name], counts, counts[np.arange(29) % 7 < 6], seed, random=False, double=False)[name]


def test_the_learning_rate_rises_and_falls(monkeypatch):
    rates, step = [], GenomeModule.training_step

    def watched(self, batch, index):
        rates.append(self.learning_rate * self.rate(self.global_step))
        return step(self, batch, index)

    monkeypatch.setattr(GenomeModule, "training_step", watched)
    train(small_method(), genomes_of(), epochs=12, **TRAINING)
    steps = 12 * 5  # 25 genomes, 5 at a time
    assert len(rates) == steps
    warm = steps // 20
    expected = [1e-2 * min((s + 1) / warm, 0.5 * (1 + math.cos(math.pi * s / steps))) for s in range(steps)]
    assert np.allclose(rates, expected, rtol=1e-9)
    assert rates[0] < rates[1] < rates[2]
    assert rates[-1] < 0.01 * max(rates)


def test_history_and_best_weights():
    method = small_method()
    history = train(method, genomes_of(), epochs=4, **TRAINING | {"patience": 9})
    assert [h["epoch"] for h in history] == [1, 2, 3, 4]
    batch = next(iter(lesson(genomes_of(), 5, 4, 3).loader(False)))
    assert not method.training
    with torch.no_grad():
        found = float(cross_entropy(method(batch[0]), batch[1]).mean())
    # what is left are the weights of the best epoch
    assert found == pytest.approx(min(h["val_loss"] for h in history), rel=1e-5)


def test_a_run_on_other_genomes_is_not_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "BATCH_SIZE", 10)
    completer = GenomeCompleter(**SMALL | {"epochs": 3})
    step, calls = GenomeModule.training_step, []

    def interrupted(self, batch, index):
        calls.append(1)
        if len(calls) == 4:  # in the second epoch of two steps
            raise KeyboardInterrupt
        return step(self, batch, index)

    monkeypatch.setattr(GenomeModule, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        completer.fit(FRAME, TAXONOMY, folder=tmp_path)
    with pytest.raises(ValueError, match="cannot be resumed: the sets"):
        completer.fit(FRAME + 1, TAXONOMY, folder=tmp_path, resume=True)


def test_methods_of_one_suite_are_trained_alike_whatever_was_trained_before():
    """What they share was left in evaluation mode by the one before; no weight of another is changed."""
    counts, genomes = some_counts(), genomes_of()
    both = suite_of(["evidence", "pca"], counts, counts[genomes.references], random=False, double=False)
    alone = copy.deepcopy(both)
    before = copy.deepcopy(alone["evidence"])
    for method in (both["evidence"], both["pca"], alone["pca"]):
        train(method, genomes, epochs=1, **TRAINING)

    def equal(one, other):
        return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))

    assert equal(alone["pca"], both["pca"])
    assert equal(alone["evidence"], before)
    assert not equal(both["evidence"], before)


# ---------------------------------------------------------------------- large tables


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_prevalence_is_that_of_the_training_genomes(at_once, monkeypatch):
    """However many genomes are counted at a time; of a family that none has it is 0."""
    monkeypatch.setattr(training, "AT_ONCE", at_once)
    counts = np.random.default_rng(0).integers(0, 3, (29, 13))
    counts[:, 5] = 0
    clades, train = Clades(np.arange(87).reshape(29, 3)), np.array([0, 3, 4, 11, 12, 13, 14, 15, 16, 28])
    genomes = Genomes(sp.csr_array(counts), clades, train, np.array([1, 2]))
    np.testing.assert_array_equal(genomes.prevalence, (counts[train] > 0).mean(0))
    np.testing.assert_array_equal(genomes.training_counts.toarray(), counts[train])
    assert not Genomes(sp.csr_array(counts), clades, train[:0], train).prevalence.any()


def test_a_table_is_copied_only_where_genomes_are_kept_back():
    """Its indices have 32 bits, also after a choice of rows."""
    frame = pd.DataFrame(np.random.default_rng(0).integers(0, 3, (29, 13)), columns=[f"F{i}" for i in range(13)])
    counts = GenomeTable.from_frame(frame).counts
    everything = Genomes(counts, Clades(np.arange(87).reshape(29, 3)), np.arange(29), np.arange(0))
    assert everything.training_counts is counts
    assert {counts.indices.dtype, counts.indptr.dtype, counts[np.arange(7)].indices.dtype} == {np.dtype(np.int32)}
