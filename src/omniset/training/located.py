"""Where a model is: in a folder, in a zip of `omniset publish`, in a folder of models, or on the Hugging Face hub."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from omniset.core.bounded import require_room
from omniset.core.checks import short
from omniset.lazy import needs
from omniset.runs.console import line_of, say

MODELS = Path(__file__).with_name("models")  # that the package brings
FILE = re.compile(r"(embedder/)?([a-z]\w*\.(json|parquet|safetensors)|README\.md)")  # of a model
MOST = 32  # files
ON_HUB = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?")


def located(model: str | Path) -> Path:
    """The folder of a model.

    Args:
        model: A folder, or a zip of one. If there is none of that name: a name in the folder OMNISET_MODELS of the
            environment, or of a model that the package brings, such as "digits"; or "org/name" or "org/name@revision"
            of the hub. Only for these two the network is asked, and that is said.

    Raises:
        FileNotFoundError: There is none, or no model in it.
        ImportError: huggingface_hub is not installed.
        ValueError: A file that is no zip of a model; the hub gives none.
    """
    path, name = Path(model).expanduser(), str(model)
    folders = [folder for folder in (os.environ.get("OMNISET_MODELS"), MODELS) if folder and path.name == name]
    named = [Path(folder, name + ending) for folder in folders for ending in ("", ".zip")]
    place = next((each for each in (path, *named) if each.exists()), path)
    if place.is_file():
        place = _unpacked(place.resolve(), place.stat().st_mtime_ns)
    elif not place.exists() and (match := ON_HUB.fullmatch(name)):
        place = _downloaded(match[1], match[2])
    if not place.exists():
        here = ", ".join(sorted(each.name for each in MODELS.iterdir()))
        raise FileNotFoundError(f"{model} is no folder of a model: nothing of that name is there. Shipped are: {here}")
    if not (place / "config.json").is_file():
        raise FileNotFoundError(f"{model} is no folder of a model, such as fit writes: it has no config.json")
    return place


@functools.cache
def _unpacked(path: Path, changed: int) -> Path:
    """The files of a zip in a folder that is there until the program ends. No other names, and bounded sizes."""
    folder = Path(tempfile.mkdtemp(prefix="omniset-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as packed:
            members = packed.infolist()
            odd = [each.filename for n, each in enumerate(members) if n >= MOST or not FILE.fullmatch(each.filename)]
            if odd:
                raise ValueError(f"{path} holds {short(odd[0])}, which no model has: unpack it, and give the folder")
            require_room(sum(each.file_size for each in members), path, "unpack it, and give the folder")
            packed.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is neither the folder of a model nor a zip of one: {line_of(error)}") from error
    return folder


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        asked = f"model={name} is not here, and to ask the Hugging Face hub for it"
        raise ImportError(needs(asked, error.name)) from error
    say(f"model={name} is not here: the Hugging Face hub is asked for it")
    wanted = [f"{folder}{names}" for folder in ("", "embedder/") for names in ("*.json", "*.parquet", "*.safetensors")]
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
    except Exception as error:  # of the network, in any of its libraries
        raise ValueError(f"model={name} is not here, and the Hugging Face hub gives none: {line_of(error)}") from error
