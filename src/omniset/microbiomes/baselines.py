"""What names sequences today: naive Bayes on 7-mers, alone and with what the sample tells, the nearest reference, and
the programs that are installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from scipy.special import softmax
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.preprocessing import normalize

from omniset.microbiomes.references import References
from omniset.microbiomes.sequences import write_fasta
from omniset.microbiomes.taxonomy import Taxa
from omniset.tables.dna import spectra

WORDS = 7
HASHED = 8192
ALPHA = 0.001
ROUNDS = 50  # of expectation and maximisation
SPREAD = 0.1  # of the abundances that all taxa share, so that none is ruled out
TOGETHER = 1024

Pairs = Int[np.ndarray, " chosen"]  # of references
Profiles = Float[np.ndarray, "profiles taxa"]
Rows = Int[np.ndarray, " distinct"]  # numbers of sequences that were read
Reads = Float[np.ndarray, " distinct"]
Logits = Float[np.ndarray, "distinct taxa"]
Confidences = Float[np.ndarray, " distinct"]


class Method(ABC):
    """A way to name the sequences of a sample.

    `fit` on references, `read` the sequences to be named, then `call` some of them in a sample.
    """

    @abstractmethod
    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        """Args: profiles: Of the communities that samples will be of."""

    @abstractmethod
    def read(self, texts: Sequence[str]) -> None:
        """Prepare for these sequences."""

    @abstractmethod
    def call(self, rows: Rows, reads: Reads) -> tuple[Int[np.ndarray, " distinct"], Confidences]:
        """The most probable taxon of sequences by number, as they are in a sample, and how sure it is."""


class Tabled(Method):
    """A method with a score of every taxon for every sequence.

    Attributes:
        table: (sequences, taxa) scores.
    """

    table: Float[np.ndarray, "sequences taxa"]

    def logits(self, rows: Rows, reads: Reads) -> Logits:
        """Of sequences as they are in a sample, up to a constant for each; -inf: impossible."""
        return self.table[rows]

    def confidence(self, logits: Logits) -> Confidences:
        """How sure the most probable taxon is: its probability."""
        return softmax(logits, axis=1).max(1)

    def call(self, rows: Rows, reads: Reads) -> tuple[Int[np.ndarray, " distinct"], Confidences]:
        logits = self.logits(rows, reads)
        return logits.argmax(1), self.confidence(logits)


class NaiveBayes(Tabled):
    """Multinomial naive Bayes on 7-mers hashed to 8,192 and scaled to length 1, alpha .001.

    As Bokulich et al., "Optimizing taxonomic classification of marker-gene amplicon sequences with QIIME 2's
    q2-feature-classifier plugin", 2018, set it by default.

    Args:
        prior: "uniform"; "community": shares of the taxa in the communities that samples are of (as Kaehler et al.,
            "Species abundance information improves sequence taxonomy classification accuracy", 2019); "sample": those
            that make the sample most probable, found by expectation maximisation.
    """

    def __init__(self, prior: str = "uniform") -> None:
        self.prior = prior
        self.reader = HashingVectorizer(
            analyzer="char_wb", lowercase=False, ngram_range=(WORDS, WORDS), n_features=HASHED, alternate_sign=False
        )

    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        words = self.reader.transform([references.texts[i] for i in references.sequence[chosen]])
        self.model = MultinomialNB(alpha=ALPHA, fit_prior=False).fit(words, references.taxon[chosen])
        self.taxa = references.taxa
        self.share = (1 - SPREAD) * profiles.mean(0) + SPREAD / self.taxa

    def read(self, texts: Sequence[str]) -> None:
        self.table = np.full((len(texts), self.taxa), -np.inf, dtype=np.float32)
        for start in range(0, len(texts), TOGETHER):
            words = self.reader.transform(texts[start : start + TOGETHER])
            self.table[start : start + words.shape[0], self.model.classes_] = words @ self.model.feature_log_prob_.T

    def logits(self, rows: Rows, reads: Reads) -> Logits:
        alone = self.table[rows]
        if self.prior == "community":
            return alone + np.log(self.share)
        return alone + np.log(most_probable_shares(alone, reads)) if self.prior == "sample" else alone


def most_probable_shares(
    logits: Float[np.ndarray, "distinct taxa"], reads: Float[np.ndarray, " distinct"]
) -> Float[np.ndarray, " taxa"]:
    """Abundances of the taxa under which the sample is most probable, by expectation maximisation from equal ones; a
    tenth is shared by all taxa.
    """
    taxa = logits.shape[1]
    likelihood = np.exp(logits - logits.max(1, keepdims=True)).astype(np.float64)
    share = np.full(taxa, 1 / taxa)
    for _ in range(ROUNDS):
        posterior = likelihood * share
        posterior *= (reads / posterior.sum(1))[:, None]
        share = (1 - SPREAD) * posterior.sum(0) / reads.sum() + SPREAD / taxa
    return share


class Nearest(Tabled):
    """The taxon of the reference with the largest cosine of 7-mer counts."""

    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        self.words = _counts([references.texts[i] for i in references.sequence[chosen]])
        self.order = np.argsort(references.taxon[chosen], kind="stable")
        self.taxon, self.taxa = references.taxon[chosen][self.order], references.taxa

    def read(self, texts: Sequence[str]) -> None:
        self.table = np.full((len(texts), self.taxa), -np.inf, dtype=np.float32)
        present, starts = np.unique(self.taxon, return_index=True)
        words = self.words[self.order].T.tocsc()
        for start in range(0, len(texts), TOGETHER):
            cosines = (_counts(texts[start : start + TOGETHER]) @ words).toarray()
            self.table[start : start + len(cosines), present] = np.maximum.reduceat(cosines, starts, axis=1)

    def confidence(self, logits: Logits) -> Confidences:
        """The cosine itself."""
        return logits.max(1)


def _counts(texts: Sequence[str]) -> sp.csr_array:
    """Of 7-mers, each row of length 1."""
    words = spectra(texts, WORDS)
    rows = np.repeat(np.arange(len(texts)), words.sizes.numpy())
    table = sp.csr_array(
        (np.ones(len(rows), dtype=np.float32), (rows, words.words.numpy())), shape=(len(texts), 4**WORDS)
    )
    return sp.csr_array(normalize(table))


class Program(Method):
    """A program that names each sequence by itself, with files between.

    Attributes:
        command: That must be installed.
    """

    command: str

    @classmethod
    def installed(cls) -> bool:
        return shutil.which(cls.command) is not None

    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        self.references, self.chosen, self.taxa = references, chosen, taxa

    def read(self, texts: Sequence[str]) -> None:
        self.called, self.sure = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts))
        with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
            folder = Path(scratch)
            write_fasta(folder / "queries.fasta", {f"q{i}": text for i, text in enumerate(texts)})
            for query, taxon, confidence in self._named(folder):
                self.called[query], self.sure[query] = taxon, confidence

    @abstractmethod
    def _named(self, folder: Path) -> list[tuple[int, int, float]]:
        """Number, taxon and confidence of what is in queries.fasta, as far as it is named."""

    def call(self, rows: Rows, reads: Reads) -> tuple[Int[np.ndarray, " distinct"], Confidences]:
        return self.called[rows], self.sure[rows]

    def _clades(self, taxon: int) -> list[str]:
        """A name for the clade at each rank: ranks and numbers, so that none is misread."""
        return [f"r{rank}c{clade[taxon]}" for rank, clade in enumerate(self.taxa.clade)]

    def _references(self) -> list[tuple[int, str]]:
        references, chosen = self.references, self.chosen
        texts = [references.texts[i] for i in references.sequence[chosen]]
        return list(zip(references.taxon[chosen].tolist(), texts, strict=True))

    @staticmethod
    def _run(*words: str | Path) -> None:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{words[0]} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")


class Sintax(Program):
    """vsearch's SINTAX: Edgar, "SINTAX: a simple non-Bayesian taxonomy classifier for 16S and ITS sequences", 2016."""

    command = "vsearch"

    def _named(self, folder: Path) -> list[tuple[int, int, float]]:
        letters = "dkpcofgs"[-len(self.taxa.ranks) :]
        lines = []
        for i, (taxon, text) in enumerate(self._references()):
            names = self._clades(taxon)[-len(letters) :]
            lines.append(f">{i};tax={','.join(f'{a}:{b}' for a, b in zip(letters, names, strict=True))};\n{text}\n")
        (folder / "references.fasta").write_text("".join(lines), encoding="ascii")
        files = ("--sintax", folder / "queries.fasta", "--db", folder / "references.fasta", "--tabbedout")
        self._run(self.command, *files, folder / "calls.tsv", "--threads", "1", "--randseed", "1", "--strand", "plus")
        number = {f"r{len(self.taxa.ranks) - 1}c{clade}": i for i, clade in enumerate(self.taxa.clade[-1].tolist())}
        named = []
        for line in (folder / "calls.tsv").read_text(encoding="ascii").splitlines():
            query, called, *_ = line.split("\t")
            if called:
                name, _, confidence = called.split(",")[-1].partition(":")[2].rstrip(")").partition("(")
                named.append((int(query[1:]), number[name], float(confidence)))
        return named


class RdpClassifier(Program):
    """The RDP classifier of Debian: Wang et al., "Naive Bayesian classifier for rapid assignment of rRNA sequences into
    the new bacterial taxonomy", 2007.
    """

    command = "rdp_classifier"
    jar = Path("/usr/share/java/rdp_classifier.jar")  # the command itself only classifies
    entry = "edu.msu.cme.rdp.classifier.cli.ClassifierMain"

    @classmethod
    def installed(cls) -> bool:
        return super().installed() and shutil.which("java") is not None and cls.jar.exists()

    def _named(self, folder: Path) -> list[tuple[int, int, float]]:
        nodes = {"Root": "0*Root*-1*0*rootrank"}
        numbers, lines = {"Root": 0}, []
        last = len(self.taxa.ranks) - 1
        # Each node of the tree once, below its parent; the last rank must be called genus.
        for i, (taxon, text) in enumerate(self._references()):
            above, names = "Root", self._clades(taxon)
            for rank, name in enumerate(names):
                if name not in numbers:
                    numbers[name] = len(numbers)
                    word = "genus" if rank == last else f"rank{rank}"
                    nodes[name] = f"{numbers[name]}*{name}*{numbers[above]}*{rank + 1}*{word}"
                above = name
            lines.append(f">{i}\tRoot;{';'.join(names)}\n{text}\n")
        (folder / "references.fasta").write_text("".join(lines), encoding="ascii")
        (folder / "tree.txt").write_text("\n".join(nodes.values()) + "\n", encoding="ascii")
        trained = folder / "trained"
        trained.mkdir()
        java = ("java", "-Xmx8g", "-XX:ActiveProcessorCount=1", "-cp", self.jar, self.entry)
        self._run(*java, "train", "-o", trained, "-s", folder / "references.fasta", "-t", folder / "tree.txt")
        properties = (
            *("bergeyTree=bergeyTrainingTree.xml", "probabilityList=genus_wordConditionalProbList.txt"),
            *("probabilityIndex=wordConditionalProbIndexArr.txt", "wordPrior=logWordPrior.txt"),
        )
        (trained / "rRNAClassifier.properties").write_text("\n".join([*properties, "classifierVersion=1"]) + "\n")
        files = ("-t", trained / "rRNAClassifier.properties", "-o", folder / "calls.tsv", folder / "queries.fasta")
        self._run(*java, "classify", *files)
        number = {f"r{last}c{clade}": i for i, clade in enumerate(self.taxa.clade[-1].tolist())}
        named = []
        for line in (folder / "calls.tsv").read_text(encoding="ascii").splitlines():
            cells = line.split("\t")
            if len(cells) > 3 and cells[-3] in number:
                named.append((int(cells[0][1:]), number[cells[-3]], float(cells[-1])))
        return named
