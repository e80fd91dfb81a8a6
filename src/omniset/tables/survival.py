"""Times until an event in tables: the columns that hold them, by the names that people give them, and what is an event.

Where nobody says so, a column is taken for what its name says only if the other one of the pair is there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from omniset.tables.files import Origin, TableFile, listed
from omniset.tables.labels import LabelFile, bad_label, plain_numbers

NAMED = ("time", "event")
# Of The Cancer Genome Atlas (OS, OS.time), cBioPortal (OS_STATUS, OS_MONTHS) and R's survival (status, fustat).
END = "(os|pfi|dss|dfi|pfs|dfs|rfs|efs|ttp)"
EVENT = r"event|status|vital[._ ]status|fustat|dead|death|censor.*"
PAIRS = (
    (r"time|futime|t?stop|(overall[._ ])?survival[._ ]?(time|months|days)|days_to_event|time_to_event", EVENT),
    (rf"{END}[._ ]?(time|months|days|years)", r"{0}([._ ]?(status|event))?"),
)
ENTRY = re.compile(r"((time[._ ])?entry([._ ]time)?|t?start|(left|delayed)[._ ](truncation|entry)|truncation)", re.I)
FOLLOWED = re.compile(r"days_to_(death|last_follow)_?(?:up)?(?:\..+)?", re.I)  # of the Genomic Data Commons
SEEN = re.compile(
    "1|true|yes|dead|died|deceased|death|event|uncensored|relapsed?|recurred.*|recurrence|progress.*", re.I
)
UNSEEN = re.compile("0|false|no|alive|living|censor(ed)?|no[ -]event|event[ -]?free|disease[ -]?free", re.I)
CODED = re.compile("([01]):.*")  # of cBioPortal: 1:DECEASED


def survival_columns(
    labels: Path | None,
    columns: Sequence[str] | None,
    group: str | None,
    task: str,
    named: Sequence[str],
    set_column: str = "set",
) -> list[str] | None:
    """The columns of time and event, where times until an event are to be learned; else None.

    Args:
        labels: The file of labels. "auto": its targets are these two columns, or two that are called so.
        named: How the two columns are called.

    Raises:
        ValueError: Targets that were asked for beside --task survival; "auto": columns beside time and event, or
            several pairs; a column of when sets came under observation.
    """
    if task not in ("auto", "survival"):
        return None
    there = [] if labels is None else TableFile(labels).columns
    found = [[*named]] if {*named} <= {*there} else pairs_of(there) if tuple(named) == NAMED else []
    ends = {kind[1]: name for name in there if (kind := FOLLOWED.fullmatch(name))}
    if len(ends) == 2 and columns is None and (named[0] in ends.values() or not found):
        dead, last = sorted(ends.values())
        raise ValueError(
            f"{labels}: has its times in two columns: write {dead!r} where that is known, and {last!r} elsewhere, to "
            "one column, which --time_column names, and with --event_column that of the event, such as vital_status"
        )
    if task == "survival":
        if columns is not None and sorted(columns) != sorted(named):
            raise ValueError(
                f"target_columns={','.join(columns)} is not for task='survival': name the two columns with "
                "--time_column and --event_column"
            )
        chosen = found[0] if len(found) == 1 else [*named]
    else:
        targets = {*(there if columns is None else columns)} - {group, "set", set_column}
        found = [pair for pair in found if {*pair} <= targets and "element" not in targets]
        if not found:
            return None
        chosen, others = found[0], sorted(targets - {*found[0]})
        if any(ENTRY.fullmatch(other) is None for other in others):
            if columns is not None:
                return None
            how = "" if chosen == [*NAMED] else f" --time_column {chosen[0]} --event_column {chosen[1]}"
            raise ValueError(
                f"{labels}: has the columns {' and '.join(chosen)}, and others ({listed(others)}): --task survival"
                f"{how} learns times until an event, --target_columns names other targets"
            )
    if entry := [name for name in there if ENTRY.fullmatch(name)]:
        raise ValueError(
            f"{labels}: has a column {entry[0]!r}: that sets came under observation late (left truncation) is not "
            "taken into account; give times from then on and leave it out, or leave it out where it is 0"
        )
    return chosen


def pairs_of(names: Sequence[str]) -> list[list[str]]:
    """Columns that are called as a time and its event.

    >>> pairs_of(["OS", "OS.time", "age"]), pairs_of(["PFS_STATUS", "PFS_MONTHS"])
    ([['OS.time', 'OS']], [['PFS_MONTHS', 'PFS_STATUS']])
    """
    pairs = []
    for time, event in PAIRS:
        for one in names:
            if (end := re.fullmatch(time, one, re.IGNORECASE)) is not None:
                of = event.format(end[1] if end.groups() else "")
                pairs += [[one, other] for other in names if re.fullmatch(of, other, re.IGNORECASE)]
    return pairs


def as_survival(
    labels: LabelFile | None, values: pd.DataFrame, source: Origin, least: int, event_value: str | None = None
) -> pd.DataFrame:
    """Times and events, in two columns, as numbers.

    Args:
        least: Events that are needed.
        event_value: What the column of the event has where it was seen; anything else means that it was not.

    Raises:
        ValueError: A time that is negative or no number, an event of which nobody knows what it means; fewer events,
            or one time only.
    """
    time, event = values
    columns = {time: plain_numbers(values[time]), event: as_events(values[event], event_value)}
    with np.errstate(invalid="ignore"):
        wrong = {time: ~((columns[time] >= 0) & np.isfinite(columns[time])), event: np.isnan(columns[event])}
    known = "1, where the event was seen, or 0, or words such as dead and alive: --event_value names what means that"
    bounds = {time: "a number of at least 0", event: known}
    for column, bad in wrong.items():
        if bad.any():
            raise bad_label(labels, values, source, column, bad, bounds[column])
    file = source if labels is None else labels.file
    if event_value is None and {*plain_numbers(values[event])} == {1, 2}:
        warnings.warn(f"{file.path}: {event!r} is 2 where the event was seen and 1 elsewhere, as in R", stacklevel=2)
    if str(event).lower().startswith("cens") and event_value is None:
        raise file.error(None, f"column {event!r} may say where no event was seen: --event_value 0, or 1, tells")
    if (seen := int(columns[event].sum())) < least:
        there = "1 once" if seen else "0 everywhere"
        needed = "an event" if least == 1 else f"{least} events"
        raise file.error(None, f"column {event!r} is {there}: at least {needed} must have been seen")
    if np.ptp(columns[time]) == 0:
        raise file.error(None, f"column {time!r} is {columns[time][0]:g} everywhere: nothing to learn")
    return pd.DataFrame(columns, index=values.index)


def as_events(texts: pd.Series, event_value: str | None = None) -> np.ndarray:
    """1 where the event was seen, 0 where it was not, NaN where that cannot be told.

    >>> as_events(pd.Series(["1:DECEASED", "0:LIVING"])), as_events(pd.Series(["1", "2"]))
    (array([1., 0.]), array([0., 1.]))
    """
    plain = [" ".join(text.split()) if isinstance(text, str) else "" for text in texts]
    if event_value is not None:
        return np.array([np.nan if not text else float(text == event_value.strip()) for text in plain])
    numbers = plain_numbers(texts)
    if np.isfinite(numbers).any():
        if {*numbers} == {1, 2}:  # as R's survival has it
            return numbers - 1
        return np.where(np.isin(numbers, (0, 1)), numbers, np.nan)
    coded = [CODED.fullmatch(text) for text in plain]
    plain = [text if found is None else found[1] for text, found in zip(plain, coded, strict=True)]
    return np.array([1.0 if SEEN.fullmatch(t) else 0.0 if UNSEEN.fullmatch(t) else np.nan for t in plain])
