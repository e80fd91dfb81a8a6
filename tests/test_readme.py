"""What the README says is what results/ holds, and its Python runs."""

import re

from benchmarks.tables import README, render


def test_tables_are_those_of_the_results():
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- results:") == 5
    assert render(text) == text


def test_its_python_runs(tmp_path, monkeypatch):
    """All blocks, one after the other, as a reader would. (Those of the docs: test_docs.py.)"""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), README.name, "exec"), {})
