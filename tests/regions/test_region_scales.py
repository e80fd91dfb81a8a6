"""New expression on another scale than at fit is refused or doubted; other regions never are."""

import numpy as np
import pandas as pd
import pytest

from omniset.regions import ConnectivityPredictor, read_regions
from omniset.regions.data import simulate
from omniset.regions.scaling import check_scale
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


@pytest.fixture(params=["dk82", "schaefer_100"])
def atlas(request, data_folder):
    folder = data_folder / "regions" / request.param
    return read_regions(folder / "expression.csv.gz", None, folder / "regions.csv")


@pytest.mark.parametrize("values", ["as they are", "standardised", "logarithms"])
def test_held_out_regions_of_real_data_are_never_doubted(values, atlas):
    x = atlas.expression.astype(np.float64)[:, :400]
    rng = np.random.default_rng(0)
    if values == "standardised":
        x = standardised(x)
    elif values == "logarithms":  # genes of their own mean each
        x = 8 * x + rng.normal(size=x.shape[1]) * 3
    for kind in ("spatial", "random"):
        for test in split(kind, atlas, 4, 0):
            rest = np.setdiff1d(np.arange(len(x)), test)
            for few in (test, rng.choice(test, 2, replace=False), test[:1]):
                check_scale(x[rest], x[few])
    below = np.array([network == "subcortex" for network in atlas.network])
    check_scale(x[~below], x[below][:2])
    check_scale(x, x)


def test_another_scale_of_real_data_is_refused(atlas):
    x = atlas.expression.astype(np.float64)[:, :400]
    for test in split("spatial", atlas, 4, 0)[:2]:
        rest = np.setdiff1d(np.arange(len(x)), test)
        for few in (test, test[:2]):
            for change in OTHERS.values():
                with pytest.raises(ValueError, match="expression is on another scale than at fit"):
                    check_scale(x[rest], change(x)[few])
            with pytest.raises(ValueError, match=r"are negative|0% are negative, at fit"):
                check_scale(standardised(x)[rest], x[few])


def test_predictions_are_refused_not_made(model, made):
    """All of the regions, and two; by every verb."""
    for change in OTHERS.values():
        for rows in (slice(None), slice(0, 2)):
            with pytest.raises(ValueError, match="expression is on another scale than at fit"):
                model.predict_matrix(fresh(made, rows, change))
    other = fresh(made, change=OTHERS["x 10"])
    for call in (
        lambda: model.predict([(0, 1)], other),
        lambda: model.explain(*other.names[:2], other),
        lambda: model.score(other.with_(connectivity=made.connectivity)),
    ):
        with pytest.raises(ValueError, match="expression is on another scale than at fit"):
            call()


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
    nine_genes = np.where(np.arange(40) < 9, 1, np.nan)  # too few to tell
    check_scale(made.expression, 10 * made.expression * nine_genes)
    sparse = np.where(made.expression > 0.98, made.expression, 0)
    check_scale(sparse, sparse[:9])


def test_a_method_without_genes_asks_for_no_scale(made):
    distance = ConnectivityPredictor(method="geometry", **QUIET).fit(made)
    found = distance.predict_matrix(fresh(made, change=lambda x: 10 * x))
    pd.testing.assert_frame_equal(found, distance.predict_matrix())
