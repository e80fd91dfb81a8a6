"""A taxon for every read in the context of its sample (section 4.3, A.3.3): Tables 5 and A.11."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.microbiomes import read_taxonomy
from omniset.microbiomes.references import NOISE, Members, choose, de_novo, draw, held_out, replicate
from omniset.tables.dna import kmers_of, read_fasta
from paper import figures
from paper.recipes import Column, Training
from paper.study import Sample, Study, SummaryNetwork, generator, number
from paper.tables import SHARES, Results, Table, beside

RANK = "genus"
WORDS, WIDTH = 6, 768  # of the vectors, where no transformer is given
SEEN, UNSEEN = "seen", "unseen"
TESTED = {  # what of it is shown: title, and whether the paper's numbers are of it (whether by reads it does not say)
    f"accuracy_{SEEN}": ("% of reads, sequences that were learned from", True),
    f"accuracy_{SEEN}_by_sequence": ("% of distinct sequences that were learned from", True),
    f"accuracy_{UNSEEN}": ("% of reads, other sequences", False),
}
ORACLES = {  # Bayes' rule for the blur, by what it takes for the shares of the taxa
    "alike": "oracle: a read alone, taxa alike",
    "training": "oracle: a read alone, taxa as in training",
    "community": "oracle: a read, and the community that its shard tells",
    "profile": "oracle: a read, and its sample's profile",
}
TOGETHER = 512  # sequences projected, or compared with all references, at a time
EMBEDDED = 32  # sequences a transformer reads at a time
SETS_TOGETHER = 16  # shards of a sample computed at a time


class Reads(NamedTuple):
    """A sample: the vectors of its distinct references, their taxa, and which of them each of its reads is."""

    vectors: Float[Tensor, "distinct width"]
    taxon: Int[np.ndarray, " distinct"]
    which: Int[np.ndarray, " reads"]


class ElementNetwork(SummaryNetwork):
    """An encoder and one Linear on each element in place of the summary."""

    def forward(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "sets elements outputs"]:
        """Args: source: A batch."""
        elements = self.encoder(source, **options).elements
        assert isinstance(elements, Tensor)
        return self.head(elements)


class Taxonomy(Study):
    """Samples of simulated communities: of reads of reference sequences which genus.

    Ten log-normal communities, replicates of each to train on and others to test on; a sequence of a genus is as likely
    as its others. Tested are samples of sequences that occur in training, as in the paper, where only the communities'
    replicates are held out, and samples of sequences that do not. A sequence is a vector that is not trained: a
    transformer's, or counts of its words of six bases, projected at random; of it the principal components that
    `components` asks for, each with variance 1.

    Sequences alone tell their genus, so vectors are blurred: x = v + blur N(0, I). Each sample blurs a reference once,
    so its reads are the same element and a sample is a multiset as in the paper; if every read were blurred by itself,
    the mean of its copies would undo the blur. Since the blur is known, so is the best answer to an element alone, and
    to one whose sample has a known profile: `Oracle`.
    """

    name = "taxonomy"
    input_dim = WIDTH
    network_type, encoder_arguments = ElementNetwork, MappingProxyType({"class_token": True})

    def prepare(self, seeds: Sequence[int]) -> None:
        folder = _folder(self.data)
        texts = read_fasta(_only(folder, "sequences.fasta"))
        lineages = read_taxonomy(_only(folder, "taxonomy.tsv"))
        self.references, taxa, _ = choose(texts, lineages, RANK, self.recipe.options["region"])
        self.outputs = len(taxa)
        options, rng = self.recipe.options, _rng(self.name, "communities")
        unseen = held_out(self.references, options["held_out"], rng)
        embedder = folder / "embedder"
        if embedder.is_dir():
            kind, vectors = "a transformer's", _of_transformer(self.references.texts, embedder)
        else:
            kind, vectors = f"words of {WORDS} bases", _of_words(self.references.texts, ~unseen)
        components = options["components"]
        vectors = vectors if components is None else principal(vectors, ~unseen, components)
        self.vectors = torch.from_numpy(vectors)
        self.input_dim = self.vectors.shape[1]
        pairs_unseen = unseen[self.references.sequence]
        self.members = {
            SEEN: self.references.members(np.flatnonzero(~pairs_unseen)),
            UNSEEN: self.references.members(np.flatnonzero(pairs_unseen)),
        }
        self.data_identity = {
            "sequences": len(self.references.texts),
            "vectors": kind if components is None else f"{components} principal components of {kind}",
            "checksum": zlib.crc32(self.references.taxon.tobytes(), zlib.crc32(vectors.tobytes())),
        }
        parts = ("train", "validation", "test")
        ends = np.cumsum([options[part] for part in parts])
        drawn = np.split(replicates(self.outputs, options["communities"], int(ends[-1]), rng), ends[:-1], axis=1)
        self.profiles = dict(zip(parts, drawn, strict=True))

    def batch(self, training: Training, seed: int, step: int) -> Sample:
        rng = _rng(self.name, "samples", seed, step)
        profiles = self.profiles["train"].reshape(-1, self.outputs)
        return self._sample(profiles[rng.integers(len(profiles), size=self.recipe.batch_size)], training, rng)

    def validation(self, training: Training, seed: int) -> Iterator[Sample]:
        profiles, size = self.profiles["validation"].reshape(-1, self.outputs), self.recipe.batch_size
        for start in range(0, len(profiles), size):
            rng = _rng(self.name, "validation", start)
            yield self._sample(profiles[start : start + size], training, rng)

    def loss(self, output: Float[Tensor, "sets elements outputs"], sample: Sample) -> Float[Tensor, ""]:
        """Cross-entropy, mean over all reads."""
        each = F.cross_entropy(output.flatten(0, 1), sample.target.flatten(), reduction="none")
        return (sample.multiplicity.flatten() * each).sum() / sample.multiplicity.sum()

    def test(self, network: SummaryNetwork, training: Training, column: Column, seed: int) -> dict[str, Any]:
        """Every size is the beginning of the largest sample. Accuracies in percent, of the reads, and of the distinct
        sequences, each by the share of its reads that are named right.
        """
        size = self.recipe.test["shard"]
        accuracies: dict[str, Any] = {"test_samples": len(self._tested())}
        for kind in self.members:
            rights = ((reads, self._right(network, reads, column, size)) for _, reads in self._samples(kind))
            accuracies |= self._accuracies(f"accuracy_{kind}", rights)
        return accuracies | self.oracles

    @cached_property
    def oracles(self) -> dict[str, list[float]]:
        """Accuracies on the samples that networks are tested on, of sequences that were learned from."""
        oracle = Oracle(self.vectors[self._sequence], self.members[SEEN], self.recipe.options["blur"])
        communities = self.profiles["train"].mean(1)
        priors = {"alike": np.ones(self.outputs), "training": communities.mean(0)}
        rights: dict[str, list[Any]] = {name: [] for name in ORACLES}
        for profile, reads in self._samples(SEEN):
            likelihoods = oracle.likelihoods(reads.vectors)
            for name, prior in (priors | {"profile": profile}).items():
                right = (oracle.taxa(likelihoods, prior) == reads.taxon)[reads.which]
                rights[name].append((reads, lambda n, right=right: right[:n]))

            shards = []
            for shard in _cut(reads.which, self.recipe.test["shard"]):
                shown, place, counts = np.unique(shard, return_inverse=True, return_counts=True)
                profile = communities[oracle.community(likelihoods[shown], counts, communities)]
                shards.append((oracle.taxa(likelihoods[shown], profile) == reads.taxon[shown])[place])
            right = np.concatenate(shards)
            rights["community"].append((reads, lambda n, right=right: right[:n]))
        found: dict[str, list[float]] = {}
        for name, of_samples in rights.items():
            found |= self._accuracies(f"oracle_{name}", of_samples)
        return found

    def tables(self, results: Results) -> list[Table]:
        sizes, paper = self.recipe.test["sizes"], self.recipe.paper
        tables: list[Table] = []
        run = [(t, c) for t, c in self.recipe.columns if results.rows(t.name, c.name)]
        missing = [c.label for t, c in self.recipe.columns if not results.rows(t.name, c.name)]
        for key, (title, as_in_paper) in TESTED.items():
            rows = []
            way = key.removeprefix(f"accuracy_{SEEN}")  # the oracles know no other sequences
            oracles = {} if way == key else {f"oracle_{name}{way}": label for name, label in ORACLES.items()}
            for i, size in enumerate(sizes):
                row = [f"{size:,}"]
                for t, c in run:
                    theirs = paper[c.name][i] if as_in_paper and c.name in paper else None
                    row.append(beside(results.mean(t.name, c.name, key, i), 2, theirs, 2))
                for name in oracles if run else ():
                    row.append(beside(results.mean(run[0][0].name, run[0][1].name, name, i), 2, None, 2))
                rows += [row] if run else []
            head = ["reads", *(f"{c.label}, {self.share(results, t.name)}" for t, c in run), *oracles.values()]
            title = f"{self.recipe.title}: {title}" + (" (Tables 5, A.11)" if as_in_paper else "")
            notes = [] if tables else [SHARES, *self.conditions(results), *_vectors_of(results)]
            tables.append(Table(title, head, rows, notes, missing))
        return tables

    def figures(self, results: Results) -> dict[str, Figure]:
        series = {c.label: (t.name, c.name) for t, c in self.recipe.columns if results.rows(t.name, c.name)}
        if not series:
            return {}
        panels = {title: (key, series) for key, (title, _) in TESTED.items()}
        labels = ("reads of a sample", "accuracy (%)")
        return {self.name: figures.against_sizes(results, panels, self.recipe.test["sizes"], *labels)}

    def _sample(self, profiles: np.ndarray, training: Training, rng: np.random.Generator) -> Sample:
        """A set for each profile; its elements are distinct references, or, where the training says so, single reads in
        random order.
        """
        number_of, single = training.options.get("reads", self.recipe.options["reads"]), training.options.get("single")
        sets = [self._reads(profile, number_of, SEEN, rng) for profile in profiles]
        shown = [reads.which if single else np.arange(len(reads.taxon)) for reads in sets]
        counts = [np.ones(number_of) if single else np.bincount(reads.which) for reads in sets]
        pad = torch.nn.utils.rnn.pad_sequence
        return Sample(
            pad([reads.vectors[i] for reads, i in zip(sets, shown, strict=True)], batch_first=True),
            pad([torch.from_numpy(of_set).float() for of_set in counts], batch_first=True),
            pad([torch.from_numpy(reads.taxon[i]) for reads, i in zip(sets, shown, strict=True)], batch_first=True),
        )

    def _tested(self) -> Float[np.ndarray, "samples taxa"]:
        return self.profiles["test"][:, : self.recipe.test["replicates"]].reshape(-1, self.outputs)

    def _samples(self, kind: str) -> Iterator[tuple[np.ndarray, Reads]]:
        """The test samples at their largest, the same whenever they are asked for, each after its profile."""
        for sample, profile in enumerate(self._tested()):
            rng = _rng(self.name, kind, sample)
            yield profile, self._reads(profile, max(self.recipe.test["sizes"]), kind, rng)

    def _reads(self, profile: np.ndarray, number_of: int, kind: str, rng: np.random.Generator) -> Reads:
        pairs, counts = draw(profile, number_of, self.members[kind], rng)
        noise = torch.from_numpy(rng.standard_normal((len(pairs), self.input_dim), dtype=np.float32))
        vectors = self.vectors[self._sequence[pairs]] + self.recipe.options["blur"] * noise
        return Reads(vectors, self.references.taxon[pairs], in_order(counts, rng))

    @property
    def _sequence(self) -> Int[Tensor, " pairs"]:
        return torch.from_numpy(self.references.sequence)

    def _accuracies(
        self, name: str, rights: Iterable[tuple[Reads, Callable[[int], np.ndarray]]]
    ) -> dict[str, list[float]]:
        """Means over samples, for every size; the functions of n tell which of the first n reads are named right."""
        by_read, by_sequence = [], []
        for reads, of_first in rights:
            of_sizes = [of_first(n) for n in self.recipe.test["sizes"]]
            by_read.append([right.mean() for right in of_sizes])
            by_sequence.append([_by_sequence(reads.which[: len(right)], right) for right in of_sizes])
        by_kind = {name: by_read, f"{name}_by_sequence": by_sequence}
        return {key: (100 * np.mean(found, 0)).tolist() for key, found in by_kind.items()}

    def _right(
        self, network: SummaryNetwork, reads: Reads, column: Column, size: int
    ) -> Callable[[int], Bool[np.ndarray, " first"]]:
        """A function of n: which of the first n reads are named right in a sample of n reads."""
        if column.shards == "merged":
            return lambda n: self._right_merged(network, reads, n, size)
        single = network.encoder.recurrent
        right = self._right_in_segments(network, reads) if single else self._right_in_shards(network, reads, size)
        # What comes later in the sample changes nothing.
        return lambda n: right[:n]

    @torch.no_grad()
    def _right_merged(self, network: SummaryNetwork, reads: Reads, n: int, size: int) -> np.ndarray:
        shown, place, counts = np.unique(reads.which[:n], return_inverse=True, return_counts=True)
        batch = SetBatch(reads.vectors[shown][None], torch.from_numpy(counts)[None].float())
        outputs = network(batch.to(network.device), shard_size=size)
        return (outputs[0].argmax(1).cpu().numpy() == reads.taxon[shown])[place]

    @torch.no_grad()
    def _right_in_shards(self, network: SummaryNetwork, reads: Reads, size: int) -> np.ndarray:
        """Every shard a sample of its own: several of them as sets of one batch."""
        right = np.zeros(len(reads.which), dtype=bool)
        shards = [np.unique(part, return_inverse=True, return_counts=True) for part in _cut(reads.which, size)]
        for start in range(0, len(shards), SETS_TOGETHER):
            some = shards[start : start + SETS_TOGETHER]
            elements = [reads.vectors[shown] for shown, _, _ in some]
            batch = SetBatch.from_ragged(elements, [torch.from_numpy(counts).float() for _, _, counts in some])
            outputs = network(batch.to(network.device))
            for i, (called, (shown, place, _)) in enumerate(zip(outputs.argmax(2).cpu().numpy(), some, strict=True)):
                first = (start + i) * size
                right[first : first + size] = (called[: len(shown)] == reads.taxon[shown])[place]
        return right

    @torch.no_grad()
    def _right_in_segments(self, network: SummaryNetwork, reads: Reads) -> np.ndarray:
        """Single reads in their order, segment after segment, with the memory of those before."""
        batch = SetBatch(reads.vectors[reads.which][None].to(network.device))
        encoded = network.encoder(batch, shard_size=self.recipe.test["segment"], shards="independent").elements
        return network.head(encoded[0]).argmax(1).cpu().numpy() == reads.taxon[reads.which]


class Oracle:
    """Bayes' rule where the blur and all references are known.

    P(taxon t | x) is proportional to prior_t / n_t times the sum over the n_t references v of t of
    exp(-|x - v|^2 / (2 blur^2)).

    Args:
        vectors: Of all references.
        members: Which of them each taxon has.
        blur: Standard deviation of each feature.
    """

    def __init__(self, vectors: Float[Tensor, "references width"], members: Members, blur: float) -> None:
        self.members, self.blur = members, blur
        self.present = np.flatnonzero(members.present)
        self.vectors = vectors[torch.from_numpy(members.reference)]
        self.halves = self.vectors.square().sum(1) / 2

    def likelihoods(self, vectors: Float[Tensor, "distinct width"]) -> Float[np.ndarray, "distinct present"]:
        """P(x | taxon), up to a factor for each x, of the taxa that have references."""
        starts = self.members.starts
        parts = []
        for part in vectors.split(TOGETHER):
            exponents = (part @ self.vectors.T - self.halves) / self.blur**2
            # Neither |x|^2 nor the largest exponent, without which others would overflow, tells references apart.
            of_references = exponents.sub_(exponents.max(1, keepdim=True).values).exp_().numpy()
            parts.append(np.add.reduceat(of_references, starts[:-1][self.present], axis=1))
        return np.concatenate(parts) / np.diff(starts)[self.present]

    def taxa(
        self, likelihoods: Float[np.ndarray, "distinct present"], prior: Float[np.ndarray, " taxa"]
    ) -> Int[np.ndarray, " distinct"]:
        """The most probable taxon of each vector."""
        return self.present[(likelihoods * prior[self.present]).argmax(1)]

    def community(
        self,
        likelihoods: Float[np.ndarray, "distinct present"],
        counts: Int[np.ndarray, " distinct"],
        profiles: Float[np.ndarray, "communities taxa"],
    ) -> int:
        """The one by whose profile these reads, of which each vector has some, are likeliest."""
        mixed = np.maximum(likelihoods @ profiles[:, self.present].T, np.finfo(np.float64).tiny)
        return int((counts @ np.log(mixed)).argmax())


def in_order(counts: Int[np.ndarray, " distinct"], rng: np.random.Generator) -> Int[np.ndarray, " reads"]:
    """Reads one after the other, at random: the first n are a sample of n reads. A read is the place of its count."""
    return rng.permutation(np.repeat(np.arange(len(counts)), counts))


def _vectors_of(results: Results) -> list[str]:
    kinds = sorted({content["recipe"]["data"]["vectors"] for content in results.trainings.values()})
    note = f"Vectors of sequences: {', '.join(kinds)}. The paper does not say whether its accuracies are of reads."
    return [note] if kinds else []


def _by_sequence(reads: np.ndarray, right: np.ndarray) -> float:
    _, place, counts = np.unique(reads, return_inverse=True, return_counts=True)
    return float((np.bincount(place, right) / counts).mean())


def _cut(reads: np.ndarray, size: int) -> list[np.ndarray]:
    return [reads[start : start + size] for start in range(0, len(reads), size)]


def _rng(*keys: str | int) -> np.random.Generator:
    return np.random.default_rng(number(*keys))


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given
    if "OMNISET_DATA" not in os.environ:
        raise FileNotFoundError(
            "data: taxonomy needs a folder with sequences.fasta and taxonomy.tsv, or OMNISET_DATA set to the folder "
            "above microbiomes/contax"
        )
    return Path(os.environ["OMNISET_DATA"]) / "microbiomes" / "contax"


def replicates(
    taxa: int, profiles: int, each: int, rng: np.random.Generator
) -> Float[np.ndarray, "profiles replicates taxa"]:
    """Of each de-novo profile some replicates, the noise of a profile drawn evenly from [0.5, 0.8)."""
    bases = [(de_novo(taxa, rng), rng.uniform(*NOISE)) for _ in range(profiles)]
    return np.stack([np.stack([replicate(base, noise, rng) for _ in range(each)]) for base, noise in bases])


def _only(folder: Path, name: str) -> Path:
    files = sorted(folder.glob(f"{name}*"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise FileNotFoundError(f"data: {folder} must have one file {name}, plain or compressed, it has {names}")
    return files[0]


@torch.no_grad()
def _of_transformer(texts: Sequence[str], folder: Path) -> Float[np.ndarray, "sequences width"]:
    """Mean of the last layer's states over the tokens of each sequence, padding left out.

    As Zhou et al., "DNABERT-S: pioneering species differentiation with species-aware DNA embeddings", 2024. The folder
    is as transformers saves models; its Python files, which DNABERT-S needs, are run.
    """
    try:
        import transformers
    except ImportError:
        raise ImportError('data/embedder needs transformers: pip install "omniset[dna]"') from None
    options: dict[str, Any] = {"trust_remote_code": True, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    model = transformers.AutoModel.from_pretrained(str(folder), **options).eval()
    parts = []
    for start in range(0, len(texts), EMBEDDED):
        tokens = tokenizer(list(texts[start : start + EMBEDDED]), return_tensors="pt", padding=True)
        states = model(**tokens)[0]
        here = tokens["attention_mask"][..., None].to(states.dtype)
        parts.append(((states * here).sum(1) / here.sum(1)).float().numpy())
    return np.concatenate(parts)


def _of_words(texts: Sequence[str], learned: Bool[np.ndarray, " sequences"]) -> Float[np.ndarray, "sequences width"]:
    """Counts of words over the root of their number, projected by random signs; over the sequences to learn from each
    feature has mean 0 and all of them together variance 1.
    """
    signs = 2.0 * torch.randint(2, (4**WORDS, WIDTH), generator=generator(Taxonomy.name, "signs")) - 1
    parts = []
    for start in range(0, len(texts), TOGETHER):
        part = kmers_of(texts[start : start + TOGETHER], WORDS)
        summed = F.embedding_bag(part.numbers, signs, part.starts, mode="sum")
        parts.append(summed / part.sizes.clamp(min=1).sqrt()[:, None])
    vectors = torch.cat(parts).double().numpy()
    vectors -= vectors[learned].mean(0)
    return (vectors / np.sqrt(np.square(vectors[learned]).mean())).astype(np.float32)


def principal(
    vectors: Float[np.ndarray, "sequences width"], learned: Bool[np.ndarray, " sequences"], number: int
) -> Float[np.ndarray, "sequences number"]:
    """Principal components of the vectors that are learned from, each with mean 0 and sample variance 1 over these.

    Raises:
        ValueError: More than there are.
    """
    x = vectors.astype(np.float64)
    model = PCA(whiten=True, svd_solver="covariance_eigh").fit(x[learned])
    there = int((model.explained_variance_ > 1e-10 * model.explained_variance_[0]).sum())
    if number > there:
        raise ValueError(f"options.components must be at most {there}, the rank of the vectors, got {number}")
    return model.transform(x)[:, :number].astype(np.float32)
