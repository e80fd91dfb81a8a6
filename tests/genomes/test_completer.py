"""The completer as users have it: fitted on small genomes, in float32, with everything that is checked."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import safetensors
import torch
from genome_oracle import evidence, prevalence, some_counts, some_frame, some_taxonomy

from omniset import SetClassifier
from omniset.genomes import Genome, GenomeCompleter, GenomeTable, calibration, suite
from omniset.genomes.calibration import GRID, LEVELS, nearest_level
from omniset.genomes.training import Clades

SMALL = {
    **{"dim": 6, "depth": 1, "num_heads": 2, "num_inducing": 3, "epochs": 1, "batch_size": 7, "device": "cpu"},
    **{"validation_fraction": 0.2, "progress": False},
}
EVERY = ("model", "evidence", "as-is", "prevalence", "prevalence-bayes", "knn", "pca", "autoencoder", "auto")
SPLIT = (np.arange(24)[np.arange(24) % 6 < 5], np.arange(24)[np.arange(24) % 6 == 5])
FRAME, TAXONOMY = some_frame(), some_taxonomy()
FRAME = FRAME.loc[:, (FRAME.iloc[SPLIT[0]] > 0).any()]  # families that are in the vocabulary


def table(frame=FRAME):
    return GenomeTable.from_frame(frame)


def fit_split(frame=FRAME, also=(), architecture="evidence", levels=((90.0, 5.0), (60.0, 0.0)), **options):
    found = table(frame)
    clades = Clades.of_taxonomy(TAXONOMY, found.names, "family")
    model = GenomeCompleter(architecture, **(SMALL | options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LEVELS", list(levels))
        return model.fit_split(found, TAXONOMY, clades, *SPLIT, also=also)


@pytest.fixture(scope="module", autouse=True)
def _quickly():
    """Baselines need not be trained well."""
    with pytest.MonkeyPatch.context() as patch:
        for options in suite.TRAINING.values():
            patch.setitem(options, "epochs", 1)
        yield


@pytest.fixture(scope="module")
def completer():
    return fit_split(also=["pca", "autoencoder"], levels=LEVELS)


@pytest.fixture(scope="module")
def mags():
    """Eleven incomplete genomes, one of them empty; columns in another order than in training."""
    rng = np.random.default_rng(5)
    counts = rng.binomial(some_counts(11, clades=6, seed=3), rng.uniform(0.4, 1.0, (11, 1)))
    counts[8] = 0
    found = pd.DataFrame(counts, index=[f"m{i}" for i in range(11)], columns=some_frame().columns)
    return found[rng.permutation(FRAME.columns)]


@pytest.fixture(scope="module")
def quality():
    rng = np.random.default_rng(6)
    found = pd.DataFrame({"completeness": rng.uniform(45, 100, 11), "contamination": rng.uniform(0, 11, 11)})
    found.index = [f"m{i}" for i in rng.permutation(11)]
    found.loc["m3", "contamination"] = np.nan
    return found.drop("m4")


def weights(completer):
    return {n: p.detach().clone() for n, p in completer.network_.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def one(completer, frame, quality=None, **options):
    (found,) = completer.completions(table(frame), quality, **options)
    return found


# ---------------------------------------------------------------------- fit


def test_same_seed_same_bits_and_other_seed_others(completer):
    torch.manual_seed(11)
    again = fit_split(also=["pca", "autoencoder"], levels=LEVELS)
    after = torch.rand(1)
    assert equal(weights(again), weights(completer))
    assert again.history_ == completer.history_
    assert again.levels_ == completer.levels_
    assert again.complete(FRAME).equals(completer.complete(FRAME))
    other = weights(fit_split(seed=1))
    assert not equal(other, {k: v for k, v in weights(completer).items() if k in other})
    torch.manual_seed(11)
    assert torch.equal(after, torch.rand(1))  # the caller's random numbers are left alone


def test_genomes_of_other_parts_are_not_looked_at():
    """Their counts may be anything: weights, vocabulary, calibration and predictions are the same to the bit."""
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
        model = GenomeCompleter(**SMALL | {"max_references": 11})
        found.append(model.fit_split(table(some), TAXONOMY, clades, train, validation, also=["pca"]))
    one_, two = found
    assert FRAME.columns[7] not in one_.families_
    assert one_.families_ == two.families_
    assert equal(weights(one_), weights(two))
    assert equal(one_.network_.state_dict(), two.network_.state_dict())
    assert one_.levels_ == two.levels_
    assert one_.histories_ == two.histories_
    assert one_.sizes_ == two.sizes_
    assert not set(one_.references_["genome"]) & {frame.index[i] for i in [*rest, *validation]}
    for method in ("model", "pca", "knn", "auto"):
        query = FRAME[one_.families_]
        assert one_.complete(query, method=method).equals(two.complete(query, method=method))


def test_fit_splits_by_clade():
    model = GenomeCompleter(**SMALL).fit(FRAME.sample(frac=1, random_state=0), TAXONOMY)
    references = set(TAXONOMY.loc[model.references_["genome"], "family"])
    assert model.sizes_["training"] == 20 == len(model.references_)
    assert model.sizes_["validation"] == 4
    assert (model.sizes_["training clades"], model.sizes_["validation clades"]) == (5, 1)
    assert len(references) == 5
    lineage = dict(zip(model.references_["genome"], model.references_["lineage"], strict=True))
    assert lineage["g00" if "g00" in lineage else "g01"] in ("O0;F0", "O0;F1")
    assert model.with_taxonomy_


def test_vocabulary_and_references_are_bounded():
    model = fit_split(min_genomes=7, max_references=9)
    carriers = (FRAME.iloc[SPLIT[0]] > 0).sum()
    assert model.families_ == carriers.index[carriers >= 7].tolist()
    assert 0 < len(model.families_) < FRAME.shape[1]
    assert len(model.references_) == 9
    assert set(model.references_["genome"]) < set(FRAME.index[SPLIT[0]])
    with pytest.raises(ValueError, match="no family is in min_genomes=99 training genomes"):
        fit_split(min_genomes=99)


def test_a_table_that_cannot_be_learned_from():
    with pytest.raises(ValueError, match="table has 7 genomes, at least 8 are needed"):
        GenomeCompleter(**SMALL).fit(FRAME[:7], TAXONOMY)
    with pytest.raises(ValueError, match="there is no validation genome: 3 clades of rank 'order' cannot be split"):
        GenomeCompleter(**SMALL | {"clade": "order"}).fit(FRAME, TAXONOMY)


def test_without_taxonomy_each_genome_may_be_its_own_clade():
    rng = np.random.default_rng(0)
    unlike = pd.DataFrame((rng.random((9, 61)) < 0.3).astype(int)).rename(columns=lambda i: f"COG{i:04}")
    with pytest.warns(UserWarning, match="without a taxonomy every genome is a clade of its own.*give a taxonomy"):
        model = GenomeCompleter(**SMALL | {"epochs": 1}).fit(unlike.rename(index=str))
    assert not model.with_taxonomy_
    assert (model.references_["lineage"] == "").all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "lstm"}, "architecture must be one of evidence, seed, got 'lstm'"),
        ({"method": "magic"}, "method must be one of model, as-is, .*, auto, got 'magic'"),
        ({"encoder": "nonsense"}, "encoder must be one of .* got 'nonsense'"),
        ({"clade": "tribe"}, "clade must be one of domain, .* got 'tribe'"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"min_genomes": 0}, "min_genomes must be >= 1, got 0"),
        ({"max_references": 0}, "max_references must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"validation_fraction": 1.0}, "validation_fraction must be between 0 and 1, got 1.0"),
        ({"completeness": (90.0, 30.0)}, "completeness must be two percentages in order, from 0 to 100, got 90"),
        (
            {"contamination": (0.0, 130.0)},
            "contamination must be two percentages in order, from 0 to 100, got 0.0, 130",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GenomeCompleter(**SMALL | arguments).fit(FRAME, TAXONOMY)


def test_before_it_is_fitted(tmp_path, quality):
    with pytest.raises(ValueError, match="this GenomeCompleter is not fitted yet: call fit first"):
        GenomeCompleter().complete(FRAME)
    with pytest.raises(ValueError, match="not fitted yet"):
        list(GenomeCompleter().completions(table()))
    with pytest.raises(ValueError, match="not fitted yet"):
        GenomeCompleter().explain(FRAME, "g00", "COG0001")
    with pytest.raises(ValueError, match="not fitted yet"):
        GenomeCompleter().save(tmp_path)


# ---------------------------------------------------------------------- complete


def test_all_forms_of_genomes_are_one(completer, mags, quality, tmp_path):
    expected = completer.complete(mags, quality)
    assert expected.index.tolist() == mags.index.tolist()
    assert expected.columns.tolist() == completer.families_
    assert expected.index.name == "genome"
    assert ((expected > 0) & (expected < 1)).all().all()
    assert completer.complete(table(mags), quality).equals(expected)
    long = mags.rename_axis("genome").melt(var_name="family", value_name="count", ignore_index=False).reset_index()
    long = long[(long["count"] > 0) | (long["genome"] == "m8")].sample(frac=1, random_state=0)
    assert np.allclose(completer.complete(long, quality).loc[expected.index], expected, atol=1e-6)
    mags.rename_axis("genome").reset_index().to_csv(tmp_path / "mags.tsv", sep="\t", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reader: a genome without families
        found = completer.complete(tmp_path / "mags.tsv", quality)
    assert found.equals(expected)
    assert completer.complete(mags[:0]).shape == (0, len(completer.families_))


def test_the_order_of_families_in_a_genome_means_nothing(completer, mags, quality):
    rng = np.random.default_rng(0)

    def shuffled(genome):
        order = rng.permutation(len(genome.families))
        return Genome(genome.name, [genome.families[i] for i in order], genome.counts[order])

    for method in EVERY:
        genomes = list(table(mags))
        expected = list(completer.completions(genomes, quality, method=method))
        found = list(completer.completions([shuffled(g) for g in genomes], quality, method=method))
        for a, b in zip(expected, found, strict=True):
            assert np.array_equal(a.log_odds, b.log_odds)


@pytest.mark.parametrize("method", EVERY)
def test_streaming_in_any_batch_size(completer, mags, quality, method, monkeypatch):
    whole = completer.complete(mags, quality, method=method)
    for size in (1, 2, 7, 11):
        monkeypatch.setattr(completer, "batch_size", size)
        taken = []

        def stream(taken=taken):
            for genome in table(mags):
                taken.append(genome.name)
                yield genome

        found = completer.completions(stream(), quality, method=method)
        first = next(found)
        assert len(taken) == size  # no more than a batch is read ahead
        for i, completion in enumerate([first, *found]):
            assert completion.name == mags.index[i]
            assert np.abs(completion.probability - whole.iloc[i]).max() <= 1e-6


def test_quality_is_found_by_name(completer, mags, quality):
    found = {c.name: c for c in completer.completions(table(mags), quality)}
    for name in ("m0", "m5"):
        assert found[name].given
        assert found[name].completeness == pytest.approx(quality.loc[name, "completeness"], rel=1e-5)
        assert found[name].contamination == pytest.approx(quality.loc[name, "contamination"], rel=1e-4)
    estimated = {c.name: c for c in completer.completions(table(mags))}
    assert not found["m3"].given
    assert found["m3"].completeness == pytest.approx(quality.loc["m3", "completeness"], rel=1e-5)
    assert found["m3"].contamination == estimated["m3"].contamination
    assert not found["m4"].given
    assert np.array_equal(found["m4"].log_odds, estimated["m4"].log_odds)
    only = completer.complete(mags, quality[["completeness"]])
    both = completer.complete(mags, quality.assign(contamination=np.nan))
    assert only.equals(both)


def test_the_noise_level_changes_what_is_said(completer, mags):
    """The less complete a genome, the likelier is what was not seen; the more contaminated, the less what was."""

    def at(c, q):
        told = pd.DataFrame({"completeness": c, "contamination": q}, index=mags.index)
        return completer.complete(mags.drop("m8"), told, method="prevalence-bayes"), completer.complete(mags, told)

    unseen = (mags[completer.families_] == 0).drop("m8").to_numpy()
    (low, _), (high, _) = at(60.0, 0.0), at(95.0, 0.0)
    assert (low.to_numpy() > high.to_numpy())[unseen].all()
    (clean, _), (spoilt, _) = at(90.0, 1.0), at(90.0, 15.0)
    assert (clean.to_numpy() > spoilt.to_numpy())[~unseen].all()
    assert not np.allclose(at(60.0, 0.0)[1], at(95.0, 0.0)[1], atol=1e-2)


def test_methods_are_what_they_say(completer, mags, quality):
    """In float32, through the whole of `complete`; the mathematics of all methods is tested in float64 by itself."""
    counts = FRAME.iloc[SPLIT[0]][completer.families_].to_numpy()
    p, prior = prevalence(counts), np.log(prevalence(counts) / (1 - prevalence(counts)))
    seen = mags[completer.families_].to_numpy()
    found = {m: completer.complete(mags, quality, method=m) for m in ("prevalence", "prevalence-bayes", "as-is")}
    for i, name in enumerate(mags.index):
        if name in ("m3", "m4"):
            continue
        c, q = quality.loc[name] / 100
        row = {m: probabilities.iloc[i].to_numpy() for m, probabilities in found.items()}
        odds = prior + evidence(counts, seen[i] > 0, c, q) if name != "m8" else prior
        assert np.allclose(row["prevalence"], p, atol=1e-5)
        assert np.allclose(row["prevalence-bayes"], 1 / (1 + np.exp(-odds)), atol=1e-5)
        if name != "m8":
            assert ((row["as-is"] > 0.5) == (seen[i] > 0)).all()


def test_the_completers_own_method(completer, mags, quality):
    assert completer.complete(mags, quality).equals(completer.complete(mags, quality, method="evidence"))
    simple = fit_split(method="knn")
    assert simple.trained_ == []
    assert np.allclose(simple.complete(mags, quality), completer.complete(mags, quality, method="knn"), atol=1e-6)
    assert [c.method for c in simple.completions(table(mags))] == ["knn"] * 11
    for asked in ("model", "evidence", "auto", "pca", "nonsense"):
        with pytest.raises(ValueError, match=f"method must be one that was fitted, as-is, .*; got '{asked}'"):
            simple.complete(mags, method=asked)
    with pytest.raises(ValueError, match="explain is for architecture='evidence'"):
        simple.explain(mags, "m5", "COG0001")
    with pytest.raises(ValueError, match="fitted, as-is, .*, model, auto, evidence.*; got 'autoencoder-evidence'"):
        completer.complete(mags, method="autoencoder-evidence")


@pytest.mark.parametrize("method", ["autoencoder-evidence", "auto"])
def test_other_methods_can_be_the_completers_own(method, mags, quality):
    model = fit_split(method=method)
    found = list(model.completions(table(mags), quality))
    assert all(np.isfinite(c.log_odds).all() for c in found)
    if method != "auto":
        assert [c.method for c in found] == [method] * 11
        assert model.levels_[0].loss.keys() == {method, "knn", "prevalence-bayes", "as-is"}


def test_auto_takes_what_lost_least_at_the_nearest_level(completer, mags, monkeypatch):
    names = ["evidence", "knn", "prevalence-bayes", "as-is"]
    assert all(set(one.loss) == set(names) for one in completer.levels_)
    for i, found in enumerate(completer.levels_):
        losses = {name: 0.2 + 0.1 * ((i + j) % 4) for j, name in enumerate(names)}
        monkeypatch.setattr(found, "loss", losses)
    levels = [LEVELS[i] for i in (0, 1, 2, 3, 5, 7, 8, 10, 12, 13, 14)]
    rng = np.random.default_rng(0)
    told = pd.DataFrame(levels, index=mags.index, columns=["completeness", "contamination"]).astype(float)
    told["contamination"] = (told["contamination"] + rng.uniform(-0.9, 0.9, 11)).clip(0)
    own = {name: list(completer.completions(table(mags), told, method=name)) for name in names}
    chosen = []
    for i, found in enumerate(completer.completions(table(mags), told, method="auto")):
        nearest = nearest_level(completer.levels_, told.iloc[i, 0], told.iloc[i, 1])
        assert (nearest.completeness, nearest.contamination) == levels[i]
        least = min(names, key=lambda name, level=nearest: level.loss[name])
        assert found.method == least
        assert np.allclose(found.log_odds, own[least][i].log_odds, atol=1e-5)
        chosen.append(least)
    assert set(chosen) == set(names)


def test_families_that_are_not_known(completer, mags):
    wider = mags.assign(COG9998=1, COG9999=[*[0] * 10, 5])
    message = r"2 families, such as 'COG9998', are not in the model's vocabulary of \d+: nothing is said of them"
    with pytest.warns(UserWarning, match=message):
        found = completer.complete(wider)
    assert found.equals(completer.complete(mags))
    last = list(completer.completions(table(wider)))[-1]
    assert last.unknown == {"COG9998": 1, "COG9999": 5}
    strange = table(mags.rename(columns={c: f"K{i:05}" for i, c in enumerate(mags.columns)}))
    with pytest.raises(
        ValueError,
        match=r"none of the families of the first genomes .* 'K0\d{4}' \(KO\), the model's such as 'COG0001' \(COG\)",
    ):
        completer.complete(strange)
    many = mags.iloc[:1].assign(**{f"COG80{i:02}": 1 for i in range(40)})
    assert any("40 of its" in w and "not in the vocabulary" in w for w in one(completer, many).warnings)
    assert not any("not in the vocabulary" in w for w in one(completer, mags.iloc[:1]).warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completeness": 101.0}, "quality of genome 'm5': completeness is 101, it must be from 0 to 100"),
        ({"completeness": -1.0}, "quality of genome 'm5': completeness is -1, it must be from 0 to 100"),
        ({"contamination": -0.5}, "quality of genome 'm5': contamination is -0.5, it must be >= 0"),
    ],
)
def test_qualities_out_of_bounds(completer, mags, quality, change, message):
    bad = quality.copy()
    for column, value in change.items():
        bad.loc["m5", column] = value
    with pytest.raises(ValueError, match=message):
        completer.complete(mags, bad)
    with pytest.raises(ValueError, match=message):
        completer.completions(table(mags), bad)  # before any genome is read


def test_qualities_that_cannot_be_used(completer, mags, quality):
    with pytest.raises(ValueError, match="quality has no column 'completeness', it has"):
        completer.complete(mags, quality.rename(columns={"completeness": "c"}))
    with pytest.raises(ValueError, match="quality: genome 'm5' is there twice"):
        completer.complete(mags, pd.concat([quality, quality.loc[["m5"]]]))


def test_bounds_of_threshold_and_precision(completer, mags):
    for threshold in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"threshold must be between 0 and 1, got {threshold}"):
            completer.completions(table(mags), threshold=threshold)
    for precision in (0.4, 1.0):
        with pytest.raises(ValueError, match=f"precision must be at least 0.5 and below 1, got {precision}"):
            completer.completions(table(mags), precision=precision)


# ---------------------------------------------------------------------- completions


def test_an_empty_genome_gets_the_prior(completer, mags, quality):
    for method in EVERY:
        if method == "as-is":
            continue
        row = list(completer.completions(table(mags), quality, method=method))[8]
        if row.method != "as-is":
            assert np.array_equal(row.log_odds.astype(np.float32), completer.network_.noise.prior().numpy())
        assert any("no family that the model knows was observed" in w for w in row.warnings)
        assert not row.observed.any()
    alone = one(completer, mags.loc[["m8"]])
    assert np.isfinite(alone.log_odds).all()


def test_calls_and_flags(completer, mags, quality):
    for threshold in (0.5, 0.2, 0.9):
        added = removed = 0
        for completion in completer.completions(table(mags), quality, threshold=threshold):
            observed = mags.loc[completion.name, completer.families_].to_numpy() > 0
            call = completion.probability >= threshold
            assert (completion.observed == observed).all()
            assert (completion.call == call).all()
            assert (completion.added == (call & ~observed)).all()
            assert (completion.removed == (~call & observed)).all()
            added, removed = added + completion.added.sum(), removed + completion.removed.sum()
        assert added > 0
        assert removed > 0 or threshold < 0.9


def test_calls_at_a_precision_come_from_calibration(completer, mags, quality, monkeypatch):
    """Against what was observed only where validation, at the genome's level, reached the precision."""
    rising = np.linspace(0.55, 0.97, len(GRID)).tolist()
    for number, found in enumerate(completer.levels_):
        monkeypatch.setattr(found, "added", [v - 0.02 * number for v in rising])
        monkeypatch.setattr(found, "removed", [v - 0.01 * number for v in rising] if number % 2 else [None] * len(GRID))
    differ = 0
    plain = list(completer.completions(table(mags), quality))
    for base, found in zip(plain, completer.completions(table(mags), quality, precision=0.7), strict=True):
        at = nearest_level(completer.levels_, found.completeness, found.contamination)
        add, remove = at.threshold("added", 0.7), at.threshold("removed", 0.7)
        for family in range(len(completer.families_)):
            p = found.probability[family]
            expected = not (1 - p >= remove) if found.observed[family] else p >= add
            assert found.call[family] == expected
        differ += (base.call != found.call).sum()
        reached = completer.levels_.index(at) % 2
        assert not any("reaches a precision" in w for w in found.warnings)  # additions do, at every level
        assert reached or not found.removed.any()
    assert differ > 0
    for found in completer.levels_:
        monkeypatch.setattr(found, "added", [None] * len(GRID))
        monkeypatch.setattr(found, "removed", [None] * len(GRID))
    for found in completer.completions(table(mags), quality, precision=0.95):
        assert not found.added.any()
        assert not found.removed.any()
        assert any("no addition reaches a precision of 0.95" in w for w in found.warnings)


def test_where_no_precision_is_reached_nothing_is_changed(completer, mags, monkeypatch):
    """Not even where a probability is 1 in floating point."""
    for found in completer.levels_:
        monkeypatch.setattr(found, "added", [None] * len(GRID))
        monkeypatch.setattr(found, "removed", [None] * len(GRID))
    sure = {"forward": lambda self, observed: torch.where(observed.present, -90.0, 90.0)}
    monkeypatch.setattr(type(completer.network_["evidence"]), "forward", sure["forward"])
    for found in completer.completions(table(mags), precision=0.95):
        assert (found.call == found.observed).all()


def test_expected_sizes(completer, mags, quality):
    for method in ("model", "knn", "as-is", "autoencoder"):
        for found in completer.completions(table(mags), quality, method=method):
            p = found.probability
            assert found.expected == pytest.approx(p.sum())
            assert 0 <= found.low <= found.expected <= found.high <= len(p)
            at = nearest_level(completer.levels_, found.completeness, found.contamination)
            half = at.spread * math.sqrt((p * (1 - p)).sum())
            assert found.low == pytest.approx(max(found.expected - half, 0))
            assert found.high == pytest.approx(min(found.expected + half, len(p)))


def test_novelty(completer):
    """A reference is as near as can be; a genome of random families is flagged."""
    rng = np.random.default_rng(0)
    complete = {"completeness": 100.0, "contamination": 0.0}
    frame = FRAME.iloc[SPLIT[0]]
    found = list(completer.completions(table(frame), pd.DataFrame(complete, index=frame.index)))
    assert max(c.novelty for c in found) < 0.01
    assert not any(c.far for c in found)
    have = {name: frozenset(np.flatnonzero(row)) for name, row in zip(frame.index, frame.to_numpy(), strict=True)}
    assert all(have[c.nearest] == have[c.name] for c in found)
    random = pd.DataFrame((rng.random((13, FRAME.shape[1])) < 0.3).astype(int), columns=FRAME.columns).rename(index=str)
    found = list(completer.completions(table(random), pd.DataFrame(complete, index=random.index)))
    assert all(c.far for c in found)
    assert all(any("farther from the reference genomes" in w for w in c.warnings) for c in found)
    at = nearest_level(completer.levels_, 100.0, 0.0)
    assert all(c.novelty > at.novelty for c in found)


def test_warnings_of_quality(completer, mags):
    told = pd.DataFrame({"completeness": 20.0, "contamination": 40.0}, index=mags.index)
    found = one(completer, mags.iloc[:1], told)
    assert any("completeness 20.0 % is below what was trained on, 30 %" in w for w in found.warnings)
    assert any("contamination 40.0 % is above what was trained on, 12 %" in w for w in found.warnings)
    told[:] = [90.0, 5.0]
    assert not any("trained on" in w for w in one(completer, mags.iloc[:1], told).warnings)


# ---------------------------------------------------------------------- explain


def test_explanation(completer, mags, quality):
    target = "COG0019"
    found = completer.explain(mags, "m5", target, quality, steps=2)
    whole = one(completer, mags.loc[["m5"]], quality)
    position = completer.families_.index(target)
    assert found.log_odds == pytest.approx(whole.log_odds[position], abs=1e-5)
    assert sum(found.terms.values()) == pytest.approx(found.log_odds, abs=1e-6)
    assert list(found.terms) == ["neighbours", "context", "evidence"]
    assert found.probability == pytest.approx(whole.probability[position], abs=1e-6)
    assert found.observed == (mags.loc["m5", target] > 0)
    seen = mags.loc["m5"]
    rows = found.families.set_index("family")
    assert sorted(rows.index) == sorted(f for f in seen.index[seen > 0] if f in completer.families_)
    assert (rows["count"] == seen[rows.index]).all()
    assert found.families["change"].abs().is_monotonic_decreasing
    assert rows["attribution"].between(0, 1).all()
    assert rows["attribution"].max() == 1
    for family in [*rows.index[:5], target if target in rows.index else rows.index[-1]]:
        without = one(completer, mags.loc[["m5"]].assign(**{family: 0}), quality)
        assert rows.loc[family, "change"] == pytest.approx(found.log_odds - without.log_odds[position], abs=1e-4)
    assert rows["change"].abs().max() > 1e-3
    assert len(found.references) == 15
    assert found.references["similarity"].is_monotonic_decreasing
    assert found.references["genome"][0] == whole.nearest
    assert found.references["similarity"][0] == pytest.approx(1 - whole.novelty, abs=1e-6)
    for _, row in found.references.iterrows():
        assert row["has_family"] == (FRAME.loc[row["genome"], target] > 0)


def test_explanation_without_given_quality(completer, mags):
    """What is left out does not change the quality that was estimated."""
    found = completer.explain(table(mags), "m2", "COG0003", steps=1)
    whole = one(completer, mags.loc[["m2"]])
    assert found.log_odds == pytest.approx(whole.log_odds[completer.families_.index("COG0003")], abs=1e-5)
    assert found.families["change"].notna().all()


def test_explaining_a_model_without_attention(mags):
    model = fit_split(encoder="deep-sets", epochs=1)
    assert model.explain(mags, "m2", "COG0003").families["attribution"].isna().all()


def test_explanations_that_cannot_be_given(completer, mags):
    with pytest.raises(ValueError, match="genome 'nobody' is not in the table"):
        completer.explain(mags, "nobody", "COG0001")
    with pytest.raises(ValueError, match="genome 'm8' has no family that the model knows"):
        completer.explain(mags, "m8", "COG0001")
    with pytest.raises(ValueError, match="family 'COG7777' is not in the model's vocabulary, .* such as 'COG0001'"):
        completer.explain(mags, "m5", "COG7777")
    seed = fit_split(architecture="seed", epochs=1)
    with pytest.raises(ValueError, match="explain is for architecture='evidence'"):
        seed.explain(mags, "m5", "COG0001")


# ---------------------------------------------------------------------- artefacts


@pytest.fixture
def artefact(completer, tmp_path):
    completer.save(tmp_path, {"note": 1})
    return tmp_path


def test_there_and_back(completer, artefact, mags, quality):
    again = GenomeCompleter.load(artefact)
    names = {"config.json", "model.safetensors", "vocabulary.parquet", "references.parquet", "metrics.json"}
    assert {p.name for p in artefact.iterdir()} == names
    assert again.get_params() == completer.get_params()
    for name in ("families_", "levels_", "history_", "histories_", "sizes_", "trained_", "with_taxonomy_"):
        assert getattr(again, name) == getattr(completer, name), name
    for method in EVERY:
        assert again.complete(mags, quality, method=method).equals(completer.complete(mags, quality, method=method))
        assert again.complete(mags, method=method).equals(completer.complete(mags, method=method))
    for a, b in zip(
        completer.completions(table(mags), quality, precision=0.8),
        again.completions(table(mags), quality, precision=0.8),
        strict=True,
    ):
        assert (a.call == b.call).all()
        assert (a.low, a.high, a.novelty, a.nearest, a.far, a.warnings) == (
            b.low,
            b.high,
            b.novelty,
            b.nearest,
            b.far,
            b.warnings,
        )
    pd.testing.assert_frame_equal(again.references_, completer.references_)
    assert (
        again.explain(mags, "m5", "COG0003", quality, steps=1).terms
        == completer.explain(mags, "m5", "COG0003", quality, steps=1).terms
    )
    assert json.loads((artefact / "metrics.json").read_text())["note"] == 1
    again.save(artefact / "twice")
    assert GenomeCompleter.load(artefact / "twice").complete(mags).equals(completer.complete(mags))


def test_the_seed_and_its_options_come_back(tmp_path, mags):
    model = fit_split(architecture="seed", epochs=1, encoder_options={"num_outputs": 3}, patience=None)
    model.save(tmp_path)
    again = GenomeCompleter.load(tmp_path)
    assert again.encoder_options == {"num_outputs": 3}
    assert again.patience is None
    assert again.complete(mags).equals(model.complete(mags))


def edit(artefact, change):
    path = artefact / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format_version=2), "has format_version 2, this Omniset reads 1"),
        (lambda c: c.update(format="other"), "is not of format 'omniset-model'"),
        (
            lambda c: c["arguments"].update(num_heads=3),
            "changed after the model was saved: arguments.num_heads was 2, is 3",
        ),
        (lambda c: c["fitted"]["levels"][0].update(spread=1.0), "changed after the model was saved: fitted.levels"),
        (lambda c: c.pop("fitted"), "changed after the model was saved: fitted was"),
    ],
)
def test_a_changed_config(artefact, change, message):
    edit(artefact, change)
    with pytest.raises(ValueError, match=message):
        GenomeCompleter.load(artefact)


def test_an_artefact_of_another_class(artefact):
    with pytest.raises(ValueError, match="holds a GenomeCompleter, not a SetClassifier"):
        SetClassifier.load(artefact)

    class Other(GenomeCompleter):
        pass

    with pytest.raises(ValueError, match="holds a GenomeCompleter, not a Other"):
        Other.load(artefact)


def test_a_config_of_other_arguments(artefact):
    """Consistent in both places, but not what this class takes."""
    path = artefact / "model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    config = json.loads((artefact / "config.json").read_text())
    config["arguments"]["colour"] = "red"
    safetensors.torch.save_file(tensors, path, metadata | {"omniset_config": json.dumps(config)})
    (artefact / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not describe a GenomeCompleter: .*colour"):
        GenomeCompleter.load(artefact)


def test_damaged_artefacts(artefact, tmp_path):
    vocabulary = artefact / "vocabulary.parquet"
    whole = vocabulary.read_bytes()
    frame = pq.read_table(vocabulary).to_pandas()
    for changed in (frame[::-1], frame[1:], frame.assign(family="x" + frame["family"])):
        changed.to_parquet(vocabulary, index=False)
        with pytest.raises(ValueError, match=r"vocabulary.parquet is not the vocabulary that the model was saved with"):
            GenomeCompleter.load(artefact)
    vocabulary.write_bytes(whole[:50])
    with pytest.raises(ValueError, match=r"vocabulary.parquet is damaged"):
        GenomeCompleter.load(artefact)
    vocabulary.unlink()
    with pytest.raises(FileNotFoundError, match=r"is no whole artefact: it has no vocabulary.parquet"):
        GenomeCompleter.load(artefact)
    vocabulary.write_bytes(whole)
    references = artefact / "references.parquet"
    pq.read_table(references).to_pandas()[2:].to_parquet(references, index=False)
    with pytest.raises(ValueError, match=r"references.parquet.* is not of the genomes that the model was saved with"):
        GenomeCompleter.load(artefact)
    references.unlink()
    with pytest.raises(FileNotFoundError, match=r"it has no references.parquet"):
        GenomeCompleter.load(artefact)
    (artefact / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no model.safetensors"):
        GenomeCompleter.load(artefact)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        GenomeCompleter.load(tmp_path / "nowhere")


def test_weights_that_do_not_fit(artefact):
    path = artefact / "model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    name = next(n for n in tensors if n.endswith("belief"))
    kept = tensors.pop(name)
    safetensors.torch.save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=f"{name} is missing"):
        GenomeCompleter.load(artefact)
    safetensors.torch.save_file(tensors | {name: kept[1:]}, path, metadata)
    with pytest.raises(ValueError, match=rf"{name} has shape \(\d+, 2\), expected"):
        GenomeCompleter.load(artefact)


def test_categories_come_along():
    found = table()
    found.categories.update({"COG0001": "H", "COG0003": "C"})
    found.descriptions.update({"COG0001": "a synthase"})
    clades = Clades.of_taxonomy(TAXONOMY, found.names, "family")
    model = GenomeCompleter(**SMALL | {"method": "knn"}).fit_split(found, TAXONOMY, clades, *SPLIT)
    vocabulary = model.vocabulary_.set_index("family")
    assert vocabulary.loc["COG0001"].tolist() == ["H", "a synthase"]
    assert vocabulary.loc["COG0003"].tolist() == ["C", ""]
    assert (vocabulary["category"] != "").sum() == 2


def test_thresholds_of_one_method_are_not_taken_for_another(completer, mags):
    with pytest.raises(ValueError, match="precision is calibrated for method 'evidence', not for 'knn'"):
        completer.completions(mags, method="knn", precision=0.9)
    assert list(completer.completions(mags, method="auto", precision=0.9))


def test_a_threshold_and_a_precision_are_one_too_many(completer, mags):
    with pytest.raises(ValueError, match="give threshold or precision, not both: got 0.7 and 0.9"):
        completer.completions(mags, threshold=0.7, precision=0.9)
