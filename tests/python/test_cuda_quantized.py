# SPDX-License-Identifier: Apache-2.0
"""8-bit attention on CUDA tensors: the CPU's results beside it, streams, graphs, and what has no kernel."""

from itertools import pairwise

import pytest
import torch

import fovea
import int8

WHOLE = [row for row in fovea.implementations() if row.operation == "quantize_and_attend" and row.name.startswith("cuda.")]
NAMES = [
    row.name
    for row in fovea.implementations()
    if row.operation == "quantized_attention" and row.name.startswith("cuda.") and row.available
]
pytestmark = pytest.mark.skipif(not NAMES or not any(row.available for row in WHOLE), reason="needs a CUDA device")
every_name = pytest.mark.parametrize("name", NAMES)
every_kind = pytest.mark.parametrize(("granularity", "warp_rows"), int8.KINDS)
every_v = pytest.mark.parametrize("v_dtype", [torch.float16, torch.float8_e4m3fn])
LENGTHS = [5, 300, 0, 129, 64]


def tensors(batch=2, seq_q=200, seq_k=300, heads=(6, 2), dim=128, dtype=torch.bfloat16):
    """Keys and values far from zero."""
    generator = torch.Generator("cpu").manual_seed(11)
    shapes = ((seq_q, heads[0], dim), (seq_k, heads[1], dim), (seq_k, heads[1], dim))
    q, k, v = (torch.randn(batch, *shape, generator=generator) for shape in shapes)
    return tuple(x.to(dtype) for x in (q, k + 4 * k[0, 0], v + 2 * v[0, 0]))


def moved(quantized, device="cuda"):
    return type(quantized)(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in quantized))


def same(got, want):
    """Bit for bit, but for means: they are sums in another order."""
    for name, x, y in zip(got._fields, got, want, strict=True):
        if not isinstance(y, torch.Tensor):
            assert x == y
        elif "mean" in name or name == "lse_shift":
            torch.testing.assert_close(x.cpu(), y, rtol=1e-5, atol=1e-4)
        else:
            assert torch.equal(x.cpu().float(), y.float()), name


def bounds(device):
    cu = torch.tensor([0, *LENGTHS]).cumsum(0).int().to(device)
    return {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": max(LENGTHS), "max_seqlen_k": max(LENGTHS)}


@every_kind
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quantises_as_the_cpu_does(granularity, warp_rows, dim, dtype):
    q, k, v = tensors(dim=dim, dtype=dtype)
    options = {"granularity": granularity, "warp_rows": warp_rows, "smooth_k": False}
    same(fovea.quantize_qk_int8(q.cuda(), k.cuda(), **options), fovea.quantize_qk_int8(q, k, **options))
    for v_dtype in (torch.float16, torch.float8_e4m3fn):
        same(fovea.quantize_v(v.cuda(), dtype=v_dtype), fovea.quantize_v(v, dtype=v_dtype))


def test_quantises_a_ragged_batch_as_the_cpu_does():
    q, k, v = (x[0] for x in tensors(1, sum(LENGTHS), sum(LENGTHS)))
    one, other = bounds("cuda"), bounds("cpu")
    got, want = (
        fovea.quantize_qk_int8(q.cuda(), k.cuda(), smooth_k=False, **one),
        fovea.quantize_qk_int8(q, k, smooth_k=False, **other),
    )
    assert torch.equal(got.q.cpu(), want.q) and torch.equal(got.k.cpu(), want.k)
    lengths = ("cu_seqlens_k", "max_seqlen_k")
    same(*(fovea.quantize_v(x, dtype=torch.float8_e4m3fn, **{n: b[n] for n in lengths}) for x, b in ((v.cuda(), one), (v, other))))


def test_smooths_as_the_cpu_does():
    q, k, v = tensors()
    got, want = fovea.quantize_qk_int8(q.cuda(), k.cuda()), fovea.quantize_qk_int8(q, k)
    torch.testing.assert_close(got.k_mean.cpu(), want.k_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got.lse_shift.cpu(), want.lse_shift, rtol=1e-5, atol=1e-3)
    assert (got.k.cpu().int() - want.k.int()).abs().max() <= 1
    got, want = (fovea.quantize_v(x, smooth_v=True) for x in (v.cuda(), v))
    torch.testing.assert_close(got.mean.cpu(), want.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got.v.cpu(), want.v, rtol=1e-3, atol=1e-3)


@every_kind
@every_v
@pytest.mark.parametrize("causal", [False, True])
@every_name
def test_attends_as_the_cpu_does(name, granularity, warp_rows, v_dtype, causal):
    q, k, v = tensors()
    qk = fovea.quantize_qk_int8(q, k, granularity=granularity, warp_rows=warp_rows)
    values = fovea.quantize_v(v, dtype=v_dtype, smooth_v=True)
    options = {"causal": causal, "return_lse": True, "dtype": torch.float32}
    want, want_lse = fovea.quantized_attention(qk, values, **options)
    got, lse = fovea.quantized_attention(moved(qk), moved(values), **options, implementation=name)
    if name.startswith("cuda.sm90.") and v_dtype == torch.float8_e4m3fn:  # rounds P to e4m3: half of 2^-3 at most, half of that rms
        assert (got.cpu() - want).norm() <= 0.04 * want.norm()
    else:
        torch.testing.assert_close(got.cpu(), want, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse.cpu(), want_lse, rtol=1e-5, atol=1e-4)


@every_v
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
def test_the_whole_is_near_exact_attention(dim, v_dtype):
    q, k, v = (x.cuda() for x in tensors(seq_q=512, seq_k=512, dim=dim))
    got, lse = fovea.quantize_and_attend(q, k, v, causal=True, v_dtype=v_dtype, smooth_v=True, return_lse=True)
    want, want_lse = fovea.attention(q.float().cpu(), k.float().cpu(), v.float().cpu(), causal=True, return_lse=True)
    difference, centred = got.cpu().float() - want, want - want.mean(dim=1, keepdim=True)
    assert difference.abs().sum() <= (0.02 if v_dtype == torch.float16 else 0.06) * centred.abs().sum() + 0.004 * want.abs().sum()
    torch.testing.assert_close(lse.cpu(), want_lse, rtol=1e-3, atol=3e-2)


@every_v
def test_a_ragged_batch_is_its_sequences(v_dtype):
    q, k, v = (x[0].cuda() for x in tensors(1, sum(LENGTHS), sum(LENGTHS)))
    lengths = bounds("cuda")
    out = fovea.quantize_and_attend(q, k, v, causal=True, v_dtype=v_dtype, **lengths)
    cu = lengths["cu_seqlens_q"].tolist()
    for begin, end in pairwise(cu):
        one = fovea.quantize_and_attend(*(x[None, begin:end] for x in (q, k, v)), causal=True, v_dtype=v_dtype)
        assert torch.equal(out[begin:end], one[0])


def in_steps(q, k, v, v_dtype, lengths, **options):
    qk = fovea.quantize_qk_int8(q, k, **lengths)
    of_keys = {name: value for name, value in lengths.items() if name.endswith("_k")}
    values = fovea.quantize_v(v, dtype=v_dtype, smooth_v=True, **of_keys)
    return fovea.quantized_attention(qk, values, dtype=q.dtype, return_lse=True, **lengths, **options)


def expect_the_bits_of_the_steps(q, k, v, v_dtype, lengths=None, causal=False):
    """Whatever the workspace held before: the allocator gives freed memory again."""
    for count in (1 << 16, 1 << 25):
        torch.full((count,), float("nan"), device="cuda")
    options = {"causal": causal, "return_lse": True, **(lengths or {})}
    got = fovea.quantize_and_attend(q, k, v, v_dtype=v_dtype, smooth_v=True, **options)
    for x, y in zip(got, in_steps(q, k, v, v_dtype, lengths or {}, causal=causal), strict=True):
        assert torch.equal(x, y) and not x.isnan().any()


@every_v
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("heads", [(6, 2), (3, 3)])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(200, 300), (1, 1), (128, 128), (64, 385), (70, 0)])
def test_one_call_gives_the_bits_of_its_steps(seq_q, seq_k, heads, dim, v_dtype):
    q, k, v = (x.cuda() for x in tensors(3, seq_q, max(seq_k, 1), heads, dim))
    k, v = k[:, :seq_k], v[:, :seq_k]
    expect_the_bits_of_the_steps(q, k, v, v_dtype, causal=seq_k >= seq_q)
    shifted = torch.zeros(*v.shape[:3], dim + 1, device="cuda", dtype=v.dtype)[..., 1:]
    expect_the_bits_of_the_steps(q, k, shifted.copy_(v), v_dtype)


@every_v
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_one_call_gives_the_bits_of_its_steps_in_a_ragged_batch(causal, dim, v_dtype):
    q, k, v = (x[0].cuda() for x in tensors(1, sum(LENGTHS) + 9, sum(LENGTHS) + 9, dim=dim))
    lengths = bounds("cuda")
    k[sum(LENGTHS) :], v[sum(LENGTHS) :] = float("nan"), float("nan")  # of no sequence
    q = q[: sum(LENGTHS)]
    expect_the_bits_of_the_steps(q, k, v, v_dtype, lengths, causal)


def test_keys_that_no_row_sees_are_not_read():
    q, k, v = (x.cuda() for x in tensors(seq_q=100, seq_k=400))
    k[:, :190], v[:, :190] = float("nan"), float("inf")
    assert fovea.quantize_and_attend(q, k, v, window=(110, 0), v_dtype=torch.float8_e4m3fn).isfinite().all()


@every_v
def test_graph_replays_over_other_values_on_a_side_stream(v_dtype):
    q, k, v = (x.cuda() for x in tensors())
    options = {"causal": True, "v_dtype": v_dtype}
    out = fovea.quantize_and_attend(q, k, v, **options)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        fovea.quantize_and_attend(q, k, v, **options, out=out)
        with torch.cuda.graph(graph, stream=stream):
            fovea.quantize_and_attend(q, k, v, **options, out=out)
        for x in (q, k, v):
            x.copy_(x.flip(1) * 1.5)
        graph.replay()
    stream.synchronize()
    assert torch.equal(out, fovea.quantize_and_attend(q, k, v, **options))


def test_runs_are_alike():
    q, k, v = (x.cuda() for x in tensors(1, 1000, 1000))
    assert all(torch.equal(fovea.quantize_and_attend(q, k, v), fovea.quantize_and_attend(q, k, v)) for _ in range(3))


def test_float32_has_no_kernel():
    q, k, v = (x.cuda() for x in tensors(dtype=torch.float32))
    with pytest.raises(NotImplementedError, match=r"q.dtype: got .*float32, want .*bfloat16 or .*float16"):
        fovea.quantize_and_attend(q, k, v)
