"""How often each family is recovered, where some are lost more often than the markers that completeness is measured on:
by its prevalence, or as a table says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from omniset.genomes.formats import FAMILY_NAMES
from omniset.genomes.identifiers import normalise
from omniset.genomes.noise import NoiseModel
from omniset.tables.files import short
from omniset.tables.sheets import look, number_of

ACCESSORY = "accessory"  # rare families are lost more often, as `accessory_loss` has it
NAMES = ("detection", "recovery", "factor")
Detection = str | Path | pd.Series | None


def read_detection(path: str | Path) -> pd.Series:
    """A table with the columns family and detection: how often each is recovered, as a multiple of what completeness
    says, above 0 and at most 1.

    Raises:
        OSError, ValueError: As TextFile; a column is missing, a family is there twice, a value is out of its bounds.
    """
    sheet = look(path)
    at = [sheet.need(FAMILY_NAMES, "families"), sheet.need(NAMES, "detection")]
    values: dict[str, float] = {}
    for row, (name, text) in sheet.records(at):
        family, value = normalise(name), number_of(text)
        if not family or family in values:
            raise sheet.file.error(row, f"family {short(name)} is there twice" if family else "has no family")
        if value is None or not 0 < value <= 1:
            column = sheet.columns[at[1]]
            raise sheet.file.error(row, f"column {column!r} is {short(text)}, it must be above 0 and at most 1")
        values[family] = value
    return pd.Series(values, name="detection", dtype=np.float64)


def detection_of(detection: Detection, families: Sequence[str], noise: NoiseModel) -> Float[Tensor, " families"] | None:
    """(V,) the factor of each family of the vocabulary; a family that the table lacks has that of its prevalence.

    Args:
        detection: "accessory"; a table's file; a series by family; None: all families are recovered alike.

    Raises:
        OSError, ValueError: As `read_detection`; no family is in the vocabulary.
    """
    if detection is None:
        return None
    factors = noise.accessory()
    if isinstance(detection, str | Path):
        if str(detection) == ACCESSORY:
            return factors
        detection = read_detection(detection)
    values = detection.to_numpy(np.float64)
    wrong = np.flatnonzero(~((values > 0) & (values <= 1)))
    if len(wrong):
        family, value = detection.index[wrong[0]], values[wrong[0]]
        raise ValueError(f"detection of family {family!r} is {value:g}, it must be above 0 and at most 1")
    if detection.index.duplicated().any():
        raise ValueError(f"detection: family {detection.index[detection.index.duplicated()][0]!r} is there twice")
    position = {family: i for i, family in enumerate(families)}
    pairs = zip(detection.index, values, strict=True)
    known = [(position[family], value) for family, value in pairs if family in position]
    if not known:
        raise ValueError(
            f"detection: none of its families is in the model's vocabulary: they are such as {detection.index[0]!r}, "
            f"the model's such as {families[0]!r}"
        )
    places, shares = zip(*known, strict=True)
    factors[list(places)] = torch.tensor(shares).to(factors)
    return factors
