"""What must not grow again: options of all commands, and parameters of functions that are not public."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from omniset import cli

SOURCE = Path(__file__).parents[1] / "src" / "omniset"
OPTIONS = 386  # of all commands together
PARAMETERS = 8
FOR_SYSTEMS = {  # what whoever adds a system calls (CONTRIBUTING): public, though in no list of names
    "options.py": ["option"],
    "report/frame.py": ["compose"],
    "report/run.py": ["working_folder"],
    "training/fit.py": ["fit"],
}


def commands():
    for verbs in cli._commands().values():
        yield from (verb for verb in verbs.values() if callable(verb)) if isinstance(verbs, dict) else (verbs,)


def test_options_of_all_commands():
    """Those of a command's signature, and those that it takes from classes of options."""

    def options(command):
        kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        own = {p.name for p in inspect.signature(command).parameters.values() if p.kind not in kinds}
        return own.union(*(taken.options() for taken in getattr(command, "taken", [])))

    assert sum(len(options(command)) for command in commands()) <= OPTIONS


def functions(tree: ast.AST, within: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Each function's name, behind those of the classes and functions that it stands in, and how much it is given."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield ".".join((*within, node.name)), len([one for one in given if one.arg not in ("self", "cls")])
        named = isinstance(node, ast.ClassDef | ast.FunctionDef)
        yield from functions(node, (*within, node.name) if named else within)


def public(tree: ast.Module) -> set[str]:
    """What a module lists in __all__."""
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return {name for one in lists for name in ast.literal_eval(one)}


def test_parameters_of_functions_that_are_not_public():
    """Objects travel whole: options as their class. Kernels, which autograd calls with tensors alone, are left out."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.glob("**/*.py")}
    known = set().union(*map(public, trees.values())) | {command.__name__ for command in commands()}
    for path, tree in trees.items():
        place = path.relative_to(SOURCE).as_posix()
        over = {name for name, number in functions(tree) if number > PARAMETERS}
        private = {name for name in over if name.split(".")[0] not in known}
        if not place.startswith("kernels/"):
            assert private <= {*FOR_SYSTEMS.get(place, [])}, f"{place}: more than {PARAMETERS} parameters"
