"""`omniset regions`: fit, predict, evaluate, explain, simulate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from omniset.cli.options import Saving, chosen, given, needed, takes
from omniset.cli.options import split as words
from omniset.options import Computing
from omniset.regions.options import PredictorOptions, Reading

FIT_NULLS = 200  # spins of each gene in the report of fit


class Files(NamedTuple):
    """What regions are read from."""

    expression: Path | None
    connectivity: Path | None = None
    coordinates: Path | None = None
    aliases: Path | None = None

    @property
    def title(self) -> str:
        return " from ".join(path.name for path in (self.connectivity, self.expression) if path is not None)

    def regions(self, **options: Any) -> Any:
        """`Regions`, joined; what is in them is said."""
        from omniset.regions import read_regions
        from omniset.report.blocks import many
        from omniset.runs.console import say
        from omniset.tables.genes import read_aliases

        if self.aliases is not None:
            options["aliases"] = read_aliases(self.aliases)
        regions = read_regions(self.expression, self.connectivity, self.coordinates, **options)
        known = "" if regions.connectivity is None else f", {many(len(regions.pairs()), 'pair')} of known connectivity"
        say(f"{many(len(regions), 'region')}, {many(len(regions.genes), 'gene')}{known}")
        for note in regions.notes:
            say(f"  {note}")
        return regions

    def others(self) -> Any:
        """Other `Regions` than those of a model, where files are given, else None."""
        if self.expression is not None:
            return self.regions()
        if self.coordinates is not None:
            raise ValueError("coordinates come with expression: without, the regions of the model are meant")
        return None


@takes(Reading)
@takes(PredictorOptions)
@takes(Saving)
def fit(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    resume: bool = False,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Learn the connectivity of brain regions from the genes that they express.

    Example: omniset regions fit --expression expression.csv --connectivity fc.csv --coordinates regions.csv --out model

    Args:
        expression: Regions x genes, as abagen and the ENIGMA toolbox write them, or an .h5ad. Files are joined by the
            regions' names.
        connectivity: Square table with or without names, .npy, .npz, .mat, .pconn.nii, a list of pairs (i, j, weight),
            or a triangle of it.
        coordinates: Table with x, y and z of each region in mm; or the name of an atlas whose centroids nilearn is to
            fetch: schaefer_100 to schaefer_1000, aal, aal_3, destrieux, harvard_oxford, harvard_oxford_sub or juelich.
            null: not known.
        out: Folder for the model and its report.
        gene_vectors: For "seed": vectors of genes, such as gene2vec's. null: learned.
        resume: Go on with an interrupted run of a single network in the same folder.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    needed(expression=expression, connectivity=connectivity)
    from omniset.regions import ConnectivityPredictor, report
    from omniset.regions.blend import RELATIONS, Blend
    from omniset.report.run import working_folder
    from omniset.runs import processes
    from omniset.runs.console import telling
    from omniset.trials.stacking import in_words

    files = Files(expression, connectivity, coordinates, aliases)
    predictor = ConnectivityPredictor(**given(PredictorOptions, options))
    predictor.check_arguments()
    rules: dict[str, Any] = {"makes": ["ConnectivityPredictor"], "reads": [*files, gene_vectors], "resume": resume}
    with processes.one_voice(1, 1):
        processes.require_alone("models of brain regions are solved for, or take few and small steps")
        with working_folder(out, "regions", "fit", seed=predictor.seed, **rules) as folder:
            predictor.check_resumed(folder.path, resume)
            regions = files.regions(**given(Reading, options))
            talk = telling(predictor.progress)
            how: dict[str, Any] = {"gene_vectors": gene_vectors, "folder": folder.path, "resume": resume}
            predictor.fit_rows(regions, range(len(regions)), say=talk, **how)
            folder.save(predictor, {"provenance": folder.provenance})
            lines = []
            if isinstance(blend := predictor.method_, Blend):
                for kind, of in blend.weights.items():
                    where = f"regions {RELATIONS[kind]}: " if len(blend.weights) > 1 else ""
                    lines.append(f"  {where}{in_words({report.name_of(name): w for name, w in of.items()})}")
            genes = _importance(predictor, talk, FIT_NULLS)
            talk("writing the report")
            made = report.of_fit(folder.about(f"Model of {files.title}", predictor.notes_), predictor, genes)
            folder.write(made, histories=predictor.history_, files=["the model"], lines=lines)


def _importance(predictor: Any, talk: Callable[[str], None], nulls: int) -> Any:
    """See `ConnectivityPredictor.importance`. None: the method has none."""
    from omniset.regions.blend import attention_of

    attention = attention_of(predictor.method_)
    if attention is None or not attention.needs_genes:
        return None
    talk("importance of genes")
    return predictor.importance(nulls)


@takes(Computing, "device", "progress")
@takes(Saving)
def predict(
    model: Path = Path("model"),
    pairs: Path | None = None,
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("predicted.csv"),
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Predict the connectivity of pairs of regions, or of all of them.

    Example: omniset regions predict --model model --expression new.csv --coordinates places.csv --out predicted.csv

    Args:
        model: Folder that fit wrote.
        pairs: Table whose first two columns name the regions of each pair. null: the whole matrix.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions, as for fit.
        out: Of pairs a table with the column connectivity, of a matrix a square one: .csv, .tsv or .parquet.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import ConnectivityPredictor
    from omniset.regions.reading import read_pairs
    from omniset.report.blocks import many
    from omniset.runs.console import noted, say, say_notes
    from omniset.runs.folders import new_file
    from omniset.tables.files import TableWriter, kind_of

    kind_of(out)
    files = Files(expression, coordinates=coordinates, aliases=aliases)
    new_file(out)
    predictor = ConnectivityPredictor.load(model).set_params(**given(Computing, options))
    with noted() as warnings:
        regions = files.others()
        if pairs is None:
            matrix = predictor.predict_matrix(regions)
            table = matrix.reset_index(names="region")
            what = f"{len(matrix):,} x {len(matrix):,} regions"
        else:
            listed = read_pairs(pairs, (regions or predictor.regions_).names)
            table = listed.assign(connectivity=predictor.predict(listed, regions))
            what = many(len(listed), "pair")
        with TableWriter(out) as writer:
            writer.write(table)
        say(f"Written to {out}: {what}")
        say_notes(warnings())


@takes(Reading)
@takes(PredictorOptions, "epochs", "seed", "device", "progress", as_at_fit=True)
@takes(Saving)
def evaluate(
    expression: Path | None = None,
    connectivity: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("evaluation"),
    model: Path | None = None,
    methods: str | None = None,
    resume: bool = False,
    split: Literal["bilateral", "spatial", "random"] = "bilateral",
    folds: int = 4,
    seeds: int = 3,
    null: int = 0,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Compare predictions with those of other methods, on regions that none of them has seen.

    Example: omniset regions evaluate --expression genes.csv --connectivity fc.csv --coordinates regions.csv --null 1000

    Args:
        expression: Regions x genes, in any form that fit reads.
        connectivity: Of the same regions, in any form that fit reads.
        coordinates: Table with x, y and z of each region in mm, or the name of an atlas, as for fit. null: random
            splits only, and no nulls.
        out: Folder for the report, metrics.json, scores.csv.gz (every test pair of every method), rows of every seed.
        model: Folder that fit wrote: what is evaluated is a model of its options, and of its gene vectors, fitted
            anew in each fold. null: the default.
        split: "bilateral": each fold is a neighbourhood and its mirror image, far from most of what is learned from;
            "spatial": a neighbourhood, most of whose mirror image is learned from; "random": any regions. Regions are
            held back in the same way to choose by within those learned from.
        folds: One of which is left out at a time.
        seeds: How often the regions are divided anew.
        null: Null models of each kind, maps of genes that mean nothing: spins, rotations of the cortex; and variogram
            surrogates, as smooth as the genes, alike in both hemispheres. A kernel ridge that is quickly fitted, of
            genes and of genes and places, says what they reach; 1,000 take minutes.
        methods: To compare with, separated by commas: ridge, boosting, geometry. null: all of them.
        resume: Keep what is done in the same folder.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    needed(expression=expression, connectivity=connectivity)
    from omniset.regions import ConnectivityPredictor, report
    from omniset.regions import evaluate as evaluation
    from omniset.regions.splits import split as divided
    from omniset.report import multiqc
    from omniset.report.run import working_folder
    from omniset.runs.console import telling

    files = Files(expression, connectivity, coordinates, aliases)
    predictor = ConnectivityPredictor() if model is None else ConnectivityPredictor.load(model)
    predictor.set_params(**chosen(PredictorOptions, options))
    predictor.check_arguments()  # before a folder of rows is made
    about: dict[str, Any] = {"reads": [*files, model], "resume": resume}
    with working_folder(out, "regions", "evaluation", seed=predictor.seed, **about) as folder:
        regions = files.regions(**given(Reading, options))
        divided(split, regions, folds, predictor.seed)
        talk = telling(predictor.progress)
        found = evaluation.evaluate(
            regions,
            split_by=split,
            folds=folds,
            seeds=seeds,
            null=null,
            methods=words(methods),
            gene_vectors=None if model is None else predictor.gene_vectors_,
            folder=folder.path,
            resume=resume,
            say=talk,
            **{**predictor.get_params(), "progress": False},
        )
        talk("writing the report")
        found.comparison.write_rows(folder.path / "scores.csv.gz")
        folder.write(
            report.of_evaluation(folder.about(f"Evaluation on {files.title}", found.notes), found),
            metrics={**found.comparison.numbers(), **found.numbers()},
            scores=multiqc.of_ours(found.comparison),
            files=["scores.csv.gz", "rows/"],
            lines=found.lines(),
        )


@takes(Computing, "device", "progress")
@takes(Saving)
def explain_pair(
    first: str,
    second: str,
    model: Path = Path("model"),
    expression: Path | None = None,
    coordinates: Path | None = None,
    out: Path = Path("explanation"),
    nulls: int = 1000,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say which known regions two regions read from, and which genes predictions of unseen regions rest on.

    Example: omniset regions explain L_cuneus L_lingual --model model --out explanation

    Args:
        first: Name of a region.
        second: Name of another.
        model: Folder that fit wrote.
        expression: Of other regions than those that were learned from. null: those.
        coordinates: Of these other regions, as for fit.
        out: Folder for pairs.tsv (what is read from, 100 rows for each region; of "seed" attention of genes to genes),
            genes.tsv (importance of every gene with p and q, which is also the background of enrichment tools) and a
            report.
        nulls: Spun maps of each gene, which p values are from.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
    """
    from omniset.regions import ConnectivityPredictor, report
    from omniset.report.run import working_folder
    from omniset.runs.console import telling
    from omniset.tables.files import TableWriter

    files = Files(expression, coordinates=coordinates, aliases=aliases)
    with working_folder(out, "regions", "explanation", reads=[*files, model]) as folder:
        predictor = ConnectivityPredictor.load(model).set_params(**given(Computing, options))
        regions = files.others()
        looked = predictor.explain(first, second, regions)
        importance = _importance(predictor, telling(predictor.progress), nulls)
        tables = {"pairs": looked} | ({} if importance is None else {"genes": importance})
        for name, table in tables.items():
            with TableWriter(folder.path / f"{name}.tsv") as writer:
                writer.write(table)
        one, other = looked.columns[:2]
        lines = [f"{first} and {second}\n  {one:24}{other:24}{'weight':>12}"]
        lines += [f"  {a:24}{b:24}{weight:>12.3g}" for a, b, weight in looked.head(10).itertuples(index=False)]
        about = folder.about(f"{first} and {second}", (regions or predictor.regions_).notes)
        made = report.of_explanation(about, looked, importance, first, second)
        folder.write(made, files=[f"{name}.tsv" for name in tables], lines=lines)
