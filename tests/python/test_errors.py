# SPDX-License-Identifier: Apache-2.0
"""Bad calls: the right exception, in the library's words, with outputs untouched."""

import pytest
import torch

import fovea


def dense(**changes):
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64), "v": torch.randn(2, 7, 2, 64)}
    call["out"] = torch.full((2, 5, 4, 64), torch.nan)
    call["lse"] = torch.full((2, 4, 5), torch.nan)
    return call | changes


def ragged(**changes):
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    call = {
        "q": torch.randn(5, 4, 64),
        "k": torch.randn(5, 2, 64),
        "v": torch.randn(5, 2, 64),
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
    }
    call["out"] = torch.full((5, 4, 64), torch.nan)
    return call | changes


def paged(**changes):
    call = {
        "q": torch.randn(3, 4, 64),
        "k_cache": torch.randn(6, 8, 2, 64),
        "v_cache": torch.randn(6, 8, 2, 64),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "kv_len": torch.tensor([12, 9], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 2, 3], dtype=torch.int32),
        "out": torch.full((3, 4, 64), torch.nan),
    }
    return call | changes


def append(**changes):
    call = {"k": torch.randn(3, 2, 64), "v": torch.randn(3, 2, 64), "slot_mapping": torch.tensor([0, 1, 2])}
    call |= {"k_cache": torch.full((2, 8, 2, 64), torch.nan), "v_cache": torch.full((2, 8, 2, 64), torch.nan)}
    return call | changes


def merge(**changes):
    call = {"outs": [torch.randn(3, 2, 64)] * 2, "lses": [torch.randn(3, 2)] * 2}
    call |= {"out": torch.full((3, 2, 64), torch.nan), "lse": torch.full((3, 2), torch.nan)}
    return call | changes


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def backward(**changes):
    call = dense()
    for name in ("dout", "out"):
        call[name] = torch.randn(2, 5, 4, 64)
    call["lse"] = torch.randn(2, 4, 5)
    return call | changes


def latent(**changes):
    call = {
        "q": torch.randn(2, 3, 4, 576),
        "cache": torch.randn(6, 8, 1, 576),
        "block_table": int32([0, 1], [2, 3]),
        "kv_len": int32(12, 9),
        "out": torch.full((2, 3, 4, 512), torch.nan),
    }
    return call | changes


def packed_latent(**changes):
    cache = fovea.cache_formats()["v32_fp8"].empty(6, 8)
    return latent(q=torch.randn(2, 3, 4, 576).bfloat16(), cache=cache, format="v32_fp8", out=None) | changes


def sparse(**changes):
    call = {
        "q": torch.randn(2, 3, 4, 512),
        "cache": torch.randn(6, 8, 1, 512),
        "indices": torch.zeros(2, 3, 5, dtype=torch.int32),
        "out": torch.full((2, 3, 4, 512), torch.nan),
    }
    return call | changes


def quantize(**changes):
    cache = torch.zeros(2, 8, 656, dtype=torch.uint8)
    return {"rows": torch.randn(3, 576), "cache": cache, "slot_mapping": torch.tensor([0, -1, 2]), "format": "v32_fp8"} | changes


def dequantize(**changes):
    call = quantize(**changes)
    return {name: value for name, value in call.items() if name != "rows"} | {"rows": torch.full((3, 576), torch.nan)}


def quantize_qk(**changes):
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64)}
    return call | changes


def codes(**changes):
    """Arguments of quantized_attention; changes are of the tuples' fields, or of the other arguments."""
    qk = fovea.quantize_qk_int8(**quantize_qk())
    v = fovea.quantize_v(torch.randn(2, 7, 2, 64), dtype=torch.float8_e4m3fn)
    call = {"qk": qk._replace(**{name: value for name, value in changes.items() if name in qk._fields})}
    call["v"] = v._replace(**{name[2:]: value for name, value in changes.items() if name.startswith("v_")})
    call["out"] = torch.full((2, 5, 4, 64), torch.nan)
    return call | {name: value for name, value in changes.items() if name not in qk._fields and not name.startswith("v_")}


CACHE = fovea.cache_formats()
EXTRA = {"extra_cache": CACHE["v41_fp4"].empty(2, 4), "extra_indices": torch.zeros(2, 3, 5, dtype=torch.int32)}


INVALID = [
    (fovea.attention, dense(k=torch.randn(2, 7, 3, 64), v=torch.randn(2, 7, 3, 64)), ["kv_head", "3", "4"]),
    (fovea.attention, dense(k=torch.randn(2, 7, 2, 32)), ["k.shape[3]", "32", "64"]),
    (fovea.attention, dense(k=torch.randn(3, 7, 2, 64)), ["k.shape[0]", "3", "2"]),
    (fovea.attention, dense(v=torch.randn(2, 6, 2, 64)), ["v.shape[1]", "6", "7"]),
    (fovea.attention, dense(v=torch.randn(2, 7, 2, 64).bfloat16()), ["v.dtype", "bf16", "f32"]),
    (fovea.attention, dense(q=torch.zeros(2, 5, 4, 64, dtype=torch.int16)), ["q.dtype", "Short", "float64"]),
    (fovea.attention, dense(q=torch.randn(5, 64)), ["q"]),
    (fovea.attention, dense(q=torch.randn(1, 2, 5, 4, 64)), ["q.rank", "5", "4"]),
    (fovea.attention, dense(q=torch.randn(2, 5, 64, 4).transpose(2, 3)), ["q.strides[3]", "1"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 32), torch.nan)), ["out.shape[3]", "32", "64"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 64), torch.nan, dtype=torch.float16)), ["out.dtype", "f16"]),
    (fovea.attention, dense(out=torch.full((2, 5, 1, 64), torch.nan).expand(2, 5, 4, 64)), ["out.strides"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 6), torch.nan)), ["lse.shape[2]", "6", "5"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 5), torch.nan).double()), ["lse.dtype", "f64", "f32"]),
    (fovea.attention, dense(sink=torch.randn(3)), ["sink.shape", "[3]", "[4]"]),
    (fovea.attention, dense(sink=torch.randn(4).half()), ["sink.dtype", "Half", "f32"]),
    (fovea.attention, dense(softcap=-1.0), ["softcap", "-1"]),
    (fovea.attention, dense(scale=float("nan")), ["scale", "nan"]),
    (fovea.attention, dense(k_scale=2.0), ["k_scale"]),
    (fovea.attention, dense(anchor="middle"), ["anchor", "middle", "top_left"]),
    (
        fovea.attention,
        dense(implementation="cpu.fast.attention"),
        ["options.implementation", "cpu.fast.attention", "reference.attention"],
    ),
    (fovea.attention, ragged(cu_seqlens_k=None), ["cu_seqlens_k", "none"]),
    (fovea.attention, ragged(cu_seqlens_q=torch.tensor([0, 2, 5])), ["cu_seqlens_q.dtype", "Long", "i32"]),
    (fovea.attention, ragged(cu_seqlens_k=int32(0, 5)), ["cu_seqlens_k.shape", "[2]", "[3]"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 4, 2)), ["cu_seqlens_q"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 2, 9)), ["cu_seqlens_q[2]", "7", "5"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 32)), ["k_cache.shape[3]", "32", "64"]),
    (fovea.paged_attention, paged(v_cache=torch.randn(6, 4, 2, 64)), ["v_cache.shape[1]", "4", "8"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 64).half()), ["k_cache.dtype", "f16"]),
    (fovea.paged_attention, paged(block_table=torch.zeros(2, 2, dtype=torch.int64)), ["block_table.dtype", "i64", "i32"]),
    (fovea.paged_attention, paged(block_table=int32([0, 6], [2, 3])), ["block_table", "6"]),
    (fovea.paged_attention, paged(block_table=int32([0, -1], [2, 3])), ["block_table", "-1"]),
    (fovea.paged_attention, paged(kv_len=int32(12)), ["kv_len.shape", "[1]", "[2]"]),
    (fovea.paged_attention, paged(kv_len=int32(17, 9)), ["kv_len", "17", "16"]),
    (fovea.paged_attention, paged(kv_len=int32(12, -1)), ["kv_len", "-1"]),
    (fovea.paged_attention, paged(cu_seqlens_q=int32(0, 1, 4)), ["cu_seqlens_q", "4", "3"]),
    (fovea.paged_attention, paged(cu_seqlens_q=None), ["cu_seqlens_q", "none", "3 query rows", "2 sequences"]),
    (fovea.paged_attention, paged(k_scale=torch.ones(2)), ["k_scale"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1, 16])), ["slot_mapping", "16"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, -2, 3])), ["slot_mapping", "-2"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1])), ["slot_mapping.shape", "[2]", "[3]"]),
    (fovea.paged_cache_append, append(slot_mapping=int32(0, 1, 2)), ["slot_mapping.dtype", "Int", "i64"]),
    (fovea.paged_cache_append, append(v=torch.randn(2, 2, 64)), ["v.shape[0]", "2", "3"]),
    (fovea.paged_cache_append, append(k_cache=torch.full((2, 8, 2, 64), torch.nan).half()), ["k_cache.dtype", "f16"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 4, 32)), ["dout.shape[3]", "32", "64"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 4, 64).half()), ["dout.dtype", "f16", "f32"]),
    (fovea.attention_backward, backward(dout=torch.randn(2, 5, 64, 4).transpose(2, 3)), ["dout.strides[3]", "1"]),
    (fovea.attention_backward, backward(lse=None), ["lse", "none"]),
    (fovea.attention_backward, backward(lse=torch.randn(2, 5, 4)), ["lse.shape[1]", "5", "4"]),
    (fovea.attention_backward, backward(sink=torch.randn(3)), ["sink.shape", "[3]", "[4]"]),
    (fovea.attention_backward, backward(anchor="middle"), ["anchor", "middle"]),
    (fovea.latent_attention, latent(q=torch.randn(2, 3, 4, 512)), ["q.shape", "512", "576"]),
    (fovea.latent_attention, latent(q=torch.randn(2, 3, 4, 576).half(), out=None), ["cache.rows.dtype", "f32", "f16"]),
    (fovea.latent_attention, latent(out=torch.full((2, 3, 4, 576), torch.nan)), ["out.shape[3]", "576", "512"]),
    (fovea.latent_attention, latent(cache=torch.randn(6, 8, 3, 576)), ["kv_head", "3", "4"]),
    (fovea.latent_attention, latent(cache=torch.randn(6, 8, 1, 128)), ["cache.rows.shape[3]", "128", "576 or 512"]),
    (fovea.latent_attention, latent(block_table=int32([0, 6], [2, 3])), ["block_table", "6"]),
    (fovea.latent_attention, latent(kv_len=int32(17, 9)), ["kv_len", "17", "16"]),
    (fovea.latent_attention, latent(kv_len=torch.tensor([12, 9])), ["kv_len.dtype", "Long", "i32"]),
    (fovea.latent_attention, latent(cu_seqlens_q=int32(0, 1, 2)), ["q.rank", "4", "3", "cu_seqlens_q"]),
    (fovea.latent_attention, latent(q=torch.randn(3, 4, 576), out=None), ["cu_seqlens_q", "none", "3 query rows", "2 sequences"]),
    (fovea.latent_attention, latent(cache_scale=2.0), ["has_scale", "none"]),
    (fovea.latent_attention, latent(format="v5"), ["cache.format", "v5", "rows", "v32_fp8"]),
    (fovea.latent_attention, latent(format="v32_fp8"), ["cache.dtype", "Float", "uint8"]),
    (fovea.latent_attention, packed_latent(format="rows"), ["cache.format", "rows", "v32_fp8"]),
    (fovea.latent_attention, packed_latent(format="v41_fp8"), ["cache.shape", "656", "528"]),
    (fovea.latent_attention, packed_latent(q=torch.randn(2, 3, 4, 576)), ["q.dtype", "f32", "bf16"]),
    (fovea.latent_attention, packed_latent(cache=CACHE["v32_fp8"].empty(6, 16)[:, ::2]), ["cache.strides[1]", "1312", "656"]),
    (
        fovea.latent_attention,
        packed_latent(cache=CACHE["v32_fp8"].empty(1, 8).expand(6, 8, 656)),
        ["cache.strides[0]", "0", "5248"],
    ),
    (
        fovea.latent_attention,
        latent(q=torch.randn(2, 3, 4, 512).bfloat16(), cache=CACHE["v41_fp4"].empty(6, 8), format="v41_fp4", out=None),
        ["cache.format", "v41_fp4", "extra"],
    ),
    (fovea.sparse_latent_attention, sparse(indices=torch.zeros(2, 3, 5, dtype=torch.int64)), ["main.indices.dtype", "i64", "i32"]),
    (fovea.sparse_latent_attention, sparse(indices=torch.zeros(2, 4, 5, dtype=torch.int32)), ["main.indices.shape[1]", "4", "3"]),
    (fovea.sparse_latent_attention, sparse(topk_length=int32(1, 2, 3)), ["main.topk_length.shape", "[3]", "[2]"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 2, 512)), ["main.cache", "kv_head", "2", "1"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 1, 576)), ["main.cache", "576", "512"]),
    (fovea.sparse_latent_attention, sparse(cache=torch.randn(6, 8, 512)), ["main.cache.shape", "[6, 8, 512]", "unsqueeze"]),
    (fovea.sparse_latent_attention, sparse(extra_format="v9", **EXTRA), ["extra.cache.format", "v9", "v32_fp8"]),
    (fovea.sparse_latent_attention, sparse(**EXTRA), ["extra.cache.format", "rows", "these bytes: v41_fp4"]),
    (fovea.sparse_latent_attention, sparse(scale=0.0), ["scale", "0", "None"]),
    (fovea.attention, dense(scale=0), ["scale", "0", "None"]),
    (fovea.sparse_latent_attention, sparse(extra_cache=torch.randn(1, 8, 1, 512)), ["extra_indices", "none"]),
    (fovea.sparse_latent_attention, sparse(extra_indices=torch.zeros(2, 3, 5, dtype=torch.int32)), ["extra_cache", "none"]),
    (fovea.sparse_latent_attention, sparse(max_logits=torch.full((2, 3, 4), torch.nan)), ["max_logits.shape[1]", "3", "4"]),
    (fovea.sparse_latent_attention, sparse(sink=torch.randn(5)), ["sink.shape", "[5]", "[4]"]),
    (fovea.quantize_latent_cache, quantize(format="rows"), ["cache.format", "rows", "v32_fp8"]),
    (fovea.quantize_latent_cache, quantize(rows=torch.randn(3, 512)), ["rows.shape[1]", "512", "576"]),
    (fovea.quantize_latent_cache, quantize(rows=torch.randn(3, 576).double()), ["rows.dtype", "f64"]),
    (fovea.quantize_latent_cache, quantize(slot_mapping=torch.tensor([0, 1, 16])), ["slot_mapping", "16"]),
    (fovea.quantize_latent_cache, quantize(slot_mapping=int32(0, 1, 2)), ["slot_mapping.dtype", "Int", "i64"]),
    (
        fovea.quantize_latent_cache,
        quantize(cache=torch.zeros(8, 656, dtype=torch.uint8)),
        ["cache.shape", "[8, 656]", "[blocks, page, 656]"],
    ),
    (fovea.dequantize_latent_cache, dequantize(slot_mapping=torch.tensor([0, -2, 1])), ["slot_mapping", "-2"]),
    (
        fovea.dequantize_latent_cache,
        dequantize(format="v6", cache=torch.zeros(2, 8, 528, dtype=torch.uint8)),
        ["cache.format", "v6"],
    ),
    (fovea.quantize_qk_int8, quantize_qk(q=torch.randn(5, 4, 64)), ["q.rank", "3", "4"]),
    (fovea.quantize_qk_int8, quantize_qk(q=torch.randn(2, 5, 4, 64).half()), ["k.dtype", "f32", "f16"]),
    (fovea.quantize_qk_int8, quantize_qk(k=torch.randn(2, 7, 3, 64)), ["kv_head", "3", "4"]),
    (fovea.quantize_qk_int8, quantize_qk(granularity="row"), ["groups.granularity", "row", "block, warp or thread"]),
    (fovea.quantize_qk_int8, quantize_qk(warp_rows=64), ["groups.warp_rows", "64", "32 or 16"]),
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
    (fovea.quantize_v, {"v": torch.randn(2, 7, 2, 64), "dtype": torch.bfloat16}, ["v_out.dtype", "bf16", "f16 or e4m3"]),
    (fovea.quantize_v, {"v": torch.randn(7, 2, 64)}, ["v.rank", "3", "4"]),
    (fovea.quantize_v, {"v": torch.randn(7, 2, 64), "cu_seqlens_k": torch.tensor([0, 7])}, ["cu_seqlens_k.dtype", "Long", "i32"]),
    (fovea.quantized_attention, codes(q=torch.zeros(2, 5, 4, 64)), ["q.dtype", "f32", "i8"]),
    (fovea.quantized_attention, codes(granularity="block"), ["q_scale.shape[2]", "32", "1"]),
    (fovea.quantized_attention, codes(k_scale=torch.ones(2, 2, 4).half()), ["k_scale.dtype", "f16", "f32"]),
    (fovea.quantized_attention, codes(v_scale=None), ["v_scale", "none", "e4m3"]),
    (fovea.quantized_attention, codes(v_mean=torch.ones(2, 2, 32)), ["v_mean.shape[2]", "32", "64"]),
    (fovea.quantized_attention, codes(out=torch.full((2, 5, 4, 32), torch.nan)), ["out.shape[3]", "32", "64"]),
    (fovea.quantized_attention, codes(anchor="middle"), ["anchor", "middle"]),
    (fovea.quantize_and_attend, dense(k=torch.randn(2, 7, 2, 96)), ["k.shape[3]", "96", "64"]),
    (fovea.quantize_and_attend, dense(v_dtype=torch.float32), ["v_dtype", "Float", "float16 or float8_e4m3fn"]),
    (fovea.quantize_and_attend, dense(warp_rows=8), ["groups.warp_rows", "8", "32 or 16"]),
    (fovea.quantize_and_attend, ragged(cu_seqlens_q=None), ["cu_seqlens_q", "none"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2)]), ["lses", "1", "2"]),
    (fovea.merge_states, merge(outs=[torch.randn(3, 2, 64), torch.randn(3, 2, 32)]), ["parts[1].out.shape[2]", "32", "64"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2), torch.randn(2, 3)]), ["parts[1].lse.shape[0]", "2", "3"]),
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
    (fovea.merge_states, merge(out=MERGED, lses=[torch.randn(3, 2), LSE]), ["out", "that of parts[1].lse"]),
    (fovea.merge_states, merge(outs=[torch.randn(3, 2, 64), MERGED], lse=LSE), ["lse", "that of parts[1].out"]),
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
    for tensor, old in zip(outputs(call), before, strict=True):
        assert torch.equal(tensor.nan_to_num(123.0), old.nan_to_num(123.0))


def test_unsupported_raises_not_implemented_error():
    call = dense(q=torch.randn(2, 5, 4, 20), k=torch.randn(2, 7, 2, 20))
    with pytest.raises(NotImplementedError) as caught:
        fovea.attention(**call)
    assert "reference.attention" in str(caught.value) and "20" in str(caught.value)
    assert not str(caught.value).startswith("unsupported")
    assert call["out"].isnan().all() and call["lse"].isnan().all()


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
    with pytest.raises(ValueError, match=r"outs\.device: got meta, want cpu, as the tensors before it"):
        fovea.merge_states([outs[0], outs[1].to("meta")], lses)
    tensors = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in call.values()]
    fovea.paged_attention(**dict(zip(call, tensors, strict=True)))


def test_bad_thread_counts():
    for threads in (-1, 1 << 20):
        with pytest.raises(ValueError, match="threads: got"):
            fovea.set_num_threads(threads)
