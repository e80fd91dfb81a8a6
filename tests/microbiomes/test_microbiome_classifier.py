"""The classifier: learns, calls, explains, is saved and resumed, on made-up sequences."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from conftest import FEW, FORWARD, REVERSE_TURNED, SMALL, changed

from omniset.microbiomes import Samples, TaxonClassifier
from omniset.microbiomes.assignments import warn_of_strangers
from omniset.microbiomes.calibration import weights_of
from omniset.microbiomes.model import TaxonNetwork, candidates_of
from omniset.microbiomes.naive_bayes import KmerLikelihood
from omniset.microbiomes.references import shares_of
from omniset.microbiomes.samples import sequences_of
from omniset.microbiomes.sequences import reverse_complement
from omniset.microbiomes.simulate import mutated
from omniset.microbiomes.taxonomy import lineages_of
from omniset.tables.dna import kmers_of


@pytest.fixture(scope="module")
def samples(references):
    """Sequences near the references, and a table of three samples, the last one empty."""
    rng = np.random.default_rng(7)
    texts = {f"ASV{i}": changed(text, 0.03, rng) for i, text in enumerate(list(references[0].values())[::3])}
    counts = rng.integers(0, 6, (3, len(texts)))
    counts[0, 4] = 3
    counts[2] = 0
    return texts, Samples(["A", "B", "C"], list(texts), sp.csr_array(counts.astype(float)))


def quiet(function, *arguments, **options):
    with pytest.warns(UserWarning, match="1 sample without reads, such as 'C'"):
        return function(*arguments, **options)


def test_it_names_what_it_learned(classifier, references):
    texts, lineages = references
    found = classifier.classify(texts)
    assert list(found.columns) == ["Feature ID", "Taxon", "Confidence"]
    assert found["Feature ID"].tolist() == list(texts)
    called = classifier.calls(texts)
    right = [classifier.taxa_.lineages[t] == lineages[name] for t, name in zip(called.taxon, texts, strict=True)]
    assert np.mean(right) > 0.8  # chance is 1/9: else nothing was learned, and no other test here means anything


def by_hand(classifier, texts, counts, without=()):
    """Logits of the sequences of a sample, of all taxa, from the parts."""
    network = classifier.network_
    read = [*texts.values()]
    with torch.no_grad():
        words = next(network.likelihood.tables()).scores(kmers_of(read, 7)).double().numpy()
        logits = network.alone(network.alone.projection.read(read)).double().numpy()
    alone = network.weights.numpy() @ np.stack([words, logits]).reshape(2, -1)
    alone = alone.reshape(words.shape)
    every = np.tile(np.arange(alone.shape[1]), (len(alone), 1))
    there = counts > 0
    return alone, alone + classifier.trust_.prior.log_shares(every[there], alone[there], counts[there], alone.shape[1])


def test_calls_are_those_of_the_parts(classifier, samples):
    """One sample at a time, in the order of the table."""
    texts, table = samples
    called = quiet(classifier.calls, texts, table)
    assert called.taxon.min() >= 0
    for row in (0, 1):
        counts = table.counts[[row]].toarray()[0]
        logits = by_hand(classifier, texts, counts)[1]
        mine = called.sample == row
        assert np.array_equal(called.feature[mine], np.flatnonzero(counts))
        assert np.array_equal(called.taxon[mine], logits.argmax(1)[counts > 0])
    expected = np.zeros((3, len(texts)))
    expected[called.sample, called.feature] = called.count
    assert np.array_equal(expected, table.counts.toarray())


def test_tables_of_all_forms_give_the_same(classifier, samples):
    texts, table = samples
    whole = quiet(classifier.classify, texts, table)
    frame = pd.DataFrame(table.counts.toarray(), index=table.names, columns=table.features)
    as_names = Samples(table.names, list(texts.values()), table.counts)
    for sequences, counts in ((texts, frame), (texts, table.turned()), (None, as_names), (None, as_names.turned())):
        ours = quiet(classifier.classify, sequences, counts)
        assert ours["Taxon"].tolist() == whole["Taxon"].tolist()


def test_the_other_strand_is_turned(classifier, samples):
    texts, _table = samples
    some = {name: reverse_complement(t) if i % 2 else t for i, (name, t) in enumerate(texts.items())}
    with pytest.warns(UserWarning, match=f"{len(texts) // 2:,} of {len(texts):,} sequences are of the other strand"):
        turned = classifier.classify(some)
    assert turned["Taxon"].tolist() == classifier.classify(texts)["Taxon"].tolist()


def test_what_cannot_be_read_is_unassigned(classifier, samples):
    texts, _ = samples
    some = {"short": "ACGT" * 5, "unclear": "NNNNACNN" * 20, **texts}
    with pytest.warns(UserWarning, match="2 of .* fewer than 50 bases without"):
        found = classifier.classify(some)
    assert found["Taxon"].tolist()[:2] == ["Unassigned"] * 2
    assert found["Confidence"].tolist()[:2] == [0, 0]
    assert found["Taxon"].tolist()[2:] == classifier.classify(texts)["Taxon"].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:70], "at most 70 bases, the model has learned from 120 to 120"),
        (lambda text: text + text, "at least 240 bases, the model has learned from 120 to 120: cut them"),
    ],
)
def test_other_lengths_than_those_learned(classifier, samples, change, message):
    with pytest.warns(UserWarning, match=message):
        classifier.classify({name: change(text) for name, text in samples[0].items()})


def test_shares_are_no_reads(classifier, samples):
    """They are told, and taken as they are."""
    texts, table = samples
    shares = Samples(table.names, table.features, sp.csr_array(table.counts / 8))
    with pytest.warns(UserWarning, match="counts are not whole numbers, such as 0\\.[0-9]+: give reads"):
        found = quiet(classifier.calls, texts, shares)
    assert np.array_equal(found.count, quiet(classifier.calls, texts, table).count / 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(ASV0="1_000"), "counts must be numbers, column 'ASV0' is (object|str)"),
        (lambda f: f.assign(ASV0=-1.0), "counts: sample 'A', feature 'ASV0': the count must be a number from 0 to"),
        (lambda f: f.assign(ASV0=np.nan), "counts: sample 'A', feature 'ASV0': the count must be a number"),
        (lambda f: f.set_axis(["A", "A", "C"]), "counts has the sample 'A' a second time"),
        (lambda f: f.set_axis(["A", "", "C"]), "counts has a sample without a name, number 2"),
        (lambda f: f.rename(columns={"ASV1": "ASV0"}), "counts has the feature 'ASV0' a second time"),
    ],
)
def test_bad_tables_in_memory(classifier, samples, change, message):
    texts, table = samples
    frame = pd.DataFrame(table.counts.toarray(), index=table.names, columns=table.features)
    with pytest.raises(ValueError, match=message):
        classifier.classify(texts, change(frame))


def test_ranks_by_name_and_number(classifier, samples):
    calls = quiet(classifier.calls, *samples)
    for number in (5, np.int64(5)):
        pd.testing.assert_frame_equal(calls.abundance(0.5, "family"), calls.abundance(0.5, number))
    assert {len(taxon.split("; ")) for taxon in calls.abundance(0.0, "phylum").columns} == {2}
    for rank in ("species", 7, 0):
        with pytest.raises(ValueError, match=f"rank must be one of domain, .*, or a number to 6, got {rank!r}"):
            calls.abundance(0.5, rank)


def test_what_is_kept_back_is_learned_in_the_end(references, classifier):
    """But not before trust in naive Bayes was learned on it."""
    parts = TaxonClassifier(**SMALL).prepare(*references)[0]
    likelihood = classifier.network_.likelihood
    every = KmerLikelihood.of(parts.texts, parts.sequence, parts.taxon, parts.taxa)
    assert torch.equal(likelihood.counts, every.counts)
    material = classifier.material_
    assert len(material.validation) == classifier.sizes_["validation sequences"] == 25
    assert not set(material.validation) & set(material.chosen)
    texts = [parts.texts[i] for i in parts.sequence[material.validation]]
    network = TaxonNetwork(classifier.network_.alone, material.counted(material.chosen))
    candidates, taxon = candidates_of(network, texts), parts.taxon[material.validation]
    each = [weights_of(candidates, taxon, used) for used in ((True, True), (True, False), (False, True))]
    expected = [more * one for one in each for more in (1, 2, 4)]
    assert min(np.abs(classifier.network_.weights.numpy() - one).max() for one in expected) < 1e-6


def test_clades_without_genera_keep_their_name(references, tmp_path):
    """As chloroplasts of SILVA, which end at the order: users filter by their name."""
    texts, lineages = references
    ends = {name: lineage[:5] if lineage[4] == "f__F2" else lineage for name, lineage in lineages.items()}
    TaxonClassifier(**SMALL).fit(texts, ends).save(tmp_path)
    model = TaxonClassifier.load(tmp_path, progress=False)
    calls = model.calls(texts)
    named = calls.per_feature(0.0)
    of_clade = np.array([len(lineage) == 5 for lineage in ends.values()])
    assert set(named["Taxon"][of_clade]) == {"d__B; p__P; c__C; o__O; f__F2"}
    assert np.allclose(named["Confidence"][of_clade], calls.confidence[of_clade, 4])
    right = named["Taxon"] == ["; ".join(lineage) for lineage in ends.values()]
    assert right.mean() > 0.9
    shares, _ = shares_of(Samples(["A"], [*texts][-2:], sp.csr_array([[1.0, 3.0]])), model.taxa_, ends)
    assert shares[0].tolist() == [0] * 6 + [1]


def test_nothing_random_is_named(classifier, references):
    rng = np.random.default_rng(0)
    noise = {f"n{i}": "".join(rng.choice(list("ACGT"), 120)) for i in range(30)}
    with pytest.warns(UserWarning, match="of the reads are likely|of the other strand"):
        calls = classifier.calls(noise)
    assert calls.confidence[:, -1].mean() < classifier.calls(references[0]).confidence[:, -1].mean()
    calls.confidence[:] = 0.4
    with pytest.warns(UserWarning, match="only 0.0% of the reads are likely .*: the model has learned whole ref"):
        warn_of_strangers(calls, None)


def test_explain_says_what_moved_a_call(classifier, samples):
    texts, table = samples
    found = classifier.explain("ASV4", texts, table, sample="A", top=4)
    about = found.attrs
    assert about["sample"] == "A"
    assert len(found) == 4
    assert "ASV4" not in set(found["Feature ID"])
    names = list(texts)
    place = names.index("ASV4")
    best = ["; ".join(lineage) for lineage in classifier.taxa_.lineages].index(about["taxon"])

    def log_odds(without=None):
        counts = table.counts[[0]].toarray()[0] * (np.array(names) != without)
        logits = by_hand(classifier, texts, counts)[1][place]
        shares = np.exp(logits - logits.max())
        return float(np.log(shares[best] / np.delete(shares, best).sum())), shares[best] / shares.sum()

    whole, probability = log_odds()
    assert abs(probability - about["probability"]) < 1e-5
    alone = by_hand(classifier, texts, table.counts[[0]].toarray()[0])[0][place]
    assert abs(np.exp(alone - np.logaddexp.reduce(alone))[best] - about["alone"]) < 1e-5
    assert about["clear"] == (about["alone"] >= 0.99)
    changes = {name: whole - log_odds(name)[0] for name in names if name != "ASV4"}
    for name, change in zip(found["Feature ID"], found["change"], strict=True):
        assert abs(changes[name] - change) < 1e-3 * max(1.0, abs(whole))
    every = classifier.explain("ASV4", texts, table, sample="A", top=100)
    assert len(every) == (table.counts[[0]].toarray()[0] > 0).sum() - 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"feature": "x"}, "feature 'x' is not in the table"),
        ({"feature": "ASV0", "sample": "Z"}, "sample 'Z' is not in the table"),
        ({"feature": "ASV0", "sample": "C"}, "has no reads in sample 'C'"),
        ({"feature": "ASV0", "top": 0}, "top must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_explained(classifier, samples, words, message):
    with pytest.raises(ValueError, match=message):
        classifier.explain(**{"sequences": samples[0], "counts": samples[1], **words})


def test_profiles_of_tables_are_shares_of_taxa(references, tmp_path):
    texts, lineages = references
    model = TaxonClassifier(**SMALL)
    model.prepare(*references)
    names = list(texts)
    features = [names[0], names[1], "; ".join(lineages[names[13]]), "d__B; p__P", "else"]
    counts = np.array([[2.0, 1, 5, 3, 1], [0, 0, 0, 4, 0], [0, 4, 0, 0, 0]])
    with pytest.warns(UserWarning, match="60.0% of whose reads are of known taxa; not such as 'd__B; p__P', 'else'"):
        found, said = shares_of(Samples(["A", "B", "C"], features, sp.csr_array(counts)), model.taxa_, lineages)
    expected = np.zeros((2, 9))  # B has nothing that is known
    place = {lineage: i for i, lineage in enumerate(model.taxa_.lineages)}
    expected[0, place[lineages[names[0]]]], expected[0, place[lineages[names[13]]]] = 3 / 8, 5 / 8
    expected[1, place[lineages[names[1]]]] = 1
    assert np.allclose(found, expected)
    assert said == "profiles: 2 samples, 60.0% of whose reads are of known taxa"
    with pytest.raises(ValueError, match="none of the 1 features is a known taxon"):
        shares_of(Samples(["A"], ["x"], sp.csr_array([[1.0]])), model.taxa_, lineages)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda t, g: (t, {"x": ("d__B",)}), {}, "taxonomy knows none of the references"),
        (lambda t, g: (t, dict.fromkeys(t, g["ref0"])), {}, "at least 2 taxa at rank genus, there is 1"),
        (lambda t, g: (t, g), {"region": "515F-806R"}, "was found in none of the 108 references: leave it out"),
        (lambda t, g: (t, g), {"rank": "species"}, "no name at rank species for any reference: 'ref0' is 'd__B; p__P;"),
        (lambda t, g: ({n: s[:49] for n, s in t.items()}, g), {}, "0 among 108 .* 108 of which are shorter than 50"),
        (lambda t, g: (t, g), {"rank": "tribe"}, "rank must be one of"),
        (lambda t, g: (t, g), {"region": "V9"}, "region must be one of"),
        (lambda t, g: ({}, g), {}, "references is empty"),
        (lambda t, g: (t, {}), {}, "taxonomy is empty"),
    ],
)
def test_bad_references(references, change, arguments, message):
    with pytest.raises(ValueError, match=message):
        TaxonClassifier(**SMALL | arguments).fit(*change(*references))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["ACGT"], "references must be a mapping of names to sequences.* got a list"),
        ({"ref0": 1}, "references must be text, 'ref0' is a int"),
        ({"ref0": "ACGJ"}, "references: 'ref0' has 'J', which is no base"),
        ({"ref0": "--"}, "references: 'ref0' has no sequence"),
    ],
)
def test_bad_sequences_in_memory(given, message):
    with pytest.raises(ValueError, match=message):
        sequences_of(given, "references")
    assert sequences_of({"ref0": "acg-u"}, "references") == {"ref0": "ACGT"}  # as files are read


@pytest.mark.parametrize(
    ("taxon", "message"),
    [
        (("d__B", None), ".*None.* is no text and no tuple"),
        (float("nan"), "nan is no text"),
        ("d__B; f__F", ".*'f__F' at rank 2, phylum belongs there"),
    ],
)
def test_bad_taxa_in_memory(taxon, message):
    with pytest.raises(ValueError, match=f"taxonomy: 'ref0': the taxon {message}"):
        lineages_of({"ref0": taxon})


def test_references_as_users_have_them(references):
    """Taxa as text are those of tuples; what is left out is said, and so are names that several clades have."""
    texts, lineages = references
    model = TaxonClassifier(**SMALL | FEW)
    model.fit(texts, {name: "; ".join(lineage) for name, lineage in lineages.items()})
    assert model.taxa_.lineages == sorted(set(lineages.values()))
    assert lineages_of({"a": ("", "Firmicutes", "Bacilli", "")}) == {"a": ("", "Firmicutes", "Bacilli")}
    assert sequences_of(pd.Series(texts), "sequences") == texts
    flanked = {name: FORWARD + text + REVERSE_TURNED for name, text in texts.items()}
    some = flanked | {name: texts[name] for name in [*texts][:30]}
    with pytest.warns(UserWarning, match="region 515F-806R was found in 78 of 108 references: the others are left out"):
        TaxonClassifier(**SMALL | {"region": "515F-806R"}).prepare(some, lineages)
    twice = lineages | {"ref0": (*lineages["ref0"][:4], "f__F9", *lineages["ref0"][5:])}
    model.prepare(texts, twice)
    said = "1 name at rank genus stands in several clades, such as 'G00': each counts as a taxon of its own"
    assert model.notes_ == [said]
    alike = texts | {"ref0": texts["ref107"]}
    model.prepare(alike, lineages)
    assert model.notes_ == [f"1 of {len({*alike.values()})} distinct sequences are of several taxa"]


def test_too_few_to_calibrate(references, monkeypatch):
    monkeypatch.setattr(TaxonClassifier, "FRACTIONS", (0.1, 0.1))
    with pytest.warns(UserWarning, match="not be calibrated.*: 10 references are kept back, it takes 20"):
        TaxonClassifier(**SMALL | FEW).fit(*references)


def test_mutations_come_at_their_rate():
    text, rng = "A" * 20_000, np.random.default_rng(0)
    assert abs(sum(c != "A" for c in mutated(text, 0.2, rng)) / 20_000 - 0.15) < 0.015  # a quarter falls on A again
    assert mutated(text, 0.0, rng) == text


def test_profiles_are_kept_with_the_model(references, tmp_path):
    """Where calls of what was kept back are the better for them: here two genera of the same sequences, each with
    another one.
    """
    texts, lineages = references
    names = list(texts)
    twins = lineages | {name: (*lineages[name][:5], "g__Twin") for name in names[1:12:2]}
    counts = np.zeros((18, len(names)))
    counts[::2, [*range(0, 12, 2), *range(12, 24, 2)]] = counts[1::2, [*range(1, 12, 2), *range(24, 36, 2)]] = 5
    profiles = Samples([f"S{i}" for i in range(18)], names, sp.csr_array(counts))
    model = TaxonClassifier(**SMALL | FEW).fit(texts, twins, profiles)
    assert "profiles: 18 samples, 100.0% of whose reads are of known taxa" in model.notes_
    expected = np.array([[1, 1, 0, 0, *[0] * 6], [0, 0, 1, 1, *[0] * 6]]) / 2
    assert np.array_equal(model.trust_.prior.profiles, expected[np.arange(18) % 2])
    model.save(tmp_path / "model")
    again = TaxonClassifier.load(tmp_path / "model", progress=False)
    assert np.array_equal(again.trust_.prior.profiles, model.trust_.prior.profiles)
    few = dict(list(texts.items())[:20])
    assert np.array_equal(again.calls(few).confidence, model.calls(few).confidence)
