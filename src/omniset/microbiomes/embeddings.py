"""Vectors of sequences from a transformer in a local folder, such as DNABERT-S, kept by sequence."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from omniset import devices
from omniset.files import replacing, writable_folder

TOGETHER = 32  # sequences a transformer reads at a time


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
            said = " ".join(str(error).split())[:300]
            advice = "" if trust_code else " (if it comes with Python files and you trust them: trust_code)"
            raise ValueError(f"embedder {folder} cannot be read: {said}{advice}") from error
        self.device = devices.find(device)
        self.width = int(self.model.config.hidden_size)
        self.identity = _checksum(self.model)
        # Every epoch reads the same sequences: where nothing is to be kept, vectors are kept as long as this object.
        if cache is None:
            cache = tempfile.mkdtemp(prefix="omniset-")
            weakref.finalize(self, shutil.rmtree, cache, ignore_errors=True)
        self._cache = VectorCache(cache, self.identity, self.width)

    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "sequences width"]:
        return torch.from_numpy(self._cache.of(texts, self._compute))

    @torch.no_grad()
    def _compute(self, texts: Sequence[str]) -> Float[np.ndarray, "sequences width"]:
        self.model.to(self.device)
        found = np.empty((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), TOGETHER):
            some = list(texts[start : start + TOGETHER])
            tokens = self.tokenizer(some, return_tensors="pt", padding=True).to(self.device)
            states = self.model(**tokens)[0]
            here = tokens["attention_mask"][..., None].to(states.dtype)
            found[start : start + len(some)] = ((states * here).sum(1) / here.sum(1)).cpu().numpy()
        return found


class VectorCache:
    """Vectors by sequence on disk: added to, mapped rather than read.

    Two files: `NAME.f32` with the vectors, and `NAME.keys.npy` with the hashes of their sequences, written last: what
    was added and not named yet, by a run that was killed, is written over.
    """

    def __init__(self, folder: str | Path, name: str, width: int) -> None:
        folder = writable_folder(folder)
        self.rows, self.index, self.width = folder / f"{name}.f32", folder / f"{name}.keys.npy", width
        keys = np.load(self.index, allow_pickle=False) if self.index.exists() else np.zeros(0, dtype="S16")
        self.place = {bytes(key.ljust(16, b"\0")): i for i, key in enumerate(keys)}

    def of(
        self, texts: Sequence[str], compute: Callable[[Sequence[str]], Float[np.ndarray, "sequences width"]]
    ) -> Float[np.ndarray, "sequences width"]:
        """Vectors of all sequences; those that are not kept are computed, and kept."""
        keys = [hashlib.blake2b(text.encode("ascii"), digest_size=16).digest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.place}
        if new:
            found = compute(list(new.values())).astype("<f4")
            with open(self.rows, "r+b" if self.rows.exists() else "w+b") as file:
                file.seek(len(self.place) * 4 * self.width)
                file.write(found.tobytes())
            self.place |= {key: len(self.place) + i for i, key in enumerate(new)}
            with replacing(self.index) as temporary, open(temporary, "wb") as out:
                np.save(out, np.array(list(self.place), dtype="S16"))
        if not keys:
            return np.zeros((0, self.width), dtype=np.float32)
        kept = np.memmap(self.rows, dtype="<f4", mode="r", shape=(len(self.place), self.width))
        return np.asarray(kept[[self.place[key] for key in keys]])


def _checksum(model: torch.nn.Module) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
