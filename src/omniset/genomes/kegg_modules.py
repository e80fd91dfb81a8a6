"""Modules and pathways: how probable it is that a genome has all that one needs, and which step is in doubt.

A definition is an expression in KEGG's notation (Kanehisa et al., "KEGG as a reference resource for gene and protein
annotation", 2016): a space is "and" between steps, a comma "or", "+" joins the parts of a complex, what follows "-" is
not needed, "--" is a step of which no family is known, and M00001 stands for that module. Outside of parentheses spaces
part first, so that "K1,K2 K3" needs K3; within them commas do: "(K1,K2 K3)" is K1, or K2 with K3.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.genomes.calibration import Logistic
from omniset.genomes.completion import Completion
from omniset.genomes.formats import normalise, unlike
from omniset.tables.files import TextFile
from omniset.tables.sheets import look

TOKEN = re.compile(r"--|[(),+-]|[A-Za-z0-9_.:]+|\s+")
MODULE = re.compile(r"M\d{5}")
DEEPEST = 50  # parentheses and modules within each other
MOST = 10_000  # families of a module and of those that it names, as often as they are in them
REPEATED = 10  # families of a module, at most, that are in it more than once and are taken exactly

Kinds = Float[np.ndarray, "kinds genomes families"]
Lookup = Callable[[str], Float[np.ndarray, " cases"]]


@dataclass(frozen=True)
class Node:
    """A part of a definition."""

    kind: str  # "family", "and", "or"
    name: str = ""  # of the family
    parts: tuple[Node, ...] = ()  # of "and" and "or"; an "and" without parts is always there
    text: str = field(default="", compare=False)  # as it was defined, of a step

    @cached_property
    def size(self) -> int:
        """Families, as often as they are in it; steps of which no family is known count too."""
        return sum(part.size for part in self.parts) or 1

    @cached_property
    def depth(self) -> int:
        """Levels of parts within each other."""
        return max((1 + part.depth for part in self.parts), default=0)

    def families(self) -> Iterator[str]:
        """As often as they are in it."""
        if self.kind == "family":
            yield self.name
        for part in self.parts:
            yield from part.families()

    def probability(self, lookup: Lookup) -> Float[np.ndarray, " cases"] | float:
        """P(and) = prod p, P(or) = 1 - prod (1 - p), of independent parts."""
        if self.kind == "family":
            return lookup(self.name)
        parts = [part.probability(lookup) for part in self.parts]
        if self.kind == "and":
            return math.prod(parts)
        return 1 - math.prod(1 - part for part in parts)


@dataclass(frozen=True)
class Module:
    """What a module needs, step by step."""

    # "M00001" and what it does.
    name: str
    title: str
    steps: tuple[Node, ...]  # all of them are needed

    def families(self) -> Counter[str]:
        return Counter(family for step in self.steps for family in step.families())

    def complete(self, lookup: Lookup) -> tuple[Float[np.ndarray, " cases"], Float[np.ndarray, "steps cases"]]:
        """Probability of all steps together, and of each.

        Families are independent, given what was observed; one that is in the definition several times is the same in
        all places: probabilities are summed over whether each of these is there.
        """
        counts = self.families()
        several = [family for family, n in counts.most_common(REPEATED) if n > 1]
        cases = lookup(next(iter(counts), ""))
        whole, each = np.zeros_like(cases), np.zeros((len(self.steps), *cases.shape))
        for there in product((0.0, 1.0), repeat=len(several)):
            state = dict(zip(several, there, strict=True))
            weight = np.ones_like(cases)
            for family, present in state.items():
                weight = weight * (lookup(family) if present else 1 - lookup(family))

            def given(name: str, state: dict[str, float] = state) -> Float[np.ndarray, " cases"]:
                return np.full_like(cases, state[name]) if name in state else lookup(name)

            steps = np.stack([step.probability(given) * np.ones_like(cases) for step in self.steps])
            each += weight * steps
            whole += weight * steps.prod(0)
        return whole, each


def parse(text: str, known: Mapping[str, Node] | None = None) -> tuple[Node, ...]:
    """The steps of a definition.

    Raises:
        ValueError: The text is not in the notation; the message says where.
    """
    found = [(match.group(), match.start()) for match in TOKEN.finditer(text)]
    at = 0
    for token, start in [*found, ("", len(text))]:
        if start != at:
            raise ValueError(f"definition {text!r} has {text[at]!r} at character {at + 1}")
        at += len(token)
    words = [" " if token.isspace() else token for token, _ in found]
    # A space is "and" only between two things that are needed.
    joins = [False, *(a not in "(,+-" and b not in "),+" for a, b in zip(words, words[2:], strict=False)), False]
    tokens = [one for one, word, join in zip(found, words, joins, strict=False) if word != " " or join]
    return _Parser(text, [(" " if token.isspace() else token, start) for token, start in tokens], known or {}).steps()


class _Parser:
    """Recursive descent; "," binds least, then spaces, then "+" and "-". Outside of parentheses spaces bind least."""

    def __init__(self, text: str, tokens: list[tuple[str, int]], known: Mapping[str, Node]) -> None:
        self.text, self.tokens, self.known = text, tokens, known
        self.at, self.depth = 0, 0

    def steps(self) -> tuple[Node, ...]:
        steps: list[Node] = []
        begin = 0
        while not steps or self.peek() == " ":
            self.at += bool(steps)
            step = self.alternatives(self.complex)
            end = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
            steps.append(replace(step, text=self.text[begin:end].strip()))
            begin = end
        if self.at < len(self.tokens):
            raise self.error()
        return tuple(step for step in steps if len(steps) == 1 or step != Node("and"))

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def error(self) -> ValueError:
        if self.at >= len(self.tokens):
            return ValueError(f"definition {self.text!r} ends too early")
        token, start = self.tokens[self.at]
        return ValueError(f"definition {self.text!r} has {token!r} at character {start + 1}, where it cannot be")

    def alternatives(self, way: Callable[[], Node]) -> Node:
        return self.joined("or", ",", way)

    def joined(self, kind: str, sign: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.peek() == sign:
            self.at += 1
            parts.append(part())
        return _joined(kind, parts)

    def complex(self) -> Node:
        parts, needed = [], self.peek() != "-"
        self.at += not needed
        while True:
            part = self.unit()
            parts += [part] if needed else []
            if self.peek() not in ("+", "-"):
                return _joined("and", parts)
            needed = self.peek() == "+"
            self.at += 1

    def unit(self) -> Node:
        token = self.peek()
        if token in ("", " ", ",", ")", "+", "-"):
            raise self.error()
        self.at += 1
        if token == "--":
            return Node("and")
        if token != "(":
            return self.known.get(token, Node("family", normalise(token)))
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"definition {self.text[:60]!r}... has more than {DEEPEST} parentheses in each other")
        node = self.alternatives(lambda: self.joined("and", " ", self.complex))
        if self.peek() != ")":
            raise self.error()
        self.at, self.depth = self.at + 1, self.depth - 1
        return node


def _joined(kind: str, parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Node(kind, parts=tuple(parts))


# ---------------------------------------------------------------------- files


def read_modules(path: str | Path) -> list[Module]:
    """Modules of a file: entries as KEGG has them (ENTRY, NAME, DEFINITION, ///); a table with the columns `module`
    and `definition`, and `name` if there is one; or one with `pathway` and `family`, a row for each family that is
    needed.

    Raises:
        ValueError: None of these; a definition that is not in the notation, or a module that needs itself.
        OSError: The file is not there or may not be read.
    """
    file = TextFile(path)
    first = next((line for _, line in file.lines() if line.strip()), "")
    entries = _entries(file) if first.startswith("ENTRY") else _rows(path)
    definitions: dict[str, tuple[int, str, str]] = {}
    for row, name, title, definition in entries:
        if name in definitions:
            raise file.error(row, f"module {name!r} is there twice")
        definitions[name] = row, title, definition
    if not definitions:
        raise file.error(None, "has no modules")
    parsed: dict[str, Node] = {}
    for name in definitions:
        _resolve(name, definitions, parsed, (), file)
    return [Module(name, title, parsed[name].parts) for name, (_, title, _) in definitions.items()]


def _resolve(
    name: str,
    definitions: Mapping[str, tuple[int, str, str]],
    parsed: dict[str, Node],
    above: tuple[str, ...],
    file: TextFile,
) -> None:
    """Parse a module after those that it names."""
    if name in parsed:
        return
    row, _, definition = definitions[name]
    if name in above:
        raise file.error(row, f"module {name!r} needs itself: {' in '.join([*above, name][-4:])}")
    if len(above) > DEEPEST:
        raise file.error(row, f"module {name!r} is in more than {DEEPEST} modules within each other")
    names = Counter(token for token in TOKEN.findall(definition) if token[0] not in "(),+-" and not token.isspace())
    inner = [other for other in names if other in definitions]
    for other in inner:
        _resolve(other, definitions, parsed, (*above, name), file)
    families = sum(times * (parsed[other].size if other in parsed else 1) for other, times in names.items())
    if families > MOST:
        raise file.error(
            row,
            f"module {name!r} needs {families:,} families, those of modules that it names among them, each as often "
            f"as it is there: at most {MOST:,} are taken, divide it",
        )
    try:
        parsed[name] = whole = Node("and", parts=parse(definition, {other: parsed[other] for other in inner}))
    except ValueError as error:
        raise file.error(row, f"module {name!r}: {error}") from None
    if whole.depth > DEEPEST:
        raise file.error(row, f"module {name!r} has more than {DEEPEST} parentheses and modules within each other")
    if not any(True for _ in whole.families()):
        raise file.error(row, f"module {name!r} needs no family: its definition is {definition!r}")


def _entries(file: TextFile) -> Iterator[tuple[int, str, str, str]]:
    entry: dict[str, str] = {}
    field, begin = "", 0
    for row, line in chain(file.lines(), [(0, "///")]):
        if line.startswith(("///", "ENTRY ", "ENTRY\t")) and entry:  # files that were joined may lack the end of one
            for part in ("ENTRY", "DEFINITION"):
                if not entry.get(part):
                    raise file.error(begin, f"an entry has no {part}")
            yield begin, entry["ENTRY"].split()[0], entry.get("NAME", ""), entry["DEFINITION"]
            entry, field = {}, ""
        if line.startswith("///"):
            continue
        if line[:1].strip():
            field, *text = line.split(None, 1)
            begin = row if field == "ENTRY" else begin
            if field == "DEFINITION" and field in entry:
                raise file.error(row, "DEFINITION is there twice in an entry: indent the lines that continue it")
            entry[field] = "".join(text).strip()
        elif field:
            entry[field] = f"{entry[field]} {line.strip()}"


def _rows(path: str | Path) -> Iterator[tuple[int, str, str, str]]:
    sheet = look(Path(path))
    module, definition = sheet.first(["module", "id"]), sheet.first(["definition"])
    if module is not None and definition is not None:
        columns = [module, definition, *([] if (at := sheet.first(["name", "title"])) is None else [at])]
        for row, (name, text, *title) in sheet.records(columns, False):
            yield row, name.removeprefix("md:"), "".join(title), text
        return
    pathway, family = sheet.first(["pathway", "module", "set"]), sheet.first(["family", "ko", "gene_family"])
    if pathway is None or family is None:
        raise sheet.file.error(
            None, "must have the columns module and definition, or pathway and family, or be entries as KEGG has them"
        )
    needed: dict[str, tuple[int, list[str]]] = {}
    for row, (name, one) in sheet.records([pathway, family], False):
        needed.setdefault(name, (row, []))[1].append(one)
    for name, (row, families) in needed.items():
        yield row, name, "", " ".join(dict.fromkeys(families))


# ---------------------------------------------------------------------- genomes


class Modules:
    """Modules beside a model's vocabulary.

    Of families that are independent, given what was observed, the probability of a module is a product. They are not: a
    genome that has a part of a module mostly has the rest. So the product is mapped by a logistic function of two
    numbers, which are those of these modules in validation genomes.

    Args:
        asked: Probabilities, and what is true, of validation genomes. None: products stay as they are.

    Raises:
        ValueError: It has none of the modules' families; each of them needs a module that is not among them.
    """

    def __init__(self, modules: Sequence[Module], families: Sequence[str], asked: Kinds | None = None) -> None:
        lacking = {one.name: names for one in modules if (names := [*filter(MODULE.fullmatch, one.families())])}
        self._of_lacking = [
            f"modules: {len(lacking):,} of {len(modules):,} need modules that the file does not have, such as "
            f"{name!r}, which needs {needed[0]!r}: nothing is said of them; add these to the file"
            for name, needed in [*lacking.items()][:1]
        ]
        self.modules = [module for module in modules if module.name not in lacking]
        if not self.modules:
            raise ValueError(self._of_lacking[0])
        self._position = {family: i for i, family in enumerate(families)}
        self.needed = list(dict.fromkeys(family for module in self.modules for family in module.families()))
        if self.needed and not any(family in self._position for family in self.needed):
            raise ValueError(
                f"modules: none of their families is in the model's vocabulary: {unlike(self.needed[0], families[0])}"
            )
        self.sums = {name: np.zeros(len(self.modules)) for name in ("observed", "called", "expected")}
        of_each = [module.families() for module in self.modules]
        # How many of its families are in the vocabulary, and how many it has.
        self.known = [(sum(family in self._position for family in one), len(one)) for one in of_each]
        self.map = Logistic()
        if asked is not None and asked.size:
            found = np.stack([whole for whole, _ in self.complete(asked)], 1)
            self.map = Logistic.fitted(*found.reshape(2, -1))

    def notes(self) -> list[str]:
        """What was found wanting, a sentence each."""
        lacking = [family for family in self.needed if family not in self._position]
        if not lacking:
            return self._of_lacking
        return [
            *self._of_lacking,
            f"modules: {len(lacking):,} of their {len(self.needed):,} families, such as {lacking[0]!r}, are not in the "
            "model's vocabulary: they are absent where they were not observed",
        ]

    def complete(
        self, kinds: Kinds, unknown: Sequence[Collection[str]] = ()
    ) -> Iterator[tuple[Float[np.ndarray, "kinds genomes"], Float[np.ndarray, "steps kinds genomes"]]]:
        """Module by module, the probability that it is complete, and that each step is.

        Args:
            kinds: Of what a genome has: probabilities, which are mapped, and others, which are not.
            unknown: Families outside of the vocabulary that each genome has.
        """
        columns: dict[str, np.ndarray] = {}

        def lookup(family: str) -> Float[np.ndarray, " cases"]:
            if family not in columns:
                at, there = self._position.get(family), np.zeros(kinds.shape[:2])
                there[:] = [family in one for one in unknown] if unknown and at is None else 0
                columns[family] = (there if at is None else kinds[:, :, at]).ravel()
            return columns[family]

        for module in self.modules:
            whole, steps = (x.reshape(*x.shape[:-1], *kinds.shape[:2]) for x in module.complete(lookup))
            whole[0] = self.map(whole[0])
            yield whole, steps

    def table(self, group: Sequence[Completion]) -> pd.DataFrame:
        """A row per genome and module: probability that it is complete, and whether it is by what was observed and by
        what is called present; number of steps, likewise; the step that is least probable, at least as probable as the
        module; how many families the module has, and how many of these the model knows.
        """
        kinds = np.stack(
            [[one.probability for one in group], [one.observed for one in group], [one.call for one in group]]
        ).astype(np.float64)
        tables = []
        for number, (complete, steps) in enumerate(self.complete(kinds, [one.unknown for one in group])):
            module, doubtful = self.modules[number], steps[:, 0].argmin(0)
            least = np.maximum(steps[doubtful, 0, np.arange(len(group))], complete[0])
            for name, values in zip(("expected", "observed", "called"), complete, strict=True):
                self.sums[name][number] += values.sum()
            tables.append(
                pd.DataFrame(
                    {
                        "genome": [one.name for one in group],
                        "module": module.name,
                        "name": module.title,
                        "probability": complete[0].round(5),
                        "observed": complete[1].round().astype(np.int64),
                        "called": complete[2].round().astype(np.int64),
                        "steps": len(module.steps),
                        "steps_observed": steps[:, 1].round().sum(0).astype(np.int64),
                        "steps_called": steps[:, 2].round().sum(0).astype(np.int64),
                        "doubtful_step": [module.steps[step].text for step in doubtful],
                        "doubtful_probability": least.round(5),
                        "families": self.known[number][1],
                        "families_known": self.known[number][0],
                    }
                )
            )
        return pd.concat(tables).sort_index(kind="stable", ignore_index=True)
