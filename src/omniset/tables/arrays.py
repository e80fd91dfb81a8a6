"""Arrays in files of NumPy and of torch.save, read without running code, and not beyond what the files hold."""

from __future__ import annotations

import math
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from omniset.core.bounded import require_room
from omniset.tables.files import tidy

MAGIC = b"\x93NUMPY"


def load_torch(path: Path, remedy: str, mapped: bool = False) -> Any:
    """What torch.save wrote: tensors, numbers, text, and lists and dicts of them.

    Args:
        remedy: A line of Python that writes what a pickle of other objects holds, for the error.
        mapped: Read tensors when they are used, where the file is of a kind that allows it.

    Raises:
        ValueError: Other objects; damaged, cut off or none.
    """
    with path.open("rb") as file:
        start = file.read(4)
    pickled = start[:1] == b"\x80"
    try:
        zipped = start == b"PK\3\4" and zipfile.is_zipfile(path)
        pickled |= zipped
        if zipped:
            with zipfile.ZipFile(path) as archive:
                require_room(_unpacked(archive), path, "torch.save does not pack, write it by that")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of a plain pickle, which is refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipped)
    except pickle.UnpicklingError as error:
        if pickled and "nsupported" in str(error):  # a class, a function or an instruction
            raise needs_code(path, remedy) from None
        raise damaged(path, "file of torch.save", error) from error
    except MemoryError:
        raise
    except Exception as error:  # PyTorch's reader stumbles over damage in many ways
        if str(error).startswith(str(path)):  # ours
            raise
        raise damaged(path, "file of torch.save", error) from error


def plain(path: Path, tensor: Tensor, what: str) -> Tensor:
    """A tensor of a file, which NumPy can have: ordinary numbers, all of them in the file.

    Raises:
        ValueError: Nested, sparse, quantised or without data; of another type of numbers; expanded, so that one number
            is many entries.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "nested or without data" if tensor.is_nested or tensor.is_meta else f"{tensor.layout}, {tensor.dtype}"
        raise ValueError(f"{path}: {what} must be a plain tensor, it is {kind}")
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > held:
        claim = f"is said to be of shape {tuple(tensor.shape)}, the file holds {held:,} numbers of it"
        raise ValueError(f"{path}: {what} {claim}: save .contiguous() of it")
    tensor = (
        tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    )  # NumPy has none of these
    return tensor.detach().resolve_conj().resolve_neg()


def mapped_npy(path: Path, remedy: str) -> Shaped[np.ndarray, "..."]:
    """The array of a .npy file, of which only what is used is read.

    Args:
        remedy: As for `load_torch`.

    Raises:
        ValueError: An array of objects; damaged, cut off or none.
    """
    with path.open("rb") as file:
        start = file.read(6)
    if start[:1] == b"\x80":
        raise needs_code(path, remedy)
    if start != MAGIC:
        raise damaged(path, ".npy file")
    try:
        with path.open("rb") as file:
            shape = require_held(file, path.stat().st_size, "the matrix")
        # Nothing cannot be mapped.
        return np.load(path, mmap_mode=None if shape is None or 0 in shape else "r", allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # of many kinds, such as the tokenizer's of a header
        if "allow_pickle" in str(error) or "Python objects in dtype" in str(error):
            raise needs_code(path, remedy) from None
        raise damaged(path, ".npy file", error) from error


def require_npz(path: Path) -> None:
    """See that the arrays of a .npz file are not larger than what is held at once, nor than what the file holds.

    Raises:
        ValueError: Naming the array, or the bound.
        zipfile.BadZipFile: No zip file.
    """
    with zipfile.ZipFile(path) as archive:
        require_room(_unpacked(archive), path, "write it by numpy.savez, which does not pack")
        for info in archive.infolist():
            with archive.open(info) as member:
                require_held(member, info.file_size, info.filename)


def require_held(file: Any, size: int, what: str) -> tuple[int, ...] | None:
    """See that an array is not larger than what the file can hold: NumPy takes the memory before it reads.

    Returns:
        Its shape; None where that cannot be told.
    """
    start = file.read(8)
    if start[:6] != MAGIC:
        return None
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if start[6] not in read:
        raise ValueError(f"{what} is of version {start[6]} of NumPy's format")
    shape, _, dtype = read[start[6]](file)
    if dtype.hasobject:  # a pickle, which NumPy refuses
        return None
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{what} is said to be {dtype} of shape {shape}, which is more than the file holds")
    return shape


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def needs_code(path: Path, remedy: str) -> ValueError:
    return ValueError(
        f"{path} is a pickle of objects, and reading those can run any code. Where you trust it, load it and write it "
        f"as plain numbers and text: {remedy}"
    )


def damaged(path: Path, kind: str, error: BaseException | None = None) -> ValueError:
    reason = f": {tidy(str(error))}" if error is not None and str(error) else ""
    return ValueError(f"{path} is cut off, damaged or no {kind}{reason}")
