"""Tables in files, read as they come: sets (Parquet, CSV, TSV), labels beside them, genes and vectors of genes."""

from omniset.lazy import lazily

__all__ = ["LabelFile", "SetTable", "TableFile", "TableWriter", "collect"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "LabelFile": "labels",
        "SetTable": "sets",
        "TableFile": "files",
        "TableWriter": "files",
        "collect": "sets",
    },
)
