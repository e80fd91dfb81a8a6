"""`omniset regions`: the verbs of `ConnectivityPredictor` on files, with their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from omniset.core.bounded import require_file
from omniset.regions.blend import Blend, attention_of
from omniset.regions.data import Regions
from omniset.regions.importance import write_tables
from omniset.regions.nulls import as_spins
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.reading import read_regions
from omniset.regions.splits import split as divide
from omniset.report.blocks import many
from omniset.runs.console import noted, say, say_notes, telling
from omniset.runs.files import replacing
from omniset.runs.folders import new_file
from omniset.runs.verbs import working_folder
from omniset.tables.files import TableFile, TableWriter, kind_of
from omniset.tables.gene_vectors import read_gene_vectors
from omniset.tables.genes import read_aliases

if TYPE_CHECKING:  # reports import plots, which `predict` would wait for
    from omniset.regions.evaluate import Evaluation

FIT_NULLS = 200  # surrogates of each gene in the report of fit


def fit(
    files: dict[str, Path | None],
    read: dict[str, Any],
    aliases: Path | None,
    arguments: dict[str, Any],
    gene_vectors: Path | None,
    out: Path,
    resume: bool,
    also: Sequence[str] = (),
) -> ConnectivityPredictor:
    """See `omniset.cli.regions.fit`."""
    from omniset.regions import report

    predictor = ConnectivityPredictor(**arguments)
    predictor.check_arguments()
    reads = [*files.values(), gene_vectors, *(part for word in also for part in word.split("+"))]
    rules: dict[str, Any] = {"makes": ["ConnectivityPredictor"], "reads": reads, "resume": resume}
    with working_folder(out, "regions", "fit", seed=predictor.seed, **rules) as folder:
        predictor.check_resumed(folder.path, resume)
        regions = _read(files, aliases, read)
        talk = telling(predictor.progress)
        more = [_read_also(word, files, aliases, read) for word in also]
        rows = np.arange(len(regions))
        how: dict[str, Any] = {"gene_vectors": gene_vectors, "also": more, "folder": folder.path, "resume": resume}
        predictor.fit_rows(regions, rows, **how, say=talk)
        folder.save(predictor, {"provenance": folder.provenance})
        lines = []
        if predictor.weights_:
            lines.append("  weights: " + ", ".join(f"{name} {w:.2f}" for name, w in predictor.weights_.items()))
        if isinstance(predictor.method_, Blend) and "blend" in predictor.method_.scores:
            r = predictor.method_.scores["blend"]
            lines.append(f"  Pearson's r on regions held back within the training: {r:.3f}")
        genes = measured_importance(predictor, talk, FIT_NULLS, "spin", None)
        talk("writing the report")
        about = folder.about(f"Model of {_title(files)}", predictor.notes_)
        folder.write(
            report.of_fit(about, predictor, genes), histories=predictor.history_, files=["the model"], lines=lines
        )
        return predictor


def predict(
    files: dict[str, Path | None],
    aliases: Path | None,
    overrides: dict[str, Any],
    model: Path,
    pairs: Path | None,
    out: Path,
    rescale: str | None = None,
) -> Float[np.ndarray, "..."]:
    """See `omniset.cli.regions.predict`. Of pairs a vector, of all of them a square."""
    array = out.suffix == ".npy"
    if array and pairs is not None:
        raise ValueError(f"out must be a table for pairs, ending in .csv, .tsv or .parquet; got {out}")
    if not array:
        kind_of(out)
    new_file(out, pairs, *files.values())
    predictor = ConnectivityPredictor.load(model).set_params(**overrides)
    with noted() as warnings:
        regions = _given(files, aliases)
        if pairs is None:
            matrix = predictor.predict_matrix(regions, rescale=rescale)
            _write_matrix(matrix, out)
            say(f"Written to {out}: {len(matrix):,} x {len(matrix):,} regions")
            values = matrix.to_numpy()
        else:
            listed = read_pairs(pairs, (regions or predictor.regions_).names)
            values = predictor.predict(listed, regions, rescale=rescale)
            with TableWriter(out) as writer:
                writer.write(listed.assign(connectivity=values))
            say(f"Written to {out}: {many(len(listed), 'pair')}")
        say_notes(warnings())
        return values


def explain(
    files: dict[str, Path | None],
    aliases: Path | None,
    overrides: dict[str, Any],
    model: Path,
    first: str,
    second: str,
    out: Path,
    top: int,
    nulls: int,
    kind: str,
    gene_sets: Path | None,
    rescale: str | None = None,
) -> pd.DataFrame:
    """See `omniset.cli.regions.explain_pair`."""
    from omniset.regions import report

    with working_folder(out, "regions", "explanation", reads=[*files.values(), model, gene_sets]) as folder:
        predictor = ConnectivityPredictor.load(model).set_params(**overrides)
        regions = _given(files, aliases)
        looked = predictor.explain(first, second, regions, top=top, rescale=rescale)
        importance = measured_importance(predictor, telling(predictor.progress), nulls, kind, gene_sets)
        with TableWriter(folder.path / "pairs.tsv") as writer:
            writer.write(looked)
        written = [] if importance is None else list(write_tables(folder.path, *importance))
        names = looked.columns.tolist()
        lines = [f"{first} and {second}\n  {names[0]:24}{names[1]:24}{'weight':>12}"]
        lines += [f"  {a:24}{b:24}{weight:>12.3g}" for a, b, weight in looked.head(10).itertuples(index=False)]
        about = folder.about(f"{first} and {second}", (regions or predictor.regions_).notes)
        made = report.of_explanation(about, looked, importance, first, second, predictor.regions_)
        folder.write(made, files=["pairs.tsv (attention)", *written], lines=lines)
        return looked


def evaluate(
    files: dict[str, Path | None],
    read: dict[str, Any],
    aliases: Path | None,
    arguments: dict[str, Any],
    gene_vectors: Path | None,
    split: str,
    folds: int,
    methods: Sequence[str] | None,
    out: Path,
    resume: bool,
    spins: Path | None = None,
    **more: Any,
) -> Evaluation:
    """See `omniset.cli.regions.evaluate`, which has `more`: seeds, null and null_kinds."""
    from omniset.regions import report
    from omniset.regions.evaluate import evaluate as run_evaluation
    from omniset.report import multiqc

    predictor = ConnectivityPredictor(**arguments)
    predictor.check_arguments()  # before a folder of rows is made
    if gene_vectors is not None and predictor.architecture == "multiset":
        raise ValueError("gene_vectors are for architecture='seed' and 'concat'")
    vectors = None if gene_vectors is None else read_gene_vectors(gene_vectors)
    about: dict[str, Any] = {"reads": [*files.values(), gene_vectors, spins], "resume": resume}
    with working_folder(out, "regions", "evaluation", seed=predictor.seed, **about) as folder:
        regions = _read(files, aliases, read)
        divide(split, regions, folds, predictor.seed)
        spun = None if spins is None else read_spins(spins, len(regions))
        talk = telling(predictor.progress)
        evaluation = run_evaluation(
            regions,
            split_by=split,
            folds=folds,
            methods=methods,
            gene_vectors=vectors,
            folder=folder.path,
            resume=resume,
            spun=spun,
            say=talk,
            **{**arguments, **more, "progress": False},
        )
        talk("writing the report")
        comparison = evaluation.comparison
        comparison.write_rows(folder.path / "scores.csv.gz")
        folder.write(
            report.of_evaluation(folder.about(f"Evaluation on {_title(files)}", evaluation.notes), evaluation),
            metrics={**comparison.numbers(), **evaluation.numbers()},
            scores=multiqc.of_ours(comparison),
            files=["scores.csv.gz", "rows/"],
            lines=_lines(evaluation),
        )
        return evaluation


def _lines(evaluation: Evaluation) -> Iterator[str]:
    """Methods, best first, the verdict and the gates."""
    number = many(len(evaluation.seeds), "seed")
    yield f"\n{evaluation.split.capitalize()} split, {evaluation.by_fold['fold'].nunique()} folds x {number}."
    if evaluation.genes_add():
        yield evaluation.genes_add()
    if np.isfinite(evaluation.twinned):
        yield f"The mirror image of {evaluation.twinned:.0%} of the test pairs is among the pairs learned from."
    yield "Pearson's r between regions that were not seen, with a 95 % interval; slope: 1 is calibrated\n"
    yield f"  {'':20}{'r':>8}{'interval':>18}{'Spearman':>10}{'R2':>8}{'slope':>8}{'fit, s':>9}"
    for method, row in evaluation.table().iterrows():
        r, low, high, spearman, r2, slope = (
            "-" if np.isnan(row[name]) else f"{row[name]:.3f}"
            for name in ("pearson", "pearson_low", "pearson_high", "spearman", "r2", "slope")
        )
        scores = f"{r:>8}{f'{low} to {high}':>18}{spearman:>10}{r2:>8}{slope:>8}"
        yield f"  {method:20}{scores}{row['seconds']:>9,.1f}"
    for name, why in evaluation.not_run.items():
        yield f"  {name} was not run: {why}"
    for one in evaluation.nulls:
        about = one.as_dict()
        ends = f"{about['gain_low']:+.3f} to {about['gain_high']:+.3f}"
        yield (
            f"  null, {one.kind}: a kernel ridge of {one.what} reaches {one.observed:.3f}, {about['mean']:.3f} with "
            f"{len(one.nulls):,} nulls: {about['gain']:+.3f} ({ends}), p {one.p:.3g}"
        )
    yield from evaluation.comparison.lines([])


# ---------------------------------------------------------------------- parts


def _read(files: dict[str, Path | None], aliases: Path | None, read: dict[str, Any]) -> Regions:
    """The files joined, and what is in them said."""
    if files["expression"] is None:
        raise ValueError("expression must be given: a table of regions x genes")
    if aliases is not None:
        read = read | {"aliases": read_aliases(aliases)}
    regions = read_regions(files["expression"], files["connectivity"], files["coordinates"], **read)
    known = "" if regions.connectivity is None else f", {many(len(regions.pairs()), 'pair')} of known connectivity"
    say(f"{many(len(regions), 'region')}, {many(len(regions.genes), 'gene')}{known}")
    for note in regions.notes:
        say(f"  {note}")
    return regions


def _read_also(word: str, files: dict[str, Path | None], aliases: Path | None, read: dict[str, Any]) -> Regions:
    """More regions to practise on: the same with another connectivity, or expression+connectivity+coordinates."""
    paths = [Path(part) for part in word.split("+")]
    if len(paths) == 1:
        files = {**files, "connectivity": paths[0]}
    elif len(paths) == 3:
        files = dict(zip(("expression", "connectivity", "coordinates"), paths, strict=True))
    else:
        raise ValueError(
            f"also must be files of connectivity, or of expression+connectivity+coordinates, with commas between; "
            f"got {word!r}"
        )
    say(f"also {word}:")
    return _read(files, aliases, read)


def _given(files: dict[str, Path | None], aliases: Path | None) -> Regions | None:
    """Other regions than those learned from, where files are given."""
    if files["expression"] is None:
        if files["coordinates"] is not None:
            raise ValueError("coordinates come with expression: without, the regions of the model are meant")
        return None
    return _read(files, aliases, {})


def measured_importance(
    predictor: ConnectivityPredictor, talk: Callable[[str], None], nulls: int, kind: str, gene_sets: Path | None
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """See `ConnectivityPredictor.importance`. None: the method has none."""
    attention = attention_of(predictor.method_)
    if attention is None or not attention.needs_genes:
        if gene_sets is not None:
            raise ValueError("gene_sets are for methods that attend to known regions with genes: the default")
        return None
    talk("importance of genes")
    return predictor.importance(nulls=nulls, kind=kind, gene_sets=gene_sets)


def read_spins(path: Path, regions: int) -> Int[np.ndarray, "number regions"]:
    """Spins of a file: .npy, or a table of numbers without a header.

    Raises:
        ValueError: It cannot be read, or is no spins of these regions: see `omniset.regions.nulls.as_spins`.
    """
    require_file(path)
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        else:
            array = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is no table of numbers: {' '.join(str(error).split())}") from error
    try:
        return as_spins(array, regions)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_pairs(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The first two columns of a table of pairs."""
    file = TableFile(path)
    if len(file.columns) < 2:
        raise file.error(None, "must have two columns, the names of both regions of each pair")
    columns = list(file.columns[:2])
    if set(columns) <= set(names):
        raise file.error(None, f"must have a header, its first line is a pair: {columns[0]!r}, {columns[1]!r}")
    frames = [pd.DataFrame({name: chunk.text(name).to_pylist() for name in columns}) for chunk in file.chunks()]
    pairs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    lacking = np.argwhere(~pairs.isin(names).to_numpy())
    if len(lacking):
        row, column = lacking[0]
        raise ValueError(
            f"{path}: pair {row + 1}: region {pairs.iloc[row, column]!r} is not there, regions are such as {names[0]!r}"
        )
    return pairs


def _write_matrix(matrix: pd.DataFrame, out: Path) -> None:
    if out.suffix == ".npy":
        with replacing(out) as temporary, open(temporary, "wb") as file:
            np.save(file, matrix.to_numpy())
        return
    with TableWriter(out) as writer:
        writer.write(matrix.reset_index(names="region"))


def _title(files: dict[str, Path | None]) -> str:
    named = [path for path in (files.get("connectivity"), files["expression"]) if path is not None]
    return " from ".join(path.name for path in named)
