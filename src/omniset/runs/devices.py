"""Where to compute."""

from __future__ import annotations

import typing

import torch

from omniset.options import Device

DEVICES = typing.get_args(Device)


def find(device: str) -> torch.device:
    """The device of this name; "auto": an accelerator where there is one.

    Raises:
        ValueError: An unknown name, or a device that this machine lacks.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device]:
        raise ValueError(f"device={device!r} is not there on this machine: take 'auto'")
    return torch.device(device)
