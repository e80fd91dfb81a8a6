"""Artefacts: what was saved is what is loaded, or a line says why not."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import omniset
from omniset import SetClassifier, SetRegressor
from omniset.cells import CellEmbedder, CellPerturber
from omniset.cli import main
from omniset.genomes import GenomeCompleter
from omniset.genomes.simulate import simulate as simulate_genomes
from omniset.microbiomes import TaxonClassifier
from omniset.microbiomes.simulate import simulate as simulate_microbiomes
from omniset.regions import ConnectivityPredictor
from omniset.regions.data import simulate as simulate_regions
from omniset.runs.files import provenance
from omniset.training import artefacts
from tampering import assert_refuses_tampering, contents, put, refused

SETS = [[[0.1, 1.0]], [[1.0, 0.3], [0.4, 0.2]], [[0.5, 0.1]]] * 5
SMALL = {"dim": 8, "num_heads": 2, "depth": 1, "num_inducing": 3, "epochs": 1, "progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    SetClassifier("ust", **SMALL).fit(SETS, ["a", "b", "c"] * 5).save(folder)
    return folder


@pytest.fixture
def artefact(saved, tmp_path):
    """A copy that may be changed."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def genomes():
    made = simulate_genomes(genomes=61, families=83, mags=2)
    few = {"epochs": 1, "progress": False, "device": "cpu"}
    return GenomeCompleter(**few).fit(pd.DataFrame(made.counts, made.genomes, made.families))


def cells():
    rng = np.random.default_rng(0)
    text = [pd.Index([f"{kind}{i}" for i in range(n)], dtype=object) for kind, n in (("c", 61), ("g", 23))]
    counts = rng.poisson(2.0, (61, 23)).astype(np.float32)
    few = {"embedding_dim": 5, "dim": 8, "epochs": 1}
    adata = anndata.AnnData(counts, pd.DataFrame(index=text[0]), pd.DataFrame(index=text[1]))
    return CellEmbedder(**few, batch_size=32, progress=False, device="cpu").fit(adata)


def perturber():
    """Two donors of one type, before and after."""
    rng = np.random.default_rng(0)
    text = [pd.Index([f"{kind}{i}" for i in range(n)], dtype=object) for kind, n in (("c", 40), ("g", 23))]
    obs = pd.DataFrame({"condition": ["control", "treated"] * 20, "cell_type": "t"}, text[0], dtype=object)
    obs["donor"] = np.repeat(np.array(["a", "b"], dtype=object), 20)
    adata = anndata.AnnData(rng.poisson(2.0, (40, 23)).astype(np.float32), obs, pd.DataFrame(index=text[1]))
    return CellPerturber(progress=False, device="cpu").fit(adata, donor="donor")


def brain(**options):
    options = options or {"method": "attention"}
    return ConnectivityPredictor(progress=False, device="cpu", **options).fit(simulate_regions(34, 13))


def seed():
    """The network of the original, whose sizes are options."""
    return brain(method="seed", dim=8, depth=1, epochs=1)


def reads():
    made = simulate_microbiomes(3, 1)
    return TaxonClassifier(epochs=1, lengths=(100,), progress=False, device="cpu").fit(made.references, made.lineages)


@pytest.mark.parametrize("make", [genomes, cells, perturber, brain, seed, reads])
def test_tampering_is_refused(make, tmp_path, monkeypatch):
    for name, value in {"KMERS": (3, 3), "WIDTH": 12, "MEMBERS": 2}.items():
        monkeypatch.setattr(TaxonClassifier, name, value)
    model = make()
    model.save(tmp_path / "model")
    assert_refuses_tampering(type(model).load, tmp_path / "model")


def test_tampering_with_a_model_of_sets_is_refused(artefact):
    assert_refuses_tampering(SetClassifier.load, artefact)


def test_classes_are_as_many_as_outputs(artefact):
    config, tensors = contents(artefact)
    put(artefact, config | {"fitted": config["fitted"] | {"classes": [["a", "b", "c", "d"]]}}, tensors)
    refused(SetClassifier.load, artefact, r"fitted.classes must be as many as the outputs of each target, \[3\]")
    put(artefact, config | {"fitted": config["fitted"] | {"features": ["x"]}}, tensors)
    refused(SetClassifier.load, artefact, "fitted.features must have 2 entries, got 1")


def test_arguments_against_their_bounds(artefact):
    config, tensors = contents(artefact)
    put(artefact, config | {"arguments": config["arguments"] | {"batch_size": -1}}, tensors)
    refused(SetClassifier.load, artefact, "does not describe a SetClassifier: batch_size must be >= 1, got -1")


@pytest.mark.parametrize("said", [b"no JSON", b"\xff", b"[]", b'{"index_columns": null}'])
def test_what_a_table_says_to_pandas_is_not_looked_at(said, tmp_path):
    table = pa.table({"gene": ["A", "B"]}).replace_schema_metadata({b"pandas": said})
    pq.write_table(table, tmp_path / "vocabulary.parquet")
    config = {"tables": {"vocabulary": hashlib.sha256((tmp_path / "vocabulary.parquet").read_bytes()).hexdigest()}}
    assert artefacts.load_table(tmp_path, config, "vocabulary", ["gene"]).to_dict("list") == {"gene": ["A", "B"]}
    with pytest.raises(ValueError, match="vocabulary.parquet is not the table that the model was saved with"):
        artefacts.load_table(tmp_path, {"tables": {}}, "vocabulary")


def test_a_path_of_an_artefact_is_never_used(artefact, tmp_path):
    """Not where intermediate results wait; and none is written."""
    config, tensors = contents(artefact)
    put(artefact, config | {"arguments": config["arguments"] | {"store": f"disk:{tmp_path / 'theirs'}"}}, tensors)
    model = SetClassifier.load(artefact)
    assert model.store == "disk"
    model.set_params(shard_size=1).predict(SETS)  # waits on disk, elsewhere
    ours = SetRegressor("ust", **SMALL, store=f"disk:{tmp_path}", shard_size=1).fit(SETS, range(15))
    ours.save(tmp_path / "ours")
    assert str(tmp_path) not in (tmp_path / "ours/config.json").read_text()


def test_weights_that_are_not_finite(artefact, tmp_path):
    """Neither saved nor loaded, even where the digest is of them."""
    model = SetClassifier.load(artefact)
    model.network_.head.weight.data[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"the model cannot be saved: network.head.weight holds nan"):
        model.save(tmp_path / "nan")
    assert not (tmp_path / "nan/config.json").exists()
    config, tensors = contents(artefact)
    broken = tensors | {"network.head.weight": tensors["network.head.weight"] * float("inf")}
    put(artefact, config | {"weights": artefacts.digest(broken)}, broken)
    refused(SetClassifier.load, artefact, r"model.safetensors: network.head.weight holds -?(inf|nan)")


def test_outputs_that_are_not_finite():
    """Features that are finite, and too large for the network to be so."""
    model = SetRegressor(**SMALL, encoder="deep-sets").fit(SETS, range(15))
    with pytest.raises(ValueError, match=r"set 1: the model's output is (-?inf|nan), it must be finite"):
        model.predict([SETS[0], [[3e38, -3e38], [3e38, 3e38]]])


def test_the_digest_is_of_names_types_shapes_and_values():
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True])}
    found = artefacts.digest(tensors)
    assert found == artefacts.digest(dict(reversed(tensors.items())))
    others = [{"a": tensors["a"].reshape(3, 2)}, {"a": tensors["a"].double()}, {"a": tensors["a"] + 1}]
    others += [{"a": tensors["a"].view(torch.int32)}, {"b": torch.tensor([1], dtype=torch.uint8)}]
    assert len({found, *(artefacts.digest(tensors | other) for other in others)}) == 6
    assert found != artefacts.digest({"c": tensors["a"], "b": tensors["b"]})


class Many(nn.Module):
    """More parts than there is time for, unless somebody stops it."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList()
        for _ in range(10**7):
            self.parts.append(nn.Linear(1, 1))


def test_a_network_of_more_tensors_than_are_stored_is_not_built(artefact):
    weights = artefacts.Weights(artefact, contents(artefact)[0])
    with pytest.raises(ValueError, match=r"config.json describes no network: it asks for more tensors than the"):
        weights.build(Many)
    with pytest.raises(ValueError, match="does not fit its config.json: .*weight is missing"):
        weights.build(lambda: nn.Linear(10**9, 10**9))  # 4 EB


def test_the_command_says_it_in_one_line(artefact, tmp_path, capsys):
    config, tensors = contents(artefact)
    (tmp_path / "sets.csv").write_text("set,x,y\na,1,2\n")
    words = ["predict", f"{tmp_path}/sets.csv", f"--model={artefact}", f"--out={tmp_path}/p.csv"]
    for text in (json.dumps(config | {"class": None}), "[" * 200_000, '{"format": "omniset-model"}'):
        put(artefact, text, tensors)
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_commit_is_that_of_the_package_and_says_where_files_differ(tmp_path, monkeypatch):
    def git(*words):
        author = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        return subprocess.run(("git", *author, *words), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def commit():
        return provenance()["commit"]

    package = tmp_path / "src" / "omniset"
    for name in ("src/omniset/__init__.py", "src/omniset/cells/data.py", "results/found.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(omniset, "__file__", str(package / "__init__.py"))
    git("init", "-q")
    assert commit() is None
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD").strip()
    assert commit() == head
    (tmp_path / "results" / "found.json").write_text("2")
    assert commit() == head
    (package / "cells" / "data.py").write_text("2")
    assert commit() == f"{head}+"
