"""Names that PyTorch keeps to itself, and the plain forms that stand in for them."""

import copy

import pytest
import torch
from torch import nn

from omniset.core import private
from omniset.kernels import blocks, folded, tiles
from omniset.layers import InducedSetAttentionBlock, MultisetAttentionBlock
from omniset.testing import relative_error

D, H, K = 24, 4, 5


def test_this_pytorch_has_all_of_them():
    """Else the plain forms are in use: right, and slow."""
    assert private.HAS_ONEDNN
    assert private.KNOWS_TRANSFORMS
    assert private.CAN_WATCH


def missing(x):
    return torch.ops.aten.there_is_no_such_operation(x)


def other_arguments():
    return torch.ones(1)


def other_result(x):
    return x + 1


@pytest.mark.parametrize("fast", [missing, other_arguments, other_result])
def test_what_is_missing_or_different_is_not_used(fast):
    def plain(x):
        return x + 2

    assert private.tried(fast, plain, lambda f: f(torch.ones(3))) is plain
    assert private.tried(torch.Tensor.add, torch.add, lambda f: f(torch.ones(3), 2)) is torch.Tensor.add


@pytest.fixture
def all_missing(monkeypatch):
    monkeypatch.setattr(private, "HAS_ONEDNN", False)
    monkeypatch.setattr(blocks, "takes", lambda _: False)
    monkeypatch.setattr(folded, "LEAST", 0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_layers_compute_the_same_without_them(activation, all_missing, monkeypatch):
    torch.manual_seed(0)
    layer = InducedSetAttentionBlock(D, H, K, 13, activation=activation).double()
    x = (torch.randn(2, 101, D, dtype=torch.float64) + 5).requires_grad_()  # means far from 0
    wanted = [x, *layer.parameters()]

    def results():
        out = layer(x)
        return [out, *torch.autograd.grad(out.sin().sum(), wanted)]

    assert folded.form(layer.gather, layer.points, x, None)[0] == "gather"
    assert not tiles.faster_by_onednn(torch.empty(4096, 128), torch.empty(128, 128))
    got = results()
    with monkeypatch.context() as patch:
        patch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
        assert relative_error(got, results()) < 1e-12


@pytest.mark.parametrize("name", ["KNOWS_TRANSFORMS", "CAN_WATCH"])
def test_what_cannot_be_asked_is_not_folded(name, all_missing, monkeypatch):
    monkeypatch.setattr(private, name, False)
    layer, x = InducedSetAttentionBlock(D, H, K), torch.randn(2, 101, D)
    assert folded.form(layer.gather, layer.points, x, None) == folded.PLAIN
    assert layer(x).isfinite().all()


class TestWhatIsFolded:
    """It is decided once, and again after every change of the block."""

    @pytest.fixture
    def block(self):
        return MultisetAttentionBlock(D, H, 13, dropout=0.1).eval()

    @pytest.fixture
    def decisions(self, monkeypatch):
        made, start = [], folded.Parts.__init__
        monkeypatch.setattr(folded.Parts, "__init__", lambda self, *a, **k: (made.append(1), start(self, *a, **k))[1])
        return made

    def test_once(self, block, decisions):
        assert block.foldable() is block.foldable()
        block.double().half().float()
        block.train().eval()
        block.load_state_dict(block.state_dict())
        assert block.foldable() is not None
        assert len(decisions) == 1

    def test_in_training_with_dropout_it_is_not(self, block, decisions):
        assert block.foldable() is not None
        assert block.train().foldable() is None
        for part in block.modules():
            if isinstance(part, nn.Dropout):
                assert block.foldable() is None
                part.p = 0.0
        assert block.foldable() is not None
        assert len(decisions) == 1

    @pytest.mark.parametrize("part", ["query", "norm_elements", "ffn", "ffn.0"])
    def test_hooks_come_and_go(self, block, part, decisions):
        assert block.foldable() is not None
        hook = block.get_submodule(part).register_forward_hook(lambda *_: None)
        assert block.foldable() is None
        assert block.foldable() is None
        assert len(decisions) == 2
        hook.remove()
        assert block.foldable() is not None
        hook = block.get_submodule(part).register_full_backward_hook(lambda *_: None)
        assert block.foldable() is None
        hook.remove()
        assert block.foldable() is not None

    def test_parametrizations_come_and_go(self, block):
        assert block.foldable() is not None
        nn.utils.parametrizations.orthogonal(block.value)
        assert block.foldable() is None
        nn.utils.parametrize.remove_parametrizations(block.value, "weight")
        assert block.foldable() is not None

    def test_parts_are_replaced(self, block):
        class Adapter(nn.Linear):
            pass

        before = block.foldable()
        block.key = nn.Linear(D, D)
        assert block.foldable().key is block.key is not before.key
        block.ffn[1] = nn.GELU()
        assert type(block.foldable().ffn[1]) is nn.GELU
        block.ffn[1] = nn.Tanh()
        assert block.foldable() is None
        block.ffn[1] = nn.ReLU()
        block.value = Adapter(D, D)
        assert block.foldable() is None
        block.value = nn.Linear(D, D)
        block.query = nn.Linear(D, D, bias=False)
        assert block.foldable() is None
        assert block(torch.randn(2, 101, D), torch.randn(2, K, D)).isfinite().all()

    def test_scale(self, block):
        assert block.foldable().scale == block.scale
        block.scale = 0.3
        assert block.foldable().scale == 0.3

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
    def test_copies_have_parts_of_their_own(self, block, copied):
        assert block.foldable() is not None
        other = copied(block)
        other.key = nn.Linear(D, D)
        assert other.foldable().key is other.key
        if copied is copy.deepcopy:
            assert block.foldable().key is block.key is not other.key

    def test_a_subclass_that_computes_something_else_is_not(self):
        class Doubled(MultisetAttentionBlock):
            def combine(self, queries, average):
                return 2 * super().combine(queries, average)

        class Same(MultisetAttentionBlock):
            pass

        assert Doubled(D, H).foldable() is None
        assert Same(D, H).foldable() is not None
