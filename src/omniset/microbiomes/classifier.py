"""The public class: learn taxa from references, then name every read of a sample, in the context of the sample."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from omniset.core.sets import SetBatch
from omniset.fitted import Estimator
from omniset.microbiomes.calling import called, embedded, warn_of_lengths, warn_of_strangers
from omniset.microbiomes.calls import Calls, Confidence
from omniset.microbiomes.communities import replicates
from omniset.microbiomes.embeddings import TransformerEmbedding
from omniset.microbiomes.explanation import explained, members_of, place_of
from omniset.microbiomes.inputs import Table, matched, named
from omniset.microbiomes.lessons import (
    LEAST,
    Material,
    confidence_of,
    learn_samples,
    learn_sequences,
    samples_of,
    views_of,
)
from omniset.microbiomes.model import NONE, STRAND, SequenceNetwork, SpectrumProjection, TaxonNetwork, VectorProjection
from omniset.microbiomes.options import ClassifierOptions
from omniset.microbiomes.references import References, choose, held_out, of_files, shares_of
from omniset.microbiomes.samples import Samples, read_samples
from omniset.microbiomes.sequences import primers_of, reverse_complement
from omniset.microbiomes.strands import strand_table
from omniset.microbiomes.taxonomy import KNOWN_RANKS, Lineage, Taxa, check_ranks, depth_of, lineages_of, read_taxonomy
from omniset.microbiomes.training import Read, matching_rate
from omniset.runs import devices
from omniset.tables.dna import read_fasta
from omniset.training import artefacts, schema

REPLICATES = 100  # of each made-up community


class TaxonClassifier(ClassifierOptions, Estimator):
    """A taxon for every read, in the context of its sample.

    Sequences are read as k-mers of the strand as it is (or by a transformer such as DNABERT-S) and classified by
    themselves; then a Universal Set Transformer reads the multiset of all that are in the sample, and gives a prior
    over taxa. What is ambiguous by itself is decided by what else is there.

    Args:
        {options}

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

    FITTED: ClassVar[dict[str, Any]] = {
        "taxa": schema.SIZE,
        "ranks": schema.array(schema.TEXT, minItems=1),
        "given": schema.optional(schema.SIZE),
        "transformer": schema.optional(schema.TEXT),
        "confidence": schema.optional(schema.array(schema.array(schema.NUMBER))),
        "sizes": schema.OBJECT,
        "length": schema.COUNT,
        "longest": schema.COUNT,
        "notes": schema.array(schema.TEXT),
    }
    TABLES: ClassVar = {"vocabulary": ["taxon"]}

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
        lineages = (
            read_taxonomy(taxonomy, self.ranks)
            if isinstance(taxonomy, (str, Path))
            else lineages_of(taxonomy, self.ranks)
        )
        with of_files(references, taxonomy):
            numbered = self.prepare(references, lineages)
        communities = None
        if profiles is not None:
            table = read_samples(profiles) if isinstance(profiles, (str, Path)) else profiles
            with of_files(profiles):
                communities, note = shares_of(table, self.taxa_, lineages)
            self.notes_.append(note)
        return self.fit_references(numbered, communities, folder=folder, resume=resume)

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
        numbered, self.taxa_, self.notes_ = choose(texts, lineages_of(lineages, self.ranks), self.rank, self.region)
        return numbered

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
        rng = np.random.default_rng(self.seed)
        kept_back = held_out(references, self.validation_fraction, rng)
        of_pairs = kept_back[references.sequence]
        chosen, validation = np.flatnonzero(~of_pairs), np.flatnonzero(of_pairs)
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
        folder = None if folder is None else Path(folder)
        material = Material(references, read, chosen, validation, self, folder, resume)
        alone, together = learn_sequences(network, material), []
        rate = 0.0
        if len(validation) and self.encoder != NONE:
            rate = matching_rate(network.alone, read, references, chosen, validation, self.seed)
            self.notes_.append(
                f"to be as hard to name as sequences that were kept back, references need {rate:.1%} of their bases "
                "drawn anew: so they are when samples are learned"
            )
        with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
            views = views_of(network.alone, material, rate, Path(scratch))
            network.to("cpu")
            if communities is None and self.kinds is not None:
                communities = replicates(len(self.taxa_), self.kinds, REPLICATES, rng).reshape(-1, len(self.taxa_))
            lessons, watched = samples_of(material, views, communities)
            if self.encoder != NONE:
                together = learn_samples(network, material, lessons, watched)
            self.network_ = network
            self.confidence_ = confidence_of(network, self.taxa_, material, watched, rng)
        self.history_ = [{"lesson": i, **row} for i, rows in enumerate((alone, together), 1) for row in rows]
        self.seconds_ = round(time.monotonic() - start, 1)
        lengths = [len(text) for text in references.texts]
        self.length_, self.longest_ = int(np.median(lengths)), int(np.quantile(lengths, 0.95))
        self.sizes_ = {
            "references": len(references.sequence),
            "distinct sequences": len(references.texts),
            "taxa": len(self.taxa_),
            "validation sequences": int(kept_back.sum()),
        }
        return self

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
            strand: "auto": words tell sequences of the other strand, which are turned; "forward": none is.
            shard_size: Sequences of a sample that are computed on at a time: bounds the memory, and changes nothing.

        Raises:
            ValueError: Sequences and table that have no name in common, a table without reads, or bad files.
        """
        self.require_fitted()
        if strand not in ("auto", "forward"):
            raise ValueError(f"strand must be 'auto' or 'forward', got {strand!r}")
        if shard_size < 1:
            raise ValueError(f"shard_size must be >= 1, got {shard_size}")
        texts, samples = matched(sequences, counts, self.progress)
        if not samples.counts.nnz:
            raise ValueError("counts has no reads: every count of the table is 0")
        with self._embedded(texts, strand) as (vectors, usable):
            streaming = {} if self.encoder == "set-transformer-sab" else {"store": "recompute"}
            model = (self.network_, self.taxa_, self.confidence_)
            calls = called(*model, vectors, usable, samples, shard_size, self.progress, streaming)
        self.network_.to("cpu")
        warn_of_strangers(calls, self.region)
        return calls

    @contextmanager
    def _embedded(
        self, texts: Sequence[str], strand: str
    ) -> Iterator[tuple[Float[np.ndarray, "features width"], Bool[np.ndarray, " features"]]]:
        """`embedded`, with warnings of sequences of other lengths than those that were learned."""
        warn_of_lengths(texts, min([*self.lengths, self.length_]), max([*self.lengths, self.longest_]))
        network = self.network_.to(devices.find(self.device)).eval()
        with embedded(network, self.reader, texts, strand == "auto", self.progress) as made:
            yield made

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
        self.require_fitted()
        texts, samples = matched(sequences, counts, self.progress)
        row, column = place_of(samples, feature, sample)
        members, reads = members_of(samples, row)
        with self._embedded([texts[i] for i in members], strand) as (vectors, usable):
            if not usable[members == column].all():
                raise ValueError(f"feature {feature!r} is too short or too ambiguous to be read")
            batch = SetBatch(torch.from_numpy(np.array(vectors[usable]))[None], torch.from_numpy(reads[usable])[None])
        self.network_.to("cpu")
        features = [samples.features[i] for i in members[usable]]
        table = explained(self.network_, batch, features, features.index(feature), self.taxa_, top, steps)
        table.attrs["sample"] = samples.names[row]
        return table

    # ------------------------------------------------------------------ save, load

    def _state(self) -> dict[str, Any]:
        weights = self.confidence_.weights
        return {
            "taxa": len(self.taxa_),
            "ranks": [*self.taxa_.ranks],
            "given": self._given(),
            "transformer": None if self._transformer is None else self._transformer.identity,
            "confidence": None if weights is None else weights.tolist(),
            "sizes": self.sizes_,
            "length": self.length_,
            "longest": self.longest_,
            "notes": self.notes_,
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {"vocabulary": pd.DataFrame({"taxon": ["\t".join(lineage) for lineage in self.taxa_.lineages]})}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        lineages = tables["vocabulary"]["taxon"].tolist()
        if len(lineages) != fitted["taxa"]:
            raise ValueError(f"the vocabulary must have {fitted['taxa']} taxa, it has {len(lineages)}")
        self.taxa_ = Taxa.of([tuple(text.split("\t")) for text in lineages], fitted["ranks"])
        if self.embedder is None and fitted["transformer"] is not None:
            raise ValueError("the model was fitted on vectors of a transformer: say where it is, with embedder")
        self._transformer = self._load_transformer()
        if self._transformer is not None and self._transformer.identity != fitted["transformer"]:
            raise ValueError(f"embedder {self.embedder} has not the weights that the model was fitted with")
        self.network_ = weights.build(lambda: self._build(fitted["taxa"], fitted["given"]))
        self.check_arguments()
        confidence = fitted["confidence"]
        self.confidence_ = Confidence(None if confidence is None else np.array(confidence))
        self.sizes_, self.notes_ = fitted["sizes"], fitted["notes"]
        self.length_, self.longest_ = fitted["length"], fitted["longest"]

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without data."""
        self.check_options()
        depth_of(self.rank, KNOWN_RANKS if self.ranks is None else check_ranks(self.ranks))
        if self.region is not None:
            primers_of(self.region)
        if not self.words:
            raise ValueError("words must have at least one length, got none")
        if self.width % self.members:
            raise ValueError(f"width must be divisible by members={self.members}, got {self.width}")
        if self.dim % self.num_heads:
            raise ValueError(f"dim must be divisible by num_heads={self.num_heads}, got {self.dim}")
        devices.find(self.device)

    def _load_transformer(self) -> TransformerEmbedding | None:
        if self.embedder is None:
            return None
        return TransformerEmbedding(self.embedder, trust_code=self.trust_code, device=self.device, cache=self.cache)

    def _given(self) -> int | None:
        return None if self._transformer is None else self._transformer.width

    @property
    def reader(self) -> Read:
        """What makes of sequences what the network takes."""
        return self._reader(self.network_)

    def _reader(self, network: TaxonNetwork) -> Read:
        projection = network.alone.projection
        if isinstance(projection, SpectrumProjection):
            return projection.read
        if self._transformer is None:
            raise ValueError("embedder must be given: this model reads a transformer's vectors")
        return self._transformer

    def _build(self, taxa: int, given: int | None) -> TaxonNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            projection = (
                SpectrumProjection(self.words, self.width) if given is None else VectorProjection(given, self.width)
            )
            sizes = {name: getattr(self, name) for name in ("dim", "depth", "num_heads", "num_inducing")}
            return TaxonNetwork(SequenceNetwork(projection, self.width, taxa, self.members), self.encoder, **sizes)
