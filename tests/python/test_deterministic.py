# SPDX-License-Identifier: Apache-2.0
"""Which backward passes promise the same bits from run to run: by ``deterministic=True``, or by torch's switch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fovea
import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import fovea.compat.flash_mla as flash_mla

OPERATOR = torch.ops.fovea.attention_backward.default
AT = [argument.name for argument in OPERATOR._schema.arguments].index("deterministic")


class _Asked(TorchDispatchMode):
    """Whether each backward pass must be deterministic."""

    supports_higher_order_operators = True  # in a compiled pass the operator is an argument of one

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is OPERATOR:
            self.asked.append(args[AT])
        elif args and args[0] is OPERATOR:
            self.asked.append(kwargs["deterministic"])
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[False, True], ids=["", "torch's switch"])
def switch(request):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(request.param, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(before)


def inputs(ragged=False):
    shape = (9, 2, 16) if ragged else (2, 9, 2, 16)
    return [torch.randn(shape, requires_grad=True) for _ in range(3)]


def asked(function, *args, **kwargs):
    out = function(*args, **kwargs)
    out = out[0] if isinstance(out, tuple) else out
    with _Asked() as mode:
        out.sum().backward()
    return mode.asked


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention(switch, deterministic):
    assert asked(fovea.attention, *inputs(), deterministic=deterministic) == [deterministic or switch]


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_backward(switch, deterministic):
    q, k, v = (tensor.detach() for tensor in inputs())
    out, lse = fovea.attention(q, k, v, return_lse=True)
    with _Asked() as mode:
        fovea.attention_backward(out, q, k, v, out, lse, deterministic=deterministic)
    assert mode.asked == [deterministic or switch]


def test_without_an_argument(switch):
    assert asked(fovea.attention, *inputs()) == [switch]
    assert asked(fovea.scaled_dot_product_attention, *inputs()) == [switch]


def test_the_switch_counts_when_the_pass_runs():
    """As with torch's own operators."""
    out = fovea.attention(*inputs())
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with _Asked() as mode:
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert mode.asked == [True]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("package", [flash_attn, flash_attn_3])
def test_flash_attn(package, deterministic):
    options = {"deterministic": deterministic}
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    assert asked(package.flash_attn_func, *inputs(), **options) == [deterministic]
    assert asked(package.flash_attn_varlen_func, *inputs(ragged=True), cu, cu, 5, 5, **options) == [deterministic]
    packed = torch.randn(2, 9, 3, 2, 16, requires_grad=True)
    assert asked(package.flash_attn_qkvpacked_func, packed, **options) == [deterministic]


@pytest.mark.parametrize("deterministic", [False, True])
def test_flash_mla(deterministic):
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    function = flash_mla.flash_attn_varlen_func
    assert asked(function, *inputs(ragged=True), cu, cu, 5, 5, deterministic=deterministic) == [deterministic]


def test_compiled_again_after_a_change():
    def function(q, k, v):
        return fovea.attention(q, k, v, causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for enabled in (False, True, False):
        torch.use_deterministic_algorithms(enabled, warn_only=True)
        try:
            assert asked(compiled, *inputs()) == [enabled]
        finally:
            torch.use_deterministic_algorithms(False)
