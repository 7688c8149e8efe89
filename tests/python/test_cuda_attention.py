# SPDX-License-Identifier: Apache-2.0
"""Dense attention over CUDA tensors: PyTorch's own attention beside it, streams, graphs, torch.compile, and what has no kernel."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import fovea

ROWS = [row for row in fovea.implementations() if row.operation == "attention" and row.name.startswith("cuda.")]
# Entries of their own: 8-bit tensors, and lists of key blocks (test_block_masks.py).
NAMES = [row.name for row in ROWS if row.available and not row.name.endswith(("e4m3", "block_attention"))]
BACKWARD_NAMES = [
    row.name
    for row in fovea.implementations()
    if row.operation == "attention_backward" and row.name.startswith("cuda.") and row.available
]
pytestmark = pytest.mark.skipif(not NAMES, reason="needs a CUDA device")
every_name = pytest.mark.parametrize("name", NAMES)


def tensors(batch=2, seq_q=300, seq_k=300, heads=(8, 2), dims=(128, 128), dtype=torch.bfloat16):
    generator = torch.Generator("cpu").manual_seed(5)
    shapes = ((seq_q, heads[0], dims[0]), (seq_k, heads[1], dims[0]), (seq_k, heads[1], dims[1]))
    return [torch.randn(batch, *shape, generator=generator).to("cuda", dtype) for shape in shapes]


def expected(q, k, v, causal):
    """In single precision; causal from the last query and key on."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda").tril(k.shape[2] - q.shape[2]) if causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


def check(got, want):
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (40, 24)])
@pytest.mark.parametrize("causal", [False, True])
@every_name
def test_matches_torch(name, dtype, dims, causal):
    q, k, v = tensors(dims=dims, dtype=dtype)
    out, lse = fovea.attention(q, k, v, causal=causal, return_lse=True, implementation=name)
    check(out, expected(q, k, v, causal))
    assert lse.isfinite().all()


@pytest.mark.parametrize("seq", [1, 8300])  # splits of the keys; clusters under a causal mask
@every_name
def test_long_keys(name, seq):
    q, k, v = tensors(1, seq, 8300, (4, 1))
    check(fovea.attention(q, k, v, causal=True, implementation=name), expected(q, k, v, True))


@every_name
def test_ragged_is_its_sequences(name):
    lengths = [5, 700, 0, 129, 64]
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    q, k, v = (x[0] for x in tensors(1, sum(lengths), sum(lengths)))
    bounds = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 700, "max_seqlen_k": 700}
    out = fovea.attention(q, k, v, causal=True, **bounds, implementation=name)
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        if end > begin:
            one = (x[None, begin:end] for x in (q, k, v))
            check(out[begin:end], expected(*one, True)[0])


def test_queries_of_all_heads_may_be_one():
    q, k, v = tensors(seq_q=1)
    q = q[:, :, :1].expand_as(q)
    check(fovea.attention(q, k, v), expected(q, k, v, False))


@every_name
def test_no_keys(name):
    q, k, v = tensors()
    out, lse = fovea.attention(q, k[:, :0], v[:, :0], return_lse=True, implementation=name)
    assert not out.any() and lse.isneginf().all()


def test_rows_of_any_alignment():
    q, k, v = tensors()
    apart = [torch.cat([x, x[..., :1]], -1)[..., 1:] for x in (q, k, v)]  # 129 elements from row to row
    check(fovea.attention(*apart), expected(*apart, False))


@every_name
def test_graph_replays_over_other_values(name):
    q, k, v = tensors()
    out = torch.empty_like(q)
    fovea.attention(q, k, v, out=out, implementation=name)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fovea.attention(q, k, v, out=out, implementation=name)
    v.copy_(v.roll(1, 1) * 1.5)
    graph.replay()
    check(out, expected(q, k, v, False))


def test_compiles_without_a_break():
    q, k, v = tensors()
    compiled = torch.compile(lambda q, k, v: fovea.attention(q, k, v, causal=True) * 2, fullgraph=True)
    check(compiled(q, k, v), 2 * expected(q, k, v, True))


def gradients(of, *inputs):
    return torch.autograd.grad((of * torch.linspace(-1, 1, of.numel(), device="cuda").view_as(of)).sum(), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (40, 72), (192, 128), (136, 200), (256, 256)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [(300, 300), (130, 900), (2000, 2000)])
def test_gradients_match_torch(dtype, dims, causal, seq):
    inputs = [x.requires_grad_() for x in tensors(1, *seq, dims=dims, dtype=dtype)]
    want = gradients(expected(*inputs, causal), *inputs)
    runs = [
        gradients(fovea.attention(*inputs, causal=causal, deterministic=deterministic), *inputs)
        for deterministic in (False, True, True)
    ]
    for got in runs:
        for one, other in zip(got, want, strict=True):
            assert (one.float() - other.float()).norm() < 1e-2 * other.float().norm()
    assert all(map(torch.equal, *runs[1:]))


@pytest.mark.parametrize("dims", [(128, 128), (192, 128), (256, 256)])
def test_ragged_gradients_are_those_of_sequences(dims):
    cu = torch.tensor([200, 205, 905, 905, 1034], device="cuda").int()  # rows before the first sequence, and behind the last
    whole = [x[0].requires_grad_() for x in tensors(1, 1100, 1100, dims=dims)]
    of_rows = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 700, "max_seqlen_k": 700}
    out = fovea.attention(*whole, causal=True, **of_rows)
    dout = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out)
    got = torch.autograd.grad(out, whole, dout.to(out.dtype))
    want = [torch.zeros_like(x) for x in got]
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        if end > begin:
            one = [x.detach()[None, begin:end].requires_grad_() for x in whole]
            of_one = torch.autograd.grad(expected(*one, True), one, dout[None, begin:end])
            for x, y in zip(want, of_one, strict=True):
                x[begin:end] = y[0]
    for one, other in zip(got, want, strict=True):
        assert (one.float() - other.float()).norm() < 1e-2 * other.float().norm()
        assert not one[:200].any() and not one[1034:].any()


@pytest.mark.parametrize("dims", [(128, 128), (40, 24)])
@pytest.mark.parametrize("apart", [0, 1])  # elements between rows, which are not aligned to 16 bytes then
@pytest.mark.parametrize("name", BACKWARD_NAMES)
def test_gradients_of_every_implementation(name, dims, apart):
    inputs = tensors(dims=dims)
    q, k, v = (torch.cat([x[..., :apart], x], -1)[..., apart:].requires_grad_() for x in inputs)
    out, lse = fovea.attention(q.detach(), k.detach(), v.detach(), causal=True, return_lse=True)
    dout = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out).to(out.dtype)
    try:
        got = fovea.attention_backward(dout, q.detach(), k.detach(), v.detach(), out, lse, causal=True, implementation=name)
    except NotImplementedError as error:
        assert apart and "want a multiple of 16" in str(error) and "portable" not in name
        return
    want = torch.autograd.grad(expected(q, k, v, True), (q, k, v), dout.float())
    for one, other in zip(got, want, strict=True):
        assert (one.float() - other.float()).norm() < 1e-2 * other.float().norm()


def test_gradient_compiles_and_is_recorded():
    inputs = [x.requires_grad_() for x in tensors()]
    want = gradients(fovea.attention(*inputs, causal=True, deterministic=True), *inputs)
    compiled = torch.compile(lambda q, k, v: fovea.attention(q, k, v, causal=True, deterministic=True), fullgraph=True)
    assert all(map(torch.equal, gradients(compiled(*inputs), *inputs), want))
    with torch.no_grad():
        q, k, v = (x.detach() for x in inputs)
        out, lse = fovea.attention(q, k, v, causal=True, return_lse=True)
        dout = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out).to(out.dtype)
        fovea.attention_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = fovea.attention_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)
        for _ in range(2):
            graph.replay()
            assert all(map(torch.equal, recorded, want))


@every_name
def test_same_bits_again(name):
    q, k, v = tensors(1, 2, 6000, (16, 2))
    first, second = (fovea.attention(q, k, v, implementation=name) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.skipif(not any(row.available and row.name.endswith("e4m3") for row in ROWS), reason="needs a Hopper GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_e4m3_is_taken_by_default(causal: bool) -> None:
    q, k, v = (torch.randn(2, 333, heads, 128, device="cuda").to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    got = fovea.attention(q, k, v, causal=causal).double()
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    want = scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True).transpose(1, 2)
    assert (got - want).norm() < 6e-2 * want.norm()
