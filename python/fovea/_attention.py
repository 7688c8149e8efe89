# SPDX-License-Identifier: Apache-2.0
"""Dense attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from fovea._attention_backward import differentiable_attention
from fovea._autocast import autocast
from fovea._block_mask import operands_of
from fovea._calls import checked
from fovea._dispatch import OPERATORS, refuse_tangents
from fovea._functorch import is_mapped, refuse_grad_transforms
from fovea._library import (
    band,
    empty_lse,
    empty_out,
    fills,
    new_dropout_state,
    scale_tensor,
    score_scale,
    top_left,
    wants_gradients,
)
from fovea._options import Call, DenseMask, Lengths, PackedMask

if TYPE_CHECKING:
    from typing_extensions import Unpack

_attention = OPERATORS["attention"]


class AttentionOptions(Call, DenseMask, Lengths, PackedMask, total=False):
    softcap: float
    sink: Tensor | None
    q_scale: Tensor | float | None
    k_scale: Tensor | float | None
    v_scale: Tensor | float | None
    deterministic: bool
    block_mask: Any
    alibi_slopes: Tensor | None
    bias: Tensor | None
    dropout_p: float
    dropout_state: Tensor | None


# fmt: off
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, lse: None = None, return_lse: Literal[False] = False,
        **options: Unpack[AttentionOptions]) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor | None = None, return_lse: Literal[True],
        **options: Unpack[AttentionOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor, return_lse: bool = False,
        **options: Unpack[AttentionOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, lse: Tensor | None = None, return_lse: bool = False,
        **options: Unpack[AttentionOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    q_scale: Tensor | float | None = None,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
    packed_mask: Tensor | None = None,
    mask_indptr: Tensor | None = None,
    mask_tail: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
    deterministic: bool = False,
    block_mask: Any = None,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_state: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention, ``dropout(softmax(mask(softcap(scale * q @ k^T) + bias))) @ v`` for each head.

    Args:
        q: ``[batch, seq_q, head, dqk]``, or ``[total_q, head, dqk]`` of a ragged batch. float32, float16, bfloat16 or
            float8_e4m3fn; or float64, which the reference alone computes, slowly. On NVIDIA GPUs float16 and bfloat16,
            on Hopper float8_e4m3fn too, forward.
        k: ``[batch, seq_k, kv_head, dqk]`` or ``[total_k, kv_head, dqk]``, dtype of q. ``head`` is a multiple of ``kv_head`` (GQA).
        v: ``[batch, seq_k, kv_head, dv]`` or ``[total_k, kv_head, dv]``, dtype of q. dqk and dv are multiples of 8 up to 512.
        causal: A query sees the keys up to its own position.
        window: ``(left, right)``: a query sees at most this many keys before and after its own position; None is no bound.
            Negative numbers are refused: flash-attn's ``(-1, -1)`` is None here.
            Hugging Face's ``sliding_window=w`` is ``causal=True, window=(w - 1, None)``.
        anchor: Whether positions are counted from the last query and last key (the default: a query is what was just appended) or
            from the first.
        scale: Multiplies the scores; None is ``dqk ** -0.5``.
        softcap: c > 0 bounds the scores, ``c * tanh(s / c)``, before the mask; 0 is none.
        sink: float32 ``[head]``, a logit that joins the softmax's denominator only.
        cu_seqlens_q: int32 ``[batch + 1]``, the rows of a ragged batch: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of q.
        cu_seqlens_k: int32 ``[batch + 1]``, likewise for k and v.
        max_seqlen_q: A bound of the query lengths of a ragged batch; None is ``total_q``.
        max_seqlen_k: A bound of the key lengths of a ragged batch; None is ``total_k``.
        q_scale: For float8_e4m3fn: the factor of the values of q. float32, one element, ``[kv_head]`` or ``[batch, kv_head]``.
        k_scale: As ``q_scale``, for k.
        v_scale: As ``q_scale``, for v.
        packed_mask: Bits of the keys that a query row sees, beside ``causal`` and ``window``: both must let a key be. uint8, the
            lowest bit first. ``[bytes]`` holds the rows of bits one after another, those of sequence b from byte
            ``mask_indptr[b]`` on, as FlashInfer's ``packed_custom_mask``. ``[batch, seq_q, bytes]`` or
            ``[total_q, bytes]`` holds whole bytes for each row of q (:func:`fovea.tree_mask`). Gradients with one are
            computed on CPUs alone.
        mask_indptr: int32 ``[batch + 1]``, for a flat ``packed_mask``; a single sequence needs none.
        mask_tail: How many of a sequence's last keys have bits; every key before them passes. None is all keys.
        out: Written and returned instead of a new tensor: q's shape with dv, q's dtype (bfloat16 or float32 for float8_e4m3fn).
            Rows of no sequence of a ragged batch are left alone; in a new tensor they are 0.
        lse: Written and returned instead of a new tensor: float32 ``[batch, head, seq_q]``, or ``[total_q, head]``. Likewise;
            in a new tensor such rows are -inf.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm, without the sink).
        implementation: Forces one of :func:`fovea.implementations` by name, for the forward pass.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.
        deterministic: Whether gradients have the same bits from run to run, as out and lse always do, at the price of some speed.
            Without, that of q may differ in its last bits. ``torch.use_deterministic_algorithms(True)`` asks for it too.
        block_mask: The blocks of keys that each block of queries sees: a :class:`fovea.BlockMask`, or a ``BlockMask`` of
            ``torch.nn.attention.flex_attention``. The batch must be fixed. The band hides keys of listed blocks too.
        alibi_slopes: float32 ``[head]`` or ``[batch, head]``. Query i and key j get ``-slope * |i + seq_k - seq_q - j|``, after
            softcap; with ``anchor="top_left"``, ``-slope * |i - j|``. It has no gradient.
        bias: ``[batch, head, seq_q, seq_k]`` in the dtype of out, with any strides; any extent may be 1. Added after softcap; -inf
            makes a weight 0. The lengths for a ragged batch are its bounds or more. Its gradient is summed where it is broadcast.
        dropout_p: The share of weights that become 0; the others are divided by ``1 - dropout_p``. lse is that of all weights.
        dropout_state: int64 ``[2]`` on q's device, seed and offset, which decide what is dropped. None draws both from torch's
            generator of the device, in each replay of a CUDA graph too.

    Within ``torch.autocast``, q, k and v are cast to its dtype, as torch's scaled_dot_product_attention does it: float64, here also
    float8_e4m3fn, and the sink stay as they are. ``out`` may have autocast's dtype or another one of 16 or 32 bits, to which the
    results are rounded. ``torch.vmap`` maps q, k and v of a fixed batch.

    Returns:
        out, or (out, lse) with ``return_lse`` or ``lse``. A row that sees no key gives 0 and -inf. out and lse are differentiable
        once with respect to q, k, v, sink and bias (:func:`fovea.attention_backward`); lse does not depend on the sink.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; a tangent is given (forward mode); or a gradient is
            wanted of float8_e4m3fn inputs, or together with ``out`` or ``lse``; torch.vmap as with these; torch.func.grad.

    Source: FlashAttention (Dao et al. 2022); sinks as in Xiao et al. 2023.
    """
    mask = (*band(causal, window), top_left(anchor))
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options, blocks, given = (implementation or "", batch_invariant), operands_of(block_mask), out
    bits = (packed_mask, mask_tail, mask_indptr)
    if torch._C._is_any_autocast_enabled():
        q, k, v, out = autocast(q, k, v, out)
        bias = bias if bias is None else bias.to(q.dtype)
    if dropout_p != 0 and dropout_state is None:
        dropout_state = new_dropout_state(q)
    numbers, terms = (score_scale(scale), softcap, sink), (alibi_slopes, bias, dropout_p, dropout_state)
    if wants_gradients(q, k, v, sink, bias, alibi_slopes) or is_mapped(q, k, v, sink, cu_seqlens_q, cu_seqlens_k, bias):
        refuse_tangents(("q", "k", "v", "sink", "bias"), (q, k, v, sink, bias))
        refuse_grad_transforms(q, k, v, sink, bias)
        factors = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        _refuse_with_gradients(q, alibi_slopes, out=out, lse=lse, **factors)
        both = differentiable_attention(q, k, v, *lengths, *mask, *numbers, *blocks, *terms, *bits, *options, deterministic)
        return both if return_lse else both[0]
    new = fills(cu_seqlens_q, out, lse)
    if out is None:
        out = empty_out(q, v, torch.bfloat16 if q.dtype == torch.float8_e4m3fn else None)
    if lse is None and return_lse:
        lse = empty_lse(q)
    scales = (scale_tensor("q_scale", q_scale, q), scale_tensor("k_scale", k_scale, q), scale_tensor("v_scale", v_scale, q))
    _attention(q, k, v, out, lse, *lengths, *mask, *numbers, *blocks, *terms, *bits, *scales, *options, *new)
    if out is not given and given is not None:
        out = given.copy_(out)
    return out if lse is None else (out, lse)


def _refuse_with_gradients(q: Tensor, alibi_slopes: Tensor | None, **arguments: Tensor | float | None) -> None:
    """Refuses arguments that the differentiable operator does not take."""
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        raise NotImplementedError("alibi_slopes.requires_grad: got True, want False (detach(); a bias has a gradient)")
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError(
            "q.dtype: got float8_e4m3fn, want float32, float16 or bfloat16 where a gradient is wanted and within torch.vmap"
        )
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(
                f"{name}: got a value, want None where a gradient is wanted (use torch.no_grad() or detach()) and within torch.vmap"
            )
