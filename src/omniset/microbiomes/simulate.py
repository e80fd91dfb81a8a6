"""A made-up microbiome to try the commands on: references of a marker gene, their taxa, samples of two habitats."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from omniset.microbiomes.references import Members, de_novo, draw, replicate
from omniset.microbiomes.samples import Samples, write_samples
from omniset.microbiomes.sequences import IUPAC, REGIONS, reverse_complement, write_fasta
from omniset.microbiomes.taxonomy import Lineage, joined

FAMILIES, GENERA, EACH = 8, 4, 20  # families, genera of each, references of each
LENGTH = 250  # of the region between the primers
# Share of bases drawn anew. Two and two genera are so near each other that some of their reads need the sample.
DIFFER = {"family": 0.3, "pair": 0.04, "genus": 0.01, "reference": 0.02, "sample": 0.02}
READS = 2000
BASES = np.frombuffer(b"ACGT", dtype=np.uint8)


@dataclass
class Microbiome:
    """What is written."""

    references: dict[str, str]  # with primers of the region 515F-806R around it, by name
    lineages: dict[str, Lineage]  # of the references
    sequences: dict[str, str]  # of the samples, without primers, by name; near references, not among them
    truth: dict[str, Lineage]  # their lineages
    samples: Samples  # reads of each
    reads: list[str]  # of one more sample, each by itself


def simulate(samples: int = 12, seed: int = 0) -> Microbiome:
    """Samples are replicates of two log-normal communities in turn."""
    rng = np.random.default_rng(seed)
    forward, reverse = ("".join(IUPAC[letter][0] for letter in primer) for primer in REGIONS["515F-806R"])
    root = _random(LENGTH, rng)
    regions: dict[str, str] = {}
    lineages: dict[str, Lineage] = {}
    for family in range(FAMILIES):
        of_family = mutated(root, DIFFER["family"], rng)
        for genus in range(GENERA):
            if genus % 2 == 0:
                of_pair = mutated(of_family, DIFFER["pair"], rng)
            of_genus = mutated(of_pair, DIFFER["genus"], rng)
            for _ in range(EACH):
                name = f"ref{len(regions) + 1}"
                regions[name] = mutated(of_genus, DIFFER["reference"], rng)
                above = ("d__Bacteria", f"p__P{family // 4 + 1}", f"c__C{family // 2 + 1}", f"o__O{family + 1}")
                lineages[name] = (*above, f"f__F{family + 1}", f"g__G{family * GENERA + genus + 1}")
    flanks = (_random(40, rng) + forward, reverse_complement(reverse) + _random(40, rng))
    references = {name: flanks[0] + text + flanks[1] for name, text in regions.items()}
    variants = {f"ASV{i + 1}": mutated(text, DIFFER["sample"], rng) for i, text in enumerate(regions.values())}
    truth = dict(zip(variants, lineages.values(), strict=True))
    taxa = FAMILIES * GENERA
    members = Members.of(np.arange(len(variants)), np.repeat(np.arange(taxa), EACH), taxa)
    bases = [de_novo(taxa, rng) for _ in range(2)]
    counts = np.zeros((samples, len(variants)))
    for i in range(samples):
        drawn, times = draw(replicate(bases[i % 2], 0.6, rng), READS, members, rng)
        counts[i, drawn] = times
    names = [f"{'gut' if i % 2 == 0 else 'soil'}{i // 2 + 1}" for i in range(samples)]
    seen = counts.sum(0) > 0
    features = [name for name, there in zip(variants, seen.tolist(), strict=True) if there]
    drawn, times = draw(replicate(bases[0], 0.6, rng), READS, members, rng)
    texts = list(variants.values())
    reads = [texts[i] for i in rng.permutation(np.repeat(drawn, times))]
    table = Samples(names, features, sp.csr_array(counts[:, seen]))
    shown = {name: variants[name] for name in features}
    return Microbiome(references, lineages, shown, {name: truth[name] for name in features}, table, reads)


def write(place: Path, made: Microbiome) -> None:
    """Files of it in a folder, as they come from other tools: references.fasta and taxonomy.tsv; table.tsv and
    sequences.fasta, samples of the two habitats in turn; truth.tsv, their taxa; reads.fastq.gz, of one more sample.
    """
    place.mkdir(parents=True, exist_ok=True)
    write_fasta(place / "references.fasta", made.references)
    write_fasta(place / "sequences.fasta", made.sequences)
    write_samples(place / "table.tsv", made.samples)
    for name, taxa in (("taxonomy.tsv", made.lineages), ("truth.tsv", made.truth)):
        rows = "".join(f"{feature}\t{joined(taxon)}\n" for feature, taxon in taxa.items())
        (place / name).write_text(f"Feature ID\tTaxon\n{rows}", encoding="utf-8")
    reads = "".join(f"@read{i}\n{text}\n+\n{'I' * len(text)}\n" for i, text in enumerate(made.reads, 1))
    (place / "reads.fastq.gz").write_bytes(gzip.compress(reads.encode(), mtime=0))


def mutated(text: str, rate: float, rng: np.random.Generator) -> str:
    """With this share of its letters drawn anew from the four bases."""
    letters = np.frombuffer(text.encode("ascii"), dtype=np.uint8).copy()
    where = rng.random(len(letters)) < rate
    letters[where] = rng.choice(BASES, int(where.sum()))
    return letters.tobytes().decode("ascii")


def _random(length: int, rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("ACGT"), length))
