"""`omniset genomes` as at a shell: each verb hands on what it was given."""

import json

import numpy as np
import pandas as pd
import pytest

from omniset.cli import main
from omniset.genomes import GenomeCompleter, evaluate, read_qualities, read_table, training

SMALL = ["--epochs", "1", "--progress", "false", "--device", "cpu"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Simulated tables, and a model fitted on them."""
    root = tmp_path_factory.mktemp("genomes")
    simulate = ["genomes", "simulate", "--out", str(root / "sim"), "--genomes", "61", "--families", "83"]
    assert main([*simulate, "--mags", "11"]) == 0
    fit = ["genomes", "fit", str(root / "sim/families.tsv"), "--taxonomy", str(root / "sim/taxonomy.tsv")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "VALIDATION_FRACTION", 0.1)  # of more clades than other tests have
        assert main([*fit, "--out", str(root / "model"), *SMALL]) == 0
    return root


def complete(study, out, table="sim/mags.tsv", quality="sim/quality_report.tsv", more=()):
    words = ["genomes", "complete", str(study / table), "--model", str(study / "model"), "--out", str(out)]
    words += [] if quality is None else ["--quality", str(study / quality)]
    return main([*words, "--progress", "false", *more])


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": 0.8}, {"threshold": 0.3}, {"detection": "accessory"}],
)
def test_complete_writes_what_python_says(study, tmp_path, options):
    completer = GenomeCompleter.load(study / "model")
    mags = read_table(study / "sim/mags.tsv", known=completer.families_)
    expected = list(completer.completions(mags, read_qualities(study / "sim/quality_report.tsv"), **options))
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert complete(study, tmp_path, more=[*words, "--output", "parquet"]) == 0
    tables = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("probabilities", "calls", "summary")}
    assert all(table["genome"].unique().tolist() == mags.names for table in tables.values())
    wide, summary = tables["probabilities"].set_index("genome"), tables["summary"].set_index("genome")
    assert list(wide.columns) == completer.families_
    assert list(tables["calls"])[1:] == ["family", "observed", "probability", "call", "flag", "log_odds"]
    for one in expected:
        np.testing.assert_allclose(wide.loc[one.name], one.probability, atol=1e-5)
        rows = tables["calls"][tables["calls"]["genome"] == one.name]
        flags = {"added": one.added, "removed": one.removed, "kept": one.call & one.observed}
        for flag, mask in flags.items():
            assert set(rows["family"][rows["flag"] == flag]) == {completer.families_[i] for i in np.flatnonzero(mask)}
            assert summary.loc[one.name, flag] == mask.sum()
        unknown = rows[rows["flag"] == "unknown"]
        assert dict(zip(unknown["family"], unknown["observed"], strict=True)) == one.unknown
        row = summary.loc[one.name]
        assert row["observed"] == one.observed.sum()
        assert row["low"] <= row["expected"] <= row["high"]


def test_modules_are_written_beside(study, tmp_path, capsys):
    families = GenomeCompleter.load(study / "model").families_
    (tmp_path / "modules.tsv").write_text(
        f"module\tdefinition\nM1\t({families[0]},{families[1]}) {families[2]}\nM2\tX\n"
    )
    assert complete(study, tmp_path / "out", more=["--modules", str(tmp_path / "modules.tsv")]) == 0
    assert "1 of their 4 families, such as 'X', are not in the model's vocabulary" in capsys.readouterr().out
    rows = pd.read_csv(tmp_path / "out/modules.tsv", sep="\t")
    p = pd.read_csv(tmp_path / "out/probabilities.tsv", sep="\t", index_col="genome")[families[:3]].to_numpy().T
    one = rows[rows["module"] == "M1"]
    assert np.allclose(one["probability"], (1 - (1 - p[0]) * (1 - p[1])) * p[2], atol=1e-4)
    assert not rows.loc[rows["module"] == "M2", "probability"].any()
    assert "Modules" in (tmp_path / "out/report.html").read_text()
    assert complete(study, tmp_path / "out") == 0  # without: that of the run before is gone
    assert not (tmp_path / "out/modules.tsv").exists()


def test_without_qualities_they_are_estimated_and_that_is_said(study, tmp_path, capsys):
    assert complete(study, tmp_path / "out", quality=None) == 0
    assert "estimated from marker families" in capsys.readouterr().out
    assert "estimated from marker families" in json.loads((tmp_path / "out/report.json").read_text())["notes"][0]
    assert set(pd.read_csv(tmp_path / "out/summary.tsv", sep="\t")["quality"]) == {"estimated"}


def test_qualities_are_matched_by_name_whatever_tools_add(study, tmp_path):
    table = pd.read_csv(study / "sim/quality_report.tsv", sep="\t")
    table["Name"] = "RS_" + table["Name"] + ".fna"
    table.to_csv(tmp_path / "q.tsv", sep="\t", index=False)
    assert complete(study, tmp_path / "plain") == complete(study, tmp_path / "out", quality=tmp_path / "q.tsv") == 0
    assert (tmp_path / "plain/calls.tsv").read_text() == (tmp_path / "out/calls.tsv").read_text()


def test_what_another_run_wrote_is_not_left_beside(study, tmp_path):
    for kind in ("tsv", "csv.gz"):
        assert complete(study, tmp_path, more=["--output", kind]) == 0
        assert {path.name for path in tmp_path.glob("calls*")} == {f"calls.{kind}"}


def test_explain_tells_why(study, tmp_path, capsys):
    family = GenomeCompleter.load(study / "model").families_[3]
    genome = read_table(study / "sim/mags.tsv").names[0]
    words = [genome, family, str(study / "sim/mags.tsv"), "--model", str(study / "model"), "--progress", "false"]
    assert main(["genomes", "explain", *words, "--out", str(tmp_path / "why.tsv")]) == 0
    printed = capsys.readouterr().out
    for word in ("probability", "neighbours", "context", "evidence", "nearest references"):
        assert word in printed
    columns = list(pd.read_csv(tmp_path / "why.tsv", sep="\t"))
    assert columns == ["family", "count", "change", "genome", "explained"]


def test_evaluate_writes_the_means_of_its_rows_and_goes_on(study, tmp_path, capsys, monkeypatch, as_asked):
    conditions = ("100/0", "50/0", "70/5 estimated", "70/5 unknown", "missed 0.25, foreign 0.01")  # of every kind
    monkeypatch.setattr(evaluate, "CONDITIONS", [c for c in evaluate.CONDITIONS if c.name in conditions])
    words = ["genomes", "evaluate", str(study / "sim/families.tsv"), "--taxonomy", str(study / "sim/taxonomy.tsv")]
    words += ["--seeds", "1", "--model", str(study / "model"), "--out", str(tmp_path), *SMALL]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for word in ("omniset", "as-is", "knn", "prevalence-bayes", "pca", "mean", "no-network", "asked > 0"):
        assert word in printed
    scores = pd.read_csv(tmp_path / "scores.csv.gz")
    mean = scores[(scores["method"] == "omniset") & (scores["condition"] == "50/0")]["f1"].mean()
    numbers = json.loads((tmp_path / "metrics.json").read_text())["scores"]
    where = ("50/0", "f1", "omniset")
    (f1,) = (s["value"] for s in numbers if (s["condition"], s["score"], s["method"]) == where)
    assert f1 == pytest.approx(mean)
    rows = tmp_path / "rows/seed_0.parquet"
    before = rows.stat().st_mtime_ns
    assert main([*words, "--resume", "true"]) == 0
    assert rows.stat().st_mtime_ns == before
    assert main([*words, "--resume", "true", "--precision", "0.9"]) == 2
    assert "of an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("genome\tFAM00001\tFAM00002\na\t1\t0\nb\t-1\t1\n", ["line 3", "-1"]),
        ("genome\tK00001\tK00002\na\t1\t0\nb\t1\t1\n", ["K00001", "FAM", "vocabulary"]),
    ],
    ids=["a negative count", "families of another kind"],
)
def test_bad_tables_are_one_clear_error_and_leave_nothing(study, tmp_path, capsys, text, words):
    (tmp_path / "bad.tsv").write_text(text)
    assert complete(study, tmp_path / "out", tmp_path / "bad.tsv") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()


def test_a_model_is_not_replaced_by_completions(study, capsys):
    assert complete(study, study / "model") == 2
    assert "is or holds" in capsys.readouterr().err
