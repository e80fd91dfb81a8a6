"""The training loop: Lightning's, with what makes a run repeat, stop early and resume."""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from torch import Tensor, nn

from omniset import processes
from omniset.files import replacing, writable_folder
from omniset.training.data import Batch
from omniset.training.network import SetNetwork


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
        if self.trainer.world_size > 1:
            processes.end_when_told()  # Lightning's handler would wait for the other processes
        if self.trainer.strategy.broadcast(self.fingerprint) != self.fingerprint:
            raise ValueError(f"process {self.global_rank} has other data or other options than the first process")

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        # Dropout, the same after a resume, another in each process.
        torch.manual_seed((self.seed + (self.global_rank << 20)) * 1_000_003 + self.global_step)

    def on_train_epoch_end(self) -> None:
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
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
        saved = checkpoint.get("omniset", {"fingerprint": {}, "history": []})
        before, now = saved["fingerprint"], self.fingerprint
        differs = [k for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
        if differs:
            # The checksum of the data depends on the split, and so on other arguments: it is blamed last.
            changed = [f"{k} was {before.get(k)!r}, is {now.get(k)!r}" for k in differs if k != "data"]
            said = "; ".join(changed) or "the sets, their labels or their order are others"
            raise ValueError(
                f"the checkpoint is of another run and cannot be resumed: {said}. Start anew, not resuming"
            )
        self.history = saved["history"]


class SetModule(TrainingModule):
    """Cross-entropy of classes, or squared error of standardised targets.

    The loss of a target is the mean over the sets of a batch, or over its labelled elements with their multiplicities;
    those of several targets are added up (classes) or averaged (numbers). A batch is what all processes compute on at
    once: each contributes the sum over its share, divided by the total weight of all shares.

    Args:
        class_weights: For each target, the weight of each of its classes; None: all the same.
        options: For the encoder, in training: shard_size, shards, gradient, store.
        max_elements: See SetDataModule.
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
    """Checkpoints under a temporary name until they are whole, beside where they belong: a kill leaves the old one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(checkpoint, temporary)


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
        data: A LightningDataModule whose `validation` holds what is kept back, if anything.
        folder: For checkpoints and logs; None: a temporary one.
        resume: Continue from the folder's last checkpoint if there is one.
        callbacks: Lightning's, besides our own.

    Raises:
        KeyboardInterrupt: Ctrl-C; the last epoch's checkpoint is kept.
    """
    with tempfile.TemporaryDirectory() as scratch, quiet():
        root = Path(scratch) if folder is None else writable_folder(folder)
        checkpoints = root / "checkpoints"
        last = checkpoints / "last.ckpt"
        for left in checkpoints.glob(".*"):  # by a run that was killed while it wrote
            left.unlink(missing_ok=True)
        if not resume:
            for old in (last, checkpoints / "best.ckpt"):
                old.unlink(missing_ok=True)
        watched = "val_loss" if len(data.validation) and patience is not None else None
        callbacks = [*callbacks]
        # Of a folder that is gone with the run only the best epoch is read; FSDP's weights are whole in files alone.
        keeps = folder is not None or watched is not None or strategy == "fsdp"
        if keeps:
            keep = ModelCheckpoint(
                checkpoints,
                "best",
                monitor=watched,
                save_last=folder is not None or not watched,
                save_on_train_epoch_end=True,  # when the epoch is whole, its line of history included
                enable_version_counter=False,
            )
            callbacks.append(keep)
        if watched and patience is not None:
            callbacks.append(EarlyStopping(watched, patience=patience))
        bar = progress and sys.stdout.isatty()  # where Lightning draws it
        if bar:
            callbacks.append(TQDMProgressBar(refresh_rate=10))
        elif progress:
            callbacks.append(EpochLines())
        here, nodes = processes.layout(devices, num_nodes)
        whole = module.network
        if strategy == "fsdp":
            whole = copy.deepcopy(whole)  # FSDP takes the other apart
        else:
            strategy = "ddp" if here * nodes > 1 else "auto"
        trainer = pl.Trainer(
            accelerator=device,
            devices=here,
            num_nodes=nodes,
            strategy=strategy,
            max_epochs=epochs,
            callbacks=callbacks,
            logger=_logger(log, root),
            enable_progress_bar=bar,
            enable_model_summary=False,
            plugins=[AtomicCheckpointIO()],
            enable_checkpointing=keeps,
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if len(data.validation) else 0,
            log_every_n_steps=1,
            use_distributed_sampler=False,
        )
        _run(trainer, module, data, last if resume and last.exists() else None)
        best = checkpoints / ("best.ckpt" if watched else "last.ckpt")
        weights = None
        if trainer.is_global_zero and best.exists():
            weights = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
        if weights := trainer.strategy.broadcast(weights):
            prefix = "network."
            whole.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
        module.network = whole
    module.network.to("cpu").eval()


def _run(trainer: pl.Trainer, module: TrainingModule, data: Any, checkpoint: Path | None) -> None:
    # Lightning answers Ctrl-C by ending the process with status 1 and leaves the signal switched off.
    handler = signal.getsignal(signal.SIGINT)
    try:
        with torch.random.fork_rng():
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
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
