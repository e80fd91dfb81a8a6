"""Compiled blocks: built once, by whatever compiler there is, in a folder of the user's alone; and work for threads."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from omniset.kernels import blocks, targets, team
from omniset.layers import MultisetAttentionBlock


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """What `library` finds out when it is asked first, with a cache folder of its own."""
    blocks.library()  # that of the other tests is in the user's folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OMNISET_COMPILE", raising=False)
    return blocks.library.__wrapped__


ALONE = "set XDG_CACHE_HOME to a folder of yours alone"


def fake(tmp_path, script):
    """A compiler."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


COMPILES = '[ "$1" = --version ] && exit; for last; do :; done'  # to the file that the last word names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reason", "remembered"),
    [
        ("exit 1", "ended with 1", False),
        (f"{COMPILES}; echo one >&2; echo fatal error: no such header >&2; exit 1", "no such hea", True),
        (f'{COMPILES}; echo nonsense > "$last"', "OSError: ", True),
        (f'{COMPILES}; : > "$last"', "OSError: ", True),
        (f'{COMPILES}; echo | c++ -x c++ - -shared -o "$last"', "undefined", True),
        ("none", "no such file or directory: 'none'", False),
        ("two 'words", "No closing quotation", False),
    ],
)
def test_a_compiler_that_fails_is_told_once(script, reason, remembered, anew, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", script if script.isalpha() or "words" in script else fake(tmp_path, script))
    with pytest.warns(RuntimeWarning, match=f"(?i)^no code was compiled.*{reason}[^\n]*OMNISET_COMPILE=0") as told:
        assert anew() is None
    assert len(told) == 1
    assert len([*(tmp_path / "omniset").glob("*.failed")]) == remembered
    if remembered:
        assert anew() is None
        monkeypatch.setattr(blocks, "AGAIN", -1.0)
        with pytest.warns(RuntimeWarning):
            assert anew() is None
    assert not [*(tmp_path / "omniset").glob("*.so")]


def test_without_a_compiler_nothing_is_said(anew, monkeypatch):
    monkeypatch.setenv("CXX", " ")
    monkeypatch.setenv("PATH", "/there/is/none")
    assert anew() is None


def test_it_can_be_switched_off(anew, monkeypatch):
    monkeypatch.setenv("OMNISET_COMPILE", "0")
    assert anew() is None


@pytest.fixture
def built(anew, monkeypatch, tmp_path):
    """How often the compiler, of two words, has been called for more than its version; it takes little time."""
    if blocks.library() is None:
        pytest.skip("there is no compiler here")
    count = tmp_path / "count"
    count.touch()
    first = tmp_path / "cache"
    first.write_text(f'#!/bin/sh\n[ "$2" = --version ] && echo 1 || echo built >> {count}; exec "$@"\n')
    first.chmod(0o700)
    monkeypatch.setenv("CXX", f"{first} {shutil.which('c++')}")
    monkeypatch.setattr(targets, "FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC"))
    monkeypatch.setattr(targets, "TARGETS", {"native": ("", (), ())})
    return lambda: len(count.read_text().splitlines())


@pytest.mark.slow
def test_it_is_built_once_and_only_where_nobody_else_writes(anew, built, tmp_path, caplog):
    before = os.umask(0o002)  # as where each user has a group
    try:
        assert anew() is not None
    finally:
        os.umask(before)
    (kept,) = (tmp_path / "omniset").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    assert anew() is not None
    assert built() == 1
    kept.chmod(0o766)  # others could have changed it
    assert anew() is not None
    assert built() == 2
    assert not kept.stat().st_mode & 0o022
    (tmp_path / "omniset").chmod(0o777)  # others could exchange it
    assert anew() is not None
    assert built() == 3
    assert [*(tmp_path / "omniset").iterdir()] == [kept]
    cache = f"in {tmp_path / 'omniset'}"  # told when it is built, and then only
    assert [said.split(" is kept ")[1] for said in caplog.messages] == [cache, cache, f"nowhere: {ALONE}"]


@pytest.mark.slow
def test_a_file_that_is_damaged_is_built_anew(anew, built, tmp_path):
    assert anew() is not None
    (kept,) = (tmp_path / "omniset").iterdir()
    whole = kept.read_bytes()
    changed = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    # A file that is loaded stays as it is: another takes its place.
    for times, content in enumerate([b"", b"garbage", changed, whole[: len(whole) * 3 // 7]], 2):
        kept.unlink()
        kept.write_bytes(content)
        kept.chmod(0o700)
        assert anew() is not None
        assert built() == times
        assert kept.read_bytes() == whole


@pytest.mark.slow
def test_a_library_without_the_functions_is_built_anew(anew, built, tmp_path):
    """Though its name tells its content."""
    assert anew() is not None
    (kept,) = (tmp_path / "omniset").iterdir()
    kept.unlink()
    other = tmp_path / "other.so"
    subprocess.run(["c++", "-x", "c++", "-", "-shared", "-o", other], input=b"int one;", check=True)
    other.chmod(0o700)
    other.rename(kept.with_stem(f"{kept.stem.rpartition('-')[0]}-{blocks._digest(other)}"))
    assert anew() is not None
    assert built() == 2


@pytest.mark.slow
def test_what_is_ready_is_used_with_its_sources_only(anew, built, monkeypatch, tmp_path, caplog):
    anew()
    ready, caplog.records[:] = tmp_path / f"{targets.stem('native')}.so", []
    shutil.move(next((tmp_path / "omniset").iterdir()), ready)
    monkeypatch.setattr(blocks, "__file__", str(tmp_path / "blocks.py"))
    assert anew()._name == str(ready)
    assert (built(), caplog.messages) == (1, [])
    with monkeypatch.context() as off:
        off.setenv("OMNISET_COMPILE", "0")
        assert anew() is None
    for source in targets.SOURCES:
        shutil.copy(source, tmp_path)
    monkeypatch.setattr(targets, "SOURCES", [tmp_path / source.name for source in targets.SOURCES])
    assert anew()._name == str(ready)
    with targets.SOURCES[-1].open("a") as edited:
        edited.write("// edited")
    assert Path(anew()._name).parent == tmp_path / "omniset"
    assert built() == 2
    monkeypatch.setenv("PATH", "/there/is/none")
    monkeypatch.delenv("CXX")
    assert anew() is None
    (tmp_path / f"{targets.stem('native')}.so").write_bytes(b"garbage")
    assert anew() is None


HASWELL = "fpu sse2 ssse3 fma cx16 movbe popcnt avx f16c bmi1 avx2 bmi2"


@pytest.mark.parametrize(
    ("machine", "features", "name"),
    [
        ("x86_64", "fpu sse2 ssse3 sse4_2 popcnt avx", "native"),  # Sandy Bridge
        ("x86_64", "fpu sse2 ssse3 avx f16c fma fma4", "native"),  # Piledriver
        ("x86_64", HASWELL, "avx2"),
        ("x86_64", f"{HASWELL} avx512f avx512pf avx512er avx512cd", "avx2"),  # Knights Landing
        ("x86_64", f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl", "avx512"),  # Skylake-X
        ("x86_64", "x86_64  host", "native"),  # where nothing is listed
        ("aarch64", "fp asimd evtstrm aes crc32 atomics sve", "neon"),
        ("armv7l", "half thumb vfp neon asimd", "native"),
        ("arm64", "arm64 arm host", "native"),  # macOS
    ],
)
def test_the_target_follows_from_what_the_processor_can_do(machine, features, name):
    assert targets.best(machine, features.split()) == name


NOBODY = """
import pwd

def none(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = none
from omniset.kernels import blocks, targets
targets.FLAGS = ("-std=c++17", "-O0", "-shared", "-fPIC")
targets.TARGETS = {"native": ("", (), ())}
assert blocks.library() is not None
"""


@pytest.mark.slow
def test_without_a_home_it_is_built_for_the_process(built, tmp_path):
    hidden = {"HOME", "XDG_CACHE_HOME"}
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"TMPDIR": str(tmp_path)}
    before = {*tmp_path.iterdir()}
    done = subprocess.run([sys.executable, "-c", NOBODY], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"omniset: compiling C++, which takes some seconds; it is kept nowhere: {ALONE}\n"
    assert built() == 1
    assert {*tmp_path.iterdir()} == before


def test_pieces_are_all_elements_once():
    shapes = [(0, 5, 3), (0, 0, 3), (5, 0, 3), (1, 1, 1), (1, 100_003, 7), (3, 70_001, 32), (41, 1_009, 64)]
    for shape in (*shapes, (1_009, 3, 512)):
        x = torch.zeros(shape)
        parts = team.pieces(x)
        for piece in parts:
            x[piece.first : piece.last, piece.start : piece.stop] += 1
        assert bool((x == 1).all())
        assert 1 <= len(parts) <= 2 * team.PIECES
        owners = torch.full((team.slots(parts),), -1)
        for piece in parts:
            owners[piece.slot : piece.slot + piece.last - piece.first] = torch.arange(piece.first, piece.last)
        assert bool((team.by_set(owners, shape[0]) == torch.arange(shape[0])[:, None]).all())


def test_threads_take_all_pieces_and_raise_the_error_of_any():
    torch.set_num_threads(3)
    parts = team.pieces(torch.empty(1, 1 << 20, 1))
    seen = set()
    both = threading.Barrier(2, timeout=60)

    def work(piece):
        if piece in parts[:2]:
            both.wait()  # two threads at once
        seen.add(threading.current_thread())
        assert torch.get_num_threads() == 1
        return piece

    assert team.share_out(parts, work) == parts
    assert len(seen) >= 2
    assert torch.get_num_threads() == 3

    def fails(piece):
        if piece == parts[5]:
            raise RuntimeError("the sixth")

    with pytest.raises(RuntimeError, match="the sixth"):
        team.share_out(parts, fails)
    assert torch.get_num_threads() == 3


FORKED = """
import os
import torch
from omniset.kernels import team

torch.set_num_threads(2)
parts = team.pieces(torch.empty(1, 1 << 20, 1))
assert team.share_out(parts, lambda piece: piece) == parts
child = os.fork()
torch.set_num_threads(2)
assert team.share_out(parts, lambda piece: piece) == parts
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
def test_a_child_that_is_forked_has_threads_of_its_own():
    """In a process of its own, as other libraries of the tests do not like it."""
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=300)


@pytest.mark.parametrize(
    ("sets", "elements", "dim", "points", "expected"),
    [
        (1, 100, 32, 4, "SmallBlock"),
        (100, 10, 128, 4, "Add"),  # small.cpp would compute as many rows that pad
        (16, 100, 64, 16, "SmallBlock"),
        (1, 4000, 32, 4, "Spread"),
        (1, 1000, 32, 16, "SmallBlock"),
        (1, 32_768, 128, 8, "Spread"),
        (16, 1000, 64, 4, "Spread"),
        (2, 100, 256, 16, "Spread"),
    ],
)
def test_the_form_of_a_block_follows_from_its_sizes(sets, elements, dim, points, expected):
    if blocks.library() is None:
        pytest.skip("there is no compiler here")
    block = MultisetAttentionBlock(dim, 4)
    out = block(torch.zeros(sets, elements, dim), torch.zeros(sets, points, dim))
    assert out.grad_fn.name().startswith(f"{expected}Backward")
