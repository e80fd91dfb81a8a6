"""A made-up marker gene: families, genera and sequences that differ by more and more mutations."""

import gzip
from contextlib import contextmanager

import numpy as np
import pytest

from omniset.microbiomes import TaxonClassifier

FORWARD, REVERSE_TURNED = "GTGCCAGCAGCCGCGGTAA", "ATTAGATACCCGGGTAGTCC"  # fit the primers 515F and 806R
SMALL = {"lengths": (), "epochs": 4, "learning_rate": 1e-2, "device": "cpu", "progress": False}
FEW = {"epochs": 1}


@contextmanager
def small():
    """Networks that learn in a second, and enough sequences kept back."""
    sizes = {"KMERS": (3, 5), "WIDTH": 24, "MEMBERS": 2, "BATCH_SIZE": 16, "FRACTIONS": (0.25, 0.25)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(TaxonClassifier, name, value)
        patch.setattr("omniset.microbiomes.calibration.SAMPLES", 16)
        yield


@pytest.fixture(scope="module", autouse=True)
def networks_are_small():
    with small():
        yield


def changed(text, rate, rng):
    letters = np.array(list(text))
    where = rng.random(len(letters)) < rate
    letters[where] = rng.choice(list("ACGT"), where.sum())
    return "".join(letters)


def made_up(families=3, genera=3, each=12, length=120, seed=0):
    """Sequences and lineages by name."""
    rng = np.random.default_rng(seed)
    root = "".join(rng.choice(list("ACGT"), length))
    texts, lineages = {}, {}
    for f in range(families):
        family = changed(root, 0.3, rng)
        for g in range(genera):
            genus = changed(family, 0.12, rng)
            for _i in range(each):
                name = f"ref{len(texts)}"
                texts[name] = changed(genus, 0.02, rng)
                lineages[name] = ("d__B", "p__P", "c__C", "o__O", f"f__F{f}", f"g__G{f}{g}")
    return texts, lineages


@pytest.fixture(scope="session")
def references():
    return made_up()


@pytest.fixture(scope="session")
def classifier(references):
    with small():
        return TaxonClassifier(**SMALL).fit(*references)


@pytest.fixture
def files(references, tmp_path):
    """A folder with refs.fasta.gz (primers around), tax.tsv, table.tsv and seqs.fasta."""
    texts, lineages = references
    with gzip.open(tmp_path / "refs.fasta.gz", "wt") as file:
        for name, text in texts.items():
            file.write(f">{name} made up\nACGTTGCA{FORWARD}{text[:60]}\n{text[60:]}{REVERSE_TURNED}TTGCAC\n")
    lines = [f"{name}\t{'; '.join(lineage)}" for name, lineage in lineages.items()]
    (tmp_path / "tax.tsv").write_text("\n".join(["Feature ID\tTaxon", *lines]) + "\n")
    some = list(texts)[::5]
    (tmp_path / "seqs.fasta").write_text("".join(f">{name}\n{texts[name]}\n" for name in some))
    rows = [f"{name}\t{i % 3}\t{5 * i + 1}" for i, name in enumerate(some)]
    (tmp_path / "table.tsv").write_text("\n".join(["#OTU ID\tA\tB", *rows]) + "\n")
    return tmp_path
