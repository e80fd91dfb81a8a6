"""The innermost packages keep to the types and shapes that they say: their tests once more, with all calls checked.

Types do not depend on the numbers of a case: of each test its first and its last cases are run. This module is the
plugin that leaves out the others.
"""

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).parent
FILES = ("test_attention.py", "test_layers.py", "test_sets.py", "test_multisets.py", "test_products.py")
ENGINE = (
    "test_a_shard_fully_absent",
    "test_independent_shards",
)


def pytest_collection_modifyitems(items):
    some = []
    for _, cases in groupby(items, lambda item: (item.path, getattr(item, "originalname", item.name))):
        first, *others = cases
        some += [first, *others[-1:]]
    items[:] = some


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
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
