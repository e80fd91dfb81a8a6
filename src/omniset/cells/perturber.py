"""What a perturbation does to a population of cells: the shift of known populations that are like it.

    treated cell = untreated cell + shift of its group (`Shifts`)

A group is a population of untreated cells, of one type and donor, and the treated one beside it. Which cell became
which is not known: sets are learned from sets. A set encoder, and a transformer over the cells as STATE has it, added
nothing to the shift on donors and types kept back.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int, Shaped
from sklearn.decomposition import PCA
from torch import Tensor, nn

import omniset
from omniset.cells.annotator import values_of
from omniset.cells.data import Cells, known_genes, opened, texts
from omniset.cells.model import SCALE
from omniset.cells.variable_genes import log_normalised, most_variable, survey
from omniset.core.attention import multiset_attention
from omniset.fitted import Estimator
from omniset.tables.files import listed
from omniset.tables.matrices import needed
from omniset.training import artefacts, schema

PerGene = Float[np.ndarray, " genes"]
Key = Float[np.ndarray, " components"]  # where a mean cell lies
LEAST = 10  # cells of a population
GENES = 2000
COMPONENTS = 30  # principal ones, in which cells are compared
WIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 1e3)  # of the kernel, in median distances between groups; the last: the mean of all
DONORS = re.compile("(donor|patient|subject|individual|participant|mouse|animal)(s|id|name)?|ind")
GROUP = ("perturbation", "type", "donor")


@dataclass(frozen=True)
class Group:
    """One type of one donor under one perturbation, as rows of the cells."""

    perturbation: str
    type: str
    donor: str
    control: Int[np.ndarray, " controls"]
    treated: Int[np.ndarray, " treated"]  # none, where it is to be foretold

    @property
    def name(self) -> str:
        return f"{self.perturbation}, {self.type}, {self.donor}"


@dataclass
class Study:
    """Log-normalised cells, and the populations among them.

    Attributes:
        values: (cells, genes) of the genes that vary most.
        groups: Those of which treated and untreated cells are there.
        lacking: Those without treated cells, of perturbations that others have.
    """

    values: Float32[np.ndarray, "cells genes"]
    genes: list[str]
    groups: list[Group]
    lacking: list[Group]

    @classmethod
    def of(cls, cells: Cells, condition: str, control: str, label: str, donor: str | None) -> Study:
        """To learn from, by columns of obs; of the genes that vary most.

        Raises:
            ValueError: No such column or control, or no population of at least 10 cells before and after.
        """
        rows = _populations(cells, condition, control, label, donor)
        codes = pd.factorize(_column(cells, condition, "condition"))[0].astype(np.int64)
        seen, moments = survey(cells, codes, np.arange(len(cells)), False)
        often = np.flatnonzero(seen)
        chosen = often[most_variable([m.of_genes(often) for m in moments], GENES)]
        counts = cells.take(np.arange(len(cells)))[:, chosen]
        values = log_normalised(counts, cells.library()).astype(np.float32).toarray()
        groups, lacking = _groups(rows, control, sorted({state for state, _, _ in rows} - {control, ""}))
        if len(groups) < 2:
            parts = ({of for s, _, of in rows if s and (s == control) == before} for before in (True, False))
            divided = donor is not None and not set.intersection(*parts)
            apart = f"; no {donor} has both untreated and treated cells" if divided else ""
            raise ValueError(
                f"condition: {len(groups)} populations of {condition} have {LEAST} cells or more before and after, at "
                f"least 2 are needed{apart}"
            )
        _warn_of_divided(cells.obs, condition)
        return cls(values, [cells.genes[i] for i in chosen], groups, lacking)

    def mean(self, rows: Int[np.ndarray, " rows"]) -> PerGene:
        return self.values[rows].mean(0, dtype=np.float64)

    def shift(self, group: Group) -> PerGene:
        """Mean of the treated cells minus that of the others."""
        return self.mean(group.treated) - self.mean(group.control)


def _warn_of_divided(obs: pd.DataFrame, condition: str) -> None:
    """Where no donor has two conditions, what a perturbation does is what donors differ in too."""
    columns = [str(name) for name in obs if name != condition]
    named = [name for name in columns if DONORS.fullmatch(re.sub(r"[\W_]+", "", name).casefold())]
    if named and max(obs.groupby(name, observed=True)[condition].nunique().max() for name in named) == 1:
        warnings.warn(
            f"no value of {listed(named)} has cells of two values of {condition}: what is learned of {condition} may "
            "be what donors differ in, and the scores do not tell",
            stacklevel=3,
        )


def _populations(
    cells: Cells, condition: str | None, control: str, label: str, donor: str | None
) -> dict[tuple[str, str, str], Int[np.ndarray, " rows"]]:
    """Rows by condition, type and donor; "" for a value that is missing."""
    state = np.full(len(cells), control, dtype=object)
    if condition is not None:
        state = _column(cells, condition, "condition")
    kind = _column(cells, label, "label")
    donors = np.full(len(cells), "all", dtype=object) if donor is None else _column(cells, donor, "donor")
    known = pd.unique(state[state != ""])
    if control not in known:
        raise ValueError(f"control must be a value of {condition}, there are {listed(known.tolist())}; got {control!r}")
    frame = pd.DataFrame({"state": state, "type": kind, "donor": donors})
    parts: Any = frame.groupby(["state", "type", "donor"], sort=True)
    return {key: np.asarray(part.index) for key, part in parts}


def _groups(
    rows: dict[tuple[str, str, str], Int[np.ndarray, " rows"]], control: str, perturbations: list[str]
) -> tuple[list[Group], list[Group]]:
    """Untreated populations under each perturbation: those that were measured after it, and the others."""
    groups: list[Group] = []
    lacking: list[Group] = []
    for perturbation in perturbations:
        for (state, kind, donor), before in rows.items():
            if state != control or not kind or len(before) < LEAST:
                continue
            after = rows.get((perturbation, kind, donor), np.zeros(0, dtype=np.int64))
            measured = len(after) >= LEAST
            group = Group(perturbation, kind, donor, before, after if measured else after[:0])
            (groups if measured else lacking).append(group)
    return groups, lacking


def _column(cells: Cells, name: str, what: str) -> Shaped[np.ndarray, " cells"]:
    values = texts(cells, name, what)
    values[pd.isna(values)] = ""
    return values


@dataclass
class Shifts:
    """The shift of a new group: the mean of known groups' shifts, those whose untreated cells are like its own first.

        s(q) = sum_g n_g exp(-|q - k_g|^2 / 2 w^2) s_g / sum_g n_g exp(-|q - k_g|^2 / 2 w^2)

    over groups g of its perturbation, k_g the mean of their untreated cells, n_g the harmonic mean of the numbers of
    their cells: multiset attention (`omniset.core.attention.multiset_attention`). A small w is the shift of the same
    type in other donors, a large one the mean shift; it is learned on known groups, each foretold from the others, one
    for types that others have and one for new types.
    """

    perturbations: list[str]
    types: list[str]
    donors: list[str]
    keys: Float[np.ndarray, "groups components"]
    values: Float[np.ndarray, "groups genes"]  # shifts
    numbers: Int[np.ndarray, "groups 2"]  # of untreated and of treated cells
    widths: tuple[float, float] = (1.0, 1.0)  # of groups whose type is known, and of others

    @classmethod
    def learned(cls, study: Study, groups: list[Group], keys: Float[np.ndarray, "groups components"]) -> Shifts:
        numbers = np.array([(len(g.control), len(g.treated)) for g in groups], dtype=np.int64)
        values = np.stack([study.shift(g) for g in groups])
        names = [g.perturbation for g in groups], [g.type for g in groups], [g.donor for g in groups]
        shifts = cls(*names, keys, values, numbers)
        shifts.widths = tuple(shifts._width(groups, new) for new in (False, True))  # type: ignore[assignment]
        return shifts

    def __call__(self, group: Group, key: Key) -> PerGene:
        """Of a group whose untreated cells have their mean at `key`."""
        allowed, alike = self._known(group)
        return self._at(key, allowed, self.widths[0 if alike.any() else 1])

    def _known(self, group: Group) -> tuple[Shaped[np.ndarray, " groups"], Shaped[np.ndarray, " groups"]]:
        """Known groups of its perturbation; and of these those of its type."""
        allowed = np.array([p == group.perturbation for p in self.perturbations])
        return allowed, allowed & np.array([t == group.type for t in self.types])

    def _at(self, key: Key, allowed: Shaped[np.ndarray, " groups"], width: float) -> PerGene:
        if not allowed.any():
            return np.zeros(self.values.shape[1])
        keys = torch.from_numpy(self.keys[allowed])
        wide = torch.cat((keys, -0.5 * keys.square().sum(1, keepdim=True)), 1)
        query = torch.from_numpy(np.append(key, 1.0))[None]
        values, sizes = torch.from_numpy(self.values[allowed]), torch.from_numpy(self.sizes[allowed])
        scale = 1 / (width * self.unit) ** 2
        return multiset_attention(query, wide, values, sizes, scale=scale)[0].numpy()

    @property
    def sizes(self) -> Float[np.ndarray, " groups"]:
        """n_g."""
        return 2 / (1 / self.numbers).sum(1)

    @property
    def unit(self) -> float:
        """Median distance between the groups' keys."""
        apart = np.linalg.norm(self.keys[:, None] - self.keys[None], axis=2)[np.triu_indices(len(self.keys), 1)]
        return max(float(np.median(apart)), 1e-6)

    def _left_out(self, groups: list[Group], number: int, new: bool) -> Shaped[np.ndarray, " groups"]:
        """Groups that foretell a known one as if its type, or else its donor, were new."""
        group = groups[number]
        if new:
            return np.array([g.type == group.type for g in groups])
        same = np.array([g.donor == group.donor for g in groups])
        same[number] = True
        return same

    def _width(self, groups: list[Group], new: bool) -> float:
        errors = np.zeros(len(WIDTHS))
        for number, group in enumerate(groups):
            left = self._left_out(groups, number, new)
            allowed, alike = (some & ~left for some in self._known(group))
            if not (allowed if new else alike).any():
                continue
            for i, width in enumerate(WIDTHS):
                error = np.square(self._at(self.keys[number], allowed, width) - self.values[number]).sum()
                errors[i] += self.sizes[number] * error
        # Without a donor more, the same type tells most of a type that is known; of a new one all do.
        return WIDTHS[int(errors.argmin())] if errors.any() else (WIDTHS[-1] if new else WIDTHS[0])


class _Learned(nn.Module):
    """All numbers of a fitted perturber."""

    def __init__(self, **numbers: Tensor) -> None:
        super().__init__()
        for name, tensor in numbers.items():
            self.register_buffer(name, tensor)

    @classmethod
    def empty(cls, genes: int, groups: int, components: int) -> _Learned:
        shapes = {"middle": (genes,), "axes": (genes, components)}
        shapes |= {"keys": (groups, components), "shifts": (groups, genes)}
        double = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        return cls(**double, numbers=torch.zeros(groups, 2, dtype=torch.int64))


class CellPerturber(Estimator):
    """Treated populations from untreated ones, learned from groups of which both were measured.

    Args:
        {options}

    Attributes:
        genes_: Those that vary most.
        shifts_: Shifts of the known groups.
        notes_: What was decided, a sentence each.
    """

    genes_: list[str]
    shifts_: Shifts
    network_: _Learned
    FITTED: ClassVar[dict[str, Any]] = {
        "genes": schema.SIZE,
        "groups": schema.SIZE,
        "components": schema.SIZE,
        "widths": schema.array(schema.NUMBER, minItems=2, maxItems=2),
        "notes": schema.array(schema.TEXT),
    }
    TABLES: ClassVar = {"vocabulary": ["gene"], "groups": [*GROUP]}
    HISTORIES: ClassVar[tuple[str, ...]] = ()

    def fit(
        self,
        source: Any,
        *,
        condition: str = "condition",
        control: str = "control",
        label: str = "cell_type",
        donor: str | None = None,
        **reading: Any,
    ) -> CellPerturber:
        """Learn from all types and donors of which 10 cells or more were measured before and after.

        Args:
            source: As in `CellEmbedder.fit`.
            condition: Column of obs with the perturbation of each cell.
            control: Its value for untreated cells.
            label: Column with the cell types.
            donor: Column with the donor, or the sample. None: all cells are of one.
            reading: `layer`, `input` and `gene_column`, as in `read_cells`.

        Raises:
            ValueError: No such column or value, fewer than 2 populations, or an option out of its bounds.
        """
        self.check_options()
        with opened(source, **reading) as cells:
            return self.fit_groups(Study.of(cells, condition, control, label, donor))

    def fit_groups(self, study: Study, groups: list[Group] | None = None) -> CellPerturber:
        """`fit` on some of the groups of a study, or on all.

        Raises:
            ValueError: Fewer than 2 groups, or an option out of its bounds.
        """
        self.check_options()
        groups = study.groups if groups is None else groups
        if len(groups) < 2:
            raise ValueError(f"groups must be at least 2, got {len(groups)}")
        rows = np.unique(np.concatenate([np.concatenate((g.control, g.treated)) for g in groups]))
        values = study.values[rows]
        number = min(COMPONENTS, len(rows) - 1, values.shape[1] - 1)
        model = PCA(number, svd_solver="arpack", random_state=self.seed).fit(values)
        self.genes_, self.middle_ = study.genes, model.mean_.astype(np.float64)
        self.axes_ = np.ascontiguousarray(model.components_.T, dtype=np.float64)
        self.shifts_ = Shifts.learned(study, groups, np.stack([self.key(study, g) for g in groups]))
        shifts = self.shifts_
        arrays = {"middle": self.middle_, "axes": self.axes_, "numbers": shifts.numbers}
        arrays |= {"keys": shifts.keys, "shifts": shifts.values}
        self.network_ = _Learned(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        self.notes_ = [f"{len(groups)} populations before and after are learned from"]
        for name, width in zip(("new donors", "new types"), shifts.widths, strict=True):
            near = f"near ones first ({width:g} median distances)" if width < max(WIDTHS) else "all alike"
            self.notes_.append(f"{name}: the shifts of known groups, {near}")
        return self

    def study(self, cells: Cells, columns: dict[str, Any], aliases: Mapping[str, str] | None = None) -> Study:
        """New cells, to be foretold under all perturbations that are known, see `foretell`.

        Args:
            columns: `condition` (None: no cell is treated), `control`, `label` and `donor`.
        """
        self.require_fitted()
        known = known_genes(cells, self.genes_, aliases, "they count as in the mean cell")
        totals = totals_of(known, self.middle_)
        values = values_of(known, np.arange(len(known)), self.middle_.astype(np.float32), library=totals)
        rows, perturbations = _populations(known, **columns), sorted(set(self.shifts_.perturbations))
        groups, lacking = _groups(rows, columns["control"], perturbations)
        if not groups and not lacking:
            raise ValueError(f"label: no {columns['label']} has {LEAST} untreated cells or more of one donor")
        return Study(values, self.genes_, groups, lacking)

    def foretell(
        self,
        source: Any,
        *,
        condition: str | None = "condition",
        control: str = "control",
        label: str = "cell_type",
        donor: str | None = None,
        aliases: Mapping[str, str] | None = None,
        **reading: Any,
    ) -> Any:
        """The untreated cells of a source as if they were treated, under each known perturbation.

        Args:
            source, control, label, donor, reading: As for fit. Treated cells are not looked at.
            condition: None: no cell of the source is treated.
            aliases: Other names of genes.

        Returns:
            An AnnData of log-normalised values, see `treated`; of populations of 10 untreated cells or more.

        Raises:
            ValueError: No such column or value, no such population, or none of the genes is known.
        """
        columns: dict[str, Any] = {"condition": condition, "control": control, "label": label, "donor": donor}
        with opened(source, **reading) as cells:
            study = self.study(cells, columns, aliases)
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

    def shift(self, study: Study, group: Group) -> PerGene:
        """What every cell of a group moves by."""
        return self.shifts_(group, self.key(study, group))

    def key(self, study: Study, group: Group) -> Key:
        """Where the mean of the untreated cells of a group lies, in principal components."""
        return (study.mean(group.control) - self.middle_) @ self.axes_

    def predict(self, study: Study, group: Group) -> Float[np.ndarray, "controls genes"]:
        """The untreated cells of a group as if they were treated: log-normalised, not below 0."""
        return np.maximum(study.values[group.control] + self.shift(study, group), 0)

    def populations(self, study: Study) -> pd.DataFrame:
        """Of new cells: a row per population that is foretold, and whether its type is known.

        One whose type is not moves as groups do that are like it.
        """
        known = {*zip(self.shifts_.perturbations, self.shifts_.types, strict=True)}
        rows = [
            [*(getattr(g, name) for name in GROUP), len(g.control), len(g.treated), (g.perturbation, g.type) in known]
            for g in [*study.groups, *study.lacking]
        ]
        return pd.DataFrame(rows, columns=[*GROUP, "untreated cells", "treated cells", "type is known"])

    def largest_changes(self, number: int) -> pd.DataFrame:
        """The genes that change most under each perturbation, in the mean over known groups."""
        shifts, rows = self.shifts_, []
        for name in dict.fromkeys(shifts.perturbations):
            of = np.array([p == name for p in shifts.perturbations])
            mean = np.average(shifts.values[of], axis=0, weights=shifts.sizes[of])
            top = np.argsort(-np.abs(mean), kind="stable")[:number]
            rows += [[name, self.genes_[gene], float(mean[gene])] for gene in top]
        return pd.DataFrame(rows, columns=["perturbation", "gene", "change"])

    def _state(self) -> dict[str, Any]:
        sizes = {"genes": len(self.genes_), "groups": len(self.shifts_.values), "components": self.axes_.shape[1]}
        return {**sizes, "widths": [*self.shifts_.widths], "notes": self.notes_}

    def _tables(self) -> dict[str, pd.DataFrame]:
        names = zip(GROUP, (self.shifts_.perturbations, self.shifts_.types, self.shifts_.donors), strict=True)
        return {"vocabulary": pd.DataFrame({"gene": self.genes_}), "groups": pd.DataFrame(dict(names))}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        sizes = [fitted[name] for name in ("genes", "groups", "components")]
        for name, size in zip(("vocabulary", "groups"), sizes[:2], strict=True):
            if len(tables[name]) != size:
                raise ValueError(f"{name}.parquet must have {size} rows, it has {len(tables[name])}")
        self.network_, self.notes_ = weights.build(lambda: _Learned.empty(*sizes)), fitted["notes"]
        if min(fitted["widths"]) <= 0:
            raise ValueError("widths must be > 0")
        self.genes_ = tables["vocabulary"]["gene"].tolist()
        arrays = {name: tensor.numpy() for name, tensor in self.network_.named_buffers()}
        if arrays["numbers"].min() < 1:
            raise ValueError("numbers of cells must be at least 1")
        self.middle_, self.axes_ = arrays["middle"], arrays["axes"]
        perturbations, types, donors = (tables["groups"][name].tolist() for name in GROUP)
        widths = (float(fitted["widths"][0]), float(fitted["widths"][1]))
        learned = arrays["keys"], arrays["shifts"], arrays["numbers"]
        self.shifts_ = Shifts(perturbations, types, donors, *learned, widths)


def totals_of(cells: Cells, middle: PerGene) -> Float[np.ndarray, " cells"]:
    """Totals of cells as if all genes were measured: their own over the share of the measured genes in the mean cell.

    Else all genes that a source has measured would seem to be expressed more for those that it has not.
    """
    totals, mean = cells.library().astype(np.float64), np.expm1(middle)
    for source, measured in enumerate(cells.measured):
        if share := float(mean[measured].sum()) / max(float(mean.sum()), 1e-12):
            totals[cells.source_of == source] /= share
    return totals
