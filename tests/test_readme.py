"""What README and docs say is what results/ holds; all that can be pasted from README and first hour runs, and all that
each example prints.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.results import RESULTS
from benchmarks.tables import PAGES, TABLES, render

from omniset.cli import main
from omniset.cli.example import EXAMPLES

README = PAGES[0]


def test_tables_are_those_of_the_results():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    made = [name for name, (file, _) in TABLES.items() if (RESULTS / file).exists()]
    shown = [name for name in re.findall(r"<!-- results:(\w+) -->", "".join(texts)) if name in TABLES]
    assert sorted(shown) == sorted(made)  # each once
    assert [render(text) for text in texts] == texts


SMALL = {  # settings of commands that take long; only how much is computed differs
    "demo": ["--max_sets", "60", "--epochs", "1"],
    "fit": ["--folds", "2", "--epochs", "1"],
    "explain": ["--steps", "2"],
    "genomes fit": ["--epochs", "1"],
    "genomes evaluate": ["--epochs", "1"],
    "cells fit": ["--epochs", "1"],
    "regions fit": ["--method", "attention"],
    "regions explain": ["--nulls", "20"],
    "microbiomes fit": ["--epochs", "1"],
}


def commands(text: str) -> Iterator[list[str] | str]:
    """What a page has to paste, in order: Python, and the words of each line of shell."""
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            yield block
        else:
            lines = block.replace("\\\n", " ").splitlines()
            yield from (words for line in lines if (words := shlex.split(line, comments=True)))


def run(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    if words[0] in ("make", "pip"):
        return
    if words[0] == "cd":
        os.chdir(words[1])
        return
    words = words[words.index("omniset") + 1 :]
    name = " ".join(words[: 1 + (words[0] in ("genomes", "cells", "regions", "microbiomes"))])
    capfd.readouterr()
    small = SMALL.get(name, [])
    if name == "fit" and ("--method" in words or "states" in words):  # one network has no folds
        small = small[2:]
    code = main([*words, *small, *([] if name == "example" else ["--progress", "false"])])
    said = capfd.readouterr()
    assert code == 0, (words, said.err)
    assert "Traceback" not in said.err
    out = words[words.index("--out") + 1] if "--out" in words else words[1] if name == "example" else "demo-run"
    assert re.search(rf"(Written|written) to {re.escape(out)}\b", said.out), (words, said.out)
    assert Path(out).exists()
    assert name.split()[-1] not in ("fit", "evaluate") or Path(out, "report.html").is_file()
    assert name != "fit" or "states" in out or "label (2 classes)" in said.out, said.out  # not the names of patients


@pytest.mark.slow
@pytest.mark.usefixtures("as_asked")
@pytest.mark.filterwarnings("default")
def test_all_that_can_be_pasted_runs_in_one_folder(tmp_path, monkeypatch, capfd):
    """README and first hour from top to bottom: each command ends with 0, and nothing that one makes is lost."""
    monkeypatch.chdir(tmp_path)
    for page in (README, README.parent / "docs" / "first-hour.md"):
        names, made = {}, set()
        (tmp_path / page.stem).mkdir()
        monkeypatch.chdir(tmp_path / page.stem)
        for one in commands(page.read_text(encoding="utf-8")):
            exec(compile(one, page.name, "exec"), names) if isinstance(one, str) else run(one, capfd)
            models = {str(path.parent) for path in (tmp_path / page.stem).rglob("config.json")}
            assert made <= models
            made = models
        assert made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["survival", "slides"])  # .ci/wheel has the others
def test_what_an_example_prints_is_pasted_into_a_shell(name, tmp_path):
    """As a whole, and as large as it is: each command ends with 0, none reads the next, what to look at is there."""
    command = tmp_path / "bin" / "omniset"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m omniset "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}

    def paste(text: str) -> str:
        done = subprocess.run(
            ["bash", "-eu"],
            input=f"{text}\necho and the last line\n",
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        said, found, _ = done.stdout.rpartition("and the last line\n")
        assert found, done.stdout
        return said

    said = paste(f"omniset example {name}")
    lines = said.partition("Next:\n")[2].partition("\n\n")[0]
    assert lines.count("\n  omniset ") == len(EXAMPLES[name].commands)
    paste(lines)
    assert (tmp_path / name / re.search(r"^Then look at ([^\s:]+):", said, flags=re.MULTILINE)[1]).stat().st_size > 0
