"""Locks, errors as a terminal shows them, and what one run at a time means."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from omniset import SetClassifier
from omniset.cli import main
from omniset.runs import locks
from omniset.runs.console import line_of, resumable, run_folder
from omniset.runs.locks import NAME, held, locked
from omniset.runs.signals import Terminated, terminable
from test_contract import HOLDS_LOCK


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder `run`."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", HOLDS_LOCK, "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_is_of_one_run(holder, tmp_path, monkeypatch, capsys):
    """Refused at the shell and in Python while another process holds it; free when that one is killed."""
    monkeypatch.chdir(tmp_path)
    Path("sets.csv").write_text("set,x\na,0.5\nb,1.5\nc,7.5\n")
    Path("labels.csv").write_text("set,label\na,u\nb,v\nc,u\n")
    small = ["--dim=8", "--num_heads=2", "--depth=1", "--epochs=1", "--device=cpu", "--progress=false"]
    words = ["fit", "sets.csv", "--target=labels.csv", "--method=ust", *small]
    assert main([*words, "--out=run"]) == 2
    said = capsys.readouterr().err
    who = f"process {holder.pid} on {os.uname().nodename}"
    assert said == f"omniset: error: run is in use by another run ({who}): wait for it, or choose another\n"
    model = SetClassifier("ust", dim=8, num_heads=2, depth=1, epochs=1, device="cpu", progress=False)
    with pytest.raises(ValueError, match="run is in use by another run"):
        model.fit([[[0.0]], [[1.0]]] * 5, ["a", "b"] * 5, folder="run")
    assert os.listdir("run") == [NAME]
    model.fit([[[0.0]], [[1.0]]] * 5, ["a", "b"] * 5)
    with pytest.raises(ValueError, match="run is in use by another run"):
        model.save("run")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert main([*words, "--out=run"]) == 0
    assert not Path("run", NAME).exists()


def test_a_process_may_hold_a_folder_twice(tmp_path):
    """As a run holds the folder that its fit holds; and what failed leaves no folder behind."""
    with locked(tmp_path):
        with locked(tmp_path):
            assert (tmp_path / NAME).exists()
        assert (tmp_path / NAME).exists()
    assert not (tmp_path / NAME).exists()
    with pytest.raises(ValueError, match="first"), run_folder(tmp_path / "a/b"):
        raise ValueError("first")
    assert not (tmp_path / "a").exists()


def test_waiting_for_a_file(holder, tmp_path):
    threading.Timer(0.3, holder.kill).start()
    with held(tmp_path / "run" / NAME, "the folder"):
        assert holder.wait() == -signal.SIGKILL


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Two runs may then meet there: it is said, and the work goes on."""

    def none(self, **_):
        raise OSError(locks.NO_LOCKS[0], "no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    with pytest.warns(UserWarning, match=r".lock cannot be locked here: let no other process use the folder"):  # noqa: SIM117
        with locked(tmp_path):
            pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a.csv,\nline 3"), "a.csv, line 3"),
        (ValueError("a.csv: '\x1b[31m\x07\ufffe\u202e'"), r"a.csv: '\x1b[31m\x07\ufffe\u202e'"),
        (ValueError("a.csv: 'é 水'"), "a.csv: 'é 水'"),
        (FileNotFoundError(2, "No such file", "a.csv"), "a.csv: No such file"),
    ],
)
def test_errors_are_one_line_that_any_terminal_shows(error, said):
    assert line_of(error) == said


def test_a_long_error_keeps_its_ends():
    said = line_of(ValueError("a.csv: " + "x" * 10**6 + " is the end"))
    assert len(said) == 580
    assert said.startswith("a.csv: xxx")
    assert said.endswith("x is the end")


@pytest.mark.parametrize(("number", "stopped"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_an_exception_once(number, stopped, tmp_path):
    """Within the block; others while files are put in order are not heard; afterwards all is as before."""

    def work():
        with terminable(), resumable(tmp_path):
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)

    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(stopped) as ended:
        work()
    assert not hasattr(ended.value, "__notes__")  # nothing is kept yet
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(stopped) as ended:
        work()
    assert ended.value.__notes__ == [f"what is done is kept in {tmp_path}, the same command with --resume true goes on"]
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before
    assert Terminated().code == 143


@pytest.mark.parametrize(("number", "stopped"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_that_compiled_code_makes_another_error_of(number, stopped):
    """As PyTorch does where it is asked for the type of an object."""

    def work():
        with terminable():
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            except (KeyboardInterrupt, Terminated):
                error = ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'")
                error.add_note("what is done is kept")
                raise error from None

    with pytest.raises(stopped) as ended:
        work()
    assert ended.value.__notes__ == ["what is done is kept"]
    with pytest.raises(ValueError, match="bad input"), terminable():  # of no signal
        raise ValueError("bad input")
