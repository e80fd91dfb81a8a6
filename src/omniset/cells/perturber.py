"""What a perturbation does to a population of cells: a shift of means, and what an exact set encoder adds to it.

    treated cell = untreated cell + shift of its group (`omniset.cells.shifts.Shifts`)
                                  + a V W f(cell | all untreated cells of the group)

f is the element output of a set encoder: the population is the context of each of its cells, so that cells of one group
may move differently. W starts at 0, V are principal axes; a, between 0 and 1, is learned on groups kept back, and 0
where the network adds nothing. With architecture "state" a transformer over the cells moves them, in place of all this:
`omniset.cells.transitions.Transition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Shaped
from sklearn.decomposition import PCA
from torch import Tensor, nn

import omniset
from omniset.cells.annotator import values_of
from omniset.cells.data import Cells, known_genes, opened
from omniset.cells.model import SCALE
from omniset.cells.options import PerturberOptions
from omniset.cells.shifts import WIDTHS, Group, Shifts, Study, energy_distance
from omniset.cells.transitions import DRAWN, Correction, Pair, PairModule, Transition
from omniset.fitted import Estimator
from omniset.runs import devices
from omniset.tables.matrices import needed
from omniset.training import artefacts, schema
from omniset.training.data import Key, Lesson
from omniset.training.fit import fit as train

SIZES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of what the network adds
GROUP = ("perturbation", "type", "donor")
MARGIN = 0.01  # part of the energy distance by which a step of SIZES must be better than none


class _Stored(nn.Module):
    """All numbers of a fitted perturber."""

    def __init__(self, correction: Correction | Transition, genes: int, groups: int, components: int) -> None:
        super().__init__()
        self.correction = correction
        shapes = {"middle": (genes,), "axes": (genes, components), "scale": ()}
        shapes |= {"keys": (groups, components), "shifts": (groups, genes)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("numbers", torch.zeros(groups, 2, dtype=torch.int64))


class CellPerturber(PerturberOptions, Estimator):
    """Treated populations from untreated ones, learned from groups of which both were measured.

    Args:
        {options}

    Attributes:
        genes_: Those that vary most.
        shifts_: Shifts of the known groups.
        network_: What is added to them; for "state", to the untreated cells.
        size_: a, of groups whose type is known, and of others; for "state" 1.
        history: A dict per epoch.
        notes_: What was decided, a sentence each.
    """

    genes_: list[str]
    shifts_: Shifts
    network_: Correction | Transition
    size_: tuple[float, float]
    FITTED: ClassVar[dict[str, Any]] = {
        "genes": schema.SIZE,
        "groups": schema.SIZE,
        "components": schema.SIZE,
        "widths": schema.array(schema.NUMBER, minItems=2, maxItems=2),
        "size": schema.array(schema.NUMBER, minItems=2, maxItems=2),
        "notes": schema.array(schema.TEXT),
    }
    TABLES: ClassVar = {"vocabulary": ["gene"], "groups": [*GROUP]}

    def fit(
        self,
        source: Any,
        *,
        condition: str = "condition",
        control: str = "control",
        label: str = "cell_type",
        donor: str | None = None,
        layer: str | None = None,
        input: str = "auto",  # noqa: A002
        gene_column: str | None = None,
    ) -> CellPerturber:
        """Learn from all types and donors of which 10 cells or more were measured before and after.

        Args:
            source, layer, input, gene_column: As in `CellEmbedder.fit`.
            condition: Column of obs with the perturbation of each cell.
            control: Its value for untreated cells.
            label: Column with the cell types.
            donor: Column with the donor, or the sample. None: all cells are of one.

        Raises:
            ValueError: No such column or value, fewer than 2 populations, or an option out of its bounds.
        """
        self.check_options()
        with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
            return self.fit_groups(Study.of(cells, condition, control, label, donor))

    def fit_groups(self, study: Study, groups: list[Group] | None = None) -> CellPerturber:
        """`fit` on some of the groups of a study, or on all.

        Raises:
            ValueError: Fewer than 2 groups, or an option out of its bounds, such as epochs=0 for "state".
        """
        self.check_options()
        groups = study.groups if groups is None else groups
        if len(groups) < 2:
            raise ValueError(f"groups must be at least 2, got {len(groups)}")
        alone = self.architecture == "state"
        if alone and not self.epochs:
            raise ValueError("epochs must be >= 1 for architecture='state', got 0")
        self.size_ = (1.0, 1.0) if alone else (self._size(study, groups, False), self._size(study, groups, True))
        self._learn(study, groups)
        names = ("new donors", "new types")
        self.notes_ = [f"{len(groups)} populations before and after are learned from"]
        if alone:
            self.notes_.append("a transformer over the untreated cells foretells alone, without known shifts")
            return self
        for name, width, size in zip(names, self.shifts_.widths, self.size_, strict=True):
            near = f"near ones first ({width:g} median distances)" if width < max(WIDTHS) else "all alike"
            adds = (
                f"{size:g} of the set encoder's correction"
                if size
                else "nothing: on groups kept back the set encoder's correction was no better"
            )
            self.notes_.append(f"{name}: the shifts of known groups, {near}, plus {adds}")
        return self

    def study(
        self,
        cells: Cells,
        *,
        condition: str | None = "condition",
        control: str = "control",
        label: str = "cell_type",
        donor: str | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> Study:
        """New cells, to be foretold under all perturbations that are known. Arguments and errors: as of `foretell`."""
        self.require_fitted()
        known = known_genes(cells, self.genes_, aliases, "they count as in the mean cell")
        totals = totals_of(known, self.middle_)
        values = values_of(known, np.arange(len(known)), self.middle_.astype(np.float32), library=totals)
        columns: dict[str, Any] = {"condition": condition, "control": control, "label": label, "donor": donor}
        return Study.of_new(known, values, self.genes_, sorted(set(self.shifts_.perturbations)), **columns)

    def foretell(
        self,
        source: Any,
        *,
        condition: str | None = "condition",
        control: str = "control",
        label: str = "cell_type",
        donor: str | None = None,
        layer: str | None = None,
        input: str = "auto",  # noqa: A002
        gene_column: str | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> Any:
        """The untreated cells of a source as if they were treated, under each known perturbation.

        Args:
            source, control, label, donor, layer, input, gene_column: As for fit. Treated cells are not looked at.
            condition: None: no cell of the source is treated.
            aliases: Other names of genes.

        Returns:
            An AnnData of log-normalised values, see `treated`; of populations of 10 untreated cells or more.

        Raises:
            ValueError: No such column or value, no such population, or none of the genes is known.
        """
        columns: dict[str, Any] = {"condition": condition, "control": control, "label": label, "donor": donor}
        with opened(source, layer=layer, input=input, gene_column=gene_column) as cells:
            study = self.study(cells, **columns, aliases=aliases)
            return self.treated(study, [*study.groups, *study.lacking], cells.names)

    def treated(self, study: Study, groups: list[Group], names: Shaped[np.ndarray, " cells"]) -> Any:
        """An AnnData of the untreated cells of groups as if they were treated: log-normalised.

        A cell is called as it was, with the perturbation behind; obs has `perturbation`, `type` and `donor`, and
        uns["omniset"] what the values are and what they came from.
        """
        anndata = needed("anndata")
        rows = [np.zeros(0, dtype=np.int64), *(group.control for group in groups)]
        of = np.repeat(np.arange(len(groups)), [len(group.control) for group in groups])
        index = [f"{names[row]}, {groups[i].perturbation}" for row, i in zip(np.concatenate(rows), of, strict=True)]
        obs = pd.DataFrame(index=pd.Index(index, dtype=object))
        for name in GROUP:
            values = np.array([getattr(group, name) for group in groups], dtype=object)
            categories = pd.Index(sorted(set(values.tolist())), dtype=object)  # as every anndata writes them
            obs[name] = pd.Categorical(values[of], categories=categories)
        parts = [np.zeros((0, len(self.genes_)), np.float32)]
        parts += [self.predict(study, group).astype(np.float32) for group in groups]
        treated = anndata.AnnData(np.concatenate(parts), obs, pd.DataFrame(index=pd.Index(self.genes_, dtype=object)))
        about = {"class": type(self).__name__, "version": omniset.__version__, "seed": int(self.seed)}
        treated.uns["omniset"] = about | {"values": f"log(1 + {SCALE:g} count / library)"}
        return treated

    def shift(self, study: Study, group: Group) -> Float[np.ndarray, " genes"]:
        """What every cell of a group moves by, before the network adds to it."""
        return self.shifts_(group, self.key(study, group))

    def key(self, study: Study, group: Group) -> Float[np.ndarray, " components"]:
        """Where the mean of the untreated cells of a group lies, in principal components."""
        return (study.mean(group.control) - self.middle_) @ self.axes_

    def predict(self, study: Study, group: Group) -> Float[np.ndarray, "controls genes"]:
        """The untreated cells of a group as if they were treated: log-normalised, not below 0."""
        shift = self._apart(self.shift(study, group))
        moved = study.values[group.control] + shift
        size = self.size_[0 if self._known(group) else 1]
        if size:
            moved = moved + size * self._added(study, group, shift)
        return np.maximum(moved, 0)

    # ------------------------------------------------------------------

    def _known(self, group: Group) -> bool:
        pairs = zip(self.shifts_.perturbations, self.shifts_.types, strict=True)
        return (group.perturbation, group.type) in set(pairs)

    def _scaled(self, values: Float[np.ndarray, "cells genes"]) -> Float[Tensor, "cells components"]:
        return torch.from_numpy((values - self.middle_) @ self.axes_ / self.scale_).float()

    def _apart(self, shift: Float[np.ndarray, " genes"]) -> Float[np.ndarray, " genes"]:
        """What all cells move by apart from the network."""
        return np.zeros_like(shift) if self.architecture == "state" else shift

    def _given(self, perturbation: str, shift: Float[np.ndarray, " genes"]) -> Tensor:
        """What the network is told of what is done."""
        if self.architecture == "state":
            return torch.tensor(sorted(set(self.shifts_.perturbations)).index(perturbation))
        return self._scaled((self.middle_ + shift)[None])[0]

    @torch.no_grad()
    def _added(
        self, study: Study, group: Group, shift: Float[np.ndarray, " genes"]
    ) -> Float[np.ndarray, "controls genes"]:
        self.network_.eval()
        added = self.network_(self._scaled(study.values[group.control]), self._given(group.perturbation, shift))
        return added.double().numpy() * self.scale_ @ self.axes_.T

    def _learn(self, study: Study, groups: list[Group]) -> None:
        """Axes, shifts and the network, from these groups."""
        rows = np.unique(np.concatenate([np.concatenate((g.control, g.treated)) for g in groups]))
        values = study.values[rows]
        number = min(self.components, len(rows) - 1, values.shape[1] - 1)
        self.genes_, self.history_ = study.genes, []
        model = PCA(number, svd_solver="arpack", random_state=self.seed).fit(values)
        self.middle_ = model.mean_.astype(np.float64)
        self.axes_ = np.ascontiguousarray(model.components_.T, dtype=np.float64)
        self.scale_ = float(np.sqrt(model.explained_variance_[0]))
        self.shifts_ = Shifts.learned(study, groups, np.stack([self.key(study, g) for g in groups]))
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            self.network_ = self._untrained(number, len(set(self.shifts_.perturbations)))
        if not self.epochs:
            return
        pairs = [self._pair(study, groups, i, new) for i in range(len(groups)) for new in (False, True)]
        module = PairModule(self.network_, self.learning_rate, self.weight_decay, self.seed, self.fingerprint())

        def make(keys: list[Key], training: bool) -> list[Pair]:
            rng = np.random.default_rng([self.seed, *(n for key in keys for n in key)])
            return [pairs[position].some(rng) for _, position in keys]

        lesson = Lesson(make, np.arange(len(pairs)), np.arange(0), batch_size=8, seed=self.seed, move=lambda b, d: b)
        with devices.threads_for(DRAWN * DRAWN * 8):
            where: dict[str, Any] = {"device": "cpu", "progress": self.progress, "log": None}
            train(module, lesson, epochs=self.epochs, patience=None, folder=None, resume=False, **where)
        self.history_ = module.history

    def _untrained(self, components: int, perturbations: int) -> Correction | Transition:
        same: dict[str, Any] = {name: getattr(self, name) for name in ("dim", "depth", "num_heads")}
        if self.architecture == "state":
            return Transition(components, perturbations, **same)
        return Correction(components, encoder=self.encoder, num_inducing=self.num_inducing, **same)

    def _pair(self, study: Study, groups: list[Group], number: int, new: bool) -> Pair:
        """A group with the shift that others foretell: as when it is new itself."""
        group, key = groups[number], self.shifts_.keys[number]
        without = self.shifts_.left_out(groups, number, new)
        shift = self.shifts_(group, key, without)
        before, after = (self._scaled(study.values[rows]) for rows in (group.control, group.treated))
        moves = self._scaled((self.middle_ + self._apart(shift))[None])[0]
        return Pair(before, after, moves, self._given(group.perturbation, shift))

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

    @property
    def history(self) -> list[dict[str, Any]]:
        self.require_fitted()
        return self.history_

    def _networks(self) -> nn.Module:
        self.require_fitted()
        shifts = self.shifts_
        stored = _Stored(self.network_, len(self.genes_), len(shifts.values), shifts.keys.shape[1])
        arrays = {"middle": self.middle_, "axes": self.axes_, "scale": np.float64(self.scale_)}
        arrays |= {"keys": shifts.keys, "shifts": shifts.values, "numbers": shifts.numbers}
        for name, values in arrays.items():
            getattr(stored, name).copy_(torch.from_numpy(np.asarray(values)))
        return stored

    def _state(self) -> dict[str, Any]:
        return {
            "genes": len(self.genes_),
            "groups": len(self.shifts_.values),
            "components": self.axes_.shape[1],
            "widths": [*self.shifts_.widths],
            "size": [*self.size_],
            "notes": self.notes_,
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        names = zip(GROUP, (self.shifts_.perturbations, self.shifts_.types, self.shifts_.donors), strict=True)
        return {"vocabulary": pd.DataFrame({"gene": self.genes_}), "groups": pd.DataFrame(dict(names))}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        sizes = [fitted[name] for name in ("genes", "groups", "components")]
        for name, size in zip(("vocabulary", "groups"), sizes[:2], strict=True):
            if len(tables[name]) != size:
                raise ValueError(f"{name}.parquet must have {size} rows, it has {len(tables[name])}")
        number = tables["groups"]["perturbation"].nunique()
        stored = weights.build(lambda: _Stored(self._untrained(sizes[2], number), *sizes))
        if not all(0 <= size <= 1 for size in fitted["size"]) or min(fitted["widths"]) <= 0:
            raise ValueError("size must be within 0 and 1, and widths > 0")
        self.network_, self.size_, self.notes_ = stored.correction, tuple(fitted["size"]), fitted["notes"]
        self.genes_ = tables["vocabulary"]["gene"].tolist()
        arrays = {name: tensor.numpy() for name, tensor in stored.named_buffers(recurse=False)}
        if arrays["numbers"].min() < 1:
            raise ValueError("numbers of cells must be at least 1")
        self.middle_, self.axes_, self.scale_ = arrays["middle"], arrays["axes"], float(arrays["scale"])
        perturbations, types, donors = (tables["groups"][name].tolist() for name in GROUP)
        widths = (float(fitted["widths"][0]), float(fitted["widths"][1]))
        learned = arrays["keys"], arrays["shifts"], arrays["numbers"]
        self.shifts_ = Shifts(perturbations, types, donors, *learned, widths)


def totals_of(cells: Cells, middle: Float[np.ndarray, " genes"]) -> Float[np.ndarray, " cells"]:
    """Totals of cells as if all genes were measured: their own over the share of the measured genes in the mean cell.

    Else all genes that a source has measured would seem to be expressed more for those that it has not.

    Args:
        middle: The mean cell, log-normalised.
    """
    totals, mean = cells.library().astype(np.float64), np.expm1(middle)
    for source, measured in enumerate(cells.measured):
        if share := float(mean[measured].sum()) / max(float(mean.sum()), 1e-12):
            totals[cells.source_of == source] /= share
    return totals
