"""The options of an estimator, each declared once: signature, checks, documentation, command line, fingerprint.

An estimator's options are a dataclass whose fields are made by `option`. It needs no PyTorch, so that a command line is
parsed, and its help is printed, in a fraction of a second. The estimator itself inherits from the dataclass.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

LARGEST = 2**53  # that a number of any kind has to the unit
ENCODER = ("encoder", "dim", "depth", "num_heads", "num_inducing", "num_outputs")  # what builds one, of all options
DEEPEST = 1000  # layers
Group = Literal["data", "model", "training", "computing"]
Device = Literal["auto", "cpu", "cuda", "mps"]
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, type and default."""

    sentence: str  # What it does. `None`, `True` and `False` are shown at the shell as null, true and false.
    group: Group  # of the command line's help
    # Bounds; of a sequence, for each of its members.
    least: int | float | None
    above: int | float | None
    most: int | float | None
    below: int | float | None
    # Gives the values that there are, where they are not in the type: asked when a value is checked.
    choices: Callable[[], Iterable[str]] | None
    changes_fit: bool  # whether another value makes another model, so that a checkpoint cannot be resumed with it

    def bounds(self) -> str:
        """The bounds in words; "" without any.

        >>> options_of(Computing)["seed"].bounds()
        '>= 0 and <= 4294967295'
        """
        signs = {">=": self.least, ">": self.above, "<=": self.most, "<": self.below}
        return " and ".join(f"{sign} {_number(bound)}" for sign, bound in signs.items() if bound is not None)

    def holds(self, value: Any) -> bool:
        """Whether a number is finite and within the bounds."""
        return bool(
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def option(
    default: Any,
    sentence: str,
    *,
    group: Group = "model",
    least: int | float | None = None,
    above: int | float | None = None,
    most: int | float | None = None,
    below: int | float | None = None,
    choices: Callable[[], Iterable[str]] | None = None,
    changes_fit: bool = True,
) -> Any:
    """A field of a dataclass of options. Arguments: see `Option`."""
    about = Option(sentence, group, least, above, most, below, choices, changes_fit)
    return dataclasses.field(default=default, metadata={"option": about})


# Options that several estimators share, with defaults of their own.


def dim(default: int | None, sentence: str = "Width of the model: more learns more, and slower.") -> Any:
    return option(default, sentence, least=1)


def depth(default: int | None, sentence: str = "Set layers of the model.", least: int = 1) -> Any:
    return option(default, sentence, least=least, most=DEEPEST)


def num_heads(default: int) -> Any:
    return option(default, "Attention heads; must divide dim.", least=1)


def num_inducing(default: int, sentence: str = "Inducing points, through which elements see each other.") -> Any:
    return option(default, sentence, least=1)


def encoder_options() -> Any:
    return option(None, """Further settings of the encoder, such as '{"dropout": 0.1}'.""")


def epochs(default: int | None, sentence: str) -> Any:
    return option(default, sentence, group="training", least=1)


def batch_size(default: int | None, sentence: str, least: int = 1) -> Any:
    return option(default, sentence, group="training", least=least)


def learning_rate(default: int | float | None, sentence: str = "Largest step size of AdamW.") -> Any:
    return option(default, sentence, group="training", above=0, most=1e9)


def weight_decay(default: float) -> Any:
    return option(default, "Pull of the weights towards zero, of AdamW.", group="training", least=0, most=1e9)


def patience(default: int | None, what: str) -> Any:
    sentence = f"Stop after so many epochs without progress on the {what} kept back, and keep the best. None: never."
    return option(default, sentence, group="training", least=1)


def validation_fraction(default: float | None, sentence: str, least: int | float = 0, below: int | float = 1) -> Any:
    return option(default, sentence, group="training", least=least, below=below)


@contextmanager
def blaming(encoder_options: Mapping[str, Any] | None) -> Iterator[None]:
    """Around what builds an encoder: an error of its further settings names them.

    Raises:
        ValueError: They are none of the encoder's, or have another type or value than they may.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        named = any(name in str(error) for name in encoder_options or {})
        if not encoder_options or (isinstance(error, ValueError) and not named):
            raise
        raise ValueError(f"encoder_options={encoder_options}: {error}") from error


@typing.dataclass_transform()
def options(cls: C) -> C:
    """A class of options as a dataclass that is compared and shown as scikit-learn's estimators are.

    An option that it does not have is refused by the name of the class that is made, with the nearest that it has.
    """
    made: Any = dataclass(eq=False, repr=False)(cls)
    init, known = made.__init__, [f.name for f in dataclasses.fields(made)]

    @functools.wraps(init)
    def of_known_names(self: Any, *values: Any, **named: Any) -> None:
        for name in named:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f", did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
                raise TypeError(f"{type(self).__name__} has no option {name!r}{hint}")
        init(self, *values, **named)

    made.__init__ = of_known_names
    return made


@dataclass(eq=False, repr=False, kw_only=True)
class Computing:
    """The options that every estimator has. What inherits from it has the sentences of all options in its docstring,
    where that has {options}.
    """

    seed: int = option(
        0,
        "The same seed gives the same numbers: to the bit where a process of its own on the same CPU computes them.",
        group="computing",
        least=0,
        most=2**32 - 1,
    )
    device: Device = option("auto", "Where to compute.", group="computing", changes_fit=False)
    progress: bool = option(True, "Show progress.", group="computing", changes_fit=False)

    __no_type_check__: ClassVar = True  # values are checked by `check_options`, when they are used

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__doc__ and "{options}" in cls.__doc__:
            text = inspect.cleandoc(cls.__doc__)  # as Python itself does from 3.13 on
            cls.__doc__ = text.replace("    {options}", textwrap.indent(documentation(cls), " " * 4))

    def check_options(self) -> None:
        """Check each option by its type and bounds."""
        check(type(self), {name: getattr(self, name) for name in options_of(type(self))})

    def fingerprint(self) -> dict[str, Any]:
        """The options that make a model what it is, as JSON has them."""
        known = options_of(type(self))
        return {name: value for name, value in self.plain().items() if known[name].changes_fit}

    def plain(self) -> dict[str, Any]:
        """All options, as JSON has them."""
        return {name: _plain(getattr(self, name)) for name in options_of(type(self))}


def options_of(cls: type) -> dict[str, Option]:
    """The options of a class by name, in the order in which they are declared; those that all have come last."""
    known = {f.name: f.metadata["option"] for f in dataclasses.fields(cls) if "option" in f.metadata}
    shared = [f.name for f in dataclasses.fields(Computing) if f.name in known]
    return {name: known[name] for name in [*(n for n in known if n not in shared), *shared]}


def defaults_of(cls: type) -> dict[str, Any]:
    """The defaults of a class by name."""
    known = options_of(cls)
    return {f.name: f.default for f in dataclasses.fields(cls) if f.name in known}


def hints(cls: type) -> dict[str, Any]:
    """The types of the options of a class."""
    annotated: dict[str, Any] = {}
    for parent in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(parent):
            annotated |= inspect.get_annotations(parent, eval_str=True)
    return {name: annotated[name] for name in options_of(cls)}


def documentation(cls: type) -> str:
    """The options as lines of a docstring's Args."""
    lines = []
    defaults = defaults_of(cls)
    for name, about in options_of(cls).items():
        bounds = about.bounds()
        after = f"Default {defaults[name]!r}" + (f", {bounds}." if bounds else ".")
        lines.append(textwrap.fill(f"{name}: {about.sentence} {after}", 112, subsequent_indent="    "))
    return "\n".join(lines)


def shell_sentence(about: Option) -> str:
    """The sentence of an option as the command line's help has it.

    >>> shell_sentence(option(None, "Layers. None: as many as fit.").metadata["option"])
    'Layers. null: as many as fit.'
    """
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: words[match[0]], about.sentence).replace("`", "")


def check(cls: type, values: Mapping[str, Any]) -> None:
    """Check values of options of a class. Raises: as `Computing.check_options`."""
    types_of, known = hints(cls), options_of(cls)
    for name, value in values.items():
        _check(name, value, types_of[name], known[name])
    for name in values.get("encoder_options") or {}:
        if name in ENCODER and name in known:
            raise ValueError(f"encoder_options: {name} is an option of its own, give {name}")
        if name == "embed":
            raise ValueError(
                "encoder_options: embed is a module, and a fitted model is stored without code: "
                "give it to omniset.encoders.build, and train the encoder in a loop of your own"
            )


def without_folder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options without the folder on one machine that `store` may name.

    It is neither stored with a model nor taken from one: whoever uses a model says where things are.
    """
    on_disk = str(values.get("store")).startswith("disk:")
    return {**values, "store": "disk"} if on_disk else dict(values)


def from_plain(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them, as the class has them: lists that are tuples by their type."""
    types_of = hints(cls)
    return {
        name: tuple(value) if isinstance(value, list) and typing.get_origin(types_of[name]) is tuple else value
        for name, value in values.items()
    }


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [*value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _check(name: str, value: Any, hint: Any, about: Option) -> None:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in parts:
        return
    kinds = [part for part in parts if part is not type(None)]
    origin = typing.get_origin(kinds[0])
    if origin is Literal or about.choices is not None:
        known = typing.get_args(kinds[0]) if origin is Literal else tuple(about.choices())  # type: ignore[misc]
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        return
    if origin in (tuple, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{name} must be a sequence, got {value!r}")
        if origin is tuple and len(value) != len(typing.get_args(kinds[0])):
            raise ValueError(f"{name} must have {len(typing.get_args(kinds[0]))} members, got {value!r}")
        for member in value:
            _check_one(name, member, typing.get_args(kinds[0])[0], about, value)
        return
    if not any(inspect.isclass(kind) and isinstance(value, kind) for kind in kinds[1:]):
        _check_one(name, value, kinds[0], about, value)


def _check_one(name: str, value: Any, kind: Any, about: Option, whole: Any) -> None:
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    is_bool = type(value).__name__ in ("bool", "bool_")  # NumPy's too
    if kind is bool:
        right = is_bool
    elif kind is int:
        right = not is_bool and hasattr(value, "__index__")
    elif kind is float:
        right = not is_bool and hasattr(value, "__float__")
    elif kind is str:
        right = isinstance(value, str)
    else:
        return
    if not right:
        raise ValueError(f"{name} must be {words[kind]}, got {whole!r}")
    if kind is int and abs(value) > LARGEST:
        raise ValueError(f"{name} must be <= {LARGEST:,}, got {whole!r}")
    if kind in (int, float) and not about.holds(value):
        raise ValueError(f"{name} must be {about.bounds() or 'finite'}, got {whole!r}")
