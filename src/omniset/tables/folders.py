"""A folder of sets, one file each: HDF5 as TRIDENT and CLAM write it, .npy, .npz, and .pt of torch.save.

No more is read at a time than is asked for, however large the folder; a file is opened for each slice. An .npz, or a
.pt of PyTorch before 1.6, is read whole each time.
"""

from __future__ import annotations

import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.core.stored import StoredSet, once
from omniset.lazy import needs
from omniset.tables.arrays import damaged, load_torch, mapped_npy, plain, require_npz
from omniset.tables.files import READ, Origin, listed, tidy
from omniset.tables.hdf5 import check_all
from omniset.tables.stored import FileRows, StoredSets, finite

HDF5 = (".h5", ".hdf5")
SETS = (*HDF5, ".npy", ".npz", ".pt")  # endings of files that are sets
REMEDY = "torch.save({'features': torch.as_tensor(features)}, path)"
WITHIN = ("h5_files", "pt_files")  # folders in the one that CLAM is told to write to


class Features(FileRows):
    """The rows of a file.

    Args:
        dataset: What the features are called in it.
        group: Of HDF5, where they are.
    """

    def __init__(self, path: Path, dataset: str = "features", group: str = "/") -> None:
        self.path, self._dataset, self._group = path, dataset, group
        with self._opened() as (features, coordinates):
            shape = self._shape(features, "features")
            self.coordinates = coordinates is not None  # a place (x, y) for each row
            if coordinates is not None:
                places = self._shape(coordinates, "coords")
                if places != (shape[0], 2):
                    raise ValueError(f"{path}: coords must be (N, 2) with N = {shape[0]:,}, their shape is {places}")
        super().__init__(*shape)

    @abstractmethod
    def _opened(self) -> Any:
        """A context of the arrays of features and coordinates; of the latter, None where there are none."""

    def _shape(self, array: Any, what: str) -> tuple[int, int]:
        shape = tuple(int(n) for n in array.shape or ())
        plain = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        if len(plain) != 2:
            raise ValueError(f"{self.path}: {what} must be (N, D) or (1, N, D), their shape is {shape}")
        if array.is_complex() if isinstance(array, Tensor) else array.dtype.kind not in "biuf":
            raise ValueError(f"{self.path}: {what} must be numbers, they are {array.dtype}")
        return plain[0], plain[1]

    def _read(self, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        with self._opened() as (features, _):
            rows = _array(features[0, start:stop] if len(features.shape) == 3 else features[start:stop])
        return finite(rows, str(self.path), start)

    def _named(self, held: Mapping[str, Any], kind: str) -> Any:
        if self._dataset not in held:
            has = listed([str(key) for key in held]) or "nothing"
            raise ValueError(
                f"{self.path}: has no {kind} {self._dataset!r}, it has {has}: --dataset names that of the features"
            )
        return held[self._dataset]

    def places(self) -> Float[np.ndarray, "rows xy"]:
        """The coordinates of all rows.

        Raises:
            ValueError: One is not finite.
        """
        with self._opened() as (_, places):
            held = _array(places[0] if len(places.shape) == 3 else places[:]).astype(np.float64)
        if not np.isfinite(held).all():
            row = int((~np.isfinite(held)).any(1).argmax())
            raise ValueError(f"{self.path}: coords of row {row + 1} are {held[row].tolist()}, they must be finite")
        return held


class _Hdf5(Features):
    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        import h5py

        try:
            with h5py.File(self.path, "r") as root:
                group = root[self._group]
                self._named(group, "dataset")
                parts = [_dataset(group, self.path, key) for key in (self._dataset, "coords")]
                yield parts[0], parts[1]
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise ValueError(f"{self.path}: is cut off, damaged or no HDF5 file: {tidy(str(error))}") from error


class _Numpy(Features):
    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        yield mapped_npy(self.path, "numpy.save(path, features.astype('float32'))"), None


class _Packed(Features):
    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        try:
            require_npz(self.path)
            with np.load(self.path, allow_pickle=False) as held:
                one = held[held.files[0]] if len(held.files) == 1 else self._named(held, "array")
                places = held["coords"] if "coords" in held.files and len(held.files) > 1 else None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            if str(error).startswith(str(self.path)) or isinstance(error, FileNotFoundError):
                raise
            raise damaged(self.path, ".npz file of plain arrays", error) from error
        yield one, places


class _Torch(Features):
    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        held = load_torch(self.path, REMEDY, mapped=True)
        if isinstance(held, Mapping):
            places = held.get("coords")
            if not isinstance(places, Tensor | None):
                raise ValueError(f"{self.path}: coords must be a tensor, they are a {type(places).__name__}")
            held = self._named(held, "tensor")
        else:
            places = None
        if not isinstance(held, Tensor):
            kind = type(held).__name__
            raise ValueError(f"{self.path}: must hold a tensor, or a dict with 'features', it holds a {kind}")
        yield plain(self.path, held, "features"), None if places is None else plain(self.path, places, "coords")


KINDS: dict[str, type[Features]] = {".npy": _Numpy, ".npz": _Packed, ".pt": _Torch} | dict.fromkeys(HDF5, _Hdf5)


def open_folder(path: Path, width: int | None = None, dataset: str | None = None) -> StoredSets:
    """Sets of a folder, in the order of their names, which are those of the files without their endings; or of one
    file. Of HDF5 without features at its top each group is a set.

    Args:
        width: Numbers of an element, as a model wants them. Default: as in the first file.
        dataset: What the features are called in HDF5, .npz and .pt. Default: features.

    Each set with places has them as `columns["coords"]`, a function that reads them.

    Raises:
        ImportError: A file needs h5py.
        OSError, ValueError: No file of sets, or two of one name; naming the file: not of its kind, damaged, without
            features, or of another width.
    """
    if path.is_dir() and not any(file.suffix.lower() in SETS for file in path.iterdir()):
        path = next((path / name for name in WITHIN if (path / name).is_dir()), path)
    files, dataset = files_of(path, SETS), dataset or "features"
    first: Features | None = None
    sets = []
    if any(file.suffix.lower() in HDF5 for file in files):
        try:
            import h5py  # noqa: F401
        except ImportError:
            raise ImportError(needs(f"{path} has HDF5 files: to read them", "h5py")) from None
        check_all([file for file in files if file.suffix.lower() in HDF5])
    for file, group, name in ((one, *place) for one in files for place in _groups(one, dataset)):
        rows = KINDS[file.suffix.lower()](file, dataset, group)
        first = first or rows
        expected, whose = (first.shape[1], f"{first.path.name} has") if width is None else (width, "the model has")
        if rows.shape[1] != expected:
            raise ValueError(f"{file}: has {rows.shape[1]:,} features, {whose} {expected:,}")
        if not rows.shape[1]:
            raise ValueError(f"{file}: features must have at least one number, their shape is {rows.shape}")
        columns = {"coords": rows.places} if rows.coordinates else {}
        sets.append(StoredSet(rows, once(len(rows)), 0, len(rows), name, None, columns))
    require_elements(path, sets)
    return StoredSets(Origin(path), sets, [f"feature_{number + 1}" for number in range(sets[0].elements.shape[1])])


def _groups(file: Path, dataset: str) -> list[tuple[str, str]]:
    """Where sets are in a file, and their names."""
    if file.suffix.lower() in HDF5:
        import h5py

        with suppress(OSError, RuntimeError, KeyError, TypeError), h5py.File(file, "r") as root:  # told when it is read
            names = [] if dataset in root else list(root)
            if names and all(isinstance(root[name], h5py.Group) and dataset in root[name] for name in names):
                return [(f"/{name}", name) for name in names]
    return [("/", file.stem)]


def files_of(path: Path, endings: Sequence[str]) -> list[Path]:
    """The file, or the files of these endings in the folder, by name.

    Raises:
        OSError, ValueError: It is not there; none of these; two that differ in their endings alone.
    """
    if not path.is_dir():
        path.stat()
        return [path]
    visible = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
    files = sorted((file for file in visible if file.suffix.lower() in endings), key=lambda file: file.name)
    if not files:
        there = f", it has {listed(sorted(file.name for file in visible), 3)}" if visible else ""
        tables = any(file.suffix.lower() in (".parquet", *READ) for file in visible)
        remedy = ": put the tables into one, with a column 'set'" if tables else ""
        raise ValueError(f"{path}: is a folder without a file of {', '.join(endings)}{there}{remedy}")
    seen: dict[str, Path] = {}
    for file in files:
        if file.stem in seen:
            raise ValueError(f"{path}: {seen[file.stem].name} and {file.name} are sets of one name")
        seen[file.stem] = file
    return sorted(files, key=lambda file: file.stem)


def require_elements(path: Path, sets: Sequence[StoredSet]) -> None:
    if not sum(map(len, sets)):
        raise ValueError(f"{path}: all sets are empty: there is nothing to read")


def _dataset(root: Any, path: Path, key: str) -> Any:
    if key not in root:
        return None
    held = root[key]
    if not hasattr(held, "dtype"):
        raise ValueError(f"{path}: {key!r} must be a dataset, it is a group")
    return held


def _array(part: Any) -> Shaped[np.ndarray, "..."]:
    if isinstance(part, Tensor):
        return (part.float() if part.dtype == torch.bfloat16 else part).numpy()
    return np.asarray(part)
