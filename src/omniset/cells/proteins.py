"""Vectors of genes from the sequences of their proteins, by a protein language model such as ESM2.

    protein   mean over its residues of the last layer's states (Lin et al., "Evolutionary-scale prediction of
              atomic-level protein structure with a language model", 2023), the tokens around them left out
    gene      mean over its proteins that differ

A protein longer than LENGTH residues is read in windows of that length, one behind the other: a residue then sees those
of its window alone, and none is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float32
from torch import Tensor

from omniset.lazy import needs
from omniset.runs import devices
from omniset.runs.files import replacing
from omniset.runs.progress import Progress
from omniset.tables.dna import SequenceFile
from omniset.tables.gene_vectors import GeneVectors

LENGTH = 1022  # residues; ESM2 learned from proteins of at most so many
RESIDUES = 8192  # read at a time
PLAIN = str.maketrans("", "", "-. *")  # gaps, and the sign of the end
OTHER = re.compile("[^ABCDEFGHIKLMNOPQRSTUVWXYZ]")
Names = Literal["symbol", "id"]
# Where headers have the gene: UniProt, Ensembl, NCBI; and GENCODE, between bars.
SYMBOLS = (r"\bGN=(\S+)", r"\bgene_symbol:(\S+)", r"\[gene=([^\]]+)\]", r"^ENS\w*(?:\.\d+)?\|(?:[^|]*\|){5}([^|]+)")
IDS = (r"\bgene:([^\s.]+)", r"\[locus_tag=([^\]]+)\]", r"^ENS\w*(?:\.\d+)?\|[^|]*\|([^|.]+)", r"^(?:sp|tr)\|([^|]+)")


class ProteinFile(SequenceFile):
    """FASTA of proteins; compressed too (.gz, .bz2, .xz). Errors: as `SequenceFile`, of letters of no amino acid."""

    def _bases(self, row: int, line: str) -> str:
        residues = line.upper().translate(PLAIN)
        if other := OTHER.search(residues):
            raise self.error(row, f"has {other[0]!r}, which is no letter of an amino acid")
        return residues


def gene_of(header: str, names: Names) -> str:
    """The gene in the header of a protein: its symbol or its identifier; where there is none of the kind, the other.

    Of a header without either it is the first word.

    >>> gene_of("sp|P04637|P53_HUMAN Cellular tumor antigen p53 OS=Homo sapiens OX=9606 GN=TP53 PE=1 SV=4", "symbol")
    'TP53'
    >>> gene_of("ENSP00000269305.4 pep chromosome:GRCh38 gene:ENSG00000141510.18 gene_symbol:TP53", "id")
    'ENSG00000141510'
    """
    for pattern in (*SYMBOLS, *IDS) if names == "symbol" else (*IDS, *SYMBOLS):
        if found := re.search(pattern, header):
            return found[1]
    return header.split(None, 1)[0]


def read_proteins(paths: Sequence[str | Path], names: Names = "symbol") -> dict[str, list[str]]:
    """The proteins of each gene, each once.

    Raises:
        OSError, ValueError: As `ProteinFile`.
    """
    genes: dict[str, dict[str, None]] = {}
    for path in paths:
        for record in ProteinFile(path):
            genes.setdefault(gene_of(record.header, names), {})[record.bases] = None
    return {gene: list(proteins) for gene, proteins in genes.items()}


class ProteinModel:
    """A protein language model from a local folder, as the package transformers saves it.

    Args:
        folder: With configuration, tokenizer and weights (safetensors). No code in it is run.
        device: "auto", "cpu", "cuda" or "mps".

    Raises:
        ImportError: transformers is not there.
        ValueError: The folder holds no such model.
    """

    def __init__(self, folder: str | Path, device: str = "auto") -> None:
        try:
            import transformers
        except ImportError:
            raise ImportError(needs("protein_model", "transformers")) from None
        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"protein_model must be a folder with a model's config.json and weights, got {folder}")
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
            self.model = transformers.AutoModel.from_pretrained(str(folder), use_safetensors=True, **options)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"protein_model {folder} cannot be read: {' '.join(str(error).split())[:300]}") from error
        self.device = devices.find(device)
        self.model.float().eval().to(self.device)
        self.width = int(self.model.config.hidden_size)

    @torch.no_grad()
    def __call__(self, proteins: Sequence[str], progress: bool = False) -> Float32[np.ndarray, "proteins width"]:
        """Mean states of the residues of each protein."""
        windows = [(i, text[s : s + LENGTH]) for i, text in enumerate(proteins) for s in range(0, len(text), LENGTH)]
        windows.sort(key=lambda window: len(window[1]))  # of like length together: little is padded
        sums, sizes = np.zeros((len(proteins), self.width)), np.zeros(len(proteins), dtype=np.int64)
        with Progress("reading proteins", len(windows), progress, unit="windows") as bar:
            start = 0
            while start < len(windows):
                some = windows[start : start + max(1, RESIDUES // len(windows[start][1]))]
                while len(some) > 1 and len(some) * len(some[-1][1]) > RESIDUES:
                    some = some[: len(some) // 2]
                for (i, _), (total, size) in zip(some, self._sums([text for _, text in some]), strict=True):
                    sums[i] += total
                    sizes[i] += size
                start += len(some)
                bar.at(start)
        return (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)

    def _sums(self, texts: list[str]) -> list[tuple[np.ndarray, int]]:
        """Sum of the states of the residues of each text, and their number."""
        tokens = self.tokenizer(texts, return_tensors="pt", padding=True, return_special_tokens_mask=True)
        here: Tensor = (1 - tokens.pop("special_tokens_mask")) * tokens["attention_mask"]
        states = self.model(**tokens.to(self.device))[0].double().cpu()
        totals = (states * here[..., None]).sum(1).numpy()
        return list(zip(totals, here.sum(1).tolist(), strict=True))


def protein_vectors(genes: dict[str, list[str]], model: ProteinModel, progress: bool = False) -> GeneVectors:
    """A vector for each gene: the mean of those of its proteins.

    Args:
        genes: Of `read_proteins`.
    """
    texts = list(dict.fromkeys(text for proteins in genes.values() for text in proteins))
    place = {text: i for i, text in enumerate(texts)}
    vectors = model(texts, progress)
    means = [vectors[[place[text] for text in proteins]].mean(0) for proteins in genes.values()]
    return GeneVectors(list(genes), np.stack(means))


def write_gene_vectors(path: Path, vectors: GeneVectors) -> None:
    """As safetensors that `read_gene_vectors` reads: a matrix, and its names in the metadata."""
    with replacing(path) as temporary:
        table = {"vectors": torch.from_numpy(vectors.vectors)}
        safetensors.torch.save_file(table, temporary, metadata={"names": json.dumps(vectors.names)})
