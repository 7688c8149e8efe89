# SPDX-License-Identifier: Apache-2.0
"""Dense attention with the arguments and layouts of torch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fovea._annotations import unusual
from fovea._attention import attention
from fovea._calls import adapted
from fovea._nested import check_nested, nested_attention

_ROWS = "batch, head, seq, head_dim"
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of results. A query of another dtype has results of bfloat16, or is refused."""


_NAMES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "causal": "is_causal",
    "bias": "attn_mask",
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
        attn_mask: None, one of ``torch.nn.attention.bias`` (``causal_upper_left``, ``causal_lower_right``), or a tensor that
            broadcasts to ``[batch, head, seq_q, seq_k]``: bool (True takes part), or added to the scores in query's dtype. The
            latter has a gradient. A mask that ``is_causal`` can say is faster.
        dropout_p: The share of weights that become 0, as :func:`fovea.attention` has it.
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
        NotImplementedError: A mask of nested tensors, or no implementation accepts the call.

    Source: FlashAttention (Dao et al. 2022).
    """
    nested = query.is_nested or key.is_nested or value.is_nested
    if nested:
        check_nested(query, key, value)
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise ValueError(f"enable_gqa: got False, want True for {query.shape[1]} heads over {key.shape[1]}")
    mask = _mask(query, key, attn_mask, is_causal)
    if nested:
        if "bias" in mask:
            raise NotImplementedError("attn_mask: got a tensor with nested ones, want None or a bias of torch.nn.attention.bias")
        return nested_attention(query, key, value, scale=scale, dropout_p=dropout_p, **mask)
    q, k, v = (_token_major(tensor) for tensor in (query, key, value))
    return attention(q, k, v, scale=scale, dropout_p=dropout_p, **mask).transpose(1, 2)


def _mask(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> dict[str, Any]:
    if attn_mask is None:
        return {"causal": is_causal, "anchor": "top_left"}
    if is_causal:
        raise ValueError("is_causal: got True, want False (with attn_mask)")
    from torch.nn.attention.bias import CausalBias, CausalVariant  # takes a second, and who has such a bias has had it

    if not isinstance(attn_mask, CausalBias):
        return {"bias": _bias(query, key, attn_mask)}
    return {"causal": True, "anchor": "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"}


def _bias(query: Tensor, key: Tensor, attn_mask: Tensor) -> Tensor:
    """A mask of torch as a bias of four axes."""
    if not torch.compiler.is_compiling():
        _check_mask(query, key, attn_mask)
    mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    dtype = torch.bfloat16 if query.dtype == torch.float8_e4m3fn else query.dtype if query.dtype in _FLOATS else torch.float32
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
    if not mask.is_floating_point():
        raise ValueError(f"attn_mask.dtype: got {mask.dtype}, want torch.bool or {dtype}")
    return mask.to(dtype)


def _check_mask(query: Tensor, key: Tensor, attn_mask: Tensor) -> None:
    """Functions of torch's get a mask first: they would read past the end of its storage. Its axes are those that it has."""
    if wrong := unusual("attn_mask", attn_mask):
        raise ValueError(wrong)
    if attn_mask.dim() > 4:
        raise ValueError(f"attn_mask.dim(): got {attn_mask.dim()}, want 4 at most ([batch, head, seq_q, seq_k])")
    if query.is_nested or key.is_nested:
        return
    whole = (("batch", query.shape[0]), ("head", query.shape[1]), ("seq_q", query.shape[2]), ("seq_k", key.shape[2]))
    for at, (extent, (axis, want)) in enumerate(zip(attn_mask.shape, whole[4 - attn_mask.dim() :], strict=True)):
        if extent not in (1, want):
            raise ValueError(f"attn_mask.shape[{at}] ({axis}): got {extent}, want 1 or {want}")


def _token_major(tensor: Tensor) -> Tensor:
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
