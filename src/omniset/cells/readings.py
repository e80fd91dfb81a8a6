"""What the values of a source are, and counts out of them.

Whether a matrix holds counts or log1p of them is decided once for each source, from a sample of its cells; it is never
guessed cell by cell, since small panels and shallow cells look like logarithms.

Counts out of logarithms. Let x = log1p(f_i c), c the counts of cell i and f_i its factor (target sum / library size).
Then expm1(x) = f_i c, and where the cell has a gene with one count the smallest positive value is f_i. If expm1(x)
divided by the smallest is whole, the counts are back. A cell whose smallest count is k > 1 shows in fractions of k: the
smallest k <= 10 that makes all whole is taken. (Counts with a common divisor look like those of a shallower
cell.)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool

from omniset.tables.matrices import Source, spelled

INPUTS = ("auto", "counts", "log1p")
BLOCK = 256  # cells read at a time: single rows are read 20 to 50 times slower
SAMPLE = 2000  # cells of a source that the decision is taken from
RUN = 100  # of them next to each other
MOST_LOG = 20.0  # log1p of a count is below: e^20 = 5e8
WHOLE = 1e-3  # how far a stored count may be from a whole number
NEAR = 0.02  # how far a recovered one
SHARE = 0.95  # of the values of the sample must be whole to be counts, or recovered to be logarithms
EXACT = 1e-4  # how far the logarithm of a count may be from the one that is stored
ALIKE = 0.01  # spread of the cells' sums, relative to their mean, up to which they were normalised to one
DIVISORS = 10
MANY = 10_000  # values, of which some count is above 1
LARGE = 1e5  # counts from which on their logarithms, in 32 bits, are near that of a whole number by chance
BASES = (math.e, 2.0, 10.0)  # of logarithms
TOTAL = 1e4  # of a cell whose counts are not known


@dataclass(frozen=True)
class Reading:
    """How the values of a source become counts."""

    kind: str  # "counts" or "log1p", what is stored
    # "stored" (the values are the counts), "log1p" (expm1 is the counts), "normalised" (the counts are recovered) or
    # "relative" (they are not: expm1, scaled to `TOTAL` per cell).
    how: str
    note: str  # the decision in one sentence
    base: float = math.e  # of the logarithm


def decide(source: Source, wanted: str) -> Reading:
    """Counts or logarithms, from a sample of cells spread over the source."""
    sample = _sample(source)
    values, cells = sample.data, source.shape[0]
    fractions = values[_distance(values) > WHOLE]
    size = f"{cells:,} {'cell' if cells == 1 else 'cells'}"
    looked = f"{len(fractions):,} of {len(values):,} values looked at are not whole"
    looked += f", such as {fractions[0]:g}" if len(fractions) else ""

    def middle(counts: sp.csr_array) -> str:
        about = "median" if counts.shape[0] == cells else "median about"
        return f"{about} {np.median(counts.sum(axis=1, dtype=np.float64)):,.0f} UMI"

    def reading(kind: str, how: str, words: str, base: float = math.e) -> Reading:
        return Reading(kind, how, f"{source.name}: {words}", base)

    kind, how, base = _kind(source, sample, fractions, looked) if wanted == "auto" else (wanted, "", math.e)
    if kind == "counts":
        if len(fractions):
            given = "input='counts', but " if wanted == "counts" else "taken for counts, but "
            warnings.warn(f"{source.name}: {given}{looked}; they are taken as they are", stacklevel=4)
            words = f"counts, of which {looked}"
        else:
            words = "integer counts" if len(values) else "no counts at all in the cells looked at"
            if len(values) >= MANY and values.max() == 1:
                warnings.warn(
                    f"{source.name}: all {len(values):,} counts looked at are 1: were they cut?", stacklevel=4
                )
        return reading("counts", "stored", f"{words}, {size}, {middle(sample)}")
    if wanted == "log1p":
        _refuse_large(source, values, "say input='counts' or 'auto'")
        if len(values) and len(fractions) <= (1 - SHARE) * len(values):
            are = (
                f"only {looked}" if len(fractions) else f"all {len(values):,} values looked at are whole as counts are"
            )
            warnings.warn(f"{source.name}: input='log1p', but {are}; they are taken as log1p", stacklevel=4)
        how, base = _way(sample, ("log1p", "normalised"))
    if how == "relative":
        words = "counts cannot be recovered, library sizes are not known: values are scaled to a sum of"
        base = _equal_base(sample) or math.e
        return reading("log1p", how, f"{_logarithms(base)}{_target(sample, base)}, {size}; {words} {TOTAL:,.0f}", base)
    words = f"{_logarithms(base)} of counts" + (_target(sample, base) if how == "normalised" else "")
    counts, _ = _recovered(sample, how, base)
    return reading("log1p", how, f"{words}, {size}; the counts are recovered, {middle(counts)}", base)


def _kind(source: Source, sample: sp.csr_array, fractions: np.ndarray, looked: str) -> tuple[str, str, float]:
    """What nobody has said: kind, how and base of a `Reading`.

    At least 95 % of the values whole: counts, unless those that are not are logarithms to base 2 of whole numbers, as
    in shallow cells 1 is that of one count. Else logarithms are recognised by their counts, which come back, or by sums
    of cells that are equal without the logarithm. Anything else is an error, since a guess would make 511 of a count of
    9.
    """
    values = sample.data
    ask = "say input='counts' if they are counts, input='log1p' if they are their logarithms"
    what = f"{source.name}: {spelled(source.layer)}"
    if len(fractions) <= (1 - SHARE) * len(values):
        counts = _without_log(fractions, 2.0)
        if len(fractions) and (np.abs(np.log2(np.rint(counts) + 1) - fractions) < EXACT).all():
            raise ValueError(
                f"{what} may be counts, since {looked}, or logarithms to base 2, since all of these are such: {ask}"
            )
        return "counts", "stored", math.e
    advice = f"if they are counts all the same say input='counts'; {_advice(source)}"
    _refuse_large(source, values, f"{advice}; if they are normalised, take log1p of them first", fractions)
    how, base = _way(sample, ("log1p", "normalised", "linear"))
    if how == "relative":
        base = _equal_base(sample, (*BASES, 1.0)) or 0.0
    if how == "linear" or base == 1:
        made = (
            "counts that were divided by a size of each cell" if how == "linear" else "shares of each cell, as scVI's"
        )
        raise ValueError(
            f"{what} has {made}, and not the logarithms of these: take log1p of them first, or {ask}; {_advice(source)}"
        )
    if not base:
        shares = ", all are below 1 as shares and TF-IDF are" if values.max() < 1 else ""
        raise ValueError(
            f"{what} cannot be told to be counts ({looked}{shares}) or logarithms (whole counts do not come back out "
            f"of them): {ask}; {_advice(source)}"
        )
    return "log1p", how, base


def _way(sample: sp.csr_array, ways: tuple[str, ...]) -> tuple[str, float]:
    """How counts come back, and out of logarithms to which base: "relative" where they do not.

    The best way, not the first that will do: where nearly all counts are 1 a wrong base is wrong on few values. Values
    that are whole as they are stored tell nothing, since 2^x - 1 is whole too.
    """
    telling = _distance(sample.data) > WHOLE
    best, way = 0.0, ("relative", math.e)
    for base, how in product(BASES, ways):
        if how == "linear" and base != math.e:
            continue
        counts, near = _recovered(sample, how, base)
        near &= counts.data < LARGE
        share = float(min(near.mean(), near[telling].mean())) if telling.any() else 0.0
        if share >= SHARE and share > best:
            best, way = share, (how, base)
        if share == 1:
            break
    return way


def _refuse_large(source: Source, values: np.ndarray, advice: str, fractions: np.ndarray | None = None) -> None:
    if len(values) and values.max() >= MOST_LOG:
        raise ValueError(
            f"{source.name}: {spelled(source.layer)} has values up to {values.max():g}, which are no log1p (all are "
            f"below {MOST_LOG:g})"
            + ("" if fractions is None else f", and some are not whole, such as {fractions[0]:g}")
            + f": {advice}"
        )


def _sample(source: Source) -> sp.csr_array:
    """All cells, or runs of cells spread evenly over the source."""
    cells = source.shape[0]
    runs = spans(cells)
    if cells > SAMPLE:
        runs = [(start, start + RUN) for start in np.linspace(0, cells - RUN, SAMPLE // RUN).astype(int).tolist()]
    blocks = []
    for start, stop in runs:
        blocks.append(source.rows(start, stop))
        _refuse_no_counts(source, blocks[-1], start, log=False)
    return sp.csr_array(sp.vstack(blocks, format="csr"))


def _equal_base(sample: sp.csr_array, bases: tuple[float, ...] = BASES) -> float | None:
    """The base of the logarithm without which all cells have the same sum, most nearly; 1 is none at all."""
    spread, base = min((_sums(sample, base)[0], -base) for base in bases)
    return -base if spread <= ALIKE else None


def _sums(sample: sp.csr_array, base: float) -> tuple[float, float]:
    """What cells add up to without the logarithm: the spread, relative to the mean, and the median."""
    values = _without_log(sample.data, base)
    sums = sp.csr_array((values, sample.indices, sample.indptr), sample.shape).sum(axis=1)
    sums = sums[sums > 0]
    return (math.inf, 0.0) if len(sums) < 2 else (float(sums.std() / sums.mean()), float(np.median(sums)))


def _target(sample: sp.csr_array, base: float) -> str:
    """What cells were normalised to, where their sums tell."""
    spread, total = _sums(sample, base)
    return f" normalised to {total:,.0f} per cell" if spread <= ALIKE else ""


def _logarithms(base: float) -> str:
    return "logarithms" if base == math.e else f"logarithms to base {base:g}"


def _without_log(values: np.ndarray, base: float) -> np.ndarray:
    return values.astype(np.float64) if base == 1 else np.expm1(values.astype(np.float64) * math.log(base))


def spans(cells: int, size: int = BLOCK) -> list[tuple[int, int]]:
    """First and last cell, excluded, of each block that is read at once."""
    return [(start, min(start + size, cells)) for start in range(0, cells, size)]


def _recovered(block: sp.csr_array, how: str, base: float) -> tuple[sp.csr_array, Bool[np.ndarray, " entries"]]:
    """Counts out of logarithms ("linear": out of what was normalised only), and which values are near whole numbers
    before they are rounded.
    """
    values = block.data.astype(np.float64) if how == "linear" else _without_log(block.data, base)
    if how != "log1p" and len(values):
        lengths = np.diff(block.indptr)
        filled = np.flatnonzero(lengths)
        row_of = np.repeat(np.arange(len(filled)), lengths[filled])
        values /= np.minimum.reduceat(values, block.indptr[filled])[row_of]
        times = np.ones(len(filled))
        pending = np.ones(len(filled), dtype=bool)
        for divisor in range(1, DIVISORS + 1):
            among = pending[row_of]
            trial = values[among] * divisor
            far = np.zeros(len(filled), dtype=bool)
            far[row_of[among][_distance(trial) > _allowed(trial)]] = True
            times[pending & ~far] = divisor
            pending &= far
            if not pending.any():
                break
        values *= times[row_of]
    near = _distance(values) <= _allowed(values)
    counts = np.rint(values).astype(np.float32)
    return sp.csr_array((counts, block.indices, block.indptr), block.shape), near


def _distance(values: np.ndarray) -> np.ndarray:
    """From the nearest count of at least 1: zeros are not among values."""
    return np.abs(values - np.maximum(np.rint(values), 1))


def _allowed(values: np.ndarray) -> np.ndarray:
    # A logarithm kept as float32 gives its value back to a few 1e-7.
    return NEAR + 1e-6 * values


def read_counts(source: Source, reading: Reading, start: int, stop: int) -> tuple[sp.csr_array, int]:
    """Counts of some cells of a source over all its genes, and how many of them were not whole before rounding.

    Raises:
        ValueError: A value that is neither a count nor a logarithm of one.
    """
    block = source.rows(start, stop)
    _refuse_no_counts(source, block, start, log=reading.how != "stored")
    if reading.how == "stored":
        return block, int((_distance(block.data) > WHOLE).sum())
    if reading.how == "relative":
        values = _without_log(block.data, reading.base)
        rows = np.repeat(np.arange(stop - start), np.diff(block.indptr))
        sums = np.bincount(rows, weights=values, minlength=stop - start)
        scaled = (values * TOTAL / sums[rows]).astype(np.float32)
        return sp.csr_array((scaled, block.indices, block.indptr), block.shape), 0
    counts, near = _recovered(block, reading.how, reading.base)
    counts.eliminate_zeros()
    return counts, int((~near).sum())


def not_whole(source: Source, reading: Reading, broken: int, values: int) -> str | None:
    """What a look at all values adds to the decision from the sample."""
    if broken and "integer counts" in reading.note:
        return (
            f"{source.name}: taken as integer counts, but {broken:,} of its values are not whole; they are taken as "
            "they are"
        )
    if reading.kind == "log1p" and broken > (1 - SHARE) * values:
        return (
            f"{source.name}: taken as logarithms of counts, but {broken:,} of {values:,} values give no whole counts; "
            "they are rounded: are they of several kinds?"
        )
    return None


def _refuse_no_counts(source: Source, block: sp.csr_array, start: int, log: bool) -> None:
    """Raise ValueError at a value that is neither a count nor a logarithm of one."""
    values = block.data
    bad = ~np.isfinite(values) | (values < 0) | (log & (values >= MOST_LOG))
    if not bad.any():
        return
    at = int(bad.argmax())
    value = float(values[at])
    cell = int(np.searchsorted(block.indptr, at, side="right")) - 1
    where = (
        f"{source.name}: {spelled(source.layer)} has {value:g} for gene {source.genes[int(block.indices[at])]!r} in "
        f"cell {source.names[start + cell]!r} (number {start + cell + 1})"
    )
    if value >= MOST_LOG and math.isfinite(value):
        raise ValueError(
            f"{where}, which is no log1p (those are below {MOST_LOG:g}): say input='counts' or clean the values"
        )
    why = "negative (scaled or centred?)" if value < 0 else "missing" if math.isnan(value) else "infinite"
    raise ValueError(f"{where}, which is {why}: counts or log1p of counts are needed; {_advice(source)}")


def _advice(source: Source) -> str:
    """Which other matrices of the source would do, by their first cells."""
    good: dict[bool, list[str]] = {True: [], False: []}  # by whether they are whole
    for layer in source.choices:
        if layer == source.layer:
            continue
        try:
            with source.other(layer) as other:
                values = other.rows(0, min(RUN, other.shape[0])).data
        except ValueError:
            continue
        if np.isfinite(values).all() and (values >= 0).all():
            whole = bool((_distance(values) <= WHOLE).all())
            good[whole].append("None" if layer is None else repr(layer))
    best = good[True] or good[False]
    return f"layer={' or '.join(best)} would do" if best else "it has no other matrix that would do"
