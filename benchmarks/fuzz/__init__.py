"""Files that are damaged, strange or hostile: does every reader read them, or refuse them in one clear line?

File NUMBER of SEED of a format is the same wherever it is made with the same versions of the packages (of models: on
the same kind of processor). A worker process makes the files and reads them, with a limit on time and memory; a file
that ends or stops it costs that process alone.
"""

import argparse
import faulthandler
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.fuzz.formats import FORMATS
from benchmarks.fuzz.worker import Maker, Outcome, judge, limit_memory, place_in_log, work
from benchmarks.results import RESULTS, record

BAD = ("unclear", "traceback", "nonsense", "memory", "hang", "crash")
KINDS = ("read", "refused", *BAD)
EXAMPLES = 20  # of a format, each of another place
MAKING = 300.0  # seconds that imports, a valid file and a change may take
PATIENCE = 3  # times the limit, the second time: the machine may have been busy


class NotReadError(Exception):
    """A file without any change is not read."""


class Worker:
    """A process that reads files; another one where it has ended."""

    def __init__(self, folder: Path, seconds: float, memory: int) -> None:
        self.folder, self.seconds, self.memory = folder, seconds, memory
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None

    def outcome(self, name: str, seed: int, number: int) -> Outcome:
        """What becomes of a file. One that takes too long gets a second chance."""
        found = self._once(name, seed, number, self.seconds)
        return self._once(name, seed, number, PATIENCE * self.seconds) if found.kind == "hang" else found

    def _once(self, name: str, seed: int, number: int, seconds: float) -> Outcome:
        if self._process is None:
            self._connection, theirs = self._context.Pipe()
            arguments = (theirs, self.folder, 0.9 * seconds, self.memory)
            self._process = self._context.Process(target=work, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        file = f"{name}:{seed}:{number}"
        try:
            self._connection.send((name, seed, number))
            kind, answer = (
                self._connection.recv() if self._connection.poll(MAKING) else ("not made", "it takes too long")
            )
        except (EOFError, OSError):
            self._process.join(10)
            raise RuntimeError(f"{file}: the process ended before it read it, {self._process.exitcode}") from None
        if kind == "not made":
            raise RuntimeError(f"{file} could not be made: {answer}")
        if kind == "broken":
            raise NotReadError(f"the valid file is not read: {answer['place']}: {answer['said']}")
        try:
            if not self._connection.poll(seconds):
                return self._ended("hang", f"more than {seconds:g} s", answer)
            return Outcome(**self._connection.recv()[1])
        except (EOFError, OSError):
            self._process.join(10)
            return self._ended("crash", f"the process ended with {self._process.exitcode}", answer)

    def _ended(self, kind: str, words: str, changes: list[str]) -> Outcome:
        self.close()
        return Outcome(kind, words, kind + place_in_log(self.folder), changes=changes)

    def close(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._connection.send(None)  # ends by itself, if it listens
                self._process.join(1)
            self._process.kill()
            self._process.join()
            self._process = None


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="how many of each format (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", help="formats whose names begin so, with commas between: tables,cells/10x"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "fuzz.json")
    parser.add_argument("--seconds", type=float, default=10, help="that reading a file may take (default: 10)")
    parser.add_argument("--memory", type=float, default=8, help="GiB that the process may take (default: 8)")
    parser.add_argument("--replay", metavar="FORMAT:SEED:NUMBER", help="read this one file, with the whole traceback")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where --replay leaves the file; must not be there")
    given = parser.parse_args(sys.argv[2:])
    if given.replay:
        limit_memory(int(given.memory * 2**30))
        faulthandler.dump_traceback_later(MAKING + PATIENCE * given.seconds, exit=True)
        replay(given.replay, given.keep)
        return
    names = [n for n in FORMATS if any(n.startswith(prefix) for prefix in given.only.split(","))]
    if not names:
        parser.error(f"--only: there are {', '.join(FORMATS)}")
    absent = [n for n in names if not FORMATS[n].there()]
    with tempfile.TemporaryDirectory(prefix="omniset-fuzz-") as folder:
        worker = Worker(Path(folder), given.seconds, int(given.memory * 2**30))
        try:
            print(f"{'':32}" + "".join(f"{kind:>10}" for kind in KINDS) + f"{'s':>8}", flush=True)
            rows = {n: run(worker, n, given.seed, given.files) for n in names if n not in absent}
        finally:
            worker.close()
    if unread := [n for n, row in rows.items() if "not_read" in row]:
        sys.exit(f"valid files are not read, so nothing is recorded: {', '.join(unread)}")
    total = {kind: sum(row[kind] for row in rows.values()) for kind in KINDS}
    print(f"{'all':32}" + "".join(f"{total[kind]:>10,}" for kind in KINDS))
    values = {
        "files_of_each": given.files,
        "seconds": given.seconds,
        "memory_gib": given.memory,
        "left_out": {n: FORMATS[n].needs for n in absent},
        "total": total,
        "formats": rows,
    }
    record(os.path.relpath(given.out.with_suffix(""), RESULTS), values, seed=given.seed, part_of="fuzz")


def run(worker: Worker, name: str, seed: int, files: int) -> dict[str, Any]:
    """Numbers of all outcomes of a format, and examples of the bad ones."""
    start = last = time.monotonic()
    kinds: Counter[str] = Counter()
    slowest = 0.0, ""
    examples: dict[tuple[str, str, str], dict[str, Any]] = {}
    for number in range(files):
        try:
            found = worker.outcome(name, seed, number)
        except NotReadError as error:
            print(f"{name:32}{error}", flush=True)
            return dict.fromkeys(("files", *KINDS), 0) | {"not_read": str(error)}
        kinds[found.kind] += 1
        slowest = max(slowest, (found.seconds, f"{name}:{seed}:{number}"))
        if found.kind in BAD:
            example = {"file": f"{name}:{seed}:{number}", "times": 0, **vars(found)}
            del example["seconds"]
            examples.setdefault((found.kind, found.place, found.why.partition(" ")[0]), example)["times"] += 1
        if sys.stderr.isatty() and time.monotonic() - last > 1:
            last = time.monotonic()
            print(f"\r{name}: {number + 1} of {files}", end="\r", file=sys.stderr, flush=True)
    seconds = time.monotonic() - start
    print(f"{name:32}" + "".join(f"{kinds[kind]:>10,}" for kind in KINDS) + f"{seconds:>8.1f}", flush=True)
    order = sorted(examples.values(), key=lambda e: (-BAD.index(e["kind"]), -e["times"]))
    return {
        "files": files,
        **{kind: kinds[kind] for kind in KINDS},
        "slowest": {"file": slowest[1], "seconds": round(slowest[0], 2)},
        "places": len(order),
        "examples": order[:EXAMPLES],
    }


def replay(said: str, keep: Path | None) -> None:
    """Make one file, say what was done to it, and read it in this process."""
    name, _, numbers = said.partition(":")
    seed, _, number = numbers.partition(":")
    if name not in FORMATS or not (seed.isdecimal() and number.isdecimal()):
        sys.exit(f"--replay must be FORMAT:SEED:NUMBER, such as tables/sets.csv:0:7, got {said!r}")
    with tempfile.TemporaryDirectory(prefix="omniset-fuzz-") as scratch:
        folder = Path(scratch) / "case" if keep is None else keep.absolute()
        path, changes = Maker(Path(scratch)).make(name, int(seed), int(number), folder)
        print(f"{folder / path}: {'; '.join(changes)}", flush=True)
        before = Path(scratch) / "read"
        shutil.copytree(folder, before, symlinks=True)  # what reading leaves behind is not kept
        outcome = judge(FORMATS[name], path, before)
        print(f"{outcome.kind} {outcome.why}: {outcome.place}\n{outcome.said}\n", flush=True)
        if outcome.kind not in ("read", "refused"):
            os.chdir(before)
            try:
                FORMATS[name].read(path)
            except Exception:
                traceback.print_exc()
