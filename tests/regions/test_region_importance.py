"""The importance of genes: those that were planted."""

import pytest
from region_methods import brain_of

from omniset.regions.importance import gene_importance
from omniset.regions.set_attention import SetAttention


def test_the_planted_genes_are_important(monkeypatch):
    monkeypatch.setattr("omniset.regions.set_attention.STEPS", 20)
    regions = brain_of(67, genes=17, unknown=(), alike=3.0)
    attention = SetAttention()
    attention.held_out = "random"
    genes = gene_importance(regions, attention, 199, 0)
    assert set(genes["gene"].head(3)) == {"G0", "G1", "G2"}
    assert len(genes) == 17
    p = genes.set_index("gene")["p"]
    assert p[["G0", "G1", "G2"]].max() == 1 / 200
    with pytest.raises(ValueError, match="nulls must be >= 1, got 0"):
        gene_importance(brain_of(), SetAttention(), 0, 0)
