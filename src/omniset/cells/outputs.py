"""Files of vectors: .h5ad, .npy and tables."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.cells.data import Cells
from omniset.cells.embedder import KEY
from omniset.runs.files import replacing
from omniset.tables.files import TableWriter, kind_of
from omniset.tables.matrices import DAMAGED, needed, with_our_words

TOGETHER = 1024  # cells written at a time


def kind_to_write(out: Path) -> str:
    """What is to be written, "h5ad", "npy" or "table", before any work is spent.

    Raises:
        ValueError: Another ending, or a folder.
        FileNotFoundError: The folder that it is to be in is not there.
    """
    if out.is_dir():
        raise ValueError(f"out must be a file, {out} is a directory")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} is no directory: make it before writing {out.name} to it")
    if out.suffix.lower() in (".h5ad", ".npy"):
        return out.suffix.lower()[1:]
    try:
        kind_of(out)
    except ValueError as error:
        raise ValueError(
            f"{out}: the name must end in .h5ad, .npy, .parquet, .csv or .tsv (the last two also with .gz, .bz2, .xz)"
        ) from error
    return "table"


def copyable(cells: Cells) -> Path | None:
    """The only source, where that is an .h5ad file that can be copied and added to."""
    if len(cells.sources) > 1:
        return None
    path, h5py = Path(cells.sources[0].name).expanduser(), needed("h5py")
    if not path.is_file() or not h5py.is_hdf5(path):
        return None
    with with_our_words(str(path), DAMAGED), h5py.File(path, "r") as root:
        if "obs" not in root or not all(isinstance(root.get(k, root), h5py.Group) for k in ("obs", "obsm", "uns")):
            return None
    return path


def copy_with(path: Path, out: Path, z: Float[np.ndarray, "cells dim"], about: dict[str, Any]) -> None:
    """The file as it is, to the byte, with these vectors added."""
    write_elem = needed("anndata.io").write_elem
    with replacing(out) as temporary:
        shutil.copyfile(path, temporary)
        try:
            with needed("h5py").File(temporary, "r+") as root:
                for group in ("obsm", "uns"):
                    if group not in root:
                        write_elem(root, group, {})
                if KEY in root["obsm"]:
                    warnings.warn(f'{path} has obsm["{KEY}"] already: in the copy these are others', stacklevel=2)
                write_elem(root["obsm"], KEY, z)
                write_elem(root["uns"], "omniset", about)
        except (RuntimeError, KeyError, TypeError) as error:
            raise _unwritten(out, error) from error


def write_vectors(
    kind: str, out: Path, cells: Cells, whole: Path | None, z: Float[np.ndarray, "cells dim"], about: dict[str, Any]
) -> None:
    """Vectors of cells.

    Args:
        whole: A file to be copied and added to; None: an .h5ad has obs and the vectors.
    """
    if whole is not None:
        copy_with(whole, out, z, about)
    elif kind == "table":
        with TableWriter(out) as writer:
            for start in range(0, len(z), TOGETHER):
                some = slice(start, start + TOGETHER)
                frame = pd.DataFrame(z[some], columns=[f"z{i}" for i in range(1, z.shape[1] + 1)])
                frame.insert(0, "cell", cells.names[some], allow_duplicates=True)
                writer.write(frame)
    else:
        with replacing(out) as temporary:
            if kind == "h5ad":
                _write_frame(temporary, out, cells, z, about)
                return
            with open(temporary, "wb") as file:
                np.save(file, z)


def _write_frame(path: Path, out: Path, cells: Cells, z: Float[np.ndarray, "cells dim"], about: dict[str, Any]) -> None:
    """An .h5ad without counts. anndata writes no text as pandas 3 keeps it: indexes and categories are objects."""
    anndata = needed("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names that occur twice: the reader has warned of them
        var = pd.DataFrame(index=pd.Index([], dtype=object))
        obs = plain_obs(cells.obs, cells.names)
        made = anndata.AnnData(obs=obs, var=var, obsm={KEY: z}, uns={"omniset": about})
        try:
            made.write_h5ad(path)
        except OSError:
            raise
        except Exception as error:  # anndata's own are of no common kind
            raise _unwritten(out, error) from error


def _unwritten(out: Path, error: Exception) -> ValueError:
    return ValueError(f"{out} cannot be written: {' '.join(str(error).split())[:200]}")


def plain_obs(obs: pd.DataFrame, names: np.ndarray) -> pd.DataFrame:
    """With columns that every anndata writes: numbers as they are, all else as categories of plain text."""
    columns = {}
    for name in obs.columns:
        values = obs[name]
        if not isinstance(values.dtype, np.dtype) or values.dtype.kind not in "biuf":
            text = values.astype(str).to_numpy(dtype=object, copy=True)
            text[values.isna().to_numpy()] = None
            known = np.array(sorted({value for value in text if value is not None}), dtype=object)
            values = pd.Series(pd.Categorical(text, categories=pd.Index(known, dtype=object)))
        columns[str(name)] = values.array
    return pd.DataFrame(columns, index=pd.Index(names.astype(object), dtype=object))
