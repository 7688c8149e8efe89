# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention over a cache of latent rows, dense and token-sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor

from fovea._calls import checked
from fovea._latent_schedule import LatentSchedule, run
from fovea._library import band, empty_lse, fills, one_row_each, scale_tensor, score_scale
from fovea._options import CacheLengths, Call, Mask

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LATENT_DIM = 512  # values of a row that are V too


class LatentOptions(Call, Mask, CacheLengths, total=False):
    format: str
    cache_scale: Tensor | float | None
    schedule: LatentSchedule | None


class SparseOptions(Call, total=False):
    format: str
    extra_cache: Tensor | None
    extra_indices: Tensor | None
    extra_topk_length: Tensor | None
    extra_format: str
    scale: float | None
    sink: Tensor | None
    schedule: LatentSchedule | None


# fmt: off
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        lse: None = None, return_lse: Literal[False] = False, **options: Unpack[LatentOptions]) -> Tensor: ...
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        lse: Tensor | None = None, return_lse: Literal[True], **options: Unpack[LatentOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        lse: Tensor, return_lse: bool = False, **options: Unpack[LatentOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        lse: Tensor | None = None, return_lse: bool = False,
        **options: Unpack[LatentOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def latent_attention(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    kv_len: Tensor,
    cu_seqlens_q: Tensor | None = None,
    *,
    format: str = "rows",
    max_seqlen_q: int = 0,
    max_kv_len: int = 0,
    causal: bool = True,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    cache_scale: Tensor | float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
    schedule: LatentSchedule | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Multi-head latent attention (MLA) in absorbed form over a block-table cache: decode, speculative decode and prefill.

    A row of the cache is 512 latent values and 64 rotary ones (d = 576), or 512 values in all; K is the whole row, V its first 512
    values. Token t of sequence b lies in block ``block_table[b, t // page]``, slot ``t % page``; the query rows of a sequence are
    its last tokens. Entries of the block table that no visible key needs, and unused slots, may hold anything.

    Hopper's kernel takes float16 and bfloat16 and a positive scale. Rows of q, out and cache, or blocks of a packed cache, must lie
    at multiples of 16 bytes (:meth:`fovea.CacheFormat.empty` sees to it). Packed caches, listed tokens and pages that are no
    multiples of 8 have another limit: from its first block to its last, gaps included, a cache has fewer than 2^32 units. A unit is
    the greatest common divisor of the strides of blocks and tokens, and at least 16 bytes (64 GiB). It is one token's size if
    blocks follow each other at multiples of that, as in a pool that layers share. Other NVIDIA GPUs take any
    scale: float16 from compute capability 7.5 on, bfloat16 from 8.0. Only packed and e4m3 rows, and those beside them, must lie at
    multiples of 16 bytes there.

    Args:
        q: ``[batch, seq_q, head, d]``, or ``[total_q, head, d]``, the rows of all sequences one after another. float32, float16 or
            bfloat16; bfloat16 over a packed cache.
        cache: ``[blocks, page, kv_head, d]``, dtype of q or float8_e4m3fn, with free block, token and head strides; or, packed,
            uint8 ``[blocks, page, bytes]`` with a free block stride.
        block_table: int32 ``[batch, max_blocks]``.
        kv_len: int32 ``[batch]``, tokens of each sequence in the cache, those of this call's queries included.
        cu_seqlens_q: int32 ``[batch + 1]``, for q without a batch: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1``. None: one
            row a sequence.
        format: "rows", or the packed format of the cache, one of :func:`fovea.cache_formats` but v41_fp4.
        max_seqlen_q: A bound of the query lengths in a q without a batch; 0 is ``total_q``.
        max_kv_len: A bound of ``kv_len``; 0, or more than fits, is what the block table can hold.
        causal: A query sees the keys up to its own position.
        window: ``(left, right)``: a query sees at most this many keys before and after its own position; None is no bound.
            Negative numbers are refused: flash-attn's ``(-1, -1)`` is None here.
        scale: Multiplies the scores; None is ``d ** -0.5``. Models want that of keys before absorption, often ``192 ** -0.5``.
        cache_scale: For a float8_e4m3fn cache: the factor of its values. float32, one element.
        out: Written and returned instead of a new tensor: q's shape with 512 values, dtype of q. Rows of no sequence of a q without
            a batch are left alone; in a new tensor they are 0.
        lse: Written and returned instead of a new tensor: float32 ``[batch, head, seq_q]`` or ``[total_q, head]``. Likewise; in a
            new tensor such rows are -inf.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm).
        implementation: Forces one of :func:`fovea.implementations` by name.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.
        schedule: The schedule that the calls of a decode step share: see :class:`fovea.LatentSchedule`.

    Returns:
        out, or (out, lse) with ``return_lse`` or ``lse``. A row that sees no key gives 0 and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: DeepSeek-V2 (2024), section 2.1, with the up-projections absorbed into q and out.
    """
    new = fills(cu_seqlens_q, out, lse)
    if out is None:
        out = q.new_empty((*q.shape[:-1], _LATENT_DIM))
    if lse is None and return_lse:
        lse = empty_lse(q)
    left, right = band(causal, window)
    if cu_seqlens_q is None and q.dim() == 3 and q.shape[:1] == block_table.shape[:1]:  # else the operator says what is missing
        cu_seqlens_q, max_seqlen_q = one_row_each(q), max_seqlen_q or 1
    run(
        "latent_attention",
        schedule,
        q,
        cache,
        format,
        block_table,
        cu_seqlens_q,
        kv_len,
        out,
        lse,
        max_seqlen_q,
        max_kv_len,
        left,
        right,
        score_scale(scale),
        scale_tensor("cache_scale", cache_scale, q),
        implementation or "",
        batch_invariant,
        fills=new,
    )
    return out if lse is None else (out, lse)


# fmt: off
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: None = None,
        max_logits: None = None, return_lse: Literal[False] = False, return_max_logits: Literal[False] = False,
        **options: Unpack[SparseOptions]) -> Tensor: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: None = None,
        max_logits: Tensor | None = None, return_lse: Literal[False] = False, return_max_logits: Literal[True],
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: None = None,
        max_logits: Tensor, return_lse: Literal[False] = False, return_max_logits: bool = False,
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        lse: Tensor | None = None, max_logits: None = None, return_lse: Literal[True], return_max_logits: Literal[False] = False,
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        lse: Tensor | None = None, max_logits: Tensor | None = None, return_lse: Literal[True], return_max_logits: Literal[True],
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        lse: Tensor | None = None, max_logits: Tensor, return_lse: Literal[True], return_max_logits: bool = False,
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: Tensor,
        max_logits: None = None, return_lse: bool = False, return_max_logits: Literal[False] = False,
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: Tensor,
        max_logits: Tensor | None = None, return_lse: bool = False, return_max_logits: Literal[True],
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *, lse: Tensor,
        max_logits: Tensor, return_lse: bool = False, return_max_logits: bool = False,
        **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        lse: Tensor | None = None, max_logits: Tensor | None = None, return_lse: bool = False, return_max_logits: bool = False,
        **options: Unpack[SparseOptions]) -> Tensor | tuple[Tensor, ...]: ...
# fmt: on
@checked
def sparse_latent_attention(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    topk_length: Tensor | None = None,
    *,
    format: str = "rows",
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_format: str = "rows",
    scale: float | None = None,
    sink: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    max_logits: Tensor | None = None,
    return_lse: bool = False,
    return_max_logits: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
    schedule: LatentSchedule | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Multi-head latent attention in which each query row lists the tokens that it reads.

    Flat (prefill): q ``[seq_q, head, d]``, cache ``[seq_kv, 1, d]``, indices ``[seq_q, topk]``, topk_length ``[seq_q]``.
    Paged (decode): q ``[batch, seq_q, head, d]``, cache ``[blocks, page, 1, d]`` or packed, indices ``[batch, seq_q, topk]``,
    topk_length ``[batch]``; rows of one sequence that list fewer tokens than others fill up with -1. A flat q may also read a
    paged cache. All strides are free but those of last dimensions. Hopper's kernel wants what :func:`fovea.latent_attention` says.

    Args:
        q: float32, float16 or bfloat16; bfloat16 over a packed cache. d is 576 or 512, as the rows of the cache.
        cache: dtype of q; or, packed, uint8 ``[blocks, page, bytes]`` with a free block stride. V is the first 512 values of a row.
        indices: int32: ``block * page + slot`` of each token. An index outside of the cache, negative or too large, is ignored. An
            index that occurs twice counts twice.
        topk_length: int32: entries of a list from here on are ignored, whatever they hold.
        format: "rows", or the packed format of the cache, one of :func:`fovea.cache_formats` but v41_fp4.
        extra_cache: A second cache, with a page size of its own, that joins the same softmax.
        extra_indices: Likewise, and as ``indices``, with a topk of its own.
        extra_topk_length: As ``topk_length``.
        extra_format: "rows", or the packed format of the extra cache.
        scale: Multiplies the scores; None is ``d ** -0.5``.
        sink: float32 ``[head]``, a logit that joins the softmax's denominator only.
        out: Written and returned instead of a new tensor: q's shape with 512 values, dtype of q.
        lse: Written and returned instead of a new tensor: float32 ``[batch, head, seq_q]``, flat ``[seq_q, head]``.
        max_logits: Likewise: the largest score of each row and head. A score that is NaN does not count; it makes ``lse`` NaN.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm, without the sink).
        return_max_logits: Whether to return ``max_logits`` too.
        implementation: Forces one of :func:`fovea.implementations` by name.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.
        schedule: The schedule that the calls of a decode step share: see :class:`fovea.LatentSchedule`.

    Returns:
        out, or a tuple of out and the other requested outputs, lse before max_logits. A row without keys gives 0, -inf and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: DeepSeek Sparse Attention (DeepSeek-V3.2, 2025).
    """
    if out is None:
        out = q.new_empty((*q.shape[:-1], _LATENT_DIM))
    if lse is None and return_lse:
        lse = empty_lse(q)
    if max_logits is None and return_max_logits:
        max_logits = empty_lse(q)
    run(
        "sparse_latent_attention",
        schedule,
        q,
        _blocks(cache, format, "cache"),
        format,
        indices,
        topk_length,
        extra_cache if extra_cache is None else _blocks(extra_cache, extra_format, "extra_cache"),
        extra_format,
        extra_indices,
        extra_topk_length,
        out,
        lse,
        max_logits,
        score_scale(scale),
        sink,
        implementation or "",
        batch_invariant,
    )
    asked = tuple(tensor for tensor in (lse, max_logits) if tensor is not None)
    return (out, *asked) if asked else out


def _blocks(cache: Tensor, format: str, name: str) -> Tensor:
    """Tokens one after another are one block, or no block at all if there are none."""
    if format != "rows" or cache.dim() != 3 or not cache.is_floating_point():
        return cache  # packed: bytes without a format are the operator's to refuse
    if cache.size(1) != 1:
        raise ValueError(f"{name}.shape: got {list(cache.shape)}, want [seq_kv, 1, d], or [blocks, page, 1, d] (unsqueeze(2))")
    return cache.unsqueeze(1 if cache.size(0) == 0 else 0)
