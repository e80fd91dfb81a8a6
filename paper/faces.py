"""Faces for the anomaly study (A.3.5): CelebA, embedded by a vision transformer fine-tuned on its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from omniset.runs.devices import find
from omniset.runs.files import replacing
from omniset.runs.progress import Progress
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule, fit
from paper.anomaly import Anomaly

PARTS = {"train": 0, "validation": 1, "test": 2}
ATTRIBUTES, PARTITION = "list_attr_celeba", "list_eval_partition"
IMAGES = ("img_align_celeba/img_align_celeba", "img_align_celeba", "Img/img_align_celeba")
MODEL = "google/vit-base-patch16-224-in21k"
EPOCHS, BATCH, LEARNING_RATE = 10, 128, 1e-4  # of the fine-tuning


class FaceAnomaly(Anomaly):
    """Ten faces that share two attributes; the anomaly has neither.

    Args:
        data: CelebA: list_attr_celeba (.txt as published, or .csv), list_eval_partition, and the aligned images. A
            folder vit in it, as transformers saves models, is used in place of the download. Embeddings are written
            to embeddings.npy in it, once.
    """

    name = "anomaly-faces"
    input_dim = 768

    def prepare(self, seeds: Sequence[int]) -> None:
        if self.data is None:
            raise ValueError("data: anomaly-faces needs the folder of CelebA")
        names, attributes = read_attributes(self.data)
        part = read_partition(self.data, names)
        embedded = embeddings(self.data, names, attributes, part)
        self.input_dim = embedded.shape[1]
        rows = {name: np.flatnonzero(part == number) for name, number in PARTS.items()}
        if not len(rows["validation"]):
            raise ValueError(f"{self.data}: no image is of the validation part (1) of {PARTITION}")
        self.faces = {name: torch.as_tensor(embedded[r], dtype=torch.float32) for name, r in rows.items()}
        self.attributes = {name: torch.as_tensor(attributes[r]) for name, r in rows.items()}
        self.shared = cache(self._shared)
        self.pairs = {name: self._pairs(name) for name in rows}

    def draw(
        self, part: str, sets: int, anomalous: Bool[Tensor, " sets"], draw: torch.Generator
    ) -> tuple[Float[Tensor, "sets images features"], Int[Tensor, " sets"]]:
        size = self.recipe.options["size"]
        pairs = self.pairs[part]
        chosen = torch.randint(len(pairs), (sets,), generator=draw)
        where = torch.randint(size, (sets,), generator=draw)
        rows = torch.empty(sets, size, dtype=torch.int64)
        for i, (pair, odd, place) in enumerate(zip(chosen.tolist(), anomalous.tolist(), where.tolist(), strict=True)):
            both, neither = self.shared(part, *pairs[pair])
            rows[i] = both[torch.randperm(len(both), generator=draw)[:size]]
            if odd:
                rows[i, place] = neither[torch.randint(len(neither), (), generator=draw)]
        return self.faces[part][rows], where

    def _shared(self, part: str, a: int, b: int) -> tuple[Tensor, Tensor]:
        """Rows of the images that have both attributes, and of those that have neither."""
        has = self.attributes[part]
        both, neither = has[:, a] & has[:, b], ~(has[:, a] | has[:, b])
        return both.nonzero()[:, 0], neither.nonzero()[:, 0]

    def _pairs(self, part: str) -> list[tuple[int, int]]:
        """Attributes that enough images share."""
        has = self.attributes[part].double()
        both, neither = has.T @ has, (1 - has).T @ (1 - has)
        size = self.recipe.options["size"]
        pairs = [(a, b) for a in range(len(both)) for b in range(a) if both[a, b] >= size and neither[a, b] >= 1]
        if not pairs:
            raise ValueError(f"{self.data}: no two attributes are shared by {size} images of the {part} part")
        return pairs


def read_attributes(folder: Path) -> tuple[list[str], Bool[np.ndarray, "images attributes"]]:
    """Names of the images, and which attributes they have: 1, or -1 (in some copies 0) for not.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not a name and so many values, or a value is another.
    """
    table = _read(folder, ATTRIBUTES, 2)
    values = table.iloc[:, 1:].to_numpy()
    bad = ~np.isin(values, (-1, 0, 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{folder}/{ATTRIBUTES}: {table.iloc[row, 0]}: attribute {table.columns[column + 1]} is "
            f"{values[row, column]}, must be 1 or -1"
        )
    return table.iloc[:, 0].astype(str).tolist(), values == 1


def read_partition(folder: Path, names: list[str]) -> Int[np.ndarray, " images"]:
    """0, 1 or 2 (training, validation, test) of each of these images."""
    table = _read(folder, PARTITION, 0)
    part = pd.Series(table.iloc[:, 1].to_numpy(), index=table.iloc[:, 0].astype(str)).reindex(names)
    if part.isna().any():
        raise ValueError(f"{folder}/{PARTITION}: {part.index[part.isna()][0]} of {ATTRIBUTES} is not in it")
    return part.to_numpy(dtype=np.int64)


def _read(folder: Path, name: str, head: int) -> pd.DataFrame:
    """A table of CelebA: .csv with a head; or .txt, whose head lacks a name for the images, or which has none."""
    table, text = folder / f"{name}.csv", folder / f"{name}.txt"
    if table.is_file():
        return pd.read_csv(table)
    if not text.is_file():
        raise FileNotFoundError(f"{folder} has neither {name}.txt nor {name}.csv")
    lines = text.read_text(encoding="utf-8").split("\n")
    rows = [line.split() for line in lines[head:] if line.strip()]
    columns = ["image", *(lines[1].split() if head else ["part"])]
    for number, row in enumerate(rows, head + 1):
        if len(row) != len(columns):
            raise ValueError(f"{text}, line {number}: {len(row)} fields, expected {len(columns)}")
    try:
        return pd.DataFrame([[row[0], *map(int, row[1:])] for row in rows], columns=columns)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from error


def embeddings(
    folder: Path, names: list[str], attributes: Bool[np.ndarray, "images attributes"], part: Int[np.ndarray, " images"]
) -> Float[np.ndarray, "images features"]:
    """Of all images, from the folder, or made: the class token of the transformer, fine-tuned on the training part."""
    path = folder / "embeddings.npy"
    if not path.exists():
        try:
            from transformers import ViTModel
        except ImportError as error:
            raise ImportError("anomaly-faces needs transformers and pillow: pip install omniset[faces]") from error
        images = next((folder / place for place in IMAGES if (folder / place / names[0]).is_file()), None)
        if images is None:
            raise FileNotFoundError(f"{folder}: image {names[0]} is in none of {', '.join(IMAGES)}")
        source = folder / "vit" if (folder / "vit").is_dir() else MODEL
        network = AttributeNetwork(ViTModel.from_pretrained(source, add_pooling_layer=False), attributes.shape[1])
        faces = Faces([images / name for name in names], attributes, network.image_size)
        _fine_tune(network, faces, np.flatnonzero(part == PARTS["train"]), folder / "fine-tuning")
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, _embed(network, faces))
    vectors = np.load(path, allow_pickle=False)
    if len(vectors) != len(names):
        raise ValueError(f"{path} has {len(vectors)} rows, {ATTRIBUTES} {len(names)}: remove it to make it anew")
    return vectors


class Faces(Dataset[tuple[Tensor, Tensor]]):
    """Images scaled to [-1, 1], (3, size, size), and their attributes."""

    def __init__(self, paths: list[Path], attributes: Bool[np.ndarray, "images attributes"], size: int) -> None:
        self.paths, self.attributes, self.size = paths, torch.as_tensor(attributes, dtype=torch.float32), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, Tensor]:
        from PIL import Image, UnidentifiedImageError

        i = key if isinstance(key, int) else key[1]  # of an epoch
        try:
            with Image.open(self.paths[i]) as image:
                pixels = np.array(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR))
        except UnidentifiedImageError as error:
            raise ValueError(f"{self.paths[i]} is no image that can be read") from error
        return torch.as_tensor(pixels).permute(2, 0, 1) / 127.5 - 1, self.attributes[i]


class AttributeNetwork(nn.Module):
    """A vision transformer and one Linear from its class token to the attributes."""

    def __init__(self, transformer: Any, attributes: int) -> None:
        super().__init__()
        self.transformer, self.head = transformer, nn.Linear(transformer.config.hidden_size, attributes)
        self.image_size = int(transformer.config.image_size)

    def embed(self, images: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images features"]:
        return self.transformer(pixel_values=images).last_hidden_state[:, 0]

    def forward(self, images: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images attributes"]:
        return self.head(self.embed(images))


class _FineTuning(TrainingModule):
    def training_step(self, batch: Sequence[Tensor], index: int) -> Tensor:
        images, attributes = batch
        loss = F.binary_cross_entropy_with_logits(self.network(images), attributes)
        self.log("train_loss", loss, batch_size=len(images))
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def rate(self, step: int) -> float:
        return 1.0


def _fine_tune(network: AttributeNetwork, faces: Faces, rows: Int[np.ndarray, " rows"], folder: Path) -> None:
    network.train()  # transformers hands models out in eval mode

    def make(keys: list[Key], training: bool) -> Any:
        return default_collate([faces[key] for key in keys])

    fit(
        _FineTuning(network, LEARNING_RATE, 0.0, 0, {"images": len(rows), "attributes": faces.attributes.shape[1]}),
        Lesson(make, rows, [], batch_size=BATCH, seed=0),
        epochs=EPOCHS,
        patience=None,
        device=find("auto").type,
        progress=True,
        log=None,
        folder=folder,
        resume=True,
    )


@torch.no_grad()
def _embed(network: AttributeNetwork, faces: Faces) -> Float[np.ndarray, "images features"]:
    network = network.to(find("auto")).eval()
    vectors = []
    with Progress("embedding", len(faces), True, "images") as progress:
        for images, _ in DataLoader(faces, BATCH):
            vectors.append(network.embed(images.to(network.head.weight.device)).cpu())
            progress.at(sum(map(len, vectors)))
    return torch.cat(vectors).numpy()
