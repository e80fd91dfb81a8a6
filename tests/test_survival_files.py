"""Times and events in files: the commands, what `auto` takes for survival, and files that are wrong."""

import json

import numpy as np
import pandas as pd
import pytest

from omniset import SetSurvival
from omniset.cli import main
from omniset.estimators.evaluation import evaluate
from omniset.tables import LabelFile
from omniset.tables.survival import as_survival, survival_columns
from omniset.trials.comparison import OURS
from omniset.trials.outcomes import SURVIVAL

SMALL = ["--dim=8", "--num_heads=2", "--depth=1", "--epochs=1", "--progress=false", "--device=cpu"]


def make(folder, number=29):
    r = np.random.default_rng(0)
    sizes = r.integers(1, 6, number)
    names = [f"s{i}" for i in range(number)]
    frame = pd.DataFrame({"set": np.repeat(names, sizes)})
    frame["x"], frame["y"] = r.normal(size=(2, len(frame)))
    frame.to_csv(folder / "sets.csv", index=False)
    time = r.exponential(np.exp(-2 * frame.groupby("set", sort=False)["x"].mean().to_numpy()))
    labels = pd.DataFrame({"set": names, "time": time.round(3), "event": (r.random(number) < 0.7).astype(int)})
    labels.sample(frac=1, random_state=0).to_csv(folder / "labels.csv", index=False)
    return frame, labels


def run(*words, code=0):
    assert main([str(w) for w in words]) == code


@pytest.mark.filterwarnings("ignore:29 of 29 sets have the name of one that the model learned from")
def test_fit_predict_evaluate_and_explain(tmp_path, capsys):
    frame, labels = make(tmp_path)
    words = ["--target", tmp_path / "labels.csv", "--out", tmp_path / "run", "--folds=2"]
    run("fit", tmp_path / "sets.csv", *words, *SMALL)
    said = capsys.readouterr().out
    assert f"survival of sets: the event was seen in {labels['event'].sum()} of 29" in said
    assert "concordance, risk" in said
    numbers = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {s["score"] for s in numbers["validation"]["scores"]} == set(SURVIVAL)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Kaplan-Meier" in page
    assert "Thirds of the predicted risk" in page
    left_out = pd.read_csv(tmp_path / "run" / "out_of_fold.csv")
    known = labels.set_index("set").loc[left_out["set"]]
    assert left_out["truth"].tolist() == known["time"].tolist()
    assert left_out["event"].tolist() == (known["event"] == 1).tolist()

    model = SetSurvival.load(tmp_path / "run")
    run("predict", tmp_path / "sets.csv", "--model", tmp_path / "run", "--out", tmp_path / "p.csv", "--progress=false")
    predicted = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(predicted["risk"], model.predict(frame), atol=1e-6)
    np.testing.assert_allclose(predicted["median_time"], model.predict_table(frame)["median_time"])

    words = ["--target", tmp_path / "labels.csv", "--model", tmp_path / "run", "--out", tmp_path / "e"]
    run("evaluate", tmp_path / "sets.csv", *words, "--progress=false")
    numbers = json.loads((tmp_path / "e" / "metrics.json").read_text())
    scores = {(s["score"], s["method"]): s["value"] for s in numbers["scores"]}
    whole = evaluate(model, frame, labels, resamples=2)
    assert scores["concordance", OURS] == pytest.approx(
        whole.comparison.table("concordance", "risk").loc[OURS, "value"]
    )
    words = ["--model", tmp_path / "run", "--out", tmp_path / "x.csv", "--only", "s1", "--steps=2", "--progress=false"]
    run("explain", tmp_path / "sets.csv", *words)
    assert set(pd.read_csv(tmp_path / "x.csv")["explained"]) == {"risk"}


def test_columns_of_other_names_and_columns_of_the_table(tmp_path):
    frame, labels = make(tmp_path)
    named = labels.rename(columns={"time": "days", "event": "died"}).assign(age=7, ward=np.arange(29) // 4)
    named.to_csv(tmp_path / "named.csv", index=False)
    how = ["--task=survival", "--time_column=days", "--event_column=died", "--method=deep-sets", *SMALL]
    target = ["--target", tmp_path / "named.csv", "--group=ward"]
    run("fit", tmp_path / "sets.csv", *target, "--out", tmp_path / "one", *how)
    model = SetSurvival.load(tmp_path / "one")
    assert model.columns_ == ["days", "died"]
    words = [*target, "--model", tmp_path / "one", "--out", tmp_path / "e", "--progress=false"]
    run("evaluate", tmp_path / "sets.csv", *words)
    merged = frame.merge(named.drop(columns="age"), on="set")
    merged.to_csv(tmp_path / "merged.csv", index=False)
    run("fit", tmp_path / "merged.csv", "--group=ward", "--out", tmp_path / "two", *how)
    again = SetSurvival.load(tmp_path / "two")
    assert (again.predict(frame) == model.predict(frame)).all()


@pytest.mark.parametrize(
    ("columns", "group", "task", "chosen"),
    [
        ("set,time,event", None, "auto", True),
        ("event,time,set,ward", "ward", "auto", True),
        ("set,time", None, "auto", False),
        ("set,element,time,event", None, "auto", False),
        ("set,time,event", None, "regression", False),
        ("set,time,event,age", None, "survival", True),
        ("set,OS,OS.time", None, "auto", ["OS.time", "OS"]),
        ("set,OS_STATUS,OS_MONTHS,age", None, "survival", ["OS_MONTHS", "OS_STATUS"]),
        ("set,PFI,PFI.time,ward", "ward", "auto", ["PFI.time", "PFI"]),
        ("set,futime,fustat", None, "auto", ["futime", "fustat"]),
        ("set,survival_months,censorship", None, "auto", ["survival_months", "censorship"]),
        ("set,time,status", None, "auto", ["time", "status"]),
        ("set,OS,age", None, "auto", False),
        ("set,PFI,OS.time", None, "auto", False),
    ],
)
def test_auto_is_survival_where_there_is_nothing_else(tmp_path, columns, group, task, chosen):
    (tmp_path / "labels.csv").write_text(columns + "\n")
    wanted = ["time", "event"] if chosen is True else chosen or None
    assert survival_columns(tmp_path / "labels.csv", None, group, task, ("time", "event")) == wanted
    if task == "auto":
        assert survival_columns(tmp_path / "labels.csv", ["time"], group, task, ("time", "event")) is None


def test_time_and_event_among_other_columns_are_asked_about(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("set,time,event,ward\n")
    said = r"labels.csv: has the columns time and event, and others \('ward'\): --task survival .*--target_columns"
    with pytest.raises(ValueError, match=said):
        survival_columns(path, None, None, "auto", ("time", "event"))
    assert survival_columns(path, ["ward"], None, "auto", ("time", "event")) is None
    assert survival_columns(path, ["event", "time"], None, "auto", ("time", "event")) == ["time", "event"]
    path.write_text("set,OS,OS.time,PFI,PFI.time\n")
    with pytest.raises(ValueError, match=r"--task survival --time_column OS.time --event_column OS learns times"):
        survival_columns(path, None, None, "auto", ("time", "event"))
    assert survival_columns(path, None, None, "survival", ("PFI.time", "PFI")) == ["PFI.time", "PFI"]
    path.write_text("set,vital_status,days_to_death,days_to_last_follow_up\n")
    for task, time in (("auto", "time"), ("survival", "days_to_death")):
        with pytest.raises(ValueError, match="has its times in two columns: write 'days_to_death' where that is known"):
            survival_columns(path, None, None, task, (time, "vital_status"))
    for columns in ("set,time,event,entry", "set,start,stop,event"):
        path.write_text(columns + "\n")
        for task in ("auto", "survival"):
            with pytest.raises(
                ValueError, match=r"has a column '(entry|start)': .*left truncation.* is not taken into"
            ):
                survival_columns(path, None, None, task, ("time", "event"))
    path.write_text("set,time,event,ward\n")
    assert survival_columns(path, None, None, "classification", ("time", "event")) is None


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("time", 4, "-1", "labels.csv: line 6: column 'time' is '-1', it must be a number of at least 0"),
        ("time", 4, "soon", "labels.csv: line 6: column 'time' is 'soon', it must be a number of at least 0"),
        ("time", 4, "", "labels.csv: line 6: column 'time' is empty: each set needs a label"),
        ("event", 5, "2", "labels.csv: line 7: column 'event' is '2', it must be 1, where the event was seen, or 0"),
        ("event", 5, "yes", "labels.csv: line 7: column 'event' is 'yes', it must be 1"),
        ("event", None, "0", "labels.csv: column 'event' is 0 everywhere: at least 2 events must have been seen"),
        ("time", None, "7", "labels.csv: column 'time' is 7 everywhere: nothing to learn"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path, capsys, column, row, value, message):
    _, labels = make(tmp_path, 13)
    labels = labels.astype(str)
    labels.loc[slice(None) if row is None else row, column] = value
    labels.to_csv(tmp_path / "labels.csv", index=False)
    words = ["--target", tmp_path / "labels.csv", "--out", tmp_path / "run", *SMALL]
    run("fit", tmp_path / "sets.csv", *words, code=2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert message in line


@pytest.mark.parametrize(
    ("yes", "no", "said"),
    [
        *[("True", "False", ""), ("TRUE", "FALSE", ""), ("dead", "alive", ""), ("Deceased", "Living", "")],
        *[("1:DECEASED", "0:LIVING", ""), ("1:Recurred/Progressed", "0:DiseaseFree", ""), ("event", "censored", "")],
        *[
            ("2", "1", "is 2 where the event was seen"),
            ("1.0", "0.0", ""),
            ("B", "A", "--event_value"),
            ("3", "1", "--ev"),
        ],
    ],
)
def test_events_in_words(tmp_path, yes, no, said, capsys):
    _, labels = make(tmp_path, 13)
    labels.assign(event=labels["event"].map({1: yes, 0: no})).to_csv(tmp_path / "labels.csv", index=False)
    file = LabelFile(tmp_path / "labels.csv")
    table = file.file
    if said.startswith("--"):
        with pytest.raises(ValueError, match=r"it must be 1, where the event was seen, or 0, or words.*--event_value"):
            as_survival(file, file.frame[["time", "event"]], table, 2)
        found = as_survival(file, file.frame[["time", "event"]], table, 2, yes)
    elif said:
        with pytest.warns(UserWarning, match=said):
            found = as_survival(file, file.frame[["time", "event"]], table, 2)
    else:
        found = as_survival(file, file.frame[["time", "event"]], table, 2)
    assert found["event"].tolist() == labels["event"].tolist()


def test_the_value_of_an_event_is_remembered(tmp_path, capsys):
    _, labels = make(tmp_path, 13)
    labels.assign(censorship=1 - labels["event"]).drop(columns="event").to_csv(tmp_path / "labels.csv", index=False)
    target = [tmp_path / "sets.csv", "--target", tmp_path / "labels.csv"]
    run("fit", *target, "--out", tmp_path / "run", "--method=deep-sets", *SMALL, code=2)
    assert "column 'censorship' may say where no event was seen: --event_value 0, or 1" in capsys.readouterr().err
    run("fit", *target, "--out", tmp_path / "run", "--event_value=0", "--method=deep-sets", *SMALL)
    assert f"the event was seen in {labels['event'].sum()} of 13" in capsys.readouterr().out
    run("evaluate", *target, "--model", tmp_path / "run", "--out", tmp_path / "e", "--progress=false")


def test_missing_columns_and_other_targets_are_named(tmp_path, capsys):
    make(tmp_path, 13)
    words = ["fit", tmp_path / "sets.csv", "--target", tmp_path / "labels.csv", "--out", tmp_path / "run", *SMALL]
    run(*words, "--task=survival", "--time_column=days", code=2)
    assert "days" in capsys.readouterr().err
    run(*words, "--task=survival", "--target_columns=time", code=2)
    assert "target_columns=time is not for task='survival'" in capsys.readouterr().err
    run("fit", tmp_path / "sets.csv", "--out", tmp_path / "run", *SMALL, "--task=survival", code=2)
    assert "time" in capsys.readouterr().err
