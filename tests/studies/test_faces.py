"""CelebA as it is published, made small: pictures, attributes, partition, and a transformer of one layer."""

import re

import numpy as np
import pytest
import torch
from paper import faces
from paper.faces import FaceAnomaly, read_attributes
from paper.study import generator
from PIL import Image
from transformers import ViTConfig, ViTModel

from omniset.cli import main

pytestmark = pytest.mark.slow

NAMES = ["Bald", "Smiling", "Young"]
ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"


@pytest.fixture
def celeba(tmp_path, monkeypatch):
    r = np.random.default_rng(0)
    (tmp_path / "img_align_celeba").mkdir()
    has = r.random((120, 3)) < 0.65
    names = [f"{i:06}.jpg" for i in range(1, 121)]
    for name, row in zip(names, has, strict=True):
        pixels = (200 * row[:, None, None] + r.integers(0, 50, (3, 20, 16))).astype(np.uint8)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / "img_align_celeba" / name)
    lines = [f"{n} {' '.join('1' if h else '-1' for h in row)}" for n, row in zip(names, has, strict=True)]
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(["120", " ".join(NAMES), *lines]) + "\n")
    parts = "\n".join(f"{n} {i % 3}" for i, n in enumerate(names))
    (tmp_path / "list_eval_partition.txt").write_text(parts)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(**sizes, image_size=16, patch_size=8)
    ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "vit")
    monkeypatch.setattr(faces, "EPOCHS", 2)
    return tmp_path, has


def test_from_pictures_to_sets(celeba):
    folder, has = celeba
    study = FaceAnomaly(folder)
    study.prepare([0])
    assert study.input_dim == 16
    part = np.arange(120) % 3
    embedded = np.load(folder / "embeddings.npy")
    anomalous = torch.arange(60) % 2 == 0
    for number, name in enumerate(("train", "validation", "test")):
        rows = np.flatnonzero(part == number)
        assert np.array_equal(study.faces[name], embedded[rows])
        elements, where = study.draw(name, 60, anomalous, generator("x"))
        distance = torch.cdist(elements, study.faces[name], compute_mode="donot_use_mm_for_euclid_dist")
        assert distance.amin(-1).max() == 0  # only images of this part
        found = torch.as_tensor(has[rows])[distance.argmin(-1)]  # (sets, 10, attributes)
        for b in range(60):
            others = torch.arange(10) != where[b]
            pairs = [(i, j) for i in range(3) for j in range(i) if found[b][others][:, [i, j]].all()]
            assert pairs
            if anomalous[b]:
                assert any(not found[b, where[b], [i, j]].any() for i, j in pairs)
            else:
                assert any(found[b, where[b], [i, j]].all() for i, j in pairs)
    assert study.batch(study.recipe.trainings[0], 0, 0).elements.shape == (128, 10, 16)


def test_the_transformer_is_fine_tuned_on_training_images_alone(celeba, monkeypatch):
    folder, has = celeba
    seen = []
    look = faces.Lesson
    monkeypatch.setattr(
        faces, "Lesson", lambda make, rows, *rest, **how: seen.append(rows) or look(make, rows, *rest, **how)
    )
    FaceAnomaly(folder).prepare([0])
    assert [list(rows) for rows in seen] == [list(range(0, 120, 3))]
    pixels, attributes = faces.Faces([folder / "img_align_celeba" / "000001.jpg"], has[:1], 16)[0]
    assert pixels.shape == (3, 16, 16)
    assert -1 <= pixels.min() < pixels.max() <= 1
    assert (attributes.bool().numpy() == has[0]).all()


def test_csv_is_read_too(celeba):
    folder, has = celeba
    rows = "\n".join(f"{i:06}.jpg,{','.join('1' if h else '-1' for h in row)}" for i, row in enumerate(has, 1))
    (folder / "list_attr_celeba.csv").write_text(f"image_id,{','.join(NAMES)}\n{rows}\n")
    names, found = read_attributes(folder)
    assert names[0] == "000001.jpg"
    assert (found == has).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / ATTRIBUTES).unlink(), "neither list_attr_celeba.txt nor list_attr_celeba.csv"),
        (lambda f: _replace(f / ATTRIBUTES, "000002.jpg 1", "000002.jpg"), "line 4: 3 fields, expected 4"),
        (lambda f: _replace(f / ATTRIBUTES, "000002.jpg 1", "000002.jpg 3"), "000002.jpg: attribute Bald is 3"),
        (lambda f: _replace(f / PARTITION, "000003.jpg 2", ""), "000003.jpg of list_attr_celeba is not in"),
        (lambda f: (f / "img_align_celeba" / "000001.jpg").unlink(), "image 000001.jpg is in none of"),
        (lambda f: (f / "img_align_celeba" / "000004.jpg").write_text("x"), "000004.jpg is no image that can be read"),
    ],
)
def test_bad_files(celeba, change, message, capsys):
    folder, _ = celeba
    change(folder)
    assert main(["studies", "run", "anomaly-faces", "--data", str(folder), "--out", str(folder / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (folder / "embeddings.npy").exists()


def _replace(path, old, new):
    """In the line of an image, whatever value stands first."""
    text = path.read_text()
    name, _, value = old.partition(" ")
    text = re.sub(rf"{name} (-?1|{value})", new, text)
    path.write_text(text)
