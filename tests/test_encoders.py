"""One contract for every encoder in the registry: a new member joins by its name, with no test of its own."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from omniset import SetBatch, encoders, testing
from omniset.kernels import folded
from omniset.layers import LeeAttentionBlock

SIZES = {"input_dim": 3, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5}


KINDS = [  # of what is summed up; what costs time is tested of these
    ("deep-sets", {}),  # sums
    ("deep-sets", {"pooling": "max"}),
    ("ust", {}),  # sums against a peak
    ("sse", {}),  # sums of weights without a peak
    ("set-transformer-sab", {}),  # nothing: all elements are kept
    ("fspool", {}),  # what does not merge
    ("strxl", {}),  # a memory
]
BUILT = [*((name, {}) for name in encoders.ENCODERS), ("umbc", {"random": False, "slot_block": True})]
OF_ALL = pytest.mark.parametrize("built", BUILT, indirect=True, ids=[" ".join([name, *more]) for name, more in BUILT])


@pytest.fixture(params=KINDS, ids=[" ".join([name, *more]) for name, more in KINDS])
def built(request):
    """Name and options."""
    return request.param


@pytest.fixture
def encoder(built):
    name, more = built
    return encoders.build(name, num_outputs=2, **SIZES, **more).double().eval()


@pytest.fixture
def batch():
    m = torch.randint(0, 3, (4, 23))
    m[2] = 0
    return SetBatch(torch.randn(4, 23, 3, dtype=torch.float64), m)


@OF_ALL
def test_symmetries(encoder, batch):
    testing.assert_permutation_invariant(encoder, batch)
    testing.assert_multiset_consistent(encoder, batch)
    if encoder.outputs_elements:
        testing.assert_permutation_equivariant(encoder, batch)


@OF_ALL
def test_mini_batch_consistency_is_what_it_says(encoder, batch):
    if encoder.mini_batch_consistent:
        testing.assert_shard_consistent(encoder, batch)
    else:
        with pytest.raises(ValueError, match="not mini-batch consistent"):
            encoder(batch, shard_size=7)
    with pytest.raises(AssertionError, match="not shard consistent at shard_size=7: relative error"):
        testing.assert_shard_consistent(encoder, batch, shard_sizes=[7], shards="independent")


PROPERTIES = {  # Table 1 of the Universal Set Transformer: mini-batch consistent, cross- and self-attention, elements
    "deep-sets": (True, False, False, False),
    "fspool": (False, False, False, False),
    "sse": (True, True, False, False),
    "umbc": (True, True, True, False),
    "strxl": (False, True, True, True),
    "ust": (True, True, True, True),
    # Those that the paper has not.
    "set-transformer-sab": (True, True, True, True),
    "set-transformer-isab": (True, True, True, True),
    "abmil": (True, True, False, False),
    "flare": (True, True, True, True),
}
POINTS = "InducedSetAttentionBlock PoolingByMultiheadAttention SlotSetEncoder GatedAttentionPooling"
EACH_OTHER = "InducedSetAttentionBlock SetAttentionBlock LatentRouting"


@pytest.mark.parametrize("name", encoders.ENCODERS)
def test_properties(name, batch):
    """As said; by what it is made of; and by what it does: elements of which there are outputs know of each other."""
    made = encoders.build(name, **SIZES).double().eval()
    said = made.mini_batch_consistent, made.cross_attention, made.self_attention, made.outputs_elements
    assert said == PROPERTIES[name]
    kinds = {type(module).__name__ for module in made.modules()}
    assert made.cross_attention == bool(kinds & {*POINTS.split()})
    assert made.self_attention == bool(kinds & {*EACH_OTHER.split()})
    x = batch.elements.requires_grad_()
    out = made(SetBatch(x, torch.ones(4, 23)))
    assert (out.elements is not None) == made.outputs_elements
    if made.outputs_elements:
        (grad,) = torch.autograd.grad(out.elements[:, 0].square().sum(), x)
        assert (grad.abs().sum(-1) > 0).all()


def test_padding_changes_nothing(encoder, batch):
    padded = SetBatch(
        torch.cat([batch.elements, torch.full((4, 5, 3), torch.nan).double()], 1),
        torch.cat([batch.multiplicity, torch.zeros(4, 5).long()], 1),
    )
    out, of_padded = encoder(batch), encoder(padded)
    assert out.summary.shape == (4, 2, 10)
    assert testing.relative_error(of_padded.summary, out.summary) <= 1e-12
    if encoder.outputs_elements:
        assert testing.relative_error(of_padded.elements[:, :23], out.elements) <= 1e-12
        assert not of_padded.elements[padded.multiplicity == 0].any()


@pytest.fixture(params=["fused", "folded"])
def small_enough(request, monkeypatch):
    """Elements attend to each other in either form."""
    monkeypatch.setattr(folded, "LEAST", 0 if request.param == "folded" else 1 << 30)


COUNTS = torch.tensor([[1.0, 2, 0, 0.7, 3], [0, 0, 0, 0, 0], [1, 1, 1, 1, 2.2]], dtype=torch.float64)


def scalar(encoder, elements, multiplicity, **options):
    out = encoder(SetBatch(elements, multiplicity, validate=False), **options)
    return out.summary.sin().sum() + (0 if out.elements is None else out.elements.cos().sum())


@pytest.mark.usefixtures("small_enough")
@pytest.mark.parametrize("learned", [False, True])
def test_second_derivatives_along_a_direction(encoder, learned):
    """Hessian times vector, of elements and weights, and of multiplicities where they are learned; by differences."""
    x, m = torch.randn(3, 5, 3, dtype=torch.float64), COUNTS + 0.313 * learned
    targets = [x.requires_grad_(), *encoder.parameters(), *([m.requires_grad_()] if learned else [])]
    direction = [torch.randn_like(t) for t in targets]

    def gradient(step, **options):
        for t, d in zip(targets, direction, strict=True):
            t.data += step * d
        grads = torch.autograd.grad(scalar(encoder, x, m), targets, materialize_grads=True, **options)
        for t, d in zip(targets, direction, strict=True):
            t.data -= step * d
        return [*grads]

    first = gradient(0.0, create_graph=True)
    slope = sum((g * d).sum() for g, d in zip(first, direction, strict=True))
    second = [*torch.autograd.grad(slope, targets, materialize_grads=True)]
    h = 1e-6
    differences = [(a - b) / (2 * h) for a, b in zip(gradient(h), gradient(-h), strict=True)]
    assert testing.relative_error(second, differences) < 1e-5
    assert all(s.isfinite().all() for s in second)
    assert not second[0][COUNTS == 0].any() or learned  # the absent have none


@pytest.mark.parametrize("built", [(n, o) for n, o in KINDS if not encoders.ENCODERS[n].recurrent], indirect=True)
def test_second_derivatives_of_independent_shards(encoder):
    """As of whole sets; where there is a memory of other shards, it is a constant."""
    x = torch.randn(3, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: encoder(SetBatch(x, COUNTS, validate=False), shard_size=2, shards="independent").summary,
        (x,),
        fast_mode=True,
    )


def test_gradient_penalty_in_float32(encoder):
    """A critic whose gradient of the elements is held at length 1 (WGAN-GP): the step is that of float64."""
    x, head, steps = torch.randn(3, 5, 3, dtype=torch.float64), torch.randn(10, dtype=torch.float64), {}
    for dtype in (torch.float64, torch.float32):
        critic = encoder.to(dtype)
        mixed = x.to(dtype).requires_grad_()
        score = (critic(SetBatch(mixed, COUNTS.to(dtype), validate=False)).summary @ head.to(dtype)).sum()
        (grad,) = torch.autograd.grad(score, mixed, create_graph=True)
        loss = score + 10 * (grad.square().sum((1, 2)) - 1).square().mean()
        steps[dtype] = [*torch.autograd.grad(loss, list(critic.parameters()), materialize_grads=True)]
    assert testing.relative_error([g.double() for g in steps[torch.float32]], steps[torch.float64]) < 1e-4


@pytest.mark.usefixtures("small_enough")
def test_forward_mode_and_transforms(encoder):
    """Under torch.func and torch.autograd.forward_ad, of multiplicities of 0 too; and over reverse; and stacked."""
    inputs = torch.randn(3, 5, 3, dtype=torch.float64), COUNTS
    directions = torch.randn(3, 5, 3, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)

    def f(*inputs):
        return scalar(encoder, *inputs)

    leaves = [x.clone().requires_grad_() for x in inputs]
    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(f(*leaves), leaves), directions, strict=True))
    assert testing.relative_error(torch.func.jvp(f, inputs, directions)[1], slope) < 1e-12
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, d) for x, d in zip(inputs, directions, strict=True)]
        tangent = forward_ad.unpack_dual(f(*duals)).tangent
    assert testing.relative_error(tangent, slope) < 1e-12
    (grad,) = torch.autograd.grad(f(leaves[0], COUNTS), leaves[0], create_graph=True)
    (second,) = torch.autograd.grad((grad * directions[0]).sum(), leaves[0])
    forward_over_reverse = torch.func.jvp(torch.func.grad(f), inputs, (directions[0], torch.zeros_like(COUNTS)))[1]
    assert testing.relative_error(forward_over_reverse, second) < 1e-10
    stacked = torch.autograd.grad(torch.func.vmap(f, (None, 0))(leaves[0], torch.stack([leaves[1]] * 2)).sum(), leaves)
    assert testing.relative_error([g / 2 for g in stacked], torch.autograd.grad(f(*leaves), leaves)) < 1e-12


@OF_ALL
def test_every_parameter_is_used(encoder, batch):
    out = encoder.train()(batch)
    grads = torch.autograd.grad(out.summary.square().sum(), list(encoder.parameters()), allow_unused=True)
    unused = [n for (n, _), g in zip(encoder.named_parameters(), grads, strict=True) if g is None]
    assert unused == []


@OF_ALL
def test_modules_can_be_walked(encoder):
    """torch.nn.Module.apply visits every module: no layer may shadow it."""
    seen = []
    encoder.apply(lambda module: seen.append(type(module).__name__))
    assert len(seen) == len(list(encoder.modules()))


class FromTensors(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, m):
        return self.encoder(SetBatch(x, m)).summary


class AllFromTensors(FromTensors):
    def forward(self, x, m):
        out = self.encoder(SetBatch(x, m))
        return (out.summary,) if out.elements is None else (out.summary, out.elements)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@OF_ALL
def test_exported_for_any_number_of_sets_and_elements(encoder):
    module = FromTensors(encoder.float())
    sizes = {0: torch.export.Dim("sets"), 1: torch.export.Dim("elements")}
    given = torch.randn(4, 9, 3), torch.randint(0, 3, (4, 9)).float()
    program = torch.export.export(module, given, dynamic_shapes={"x": sizes, "m": sizes}).module()
    for shape in ((4, 9), (7, 13), (2, 31)):
        x, m = torch.randn(*shape, 3), torch.randint(0, 3, shape).float()
        x[m == 0] = torch.nan  # what is written in padding reaches no result
        torch.testing.assert_close(program(x, m), module(x, m), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@OF_ALL
def test_written_to_onnx_for_any_number_of_sets_and_elements(encoder, built, tmp_path):
    """In a runtime of its own that shares no code with PyTorch."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} of the extra test is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime of the extra test is not installed")
    if built[0] == "fspool":
        pytest.skip("ONNX has no search in sorted numbers")
    module, path = AllFromTensors(encoder.float()).eval(), tmp_path / "encoder.onnx"
    sizes = {0: torch.export.Dim("sets"), 1: torch.export.Dim("elements")}
    given = torch.randn(4, 9, 3), torch.ones(4, 9)
    torch.onnx.export(module, given, path, dynamo=True, dynamic_shapes={"x": sizes, "m": sizes})
    session = runtime.InferenceSession(path)
    for shape in ((4, 9), (7, 13), (1, 1), (3, 4000)):
        x, m = torch.randn(*shape, 3), torch.randint(0, 3, shape).float()
        m[1:2] = 0  # an empty set
        x[m == 0] = torch.nan
        outputs = session.run(None, {"x": x.numpy(), "m": m.numpy()})
        for output, expected in zip(outputs, module(x, m), strict=True):
            torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_each_set_at_once(encoder):
    """By vmap of grad through SetBatch, which cannot look at values then."""
    module = FromTensors(encoder)
    weights = dict(module.named_parameters())
    x, m = torch.randn(3, 7, 3, dtype=torch.float64), torch.randint(0, 3, (3, 7)).double()

    def loss(weights, x, m):
        return torch.func.functional_call(module, weights, (x[None], m[None])).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, m)
    for i in range(3):
        total = module(x[i : i + 1], m[i : i + 1]).square().sum()
        grads = torch.autograd.grad(total, [*weights.values()], materialize_grads=True)
        for (name, together), alone in zip(each.items(), grads, strict=True):
            torch.testing.assert_close(together[i], alone, msg=name)


class Adapted(nn.Module):
    """As low-rank adapters wrap a Linear: it has no weight of its own."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.calls = linear, 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) + 1


@OF_ALL
def test_layers_call_their_modules(encoder, batch):
    """A module in the place of another one is what computes, a hook on one is run."""
    before = encoder(batch).summary
    linear = {name: part for name, part in encoder.named_modules() if type(part) is nn.Linear}
    seen = set()
    hooks = [part.register_forward_hook(lambda *_, name=name: seen.add(name)) for name, part in linear.items()]
    torch.testing.assert_close(encoder(batch).summary, before)
    assert seen == linear.keys()
    for hook in hooks:
        hook.remove()
    for name, part in linear.items():
        encoder.set_submodule(name, Adapted(part))
    changed = encoder(batch).summary
    assert (changed - before).abs().max() > 1e-3
    assert all(part.calls for part in encoder.modules() if isinstance(part, Adapted))
    if encoder.mini_batch_consistent:
        torch.testing.assert_close(encoder(batch, shard_size=7).summary, changed)


@pytest.mark.filterwarnings("ignore")  # PyTorch moves this to a package of its own
@OF_ALL
def test_quantized(encoder, batch):
    """Linear layers in 8 bits: one that is made of nothing else has no parameter left."""
    quantized = torch.ao.quantization.quantize_dynamic(encoder.float(), {nn.Linear}, dtype=torch.qint8)
    difference = quantized(batch).summary - encoder(batch).summary
    assert 0 < difference.abs().max() < 0.1


@OF_ALL
def test_state_dict_round_trip(built, encoder, batch):
    name, more = built
    other = encoders.build(name, num_outputs=2, **SIZES, **more).double().eval()
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(batch).summary, encoder(batch).summary)


@pytest.mark.parametrize("name", encoders.ENCODERS)
def test_listed_arguments_are_always_taken(name):
    listed = {"input_layers": 2, "class_token": False, "decoder_depth": 1, "dropout": 0.1, "ffn_dim": 7, "norm": "post"}
    encoders.build(name, num_outputs=1, **SIZES, **listed)
    with pytest.raises(TypeError, match=f"encoder '{name}' does not take nonsense"):
        encoders.build(name, **SIZES, nonsense=1)


def test_bad_builds():
    with pytest.raises(ValueError, match="encoder must be one of .*'ust'.* got 'transformer'"):
        encoders.build("transformer", **SIZES)
    with pytest.raises(ValueError, match="input_dim must be an integer >= 1, got 0"):
        encoders.build("ust", **{**SIZES, "input_dim": 0})
    for name in ("ust", "flare", "abmil"):
        with pytest.raises(ValueError, match="depth must be an integer >= 0, got -1"):
            encoders.build(name, **{**SIZES, "depth": -1})
    with pytest.raises(ValueError, match="memory must be an integer >= 0, got -1"):
        encoders.build("strxl", **SIZES, memory=-1)
    for name in encoders.ENCODERS:  # also those without norms
        with pytest.raises(ValueError, match="norm must be one of .* got 'set'"):
            encoders.build(name, **SIZES, norm="set")
    with pytest.raises(ValueError, match="input_layers=0 needs input_dim == dim, got 3 and 10"):
        encoders.build("ust", **SIZES, input_layers=0)


def test_what_an_encoder_needs_is_named_at_once():
    with pytest.raises(TypeError, match="encoder 'ust' needs dim, depth, num_heads, num_inducing"):
        encoders.build("ust", input_dim=3)
    with pytest.raises(TypeError, match="encoder 'sse' needs num_heads"):
        encoders.build("sse", input_dim=3, dim=8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ffn_dim": -1}, "ffn_dim must be an integer >= 0, got -1"),
        ({"decoder_depth": -1}, "decoder_depth must be an integer >= 0, got -1"),
        ({"dropout": float("nan")}, "dropout must be from 0 to 1, got nan"),
        ({"dropout": 1.5}, "dropout must be from 0 to 1, got 1.5"),
    ],
)
@pytest.mark.parametrize("name", ["ust", "flare", "set-transformer-sab"])
def test_values_out_of_bounds_are_named(name, given, message):
    with pytest.raises(ValueError, match=message):
        encoders.build(name, **{**SIZES, **given})


def test_ust_and_isab_are_one_architecture(batch):
    a, b = (encoders.build(n, **SIZES).double() for n in ("ust", "set-transformer-isab"))
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(batch).summary, b(batch).summary)


def test_every_encoder_has_a_reason():
    """A result that keeps one has three seeds, each of them above `ust` at every size."""
    assert {*encoders.REASONS} == {*encoders.ENCODERS}
    for name, reason in encoders.REASONS.items():
        if not reason.startswith("results/"):
            assert reason.partition(":")[0] in ("paper", "files")
            continue
        file = Path(__file__).parents[1] / reason
        ours, usual = (json.loads(path.read_text())["seeds"] for path in (file, file.with_name("ust.json")))
        assert len(ours) >= 3
        for seed, found in ours.items():
            scores, others = found["columns"][name]["accuracy"], usual[seed]["columns"]["ust"]["accuracy"]
            assert all(a > b for a, b in zip(scores, others, strict=True))


def test_lees_variant(batch):
    encoder = encoders.build("set-transformer-isab", **SIZES, variant="lee", norm="none").double()
    assert isinstance(encoder.layers[0].gather, LeeAttentionBlock)
    testing.assert_shard_consistent(encoder, batch)


@pytest.mark.parametrize("tokens", [1, 3])
def test_class_tokens_are_elements_of_multiplicity_1(tokens, batch):
    encoder = encoders.build("ust", **SIZES, class_token=True, num_outputs=tokens).double()
    x = torch.cat([encoder.class_tokens.expand(4, -1, -1), encoder.embed(batch.elements)], 1)
    m = torch.cat([torch.ones(4, tokens).long(), batch.multiplicity], 1)
    for layer in encoder.layers:
        x = layer(x, m)
    out = encoder(batch)
    assert testing.relative_error(out.summary, x[:, :tokens]) <= 1e-14
    present = batch.multiplicity > 0
    assert testing.relative_error(out.elements[present], x[:, tokens:][present]) <= 1e-14
