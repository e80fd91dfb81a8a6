"""Made-up samples of cells to try the commands on: cells with two markers at once decide what becomes of the patient.

In each sample CD25 is high in six cells, and CD69 in six. Where these are the same cells, they are double positive; the
mean and the quantiles of a marker are alike with and without such cells.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from omniset.tables.files import TableWriter

MARKERS = ("CD3", "CD25", "CD69")
HIGH, HIGHER = 6, 2.5  # cells of a sample in which CD25 is high, or CD69, and by how many deviations
SAMPLES = 4  # of a patient
HELD_OUT = 0.2  # of the patients
HAZARD = 0.5  # the logarithm of what each double positive cell multiplies a patient's hazard by
FOLLOWED = 1500.0  # days, at most
SIDE, TILE, NEST = 12, 256, 16  # of a slide in tiles, of a tile in pixels; tiles with tumour, and with macrophages
CLEAR = 4.0  # by how many deviations these stand out


def write_classes(folder: Path, seed: int = 0, patients: int = 30) -> None:
    """Samples of infected and healthy patients: in those of the infected, six cells are double positive.

    sets.csv and labels.csv to learn from; held_out.csv and held_out_labels.csv of other patients; truth.csv: the state
    of each cell.
    """
    rng = np.random.default_rng(seed)
    samples = np.arange(patients * SAMPLES)
    infected = samples // SAMPLES % 3 == 0
    each = zip(samples.tolist(), infected.tolist(), strict=True)
    cells = pd.concat([_sample(i, HIGH * int(ill), rng) for i, ill in each], ignore_index=True)
    labels = pd.DataFrame({"set": [*map(_name, samples.tolist())], "label": np.where(infected, "infected", "healthy")})
    labels["patient"] = [f"patient_{i // SAMPLES:02d}" for i in samples]
    _write_cells(folder, cells, labels, labels["set"][samples // SAMPLES >= round(patients * (1 - HELD_OUT))])


def write_survival(folder: Path, seed: int = 0, patients: int = 150) -> None:
    """A sample of each patient: the more cells are double positive, the earlier the event.

    Times are exponential with the hazard h exp(0.5 double positive cells), censored at a day drawn evenly up to 1,500.
    sets.csv and labels.csv (time in days, event) to learn from; held_out.csv and held_out_labels.csv of other patients;
    truth.csv: the state of each cell.
    """
    rng = np.random.default_rng(seed)
    both = rng.integers(0, HIGH + 1, patients)
    cells = pd.concat([_sample(i, int(n), rng) for i, n in enumerate(both)], ignore_index=True)
    labels = _followed([*map(_name, range(patients))], HAZARD * both, rng)
    _write_cells(folder, cells, labels, labels["set"][round(patients * (1 - HELD_OUT)) :])


def write_slides(folder: Path, seed: int = 0, patients: int = 160) -> None:
    """A slide of each patient: the more tiles have tumour and macrophages at once, the earlier the event.

    slides/ and held_out/ have a file of each slide as TRIDENT writes it, `features` (tiles, 8) and `coords` (tiles, 2)
    in pixels. labels.csv and held_out_labels.csv are as in `write_survival`; truth.csv: the state of each tile.
    """
    import h5py

    rng = np.random.default_rng(seed)
    both = rng.integers(0, NEST * 3 // 4 + 1, patients)
    labels = _followed([f"slide_{i:03d}" for i in range(patients)], HAZARD * both, rng)
    there, truth = labels.index >= round(patients * (1 - HELD_OUT)), []
    for part in ("slides", "held_out"):
        (folder / part).mkdir()
    for name, number, later in zip(labels["set"], both, there, strict=True):
        places, state, features = _slide(int(number), rng)
        with h5py.File(folder / ("held_out" if later else "slides") / f"{name}.h5", "w") as file:
            file["features"], file["coords"] = features, places
        truth.append(pd.DataFrame({"set": name, "element": np.arange(len(state)) + 1, "state": state}))
    _write(folder, {"labels": labels[~there], "held_out_labels": labels[there], "truth": pd.concat(truth)})


def _slide(both: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of tiles: places, states, features. Tumour is around one place; macrophages, in it or not, are near another."""
    grid = np.indices((SIDE, SIDE)).reshape(2, -1).T
    grid = grid[np.linalg.norm(grid - SIDE // 2, axis=1) < SIDE / 2 - rng.random(len(grid))]
    near = [np.linalg.norm(grid - grid[i], axis=1) for i in rng.choice(len(grid), 2, replace=False)]
    tumour, other = np.split(np.argsort(near[0], kind="stable"), [NEST])
    has = np.zeros((len(grid), 8))
    has[tumour, 0] = CLEAR
    for some, number in ((tumour, both), (other, NEST - both)):
        has[some[np.argsort(near[1][some], kind="stable")[:number]], 1] = CLEAR
    state = np.array(["other", "tumour", "macrophages", "both"])[(has[:, :2] > 0) @ [1, 2]]
    mixing = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]  # no feature is of one kind of cell
    return TILE * grid, state, ((has + rng.normal(size=has.shape)) @ mixing).astype(np.float32)


def _followed(names: list[str], risk: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Days until an event of hazard h exp(risk), or until a patient was last seen."""
    time, until = rng.exponential(2 * FOLLOWED * np.exp(-risk)), rng.uniform(0.2 * FOLLOWED, FOLLOWED, len(names))
    return pd.DataFrame({"set": names, "time": np.minimum(time, until).round(1), "event": (time <= until).astype(int)})


def _name(number: int) -> str:
    return f"sample_{number:03d}"


def _sample(number: int, both: int, rng: np.random.Generator) -> pd.DataFrame:
    """The first cells are double positive, the next ones have one high marker."""
    size = int(rng.integers(25, 60))
    place, single = np.arange(size), HIGH - both
    state = np.select(
        [place < both, place < both + single, place < both + 2 * single],
        ["CD25+ CD69+", "CD25+", "CD69+"],
        "resting",
    )
    cells = pd.DataFrame(rng.normal(size=(size, len(MARKERS))), columns=MARKERS)
    for marker in ("CD25", "CD69"):
        cells[marker] += HIGHER * np.array([marker in kind for kind in state])
    cells = cells.round(4).assign(set=_name(number), element=[f"cell_{i + 1}" for i in range(size)], state=state)
    return cells[["set", "element", *MARKERS, "state"]]


def _write_cells(folder: Path, cells: pd.DataFrame, labels: pd.DataFrame, held_out: pd.Series) -> None:
    there, columns = cells["set"].isin(held_out), ["set", "element", *MARKERS]
    tables = {
        "sets": cells.loc[~there, columns],
        "labels": labels[~labels["set"].isin(held_out)],
        "held_out": cells.loc[there, columns],
        "held_out_labels": labels[labels["set"].isin(held_out)],
        "truth": cells[["set", "element", "state"]],
    }
    _write(folder, tables)


def _write(folder: Path, tables: dict[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        with TableWriter(folder / f"{name}.csv") as writer:
            writer.write(table)
