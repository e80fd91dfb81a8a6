"""Programs that others have made, as baselines of `omniset.microbiomes`: they are told and asked through files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from omniset.microbiomes.baselines import Confidences, Method, Pairs, Profiles, Reads, Rows
from omniset.microbiomes.references import References
from omniset.microbiomes.sequences import write_fasta
from omniset.microbiomes.taxonomy import Taxa


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


PROGRAMS: dict[str, type[Program]] = {"sintax": Sintax, "rdp": RdpClassifier}


def installed() -> dict[str, type[Program]]:
    """Those of `PROGRAMS` that are there (`apt install vsearch rdp-classifier`)."""
    return {name: program for name, program in PROGRAMS.items() if program.installed()}
