"""Which sets are one unit, that is learned from or left out as a whole; and sets that a model has seen already."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

SHOWN = 3  # names in a sentence
DIGEST = 6  # bytes of the digest of a name: two of a million names hardly share one

Groups = Shaped[np.ndarray, " sets"]


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


def require_spread(model: SetEstimator, targets: Shaped[Tensor, "sets targets"], groups: Groups | None) -> None:
    """See that what is learned is in several groups, where groups are left out.

    Raises:
        ValueError: Each class, or all events, are of one group.
    """
    left_out = model.single is None or model.folds is not None
    if groups is None or model.level == "element" or not (left_out or model.kept_back(len(targets))):
        return
    if len(np.unique(groups.astype(str))) == 1:  # which is refused where sets are dealt
        return
    if model.kind.risks:
        events = np.unique(groups[(targets[:, 0] > 0).numpy()].astype(str)).tolist()
        if left_out and len(events) == 1:
            raise ValueError(f"groups: all events are of one group, {events[0]!r}: nothing is left to learn without it")
        return
    if model.classifies:
        for (name, classes), codes in zip(model.labels_.items(), targets.numpy().T, strict=True):
            of_class = {
                label: np.unique(groups[codes == code].astype(str)).tolist() for code, label in enumerate(classes)
            }
            _require_spread_classes(name, of_class)


def _require_spread_classes(target: str, of_class: dict[Any, list[str]]) -> None:
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
    return sorted({_digest(names[number]) for number in which.tolist()})


def _digest(name: Any) -> str:
    return hashlib.blake2b(str(name).encode(), digest_size=DIGEST).hexdigest()


def warn_of_known(model: SetEstimator, sets: Sets) -> None:
    """Say which sets have names of sets that the model learned from: scores on them are no evidence."""
    known = {*model.seen_}
    if not known or sets.features is None:
        return
    seen = [str(name) for name in sets.names if _digest(name) in known]
    if seen:
        named = ", ".join(map(repr, seen[:SHOWN])) + (", ..." if len(seen) > SHOWN else "")
        warnings.warn(
            f"{len(seen):,} of {len(sets):,} sets have the name of one that the model learned from ({named}): what is "
            "measured on them says nothing of new sets",
            stacklevel=3,
        )


def warn_of_empty(sets: Sets, where: str) -> None:
    """Name sets without elements: they are taken, and hardly meant."""
    empty = _empty(sets)
    if empty.any():
        named = [str(name) for name, is_empty in zip(sets.names, empty, strict=True) if is_empty]
        shown = ", ".join(map(repr, named[:SHOWN])) + (", ..." if len(named) > SHOWN else "")
        warnings.warn(f"{where}: {len(named):,} of {len(sets):,} sets are empty: {shown}", stacklevel=3)


def _empty(sets: Sets) -> Bool[np.ndarray, " sets"]:
    if not len(sets):
        return np.zeros(0, dtype=bool)
    stored = (sets[number] for number in range(len(sets)))
    return np.array([not bool((one.multiplicity[one.start : one.stop] > 0).any()) for one in stored])
