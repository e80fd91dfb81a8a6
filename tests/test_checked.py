"""The innermost packages keep to the types and shapes that they say: their tests once more, with all calls checked."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
FILES = ("test_attention.py", "test_layers.py", "test_sets.py", "test_multisets.py", "test_products.py")
ENGINE = (
    "test_a_shard_fully_absent",
    "test_independent_shards",
)


def test_types_and_shapes_of_the_innermost_packages():
    engine = [f"{TESTS / 'test_engine.py'}::{name}" for name in ENGINE]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *(str(TESTS / name) for name in FILES), *engine],
        cwd=TESTS.parent,
        env={**os.environ, "OMNISET_CHECKED": "all", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
