"""The public class: learn taxa from references, then name every read of a sample, in the context of the sample."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.special import log_softmax, softmax

from omniset.fitted import Estimator
from omniset.microbiomes.abundances import Prior
from omniset.microbiomes.assignments import Calls, warn_of_strangers
from omniset.microbiomes.calibration import ALONE, LEAST, Confidence, Trust, learn_trust, thinned
from omniset.microbiomes.model import Candidates, SequenceNetwork, TaxonNetwork, candidates_of
from omniset.microbiomes.naive_bayes import KmerLikelihood
from omniset.microbiomes.options import ClassifierOptions
from omniset.microbiomes.references import References, choose, held_out, of_files, shares_of
from omniset.microbiomes.samples import Counts, Samples, Table, matched, read_samples, sequences_of
from omniset.microbiomes.sequences import primers_of, readable, reverse_complement, strand_table, warn_of_lengths
from omniset.microbiomes.taxonomy import (
    KNOWN_RANKS,
    Lineages,
    Taxa,
    Taxonomy,
    check_ranks,
    depth_of,
    lineages_of,
    read_references,
    read_taxonomy,
)
from omniset.microbiomes.training import Material, learn_sequences
from omniset.runs import devices
from omniset.training import artefacts, schema


class TaxonClassifier(ClassifierOptions, Estimator):
    """A taxon for every read, in the context of its sample.

    Each sequence is scored by itself, by naive Bayes and by a network, both of its k-mers; then the shares of
    the taxa in the sample are found by expectation maximisation. What is ambiguous by itself is decided by what else is
    there.

    Args:
        {options}

    Attributes:
        taxa_: The taxa, with their clades.
        network_: What a sequence is by itself.
        material_: What it was fitted on; a model that was loaded has none.
        trust_: How far scores and sample are trusted: the weights of naive Bayes and the network, what is expected of a
            sample (`prior`), and the calibration of confidences (`confidence`).
        sizes_: How many references of which kind.
        length_: Median number of bases of the references.
        longest_: That number which a twentieth of them exceed.
        notes_: What was decided on the data, a sentence each.
        history_: Of the network, a dict per epoch.
    """

    FITTED: ClassVar[dict[str, Any]] = {
        "taxa": schema.SIZE,
        "ranks": schema.array(schema.TEXT, minItems=1),
        "entries": schema.COUNT,
        "profiles": schema.COUNT,
        "strength": schema.NUMBER,
        "informed": schema.NUMBER,
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
        taxonomy: Lineages | None = None,
        profiles: Samples | str | Path | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> TaxonClassifier:
        """Learn from references.

        Args:
            references: Sequences by name, or a FASTA file.
            taxonomy: Taxa by name, as tuples or with semicolons between, or a table as QIIME 2 has them. None: they
                are in the headers of the FASTA file (`omniset.microbiomes.taxonomy.read_references`). Sequences without
                a taxon, or without a name at the rank, are left out.
            profiles: Feature table whose samples are communities of the habitat: features are taxa, or names of
                references or of rows of the taxonomy. Each new sample is expected to be a mixture of them, or else to
                have all taxa alike.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds, bad files, or fewer than two taxa.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        self.check_resumed(folder, resume)
        numbered, lineages = self.prepare(references, taxonomy)
        communities = None
        if profiles is not None:
            table = read_samples(profiles) if isinstance(profiles, (str, Path)) else profiles
            with of_files(profiles):
                communities, note = shares_of(table, self.taxa_, lineages)
            self.notes_.append(note)
        return self.fit_references(numbered, self.taxa_, communities, self.notes_, folder=folder, resume=resume)

    def prepare(self, references: Table, taxonomy: Lineages | None = None) -> tuple[References, Taxonomy]:
        """The references as `fit` learns them, and the taxa by name. Sets `taxa_` and `notes_`.

        Raises:
            ValueError: Bad files, or fewer than two taxa.
        """
        if taxonomy is None:
            if not isinstance(references, (str, Path)):
                raise ValueError("taxonomy must be given where references are no FASTA file with taxa in its headers")
            texts, lineages = read_references(references, self.ranks, self.progress)
        else:
            texts = sequences_of(references, "references", self.progress)
            if isinstance(taxonomy, (str, Path)):
                lineages = read_taxonomy(taxonomy, self.ranks)
            else:
                lineages = lineages_of(taxonomy, self.ranks)
        with of_files(references, taxonomy):
            numbered, self.taxa_, self.notes_ = choose(texts, lineages, self.rank, self.region)
        return numbered, lineages

    def fit_references(
        self,
        references: References,
        taxa: Taxa,
        communities: Float[np.ndarray, "profiles taxa"] | None = None,
        notes: Sequence[str] = (),
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> TaxonClassifier:
        """`fit` on references of numbered taxa, and on profiles of these taxa."""
        start = time.monotonic()
        self.taxa_, self.notes_ = taxa, [*notes]
        rng = np.random.default_rng(self.seed)
        fraction = float(np.clip(self.KEPT_BACK / len(references.texts), *self.FRACTIONS))
        kept_back = held_out(references, fraction, rng)
        of_pairs = kept_back[references.sequence]
        chosen, validation = np.flatnonzero(~of_pairs), np.flatnonzero(of_pairs)
        if len(validation) < LEAST:
            warnings.warn(
                f"confidences will not be calibrated, and reads of unknown taxa may be named: {len(validation):,} "
                f"references are kept back, it takes {LEAST}. Give more references",
                stacklevel=3,
            )
        profiles = None if communities is None else thinned(communities, rng)
        network = self._build(len(self.taxa_), 0, 0)
        turned = [reverse_complement(text) for text in references.texts]
        network.strand.copy_(strand_table(references.texts, turned))
        place = None if folder is None else Path(folder)
        self.material_ = Material(references, chosen, validation, self, place, resume)
        self.history_ = learn_sequences(network, self.material_)
        self.trust_ = learn_trust(network, self.taxa_, self.material_, profiles)
        if self.trust_.prior.profiles is not None:
            network.profiles = torch.from_numpy(self.trust_.prior.profiles).float()
        self.measured_ = {} if self.trust_.compared is None else self.trust_.compared.numbers()
        self.network_ = network.to("cpu")
        self._note_trust(profiles is not None)
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

    def _note_trust(self, profiles: bool) -> None:
        """What was learned of how far to trust what."""
        (by_kmers, by_network), prior = self.trust_.weights.tolist(), self.trust_.prior
        share = by_kmers / max(by_kmers + by_network, 1e-300)
        text = f"a sequence by itself is scored by naive Bayes ({share:.0%}) and the network ({1 - share:.0%}) together"
        if not by_kmers * by_network:
            alone = "the network" if by_network else "naive Bayes"
            text = f"{alone} alone scores a sequence: with both, the sequences kept back were called no better"
        self.notes_.append(text)
        text = "a sequence that fits several taxa goes to the one of which its sample has most: the sample counts "
        text += f"{1 / prior.strength:.2g} times as much as that all taxa are equally frequent"
        if prior.strength == ALONE.strength:
            text = "each sequence is called by itself: in their samples fewer of the reads kept back were called right"
        if prior.profiles is not None:
            text += f", and {1 / prior.informed:.2g} times as much as the profiles"
        elif profiles:
            text += "; the profiles made calls of kept-back sequences no better, and are not used"
        self.notes_.append(text)

    # ------------------------------------------------------------------ classify

    def classify(self, sequences: Table | None = None, counts: Counts | None = None) -> pd.DataFrame:
        """A row per sequence, as QIIME 2 has taxonomies: `Feature ID`, `Taxon`, `Confidence`.

        The taxon is named down to the deepest rank whose confidence reaches `threshold`. A sequence that occurs in
        several samples may be called differently in each (`calls(...).per_sample`); here its reads vote.

        Args:
            sequences: By name, or a FASTA file. None: features of the table are sequences themselves.
            counts: Feature table: `Samples`, a BIOM or text file, or a DataFrame samples x features. None: one sample
                with each sequence once.
        """
        return self.calls(sequences, counts).per_feature(self.threshold)

    def calls(self, sequences: Table | None = None, counts: Counts | None = None) -> Calls:
        """A taxon for every sequence of every sample, with the confidence at each rank.

        Raises:
            ValueError: Sequences and table that have no name in common, a table without reads, or bad files.
        """
        self.require_fitted()
        texts, samples = matched(sequences, counts, self.progress)
        if not samples.counts.nnz:
            raise ValueError("counts has no reads: every count of the table is 0")
        with self._scored(texts) as (candidates, usable):
            calls = Calls.of(self.trust_, self.taxa_, candidates, usable, samples, self.progress)
        warn_of_strangers(calls, self.region)
        return calls

    @contextmanager
    def _scored(self, texts: Sequence[str]) -> Iterator[tuple[Candidates, Bool[np.ndarray, " features"]]]:
        """The candidates of sequences, in files while in use; and which could be read. With warnings of sequences of
        other lengths than those that were learned.
        """
        warn_of_lengths(texts, min([*self.lengths, self.length_]), max([*self.lengths, self.longest_]))
        plain, usable = readable(texts, self.network_.strand)
        network = self.network_.to(devices.find(self.device)).eval()
        with tempfile.TemporaryDirectory(prefix="omniset-") as scratch:
            yield candidates_of(network, plain, self.progress, Path(scratch)), usable
        self.network_.to("cpu")

    # ------------------------------------------------------------------ explain

    def explain(
        self,
        feature: str,
        sequences: Table | None = None,
        counts: Counts | None = None,
        *,
        sample: str | None = None,
        top: int = 20,
    ) -> pd.DataFrame:
        """Which other members of a sample moved a call.

        Returns a row per member, largest change first: `Feature ID`, `count`, `Taxon` (its own call); `change`, by how
        much the log-odds of the call fall when the member is taken out of the sample. `attrs` has the sample, the
        call, its probability in the sample and alone, and whether the read is `clear` by itself: the sample then has
        nothing to say.

        Args:
            feature: Whose call.
            sample: In which sample; None: the one with most of its reads.
            top: Members of which `change` is computed: those with most reads given to the call's taxon, or to the one
                that it is by itself, or to the next. Others are not listed.

        Raises:
            ValueError: A feature or sample that is not there, a feature without reads in it or that cannot be read, or
                top below 1.
        """
        if top < 1:
            raise ValueError(f"top must be >= 1, got {top}")
        self.require_fitted()
        texts, samples = matched(sequences, counts, self.progress)
        row, column = place_of(samples, feature, sample)
        of_sample = samples.counts[[row]].tocsr()
        members, reads = (values[of_sample.data > 0] for values in (of_sample.indices, of_sample.data))
        with self._scored([texts[i] for i in members]) as (candidates, usable):
            if not usable[members == column].all():
                raise ValueError(f"feature {feature!r} is too short or too ambiguous to be read")
            some = np.flatnonzero(usable)
            these = candidates.of(some)
        features = [samples.features[i] for i in members[some]]
        place = features.index(feature)
        table = explained(self.trust_, these, reads[some], features, place, self.taxa_, top)
        table.attrs["sample"] = samples.names[row]
        return table

    # ------------------------------------------------------------------ save, load

    def _state(self) -> dict[str, Any]:
        prior, confidence = self.trust_.prior, self.trust_.confidence.weights
        return {
            "taxa": len(self.taxa_),
            "ranks": [*self.taxa_.ranks],
            "entries": len(self.network_.likelihood.kmers),
            "profiles": len(self.network_.profiles),
            "strength": prior.strength,
            "informed": prior.informed,
            "confidence": None if confidence is None else confidence.tolist(),
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
        self.network_ = weights.build(lambda: self._build(*(fitted[key] for key in ("taxa", "entries", "profiles"))))
        profiles = self.network_.profiles.double().numpy() if fitted["profiles"] else None
        self.check_arguments()
        confidence = None if fitted["confidence"] is None else np.array(fitted["confidence"])
        prior = Prior(fitted["strength"], fitted["informed"], profiles)
        self.trust_ = Trust(self.network_.weights.numpy(), prior, Confidence(confidence))
        self.sizes_, self.notes_ = fitted["sizes"], fitted["notes"]
        self.length_, self.longest_ = fitted["length"], fitted["longest"]

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without data."""
        self.check_options()
        depth_of(self.rank, KNOWN_RANKS if self.ranks is None else check_ranks(self.ranks))
        if self.region is not None:
            primers_of(self.region)
        devices.find(self.device)

    def _build(self, taxa: int, entries: int, profiles: int) -> TaxonNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            alone = SequenceNetwork(self.KMERS, self.WIDTH, taxa, self.MEMBERS)
            return TaxonNetwork(alone, KmerLikelihood(taxa, entries), profiles)


CLEAR = 0.99  # probability by itself of a read that is clear


def place_of(samples: Samples, feature: str, sample: str | None) -> tuple[int, int]:
    """Number of a sample, by default the one with most reads of the feature, and of the feature.

    Raises:
        ValueError: One that is not there, or a feature without reads in the sample.
    """
    if feature not in samples.features:
        raise ValueError(f"feature {feature!r} is not in the table, whose features are such as {samples.features[0]!r}")
    column = samples.features.index(feature)
    reads = samples.counts[:, [column]].toarray()[:, 0]
    if sample is not None and sample not in samples.names:
        raise ValueError(f"sample {sample!r} is not in the table, whose samples are such as {samples.names[0]!r}")
    row = int(reads.argmax()) if sample is None else samples.names.index(sample)
    if not reads[row]:
        raise ValueError(f"feature {feature!r} has no reads in sample {samples.names[row]!r}")
    return row, column


def explained(
    trust: Trust,
    members: Candidates,
    reads: Float[np.ndarray, " members"],
    features: Sequence[str],
    place: int,
    taxa: Taxa,
    top: int,
) -> pd.DataFrame:
    """Take out members one at a time, and see by how much the log-odds of the call (natural logarithm) fall.

    The table's `attrs` have the call, its probability in the sample and alone, and whether it is clear by itself.
    """
    names = np.array(["; ".join(lineage) for lineage in taxa.lineages], dtype=object)
    taxon, logits = members.taxon, members.logits(trust.weights)

    def with_reads(number: Float[np.ndarray, " members"]) -> Float[np.ndarray, " taxa"]:
        return trust.prior.log_shares(taxon, logits, number, len(taxa))

    log_shares = with_reads(reads)
    together = softmax(logits + log_shares[taxon], axis=1)
    alone = softmax(logits[place])
    ranked = np.argsort(-together[place], kind="stable")
    best, itself = int(ranked[0]), int(alone.argmax())

    def log_odds(shares: Float[np.ndarray, " taxa"]) -> float:
        log_share = log_softmax(logits[place] + shares[taxon[place]])
        return float(log_share[best] - np.logaddexp.reduce(np.delete(log_share, best), initial=-np.inf))

    rivals = taxon[place, [*ranked[:2], itself]]
    given = reads * (together * np.isin(taxon, rivals)).sum(1)
    given[place] = -1.0  # without itself there is nothing to explain
    taken = np.argsort(-given, kind="stable")[: min(top, len(reads) - 1)]
    whole = log_odds(log_shares)
    changes = []
    for i in taken.tolist():
        less = reads.copy()
        less[i] = 0
        changes.append(whole - log_odds(with_reads(less)))
    called = names[np.take_along_axis(taxon, together.argmax(1)[:, None], axis=1)[:, 0]]
    table = pd.DataFrame(
        {
            "Feature ID": np.array(features, dtype=object)[taken],
            "count": reads[taken],
            "Taxon": called[taken],
            "change": np.array(changes, dtype=np.float64),
        }
    ).sort_values("change", key=np.abs, ascending=False, ignore_index=True)
    table.attrs = {
        "feature": features[place],
        "taxon": names[taxon[place, best]],
        "probability": float(together[place, best]),
        "alone": float(alone[best]),
        "taxon_alone": names[taxon[place, itself]],
        "clear": bool(best == itself and alone[best] >= CLEAR),
    }
    return table
