"""Runs that cannot end well: a training that diverges, a disk that is full, a checkpoint that is none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from omniset.cli import main
from omniset.runs import finite
from omniset.training.fit import PARTS, read_checkpoint, save_checkpoint
from test_contract import sets

SMALL = ["--method=ust", "--dim=8", "--num_heads=2", "--depth=1", "--device=cpu"]
SMALL += ["--progress=false"]


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets()
    return ["fit", "sets.csv", "--target=labels.csv", "--out=run", *SMALL]


@pytest.mark.parametrize("rate", ["1e6", "1e9"])
def test_a_fit_that_diverges(rate, words, capsys):
    """Is no success, and leaves no model that would give every set the first class."""
    assert main([*words, f"--learning_rate={rate}", "--epochs=40"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("omniset: error: the training diverged")
    assert " epoch " in said
    assert f"try a smaller learning rate (it was {float(rate):g})" in said
    assert not Path("run/config.json").exists()


@pytest.mark.parametrize("rate", ["1e+38", "0"])
def test_rates_out_of_their_bounds(rate, words, capsys):
    assert main([*words, f"--learning_rate={rate}"]) == 2
    assert f"learning_rate must be > 0 and <= 1e+09, got {rate}" in capsys.readouterr().err


def test_what_diverged_is_named():
    """The loss with its step, a loss of validation, or a weight."""
    finite.check_training(torch.tensor(3e38), 1, 1, 0.1)
    with pytest.raises(ValueError, match=r"diverged: the loss was nan in epoch 3, step 17; try .* \(it was 0.1\)"):
        finite.check_training(torch.tensor(float("nan")), 3, 17, 0.1)
    weights = {"a": torch.ones(2), "count": torch.tensor(3), "b": torch.tensor([1.0, -np.inf])}
    finite.check_epoch({"train_loss": 1.0}, list(weights.items())[:2], 2, 0.1)
    with pytest.raises(ValueError, match=r"diverged: val_loss was inf in epoch 2; try a smaller learning rate"):
        finite.check_epoch({"train_loss": 1.0, "val_loss": np.inf}, [], 2, 0.1)
    with pytest.raises(ValueError, match=r"diverged in epoch 2: b holds -inf; try a smaller learning rate"):
        finite.check_epoch({}, weights.items(), 2, 0.1)


def test_outputs_name_what_they_are_of():
    finite.require_finite_outputs(torch.ones(2, 3), ["a", "b"], "set")
    finite.require_finite_outputs(np.ones(0), [], "set")
    with pytest.raises(ValueError, match="cell 'b': the model's output is inf, it must be finite"):
        finite.require_finite_outputs(np.array([[0.0, 1.0], [2.0, np.inf]]), ["a", "b"], "cell")


def test_checkpoints_that_are_none(words, capsys):
    """Empty, cut, damaged, of another program: a line that names the file, and the old one is left alone."""
    assert main([*words, "--epochs=1"]) == 0
    path = Path("run/checkpoints/last.ckpt")
    whole = path.read_bytes()
    torch.save({"state_dict": {}, "epoch": 3}, "foreign.ckpt")
    torch.save([1, 2], "list.ckpt")
    changed = torch.load(path, weights_only=True)
    name = next(iter(changed["state_dict"]))
    changed["state_dict"][name] = torch.zeros(97)
    torch.save(changed, "changed.ckpt")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    bad = {"empty": b"", "cut": whole[:-100], "text": b"epoch 3", "flipped": bytes(flipped[: len(whole) // 2 + 9])}
    bad |= {name: Path(f"{name}.ckpt").read_bytes() for name in ("foreign", "list", "changed")}
    for name, content in bad.items():
        path.write_bytes(content)
        capsys.readouterr()
        assert main([*words, "--epochs=1", "--resume=true"]) == 2, name
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert "last.ckpt" in said
        assert "start anew, not resuming" in said
        assert path.read_bytes() == content


FULL = """
import resource, sys
sys.dont_write_bytecode = True  # it would be cut short, and read by others
import lightning_fabric, omniset.training.fit
from omniset.cli import main
for limit in (20_000, 200_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    print(main([*sys.argv[1:], f"--out=run-{limit}"]), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_disk_that_is_full(words, tmp_path):
    """Stands in for it: no file may be longer than a limit, below the size of a checkpoint, of weights, of a report."""
    command = [sys.executable, "-c", FULL, *(word for word in words if "--out" not in word), "--epochs=1", "--dim=64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line == "2" or line.startswith("omniset: error: ")]
    assert len(said) == 4, done.stderr
    for limit, error, code in zip((20_000, 200_000), said[::2], said[1::2], strict=True):
        assert (code, f"run-{limit}" in error) == ("2", True), error
        assert not [*Path(f"run-{limit}").rglob(".*-*")]
    assert not Path("run-20000/config.json").exists()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoints/last.ckpt"
    save_checkpoint(dict.fromkeys(PARTS, 0) | {"epoch": 1}, path)

    def fails(*_, **__):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 192 vs 86")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fails)
        with pytest.raises(OSError, match=r"the checkpoint could not be written whole: .*last.ckpt"):
            save_checkpoint({}, path)
    assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]
    assert read_checkpoint(path)["epoch"] == 1


class Code:
    """What a pickle may ask for: to be called when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_checkpoints_cannot_run_code(tmp_path):
    torch.save(dict.fromkeys(PARTS, 0) | {"epoch": Code(tmp_path / "run")}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="last.ckpt is empty, damaged or no checkpoint"):
        read_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_whose_numbers_were_changed(tmp_path):
    path = tmp_path / "last.ckpt"
    weights = {"a": torch.arange(100.0)}
    save_checkpoint(dict.fromkeys(PARTS, 0) | {"state_dict": weights}, path)
    content, numbers = path.read_bytes(), weights["a"].numpy().tobytes()
    assert content.count(numbers) == 1
    path.write_bytes(content.replace(numbers, numbers[:-4] + b"\xff\xff\xff\xff"))
    with pytest.raises(ValueError, match=r"last.ckpt is empty, damaged or no checkpoint: start anew"):
        read_checkpoint(path)
