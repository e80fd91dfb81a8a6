"""The study of taxonomy: its samples, its loss, and what it counts as right."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from paper.registry import load, tables_of
from paper.running import stack
from paper.study import Sample, generator
from paper.tables import Results
from paper.taxonomy import ORACLES, SEEN, UNSEEN, WORDS, Oracle, Reads, Taxonomy, _of_transformer, principal
from scipy.stats import multivariate_normal

from omniset.cli import main
from omniset.core.sets import SetBatch

pytestmark = pytest.mark.slow

RECIPE = """
title: Small
epochs: 2
steps: 3
batch_size: 2
learning_rate: 0.001
options: {blur: 0.5, components: null, region: null, held_out: 0.3,
  communities: 2, train: 5, validation: 1, test: 3, reads: 40}
test: {replicates: 2, shard: 16, segment: 8, sizes: [16, 32, 48]}
architectures:
  sab: {encoder: set-transformer-sab, dim: 8, depth: 2, num_heads: 2}
  isab: {encoder: ust, dim: 8, depth: 2, num_heads: 2, num_inducing: 3}
  strxl: {encoder: strxl, dim: 8, depth: 2, num_heads: 2, num_inducing: 3, memory: 12}
trainings:
  st-sab:
    architecture: sab
    columns: {st-sab: {label: ST (SAB), shards: independent}}
  isab:
    architecture: isab
    columns:
      st-isab: {label: ST (ISAB), encoder: set-transformer-isab, shards: independent}
      ust: {label: UST}
  strxl:
    architecture: strxl
    single: true
    shard_size: 8
    shards: independent
    columns: {strxl: {label: STrXL, shards: independent}}
  exact:
    architecture: isab
    reads: 60
    shard_size: 7
    columns: {exact: {label: exact}}
paper:
  ust: [[97.8, 0.1], [97.7, 0.1], [97.4, 0.2]]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """References of five genera, three to seven sequences each; one sequence is of two genera."""
    folder, rng = tmp_path_factory.mktemp("references"), np.random.default_rng(0)
    texts, genera = [], []
    for genus in range(5):
        root = rng.choice(list("ACGT"), 90)
        for i in range(3 + genus):
            text = root.copy()
            text[10 * i] = "ACGT"["TACG".index(root[10 * i])]
            texts.append("".join(text))
            genera.append(genus)
    texts.append(texts[0])
    genera.append(4)
    (folder / "sequences.fasta").write_text("".join(f">r{i}\n{text}\n" for i, text in enumerate(texts)))
    lines = [f"r{i}\td__B; p__P; c__C; o__O; f__F; g__G{genus}" for i, genus in enumerate(genera)]
    (folder / "taxonomy.tsv").write_text("\n".join(["Feature ID\tTaxon", *lines]) + "\n")
    return folder


@pytest.fixture
def study(folder, monkeypatch, tmp_path):
    (tmp_path / "taxonomy.yaml").write_text(RECIPE)
    monkeypatch.setattr("paper.recipes.FOLDER", tmp_path)
    found = load("taxonomy", folder)
    found.prepare([0])
    return found


def training(study, name):
    return next(t for t in study.recipe.trainings if t.name == name)


def trained(study, name):
    """In float64, after a few steps: some reads are named right, others wrong."""
    network = study.network(training(study, name), 3).double()
    study.vectors = study.vectors.double()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for step in range(12):
        optimizer.zero_grad()
        sample = study.batch(training(study, name), 0, step)
        study.loss(network(SetBatch(sample.elements, sample.multiplicity)), sample).backward()
        optimizer.step()
    return network.eval()


def test_vectors_are_projected_counts_of_words(study):
    table = {}
    for text in study.references.texts:
        words = [text[i : i + WORDS] for i in range(len(text) - WORDS + 1)]
        table[text] = Counter(words)
    words = sorted(set().union(*table.values()))
    counts = np.array([[table[text][w] for w in words] for text in study.references.texts], dtype=np.float64)
    counts /= np.sqrt(counts.sum(1, keepdims=True))
    ours = study.vectors.double().numpy()
    learned = np.unique(study.references.sequence[study.members["seen"].reference])
    assert len(learned) < len(ours)
    draw = generator("taxonomy", "signs")
    signs = 2.0 * torch.randint(2, (4**WORDS, study.input_dim), generator=draw).numpy() - 1
    numbers = [sum("ACGT".index(base) * 4 ** (WORDS - 1 - i) for i, base in enumerate(word)) for word in words]
    expected = counts @ signs[numbers]
    expected -= expected[learned].mean(0)
    expected /= np.sqrt(np.square(expected[learned]).mean())
    assert abs(expected - ours).max() < 1e-5


def test_principal_components_are_of_what_is_learned_from():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(60, 7)) @ rng.normal(size=(7, 7)) + 5).astype(np.float32)
    vectors = np.concatenate((vectors, vectors[:, :2]), 1)  # of rank 7
    learned = rng.random(60) < 0.7
    middle = vectors[learned].astype(np.float64).mean(0)
    _, values, directions = np.linalg.svd(vectors[learned] - middle, full_matrices=False)
    expected = (vectors - middle) @ (directions[:4] / values[:4, None]).T * np.sqrt(learned.sum() - 1)
    ours = principal(vectors, learned, 4)
    assert abs(ours * np.sign((ours * expected).sum(0)) - expected).max() < 1e-5
    with pytest.raises(ValueError, match=re.escape("components must be at most 7, the rank of the vectors, got 8")):
        principal(vectors, learned, 8)


def test_communities(study):
    sizes = {part: found.shape for part, found in study.profiles.items()}
    assert sizes == {"train": (2, 5, 5), "validation": (2, 1, 5), "test": (2, 3, 5)}
    rows = np.concatenate([found.reshape(-1, 5) for found in study.profiles.values()])
    assert len(np.unique(rows, axis=0)) == len(rows)  # no replicate is in two parts
    assert abs(rows.sum(1) - 1).max() < 1e-12


def test_samples_are_multisets_of_their_reads(study):
    for name, reads in (("isab", 40), ("exact", 60)):
        sample = study.batch(training(study, name), 0, 5)
        assert sample.multiplicity.sum(1).tolist() == [reads, reads]
        again = study.batch(training(study, name), 0, 5)
        assert all(torch.equal(a, b) for a, b in zip(sample, again, strict=True))
        assert not torch.equal(sample.elements, study.batch(training(study, name), 1, 5).elements)
    single = study.batch(training(study, "strxl"), 0, 5)
    assert single.multiplicity.shape == (2, 40)
    assert bool((single.multiplicity == 1).all())
    # A vector belongs to the taxon that is asked for.
    study.recipe.options["blur"] = 0.0
    texts_of = {(int(s), int(t)) for s, t in zip(study.references.sequence, study.references.taxon, strict=True)}
    for name in ("strxl", "isab"):
        sample = study.batch(training(study, name), 0, 5)
        for b, n in zip(*np.nonzero(sample.multiplicity.numpy()), strict=True):
            sequence = (study.vectors - sample.elements[b, n]).abs().sum(1).argmin()
            assert torch.equal(study.vectors[sequence], sample.elements[b, n])
            assert (int(sequence), int(sample.target[b, n])) in texts_of


def test_a_sample_blurs_each_reference_once(study):
    members, rng = study.members[SEEN], np.random.default_rng(3)
    noises = []
    for _ in range(40):
        state = rng.bit_generator.state
        reads = study._reads(study.profiles["train"][0, 0], 40, SEEN, rng)
        after = rng.bit_generator.state
        study.recipe.options["blur"], rng.bit_generator.state = 0.0, state
        clear = study._reads(study.profiles["train"][0, 0], 40, SEEN, rng)
        study.recipe.options["blur"] = 0.5
        assert rng.bit_generator.state == after
        assert np.array_equal(clear.which, reads.which)
        assert len(reads.vectors) == len(np.unique(reads.which)) <= len(members.reference)
        noises.append((reads.vectors - clear.vectors).numpy())
    noise = np.concatenate(noises)
    assert abs(noise.mean()) < 5 * 0.5 / noise.size**0.5
    assert abs(noise.std() - 0.5) < 5 * 0.5 / (2 * noise.size) ** 0.5
    assert abs(np.corrcoef(noise[:30]) - np.eye(30)).max() < 6 / noise.shape[1] ** 0.5
    # Single reads in order are the same sample: copies of a read are equal.
    single, counted = (study.batch(training(study, name), 0, 5) for name in ("strxl", "isab"))
    for b in range(2):
        rows, counts = np.unique(single.elements[b].numpy(), axis=0, return_counts=True)
        present = counted.multiplicity[b] > 0
        order = np.lexsort(counted.elements[b][present].numpy().T[::-1])
        assert np.array_equal(rows, counted.elements[b][present].numpy()[order])
        assert np.array_equal(counts, counted.multiplicity[b][present].numpy()[order])


def densities(study, vectors, shown, blur):
    """Of the shown vectors among the reads of each taxon, by scipy, summed over its references one by one."""
    members, found = study.members[SEEN], np.zeros((len(shown), study.outputs))
    for taxon in range(study.outputs):
        references = members.reference[members.starts[taxon] : members.starts[taxon + 1]]
        for reference in references:
            normal = multivariate_normal(vectors[reference].numpy(), blur**2)
            found[:, taxon] += normal.pdf(shown.numpy()) / len(references)
    return found


def test_the_oracle_is_the_rule_of_bayes(study):
    members, taxa = study.members[SEEN], study.outputs
    vectors = study.vectors[study._sequence].double()[:, :6]
    rng = np.random.default_rng(0)
    shown = vectors[rng.integers(len(vectors), size=30)] + 0.8 * torch.from_numpy(rng.standard_normal((30, 6)))
    priors = {"even": np.ones(taxa), "other": rng.dirichlet(np.ones(taxa))}
    oracle = Oracle(vectors, members, 0.8)
    likelihoods = oracle.likelihoods(shown)
    found = {name: oracle.taxa(likelihoods, prior).tolist() for name, prior in priors.items()}
    for name, prior in priors.items():
        assert found[name] == (prior * densities(study, vectors, shown, 0.8)).argmax(1).tolist()
    assert found["even"] != found["other"]


def test_the_community_is_that_by_which_reads_are_likeliest(study):
    """Of single reads, each with the density of its vector."""
    vectors, members = study.vectors[study._sequence].double()[:, :6], study.members[SEEN]
    rng = np.random.default_rng(0)
    shown, counts = vectors + 4 * torch.from_numpy(rng.standard_normal(vectors.shape)), rng.integers(1, 5, len(vectors))
    profiles, oracle = rng.dirichlet(np.ones(study.outputs), 7), Oracle(vectors, members, 4.0)
    of_taxa = densities(study, vectors, shown, 4.0)
    scores = [np.log(np.repeat(of_taxa @ profile, counts)).sum() for profile in profiles]
    assert oracle.community(oracle.likelihoods(shown), counts, profiles) == np.argmax(scores)
    order = np.argsort(scores)
    once = oracle.community(oracle.likelihoods(shown), counts, profiles[order[:-1]])
    assert once == len(order) - 2  # the next best, where the best is not there


def test_sequences_are_held_out(study):
    pairs = {kind: study.members[kind].reference for kind in ("seen", "unseen")}
    assert sorted(np.concatenate([*pairs.values()])) == list(range(len(study.references.taxon)))
    sequences = {kind: set(study.references.sequence[found]) for kind, found in pairs.items()}
    assert not sequences["seen"] & sequences["unseen"]
    assert len(sequences["unseen"]) == round(0.3 * len(study.references.texts))
    vectors = {tuple(study.vectors[i].tolist()) for i in sequences["unseen"]}
    study.recipe.options["blur"] = 0.0
    for sample in (
        *(study.batch(training(study, "strxl"), 0, step) for step in range(20)),
        *study.validation(training(study, "isab"), 0),
    ):
        assert not vectors & {tuple(x) for x in sample.elements.flatten(0, 1).tolist()}


def test_the_loss_is_the_mean_over_reads(study):
    sample = study.batch(training(study, "isab"), 0, 0)
    output = torch.randn(*sample.target.shape, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = [
        -float(output[b, n].log_softmax(0)[sample.target[b, n]])
        for b in range(len(output))
        for n in range(output.shape[1])
        for _ in range(int(sample.multiplicity[b, n]))
    ]
    assert abs(float(study.loss(output, sample)) - np.mean(each)) < 1e-12


def rights(study, name, column, n):
    network = trained(study, name)
    reads = reads_of(study)
    column = next(c for c in training(study, name).columns if c.name == column)
    return study._right(network, reads, column, study.recipe.test["shard"])(n)


def called(study, network, batch):
    with torch.no_grad():
        return network.head(network.encoder(batch).elements)[0].argmax(1).numpy()


def reads_of(study):
    """A sample of 48 reads, blurred."""
    which, draw = np.random.default_rng(1).integers(26, size=48), torch.Generator().manual_seed(0)
    vectors = study.vectors[study._sequence]
    blur = 0.5 * torch.randn(vectors.shape, generator=draw, dtype=torch.float64)
    return Reads(vectors + blur, study.references.taxon, which)


@pytest.mark.parametrize(("name", "column"), [("isab", "st-isab"), ("st-sab", "st-sab"), ("isab", "ust")])
def test_what_is_right_is_that_of_single_reads(study, name, column):
    """Each read an element of its own, each shard, or the whole, a set of its own."""
    network, reads = trained(study, name), reads_of(study)
    vectors, taxon = reads.vectors[reads.which], reads.taxon[reads.which]
    for n in (16, 32, 48):
        right = rights(study, name, column, n)
        size = n if column == "ust" else 16
        expected = []
        for start in range(0, n, size):
            part = slice(start, start + size)
            expected += (called(study, network, SetBatch(vectors[part][None])) == taxon[part]).tolist()
        assert right.tolist() == expected
    assert 0 < right.mean() < 1  # of all 48


def test_segments_remember_those_before(study):
    network, reads = trained(study, "strxl"), reads_of(study)
    vectors, taxon = reads.vectors[reads.which], reads.taxon[reads.which]
    for n in (16, 48):
        right, memory, expected = rights(study, "strxl", "strxl", n), None, []
        for start in range(0, n, 8):
            part = slice(start, start + 8)
            with torch.no_grad():
                _, elements, memory = network.encoder.segments(SetBatch(vectors[part][None]), 8, memory)
                found = network.head(elements)[0].argmax(1).numpy()
            expected += (found == taxon[part]).tolist()
        assert right.tolist() == expected
    assert 0 < right.mean() < 1  # of all 48


def test_accuracies(study, monkeypatch):
    network, way = trained(study, "isab"), training(study, "isab")
    seen, right = [], Taxonomy._right

    def kept(self, network, reads, column, size):
        of_n = right(self, network, reads, column, size)
        seen.append((reads, of_n(len(reads.which))))
        return of_n

    monkeypatch.setattr(Taxonomy, "_right", kept)
    found = study.test(network, way, way.columns[0], 0)
    assert found["test_samples"] == 4
    again = study.test(network, way, way.columns[0], 1)
    assert again == found  # the samples are the same for all
    parts = {SEEN: seen[:4], UNSEEN: seen[4:8]}
    for kind, (i, n) in itertools.product(parts, enumerate((16, 32, 48))):
        by_read, by_sequence = [], []
        for reads, of_reads in parts[kind]:
            by_read.append(of_reads[:n].mean())
            shares = {}
            for read, one in zip(reads.which[:n].tolist(), of_reads[:n].tolist(), strict=True):
                shares.setdefault(read, []).append(one)
            by_sequence.append(np.mean([np.mean(values) for values in shares.values()]))
        assert abs(found[f"accuracy_{kind}"][i] - 100 * np.mean(by_read)) < 1e-9
        assert abs(found[f"accuracy_{kind}_by_sequence"][i] - 100 * np.mean(by_sequence)) < 1e-9


def test_oracles_are_tested_on_the_same_samples(study):
    study.recipe.options["blur"] = 4.0
    oracle = Oracle(study.vectors[study._sequence], study.members[SEEN], 4.0)
    rights = []
    for profile, reads in study._samples(SEEN):
        called = oracle.taxa(oracle.likelihoods(reads.vectors), profile)
        rights.append((called == reads.taxon)[reads.which])
    for i, n in enumerate((16, 32, 48)):
        assert abs(study.oracles["oracle_profile"][i] - 100 * np.mean([right[:n].mean() for right in rights])) < 1e-9
    assert set(study.oracles) == {f"oracle_{name}{end}" for name in ORACLES for end in ("", "_by_sequence")}
    assert study.oracles["oracle_alike"] != study.oracles["oracle_profile"]
    told, communities = [], study.profiles["train"].mean(1)
    for _, reads in study._samples(SEEN):
        for shard in np.split(reads.which, [16, 32]):  # single reads, each counted once
            likelihoods = oracle.likelihoods(reads.vectors[shard])
            profile = communities[oracle.community(likelihoods, np.ones(16, dtype=int), communities)]
            told.append((oracle.taxa(likelihoods, profile) == reads.taxon[shard]).mean())
    assert abs(study.oracles["oracle_community"][2] - 100 * np.mean(told)) < 1e-9


def test_targets_of_elements_are_padded_with_them():
    samples = [Sample(torch.ones(2, n, 3), torch.ones(2, n), torch.full((2, n), n, dtype=torch.int64)) for n in (3, 5)]
    elements, multiplicity, target = stack(samples)
    assert elements.shape == (2, 2, 5, 3)
    assert multiplicity.sum((1, 2)).tolist() == [6, 10]
    assert target.tolist() == [[[3, 3, 3, 0, 0]] * 2, [[5] * 5] * 2]
    of_sets = [Sample(s.elements, s.multiplicity, torch.tensor([1, 2])) for s in samples]
    assert stack(of_sets)[2].tolist() == [[1, 2], [1, 2]]


def test_it_runs_from_the_shell(study, folder, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["studies", "run", "taxonomy", "--data", str(folder), "--out", str(out), "--seeds", "2"]
    words += ["--device", "cpu", "--progress", "false"]
    assert main(words) == 0
    assert "(97.80 ± 0.10)" in capsys.readouterr().out
    rows = Results.read(out).trainings
    assert set(rows) == {"st-sab", "isab", "strxl", "exact"}
    assert max(rows["exact"]["seeds"]["1"]["gradient_errors"]) < 3e-6
    assert (out / "taxonomy.png").exists()
    assert len(tables_of("taxonomy", out)) == 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"data: .* must have one file sequences.fasta, plain or compressed, it has none"),
        (["sequences.fasta", "sequences.fasta.gz"], "it has sequences.fasta, sequences.fasta.gz"),
    ],
)
def test_bad_folders(study, tmp_path, files, message, capsys):
    folder = tmp_path / "bad"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    words = ["studies", "run", "taxonomy", "--data", str(folder), "--out", str(tmp_path / "out"), "--seeds", "1"]
    assert main(words) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_vectors_of_a_transformer(tmp_path):
    """They are means over tokens, whatever they are batched with."""
    transformers = pytest.importorskip("transformers")
    bases = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACGT", *["##" + base for base in "ACGT"]]
    (tmp_path / "vocab.txt").write_text("\n".join(bases))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False, model_max_length=512)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=13, **sizes)).eval()
    model.save_pretrained(tmp_path)
    texts = ["ACGTACGTAC", "ACG", "TTTTTT"]
    for text, ours in zip(texts, _of_transformer(texts, tmp_path), strict=True):
        with torch.no_grad():
            states = model(**tokenizer([text], return_tensors="pt"))[0][0]
        assert np.abs(states.mean(0).numpy() - ours).max() < 1e-5
