"""What the readers share: tables of text and of pandas, names of regions, errors in our words.

Names are what joins the files, so they are looked for wherever a file may have them. Numbers that only count rows from
0, as pandas writes them beside a table without names, are no names.

Known imperfections: a line break within quotes is not read; v7.3 files of MATLAB give no sparse matrices.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from jaxtyping import Float

from omniset.core.bounded import require_file, require_room
from omniset.tables.files import OPENERS, short
from omniset.tables.matrices import with_our_words
from omniset.tables.sheets import Sheet, look, number_of, numbers_of

TITLES = ("region", "label", "name", "roi", "id", "acronym")  # of a column of names of regions, the best first
WHOLE = re.compile(r"(\d+)(\.0*)?")  # a whole number, maybe read as a float
SIDES = {"l": "L", "lh": "L", "left": "L", "r": "R", "rh": "R", "right": "R"}
NO_REGION = re.compile(r"background\w*|unknown|undefined|\?+|\w*medialwall|corpuscallosum")  # labels of atlases
LARGEST = float(np.finfo(np.float32).max)
TABLES = ".csv, .tsv or .txt (also with .gz, .bz2, .xz) or .parquet"


def name_of(source: Any, otherwise: str) -> str:
    """What messages call a source: its path, or what it is."""
    return str(source) if isinstance(source, str | Path) else otherwise


def path_of(source: str | Path) -> Path:
    """The path of a file that is there; raise OSError or ValueError otherwise."""
    path = Path(source).expanduser()
    require_file(path)
    path.stat()  # not there: FileNotFoundError, whatever would read it
    return path


def is_text(path: Path) -> bool:
    """Its name is that of a table of text, compressed or not."""
    ends = [suffix.lower() for suffix in path.suffixes]
    if ends and ends[-1] in OPENERS:
        ends.pop()
    return bool(ends) and ends[-1] in (".csv", ".tsv", ".txt", ".edge", ".node")  # the last two are BrainNet Viewer's


def sheet_of(path: Path) -> Sheet:
    """A table of text; spaces may separate its fields. Where it begins with #, that may be a comment, or the header."""
    sheet = look(path, comments=False, spaces=True)
    return look(path, spaces=True) if sheet.columns[0].startswith("#") else sheet


def read_parquet(path: Path) -> pd.DataFrame:
    with clear_errors(str(path), "is cut off, damaged or no Parquet file"):
        metadata = pq.read_metadata(path)
        require_room(8 * metadata.num_rows * metadata.num_columns, path, "write it as .npy, .npz or .h5ad")
        return pd.read_parquet(path, engine="pyarrow")


def frame_numbers(
    frame: pd.DataFrame, name: str, rows: list[str], columns: list[str]
) -> Float[np.ndarray, "rows columns"]:
    """A DataFrame's values; what is text is read as the files are."""
    if all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes):
        return frame.to_numpy(dtype=np.float64)
    values = np.empty(frame.shape)
    for number in range(frame.shape[1]):
        cells = frame.iloc[:, number].tolist()
        values[:, number], bad = numbers_of([text_of(cell) for cell in cells])
        if bad is not None:
            raise ValueError(f"{name}: {rows[bad]!r}, {columns[number]!r} is {short(cells[bad])}, it must be a number")
    return values


def is_name(text: str) -> bool:
    return number_of(text) is None


def text_of(value: Any) -> str:
    """A name or an entry as text; what is missing is empty."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(value).strip()


def counts_only(index: pd.Index) -> bool:
    """An index that pandas made up."""
    return index.name is None and index.dtype.kind in "iu" and index.tolist() == list(range(len(index)))


def ids_of(names: Sequence[str]) -> list[str]:
    """Names as they are; whole numbers that were read as floats ("1.0") without their fraction."""
    matches = [WHOLE.fullmatch(name) for name in names]
    return [str(one[1]) for one in matches if one] if all(matches) else list(names)


def spelling(name: str) -> str:
    """What a name says, however atlases and tools write it: without case, punctuation, ctx and ROI, the side last.

    Example:
        >>> [spelling(n) for n in ("ctx-lh-bankssts", "L_bankssts", "L_9-46d_ROI", "Left-Thalamus-Proper", "007")]
        ['bankssts_L', 'bankssts_L', '9_46_d_L', 'thalamusproper_L', '7']
    """
    if number := WHOLE.fullmatch(re.sub("^X", "", name)):
        return str(int(number[1]))
    plain = re.sub(r"^x(?=\d)", "", name.lower())  # R puts an X before digits
    words = [word for word in re.findall(r"[a-z]+|\d+|\?+", plain) if word not in ("ctx", "roi")]
    alone = {0, len(words) - 1} | ({1} if words and words[0] in SIDES else set())  # where a letter says it
    at = [i for i, word in enumerate(words) if word in SIDES and (len(word) > 1 or i in alone)]
    sides = {SIDES[words[i]] for i in at}
    side = f"_{sides.pop()}" if len(sides) == 1 and len(words) > len(at) else ""
    words = [word for i, word in enumerate(words) if not side or i not in at]
    return re.sub("(?<=[a-z])_(?=[a-z])", "", "_".join(words)) + side


def no_region(name: str) -> bool:
    """A label of what is no region, as atlases have them beside their regions.

    Example:
        >>> [no_region(n) for n in ("Background", "ctx-rh-unknown", "L_Medial_wall", "???", "7Networks_LH_Vis_1")]
        [True, True, True, True, False]
    """
    return NO_REGION.fullmatch(re.sub("_[LR]$", "", spelling(name))) is not None


def name_columns(titles: Sequence[str]) -> list[int]:
    """Columns of names of regions by their titles, or these without their first words, the best first.

    Example:
        >>> name_columns(["ROI Label", "ROI Name", "R", "A", "S"]), name_columns(["id", "label", "x"])
        ([0, 1], [1, 0])
    """
    words = [re.split("[ _.-]", title.lower()) for title in titles]
    exact = [words.index([title]) for title in TITLES if [title] in words]
    return exact + [i for title in TITLES for i, word in enumerate(words) if len(word) > 1 and word[-1] == title]


def sided(names: list[str], sides: Sequence[str] | None, notes: list[str], name: str) -> list[str]:
    """Names with their hemisphere, as a column tells it, where both have regions of one name."""
    if sides is None or len(set(names)) == len(names):
        return names
    told = [
        f"{SIDES[side.lower()]}_{one}" if side.lower() in SIDES else one for one, side in zip(names, sides, strict=True)
    ]
    notes.append(f"{name}: names are of both hemispheres, which are put before them, as in {told[0]!r}")
    return told


def check_names(names: list[str], name: str) -> None:
    """Raise ValueError where a region of the file has no name, or is there twice."""
    if "" in names:
        raise ValueError(f"{name}: region {names.index('') + 1:,} has no name")
    seen: set[str] = set()
    for one in names:
        if one in seen:
            raise ValueError(f"{name}: region {one!r} is there twice")
        seen.add(one)


@contextmanager
def clear_errors(name: str, message: str) -> Iterator[None]:
    """As `with_our_words`, without the warnings of the libraries that read: what matters of them (names that are there
    twice, a damaged header) is an error here.
    """
    with with_our_words(name, message), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
