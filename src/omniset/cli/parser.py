"""The parser of commands: jsonargparse's, with help lines that do not show Python's types."""

from __future__ import annotations

import argparse
import re
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter):
    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return re.sub(r"\((required)?(?:, )?type: .*?(?:, (default: .*))?\)$", _kept, text, flags=re.DOTALL).rstrip()


class Parser(ArgumentParser):
    """What may be given is said in the words of each option."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter} | options)


def _kept(found: re.Match[str]) -> str:
    kept = ", ".join(part for part in found.groups() if part)
    return f"({kept})" if kept else ""
