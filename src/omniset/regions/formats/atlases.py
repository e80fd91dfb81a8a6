"""Centroids of the usual atlases, by the atlas' name, through nilearn, which downloads what it has not got yet."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.lazy import needs

NEEDS = needs("an atlas by name", "nilearn")
SIZES = range(100, 1001, 100)
# Names, and what nilearn fetches.
ATLASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"schaefer_{n}": ("schaefer_2018", {"n_rois": n}) for n in SIZES},
    **{f"schaefer_{n}_17": ("schaefer_2018", {"n_rois": n, "yeo_networks": 17}) for n in SIZES},
    "aal": ("aal", {"version": "SPM12"}),
    "aal_3": ("aal", {"version": "3v2"}),
    "destrieux": ("destrieux_2009", {}),
    "harvard_oxford": ("harvard_oxford", {"atlas_name": "cort-maxprob-thr25-2mm", "symmetric_split": True}),
    "harvard_oxford_sub": ("harvard_oxford", {"atlas_name": "sub-maxprob-thr25-2mm"}),
    "juelich": ("juelich", {"atlas_name": "maxprob-thr25-2mm", "symmetric_split": True}),
}
NAMES = "schaefer_100, schaefer_200 to schaefer_1000 (with _17: 17 networks), " + ", ".join(
    name for name in ATLASES if not name.startswith("schaefer")
)


def atlas_named(source: str | Path) -> str:
    """The atlas that a source names, "" if it is a file.

    Raises:
        ValueError: It is no file, has no ending of one, and names no atlas.
    """
    path = Path(source).expanduser()
    if path.exists() or path.suffix or len(path.parts) != 1:
        return ""
    if str(source) not in ATLASES:
        raise ValueError(f"{source} is no file and no atlas that nilearn fetches, which are {NAMES}")
    return str(source)


@lru_cache(maxsize=4)
def atlas_centroids(name: str) -> pd.DataFrame:
    """The means of the places of each region's voxels, in mm, in the order of the atlas.

    Returns:
        Index: names, as nilearn has them; columns x, y, z and id, the number of the region in the atlas' image. Names
        without a voxel are left out.

    Raises:
        ImportError: nilearn is not installed.
        OSError: nilearn could not fetch the atlas.
    """
    fetcher, options = ATLASES[name]
    try:
        import nibabel
        from nilearn import datasets
    except ImportError as error:
        raise ImportError(NEEDS) from error
    try:
        atlas = getattr(datasets, f"fetch_atlas_{fetcher}")(**options, verbose=0)
        image: Any = nibabel.load(atlas.maps) if isinstance(atlas.maps, str | Path) else atlas.maps
        voxels = np.asarray(image.dataobj).round().astype(np.int64)
    except Exception as error:  # requests, tarfile and nilearn raise anything
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"{name}: nilearn could not fetch this atlas: {type(error).__name__}: {reason}") from error
    places = centroids(voxels, image.affine)
    table = pd.DataFrame({"region": atlas.lut["name"].astype(str), "id": atlas.lut["index"].astype(int)})
    table = table[table["id"].isin(places)].set_index("region")
    return table.assign(**{axis: [places[i][at] for i in table["id"]] for at, axis in enumerate("xyz")})


def centroids(voxels: Int[np.ndarray, "i j k"], affine: Float[np.ndarray, "4 4"]) -> dict[int, Float[np.ndarray, " 3"]]:
    """The mean place of the voxels of each number but 0, in the space that the affine leads to."""
    inside = np.argwhere(voxels)
    numbers, of_voxel, sizes = np.unique(voxels[tuple(inside.T)], return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(of_voxel, weights=column, minlength=len(numbers)) for column in inside.T], 1)
    places = sums / sizes[:, None] @ affine[:3, :3].T + affine[:3, 3]
    return dict(zip(numbers.tolist(), places, strict=True))
