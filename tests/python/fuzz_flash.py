# SPDX-License-Identifier: Apache-2.0
"""Good random calls of the drop-ins for FlashMLA and SageAttention, and what they give by the definitions."""

from numbers import Integral
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions
import definitions_8bit
import fovea
import packed
from definitions import Want, with_defaults
from fovea.compat import custom_attn, flash_mla, sageattention
from fuzz_draw import FLOATS, Draw
from judge import compare

Call = dict[str, Any]


def band(size: Any) -> tuple[int | None, int | None]:
    left, right = size
    return (None if left < 0 else int(left)), (None if right < 0 else int(right))


def ours(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> dict[str, Want]:
    return definitions.attention(with_defaults(fovea.attention, {"q": q, "k": k, "v": v} | options))


def number(value: Any) -> float | None:
    return None if value is None else float(value)


def scores_in_flashs_words(a: SimpleNamespace) -> Call:
    window = band(getattr(a, "window_size", (-1, -1)))
    return {
        "scale": number(a.softmax_scale),
        "causal": bool(a.causal),
        "window": window,
        "softcap": float(getattr(a, "softcap", 0.0)),
    } | ({} if getattr(a, "alibi_slopes", None) is None else {"alibi_slopes": a.alibi_slopes})


def compare_both(name: str, result: Any, wants: dict[str, Want], asked: bool, ragged: bool = False) -> None:
    """out alone, or out and lse, which flash-attn has head by head."""
    parts = result if isinstance(result, tuple) else (result,)
    assert len(parts) > 1 or not asked
    compare(f"{name}: out", parts[0], wants["out"])
    if asked:
        lse = wants["lse"]
        compare(f"{name}: lse", parts[1], Want(lse.value.T, lse.bound.T) if ragged else lse)


def paged(q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, cu: Tensor | None, scores: Call) -> Any:
    call = {"q": q, "k_cache": caches[0], "v_cache": caches[1], "block_table": table, "kv_len": lengths, "cu_seqlens_q": cu}
    return definitions.paged_attention(with_defaults(fovea.paged_attention, call | scores))


# ---- FlashMLA ------------------------------------------------------------------------------------------------------------------


def mla_kvcache(draw: Draw) -> Call:
    d, page, batch, seq_q, head = (
        draw.one_of(576, 512),
        draw.one_of(4, 8),
        draw.randint(1, 2),
        draw.randint(1, 2),
        draw.randint(1, 3),
    )
    lengths = draw.lengths(batch, 12)
    table, blocks = draw.blocks(lengths, page)
    call: Call = {"q": draw.rows(batch, seq_q, head, d).bfloat16(), "head_dim_v": 512}
    call["tile_scheduler_metadata"] = flash_mla.get_mla_metadata()[0]
    call |= {"block_table": table, "cache_seqlens": draw.int32(lengths)} | draw.some(softmax_scale=0.1)
    if draw.random() < 0.5:
        return call | {"k_cache": draw.rows(blocks, page, 1, d).bfloat16()} | draw.some(causal=True)
    format = "v32_fp8" if d == 576 else "v4_fp8"
    cache = fovea.cache_formats()[format].empty(blocks, page)
    fovea.quantize_latent_cache(torch.randn(blocks * page, d), cache, torch.arange(blocks * page), format=format)
    call |= {"k_cache": cache[:, :, None], "is_fp8_kvcache": True}
    if draw.random() < 0.5:
        return call | draw.some(causal=True)
    topk = draw.randint(1, 5)
    call |= {"block_table": None, "cache_seqlens": None}  # which are not looked at
    call["indices"] = draw.within(torch.randint(-2, blocks * page + 2, (batch, seq_q, topk), dtype=torch.int32))
    return call | draw.some(attn_sink=draw.rows(head), topk_length=draw.int32(draw.lengths(batch, topk)))


def plus_infinity(want: Want) -> Want:
    return Want(torch.where(want.value.isneginf(), torch.inf, want.value), want.bound)


def check_mla_kvcache(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flash_mla.flash_mla_with_kvcache, before)
    assert a.head_dim_v == 512
    cache, format = a.k_cache, "rows"
    if a.k_cache.dtype.itemsize == 1:
        cache = a.k_cache[:, :, 0].contiguous().view(torch.uint8)
        format = {layout.bytes: name for name, layout in packed.LAYOUTS.items() if name in ("v32_fp8", "v4_fp8")}[cache.shape[2]]
    options = {"q": a.q, "cache": cache, "format": format, "scale": number(a.softmax_scale)}
    if a.indices is None:
        options |= {"block_table": a.block_table, "kv_len": a.cache_seqlens, "causal": bool(a.causal)}
        wants = definitions.latent_attention(with_defaults(fovea.latent_attention, options))
    else:
        options |= {"indices": a.indices, "topk_length": a.topk_length, "sink": a.attn_sink}
        wants = definitions.sparse_latent_attention(with_defaults(fovea.sparse_latent_attention, options))
    compare_both("mla", result, wants | {"lse": plus_infinity(wants["lse"])}, True)


def mla_sparse(draw: Draw) -> Call:
    d, head, rows, keys, topk, dtype = (
        draw.one_of(576, 512),
        draw.randint(1, 3),
        draw.randint(1, 3),
        draw.randint(1, 9),
        4,
        draw.one_of(*FLOATS),
    )
    call = {"q": draw.rows(rows, head, d, dtype=dtype), "kv": draw.rows(keys, 1, d, dtype=dtype), "sm_scale": 0.1}
    call["indices"] = draw.within(torch.randint(-2, keys + 2, (rows, 1, topk), dtype=torch.int32))
    return call | draw.some(attn_sink=draw.rows(head), topk_length=draw.int32(draw.lengths(rows, topk)))


def check_mla_sparse(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flash_mla.flash_mla_sparse_fwd, before)
    options = {"q": a.q, "cache": a.kv, "indices": a.indices[:, 0], "scale": number(a.sm_scale), "sink": a.attn_sink}
    wants = definitions.sparse_latent_attention(
        with_defaults(fovea.sparse_latent_attention, options | {"topk_length": a.topk_length})
    )
    for got, want in zip(result, (wants["out"], wants["max_logits"], plus_infinity(wants["lse"])), strict=True):
        compare("sparse", got, want)


# ---- SageAttention, and lengths as lists ---------------------------------------------------------------------------------------


def sage(draw: Draw) -> Call:
    (head, kv_head), dim, dtype = draw.heads(), draw.one_of(64, 128, 40), draw.one_of(*FLOATS)
    batch, seq_q, seq_k, layout = draw.randint(1, 2), draw.randint(1, 6), draw.randint(1, 9), draw.one_of("HND", "NHD")
    tensors = {"q": draw.rows(batch, seq_q, head, dim, dtype=dtype)}
    tensors |= {name: draw.rows(batch, seq_k, kv_head, dim, dtype=dtype) for name in "kv"}
    if layout == "HND":
        tensors = {name: tensor.transpose(1, 2) for name, tensor in tensors.items()}
    return tensors | {"tensor_layout": layout} | draw.some(is_causal=True, sm_scale=0.2, return_lse=True)


def check_sage(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(sageattention.sageattn, before)
    rows = (tensor.transpose(1, 2) if a.tensor_layout == "HND" else tensor for tensor in (a.q, a.k, a.v))
    options = dict(zip("qkv", rows, strict=True)) | {"causal": bool(a.is_causal), "anchor": "top_left"}
    options["scale"] = a.q.shape[-1] ** -0.5 if a.sm_scale is None else number(a.sm_scale)
    wants = definitions_8bit.quantize_and_attend(with_defaults(fovea.quantize_and_attend, options))
    if a.tensor_layout == "HND":
        wants["out"] = Want(wants["out"].value.transpose(1, 2), wants["out"].bound.transpose(1, 2))
    compare_both("sageattn", result, wants, a.return_lse)


def listed(draw: Draw) -> Call:
    (head, kv_head), dim, dtype, page = draw.heads(), draw.one_of(16, 64), draw.one_of(*FLOATS), draw.one_of(1, 4)
    rows = draw.lengths(draw.randint(1, 3), 4)
    lengths = [count + draw.randint(0, 6) for count in rows]
    table, blocks = draw.blocks(lengths, page)
    call = {"query": draw.rows(sum(rows), head, dim, dtype=dtype), "query_lens": rows, "kv_lens": lengths, "block_tables": table}
    call |= {name: draw.rows(blocks, page, kv_head, dim, dtype=dtype) for name in ("key_cache", "value_cache")}
    return call | {"scale": 0.3} | draw.some(soft_cap=4.0)


def check_listed(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(custom_attn.custom_paged_attn, before)
    assert all(isinstance(length, Integral) for length in (*a.query_lens, *a.kv_lens))
    ends = torch.tensor([0, *a.query_lens]).cumsum(0)
    scores = {"scale": float(a.scale), "softcap": max(float(a.soft_cap), 0.0)}
    wants = paged(a.query, (a.key_cache, a.value_cache), a.block_tables, torch.tensor(a.kv_lens), ends, scores)
    compare("custom_paged_attn", result, wants["out"])


REFUSES = (RuntimeError, NotImplementedError, TypeError)
FUNCTIONS = [
    (flash_mla.flash_mla_with_kvcache, mla_kvcache, check_mla_kvcache, (), (*REFUSES, AssertionError)),
    (flash_mla.flash_mla_sparse_fwd, mla_sparse, check_mla_sparse, (), REFUSES),
    (sageattention.sageattn, sage, check_sage, (), (*REFUSES, ValueError)),
    (custom_attn.custom_paged_attn, listed, check_listed, (), (ValueError, NotImplementedError, TypeError)),
]
"""Function, maker, check, what it may write, what it raises."""
