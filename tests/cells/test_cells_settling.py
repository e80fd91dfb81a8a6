"""What a fit says of its own end."""

import numpy as np
import pytest
from cell_files import SMALL, cells

from omniset.cells.embedder import CellEmbedder
from omniset.cells.settling import batches_near, of_batches, of_loss


def test_batches_among_neighbours():
    """Places far apart, with the batches of each: neighbours are of all batches of their place alike."""
    rng = np.random.default_rng(0)
    places = np.repeat(np.arange(3), 400)
    points = 1e6 * np.eye(3)[places] + rng.normal(size=(1200, 3)) * 1e-3
    apart = places
    together = np.tile(np.arange(4), 300)
    both = np.where(places == 0, 0, 1 + together % 2)
    assert batches_near(points, apart) == pytest.approx(1, abs=1e-12)
    assert batches_near(points, together) == pytest.approx(4, rel=0.2)
    assert batches_near(points, both) == pytest.approx((1 + 2 + 2) / 3, rel=0.1)
    said = of_batches(points, np.zeros((1200, 2)) + np.arange(1200)[:, None], apart + 5)
    assert "1.00 by principal components, 1.0" in said
    assert said.endswith("3.00 among all cells")


def test_whether_the_loss_settled():
    def history(losses):
        return [{"train_loss": loss} for loss in losses]

    assert "settled: it changed by 0.5% in" in of_loss(history([9.0] * 18 + [2.0, 2.0, 1.99, 1.99]))
    assert "not settled, more epochs may help: it changed by 50.0%" in of_loss(
        history([9.0] * 18 + [2.0, 2.0, 1.0, 1.0])
    )
    assert "settled: it changed by 0.0%" in of_loss(history([-3.0] * 10))
    assert "cannot be told from 9 epochs" in of_loss(history([1.0] * 9))


def test_fit_says_it():
    data = cells()
    notes = CellEmbedder(**SMALL | {"epochs": 10}).fit(data, batch_key="batch").notes_
    assert sum("the loss" in note for note in notes) == 1
    assert sum("batches among the neighbours of a cell" in note for note in notes) == 1
    notes = CellEmbedder(**SMALL).fit(data, batch_key="none").notes_
    assert any("cannot be told from 2 epochs" in note for note in notes)
    assert not any("batches among" in note for note in notes)
