"""Programs that are told to end while they learn: they say so, keep what is done, and can go on. Real signals."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from forked import Forked
from omniset.cli import main
from omniset.microbiomes.options import ClassifierOptions
from test_contract import SYSTEMS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

ENDLESS = "--epochs=100000"  # far more than there is time for


@pytest.fixture
def words_of(tmp_path, monkeypatch):
    """A command that fits a system without end, in a folder with its data."""
    monkeypatch.setattr(ClassifierOptions, "PATIENCE", None)
    monkeypatch.setattr("omniset.genomes.training.PATIENCE", None)

    def make(name):
        monkeypatch.setattr("omniset.estimators.mixture.WATCHED", 1_000)  # no network of the mixture stops early
        (system,) = (one for one in SYSTEMS if one.name == name)
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            system.data() if callable(system.data) else main(system.data.split())
        return [*system.words, *system.fit.split(), ENDLESS, "--out=run"]

    return make


def children(process):
    """Processes that this one has started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(words, folder, number):
    """Fit until a checkpoint is there, send the signal, and give what the program says and its exit status."""
    before = checkpoints(folder)
    running = Forked(lambda: main(words), folder)
    while running.poll() is None and checkpoints(folder) == before:
        time.sleep(0.05)
    running.send(number)
    status = running.wait()
    return running.said, status


def checkpoints(folder):
    """The last ones, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("last.ckpt")}


@pytest.mark.parametrize("name", [system.name for system in SYSTEMS if system.name != "baskets"])
def test_sigterm_while_fitting(name, words_of, tmp_path):
    """As SLURM's time limit and `docker stop` send it: status 143, one line that says how to go on, nothing lost."""
    words = words_of(name)
    work = tmp_path / ".run.unfinished"
    said, status = ended(words, tmp_path, signal.SIGTERM)
    assert status == 143, said
    assert said.splitlines()[-1] == (
        f"omniset: ended by SIGTERM; what is done is kept in {work}, the same command with --resume true goes on"
    )
    assert "Traceback" not in said
    (kept,) = (tmp_path / ".run.unfinished").rglob("last.ckpt")
    done = torch.load(kept, weights_only=True)["epoch"]
    assert not (tmp_path / "run").exists()
    assert not [*(tmp_path / ".run.unfinished").rglob(".last-*")]
    if name == "sets":  # how a checkpoint is read is the same for all
        said, status = ended([*words, "--resume=true"], tmp_path, signal.SIGINT)
        assert status == 130, said
        assert said.splitlines()[-1].startswith(f"omniset: interrupted; what is done is kept in {work}")
        assert torch.load(kept, weights_only=True)["epoch"] > done


@pytest.mark.parametrize(
    ("whom", "number", "code", "word"),
    [
        ("parent", signal.SIGHUP, 129, "ended by SIGHUP"),
        ("child", signal.SIGTERM, 143, "ended by SIGTERM"),
        ("group", signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_while_fitting_in_two_processes(whom, number, code, word, words_of, tmp_path):
    """Whichever of the processes it reaches: all end, and one line says how to go on."""
    words = [*words_of("sets"), "--method=ust", "--folds=null", "--devices=2"]

    def fit():
        sys.argv = ["omniset", *words]  # what the two processes run
        os.environ |= {"PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
        return main(words)

    running = Forked(fit, tmp_path)
    while running.poll() is None and not checkpoints(tmp_path):
        time.sleep(0.05)
    if running.poll() is None and whom == "group":
        os.killpg(running.pid, number)
    elif running.poll() is None:
        os.kill(running.pid if whom == "parent" else children(running.pid)[-1], number)
    status, said = running.wait(), running.said
    assert status == code, said
    assert said.count("\n") == 1, said
    assert said.startswith(f"omniset: {word}; what is done is kept in {(tmp_path / '.run.unfinished').resolve()}")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert os.fsencode(tmp_path) not in os.fsencode(os.readlink(folder / "cwd"))
        except OSError:  # not ours, or gone
            continue


PROGRAM = """
import pandas as pd
from omniset import SetClassifier
labels = pd.read_csv("labels.csv").set_index("set")["label"]
SetClassifier("ust", dim=8, num_heads=2, depth=1, epochs=100_000, patience=None, device="cpu", progress=False).fit(
    pd.read_csv("sets.csv"), labels, folder="run")
print("done")
"""


def test_sigterm_in_a_program_of_a_users(words_of, tmp_path):
    """Fit raises SystemExit: the next line, which would use a model that is not there, is not reached."""
    words_of("sets")
    running = Forked(lambda: exec(PROGRAM, {}), tmp_path)
    while running.poll() is None and not checkpoints(tmp_path):
        time.sleep(0.05)
    running.send(signal.SIGTERM)
    assert running.wait() == 143
    assert running.printed == ""


LOST = """
import os, signal
import torch
from omniset.training.data import Lesson
from omniset.training.fit import TrainingModule, fit


class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.Signals[name])


class Endless(TrainingModule):
    def training_step(self, batch, index):
        if index == 2:
            Deaf()
        return self.network(torch.ones(1, 1)).sum()


data = Lesson(lambda keys, training: torch.ones(1), range(5), [], batch_size=1, seed=0)
for name in ("SIGTERM", "SIGINT"):
    module = Endless(torch.nn.Linear(1, 1), 0.1, 0.0, 0, {})
    try:
        fit(module, data, epochs=100_000, patience=None, device="cpu", progress=False, log=None, folder=None,
            resume=False)
    except BaseException as end:
        print(name, type(end).__name__, end)
"""


def test_signals_that_python_drops(tmp_path):
    """One that arrives in a destructor raises nothing there."""
    running = Forked(lambda: exec(LOST, {"__name__": "lost"}), tmp_path)
    assert running.wait() == 0, running.said
    assert running.said.count("Exception ignored in") == 2
    assert running.printed.splitlines() == ["SIGTERM Terminated 143", "SIGINT KeyboardInterrupt "]
