"""The innermost packages keep to the types and shapes that they say: their tests once more, with all calls checked.

Types do not depend on the numbers of a case: of cases that differ in numbers alone the first and the last are run. This
module is the plugin that leaves out the others.
"""

import os
import subprocess
import sys
from numbers import Number
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
FILES = ("test_attention.py", "test_layers.py", "test_sets.py", "test_multisets.py", "test_products.py")
ENGINE = (
    "test_a_shard_fully_absent",
    "test_independent_shards",
)


def pytest_collection_modifyitems(items):
    alike = {}
    for item in items:
        of_case = item.callspec.params.values() if hasattr(item, "callspec") else ()
        others = tuple(repr(value) for value in of_case if isinstance(value, bool) or not isinstance(value, Number))
        alike.setdefault((item.path, getattr(item, "originalname", item.name), others), []).append(item)
    kept = {id(item) for cases in alike.values() for item in (cases[0], cases[-1])}
    items[:] = [item for item in items if id(item) in kept]


def test_types_and_shapes_of_the_innermost_packages():
    engine = [f"{TESTS / 'test_engine.py'}::{name}" for name in ENGINE]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-p", Path(__file__).stem, *(str(TESTS / name) for name in FILES), *engine],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "OMNISET_CHECKED": "all",
            "PYTEST_ADDOPTS": "",
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
