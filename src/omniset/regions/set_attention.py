"""The default's network: the brain is a set of regions, and a new region attends to those that are known.

What is read is their connectivity, row by row and then column by column: the core's multiset attention, in which a
known entry has the multiplicity 1 and an unknown one 0. So a connectome that was measured in part is used as it is.
It is trained in episodes that hide what is to be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from omniset.core.attention import multiset_attention
from omniset.core.checks import check_sizes
from omniset.regions.data import Pairs, PairValues, Regions, Square, known_pairs, matrix_of, mirrored, places_of
from omniset.regions.methods import Fields, Geometry, Method, geometry_of
from omniset.regions.scaling import Components
from omniset.regions.splits import FEWEST, held_back
from omniset.runs import devices

# Of each head at first: the logarithms of its scales of genes, and of places.
GENES = (0.0, 0.7, 1.1, -1.0, 0.3, 0.9, 0.0, 0.5)
PLACES = (0.0, -1.0, -2.0, 0.7, 0.3, -0.5, -0.7, 0.0)
SOFT = 0.3  # weight of a head's own reading at first
NOTHING = 1e-3  # what the trunk weighs beside what is known: an entry that only far regions know is read as 0

HEADS = 8
COMPONENTS = 16  # of expression, that regions are known by
NEAR = 30.0  # mm, that are 1 in the keys
SIDE = 0.5  # of either hemisphere in the keys, away from the midline
MIDLINE = 10.0  # mm, within which a region is less and less of a side
TOGETHER = 512  # regions on either side that are computed at a time

STEPS = 60  # episodes
FOLDS = 4  # one of which an episode hides
MOST = 200  # regions of an episode
FASTEST, SLOWEST = 0.05, 1e-3  # learning rates of the first and the last step


class RegionSetAttention(nn.Module):
    """f(i, j) of pairs of new regions, from the matrix Y of known regions a, b with multiplicities m_ab.

        s_h(i, a)  = sum over c of w_hc^2 (x_ic - x_ac)^2                         scales w of head h
        A_h(i)     = attention weights, the softmax of -t_h s_h(i, .)             temperature 1 / t
        rows       r_h(i, b)   = sum_a A_ia m_ab Y_ab / (0.001 + sum_a A_ia m_ab)    attention with multiplicities m_.b
        columns    F_gh(i, j)  = sum_b A_g(j)_b r_h(i, b)
        read-out   G_h(i, j)   = S_h(i) Y' S_h(j)^T,  S_h = K_h(i, .) (K_h + l_h I)^-1,  K_h = 1 + exp(-s_h / 2)
        f(i, j)    = sum_gh C_gh F_gh(i, j) + sum_h e_h G_h(i, j), the mean of (i, j) and (j, i) unless it is directed

    The softmax is a weighted mean, as of Nadaraya and Watson, and never leaves the range of what it reads; the read-out
    beside it is the exact least-squares solution with the same keys, two-step kernel ridge. It wants all entries: Y' is
    Y, with 0 where it is not known, which is the trunk's value. w, t, C, l and e are learned; there is nothing else.

    Args:
        genes: Columns of x that are of expression, first.
        places: Columns of x that are of places, after them.
        num_heads: H.
        directed: May f(i, j) differ from f(j, i)?
        generator: Of the heads' small differences at the start.

    Raises:
        ValueError: A size out of bounds.
    """

    def __init__(
        self,
        genes: int,
        places: int = 0,
        num_heads: int = HEADS,
        directed: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(columns=genes + places, num_heads=num_heads)
        self.directed = directed
        starts = [[GENES[h % 8]] * genes + [PLACES[h % 8]] * places for h in range(num_heads)]
        noise = 0.05 * torch.randn(num_heads, genes + places, generator=generator)
        self.log_scales = nn.Parameter(torch.tensor(starts) + noise)
        self.log_sharpness = nn.Parameter(torch.full((num_heads,), 0.7))
        self.log_penalty = nn.Parameter(torch.full((num_heads,), -0.7))
        self.mix = nn.Parameter(SOFT * torch.eye(num_heads))
        self.read = nn.Parameter(torch.full((num_heads,), 1 / num_heads))

    def forward(
        self,
        queries: Float[Tensor, "q columns"],
        keys: Float[Tensor, "n columns"],
        values: Float[Tensor, "n n"],
        known: Float[Tensor, "n n"],
    ) -> Float[Tensor, "q q"]:
        """All f of pairs of the queries.

        Args:
            values: Y; what is not known may be anything finite.
            known: m, not negative; 0: not known.
        """
        f = self.attended(queries, keys, values, known) + self.solved(queries, keys, torch.where(known > 0, values, 0))
        return f if self.directed else (f + f.mT) / 2

    def attended(
        self,
        queries: Float[Tensor, "q columns"],
        keys: Float[Tensor, "n columns"],
        values: Float[Tensor, "n n"],
        known: Float[Tensor, "n n"],
    ) -> Float[Tensor, "q q"]:
        """The part that the softmax reads: sum of C_gh F_gh."""
        projected, offered = self._projected(queries, keys)
        both = torch.cat([known * values, known], 1)
        total, weight = multiset_attention(projected, offered, both, scale=1.0).chunk(2, -1)  # (H, q, n) each
        rows = total / (weight + NOTHING)
        there = (known > 0).any(0)
        columns = torch.einsum("gh,hib->gbi", self.mix, rows)
        return multiset_attention(projected, offered, columns, there, scale=1.0).sum(0).mT

    def solved(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"], values: Float[Tensor, "n n"]
    ) -> Float[Tensor, "q q"]:
        """The read-out by least squares: sum of e_h G_h."""
        w = self.log_scales.exp()[:, None]
        x, a = queries * w, keys * w
        penalty = self.log_penalty.exp()[:, None, None] * torch.eye(len(keys), dtype=keys.dtype, device=keys.device)
        factor = torch.linalg.cholesky(1 + torch.exp(-_squares(a, a) / 2) + penalty)
        weights = torch.cholesky_solve((1 + torch.exp(-_squares(x, a) / 2)).mT, factor).mT  # (H, q, n)
        return ((weights * self.read[:, None, None]) @ values @ weights.mT).sum(0)

    def weights(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"]
    ) -> Float[Tensor, "heads q n"]:
        """A: how much each head of each query reads of each known region; sums to 1."""
        projected, offered = self._projected(queries, keys)
        return torch.softmax(projected @ offered.mT, -1)

    def _projected(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"]
    ) -> tuple[Float[Tensor, "heads q d"], Float[Tensor, "heads n d"]]:
        """Vectors whose products are -t s, but for what is the same for all keys."""
        w = self.log_scales.exp()[:, None]
        t = self.log_sharpness.exp()[:, None, None]
        x, a = queries * w, keys * w
        return t * torch.cat([2 * x, -torch.ones_like(x[..., :1])], -1), torch.cat([a, a.square().sum(-1, True)], -1)


def _squares(left: Float[Tensor, "h q d"], right: Float[Tensor, "h n d"]) -> Float[Tensor, "h q n"]:
    """|a - b|^2."""
    a, b = left.square().sum(-1)[..., None], right.square().sum(-1)[:, None]
    return (a + b - 2 * left @ right.mT).clamp(min=0)


# ---------------------------------------------------------------------- the method


@dataclass
class Keys:
    """What regions are known by: components of expression, and (|x|, y, z) and the side.

    Components are divided by the root of their mean sum of squares over the training regions, so that together they
    have the variance 1; places by 30 mm; the side is x / 20 mm, within -0.5 and 0.5.
    """

    components: Components | None  # None: expression is not looked at
    size: float  # of the components
    places: bool  # are places looked at?

    FIELDS: ClassVar[Fields] = {"components": Components, "size": None, "places": None}

    @classmethod
    def of(cls, train: Regions, genes: bool) -> Keys:
        components = Components(train, COMPONENTS) if genes else None
        size = 1.0 if components is None else float(np.sqrt(np.square(components(train)).sum(1).mean())) or 1.0
        return cls(components, size, train.coordinates is not None)

    @property
    def genes(self) -> int:
        """Columns of expression."""
        return 0 if self.components is None else self.components.axes.shape[1]

    def __call__(self, regions: Regions) -> Float[np.ndarray, "regions columns"]:
        parts = [] if self.components is None else [self.components(regions) / self.size]
        if self.places:
            c = places_of(regions)
            parts += [mirrored(c) / NEAR, SIDE * np.clip(c[:, :1] / MIDLINE, -1, 1)]
        return np.concatenate(parts, 1)


class SetAttention(Method):
    """A new region attends to the set of known regions: see `RegionSetAttention`.

    What is read, and learned, is what the trunk leaves of connectivity: see `omniset.regions.methods.Geometry`. An
    episode is a step of Adam: the regions, at most 200 of them drawn anew, are divided as `held_out` says; one of four
    folds is hidden, the trunk fitted without it, and the loss is the squared error of the pairs within it. There are
    60 episodes, and the learning rate falls linearly.
    """

    name = "attention"
    FIELDS: ClassVar[Fields] = {
        "keys": Keys,
        "trunk": Geometry,
        "scale": None,
        "tensors": None,
        "values": None,
        "known": None,
    }
    keys: Keys
    trunk: Geometry
    scale: float
    values: Square
    known: Bool[np.ndarray, "n n"]
    network: RegionSetAttention
    history: list[dict[str, Any]]

    def __init__(self, genes: bool = True, device: str = "cpu") -> None:
        super().__init__(genes)
        self.device = device

    # ------------------------------------------------------------------ learning

    def _fit(self, train: Regions, seed: int) -> None:
        self.keys = Keys.of(train, self.needs_genes)
        self.network = self._network(HEADS, seed)
        self._learn(train, seed)
        self.trunk, self.scale, rest = self._left(train)
        self.known = np.isfinite(rest)
        self.values = np.where(self.known, rest, 0)
        self._train = train

    def _network(self, heads: int, seed: int) -> RegionSetAttention:
        generator = torch.Generator().manual_seed(seed)
        places = 4 if self.keys.places else 0
        return RegionSetAttention(self.keys.genes, places, heads, self.directed, generator)

    def _learn(self, train: Regions, seed: int) -> None:
        """A step of Adam per episode.

        Not by `omniset.training.fit`: there is nothing to watch, to resume or to share between processes in a second.
        """
        device = devices.find(self.device)
        network = self.network.to(device).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=FASTEST, betas=(0.9, 0.95))
        rng = np.random.default_rng(seed)
        self.history = []
        waiting: list[tuple[Regions, Regions]] = []
        for step in range(STEPS):
            waiting = waiting or self._episodes(train, rng)
            if not waiting:
                continue  # too few regions to hide some
            optimizer.param_groups[0]["lr"] = SLOWEST + FASTEST * (1 - step / STEPS)
            loss = self._loss(*waiting.pop(), device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.history.append({"epoch": step, "train_loss": float(loss.detach())})
        self.network = network.to("cpu").eval()

    def _episodes(self, regions: Regions, rng: np.random.Generator) -> list[tuple[Regions, Regions]]:
        """Regions that are known, and those that are hidden, of each fold of a division."""
        if len(regions) > MOST:
            regions = regions.take(np.sort(rng.choice(len(regions), MOST, replace=False)))
        episodes = held_back(regions, FOLDS, int(rng.integers(1 << 31)), self.held_out)
        return [(one, other) for one, other in episodes if len(one.pairs()) >= FEWEST and len(other.pairs())]

    def _loss(self, known: Regions, hidden: Regions, device: torch.device) -> Tensor:
        trunk, scale, rest = self._left(known)
        pairs, values = known_pairs(hidden)
        target = torch.from_numpy((values - trunk.at(hidden, pairs)) / scale).float().to(device)
        there = np.isfinite(rest)
        predicted = self.network(*self._inputs(hidden, known, np.where(there, rest, 0), there, device))
        return (predicted[tuple(torch.from_numpy(pairs.T).to(device))] - target).square().mean()

    def _left(self, regions: Regions) -> tuple[Geometry, float, Square]:
        """The trunk, the deviation of connectivity, and what the trunk leaves as multiples of it, NaN: not known."""
        trunk = geometry_of(regions if self.keys.places else regions.with_(coordinates=None))
        pairs, values = known_pairs(regions)
        scale = float(values.std()) or 1.0
        return trunk, scale, matrix_of(regions, pairs, (values - trunk.at(regions, pairs)) / scale)

    # ------------------------------------------------------------------ predicting

    def _inputs(
        self,
        queries: Regions,
        keys: Regions,
        values: Square,
        known: Bool[np.ndarray, "n n"],
        device: torch.device | None = None,
    ) -> list[Tensor]:
        arrays = self.keys(queries), self.keys(keys), values, known
        return [torch.from_numpy(np.asarray(array, np.float32)).to(device or "cpu") for array in arrays]

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        queries, *rest = self._inputs(regions, self._train, self.values, self.known)
        blocks = torch.arange(len(regions)).split(TOGETHER)
        matrix = np.empty((len(regions), len(regions)))
        for a, rows in enumerate(blocks):
            for columns in blocks[a:] if not self.directed else blocks:
                both = torch.cat([rows, columns]) if rows is not columns else rows
                values = self.network(queries[both], *rest).double().numpy()
                matrix[np.ix_(rows, columns)] = values[: len(rows), -len(columns) :]
                if not self.directed:
                    matrix[np.ix_(columns, rows)] = values[: len(rows), -len(columns) :].T
        return matrix[tuple(pairs.T)] * self.scale + self.trunk.at(regions, pairs)

    @torch.no_grad()
    def read(self, regions: Regions) -> Float[np.ndarray, "regions known"]:
        """How much each region reads of each known one, in the order of their names; mean over heads, sums to 1."""
        queries, keys, _, _ = self._inputs(regions, self._train, self.values, self.known)
        return self.network.weights(queries, keys).mean(0).double().numpy()

    def slopes(self, regions: Regions) -> Float[np.ndarray, "regions genes"]:
        """The derivative of Pearson's r of the known pairs with respect to each standardised value of expression."""
        assert self.keys.components is not None
        pairs, values = known_pairs(regions)
        queries, *rest = self._inputs(regions, self._train, self.values, self.known)
        queries.requires_grad_()
        trunk = torch.from_numpy(self.trunk.at(regions, pairs) / self.scale)
        x = self.network(queries, *rest)[tuple(torch.from_numpy(pairs.T))].double() + trunk
        x, y = (v - v.mean() for v in (x, torch.from_numpy(values)))
        r = x @ y / (x.norm() * y.norm())
        (by_key,) = torch.autograd.grad(r, queries)
        axes = self.keys.components.axes
        return by_key[:, : axes.shape[1]].double().numpy() @ axes.T / self.keys.size

    # ------------------------------------------------------------------ on disk

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}

    @tensors.setter
    def tensors(self, tensors: dict[str, np.ndarray]) -> None:
        self._stored = tensors

    def _restored(self, train: Regions) -> None:
        self._train, self.history = train, []
        self.network = self._network(len(self._stored["read"]), 0)
        self.network.load_state_dict({name: torch.from_numpy(np.array(t)) for name, t in self._stored.items()})
        self.network.eval()
