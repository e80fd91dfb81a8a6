"""The completer as users have it: fitted on small genomes, in float32, with everything that is checked."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from genome_oracle import EVERY, FRAME, SMALL, SPLIT, TAXONOMY, by, fit_split, table

from omniset.genomes import GenomeCompleter, calibration, training
from omniset.genomes.calibration import LEVELS
from omniset.genomes.training import Clades


def weights(completer):
    return {n: p.detach().clone() for n, p in completer.network_.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


# ---------------------------------------------------------------------- fit


def test_same_seed_same_bits_and_other_seed_others(completer, monkeypatch):
    monkeypatch.setattr(calibration, "LEVELS", LEVELS)
    torch.manual_seed(11)
    again = fit_split(also=EVERY[1:])
    after = torch.rand(1)
    assert equal(weights(again), weights(completer))
    assert again.history_ == completer.history_
    assert again.levels_ == completer.levels_
    assert again.complete(FRAME).equals(completer.complete(FRAME))
    other = weights(fit_split(seed=1))
    assert not equal(other, {k: v for k, v in weights(completer).items() if k in other})
    torch.manual_seed(11)
    assert torch.equal(after, torch.rand(1))  # the caller's random numbers are left alone


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
    assert equal(one.network_.state_dict(), two.network_.state_dict())
    for name in ("levels_", "histories_", "sizes_"):
        assert getattr(one, name) == getattr(two, name)
    assert set(one.references_["genome"]) < {frame.index[i] for i in [*train, *validation]}
    query = FRAME[one.families_]
    for method in ("evidence", "pca", "knn"):
        with by(one, method), by(two, method):
            assert one.complete(query).equals(two.complete(query))


def test_fit_splits_by_clade():
    model = GenomeCompleter(**SMALL).fit(FRAME.sample(frac=1, random_state=0), TAXONOMY)
    references = set(TAXONOMY.loc[model.references_["genome"], "family"])
    assert model.sizes_["training"] == 16  # 4 of the other clades tell weights as well
    assert model.sizes_["genomes"] == 24
    assert model.sizes_["validation"] == 4
    assert len(model.references_) == 24
    assert (model.sizes_["training clades"], model.sizes_["validation clades"]) == (5, 1)
    assert len(references) == 6
    lineage = dict(zip(model.references_["genome"], model.references_["lineage"], strict=True))
    assert lineage["g00" if "g00" in lineage else "g01"] in ("O0;F0", "O0;F1")
    assert model.with_taxonomy_


def test_vocabulary_and_references_are_bounded(monkeypatch):
    monkeypatch.setattr(training, "MOST_REFERENCES", 9)
    model = fit_split(FRAME.assign(COG9999=0))
    assert model.families_ == FRAME.columns.tolist()
    assert len(model.references_) == 9
    assert model.notes_ == [
        f"1 of {FRAME.shape[1] + 1} families are not in any genome learned from, and are left out of the vocabulary",
        "9 of 24 genomes are kept to compare with, drawn over the clades",
        "4 genomes of 1 clade ('F5') told weights and thresholds, before all was learned anew with them",
        "these are few clades: a precision that they tell may not hold in clades that are unlike them",
        "4 genomes of the other clades told weights as well",
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "lstm"}, "architecture must be one of evidence, seed, got 'lstm'"),
        ({"clade": "order"}, "there is no validation genome: 3 clades of rank 'order' cannot be split"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GenomeCompleter(**SMALL | arguments).fit(FRAME, TAXONOMY)


def test_few_genomes_are_refused():
    with pytest.raises(ValueError, match="table has 7 genomes, at least 8 are needed"):
        GenomeCompleter(**SMALL).fit(FRAME[:7], TAXONOMY)


OTHERS = TAXONOMY.assign(phylum=["p__X;p__Y", "c__X", *["p__X"] * 22])


@pytest.mark.parametrize(
    ("taxonomy", "message"),
    [
        (OTHERS, "taxonomy of genome 'g00': phylum is 'p__X;p__Y', it must be one name, of this rank"),
        (OTHERS[1:], "taxonomy of genome 'g01': phylum is 'c__X', it must be one name, of this rank"),
        (pd.concat([TAXONOMY, TAXONOMY.iloc[:1]]), "taxonomy: genome 'g00' is there twice"),
        (pd.concat([TAXONOMY, TAXONOMY[["family"]]], axis=1), "taxonomy has column 'family' twice"),
    ],
)
def test_bad_taxonomies(taxonomy, message):
    with pytest.raises(ValueError, match=message):
        GenomeCompleter(**SMALL).fit(FRAME, taxonomy)


def test_before_it_is_fitted(tmp_path):
    verbs = {"complete": [FRAME], "completions": [table()], "explain": [FRAME, "g00", "COG0001"], "save": [tmp_path]}
    for verb, arguments in verbs.items():
        with pytest.raises(ValueError, match="this GenomeCompleter is not fitted yet: call fit first"):
            getattr(GenomeCompleter(), verb)(*arguments)


# ---------------------------------------------------------------------- artefacts


@pytest.fixture
def artefact(completer, tmp_path):
    completer.save(tmp_path, {"note": 1})
    return tmp_path


@pytest.mark.filterwarnings("ignore:quality")  # some genomes have none
def test_there_and_back(completer, artefact, mags, quality):
    again = GenomeCompleter.load(artefact)
    names = {"config.json", "model.safetensors", "vocabulary.parquet", "references.parquet", "metrics.json", "run.json"}
    assert {p.name for p in artefact.iterdir()} == names
    assert again.get_params() == completer.get_params()
    for name in ("families_", "levels_", "history_", "histories_", "sizes_", "methods_", "with_taxonomy_", "notes_"):
        assert getattr(again, name) == getattr(completer, name), name
    for method in EVERY:
        with by(again, method), by(completer, method):
            assert again.complete(mags, quality).equals(completer.complete(mags, quality))
    both = (model.completions(table(mags), quality, precision=0.8) for model in (completer, again))
    for one, other in zip(*both, strict=True):
        assert (one.call == other.call).all()
        for name in ("low", "high", "novelty", "nearest", "far", "warnings"):
            assert getattr(one, name) == getattr(other, name)
    pd.testing.assert_frame_equal(again.references_, completer.references_)
    why = [model.explain(mags, "m5", "COG0003", quality) for model in (completer, again)]
    assert why[0].terms == why[1].terms
    assert json.loads((artefact / "metrics.json").read_text())["note"] == 1
    again.save(artefact / "twice")
    assert GenomeCompleter.load(artefact / "twice").complete(mags).equals(completer.complete(mags))


def test_the_seed_and_its_options_come_back(tmp_path, mags):
    model = fit_split(architecture="seed", learning_rate=0.003)
    model.save(tmp_path)
    again = GenomeCompleter.load(tmp_path)
    assert (again.architecture, again.learning_rate) == ("seed", 0.003)
    assert again.complete(mags).equals(model.complete(mags))


@pytest.mark.parametrize("name", ["vocabulary", "references"])
def test_damaged_tables(artefact, name):
    path = artefact / f"{name}.parquet"
    frame = pq.read_table(path).to_pandas()
    for changed in (frame[::-1], frame[1:]):
        changed.to_parquet(path, index=False)
        with pytest.raises(ValueError, match=rf"{name}.parquet is not the table that the model was saved with"):
            GenomeCompleter.load(artefact)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"is no whole artefact: it has no {name}.parquet"):
        GenomeCompleter.load(artefact)


def test_categories_come_along():
    found = table()
    found.categories.update({"COG0001": "H", "COG0003": "C"})
    found.descriptions.update({"COG0001": "a synthase"})
    clades = Clades.of_taxonomy(TAXONOMY, found.names, "family")
    model = GenomeCompleter(**SMALL).fit_split(found, TAXONOMY, clades, *SPLIT)
    vocabulary = model.vocabulary_.set_index("family")
    assert vocabulary.loc["COG0001"].tolist() == ["H", "a synthase"]
    assert vocabulary.loc["COG0003"].tolist() == ["C", ""]
    assert (vocabulary["category"] != "").sum() == 2
