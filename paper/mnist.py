"""MNIST: the images of its IDX files, and each as a point cloud, as in the paper."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from omniset.core.bounded import most_of, require_room

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def mnist_images(
    folder: str | Path | None, split: str
) -> tuple[UInt8[np.ndarray, "images height width"], UInt8[np.ndarray, " images"]]:
    """The images and their labels.

    Args:
        folder: With the four IDX files, plain or .gz. None: $OMNISET_DATA/mnist.
        split: "train" (60,000 digits) or "test" (10,000).

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: It is no IDX file of bytes, or cut short.
    """
    if folder is None:
        if "OMNISET_DATA" not in os.environ:
            raise FileNotFoundError("MNIST needs a folder with its IDX files, or OMNISET_DATA set to the folder above")
        folder = Path(os.environ["OMNISET_DATA"]) / "mnist"
    images, labels = (read_idx(_find(Path(folder), name)) for name in MNIST_FILES[split])
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} images but {len(labels)} labels in the {split} files")
    return images, labels


def draw_points(
    images: UInt8[np.ndarray, "images height width"], points: int, generator: torch.Generator
) -> Float[Tensor, "images points xy"]:
    """Each image as a point cloud (Universal Set Transformer, A.3.1): `points` pixels drawn with replacement in
    proportion to brightness, jittered by N(0, 0.5) pixels, coordinates divided by 13.5, minus 1.
    """
    brightness = torch.as_tensor(images, dtype=torch.float32).flatten(1)
    drawn = torch.cat(
        [torch.multinomial(b, points, replacement=True, generator=generator) for b in brightness.split(4096)]
    )
    pixels = torch.stack([drawn % images.shape[2], drawn // images.shape[2]], -1).float()
    pixels += 0.5 * torch.randn(pixels.shape, generator=generator)
    return pixels / 13.5 - 1


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """An IDX file of unsigned bytes, gzip-compressed if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(most_of(path.stat().st_size) + 1)
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    require_room(len(data), path, "unpack it")
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is no IDX file of bytes: it starts with {data[:4].hex(' ') or 'nothing'}")
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if values.size != shape.prod(dtype=np.int64):
        raise ValueError(
            f"{path} should hold {shape.prod(dtype=np.int64)} bytes for shape {shape.tolist()}, has {values.size}"
        )
    return values.reshape(shape).copy()  # of a buffer that cannot be written to


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} has neither {name} nor {name}.gz")
