"""Scores of integration: against hand calculations, against loops over cells, and against scib-metrics where it is."""

import importlib
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2
from sklearn.metrics import f1_score

from omniset.cells import metrics
from omniset.cells.metrics import BATCH, BIO, fuzzy_graph, integration, kbet, lisi, neighbours, transfer


def cells_of(types=(37, 23, 31), batches=3, dim=5, apart=2.0, shift=0.7, seed=0):
    """Gaussian types, moved by batch; the last type is in two batches only."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(types)), types)
    batch = rng.integers(0, batches, len(labels))
    batch[labels == len(types) - 1] %= 2
    z = rng.normal(size=(len(labels), dim)) + apart * rng.normal(size=(len(types), dim))[labels]
    return z + shift * rng.normal(size=(batches, dim))[batch] + 1.0, labels, batch


def test_neighbours_are_those_of_all_distances():
    z, *_ = cells_of()
    found = neighbours(z, 11)
    distances = np.sqrt(np.square(z[:, None] - z[None]).sum(-1))
    expected = np.argsort(distances, 1)[:, :11]
    assert np.array_equal(found.indices, expected)
    assert np.allclose(found.distances, np.take_along_axis(distances, expected, 1), atol=1e-14)


def test_in_blocks_as_at_once(monkeypatch):
    z, _, batch = cells_of()
    whole = neighbours(z, 31)
    monkeypatch.setattr(metrics, "BLOCK", 7)
    parts = neighbours(z, 31)
    assert np.array_equal(parts.indices, whole.indices)
    assert np.array_equal(parts.distances, whole.distances)
    monkeypatch.setattr(metrics, "BLOCK", 13)
    some, graph = lisi(whole, batch), fuzzy_graph(whole)
    monkeypatch.setattr(metrics, "BLOCK", 10_000)
    assert np.allclose(some, lisi(whole, batch), atol=1e-4)  # a block stops when all its cells are within 1e-5
    assert abs(graph - fuzzy_graph(whole)).max() < 1e-4


def test_equal_cells_are_at_no_distance_and_a_cell_is_its_own_first():
    z = np.repeat(1e3 + np.random.default_rng(0).normal(size=(5, 3)), 7, axis=0)
    found = neighbours(z, 11)
    assert np.array_equal(found.indices[:, 0], np.arange(35))
    assert (found.distances[:, :7] == 0).all()
    assert (found.distances[:, 7:] > 0).all()
    assert all(len(set(row)) == 11 for row in found.indices)


def test_weights_of_lisi_have_the_entropy():
    z, _, batch = cells_of()
    near = neighbours(z, 31)
    found = lisi(near, batch)
    for i in range(0, len(z), 7):
        d, groups = near.distances[i, 1:] - near.distances[i, 1], batch[near.indices[i, 1:]]

        def entropy(beta, d=d):
            p = np.exp(-beta * d) / np.exp(-beta * d).sum()
            return -(p * np.log(np.maximum(p, 1e-300))).sum(), p

        low, high = 1e-6, 1e3
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if entropy(middle)[0] > np.log(10) else (low, middle)
        p = entropy(low)[1]
        expected = 1 / sum(p[groups == g].sum() ** 2 for g in range(3))
        assert found[i] == pytest.approx(expected, abs=1e-4)  # within the tolerance of the entropy, 1e-5


def test_lisi_scores_are_scaled():
    far = np.repeat(np.eye(2) * 1e3, 53, axis=0) + np.random.default_rng(0).normal(size=(106, 2))
    near = neighbours(far, 31)
    apart, mixed = np.repeat([0, 1], 53), np.arange(106) % 2
    assert metrics.clisi(near, apart) == pytest.approx(1)
    assert metrics.ilisi(near, apart) == pytest.approx(0)
    assert metrics.ilisi(near, mixed) > 0.7
    assert metrics.clisi(near, mixed) == pytest.approx(1 - metrics.ilisi(near, mixed))


def loops_of_silhouettes(distances, groups, between):
    """(b - a) / max(a, b), pair by pair."""
    found = []
    for i in range(len(groups)):
        same = [distances[i, j] for j in range(len(groups)) if groups[j] == groups[i] and j != i]
        if not same:
            found.append(0.0)
            continue
        others = [[distances[i, j] for j in np.flatnonzero(groups == g)] for g in set(groups) - {groups[i]}]
        b = min(np.mean(o) for o in others) if between == "nearest" else np.mean(np.concatenate(others))
        a = np.mean(same)
        found.append((b - a) / max(a, b))
    return np.array(found)


def test_silhouettes_and_isolated_labels():
    z, labels, batch = cells_of((17, 11, 7, 1))
    distances = np.sqrt(np.square(z[:, None] - z[None]).sum(-1))
    expected = loops_of_silhouettes(distances, labels, "nearest")
    widths, kept = metrics.silhouettes(z, labels, 0)
    assert np.allclose(widths, expected, atol=1e-7)
    assert np.array_equal(kept, np.arange(len(z)))
    batch[labels == 1] = 2
    assert metrics.isolated(labels, batch).tolist() == [False, True, False, True]
    expected = np.mean([(expected[labels == 1].mean() + 1) / 2, (expected[labels == 3].mean() + 1) / 2])
    assert metrics.isolated_labels(widths, labels, metrics.isolated(labels, batch)) == pytest.approx(expected)


def test_many_cells_are_sampled(monkeypatch):
    z, labels, _ = cells_of((401, 307))
    every, _ = metrics.silhouettes(z, labels, 0)
    monkeypatch.setattr(metrics, "SILHOUETTE_CELLS", 499)
    widths, kept = metrics.silhouettes(z, labels, 3)
    assert len(set(kept)) == len(widths) == 499
    assert np.allclose(widths, every[kept], atol=0.1)
    assert widths.mean() == pytest.approx(every.mean(), abs=0.02)
    assert np.array_equal(metrics.silhouettes(z, labels, 3)[1], kept)
    assert not np.array_equal(metrics.silhouettes(z, labels, 4)[1], kept)


def test_bras_without_pairs_is_bras_of_pairs():
    z, labels, batch = cells_of((19, 13, 11), seed=1)
    z[5] = 0
    norms = np.linalg.norm(z, axis=1)
    units = z / np.where(norms > 0, norms, 1)[:, None]
    distances = 1 - units @ units.T
    scores = []
    batch[labels == 1] = 1  # one batch: does not count
    for t in (0, 2):
        of = np.flatnonzero(labels == t)
        scores.append(1 - np.abs(loops_of_silhouettes(distances[np.ix_(of, of)], batch[of], "others")))
    assert metrics.bras(z, labels, batch) == pytest.approx(np.mean([s.mean() for s in scores]), abs=1e-12)
    assert np.isnan(metrics.bras(np.eye(3), np.zeros(3, dtype=np.int64), np.arange(3)))  # one cell in every batch


def test_kmeans_finds_what_is_apart():
    z, labels, _ = cells_of(apart=50.0, shift=0.0)
    assert metrics.kmeans(z, labels, 0) == (pytest.approx(1), pytest.approx(1))
    nmi, ari = metrics.kmeans(np.array([[0.0], [0.1], [10.0], [10.1]]), np.array([0, 1, 0, 1]), 0)
    assert nmi == pytest.approx(0)
    assert ari == pytest.approx(-0.5)  # of 6 pairs none is together in both; expected 2/3, largest 2


def test_graph_connectivity_by_hand():
    """Types on a line: 0 1 2 beside each other, 3 alone among others; arrows must go both ways."""
    indices = np.array([[0, 1], [1, 2], [2, 1], [3, 4], [4, 5], [5, 4]])
    near = metrics.Neighbours(indices, np.zeros((6, 2)))
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert metrics.graph_connectivity(near, labels) == pytest.approx((2 / 3 + 2 / 3) / 2)  # 0 -> 1 <-> 2; 3 -> 4 <-> 5
    assert metrics.graph_connectivity(near, np.array([0, 0, 0, 1, 0, 0])) == pytest.approx((2 / 5 + 1) / 2)


def test_fuzzy_graph_sums_to_the_log_of_its_neighbours():
    z, *_ = cells_of()
    z[7] = z[6]  # a pair at distance 0
    near = neighbours(z, 13)
    n, expected = len(z), np.zeros((len(z), len(z)))
    for i in range(n):
        d = near.distances[i, 1:]
        beyond = np.maximum(d - d[d > 0].min(), 0)
        low, high = 1e-9, 1e4
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if np.exp(-beyond / middle).sum() > np.log2(13) else (middle, high)
        expected[i, near.indices[i, 1:]] = np.exp(-beyond / low)
    expected = expected + expected.T - expected * expected.T
    found = fuzzy_graph(near).toarray()
    assert np.allclose(found, expected, atol=2e-5)
    assert (found.diagonal() == 0).all()
    assert found[6, 7] == 1


def test_diffusion_coordinates_by_dense_decomposition():
    z, *_ = cells_of()
    graph = fuzzy_graph(neighbours(z, 17))
    w = graph.toarray()
    kernel = w / np.outer(w.sum(0), w.sum(0))
    walk = kernel / np.sqrt(np.outer(kernel.sum(0), kernel.sum(0)))
    values, vectors = np.linalg.eigh(walk)
    chosen = np.argsort(-np.abs(values))[:19]
    weights = np.array([1.0 if v > 1 - 1e-9 else v / (1 - v) for v in values[chosen]])
    expected = vectors[:, chosen] * weights
    found = metrics.diffusion_coordinates(graph, 19)
    # Each is known but for its sign: products between cells are not.
    assert np.allclose(found @ found.T, expected @ expected.T, atol=1e-9)


def kbet_by_loops(z, labels, batch, k):
    """The mathematics with dense matrices and loops, for types in one component."""
    graph, scores = fuzzy_graph(neighbours(z, 50)).toarray(), []
    for t in np.unique(labels):
        of = np.flatnonzero(labels == t)
        coordinates = metrics.diffusion_coordinates(sp.csr_array(graph[np.ix_(of, of)]), min(100, len(of) - 1))
        accepted = 0
        for i in range(len(of)):
            nearest = np.argsort(np.square(coordinates - coordinates[i]).sum(1), kind="stable")[: k + 1]
            statistic = 0.0
            for b in set(batch[of]):
                expected = (batch[of] == b).mean() * (k + 1)
                statistic += ((batch[of][nearest] == b).sum() - expected) ** 2 / expected
            accepted += chi2.sf(statistic, len(set(batch[of])) - 1) >= 0.05
        scores.append(accepted / len(of))
    return np.mean(scores)


def test_kbet_is_its_formula():
    # Sizes ascend with the sorted names, but for the first: 100 components, then no more than 96.
    z, labels, batch = cells_of((97, 101, 103), batches=2, shift=0.4)
    found = kbet(neighbours(z, 50), labels, batch)
    # (97, 101, 103) cells in 2 batches: a quarter of the mean is 12.
    assert 0.05 < found < 0.95
    assert found == pytest.approx(kbet_by_loops(z, labels, batch, 12), abs=0.02)
    one = z[labels == 1], np.zeros(101, dtype=np.int64), batch[labels == 1]
    assert kbet(neighbours(one[0], 50), *one[1:]) == pytest.approx(kbet_by_loops(*one, 12))


def test_kbet_tells_mixed_from_apart_and_leaves_out_what_it_cannot_test():
    rng = np.random.default_rng(0)
    z, labels = rng.normal(size=(211, 3)), np.zeros(211, dtype=np.int64)
    near = neighbours(z, 50)
    assert kbet(near, labels, rng.integers(0, 2, 211)) > 0.85
    assert kbet(near, labels, (z[:, 0] > 0).astype(np.int64)) < 0.5
    assert np.isnan(kbet(near, labels, labels))
    few = np.where(np.arange(211) < 9, 1, 0)
    batch = np.where(few == 1, np.arange(211) % 2, 0)
    assert np.isnan(kbet(near, few, batch))  # 9 cells in two batches, 202 in one


def test_kbet_of_torn_types():
    """Components of at least 3 k cells count if they have three quarters of the type."""
    rng = np.random.default_rng(1)
    batch = rng.integers(0, 2, 160)

    def of(sizes):
        where = np.repeat(np.arange(len(sizes)) * 1e4, sizes)[:, None]
        near = neighbours(rng.normal(size=(160, 2)) + where, 11)
        return kbet(near, np.zeros(160, dtype=np.int64), batch)

    # 80 cells a batch: k is 20, and a component has to have 60.
    assert of([75, 85]) > 0.5
    assert of([125, 35]) > 0.5
    assert of([115, 45]) == 0  # 72 %
    assert of([40, 40, 40, 40]) == 0


def test_explained_is_regression_on_all_components():
    z, _, batch = cells_of()
    centred = z - z.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    components, design = u * s, np.eye(3)[batch]
    residual = components - design @ np.linalg.lstsq(design, components, rcond=None)[0]
    r2 = 1 - np.square(residual).sum(0) / np.square(components).sum(0)
    assert metrics.explained(z, batch) == pytest.approx((r2 * s**2).sum() / (s**2).sum(), abs=1e-12)


def test_pcr_comparison_by_hand():
    batch = np.array([0, 0, 1, 1])
    before = np.array([[0.0], [1.0], [3.0], [4.0]])  # total 10, between 9
    after = np.array([[0.0], [1.0], [1.0], [2.0]])  # total 2, between 1
    assert metrics.explained(before, batch) == pytest.approx(0.9)
    assert metrics.pcr_comparison(before, after, batch) == pytest.approx((0.9 - 0.5) / 0.9)
    assert metrics.pcr_comparison(after, before, batch) == 0
    assert metrics.pcr_comparison(before, np.ones((4, 2)), batch) == 1
    assert np.isnan(metrics.pcr_comparison(np.array([[0.0], [1.0], [0.0], [1.0]]), after, batch))


def test_all_scores_are_means_of_their_parts():
    z, labels, batch = cells_of()
    found = integration(z, labels, batch, z + batch[:, None] * 1.0)
    assert list(found) == [*BIO, *BATCH, "bio", "batch", "total"]
    assert all(0 <= v <= 1 for v in found.values())
    assert found["bio"] == pytest.approx(np.mean([found[k] for k in BIO]))
    assert found["batch"] == pytest.approx(np.mean([found[k] for k in BATCH]))
    assert found["total"] == pytest.approx(0.6 * found["bio"] + 0.4 * found["batch"])


NAMES = np.array(["a", "b", "c"], dtype=object)


def test_order_of_cells_and_names_of_batches_do_not_matter():
    z, labels, batch = cells_of()
    found = integration(z, NAMES[labels], batch, z**2)
    order = np.random.default_rng(0).permutation(len(z))
    other = integration(z[order], NAMES[labels][order], NAMES[::-1][batch][order], z[order] ** 2)
    for name, value in found.items():
        assert other[name] == pytest.approx(value, abs=1e-4), name


def test_cells_without_a_label_count_for_the_mixing_of_all_only():
    z, labels, batch = cells_of()
    names = NAMES[labels]
    known = np.arange(len(z)) % 5 != 0
    some = names.copy()
    some[~known] = np.where(np.arange((~known).sum()) % 2, None, np.nan)
    found = integration(z, some, batch, z**2)
    without = integration(z[known], names[known], batch[known], z[known])
    for name in set(BIO) | {"bras", "kbet", "graph_connectivity"}:
        assert found[name] == without[name], name
    everyone = integration(z, names, batch, z**2)
    assert (found["ilisi"], found["pcr_comparison"]) == (everyone["ilisi"], everyone["pcr_comparison"])
    assert found["ilisi"] != without["ilisi"]


def test_one_batch_has_no_batch_scores():
    z, labels, batch = cells_of()
    found = integration(z, labels, np.zeros_like(batch), z)
    assert all(np.isnan(found[name]) for name in BATCH)
    assert found["total"] == found["bio"]
    assert np.isfinite(found["bio"])


@pytest.mark.parametrize("label", [None, "same"])
def test_without_types_there_is_no_bio_and_no_total(label):
    z, _, batch = cells_of()
    found = integration(z, np.full(91, label, dtype=object), batch, z + batch[:, None])
    assert all(np.isnan(found[name]) for name in BIO)
    assert np.isnan(found["total"])
    assert np.isfinite([found["ilisi"], found["pcr_comparison"], found["batch"]]).all()
    assert np.isfinite(found["bras"]) == np.isfinite(found["kbet"]) == (label is not None)


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 11])
def test_few_cells(cells):
    z, labels, batch = cells_of((4, 3, 4))
    found = integration(z[:cells], labels[:cells], batch[:cells], z[:cells])
    assert all(np.isnan(v) or -1 <= v <= 1 + 1e-12 for v in found.values())


def test_equal_cells_tell_nothing_apart():
    _, labels, batch = cells_of()
    found = integration(np.full((91, 3), 0.3), labels, batch, np.eye(3)[batch])
    assert found["kmeans_ari"] == found["kmeans_nmi"] == 0
    assert found["silhouette_label"] == pytest.approx(0.5)
    assert found["bras"] == 1
    assert found["pcr_comparison"] == 1


def test_transfer_votes_and_draws_a_line():
    train, new = np.array([[0.0], [1.0], [2.0], [10.0], [11.0]]), np.array([[0.5], [10.4], [5.0], [9.0]])
    labels, truth = np.array([*"aaabb"]), np.array(["a", "b", "b", "never seen"])
    found = transfer(train, labels, new, truth, k=3)
    # By 3 neighbours: a; b b a -> b; 5.0 has 2, 1, 0 (a; 10 is as far as 0, which comes first); b.
    assert found["knn_accuracy"] == 0.5
    assert found["knn_f1"] == pytest.approx(f1_score([0, 1, 1, 2], [0, 1, 0, 1], average="macro"))
    assert found["linear_accuracy"] in (0.5, 0.75)
    assert transfer(train, labels, new[:2], truth[:2]) == {  # all five vote: a
        "knn_f1": pytest.approx(1 / 3),
        "knn_accuracy": 0.5,
        "linear_f1": 1.0,
        "linear_accuracy": 1.0,
    }


def test_transfer_leaves_out_missing_labels_and_standardises():
    z, labels, _ = cells_of((53, 47))
    names = np.array(["a", "b"], dtype=object)[labels]
    names[::7] = None
    known = np.array([n is not None for n in names])
    found = transfer(z, names, z + 0.1, names)
    assert found == transfer(z[known], names[known], z[known] + 0.1, names[known])
    scaled = transfer(z * [1, 1e3, 1, 1, 1e-3], names, (z + 0.1) * [1, 1e3, 1, 1, 1e-3], names)
    assert scaled["linear_f1"] == pytest.approx(found["linear_f1"])
    assert scaled["knn_f1"] != found["knn_f1"]
    one = transfer(z, np.full(100, "a"), z, np.array(["a", "b"])[labels])
    assert one["knn_accuracy"] == one["linear_accuracy"] == 0.53


@pytest.fixture
def scib():
    """In double precision."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # It compiles for longer than it computes. (jax reads this once, when it is first used.)
        patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
        warnings.filterwarnings("ignore", "Tensorflow not installed", ImportWarning)  # umap
        found = pytest.importorskip("scib_metrics")
        jax = importlib.import_module("jax")
        jax.devices()
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield found
    jax.config.update("jax_enable_x64", before)


@pytest.mark.slow  # to import and to compile all of it takes most of a minute
def test_as_scib_metrics(scib, monkeypatch):
    z, labels, batch = cells_of((97, 10, 61), shift=1.0)
    reference = z + batch[:, None] * np.linspace(2, 5, z.shape[1])
    from scib_metrics import nearest_neighbors
    from scib_metrics.utils import _diffusion_nn

    def theirs(near):
        return nearest_neighbors.NeighborsResults(indices=near.indices.astype(np.int32), distances=near.distances)

    class Exact:  # its neighbours of diffusion are approximate
        NeighborsResults = nearest_neighbors.NeighborsResults

        @staticmethod
        def pynndescent(points, n_neighbors):
            return theirs(neighbours(points.astype(np.float64), int(n_neighbors)))

    monkeypatch.setattr(_diffusion_nn, "nearest_neighbors", Exact)
    near = neighbours(z, 90)
    found = integration(z, labels, batch, reference)
    expected = {
        "clisi": scib.clisi_knn(theirs(near), labels),
        "ilisi": scib.ilisi_knn(theirs(near), batch),
        "graph_connectivity": scib.graph_connectivity(theirs(near.first(15)), labels),
        "silhouette_label": scib.silhouette_label(z, labels),
        "isolated_labels": scib.isolated_labels(z, labels, batch),
        "bras": scib.bras(z, labels, batch),
        "pcr_comparison": scib.pcr_comparison(reference, z, batch, categorical=True),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-6), name
    # Its graph is of single precision: a cell at the edge of acceptance or of a neighbourhood may fall to either side.
    assert found["kbet"] == pytest.approx(scib.kbet_per_label(theirs(near.first(50)), batch, labels), abs=0.005)
