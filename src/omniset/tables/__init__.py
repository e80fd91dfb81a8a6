"""Sets in files of many kinds, read as they come; labels beside them, genes and vectors of genes."""

from omniset.lazy import lazily

__all__ = ["LabelFile", "SetTable", "TableFile", "TableWriter", "collect", "open_sets"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "LabelFile": "labels",
        "SetTable": "sets",
        "TableFile": "files",
        "TableWriter": "files",
        "collect": "sets",
        "open_sets": "reading",
    },
)
