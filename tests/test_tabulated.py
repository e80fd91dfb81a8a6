"""Sets of rows of one table: one product for many sets is what the attention block computes for each."""

import pytest
import torch

from omniset.core.attention import AttentionState
from omniset.layers.universal import AttentionBlock, attention_block
from omniset.testing import relative_error
from oracle import lee, msab, repeat

SETS, QUERIES, ROWS, DIM, HEADS = 5, 3, 13, 14, 7
BLOCKS = {
    "pre": {"ffn_dim": 11, "norm": "pre"},
    "post": {"ffn_dim": 11, "norm": "post"},
    "no FFN": {"ffn_dim": 0},
    "lee": {"variant": "lee", "norm": "none"},
    "lee post": {"variant": "lee", "norm": "post"},
}
EMPTY = 2


@pytest.fixture(params=BLOCKS.values(), ids=list(BLOCKS))
def block(request) -> AttentionBlock:
    """All parameters away from their start, so that none can be forgotten."""
    made = attention_block(DIM, HEADS, **request.param).double()
    for parameter in made.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def fractions():
    """Multiplicities of five sets: some rows are absent, one set is empty."""
    m = torch.rand(SETS, ROWS, dtype=torch.float64) * 3 + 0.1
    m[torch.rand(SETS, ROWS) < 0.3] = 0
    m[EMPTY] = 0
    m[0, :2] = torch.tensor([0.0, 1.7])
    return m


def oracle(block, queries, elements, weights=None):
    return (msab if hasattr(block, "output") else lee)(block, queries, elements, weights)


def gradients(found, inputs, block, upstream):
    return torch.autograd.grad((found * upstream).sum(), [*inputs, *block.parameters()])


def test_outputs_and_gradients_are_those_of_forward_and_of_merged_shards(block):
    queries, table, upstream = draw(QUERIES, DIM), draw(ROWS, DIM), draw(SETS, QUERIES, DIM)
    inputs = [queries.requires_grad_(), table.requires_grad_()]
    m = fractions()
    elements = table.expand(SETS, -1, -1)
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    assert found.shape == (SETS, QUERIES, DIM)
    state = None
    for shard in (slice(0, 2), slice(2, 9), slice(9, ROWS)):
        part = block.reduce(queries[None], elements[:, shard], m[:, shard])
        state = part if state is None else state.merge(part)
    assert isinstance(state, AttentionState)
    own = gradients(found, inputs, block, upstream)
    for expected in (block(queries[None], elements, m), block.finish(queries[None], state)):
        assert relative_error(found, expected) < 1e-12
        for one, other in zip(own, gradients(expected, inputs, block, upstream), strict=True):
            # The gradient of the keys' bias is 0: no score depends on it but for a constant of each query.
            assert relative_error(one, other) < 1e-12 or max(one.abs().max(), other.abs().max()) < 1e-12


def test_gradients_of_multiplicities(block):
    queries, table, upstream = draw(QUERIES, DIM), draw(ROWS, DIM), draw(SETS, QUERIES, DIM)
    m = fractions()
    m[EMPTY] = 0.5
    m.requires_grad_()
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    (own,) = torch.autograd.grad((found * upstream).sum(), m)
    (expected,) = torch.autograd.grad((block(queries[None], table.expand(SETS, -1, -1), m) * upstream).sum(), m)
    assert relative_error(own[m > 0], expected[m > 0]) < 1e-12


def test_against_the_oracle_one_set_at_a_time(block):
    queries, table, m = draw(QUERIES, DIM), draw(ROWS, DIM), fractions()
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    for b in range(SETS):
        here = m[b] > 0
        expected = oracle(block, queries, table[here], m[b, here])  # absent rows are not even there
        assert relative_error(found[b], expected) < 1e-12
    assert not torch.allclose(found[0], found[1])


def test_whole_numbers_are_repetitions(block):
    queries, table = draw(QUERIES, DIM), draw(ROWS, DIM)
    counts = torch.randint(0, 5, (SETS, ROWS))
    found = block.attend_tabulated(queries, block.tabulate(queries, table), counts.double())
    for b in range(SETS):
        assert relative_error(found[b], oracle(block, queries, repeat(table, counts[b]))) < 1e-12


def test_multiplicity_0_is_a_row_left_out_of_the_table(block):
    queries, table, m = draw(QUERIES, DIM), draw(ROWS, DIM), fractions()
    left_out = [1, 4, 11]
    m[:, left_out] = 0
    kept = [r for r in range(ROWS) if r not in left_out]
    # Of the rows that no set has, one has by far the largest score: the peak is then of a row that nobody has.
    table[4] *= 20
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    fewer = block.attend_tabulated(queries, block.tabulate(queries, table[kept]), m[:, kept])
    assert relative_error(found, fewer) < 1e-12
    changed = table.clone()
    changed[11] = draw(DIM)
    assert relative_error(block.attend_tabulated(queries, block.tabulate(queries, changed), m), found) < 1e-12


def test_an_empty_set_is_the_blocks_own_and_has_finite_gradients(block):
    queries, table, m = draw(QUERIES, DIM), draw(ROWS, DIM).requires_grad_(), fractions().requires_grad_()
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    assert relative_error(found[EMPTY], oracle(block, queries, table[:0])) < 1e-12
    for gradient in torch.autograd.grad(found[EMPTY].sum(), [table, m]):
        assert gradient.isfinite().all()
    none = block.attend_tabulated(queries, block.tabulate(queries, table), m[:0])
    assert none.shape == (0, QUERIES, DIM)


def test_the_order_of_rows_does_not_matter(block):
    queries, table, m = draw(QUERIES, DIM), draw(ROWS, DIM), fractions()
    order = torch.randperm(ROWS)
    found = block.attend_tabulated(queries, block.tabulate(queries, table), m)
    permuted = block.attend_tabulated(queries, block.tabulate(queries, table[order]), m[:, order])
    assert relative_error(permuted, found) < 1e-12
