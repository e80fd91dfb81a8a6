"""Many files are one by one: what is made of each is what the command makes of it alone, whoever computes it."""

import functools
import json
import os
import shutil
import signal
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from omniset import SetClassifier
from omniset.cli import main, parts, workers
from omniset.cli import sets as cli_sets
from omniset.cli.joined import beside
from omniset.runs.console import RECORDS

QUIET = ["--progress=false", "--device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and eight parts: part.0.parquet to part.7.parquet, of 5 sets each."""
    folder = tmp_path_factory.mktemp("parts")
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 17, 40)
    frame = pd.DataFrame({"set": np.repeat([f"s{i}" for i in range(40)], sizes)})
    frame["x"], frame["y"] = rng.normal(size=(2, len(frame)))
    small = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False, "device": "cpu"}
    model = SetClassifier("ust", **small).fit(frame, np.arange(40) % 3)
    model.save(folder / "model")
    (folder / "sets").mkdir()
    for i in range(8):
        some = frame[frame["set"].str[1:].astype(int) % 8 == i]
        some.to_parquet(folder / "sets" / f"part.{i}.parquet", index=False)
    return folder


def predict(folder, out, scheduler="synchronous", *more, sets="sets"):
    words = ["predict", f"{folder}/{sets}", f"--model={folder}/model", f"--out={out}", f"--scheduler={scheduler}"]
    return main([*words, *QUIET, *more])


def unfinished(out):
    return out.with_name(f".{out.name}.unfinished")


def made(out):
    if not out.exists():
        out = unfinished(out)
    there = (path for path in out.iterdir() if path.is_file() and path.name not in ("run.json", ".lock"))
    return {path.name: path.read_bytes() for path in there}


def test_a_part_is_what_the_command_makes_of_it_alone(folder, tmp_path):
    for verb, ending in (("predict", ".csv"), ("embed", ".parquet")):
        command = [verb, f"{folder}/sets", f"--model={folder}/model", *QUIET]
        assert main([*command, f"--out={tmp_path}/{verb}{ending}", "--scheduler=synchronous"]) == 0
        assert sorted(made(tmp_path / f"{verb}{ending}")) == [f"part.{i}{ending}" for i in range(8)]
        command[1] += "/part.3.parquet"
        assert main([*command, f"--out={tmp_path}/alone{ending}"]) == 0
        alone = (tmp_path / f"alone{ending}").read_bytes()
        assert (tmp_path / f"{verb}{ending}" / f"part.3{ending}").read_bytes() == alone
    assert not [path for path in (tmp_path / "predict.csv" / RECORDS).iterdir() if path.is_dir()]


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(folder, tmp_path):
    """Dask gives its part to the other one: complete, and equal to the bit."""
    distributed, dask = (pytest.importorskip(name) for name in ("distributed", "dask"))
    assert predict(folder, tmp_path / "alone") == 0
    forkserver.set_forkserver_preload(
        ["distributed", "omniset.estimators.commands"]
    )  # once, rather than in each worker
    forkserver.ensure_running()
    here = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    forked = dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    with forked, distributed.LocalCluster(**here, local_directory=tmp_path) as cluster:
        killed = []

        def kill():  # when the first part is done, and others are at work
            while not [*tmp_path.glob("[.]many.unfinished/part.*")] and not (tmp_path / "many").exists():
                time.sleep(0.001)
            killed.append(cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

        watching = threading.Thread(target=kill)
        watching.start()
        assert predict(folder, tmp_path / "many", cluster.scheduler_address) == 0
        watching.join()
    assert killed
    assert made(tmp_path / "many") == made(tmp_path / "alone")


def test_what_is_done_is_kept(folder, tmp_path, monkeypatch, capsys, as_asked):
    work, numbers = workers.do, []

    def interrupted(job, part):
        numbers.append(part.name)
        if len(numbers) == 4:
            raise KeyboardInterrupt
        return work(job, part)

    with monkeypatch.context() as patch:
        patch.setattr("omniset.cli.workers.do", interrupted)
        assert predict(folder, tmp_path / "out") == 130
        assert "--resume true goes on" in capsys.readouterr().err
        assert len(made(tmp_path / "out")) == 3
        assert predict(folder, tmp_path / "out") == 2
        assert "--resume true goes on" in capsys.readouterr().err
        assert predict(folder, tmp_path / "out", "synchronous", "--resume=true", "--max_elements=3") == 2
        assert "max_elements was None, is 3" in capsys.readouterr().err
        assert predict(folder, tmp_path / "out", "synchronous", "--resume=true") == 0
    assert numbers == [f"part.{i}" for i in (0, 1, 2, 3, 3, 4, 5, 6, 7)]
    settings = json.loads((tmp_path / "out" / RECORDS / "settings.json").read_text())["settings"]
    assert not {"device", "progress"} & settings.keys()  # which change nothing
    assert predict(folder, tmp_path / "anew") == 0
    assert made(tmp_path / "out") == made(tmp_path / "anew")
    # Of other settings nothing is taken up; a part whose file has changed is made again.
    assert predict(folder, tmp_path / "out", "synchronous", "--resume=true", "--max_elements=3") == 2
    assert "--replace true" in capsys.readouterr().err
    os.utime(folder / "sets" / "part.5.parquet", (1, 1))
    (tmp_path / "out" / "part.2.parquet").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("omniset.cli.workers.do", lambda job, part: numbers.append(part.name) or work(job, part))
        assert predict(folder, tmp_path / "out", "synchronous", "--resume=true") == 0
    assert numbers[9:] == ["part.2", "part.5"]
    assert made(tmp_path / "out") == made(tmp_path / "anew")
    # Anew only where that is said, and all of it.
    before = made(tmp_path / "out")
    assert predict(folder, tmp_path / "out") == 2
    assert "--replace true" in capsys.readouterr().err
    assert made(tmp_path / "out") == before
    both = "synchronous", "--resume=true", "--replace=true", "--max_elements=3"
    assert predict(folder, tmp_path / "out", *both) == 0
    assert made(tmp_path / "out").keys() == before.keys()
    with monkeypatch.context() as patch:  # a second time there is something to go on with
        patch.setattr("omniset.cli.workers.do", lambda job, part: 1 / 0)
        assert predict(folder, tmp_path / "out", *both) == 0
    assert predict(folder, tmp_path / "out", "synchronous", "--replace=true", sets="sets/part.[01].parquet") == 0
    assert sorted(made(tmp_path / "out")) == ["part.0.parquet", "part.1.parquet"]


def test_a_part_that_fails_leaves_the_others(folder, tmp_path, capsys):
    (tmp_path / "sets").mkdir()
    for i in range(3):
        (tmp_path / "sets" / f"{i}.parquet").write_bytes((folder / "sets" / f"part.{i}.parquet").read_bytes())
    whole = (tmp_path / "sets" / "1.parquet").read_bytes()
    (tmp_path / "sets" / "1.parquet").write_bytes(whole[:-9])
    assert predict(folder, tmp_path / "out", sets=f"../{tmp_path.name}/sets") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "1.parquet" in error
    assert "damaged" in error
    assert sorted(made(tmp_path / "out")) == ["0.parquet", "2.parquet"]
    (tmp_path / "sets" / "1.parquet").write_bytes(whole)
    assert predict(folder, tmp_path / "out", "synchronous", "--resume=true", sets=f"../{tmp_path.name}/sets") == 0
    assert len(made(tmp_path / "out")) == 3


def test_a_set_in_two_parts_is_refused(folder, tmp_path, capsys):
    (tmp_path / "sets").mkdir()
    rows = pd.read_parquet(folder / "sets" / "part.0.parquet")
    split = rows.index[rows["set"] == rows["set"].iloc[-1]][1]
    rows.loc[:split].to_parquet(tmp_path / "sets" / "a.parquet", index=False)
    rows.loc[split:].to_parquet(tmp_path / "sets" / "b.parquet", index=False)
    assert predict(folder, tmp_path / "out", sets=f"../{tmp_path.name}/sets") == 2
    name = rows["set"].iloc[-1]
    assert f"set {name!r} is in the part a and in the part b" in capsys.readouterr().err
    assert made(tmp_path / "out") == {}  # what was made of half a set


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--scheduler=somewhere"], "scheduler must be 'synchronous', 'local', 'local:N' with N >= 1, an address"),
        (["--scheduler=local:0"], "local:N' with N >= 1"),
        (["--scheduler=local:x"], "scheduler must be 'synchronous'"),
        (["--resume=true"], "resume=True is for parts: give scheduler too"),
        (["--scheduler=synchronous", "--out=there.txt"], "out must be the name of a folder"),
        (["--scheduler=synchronous", "--model=nowhere"], "nowhere"),
    ],
)
def test_options_that_do_not_go_together(folder, tmp_path, monkeypatch, capsys, more, error):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", f"{folder}/sets", f"--model={folder}/model", *QUIET, *more]) == 2
    assert error in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_without_dask(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert predict(folder, tmp_path / "out", "local:2") == 2
    assert 'scheduler needs distributed, which is not installed: pip install "omniset[dask]"' in capsys.readouterr().err


@pytest.fixture
def broken(folder, tmp_path, monkeypatch, as_asked, capsys):
    """A folder in which out is not finished: b of the parts a, b and c is damaged."""
    for place in ("sets", "model"):
        shutil.copytree(folder / place, tmp_path / place)
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for i, name in enumerate("abc"):
        shutil.copy(f"sets/part.{i}.parquet", f"in/{name}.parquet")
    Path("in/b.parquet").write_bytes(b"damaged")
    assert many() == 2
    shutil.copy("sets/part.1.parquet", "in/b.parquet")
    capsys.readouterr()
    return unfinished(tmp_path / "out")


def many(*more, sets="in", model="model"):
    words = ["predict", sets, f"--model={model}", "--out=out", "--scheduler=synchronous", *QUIET]
    return main([*words, *more])


def test_what_is_done_of_files_that_are_not_given_stays(broken, capsys):
    before = tree(broken)
    assert many("--resume=true", sets="in/b.parquet") == 2
    assert "holds a.parquet, which is made of none of these files" in capsys.readouterr().err
    assert tree(broken) == before
    (broken / "notes.txt").write_text("mine")
    assert many("--resume=true") == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (broken / "notes.txt").read_text() == "mine"
    (broken / "notes.txt").unlink()
    assert many("--resume=true") == 0
    assert "2 of 3 parts are done already" in capsys.readouterr().out


def test_what_is_read_does_not_lie_where_the_run_works(broken, capsys):
    shutil.copytree("in", broken / "mended")
    shutil.copytree("model", broken / "model")
    before = tree(broken)
    for more in ("--resume=true", "--replace=true"):
        assert many(more, sets=f"{broken}/mended") == 2
        assert many(more, model=f"{broken}/model") == 2
        assert "which is read: choose another folder" in capsys.readouterr().err
    assert tree(broken) == before


@pytest.mark.parametrize("more", [[], ["--replace=true"], ["--resume=true"]])
def test_no_other_command_throws_away_what_is_done(broken, capsys, more):
    """Nor does one say that it could go on."""
    before = tree(broken)
    labels = pd.DataFrame({"set": pd.read_parquet("in/a.parquet")["set"].unique()})
    labels.assign(label=np.arange(len(labels)) % 2).to_csv("labels.csv", index=False)
    fit = ["fit", "in/a.parquet", "--target=labels.csv", "--method=ust", "--epochs=1", "--out=out", *QUIET]
    evaluate = ["evaluate", "in/a.parquet", "--target=labels.csv", "--model=model", "--out=out", *QUIET]
    for words in (fit, evaluate) if "--resume=true" not in more else (fit,):
        assert main([*words, *more]) == 2
        assert "an unfinished run has done that makes the parts of predict" in capsys.readouterr().err
        assert tree(broken) == before


@pytest.mark.parametrize("name", ["unfinished", "replaced"])
def test_no_link_is_followed_to_where_a_run_works(here, capsys, name):
    shutil.copytree("model", "precious")
    Path(f".out.{name}").symlink_to("precious")
    before = tree(here)
    for more in ([], ["--replace=true"]):
        assert many(*more, sets="sets") == 2
        assert "is in the way of the run" in capsys.readouterr().err
    assert tree(here) == before


def test_a_file_that_changes_while_it_is_read_is_not_done(here, capsys, monkeypatch):
    command = cli_sets.predict

    @functools.wraps(command)
    def changed(sets, **more):
        command(sets=sets, **more)
        shutil.copy("sets/part.1.parquet", sets)

    monkeypatch.setattr(cli_sets, "predict", changed)
    assert many(sets="sets/part.0.parquet") == 2
    assert "has changed since the command began" in capsys.readouterr().err


def test_another_file_of_the_same_size_and_time_is_another(here, capsys):
    Path("other").mkdir()
    shutil.copy2("sets/part.0.parquet", "other")
    assert many(sets="sets/part.0.parquet") == 0
    os.chdir("other")
    words = ["predict", "part.0.parquet", "--model=../model", "--out=../out", "--scheduler=synchronous", *QUIET]
    assert main([*words, "--resume=true", "--replace=true"]) == 0
    assert "done already" not in capsys.readouterr().out


def test_names_that_the_folder_itself_has_are_taken(here, capsys):
    shutil.copy("sets/part.0.parquet", "run.json.parquet")
    job = workers.Job("omniset.cli.genomes:complete", "table", {"model": "model", "replace": False}, Path("out"))
    with pytest.raises(ValueError, match=r"would be run\.json, which is taken: rename the file"):
        parts.run(job, parts.named([Path("run.json.parquet")]), "synchronous", resume=False)


def test_a_table_that_an_option_names_is_one_of_the_settings(here):
    Path("q.tsv").write_text("1")
    options = {"model": "model", "quality": Path("q.tsv")}
    job = workers.Job("omniset.cli.genomes:complete", "table", options, Path("out"))
    before = parts.settings_of(job)
    Path("q.tsv").write_text("2")
    assert parts.settings_of(job)["quality"] != before["quality"]


def test_another_version_is_no_worker(folder, tmp_path):
    job = workers.Job("omniset.cli.sets:predict", "sets", {}, tmp_path, ".csv", version="0")
    assert "the command 0" in workers.do(job, workers.Part("a", Path("a"), "a", {})).error
    job = workers.Job("omniset.cli.sets:predict", "sets", {}, tmp_path, ".csv", here=f"{tmp_path}/elsewhere")
    assert "workers must see the same files" in workers.do(job, workers.Part("a", Path("a"), "a", {})).error


def test_names_of_parts(tmp_path):
    for name in ("a/x.csv", "b/x.csv.gz", "b/.y.csv", "b/_SUCCESS", "b/z.txt", "b/w.zarr/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = parts.find(f"{tmp_path}/b", (".csv", ".zarr"), "sets")
    assert [path.name for path in found] == ["w.zarr", "x.csv.gz"]
    assert [part.name for part in parts.named(found)] == ["w", "x"]
    assert [part.name for part in parts.named(parts.find(f"{tmp_path}/*/x.*", (), "sets"))] == ["a-x", "b-x"]
    (tmp_path / "b" / "x.csv").touch()
    with pytest.raises(ValueError, match="would both be written as b-x"):
        parts.named(parts.find(f"{tmp_path}/*/x.*", (), "sets"))
    for nothing in ("c", "*.npy", "b/q.*"):
        with pytest.raises(ValueError, match="sets: "):
            parts.find(f"{tmp_path}/{nothing}", (".npy",), "sets")
    assert parts.ending_of(Path("o/p.tsv.gz"), (".csv", ".tsv")) == ".tsv.gz"
    assert parts.ending_of(Path("o"), (".csv",)) == ".csv"


def test_columns_beside_each_other(tmp_path):
    for name, rows in (("s", [("u", 3.0), ("v", 1.0)]), ("t", [("a", 2.0), ("v", 5.0)])):
        (tmp_path / name).mkdir()
        pd.DataFrame(rows, columns=["#OTU ID", name]).to_csv(tmp_path / name / "n.tsv", sep="\t", index=False)
    beside({name: tmp_path / name for name in ("s", "t")}, "n.tsv", tmp_path / "n.tsv")
    assert (tmp_path / "n.tsv").read_text() == "#OTU ID\ts\tt\na\t0.0\t2.0\nu\t3.0\t0.0\nv\t1.0\t5.0\n"


@pytest.fixture
def here(folder, tmp_path, monkeypatch, as_asked):
    shutil.copytree(folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(capsys, words, said):
    before = tree(Path.cwd())
    words = [*words, "--scheduler=synchronous", *QUIET]
    each = (said,) * 3 if isinstance(said, str) else said
    for more, said in zip(([], ["--replace=true"], ["--resume=true"]), each, strict=True):
        assert main([*words, *more]) == 2
        assert said in capsys.readouterr().err
        assert tree(Path.cwd()) == before


@pytest.mark.parametrize("model", ["model", "none"])
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "sets", "--out=sets"],
        ["embed", "sets", "--out=sets"],
        ["predict", "sets/*.parquet", "--out=sets"],
        ["predict", "in.csv/*.csv", "--out=in.csv"],
        ["predict", "in.csv/a.csv", "--out=in.csv/../in.csv"],
        ["predict", "sets/part.0.parquet", "--out=."],
        ["cells", "embed", "cells", "--out=cells"],
        ["microbiomes", "classify", "proj/a.fastq", "--out=proj"],
        ["genomes", "complete", "proj/*.tsv", "--out=proj"],
        ["predict", "sets", "--out=model"],
    ],
)
def test_inputs_and_what_nobody_has_made_stay(words, model, here, capsys):
    Path("in.csv").mkdir()
    Path("in.csv/a.csv").write_text("set,x,y\ns1,1,2\n")
    Path("cells").mkdir()
    Path("cells/a.h5ad").write_bytes(b"cells")
    Path("proj/a").mkdir(parents=True)
    for name in ("proj/a.fastq", "proj/a.tsv", "proj/a/precious"):
        Path(name).write_text("mine")
    refused(capsys, [*words, f"--model={model}"], "" if model == "none" else "out=")


def test_a_name_that_is_only_an_ending_is_no_name(here, capsys):
    """What is made of it would be the folder above, or the folder itself."""
    Path("victim/sub").mkdir(parents=True)
    Path("victim/precious").write_text("mine")
    for name in ("..parquet", "...parquet"):
        shutil.copy("sets/part.0.parquet", name)
        refused(capsys, ["predict", name, "--model=model", "--out=victim/out"], "has no name before its ending")
        refused(capsys, ["microbiomes", "classify", name, "--model=model", "--out=victim/out"], "has no name before")


def test_results_of_an_earlier_model_are_not_taken_up(here, capsys):
    """Not beside an empty folder of a run that failed at once either, and a fifo is no record."""
    words = ["predict", "sets", "--model=model", "--out=out", "--scheduler=synchronous", *QUIET]
    assert main(words) == 0
    config = Path("model/config.json")
    config.write_text(config.read_text() + " ")
    before = tree(here / "out")
    Path(".out.unfinished").mkdir()
    assert main([*words, "--resume=true"]) == 2
    assert "the model is another" in capsys.readouterr().err
    settings = Path("out") / RECORDS / "settings.json"
    kept = settings.read_bytes()
    settings.unlink()
    os.mkfifo(settings)
    assert main([*words, "--resume=true"]) == 2
    assert "settings.json is damaged" in capsys.readouterr().err
    settings.unlink()
    settings.write_bytes(kept)
    assert tree(here / "out") == before


def test_a_model_that_changes_during_the_run_is_noticed(here, capsys, monkeypatch):
    work = workers._call

    def call(*arguments):
        work(*arguments)
        if not Path("old").exists():
            Path("model").rename("old")
            shutil.copytree("old", "model")
            os.utime("model/config.json", (4, 4))

    for path in Path("model").rglob("*"):
        os.utime(path, (3, 3))
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_call", call)
        assert predict(here, here / "out") == 2
    assert "model has changed since the command began" in capsys.readouterr().err


def test_a_folder_of_others_is_no_place_for_parts(here, capsys):
    Path("own/part.0").mkdir(parents=True)
    Path("own/part.0/precious").write_text("mine")
    refused(capsys, ["predict", "sets", "--model=model", "--out=own"], "no run of Omniset has made")
    assert main(["predict", "sets", "--model=model", "--out=out", "--scheduler=synchronous", *QUIET]) == 0
    Path("out/notes.txt").write_text("mine")
    refused(capsys, ["predict", "sets", "--model=model", "--out=out"], ("--replace true", "notes.txt", "notes.txt"))
    Path("out/notes.txt").unlink()
    refused(capsys, ["embed", "sets", "--model=model", "--out=out"], "parts of predict of another run")


def test_a_damaged_record_is_one_line(here, capsys):
    words = ["predict", "sets", "--model=model", "--out=out", "--scheduler=synchronous", *QUIET]
    assert main(words) == 0
    for path in (Path("out/run.json"), Path("out") / RECORDS / "settings.json"):
        sound = path.read_text()
        for text in ("", "{", "[]", "[" * 100_000, '{"settings": 3, "files": []}', '{"made": "../x"}'):
            path.write_text(text)
            before = tree(here / "out")
            assert main([*words, "--resume=true"]) == 2, text
            assert path.name in capsys.readouterr().err, text
            assert tree(here / "out") == before, text
        path.write_text(sound)
