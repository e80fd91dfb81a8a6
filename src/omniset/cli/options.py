"""Options of classes as options of commands: declared once, see `omniset.options`."""

from __future__ import annotations

import csv
import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omniset.options import Option, check, defaults_of, hints, option, options, options_of, shell_sentence
from omniset.runs import folders
from omniset.tables.spreadsheets import DECIMAL, SAFE

Function = TypeVar("Function", bound=Callable[..., Any])
AS_AT_FIT = " null: as at fit."

# Options of the whole program, wherever they stand among its words; no command lists them.
PROGRESS: ContextVar[bool] = ContextVar("progress", default=True)
PROGRAM: dict[str, tuple[ContextVar[Any], Any, Any, str]] = {  # its value without a word, the other one, what that does
    "progress": (PROGRESS, True, False, "no word of how far the work has come."),
    "csv_safe": (
        SAFE,
        False,
        True,
        "in tables as text, an apostrophe before names that a spreadsheet would compute: those that begin with =, +, "
        "-, @, a tab or a carriage return and are no numbers.",
    ),
    "decimal": (DECIMAL, ".", ",", "in tables as text that are read, numbers have a decimal comma, as 1.234,5."),
}


@dataclass(frozen=True)
class Taken:
    """Options of a class that a command takes."""

    cls: type
    names: tuple[str, ...]  # which
    as_at_fit: bool  # they change a model that was fitted: their default is null, but for device and progress

    def options(self) -> dict[str, Option]:
        """Those that the command lists."""
        return {n: about for n, about in options_of(self.cls).items() if n in self.names and n not in PROGRAM}

    def defaults(self) -> dict[str, Any]:
        defaults = defaults_of(self.cls)
        names = ("device", "progress") if self.as_at_fit else defaults
        found = {name: defaults[name] if name in names else None for name in self.names}
        return {name: PROGRAM[name][0].get() if name in PROGRAM else value for name, value in found.items()}


def takes(cls: type, *names: str, but: Sequence[str] = (), as_at_fit: bool = False) -> Callable[[Function], Function]:
    """Give a command, which gets them as `**options`, the options of a class.

    Args:
        cls: Its options are declared by `omniset.options.option`.
        names: Which; without any, all.
        but: Not these.
        as_at_fit: See `Taken`.
    """

    def decorate(function: Function) -> Function:
        taken = Taken(cls, tuple(name for name in names or options_of(cls) if name not in but), as_at_fit)

        @functools.wraps(function)
        def checked(*words: Any, **arguments: Any) -> Any:
            """What is wrong with an option is said before anything is imported or read."""
            defaults = taken.defaults()
            values = _checked(cls, {name: arguments.pop(name, defaults[name]) for name in taken.names})
            if cls is Saving:
                folders.REPLACE.set(values["replace"])
                values = {}
            return function(*words, **arguments, **values)

        checked.taken = [taken, *getattr(function, "taken", [])]  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


@options
class Saving:
    """What may be replaced."""

    replace: bool = option(
        False,
        "Replace what an earlier run has written to out: a file, or a folder with all that a run of the same kind has "
        "made in it, a model by one of the same class. Without, a name that is taken is refused.",
        group="computing",
    )


def add(parser: Any, function: Callable[..., None]) -> dict[str, str]:
    """Add what a command takes to its parser. Returns the group of each option."""
    groups = {}
    for taken in getattr(function, "taken", []):
        defaults, types_of = taken.defaults(), hints(taken.cls)
        for name, about in taken.options().items():
            other = taken.as_at_fit and name != "device"
            sentence = shell_sentence(about)
            if other:  # what a fit without it does, is no longer what null means
                sentence = re.sub(r" null: [^.]*\.", "", sentence) + AS_AT_FIT
            kind = types_of[name] | None if other else types_of[name]
            parser.add_argument(f"--{name}", type=_of_words(kind), default=_words(defaults[name]), help=sentence)
            groups[name] = about.group
    return groups


def of_program(words: Sequence[str]) -> list[str]:
    """Set the options of the whole program, and give the words without them.

    Raises:
        ValueError: One is neither true nor false, or neither sign.
    """
    rest, waiting = [], [*words]
    for variable, default, *_ in PROGRAM.values():
        variable.set(default)
    while waiting:
        word = waiting.pop(0)
        name, _, value = word.removeprefix("--").replace("-", "_").partition("=")
        if not word.startswith("--") or name not in PROGRAM:
            rest.append(word)
            continue
        value = value or (waiting.pop(0) if waiting else "")
        variable, *two, _ = PROGRAM[name]
        values = {str(one).lower(): one for one in sorted(two, reverse=True)}
        if value.lower() not in values:
            raise ValueError(f"{name} must be {' or '.join(values)}, got {value!r}")
        variable.set(values[value.lower()])
    return rest


def words_of_program() -> tuple[str, ...]:
    """What a worker is told, so that it reads and writes as the program does, without a word."""
    return ("--progress=false", *(f"--{name}={PROGRAM[name][0].get()}" for name in PROGRAM if name != "progress"))


def given(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that are a class's."""
    return {name: arguments[name] for name in options_of(cls) if name in arguments}


def chosen(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As `given`, those that are not as at fit."""
    return {name: value for name, value in given(cls, arguments).items() if value is not None}


def whole_numbers(name: str, words: str) -> Sequence[int]:
    """Numbers with commas between. Raises: ValueError, naming the option."""
    return _of_text(name, words, Sequence[int])


def _checked(cls: type, words: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the class takes them: lists in words become lists.

    Raises:
        ValueError: A list in words with a member that is no number; a value out of its bounds.
    """
    kinds, known = hints(cls), options_of(cls)
    values = {name: _of_text(name, word, kinds[name]) for name, word in words.items()}
    check(cls, {n: v for n, v in values.items() if v is not None and known[n].choices is None})
    return values


def _list_in(kind: Any) -> Any:
    """The part of a type that is a sequence of known members; None without one."""
    parts = [kind, *typing.get_args(kind)]
    return next((part for part in parts if typing.get_origin(part) in (tuple, Sequence)), None)


def _of_words(kind: Any) -> Any:
    """A type as the shell has it: sequences are words with commas between."""
    if _list_in(kind) is None:
        return kind
    return str | None if type(None) in typing.get_args(kind) else str


def _words(default: Any) -> Any:
    return (
        ",".join(f"{x:g}" if isinstance(x, float) else str(x) for x in default)
        if isinstance(default, tuple)
        else default
    )


def _of_text(name: str, value: Any, kind: Any) -> Any:
    list_type = _list_in(kind)
    if list_type is None or value is None:
        return value
    member = typing.get_args(list_type)[0]
    parts = [part.strip() for part in value.strip("[]").split(",") if part.strip()] if isinstance(value, str) else value
    try:
        return tuple(member(part) for part in parts)
    except ValueError:
        what = "whole numbers" if member is int else "numbers"
        raise ValueError(f"{name} must be {what} with commas between, got {value!r}") from None


def split(names: str | None) -> list[str] | None:
    """Names with commas between; one that has a comma stands in quotation marks, as in a CSV file."""
    parts = [] if names is None else next(csv.reader([names], skipinitialspace=True), [])
    return None if names is None else [name.strip() for name in parts if name.strip()]


def needed(**files: Path | None) -> list[Path]:
    """Files that have to be given, by the names of their options."""
    for name, file in files.items():
        if file is None:
            raise ValueError(f"--{name} must be given: the file with it")
    return [file for file in files.values() if file is not None]
