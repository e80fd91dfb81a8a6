"""The tests that the wrappers state, without a Galaxy: commands filled in and outputs checked by Galaxy's own packages.

Galaxy itself is not run. Needs planemo's environment, which has galaxy-tool-util and Cheetah, and `omniset` on the
PATH. The files of the tests are made first, in test-data, by `omniset example` and fits.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from galaxy.tool_util.parser import get_tool_source
from galaxy.tool_util.verify.asserts import verify_assertions
from galaxy.util.template import fill_template

HERE = Path(__file__).parent
DATA = HERE / "test-data"
FILES = {
    "tables": ["sets.csv", "labels.csv", "held_out.csv"],
    "genomes": ["mags.tsv", "quality_report.tsv"],
    "cells": ["reference.h5ad", "new.h5ad"],
    "microbiomes": ["table.tsv", "sequences.fasta", "reads.fastq.gz"],
}
FITS = {
    "model_of_sets": "omniset fit tables/sets.csv --target tables/labels.csv --group patient",
    "model_of_genomes": "omniset genomes fit genomes/families.tsv --taxonomy genomes/taxonomy.tsv",
    "model_of_microbiomes": "omniset microbiomes fit --references microbiomes/references.fasta --region 515F-806R "
    "--taxonomy microbiomes/taxonomy.tsv",
}


class File(SimpleNamespace):
    """A dataset, as a template sees it."""

    def __str__(self) -> str:
        return self.path


def make_data() -> None:
    with tempfile.TemporaryDirectory() as place:
        for name in FILES:
            subprocess.run(["omniset", "example", name], cwd=place, check=True, stdout=subprocess.DEVNULL)
        DATA.mkdir(exist_ok=True)
        for name, files in FILES.items():
            for file in files:
                shutil.copyfile(Path(place, name, file), DATA / file)
        for name, command in FITS.items():
            subprocess.run([*command.split(), "--out", name, "--progress", "false"], cwd=place, check=True)
            shutil.make_archive(str(DATA / name), "zip", place, name)


def values_of(source, test) -> dict:
    """What the template is given: the defaults, then the test's own."""
    values = {}
    for one in source.parse_input_pages().page_sources[0].parse_input_sources():
        if one.parse_input_type() == "param":
            first = "auto" if one.get("type") == "select" else ""
            values[one.parse_name()] = one.get("value", first)
    for given in test["inputs"]:
        value = given["value"]
        if ftype := given["attributes"].get("ftype"):
            name = f"O'Brien's $x {value}"  # as users have it: the file itself lies in Galaxy's store
            value = File(path=str(DATA / value), ext=ftype, element_identifier=name)
        *within, name = given["name"].split("|")
        into = values.setdefault(within[0], {}) if within else values
        into[name] = [value] if name == "reads" else value
    return {name: SimpleNamespace(**value) if isinstance(value, dict) else value for name, value in values.items()}


def try_tool(path: Path) -> None:
    source = get_tool_source(str(path))
    outputs = {output.name: output for output in source.parse_outputs(None)[0].values()}
    for number, test in enumerate(source.parse_tests_to_dict()["tests"], 1):
        command = fill_template(source.parse_command(), context=values_of(source, test), python_template_version="3.8")
        command = command.replace("\n", " ")  # as Galaxy does
        with tempfile.TemporaryDirectory(prefix="a job ") as place:
            subprocess.run(["bash", "-c", command], cwd=place, check=True)
            for given in test["outputs"]:
                made = Path(place, outputs[given["name"]].from_work_dir)
                verify_assertions(made.read_bytes(), given["attributes"]["assert_list"])
            for output in outputs.values():
                assert Path(place, output.from_work_dir).stat().st_size, output.name
        print(f"{path.stem}, test {number}: {len(outputs)} outputs, as stated", flush=True)


if __name__ == "__main__":
    make_data()
    for tool in sorted(HERE.glob("omniset_*.xml")):
        if not sys.argv[1:] or tool.stem in sys.argv[1:]:
            try_tool(tool)
