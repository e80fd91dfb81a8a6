"""Names that PyTorch keeps to itself: all that are used here, and nowhere else.

Each is tried on a small example when this is imported. Where it is missing, or computes something other than the plain
form beside it, the plain form takes its place, so that a new PyTorch may cost time but no result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad


def tried(fast: Callable[..., Any], plain: Callable[..., Any], example: Callable[[Any], Tensor]) -> Callable[..., Any]:
    """The fast form if it computes the example as the plain form does, else the plain one."""
    try:
        with torch.no_grad():
            same = torch.allclose(example(fast), example(plain), rtol=1e-4, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError):
        return plain
    return fast if same else plain


def _numbers(*shape: int) -> Tensor:
    """Distinct ones, of either sign."""
    numbers = torch.arange(math.prod(shape), dtype=torch.float32, device="cpu")
    return (numbers * 0.7 % 5 - 2.1).view(shape)


def plain_add_linear(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return y + F.linear(x, weight, bias)


onednn_linear = tried(
    lambda x, weight, bias: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""),
    F.linear,
    lambda f: f(_numbers(2, 3), _numbers(5, 3), _numbers(5)),
)
onednn_add_linear = tried(
    lambda y, x, weight, bias: torch.ops.mkldnn._linear_pointwise.binary(x, y, weight, bias, "add"),
    plain_add_linear,
    lambda f: f(_numbers(2, 5), _numbers(2, 3), _numbers(5, 3), _numbers(5)),
)
HAS_ONEDNN = onednn_linear is not F.linear and onednn_add_linear is not plain_add_linear


HALF_UNITS = any(getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
"""Whether the processor has units for products of bfloat16."""

_functorch_active = getattr(torch._C, "_are_functorch_transforms_active", None)
KNOWS_TRANSFORMS = _functorch_active is not None and hasattr(forward_ad, "_current_level")


def forward_mode() -> bool:
    """Whether derivatives are carried forward (torch.func.jvp, jacfwd and hessian; torch.autograd.forward_ad)."""
    return getattr(forward_ad, "_current_level", -1) >= 0


def transformed() -> bool:
    """Whether a transform of torch.func or forward mode is at work, as far as this PyTorch tells."""
    return (_functorch_active is not None and _functorch_active()) or forward_mode()


def plain_only() -> bool:
    """Whether only plain operations may be used: compilers, torch.func and forward mode follow no others."""
    return torch.compiler.is_compiling() or transformed() or not KNOWS_TRANSFORMS


def managed_by_fsdp(module: nn.Module) -> bool:
    # In the forward of a module inside FSDP the weights are whole for a moment; the mark tells.
    return getattr(module, "_is_fsdp_managed_module", False)


def tensors_of(modules: Iterable[nn.Module]) -> list[Any]:
    """Weight and bias of each, without the search of nn.Module for attributes."""
    return [held[name] for held in [module._parameters for module in modules] for name in ("weight", "bias")]


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CAN_WATCH = all(hasattr(nn.Identity(), name) for name in (*HOOKS, "_modules"))


def hooked(module: nn.Module) -> bool:
    """Whether anything waits for calls of the modules within, as far as this PyTorch tells."""
    within = (m for m in module.modules() if m is not module)
    return not CAN_WATCH or any(getattr(m, name) for m in within for name in HOOKS)


def plain_linear(module: nn.Module) -> bool:
    """Whether it is PyTorch's own Linear with a bias, and nothing waits for its calls: its weights say all of it."""
    untouched = CAN_WATCH and not any(getattr(module, name) for name in HOOKS)
    return untouched and type(module) is nn.Linear and module.bias is not None


class Snapshot:
    """The modules of a module, their classes (which a parametrization changes) and whether any has a hook."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._children = [m._modules for m in module.modules() if m._modules]
        self._within = [m for m in module.modules() if m is not module]
        self._hooks = [getattr(m, name) for m in self._within for name in HOOKS]
        self._before, self._classes = [dict(children) for children in self._children], [*map(type, self._within)]
        self.hooked = any(self._hooks)

    def holds(self, module: nn.Module) -> bool:
        """Whether all is unchanged. Lists are compared whole, as every call of the module runs this."""
        return (
            module is self.module  # not a shallow copy
            and any(self._hooks) is self.hooked
            and self._children == self._before
            and [*map(type, self._within)] == self._classes
        )
