"""Labels as users hand them over: matched to sets, or to elements, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from omniset.core.sets import Sets
from omniset.tables.labels import doubts_of_classes

FEW = 5  # members of a class


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
    named = [f"{name} ({_classes(c)} classes)" if classifies else name for name, c in zip(targets, y.T, strict=True)]
    return f"{'classification' if classifies else 'regression'} of {level}s: {', '.join(named)}"


def doubts(y: np.ndarray, targets: list[str], level: str) -> list[str]:
    """What to say of classes that are hardly meant, or have few members."""
    sentences = doubts_of_classes(pd.DataFrame(dict(zip(targets, y.T, strict=True)), dtype=object))
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
    return sentences


def _classes(column: np.ndarray) -> int:
    return pd.Series(column, dtype=object).nunique()


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
    if level == "element" and isinstance(y, list | tuple) and len(y) == len(sets) and _nested(y):
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


def _nested(y: Any) -> bool:
    return all(hasattr(labels, "__len__") and not isinstance(labels, str) for labels in y)


def _by_name(values: Any, sets: Sets, what: str) -> Any:
    """A Series or DataFrame in the order of the sets, by its index."""
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


def weights_of_rows(values: Any, sets: Sets, level: str) -> np.ndarray | None:
    """`weights_per_set`, or for elements, set after set, that of their set. None: all the same."""
    if values is None:
        return None
    weights = weights_per_set(values, sets)
    return weights if level == "set" else np.repeat(weights, sets.sizes)


def weights_of_labelled(weights: np.ndarray | None, there: np.ndarray) -> np.ndarray | None:
    """Of rows with their weights, those that have a label.

    Raises:
        ValueError: None of them counts.
    """
    if weights is None:
        return None
    if not weights[there].any():
        raise ValueError("sample_weight is zero for all sets that have labels: at least one must count")
    return weights[there]
