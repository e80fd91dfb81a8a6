"""Which batches are mixed: what is said, what is asked about, and what is warned of."""

import numpy as np
import pandas as pd
import pytest
from cell_files import SMALL, cells

from omniset.cells.data import batch_codes, labels_of, read_cells
from omniset.cells.embedder import CellEmbedder


@pytest.mark.parametrize("name", ["batch", "Batch", "BATCH"])
def test_a_column_batch_is_asked_about(name):
    data = cells()
    data.obs = data.obs.rename(columns={"batch": name})
    data.obs.insert(0, "donor_id", ["a", "b", "c", *"abcde" * 10])
    message = rf"obs has '{name}' .2 values., 'donor_id' .5 values.: say batch_key='{name}' .--batch_key {name}. if"
    with pytest.raises(ValueError, match=message + ".*batch_key='none' .--batch_key none. if all cells are one batch$"):
        CellEmbedder(**SMALL).fit(data)
    for key, expected in ((name, ["one", "two"]), ("none", ["all"]), ("file", ["AnnData"])):
        codes, names = batch_codes(read_cells(data), key)
        assert names == expected
        assert codes.max() == len(names) - 1
    codes, names = batch_codes(read_cells([data[:20].copy(), data[20:].copy()]), "none")
    assert names == ["all"]
    assert not codes.any()


@pytest.mark.parametrize(
    "name", ["sample", "Sample_ID", "donor", "donor_id", "patient", "batch_id", "library", "orig.ident"]
)
def test_columns_that_may_be_batches_are_named_in_a_warning(name):
    data = cells()
    data.obs = pd.DataFrame({name: np.where(np.arange(53) % 3, "a", "b"), "kind": 1.5}, index=data.obs_names)
    with pytest.warns(UserWarning, match=f"no batch_key is given, and obs has '{name}' .2 values.: .*batch_key='none'"):
        codes, names = batch_codes(read_cells(data), None)
    assert names == ["AnnData"]
    assert not codes.any()


def test_columns_that_are_no_batches_are_not_asked_about():
    data = cells()
    data.obs = pd.DataFrame(
        {
            "batch": "the same",
            "sample": [f"s{i}" for i in range(53)],  # one a cell
            "louvain": data.obs["kind"].astype(str),
            **{name: np.arange(53) % 2 for name in ("bulk_labels", "n_genes", "n_counts", "phase", "S_score")},
        },
        index=data.obs_names,
    )
    assert batch_codes(read_cells(data), None)[1] == ["AnnData"]
    files = [data[:20].copy(), data[20:].copy()]  # each of them a batch, as its column says
    files[1].obs["batch"] = "another"
    assert batch_codes(read_cells(files), None)[1] == ["AnnData 1", "AnnData 2"]
    data.obs["batch"] = data.obs["louvain"]
    assert batch_codes(read_cells(data), None, "batch")[1] == ["AnnData"]  # the labels of evaluate
    data.obs["batch"] = np.where(np.arange(53) == 7, "", "one")
    with pytest.raises(ValueError, match="batch_key: cell 'cell7' has no batch"):
        batch_codes(read_cells(data), "batch")


def test_labels_that_are_hardly_types_are_warned_of():
    data = cells()
    data.obs["depth"] = np.arange(53) / 7
    with pytest.warns(UserWarning, match="depth has 53 different numbers, such as 0: each is taken for a type"):
        labels_of(read_cells(data), "depth")
    data.obs["kind"] = ["B cell", "B  cell ", "b cell", "T cell", None, *["T cell"] * 48]
    spelled = "kind has 'B cell' and 'B  cell ' and 'b cell', which differ by spaces or by case: .* 3 types"
    with pytest.warns(UserWarning, match=spelled):
        assert labels_of(read_cells(data), "kind")[4] is None
    data.obs["kind"] = pd.Categorical(np.arange(53) % 3)
    labels_of(read_cells(data), "kind")  # numbers of clusters: no warning, which would be an error
