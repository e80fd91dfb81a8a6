"""Atlases by name: places are the means of their voxels, joined by name or number, and what is not there is said."""

import ast
import importlib.util
import sys
import types
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest

from omniset.regions import read_regions
from omniset.regions.atlas_coordinates import ATLASES, atlas_centroids, read_coordinates

# Left and right are swapped in the image, as radiologists have them.
AFFINE = np.array([[-2.0, 0, 0, 20], [0, 2.0, 0.5, -30], [0, 0, 3.0, -10], [0, 0, 0, 1]])
NUMBERS = np.r_[1:7, 21:27]
NAMES = [f"7Networks_{side}_Vis_{i}" for side in ("RH", "LH") for i in range(1, 7)]


def voxels():
    """Each region is two boxes in its half of the image; 30 has a name and no voxel."""
    image = np.zeros((20, 15, 9), np.int16)
    for at, number in enumerate(NUMBERS):
        i, j = 10 * (at // 6), 2 * (at % 6)
        image[i + 1 : i + 3, j, 1:4] = image[i + 5 : i + 6, j : j + 2, 7] = number
    return image


def by_hand(image):
    places = {}
    for at in np.ndindex(image.shape):
        if image[at]:
            places.setdefault(int(image[at]), []).append((AFFINE @ [*at, 1])[:3])
    return {number: np.mean(of_number, 0) for number, of_number in places.items()}


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """No download by nilearn: the image of the tests is what it fetches. Returns what it was asked for."""
    asked = []
    path = tmp_path / "atlas.nii.gz"
    nibabel.save(nibabel.Nifti1Image(voxels(), AFFINE), path)
    lut = pd.DataFrame({"index": [0, *NUMBERS[::-1], 30], "name": ["Background", *NAMES[::-1], "7Networks_LH_Vis_9"]})

    def fetch(**options):
        asked.append(options)
        return types.SimpleNamespace(maps=str(path), lut=lut)

    stub = types.ModuleType("nilearn")
    stub.datasets = types.SimpleNamespace(fetch_atlas_schaefer_2018=fetch)
    monkeypatch.setitem(sys.modules, "nilearn", stub)
    atlas_centroids.cache_clear()
    yield asked
    atlas_centroids.cache_clear()


@pytest.mark.parametrize("numbers", [False, True])
def test_an_atlas_is_joined_by_its_names_or_its_numbers(fetched, numbers, tmp_path):
    regions = [str(i) for i in NUMBERS] if numbers else NAMES
    values = np.random.default_rng(0).random((12, 11))
    expression = pd.DataFrame(values, regions, [f"SLC{i}A{i + 1}" for i in range(11)])
    expression.to_csv(tmp_path / "e.csv")
    found = read_regions(tmp_path / "e.csv", coordinates="schaefer_100")
    expected = by_hand(voxels())
    assert found.names == regions
    assert np.allclose(found.coordinates, [expected[number] for number in NUMBERS], atol=1e-12)
    assert found.hemisphere == ["R"] * 6 + ["L"] * 6
    assert fetched == [{"n_rois": 100, "verbose": 0}]  # once, though coordinates are read twice
    assert not [note for note in found.notes if "left out" in note]


def test_what_is_no_atlas_or_cannot_be_fetched_is_said(fetched, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aal").write_text("region,x,y,z\na,1,2,3\n")  # a file comes before an atlas of its name
    with pytest.raises(ValueError, match=r"^aal: the name must end in \.csv"):
        read_coordinates("aal")
    with pytest.raises(ValueError, match=r"^schaefer_150 is no file and no atlas .* schaefer_100, .*, juelich$"):
        read_coordinates("schaefer_150")

    def offline(**_):
        raise ConnectionError("no route\nto host")

    sys.modules["nilearn"].datasets.fetch_atlas_aal = offline
    with pytest.raises(OSError, match="^aal_3: nilearn could not fetch this atlas: ConnectionError: no route to host$"):
        read_coordinates("aal_3")
    monkeypatch.setitem(sys.modules, "nilearn", None)
    with pytest.raises(ImportError, match=r'needs nilearn, which is not installed: pip install "omniset\[regions\]"'):
        read_coordinates("destrieux")


def test_nilearn_has_what_names_stand_for():
    """By its source, as it takes long to import."""
    spec = importlib.util.find_spec("nilearn")
    if spec is None:
        pytest.skip("nilearn is not installed")
    source = (Path(spec.origin).parent / "datasets" / "atlas.py").read_text()
    known = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    for fetcher, options in ATLASES.values():
        assert {*options, "verbose"} <= {argument.arg for argument in known[f"fetch_atlas_{fetcher}"].args.args}
