"""Fitted models on disk: config.json, model.safetensors, metrics.json. Reading one can run no code.

The configuration is stored a second time inside the weights file, so that a change to config.json after saving (which
could load cleanly and predict differently, as another number of heads would) is found and named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
from torch import Tensor, nn

from omniset.files import provenance, replacing, writable_folder, write_json

FORMAT, FORMAT_VERSION = "omniset-model", 1
KEY = "omniset_config"


def save(
    folder: str | Path,
    kind: str,
    arguments: dict[str, Any],
    fitted: dict[str, Any],
    network: nn.Module,
    metrics: dict[str, Any],
    device: str,
) -> None:
    """Write an artefact.

    Args:
        kind: The estimator's class.
        arguments: What it was made with.
        fitted: What else is needed to predict: classes, feature names, sizes.
        device: On which it was trained.

    Raises:
        OSError: The folder cannot be written to.
    """
    folder = writable_folder(folder)
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "class": kind,
        "arguments": arguments,
        "fitted": fitted,
        "versions": provenance(arguments.get("seed"), device),
    }
    with replacing(folder / "model.safetensors") as path:
        weights = {name: tensor.contiguous() for name, tensor in _tensors(network).items()}
        safetensors.torch.save_file(weights, path, metadata={KEY: json.dumps(config)})
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "config.json", config)  # last: an artefact that can be read is whole


def load_config(folder: str | Path, kind: str) -> dict[str, Any]:
    """The configuration of an artefact, checked.

    Raises:
        FileNotFoundError: No artefact there.
        ValueError: Of another format, version or class, or changed.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no folder of a model, such as fit writes: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not of format {FORMAT!r}")
    if config.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format_version {config.get('format_version')!r}, this Omniset reads {FORMAT_VERSION}"
        )
    differences = list(_differences(_saved_config(Path(folder)), config, ""))
    if differences:
        raise ValueError(f"{path} was changed after the model was saved: {'; '.join(differences)}")
    if config["class"] != kind:
        raise ValueError(f"{folder} holds a {config['class']}, not a {kind}")
    return config


def load_metrics(folder: str | Path) -> dict[str, Any]:
    """What metrics.json holds; nothing, where there is none that can be read: a model predicts without it."""
    try:
        found = json.loads((Path(folder) / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load_table(folder: str | Path, name: str) -> pd.DataFrame:
    """A table of an artefact, name.parquet.

    Raises:
        FileNotFoundError, ValueError: It is not there, or damaged.
    """
    path = Path(folder) / f"{name}.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no whole artefact: it has no {path.name}")
    try:
        return pq.read_table(path).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from error


def save_table(folder: str | Path, name: str, frame: pd.DataFrame) -> None:
    """Write a table of an artefact."""
    with replacing(Path(folder) / f"{name}.parquet") as path:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)


def load_weights(folder: str | Path, network: nn.Module) -> None:
    """Read the weights into the network.

    Raises:
        ValueError: Tensors that are missing, unknown or of another shape, by name.
    """
    path = Path(folder) / "model.safetensors"
    weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    expected = _tensors(network)
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{name} is unknown" for name in weights if name not in expected]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(t.shape)}"
        for name, t in expected.items()
        if name in weights and weights[name].shape != t.shape
    ]
    if problems:
        raise ValueError(f"{path} does not fit its config.json: {'; '.join(problems[:5])}")
    network.load_state_dict(weights, strict=False)  # the other names of a shared tensor are not in the file


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """The network's tensors, each once: parts may share a module, of which the first name is kept."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict().items():
        if not tensor.numel() or tensor.data_ptr() not in seen:
            found[name] = tensor
        seen.add(tensor.data_ptr())
    return found


def _saved_config(folder: Path) -> Any:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no artefact: it has no model.safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})[KEY])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not an Omniset model: {error}") from error


def _differences(saved: Any, now: Any, where: str) -> Any:
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in sorted({*saved, *now}):
            yield from _differences(saved.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif saved != now:
        yield f"{where} was {saved!r}, is {now!r}"
