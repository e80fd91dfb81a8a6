"""The public class: learn taxa from references, then name every read of a sample, in the context of the sample."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from sklearn.base import BaseEstimator
from torch import Tensor

from omniset import devices
from omniset.microbiomes.calibration import calibrated
from omniset.microbiomes.calls import Calls, Confidence, most_probable
from omniset.microbiomes.communities import replicates
from omniset.microbiomes.embeddings import TransformerEmbedding
from omniset.microbiomes.explanation import moved
from omniset.microbiomes.inputs import Table, matched, named
from omniset.microbiomes.model import NONE, SequenceNetwork, SpectrumProjection, TaxonNetwork, VectorProjection
from omniset.microbiomes.references import References, choose, held_out, shares_of
from omniset.microbiomes.samples import Samples, read_samples
from omniset.microbiomes.sequences import (
    SHORTEST,
    primers_of,
    read_fasta,
    reverse_complement,
)
from omniset.microbiomes.spectra import spectra, strand_table
from omniset.microbiomes.taxonomy import Lineage, Taxa, depth_of, lineages_of, read_taxonomy
from omniset.microbiomes.training import (
    TOGETHER,
    ContextModule,
    SampleData,
    SampleDataset,
    SequenceData,
    SequenceModule,
    Views,
    embed,
    matching_rate,
    mutated,
    shortened,
    temper,
)
from omniset.progress import Progress
from omniset.report.blocks import many
from omniset.sets import SetBatch
from omniset.training import artefacts
from omniset.training.fit import fit as train

CONTEXTS = ("ust", "set-transformer-isab", "set-transformer-sab", NONE)  # encoders with class tokens
STRAND = 7  # length of the words that tell a strand
EPOCHS = 20  # that the steps of the second lesson are cut into, for validation and checkpoints
FOREIGNERS = 64  # sequences that are nothing's, for the calibration
SHORTER, LONGER = 0.9, 1.2  # of the shortest and longest length learned from: beyond, a warning is due
LEAST = 20  # validation sequences below which nothing is calibrated


class TaxonClassifier(BaseEstimator):
    """A taxon for every read, in the context of its sample.

    Sequences are read as k-mers of the strand as it is (or by a transformer such as DNABERT-S) and classified by
    themselves; then a Universal Set Transformer reads the multiset of all that are in the sample, and gives a prior
    over taxa. What is ambiguous by itself is decided by what else is there.

    Args:
        rank: Taxa that are told apart: domain, phylum, class, order, family, genus or species.
        region: Which part of the references to learn: "515F-806R", "341F-805R", or FORWARD...REVERSE primers. None:
            the references as they are.
        words: Lengths of the k-mers.
        width: Of a sequence's vector.
        members: Classifiers of single sequences whose logits are averaged, each with its part of the width.
        embedder: Folder of a transformer that makes vectors in place of k-mers. None: k-mers.
        trust_code: Run Python files that are in that folder. DNABERT-S needs it.
        cache: Folder in which the transformer's vectors are kept from run to run.
        encoder: "ust" (the same as "set-transformer-isab"), "set-transformer-sab", or "none": without context.
        dim, depth, num_heads, num_inducing: Its size.
        lengths: Of reads that may be shorter than the region; learned beside it.
        profiles: How many kinds of communities to learn from where none are given to `fit`. None: a new one for every
            sample, which teaches to read any sample. A number: replicates of so many, which learns what is usual there.
        background: Share of new communities that is mixed into given ones.
        reads: Of a training sample.
        views: Mutated versions of each reference in the second lesson, for each length (at least 1).
        steps: Of the second lesson, in 20 epochs of equal length: more than 20 are rounded up to a multiple of it.
        batch_size: Samples in a step.
        learning_rate, weight_decay: Of AdamW in the second lesson.
        sequence_epochs, sequence_batch, sequence_rate: Of the first lesson.
        validation_fraction: Share of distinct sequences kept back to watch training and to calibrate confidences.
        novel: Share of reads taken to be of taxa without references, for confidences.
        threshold: Confidence that a rank needs to be named.
        seed: Of everything drawn. The same seed gives the same numbers to the bit on a CPU.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Show progress.

    Attributes:
        taxa_: The taxa, with their clades.
        network_: The model.
        confidence_: The calibration of confidences.
        sizes_: How many references of which kind.
        length_: Median number of bases of the references.
        longest_: That number which a twentieth of them exceed.
        notes_: What was decided on the data, a sentence each.
        history_: Of both lessons, a dict per epoch.
    """

    taxa_: Taxa
    network_: Network

    def __init__(
        self,
        rank: str = "genus",
        *,
        region: str | None = None,
        words: Sequence[int] = (5, 7),
        width: int = 256,
        members: int = 4,
        embedder: str | Path | None = None,
        trust_code: bool = False,
        cache: str | Path | None = None,
        encoder: str = "ust",
        dim: int = 128,
        depth: int = 2,
        num_heads: int = 4,
        num_inducing: int = 16,
        lengths: Sequence[int] = (100, 150, 200),
        profiles: int | None = None,
        background: float = 0.1,
        reads: int = 1024,
        views: int = 2,
        steps: int = 600,
        batch_size: int = 8,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        sequence_epochs: int = 8,
        sequence_batch: int = 128,
        sequence_rate: float = 3e-3,
        validation_fraction: float = 0.05,
        novel: float = 0.1,
        threshold: float = 0.7,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.rank = rank
        self.region = region
        self.words = words
        self.width = width
        self.members = members
        self.embedder = embedder
        self.trust_code = trust_code
        self.cache = cache
        self.encoder = encoder
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.num_inducing = num_inducing
        self.lengths = lengths
        self.profiles = profiles
        self.background = background
        self.reads = reads
        self.views = views
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.sequence_epochs = sequence_epochs
        self.sequence_batch = sequence_batch
        self.sequence_rate = sequence_rate
        self.validation_fraction = validation_fraction
        self.novel = novel
        self.threshold = threshold
        self.seed = seed
        self.device = device
        self.progress = progress

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        references: Table,
        taxonomy: Mapping[str, Lineage | str] | str | Path,
        profiles: Samples | str | Path | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> TaxonClassifier:
        """Learn from references.

        Args:
            references: Sequences by name, or a FASTA file.
            taxonomy: Taxa by name, as tuples or with semicolons between, or a table as QIIME 2 has them. Sequences
                without a taxon, or without a name at the rank, are left out.
            profiles: Feature table whose samples are communities to learn from: features are taxa, or names of
                references or of rows of the taxonomy. Training samples are drawn from them.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds, bad files, or fewer than two taxa.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        lineages = read_taxonomy(taxonomy) if isinstance(taxonomy, (str, Path)) else lineages_of(taxonomy)
        found = self.prepare(references, lineages)
        communities = None
        if profiles is not None:
            table = read_samples(profiles) if isinstance(profiles, (str, Path)) else profiles
            communities, said = shares_of(table, self.taxa_, lineages)
            self.notes_.append(said)
        return self.fit_references(found, communities, folder=folder, resume=resume)

    def prepare(self, references: Table, lineages: Mapping[str, Lineage]) -> References:
        """The references as `fit` learns them. Sets `taxa_` and `notes_`.

        Raises:
            ValueError: Bad files, or fewer than two taxa.
        """
        texts = (
            read_fasta(references, self.progress)
            if isinstance(references, (str, Path))
            else named(references, "references")
        )
        found, self.taxa_, self.notes_ = choose(texts, lineages, self.rank, self.region)
        return found

    def fit_references(
        self,
        references: References,
        communities: Float[np.ndarray, "profiles taxa"] | None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> TaxonClassifier:
        """`fit` on references whose taxa are numbered as in `taxa_`, and on profiles of these taxa."""
        start = time.monotonic()
        folder = None if folder is None else Path(folder)
        device = devices.find(self.device)
        rng = np.random.default_rng(self.seed)
        kept = held_out(references, self.validation_fraction, rng)
        validation, chosen = np.flatnonzero(kept[references.sequence]), np.flatnonzero(~kept[references.sequence])
        if len(validation) < LEAST:
            more = ", or a larger validation_fraction" if self.validation_fraction < 0.5 else ""
            warnings.warn(
                "confidences will not be calibrated, and reads of unknown taxa may be named: "
                f"validation_fraction={self.validation_fraction:g} keeps {len(validation):,} references back, it takes "
                f"{LEAST}. Give more references{more}",
                stacklevel=3,
            )
        self._transformer = self._load_transformer()
        network = self._build(len(self.taxa_), self._given())
        read = self._reader(network)
        turned = [reverse_complement(text) for text in references.texts]
        network.strand.copy_(strand_table(references.texts, turned, STRAND))
        data = zlib.crc32(references.sequence.tobytes(), zlib.crc32(references.taxon.tobytes()))
        data = zlib.crc32("".join(references.texts).encode("ascii"), data)
        fingerprint = {k: v for k, v in self._plain().items() if k not in ("device", "progress", "cache", "threshold")}
        several: dict[str, Any] = {
            "device": device.type,
            "progress": self.progress,
            "log": None,
            "resume": resume,
            "patience": None,
        }

        if self.progress:
            _say("first lesson: sequences by themselves")
        optimiser = (self.sequence_rate, self.weight_decay, self.seed, fingerprint | {"data": data})
        numbers = np.bincount(references.taxon[chosen], minlength=references.taxa)
        first = SequenceModule(network.alone, *optimiser, shares=numbers / numbers.sum())
        batches = SequenceData(references, chosen, validation, read, self.lengths, self.sequence_batch, self.seed)
        own = None if folder is None else folder / "first"
        train(first, batches, epochs=self.sequence_epochs, folder=own, **several)

        network.to(device).eval()
        if len(validation) >= LEAST:
            temper(network.alone, read, references, validation, first.log_shares, self.seed)
        rate = 0.0
        if len(validation) and self.encoder != NONE:
            rate = matching_rate(network.alone, read, references, chosen, validation, self.seed)
            self.notes_.append(
                f"to be as hard to name as sequences that were kept back, references need {rate:.1%} of their bases "
                "drawn anew: so they are when samples are learned"
            )
        with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
            views = self._views(network.alone, read, references, rate, Path(scratch))
            network.to("cpu")
            if communities is not None:
                data = zlib.crc32(communities.tobytes(), data)
            elif self.profiles is not None:
                communities = self._de_novo(rng)
            shared = (communities, self.background, self.reads, self.batch_size)
            lessons = SampleDataset(references, chosen, views, *shared, self.seed)
            plain = Views(views.vectors, [[0]])  # as they are
            watched = None
            if len(validation):
                watched = SampleDataset(references, validation, plain, *shared, self.seed + 1)
            history = [{"lesson": 1, **row} for row in first.history]
            if self.encoder != NONE:
                if self.progress:
                    _say("second lesson: samples")
                network.train()
                epochs = min(EPOCHS, self.steps)
                own = None if folder is None else folder / "second"
                optimiser = (self.learning_rate, self.weight_decay, self.seed, fingerprint | {"data": data})
                second = ContextModule(network, *optimiser)
                train(
                    second, SampleData(lessons, watched, -(-self.steps // epochs)), epochs=epochs, folder=own, **several
                )
                history += [{"lesson": 2, **row} for row in second.history]
            self.network_ = network
            self.confidence_ = Confidence()
            if watched is not None and len(validation) >= LEAST:
                own_texts = [references.texts[i] for i in references.sequence[validation][:FOREIGNERS]]
                foreign = np.empty((len(own_texts), self.width), dtype=np.float32)
                embed(network.alone, read, ["".join(rng.permutation(list(text))) for text in own_texts], foreign)
                self.confidence_ = calibrated(network, self.taxa_, watched, torch.from_numpy(foreign), self.novel)
        self.history_ = history
        self.seconds_ = round(time.monotonic() - start, 1)
        lengths = [len(text) for text in references.texts]
        self.length_, self.longest_ = int(np.median(lengths)), int(np.quantile(lengths, 0.95))
        self.sizes_ = {
            "references": len(references.sequence),
            "distinct sequences": len(references.texts),
            "taxa": len(self.taxa_),
            "validation sequences": int(kept.sum()),
        }
        return self

    def _de_novo(self, rng: np.random.Generator) -> Float[np.ndarray, "profiles taxa"]:
        found = replicates(len(self.taxa_), self.profiles or 1, 100, rng)
        return found.reshape(-1, len(self.taxa_))

    def _views(self, network: SequenceNetwork, read: Any, references: References, rate: float, folder: Path) -> Views:
        rng = np.random.default_rng([self.seed, 2])
        lengths: list[int | None] = [] if self.encoder == NONE else [None, *self.lengths]
        number = 1 + len(lengths) * self.views
        shape = (number, len(references.texts), self.width)
        vectors = np.lib.format.open_memmap(folder / "views.npy", "w+", np.float32, shape)
        total = number * len(references.texts)
        with Progress("embedding references", total, self.progress, unit="sequences") as bar:
            embed(network, read, references.texts, vectors[0])
            for view in range(1, number):
                length = lengths[(view - 1) // self.views]
                texts = (mutated(shortened(t, length), rng.uniform(0, 2 * rate), rng) for t in references.texts)
                embed(network, read, list(texts), vectors[view])
                bar.at((view + 1) * len(references.texts))
        of_length = [[1 + i * self.views + j for j in range(self.views)] for i in range(len(lengths))]
        return Views(vectors, of_length) if rate else Views(vectors, [[0], *of_length[1:]])

    # ------------------------------------------------------------------ classify

    def classify(
        self, sequences: Table | None = None, counts: Samples | str | Path | pd.DataFrame | None = None, **options: Any
    ) -> pd.DataFrame:
        """A row per sequence, as QIIME 2 has taxonomies: `Feature ID`, `Taxon`, `Confidence`.

        The taxon is named down to the deepest rank whose confidence reaches `threshold`. A sequence that occurs in
        several samples may be called differently in each (`calls(...).per_sample`); here its reads vote.

        Args:
            sequences: By name, or a FASTA file. None: features of the table are sequences themselves.
            counts: Feature table: `Samples`, a BIOM or text file, or a DataFrame samples x features. None: one sample
                with each sequence once.
            **options: As `calls`.
        """
        return self.calls(sequences, counts, **options).per_feature(self.threshold)

    def calls(
        self,
        sequences: Table | None = None,
        counts: Samples | str | Path | pd.DataFrame | None = None,
        *,
        strand: str = "auto",
        shard_size: int = 2048,
    ) -> Calls:
        """A taxon for every sequence of every sample, with the confidence at each rank.

        Args:
            strand: "auto": sequences of the other strand are told by their words, and turned; "forward": none is.
            shard_size: Sequences of a sample that are computed on at a time: bounds the memory, and changes nothing.

        Raises:
            ValueError: Sequences and table that have no name in common, a table without reads, or bad files.
        """
        self._fitted()
        if strand not in ("auto", "forward"):
            raise ValueError(f"strand must be 'auto' or 'forward', got {strand!r}")
        if shard_size < 1:
            raise ValueError(f"shard_size must be >= 1, got {shard_size}")
        texts, samples = matched(sequences, counts, self.progress)
        if not samples.counts.nnz:
            raise ValueError("counts has no reads: every count of the table is 0")
        with self._vectors(texts, strand) as (vectors, usable):
            return self._called(vectors, usable, samples, shard_size)

    @contextmanager
    def _vectors(
        self, texts: Sequence[str], strand: str
    ) -> Iterator[tuple[Float[np.ndarray, "features width"], Bool[np.ndarray, " features"]]]:
        """Vectors of all sequences, mapped from disk while in use, and which could be read."""
        device = devices.find(self.device)
        network = self._fitted().to(device).eval()
        read = self._reader(network)
        usable = np.zeros(len(texts), dtype=bool)
        turned = 0
        with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
            shape = (max(len(texts), 1), self.width)
            vectors = np.lib.format.open_memmap(Path(scratch) / "vectors.npy", "w+", np.float32, shape)[: len(texts)]
            with Progress("embedding", len(texts), self.progress, unit="sequences") as bar:
                for start in range(0, len(texts), TOGETHER):
                    some = list(texts[start : start + TOGETHER])
                    words = spectra(some, STRAND)
                    usable[start : start + len(some)] = (words.sizes > SHORTEST - STRAND).numpy()
                    if strand == "auto":
                        votes = network.strand[words.words.to(device)].cpu().double()
                        ends = torch.cat([votes.new_zeros(1), votes.cumsum(0)])
                        score = ends[words.starts + words.sizes] - ends[words.starts]
                        for i in (score < 0).nonzero()[:, 0].tolist():
                            some[i], turned = reverse_complement(some[i]), turned + 1
                    embed(network.alone, read, some, vectors[start : start + len(some)])
                    bar.at(start + len(some))
            least, most = min([*self.lengths, self.length_]), max([*self.lengths, self.longest_])
            median = float(np.median([len(text) for text in texts])) if len(texts) else float(least)
            if not SHORTER * least <= median <= LONGER * most:
                warnings.warn(
                    f"half of the sequences have at {'most' if median < least else 'least'} {median:.0f} bases, the "
                    f"model has learned from {least} to {most}: "
                    + ("confidences may be wrong" if median < least else "cut them to the region that it has learned"),
                    stacklevel=4,
                )
            if turned:
                warnings.warn(
                    f"{turned:,} of {len(texts):,} sequences are of the other strand, and were turned", stacklevel=4
                )
            if not usable.all():
                warnings.warn(
                    f"{int((~usable).sum()):,} of {len(texts):,} sequences have fewer than {SHORTEST} bases without "
                    "ambiguity, and are left unassigned",
                    stacklevel=4,
                )
            yield vectors, usable

    @torch.no_grad()
    def _called(self, vectors: np.ndarray, usable: np.ndarray, samples: Samples, shard_size: int) -> Calls:
        network = self._fitted()
        device = network.strand.device
        clade = torch.from_numpy(self.taxa_.clade).to(device)
        counts = samples.counts.sorted_indices()
        number = counts.nnz
        taxon = np.full(number, -1)
        confidence = np.zeros((number, len(self.taxa_.ranks)), dtype=np.float32)
        empty = np.flatnonzero(np.diff(counts.indptr) == 0)
        if len(empty):
            warnings.warn(
                f"{many(len(empty), 'sample')} without reads, such as {samples.names[empty[0]]!r}", stacklevel=4
            )
        with Progress("classifying", number, self.progress, unit="sequences") as bar:
            for row in range(len(samples.names)):
                span = np.arange(counts.indptr[row], counts.indptr[row + 1])
                span = span[usable[counts.indices[span]]]
                if not len(span):
                    continue
                source = SampleShards(vectors, counts.indices[span], counts.data[span], shard_size, device)
                prior = network.prior(source, **self._streaming())
                for start, shard in zip(range(0, len(span), shard_size), source, strict=True):
                    logits = network.in_context(shard, prior)[0]
                    found, odds = most_probable(logits, clade)
                    similar = network.alone.cosines(shard.elements[0]).amax(1)
                    some = span[start : start + shard_size]
                    taxon[some] = found.cpu().numpy()
                    confidence[some] = self.confidence_.of(odds.cpu().numpy(), similar.cpu().numpy())
                    bar.at(int(counts.indptr[row]) + start + len(some))
            bar.at(number)
        network.to("cpu")
        sample = np.repeat(np.arange(len(samples.names)), np.diff(counts.indptr))
        arrays = (sample, counts.indices.astype(np.int64), counts.data.astype(np.float64), taxon, confidence)
        return Calls(self.taxa_, samples.names, samples.features, *arrays)

    def _streaming(self) -> dict[str, Any]:
        """Options of the encoder for samples of any size."""
        return {} if self.encoder == "set-transformer-sab" else {"store": "recompute"}

    # ------------------------------------------------------------------ explain

    def explain(
        self,
        feature: str,
        sequences: Table | None = None,
        counts: Samples | str | Path | pd.DataFrame | None = None,
        *,
        sample: str | None = None,
        top: int = 20,
        steps: int = 20,
        strand: str = "auto",
    ) -> pd.DataFrame:
        """Which other members of a sample moved a call.

        Returns a row per member, largest change first: `Feature ID`, `count`, `Taxon` (its own call); `change`, by how
        much the log-odds of the call fall when the member is taken out of the sample; `attribution` (0 to 1),
        self-attention attribution of the call's log-odds through the class token, which is not all that the sample
        tells. `attrs` has the sample, the call, and its probability in the sample and alone.

        Args:
            feature: Whose call.
            sample: In which sample; None: the one with most of its reads.
            top: Members of which `change` is computed: those with the largest derivative of the log-odds by their
                count, times that count. Others are not listed.
            steps: Of the attribution's integral.

        Raises:
            ValueError: A feature or sample that is not there, a feature without reads in it or that cannot be read, top
                or steps below 1, or encoder="none".
        """
        if self.encoder == NONE:
            raise ValueError("explain needs context, this model has encoder='none'")
        for name, value in (("top", top), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        network = self._fitted()
        texts, samples = matched(sequences, counts, self.progress)
        row, column = self._place(samples, feature, sample)
        counted = samples.counts[[row]].tocsr()
        members = counted.indices[counted.data > 0]
        with self._vectors([texts[i] for i in members], strand) as (vectors, usable):
            if not usable[members == column].all():
                raise ValueError(f"feature {feature!r} is too short or too ambiguous to be read")
            present = members[usable]
            batch = SetBatch(
                torch.from_numpy(np.array(vectors[usable]))[None],
                torch.from_numpy(counted.data[counted.data > 0][usable])[None],
            )
        network.to("cpu")
        place = int(np.flatnonzero(present == column)[0])
        found = moved(network, batch, place, top, steps)
        names = np.array(samples.features, dtype=object)[present]
        said = np.array(["; ".join(lineage) for lineage in self.taxa_.lineages], dtype=object)
        table = pd.DataFrame(
            {
                "Feature ID": names[found.members],
                "count": batch.multiplicity[0].numpy()[found.members],
                "Taxon": said[found.logits.argmax(1)[found.members]],
                "change": found.changes,
                "attribution": found.attribution,
            }
        ).sort_values("change", key=np.abs, ascending=False, ignore_index=True)
        own, alone = found.logits[place].softmax(0), found.alone.softmax(0)
        table.attrs = {
            "sample": samples.names[row],
            "feature": feature,
            "taxon": said[int(own.argmax())],
            "probability": float(own.max()),
            "alone": float(alone[int(own.argmax())]),
            "taxon_alone": said[int(alone.argmax())],
        }
        return table

    @staticmethod
    def _place(samples: Samples, feature: str, sample: str | None) -> tuple[int, int]:
        if feature not in samples.features:
            raise ValueError(
                f"feature {feature!r} is not in the table, whose features are such as {samples.features[0]!r}"
            )
        column = samples.features.index(feature)
        reads = samples.counts[:, [column]].toarray()[:, 0]
        if sample is None:
            row = int(reads.argmax())
        elif sample not in samples.names:
            raise ValueError(f"sample {sample!r} is not in the table, whose samples are such as {samples.names[0]!r}")
        else:
            row = samples.names.index(sample)
        if not reads[row]:
            raise ValueError(f"feature {feature!r} has no reads in sample {samples.names[row]!r}")
        return row, column

    # ------------------------------------------------------------------ save, load

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> None:
        """Write the artefact: config.json, model.safetensors, vocabulary.parquet (the taxa), metrics.json."""
        network = self._fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        said = ["\t".join(lineage) for lineage in self.taxa_.lineages]
        artefacts.save_table(folder, "vocabulary", pd.DataFrame({"taxon": said}))
        weights = self.confidence_.weights
        fitted = {
            "taxa": len(said),
            "vocabulary": zlib.crc32("\n".join(said).encode()),
            "given": self._given(),
            "transformer": None if self._transformer is None else self._transformer.identity,
            "confidence": None if weights is None else weights.tolist(),
            "sizes": self.sizes_,
            "length": self.length_,
            "longest": self.longest_,
            "notes": self.notes_,
        }
        kept = {"history": self.history_, **(metrics or {})}
        device = devices.find(self.device).type
        artefacts.save(folder, type(self).__name__, self._plain(), fitted, network, kept, device)

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> TaxonClassifier:
        """Read an artefact. Checks format, version, class, taxa and every tensor, and says what differs.

        Args:
            **overrides: Arguments that may be others than at fit: device, progress, threshold, embedder (where that
                folder is now), trust_code, cache.
        """
        folder = Path(folder)
        config = artefacts.load_config(folder, cls.__name__)
        table = artefacts.load_table(folder, "vocabulary")
        try:
            model, fitted = cls(**config["arguments"]), config["fitted"]
            model.set_params(**overrides)
            model.check_arguments()
            said = table["taxon"].tolist()
            if zlib.crc32("\n".join(said).encode()) != fitted["vocabulary"]:
                raise ValueError(f"{folder / 'vocabulary.parquet'} has not the taxa that the model was saved with")
            model.taxa_ = Taxa.of([tuple(text.split("\t")) for text in said])
            model._transformer = model._load_transformer()
            if model._transformer is not None and model._transformer.identity != fitted["transformer"]:
                raise ValueError(f"embedder {model.embedder} has not the weights that the model was fitted with")
            network = model._build(fitted["taxa"], fitted["given"])
            weights = fitted["confidence"]
            model.confidence_ = Confidence(None if weights is None else np.array(weights))
            model.sizes_, model.notes_ = fitted["sizes"], fitted["notes"]
            model.length_, model.longest_ = fitted["length"], fitted["longest"]
        except (TypeError, KeyError) as error:
            raise ValueError(f"{folder / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        artefacts.load_weights(folder, network)
        model.network_ = network.eval()
        model.history_ = artefacts.load_metrics(folder).get("history", [])
        return model

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without data."""
        depth_of(self.rank)
        if self.region is not None:
            primers_of(self.region)
        if self.encoder not in CONTEXTS:
            raise ValueError(f"encoder must be one of {', '.join(CONTEXTS)}, got {self.encoder!r}")
        for name, least in (
            *(("width", 1), ("members", 1), ("dim", 1), ("depth", 0), ("num_heads", 1), ("num_inducing", 1)),
            *(("profiles", 1), ("reads", 1), ("views", 1), ("steps", 1), ("batch_size", 1), ("sequence_epochs", 1)),
            *(("sequence_batch", 1), ("seed", 0)),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        for name, low, high in (("validation_fraction", 0.0, 0.5), ("background", 0.0, 1.0), ("novel", 0.0, 0.9)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be from {low:g} to {high:g}, got {getattr(self, name)}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be from 0 to 1, got {self.threshold}")
        for name in ("learning_rate", "sequence_rate"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < np.inf:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")
        if not self.words or not all(1 <= k <= 10 for k in self.words):
            raise ValueError(f"words must be lengths from 1 to 10, got {self.words!r}")
        if any(length < SHORTEST for length in self.lengths):
            raise ValueError(f"lengths must be >= {SHORTEST}, got {self.lengths!r}")
        if self.width % self.members:
            raise ValueError(f"width must be divisible by members={self.members}, got {self.width}")
        if self.dim % self.num_heads:
            raise ValueError(f"dim must be divisible by num_heads={self.num_heads}, got {self.dim}")
        devices.find(self.device)

    def _plain(self) -> dict[str, Any]:
        """The arguments as JSON has them."""
        found = self.get_params()
        return found | {
            "words": list(self.words),
            "lengths": list(self.lengths),
            "embedder": None if self.embedder is None else str(self.embedder),
            "cache": None if self.cache is None else str(self.cache),
        }

    def _load_transformer(self) -> TransformerEmbedding | None:
        if self.embedder is None:
            return None
        return TransformerEmbedding(self.embedder, trust_code=self.trust_code, device=self.device, cache=self.cache)

    def _given(self) -> int | None:
        return None if self._transformer is None else self._transformer.width

    def _reader(self, network: Network) -> Any:
        projection = network.alone.projection
        if isinstance(projection, SpectrumProjection):
            return projection.read
        if self._transformer is None:
            raise ValueError("embedder must be given: this model reads a transformer's vectors")
        return self._transformer

    def _build(self, taxa: int, given: int | None) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            projection: SpectrumProjection | VectorProjection
            if given is None:
                projection = SpectrumProjection(self.words, self.width)
            else:
                projection = VectorProjection(given, self.width)
            sizes = {name: getattr(self, name) for name in ("dim", "depth", "num_heads", "num_inducing")}
            return Network(SequenceNetwork(projection, self.width, taxa, self.members), self.encoder, **sizes)

    def _fitted(self) -> Network:
        if not hasattr(self, "network_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet: call fit first, or load one")
        return self.network_


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Network(TaxonNetwork):
    """With what tells the strand: how much each word speaks for that of the references."""

    strand: Tensor

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("strand", torch.zeros(4**STRAND))


@dataclass
class SampleShards:
    """A sample that is read in shards: rows of a table of vectors, with their reads."""

    vectors: Float[np.ndarray, "features width"]
    rows: Int[np.ndarray, " members"]
    reads: Float[np.ndarray, " members"]
    size: int
    device: torch.device

    def __iter__(self) -> Iterator[SetBatch]:
        for start in range(0, len(self.rows), self.size):
            some = slice(start, start + self.size)
            elements = torch.from_numpy(self.vectors[self.rows[some]])[None].to(self.device)
            reads = torch.from_numpy(self.reads[some]).float()[None].to(self.device)
            yield SetBatch(elements, reads, validate=False)
