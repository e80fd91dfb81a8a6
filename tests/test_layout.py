"""CONTRIBUTING's layout is an order, and a budget: what imports what, and how many lines there are."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "omniset"
LINES = 55_700  # of all files together
STARTERS = ("omniset", "omniset.__main__")  # which import whatever they name
FILES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.glob("**/*.py")
}


def layout() -> list[str]:
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1].splitlines()


def places() -> dict[str, int]:
    """The line of each package or module in the layout."""
    names = [(name, n) for n, line in enumerate(layout()) for name in re.findall(r"(\w+)(?:/|\.py)", line)]
    return {name: n for name, n in reversed(names) if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()}


def imported(path: Path) -> Iterator[str]:
    """Files of the package, wherever in a file they are imported, for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "omniset":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in FILES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)


GRAPH = {name: {other for other in imported(path) if other not in (name, "omniset")} for name, path in FILES.items()}


def test_packages_import_from_the_lines_above():
    of = places()
    assert {path.stem for path in SOURCE.glob("[a-z]*") if path.name != "py.typed"} == set(of)
    package = {name: name.split(".")[1] for name in FILES if name not in STARTERS}
    wrong = [(name, other) for name in package for other in GRAPH[name] if of[package[other]] > of[package[name]]]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_budgets_of_lines():
    def lines(path: Path) -> int:
        files = [f for f in path.glob("**/*") if "models" not in f.parts] if path.is_dir() else [path]  # data of one
        return sum(len(f.read_bytes().splitlines()) for f in files if f.is_file() and f.suffix != ".pyc")

    text = "\n".join(layout())
    budgets = {name: int(most) for name, most in re.findall(r"(\w+)(?:/|\.py) (\d+)", text)}
    there = {path.stem: path for path in SOURCE.glob("[a-z]*") if path.name != "py.typed"}
    assert there.keys() == budgets.keys()
    over = {name: lines(path) for name, path in there.items() if lines(path) > budgets[name]}
    assert over == {}
    assert lines(SOURCE) <= LINES
