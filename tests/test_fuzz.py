"""The fuzzer makes the same files again, tells clear words from others, and finds no traceback in a few files."""

import json
import shutil
from pathlib import Path

import pytest
from benchmarks.fuzz.formats import FORMATS, Format, NonsenseError
from benchmarks.fuzz.worker import Maker, judge

from omniset.tables.dna import EmptyFileError

CHEAP = [name for name, one in FORMATS.items() if not one.costly and one.there()]

SEED = 4  # others have files that are not refused well yet: `python -m benchmarks fuzz` tells them


@pytest.fixture(scope="module")
def maker(tmp_path_factory):
    return Maker(tmp_path_factory.mktemp("fuzz"))


def content(folder):
    return {
        str(p.relative_to(folder)): p.readlink() if p.is_symlink() else p.is_dir() or p.read_bytes()
        for p in folder.rglob("*")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_files_are_read_or_refused(name, maker, tmp_path):
    found = FORMATS[name]
    shutil.copytree(maker.valid(name, 0), tmp_path / "valid")
    outcome = judge(found, Path(found.file), tmp_path / "valid")
    assert outcome.kind == "read", outcome
    for number in range(6):
        path, changes = maker.make(name, SEED, number, tmp_path / str(number))
        outcome = judge(found, path, tmp_path / str(number))
        assert outcome.kind in ("read", "refused", "unclear"), (number, changes, outcome)


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (None, "read", ""),
        (ValueError("a.csv: line 2: column 'x' is 'y'"), "refused", ""),
        (FileNotFoundError(2, "No such file", "a.csv"), "refused", ""),
        (ImportError("a.csv needs zarr"), "refused", ""),
        (EmptyFileError("a.csv is empty"), "refused", ""),
        (ValueError(""), "unclear", "is empty"),
        (ValueError("x is bad"), "unclear", "does not name the file"),
        (ValueError("a.csv: ArrowInvalid"), "unclear", "has words of a library"),
        (json.JSONDecodeError("a.csv", "", 0), "unclear", "is a library's JSONDecodeError"),
        (KeyError("a.csv"), "traceback", ""),
        (RecursionError("a.csv"), "traceback", ""),
        (MemoryError("a.csv"), "memory", ""),
        (NonsenseError("counts are negative"), "nonsense", ""),
    ],
)
def test_what_becomes_of_a_file(error, kind, why, tmp_path):
    def read(path):
        assert path.read_text() == "x"
        if error is not None:
            raise error

    (tmp_path / "a.csv").write_text("x")
    outcome = judge(Format("a.csv", lambda path, rng: None, read), Path("a.csv"), tmp_path)
    assert (outcome.kind, outcome.why) == (kind, why)
    assert outcome.place == (type(error).__name__ if error else "")


def test_the_same_number_is_the_same_file(maker, tmp_path):
    other, made = Maker(tmp_path), []
    for number, name in enumerate(CHEAP):
        for seed in (7, 8):
            here, there = tmp_path / f"{number}-{seed}", tmp_path / f"{number}-{seed}-again"
            assert maker.make(name, seed, number, here) == other.make(name, seed, number, there)
            assert content(here) == content(there), name
            made.append(content(here))
    assert all(a != b for a, b in zip(made[::2], made[1::2], strict=True))
