"""The set transformers that complete genomes: families are the elements, copies and quality come with them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from omniset import encoders
from omniset.core.sets import SetBatch
from omniset.genomes.baselines import PrincipalComponents
from omniset.genomes.methods import NEIGHBOURS, Compared, Method, References, log_odds_of, principal_directions
from omniset.genomes.noise import NoiseModel, Observed
from omniset.layers import PoolingByMultiheadAttention

FACTS = 5  # that the weights of a mixture depend on
SHARPNESS = (30.0, 60.0, 120.0, 240.0)  # of the attentions at the start, times the number of families
PARTS = ("neighbours", "likeliest", "components", "context")


class FamilyTokens(nn.Module):
    """The observed families of each genome as a set of vectors: Embedding(family) + Linear(count).

    Args:
        families: Vocabulary size V.
        dim: Width d.
        binary: Count a family once, however many copies there are; else log(1 + copies).
    """

    def __init__(self, families: int, dim: int, binary: bool) -> None:
        super().__init__()
        self.binary = binary
        self.family = nn.Embedding(families, dim)
        self.count = nn.Linear(1, dim)

    def forward(self, counts: Float[Tensor, "genomes families"]) -> SetBatch:
        """(B, N, d), N the largest number of families observed; the order is that of the vocabulary."""
        present = counts > 0
        sizes = present.sum(1)
        width = max(int(sizes.max()), 1) if len(sizes) else 1
        # Positions of the observed families, in order, before those of all others.
        which = torch.sort(present.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, :width]
        multiplicity = (torch.arange(width, device=counts.device) < sizes[:, None]).to(counts)
        copies = counts.gather(1, which)
        copies = (copies > 0).to(counts) if self.binary else copies.log1p()
        tokens = self.family(which) + self.count(copies[..., None])
        return SetBatch(tokens * multiplicity[..., None], multiplicity, validate=False)


def mean_of_present(batch: SetBatch) -> Float[Tensor, "genomes dim"]:
    """Mean over the present elements only: padding counts for nothing, and an empty set gives 0."""
    m = batch.multiplicity[..., None]
    return (batch.elements * m).sum(1) / m.sum(1).clamp(min=1)


class ReferenceAttention(nn.Module):
    """Log-odds out of the families of reference genomes: a weighted sum of the log-odds of seven shares.

    They are the prevalence, the 15 references nearest by similarity, the 15 of the greatest likelihood, and four
    attentions over all references of other sharpness. Weights are those of the family times those of the genome's
    quality and of its similarity to the nearest reference. In training a genome's own clade is hidden from it, at a
    depth drawn anew each time, so that the weights say how far references can be trusted.
    """

    def __init__(self, noise: NoiseModel, references: References, families: int) -> None:
        super().__init__()
        self.noise, self.references = noise, references
        self.log_sharpness = nn.Parameter(torch.tensor(SHARPNESS).div(families).log())
        shares = 3 + len(SHARPNESS)
        # Deviations from 1 and 0, so that weight decay pulls towards the plain sum.
        self.trust = nn.Parameter(torch.zeros(families, shares))
        self.offset = nn.Parameter(torch.zeros(families))
        last = nn.Linear(16, shares)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.gate = nn.Sequential(nn.Linear(5, 16), nn.GELU(), last)
        self.register_buffer("start", torch.tensor([0.1] + [0.9 / (shares - 1)] * (shares - 1)), persistent=False)

    def forward(
        self,
        observed: Observed,
        given: Float[Tensor, "genomes two"],
        compared: Compared,
    ) -> Float[Tensor, "genomes families"]:
        prevalence, likeliest = self.noise.prevalence, compared.likeliest
        shares = [
            prevalence.expand_as(likeliest)[..., None],
            self.references.neighbours(observed, prevalence)[..., None],
            likeliest[..., None],
            self.references.kernels(observed, compared.likelihood, prevalence, self.log_sharpness.exp()),
        ]
        nearest = compared.similarity.amax(1)
        about = [nearest, observed.completeness, 10 * observed.contamination, *given.unbind(1)]
        gates = self.start + self.gate(torch.stack(about, 1))
        return torch.einsum("bvj,bj,vj->bv", log_odds_of(torch.cat(shares, 2)), gates, 1 + self.trust) + self.offset


class Context(nn.Module):
    """Log-odds out of the set of observed families: a sum over them, a set encoder's summary of them, or both.

        hidden = relu(sum of vectors of the families + Linear(quality) + Linear(summary))

    Args:
        families: Vocabulary size.
        encoder: In the registry; its elements are families, each with its copies and the genome's quality. None: the
            sum alone.
        sizes: Of the encoder: depth, num_heads, num_inducing.
        hidden: Width of the sum.
    """

    def __init__(
        self,
        families: int,
        *,
        encoder: str | None,
        dim: int,
        encoder_options: dict[str, Any] | None = None,
        hidden: int = 256,
        dropout: float = 0.1,
        **sizes: int,
    ) -> None:
        super().__init__()
        self.sum = nn.Linear(families, hidden, bias=False)
        self.quality = nn.Linear(5, hidden)
        self.encoder: encoders.Encoder | None = None
        if encoder is not None:
            self.tokens = FamilyTokens(families, dim, binary=False)
            self.mark = nn.Linear(5, dim)
            self.encoder = build_encoder(encoder, dim, dropout, sizes | (encoder_options or {}))
            self.norm = nn.LayerNorm(dim)
            self.mix = nn.Linear(self.encoder.num_outputs * dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.posterior, self.prior = nn.Linear(hidden, families), nn.Linear(hidden, families)

    def fit(self, counts: sp.csr_array, prior: Float[Tensor, " families"], rng: np.random.Generator) -> None:
        """Start at the prior, and the families' vectors of an encoder at the principal directions of the genomes."""
        with torch.no_grad():
            self.posterior.bias.copy_(prior)
            self.prior.bias.copy_(prior)
            if self.encoder is not None:
                weight = self.tokens.family.weight
                _, directions = principal_directions(counts, weight.shape[1])
                vectors = rng.normal(0, 0.05, weight.shape).astype(np.float32)
                vectors[:, : len(directions)] += 0.5 * directions.T * np.sqrt(len(vectors))
                weight.copy_(torch.from_numpy(vectors))

    def read(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> SetBatch:
        """What the encoder reads: families, each with the genome's quality added to it."""
        tokens = self.tokens(observed.counts)
        marked = (tokens.elements + self.mark(_quality(observed, given))[:, None]) * tokens.multiplicity[..., None]
        return SetBatch(marked, tokens.multiplicity, validate=False)

    def forward(
        self, observed: Observed, given: Float[Tensor, "genomes two"], tokens: SetBatch | None = None
    ) -> tuple[Float[Tensor, "genomes families"], Float[Tensor, "genomes families"]]:
        """Log-odds with what was observed taken into account; and without the observation of the family itself, to
        which its evidence is to be added.

        Args:
            tokens: Instead of `read`.
        """
        hidden = self.sum(observed.present.to(observed.counts)) + self.quality(_quality(observed, given))
        if self.encoder is not None:
            summary = self.encoder(self.read(observed, given) if tokens is None else tokens).summary
            hidden = hidden + self.mix(self.norm(summary).flatten(1))
        hidden = self.dropout(hidden.relu())
        return self.posterior(hidden), self.prior(hidden)


def _quality(observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes five"]:
    size = observed.present.sum(1).to(observed.counts).log1p() - 7  # about 0 for a thousand families
    return torch.stack([observed.completeness, 10 * observed.contamination, *given.unbind(1), size], 1)


class Mixture(Method):
    """Parts whose log-odds are weighted and shifted; by how much depends on the genome: see `balance`, and
    `omniset.genomes.mixing`.

    Args:
        parts: Their number.
    """

    mixture: Float[Tensor, "parameters facts"]
    references: References

    def __init__(self, noise: NoiseModel, parts: int) -> None:
        super().__init__(noise)
        self.register_buffer("mixture", torch.zeros(parts + 3, FACTS))

    def balance(
        self, observed: Observed, facts: Float[Tensor, "genomes facts"]
    ) -> tuple[Float[Tensor, "genomes families parts"], Float[Tensor, "genomes families"]]:
        """Weights of the parts, and the shift."""
        return balance(self.mixture, facts[:, None], observed.present)

    def parts(
        self, observed: Observed
    ) -> tuple[Float[Tensor, "genomes families parts"], Float[Tensor, "genomes facts"]]:
        """Log-odds of each part by itself, its evidence included; and what the weights depend on."""
        raise NotImplementedError


def balance(
    mixture: Float[Tensor, "parameters facts"], facts: Float[Tensor, "*pairs facts"], present: Bool[Tensor, "*_"]
) -> tuple[Float[Tensor, "*_ parts"], Float[Tensor, "*_"]]:
    """How parts count in genomes and families: with weights t softmax_j(u_j . f), f the facts, and a shift b.

    A family that was observed has t = exp(s . f) and b = 0; one that was not has t = exp(r . f) and b = d . f: parts
    that are calibrated over all families are too sure, or not sure enough, of the few that are there and were missed.

    Args:
        mixture: u_1 to u_J, s, r and d.
    """
    seen, unseen, shift = (facts @ row for row in mixture[-3:])
    weights = (facts @ mixture[:-3].T).softmax(-1) * torch.where(present, seen, unseen).exp()[..., None]
    return weights, torch.where(present, torch.zeros_like(shift), shift)


def facts(observed: Observed, compared: Compared) -> Float[Tensor, "genomes facts"]:
    """What a mixture depends on: 1; what share of the genome is missing; how similar the nearest reference is; how much
    less similar the 15th, or of fewer the last; what share of the likeliest is completed together with it. The third
    and fourth are of about unit size, and bounded: a genome that is unlike all others shall not get weights that are.
    The fifth counts three times: weights that it changes shall not be held back by a ridge.

    Args:
        observed: Its quality is settled.
    """
    similarity = compared.similarity.clamp(min=0)
    near = similarity.topk(min(NEIGHBOURS, similarity.shape[1]), 1).values
    first, last, lost = near[:, 0], near[:, -1], 1 - observed.completeness
    about = [torch.ones_like(lost), lost, (5 * (first - 0.75)).clamp(-2, 2), (10 * (first - last) - 1).clamp(-2, 2)]
    return torch.stack([*about, 3 * compared.company], 1)


class EvidenceModel(Mixture):
    """Our default: four predictors that err differently, each of which knows what was observed, and their mixture.

        log-odds = t (w_1 neighbours + w_2 likeliest + w_3 components + w_4 context + a evidence) + b

    `neighbours` is attention over the reference genomes, `likeliest` the share of the 15 likeliest of them,
    `components` logistic regression on principal components, `context` what the set of all observed families says. Each
    that has weights is trained by a loss of its own, so that none leans on another. Weights w, which add up to 1, t and
    b depend on completeness and on how near the references are, t and b also on whether the family was observed. They
    are fitted to genomes kept back (Wolpert, "Stacked generalization", 1992): see `omniset.genomes.mixing`. The
    evidence counts once, a = 1, but for what `neighbours` learns of it and for `context`, whose two outputs are
    averaged where a family was not observed: one needs no evidence. There are two contexts, of which the mean is taken
    (Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep ensembles", 2017); the
    second has no encoder.

    Args:
        families: Vocabulary size.
        encoder, sizes: See Context.
    """

    trained = True

    def __init__(
        self, noise: NoiseModel, references: References, families: int, *, encoder: str | None, dim: int, **sizes: Any
    ) -> None:
        super().__init__(noise, len(PARTS))
        self.references = references
        self.neighbours = ReferenceAttention(noise, references, families)
        self.components = PrincipalComponents(noise, families, gain=6.0)
        of_dim = {"dim": dim, **sizes}
        self.contexts = nn.ModuleList([Context(families, encoder=name, **of_dim) for name in (encoder, None)])
        self.belief = nn.Parameter(torch.zeros(families, 2))  # deviations from 1

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        self.components.fit(counts, rng)
        for context in self.contexts:
            assert isinstance(context, Context)
            context.fit(counts, self.noise.prior(), rng)

    def learned(self, observed: Observed) -> list[Float[Tensor, "genomes families"]]:
        settled, given = self.noise.settle(observed)
        empty = ~observed.present.any(1, keepdim=True)
        return [torch.where(empty, self.noise.prior(), part) for part in self._predictors(settled, given)]

    def _predictors(self, observed: Observed, given: Tensor) -> list[Tensor]:
        """Log-odds of what has weights, with the evidence: neighbours, components, and both outputs of each context."""
        evidence = self.noise.evidence(observed)
        contexts = [(posterior, prior + evidence) for posterior, prior in self._read(observed, given)]
        near, _, linear = self.simple(observed, given, self.references.compare(observed, self.noise))
        return [near, linear, *chain.from_iterable(contexts)]

    def simple(self, observed: Observed, given: Tensor, compared: Compared) -> list[Float[Tensor, "genomes families"]]:
        """Log-odds of neighbours, of the likeliest and of components, with their evidence."""
        evidence = self.noise.evidence(observed)
        near = self.neighbours(observed, given, compared) + self._believed(observed) * evidence
        return [near, log_odds_of(compared.likeliest) + evidence, self.components.regress(observed) + evidence]

    def _read(self, observed: Observed, given: Tensor, tokens: SetBatch | None = None) -> list[tuple[Tensor, Tensor]]:
        return [
            context(observed, given, tokens if number == 0 else None) for number, context in enumerate(self.contexts)
        ]

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return torch.stack(list(self.terms_of(observed, given).values())).sum(0)

    def terms(self, observed: Observed) -> dict[str, Float[Tensor, "genomes families"]]:
        """What the log-odds are the sum of."""
        return self.terms_of(*self.noise.settle(observed))

    def terms_of(
        self, observed: Observed, given: Float[Tensor, "genomes two"], tokens: SetBatch | None = None
    ) -> dict[str, Float[Tensor, "genomes families"]]:
        """The same of genomes whose quality is settled.

        Args:
            tokens: What the encoder of the context reads instead of the observed families.
        """
        evidence = self.noise.evidence(observed)
        compared = self.references.compare(observed, self.noise)
        weights, shift = self.balance(observed, facts(observed, compared))
        near, likeliest, linear, context = weights.unbind(2)
        posterior, prior = (sum(both) / len(both) for both in zip(*self._read(observed, given, tokens), strict=True))
        believed = near * self._believed(observed) + context * torch.where(observed.present, 1.0, 0.5)
        return {
            "neighbours": near * self.neighbours(observed, given, compared),
            "likeliest": likeliest * log_odds_of(compared.likeliest),
            "components": linear * self.components.regress(observed),
            "context": context * torch.where(observed.present, prior, (prior + posterior) / 2),
            "evidence": (likeliest + linear + believed) * evidence,
            "shift": shift,
        }

    def parts(
        self, observed: Observed
    ) -> tuple[Float[Tensor, "genomes families parts"], Float[Tensor, "genomes facts"]]:
        settled, given = self.noise.settle(observed)
        compared = self.references.compare(settled, self.noise)
        evidence = self.noise.evidence(settled)
        posterior, prior = (sum(both) / len(both) for both in zip(*self._read(settled, given), strict=True))
        prior = prior + evidence
        context = torch.where(settled.present, prior, (prior + posterior) / 2)
        together = torch.stack([*self.simple(settled, given, compared), context], 2)
        return together, facts(settled, compared)

    def _believed(self, observed: Observed) -> Float[Tensor, "genomes families"]:
        seen, unseen = self.belief.unbind(1)
        return 1 + torch.where(observed.present, seen, unseen)


class WithoutNetwork(Mixture):
    """A trained model without its context: neighbours, the likeliest and components, mixed anew. What the network adds
    is what the model does better.

    Args:
        model: Whose parts they are.
    """

    def __init__(self, noise: NoiseModel, model: EvidenceModel) -> None:
        super().__init__(noise, 3)
        self.model = (model,)  # no submodule: its weights are its own

    @property
    def references(self) -> References:  # type: ignore[override]
        return self.model[0].references

    def parts(
        self, observed: Observed
    ) -> tuple[Float[Tensor, "genomes families parts"], Float[Tensor, "genomes facts"]]:
        return self._of_settled(*self.noise.settle(observed))

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        parts, about = self._of_settled(observed, given)
        weights, shift = self.balance(observed, about)
        return (parts * weights).sum(2) + shift

    def _of_settled(self, observed: Observed, given: Tensor) -> tuple[Tensor, Tensor]:
        model = self.model[0]
        compared = model.references.compare(observed, self.noise)
        return torch.stack(model.simple(observed, given, compared), 2), facts(observed, compared)


class SeedModel(Method):
    """The document's set transformer, as it is written there: no evidence, no quality, everything through the pool.

    X = Embedding(family) + Linear(count); local = mean of X; SABs, post-norm; PMA, LN(S + MHA(S, X, X)); then
    Linear-ReLU-Linear on [pooled ; local].

    Args:
        num_outputs: Seeds of the pool.
    """

    trained = True

    def __init__(
        self,
        noise: NoiseModel,
        families: int,
        *,
        encoder: str,
        dim: int,
        num_heads: int,
        encoder_options: dict[str, Any] | None = None,
        num_outputs: int = 1,
        dropout: float = 0.1,
        **sizes: int,
    ) -> None:
        super().__init__(noise)
        self.tokens = FamilyTokens(families, dim, binary=True)
        options = {"num_heads": num_heads, "norm": "post", "num_outputs": num_outputs} | sizes | (encoder_options or {})
        self.encoder = build_encoder(encoder, dim, dropout, options)
        seeds = self.encoder.num_outputs
        if self.encoder.pool is not None and isinstance(self.encoder, encoders.AttentionEncoder):
            # The document's PMA has no feed-forward part.
            self.encoder.pool = PoolingByMultiheadAttention(
                dim, num_heads, seeds, ffn_dim=0, norm="post", dropout=dropout
            )
        self.decoder = nn.Sequential(nn.Linear((seeds + 1) * dim, dim), nn.ReLU(), nn.Linear(dim, families))

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        tokens = self.tokens(observed.counts)
        pooled = self.encoder(tokens).summary.flatten(1)
        return self.decoder(torch.cat([pooled, mean_of_present(tokens)], 1))


def build_encoder(name: str, dim: int, dropout: float, options: dict[str, Any]) -> encoders.Encoder:
    """An encoder of tokens that have its width already."""
    return encoders.build(name, **{"input_dim": dim, "dim": dim, "input_layers": 0, "dropout": dropout} | options)
