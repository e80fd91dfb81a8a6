"""Flow and mass cytometry: a file of FCS 2.0, 3.0, 3.1 or 3.2 is a set, its events are the elements.

Spidlen et al., "Data File Standard for Flow Cytometry, Version FCS 3.1", 2010. A file begins with six places of eight
characters (first and last byte of the segments TEXT, DATA and ANALYSIS), TEXT has keywords and values between a
character of its own, DATA an event after the other.

Light of a dye spills over to the detectors of others: with S_ij, the share of dye i that detector j sees, an event is
x = s S, and s = x S^-1 is what the dyes sent out (Bagwell and Adams, "Fluorescence spectral overlap compensation for
any number of flow cytometry parameters", 1993).

HEADER and TEXT both say where DATA is, and $TOT how many events: where they differ, the one by which the events end
where the file, or its next segment, begins is taken, with a note.

Known imperfections: spillover in the form of FCS 2.0 and 3.0, $COMP and $DFCmTOn, is not taken out. Of several data
sets in a file the first is read. Numbers of other than 8, 16, 32 or 64 bits are refused, and so is data as text
($DATATYPE A).
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from omniset.core.stored import StoredSet, once
from omniset.tables.files import Origin, listed, short
from omniset.tables.folders import files_of, require_elements
from omniset.tables.sheets import number_of
from omniset.tables.stored import FileRows, StoredSets, finite

ENDING = ".fcs"
VERSIONS = (b"FCS2.0", b"FCS3.0", b"FCS3.1", b"FCS3.2")
FLUORESCENCE, MASS = 150.0, 5.0  # cofactors
MASS_CYTOMETER = re.compile("cytof|helios", re.IGNORECASE)  # in $CYT
# Of channels that are no stain: light that is scattered, when and how long. Their numbers stay as they are.
NO_STAIN = re.compile(r"(FSC|SSC|FS|SS|Time|Event|Width|Center|Offset|Residual)([^a-z]|$)", re.IGNORECASE)
NO_FEATURE = re.compile(r"(Time|Event)([^a-z]|$)", re.IGNORECASE)  # unless they are asked for
LARGEST = 1 << 26  # bytes of TEXT
SPILLOVER = ("$SPILLOVER", "SPILL", "SPILLOVER")  # keywords; the first is the standard's
LARGEST_CONDITION = 1e8  # of a matrix that is inverted
CHECKSUM = 8  # bytes behind the last segment, where there is one


@dataclass(frozen=True)
class Channel:
    """A parameter, as the standard calls it."""

    name: str  # $PnN, such as "FITC-A"
    feature: str  # what it is called here: $PnS, such as "CD3", where there is one
    bits: int
    top: int  # largest value plus 1 of a whole number, $PnR
    # Of a logarithmic amplifier, $PnE: the value is zero * 10^(decades * number / top).
    decades: float
    zero: float
    gain: float  # of a linear one, $PnG: the value is number / gain


class Events(FileRows):
    """The events of a file, some channels of them, as the arcsinh of stains and the plain numbers of others.

    Raises:
        OSError, ValueError: It is not there, no FCS, damaged or of a kind that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            header = file.read(58)
            if header[:6] not in VERSIONS:
                raise ValueError(f"{path}: is no FCS file: it begins with {header[:6]!r}, not with FCS3.0 or the like")
            self._size = file.seek(0, 2)
            try:
                places = [int(header[at : at + 8].decode("ascii").strip() or 0) for at in (10, 18, 26, 34)]
            except ValueError:
                raise ValueError(f"{path}: is damaged: its header has {header[10:42]!r} in place of numbers") from None
            self._words = self._text(file, places[0], places[1])
            first, last = self._number("$BEGINSTEXT", 0), self._number("$ENDSTEXT", 0)
            if first and (first, last) != (places[0], places[1]) and last > first:
                self._words = self._text(file, first, last) | self._words
            file.seek(after := max(self._number("$NEXTDATA", 0), 0))
            self._next = after if after and file.read(3) == b"FCS" else 0  # some write a number that means nothing
        self.notes: list[str] = []  # what is there and not used
        self.channels = self._channels()  # all of them; `take` chooses
        self._dtype = self._record()
        self._first, events = self._data(places)
        self.mass = MASS_CYTOMETER.search(self._words.get("$CYT", "")) is not None
        if "$COMP" in self._words or "$DFC1TO2" in self._words:
            self.notes.append("has spillover as in FCS 2.0, which is not taken out: is it compensated already?")
        if self._next:
            self.notes.append("has several data sets, of which the first is read")
        super().__init__(events, len(self.channels))
        self._taken, self._cofactor = list(range(len(self.channels))), 0.0
        self.spilled: list[int] = []  # numbers of the channels between which spillover is taken out
        self._inverse = np.zeros((0, 0))

    def take(self, features: Sequence[str], cofactor: float, compensate: bool) -> None:
        """Choose features, whether spillover is taken out, and what stains are divided by before arcsinh; 0: they stay
        as they are.
        """
        place = {channel.feature: number for number, channel in enumerate(self.channels)}
        lacking = [name for name in features if name not in place]
        if lacking:
            raise ValueError(f"{self.path}: has no channel {lacking[0]!r}, it has {listed(list(place))}")
        self._taken, self._cofactor = [place[name] for name in features], cofactor
        self.spilled, spillover = self._spillover() if compensate else ([], np.zeros((0, 0)))
        self._inverse = np.linalg.inv(spillover)
        self.shape = (self.shape[0], len(features))

    def _read(self, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        offset = self._first + start * self._dtype.itemsize
        held = np.fromfile(self.path, self._dtype, stop - start, offset=offset)
        if len(held) < stop - start:
            raise ValueError(f"{self.path}: is cut off, or was changed while it was read")
        out = np.empty((len(held), len(self._taken)))
        with np.errstate(over="ignore", invalid="ignore"):
            clean: dict[int, Float[np.ndarray, " rows"]] = {}
            if not set(self.spilled).isdisjoint(self._taken):
                seen = np.stack([self._linear(held[f"{number}"], self.channels[number]) for number in self.spilled], 1)
                clean = dict(zip(self.spilled, (seen @ self._inverse).T, strict=True))
            for column, number in enumerate(self._taken):
                channel = self.channels[number]
                linear = clean[number] if number in clean else self._linear(held[f"{number}"], channel)
                stain = self._cofactor and not NO_STAIN.match(channel.name)
                out[:, column] = np.arcsinh(linear / self._cofactor) if stain else linear
        return finite(out, str(self.path), start, [self.channels[number].feature for number in self._taken])

    def _linear(self, values: np.ndarray, channel: Channel) -> Float[np.ndarray, " rows"]:
        if values.dtype.kind == "u":
            bits = max(channel.top - 1, 0).bit_length()  # above these an instrument may leave anything
            numbers = (values & values.dtype.type((1 << min(bits, channel.bits)) - 1)).astype(np.float64)
            if channel.decades > 0:
                return channel.zero * 10 ** (channel.decades * numbers / channel.top)
            return numbers / channel.gain
        return values.astype(np.float64) / channel.gain

    def _spillover(self) -> tuple[list[int], Float[np.ndarray, "dyes dyes"]]:
        """Channels and matrix of the keyword: how many, their names, and the matrix row by row."""
        word = next((word for word in SPILLOVER if self._words.get(word)), None)
        nothing: tuple[list[int], np.ndarray] = ([], np.zeros((0, 0)))
        if word is None:
            return nothing
        parts = [part.strip() for part in self._words[word].split(",")]
        number = int(parts[0]) if re.fullmatch("[0-9]{1,4}", parts[0]) else 0
        if number < 1 or len(parts) != 1 + number + number**2:
            raise self._wrong(word, "must be a number n, n channels and n x n numbers, with commas between")
        names, texts = parts[1 : number + 1], parts[number + 1 :]
        place = {channel.name: at for at, channel in enumerate(self.channels)}
        if any(f"Comp-{name}" in place for name in names):
            return nothing  # as FlowJo writes what it has compensated
        lacking = [name for name in names if name not in place]
        if lacking:
            raise self._wrong(word, f"names the channel {lacking[0]!r}, the file has {listed(list(place))}")
        if len(set(names)) < number:
            raise self._wrong(word, "names a channel twice")
        try:
            matrix = np.array([float(text) for text in texts]).reshape(number, number)
        except ValueError:
            raise self._wrong(word, "must be a number n, n channels and n x n numbers, with commas between") from None
        if (matrix.diagonal() == 100).all():
            matrix = matrix / 100
            self.notes.append(f"has its spillover, {word}, in percent: it is read so")
        if not np.isfinite(matrix).all() or np.linalg.cond(matrix) > LARGEST_CONDITION:
            raise self._wrong(word, "has no inverse")
        if (matrix == np.eye(number)).all():
            return nothing
        return [place[name] for name in names], matrix

    def _wrong(self, word: str, what: str) -> ValueError:
        return ValueError(f"{self.path}: its spillover, {word}, {what}; fit with --compensate false does without")

    def _text(self, file: Any, first: int, last: int) -> dict[str, str]:
        if not 0 < first < last < self._size or last - first > LARGEST:
            raise ValueError(f"{self.path}: is cut off or damaged: its TEXT is said to be bytes {first:,} to {last:,}")
        file.seek(first)
        raw = file.read(last + 1 - first)
        try:
            held = raw.decode("utf-8")
        except UnicodeDecodeError:
            held = raw.decode("latin-1")
        mark, body = held[0], held.rstrip("\0 \r\n")[1:]
        # Two marks are one of a value, which none begins with: of three, the third ends it. The last one ends the last
        # value, so that two there are one too many.
        parts = [part.replace("\0", mark) for part in body.replace(2 * mark, "\0").rstrip("\0").split(mark)]
        if any(mark in word for word in parts[::2]):  # two are no character of a value here, but an empty value
            parts = body.split(mark)
        return {word.strip().upper(): value.strip() for word, value in zip(parts[::2], parts[1::2], strict=False)}

    def _data(self, places: Sequence[int]) -> tuple[int, int]:
        """The first byte of the events, and how many there are."""
        size, total = self._dtype.itemsize, self._number("$TOT", -1)
        text = self._number("$BEGINDATA", 0), self._number("$ENDDATA", 0)
        said_by = ("HEADER", places[2], places[3]), ("TEXT", *text)
        stated = [(who, first, last) for who, first, last in said_by if first > 0]
        ends = {self._size, self._size - CHECKSUM, self._next, self._number("$BEGINANALYSIS", 0)}

        def fits(first: int, events: int) -> bool:
            past = first + events * size
            return first > 0 <= events and past <= self._size and (first > places[1] or past <= places[0])

        said = [(first, total) for _, first, _ in stated if total >= 0]
        whole = [(first, (last + 1 - first) // size) for _, first, last in stated if (last + 1 - first) % size == 0]
        found = [one for one in dict.fromkeys(said + whole) if fits(*one)]
        # The last byte is often said to be the one behind it.
        agree = total < 0 or all(last + 1 - first - total * size in (0, 1) for _, first, last in stated)
        if not (agree and len(found) == 1 and len({first for _, first, _ in stated}) == 1):
            ending = [one for one in found if one[0] + one[1] * size in ends]
            found = ending or [one for one in found if one[0] == places[1] + 1]
            self.notes.append("differs in what HEADER, TEXT and $TOT say of DATA: taken is what fits the bytes there")
        if len(found) != 1:
            starts = " or ".join(f"{first:,} ({who})" for who, first, _ in stated) or "0"
            claim = f"{max(total, 0):,} events of {size} bytes from byte {starts} on"
            raise ValueError(f"{self.path}: is cut off or damaged: it says {claim}, and has {self._size:,} bytes")
        rest = self._size - found[0][0] - found[0][1] * size
        if 0 < rest < size and rest != CHECKSUM and not self._next:
            self.notes.append("has bytes behind DATA that are too few for an event: is it cut off, or read shifted?")
        return found[0]

    def _number(self, word: str, default: int | None = None) -> int:
        text = self._words.get(word, "").strip()
        if not text and default is not None:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError(f"{self.path}: {word} must be a whole number, it is {short(text)}")
        return int(text)

    def _channels(self) -> list[Channel]:
        if (mode := self._words.get("$MODE", "L").upper()) != "L":
            raise ValueError(f"{self.path}: has counts of events ($MODE {mode}), not the events themselves")
        number = self._number("$PAR")
        if number < 1:
            raise ValueError(f"{self.path}: has no channels")
        kind = self._kind()
        made, names = [], []
        for n in range(1, number + 1):
            name = self._words.get(f"$P{n}N") or f"P{n}"
            names.append((name, self._words.get(f"$P{n}S") or name))
            if self._words.get(f"$P{n}DATATYPE", kind) != kind:
                raise ValueError(f"{self.path}: channel {name!r} is of another type than $DATATYPE says: not read")
            bits = self._number(f"$P{n}B")
            if bits not in ({"F": (32,), "D": (64,)}.get(kind, (8, 16, 32, 64))):
                raise ValueError(f"{self.path}: channel {name!r} has numbers of {bits} bits, which are not read")
            made.append((n, bits))
        of = Counter(feature for _, feature in names)
        channels = []
        for (n, bits), (name, feature) in zip(made, names, strict=True):
            decades, zero = self._amplifier(n)
            gain = number_of(self._words.get(f"$P{n}G", "")) or 1.0
            gain = gain if 0 < gain < np.inf and not decades > 0 else 1.0
            top = self._number(f"$P{n}R") if kind == "I" else 0
            if kind == "I" and top < 1:
                raise ValueError(f"{self.path}: $P{n}R must be 1 or more, it is {top}")
            called = feature if of[feature] == 1 else f"{feature} ({name})"
            channels.append(Channel(name, called, bits, top, decades, zero, gain))
        if len({channel.feature for channel in channels}) < len(channels):
            twice = Counter(channel.feature for channel in channels).most_common(1)[0][0]
            raise ValueError(f"{self.path}: two channels are called {twice!r}")
        return channels

    def _kind(self) -> str:
        kind = self._words.get("$DATATYPE", "").upper()
        if kind not in ("I", "F", "D"):
            raise ValueError(f"{self.path}: $DATATYPE must be I, F or D, it is {short(kind)}")
        return kind

    def _amplifier(self, n: int) -> tuple[float, float]:
        parts = self._words.get(f"$P{n}E", "0,0").split(",")
        try:
            decades, zero = (float(part) for part in parts)
        except ValueError:
            text = short(self._words[f"$P{n}E"])
            raise ValueError(f"{self.path}: $P{n}E must be two numbers with a comma between, it is {text}") from None
        return decades, zero if zero > 0 else 1.0  # 0 was written where 1 is meant

    def _record(self) -> np.dtype:
        order = [part.strip() for part in self._words.get("$BYTEORD", "").split(",")]
        ways = {tuple(map(str, range(1, len(order) + 1))): "<", tuple(map(str, range(len(order), 0, -1))): ">"}
        mark = ways.get(tuple(order))
        if mark is None:
            text = short(self._words.get("$BYTEORD", ""))
            raise ValueError(f"{self.path}: $BYTEORD must be 1,2,3,4 or 4,3,2,1, it is {text}")
        letter = "u" if self._kind() == "I" else "f"
        fields = [(f"{number}", f"{mark}{letter}{c.bits // 8}") for number, c in enumerate(self.channels)]
        return np.dtype(fields)


def open_fcs(
    path: Path,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    cofactor: float | None = None,
    compensate: bool | None = None,
    fitted: bool = False,
) -> StoredSets:
    """A file, or a folder of files, of events: a set each, by name.

    Spillover is taken out, and then a stain x becomes arcsinh(x / cofactor). Scatter, time, width and the like stay as
    they are.

    Args:
        features: Names of channels, in this order. Default: those of the first file but time and the number or length
            of an event. A channel is called by its stain ($PnS), or where it has none by its name ($PnN), and by both
            where two have one stain.
        cofactor: Default: 5 where $CYT names a CyTOF or Helios, else 150. 0: no arcsinh.
        compensate: Take out spillover where a file says how much there is. Default: do.
        fitted: The features are those of a model.

    Raises:
        OSError, ValueError: No such file; naming the file: none of FCS, damaged, without such a channel; files of both
            kinds of cytometer.
    """
    if cofactor is not None and not 0 <= cofactor < float("inf"):
        raise ValueError(f"cofactor must be a number not below 0, got {cofactor}")
    opened = [Events(file) for file in files_of(path, (ENDING,))]
    first = opened[0]
    there = [channel.feature for channel in first.channels]
    for name in ignore:
        if name not in there:
            raise ValueError(f"{first.path}: has no channel {name!r}, it has {listed(there)}")
    chosen = [c.feature for c in first.channels if not NO_FEATURE.match(c.name)] if features is None else features
    taken = [name for name in chosen if name not in ignore]
    if not taken:
        raise ValueError(f"{first.path}: no channel is left, it has {listed(there)}")
    if cofactor is None:
        other = next((events for events in opened if events.mass != first.mass), None)
        if other is not None:
            pair = f"{first.path.name} and {other.path.name}"
            raise ValueError(f"{path}: {pair} are one of flow and one of mass cytometry: give --cofactor")
        cofactor = MASS if first.mass else FLUORESCENCE
    sets = []
    for events in opened:
        events.take(taken, cofactor, compensate is not False)
        sets.append(StoredSet(events, once(len(events)), 0, len(events), events.path.stem))
    require_elements(path, sets)
    with_matrix, others = ([one.path.name for one in opened if bool(one.spilled) == said] for said in (True, False))
    if not fitted and with_matrix and others:
        warnings.warn(
            f"{path}: spillover is taken out of {with_matrix[0]} and the like, but {others[0]} does not say how much "
            f"there is ({len(others):,} of {len(opened):,} files): is it compensated already?",
            stacklevel=2,
        )
    for note in dict.fromkeys(note for events in opened for note in events.notes) if not fitted else ():
        named = next(events.path for events in opened if note in events.notes)
        warnings.warn(f"{named}: {note}", stacklevel=2)
    unused = [] if fitted else [name for name in there if name not in taken]
    return StoredSets(Origin(path), sets, taken, unused, {"cofactor": cofactor, "compensate": compensate is not False})
