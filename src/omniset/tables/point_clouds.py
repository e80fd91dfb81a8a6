"""Handwritten digits as multisets of points: scikit-learn's small ones, and MNIST as in the UST paper."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from sklearn.datasets import load_digits
from torch import Tensor

from omniset.core.bounded import read_whole
from omniset.core.sets import SetBatch

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def digits() -> tuple[SetBatch, Int[np.ndarray, " sets"]]:
    """The 1,797 digits of scikit-learn: an 8 x 8 pixel is a point in [-1, 1]^2, its intensity 0..16 its multiplicity.

    Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
    """
    images, labels = load_digits(return_X_y=True)
    axis = torch.linspace(-1, 1, 8)
    points = torch.cartesian_prod(axis, axis).flip(1)  # (x, y), row by row
    present = [torch.as_tensor(image).long() for image in images]
    batch = SetBatch.from_ragged([points[m > 0] for m in present], [m[m > 0] for m in present])
    return batch, labels


def mnist(
    folder: str | Path | None = None,
    *,
    split: str = "train",
    points: int = 512,
    max_sets: int | None = None,
    seed: int = 0,
) -> tuple[SetBatch, Int[np.ndarray, " sets"]]:
    """MNIST as point clouds (Universal Set Transformer, A.3.1): `points` pixels drawn with replacement in proportion to
    brightness, jittered by N(0, 0.5) pixels, coordinates divided by 13.5, minus 1.

    Args:
        folder: With the four IDX files, plain or .gz. Default: $OMNISET_DATA/mnist.
        split: "train" (60,000 digits) or "test" (10,000).
        points: Per digit.
        max_sets: Only the first so many digits.
        seed: Of the draw.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: It is no IDX file of bytes, or cut short.
    """
    images, labels = mnist_images(folder, split)
    images, labels = images[:max_sets], labels[:max_sets]
    return SetBatch(draw_points(images, points, torch.Generator().manual_seed(seed))), labels.astype(np.int64)


def mnist_images(
    folder: str | Path | None, split: str
) -> tuple[UInt8[np.ndarray, "images height width"], UInt8[np.ndarray, " images"]]:
    """The images themselves, and their labels. Arguments and errors: mnist."""
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
    """Each image as a point cloud."""
    brightness = torch.as_tensor(images, dtype=torch.float32).flatten(1)
    drawn = torch.cat(
        [torch.multinomial(b, points, replacement=True, generator=generator) for b in brightness.split(4096)]
    )
    pixels = torch.stack([drawn % images.shape[2], drawn // images.shape[2]], -1).float()
    pixels += 0.5 * torch.randn(pixels.shape, generator=generator)
    return pixels / 13.5 - 1


def with_variants(
    batch: SetBatch, labels: Int[np.ndarray, " sets"], copies: int, seed: int
) -> tuple[SetBatch, Int[np.ndarray, " more"]]:
    """The point clouds and `copies` variants of each, all points of one shifted, stretched and turned together: shift
    N(0, 0.1) per axis, stretch N(1, 0.1) per axis, angle N(0, 0.15) radian. For training on few clouds.
    """
    generator = torch.Generator().manual_seed(seed)
    clouds = [batch.elements]
    for _ in range(copies):
        shift, stretch = (0.1 * torch.randn(len(batch), 1, 2, generator=generator) for _ in range(2))
        angle = 0.15 * torch.randn(len(batch), generator=generator)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
        clouds.append((batch.elements * (1 + stretch) + shift) @ turn)
    everywhere = SetBatch(torch.cat(clouds), batch.multiplicity.repeat(copies + 1, 1))
    return everywhere, np.tile(labels, copies + 1)


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """An IDX file of unsigned bytes, gzip-compressed if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = read_whole(file, path)
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
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
