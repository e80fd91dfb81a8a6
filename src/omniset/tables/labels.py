"""What is to be predicted, from a file of labels or from columns of the table itself."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from omniset.core.encoding import NO_NUMBER
from omniset.core.features import MANY, MISSING, RowNumbers, doubt, meant, written
from omniset.core.sets import Sets
from omniset.tables.doubts import TRIED, WARNED, affix
from omniset.tables.files import Chunk, Origin, TableFile, listed
from omniset.tables.sheets import INFINITE, NUMBER

Task = Literal["classification", "regression", "survival"]
NO_NUMBERS = (*NO_NUMBER, *INFINITE)
PERSON = re.compile("patient|donor|subject|person|individual|mouse|animal", re.IGNORECASE)
FEW = 0.1  # of the different values of measured labels that are words: these say that one is missing

ROW = "\0row"  # a name that no column has


class LabelFile:
    """A table with a column `set`, optionally `element` (labels of elements), and the targets.

    Args:
        path: See `TableFile`.
        columns: The targets. Default: all columns but `set`, `element` and the group's; none of them may look like a
            row index or a misspelt name of these two.
        group: Column that says which sets belong together.
        set_column: The column that is called `set` here, where there is one of this name.

    Raises:
        OSError, ValueError: As TableFile; a column is missing; a set (or element) is labelled twice.
    """

    def __init__(
        self, path: str | Path, columns: Sequence[str] | None = None, group: str | None = None, set_column: str = "set"
    ) -> None:
        self.file = TableFile(path)
        self._set = set_column if set_column in self.file.columns else "set"
        if self._set not in self.file.columns and self.file.indexed:
            warnings.warn(f"{path}: its first column, without a name, is taken for the names of sets", stacklevel=2)
            self.file.take_index(self._set)
        self.file.require([self._set, *(columns or []), *([group] if group and group not in (columns or []) else [])])
        self.level: Literal["set", "element"] = "element" if "element" in self.file.columns else "set"
        others = [c for c in self.file.columns if c not in (self._set, "element", group)]
        self.columns = others if columns is None else list(columns)
        if group in self.columns:
            raise self.file.error(None, f"column {group!r} is the group: it cannot be a target too")
        if not self.columns:
            raise self.file.error(None, f"has no column beside {self._set!r} with what is to be predicted")
        for name in others if columns is None else []:
            if meant(name) != "multiplicity":  # a target may well be called count, or weight
                self._refuse(name, doubt(name))
        self._group = group
        looks = not group and self.level == "set" and self.file.separator  # of Parquet, columns may be of any type
        self._others = [c for c in others if c not in self.columns] if looks else []
        self._key = ["set", "element"] if self.level == "element" else ["set"]
        self.frame = self._read()
        self._remedy = "; --target_columns chooses others" if columns is None and len(self.columns) > 1 else ""
        if columns is None:
            numbered = RowNumbers(self.columns)
            values = np.stack([plain_numbers(self.frame[c]) for c in self.columns], 1)
            numbered.see(values, np.zeros(len(values), dtype=np.int64))
            self._refuse(*(numbered.doubt() or ("", None)))

    def _read(self) -> pd.DataFrame:
        frames: list[pd.DataFrame] = []
        keys = {key: self._set if key == "set" else key for key in self._key}
        read = [*self.columns, *self._others]
        for chunk in self.file.chunks([*keys.values(), *read, *([self._group] if self._group else [])]):
            columns = {key: chunk.text(name).to_pandas() for key, name in keys.items()}
            columns |= {c: as_labels(chunk, c) for c in read}
            if self._group:
                columns[self._group] = chunk.text(self._group).to_pandas()
            frames.append(pd.DataFrame(columns).assign(**{ROW: np.arange(chunk.first, chunk.first + len(chunk))}))
        if not frames:
            raise self.file.error(None, "has no rows below its header")
        frame = pd.concat(frames, ignore_index=True)
        again = frame.duplicated(self._key).to_numpy()
        if again.any():
            second = frame.iloc[int(again.argmax())]
            same = (frame[self._key] == second[self._key]).all(axis=1).to_numpy()
            first = self.file.where(int(frame[ROW].iloc[int(same.argmax())]))
            rule = f"labels have one row per {self.level}; the table of elements comes first, before --target"
            raise self.file.error(int(second[ROW]), f"{self._name(second)} has a label already ({first}): {rule}")
        for sentence in doubts_of_groups(frame, self._others, self.columns):
            warnings.warn(f"{self.file.path}: {sentence}", stacklevel=4)
        return frame.drop(columns=self._others)

    def _refuse(self, name: str, why: str | None) -> None:
        if why is not None:
            remedy = "drop it, or name the targets with --target_columns"
            raise self.file.error(None, f"column {name!r} would be a target, but {why}; {remedy}")

    def _name(self, row: pd.Series) -> str:
        return f"set {row['set']!r}" + (f", element {row['element']!r}" if self.level == "element" else "")

    def align(
        self, sets: Sets, source: Origin, elements: pa.ChunkedArray | None, unused: str = "error"
    ) -> pd.DataFrame:
        """The targets in the order of the sets (or of their elements).

        Args:
            source: The table of the sets, for messages.
            elements: Its column `element`.
            unused: "error", or "ignore" labels whose set (or element) is not there.

        Raises:
            ValueError: A set without a label; a label without its set (or element). Elements may lack one.
        """
        self._match(sets.names, source)
        frame = self.frame.set_index(self._key)
        if self.level == "set":
            wanted = pd.Index(sets.names)
        else:
            if elements is None:
                raise source.error(None, "has no column 'element', by which the labels of elements could be matched")
            names = np.repeat(np.asarray(sets.names, dtype=object), sets.sizes)
            wanted = pd.MultiIndex.from_arrays([names, elements.to_pandas()], names=self._key)
        used = frame.index.isin(wanted)
        if not used.all() and unused != "ignore":
            row, number = self.frame.iloc[int(used.argmin())], int((~used).sum())
            hint = "; if that is meant, say --unused_labels ignore"
            if near := [name for name in sets.names if str(name).casefold() == str(row["set"]).casefold()]:
                hint = f"; did you mean {near[0]!r}?"
            if not used.any():
                hint = f", whose sets are such as {listed(sets.names, 2)}: give both files the same names"
            raise self.file.error(int(row[ROW]), f"{self._name(row)} is not in {source.path}{_more(number)}{hint}")
        lost = self.frame["set"][~used].unique().tolist()
        if self.level == "set":
            missing = np.flatnonzero(~wanted.isin(frame.index))
            if len(missing):
                what = f"set {sets.names[missing[0]]!r} of {source.path}{_more(len(missing))}"
                others = f", but for others, such as {listed(lost, 3)}" if lost else ""
                raise self.file.error(None, f"has no label for {what}{others}: leave sets without one out of the table")
            empty = self.frame[self.columns].isna().to_numpy() & used[:, None]
            if empty.any():
                row, column = np.argwhere(empty)[0]
                at = int(self.frame[ROW].iloc[row])
                raise self.file.error(
                    at, f"column {self.columns[column]!r} is empty: each set needs a label{self._remedy}"
                )
        if (~used).mean() >= WARNED:
            what = f"{(~used).sum():,} of {len(used):,} labels are of others than {source.path} has"
            warnings.warn(f"{self.file.path}: {what}, such as of {listed(lost, 3)}: they are left out", stacklevel=2)
        return frame.reindex(wanted)

    def _match(self, names: Sequence[str], source: Origin) -> None:
        """Call sets as the table does, where names differ by what all begin or end with, or by how they are written."""
        mine = self.frame["set"].unique().tolist()
        lost, left = sorted({*mine} - {*names}), sorted({*names} - {*mine})
        plain = _written_plainly
        if len(lost) >= TRIED and (found := affix(lost, left)) is not None:
            pairs = {found.without(name): name for name in lost}
            same = {pairs[name]: name for name in left if name in pairs}
        elif len(left) >= TRIED and (found := affix(left, lost)) is not None:
            same = {str(found.without(name)): name for name in left}
        else:
            of = [Counter(map(plain, some)) for some in (lost, left)]
            there = {plain(name): name for name in left}
            same = {name: there[plain(name)] for name in lost if of[0][plain(name)] == of[1][plain(name)] == 1}
        if same and len(same) in (len(lost), len(left)):
            one, other = next(iter(same.items()))
            how = f"{one!r} is taken for {other!r} of {source.path}, and so are others like it"
            warnings.warn(f"{self.file.path}: names of sets are written in another way: {how}", stacklevel=3)
            self.frame["set"] = self.frame["set"].replace(same)

    def groups(self, sets: Sets) -> np.ndarray | None:
        """The group of each set, if there are groups.

        Raises:
            ValueError: A set of two groups, or, where elements are labelled, of none.
        """
        if self._group is None:
            return None
        of = self.frame.groupby("set")[self._group]
        several = of.nunique() > 1
        if several.any():
            raise self.file.error(None, f"column {self._group!r}: set {several.idxmax()!r} is of more than one group")
        groups = of.first().reindex(sets.names)
        if groups.isna().any():
            raise self.file.error(None, f"column {self._group!r}: set {groups.isna().idxmax()!r} is of no group")
        return groups.to_numpy()


def as_labels(chunk: Chunk, column: str) -> pd.Series:
    """A column of labels as text, missing where it is empty. Whole numbers are written without a fraction, and truth
    values as True and False.
    """
    values = chunk.columns[column]
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
        text = [None if n != n else str(int(n)) if w else repr(float(n)) for n, w in zip(numbers, whole, strict=True)]
        return pd.Series(text, dtype=object)
    text = pc.utf8_trim_whitespace(chunk.as_text(column, values))
    truth = pc.is_in(pc.utf8_lower(text), pa.array(("true", "false")))
    text = pc.if_else(truth, pc.utf8_capitalize(text), text)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).to_pandas().astype(object)


def column_labels(
    file: Origin, sets: Sets, kept: dict[str, pa.ChunkedArray], columns: Sequence[str], group: str | None, level: str
) -> tuple[pd.DataFrame, np.ndarray | None]:
    """Targets, and the groups of the sets, from columns of the table of the sets.

    Args:
        level: "element": a label per row. "set": the same label in all rows of a set.

    Raises:
        ValueError: A label, or a group, that changes within a set, or is missing.
    """
    values = pd.DataFrame({c: as_labels(Chunk(file, 0, {c: kept[c].combine_chunks()}), c) for c in columns})
    of_sets = [*(columns if level == "set" else []), *([group] if group else [])]
    first, same = sets.offsets[:-1], np.ones(int(sets.offsets[-1]), dtype=bool)
    same[first[sets.sizes > 0]] = False
    groups = None
    for column in of_sets:
        texts = as_labels(Chunk(file, 0, {column: kept[column].combine_chunks()}), column)
        missing = texts.isna().to_numpy()
        if missing.any():
            raise file.error(file.nth(int(missing.argmax())), f"column {column!r} is empty: each set needs one")
        changed = same & (texts != texts.shift()).to_numpy()
        if changed.any():
            row = int(changed.argmax())
            name = sets.names[int(np.searchsorted(sets.offsets, row, side="right")) - 1]
            was = f"{texts[row]!r} where set {name!r} had {texts[row - 1]!r}"
            raise file.error(file.nth(row), f"column {column!r} is {was}: one per set, or --level element")
        groups = texts.to_numpy()[first] if column == group else groups
    return (values.iloc[first] if level == "set" else values), groups


def choose_task(labels: LabelFile | None, values: pd.DataFrame, source: Origin, task: str) -> Task:
    """The kind of task. "auto": regression where all labels are numbers, with fractions or more than twenty of them.

    Raises:
        ValueError: An unknown one; "auto", and such numbers among which a word stands for a missing one.
    """
    if task in ("classification", "regression", "survival"):
        return task  # type: ignore[return-value]
    if task != "auto":
        raise ValueError(f"task must be 'auto', 'classification', 'regression' or 'survival', got {task!r}")
    measured: list[Any] = []
    worded: list[Any] = []
    for column in values:
        names = pd.Series(values[column].dropna().unique(), dtype=object)
        if (found := written(names, MANY)) or ((found := written(names)) and "comma" in found[1]):
            bound = f"a plain number to be learned as one, it is {found[1]}; --task classification takes classes"
            raise bad_label(labels, values, source, column, (values[column] == found[0]).to_numpy(), bound)
        numbers = plain_numbers(names)
        known = numbers[np.isfinite(numbers)]
        words = names[~np.isfinite(numbers)].tolist()
        many = len(known) > 20 or bool((known != np.round(known)).any())
        few = len(known) > 20 and len(words) <= FEW * len(known)
        if many and words and (few or all(word.casefold() in NO_NUMBERS for word in words)):
            bound = "a number, as the others are: leave out what has no label, or say --task classification"
            raise bad_label(labels, values, source, column, (values[column] == words[0]).to_numpy(), bound)
        (worded if words else measured if many else []).append(column)
    if measured and worded:
        kinds = f"{measured[0]!r} is a number and {worded[0]!r} a class, and a model learns one kind: --target_columns "
        raise (source if labels is None else labels.file).error(None, f"{kinds}chooses, or --task classification")
    return "regression" if measured else "classification"


def doubts_of_classes(values: pd.DataFrame) -> list[str]:
    """What to say of classes that are hardly meant: words for a missing label, and spellings of one class."""
    sentences = []
    for column in values:
        names = [name for name in values[column].dropna().unique().tolist() if isinstance(name, str)]
        missing = [name for name in names if name.casefold() in MISSING]
        if missing:
            sentences.append(
                f"{column}: {missing[0]!r} is a class; where it means that the label is missing, leave it out"
            )
        spellings: dict[Any, list[str]] = {}
        for name in names:
            same = float(name) if NUMBER.fullmatch(name) else " ".join(name.casefold().split())
            spellings.setdefault(same, []).append(name)
        for alike in spellings.values():
            if len(alike) > 1:
                sentences.append(f"{column}: {' and '.join(map(repr, alike))} are different classes; is it meant?")
    return sentences


def doubts_of_groups(values: pd.DataFrame, names: Sequence[str], targets: Sequence[str]) -> list[str]:
    """What to say of a column such as a patient of several sets: it has many values, in each of which a target is one.

    Args:
        names: Columns that are looked at, targets or others.
    """
    for name in names:
        named = values.dropna(subset=[name])
        each = named.groupby(name, sort=False)
        alike = [target for target in targets if target != name and (each[target].nunique(dropna=False) == 1).all()]
        many = len(named) < len(each) ** 2 or (len(each) > 2 and PERSON.search(name) is not None)
        if alike and many and 2 * len(each) <= len(named):
            return [
                f"{name}: sets of one {name} have the same {alike[0]}: where it says which sets belong together, give "
                f"it as --group {name} (in Python groups=), or what is said of new sets is of sets whose relatives "
                "were learned from"
            ]
    return []


def as_numbers(labels: LabelFile | None, values: pd.DataFrame, source: Origin) -> pd.DataFrame:
    """Targets as numbers, NaN where they are missing.

    Raises:
        ValueError: One that is no finite number, or too large for 32 bits.
    """
    columns = {}
    for column in values:
        columns[column] = numbers = plain_numbers(values[column])
        bad = values[column].notna().to_numpy() & ~(np.abs(numbers) <= np.finfo(np.float32).max)
        if bad.any():
            raise bad_label(labels, values, source, column, bad, "a finite number of at most 3.4e38")
    return pd.DataFrame(columns, index=values.index)


def require_known(labels: LabelFile | None, values: pd.DataFrame, source: Origin, classes: dict[str, list]) -> None:
    """See that a model knows the labels."""
    for column, known in classes.items():
        bad = (values[column].notna() & ~values[column].isin(known)).to_numpy()
        if bad.any():
            bound = f"one of those that the model learned: {', '.join(map(repr, known[:20]))}"
            raise bad_label(labels, values, source, column, bad, bound)


def bad_label(
    labels: LabelFile | None, values: pd.DataFrame, source: Origin, column: Any, bad: np.ndarray, bound: str
) -> ValueError:
    value = values[column].iloc[int(bad.argmax())]
    if labels is None:
        file, row = source, source.nth(int(values.index[bad][0]))
    else:
        held = labels.frame.loc[(labels.frame[column] == value).to_numpy(), ROW]
        file, row = labels.file, int(held.iloc[0])
    return file.error(row, f"column {column!r} is {value!r}, it must be {bound}")


def require_choice(labels: LabelFile | None, values: pd.DataFrame, source: Origin) -> None:
    """See that there is something to learn: two different values of each target."""
    for column in values:
        distinct = values[column].dropna().unique()
        if len(distinct) < 2:
            what = f"is {distinct[0]!r} wherever it is known" if len(distinct) else "is empty"
            file = source if labels is None else labels.file
            raise file.error(None, f"column {column!r} {what}: nothing to learn, it needs two different values")


def plain_numbers(texts: pd.Series) -> np.ndarray:
    return np.array([float(t) if isinstance(t, str) and NUMBER.fullmatch(t) else np.nan for t in texts], np.float64)


def _written_plainly(name: str) -> str:
    """Without the ending of a file, zeros in front of numbers, capitals and further spaces.

    >>> [_written_plainly(name) for name in ("A01.FCS", "slide 7.ome.tiff", "007", "7.0", "S.1")]
    ['a1', 'slide 7', '7', '7', 's.1']
    """
    stem = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{1,5}){1,2}$|(?<=\d)\.0$", "", name)
    return " ".join(re.sub(r"(?<![\d.])0+(?=\d)", "", stem).casefold().split())


def _more(number: int) -> str:
    return f" ({number} such)" if number > 1 else ""
