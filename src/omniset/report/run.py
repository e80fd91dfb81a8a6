"""One run of a command in its folder: what fit, use, evaluate and explain of every system do around their work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniset.runs import folders, processes
from omniset.runs.console import has_work, note_kept, noted, own_command, run_folder, say, say_notes
from omniset.runs.files import plain, provenance, write_json
from omniset.runs.locks import locked


@dataclass
class Folder:
    """The folder of a run while it is locked for it.

    Attributes:
        path: Where the run works.
        out: Where this folder is in the end.
        seed, device: Of the provenance.
        kinds: What it may hold in the end.
        saved: Whether its model is written.
        first: Whether this is the first of the processes that share the run, which alone writes.
    """

    path: Path
    out: Path
    system: str
    kind: str
    seed: int
    warnings: Callable[[], list[str]]
    device: str = "cpu"
    provenance: dict[str, Any] = field(default_factory=dict)
    first: bool = True
    kinds: Sequence[str] = ()
    saved: bool = False

    @property
    def holds(self) -> str:
        """What `run.json` says of it."""
        return self.kinds[0]

    def save(self, model: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """Write the model of the run, before its report: what fails there loses no model."""
        model.write(self.path, metrics)
        self.saved = True

    def settle(self, made: str) -> None:
        """Say which of its models the run makes, once that is known, before any work.

        Raises:
            ValueError: There is another one, which it does not replace.
        """
        if self.first:
            folders.check(self.out, [made], True)
        self.kinds = [made]

    def fail(self, error: BaseException, command: str, resume: bool | None) -> None:
        """Keep the model, or what is done, of a run that has failed; else remove what it has made."""
        if self.saved and not (self.out.is_dir() and folders.tree_of(self.out)):
            folders.finish(self.path, self.holds, command)
            folders.swap(self.path, self.out)
            error.add_note(f"the model is kept in {self.out}, without a report")
        elif self.saved or (resume is not None and has_work(self.path)):  # beside an earlier run, which stays whole
            folders.interrupted(self.path)
            note_kept(error, self.path)
        else:
            folders.clear(self.path)

    def about(self, title: str, notes: Sequence[str] = ()) -> Any:
        """What a report says of the run, see `omniset.report.frame.Run`. Warnings are those met so far."""
        from omniset.report.frame import Run

        return Run(self.system, self.kind, title, own_command(), self.provenance, self.warnings(), notes)

    def write(
        self,
        made: tuple[Any, dict[str, Any]],
        *,
        metrics: Mapping[str, Any] | None = None,
        scores: Mapping[str, Sequence[Any]] | None = None,
        histories: Mapping[str, list[dict[str, Any]]] | None = None,
        files: Sequence[str] = (),
        lines: Iterable[str] = (),
    ) -> None:
        """Write report.html, report.json and what MultiQC collects, then say the verdict and what matters.

        Args:
            made: What `omniset.report.frame.compose` gave.
            metrics: Of metrics.json, where the run has one.
            scores: For MultiQC, see `omniset.report.multiqc.of_ours`.
            histories: By name of what was trained.
            files: Names of what was written beside these.
            lines: What the command says of its result.
        """
        from omniset.report import multiqc
        from omniset.report import write as write_report

        page, numbers = made
        names = [*files]
        if metrics is not None:
            write_json(self.path / "metrics.json", plain(metrics))
            names.append("metrics.json")
        write_report(self.path, page, numbers)
        multiqc.write(self.path, self.out.resolve().name, scores or {}, histories or {})
        for line in (f"\n{numbers['verdict']}", *lines):
            say(line)
        say_notes(self.warnings())
        say(f"Written to {self.out}: {', '.join([*names, 'report.html', 'report.json'])}; run.json lists all files")


@contextmanager
def working_folder(
    out: Path,
    system: str,
    kind: str,
    *,
    makes: Sequence[str] = (),
    reads: Iterable[Path | str | None] = (),
    seed: int = 0,
    device: str = "cpu",
    resume: bool | None = None,
    first: bool | None = None,
) -> Iterator[Folder]:
    """The folder of a run, locked, with the warnings of the run caught. It is moved to `out` when the block ends well.

    Args:
        makes: Classes of the model that it may hold in the end; without any, it holds results of this kind.
        reads: What the run reads, which may not lie in `out`.
        resume: Whether to go on with what an interrupted run has done; None: such runs do not go on.
        first: Whether this is the first of the processes that share the run. None: of those that torchrun has started.

    Raises:
        OSError, ValueError: The folder cannot be written to, is held by another run, or has what may not be replaced.
    """
    first = processes.is_first(1, 1) if first is None else first
    work, replace, command = folders.unfinished(out), folders.REPLACE.get(), folders.essence(own_command())
    kinds = [*makes] or [f"{kind} of {system}"]
    rules: dict[str, Any] = {"replace": replace, "command": command if resume else None}
    if first:
        folders.check(out, kinds, **rules, reads=[None if path is None else Path(path).expanduser() for path in reads])
    held = locked(out) if first and out.is_dir() else nullcontext()  # by a fit in Python
    with held, noted() as warnings, run_folder(work, first, out):
        folder = Folder(work, out, system, kind, seed, warnings, device, provenance(seed, device), first, kinds)
        if first:
            folders.recover(out)
            folders.check(out, kinds, **rules)
            folders.take_up(out, " or ".join(kinds), command, resume, replace)
        try:
            yield folder
            if first:
                folders.finish(work, folder.holds, command)
                folders.check(out, kinds, **rules)
                folders.swap(work, out)
        except BaseException as error:
            if first and work.exists():
                folder.fail(error, command, resume)
            raise
