"""`omniset cells` as at a shell: every verb on files, and every way to give it bad ones."""

import json
import os

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.io import read_elem, write_elem
from cell_files import cells, text

from omniset.cells import CellEmbedder, outputs, projection
from omniset.cli import cells as cells_cli
from omniset.cli import main
from omniset.cli.parser import _underscored

pytestmark = pytest.mark.usefixtures("without_umap")

CELLS, GENES = 97, 31
QUIET = ["--progress=false", "--device=cpu"]
SMALL = ["--embedding_dim=5", "--dim=8", "--epochs=2", "--batch_size=32", *QUIET]
NAMES = [f"cell{i}" for i in range(CELLS)]


def adata(rows=slice(None)):
    """Three types in two batches; a dense layer, raw, more of obs, and a cell without counts."""
    made = cells(CELLS, GENES)
    counts = made.X.toarray()
    counts[11] = 0
    made.X = sp.csr_matrix(counts)
    kind = made.obs.pop("kind").to_numpy()
    made.obs["type"] = pd.Categorical.from_codes(np.where(np.arange(CELLS) == 7, -1, kind), text("ABC"))
    made.obs["depth"] = np.random.default_rng(0).normal(size=CELLS)
    made.layers["dense"], made.uns["old"] = counts + 1, 3
    made.raw = made.copy()
    return made[rows].copy()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("cells")
    adata().write_h5ad(root / "all.h5ad")
    adata(slice(0, 41)).write_h5ad(root / "part1.h5ad")
    adata(slice(41, None)).write_h5ad(root / "part2.h5ad")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection.importlib.util, "find_spec", lambda name: None)
        assert run("fit", root / "all.h5ad", "--batch-key", "batch", "--out", root / "model", *SMALL) == 0
    assert run("embed", root / "all.h5ad", "--model", root / "model", "--out", root / "embedded.h5ad", *QUIET) == 0
    return root


@pytest.fixture(scope="module")
def embedder(study):
    embedder = CellEmbedder.load(study / "model")
    embedder.progress = False
    return embedder


@pytest.fixture(scope="module")
def z(study, embedder):
    with pytest.warns(UserWarning, match="1 cell without counts of the model's genes, such as 'cell11': their vector"):
        return embedder.transform(str(study / "all.h5ad"))


def run(*words):
    return main(["cells", *map(str, words)])


def use(study, verb, *words):
    return run(verb, *words, "--model", study / "model", *QUIET)


def elements(path):
    """Every array of an HDF5 file as bytes, and every attribute."""
    found = {}

    def visit(name, item):
        attributes = {key: str(value) for key, value in item.attrs.items()}
        value = None
        if isinstance(item, h5py.Dataset):
            held = item[()]
            value = item.dtype.str, item.shape, item.chunks, held.tobytes() if item.dtype.kind != "O" else str(held)
        found[name] = value, attributes

    with h5py.File(path) as root:
        root.visititems(visit)
    return found


def inspected(capsys, *words):
    assert run("inspect", *words, "--progress", "false") == 0
    return capsys.readouterr().out


def test_inspect_says_what_is_there(study, capsys):
    said, data = inspected(capsys, study / "all.h5ad"), adata()
    for word in (
        "97 cells, 31 genes; sparse, float32",
        f"{data.X.nnz / data.X.shape[0] / GENES:.1%} of the counts are not 0",
        f"median {np.median(np.asarray(data.X.sum(1))):,.0f}",
        "1 cell has no counts",
        "batch (2: ",
        "type (3: ",
        "other obs columns: 'depth'",
        "X, dense, raw; read is X",
        "integer counts",
        "fit would ask: which batches are there? No batch_key is given, and obs has 'batch' (2 values)",
        "kept in memory",
    ):
        assert word in said


def test_both_spellings_of_options(study, capsys):
    given, spelled = ("--a-b", "--a-b=c-d", "c-d", "--a.b-c", "-x-y", "--"), ["--a_b", "--a_b=c-d", "c-d", "--a.b-c"]
    assert [_underscored(word) for word in given] == [*spelled, "-x-y", "--"]
    for words in (["--batch-key", "batch"], ["--batch_key", "batch"], ["--batch-key=batch"]):
        assert "2 batches by batch" in inspected(capsys, study / "all.h5ad", *words)


def test_inspect_reads_other_matrices_and_patterns(study, capsys):
    said = inspected(capsys, study / "part*.h5ad", "--layer", "dense")
    for word in ("part1.h5ad\n  41 cells", "part2.h5ad\n  56 cells", "100.0% of the counts", "batch_key='file'"):
        assert word in said
    assert "2 batches by file" in inspected(capsys, study / "part*.h5ad", "--batch_key", "file")


def test_the_numbers_of_the_report_on_a_fit(study, embedder):
    found = json.loads((study / "model/report.json").read_text())
    assert found["model"] == embedder.identity()
    assert sum(row["cells"] for row in found["batches"]) == CELLS
    assert found["drawn"] == {"cells": CELLS, "of": CELLS, "by": "PCA", "columns": ["batch", "type"]}
    assert len({row["cell"] for row in found["explained"]}) == projection.EXPLAINED


def test_embed_copies_a_file_and_adds_its_vectors(study, embedder, z):
    before, after = elements(study / "all.h5ad"), elements(study / "embedded.h5ad")
    added = {name for name in after if name not in before}
    assert all(name.startswith(("obsm/X_omniset", "uns/omniset")) for name in added)
    assert {name: after[name] for name in before} == before
    found = anndata.read_h5ad(study / "embedded.h5ad")
    assert found.obsm["X_omniset"].dtype == np.float32
    assert np.array_equal(found.obsm["X_omniset"], z)
    assert found.uns["omniset"]["model"] == embedder.identity()


def read_table(path, columns):
    """An array, or a table of a column for the cells' names and these."""
    if path.suffix == ".npy":
        return np.load(path)
    found = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, sep="\t")
    assert list(found) == ["cell", *columns]
    assert found["cell"].tolist() == NAMES
    return found.drop(columns="cell").to_numpy()


@pytest.mark.parametrize("end", ["parquet", "tsv", "npy"])
def test_embed_writes_tables(study, z, tmp_path, end):
    out = tmp_path / f"z.{end}"
    assert use(study, "embed", study / "all.h5ad", "--out", out) == 0
    np.testing.assert_allclose(read_table(out, [f"z{i}" for i in range(1, 6)]), z, rtol=1e-5)


def test_embed_of_several_files_has_obs_and_no_counts(study, z, tmp_path):
    assert use(study, "embed", study / "part1.h5ad", study / "part2.h5ad", "--out", tmp_path / "z.h5ad") == 0
    found = anndata.read_h5ad(tmp_path / "z.h5ad")
    assert found.X is None
    np.testing.assert_allclose(found.obsm["X_omniset"], z, rtol=0, atol=1e-6)
    expected = adata().obs
    pd.testing.assert_frame_equal(found.obs, expected, check_categorical=False, check_dtype=False)


def test_vectors_that_are_there_already_are_others_in_the_copy(study, fitted, tmp_path, capsys):
    fitted.save(tmp_path / "other")
    out, before = tmp_path / "new.h5ad", (study / "embedded.h5ad").read_bytes()
    assert run("embed", study / "embedded.h5ad", "--model", tmp_path / "other", "--out", out, *QUIET) == 0
    assert 'obsm["X_omniset"] already: in the copy these are others' in capsys.readouterr().err
    assert (study / "embedded.h5ad").read_bytes() == before
    with h5py.File(out) as root:
        assert read_elem(root["uns/omniset/model"]) == fitted.identity()
    untouched = elements(study / "all.h5ad")
    assert {name: value for name, value in elements(out).items() if name in untouched} == untouched


def test_embed_leaves_nothing_where_it_fails(study, tmp_path, capsys, monkeypatch):
    shared = tmp_path / "in.h5ad"
    adata().write_h5ad(shared)
    before = shared.read_bytes()
    os.link(shared, tmp_path / "link.h5ad")
    for out in (shared, tmp_path / "link.h5ad"):
        assert use(study, "embed", shared, "--out", out) == 2
        assert "input itself" in capsys.readouterr().err
    for out in (shared, tmp_path / "other.h5ad"):
        assert use(study, "embed", tmp_path / "in*.h5ad", "--out", out, "--replace", "true") == (
            2 if out == shared else 0
        )
    (tmp_path / "other.h5ad").unlink()
    assert shared.read_bytes() == before
    vectors = cells_cli._vectors

    def meanwhile(*arguments):
        os.utime(shared, (1, 1))
        return vectors(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cells_cli, "_vectors", meanwhile)
        assert use(study, "embed", shared, "--out", tmp_path / "out.h5ad") == 2
    assert "in.h5ad has changed since the command began" in capsys.readouterr().err
    assert not (tmp_path / "out.h5ad").exists()
    monkeypatch.setattr(outputs, "KEY", "a/b/\0")  # no name that can be written
    assert use(study, "embed", shared, "--out", tmp_path / "out.h5ad") == 2
    monkeypatch.undo()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(CellEmbedder, "vectors_of", interrupted)
    assert use(study, "embed", shared, "--out", tmp_path / "out.h5ad") == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.h5ad", "link.h5ad"]


def test_annotate_learns_keeps_and_says_the_same_again(study, tmp_path, capsys, monkeypatch):
    words = ["--reference", study / "all.h5ad", "--label", "type", "--batch_key", "batch", "--model", study / "model"]
    first = tmp_path / "first"
    assert run("annotate", study / "all.h5ad", *words, "--sample", "batch", "--out", first, *QUIET) == 0
    said = capsys.readouterr().out
    found = pd.read_csv(first / "calls.tsv", sep="\t")
    assert found["cell"].tolist() == NAMES
    truth = adata().obs["type"].astype(object)
    known = truth.notna().to_numpy()
    assert (found["type"].to_numpy() == truth.to_numpy())[known].mean() > 0.7  # types that differ in all genes
    p = pd.read_parquet(first / "probabilities.parquet")[["A", "B", "C"]]
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert (p.idxmax(axis=1) == found["type"]).all()
    np.testing.assert_allclose(p.max(1), found["probability"], atol=1e-4)
    for label, number in found["label"].value_counts().items():
        line = next(line for line in said.splitlines() if line.startswith(f"{label} "))
        assert line.split()[1] == str(number)
    report = json.loads((first / "report.json").read_text())
    assert sum(row["cells"] for row in report["calls"]) == CELLS
    assert pd.DataFrame(report["confusion"]).select_dtypes("number").to_numpy().sum() == known.sum()
    page = (first / "report.html").read_text()
    for title in ("New cells on the reference", "Composition", "Beside the truth"):
        assert f">{title}<" in page
    second = tmp_path / "second"
    monkeypatch.setattr("omniset.cells.report.TYPES", 2)  # of more no matrix: the pairs that occur
    words = ["--annotator", first / "annotator", "--label", "type"]
    assert run("annotate", study / "all.h5ad", *words, "--out", second, *QUIET) == 0
    assert (second / "calls.tsv").read_bytes() == (first / "calls.tsv").read_bytes()
    pairs = json.loads((second / "report.json").read_text())["confusions"]
    matrix = pd.DataFrame(report["confusion"])
    matrix = matrix.set_index(matrix.columns[0])
    assert all(matrix.loc[pair["true"], pair["called"]] == pair["cells"] for pair in pairs)
    assert sum(pair["cells"] for pair in pairs) == known.sum()
    assert not (second / "annotator").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "give either reference, to learn from, or annotator, which has learned"),
        (["--annotator", "x", "--reference", "y"], "give either reference"),
        (["--annotator", "x", "--model", "y"], "model comes with the annotator"),
        (["--annotator", "nothing"], "nothing is no folder of a model"),
        (["--reference", "{all}", "--label", "type", "--sample", "who"], "sample must be a column of obs"),
    ],
)
def test_annotate_refuses(study, tmp_path, capsys, words, error):
    words = [word.format(all=study / "all.h5ad") for word in words]
    assert run("annotate", study / "all.h5ad", *words, "--out", tmp_path / "out", *QUIET) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "out" / "calls.tsv").exists()


def test_evaluate_fits_as_the_model_was_fitted(study, tmp_path, capsys, as_asked):
    words = [study / "all.h5ad", "--batch-key", "batch", "--label-key", "type", "--methods", "pca", "--seeds", "1"]
    words = ["evaluate", *words, "--model", study / "model", "--out", tmp_path / "ev", *QUIET]
    assert run(*words) == 0
    said = capsys.readouterr().out
    for word in ("total, all cells", "kNN macro-F1, new batches", "only 2 batches"):
        assert word in said
    stored = json.loads((tmp_path / "ev/rows/transductive_0_omniset.json").read_text())["settings"]
    assert (stored["dim"], stored["epochs"], stored["batch_size"]) == (8, 2, 32)
    assert run(*words, "--resume", "true", "--epochs", "1") == 2
    assert "of an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layer", "counts"], "no layer 'counts'"),
        (["--gene_vectors", "nothing.txt"], "nothing.txt"),
        (["--aliases", "nothing.tsv"], "nothing.tsv"),
        (["--start_from", "nothing"], "nothing"),
        (["--dim", "6"], "num_heads"),
    ],
)
def test_bad_arguments_of_fit(study, tmp_path, capsys, words, said):
    assert run("fit", study / "all.h5ad", "--batch_key", "batch", "--out", tmp_path / "model", *SMALL, *words) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.strip().splitlines()[-1].startswith("omniset: error: ")
    assert not (tmp_path / "model").exists()


def test_bad_places(study, tmp_path, capsys):
    for words, word in (
        (["--out", tmp_path / "z.txt"], "must end in .h5ad, .npy"),
        (["--out", tmp_path], "is a directory"),
        (["--out", tmp_path / "no" / "z.npy"], "is no directory"),
        (["--out", tmp_path / "z.npy", "--model", tmp_path], "config.json"),
    ):
        assert run("embed", study / "all.h5ad", "--model", study / "model", *words, "--progress", "false") == 2
        assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_genes_of_another_kind(study, z, tmp_path, capsys):
    other, path = adata(), tmp_path / "other.h5ad"
    other.var_names = text(f"ENSG{i}" for i in range(GENES))
    other.write_h5ad(path)
    assert use(study, "embed", path, "--out", tmp_path / "z.npy") == 2
    assert "none of its genes is known" in capsys.readouterr().err
    aliases = "".join(f"ENSG{i}\tGene{i}\n" for i in range(GENES))
    (tmp_path / "aliases.tsv").write_text(f"alias\tname\n{aliases}")
    given = ["--aliases", tmp_path / "aliases.tsv"]
    assert use(study, "embed", path, *given, "--out", tmp_path / "z.npy") == 0
    assert np.array_equal(np.load(tmp_path / "z.npy"), z)
    said = []
    for words in ([study / "all.h5ad"], [path, *given]):
        capsys.readouterr()
        assert use(study, "explain", *words, "--cells", "cell3") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_explain_is_that_of_python(study, embedder, tmp_path, capsys):
    out = tmp_path / "why.tsv"
    words = ["--cells", "cell3,cell8", "--top", "4", "--out", out]
    assert use(study, "explain", study / "all.h5ad", *words) == 0
    capsys.readouterr()
    expected = embedder.explain(str(study / "all.h5ad"), ["cell3", "cell8"], top=4)
    found = pd.read_csv(out, sep="\t")
    assert found[["cell", "gene"]].to_numpy().tolist() == expected[["cell", "gene"]].to_numpy().tolist()
    np.testing.assert_allclose(found["change"], expected["change"], atol=1e-6)
    assert use(study, "explain", study / "all.h5ad") == 0
    said = capsys.readouterr().out
    assert sum(line.startswith("cell") for line in said.splitlines()) == projection.EXPLAINED
    assert "cell11" not in said  # has no counts
    assert use(study, "explain", study / "all.h5ad", "--cells", ",") == 2
    assert "must name at least one cell" in capsys.readouterr().err


def test_the_commands_warnings_are_pythons(study, embedder, tmp_path, capsys):
    few = adata()[:, :6].copy()
    few.write_h5ad(tmp_path / "few.h5ad")
    assert use(study, "embed", tmp_path / "few.h5ad", "--out", tmp_path / "z.npy") == 0
    said = [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    with pytest.warns(UserWarning, match="few.h5ad|without counts") as caught:
        embedder.transform(str(tmp_path / "few.h5ad"))
    assert [str(warning.message) for warning in caught] == said
    assert len(said) == 2


def test_text_of_pandas_3_is_written(tmp_path):
    """Which anndata 0.12 refuses: text and categories that pandas keeps with Arrow, gaps and mixed kinds."""
    obs = pd.DataFrame({"number": [1.5, np.nan, 2.0], "flag": [True, False, True]})
    obs["text"] = pd.Series(["a", None, "b"], dtype="str")
    obs["kind"] = pd.Categorical(pd.Series(["x", "y", None], dtype="str"))
    obs["mixed"] = pd.Series([1, "two", None], dtype=object)
    plain = outputs.plain_obs(obs, np.array(["i", "j", "i"], dtype=object))
    with h5py.File(tmp_path / "t.h5", "w") as root:
        write_elem(root, "obs", plain)
        found = read_elem(root["obs"])
    assert found.index.tolist() == ["i", "j", "i"]
    for name, expected in {"text": ["a", None, "b"], "kind": ["x", "y", None], "mixed": ["1", "two", None]}.items():
        assert [None if pd.isna(v) else v for v in found[name]] == expected
    pd.testing.assert_frame_equal(found[["number", "flag"]].reset_index(drop=True), obs[["number", "flag"]])
