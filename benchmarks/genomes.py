"""The genome system on archaea: our model beside every baseline on held-out families; what the commands cost; how
precision depends on how complete the references are themselves; what learning
anew from all genomes does for relatives of those that were kept back; and the document's architecture, trained long.

The data is found through the environment variable OMNISET_DATA. The rows of each seed, and models, are kept in
runs/genomes, so that an interrupted run goes on where it stopped.
"""

import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from benchmarks.genome_baselines import OTHER_BASELINES
from benchmarks.memory import measure
from benchmarks.results import ROOT, record

SHOWN = (
    *("f1", "auprc_missing", "recall_missing", "auprc_foreign", "ece_missing", "missing_error", "covered", "width"),
    *("precision_added", "precision_removed", "recall_added"),
)
COMPARED = ("f1", "auprc_missing", "auprc_foreign")  # with each other method, where all families are known
GENOMES = (1000, 4000)  # completed at a time, to see what memory does
LARGE = (27_000, 7_000)  # genomes and families of a large table
KEPT = ROOT / "runs" / "genomes"
PRECISION, SPLITS = 0.95, 3
OF_WHOLE_SHOWN = ("ece_missing", "missing_error", "covered", "width")
OF_WHOLE = ("95/0", "95/5", "95/10", "90/0", "70/0", "50/0")  # conditions of the part "whole"
ABSENT = -10.0  # log-odds of a family that a model does not know
COMPLETE = (0.0, 96.0, 98.0, 99.0, 99.5, 100.0)  # lowest completeness, in percent, of groups of test genomes
OF_RELATIVES = ((95.0, 0.0), (70.0, 0.0), (50.0, 0.0), (70.0, 5.0))
FIRST = "omniset-first"  # before it learned anew
TRAINED = ("pca", "autoencoder", "mean")
OTHERS = ("knn-likelihood", "pca", "mean")
TOLD = "omniset-told"  # was told how complete the genomes are that it learned from
# Learned from genomes that are made incomplete, and taken for complete; or known not to be, within five points.
POOR, POOR_TOLD = "omniset-poor", "omniset-poor-told"
POOREST, RICHEST = 50.0, 90.0  # completeness of these, in percent of what they had
OF_POOR = ("95/0", "70/0", "50/0")
OF_TOGETHER = ("95/0", "90/5", "70/5", "50/5")
WITH_OTHERS = {"omniset": "evidence", "knn-likelihood": "knn-likelihood"}  # by the name of the network's method
TOGETHER = {name: f"{name}-together" for name in WITH_OTHERS}
OF_RANKS, RANKED = ((95.0, 0.0), (70.0, 5.0), (50.0, 5.0), (30.0, 10.0)), {n: f"{n}-ranks" for n in WITH_OTHERS}
LONG, VOCABULARY, FREQUENT = 150, 1000, 0.05  # epochs of "seed"; its families, out of those that so many genomes have
OF_SEED = ("seed", "as-is", "prevalence", "prevalence-bayes", "knn", "autoencoder", "autoencoder-evidence", "evidence")
NATS = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # by which a reference is likelier, for each rank that it shares


def main(seed: int = 0) -> None:
    if "OMNISET_DATA" not in os.environ:
        sys.exit("set OMNISET_DATA to the folder that holds genomes/archaea_pfam.tsv.gz")
    data = Path(os.environ["OMNISET_DATA"]) / "genomes"
    parts = sys.argv[2:] or [*PARTS]
    if not set(parts) <= set(PARTS):
        sys.exit(f"usage: python -m benchmarks genomes [{'] ['.join(PARTS)}]")
    for part in parts:
        name, make = PARTS[part]
        record(
            name,
            make(data / "archaea_pfam.tsv.gz", data / "archaea_metadata.tsv.gz", seed),
            seed=seed,
            part_of=f"genomes {part}",
        )


def evaluated(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """Every method under every condition."""
    from omniset.genomes import read_qualities, read_table, read_taxonomy
    from omniset.genomes.evaluate import DEFAULT, evaluate
    from omniset.runs.files import plain

    genomes, about = read_table(table), (read_taxonomy(metadata), read_qualities(metadata))
    methods = (*DEFAULT, *OTHER_BASELINES)
    evaluation = evaluate(genomes, *about, methods=methods, seed=seed, folder=KEPT, resume=True, say=print)
    found = evaluation.numbers()
    found["scores"] = recorded(found["scores"])
    found["differences"] = [
        row for row in found["differences"] if row["score"] in COMPARED and row["condition"].replace("/", "").isdigit()
    ]
    found["scores"], found["differences"] = (short(found[key]) for key in ("scores", "differences"))
    return plain(found) | {"rows": len(evaluation.rows)}


def short(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers to six digits: the file is a megabyte else."""
    return [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def recorded(scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that pages are made of, where there is a value: all of them are more than a megabyte. Of whole test genomes
    those that gates are of; more about them is a part of its own.
    """
    shown = (row for row in scores if row["score"] in SHOWN and row["units"])
    return [
        row
        for row in shown
        if not row["condition"].endswith(" whole") or (row["score"] in OF_WHOLE_SHOWN and "omniset" in row["method"])
    ]


# ---------------------------------------------------------------------- parts of the split of one seed


class Split:
    """Our model, trained on the first part of a split and kept, and the genomes of its parts."""

    def __init__(
        self,
        table: Path,
        metadata: Path,
        seed: int,
        told: bool = False,
        poor: bool = False,
        anew: bool = False,
    ) -> None:
        from omniset.genomes import GenomeCompleter, read_qualities, read_table, read_taxonomy
        from omniset.genomes.evaluate import TEST_FRACTION
        from omniset.genomes.metadata import RANKS, lineages
        from omniset.genomes.training import VALIDATION_FRACTION, Clades, Genomes, split

        genomes, taxonomy, quality = read_table(table), read_taxonomy(metadata), read_qualities(metadata)
        # Validation genomes stay out of the model, unless it learns anew from all.
        completer = GenomeCompleter(seed=seed, progress=False)
        clades = Clades.of(genomes.counts, taxonomy, genomes.names, completer.clade)
        parts = split(clades.groups, (TEST_FRACTION, VALIDATION_FRACTION), np.random.default_rng(seed))
        train, self.test, validation = parts
        kept = KEPT / "_".join(["model", str(seed), *["told"] * told, *["poor"] * poor, *["anew"] * anew])
        if (kept / "config.json").exists():
            completer = GenomeCompleter.load(kept)
        else:
            print(f"split {seed}: training, {kept.name}", flush=True)
            learned, about = poorer(genomes, quality, seed) if poor else (genomes, quality)
            how = {"quality": about if told else None, "also": ["knn-likelihood"], "refit": anew}
            completer.fit_split(learned, taxonomy, clades, train, validation, **how)
            print(completer.notes_, flush=True)
            completer.save(kept)
        self.completer, self.seed = completer, seed
        of_all = lineages(taxonomy, genomes.names)
        self.all_names, self.all_clades = np.array(genomes.names), of_all[completer.clade].to_numpy()
        self.lineages = of_all[[rank for rank in RANKS if rank in of_all]].to_numpy()
        self.names, self.clades = self.all_names[self.test], self.all_clades[self.test]
        self.complete = quality["completeness"].reindex(self.names).to_numpy()
        if anew:
            train, validation = np.sort(np.concatenate([train, validation])), validation[:0]
        self.genomes = Genomes(completer.columns(genomes), clades, train, validation)

    def rows(self, condition: Any, methods: dict[str, Any]) -> pd.DataFrame:
        """Scores of the test genomes under a condition; noise is that of the evaluation.

        Args:
            methods: What validation says, by the name that rows are given.
        """
        from omniset.genomes.evaluate import CONDITIONS, of_genomes
        from omniset.genomes.training import apply_all, degraded

        suite = self.completer.network_
        seed = 7919 * (self.seed + 1) + CONDITIONS.index(condition)
        noise = degraded(self.genomes, self.test, condition.of_data, condition.stated, seed, condition.lost)
        noisy = apply_all({"it": suite["evidence"]}, self.genomes, noise)["it"]
        named = {"seed": self.seed, "genome": self.names, "clade": self.clades, "complete": self.complete}
        frames = []
        for method, level in methods.items():
            frame = of_genomes(noisy, level, PRECISION)
            frames.append(frame.assign(**named, condition=condition.name, method=method, worse=np.nan))
        return pd.concat(frames, ignore_index=True)

    def level(self, condition: Any) -> Any:
        """What validation says at a condition."""
        from omniset.genomes.calibration import at_quality

        return at_quality(self.completer.levels_, *condition.level)


def poorer(genomes: Any, quality: pd.DataFrame, seed: int) -> tuple[Any, pd.DataFrame]:
    """The same genomes, each of which lost genes, and how complete they are said to be: within five points."""
    from omniset.genomes import GenomeTable
    from omniset.genomes.noise import lose
    from omniset.genomes.training import stated_quality

    rng = np.random.default_rng([seed, 11])
    rows, said = [], []
    for name, row in zip(genomes.names, genomes.counts, strict=True):
        share = rng.uniform(POOREST, RICHEST) / 100
        rows.append(lose(row.toarray().ravel(), share, "copies", rng))
        said.append(100 * stated_quality(share * quality.at[name, "completeness"] / 100, 0.0, "estimated", rng)[0])
    frame = pd.DataFrame(np.stack(rows), index=genomes.names, columns=genomes.families)
    return GenomeTable.from_frame(frame), pd.DataFrame({"completeness": said}, index=genomes.names)


def whole(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """How often additions are right, by how complete the test genomes are themselves, of a model that was told how
    complete those are that it learned from, and of one that was not.
    """
    from omniset.genomes.evaluate import CONDITIONS, Evaluation, of_whole
    from omniset.genomes.metadata import WHOLE as LEAST
    from omniset.runs.files import plain
    from omniset.trials.comparison import OURS

    frames, splits = [], []
    for number in range(seed, seed + SPLITS):
        models = {OURS: Split(table, metadata, number), TOLD: Split(table, metadata, number, told=True)}
        one = models[OURS]
        facts = {"seed": number, "test genomes": len(one.test)}
        facts["whole test genomes"] = int((one.complete >= LEAST).sum())
        facts["validation clades"] = len(np.unique(one.genomes.clades.groups[one.genomes.validation]))
        splits.append(facts)
        for condition in (c for c in CONDITIONS if c.name in OF_WHOLE):
            print(f"split {number}: {condition.name}", flush=True)
            frames += [model.rows(condition, {name: model.level(condition)}) for name, model in models.items()]
    rows = pd.concat(frames, ignore_index=True)
    names = rows.loc[rows["complete"] >= LEAST, "genome"].unique()
    compared = Evaluation(pd.concat([rows, of_whole(rows, names)]), pd.DataFrame(splits), PRECISION).comparison
    shown = ("auprc_missing", "ece_missing", "missing_error", "precision_added", "recall_added")
    scores = [row for row in compared.numbers()["scores"] if row["score"] in shown]
    made = compared.rows.groupby(["condition", "method"], sort=False)["added_made"].mean().rename("added").reset_index()
    return plain(
        {
            "precision": PRECISION,
            "whole": LEAST,
            "splits": splits,
            "scores": scores,
            "by_completeness": by_completeness(rows),
        }
        | {"added": made.to_dict("records")}
    )


def poor(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """Learning from genomes that are made incomplete: taken for complete, or told how complete they are; beside
    learning from the same genomes as they are. Tested on genomes that are whole themselves.
    """
    from omniset.genomes.evaluate import CONDITIONS, SCORES
    from omniset.genomes.metadata import WHOLE as LEAST
    from omniset.runs.files import plain
    from omniset.trials.comparison import OURS, Comparison

    ways = {OURS: {}, POOR: {"poor": True}, POOR_TOLD: {"poor": True, "told": True}}
    frames = []
    for number in range(seed, seed + SPLITS):
        models = {name: Split(table, metadata, number, **way) for name, way in ways.items()}  # type: ignore[arg-type]
        for condition in (c for c in CONDITIONS if c.name in OF_POOR):
            print(f"split {number}: {condition.name}, incomplete genomes", flush=True)
            frames += [model.rows(condition, {name: model.level(condition)}) for name, model in models.items()]
    rows = pd.concat(frames, ignore_index=True)
    rows = rows[rows["complete"] >= LEAST]
    compared = Comparison(rows, SCORES, "clade", "clade", ("seed", "genome"), [POOR])
    shown = ("auprc_missing", "recall_missing", "f1", "ece_missing", "missing_error", "covered", "precision_added")
    found = compared.numbers()
    kept = {key: [row for row in found[key] if row["score"] in shown] for key in ("scores", "differences")}
    made = rows.groupby(["condition", "method"], sort=False)["added_made"].mean().rename("added").reset_index()
    about = {"completeness": [POOREST, RICHEST], "splits": SPLITS, "whole": LEAST, "genomes": rows["genome"].nunique()}
    return plain(about | kept | {"added": made.to_dict("records")})


def by_completeness(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Of families that were not observed and have a probability of .9 or more: the mean of it, and the share that is
    there, by the completeness of the test genome itself.
    """
    from omniset.trials.comparison import OURS

    found = []
    for condition, some in rows[rows["method"] == OURS].groupby("condition", sort=False):
        group = np.searchsorted(COMPLETE, some["complete"].to_numpy(), side="right") - 1
        for at in range(len(COMPLETE)):
            few = some[group == at]
            number, said, was = (few[f"unseen_{key}9"].sum() for key in ("n", "said", "was"))
            about = {"condition": condition, "least": COMPLETE[at], "genomes": len(few), "families": number / len(few)}
            found.append(about | {"said": said / number, "there": was / number})
    return found


def together(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """Test genomes completed one by one, and together: each is then a reference of the others too. The model is as
    users have it: its mixture has seen relatives of its references, and it has learned anew from all genomes.
    """
    from omniset.genomes.evaluate import CONDITIONS, SCORES, of_genomes
    from omniset.genomes.training import Noisy, degraded
    from omniset.runs.files import plain
    from omniset.trials.comparison import OURS, Comparison

    frames, sizes = [], []
    for number in range(seed, seed + SPLITS):
        one = Split(table, metadata, number, anew=True)
        suite, rows = one.completer.network_, one.test
        sizes.append({"genomes": len(rows), "clades": len(set(one.clades))})
        truth, nothing = one.genomes.counts[rows].toarray() > 0, np.full(len(rows), np.nan)
        for condition in (c for c in CONDITIONS if c.name in OF_TOGETHER):
            print(f"split {number}: {condition.name}, together", flush=True)
            noise = 7919 * (number + 1) + CONDITIONS.index(condition)
            batches = [observed for _, observed, _ in degraded(one.genomes, rows, condition.level, "estimated", noise)]
            seen = np.concatenate([observed.present.numpy() for observed in batches])
            odds: dict[str, list[np.ndarray]] = {name: [] for name in (*WITH_OTHERS, *TOGETHER.values())}
            with torch.no_grad():
                for name, method in WITH_OTHERS.items():
                    odds[name] = [suite[method](observed).numpy() for observed in batches]
                for _, observed in suite.references.each_with_others(suite.noise, batches):
                    for name, method in WITH_OTHERS.items():
                        odds[TOGETHER[name]].append(suite[method](observed).numpy())
            for method, parts in odds.items():
                noisy = Noisy(rows, truth, seen, np.concatenate(parts), nothing)
                about = {"seed": number, "genome": one.names, "clade": one.clades}
                about |= {"condition": condition.name, "method": method}
                # Thresholds and widths of intervals are those of our model.
                level = one.level(condition) if "omniset" in method else None
                scores = of_genomes(noisy, level, PRECISION)
                frames.append(scores.assign(**about, worse=np.nan))
    ours = TOGETHER[OURS]
    others = [name for name in (*WITH_OTHERS, *TOGETHER.values()) if name != ours]
    everything = pd.concat(frames, ignore_index=True)
    compared = Comparison(everything, SCORES, "clade", "clade", ("seed", "genome"), others, ours=ours)
    shown = {"auprc_missing", "f1", "auprc_foreign", "ece_missing", "missing_error", "covered"}
    shown |= {"precision_added", "recall_added"}
    found = compared.numbers()
    kept = {key: [row for row in found[key] if row["score"] in shown] for key in ("scores", "differences")}
    return plain({"splits": sizes, **kept})


def ranks(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """What it adds to know where a genome stands in a taxonomy: a reference is likelier for each rank that it shares
    with it. By how much is chosen on other genomes: of families that no method had seen, or out of those learned from,
    which may not be compared with themselves.
    """
    from omniset.genomes.evaluate import SCORES
    from omniset.runs.files import plain
    from omniset.trials.comparison import Comparison

    frames, chosen = [], []
    for number in range(seed, seed + SPLITS):
        one = Split(table, metadata, number)
        learned = np.random.default_rng(number).permutation(one.genomes.train)[: 2 * len(one.genomes.validation)]
        groups = {"new family": (one.genomes.validation, one.test), "learned": tuple(np.sort(np.split(learned, 2)))}
        for (group, (choosing, test)), level in product(groups.items(), OF_RANKS):
            print(f"split {number}: {level[0]:g}/{level[1]:g}, ranks, {group}", flush=True)
            ask = Ranked(one, level)
            for method, with_ranks in RANKED.items():
                of_validation = [ask(choosing, method, n)["auprc_missing"].mean() for n in NATS]
                nats = NATS[int(np.argmax(of_validation))]
                chosen.append({"seed": number, "group": group, "level": level, "method": method, "nats": nats})
                for name, n in ((method, 0.0), (with_ranks, nats)):
                    about = {"condition": f"{level[0]:g}/{level[1]:g} {group}", "method": name}
                    frames.append(ask(test, method, n).assign(**about))
    rows = pd.concat(frames, ignore_index=True)
    kept: dict[str, list[dict[str, Any]]] = {"scores": [], "differences": []}
    for method, with_ranks in RANKED.items():
        both = rows[rows["method"].isin((method, with_ranks))]
        compared = Comparison(both, SCORES, "clade", "clade", ("seed", "genome"), [method], ours=with_ranks).numbers()
        for key, values in kept.items():
            values += [row for row in compared[key] if row["score"] == "auprc_missing"]
    return plain({"chosen": chosen, "nats": NATS, **kept})


class Ranked:
    """Genomes at a level, completed with references that are likelier the more ranks they share with each."""

    def __init__(self, split: Split, level: tuple[float, float]) -> None:
        self.split, self.level = split, level
        self.references = pd.Index(split.all_names).get_indexer(split.completer.references_["genome"])

    def __call__(self, rows: np.ndarray, method: str, nats: float) -> pd.DataFrame:
        """Scores; no genome is compared with itself."""
        from omniset.genomes.training import degraded

        split, suite = self.split, self.split.completer.network_
        noisy, likelihood, more = [], suite.references.likelihood, {}
        for some, observed, quality in degraded(split.genomes, rows, self.level, "known", split.seed):
            observed.excluded = torch.from_numpy(some[:, None] == self.references)
            more[id(observed)] = torch.from_numpy(nats * self.shared(some)).float()
            noisy.append((some, observed, quality))

        def predict(observed: Any) -> Any:
            with patch.object(suite.references, "likelihood", lambda *of: likelihood(*of) + more[id(observed)]):
                return suite[WITH_OTHERS[method]](observed)

        about = {"seed": split.seed, "genome": split.all_names[rows], "clade": split.all_clades[rows]}
        return _scores_of(split.genomes, noisy, predict).assign(**about, worse=np.nan)

    def shared(self, some: np.ndarray) -> np.ndarray:
        """(genomes, references) how many ranks, from the first on."""
        asked, told = self.split.lineages[some][:, None], self.split.lineages[self.references]
        return np.cumprod((asked == told) & (asked != ""), axis=2).sum(2)


def relatives(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """Genomes whose relatives were kept back for validation, and as many whose relatives were learned from: what
    learning anew from all genomes does for both.
    """
    from omniset.genomes import GenomeCompleter, read_table, read_taxonomy
    from omniset.genomes.evaluate import SCORES
    from omniset.genomes.metadata import lineages
    from omniset.genomes.training import VALIDATION_FRACTION, Clades, degraded, split
    from omniset.runs.files import plain
    from omniset.trials.comparison import OURS, Comparison

    genomes, taxonomy = read_table(table), read_taxonomy(metadata)
    frames, splits = [], []
    for number in range(seed, seed + SPLITS):
        print(f"split {number}: relatives", flush=True)
        first, anew = (GenomeCompleter(seed=number, progress=False) for _ in range(2))
        clades, rng = Clades.of(genomes.counts, taxonomy, genomes.names, anew.clade), np.random.default_rng(number)
        parts = split(clades.groups, (2 * VALIDATION_FRACTION,), rng)
        asked = {"learned": rng.choice(parts[0], len(parts[1]) // 2, replace=False)}
        asked["kept back"] = rng.choice(parts[1], len(parts[1]) // 2, replace=False)
        train, validation = (np.setdiff1d(part, test) for part, test in zip(parts, asked.values(), strict=True))
        first.fit_split(genomes, taxonomy, clades, train, validation, refit=False)
        anew.fit_split(genomes, taxonomy, clades, train, validation, also=("knn-likelihood", *TRAINED))
        everything = np.sort(np.concatenate([train, validation]))
        known, _ = anew.genomes_of(genomes, clades, everything, everything[:0])
        named = lineages(taxonomy, genomes.names)[anew.clade].to_numpy()
        for (group, test), level in product(asked.items(), OF_RELATIVES):
            noisy = list(degraded(known, test, level, "known", number))
            for method, predict in _of_relatives(first, anew).items():
                scores = _scores_of(known, noisy, predict)
                about = {"seed": number, "genome": np.array(genomes.names)[test], "clade": named[test]}
                about |= {"condition": f"{level[0]:g}/{level[1]:g} {group}", "method": method}
                frames.append(scores.assign(**about, worse=np.nan))
        facts = {"seed": number, "genomes": len(everything), "families": len(anew.families_)}
        facts["first families"] = len(first.families_)
        splits.append(facts | {f"{group} clades": len(set(named[test])) for group, test in asked.items()})
    rows = pd.concat(frames, ignore_index=True)
    found = Comparison(rows, SCORES, "clade", "clade", ("seed", "genome"), [FIRST, *OTHERS]).numbers()
    shown = ("auprc_missing", "recall_missing", "f1", "ece_missing", "log_loss")
    kept = {key: [row for row in found[key] if row["score"] in shown] for key in ("scores", "differences")}
    genomes_of = rows[rows["method"] == OURS].groupby("condition", sort=False).size().to_dict()
    return plain({"splits": splits, "genomes": genomes_of, **kept})


def _of_relatives(first: Any, anew: Any) -> dict[str, Any]:
    """Log-odds over the larger vocabulary; a family that the first model does not know is absent to it."""
    from omniset.genomes.noise import Observed
    from omniset.trials.comparison import OURS

    at = np.array([anew.families_.index(family) for family in first.families_])

    def before(observed: Any) -> Any:
        known = Observed(observed.counts[:, at], observed.completeness, observed.contamination)
        odds = torch.full_like(observed.counts, ABSENT)
        odds[:, at] = first.network_["evidence"](known)
        return odds

    return {OURS: anew.network_["evidence"], FIRST: before} | {name: anew.network_[name] for name in OTHERS}


def _scores_of(genomes: Any, noisy: list[Any], predict: Any) -> pd.DataFrame:
    from omniset.genomes.evaluate import of_genomes
    from omniset.genomes.training import Noisy

    rows = np.concatenate([some for some, _, _ in noisy])
    with torch.no_grad():
        odds = np.concatenate([predict(observed).numpy() for _, observed, _ in noisy])
    seen = np.concatenate([observed.present.numpy() for _, observed, _ in noisy])
    truth = genomes.counts[rows].toarray() > 0
    return of_genomes(Noisy(rows, truth, seen, odds, np.full(len(rows), np.nan)), None, PRECISION)


def trained_long(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """The architecture "seed" trained until its loss settles, with the document's curriculum, on families drawn out of
    those that are not rare: it attends from every family to every other. Beside it others of the same families, and
    the document's own noise.
    """
    from omniset.genomes import GenomeCompleter, GenomeTable, read_table, read_taxonomy
    from omniset.genomes.evaluate import CONDITIONS, SCORES, TEST_FRACTION, of_genomes
    from omniset.genomes.metadata import lineages
    from omniset.genomes.training import (
        TRAINING,
        UNTRAINED,
        VALIDATION_FRACTION,
        Clades,
        Genomes,
        apply_all,
        degraded,
        split,
    )
    from omniset.runs.files import plain
    from omniset.trials.comparison import Comparison

    genomes, taxonomy = read_table(table), read_taxonomy(metadata)
    completer = GenomeCompleter(seed=seed)
    clades, rng = Clades.of(genomes.counts, taxonomy, genomes.names, completer.clade), np.random.default_rng(seed)
    train, test, validation = split(clades.groups, (TEST_FRACTION, VALIDATION_FRACTION), rng)
    frequent = np.flatnonzero((genomes.counts[train] > 0).sum(0) >= FREQUENT * len(train))
    drawn = np.sort(rng.choice(frequent, VOCABULARY, replace=False))
    genomes = GenomeTable(genomes.names, [genomes.families[i] for i in drawn], genomes.counts[:, drawn].tocsr())
    with patch.dict(TRAINING["seed"], epochs=LONG):
        also = [name for name in OF_SEED if name in (*UNTRAINED, *TRAINING)]
        where = {"folder": KEPT / "seed", "resume": True, "refit": False}
        completer.fit_split(genomes, taxonomy, clades, train, validation, also=also, **where)
    suite, known = completer.network_, Genomes(completer.columns(genomes), clades, train, validation)
    names, of_clade = np.array(genomes.names)[test], lineages(taxonomy, genomes.names)[completer.clade].to_numpy()[test]
    frames = []
    for condition in (c for c in CONDITIONS if c.kind == "original"):
        methods = {name: suite[name] for name in OF_SEED}
        found = apply_all(methods, known, degraded(known, test, condition.of_data, condition.stated, seed))
        for method, noisy in found.items():
            scores = of_genomes(noisy, None, PRECISION)
            about = {"seed": seed, "genome": names, "clade": of_clade, "condition": condition.name, "method": method}
            frames.append(scores.assign(**about, worse=np.nan))
    compared = Comparison(
        pd.concat(frames, ignore_index=True), SCORES, "clade", "clade", ("seed", "genome"), [*OF_SEED[1:]], ours="seed"
    ).numbers()
    shown = ("f1", "auprc_missing")
    sizes = {"training genomes": len(train), "test genomes": len(test), "clades": len(set(of_clade))}
    sizes |= {"families": len(drawn), "families of a genome": float((known.counts[train] > 0).sum(1).mean())}
    losses = {name: completer.histories_[name] for name in ("seed", "evidence")}
    kept = {key: [row for row in compared[key] if row["score"] in shown] for key in ("scores", "differences")}
    return plain({**sizes, "losses": losses, **kept})


def costs(table: Path, metadata: Path, seed: int) -> dict[str, Any]:
    """Peak memory and seconds of `omniset genomes fit` and `complete`."""
    from omniset.genomes import read_table

    genomes, rows = read_table(table), []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fit = ["genomes", "fit", str(table), "--taxonomy", str(metadata), "--out", "model", "--seed", str(seed)]
        rows.append(
            {"command": "fit", "genomes": len(genomes), "families": len(genomes.families), **measure(fit, root)}
        )
        print(rows[-1], flush=True)
        for number in GENOMES:
            spoilt(genomes, number, root, seed)
            complete = ["genomes", "complete", "mags.tsv", "--quality", "quality.tsv", "--out", f"out{number}"]
            about = {"command": "complete", "genomes": number, "families": len(genomes.families)}
            rows.append({**about, **measure(complete, root)})
            print(rows[-1], flush=True)
    return {"costs": rows}


def large(_table: Path, _metadata: Path, seed: int) -> dict[str, Any]:
    """The same of `fit` on a large table."""
    with tempfile.TemporaryDirectory() as folder:
        large_table(Path(folder), seed)
        fit = ["genomes", "fit", "large.tsv", "--taxonomy", "taxonomy.tsv", "--out", "large", "--seed", str(seed)]
        row = {"command": "fit", "genomes": LARGE[0], "families": LARGE[1], **measure(fit, Path(folder))}
    return {"costs": [row]}


def large_table(folder: Path, seed: int) -> None:
    """A table of made-up genomes, as large as PICRUSt2's of KEGG's families: 100 orders of 8 clades, alike inside."""
    rng = np.random.default_rng(seed)
    genomes, families = LARGE
    frequency = np.concatenate([np.full(families // 8, 0.97), rng.beta(0.3, 1.5, families - families // 8)])
    orders = rng.random((100, families)) < frequency
    clades = np.where(rng.random((800, families)) < 0.15, rng.random((800, families)) < frequency, orders.repeat(8, 0))
    with (folder / "large.tsv").open("wb") as file, (folder / "taxonomy.tsv").open("w") as taxa:
        file.write(("assembly\t" + "\t".join(f"K{i:05d}" for i in range(1, families + 1)) + "\n").encode())
        taxa.write("genome\torder\tfamily\n")
        for number in range(genomes):
            clade = int(rng.integers(len(clades)))
            row = np.where(rng.random(families) < 0.05, rng.random(families) < frequency, clades[clade])
            text = np.full(2 * families, ord("\t"), dtype=np.uint8)
            text[1::2] = ord("0") + row
            file.write(f"g{number:05d}".encode() + text.tobytes() + b"\n")
            taxa.write(f"g{number:05d}\to{clade // 8}\tf{clade}\n")


def spoilt(genomes: Any, number: int, folder: Path, seed: int) -> None:
    """A table of incomplete, contaminated genomes, and their qualities."""
    from omniset.genomes.noise import degrade

    rng = np.random.default_rng(seed)
    names = [f"mag_{i:05d}" for i in range(number)]
    quality = pd.DataFrame({"Name": names, "Completeness": rng.uniform(50, 100, number).round(2)})
    quality["Contamination"] = rng.uniform(0, 10, number).round(2)
    quality.to_csv(folder / "quality.tsv", sep="\t", index=False)
    with (folder / "mags.tsv").open("w", encoding="utf-8") as file:
        file.write("\t".join(["genome", *genomes.families]) + "\n")
        for i, name in enumerate(names):
            which = [[i % len(genomes)], [int(rng.integers(len(genomes)))]]
            row, donor = (genomes.counts[w].toarray()[0] for w in which)
            c, q = quality["Completeness"][i] / 100, quality["Contamination"][i] / 100
            file.write("\t".join([name, *map(str, degrade(row, donor, c, q, rng))]) + "\n")


PARTS = {
    "evaluate": ("genomes", evaluated),
    "whole": ("genomes_whole", whole),
    "poor": ("genomes_poor", poor),
    "together": ("genomes_together", together),
    "ranks": ("genomes_ranks", ranks),
    "relatives": ("genomes_relatives", relatives),
    "seed": ("genomes_seed", trained_long),
    "costs": ("genomes_costs", costs),
    "large": ("genomes_large", large),
}
