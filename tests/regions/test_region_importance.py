"""Nulls that are as smooth, the test by them, and the importance of genes."""

import numpy as np
import pytest
from region_methods import brain_of, squared

from omniset.regions.data import mirrored
from omniset.regions.importance import _tables, gene_importance, read_gmt
from omniset.regions.methods import geometry_of
from omniset.regions.null_models import NullResult, Statistic, null_test, surrogates, variogram, variogram_of
from omniset.regions.set_attention import SetAttention
from omniset.regions.splits import random_folds


def smooth_maps(number=61, maps=3, seed=0):
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(number, 3)) * [40.0, 50.0, 30.0]
    near = np.exp(-squared(places, places) / (2 * 30.0**2))
    return places, np.linalg.cholesky(near + 1e-6 * np.eye(number)) @ rng.normal(size=(number, maps))


def test_the_variogram_is_that_of_loops():
    places, maps = smooth_maps(13, 2)
    apart = np.sqrt(squared(places, places))
    bins = [((apart > low) & (apart <= high)).astype(float) for low, high in ((0, 40), (40, 80))]
    for number, (low, high) in enumerate(((0, 40), (40, 80))):
        pairs = [(i, j) for i in range(13) for j in range(13) if low < apart[i, j] <= high]
        expected = [np.mean([(x[i] - x[j]) ** 2 / 2 for i, j in pairs]) for x in maps.T]
        assert np.allclose(variogram_of(maps, bins)[number], expected)


def test_variogram_surrogates_are_as_smooth():
    places, maps = smooth_maps()
    apart = np.sqrt(squared(places, places))
    near = [((apart > 0) & (apart <= 30)).astype(float)]
    wanted = variogram_of(maps, near)[0] / maps.var(0)
    made = np.mean([variogram_of(new, near)[0] / new.var(0) for new in variogram(maps, places, 40, 0)], 0)
    shuffled = np.random.default_rng(0).permutation(maps)
    rough = variogram_of(shuffled, near)[0] / shuffled.var(0)
    assert (abs(made - wanted) < 0.5 * abs(rough - wanted)).all()


def test_kinds():
    regions = brain_of()
    maps = regions.expression.astype(float)
    for kind in ("spin", "variogram"):
        one, again = (list(surrogates(kind, maps, regions, 2, 3)) for _ in range(2))
        assert len(one) == 2
        assert np.array_equal(one, again)
    spun = next(iter(surrogates("spin", maps, regions, 1, 3)))
    assert np.array_equal(np.sort(spun, 0), np.sort(maps, 0))
    # Variogram surrogates know hemispheres as mirror images.
    turned = regions.with_(coordinates=regions.coordinates * [-1, 1, 1])
    one, other = (next(iter(surrogates("variogram", maps, made, 1, 3))) for made in (regions, turned))
    assert np.allclose(one, other)
    with pytest.raises(ValueError, match="kind must be one of 'spin', 'variogram', got 'none'"):
        list(surrogates("none", maps, regions, 1, 0))


def test_the_statistic_against_loops(monkeypatch):
    monkeypatch.setattr("omniset.regions.null_models.RATES", (0.3,))
    monkeypatch.setattr("omniset.regions.null_models.PENALTIES", (0.2,))
    regions = brain_of(unknown=None)
    folds = random_folds(23, 3, 0)
    maps = regions.expression.astype(float)
    d = squared(maps, maps)
    like = np.exp(-0.3 * d / d.mean())
    c = mirrored(regions.coordinates)
    sides = (regions.coordinates[:, :1] > 0) != (regions.coordinates[:, 0] > 0)
    near = np.exp(-squared(c, c) / (2 * 25.0**2) - 0.5 * sides)
    for what, kernel in (("genes", 1 + like), ("genes and places", 1 + (like + near) / 2)):
        found = []
        for rows in folds:
            learn = np.setdiff1d(np.arange(23), rows)
            trunk = geometry_of(regions.take(learn))
            everything = np.array([(i, j) for i in range(23) for j in range(23) if i != j])
            rest = np.zeros((23, 23))
            rest[tuple(everything.T)] = regions.connectivity[tuple(everything.T)] - trunk.predict(regions, everything)
            inverse = np.linalg.inv(kernel[np.ix_(learn, learn)] + 0.2 * np.eye(len(learn)))
            s = kernel[np.ix_(rows, learn)] @ inverse
            predicted = s @ rest[np.ix_(learn, learn)] @ s.T
            i, j = np.triu_indices(len(rows), 1)
            pairs = np.stack([rows[i], rows[j]], 1)
            predicted = predicted[i, j] + trunk.predict(regions, pairs)
            found.append(np.corrcoef(regions.connectivity[tuple(pairs.T)], predicted)[0, 1])
        assert Statistic(regions, folds)(maps)[what] == pytest.approx(np.mean(found), rel=1e-9)


def test_genes_that_matter_beat_their_nulls_and_others_do_not():
    regions = brain_of(47, unknown=None)
    folds = random_folds(47, 4, 0)
    rng = np.random.default_rng(0)
    nulls = [regions.expression[rng.permutation(47)].astype(float)[:, :3] for _ in range(199)]
    statistic = Statistic(regions, folds)
    observed = statistic(regions.expression[:, :3].astype(float))["genes"]
    assert NullResult("genes", "spin", observed, np.array([statistic(n)["genes"] for n in nulls])).p == 1 / 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omniset.regions.null_models.maps_of", lambda regions: nulls[0])
        (genes, _) = null_test(regions, folds, "spin", nulls[1:])
    assert genes.p > 0.01
    about = genes.as_dict()
    assert about["gain"] == pytest.approx(genes.observed - genes.nulls.mean())
    assert about["gain_low"] < about["gain"] < about["gain_high"]


def test_the_planted_genes_are_important(monkeypatch):
    monkeypatch.setattr("omniset.regions.set_attention.STEPS", 20)
    regions = brain_of(67, genes=17, unknown=None, alike=3.0)
    attention = SetAttention()
    attention.held_out = "random"
    sets = {"planted": ["G0", "G1", "G2"], "none": ["G7", "G8", "G9", "absent"], "small": ["G0", "nowhere"]}
    genes, of_sets = gene_importance(regions, attention, 199, 0, sets)
    assert set(genes["gene"].head(3)) == {"G0", "G1", "G2"}
    assert len(genes) == 17
    p = genes.set_index("gene")["p"]
    assert p[["G0", "G1", "G2"]].max() == 1 / 200
    assert of_sets["set"].tolist() == ["planted", "none"]
    assert of_sets["genes"].tolist() == [3, 3]
    assert of_sets["p"][0] == 1 / 200
    assert of_sets["importance"][0] == pytest.approx(genes["importance"].head(3).mean())


def test_p_of_sets_keeps_how_genes_vary_together():
    """Two sets of equal importance; the genes of one are one gene five times, whose mean varies as much as each."""
    rng = np.random.default_rng(0)
    nulls = rng.normal(size=(999, 10))
    nulls[:, 5:] = nulls[:, 5:6]
    genes = [f"g{i}" for i in range(10)]
    _, sets = _tables(genes, np.full(10, 1.0), nulls, {"apart": genes[:5], "together": genes[5:]})
    p = sets.set_index("set")["p"]
    assert p["apart"] == pytest.approx((1 + (nulls[:, :5].mean(1) >= 1).sum()) / 1000)
    assert p["together"] > 3 * p["apart"]
    with pytest.raises(ValueError, match="none of the 1 gene sets has 3 genes"):
        _tables(genes, np.ones(10), nulls, {"a": ["x"]})


def test_bad_arguments():
    with pytest.raises(ValueError, match="nulls must be >= 1, got 0"):
        gene_importance(brain_of(), SetAttention(), 0, 0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tabout\n", "line 1: must have a name"),
        ("a\tabout\tG1\n\na\tabout\tG2\n", "line 3: the set 'a' is there more than once"),
        ("\n", "has no sets"),
    ],
)
def test_bad_gmt(tmp_path, text, message):
    path = tmp_path / "sets.gmt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_gmt(path)
    path.write_bytes(b"a\tb\t\xff")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_gmt(path)
    path.write_text("a\thttp://x\tG1\t G2\t\r\n")
    assert read_gmt(path) == {"a": ["G1", "G2"]}
