# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea
import plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_give_the_whole(dtype, parts, merge_states_implementation):
    q, k, v = torch.randn(7, 4, 64), torch.randn(50, 2, 64), torch.randn(50, 2, 64)
    pieces = [plain.attention(q, *piece) for piece in zip(k.chunk(parts), v.chunk(parts), strict=True)]
    outs, lses = [piece.out.to(dtype) for piece in pieces], [piece.lse.float() for piece in pieces]
    out, lse = fovea.merge_states(outs, lses, implementation=merge_states_implementation)
    plain.check(out, lse, plain.attention(q, k, v))


@pytest.mark.parametrize("mark", [torch.inf, -torch.inf, torch.nan])
def test_empty_parts(mark, merge_states_implementation):
    outs = [torch.randn(3, 2, 32), torch.full((3, 2, 32), torch.nan)]
    lses = [torch.randn(3, 2), torch.full((3, 2), mark)]
    out, lse = fovea.merge_states(outs, lses, implementation=merge_states_implementation)
    torch.testing.assert_close(out, outs[0], rtol=0, atol=0)
    torch.testing.assert_close(lse, lses[0], rtol=0, atol=0)
    out, lse = fovea.merge_states(outs[1:], lses[1:], implementation=merge_states_implementation)
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -torch.inf).all())


def test_in_place_and_transposed_lse(merge_states_implementation):
    outs = [torch.randn(6, 3, 40) for _ in range(2)]
    lses = [torch.randn(3, 6).transpose(0, 1) for _ in range(2)]  # [head, total_q] by its strides
    want, want_lse = fovea.merge_states([out.clone() for out in outs], [lse.clone() for lse in lses])
    out, lse = fovea.merge_states(outs, lses, out=outs[0], lse=lses[0], implementation=merge_states_implementation)
    assert out.data_ptr() == outs[0].data_ptr() and lse.data_ptr() == lses[0].data_ptr()
    torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, want_lse, rtol=1e-6, atol=1e-6)


def test_without_lse():
    outs, lses = [torch.randn(2, 1, 8)] * 2, [torch.zeros(2, 1)] * 2
    assert torch.equal(fovea.merge_states(outs, lses, return_lse=False), outs[0])


# ---- the gradient ------------------------------------------------------------------------------------------------------------


def exact_merge(outs, lses):
    """In float64, where autograd follows it. Empty parts are left out."""
    lses = torch.stack([torch.where(lse.isfinite(), lse, -torch.inf) for lse in lses]).double()
    lse = torch.logsumexp(lses, dim=0)
    return sum((each - lse).exp()[..., None] * out.double() for out, each in zip(outs, lses, strict=True)), lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_gradients(dtype, parts):
    leaves = [torch.randn(7, 4, 16).to(dtype).requires_grad_() for _ in range(parts)]
    leaves += [torch.randn(7, 4, requires_grad=True) for _ in range(parts)]
    dout, dlse = torch.randn(7, 4, 16).to(dtype), torch.randn(7, 4)
    got = torch.autograd.grad(fovea.merge_states(leaves[:parts], leaves[parts:]), leaves, (dout, dlse))
    out, lse = exact_merge(leaves[:parts], leaves[parts:])
    want = torch.autograd.grad((out, lse), leaves, (dout.double(), dlse.double()))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def test_attention_over_parts_has_the_gradient_of_the_whole():
    q, k, v = (torch.randn(1, 33, heads, 64, requires_grad=True) for heads in (4, 2, 2))

    def loss(out, lse):
        return out.sin().sum() + lse.cos().sum()

    parts = [fovea.attention(q, *part, return_lse=True) for part in zip(k.split(13, 1), v.split(13, 1), strict=True)]
    merged = fovea.merge_states([out[0] for out, _ in parts], [lse[0].T for _, lse in parts])
    got = torch.autograd.grad(loss(*merged), (q, k, v))
    want = torch.autograd.grad(loss(*fovea.attention(q, k, v, return_lse=True)), (q, k, v))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mark", [torch.inf, -torch.inf, torch.nan])
def test_empty_parts_have_no_gradient(mark):
    outs = [torch.randn(3, 2, 8), torch.full((3, 2, 8), torch.nan)]
    lses = [torch.randn(3, 2), torch.full((3, 2), mark)]
    lses[0][1] = mark  # a row whose parts are all empty
    leaves = [tensor.requires_grad_() for tensor in (*outs, *lses)]
    gradients = torch.autograd.grad(fovea.merge_states(outs, lses), leaves, (torch.ones(3, 2, 8), torch.randn(3, 2)))
    for tensor in gradients:
        assert tensor.isfinite().all() and not tensor[1].any()
    assert not gradients[1].any() and not gradients[3].any() and gradients[0][0].all()


def test_opcheck_and_explanation():
    outs, lses = ([torch.randn(shape, requires_grad=True) for _ in range(3)] for shape in ((5, 2, 16), (5, 2)))
    torch.library.opcheck(torch.ops.fovea.differentiable_merge.default, (outs, lses, ""))
    assert "merge_states" in fovea.explain(fovea.merge_states, outs, lses).splitlines()[0]


def test_compiled_gradients():
    def loss(outs, lses):
        out, lse = fovea.merge_states(outs, lses)
        return out.sin().sum() + lse.cos().sum()

    torch._dynamo.reset()
    outs, lses = ([torch.randn(shape, requires_grad=True) for _ in range(3)] for shape in ((5, 2, 16), (5, 2)))
    got, want = (torch.autograd.grad(f(outs, lses), (*outs, *lses)) for f in (torch.compile(loss, fullgraph=True), loss))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_refusals_with_gradients():
    outs, lses = [torch.randn(2, 1, 8, requires_grad=True)] * 2, [torch.zeros(2, 1)] * 2
    for written in ({"out": torch.empty(2, 1, 8)}, {"lse": torch.empty(2, 1)}):
        with pytest.raises(NotImplementedError, match=f"{next(iter(written))}: got a value, want None where a gradient is wanted"):
            fovea.merge_states(outs, lses, **written)
    with pytest.raises(NotImplementedError, match=r"torch\.vmap"):
        torch.vmap(lambda out: fovea.merge_states([out], [torch.zeros(2, 1)])[0])(torch.randn(3, 2, 1, 8, requires_grad=True))
