"""`omniset regions` as at a shell: every verb on files, and every way to give it bad ones."""

import json

import numpy as np
import pandas as pd
import pytest

from omniset import report as written
from omniset.cli import main
from omniset.regions import ConnectivityPredictor, blend, kernel_ridge, methods, read_regions, report, set_attention
from omniset.regions.data import simulate

REGIONS, GENES = 34, 13
QUIET = ["--progress", "false"]
FEW = ["--device", "cpu", *QUIET]
RIDGE = ["--method", "ridge", *QUIET]
NAMES = ["expression", "connectivity", "regions"]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Few trees, kernels and folds, and no glass brains: they take longer than most of these tests."""

    def lacking(*_):
        raise ImportError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "ITERATIONS", 5)
        for choice in ("PENALTIES", "RATES", "WIDTHS"):
            patch.setattr(kernel_ridge, choice, getattr(kernel_ridge, choice)[:2])
        patch.setattr(blend, "FOLDS", 2)
        patch.setattr(set_attention, "STEPS", 3)
        patch.setattr(report.drawn, "brain", lacking)
        yield


@pytest.fixture(autouse=True)
def without_pages(request, monkeypatch):
    """The pages of `fit` are those of `study` alone; so are those of any command but in tests that ask for `pages`."""
    if "pages" not in request.fixturenames:
        monkeypatch.setattr(report, "of_fit", lambda *_, **__: (None, {}))
        monkeypatch.setattr(written, "write", lambda *_: None)


@pytest.fixture
def pages():
    pass


@pytest.fixture(scope="module")
def study(tmp_path_factory, quick):
    """A brain, and models of it: the default, a kernel ridge, and the network alone."""
    root = tmp_path_factory.mktemp("regions")
    assert run("simulate", "--out", root / "brain", "--regions", REGIONS, "--genes", GENES) == 0
    assert run("fit", *files(root / "brain"), "--out", root / "model", *FEW) == 0
    assert run("fit", *files(root / "brain"), "--out", root / "ridge", *RIDGE) == 0
    assert run("fit", *files(root / "brain"), "--out", root / "attention", "--method", "attention", *FEW) == 0
    return root


@pytest.fixture
def brain(study):
    """Tables of the brain, to be changed and written by `put`."""
    return {name: pd.read_csv(study / "brain" / f"{name}.csv", index_col=0) for name in NAMES}


def run(*words):
    return main(["regions", *map(str, words)])


def files(folder):
    options = zip(("--expression", "--connectivity", "--coordinates"), NAMES, strict=True)
    return [word for option, name in options for word in (option, folder / f"{name}.csv")]


def put(brain, folder):
    folder.mkdir(exist_ok=True)
    for name, table in brain.items():
        table.to_csv(folder / f"{name}.csv")
    return files(folder)


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


# ---------------------------------------------------------------------- options


# ---------------------------------------------------------------------- simulate


def test_simulate_writes_three_tables(study, tmp_path, capsys):
    assert run("simulate", "--out", tmp_path / "a", "--regions", "34", "--genes", "13") == 0
    assert "expression.csv, connectivity.csv, regions.csv" in capsys.readouterr().out
    assert run("simulate", "--out", tmp_path / "b", "--regions", "34", "--genes", "13", "--seed", "1") == 0
    for name in NAMES:
        same, other = ((tmp_path / folder / f"{name}.csv").read_bytes() for folder in "ab")
        assert same == (study / "brain" / f"{name}.csv").read_bytes()
        assert same != other
    assert "even and >= 16, got 17" in refused(capsys, "simulate", "--out", tmp_path / "c", "--regions", "17")
    assert "genes must be >= 10, got 9" in refused(capsys, "simulate", "--out", tmp_path / "c", "--genes", "9")
    assert not (tmp_path / "c").exists()


# ---------------------------------------------------------------------- fit


def test_options_of_reading(study, brain, tmp_path, capsys):
    brain["connectivity"] = brain["connectivity"] - 0.5
    words = ["fit", *put(brain, tmp_path / "shifted"), "--out", tmp_path / "model", *RIDGE]
    assert run(*words, "--fisher_z", "true", "--zero-negative", "true") == 0
    said = capsys.readouterr().out
    assert "Fisher's z" in said
    assert "negative connectivity are set to 0" in said
    learned = ConnectivityPredictor.load(tmp_path / "model").regions_.connectivity
    np.testing.assert_allclose(learned, np.maximum(np.arctanh(brain["connectivity"].to_numpy()), 0), atol=1e-12)


def test_without_coordinates(study, tmp_path, capsys):
    words = [*files(study / "brain")[:4], *QUIET]
    assert run("fit", *words, "--out", tmp_path / "model", "--method", "ridge") == 0
    said = refused(capsys, "fit", *words, "--out", tmp_path / "no", "--method", "places")
    assert "coordinates are not known" in said
    for more in ([], ["--split", "random", "--null", "1"]):
        assert "coordinates" in refused(capsys, "evaluate", *words, "--out", tmp_path / "no", *more)
    assert not (tmp_path / "no").exists()


# ---------------------------------------------------------------------- predict


@pytest.mark.parametrize("end", ["tsv", "parquet", "npy"])
def test_predict_writes_the_matrix(study, tmp_path, end):
    out = tmp_path / f"p.{end}"
    assert run("predict", "--model", study / "ridge", "--out", out, *QUIET) == 0
    expected = ConnectivityPredictor.load(study / "ridge").predict_matrix()
    if end == "npy":
        assert np.array_equal(np.load(out), expected.to_numpy(), equal_nan=True)
        return
    read = pd.read_parquet if end == "parquet" else pd.read_csv
    found = read(out, **({"sep": "\t"} if end == "tsv" else {})).set_index("region")
    pd.testing.assert_frame_equal(found, expected, check_names=False, rtol=1e-6)
    values = found.to_numpy()
    assert np.array_equal(values, values.T, equal_nan=True)
    assert np.isnan(values).sum() == REGIONS


def test_predict_of_pairs(study, tmp_path, capsys):
    pairs = pd.DataFrame(
        {"to": ["R_region_7", "L_region_1", "L_region_3"], "from": ["L_region_1", "R_region_7", "R_region_17"], "n": 1}
    )
    whole = matrix(study / "ridge", tmp_path / "p.csv")
    for end in ("csv", "parquet"):
        pairs.to_csv(tmp_path / "pairs.csv", index=False)
        pairs.to_parquet(tmp_path / "pairs.parquet", index=False)
        words = ["--model", study / "ridge", "--pairs", tmp_path / f"pairs.{end}", "--out", tmp_path / f"q.{end}"]
        assert run("predict", *words, *QUIET) == 0
        found = (pd.read_csv if end == "csv" else pd.read_parquet)(tmp_path / f"q.{end}")
        assert list(found) == ["to", "from", "connectivity"]
        assert found[["to", "from"]].to_numpy().tolist() == pairs[["to", "from"]].to_numpy().tolist()
        expected = [whole.loc[one, other] for one, other in found[["to", "from"]].to_numpy()]
        np.testing.assert_allclose(found["connectivity"], expected, rtol=1e-6)
        assert found["connectivity"][0] == found["connectivity"][1]
    (tmp_path / "pairs.csv").write_text("a,b\n")
    words = ["--model", study / "ridge", "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "none.csv"]
    assert "there is no row to write" in refused(capsys, "predict", *words, *QUIET)
    assert not (tmp_path / "none.csv").exists()


def test_predict_of_other_regions(study, tmp_path, capsys):
    """Other names and places, genes in another order, one too many and two that are missing."""
    other = simulate(16, GENES, seed=5)
    expression = pd.DataFrame(other.expression, pd.Index([f"new{i}" for i in range(16)], name="region"), other.genes)
    places = pd.DataFrame(other.coordinates, expression.index, ["x", "y", "z"])
    shuffled = expression.iloc[:, ::-1].drop(columns=["GENE2", "GENE5"]).assign(GENE99=1.0)
    shuffled.to_csv(tmp_path / "e.csv")
    places.iloc[::-1].to_csv(tmp_path / "c.csv")
    new = ["--expression", tmp_path / "e.csv", "--coordinates", tmp_path / "c.csv"]
    found = matrix(study / "ridge", tmp_path / "p.csv", *new)
    said = capsys.readouterr()
    assert "15% of the model's 13 genes are not there, such as 'GENE2'" in said.err
    lacking = expression.assign(GENE2=np.nan, GENE5=np.nan)
    predictor = ConnectivityPredictor.load(study / "ridge")
    regions = read_regions(expression, None, places).with_(expression=lacking.to_numpy(np.float32))
    np.testing.assert_allclose(found.to_numpy(), predictor.predict_matrix(regions).to_numpy(), rtol=1e-5)
    assert found.index.tolist() == expression.index.tolist()
    said = refused(capsys, "predict", "--model", study / "ridge", *new[:2], "--out", tmp_path / "no.csv", *QUIET)
    assert "coordinates" in said
    said = refused(capsys, "predict", "--model", study / "ridge", *new[2:], "--out", tmp_path / "no.csv", *QUIET)
    assert "coordinates come with expression" in said
    shuffled.rename(columns=lambda name: f"Other{name}").to_csv(tmp_path / "e.csv")
    said = refused(capsys, "predict", "--model", study / "ridge", *new, "--out", tmp_path / "no.csv", *QUIET)
    assert "none of the model's genes, such as 'GENE1', is there" in said
    (tmp_path / "aliases.csv").write_text("alias,name\n" + "".join(f"OtherGENE{i},GENE{i}\n" for i in range(1, 14)))
    aliases = ["--aliases", tmp_path / "aliases.csv"]
    pd.testing.assert_frame_equal(matrix(study / "ridge", tmp_path / "q.csv", *new, *aliases), found)
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a,b\nL_region_1,R_region_1\nL_region_1,nobody\n",
            "pair 2: region 'nobody' is not there, regions are such as",
        ),
        ("a,b\nL_region_1,L_region_1\n", "'L_region_1' with itself"),
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


# ---------------------------------------------------------------------- explain


def test_explain_writes_genes_and_what_is_read_from(study, pages, tmp_path, capsys):
    words = ["explain", "L_region_3", "R_region_5", "--model", study / "attention", *QUIET]
    (tmp_path / "sets.gmt").write_text("some\tabout\tGENE1\tGENE2\tGENE3\n")
    words += ["--nulls", "19", "--gene_sets", tmp_path / "sets.gmt"]
    assert run(*words, "--out", tmp_path / "why") == 0
    said = capsys.readouterr().out
    predictor = ConnectivityPredictor.load(study / "attention")
    expected = predictor.explain("L_region_3", "R_region_5")
    found = pd.read_csv(tmp_path / "why/pairs.tsv", sep="\t")
    assert found[["region", "known"]].to_numpy().tolist() == expected[["region", "known"]].to_numpy().tolist()
    np.testing.assert_allclose(found["weight"], expected["weight"], rtol=1e-5)
    assert f"{expected['region'][0]:24}{expected['known'][0]:24}" in said
    genes = pd.read_csv(tmp_path / "why/genes.tsv", sep="\t")
    assert list(genes) == ["gene", "importance", "null", "p", "q"]
    assert len(genes) == GENES
    assert genes["importance"].is_monotonic_decreasing
    sets = pd.read_csv(tmp_path / "why/sets.tsv", sep="\t")
    assert sets[["set", "genes"]].to_numpy().tolist() == [["some", 3]]
    assert (tmp_path / "why/report.html").is_file()
    new = ["--expression", study / "brain/expression.csv", "--coordinates", study / "brain/regions.csv"]
    assert run(*words, *new, "--out", tmp_path / "again") == 0
    again = pd.read_csv(tmp_path / "again/pairs.tsv", sep="\t")
    np.testing.assert_allclose(again["weight"], found["weight"], rtol=1e-4)


def test_explain_refuses(study, tmp_path, capsys):
    pair = ["L_region_3", "R_region_5"]
    for words, said in (
        ([*pair, "--model", study / "attention", "--nulls", "0"], "nulls must be >= 1, got 0"),
        ([*pair, "--model", study / "attention", "--gene_sets", study / "nothing"], "nothing"),
        ([*pair, "--model", study / "nothing"], "config.json"),
    ):
        assert said in refused(capsys, "explain", *words, "--out", tmp_path / "why", *QUIET)
        assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- evaluate


def test_evaluate_writes_one_table_of_all(study, pages, tmp_path, monkeypatch, capsys, as_asked):
    out = tmp_path / "evaluation"
    words = ["evaluate", *files(study / "brain"), "--model", study / "ridge", "--out", out, *QUIET]
    words += ["--methods", "geometry", "--folds", "2", "--seeds", "2", "--null", "5"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    found = json.loads((out / "metrics.json").read_text())
    assert set(found["table"]) == {"omniset", "geometry"}
    assert (found["unit"], found["units"]) == ("brain region", REGIONS)
    assert {f"{row['seed']}{row['fold']}{row['method']}" for row in found["by_fold"]} == {
        f"{seed}{fold}{method}" for seed in (0, 1) for fold in (0, 1) for method in found["table"]
    }
    line = next(line for line in said.splitlines() if line.startswith("  omniset "))
    assert f"{next(s['value'] for s in found['scores'] if s['method'] == 'omniset'):.3f}" in line
    assert "Bilateral split, 2 folds x 2 seeds." in said
    assert [(one["null"], one["nulls"]) for one in found["nulls"][::2]] == [("spin", 5), ("variogram", 5)]
    assert "null, variogram: a kernel ridge of genes reaches" in said
    assert found["verdict"] in said
    assert [gate["opponent"] for gate in found["gates"]] == ["geometry"]
    assert "geometry, the best baseline" in found["verdict"]
    assert "asked >" not in said  # of a single gate the verdict says it all
    rows = pd.read_csv(out / "scores.csv.gz")
    assert list(rows) == ["condition", "method", "seed", "fold", "region_a", "region_b", "truth", "predicted"]
    assert len(rows) == 2 * 2 * 2 * (17 * 16 // 2)

    def not_again(*_, **__):
        raise AssertionError("fitted again")

    monkeypatch.setattr(ConnectivityPredictor, "fit_rows", not_again)
    assert run(*words, "--resume", "true") == 0
    assert json.loads((out / "metrics.json").read_text())["by_fold"] == found["by_fold"]
    said = refused(capsys, *words, "--resume", "true", "--split", "random")
    assert "holds the evaluation of regions of an earlier run" in said


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "--gene_vectors", "nothing.txt", "--method", "seed"], "nothing.txt"),
        (["fit", "--gene_vectors", "nothing.txt"], "gene_vectors are for method='seed'"),
        (["fit", "--aliases", "nothing.csv"], "nothing.csv"),
        (["evaluate", "--aliases", "nothing.csv"], "nothing.csv"),
        (["evaluate", "--model", "nothing"], "nothing is no folder of a model"),
    ],
)
def test_bad_arguments(study, tmp_path, capsys, words, said):
    assert said in refused(capsys, *words, *files(study / "brain"), "--out", tmp_path / "out", *QUIET)
    assert not list(tmp_path.iterdir())


def test_files_that_are_missing(study, tmp_path, capsys):
    given = files(study / "brain")
    for verb, lacking in (("fit", "--expression"), ("fit", "--connectivity"), ("evaluate", "--expression")):
        at = given.index(lacking)
        said = refused(capsys, verb, *given[:at], *given[at + 2 :], "--out", tmp_path / "out", *RIDGE)
        assert f"{lacking} must be given" in said
    for at in (1, 3, 5):
        words = [*given[:at], tmp_path / "nothing.csv", *given[at + 1 :]]
        assert "nothing.csv: No such file" in refused(capsys, "fit", *words, "--out", tmp_path / "out", *RIDGE)
    words = ["--model", study / "ridge", "--pairs", tmp_path / "nothing.csv", "--out", tmp_path / "p.csv", *QUIET]
    assert "nothing.csv" in refused(capsys, "predict", *words)
    assert not list(tmp_path.iterdir())


def test_bad_places(study, tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text("a,b\nL_region_1,L_region_2\n")
    before = {path.name: path.read_bytes() for path in (study / "ridge").iterdir()}
    for words, said in (
        (
            ["explain", "L_region_1", "L_region_2", "--model", study / "model", "--out", study / "ridge"],
            "holds the ConnectivityPredictor",
        ),
        (["predict", "--model", study / "ridge", "--out", tmp_path / "p.txt"], "p.txt"),
        (["predict", "--model", study / "ridge", "--out", tmp_path / "no" / "p.csv"], "no"),
        (["predict", "--model", study / "ridge", "--out", tmp_path / "no" / "p.npy"], "no"),
        (
            ["predict", "--model", study / "ridge", "--pairs", tmp_path / "pairs.csv", "--out", tmp_path / "p.npy"],
            "out must be a table for pairs",
        ),
        (["predict", "--model", study / "brain", "--out", tmp_path / "p.csv"], "config.json"),
    ):
        assert said in refused(capsys, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv"]
    assert {path.name: path.read_bytes() for path in (study / "ridge").iterdir()} == before
