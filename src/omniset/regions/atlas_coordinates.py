"""Where regions are, what their names tell of it, and the parts of the brain: hemispheres, cortex and subcortex.

Places are of a file, or of an atlas by its name, whose image nilearn downloads.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.core.features import MISSING
from omniset.lazy import needs
from omniset.regions.data import Regions
from omniset.regions.files import (
    SIDES,
    TABLES,
    TITLES,
    check_names,
    counts_only,
    ids_of,
    is_text,
    name_columns,
    name_of,
    path_of,
    read_parquet,
    sheet_of,
    sided,
    text_of,
)
from omniset.tables.files import listed, short
from omniset.tables.sheets import number_of

PLACES = (
    *(tuple(form.format(axis) for axis in "xyz") for form in ("mni_{}", "{}_mni", "{}")),
    ("r", "a", "s"),  # right, anterior, superior
)
HEMISPHERES = SIDES | dict.fromkeys((*MISSING, "b", "both", "bilateral", "m", "midline"), "")
BRAIN = 3, 300  # mm, of a mouse and of a man: the largest coordinate lies between
SMALL, MAN = 20, (50, 150)  # mm: the largest of a mouse or a rat at most, and of a man's brain
UNITS = {"m": 1e3, "cm": 10.0, "um": 1e-3}
HUMAN = re.compile(r"\d+Networks_|bankssts|supramarginal|_ROI$")  # names of his atlases
SIGNS = {"L": -1, "R": 1}
NODE = ("x", "y", "z", "color", "size", "label")  # columns of BrainNet Viewer's files, which have no header
WRONG = 0.1, 1 / 3, 0.9  # of the regions in the wrong hemisphere, from which on it is said, refused, x is turned
SURE = 20  # regions that are enough to refuse by
SCHAEFER = re.compile(r"\d+Networks_[LR]H_([A-Za-z]+)(_\w+)?")

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

CORTEX, SUBCORTEX = "cortex", "subcortex"
FLAGS = dict.fromkeys(("true", "1", "1.0", "yes", "cortex"), CORTEX)  # of a column cortex
FLAGS |= dict.fromkeys(("false", "0", "0.0", "no", "subcortex"), SUBCORTEX)
GLUED = re.compile("^[LR](?=[A-Z]?[a-z])|(?<=[a-z])[LR]$")  # Lthal, RHippocampus, PutamenL
# Whole words that tell it wherever they stand. Parts of words do not: caudalmiddlefrontal, ParaHippocampal.
WORDS = re.compile(
    r"(left|right)?(hypo|sub|epi)?thalam(us|i|ic)(proper)?|hippocampus|amygdala|(caudate|accumbens)(nucleus|area)?"
    r"|putamen|(globus)?pallid(um|us)|(neo)?striat(um|al)|cerebell?(um|ar)(cortex|whitematter)?|vermis|claustrum"
    r"|nucle(us|i)|ganglia|brainstem|stem|midbrain|mesencephalon|pons|medulla|diencephalon|ventraldc|geniculate"
    r"|colliculus|nigra|raphe|habenula|subcort(ex|ical)|white|wm|(corpus)?callosum|ventric(le|les|al)|vent|csf|vessel"
    r"|choroid|chiasm|fornix|hyp(o|er)intensities"
)
# Short names, each all that is left without side and number: of ENIGMA, AAL 3, FreeSurfer's corpus callosum.
SHORT = re.compile(
    r"accumb|amyg|caud|hip(po?)?|pall?|put|thal?|latvent|n ?acc?|gp[ei]?|stn|sth|vta|sn( ?p?[cr])?|red n|[lm]gn|vdc"
    r"|thal [a-z]{2,3}|cc (mid )?(anterior|posterior)|cc central"
)
# Those in which the case tells: Glasser's PGp is cortex, Tian's pGP is not. Of Tian (pTHA, THA-VAia, HIP-head-m1), the
# Brainnetome atlas (mPFtha, vmPu, cHipp) and CIT168.
CASED = re.compile(
    r"([apml]?(HIP|AMY|THA|GP|PUT|CAU)|NAc)( ([DV][AP](m|l|s|ia|ip)?|head|body|tail|shell|core|[lm]\d?))*"
    r"|[mlrc]?(Amyg|Hipp)|BG|[vd]Ca|(vm|dl)Pu|NAC|(mPF|mPM|S|rT|PP|O|cT|lPF)tha|Pu|Ca|EXA|RN|PBP|VeP|HN|HTH|MN|LC"
)


def read_coordinates(source: Any, *, regions: Sequence[str] | None = None) -> pd.DataFrame:
    """Read where regions are.

    Columns are found by their titles, see "What is read" in docs/regions.md: x, y, z; region; hemisphere; network,
    else that of Schaefer's names (7Networks_LH_Vis_1: Vis), else the structure; structure, or cortex, true or false.

    A region whose hemisphere no column tells has the one that its name does (LH, RH, L_, _R, left, ...), else that of
    the sign of x.

    Args:
        source: A .csv, .tsv, .txt (also .gz, .bz2, .xz) or .parquet file, a DataFrame, or the name of an atlas, such as
            "schaefer_100": see ATLASES.
        regions: Names that regions have elsewhere: of several columns that may be the names, the one with most of them
            is taken.

    Returns:
        Index: names; columns: x, y, z, hemisphere ("L", "R" or ""), network where it is known; where they are given
        structure ("cortex", "subcortex", or "" where it is unknown). Its `attrs["notes"]` says what was decided.

    Raises:
        OSError: The file is not there or may not be read, or the atlas cannot be fetched.
        ImportError: An atlas, without nilearn.
        ValueError: Naming the source and the region: a place that is no finite number; a name that is missing or there
            twice; an unknown hemisphere; no such columns.
    """
    name = name_of(source, "coordinates")
    titles, columns = _coordinates_table(source, name)
    at: dict[str, int] = {}
    for number, title in enumerate(titles):
        at.setdefault(re.sub("[ .-]", "_", title.lower()), number)
    places = next((triple for triple in PLACES if all(title in at for title in triple)), None)
    if places is None:
        raise ValueError(f"{name}: must have columns x, y, z (or mni_x, ...; x_mni, ...), it has {listed(titles)}")
    if not columns or not columns[0]:
        raise ValueError(f"{name} has no rows below its header")

    def column(*titles: str) -> list[str] | None:
        """The first that is there."""
        return next((columns[at[title]] for title in titles if title in at), None)

    notes: list[str] = []
    sides = column("hemisphere", "hemi")
    names = _coordinate_names(columns, titles, [at[title] for title in places], name, set(ids_of(regions or ())))
    check_names(names := sided(names, sides, notes, name), name)
    values = np.empty((len(names), 3))
    for axis, title in enumerate(places):
        for number, text in enumerate(columns[at[title]]):
            value = number_of(text)
            if value is None or not np.isfinite(value):
                entry = short(text) if text else "empty"
                raise ValueError(
                    f"{name}: region {names[number]!r}: {titles[at[title]]} is {entry}, it must be a finite number"
                )
            values[number, axis] = value
    _in_mm(values, names, name, notes)
    sides = _hemispheres(sides, names, values, name, notes)
    frame = pd.DataFrame(values, index=pd.Index(names, name="region"), columns=["x", "y", "z"])
    frame["hemisphere"] = sides
    nothing = [""] * len(names)
    given, structures = column("network", "network_label", "yeo7") or nothing, column("structure") or nothing
    flags = [FLAGS.get(text.lower(), "") for text in column("cortex") or nothing]
    told = zip(given, map(network_of_name, names), structures, flags, strict=True)
    networks = [next((text for text in texts if text and text.lower() not in MISSING), "") for texts in told]
    if any(networks):
        frame["network"] = networks
    structures = [structure_of_text(text) or flag for text, flag in zip(structures, flags, strict=True)]
    if any(structures):
        frame["structure"] = structures
    frame.attrs["notes"] = notes
    return frame


def _in_mm(values: Float[np.ndarray, "regions 3"], names: list[str], name: str, notes: list[str]) -> None:
    """Bring places of a human atlas to millimetres; say where a unit is doubtful."""
    farthest = float(np.abs(values).max())
    units = UNITS if len(names) >= SURE else {}
    unit = next((unit for unit, mm in units.items() if MAN[0] <= farthest * mm <= MAN[1]), None)
    said = f"{name}: the largest coordinate is {farthest:.4g}"
    if unit and any(map(HUMAN.search, names)):
        values *= UNITS[unit]
        notes.append(f"{said}: they are taken for {unit} and made mm")
    elif unit or not BRAIN[0] <= farthest <= BRAIN[1]:
        of = f"up to {SMALL} of a mouse, {MAN[0]} to {MAN[1]} of man"
        warnings.warn(f"{said}, in mm it is {of}: is the unit another one?", stacklevel=4)


def _check_sides(
    sides: list[str], values: Float[np.ndarray, "regions 3"], names: list[str], name: str, notes: list[str]
) -> None:
    """See that x is from left to right of the midline, and turn it where it is from right to left.

    Raises:
        ValueError: It is on one side for regions of both, or for all as in voxels; or places are those of others.
    """
    x, sign = values[:, 0], np.array([SIGNS.get(side, 0) for side in sides])
    voxels = not sign.any() and values.min() >= 0 and values.max() > SMALL and len(x) >= SURE
    both = min((sign < 0).sum(), (sign > 0).sum()) > WRONG[0] * len(x) and x.any()
    if voxels or (both and (x.min() >= 0 or x.max() <= 0)):
        raise ValueError(
            f"{name}: x is from {x.min():.4g} to {x.max():.4g}, on one side of the midline: give mm from there, left "
            "negative (of voxels nibabel.affines.apply_affine(image.affine, voxels)); where all regions are of one "
            "hemisphere, a column hemisphere says so"
        )
    wrong, most = np.flatnonzero(sign * x < 0), int((sign * x != 0).sum())
    if len(wrong) <= WRONG[0] * most:
        return
    one = f"such as {names[wrong[0]]!r} (x = {x[wrong[0]]:.4g}): "
    said = f"{name}: {len(wrong)} of {most} regions of a hemisphere lie in the other one, {one}"
    if len(wrong) >= max(WRONG[2] * most, 3) and 2 * most >= len(x):
        x *= -1
        notes.append(f"{said}x is from right to left (LPS), and its sign is turned")
        return
    if len(wrong) > WRONG[1] * most and most >= SURE:
        remedy = "give each region its own place, or say in a column hemisphere where a name means no side"
        raise ValueError(f"{said}the rows seem to be in another order: {remedy}")
    notes.append(f"{said}are the rows in another order?")


def _coordinates_table(source: Any, name: str) -> tuple[list[str], list[list[str]]]:
    """Titles and columns of text; an index is the first column."""
    if isinstance(source, str | Path) and (atlas := atlas_named(source)):
        source = atlas_centroids(atlas)
    elif isinstance(source, str | Path):
        path = path_of(source)
        if is_text(path):
            sheet = sheet_of(path)
            titles, rows = sheet.titles, [fields for _, fields in sheet.whole()]
            if path.suffix.lower() == ".node":
                titles, rows = list(NODE[: len(titles)]), [titles, *rows]
            return titles, [list(column) for column in zip(*rows, strict=True)]
        if path.suffix.lower() != ".parquet":
            raise ValueError(f"{name}: the name must end in {TABLES}")
        source = read_parquet(path)
    if not isinstance(source, pd.DataFrame):
        raise ValueError(f"coordinates must be a file or a DataFrame, got {type(source).__name__}")
    columns = [[text_of(value) for value in source.iloc[:, i]] for i in range(source.shape[1])]
    titles = [text_of(title) for title in source.columns]
    if not counts_only(source.index):
        titles.insert(0, text_of(source.index.name))
        columns.insert(0, [text_of(value) for value in source.index])
    return titles, columns


def _coordinate_names(
    columns: list[list[str]], titles: list[str], places: list[int], name: str, known: set[str]
) -> list[str]:
    candidates = name_columns(titles)
    counted = columns[0] == [str(i) for i in range(len(columns[0]))]
    if not titles[0] and not counted:  # an index without a title
        candidates.insert(0, 0)
    if not candidates and 0 not in places:
        candidates = [0]
    if not candidates:
        raise ValueError(f"{name}: must have a column of names of the regions, called {', '.join(TITLES)}")
    spelled = [ids_of(columns[number]) for number in candidates]
    whole = [names for names in spelled if len(set(names)) == len(names) and "" not in names]
    return max(whole or spelled[:1], key=lambda names: sum(one in known for one in names))


def _hemispheres(
    given: list[str] | None, names: list[str], values: Float[np.ndarray, "regions 3"], name: str, notes: list[str]
) -> list[str]:
    """Of a column, else of names, else of the sign of x, which may be turned."""
    told = [hemisphere_of_name(region) for region in names]
    if given is not None:
        for region, text in zip(names, given, strict=True):
            if text.lower() not in HEMISPHERES:
                raise ValueError(f"{name}: region {region!r}: hemisphere is {short(text)}, it must be L, R or empty")
        told = [HEMISPHERES[text.lower()] for text in given]
    elif silent := [region for region, one in zip(names, told, strict=True) if not one]:
        notes.append(
            f"{name}: the hemisphere of {len(silent):,} of {len(names):,} regions, such as {silent[0]!r}, is that of "
            "the sign of x"
        )
    _check_sides(told, values, names, name, notes)
    if given is not None:
        return told
    signs = np.where(values[:, 0] < 0, "L", np.where(values[:, 0] > 0, "R", "")).tolist()
    return [one or sign for one, sign in zip(told, signs, strict=True)]


def hemisphere_of_name(name: str) -> str:
    """The hemisphere that a region's name tells: "L", "R", or "" if it tells none.

    Example:
        >>> [hemisphere_of_name(n) for n in ("7Networks_LH_Vis_1", "ctx-rh-cuneus", "V1_L", "Left Thalamus", "Laccumb")]
        ['L', 'R', 'L', 'L', '']
    """
    parts = re.split(r"[^A-Za-z0-9]+", name)
    for number, part in enumerate(parts):
        # A letter alone says it at either end only: in between it may be a part of something else.
        if part.lower() in ("lh", "rh", "left", "right") or (part in ("L", "R") and number in (0, len(parts) - 1)):
            return HEMISPHERES[part.lower()] if len(parts) > 1 else ""
    return ""


def network_of_name(name: str) -> str:
    """The network that a name of Schaefer's atlas tells, else "".

    Example:
        >>> [network_of_name(name) for name in ("7Networks_LH_Vis_1", "17Networks_RH_DefaultA_PFCm_2", "L_insula")]
        ['Vis', 'DefaultA', '']
    """
    match = SCHAEFER.fullmatch(name)
    return match[1] if match else ""


# ---------------------------------------------------------------------- atlases by name


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


# ---------------------------------------------------------------------- cortex and subcortex, left and right


def structure_of_name(name: str) -> str:
    """Subcortex, which is all below the cortex, if atlases call a structure of it so; else cortex.

    Example:
        >>> [structure_of_name(n) for n in ("Lhippo", "L_parahippocampal", "pGP-rh", "L_PGp_ROI")]
        ['subcortex', 'cortex', 'subcortex', 'cortex']
    """
    words = [word for word in re.findall("[A-Za-z0-9]+", name) if not word.isdigit() and word.lower() not in SIDES]
    lower = [word.lower() for word in words]
    if "ctx" in lower or any(word.endswith("networks") for word in lower):  # ctx-lh-cuneus, 7Networks_LH_Vis_1
        return CORTEX
    if "cortex" in lower and not any(word.startswith("cerebel") for word in lower):
        return CORTEX
    for one in (words, [GLUED.sub("", word) for word in words]):
        whole = " ".join(one)
        if (
            any(WORDS.fullmatch(word.lower()) for word in one)
            or SHORT.fullmatch(whole.lower())
            or CASED.fullmatch(whole)
        ):
            return SUBCORTEX
    return CORTEX


def structure_of_text(text: str) -> str:
    """The structure that an entry of a column tells, "" if it tells none. Short names may be those of networks.

    Example:
        >>> [structure_of_text(t) for t in ("Cortex", "subcortex/brainstem", "Cerebellar cortex", "frontal", "SN")]
        ['cortex', 'subcortex', 'subcortex', '', '']
    """
    lower = text.lower()
    if re.search("sub[ _-]?cort|cerebel", lower) or any(map(WORDS.fullmatch, re.findall("[a-z0-9]+", lower))):
        return SUBCORTEX
    return CORTEX if re.search("cort(ex|ical)|ctx", lower) else ""


def groups_of(regions: Regions) -> list[str]:
    """The structure of each region.

    What the files say comes first: of the structure, then with the network. Where they do not, the name tells.
    """
    number = len(regions)
    files = zip(regions.structure or [""] * number, regions.network or [""] * number, regions.names, strict=True)
    return [structure or structure_of_text(network) or structure_of_name(name) for structure, network, name in files]
