"""What estimators are given: sets in the forms that they take, labels and groups matched to them, and folds.

Sets of one name, and of one group, are one unit: learned from or left out as a whole.
"""

from __future__ import annotations

import hashlib
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from omniset.core.encoding import Encoding, Missing
from omniset.core.sets import SetBatch, Sets
from omniset.core.stored import StoredSet
from omniset.tables.doubts import FEWEST
from omniset.tables.labels import doubts_of_classes, doubts_of_groups

FEW = 5  # members of a class
SHOWN = 3  # names in a sentence
DIGEST = 6  # bytes of the digest of a name: two of a million names hardly share one
LOOKED, OF_ONE, ENOUGH = 20_000, 2_000, 20  # elements by which units are seen: at most, of one set, and at least
NUMBERS = 1 << 22  # that are looked at together
APART, TAIL = 0.05, 0.025  # share of values that are farther from the range than it is wide; a tail of the values

Groups = Shaped[np.ndarray, " sets"]
Positions = Int[np.ndarray, " _"]

# ---------------------------------------------------------------------- sets


def sets_of(
    sets: Any, features: list[str] | None = None, encoding: Encoding | None = None, missing: Missing = "error"
) -> Sets:
    """Sets in any form that estimators take.

    Args:
        sets: What `Sets.of` takes; numbers (B, D), which are B sets of one element each; an array (B, N, D), which is B
            sets of N elements; an array of objects, (B,) or (B, 1), each of them a set. The last form has the two axes
            that some of scikit-learn's tools ask for.
        features: Names of the columns of a table that are features.
        encoding, missing: As for `Sets.from_pandas`.

    Raises:
        ValueError: Sets that cannot be used.
        TypeError: A sparse matrix; objects that are neither sets nor numbers.

    >>> sets_of(np.eye(3)), sets_of([[0.5, 1.0], [2.0, 4.0]])
    (Sets(sets=3, elements=3, dim=3), Sets(sets=2, elements=2, dim=2))
    >>> sets_of(np.zeros((3, 5, 2)))
    Sets(sets=3, elements=15, dim=2)
    """
    is_array = hasattr(sets, "__array__") and not hasattr(sets, "columns")
    first = sets[0] if isinstance(sets, list) and sets else None
    is_rows = isinstance(first, list) and bool(first) and isinstance(first[0], int | float)
    form = _of_array(sets) if _is_sparse(sets) or is_array or is_rows else sets
    return Sets.of(form, torch.float32, features, encoding, missing)


def _is_sparse(sets: Any) -> bool:
    """A matrix of SciPy's, by the methods that all of them have: who has none need not import it."""
    return hasattr(sets, "tocsr") and hasattr(sets, "nnz")


def _of_array(sets: Any) -> Any:
    array = sets
    if not _is_sparse(sets):
        array = sets.cpu().numpy() if isinstance(sets, torch.Tensor) else np.asarray(sets)
        if array.ndim == 3:
            return array
        if array.dtype == object and array.shape[1:] in ((), (1,)) and all(map(_is_set, array.reshape(-1))):
            return array.reshape(-1).tolist()
    from sklearn.utils import check_array

    rows = check_array(array)
    with np.errstate(over="ignore"):  # what is too large is refused
        rows = check_array(rows, dtype=np.float32, copy=True)
    return SetBatch(rows[:, None])


def _is_set(entry: Any) -> bool:
    """A set, or an array of its elements; of none it has one axis."""
    return isinstance(entry, StoredSet) or np.ndim(entry) == 2 or (np.ndim(entry) == 1 and not len(entry))


@dataclass
class Scales:
    """The values of features that a model learned from, by which it is seen where others come in another unit.

    Attributes:
        low, high: The range.
        first, last: The quantiles 0.025 and 0.975 of values that are not 0, of some 20,000 elements; 0 where all are.
    """

    low: list[float]
    high: list[float]
    first: list[float]
    last: list[float]

    @classmethod
    def of(cls, sets: Sets) -> Scales:
        low, high, looked = np.full(sets.dim, np.inf), np.full(sets.dim, -np.inf), [np.zeros((0, sets.dim))]
        step = max(int(sets.sizes.sum()) // _rows(sets.dim), 1)
        for elements, counts in sets.blocks(max(NUMBERS // max(sets.dim, 1), 1)):
            x = elements[counts > 0].double().numpy()
            low, high = np.minimum(low, x.min(0, initial=np.inf)), np.maximum(high, x.max(0, initial=-np.inf))
            looked.append(x[::step])
        found = low, high, *_quantiles(np.concatenate(looked), TAIL, 1 - TAIL)
        return cls(*(np.where(np.isfinite(each), each, 0).tolist() for each in found))

    def watched(self, sets: Iterable[StoredSet], names: list[str] | None) -> Iterator[StoredSet]:
        """The sets as they come. It warns where the first elements of sets have other units."""
        held: list[np.ndarray] = []
        missing = _rows(len(self.low))
        for one in sets:
            if missing > 0:
                elements, counts = one.read(0, min(OF_ONE, missing))
                held.append(elements[counts > 0].double().numpy())
                missing -= len(held[-1])
                if missing <= 0:
                    self._compare(held, names)
            yield one
        if held and missing > 0:
            self._compare(held, names)

    def _compare(self, of_sets: list[np.ndarray], names: list[str] | None) -> None:
        """Values lie apart where some are farther from the range than it is wide, or, of several sets, where half of
        those that are not 0 lie where a fortieth of them did.
        """
        x = np.concatenate(of_sets)
        if len(x) < ENOUGH:
            return
        low, high, first, last = map(np.asarray, (self.low, self.high, self.first, self.last))
        width = np.where(high > low, high - low, np.inf)
        apart = (np.maximum(low - x, x - high) > width).mean(0) > APART
        if len(of_sets) >= FEW:
            (middle,) = _quantiles(x, 0.5)
            told = ((x != 0).sum(0) >= ENOUGH) & (high > low)
            apart |= told & ((middle < first) | (middle > last))
        if not apart.any():
            return
        found = np.flatnonzero(apart)
        of = [f"number {i + 1}" if names is None else repr(names[i]) for i in found[:SHOWN].tolist()]
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        here, before = (
            f"{one[found[0]]:.3g} to {two[found[0]]:.3g}" for one, two in ((x.min(0), x.max(0)), (low, high))
        )
        warnings.warn(
            f"feature {', '.join(of)}{more}: values have another unit, or another range, than those that the model "
            f"learned from ({of[0]}: {here}; at fit {before}), and what it says of them means little: give them as at "
            "fit",
            stacklevel=3,
        )


def _rows(dim: int) -> int:
    """How many elements are looked at."""
    return max(min(LOOKED, NUMBERS // max(dim, 1)), 1)


def _quantiles(x: Float[np.ndarray, "elements dim"], *q: float) -> Float[np.ndarray, "q dim"]:
    """Of the values that are not 0; NaN where all are."""
    if not len(x):
        return np.full((len(q), x.shape[1]), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN
        return np.nanquantile(np.where(x == 0, np.nan, x), q, axis=0)


# ---------------------------------------------------------------------- labels


def numbers(y: np.ndarray) -> np.ndarray:
    try:
        return np.where(missing(y), np.nan, y).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"y must be numbers for regression: {error}") from error


def missing(values: np.ndarray) -> np.ndarray:
    """None and NaN."""
    return np.asarray(pd.isna(values))


def continuous(y: np.ndarray) -> bool:
    """Whether labels are measured numbers rather than classes: with fractions, and most of them there only once."""
    values = np.asarray(y.tolist())
    if values.dtype.kind != "f":
        return False
    different = np.unique(values)
    return bool((different % 1 != 0).any()) and len(different) > 0.5 * len(values)


def require_trained(values: np.ndarray, classes: np.ndarray) -> None:
    """See that a model knows these labels.

    Raises:
        ValueError: One that was not in training.
    """
    unknown = sorted({str(label) for label in values[~np.isin(values, classes)]})
    if unknown:
        raise ValueError(f"labels {unknown[:5]} were not in training, which had {classes.tolist()[:20]}")


def task_of(y: np.ndarray, targets: list[str], level: str, classifies: bool) -> str:
    """What is learned, in words."""
    counts = (pd.Series(column, dtype=object).nunique() for column in y.T)
    named = [f"{name} ({count} classes)" if classifies else name for name, count in zip(targets, counts, strict=True)]
    return f"{'classification' if classifies else 'regression'} of {level}s: {', '.join(named)}"


def doubts(y: np.ndarray, targets: list[str], level: str) -> list[str]:
    """What to say of classes that are hardly meant, or have few members."""
    table = pd.DataFrame(dict(zip(targets, y.T, strict=True)), dtype=object)
    sentences = doubts_of_classes(table)
    for name, column in zip(targets, y.T, strict=True):
        counts = pd.Series(column, dtype=object).value_counts()
        few = counts[counts < FEW]
        if len(counts) > 0.5 * counts.sum():
            sentences.append(
                f"{name}: {len(counts)} classes for {counts.sum()} labelled {level}s: is it meant to be predicted, or "
                "is it a name, or a group, of theirs?"
            )
        elif len(few):
            shown = ", ".join(f"{label!r} ({n})" for label, n in few.head(5).items())
            more = f" and {len(few) - 5} more" if len(few) > 5 else ""
            sentences.append(f"{name}: classes with fewer than {FEW} {level}s: {shown}{more}")
    return sentences + ([] if level == "element" else doubts_of_groups(table, targets, targets))


def aligned(y: Any, sets: Sets, level: str, usual: str = "label") -> tuple[np.ndarray, list[str], bool]:
    """Labels (rows, targets) in the order of the sets or of their elements, the targets' names, and whether y was one
    column.

    Args:
        usual: What the target is called where y does not say it.
    """
    if y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
    order = sets.order
    if hasattr(y, "columns") and "set" in y.columns:
        y = y.set_index("set")
    nested = isinstance(y, list | tuple) and all(hasattr(one, "__len__") and not isinstance(one, str) for one in y)
    if level == "element" and nested and len(y) == len(sets):
        for number, (labels, size) in enumerate(zip(y, sets.sizes, strict=True)):
            if len(labels) != size:
                raise ValueError(f"y[{number}] has {len(labels)} labels, the set has {size} elements")
        y = np.concatenate([np.asarray(labels, dtype=object) for labels in y])
        order = None
    elif level == "set" and hasattr(y, "index") and hasattr(y, "loc") and sets.features is not None:
        y = _by_name(y, sets, "y")
    if hasattr(y, "columns") or getattr(y, "name", None):
        leaked = {*(y.columns if hasattr(y, "columns") else [y.name])} & {
            *((sets.features or []) if sets.encoding is None else sets.encoding.names)
        }
        if leaked:
            raise ValueError(f"column {sorted(leaked)[0]!r} is both a feature and a target: take it out of the table")
    names = [str(c) for c in y.columns] if hasattr(y, "columns") else [str(getattr(y, "name", None) or usual)]
    values = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if values.ndim not in (1, 2):
        raise ValueError(f"y must hold one label, or one row of labels, per {level}, got shape {values.shape}")
    single = values.ndim == 1
    values = values[:, None] if single else values
    if len(names) != values.shape[1]:
        names = [f"{names[0]}{number}" for number in range(1, values.shape[1] + 1)]
    number = len(sets) if level == "set" else int(sets.offsets[-1])
    if len(values) != number:
        raise ValueError(f"y has {len(values)} labels for {number} {level}s")
    if level == "element":
        return (values if order is None else values[order]), names, single
    absent = missing(values)
    if absent.any():
        raise ValueError(f"y[{int(absent.any(1).argmax())}] is missing")
    return values, names, single


def _by_name(values: Any, sets: Sets, what: str) -> Any:
    if values.index.tolist() == sets.names:  # which may be there more than once
        return values
    missing = [name for name in sets.names if name not in values.index]
    if missing:
        raise ValueError(f"{what} has no entry for {len(missing)} sets, among them {missing[:3]}")
    return values.loc[sets.names]


def per_set(values: Any, sets: Sets, what: str) -> np.ndarray:
    if hasattr(values, "index") and hasattr(values, "loc") and sets.features is not None:
        values = _by_name(values, sets, what)
    one_each = np.asarray(values)
    if one_each.shape != (len(sets),):
        raise ValueError(f"{what} must be one per set, ({len(sets)},), got shape {one_each.shape}")
    return one_each


def weights_per_set(values: Any, sets: Sets) -> np.ndarray:
    """How much each set counts.

    Raises:
        ValueError: Not one per set; not a finite number >= 0; all of them 0.
    """
    weights = per_set(values, sets, "sample_weight").astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        raise ValueError(f"sample_weight[{int(bad.argmax())}] is {weights[bad][0]}: it must be finite and >= 0")
    if not weights.any():
        raise ValueError("sample_weight is zero for all sets: at least one must count")
    return weights


# ---------------------------------------------------------------------- groups, and names


def groups_of(names: Sequence[Any], groups: Groups | None) -> Groups | None:
    """Groups in which sets of one name are together, such as those that a bootstrap draws several times.

    Raises:
        ValueError: Sets of one name are in two groups.
    """
    known = [str(name) for name in names]
    if len(set(known)) == len(known):
        return groups
    if groups is None:
        return np.array(known, dtype=object)
    of_name: dict[str, Any] = {}
    for name, group in zip(known, groups.tolist(), strict=True):
        if of_name.setdefault(name, group) != group:
            raise ValueError(
                f"set {name!r} is there twice, in the groups {of_name[name]!r} and {group!r}: it would be learned from "
                "and left out"
            )
    return groups


def require_spread(target: str, of_class: dict[Any, list[str]]) -> None:
    """See that classes are in several groups, where groups are left out.

    Args:
        of_class: The groups of each class.

    Raises:
        ValueError: Each class is in one group only.
    """
    alone = [f"{label!r} in {groups[0]!r}" for label, groups in of_class.items() if len(groups) == 1]
    named = ", ".join(alone[:SHOWN]) + (", ..." if len(alone) > SHOWN else "")
    if len(alone) == len(of_class):
        raise ValueError(
            f"groups: each class of {target} is in one group only ({named}): whatever is left out, nothing is learned "
            "of its class"
        )
    if alone:
        warnings.warn(
            f"{target}: classes in one group only: {named}; where it is left out, nothing is learned of them",
            stacklevel=4,
        )


def digests(sets: Sets, which: Int[np.ndarray, " chosen"]) -> list[str]:
    """Of the names of these sets; none of sets that came without names, as lists of arrays do."""
    if sets.features is None:
        return []
    names = sets.names
    return sorted({digest_of(names[number]) for number in which.tolist()})


def digest_of(name: Any) -> str:
    return hashlib.blake2b(str(name).encode(), digest_size=DIGEST).hexdigest()


def is_empty(stored: StoredSet) -> bool:
    return not bool((stored.multiplicity[stored.start : stored.stop] > 0).any())


def warn_of_empty(named: Sequence[str], number: int, where: str) -> None:
    """Of so many sets, name those without elements: they are taken, and hardly meant.

    Raises:
        ValueError: Most of at least 5 sets are.
    """
    if named:
        said = f"{where}: {len(named):,} of {number:,} sets are empty: " + ", ".join(map(repr, named[:SHOWN]))
        if 2 * len(named) > number >= FEWEST:
            raise ValueError(f"{said}: look at what has emptied them, or leave them out")
        warnings.warn(said + (", ..." if len(named) > SHOWN else ""), stacklevel=3)


# ---------------------------------------------------------------------- folds


def folds_of(
    y: Shaped[np.ndarray, " rows"], number: int, seed: int, groups: Shaped[np.ndarray, " rows"] | None = None
) -> Int[np.ndarray, " rows"]:
    """The fold of each row, from 0. Fewer folds than asked for where there are fewer rows, or groups.

    Args:
        y: Labels; each fold gets its share of every class, or of low and high numbers.
        groups: Rows of one group go to one fold. Large groups come first; each goes to the fold that has the fewest
            rows with its most frequent label, then to the smallest one.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(y))
    if groups is None:
        folds = np.empty(len(y), dtype=np.int64)
        folds[drawn[np.argsort(y[drawn], kind="stable")]] = np.arange(len(y)) % number
        return folds
    _, group = np.unique(groups, return_inverse=True)
    labels = np.unique(y, return_inverse=True)[1] if y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)
    counts = np.zeros((group.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, labels), 1)
    held = np.zeros((min(number, len(counts)), counts.shape[1]), dtype=np.int64)
    fold_of_group = np.zeros(len(counts), dtype=np.int64)
    shuffled = rng.permutation(len(counts))
    for one in shuffled[np.argsort(-counts[shuffled].sum(1), kind="stable")]:
        fold = np.lexsort([held.sum(1), held[:, counts[one].argmax()]])[0]
        fold_of_group[one] = fold
        held[fold] += counts[one]
    return fold_of_group[group]


def split(
    number: int,
    fraction: float,
    seed: int,
    groups: Shaped[np.ndarray, " sets"] | None = None,
    classes: Int[np.ndarray, " sets"] | None = None,
) -> tuple[Positions, Positions]:
    """Positions of the sets to train on and of those to watch, in order.

    Args:
        fraction: Of sets, or of groups, that are kept back.
        groups: Sets of one group stay together.
        classes: Are kept in proportion, where there are enough sets of each.

    Raises:
        ValueError: All sets are of one group.
    """
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    positions = np.arange(number)
    held = round(number * fraction)
    if groups is not None and held:
        if len(set(groups.tolist())) < 2:
            raise ValueError("groups: all sets are of one group, so none can be kept back: validation_fraction=0")
        train, validation = next(
            GroupShuffleSplit(1, test_size=fraction, random_state=seed).split(positions, groups=groups)
        )
        return np.sort(train), np.sort(validation)
    if not held or held >= number:
        return positions, positions[:0]
    counts = np.array([0]) if classes is None else np.bincount(classes)
    enough = counts.min() > 1 and held >= len(counts) and number - held >= len(counts)
    train, validation = train_test_split(
        positions, test_size=held, random_state=seed, stratify=classes if enough else None
    )
    return np.sort(train), np.sort(validation)


def rows_of(sets: Sets, which: Positions) -> Int[np.ndarray, " rows"]:
    """The elements of these sets."""
    bounds = np.stack([sets.offsets[which], sets.offsets[which + 1]], 1).tolist()
    return np.concatenate([np.arange(start, stop) for start, stop in bounds])


def batch_of(sets: int) -> int:
    """Sets per step: an eighth of them, so that an epoch has at least eight steps, and 64 at most."""
    return min(max(sets // 8, 4), 64)


def checksum(sets: Sets, targets: Tensor, train: Positions, weights: Float[np.ndarray, " sets"] | None = None) -> int:
    """Of everything that is learned from, so that a resumed run cannot go on with other data."""
    digest = 0
    for part in (sets.offsets, targets.numpy(), train, *([] if weights is None else [weights])):
        digest = zlib.crc32(part.tobytes(), digest)
    for block in sets.blocks(min(1 << 16, max((1 << 24) // max(sets.dim, 1), 1))):
        for rows in block:
            digest = zlib.crc32(rows.numpy().tobytes(), digest)
    return digest
