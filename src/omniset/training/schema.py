"""JSON schemas of what config.json holds: written down, or read off the options of an estimator."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from omniset.options import hints

COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
SIZE: dict[str, Any] = {"type": "integer", "minimum": 1}
TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
FLAG: dict[str, Any] = {"type": "boolean"}
OBJECT: dict[str, Any] = {"type": "object"}
SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def optional(schema: dict[str, Any]) -> dict[str, Any]:
    """That, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def whole(properties: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """An object that has these keys, all of them, and no other."""
    return OBJECT | {"properties": dict(properties), "required": [*properties], "additionalProperties": False}


CONFIG = whole(
    {
        "format": TEXT,
        "format_version": SIZE,
        "class": TEXT,
        "arguments": OBJECT,
        "fitted": OBJECT,
        "tables": OBJECT | {"additionalProperties": {"type": "string"}},
        "weights": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "versions": OBJECT,
    }
)


def of_options(estimator: type) -> dict[str, Any]:
    """The schema of the options of an estimator, all of which must be there, by their types."""
    return whole({name: of_type(hint) for name, hint in hints(estimator).items()})


def check(value: Any, schema: dict[str, Any], path: Path, where: str = "") -> None:
    """See that a value is as its schema has it."""
    # Draft 4 takes 1.0 for no integer.
    error = jsonschema.exceptions.best_match(jsonschema.Draft4Validator(schema).iter_errors(value))
    if error is not None:
        place = ".".join([*([where] if where else []), *map(str, error.absolute_path)])
        message = error.message if len(error.message) <= 200 else f"{error.message[:100]} ... {error.message[-80:]}"
        raise ValueError(f"{path}: {place or 'the configuration'}: {' '.join(message.split())}")


def of_type(hint: Any) -> dict[str, Any]:
    """The schema of what JSON makes of values of a type."""
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": [*parts]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_type(part) for part in parts]}
    kind = origin or hint
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return OBJECT
    if inspect.isclass(kind) and issubclass(kind, Path):
        return TEXT
    if inspect.isclass(kind) and issubclass(kind, Sequence):
        return array(of_type(parts[0])) if parts else array({})
    return {}
