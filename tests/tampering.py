"""What every artefact must refuse: changes to it in both copies of its configuration, or to its weights."""

import json

import pytest
import safetensors
import safetensors.torch
import torch


def contents(folder):
    """The configuration and the tensors."""
    config = json.loads((folder / "config.json").read_text())
    return config, safetensors.torch.load_file(folder / "model.safetensors")


def put(folder, config, tensors):
    """Write them consistently: both copies of the configuration the same."""
    text = config if isinstance(config, str) else json.dumps(config)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"omniset_config": text})
    (folder / "config.json").write_text(text)


def refused(load, folder, said=None):
    """The one line that `load` refuses the folder with."""
    with pytest.raises((ValueError, FileNotFoundError), match=said) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 700
    assert folder.name in message
    return message


def assert_refuses_tampering(load, folder):
    """No change loads, allocates beyond the weights or ends in anything else than one line.

    Args:
        load: Of the estimator's class.
        folder: An artefact, which is left as it was.
    """
    config, tensors = contents(folder)
    load(folder)
    try:
        for change in (flipped, of_another_type, swapped, infinite):
            put(folder, config, change(dict(tensors)))
            refused(load, folder, r"model.safetensors")
        for part in ("class", "arguments", "fitted", "tables", "weights"):
            put(folder, {k: v for k, v in config.items() if k != part}, tensors)
            refused(load, folder, part)
            put(folder, config | {part: None}, tensors)
            refused(load, folder, part)
        for part in ("arguments", "fitted"):
            for name, value in config[part].items():
                put(folder, config | {part: {k: v for k, v in config[part].items() if k != name}}, tensors)
                refused(load, folder, name)
                for other in [] if name == "store" else strange(value):
                    put(folder, config | {part: config[part] | {name: other}}, tensors)
                    refused(load, folder)
        for name in ("dim", "depth", "num_inducing", "num_heads", "width", "embedding_dim"):
            for large in (10**5, 10**9, 10**30):
                if name in config["arguments"] and config["arguments"][name] is not None:
                    put(folder, config | {"arguments": config["arguments"] | {name: large}}, tensors)
                    try:
                        load(folder)  # what has no part in the architecture at hand
                    except ValueError as error:
                        assert "\n" not in str(error)  # noqa: PT017
        for name, value in config["fitted"].items():
            if isinstance(value, int) and not isinstance(value, bool):
                put(folder, config | {"fitted": config["fitted"] | {name: 10**9}}, tensors)
                if name != "seconds" and name not in ("length", "longest"):
                    refused(load, folder)
        deep = json.dumps(config).replace('"fitted"', '"deep": ' + "[" * 200_000 + "]" * 200_000 + ', "fitted"', 1)
        put(folder, deep, tensors)
        refused(load, folder, "config.json is not valid JSON")
    finally:
        put(folder, config, tensors)
    load(folder)


def strange(value):
    """Values of other types than this one, and no number that may stand in its place."""
    found = [{"a": [None]}] if not isinstance(value, dict) else ["text"]
    found += [[[None]]] if not isinstance(value, list) else [0.5]
    if isinstance(value, (str, int, float)):
        found += [3] if isinstance(value, str) else ["many"]
    return found


def flipped(tensors):
    """The lowest bit of a weight, as a disk or a network may flip it."""
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name] = tensors[name].clone()
    tensors[name].view(torch.uint8).flatten()[0] ^= 1
    return tensors


def of_another_type(tensors):
    other = {torch.float32: torch.float64, torch.float64: torch.float32}
    return {name: t.to(other.get(t.dtype, t.dtype)) for name, t in tensors.items()}


def swapped(tensors):
    """Two of one shape, or two rows, one in the place of the other."""
    by_shape = {}
    for name, tensor in tensors.items():
        by_shape.setdefault((tensor.shape, tensor.dtype), []).append(name)
    for names in by_shape.values():
        for other in names[1:]:
            if not torch.equal(tensors[names[0]], tensors[other]):
                tensors[names[0]], tensors[other] = tensors[other], tensors[names[0]]
                return tensors
    name = max(tensors, key=lambda name: tensors[name].numel())  # no two are alike: two rows of one
    assert not torch.equal(tensors[name], tensors[name].flip(0))
    tensors[name] = tensors[name].flip(0)
    return tensors


def infinite(tensors):
    name = next(n for n, t in tensors.items() if t.is_floating_point() and t.numel())
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = float("nan")
    return tensors
