"""Type and shape checks are on in the test run, docstring examples included.

In the innermost packages, where most calls are made, they would double the time of all tests: there they are on only
with OMNISET_CHECKED=all, as tests/test_checked.py runs the tests of these packages.
"""

# ruff: noqa: E402

import gc
import inspect
import os
import signal
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace

# As the command has it: threads of OpenMP that wait for work, in circles, would take the processors from other tests.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import beartype.door  # noqa: F401
import hypothesis  # noqa: F401
import jsonargparse._core
import lightning_fabric  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import pandas  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.cluster
import sklearn.decomposition
import sklearn.ensemble
import sklearn.linear_model
import sklearn.neighbors  # noqa: F401
from jaxtyping import install_import_hook

# What the package imports is imported above: from within a module that has the checks, Python would not find the
# compiled code of what is imported, and compile it anew.
INNERMOST = () if os.environ.get("OMNISET_CHECKED") == "all" else ("core", "engine", "kernels", "layers")
PARTS = sorted(path.stem for path in (Path(__file__).parent / "src" / "omniset").glob("[a-z]*"))
install_import_hook([*(f"omniset.{part}" for part in PARTS if part not in INNERMOST), "paper"], "beartype.beartype")

import numpy as np
import pytest
import torch

from omniset.estimators import methods, mixture, survival
from omniset.kernels import blocks
from omniset.runs import folders

torch.set_num_threads(1)  # tests run side by side
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell runs in the background, and its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
blocks.library()  # compiled now if it has to be, or what a test starts would say so
methods.TREES = 10  # 300 trees beside each network would take most of the time
mixture.STEPS = 30  # as would 300 steps of networks, and more where there are more sets
methods.PooledLinear.variances = survival.DissimilarityCox.variances = (
    0.1,
    1.0,
)  # and 13 penalties for each linear model
methods.FOLDS = 2  # of 5 that choose among them


ASKED = folders.REPLACE
# Most tests make a folder or a table several times; those of what is replaced use the fixture `as_asked`.
folders.REPLACE = SimpleNamespace(get=lambda: True, set=lambda value: None)  # type: ignore[assignment]


@pytest.fixture
def as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is replaced only with --replace true."""
    monkeypatch.setattr(folders, "REPLACE", ASKED)


def _frames() -> list[tuple[FrameType | None]]:
    frame = sys._getframe(1)
    return [(frame,), (frame.f_back,)]


# To know its caller, jsonargparse has the lines of all frames read for each parser: a tenth of a second in a test.
jsonargparse._core.inspect = SimpleNamespace(**{**vars(inspect), "stack": _frames})


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: run by `make test-all` alone; `make test` has what protects every change")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # a full collection would walk a second through what is imported: a sixth of the time of all tests


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a library that a test has called may have set others


@pytest.fixture
def data_folder() -> Path:
    if "OMNISET_DATA" not in os.environ:
        pytest.skip("OMNISET_DATA is not set: tests on the real data files are left out")
    return Path(os.environ["OMNISET_DATA"])


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict) -> None:
    import omniset

    names = (
        "SetBatch",
        "SetClassifier",
        "SetRegressor",
        "SetSurvival",
        "Sets",
        "AttentionState",
        "multiset_attention",
        "compact",
    )
    doctest_namespace.update({name: getattr(omniset, name) for name in names}, torch=torch, np=np)
