"""Options of a model of sets that must fit together, and the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omniset.estimators.options import AUTO, SIMPLE
from omniset.runs import processes
from omniset.runs.devices import find

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator

OF_ONE: dict[str, Any] = {"log": None, "gradient": "exact", "validation_fraction": None}
OF_NETWORKS: dict[str, Any] = {
    "dim": None,
    "depth": None,
    "num_heads": 4,
    "num_inducing": 8,
    "encoder_options": None,
    "epochs": None,
    "learning_rate": None,
    "weight_decay": 1e-2,
    "patience": 10,
}


def check(model: SetEstimator) -> None:
    """Check the options one by one and together, and that the device and the processes are to be had.

    Raises:
        ValueError: Naming the option, its bound and the value.
    """
    model.check_options()
    if model.class_weight is not None and not model.classifies:
        raise ValueError(f"class_weight={model.class_weight!r} is for classes, and this is a regression")
    if model.encoder is not None and model.method not in (AUTO, model.encoder):
        raise ValueError(f"encoder={model.encoder!r} and method={model.method!r} are two networks: give one")
    if model.single is None:
        here, nodes = processes.layout(model.devices, model.num_nodes)
        if (here, nodes) != (1, 1):
            raise ValueError(
                f"method={model.method!r} learns in one process, got devices={here}, num_nodes={nodes}: name one "
                "network, such as method='ust'"
            )
    if model.single is None:
        _refuse_unused(model)
    if model.folds is not None and (model.level == "element" or model.devices * model.num_nodes > 1):
        raise ValueError(f"folds={model.folds} is for labels of sets, and one process")
    if model.importance and (model.level == "element" or model.devices * model.num_nodes > 1):
        raise ValueError("importance=True is for labels of sets, and one process")
    processes.check(find(model.device), model.devices, model.num_nodes)


def _refuse_unused(model: SetEstimator) -> None:
    """Options of one network, or of any, where there is none."""
    without, what = OF_ONE, "a mixture"
    if model.alone is not None:
        without, what = OF_ONE | OF_NETWORKS, f"method={model.alone!r}"
        if model.level == "element":
            raise ValueError(f"{what} is for level='set': elements are learned by one network, such as method='ust'")
    for name, default in without.items():
        if (value := getattr(model, name)) != default:
            raise ValueError(f"{name}={value!r} is for one network, such as method='ust': {what} has no use for it")


def check_method(model: SetEstimator) -> None:
    """Raise the ValueError of a simple method that learns something else: labels, or survival."""
    members = model.kind.stack.MEMBERS
    if model.alone is not None and model.alone not in members:
        known = ", ".join(name for name in SIMPLE if name in members)
        raise ValueError(f"method={model.alone!r} is none of the simple methods of {type(model).__name__}: {known}")
