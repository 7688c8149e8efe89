# SPDX-License-Identifier: Apache-2.0
"""Good random calls of the drop-ins for flash-attn, and what they give by the definitions."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions
import fovea
import fuzz_core
import plain
from definitions import Undecided, Want, with_defaults
from fovea.compat import flash_attn, flash_attn_interface
from fuzz_draw import FLOATS, Draw
from fuzz_flash import REFUSES, Call, band, compare_both, ours, paged, scores_in_flashs_words
from judge import compare

LATENT = (64, 512)
"""Head dims of q and k, and of v, that go with qv."""


def check_terms(a: Any) -> None:
    """A seed of dropout that the function draws is known to nobody."""
    dropout_p = getattr(a, "dropout_p", 0.0)
    if dropout_p and 0 < dropout_p < 1:
        raise Undecided("dropout")
    assert not dropout_p


def of_flash_attn_3(draw: Draw, call: Call) -> Call:
    """The call with what FlashAttention-3 has beside flash-attn 2: chunks, and qv, for which k and v get other head dims."""
    call |= draw.some(attention_chunk=draw.one_of(1, 3, 4, 8, 100))
    if draw.random() < 0.7:
        return call
    dtype, rows = call["q"].dtype, call["q"].shape[:-1]
    call.pop("softcap", None)
    call |= {name: draw.rows(*rows, dim, dtype=dtype) for name, dim in zip(("q", "qv"), LATENT, strict=True)}
    for suffix in (suffix for suffix in ("", "_cache") if f"k{suffix}" in call):
        shape = (*call[f"k{suffix}"].shape[:-2], 1)
        both = draw.rows(*shape, sum(LATENT), dtype=dtype)  # k behind v, where a cache is read in place
        k, v = both[..., LATENT[1] :], both[..., : LATENT[1]]
        if draw.random() < 0.5:
            k, v = k.clone(), v.clone()
        call |= {f"k{suffix}": k, f"v{suffix}": v}
    return call


def is_ranged(a: SimpleNamespace) -> bool:
    return bool(getattr(a, "attention_chunk", 0)) or any(getattr(a, name, None) is not None for name in ("qv", "cache_leftpad"))


def sequence(a: SimpleNamespace, q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None) -> tuple[Want, Want]:
    """out and lse of one sequence whose keys are all there are: q [rows, head, d], k and v [keys, kv_head, d]."""
    if qv is not None:
        q, k = torch.cat([qv, q], dim=-1), torch.cat([v, k], dim=-1)
    words = definitions.scores_of(SimpleNamespace(**scores_in_flashs_words(a)), anchored=False)
    del words["offset"]
    chunk = int(getattr(a, "attention_chunk", 0))
    expected = plain.in_chunks(q, k, v, chunk, **words) if chunk else plain.attention(q, k, v, **words)
    return definitions.bounded(expected, q, k, words["scale"], q.dtype)


def batch_of(sequences: list[tuple[Want, Want]]) -> dict[str, Want]:
    """Sequences of one length: out [batch, seq, head, dim] and lse [batch, head, seq]."""
    out, lse = (
        Want(torch.stack([each.value for each in wants]), torch.stack([torch.as_tensor(each.bound) for each in wants]))
        for wants in zip(*sequences, strict=True)
    )
    return {"out": out, "lse": Want(lse.value.transpose(1, 2), lse.bound.transpose(1, 2))}


# ---- flash-attn ----------------------------------------------------------------------------------------------------------------


def flash_scores(draw: Draw) -> Call:
    return draw.some(softmax_scale=0.3, causal=True, window_size=draw.one_of((-1, -1), (3, -1), (2, 1)), softcap=5.0)


def slopes(draw: Draw, batch: int, head: int) -> Tensor:
    return draw.rows(*draw.one_of((head,), (batch, head))).abs()


def flash_dense(draw: Draw, packs: str = "", newer: bool = False) -> Call:
    (head, kv_head), dim, dtype = draw.heads(), draw.one_of(16, 64, 20), draw.one_of(*FLOATS)
    batch, seq_q, seq_k = draw.randint(1, 2), draw.randint(1, 6), draw.randint(1, 9)
    call = flash_scores(draw) | draw.some(return_attn_probs=True, deterministic=True)
    call |= {} if newer else draw.some(alibi_slopes=slopes(draw, batch, head))
    if packs == "qkv":
        return call | {"qkv": draw.rows(batch, seq_q, 3, head, dim, dtype=dtype)}
    call["q"] = draw.rows(batch, seq_q, head, dim, dtype=dtype)
    if packs == "kv":
        return call | {"kv": draw.rows(batch, seq_k, 2, kv_head, dim, dtype=dtype)}
    call |= {name: draw.rows(batch, seq_k, kv_head, dim, dtype=dtype) for name in "kv"}
    return of_flash_attn_3(draw, call) if newer else call


def check_dense(function: Any, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    if hasattr(a, "qkv"):
        a.q, a.k, a.v = a.qkv.unbind(2)
    if hasattr(a, "kv"):
        a.k, a.v = a.kv.unbind(2)
    check_terms(a)
    assert all(getattr(a, f"{name}_descale", None) is None for name in "qkv")
    if is_ranged(a):
        assert len(a.q) == len(a.k) == len(a.v)
        qv = [None] * len(a.q) if a.qv is None else a.qv
        wants = batch_of([sequence(a, *each) for each in zip(a.q, a.k, a.v, qv, strict=True)])
    else:
        wants = ours(a.q, a.k, a.v, **scores_in_flashs_words(a))
    compare_both("dense", result, wants, a.return_attn_probs)


def flash_varlen(draw: Draw, newer: bool = False) -> Call:
    (head, kv_head), dim, dtype = draw.heads(), draw.one_of(16, 64, 20), draw.one_of(*FLOATS)
    rows, keys = fuzz_core.lengths_of(draw)
    call = {"q": draw.rows(sum(rows), head, dim, dtype=dtype)}
    call |= {name: draw.rows(sum(keys), kv_head, dim, dtype=dtype) for name in "kv"}
    call |= {"cu_seqlens_q": draw.ends(rows), "cu_seqlens_k": draw.ends(keys), "max_seqlen_q": max(rows), "max_seqlen_k": max(keys)}
    call |= flash_scores(draw) | draw.some(return_attn_probs=True)
    call |= {} if newer else draw.some(alibi_slopes=slopes(draw, len(rows), head))
    return of_flash_attn_3(draw, call) if newer else call


def flash_varlen_paged(draw: Draw) -> Call:
    call = flash_varlen(draw)
    call.pop("alibi_slopes", None)
    keys, page = call["cu_seqlens_k"].diff().tolist(), draw.one_of(1, 4, 16)
    table, blocks = draw.blocks(keys, page)
    _, kv_head, dim = call["k"].shape
    dim = 16 if dim == 20 else dim
    call["q"] = call["q"][..., :dim].contiguous()
    call |= {name: draw.rows(blocks, page, kv_head, dim, dtype=call["q"].dtype) for name in "kv"}
    return call | {"block_table": table}


def check_varlen(function: Any, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    check_terms(a)
    options, scores = {"cu_seqlens_q": a.cu_seqlens_q}, scores_in_flashs_words(a)
    if is_ranged(a):
        wants = ragged(a)
    elif getattr(a, "block_table", None) is None:
        used = {"cu_seqlens_k": a.cu_seqlens_k}
        wants = ours(a.q, a.k, a.v, **options, **used, **scores)
    else:
        lengths = a.cu_seqlens_k.diff()
        wants = paged(a.q, (a.k, a.v), a.block_table, lengths, a.cu_seqlens_q, scores)
    compare_both("varlen", result, wants, a.return_attn_probs, ragged=True)


def ragged(a: SimpleNamespace) -> dict[str, Want]:
    """Rows of no sequence are 0 and -inf."""
    shape = (*a.q.shape[:2], a.v.shape[-1])
    out = Want(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape))
    lse = Want(torch.full(shape[:2], -torch.inf, dtype=torch.float64), torch.zeros(shape[:2]))
    for rows, keys in zip(definitions.spans(a.q, a.cu_seqlens_q), definitions.spans(a.k, a.cu_seqlens_k), strict=True):
        wants = sequence(a, a.q[rows], a.k[keys], a.v[keys], None if a.qv is None else a.qv[rows])
        for whole, part in zip((out, lse), wants, strict=True):
            whole.value[rows], whole.bound[rows] = part.value, part.bound
    return {"out": out, "lse": lse}


# ---- caches --------------------------------------------------------------------------------------------------------------------


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
        call |= draw.some(cache_leftpad=draw.int32([draw.randint(0, length) for length in lengths]))
    call |= {f"{name}_cache": draw.rows(*shape, dtype=dtype) for name in "kv"} | {"cache_seqlens": draw.int32(lengths)}
    if new:
        call |= {name: draw.rows(batch, new, kv_head, dim, dtype=dtype) for name in "kv"}
        if draw.random() < 0.4:
            angles = torch.rand(20, draw.one_of(4, 8))
            call |= {"rotary_cos": angles.cos().to(dtype), "rotary_sin": angles.sin().to(dtype)}
            call |= draw.some(rotary_interleaved=False)
    return of_flash_attn_3(draw, call) if table_name == "page_table" else call


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
    assert (a.k is None) == (a.v is None) and (a.rotary_cos is None or a.k is not None)
    assert a.cache_leftpad is None or table is None
    if table is None:
        own = torch.arange(batch) if a.cache_batch_idx is None else a.cache_batch_idx
        table = own.to(torch.int32)[:, None]
    room, new = table.shape[1] * a.k_cache.shape[1], 0 if a.k is None else a.k.shape[1]
    given = a.cache_seqlens if a.cache_seqlens is not None else 0 if new else room
    lengths = given.long() if isinstance(given, Tensor) else torch.full((batch,), given)
    q, k_cache, v_cache = a.q.double(), a.k_cache.clone(), a.v_cache.clone()
    for row in range(batch):
        if a.rotary_cos is not None:
            local = bool(a.causal) or band(a.window_size) != (None, None)
            q[row] = turned(a.q[row], lengths[row] + torch.arange(seq_q) * int(local), a).to(a.q.dtype)
        for token in range(new):
            at = int(lengths[row]) + token
            assert 0 <= at < room
            k = a.k[row, token][None]
            k = k if a.rotary_cos is None else turned(k, torch.tensor([at]), a)
            block, slot = int(table[row, at // k_cache.shape[1]]), at % k_cache.shape[1]
            assert 0 <= block < len(k_cache)
            k_cache[block, slot], v_cache[block, slot] = k[0].to(k_cache.dtype), a.v[row, token]
    rounded = 0.0 if a.rotary_cos is None else k_cache.double().nan_to_num(0.0).abs() * torch.finfo(k_cache.dtype).eps * 2 + 1e-6
    compare("k_cache", call["k_cache"], Want(k_cache, rounded))
    compare("v_cache", call["v_cache"], Want(v_cache))
    q, lengths = q.to(a.q.dtype), lengths + new
    if is_ranged(a):
        wants = batch_of([over_cache(a, row, q[row], (k_cache, v_cache), table[row], int(lengths[row])) for row in range(batch)])
    else:
        wants = paged_batch(q, (k_cache, v_cache), table, lengths, scores_in_flashs_words(a))
    out, lse = wants["out"], wants["lse"]
    if a.rotary_cos is not None:
        out, lse = Want(out.value, 8 * out.bound), Want(lse.value, 8 * lse.bound + 2e-3)
    compare_both("kvcache", result, {"out": out, "lse": lse}, a.return_softmax_lse)


def paged_batch(q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, scores: Call) -> dict[str, Want]:
    (batch, seq_q), wants = q.shape[:2], {}
    for name, want in paged(q.flatten(0, 1), caches, table, lengths, torch.arange(batch + 1) * seq_q, scores).items():
        value, bound = (each.unflatten(0, (batch, seq_q)) for each in (want.value, want.bound))
        wants[name] = Want(value, bound) if name == "out" else Want(value.transpose(1, 2), bound.transpose(1, 2))
    return wants


def over_cache(
    a: SimpleNamespace, row: int, q: Tensor, caches: tuple[Tensor, Tensor], blocks: Tensor, length: int
) -> tuple[Want, Want]:
    """One sequence over its part of the cache. Rows of blocks that do not exist are NaN, which nobody may see."""
    padding, page = 0 if a.cache_leftpad is None else int(a.cache_leftpad[row]), caches[0].shape[1]
    assert 0 <= padding <= length
    at = torch.arange(padding, length)
    block = blocks[at // page].long()
    exists = ((block >= 0) & (block < len(caches[0])))[:, None, None]
    k, v = (torch.where(exists, cache[block.clamp(0, len(cache) - 1), at % page], torch.nan) for cache in caches)
    return sequence(a, q, k, v, None if getattr(a, "qv", None) is None else a.qv[row])


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
    (
        flash_attn_interface.flash_attn_func,
        partial(flash_dense, newer=True),
        partial(check_dense, flash_attn_interface.flash_attn_func),
        (),
        REFUSES,
    ),
    (
        flash_attn_interface.flash_attn_varlen_func,
        partial(flash_varlen, newer=True),
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
]
"""Function, maker, check, what it may write, what it raises."""
