# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea
import plain

HALF = [torch.bfloat16, torch.float16]
CASES = {
    "full": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "anchor": "top_left"},
    "window": {"window": (5, 2)},
    "sliding": {"causal": True, "window": (7, None)},
    "from the diagonal": {"window": (0, 4)},
    "softcap": {"causal": True, "softcap": 3.0},
    "sink": {"causal": True, "sink": True},
    "scale": {"scale": 0.25},
}


def expect(q, k, v, options) -> plain.Expected:
    """The batch of fixed length, row after row as if it were ragged."""
    left, right = options.get("window") or (None, None)
    if options.get("causal"):
        right = 0 if right is None else min(right, 0)
    offset = 0 if options.get("anchor") == "top_left" else None
    same = {name: options[name] for name in ("scale", "softcap", "sink") if name in options}
    return plain.join([plain.attention(*rows, left=left, right=right, offset=offset, **same) for rows in zip(q, k, v, strict=True)])


def tensors(batch, seqs, heads, dims, dtype=torch.float32):
    """q, k and v: lengths of q and of k, heads of q and of k, head dims of q and of v."""
    (seq_q, seq_k), (head, kv_head), (dqk, dv) = seqs, heads, dims
    return (
        torch.randn(batch, seq_q, head, dqk).to(dtype),
        torch.randn(batch, seq_k, kv_head, dqk).to(dtype),
        torch.randn(batch, seq_k, kv_head, dv).to(dtype),
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_values(case, dtype, attention_implementation):
    q, k, v = tensors(2, (13, 21), (4, 2), (64, 64), dtype)
    options = dict(CASES[case])
    if "sink" in options:
        options["sink"] = torch.randn(4)
    out, lse = fovea.attention(q, k, v, **options, return_lse=True, implementation=attention_implementation)
    assert out.dtype == dtype and lse.shape == (2, 4, 13)
    plain.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), expect(q, k, v, options))


@pytest.mark.parametrize("dims", [(8, 8), (192, 128), (256, 256), (40, 72), (512, 512), (320, 72)])
def test_head_dims_and_groups(dims, attention_implementation):
    for head, kv_head in ((1, 1), (6, 1), (6, 3), (5, 5)):
        q, k, v = tensors(1, (9, 33), (head, kv_head), dims, torch.bfloat16)
        out = fovea.attention(q, k, v, causal=True, implementation=attention_implementation)
        plain.check(out.flatten(0, 1), None, expect(q, k, v, {"causal": True}))


def test_long_enough_for_tiles_and_threads():
    q, k, v = tensors(1, (300, 700), (4, 2), (64, 64))
    out, lse = fovea.attention(q, k, v, causal=True, return_lse=True)
    plain.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), expect(q, k, v, {"causal": True}))


def test_rows_without_keys(attention_implementation):
    q, k, v = tensors(1, (6, 3), (2, 2), (32, 32))
    out, lse = fovea.attention(q, k, v, causal=True, return_lse=True, implementation=attention_implementation)
    assert torch.equal(out[0, :3], torch.zeros(3, 2, 32))
    assert torch.equal(lse[0, :, :3], torch.full((2, 3), -torch.inf))
    plain.check(out[0], lse[0].T, expect(q, k, v, {"causal": True}))


def test_ragged(attention_implementation):
    lengths_q, lengths_k = [5, 0, 1, 12], [5, 4, 9, 0]
    q = torch.randn(sum(lengths_q), 4, 64)
    k, v = torch.randn(2, sum(lengths_k), 2, 64)
    cu_q = torch.tensor([0, *lengths_q]).cumsum(0).int()
    cu_k = torch.tensor([0, *lengths_k]).cumsum(0).int()
    out, lse = fovea.attention(
        q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, implementation=attention_implementation
    )
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    plain.check(out, lse, plain.join([plain.attention(*part, right=0) for part in parts]))
    bounded = fovea.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=12, max_seqlen_k=9)
    torch.testing.assert_close(bounded, out, atol=1e-5, rtol=1e-5)


def test_any_strides(attention_implementation):
    packed = torch.randn(2, 11, 3, 4, 64 + 8)[..., :64]  # q, k, v in one tensor, rows padded
    q, k, v = packed.unbind(2)
    k = k[:, :, :2]
    v = v.transpose(1, 2).contiguous().transpose(1, 2)[:, :, ::2]
    out = torch.full((2, 4, 11, 64), torch.nan).transpose(1, 2)
    lse = torch.full((2, 11, 4), torch.nan).transpose(1, 2)
    fovea.attention(q, k, v, causal=True, out=out, lse=lse, implementation=attention_implementation)
    plain.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), expect(q, k, v, {"causal": True}))


def test_broadcast_keys(attention_implementation):
    q, k, v = tensors(3, (4, 10), (2, 2), (32, 32))
    k, v = k[:1].expand(3, -1, -1, -1), v[:1].expand(3, -1, -1, -1)
    out = fovea.attention(q, k, v, implementation=attention_implementation)
    plain.check(out.flatten(0, 1), None, expect(q, k, v, {}))


def test_misaligned_view(attention_implementation):
    flat = torch.randn(2 * 9 * 2 * 32 + 1)[1:]  # 4 bytes past an aligned address
    q = flat.view(2, 9, 2, 32)
    out = fovea.attention(q, q, q, causal=True, implementation=attention_implementation)
    plain.check(out.flatten(0, 1), None, expect(q, q, q, {"causal": True}))


def test_out_is_returned_and_nothing_else_written(poison):
    q, k, v = tensors(1, (4, 4), (2, 2), (32, 32))
    wide = poison(1, 4, 2, 48)
    out = fovea.attention(q, k, v, out=wide[..., :32])
    assert out.data_ptr() == wide.data_ptr()
    assert wide[..., 32:].isnan().all() and not wide[..., :32].isnan().any()


@pytest.mark.parametrize("scaled", ["none", "number", "tensor", "heads", "batch"])
def test_e4m3(scaled):
    codes = [torch.randn(2, 7, heads, 64).to(torch.float8_e4m3fn) for heads in (4, 2, 2)]
    scales = {
        "none": [None] * 3,
        "number": [0.5, 0.25, 2.0],
        "tensor": [torch.tensor(0.5), torch.tensor([0.25]), torch.tensor(2.0)],
        "heads": [torch.rand(2) + 0.5 for _ in range(3)],
        "batch": [torch.rand(2, 2) + 0.5 for _ in range(3)],
    }[scaled]
    out = fovea.attention(*codes, causal=True, q_scale=scales[0], k_scale=scales[1], v_scale=scales[2])
    assert out.dtype == torch.bfloat16
    wide = []
    for code, scale in zip(codes, scales, strict=True):
        scale = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float64)
        scale = scale.expand(2, 2) if scale.numel() > 1 else scale.reshape(1, 1).expand(2, 2)
        wide.append(code.double() * scale.repeat_interleave(code.shape[2] // 2, dim=1)[:, None, :, None])
    plain.check(out.flatten(0, 1), None, expect(*wide, {"causal": True}))


def test_float64_is_the_references(attention_implementation):
    q, k, v = tensors(2, (13, 21), (4, 2), (64, 40), torch.float64)
    options = {"causal": True, "softcap": 4.0, "scale": 0.125}  # a float32 holds the scale exactly
    of_cpu = [row for row in fovea.implementations() if row.operation == "attention" and row.backend == "cpu"]
    first = next(row.name for row in of_cpu if row.available)
    with pytest.raises(NotImplementedError, match=r"q\.dtype: got torch\.float64"):
        fovea.attention(q, k, v, **options, implementation=first)
    out, lse = fovea.attention(q, k, v, **options, return_lse=True, implementation=attention_implementation)
    want = expect(q, k, v, options)
    assert out.dtype == torch.float64 and lse.dtype == torch.float32
    torch.testing.assert_close(out.flatten(0, 1), want.out, rtol=1e-13, atol=1e-13)


def test_nothing_to_do():
    empty = torch.empty(0, 5, 2, 32)
    assert fovea.attention(empty, empty, empty).shape == (0, 5, 2, 32)
    q, k = torch.randn(2, 0, 2, 32), torch.randn(2, 3, 2, 32)
    assert fovea.attention(q, k, k).shape == (2, 0, 2, 32)
    out, lse = fovea.attention(k, q, q, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -torch.inf).all())


def test_batch_invariant():
    q, k, v = tensors(3, (1, 900), (4, 2), (64, 64))
    together = fovea.attention(q, k, v, batch_invariant=True)
    alone = fovea.attention(q[1:2], k[1:2], v[1:2], batch_invariant=True)
    assert torch.equal(together[1:2], alone)
