"""What every system keeps to, whatever its sets are: ours, and one of a page that a newcomer might add."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from markupsafe import escape

import baskets
from omniset.cells.options import EmbedderOptions
from omniset.cli import main
from omniset.cli.sets import OF_PYTHON_ALONE
from omniset.estimators.options import SetOptions
from omniset.genomes import evaluate
from omniset.genomes import simulate as genomes
from omniset.genomes.options import CompleterOptions
from omniset.genomes.training import TRAINING
from omniset.microbiomes import simulate as microbiomes
from omniset.microbiomes.options import ClassifierOptions
from omniset.regions import data as regions
from omniset.regions.options import PredictorOptions
from omniset.training.fit import TrainingModule
from omniset.trials.comparison import HOLDS, SHORT, TIE, UNKNOWN

QUIET = "--device cpu --progress false"
TINY = f"--dim 8 --num_heads 2 --depth 1 {QUIET}"
HOLDS_LOCK = """
import sys, time
from omniset.runs.locks import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@dataclasses.dataclass
class System:
    """Commands of a system on small data, in a folder of its own."""

    name: str
    data: Callable[[], object]  # writes files
    fit: str
    use: str  # gives the file `used`
    evaluate: str
    options: type

    @property
    def words(self):
        return () if self.name == "sets" else (self.name,)

    def run(self, verb, folder, *more):
        words = [*self.words, *getattr(self, verb).split(), *more]
        return main(words, {"baskets": baskets.COMMANDS})


def sets():
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 7, 41)
    frame = pd.DataFrame({"set": np.repeat([f"s{i}" for i in range(41)], sizes)})
    label = np.repeat(rng.integers(0, 2, 41), sizes)
    frame["x"] = rng.normal(size=len(frame)) + label
    frame.to_csv("sets.csv", index=False)
    first = frame.assign(label=label).groupby("set", sort=False)["label"].first()
    pd.DataFrame({"set": first.index, "label": first.map({0: "a", 1: "b"})}).to_csv("labels.csv", index=False)


def cells():
    rng = np.random.default_rng(4)
    types = rng.integers(0, 3, 97)
    rates = rng.gamma(0.5, 2, (3, 31))[types] * (1 + (np.arange(97) % 2))[:, None]
    obs = pd.DataFrame({"type": [f"t{i}" for i in types], "batch": [f"b{i % 2}" for i in range(97)]})
    obs.index = pd.Index([f"cell{i}" for i in range(97)], dtype=object)
    var = pd.DataFrame(index=pd.Index([f"Gene{i}" for i in range(31)], dtype=object))
    anndata.AnnData(sp.csr_matrix(rng.poisson(rates).astype(np.float32)), obs, var).write_h5ad("all.h5ad")


def purchases():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 4, (41, 7))
    counts[:, 0] += 1
    prices = counts @ rng.uniform(1, 5, 7) - np.minimum(counts[:, 1], counts[:, 2])
    rows = [(f"b{b}", f"p{i}", n, prices[b]) for b, row in enumerate(counts) for i, n in enumerate(row) if n]
    pd.DataFrame(rows, columns=["basket", "product", "count", "price"]).to_csv("baskets.csv", index=False)


BRAIN = " ".join(f"--{name} brain/{name}.csv" for name in ("expression", "connectivity"))
READS = f"--references sim/references.fasta --taxonomy sim/taxonomy.tsv --region 515F-806R --epochs 2 {QUIET}"
SYSTEMS = [
    System(
        "sets",
        sets,
        f"fit sets.csv --target labels.csv --epochs 2 --folds 2 {TINY}",
        f"predict sets.csv --out used.csv {QUIET}",
        f"evaluate sets.csv --target labels.csv {QUIET}",
        SetOptions,
    ),
    System(
        "genomes",
        lambda: genomes.write("sim", genomes.simulate(60, 61, 3)),
        f"fit sim/families.tsv --taxonomy sim/taxonomy.tsv --epochs 2 --clade genus {QUIET}",
        f"complete sim/mags.tsv --out used {QUIET}",
        f"evaluate sim/families.tsv --taxonomy sim/taxonomy.tsv --seeds 1 --epochs 1 {QUIET}",
        CompleterOptions,
    ),
    System(
        "cells",
        cells,
        f"fit all.h5ad --batch_key batch --embedding_dim 8 --dim 8 --epochs 2 {QUIET}",
        f"embed all.h5ad --out used.tsv {QUIET}",
        f"evaluate all.h5ad --batch_key batch --label_key type --methods pca --seeds 1 --epochs 1 {QUIET}",
        EmbedderOptions,
    ),
    System(
        "regions",
        lambda: regions.write_tables(Path("brain"), regions.simulate(34, 13)),
        f"fit {BRAIN} --coordinates brain/regions.csv --method seed --epochs 6 --depth 1 --dim 8 {QUIET}",
        f"predict --out used.csv {QUIET}",
        f"evaluate {BRAIN} --coordinates brain/regions.csv --folds 2 --seeds 1 --model model --methods geometry "
        f"{QUIET}",
        PredictorOptions,
    ),
    System(
        "microbiomes",
        lambda: microbiomes.write(Path("sim"), microbiomes.simulate(3)),
        f"fit --lengths 100 {READS}",
        f"classify --table sim/table.tsv --sequences sim/sequences.fasta --out used {QUIET}",
        f"evaluate --methods omniset,naive-bayes --seeds 1 --sizes 64 --model model {READS}",
        ClassifierOptions,
    ),
    System(
        "baskets",
        purchases,
        f"fit baskets.csv --epochs 2 --dim 8 {QUIET}",
        "predict baskets.csv --out used.csv",
        f"evaluate baskets.csv --epochs 1 --dim 8 {QUIET}",
        baskets.BasketOptions,
    ),
]


@dataclasses.dataclass
class Done:
    """A system whose commands were run in a folder: model/, used*, evaluation/."""

    system: System
    folder: Path

    def json(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=SYSTEMS, ids=lambda system: system.name)
def done(request, tmp_path_factory):
    system, folder = request.param, tmp_path_factory.mktemp(request.param.name)
    with pytest.MonkeyPatch.context() as patch:
        asked = [c for c in evaluate.CONDITIONS if c.name in ("100/0", *evaluate.DECISIVE)]
        patch.setattr(evaluate, "CONDITIONS", asked)
        for about in TRAINING.values():
            patch.setitem(about, "epochs", 1)  # baselines of genomes need not be trained well
        patch.chdir(folder)
        system.data()
        assert system.run("fit", folder, "--out", "model") == 0
        assert system.run("use", folder, "--model", "model") == 0
        of_model = ["--model", "model"] if system.name in ("sets", "genomes") else []
        assert system.run("evaluate", folder, "--out", "evaluation", *of_model) == 0
        yield Done(system, folder)


def texts(path):
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {f.name: f.read_bytes() for f in files if f.suffix in (".csv", ".tsv")}


def used(done, folder="."):
    return texts(next(done.folder.joinpath(folder).glob("used*")))


@pytest.mark.filterwarnings("ignore")
def test_reports_have_one_frame(done):
    for folder, kind in (("model", "fit"), ("evaluation", "evaluation")):
        report = done.json(f"{folder}/report.json")
        assert (report["format"], report["version"]) == ("omniset report", 2)
        assert (report["system"], report["kind"]) == (done.system.name, kind)
        assert all(isinstance(text, str) for part in ("warnings", "notes") for text in report[part])
        assert report["provenance"]["omniset"]
        assert report["command"].startswith("omniset ")
        page = (done.folder / folder / "report.html").read_text(encoding="utf-8")
        assert next(iter(report)) == "verdict"
        assert f'<p class="lead">{escape(report["verdict"])}</p>' in page
        opening = page[page.index("<header>") : page.index("</header>")]
        assert opening.count('class="block note') <= 2
        assert "<svg" in opening
    assert done.json("evaluation/report.json")["evaluation"]["format"] == "omniset evaluation"


def test_cards_say_what_was_measured(done):
    """Vectors of cells, the seed for regions and the baskets have nothing beside them at fit, and say so."""
    card = (done.folder / "model" / "README.md").read_text(encoding="utf-8")
    found = re.search(r"## Metrics\n\n(.*)", card)[1]
    nothing = found == "None: `fit` kept nothing back to measure on; `evaluate` measures."
    assert nothing == (done.system.name in ("cells", "regions", "baskets"))
    assert nothing or done.json("model/metrics.json")["validation"]["verdict"] in card


def test_multiqc_collects_from_all(done):
    assert [*done.folder.joinpath("evaluation").glob("*_mqc.json")]
    for path in done.folder.rglob("*_mqc.json"):
        section = json.loads(path.read_text())
        assert section["parent_id"] == "omniset"
        assert section["data"]


def test_evaluations_have_one_schema(done):
    found = done.json("evaluation/metrics.json")
    assert (found["format"], found["version"], found["ours"]) == ("omniset evaluation", 1, "omniset")
    ends = {"value", "low", "high", "units", "how"}
    assert {"condition", "score", "method", *ends} == found["scores"][0].keys()
    assert {"condition", "score", "method", "other", *ends} == found["differences"][0].keys()
    assert "omniset" in {score["method"] for score in found["scores"]}
    rows = pd.read_csv(done.folder / "evaluation/scores.csv.gz")
    assert {"condition", "method"} <= {*rows}
    assert {*rows["method"]} == {score["method"] for score in found["scores"]}


def test_gates_face_the_best_baseline(done):
    found = done.json("evaluation/metrics.json")
    values = {(s["condition"], s["score"], s["method"]): s["value"] for s in found["scores"]}
    assert found["baselines"]
    faced = [gate for gate in found["gates"] if gate["opponent"] in found["baselines"] and "best" in gate["gate"]]
    assert faced
    for gate in found["gates"]:
        assert gate["verdict"] in (HOLDS, TIE, SHORT, UNKNOWN)
        assert (gate["verdict"] == UNKNOWN) == (gate["low"] is None)
    for gate in faced:
        others = [values.get((gate["condition"], gate["score"], name)) for name in found["baselines"]]
        others = [value for value in others if value is not None]
        best = min(others) if gate["asked"].startswith("<") else max(others)
        assert values[gate["condition"], gate["score"], gate["opponent"]] == best


def test_a_stored_model_gives_the_same_to_the_bit(done):
    first = used(done)
    assert first
    (was,) = done.folder.glob("used*")
    shutil.rmtree(was) if was.is_dir() else was.unlink()
    assert done.system.run("use", done.folder, "--model", "model") == 0
    assert used(done) == first


READ = "microbiomes classify sim/reads.fastq.gz --model model"  # other systems take any file of many as it is


def test_of_many_files_each_is_as_alone(done):
    if done.system.name in ("regions", "baskets"):  # one file after the other is all that they know
        return
    alone = used(done)
    if done.system.name == "microbiomes":
        assert main([*READ.split(), *QUIET.split(), "--out=alone"]) == 0
        assert main([*READ.split(), *QUIET.split(), "--out=many/used", "--scheduler=synchronous"]) == 0
        alone = texts(done.folder / "alone")
    else:
        out = next(done.folder.glob("used*")).name
        of_many = ["--model=model", f"--out=many/{out}", "--scheduler=synchronous"]
        assert done.system.run("use", done.folder, *of_many) == 0
    (made,) = [
        path for path in next(done.folder.glob("many/used*")).iterdir() if path.stem in ("sets", "mags", "all", "reads")
    ]
    assert [*texts(made).values()] == [*alone.values()]


def test_a_run_that_is_interrupted_goes_on_to_the_same_weights(done, monkeypatch, tmp_path, capsys):
    """After the first epoch, or step; the data are the same, and the options."""
    end, calls = TrainingModule.on_train_epoch_end, []

    def ending(module):
        end(module)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "on_train_epoch_end", ending)
        assert done.system.run("fit", done.folder, "--out", "again") == 130
    assert "--resume true goes on" in capsys.readouterr().err
    assert not (done.folder / "again/config.json").exists()
    with monkeypatch.context() as patch:  # to where none of the input is: other options are refused before it is read
        patch.chdir(tmp_path)
        again = str(done.folder / "again")
        assert done.system.run("fit", done.folder, "--out", again, "--resume", "true", "--learning_rate", "0.03") == 2
    assert re.search(r"cannot be resumed: learning_rate was .*, is 0.03. Start anew", capsys.readouterr().err)
    assert done.system.run("fit", done.folder, "--out", "again", "--resume", "true") == 0
    if (weights := done.json("again/config.json")["weights"]) != done.json("model/config.json")["weights"]:
        # In one process the last bits depend on what ran before, so that the first fit may differ from all others.
        assert done.system.run("fit", done.folder, "--out", "whole") == 0
        assert weights == done.json("whole/config.json")["weights"]
    shutil.rmtree(done.folder / "again")


def test_a_folder_is_of_one_run(done, capsys):
    (done.folder / "held").mkdir()
    command = [sys.executable, "-c", HOLDS_LOCK, str(done.folder / "held")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        assert done.system.run("fit", done.folder, "--out", "held") == 2
        process.kill()
    assert "held is in use by another run" in capsys.readouterr().err


def test_a_model_is_not_replaced_by_an_evaluation(done, capsys):
    of_model = ["--model", "model"] if done.system.name in ("sets", "genomes") else []
    assert done.system.run("evaluate", done.folder, "--out", "model", *of_model) == 2
    assert "out=model" in capsys.readouterr().err


def test_a_changed_weight_is_refused(done, capsys):
    shutil.copytree(done.folder / "model", done.folder / "changed", dirs_exist_ok=True)
    path = done.folder / "changed/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 64
    path.write_bytes(data)
    assert done.system.run("use", done.folder, "--model", "changed") == 2
    said = capsys.readouterr().err
    assert "model.safetensors" in said
    assert said.count("\n") == 1


def test_the_shell_has_the_options_of_python(done, capsys):
    with pytest.raises(SystemExit) as end:
        main([*done.system.words, "fit", "--help"], {"baskets": baskets.COMMANDS})
    assert end.value.code == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(done.system.options):
        alone = done.system.options is SetOptions and field.name in {*OF_PYTHON_ALONE} - {"level"}
        assert (f"--{field.name} " in said or f"--{field.name}:" in said) == (not alone), field.name
