"""`omniset genomes` as at a shell: each verb hands on what it was given."""

import json

import numpy as np
import pandas as pd
import pytest

from omniset.cli import main
from omniset.genomes import GenomeCompleter, evaluate, read_qualities, read_table, simulate, training
from omniset.genomes.calibration import Logistic
from omniset.genomes.kegg_modules import Module, Modules, parse

NAMES = ("probabilities", "calls", "summary")
SMALL = ["--epochs", "1", "--progress", "false", "--device", "cpu"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Simulated tables, and a model fitted on them."""
    root = tmp_path_factory.mktemp("genomes")
    simulate.write(root / "sim", simulate.simulate(61, 83, 11))
    fit = ["genomes", "fit", str(root / "sim/families.tsv"), "--taxonomy", str(root / "sim/taxonomy.tsv")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "VALIDATION_FRACTION", 0.1)  # of more clades than other tests have
        assert main([*fit, "--out", str(root / "model"), *SMALL]) == 0
    return root


def complete(study, out, table="sim/mags.tsv", quality="sim/quality_report.tsv", more=()):
    words = ["genomes", "complete", str(study / table), "--model", str(study / "model"), "--out", str(out)]
    words += [] if quality is None else ["--quality", str(study / quality)]
    return main([*words, "--progress", "false", *more])


@pytest.mark.parametrize("options", [{}, {"precision": 0.8}, {"threshold": 0.3}, {"detection": "accessory"}])
def test_complete_writes_what_python_says(study, tmp_path, options):
    completer = GenomeCompleter.load(study / "model")
    mags = read_table(study / "sim/mags.tsv", known=completer.families_)
    expected = list(completer.completions(mags, read_qualities(study / "sim/quality_report.tsv"), **options))
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert complete(study, tmp_path, more=[*words, "--output", "parquet"]) == 0
    tables = {name: pd.read_parquet(tmp_path / f"{name}.parquet") for name in NAMES}
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
    needed = "({},{}) {}".format(*families)
    (tmp_path / "modules.tsv").write_text(f"module\tdefinition\nM1\t{needed}\nM2\tX\n")
    assert complete(study, tmp_path / "out", more=["--modules", str(tmp_path / "modules.tsv")]) == 0
    assert "1 of their 4 families, such as 'X', are not in the model's vocabulary" in capsys.readouterr().out
    rows = pd.read_csv(tmp_path / "out/modules.tsv", sep="\t")
    p = pd.read_csv(tmp_path / "out/probabilities.tsv", sep="\t", index_col="genome")[families[:3]].to_numpy().T
    one = rows[rows["module"] == "M1"]
    completer = GenomeCompleter.load(study / "model")
    module = Module("M1", "", parse(needed))
    mapped = Modules([module, Module("M2", "", parse("X"))], completer.families_, completer.asked_).map
    assert mapped != Logistic()
    assert np.allclose(one["probability"], mapped((1 - (1 - p[0]) * (1 - p[1])) * p[2]), atol=2e-3)
    assert one["families_known"].tolist() == one["families"].tolist() == [3] * 11
    assert not rows.loc[rows["module"] == "M2", "probability"].any()
    assert "Modules" in (tmp_path / "out/report.html").read_text()
    assert complete(study, tmp_path / "out", more=["--output", "csv"]) == 0  # without: what was there is gone
    assert {path.name for path in (tmp_path / "out").glob("*.[ct]sv")} == {f"{n}.csv" for n in NAMES}


def test_without_qualities_they_are_estimated_and_that_is_said(study, tmp_path, capsys):
    assert complete(study, tmp_path / "out", quality=None) == 0
    assert "estimated from marker families" in capsys.readouterr().out
    assert "estimated from marker families" in json.loads((tmp_path / "out/report.json").read_text())["notes"][0]
    assert set(pd.read_csv(tmp_path / "out/summary.tsv", sep="\t")["quality"]) == {"estimated"}


def test_explain_tells_why(study, tmp_path, capsys):
    family = GenomeCompleter.load(study / "model").families_[3]
    genome = read_table(study / "sim/mags.tsv").names[0]
    words = [genome, family, str(study / "sim/mags.tsv"), "--model", str(study / "model"), "--progress", "false"]
    assert main(["genomes", "explain", *words, "--out", str(tmp_path / "why.tsv")]) == 0
    printed = capsys.readouterr().out
    for word in ("probability", "neighbours", "context", "evidence", "nearest references"):
        assert word in printed
    assert {*pd.read_csv(tmp_path / "why.tsv", sep="\t")} == {"family", "count", "change", "genome", "explained"}


def test_evaluate_hands_on_what_it_was_given(study, tmp_path, capsys, monkeypatch):
    """What is made of it, and written, is in the contract of all systems."""
    given = {}

    def stopped(table, taxonomy, quality, **options):
        given.update(options, genomes=len(table), taxonomy=len(taxonomy), quality=len(quality))
        raise ValueError("that is enough")

    monkeypatch.setattr(evaluate, "evaluate", stopped)
    words = ["genomes", "evaluate", str(study / "sim/families.tsv"), "--taxonomy", str(study / "sim/taxonomy.tsv")]
    words += ["--quality", str(study / "sim/quality_report.tsv"), "--model", str(study / "model"), *SMALL]
    words += ["--seeds", "2", "--precision", "0.9", "--resume", "true", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "that is enough" in capsys.readouterr().err
    expected = {"seeds": 2, "precision": 0.9, "resume": True, "epochs": 1, "genomes": 61, "taxonomy": 72, "quality": 11}
    assert expected.items() <= given.items()


def test_a_bad_row_is_one_clear_error_and_leaves_nothing(study, tmp_path, capsys, monkeypatch):
    """Tables appear together, or not at all: the row before is completed and would be written."""
    for what in ("cli.genomes.AT_ONCE", "genomes.training.BATCH_SIZE", "genomes.readers.BLOCK"):
        monkeypatch.setattr(f"omniset.{what}", 1)
    families = GenomeCompleter.load(study / "model").families_
    (tmp_path / "bad.tsv").write_text("\n".join(["\t".join(["genome", *families[:2]]), "a\t1\t0", "b\t-1\t1"]))
    assert complete(study, tmp_path / "out", tmp_path / "bad.tsv") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "line 3" in error
    assert "'-1'" in error
    assert not (tmp_path / "out").exists()
