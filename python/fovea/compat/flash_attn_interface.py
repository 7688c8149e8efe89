# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's Python interface (``flash_attn_interface``, as of 2026) over Fovea's dense and paged attention.

Argument names, order, defaults, layouts and results are FlashAttention-3's. Its functions return out alone, and (out, lse) with
``return_attn_probs``; versions of early 2025 always returned both. Differences:

* ``num_splits``, ``pack_gqa``, ``sm_margin`` and ``scheduler_metadata`` are taken and change nothing: Fovea plans by itself.
* Ragged new keys raise NotImplementedError, as do new keys together with ragged queries.
* ``attention_chunk`` has gradients. ``qv`` has none, and takes the head dims 64 of q and k and 512 of v.
* ``q_descale`` and its like are the scales of float8_e4m3fn tensors.
* The differences of ``fovea.compat.flash_attn`` in devices, dtypes, pages and gradients hold here too.
"""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._library import wants_gradients
from fovea._merge import merge_states
from fovea.compat._arguments import check, has_own_places, refuse
from fovea.compat._flash_attn import Ragged, Scales, Scores
from fovea.compat._flash_attn_append import appended
from fovea.compat._flash_attn_cache import Cache
from fovea.compat._flash_attn_chunks import chunk_of, chunked
from fovea.compat._flash_attn_kvcache import Call, cached, ragged_over_cache
from fovea.compat._flash_attn_latent import flat_cache
from fovea.compat._flash_attn_ranges import Range

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]

_Result = Tensor | tuple[Tensor, Tensor]
_Window = tuple[int | Tensor, int | Tensor]
_NAMES = {
    "scale": "softmax_scale",
    "window": "window_size",
    "q_scale": "q_descale",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
}
_OF_CACHE = {"k_cache": "k", "v_cache": "v", "kv_len": "cu_seqlens_k"}  # with qv tensors are read as caches
_MERGED = (torch.float32, torch.float16, torch.bfloat16)
_ROWS, _FLAT = "batch, seq, head, head_dim", "total, head, head_dim"
_CACHE = "blocks or batch, page or seq, kv_head, head_dim"
_ENDS = "batch + 1"


@adapted(_NAMES | _OF_CACHE, axes={"q": _ROWS, "k": _ROWS, "v": _ROWS}, error=RuntimeError)
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of a fixed batch. Differentiable once.

    Args:
        q: ``[batch, seq_q, head, dqk]``; k and v ``[batch, seq_k, kv_head, dqk or dv]``. float8_e4m3fn gives bfloat16.
        q_descale: The factor of a float8_e4m3fn q: float32 ``[batch, kv_head]``; k_descale and v_descale likewise.
        qv: ``[batch, seq_q, head, 512]``: scores are ``scale * (q @ k^T + qv @ v^T)``, with 64 as dqk and 512 as dv. Not
            differentiable. ``softmax_scale`` None is ``576 ** -0.5`` then.
        window_size: ``(left, right)`` keys before and after a query's own position; -1 is no bound.
        attention_chunk: c > 0: a query sees the keys of its own chunk of c positions alone. The last query is at the position of
            the last key, and positions begin at 0 with the first key.
        return_attn_probs: Whether to return lse too.
        The others are those of flash-attn 2, or are taken, or refused, as above.

    Returns:
        out, or (out, lse float32 ``[batch, head, seq_q]``).
    """
    scores, scales = Scores(softmax_scale, causal, window_size, softcap), Scales(q_descale, k_descale, v_descale)
    chunk = chunk_of(attention_chunk)
    if qv is not None:
        call = Call(scores, return_attn_probs, scales, Range(chunk=chunk), qv)
        return _result(*cached(q, Cache(k, v, None, None, None), call, None))
    options = {"return_lse": return_attn_probs, "deterministic": deterministic}
    return _result(*chunked(q, k, v, scores, chunk, scales=scales, **options))


@adapted(
    _NAMES | {"q": "qkv", "k": "qkv", "v": "qkv"},
    axes={"qkv": ("batch, seq, 3, head, head_dim", "batch, seq, heads of q and k and v, head_dim")},
    error=RuntimeError,
)
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_func` of one tensor ``[batch, seq, 3, head, d]``, or ``[batch, seq, heads of q, k and v, d]`` with
    ``num_heads_q``."""
    q, k, v = _heads_of(qkv, num_heads_q)
    scores, scales = Scores(softmax_scale, causal, window_size, softcap), Scales(q_descale, k_descale, v_descale)
    options = {"return_lse": return_attn_probs, "deterministic": deterministic}
    return _result(*chunked(q, k, v, scores, chunk_of(attention_chunk), scales=scales, **options))


@adapted(
    _NAMES | _OF_CACHE,
    axes={"q": _FLAT, "k": _FLAT, "v": _FLAT, "cu_seqlens_q": _ENDS, "cu_seqlens_k": _ENDS},
    error=RuntimeError,
)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Tensor | int,
    max_seqlen_k: Tensor | int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_func` of a ragged batch: rows ``cu[b]`` to ``cu[b + 1] - 1`` belong to sequence b.

    Args:
        seqused_q: int32 ``[batch]``: how many rows of q each sequence uses, its first ones; the others give 0, and -inf in lse.
        seqused_k: As seqused_q, for k and v.

    Returns:
        out ``[total_q, head, dv]``, or (out, lse float32 ``[head, total_q]``).
    """
    scores, scales = Scores(softmax_scale, causal, window_size, softcap), Scales(q_descale, k_descale, v_descale)
    chunk = chunk_of(attention_chunk)
    lengths, parts = Ragged(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), 1
    if seqused_q is not None or seqused_k is not None:
        lengths, parts = lengths.used(seqused_q, seqused_k)
    if qv is not None:
        call = Call(scores, return_attn_probs, scales, Range(chunk=chunk), qv)
        cache = flat_cache(k, v, lengths, max_seqlen_k)
        return _result(*ragged_over_cache(q, cache, call, lengths.cu_seqlens_q, lengths.max_seqlen_q))
    options = {"return_lse": return_attn_probs, "deterministic": deterministic}
    return _result(*chunked(q, k, v, scores, chunk, lengths=lengths, parts=parts, scales=scales, **options))


@adapted(
    _NAMES | {"kv_len": "cache_seqlens", "block_table": "page_table"},
    axes={
        "q": (_ROWS, _FLAT),
        "k_cache": _CACHE,
        "v_cache": _CACHE,
        "k": (_ROWS, _FLAT),
        "v": (_ROWS, _FLAT),
        "page_table": "batch, max_blocks",
        "cu_seqlens_q": _ENDS,
    },
    error=RuntimeError,
)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: Tensor | int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor | None, None, None]:
    """Attention over a cache, to which k and v are appended first, as flash-attn 2's function of this name does it.

    With ``cu_seqlens_q``, int32 ``[batch + 1]``, q is a ragged batch ``[total_q, head, d]``, and nothing is appended. With
    ``rotary_seqlens``, int32 ``[batch]``, positions of the rotary embedding begin there, and not at ``cache_seqlens``.
    ``attention_chunk`` counts positions from the first key, which lies behind the padding of ``cache_leftpad``.

    With ``qv``, k_cache and v_cache that are views of one tensor of rows ``[v, k]`` are read in place. Others are copied.

    Returns:
        out ``[batch, seq_q, head, d]``, or (out, lse float32 ``[batch, head, seq_q]``, None, None) with ``return_softmax_lse``:
        FlashAttention-3 has partial results of split keys in the last two places. A ragged batch gives out like q, and
        lse ``[head, total_q]``.
    """
    refuse("new keys are a fixed batch", cu_seqlens_k_new=cu_seqlens_k_new)
    cache = Cache(k_cache, v_cache, cache_seqlens, cache_batch_idx, page_table)
    scores, scales = Scores(softmax_scale, causal, window_size, softcap), Scales(q_descale, k_descale, v_descale)
    call = Call(scores, return_softmax_lse, scales, Range(cache_leftpad, chunk_of(attention_chunk)), qv)
    if cu_seqlens_q is None:
        new = appended(k, v, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens)
        out, lse = cached(q, cache, call, new)
    else:
        refuse("with cu_seqlens_q nothing is appended", k=k, v=v)
        appended(k, v, rotary_cos, rotary_sin, rotary_interleaved)
        out, lse = ragged_over_cache(q, cache, call, cu_seqlens_q, max_seqlen_q)
    return (out, lse, None, None) if return_softmax_lse else out


@adapted(
    {"outs": "out_partial", "lses": "lse_partial"},
    axes={"out_partial": "splits, batch, seq, head, head_dim", "lse_partial": "splits, batch, seq, head"},
    error=RuntimeError,
)
def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merges partial results ``[splits, batch, seq, head, d]`` and their lse ``[splits, batch, seq, head]``: (out, lse).

    ``out`` is written and returned, in its own dtype; a new tensor has ``out_dtype``, or that of out_partial.
    """
    check(lse_partial.shape == out_partial.shape[:4], "lse_partial.shape", list(lse_partial.shape), list(out_partial.shape[:4]))
    if out is not None:
        want = out_partial.shape[1:]
        check(out.shape == want, "out.shape", list(out.shape), f"{list(want)}, as a part of out_partial")
        check(out.device == out_partial.device, "out.device", out.device, out_partial.device)
        if wants_gradients(out_partial, lse_partial, out):
            raise NotImplementedError("out: got a tensor, want None where a gradient is wanted (use torch.no_grad() or detach())")
        check(has_own_places(out), "out.strides", list(out.stride()), "a place of its own for each element")
        out_dtype = out.dtype
    if out_dtype is not None:
        check(out_dtype in _MERGED, "out_dtype" if out is None else "out.dtype", out_dtype, " or ".join(map(str, _MERGED)))
    parts, lses = (list(tensor.flatten(1, 2)) for tensor in (out_partial, lse_partial))
    merged, lse = (tensor.unflatten(0, out_partial.shape[1:3]) for tensor in merge_states(parts, lses))
    if out is not None:
        out.copy_(merged)
        return out, lse
    return merged if out_dtype is None else merged.to(out_dtype), lse


def get_scheduler_metadata(*args: Any, **kwargs: Any) -> None:
    """None: Fovea plans by itself, and ``scheduler_metadata`` is taken and not looked at."""


def _heads_of(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, ...]:
    """q, k and v of one tensor."""
    if qkv.dim() == 5:
        check(qkv.shape[2] == 3, "qkv.shape[2]", qkv.shape[2], 3)
        return qkv.unbind(2)
    heads = qkv.shape[2] - (num_heads_q or 0)
    fits = num_heads_q is not None and num_heads_q > 0 and heads > 0 and heads % 2 == 0
    check(fits, "num_heads_q", num_heads_q, f"{qkv.shape[2]} less twice k's heads")
    return qkv.split([qkv.shape[2] - heads, heads // 2, heads // 2], dim=2)


def _result(out: Tensor, lse: Tensor | None) -> _Result:
    return out if lse is None else (out, lse)
