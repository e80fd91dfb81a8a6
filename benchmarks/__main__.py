import importlib
import sys

NAMES = (
    "exactness",
    "author",
    "demo",
    "digits",
    "examples",
    "speed",
    "encoders",
    "grid",
    "batches",
    "multisets",
    "busy",
    "held_back",
    "scale",
    "memory",
    "growth",
    "ensembles",
    "sets",
    "folders",
    "flows",
    "genomes",
    "cells",
    "regions",
    "microbiomes",
    "fuzz",
    "interruptions",
    "notebooks",
    "tables",
)
TAKE_OPTIONS = ("cells", "encoders", "fuzz", "genomes", "growth", "held_back", "interruptions", "regions", "speed")
TAKE_OPTIONS += ("notebooks",)

if sys.argv[1:2] == [] or sys.argv[1] not in NAMES or (len(sys.argv) > 2 and sys.argv[1] not in TAKE_OPTIONS):
    sys.exit(f"usage: python -m benchmarks {{{','.join(NAMES)}}}")
importlib.import_module(f"benchmarks.{sys.argv[1]}").main()
if sys.argv[1] != "tables":  # the pages say what was just measured
    from benchmarks import tables

    tables.write()
