"""Rooted trees: drawn at random, or read from Newick files; and the clades that cutting them gives."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from omniset.core.bounded import read_whole, require_file

RANKS = {"p": 0.25, "c": 0.4, "o": 0.5, "f": 0.65, "g": 0.85}  # where the tree is cut, the leaves being at 1
TOKEN = re.compile(r"\s+|\[[^\]]*\]|'(?:[^']|'')*'|[(),:;]|[^\s()\[\]':;,]+")


@dataclass
class Tree:
    """A rooted tree.

    Attributes:
        parent: Of each node, -1 of the root. Parents come before children, the root is node 0.
        length: Of the branch above each node; 0 above the root.
        names: Of the leaves; "" of inner nodes.
    """

    parent: Int[np.ndarray, " nodes"]
    length: Float[np.ndarray, " nodes"]
    names: list[str]

    @property
    def leaves(self) -> Int[np.ndarray, " leaves"]:
        return np.setdiff1d(np.arange(len(self.parent)), self.parent)

    @property
    def depth(self) -> Float[np.ndarray, " nodes"]:
        """Distance from the root."""
        depth = np.zeros(len(self.parent))
        for node in range(1, len(depth)):
            depth[node] = depth[self.parent[node]] + self.length[node]
        return depth


def yule_tree(leaves: int, rng: np.random.Generator) -> Tree:
    """A pure-birth tree, all of its leaves at distance 1 from the root (Yule, "A Mathematical Theory of Evolution",
    1925): k lineages wait for Exp(k), then one of them splits.

    Raises:
        ValueError: Fewer than 2 leaves.
    """
    if leaves < 2:
        raise ValueError(f"leaves must be at least 2, it is {leaves}")
    parent, born, died = [-1, 0, 0], [0.0] * 3, [0.0] * 3
    alive = [1, 2]
    now = rng.exponential(1 / 2)
    while len(alive) < leaves:
        splits = int(rng.integers(len(alive)))
        node = alive[splits]
        died[node] = now
        alive[splits] = len(parent)
        alive.append(len(parent) + 1)
        parent += [node, node]
        born += [now, now]
        died += [now, now]
        now += rng.exponential(1 / len(alive))
    for node in alive:
        died[node] = now
    names = [""] * len(parent)
    for node, name in zip(sorted(alive), numbered("GENOME", leaves), strict=True):
        names[node] = name
    return Tree(np.array(parent), (np.array(died) - np.array(born)) / now, names)


def read_newick(path: str | Path) -> Tree:
    """The tree of a Newick file, plain or .gz. Comments and labels of inner nodes (support) are passed over.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: It is cut off or malformed (naming the character, from 1), a branch but the root's has no length or
            one below 0, a leaf has no name or that of another.
    """
    path = Path(path)
    require_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = read_whole(file, path).decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    except UnicodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    try:
        return _parse(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _parse(text: str) -> Tree:
    parent: list[int] = []
    length: list[float] = []
    names: list[str] = []

    def child(of: int) -> int:
        parent.append(of)
        length.append(math.nan)
        names.append("")
        return len(parent) - 1

    node, at, seen = child(-1), 0, set[str]()
    last = "("  # what was read of the node: "(" nothing, ")" children, "name", ":", "length"

    def wrong(message: str) -> ValueError:
        return ValueError(f"character {at + 1}: {message}")

    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            open_ = {"'": "a quote is never closed", "[": "a comment is never closed", "]": "unexpected ]"}
            raise wrong(open_[text[at]])
        token = match[0]
        if token.isspace() or token[0] == "[":
            pass
        elif last == ";":
            raise wrong("there is more after the tree's end, the file must hold one tree")
        elif last == ":":
            length[node], last = _length(token), "length"
            if not length[node] >= 0 or math.isinf(length[node]):
                raise wrong(f"a branch length must be a finite number >= 0, it is {token!r}")
        elif token == "(" and last == "(":
            node = child(node)
        elif token == ":" and last in (")", "name"):
            last = ":"
        elif token in ",);":
            if last == "(":
                raise wrong("a leaf without a name ends here")
            if (node == 0) != (token == ";"):
                raise wrong(f"{token!r} where {'no bracket is open' if node == 0 else 'a bracket is still open'}")
            if node:
                if math.isnan(length[node]):
                    raise wrong("a branch without a length ends here")
                node = child(parent[node]) if token == "," else parent[node]
            last = "(" if token == "," else token
        elif token not in "(:" and last in ("(", ")"):
            if last == "(":
                names[node] = token[1:-1].replace("''", "'") if token[0] == "'" else token
                if not names[node] or names[node] in seen:
                    raise wrong(f"a leaf has the name {names[node]!r}, it must have one of its own")
                seen.add(names[node])
            last = "name"
        else:
            raise wrong(f"unexpected {token!r}")
        at = match.end()
    if last != ";":
        raise wrong("the file ends without ;, is it cut off?")
    return Tree(np.array(parent), np.array([0.0, *length[1:]]), names)


def _length(token: str) -> float:
    try:
        return float(token)
    except ValueError:
        return math.nan


def clades(tree: Tree) -> list[str]:
    """Taxonomy of the leaves, "d__Simulated;p__P1;c__C1;o__O1;f__F1;g__G1;s__S1": the tree is cut at shares of the mean
    distance of leaves from the root, and what stays connected below a cut is a clade. Species are single leaves.
    """
    leaves, depth = tree.leaves, tree.depth
    whole = depth[leaves].mean()
    is_leaf = np.isin(np.arange(len(depth)), leaves)
    taxonomy = ["d__Simulated"] * len(leaves)
    for rank, cut in [*RANKS.items(), ("s", math.inf)]:
        top = np.full(len(depth), -1)  # the node that a clade starts with
        for node, above in enumerate(tree.parent):
            inherited = top[above] if above >= 0 else -1
            starts = is_leaf[node] or depth[node] >= cut * whole
            top[node] = inherited if inherited >= 0 else node if starts else -1
        number: dict[int, int] = {}
        for i, clade in enumerate(top[leaves].tolist()):
            taxonomy[i] += f";{rank}__{rank.upper()}{number.setdefault(clade, len(number) + 1)}"
    return taxonomy


def numbered(prefix: str, number: int) -> list[str]:
    """FAM00001, FAM00002, ..."""
    return [f"{prefix}{i:05}" for i in range(1, number + 1)]
