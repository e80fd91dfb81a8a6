"""What is learned, a module with its loss, and `fit`, which trains it: one loop that repeats, stops early and resumes.

Fabric says which devices and processes there are, and averages gradients over them. A step is a batch of the lesson's
data, its loss, AdamW. After each epoch the loop watches what is kept back, and writes one file, `last.ckpt`, from which
a run that was killed goes on to the weights that it would have had.
"""

from __future__ import annotations

import csv
import errno
import math
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed
from torch import Tensor, nn

from omniset.runs import finite, meeting, processes
from omniset.runs.devices import find
from omniset.runs.files import HALF_WRITTEN, replacing, writable_folder
from omniset.runs.locks import locked
from omniset.runs.progress import Progress
from omniset.runs.signals import raise_received, terminable

PARTS = {"omniset", "state_dict", "optimizer", "epoch", "step", "best"}  # of a checkpoint


class TrainingModule(nn.Module):
    """What is trained, whatever its loss: AdamW, warm-up over 5 % of all steps, cosine; repeats and resumes exactly.

    Subclasses give training_step and validation_step; the latter logs val_loss.

    Args:
        network: What is trained; its weights are what `fit` leaves behind.
        fingerprint: What must be the same for a checkpoint to be resumed.
    """

    network: Any
    clip: float | None = None  # the largest norm that the gradient may have; None: any
    # Several processes share each batch out, and its loss is right for that. Else each takes batches of its own, so
    # that a step learns from as many batches as there are processes.
    shares_batches: ClassVar[bool] = False

    def __init__(
        self, network: nn.Module, learning_rate: float, weight_decay: float, seed: int, fingerprint: dict[str, Any]
    ) -> None:
        super().__init__()
        self.network = network
        self.learning_rate, self.weight_decay, self.seed = learning_rate, weight_decay, seed
        self.fingerprint = fingerprint
        self.history: list[dict[str, Any]] = []
        self.device, self.rank, self.world = torch.device("cpu"), 0, 1  # in which process it is trained, of how many
        self.current_epoch, self.global_step, self.steps = 0, 0, 1  # epochs and steps that are done, and all steps
        self.should_stop = False  # set it to end the training with the epoch
        self._sums: dict[str, tuple[Any, Any]] = {}

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def validation_step(self, batch: Any, index: int) -> None:
        """Log `val_loss` of a batch that is kept back."""

    def on_train_start(self) -> None:
        """Before the first epoch, after a checkpoint was loaded."""

    def on_train_epoch_start(self) -> None:
        """Before the first batch of an epoch."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch that is kept back."""

    def on_validation_epoch_end(self) -> None:
        """After the last batch that is kept back."""

    def on_train_epoch_end(self) -> None:
        """Before the epoch's checkpoint is written: what is kept is sound."""
        metrics = self._means()
        losses = {name: value for name, value in metrics.items() if "loss" in name}
        finite.check_epoch(losses, self.state_dict().items(), self.current_epoch + 1, self.learning_rate)
        self.history.append({"epoch": self.current_epoch + 1, **metrics})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["omniset"] = {"fingerprint": self.fingerprint, "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["omniset"]
        _require_same(saved["fingerprint"], self.fingerprint)
        self.history = saved["history"]

    def optimizer(self) -> torch.optim.Optimizer:
        # One kernel for all numbers of a parameter: of small networks the steps between take longer than the numbers.
        how: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        return torch.optim.AdamW(self.parameters(), **how)

    def rate(self, step: int) -> float:
        """What the learning rate is multiplied by in a step."""
        warm = max(self.steps // 20, 1)
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step / self.steps, 1))))

    def log(self, name: str, value: Tensor | float, batch_size: int | Tensor = 1) -> None:
        """Take a batch's value into the mean of an epoch, over all processes, in which it counts as `batch_size`."""
        total, weight = self._sums.get(name, (0.0, 0))
        value = value.detach() if isinstance(value, Tensor) else value
        self._sums[name] = total + value * batch_size, weight + batch_size

    def _means(self) -> dict[str, float]:
        logged, self._sums = self._sums, {}
        if self.world > 1 and logged:
            sums = torch.tensor([[float(x) for x in both] for both in logged.values()], dtype=torch.float64)
            sums = sums.to(torch.float32 if self.device.type == "mps" else torch.float64).to(self.device)
            torch.distributed.all_reduce(sums)
            logged = dict(zip(logged, sums.cpu(), strict=True))
        return {name: float(total / weight) for name, (total, weight) in sorted(logged.items())}


def check_resumed(folder: Path, options: Mapping[str, Any]) -> None:
    """Before any work: these options are those of the interrupted run in the folder, if it holds one."""
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists():
        before = read_checkpoint(last)["omniset"]["fingerprint"]
        _require_same({name: before.get(name) for name in options}, options)


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    differs = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
    if differs:
        # The checksum of the data depends on the split, and so on other arguments: it is blamed last.
        changed = [f"{k} was {before.get(k)!r}, is {now.get(k)!r}" for k in differs if k != "data"]
        reason = "; ".join(changed) or "the sets, their labels or their order are others"
        raise ValueError(f"the checkpoint is of another run and cannot be resumed: {reason}. Start anew, not resuming")


def as_long(best: int, planned: int) -> int:
    """Epochs over which the learning rate of a lesson sums up to what it had at the epoch `best` of the planned ones.

    But for the warm-up the rate falls from 1 to 0 as a half cosine. Its sum is E / 2 over all of E epochs, and
    (b + T sin(pi b / T) / pi) / 2 over the first b of T.
    """
    return max(round(best + planned * math.sin(math.pi * best / planned) / math.pi), 1)


def fit(
    module: TrainingModule,
    data: Any,
    *,
    epochs: int,
    patience: int | None,
    device: str,
    progress: bool,
    log: str | None,
    folder: str | Path | None,
    resume: bool,
    devices: int = 1,
    num_nodes: int = 1,
) -> None:
    """Train `module.network`; leave in it the weights of the best validation epoch, or, without patience, the last.

    In several processes each does so with the same arguments, and ends with the same weights.

    Args:
        data: Of the lesson, such as a `Lesson`: its `validation` holds what is kept back, if anything.
        folder: For the checkpoint and logs; None: a temporary one for logs, and nothing is kept.
        resume: Continue from the folder's checkpoint if there is one.

    Raises:
        KeyboardInterrupt, Terminated: Ctrl-C, or SIGTERM; the last epoch's checkpoint is kept.
        ValueError: The training diverged; the folder is in use, or its checkpoint damaged or of another run.
    """
    if log not in (None, "csv", "tensorboard"):
        raise ValueError(f"log must be 'csv', 'tensorboard' or None, got {log!r}")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else writable_folder(folder)
        first = processes.is_first(devices, num_nodes)
        if folder is not None and first:
            stack.enter_context(locked(root))
        last = root / "checkpoints" / "last.ckpt"
        _clear(last.parent, resume)
        stack.enter_context(terminable())
        stack.enter_context(torch.random.fork_rng())
        fabric = processes.together(find(device), devices, num_nodes, find_unused_parameters=not module.shares_batches)
        stack.enter_context(processes.ending(fabric))
        watched = len(data.validation) > 0 and patience is not None
        run = _Run(fabric, module, data, epochs, patience if watched else None)
        run.restore(last if resume else None)
        tell = stack.enter_context(_told(progress and first, epochs, module))
        write = stack.enter_context(_logs(log if first else None, root / "logs", module))
        while run.goes_on():
            run.epoch(tell)
            if folder is not None and first:
                save_checkpoint(run.checkpoint(), last)
            write()
            tell(None)
        run.finish()


class _Run:
    """A training as it stands."""

    def __init__(self, fabric: Any, module: TrainingModule, data: Any, epochs: int, patience: int | None) -> None:
        self.fabric, self.module, self.epochs, self.patience = fabric, module, epochs, patience
        self.move: Callable[[Any, torch.device], Any] = data.move or (lambda batch, _: fabric.to_device(batch))
        module.device, module.rank, module.world = fabric.device, fabric.global_rank, fabric.world_size
        share = fabric.global_rank, fabric.world_size, not module.shares_batches
        self.learned, self.kept_back = data.loader(True, *share), data.loader(False, *share)
        self.watches = len(data.validation) > 0
        module.current_epoch, module.global_step, module.should_stop = 0, 0, False
        module.steps = max(len(self.learned) * epochs, 1)
        module.to(fabric.device)
        self.optimizer = module.optimizer()
        # Of the epochs, where losses of what is kept back are watched.
        self.best: dict[str, Any] = {"loss": math.inf, "epoch": 0, "weights": {}}

    def restore(self, last: Path | None) -> None:
        """Take up what the checkpoint has, which the first process reads for all.

        Raises:
            ValueError: It is damaged or of another run; another process has other data or options.
        """
        module, checkpoint = self.module, None
        if module.rank == 0 and last is not None and last.exists():
            checkpoint = read_checkpoint(last)
        if module.world > 1:
            if meeting.broadcast(module.fingerprint) != module.fingerprint:
                raise ValueError(f"process {module.rank} has other data or other options than the first process")
            checkpoint = meeting.broadcast(checkpoint)
        if checkpoint is not None:
            module.on_load_checkpoint(checkpoint)
            weights = checkpoint["state_dict"]
            if {name: x.shape for name, x in weights.items()} != {n: x.shape for n, x in module.state_dict().items()}:
                raise ValueError("the checkpoint last.ckpt has other tensors than this run's: start anew, not resuming")
            module.load_state_dict(weights)
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            module.current_epoch, module.global_step = checkpoint["epoch"], checkpoint["step"]
            self.best = checkpoint["best"]
        self.wrapped, self.optimizer = self.fabric.setup(module, self.optimizer)
        module.on_train_start()

    def checkpoint(self) -> dict[str, Any]:
        module = self.module
        state = {"epoch": module.current_epoch, "step": module.global_step, "best": self.best}
        state |= {"state_dict": module.state_dict(), "optimizer": self.optimizer.state_dict()}
        module.on_save_checkpoint(state)
        return state

    def goes_on(self) -> bool:
        """Whether another epoch is to come."""
        done = self.module.current_epoch
        stale = self.patience is not None and done - self.best["epoch"] >= self.patience
        return done < self.epochs and not stale and not self.module.should_stop

    def epoch(self, tell: Callable[[int | None], None]) -> None:
        """Learn from all batches, and watch what is kept back."""
        module = self.module
        module.on_train_epoch_start()
        for index, batch in enumerate(self._batches(self.learned)):
            self._step(batch, index)
            tell(module.global_step)
        if self.watches:
            self._watch()
        module.on_train_epoch_end()
        module.current_epoch += 1
        loss = module.history[-1].get("val_loss", math.inf)
        if self.patience is not None and loss < self.best["loss"]:
            weights = {name: value.detach().cpu().clone() for name, value in module.network.state_dict().items()}
            self.best = {"loss": loss, "epoch": module.current_epoch, "weights": weights}

    def _batches(self, loader: Any) -> Iterator[Any]:
        loader.set_epoch(self.module.current_epoch)
        return (self.move(batch, self.fabric.device) for batch in loader)

    def _step(self, batch: Any, index: int) -> None:
        module = self.module
        # Dropout, the same after a resume, another in each process.
        seed = (module.seed + (module.rank << 20)) * 1_000_003 + module.global_step
        if module.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also writes down where it was called from
        else:
            torch.manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = module.learning_rate * module.rate(module.global_step)
        loss = self.wrapped.training_step(batch, index)
        raise_received()
        finite.check_training(loss.detach(), module.current_epoch + 1, index + 1, module.learning_rate)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if module.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), module.clip)
        self.optimizer.step()
        module.global_step += 1

    def _watch(self) -> None:
        module = self.module
        modes = {part: part.training for part in module.modules()}
        module.eval()
        with torch.no_grad():
            module.on_validation_epoch_start()
            for index, batch in enumerate(self._batches(self.kept_back)):
                module.validation_step(batch, index)
                raise_received()
            module.on_validation_epoch_end()
        for part, training in modes.items():
            part.training = training

    def finish(self) -> None:
        """Leave the weights that were asked for, on the CPU."""
        if self.best["weights"]:
            self.module.network.load_state_dict(self.best["weights"])
        self.module.network.to("cpu").eval()


# ---------------------------------------------------------------------- checkpoints


def save_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Under a temporary name until it is whole, beside where it belongs: a kill leaves the old one.

    Raises:
        OSError: It could not be written whole, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        try:
            torch.save(checkpoint, temporary)
        except RuntimeError as error:  # what torch makes of any error of its file
            reason = "the checkpoint could not be written whole: the disk is full, or no larger file is allowed"
            raise OSError(errno.ENOSPC, reason, str(path)) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint, on the CPU; reading it can run no code.

    Raises:
        ValueError: It is empty, cut, damaged, or of another program.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says more of files of other kinds
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as parts:  # torch itself compares no checksums
            if damaged := parts.testzip():
                raise ValueError(f"{damaged} has not its checksum")
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # pickle, zipfile and torch raise anything
        raise ValueError(f"{path} is empty, damaged or no checkpoint: start anew, not resuming") from error
    if not isinstance(checkpoint, dict) or not checkpoint.keys() >= PARTS:
        raise ValueError(f"{path} is a checkpoint of another program or version: start anew, not resuming")
    return checkpoint


def _clear(checkpoints: Path, resume: bool) -> None:
    """Remove what a run that was killed has left half written.

    Raises:
        ValueError: There is a checkpoint, and it is not to be gone on with.
    """
    if not resume and any(path.name[0] != "." for path in checkpoints.glob("*.ckpt")):
        raise ValueError(
            f"{checkpoints} holds those of an earlier fit: go on with resume=True, or choose another folder"
        )
    for partial in checkpoints.glob(".last-*.ckpt"):
        if HALF_WRITTEN.fullmatch(partial.name):
            partial.unlink(missing_ok=True)


# ---------------------------------------------------------------------- progress and logs


@contextmanager
def _told(shown: bool, epochs: int, module: TrainingModule) -> Iterator[Callable[[int | None], None]]:
    """What tells progress after each step, and, without one, after an epoch.

    On a terminal it draws a bar; elsewhere it writes a line after each epoch, with rate and time left.
    """
    bar = shown and sys.stderr.isatty()
    start = time.monotonic()
    with Progress("training", module.steps, show=bar, unit="steps") as drawn:

        def tell(step: int | None) -> None:
            nonlocal start
            if step is not None:
                drawn.at(step)
                return
            now, row = time.monotonic(), module.history[-1]
            values = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "epoch")
            epoch, seconds, start = int(row["epoch"]), now - start, now
            left = f"at most {_spoken(seconds * (epochs - epoch))} left" if epoch < epochs else "done"
            if shown and not bar:
                print(f"epoch {epoch}/{epochs}  {values}  ({_spoken(seconds)}, {left})", file=sys.stderr, flush=True)

        yield tell


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _logs(kind: str | None, folder: Path, module: TrainingModule) -> Iterator[Callable[[], None]]:
    """What writes down each epoch: a table of all of them, or TensorBoard's events."""
    if kind is None:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        table = folder / "metrics.csv"
        if table.exists() and not module.history:
            raise ValueError(f"{table} is there already, of another fit: choose another folder")
        yield lambda: _write_table(table, module.history)
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=module.global_step + 1) as writer:

        def write() -> None:
            for name, value in module.history[-1].items():
                writer.add_scalar(name, value, module.global_step)
            writer.flush()

        yield write


def _write_table(path: Path, history: list[dict[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(name for row in history for name in row)))
        table.writeheader()
        table.writerows(history)
