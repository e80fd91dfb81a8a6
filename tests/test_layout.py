"""CONTRIBUTING's layout is an order: a package imports only from the lines above its own."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "omniset"
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
