"""The options of every command, as the parser of the command line has them: the directive `command-options`.

```{command-options} genomes fit
```
"""

from __future__ import annotations

import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonargparse
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from omniset.cli import main

UNTITLED = ("positional arguments", "options")  # what matters first
LAST = "help and configuration"
KINDS = {Path: "path", str: "text", int: "integer", float: "number", bool: "true or false"}


@dataclass
class Option:
    """One option of a command. `default` is None for what has to be given."""

    name: str
    positional: bool
    kind: str
    default: str | None
    text: str


def commands() -> dict[str, dict[str, list[Option]]]:
    """All commands, in the order of `omniset --help`, and their options by the titles that help has."""
    return _of(jsonargparse.capture_parser(main, []), "")


def _of(parser: Any, group: str) -> dict[str, dict[str, list[Option]]]:
    found = {}
    for name, command in parser._subcommands_action.choices.items():
        if command._subcommands_action is not None:
            found |= _of(command, f"{group}{name} ")
            continue
        parts = {part.title: part._group_actions for part in command._action_groups if part.title != LAST}
        found[group + name] = {
            title: [_option(a) for a in actions if a.dest not in ("help", "config", "print_config")]
            for title, actions in parts.items()
        }
    return found


def _option(action: Any) -> Option:
    positional = not action.option_strings
    name = action.dest if positional else action.option_strings[-1]
    default = None if positional else _written(action.default)
    kind = spoken(action._typehint) + (", one or more" if action.nargs == "+" else "")
    return Option(name, positional, kind, default, action.help)


def _written(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, tuple):
        return f"[{','.join(f'{number:g}' for number in value)}]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def spoken(hint: Any) -> str:
    """A type in words.

    >>> spoken(int | None), spoken(Literal["a", "b"])
    ('integer or null', 'a or b')
    """
    origin = typing.get_origin(hint)
    if origin is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    if origin in (typing.Union, types.UnionType):
        parts = [spoken(part) for part in typing.get_args(hint) if part is not type(None)]
        return " or ".join([*parts, "null"] if type(None) in typing.get_args(hint) else parts)
    if origin is tuple:
        return f"[{','.join(spoken(part) for part in typing.get_args(hint))}]"
    return "JSON object" if origin is dict else KINDS[hint]


def markdown(command: str, parts: dict[str, list[Option]]) -> list[str]:
    """The lines of the directive."""
    lines = [f":::{{program}} omniset {command}", ":::", ""]
    for title, options in parts.items():
        if title not in UNTITLED and options:
            lines += [f":::{{rubric}} {title.capitalize()}", ":::", ""]
        lines += [line for option in options for line in _lines(option)]
    return lines


def _lines(option: Option) -> list[str]:
    said = "required" if option.default is None else f"default: `{option.default}`"
    name = option.name if option.positional else f"{option.name} {option.name.removeprefix('--').upper()}"
    return [f":::{{option}} {name}", "", f"{_escaped(option.text)}", "", f"*{option.kind}; {said}*", ":::", ""]


def _escaped(text: str) -> str:
    """Plain text, without markup."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


class CommandOptions(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = " ".join(self.arguments[0].split())
        lines = markdown(command, commands()[command])
        node = nodes.container(classes=["command-options"])
        self.state.nested_parse(StringList(lines, source=f"omniset {command}"), self.content_offset, node)
        return node.children


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("command-options", CommandOptions)
    return {"parallel_read_safe": True}
