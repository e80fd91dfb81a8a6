"""Sets, sources of their shards, the states that sum them up, and multiset attention."""

from omniset.lazy import lazily

__getattr__, __dir__ = lazily(
    __name__, dict.fromkeys(("attention", "disk", "multisets", "sets", "sources", "states", "stored"), "")
)
