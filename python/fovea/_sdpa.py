# SPDX-License-Identifier: Apache-2.0
"""Dense attention with the arguments and layouts of torch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fovea._attention import attention
from fovea._calls import adapted
from fovea._nested import check_nested, nested_attention

_ROWS = "batch, head, seq, head_dim"


_NAMES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "causal": "is_causal",
    "cu_seqlens_q": "query.offsets()",
    "cu_seqlens_k": "key.offsets()",
}


@adapted(_NAMES, axes={"query": _ROWS, "key": _ROWS, "value": _ROWS}, nested=True)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """:func:`fovea.attention` for code written for ``torch.nn.functional.scaled_dot_product_attention``.

    Args:
        query: ``[batch, head, seq_q, dqk]``. A nested tensor of layout torch.jagged has ``seq_q`` for each sequence.
        key: ``[batch, kv_head, seq_k, dqk]``.
        value: ``[batch, kv_head, seq_k, dv]``.
        attn_mask: None, or one of ``torch.nn.attention.bias`` (``causal_upper_left``, ``causal_lower_right``).
        dropout_p: 0.
        is_causal: A query sees the keys up to its own position, counted from the first query and the first key, as in torch.
        scale: Multiplies the scores; None is ``dqk ** -0.5``.
        enable_gqa: Whether key and value may have fewer heads than query.

    query, key and value are nested together. Their ``values()`` are read as a ragged batch, without a copy. key and value have the
    same lengths: give both the same ``offsets()``. Other tensors of offsets are compared, for which the host waits for a GPU.

    Returns:
        ``[batch, head, seq_q, dv]``, nested as query is, the transposed view of a tensor that has rows of all heads side by side.
        A row that sees no key gives 0. Differentiable once.

    Raises:
        ValueError: The call contradicts itself.
        NotImplementedError: Another mask, dropout, or no implementation accepts the call.

    Source: FlashAttention (Dao et al. 2022).
    """
    if dropout_p != 0:
        raise NotImplementedError(f"dropout_p: got {dropout_p}, want 0 (no dropout; model.eval() where it comes from a model)")
    nested = query.is_nested or key.is_nested or value.is_nested
    if nested:
        check_nested(query, key, value)
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise ValueError(f"enable_gqa: got False, want True for {query.shape[1]} heads over {key.shape[1]}")
    if nested:
        return nested_attention(query, key, value, scale=scale, **_mask(attn_mask, is_causal))
    q, k, v = (_token_major(tensor) for tensor in (query, key, value))
    return attention(q, k, v, scale=scale, **_mask(attn_mask, is_causal)).transpose(1, 2)


def _mask(attn_mask: Tensor | None, is_causal: bool) -> dict[str, Any]:
    if attn_mask is None:
        return {"causal": is_causal, "anchor": "top_left"}
    if is_causal:
        raise ValueError("is_causal: got True, want False (with attn_mask)")
    from torch.nn.attention.bias import CausalBias, CausalVariant  # takes a second, and who has such a bias has had it

    if not isinstance(attn_mask, CausalBias):
        raise NotImplementedError(
            f"attn_mask: got {type(attn_mask).__name__}, want None or a bias of torch.nn.attention.bias "
            "(is_causal=True for a causal mask; fovea.attention has windows, and cu_seqlens for padding)"
        )
    return {"causal": True, "anchor": "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"}


def _token_major(tensor: Tensor) -> Tensor:
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
