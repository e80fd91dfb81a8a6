"""Finds the commands of `omniset studies`, which lie in the folder `paper/` of the repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

PAPER = Path(__file__).parents[3] / "paper"  # beside src


def commands(words: list[str]) -> dict[str, Any]:
    """The group `studies` by its name; nothing where the package is installed without the repository.

    Args:
        words: Of the command line.

    Raises:
        FileNotFoundError: The words call `studies`, and there is no folder `paper/`.
    """
    if (PAPER / "commands.py").is_file():
        if str(PAPER.parent) not in sys.path:
            sys.path.insert(0, str(PAPER.parent))
        return {"studies": importlib.import_module("paper.commands").COMMANDS}
    if words[:1] == ["studies"]:
        raise FileNotFoundError(
            "the studies lie in the folder paper/ of the repository and are no part of the installed package: clone "
            "the repository and run pip install -e . in it"
        )
    return {}
