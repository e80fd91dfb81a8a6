"""The parser of commands: jsonargparse's, with help lines that do not show Python's types."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import typing
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from omniset.cli import options as command_options
from omniset.cli.options import PROGRAM
from omniset.core.bounded import SETTINGS, decoded, read_small
from omniset.runs.console import LONGEST, line_of

WORDS = {
    "NoneType": "null",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict": "JSON in braces",
    "str": "text",
}
NAME = re.compile(r"--[^=.]*")
GROUPS, LAST = ("data", "model", "training", "computing"), "help and configuration"  # of options
ABOUT = ("help", "config", "print_config")
MEANT = {"--labels": "--target"}  # what other tools call it
MISSING = re.compile(r"Option '([\w.]+)' is required")
DEEPEST, MOST = 20, 20_000  # lists and mappings in each other, and parts, of what is given as YAML
WITHIN: ContextVar[bool] = ContextVar("within", default=False)  # a configuration that is being read


class HelpFormatter(DefaultHelpFormatter):
    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return re.sub(r"\((required)?(?:, )?type: .*?(?:, (default: .*))?\)$", _choices, text, flags=re.DOTALL).rstrip()


class Parser(ArgumentParser):
    """What may be given is said in the words of each option; --two-words and --two_words are the same option."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        said = [f"--{name} {str(other).lower()}: {text}" for name, (*_, other, text) in PROGRAM.items()]
        about: dict[str, Any] = {"formatter_class": HelpFormatter, "epilog": " ".join(["Of every command:", *said])}
        super().__init__(*arguments, **about | options)

    def add_function_arguments(self, *arguments: Any, **options: Any) -> Any:
        """A list that has to be given is one or more words: jsonargparse alone would take a single one, as JSON."""
        options |= {"sub_configs": False}  # no value is the name of a file to take it from
        added = super().add_function_arguments(*arguments, **options)
        for action in self._actions:
            kind = getattr(action, "_typehint", None)
            if not action.option_strings and typing.get_origin(kind) is list:
                action.nargs, action.metavar = "+", action.dest.upper()
                action._typehint = typing.get_args(kind)[0]  # type: ignore[attr-defined]
        groups = command_options.add(self, arguments[0])
        if len(groups) > 1:
            self._group(groups)
        return added

    def _group(self, groups: dict[str, str]) -> None:
        """Show options in groups: the first five of the command, then by what they are about, help and files last."""
        actions = self._optionals._group_actions
        about = [action for action in actions if action.dest in ABOUT]
        first = [action for action in actions if action.dest not in {*ABOUT, *groups}]
        rest: dict[str, list[argparse.Action]] = {name: [] for name in (*GROUPS, LAST)}
        rest["data"] = first[5:]
        for action in actions:
            if action.dest in groups:
                rest[groups[action.dest]].append(action)
        rest[LAST] = about
        self._optionals._group_actions[:] = first[:5]
        for title, members in rest.items():
            if members:
                self.add_argument_group(title)._group_actions.extend(members)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """One line, without the usage of fifty options above it."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [name for action in parser._actions for name in action.option_strings]
        prog = parser.prog.replace(" [options]", "")
        if missing := MISSING.match(message):
            prog = " ".join([prog, *missing[1].split(".")[:-1]])
        remedy = f" (see {prog} --help)"
        said = line_of(ValueError(_plain(message, options)), LONGEST - len(remedy))
        sys.stderr.write(f"omniset: error: {said}{remedy}\n")
        self.exit(2)

    def parse_args(self, args: Any = None, *arguments: Any, **options: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        for word in words:
            with suppress(yaml.YAMLError):
                _refuse_deep(word, repr(word[:40]))
        return super().parse_args([_underscored(word) for word in words], *arguments, **options)

    def parse_path(self, cfg_path: Any, *arguments: Any, **options: Any) -> Any:
        """The file of --config; "-" is the standard input.

        Raises:
            OSError, ValueError: No file, a large one, no YAML, one that is nested deeply, or named in another.
        """
        path = str(cfg_path)
        if WITHIN.get():
            raise ValueError(f"{path} is named by config in a configuration: give each in the command, by --config")
        piped = path == "-"
        text = decoded(path, sys.stdin.buffer.read(SETTINGS + 1), SETTINGS) if piped else read_small(path, SETTINGS)
        try:
            _refuse_deep(text, path)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from None
        token = WITHIN.set(True)
        try:
            return self.parse_string(text, path, *arguments, **options)
        finally:
            WITHIN.reset(token)


def _refuse_deep(text: str, where: str) -> None:
    """Raise ValueError where to read YAML takes without end: of values in each other, that repeat others, or many.

    Raises:
        yaml.YAMLError: It is no YAML.
    """
    depth, known = 0, set()
    if len(text) <= DEEPEST:
        return
    for number, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        if isinstance(event, yaml.AliasEvent) and event.anchor in known:
            raise ValueError(f"{where}: *{event.anchor} stands for a value above: write that out")
        known.add(getattr(event, "anchor", None))
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or number > MOST:
            bound = f"{MOST:,} values" if number > MOST else f"{DEEPEST} lists and mappings in each other"
            raise ValueError(f"{where}: has more than {bound}")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) < len(text):
            with suppress(yaml.YAMLError):  # text that an option may take as YAML
                _refuse_deep(event.value, where)


def _underscored(word: str) -> str:
    """The name of an option in our spelling; its value, and any other word, as it is.

    >>> _underscored("--batch-key=day-1"), _underscored("a-b"), _underscored("--")
    ('--batch_key=day-1', 'a-b', '--')
    """
    match = NAME.match(word)
    return word if match is None else "--" + match[0][2:].replace("-", "_") + word[match.end() :]


def _plain(message: str, options: Sequence[str]) -> str:
    r"""What jsonargparse says, in the words of a shell.

    >>> _plain('Parser key "epochs":\n  Subtypes: [<class \'NoneType\'>, <class \'int\'>]\n  Given value: three', [])
    "epochs must be a whole number or null, got 'three'"
    >>> _plain("Unrecognized arguments: --bach_key b", ["--batch_key"])
    "there is no option '--bach_key'; did you mean --batch_key?"
    >>> _plain("Unrecognized arguments: --labels=y.csv", ["--label", "--target"])
    "there is no option '--labels=y.csv'; did you mean --target?"
    >>> _plain("Option 'genomes.fit.table' is required but not provided or its value is None.", [])
    'table has to be given'
    """
    if match := re.match(r"[Uu]nrecognized arguments: (\S+)", message):
        word = match[1].split("=")[0]
        near = [MEANT[word]] if MEANT.get(word) in options else difflib.get_close_matches(word, options, 1, 0.7)
        if match[1].startswith("-"):
            return f"there is no option {match[1]!r}" + (f"; did you mean {near[0]}?" if near else "")
    if match := MISSING.match(message):
        return f"{match[1].split('.')[-1]} has to be given"
    key, value = re.search(r'key "([\w.]+)"', message), re.search(r"(?:Given|Got) value: (.*)", message)
    expected = re.search(r"Subtypes: \[(.*)\]", message) or re.search(r"Expected a (.*)", message)
    if not (key and value and expected):
        return message.rstrip(".")
    kinds = re.findall(r"<class '(\w+)'>|\b(dict)\[|Literal\[(.*?)\]", expected[1])
    words = [names.replace(", ", " or ") or WORDS.get(kind or mapping, kind) for kind, mapping, names in kinds]
    words.sort(key=lambda word: word == "null")  # last
    return f"{key[1].split('.')[-1]} must be {' or '.join(words)}, got {value[1]!r}" if words else message


def _choices(match: re.Match[str]) -> str:
    choices = ", ".join(part for part in match.groups() if part)
    return f"({choices})" if choices else ""
