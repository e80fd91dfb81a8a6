"""The commands on tables: what they write, that streams equal memory, that killed runs go on, that nothing leaks."""

import contextvars
import json
import random
import signal
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
import safetensors.torch

from forked import Forked
from omniset import SetClassifier, SetRegressor
from omniset.cli import main
from omniset.estimators import commands as set_files
from omniset.estimators.evaluation import evaluate, telling
from omniset.report import page
from omniset.runs.files import plain
from omniset.tables import TableWriter, files
from omniset.trials.outcomes import Outcome

read_csv = partial(pd.read_csv, float_precision="round_trip")  # pandas 2 reads the last digit otherwise

OPTIONS = {"dim": 8, "num_heads": 2, "depth": 1, "progress": False, "device": "cpu"}
OPTIONS["method"] = "ust"
SMALL = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items()]


def make(folder, number=43, seed=0):
    """A table, labels of its sets (two targets, a group), and labels of its elements."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 17, number)
    frame = pd.DataFrame({"set": np.repeat([f"s{i}" for i in range(number)], sizes)})
    frame["element"] = [f"e{i}" for i in range(len(frame))]
    frame["x"], frame["y"] = rng.normal(size=(2, len(frame)))
    frame["multiplicity"] = rng.integers(1, 4, len(frame))
    frame["sign"] = np.where(frame["x"] > 0, "+", "-")
    labels = pd.DataFrame({"set": [f"s{i}" for i in range(number)], "label": [f"k{i % 3}" for i in range(number)]})
    labels["amount"], labels["patient"] = rng.normal(size=number), [f"p{i // 4}" for i in range(number)]
    frame.drop(columns="sign").to_csv(folder / "sets.csv", index=False)
    frame.drop(columns="sign").to_parquet(folder / "sets.parquet", index=False)
    frame.to_csv(folder / "signed.tsv.gz", index=False, sep="\t")
    labels[["set", "label"]].sample(frac=1, random_state=0).to_csv(folder / "labels.csv", index=False)
    labels.to_csv(folder / "all.csv", index=False)
    frame[["set", "element", "sign"]].sample(frac=0.9, random_state=0).to_parquet(folder / "signs.parquet")
    return frame, labels


def scores_of(numbers):
    """The scores of an evaluation, by condition, score and method."""
    return {(s["condition"], s["score"], s["method"]): s for s in numbers["scores"]}


def run(*words, code=0):
    assert main([str(w) for w in words]) == code


def fit(folder, *words, sets="sets.csv", target="labels.csv", out="run", epochs=2):
    target = [] if target is None else ["--target", folder / target]
    run("fit", folder / sets, *target, "--out", folder / out, "--epochs", epochs, *SMALL, *words)
    return folder / out


@pytest.fixture(autouse=True)
def drawn(request, monkeypatch):
    """Figures take half of a command's time: they are drawn in two of these tests, and in those of reports."""
    if request.function not in (test_fit_predict_evaluate_explain, test_names_of_any_characters):
        monkeypatch.setattr(page, "svg", lambda plot, prefix: "<svg/>")


@pytest.fixture
def frame(tmp_path):
    return make(tmp_path)[0]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with all tables and with a model, `run`, that learned from them: to be read alone."""
    folder = tmp_path_factory.mktemp("fitted")
    make(folder)
    fit(folder)
    return folder


def test_fit_predict_evaluate_explain(tmp_path, frame, capsys):
    model = fit(tmp_path)
    out = capsys.readouterr().out
    assert "43 sets" in out
    metrics = json.loads((model / "metrics.json").read_text())
    accuracy = scores_of(metrics["validation"])["label", "accuracy", "omniset"]
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert f"{accuracy['value']:.2f}" in out  # what is printed is what is stored
    assert len(metrics["history"]) == 2
    assert {"config.json", "model.safetensors", "report.html", "report.json"} <= {p.name for p in model.iterdir()}
    assert any(p.name.endswith("_mqc.json") for p in model.iterdir())
    loaded = SetClassifier.load(model)
    for sets, target in (("sets.csv", "p.parquet"), ("sets.parquet", "p.csv"), ("sets.csv", "p.tsv.gz")):
        run("predict", tmp_path / sets, "--model", model, "--out", tmp_path / target, "--progress", "false")
    in_memory = loaded.predict_table(frame.drop(columns="sign"))
    assert in_memory["set"].tolist() == frame["set"].unique().tolist()
    for path, read in (("p.parquet", pd.read_parquet), ("p.csv", read_csv), ("p.tsv.gz", partial(read_csv, sep="\t"))):
        found = read(tmp_path / path)
        pd.testing.assert_frame_equal(found, in_memory, check_exact=True, check_dtype=False)
    words = [tmp_path / "sets.csv", "--model", model]
    run("evaluate", *words, "--target", tmp_path / "labels.csv", "--out", tmp_path / "e")
    truth = pd.read_csv(tmp_path / "all.csv").set_index("set")["label"]
    expected = (in_memory.set_index("set")["label"] == truth.loc[in_memory["set"]].to_numpy()).mean()
    evaluated = json.loads((tmp_path / "e" / "metrics.json").read_text())
    found = {method: score["value"] for (_, kind, method), score in scores_of(evaluated).items() if kind == "accuracy"}
    assert np.isclose(found["omniset"], expected)
    most = loaded.classes_[loaded.prior_[0].argmax()]
    assert np.isclose(found["prior"], (truth == most).mean())
    (gate,) = evaluated["gates"]
    best = max(evaluated["baselines"], key=found.get)
    assert (gate["condition"], gate["score"], gate["opponent"]) == ("label", "accuracy", best)
    rows = read_csv(tmp_path / "e" / "scores.csv.gz")
    ours = rows[rows["method"] == "omniset"]
    assert (ours["predicted"].to_numpy() == in_memory["label"].to_numpy()).all()
    assert (ours["truth"].to_numpy() == truth.loc[in_memory["set"]].to_numpy()).all()
    assert (rows.loc[rows["method"] == "prior", "predicted"] == most).all()
    said = capsys.readouterr().out
    assert evaluated["verdict"] in said
    assert f"{best}, the best baseline" in evaluated["verdict"]
    assert "asked >" not in said  # of a single gate the verdict says it all
    assert (tmp_path / "e" / "report.html").stat().st_size > 10_000
    run("explain", *words, "--out", tmp_path / "x.csv", "--only", "s3,s1", "--steps", 3)
    run("explain", *words, "--label", "x", "--out", tmp_path / "y.csv", code=2)
    assert "label must be one of" in capsys.readouterr().err
    scores = pd.read_csv(tmp_path / "x.csv")
    chosen = frame[frame["set"].isin(["s1", "s3"])]
    assert scores["element"].tolist() == chosen["element"].tolist()
    expected = loaded.explain(chosen[chosen["set"] == "s3"], steps=3)[0]
    assert np.allclose(scores[scores["set"] == "s3"]["score"], expected)


@pytest.mark.parametrize("limit", [40, 7])  # below: sets of up to 16 are streamed in shards
def test_streams_are_the_in_memory_path_to_the_bit(tmp_path, frame, limit, monkeypatch):
    monkeypatch.setattr(files, "CELLS", 300)  # many chunks
    model = fit(tmp_path, "--max_elements", limit)
    run("predict", tmp_path / "sets.csv", "--model", model, "--out", tmp_path / "p.parquet")
    in_memory = SetClassifier(**OPTIONS, epochs=2, max_elements=limit)
    in_memory.fit(frame.drop(columns="sign"), pd.read_csv(tmp_path / "all.csv").set_index("set")["label"])
    stored, ours = safetensors.torch.load_file(model / "model.safetensors"), in_memory.network_.state_dict()
    assert all((stored[f"network.{name}"] == ours[name]).all() for name in ours)
    expected = in_memory.predict_table(frame.drop(columns="sign"))
    found = pd.read_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)


@pytest.mark.parametrize("source", ["column", "file"])
def test_labels_of_elements(tmp_path, frame, source, capsys):
    if source == "column":
        model = fit(tmp_path, "--target_columns", "sign", sets="signed.tsv.gz", target=None)
    else:
        model = fit(tmp_path, target="signs.parquet")
    assert "classification of elements: sign (2 classes)" in capsys.readouterr().out
    run("predict", tmp_path / "signed.tsv.gz", "--model", model, "--out", tmp_path / "p.csv")
    found = read_csv(tmp_path / "p.csv")
    assert found["element"].tolist() == frame["element"].tolist()
    expected = SetClassifier.load(model).predict_proba(frame.drop(columns="sign"))
    assert (found[["p_+", "p_-"]].to_numpy() == expected).all()
    target = [] if source == "column" else ["--target", tmp_path / "signs.parquet"]
    run("evaluate", tmp_path / "signed.tsv.gz", *target, "--model", model, "--out", tmp_path / "e")
    named = frame["element"].isin(pd.read_parquet(tmp_path / "signs.parquet")["element"])
    known = frame if source == "column" else frame[named]
    right = found.set_index("element").loc[known["element"], "sign"].to_numpy() == known["sign"].to_numpy()
    evaluated = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert np.isclose(scores_of(evaluated)["sign", "accuracy", "omniset"]["value"], right.mean())


def test_a_label_of_the_set_in_its_rows(tmp_path, frame):
    kinds = frame["set"].str[1:].astype(int) % 2
    frame.assign(kind=np.where(kinds, "odd", "even")).drop(columns="sign").to_csv(tmp_path / "kinds.csv", index=False)
    model = fit(tmp_path, "--target_columns", "kind", "--level", "set", sets="kinds.csv", target=None)
    run("predict", tmp_path / "sets.csv", "--model", model, "--out", tmp_path / "p.csv")  # without the labels, too
    assert len(pd.read_csv(tmp_path / "p.csv")) == 43


def test_predict_writes_as_it_reads(tmp_path, frame, fitted, monkeypatch):
    monkeypatch.setattr(files, "CELLS", 100)
    seen = []
    tables = []
    real = set_files.watched
    monkeypatch.setattr(set_files, "watched", lambda table, *a: tables.append(table) or real(table, *a))
    write = TableWriter.write
    monkeypatch.setattr(TableWriter, "write", lambda self, f: seen.append(tables[-1].file.position) or write(self, f))
    big = pd.concat([frame.drop(columns="sign").assign(set=frame["set"] + f"_{i}") for i in range(40)])
    big.to_csv(tmp_path / "big.csv", index=False)
    run("predict", tmp_path / "big.csv", "--model", fitted / "run", "--out", tmp_path / "p.csv")
    assert len(pd.read_csv(tmp_path / "p.csv")) == 43 * 40
    size = (tmp_path / "big.csv").stat().st_size
    early = sum(position < size for position in seen)
    assert early > 0  # pandas reads 256 kB at a time, so the first predictions are out before the last rows are read


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(tmp_path):
    make(tmp_path, number=23)
    words = ["--epochs", "13", "--encoder_options", '{"dropout": 0.2}', "--max_elements", "40"]
    words = ["fit", "sets.csv", "--target=labels.csv", *SMALL, *words, "--resume", "true", "--out"]

    def started(folder):
        return Forked(lambda: main([*words, folder]), tmp_path)

    # Each run has a process of its own: the last bits depend on what a process has computed before.
    assert started("straight").wait() == 0
    chance = random.Random(5)
    last = tmp_path / ".killed.unfinished" / "checkpoints" / "last.ckpt"
    survived = []
    for _ in range(2):  # a new run, and one that was resumed
        process = started("killed")
        before = last.stat().st_mtime_ns if last.exists() else 0
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:  # kill in the middle of training
            if last.exists() and last.stat().st_mtime_ns != before:
                break
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.2))
        process.send(signal.SIGKILL)
        survived.append(process.wait())
    assert -signal.SIGKILL in survived
    assert started("killed").wait() == 0
    folders = tmp_path / "straight", tmp_path / "killed"
    models = [safetensors.torch.load_file(folder / "model.safetensors") for folder in folders]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])
    histories = [json.loads((folder / "metrics.json").read_text())["history"] for folder in folders]
    assert histories[0] == histories[1]
    assert [p for p in (tmp_path / "killed" / "checkpoints").iterdir() if p.name.startswith(".")] == []


def test_another_table_cannot_be_resumed(tmp_path, frame, capsys):
    words = ["fit", tmp_path / "sets.csv", "--target", tmp_path / "labels.csv", "--out", tmp_path / "run", "--epochs=2"]
    frame.drop(columns="sign").to_csv(tmp_path / "sets.csv", index=False)
    run(*words, *SMALL)
    frame.loc[0, "x"] += 1
    frame.drop(columns="sign").to_csv(tmp_path / "sets.csv", index=False)
    run(*words, *SMALL, "--resume=true", code=2)
    assert "is of another run and cannot be resumed: the sets, their labels or" in capsys.readouterr().err


def test_the_summary_of_the_data(tmp_path, frame, monkeypatch):
    monkeypatch.setattr("omniset.report.data.STEP", 37)
    frame["flat"] = 3
    frame.drop(columns="sign").to_csv(tmp_path / "flat.csv", index=False)
    model = fit(tmp_path, sets="flat.csv")
    report = json.loads((model / "report.json").read_text())
    data = report["data"]
    assert (data["sets"], data["elements"]) == (43, len(frame))
    assert data["total_multiplicity"] == frame["multiplicity"].sum()
    assert data["multiplicity_quantiles"]["75 %"] == frame["multiplicity"].quantile(0.75)
    assert data["sizes"]["median"] == frame.groupby("set").size().median()
    assert data["features"] == ["x", "y", "flat"]
    assert any("features with one value in all training sets, which say nothing: flat" in w for w in report["warnings"])
    assert report["command"].startswith("omniset")


def test_one_file_of_labels_for_several_tables(tmp_path, frame, capsys):
    few = frame[frame["set"].isin([f"s{i}" for i in range(30)])].drop(columns="sign")
    few.to_csv(tmp_path / "few.csv", index=False)
    words = ["fit", tmp_path / "few.csv", "--target", tmp_path / "labels.csv", "--out", tmp_path / "run", "--epochs=1"]
    run(*words, *SMALL, code=2)
    assert "if that is meant, say --unused_labels ignore" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    run(*words, *SMALL, "--unused_labels=ignore")
    assert "30 sets" in capsys.readouterr().out


def test_intervals_over_groups(tmp_path, frame):
    """With one patient to draw there is nothing to vary; with each set for itself there is."""
    model = fit(tmp_path, "--target_columns=amount", "--method=deep-sets", target="all.csv")
    labels = pd.read_csv(tmp_path / "all.csv").assign(patient="one")
    labels.to_csv(tmp_path / "one.csv", index=False)
    words = ["evaluate", tmp_path / "sets.csv", "--target", tmp_path / "one.csv", "--model", model, "--progress=false"]
    run(*words, "--out", tmp_path / "sets")
    run(*words, "--out", tmp_path / "patients", "--group", "patient")
    by_set, by_patient = (json.loads((tmp_path / n / "report.json").read_text()) for n in ("sets", "patients"))
    numbers = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("sets", "patients")]
    rmse = [scores_of(of)["amount", "RMSE", "omniset"] for of in numbers]
    assert rmse[0]["value"] == rmse[1]["value"]
    assert rmse[0]["high"] > rmse[0]["low"]
    assert rmse[1]["low"] is None
    assert [of["unit"] for of in numbers] == ["set", "group"]
    assert by_set["on"] == by_patient["on"]
    words = ["explain", tmp_path / "sets.csv", "--model", model, "--out", tmp_path / "x.csv"]
    run(*words, "--method", "attribution", code=2)  # deep-sets have no attention
    run(*words)
    assert (pd.read_csv(tmp_path / "x.csv")["method"] == "removal").all()


def test_targets_and_groups_do_not_leak_into_features(tmp_path, frame, capsys):
    labels = pd.read_csv(tmp_path / "all.csv").set_index("set")
    leaky = frame.drop(columns="sign").assign(amount=labels.loc[frame["set"], "amount"].to_numpy(), patient=1)
    leaky.to_csv(tmp_path / "leaky.csv", index=False)
    for words in (["--target_columns=amount"], ["--target_columns=label", "--group=patient"]):
        out = tmp_path / f"run{len(words)}"
        command = ["fit", tmp_path / "leaky.csv", "--target", tmp_path / "all.csv", "--out", out, *SMALL]
        run(*command, *words, code=2)
        assert "would be learned from as a feature" in capsys.readouterr().err
        run(*command, *words, "--features=x,y", "--epochs=1", "--task=auto")
        kind = SetClassifier if "label" in words[0] else SetRegressor
        assert kind.load(out).features_ == ["x", "y"]
    run(*command, "--target_columns=label", "--group=label", "--features=x", code=2)
    assert "column 'label' is the group: it cannot be a target too" in capsys.readouterr().err
    with pytest.raises(ValueError, match="column 'amount' is both a feature and a target"):
        SetRegressor(progress=False).fit(leaky, labels["amount"])
    command[command.index(out)] = tmp_path / "new"
    run(*command, "--target_columns=amount", "--features=x", "--class_weight=balanced", code=2)
    assert "class_weight='balanced' is for classes" in capsys.readouterr().err


def test_the_index_that_pandas_writes_is_left_out(tmp_path, frame, capsys):
    """The table went through to_csv and read_csv: its first column numbers the rows."""
    frame.drop(columns="sign").to_csv(tmp_path / "indexed.csv")
    pd.read_csv(tmp_path / "indexed.csv").to_csv(tmp_path / "indexed.csv", index=False)
    fit(tmp_path, "--ignore", "Unnamed: 0", sets="indexed.csv")
    assert "\nfeatures: 'x', 'y'\n" in capsys.readouterr().out
    model = SetClassifier.load(tmp_path / "run")
    assert (model.features_, model.ignored_) == (["x", "y"], ["Unnamed: 0"])
    words = ["--model", tmp_path / "run", "--progress=false"]
    labels = ["--target", tmp_path / "labels.csv"]
    run("predict", tmp_path / "indexed.csv", *words, "--out", tmp_path / "p.csv")
    run("explain", tmp_path / "indexed.csv", *words, "--out", tmp_path / "x.csv", "--only=s1")
    run("evaluate", tmp_path / "indexed.csv", *words, *labels, "--out", tmp_path / "e")
    fit(tmp_path, "--features", "Unnamed: 0,x", sets="indexed.csv", epochs=1)
    assert SetClassifier.load(tmp_path / "run").features_ == ["Unnamed: 0", "x"]


def test_tables_for_spreadsheets(tmp_path, frame):
    """Names that a spreadsheet would compute, in every table that the commands write, and only there."""
    labels = pd.read_csv(tmp_path / "labels.csv")
    labels["label"] = np.where(labels["label"] == "k0", "=1+1", labels["label"])
    labels.replace({"set": {"s1": "@s1"}}).to_csv(tmp_path / "labels.csv", index=False)
    frame.drop(columns="sign").replace({"set": {"s1": "@s1"}}).to_csv(tmp_path / "sets.csv", index=False)
    fit(tmp_path, epochs=1)
    common = [tmp_path / "sets.csv", "--model", tmp_path / "run", "--progress=false", "--device=cpu"]
    for safe, mark in ((False, ""), (True, "'")):
        option = [f"--csv_safe={str(safe).lower()}"]
        context = contextvars.copy_context()
        context.run(run, "predict", *common, *option, "--out", tmp_path / "p.csv")
        found = pd.read_csv(tmp_path / "p.csv", dtype=str)
        assert found["set"].tolist()[:3] == ["s0", f"{mark}@s1", "s2"]
        assert set(found["label"]) <= {f"{mark}=1+1", "k1", "k2"}
        assert found.columns.tolist() == ["set", "label", "p_=1+1", "p_k1", "p_k2"]
        context.run(run, "explain", *common, *option, "--only=@s1", "--label==1+1", "--out", tmp_path / "x.tsv")
        found = pd.read_csv(tmp_path / "x.tsv", sep="\t")
        assert (set(found["set"]), set(found["explained"])) == ({f"{mark}@s1"}, {f"{mark}=1+1"})
    context.run(run, "predict", *common, "--out", tmp_path / "p.csv")  # the next command of the same program
    assert pd.read_csv(tmp_path / "p.csv")["set"][1] == "@s1"


@pytest.mark.parametrize("part", ["report.data.summarize", "report.write"])
def test_a_report_that_fails_does_not_lose_the_model(part, tmp_path, frame, monkeypatch):
    def fails(*_):
        raise RuntimeError("no report")

    monkeypatch.setattr(f"omniset.{part}", fails)
    with pytest.raises(RuntimeError, match="no report"):
        fit(tmp_path, epochs=1)
    run("predict", tmp_path / "sets.csv", "--model", tmp_path / "run", "--out", tmp_path / "p.csv", "--progress=false")
    assert len(SetClassifier.load(tmp_path / "run").history_) == 1


def test_names_of_any_characters(tmp_path, capsys):
    """Reports are made; model and tables have the names as they are."""
    odd = "a\x07\ufffe$<b>\\"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"set": [f"{odd}{i // 4}" for i in range(80)], odd: rng.normal(size=80)})
    frame.to_parquet(tmp_path / "sets.parquet")
    labels = pd.DataFrame({"set": frame["set"].unique(), odd + "2": [f"{odd}{i % 2}" for i in range(20)]})
    labels.to_parquet(tmp_path / "labels.parquet")
    fit(tmp_path, sets="sets.parquet", target="labels.parquet", epochs=1)
    assert "a\\x07U+FFFE$&lt;b&gt;\\" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    model = SetClassifier.load(tmp_path / "run")
    assert (model.features_, model.targets_, model.classes_[0]) == ([odd], [odd + "2"], odd + "0")
    common = [tmp_path / "sets.parquet", "--model", tmp_path / "run", "--progress=false"]
    run("predict", *common, "--out", tmp_path / "p.csv")
    assert read_csv(tmp_path / "p.csv")["set"].tolist() == labels["set"].tolist()
    run("evaluate", *common, "--target", tmp_path / "labels.parquet", "--out", tmp_path / "e")
    assert (tmp_path / "e" / "report.html").is_file()


def test_nothing_is_replaced_that_was_read(tmp_path, frame, fitted, capsys):
    before = (tmp_path / "sets.csv").read_bytes()
    for verb in ("predict", "explain"):
        run(verb, tmp_path / "sets.csv", "--model", fitted / "run", "--out", tmp_path / "sets.csv", code=2)
        assert "is the input itself" in capsys.readouterr().err
    assert (tmp_path / "sets.csv").read_bytes() == before


@pytest.mark.filterwarnings("ignore:label. classes with fewer than 5 sets", "ignore:label. classes in one group only")
def test_a_class_that_only_validation_has_is_named(frame):
    sets = frame.drop(columns=["sign", "element"])
    names = sets["set"].unique()
    model = SetClassifier("ust", dim=8, depth=1, epochs=1, progress=False, device="cpu", validation_fraction=0.3)
    groups = pd.Series(np.arange(43), index=names)
    held = model.fit(sets, pd.Series(np.arange(43) % 2, index=names), groups=groups).validation_[0]
    labels = pd.Series(np.where(np.arange(43) == held, "lone", np.where(np.arange(43) % 2, "a", "b")), index=names)
    with pytest.warns(UserWarning, match="label: no training set has 'lone'"):
        model.fit(sets, labels, groups=groups)


@pytest.mark.filterwarnings("ignore:32 of 43 sets have the name of one that the model learned from")
@pytest.mark.parametrize("level", ["set", "element"])
def test_evaluation_in_python_is_that_of_the_shell(level, tmp_path, frame):
    """Every score, interval and row; also where elements have no names of their own."""
    words = ["--target_columns=sign"] if level == "element" else []
    source = {"sets": "signed.tsv.gz", "target": None} if words else {}
    model = SetClassifier.load(fit(tmp_path, *words, epochs=1, **source))
    table, labels = tmp_path / source.get("sets", "sets.csv"), pd.read_csv(tmp_path / "all.csv").set_index("set")
    target = [] if words else ["--target", tmp_path / "labels.csv"]
    run("evaluate", table, *target, "--model", tmp_path / "run", "--out", tmp_path / "e", "--progress=false")
    y = frame["sign"] if words else labels["label"]
    in_python = evaluate(model, frame.drop(columns="sign"), y)
    at_the_shell = json.loads((tmp_path / "e" / "metrics.json").read_text())
    numbers = json.loads(json.dumps(plain(in_python.comparison.numbers())))
    assert {key: at_the_shell[key] for key in numbers} == numbers
    pd.testing.assert_frame_equal(read_csv(tmp_path / "e" / "scores.csv.gz"), in_python.rows, check_dtype=False)
    again = evaluate(model, frame.drop(columns="sign").assign(element="same"), y)
    assert again.comparison.numbers()["scores"] == in_python.comparison.numbers()["scores"]
    grouped = evaluate(model, frame.drop(columns="sign"), y, groups=labels["patient"])
    assert (grouped.comparison.unit, grouped.comparison.numbers()["units"]) == ("group", 11)
    with pytest.raises(ValueError, match="labels .* were not in training"):
        evaluate(model, frame.drop(columns="sign"), y.replace(y.iloc[0], "other"))


def test_the_prior_is_that_of_the_training_sets():
    sets = [[[float(i)]] for i in range(40)]
    small = {"encoder": "deep-sets", "dim": 8, "epochs": 1, "progress": False, "device": "cpu"}
    y = np.where(np.arange(40) % 4 == 0, "rare", "common")
    model = SetClassifier(**small, validation_fraction=0.25).fit(sets, y)
    train = np.setdiff1d(np.arange(40), model.validation_)
    assert model.prior_[0].tolist() == [(y[train] == label).mean() for label in ("common", "rare")]
    numbers = np.arange(40.0)
    model = SetRegressor(**small, validation_fraction=0.25).fit(sets, numbers)
    train = np.setdiff1d(np.arange(40), model.validation_)
    assert model.prior_[0].tolist() == [numbers[train].mean()]
    assert model.notes_ == [
        "regression of sets: label",
        "10 of 40 sets, kept back to watch the training; they chose the epoch, which flatters",
    ]


def test_telling_examples():
    share = np.array([0.6, 0.9, 0.8, 0.51, 0.95])
    truth = np.array(["a", "a", "b", "b", "b"], dtype=object)
    predicted = np.array(["a"] * 5, dtype=object)
    about = {"sets": np.arange(5), "sizes": np.ones(5, int)}
    classes = Outcome("t", truth, predicted, **about, classes=["a", "b"], probabilities=np.stack([share, 1 - share], 1))
    assert telling(classes) == [1, 4, 3]  # surest right, surest wrong, least sure
    numbers = Outcome("t", np.array([1.0, 2, 3, 4, 5]), np.array([1.5, 2, 9, 4.1, 4]), **about)
    assert telling(numbers) == [1, 0, 2]  # errors 0, 0.5, 6
    one = Outcome("t", np.array([1.0]), np.array([2.0]), sets=np.zeros(1, int), sizes=np.ones(1, int))
    assert telling(one) == [0]


def test_large_sets_are_explained_in_shards(tmp_path, fitted):
    words = [fitted / "sets.csv", "--model", fitted / "run"]
    for limit, name in ((40, "whole"), (3, "shards")):
        more = ["--max_elements", limit, "--steps", 3, "--out", tmp_path / f"{name}.csv"]
        run("explain", *words, *more)
    whole, shards = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("whole", "shards"))
    pd.testing.assert_frame_equal(whole.drop(columns="score"), shards.drop(columns="score"))
    assert np.allclose(whole["score"], shards["score"], atol=1e-4)
    run("explain", *words, "--method", "attention", "--out", tmp_path / "a.csv")
    plain = pd.read_csv(tmp_path / "a.csv")["score"]
    assert not np.allclose(plain, whole["score"], atol=0.05)
    assert plain.between(0, 1).all()
