# SPDX-License-Identifier: Apache-2.0
"""qv of FlashAttention-3's functions, ``scale * (q @ k^T + qv @ v^T)``, against float64 attention over rows ``[v, k]``."""

import pytest
import torch

import fovea.compat._flash_attn_latent as latent_module
import fovea.compat.flash_attn_interface as flash_attn_3
import plain
from fovea.compat._flash_attn_cache import Cache as Given
from kvcache import lengths, rotated

COUNTS, PAGE, ROOM = [9, 0, 1, 16, 6], 4, 20
MASKS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "window": ({"window_size": (2, 1), "softmax_scale": 0.1}, {"left": 2, "right": 1, "scale": 0.1}),
}


def queries(*shape):
    return torch.randn(*shape, 64), torch.randn(*shape, 512)


def latent_caches(form, dtype=torch.float32):
    """k_cache, v_cache, options and each sequence's rows ``[v, k]``. Unused rows hold NaN."""
    rows = torch.full((len(COUNTS), ROOM, 576), torch.nan, dtype=dtype)
    for row, count in enumerate(COUNTS):
        rows[row, :count] = torch.randn(count, 576)
    parts = [rows[row, :count].clone() for row, count in enumerate(COUNTS)]
    cache, options = rows, {}
    if form.startswith("pages"):
        table = torch.randperm(len(COUNTS) * ROOM // PAGE, dtype=torch.int32).view(len(COUNTS), -1)
        cache = torch.full((table.numel(), PAGE, 576), torch.nan, dtype=dtype)
        cache[table.flatten().long()] = rows.view(-1, PAGE, 576)
        options = {"page_table": table}
    k, v = cache[..., 512:].unsqueeze(-2), cache[..., :512].unsqueeze(-2)
    if form.endswith("apart"):
        k, v = k.clone(), v.clone()
    return k, v, options, parts


def expected(q, qv, rows, **words):
    return plain.latent(torch.cat([qv, q], -1), rows, **words)


@pytest.mark.parametrize("form", ["dense", "dense apart", "pages", "pages apart"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_over_a_cache(form, mask, seq_q, dtype):
    given, words = MASKS[mask]
    k_cache, v_cache, options, parts = latent_caches(form, dtype)
    q, qv = (x.to(dtype) for x in queries(5, seq_q, 3))
    options |= {"cache_seqlens": torch.tensor(COUNTS).int(), "return_softmax_lse": True, "qv": qv}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, **options, **given)
    assert out.shape == (5, seq_q, 3, 512) and lse.shape == (5, 3, seq_q)
    for row in range(5):
        plain.check(out[row], lse[row].T, expected(q[row], qv[row], parts[row], **words))
    flat = {"cu_seqlens_q": lengths([seq_q] * 5), "max_seqlen_q": seq_q, **options, "qv": qv.flatten(0, 1)}
    same, same_lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, **flat, **given)
    assert torch.equal(same, out.flatten(0, 1)) and torch.equal(same_lse, lse.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("form", ["dense", "pages", "pages apart"])
@pytest.mark.parametrize("rotary", [False, True])
def test_new_rows_are_appended_first(form, rotary):
    k_cache, v_cache, options, parts = latent_caches(form)
    (q, qv), (k, v) = queries(5, 2, 3), queries(5, 2, 1)
    angles = torch.rand(ROOM, 32) * 6
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()} if rotary else {}
    options |= {"cache_seqlens": torch.tensor(COUNTS).int(), "causal": True}
    out = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, qv, **tables, **options)
    for row, count in enumerate(COUNTS):
        places = torch.arange(2) + count
        own = [rotated(x[row], places, *tables.values(), True) if rotary else x[row] for x in (q, k)]
        rows = torch.cat([parts[row], torch.cat([v[row], own[1]], -1)[:, 0]])
        want = expected(own[0], qv[row], rows, right=0)
        torch.testing.assert_close(out[row].double(), want.out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["dense", "pages"])
def test_chunks_and_padding(form):
    k_cache, v_cache, options, parts = latent_caches(form)
    q, qv = queries(5, 1, 3)
    leftpad = [2, 0, 1, 5, 0] if form == "dense" else [0] * 5
    if form == "dense":
        options["cache_leftpad"] = torch.tensor(leftpad).int()
    options |= {"cache_seqlens": torch.tensor(COUNTS).int(), "attention_chunk": 4}
    out = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, qv=qv, **options)
    for row, padding in enumerate(leftpad):
        rows = parts[row][padding:]
        rows = rows[max(len(rows) - 1, 0) // 4 * 4 :]
        plain.check(out[row], None, expected(q[row], qv[row], rows))


@pytest.mark.parametrize("mask", MASKS)
def test_a_fixed_batch(mask):
    given, words = MASKS[mask]
    (q, qv), (k, v) = queries(2, 5, 4), queries(2, 9, 1)
    out, lse = flash_attn_3.flash_attn_func(q, k, v, qv=qv, return_attn_probs=True, **given)
    for row in range(2):
        plain.check(out[row], lse[row].T, expected(q[row], qv[row], torch.cat([v, k], -1)[row, :, 0], **words))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("used", [None, [5, 0, 9, 0]])
def test_a_ragged_batch(mask, used):
    given, words = MASKS[mask]
    q_counts, k_counts = [3, 0, 7, 2], [5, 4, 12, 0]
    (q, qv), (k, v) = queries(12, 4), queries(21, 1)
    for tensor in (k, v):
        for part, count in zip(tensor.split(k_counts), used or k_counts, strict=True):
            part[count:] = torch.nan
    ends = lengths(q_counts), lengths(k_counts), 7, 9 if used else 12
    options = {"qv": qv, "seqused_k": used and torch.tensor(used).int(), "return_attn_probs": True, **given}
    out, lse = flash_attn_3.flash_attn_varlen_func(q, k, v, *ends, **options)
    rows = [part[:count, 0] for part, count in zip(torch.cat([v, k], -1).split(k_counts), used or k_counts, strict=True)]
    parts = zip(q.split(q_counts), qv.split(q_counts), rows, strict=True)
    plain.check(out, lse.T, plain.join([expected(*part, **words) for part in parts]))


def test_errors_of_tensors_name_them():
    (q, qv), (k, v) = queries(2, 5, 4), queries(2, 9, 1)
    with pytest.raises(RuntimeError, match=r"^v\.shape: got \[2, 8, 1, 512\], want \[2, 9, 1, 512\], as k$"):
        flash_attn_3.flash_attn_func(q, k, v[:, :8], qv=qv)
    ends = lengths([5, 5]), lengths([9, 9])
    call = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *ends, 5, 8
    with pytest.raises(RuntimeError, match=r"^cu_seqlens_k\[1\] \(length of the sequence\): got 9, want 0 to 8$"):
        flash_attn_3.flash_attn_varlen_func(*call, qv=qv.flatten(0, 1))


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([0, 4, 10], r"^cu_seqlens_k\[2\]: got 10, want at most 9 \(rows of the tensor\)$"),
        ([0, 9], r"^cu_seqlens_k\.shape: got \[2\], want \[3\]$"),
        ([-1, 4, 9], r"^cu_seqlens_k\[0\]: got -1, want 0 or more$"),
    ],
)
def test_keys_of_a_ragged_batch_lie_within_their_tensor(ends, message):
    (q, qv), (k, v) = queries(8, 4), queries(9, 1)
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_varlen_func(q, k, v, lengths([3, 5]), torch.tensor(ends).int(), 5, 9, qv=qv)


def test_ends_of_no_sequence_name_their_queries():
    (q, qv), (k, v) = queries(8, 4), queries(9, 1)
    with pytest.raises(RuntimeError, match=r"^cu_seqlens_q\.shape: got \[0\], want \[batch \+ 1\]$"):
        flash_attn_3.flash_attn_varlen_func(q, k, v, torch.empty(0).int(), lengths([4, 5]), 5, 9, qv=qv)


def test_two_views_of_one_tensor_are_not_copied():
    for form, copied in (("pages", False), ("dense", False), ("pages apart", True)):
        k, v, *_ = latent_caches(form)
        rows = latent_module.latent_cache(Given(k, v, None, None, None)).k
        assert (rows.data_ptr() != v.data_ptr()) == copied
        assert rows.shape == (*k.shape[:3], 576)
        torch.testing.assert_close(rows, torch.cat([v, k], -1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"qv": torch.randn(5, 1, 3, 256)}, RuntimeError, r"^qv\.shape: got \[5, 1, 3, 256\], want \[5, 1, 3, 512\], as q$"),
        ({"qv": torch.randn(5, 1, 3, 512).half()}, RuntimeError, r"^qv\.dtype: got torch\.float16, want torch\.float32, as q$"),
        ({"softcap": 2.0}, NotImplementedError, r"^softcap: got 2\.0, want 0 \(with qv\)$"),
        ({"k_descale": torch.ones(5, 1)}, NotImplementedError, r"^k_descale: got Tensor, want None \(with qv\)$"),
        ({"v_cache": torch.randn(5, 8, 1, 128)}, NotImplementedError, r"^v_cache\.head_dim \(with qv\): got 128, want 512$"),
        (
            {"v_cache": torch.randn(5, 7, 1, 512)},
            RuntimeError,
            r"^v_cache\.shape: got \[5, 7, 1, 512\], want \[5, 8, 1, 512\], as k_cache$",
        ),
        ({"v_cache": torch.randn(5, 8, 1, 512).half()}, RuntimeError, r"^v_cache\.dtype: got torch\.float16, want torch\.float32"),
        ({"q": torch.randn(5, 1, 3, 64, requires_grad=True)}, NotImplementedError, r"^q\.requires_grad: got True"),
    ],
)
def test_what_does_not_fit(changes, kind, message):
    q, qv = queries(5, 1, 3)
    call = {"q": q, "k_cache": torch.randn(5, 8, 1, 64), "v_cache": torch.randn(5, 8, 1, 512), "qv": qv, "cache_seqlens": 7}
    with pytest.raises(kind, match=message):
        flash_attn_3.flash_attn_with_kvcache(**call | changes)
