"""The model of digits that the package brings: `omniset predict FILE --model digits`.

It learns as the demo's first model does, from whole sets, is a little smaller, and reads tables: a file has the same
columns.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from omniset import SetClassifier
from omniset.cli.demo import MODEL, _read
from omniset.core.sets import SetBatch
from omniset.estimators.evaluation import evaluate
from omniset.runs import cards
from omniset.training.artefacts import files_of
from omniset.training.located import MODELS

SIZE = {"dim": 48, "epochs": 13}  # of less than 300 kB
INPUT = """## Input

A set is a digit: its columns are `set` (its name), `x` and `y` (a pixel of an 8 x 8 picture: -1 to 1, to the right and
downwards) and `multiplicity` (the intensity of the pixel, 1 to 16; pixels of 0 are left out). The digits are
scikit-learn's, four fifths of them and three variants of each, a little shifted, stretched and turned: Alpaydin and
Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998 (CC BY 4.0).

## Data"""


def table(sets: SetBatch) -> pd.DataFrame:
    """Sets as a file has them."""
    elements, counts = sets.to_ragged()
    of = np.repeat([f"digit_{number:04}" for number in range(len(elements))], [len(c) for c in counts])
    x, y = np.concatenate([e.numpy() for e in elements]).T
    return pd.DataFrame({"set": of, "x": x, "y": y, "multiplicity": np.concatenate([c.numpy() for c in counts])})


def main(seed: int = 0) -> None:
    train, labels, held_out, truth = _read(None, seed)
    rest = {"validation_fraction": 0.0, "patience": None, "seed": seed, "device": "cpu", "progress": False}
    model = SetClassifier("ust", **(MODEL | SIZE), **rest)
    digit = lambda y: pd.DataFrame({"digit": y}, [f"digit_{number:04}" for number in range(len(y))])  # noqa: E731
    model.fit(table(train), digit(labels)["digit"])
    model.simple_, model.seen_ = None, []
    numbers = evaluate(model, table(held_out), digit(truth)["digit"]).comparison.numbers()
    on = f"the {len(truth)} digits that were held out"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "digits"
        model.save(made, {"validation": numbers, "on": on})
        text = (made / cards.NAME).read_text().replace("license: unknown", "license: apache-2.0")
        place = MODELS / "digits"
        place.mkdir(parents=True, exist_ok=True)
        for name in files_of(made):
            shutil.copy(made / name, place / name)
        (place / cards.NAME).write_text(text.replace("## Data", INPUT, 1))
    bytes_of = sum(path.stat().st_size for path in place.iterdir())
    print(next(row for row in numbers["scores"] if row["method"] == "omniset"), f"{bytes_of:,} bytes")
