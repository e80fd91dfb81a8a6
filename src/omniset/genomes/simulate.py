"""Gene content by gain and loss along a tree: tables to try the genome system on, whose truth is known.

Known to be simpler than life: nothing is transferred between lineages, all genomes are of similar size, and a family
that is lost and gained again within one branch keeps its copies.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from omniset.genomes.noise import degrade
from omniset.runs.files import writable_folder
from omniset.tables.files import TableWriter

# Chosen so that the spectrum of frequencies and the similarity of relatives come near to those of archaea.
SHARE, COPIES, RATE = 0.3, 2.0, 2.0  # share of the families in a genome, copies of each, turnovers from root to leaf
CONCENTRATION = 1.3  # of the Beta distribution of frequencies; U-shaped where small
VARIATION = 2.0  # shape of the Gamma distribution of rates; the smaller the more they vary
MODULE, TOGETHER = 3.0, 0.9  # mean number of families of a module, and how often each follows it
NOVEL = 0.5  # largest share of the incomplete genomes that are of taxonomic families without a reference
COMPLETENESS, CONTAMINATION = (50.0, 95.0), (0.0, 10.0)  # lowest and highest of the incomplete genomes, in percent
OFF = 5.0  # points by which an estimated quality is wrong at most
RANKS = {"p": 0.25, "c": 0.4, "o": 0.5, "f": 0.65, "g": 0.85}  # where the tree is cut, the leaves being at 1


@dataclass
class Families:
    """How gene families come and go; time is measured in the tree's unit of length."""

    frequency: Float[np.ndarray, " families"]  # pi, the share of genomes that have it in the long run
    turnover: Float[np.ndarray, " families"]  # r > 0; it is gained at rate r pi and lost at rate r (1 - pi)
    # rho in [0, 1): a copy is duplicated at rate r rho, one beyond the first is lost at rate r.
    duplication: Float[np.ndarray, " families"]
    # Families with the same number are gained and lost together; they share frequency and turnover.
    module: Int[np.ndarray, " families"]


@dataclass
class Simulated:
    """Reference genomes, and incomplete, contaminated ones (mags) that are not among them.

    Attributes:
        genomes, families, mags: Names of the references, the gene families, and the incomplete genomes.
        counts: Gene copies of the references, of each family.
        truth: Gene copies of the mags, were they complete and clean.
        observed: Gene copies that were found of them, foreign ones included.
        taxonomy: "d__Simulated;p__P1;...;s__S1" of the references, then of the mags.
        completeness, contamination: True ones of the mags, in percent.
        estimated_completeness, estimated_contamination: Wrong by up to 5 points, in percent.
    """

    genomes: list[str]
    families: list[str]
    counts: Int[np.ndarray, "genomes families"]
    mags: list[str]
    truth: Int[np.ndarray, "mags families"]
    observed: Int[np.ndarray, "mags families"]
    taxonomy: list[str]
    completeness: Float[np.ndarray, " mags"]
    contamination: Float[np.ndarray, " mags"]
    estimated_completeness: Float[np.ndarray, " mags"]
    estimated_contamination: Float[np.ndarray, " mags"]


def simulate(genomes: int = 400, families: int = 1000, mags: int = 100, seed: int = 0) -> Simulated:
    """Relatives with their gene families, some of them complete references, the others spoilt.

    Up to half of the mags are all genomes there are of some taxonomic families, which so have no reference; the others
    are any. What contaminates a mag is from one other genome, near or far. A family that no reference has would be in
    no table: one copy of it is given to one of them.

    Args:
        genomes: Number of references, at least 4.
        families: Number of gene families, at least 2.
        mags: Number of incomplete genomes, at least 1.
        seed: The same gives the same tables.
    """
    number, rng = genomes + mags, np.random.default_rng(seed)
    tree = yule_tree(number, rng)
    kinds = draw_families(families, size=SHARE * families, copies=COPIES, rate=RATE, rng=rng)
    rng.choice(number, number, replace=False)  # is not used: so that a seed gives the tables that it always gave
    content = gain_and_loss(tree, kinds, rng)
    taxonomy = np.array(clades(tree))
    names = np.array(numbered("GENOME", number))
    spoilt = _choose_mags(taxonomy.tolist(), mags, rng)
    references = np.flatnonzero(~spoilt)
    unseen = np.flatnonzero(~content[references].any(0))
    content[rng.choice(references, len(unseen)), unseen] = 1

    quality = np.stack([rng.uniform(*COMPLETENESS, mags), rng.uniform(*CONTAMINATION, mags)])
    estimated = np.clip(quality + rng.uniform(-OFF, OFF, quality.shape), 0, 100)
    observed = np.empty((mags, families), dtype=content.dtype)
    for row, (genome, complete, foreign) in enumerate(zip(np.flatnonzero(spoilt), *quality, strict=True)):
        donor = (genome + rng.integers(1, number)) % number  # any other one
        observed[row] = degrade(content[genome], content[donor], complete / 100, foreign / 100, rng)
    return Simulated(
        genomes=names[~spoilt].tolist(),
        families=numbered("FAM", families),
        counts=content[~spoilt],
        mags=names[spoilt].tolist(),
        truth=content[spoilt],
        observed=observed,
        taxonomy=[*taxonomy[~spoilt].tolist(), *taxonomy[spoilt].tolist()],
        completeness=quality[0],
        contamination=quality[1],
        estimated_completeness=estimated[0],
        estimated_contamination=estimated[1],
    )


def write(folder: str | Path, simulated: Simulated) -> None:
    """Five tables, of which none is there under its name before all are written:

    families.tsv and mags.tsv (what is found in references and mags) and truth.tsv (what the mags had) with a row per
    genome and a column per family, taxonomy.tsv (references and mags), and quality_report.tsv with the columns that
    CheckM2 writes (Chklovskii et al., 2023), estimated.

    Raises:
        OSError: The folder cannot be made or written to.
    """
    folder = writable_folder(folder)
    s = simulated
    quality = {"Completeness": s.estimated_completeness, "Contamination": s.estimated_contamination}
    tables = {
        "taxonomy": pd.DataFrame({"genome": [*s.genomes, *s.mags], "taxonomy": s.taxonomy}),
        "quality_report": pd.DataFrame({"Name": s.mags} | {k: v.round(2) for k, v in quality.items()}),
    }
    wide = {"families": (s.genomes, s.counts), "mags": (s.mags, s.observed), "truth": (s.mags, s.truth)}
    for name, (genomes, counts) in wide.items():
        tables[name] = pd.DataFrame(counts, pd.Index(genomes, name="genome"), s.families).reset_index()
    with ExitStack() as stack:
        for name, frame in tables.items():
            stack.enter_context(TableWriter(folder / f"{name}.tsv")).write(frame)


def draw_families(families: int, *, size: float, copies: float, rate: float, rng: np.random.Generator) -> Families:
    """Families of all kinds: frequencies are Beta distributed with concentration 1.3, so that many families are rare
    and some are everywhere (Lapierre and Gogarten, "Estimating the size of the bacterial pan-genome", 2009), turnovers
    Gamma distributed with shape 2 (after Yang, "Maximum likelihood phylogenetic estimation from DNA sequences with
    variable rates over sites", 1994), sizes of modules geometrically with mean 3.

    Args:
        size: Mean number of families of a genome, between 0 and `families`, their number.
        copies: Mean number of copies of a family that was never lost, at least 1: E[1 / (1 - rho)], rho ~ Beta(1/2, .).
        rate: Mean turnover per unit of the tree's length.
    """
    module = rng.permutation(np.repeat(np.arange(families), rng.geometric(1 / MODULE, families))[:families])
    mean = size / families
    frequency = rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean), families)
    turnover = rng.gamma(VARIATION, rate / VARIATION, families)
    duplication = np.zeros(families)
    if copies > 1:
        duplication = np.minimum(rng.beta(0.5, 1 + 0.5 / (copies - 1), families), 0.99)
    return Families(frequency[module], turnover[module], duplication, module)


def gain_and_loss(
    tree: Tree, families: Families, rng: np.random.Generator, *, together: float = TOGETHER
) -> Int[np.ndarray, "leaves families"]:
    """Gene copies at the leaves.

    Presence is the two-state Markov chain of Cohen et al., "A likelihood framework to analyse phyletic patterns", 2008:
    P(present | x) = pi + (x - pi) e^(-r t) after a branch of length t, pi at the root. Each family compares it with a
    uniform number of its own or, with probability `together`, of its module: what one family does stays the same
    process, and members that were in the same state mostly stay so. The e copies beyond the first are a linear
    birth-death process with immigration from the first (Kendall, "On the Generalized Birth-and-Death Process", 1948):
    e' = s + NB(s + 1, 1 - rho a), s ~ Binomial(e, 1 - a), a = (1 - E) / (1 - rho E), E = e^(-r (1 - rho) t).
    """
    content = np.zeros((len(tree.parent), len(families.module)), dtype=np.int64)
    pi, r, rho = families.frequency, families.turnover, families.duplication
    for node, (above, t) in enumerate(zip(tree.parent, tree.length, strict=True)):
        independent, shared, follows = rng.random((3, len(pi)))
        uniform = np.where(follows < together, shared[families.module], independent)
        if above < 0:
            present, survivors, ends = uniform < pi, np.zeros(len(pi), dtype=np.int64), np.ones(len(pi))
        else:
            before = content[above]
            present = uniform < pi + ((before > 0) - pi) * np.exp(-r * t)
            decay = np.exp(-r * (1 - rho) * t)
            ends = (1 - decay) / (1 - rho * decay)
            survivors = rng.binomial(np.maximum(before - 1, 0), 1 - ends)
        content[node] = present * (1 + survivors + rng.negative_binomial(survivors + 1, 1 - rho * ends))
    return np.take(content, tree.leaves, axis=0)


def _choose_mags(taxonomy: list[str], mags: int, rng: np.random.Generator) -> Bool[np.ndarray, " genomes"]:
    """Whole taxonomic families, in random order, as long as they are at most half of the mags; then any genomes."""
    _, family = np.unique([t.rsplit(";", 2)[0] for t in taxonomy], return_inverse=True)
    chosen = np.zeros(len(taxonomy), dtype=bool)
    for candidate in rng.permutation(family.max() + 1):
        more = chosen | (family == candidate)
        if more.sum() <= NOVEL * mags:
            chosen = more
    rest = np.flatnonzero(~chosen)
    chosen[rng.choice(rest, mags - chosen.sum(), replace=False)] = True
    return chosen


# ---------------------------------------------------------------------- trees


@dataclass
class Tree:
    """A rooted tree."""

    # Of each node, -1 of the root. Parents come before children, the root is node 0.
    parent: Int[np.ndarray, " nodes"]
    length: Float[np.ndarray, " nodes"]  # of the branch above each node; 0 above the root

    @property
    def leaves(self) -> Int[np.ndarray, " leaves"]:
        return np.setdiff1d(np.arange(len(self.parent)), self.parent)

    @property
    def depth(self) -> Float[np.ndarray, " nodes"]:
        """Distance from the root."""
        depth = np.zeros(len(self.parent))
        for node in range(1, len(depth)):
            depth[node] = depth[self.parent[node]] + self.length[node]
        return depth


def yule_tree(leaves: int, rng: np.random.Generator) -> Tree:
    """A pure-birth tree, all of its leaves at distance 1 from the root (Yule, "A Mathematical Theory of Evolution",
    1925): k lineages wait for Exp(k), then one of them splits. There are at least two leaves.
    """
    parent, born, died = [-1, 0, 0], [0.0] * 3, [0.0] * 3
    alive = [1, 2]
    now = rng.exponential(1 / 2)
    while len(alive) < leaves:
        splits = int(rng.integers(len(alive)))
        node = alive[splits]
        died[node] = now
        alive[splits] = len(parent)
        alive.append(len(parent) + 1)
        parent += [node, node]
        born += [now, now]
        died += [now, now]
        now += rng.exponential(1 / len(alive))
    for node in alive:
        died[node] = now
    return Tree(np.array(parent), (np.array(died) - np.array(born)) / now)


def clades(tree: Tree) -> list[str]:
    """Taxonomy of the leaves, "d__Simulated;p__P1;c__C1;o__O1;f__F1;g__G1;s__S1": the tree is cut at shares of the mean
    distance of leaves from the root, and what stays connected below a cut is a clade. Species are single leaves.
    """
    leaves, depth = tree.leaves, tree.depth
    whole = depth[leaves].mean()
    is_leaf = np.isin(np.arange(len(depth)), leaves)
    taxonomy = ["d__Simulated"] * len(leaves)
    for rank, cut in [*RANKS.items(), ("s", math.inf)]:
        top = np.full(len(depth), -1)  # the node that a clade starts with
        for node, above in enumerate(tree.parent):
            inherited = top[above] if above >= 0 else -1
            starts = is_leaf[node] or depth[node] >= cut * whole
            top[node] = inherited if inherited >= 0 else node if starts else -1
        number: dict[int, int] = {}
        for i, clade in enumerate(top[leaves].tolist()):
            taxonomy[i] += f";{rank}__{rank.upper()}{number.setdefault(clade, len(number) + 1)}"
    return taxonomy


def numbered(prefix: str, number: int) -> list[str]:
    """FAM00001, FAM00002, ..."""
    return [f"{prefix}{i:05}" for i in range(1, number + 1)]
