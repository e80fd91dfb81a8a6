"""Progress with rate and time left: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from tqdm import tqdm


class Progress:
    """How far something has come: a file, by bytes, with the rows that were read; or whatever is counted.

    >>> with Progress("reading", 100, show=False) as progress:
    ...     progress.at(50, rows=7)
    """

    def __init__(self, what: str, total: int, show: bool, unit: str = "B") -> None:
        every = 0.2 if sys.stderr.isatty() else 30.0
        self._bar: Any = tqdm(
            total=total,
            desc=what,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            disable=not show,
            mininterval=every,
            maxinterval=every,
        )

    def __enter__(self) -> Progress:
        return self

    def at(self, position: int, rows: int | None = None, unit: str = "rows") -> None:
        if rows is not None:
            self._bar.set_postfix_str(f"{rows:,} {unit}", refresh=False)
        self._bar.update(position - self._bar.n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
