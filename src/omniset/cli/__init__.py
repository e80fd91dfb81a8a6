"""The command line. Commands are typed functions; what they need is imported when they run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal


def demo(
    out: Path = Path("demo-run"),
    data: Literal["digits", "mnist"] = "digits",
    folder: Path | None = None,
    epochs: int | None = None,
    max_sets: int | None = None,
    points: int = 512,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    resume: bool = False,
    progress: bool = True,
) -> None:
    """Learn to read handwritten digits as multisets of points.

    Three times: from whole sets, from shards with exact gradients, and with the first shard's gradient only. Takes
    under four minutes on two cores.

    Args:
        out: Folder for the model, metrics, learning curves and a picture.
        data: "digits" is scikit-learn's (nothing to download). "mnist" reads IDX files; on a CPU limit it with
            --max_sets and --epochs.
        folder: Where the MNIST files are. Default: the folder mnist in $OMNISET_DATA.
        epochs: How often each set is learned from. Default: 13 for digits, 10 for mnist.
        max_sets: Use only the first so many sets.
        points: Points drawn per MNIST digit.
        seed: The same seed gives the same numbers.
        device: Where to compute.
        resume: Go on with an interrupted demo in the same folder.
        progress: Show progress bars.
    """
    from omniset.demo import run

    try:
        run(out, data, folder, epochs, max_sets, points, seed, device, resume, progress)
    except KeyboardInterrupt:
        print(
            f"\nWhole epochs, if any, are kept in {out}: go on with the same command and --resume true", file=sys.stderr
        )
        raise


def _named(commands: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The command that the first words name, alone: to make the parsers of all others takes longer than it does."""
    found = commands.get(words[0]) if words else None
    if isinstance(found, dict):
        if len(words) < 2 or words[1] not in found:
            return commands
        found = {name: found[name] for name in ("_help", words[1])}
    return commands if found is None else {words[0]: found}


def main(arguments: list[str] | None = None) -> int:
    """Entry point. Exit codes: 0 done, 2 bad input, 130 interrupted. OMNISET_DEBUG=1 shows tracebacks."""
    import jsonargparse

    import omniset
    from omniset.cli import cells, genomes, microbiomes, regions, sets, studies
    from omniset.cli.parser import Parser

    commands: Any = {
        "demo": demo,
        "fit": sets.fit,
        "predict": sets.predict,
        "evaluate": sets.evaluate,
        "explain": sets.explain_sets,
        "genomes": {
            "_help": "Gene content of genomes: complete and clean it, with probabilities.",
            "fit": genomes.fit,
            "complete": genomes.complete,
            "evaluate": genomes.evaluate,
            "explain": genomes.explain_call,
            "simulate": genomes.simulate,
        },
        "cells": {
            "_help": "Single cells: vectors of cell states from counts, in which batches are mixed.",
            "inspect": cells.inspect,
            "fit": cells.fit,
            "embed": cells.embed,
            "query": cells.query,
            "decode": cells.decode,
            "explain": cells.explain_cells,
            "evaluate": cells.evaluate,
        },
        "regions": {
            "_help": "Brain regions: connectivity of pairs from the genes that they express.",
            "fit": regions.fit,
            "predict": regions.predict,
            "evaluate": regions.evaluate,
            "explain": regions.explain_pair,
            "simulate": regions.simulate,
        },
        "microbiomes": {
            "_help": "Microbiomes: a taxon for every read, in the context of its sample.",
            "fit": microbiomes.fit,
            "classify": microbiomes.classify,
            "evaluate": microbiomes.evaluate,
            "explain": microbiomes.explain_taxon,
            "simulate": microbiomes.simulate,
        },
        "studies": {
            "_help": "Experiments of the Universal Set Transformer paper, run again.",
            "list": studies.list_studies,
            "run": studies.run,
            "table": studies.table,
        },
    }
    before = sys.argv
    try:
        words = sys.argv[1:] if arguments is None else arguments
        sys.argv = [sys.argv[0], *words]  # what reports quote, and what is started once more for several processes
        jsonargparse.auto_cli(
            _named(commands, words),
            args=microbiomes.with_reads([*words]),
            prog="omniset",
            version=omniset.__version__,
            parser_class=Parser,
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("omniset: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain when it ends
        return 141
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("OMNISET_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            error = ValueError(f"{error.filename}: {error.strerror}")  # without Python's [Errno 2]
        print(f"omniset: error: {error}", file=sys.stderr)
        return 2
    finally:
        sys.argv = before
    return 0
