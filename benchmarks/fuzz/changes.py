"""Changes that people, programs, disks and attackers make to files; every choice is the generator's.

Each change rewrites a file and says in a few words what it did. Changes of a file's structure need it to be whole:
where an earlier change has damaged it, its bytes are changed instead.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
from numpy.random import Generator

from benchmarks.fuzz.seeds import MAT_HEADER, zipped

CELLS = [
    *(
        "",
        " ",
        "nan",
        "NaN",
        "NA",
        "#N/A",
        "None",
        "null",
        "True",
        "inf",
        "-inf",
        "Infinity",
        "-1",
        "-0",
        "-0.5",
        "0.5",
    ),
    *(
        "1e400",
        "-1e400",
        "1e-400",
        "1e39",
        "1e9999999999",
        "1e",
        "1e5",
        "1_000",
        "0x10",
        "0b1",
        "1,5",
        "1.2.3",
        "+1",
        "½",
    ),
    *(
        "9" * 400,
        "99999999999999999999",
        "2147483647",
        "2147483648",
        "4294967296",
        "9223372036854775808",
        "١٢",
        "²",
        "1 2",
    ),
    *(
        '"',
        '""',
        '"open',
        'a"b',
        "'",
        "\t",
        ",",
        ";",
        "|",
        "!!!",
        "\0",
        "\x01",
        "\x0b",
        "\x0c",
        "\x1b[31m",
        "\x7f",
        "\x85",
    ),
    *(
        "\ufffe",
        "\uffff",
        "\ufeff",
        "\u2028",
        "\u202e",
        "\xa0",
        "e\u0301",
        "\U0001f600",
        "=1+1",
        "@",
        "#",
        "##",
        ">",
        "%s",
    ),
    *(
        "{}",
        "$(x)",
        "\\",
        "\\N",
        "..",
        "../x",
        "/",
        "a" * 100_000,
        "K00001",
        "COG0001",
        "PF00001",
        "set",
        "genome",
        "id",
    ),
    *("d__A;p__B", "d__A;d__B", "s__x", "t__x", "D_99__x", ";;;;;;;;;", "__", "gs__"),
]
JSON_VALUES = [
    *(
        "null",
        "true",
        "0",
        "-1",
        "1",
        "0.5",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        '""',
        '"x"',
        '"\\ud800"',
        "[]",
        "{}",
    ),
    *("[[[]]]", "[1, null]", '{"a": null}', "2147483648", "9223372036854775808", "1" + "0" * 5000, "1" + "0" * 30),
    *('"' + "a" * 100_000 + '"', "[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000),
    *("[" + "0," * 100_000 + "0]", "100000000", "-9223372036854775809"),
]
LINE_ENDS = [b"\r\n", b"\r", b"\n\r", b"\n\n", b"\n \n", b"\x0b", b"\x0c", "\u2028".encode(), b"\x85", b"", b"\r\r\n"]
SEPARATORS = [b"\t", b",", b";", b"|", b" ", b"  ", b", ", b"\0"]
ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "utf-8-sig"]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
MOST = 8 << 20  # bytes that a file may grow to


def pick(rng: Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def short(text: Any) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 40 else shown[:37] + "..."


def _span(size: int, rng: Generator, most: int = 64) -> tuple[int, int]:
    start = int(rng.integers(size + 1))
    return start, min(size, start + int(rng.integers(1, most)))


# ---------------------------------------------------------------------- bytes


def change_bytes(data: bytes, rng: Generator, other: bytes) -> tuple[bytes, str]:
    """Any file.

    Args:
        other: Another file's bytes.
    """
    size = len(data)
    a, b = _span(size, rng)
    match int(rng.integers(10)):
        case 0 | 1:
            bits = bytearray(data)
            near = size if rng.random() < 0.5 else min(size, 600)  # headers say most
            places = [int(rng.integers(near)) for _ in range(int(rng.integers(1, 9)))] if size else []
            for at in places:
                bits[at] ^= 1 << int(rng.integers(8))
            return bytes(bits), f"bits flipped at {places}"
        case 2:
            return data[:a], f"cut off at byte {a}"
        case 3:
            return data[:a] + data[b:], f"bytes {a} to {b} taken out"
        case 4:
            new = rng.bytes(b - a or 1)
            return data[:a] + new + data[a:], f"{len(new)} random bytes put in at {a}"
        case 5:
            return data[:a] + rng.bytes(b - a) + data[b:], f"bytes {a} to {b} replaced by random ones"
        case 6:
            times = int(pick(rng, [2, 3, 50, 5000]))
            return data[:a] + data[a:b] * times + data[b:], f"bytes {a} to {b} {times} times"
        case 7:
            c, d = sorted(int(i) for i in rng.integers(0, len(other) + 1, 2))
            return data[:a] + other[c:d] + data[b:], f"bytes {a} to {b} replaced by {d - c} of another file"
        case 8:
            value = pick(rng, [b"\0", b"\xff", b"\x80", b"\x7f"])
            return data[:a] + value * (b - a) + data[b:], f"bytes {a} to {b} are {value!r}"
        case _:
            c = int(rng.integers(len(other) + 1))
            return data[:a] + other[c:], f"from byte {a} on another file, from its byte {c}"


# ---------------------------------------------------------------------- text


def change_lines(data: bytes, rng: Generator, other: bytes) -> tuple[bytes, str]:
    lines = data.split(b"\n")
    i, j = (int(n) for n in rng.integers(len(lines), size=2))
    match int(rng.integers(12)):
        case 0:
            del lines[i]
            said = f"line {i + 1} dropped"
        case 1:
            times = int(pick(rng, [2, 3, 300]))
            lines[i : i + 1] = [lines[i]] * times
            said = f"line {i + 1} {times} times"
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
            said = f"lines {i + 1} and {j + 1} swapped"
        case 3:
            lines = [lines[0], *(lines[1 + int(n)] for n in rng.permutation(len(lines) - 1))]
            said = "lines below the first in another order"
        case 4:
            lines = lines[1:]
            said = "first line dropped"
        case 5:
            lines = lines[:1]
            said = "first line only"
        case 6:
            lines.insert(i, pick(rng, [b"", b" ", b"\t", b",", b"#", b"# comment", b"##", b"#q2:types", b">", b"@"]))
            said = f"line {i + 1} put in: {lines[i]!r}"
        case 7:
            lines[i] = lines[i][: int(rng.integers(len(lines[i]) + 1))]
            said = f"line {i + 1} cut off"
        case 8:
            lines[i : i + 2] = [b" ".join(lines[i : i + 2])]
            said = f"line {i + 1} joined with the next"
        case 9:
            foreign = other.split(b"\n")
            lines.insert(i, pick(rng, foreign)[:MOST])
            said = f"line {i + 1} is from another file"
        case 10:
            lines = lines[::-1]
            said = "lines in reverse"
        case _:
            lines += lines[1:]
            said = "all lines below the first once more"
    return b"\n".join(lines), said


def change_cells(data: bytes, rng: Generator, other: bytes) -> tuple[bytes, str]:
    """Of a table of text: a cell, a column or the names in its header."""
    lines = data.split(b"\n")
    separator = max((b"\t", b",", b";", b" "), key=lambda s: sum(line.count(s) for line in lines[:20]))
    i = int(rng.integers(len(lines)))
    if rng.random() < 0.15:
        i = 0
    fields = lines[i].split(separator)
    k = int(rng.integers(len(fields)))
    nasty = pick(rng, CELLS).encode()
    where = f"field {k + 1} of line {i + 1}"
    match int(rng.integers(10)):
        case 0 | 1 | 2 | 3:
            fields[k] = nasty
            said = f"{where} is {short(nasty)}"
        case 4:
            fields[k] = fields[k] + nasty
            said = f"{where} has {short(nasty)} behind it"
        case 5:
            fields.insert(k, nasty)
            said = f"{where} put in: {short(nasty)}"
        case 6:
            del fields[k]
            said = f"{where} dropped"
        case 7:
            j = int(rng.integers(len(fields)))
            fields[j] = fields[k]
            said = f"field {j + 1} of line {i + 1} as field {k + 1}"
        case 8:
            others = pick(rng, lines).split(separator)
            fields[k] = pick(rng, others)
            said = f"{where} is that of another place, {short(fields[k])}"
        case _:
            for number, line in enumerate(lines[1:], 1):
                of_line = line.split(separator)
                if len(of_line) > k:
                    of_line[k] = nasty
                    lines[number] = separator.join(of_line)
            fields = lines[i].split(separator)
            said = f"field {k + 1} of all lines below the first is {short(nasty)}"
    lines[i] = separator.join(fields)
    return b"\n".join(lines), said


def change_writing(data: bytes, rng: Generator, other: bytes) -> tuple[bytes, str]:
    """Of text: its encoding, line ends and separators."""
    match int(rng.integers(6)):
        case 0:
            name = pick(rng, ENCODINGS)
            return data.decode("utf-8", "replace").encode(name), f"encoded as {name}"
        case 1:
            at = int(rng.integers(len(data) + 1))
            return data[:at] + "é".encode("latin-1") + data[at:], f"é in Latin-1 at byte {at}"
        case 2:
            return b"\xef\xbb\xbf" * int(rng.integers(1, 3)) + data, "byte order mark"
        case 3 | 4:
            end = pick(rng, LINE_ENDS)
            which = rng.random(data.count(b"\n") + 1) < pick(rng, [0.2, 1.0])
            parts = data.split(b"\n")
            ends = [end if changed else b"\n" for changed in which[: len(parts) - 1].tolist()]
            joined = b"".join(p + e for p, e in zip(parts, [*ends, b""], strict=True))
            return joined, f"line ends {end!r} in place of {which.sum()}"
        case _:
            old, new = pick(rng, SEPARATORS[:4]), pick(rng, SEPARATORS)
            return data.replace(old, new), f"{new!r} in place of {old!r}"


def change_text(data: bytes, rng: Generator, other: bytes) -> tuple[bytes, str]:
    chosen = float(rng.random())
    for share, change in ((0.5, change_cells), (0.7, change_lines), (0.85, change_writing), (1, change_bytes)):
        if chosen < share:
            return change(data, rng, other)
    raise AssertionError


# ---------------------------------------------------------------------- JSON


def change_json(text: str, rng: Generator) -> tuple[str, str]:
    """A value anywhere in it."""
    value = json.loads(text)
    places = list(_places(value, []))
    path = pick(rng, places) if places else []
    if not path:
        return pick(rng, JSON_VALUES), "all of the JSON is another value"
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key, where = path[-1], ".".join(map(str, path))
    match int(rng.integers(8)):
        case 0:
            del parent[key]
            return json.dumps(value), f"{where} removed"
        case 1 if isinstance(parent, dict):
            parent[key + "x"] = parent.pop(key)
            return json.dumps(value), f"{where} renamed"
        case 2:
            parent[key] = [parent[key]]
            return json.dumps(value), f"{where} in a list"
        case 3:
            parent[key] = str(parent[key])
            return json.dumps(value), f"{where} as text"
        case 4 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = pick(rng, [-parent[key], parent[key] + 1, parent[key] * 1000, parent[key] / 7, 0])
            return json.dumps(value), f"{where} is {parent[key]}"
    new = pick(rng, JSON_VALUES)
    parent[key] = "@changed@"
    return json.dumps(value).replace('"@changed@"', new), f"{where} is {short(new)}"


def _places(value: Any, path: list[Any]) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield [*path, key]
        yield from _places(part, [*path, key])


# ---------------------------------------------------------------------- arrays


def odd_array(values: Any, rng: Generator) -> tuple[np.ndarray, str]:
    """An array in the place of another: of other values, another type or another shape."""
    array = np.asarray(values)
    numeric = array.dtype.kind in "biuf"
    odd = pick(rng, [-1, 0, 0.5, 1e39, 1e300, np.nan, np.inf, -np.inf, 2**31 - 1, 2**31, 2**62, -(2**31)])
    kind = int(rng.integers(5))
    if kind < 2 and numeric and array.size:
        with np.errstate(all="ignore"):
            fits = np.array(odd).astype(array.dtype).astype(float) == odd
        held = array.copy() if fits else array.astype(np.float64)
        if kind == 0:
            held.reshape(-1)[int(rng.integers(held.size))] = odd
            return held, f"one value is {odd}"
        return np.full_like(held, odd), f"all values are {odd}"
    if kind < 4:
        match int(rng.integers(8)):
            case 0:
                return array[:-1] if array.ndim else array[None], "without its last row"
            case 1:
                return (np.concatenate([array, array[-1:]]) if array.ndim and len(array) else array), "one row more"
            case 2:
                return array.reshape(-1)[:0], "empty"
            case 3:
                return (array.reshape(-1)[0] if array.size else np.zeros(())), "a single value"
            case 4:
                return array[None], "one axis more"
            case 5:
                return array.reshape(-1, 1), "a column"
            case 6:
                return array[::-1].copy() if array.ndim else array, "in reverse"
            case _:
                return np.resize(array, (3, 5, 2)) if array.size else np.zeros((3, 5, 2)), "of shape 3 x 5 x 2"
    rows = array.shape or (1,)
    types: list[Any] = ["f2", "f8", "i1", "u8", "?", "c16", "S3", ">f8", ">i4"]
    chosen = int(rng.integers(len(types) + 2))
    if chosen < len(types) and numeric:
        with np.errstate(all="ignore"):
            return array.astype(types[chosen]), f"of type {types[chosen]}"
    if chosen == len(types):
        return np.zeros(rows, dtype=[("a", "i4"), ("b", "f8")]), "of records"
    return np.array([pick(rng, CELLS).replace("\0", "") for _ in range(int(np.prod(rows)))][:1000]), "of odd text"


# ---------------------------------------------------------------------- HDF5


def change_hdf5(path: Path, rng: Generator) -> str:
    with h5py.File(path, "r+") as root:
        names: list[str] = []
        root.visit(names.append)
        names.sort()
        name = pick(rng, names)
        parent, _, key = name.rpartition("/")
        group, item = root[parent or "/"], root[name]
        match int(rng.integers(12)):
            case 0:
                del group[key]
                return f"{name} removed"
            case 1:
                group.move(key, key + "x")
                return f"{name} renamed"
            case 2:
                other = pick(rng, names)
                target = pick(rng, [f"/{name}", "/nowhere", "/", f"/{parent}", f"/{other}"])
                del group[key]
                group[key] = h5py.SoftLink(target)
                return f"{name} is a soft link to {target}"
            case 3:
                del group[key]
                target = pick(rng, ["nowhere.h5", path.name])
                group[key] = h5py.ExternalLink(target, pick(rng, ["/", f"/{name}"]))
                return f"{name} is a link to a place in {target}"
            case 4:
                other = pick(rng, [n for n in names if not n.startswith(name)] or ["/"])
                target = root[other] if rng.random() < 0.7 else root["/"]
                del group[key]
                group[key] = target
                return f"{name} is also {target.name}"
            case 5:
                del group[key]
                if isinstance(item, h5py.Dataset):
                    group.create_group(key)
                    return f"{name} is a group"
                group[key] = np.arange(5)
                return f"{name} is an array"
            case 6:
                attributes = dict(item.attrs)
                del group[key]
                shape = pick(rng, [(1 << 33,), (1 << 40,), (1 << 20, 1 << 20), (0,), (0, 0)])
                new = group.create_dataset(
                    key, shape, "f8", chunks=tuple(min(n or 1, 1024) for n in shape), maxshape=shape
                )
                new.attrs.update(attributes)
                return f"{name} is of shape {shape}, and nothing is stored of it"
            case 7 | 8:
                return _change_attribute(item if len(item.attrs) else root, rng)
        datasets = [n for n in names if isinstance(root.get(n), h5py.Dataset)]
        name = pick(rng, datasets)
        parent, _, key = name.rpartition("/")
        group, item = root[parent or "/"], root[name]
        if item.size is not None and item.size > MOST:
            raise ValueError("the array is not there")
        if rng.random() < 0.05:
            value: Any = h5py.Empty("f8")
            said = "nothing"
        else:
            value, said = odd_array(item[()], rng)
        attributes = dict(item.attrs)
        del group[key]
        if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
            texts = [v if isinstance(v, str | bytes) else str(v) for v in value.reshape(-1).tolist()]
            texts = [v.replace("\0", "") if isinstance(v, str) else v for v in texts]
            value = np.array(texts, dtype=object).reshape(value.shape)
            group.create_dataset(key, data=value, dtype=h5py.string_dtype())
        else:
            group[key] = value
        group[key].attrs.update(attributes)
        return f"{name}: {said}"


def _change_attribute(item: Any, rng: Generator) -> str:
    keys = sorted(item.attrs)
    if not keys:
        item.attrs["encoding-type"] = "x"
        return f"{item.name} has an attribute"
    key = pick(rng, keys)
    if rng.random() < 0.25:
        del item.attrs[key]
        return f"attribute {key} of {item.name} removed"
    odd = [
        *(
            "x",
            "",
            "csr_matrix",
            "csc_matrix",
            "dataframe",
            "array",
            "dict",
            "null",
            "categorical",
            "0.0.1",
            "99",
            -1,
            0.5,
        ),
        *(np.nan, 2**62, np.array([-1, -1]), np.array([2**40, 2**40]), np.array([3, 5]), np.array([5]), np.zeros(0)),
        *(np.bytes_(b"\xff\xfe"), np.array([0.5, 2.5]), h5py.Empty("f8"), np.array(["a", "b"], dtype="S")),
    ]
    value = pick(rng, odd)
    item.attrs[key] = value
    return f"attribute {key} of {item.name} is {short(value)}"


# ---------------------------------------------------------------------- NumPy, MATLAB


def npy_bytes(array: np.ndarray, rng: Generator) -> tuple[bytes, str]:
    """An array as a .npy file, whose header may say something else."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    data = out.getvalue()
    if rng.random() < 0.5:
        return data, "an array"
    descr = pick(rng, [array.dtype.str, "|O", ">f8", "<U9999", "|V8", "<M8[s]", "x", "|S0", "<c16"])
    shapes = ["(10000000000,)", "(-1,)", "(0,)", "(3, 5)", "()", "(1000000, 1000000)", "(1.5,)", "x", str(array.shape)]
    shape = pick(rng, shapes)
    header = f"{{'descr': {descr!r}, 'fortran_order': {pick(rng, ['True', 'False', '2'])}, 'shape': {shape}, }}"
    header += pick(rng, ["", "" if rng.random() < 0.9 else "(" * 200_000])
    size = struct.pack("<H", len(header) % 65536)
    return b"\x93NUMPY\x01\x00" + size + header.encode() + data[-array.nbytes or len(data) :], f"header {short(header)}"


def _whole_array(data: bytes) -> np.ndarray:
    """The array of a .npy file; not one of which nothing is there but its shape, or a change would depend on memory."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if np.prod(shape, dtype=float) * max(dtype.itemsize, 1) > len(data):
        raise ValueError("the array is not there")
    return np.load(io.BytesIO(data), allow_pickle=False)


def change_npy(path: Path, rng: Generator) -> str:
    array = _whole_array(path.read_bytes())
    said = "as it is"
    if rng.random() < 0.7:
        array, said = odd_array(array, rng)
        array = np.asarray(array, dtype=object) if rng.random() < 0.1 else array
    data, how = npy_bytes(np.asarray(array), rng)
    path.write_bytes(data)
    return f"{said}; {how}"


def change_npz(path: Path, rng: Generator) -> str:
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    name = pick(rng, sorted(parts))
    match int(rng.integers(8)):
        case 0:
            del parts[name]
            said = f"{name} removed"
        case 1:
            parts["x" + name] = parts.pop(name)
            said = f"{name} renamed"
        case 2:
            parts[pick(rng, ["other.npy", "text.txt", "../x.npy", "names.npy", "a/b.npy", ""])] = parts[name]
            said = f"{name} under another name too"
        case 3:
            parts[name] = pick(rng, [b"", b"no array", parts[name][:50], gzip.compress(parts[name], mtime=0)])
            said = f"{name} is no array"
        case _:
            array = _whole_array(parts[name])
            array, said = odd_array(array, rng)
            if rng.random() < 0.15:
                array = np.array([str(v) for v in np.ravel(array)[:100]], dtype=object)
            parts[name], how = npy_bytes(np.asarray(array), rng)
            said = f"{name}: {said}; {how}"
    path.write_bytes(zipped(parts))
    return said


def change_mat(path: Path, rng: Generator) -> str:
    held = {key: value for key, value in scipy.io.loadmat(path).items() if not key.startswith("__")}
    key = pick(rng, sorted(held))
    match int(rng.integers(5)):
        case 0:
            del held[key]
            said = f"{key} removed"
        case 1:
            held["x" + key] = held.pop(key)
            said = f"{key} renamed"
        case 2:
            held[key] = pick(rng, [{"a": 1, "b": held[key]}, np.array([held[key], "x"], dtype=object), "text", 1j])
            said = f"{key} is a structure, cells, text or complex"
        case _:
            array, said = odd_array(held[key], rng) if held[key].dtype.kind != "O" else (np.zeros((2, 2)), "zeros")
            held[key], said = array, f"{key}: {said}"
    scipy.io.savemat(path, held)
    path.write_bytes(MAT_HEADER + path.read_bytes()[len(MAT_HEADER) :])
    return said


# ---------------------------------------------------------------------- Parquet


def change_parquet(path: Path, rng: Generator) -> str:
    table = pq.read_table(path)
    at = int(rng.integers(table.num_columns))
    name = table.column_names[at]
    said = f"column {name!r}"
    match int(rng.integers(8)):
        case 0:
            table, said = table.remove_column(at), f"{said} removed"
        case 1:
            new = pick(rng, ["", "x", "set", table.column_names[0], "a" * 10_000, "\u202e", "__index_level_0__", "\n"])
            names = [*table.column_names]
            names[at] = new
            table, said = table.rename_columns(names), f"{said} is called {short(new)}"
        case 2:
            table, said = table.slice(0, int(pick(rng, [0, 1]))), "cut to its first rows"
        case 3:
            odd = [b"no JSON", b"[]", b"null", b'{"index_columns": 5}', b'{"index_columns": ["x", 3, null]}', b"\xff"]
            odd += [b'{"index_columns": ["' + name.encode() + b'"]}', b"[" * 200_000, b'{"index_columns": null}']
            chosen = pick(rng, odd)
            key = pick(rng, [b"pandas", b"ARROW:schema"])
            table, said = table.replace_schema_metadata({key: chosen}), f"metadata {key!r} are {short(chosen)}"
        case _:
            column, what = _odd_column(table.num_rows, rng)
            table, said = table.set_column(at, name, column), f"{said} is {what}"
    options = {"compression": pick(rng, ["none", "snappy", "zstd"]), "row_group_size": int(pick(rng, [1, 2, 1000]))}
    pq.write_table(table, path, **options, use_dictionary=bool(rng.integers(2)))
    return said


def _odd_column(rows: int, rng: Generator) -> tuple[pa.Array, str]:
    def of(values: list[Any]) -> list[Any]:
        return [pick(rng, values) for _ in range(rows)]

    text = pa.array(of([c for c in CELLS if "\0" not in c]))
    broken = pa.Array.from_buffers(pa.string(), rows, pa.array([b"a\xff"] * rows, pa.binary()).buffers())
    odd: list[tuple[str, Callable[[], pa.Array]]] = [
        ("odd text", lambda: text),
        ("text that is not UTF-8", lambda: broken),
        ("nothing", lambda: pa.nulls(rows)),
        ("missing text", lambda: pa.nulls(rows, pa.string())),
        ("lists", lambda: pa.array([[1, 2]] * rows)),
        ("structures", lambda: pa.array([{"a": 1}] * rows)),
        ("bytes", lambda: pa.array([b"a\xff"] * rows, pa.binary())),
        ("truth values", lambda: pa.array(of([True, False, None]))),
        ("decimals", lambda: pa.array(of([1, 2, None]), pa.decimal128(10, 2))),
        ("times", lambda: pa.array(of([1, 2, None]), pa.timestamp("us"))),
        ("dates", lambda: pa.array(of([1, 2]), pa.date32())),
        ("odd numbers", lambda: pa.array(of([np.nan, np.inf, -np.inf, -1.0, 1e39, 1e300, 0.5, None]), pa.float64())),
        ("half precision", lambda: pa.array(np.ones(rows, np.float16))),
        ("large integers", lambda: pa.array(of([2**63 - 1, -(2**63), 2**31, -1, None]), pa.int64())),
        ("unsigned integers", lambda: pa.array(of([2**64 - 1, 0]), pa.uint64())),
        ("categories", lambda: pa.array(of(["a", None, "", "1"])).dictionary_encode()),
        ("categories of numbers", lambda: pa.array(of([1.5, None, 2.5])).dictionary_encode()),
        ("large text", lambda: text.cast(pa.large_string())),
        ("durations", lambda: pa.array(of([1, 2]), pa.duration("s"))),
        ("bytes of one length", lambda: pa.array([b"ab"] * rows, pa.binary(2))),
    ]
    what, make = pick(rng, odd)
    return make(), what


# ---------------------------------------------------------------------- safetensors


def read_header(data: bytes) -> tuple[str, bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return data[8 : 8 + size].decode(), data[8 + size :]


def change_safetensors(path: Path, rng: Generator) -> str:
    header, body = read_header(path.read_bytes())
    if rng.random() < 0.1:
        size = pick(rng, [0, 2**63, 2**64 - 1, len(header) + 1, len(header) - 1, 100_000_001])
        path.write_bytes(struct.pack("<Q", size) + header.encode() + body)
        return f"a header of {size} bytes, it says"
    if rng.random() < 0.3:
        names = sorted(name for name in json.loads(header) if name != "__metadata__")
        held = json.loads(header)
        name = pick(rng, names)
        start, end = held[name]["data_offsets"]
        values = np.frombuffer(body[start:end], np.uint8)
        odd = pick(rng, [np.nan, np.inf, 1e38, 0.0])
        body = body[:start] + np.resize(np.array([odd], "<f4").view(np.uint8), len(values)).tobytes() + body[end:]
        said = f"tensor {name} is {odd}"
    else:
        header, said = change_json(header, rng)
    path.write_bytes(struct.pack("<Q", len(header.encode())) + header.encode() + body)
    return said


# ---------------------------------------------------------------------- any file, any folder


def change_file(path: Path, rng: Generator, other: bytes) -> str:
    """By what the file holds: its structure, or its bytes."""
    data = path.read_bytes()
    change = _structure(path, data)
    if change is not None and rng.random() < 0.7:
        try:
            return change(path, rng)
        except Exception as error:  # an earlier change has damaged it, or the library refuses to write this
            path.write_bytes(data)
            instead = f" (in place of a change of its structure: {type(error).__name__})"
    else:
        instead = ""
    plain = change is None and b"\0" not in data[:512]
    new, said = (change_text if plain or change is _json_file else change_bytes)(data, rng, other)
    path.write_bytes(new[:MOST])
    return said + instead


def _structure(path: Path, data: bytes) -> Callable[[Path, Generator], str] | None:
    name = path.name.lower()
    if b"\x89HDF" in (data[:4], data[512:516]):
        return change_hdf5
    if data[:4] == b"PAR1":
        return change_parquet
    if data[:6] == b"\x93NUMPY":
        return change_npy
    if name.endswith(".npz"):
        return change_npz
    if name.endswith(".mat"):
        return change_mat
    if name.endswith(".safetensors"):
        return change_safetensors
    return _json_file if data[:1] == b"{" else None


def _json_file(path: Path, rng: Generator) -> str:
    text, said = change_json(path.read_text(encoding="utf-8"), rng)
    path.write_text(text, encoding="utf-8")
    return said


def change_folder(path: Path, rng: Generator, other: bytes) -> str:
    """One of its files; of a model's config.json its copy within the weights too, so that it is believed."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    file = pick(rng, files)
    if (path / "config.json").is_file() and rng.random() < 0.3:
        file = path / "config.json"
    name = str(file.relative_to(path))
    if rng.random() < 0.1:
        file.unlink()
        if rng.random() < 0.3:
            file.mkdir()
            return f"{name} is a folder"
        return f"{name} removed"
    weights = path / "model.safetensors"
    if name == "config.json" and weights.is_file() and rng.random() < 0.7:
        with suppress(ValueError, KeyError, RecursionError, struct.error):  # an earlier change has damaged them
            config, said = change_json(file.read_text(encoding="utf-8"), rng)
            header, body = read_header(weights.read_bytes())
            held = json.loads(header)
            held["__metadata__"]["omniset_config"] = config
            text = json.dumps(held).encode()
            weights.write_bytes(struct.pack("<Q", len(text)) + text + body)
            file.write_text(config, encoding="utf-8")
            return f"{name} and its copy: {said}"
    return f"{name}: {change_file(file, rng, other)}"


def change_place(path: Path, rng: Generator) -> str:
    """What is there is no such file."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    kind = pick(rng, ["empty", "folder", "broken link", "link to itself"])
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere" if kind == "broken link" else path.name)
    return kind


def pack(path: Path, rng: Generator) -> tuple[Path, str]:
    """The file compressed under another name, half of the times damaged then."""
    ending = pick(rng, sorted(PACKERS))
    packed = path.with_name(path.name + ending)
    data = PACKERS[ending](path.read_bytes())
    path.unlink()
    said = f"packed as {ending}"
    if rng.random() < 0.6:
        a, b = _span(len(data), rng)
        match int(rng.integers(6)):
            case 0:
                data, more = data[:a], f"cut off at byte {a}"
            case 1:
                data, more = data[:a] + rng.bytes(b - a) + data[b:], f"bytes {a} to {b} replaced"
            case 2:
                data, more = data + data, "twice"
            case 3:
                data, more = data + b"garbage\n", "garbage behind it"
            case 4:
                data, more = PACKERS[ending](data), "packed again"
            case _:
                data, more = PACKERS[pick(rng, sorted(PACKERS))](data), "packed by another program once more"
        said += f", {more}"
    packed.write_bytes(data)
    return packed, said


def tidy(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# ---------------------------------------------------------------------- after which what is right is known


def write_sets_otherwise(path: Path, rng: Generator) -> str:
    """Numbers with commas or in percent, names with endings; or FCS of which one says that DATA is elsewhere."""
    if path.is_dir():
        file, by = pick(rng, sorted(path.glob("*.fcs"))), int(pick(rng, [-3, -2, -1, 1, 2, 3]))
        held, where = file.read_bytes(), pick(rng, ["HEADER", "TEXT"])
        start, end = int(held[26:34]), int(held[34:42])
        for number in (start, end) if rng.random() < 0.5 else (start,):
            width, mark = (8, b"") if where == "HEADER" else (12, b"/")
            held = held.replace(mark + b"%*d" % (width, number), mark + b"%*d" % (width, number + by), 1)
        file.write_bytes(held)
        return f"{where} of {file.name} is {by} bytes off"
    kind = pick(rng, ["commas", "percent", "endings", "capitals"])
    if kind in ("endings", "capitals"):
        file = pick(rng, [path, path.with_name("labels.csv")])
        end = pick(rng, [".FCS", ".svs", ".ome.tiff"])
        name = (lambda m: m[0].upper()) if kind == "capitals" else (lambda m: m[0] + end)
        file.write_text(re.sub("^[a-d](?=[\t,])", name, file.read_text(), flags=re.MULTILINE))
        return f"names in {file.name} with {kind}"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    for line in lines[1:]:
        line[1:] = [c.replace(".", ",") if kind == "commas" else f"{100 * float(c):.6g}%" for c in line[1:]]
    path.write_text("\n".join(map("\t".join, lines)) + "\n")
    return f"numbers with {kind}"


def write_otherwise(path: Path, rng: Generator) -> str:
    """The same connectivity as a triangle with its diagonal, with names without a prefix, or with one label more."""
    (_, *names), *rows = (line.split(",") for line in path.read_text().splitlines())
    values = [row[1:] for row in rows]
    kind = pick(rng, ["triangle", "prefix", "label"])
    if kind == "triangle":
        way = pick(rng, ["triu", "tril"])
        order = getattr(np, f"{way}_indices")(len(names))
        path.write_text(",".join(values[i][j] for i, j in zip(*order, strict=True)) + "\n")
        return f"written as {way}, with the diagonal"
    if kind == "prefix":
        file = pick(rng, [path, path.with_name("expression.csv"), path.with_name("places.csv")])
        file.write_text(file.read_text().replace("7Networks_", ""))
        return f"prefix dropped in {file.name}"
    names = ["Background", *names[:-1]]
    lines = [["region", *names], *([name, *row] for name, row in zip(names, values, strict=True))]
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return "names behind one label more"


def drop_rank(path: Path, rng: Generator) -> str:
    """Of some lineages of SILVA's, behind each of which is a whole one with its family."""
    lines, place = path.read_text().splitlines(), int(rng.integers(2, 5))
    some = [i for i in rng.permutation(len(lines) // 2)[:8].tolist() if i >= 6]
    for i in some:
        name, _, lineage = lines[2 * i].partition(" ")
        names = lineage.split(";")
        lines[2 * i] = f"{name} {';'.join(names[:place] + names[place + 1 :])}"
    path.write_text("\n".join(lines) + "\n")
    return f"rank {place} of lineages {some} dropped"


def add_total(path: Path, rng: Generator) -> str:
    """A column beside the counts, at any place of theirs."""
    name, place = pick(rng, ["total", "Total", "sum", "Taxon total", "Row sums"]), int(rng.integers(1, 6))
    lines = path.read_text().splitlines()
    for i, line in enumerate(lines):
        cells = line.split("\t")
        if len(cells) > 5:
            cells.insert(place, name if "A" in cells[:3] else str(sum(map(int, cells[1:5]))))
            lines[i] = "\t".join(cells)
    path.write_text("\n".join(lines) + "\n")
    return f"column {name!r} at {place}"


def double_reads(path: Path, rng: Generator) -> str:
    """A second read behind each, or all behind all."""
    lines = path.read_text().splitlines()
    names = pick(rng, [("@r{}/1", "@r{}/2"), ("@m:{} 1:N:0:A", "@m:{} 2:N:0:A"), ("@SRR1.{}.1 x", "@SRR1.{}.2 x")])
    first = int(rng.integers(10_000))
    records = [
        [(name.format(first + i), *lines[4 * i + 1 : 4 * i + 4]) for i in range(len(lines) // 4)] for name in names
    ]
    behind = bool(rng.random() < 0.5)
    both = [*records[0], *records[1]] if behind else [one for pair in zip(*records, strict=True) for one in pair]
    path.write_text("\n".join(line for one in both for line in one) + "\n")
    return f"read twice as {names[0]} and {names[1]}, {'one file behind the other' if behind else 'in turn'}"


def call_genes_otherwise(path: Path, rng: Generator) -> str:
    """By numbers, with or without a column that names them; with a prefix or an ending; or counts become fractions."""
    with h5py.File(path, "r+") as root:
        names = root["var/_index"].asstr()[()]
        kind = pick(rng, ["numbers", "numbers and names", "affix", "fractions"])
        if kind == "fractions":
            share = root["X"][()] * 10.0 ** -rng.integers(1, 6)
            root["X"][...] = pick(rng, [share, share / share.sum(1, keepdims=True)])
            return "counts are scaled to fractions"
        if kind == "affix":
            before, behind = pick(rng, ["", "GRCh38_", "hg19_", "mm10___", "gene:"]), pick(rng, ["", "_HUMAN", "|x"])
            root["var/_index"][...] = [f"{before}{name}{behind}" for name in names]
            return f"genes with {before!r} before and {behind!r} behind"
        numbers = np.sort(rng.choice(pick(rng, [len(names), 60_000]), len(names), replace=False))
        root["var/_index"][...] = numbers.astype(str).tolist()
        if kind == "numbers and names":
            column = pick(rng, ["feature_name", "gene_symbols", "gene_name", "Symbol"])
            held = root["var"].create_dataset(column, data=names.tolist(), dtype=h5py.string_dtype())
            held.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
            root["var"].attrs["column-order"] = [*root["var"].attrs["column-order"], column]
        return f"genes are called by {kind}"
