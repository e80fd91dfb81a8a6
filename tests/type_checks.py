"""Type and shape checks for the test run: sizes are compared where a function's types name arrays."""

from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype

SHAPED = jaxtyping.jaxtyped


def install(modules: list[str]) -> None:
    """All functions and dataclasses of these modules check their arguments and what they give, once imported.

    jaxtyping binds the arguments of each call and checks them twice, so that the sizes of arrays agree. A function
    whose types name no array has no sizes: beartype alone checks as much, ten times as fast.
    """
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _checked(*, typechecker: Any) -> Any:
    def decorate(checked: Any) -> Any:
        if isinstance(checked, FunctionType) and not _may_name_arrays(checked):
            return beartype(checked)
        return SHAPED(checked, typechecker=typechecker)

    return decorate


def _may_name_arrays(function: FunctionType) -> bool:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # something is imported for mypy alone: jaxtyping passes over it
        return True
    return any(map(_names_arrays, hints.values()))


def _names_arrays(hint: Any) -> bool:
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(_names_arrays, hint))
    arrays = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return arrays or any(map(_names_arrays, get_args(hint)))
