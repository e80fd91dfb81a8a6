"""What names sequences today: naive Bayes on 7-mers, alone and with what the sample tells; the nearest reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from scipy.special import softmax
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.preprocessing import normalize

from omniset.microbiomes.abundances import Prior
from omniset.microbiomes.references import References
from omniset.microbiomes.taxonomy import Taxa
from omniset.tables.dna import kmers_of

K = 7
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
    """A way to name the sequences of a sample: `fit` on references, `read` the sequences, `call` some in a sample."""

    table: Float[np.ndarray, "sequences taxa"]  # scores of the sequences that were read

    @abstractmethod
    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        """Args: profiles: Of the communities that samples will be of."""

    @abstractmethod
    def read(self, texts: Sequence[str]) -> None:
        """Prepare for these sequences."""

    def logits(self, rows: Rows, reads: Reads) -> Logits:
        """Of sequences by number, as they are in a sample, up to a constant for each; -inf: impossible."""
        return self.table[rows]

    def confidence(self, logits: Logits) -> Confidences:
        """How sure the most probable taxon is: its probability."""
        return softmax(logits, axis=1).max(1)

    def call(self, rows: Rows, reads: Reads) -> tuple[Int[np.ndarray, " distinct"], Confidences]:
        """The most probable taxon of each, and how sure it is."""
        logits = self.logits(rows, reads)
        return logits.argmax(1), self.confidence(logits)


class NaiveBayes(Method):
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
            analyzer="char_wb", lowercase=False, ngram_range=(K, K), n_features=HASHED, alternate_sign=False
        )

    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        kmers = self.reader.transform([references.texts[i] for i in references.sequence[chosen]])
        self.model = MultinomialNB(alpha=ALPHA, fit_prior=False).fit(kmers, references.taxon[chosen])
        self.taxa = references.taxa
        self.share = (1 - SPREAD) * profiles.mean(0) + SPREAD / self.taxa

    def read(self, texts: Sequence[str]) -> None:
        self.table = np.full((len(texts), self.taxa), -np.inf, dtype=np.float32)
        for start in range(0, len(texts), TOGETHER):
            kmers = self.reader.transform(texts[start : start + TOGETHER])
            self.table[start : start + kmers.shape[0], self.model.classes_] = kmers @ self.model.feature_log_prob_.T

    def logits(self, rows: Rows, reads: Reads) -> Logits:
        alone = self.table[rows]
        if self.prior == "community":
            return alone + np.log(self.share)
        if self.prior == "sample":
            every = np.broadcast_to(np.arange(self.taxa), alone.shape)
            return alone + Prior(SPREAD / (1 - SPREAD)).log_shares(every, alone, reads, self.taxa, ROUNDS)
        return alone


class Nearest(Method):
    """The taxon of the reference with the largest cosine of 7-mer counts."""

    def fit(self, references: References, chosen: Pairs, profiles: Profiles, taxa: Taxa) -> None:
        self.kmers = _counts([references.texts[i] for i in references.sequence[chosen]])
        self.order = np.argsort(references.taxon[chosen], kind="stable")
        self.taxon, self.taxa = references.taxon[chosen][self.order], references.taxa

    def read(self, texts: Sequence[str]) -> None:
        self.table = np.full((len(texts), self.taxa), -np.inf, dtype=np.float32)
        present, starts = np.unique(self.taxon, return_index=True)
        kmers = self.kmers[self.order].T.tocsc()
        for start in range(0, len(texts), TOGETHER):
            cosines = (_counts(texts[start : start + TOGETHER]) @ kmers).toarray()
            self.table[start : start + len(cosines), present] = np.maximum.reduceat(cosines, starts, axis=1)

    def confidence(self, logits: Logits) -> Confidences:
        """The cosine itself."""
        return logits.max(1)


def _counts(texts: Sequence[str]) -> sp.csr_array:
    """Of 7-mers, each row of length 1."""
    kmers = kmers_of(texts, K)
    rows = np.repeat(np.arange(len(texts)), kmers.sizes.numpy())
    places = rows, kmers.numbers.numpy()
    table = sp.csr_array((np.ones(len(rows), dtype=np.float32), places), shape=(len(texts), 4**K))
    return sp.csr_array(normalize(table))
