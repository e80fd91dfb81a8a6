"""Learning anew from all genomes: for how long, what is taken over, and that nothing else is."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from genome_oracle import FRAME, SMALL, SPLIT, TAXONOMY, fit_split, same_weights, table
from scipy import integrate

from omniset.genomes import GenomeCompleter, calibration, completer, training
from omniset.genomes.training import Clades, GenomeModule
from omniset.training.fit import as_long

EVERYTHING = np.arange(len(FRAME))


@pytest.mark.parametrize(("best", "epochs"), [(1, 7), (11, 46), (23, 46), (12, 15), (15, 15), (1, 1), (90, 101)])
def test_the_learning_rate_sums_up_to_what_it_had_at_the_best_epoch(best, epochs):
    def rate(share):
        return 0.5 * (1 + math.cos(math.pi * share))

    spent = integrate.quad(lambda epoch: rate(epoch / epochs), 0, best)[0]
    found = as_long(best, epochs)
    assert abs(integrate.quad(lambda epoch: rate(epoch / found), 0, found)[0] - spent) <= 0.25
    assert as_long(epochs, epochs) == epochs


def test_everything_is_learned_anew_but_what_was_kept_back_for(monkeypatch):
    """Weights are those of training on all genomes; histories, levels and the mixture those of the first part."""
    monkeypatch.setattr(training, "PATIENCE", 2)
    clades = Clades.of_taxonomy(TAXONOMY, list(FRAME.index), "family")
    model = fit_split(epochs=4, far=True)
    single = clades.singles(SPLIT[0], len(SPLIT[1]), model.seed)
    assert len(single) == 4
    rest = np.setdiff1d(SPLIT[0], single)
    genomes, _ = model.genomes_of(table(), clades, rest, SPLIT[1], None, single)
    first, histories = model._learn(genomes, None, False)
    assert model.histories_ == histories
    assert (model.levels_, model.accessory_levels_) == calibration.calibrate(first["evidence"], genomes, model.seed)
    assert set(model.references_["genome"]) == set(FRAME.index)
    assert set(genomes.references) == set(rest)
    assert torch.equal(model.network_["evidence"].mixture, first["evidence"].mixture)
    assert (model.network_["evidence"].mixture.abs().sum(1) > 0).any()
    carriers = (FRAME > 0).sum().to_numpy()
    expected = torch.from_numpy((carriers + 0.5) / (len(FRAME) + 1)).float()
    assert torch.equal(model.network_.noise.prevalence, expected)
    best = int(np.argmin([epoch["val_loss"] for epoch in model.history_])) + 1
    epochs = {"evidence": as_long(best, 4)}
    genomes, _ = model.genomes_of(table(), clades, EVERYTHING, EVERYTHING[:0])
    alone, _ = model._learn(genomes, None, False, epochs)
    assert same_weights(
        SimpleNamespace(network_=alone), model, without=["mixture", "completeness_weight", "said", "true"]
    )
    assert not torch.equal(model.network_["evidence"].belief, first["evidence"].belief)


@pytest.mark.parametrize("number", [0, 1, 7, 30, 1000])
def test_genomes_kept_back_one_by_one_have_relatives(number):
    """At most half of each clade are taken, of many clades each one first; of clades of one genome none."""
    sizes = (1, 1, 2, 3, 5, 11, 40)
    groups = np.repeat(np.arange(7), sizes)
    clades, train = Clades(np.stack([groups] * 3, 1)), np.arange(len(groups))[1:]  # of the first clade none is there
    found = clades.singles(train, number, 3)
    taken = np.bincount(groups[found], minlength=7)
    assert len(found) == len(set(found.tolist())) == min(number, 29)
    assert (taken <= np.array(sizes) // 2).all()
    assert number < 1000 or taken.tolist() == [0, 0, 1, 1, 2, 5, 20]
    assert np.array_equal(found, clades.singles(train, number, 3))
    if number == 7:
        few = np.mean([np.bincount(groups[clades.singles(train, 7, s)], minlength=7) for s in range(50)], 0)
        assert few[2] > 0.4
        assert few[6] < 4  # by genomes alone it would be 4.8


def test_families_of_genomes_that_were_kept_back_enter_the_vocabulary():
    frame = FRAME.copy()
    frame["COG9999"] = 0
    frame.iloc[SPLIT[1], -1] = 2
    model, first = (fit_split(frame, epochs=1, refit=refit) for refit in (True, False))
    assert "COG9999" in model.families_
    assert "COG9999" not in first.families_
    assert model.sizes_["families"] == len(model.families_) == len(first.families_) + 1
    assert not [note for note in model.notes_ if "left out of the vocabulary" in note]
    found = model.complete(frame[model.families_])["COG9999"]
    assert found.iloc[SPLIT[1]].min() > found.iloc[SPLIT[0]].max()


def test_many_genomes_are_read_less_often():
    epochs = {8: 1200, 640: 15, 2000: 15, 2001: 14, 5000: 6, 20_000: 1, 27_000: 1, 90_000: 1}
    assert {genomes: GenomeCompleter()._planned(genomes) for genomes in epochs} == epochs
    assert GenomeCompleter(epochs=3)._planned(90_000) == 3


def test_of_many_that_are_kept_back_some_are_asked(monkeypatch):
    """They tell weights and thresholds; all are learned from in the end, and none before."""
    monkeypatch.setattr(completer, "MOST_ASKED", 3)
    model, seen = fit_split(epochs=1), []
    kept = GenomeCompleter._learn

    def watched(self, genomes, *arguments):
        seen.append(genomes)
        return kept(self, genomes, *arguments)

    monkeypatch.setattr(GenomeCompleter, "_learn", watched)
    again = fit_split(epochs=1)
    assert again.levels_ == model.levels_
    first, second = seen
    assert len(first.validation) == 3
    assert set(first.validation) < set(SPLIT[1])
    assert len(first.single) == 3
    assert set(first.single) < set(SPLIT[0])
    assert set(first.train) == set(SPLIT[0]) - set(first.single)
    assert set(second.train) == set(second.references) == set(EVERYTHING)
    asked = "3 of 4 genomes that were kept back are asked for weights and thresholds, drawn over the clades"
    told = "3 genomes of 1 clade set weights and thresholds, before all was learned anew with them"
    assert {asked, told} <= set(model.notes_)
    assert (model.sizes_["genomes"], model.sizes_["validation"]) == (24, 3)


def test_without_refit_what_was_kept_back_stays_out(monkeypatch):
    """But for the mixture, which it tells, and for when to stop: here the last epoch."""
    monkeypatch.setattr(training, "PATIENCE", None)
    other = FRAME.copy()
    other.iloc[SPLIT[1]] = np.random.default_rng(5).integers(0, 3, (len(SPLIT[1]), FRAME.shape[1]))
    one, two = (fit_split(frame, refit=False, epochs=2) for frame in (FRAME, other))
    assert same_weights(one, two, without=["mixture", "completeness_weight", "said", "true"])
    assert one.levels_ != two.levels_
    assert one.notes_[0] == "4 genomes of 1 clade set weights and thresholds, and stay out of the model"


def test_a_run_stopped_in_either_part_goes_on(tmp_path, monkeypatch):
    """At step 3 of the 4 x 2 on a part of the genomes, or at the third of those on all: 4 x 3, without patience."""
    monkeypatch.setattr(training, "BATCH_SIZE", 10)
    monkeypatch.setattr(training, "PATIENCE", None)
    step, options = GenomeModule.training_step, {**SMALL, "epochs": 4}
    whole = GenomeCompleter(**options).fit(FRAME, TAXONOMY)
    for at, left in ((3, 8 - 2 + 4 * 3), (11, 4 * 3)):  # not all steps are made anew
        folder, calls = tmp_path / str(at), []

        def counted(self, batch, index, at=at, calls=calls):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return step(self, batch, index)

        monkeypatch.setattr(GenomeModule, "training_step", counted)
        with pytest.raises(KeyboardInterrupt):
            GenomeCompleter(**options).fit(FRAME, TAXONOMY, folder=folder)
        assert (folder / "refit").exists() == (at > 8)
        with pytest.raises(ValueError, match="cannot be resumed: the sets"):
            GenomeCompleter(**options).fit(FRAME + 1, TAXONOMY, folder=folder, resume=True)
        again = GenomeCompleter(**options).fit(FRAME, TAXONOMY, folder=folder, resume=True)
        assert same_weights(again, whole)
        assert again.histories_ == whole.histories_
        assert len(calls) == at + left
