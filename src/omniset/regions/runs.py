"""`omniset regions`: the verbs of `ConnectivityPredictor` on files, with their reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from omniset.console import noted, own_command, run_folder, say, say_notes
from omniset.files import provenance, replacing, write_json
from omniset.gene_vectors import read_gene_vectors
from omniset.regions import report
from omniset.regions.blend import Blend
from omniset.regions.data import Regions
from omniset.regions.evaluate import MINE, Evaluation
from omniset.regions.evaluate import evaluate as run_evaluation
from omniset.regions.predictor import ConnectivityPredictor, positions
from omniset.regions.reading import read_regions
from omniset.regions.splits import split as divide
from omniset.report import multiqc
from omniset.report import write as write_report
from omniset.report.blocks import many
from omniset.tables.files import TableFile, TableWriter, kind_of

GENES = 100  # whose importance the report of fit has, at most
SECONDS = 60.0  # that this may take, about
FEWEST = 5  # genes, or none: less is not worth the wait


def fit(
    files: dict[str, Path | None],
    read: dict[str, Any],
    arguments: dict[str, Any],
    gene_vectors: Path | None,
    out: Path,
    resume: bool,
) -> ConnectivityPredictor:
    """See `omniset.cli.regions.fit`."""
    predictor = ConnectivityPredictor(**arguments)
    predictor.check_arguments()
    with run_folder(out), noted() as notes:
        regions = _read(files, read)
        talk = _talk(predictor.progress)
        if (out / "config.json").exists() and not resume:
            say(f"{out} holds a model already: it is replaced when this one is done")
        _describe(regions)
        everything = np.arange(len(regions))
        predictor.fit_rows(regions, everything, gene_vectors=gene_vectors, folder=out, resume=resume, say=talk)
        about = provenance(predictor.seed)
        predictor.save(out, {"provenance": about})
        if predictor.weights_:
            say("  weights: " + ", ".join(f"{name} {value:.2f}" for name, value in predictor.weights_.items()))
        if isinstance(predictor.method_, Blend) and "blend" in predictor.method_.scores:
            say(f"  Pearson's r on regions held back within the training: {predictor.method_.scores['blend']:.3f}")
        talk("writing the report")
        page, numbers = report.of_fit(
            predictor,
            _importance(predictor, talk),
            title=f"Model of {_title(files)}",
            command=own_command(),
            notes=notes(),
            provenance=about,
        )
        write_report(out, page, numbers)
        histories = predictor.history_
        multiqc.write(out, out.resolve().name, {}, next(iter(histories.values()), []))
        say_notes(notes())
        say(f"Written to {out}: the model, report.html, report.json")
        return predictor


def predict(
    files: dict[str, Path | None],
    read: dict[str, Any],
    overrides: dict[str, Any],
    model: Path,
    pairs: Path | None,
    out: Path,
) -> Float[np.ndarray, "..."]:
    """See `omniset.cli.regions.predict`. Of pairs a vector, of all of them a square."""
    matrix = out.suffix == ".npy"
    if matrix and pairs is not None:
        raise ValueError(f"out must be a table for pairs, ending in .csv, .tsv or .parquet; got {out}")
    if not matrix:
        kind_of(out)
    predictor = _load(model, overrides)
    with noted() as notes:
        regions = _given(files, read)
        if pairs is None:
            found = predictor.predict_matrix(regions) if regions is not None else predictor.predict_matrix()
            _write_matrix(found, out)
            say(f"Written to {out}: {len(found):,} x {len(found):,} regions")
            values = found.to_numpy()
        else:
            names = (regions or predictor.regions_).names
            listed = _pairs(pairs, names)
            at = positions(listed, names)
            values = predictor.predict(at) if regions is None else predictor.predict(at, regions)
            with TableWriter(out) as writer:
                writer.write(listed.assign(connectivity=values))
            say(f"Written to {out}: {many(len(listed), 'pair')}")
        say_notes(notes())
        return values


def explain(
    files: dict[str, Path | None],
    read: dict[str, Any],
    overrides: dict[str, Any],
    model: Path,
    first: str,
    second: str,
    out: Path,
    top: int,
    repeats: int,
) -> pd.DataFrame:
    """See `omniset.cli.regions.explain_pair`."""
    for name, value in (("top", top), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    _refuse_model(out)
    predictor = _load(model, overrides)
    with run_folder(out), noted() as notes:
        regions = _given(files, read)
        found = predictor.explain(first, second, *([] if regions is None else [regions]), top=top)
        _talk(predictor.progress)("permuting genes")
        genes = predictor.importance(repeats=repeats, top=top)
        say(f"{first} attends to {second}\n  {'gene':16}{'attends to':16}{'weight':>12}")
        for row in found.head(10).to_dict("records"):
            say(f"  {row['gene_i']:16}{row['gene_j']:16}{row['weight']:>12.3g}")
        for name, frame in (("pairs", found), ("genes", genes)):
            with TableWriter(out / f"{name}.tsv") as writer:
                writer.write(frame)
        page, numbers = report.of_explanation(
            found,
            genes,
            first,
            second,
            title=f"{first} and {second}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(predictor.seed),
        )
        write_report(out, page, numbers)
        say_notes(notes())
        say(f"Written to {out}: pairs.tsv (attention), genes.tsv (importance and attention), report.html")
        return found


def evaluate(
    files: dict[str, Path | None],
    read: dict[str, Any],
    arguments: dict[str, Any],
    gene_vectors: Path | None,
    split: str,
    folds: int,
    seeds: int,
    null: int,
    baselines: Sequence[str] | None,
    out: Path,
    resume: bool,
) -> Evaluation:
    """See `omniset.cli.regions.evaluate`."""
    _refuse_model(out)
    first = ConnectivityPredictor(**arguments)
    first.check_arguments()  # before a folder of rows is made
    if gene_vectors is not None and first.architecture == "multiset":
        raise ValueError("gene_vectors are for architecture='seed' and 'concat'")
    vectors = None if gene_vectors is None else read_gene_vectors(gene_vectors)
    with run_folder(out), noted() as notes:
        regions = _read(files, read)
        _describe(regions)
        divide(split, regions, folds, arguments["seed"])
        talk = _talk(arguments["progress"])
        found = run_evaluation(
            regions,
            split_by=split,
            folds=folds,
            seeds=seeds,
            null=null,
            baselines=baselines,
            gene_vectors=vectors,
            folder=out,
            resume=resume,
            say=talk,
            **{**arguments, "progress": False},
        )
        talk("writing the report")
        page, numbers = report.of_evaluation(
            found,
            title=f"Evaluation on {_title(files)}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(arguments["seed"]),
        )
        write_json(out / "metrics.json", found.numbers())
        write_report(out, page, numbers)
        _print_evaluation(found)
        say_notes(notes())
        say(f"\nWritten to {out}: metrics.json, report.html, report.json, rows/")
        return found


def _print_evaluation(found: Evaluation) -> None:
    number = found.rows["seed"].nunique()
    say(f"\n{found.split.capitalize()} split, {found.rows['fold'].nunique()} folds x {many(number, 'seed')}.")
    say("Pearson's r between regions that were not seen, with a 95 % interval; null: expression without meaning\n")
    say(f"  {'':20}{'r':>8}{'interval':>18}{'Spearman':>10}{'R2':>8}{'null':>8}{'gain':>8}{'fit, s':>9}")
    for method, row in found.table().iterrows():
        low, high = (_number(row[name]) for name in ("pearson_low", "pearson_high"))
        texts = [_number(row["pearson"]), f"{low} to {high}", _number(row["spearman"]), _number(row["r2"])]
        texts += [_number(row["null"]), _number(row["gain"]), f"{row['seconds']:,.1f}"]
        mark = "*" if method == MINE else " "
        widths = (8, 18, 10, 8, 8, 8, 9)
        say(f"{mark} {method:20}" + "".join(f"{text:>{w}}" for text, w in zip(texts, widths, strict=True)))
    for name, why in found.not_run.items():
        say(f"  {name} was not run: {why}")
    for gate in found.gates():
        say(
            f"\n* ours. {'Holds' if gate['holds'] else 'FAILS'}: {gate['gate']}, {gate['value']:+.3f} "
            f"({_number(gate['low'])} to {_number(gate['high'])}), asked {gate['bound']}"
        )


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"


# ---------------------------------------------------------------------- parts


def _refuse_model(out: Path) -> None:
    if (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")


def _read(files: dict[str, Path | None], read: dict[str, Any]) -> Regions:
    if files["expression"] is None:
        raise ValueError("expression must be given: a table of regions x genes")
    return read_regions(files["expression"], files.get("connectivity"), files.get("coordinates"), **read)


def _given(files: dict[str, Path | None], read: dict[str, Any]) -> Regions | None:
    """Other regions than those learned from, where files are given."""
    if files["expression"] is None:
        if files.get("coordinates") is not None:
            raise ValueError("coordinates come with expression: without, the regions of the model are meant")
        return None
    regions = _read(files, read)
    _describe(regions)
    return regions


def _importance(predictor: ConnectivityPredictor, talk: Callable[[str], None]) -> pd.DataFrame | None:
    """Of as many genes as can be permuted in about a minute: a network may take long for each. None: of too few."""
    most = min(GENES, len(predictor.regions_.genes))
    start = time.perf_counter()
    predictor.predict_matrix()
    number = min(most, int(SECONDS / (time.perf_counter() - start)))
    if number < min(FEWEST, most):
        talk("  importance of genes is left out, it would take long: `omniset regions explain` measures it")
        return None
    if number < most:
        talk(f"  importance of {number} genes only, to save time: `omniset regions explain` measures more")
    return predictor.importance(top=number)


def _describe(regions: Regions) -> None:
    known = "" if regions.connectivity is None else f", {many(len(regions.pairs()), 'pair')} of known connectivity"
    say(f"{many(len(regions), 'region')}, {many(len(regions.genes), 'gene')}{known}")
    for note in regions.notes:
        say(f"  {note}")


def _load(model: Path, overrides: dict[str, Any]) -> ConnectivityPredictor:
    predictor = ConnectivityPredictor.load(model)
    return predictor.set_params(**overrides)


def _pairs(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The first two columns of a table of pairs."""
    file = TableFile(path)
    if len(file.columns) < 2:
        raise file.error(None, "must have two columns, the names of both regions of each pair")
    columns = list(file.columns[:2])
    if set(columns) <= set(names):
        raise file.error(None, f"must have a header, its first line is a pair: {columns[0]!r}, {columns[1]!r}")
    frames = [pd.DataFrame({name: chunk.text(name).to_pylist() for name in columns}) for chunk in file.chunks()]
    found = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    known = set(names)
    for row, pair in enumerate(found.to_numpy().tolist()):
        lacking = [name for name in pair if name not in known]
        if lacking:
            raise ValueError(
                f"{path}: pair {row + 1}: region {lacking[0]!r} is not there, regions are such as {names[0]!r}"
            )
    return found


def _write_matrix(found: pd.DataFrame, out: Path) -> None:
    if out.suffix == ".npy":
        with replacing(out) as temporary, open(temporary, "wb") as file:
            np.save(file, found.to_numpy())
        return
    with TableWriter(out) as writer:
        writer.write(found.reset_index(names="region"))


def _talk(progress: bool) -> Callable[[str], None]:
    return (lambda line: print(line, file=sys.stderr, flush=True)) if progress else lambda line: None


def _title(files: dict[str, Path | None]) -> str:
    named = [path for path in (files.get("connectivity"), files["expression"]) if path is not None]
    return " from ".join(path.name for path in named)
