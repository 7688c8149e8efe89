# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's attention without a latent cache, of ragged batches: multi-head attention as in prefill, of 192/128 too."""

import torch
from torch import Tensor

from fovea._attention import attention
from fovea._calls import adapted
from fovea.compat._arguments import bound, check, checked_scale, refuse, rows

_NAMES = {
    "scale": "softmax_scale",
    "cu_seqlens_q": "cu_seqlens_qo",
    "cu_seqlens_k": "cu_seqlens_kv",
    "max_seqlen_q": "max_seqlen_qo",
    "max_seqlen_k": "max_seqlen_kv",
}
_TO_PACKED = dict.fromkeys(("cu_seqlens_qo", "cu_seqlens_kv"), "cu_seqlens") | dict.fromkeys(
    ("max_seqlen_qo", "max_seqlen_kv"), "max_seqlen"
)
_FLAT, _PACKED, _ENDS = "total, head, head_dim", "total, head, head dims of its parts", "batch + 1"


@adapted(_NAMES, axes={"q": _FLAT, "k": _FLAT, "v": _FLAT, "cu_seqlens_qo": _ENDS, "cu_seqlens_kv": _ENDS}, error=RuntimeError)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_qo: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_qo: Tensor | int,
    max_seqlen_kv: Tensor | int,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of a ragged batch: rows ``cu[b]`` to ``cu[b + 1] - 1`` belong to sequence b. Differentiable once.

    Args:
        q: ``[total_q, head, dqk]``; k ``[total_k, kv_head, dqk]``, v ``[total_k, kv_head, dv]``.
        cu_seqlens_qo: int32 ``[batch + 1]``; cu_seqlens_kv likewise.
        max_seqlen_qo: A bound of the query lengths; max_seqlen_kv of the key lengths.
        dropout_p: 0.
        softmax_scale: Multiplies the scores; None is ``dqk ** -0.5``.
        causal: A query sees the keys up to its own position, counted from the last query and the last key.
        deterministic: Whether gradients have the same bits from run to run, at the price of some speed.
        is_varlen: Whether lengths differ. Taken: Fovea reads the lengths.

    Returns:
        out ``[total_q, head, dv]`` and lse, float32 ``[total_q, head]``, whose memory runs along the tokens.
    """
    refuse("no dropout", dropout_p=dropout_p)
    out, lse = attention(
        rows(q),
        rows(k),
        rows(v),
        cu_seqlens_q=cu_seqlens_qo,
        cu_seqlens_k=cu_seqlens_kv,
        max_seqlen_q=bound(max_seqlen_qo, "max_seqlen_qo"),
        max_seqlen_k=bound(max_seqlen_kv, "max_seqlen_kv"),
        scale=checked_scale("softmax_scale", softmax_scale),
        causal=causal,
        return_lse=True,
        deterministic=deterministic,
    )
    return out, lse.transpose(0, 1).contiguous().transpose(0, 1)


@adapted({"q": "qkv", "k": "qkv", "v": "qkv"} | _TO_PACKED, axes={"qkv": _PACKED, "cu_seqlens": _ENDS}, error=RuntimeError)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: Tensor | int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    """:func:`flash_attn_varlen_func` of one tensor ``[total, head, 2 * dqk + dv]``: of each row first q, then k, then v."""
    q, k, v = _split("qkv", qkv, (head_dim_qk, head_dim_qk))
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


@adapted({"k": "kv", "v": "kv"}, axes={"q": _FLAT, "kv": _PACKED}, error=RuntimeError)
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_qo: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_qo: Tensor | int,
    max_seqlen_kv: Tensor | int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[Tensor, Tensor]:
    """:func:`flash_attn_varlen_func` with k and v in one tensor ``[total_k, kv_head, dqk + dv]``."""
    k, v = _split("kv", kv, (head_dim_qk,))
    lengths = (cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv)
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


def _split(name: str, packed: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
    left = packed.shape[2] - sum(dims)
    check(dims[0] > 0, "head_dim_qk", dims[0], "1 or more")
    check(left > 0, f"{name}.shape[2]", packed.shape[2], f"more than {sum(dims)} (head_dim_qk {dims[0]})")
    return torch.split(packed, [*dims, left], dim=2)
