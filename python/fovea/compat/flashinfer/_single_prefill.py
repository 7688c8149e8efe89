# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's prefill of one sequence."""

from functools import partial

import torch
from torch import Tensor

from fovea._attention import attention
from fovea.compat._arguments import refuse, rows
from fovea.compat.flashinfer._terms import (
    LOG2E,
    NO_MASK,
    Result,
    Scales,
    Scores,
    no_positions,
    refuse_variants,
    token_major,
)


def single_prefill_with_kv_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale_q: Tensor | None = None,
    scale_k: Tensor | None = None,
    scale_v: Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: Tensor | None = None,
    packed_custom_mask: Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: tuple[Tensor, Tensor] | None = None,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
) -> Result:
    """Attention of some queries over a sequence; they are its last tokens.

    Args:
        q: ``[seq_q, head, dqk]``.
        k: ``[seq_k, kv_head, dqk]``, with "HND" ``[kv_head, seq_k, dqk]``; v likewise with its own head dim.
        scale_q: Of float8_e4m3fn: float32, one element or ``[kv_head]``; scale_k and scale_v likewise.
        o_dtype: The dtype of out: q's, of float8_e4m3fn bfloat16, or any other that it is then rounded to.
        use_fp16_qk_reduction: Taken, as backend, rope_scale and rope_theta.
        k_scale: A number that multiplies the scores; v_scale one that multiplies out.
        The others are those of the batch wrappers.

    Returns:
        out ``[seq_q, head, dv]``, or (out, lse float32 ``[seq_q, head]`` to base 2).
    """
    no_positions(pos_encoding_mode)
    refuse(NO_MASK, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
    refuse_variants(kv_cache_sf=kv_cache_sf)
    given = zip((scale_q, scale_k, scale_v), (None, k_scale, v_scale), strict=True)
    scales = Scales(*(number if tensor is None else tensor for tensor, number in given))
    k, v = (rows(token_major(name, tensor, kv_layout)) for name, tensor in (("k", k), ("v", v)))
    scores = Scores(causal, window_left, logits_soft_cap, sm_scale).options(q.shape[-1], scales.of_scores())
    options = scores | scales.options(q=q, k=k, v=v)
    result = attention(rows(q)[None], k[None], v[None], return_lse=return_lse, **options)
    out, lse = result if return_lse else (result, None)
    factor = scales.of_values(v)
    out = out[0] if factor == 1.0 else out[0] * factor
    out = out if o_dtype is None else out.to(o_dtype)
    return out if lse is None else (out, (lse[0].t() * LOG2E).contiguous())


single_prefill_with_kv_cache_return_lse = partial(single_prefill_with_kv_cache, return_lse=True)
