"""Commands that are killed, interrupted or out of disk: is nothing lost, and does the same command then go on?

Each verb of each system that writes is run where an earlier result of it lies, beside files of the user's own. It ends
at random moments, some of them in time, the others just before one of its changes to files. The disk that gets full is
a file system of its own in memory; where none can be mounted, files may not grow beyond a limit instead. Then the same
command runs again, with --resume true where it has that.

As at the shell, but that the packages are imported already. A moment is one of each third of the run, where there are
three.
"""

import argparse
import contextlib
import ctypes
import gzip
import hashlib
import json
import multiprocessing
import os
import pkgutil
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse

import omniset
from benchmarks.results import RESULTS, record
from omniset.genomes import simulate as genomes
from omniset.microbiomes import simulate as microbiomes
from omniset.regions import data as regions

WAYS = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130, "SIGTERM": 143, "full disk": 2}  # and the exit status of each
COUNTS = ("runs", "finished", "lost", "mixed", "traceback", "exit", "left", "unequal")
CHANGES = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2}  # and how many paths each names
ABOUT = ("command", "date", "provenance", "seconds", "cells_per_second", "peak_memory_mb")  # in JSON: of the run alone
PLENTY = 1 << 30  # bytes of the disk, when it is not full
PATIENCE = 300.0  # seconds of one run
ONE_AT_A_TIME = threading.Lock()  # to start a process asks how all others have ended, and a status is read once

QUIET, OUT = "--device cpu --progress false", "--out place/out"
TINY = f"--dim 8 --num_heads 2 --depth 1 {QUIET} --seed 0"
BRAIN = "--expression made/expression.csv --connectivity made/connectivity.csv --coordinates made/regions.csv"
READS = "--references made/references.fasta --taxonomy made/taxonomy.tsv --region 515F-806R --epochs 2 --seed 0 "
READS += QUIET
COUNTED = "--table made/table.tsv --sequences made/sequences.fasta"
CELLS = f"--batch_key batch {QUIET} --seed 0"
GENOMES = f"made/families.tsv --taxonomy made/taxonomy.tsv --clade genus {QUIET} --seed 0"
USE = f"--model model {QUIET}"
PARTS = f"parts {USE} --scheduler synchronous {OUT}"
DATA: dict[str, Callable[[Path], Any]] = {
    "genomes": lambda folder: genomes.write(folder, genomes.simulate(60, 61, 3)),
    "regions": lambda folder: regions.write_tables(folder, regions.simulate(34, 13)),
    "microbiomes": lambda folder: microbiomes.write(folder, microbiomes.simulate(3)),
}
VERBS = {
    "sets fit": f"sets.csv --target labels.csv --epochs 2 --folds 2 {TINY} {OUT}",
    "sets predict": f"sets.csv {USE} {OUT}.csv",
    "sets predict, parts": PARTS,
    "sets embed": f"sets.csv {USE} {OUT}.csv",
    "sets explain": f"sets.csv {USE} {OUT}.csv",
    "sets evaluate": f"sets.csv --target labels.csv {USE} {OUT}",
    "genomes fit": f"{GENOMES} --epochs 2 {OUT}",
    "genomes complete": f"made/mags.tsv {USE} {OUT}",
    "genomes complete, parts": PARTS,
    "genomes explain": f"GENOME00002 FAM00001 made/mags.tsv --model model --progress false {OUT}.csv",
    "genomes evaluate": f"{GENOMES} --seeds 1 --epochs 1 {OUT}",
    "cells fit": f"all.h5ad --epochs 2 --embedding_dim 8 --dim 8 {CELLS} {OUT}",
    "cells embed": f"all.h5ad {USE} {OUT}.h5ad",
    "cells embed, parts": PARTS,
    "cells annotate": f"all.h5ad --reference all.h5ad --label type --batch_key batch {USE} --seed 0 {OUT}",
    "cells explain": f"all.h5ad --cells cell1,cell2 {USE} {OUT}.tsv",
    "cells perturb": f"all.h5ad --condition batch --control b0 --label type --progress false {OUT}",
    "cells evaluate": f"all.h5ad --label_key type --methods pca --seeds 1 --epochs 1 {CELLS} {OUT}",
    "regions fit": f"{BRAIN} --method seed --epochs 6 --dim 8 --depth 1 {QUIET} --seed 0 {OUT}",
    "regions predict": f"{USE} {OUT}.csv",
    "regions explain": f"L_region_1 L_region_2 --nulls 20 {USE} {OUT}",
    "regions evaluate": f"{BRAIN} --folds 2 --seeds 1 --methods geometry {USE} --seed 0 {OUT}",
    "microbiomes fit": f"{READS} {OUT}",
    "microbiomes classify": f"{COUNTED} {USE} {OUT}",
    "microbiomes classify, parts": PARTS,
    "microbiomes explain": f"ASV1 {COUNTED} {USE} {OUT}.tsv",
    "microbiomes evaluate": f"{READS} --methods omniset,naive-bayes --seeds 1 --sizes 64 {OUT}",
}


class NotRunError(Exception):
    """A command that nothing interrupts does not end well."""


# ---------------------------------------------------------------------- what is judged


@dataclass(frozen=True)
class File:
    """Digests of a file as it is, and of its result alone."""

    whole: str
    result: str


def files_of(folder: Path) -> dict[str, File]:
    """And folders, which may be left without any file."""
    return {str(p.relative_to(folder)): File("", "") if p.is_dir() else _file(p) for p in sorted(folder.rglob("*"))}


def _file(path: Path) -> File:
    data = path.read_bytes()
    result = data
    with contextlib.suppress(ValueError, OSError, EOFError):  # of what is half written
        if path.suffix == ".json":
            result = json.dumps(_without(json.loads(data)), sort_keys=True).encode()
        elif path.suffix == ".gz":
            result = gzip.decompress(data)  # whose header has the time
        elif path.suffix == ".safetensors":  # the same, of a model: config.json once more
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            header.pop("__metadata__", None)
            result = json.dumps(header, sort_keys=True).encode() + data[end:]
    return File(*(hashlib.sha256(bytes_).hexdigest() for bytes_ in (data, result)))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(v) for key, v in value.items() if key not in ABOUT}
    return [_without(v) for v in value] if isinstance(value, list) else value


@dataclass
class Judge:
    """Tells what an interruption has left, from files by name.

    Attributes:
        before: What was there.
        after: What is there when the command has ended well.
        varies: Names whose result differs from run to run, so that it tells only whether they are new.
    """

    before: Mapping[str, File]
    after: Mapping[str, File]
    varies: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        names = {*self.before, *self.after}
        self.own = {name for name in names if self.before.get(name) != self.after.get(name)}

    def is_new(self, name: str, now: Mapping[str, File]) -> bool:
        found, wanted = now.get(name), self.after.get(name)
        if found is None or wanted is None:
            return found is wanted
        return found != self.before.get(name) if name in self.varies else found.result == wanted.result

    def damage(self, now: Mapping[str, File]) -> dict[str, list[str]]:
        """By kind, the names: "lost" are files neither as before nor new, "mixed" new ones between those of before."""
        others = [name for name in self.before if name not in self.own and now.get(name) != self.before[name]]
        old = {name for name in self.own if now.get(name) == self.before.get(name)}
        new = {name for name in self.own if self.is_new(name, now)}
        found = {"lost": others} if others else {}
        if self.own in (old, new):
            return found
        neither = sorted(self.own - old - new)
        return found | ({"lost": [*others, *neither]} if neither else {"mixed": sorted(new - old) or sorted(old - new)})

    def is_done(self, now: Mapping[str, File]) -> bool:
        return all(self.is_new(name, now) for name in self.own)

    def left(self, now: Mapping[str, File]) -> list[str]:
        """Files that are neither of before nor of the result."""
        return sorted(now.keys() - self.before.keys() - self.after.keys())


# ---------------------------------------------------------------------- running a command


@dataclass
class Outcome:
    """How a run ended, and before which change to a file it got its signal."""

    code: int | None
    said: str
    seconds: float = 0.0
    changes: int = 0
    peak: int = 0  # bytes on the disk
    place: str = ""


def run(
    words: list[str], disk: Path, *, number: int = 0, at: int = 0, seconds: float | None = None, limit: int = 0
) -> Outcome:
    """Run a command in the folder of a disk.

    Args:
        number: Signal that it gets, before its change `at`, or after so many seconds.
        limit: Bytes beyond which no file grows. 0: none.
    """
    context = multiprocessing.get_context("forkserver")
    connection, theirs = context.Pipe()
    with tempfile.NamedTemporaryFile("r", errors="replace") as said:
        arguments = (words, disk, said.name, theirs, number if seconds is None else 0, at, limit)
        process: Any = context.Process(target=_become, args=arguments)
        with ONE_AT_A_TIME:
            process.start()
        theirs.close()
        with contextlib.suppress(EOFError):
            connection.recv()
        start, peak, messages, signalled = time.monotonic(), 0, [], False
        while _status(process) is None:
            time.sleep(0.005)
            peak = max(peak, used(disk))
            passed = time.monotonic() - start
            if seconds is not None and passed >= seconds and not signalled:
                signalled = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
            if passed > PATIENCE:
                process.kill()
        with contextlib.suppress(EOFError):
            while connection.poll():
                messages.append(connection.recv())
        place = next((m for m in messages if isinstance(m, str)), "")
        changes = next((m for m in messages if isinstance(m, int)), 0)
        code = None if passed > PATIENCE else _status(process)
        return Outcome(code, said.read(), passed, changes, peak, place)


def _status(process: Any) -> int | None:
    with ONE_AT_A_TIME:
        status: int | None = process.exitcode
        return status


def _become(words: list[str], disk: Path, said: str, connection: Any, number: int, at: int, limit: int) -> None:
    """The process of a command: counts its changes to files on the disk, and ends it before one."""
    os.setsid()
    os.chdir(disk)
    os.environ |= {"TMPDIR": str(disk / "tmp"), "OMP_NUM_THREADS": "1"}
    tempfile.tempdir = None
    stream = os.open(said, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(stream, descriptor)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # Python ignores SIGXFSZ
    count = 0

    def change(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            paths = arguments[:1] if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ()
        else:
            paths = arguments[: CHANGES.get(event, 0)]
        names = [os.path.abspath(os.fsdecode(path)) for path in paths if not isinstance(path, int)]
        if any(name.startswith(f"{disk}/") for name in names):
            count += 1
            if number and count == at:
                connection.send(f"{event} {' '.join(os.path.relpath(name, disk) for name in names)}")
                os.kill(os.getpid(), number)

    from omniset.cli import main

    sys.addaudithook(change)
    connection.send(None)
    code = main(words)
    connection.send(count)
    ctypes.CDLL(None).exit(code)  # where libraries close their files


def used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@contextlib.contextmanager
def mounted(folder: Path, mount: bool) -> Iterator[Path]:
    """A disk of its own there, where that is to be."""
    folder.mkdir()
    if mount:
        subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={PLENTY}", "tmpfs", folder), check=True)
    try:
        yield folder
    finally:
        if mount:
            subprocess.run(("umount", "-l", folder), check=True)


def resize(disk: Path, size: int) -> None:
    subprocess.run(("mount", "-o", f"remount,size={size}", disk), check=True)


def can_mount(scratch: Path) -> bool:
    with contextlib.suppress(OSError, subprocess.CalledProcessError), mounted(scratch / "try", True) as disk:
        resize(disk, PLENTY // 2)
        return True
    return False


# ---------------------------------------------------------------------- data and models


def make(system: str, folder: Path) -> None:
    """A folder with data, two models, files of the user's own, and a place for results."""
    for name in ("place/theirs", "tmp", "parts"):
        (folder / name).mkdir(parents=True)
    for name in ("notes.txt", "place/notes.txt", "place/theirs/table.csv", "place/theirs/.hidden"):
        (folder / name).write_text(f"mine: {name}\n")
    rng = np.random.default_rng(0)
    if system == "sets":
        labels = pd.DataFrame({"set": [f"s{i}" for i in range(41)], "label": rng.choice(["a", "b"], 41)})
        labels.to_csv(folder / "labels.csv", index=False)
        rows = labels.loc[np.repeat(np.arange(41), rng.integers(1, 7, 41))]
        frame = rows[["set"]].assign(x=rng.normal(size=len(rows)) + (rows["label"] == "b"))
        frame.to_csv(folder / "sets.csv", index=False)
        for number in range(3):
            frame[frame.index % 3 == number].to_csv(folder / f"parts/{number}.csv", index=False)
    elif system == "cells":
        write_cells(folder / "all.h5ad", rng)
    else:
        DATA[system](folder / "made")
    if system == "genomes":
        head, *lines = (folder / "made/mags.tsv").read_text().splitlines(keepends=True)
        for number, line in enumerate(lines):
            (folder / f"parts/{number}.tsv").write_text(head + line)
    for file in (*folder.glob("all.h5ad"), *folder.glob("made/reads.fastq.gz")):
        for number in range(3):
            shutil.copy(file, folder / f"parts/{number}.{file.name.partition('.')[2]}")
    fit = " ".join(words_of(f"{system} fit"))
    must(fit.replace("place/out", "model").split(), folder)
    must(fit.replace("place/out", "other").replace("--seed 0", "--seed 1").split(), folder)


def write_cells(path: Path, rng: np.random.Generator) -> None:
    types, batches = rng.integers(0, 3, 97), np.arange(97) % 2
    counts = rng.poisson(rng.gamma(0.5, 2, (3, 31))[types] * (1 + batches)[:, None]).astype(np.float32)
    obs = pd.DataFrame({"type": [f"t{i}" for i in types], "batch": [f"b{i}" for i in batches]})
    obs.index = pd.Index([f"cell{i}" for i in range(97)], dtype=object)
    var = pd.DataFrame(index=pd.Index([f"Gene{i}" for i in range(31)], dtype=object))
    anndata.AnnData(scipy.sparse.csr_matrix(counts), obs, var).write_h5ad(path)


def words_of(verb: str) -> list[str]:
    return [*verb.partition(",")[0].removeprefix("sets ").split(), *VERBS[verb].split()]


def must(words: list[str], disk: Path) -> Outcome:
    outcome = run(words, disk)
    if outcome.code != 0:
        raise NotRunError(f"{' '.join(words)} ended with {outcome.code}: {outcome.said[-2000:]}")
    return outcome


# ---------------------------------------------------------------------- all of it


@dataclass
class Attack:
    """A verb in a folder that is made anew for each run."""

    verb: str
    made: Path  # by `make`
    disk: Path
    mount: bool

    def row(self, moments: int, seed: int) -> dict[str, Any]:
        self.words, self.start = words_of(self.verb), self.made.with_name(f"{self.disk.name}.start")
        said = must([*self.words, "--help"], self.disk).said
        resumes = "--resume " in said and ("--scheduler " not in said or "--scheduler" in self.words)
        self.resumes = ["--resume", "true"] if resumes else []
        self._fresh(self.made)
        earlier = " ".join(self.words).replace("--seed 0", "--seed 1").replace("--model model", "--model other")
        must(earlier.split(), self.disk)
        self.words += ["--replace", "true"] if "--replace " in said else []
        shutil.copytree(self.disk, self.start)
        runs = []
        for _ in range(2):  # what differs between the two, varies
            self._fresh(self.start)
            before, space = files_of(self.disk), used(self.disk)
            runs.append((must(self.words, self.disk), files_of(self.disk)))
        (whole, after), (_, again) = runs
        varies = {name for name in after if name.endswith(".html") or again[name].result != after[name].result}
        judge = Judge(before, after, varies)
        sizes = [path.stat().st_size for path in self.disk.rglob("*")]
        need = whole.peak - space if self.mount else max(sizes)
        counts: Counter[str] = Counter()
        failures, chance = [], random.Random(f"{seed} {self.verb}")
        for way_number, (way, code) in enumerate(WAYS.items()):
            for moment in range(moments):
                part = (moment + chance.random()) / moments
                place, found = self._one(judge, way, code, part, (way_number + moment) % 2 == 0, whole, need)
                counts.update(["runs", *found])
                failures += [f"{way} {place}: {kind}: {what}" for kind, what in found.items() if kind != "finished"]
        return {
            "command": " ".join(["omniset", *self.words]),
            "resume": bool(self.resumes),
            "seconds": round(whole.seconds, 2),
            "changes": whole.changes,
            "not_compared": sorted(varies & judge.own),
            **{kind: counts[kind] for kind in COUNTS},
            "failures": failures,
        }

    def _one(
        self, judge: Judge, way: str, code: int, part: float, timed: bool, whole: Outcome, need: int
    ) -> tuple[str, dict[str, str]]:
        """End it there, run it again: where that was, and what is wrong, by kind."""
        self._fresh(self.start)
        found: dict[str, str] = {}
        number = getattr(signal, way, 0)
        if way == "full disk":
            place, limit = f"after {part * need:,.0f} of {need:,} bytes", int(part * need) // 4096 * 4096
            if self.mount:
                resize(self.disk, used(self.disk) + limit)
            outcome = run(self.words, self.disk, limit=0 if self.mount else max(limit, 1))
            if self.mount:
                resize(self.disk, PLENTY)
        elif timed:
            place = f"after {part * whole.seconds:.2f} of {whole.seconds:.2f} s"
            outcome = run(self.words, self.disk, number=number, seconds=part * whole.seconds)
        else:
            at = 1 + int(part * whole.changes)
            outcome = run(self.words, self.disk, number=number, at=at)
            place = f"before change {at} of {whole.changes} ({outcome.place})"
        now = files_of(self.disk)
        if outcome.code in (0, -number) and judge.is_done(now):  # the signal came while Python ended, after the command
            found["finished"] = "it was done before"
        elif outcome.code != code:
            found["exit"] = f"{outcome.code} in place of {code}: {_last(outcome)}"
        if "Traceback" in outcome.said:
            found["traceback"] = " ".join(outcome.said.rpartition("Traceback")[2].split())[-300:]
        found |= {kind: _few(names) for kind, names in judge.damage(now).items()}
        if way != "SIGKILL" and (left := [n for n in judge.left(now) if n.startswith("tmp/") or not self.resumes]):
            found["left"] = _few(left)
        again = run([*self.words, *self.resumes], self.disk)
        now = files_of(self.disk)
        wrong = sorted(name for name in judge.own if not judge.is_new(name, now))
        if again.code != 0:
            found["unequal"] = f"the next run ended with {again.code}: {_last(again)}"
        elif wrong:
            found["unequal"] = _few(wrong)
        if left := [name for name in judge.left(now) if way != "SIGKILL" or not name.startswith("tmp/")]:
            found["left"] = f"{_few(left)}, also after the next run"
        return place, found

    def _fresh(self, start: Path) -> None:
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(start, self.disk, dirs_exist_ok=True)


def _last(outcome: Outcome) -> str:
    return outcome.said.strip().rpartition("\n")[2][-300:]


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks interruptions", description=__doc__)
    parser.add_argument("--only", default="", help="verbs whose names begin so, with commas between: sets,cells fit")
    parser.add_argument("--moments", type=int, default=3, help="of each of the four ways to end (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time (default: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS / "interruptions.json")
    given = parser.parse_args(sys.argv[2:])
    verbs = [verb for verb in VERBS if any(verb.startswith(prefix) for prefix in given.only.split(","))]
    if not verbs:
        parser.error(f"--only: there are {', '.join(VERBS)}")
    modules = [m.name for m in pkgutil.walk_packages(omniset.__path__, "omniset.") if "__main__" not in m.name]
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that a process has started would be missing in what it forks
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # which tells that the killed left semaphores
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, *modules])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no disk stays mounted
    with tempfile.TemporaryDirectory(prefix="omniset-interruptions-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        scratch = Path(folder).resolve()
        mount = can_mount(scratch)
        print(f"{'':32}" + "".join(f"{kind:>10}" for kind in COUNTS) + f"{'s':>8}", flush=True)

        def attack(verb: str) -> dict[str, Any]:
            start = time.monotonic()
            with mounted(scratch / verb.replace(" ", "-"), mount) as disk:
                try:
                    row = Attack(verb, scratch / verb.split()[0], disk, mount).row(given.moments, given.seed)
                except NotRunError as error:
                    row = dict.fromkeys(COUNTS, 0) | {"not_run": f"{error}", "failures": [f"{error}"]}
            print(f"{verb:32}" + "".join(f"{row[kind]:>10,}" for kind in COUNTS), end="")
            print(f"{time.monotonic() - start:>8.1f}", *row["failures"], sep="\n    ", flush=True)
            return row

        systems = {verb.split()[0] for verb in verbs}
        list(pool.map(lambda system: make(system, scratch / system), systems))
        try:
            rows = dict(zip(verbs, pool.map(attack, verbs), strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what runs is finished, and its disk unmounted
            raise
    values = {
        "moments": given.moments,
        "disk": "a file system in memory" if mount else "a limit on the size of a file",
        "total": {kind: sum(row[kind] for row in rows.values()) for kind in COUNTS},
        "verbs": rows,
    }
    record(os.path.relpath(given.out.with_suffix(""), RESULTS), values, seed=given.seed, part_of="interruptions")
