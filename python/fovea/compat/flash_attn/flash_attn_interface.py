# SPDX-License-Identifier: Apache-2.0
"""The functions of flash-attn 2.8, of the module of this name there. ``fovea.compat.flash_attn`` says what differs."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat._arguments import check, refuse
from fovea.compat._flash_attn import Ragged, Scores, dense, paged_varlen
from fovea.compat._flash_attn_append import appended
from fovea.compat._flash_attn_cache import Cache
from fovea.compat._flash_attn_kvcache import Call, cached
from fovea.compat._flash_attn_ranges import Range

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_Result = Tensor | tuple[Tensor, Tensor, Tensor]
_Window = tuple[int | Tensor, int | Tensor]
_NAMES = {"scale": "softmax_scale", "window": "window_size"}
_PAGES = {"k_cache": "k", "v_cache": "v", "kv_len": "cu_seqlens_k", "max_kv_len": "max_seqlen_k"}
_PACKED = {"q": "qkv", "k": "qkv", "v": "qkv"}
_PACKED_KV = {"k": "kv", "v": "kv"}
_ROWS, _FLAT = "batch, seq, head, head_dim", "total, head, head_dim"
_CACHE = "blocks or batch, page or seq, kv_head, head_dim"
_ENDS = "batch + 1"


@adapted(_NAMES, axes={"q": _ROWS, "k": _ROWS, "v": _ROWS}, error=RuntimeError)
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of a fixed batch. Differentiable once.

    Args:
        q: ``[batch, seq_q, head, dqk]``; k and v ``[batch, seq_k, kv_head, dqk or dv]``.
        dropout_p: The share of weights that become 0, drawn by torch's generator. Other ones than flash-attn draws.
        softmax_scale: Multiplies the scores; None is ``dqk ** -0.5``.
        causal: A query sees the keys up to its own position, counted from the last query and the last key.
        window_size: ``(left, right)`` keys before and after a query's own position; -1 is no bound.
        softcap: c > 0 bounds the scores, ``c * tanh(s / c)``.
        alibi_slopes: float32 ``[head]`` or ``[batch, head]``: query i and key j get ``-slope * |i + seq_k - seq_q - j|``.
        deterministic: Whether gradients have the same bits from run to run, at the price of some speed.
        return_attn_probs: Whether to return lse too, and in the place of probabilities an empty tensor.

    Returns:
        out, or (out, lse float32 ``[batch, head, seq_q]``, empty tensor).

    Raises:
        NotImplementedError: Dropout together with ``return_attn_probs``, or no implementation accepts the call.
        RuntimeError: The call contradicts itself.
    """
    terms = _terms(dropout_p, alibi_slopes, return_attn_probs)
    scores = Scores(softmax_scale, causal, window_size, softcap)
    return _result(*dense(q, k, v, scores, return_lse=return_attn_probs, others=terms, deterministic=deterministic))


@adapted(_PACKED, axes={"qkv": "batch, seq, 3, head, head_dim"}, error=RuntimeError)
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_func` of one tensor ``[batch, seq, 3, head, d]``, whose gradient is one tensor too."""
    q, k, v = _parts("qkv", qkv, 3)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(q, k, v, *options)


@adapted(_PACKED_KV, axes={"q": _ROWS, "kv": "batch, seq, 2, head, head_dim"}, error=RuntimeError)
def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_func` with k and v in one tensor ``[batch, seq_k, 2, kv_head, d]``."""
    k, v = _parts("kv", kv, 2)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(q, k, v, *options)


@adapted(
    _NAMES | _PAGES,
    axes={
        "q": _FLAT,
        "k": (_FLAT, _CACHE),
        "v": (_FLAT, _CACHE),
        "cu_seqlens_q": _ENDS,
        "cu_seqlens_k": _ENDS,
        "block_table": "batch, max_blocks",
    },
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
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> _Result:
    """Attention of a ragged batch: rows ``cu[b]`` to ``cu[b + 1] - 1`` belong to sequence b.

    Args:
        q: ``[total_q, head, dqk]``; k and v ``[total_k, kv_head, dqk or dv]``, or with a block table
            ``[blocks, page, kv_head, dqk or dv]``, of any page.
        cu_seqlens_q: int32 ``[batch + 1]``; cu_seqlens_k likewise.
        max_seqlen_q: A bound of the query lengths; max_seqlen_k of the key lengths.
        block_table: int32 ``[batch, max_blocks]``: the blocks of each sequence. Not differentiable.
        The others are those of :func:`flash_attn_func`.

    Returns:
        out, or (out, lse float32 ``[head, total_q]``, empty tensor).
    """
    terms = _terms(dropout_p, alibi_slopes, return_attn_probs)
    scores = Scores(softmax_scale, causal, window_size, softcap)
    lengths = Ragged(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if block_table is None:
        options = {"lengths": lengths, "return_lse": return_attn_probs, "deterministic": deterministic}
        return _result(*dense(q, k, v, scores, others=terms, **options))
    refuse("no dropout of keys in pages", dropout_p=dropout_p)
    refuse("no ALiBi of keys in pages", alibi_slopes=alibi_slopes)
    out, lse = paged_varlen(q, k, v, scores, lengths, block_table)
    return _result(out, lse if return_attn_probs else None)


@adapted(
    _PACKED
    | {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens", "max_seqlen_q": "max_seqlen", "max_seqlen_k": "max_seqlen"},
    axes={"qkv": "total, 3, head, head_dim", "cu_seqlens": _ENDS},
    error=RuntimeError,
)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: Tensor | int,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_varlen_func` of one tensor ``[total, 3, head, d]``."""
    q, k, v = _parts("qkv", qkv, 3)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options)


@adapted(_PACKED_KV, axes={"q": _FLAT, "kv": "total, 2, head, head_dim"}, error=RuntimeError)
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Tensor | int,
    max_seqlen_k: Tensor | int,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """:func:`flash_attn_varlen_func` with k and v in one tensor ``[total_k, 2, kv_head, d]``."""
    k, v = _parts("kv", kv, 2)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options)


@adapted(
    _NAMES | {"kv_len": "cache_seqlens"},
    axes={"q": _ROWS, "k_cache": _CACHE, "v_cache": _CACHE, "k": _ROWS, "v": _ROWS, "block_table": "batch, max_blocks"},
    error=RuntimeError,
)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor | None]:
    """Attention over a cache, to which k and v are appended first. Not differentiable.

    Args:
        q: ``[batch, seq_q, head, d]``.
        k_cache: ``[batch_cache, seq_cache, kv_head, d]``, or with a block table ``[blocks, page, kv_head, d]``, of any page;
            v_cache likewise. Written in place where k and v are given.
        k: ``[batch, seq_new, kv_head, d]``, appended at ``cache_seqlens``; v likewise.
        rotary_cos: ``[positions, rotary_dim / 2]``, with k and v: keys, and queries where a mask counts positions, are turned to
            theirs, ``cache_seqlens`` and after; without a mask all queries are turned to ``cache_seqlens``. rotary_sin likewise.
        cache_seqlens: int32 ``[batch]``, or one number: the tokens in the cache before this call's. None: a full cache, or with k
            an empty one.
        cache_batch_idx: int32 ``[batch]``: the row of each sequence in a dense cache, or in the block table.
        cache_leftpad: int32 ``[batch]``, of a dense cache: the row where the keys of each sequence begin. ``cache_seqlens`` and the
            positions of a rotary embedding count the rows before it too. Those may hold anything.
        block_table: int32 ``[batch, max_blocks]``.
        rotary_interleaved: Whether neighbours are turned (0 and 1, 2 and 3, ..), or halves (0 and rotary_dim / 2, ..).
        num_splits: Taken; Fovea chooses.
        return_softmax_lse: Whether to return lse too.
        The others are those of :func:`flash_attn_func`.

    Returns:
        out ``[batch, seq_q, head, d]``, or (out, lse float32 ``[batch, head, seq_q]``).
    """
    refuse("no ALiBi", alibi_slopes=alibi_slopes)
    cache = Cache(k_cache, v_cache, cache_seqlens, cache_batch_idx, block_table)
    new = appended(k, v, rotary_cos, rotary_sin, rotary_interleaved)
    scores = Scores(softmax_scale, causal, window_size, softcap)
    out, lse = cached(q, cache, Call(scores, return_softmax_lse, range=Range(cache_leftpad)), new)
    return (out, lse) if return_softmax_lse else out


def _terms(dropout_p: float, alibi_slopes: Tensor | None, return_attn_probs: bool) -> dict[str, Any]:
    if dropout_p != 0:
        refuse("no probabilities are returned, and so no dropout mask", return_attn_probs=return_attn_probs)
    return {"dropout_p": dropout_p, "alibi_slopes": alibi_slopes}


def _parts(name: str, packed: Tensor, count: int) -> tuple[Tensor, ...]:
    """q, k and v, or k and v, of a packed tensor ``[.., count, head, d]``."""
    axis = packed.dim() - 3
    check(packed.shape[axis] == count, f"{name}.shape[{axis}]", packed.shape[axis], count)
    return packed.unbind(axis)


def _result(out: Tensor, lse: Tensor | None) -> Any:
    return out if lse is None else (out, lse, torch.empty(0, dtype=out.dtype, device=out.device))
