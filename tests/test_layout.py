"""CONTRIBUTING's layout is an order: a package imports only from the lines above its own. And no piece is too long."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "omniset"
LONGEST = {"module": 600, "class": 400, "function": 60}  # lines; of functions those of code, as CONTRIBUTING has it
COMMANDS = ("runs/demo.py",)  # a command, which calls whatever it needs; it is imported by none


def test_packages_import_from_the_lines_above():
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1].splitlines()
    names = [(name, n) for n, line in enumerate(lines) for name in re.findall(r"(\w+)(?:/|\.py)", line)]
    places = {name: n for name, n in reversed(names) if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()}
    assert {path.stem for path in SOURCE.glob("[a-z]*") if path.name != "py.typed"} == set(places)
    wrong = []
    for path in SOURCE.glob("[a-z]*/**/*.py"):
        within = path.relative_to(SOURCE)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # what is imported at once
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("omniset"):
                _, _, package = node.module.partition(".")
                imported = [package.partition(".")[0]] if package else [alias.name for alias in node.names]
                below = [name for name in imported if places.get(name, 0) > places[within.parts[0]]]
                wrong += [f"{within} imports {name}" for name in below if within.as_posix() not in COMMANDS]
    assert wrong == []


def test_nothing_is_too_long():
    lengths = {piece: length for path in SOURCE.glob("**/*.py") for piece, length in _lengths(path)}
    assert {kind for kind, _, _ in lengths} == set(LONGEST)
    assert {piece: length for piece, length in lengths.items() if length > LONGEST[piece[0]]} == {}


def _lengths(path: Path) -> Iterator[tuple[tuple[str, str, str], int]]:
    """(kind, file, name) and number of lines of a module, its classes, and its functions."""
    text = path.read_text(encoding="utf-8")
    lines, file = text.splitlines(), path.relative_to(SOURCE).as_posix()
    yield ("module", file, ""), len(lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield ("class", file, node.name), len(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            code = set(range(node.lineno, node.end_lineno + 1))
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
                    code -= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
            yield ("function", file, f"{node.name}, line {node.lineno}"), sum(bool(lines[n - 1].strip()) for n in code)
