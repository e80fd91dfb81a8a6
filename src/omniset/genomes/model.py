"""Our default: attention over reference genomes, principal components and the set of observed families, mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from omniset.genomes.baselines import Given, Method, PrincipalComponents
from omniset.genomes.noise import NoiseModel, Observed, accessory_loss, cross_entropy
from omniset.genomes.references import NEIGHBOURS, Compared, PerFamily, References, log_odds_of
from omniset.trials.stacking import Contest

SHARPNESS = (30.0, 60.0, 120.0, 240.0)  # of the attentions at the start, times the number of families
PARTS = ("neighbours", "likeliest", "components", "context")
HIDDEN, DROPOUT = 256, 0.1  # of the context
FACTS = 5  # that the weights depend on, the last of which is 0 for a genome that is completed alone
FOLDS, CONTESTED = 3, 20_000  # of clades, and pairs at most, by which a mixture and its best part are compared
FARTHEST, HALVINGS = 5.0, 24  # by which log-odds are moved at most, and steps of the search
NEVER = -60.0  # of a part that does not count
RIDGE = 3e-5  # few clades may be kept back: weights of what they do not tell stay near to equal ones


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

    def forward(self, observed: Observed, given: Given, compared: Compared) -> PerFamily:
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
    """Log-odds out of the set of observed families, a sum over them: hidden = relu(sum of vectors of the families +
    Linear(quality)).
    """

    def __init__(self, families: int) -> None:
        super().__init__()
        self.sum = nn.Linear(families, HIDDEN, bias=False)
        self.quality = nn.Linear(5, HIDDEN)
        self.dropout = nn.Dropout(DROPOUT)
        self.posterior, self.prior = nn.Linear(HIDDEN, families), nn.Linear(HIDDEN, families)

    def forward(self, observed: Observed, given: Given) -> tuple[PerFamily, PerFamily]:
        """Log-odds with what was observed taken into account; and without the observation of the family itself, to
        which its evidence is to be added.
        """
        hidden = self.sum(observed.present.to(observed.counts)) + self.quality(_quality(observed, given))
        hidden = self.dropout(hidden.relu())
        return self.posterior(hidden), self.prior(hidden)


def _quality(observed: Observed, given: Given) -> Float[Tensor, "genomes five"]:
    size = observed.present.sum(1).to(observed.counts).log1p() - 7  # about 0 for a thousand families
    return torch.stack([observed.completeness, 10 * observed.contamination, *given.unbind(1), size], 1)


# ---------------------------------------------------------------------- mixtures of parts


@dataclass
class Predictions:
    """What parts say of pairs of genome and family."""

    parts: Float[Tensor, "pairs parts"]  # log-odds of each part
    truth: Float[Tensor, " pairs"]  # 1 where the genome has the family
    weights: Float[Tensor, " pairs"]  # of the pairs
    facts: Float[Tensor, "pairs facts"]  # about the genome
    present: Bool[Tensor, " pairs"]  # whether the family was observed
    clades: Int[Tensor, " pairs"]  # number of the genome's
    # How often the genome lacks it although its organism has it. None: never.
    hidden: Float[Tensor, " pairs"] | None = None

    @classmethod
    def joined(cls, several: Sequence[Predictions]) -> Predictions:
        columns = zip(*(vars(one).values() for one in several), strict=True)
        joined: list[Any] = [None if column[0] is None else torch.cat(column) for column in columns]
        return cls(*joined)

    def of(self, rows: Bool[Tensor, " pairs"]) -> Predictions:
        """Some of them."""
        some: list[Any] = [None if column is None else column[rows] for column in vars(self).values()]
        return Predictions(*some)

    def losses(self, mixture: Float[Tensor, "parameters facts"]) -> Float[Tensor, " pairs"]:
        """Cross-entropy of what a mixture says."""
        weights, shift = balance(mixture.to(self.facts), self.facts, self.present)
        return cross_entropy((weights * self.parts).sum(1) + shift, self.truth, self.hidden)


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


def fit_weights(
    alone: Sequence[Predictions], together: Sequence[Predictions]
) -> tuple[Float64[Tensor, "parameters facts"], Contest | None, int]:
    """The mixture of least cross-entropy plus a ridge on all parameters: over genomes that are completed alone; then,
    with all else as it is, what changes with the last fact, over genomes that are completed together, if there are any.

    Where the mixture is worse than its best part by more than noise, on clades that had told neither, it is that part
    alone: see `omniset.trials.stacking`.

    Returns:
        The mixture, how it stood beside its best part (None: of too few clades), and which one that is.
    """
    drawn = Predictions.joined(alone)
    contest, best = _beside_best(drawn)
    mixture = _alone(drawn, best) if contest is not None and contest.below else _mixed(drawn)
    if together:
        of_company = Predictions.joined(together)
        mixture = _fitted(of_company, len(mixture), 1, lambda free: torch.cat([mixture[:, :-1], free], 1))
    return mixture, contest, best


def _mixed(drawn: Predictions) -> Float64[Tensor, "parameters facts"]:
    return _fitted(drawn, drawn.parts.shape[1] + 3, FACTS - 1, lambda free: nn.functional.pad(free, (0, 1)))


def _alone(drawn: Predictions, part: int) -> Float64[Tensor, "parameters facts"]:
    """The mixture that is a part as it is."""
    mixture = torch.zeros(drawn.parts.shape[1] + 3, FACTS, dtype=torch.float64)
    mixture[:-3, 0] = NEVER
    mixture[part, 0] = 0
    return mixture


def _beside_best(drawn: Predictions) -> tuple[Contest | None, int]:
    """The mixture and its best part, both chosen on other clades than those on which they are compared."""
    drawn = drawn.of(torch.arange(len(drawn.truth)) % -(-len(drawn.truth) // CONTESTED) == 0)
    w, clade = drawn.weights / drawn.weights.sum(), drawn.clades.unique(return_inverse=True)[1]
    parts = torch.stack([drawn.losses(_alone(drawn, part)) for part in range(drawn.parts.shape[1])])
    best, number = int((parts @ w).argmin()), int(clade.max()) + 1
    if number < 2:
        return None, best
    alone, mixed = torch.zeros(2, len(w), dtype=torch.float64)
    for left in (clade % FOLDS == fold for fold in range(min(number, FOLDS))):
        mixed[left] = drawn.of(left).losses(_mixed(drawn.of(~left)))
        alone[left] = parts[(parts @ (w * ~left)).argmin(), left]
    gain = torch.zeros(number, dtype=torch.float64).index_add(0, clade, w * (alone - mixed - w @ (alone - mixed)))
    noise = (gain.square().sum() * number / (number - 1)).sqrt()
    return Contest(float(w @ alone), float(w @ mixed), float(noise), {}), best


def _fitted(
    drawn: Predictions, parameters: int, facts: int, whole: Callable[[Tensor], Tensor]
) -> Float64[Tensor, "parameters all_facts"]:
    """The mixture out of parameters that depend on so many facts."""
    free = torch.zeros(parameters, facts, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        total = (drawn.weights * drawn.losses(whole(free))).mean() + RIDGE * free.square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    return whole(free).detach()


class Mixture(Method):
    """Parts whose log-odds are weighted and shifted; by how much depends on the genome: see `balance` and
    `fit_weights`.
    """

    NAMES: ClassVar[tuple[str, ...]] = PARTS
    mixture: Float[Tensor, "parameters facts"]
    completeness_weight: Float[Tensor, ""]
    references: References

    def __init__(self, noise: NoiseModel) -> None:
        super().__init__(noise)
        # How it stands beside its best part, on clades that told neither; empty where it was not asked.
        self.verdict = ""
        self.register_buffer("mixture", torch.zeros(len(self.NAMES) + 3, FACTS))
        self.register_buffer("completeness_weight", torch.zeros(()))

    def parts(
        self, observed: Observed
    ) -> tuple[Float[Tensor, "genomes families parts"], Float[Tensor, "genomes facts"]]:
        """Log-odds of each part by itself, its evidence included; and what the weights depend on."""
        return self.of_settled(*self.noise.settle(observed))

    def of_settled(self, observed: Observed, given: Given) -> tuple[Tensor, Tensor]:
        """`parts` of genomes whose quality is settled."""
        raise NotImplementedError

    def shift(self, observed: Observed, log_odds: PerFamily) -> PerFamily:
        change, (settled, _) = super().shift(observed, log_odds), self.noise.settle(observed)
        more = self.of_number(log_odds + change, settled, accessory_loss(self.noise.prevalence))
        return change + more * observed.present.any(1, keepdim=True)

    def missing(
        self, log_odds: PerFamily, observed: Observed, detection: Float[Tensor, " families"] | None = None
    ) -> Float[Tensor, "two genomes"]:
        """Logarithms of how many families were missed: A, the sum of the probabilities of those that were not observed,
        and H, what completeness says, Σ p_v m_v / (1 - m_v) over those that were, m_v how often v is neither recovered
        nor brought in by others.
        """
        missed, foreign = self.noise.rates(observed.completeness, observed.contamination, detection)
        p, missed = log_odds.sigmoid(), missed * (1 - foreign)
        either = torch.where(observed.present, p * missed / (1 - missed), 0), torch.where(observed.present, 0, p)
        return torch.stack([some.sum(1) for some in reversed(either)]).clamp(min=1e-3).log()

    @torch.no_grad()
    def of_number(
        self, log_odds: PerFamily, observed: Observed, detection: Float[Tensor, " families"] | None = None
    ) -> PerFamily:
        """What is added to the log-odds of all families that were not observed, alike, so that A^(1 - w) H^w of them
        are expected, w the `completeness_weight`. In new clades probabilities are too high, or too low, all together;
        what completeness says is only as wrong as that is.
        """
        if not self.completeness_weight:
            return torch.zeros_like(log_odds)
        summed, by_quality = self.missing(log_odds, observed, detection)
        expected = torch.lerp(summed, by_quality, self.completeness_weight).exp()
        low, high = (torch.full_like(expected, end) for end in (-FARTHEST, FARTHEST))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            less = torch.where(observed.present, 0, (log_odds + middle[:, None]).sigmoid()).sum(1) < expected
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        return torch.where(observed.present, 0, low[:, None])


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
    are fitted to genomes kept back (Wolpert, "Stacked generalization", 1992): see `fit_weights`. The
    evidence counts once, a = 1, but for what `neighbours` learns of it and for `context`, whose two outputs are
    averaged where a family was not observed: one needs no evidence. There are two contexts, of which the mean is taken
    (Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep ensembles", 2017).
    """

    trained = True

    def __init__(self, noise: NoiseModel, references: References, families: int) -> None:
        super().__init__(noise)
        self.references = references
        self.neighbours = ReferenceAttention(noise, references, families)
        self.components = PrincipalComponents(noise, families, gain=6.0)
        self.contexts = nn.ModuleList([Context(families) for _ in range(2)])
        self.belief = nn.Parameter(torch.zeros(families, 2))  # deviations from 1

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        self.components.fit(counts, rng)
        for name, bias in self.contexts.named_parameters():
            if name.endswith(("posterior.bias", "prior.bias")):  # start at the prior
                bias.data.copy_(self.noise.prior())

    def learned(self, observed: Observed) -> list[PerFamily]:
        """Of what has weights: neighbours, components, and both outputs of each context."""
        settled, given = self.noise.settle(observed)
        evidence, empty = self.noise.evidence(settled), ~settled.present.any(1, keepdim=True)
        contexts = [(posterior, prior + evidence) for posterior, prior in self._contexts(settled, given)]
        near, _, linear = self.simple(settled, given, self.references.compare(settled, self.noise))
        predictors = [near, linear, *chain.from_iterable(contexts)]
        return [torch.where(empty, self.noise.prior(), log_odds) for log_odds in predictors]

    def simple(self, observed: Observed, given: Tensor, compared: Compared) -> list[PerFamily]:
        """Log-odds of neighbours, of the likeliest and of components, with their evidence."""
        evidence = self.noise.evidence(observed)
        near = self.neighbours(observed, given, compared) + self._believed(observed) * evidence
        return [near, log_odds_of(compared.likeliest) + evidence, self.components.regress(observed) + evidence]

    def _contexts(self, observed: Observed, given: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [context(observed, given) for context in self.contexts]

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        return torch.stack(list(self.terms(observed, given).values())).sum(0)

    def terms(self, observed: Observed, given: Given) -> dict[str, PerFamily]:
        """What the log-odds are the sum of, of genomes whose quality is settled."""
        evidence = self.noise.evidence(observed)
        compared = self.references.compare(observed, self.noise)
        weights, shift = balance(self.mixture, facts(observed, compared)[:, None], observed.present)
        near, likeliest, linear, context = weights.unbind(2)
        posterior, prior = (sum(both) / len(both) for both in zip(*self._contexts(observed, given), strict=True))
        believed = near * self._believed(observed) + context * torch.where(observed.present, 1.0, 0.5)
        terms = {
            "neighbours": near * self.neighbours(observed, given, compared),
            "likeliest": likeliest * log_odds_of(compared.likeliest),
            "components": linear * self.components.regress(observed),
            "context": context * torch.where(observed.present, prior, (prior + posterior) / 2),
            "evidence": (likeliest + linear + believed) * evidence,
            "shift": shift,
        }
        return terms | {"shift": shift + self.of_number(sum(terms.values()), observed)}

    def of_settled(self, observed: Observed, given: Given) -> tuple[Tensor, Tensor]:
        compared = self.references.compare(observed, self.noise)
        posterior, prior = (sum(both) / len(both) for both in zip(*self._contexts(observed, given), strict=True))
        prior = prior + self.noise.evidence(observed)
        context = torch.where(observed.present, prior, (prior + posterior) / 2)
        return torch.stack([*self.simple(observed, given, compared), context], 2), facts(observed, compared)

    def _believed(self, observed: Observed) -> PerFamily:
        seen, unseen = self.belief.unbind(1)
        return 1 + torch.where(observed.present, seen, unseen)


class WithoutNetwork(Mixture):
    """A trained model without its context: neighbours, the likeliest and components, mixed anew. What the network adds
    is what the model does better.
    """

    NAMES = PARTS[:-1]

    def __init__(self, noise: NoiseModel, model: EvidenceModel) -> None:
        super().__init__(noise)
        self.model = (model,)  # no submodule: its weights are its own

    @property
    def references(self) -> References:  # type: ignore[override]
        return self.model[0].references

    def log_odds(self, observed: Observed, given: Given) -> PerFamily:
        parts, about = self.of_settled(observed, given)
        weights, shift = balance(self.mixture, about[:, None], observed.present)
        log_odds = (parts * weights).sum(2) + shift
        return log_odds + self.of_number(log_odds, observed)

    def of_settled(self, observed: Observed, given: Given) -> tuple[Tensor, Tensor]:
        model = self.model[0]
        compared = model.references.compare(observed, self.noise)
        return torch.stack(model.simple(observed, given, compared), 2), facts(observed, compared)
