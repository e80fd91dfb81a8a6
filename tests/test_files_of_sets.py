"""Files of every kind of sets go through all commands, and a model remembers how they were read."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

import test_abundances
import test_fcs
import test_folders
import test_sets_of_cells
from omniset import SetClassifier
from omniset.cli import main
from small import QUIET, TINY

pytestmark = pytest.mark.slow


@dataclass
class Given:
    """A file or folder, the same as a table in memory, and options."""

    path: str
    table: pd.DataFrame
    at_fit: list = field(default_factory=list)
    always: list = field(default_factory=list)
    remembered: dict = field(default_factory=dict)
    labels: str = "--target=labels.csv"


def fcs(folder):
    (folder / "s").mkdir()
    tables = []
    for number, name in enumerate("abcd"):
        values = test_fcs.values(number)
        test_fcs.write(f"s/{name}.fcs", values.astype("<f4").tobytes(), test_fcs.words())
        frame = pd.DataFrame(np.arcsinh(values[:, [2, 3, 5]] / 30), columns=["CD3", "CD4", "APC-A"])
        tables.append(frame.assign(set=name))
    options = ["--cofactor=30", "--ignore=FSC-A"]
    return Given("s", pd.concat(tables), options, remembered={"cofactor": 30.0, "compensate": True})


def biom(folder):
    path, long, _ = test_abundances.tables(folder, "biom")
    return Given(path, long, always=["--vectors=vectors.csv"])  # a place of one machine is not remembered


def h5(folder):
    test_folders.folder(folder, ".h5")
    columns = [f"feature_{i}" for i in range(1, 6)]
    arrays = test_folders.arrays().items()
    return Given("sets", pd.concat(pd.DataFrame(rows, columns=columns).assign(set=name) for name, rows in arrays))


def h5ad(rep):
    def make(_):
        adata = test_sets_of_cells.cells()
        dense = adata.X.toarray()
        counts = np.log1p(1e4 * dense / np.maximum(dense.sum(1, keepdims=True), 1))
        values = pd.DataFrame(counts, columns=adata.var_names)
        if rep == "X_pca":
            values = pd.DataFrame(adata.obsm[rep], columns=[f"X_pca_{i}" for i in range(1, 6)])
        table = values.assign(set=adata.obs["donor"].astype(str).to_numpy(), element=adata.obs_names.to_numpy())
        reading = {"set_column": "donor", "use_rep": rep}
        options = [f"--{name}={value}" for name, value in reading.items()]
        return Given("t.h5ad", table, options, [], reading, "--target_columns=disease")

    return make


KINDS = {"fcs": fcs, "biom": biom, "h5": h5, "X_pca": h5ad("X_pca"), "counts": h5ad("counts")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_end_to_end(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = KINDS[kind](tmp_path)
    names = sorted({*given.table["set"], *(["d"] if kind == "h5" else [])})  # d is empty
    pd.DataFrame({"set": names, "label": list("pqpqp")[: len(names)]}).to_csv("labels.csv", index=False)
    of_evaluation = [given.labels] if "target=" in given.labels else []
    using = ["--model=run", *given.always, *QUIET]
    assert main(["fit", given.path, given.labels, "--out=run", *given.at_fit, *given.always, *TINY, *QUIET]) == 0
    assert main(["evaluate", given.path, *of_evaluation, "--out=e", *using]) == 0
    assert main(["predict", given.path, "--out=p.csv", "--max_elements=40", *using]) == 0
    assert main(["explain", given.path, f"--only={names[0]}", "--out=x.csv", "--steps=1", *using]) == 0
    model = SetClassifier.load("run", device="cpu")
    assert (model.level, model.reading_) == ("set", {"set_column": "set", **given.remembered})
    expected = model.predict_table(given.table).set_index("set")
    found = pd.read_csv("p.csv").set_index("set")
    assert sorted(found.index) == names
    numbers = [column for column in expected if column.startswith("p_")]
    np.testing.assert_allclose(found.loc[expected.index, numbers], expected[numbers], rtol=1e-4)
    rows = given.table[given.table["set"] == names[0]]
    explained = pd.read_csv("x.csv")["element"]
    assert len(explained) == len(rows)
    assert "element" not in rows or {*explained} == {*rows["element"]}
