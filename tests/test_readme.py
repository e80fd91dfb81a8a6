"""What README and docs say is what results/ holds, and the README's Python runs."""

import re

from benchmarks.results import RESULTS
from benchmarks.tables import PAGES, TABLES, render

README = PAGES[0]


def test_tables_are_those_of_the_results():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    made = [name for name, (file, _) in TABLES.items() if (RESULTS / file).exists()]
    assert sorted(re.findall(r"<!-- results:(\w+) -->", "".join(texts))) == sorted(made)  # each once
    assert [render(text) for text in texts] == texts


def test_its_python_runs(tmp_path, monkeypatch):
    """All blocks, one after the other, as a reader would. (Those of the docs: test_docs.py.)"""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), README.name, "exec"), {})
