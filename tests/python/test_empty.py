# SPDX-License-Identifier: Apache-2.0
"""Calls without sequences, queries, keys, tokens or blocks: results of the right shapes, and gradients of zeros."""

import pytest
import torch

import fovea
from fovea.compat import flash_attn, sageattention
from fovea.compat.flashinfer import single_prefill_with_kv_cache

FIXED = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0), (2, 0, 0)]
RAGGED = [([0], [0]), ([0, 0], [0, 4]), ([0, 3], [0, 0]), ([0, 0, 0], [0, 2, 4]), ([0, 0, 0], [0, 0, 0]), ([0, 3, 3], [0, 0, 4])]
FORMATS = fovea.cache_formats()


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def leaves(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def check_zero_gradients(results, inputs):
    """Checks that the gradients of a sum are zero. The gradient of a sum is an expanded number."""
    results = results if isinstance(results, tuple) else (results,)
    for result in results:
        assert ((result == 0) | (result == -torch.inf)).all()
    sum(result.sum() for result in results).backward()
    for tensor in inputs:
        assert tensor.grad.shape == tensor.shape and not tensor.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), FIXED)
def test_gradients_of_fixed_batches(batch, seq_q, seq_k, dtype, attention_implementation):
    q, k, v, sink = leaves((batch, seq_q, 4, 16), (batch, seq_k, 2, 16), (batch, seq_k, 2, 8), 4, dtype=dtype)
    sink = sink.detach().float().requires_grad_()
    options = {"implementation": attention_implementation}
    check_zero_gradients(fovea.attention(q, k, v, **options), (q, k, v))
    check_zero_gradients(fovea.attention(q, k, v, sink=sink, return_lse=True, **options), (q, k, v, sink))


@pytest.mark.parametrize(("cu_q", "cu_k"), RAGGED)
def test_gradients_of_ragged_batches(cu_q, cu_k, attention_implementation):
    q, k, v, sink = leaves((cu_q[-1], 4, 16), (cu_k[-1], 2, 16), (cu_k[-1], 2, 8), 4)
    options = {"cu_seqlens_q": int32(cu_q), "cu_seqlens_k": int32(cu_k), "implementation": attention_implementation}
    check_zero_gradients(fovea.attention(q, k, v, **options), (q, k, v))
    check_zero_gradients(fovea.attention(q, k, v, sink=sink, return_lse=True, **options), (q, k, v, sink))


@pytest.mark.parametrize("bounds", [(0, 2), (5, 0), (0, 0)])
def test_a_bias_of_bounds_without_rows_or_keys(bounds, attention_implementation):
    """There are rows and keys, but the bounds leave sequences none, and so the bias has no element."""
    q, k = torch.randn(5, 2, 16), torch.randn(2, 2, 16)
    cu = torch.zeros(2, dtype=torch.int32)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": bounds[0], "max_seqlen_k": bounds[1]}
    out = fovea.attention(q, k, k, bias=torch.empty(1, 1, *bounds), **lengths, implementation=attention_implementation)
    assert torch.equal(out, torch.zeros_like(q))


def test_strides_of_tensors_without_elements_do_not_matter():
    q, k = torch.zeros(1).expand(2, 0, 4, 16), torch.randn(2, 2, 16, 5).transpose(2, 3)[:, :, :0].transpose(1, 2)
    assert fovea.attention(q, k, k).shape == (2, 0, 4, 16)
    out, lse = torch.zeros(1).expand(2, 0, 4, 16), torch.zeros(1).expand(2, 4, 0)
    fovea.attention(q, k, k, out=out, lse=lse)
    gradients = fovea.attention_backward(q, q, k, k, out, lse)
    assert [tuple(tensor.shape) for tensor in gradients] == [(2, 0, 4, 16), (2, 0, 2, 16), (2, 0, 2, 16)]


@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), FIXED)
def test_gradients_of_other_layouts(batch, seq_q, seq_k):
    q, k, v = leaves(*((batch, 2, seq, 16) for seq in (seq_q, seq_k, seq_k)))
    check_zero_gradients(fovea.scaled_dot_product_attention(q, k, v), (q, k, v))
    q, k, v = leaves((batch, seq_q, 4, 16), (batch, seq_k, 2, 16), (batch, seq_k, 2, 16))
    check_zero_gradients(flash_attn.flash_attn_func(q, k, v), (q, k, v))
    heads = (torch.randn(batch, head, seq, 64) for head, seq in ((4, seq_q), (2, seq_k), (2, seq_k)))
    out, lse = sageattention.sageattn(*heads, return_lse=True)
    assert out.shape == (batch, 4, seq_q, 64) and not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize(("cu_q", "cu_k"), RAGGED)
def test_gradients_of_ragged_batches_by_flash_attn(cu_q, cu_k):
    q, k, v = leaves((cu_q[-1], 4, 16), (cu_k[-1], 2, 16), (cu_k[-1], 2, 16))
    out = flash_attn.flash_attn_varlen_func(q, k, v, int32(cu_q), int32(cu_k), cu_q[-1], cu_k[-1])
    check_zero_gradients(out, (q, k, v))


@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 4), (3, 0), (0, 0)])
def test_flashinfer_takes_empty_sequences(seq_q, seq_k):
    k = torch.randn(seq_k, 2, 64)
    out, lse = single_prefill_with_kv_cache(torch.randn(seq_q, 4, 64), k, k, return_lse=True)
    assert out.shape == (seq_q, 4, 64) and not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("blocks", [0, 6])
@pytest.mark.parametrize(("batch", "width"), [(0, 2), (2, 0), (2, 2)])
def test_caches_without_tokens(blocks, batch, width, paged_attention_implementation):
    cache, table = torch.randn(6, 8, 2, 64)[:blocks], torch.zeros(batch, width, dtype=torch.int32)
    lengths, options = int32([0] * batch), {"implementation": paged_attention_implementation, "return_lse": True}
    for rows, cu_seqlens_q in ((batch, None), (0, int32([0] * (batch + 1)))):
        out, lse = fovea.paged_attention(torch.randn(rows, 4, 64), cache, cache, table, lengths, cu_seqlens_q, **options)
        assert out.shape == (rows, 4, 64) and not out.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("blocks", [0, 6])
@pytest.mark.parametrize(("batch", "seq_q"), [(0, 3), (2, 0), (2, 3)])
def test_latent_caches_without_tokens(blocks, batch, seq_q, latent_attention_implementation):
    options = {"implementation": latent_attention_implementation, "return_lse": True}
    table, lengths = torch.zeros(batch, 2, dtype=torch.int32), int32([0] * batch)
    rows, packed = torch.randn(6, 8, 1, 576)[:blocks], FORMATS["v32_fp8"].empty(blocks, 8)
    for cache, format, dtype in ((rows, "rows", torch.float32), (packed, "v32_fp8", torch.bfloat16)):
        q = torch.randn(batch, seq_q, 4, 576, dtype=dtype)
        out, lse = fovea.latent_attention(q, cache, table, lengths, format=format, **options)
        assert out.shape == (batch, seq_q, 4, 512) and not out.any() and (lse == -torch.inf).all()
        ragged = (table, lengths, int32([0] * (batch + 1)))
        assert fovea.latent_attention(q.flatten(0, 1)[:0], cache, *ragged, format=format, **options)[0].shape == (0, 4, 512)


@pytest.mark.parametrize("blocks", [0, 6])
@pytest.mark.parametrize(("batch", "seq_q", "topk"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 3, 5)])
def test_lists_without_tokens(blocks, batch, seq_q, topk, sparse_latent_attention_implementation):
    cache, indices = torch.randn(6, 8, 1, 576)[:blocks], torch.full((batch, seq_q, topk), -1, dtype=torch.int32)
    options = {"implementation": sparse_latent_attention_implementation, "return_lse": True, "return_max_logits": True}
    q = torch.randn(batch, seq_q, 4, 576)
    out, lse, most = fovea.sparse_latent_attention(q, cache, indices, **options)
    assert out.shape == (batch, seq_q, 4, 512) and not out.any() and (lse == -torch.inf).all() and (most == -torch.inf).all()
    assert fovea.sparse_latent_attention(q.flatten(0, 1), cache, indices.flatten(0, 1), **options)[0].shape[0] == batch * seq_q


@pytest.mark.parametrize("blocks", [0, 2])
def test_nothing_is_written_to_or_read_from_caches(blocks):
    cache, rows, none = torch.ones(blocks, 8, 2, 64), torch.randn(3, 2, 64), torch.zeros(0, dtype=torch.int64)
    fovea.paged_cache_append(rows[:0], rows[:0], cache, cache.clone(), none)
    fovea.paged_cache_append(rows, rows, cache, cache.clone(), torch.full((3,), -1))
    assert (cache == 1).all()
    packed = FORMATS["v32_fp8"].empty(blocks, 8).fill_(7)
    fovea.quantize_latent_cache(torch.randn(0, 576), packed, none, format="v32_fp8")
    fovea.quantize_latent_cache(torch.randn(3, 576), packed, torch.full((3,), -1), format="v32_fp8")
    assert (packed == 7).all()
    assert fovea.dequantize_latent_cache(packed, none, format="v32_fp8").shape == (0, 576)


@pytest.mark.parametrize("parts", [1, 3])
def test_merging_no_rows(parts):
    outs, lses = leaves(*[(0, 2, 8)] * parts), leaves(*[(0, 2)] * parts)
    check_zero_gradients(fovea.merge_states(outs, lses), (*outs, *lses))


@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), FIXED)
def test_eight_bits(batch, seq_q, seq_k, quantize_and_attend_implementation):
    q, k = torch.randn(batch, seq_q, 4, 64), torch.randn(batch, seq_k, 2, 64)
    for granularity in ("block", "warp", "thread"):
        for v_dtype in (torch.float16, torch.float8_e4m3fn):
            qk, v = fovea.quantize_qk_int8(q, k, granularity=granularity), fovea.quantize_v(k, dtype=v_dtype)
            implementation = quantize_and_attend_implementation
            options = {"granularity": granularity, "v_dtype": v_dtype, "implementation": implementation, "return_lse": True}
            results = fovea.quantized_attention(qk, v, return_lse=True), fovea.quantize_and_attend(q, k, k, **options)
            for out, lse in results:
                assert out.shape == (batch, seq_q, 4, 64) and not out.any() and (lse == -torch.inf).all()


def on(device, *tensors):
    """In the dtype of the device's fastest kernels."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return [tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device) for tensor in tensors]


@pytest.mark.parametrize("with_sink", [False, True])
def test_gradients_on_each_device(attention_backward_device, with_sink):
    device = attention_backward_device
    for dim in (64, 192, 256):
        shapes = [((b, seq_q, 4, dim), (b, seq_k, 2, dim), {}) for b, seq_q, seq_k in FIXED]
        for cu_q, cu_k in RAGGED:
            lengths = {"cu_seqlens_q": int32(cu_q).to(device), "cu_seqlens_k": int32(cu_k).to(device)}
            shapes.append(((cu_q[-1], 4, dim), (cu_k[-1], 2, dim), lengths))
        for of_q, of_k, lengths in shapes:
            inputs = [tensor.requires_grad_() for tensor in on(device, *map(torch.randn, (of_q, of_k, of_k)))]
            sink = torch.randn(4, device=device, requires_grad=True) if with_sink else None
            torch.full((4,), torch.nan, device=device)  # what its gradient's memory held before
            results = fovea.attention(*inputs, sink=sink, causal=True, return_lse=True, **lengths)
            check_zero_gradients(results, [*inputs, sink] if with_sink else inputs)


def test_paged_operations_on_each_device(paged_attention_device):
    device = paged_attention_device
    for blocks, batch, width, rows in ((0, 2, 2, 2), (0, 2, 0, 2), (6, 0, 2, 0), (6, 2, 2, 0), (0, 2, 0, 300)):
        q, cache, table = on(device, torch.randn(rows, 8, 64), torch.randn(blocks, 8, 2, 64), torch.zeros(batch, width).int())
        cu_seqlens_q, lengths = on(device, int32([0] * batch + [rows]), int32([0] * batch))
        out = fovea.paged_attention(q, cache, cache, table, lengths, cu_seqlens_q)
        assert out.shape == q.shape and not out.any()
        none, skipped = on(device, torch.zeros(0).long(), torch.full((3,), -1))
        k = q.new_zeros(3, 2, 64)
        fovea.paged_cache_append(k[:0], k[:0], cache, cache.clone(), none)
        fovea.paged_cache_append(k, k, cache, cache.clone(), skipped)


def test_latent_operations_on_each_device(latent_attention_device):
    device = latent_attention_device
    for blocks, batch, seq_q in ((0, 2, 1), (0, 2, 64), (6, 0, 1), (6, 2, 0), (6, 2, 3)):
        q, cache = on(device, torch.randn(batch, seq_q, 16, 576), torch.randn(blocks, 64, 1, 576))
        table, lengths = on(device, torch.zeros(batch, 2).int(), int32([0] * batch))
        indices = torch.full((batch, seq_q, 64), -1, dtype=torch.int32, device=device)
        for out in (fovea.latent_attention(q, cache, table, lengths), fovea.sparse_latent_attention(q, cache, indices)):
            assert out.shape == (batch, seq_q, 16, 512) and not out.any()
        packed, slots = FORMATS["v32_fp8"].empty(blocks, 64, device=device), torch.full((3,), -1, device=device)
        fovea.quantize_latent_cache(torch.zeros(3, 576, device=device), packed, slots, format="v32_fp8")
        fovea.quantize_latent_cache(torch.zeros(0, 576, device=device), packed, slots[:0], format="v32_fp8")
        assert fovea.dequantize_latent_cache(packed, slots[:0], format="v32_fp8").shape == (0, 576)


def test_eight_bits_and_merges_on_each_device(quantize_and_attend_device):
    device = quantize_and_attend_device
    for batch, seq_q, seq_k in FIXED:
        q, k = on(device, torch.randn(batch, seq_q, 4, 64), torch.randn(batch, seq_k, 2, 64))
        for v_dtype in (torch.float16, torch.float8_e4m3fn):
            qk, v = fovea.quantize_qk_int8(q, k), fovea.quantize_v(k, dtype=v_dtype)
            for out in (fovea.quantize_and_attend(q, k, k, v_dtype=v_dtype), fovea.quantized_attention(qk, v)):
                assert out.shape == q.shape and not out.any()
    out, lse = fovea.merge_states(on(device, torch.randn(0, 2, 64)) * 3, [torch.randn(0, 2, device=device)] * 3)
    assert out.shape == (0, 2, 64) and lse.shape == (0, 2)
