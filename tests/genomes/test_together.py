"""Genomes that are completed together: each is a reference of all others, with the families that it probably has."""

import contextlib

import numpy as np
import pytest
import torch
from genome_oracle import by, evidence, imputed, nearest_by, noise_of, some_counts, suite_of, table
from test_completions import one

from omniset.cli import main
from omniset.genomes import GenomeTable, training
from omniset.genomes.completer import _batch
from omniset.genomes.metadata import check_quality
from omniset.genomes.noise import Observed

pytestmark = pytest.mark.filterwarnings("ignore:quality", "ignore:. of . genomes", "ignore:.. of .. genomes")
METHODS = ("evidence", "knn", "knn-likelihood")


def batch_of(completer, mags, quality):
    return _batch(list(table(mags)), check_quality(quality), completer._position)[0]


@pytest.mark.parametrize("method", METHODS)
def test_each_is_completed_by_the_references_and_all_others(completer, mags, quality, method):
    """As with a model whose references are these, the genome itself not among them."""
    with by(completer, method):
        found = {c.name: c for c in completer.completions(table(mags), quality, together=True)}
    references, noise = completer.network_.references, completer.network_.noise
    before = references.presence
    with references.together(noise, [batch_of(completer, mags, quality)]) as number:
        everything = references.presence
    assert number == len(mags)
    for row, name in enumerate(mags.index):
        others = [at for at in range(len(everything)) if at != len(before) + row]
        references.take(everything[others], len(mags) - 1)
        try:
            suite = completer.network_
            batch = batch_of(completer, mags.loc[[name]], quality)
            near = references.similarity(batch)[0].sort(descending=True).values
            with torch.no_grad():
                expected = suite[method](batch)[0].double().numpy()
        finally:
            references.take(before)
        if near[14] == near[15]:  # either of two may be the 15th
            continue
        assert np.allclose(found[name].log_odds, expected, rtol=1e-4, atol=1e-4), name


def test_it_is_not_as_if_each_were_alone_but_for_its_novelty(completer, mags, quality):
    alone, both = (list(completer.completions(table(mags), quality, together=t)) for t in (False, True))
    assert not all(np.allclose(a.log_odds, b.log_odds, atol=1e-3) for a, b in zip(alone, both, strict=True))
    for a, b in zip(alone, both, strict=True):
        assert (a.novelty, a.nearest) == (pytest.approx(b.novelty), b.nearest)


def test_a_genome_without_others_is_as_alone(completer, mags, quality):
    for method in METHODS:
        single = mags.loc[["m5"]]
        with by(completer, method):
            alone, both = (one(completer, single, quality, together=t) for t in (False, True))
        assert np.allclose(alone.log_odds, both.log_odds, rtol=1e-5, atol=1e-5)
        assert (alone.novelty, alone.nearest, alone.far) == (both.novelty, both.nearest, both.far)


def test_order_and_batches_mean_nothing(completer, mags, quality, monkeypatch):
    shuffled = mags.iloc[np.random.default_rng(3).permutation(len(mags))]
    with by(completer, "knn-likelihood"):  # of the model's neighbours some are equally similar
        expected, other = (completer.complete(some, quality, together=True) for some in (mags, shuffled))
    assert np.allclose(other.loc[mags.index], expected, atol=1e-5)
    expected = completer.complete(mags, quality, together=True)
    for size in (1, 4):
        monkeypatch.setattr(training, "BATCH_SIZE", size)
        assert np.allclose(completer.complete(mags, quality, together=True), expected, atol=1e-5)


def test_the_same_genome_several_times(completer, mags):
    """Copies of one genome are references for each other, each is not for itself."""
    copies = GenomeTable.from_frame(mags.loc[["m5"]].iloc[[0, 0, 0]].set_axis(["a", "b", "c"]))
    with by(completer, "knn-likelihood"):
        first, *others = [one.log_odds for one in completer.completions(copies, together=True)]
    assert np.allclose(others, first, atol=1e-4)


def test_references_are_as_before(completer, mags, quality):
    references = completer.network_.references
    before = references.presence.clone()
    stream = completer.completions(table(mags), quality, together=True)
    next(stream)
    assert len(references.presence) == len(before) + len(mags)
    stream.close()
    assert torch.equal(references.presence, before)
    with contextlib.suppress(RuntimeError), references.together(completer.network_.noise, []):
        raise RuntimeError
    assert torch.equal(references.presence, before)
    assert completer.complete(mags[:0], together=True).empty


def test_what_a_genome_is_joined_with_by_hand():
    """Presence is a probability, of what was observed too: what is contaminated may be foreign."""
    counts = some_counts()
    suite = suite_of(["pca"], counts)
    seen = some_counts(7, seed=11)
    seen[2] = 0
    quality = [np.linspace(0.5, 1.0, 7), np.linspace(0.15, 0.0, 7)]
    observed = Observed(torch.from_numpy(seen).double(), *map(torch.from_numpy, quality))
    noise = noise_of(counts)
    with suite.references.together(noise, [observed]) as number:
        presence = suite.references.presence.numpy() / 255
    assert number == 7
    assert not presence[23 + 2].any()
    references, complete = np.concatenate([counts[:23], seen]), np.concatenate([np.ones(23), quality[0]])
    for row in (0, 1, 3, 4, 5, 6):
        own = evidence(counts, seen[row], quality[0][row], quality[1][row])
        expected = imputed(noise, own, references, complete, 23 + row)
        assert np.allclose(presence[23 + row], expected, atol=0.5 / 255 + 1e-4)


def test_how_much_of_the_likeliest_is_completed_together():
    suite, seen = suite_of(["pca"]), torch.from_numpy(some_counts(7, seed=11)).double()
    observed = Observed(seen, torch.linspace(0.5, 1, 7).double(), torch.linspace(0.1, 0, 7).double())
    references, noise = suite.references, suite.noise
    assert not references.compare(observed, noise).company.any()
    with references.together(noise, [observed]):
        observed.excluded = references.themselves(0, 7)
        presence = references.presence.double().numpy() / 255
        found = references.compare(observed, noise).company
    for row, share in enumerate(found.tolist()):
        weights, _ = nearest_by(noise.evidence(observed)[row].numpy(), presence, np.arange(30) != 23 + row)
        assert share == pytest.approx(sum(w for w, r in weights if r >= 23), abs=1e-5)
    assert 0 < found.min() < found.max() < 1
    observed.excluded = None
    assert not references.compare(observed, noise).company.any()


def test_batches_are_read_with_all_others(completer, mags, quality):
    references, noise = completer.network_.references, completer.network_.noise
    before = len(references.presence)
    batches = [batch_of(completer, some, quality) for some in (mags[:3], mags[3:])]
    at = 0
    for position, observed in references.each_with_others(noise, batches):
        assert torch.equal(observed.counts, batches[position].counts)
        assert len(references.presence) == before + len(mags)
        which = [before + at + row for row in range(len(observed))]
        assert observed.excluded.nonzero().tolist() == [[row, own] for row, own in enumerate(which)]
        at += len(observed)
    assert at == len(mags)
    assert len(references.presence) == before


def test_parts_are_not_together(capsys, tmp_path):
    words = ["genomes", "complete", str(tmp_path), "--together=true", "--scheduler=synchronous"]
    assert main(words) == 2
    assert "together=True takes all genomes at once, scheduler takes them in parts" in capsys.readouterr().err
