"""What a run may replace or remove: what its own kind has made, where the user says so; all else it refuses."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import omniset
from omniset.cli import main
from omniset.runs import folders

pytestmark = pytest.mark.usefixtures("as_asked")
FIT = ["--method", "pooled-forest", "--progress", "false"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A table of sets, its labels, and a model of them."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(5)
    rows = [(f"s{i}", *rng.normal(i % 2, 1, 2)) for i in range(23) for _ in range(3)]
    pd.DataFrame(rows, columns=["set", "x", "y"]).to_csv(folder / "sets.csv", index=False)
    labels = pd.DataFrame({"set": [f"s{i}" for i in range(23)], "label": ["ab"[i % 2] for i in range(23)]})
    labels.to_csv(folder / "labels.csv", index=False)
    labels.assign(label=np.arange(23) / 7).to_csv(folder / "numbers.csv", index=False)
    fit = ["fit", str(folder / "sets.csv"), "--target", str(folder / "labels.csv")]
    assert main([*fit, "--out", str(folder / "model"), *FIT]) == 0
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(words: list[str], capsys, *said: str) -> None:
    before = contents(Path.cwd())
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said), error
    assert "Traceback" not in error
    assert contents(Path.cwd()) == before


# The words of commands whose folder holds a model of sets: nothing of any of them may replace it.
OTHERS = {
    "evaluate": ["evaluate", "sets.csv", "--target", "labels.csv", "--model", "copy"],
    "genomes fit": ["genomes", "fit", "sets.csv"],
    "example": ["example", "regions"],
    "genomes evaluate": ["genomes", "evaluate", "sets.csv"],
    "cells fit": ["cells", "fit", "sets.csv"],
    "cells evaluate": ["cells", "evaluate", "sets.csv"],
    "cells annotate": ["cells", "annotate", "sets.csv", "--reference", "sets.csv"],
    "cells perturb": ["cells", "perturb", "sets.csv"],
    "regions fit": ["regions", "fit", "--expression", "sets.csv", "--connectivity", "labels.csv"],
    "regions evaluate": ["regions", "evaluate", "--expression", "sets.csv", "--connectivity", "labels.csv"],
    "microbiomes fit": ["microbiomes", "fit", "--references", "sets.csv"],
    "microbiomes evaluate": ["microbiomes", "evaluate", "--references", "sets.csv"],
    "demo": ["demo"],
}


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "demo"])
@pytest.mark.parametrize("replace", ["false", "true"])
def test_a_model_of_another_class_is_never_replaced(name, replace, here, capsys):
    shutil.copytree("model", "copy")
    refused([*OTHERS[name], "--out", "model", "--replace", replace], capsys, "model", "holds the SetClassifier")


@pytest.mark.parametrize("name", list(OTHERS))
def test_what_no_run_has_made_is_not_mixed_in(name, here, capsys):
    shutil.copytree("model", "copy")
    Path("own").mkdir()
    Path("own/notes.txt").write_text("mine")
    for replace in ("false", "true"):
        words = [*OTHERS[name], "--out", "own", "--replace", replace]
        refused(words, capsys, "own", "notes.txt")


def test_a_fit_replaces_a_model_of_its_class_where_that_is_said(here, capsys):
    before = contents(Path("model"))
    fit = ["fit", "sets.csv", "--target", "labels.csv", "--out", "model", *FIT, "--seed", "3"]
    refused(fit, capsys, "holds the SetClassifier", "--replace true")
    refused(
        ["fit", "sets.csv", "--target", "numbers.csv", "--out", "model", *FIT, "--replace", "true"],
        capsys,
        "holds the SetClassifier",
        "does not replace",
    )  # known when the labels are read, before any work
    Path("model/notes.txt").write_text("mine")
    refused([*fit, "--replace", "true"], capsys, "notes.txt")
    Path("model/notes.txt").unlink()
    assert main([*fit, "--replace", "true"]) == 0
    assert json.loads(Path("model/config.json").read_text())["arguments"]["seed"] == 3
    assert sorted(contents(Path("model"))) == sorted(before)
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_results_are_replaced_where_that_is_said(here, capsys):
    words = ["evaluate", "sets.csv", "--target", "labels.csv", "--out", "results", "--model", "model"]
    assert main(words) == 0
    refused(words, capsys, "results", "--replace true")
    refused(["example", "tables", "--out", "results", "--replace", "true"], capsys, "does not replace")
    assert main([*words, "--replace", "true"]) == 0


@pytest.mark.parametrize("verb", ["predict", "embed", "explain"])
def test_a_table_is_replaced_where_that_is_said(verb, here, capsys):
    network = omniset.SetClassifier("ust", dim=8, depth=1, epochs=1, progress=False)
    network.fit(pd.read_csv("sets.csv"), pd.read_csv("labels.csv").set_index("set")["label"]).save("network")
    words = [verb, "sets.csv", "--model", "network", "--out", "labels.csv"]
    refused(words, capsys, "labels.csv", "--replace true")
    assert main([*words, "--replace", "true"]) == 0
    assert len(pd.read_csv("labels.csv")) >= 23
    refused([*words[:-1], "sets.csv", "--replace", "true"], capsys, "the input itself")


def test_permissions_stay_and_what_a_link_leads_to(here):
    Path("real.csv").write_text("old")
    Path("real.csv").chmod(0o640)
    Path("out.csv").symlink_to("real.csv")
    words = ["predict", "sets.csv", "--model", "model", "--replace", "true", "--out"]
    assert main([*words, "out.csv"]) == 0
    assert not Path("out.csv").is_symlink()
    assert Path("real.csv").read_text() == "old"
    assert main([*words, "real.csv"]) == 0
    assert Path("real.csv").read_text().startswith("set,")
    assert Path("real.csv").stat().st_mode & 0o777 == 0o640


def test_python_saves_to_a_new_folder_or_replaces_one_of_its_class(here):
    model = omniset.SetClassifier.load("model")
    with pytest.raises(ValueError, match="replace=True"):
        model.save("model")
    model.save("model", replace=True)
    assert omniset.SetClassifier.load("model").seed == model.seed
    assert not Path("model/report.html").exists()  # which was of the run that made the other one
    sets, y = pd.read_csv("sets.csv"), pd.read_csv("numbers.csv").set_index("set")["label"]
    other = omniset.SetRegressor("ust", dim=8, depth=1, epochs=1, progress=False).fit(sets, y)
    before = contents(Path("model"))
    with pytest.raises(ValueError, match="holds the SetClassifier"):
        other.save("model", replace=True)
    Path("own").mkdir()
    Path("own/notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes.txt"):
        other.save("own", replace=True)
    assert contents(Path("model")) == before
    other.save("new/below")
    assert Path("new/below/config.json").is_file()


def test_a_model_is_saved_beside_what_its_fit_has_kept(here):
    sets, y = pd.read_csv("sets.csv"), pd.read_csv("labels.csv").set_index("set")["label"]
    model = omniset.SetClassifier("ust", dim=8, depth=1, epochs=1, progress=False)
    model.fit(sets, y, folder="run")
    with pytest.raises(ValueError, match="earlier fit"):
        model.fit(sets, y, folder="run")  # its checkpoints are not overwritten
    model.save("run")
    assert Path("run/checkpoints/last.ckpt").is_file()
    with pytest.raises(ValueError, match="also holds checkpoints/"):  # of a fit, not of a model that is saved
        model.save("run", replace=True)
    for own in ("logs/a.log", "rows/table.csv", "app/logs/precious.log", "checkpoints/last.txt", "logs/"):
        place = Path("own", own)
        shutil.rmtree("own", ignore_errors=True)
        place.mkdir(parents=True) if own.endswith("/") else (place.parent.mkdir(parents=True), place.write_text("mine"))
        with pytest.raises(ValueError, match="no run of Omniset has made"):
            model.save("own")
        assert [*Path("own").rglob("*")]


@pytest.mark.parametrize(
    "record",
    [
        {"made": {"../labels.csv": None}},
        {"made": {"..": {"labels.csv": None}}},
        {"made": {"/etc": {}}},
        {"made": {".": {}}},
        {"made": {"": None}},
        {"made": {"a\\b": None}},
        {"made": ["config.json"]},
        {"made": {"config.json": "x"}},
        {"kind": 3},
        {"format_version": 2},
        [],
        "{",
        "[" * 100_000,
        "",
    ],
)
def test_a_damaged_record_is_one_line_that_names_it(record, here, capsys):
    path = Path("model/run.json")
    sound = json.loads(path.read_text())
    path.write_text(record if isinstance(record, str) else json.dumps(sound | record if record else record))
    words = ["fit", "sets.csv", "--target", "labels.csv", "--out", "model", *FIT, "--replace", "true"]
    refused(words, capsys, "run.json")


def test_nothing_behind_a_link_is_removed(here):
    """Names in a record that have become links since."""
    Path("other").mkdir()
    Path("other/precious").write_text("mine")
    about = {"rows": {"precious": None}}
    Path("run").mkdir()
    folders.write_record(Path("run"), "kind", "", about)
    os.symlink("../other", "run/rows")
    with pytest.raises(ValueError, match="rows"):
        folders.check(Path("run"), ["kind"], True)
    folders.remove(Path("run"))
    assert Path("other/precious").read_text() == "mine"


def test_what_is_read_does_not_lie_in_what_is_replaced(here, capsys):
    words = ["evaluate", "sets.csv", "--target", "labels.csv", "--model", "model"]
    assert main([*words, "--out", "results"]) == 0
    shutil.move("sets.csv", "results/sets.csv")
    again = ["evaluate", "results/sets.csv", *words[2:], "--out", "results", "--replace", "true"]
    refused(again, capsys, "results/sets.csv", "read")
    refused(["evaluate", "labels.csv", *words[2:], "--out", ".", "--replace", "true"], capsys, "folder")


@pytest.mark.parametrize(
    ("out", "read", "said"),
    [
        ("sets.csv", ["sets.csv"], "is the input itself"),
        ("labels.csv", ["sets.csv", Path("labels.csv")], "is the input itself"),
        ("link.csv", ["sets.csv"], "is the input itself"),
        ("model/out_of_fold.csv", [Path("model")], "lies in model"),
        ("model/new.csv", ["model"], "lies in model"),
        ("data/a.csv", ["data"], "lies in data"),
        ("data", [[Path("data/a.csv")]], "holds data/a.csv"),
        ("loop", ["sets.csv"], "is no name of a file or folder"),
        ("data/a.csv", ["data/*.csv"], "is the input itself"),
        ("data", ["sets.csv", ["data/[a].csv"]], "holds data/a.csv"),
    ],
)
def test_no_command_writes_over_what_it_reads(out, read, said, here):
    Path("data").mkdir()
    Path("data/a.csv").touch()
    os.symlink("sets.csv", "link.csv")
    os.symlink("loop", "loop")
    with pytest.raises(ValueError, match=said):
        folders.refuse_own_input(Path(out), read)
    folders.refuse_own_input(Path("data/new.csv"), ["data", "sets.csv", None, "gene", ""])


def test_options_and_config_are_read_too(here, capsys):
    Path("scores.csv").write_text("mine")
    predict = ["predict", "sets.csv", "--model", "model", "--replace", "true"]
    refused([*predict, "--vectors", "scores.csv", "--out", "scores.csv"], capsys, "is the input itself")
    Path("run.csv").write_text("device: cpu\n")
    refused([*predict, "--config", "run.csv", "--out", "run.csv"], capsys, "is the input itself")
    refused([*predict, "--out", "model/new.csv"], capsys, "lies in model")


def test_a_fit_in_python_removes_and_replaces_nothing_of_the_users(here):
    """Nor does it go on with other weights of the sets."""
    frame = pd.read_csv("sets.csv")
    labels = pd.read_csv("labels.csv")["label"].to_list()
    small = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False, "device": "cpu"}
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/logs").mkdir()
    kept = [Path("run/checkpoints/.gitignore"), Path("run/checkpoints/.last-mine.ckpt"), Path("run/logs/metrics.csv")]
    for path in kept:
        path.write_text("mine")
    with pytest.raises(ValueError, match=r"metrics\.csv is there already, of another fit"):
        omniset.SetClassifier("ust", **small, log="csv").fit(frame, labels, folder="run")
    model = omniset.SetClassifier("ust", **small).fit(frame, labels, folder="run")
    assert all(path.read_text() == "mine" for path in kept)
    weights = np.arange(23) / 7
    with pytest.raises(ValueError, match="is of another run and cannot be resumed"):
        omniset.SetClassifier("ust", **small).fit(frame, labels, folder="run", resume=True, sample_weight=weights)
    with pytest.raises(ValueError, match="the root of the file system|holds other file systems"):
        model.save("/")


def test_a_home_behind_an_equals_sign(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    Path("home").mkdir()
    assert main(["predict", "sets.csv", "--model=model", "--out=~/p.csv"]) == 0
    assert sorted(path.name for path in Path("home").iterdir()) == ["p.csv"]
    assert not Path("~").exists()


def test_links_that_lead_nowhere_and_files_named_as_a_lock_stay(here, capsys):
    os.symlink("nowhere.csv", "d.csv")
    refused(["predict", "sets.csv", "--model", "model", "--out", "d.csv"], capsys, "is there already")
    assert os.readlink("d.csv") == "nowhere.csv"
    Path("sim").mkdir()
    Path("sim/.lock").write_text("mine")
    refused([*OTHERS["example"], "--out", "sim"], capsys, "sim/.lock is in the way")


def test_a_kill_within_the_swap_loses_nothing(here, monkeypatch):
    """Between the two renames the old folder has another name; the next run puts it back."""
    before = contents(Path("model"))
    work = folders.unfinished(Path("model"))
    work.mkdir()
    folders.write_record(work, "SetClassifier", "", {})
    Path("model").rename(".model.replaced")
    folders.recover(Path("model"))
    assert contents(Path("model")) == before
    # ... and what was replaced already is removed.
    shutil.copytree("model", ".model.replaced")
    folders.recover(Path("model"))
    assert not Path(".model.replaced").exists()
    assert contents(Path("model")) == before


@pytest.mark.parametrize("moment", ["first", "second"])
def test_an_interrupt_within_the_swap_puts_the_old_folder_back(moment, here, monkeypatch):
    before, work = contents(Path("model")), folders.unfinished(Path("model"))
    work.mkdir()
    folders.write_record(work, "SetClassifier", "", {})
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if moment == "second" and len(calls) == 2:
            raise KeyboardInterrupt
        rename(self, target)
        if moment == "first" and len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folders.swap(work, Path("model"))
    assert contents(Path("model")) == before


def test_an_unfinished_run_is_not_thrown_away(here, capsys):
    """One that was killed has left checkpoints: the same command without resume would lose them."""
    work = folders.unfinished(Path("new"))
    fit = ["fit", "sets.csv", "--target", "labels.csv", "--out", "new", "--progress", "false"]
    network = ["--method", "ust", "--dim", "8", "--depth", "1", "--epochs", "2"]
    assert main([*fit, *network]) == 0
    Path("new").rename(work)
    record = json.loads((work / "run.json").read_text())
    kind = "SetClassifier or SetRegressor or SetSurvival"
    folders.write_record(work, kind, record["command"], None)
    refused([*fit, *network], capsys, ".new.unfinished", "--resume true", "--replace true")
    assert main([*fit, *network, "--resume", "true"]) == 0
    assert Path("new/config.json").is_file()
    assert not work.exists()
    assert main([*fit, *network, "--resume", "true"]) == 0  # finished, by the same command: made again of what it kept
    refused([*fit, *network, "--resume", "true", "--seed", "2"], capsys, "--replace true")


@pytest.mark.parametrize("more", [["--resume", "true"], ["--replace", "true"]])
def test_what_others_have_put_where_a_run_works_stays(more, here, capsys, monkeypatch):
    """An interrupted run has said what it made in its hidden folder: all else there is somebody's."""
    fit = ["fit", "sets.csv", "--target", "labels.csv", "--out", "new", "--progress", "false"]
    fit += ["--method", "ust", "--dim", "8", "--depth", "1", "--epochs", "2"]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("omniset.report.run.Folder.save", interrupted)
        assert main(fit) == 130
    notes = folders.unfinished(Path("new")) / "checkpoints" / "notes.txt"
    notes.write_text("mine")
    refused([*fit, *more], capsys, "holds checkpoints/notes.txt, which no run", "move it elsewhere")
    notes.unlink()
    assert main([*fit, *more]) == 0
