"""Where layer inputs and their gradients wait between passes. A store puts, gets and drops, nothing else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from omniset.core.disk import Scratch

STORES = ("device", "cpu", "disk", "recompute")


@runtime_checkable
class Store(Protocol):
    def put(self, key: Any, tensor: Tensor) -> None: ...
    def get(self, key: Any) -> Tensor: ...
    def drop(self, key: Any) -> None: ...


class DeviceStore:
    """Keeps the tensors where they are."""

    def __init__(self) -> None:
        self._tensors: dict[Any, Tensor] = {}

    def put(self, key: Any, tensor: Tensor) -> None:
        self._tensors[key] = tensor

    def get(self, key: Any) -> Tensor:
        return self._tensors[key]

    def drop(self, key: Any) -> None:
        self._tensors.pop(key, None)


class CpuStore(DeviceStore):
    """Keeps them in the host's memory."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[Any, torch.device] = {}

    def put(self, key: Any, tensor: Tensor) -> None:
        self._devices[key] = tensor.device
        super().put(key, tensor.to("cpu"))

    def get(self, key: Any) -> Tensor:
        return super().get(key).to(self._devices[key])


class DiskStore:
    """Keeps them in one temporary file without a name: the system removes it whatever happens to the process."""

    def __init__(self, folder: str | None = None) -> None:
        self._scratch = Scratch("store='disk'", folder, "Use store='disk:FOLDER' with more room, or store='recompute'")
        self._slots: dict[Any, tuple[int, int, torch.dtype, torch.Size, torch.device]] = {}
        self._free: dict[int, list[int]] = defaultdict(list)
        self._end = 0

    def put(self, key: Any, tensor: Tensor) -> None:
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        self.drop(key)
        size = len(data)
        offset = self._free[size].pop() if self._free[size] else self._end
        self._end = max(self._end, offset + size)
        self._scratch.write(offset, data)
        self._slots[key] = offset, size, tensor.dtype, tensor.shape, tensor.device

    def get(self, key: Any) -> Tensor:
        offset, size, dtype, shape, device = self._slots[key]
        return self._scratch.read(offset, size).view(dtype).view(shape).to(device)

    def drop(self, key: Any) -> None:
        if key in self._slots:
            offset, size, *_ = self._slots.pop(key)
            self._free[size].append(offset)


class GraphStore:
    """A store, with memory beside it for tensors that carry a graph: they cannot leave it."""

    def __init__(self, store: Store) -> None:
        self._store, self._memory = store, DeviceStore()

    def put(self, key: Any, tensor: Tensor) -> None:
        (self._memory if tensor.requires_grad else self._store).put(key, tensor)

    def get(self, key: Any) -> Tensor:
        try:
            return self._memory.get(key)
        except KeyError:
            return self._store.get(key)

    def drop(self, key: Any) -> None:
        self._memory.drop(key)
        self._store.drop(key)

    def take(self, key: Any) -> Tensor | None:
        """Get and drop; None if there is no such tensor."""
        try:
            tensor = self.get(key)
        except KeyError:
            return None
        self.drop(key)
        return tensor


def open_store(name: str) -> Store | None:
    """The store of that name; None for "recompute". "disk:FOLDER" chooses the folder, else it is Python's (TMPDIR).

    Raises:
        ValueError: Another name.
        OSError: The folder cannot be written to.
    """
    kind, _, folder = name.partition(":")
    if kind not in STORES or (folder and kind != "disk"):
        raise ValueError(f"store must be one of {STORES} or 'disk:FOLDER', got {name!r}")
    if kind == "recompute":
        return None
    return DiskStore(folder or None) if kind == "disk" else {"device": DeviceStore, "cpu": CpuStore}[kind]()
