import importlib
import sys

NAMES = (
    "exactness",
    "demo",
    "speed",
    "grid",
    "multisets",
    "scale",
    "memory",
    "ensembles",
    "genomes",
    "cells",
    "regions",
    "microbiomes",
    "tables",
)

if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
    sys.exit(f"usage: python -m benchmarks {{{','.join(NAMES)}}}")
importlib.import_module(f"benchmarks.{sys.argv[1]}").main()
