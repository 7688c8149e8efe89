# SPDX-License-Identifier: Apache-2.0
"""No operator has a forward-mode derivative, and each says so: a result without a tangent would count as a constant."""

import pytest
import torch
from torch.autograd import forward_ad

import fovea
from test_operators import OPERATORS


def places(name):
    """The arguments that may hold a tangent, and where: (name, index of the argument, index in its list)."""
    for at, (argument, value) in enumerate(zip(schema(name), OPERATORS[name](), strict=True)):
        for index, item in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(item, torch.Tensor) and item.is_floating_point():
                yield argument.name, at, index


def schema(name):
    return getattr(torch.ops.fovea, name).default._schema.arguments


def replaced(arguments, at, index, change):
    arguments = list(arguments)
    if index is None:
        arguments[at] = change(arguments[at])
    else:
        arguments[at] = [change(item) if here == index else item for here, item in enumerate(arguments[at])]
    return arguments


EVERYWHERE = [pytest.param(name, *place, id=f"{name} {place[0]}") for name in OPERATORS for place in places(name)]


@pytest.mark.parametrize(("name", "argument", "at", "index"), EVERYWHERE)
def test_dual_tensors_are_refused(name, argument, at, index):
    operator = getattr(torch.ops.fovea, name).default
    with forward_ad.dual_level():
        dual = replaced(OPERATORS[name](), at, index, lambda tensor: forward_ad.make_dual(tensor, torch.ones_like(tensor)))
        for context in (torch.enable_grad(), torch.no_grad()):
            with (
                context,
                pytest.raises(NotImplementedError, match=rf"^{argument}\.tangent: got a tensor, want none \(no forward-mode"),
            ):
                operator(*dual)


@pytest.mark.parametrize("name", OPERATORS)
def test_jvp_is_refused(name):
    operator = getattr(torch.ops.fovea, name).default
    arguments = OPERATORS[name]()
    _, at, index = next(places(name))
    tensor = arguments[at] if index is None else arguments[at][index]
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda value: operator(*replaced(arguments, at, index, lambda _: value)), (tensor,), (tensor,))


def inputs():
    return torch.randn(1, 5, 2, 16), torch.randn(1, 7, 2, 16), torch.randn(1, 7, 2, 16)


def test_attention_is_refused_in_every_way():
    q, k, v = inputs()
    function = lambda q: fovea.attention(q, k, v, causal=True)  # noqa: E731
    for wanted in (
        lambda: torch.func.jvp(function, (q,), (q,)),
        lambda: torch.func.jacfwd(function)(q),
        lambda: torch.autograd.functional.jvp(function, (q,), (q,), strict=False),  # the double-backward trick
        lambda: torch.autograd.gradcheck(
            lambda q: fovea.attention(q, k.double(), v.double()), (q.double().requires_grad_(),), check_forward_ad=True
        ),
    ):
        with pytest.raises(NotImplementedError):
            wanted()


@pytest.mark.parametrize("which", ["q", "k", "v", "sink"])
def test_a_tangent_is_refused_where_a_gradient_is_wanted_too(which):
    names = dict(zip("qkv", inputs(), strict=True)) | {"sink": torch.zeros(2)}
    with forward_ad.dual_level():
        names[which] = forward_ad.make_dual(names[which].requires_grad_(), torch.ones_like(names[which]))
        with pytest.raises(NotImplementedError, match=rf"^{which}\.tangent: got a tensor"):
            fovea.attention(**names)


def test_what_has_no_tangent_runs():
    """Within a level too, and where forward mode is switched off, as in the forward pass of an autograd.Function."""
    q, k, v = inputs()
    want = fovea.attention(q, k, v)
    with forward_ad.dual_level():
        assert torch.equal(fovea.attention(q, k, v), want)
        with forward_ad._set_fwd_grad_enabled(False):
            assert torch.equal(fovea.attention(forward_ad.make_dual(q, q), k, v), want)


def test_a_function_of_the_users_own_may_give_the_tangent():
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_forward(v)
            return fovea.attention(q, k, v)

        @staticmethod
        def jvp(ctx, _q, _k, v_tangent):
            return v_tangent.mean(dim=1, keepdim=True).expand(1, 5, 2, 16).contiguous()

    q, k, v = inputs()
    with forward_ad.dual_level():
        out = Attention.apply(torch.zeros_like(q), k, forward_ad.make_dual(v, v))
        got = forward_ad.unpack_dual(out)
    torch.testing.assert_close(got.tangent, got.primal)  # with q of zeros, out is linear in v
