# SPDX-License-Identifier: Apache-2.0
"""Good random calls of the drop-ins for flash-attn, FlashMLA and SageAttention, and what they give by the definitions."""

from functools import partial
from numbers import Integral
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions
import definitions_8bit
import fovea
import fuzz_core
import packed
from definitions import Want, with_defaults
from fovea.compat import custom_attn, flash_attn, flash_attn_interface, flash_mla, sageattention
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
    }


def compare_both(name: str, result: Any, wants: dict[str, Want], asked: bool, ragged: bool = False) -> None:
    """out alone, or out and lse, which flash-attn has head by head."""
    parts = result if isinstance(result, tuple) else (result,)
    assert len(parts) > 1 or not asked
    compare(f"{name}: out", parts[0], wants["out"])
    if asked:
        lse = wants["lse"]
        compare(f"{name}: lse", parts[1], Want(lse.value.T, lse.bound.T) if ragged else lse)


# ---- flash-attn ----------------------------------------------------------------------------------------------------------------


def flash_scores(draw: Draw) -> Call:
    return draw.some(softmax_scale=0.3, causal=True, window_size=draw.one_of((-1, -1), (3, -1), (2, 1)), softcap=5.0)


def flash_dense(draw: Draw, packs: str = "") -> Call:
    (head, kv_head), dim, dtype = draw.heads(), draw.one_of(16, 64, 20), draw.one_of(*FLOATS)
    batch, seq_q, seq_k = draw.randint(1, 2), draw.randint(1, 6), draw.randint(1, 9)
    call = flash_scores(draw) | draw.some(return_attn_probs=True, deterministic=True)
    if packs == "qkv":
        return call | {"qkv": draw.rows(batch, seq_q, 3, head, dim, dtype=dtype)}
    call["q"] = draw.rows(batch, seq_q, head, dim, dtype=dtype)
    if packs == "kv":
        return call | {"kv": draw.rows(batch, seq_k, 2, kv_head, dim, dtype=dtype)}
    return call | {name: draw.rows(batch, seq_k, kv_head, dim, dtype=dtype) for name in "kv"}


def check_dense(function: Any, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    if hasattr(a, "qkv"):
        a.q, a.k, a.v = a.qkv.unbind(2)
    if hasattr(a, "kv"):
        a.k, a.v = a.kv.unbind(2)
    assert not getattr(a, "dropout_p", 0.0) and getattr(a, "alibi_slopes", None) is None
    scales = {f"{name}_scale": getattr(a, f"{name}_descale", None) for name in "qkv"}
    compare_both("dense", result, ours(a.q, a.k, a.v, **scores_in_flashs_words(a), **scales), a.return_attn_probs)


def flash_varlen(draw: Draw) -> Call:
    (head, kv_head), dim, dtype = draw.heads(), draw.one_of(16, 64, 20), draw.one_of(*FLOATS)
    rows, keys = fuzz_core.lengths_of(draw)
    call = {"q": draw.rows(sum(rows), head, dim, dtype=dtype)}
    call |= {name: draw.rows(sum(keys), kv_head, dim, dtype=dtype) for name in "kv"}
    call |= {"cu_seqlens_q": draw.ends(rows), "cu_seqlens_k": draw.ends(keys), "max_seqlen_q": max(rows), "max_seqlen_k": max(keys)}
    return call | flash_scores(draw) | draw.some(return_attn_probs=True)


def flash_varlen_paged(draw: Draw) -> Call:
    call = flash_varlen(draw)
    keys, page = call["cu_seqlens_k"].diff().tolist(), draw.one_of(1, 4, 16)
    table, blocks = draw.blocks(keys, page)
    _, kv_head, dim = call["k"].shape
    dim = 16 if dim == 20 else dim
    call["q"] = call["q"][..., :dim].contiguous()
    call |= {name: draw.rows(blocks, page, kv_head, dim, dtype=call["q"].dtype) for name in "kv"}
    return call | {"block_table": table}


def check_varlen(function: Any, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    assert not getattr(a, "dropout_p", 0.0) and getattr(a, "alibi_slopes", None) is None
    options, scores = {"cu_seqlens_q": a.cu_seqlens_q}, scores_in_flashs_words(a)
    if getattr(a, "block_table", None) is None:
        used = {"cu_seqlens_k": a.cu_seqlens_k}
        wants = ours(a.q, a.k, a.v, **options, **used, **scores)
    else:
        lengths = a.cu_seqlens_k.diff()
        wants = paged(a.q, (a.k, a.v), a.block_table, lengths, a.cu_seqlens_q, scores)
    compare_both("varlen", result, wants, a.return_attn_probs, ragged=True)


def paged(q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, cu: Tensor | None, scores: Call) -> Any:
    call = {"q": q, "k_cache": caches[0], "v_cache": caches[1], "block_table": table, "kv_len": lengths, "cu_seqlens_q": cu}
    return definitions.paged_attention(with_defaults(fovea.paged_attention, call | scores))


def flash_kvcache(draw: Draw, table_name: str = "block_table") -> Call:
    (head, kv_head), dim, dtype, page = draw.heads(), draw.one_of(16, 64), draw.one_of(*FLOATS), draw.one_of(1, 4, 16)
    batch, seq_q, new = draw.randint(1, 3), draw.randint(1, 4), draw.one_of(0, 0, 1, 3)
    lengths = draw.lengths(batch, 12)
    call: Call = {"q": draw.rows(batch, seq_q, head, dim, dtype=dtype)} | flash_scores(draw) | draw.some(return_softmax_lse=True)
    if draw.random() < 0.5:
        table, blocks = draw.blocks([length + new for length in lengths], page, more=0)
        call[table_name] = table
        shape = (blocks, page, kv_head, dim)
    else:
        rows = batch + draw.randint(0, 1)
        shape = (rows, max(lengths) + new + 1, kv_head, dim)
        call |= draw.some(cache_batch_idx=draw.int32(draw.sample(range(rows), batch)))
    call |= {f"{name}_cache": draw.rows(*shape, dtype=dtype) for name in "kv"} | {"cache_seqlens": draw.int32(lengths)}
    if new:
        call |= {name: draw.rows(batch, new, kv_head, dim, dtype=dtype) for name in "kv"}
        if draw.random() < 0.4:
            angles = torch.rand(20, draw.one_of(4, 8))
            call |= {"rotary_cos": angles.cos().to(dtype), "rotary_sin": angles.sin().to(dtype)}
            call |= draw.some(rotary_interleaved=False)
    return call


def turned(x: Tensor, positions: Tensor, a: SimpleNamespace) -> Tensor:
    """x [seq, head, dim] by the rotary embedding of its positions, in float64."""
    half = a.rotary_cos.shape[1]
    cos, sin = (table[positions.long()].double()[:, None] for table in (a.rotary_cos, a.rotary_sin))
    x = x.double().clone()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if a.rotary_interleaved else (slice(0, half), slice(half, 2 * half))
    )
    one, other = x[..., first].clone(), x[..., second].clone()
    x[..., first], x[..., second] = one * cos - other * sin, one * sin + other * cos
    return x


def check_kvcache(function: Any, table_name: str, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    batch, seq_q, table = a.q.shape[0], a.q.shape[1], getattr(a, table_name)
    assert a.cache_leftpad is None and (a.k is None) == (a.v is None) and (a.rotary_cos is None or a.k is not None)
    if table is None:
        own = torch.arange(batch) if a.cache_batch_idx is None else a.cache_batch_idx
        table = own.to(torch.int32)[:, None]
    room, new = table.shape[1] * a.k_cache.shape[1], 0 if a.k is None else a.k.shape[1]
    given = a.cache_seqlens if a.cache_seqlens is not None else 0 if new else room
    lengths = given.long() if isinstance(given, Tensor) else torch.full((batch,), given)
    q, k_cache, v_cache = a.q.double(), a.k_cache.clone(), a.v_cache.clone()
    for sequence in range(batch):
        if a.rotary_cos is not None:
            local = bool(a.causal) or band(a.window_size) != (None, None)
            q[sequence] = turned(a.q[sequence], lengths[sequence] + torch.arange(seq_q) * int(local), a).to(a.q.dtype)
        for token in range(new):
            at = int(lengths[sequence]) + token
            assert 0 <= at < room
            k = a.k[sequence, token][None]
            k = k if a.rotary_cos is None else turned(k, torch.tensor([at]), a)
            block, slot = int(table[sequence, at // k_cache.shape[1]]), at % k_cache.shape[1]
            assert 0 <= block < len(k_cache)
            k_cache[block, slot], v_cache[block, slot] = k[0].to(k_cache.dtype), a.v[sequence, token]
    rounded = 0.0 if a.rotary_cos is None else k_cache.double().nan_to_num(0.0).abs() * torch.finfo(k_cache.dtype).eps * 2 + 1e-6
    compare("k_cache", call["k_cache"], Want(k_cache, rounded))
    compare("v_cache", call["v_cache"], Want(v_cache))
    ends = torch.arange(batch + 1) * seq_q
    wants = paged(q.to(a.q.dtype).flatten(0, 1), (k_cache, v_cache), table, lengths + new, ends, scores_in_flashs_words(a))
    slack = 1.0 if a.rotary_cos is None else 8.0
    out, lse = (
        Want(wants[name].value.unflatten(0, (batch, seq_q)), slack * wants[name].bound.unflatten(0, (batch, seq_q)))
        for name in ("out", "lse")
    )
    lse = Want(lse.value.transpose(1, 2), lse.bound.transpose(1, 2) + 2e-3 * (slack > 1))
    compare_both("kvcache", result, {"out": out, "lse": lse}, a.return_softmax_lse)


def flash_combine(draw: Draw) -> Call:
    splits, batch, seq, head, dim = draw.randint(1, 3), draw.randint(1, 2), draw.randint(1, 3), draw.randint(1, 3), 16
    call = {"out_partial": draw.rows(splits, batch, seq, head, dim), "lse_partial": draw.rows(splits, batch, seq, head)}
    out = draw.poison(batch, seq, head, dim, dtype=draw.one_of(*FLOATS))
    return call | draw.one_of({}, {"out": out}, {"out_dtype": torch.bfloat16})


def check_combine(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flash_attn_interface.flash_attn_combine, before)
    parts, lses = (list(tensor.flatten(1, 2)) for tensor in (a.out_partial, a.lse_partial))
    wants = definitions.merge_states(with_defaults(fovea.merge_states, {"outs": parts, "lses": lses}))
    batched = a.out_partial.shape[1:3]
    for name, got, want in zip(("out", "lse"), result, wants.values(), strict=True):
        assert got.is_floating_point()
        rounded = want.value.abs().nan_to_num(0.0, 0.0, 0.0) * torch.finfo(got.dtype).eps
        bound = torch.as_tensor(want.bound) + rounded
        compare(f"combine: {name}", got, Want(want.value.unflatten(0, batched), bound.unflatten(0, batched)))
    assert a.out is None or result[0].data_ptr() == call["out"].data_ptr()


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
    (flash_attn.flash_attn_func, flash_dense, partial(check_dense, flash_attn.flash_attn_func), (), REFUSES),
    (
        flash_attn.flash_attn_qkvpacked_func,
        partial(flash_dense, packs="qkv"),
        partial(check_dense, flash_attn.flash_attn_qkvpacked_func),
        (),
        REFUSES,
    ),
    (
        flash_attn.flash_attn_kvpacked_func,
        partial(flash_dense, packs="kv"),
        partial(check_dense, flash_attn.flash_attn_kvpacked_func),
        (),
        REFUSES,
    ),
    (flash_attn.flash_attn_varlen_func, flash_varlen, partial(check_varlen, flash_attn.flash_attn_varlen_func), (), REFUSES),
    (flash_attn.flash_attn_varlen_func, flash_varlen_paged, partial(check_varlen, flash_attn.flash_attn_varlen_func), (), REFUSES),
    (
        flash_attn.flash_attn_with_kvcache,
        flash_kvcache,
        partial(check_kvcache, flash_attn.flash_attn_with_kvcache, "block_table"),
        ("k_cache", "v_cache"),
        REFUSES,
    ),
    (flash_attn_interface.flash_attn_func, flash_dense, partial(check_dense, flash_attn_interface.flash_attn_func), (), REFUSES),
    (
        flash_attn_interface.flash_attn_varlen_func,
        flash_varlen,
        partial(check_varlen, flash_attn_interface.flash_attn_varlen_func),
        (),
        REFUSES,
    ),
    (
        flash_attn_interface.flash_attn_with_kvcache,
        partial(flash_kvcache, table_name="page_table"),
        partial(check_kvcache, flash_attn_interface.flash_attn_with_kvcache, "page_table"),
        ("k_cache", "v_cache"),
        REFUSES,
    ),
    (flash_attn_interface.flash_attn_combine, flash_combine, check_combine, ("out",), REFUSES),
    (flash_mla.flash_mla_with_kvcache, mla_kvcache, check_mla_kvcache, (), (*REFUSES, AssertionError)),
    (flash_mla.flash_mla_sparse_fwd, mla_sparse, check_mla_sparse, (), REFUSES),
    (sageattention.sageattn, sage, check_sage, (), (*REFUSES, ValueError)),
    (custom_attn.custom_paged_attn, listed, check_listed, (), (ValueError, NotImplementedError, TypeError)),
]
"""Function, maker, check, what it may write, what it raises."""
