"""Which entries of a padded batch are present, as far as it decides how the sets are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Presence:
    """What multiplicities say, found out once for as long as nobody changes them.

    Attributes:
        lengths: Of each set the entries up to the last one that is present.
        once: Whether all entries of the padded sets are present, once each.
        mark: Of the multiplicities when this was found out; None where PyTorch does not count changes.
    """

    lengths: Int[np.ndarray, " sets"]
    once: bool
    mark: tuple[int, int] | None

    @classmethod
    def of(cls, multiplicity: Shaped[Tensor, "sets elements"]) -> Presence:
        m = multiplicity.detach()
        places = torch.arange(1, m.shape[1] + 1, device=m.device)
        lengths = ((m > 0) * places).amax(1) if len(places) else m.new_zeros(len(m), dtype=torch.long)
        *each, once = torch.cat([lengths, (m == 1).all()[None].long()]).tolist()  # one wait for an accelerator
        return cls(np.array(each, dtype=np.int64), bool(once), _mark(multiplicity))

    def holds(self, multiplicity: Tensor) -> bool:
        return self.mark is not None and self.mark == _mark(multiplicity)

    def moved(self, multiplicity: Tensor) -> Presence:
        """That of a copy on another device."""
        return replace(self, mark=_mark(multiplicity))


def _mark(multiplicity: Tensor) -> tuple[int, int] | None:
    return None if multiplicity.is_inference() else (id(multiplicity), multiplicity._version)
