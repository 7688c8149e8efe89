# SPDX-License-Identifier: Apache-2.0
"""Attention over a block-table cache, and writing into that cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor

from fovea._calls import checked
from fovea._dispatch import OPERATORS
from fovea._kv_format import kv_formats
from fovea._library import band, empty_lse, empty_out, fills, one_row_each, scale_tensor, score_scale
from fovea._options import CacheLengths, Call, Mask, PackedMask

if TYPE_CHECKING:
    from typing_extensions import Unpack

_paged_attention = OPERATORS["paged_attention"]
_paged_cache_append = OPERATORS["paged_cache_append"]


class PagedOptions(Call, Mask, CacheLengths, PackedMask, total=False):
    softcap: float
    sink: Tensor | None
    k_scale: Tensor | float | None
    v_scale: Tensor | float | None
    k_format: str
    v_format: str
    k_scale_cache: Tensor | None
    v_scale_cache: Tensor | None


_HALF_BYTES = {name for name, format in kv_formats().items() if format.bits == 4}


def _new_out(q: Tensor, v_cache: Tensor, v_format: str) -> Tensor:
    if v_format in _HALF_BYTES:
        return q.new_empty((*q.shape[:-1], *(2 * extent for extent in v_cache.shape[-1:])))
    return empty_out(q, v_cache)


# fmt: off
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, lse: None = None, return_lse: Literal[False] = False,
        **options: Unpack[PagedOptions]) -> Tensor: ...
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, lse: Tensor | None = None, return_lse: Literal[True],
        **options: Unpack[PagedOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, lse: Tensor, return_lse: bool = False,
        **options: Unpack[PagedOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, lse: Tensor | None = None, return_lse: bool = False,
        **options: Unpack[PagedOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_len: Tensor,
    cu_seqlens_q: Tensor | None = None,
    *,
    max_seqlen_q: int = 0,
    max_kv_len: int = 0,
    causal: bool = True,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
    packed_mask: Tensor | None = None,
    mask_indptr: Tensor | None = None,
    mask_tail: int | None = None,
    k_format: str = "rows",
    v_format: str = "rows",
    k_scale_cache: Tensor | None = None,
    v_scale_cache: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over a block-table cache: prefill, decode and any mix of both in one call.

    Token t of sequence b lies in block ``block_table[b, t // page]``, slot ``t % page``. The query rows of a sequence are its last
    tokens: row r sits at position ``kv_len - q_len + r``. Entries of the block table that no visible key needs, and unused slots,
    may hold anything.

    Args:
        q: ``[total_q, head, dqk]``, the query rows of all sequences one after another. float32, float16 or bfloat16.
        k_cache: ``[blocks, page, kv_head, dqk]``, dtype of q or float8_e4m3fn; block, token and head strides are free.
        v_cache: ``[blocks, page, kv_head, dv]``, likewise.
        block_table: int32 ``[batch, max_blocks]``.
        kv_len: int32 ``[batch]``, tokens of each sequence in the cache, those of this call's queries included.
        cu_seqlens_q: int32 ``[batch + 1]``: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of q. None: one row a sequence.
        max_seqlen_q: A bound of the query lengths; 0 is ``total_q``.
        max_kv_len: A bound of ``kv_len``; 0, or more than fits, is what the block table can hold.
        causal: A query sees the keys up to its own position.
        window: ``(left, right)``: a query sees at most this many keys before and after its own position; None is no bound.
            Negative numbers are refused: flash-attn's ``(-1, -1)`` is None here.
            Hugging Face's ``sliding_window=w`` is ``window=(w - 1, None)``.
        scale: Multiplies the scores; None is ``dqk ** -0.5``.
        softcap: c > 0 bounds the scores, ``c * tanh(s / c)``, before the mask; 0 is none.
        sink: float32 ``[head]``, a logit that joins the softmax's denominator only.
        k_scale: For a float8_e4m3fn cache: the factor of its values. float32, one element or ``[kv_head]``.
        v_scale: As ``k_scale``, for v.
        packed_mask: Bits of the keys that a query row sees, beside ``causal`` and ``window``: both must let a key be. uint8, the
            lowest bit first. ``[bytes]`` holds the rows of bits one after another, those of sequence b from byte
            ``mask_indptr[b]`` on, as FlashInfer's ``packed_custom_mask``. ``[total_q, bytes]`` holds whole bytes for each
            row of q (:func:`fovea.tree_mask`).
        mask_indptr: int32 ``[batch + 1]``, for a flat ``packed_mask``; a single sequence needs none.
        mask_tail: How many of a sequence's last keys have bits; every key before them passes. None is all keys.
        k_format: "rows", or one of :func:`fovea.kv_formats`. Then the last dimension of k_cache is the bytes of a row's codes,
            uint8 or the dtype of the codes, and k_scale is that of e5m2 or nvfp4.
        v_format: As ``k_format``, for v; the two may differ.
        k_scale_cache: The scales of k_format: float32 or float16 ``[blocks, page, kv_head]``, or one byte each
            ``[blocks, page, kv_head, groups]``; all strides are free but that of groups.
        v_scale_cache: As ``k_scale_cache``, for v.
        out: Written and returned instead of a new tensor: ``[total_q, head, dv]``, dtype of q. Rows of no sequence are left alone;
            in a new tensor they are 0.
        lse: Written and returned instead of a new tensor: float32 ``[total_q, head]``. Likewise; in a new tensor
            such rows are -inf.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm, without the sink).
        implementation: Forces one of :func:`fovea.implementations` by name.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.

    Returns:
        out, or (out, lse) with ``return_lse`` or ``lse``. A row that sees no key gives 0 and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named. On the CPU that includes lengths
            and block numbers; on a GPU rows that see a key of a block outside the cache become NaN.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: PagedAttention (Kwon et al. 2023).
    """
    new = fills(cu_seqlens_q, out, lse)
    if out is None:
        out = _new_out(q, v_cache, v_format)
    if lse is None and return_lse:
        lse = empty_lse(q)
    left, right = band(causal, window)
    if cu_seqlens_q is None and q.shape[:1] == block_table.shape[:1]:  # else the operator says what is missing
        cu_seqlens_q, max_seqlen_q = one_row_each(q), max_seqlen_q or 1
    k_factor, v_factor = scale_tensor("k_scale", k_scale, q), scale_tensor("v_scale", v_scale, q)
    # fmt: off
    _paged_attention(
        q, k_cache, v_cache, block_table, cu_seqlens_q, kv_len, out, lse, max_seqlen_q, max_kv_len, left, right,
        score_scale(scale), softcap, sink, k_factor, v_factor, packed_mask, mask_tail, mask_indptr,
        k_format, v_format, k_scale_cache, v_scale_cache, implementation or "", batch_invariant, *new,
    )
    # fmt: on
    return out if lse is None else (out, lse)


@checked
def paged_cache_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
    k_format: str = "rows",
    v_format: str = "rows",
    k_scale_cache: Tensor | None = None,
    v_scale_cache: Tensor | None = None,
    implementation: str | None = None,
) -> None:
    """Writes new rows of k and v into a block-table cache: row t goes to block ``slot // page``, slot ``slot % page`` of it.

    Args:
        k: ``[tokens, kv_head, dqk]``, float32, float16 or bfloat16.
        v: ``[tokens, kv_head, dv]``, dtype of k.
        k_cache: ``[blocks, page, kv_head, dqk]``, written in place: dtype of k, or float8_e4m3fn, which stores
            ``k / k_scale`` rounded to nearest even and saturated at 448.
        v_cache: ``[blocks, page, kv_head, dv]``, likewise.
        slot_mapping: int64 ``[tokens]``; -1 skips a row. Two rows may share a slot: each element is then of either.
        k_scale: For a float8_e4m3fn cache: float32, one element or ``[kv_head]``; None is 1.
        v_scale: As ``k_scale``, for v.
        k_format: "rows", or one of :func:`fovea.kv_formats`, as :func:`fovea.paged_attention` reads them; docs/kv_formats.md has
            its quantiser.
        v_format: As ``k_format``, for v; the two may differ.
        k_scale_cache: The scales of k_format, written in place.
        v_scale_cache: As ``k_scale_cache``, for v.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Raises:
        ValueError: The call contradicts itself; on the CPU a slot outside the cache, too: nothing is written then. On a GPU such a
            slot is skipped.
        NotImplementedError: No implementation accepts it, each with its reason.

    Source: PagedAttention (Kwon et al. 2023).
    """
    _paged_cache_append(
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        scale_tensor("k_scale", k_scale, k),
        scale_tensor("v_scale", v_scale, k),
        k_format,
        v_format,
        k_scale_cache,
        v_scale_cache,
        implementation or "",
    )
