"""What a perturbation does to a population of cells: a shift of means, and what an exact set encoder adds to it.

    treated cell = untreated cell + shift of its group (`omniset.cells.shifts.Shifts`)
                                  + a V W f(cell | all untreated cells of the group)

f is the element output of a set encoder: the population is the context of each of its cells, so that cells of one group
may move differently. W starts at 0, V are principal axes; a, between 0 and 1, is learned on groups kept back, and 0
where the network adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from torch import Tensor, nn

from omniset import encoders
from omniset.cells.options import PerturberOptions
from omniset.cells.shifts import WIDTHS, Group, Shifts, Study, energy_distance
from omniset.core.sets import SetBatch
from omniset.runs import devices
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train

SIZES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what the network adds
DRAWN = 256  # cells of a population in a step
MARGIN = 0.01  # part of the energy distance by which a step of SIZES must be better than none


class Correction(nn.Module):
    """W f(cell | population), in principal components.

    Args:
        components: Their number P. A cell comes with its group's shift, so that f knows what is done: 2 P numbers.
    """

    def __init__(self, components: int, *, encoder: str, dim: int, **sizes: Any) -> None:
        super().__init__()
        self.encoder = encoders.build(encoder, input_dim=2 * components, dim=dim, **sizes)
        self.out = nn.Linear(dim, components)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, cells: Float[Tensor, "cells components"], shift: Float[Tensor, " components"]
    ) -> Float[Tensor, "cells components"]:
        given = torch.cat((cells, shift.expand_as(cells)), 1)
        elements: Any = self.encoder(SetBatch(given[None])).elements
        return self.out(elements[0])


@dataclass
class Pair:
    """Untreated and treated cells of a group, and its shift, in scaled principal components."""

    control: Float[Tensor, "controls components"]
    treated: Float[Tensor, "treated components"]
    shift: Float[Tensor, " components"]


class _Module(TrainingModule):
    """Energy distance between what is predicted and what was measured, mean over groups."""

    def training_step(self, batch: list[Pair], index: int) -> Tensor:
        losses = [
            energy_distance(pair.control + pair.shift + self.network(pair.control, pair.shift), pair.treated)
            for pair in batch
        ]
        loss = torch.stack(losses).mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch))
        return loss


class CellPerturber(PerturberOptions):
    """Treated populations from untreated ones, learned from groups of which both were measured.

    Args:
        {options}

    Attributes:
        shifts_: Shifts of the known groups.
        network_: What is added to them.
        size_: a, of groups whose type is known, and of others.
        notes_: What was decided, a sentence each.
    """

    shifts_: Shifts
    network_: Correction

    def fit(self, study: Study, groups: list[Group] | None = None) -> CellPerturber:
        """Learn from some of the groups of a study, or from all.

        Raises:
            ValueError: Fewer than 2 groups, or an option out of its bounds.
        """
        self.check_options()
        groups = study.groups if groups is None else groups
        if len(groups) < 2:
            raise ValueError(f"groups must be at least 2, got {len(groups)}")
        self.size_ = tuple(self._size(study, groups, new) for new in (False, True))
        self._learn(study, groups)
        names = ("new donors", "new types")
        self.notes_ = [f"{len(groups)} populations before and after are learned from"]
        for name, width, size in zip(names, self.shifts_.widths, self.size_, strict=True):
            near = f"near ones first ({width:g} median distances)" if width < max(WIDTHS) else "all alike"
            adds = (
                f"{size:g} of the set encoder's correction" if size else "nothing, which the set encoder cannot better"
            )
            self.notes_.append(f"{name}: the shifts of known groups, {near}, plus {adds}")
        return self

    def shift(self, study: Study, group: Group) -> Float[np.ndarray, " genes"]:
        """What every cell of a group moves by, before the network adds to it."""
        return self.shifts_(group, self._key(study, group))

    def predict(self, study: Study, group: Group) -> Float[np.ndarray, "controls genes"]:
        """The untreated cells of a group as if they were treated: log-normalised, not below 0."""
        shift = self.shift(study, group)
        moved = study.values[group.control] + shift
        size = self.size_[0 if self._known(group) else 1]
        if size:
            moved = moved + size * self._added(study, group, shift)
        return np.maximum(moved, 0)

    # ------------------------------------------------------------------

    def _known(self, group: Group) -> bool:
        pairs = zip(self.shifts_.perturbations, self.shifts_.types, strict=True)
        return (group.perturbation, group.type) in set(pairs)

    def _key(self, study: Study, group: Group) -> Float[np.ndarray, " components"]:
        return (study.mean(group.control) - self.middle_) @ self.axes_

    def _scaled(self, values: Float[np.ndarray, "cells genes"]) -> Float[Tensor, "cells components"]:
        return torch.from_numpy((values - self.middle_) @ self.axes_ / self.scale_).float()

    @torch.no_grad()
    def _added(
        self, study: Study, group: Group, shift: Float[np.ndarray, " genes"]
    ) -> Float[np.ndarray, "controls genes"]:
        self.network_.eval()
        moves = self._scaled((self.middle_ + shift)[None])[0]
        added = self.network_(self._scaled(study.values[group.control]), moves)
        return added.double().numpy() * self.scale_ @ self.axes_.T

    def _learn(self, study: Study, groups: list[Group]) -> None:
        """Axes, shifts and the network, from these groups."""
        rows = np.unique(np.concatenate([np.concatenate((g.control, g.treated)) for g in groups]))
        values = study.values[rows]
        number = min(self.components, len(rows) - 1, values.shape[1] - 1)
        model = PCA(number, svd_solver="arpack", random_state=self.seed).fit(values)
        self.middle_ = model.mean_.astype(np.float64)
        self.axes_ = np.ascontiguousarray(model.components_.T, dtype=np.float64)
        self.scale_ = float(np.sqrt(model.explained_variance_[0]))
        self.shifts_ = Shifts.learned(study, groups, np.stack([self._key(study, g) for g in groups]))
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            same = {name: getattr(self, name) for name in ("encoder", "dim", "depth", "num_heads", "num_inducing")}
            self.network_ = Correction(number, **same)
        if not self.epochs:
            return
        pairs = [self._pair(study, groups, i, new) for i in range(len(groups)) for new in (False, True)]
        module = _Module(self.network_, self.learning_rate, self.weight_decay, self.seed, self.fingerprint())

        def make(keys: list[Key], training: bool) -> list[Pair]:
            rng = np.random.default_rng([self.seed, *(n for key in keys for n in key)])
            return [_some(pairs[position], rng) for _, position in keys]

        lesson = Lesson(make, np.arange(len(pairs)), np.arange(0), batch_size=8, seed=self.seed, move=lambda b, d: b)
        with devices.threads_for(DRAWN * DRAWN * 8):
            where: dict[str, Any] = {"device": "cpu", "progress": self.progress, "log": None}
            train(module, lesson, epochs=self.epochs, patience=None, folder=None, resume=False, **where)

    def _pair(self, study: Study, groups: list[Group], number: int, new: bool) -> Pair:
        """A group with the shift that others foretell: as when it is new itself."""
        group, key = groups[number], self.shifts_.keys[number]
        without = self.shifts_.left_out(groups, number, new)
        shift = self.shifts_(group, key, without)
        before, after = (self._scaled(study.values[rows]) for rows in (group.control, group.treated))
        return Pair(before, after, self._scaled((self.middle_ + shift)[None])[0])

    def _size(self, study: Study, groups: list[Group], new: bool) -> float:
        """How much of the network's correction helps on types, or donors, kept back: at most three of them."""
        parts: dict[str, list[int]] = {}
        for i, group in enumerate(groups):
            parts.setdefault(group.type if new else group.donor, []).append(i)
        if len(parts) < 2 or not self.epochs:
            return 0.0
        order = sorted(parts, key=lambda name: (-len(parts[name]), name))[:3]
        losses = np.zeros(len(SIZES))
        for name in order:
            rest = [group for i, group in enumerate(groups) if i not in parts[name]]
            if len(rest) < 2:
                continue
            part = CellPerturber(**{**self.get_params(), "progress": False})
            part._learn(study, rest)
            for i in parts[name]:
                shift = part.shift(study, groups[i])
                added = part._added(study, groups[i], shift)
                for k, size in enumerate(SIZES):
                    moved = np.maximum(study.values[groups[i].control] + shift + size * added, 0)
                    treated = part._scaled(study.values[groups[i].treated])
                    losses[k] += float(energy_distance(part._scaled(moved), treated))
        best = int(losses.argmin())
        return SIZES[best] if losses[best] < losses[0] - MARGIN * abs(losses[0]) else 0.0

    def get_params(self) -> dict[str, Any]:
        return self.plain()


def _some(pair: Pair, rng: np.random.Generator) -> Pair:
    """At most 256 cells of either population."""
    rows = [torch.from_numpy(rng.permutation(len(x))[:DRAWN]) for x in (pair.control, pair.treated)]
    return Pair(pair.control[rows[0]], pair.treated[rows[1]], pair.shift)
