"""Fitted models on disk: config.json, model.safetensors, metrics.json. Reading one can run no code.

The configuration is stored a second time inside the weights file, so that a change to config.json after saving (which
could load cleanly and predict differently, as another number of heads would) is found and named; and it has a digest
of the weights, so that a change to these is found too.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from omniset.core.bounded import read_small
from omniset.core.checks import short
from omniset.options import without_folder
from omniset.runs import finite
from omniset.runs.files import provenance, replacing, writable_folder, write_json
from omniset.runs.locks import locked
from omniset.training import schema

FORMAT, FORMAT_VERSION = "omniset-model", 13
KEY = "omniset_config"

Network = TypeVar("Network", bound=nn.Module)


def save(
    folder: str | Path,
    kind: str,
    arguments: dict[str, Any],
    fitted: dict[str, Any],
    tables: Mapping[str, pd.DataFrame],
    network: nn.Module,
    metrics: dict[str, Any],
    device: str,
) -> None:
    """Write an artefact.

    Args:
        arguments: What it was made with, without places of this machine.
        fitted: What else is needed to predict: classes, feature names, sizes.
        tables: Each is a file NAME.parquet.
        device: On which it was trained.

    Raises:
        OSError: The folder cannot be written to.
        ValueError: A weight is not finite; another run works in the folder.
    """
    folder = writable_folder(folder)
    weights = {name: tensor.contiguous() for name, tensor in _tensors(network).items()}
    finite.require_finite(weights, "the model cannot be saved")
    config: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "class": kind,
        "arguments": arguments,
        "fitted": fitted,
        "tables": {},
        "weights": digest(weights),
        "versions": provenance(arguments.get("seed"), device),
    }
    with locked(folder):
        for name, frame in tables.items():
            with replacing(folder / f"{name}.parquet") as path:
                pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
            config["tables"][name] = _digest_of_file(folder / f"{name}.parquet")
        with replacing(folder / "model.safetensors") as path:
            try:
                safetensors.torch.save_file(weights, path, metadata={KEY: json.dumps(config)})
            except safetensors.SafetensorError as error:
                raise OSError(errno.EIO, _line(error), str(folder / "model.safetensors")) from error
        write_json(folder / "metrics.json", metrics)
        write_json(folder / "config.json", config)  # last: an artefact that can be read is whole


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of an artefact of any class. Raises: as `load_config`."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(read_small(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {_line(error)}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not of format {FORMAT!r}")
    if config.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format_version {config.get('format_version')!r}, this Omniset reads {FORMAT_VERSION}: make "
            "the model anew with fit, or use the Omniset that wrote it"
        )
    differences = list(_differences(_saved_config(Path(folder)), config, ""))
    if differences:
        raise ValueError(f"{path} was changed after the model was saved: {'; '.join(differences[:5])}")
    schema.check(config, schema.CONFIG, path)
    return config


def files_of(folder: Path) -> list[str]:
    """The names of the files that an artefact consists of, all of them checked. Raises: as `load_config`."""
    config = read_config(folder)
    Weights(folder, config)
    for name in config["tables"]:
        load_table(folder, config, name)
    names = ["config.json", "model.safetensors", *(f"{name}.parquet" for name in config["tables"])]
    names += ["metrics.json"] if (folder / "metrics.json").is_file() else []
    within = folder / "embedder"  # the model of the vectors of an annotator
    return names + ([f"embedder/{name}" for name in files_of(within)] if (within / "config.json").is_file() else [])


def load_config(folder: str | Path, estimator: type) -> dict[str, Any]:
    """The configuration of an artefact, checked.

    Args:
        estimator: The class that is loaded. Its options say what its arguments are, its FITTED what `fitted` is: a
            JSON schema for each key.

    Raises:
        FileNotFoundError: No artefact there.
        ValueError: Of another format, version or class, changed, or against the schema.
    """
    config, path = read_config(folder), Path(folder) / "config.json"
    if config["class"] != estimator.__name__:
        raise ValueError(f"{folder} holds a {config['class']}, not a {estimator.__name__}")
    config["arguments"] = without_folder(config["arguments"])
    schema.check(config["arguments"], schema.of_options(estimator), path, "arguments")
    schema.check(config["fitted"], schema.whole(estimator.FITTED), path, "fitted")  # type: ignore[attr-defined]
    return config


@contextmanager
def reading(folder: str | Path, estimator: type) -> Iterator[None]:
    """Around what makes an estimator of an artefact: any error is one that names the artefact."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if str(folder) in str(error):
            raise
        path = Path(folder) / "config.json"
        raise ValueError(f"{path} does not describe a {estimator.__name__}: {_line(error)}") from error


def load_metrics(folder: str | Path) -> dict[str, Any]:
    """What metrics.json holds; nothing, where there is none that can be read: a model predicts without it."""
    try:
        metrics = json.loads(read_small(Path(folder) / "metrics.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return metrics if isinstance(metrics, dict) else {}


def load_table(folder: str | Path, config: Mapping[str, Any], name: str, text: Sequence[str] = ()) -> pd.DataFrame:
    """A table of an artefact, name.parquet.

    Args:
        text: Columns that it must have, of text, without gaps.

    Raises:
        FileNotFoundError, ValueError: It is not there, not the one that was saved, damaged, or lacks such a column.
    """
    path = Path(folder) / f"{name}.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no whole artefact: it has no {path.name}")
    if _digest_of_file(path) != config["tables"].get(name):
        raise ValueError(f"{path} is not the table that the model was saved with: it was changed, or damaged")
    try:
        table = pq.read_table(path)
        for column in text:
            if column not in table.column_names:
                raise ValueError(f"{path} has no column {column!r}")
            kind, gaps = table[column].type, table[column].null_count
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)) or gaps:
                raise ValueError(f"{path}: column {column!r} must be text without gaps, it is {kind} with {gaps} gaps")
        return table.replace_schema_metadata(None).to_pandas()  # what pandas has noted there may be anything
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged: {_line(error)}") from error


class Weights:
    """The tensors of an artefact, for networks that are built to hold them.

    A network is drawn up without memory first and compared with what the file has: numbers in a configuration that
    ask for more than that cost nothing.

    Raises:
        ValueError: The file is damaged, or not what config.json says.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any]) -> None:
        self.path = Path(folder) / "model.safetensors"
        try:
            self._tensors: dict[str, Tensor] = safetensors.torch.load_file(self.path)
        except safetensors.SafetensorError as error:
            raise ValueError(f"{self.path} is damaged: {error}") from error
        if digest(self._tensors) != config["weights"]:
            raise ValueError(f"{self.path} has not the weights that were saved: they were changed, or damaged")
        finite.require_finite(self._tensors, str(self.path))
        self._unread = set(self._tensors)
        self.numbers = sum(tensor.numel() for tensor in self._tensors.values())

    def build(self, make: Callable[[], Network], prefix: str = "") -> Network:
        """The network with its weights.

        Args:
            make: Builds it. It is called twice.

        Raises:
            ValueError: Tensors that are missing, unknown or of another shape or type, by name.
        """
        stored = {name.removeprefix(prefix): t for name, t in self._tensors.items() if name.startswith(prefix)}
        try:
            with torch.device("meta"), _at_most(len(stored)):
                expected = _tensors(make())
        except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path.parent / 'config.json'} describes no network: {_line(error)}") from error
        problems = [f"{prefix}{name} is missing" for name in expected if name not in stored]
        problems += [f"{prefix}{name} is unknown" for name in stored if name not in expected]
        for name, tensor in expected.items():
            for what in ("shape", "dtype"):
                if name in stored and (here := getattr(stored[name], what)) != (needed := getattr(tensor, what)):
                    problems.append(f"{prefix}{name} has {what} {_plain(here)}, expected {_plain(needed)}")
        if problems:
            raise ValueError(f"{self.path} does not fit its config.json: {'; '.join(problems[:5])}")
        network = make()
        network.load_state_dict(stored, strict=False)  # the other names of a shared tensor are not in the file
        self._unread -= {prefix + name for name in stored}
        return network.eval()

    def require_read(self) -> None:
        """Raise the ValueError of tensors that no network has asked for."""
        if self._unread:
            raise ValueError(f"{self.path} does not fit its config.json: {sorted(self._unread)[0]} is unknown")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, in hexadecimal digits, of tensors in the order of their names: name, type, shape and bytes of each."""
    checksum = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        checksum.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        checksum.update(tensor.flatten().view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _at_most(stored: int) -> Iterator[None]:
    """Raise a ValueError where modules come to have far more tensors than are stored: such as by a depth of 10^9."""
    count = 0

    def one_more(module: nn.Module, name: str, tensor: Any) -> None:
        nonlocal count
        count += 1
        if count > 4 * stored + 100:  # some are replaced, some are not stored
            raise ValueError(f"it asks for more tensors than the {stored} that are stored")

    hooks = [
        torch.nn.modules.module.register_module_parameter_registration_hook(one_more),
        torch.nn.modules.module.register_module_buffer_registration_hook(one_more),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """The network's tensors, each once: parts may share a module, of which the first name is kept."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            tensors[name] = tensor.detach()
        seen.add(id(tensor))
    return tensors


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")


def _saved_config(folder: Path) -> Any:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no artefact: it has no model.safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})[KEY])
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or not an Omniset model: {_line(error)}") from error


def _differences(saved: Any, now: Any, where: str) -> Any:
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in sorted({*saved, *now}):
            yield from _differences(saved.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif saved != now:
        yield f"{where} was {short(saved)}, is {short(now)}"
