"""Every method that completes genomes: what all of them hold, then each against its mathematics in float64."""

import itertools

import genome_oracle as oracle
import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from genome_oracle import COUNTS, FAMILIES, REFERENCES, genomes_of_all_sizes, observed_of, some_counts, suite_of

from omniset.genomes.baselines import CERTAIN, principal_directions
from omniset.genomes.noise import Observed
from omniset.genomes.references import References
from omniset.genomes.seed import SeedModel
from omniset.genomes.training import MEAN_OF

ALL = (*oracle.UNTRAINED, *oracle.TRAINED)


def row(observed, i):
    return rows(observed, [i])


def rows(observed, some):
    parts = (observed.counts, observed.completeness, observed.contamination, observed.excluded)
    return Observed(*(None if part is None else part[some] for part in parts))


# ---------------------------------------------------------------------- what all methods hold


def assert_no_batch_mates(method, observed):
    together = method(observed)
    for i in range(len(observed)):
        alone = method(row(observed, i))
        assert (alone[0] - together[i]).abs().max() <= 1e-10, f"genome {i}"
    some = [7, 2, 3]  # other mates, another order
    assert (method(rows(observed, some)) - together[some]).abs().max() <= 1e-10


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_prediction_does_not_depend_on_batch_mates(suite, name):
    assert_no_batch_mates(suite[name], genomes_of_all_sizes())
    assert_no_batch_mates(suite[name], oracle.unknown_quality(genomes_of_all_sizes()))


def seed_of(seeds):
    torch.manual_seed(0)
    method = SeedModel(oracle.noise_of(COUNTS), FAMILIES, dim=6, num_heads=2, seeds=seeds).double()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    return method.eval()


@pytest.mark.parametrize("name", [n for n in ALL if n != "as-is"])
@torch.no_grad()
def test_an_empty_genome_gets_exactly_the_prior(suite, name):
    method = suite[name]
    expected = torch.as_tensor(np.log(oracle.prevalence(COUNTS) / (1 - oracle.prevalence(COUNTS))))
    among = method(genomes_of_all_sizes())
    assert torch.equal(among[3], method.noise.prior())
    assert torch.allclose(among[3], expected)
    for observed in (oracle.unknown_quality(genomes_of_all_sizes()), genomes_of_all_sizes(False)):
        assert torch.equal(method(row(observed, 3))[0], method.noise.prior())
    no_genomes = method(Observed(torch.zeros(0, FAMILIES).double(), *torch.zeros(2, 0).double()))
    assert no_genomes.shape == (0, FAMILIES)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("name", oracle.TRAINED)
def test_gradients_are_finite(name, told):
    """With an empty genome, with one all of whose references are excluded, and with both."""
    method = suite_of([name])[name].train()
    observed = genomes_of_all_sizes() if told else oracle.unknown_quality(genomes_of_all_sizes())
    observed.excluded[:2] = True
    observed.excluded[3] = True
    for some in (observed, row(observed, 0), row(observed, 3)):
        method.zero_grad()
        out = method(some)
        assert out.isfinite().all()
        out.square().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_nothing_is_nan_without_references(suite, name):
    observed = genomes_of_all_sizes()
    observed.excluded[:] = True
    assert suite[name](observed).isfinite().all()
    assert suite[name](oracle.unknown_quality(observed)).isfinite().all()


@pytest.mark.parametrize("name", oracle.TRAINED)
def test_every_parameter_is_trained(name):
    method = suite_of([name])[name]
    torch.stack(method.learned(genomes_of_all_sizes())).square().sum().backward()
    unused = [n for n, p in method.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # a key's bias shifts all scores of a query alike
    assert [n for n in unused if not n.endswith("key.bias")] == []


def permuted(tensor, order):
    """By the families of an axis, behind which a quality may stand."""
    for axis, size in enumerate(tensor.shape):
        if size in (FAMILIES, FAMILIES + 2):
            tensor = tensor.index_select(axis, torch.cat([order, torch.arange(FAMILIES, size)]))
    return tensor


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_the_order_of_the_vocabulary_means_nothing(name):
    """In float32, as users have it."""
    names = [name] if name in oracle.TRAINED else []
    one, other = (suite_of(names, double=False)[name] for _ in range(2))
    order = torch.randperm(FAMILIES)
    moved = {k: permuted(v, order) for k, v in one.state_dict().items()}
    assert sum(not torch.equal(v, moved[k]) for k, v in one.state_dict().items()) > 1
    other.load_state_dict(moved)
    observed = genomes_of_all_sizes()
    told = [v.float() for v in (observed.counts, observed.completeness, observed.contamination)]
    for quality in (told[1:], [torch.full((11,), torch.nan)] * 2):
        expected = one(Observed(told[0], *quality, observed.excluded))[:, order]
        found = other(Observed(told[0][:, order], *quality, observed.excluded))
        assert (torch.sigmoid(found) - torch.sigmoid(expected)).abs().max() <= 1e-5
        # Log-odds of shares that are nearly 1 magnify their rounding.
        assert (found - expected).abs().max() <= 3e-5 * expected.abs().max()


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("as-is", "prevalence", "seed")])
@torch.no_grad()
def test_the_noise_level_is_told(suite, name):
    """And where it is not, it is estimated."""
    method, seen = suite[name], some_counts(5, seed=5)
    at = [method(observed_of(seen, *quality)) for quality in ((0.6, 0.02), (0.95, 0.02), (0.95, 0.1))]
    assert (at[0] - at[1]).abs().amax(1).min() > 1e-3
    assert (at[1] - at[2]).abs().amax(1).min() > 1e-3
    c, q = method.noise.estimate(torch.from_numpy(seen).double())
    found = method(oracle.unknown_quality(observed_of(seen)))
    settled = Observed(torch.from_numpy(seen).double(), c, q)
    assert torch.equal(found, method.log_odds(settled, torch.zeros(5, 2).double()))
    # The default is told whether quality was given, the others are told estimates as if they were.
    assert torch.equal(found, method(settled)) == (name != "evidence")


# ---------------------------------------------------------------------- references


def references_of(counts):
    found = References(len(counts), counts.shape[1])
    found.fit(sp.csr_array(counts))
    return found


def hidden(shape, share=0.4, seed=3):
    return torch.as_tensor(np.random.default_rng(seed).random(shape) < share)


@pytest.mark.parametrize("quality", [None, (1.0, 0.0), (0.7, 0.05), (0.2, 0.1), (0.0, 0.0)])
def test_similarity_by_hand(quality):
    """Of what was observed; and of the complete genome, as its quality tells."""
    seen, excluded = some_counts(7, seed=8), hidden((7, 29))
    seen[1], seen[2] = 0, 3
    references, observed = references_of(COUNTS), observed_of(seen, *(quality or (1.0, 0.0)), excluded)
    if quality is None:
        found = references.similarity(observed)
    else:
        found = references.corrected_similarity(observed, suite_of([]).noise)
        missed, _ = oracle.rates(COUNTS, *quality)
    for i, r in itertools.product(range(7), range(29)):
        expected = oracle.corrected(seen[i], COUNTS[r], missed) if quality else oracle.jaccard(seen[i], COUNTS[r])
        expected = -1.0 if excluded[i, r] else expected
        assert float(found[i, r]) == pytest.approx(expected, rel=1e-5 if quality else 1e-12)
    assert found.max() <= 1


@pytest.mark.parametrize("number", [1, 7, 15, 29])
def test_neighbours_by_hand(number):
    seen, references = some_counts(7, seed=8), COUNTS[:number]
    p = oracle.prevalence(COUNTS)
    excluded = hidden((7, number))
    excluded[2], excluded[3] = True, False  # none is left; all are
    excluded[4] = torch.arange(number) > 4  # fewer than 15
    found = references_of(references).neighbours(observed_of(seen, excluded=excluded), torch.as_tensor(p)).numpy()
    for i in range(7):
        allowed = ~excluded[i].numpy()
        if not tied(seen[i], references, allowed):  # of ties below
            assert np.allclose(found[i], oracle.neighbours(seen[i], references, allowed, p), atol=1e-12)
    assert sum(tied(seen[i], references, ~excluded[i].numpy()) for i in range(7)) < 3
    assert np.allclose(found[2], p)


def tied(seen, references, allowed):
    """Whether the 15th and the 16th reference are equally near."""
    order = sorted(-oracle.jaccard(seen, r) for r, may in zip(references, allowed, strict=True) if may)
    return len(order) > 15 and order[14] == order[15]


def test_ties_of_neighbours():
    """Of equally near references any may be taken, but exactly 15, and the nearer ones first."""
    one = np.zeros((20, FAMILIES), dtype=int)
    one[:, :5] = 1
    one[np.arange(20), 10 + np.arange(20)] = 1  # each with a family of its own
    near = np.zeros((3, FAMILIES), dtype=int)
    near[:, :5], near[:, 7] = 1, 1
    seen = np.zeros((1, FAMILIES), dtype=int)
    seen[0, [0, 1, 2, 3, 4, 7]] = 1
    p = torch.full((FAMILIES,), 0.25).double()
    found = references_of(np.concatenate([one, near])).neighbours(observed_of(seen), p)[0] * 16 - 0.25
    assert torch.allclose(found[:5], torch.tensor(15.0).double())
    assert found[7] == pytest.approx(3)
    assert sorted(found[10:30].round().tolist()) == [0.0] * 8 + [1.0] * 12


def shares_of(references, observed, evidence, prevalence, sharpness):
    """(likeliest, kernels) of some references."""
    p, sharp = (torch.as_tensor(x, dtype=torch.float64) for x in (prevalence, sharpness))
    likelihood = references.likelihood(observed, evidence)
    return references.likeliest(observed, likelihood, p), references.kernels(observed, likelihood, p, sharp)


@pytest.mark.parametrize("sharp", [0.0, 0.3, 1.0, 40.0])
def test_shares_by_likelihood_by_hand(sharp):
    p, seen = oracle.prevalence(COUNTS), some_counts(7, seed=8)
    excluded = hidden((7, 29))
    excluded[2] = True
    excluded[4] = torch.arange(29) > 4  # fewer than 15
    llr = np.array([oracle.evidence(COUNTS, s > 0, 0.7, 0.05) for s in seen])
    observed = observed_of(seen, excluded=excluded)
    near, found = shares_of(references_of(COUNTS), observed, torch.as_tensor(llr), p, [sharp, 0.1])
    assert found.shape == (7, FAMILIES, 2)
    for i in range(7):
        allowed = ~excluded[i].numpy()
        assert np.allclose(near[i], oracle.likeliest(llr[i], COUNTS, allowed, p), atol=1e-9)
        for j, s in enumerate((sharp, 0.1)):
            assert np.allclose(found[i, :, j], oracle.kernel(llr[i], COUNTS, allowed, p, s), atol=1e-6)
    assert np.allclose(found[2, :, 0], p)
    assert np.allclose(near[2], p)
    # Sharpness 0: all references alike, so many as there are.
    _, everyone = shares_of(references_of(COUNTS), observed_of(seen), torch.as_tensor(llr), p, [0.0])
    assert np.allclose(everyone[0, :, 0], ((COUNTS > 0).sum(0) + p) / 30)


def test_kernels_are_posteriors():
    """Sharpness 1: a reference counts by the likelihood of what was seen, had the genome its families."""
    counts, seen = COUNTS[:5], some_counts(1, seed=8)[0] > 0
    missed, foreign = oracle.rates(COUNTS, 0.7, 0.05)
    likelihood = []
    for reference in counts > 0:
        chance = np.where(reference, np.where(seen, 1 - missed, missed), np.where(seen, foreign, 1 - foreign))
        likelihood.append(chance.prod())
    posterior = np.array(likelihood) / sum(likelihood)
    number = 1 / (posterior**2).sum()
    p = oracle.prevalence(COUNTS)
    expected = (number * posterior @ (counts > 0) + p) / (number + 1)
    observed = observed_of(seen[None], 0.7, 0.05)
    llr = suite_of([]).noise.evidence(observed)
    _, found = shares_of(references_of(counts), observed, llr, p, [1.0])
    assert np.allclose(found[0, :, 0], expected, rtol=1e-5)


def test_gradients_of_shares():
    references = references_of(COUNTS[:5, :7])
    excluded = torch.tensor([[True, False, False, True, False], [True] * 5])
    observed = observed_of(COUNTS[:2, :7], excluded=excluded)
    llr = torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    sharp = torch.tensor([0.2, 1.3], dtype=torch.float64, requires_grad=True)
    p = torch.full((7,), 0.3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda e, s: shares_of(references, observed, e, p, s), (llr, sharp))


def by_hand(name, method, seen, c, q):
    """Log-odds of one genome."""
    there, p = seen > 0, oracle.prevalence(COUNTS)
    prior, llr = np.log(p / (1 - p)), oracle.evidence(COUNTS, seen > 0, c, q)
    weights = {k: v.numpy() for k, v in method.state_dict().items()}
    if name == "as-is":
        return np.where(there, CERTAIN, -CERTAIN)
    if name == "prevalence":
        return prior
    if name == "prevalence-bayes":
        return prior + llr
    if name == "knn":
        return oracle.logit(oracle.neighbours(seen, REFERENCES, [True] * len(REFERENCES), p)) + llr
    if name == "knn-likelihood":
        return oracle.logit(oracle.likeliest(llr, REFERENCES, [True] * len(REFERENCES), p)) + llr
    if name == "autoencoder":
        hidden = weights["encoder.0.weight"] @ np.append(there, [c, q]) + weights["encoder.0.bias"]
        return weights["decoder.weight"] @ np.maximum(hidden, 0) + weights["decoder.bias"]
    scores = (there - c * p) @ weights["components"] / weights["spread"]
    return weights["regression.weight"] @ scores + weights["regression.bias"] + llr


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("evidence", "seed")])
@torch.no_grad()
def test_baselines_by_hand(suite, name):
    seen = np.array([s for s in some_counts(17, seed=6) if not tied(s, REFERENCES, [True] * len(REFERENCES))][:5])
    observed = observed_of(seen)
    found = suite[name](observed)
    assert len(seen) == 5
    for i in range(5):
        quality = float(observed.completeness[i]), float(observed.contamination[i])
        assert np.allclose(found[i], by_hand(name, suite[name], seen[i], *quality), rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_the_mean_is_that_of_three_others():
    suite, observed = suite_of([*MEAN_OF[1:], "mean"]), genomes_of_all_sizes()
    expected = sum(suite[name](observed) for name in ("knn-likelihood", "pca", "autoencoder")) / 3
    assert torch.allclose(suite["mean"](observed), expected, rtol=1e-12)
    assert not [*suite["mean"].parameters()]  # their weights are stored once


def test_directions_of_a_large_table_are_those_of_the_whole():
    """Lanczos iterations on the sparse table, without its mean, against a decomposition of the centred one."""
    counts = some_counts(131, families=151, clades=11)
    values, directions = principal_directions(sp.csr_array(counts), 5)
    present = (counts > 0).astype(float)
    _, expected, vectors = np.linalg.svd(present - present.mean(0), full_matrices=False)
    assert np.allclose(values, expected[:5], rtol=1e-4)
    assert np.allclose(np.abs((directions * vectors[:5]).sum(1)), 1, atol=1e-3)


def test_principal_components_are_those_of_the_covariance():
    method = suite_of(["pca"], random=False)["pca"]
    present = (COUNTS > 0).astype(float)
    values, vectors = np.linalg.eigh(np.cov(present.T, bias=True))
    rank = len(COUNTS) - 1  # the last is 0: centred
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    found = method.components.numpy()[:, :rank]
    assert np.allclose(method.spread.numpy()[:rank], np.sqrt(values), rtol=1e-4)
    assert np.allclose(np.abs((found * vectors).sum(0)), 1, atol=1e-3)
    scores = (present - present.mean(0)) @ found / np.sqrt(values)
    assert np.allclose(scores.std(0), 1, rtol=1e-3)
    assert not method.components[:, rank:].any()
    # Before training it is prevalence + Bayes.
    observed = observed_of(some_counts(3, seed=9))
    assert torch.allclose(method(observed), suite_of([])["prevalence-bayes"](observed), atol=1e-6)


def document(method, seen, heads, dim):
    """seeds/000 in PyTorch's own functions, one genome without padding."""
    w = dict(method.state_dict())
    which = torch.as_tensor(seen > 0).nonzero()[:, 0]

    def attention(queries, elements, at):
        parts = [f"{at}.{part}" for part in ("query", "key", "value")]
        inside = [torch.cat([w[f"{p}.{kind}"] for p in parts]) for kind in ("weight", "bias")]
        outside = w[f"{at}.output.weight"], w[f"{at}.output.bias"]
        sizes = dim, heads, *inside, None, None, False, 0.0, *outside
        return F.multi_head_attention_forward(queries, elements, elements, *sizes, need_weights=False)[0]

    def norm(x, at):
        return F.layer_norm(x, (dim,), w[f"{at}.weight"], w[f"{at}.bias"])

    noisy_count = (torch.as_tensor(seen)[which] > 0).double()[:, None]
    x = F.embedding(which, w["tokens.family.weight"])
    x = x + F.linear(noisy_count, w["tokens.count.weight"], w["tokens.count.bias"])
    local = x.mean(0)
    for layer in range(2):
        at = f"encoder.layers.{layer}.block"
        x = norm(x + attention(x, x, at), f"{at}.norm_attention")
        feed = F.linear(x, w[f"{at}.ffn.0.weight"], w[f"{at}.ffn.0.bias"]).relu()
        x = norm(x + F.linear(feed, w[f"{at}.ffn.2.weight"], w[f"{at}.ffn.2.bias"]), f"{at}.norm_ffn")
    seeds = w["encoder.pool.points"][0]
    pooled = norm(seeds + attention(seeds, x, "encoder.pool.gather"), "encoder.pool.gather.norm_attention")
    combined = torch.cat([pooled.flatten(), local])
    hidden = F.linear(combined, w["decoder.0.weight"], w["decoder.0.bias"]).relu()
    return F.linear(hidden, w["decoder.2.weight"], w["decoder.2.bias"])


@pytest.mark.parametrize("outputs", [1, 3])
@torch.no_grad()
def test_the_seed_is_its_document(outputs):
    method = seed_of(outputs)
    observed = genomes_of_all_sizes()
    found = method(observed)
    for i in range(len(observed)):
        if i != 3:
            expected = document(method, observed.counts[i].numpy(), heads=2, dim=6)
            assert (found[i] - expected).abs().max() <= 1e-10
    names = {n.split(".", 1)[1] for n in method.state_dict() if n.startswith("encoder.pool")}
    assert not [n for n in names if "ffn" in n]  # PMA as written has none
    copies = Observed(observed.counts * 3, observed.completeness, observed.contamination)
    assert torch.equal(method(copies), found)  # counts are thresholded
