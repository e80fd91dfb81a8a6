"""Clades, splits, noise drawn in training, and the training loop."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from genome_oracle import genomes_of, jaccard, some_counts, suite_of, table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from omniset.genomes import training
from omniset.genomes.noise import Observed, Recovery, cross_entropy
from omniset.genomes.training import (
    CURRICULUM,
    HIDDEN,
    Clades,
    GenomeBatches,
    GenomeModule,
    Genomes,
    drawn_quality,
    lesson,
    split,
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
    # The order of the table is not that of the taxonomy.
    clades = Clades.of_taxonomy(taxonomy, [names[i] for i in (3, 0, 4, 2, 1)], "family")
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
    tree = linkage([1 - jaccard(a, b) for a, b in itertools.combinations(counts, 2)], "average")
    for column, cut in ((0, 0.5), (1, 0.35)):
        expected = fcluster(tree, cut, "distance")
        assert 1 < len(set(expected)) < 23
        assert same_partition(clades.codes[:, column], expected)
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
        assert np.abs(np.array([len(part) for part in parts]) / 633 - [0.7, 0.2, 0.1]).max() < 0.05
    assert len({tuple(test) for _, test, _ in drawn}) == 3
    # A group that is too large for a part goes to the rest.
    rest, test = split(np.array([0] * 90 + [1] * 10), (0.1,), np.random.default_rng(0))
    assert (len(rest), test.tolist()) == (90, [*range(90, 100)])


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


def test_a_donor_is_never_of_the_own_clade():
    genomes = genomes_of(number=53, clades=11)
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
def test_noise_is_drawn_anew_each_epoch_and_repeats(curriculum):
    genomes = genomes_of()
    one, two, other = (GenomeBatches(genomes, seed, 9, curriculum) for seed in (5, 5, 6))
    epochs = [[item(one, epoch, i) for i in genomes.train] for epoch in range(4)]
    assert all(same(a, item(two, 2, i)) for a, i in zip(epochs[2], genomes.train, strict=True))

    def distinct(rows):
        return len({tuple(r[0].tolist()) for r in rows})

    assert all(distinct(of_genome) > 1 for of_genome in zip(*epochs, strict=True))
    assert distinct([item(other, 0, i) for i in genomes.train] + epochs[0]) > 1.5 * len(genomes.train)
    for e, i in zip(epochs[0], genomes.train, strict=True):
        assert (e[4] == (genomes.row(int(i)) > 0)).all()  # the truth is the complete genome
    kept_back = [[item(one, epoch, i, training=False) for i in genomes.validation] for epoch in (0, 1, 8)]
    assert all(same(a, b) for later in kept_back[1:] for a, b in zip(later, kept_back[0], strict=True))
    assert not all(same(item(one, 0, i), a) for i, a in zip(genomes.validation, kept_back[0], strict=True))


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
    genomes = genomes_of(number=53, clades=11, references=np.arange(0, 50, 2))
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


@pytest.mark.parametrize("itself", [None, np.linspace(0.5, 1.0, 29)], ids=["complete", "incomplete"])
def test_a_step_takes_the_likelihood_weighted_by_genomes(itself):
    suite, weights = suite_of(["pca"]), torch.tensor([1.0, 0.5, 3.0, 0.0, 0.5]).double()
    module = GenomeModule(suite["pca"], 1e-3, 0.0, 0, {})
    logged = {}
    module.log = lambda name, value, **_: logged.update({name: value})
    observed, truth, _, told = next(iter(lesson(genomes_of(itself), 5, 1, 0).loader(True)))
    observed = Observed(*(v.double() for v in (observed.counts, observed.completeness, observed.contamination)))
    m = 0.0
    if itself is not None:
        told = Recovery(told.itself.double(), told.completeness.double(), told.contamination.double())
        m = suite.noise.hidden(observed.present, told).numpy()
    found = module.training_step((observed, truth.double(), weights, told), 0)
    p = torch.sigmoid(suite["pca"](observed)).detach().numpy()
    each = -np.where(truth.numpy() > 0, np.log(p), np.log(1 - p * (1 - m))).mean(1)
    assert found.item() == pytest.approx((weights.numpy() * each).mean(), rel=1e-9)
    assert list(logged) == ["train_loss"]
    module.validation_step((observed, truth.double(), weights, told), 0)
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
    # 12 epochs of 25 genomes, 5 at a time: 60 steps, of which it rises for 3.
    expected = [1e-2 * min((s + 1) / 3, 0.5 * (1 + math.cos(math.pi * s / 60))) for s in range(60)]
    assert rates == pytest.approx(expected, rel=1e-9)
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


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_prevalence_is_that_of_the_training_genomes(at_once, monkeypatch):
    """However many genomes are counted at a time; of a family that none has it is 0."""
    monkeypatch.setattr(training, "AT_ONCE", at_once)
    genomes = genomes_of()
    counts, train = genomes.counts.toarray(), genomes.train
    np.testing.assert_array_equal(genomes.prevalence, (counts[train] > 0).mean(0))
    np.testing.assert_array_equal(genomes.training_counts.toarray(), counts[train])
    assert not replace(genomes, train=train[:0]).prevalence.any()


def test_a_table_is_copied_only_where_genomes_are_kept_back():
    """Its indices have 32 bits, also after a choice of rows."""
    counts = table().counts
    everything = Genomes(counts, codes_of(np.arange(24)), np.arange(24), np.arange(0))
    assert everything.training_counts is counts
    assert {counts.indices.dtype, counts.indptr.dtype, counts[np.arange(7)].indices.dtype} == {np.dtype(np.int32)}
