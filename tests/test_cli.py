import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import omniset
from omniset import SetClassifier
from omniset.cli import main
from omniset.tables import point_clouds


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_error(tmp_path):
    words = ["example", "regions", f"--out={tmp_path}"]
    command = [sys.executable, "-W", "ignore", "-m", "omniset", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000 None"), ({"GOMP_SPINCOUNT": "7"}, "7 None"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None ACTIVE")],
)
def test_threads_that_wait_sleep_soon(given, expected):
    """Whoever sets how threads wait decides; and PyTorch, which reads it once, is not imported before it is set."""
    program = """
import os, sys
from omniset.cli import main
early = "torch" in sys.modules
try:
    main(["genomes", "no such verb"])
finally:
    print(early, os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"False {expected}", done.stderr


@pytest.mark.slow
def test_demo_end_to_end(tmp_path, capsys):
    assert main(["demo", f"--out={tmp_path}", "--epochs=2", "--max_sets=100", "--progress=false", "--device=cpu"]) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert list(metrics["accuracy"]) == ["whole sets", "exact gradients, 8-point shards", "first shard's gradient only"]
    for row in metrics["accuracy"].values():
        low, high = row["interval_95"]
        assert 0 <= low <= row["accuracy"] <= high <= 1
    assert list(metrics["shard_agreement"]) == ["1", "7", "64"]
    assert all(row["largest_difference"] < 1e-5 for row in metrics["shard_agreement"].values())
    assert metrics["provenance"]["seed"] == 0
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert "held-out digits" in (tmp_path / "report.html").read_text(encoding="utf-8")
    model = SetClassifier.load(tmp_path)
    assert model.shard_size == 8
    sets, labels = point_clouds.digits()
    assert model.predict(sets[:5]).shape == labels[:5].shape
    out = capsys.readouterr().out
    assert "first shard's gradient only" in out
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--out=/proc/nowhere"], "the folder cannot be written to"),
        (["demo", "--epochs=0"], "epochs must be >= 1, got 0"),
        (
            ["demo", "--epochs=many"],
            r"^omniset: error: epochs must be a whole number, got 'many' \(see omniset",
        ),
        (["demo", "--device=tpu"], "device must be 'auto' or 'cpu' or 'cuda' or 'mps', got 'tpu'"),
        (["cells", "fit", "a", "--encoder_options=x"], "encoder_options must be JSON in braces or null, got 'x'"),
        (["demo", "--epoch_s=1"], r"^omniset: error: there is no option '--epoch_s=1'; did you mean --epochs\?"),
        (["predict"], "sets"),
        (["compute"], "invalid choice|expected"),
    ],
)
def test_bad_input_is_exit_code_2_without_traceback(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as stop:  # of the parser
        code = stop.code
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert re.search(message, said), said


BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '1'] * 9)}]\n" for i in range(30))
NESTED = ": has more than 20 lists and mappings in each other"  # or PyYAML itself refuses it, as from 6.0.4 on
CONFIGS = {
    "deep": ("epochs: " + "[" * 100_000, f"c.yaml({NESTED}| is no YAML: .*nesting depth)"),
    "deep lines": ("\n".join(" " * i + f"k{i}:" for i in range(1000)), "c.yaml: has more than 20 lists and mappings"),
    "deep text": (f"epochs: '{'[' * 100_000}'", f"(c.yaml{NESTED}|epochs must be a whole number)"),
    "anchors": (BOMB, r"c.yaml: \*a0 stands for a value above: write that out"),
    "anchors in text": (f"epochs: {json.dumps(BOMB)}", r"c.yaml: \*a0 stands for a value above: write that out"),
    "many": ("".join(f"k{i}: 1\n" for i in range(20_000)), "c.yaml: has more than 20,000 values"),
    "large": ("#" * (5 << 20), "c.yaml is larger than 4.19 MB, at most that is read of such a file"),
    "itself": ("config: c.yaml", "c.yaml is named by config in a configuration: give each in the command, by --config"),
    "control": ('"a\\e[31m\\nb": 1', r"does not accept option 'a\\x1b\[31m b'"),
    "lines": ('out: "a folder\n\nof mine', "c.yaml is no YAML: while scanning a quoted scalar in"),
    "long": ("x" * 100_000, "Unexpected config: xxx"),
    "no text": (b"\xff\xfe", "c.yaml is not UTF-8 text"),
    "a list": ("- a\n- b\n", "Unexpected config: - a - b "),
    "a pipe": (None, "c.yaml is a pipe or a device, it must be a file"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_that_cannot_be_is_one_short_line(case, tmp_path):
    """In a process of its own: reading some of these ended it, or never came to an end."""
    content, message = CONFIGS[case]
    if content is None:
        os.mkfifo(tmp_path / "c.yaml")
    else:
        (tmp_path / "c.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    command = [sys.executable, "-m", "omniset", "demo", "--config", "c.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert re.match(f"omniset: error: .*{message}", done.stderr), done.stderr
    assert done.stderr.endswith("\n")
    assert done.stderr[:-1].isprintable()  # so one line
    assert len(done.stderr) <= 600
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


@pytest.mark.parametrize("words", [["--epochs", "[" * 100_000], ["--epochs", BOMB], ["--config", BOMB]])
def test_values_that_yaml_never_ends_with(words, tmp_path):
    command = [sys.executable, "-m", "omniset", "demo", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    ours = r"'.{40,50}': (has more than 20 lists|\*a0 stands for)"
    assert re.match(rf"omniset: error: ({ours}|epochs must be a whole number)", done.stderr), done.stderr
    assert len(done.stderr) <= 700
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_help_and_version_do_not_load_torch(capsys):
    code = (
        "import sys; from omniset.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ})
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert omniset.__version__ in capsys.readouterr().out


def test_public_names():
    for name in omniset.__all__:
        assert getattr(omniset, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = omniset.nonsense


def test_digits_are_the_images():
    from sklearn.datasets import load_digits

    batch, labels = point_clouds.digits()
    images, expected = load_digits(return_X_y=True)
    assert (labels == expected).all()
    for i in (0, 7, 1796):
        rebuilt = np.zeros((8, 8))
        elements, counts = batch[i : i + 1].to_ragged()
        for (x, y), count in zip(elements[0].tolist(), counts[0].tolist(), strict=True):
            rebuilt[round((y + 1) * 3.5), round((x + 1) * 3.5)] = count
        assert (rebuilt == images[i].reshape(8, 8)).all()


def test_variants_keep_shape_and_label():
    batch, labels = point_clouds.digits()
    more, repeated = point_clouds.with_variants(batch[:5], labels[:5], 2, seed=0)
    assert repeated.tolist() == labels[:5].tolist() * 3
    assert torch.equal(more.elements[:5], batch.elements[:5])
    assert torch.equal(more.multiplicity[10:], batch.multiplicity[:5])
    for i in range(5):  # one affine map per variant takes all its points there, and it is near the identity
        present = batch.multiplicity[i] > 0
        old, new = batch.elements[i][present], more.elements[10 + i][present]
        design = torch.cat([old, torch.ones(len(old), 1)], 1)
        fitted = torch.linalg.lstsq(design, new).solution
        assert (design @ fitted - new).abs().max() < 1e-5
        assert 0.01 < (fitted - torch.tensor([[1.0, 0], [0, 1], [0, 0]])).abs().max() < 0.7
