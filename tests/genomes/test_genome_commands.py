"""`omniset genomes` as at a shell: every verb on files, and every way to give it bad ones."""

import gzip
import json
import lzma
import shutil

import numpy as np
import pandas as pd
import pytest

from omniset.cli import main
from omniset.genomes import GenomeCompleter, evaluate, read_qualities, read_table

SMALL = ["--dim", "8", "--depth", "1", "--num_heads", "2", "--epochs", "1", "--progress", "false", "--device", "cpu"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Simulated tables, and a model fitted on them."""
    root = tmp_path_factory.mktemp("genomes")
    simulate = ["genomes", "simulate", "--out", str(root / "sim"), "--genomes", "61", "--families", "83"]
    assert main([*simulate, "--mags", "11"]) == 0
    fit = ["genomes", "fit", str(root / "sim/families.tsv"), "--taxonomy", str(root / "sim/taxonomy.tsv")]
    assert main([*fit, "--out", str(root / "model"), *SMALL]) == 0
    return root


@pytest.fixture(scope="module")
def completed(study):
    assert complete(study, study / "completed") == 0
    return study / "completed"


def complete(study, out, table="sim/mags.tsv", quality="sim/quality_report.tsv", *more):
    words = ["genomes", "complete", str(study / table), "--model", str(study / "model"), "--out", str(out)]
    words += [] if quality is None else ["--quality", str(study / quality)]
    return main([*words, "--progress", "false", *more])


def test_fit_leaves_an_artefact_and_a_report(study):
    names = {p.name for p in (study / "model").iterdir()}
    assert {"config.json", "model.safetensors", "vocabulary.parquet", "references.parquet", "metrics.json"} <= names
    assert {"report.html", "report.json"} <= names
    assert json.loads((study / "model/metrics.json").read_text())["history"]


def test_complete_writes_what_python_says(study, completed):
    completer = GenomeCompleter.load(study / "model")
    mags = read_table(study / "sim/mags.tsv", known=completer.families_)
    quality = read_qualities(study / "sim/quality_report.tsv")
    expected = {c.name: c for c in completer.completions(mags, quality)}

    wide = pd.read_csv(completed / "probabilities.tsv", sep="\t", index_col="genome")
    assert list(wide.columns) == completer.families_
    assert list(wide.index) == mags.names
    for name, one in expected.items():
        np.testing.assert_allclose(wide.loc[name], one.probability, atol=1e-5)

    calls = pd.read_csv(completed / "calls.tsv", sep="\t")
    assert list(calls) == ["genome", "family", "observed", "probability", "call", "flag", "log_odds"]
    for name, one in expected.items():
        rows = calls[(calls["genome"] == name) & (calls["flag"] != "unknown")].set_index("family")
        for flag, mask in (("added", one.added), ("removed", one.removed), ("kept", one.call & one.observed)):
            assert set(rows.index[rows["flag"] == flag]) == {completer.families_[i] for i in np.flatnonzero(mask)}
        lost = calls[(calls["genome"] == name) & (calls["flag"] == "unknown")]
        assert dict(zip(lost["family"], lost["observed"], strict=True)) == one.unknown

    summary = pd.read_csv(completed / "summary.tsv", sep="\t").set_index("genome")
    for name, one in expected.items():
        row = summary.loc[name]
        assert (row["observed"], row["added"], row["removed"]) == (
            one.observed.sum(),
            one.added.sum(),
            one.removed.sum(),
        )
        assert row["low"] <= row["expected"] <= row["high"]


@pytest.mark.parametrize("kind", ["transposed", "long", "parquet", "gz", "xz", "csv"])
def test_every_form_of_a_table_gives_the_same_calls(study, completed, tmp_path, kind):
    wide = pd.read_csv(study / "sim/mags.tsv", sep="\t", index_col=0)
    path = tmp_path / {"parquet": "t.parquet", "gz": "t.tsv.gz", "xz": "t.tsv.xz", "csv": "t.csv"}.get(kind, "t.tsv")
    if kind == "transposed":
        wide.T.to_csv(path, sep="\t")
    elif kind == "long":
        rows = wide.stack().rename("count").rename_axis(["genome", "family"]).reset_index()
        rows[rows["count"] > 0].to_csv(path, sep="\t", index=False)
    elif kind == "parquet":
        wide.reset_index().to_parquet(path)
    elif kind == "csv":
        wide.to_csv(path)
    else:
        opener = gzip.open if kind == "gz" else lzma.open
        with opener(path, "wb") as file:
            file.write((study / "sim/mags.tsv").read_bytes())
    assert complete(study, tmp_path, path) == 0
    order = ["genome", "family"]
    a, b = (pd.read_csv(folder / "calls.tsv", sep="\t").sort_values(order) for folder in (completed, tmp_path))
    pd.testing.assert_frame_equal(a.reset_index(drop=True), b.reset_index(drop=True))


def test_precision_changes_less_than_a_threshold(study, completed, tmp_path):
    assert complete(study, tmp_path, "sim/mags.tsv", "sim/quality_report.tsv", "--precision", "0.99") == 0
    a, b = (pd.read_csv(folder / "summary.tsv", sep="\t") for folder in (completed, tmp_path))
    assert b["added"].sum() < a["added"].sum()
    assert b["warnings"].astype(str).str.contains("precision").any() or b["added"].sum() > 0


@pytest.mark.parametrize("method", ["knn", "prevalence", "prevalence-bayes", "as-is", "auto"])
def test_methods(study, tmp_path, method):
    more = ("--method", method, "--output", "parquet")
    assert complete(study, tmp_path / "out", "sim/mags.tsv", "sim/quality_report.tsv", *more) == 0
    methods = set(pd.read_parquet(tmp_path / "out/summary.parquet")["method"])
    assert methods <= ({"knn", "prevalence-bayes", "as-is", "evidence"} if method == "auto" else {method})


def test_without_qualities_they_are_estimated_and_that_is_said(study, tmp_path, capsys):
    assert complete(study, tmp_path / "out", quality=None) == 0
    assert "estimated from marker families" in capsys.readouterr().out
    assert "estimated from marker families" in json.loads((tmp_path / "out/report.json").read_text())["notes"][0]
    assert set(pd.read_csv(tmp_path / "out/summary.tsv", sep="\t")["quality"]) == {"estimated"}


def test_qualities_are_matched_by_name_whatever_tools_add(study, completed, tmp_path):
    table = pd.read_csv(study / "sim/quality_report.tsv", sep="\t")
    table["Name"] = "RS_" + table["Name"] + ".fna"
    table.to_csv(tmp_path / "q.tsv", sep="\t", index=False)
    assert complete(study, tmp_path / "out", "sim/mags.tsv", tmp_path / "q.tsv") == 0
    assert (completed / "calls.tsv").read_text() == (tmp_path / "out/calls.tsv").read_text()


def test_explain_tells_why(study, tmp_path, capsys):
    family = GenomeCompleter.load(study / "model").families_[3]
    genome = read_table(study / "sim/mags.tsv").names[0]
    words = [genome, family, str(study / "sim/mags.tsv"), "--model", str(study / "model"), "--progress", "false"]
    assert main(["genomes", "explain", *words, "--out", str(tmp_path / "why.tsv")]) == 0
    said = capsys.readouterr().out
    for word in ("probability", "neighbours", "context", "evidence", "nearest references"):
        assert word in said
    found = pd.read_csv(tmp_path / "why.tsv", sep="\t")
    assert list(found) == ["family", "count", "change", "attribution", "genome", "explained"]


def test_evaluate_writes_one_table_of_all(study, tmp_path, capsys, monkeypatch):
    some = ("100/0", "50/0", "70/5 estimated", "70/5 unknown", "missed 0.25, foreign 0.01")  # every kind, for the time
    some = [c for c in evaluate.CONDITIONS if c.name in some]
    assert {c.kind for c in some} == {c.kind for c in evaluate.CONDITIONS}
    monkeypatch.setattr(evaluate, "CONDITIONS", some)
    words = [str(study / "sim/families.tsv"), "--taxonomy", str(study / "sim/taxonomy.tsv"), "--seeds", "1"]
    words += ["--methods", "pca", "--out", str(tmp_path / "ev"), *SMALL]
    assert main(["genomes", "evaluate", *words]) == 0
    said = capsys.readouterr().out
    for method in ("omniset", "as-is", "knn", "prevalence-bayes", "pca", "asked > 0"):
        assert method in said
    written = {p.name for p in (tmp_path / "ev").iterdir()}
    assert written >= {"metrics.json", "scores.csv", "report.html", "report.json", "rows", "omniset_metrics_mqc.json"}
    scores = pd.read_csv(tmp_path / "ev/scores.csv")
    numbers = json.loads((tmp_path / "ev/metrics.json").read_text())
    assert numbers["ours"] == "omniset"
    assert set(scores["method"]) == {score["method"] for score in numbers["scores"]} >= {"omniset", "pca"}
    f1 = scores[(scores["method"] == "omniset") & (scores["condition"] == "50/0")]["f1"].mean()
    where = ("50/0", "f1", "omniset")
    (mean,) = (s for s in numbers["scores"] if (s["condition"], s["score"], s["method"]) == where)
    assert mean["value"] == pytest.approx(f1)
    before = (tmp_path / "ev/rows/seed_0.parquet").stat().st_mtime_ns
    assert main(["genomes", "evaluate", *words, "--resume", "true"]) == 0
    assert (tmp_path / "ev/rows/seed_0.parquet").stat().st_mtime_ns == before
    assert main(["genomes", "evaluate", *words, "--resume", "true", "--precision", "0.9"]) == 2
    assert "precision" in capsys.readouterr().err


def lines(study):
    return (study / "sim/mags.tsv").read_text().splitlines()


def replaced(study, row, column, value):
    rows = [line.split("\t") for line in lines(study)]
    rows[row][column] = value
    return "\n".join("\t".join(fields) for fields in rows) + "\n"


@pytest.mark.parametrize(
    ("value", "words"),
    [("-1", ["line 3", "-1"]), (None, ["K00001", "FAM", "vocabulary"])],
    ids=["a negative count", "families of another kind"],
)
def test_bad_tables_are_one_clear_error_and_leave_nothing(study, tmp_path, capsys, value, words):
    others = "genome\tK00001\tK00002\tK00003\na\t1\t0\t1\nb\t1\t1\t1\n"
    (tmp_path / "bad.tsv").write_text(others if value is None else replaced(study, 2, 3, value))
    assert complete(study, tmp_path / "out", tmp_path / "bad.tsv") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for word in words:
        assert word in said, said
    assert not (tmp_path / "out").exists()


def test_a_truncated_gz(study, tmp_path, capsys):
    whole = gzip.compress((study / "sim/mags.tsv").read_bytes())
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    assert complete(study, tmp_path / "out", tmp_path / "cut.tsv.gz") == 2
    assert "cut.tsv.gz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Name\tCompleteness\tContamination\nGENOME00001\t101\t0\n", ["line 2", "101", "100"]),
        ("Name\tCompleteness\tContamination\nx\t90\t1\n", ["none of the genomes", "'x'"]),
    ],
)
def test_bad_qualities(study, tmp_path, capsys, text, words):
    (tmp_path / "q.tsv").write_text(text)
    assert complete(study, tmp_path / "out", "sim/mags.tsv", tmp_path / "q.tsv") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for word in words:
        assert word in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clade", "domain"], "no validation genome"),
        (["--min_genomes", "1000"], "min_genomes"),
        (["--completeness", "[80.0, 20.0]"], "completeness"),
        (["--format", "excel"], "format"),
    ],
)
def test_bad_arguments_of_fit(study, tmp_path, capsys, words, said):
    fit = ["genomes", "fit", str(study / "sim/families.tsv"), "--taxonomy", str(study / "sim/taxonomy.tsv")]
    assert main([*fit, "--out", str(tmp_path / "model"), *SMALL, *words]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert "Traceback" not in found
    assert not (tmp_path / "model").exists()


def test_a_taxonomy_of_other_genomes(study, tmp_path, capsys):
    (tmp_path / "t.tsv").write_text("genome\tgtdb_taxonomy\nx\td__A;p__B;c__C;o__D;f__E;g__F;s__G\n")
    fit = ["genomes", "fit", str(study / "sim/families.tsv"), "--taxonomy", str(tmp_path / "t.tsv")]
    assert main([*fit, "--out", str(tmp_path / "model"), *SMALL]) == 2
    assert "'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.tsv", "genome\tFAM00001\nA\t1_000\n", "t.tsv: line 2: column 'FAM00001' is '1_000'"),
        ("t.biom", "\x7f", "t.biom: is of no known format"),
        ("u.biom", b"\x89HDF\r\n\x1a\n\0", "u.biom: is an HDF5 file, such as BIOM or h5ad"),
        ("t.h5ad", b"\x89HDF\r\n\x1a\n\0", "t.h5ad: is an HDF5 file, such as BIOM or h5ad"),
    ],
)
def test_files_of_others_are_one_line(study, tmp_path, capsys, name, text, said):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert complete(study, tmp_path / "out", tmp_path / name) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_fractions_in_place_of_percent(study, tmp_path, capsys):
    simulate = ["genomes", "simulate", "--genomes", "5", "--families", "7", "--mags", "2", "--out", str(tmp_path / "s")]
    assert main([*simulate, "--completeness", "[0.5,0.95]"]) == 2
    assert (
        "completeness is 0.5 to 0.95, which seem to be fractions: give percent, such as 50, 95"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "s").exists()
    assert main([*simulate, "--completeness", "[50,95]", "--contamination", "[0,0.05]"]) == 0
    assert "contamination is 0 to 0.05 percent: if fractions are meant, give 0, 5" in capsys.readouterr().err
    table = pd.read_csv(study / "sim/quality_report.tsv", sep="\t")
    table["Completeness"] /= 100
    table.to_csv(tmp_path / "q.tsv", sep="\t", index=False)
    assert complete(study, tmp_path / "out", "sim/mags.tsv", tmp_path / "q.tsv") == 2
    assert "so it seems to hold fractions: multiply completeness by 100" in capsys.readouterr().err


def test_bad_arguments_of_complete(study, tmp_path, capsys):
    for more, word in (
        (["--threshold", "1.5"], "threshold"),
        (["--precision", "0.2"], "precision"),
        (["--method", "autoencoder"], "fitted"),
    ):
        assert complete(study, tmp_path / "out", "sim/mags.tsv", "sim/quality_report.tsv", *more) == 2
        assert word in capsys.readouterr().err
    assert complete(study, study / "model") == 2
    assert "holds a model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_damaged_artefact_says_what_differs(study, tmp_path, capsys):
    shutil.copytree(study / "model", tmp_path / "model")
    frame = pd.read_parquet(tmp_path / "model/vocabulary.parquet")
    frame.iloc[::-1].to_parquet(tmp_path / "model/vocabulary.parquet")
    words = ["genomes", "complete", str(study / "sim/mags.tsv"), "--model", str(tmp_path / "model")]
    assert main([*words, "--out", str(tmp_path / "out"), "--progress", "false"]) == 2
    assert "vocabulary" in capsys.readouterr().err
