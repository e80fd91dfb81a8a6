"""The plugin within the framework. `EXAMPLE`: what `omniset example microbiomes` wrote, and a model (.ci/qiime2)."""

import json
import os
import shutil
from pathlib import Path

import pytest
from q2_omniset.formats import (
    OmnisetModelFolderFormat,
    OmnisetTaxonClassifier,
    OmnisetTaxonClassifierDirectoryFormat,
)
from qiime2 import Artifact
from qiime2.plugin import ValidationError
from qiime2.plugins import omniset as plugin

EXAMPLE = Path(os.environ["EXAMPLE"])
FILES = ["config.json", "metrics.json", "model.safetensors", "vocabulary.parquet"]


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(EXAMPLE / "model", tmp_path / "model"))


def imported(model):
    return Artifact.import_data(OmnisetTaxonClassifier, str(model), OmnisetModelFolderFormat)


def test_the_folder_of_the_command_is_imported_without_its_reports(model):
    (model / "report.html").write_text("<p>")
    found = Path(str(imported(model).view(OmnisetTaxonClassifierDirectoryFormat)))
    assert sorted(path.name for path in found.iterdir()) == FILES
    for name in FILES:
        assert (found / name).read_bytes() == (model / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_such_model_is_refused(model, name):
    whole = (model / name).read_bytes()
    other = json.dumps({"format": "omniset-model", "class": "CellEmbedder"}).encode()
    for content in (None, b"", whole[: len(whole) // 2], *([other] if name == "config.json" else [])):
        (model / name).unlink()
        if content is not None:
            (model / name).write_bytes(content)
        with pytest.raises(ValidationError):
            imported(model)
        (model / name).write_bytes(whole)
    imported(model)


def test_errors_are_those_of_the_command(model, monkeypatch):
    reads = Artifact.import_data("FeatureData[Sequence]", str(EXAMPLE / "sequences.fasta"))
    table = Artifact.import_data("FeatureTable[Frequency]", str(EXAMPLE / "table.biom"), "BIOMV210Format")
    config = json.loads((model / "config.json").read_text())
    config["arguments"]["threshold"] = 0.9  # which the weights know better
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="^omniset: error: .*was changed after the model was saved"):
        plugin.actions.classify(reads, table, imported(model))
    monkeypatch.setenv("OMNISET", "/nowhere/omniset")
    with pytest.raises(RuntimeError, match="/nowhere/omniset cannot be run .*OMNISET=/path"):
        plugin.actions.classify(reads, table, imported(model))
