"""Several processes are one: the same weights, and metrics, told once. Run as a program: one of them."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.distributed_c10d as c10d

from omniset import SetBatch, SetClassifier
from omniset.cli import main
from omniset.core.sets import Sets
from omniset.encoders import build
from omniset.estimators import commands
from omniset.genomes import GenomeCompleter, simulate
from omniset.runs import processes
from omniset.training.data import EpochSampler, Lesson
from omniset.training.fit import TrainingModule, fit
from omniset.training.network import SetNetwork
from omniset.training.sets import SetBatches, SetModule
from test_contract import sets

ROOT = Path(__file__).parents[1]
SMALL = ["--method=ust", "--dim=8", "--num_heads=2", "--depth=1", "--device=cpu"]
FIT = ["--epochs=2", *SMALL]
GENOMES = ["--epochs=2", "--clade=genus", "--device=cpu", "--progress=false"]
# Training has 29 sets and validation 8, in batches of 7: the last batch of each is a single set.
CASES = {
    "classes": {"widths": (3, 2), "balanced": True, "epochs": 3},
    "large": {"widths": (2,), "epochs": 1, "max_elements": 5},
    "elements": {"widths": (1, 1), "epochs": 2, "of_elements": True},
    "stops": {"widths": (1,), "epochs": 9, "encoder": "deep-sets", "patience": 1, "learning_rate": 0.3},
}


class Line(TrainingModule):
    """Mean squared error: of a batch that is twice as large, the mean of two."""

    def training_step(self, batch, index):
        loss = (self.network(batch[:, :2]) - batch[:, 2:]).square().mean()
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", (self.network(batch[:, :2]) - batch[:, 2:]).square().mean(), batch_size=len(batch))


def line(batch_size):
    """Learned from 28 points, watched on 8; the weights in the end, and the history."""
    points = torch.as_tensor(np.random.default_rng(1).normal(size=(36, 3)))
    torch.manual_seed(2)
    network = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)]).double()  # one is never used
    network.forward = network[0].forward
    module = Line(network, 0.1, 0.01, 3, {})
    lesson = Lesson(
        lambda keys, training: points[[i for _, i in keys]], range(28), range(28, 36), batch_size=batch_size, seed=3
    )
    how = {"device": "cpu", "progress": False, "log": None, "folder": None, "resume": False}
    fit(module, lesson, epochs=3, patience=None, **how)
    return flat(module.network), module.history


class Interrupted(SetModule):
    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            raise KeyboardInterrupt


def train(
    folder,
    *,
    widths,
    epochs,
    encoder="ust",
    of_elements=False,
    balanced=False,
    patience=None,
    learning_rate=1e-2,
    max_elements=10**6,
    kind=SetModule,
    resume=False,
):
    """In float64: the weights in the end, the history, and what is needed to judge them."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 13, 37)
    bounds = np.concatenate([[0], sizes.cumsum()])
    rows = int(bounds[-1])
    elements, counts = torch.as_tensor(rng.normal(size=(rows, 2))), torch.as_tensor(rng.integers(0, 4, rows) * 1.0)
    sets = Sets.from_rows(elements, counts, bounds, [f"s{i}" for i in range(37)])
    number = rows if of_elements else 37
    classify = min(widths) > 1
    if classify:
        targets = torch.as_tensor(np.stack([rng.integers(-1, w, number) for w in widths], 1))
    else:
        targets = torch.as_tensor(rng.normal(size=(number, len(widths))))
        targets[::3, 0] = np.nan if of_elements else 0.5
    torch.manual_seed(1)
    made = build(encoder, input_dim=2, dim=8, depth=2, num_heads=2, num_inducing=3)
    network = SetNetwork(made, list(widths), of_elements).double()
    weights = [torch.arange(w).double() + 1 for w in widths] if balanced else None
    module = kind(
        network, classify, weights, learning_rate, 0.01, {"max_elements": max_elements}, 3, {"epochs": epochs}
    )
    positions = rng.permutation(37)
    make = SetBatches(sets, targets, of_elements, max_elements)
    data = Lesson(make, positions[:29], positions[29:], batch_size=7, seed=3)
    how = {"device": "cpu", "progress": False, "log": None, "folder": folder, "resume": resume}
    fit(module, data, epochs=epochs, patience=patience, **how)
    return module.network, module.history, data


def flat(network):
    return torch.cat([p.detach().flatten() for p in network.state_dict().values()])


def program(folder):
    """What each of two processes does."""
    folder, rank = Path(folder), os.environ["RANK"]
    for name, case in CASES.items():
        network, history, _ = train(folder / name, **case)
        torch.save({"weights": flat(network), "history": history}, folder / f"{name}-{rank}.pt")
    network, history, _ = train(folder / "interrupted", **CASES["classes"], resume=True)
    torch.save({"weights": flat(network), "history": history}, folder / f"interrupted-{rank}.pt")
    assert main(["fit", f"{folder}/sets.csv", f"--target={folder}/labels.csv", f"--out={folder}/fit-2", *FIT]) == 0
    weights, history = line(7)
    torch.save({"weights": weights, "history": history}, folder / f"line-{rank}.pt")
    assert main(["genomes", "fit", f"{folder}/sim/families.tsv", f"--out={folder}/genomes", *GENOMES]) == 0


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([f"{ROOT / 'src'}", f"{ROOT}"]), "OMP_NUM_THREADS": "1"}


def launched(*words, cwd):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, env=environment(), timeout=300)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("omniset.estimators.methods.TREES", 300)  # as the processes have it
    monkeypatch.chdir(tmp_path)
    sets()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "interrupted", **CASES["classes"], kind=Interrupted)
    simulate.write(tmp_path / "sim", simulate.simulate(30, 31, 1))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = launched(*torchrun, __file__, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = {name: train(None, **case) for name, case in CASES.items()}
    for name in [*CASES, "interrupted"]:
        network, history, data = alone["classes" if name == "interrupted" else name]
        # Both end with the weights of one process alone, up to the order in which rounded numbers are added.
        first, second = (torch.load(tmp_path / f"{name}-{rank}.pt") for rank in (0, 1))
        assert torch.equal(first["weights"], second["weights"])
        assert (first["weights"] - flat(network)).abs().max() < 1e-9, name
        assert first["history"] == second["history"]
        assert len(history) == len(first["history"])  # they stopped at the same epoch
        for ours, theirs in zip(history, first["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)
        if name == "classes":
            assert history[-1]["val_accuracy"] == pytest.approx(accuracy(network, data), rel=1e-6)
        if name == "stops":
            assert len(history) < CASES[name]["epochs"]
    weights, history = line(14)  # a step of both has a batch of each
    for first in (torch.load(tmp_path / f"line-{rank}.pt") for rank in (0, 1)):
        assert (first["weights"] - weights).abs().max() < 1e-12
        for ours, theirs in zip(history, first["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)
    assert len(GenomeCompleter.load(tmp_path / "genomes").history_) == 2
    assert done.stdout.count(f"Written to {tmp_path}/genomes") == 1
    capsys.readouterr()
    words = ["fit", f"{tmp_path}/sets.csv", f"--target={tmp_path}/labels.csv", f"--out={tmp_path}/fit-1", *FIT]
    with monkeypatch.context() as patch:  # one process opens no port
        patch.setattr(socket.socket, "bind", lambda _, address: pytest.fail(f"bound {address}"))
        assert main(words) == 0
    assert not torch.distributed.is_initialized()
    said = capsys.readouterr()
    assert done.stdout.count(said.out.replace("fit-1", "fit-2")) == 1
    assert epochs(done.stderr) == epochs(said.err)
    assert len(epochs(said.err)) == 2
    files = [sorted(str(p.relative_to(tmp_path / f)) for p in (tmp_path / f).rglob("*")) for f in ("fit-1", "fit-2")]
    assert files[0] == files[1]


def epochs(said):
    """Lines of progress, but for the times."""
    return [line.split("  (")[0] for line in said.splitlines() if line.startswith("epoch")]


def accuracy(network, data):
    """Of all labels of the validation sets, one set at a time."""
    right = known = 0
    for i in data.validation:
        elements, counts = data.make.sets[int(i)].read()
        with torch.no_grad():
            outputs = network.split(network(SetBatch(elements[None], counts[None])))
        for logits, code in zip(outputs, data.make.targets[int(i)].tolist(), strict=True):
            right, known = right + (code >= 0 and int(logits.argmax()) == code), known + (code >= 0)
    return right / known


def listening(process):
    """Addresses on which a process and its children wait for connections: (address, port) of /proc/net/tcp."""
    numbers, inodes = {process}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent in numbers or int(folder.name) in numbers:
                numbers.add(int(folder.name))
                inodes |= {os.readlink(link) for link in (folder / "fd").iterdir()}
    rows = [line.split() for f in ("tcp", "tcp6") for line in Path(f"/proc/net/{f}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

IN_PYTHON = """
import pickle, sys
import pandas as pd
from omniset import SetClassifier
frame, labels = pd.read_csv("sets.csv"), pd.read_csv("labels.csv")
model = SetClassifier("ust", dim=8, num_heads=2, depth=1, num_inducing=3, epochs=2, batch_size=5, devices=2,
                      device="cpu", progress=False)
model.fit(frame, labels.set_index("set")["label"], folder="run-python")
model.save("run-python")
"""


# Two commands in the processes that the first of them has started: what a fit leaves behind must not stop the next.
AT_THE_SHELL = f"""
import os
from omniset.cli import main
code = main(["fit", "sets.csv", "--target=labels.csv", "--out=run", "--devices=2", *{FIT}])
if "RANK" in os.environ:
    code = main(["fit", "sets.csv", "--target=labels.csv", "--out=again", "--devices=2", *{FIT}])
raise SystemExit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="ports are listed by Linux alone")
@pytest.mark.parametrize("program", [AT_THE_SHELL, IN_PYTHON], ids=["shell", "python"])
def test_nothing_listens_beyond_the_loopback(program, tmp_path, monkeypatch):
    """Of fit in two processes, started by the command, and by a program of the user's."""
    monkeypatch.chdir(tmp_path)
    sets()
    (tmp_path / "program.py").write_text(program)
    assert hasattr(c10d, "_tensor_to_object")
    (tmp_path / "sitecustomize.py").write_text(UNPICKLED)
    places = environment()
    places["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    command = [sys.executable, "program.py"]
    found = set()
    with subprocess.Popen(command, cwd=tmp_path, env=places, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            found |= listening(running.pid)
            time.sleep(0.1)
        assert running.returncode == 0, running.stderr.read()
    assert found, "two processes that never met"
    assert found <= LOOPBACK
    done = ["run/report.html", "again/report.html"] if program == AT_THE_SHELL else ["run-python/config.json"]
    assert all((tmp_path / name).exists() for name in done)


def test_the_first_of_several_processes_saves(tmp_path, monkeypatch):
    small = {"dim": 8, "num_heads": 2, "depth": 1, "epochs": 1, "progress": False, "device": "cpu"}
    model = SetClassifier("ust", **small).fit([[[0.0]], [[1.0]]] * 5, ["a", "b"] * 5).set_params(devices=2)
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        model.save(tmp_path / rank)
    assert [path.parent.name for path in tmp_path.glob("*/config.json")] == ["0"]


# What torch has to send objects by unpickles what arrives: a call of it ends the run.
UNPICKLED = """
import torch.distributed.distributed_c10d as c10d

def refuse(*_, **__):
    raise SystemExit(99)

c10d._tensor_to_object = refuse
"""


MET = """
import os, signal, time
from pathlib import Path
import torch
from omniset.runs import meeting, processes
from omniset.runs.files import replacing

class Code:
    def __reduce__(self):
        return os.mkdir, ("run",)

if not processes.start(2, 1):
    rank = int(os.environ["RANK"])
    meeting.connect(rank, 2, "gloo")
    if rank == 0:
        meeting.broadcast(Code())
    else:
        try:
            meeting.broadcast(None)
        except Exception:
            print("refused", flush=True)
    value = {"a": [1.5, None, "x"], "b": torch.arange(3)}
    other = meeting.broadcast(value if rank == 0 else None)
    if rank:
        print("same" if str(other) == str(value) else other, flush=True)
    with processes.one_voice(2, 1) as first:
        torch.distributed.barrier()
        print("here")
        if first:
            with replacing("half.txt"):
                torch.distributed.all_reduce(torch.ones(1))
        while not list(Path().glob(".half-*")):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_two_processes_send_and_how_they_end(tmp_path):
    """A pickle that would write a file is refused by the one that receives it; if one is killed, the run ends."""
    (tmp_path / "met.py").write_text(MET)
    done = launched("met.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["refused", "same", "here"]
    assert "omniset: error: process 1 of 2 was killed (SIGKILL)" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["met.py"]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("number", [0, 1, 11, 13])
def test_shares_of_batches(number, world):
    """Nothing twice, nothing lost, as many steps in each process, and the batches of one process together."""
    lesson = Lesson(lambda keys, training: keys, np.arange(number), [], batch_size=4, seed=7)
    shares = [lesson.loader(True, rank, world) for rank in range(world)]
    sampler = EpochSampler(np.arange(number), 7)
    for epoch in (0, 1):
        for one in (sampler, *shares):
            one.set_epoch(epoch)
        order = list(sampler)
        for step, batch in enumerate(zip(*shares, strict=True)):
            assert sorted(key for share in batch for key in share) == sorted(order[4 * step : 4 * step + 4])
        assert {len(share) for share in shares} == {-(-number // 4)}


@pytest.fixture
def second(monkeypatch):
    """The second of two processes of torchrun."""
    names = {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "GRACE", 0.0)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (ValueError("line 3"), ValueError("line 3")),
        (KeyboardInterrupt(), SystemExit(130)),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), SystemExit(143)),
        (RuntimeError("a defect"), RuntimeError("a defect")),
    ],
)
def test_the_second_process_is_silent(error, becomes, second, capfd):
    before = signal.getsignal(signal.SIGTERM)

    def work():
        with processes.one_voice(1, 1) as first:
            assert not first
            print("said")
            print("warned", file=sys.stderr)
            raise error

    with pytest.raises(type(becomes)) as raised:
        work()
    assert str(raised.value) == str(becomes)
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices=0"], "devices must be >= 1, got 0"),
        (["--devices=100000"], "4 for each processor here, got 100000"),
        (["--num_nodes=-1"], "num_nodes must be >= 1, got -1"),
        (["--devices=2", "--num_nodes=2"], "num_nodes=2: start the command on each machine, with torchrun or"),
    ],
)
def test_bad_options(words, message, tmp_path, capsys):
    try:
        code = main(["fit", "sets.csv", "--out", f"{tmp_path}/run", "--target=labels.csv", *SMALL, *words])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    assert code == 2
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "run").exists()


def test_a_layout_that_was_not_started(second, monkeypatch):
    assert processes.layout(1, 1) == processes.layout(2, 1) == (2, 1)
    assert not processes.start(2, 1)  # it is one of them
    with pytest.raises(
        ValueError, match="devices=3 and num_nodes=1, but torchrun has started 2 processes on each of 1"
    ):
        processes.layout(3, 1)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    for name, value in {"PROCID": "1", "NTASKS": "6", "NTASKS_PER_NODE": "3", "NNODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert processes.layout(3, 2) == (3, 2)
    assert processes.layout(1, 1) == (1, 1)  # a task for itself
    assert not processes.start(3, 2)
    with pytest.raises(
        ValueError, match="devices=6 and num_nodes=1 must be what SLURM was told, got --ntasks-per-node=3"
    ):
        processes.layout(6, 1)


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    processes.check(torch.device("cuda"), 2, 1)
    with pytest.raises(ValueError, match="devices must be at most 2, the GPUs of this machine, got 3"):
        processes.check(torch.device("cuda"), 3, 1)
    with pytest.raises(ValueError, match="devices must be 1 on 'mps', got 2"):
        processes.check(torch.device("mps"), 2, 1)


def test_what_has_no_use_for_torchrun_says_so(monkeypatch):
    processes.require_alone("why")
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="torchrun has started 6 processes, and one is needed: why"):
        processes.require_alone("why")
    with pytest.raises(ValueError, match="a model is used in one process"):
        commands.load(Path("model"), {})
    with pytest.raises(ValueError, match="method='auto' learns in one process, got devices=2, num_nodes=3"):
        SetClassifier(device="cpu").check_arguments()


if __name__ == "__main__":
    program(*sys.argv[1:])
