# SPDX-License-Identifier: Apache-2.0
"""Good random calls of fovea's own functions, for the fuzzer."""

from typing import Any

import torch

import definitions
import fovea
import packed
from fuzz_draw import E4M3, FLOATS, Draw
from fuzz_scores import packed_bits, score_terms

Call = dict[str, Any]


def implementation(draw: Draw, operation: str) -> Call:
    """The reference now and then, which every operation has."""
    return {"implementation": f"reference.{operation}"} if draw.random() < 0.2 else {}


def lengths_of(draw: Draw) -> tuple[list[int], list[int]]:
    batch = draw.randint(1, 3)
    return draw.lengths(batch), draw.lengths(batch)


def qkv(draw: Draw, dims: tuple[int, int], dtype: torch.dtype) -> Call:
    """q, k and v of a fixed batch or a ragged one."""
    (head, kv_head), (dqk, dv) = draw.heads(), dims
    if draw.random() < 0.5:
        batch, seq_q, seq_k = draw.randint(1, 2), draw.randint(1, 7), draw.randint(1, 9)
        shapes = {"q": (batch, seq_q, head, dqk), "k": (batch, seq_k, kv_head, dqk), "v": (batch, seq_k, kv_head, dv)}
        return {name: draw.rows(*shape, dtype=dtype) for name, shape in shapes.items()}
    rows, keys = lengths_of(draw)
    over, under = draw.randint(0, 2), draw.randint(0, 2)  # rows of no sequence
    shapes = {"q": (sum(rows) + over, head, dqk), "k": (sum(keys) + under, kv_head, dqk), "v": (sum(keys) + under, kv_head, dv)}
    call = {name: draw.rows(*shape, dtype=dtype) for name, shape in shapes.items()}
    call |= {"cu_seqlens_q": draw.ends(rows), "cu_seqlens_k": draw.ends(keys)}
    return call | draw.some(max_seqlen_q=max(rows), max_seqlen_k=max(keys))


def outputs(draw: Draw, call: Call, dv: int, dtype: torch.dtype) -> Call:
    q = call["q"]
    lse = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else tuple(q.shape[:2])
    return draw.some(out=draw.poison(*q.shape[:-1], dv, dtype=dtype), lse=draw.poison(*lse), return_lse=draw.one_of(True, False))


def attention(draw: Draw) -> Call:
    dims, dtype = draw.one_of((16, 16), (64, 64), (24, 40), (192, 128)), draw.one_of(*FLOATS, torch.float64, E4M3)
    call = qkv(draw, dims, dtype)
    call |= draw.scores(
        softcap=draw.uniform(1, 9), sink=draw.rows(call["q"].shape[-2]), anchor=draw.one_of("top_left", "bottom_right")
    )
    if dtype == E4M3:
        call |= draw.some(q_scale=0.5, k_scale=draw.rows(1).abs() + 0.1, v_scale=draw.rows(call["k"].shape[-2]).abs() + 0.1)
    result = torch.bfloat16 if dtype == E4M3 else dtype
    call |= outputs(draw, call, dims[1], result) | score_terms(draw, call, result)
    return call | draw.some(batch_invariant=True, deterministic=True) | implementation(draw, "attention")


def attention_backward(draw: Draw) -> Call:
    dims, dtype = draw.one_of((16, 16), (64, 64), (24, 40)), draw.one_of(*FLOATS)
    call = qkv(draw, dims, dtype)
    call |= draw.scores(
        softcap=draw.uniform(1, 9), sink=draw.rows(call["q"].shape[-2]), anchor=draw.one_of("top_left", "bottom_right")
    )
    call |= score_terms(draw, call, dtype)
    forward = definitions.attention(definitions.with_defaults(fovea.attention, call))
    call["out"] = draw.within(forward["out"].value.to(dtype))
    call["lse"] = draw.within(forward["lse"].value.float())
    call["dout"] = draw.rows(*call["out"].shape, dtype=dtype)
    call |= draw.some(dlse=draw.rows(*call["lse"].shape), deterministic=True)
    call |= draw.some(bias_gradient=True) if "bias" in call else {}
    return call | implementation(draw, "attention_backward")


def scaled_dot_product_attention(draw: Draw) -> Call:
    (head, kv_head), dtype = draw.heads(), draw.one_of(*FLOATS)
    batch, seq_q, seq_k, dim = draw.randint(1, 2), draw.randint(1, 7), draw.randint(1, 9), draw.one_of(16, 64)
    call = {"query": draw.rows(batch, head, seq_q, dim, dtype=dtype)}
    call |= {name: draw.rows(batch, kv_head, seq_k, dim, dtype=dtype) for name in ("key", "value")}
    call |= {"enable_gqa": True} | draw.some(scale=0.3)
    if draw.random() < 0.5:
        return call | draw.some(is_causal=True)
    shape = draw.one_of((seq_q, seq_k), (batch, 1, seq_q, seq_k), (1, head, 1, seq_k), (head, seq_q, seq_k))
    return call | {"attn_mask": draw.one_of(draw.within(torch.rand(shape) < 0.7), draw.rows(*shape, dtype=dtype))}


def codes(draw: Draw, blocks: int, page: int, kv_head: int, dims: tuple[int, int]) -> Call:
    """Caches of K and V in formats of codes; of rows at times where the other has codes. Every slot has a row."""
    call: Call = {}
    for name, dim in zip("kv", dims, strict=True):
        format = draw.choice([*fovea.kv_formats()])
        kind = fovea.kv_formats()[format]
        options = {"scale_dtype": torch.float16} if kind.scale == "token" and draw.random() < 0.3 else {}
        inline = {"inline": True} if kind.scale != "none" and draw.random() < 0.3 else {}
        cache, scales = kind.empty(blocks, page, kv_head, dim, **options, **inline)
        call |= {f"{name}_cache": cache, f"{name}_format": format} | ({} if scales is None else {f"{name}_scale_cache": scales})
        if kind.has_global:
            call |= draw.some(**{f"{name}_scale": draw.one_of(0.5, torch.tensor([0.25]))})
    return call


def paged_codes(draw: Draw) -> Call:
    """As paged_attention, over caches of codes."""
    (head, kv_head), page, batch, dtype = draw.heads(), draw.one_of(1, 4, 16), draw.randint(1, 3), draw.one_of(*FLOATS)
    lengths, rows = draw.lengths(batch, 20), draw.lengths(batch, 4)
    table, blocks = draw.blocks(lengths, page)
    dims = draw.one_of((64, 64), (64, 128), (32, 32))
    call = codes(draw, blocks, page, kv_head, dims)
    new = (torch.randn(blocks * page, kv_head, dim).to(dtype) for dim in dims)
    fovea.paged_cache_append(*new, slot_mapping=torch.arange(blocks * page), **call)
    call |= {"q": draw.rows(sum(rows), head, dims[0], dtype=dtype), "block_table": table, "kv_len": draw.int32(lengths)}
    call |= {"cu_seqlens_q": draw.ends(rows)} | draw.some(max_seqlen_q=max(rows))
    call |= draw.scores(softcap=draw.uniform(1, 9), sink=draw.rows(head), max_kv_len=max(lengths))
    return call | outputs(draw, call, dims[1], dtype) | draw.some(batch_invariant=True) | implementation(draw, "paged_attention")


def paged_attention(draw: Draw) -> Call:
    if draw.random() < 0.3:
        return paged_codes(draw)
    (head, kv_head), (dqk, dv), page = draw.heads(), draw.one_of((16, 16), (64, 64), (24, 40)), draw.one_of(1, 4, 16)
    batch, dtype = draw.randint(1, 3), draw.one_of(*FLOATS)
    lengths, rows = draw.lengths(batch, 20), [1] * batch if draw.random() < 0.4 else draw.lengths(batch, 4)
    table, blocks = draw.blocks(lengths, page)
    stored = draw.one_of(dtype, E4M3)
    call = {"q": draw.rows(sum(rows), head, dqk, dtype=dtype)}
    call |= {f"{name}_cache": draw.rows(blocks, page, kv_head, dim, dtype=stored) for name, dim in (("k", dqk), ("v", dv))}
    call |= {"block_table": table, "kv_len": draw.int32(lengths)}
    if rows != [1] * batch or draw.random() < 0.5:
        call |= {"cu_seqlens_q": draw.ends(rows)} | draw.some(max_seqlen_q=max(rows))
    call |= draw.scores(softcap=draw.uniform(1, 9), sink=draw.rows(head), max_kv_len=max(lengths))
    if draw.random() < 0.3:
        call |= packed_bits(draw, call["q"], list(zip(rows, lengths, strict=True)), call.get("max_kv_len", table.shape[1] * page))
    if stored == E4M3:
        call |= draw.some(k_scale=draw.rows(kv_head).abs() + 0.1, v_scale=0.25)
    return call | outputs(draw, call, dv, dtype) | draw.some(batch_invariant=True) | implementation(draw, "paged_attention")


def paged_cache_append(draw: Draw) -> Call:
    if draw.random() < 0.3:
        count, kv_head, dims, dtype = draw.randint(0, 5), draw.randint(1, 3), draw.one_of((32, 64), (64, 64)), draw.one_of(*FLOATS)
        call = codes(draw, 3, 4, kv_head, dims)
        call |= {name: draw.rows(count, kv_head, dim, dtype=dtype) for name, dim in zip("kv", dims, strict=True)}
        for name in "kv":  # bytes that no slot gets stay as they are
            for cache in (call[f"{name}_cache"], call.get(f"{name}_scale_cache")):
                if cache is not None:
                    cache.copy_(torch.ones(cache.shape).to(cache.dtype))
        return call | {"slot_mapping": draw.slots(count, 12)} | implementation(draw, "paged_cache_append")
    tokens, kv_head, (dqk, dv) = draw.randint(0, 5), draw.randint(1, 3), draw.one_of((16, 16), (24, 40), (7, 1))
    dtype = draw.one_of(*FLOATS)
    stored = draw.one_of(dtype, E4M3)
    call = {"k": draw.rows(tokens, kv_head, dqk, dtype=dtype), "v": draw.rows(tokens, kv_head, dv, dtype=dtype)}
    call |= {f"{name}_cache": draw.poison(3, 4, kv_head, dim, dtype=stored) for name, dim in (("k", dqk), ("v", dv))}
    call["slot_mapping"] = draw.slots(tokens, 12)
    scales = draw.some(k_scale=0.5, v_scale=draw.rows(kv_head).abs() + 0.1) if stored == E4M3 else {}
    return call | scales | implementation(draw, "paged_cache_append")


def merge_states(draw: Draw) -> Call:
    count, rows, head, dim, dtype = (
        draw.randint(1, 4),
        draw.randint(0, 5),
        draw.randint(1, 3),
        draw.one_of(8, 64),
        draw.one_of(*FLOATS),
    )
    call: Call = {"outs": [draw.rows(rows, head, dim, dtype=dtype) for _ in range(count)]}
    call["lses"] = [draw.rows(rows, head) for _ in range(count)]
    if rows and draw.random() < 0.3:
        call["lses"][0][0, 0] = draw.one_of(torch.inf, -torch.inf, torch.nan)
    call |= draw.some(
        out=draw.poison(rows, head, dim, dtype=dtype), lse=draw.poison(rows, head), return_lse=draw.one_of(True, False)
    )
    return call | implementation(draw, "merge_states")


def latent_cache(draw: Draw, blocks: int, page: int, d: int, dtype: torch.dtype, kv_head: int = 1) -> Call:
    """In rows or packed."""
    formats = {576: "v32_fp8", 512: draw.one_of("v4_fp8", "v41_fp8")}
    if dtype != torch.bfloat16 or draw.random() < 0.5:
        return {"cache": draw.rows(blocks, page, kv_head, d, dtype=dtype)}
    cache = fovea.cache_formats()[formats[d]].empty(blocks, page)
    fovea.quantize_latent_cache(torch.randn(blocks * page, d), cache, torch.arange(blocks * page), format=formats[d])
    return {"cache": cache, "format": formats[d]}


def latent_attention(draw: Draw) -> Call:
    d, page, batch, head, dtype = (
        draw.one_of(576, 512),
        draw.one_of(4, 8),
        draw.randint(1, 2),
        draw.randint(1, 3),
        draw.one_of(*FLOATS),
    )
    lengths = draw.lengths(batch, 12)
    table, blocks = draw.blocks(lengths, page)
    call = latent_cache(draw, blocks, page, d, dtype) | {"block_table": table, "kv_len": draw.int32(lengths)}
    if draw.random() < 0.6:
        call["q"] = draw.rows(batch, draw.randint(1, 3), head, d, dtype=dtype)
    else:
        rows = draw.lengths(batch, 3)
        call |= {"q": draw.rows(sum(rows), head, d, dtype=dtype), "cu_seqlens_q": draw.ends(rows)} | draw.some(
            max_seqlen_q=max(rows)
        )
    call |= draw.scores(max_kv_len=max(lengths)) | outputs(draw, call, 512, dtype)
    return call | draw.some(batch_invariant=True, schedule=fovea.LatentSchedule()) | implementation(draw, "latent_attention")


def sparse_latent_attention(draw: Draw) -> Call:
    d, head, dtype, topk = draw.one_of(576, 512), draw.randint(1, 3), draw.one_of(*FLOATS), draw.randint(1, 5)
    if draw.random() < 0.3:
        rows, keys = draw.randint(1, 3), draw.randint(1, 9)
        call = {"q": draw.rows(rows, head, d, dtype=dtype), "cache": draw.rows(keys, 1, d, dtype=dtype)}
        call["indices"] = draw.within(torch.randint(-2, keys + 2, (rows, topk), dtype=torch.int32))
        call |= draw.some(topk_length=draw.int32(draw.lengths(rows, topk)))
    else:
        batch, rows, blocks, page = draw.randint(1, 2), draw.randint(1, 3), draw.randint(1, 3), draw.one_of(1, 4)
        call = latent_cache(draw, blocks, page, d, dtype) | {"q": draw.rows(batch, rows, head, d, dtype=dtype)}
        call["indices"] = draw.within(torch.randint(-2, blocks * page + 2, (batch, rows, topk), dtype=torch.int32))
        call |= draw.some(topk_length=draw.int32(draw.lengths(batch, topk)))
        if draw.random() < 0.3:
            extra = latent_cache(draw, 2, 2, d, dtype)
            call |= {f"extra_{name}": value for name, value in extra.items()}
            call["extra_indices"] = draw.within(torch.randint(-1, 6, (batch, rows, 2), dtype=torch.int32))
    call |= draw.some(scale=0.1, sink=draw.rows(head), return_max_logits=True) | outputs(draw, call, 512, dtype)
    return call | implementation(draw, "sparse_latent_attention")


def quantize_latent_cache(draw: Draw) -> Call:
    format, tokens = draw.choice(list(packed.LAYOUTS)), draw.randint(0, 5)
    cache = fovea.cache_formats()[format].empty(2, 4)
    cache.zero_()
    row = fovea.cache_formats()[format].row
    call = {"rows": draw.rows(tokens, row, dtype=draw.one_of(*FLOATS)), "cache": cache, "format": format}
    call["slot_mapping"] = draw.slots(tokens, 8)
    return call | draw.some(exact_scale=True) | implementation(draw, "quantize_latent_cache")


def dequantize_latent_cache(draw: Draw) -> Call:
    format, tokens, dtype = draw.choice(list(packed.LAYOUTS)), draw.randint(0, 5), draw.one_of(*FLOATS)
    cache, row = fovea.cache_formats()[format].empty(2, 4), fovea.cache_formats()[format].row
    fovea.quantize_latent_cache(torch.randn(8, row), cache, torch.arange(8), format=format)
    call = {"cache": cache, "slot_mapping": draw.slots(tokens, 8), "format": format}
    call |= draw.one_of({"dtype": dtype}, {"rows": draw.poison(tokens, row, dtype=dtype)}, {})
    return call | implementation(draw, "dequantize_latent_cache")


def groups(draw: Draw) -> Call:
    return draw.some(granularity=draw.one_of("block", "warp", "thread"), warp_rows=draw.one_of(16, 32))


def quantize_qk_int8(draw: Draw) -> Call:
    call = qkv(draw, (64, 64), draw.one_of(*FLOATS))
    call.pop("v")
    call |= groups(draw) | draw.some(smooth_k=draw.one_of(True, False)) | implementation(draw, "quantize_qk_int8")
    if draw.random() < 0.2:
        made = fovea.quantize_qk_int8(**call)
        call["out"] = type(made)(*(torch.zeros_like(part) if isinstance(part, torch.Tensor) else part for part in made))
    return call


def quantize_v(draw: Draw) -> Call:
    call = qkv(draw, (64, 64), draw.one_of(*FLOATS))
    call = {name: call[name] for name in ("v", "cu_seqlens_k", "max_seqlen_k") if name in call}
    return call | draw.some(dtype=draw.one_of(torch.float16, E4M3), smooth_v=True) | implementation(draw, "quantize_v")


def quantized_attention(draw: Draw) -> Call:
    call = qkv(draw, (64, 64), draw.one_of(*FLOATS))
    v, lengths = call.pop("v"), {name: value for name, value in call.items() if "seqlen" in name}
    keys = {name: value for name, value in lengths.items() if name.endswith("_k")}
    qk = fovea.quantize_qk_int8(**call, **groups(draw))
    codes = {"qk": qk, "v": fovea.quantize_v(v, **keys, **draw.some(dtype=E4M3, smooth_v=True)), **lengths}
    dtype = draw.one_of(*FLOATS)
    given = outputs(draw, {"q": qk.q}, 64, dtype)
    codes |= draw.scores(anchor=draw.one_of("top_left", "bottom_right")) | given
    return codes | draw.some(dtype=dtype, batch_invariant=True) | implementation(draw, "quantized_attention")


def quantize_and_attend(draw: Draw) -> Call:
    dtype = draw.one_of(*FLOATS)
    call = qkv(draw, (64, 64), dtype)
    call |= draw.scores(anchor=draw.one_of("top_left", "bottom_right"), v_dtype=draw.one_of(torch.float16, E4M3), smooth_k=False)
    call |= draw.some(smooth_v=True) | groups(draw) | outputs(draw, call, 64, dtype)
    return call | draw.some(batch_invariant=True) | implementation(draw, "quantize_and_attend")


def index_logits(draw: Draw) -> Call:
    head, dim, page = draw.randint(1, 5), draw.one_of(64, 128), draw.one_of(1, 4, 8, 24)
    batch, queries = draw.randint(1, 3), draw.randint(1, 3)
    lengths, paged = draw.lengths(batch), draw.random() < 0.5
    rows = batch * queries if paged else draw.one_of(draw.randint(0, 4), draw.randint(8, 20))
    call: Call = {"q": draw.rows(rows, head, dim, dtype=E4M3), "weights": draw.rows(rows, head)}
    if paged:
        table, blocks = draw.blocks(lengths, page)
        call |= {"block_table": table, "kv_len": draw.int32(lengths)}
        call |= {"k": draw.rows(blocks, page, dim, dtype=E4M3), "k_scale": draw.rows(blocks, page)}
    else:
        tokens = draw.one_of(draw.randint(0, 9), draw.randint(120, 300))
        call |= {"k": draw.rows(tokens, dim, dtype=E4M3), "k_scale": torch.randn(tokens)}
        call |= draw.some(first=bounds(draw, rows), last=bounds(draw, rows))
    return call | draw.some(dtype=torch.bfloat16) | implementation(draw, "index_logits")


def bounds(draw: Draw, rows: int) -> torch.Tensor:
    return draw.int32([draw.one_of(0, draw.randint(-3, 12), -(2**31), 2**31 - 1) for _ in range(rows)])


def topk_rows(draw: Draw) -> Call:
    batch, columns, k = draw.randint(1, 3), draw.randint(0, 40), draw.randint(0, 30)
    rows = batch * draw.randint(0, 3)
    call: Call = {"logits": draw.rows(rows, columns, dtype=draw.one_of(*FLOATS)), "k": k}
    if columns and rows:
        call["logits"][0, 0] = draw.one_of(torch.nan, torch.inf, -torch.inf, 0.0)
    if draw.random() < 0.4:
        blocks = [[draw.randint(-1, 20) for _ in range(3)] for _ in range(batch)]
        call |= {"block_table": draw.int32(blocks), "page": draw.randint(1, 16)}
    call |= draw.some(first=bounds(draw, rows), last=bounds(draw, rows), offset=bounds(draw, rows), sorted=True)
    return call | implementation(draw, "topk_rows")


MAKERS = {
    make.__name__: make
    for make in (
        attention,
        attention_backward,
        dequantize_latent_cache,
        index_logits,
        latent_attention,
        merge_states,
        paged_attention,
        paged_cache_append,
        quantize_and_attend,
        quantize_latent_cache,
        quantize_qk_int8,
        quantize_v,
        quantized_attention,
        scaled_dot_product_attention,
        sparse_latent_attention,
        topk_rows,
    )
}
