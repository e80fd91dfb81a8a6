"""New expression on another scale than at fit is refused or doubted, and brought there; other regions never are."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from region_methods import write

from omniset.cli import main
from omniset.regions import ConnectivityPredictor, read_regions
from omniset.regions.data import simulate
from omniset.regions.scaling import check_scale, rescaled
from omniset.regions.splits import split

QUIET = {"progress": False, "device": "cpu"}


def standardised(values):
    return (values - np.nanmean(values, 0)) / np.nanstd(values, 0)


OTHERS = {
    "x 10": lambda x: 10 * x,
    "/ 10": lambda x: x / 10,
    "z": standardised,
    "log2": lambda x: np.log2(x + 0.01),
    "log10": lambda x: np.log10(x + 0.01),
    "2^": lambda x: 2 ** (8 * x),
    "+ 1": lambda x: x + 1,
}


@pytest.fixture(scope="module")
def made():
    return simulate(60, 40)


@pytest.fixture(scope="module")
def model(made):
    return ConnectivityPredictor(method="ridge", **QUIET).fit_rows(made, np.arange(2, 60))


def fresh(made, rows=slice(None), change=lambda x: x):
    """Regions without connectivity, as new ones come."""
    values = change(made.expression.astype(np.float64)).astype(np.float32)
    return made.with_(expression=values, connectivity=None).take(np.arange(len(made))[rows])


# ---------------------------------------------------------------------- what is refused, and what is not


def atlas(name):
    if "OMNISET_DATA" not in os.environ:
        pytest.skip("OMNISET_DATA does not say where the real data is")
    folder = Path(os.environ["OMNISET_DATA"]) / "regions" / name
    return read_regions(folder / "expression.csv.gz", None, folder / "regions.csv")


@pytest.mark.parametrize("values", ["as they are", "standardised", "logarithms"])
@pytest.mark.parametrize("name", ["dk82", "schaefer_100"])
def test_held_out_regions_of_real_data_are_never_doubted(name, values):
    regions = atlas(name)
    x = regions.expression.astype(np.float64)[:, :400]
    rng = np.random.default_rng(0)
    if values == "standardised":
        x = standardised(x)
    elif values == "logarithms":  # genes of their own mean each
        x = 8 * x + rng.normal(size=x.shape[1]) * 3
    for kind in ("spatial", "random"):
        for test in split(kind, regions, 4, 0):
            rest = np.setdiff1d(np.arange(len(x)), test)
            for few in (test, rng.choice(test, 2, replace=False), test[:1]):
                check_scale(x[rest], x[few])
    below = np.array([network == "subcortex" for network in regions.network])
    check_scale(x[~below], x[below][:2])
    check_scale(x, x)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["dk82", "schaefer_100"])
def test_another_scale_of_real_data_is_refused(name, kind):
    regions = atlas(name)
    x = regions.expression.astype(np.float64)[:, :400]
    for test in split("spatial", regions, 4, 0)[:2]:
        rest = np.setdiff1d(np.arange(len(x)), test)
        for few in (test, test[:2]):
            with pytest.raises(ValueError, match="expression is on another scale than at fit"):
                check_scale(x[rest], OTHERS[kind](x)[few])


def test_values_between_0_and_1_are_refused_of_a_model_of_z_scores():
    x = atlas("dk82").expression.astype(np.float64)[:, :400]
    for few in (slice(0, 20), slice(0, 2)):
        with pytest.raises(ValueError, match=r"are negative|0% are negative, at fit"):
            check_scale(standardised(x)[20:], x[few])


@pytest.mark.parametrize("kind", OTHERS)
def test_predictions_are_refused_not_made(model, made, kind):
    """Python's verbs, for all of the regions and for two."""
    for rows in (slice(None), slice(0, 2)):
        other = fresh(made, rows, OTHERS[kind])
        for call in (
            lambda other=other: model.predict_matrix(other),
            lambda other=other: model.predict([(0, 1)], other),
            lambda other=other: model.explain(*other.names[:2], other),
        ):
            with pytest.raises(ValueError, match="expression is on another scale than at fit"):
                call()
    changed = made.with_(expression=OTHERS[kind](made.expression.astype(np.float64)).astype(np.float32))
    with pytest.raises(ValueError, match="expression is on another scale than at fit"):
        model.score(changed)


def test_the_error_says_what_differs_and_what_helps(model, made):
    low, high = np.quantile(model.regions_.expression, (0.25, 0.75))
    message = (
        f"half of its values lie between {10 * low:.1f}.* and {10 * high:.1f}.*, at fit between {low:.2f}.* and "
        f"{high:.2f}.*. Give it as it was at fit; or.* 10 at least, rescale='genes' .* rescale='ranks'"
    )
    with pytest.raises(ValueError, match=message):
        model.predict_matrix(fresh(made, slice(2, 60), lambda x: 10 * x))
    with pytest.raises(ValueError, match=r"and \d\d% are negative, at fit 0%"):
        model.predict_matrix(fresh(made, slice(None), standardised))


def test_a_moderate_difference_is_a_warning(model, made):
    for change in (lambda x: 2 * x, lambda x: x / 2):
        with pytest.warns(UserWarning, match="expression may be on another scale than at fit: half of its values lie"):
            model.predict_matrix(fresh(made, change=change))
    levels = made.expression + 20 * np.random.default_rng(0).permutation(40)  # genes of their own level each
    others = levels + np.tile([0, 3, 0, -3], 10)
    with pytest.warns(UserWarning, match=r"expression of \d\d% of the genes is far outside of what the model has"):
        check_scale(levels, others)
    z = standardised(made.expression.astype(np.float64))
    with pytest.warns(UserWarning, match="expression may be on another scale"):
        check_scale(z, 3 * z)


def test_no_alarm_for_regions_of_the_same_data(model, made):
    for rows in (slice(None), slice(0, 2), slice(2, 60), slice(7, 9)):
        model.predict_matrix(fresh(made, rows))
    lacking = fresh(made, slice(0, 5))
    lacking.expression[0, 3] = np.nan
    lacking.expression[:, 5] = np.nan
    model.predict_matrix(lacking)
    check_scale(np.vstack([made.expression, np.full((1, 40), np.nan, np.float32)]), made.expression[:3])
    check_scale(
        made.expression, 10 * made.expression[:, :40] * np.where(np.arange(40) < 9, 1, np.nan)
    )  # too few to tell
    sparse = np.where(made.expression > 0.98, made.expression, 0)
    check_scale(sparse, sparse[:9])


def test_a_method_without_genes_asks_for_no_scale(made):
    distance = ConnectivityPredictor(method="geometry", **QUIET).fit(made)
    found = distance.predict_matrix(fresh(made, change=lambda x: 10 * x))
    pd.testing.assert_frame_equal(found, distance.predict_matrix())


# ---------------------------------------------------------------------- what is brought to the scale of the fit


def test_by_genes_whatever_is_linear_is_undone(made):
    x = made.expression.astype(np.float64)
    slope, shift = np.random.default_rng(1).normal(size=(2, 40))
    np.testing.assert_allclose(rescaled(x, x * np.abs(slope) * 9 + shift, "genes"), x, atol=1e-9)
    other = rescaled(x, 50 + 7 * x[:30] ** 2, "genes")
    np.testing.assert_allclose(other.mean(0), x.mean(0))
    np.testing.assert_allclose(other.std(0), x.std(0))


def test_by_ranks_whatever_is_monotone_is_undone(made):
    x = made.expression.astype(np.float64)
    np.testing.assert_allclose(rescaled(x, np.exp(9 * x), "ranks"), x, atol=1e-9)
    ties = np.repeat([[0.0], [1.0]], 6, 0) * np.ones(40)
    found = rescaled(x, ties, "ranks")
    expected = np.quantile(x, [0.25, 0.75], axis=0, method="hazen")
    np.testing.assert_allclose(found, np.repeat(expected, 6, 0))


@pytest.mark.parametrize("how", ["genes", "ranks"])
def test_what_is_not_measured_stays_so(made, how):
    x = made.expression.astype(np.float64)
    new = 10 * x
    new[3, 5] = np.nan
    new[:, 7] = np.nan
    found = rescaled(x, new, how)
    assert np.array_equal(np.isnan(found), np.isnan(new))
    new[:, 8] = 2
    with pytest.warns(UserWarning, match=f"rescale='{how}': 1 gene\\(s\\) are the same in all new regions"):
        found = rescaled(x, new, how)
    np.testing.assert_allclose(found[:, 8], x[:, 8].mean() if how == "genes" else np.median(x[:, 8]))


@pytest.mark.parametrize("how", ["genes", "ranks"])
@pytest.mark.parametrize("kind", ["x 10", "z", "log2"])
def test_rescaled_predictions_are_those_of_the_scale_of_the_fit(model, made, kind, how):
    same = fresh(made, slice(2, 60))
    expected = model.predict_matrix(same)
    other = fresh(made, slice(2, 60), OTHERS[kind])
    found = model.predict_matrix(other, rescale=how)
    pairs = np.triu_indices(58, 1)
    r = np.corrcoef(found.to_numpy()[pairs], expected.to_numpy()[pairs])[0, 1]
    assert r > (0.9 if kind == "log2" and how == "genes" else 0.999)
    pair = expected.index[:2].tolist()
    assert model.predict([pair], other, rescale=how)[0] == pytest.approx(found.loc[*pair], rel=1e-9)


def test_what_cannot_be_rescaled(model, made):
    for options, message in (
        ({"rescale": "x"}, "rescale must be one of genes, ranks, got 'x'"),
        ({"rescale": "genes"}, "rescale='genes' needs 10 new regions at least to tell their distribution, got 9"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict_matrix(fresh(made, slice(0, 9)), **options)
    with pytest.raises(ValueError, match="rescale comes with expression: without, the regions of fit are meant"):
        model.predict_matrix(rescale="genes")


# ---------------------------------------------------------------------- the shell


def test_at_the_shell(made, tmp_path, capsys):
    write(made, tmp_path)
    names = {"expression": "expression", "connectivity": "connectivity", "coordinates": "regions"}
    given = {name: [f"--{name}", str(tmp_path / f"{file}.csv")] for name, file in names.items()}
    quiet = ["--progress", "false", "--device", "cpu"]
    ConnectivityPredictor(method="ridge", **QUIET).fit(
        *(tmp_path / f"{name}.csv" for name in ("expression", "regions", "connectivity"))
    ).save(tmp_path / "model")
    table = pd.read_csv(tmp_path / "expression.csv", index_col=0)
    (10 * table).to_csv(tmp_path / "ten.csv")
    command = ["regions", "predict", "--model", str(tmp_path / "model"), *given["coordinates"], *quiet]
    ten = ["--expression", str(tmp_path / "ten.csv")]
    assert main([*command, *given["expression"], "--out", str(tmp_path / "a.csv")]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main([*command, *ten, "--out", str(tmp_path / "b.csv")]) == 2
    assert "omniset: error: expression is on another scale than at fit: half of its" in capsys.readouterr().err
    assert not (tmp_path / "b.csv").exists()
    assert main([*command, *ten, "--rescale", "genes", "--out", str(tmp_path / "b.csv")]) == 0
    one, other = (pd.read_csv(tmp_path / f"{name}.csv", index_col=0) for name in "ab")
    np.testing.assert_allclose(one, other, atol=1e-4)
    (2 * table).to_csv(tmp_path / "ten.csv")
    assert main([*command, *ten, "--out", str(tmp_path / "c.csv")]) == 0
    assert "warning: expression may be on another scale than at fit" in capsys.readouterr().err
