"""`omniset regions` as at a shell: every verb on files, and every way to give it bad ones."""

import json
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from omniset import report as written
from omniset.cli import main
from omniset.regions import ConnectivityPredictor, blend, read_regions, report
from omniset.regions.data import simulate, write_tables

REGIONS, GENES = 34, 13
QUIET = ["--progress", "false"]
FEW = ["--device", "cpu", *QUIET]
RIDGE = ["--method", "ridge", *QUIET]
NAMES = ["expression", "connectivity", "regions"]


@pytest.fixture(autouse=True)
def without_pages(request, monkeypatch):
    """The pages of `fit` are those of `study` alone; so are those of any command but in tests that ask for `pages`."""
    if "pages" not in request.fixturenames:
        monkeypatch.setattr(report, "of_fit", lambda *_, **__: (None, {"verdict": ""}))
        monkeypatch.setattr(written, "write", lambda *_: None)


@pytest.fixture
def pages():
    pass


@pytest.fixture(scope="module")
def study(tmp_path_factory, quick):
    """A brain, and models of it: the default, a kernel ridge, and the network alone; without glass brains."""
    quick.setattr(report.drawn, "brain", Mock(side_effect=ImportError))
    quick.setattr(blend, "FOLDS", 2)
    root = tmp_path_factory.mktemp("regions")
    write_tables(root / "brain", simulate(REGIONS, GENES))
    assert run("fit", *files(root / "brain"), "--out", root / "model", *FEW) == 0
    assert run("fit", *files(root / "brain"), "--out", root / "ridge", *RIDGE) == 0
    assert run("fit", *files(root / "brain"), "--out", root / "attention", "--method", "attention", *FEW) == 0
    return root


def run(*words):
    return main(["regions", *map(str, words)])


def files(folder):
    options = zip(("--expression", "--connectivity", "--coordinates"), NAMES, strict=True)
    return [word for option, name in options for word in (option, folder / f"{name}.csv")]


def matrix(model, out, *words):
    assert run("predict", "--model", model, "--out", out, *words, *QUIET) == 0
    return pd.read_csv(out, index_col=0)


def refused(capsys, *words):
    """The last line of a command that ends with 2, without a traceback."""
    capsys.readouterr()
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("omniset: error: ")
    return last


def test_options_of_reading(study, tmp_path, capsys):
    words = files(study / "brain")
    shifted = pd.read_csv(words[3], index_col=0) - 0.5
    shifted.to_csv(tmp_path / "c.csv")
    words[3] = tmp_path / "c.csv"
    options = ["--fisher_z", "true", "--zero-negative", "true"]
    assert run("fit", *words, "--out", tmp_path / "model", *RIDGE, *options) == 0
    said = capsys.readouterr().out
    assert "Fisher's z" in said
    assert "negative connectivity are set to 0" in said
    learned = ConnectivityPredictor.load(tmp_path / "model").regions_.connectivity
    np.testing.assert_allclose(learned, np.maximum(np.arctanh(shifted.to_numpy()), 0), atol=1e-12)


def test_predict_writes_the_matrix(study, tmp_path):
    expected = ConnectivityPredictor.load(study / "ridge").predict_matrix()
    found = matrix(study / "ridge", tmp_path / "p.csv")
    pd.testing.assert_frame_equal(found, expected, check_names=False, rtol=1e-6)


def test_predict_of_pairs(study, tmp_path, capsys):
    pairs = pd.DataFrame(
        {"to": ["R_region_7", "L_region_1", "L_region_3"], "from": ["L_region_1", "R_region_7", "R_region_17"], "n": 1}
    )
    whole = ConnectivityPredictor.load(study / "ridge").predict_matrix()
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    words = ["--model", study / "ridge", "--pairs", tmp_path / "pairs.csv", *QUIET, "--out"]
    assert run("predict", *words, tmp_path / "q.csv") == 0
    found = pd.read_csv(tmp_path / "q.csv")
    assert list(found) == ["to", "from", "connectivity"]
    assert found[["to", "from"]].to_numpy().tolist() == pairs[["to", "from"]].to_numpy().tolist()
    expected = [whole.loc[one, other] for one, other in found[["to", "from"]].to_numpy()]
    np.testing.assert_allclose(found["connectivity"], expected, rtol=1e-6)
    assert found["connectivity"][0] == found["connectivity"][1]
    (tmp_path / "pairs.csv").write_text("a,b\n")
    assert "there is no row to write" in refused(capsys, "predict", *words, tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()


def test_predict_of_other_regions(study, tmp_path, capsys):
    """Other names and places, two genes missing, and others by their aliases."""
    other = simulate(16, GENES, seed=5)
    index = pd.Index([f"new{i}" for i in range(16)], name="region")
    expression = pd.DataFrame(other.expression, index, other.genes)
    places = pd.DataFrame(other.coordinates, index, ["x", "y", "z"])
    expression.drop(columns=["GENE2", "GENE5"]).rename(columns="Other{}".format).to_csv(tmp_path / "e.csv")
    places.iloc[::-1].to_csv(tmp_path / "c.csv")
    (tmp_path / "aliases.csv").write_text("alias,name\n" + "".join(f"OtherGENE{i},GENE{i}\n" for i in range(1, 14)))
    new = ["--expression", tmp_path / "e.csv", "--coordinates", tmp_path / "c.csv"]
    found = matrix(study / "ridge", tmp_path / "p.csv", *new, "--aliases", tmp_path / "aliases.csv")
    assert "15% of the model's 13 genes are not there, such as 'GENE2'" in capsys.readouterr().err
    regions = read_regions(expression, None, places)
    regions.expression[:, [1, 4]] = np.nan
    expected = ConnectivityPredictor.load(study / "ridge").predict_matrix(regions)
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-5)
    assert found.index.tolist() == index.tolist()
    words = ["predict", "--model", study / "ridge", "--out", tmp_path / "no.csv", *QUIET]
    assert "none of the model's genes, such as 'GENE1', is there" in refused(capsys, *words, *new)
    assert "coordinates come with expression" in refused(capsys, *words, *new[2:])
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\nL_region_1,R_region_1\nL_region_1,nobody\n", "pair 2: region 'nobody' is not there"),
        ("a,b\nL_region_1,\n", "line 2: column 'b' is empty"),
        ("a\nL_region_1\n", "must have two columns"),
        ("L_region_1,R_region_1\nL_region_2,R_region_1\n", "must have a header"),
    ],
)
def test_bad_pairs(study, tmp_path, capsys, text, said):
    (tmp_path / "pairs.csv").write_text(text)
    words = ["--model", study / "ridge", "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "p.csv", *QUIET]
    assert said in refused(capsys, "predict", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]


def test_explain_writes_genes_and_what_is_read_from(study, pages, tmp_path, capsys):
    words = ["explain", "L_region_3", "R_region_5", *QUIET, "--nulls", "19"]
    new = ["--expression", study / "brain/expression.csv", "--coordinates", study / "brain/regions.csv"]
    predictor = ConnectivityPredictor.load(study / "attention")
    expected = predictor.explain("L_region_3", "R_region_5")
    for name, more in (("why", []), ("again", new)):
        out = tmp_path / name
        assert run(*words, "--model", study / "attention", *more, "--out", out) == 0
        assert f"{expected['region'][0]:24}{expected['known'][0]:24}" in capsys.readouterr().out
        found = pd.read_csv(out / "pairs.tsv", sep="\t")
        assert found["region"].tolist() == expected["region"].tolist()
        np.testing.assert_allclose(found["weight"], expected["weight"], rtol=1e-4)
        genes = pd.read_csv(out / "genes.tsv", sep="\t")
        assert list(genes) == ["gene", "importance", "null", "p", "q"]
        assert len(genes) == GENES
        assert genes["importance"].is_monotonic_decreasing
        assert (out / "report.html").is_file()
    said = refused(capsys, *words, "--model", study / "ridge", "--out", tmp_path / "no")
    assert "explain is for methods with attention" in said
    assert not (tmp_path / "no").exists()


def test_evaluate_writes_one_table_of_all(study, pages, tmp_path, monkeypatch, capsys, as_asked):
    out = tmp_path / "evaluation"
    words = ["evaluate", *files(study / "brain"), "--model", study / "ridge", "--out", out, *QUIET]
    words += ["--methods", "geometry", "--folds", "2", "--seeds", "2", "--null", "5"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    found = json.loads((out / "metrics.json").read_text())
    assert set(found["table"]) == {"omniset", "geometry"}
    assert (found["unit"], found["units"]) == ("brain region", REGIONS)
    line = next(line for line in said.splitlines() if line.startswith("  omniset "))
    assert f"{next(s['value'] for s in found['scores'] if s['method'] == 'omniset'):.2f}" in line
    assert "Bilateral split, 2 folds x 2 seeds." in said
    assert [(one["null"], one["nulls"]) for one in found["nulls"][::2]] == [("spin", 5), ("variogram", 5)]
    assert "null, variogram: a kernel ridge of genes reaches" in said
    assert found["verdict"] in said
    assert len(pd.read_csv(out / "scores.csv.gz")) == 2 * 2 * 2 * (17 * 16 // 2)
    monkeypatch.setattr(ConnectivityPredictor, "fit_rows", None)  # is not fitted again
    assert run(*words, "--resume", "true") == 0
    assert json.loads((out / "metrics.json").read_text())["by_fold"] == found["by_fold"]
    said = refused(capsys, *words, "--resume", "true", "--split", "random")
    assert "holds the evaluation of regions of an earlier run" in said


def test_what_is_missing(study, tmp_path, capsys):
    given, out = files(study / "brain"), ["--out", tmp_path / "out", *QUIET]
    for verb, lacking in (("fit", "--expression"), ("fit", "--connectivity"), ("evaluate", "--expression")):
        at = given.index(lacking)
        assert f"{lacking} must be given" in refused(capsys, verb, *given[:at], *given[at + 2 :], *out)
    nothing = tmp_path / "nothing.csv"
    for at in (1, 3, 5):
        words = [*given[:at], nothing, *given[at + 1 :]]
        assert "nothing.csv: No such file" in refused(capsys, "fit", *words, *out)
    for verb, option in (("fit", "--aliases"), ("fit", "--gene_vectors"), ("evaluate", "--model")):
        words = [verb, *given, option, nothing, *out, *(["--method", "seed"] if verb == "fit" else [])]
        assert "nothing.csv" in refused(capsys, *words)
    assert not list(tmp_path.iterdir())


def test_bad_places(study, tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text("a,b\nL_region_1,L_region_2\n")
    before = {path.name: path.read_bytes() for path in (study / "ridge").iterdir()}
    pair = ["explain", "L_region_1", "L_region_2", "--model", study / "model", "--out", study / "ridge"]
    assert "holds the ConnectivityPredictor" in refused(capsys, *pair)
    words = ["predict", "--model", study / "ridge", "--out"]
    for out, more, said in (
        ("p.txt", [], "p.txt"),
        ("no/p.csv", [], "no"),
    ):
        assert said in refused(capsys, *words, tmp_path / out, *more)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv"]
    assert {path.name: path.read_bytes() for path in (study / "ridge").iterdir()} == before
