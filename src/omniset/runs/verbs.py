"""One run of a command in its folder: what fit, use, evaluate and explain of every system do around their work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniset.runs import processes
from omniset.runs.console import noted, own_command, run_folder, say, say_notes
from omniset.runs.files import plain, provenance, write_json


@dataclass
class Folder:
    """The folder of a run while it is locked for it.

    Attributes:
        seed, device: Of the provenance.
        first: Whether this is the first of the processes that share the run, which alone writes.
    """

    path: Path
    system: str
    kind: str
    seed: int
    warnings: Callable[[], list[str]]
    device: str = "cpu"
    provenance: dict[str, Any] = field(default_factory=dict)
    first: bool = True

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
        """Write report.html, report.json and what MultiQC collects, then say what matters.

        Args:
            made: What `omniset.report.frame.compose` gave.
            metrics: Of metrics.json, where the run has one.
            scores: For MultiQC, `omniset.trials.outcomes.Metric` by target or condition.
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
        multiqc.write(self.path, self.path.resolve().name, scores or {}, histories or {})
        for line in lines:
            say(line)
        say_notes(self.warnings())
        say(f"Written to {self.path}: {', '.join([*names, 'report.html', 'report.json'])}")


@contextmanager
def working_folder(
    out: Path,
    system: str,
    kind: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
    first: bool | None = None,
) -> Iterator[Folder]:
    """The folder of a run, locked, with the warnings of the run caught.

    Args:
        kind: "fit" may be of a folder that holds a model, which is replaced at the end; any other may not, since its
            report would replace the model's.
        first: Whether this is the first of the processes that share the run. None: of those that torchrun has started.

    Raises:
        OSError, ValueError: The folder cannot be written to, another run holds it, or it holds a model.
    """
    first = processes.is_first(1, 1) if first is None else first
    holds_model = out.is_dir() and (out / "config.json").exists()
    holds_results = out.is_dir() and (out / "report.json").exists()
    if holds_model and kind != "fit":
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out, first), noted() as warnings:
        if first and not resume and (holds_model or holds_results):
            say(f"{out} holds {'a model' if holds_model else 'results'} already, which this run replaces")
        yield Folder(out, system, kind, seed, warnings, device, provenance(seed, device), first)
