"""The actions. Omniset runs as a command, since its libraries are newer than those of many releases of QIIME 2."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from q2_types.feature_data import DNAFASTAFormat, TSVTaxonomyFormat
from q2_types.feature_table import BIOMV210Format

from .formats import OmnisetTaxonClassifierDirectoryFormat

COMMAND = "OMNISET"  # environment variable: where the command is, unless `omniset` is on the PATH


def copy_model(source, target):
    """The files of the model from one folder to another."""
    for field in OmnisetTaxonClassifierDirectoryFormat._fields:
        name = getattr(OmnisetTaxonClassifierDirectoryFormat, field).pathspec
        shutil.copyfile(str(Path(source) / name), str(Path(target) / name))


def _omniset(*words):
    command = os.environ.get(COMMAND) or "omniset"
    whole = [command, "microbiomes", *map(str, words), "--progress", "false"]
    print(shlex.join(whole), flush=True)  # shown with --verbose, and kept in the log of what fails
    try:
        done = subprocess.run(whole, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise RuntimeError(
            f"{command} cannot be run ({error.strerror}): install Omniset in an environment of its own (pip install "
            f"'omniset[microbiomes]') and say where its command is, such as {COMMAND}=/path/to/environment/bin/omniset"
        ) from error
    print(done.stderr, flush=True)
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise RuntimeError(said[said.rfind("omniset: error:") :] if "omniset: error:" in said else said[-1000:])


def fit(
    reference_reads: DNAFASTAFormat,
    reference_taxonomy: TSVTaxonomyFormat,
    region: str = None,  # noqa: RUF013 (what QIIME 2 reads)
    rank: str = "genus",
    seed: int = 0,
) -> OmnisetTaxonClassifierDirectoryFormat:
    model = OmnisetTaxonClassifierDirectoryFormat()
    options = ["--rank", rank, "--seed", seed, *(["--region", region] if region else [])]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        _omniset("fit", "--references", reference_reads, "--taxonomy", reference_taxonomy, "--out", out, *options)
        copy_model(out, model.path)
    return model


def classify(
    reads: DNAFASTAFormat,
    table: BIOMV210Format,
    classifier: OmnisetTaxonClassifierDirectoryFormat,
    threshold: float = 0.7,
) -> TSVTaxonomyFormat:
    taxonomy = TSVTaxonomyFormat()
    inputs = ["--sequences", reads, "--table", table, "--model", classifier]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "classified"
        _omniset("classify", *inputs, "--out", out, "--threshold", threshold)
        shutil.copyfile(str(out / "taxonomy.tsv"), str(taxonomy))
    return taxonomy
