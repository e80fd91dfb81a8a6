"""The importance of genes: those that were planted, sets of genes, and their files."""

import numpy as np
import pytest
from region_methods import brain_of

from omniset.regions.importance import _tables, gene_importance, read_gmt
from omniset.regions.set_attention import SetAttention


def test_the_planted_genes_are_important(monkeypatch):
    monkeypatch.setattr("omniset.regions.set_attention.STEPS", 20)
    regions = brain_of(67, genes=17, unknown=(), alike=3.0)
    attention = SetAttention()
    attention.held_out = "random"
    sets = {"planted": ["G0", "G1", "G2"], "none": ["G7", "G8", "G9", "absent"], "small": ["G0", "nowhere"]}
    genes, of_sets = gene_importance(regions, attention, 199, 0, sets)
    assert set(genes["gene"].head(3)) == {"G0", "G1", "G2"}
    assert len(genes) == 17
    p = genes.set_index("gene")["p"]
    assert p[["G0", "G1", "G2"]].max() == 1 / 200
    assert of_sets["set"].tolist() == ["planted", "none"]
    assert of_sets["genes"].tolist() == [3, 3]
    assert of_sets["p"][0] == 1 / 200
    assert of_sets["importance"][0] == pytest.approx(genes["importance"].head(3).mean())


def test_p_of_sets_keeps_how_genes_vary_together():
    """Two sets of equal importance; the genes of one are one gene five times, whose mean varies as much as each."""
    rng = np.random.default_rng(0)
    nulls = rng.normal(size=(999, 10))
    nulls[:, 5:] = nulls[:, 5:6]
    genes = [f"g{i}" for i in range(10)]
    _, sets = _tables(genes, np.full(10, 1.0), nulls, {"apart": genes[:5], "together": genes[5:]})
    p = sets.set_index("set")["p"]
    assert p["apart"] == pytest.approx((1 + (nulls[:, :5].mean(1) >= 1).sum()) / 1000)
    assert p["together"] > 3 * p["apart"]
    with pytest.raises(ValueError, match="none of the 1 gene sets has 3 genes"):
        _tables(genes, np.ones(10), nulls, {"a": ["x"]})
    with pytest.raises(ValueError, match="nulls must be >= 1, got 0"):
        gene_importance(brain_of(), SetAttention(), 0, 0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tabout\n", "line 1: must have a name"),
        ("a\tabout\tG1\n\na\tabout\tG2\n", "line 3: the set 'a' is there more than once"),
        ("\n", "has no sets"),
    ],
)
def test_bad_gmt(tmp_path, text, message):
    path = tmp_path / "sets.gmt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_gmt(path)
    path.write_bytes(b"a\tb\t\xff")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_gmt(path)
    path.write_text("a\thttp://x\tG1\t G2\t\r\n")
    assert read_gmt(path) == {"a": ["G1", "G2"]}
