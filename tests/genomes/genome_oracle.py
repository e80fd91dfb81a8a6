"""Genomes for tests, and independent float64 references of the noise model and of the comparison with references:
plain loops over one genome and one family at a time.
"""

import contextlib
import functools
import gzip

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from omniset.genomes import Completion, GenomeCompleter, GenomeTable
from omniset.genomes.calibration import GRID, Level
from omniset.genomes.noise import LEAST_FOREIGN, LEAST_MISSED, NoiseModel, Observed
from omniset.genomes.training import UNTRAINED, Clades, Genomes, Suite

TRAINED = ("evidence", "seed", "pca", "autoencoder")
FAMILIES = 41  # a prime that is no other size, so that the families' axis of a tensor is known by it


def some_counts(genomes=29, families=FAMILIES, clades=7, seed=0):
    """Copies of families; genomes i, i + clades, ... are alike; some families are everywhere, one is nowhere."""
    rng = np.random.default_rng(seed)
    frequency = np.concatenate([np.ones(families // 4), rng.uniform(0.05, 0.9, families - families // 4 - 1), [0.0]])
    kinds = rng.random((clades, families)) < frequency
    others = rng.random((genomes, families)) < frequency
    have = np.where(rng.random((genomes, families)) < 0.8, kinds[np.arange(genomes) % clades], others)
    return have * rng.integers(1, 4, (genomes, families))


def some_frame(genomes=24, families=FAMILIES, clades=6, seed=0):
    names = [f"g{i:02}" for i in range(genomes)]
    columns = [f"COG{i:04}" for i in range(1, families + 1)]
    return pd.DataFrame(some_counts(genomes, families, clades, seed), index=names, columns=columns)


def some_taxonomy(genomes=24, clades=6):
    """Two families to an order, as `some_frame` has its clades."""
    clade = np.arange(genomes) % clades
    index = pd.Index([f"g{i:02}" for i in range(genomes)], name="genome")
    return pd.DataFrame({"order": [f"O{c // 2}" for c in clade], "family": [f"F{c}" for c in clade]}, index=index)


def observed_of(counts, completeness=None, contamination=None, excluded=None, seed=1):
    """An Observed in float64 with some quality each."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.4, 1.0, len(counts)) if completeness is None else completeness
    q = rng.uniform(0.0, 0.15, len(counts)) if contamination is None else contamination
    told = (torch.as_tensor(np.broadcast_to(v, len(counts)).astype(np.float64)) for v in (c, q))
    return Observed(torch.as_tensor(np.asarray(counts)).double(), *told, excluded)


def suite_of(names=TRAINED, counts=None, references=None, seed=0, random=True, double=True):
    """All methods, fitted to complete genomes, their weights then drawn at random."""
    counts = some_counts() if counts is None else counts
    references = counts[:23] if references is None else references
    torch.manual_seed(seed)
    suite = Suite(counts.shape[1], len(references), [*UNTRAINED, *names])
    suite = suite.double() if double else suite  # before it is fitted, to be exact
    suite.noise.load_state_dict(noise_of(counts).state_dict())
    suite.references.fit(sp.csr_array(references))
    rng = np.random.default_rng(seed)
    for method in suite.methods.values():
        method.fit(sp.csr_array(counts), rng)
    if random:
        with torch.no_grad():
            for parameter in suite.parameters():
                parameter += torch.randn_like(parameter) * 0.3
    return suite.eval()


def genomes_of(itself=None, *, number=29, clades=7, kept=1, references=None):
    """Genomes of which the last clades are kept back."""
    groups = np.arange(number) % clades
    codes = np.stack([groups // 2, groups, np.arange(number)], 1)
    train, validation = np.flatnonzero(groups < clades - kept), np.flatnonzero(groups >= clades - kept)
    references = train if references is None else references
    counts = sp.csr_array(some_counts(number, clades=clades))
    return Genomes(counts, Clades(codes), train, validation, references, itself)


def noise_of(counts):
    """A noise model in float64, fitted to complete genomes."""
    noise = NoiseModel(counts.shape[1]).double()
    noise.load_state_dict(_noise_state(counts.tobytes(), counts.shape))
    return noise


@functools.cache
def _noise_state(counts, shape):
    """Fitting is most of the time that it takes to make methods."""
    noise = NoiseModel(shape[1]).double()
    noise.fit(sp.csr_array(np.frombuffer(counts, dtype=np.int64).reshape(shape)), np.random.default_rng(0))
    return noise.state_dict()


# ---------------------------------------------------------------------- noise


def rates(counts, completeness, contamination, detection=None):
    """(missed, foreign) of each family in the complete genomes `counts`, at one quality."""
    missed, foreign = [], []
    for v, column in enumerate(np.asarray(counts).T):
        copies = [min(int(k), 10) for k in column if k > 0]
        c = completeness if detection is None else completeness * detection[v]
        # and half a genome with one copy
        lost = (sum((1 - c) ** k for k in copies) + 0.5 * (1 - c)) / (len(copies) + 0.5)
        q = min(contamination, 1.0)
        none = (sum((1 - q) ** k for k in copies) + 0.5 * (1 - q)) / (len(copies) + 0.5)
        prevalence = (len(copies) + 0.5) / (len(column) + 1)
        missed.append(min(max(lost, LEAST_MISSED), 1 - LEAST_MISSED))
        foreign.append(min(max(prevalence * (1 - none), LEAST_FOREIGN), 0.5))
    return np.array(missed), np.array(foreign)


def prevalence(counts):
    return ((np.asarray(counts) > 0).sum(0) + 0.5) / (len(counts) + 1)


def evidence(counts, seen, completeness, contamination, detection=None):
    missed, foreign = rates(counts, completeness, contamination, detection)
    return np.array(
        [
            np.log((1 - m) / f) if there else np.log(m / (1 - f))
            for m, f, there in zip(missed, foreign, seen, strict=True)
        ]
    )


def logit(p):
    p = np.clip(p, 1e-4, 1 - 1e-4)
    return np.log(p) - np.log1p(-p)


# ---------------------------------------------------------------------- references


def jaccard(a, b):
    a, b = set(np.flatnonzero(a)), set(np.flatnonzero(b))
    return len(a & b) / max(len(a | b), 1)


def corrected(seen, reference, missed):
    """Jaccard similarity with every family that was seen standing for 1 / (1 - missed) of them."""
    stands_for = {v: 1 / (1 - missed[v]) for v in np.flatnonzero(seen)}
    size, other = sum(stands_for.values()), int((np.asarray(reference) > 0).sum())
    shared = min(sum(w for v, w in stands_for.items() if reference[v] > 0), other, size)
    return shared / max(size + other - shared, 1)


def neighbours(seen, references, allowed, prevalence, k=15):
    """Share of the k nearest that have each family, the prevalence one more. Ties: the earlier reference."""
    near = sorted((r for r in range(len(references)) if allowed[r]), key=lambda r: -jaccard(seen, references[r]))[:k]
    return np.array([(sum(references[r][v] > 0 for r in near) + p) / (len(near) + 1) for v, p in enumerate(prevalence)])


def nearest_by(evidence, references, allowed, k=15):
    """(weight, place) of the k of the greatest likelihood, weights falling to 0 at the next; and how many they are."""
    scores = sorted(((evidence @ references[r], r) for r in range(len(references)) if allowed[r]), reverse=True)
    scale = max(scores[0][0] - scores[: k + 1][-1][0], 1e-6)
    weights = [(1 - ((scores[0][0] - score) / scale) ** 2, r) for score, r in scores[:k]]
    total = sum(w for w, _ in weights)
    return [(w / total, r) for w, r in weights], total**2 / sum(w**2 for w, _ in weights)


def likeliest(evidence, references, allowed, prevalence):
    """Share of the nearest by likelihood that have each family, the prevalence one more."""
    if not any(allowed):
        return np.array(prevalence)
    references = np.asarray(references) > 0
    weights, number = nearest_by(evidence, references, allowed)
    return (number * sum(w * references[r] for w, r in weights) + prevalence) / (number + 1)


def imputed(noise, evidence, references, complete, own):
    """Probability that reference `own` has each family, out of what others have, each counting as much as it would show
    the family by how complete it is.
    """
    prevalence, references = noise.prevalence.numpy(), np.asarray(references) > 0
    shown = 1 - (1 - complete)[:, None] ** np.arange(1, 11) @ noise.copies.numpy()
    weights, number = nearest_by(evidence, references, np.arange(len(references)) != own)
    have, could = (sum(w * of[r] for w, r in weights) for of in (references, shown))
    share = (number * np.minimum(have / could, 1) + prevalence) / (number + 1)
    return 1 / (1 + np.exp(-(logit(share) + evidence)))


def kernel(evidence, references, allowed, prevalence, sharp):
    """Share of the references, weighted by likelihood ** sharp, that have each family."""
    rows = [r for r in range(len(references)) if allowed[r]]
    if not rows:
        return np.array(prevalence)
    scores = np.array([sharp * evidence[np.asarray(references[r]) > 0].sum() for r in rows])
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    number = 1 / (weights**2).sum()
    share = sum(w * (np.asarray(references[r]) > 0) for w, r in zip(weights, rows, strict=True))
    return (number * share + prevalence) / (number + 1)


COUNTS = some_counts()
REFERENCES = COUNTS[:23]


def genomes_of_all_sizes(excluded=True):
    """From no family at all to every one of them."""
    seen = some_counts(11, seed=5)
    seen[3] = 0
    seen[4] = np.arange(FAMILIES) == 13
    seen[7] = 2
    hidden = torch.as_tensor(np.random.default_rng(2).random((11, len(REFERENCES))) < 0.3) if excluded else None
    return observed_of(seen, excluded=hidden)


def unknown_quality(observed):
    nan = torch.full_like(observed.completeness, np.nan)
    return Observed(observed.counts, nan, nan, observed.excluded)


def content(genomes):
    return [(g.name, dict(zip(g.families, g.counts.tolist(), strict=True))) for g in genomes]


def write(path, text):
    """A file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def completion(name, observed, call, probability=None, **changes):
    """By hand: p is 0.9 where it is called, else 0.1."""
    observed, call = np.array(observed, dtype=bool), np.array(call, dtype=bool)
    p = np.where(call, 0.9, 0.1) if probability is None else np.array(probability)
    given = {
        **{"unknown": {}, "completeness": 70.0, "contamination": 2.0, "given": True},
        **{"expected": float(p.sum()), "low": 1.0, "high": 4.0},
        **{"novelty": 0.25, "nearest": "R1", "far": False, "warnings": []},
    }
    return Completion(name, observed.astype(np.int64), np.log(p / (1 - p)), call, **(given | changes))


# ---------------------------------------------------------------------- a small completer

SMALL = {"epochs": 1, "device": "cpu", "progress": False}
EVERY = ("evidence", *UNTRAINED, "pca")
SPLIT = (np.arange(24)[np.arange(24) % 6 < 5], np.arange(24)[np.arange(24) % 6 == 5])
FRAME, TAXONOMY = some_frame(), some_taxonomy()
FRAME = FRAME.loc[:, (FRAME.iloc[SPLIT[0]] > 0).any()]  # families that are in the vocabulary


def table(frame=FRAME):
    return GenomeTable.from_frame(frame)


def fit_split(frame=FRAME, also=(), architecture="evidence", refit=True, far=False, **options):
    """far: Some genomes may be far from the references; else none is."""
    found = frame if isinstance(frame, GenomeTable) else table(frame)
    clades = Clades.of_taxonomy(TAXONOMY, found.names, "family")
    model = GenomeCompleter(architecture, **(SMALL | options))
    model.fit_split(found, TAXONOMY, clades, *SPLIT, also=also, refit=refit)
    return model if far else without_limit(model)


def without_limit(model):
    """The same model; no genome is far from its references."""
    for level in (*model.levels_, *model.accessory_levels_):
        level.novelty = 1.0
    return model


def same_weights(one, other, without=()):
    """All of the first, to the bit, but those whose names end so."""
    one, other = one.network_.state_dict(), other.network_.state_dict()
    return all(torch.equal(value, other[name]) for name, value in one.items() if not name.endswith(tuple(without)))


def level(c=70.0, q=5.0, added=None, removed=None, **others):
    """What validation says at one level of noise, by hand."""
    nothing = [None] * len(GRID)
    values = {"off": 0.5, "off_estimated": 1.0, "novelty": 0.5}
    values |= {"ece": 0.01, "bins": [(3, 0.05, 0.1)] * 10}
    return Level(c, q, added or nothing, removed or nothing, **(values | others))


@contextlib.contextmanager
def by(completer, method):
    """While it is open, the completer completes by another of the methods that it was fitted with."""
    own, completer.architecture = completer.architecture, method
    try:
        yield completer
    finally:
        completer.architecture = own
