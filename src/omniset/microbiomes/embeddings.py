"""Vectors of sequences from a transformer in a local folder, such as DNABERT-S, kept by sequence."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.files import writable_folder
from omniset.runs.locks import held

TOGETHER = 32  # sequences a transformer reads at a time
BLOCK = 4096  # rows of a cache read at a time
CODE = (".json", ".txt", ".model", ".py")  # files of a transformer beside its weights that its vectors depend on


class TransformerEmbedding:
    """Mean of the last layer's states over the tokens of a sequence, in full length, padding left out.

    As Zhou et al., "DNABERT-S: pioneering species differentiation with species-aware DNA embeddings", 2024.

    Args:
        folder: With configuration, tokenizer and weights, as transformers saves them.
        trust_code: Run the Python files in the folder, which DNABERT-S needs. They can do anything.
        device: "auto", "cpu", "cuda" or "mps".
        cache: Folder in which vectors are kept from run to run.

    Raises:
        ImportError: transformers is not there.
        ValueError: The folder holds no such model, or one that needs its own code and may not run it.
    """

    def __init__(
        self, folder: str | Path, *, trust_code: bool = False, device: str = "auto", cache: str | Path | None = None
    ) -> None:
        try:
            import transformers
        except ImportError:
            raise ImportError('embedder needs transformers: pip install "omniset[dna]"') from None
        self.folder = Path(folder)
        if not (self.folder / "config.json").is_file():
            raise ValueError(f"embedder must be a folder with a transformer's config.json and weights, got {folder}")
        options: dict[str, Any] = {"trust_remote_code": trust_code, "local_files_only": True}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(self.folder), **options)
            self.model = transformers.AutoModel.from_pretrained(str(self.folder), **options).eval()
        except (OSError, ValueError, KeyError) as error:
            cause = " ".join(str(error).split())[:300]
            advice = "" if trust_code else " (if it comes with Python files and you trust them: trust_code)"
            raise ValueError(f"embedder {folder} cannot be read: {cause}{advice}") from error
        self.device = devices.find(device)
        self.width = int(self.model.config.hidden_size)
        self.identity = _checksum(self.model)
        # Every epoch reads the same sequences: where nothing is to be kept, vectors are kept as long as this object.
        if cache is None:
            cache = tempfile.mkdtemp(prefix="omniset-")
            weakref.finalize(self, shutil.rmtree, cache, ignore_errors=True)
        self._cache = VectorCache(cache, f"{self.identity}-{settings_checksum(self.folder)}", self.width)

    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "sequences width"]:
        return torch.from_numpy(self._cache.of(texts, self._compute))

    @torch.no_grad()
    def _compute(self, texts: Sequence[str]) -> Float[np.ndarray, "sequences width"]:
        self.model.to(self.device)
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), TOGETHER):
            some = list(texts[start : start + TOGETHER])
            tokens = self.tokenizer(some, return_tensors="pt", padding=True).to(self.device)
            states = self.model(**tokens)[0]
            here = tokens["attention_mask"][..., None].to(states.dtype)
            vectors[start : start + len(some)] = ((states * here).sum(1) / here.sum(1)).cpu().numpy()
        return vectors


class VectorCache:
    """Vectors by sequence on disk, for any number of processes at once.

    One file, `NAME.rows`: each row is a key, the hash of the sequence and of what made the vector; the vector; and a
    checksum of both. Rows are written under a lock that ends with its process, and each is checked when it is read:
    what is damaged, or what a process that was killed left half written, is computed and written anew.

    Args:
        name: Of what makes the vectors: another one has other rows.
    """

    def __init__(self, folder: str | Path, name: str, width: int) -> None:
        folder = writable_folder(folder)
        self.rows, self._lock, self.name = folder / f"{name}.rows", folder / f"{name}.lock", name
        self.width = width
        self._row = np.dtype([("key", "V16"), ("vector", "<f4", (width,)), ("check", "<u4")])
        self._place: dict[bytes, int] = {}
        self._known = 0  # rows whose keys were read
        self._look()

    def of(
        self, texts: Sequence[str], compute: Callable[[Sequence[str]], Float[np.ndarray, "sequences width"]]
    ) -> Float[np.ndarray, "sequences width"]:
        """Vectors of all sequences; those that are not kept are computed, and kept."""
        keys = [self._key(text) for text in texts]
        text_of = dict(zip(keys, texts, strict=True))
        if any(key not in self._place for key in text_of):
            self._look()  # others may have added some
        vectors = self._read([key for key in text_of if key in self._place])
        if damaged := sum(key in self._place and key not in vectors for key in text_of):
            warnings.warn(f"{self.rows} has {many(damaged, 'damaged vector')}: computed anew", stacklevel=3)
        lacking = [key for key in text_of if key not in vectors]
        if lacking:
            computed = compute([text_of[key] for key in lacking]).astype("<f4")
            self._write(lacking, computed)
            vectors |= dict(zip(lacking, computed, strict=True))
        return np.array([vectors[key] for key in keys], dtype=np.float32).reshape(len(keys), self.width)

    def _key(self, text: str) -> bytes:
        return hashlib.blake2b(f"{self.name} {text}".encode("ascii"), digest_size=16).digest()

    def _look(self) -> None:
        """Read the keys of rows that are new."""
        if not self.rows.exists():
            return
        with open(self.rows, "rb") as file:
            file.seek(self._known * self._row.itemsize)
            while number := len(rows := file.read(BLOCK * self._row.itemsize)) // self._row.itemsize:
                keys = np.frombuffer(rows, self._row, number)["key"]  # without the part of a row at the end
                self._place |= {key.tobytes(): self._known + i for i, key in enumerate(keys)}
                self._known += number

    def _read(self, keys: list[bytes]) -> dict[bytes, Float[np.ndarray, " width"]]:
        """The vectors of those rows that are whole."""
        vectors: dict[bytes, Float[np.ndarray, " width"]] = {}
        if not keys:
            return vectors
        with open(self.rows, "rb") as file:
            for key in keys:
                file.seek(self._place[key] * self._row.itemsize)
                row = file.read(self._row.itemsize)
                if len(row) == self._row.itemsize and row[:16] == key and _check(row[:-4]) == row[-4:]:
                    vectors[key] = np.frombuffer(row[16:-4], "<f4")
        return vectors

    def _write(self, keys: list[bytes], vectors: Float[np.ndarray, "sequences width"]) -> None:
        """Rows of what is new, and of what is damaged in the place where it is."""
        damaged = self._place.keys() & set(keys)
        with held(self._lock, "the cache"), self._opened() as file:
            self._look()
            for key, vector in zip(keys, vectors, strict=True):
                if key in self._place and key not in damaged:  # another process was faster
                    continue
                if key not in self._place:
                    self._place[key], self._known = self._known, self._known + 1
                file.seek(self._place[key] * self._row.itemsize)
                row = key + vector.tobytes()
                file.write(row + _check(row))

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        try:
            with open(self.rows, "r+b" if self.rows.exists() else "w+b") as file:
                yield file
        except OSError as error:
            raise OSError(error.errno, f"cache cannot be written: {error.strerror}", str(self.rows)) from error


def _check(row: bytes) -> bytes:
    return zlib.crc32(row).to_bytes(4, "little")


def settings_checksum(folder: Path) -> str:
    """A hash of what a transformer's vectors depend on beside its weights: configuration, tokenizer, code."""
    checksum = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.iterdir() if path.suffix in CODE and path.is_file()):
        checksum.update(f"{path.name} {path.stat().st_size} ".encode())
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def _checksum(model: torch.nn.Module) -> str:
    checksum = hashlib.blake2b(digest_size=8)
    for name, tensor in model.state_dict().items():
        checksum.update(name.encode())
        checksum.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()
