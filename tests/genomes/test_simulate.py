import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import expm
from scipy.stats import beta

from omniset.genomes import simulate as module
from omniset.genomes.simulate import Families, Tree, clades, draw_families, gain_and_loss, simulate, write, yule_tree

SIGMAS = 4.5  # of a mean over draws; the seeds are fixed


@pytest.fixture(scope="module")
def simulated():
    return simulate(genomes=211, families=307, mags=53, seed=5)


def same(families, frequency, turnover, duplication, per_module=1):
    ones = np.ones(families)
    return Families(frequency * ones, turnover * ones, duplication * ones, np.arange(families) // per_module)


def before_and_after(t):
    """The first leaf is what the root was, the second is a branch away."""
    return Tree(np.array([-1, 0, 0]), np.array([0.0, 0.0, t]))


def assert_drawn_from(values, probabilities, variance=1.0):
    """`values` are draws of 0, 1, 2, ...; `variance` of their shares, relative to independent draws."""
    shares = np.bincount(values, minlength=len(probabilities))[: len(probabilities)] / len(values)
    error = np.sqrt(variance * probabilities * (1 - probabilities) / len(values))
    assert (np.abs(shares - probabilities) <= SIGMAS * error + 1e-9).all()
    assert (SIGMAS * error).max() < 0.05  # else it says little


@pytest.mark.parametrize(("together", "per_module"), [(0.0, 1), (0.9, 2), (1.0, 3)])
def test_presence_is_the_two_state_chain(rng, together, per_module):
    pi, r, t = 0.3, 1.7, 0.6
    gain, loss = r * pi, r * (1 - pi)
    transition = expm(t * np.array([[-gain, gain], [loss, -loss]]))
    families = same(30_030, pi, r, 0.0, per_module)
    before, after = gain_and_loss(before_and_after(t), families, rng, together=together)
    assert_drawn_from(before, np.array([1 - pi, pi]), per_module)
    for state in (0, 1):
        assert_drawn_from(after[before == state], transition[state], per_module)


def test_copies_are_the_birth_death_process(rng):
    r, rho, t, most = 1.3, 0.4, 0.7, 60
    extra = np.arange(most)
    generator = np.diag(r * rho * (1 + extra[:-1]), 1) + np.diag(r * extra[1:].astype(float), -1)
    generator -= np.diag(generator.sum(1))
    transition = expm(t * generator)
    stationary = (1 - rho) * rho**extra
    assert np.abs(stationary @ transition - stationary).max() < 1e-12
    before, after = gain_and_loss(before_and_after(t), same(40_009, 1.0, r, rho), rng)
    assert before.min() == after.min() == 1
    assert_drawn_from(before - 1, stationary[:7])
    for copies in (1, 2, 3):
        assert_drawn_from(after[before == copies] - 1, transition[copies - 1, :7])


def test_drawn_families_have_the_means_asked_for(rng):
    families = draw_families(60_013, size=24_000.0, copies=1.2, rate=3.0, rng=rng)
    assert families.frequency.sum() == pytest.approx(24_000, rel=0.03)
    assert (1 / (1 - families.duplication)).mean() == pytest.approx(1.2, rel=0.02)
    assert families.turnover.mean() == pytest.approx(3.0, rel=0.03)
    edges = np.linspace(0, 1, 11)
    shares = np.histogram(families.frequency, edges)[0] / 60_013
    assert np.abs(shares - np.diff(beta(1.3 * 0.4, 1.3 * 0.6).cdf(edges))).max() < 0.02
    assert shares[0] > 2 * shares[5]
    assert shares[9] > shares[5]
    sizes = np.bincount(families.module)
    assert sizes[sizes > 0].mean() == pytest.approx(3, rel=0.02)
    for shared in (families.frequency, families.turnover):
        assert len(np.unique(shared)) == (sizes > 0).sum()
    assert (draw_families(11, size=3.0, copies=1.0, rate=1.0, rng=rng).duplication == 0).all()


def within_and_between(content, groups):
    """Mean correlation of columns of one group, and of different ones."""
    varied = content.std(0) > 0
    found, groups = np.corrcoef(content[:, varied].T), groups[varied]
    pairs = np.triu(np.ones_like(found, dtype=bool), 1)
    together = groups[:, None] == groups
    return found[pairs & together].mean(), found[pairs & ~together].mean()


def test_members_of_a_module_go_together(rng):
    tree = yule_tree(151, rng)
    families = draw_families(211, size=80.0, copies=1.3, rate=2.0, rng=rng)
    content = gain_and_loss(tree, families, rng) > 0
    inside, between = within_and_between(content, families.module)
    assert inside > 0.5
    assert abs(between) < 0.05
    inside, _ = within_and_between(gain_and_loss(tree, families, rng, together=0.0) > 0, families.module)
    assert abs(inside) < 0.1


def test_a_yule_tree(rng):
    tree = yule_tree(997, rng)
    inner = np.setdiff1d(np.arange(len(tree.parent)), tree.leaves)
    assert (tree.parent[1:] < np.arange(1, len(tree.parent))).all()
    assert (np.bincount(tree.parent[1:])[inner] == 2).all()
    assert np.abs(tree.depth[tree.leaves] - 1).max() < 1e-12
    assert tree.length.min() >= 0
    # Pairs of leaves: n / 3, variance 2 n / 45 (McKenzie and Steel, "Distributions of cherries", 2000).
    cherries = (np.bincount(tree.parent[tree.leaves]) == 2).sum()
    assert abs(cherries - 997 / 3) < SIGMAS * np.sqrt(2 * 997 / 45)
    # k lineages wait for Exp(k): times k, all waits have the same mean.
    waits = np.diff(np.append(np.sort(tree.depth[inner]), 1.0)) * np.arange(2, 998)
    assert 0.75 < waits[:498].mean() / waits[498:].mean() < 1.33


def test_clades_of_a_tree():
    """((a:2,b:2):8,(c:7,d:7):3)"""
    tree = Tree(np.array([-1, 0, 1, 1, 0, 4, 4]), np.array([0.0, 8, 2, 2, 3, 7, 7]))
    assert clades(tree) == [
        "d__Simulated;p__P1;c__C1;o__O1;f__F1;g__G1;s__S1",
        "d__Simulated;p__P1;c__C1;o__O1;f__F1;g__G2;s__S2",
        "d__Simulated;p__P2;c__C2;o__O2;f__F2;g__G3;s__S3",
        "d__Simulated;p__P2;c__C3;o__O3;f__F3;g__G4;s__S4",
    ]


def test_what_is_simulated(simulated):
    s = simulated
    assert s.counts.shape == (211, 307)
    assert s.truth.shape == s.observed.shape == (53, 307)
    assert (s.families[0], s.families[-1]) == ("FAM00001", "FAM00307")
    assert len({*s.genomes, *s.mags}) == len(s.taxonomy) == 211 + 53
    assert (s.counts > 0).any(0).all()
    for true, estimated, (low, high) in (
        (s.completeness, s.estimated_completeness, (50, 95)),
        (s.contamination, s.estimated_contamination, (0, 10)),
    ):
        assert low <= true.min() < low + 5
        assert high - 5 < true.max() <= high
        assert 2 < np.abs(estimated - true).max() <= 5
        assert estimated.min() >= 0
        assert estimated.max() <= 100
    recovered = np.minimum(s.observed, s.truth).sum(1) / s.truth.sum(1)
    assert np.corrcoef(recovered, s.completeness)[0, 1] > 0.9
    foreign = (s.observed * (s.truth == 0)).sum(1)
    assert np.corrcoef(foreign, s.contamination)[0, 1] > 0.5


def test_some_mags_have_relatives_and_some_have_none(simulated):
    family = [line.split(";")[4] for line in simulated.taxonomy]
    references = set(family[:211])
    novel = sum(name not in references for name in family[211:])
    assert 0.3 * 53 < novel < 0.7 * 53


@pytest.mark.parametrize("completeness", [100.0, 0.0])
def test_mags_may_be_whole_or_empty_and_clean(completeness, monkeypatch):
    monkeypatch.setattr(module, "COMPLETENESS", (completeness, completeness))
    monkeypatch.setattr(module, "CONTAMINATION", (0.0, 0.0))
    s = simulate(genomes=23, families=31, mags=7)
    assert s.truth.any()
    assert (s.observed == s.truth * (completeness > 0)).all()


def test_the_seed_decides():
    one, again, other = (dataclasses.asdict(simulate(genomes=23, families=31, mags=7, seed=seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    for name in ("counts", "truth", "observed", "completeness", "contamination", "taxonomy"):
        assert not np.array_equal(one[name], other[name])


def test_what_is_written(tmp_path, simulated):
    s, folder = simulated, tmp_path / "new" / "folder"
    write(folder, s)
    tables = {path.stem: pd.read_csv(path, sep="\t") for path in folder.iterdir()}
    for name, genomes, counts in (
        ("families", s.genomes, s.counts),
        ("mags", s.mags, s.observed),
        ("truth", s.mags, s.truth),
    ):
        pd.testing.assert_frame_equal(
            tables.pop(name).set_index("genome"),
            pd.DataFrame(counts, pd.Index(genomes, name="genome"), s.families),
        )
    assert tables.pop("taxonomy").to_dict("list") == {"genome": [*s.genomes, *s.mags], "taxonomy": s.taxonomy}
    quality = tables.pop("quality_report").set_index("Name")
    assert [*quality] == ["Completeness", "Contamination"]
    estimated = np.stack([s.estimated_completeness, s.estimated_contamination], 1)
    assert np.abs(quality.loc[s.mags].to_numpy() - estimated).max() <= 0.00501
    assert not tables


def test_nothing_is_half_written(tmp_path, simulated, monkeypatch):
    (tmp_path / "mags.tsv").write_text("of before")

    class Failing(module.TableWriter):
        def write(self, frame):
            super().write(frame)
            if self.path.name == "truth.tsv":
                raise OSError("the disk is full")

    monkeypatch.setattr(module, "TableWriter", Failing)
    with pytest.raises(OSError, match="the disk is full"):
        write(tmp_path, simulated)
    assert [path.name for path in tmp_path.iterdir()] == ["mags.tsv"]
    assert (tmp_path / "mags.tsv").read_text() == "of before"
