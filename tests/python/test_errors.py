# SPDX-License-Identifier: Apache-2.0
"""Bad calls: the right exception, in the library's words, with outputs untouched."""

import re

import pytest
import torch

import fovea
from small_calls import (
    append,
    backward,
    codes,
    dense,
    dequantize,
    int32,
    latent,
    merge,
    packed_latent,
    paged,
    quantize,
    quantize_qk,
    ragged,
    sparse,
)

CACHE = fovea.cache_formats()
EXTRA = {"extra_cache": CACHE["v41_fp4"].empty(2, 4), "extra_indices": torch.zeros(2, 3, 5, dtype=torch.int32)}


INVALID = [
    (fovea.attention, dense(k=torch.randn(2, 7, 3, 64), v=torch.randn(2, 7, 3, 64)), ["kv_head", "3", "4"]),
    (fovea.attention, dense(k=torch.randn(2, 7, 2, 32)), ["k.shape[3]", "32", "64"]),
    (fovea.attention, dense(k=torch.randn(3, 7, 2, 64)), ["k.shape[0]", "3", "2"]),
    (fovea.attention, dense(v=torch.randn(2, 6, 2, 64)), ["v.shape[1]", "6", "7"]),
    (fovea.attention, dense(v=torch.randn(2, 7, 2, 64).bfloat16()), ["v.dtype", "torch.bfloat16", "torch.float32"]),
    (fovea.attention, dense(q=torch.zeros(2, 5, 4, 64, dtype=torch.int16)), ["q.dtype", "torch.int16", "torch.float64"]),
    (fovea.attention, dense(q=torch.randn(5, 64)), ["q"]),
    (fovea.attention, dense(q=torch.randn(1, 2, 5, 4, 64)), ["q.rank", "5", "4"]),
    (fovea.attention, dense(q=torch.randn(2, 5, 64, 4).transpose(2, 3)), ["q.strides[3]", "1"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 32), torch.nan)), ["out.shape[3]", "32", "64"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 64), torch.nan, dtype=torch.float16)), ["out.dtype", "torch.float16"]),
    (fovea.attention, dense(out=torch.full((2, 5, 1, 64), torch.nan).expand(2, 5, 4, 64)), ["out.strides"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 6), torch.nan)), ["lse.shape[2]", "6", "5"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 5), torch.nan).double()), ["lse.dtype", "torch.float64", "torch.float32"]),
    (fovea.attention, dense(sink=torch.randn(3)), ["sink.shape", "[3]", "[4]"]),
    (fovea.attention, dense(sink=torch.randn(4).half()), ["sink.dtype", "torch.float16", "torch.float32"]),
    (fovea.attention, dense(softcap=-1.0), ["softcap", "-1"]),
    (fovea.attention, dense(scale=float("nan")), ["scale", "nan"]),
    (fovea.attention, dense(k_scale=2.0), ["k_scale"]),
    (fovea.attention, dense(anchor="middle"), ["anchor", "middle", "top_left"]),
    (
        fovea.attention,
        dense(implementation="cpu.fast.attention"),
        ["implementation", "cpu.fast.attention", "reference.attention"],
    ),
    (fovea.attention, ragged(cu_seqlens_k=None), ["cu_seqlens_k", "none"]),
    (fovea.attention, ragged(cu_seqlens_q=torch.tensor([0, 2, 5])), ["cu_seqlens_q.dtype", "torch.int64", "torch.int32"]),
    (fovea.attention, ragged(cu_seqlens_k=int32(0, 5)), ["cu_seqlens_k.shape", "[2]", "[3]"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 4, 2)), ["cu_seqlens_q"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 2, 9)), ["cu_seqlens_q[2]", "7", "5"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 32)), ["k_cache.shape[3]", "32", "64"]),
    (fovea.paged_attention, paged(v_cache=torch.randn(6, 4, 2, 64)), ["v_cache.shape[1]", "4", "8"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 64).half()), ["k_cache.dtype", "torch.float16"]),
    (
        fovea.paged_attention,
        paged(block_table=torch.zeros(2, 2, dtype=torch.int64)),
        ["block_table.dtype", "torch.int64", "torch.int32"],
    ),
    (fovea.paged_attention, paged(block_table=int32([0, 6], [2, 3])), ["block_table", "6"]),
    (fovea.paged_attention, paged(block_table=int32([0, -1], [2, 3])), ["block_table", "-1"]),
    (fovea.paged_attention, paged(kv_len=int32(12)), ["kv_len.shape", "[1]", "[2]"]),
    (fovea.paged_attention, paged(kv_len=int32(17, 9)), ["kv_len", "17", "16"]),
    (fovea.paged_attention, paged(kv_len=int32(12, -1)), ["kv_len", "-1"]),
    (fovea.paged_attention, paged(cu_seqlens_q=int32(0, 1, 4)), ["cu_seqlens_q", "4", "3"]),
    (fovea.paged_attention, paged(cu_seqlens_q=None), ["cu_seqlens_q", "none", "3 query rows", "2 sequences"]),
    (fovea.paged_attention, paged(k_scale=torch.ones(2)), ["k_scale"]),
    (
        fovea.paged_attention,
        paged(k_cache=torch.randn(6, 8, 3, 64), v_cache=torch.randn(6, 8, 3, 64)),
        ["k_cache.shape (kv_head)", "got 3", "a divisor of 4 (head)", "k_cache is [blocks, page, kv_head, head_dim]"],
    ),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1, 16])), ["slot_mapping", "16"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, -2, 3])), ["slot_mapping", "-2"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1])), ["slot_mapping.shape", "[2]", "[3]"]),
    (fovea.paged_cache_append, append(slot_mapping=int32(0, 1, 2)), ["slot_mapping.dtype", "torch.int32", "torch.int64"]),
    (fovea.paged_cache_append, append(v=torch.randn(2, 2, 64)), ["v.shape[0]", "2", "3"]),
    (fovea.paged_cache_append, append(k_cache=torch.full((2, 8, 2, 64), torch.nan).half()), ["k_cache.dtype", "torch.float16"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 4, 32)), ["dout.shape[3]", "32", "64"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 4, 64).half()), ["dout.dtype", "torch.float16", "torch.float32"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 64, 4).transpose(2, 3)), ["dout.strides[3]", "1"]),
    (fovea.attention_backward, backward(lse=torch.randn(2, 5, 4)), ["lse.shape[1]", "5", "4"]),
    (fovea.attention_backward, backward(sink=torch.randn(3)), ["sink.shape", "[3]", "[4]"]),
    (fovea.attention_backward, backward(anchor="middle"), ["anchor", "middle"]),
    (fovea.latent_attention, latent(q=torch.randn(2, 3, 4, 512)), ["q.shape", "512", "576"]),
    (
        fovea.latent_attention,
        latent(q=torch.randn(2, 3, 4, 576).half(), out=None),
        ["cache.dtype", "torch.float32", "torch.float16"],
    ),
    (fovea.latent_attention, latent(out=torch.full((2, 3, 4, 576), torch.nan)), ["out.shape[3]", "576", "512"]),
    (fovea.latent_attention, latent(cache=torch.randn(6, 8, 3, 576)), ["kv_head", "3", "4"]),
    (fovea.latent_attention, latent(cache=torch.randn(6, 8, 1, 128)), ["cache.shape[3]", "128", "576 or 512"]),
    (fovea.latent_attention, latent(block_table=int32([0, 6], [2, 3])), ["block_table", "6"]),
    (fovea.latent_attention, latent(kv_len=int32(17, 9)), ["kv_len", "17", "16"]),
    (fovea.latent_attention, latent(kv_len=torch.tensor([12, 9])), ["kv_len.dtype", "torch.int64", "torch.int32"]),
    (fovea.latent_attention, latent(cu_seqlens_q=int32(0, 1, 2)), ["q.rank", "4", "3", "cu_seqlens_q"]),
    (fovea.latent_attention, latent(q=torch.randn(3, 4, 576), out=None), ["cu_seqlens_q", "none", "3 query rows", "2 sequences"]),
    (fovea.latent_attention, latent(cache_scale=2.0), ["cache_scale", "none"]),
    (fovea.latent_attention, latent(format="v5"), ["format", "v5", "rows", "v32_fp8"]),
    (fovea.latent_attention, latent(format="v32_fp8"), ["cache.dtype", "torch.float32", "torch.uint8"]),
    (fovea.latent_attention, packed_latent(format="rows"), ["format", "rows", "v32_fp8"]),
    (fovea.latent_attention, packed_latent(format="v41_fp8"), ["cache.shape", "656", "528"]),
    (fovea.latent_attention, packed_latent(cache=CACHE["v32_fp8"].empty(6, 16)[:, ::2]), ["cache.strides[1]", "1312", "656"]),
    (
        fovea.latent_attention,
        packed_latent(cache=CACHE["v32_fp8"].empty(1, 8).expand(6, 8, 656)),
        ["cache.strides[0]", "0", "5248"],
    ),
    (
        fovea.latent_attention,
        latent(q=torch.randn(2, 3, 4, 512).bfloat16(), cache=CACHE["v41_fp4"].empty(6, 8), format="v41_fp4", out=None),
        ["format", "v41_fp4", "extra"],
    ),
    (
        fovea.sparse_latent_attention,
        sparse(indices=torch.zeros(2, 3, 5, dtype=torch.int64)),
        ["indices.dtype", "torch.int64", "torch.int32"],
    ),
    (fovea.sparse_latent_attention, sparse(indices=torch.zeros(2, 4, 5, dtype=torch.int32)), ["indices.shape[1]", "4", "3"]),
    (fovea.sparse_latent_attention, sparse(topk_length=int32(1, 2, 3)), ["topk_length.shape", "[3]", "[2]"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 2, 512)), ["cache", "kv_head", "2", "1"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 1, 576)), ["cache", "576", "512"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 512)), ["cache.shape", "[6, 8, 512]", "unsqueeze"]),
    (fovea.sparse_latent_attention, sparse(extra_format="v9", **EXTRA), ["extra_format", "v9", "v32_fp8"]),
    (fovea.sparse_latent_attention, sparse(**EXTRA), ["extra_format", "rows", "these bytes: v41_fp4"]),
    (fovea.sparse_latent_attention, sparse(scale=0.0), ["scale", "0", "None"]),
    (fovea.attention, dense(scale=0), ["scale", "0", "None"]),
    (fovea.sparse_latent_attention, sparse(extra_cache=torch.randn(1, 8, 1, 512)), ["extra_indices", "none"]),
    (fovea.sparse_latent_attention, sparse(extra_indices=torch.zeros(2, 3, 5, dtype=torch.int32)), ["extra_cache", "none"]),
    (fovea.sparse_latent_attention, sparse(max_logits=torch.full((2, 3, 4), torch.nan)), ["max_logits.shape[1]", "3", "4"]),
    (fovea.sparse_latent_attention, sparse(sink=torch.randn(5)), ["sink.shape", "[5]", "[4]"]),
    (fovea.quantize_latent_cache, quantize(format="rows"), ["format", "rows", "v32_fp8"]),
    (fovea.quantize_latent_cache, quantize(rows=torch.randn(3, 512)), ["rows.shape[1]", "512", "576"]),
    (fovea.quantize_latent_cache, quantize(rows=torch.randn(3, 576).double()), ["rows.dtype", "torch.float64"]),
    (fovea.quantize_latent_cache, quantize(slot_mapping=torch.tensor([0, 1, 16])), ["slot_mapping", "16"]),
    (fovea.quantize_latent_cache, quantize(slot_mapping=int32(0, 1, 2)), ["slot_mapping.dtype", "torch.int32", "torch.int64"]),
    (
        fovea.quantize_latent_cache,
        quantize(cache=torch.zeros(8, 656, dtype=torch.uint8)),
        ["cache.shape", "[8, 656]", "[blocks, page, 656]"],
    ),
    (fovea.dequantize_latent_cache, dequantize(slot_mapping=torch.tensor([0, -2, 1])), ["slot_mapping", "-2"]),
    (
        fovea.dequantize_latent_cache,
        dequantize(format="v6", cache=torch.zeros(2, 8, 528, dtype=torch.uint8)),
        ["format", "v6"],
    ),
    (fovea.quantize_qk_int8, quantize_qk(q=torch.randn(5, 4, 64)), ["q.rank", "3", "4"]),
    (fovea.quantize_qk_int8, quantize_qk(q=torch.randn(2, 5, 4, 64).half()), ["k.dtype", "torch.float32", "torch.float16"]),
    (fovea.quantize_qk_int8, quantize_qk(k=torch.randn(2, 7, 3, 64)), ["kv_head", "3", "4"]),
    (fovea.quantize_qk_int8, quantize_qk(granularity="row"), ["granularity", "row", "block, warp or thread"]),
    (fovea.quantize_qk_int8, quantize_qk(warp_rows=64), ["warp_rows", "64", "32 or 16"]),
    (fovea.quantize_qk_int8, quantize_qk(cu_seqlens_k=int32(0, 7)), ["cu_seqlens_q", "none", "cu_seqlens_k"]),
    (
        fovea.quantize_qk_int8,
        {"q": torch.randn(5, 4, 64), "k": torch.randn(7, 2, 64), "cu_seqlens_q": int32(0, 2, 5), "cu_seqlens_k": int32(0, 7)},
        ["cu_seqlens_k.shape", "[2]", "[3]"],
    ),
    (
        fovea.quantize_qk_int8,
        {"q": torch.randn(5, 4, 64), "k": torch.randn(7, 2, 64), "cu_seqlens_q": int32(0, 5), "cu_seqlens_k": int32(0, 8)},
        ["cu_seqlens_k", "8", "7"],
    ),
    (
        fovea.quantize_v,
        {"v": torch.randn(2, 7, 2, 64), "dtype": torch.bfloat16},
        ["dtype", "torch.bfloat16", "torch.float16 or torch.float8_e4m3fn"],
    ),
    (fovea.quantize_v, {"v": torch.randn(7, 2, 64)}, ["v.rank", "3", "4"]),
    (
        fovea.quantize_v,
        {"v": torch.randn(7, 2, 64), "cu_seqlens_k": torch.tensor([0, 7])},
        ["cu_seqlens_k.dtype", "torch.int64", "torch.int32"],
    ),
    (fovea.quantized_attention, codes(q=torch.zeros(2, 5, 4, 64)), ["q.dtype", "torch.float32", "torch.int8"]),
    (fovea.quantized_attention, codes(granularity="block"), ["q_scale.shape[2]", "32", "1"]),
    (fovea.quantized_attention, codes(k_scale=torch.ones(2, 2, 4).half()), ["k_scale.dtype", "torch.float16", "torch.float32"]),
    (fovea.quantized_attention, codes(v_scale=None), ["v.scale", "none", "torch.float8_e4m3fn"]),
    (fovea.quantized_attention, codes(v_mean=torch.ones(2, 2, 32)), ["v.mean.shape[2]", "32", "64"]),
    (fovea.quantized_attention, codes(out=torch.full((2, 5, 4, 32), torch.nan)), ["out.shape[3]", "32", "64"]),
    (fovea.quantized_attention, codes(anchor="middle"), ["anchor", "middle"]),
    (fovea.quantize_and_attend, dense(k=torch.randn(2, 7, 2, 96)), ["k.shape[3]", "96", "64"]),
    (fovea.quantize_and_attend, dense(v_dtype=torch.float32), ["v_dtype", "torch.float32", "torch.float16 or torch.float8_e4m3fn"]),
    (fovea.quantize_and_attend, dense(warp_rows=8), ["warp_rows", "8", "32 or 16"]),
    (fovea.quantize_and_attend, ragged(cu_seqlens_q=None), ["cu_seqlens_q", "none"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2)]), ["lses", "1", "2"]),
    (fovea.merge_states, merge(outs=[torch.randn(3, 2, 64), torch.randn(3, 2, 32)]), ["outs[1].shape[2]", "32", "64"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2), torch.randn(2, 3)]), ["lses[1].shape[0]", "2", "3"]),
]


def one_tensor(call, *names):
    """The same tensor in several places."""
    tensor = call[names[0]]
    return call | dict.fromkeys(names, tensor)


ROWS = torch.randn(2, 3, 4, 576)
SLOTS = torch.zeros(864, dtype=torch.int64)
NUMBERS = torch.full((2, 5, 4, 64), torch.nan)
MERGED, LSE = NUMBERS.flatten()[:384].view(3, 2, 64), NUMBERS.flatten()[:6].view(3, 2)  # both begin where NUMBERS does
SHARED = [
    (fovea.attention, one_tensor(dense(), "q", "out"), ["out", "that of q"]),
    (fovea.attention, dense(out=NUMBERS, lse=NUMBERS.flatten()[:40].view(2, 4, 5)), ["out", "that of lse"]),
    (fovea.paged_attention, one_tensor(paged(), "q", "out"), ["out", "that of q"]),
    (fovea.paged_cache_append, one_tensor(append(), "k_cache", "v_cache"), ["k_cache", "that of v_cache"]),
    (fovea.merge_states, merge(out=MERGED, lse=LSE), ["lse", "that of out"]),
    (fovea.merge_states, merge(out=MERGED, lses=[torch.randn(3, 2), LSE]), ["out", "that of lses[1]"]),
    (fovea.merge_states, merge(outs=[torch.randn(3, 2, 64), MERGED], lse=LSE), ["lse", "that of outs[1]"]),
    (fovea.latent_attention, latent(q=ROWS, out=ROWS[..., :512]), ["out", "that of q"]),
    (fovea.sparse_latent_attention, one_tensor(sparse(), "q", "out"), ["out", "that of q"]),
    (
        fovea.sparse_latent_attention,
        one_tensor(sparse(lse=torch.full((2, 4, 3), torch.nan)), "lse", "max_logits"),
        ["lse", "that of max_logits"],
    ),
    (
        fovea.dequantize_latent_cache,
        dequantize(slot_mapping=SLOTS[:3]) | {"rows": SLOTS.view(torch.float32).view(3, 576)},
        ["rows", "that of slot_mapping"],
    ),
]


# The library's names of dtypes, and its fields for what is an argument in Python.
LIBRARY_WORDS = re.compile(
    r"(?<![\w.])(f64|f32|f16|bf16|e4m3|i8|i32|i64|Half|Float|Double|Short|Int|Long)(?!\w)"
    r"|\b(options|groups|ragged|args|main|extra|cache\.rows|parts\[\d+\])\.[a-z]|\bhas_scale\b|\bmax_seq_[qk]\b"
)


def outputs(call):
    names = ("out", "lse", "max_logits", "k_cache", "v_cache", "cache", "rows")
    return [call[name] for name in names if call.get(name) is not None]


@pytest.mark.parametrize(
    ("function", "call", "words"), INVALID + SHARED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_contradictions_raise_value_error(function, call, words):
    before = [tensor.clone() for tensor in outputs(call)]
    with pytest.raises(ValueError) as caught:
        function(**call)
    for word in words:
        assert word in str(caught.value)
    assert "want" in str(caught.value)
    assert not LIBRARY_WORDS.search(str(caught.value))
    for tensor, old in zip(outputs(call), before, strict=True):
        assert torch.equal(tensor.nan_to_num(123.0), old.nan_to_num(123.0))


def test_unsupported_raises_not_implemented_error():
    call = dense(q=torch.randn(2, 5, 4, 20), k=torch.randn(2, 7, 2, 20))
    with pytest.raises(NotImplementedError) as caught:
        fovea.attention(**call)
    assert "reference.attention" in str(caught.value)
    assert str(caught.value).startswith("q.shape (head_dim_qk): got 20, want a multiple of 8 up to 512; no implementation ")
    assert call["out"].isnan().all() and call["lse"].isnan().all()


def test_names_that_the_caller_gave_are_quoted_as_they_are():
    cache, table, lengths = torch.zeros(1, 16, 2, 64), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match='k_format: got "int8", want rows, int8_token, '):
        fovea.paged_attention(torch.zeros(1, 2, 64), cache, cache, table, lengths, k_format="int8")


E4M3 = torch.float8_e4m3fn
# 8-bit floats where nothing computes with them, in calls that are right otherwise.
EIGHT_BITS = [
    (fovea.attention, dense(), ["k", "v"], "k"),
    (fovea.attention, dense(lse=None), ["out"], "out"),
    (fovea.paged_attention, paged(), ["q", "out"], "q"),
    (fovea.paged_attention, paged(), ["v_cache"], "v_cache"),
    (fovea.paged_cache_append, append(), ["k", "v"], "k"),
    (fovea.merge_states, merge(), ["outs"], "out"),
    (fovea.latent_attention, latent(), ["q", "out"], "q"),
    (fovea.sparse_latent_attention, sparse(), ["cache"], "cache"),
    (fovea.quantize_and_attend, dense(lse=None), ["q", "k", "v", "out"], "q"),
]


@pytest.mark.parametrize(("function", "call", "names", "subject"), EIGHT_BITS)
def test_eight_bits_that_nothing_computes_are_unsupported(function, call, names, subject):
    def narrow(value):
        return [narrow(each) for each in value] if isinstance(value, list) else None if value is None else value.to(E4M3)

    narrowed = call | {name: narrow(call.get(name)) for name in names}
    with pytest.raises(NotImplementedError, match=rf"^{subject}\S*\.dtype: got torch\.float8_e4m3fn, want "):
        function(**narrowed)


def test_a_packed_cache_is_read_for_bfloat16_alone():
    with pytest.raises(NotImplementedError, match=r"^q\.dtype: got torch\.float32, want torch\.bfloat16 \(over a packed"):
        fovea.latent_attention(**packed_latent(q=torch.randn(2, 3, 4, 576)))


def test_other_eight_bits_are_unsupported():
    call = paged(
        k_cache=torch.zeros(6, 8, 2, 64, dtype=torch.float8_e5m2), v_cache=torch.zeros(6, 8, 2, 64, dtype=torch.float8_e5m2)
    )
    with pytest.raises(NotImplementedError, match=r"^k_cache\.dtype: got torch\.float8_e5m2, want torch\.float32, "):
        fovea.paged_attention(**call)


def test_forcing_an_implementation_that_declines():
    q = torch.randn(1, 5, 1, 12)
    with pytest.raises(NotImplementedError, match=r"reference\.attention"):
        fovea.attention(q, q, q, implementation="reference.attention")


def test_gradients_are_refused_and_not_cut():
    call = paged(q=torch.randn(3, 4, 64, requires_grad=True))
    with pytest.raises(NotImplementedError, match="requires_grad"):
        fovea.paged_attention(**call)
    with torch.no_grad():
        assert fovea.paged_attention(**call).shape == (3, 4, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_two_devices_are_refused():
    call = paged()
    with pytest.raises(ValueError, match=r"kv_len\.device: got cuda:0, want cpu, as the tensors before it"):
        fovea.paged_attention(**call | {"kv_len": call["kv_len"].cuda()})


def test_tensors_without_data_are_refused_among_others():
    call = paged()
    with pytest.raises(ValueError, match=r"kv_len\.device: got meta, want cpu, as the tensors before it"):
        fovea.paged_attention(**call | {"kv_len": call["kv_len"].to("meta")})
    outs, lses = [torch.randn(3, 2, 8) for _ in range(2)], [torch.randn(3, 2) for _ in range(2)]
    with pytest.raises(ValueError, match=r"^outs\[1\]\.device: got meta, want cpu, as the tensors before it"):
        fovea.merge_states([outs[0], outs[1].to("meta")], lses)
    tensors = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in call.values()]
    fovea.paged_attention(**dict(zip(call, tensors, strict=True)))


def test_bad_thread_counts():
    for threads in (-1, 1 << 20):
        with pytest.raises(ValueError, match="threads: got"):
            fovea.set_num_threads(threads)
