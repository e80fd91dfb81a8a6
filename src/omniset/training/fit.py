"""The training loop: Lightning's, with what makes a run repeat, stop early and resume."""

from __future__ import annotations

import copy
import errno
import logging
import math
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
import torch.distributed
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn

from omniset.runs import finite, processes
from omniset.runs.files import replacing, writable_folder
from omniset.runs.locks import locked
from omniset.runs.signals import Terminated, raise_terminated, terminable
from omniset.training import strategies
from omniset.training.network import SetNetwork
from omniset.training.sets import Batch


class TrainingModule(pl.LightningModule):
    """What is trained, whatever its loss: AdamW, warm-up over 5 % of all steps, cosine; repeats and resumes exactly.

    Subclasses give training_step and validation_step; the latter logs val_loss.

    Args:
        network: What is trained; its weights are what `fit` leaves behind.
        fingerprint: What must be the same for a checkpoint to be resumed.
    """

    network: Any

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        weight_decay: float,
        seed: int,
        fingerprint: dict[str, Any],
    ) -> None:
        super().__init__()
        self.network = network
        self.learning_rate, self.weight_decay, self.seed = learning_rate, weight_decay, seed
        self.fingerprint = fingerprint
        self.history: list[dict[str, float]] = []

    def on_fit_start(self) -> None:
        if self.trainer.strategy.broadcast(self.fingerprint) != self.fingerprint:
            raise ValueError(f"process {self.global_rank} has other data or other options than the first process")

    def on_train_start(self) -> None:
        raise_terminated()  # Lightning's handler, set by now, would wait for the other processes, and end with status 0

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        # Dropout, the same after a resume, another in each process.
        torch.manual_seed((self.seed + (self.global_rank << 20)) * 1_000_003 + self.global_step)

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        finite.check_training(outputs["loss"], self.current_epoch + 1, index + 1, self.learning_rate)

    def on_train_epoch_end(self) -> None:
        """Before the epoch's checkpoint is written: what is kept is sound."""
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        losses = {name: value for name, value in metrics.items() if "loss" in name}
        finite.check_epoch(losses, self.state_dict().items(), self.current_epoch + 1, self.learning_rate)
        self.history.append({"epoch": self.current_epoch + 1, **metrics})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        steps = max(int(self.trainer.estimated_stepping_batches), 1)
        warm = max(steps // 20, 1)

        def factor(step: int) -> float:
            return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step / steps, 1))))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["omniset"] = {"fingerprint": self.fingerprint, "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved, weights = checkpoint["omniset"], checkpoint["state_dict"]
        before, now = saved["fingerprint"], self.fingerprint
        differs = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
        if differs:
            # The checksum of the data depends on the split, and so on other arguments: it is blamed last.
            changed = [f"{k} was {before.get(k)!r}, is {now.get(k)!r}" for k in differs if k != "data"]
            said = "; ".join(changed) or "the sets, their labels or their order are others"
            raise ValueError(
                f"the checkpoint is of another run and cannot be resumed: {said}. Start anew, not resuming"
            )
        expected = {name: tensor.shape for name, tensor in self.state_dict().items()}
        if {name: tensor.shape for name, tensor in weights.items()} != expected:
            raise ValueError("the checkpoint last.ckpt has other tensors than this run's: start anew, not resuming")
        self.history = saved["history"]


class SetModule(TrainingModule):
    """Cross-entropy of classes, or squared error of standardised targets.

    The loss of a target is the mean over the sets of a batch, or over its labelled elements with their multiplicities;
    those of several targets are added up (classes) or averaged (numbers). A batch is what all processes compute on at
    once: each contributes the sum over its share, divided by the total weight of all shares.

    Args:
        class_weights: For each target, the weight of each of its classes; None: all the same.
        options: For the encoder, in training: shard_size, shards, gradient, store.
        max_elements: See SetBatches.
    """

    def __init__(
        self,
        network: SetNetwork,
        classify: bool,
        class_weights: list[Tensor] | None,
        learning_rate: float,
        weight_decay: float,
        options: dict[str, Any],
        max_elements: int,
        seed: int,
        fingerprint: dict[str, Any],
    ) -> None:
        super().__init__(network, learning_rate, weight_decay, seed, fingerprint)
        self.classify, self.options, self.max_elements = classify, options, max_elements
        self.class_weights = class_weights
        self.metric_name = "accuracy" if classify else "mse"
        self.train_metric, self.val_metric = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()

    def step(self, batch: Batch, stage: str, metric: torchmetrics.MeanMetric) -> Tensor:
        parts, targets, weights = batch
        outputs = self.network.of_parts(parts, self.max_elements, **self.options)
        sums, totals, right, counted = (self._classes if self.classify else self._numbers)(outputs, targets, weights)
        metric.update(right, counted)
        totals, rows = self._of_all(totals, len(targets))
        means = sums / totals.clamp(min=torch.finfo(totals.dtype).tiny)
        # Gradients, and what is logged, are averaged over the processes: of the parts of a mean that is to be the sum.
        loss = (means.sum() if self.classify else means.mean()) * self._processes
        whole_epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": rows, "prog_bar": True}
        self.log(f"{stage}_loss", loss, sync_dist=True, **whole_epoch)
        self.log(f"{stage}_{self.metric_name}", metric, **whole_epoch)
        return loss

    @property
    def _processes(self) -> int:
        return 1 if self._trainer is None else self.trainer.world_size

    def _of_all(self, totals: Tensor, rows: int) -> tuple[Tensor, int]:
        """The totals and the number of rows of all processes."""
        if self._processes == 1:
            return totals, rows
        both = torch.cat([totals.double(), totals.new_tensor([rows], dtype=torch.float64)])
        torch.distributed.all_reduce(both)
        return both[:-1].to(totals), int(both[-1])

    def _classes(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each target the weighted sum of losses and the total weight; for each row and target whether it was
        right, and how much it counts. Code -1: no label.
        """
        sums, totals, right = [], [], []
        counted = torch.where(targets >= 0, weights[:, None], 0)
        for number, logits in enumerate(self.network.split(outputs)):
            codes, rows = targets[:, number].clamp(min=0), counted[:, number]
            if self.class_weights is not None:
                rows = rows * self.class_weights[number].to(rows)[codes]
            each = F.cross_entropy(logits, codes, reduction="none")
            sums.append((rows * each).sum())
            totals.append(rows.sum())
            right.append(logits.argmax(1) == codes)
        return torch.stack(sums), torch.stack(totals), torch.stack(right, 1).to(counted), counted

    def _numbers(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same with squared errors. NaN: no label."""
        counted = torch.where(targets.isnan(), 0, weights[:, None])
        each = (outputs - self.network.targets(targets.nan_to_num())).square()
        return (counted * each).sum(0), counted.sum(0), each.detach(), counted

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self.step(batch, "train", self.train_metric)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.step(batch, "val", self.val_metric)


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
            warnings.simplefilter("ignore")  # of what is no checkpoint torch has more to say
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
        whole = module.network
        spread: Any = "auto"
        if strategy == "fsdp":
            whole = copy.deepcopy(whole)  # FSDP takes the other apart
            spread = strategies.FullySharded()
        elif here * nodes > 1:
            spread = strategies.DataParallel()
        trainer = pl.Trainer(
            accelerator=device,
            devices=here,
            num_nodes=nodes,
            strategy=spread,
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
    """Remove what a run that was killed has left half written, and, where none goes on, what earlier runs have left."""
    for partial in checkpoints.glob(".*"):
        partial.unlink(missing_ok=True)
    if not resume:
        for name in ("last.ckpt", "best.ckpt"):
            (checkpoints / name).unlink(missing_ok=True)


def _checkpoints(folder: Path, watched: str | None, last: bool) -> ModelCheckpoint:
    """Keeps the best epoch and, where that is asked for, the last one."""
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
        prefix = "network."
        network.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})


def _run(trainer: pl.Trainer, module: TrainingModule, data: Any, checkpoint: Path | None) -> None:
    # Lightning answers Ctrl-C by ending the process with status 1 and leaves the signal switched off, SIGTERM with 0.
    handler = signal.getsignal(signal.SIGINT)
    try:
        with terminable(), torch.random.fork_rng():
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
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
