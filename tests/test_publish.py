"""A model that is shared: its card, a zip of it, and the names by which it is found."""

import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from omniset import SetClassifier
from omniset.cli import main
from omniset.core import bounded
from omniset.runs import cards
from omniset.tables import point_clouds
from omniset.training.artefacts import files_of
from omniset.training.located import MODELS, located
from tampering import contents, put

NAMES = ["README.md", "config.json", "model.safetensors", "metrics.json"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a run of fit, beside the file that it read."""
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    sets = pd.DataFrame({"set": np.repeat(np.arange(40), 5), "CD3": rng.normal(size=200), "CD4": rng.normal(size=200)})
    sets.to_csv(folder / "secret.csv", index=False)
    pd.DataFrame({"set": range(40), "label": ["a", "b"] * 20}).to_csv(folder / "labels.csv", index=False)
    words = [f"{folder}/secret.csv", f"--target={folder}/labels.csv", f"--out={folder}/run", "--device=cpu"]
    assert main(["fit", *words, "--method=dissimilarity-linear", "--folds=3", "--progress=false"]) == 0
    return folder


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def test_the_card_has_what_the_report_has_and_no_names_of_files(run):
    text = (run / "README.md").read_text()
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    evaluation = json.loads((run / "report.json").read_text())["evaluation"]
    first = evaluation["scores"][0]["score"]
    shown = [row for row in evaluation["scores"] if row["method"] == "omniset" or row["score"] == first]
    metrics = list(dict.fromkeys(row["score"] for row in shown))
    tags = ["omniset", "SetClassifier"]
    assert yaml.safe_load(head) == {"license": "unknown", "library_name": "omniset", "tags": tags, "metrics": metrics}
    for row in shown:
        numbers = " | ".join(f"{row[key]:.3g}" for key in ("value", "low", "high"))
        assert f"| {row['score']} | {row['method']} | {numbers} | 40 |" in body
    facts = [f"| {name} |" for name in ("sets | 40", "features of an element | 2", "classes | 2")]
    facts += ["Column of the set: `set`\n", "Features: `CD3`, `CD4`\n", "Classes of label: `a`, `b`\n"]
    for part in (*facts, f"- {evaluation['verdict']}\n", "The model holds elements of sets that it learned from"):
        assert part in body
    assert "secret" not in text


def test_notes_that_name_files_are_left_out(run):
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(
        json.dumps(report | {"notes": ["new.h5ad: 3 cells have no counts", "0.5 of them"]})
    )
    assert "- 0.5 of them\n" in cards.card(run)
    assert "h5ad" not in cards.card(run)


def test_a_readme_that_is_not_the_runs_stays(made, tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    model = SetClassifier.load(made / "run")
    with pytest.raises(ValueError, match="holds what no run of Omniset has made"):
        model.save(tmp_path, replace=True)
    words = [f"{made}/secret.csv", f"--target={made}/labels.csv", f"--out={tmp_path}", "--replace=true"]
    assert main(["fit", *words]) == 2
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_zip_has_the_files_of_the_model_and_is_the_same_each_time(run, tmp_path, capsys, as_asked):
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.ckpt").write_text("theirs")
    found = []
    for name in ("a.zip", "b.zip"):
        assert main(["publish", str(run), f"--out={tmp_path}/{name}", "--license=CC-BY-4.0"]) == 0
        data = (tmp_path / name).read_bytes()
        found.append(hashlib.sha256(data).hexdigest())
        said = capsys.readouterr().out
        assert f"SHA-256 {found[-1]}" in said
        assert "warning: The model holds elements of sets" in said
        assert "license: cc-by-4.0; the hub takes those that it lists: https://" in said
    assert found[0] == found[1]
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert packed.namelist() == NAMES
        assert packed.read("README.md").decode().startswith('---\nlicense: "cc-by-4.0"\nlibrary_name: omniset\n')
    sets = [[[0.1, 1.0]], [[1.0, 0.3], [0.4, 0.2]]]
    proba = [SetClassifier.load(place).predict_proba(sets) for place in (run, tmp_path / "a.zip")]
    np.testing.assert_array_equal(*proba)
    assert main(["publish", str(run), f"--out={tmp_path}/a.zip"]) == 2
    assert "is there already" in capsys.readouterr().err


def unlicensed(folder):
    (folder / "README.md").write_text("# Mine\n")


def changed(folder):
    config, tensors = contents(folder)
    put(folder, config, tensors | {"network.weights": tensors["network.weights"] + 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unlicensed, r"README.md does not begin with ---, and a line `license: mit`"),
        (changed, "model.safetensors has not the weights that were saved"),
        (lambda folder: (folder / "config.json").unlink(), "is no folder of a model"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json is not of format"),
    ],
)
def test_what_is_not_published(change, said, run, tmp_path, capsys):
    change(run)
    assert main(["publish", str(run), f"--out={tmp_path}/a.zip", "--license=mit"]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("named", ["", "my own", "mit\nlibrary_name: other", "ﬁt", "-mit"])
def test_a_license_that_no_list_can_have(named, run, tmp_path, capsys):
    assert main(["publish", str(run), f"--out={tmp_path}/a.zip", f"--license={named}"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"license must be an identifier such as mit, or other, got .*; all: https://", said)
    assert said.count("\n") == 1
    assert not (tmp_path / "a.zip").exists()


def packed(path, names, text="x"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(name, text)
    return path


@pytest.mark.parametrize("name", ["../config.json", "/config.json", "a/config.json", "embedder/../../x.json", "a.pkl"])
def test_a_zip_with_other_names_is_not_unpacked(name, tmp_path):
    path = packed(tmp_path / "in" / "a.zip", ["config.json", name]) if (tmp_path / "in").mkdir() is None else None
    with pytest.raises(ValueError, match=r"a.zip holds '.*', which no model has: unpack it"):
        located(path)
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "a.zip"]


def test_zips_that_are_none_large_or_of_many_files(tmp_path, monkeypatch):
    (tmp_path / "a.zip").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ValueError, match="is neither the folder of a model nor a zip of one"):
        located(tmp_path / "a.zip")
    with pytest.raises(ValueError, match="which no model has"):
        located(packed(tmp_path / "b.zip", [f"a{i}.json" for i in range(40)]))
    monkeypatch.setattr(bounded, "WHOLE", 1000)
    with pytest.raises(ValueError, match="holds more than .*: unpack it, and give the folder"):
        located(packed(tmp_path / "c.zip", ["config.json"], "0" * 10**6))
    with pytest.raises(FileNotFoundError, match=r"d.zip is no folder of a model, such as fit writes: it has no config"):
        located(packed(tmp_path / "d.zip", ["metrics.json"]))


def test_names_in_a_folder_of_models_and_of_the_package(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("digits") == MODELS / "digits"
    monkeypatch.setenv("OMNISET_MODELS", str(tmp_path / "models"))
    assert main(["publish", str(run), "--out=ours.zip"]) == 0
    (tmp_path / "models").mkdir()
    (tmp_path / "ours.zip").rename(tmp_path / "models/ours.zip")
    assert sorted(p.name for p in located("ours").iterdir() if p.is_file()) == sorted(NAMES)
    assert located("digits") == MODELS / "digits"
    shutil.copytree(run, "models/digits")
    assert located("digits") == tmp_path / "models/digits"
    shutil.copytree(run, "digits")
    assert located("digits") == Path("digits")  # what is there is meant
    for name in ("fish", "../fish"):  # what begins with a dot is no name on the hub
        with pytest.raises(FileNotFoundError, match="fish is no folder of a model"):
            located(name)


def test_the_hub_is_asked_for_what_is_not_here(run, tmp_path, monkeypatch, capsys):
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision))
        assert {"*.json", "*.safetensors", "embedder/*.parquet"} < {*allow_patterns}
        if name == "ours/none":
            raise OSError("404\nnot found")
        return str(run)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    assert SetClassifier.load("ours/blood@v1.0").targets_ == ["label"]
    assert "model=ours/blood is not here: the Hugging Face hub is asked" in capsys.readouterr().out
    assert located("ours/blood") == run
    assert asked == [("ours/blood", "v1.0"), ("ours/blood", None)]
    with pytest.raises(ValueError, match="model=ours/none is not here, and the Hugging Face hub gives none: 404 not"):
        located("ours/none")
    shutil.copytree(run, "ours/none")
    assert located("ours/none") == Path("ours/none")
    for elsewhere in ("a/b/c", "/no/where", "./a/../b/c@d@e"):
        with pytest.raises(FileNotFoundError):
            located(elsewhere)
    assert len(asked) == 3
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'needs huggingface_hub, which is not installed: pip install "omniset\[hub'):
        located("ours/blood")


@pytest.mark.slow
def test_the_hub_as_huggingface_hub_asks_it(run, tmp_path):
    """A server of this machine with the three kinds of addresses that a download needs."""
    pytest.importorskip("huggingface_hub")
    asked = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.command, self.path))
            name, commit = self.path.rpartition("/")[2], "1" * 40
            there = (*NAMES, "theirs.pkl")
            if self.path == "/api/models/ours/blood/revision/v1":
                about = {"id": "ours/blood", "sha": commit, "siblings": [{"rfilename": name} for name in there]}
                data = json.dumps(about).encode()
            elif self.path.startswith(f"/api/models/ours/blood/tree/{commit}"):
                sizes = [len((run / name).read_bytes()) if name in NAMES else 1 for name in there]
                files = [
                    {"type": "file", "path": name, "size": size, "oid": "2" * 40}
                    for name, size in zip(there, sizes, strict=True)
                ]
                data = json.dumps(files).encode()
            elif self.path == f"/ours/blood/resolve/{commit}/{name}" and name in NAMES:
                data = (run / name).read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            etag = hashlib.sha256(data).hexdigest()
            for key, value in {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Content-Length": len(data)}.items():
                self.send_header(key, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
        load = "import omniset; print(omniset.SetClassifier.load('ours/blood@v1').targets_)"
        env = os.environ | here
        done = subprocess.run([sys.executable, "-c", load], env=env, cwd=tmp_path, capture_output=True, text=True)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['label']"
    assert not [path for _, path in asked if path.endswith(("theirs.pkl", "README.md"))]


def test_the_package_brings_a_model_of_digits(tmp_path, capsys):
    """Small, as what makes it has left it, and as good as its card says; its columns are those of a file."""
    folder = MODELS / "digits"
    assert sorted(["README.md", *files_of(folder)]) == sorted(path.name for path in folder.iterdir())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 500_000
    said = re.search(r"\| accuracy \| omniset \| ([\d.]+) ", (folder / "README.md").read_text())
    assert float(said[1]) > 0.95
    sets, labels = point_clouds.digits()
    elements, counts = sets[:100].to_ragged()
    rows = [(i, *xy, m) for i in range(100) for xy, m in zip(elements[i].tolist(), counts[i].tolist(), strict=True)]
    pd.DataFrame(rows, columns=["set", "x", "y", "multiplicity"]).to_csv(tmp_path / "d.csv", index=False)
    words = [f"{tmp_path}/d.csv", "--model=digits", f"--out={tmp_path}/p.csv", "--device=cpu"]
    assert main(["predict", *words]) == 0
    assert (pd.read_csv(tmp_path / "p.csv")["digit"] == labels[:100]).mean() > 0.95
