# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's prefill of one sequence."""

from functools import partial

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat.flashinfer._dense import dense
from fovea.compat.flashinfer._masks import one_sequence
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._scales import Scales, is_e4m3, product
from fovea.compat.flashinfer._terms import (
    EIGHT_BITS,
    NAMES,
    ROWS,
    Result,
    Scores,
    no_positions,
    refuse_variants,
    token_major,
    want,
)


@adapted(NAMES | {"q_scale": "scale_q", "k_scale": "scale_k", "v_scale": "scale_v"}, axes={"q": ROWS, "k": ROWS, "v": ROWS})
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
        scale_q: The factor of a float8_e4m3fn q: float32, one element or ``[kv_head]``; scale_k and scale_v likewise.
        o_dtype: The dtype of out: q's, of float8_e4m3fn bfloat16, or any other that it is then rounded to.
        custom_mask: bool ``[seq_q, seq_k]``: whether a query sees a key; causal does not count then. packed_custom_mask: uint8, the
            same packed; it counts where both are given.
        use_fp16_qk_reduction: Taken, as backend, rope_scale and rope_theta.
        k_scale: A number that multiplies the scores; v_scale one that multiplies out.
        The others are those of the batch wrappers.

    Returns:
        out ``[seq_q, head, dv]``, or (out, lse float32 ``[seq_q, head]`` to base 2).
    """
    no_positions(pos_encoding_mode)
    refuse_variants(kv_cache_sf=kv_cache_sf)
    for name, scale in (("scale_q", scale_q), ("scale_k", scale_k), ("scale_v", scale_v)):
        if scale is not None and not (is_e4m3(q) and is_e4m3(k) and is_e4m3(v)):
            raise NotImplementedError(f"{name}: got a tensor, want None, or q, k and v in torch.float8_e4m3fn")
    want(o_dtype is None or o_dtype.is_floating_point, "o_dtype", o_dtype, "a floating-point dtype")
    usual = torch.bfloat16 if q.dtype in EIGHT_BITS else q.dtype
    scales = Scales(scale_q, product(scale_k, k_scale), product(scale_v, v_scale))
    k, v = token_major(k, kv_layout), token_major(v, kv_layout)
    bits = one_sequence(custom_mask, packed_custom_mask, q, k)
    scores = Scores(causal and not bits, window_left, logits_soft_cap, sm_scale)
    output = Output(usual if o_dtype is None else o_dtype, return_lse=return_lse)
    return dense(q, k, v, scores, scales, output, bits)


single_prefill_with_kv_cache_return_lse = partial(single_prefill_with_kv_cache, return_lse=True)
