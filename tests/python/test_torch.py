# SPDX-License-Identifier: Apache-2.0
"""Features of torch for functions of its own, used with fovea.attention: checkpoints, autocast, counts of operations, vmap."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import fovea
import plain
from test_operators import OPERATORS


def inputs(seqs=(5, 7), heads=(4, 2), dtype=torch.float32):
    shapes = (2, seqs[0], heads[0], 16), (2, seqs[1], heads[1], 16), (2, seqs[1], heads[1], 24)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def lengths(counts):
    return torch.tensor([0, *counts]).cumsum(0).int()


# ---- activation checkpointing ------------------------------------------------------------------------------------------------


def layer(q, k, v, sink):
    return fovea.attention(q.sin(), k, v, causal=True, sink=sink).cos()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_within_autocast(reentrant):
    """The forward pass runs again in the backward pass, under the same autocast, and gives the same gradient."""
    tensors = [*inputs(), torch.randn(4, requires_grad=True)]
    with torch.autocast("cpu", torch.bfloat16):
        plainly, again = layer(*tensors), checkpoint(layer, *tensors, use_reentrant=reentrant)
    want = torch.autograd.grad(plainly.sum(), tensors)
    again.sum().backward()
    for tensor, expected in zip(tensors, want, strict=True):
        assert torch.equal(tensor.grad, expected)


def test_selective_checkpoints_may_keep_attention():
    def policy(ctx, operator, *args, **kwargs):
        keep = operator == torch.ops.fovea.differentiable_attention.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    tensors = [*inputs(), torch.randn(4, requires_grad=True)]
    want = torch.autograd.grad(layer(*tensors).sum(), tensors)
    context = partial(create_selective_checkpoint_contexts, policy)
    with FlopCounterMode(display=False) as counter:
        checkpoint(layer, *tensors, use_reentrant=False, context_fn=context).sum().backward()
    for tensor, expected in zip(tensors, want, strict=True):
        assert torch.equal(tensor.grad, expected)
    assert counter.get_flop_counts()["Global"][torch.ops.fovea.differentiable_attention] == 2 * 2 * 5 * 7 * 4 * (16 + 24)


# ---- autocast ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.bfloat16, torch.float16)])
def test_autocast(dtypes):
    """As torch's own function: results in autocast's dtype, gradients in that of each input."""
    tensors = [tensor.detach().to(dtype).requires_grad_() for tensor, dtype in zip(inputs(), dtypes, strict=True)]
    sink = torch.randn(4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = fovea.attention(*tensors, sink=sink)
        theirs = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in tensors), enable_gqa=True)
    assert out.dtype == theirs.dtype == torch.bfloat16
    assert torch.equal(out, fovea.attention(*(tensor.bfloat16() for tensor in tensors), sink=sink))
    out.sum().backward()
    assert [tensor.grad.dtype for tensor in (*tensors, sink)] == [*dtypes, torch.float32]


def test_what_autocast_leaves():
    codes = torch.randn(1, 4, 2, 16).to(torch.float8_e4m3fn)
    want = fovea.attention(codes, codes, codes, q_scale=2.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert fovea.attention(*inputs(dtype=torch.float64)).dtype == torch.float64
        assert torch.equal(fovea.attention(codes, codes, codes, q_scale=2.0), want)
        with torch.autocast("cpu", enabled=False):
            assert fovea.attention(*inputs()).dtype == torch.float32


def test_autocast_and_compile():
    def function(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return fovea.attention(q, k, v, causal=True)

    torch._dynamo.reset()
    tensors = inputs()
    got = torch.compile(function, fullgraph=True)(*tensors)
    assert got.dtype == torch.bfloat16 and torch.equal(got, function(*tensors))


# ---- counts of operations ------------------------------------------------------------------------------------------------------


def count(function, *args, **kwargs):
    with FlopCounterMode(display=False) as counter:
        result = function(*args, **kwargs)
    return result, counter.get_total_flops()


def test_flops_are_counted_as_torch_counts_its_own():
    q, k, v = inputs(heads=(4, 4))
    theirs = torch.nn.functional.scaled_dot_product_attention
    for options in ({}, {"is_causal": True}):
        for backward in (False, True):
            run = lambda f, o=options, b=backward: f(q, k, v[..., :16], **o).sum().backward() if b else f(q, k, v[..., :16], **o)  # noqa: E731
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                transposed = lambda q, k, v, **o: theirs(*(t.transpose(1, 2) for t in (q, k, v)), **o)  # noqa: E731
                want = count(run, transposed)[1]
            got = count(run, lambda q, k, v, is_causal=False: fovea.attention(q, k, v, causal=is_causal))[1]
            assert got == (want if not backward else want * 7 // 6)  # the scores are computed again, as every fused backward does


def test_flops_of_ragged_and_cached_attention():
    q, k, v = torch.randn(7, 4, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 24)
    cu = {"cu_seqlens_q": lengths([3, 4]), "cu_seqlens_k": lengths([1, 8])}
    pairs = 3 * 1 + 4 * 8
    assert count(fovea.attention, q, k, v, **cu)[1] == 2 * pairs * 4 * (16 + 24)
    cache, table, kv_len = torch.randn(2, 4, 8, 2, 16), torch.arange(4, dtype=torch.int32).view(2, 2), lengths([9, -4])[1:]
    assert kv_len.tolist() == [9, 5]
    assert count(fovea.paged_attention, q, *cache, table, kv_len, cu["cu_seqlens_q"])[1] == 2 * (3 * 9 + 4 * 5) * 4 * 32
    assert count(fovea.paged_attention, q[:2], *cache, table, kv_len)[1] == 2 * (9 + 5) * 4 * 32
    latent, rows = torch.randn(2, 3, 4, 576), torch.randn(4, 8, 1, 576)
    assert count(fovea.latent_attention, latent, rows, table, kv_len)[1] == 2 * 3 * (9 + 5) * 4 * (576 + 512)
    indices = torch.zeros(2, 3, 5, dtype=torch.int32)
    assert count(fovea.sparse_latent_attention, latent, rows, indices)[1] == 2 * 2 * 3 * 4 * 5 * (576 + 512)
    eight = [torch.randn(1, seq, 2, 64) for seq in (5, 9, 9)]
    assert count(fovea.quantize_and_attend, *eight)[1] == 2 * 5 * 9 * 2 * 128


def test_flops_of_fake_tensors_are_at_the_bounds():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(20, 4, 16)
        cu = torch.empty(4, dtype=torch.int32)
        run = partial(fovea.attention, q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
        assert count(run, max_seqlen_q=6, max_seqlen_k=5)[1] == 2 * 3 * 6 * 5 * 4 * 32


# ---- torch.vmap, torch.func, gradients of gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, 0, 2), (None, 3, 0)])
def test_vmap(in_dims):
    """The mapped dimension joins the batch; gradients flow through."""
    tensors = []
    for tensor, dim in zip(inputs(), in_dims, strict=True):
        wide = tensor if dim is None else torch.stack([tensor.detach(), tensor.detach().flip(1), tensor.detach() * 2], dim)
        tensors.append(wide.detach().requires_grad_())
    run = partial(fovea.attention, causal=True, softcap=3.0, return_lse=True)
    got = torch.vmap(run, in_dims=in_dims)(*tensors)
    each = [run(*(t if dim is None else t.select(dim, at) for t, dim in zip(tensors, in_dims, strict=True))) for at in range(3)]
    want = [torch.stack(results) for results in zip(*each, strict=True)]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(*(torch.autograd.grad(out.sin().sum(), tensors) for out in (got[0], want[0])), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(run, in_dims=in_dims)(*tensors), tuple(want))


def test_what_vmap_does_not_map():
    q, k, v = (tensor.detach() for tensor in inputs())
    with pytest.raises(NotImplementedError, match=r"^sink: got a tensor mapped by torch\.vmap, want only q, k and v mapped"):
        torch.vmap(lambda sink: fovea.attention(q, k, v, sink=sink))(torch.randn(3, 4))
    flat = torch.randn(3, 7, 2, 16)
    with pytest.raises(NotImplementedError, match=r"^cu_seqlens_q: got a tensor within torch\.vmap"):
        torch.vmap(lambda q: fovea.attention(q, q, q, cu_seqlens_q=lengths([7]), cu_seqlens_k=lengths([7])))(flat)
    with pytest.raises(NotImplementedError, match=r"^out: got a value, want None .* within torch\.vmap"):
        torch.vmap(lambda q: fovea.attention(q, k, v, out=torch.empty(2, 5, 4, 24)))(q[None])


@pytest.mark.parametrize("name", [name for name in OPERATORS if not name.startswith("quantized")])
def test_operators_say_what_to_do_instead_of_vmap(name):
    operator, arguments = getattr(torch.ops.fovea, name).default, OPERATORS[name]()
    at = next(at for at, value in enumerate(arguments) if isinstance(value, torch.Tensor | list))
    argument = operator._schema.arguments[at].name
    mapped = (
        torch.stack([arguments[at]] * 2)
        if isinstance(arguments[at], torch.Tensor)
        else [torch.stack([t] * 2) for t in arguments[at]]
    )
    with pytest.raises(NotImplementedError, match=f"^{argument}: got a tensor mapped by torch.vmap, want a plain one"):
        torch.vmap(lambda value: operator(*arguments[:at], value, *arguments[at + 1 :]))(mapped)


def test_functions_say_what_to_do_instead_of_vmap():
    cache, table = torch.randn(2, 4, 8, 2, 16), torch.arange(4, dtype=torch.int32).view(2, 2)
    kv_len = torch.tensor([9, 5], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"^q: got a tensor mapped by torch\.vmap, want a plain one"):
        torch.vmap(lambda q: fovea.paged_attention(q, *cache, table, kv_len))(torch.randn(3, 2, 4, 16))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_transforms_of_functions_are_refused(transform):
    q, k, v = (tensor.detach() for tensor in inputs())
    with pytest.raises(NotImplementedError, match=r"^torch\.func: got grad, vjp or jacrev, want torch\.autograd\.grad"):
        transform(lambda q: fovea.attention(q, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match=r"^torch\.func: got grad"):
        torch.func.grad(lambda q: torch.vmap(lambda q: fovea.attention(q, k, v))(q).sum())(q[None])


@pytest.mark.parametrize(
    "second",
    [
        lambda f, q: torch.autograd.grad(f(q), q, create_graph=True),
        lambda f, q: torch.autograd.functional.hessian(f, q),
        lambda f, q: torch.autograd.gradgradcheck(f, (q.double().detach().requires_grad_(),)),
    ],
)
def test_gradients_of_gradients_are_refused(second):
    q, k, v = inputs()
    with pytest.raises(NotImplementedError, match=r"^create_graph: got True, want False"):
        second(lambda q: fovea.attention(q, k.to(q.dtype), v.to(q.dtype)).sum(), q)


def test_a_function_of_float64_agrees_with_the_formula_under_all_of_it():
    """A checkpoint around a vmap: the gradient is still that of the formula."""
    q = torch.randn(3, 2, 5, 2, 16, dtype=torch.float64, requires_grad=True)
    run = lambda q: torch.vmap(lambda q: fovea.attention(q, q, q, causal=True))(q)  # noqa: E731
    got = torch.autograd.grad(checkpoint(run, q, use_reentrant=False).sin().sum(), q)[0]
    outs = [plain.attention(row, row, row, right=0).out for row in q.flatten(0, 1)]
    want = torch.autograd.grad(torch.stack(outs).sin().sum(), q)[0]
    torch.testing.assert_close(got, want)
