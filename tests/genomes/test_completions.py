"""What is said of genomes, one by one, and why: by methods, qualities, thresholds."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from genome_oracle import FRAME, SPLIT, by, evidence, prevalence, table

from omniset.genomes import training
from omniset.genomes.calibration import GRID, at_quality
from omniset.genomes.noise import Observed

pytestmark = pytest.mark.filterwarnings("ignore:quality")  # some genomes have none, some qualities no genome


def one(completer, frame, quality=None, **options):
    (found,) = completer.completions(table(frame), quality, **options)
    return found


def test_all_forms_of_genomes_are_one(completer, mags, quality, tmp_path):
    expected = completer.complete(mags, quality)
    assert expected.index.tolist() == mags.index.tolist()
    assert expected.columns.tolist() == completer.families_
    assert expected.index.name == "genome"
    assert ((expected > 0) & (expected < 1)).all().all()
    assert completer.complete(table(mags), quality).equals(expected)
    mags.rename_axis("genome").reset_index().to_csv(tmp_path / "mags.tsv", sep="\t", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reader: a genome without families
        found = completer.complete(tmp_path / "mags.tsv", quality)
    assert found.equals(expected)
    assert completer.complete(mags[:0]).shape == (0, len(completer.families_))


def test_streaming_in_any_batch_size(completer, mags, quality, monkeypatch):
    whole = completer.complete(mags, quality)
    for size in (1, 2, 7, 11):
        monkeypatch.setattr(training, "BATCH_SIZE", size)
        taken = []

        def stream(taken=taken):
            for genome in table(mags):
                taken.append(genome.name)
                yield genome

        found = completer.completions(stream(), quality)
        first = next(found)
        assert len(taken) == size  # no more than a batch is read ahead
        for i, completion in enumerate([first, *found]):
            assert completion.name == mags.index[i]
            assert np.abs(completion.probability - whole.iloc[i]).max() <= 3e-6


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


def test_a_simple_method_is_what_it_says(completer, mags, quality):
    """In float32, through the whole of `complete`; the mathematics of all methods is tested in float64 by itself."""
    counts, seen = (frame[completer.families_].to_numpy() for frame in (FRAME, mags))
    prior = np.log(prevalence(counts) / (1 - prevalence(counts)))
    with by(completer, "prevalence-bayes"):
        found = completer.complete(mags, quality).to_numpy()
    for i, name in enumerate(mags.index):
        if name not in ("m3", "m4"):  # whose quality is estimated
            odds = prior + (evidence(counts, seen[i] > 0, *quality.loc[name] / 100) if seen[i].any() else 0)
            assert np.allclose(found[i], 1 / (1 + np.exp(-odds)), atol=1e-5)


def test_families_that_are_not_known(completer, mags):
    wider = mags.assign(COG9998=1, COG9999=[*[0] * 10, 5])
    unknown = r"11 genomes have families that are not among the model's \d+, 14.\d+% of all on average: nothing is said"
    with pytest.warns(UserWarning, match=unknown):
        assert completer.complete(wider).equals(completer.complete(mags))
    with pytest.warns(UserWarning, match=unknown):
        *_, last = completer.completions(table(wider))
    assert last.unknown == {"COG9998": 1, "COG9999": 5}
    strange = table(mags.rename(columns={c: f"K{i:05}" for i, c in enumerate(mags.columns)}))
    with pytest.raises(ValueError, match=r"none of the families of the first .* \(KO\), the model's such as 'COG0001'"):
        completer.complete(strange)
    many = mags.iloc[:1].assign(**{f"COG80{i:02}": 1 for i in range(40)})
    with pytest.warns(UserWarning, match=r"1 genomes have families .* Was the model fitted on other identifiers\?"):
        found = one(completer, many)
    assert any("40 of its" in w and "not in the vocabulary" in w for w in found.warnings)
    assert not any("not in the vocabulary" in w for w in one(completer, mags.iloc[:1]).warnings)


def test_qualities_that_cannot_be(completer, mags, quality):
    def with_cell(column, cell):
        bad = quality.astype(object)
        bad.loc["m5", column] = cell
        return bad

    for bad, message in (
        (with_cell("completeness", 101.0), "quality of genome 'm5': completeness is 101, it must be from 0 to 100"),
        (with_cell("completeness", -1.0), "completeness is -1, it must be from 0 to 100"),
        (with_cell("contamination", -0.5), "contamination is -0.5, it must be >= 0"),
        (with_cell("contamination", np.inf), "contamination is inf, it must be >= 0 and finite"),
        *((with_cell("completeness", text), f"is '{text}', it must be a number") for text in ("9_5", "95,5", "inf")),
        (quality.rename(columns={"completeness": "c"}), "quality has no column 'completeness', it has"),
        (pd.concat([quality, quality.loc[["m5"]]]), "quality: genome 'm5' is there twice"),
        (quality / 100, "quality: completeness is at most .* fractions: multiply completeness and cont"),
        (quality.assign(completeness=quality["completeness"] / 100), "fractions: multiply completeness by 100"),
    ):
        for verb, genomes in ((completer.complete, mags), (completer.completions, table(mags))):  # before any is read
            with pytest.raises(ValueError, match=message):
                verb(genomes, bad)
    assert completer.complete(mags, quality.astype(str)).equals(completer.complete(mags, quality))
    half = quality.assign(contamination=0.5)
    assert one(completer, mags.iloc[:1], half).contamination == pytest.approx(0.5)


def test_qualities_of_other_genomes_are_said(completer, mags, quality):
    """m4 has none, m3 no contamination."""
    some = mags.drop("m0")
    with pytest.warns(UserWarning, match="^quality") as warned:
        completer.complete(some, quality)
    lacking, unused = (str(warning.message) for warning in warned)
    assert lacking.startswith("quality does not give both completeness and contamination of 2 genomes, such as 'm3':")
    assert unused == "quality: 1 of its 10 genomes are not in the table"
    with pytest.raises(ValueError, match="such as 'm.': it has none of them, its names are such as 'x0'"):
        completer.complete(mags, quality.rename(index=lambda name: name.replace("m", "x")))


def test_thresholds_and_precisions_that_cannot_be(completer, mags):
    for options, message in (
        *(({"threshold": bad}, f"threshold must be between 0 and 1, got {bad}") for bad in (0.0, 1.0)),
        *(({"precision": bad}, f"precision must be at least 0.5 and below 1, got {bad}") for bad in (0.4, 1.0)),
        ({"threshold": 0.7, "precision": 0.9}, "give threshold or precision, not both: got 0.7 and 0.9"),
        ({"detection": "detection.tsv"}, "detection must be 'accessory' or None, got 'detection.tsv'"),
    ):
        with pytest.raises(ValueError, match=message):
            completer.completions(mags, **options)


def test_an_empty_genome_gets_the_prior(completer, mags, quality):
    for row in (list(completer.completions(table(mags), quality))[8], one(completer, mags.loc[["m8"]])):
        assert np.array_equal(row.log_odds.astype(np.float32), completer.network_.noise.prior().numpy())
        assert any("no family that the model knows was observed" in w for w in row.warnings)
        assert not row.observed.any()


@pytest.mark.parametrize("threshold", [0.5, 0.2, 0.9])
def test_calls_and_sizes(completer, mags, quality, threshold):
    added = removed = 0
    for completion in completer.completions(table(mags), quality, threshold=threshold):
        observed, p = mags.loc[completion.name, completer.families_].to_numpy() > 0, completion.probability
        assert (completion.observed == observed).all()
        assert (completion.call == (p >= threshold)).all()
        assert (completion.added == ((p >= threshold) & ~observed)).all()
        assert (completion.removed == (~(p >= threshold) & observed)).all()
        added, removed = added + completion.added.sum(), removed + completion.removed.sum()
        assert completion.expected == pytest.approx(p.sum())
        at = at_quality(completer.levels_, completion.completeness, completion.contamination)
        unit = 2 + p[~observed].sum() + (1 - p[observed]).sum()  # what may be missing, or foreign
        off = unit * (at.off if completion.given else at.off_estimated)
        assert completion.low == max(np.floor(completion.expected - off), 0)
        assert completion.high == min(np.ceil(completion.expected + off), len(p))
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
        at = at_quality(completer.levels_, found.completeness, found.contamination)
        add, remove = at.threshold("added", 0.7), at.threshold("removed", 0.7)
        kept = ~(1 - found.probability >= remove)
        assert (found.call == np.where(found.observed, kept, found.probability >= add)).all()
        differ += (base.call != found.call).sum()
        assert not any("reaches a precision" in w for w in found.warnings)  # additions do, at every level
        assert at.removed[0] is not None or not found.removed.any()
    assert differ > 0


def test_where_no_precision_is_reached_nothing_is_changed(completer, mags, monkeypatch):
    """Not even where a probability is 1 in floating point."""
    for level in completer.levels_:
        for change in ("added", "removed"):
            monkeypatch.setattr(level, change, [None] * len(GRID))
    model = completer.network_["evidence"]
    monkeypatch.setattr(model, "forward", lambda observed: torch.where(observed.present, -90.0, 90.0))
    for found in completer.completions(table(mags), precision=0.95):
        assert (found.call == found.observed).all()
        assert any("no addition reaches a precision of 0.95" in w for w in found.warnings)


def test_rare_families_may_be_lost_more_often(completer, mags, quality):
    """What is known of how families are recovered is Bayes' rule on the log-odds; the intervals are those of it."""
    seen = torch.as_tensor(mags[completer.families_].to_numpy(), dtype=torch.float32)
    told = pd.DataFrame(index=mags.index, columns=["completeness", "contamination"], dtype=float)
    told.update(quality)
    observed = Observed(seen, *torch.as_tensor(told.to_numpy() / 100, dtype=torch.float32).unbind(1))
    shift = completer.network_.noise.shift(observed).numpy()
    assert np.abs(shift).max() > 0.5
    for method in ("evidence", "knn"):
        with by(completer, method):
            plain = list(completer.completions(table(mags), quality))
            found = list(completer.completions(table(mags), quality, detection="accessory"))
            wide = completer.complete(mags, quality, detection="accessory")
        for row, (one, other) in enumerate(zip(plain, found, strict=True)):
            more = (other.log_odds - one.log_odds - shift[row])[~one.observed]
            assert np.ptp(more) < 1e-3  # alike, see test_as_many_are_missing_as_completeness_says
            assert method == "evidence" or np.abs(more).max() < 1e-4
            assert np.array_equal(wide.iloc[row], other.probability)
            at = at_quality(completer.accessory_levels_, other.completeness, other.contamination)
            p = other.probability
            off = at.off if other.given else at.off_estimated
            high = p.sum() + off * (2 + p[~other.observed].sum() + (1 - p[other.observed]).sum())
            assert other.high == min(np.ceil(high), len(p))


def wary(completer, limit=0.3):
    """The same model, for which genomes of a greater novelty are far."""
    found = copy.copy(completer)
    found.levels_ = [replace(level, novelty=limit) for level in completer.levels_]
    return found


STRANGE = np.random.default_rng(0).random((13, FRAME.shape[1])) < 0.3
STRANGE = pd.DataFrame(STRANGE.astype(int), [*map(str, range(13))], FRAME.columns)


def test_references_are_as_near_as_can_be(completer):
    frame = FRAME.iloc[SPLIT[0]]
    told = pd.DataFrame({"completeness": 100.0, "contamination": 0.0}, index=frame.index)
    found = list(wary(completer).completions(table(frame), told))
    assert max(c.novelty for c in found) < 0.01
    assert not any(c.far for c in found)
    have = {name: frozenset(np.flatnonzero(row)) for name, row in zip(frame.index, frame.to_numpy(), strict=True)}
    assert all(have[c.nearest] == have[c.name] for c in found)


def test_far_genomes_are_drawn_towards_what_was_observed(completer):
    told = pd.DataFrame({"completeness": 90.0, "contamination": 2.0}, index=STRANGE.index)
    plain = list(completer.completions(table(STRANGE), told))
    with pytest.warns(UserWarning, match="13 of 13 genomes, such as '0', are far from the model's reference genomes"):
        drawn = list(wary(completer).completions(table(STRANGE), told))
    for one, other in zip(plain, drawn, strict=True):
        assert other.far
        assert not one.far
        share = min(2 * (one.novelty - 0.3) / (1 - 0.3), 1)
        assert share > 0
        expected = (1 - share) * one.probability + share * one.observed
        assert np.allclose(other.probability, expected, atol=1e-6)
        assert other.low <= min(one.low, other.expected)
        assert other.high >= max(one.high, other.expected)
        assert "farther from the reference genomes" in other.warnings[0]


def test_explanation(completer, mags, quality):
    target = "COG0019"
    found = completer.explain(mags, "m5", target, quality)
    whole = one(completer, mags.loc[["m5"]], quality)
    position = completer.families_.index(target)
    assert found.log_odds == pytest.approx(whole.log_odds[position], abs=1e-5)
    assert sum(found.terms.values()) == pytest.approx(found.log_odds, abs=1e-6)
    assert list(found.terms) == ["neighbours", "likeliest", "components", "context", "evidence", "shift"]
    assert found.probability == pytest.approx(whole.probability[position], abs=1e-6)
    assert found.observed == (mags.loc["m5", target] > 0)
    seen = mags.loc["m5"]
    rows = found.families.set_index("family")
    assert sorted(rows.index) == sorted(f for f in seen.index[seen > 0] if f in completer.families_)
    assert (rows["count"] == seen[rows.index]).all()
    assert found.families["change"].abs().is_monotonic_decreasing
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
    found = completer.explain(table(mags), "m2", " COG0003 ")  # spelled as tables may have it
    assert found.family == "COG0003"
    whole = one(completer, mags.loc[["m2"]])
    assert found.log_odds == pytest.approx(whole.log_odds[completer.families_.index("COG0003")], abs=1e-5)
    assert found.families["change"].notna().all()


def test_explanations_that_cannot_be_given(completer, mags):
    for method, genome, family, message in (
        ("evidence", "nobody", "COG0001", "genome 'nobody' is not in the table"),
        ("evidence", "m8", "COG0001", "genome 'm8' has no family that the model knows"),
        ("evidence", "m5", "COG7777", "family 'COG7777' is not in the model's vocabulary, .* such as 'COG0001'"),
        ("pca", "m5", "COG0001", "explain is for architecture='evidence'"),
    ):
        with by(completer, method), pytest.raises(ValueError, match=message):
            completer.explain(mags, genome, family)
