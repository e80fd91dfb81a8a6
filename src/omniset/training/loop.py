"""The training loop: Lightning's, with what makes a run repeat, stop early and resume. See `omniset.training.fit`."""

from __future__ import annotations

import copy
import errno
import logging
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn
from torch.utils.data import DataLoader

from omniset.runs import processes
from omniset.runs.files import replacing, writable_folder
from omniset.runs.locks import locked
from omniset.runs.signals import Terminated, terminable
from omniset.training import strategies
from omniset.training.fit import TrainingModule


class Loop(pl.LightningModule):
    """A `TrainingModule` as Lightning runs it: each hook is that of the lesson."""

    def __init__(self, lesson: TrainingModule) -> None:
        super().__init__()
        self.lesson = lesson
        lesson.run_by(self)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.lesson.training_step(batch, index)

    def validation_step(self, batch: Any, index: int) -> None:
        self.lesson.validation_step(batch, index)

    def configure_optimizers(self) -> Any:
        return self.lesson.configure_optimizers()

    def configure_gradient_clipping(self, optimizer: Any, *arguments: Any, **more: Any) -> None:
        if self.lesson.clip is not None:
            self.clip_gradients(optimizer, gradient_clip_val=self.lesson.clip, gradient_clip_algorithm="norm")

    def on_fit_start(self) -> None:
        self.lesson.on_fit_start()

    def on_train_start(self) -> None:
        self.lesson.on_train_start()

    def on_train_epoch_start(self) -> None:
        self.lesson.on_train_epoch_start()

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        self.lesson.on_train_batch_start(batch, index)

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.lesson.on_train_batch_end(outputs, batch, index)

    def on_validation_epoch_start(self) -> None:
        self.lesson.on_validation_epoch_start()

    def on_validation_epoch_end(self) -> None:
        self.lesson.on_validation_epoch_end()

    def on_train_epoch_end(self) -> None:
        self.lesson.on_train_epoch_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.lesson.on_save_checkpoint(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.lesson.on_load_checkpoint(checkpoint)
        expected = {name: tensor.shape for name, tensor in self.state_dict().items()}
        if {name: tensor.shape for name, tensor in checkpoint["state_dict"].items()} != expected:
            raise ValueError("the checkpoint last.ckpt has other tensors than this run's: start anew, not resuming")


class Data(pl.LightningDataModule):
    """The data of a lesson (`omniset.training.data.Lesson`) for Lightning: what this process computes on.

    Args:
        lesson: Has `loader(training, rank, world, turns)`, and `move(batch, device)` or None.
        turns: See `omniset.training.data.Lesson.loader`.
    """

    def __init__(self, lesson: Any, turns: bool = False) -> None:
        super().__init__()
        self.lesson, self.turns = lesson, turns

    def train_dataloader(self) -> DataLoader:
        return self._loader(True)

    def val_dataloader(self) -> DataLoader:
        return self._loader(False)

    def _loader(self, training: bool) -> DataLoader:
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        loader: DataLoader = self.lesson.loader(training, rank, world, self.turns)
        return loader

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if self.lesson.move is None:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return self.lesson.move(batch, device)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints under a temporary name until they are whole, beside where they belong: a kill leaves the old one.

    Raises:
        OSError: One could not be written whole, as on a full disk.
        ValueError: One that is read is damaged, or was not written by this.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # what torch makes of any error of its file
                reason = "the checkpoint could not be written whole: the disk is full, or no larger file is allowed"
                raise OSError(errno.ENOSPC, reason, str(path)) from error

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(path)


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
    if not isinstance(checkpoint, dict) or not {"omniset", "state_dict", "epoch"} <= checkpoint.keys():
        raise ValueError(f"{path} is a checkpoint of another program: start anew, not resuming")
    return checkpoint


class EpochLines(pl.Callback):
    """Progress where there is no terminal to draw a bar on: a line after each epoch, with rate and time left."""

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.start = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        epoch, epochs = trainer.current_epoch + 1, trainer.max_epochs or 1
        seconds = time.monotonic() - self.start
        values = "  ".join(f"{k} {float(v):.4g}" for k, v in sorted(trainer.callback_metrics.items()))
        left = f"at most {_spoken(seconds * (epochs - epoch))} left" if epoch < epochs else "done"
        print(f"epoch {epoch}/{epochs}  {values}  ({_spoken(seconds)}, {left})", file=sys.stderr, flush=True)


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
    strategy: str = "auto",
    callbacks: Sequence[pl.Callback] = (),
) -> None:
    """Train `module.network`; leave in it the weights of the best validation epoch, or, without patience, the last.

    In several processes each does so with the same arguments, and ends with the same weights.

    Args:
        data: Of the lesson, such as a `Lesson`: its `validation` holds what is kept back, if anything.
        folder: For checkpoints and logs; None: a temporary one.
        resume: Continue from the folder's last checkpoint if there is one.
        callbacks: Lightning's, besides our own.

    Raises:
        KeyboardInterrupt, Terminated: Ctrl-C, or SIGTERM; the last epoch's checkpoint is kept.
        ValueError: The training diverged; the folder is in use, or its checkpoint damaged or of another run.
    """
    with ExitStack() as stack:
        stack.enter_context(quiet())
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) if folder is None else writable_folder(folder)
        if folder is not None and processes.is_first(devices, num_nodes):
            stack.enter_context(locked(root))
        checkpoints = root / "checkpoints"
        _clear(checkpoints, resume)
        watched = "val_loss" if len(data.validation) and patience is not None else None
        # Of a folder that is gone with the run only the best epoch is read; FSDP's weights are whole in files alone.
        keeps = folder is not None or watched is not None or strategy == "fsdp"
        bar = progress and sys.stdout.isatty()  # where Lightning draws it
        callbacks = [*callbacks]
        if keeps:
            callbacks.append(_checkpoints(checkpoints, watched, folder is not None or not watched))
        if watched and patience is not None:
            callbacks.append(EarlyStopping(watched, patience=patience))
        if progress:
            callbacks.append(TQDMProgressBar(refresh_rate=10) if bar else EpochLines())
        here, nodes = processes.layout(devices, num_nodes)
        processes.prepare(here, nodes)
        whole = copy.deepcopy(module.network) if strategy == "fsdp" else module.network  # FSDP takes the other apart
        trainer = pl.Trainer(
            accelerator=device,
            devices=here,
            num_nodes=nodes,
            strategy=_strategy(strategy, here * nodes, module.shares_batches),
            max_epochs=epochs,
            callbacks=callbacks,
            logger=_logger(log, root),
            enable_progress_bar=bar,
            enable_model_summary=False,
            plugins=[AtomicCheckpointIO(), *strategies.environment()],
            enable_checkpointing=keeps,
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if len(data.validation) else 0,
            log_every_n_steps=1,
            use_distributed_sampler=False,
        )
        last = checkpoints / "last.ckpt"
        _run(trainer, module, data, last if resume and last.exists() else None)
        _take_weights(trainer, whole, checkpoints / ("best.ckpt" if watched else "last.ckpt"))
        module.network = whole
    module.network.to("cpu").eval()


def _clear(checkpoints: Path, resume: bool) -> None:
    """Remove what a run that was killed has left half written.

    Raises:
        ValueError: There are checkpoints, and none is to be gone on with.
    """
    for partial in checkpoints.glob(".*"):
        partial.unlink(missing_ok=True)
    if not resume and any(checkpoints.glob("*.ckpt")):
        raise ValueError(
            f"{checkpoints} holds those of an earlier fit: go on with resume=True, or choose another folder"
        )


def _strategy(name: str, world: int, shares_batches: bool) -> Any:
    """Lightning's strategy for this number of processes."""
    if name == "fsdp":
        return strategies.FullySharded()
    # Lessons that share batches out use all parameters in each step; those of the systems may leave some out.
    return strategies.DataParallel(find_unused_parameters=not shares_batches) if world > 1 else "auto"


def _checkpoints(folder: Path, watched: str | None, last: bool) -> ModelCheckpoint:
    """Keeps the best epoch and, with `last`, the last one."""
    return ModelCheckpoint(
        folder,
        "best",
        monitor=watched,
        save_last=last,
        save_on_train_epoch_end=True,  # when the epoch is whole, its line of history included
        enable_version_counter=False,
    )


def _take_weights(trainer: pl.Trainer, network: nn.Module, best: Path) -> None:
    """Load the weights of a checkpoint, where there is one, in every process."""
    weights = read_checkpoint(best)["state_dict"] if trainer.is_global_zero and best.exists() else None
    if weights := trainer.strategy.broadcast(weights):
        prefix = "lesson.network."
        network.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})


def _run(trainer: pl.Trainer, module: TrainingModule, data: Any, checkpoint: Path | None) -> None:
    # Lightning answers Ctrl-C by ending the process with status 1 and leaves the signal switched off, SIGTERM with 0.
    handler = signal.getsignal(signal.SIGINT)
    try:
        with terminable(), torch.random.fork_rng():
            trainer.fit(Loop(module), Data(data, not module.shares_batches), ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if trainer.strategy.launcher is not None:  # processes that Lightning has started
            trainer.strategy.launcher.kill(signal.SIGTERM)
        if isinstance(error, SIGTERMException):
            raise Terminated from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) != handler:
            signal.signal(signal.SIGINT, handler)


def _logger(log: str | None, root: Path) -> Logger | bool:
    if log not in (None, "csv", "tensorboard"):
        raise ValueError(f"log must be 'csv', 'tensorboard' or None, got {log!r}")
    if log is None:
        return False
    return {"csv": CSVLogger, "tensorboard": TensorBoardLogger}[log](root, name="logs", version="")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice on hardware and loader processes, which says nothing about the user's run."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in (".*does not have many workers", ".*exists and is not empty", ".*LeafSpec"):
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
