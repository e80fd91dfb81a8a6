"""The parser of commands: jsonargparse's, with help lines that do not show Python's types."""

from __future__ import annotations

import argparse
import re
import sys
import typing
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

NAME = re.compile(r"--[^=.]*")


class HelpFormatter(DefaultHelpFormatter):
    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return re.sub(r"\((required)?(?:, )?type: .*?(?:, (default: .*))?\)$", _kept, text, flags=re.DOTALL).rstrip()


class Parser(ArgumentParser):
    """What may be given is said in the words of each option; --two-words and --two_words are the same option."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter} | options)

    def add_function_arguments(self, *arguments: Any, **options: Any) -> Any:
        """A list that has to be given is one or more words: jsonargparse alone would take a single one, as JSON."""
        added = super().add_function_arguments(*arguments, **options)
        for action in self._actions:
            kind = getattr(action, "_typehint", None)
            if not action.option_strings and typing.get_origin(kind) is list:
                action.nargs, action.metavar = "+", action.dest.upper()
                action._typehint = typing.get_args(kind)[0]  # type: ignore[attr-defined]
        return added

    def parse_args(self, args: Any = None, *arguments: Any, **options: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        return super().parse_args([_underscored(word) for word in words], *arguments, **options)


def _underscored(word: str) -> str:
    """The name of an option in our spelling; its value, and any other word, as it is.

    >>> _underscored("--batch-key=day-1"), _underscored("a-b"), _underscored("--")
    ('--batch_key=day-1', 'a-b', '--')
    """
    found = NAME.match(word)
    return word if found is None else "--" + found[0][2:].replace("-", "_") + word[found.end() :]


def _kept(found: re.Match[str]) -> str:
    kept = ", ".join(part for part in found.groups() if part)
    return f"({kept})" if kept else ""
