"""Names of a package that are looked up when they are first used, and what an extra that is not installed is called.

So help and errors of a shell need no PyTorch, and what computes on sets needs no tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

EXTRAS = {  # of pyproject.toml: modules that each brings, beside those of tables
    "cells": {"anndata", "umap", "zarr"},
    "regions": {"nibabel", "nilearn"},
    "dask": {"dask", "distributed"},
    "log": {"tensorboard"},
    "hub": {"huggingface_hub"},
    "dna": {"transformers"},
    "baselines": {"harmonypy", "scvi"},
}


def needs(what: str, module: str | None) -> str:
    """What is said where a module is not installed, here and nowhere else.

    >>> needs("a bar on the terminal", "tqdm.auto")
    'a bar on the terminal needs tqdm, which is not installed: pip install "omniset[tables]"'
    """
    name = (module or "a module").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), "tables")
    return f'{what} needs {name}, which is not installed: pip install "omniset[{extra}]"'


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Args:
        homes: The module in it that has each name; "" where the name is that of a module itself.
    """

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{package}.{homes[name] or name}")
        except ModuleNotFoundError as error:
            raise ImportError(needs(f"{package}.{name}", error.name)) from error
        return getattr(module, name) if homes[name] else module

    return look_up, lambda: sorted(homes)
