# SPDX-License-Identifier: Apache-2.0
"""8-bit attention: the quantisers, attention on quantised tensors, and both in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor

from fovea._calls import checked
from fovea._dispatch import OPERATORS
from fovea._library import band, empty_lse, empty_out, fills, score_scale, top_left
from fovea._options import Call, DenseMask, Lengths

if TYPE_CHECKING:
    from typing_extensions import Unpack

_quantize_qk_int8 = OPERATORS["quantize_qk_int8"]
_quantize_v = OPERATORS["quantize_v"]
_quantized_attention = OPERATORS["quantized_attention"]
_quantize_and_attend = OPERATORS["quantize_and_attend"]

Granularity = Literal["block", "warp", "thread"]


class QuantizedQk(NamedTuple):
    """q and k in int8, as :func:`fovea.quantize_qk_int8` makes them: ``q * q_scale`` is q, ``k * k_scale`` is k less ``k_mean``.

    Which tokens share a scale, with all channels of their head, counted from the first token of a sequence:

    * "block": 128 queries; 64 keys.
    * "warp": ``warp_rows`` queries; 64 keys.
    * "thread": of ``warp_rows`` queries those of equal ``row % 8``; of 64 keys those of equal ``key % 8 // 2``.

    Groups lie one after another, by block, in it by warp, in it by remainder. Each sequence begins with a block of its own: of a
    ragged batch, sequence b with block ``cu_seqlens[b] // block + b``.
    """

    q: Tensor
    """int8, shape of q; values from -127 to 127."""
    k: Tensor
    """int8, shape of k."""
    q_scale: Tensor
    """float32 ``[batch, head, groups]``, or ``[head, groups]`` of a ragged batch."""
    k_scale: Tensor
    """float32 ``[batch, kv_head, groups]`` or ``[kv_head, groups]``."""
    k_mean: Tensor | None = None
    """float32 ``[batch, kv_head, d]``, what was subtracted from k."""
    lse_shift: Tensor | None = None
    """float32, laid out as lse: ``q . k_mean``, which lse lacks times scale."""
    granularity: Granularity = "thread"
    warp_rows: int = 32
    """32 or 16."""


class QuantizedV(NamedTuple):
    """v as :func:`fovea.quantize_v` makes it: ``v * scale + mean``, where there are these, is v."""

    v: Tensor
    """float16 or float8_e4m3fn, shape of v."""
    scale: Tensor | None = None
    """float32 ``[batch, kv_head, d]``, for float8_e4m3fn."""
    mean: Tensor | None = None
    """float32 ``[batch, kv_head, d]``, what was subtracted from v."""


def _read_groups() -> dict[tuple[str, int], tuple[int, ...]]:
    lines = (line.split("\t") for line in torch.ops.fovea.int8_groups().splitlines())
    return {(name, int(warp_rows)): tuple(map(int, numbers)) for name, warp_rows, *numbers in lines}


_GROUPS = _read_groups()  # queries of a block, groups in it, keys of a block, groups in it


def _has_rows(tensor: Tensor, cu_seqlens: Tensor | None) -> bool:
    """Whether there is a shape to allocate by. If not, an empty tensor is allocated, and the operator refuses the call."""
    return tensor.dim() == 4 if cu_seqlens is None else tensor.dim() == 3 and cu_seqlens.numel() > 0


def _new_scale(rows: Tensor, cu_seqlens: Tensor | None, block: int, groups: int) -> Tensor:
    """A new tensor for the scales of q or k."""
    if not _has_rows(rows, cu_seqlens):
        return rows.new_empty(0, dtype=torch.float32)
    shape: tuple[int, ...]
    if cu_seqlens is None:
        shape = (rows.size(0), rows.size(2), (rows.size(1) + block - 1) // block * groups)
    else:
        shape = (rows.size(1), (rows.size(0) // block + cu_seqlens.numel() - 1) * groups)
    return rows.new_zeros(shape, dtype=torch.float32)  # a ragged batch may leave places


def _new_channels(kv: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """A new tensor of one number for each sequence, head and channel."""
    if not _has_rows(kv, cu_seqlens):
        return kv.new_empty(0, dtype=torch.float32)
    batch = kv.size(0) if cu_seqlens is None else cu_seqlens.numel() - 1
    return kv.new_zeros((batch, *kv.shape[-2:]), dtype=torch.float32)  # also of a sequence without keys


def _new_codes(values: Tensor, dtype: torch.dtype, cu_seqlens: Tensor | None) -> Tensor:
    new = torch.empty_like if cu_seqlens is None else torch.zeros_like  # rows of no sequence are not written
    return new(values, dtype=dtype, memory_format=torch.contiguous_format)


def _new_shift(q: Tensor, cu_seqlens_q: Tensor | None) -> Tensor:
    return empty_lse(q) if cu_seqlens_q is None else empty_lse(q).zero_()


@checked
def quantize_qk_int8(
    q: Tensor,
    k: Tensor,
    *,
    granularity: Granularity = "thread",
    warp_rows: int = 32,
    smooth_k: bool = True,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: QuantizedQk | None = None,
    implementation: str | None = None,
) -> QuantizedQk:
    """Quantises q and k to symmetric int8 for :func:`fovea.quantized_attention`.

    With x the values of a group of tokens in float32 and ``amax = max(max|x|, 1e-7)``: ``scale = amax / 127``, and a code is
    ``x * (127 / amax)``, rounded half to even. A group with a NaN or an infinity gets the scale NaN and codes of 0.

    Args:
        q: ``[batch, seq_q, head, d]``, or ``[total_q, head, d]`` of a ragged batch. float32, float16 or bfloat16; d is 64, 96, 128
            or 256.
        k: ``[batch, seq_k, kv_head, d]`` or ``[total_k, kv_head, d]``, dtype of q. ``head`` is a multiple of ``kv_head`` (GQA).
        granularity: Which tokens share a scale; :class:`fovea.QuantizedQk` says it.
        warp_rows: 32 or 16, queries of a warp; "block" does not look at it.
        smooth_k: Whether each channel's mean over the sequence is subtracted from k first. Softmax does not change, and lse is put
            right with ``lse_shift``.
        cu_seqlens_q: int32 ``[batch + 1]``, the rows of a ragged batch: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of q.
        cu_seqlens_k: int32 ``[batch + 1]``, likewise for k.
        max_seqlen_q: A bound of the query lengths of a ragged batch; None is ``total_q``.
        max_seqlen_k: A bound of the key lengths of a ragged batch; None is ``total_k``.
        out: Its tensors are written and returned instead of new ones, and what it says of the groups and of smoothing goes before
            ``granularity``, ``warp_rows`` and ``smooth_k``.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Returns:
        Quantised values, scales, and with ``smooth_k`` the means and ``lse_shift``.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: SageAttention (Zhang et al. 2024), smoothing and blocks; SageAttention2 (2024), warps and threads.
    """
    if out is None:
        q_block, q_groups, k_block, k_groups = _GROUPS.get((granularity, warp_rows), (1, 1, 1, 1))  # the operator refuses others
        out = QuantizedQk(
            _new_codes(q, torch.int8, cu_seqlens_q),
            _new_codes(k, torch.int8, cu_seqlens_k),
            _new_scale(q, cu_seqlens_q, q_block, q_groups),
            _new_scale(k, cu_seqlens_q, k_block, k_groups),  # the operator refuses cu_seqlens_k of another length
            _new_channels(k, cu_seqlens_q) if smooth_k else None,
            _new_shift(q, cu_seqlens_q) if smooth_k else None,
            granularity,
            warp_rows,
        )
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    _quantize_qk_int8(q, k, *out[:6], *lengths, out.granularity, out.warp_rows, implementation or "")
    return out


@checked
def quantize_v(
    v: Tensor,
    *,
    dtype: torch.dtype = torch.float16,
    smooth_v: bool = False,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_k: int | None = None,
    out: QuantizedV | None = None,
    implementation: str | None = None,
) -> QuantizedV:
    """Prepares v for :func:`fovea.quantized_attention`: float16, or float8_e4m3fn with a scale for each channel of a sequence.

    With x the values of a channel in float32 and ``amax = max(max|x|, 1e-7)`` over the tokens of the sequence:
    ``scale = amax / 448``, and a code is ``x * (448 / amax)``, rounded half to even. A channel with a NaN or an infinity gets the
    scale NaN and codes of 0. In float16 values beyond 65504 become infinite.

    Args:
        v: ``[batch, seq_k, kv_head, d]``, or ``[total_k, kv_head, d]`` of a ragged batch. float32, float16 or bfloat16; d is 64,
            96, 128 or 256.
        dtype: torch.float16 or torch.float8_e4m3fn.
        smooth_v: Whether each channel's mean over the sequence is subtracted first; attention adds it to the result.
        cu_seqlens_k: int32 ``[batch + 1]``, the rows of a ragged batch: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of v.
        max_seqlen_k: A bound of the key lengths of a ragged batch; None is ``total_k``.
        out: Its tensors are written and returned instead of new ones, and what they say goes before ``dtype`` and ``smooth_v``.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: SageAttention2 (Zhang et al. 2024).
    """
    if out is None:
        if dtype not in (torch.float16, torch.float8_e4m3fn):
            raise ValueError(f"dtype: got {dtype}, want torch.float16 or torch.float8_e4m3fn")
        out = QuantizedV(
            _new_codes(v, dtype, cu_seqlens_k),
            _new_channels(v, cu_seqlens_k) if dtype == torch.float8_e4m3fn else None,
            _new_channels(v, cu_seqlens_k) if smooth_v else None,
        )
    _quantize_v(v, *out, cu_seqlens_k, max_seqlen_k, implementation or "")
    return out


class QuantizedOptions(Call, DenseMask, Lengths, total=False):
    dtype: torch.dtype


class QuantizeOptions(Call, DenseMask, Lengths, total=False):
    granularity: Literal["block", "warp", "thread"]
    warp_rows: int
    v_dtype: torch.dtype
    smooth_k: bool
    smooth_v: bool


# fmt: off
@overload
def quantized_attention(qk: QuantizedQk, v: QuantizedV, *, lse: None = None, return_lse: Literal[False] = False,
        **options: Unpack[QuantizedOptions]) -> Tensor: ...
@overload
def quantized_attention(qk: QuantizedQk, v: QuantizedV, *, lse: Tensor | None = None, return_lse: Literal[True],
        **options: Unpack[QuantizedOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def quantized_attention(qk: QuantizedQk, v: QuantizedV, *, lse: Tensor, return_lse: bool = False,
        **options: Unpack[QuantizedOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def quantized_attention(qk: QuantizedQk, v: QuantizedV, *, lse: Tensor | None = None, return_lse: bool = False,
        **options: Unpack[QuantizedOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def quantized_attention(
    qk: QuantizedQk,
    v: QuantizedV,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention on quantised q, k and v, ``softmax(mask(scale * q @ k^T)) @ v`` for each head.

    Products of int8 values are summed in integers, which is exact. Scores and the sums over v are float32.

    Args:
        qk: The result of :func:`fovea.quantize_qk_int8`, or the same from elsewhere.
        v: The result of :func:`fovea.quantize_v`, or the same from elsewhere.
        causal, window, anchor: As in :func:`fovea.attention`.
        scale: Multiplies the scores; None is ``d ** -0.5``.
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: As in the quantisers.
        dtype: The dtype of a new ``out``: torch.float16, torch.bfloat16 or torch.float32.
        out: Written and returned instead of a new tensor: shape of q. Rows of no sequence are left
            alone; in a new tensor they are 0.
        lse: Written and returned instead of a new tensor: float32 ``[batch, head, seq_q]``, or ``[total_q, head]``. Likewise; in a
            new tensor such rows are -inf.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm), that of k before smoothing.
        implementation: Forces one of :func:`fovea.implementations` by name.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.

    Returns:
        out, or (out, lse) with ``return_lse`` or ``lse``. A row that sees no key gives 0 and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason.

    Source: SageAttention (Zhang et al. 2024) and SageAttention2 (2024).
    """
    new = fills(cu_seqlens_q, out, lse)
    if out is None:
        out = empty_out(qk.q, v.v, dtype)
    if lse is None and return_lse:
        lse = empty_lse(qk.q)
    if lse is not None and qk.k_mean is not None and qk.lse_shift is None:
        raise ValueError("qk.lse_shift: got None, want a tensor where lse is wanted, as k was smoothed")
    inputs = (qk.q, qk.k, v.v, qk.q_scale, qk.k_scale, v.scale, v.mean, None if lse is None else qk.lse_shift)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = (score_scale(scale), qk.granularity, qk.warp_rows, implementation or "", batch_invariant)
    _quantized_attention(*inputs, out, lse, *lengths, *band(causal, window), top_left(anchor), *options, *new)
    return out if lse is None else (out, lse)


# fmt: off
@overload
def quantize_and_attend(q: Tensor, k: Tensor, v: Tensor, *, lse: None = None, return_lse: Literal[False] = False,
        **options: Unpack[QuantizeOptions]) -> Tensor: ...
@overload
def quantize_and_attend(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor | None = None, return_lse: Literal[True],
        **options: Unpack[QuantizeOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def quantize_and_attend(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor, return_lse: bool = False,
        **options: Unpack[QuantizeOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def quantize_and_attend(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor | None = None, return_lse: bool = False,
        **options: Unpack[QuantizeOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def quantize_and_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    granularity: Granularity = "thread",
    warp_rows: int = 32,
    v_dtype: torch.dtype = torch.float16,
    smooth_k: bool = True,
    smooth_v: bool = False,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """8-bit attention of plain tensors: quantises q, k and v and attends, in place of :func:`fovea.attention` for prefill.

    On near-normal data, also with a biased k, the cosine with exact attention is at least 0.9998 and the relative L1 error at most
    0.02; with ``v_dtype=torch.float8_e4m3fn`` 0.9985 and 0.055. Keys that no row sees are not read.

    Args:
        q: ``[batch, seq_q, head, d]``, or ``[total_q, head, d]`` of a ragged batch. float32, float16 or bfloat16; d is 64, 96, 128
            or 256.
        k, v: ``[batch, seq_k, kv_head, d]`` or ``[total_k, kv_head, d]``, dtype of q. ``head`` is a multiple of ``kv_head`` (GQA).
        causal, window, anchor, scale: As in :func:`fovea.attention`.
        granularity, warp_rows, smooth_k: As in :func:`fovea.quantize_qk_int8`.
        v_dtype, smooth_v: ``dtype`` and ``smooth_v`` of :func:`fovea.quantize_v`.
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: As in :func:`fovea.attention`.
        out: Written and returned instead of a new tensor: shape and dtype of q. Rows of no sequence are left
            alone; in a new tensor they are 0.
        lse: Written and returned instead of a new tensor: float32 ``[batch, head, seq_q]``, or ``[total_q, head]``. Likewise; in a
            new tensor such rows are -inf.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm).
        implementation: Forces one of :func:`fovea.implementations` by name.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.

    Returns:
        out, or (out, lse) with ``return_lse`` or ``lse``. A row that sees no key gives 0 and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: SageAttention (Zhang et al. 2024) and SageAttention2 (2024).
    """
    new = fills(cu_seqlens_q, out, lse)
    if out is None:
        out = empty_out(q, v)
    if lse is None and return_lse:
        lse = empty_lse(q)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    mask = (*band(causal, window), top_left(anchor))
    options = (v_dtype, smooth_k, smooth_v, granularity, warp_rows, implementation or "", batch_invariant)
    _quantize_and_attend(q, k, v, out, lse, *lengths, *mask, score_scale(scale), *options, *new)
    return out if lse is None else (out, lse)
