"""Options with which a command on sets takes a second: for tests of what it reads and writes."""

import pytest

QUIET = ["--progress=false", "--device=cpu"]
TINY = ["--method=ust", "--dim=8", "--num_heads=2", "--depth=1", "--epochs=1"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """For those that import it: names of files are of a folder of the test."""
    monkeypatch.chdir(tmp_path)
