"""Heat maps of the scores of elements that have a place, PNG files in a folder beside the table of scores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.core.stored import StoredSet


class Maps:
    """Draws into a folder that is not there before the first map.

    Attributes:
        folder: Where the maps are in the end.
        number: How many there are.
    """

    def __init__(self, folder: Path, waiting: Path) -> None:
        self.folder, self.number = folder, 0
        self._waiting = waiting

    def draw(self, stored: StoredSet, explained: pd.DataFrame) -> Float[np.ndarray, "elements xy"]:
        """Draw the scores of a set.

        Args:
            explained: Its rows of the table of scores.

        Returns:
            The places of its elements; NaN where they have none.
        """
        if "coords" not in stored.columns:
            return np.full((len(stored), 2), np.nan)
        places: Float[np.ndarray, "elements xy"] = stored.columns["coords"]()
        if len(places):
            from omniset.report import plots

            method, what = (str(explained[column].iloc[0]) for column in ("method", "explained"))
            title = f"{stored.name}: {what}" if what else str(stored.name)
            figure = plots.heat_map(places, explained["score"].to_numpy(np.float64), title.replace("$", r"\$"), method)
            plots.save(figure, self._waiting / f"{stored.name}.png")
            self.number += 1
        return places


@contextmanager
def maps_beside(out: Path) -> Iterator[Maps]:
    """Maps in a folder named as the table, `scores.csv` and `scores-maps/`. Where the table fails there are none.

    Raises:
        OSError: The folder cannot be written to.
    """
    folder = out.with_name(f"{out.name.partition('.')[0]}-maps")
    if not out.parent.is_dir():
        yield Maps(folder, out.parent)  # the table says so
        return
    with tempfile.TemporaryDirectory(prefix=".omniset-", dir=out.parent) as waiting:
        maps = Maps(folder, Path(waiting))
        yield maps
        if maps.number:
            folder.mkdir(exist_ok=True)
        for path in sorted(Path(waiting).iterdir()):
            os.replace(path, folder / path.name)
