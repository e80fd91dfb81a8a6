"""MNIST's files, and their images as point clouds."""

import gzip

import numpy as np
import pytest
import torch
from paper.mnist import draw_points, mnist_images, read_idx


def idx(shape, values):
    return b"\0\0\x08" + bytes([len(shape)]) + np.array(shape, ">i4").tobytes() + bytes(values)


def test_mnist_points_lie_where_the_ink_is(tmp_path):
    image = np.zeros((2, 28, 28), np.uint8)
    image[0, 20, 3], image[1, 5, 9] = 200, 7  # one bright pixel each: (x, y) = (3, 20) and (9, 5)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx((2, 28, 28), image.ravel()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx((2,), [4, 1])))
    images, labels = mnist_images(tmp_path, "test")
    points = draw_points(images, 4001, torch.Generator().manual_seed(0))
    assert labels.tolist() == [4, 1]
    centre, spread = points.mean(1), points.std(1)
    expected = np.array([[3, 20], [9, 5]]) / 13.5 - 1
    assert np.abs(centre.numpy() - expected).max() < 4 * 0.5 / 13.5 / 4001**0.5
    assert np.abs(spread.numpy() * 13.5 - 0.5).max() < 0.03


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing"),
        (b"\x89PNG....", "is no IDX file of bytes: it starts with 89 50 4e 47"),
        (idx((2, 28, 28), range(100)), "should hold 1568 bytes for shape .* has 100"),
    ],
)
def test_bad_idx_files(content, message, tmp_path):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)
    cut = tmp_path / "images.gz"
    cut.write_bytes(gzip.compress(idx((50,), range(50)))[:-12])
    with pytest.raises(ValueError, match="is not a whole gzip file"):
        read_idx(cut)


def test_missing_idx_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="has neither train-images-idx3-ubyte nor"):
        mnist_images(tmp_path, "train")
