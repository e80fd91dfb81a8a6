"""Digits as point clouds (sections 4.1, A.2, A.3.1): Tables 2, 3, A.4 to A.7, Figures 1 and A.3; and Table A.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from omniset.core.sets import SetBatch
from paper import figures
from paper.mnist import draw_points, mnist_images
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, in_batches
from paper.tables import OURS, SHARES, THEIRS, Results, Table, apart, beside, published


class MnistPoints(Study):
    """Which digit: sets of points drawn from its pixels, trained on 54,000, chosen on 6,000, tested on 10,000."""

    name = "mnist-points"
    input_dim, outputs = 2, 10

    def prepare(self, seeds: Sequence[int]) -> None:
        self.train, self.train_labels = mnist_images(self.data, "train")
        self.test_images, self.test_labels = mnist_images(self.data, "test")
        draw = (torch.randperm(len(self.train), generator=generator(self.name, "split", s)) for s in seeds)
        validation = len(self.train) // 10
        self.parts = {s: (p[validation:], p[:validation]) for s, p in zip(seeds, draw, strict=True)}

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        epoch, place = divmod(step, self.recipe.steps)
        rows, _ = self.parts[seed]
        size = self.recipe.batch_size
        order = torch.randperm(len(rows), generator=generator(self.name, "order", seed, epoch))
        chosen = rows[order[place * size : (place + 1) * size]]
        return self._draw(chosen, training, generator(self.name, "points", seed, step))

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        _, rows = self.parts[seed]
        for part in in_batches(self.recipe.batch_size, len(rows)):
            yield self._draw(rows[part], training, generator(self.name, "validation", seed, part.start))

    def loss(self, output: Float[Tensor, "sets outputs"], sample: Sample) -> Float[Tensor, ""]:
        return F.cross_entropy(output, sample.target)

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        """Whole sets: all digits. In shards: the first `sets_in_shards`, as small shards take long."""
        sizes, few = self.recipe.test["shard_sizes"], self.recipe.test["sets_in_shards"]
        right, changed = [0] * len(sizes), [0] * len(sizes)
        right_of_all = 0
        for part in in_batches(1000, len(self.test_images)):
            sample = self._draw_test(part, training).to(network.device)
            batch = SetBatch(sample.elements, sample.multiplicity, validate=False)
            with torch.no_grad():
                whole = network(batch).argmax(1)
            right_of_all += int((whole == sample.target).sum())
            for i, size in enumerate(sizes if part.start < few else []):
                if hasattr(network.encoder, "memory"):
                    network.encoder.memory = size  # the paper's: enough for one mini-batch
                sets = batch
                if column.count_empty:
                    sets = SetBatch(sample.elements, empty_counted(sample.multiplicity, size), validate=False)
                with torch.no_grad():
                    called = network(sets, shard_size=size, shards=column.shards).argmax(1)
                right[i] += int((called == sample.target).sum())
                changed[i] += int((called != whole).sum())
        total = len(self.test_images)
        few = min(-(-few // 1000) * 1000, total)
        return {
            "accuracy_of_whole_sets": 100 * right_of_all / total,
            "test_sets": total,
            "accuracy": [100 * r / few for r in right],
            "changed": changed,
            "test_sets_in_shards": few,
        }

    def tables(self, results: Results) -> list[Table]:
        groups = [self._table_of_group(results, *group) for group in self.recipe.test["groups"].items()]
        return [self._table_2(results), *groups, self._table_3(results)]

    def _table_of_group(self, results: Results, group: str, title: str) -> Table:
        """Accuracies by the size of test shards."""
        sizes, paper = self.recipe.test["shard_sizes"], self.recipe.paper[group]
        of_group = [(t, c) for t, c in self.recipe.columns if t.options["group"] == group]
        columns = [(t, c) for t, c in of_group if results.rows(t.name, c.name)]
        missing = [c.label for t, c in of_group if not results.rows(t.name, c.name)]
        rows: list[list[str]] = []
        for i, size in reversed([*enumerate(sizes)]):
            row = [f"{size:,}"]
            for t, c in columns:
                theirs = paper[c.name][i] if paper.get(c.name) else None
                row.append(beside(results.mean(t.name, c.name, "accuracy", i), 2, theirs, 2))
            rows.append(row)
        changes = ["labels changed, largest"]
        for t, c in columns:
            changes.append(str(max(max(s["changed"]) for s in results.rows(t.name, c.name))))
        head = ["elements of a test shard", *(f"{c.label}, {self.share(results, t.name)}" for t, c in columns)]
        notes = [SHARES, *self.conditions(results, [t.name for t, _ in columns])] if columns else []
        return Table(title, head, [*rows, changes] if columns else [], notes, missing)

    def _table_2(self, results: Results) -> Table:
        rows, missing = [], []
        for training, column in self.recipe.columns:
            group = training.options["group"]
            if group not in ("whole", "eight"):
                continue
            ours = results.mean(training.name, column.name, "accuracy_of_whole_sets")
            theirs = (self.recipe.paper[group].get(column.name) or [None])[-1]
            on = "whole sets" if training.shard_size is None else f"{training.shard_size}-point shards"
            if ours is None:
                missing.append(f"{column.label}, {on}")
                continue
            mine = [*ours.cells(2), self.share(results, training.name)]
            rows.append([column.label, on, *mine, published(theirs, 2), apart(ours, theirs)])
        head = ["accuracy %", "trained on", *OURS, *THEIRS]
        title = f"{self.recipe.title}: tested on whole sets of 1,024 points (Table 2)"
        return Table(title, head, rows, missing=missing)

    def _table_3(self, results: Results) -> Table:
        rows, missing = [], []
        for training in self.recipe.trainings:
            size = training.shard_size
            if training.options["group"] not in ("eight", "sizes") or size is None or training.shards != "merged":
                continue
            column = training.columns[0]
            theirs = self.recipe.paper["sizes"].get(f"{column.name} {size}")
            ours = results.mean(training.name, column.name, "accuracy_of_whole_sets")
            if ours is None:
                missing.append(f"{column.label}, {size}")
                continue
            mine = [*ours.cells(2), self.share(results, training.name)]
            rows.append([str(size), column.label, *mine, published(theirs, 2), apart(ours, theirs)])
        head = ["elements of a training shard", "accuracy %", *OURS, *THEIRS]
        return Table(f"{self.recipe.title}: size of training shards (Table 3)", head, rows, missing=missing)

    def figures(self, results: Results) -> dict[str, Figure]:
        drawn = {}
        for name, groups in self.recipe.test["figures"].items():
            panels = {}
            for group, title in groups.items():
                series = {c.label: (t.name, c.name) for t, c in self.recipe.columns if t.options["group"] == group}
                if series := {label: place for label, place in series.items() if results.rows(*place)}:
                    panels[title] = ("accuracy", series)
            if panels:
                labels = ("elements of a test shard", "accuracy (%)")
                drawn[name] = figures.against_sizes(results, panels, self.recipe.test["shard_sizes"], *labels)
        return drawn

    def _draw(self, rows: Tensor, training: Training, draw: torch.Generator) -> Sample:
        low, high = training.options.get("points", self.recipe.options["points"])
        where = rows.numpy()
        return _sample(self.train[where], self.train_labels[where], low, high, draw)

    def _draw_test(self, part: slice, training: Training) -> Sample:
        low, high = training.options.get("test_points", self.recipe.test["points"])
        draw = generator(self.name, "test", part.start)
        return _sample(self.test_images[part], self.test_labels[part], low, high, draw)


class Ablation(MnistPoints):
    """Table A.1: normalization before or after, and a row-wise Linear (as Lee et al.) or an FFN."""

    name = "ablation"

    def tables(self, results: Results) -> list[Table]:
        variants = self.recipe.test["variants"]
        places = {(c.label, t.options["variant_of_block"]): (t.name, c.name) for t, c in self.recipe.columns}
        rows, missing = [], []
        for label in dict.fromkeys(label for label, _ in places):
            row, left_out = [label], []
            for i, (variant, name) in enumerate(variants.items()):
                training, column = places[label, variant]
                ours = results.mean(training, column, "accuracy_of_whole_sets")
                row.append(beside(ours, 2, self.recipe.paper[column][i], 1))
                if ours is None:
                    left_out.append(f"{label}, {name}")
            if len(left_out) < len(variants):
                rows.append(row)
                missing += left_out
            else:
                missing.append(label)
        head = ["accuracy %, ours (paper)", *variants.values()]
        return [Table(f"{self.recipe.title} (Table A.1)", head, rows, self.conditions(results), missing)]


def empty_counted(multiplicity: Float[Tensor, "sets elements"], shard_size: int) -> Float[Tensor, "sets elements"]:
    """Multiplicities with 1 for the padding of shards in which a set has no element: points at the origin."""
    shards = multiplicity.split(shard_size, 1)
    return torch.cat([torch.where((shard > 0).any(1, keepdim=True), shard, 1.0) for shard in shards], 1)


def _sample(images: Any, labels: Any, low: int, high: int, draw: torch.Generator) -> Sample:
    """Point clouds of low to high points."""
    points = draw_points(images, high, draw)
    sizes = torch.randint(low, high + 1, (len(points), 1), generator=draw)
    present = torch.arange(high) < sizes
    return Sample(points * present[..., None], present.float(), torch.as_tensor(labels, dtype=torch.int64))
