"""What a fitted method is made of, as plain values and arrays, so that a model is read without being fitted again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

Kept = Mapping[str, Any]  # name of an attribute: its class; None: a number, text, a list, a dict of these, or an array
T = TypeVar("T")


def kept_of(kind: type) -> Kept:
    """The attributes that a class is made of: its KEPT; of a dataclass else all fields."""
    if hasattr(kind, "KEPT"):
        fields: Kept = kind.KEPT
        return fields
    return dict.fromkeys(field.name for field in dataclasses.fields(kind))


def packed(value: Any, kind: type | None = None) -> Any:
    """An object as a dict of plain values and arrays."""
    if kind is None or value is None:
        return value
    return {name: packed(getattr(value, name), of) for name, of in kept_of(kind).items()}


def unpacked(kind: type[T], state: Mapping[str, Any]) -> T:
    """The object that `packed` was given.

    Raises:
        ValueError: Its attributes are others.
    """
    made = object.__new__(kind)
    take(made, state)
    return made


def take(made: Any, state: Mapping[str, Any]) -> None:
    """Give an object the attributes that `packed` was given. Raises: as `unpacked`."""
    fields = kept_of(type(made))
    if not isinstance(state, Mapping) or state.keys() != fields.keys():
        have = sorted(state) if isinstance(state, Mapping) else state
        raise ValueError(f"{type(made).__name__} must have {', '.join(sorted(fields))}, got {have}")
    for name, of in fields.items():
        value = state[name]
        object.__setattr__(made, name, value if of is None or value is None else unpacked(of, value))


def parted(state: Any, place: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """Plain values with the place of each array in its stead, and the arrays by place."""
    if isinstance(state, np.ndarray):
        return {"array": place}, {place: state}
    if not isinstance(state, Mapping):
        return state, {}
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in state.items():
        plain[name], more = parted(value, f"{place}/{name}" if place else name)
        arrays |= more
    return plain, arrays


def joined(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `parted` was given.

    Raises:
        ValueError: An array that is not there.
    """
    if not isinstance(plain, Mapping):
        return plain
    if plain.keys() == {"array"}:
        if plain["array"] not in arrays:
            raise ValueError(f"there is no array {plain['array']!r}")
        return arrays[plain["array"]]
    return {name: joined(value, arrays) for name, value in plain.items()}
