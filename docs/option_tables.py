"""The options of every command, as the parser of the command line has them: the directive `command-options`.

```{command-options} genomes fit
```

docs/commands.md has a section for each command. The site has a page for each, such as `commands/genomes-fit`, and a
table of them in place of the sections; links to a section lead to its page. What this installation lacks is left out.
"""

from __future__ import annotations

import functools
import re
import shutil
import types
import typing
from collections.abc import Container
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
SECTION = re.compile(r"^## omniset ([\w ]+)\n(.*?)(?=^## |\Z)", flags=re.DOTALL | re.MULTILINE)
KINDS = {Path: "path", str: "text", int: "integer", float: "number", bool: "true or false"}


@dataclass
class Option:
    """One option of a command. `default` is None for what has to be given."""

    name: str
    positional: bool
    kind: str
    default: str | None
    text: str


@functools.lru_cache
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


def pages(text: str, known: Container[str]) -> dict[str, str]:
    """Of each known command its page, by its name, from the sections of docs/commands.md."""
    sections = [(name, body) for name, body in SECTION.findall(text) if name in known]
    return {n.replace(" ", "-"): f"# omniset {n}\n" + re.sub(r"\]\((?=[\w/-]+\.md)", "](../", b) for n, b in sections}


def index(text: str, known: Container[str]) -> str:
    """docs/commands.md with a table of the pages in place of the sections."""
    found = [(name, body) for name, body in SECTION.findall(text) if name in known]
    first = next(SECTION.finditer(text)).start()
    lines = ["## All commands", "", "| command | what it does |", "|---|---|"]
    for name, body in found:
        says = re.match(r".*?\.(?=\s)", " ".join(body.split()) + " ")
        lines.append(f"| [`omniset {name}`](commands/{name.replace(' ', '-')}.md) | {says[0] if says else ''} |")
    lines += ["", "```{toctree}", ":hidden:", "", *(f"commands/{name}" for name in pages(text, known)), "```", "", ""]
    return text[:first] + "\n".join(lines) + SECTION.sub("", text[first:])


def write(app: Any) -> None:
    folder = Path(app.srcdir, "commands")
    shutil.rmtree(folder, ignore_errors=True)  # pages of commands that are gone
    folder.mkdir()
    for name, page in pages(folder.with_suffix(".md").read_text(encoding="utf-8"), commands()).items():
        (folder / f"{name}.md").write_text(page, encoding="utf-8")


def linked(app: Any, page: str, source: list[str]) -> None:
    text = index(source[0], commands()) if page == "commands" else source[0]
    source[0] = re.sub(r"commands\.md#omniset-([\w-]+)", r"commands/\1.md", text)


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
    app.connect("builder-inited", write)
    app.connect("source-read", linked)
    return {"parallel_read_safe": True}
