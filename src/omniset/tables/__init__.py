"""Sets in files: long tables (Parquet, CSV, TSV), read as they come, and labels beside them."""

from omniset.tables.files import TableFile, TableWriter
from omniset.tables.labels import LabelFile
from omniset.tables.sets import SetTable, TableSet, collect

__all__ = ["LabelFile", "SetTable", "TableFile", "TableSet", "TableWriter", "collect"]
