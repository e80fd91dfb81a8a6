"""The completer as users have it: fitted on small genomes, in float32, with everything that is checked."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from genome_oracle import EVERY, FRAME, SMALL, SPLIT, TAXONOMY, by, fit_split, same_weights, table

from omniset.genomes import GenomeCompleter, training
from omniset.genomes.training import Clades


def test_same_seed_same_bits_and_other_seed_others(completer):
    """Whatever other methods are trained beside; the caller's random numbers are left alone."""
    torch.manual_seed(11)
    again, other = fit_split(), fit_split(seed=1)
    after = torch.rand(1)
    torch.manual_seed(11)
    assert torch.equal(after, torch.rand(1))
    assert same_weights(again, completer)
    assert not same_weights(again, other)
    assert again.history_ == completer.history_
    assert again.complete(FRAME).equals(completer.complete(FRAME))


@pytest.mark.filterwarnings("ignore:.*are far from")
def test_genomes_of_other_parts_are_not_looked_at(monkeypatch):
    """Their counts may be anything: weights, vocabulary, calibration and predictions are the same to the bit."""
    monkeypatch.setattr(training, "MOST_REFERENCES", 11)
    clades = Clades.of_taxonomy(TAXONOMY, list(FRAME.index), "family")
    train, validation = SPLIT[0][SPLIT[0] % 6 != 2], SPLIT[1]
    rest = np.flatnonzero(np.arange(24) % 6 == 2)
    frame, other = FRAME.copy(), FRAME.copy()
    frame.iloc[np.concatenate([train, validation]), 7] = 0  # a family that only the rest has
    other.iloc[rest] = np.random.default_rng(1).integers(0, 9, (len(rest), FRAME.shape[1]))
    other.iloc[np.concatenate([train, validation]), 7] = 0
    frame.iloc[rest, 7] = 3
    found = []
    for some in (frame, other):
        model = GenomeCompleter(**SMALL)
        found.append(model.fit_split(table(some), TAXONOMY, clades, train, validation, also=["pca", "knn"]))
    one, two = found
    assert FRAME.columns[7] not in one.families_
    assert one.families_ == two.families_
    assert same_weights(one, two)
    for name in ("levels_", "histories_", "sizes_"):
        assert getattr(one, name) == getattr(two, name)
    assert set(one.references_["genome"]) < {frame.index[i] for i in [*train, *validation]}
    query = FRAME[one.families_]
    for method in ("evidence", "pca", "knn"):
        with by(one, method), by(two, method):
            assert one.complete(query).equals(two.complete(query))


def test_fit_splits_by_clade():
    model = GenomeCompleter(**SMALL).fit(FRAME.sample(frac=1, random_state=0), TAXONOMY)
    sizes = {"genomes": 24, "training": 16, "validation": 4}  # 4 of the other clades tell weights as well
    sizes |= {"training clades": 5, "validation clades": 1, "families": FRAME.shape[1]}
    assert model.sizes_ == sizes
    lineage = model.references_.set_index("genome")["lineage"]
    assert lineage.to_dict() == {
        name: ";".join(row) for name, row in zip(TAXONOMY.index, TAXONOMY.to_numpy(), strict=True)
    }
    assert model.with_taxonomy_


def test_vocabulary_and_references_are_bounded(monkeypatch):
    monkeypatch.setattr(training, "MOST_REFERENCES", 9)
    found = table(FRAME.assign(COG9999=0))
    found.categories.update({"COG0001": "H", "COG0003": "C"})
    found.descriptions.update({"COG0001": "a synthase"})
    model = fit_split(found)
    assert model.families_ == FRAME.columns.tolist()
    vocabulary = model.vocabulary_.set_index("family")
    assert vocabulary.loc[["COG0001", "COG0003"]].to_numpy().tolist() == [["H", "a synthase"], ["C", ""]]
    assert (vocabulary["category"] != "").sum() == 2
    assert len(model.references_) == 9
    assert model.notes_[-1].startswith(("log loss on clades left out: ", "neighbours is taken alone"))
    assert model.notes_[:-1] == [
        f"1 of {FRAME.shape[1] + 1} families are not in any genome learned from, and are left out of the vocabulary",
        "9 of 24 genomes are kept to compare with, drawn over the clades",
        "4 genomes of 1 clade set weights and thresholds, before all was learned anew with them",
        "these are few clades: a precision that they tell may not hold in clades that are unlike them",
        "4 genomes of the other clades set weights as well",
    ]
    assert set(model.references_["genome"]) < set(FRAME.index[[*SPLIT[0], *SPLIT[1]]])


def test_without_taxonomy_each_genome_may_be_its_own_clade():
    rng = np.random.default_rng(0)
    unlike = pd.DataFrame((rng.random((9, 61)) < 0.3).astype(int)).rename(columns=lambda i: f"COG{i:04}")
    with pytest.warns(UserWarning, match="without a taxonomy every genome is a clade of its own.*give a taxonomy"):
        model = GenomeCompleter(**SMALL | {"epochs": 1}).fit(unlike.rename(index=str))
    assert not model.with_taxonomy_
    assert model.notes_[0] == "without a taxonomy, the 9 clades are clusters of similar genomes"
    assert (model.references_["lineage"] == "").all()


OTHERS = TAXONOMY.assign(phylum=["p__X;p__Y", "c__X", *["p__X"] * 22])


@pytest.mark.parametrize(
    ("options", "frame", "taxonomy", "message"),
    [
        ({"architecture": "lstm"}, FRAME, TAXONOMY, "architecture must be one of evidence, seed, got 'lstm'"),
        (
            {"clade": "order"},
            FRAME,
            TAXONOMY,
            "no validation genome: .* each of the 3 clades .by tax.* 'order'",
        ),
        (
            {},
            pd.DataFrame(np.eye(9, dtype=int)).add_prefix("f"),
            None,
            "table: 0 of 9 families, such as 'f0', are in two",
        ),
        ({}, FRAME, TAXONOMY.add_prefix("RS1_", axis=0), "24 of 24 genomes are not in the tax.*all begin with 'RS1_'"),
        ({}, FRAME, TAXONOMY[:8], "16 of 24 genomes are not in the taxonomy, such as 'g08'"),
        ({}, FRAME[:7], TAXONOMY, "table has 7 genomes, at least 8 are needed"),
        ({}, FRAME, OTHERS, "taxonomy of genome 'g00': phylum is 'p__X;p__Y', it must be one name, of this rank"),
        ({}, FRAME, OTHERS[1:], "taxonomy of genome 'g01': phylum is 'c__X', it must be one name, of this rank"),
        ({}, FRAME, pd.concat([TAXONOMY, TAXONOMY.iloc[:1]]), "taxonomy: genome 'g00' is there twice"),
        ({}, FRAME, pd.concat([TAXONOMY, TAXONOMY[["family"]]], axis=1), "taxonomy has column 'family' twice"),
    ],
)
def test_what_cannot_be_fitted(options, frame, taxonomy, message):
    with pytest.raises(ValueError, match=message):
        GenomeCompleter(**SMALL | options).fit(frame, taxonomy)


def test_before_it_is_fitted(tmp_path):
    verbs = {"complete": [FRAME], "completions": [table()], "explain": [FRAME, "g00", "COG0001"], "save": [tmp_path]}
    for verb, arguments in verbs.items():
        with pytest.raises(ValueError, match="this GenomeCompleter is not fitted yet: call fit first"):
            getattr(GenomeCompleter(), verb)(*arguments)


@pytest.mark.filterwarnings("ignore:quality")  # some genomes have none
def test_there_and_back(completer, tmp_path, mags, quality):
    artefact = tmp_path / "model"
    completer.save(artefact, {"note": 1})
    again = GenomeCompleter.load(artefact)
    names = {"config.json", "model.safetensors", "vocabulary.parquet", "references.parquet", "metrics.json", "run.json"}
    names |= {"README.md"}
    assert {p.name for p in artefact.iterdir()} == names
    assert again.get_params() == completer.get_params()
    for name in ("families_", "levels_", "history_", "histories_", "sizes_", "methods_", "with_taxonomy_", "notes_"):
        assert getattr(again, name) == getattr(completer, name), name
    for method in EVERY:
        with by(again, method), by(completer, method):
            assert again.complete(mags, quality).equals(completer.complete(mags, quality))
    pd.testing.assert_frame_equal(again.references_, completer.references_)
    assert json.loads((artefact / "metrics.json").read_text())["note"] == 1
    table_of_families = artefact / "vocabulary.parquet"
    again.vocabulary_[::-1].to_parquet(table_of_families, index=False)
    with pytest.raises(ValueError, match=r"vocabulary.parquet is not the table that the model was saved with"):
        GenomeCompleter.load(artefact)
    table_of_families.unlink()
    with pytest.raises(FileNotFoundError, match=r"is no whole artefact: it has no vocabulary.parquet"):
        GenomeCompleter.load(artefact)


def test_the_seed_and_its_options_come_back(tmp_path, mags):
    model = fit_split(architecture="seed", learning_rate=0.003)
    model.save(tmp_path)
    again = GenomeCompleter.load(tmp_path)
    assert (again.architecture, again.learning_rate) == ("seed", 0.003)
    assert again.complete(mags).equals(model.complete(mags))
