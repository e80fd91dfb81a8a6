"""Runs the trainings of a study, one after the other, and writes what they gave as soon as it is there."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omniset.runs import devices
from omniset.runs.console import own_command
from omniset.runs.files import plain, provenance, replacing, write_json
from omniset.training.data import Key, Lesson
from omniset.training.ensemble import Ensemble, keep_best
from omniset.training.fit import TrainingModule, fit
from paper.recipes import Training
from paper.study import Sample, Study, training_source

STORED = (
    "best",
    "best_loss",
    "best_epoch",
    "seconds",
    "validation_losses",
    "gradient_errors",
)  # of a module, in its checkpoint
Batch = Sequence[Tensor]  # elements, multiplicity and target of all seeds, stacked


def lesson(study: Study, training: Training, seeds: Sequence[int]) -> Lesson:
    """The batch of each step, of all seeds, and the validation samples."""
    samples = zip(*(study.validation(training, seed) for seed in seeds), strict=True)
    watched, steps = [stack(list(of_all)) for of_all in samples], study.recipe.steps

    def make(keys: list[Key], training_: bool) -> Batch:
        ((epoch, position),) = keys
        if not training_:
            return watched[position]
        return stack([study.batch(training, seed, epoch * steps + position) for seed in seeds])

    return Lesson(make, range(steps), range(len(watched)), batch_size=1, seed=None)


def stack(samples: Sequence[Sample]) -> Batch:
    """Samples of several seeds, padded to the longest set, (seeds, sets, ...); also targets, where elements have one
    each.
    """
    longest = max(s.elements.shape[1] for s in samples)
    pad = torch.nn.functional.pad
    elements = [pad(s.elements, (0, 0, 0, longest - s.elements.shape[1])) for s in samples]
    multiplicity = [pad(s.multiplicity, (0, longest - s.multiplicity.shape[1])) for s in samples]
    of_elements = all(s.target.shape == s.multiplicity.shape for s in samples)
    target = [pad(s.target, (0, longest - s.target.shape[1])) if of_elements else s.target for s in samples]
    return torch.stack(elements), torch.stack(multiplicity), torch.stack(target)


class StudyModule(TrainingModule):
    """Trains an ensemble with Adam, and keeps of each member the weights of its best validation epoch.

    Args:
        deadline: Training ends with the epoch in which this time has come.
    """

    network: Ensemble

    def __init__(
        self,
        study: Study,
        training: Training,
        seeds: Sequence[int],
        fingerprint: dict[str, Any],
        deadline: float | None = None,
    ) -> None:
        recipe = study.recipe
        ensemble = Ensemble([study.network(training, seed) for seed in seeds])
        super().__init__(ensemble, recipe.learning_rate, 0.0, seeds[0], fingerprint)
        self.study, self.training_of, self.seeds, self.deadline = study, training, seeds, deadline
        self.best = ensemble.states()
        self.best_loss = torch.full((len(seeds),), torch.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(len(seeds), dtype=torch.int64)
        self.seconds = 0.0
        self.validation_losses: list[list[float]] = []  # of each epoch, of each seed
        self.gradient_errors: list[float] = []
        self._losses: list[tuple[int, Tensor]] = []

    def losses(self, batch: Batch, training: Training | None = None) -> Tensor:
        """(seeds,)"""
        training = self.training_of if training is None else training

        def one(network: Any, elements: Tensor, multiplicity: Tensor, target: Tensor) -> Tensor:
            sample = Sample(elements, multiplicity, target)
            source, options = training_source(sample, training, torch.is_grad_enabled())
            return self.study.loss(network(source, **options), sample)

        return self.network(one, *batch)

    def on_train_epoch_start(self) -> None:
        self._start = time.monotonic()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        losses = self.losses(batch)
        self.log("train_loss", losses.mean().detach(), batch_size=1)
        return losses.sum()

    def on_validation_epoch_start(self) -> None:
        self._losses = []

    def validation_step(self, batch: Batch, index: int) -> None:
        losses = self.losses(batch).cpu().double()
        self._losses.append((batch[0].shape[1], losses))
        self.log("val_loss", losses.mean(), batch_size=batch[0].shape[1])

    def on_validation_epoch_end(self) -> None:
        total = sum(sets for sets, _ in self._losses)
        loss = torch.stack([sets / total * losses for sets, losses in self._losses]).sum(0)
        self.validation_losses.append(loss.tolist())
        better = loss < self.best_loss  # never where it is NaN
        new = {name: value.cpu() for name, value in self.network.states().items()}
        self.best = keep_best(self.best, new, better)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.current_epoch + 1, self.best_epoch)
        if self.training_of.recomputed:
            self.gradient_errors.append(self._gradient_error())

    def _gradient_error(self) -> float:
        """Of the exact gradients of shards against those of whole sets, as the networks now are, on the next batch."""
        step = (self.current_epoch + 1) * self.study.recipe.steps
        batch = stack([self.study.batch(self.training_of, seed, step) for seed in self.seeds])
        batch = [x.to(self.device) for x in batch]
        gradients = []
        for training in (self.training_of, replace(self.training_of, shard_size=None)):
            with torch.enable_grad():
                grads = torch.autograd.grad(self.losses(batch, training).sum(), [*self.parameters()], allow_unused=True)
            gradients.append(torch.cat([g.cpu().double().flatten() for g in grads if g is not None]))
        shards, whole = gradients
        return float((shards - whole).norm() / whole.norm())

    def on_train_epoch_end(self) -> None:
        self.seconds += time.monotonic() - self._start
        super().on_train_epoch_end()
        self.should_stop = self.deadline is not None and time.monotonic() > self.deadline

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate, fused=True)

    def rate(self, step: int) -> float:
        if self.study.recipe.drop is None:
            return 1.0
        after, factor = self.study.recipe.drop
        return 1.0 if step < after * self.steps else factor

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["study"] = {name: getattr(self, name) for name in STORED}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        for name in STORED:
            setattr(self, name, checkpoint["study"][name])


class Runner:
    """Trains and tests a study, and knows what of it is done.

    Args:
        study: What to run.
        out: Folder for results; networks are kept in its folder `runs`.
        device: Where to compute.
    """

    def __init__(self, study: Study, out: Path, device: str, progress: bool) -> None:
        self.study, self.out, self.device, self.progress = study, out, device, progress
        # Asked now: the checkout may be at another commit when days of training end.
        self.provenance = provenance(None, devices.find(device).type)
        self.runs = out / "runs"

    def check(self, trainings: Sequence[Training]) -> None:
        """Raise ValueError if results of another recipe lie in the folder."""
        for training in trainings:
            self._content(training)

    def run(self, trainings: Sequence[Training], seeds: Sequence[int], deadline: float | None) -> Iterator[str]:
        """Everything that is not done yet; says what it has done. Stops, between two epochs, at the deadline, but not
        before the first epoch.

        Whatever was interrupted goes on where it stopped, in the group of seeds in which it was begun.
        """
        begun = False
        for training in trainings:
            for group in self._groups(training, seeds):
                if begun and deadline is not None and time.monotonic() > deadline:
                    return
                begun = True
                yield self._train(training, group, deadline)

    def test_again(self, trainings: Sequence[Training], seeds: Sequence[int]) -> Iterator[str]:
        """Test the networks that are kept, without training.

        Raises:
            ValueError: There are none.
        """
        tested = 0
        for training in trainings:
            content = self._content(training)
            for seed in [s for s in seeds if str(s) in content["seeds"]]:
                row = content["seeds"][str(seed)]
                row["columns"] = self._test(training, seed, load_file(self._weights(training, seed)))
                row["tested_again"] = self._made(str(seed))
                self._write(training, {str(seed): row})
                yield f"{training.name}, seed {seed}: tested again"
                tested += 1
        if not tested:
            raise ValueError(f"out: no networks of these trainings and seeds are kept in {self.out}")

    def _groups(self, training: Training, seeds: Sequence[int]) -> list[list[int]]:
        done = self._content(training)["seeds"]
        begun = []
        for folder in sorted(f for f in self.runs.glob(f"{training.name}.*") if f.is_dir()):
            group = [int(s) for s in folder.name.rpartition(".")[2].split("-")]
            if not all(_complete(done.get(str(s))) for s in group) and {*group} & {*seeds}:
                begun.append(group)
        taken = {s for group in begun for s in group}
        missing = [s for s in seeds if s not in taken and not _complete(done.get(str(s)))]
        new = [missing] if missing and training.stacks(devices.find(self.device).type) else [[s] for s in missing]
        return begun + new

    def _train(self, training: Training, seeds: list[int], deadline: float | None) -> str:
        recipe = self.study.recipe
        names = "-".join(map(str, seeds))
        folder = self.runs / f"{training.name}.{names}"
        folder.mkdir(parents=True, exist_ok=True)
        if self.progress:
            print(f"{self.study.name}: {training.name}, seed {names.replace('-', ', ')}", file=sys.stderr)
        fingerprint = recipe_of(self.study, training) | {"seeds": seeds}
        module = StudyModule(self.study, training, seeds, fingerprint, deadline)
        fit(
            module,
            lesson(self.study, training, seeds),
            epochs=recipe.epochs,
            patience=None,
            device=devices.find(self.device).type,
            progress=self.progress,
            log=None,
            folder=folder,
            resume=True,
        )
        epochs = len(module.history)
        rows = {}
        for place, seed in enumerate(seeds):
            state = {name: value[place].contiguous() for name, value in module.best.items()}
            with replacing(self._weights(training, seed)) as temporary:
                save_file(state, temporary)
            rows[str(seed)] = {
                "steps": epochs * recipe.steps,
                "of": recipe.epochs * recipe.steps,
                "best_epoch": int(module.best_epoch[place]),
                "validation_loss": float(module.best_loss[place]),
                "validation_losses": [losses[place] for losses in module.validation_losses],
                "seconds": module.seconds,
                "together": len(seeds),
                **({"gradient_errors": module.gradient_errors} if module.gradient_errors else {}),
                "columns": self._test(training, seed, state),
            }
        self._write(training, rows)
        done = epochs == recipe.epochs
        if done:
            shutil.rmtree(folder)
        return f"{training.name}, seed {names.replace('-', ', ')}: " + (
            "done" if done else f"stopped after {epochs} of {recipe.epochs} epochs"
        )

    def _test(self, training: Training, seed: int, state: dict[str, Tensor]) -> dict[str, Any]:
        measured = {}
        for column in training.columns:
            network = self.study.network(training, column=column)
            network.load_state_dict(state)
            network = network.to(devices.find(self.device)).eval()
            measured[column.name] = self.study.test(network, training, column, seed)
            if self.progress:
                print(f"{self.study.name}: {training.name}, seed {seed}: tested as {column.label}", file=sys.stderr)
        return measured

    def _weights(self, training: Training, seed: int) -> Path:
        return self.runs / f"{training.name}.seed{seed}.safetensors"

    def _content(self, training: Training) -> dict[str, Any]:
        path = self.out / f"{training.name}.json"
        if not path.exists():
            return {"seeds": {}}
        content = json.loads(path.read_text(encoding="utf-8"))
        before, now = content["recipe"], recipe_of(self.study, training)
        if differs := [f"{k} was {before.get(k)!r}, is {now[k]!r}" for k in now if before.get(k) != now[k]]:
            raise ValueError(
                f"{path} is of another recipe of {training.name} ({'; '.join(differs)}): move it away, or take "
                "another --out"
            )
        return content

    def _made(self, seed: str) -> dict[str, Any]:
        """By what command, when and with what a network is trained, or tested again."""
        provenance = self.provenance | {"seed": int(seed)}
        return {"command": own_command(), "date": time.strftime("%Y-%m-%d"), "provenance": provenance}

    def _write(self, training: Training, rows: dict[str, Any]) -> None:
        rows = {seed: row if "command" in row else row | self._made(seed) for seed, row in rows.items()}
        seeds = self._content(training)["seeds"] | rows
        head = {
            "study": self.study.name,
            "training": training.name,
            "recipe": recipe_of(self.study, training),
        }
        content = head | {"seeds": dict(sorted(seeds.items(), key=_seed))}
        write_json(self.out / f"{training.name}.json", plain(content))


def _seed(item: tuple[str, Any]) -> int:
    return int(item[0])


def _complete(row: dict[str, Any] | None) -> bool:
    return row is not None and row["steps"] == row["of"]


def recipe_of(study: Study, training: Training) -> dict[str, Any]:
    """All that decides the numbers of a training, as JSON has it."""
    recipe = study.recipe
    settings = {k: v for k, v in asdict(training).items() if k not in ("name", "columns", "stack_on_cpu")}
    schedule = {k: getattr(recipe, k) for k in ("epochs", "steps", "batch_size", "learning_rate")}
    drop = None if recipe.drop is None else list(recipe.drop)
    data = {} if study.data_identity is None else {"data": study.data_identity}
    return {**schedule, "drop": drop, **settings, "study": recipe.options, **data}
