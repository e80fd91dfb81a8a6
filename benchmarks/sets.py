"""Sets: the default beside each of its methods, on sets that are left out: classical bags, patients, and simulations.

Five folds, dealt five times, or as the environment variable REPEATS says. Importance of features, which changes no
prediction, is not measured. The default is fitted anew on the sets of four folds, with its own folds among these, and
predicts the fifth, as do the methods that it is made of, fitted on the same sets. The data is found through the
environment variable OMNISET_DATA. Beside the default stand other rules to combine the same methods, learned from what
these said of sets left out: of `RULES` none is better everywhere. With the environment variable COVERAGE, a number of
data sets, `coverage` is measured instead: how often the score that `fit` expects holds for new sets. With COSTS, how
often each is repeated, the time of `fit` at the shell is. With HEAVY, a number of dealings, numbers with heavy tails
are predicted of new sets.

A dealing of one data set takes up to half an hour. Its predictions are kept in results/sets/rows, which is committed,
with their commit and all settings: a run on another machine goes on with the next dealing. It ends with an error where
a dealing has other settings; then remove that one. Folds of a dealing that was interrupted are in runs/sets.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from benchmarks.memory import measure
from benchmarks.results import RESULTS, ROOT, record
from benchmarks.speed import busy
from omniset import SetClassifier, SetRegressor, Sets
from omniset.estimators import methods
from omniset.estimators.evaluation import Evaluation, evaluate
from omniset.estimators.inputs import checksum, folds_of
from omniset.estimators.methods import DissimilarityLinear
from omniset.estimators.mixture import STEPS, SetMixture
from omniset.estimators.options import SIZES
from omniset.runs.files import plain, provenance
from omniset.trials.comparison import OURS
from omniset.trials.intervals import Interval, Resampling, widened
from omniset.trials.kept import Done, Kept
from omniset.trials.stacking import Classes, Stack, log_losses

RUNS = ROOT / "runs" / "sets"
FOLDS, REPEATS = 5, 5
LOOKS = (
    "How the mixture learns its weights, and what its simple methods are, was chosen on these data sets and on "
    "simulated ones, with other folds: nothing here is untouched. The networks' settings were tried on the three bags."
)
BAGS = ("musk2", "breast_tissue")
Data = tuple[Sets, np.ndarray]
METHODS = SetMixture.METHODS


def main(seed: int = 0) -> None:
    if "OMNISET_DATA" not in os.environ:
        sys.exit("set OMNISET_DATA to the folder that holds bags/musk2")
    torch.set_num_threads(1)
    root = Path(os.environ["OMNISET_DATA"])
    sources: dict[str, Callable[[], Data]] = {name: lambda name=name: bags(root / "bags" / name) for name in BAGS}
    sources |= {"interplay": interplay, "noise": noise, "cfs": lambda: patients(root / "microbiomes" / "cfs")}
    sources["protein"] = lambda: bags(root / "bags" / "protein")  # the longest
    if os.environ.get("COVERAGE"):
        coverage(seed)
        return
    if os.environ.get("COSTS"):
        costs(root / "bags" / "musk2", int(os.environ["COSTS"]), seed)
        return
    if os.environ.get("HEAVY"):
        heavy(int(os.environ["HEAVY"]), seed)
        return
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in sources}
    for repeat in range(int(os.environ.get("REPEATS", REPEATS))):
        for name, source in sources.items():
            sets, y = source()
            parts[name].append(left_out(name, sets, y, repeat, seed))
            rows = pd.concat([rows for each in parts.values() for rows in each], ignore_index=True)
            record("sets/methods", numbers(rows), seed=seed, part_of="sets")


def kept(folder: Path) -> Kept:
    return Kept(folder, True, lambda line: print(line, flush=True))


def left_out(name: str, sets: Sets, y: np.ndarray, repeat: int, seed: int) -> pd.DataFrame:
    """What each method says of each set that was left out: a row per method and set.

    It is what results/sets/rows has, in single precision, also where it was made just now.
    """
    data = checksum(sets, torch.from_numpy(y), np.arange(len(sets)))
    settings = {"seed": seed, "folds": FOLDS, "data": data, "methods": [*METHODS, *RULES], "steps": STEPS, **SIZES}
    settings |= {"trees": methods.TREES, "variances": [*map(float, DissimilarityLinear.variances)]}
    settings |= {"options": SetClassifier(seed=seed, importance=False).fingerprint()}

    def work() -> Done:
        fold_of = folds_of(y, FOLDS, seed + 1000 + repeat)
        folds = [of_fold(f"{name}-{repeat}-{k}", sets, y, fold_of == k, seed, settings) for k in range(FOLDS)]
        rows = pd.concat([rows.assign(fold=k) for k, rows in enumerate(folds)], ignore_index=True)
        small = {"fold": np.int8, "p_1": np.float32, "set": "category", "method": "category"}
        return Done({"commit": provenance(seed)["commit"]}, rows[["set", "fold", "method", "p_1"]].astype(small))

    rows = kept(RESULTS / "sets").do(f"{name}-{repeat}", settings, work).rows
    assert rows is not None
    names = list(map(str, sets.names))
    rows = rows.astype({"set": str, "method": str, "p_1": float}).assign(condition=name, repeat=repeat)
    rows["truth"] = rows["set"].map(dict(zip(names, map(str, y.tolist()), strict=True)))
    rows["size"] = rows["set"].map(dict(zip(names, sets.sizes.tolist(), strict=True)))
    return rows.assign(p_0=1 - rows["p_1"], predicted=np.where(rows["p_1"] > 0.5, "1", "0"))


def of_fold(
    name: str, sets: Sets, y: np.ndarray, held: np.ndarray, seed: int, settings: dict[str, Any]
) -> pd.DataFrame:
    """The same of the sets of one fold; `RULES` are among the methods."""
    here, there = np.flatnonzero(held), np.flatnonzero(~held)

    def work() -> Done:
        model = SetClassifier(seed=seed, device="cpu", progress=False, importance=False).fit(sets[there], y[there])
        tables = model.by_method(sets[here])
        rows = pd.concat([table.assign(method=method) for method, table in tables.items()], ignore_index=True)
        stored = rows[["set", "method", "p_0", "p_1"]].astype({"set": str})
        said = np.stack([model.out_of_fold_.predictions[method] for method in METHODS])
        return Done({"weights": model.network_.weights_of(0)}, stored, {"left_out": said, "labels": y[there]})

    done = kept(RUNS).do(name, settings, work, line=name)
    return pd.concat([done.rows, by_rules(done)])


Rule = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def least_loss(left_out: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The method with the least log loss on sets left out, alone."""
    best = log_losses(left_out, y).mean(1).argmin()
    return lambda each: each[best]


def without_powers(left_out: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The weights of the default, for probabilities that are not calibrated."""
    weights = Stack.learned(left_out, Classes(y), np.arange(len(y)) % FOLDS).weights
    return lambda each: np.tensordot(weights, each, 1)


def log_odds(left_out: np.ndarray, y: np.ndarray, stiffness: float = 3.0) -> Callable[[np.ndarray], np.ndarray]:
    """p_k = prior_k prod_m (p_mk / prior_k)^v_m, scaled to sum 1; v_m >= 0 by their loss, pulled to 1 / methods."""

    def logs(each: np.ndarray, v: np.ndarray) -> np.ndarray:
        log = np.log(np.maximum(each, 1e-6))
        return log_softmax(log[0] + np.tensordot(v, log[1:] - log[0], 1), 1)

    equal = np.full(len(METHODS) - 1, 1 / (len(METHODS) - 1))

    def loss(v: np.ndarray) -> float:
        right = logs(left_out, v)[np.arange(len(y)), y]
        return float(-right.sum() + stiffness * len(v) * np.square(v - equal).sum())

    v = minimize(loss, equal, bounds=[(0, None)] * len(equal)).x
    return lambda each: np.exp(logs(each, v))


RULES: dict[str, Rule] = {
    "equal weights": lambda left_out, y: lambda each: each.mean(0),
    "least loss": least_loss,
    "without powers": without_powers,
    "log odds": log_odds,
}


def by_rules(done: Done) -> pd.DataFrame:
    """What the rules make of the methods' predictions, in the form of `Done.rows`."""
    each = {method: rows.set_index("set") for method, rows in done.rows.groupby("method")}
    predictions = np.stack([each[method][["p_0", "p_1"]].to_numpy() for method in METHODS])
    tables = []
    for name, rule in RULES.items():
        p = rule(done.arrays["left_out"], done.arrays["labels"])(predictions)
        tables.append(pd.DataFrame({"set": each[METHODS[0]].index, "method": name, "p_0": p[:, 0], "p_1": p[:, 1]}))
    return pd.concat(tables, ignore_index=True)


def numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """Scores, differences and gates; ours minus the best single method of each data set, and minus other rules."""
    columns = {"0": "p_0", "1": "p_1"}
    classes = dict.fromkeys(rows["condition"].unique(), columns)
    comparison = Evaluation(rows[~rows["method"].isin([*RULES])], classes).comparison
    of_rules = Evaluation(rows[rows["method"].isin([OURS, *RULES])], classes).comparison
    summary, rules = [], []
    for name in comparison.conditions:
        for score in ("AUROC", "log loss"):
            table = comparison.table(score, name)["value"]
            singles = table[[m for m in METHODS if m in table.index]]
            best = str(singles.idxmax() if score == "AUROC" else singles.idxmin())
            interval = comparison.difference(score, name, best).as_dict()
            summary.append({"data": name, "score": score, "ours": float(table[OURS]), "best": best, **interval})
            for rule in RULES:
                interval = of_rules.difference(score, name, rule).as_dict()
                rules.append({"data": name, "score": score, "rule": rule, **interval})
    return plain(
        {
            **comparison.numbers(),
            "repeats": rows.groupby("condition")["repeat"].nunique().to_dict(),
            "against the best single": summary,
            "against other rules": rules,
            "looks": LOOKS,
        }
    )


def bags(folder: Path) -> Data:
    """A bag of instances each: molecules as shapes, images as patches, proteins as windows."""
    labels = pd.read_csv(folder / "labels.csv").set_index("set")["label"]
    sets = Sets.from_pandas(pd.read_csv(folder / "sets.csv.gz"))
    return sets, (labels.loc[sets.names] == "positive").to_numpy().astype(np.int64)


def patients(folder: Path) -> Data:
    """Stool samples of patients and controls, as multisets of reads: shares of the 64 3-mers."""
    from omniset.microbiomes.samples import read_samples
    from omniset.tables.dna import kmer_shares, read_fasta

    samples = read_samples(folder / "table.biom")
    texts = read_fasta(folder / "sequences.fasta.xz")
    shares = kmer_shares([texts[name] for name in samples.features], 3)
    subject = pd.read_csv(folder / "samples.tsv.gz", sep="\t").set_index("#SampleID")["Subject"]
    names = [name for name in samples.names if name in subject.index]
    counts = samples.counts.toarray()[[samples.names.index(name) for name in names]]
    there = [np.flatnonzero(row) for row in counts]
    multiplicities = [row[columns].astype(np.float32) for row, columns in zip(counts, there, strict=True)]
    sets = Sets.from_ragged([shares[columns] for columns in there], multiplicities, names)
    return sets, (subject.loc[names] == "Patient").to_numpy().astype(np.int64)


def interplay(sets: int = 200, seed: int = 7) -> Data:
    """Ten normal features, of which the first two go together in one class and against each other in the other."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(sets) % 2)
    elements = []
    for label in y:
        x = rng.normal(size=(int(rng.integers(10, 40)), 10))
        rho = 0.7 if label else -0.7
        x[:, 1] = rho * x[:, 0] + np.sqrt(1 - rho**2) * x[:, 1]
        elements.append(x.astype(np.float32))
    return Sets.from_ragged(elements), y


def noise(sets: int = 100, seed: int = 8) -> Data:
    """Sets that tell nothing of their class."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(sets) % 2)
    drawn = [rng.normal(size=(int(rng.integers(10, 40)), 10)) + rng.normal(size=10) / 2 for _ in y]
    return Sets.from_ragged([x.astype(np.float32) for x in drawn]), y


def shifted(rng: np.random.Generator, sets: int) -> Data:
    """Sets around points of their own; in one class the first feature is higher."""
    y = rng.permutation(np.arange(sets) % 2)
    elements = []
    for label in y:
        x = rng.normal(size=(int(rng.integers(5, 20)), 5)) + rng.normal(size=5) / 2
        x[:, 0] += 0.8 * label
        elements.append(x.astype(np.float32))
    return Sets.from_ragged(elements), y


SMALL: dict[str, Any] = {"dim": 4, "depth": 1, "num_heads": 1, "num_inducing": 2, "epochs": 2}
TREES, VARIANCES = 30, (0.01, 0.3, 10.0)
NUMBERS = (30, 60, 120)  # of sets
BLOCK = 10  # data sets of each number, which are kept together


def coverage(seed: int, new: int = 2000) -> None:
    """How often the accuracy on many new sets lies in the interval that `fit` gives, by the number of sets.

    The methods of the mixture are small ones, so that hundreds of fits are cheap: an interval is of what was said of
    sets left out, whatever said it, and whether it holds depends on how the mixture is made and the number of sets.
    """
    methods.TREES, DissimilarityLinear.variances = TREES, VARIANCES
    small = SMALL | {"trees": TREES, "variances": len(VARIANCES)}
    parts: list[pd.DataFrame] = []
    for start in range(0, int(os.environ["COVERAGE"]), BLOCK):

        def work(start: int = start) -> Done:
            cases = [(number, sets) for number in range(start, start + BLOCK) for sets in NUMBERS]
            rows = [simulated(seed, *case, new, small) for case in cases]
            return Done({"commit": provenance(seed)["commit"]}, pd.DataFrame(rows))

        settings = {"seed": seed, "new": new, **small}
        rows = kept(RESULTS / "sets").do(f"coverage-{start}", settings, work, line=f"coverage: from {start}").rows
        assert rows is not None
        parts.append(rows)
        summary = [shares_inside(sets, of) for sets, of in pd.concat(parts).groupby("sets")]
        record("sets/coverage", {"rows": summary, "new sets": new, "methods": small}, seed=seed, part_of="sets")


def simulated(seed: int, number: int, sets: int, new: int, small: dict[str, Any]) -> dict[str, Any]:
    """The accuracy that `fit` expects, with its interval, and the truth."""

    def work() -> Done:
        rng = np.random.default_rng([seed, number, sets])
        learned, labels = shifted(rng, sets)
        how = SMALL | {"seed": number, "device": "cpu", "progress": False, "importance": False}
        model = SetClassifier(**how).fit(learned, labels)
        data, y = shifted(rng, new)
        right = (model.out_of_fold_.predictions[OURS].argmax(1) == labels).astype(np.float64)
        interval = Resampling(np.arange(sets)).estimate(lambda draws: draws.mean(right), share=True)
        return Done({"number": number, "sets": sets, "truth": model.score(data, y), **interval.as_dict()})

    return kept(RUNS).do(f"coverage-{number}-{sets}", {"seed": seed, "new": new, **small}, work).facts


def shares_inside(sets: int, rows: pd.DataFrame) -> dict[str, Any]:
    """How often intervals for so many sets hold, as they are printed and as they were before `widened`."""
    drawn = [Interval(*row) for row in rows[["value", "low", "high", "units"]].itertuples(index=False)]
    ends = {"inside": [widened(one, (0.0, 1.0)) for one in drawn], "inside without training": drawn}
    truth = rows["truth"].tolist()
    shares = {
        name: float(np.mean([one.low <= t <= one.high for one, t in zip(each, truth, strict=True)]))
        for name, each in ends.items()
    }
    return {"sets": sets, "splits": len(rows), **shares, "gap": float((rows["value"] - rows["truth"]).mean())}


TAILS = (0.5, 1.0, 1.5, 2.0)  # deviation of the logarithm of a person's rate of visits, that nothing tells
LEARNED, NEW = 200, 400  # persons
SHOWN = ("R2", "MAE")


def heavy(dealings: int, seed: int) -> None:
    """Visits of new persons: the default, and each method that it mixes, learned from the same persons."""
    parts: list[pd.DataFrame] = []
    for dealing in range(dealings):
        for tail in TAILS:

            def work(dealing: int = dealing, tail: float = tail) -> Done:
                sets, y = visits(np.random.default_rng([seed, dealing, round(10 * tail)]), LEARNED + NEW, tail)
                model = SetRegressor(seed=seed, importance=False, device="cpu", progress=False)
                model.fit(sets[:LEARNED], y[:LEARNED])
                return Done({}, evaluate(model, sets[LEARNED:], y[LEARNED:]).rows)

            how = {"seed": seed, "persons": [LEARNED, NEW], "options": SetRegressor(seed=seed).fingerprint()}
            rows = kept(RUNS).do(f"visits-{dealing}-{tail:g}", how, work).rows
            assert rows is not None
            rows = rows.assign(condition=f"visits, deviation {tail:g}", set=f"{dealing}-" + rows["set"].astype(str))
            parts.append(rows)
        found = Evaluation(pd.concat(parts, ignore_index=True)).comparison.numbers()
        shown = {name: [row for row in found[name] if row["score"] in SHOWN] for name in ("scores", "differences")}
        about = {"dealings": dealing + 1, "learned from": LEARNED, "unit": found["unit"]}
        record("sets/heavy", plain({**about, **shown}), seed=seed, part_of="sets")


def visits(rng: np.random.Generator, persons: int, tail: float) -> Data:
    """Counts whose rate goes with the mean of the first of five features, and else is lognormal."""
    elements = [rng.normal(size=(int(rng.integers(5, 30)), 5)) + rng.normal(size=5) for _ in range(persons)]
    told = np.array([x[:, 0].mean() for x in elements])
    y = rng.poisson(np.exp(1 + 0.6 * told + tail * rng.normal(size=persons)))
    return Sets.from_ragged([x.astype(np.float32) for x in elements]), y.astype(np.float64)


def costs(bag: Path, repeats: int, seed: int) -> None:
    """Time of `omniset fit` on 102 sets, by itself and beside one busy process."""
    rows: list[dict[str, Any]] = []
    command = ["fit", str(bag / "sets.csv.gz"), "--target", str(bag / "labels.csv"), "--progress", "false"]
    with tempfile.TemporaryDirectory() as folder:
        for beside in (0, 1) * repeats:
            load = os.getloadavg()[0]  # of all that ran here in the last minute
            with busy(beside):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                row = measure([*command, "--out", f"run-{len(rows)}"], Path(folder))
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            rows.append({"data": bag.name, "beside": beside, "load": load, "processor": processor, **row})
            print(rows[-1], flush=True)
    record("sets/costs", {"rows": rows, "processors": os.cpu_count()}, seed=seed, part_of="sets")
