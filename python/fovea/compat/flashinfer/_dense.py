# SPDX-License-Identifier: Apache-2.0
"""Dense attention of FlashInfer's dtypes: Fovea's takes one dtype for q, k and v, and no float8_e5m2."""

from typing import Any

import torch
from torch import Tensor

from fovea._attention import attention
from fovea.compat._arguments import rows
from fovea.compat.flashinfer._masks import Bits
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._scales import Scale, Scales, is_e4m3
from fovea.compat.flashinfer._terms import EIGHT_BITS, Result, Scores


def dense(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, scales: Scales, output: Output, bits: Bits | None = None, **lengths: Any
) -> Result:
    """Attention over ``[rows, head, head_dim]``. bits: a mask. lengths: cu_seqlens and the others of a ragged batch, or none."""
    q, k, v = _one_dtype(q, k, v, output.dtype)
    k, v, scales = _as_many_scales_as_heads(q, k, v, scales)
    options = scores.options(q.shape[-1], scales.of_scores()) | scales.options(q=q, k=k, v=v) | (bits or {})
    tensors = rows(q), rows(k), rows(v)
    return output.of(attention if lengths else _one_sequence, tensors, factor=scales.of_values(v), **lengths, **options)


def _one_sequence(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None, return_lse: bool, **options: Any) -> Result:
    """``fovea.attention`` without a batch: its lse is ``[rows, head]``."""
    out = out if out is None else out[None]
    result = attention(q[None], k[None], v[None], out=out, return_lse=return_lse, **options)
    return (result[0][0], result[1][0].t()) if return_lse else result[0]


def dense_dtype(dtypes: tuple[torch.dtype, ...], written: torch.dtype) -> torch.dtype | None:
    """The dtype to which 8-bit values among these are converted, exactly; None where Fovea takes them as they are."""
    if all(dtype == torch.float8_e4m3fn for dtype in dtypes):
        return None
    return next((dtype for dtype in dtypes if dtype not in EIGHT_BITS), written)


def _one_dtype(q: Tensor, k: Tensor, v: Tensor, written: torch.dtype) -> tuple[Tensor, ...]:
    if q.dtype == k.dtype == v.dtype and q.dtype != torch.float8_e5m2:
        return q, k, v
    half = written if written in (torch.float16, torch.bfloat16) else torch.bfloat16
    dtype = dense_dtype((q.dtype, k.dtype, v.dtype), half)
    return tuple(tensor.to(dtype) if tensor.dtype in EIGHT_BITS else tensor for tensor in (q, k, v))


def _as_many_scales_as_heads(q: Tensor, k: Tensor, v: Tensor, scales: Scales) -> tuple[Tensor, Tensor, Scales]:
    """FlashInfer has a scale for each head of q, Fovea one for each kv head: k and v are repeated for them."""
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if not is_e4m3(q) or not isinstance(scales.q, Tensor) or scales.q.numel() != heads or not 0 < kv_heads < heads:
        return k, v, scales
    group = heads // kv_heads

    def repeated(scale: Scale) -> Scale:
        return scale.repeat_interleave(group) if isinstance(scale, Tensor) and scale.numel() == kv_heads > 1 else scale

    k, v = k.repeat_interleave(group, dim=-2), v.repeat_interleave(group, dim=-2)
    return k, v, Scales(scales.q, repeated(scales.k), repeated(scales.v))
