"""The handwritten digits of scikit-learn as multisets of points."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from sklearn.datasets import load_digits

from omniset.core.sets import SetBatch


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
