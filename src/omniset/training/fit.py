"""What is learned: a module with its loss, and `fit`, which trains it.

The training loop is Lightning's (`omniset.training.loop`). It takes seconds to import, so that it is imported when
something is trained, and a lesson is an ordinary module of PyTorch that Lightning runs from outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from omniset.runs import finite
from omniset.runs.signals import raise_received, raise_terminated

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from omniset.training.loop import Loop


class TrainingModule(nn.Module):
    """What is trained, whatever its loss: AdamW, warm-up over 5 % of all steps, cosine; repeats and resumes exactly.

    Subclasses give training_step and validation_step; the latter logs val_loss. The other methods have the names of
    Lightning's hooks, and are called when those are.

    Args:
        network: What is trained; its weights are what `fit` leaves behind.
        fingerprint: What must be the same for a checkpoint to be resumed.

    Attributes:
        loop: Lightning's module, which runs this one; None before `fit`.
        clip: The largest norm that the gradient may have; None: any.
        shares_batches: Whether several processes share each batch out, and its loss is right for that. Else each takes
            batches of its own, so that a step learns from as many batches as there are processes.
    """

    network: Any
    clip: float | None = None
    shares_batches: ClassVar[bool] = False

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
        self._loop: tuple[Loop, ...] = ()  # in a tuple: so it is no part of this module

    @property
    def loop(self) -> Loop | None:
        return self._loop[0] if self._loop else None

    def run_by(self, loop: Loop) -> None:
        self._loop = (loop,)

    @property
    def _running(self) -> Loop:
        if self.loop is None:
            raise RuntimeError(f"{type(self).__name__} is not trained now: only `fit` runs it")
        return self.loop

    @property
    def trainer(self) -> pl.Trainer:
        return self._running.trainer

    @property
    def device(self) -> torch.device:
        return self._running.device

    @property
    def current_epoch(self) -> int:
        return self._running.current_epoch

    @property
    def global_step(self) -> int:
        return self._running.global_step

    @property
    def global_rank(self) -> int:
        return self._running.global_rank

    def log(self, name: str, value: Any, **how: Any) -> None:
        """As `LightningModule.log`, a mean over the processes; nothing where no loop runs it."""
        if self.loop is not None:
            self.loop.log(name, value, **({} if self.shares_batches else {"sync_dist": True}) | how)

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def validation_step(self, batch: Any, index: int) -> None:
        """Log `val_loss` of a batch that is kept back."""

    def on_fit_start(self) -> None:
        if self.trainer.strategy.broadcast(self.fingerprint) != self.fingerprint:
            raise ValueError(f"process {self.global_rank} has other data or other options than the first process")

    def on_train_start(self) -> None:
        raise_terminated()  # Lightning's handler, set by now, would wait for the other processes, and end with status 0

    def on_train_epoch_start(self) -> None:
        """Before the first batch of an epoch."""

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        # Dropout, the same after a resume, another in each process.
        seed = (self.seed + (self.global_rank << 20)) * 1_000_003 + self.global_step
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also writes down where it was called from
        else:
            torch.manual_seed(seed)

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        raise_received()
        finite.check_training(outputs["loss"], self.current_epoch + 1, index + 1, self.learning_rate)

    def on_validation_epoch_start(self) -> None:
        """Before the first batch that is kept back."""

    def on_validation_epoch_end(self) -> None:
        """After the last batch that is kept back."""

    def on_train_epoch_end(self) -> None:
        """Before the epoch's checkpoint is written: what is kept is sound."""
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        losses = {name: value for name, value in metrics.items() if "loss" in name}
        finite.check_epoch(losses, self.state_dict().items(), self.current_epoch + 1, self.learning_rate)
        self.history.append({"epoch": self.current_epoch + 1, **metrics})

    def configure_optimizers(self) -> Any:
        # One kernel for all numbers of a parameter: of small networks the steps between take longer than the numbers.
        how: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        optimizer = torch.optim.AdamW(self.parameters(), **how)
        steps = max(int(self.trainer.estimated_stepping_batches), 1)
        warm = max(steps // 20, 1)

        def factor(step: int) -> float:
            return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step / steps, 1))))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["omniset"] = {"fingerprint": self.fingerprint, "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["omniset"]
        _require_same(saved["fingerprint"], self.fingerprint)
        self.history = saved["history"]


def check_resumed(folder: Path, options: Mapping[str, Any]) -> None:
    """Before any work: these options are those of the interrupted run in the folder, if it holds one.

    Raises:
        ValueError: They are not, or the checkpoint is damaged.
    """
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists():
        from omniset.training.loop import read_checkpoint

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


def fit(module: TrainingModule, data: Any, **options: Any) -> None:
    """Train `module.network` on the data of a lesson; arguments and errors are those of `omniset.training.loop.fit`."""
    from omniset.training import loop

    loop.fit(module, data, **options)
