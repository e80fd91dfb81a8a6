"""What the README says is what results/ holds, and its Python runs."""

import re
from pathlib import Path

import pytest
from benchmarks.tables import README, render

ROOT = Path(__file__).parent.parent


def test_tables_are_those_of_the_results():
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- results:") == 4
    assert render(text) == text


def python_blocks():
    files = (README, ROOT / "docs" / "first-steps.md", ROOT / "docs" / "encoders.md")
    return [pytest.param(f, id=f.name) for f in files]


@pytest.mark.parametrize("path", python_blocks())
def test_its_python_runs(path, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, as a reader would."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), path.name, "exec"), {})
