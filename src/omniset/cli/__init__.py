"""The command line. Commands are typed functions; what they need is imported when they run."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

# How many times a thread looks whether the others are done before it sleeps, in GNU's OpenMP, with which PyTorch and
# scikit-learn compute on Linux. By default it looks for milliseconds, in which it keeps a processor from other
# programs, and so, where there are any, from the threads that it waits for.
WAITS = {"GOMP_SPINCOUNT": "1000"}


def _commands() -> dict[str, Any]:
    """Of each system a dict of its verbs; those of the estimators on sets stand by themselves."""
    from omniset.cli import cells, demo, example, genomes, microbiomes, publish, regions, sets

    return {
        "example": example.example,
        "demo": demo.demo,
        "fit": sets.fit,
        "predict": sets.predict,
        "embed": sets.embed,
        "evaluate": sets.evaluate,
        "explain": sets.explain_sets,
        "publish": publish.publish,
        "genomes": {
            "_help": "Gene content of genomes: complete and clean it, with probabilities.",
            "fit": genomes.fit,
            "complete": genomes.complete,
            "evaluate": genomes.evaluate,
            "explain": genomes.explain_call,
        },
        "cells": {
            "_help": "Single cells: vectors of cell states from counts, in which batches are mixed.",
            "inspect": cells.inspect,
            "fit": cells.fit,
            "embed": cells.embed,
            "annotate": cells.annotate,
            "perturb": cells.perturb,
            "explain": cells.explain_cells,
            "evaluate": cells.evaluate,
        },
        "regions": {
            "_help": "Brain regions: connectivity of pairs from the genes that they express.",
            "fit": regions.fit,
            "predict": regions.predict,
            "evaluate": regions.evaluate,
            "explain": regions.explain_pair,
        },
        "microbiomes": {
            "_help": "Microbiomes: a taxon for every read, in the context of its sample.",
            "fit": microbiomes.fit,
            "classify": microbiomes.classify,
            "evaluate": microbiomes.evaluate,
            "explain": microbiomes.explain_taxon,
        },
    }


def _named(commands: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The command that the first words name, alone: to make the parsers of all others takes longer than it does."""
    command = commands.get(words[0]) if words else None
    if isinstance(command, dict):
        if len(words) < 2 or words[1] not in command:
            return commands
        command = {name: command[name] for name in ("_help", words[1])}
    return commands if command is None else {words[0]: command}


def _guarded(command: Any, words: list[str]) -> Any:
    """A command, or each of a dict of them, that refuses to write over what it reads."""
    if isinstance(command, dict):
        return {name: _guarded(one, words) for name, one in command.items()}
    return _refusing(command, words) if callable(command) else command


def _refusing(command: Callable[..., Any], words: list[str]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(*given: Any, **arguments: Any) -> Any:
        from omniset.runs.folders import refuse_own_input

        if arguments.get("out") is not None:
            arguments["out"] = Path(os.path.expanduser(arguments["out"]))  # no shell does so behind --out=
            configs = [value for flag, value in pairwise(words) if flag == "--config"]
            configs += [word.partition("=")[2] for word in words if word.startswith("--config=")]
            read = [value for name, value in arguments.items() if name != "out"]
            refuse_own_input(arguments["out"], [*given, *read, *configs])
        return command(*given, **arguments)

    return run


def main(arguments: list[str] | None = None, systems: Mapping[str, Any] | None = None) -> int:
    """Entry point. OMNISET_DEBUG=1 shows tracebacks.

    Args:
        arguments: Words behind the program's name. None: those of the shell.
        systems: Commands beside ours: of each system a dict of its verbs, with `_help`.

    Exit codes: 0 done, 2 bad input, 130 interrupted (Ctrl-C), 143 ended by SIGTERM (129: SIGHUP), 141 nobody reads what
    is printed.
    """
    import omniset
    from omniset.lazy import needs

    try:
        import jsonargparse

        from omniset.cli import microbiomes, studies
        from omniset.cli.options import of_program
        from omniset.cli.parser import Parser
        from omniset.runs import folders
        from omniset.runs.console import is_out_of_memory, line_of
        from omniset.runs.signals import Terminated, hear_no_more, terminable
    except ModuleNotFoundError as error:
        print(f"omniset: error: {needs('the command line', error.name)}", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a letter of a name shows its number
            stream.reconfigure(errors="backslashreplace")
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITS.items():  # before PyTorch is imported, which reads it once
            os.environ.setdefault(name, value)
    before = sys.argv
    try:
        words = sys.argv[1:] if arguments is None else arguments
        sys.argv = [sys.argv[0], *words]  # what reports quote, and what is started once more for several processes
        words = of_program(words)
        with terminable():
            jsonargparse.auto_cli(
                _guarded(_named(_commands() | dict(systems or {}) | studies.commands(words), words), words),
                args=microbiomes.with_reads([*words]),
                prog="omniset",
                version=omniset.__version__,
                parser_class=Parser,
            )
        sys.stdout.flush()
    except (KeyboardInterrupt, Terminated) as error:
        if arguments is None:
            hear_no_more()
        reason, code = (f"ended by {error.name}", error.code) if isinstance(error, Terminated) else ("interrupted", 130)
        with contextlib.suppress(OSError):  # a terminal that is closed takes no more
            print("; ".join([f"omniset: {reason}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return int(code or 0)
    except BrokenPipeError:  # whoever read the output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain when it ends
        return 141
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("OMNISET_DEBUG"):
            raise
        if isinstance(error, ModuleNotFoundError):
            error = ImportError(needs("this command", error.name))
        print(f"omniset: error: {line_of(error)}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if os.environ.get("OMNISET_DEBUG") or not is_out_of_memory(error):
            raise
        print(f"omniset: error: there is too little memory: {line_of(error)}", file=sys.stderr)
        return 2
    finally:
        sys.argv = before
        of_program([])
        folders.REPLACE.set(False)
    return 0
