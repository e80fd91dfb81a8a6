"""What the forms of a block cost on a processor, so that the fastest is taken: operations, and what beside them takes
the time of so many.

The numbers were fitted to times with the gradient, on one thread and on two, of 1 to 100 sets of 10 to 4,000 elements,
4 and 16 points, widths 32 to 128. Where two forms are about as fast, they may choose the slower one: of what was
measured, by a fifth at most with the gradient, by a third without. More threads and other processors were not measured.
The number of threads is not asked for: it shall not choose the form of a result.
"""

from __future__ import annotations

import math
from typing import NamedTuple

LANES = 16  # to which small.cpp pads rows, in float32 with the widest vectors
ALONE = 1.6  # a small set is not shared out
OF_SET, OF_SETS = 1 << 15, 1 << 19  # numbers of rows, beyond which the steps of a small set, or of all, leave a cache
LARGER = 1.3
CACHED = 1 << 17  # numbers of the rows, beyond which PyTorch's operations wait for memory
BEYOND = 1.5
SOFTMAX = 1.25  # of folded elements: more exponentials, norms and reading in turn
POINTS = 60  # products of the width with itself, to fold a point
SMALL, WHOLE, FOLDED = 6e6, 22e6, 50e6  # of Python, for a pass and its gradient


class Block(NamedTuple):
    """Sizes of a block: of its sets, of the queries and elements of each, of the FFN (0: none)."""

    sets: int
    queries: int
    elements: int
    dim: int
    heads: int
    ffn: int

    @property
    def cost_small(self) -> float:
        """small.py."""
        queries, elements = (math.ceil(rows / LANES) * LANES for rows in (self.queries, self.elements))
        of_set = max(queries, elements) * self.dim
        dearer = LARGER if of_set > OF_SET or self.sets * of_set > OF_SETS else 1.0
        return self._operations(queries, elements) * dearer * (ALONE if self.sets == 1 else 1) + SMALL

    @property
    def cost_whole(self) -> float:
        """whole.py."""
        numbers = self.sets * max(self.queries, self.elements) * self.dim
        return self._operations(self.queries, self.elements) * (BEYOND if numbers > CACHED else 1) + WHOLE

    @property
    def cost_folded(self) -> float:
        """folded.py, which folds the fewer of both into weights."""
        points, many = sorted((self.queries, self.elements))
        of_element = 4 * points * self.heads + (4 * self.ffn if self.queries > self.elements else 0)
        return self.sets * self.dim * (SOFTMAX * many * of_element + POINTS * points * self.dim) + FOLDED

    def _operations(self, queries: int, elements: int) -> int:
        of_query = 4 * self.dim + 4 * self.ffn + 4 * elements
        return self.sets * self.dim * (queries * of_query + elements * 4 * self.dim)
