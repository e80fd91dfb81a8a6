"""Programs that are told to end while they learn: they say so, keep what is done, and can go on. Real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from omniset.genomes.simulate import simulate as simulate_genomes
from omniset.microbiomes import simulate as microbiomes
from omniset.regions import simulate as regions

ROOT = Path(__file__).parents[1]
SMALL = ["--dim=8", "--num_heads=2", "--device=cpu", "--progress=false"]
MANY = 100_000  # epochs: far more than there is time for


def sets(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"set": np.repeat([f"s{i}" for i in range(31)], 3), "x": rng.normal(size=93)})
    frame.to_csv(folder / "sets.csv", index=False)
    labels = pd.DataFrame({"set": [f"s{i}" for i in range(31)], "label": ["a", "b"] * 15 + ["a"]})
    labels.to_csv(folder / "labels.csv", index=False)
    return ["fit", "sets.csv", "--target=labels.csv", f"--epochs={MANY}", "--patience=null", "--depth=1"]


def genomes(folder):
    made = simulate_genomes(genomes=61, families=83, mags=2)
    pd.DataFrame(made.counts, made.genomes, made.families).to_csv(folder / "families.tsv", sep="\t")
    return ["genomes", "fit", "families.tsv", f"--epochs={MANY}", "--patience=null", "--depth=1"]


def cells(folder):
    rng = np.random.default_rng(0)
    names = [f"g{i}" for i in range(31)]
    var = pd.DataFrame(index=pd.Index(names, dtype=object))
    obs = pd.DataFrame(index=pd.Index([f"c{i}" for i in range(97)], dtype=object))
    anndata.AnnData(rng.poisson(2.0, (97, 31)).astype(np.float32), obs, var).write_h5ad(folder / "cells.h5ad")
    small = ["--embedding_dim=5", "--num_outputs=2", "--clusters=3", "--batch_size=32"]
    return ["cells", "fit", "cells.h5ad", *small, f"--epochs={MANY}"]


def brain(folder):
    regions.write(regions.simulate(34, 13), folder / "brain")
    files = [f"--{name}=brain/{name}.csv" for name in ("expression", "connectivity")]
    return ["regions", "fit", *files, "--coordinates=brain/regions.csv", "--method=attention", "--steps=1000"]


def reads(folder):
    microbiomes.write(microbiomes.simulate(4, 1), folder)
    words = ["--references=references.fasta", "--taxonomy=taxonomy.tsv", "--words=3,5", "--width=24", "--members=2"]
    return ["microbiomes", "fit", *words, f"--sequence_epochs={MANY}", "--sequence_batch=16", "--depth=1"]


def children(process):
    """Processes that this one has started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(words, folder, number, whom="parent"):
    """Fit until a checkpoint is there, send the signal, and give what the program says and its exit status."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "omniset", *words, "--out=run", *SMALL]
    kept = folder / "run"
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("last.ckpt")}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        while running.poll() is None:
            if {path: path.stat().st_mtime_ns for path in kept.rglob("last.ckpt")} != before:
                if whom == "group":
                    os.killpg(running.pid, number)
                else:
                    os.kill(running.pid if whom == "parent" else children(running.pid)[-1], number)
                break
            time.sleep(0.05)
        said = running.stderr.read()
        return said, running.wait()


@pytest.mark.parametrize("system", [sets, genomes, cells, brain, reads])
def test_sigterm_while_fitting(system, tmp_path):
    """As SLURM's time limit and `docker stop` send it: status 143, one line that says how to go on, nothing lost."""
    words = system(tmp_path)
    said, status = ended(words, tmp_path, signal.SIGTERM)
    assert status == 143, said
    assert said.splitlines()[-1] == (
        "omniset: ended by SIGTERM; what is done is kept in run, the same command with --resume true goes on"
    )
    assert "Traceback" not in said
    (kept,) = (tmp_path / "run").rglob("last.ckpt")
    done = torch.load(kept, weights_only=True)["epoch"]
    assert not (tmp_path / "run/config.json").exists()
    assert not [*(tmp_path / "run").rglob(".last-*")]
    if system is sets:  # how a checkpoint is read is the same for all
        said, status = ended([*words, "--resume=true"], tmp_path, signal.SIGINT)
        assert status == 130, said
        assert said.splitlines()[-1].startswith("omniset: interrupted; what is done is kept in run, the same command")
        assert torch.load(kept, weights_only=True)["epoch"] > done


@pytest.mark.parametrize(
    ("whom", "number", "code", "word"),
    [
        ("parent", signal.SIGTERM, 143, "ended by SIGTERM"),
        ("child", signal.SIGTERM, 143, "ended by SIGTERM"),
        ("group", signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_while_fitting_in_two_processes(whom, number, code, word, tmp_path):
    """Whichever of the processes it reaches: all end, and one line says how to go on."""
    words = [*sets(tmp_path), "--devices=2"]
    said, status = ended(words, tmp_path, number, whom)
    assert status == code, said
    assert said.count("\n") == 1, said
    assert said.startswith(f"omniset: {word}; what is done is kept in run")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert os.fsencode(tmp_path) not in os.fsencode(os.readlink(folder / "cwd"))
        except OSError:  # not ours, or gone
            continue


PROGRAM = """
import pandas as pd
from omniset import SetClassifier
labels = pd.read_csv("labels.csv").set_index("set")["label"]
SetClassifier(dim=8, num_heads=2, depth=1, epochs=100_000, patience=None, device="cpu", progress=False).fit(
    pd.read_csv("sets.csv"), labels, folder="run")
print("done")
"""


def test_sigterm_in_a_program_of_a_users(tmp_path):
    """Fit raises SystemExit: the next line, which would use a model that is not there, is not reached."""
    sets(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None and not [*tmp_path.rglob("last.ckpt")]:
            time.sleep(0.05)
        running.terminate()
        assert running.stdout.read() == ""
        assert running.wait() == 143
