"""Perturbations: shifts, distances and scores by other formulas; and what a shift may see."""

import json
from itertools import product

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from cell_files import text
from scipy.spatial.distance import cdist
from scipy.stats import hmean, pearsonr

from omniset.cells import CellPerturber, read_cells
from omniset.cells import perturber as module
from omniset.cells.annotator import values_of
from omniset.cells.evaluate_perturbation import energy_distance, evaluate_perturbation, scgen_shift, scores_of
from omniset.cells.perturber import WIDTHS, Group, Shifts, Study, totals_of
from omniset.cli import main

SMALL = {"progress": False, "device": "cpu"}
GENES = 67


@pytest.fixture(autouse=True, scope="module")
def few_components():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPONENTS", 5)
        yield


def adata():
    """Three types of two donors, untreated and treated; one type of one donor has no treated cells."""
    rng = np.random.default_rng(0)
    about, rows = [], []
    rates = rng.lognormal(0, 1, (3, GENES))
    change = np.exp(rng.normal(0, 1, GENES) * (rng.random(GENES) < 0.3))
    for kind, donor, state in product(range(3), ("d1", "d2"), ("ctrl", "stim")):
        if (kind, donor, state) != (2, "d2", "stim"):
            number = 23 + 2 * kind
            mean = rates[kind] * (change if state == "stim" else 1) * (1.2 if donor == "d2" else 1)
            rows.append(rng.poisson(np.tile(mean, (number, 1))))
            about += [(f"t{kind}", donor, state)] * number
    obs = pd.DataFrame(about, columns=["kind", "donor", "state"], dtype=object)
    obs.index = text(f"c{i}" for i in range(len(obs)))
    var = pd.DataFrame(index=text(f"Gene{i}" for i in range(GENES)))
    return anndata.AnnData(sp.csr_matrix(np.concatenate(rows).astype(np.float32)), obs, var)


@pytest.fixture(scope="module")
def study():
    return Study.of(read_cells(adata()), "state", "ctrl", "kind", "donor")


@pytest.fixture(scope="module")
def perturber(study):
    return CellPerturber(**SMALL).fit_groups(study)


def test_populations_are_those_of_the_table(study):
    assert [g.name for g in study.lacking] == ["stim, t2, d2"]
    assert len(study.groups) == 5
    table = adata().obs.reset_index(drop=True)
    for group in study.groups:
        for rows, state in ((group.control, "ctrl"), (group.treated, "stim")):
            same = (table["kind"] == group.type) & (table["donor"] == group.donor) & (table["state"] == state)
            assert np.array_equal(np.flatnonzero(same), rows)


def test_a_donor_that_is_a_batch_is_named():
    cells = adata()
    cells.obs["donor"] = cells.obs["donor"] + cells.obs["state"]
    with pytest.raises(ValueError, match="0 populations of state .* needed; no donor has both untreated and treated"):
        Study.of(read_cells(cells), "state", "ctrl", "kind", "donor")
    with pytest.warns(UserWarning, match="no value of 'donor' has cells of two values of state: what is learned"):
        Study.of(read_cells(cells), "state", "ctrl", "kind", None)
    untreated = cells[cells.obs["state"] == "ctrl"].copy()
    with pytest.raises(ValueError, match="0 populations of state .* at least 2 are needed$"):
        Study.of(read_cells(untreated), "state", "ctrl", "kind", None)


def test_energy_distance_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(7, 3)), rng.normal(size=(11, 3)) + 1
    within = [cdist(a, a)[~np.eye(len(a), dtype=bool)].mean() for a in (x, y)]
    expected = 2 * cdist(x, y).mean() - sum(within)
    found = energy_distance(torch.from_numpy(x), torch.from_numpy(y))
    assert float(found) == pytest.approx(expected, abs=1e-12)
    given = [torch.from_numpy(a).requires_grad_() for a in (x, y)]
    assert torch.autograd.gradcheck(energy_distance, given)


def test_shifts_of_near_groups_come_first():
    rng = np.random.default_rng(2)
    keys, values, numbers = rng.normal(size=(5, 3)), rng.normal(size=(5, GENES)), rng.integers(10, 50, (5, 2))
    sizes = hmean(numbers, axis=1)
    shifts = Shifts(
        ["a"] * 4 + ["b"], ["x", "x", "y", "z", "x"], ["1", "2", "1", "1", "1"], keys, values, numbers, (0.5, 2.0)
    )
    apart = cdist(keys, keys)[np.triu_indices(5, 1)]
    query = rng.normal(size=3)
    for width, kind in ((0.5, "x"), (2.0, "new")):
        group = Group("a", kind, "3", np.arange(0), np.arange(0))
        weights = sizes * np.exp(-((keys - query) ** 2).sum(1) / (2 * (width * np.median(apart)) ** 2))
        weights[4] = 0  # of another perturbation
        np.testing.assert_allclose(shifts(group, query), weights @ values / weights.sum(), atol=1e-10)
    wide = shifts._at(query, np.arange(5) < 4, max(WIDTHS))
    np.testing.assert_allclose(wide, np.average(values[:4], axis=0, weights=sizes[:4]), atol=1e-5)


def test_scgens_shift_is_that_of_balanced_cells(study, perturber):
    """Cells of each type are drawn with weights that make all types equal, in either condition."""
    means = []
    for state in ("control", "treated"):
        rows = np.concatenate([getattr(group, state) for group in study.groups])
        types = np.concatenate([[group.type] * len(getattr(group, state)) for group in study.groups])
        weights = [1 / (types == kind).sum() for kind in types]
        z = (study.values[rows].astype(np.float64) - perturber.middle_) @ perturber.axes_
        means.append(np.average(z, axis=0, weights=weights))
    np.testing.assert_allclose(scgen_shift(perturber, "stim"), means[1] - means[0], atol=1e-12)


def test_scores_are_those_of_their_definitions(study):
    group, rng = study.groups[0], np.random.default_rng(3)
    predicted = study.values[group.control] + rng.normal(size=GENES) * 0.1
    axes = np.linalg.qr(rng.normal(size=(GENES, 5)))[0]
    found = scores_of(study, group, predicted, axes)
    true, said = study.shift(group), predicted.mean(0) - study.mean(group.control)
    assert found["pearson"] == pytest.approx(pearsonr(true, said).statistic, abs=1e-6)
    most = [set(np.argsort(-abs(x))[:50]) for x in (true, said)]
    assert found["overlap"] == len(most[0] & most[1]) / 50
    nothing = scores_of(study, group, study.values[group.control].astype(float), axes)
    assert nothing["pearson"] == nothing["pearson_top"] == nothing["overlap"] == 0
    itself = scores_of(study, group, study.values[group.treated].astype(float), axes)
    assert itself["pearson"] == pytest.approx(1)
    assert itself["energy"] < min(0, nothing["energy"])


def test_cells_move_by_the_shift(study, perturber, tmp_path):
    perturber.save(tmp_path / "saved")
    again = CellPerturber.load(tmp_path / "saved")
    for group in (*study.groups, *study.lacking):
        assert np.array_equal(again.predict(study, group), perturber.predict(study, group))
        moved = study.values[group.control] + perturber.shift(study, group)
        np.testing.assert_allclose(perturber.predict(study, group), np.maximum(moved, 0), atol=1e-12)


def test_what_is_left_out_is_not_looked_at(study):
    """Other treated cells of the type that is left out change nothing that is said of it."""
    rest = [group for group in study.groups if group.type != "t0"]
    group = next(group for group in study.groups if group.type == "t0")
    before = CellPerturber(**SMALL).fit_groups(study, rest).predict(study, group)
    values = study.values.copy()
    for left in (g for g in study.groups if g.type == "t0"):
        values[left.treated] = 7
    other = Study(values, study.genes, study.groups, study.lacking)
    assert np.array_equal(CellPerturber(**SMALL).fit_groups(other, rest).predict(other, group), before)


def test_new_cells_are_foretold_as_those_of_the_study_are(study, perturber):
    """Alone in their file, genes in another order, with one more; and one that was not measured is as in the mean."""
    group = study.lacking[0]
    new = adata()[group.control].copy()[:, ::-1].copy()
    columns = {"condition": None, "control": "control", "label": "kind", "donor": "donor"}
    found = perturber.foretell(new, **columns)
    assert found.var_names.tolist() == study.genes
    assert found.uns["omniset"]["values"] == "log(1 + 10000 count / library)"
    assert found.obs_names.tolist() == [f"{name}, stim" for name in adata().obs_names[group.control]]
    np.testing.assert_allclose(found.X, perturber.predict(study, group), atol=1e-5)
    known = perturber.study(read_cells(new[:, new.var_names != study.genes[3]].copy()), columns)
    assert (known.values[:, 3] == perturber.middle_[3].astype(np.float32)).all()
    with pytest.raises(ValueError, match="label: no kind has 10 untreated cells or more of one donor"):
        perturber.foretell(new[:9].copy(), **columns)


def test_totals_are_those_of_all_genes_where_the_mean_cell_tells_what_lacks():
    """Of cells that are all alike, one file of which lacks genes: they are as if nothing was missing."""
    alike = adata()
    alike.X = np.tile(np.arange(1.0, 1 + GENES, dtype=np.float32), (len(alike), 1))
    whole = read_cells(alike[:7].copy()).on(list(alike.var_names))
    mean = values_of(whole, np.arange(1), None)[0].astype(np.float64)
    both = read_cells([alike[:7].copy(), alike[7:12, 5:23].copy()]).on(list(alike.var_names))
    np.testing.assert_allclose(totals_of(both, mean), np.full(12, whole.library()[0]), rtol=1e-6)
    assert (both.library()[7:] < whole.library()[0] / 2).all()


def test_evaluation_has_every_group_under_both_conditions(study):
    found = evaluate_perturbation(study)
    counts = found.rows.groupby(["condition", "method"]).size()
    assert (counts == 5).all()
    assert found.rows["method"].nunique() == 6
    intervals = {c: found.comparison.interval("energy", c, "omniset") for c in found.comparison.conditions}
    assert {c: interval.units for c, interval in intervals.items()} == {"new donors": 2, "new types": 3}
    assert {gate.score for gate in found.comparison.gates} == {"pearson_top", "energy"}


def test_the_command_foretells_what_was_not_measured(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    adata().write_h5ad("cells.h5ad")

    def perturb(out, *more):
        columns = ["--condition=state", "--control=ctrl", "--label=kind", "--donor=donor", "--progress=false"]
        return main(["cells", "perturb", "cells.h5ad", *columns, f"--out={out}", *more])

    assert perturb("out") == 0
    assert "new types" in capsys.readouterr().out
    foretold = anndata.read_h5ad("out/foretold.h5ad")
    assert foretold.shape == (len(study.lacking[0].control), GENES)
    assert (foretold.obs["type"] == "t2").all()
    assert json.loads((tmp_path / "out/report.json").read_text())["evaluation"]["format"] == "omniset evaluation"
    assert perturb("new", "--perturber=out/perturber") == 0
    assert "6 populations of untreated cells are foretold" in capsys.readouterr().out
    again = anndata.read_h5ad("new/foretold.h5ad")
    np.testing.assert_array_equal(again[foretold.obs_names].X, foretold.X)
    assert again.obs.groupby(["type", "donor"], observed=True).ngroups == 6
    for more, error in (
        ("--control=none", "control must be a value of state, there are 'ctrl', 'stim'; got 'none'"),
        ("--donor=who", "donor must be a column of obs, there is no 'who'"),
        ("--condition=null", "condition must be given where there is no perturber"),
        ("--aliases=names.tsv", "aliases are for perturber"),
        ("--perturber=.", "has no config.json"),
    ):
        assert perturb("bad", more) == 2
        assert error in capsys.readouterr().err
